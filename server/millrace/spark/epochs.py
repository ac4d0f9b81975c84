"""One epoch after the other, each exactly once, whatever is killed when.

    1  Spark logs the offsets of the epoch, and calls
    2  the epoch's record: its time and placement. A re-run uses the record of the first run
    3  tasks write states and rows under unique names
    4  the commit names them. From here on the epoch has happened
    5  sinks get the rows, perhaps twice; Spark logs the end of the epoch
    6  states of the epoch before last are removed, and files that no commit names

A kill before 4 leaves files that no commit names: the epoch runs again over the same offsets, from the states of the
commit before, at the same time, and so makes the same states and rows. A kill after 4 leaves an epoch that is
committed: it is only published again.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.backfill.bucket import Group
from millrace.engine.events import CommandBody
from millrace.formats.durable import make_folder
from millrace.protocol import Refuse
from millrace.spark.changing import Change, Stage, apply
from millrace.spark.checkpoint import SPARK, Checkpoint, remove_others
from millrace.spark.placing import place
from millrace.spark.records import CommitRecord, EpochRecord, Kind, PartProgress, Totals, Unit
from millrace.spark.sinks import Delivery, Sink
from millrace.spark.work import TaskResult, Work, further
from millrace.sql import Catalog
from millrace.values.written import show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Runs the tasks of an epoch; results of tasks that got no rows may be missing.
Execute = Callable[[Work], Iterable[TaskResult]]
Report = Callable[[CommitRecord], None]


@dataclass(frozen=True)
class Plan:
    """What a job computes.

    sql        of the job when it started
    catalog    the definitions, streams as their inputs deliver them
    functions  the modules of users' functions, which tasks import
    buckets    of a new group
    punctuated  the streams whose inputs say how far they have come
    changes    how many changes of the job it contains
    """

    sql: str
    catalog: Catalog
    groups: tuple[Group, ...]
    functions: tuple[str, ...] = ()
    buckets: int = 64
    punctuated: tuple[str, ...] = ()
    changes: int = 0

    def after(self, changes: Sequence[Change]) -> tuple[Plan, Stage]:
        """The plan with further changes, and the commands for its buckets."""
        catalog, groups = self.catalog, self.groups
        commands: dict[int, tuple[CommandBody, ...]] = {}
        for change in changes:
            changed = apply(catalog, groups, change, self.buckets)
            catalog, groups = changed.catalog, changed.groups
            for number, own in changed.commands.items():
                commands[number] = (*commands.get(number, ()), *own)
        old = {number: self.groups[number] for number in commands if number < len(self.groups)}
        plan = replace(self, catalog=catalog, groups=groups, changes=self.changes + len(changes))
        return plan, Stage(groups, old, {number: commands[number] for number in old})

    @property
    def fingerprint(self) -> str:
        return "-".join(group.fingerprint for group in self.groups)

    @property
    def units(self) -> list[Unit]:
        return [(number, bucket) for number, group in enumerate(self.groups) for bucket in range(group.buckets)]

    @property
    def queries(self) -> dict[str, Group]:
        return {name: group for group in self.groups for name in group.names}

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with."""
        groups = [
            {
                "queries": list(group.flow.names),
                "how": group.how,
                "key": [f"{stream} by {', '.join(map(show, key))}" for stream, key in group.keys.items()],
                "buckets": group.buckets,
                "fingerprint": group.fingerprint,
            }
            for group in self.groups
        ]
        return {
            "sql": self.sql,
            "groups": groups,
            "buckets": self.buckets,
            "functions": list(self.functions),
            "punctuated": list(self.punctuated),
        }


class Outdated(Refuse):
    """The job has changed: its query must be started again."""


