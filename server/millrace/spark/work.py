"""What the tasks of an epoch do, without Spark: restore the buckets, step them, save them, write their rows.

Rule: a task writes files under names that nothing else uses, and returns what it has written. A task that runs twice
leaves two sets of files, and the commit names one of them.
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from millrace.backfill.bucket import Group, Stepped
from millrace.backfill.layout import result_batch, result_schema
from millrace.backfill.parts import Parcel
from millrace.formats.arrow import arrow_schema, to_arrow
from millrace.formats.durable import sync_file, sync_folder
from millrace.formats.writers import ROW_GROUP
from millrace.spark.changing import Stage
from millrace.spark.checkpoint import STATES, read_states, write_states
from millrace.spark.records import EpochRecord, PartProgress, RowFile, StatePlace, Unit
from millrace.sql.functions import install_module
from millrace.values.batch import Batch

# The stages of the jobs that this process works for, by fingerprint: they are read once.
_STAGES: Final[dict[str, Stage]] = {}


@dataclass(frozen=True)
class Work:
    """An epoch's work, which is sent to all tasks.

    folder  of the checkpoint
    plans   the stage, pickled
    states  of the buckets after the last epoch
    staged  by query, the folder where its rows wait for their sink
    """

    folder: str
    record: EpochRecord
    fingerprint: str
    plans: bytes
    functions: Sequence[str]
    states: Mapping[Unit, StatePlace]
    staged: Mapping[str, str]

    def stage(self) -> Stage:
        found = _STAGES.get(self.fingerprint)
        if found is None:
            for module in self.functions:
                install_module(module)
            found = _STAGES[self.fingerprint] = pickle.loads(self.plans)
        return found

    def run(self, task: int, parcels: Iterable[Parcel]) -> TaskResult:
        """Do a task of the epoch."""
        by_unit: dict[Unit, list[Parcel]] = {}
        for parcel in parcels:
            by_unit.setdefault((parcel.group, parcel.bucket), []).append(parcel)
        return _Task(self, task).run(by_unit)


@dataclass
class TaskResult:
    """What a task has done.

    input, late  by group and stream: groups that read one stream count it each
    seconds      of CPU, by bucket
    spent        by phase
    """

    task: int
    states: dict[Unit, StatePlace]
    files: list[RowFile]
    input: dict[tuple[int, str], int]
    late: dict[tuple[int, str], int]
    failed: dict[str, tuple[int, str]]
    marks: dict[str, int]
    parts: dict[str, dict[str, PartProgress]]
    seconds: dict[Unit, float]
    spent: dict[str, float]


class _Clock:
    """Seconds of each phase."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._last, self._last_cpu = time.perf_counter(), time.process_time()

    def lap(self, phase: str) -> float:
        """Count the time since the last call for a phase; its seconds of CPU, which other processes do not lengthen."""
        now, cpu = time.perf_counter(), time.process_time()
        self.spent[phase] = self.spent.get(phase, 0.0) + now - self._last
        took = cpu - self._last_cpu
        self._last, self._last_cpu = now, cpu
        return took


