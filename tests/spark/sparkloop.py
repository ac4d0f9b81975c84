"""Spark's loop of epochs without Spark: offsets are logged, the epoch runs, and its end is logged. What was logged
and not ended runs again. And a process that dies at a chosen operation on files."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace.backfill.bucket import groups_of
from millrace.spark.checkpoint import SPARK, Checkpoint
from millrace.spark.epochs import Epochs, Plan, logged_offsets
from millrace.spark.records import CommitRecord
from millrace.spark.request import LiveRequest
from millrace.spark.sinks import FileSink, Sink
from millrace.spark.work import TaskResult, Work
from tests.backfill.epochs import Read, packed
from tests.backfill.test_bucket import catalog_of

CLOCK_US = 1_000_000_000


class SimulatedJob:
    """A job whose input is a list of epochs, in a folder that survives its death.

    epochs  the time of each, and its reads with the position of the first row in its part
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        epochs: Sequence[tuple[int, Sequence[tuple[Read, int]]]],
        sinks: Mapping[str, Sink] | None = None,
        tasks: int = 2,
    ) -> None:
        self.folder, self.plan, self.epochs, self.tasks = folder, plan, epochs, tasks
        self.sinks = sinks or {query: FileSink(folder / "out") for query in plan.queries}
        self.checkpoint = Checkpoint(folder / "checkpoint")
        self.reports: list[CommitRecord] = []

    def run(self, upto: int | None = None, *, ended: bool = False) -> None:
        """Continue, up to an epoch."""
        lock = LiveRequest(self.plan, {}, self.sinks, self.checkpoint).open()
        try:
            runner = Epochs(
                self.checkpoint,
                self.plan,
                self.sinks,
                tasks=self.tasks,
                clock=lambda: CLOCK_US,
                report=self.reports.append,
                spare=FileSink(self.folder / "out"),
            )
            for number in self._left(len(self.epochs) if upto is None else upto):
                self._log("offsets", number, self._offsets(number))
                runner.run(number, logged_offsets(self.checkpoint, number), self._execute)
                self._log("commits", number, "v1\n{}")
            if ended:
                runner.end(self._execute)
        finally:
            lock.release()

    def _left(self, upto: int) -> Iterator[int]:
        ended = self.checkpoint.path / SPARK / "commits"
        done = max((int(path.name) for path in ended.glob("[0-9]*")), default=-1) if ended.is_dir() else -1
        yield from range(done + 1, upto)

    def _offsets(self, number: int) -> str:
        return f'v1\n{{"batchTimestampMs":1}}\n{json.dumps({"at": self.epochs[number][0], "epoch": number})}'

    def _log(self, kind: str, number: int, text: str) -> None:
        path = self.checkpoint.path / SPARK / kind / str(number)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f".{number}.tmp")
            aside.write_text(text)
            os.replace(aside, path)

    def _execute(self, work: Work) -> Iterator[TaskResult]:
        """All tasks, the second first, after a trip to another process."""
        work = pickle.loads(pickle.dumps(work))
        reads = self.epochs[work.record.epoch][1] if work.record.kind == "rows" else ()
        parcels = list(packed(work.stage().groups, reads, work.record.at_us))
        for task, units in reversed(list(enumerate(work.record.tasks))):
            own = [one for one in parcels if (one.group, one.bucket) in units]
            yield pickle.loads(pickle.dumps(work.run(task, own)))


def job_of(folder: Path, sql: str, epochs: Sequence[tuple[int, Sequence[Read]]], buckets: int, **more: Any) -> Any:
    catalog = catalog_of(sql)
    plan = Plan(sql, catalog, tuple(groups_of(catalog, buckets)), (), buckets)
    return SimulatedJob(folder, plan, numbered(epochs), **more)


def numbered(epochs: Sequence[tuple[int, Sequence[Read]]]) -> list[tuple[int, list[tuple[Read, int]]]]:
    """Epochs with the position of each read in its part."""
    from tests.backfill.epochs import _numbered

    return list(_numbered(epochs))


# -- death -------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is dead: nothing that it does has an effect any more."""


@contextmanager
def killed_at(operation: int) -> Iterator[list[str]]:
    """Die at the operation on files of this number: half of them happen before the death. Yields all that were done.

    Nothing waits for the disk meanwhile.
    """
    done: list[str] = []

    def mortal(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            if len(done) > operation:
                raise Killed
            done.append(name)
            dies = len(done) > operation
            if dies and operation % 2:
                raise Killed
            result = function(*values, **named)
            if dies:
                raise Killed
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for place, name in OPERATIONS:
            real = (lambda handle: None) if name == "fsync" else getattr(place, name)
            patch.setattr(place, name, mortal(name, real))
        yield done


OPERATIONS: tuple[tuple[Any, str], ...] = (
    (os, "fsync"),
    (os, "link"),
    (os, "replace"),
    (Path, "rename"),
    (Path, "unlink"),
    (Path, "mkdir"),
)