class Epochs:
    """Runs the epochs of a job whose checkpoint is locked.

    plan     what it is in the epochs to come
    clock    the time in microseconds, for epochs whose offsets have none
    report   gets each new commit, after its rows are published
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: Plan,
        sinks: Mapping[str, Sink],
        *,
        tasks: int,
        clock: Callable[[], int],
        report: Report,
        session: SparkSession | None = None,
        spare: Sink | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._changes = checkpoint.changes()
        # By the number of changes. An epoch may have to be published again, with the queries that it had.
        self._plans = [plan]
        for change in self._changes:
            self._plans.append(self._plans[-1].after([change])[0])
        # An epoch keeps the plan that it started with.
        started = checkpoint.started()
        self.plan = self._plans[len(self._changes) if started is None else started.changes]
        ever = dict.fromkeys(query for one in self._plans for query in one.queries)
        self._sinks = {query: found for query in ever if (found := sinks.get(query, spare)) is not None}
        self._tasks, self._clock, self._report, self._session = tasks, clock, report, session
        self._job = checkpoint.id
        self._staged = {query: sink.staging(checkpoint, query) for query, sink in self._sinks.items()}
        for folder in set(self._staged.values()):
            make_folder(folder)

    def run(self, number: int, offsets: str, execute: Execute, kind: Kind = "rows") -> None:
        """Run an epoch, or the rest of it. `offsets` are from Spark's log."""
        started = time.perf_counter()
        commit = self._checkpoint.commit(number)
        fresh = commit is None
        if commit is None:
            commit = self._compute(number, offsets, execute, kind)
        computed = time.perf_counter()
        self._publish(commit)
        self._clean(commit)
        if fresh:
            ended = time.perf_counter()
            spent = {**commit.spent, "publish": ended - computed, "whole": ended - started}
            self._report(with_spent(commit, spent))

    @property
    def outdated(self) -> bool:
        """Whether the job has changes that the plan does not contain."""
        return self._checkpoint.has_change(self.plan.changes + 1)

    def end(self, execute: Execute) -> None:
        """Emit what is incomplete, as an epoch after the last. The job cannot continue after it."""
        last = self._checkpoint.last()
        number = 0 if last is None else last.epoch + (last.kind != "end")
        self.run(number, "", execute, "end")

    # -- computing -----------------------------------------------------------------------------------------------------

    def _compute(self, number: int, offsets: str, execute: Execute, kind: Kind) -> CommitRecord:
        before = self._before(number)
        source = hashlib.sha256(offsets.encode()).hexdigest()[:32] if offsets else ""
        record = self._checkpoint.put_epoch(self._record(number, kind, offsets, source, before))
        if (record.source, record.kind, record.changes) != (source, kind, self.plan.changes):
            raise Refuse(
                f"checkpoint {self._checkpoint.path}: epoch {number} started with other offsets than Spark's log has; "
                "start from a copy of the whole folder",
                code="checkpoint",
            )
        began = time.perf_counter()
        results = self._results(record, before, execute)
        ran = time.perf_counter()
        commit = self._commit(record, before, results)
        commit = with_spent(commit, {**slowest(results), "tasks": ran - began})
        self._checkpoint.put_commit(commit)
        return commit

    def _before(self, number: int) -> CommitRecord | None:
        """The commit that this epoch continues."""
        before = self._checkpoint.commit(number - 1)
        last = self._checkpoint.last()
        if before is None and (number or last is not None):
            raise Refuse(
                f"checkpoint {self._checkpoint.path}: Spark continues with epoch {number}, and the last commit is "
                f"{'none' if last is None else last.epoch}: one of its folders is older than the others; start from a "
                "copy of the whole folder",
                code="checkpoint",
            )
        check_not_ended(self._checkpoint, last)
        return before

    def _record(self, number: int, kind: Kind, offsets: str, source: str, before: CommitRecord | None) -> EpochRecord:
        at_us = batch_time(offsets)
        if at_us is None:
            at_us = self._clock()
        seconds: Mapping[Unit, float] = {}
        placed: Sequence[Sequence[Unit]] = ()
        if before is not None:
            at_us = max(at_us, before.at_us)
            seconds = before.seconds
            earlier = self._checkpoint.epoch(before.epoch)
            placed = () if earlier is None else earlier.tasks
        tasks = place(self.plan.units, self._tasks, seconds, placed)
        return EpochRecord(number, kind, at_us, tasks, source, self.plan.changes)

    def _results(self, record: EpochRecord, before: CommitRecord | None, execute: Execute) -> list[TaskResult]:
        stage = self._stage(before)
        work = Work(
            str(self._checkpoint.path),
            record,
            "-".join(group.fingerprint for group in (*stage.groups, *stage.before.values())),
            pickle.dumps(stage),
            self.plan.functions,
            {} if before is None else before.states,
            {query: str(folder) for query, folder in self._staged.items()},
        )
        results = {result.task: result for result in execute(work)}
        for task in range(len(record.tasks)):
            if task not in results:  # Spark starts no task for no rows
                results[task] = work.run(task, ())
        return [results[task] for task in range(len(record.tasks))]

    def _stage(self, before: CommitRecord | None) -> Stage:
        """The groups, and their changes since the last commit."""
        record = None if before is None else self._checkpoint.epoch(before.epoch)
        earlier = 0 if record is None else record.changes
        return self._plans[earlier].after(self._changes[earlier : self.plan.changes])[1]

    def _commit(self, record: EpochRecord, before: CommitRecord | None, results: Sequence[TaskResult]) -> CommitRecord:
        counts = counts_of(results)
        totals = Totals() if before is None else before.totals
        return CommitRecord(
            record.epoch,
            record.kind,
            record.at_us,
            {unit: place for result in results for unit, place in sorted(result.states.items())},
            [one for query in self.plan.queries for result in results for one in result.files if one.query == query],
            {query: totals.rows.get(query, 0) for query in self.plan.queries},
            {query: self._sinks[query].text for query in self.plan.queries},
            marks_of(results),
            counts,
            totals.plus(counts),
            parts_of({} if before is None else before.parts, results),
            {unit: seconds for result in results for unit, seconds in result.seconds.items()},
            {},
        )

    # -- after the commit ----------------------------------------------------------------------------------------------

    def _publish(self, commit: CommitRecord) -> None:
        record = self._checkpoint.epoch(commit.epoch)
        plan = self.plan if record is None else self._plans[record.changes]
        sinks = {query: self._sinks[query] for query in commit.sinks}
        for query, sink in sinks.items():
            if commit.sinks[query] != sink.text:
                raise Refuse(
                    f"checkpoint {self._checkpoint.path}: the rows of {query} in epoch {commit.epoch} were committed "
                    f"for {commit.sinks[query]}, not {sink.text}; start it once with the sink that it had",
                    code="sink",
                )
        for query, sink in sinks.items():
            files = [one for one in commit.files if one.query == query]
            schema = plan.queries[query].schemas[query]
            folder = self._staged[query]
            sink.publish(
                Delivery(self._job, query, schema, commit.epoch, commit.first[query], folder, files), self._session
            )

    def _clean(self, commit: CommitRecord) -> None:
        self._checkpoint.clean(commit)
        named = {one.file for one in commit.files}
        for folder in set(self._staged.values()):
            remove_others(folder, named)


