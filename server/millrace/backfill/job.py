"""The Spark job: streams to one table, rows to tasks, tasks through the engine, results to files or a DataFrame.

Spark moves and sorts rows; only the engine interprets them (see task.py). Each task is one partition, so
`repartitionById` puts a row where `assign.py` says, and a sort within the partition passes it to the engine in order of
time: batches stream through a task, whose memory is the state of the query's operators.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from millrace.backfill.assign import key_numbers, slice_ranges
from millrace.backfill.flow import Flow, flow_of
from millrace.backfill.frames import key_number, lane_rows, read_input
from millrace.backfill.inputs import Input, Times, base_streams, check_columns, without_time
from millrace.backfill.layout import (
    REST,
    SEQUENCE,
    TASK,
    TIME,
    Layout,
    batch_of,
    layout_of,
    result_batch,
    result_schema,
)
from millrace.backfill.outputs import TaskWriter
from millrace.backfill.splitting import Mode, Slice, Split, plan_split
from millrace.backfill.task import Task
from millrace.formats.arrow import to_arrow
from millrace.history.files import SEQUENCE as SEQ
from millrace.protocol import Refuse
from millrace.sql import Catalog
from millrace.sql.functions import install_module
from millrace.values.batch import Batch
from millrace.values.eventtime import MAX_TIME, MIN_TIME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Tasks per core: enough that one slow task does not leave the others idle for long.
TASKS_PER_CORE: Final = 2
# Rows of a sample that slices are cut by.
SAMPLE: Final = 100_000


@dataclass(frozen=True)
class Job:
    """The input of every task, which is sent to the executors.

    goes_on   whether the streams continue after the present rows: a server still receives them
    """

    flow: Flow
    split: Split
    layout: Layout
    functions: tuple[str, ...] = ()
    goes_on: bool = False

    def task(self, number: int, tables: Iterable[Any], counted: Callable[[int], None]) -> tuple[Task, Iterator[Batch]]:
        """A task and its rows; `counted` receives the number of input rows."""
        for module in self.functions:
            install_module(module)
        task = Task(self.flow, self.split.slices[number], goes_on=self.goes_on)

        def seen() -> Iterator[Any]:
            for table in tables:
                counted(table.num_rows)
                yield table

        return task, task.run(self.layout.chunks(seen()))


def job_of(flow: Flow, split: Split, functions: Sequence[str] = (), *, goes_on: bool = False) -> Job:
    return Job(flow, split, layout_of(flow), tuple(functions), goes_on)


# -- the table ---------------------------------------------------------------------------------------------------------


def rows_for_tasks(job: Job, frames: Mapping[str, DataFrame], done: Sequence[int] = ()) -> DataFrame:
    """All streams' rows, each in its task's partition and in order there. Rows of tasks that are done are left out."""
    from pyspark.sql import functions as f

    parts = []
    for number, name in enumerate(job.flow.streams):
        low, high = read_between(job.flow, job.split, name)
        origin = job.flow.catalog.streams[name.removesuffix(".late")]
        rows = lane_rows(job.layout, number, origin, frames[origin.name], low, high)
        part = _assigned(job, number, name, rows)
        if job.layout.by_arrival:
            # Rows that the server stamped are in order of time, unless its clock was set back.
            part = _with_rest(part, SEQ in frames[origin.name].columns and not job.flow.streams[name].always_ordered)
        parts.append(part)
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionAll(part)
    if done:
        whole = whole.where(~f.col(TASK).isin(*done))
    sorted_ = whole.repartitionById(job.split.tasks, f.col(TASK)).sortWithinPartitions(*job.layout.order())
    return sorted_.select(*job.layout.columns())


def read_between(flow: Flow, split: Split, name: str) -> tuple[int, int]:
    """The times of a stream's rows that are needed. Where rows are counted, rows of any time may be needed."""
    return (MIN_TIME, MAX_TIME) if flow.counts_rows else split.overall.reads(split.reach(name))


def _with_rest(rows: DataFrame, arrived: bool) -> DataFrame:
    """A stream's rows, each with the least time of it and the rows of its task that arrived later. If the order in
    which they `arrived` is unknown, with its own time: they are read in order of time."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if not arrived:
        return rows.withColumn(REST, f.col(TIME))
    behind = Window.partitionBy(TASK).orderBy(f.col(SEQUENCE).desc())
    least = f.min(TIME).over(behind.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    return rows.withColumn(REST, least)


def _assigned(job: Job, number: int, name: str, rows: DataFrame) -> DataFrame:
    """The rows, each with its task; in slices of time a row may have several."""
    from pyspark.sql import functions as f

    split = job.split
    if split.how == "one":
        return rows.withColumn(TASK, f.lit(0))
    if split.how == "key":
        return rows.withColumn(TASK, _by_key(job, number, name))
    first, last = _between(split, name)
    if split.reach(name) == (0, 0):
        return rows.withColumn(TASK, first)
    spread = rows.withColumn("_first", first).withColumn("_last", last)
    exploded = spread.withColumn(TASK, f.explode(f.sequence("_first", "_last")))
    return exploded.drop("_first", "_last")


def _by_key(job: Job, number: int, name: str) -> Column:
    """The task of a row by its key; one that is computed is computed by the engine's own expressions in Python."""
    from pyspark.sql import functions as f

    key, tasks, functions = job.split.keys.get(name, ()), job.split.tasks, job.functions
    lane = job.layout.lanes[number]
    time = {} if lane.stream.time_position is None else {lane.stream.time_position: TIME}
    plain = key_number(key, {**dict(zip(lane.positions, lane.slots, strict=True)), **time}, tasks)
    if plain is not None:
        return plain
    names = [TIME, *lane.slots]

    def assign(*columns: Any) -> Any:
        for module in functions:
            install_module(module)
        table = pa.RecordBatch.from_arrays(list(columns), names=names)
        return pa.array(key_numbers(batch_of(lane, table), key, tasks), pa.int32())

    with warnings.catch_warnings():
        # Type hints, which it would rather have, cannot say "any number of columns".
        warnings.simplefilter("ignore", UserWarning)
        udf: Any = f.arrow_udf(assign, "int", f.ArrowUDFType.SCALAR)  # type: ignore[attr-defined]
    made: Column = udf(*names)
    return made


