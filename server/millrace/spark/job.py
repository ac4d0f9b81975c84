"""A live job on Spark Structured Streaming: Spark reads, moves packed rows and repeats; epochs decide what counts."""

from __future__ import annotations

import logging
import pickle
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from millrace.backfill.parts import parcels_of
from millrace.backfill.session import ship
from millrace.protocol import Refuse
from millrace.spark.checkpoint import SPARK
from millrace.spark.epochs import Epochs, Outdated, Report, check_not_ended, logged_offsets
from millrace.spark.records import CommitRecord, Unit
from millrace.spark.request import BUCKETS, LiveRequest, request_of
from millrace.spark.work import TaskResult, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from millrace.spark.inputs.reader import Reader
    from millrace.spark.livequery import LiveQuery
    from millrace.spark.lock import Lock
    from millrace.spark.request import SinkLike

TRIGGER: Final = "1 second"
RESULT_DDL: Final = "result binary"


def _unreported(commit: CommitRecord) -> None:
    """Programs that want no reports."""


class Job:
    """Queries as a job of Spark Structured Streaming.

        query = Job(spark, sql, inputs={"packets": "archive:history"}, checkpoint="talkers").start()
        query.awaitTermination()

    Args:
        spark: the session.
        sql: statements that create the streams and the queries.
        inputs: by stream, what `--input` of the command takes, or a Reader.
        checkpoint: the folder of the job, on a file system that all executors share.
        sinks: by query, `file:FOLDER`, `kafka://HOST:PORT/TOPIC`, `millrace://HOST:PORT/STREAM`, or a function of a
            DataFrame and the number of the epoch. Rows of other queries go to `rows` in the checkpoint.
        buckets: how many parts the keys are divided into. It cannot change later.
        tasks: how many tasks an epoch has; by default one per core. It may change from start to start.
        functions: modules of functions for SQL.
        report: called with the record of each new commit.

    Raises:
        Refuse: the job cannot run; the text says why.
    """

    def __init__(
        self,
        spark: SparkSession,
        sql: str,
        inputs: Mapping[str, Reader | str],
        checkpoint: str | Path,
        sinks: Mapping[str, SinkLike] | None = None,
        *,
        buckets: int = BUCKETS,
        tasks: int | None = None,
        functions: Sequence[str] = (),
        report: Report = _unreported,
    ) -> None:
        self._request = request_of(sql, inputs, checkpoint, sinks, buckets=buckets, functions=functions)
        self._runner = Runner(spark, self._request, tasks, report)

    def start(self, trigger: str = TRIGGER) -> LiveQuery:
        """Start the job, or continue it: a StreamingQuery. An epoch starts at most once in each `trigger`."""
        check_trigger(trigger)
        lock = self._request.open()
        with ExitStack() as undo:
            undo.callback(lock.release)
            check_not_ended(self._request.checkpoint, self._request.checkpoint.last())
            query = self._runner.start(trigger, lock)
            undo.pop_all()
        return query

    def run_to_end(self) -> None:
        """Read all that is there now, emit incomplete windows too, and return. The job cannot continue after that."""
        with self._request.open():
            self._runner.run_to_end()


