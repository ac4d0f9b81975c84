"""The Spark job: rows to packages, packages to tasks, tasks through the engine, results to files or a DataFrame.

Spark moves packages and sorts them; only the engine interprets rows (see task.py). Where rows are read, `packing.py`
divides them among the tasks. Each task is one partition, so `repartitionById` puts a package where it belongs, and the
task merges its packages: in memory are the state of the query's operators, and rows of packages whose times overlap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from millrace.backfill.flow import Flow, flow_of
from millrace.backfill.frames import check_frame, selected
from millrace.backfill.inputs import Input, Times, base_streams, times_of, without_time
from millrace.backfill.layout import Lane, lanes_of, result_batch, result_schema
from millrace.backfill.outputs import TaskWriter
from millrace.backfill.packing import (
    FIRST,
    PACKED_DDL,
    TASK,
    Package,
    Packer,
    by_arrival,
    by_time,
    packages_of,
)
from millrace.backfill.reading import (
    SPANS_DDL,
    Raw,
    lane_tables,
    needed,
    numbered,
    pieces_of,
    portions,
    read,
    spans,
    time_column,
)
from millrace.backfill.splitting import Mode, Slice, Split, plan_split
from millrace.backfill.task import Task
from millrace.engine.plan import StreamDefinition
from millrace.formats.arrow import to_arrow
from millrace.history.files import ARRIVED, LATE
from millrace.history.files import SEQUENCE as SEQ
from millrace.protocol import Refuse
from millrace.sql import Catalog
from millrace.sql.functions import install_module
from millrace.values.batch import Batch
from millrace.values.eventtime import MAX_TIME, MIN_TIME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    # What a stream's rows are read from: files that are read where they are packed, or what Spark reads.
    Rows = Input | DataFrame

# Tasks per core: enough that one slow task does not leave the others idle for long.
TASKS_PER_CORE: Final = 2


@dataclass(frozen=True)
class Job:
    """The input of every task, which is sent to the executors.

    goes_on   whether the streams continue after the present rows: a server still receives them
    """

    flow: Flow
    split: Split
    lanes: tuple[Lane, ...]
    functions: tuple[str, ...] = ()
    goes_on: bool = False

    def packer(self, number: int, arrived: bool, done: Sequence[int] = ()) -> Packer:
        """Divides the rows of the stream of this number; `arrived`: whether the order of their arrival is known."""
        lane = self.lanes[number]
        # Rows that the server stamped are in order of time, unless its clock was set back.
        ordinal = self.flow.counts_rows and arrived and not lane.stream.always_ordered
        return Packer(lane, number, self.split, ordinal, frozenset(done))

    def task(self, number: int, packed: Iterable[Any], counted: Callable[[int], None]) -> tuple[Task, Iterator[Batch]]:
        """A task and its rows, from record batches of packages; `counted` receives the number of input rows."""
        self.install()
        task = Task(self.flow, self.split.slices[number], goes_on=self.goes_on)

        def seen() -> Iterator[Package]:
            for package in packages_of(packed):
                counted(package.rows)
                yield package

        merged = by_arrival if self.flow.counts_rows else by_time
        return task, task.run(merged(self.lanes, seen()))

    def install(self) -> None:
        """Make the users' functions known to this process."""
        for module in self.functions:
            install_module(module)


def job_of(flow: Flow, split: Split, functions: Sequence[str] = (), *, goes_on: bool = False) -> Job:
    return Job(flow, split, lanes_of(flow), tuple(functions), goes_on)


# -- packages ----------------------------------------------------------------------------------------------------------


def packages(job: Job, session: SparkSession, inputs: Mapping[str, Rows], done: Sequence[int] = ()) -> DataFrame:
    """All streams' rows in packages, each in its task's partition and in order there; none of tasks that are done."""
    parts = []
    for number, name in enumerate(job.flow.streams):
        parts.append(_packed(job, session, number, inputs[name.removesuffix(".late")], done))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionAll(part)
    return whole.repartitionById(job.split.tasks, TASK).sortWithinPartitions(FIRST)