def _between(split: Split, name: str) -> tuple[Column, Column]:
    """The first and the last slice that reads a row, by comparing its time with their bounds in a tree."""
    starts, ends = slice_ranges(split.slices, split.reach(name))
    # The slices from the first that has not ended to the last that has started read a row.
    return _count(ends[:-1].tolist(), 0), _count(starts[1:].tolist(), 0)


def _count(bounds: Sequence[int], before: int) -> Column:
    """How many of these rising bounds are at or below the row's time."""
    from pyspark.sql import functions as f

    if not bounds:
        return f.lit(before)
    middle = len(bounds) // 2
    above = _count(bounds[middle + 1 :], before + middle + 1)
    return f.when(f.col(TIME) >= f.lit(bounds[middle]), above).otherwise(_count(bounds[:middle], before))


# -- running -----------------------------------------------------------------------------------------------------------


def result_frame(job: Job, rows: DataFrame) -> DataFrame:
    """The result's rows as a DataFrame, each with its own time after its columns."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from millrace.formats.arrow import arrow_schema

    def run(tables: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        _, batches = job.task(context.partitionId(), tables, lambda rows: None)
        for batch in batches:
            yield to_arrow(result_batch(batch))

    schema = arrow_schema(result_schema(job.flow.schema))
    return rows.mapInArrow(run, from_arrow_schema(schema))


def write_frame(job: Job, rows: DataFrame, out: str, done: Sequence[int] = ()) -> DataFrame:
    """Run and write every unfinished task; the result has a row per finished task."""
    left_out = frozenset(done)

    def run(tables: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        if number in left_out:
            # Its partition is empty now: running it would replace its files by none.
            return
        told = write_task(job, number, tables, out)
        yield pa.RecordBatch.from_pydict({"task": [told["task"]], "rows": [told["rows"]]})

    return rows.mapInArrow(run, "task long, rows long")


def write_task(job: Job, number: int, tables: Iterable[Any], out: str) -> dict[str, Any]:
    """Run one task and commit its result."""
    began = time.monotonic()
    came = 0

    def counted(rows: int) -> None:
        nonlocal came
        came += rows

    writer = TaskWriter(out, number, job.flow.schema)
    task, batches = job.task(number, tables, counted)
    for batch in batches:
        writer.write(batch)
    failed = {name: list(told) for name, told in task.failed_rows.items()}
    return writer.commit(input_rows=came, seconds=round(time.monotonic() - began, 3), failed_rows=failed)


# -- planning with Spark's help ----------------------------------------------------------------------------------------


def spark_times(flow: Flow, frames: Mapping[str, DataFrame], tasks: int) -> Times:
    """The times of the rows, asked of Spark: in about equal portions of a sample."""
    from pyspark.sql import functions as f

    spans = []
    layout = layout_of(flow)
    for number, name in enumerate(flow.streams):
        origin = flow.catalog.streams[name.removesuffix(".late")]
        rows = lane_rows(layout, number, origin, frames[origin.name], MIN_TIME, MAX_TIME)
        counts = rows.agg(f.count(f.lit(1)), f.count(TIME), f.min(TIME), f.max(TIME)).first()
        assert counts is not None
        count, timed, first, last = counts
        if timed < count:
            raise Refuse(f"stream {name}: {without_time(count - timed)} (it is null)", code="bad_row")
        if not count:
            continue
        portions = 4 * tasks if tasks > 1 else 1
        bounds = [first, last + 1]
        if portions > 1:
            sample = rows if count <= SAMPLE else rows.sample(fraction=SAMPLE / count, seed=1)
            inner = sample.agg(f.percentile_approx(TIME, [n / portions for n in range(1, portions)])).first()
            bounds = sorted({*bounds, *((inner[0] if inner else None) or ())})
        share = count // max(len(bounds) - 1, 1) or 1
        spans += [(low, high - 1, share) for low, high in pairwise(bounds) if low < high]
    return Times(tuple(spans))


def frames_of(
    session: SparkSession, inputs: Mapping[str, Input], flow: Flow, split: Split | None
) -> dict[str, DataFrame]:
    """The inputs' rows as Spark reads them; of files whose times are known, those that are needed."""
    found = {}
    for name, one in inputs.items():
        low, high = MIN_TIME, MAX_TIME
        if split is not None and f"{name}.late" not in flow.streams:
            low, high = read_between(flow, split, name)
        found[name] = read_input(session, one, flow.catalog.stream(name), low, high)
    return found


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
    from pyspark.sql.pandas.types import to_arrow_schema

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
        columns = {one.name: one.type for one in to_arrow_schema(inputs[name].schema, timezone="UTC")}
        check_columns(columns, flow.catalog.stream(name), f"the DataFrame of {name}")
    count = default_tasks(spark) if tasks is None else tasks
    wanted = slice_of(from_us, to_us)
    split = choose_split(flow, spark_times(flow, inputs, count), wanted, mode, count)
    job = job_of(flow, split, functions)
    return result_frame(job, rows_for_tasks(job, inputs))


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
