"""What a checkpoint says of its job, without Spark and without its driver: how far it is, and whether it is whole."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.protocol import Refuse, format_timestamp
from millrace.protocol.words import counted
from millrace.spark.checkpoint import COMMITS, JOB, STATES, Checkpoint, read_states
from millrace.spark.epochs import check_log
from millrace.spark.records import CommitRecord, PartProgress, RowFile
from millrace.spark.sinks import FILE, published_name, staged_folder
from millrace.spark.words import mark_and_lag, slowest_bucket
from millrace.values.eventtime import MIN_TIME

# Commits that `status` shows.
SHOWN: Final = 5
# How often a check is repeated if the job commits meanwhile, because it removes files.
ATTEMPTS: Final = 5
# A part counts as behind another by more than this: parts are not read at the same moment.
BEHIND_US: Final = 1_000_000


def status(path: str) -> dict[str, Any]:
    """How far a job is."""
    checkpoint, job = existing(path)
    last = checkpoint.last()
    queries = [name for group in job["groups"] for name in group["queries"]]
    found: dict[str, Any] = {
        "job": job["id"],
        "queries": queries,
        "buckets": [group["buckets"] for group in job["groups"]],
        "epoch": None if last is None else last.epoch,
        "changes": list(_changes(checkpoint, last)),
    }
    if last is None:
        return found
    lag, slow = mark_and_lag(last), slowest_bucket(last)
    return found | {
        "queries": list(last.sinks),
        "ended": last.kind == "end",
        "at_us": last.at_us,
        "commit_age_s": max(round(time.time() - _written(checkpoint, last.epoch), 1), 0.0),
        "mark_us": None if lag is None else lag[0],
        "behind_us": None if lag is None else lag[1],
        "slowest_bucket": None if slow is None else slow[0][1],
        "skew": None if slow is None else round(slow[1], 2),
        "totals": last.totals.to_data(),
        "sinks": dict(last.sinks),
        "parts": list(_parts(last)),
        "commits": [_shown(checkpoint.commit(number)) for number in checkpoint.commits()[-SHOWN:]],
    }


def existing(path: str) -> tuple[Checkpoint, Mapping[str, Any]]:
    checkpoint = Checkpoint(path)
    job = checkpoint.job() if (checkpoint.path / JOB).exists() else None
    if job is None:
        raise Refuse(f"{path} is not a checkpoint of a live job (no {JOB}); expected the folder of --checkpoint")
    return checkpoint, job


def _changes(checkpoint: Checkpoint, last: CommitRecord | None) -> Iterator[dict[str, Any]]:
    """The changes of a job, and whether the last commit contains them."""
    record = None if last is None else checkpoint.epoch(last.epoch)
    for number, change in enumerate(checkpoint.changes(), 1):
        in_effect = record is not None and number <= record.changes
        yield {"number": number, "change": change.words, "by": change.by, "at_us": change.at_us, "in_effect": in_effect}


def _written(checkpoint: Checkpoint, epoch: int) -> float:
    return (checkpoint.path / COMMITS / f"{epoch:010}.json").stat().st_mtime


def _parts(commit: CommitRecord) -> Iterator[dict[str, Any]]:
    """The parts, those that are furthest behind the newest of their stream first."""
    for stream, parts in commit.parts.items():
        newest = max(map(_reached, parts.values()), default=MIN_TIME)
        for name, part in sorted(parts.items(), key=lambda one: (_reached(one[1]), one[0])):
            reached = _reached(part)
            yield {
                "stream": stream,
                "part": name,
                "rows": part.rows,
                "reached_us": None if reached == MIN_TIME else reached,
                "behind_us": None if reached == MIN_TIME else newest - reached,
            }


def _reached(part: PartProgress) -> int:
    return max((time for time in (part.newest, part.promise) if time is not None), default=MIN_TIME)


def parts_behind(commit: CommitRecord) -> list[dict[str, Any]]:
    """The parts that lag another part of their stream."""
    return [part for part in _parts(commit) if is_behind(part)]


def is_behind(part: Mapping[str, Any]) -> bool:
    return part["behind_us"] is None or part["behind_us"] > BEHIND_US


def _shown(commit: CommitRecord | None) -> dict[str, Any]:
    if commit is None:  # removed meanwhile
        return {}
    return {
        "epoch": commit.epoch,
        "at": format_timestamp(commit.at_us),
        "input": sum(commit.counts.input.values()),
        "rows": sum(commit.counts.rows.values()),
        "late": sum(commit.counts.late.values()),
        "seconds": round(commit.spent.get("tasks", 0.0), 3),
    }


# -- whether it is whole -----------------------------------------------------------------------------------------------


def verify(path: str) -> tuple[dict[str, Any], list[str]]:
    """The records and files that were checked, and their faults."""
    checkpoint, _ = existing(path)
    for attempt in range(ATTEMPTS):
        last = checkpoint.last()
        checked = _Check(checkpoint)
        checked.run()
        if not checked.problems or attempt == ATTEMPTS - 1 or _same(checkpoint.last(), last):
            break  # a job that runs removes what this was about to read
    return checked.counts, checked.problems


def _same(one: CommitRecord | None, other: CommitRecord | None) -> bool:
    return (one and one.epoch) == (other and other.epoch)


class _Check:
    """One look at all that a checkpoint has."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.counts = {"commits": 0, "states": 0, "files": 0, "rows": 0}
        self.problems: list[str] = []

    def run(self) -> None:
        numbers = self._checkpoint.commits()
        before: CommitRecord | None = None
        for number in numbers:
            commit = self._checkpoint.commit(number)
            if commit is not None:
                self._commit(before, commit, newest=number == numbers[-1])
                before = commit
        try:
            check_log(self._checkpoint)
        except Refuse as error:
            self.problems.append(error.text)

    def _commit(self, before: CommitRecord | None, commit: CommitRecord, newest: bool) -> None:
        self.counts["commits"] += 1
        if before is not None and before.epoch + 1 != commit.epoch:
            self.problems.append(f"commit {commit.epoch} follows {before.epoch}: the commits between are missing")
        elif before is not None:
            if before.totals.plus(commit.counts) != commit.totals:
                self.problems.append(f"commit {commit.epoch}: its totals are not those before it and its counts")
            if before.at_us > commit.at_us:
                self.problems.append(f"commit {commit.epoch}: its time is before the time of commit {before.epoch}")
        if self._checkpoint.epoch(commit.epoch) is None:
            self.problems.append(f"commit {commit.epoch}: its epoch record is missing")
        rows: dict[str, int] = {}
        for one in commit.files:
            rows[one.query] = rows.get(one.query, 0) + one.rows
            self._file(commit, one, newest)
        if rows != commit.counts.rows:
            self.problems.append(
                f"commit {commit.epoch}: its files have {rows} rows, and it counts {commit.counts.rows}"
            )
        for query, first in commit.first.items():
            if first + commit.counts.rows.get(query, 0) != commit.totals.rows.get(query, 0):
                self.problems.append(f"commit {commit.epoch}: the rows of {query} are not numbered without a gap")
        if newest:
            self._states(commit)

    def _states(self, commit: CommitRecord) -> None:
        try:
            for _ in read_states(self._checkpoint.path / STATES, commit.states):
                self.counts["states"] += 1
        except Refuse as error:
            self.problems.append(f"commit {commit.epoch}: {error.text}")

    def _file(self, commit: CommitRecord, one: RowFile, newest: bool) -> None:
        """A file of rows: with its name, or of the newest epoch perhaps still without. Other sinks keep none."""
        if sum(rows for _, rows in one.buckets) != one.rows:
            self.problems.append(f"commit {commit.epoch}: file {one.file} counts other rows than its buckets")
        sink = commit.sinks[one.query]
        if not sink.startswith(FILE):
            return
        folder = Path(sink.removeprefix(FILE))
        path = folder / quote(one.query, safe="") / published_name(commit.epoch, one.task)
        staged = staged_folder(folder, self._checkpoint.id) / one.file
        if newest and staged.exists():
            path = staged
        try:
            rows = pq.read_metadata(path).num_rows
        except (OSError, pa.ArrowException) as error:
            reason = "it is missing" if isinstance(error, FileNotFoundError) else "it cannot be read"
            self.problems.append(f"commit {commit.epoch}: {path}: {reason}")
            return
        self.counts["files"] += 1
        self.counts["rows"] += rows
        if rows != one.rows:
            self.problems.append(f"commit {commit.epoch}: {path} has {counted(rows, 'row')}, not {one.rows}")