def _packed(job: Job, session: SparkSession, number: int, rows: Rows, done: Sequence[int]) -> DataFrame:
    """The packages of a stream's rows, made where the rows are read."""
    name = tuple(job.flow.streams)[number]
    lane, origin = job.lanes[number], job.flow.catalog.streams[name.removesuffix(".late")]
    low, high = read_between(job.flow, job.split, name)
    packer = job.packer(number, SEQ in rows.columns, done)
    late = name != origin.name
    # The files' times are of events, and a late tuple has that of its arrival.
    pruned = (MIN_TIME, MAX_TIME) if late else (low, high)

    def pack(raw: Iterator[Raw]) -> Iterator[Any]:
        job.install()
        yield from packer.packages(lane_tables(raw, lane, origin, low, high))

    return _map_rows(session, rows, needed(lane, origin), origin, pruned, late, pack, PACKED_DDL)


def _map_rows(
    session: SparkSession,
    rows: Rows,
    names: Sequence[str],
    origin: StreamDefinition,
    between: tuple[int, int],
    late: bool,
    function: Callable[[Iterator[Raw]], Iterator[Any]],
    schema: str,
) -> DataFrame:
    """What a function makes of rows where they are read: of files without Spark, of a frame in Spark's partitions."""
    if isinstance(rows, Input):
        read_by = portions(pieces_of(rows, *between), session.sparkContext.defaultParallelism)

        def from_files(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                for at in batch.column(0).to_pylist():
                    yield from function(read(read_by[at], names, origin))

        return session.range(0, len(read_by), 1, max(len(read_by), 1)).mapInArrow(from_files, schema)

    def from_spark(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from function(numbered(batches, context.partitionId()))

    frame = selected(rows, names, time_column(origin), *between, late=late)
    return frame.mapInArrow(from_spark, schema)


def read_between(flow: Flow, split: Split, name: str) -> tuple[int, int]:
    """The times of a stream's rows that are needed. Where rows are counted, rows of any time may be needed."""
    return (MIN_TIME, MAX_TIME) if flow.counts_rows else split.overall.reads(split.reach(name))


# -- running -----------------------------------------------------------------------------------------------------------


def result_frame(job: Job, packed: DataFrame) -> DataFrame:
    """The result's rows as a DataFrame, each with its own time after its columns."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from millrace.formats.arrow import arrow_schema

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        _, made = job.task(context.partitionId(), batches, lambda rows: None)
        for batch in made:
            yield to_arrow(result_batch(batch))

    schema = arrow_schema(result_schema(job.flow.schema))
    return packed.mapInArrow(run, from_arrow_schema(schema))


def write_frame(job: Job, packed: DataFrame, out: str, done: Sequence[int] = ()) -> DataFrame:
    """Run and write every unfinished task; the result has a row per finished task."""
    left_out = frozenset(done)

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        if number in left_out:
            # Its partition is empty now: running it would replace its files by none.
            return
        told = write_task(job, number, batches, out)
        yield pa.RecordBatch.from_pydict({"task": [told["task"]], "rows": [told["rows"]]})

    return packed.mapInArrow(run, "task long, rows long")


def write_task(job: Job, number: int, packed: Iterable[Any], out: str) -> dict[str, Any]:
    """Run one task and commit its result."""
    began = time.monotonic()
    came = 0

    def counted(rows: int) -> None:
        nonlocal came
        came += rows

    writer = TaskWriter(out, number, job.flow.schema)
    task, batches = job.task(number, packed, counted)
    for batch in batches:
        writer.write(batch)
    failed = {name: list(told) for name, told in task.failed_rows.items()}
    return writer.commit(input_rows=came, seconds=round(time.monotonic() - began, 3), failed_rows=failed)


# -- planning ---------------------------------------------------------------------------------------------------------


def read_times(session: SparkSession, inputs: Mapping[str, Rows], flow: Flow) -> Times:
    """The times of all rows. Inputs whose times are not known are read for them, in parallel."""
    found: list[tuple[int, int, int]] = []
    for name in flow.streams:
        origin = flow.catalog.streams[name.removesuffix(".late")]
        rows, late = inputs[origin.name], name != origin.name
        if isinstance(rows, Input) and rows.known and not late:
            found += times_of([rows]).spans
            continue
        if late and LATE not in rows.columns:
            continue
        # A late tuple has the time of its arrival.
        time = ARRIVED if late else time_column(origin)
        look = partial(spans, time=time, late=late, origin=origin)
        frame = _map_rows(session, rows, [time, LATE], origin, (MIN_TIME, MAX_TIME), late, look, SPANS_DDL)
        told = [tuple(row) for row in frame.collect()]
        if untimed := sum(nulls for *_, nulls in told):
            raise Refuse(f"stream {name}: {without_time(untimed)} (it is null)", code="bad_row")
        found += [(first, last, count) for first, last, count, _ in told if count]
    return Times(tuple(found))


def choose_split(flow: Flow, times: Times, wanted: Slice, mode: Mode, tasks: int) -> Split:
    """The split of a span of the input."""
    extent = times.extent(wanted.from_us, wanted.to_us)
    cuts = None if extent is None or tasks == 1 else times.cuts(extent, tasks)
    return plan_split(flow, extent, wanted=wanted, mode=mode, tasks=tasks, cuts=cuts)


def default_tasks(session: SparkSession) -> int:
    return max(session.sparkContext.defaultParallelism * TASKS_PER_CORE, 1)


# -- the function for programs -----------------------------------------------------------------------------------------


def backfill(
    spark: SparkSession,
    plan: Flow | str,
    inputs: Mapping[str, DataFrame] | DataFrame,
    *,
    query: str | None = None,
    from_us: int | None = None,
    to_us: int | None = None,
    mode: Mode = "auto",
    tasks: int | None = None,
    functions: Sequence[str] = (),
) -> DataFrame:
    """The rows that a query would have emitted over these inputs, as a DataFrame.

    plan       SQL that creates the streams and the query, or a Flow
    inputs     a DataFrame per stream with the stream's columns (an archive's `__seq` and `__late` are heeded); one
               DataFrame if the query reads one stream
    query      which query of the SQL, if it is not the last
    from_us, to_us   only rows whose own time is at least the one and below the other

    The frame has the query's columns and `__ts`, each row's own time. Refuse has the reason against it.
    """
    from pyspark.sql import DataFrame as Frame

    for module in functions:
        install_module(module)
    flow = plan if isinstance(plan, Flow) else flow_of_text(plan, query)
    if isinstance(inputs, Frame):
        streams = base_streams(flow)
        if len(streams) != 1:
            raise Refuse(f"the query reads {', '.join(streams)}: pass a DataFrame for each, by name")
        inputs = {streams[0]: inputs}
    for name in base_streams(flow):
        if name not in inputs:
            raise Refuse(f"missing DataFrame for stream {name}; the DataFrames are: {', '.join(inputs) or 'none'}")
        check_frame(inputs[name], flow.catalog.stream(name), f"the DataFrame of {name}")
    count = default_tasks(spark) if tasks is None else tasks
    wanted = slice_of(from_us, to_us)
    split = choose_split(flow, read_times(spark, inputs, flow), wanted, mode, count)
    job = job_of(flow, split, functions)
    return result_frame(job, packages(job, spark, inputs))


def slice_of(from_us: int | None, to_us: int | None) -> Slice:
    """A span of time; Refuse if it holds nothing."""
    low = MIN_TIME if from_us is None else from_us
    high = MAX_TIME if to_us is None else to_us
    if low >= high:
        raise Refuse("the span is empty: --from must be earlier than --to", code="bad_span")
    return Slice(low, high)


def flow_of_text(text: str, query: str | None = None) -> Flow:
    """The flow of a query of some SQL: the one of this name, or the last."""
    from millrace.offline.script import plan_script

    script = plan_script(text)
    if not script.queries:
        raise Refuse("missing query: add a SELECT or CREATE QUERY", code="sql")
    name = list(script.queries)[-1] if query is None else query
    return flow_of(Catalog(script.streams, script.queries), name)