class Runner:
    """Runs a request, whose checkpoint is locked, on a session."""

    def __init__(
        self, session: SparkSession, request: LiveRequest, tasks: int | None = None, report: Report = _unreported
    ) -> None:
        self._session, self._request, self._report = session, request, report
        self._tasks = tasks or max(session.sparkContext.defaultParallelism, 1)
        self._failures: list[Refuse] = []

    def start(self, trigger: str, lock: Lock | None = None) -> LiveQuery:
        """Start the query, which releases the lock when it ends."""
        from millrace.spark.livequery import LiveQuery

        def launch() -> StreamingQuery:
            self._failures.clear()
            query: StreamingQuery = self._writer(self._epochs(), changing=True).trigger(processingTime=trigger).start()
            return query

        return LiveQuery(launch, self._failures, lock)

    def run_to_end(self) -> None:
        epochs = self._epochs()
        before = self._newest()
        while before is None or before.kind != "end":
            self._run_available(epochs)
            after = self._newest()
            if after == before:
                break
            before = after  # a source may read less than all at once
        epochs.end(partial(execute_end, self._session))

    def _newest(self) -> CommitRecord | None:
        return self._request.checkpoint.last()

    def _run_available(self, epochs: Epochs) -> None:
        from millrace.spark.livequery import LiveQuery

        query = LiveQuery(self._writer(epochs).trigger(availableNow=True).start, self._failures, None)
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def _epochs(self) -> Epochs:
        request = self._request
        ship(self._session)
        return Epochs(
            request.checkpoint,
            request.plan,
            request.sinks,
            tasks=self._tasks,
            clock=lambda: time.time_ns() // 1_000,
            report=self._report,
            session=self._session,
            spare=request.spare,
        )

    def _writer(self, epochs: Epochs, *, changing: bool = False) -> Any:
        from millrace.spark.inputs.source import live_frame

        request = self._request
        frame = live_frame(self._session, epochs.plan.groups, request.readers)
        return frame.writeStream.option("checkpointLocation", str(request.checkpoint.path / SPARK)).foreachBatch(
            partial(self._batch, epochs, changing)
        )

    def _batch(self, epochs: Epochs, changing: bool, frame: DataFrame, number: int) -> None:
        """Spark's call for an epoch. Its error is kept, because Spark buries it."""
        logging.getLogger("py4j.clientserver").addFilter(not_a_refusal)
        try:
            epochs.run(number, logged_offsets(self._request.checkpoint, number), partial(execute, frame))
            if changing and epochs.outdated:
                # The epoch is committed: the next query publishes it again, and continues with the new plan.
                raise Outdated("the job has changed")
        except Refuse as error:
            self._failures.append(error)
            raise


def not_a_refusal(record: logging.LogRecord) -> bool:
    """Whether the bridge to Java may log this: a refusal is reported in one line, without its traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], Refuse))


_TRIGGER: Final = re.compile(r"\d+ *(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?)", re.ASCII)


def check_trigger(text: str) -> None:
    if _TRIGGER.fullmatch(text) is None:
        raise Refuse(
            f"--trigger {text}: expected a duration such as '1 second' or '500 milliseconds'", code="bad_value"
        )


# -- an epoch's tasks on Spark -----------------------------------------------------------------------------------------


def execute(frame: DataFrame, work: Work) -> Iterable[TaskResult]:
    """Run the tasks of an epoch over the rows that Spark has read: each on one partition, which has its number."""
    from pyspark.sql import functions as f

    # The plan of an epoch is fixed: a task must find exactly the rows of its buckets.
    frame.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
    moved = frame.repartitionById(len(work.record.tasks), f.expr(task_expression(work.record.tasks)))
    return _collected(moved, lambda task, batches: work.run(task, parcels_of(batches)))


def execute_end(session: SparkSession, work: Work) -> Iterable[TaskResult]:
    """Run the tasks of an end, which has no rows."""
    tasks = len(work.record.tasks)
    return _collected(session.range(0, tasks, 1, tasks), lambda task, batches: work.run(task, ()))


def task_expression(tasks: Sequence[Sequence[Unit]]) -> str:
    """The task of a packed row in Spark's SQL. As literals in arrays, another placement is not another program."""
    task_of = {unit: task for task, units in enumerate(tasks) for unit in units}
    units = sorted(task_of)
    groups = sorted({group for group, _ in units})
    starts = [next(at for at, unit in enumerate(units) if unit[0] == group) for group in groups]
    placed = [task_of[unit] for unit in units]
    return f"get({_array(placed)}, get({_array(starts)}, `group`) + bucket)"


def _array(numbers: Sequence[int]) -> str:
    return f"array({', '.join(map(str, numbers))})"


def _collected(frame: DataFrame, run: Callable[[int, Iterable[Any]], TaskResult]) -> list[TaskResult]:
    from millrace.backfill.running import in_plain_words

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        result = run(context.partitionId(), batches)
        yield pa.RecordBatch.from_pydict({"result": pa.array([pickle.dumps(result)], pa.binary())})

    with in_plain_words():
        rows = frame.mapInArrow(task, RESULT_DDL).collect()
    return [pickle.loads(row.result) for row in rows]
