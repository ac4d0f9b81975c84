"""The files of a backfill, which may be killed at any moment and run again.

    <out>/_plan.json                what is computed and how it is split; written first, never changed
    <out>/date=YYYY-MM-DD/part-00007-000.parquet
                                    rows of task 7 whose own time lies on that day (UTC)
    <out>/_tasks/00007.json         task 7 is done, and these are its files; written when they have their names
    <out>/_manifest.json            everything is done; written last

Rule: a task writes temporary files, makes them durable, renames them, removes other files of earlier attempts under its
number, and then records that it is done. A reader of only the files in a manifest never sees half a result.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

from millrace.backfill.layout import result_batch, result_schema
from millrace.formats.arrow import arrow_schema, to_arrow
from millrace.formats.durable import make_folder, sync_file, sync_folder
from millrace.formats.writers import ROW_GROUP
from millrace.protocol import Refuse, Schema, format_timestamp
from millrace.values.batch import Batch
from millrace.values.eventtime import MIN_TIME, is_time

PLAN, MANIFEST, TASKS, ASIDE = "_plan.json", "_manifest.json", "_tasks", "_aside"
DAY_US: Final = 86_400_000_000
# Rows without a time are where Hive's readers look for nulls.
NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
# A task's rows are approximately in order of time, so few days are open at once.
OPEN_DAYS: Final = 8


class Destination:
    """A directory of a backfill."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    # -- before --------------------------------------------------------------------------------------------------------

    def plan(self) -> dict[str, Any] | None:
        """The plan of the backfill in this directory."""
        return _read(self.path / PLAN)

    def manifest(self) -> dict[str, Any] | None:
        """The manifest, once it is done."""
        return _read(self.path / MANIFEST)

    def done(self) -> dict[int, dict[str, Any]]:
        """The files of each finished task."""
        found = {}
        for file in sorted((self.path / TASKS).glob("*.json")):
            told = _read(file)
            if told is not None:
                found[int(told["task"])] = told
        return found

    def begun(self, identity: Mapping[str, Any]) -> dict[str, Any] | None:
        """The plan that is to be gone on with, if there is one; Refuse if something else is in the directory."""
        found = self.plan()
        if found is not None:
            _same_plan(found["identity"], _plain(identity), self.path)
        elif self.path.exists() and not all(map(_left_at_birth, self.path.iterdir())):
            raise Refuse(
                f"--out {self.path}: the directory contains other files; use an empty or a new directory",
                code="destination",
            )
        return found

    def begin(self, identity: Mapping[str, Any], split: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        """Reserve the directory for this plan, and record the request for the split."""
        plan = {"identity": _plain(identity), "split": _plain(split), "asked": _plain(asked), "began": _now()}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            _write(self.path / PLAN, plan)
        except OSError as error:
            raise Refuse(f"--out {self.path}: {(error.strerror or str(error)).lower()}", code="destination") from None

    def abandon(self, keep_folder: bool) -> None:
        """Remove all that was written, the plan last: until it is gone this is a backfill that can be gone on with."""
        for name in (TASKS, ASIDE):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for file in self.path.glob("date=*/part-*.parquet"):
            file.unlink(missing_ok=True)
        for left in (*self.path.glob(".*.json.*"), self.path / PLAN):
            left.unlink(missing_ok=True)
        for folder in (*self.path.glob("date=*"), *([] if keep_folder else [self.path])):
            with suppress(OSError):  # it has other files
                folder.rmdir()

    # -- after ---------------------------------------------------------------------------------------------------------

    def finish(self, schema: Schema) -> dict[str, Any]:
        """Record that everything is done, and the files."""
        plan, done = self.plan(), self.done()
        assert plan is not None
        missing = [number for number in range(plan["split"]["tasks"]) if number not in done]
        assert not missing, f"tasks {missing} are not done"
        files = [file for told in done.values() for file in told["files"]]
        failed: dict[str, list[Any]] = {}
        for told in done.values():
            for operator, (count, reason) in told["failed_rows"].items():
                before = failed.get(operator, [0, ""])[0]
                failed[operator] = [before + count, reason]
        manifest = {
            **plan["identity"],
            "split": plan["split"],
            "schema": [[field.name, str(field.type), field.nullable] for field in result_schema(schema)],
            "rows": sum(file["rows"] for file in files),
            "files": files,
            "failed_rows": failed,
            "tasks": [
                {name: told[name] for name in ("task", "rows", "input_rows", "seconds")} for told in done.values()
            ],
            "began": plan["began"],
            "finished": _now(),
        }
        shutil.rmtree(self.path / ASIDE, ignore_errors=True)
        for left in self.path.glob(".*.json.*"):
            left.unlink()
        _write(self.path / MANIFEST, manifest)
        return manifest


def _left_at_birth(path: Path) -> bool:
    """Whether a file is a plan that was not renamed."""
    return path.name.startswith(f".{PLAN}.")


def _same_plan(found: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    for name in wanted:
        if found.get(name) != wanted[name]:
            told, asked = _told(name, found.get(name)), _told(name, wanted[name])
            now = "" if told == asked else f", not one {asked}"
            raise Refuse(
                f"--out {path}: it already contains a backfill {told}{now}; use another directory, or remove it",
                code="destination",
            )


# The flag of each part of a plan.
_FLAGS: Final = {"from_us": "--from", "to_us": "--to"}


def _told(name: str, value: object) -> str:
    """A part of a plan, in the words of the flags."""
    if name in _FLAGS:
        if isinstance(value, int) and is_time(value):
            return f"with {_FLAGS[name]} {format_timestamp(value)}"
        return f"without {_FLAGS[name]}"
    if name == "query":
        return f"of query {value}"
    return "with other input files" if name == "inputs" else "of other statements"


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """The value after a round trip through JSON."""
    made: dict[str, Any] = json.loads(json.dumps(value))
    return made


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise Refuse(f"{path}: expected a file written by a backfill, got {error}", code="destination") from None
    return found if isinstance(found, dict) else None


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file completely or not at all, and onto the disk."""
    make_folder(path.parent)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with aside.open("wb") as file:
        file.write(json.dumps(value, indent=1).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    sync_folder(path.parent)


# -- a task's side -----------------------------------------------------------------------------------------------------


class TaskWriter:
    """Writes one task's rows and commits them."""

    def __init__(self, path: str, task: int, schema: Schema) -> None:
        self._path = Path(path)
        self._task = task
        self._schema = arrow_schema(result_schema(schema))
        self._aside = self._path / ASIDE / f"{task:05}-{uuid.uuid4().hex}"
        self._open: OrderedDict[str, _Day] = OrderedDict()
        self._files: list[dict[str, Any]] = []
        self._counts: dict[str, int] = {}
        self.rows = 0

    def write(self, batch: Batch) -> None:
        """Rows at their own days."""
        self.rows += len(batch)
        days = np.where(batch.ts == MIN_TIME, MIN_TIME, batch.ts // DAY_US)
        for day in np.unique(days).tolist():
            rows = np.flatnonzero(days == day)
            part = batch if len(rows) == len(batch) else batch.take(rows)
            self._day(NO_DAY if day == MIN_TIME else str(np.datetime64(day, "D"))).add(result_batch(part))

    def commit(self, **told: Any) -> dict[str, Any]:
        """Rename the files, then record that the task is done."""
        while self._open:
            self._close_oldest()
        record = {"task": self._task, "rows": self.rows, "files": self._files, **told}
        done = self._path / TASKS / f"{self._task:05}.json"
        if not done.exists():
            # A worker that has outlived its driver may be at the same task: it writes the same rows under the same
            # names, so files are replaced and never removed first.
            for file in self._files:
                final = self._path / file["path"]
                make_folder(final.parent)
                (self._aside / file["path"]).rename(final)
            for folder in {(self._path / file["path"]).parent for file in self._files}:
                sync_folder(folder)
            names = {file["path"] for file in self._files}
            for left in self._path.glob(f"date=*/part-{self._task:05}-*.parquet"):
                if left.relative_to(self._path).as_posix() not in names:
                    left.unlink()
            _write(done, record)
        shutil.rmtree(self._aside, ignore_errors=True)
        return record

    def _day(self, day: str) -> _Day:
        if day in self._open:
            self._open.move_to_end(day)
            return self._open[day]
        if len(self._open) >= OPEN_DAYS:
            self._close_oldest()
        number = self._counts[day] = self._counts.get(day, -1) + 1
        name = f"date={day}/part-{self._task:05}-{number:03}.parquet"
        made = self._open[day] = _Day(self._aside / name, name, self._schema)
        return made

    def _close_oldest(self) -> None:
        _, day = self._open.popitem(last=False)
        self._files.append(day.close())


class _Day:
    """One file that is being written."""

    def __init__(self, path: Path, name: str, schema: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._name = path, name
        self._writer = pq.ParquetWriter(path, schema)
        self._held: list[Batch] = []
        self._holds = self._rows = 0

    def add(self, batch: Batch) -> None:
        self._held.append(batch)
        self._holds += len(batch)
        self._rows += len(batch)
        if self._holds >= ROW_GROUP:
            self._write_group()

    def close(self) -> dict[str, Any]:
        if self._held:
            self._write_group()
        self._writer.close()
        sync_file(self._path)
        return {"path": self._name, "rows": self._rows, "bytes": self._path.stat().st_size}

    def _write_group(self) -> None:
        self._writer.write_batch(to_arrow(Batch.concat(self._held)))
        self._held, self._holds = [], 0


def check_destination(out: str, inputs: Iterable[str]) -> None:
    """Refuse to write into the input: the next run would read this run's output."""
    place = Path(out).resolve()
    for path in inputs:
        source = Path(path).resolve()
        if place == source or source in place.parents or place in source.parents:
            raise Refuse(
                f"--out {out}: the input {path} and this directory are nested; use a separate directory",
                code="bad_path",
            )
    if place.exists() and not place.is_dir():
        raise Refuse(f"--out {out}: expected a directory, got a file", code="destination")
