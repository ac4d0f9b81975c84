"""Windows: group-by against DuckDB on the same columns, sliding against tumbling, the pause when a window closes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bench.figure import Figure, best_of
from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Answer, Arrived, Command, Deliver, FeedClosed
from millrace.engine.plan import Node, QueryPlan, StreamDefinition
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.sort.spec import SortSpec
from millrace.protocol import Schema, Type
from millrace.values.batch import Batch, Int64s, Values, column_of
from millrace.values.expression import Column
from millrace.values.text_index import TextIndex
from millrace.values.texts import as_texts

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = Schema.of(ts="timestamp", k="bigint", v="bigint")
NAMED = Schema.of(ts="timestamp", k="text", v="bigint")
KEY = (("k", Column(Type.BIGINT, True, 1, "k")),)
NAME = (("k", Column(Type.TEXT, True, 1, "k")),)
VALUE = Column(Type.BIGINT, True, 2, "v")
COUNT = AggregateCall(Type.BIGINT, False, "count()")
SUM = AggregateCall(Type.BIGINT, True, "sum(bigint)", (VALUE,))
MEAN = AggregateCall(Type.DOUBLE, True, "avg(bigint)", (VALUE,))
TUMBLING = TimeWindow(10_000_000, 10_000_000)
# Tuples in a frame, where a figure is not about frames.
FRAME = 10_000
SLIDING = TimeWindow(60_000_000, 10_000_000)


class Load:
    """Tuples at 100,000 in a second of event time (or another rate), with keys and values drawn from a seed.

    With `named`, keys are texts.
    """

    def __init__(
        self, tuples: int, groups: int, *, start_us: int = 0, apart_us: int = 10, named: bool = False, seed: int = 1
    ) -> None:
        self.schema = NAMED if named else SCHEMA
        rng = np.random.default_rng(seed)
        self.ts: Int64s = start_us + np.arange(tuples) * apart_us
        self.k: Int64s = rng.integers(0, groups, tuples)
        self.v: Int64s = rng.integers(0, 1500, tuples)
        self.key: Values = names(groups)[self.k] if named else self.k

    def batches(self, k: int) -> list[Batch]:
        columns = (self.ts, self.key, self.v)
        return [
            Batch(self.schema, self.ts[at : at + k], [column[at : at + k] for column in columns])
            for at in range(0, len(self.ts), k)
        ]

    @property
    def table(self) -> pa.Table:
        import pyarrow as pa

        return pa.table({"ts": self.ts, "k": self.k, "v": self.v})


def names(count: int) -> Values:
    """Texts of ten characters."""
    return column_of(Type.TEXT, [f"key{number:07}" for number in range(count)])


def engine_with(spec: AggregateSpec, k: int, *, ordered: bool = False, schema: Schema = SCHEMA) -> Engine:
    """An engine with this aggregate over a stream, in order of time or as its rows arrive."""
    engine = Engine()
    sort = (Node("q.sort1", SortSpec(), ("s.source",)),) if ordered else ()
    node = Node("q.aggregate1", spec, ("q.sort1" if ordered else "s.source",))
    plan = QueryPlan("q", (*sort, node), node.name, spec.schema([schema]), reads_streams=("s",))
    definition = StreamDefinition("s", schema, "external", "ts")
    for effect in engine.step(0, [Command(1, AddStream(definition)), Command(2, AddQuery(plan, f"dfs({k})"))]).orders:
        assert isinstance(effect, Answer)
        assert effect.refused is None
    return engine


class Run:
    """All tuples of a load through one aggregate: number of rows, sum of their second column, longest step.

    The load `before` is not measured.
    """

    def __init__(self, load: Load, spec: AggregateSpec, k: int, before: Load | None = None) -> None:
        self.rows = self.total = 0
        self.longest = 0.0
        self._engine = engine_with(spec, k, schema=load.schema)
        if before is not None:
            self._feed(before, k)
        self.longest = 0.0
        began, cpu = time.perf_counter(), time.process_time()
        self._feed(load, k)
        self.seconds, self.cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        self._step([FeedClosed("s", "bench", ended=True)])

    def _feed(self, load: Load, k: int) -> None:
        batches = load.batches(k)
        for at in range(0, len(batches), 4):
            self._step([Arrived("s", "bench", batch) for batch in batches[at : at + 4]])

    def _step(self, events: Sequence[Any]) -> None:
        while True:
            begin = time.perf_counter()
            effects = self._engine.step(1, events)
            self.longest = max(self.longest, time.perf_counter() - begin)
            events = ()
            for effect in effects.orders:
                if isinstance(effect, Deliver):
                    self.rows += len(effect.batch)
                    self.total += int(effect.batch.columns[1].sum())
            if not effects.more:
                return


def in_duckdb(table: pa.Table) -> pa.Table:
    import duckdb

    connection = duckdb.connect()
    connection.execute("PRAGMA threads=1")
    connection.register("t", table)
    query = f"SELECT k, count(*) AS n, sum(v)::BIGINT, ts // {TUMBLING.size_us} AS w FROM t GROUP BY k, w"
    return connection.sql(query).to_arrow_table()


def tumbling(tuples: int, groups: int, *, k: int = 4096, repeats: int = 3) -> list[Figure]:
    """Count and sum per key and window. Both programs return equal numbers of rows and count each tuple once."""
    import pyarrow.compute

    load = Load(tuples, groups)
    spec = AggregateSpec(TUMBLING, KEY, (("n", COUNT), ("s", SUM)), (("window_start", "start"),))
    table = load.table
    expected = in_duckdb(table)
    run = Run(load, spec, k)
    assert run.rows == len(expected)
    assert run.total == pyarrow.compute.sum(expected["n"]).as_py() == tuples
    ours = best_of(repeats, lambda: Run(load, spec, k))
    theirs = best_of(repeats, lambda: in_duckdb(table))
    name = f"tumbling count + sum, {groups:,} groups, k = {k}"
    return [
        Figure(f"{name}: engine", ours / tuples * 1e9, "ns/tuple"),
        Figure(f"{name}: DuckDB", theirs / tuples * 1e9, "ns/tuple", note="one thread, the same Arrow columns"),
        Figure(f"{name}: ratio", ours / theirs, "times", 3.0),
    ]


def text_keys(
    tuples: int, groups: int, most_ns: float | None = None, *, k: int = 4096, repeats: int = 3
) -> list[Figure]:
    """Count and sum per key in one long window: texts against integers, and the memory of the texts."""
    calls = (("n", COUNT), ("s", SUM))
    window = TimeWindow(86_400_000_000, 86_400_000_000)
    loads = [(Load(tuples, groups, named=key is NAME), AggregateSpec(window, key, calls), k) for key in (KEY, NAME)]
    rounds = [[Run(*load) for load in loads] for _ in range(repeats)]
    assert all(run.total == tuples for runs in rounds for run in runs)
    numbers, texts = (min(run.cpu_seconds for run in runs) / tuples * 1e9 for runs in zip(*rounds, strict=True))
    figures = [
        Figure(f"count + sum, {groups:,} bigint keys", numbers, "ns/tuple", note="CPU time"),
        Figure(f"count + sum, {groups:,} text keys", texts, "ns/tuple", most_ns, note="CPU time"),
        Figure(f"count + sum, {groups:,} keys: text / bigint", texts / numbers, "times"),
    ]
    index = TextIndex(binary=False)
    keys = as_texts(names(groups), False)
    for at in range(0, groups, k):
        index.find(keys[at : at + k], None)
    more = (index.nbytes - 1.5 * len(keys.packed)) / groups
    return [*figures, Figure(f"memory beyond 1.5 times {groups:,} keys' bytes", more, "bytes/key", 24.0)]


def groups(counts: Sequence[int], tuples: int, *, scattered: bool = False, repeats: int = 3) -> list[Figure]:
    """Count and sum per key in one window that has all groups already: CPU time of a tuple, by how many there are.

    Keys are the numbers from 0 on, or `scattered` over 62 bits.
    """
    spec = AggregateSpec(TimeWindow(1 << 40, 1 << 40), KEY, (("n", COUNT), ("s", SUM)))
    figures, first = [], 0.0
    for count in counts:
        every, load = Load(count, count), Load(tuples, count, start_us=10 * count)
        every.key = np.arange(count)
        if scattered:
            numbers = np.random.default_rng(2).integers(0, 1 << 62, count)
            every.key, load.key = numbers, numbers[load.k]
        runs = [_steady(spec, every, load) for _ in range(repeats)]
        cost = min(runs) / tuples * 1e9
        first = first or cost
        name = f"{count:,} {'scattered' if scattered else 'dense'} groups"
        figures.append(Figure(name, cost, "ns/tuple"))
        figures.append(Figure(f"{name} / {counts[0]:,}", cost / first, "times", 3.0))
    return figures


def _steady(spec: AggregateSpec, before: Load, load: Load) -> float:
    """CPU seconds of a load in an engine that has processed another one."""
    engine = engine_with(spec, FRAME)
    for batch in before.batches(FRAME):
        engine.step(1, [Arrived("s", "bench", batch)])
    batches = load.batches(FRAME)
    begin = time.process_time()
    for batch in batches:
        assert not engine.step(1, [Arrived("s", "bench", batch)]).more
    spent = time.process_time() - begin
    assert engine.graph.operator("q.aggregate1").state_tuples == len(before.ts)
    return spent


def sliding(tuples: int, *, k: int = 4096, repeats: int = 3) -> list[Figure]:
    """A mean over the last 60 seconds every 10, by 1,000 keys, against the same per 10 seconds."""
    load = Load(tuples, 1000)
    panes, plain = AggregateSpec(SLIDING, KEY, (("m", MEAN),)), AggregateSpec(TUMBLING, KEY, (("m", MEAN),))
    slow = best_of(repeats, lambda: Run(load, panes, k))
    quick = best_of(repeats, lambda: Run(load, plain, k))
    return [Figure("sliding average, 60 s by 10 s, 1,000 keys / tumbling", slow / quick, "times", 2.0)]


def many_panes(size_s: int, seconds: int, *, keys: int = 1000, k: int = 4096, repeats: int = 2) -> list[Figure]:
    """A sum over the last `size_s` seconds every second, once windows are full, against a sum per second."""
    before = Load(size_s * keys, keys, apart_us=1_000_000 // keys)
    load = Load(seconds * 100_000, keys, start_us=size_s * 1_000_000)
    calls = (("n", COUNT), ("s", SUM))
    sliding = AggregateSpec(TimeWindow(size_s * 1_000_000, 1_000_000), KEY, calls)
    plain = AggregateSpec(TimeWindow(1_000_000, 1_000_000), KEY, calls)
    runs = [Run(load, sliding, k, before) for _ in range(repeats)]
    slow = min(run.seconds for run in runs)
    quick = min(Run(load, plain, k, before).seconds for _ in range(repeats))
    name = f"sliding sum, {size_s:,} s by 1 s, {keys:,} keys"
    return [
        Figure(f"{name} / tumbling", slow / quick, "times", 5.0),
        Figure(f"{name}: a second of it", slow / seconds * 1e3, "ms"),
        Figure(f"{name}: longest step", min(run.longest for run in runs) * 1e3, "ms", 20.0),
    ]


def closing(tuples: int, groups: int) -> list[Figure]:
    """The longest step while windows of many groups close."""
    load = Load(tuples, groups)
    figures = []
    kinds: list[tuple[Literal["none", "slow", "lazy"], float | None]] = [("none", None), ("slow", 20.0), ("lazy", None)]
    for flush, bound in kinds:
        spec = AggregateSpec(TUMBLING, KEY, (("n", COUNT), ("s", SUM)), flush=flush, max_delay_us=10_000_000)
        longest = min(Run(load, spec, 4096).longest for _ in range(2))
        figures.append(Figure(f"longest step, {groups:,} groups, flush = '{flush}'", longest * 1e3, "ms", bound))
    return figures