def check_not_ended(checkpoint: Checkpoint, last: CommitRecord | None) -> None:
    """Refuse to read more after the end."""
    if last is not None and last.kind == "end":
        raise Refuse(
            f"checkpoint {checkpoint.path}: the job has ended, and its incomplete windows are emitted; use a new "
            "folder to compute more rows",
            code="ended",
        )


# -- Spark's log -------------------------------------------------------------------------------------------------------


def logged_offsets(checkpoint: Checkpoint, number: int) -> str:
    """What Spark's log has of an epoch."""
    path = offset_log(checkpoint) / str(number)
    try:
        return path.read_text("utf-8")
    except OSError:
        raise Refuse(f"{path}: Spark's offsets of epoch {number} are missing", code="checkpoint") from None


def offset_log(checkpoint: Checkpoint) -> Path:
    return checkpoint.path / SPARK / "offsets"


def check_log(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose commits and Spark's log do not belong together."""
    last = checkpoint.last()
    folder = offset_log(checkpoint)
    logged = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []
    newest = max(logged, default=-1)
    committed = -1 if last is None else last.epoch - (last.kind == "end")
    if not committed <= newest <= committed + 1:
        raise Refuse(
            f"checkpoint {checkpoint.path}: the last commit is of epoch {committed}, and Spark's log ends with "
            f"{newest}: one of its folders is older than the others; start from a copy of the whole folder",
            code="checkpoint",
        )


def batch_time(offsets: str) -> int | None:
    """The time of an epoch: the latest of its streams' offsets; None if they have none."""
    found = []
    for line in offsets.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("at"), int):
            found.append(value["at"])
    return max(found, default=None)


# -- putting results together ------------------------------------------------------------------------------------------


def with_spent(commit: CommitRecord, spent: Mapping[str, float]) -> CommitRecord:
    return replace(commit, spent=spent)


# The phases of a task, in their order.
PHASES: Final = ("restore", "step", "write", "save")


def slowest(results: Sequence[TaskResult]) -> Mapping[str, float]:
    """The phases of the task that took longest."""
    return max((result.spent for result in results), key=lambda spent: sum(spent.values()), default={})


def marks_of(results: Sequence[TaskResult]) -> dict[str, int]:
    marks: dict[str, int] = {}
    for result in results:
        for stream, mark in result.marks.items():
            marks[stream] = min(mark, marks.get(stream, mark))
    return marks


def counts_of(results: Sequence[TaskResult]) -> Totals:
    """An epoch's counts. Groups that read one stream get the same rows of it."""
    counts = Totals()
    by_group: tuple[dict[tuple[int, str], int], dict[tuple[int, str], int]] = ({}, {})
    for result in results:
        for sums, own in zip(by_group, (result.input, result.late), strict=True):
            for key, count in own.items():
                sums[key] = sums.get(key, 0) + count
        for one in result.files:
            counts.rows[one.query] = counts.rows.get(one.query, 0) + one.rows
        counts = counts.plus(Totals(failed=result.failed))
    for sums, into in zip(by_group, (counts.input, counts.late), strict=True):
        for (_, stream), count in sorted(sums.items()):
            into[stream] = max(count, into.get(stream, 0))
    return counts


def parts_of(
    before: Mapping[str, Mapping[str, PartProgress]], results: Sequence[TaskResult]
) -> dict[str, dict[str, PartProgress]]:
    """How far each part has been read."""
    parts = {stream: dict(known) for stream, known in before.items()}
    read: dict[tuple[str, str], PartProgress] = {}
    for result in results:
        for stream, own in result.parts.items():
            for name, one in own.items():
                read[stream, name] = one  # groups that read one stream hear the same
    for (stream, name), one in read.items():
        known = parts.setdefault(stream, {})
        known[name] = further(known.get(name), one.newest, one.promise, one.rows)
    return parts
