"""Lines about the engine alone: growth by groups, state and queries, TEXT keys, functions in Python, single rows."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bench.engine import engine_with
from bench.race.inmemory import PROGRAMS, check
from bench.race.inprocess import InEngine
from bench.race.lines import DUCKDB, MILLRACE, PLAIN, Contender, Line, Metric, Scale, cpu_seconds
from bench.race.peers import read_rows, run_program, write_columns
from bench.race.workloads import THREE, WORKLOADS, Column, InDuckDB, Stream, Workload, digest
from millrace.engine.engine import Engine
from millrace.engine.events import Arrived, Deliver, Event, FeedClosed
from millrace.formats.decoder import StreamDecoder
from millrace.functions.loading import load
from millrace.protocol import Schema
from millrace.sql.functions import install, uninstall
from millrace.values.batch import Batch

if TYPE_CHECKING:
    import pyarrow as pa

NANOSECONDS: Final = {"time": Metric("ns per tuple", more=False)}
SPEED: Final = {"speed": Metric("M tuples per CPU second", more=True)}
NEW: Final = "With 1,000,000 groups most tuples are the first of their group: in nobody's favour."
FRAME: Final = 4_096
EARLY: Final = "DuckDB and plain Python have all rows before they emit any: in their favour."


def feed(engine: Engine, steps: Sequence[Sequence[Event]], now: Iterator[int]) -> int:
    """The rows that these steps deliver."""
    rows = 0
    for events in steps:
        effects = engine.step(next(now), events)
        while True:
            rows += sum(len(order.batch) for order in effects.orders if isinstance(order, Deliver))
            if not effects.more:
                break
            effects = engine.step(next(now))
    return rows


def frames(stream: str, batch: Batch, size: int) -> list[Sequence[Event]]:
    return [
        [Arrived(stream, "bench", batch.slice(at, min(at + size, len(batch))))] for at in range(0, len(batch), size)
    ]


# -- groups ------------------------------------------------------------------------------------------------------------


def groups(scale: Scale) -> Iterator[Contender]:
    """Tumbling windows of ten seconds by a key; a window has 1,000,000 tuples."""
    for count in (1_000, 100_000, 1_000_000):
        workload = replace(
            WORKLOADS["w2"],
            streams_sql="CREATE STREAM s (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts');",
            query_sql="""CREATE QUERY q AS SELECT k, count(*) AS n, sum(v) AS total, window_end
                FROM TUMBLE(s, ts, INTERVAL '10 seconds') GROUP BY k;""",
            duckdb_sql="SELECT k, count(*) AS n, sum(v)::BIGINT AS total, "
            "(ts // 10000000 + 1) * 10000000 AS window_end FROM s GROUP BY k, window_end",
            columns=("k", "n", "total", "window_end"),
            make=partial(_keyed, count),
        )
        yield from _both(workload, scale, count)


def _keyed(groups: int, tuples: int, seed: int) -> Mapping[str, Stream]:
    rng = np.random.default_rng(seed)
    return {
        "s": Stream(THREE, (np.arange(tuples) * 10, rng.integers(0, groups, tuples), rng.integers(0, 1500, tuples)))
    }


def _both(workload: Workload, scale: Scale, x: float | None = None) -> Iterator[Contender]:
    """The engine and DuckDB."""
    streams = workload.streams(scale.tuples)
    expected = digest(InDuckDB(workload, streams).run())

    def run(program: InEngine | InDuckDB) -> Mapping[str, float]:
        program.prepare()
        rows: list[Any] = []
        seconds = cpu_seconds(lambda: rows.append(program.run()))
        check(type(program).__name__, digest(rows[0]), expected)
        return {"time": seconds / scale.tuples * 1e9}

    yield Contender(MILLRACE, partial(run, InEngine(workload, streams)), x)
    yield Contender(DUCKDB, partial(run, InDuckDB(workload, streams)), x)


# -- texts -------------------------------------------------------------------------------------------------------------

TEXTS: Final = "CREATE STREAM s (ts TIMESTAMP, k {type}, v BIGINT) WITH (time = 'ts');"
COUNTED: Final = """CREATE QUERY q AS SELECT k, count(*) AS n, sum(v) AS total FROM TUMBLE(s, ts, INTERVAL '1 hour')
  GROUP BY k;"""


def texts(scale: Scale) -> Iterator[Contender]:
    """Count and sum by a text, in one window."""
    import pyarrow as pa

    for count in (65_536, 1_000_000):
        rng = np.random.default_rng(1)
        keys, values = rng.integers(0, count, scale.tuples), rng.integers(0, 1500, scale.tuples)
        named = pa.array([f"sensor-{key:07d}" for key in range(count)]).take(pa.array(keys))
        times = np.arange(scale.tuples) * 10
        for kind, column, name in (("TEXT", named, MILLRACE), ("BIGINT", pa.array(keys), f"{MILLRACE}, BIGINT")):
            table = pa.table({"ts": times, "k": column, "v": values})
            yield Contender(name, partial(_by_text, kind, table, len(np.unique(keys)), int(values.sum())), count)
        yield Contender(PLAIN, partial(_texts_in_a_dict, named.to_pylist(), values.tolist(), int(values.sum())), count)
        if scale.peers is not None and "csp" in scale.peers.pythons:
            folder = write_columns({"s": Stream(THREE, (times, keys, values))}, scale.folder / f"texts-{count}")
            yield Contender("csp", partial(_texts_in_csp, scale.peers.pythons["csp"], folder, keys, values), count)


def _by_text(kind: str, table: pa.Table, groups: int, total: int) -> Mapping[str, float]:
    engine = engine_with(TEXTS.format(type=kind) + COUNTED)
    batch = StreamDecoder(engine.streams_by_name["s"].definition).from_table(table.combine_chunks())
    steps = frames("s", batch, FRAME)
    now = itertools.count(1)
    seconds = cpu_seconds(lambda: feed(engine, steps, now))
    found = _closed(engine, now)
    assert (len(found), int(found.columns[2].sum())) == (groups, total)
    return {"time": seconds / table.num_rows * 1e9}


def _closed(engine: Engine, now: Iterator[int]) -> Batch:
    """The rows that the end of the stream releases."""
    effects = engine.step(next(now), [FeedClosed("s", "bench", ended=True)], budget=1 << 60)
    return Batch.concat([order.batch for order in effects.orders if isinstance(order, Deliver)])


def _texts_in_csp(python: Path, folder: Path, keys: Column, values: Column) -> Mapping[str, float]:
    seconds = run_program(python, "in_csp", "texts", str(folder))["seconds"]
    groups = np.unique(keys)
    counts, totals = np.bincount(keys)[groups], np.bincount(keys, values)[groups].astype(np.int64)
    check("csp", digest(read_rows(folder)), digest([groups, counts, totals]))
    return {"time": seconds / len(keys) * 1e9}


def _texts_in_a_dict(keys: Sequence[str], values: Sequence[int], total: int) -> Mapping[str, float]:
    groups: dict[str, list[int]] = {}

    def run() -> None:
        for key, value in zip(keys, values, strict=True):
            group = groups.get(key)
            if group is None:
                groups[key] = [1, value]
            else:
                group[0] += 1
                group[1] += value

    seconds = cpu_seconds(run)
    assert sum(sum_ for _, sum_ in groups.values()) == total
    return {"time": seconds / len(keys) * 1e9}


# -- the state of a join -----------------------------------------------------------------------------------------------

SIDES: Final = "".join(f"CREATE STREAM {name} (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts');" for name in "st")
PAIRS: Final = """CREATE QUERY q AS SELECT s.k, s.v, t.v AS w FROM s [RANGE '{seconds} seconds']
  JOIN t [RANGE '{seconds} seconds'] ON s.k = t.k;"""
APART_US: Final = 1_000


def join_state(scale: Scale) -> Iterator[Contender]:
    """A join whose sides keep 1,000 rows per second for so many seconds; the state is full before the time starts."""
    for seconds in (1, 600, 3_600):
        yield Contender(MILLRACE, partial(_join, min(seconds, scale.tuples // 100), scale.tuples // 10), seconds)


def _join(seconds: int, tuples: int) -> Mapping[str, float]:
    engine = engine_with(SIDES + PAIRS.format(seconds=seconds))
    before, after = seconds * 1_000, tuples // 2
    rng = np.random.default_rng(1)
    ts = np.arange(before + after) * APART_US
    # A key has one partner on average, however long the state is.
    keys = {name: rng.integers(0, before, before + after) for name in "st"}
    batches = {name: Batch(THREE, ts, [ts, keys[name], ts]) for name in "st"}
    now = itertools.count(1)

    def steps(start: int, stop: int) -> list[list[Event]]:
        return [
            [Arrived(name, "bench", batches[name].slice(at, min(at + 512, stop))) for name in "st"]
            for at in range(start, stop, 512)
        ]

    feed(engine, steps(0, before), now)
    counted = steps(before, before + after)
    rows: list[int] = []
    spent = cpu_seconds(lambda: rows.append(feed(engine, counted, now)))
    assert rows == [_pairs(keys, ts, before, seconds * 1_000_000)]
    return {"time": spent / (2 * after) * 1e9}


def _pairs(keys: Mapping[str, Any], ts: Any, first: int, range_us: int) -> int:
    """The pairs whose newer tuple is at or behind the position `first`, by sorting."""
    span = int(ts[-1]) + 2 * range_us + 1
    total = 0
    for own, other, newer in (("s", "t", 1), ("t", "s", 0)):
        places = np.sort(keys[other] * span + ts)
        probes = keys[own][first:] * span + ts[first:]
        # Of two tuples with one time the left side's probe counts the pair.
        total += int((np.searchsorted(places, probes + newer) - np.searchsorted(places, probes - range_us)).sum())
    return total


# -- many queries ------------------------------------------------------------------------------------------------------

QUERIES: Final = {"time": Metric("us per tuple", more=False), "creating": Metric("s", more=False)}


def queries(scale: Scale) -> Iterator[Contender]:
    """Queries with different filters on one stream, frames of 100."""
    for count in (10, 100, 1_000):
        tuples = max(100, min(scale.tuples // 50, 20_000_000 // count // 10) // 100 * 100)
        yield Contender(MILLRACE, partial(_queries, count, tuples), count)


def _queries(count: int, tuples: int) -> Mapping[str, float]:
    sql = "CREATE STREAM s (k BIGINT, v BIGINT);"
    sql += "".join(f"CREATE QUERY q{n} AS SELECT k, v FROM s WHERE k = {n};" for n in range(count))
    engines: list[Engine] = []
    creating = cpu_seconds(lambda: engines.append(engine_with(sql)))
    keys = np.random.default_rng(1).integers(0, 2 * count, tuples)
    steps = frames("s", Batch(Schema.of(k="bigint", v="bigint"), np.zeros(tuples, np.int64), [keys, keys]), 100)
    rows: list[int] = []
    spent = cpu_seconds(lambda: rows.append(feed(engines[0], steps, itertools.count(1))))
    assert rows == [int((keys < count).sum())]
    return {"time": spent / tuples * 1e6, "creating": creating}


# -- functions in Python -----------------------------------------------------------------------------------------------

_SCORE: Final = replace(
    WORKLOADS["w4"],
    name="function",
    query_sql="""CREATE QUERY q AS SELECT sum(score(k, v)) AS total, window_end
        FROM TUMBLE(s, ts, INTERVAL '10 seconds');""",
    duckdb_sql="SELECT sum(CASE WHEN v > k THEN v * 2 + 1 ELSE k - v END)::BIGINT AS total, "
    "(ts // 10000000 + 1) * 10000000 AS window_end FROM s GROUP BY window_end",
    columns=("total", "window_end"),
)
_ALTERNATING: Final = replace(
    WORKLOADS["w4"],
    name="aggregate",
    query_sql="""CREATE QUERY q AS SELECT k, alternating(v) AS total, window_end
        FROM TUMBLE(s, ts, INTERVAL '10 seconds') GROUP BY k;""",
    duckdb_sql="SELECT k, sum(CASE WHEN place % 2 = 1 THEN v ELSE -v END)::BIGINT AS total, "
    "(pane + 1) * 10000000 AS window_end FROM (SELECT k, v, ts // 10000000 AS pane, "
    "row_number() OVER (PARTITION BY k, ts // 10000000 ORDER BY ts DESC) AS place FROM s) GROUP BY k, pane",
    columns=("k", "total", "window_end"),
)


def python(workload: Workload, scale: Scale) -> Iterator[Contender]:
    """A function in Python that is called for every row."""
    tuples = max(scale.tuples // 5, 1)
    streams = workload.streams(tuples)
    expected = digest(InDuckDB(workload, streams).run())
    folder = write_columns(streams, scale.folder / f"{workload.name}-{tuples}")
    ours = InEngine(workload, streams)

    def own() -> Mapping[str, float]:
        with registered("bench.race.functions"):
            ours.prepare()
            rows: list[Any] = []
            seconds = cpu_seconds(lambda: rows.append(ours.run()))
        check(MILLRACE, digest(rows[0]), expected)
        return {"speed": tuples / seconds / 1e6}

    yield Contender(MILLRACE, own)
    programs = {PLAIN: (sys.executable, "plain")}
    if scale.peers is not None:
        pythons = {name: str(scale.peers.pythons[name]) for name in ("bytewax", "csp") if name in scale.peers.pythons}
        programs |= {name: (path, PROGRAMS[name]) for name, path in pythons.items()}

    def run(name: str) -> Mapping[str, float]:
        path, program = programs[name]
        seconds = run_program(path, program, workload.name, str(folder))["seconds"]
        check(name, digest(read_rows(folder)), expected)
        return {"speed": tuples / seconds / 1e6}

    for name in programs:
        yield Contender(name, partial(run, name))


@contextmanager
def registered(module: str) -> Iterator[None]:
    """Statements know the functions of a module."""
    rows = load(module)
    install(rows)
    try:
        yield
    finally:
        uninstall(rows)


# -- single rows -------------------------------------------------------------------------------------------------------


def single(scale: Scale) -> Iterator[Contender]:
    """One filter, a row or a hundred in a frame."""
    for size in (1, 100):
        yield Contender(MILLRACE, partial(_single, size, max(scale.tuples // 100, 100) * min(size, 10)), size)


def _single(size: int, tuples: int) -> Mapping[str, float]:
    engine = engine_with("CREATE STREAM s (k BIGINT, v BIGINT); CREATE QUERY q AS SELECT k, v FROM s WHERE k >= 0;")
    keys = np.arange(tuples)
    steps = frames("s", Batch(Schema.of(k="bigint", v="bigint"), np.zeros(tuples, np.int64), [keys, keys]), size)
    rows: list[int] = []
    spent = cpu_seconds(lambda: rows.append(feed(engine, steps, itertools.count(1))))
    assert rows == [tuples]
    return {"time": spent / tuples * 1e9}


Contenders = Callable[[Scale], Iterator[Contender]]
LINES: Final = [
    Line("groups", "groups of a window", NANOSECONDS, groups, "10^6 at most 3 times 10^3", f"{EARLY} {NEW}", "groups"),
    Line("texts", "TEXT keys, count and sum", NANOSECONDS, texts, "at most 80 and 250 ns", EARLY, "groups"),
    Line(
        "join-state", "join by the length of its state", NANOSECONDS, join_state, "flat within 2 times", "", "seconds"
    ),
    Line("queries", "filters on one stream", QUERIES, queries, "1,000: at most 20 us, created in 2 s", "", "queries"),
    Line("function", "Python function per row", SPEED, partial(python, _SCORE), "at least 5.6 M/s", EARLY),
    Line("aggregate", "Python aggregate per row", SPEED, partial(python, _ALTERNATING), "at least 1.2 M/s", EARLY),
    Line("single", "rows through a filter", NANOSECONDS, single, "a frame of 1: at most 6 us", "", "rows in a frame"),
]