class _Task:
    """One task at work."""

    def __init__(self, work: Work, task: int) -> None:
        self._work = work
        self._stage = work.stage()
        self._name = f"{work.record.epoch:010}-{task:02}-{uuid.uuid4().hex[:12]}"
        self._rows: dict[str, _RowWriter] = {}
        self._clock = _Clock()
        self.result = TaskResult(task, {}, [], {}, {}, {}, {}, {}, {}, {})

    def run(self, parcels: Mapping[Unit, Sequence[Parcel]]) -> TaskResult:
        work, result = self._work, self.result
        own = list(work.record.tasks[result.task])
        stray = sorted(parcels.keys() - set(own))
        assert not stray, f"task {result.task} got rows of buckets {stray}, which it does not have"
        folder = Path(work.folder) / STATES
        states = dict(read_states(folder, {unit: work.states[unit] for unit in own if unit in work.states}))
        self._clock.lap("restore")
        saved = [(unit, self._step(unit, states.pop(unit, None), parcels.get(unit, ()))) for unit in own]
        result.states = write_states(folder, f"{self._name}.states", saved)
        self._clock.lap("save")
        result.files = [writer.close() for writer in self._rows.values()]
        self._clock.lap("write")
        result.spent = self._clock.spent
        return result

    def _step(self, unit: Unit, state: bytes | None, parcels: Sequence[Parcel]) -> bytes:
        group, clock = self._stage.groups[unit[0]], self._clock
        bucket = self._stage.bucket(unit[0], state)
        took = clock.lap("restore")
        at_us = self._work.record.at_us
        stepped = bucket.end(at_us) if self._work.record.kind == "end" else bucket.step(at_us, parcels)
        took += clock.lap("step")
        self._count(unit, group, stepped, parcels)
        for query, batches in stepped.rows.items():
            self._writer(query, group).write(unit[1], batches)
        took += clock.lap("write")
        saved = bucket.save()
        self.result.seconds[unit] = took + clock.lap("save")
        return saved

    def _count(self, unit: Unit, group: Group, stepped: Stepped, parcels: Sequence[Parcel]) -> None:
        result, number = self.result, unit[0]
        for stream, mark in stepped.marks.items():
            result.marks[stream] = min(mark, result.marks.get(stream, mark))
        for counts in (stepped.late, stepped.too_far):
            for stream, late in counts.items():
                result.late[number, stream] = result.late.get((number, stream), 0) + late
        for operator, (failed, reason) in stepped.failed_rows.items():
            result.failed[operator] = result.failed.get(operator, (0, ""))[0] + failed, reason
        for parcel in parcels:
            stream = group.lanes[parcel.lane].stream.name
            result.input[number, stream] = result.input.get((number, stream), 0) + parcel.rows
            if unit[1] == 0:  # all buckets hear the same of a part
                parts = result.parts.setdefault(stream, {})
                parts[parcel.part] = further(parts.get(parcel.part), parcel.newest, parcel.promise, parcel.whole)

    def _writer(self, query: str, group: Group) -> _RowWriter:
        found = self._rows.get(query)
        if found is None:
            path = Path(self._work.staged[query]) / f"{self._name}-{len(self._rows)}.parquet"
            found = self._rows[query] = _RowWriter(path, query, self.result.task, group)
        return found


def further(before: PartProgress | None, newest: int | None, promise: int | None, rows: int) -> PartProgress:
    """A part's progress after more of it was read."""
    if before is None:
        return PartProgress(newest, promise, rows)
    return PartProgress(_latest(before.newest, newest), _latest(before.promise, promise), before.rows + rows)


def _latest(one: int | None, other: int | None) -> int | None:
    return max((time for time in (one, other) if time is not None), default=None)


class _RowWriter:
    """Writes the rows of one query, bucket by bucket."""

    def __init__(self, path: Path, query: str, task: int, group: Group) -> None:
        self._path, self._query, self._task = path, query, task
        self._writer = pq.ParquetWriter(path, arrow_schema(result_schema(group.schemas[query])))
        self._held: list[Batch] = []
        self._buckets: list[tuple[int, int]] = []

    def write(self, bucket: int, batches: Iterable[Batch]) -> None:
        rows = 0
        for batch in batches:
            self._held.append(batch)
            rows += len(batch)
        self._buckets.append((bucket, rows))
        if sum(map(len, self._held)) >= ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_batch(to_arrow(result_batch(Batch.concat(self._held))))
            self._held = []

    def close(self) -> RowFile:
        self._flush()
        self._writer.close()
        sync_file(self._path)
        sync_folder(self._path.parent)
        rows = sum(count for _, count in self._buckets)
        return RowFile(self._query, self._task, self._path.name, rows, self._buckets)
