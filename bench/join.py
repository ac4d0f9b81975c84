"""Joins: the 4-key band join against a dict in plain Python, the kernel alone, one tuple at a time, skew and size."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bench.figure import Figure, best_of
from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Answer, Arrived, Command, CommandBody, Deliver, FeedOpened
from millrace.engine.plan import Node, QueryPlan, StreamDefinition
from millrace.operators.join import kernel as joining
from millrace.operators.join.bands import Band
from millrace.operators.join.segments import ALL, NO_HINTS
from millrace.operators.join.spec import Equal, JoinSpec
from millrace.protocol import Schema, Type
from millrace.values.batch import Batch, Int64s
from millrace.values.expression import Column

KEYS = ("src", "dst", "sport", "dport")
SCHEMA = Schema.of(ts="timestamp", src="bigint", dst="bigint", sport="bigint", dport="bigint", v="bigint")
BAND_US = 1_000_000
# Tuples of a run that is timed as a whole.
BLOCK = 100
# Tuples per second of event time and side.
RATE = 4_000
EVERY_US = 1_000_000 // RATE


class Load:
    """Two sides of tuples with four key columns. A share of the right side's tuples has the keys of a left tuple within
    the band; all other keys differ. With `heavy`, that share of each side's tuples has one key."""

    def __init__(self, tuples: int, *, match: float = 0.3, heavy: float = 0.0) -> None:
        rng = np.random.default_rng(1)
        self.ts: Int64s = np.arange(tuples) * EVERY_US
        left = rng.integers(0, 1 << 40, (4, tuples))
        right = rng.integers(0, 1 << 40, (4, tuples))
        matching = np.flatnonzero(rng.random(tuples) < match)
        # Partners are up to a second older: half the width of the band.
        partners = np.maximum(matching - rng.integers(0, RATE, len(matching)), 0)
        right[:, matching] = left[:, partners]
        if heavy:
            left[:, rng.random(tuples) < heavy] = 7
            right[:, rng.random(tuples) < heavy] = 7
        self.sides = (left, right)
        self.v: Int64s = rng.integers(0, 1500, tuples)

    def batches(self, side: int, k: int) -> list[Batch]:
        keys = self.sides[side]
        return [
            Batch(SCHEMA, self.ts[at : at + k], [self.ts[at : at + k], *keys[:, at : at + k], self.v[at : at + k]])
            for at in range(0, len(self.ts), k)
        ]


def spec(band_us: int | None = BAND_US, **options: Any) -> JoinSpec:
    columns = (("a", 0, 5), ("b", 1, 5), ("src", 0, 1))
    bands = () if band_us is None else (Band(0, 1, -band_us, band_us),)
    keys = [Column(Type.BIGINT, False, at + 1, name) for at, name in enumerate(KEYS)]
    return JoinSpec(columns, bands, tuple(Equal(0, key, 1, key) for key in keys), **options)


def engine_with(joined: JoinSpec, k: int) -> Engine:
    engine = Engine()
    node = Node("q.join1", joined, ("s.source", "t.source"))
    plan = QueryPlan("q", (node,), node.name, joined.schema([SCHEMA, SCHEMA]), reads_streams=("s", "t"))
    commands: list[CommandBody] = [
        AddStream(StreamDefinition("s", SCHEMA, "external", "ts")),
        AddStream(StreamDefinition("t", SCHEMA, "external", "ts")),
        AddQuery(plan, f"dfs({k})"),
    ]
    for effect in engine.step(0, [Command(number, body) for number, body in enumerate(commands)]).orders:
        assert isinstance(effect, Answer)
        assert effect.refused is None, effect.refused
    engine.step(0, [FeedOpened("s", "bench"), FeedOpened("t", "bench")])
    return engine


class Run:
    """Both sides of a load through a join, k tuples of each in turn; the number of rows."""

    def __init__(self, load: Load, joined: JoinSpec, k: int) -> None:
        self.rows = 0
        self.engine = engine_with(joined, k)
        for left, right in zip(load.batches(0, k), load.batches(1, k), strict=True):
            self.step(left, right)

    def step(self, left: Batch, right: Batch) -> None:
        effects = self.engine.step(1, [Arrived("s", "bench", left), Arrived("t", "bench", right)])
        while True:
            self.rows += sum(len(effect.batch) for effect in effects.orders if isinstance(effect, Deliver))
            if not effects.more:
                return
            effects = self.engine.step(1)


def in_python(load: Load) -> int:
    """The same join as a dict of lists per side, tuple by tuple: probe, store, expire."""
    sides = [list(zip(*(column.tolist() for column in keys), strict=True)) for keys in load.sides]
    ts, v = load.ts.tolist(), load.v.tolist()
    windows: tuple[dict[Any, list[tuple[int, int]]], ...] = ({}, {})
    lines: tuple[list[Any], ...] = ([], [])
    heads = [0, 0]
    rows = 0
    results: list[Any] = []
    for i, now in enumerate(ts):
        for side in (0, 1):
            key = sides[side][i]
            other = windows[1 - side]
            line, head = lines[1 - side], heads[1 - side]
            while head < len(line) and line[head][0] < now - BAND_US:
                expired = line[head][1]
                entries = other[expired]
                del entries[0]
                if not entries:
                    del other[expired]
                head += 1
            heads[1 - side] = head
            for time_us, value in other.get(key, ()):
                results.append((max(now, time_us), v[i], value, key[0]))
            windows[side].setdefault(key, []).append((now, v[i]))
            lines[side].append((now, key))
        if len(results) > 4096:
            rows += len(results)
            results.clear()
    return rows + len(results)


def band(tuples: int, *, ks: Sequence[int] = (1, 64, 4096), repeats: int = 3) -> list[Figure]:
    """4-key band join, 4,000 tuples/s a side, 30 % of the tuples match."""
    load = Load(tuples)
    expected = in_python(load)
    figures = []
    plain = best_of(repeats, lambda: in_python(load))
    per = 1e9 / (2 * tuples)
    figures.append(Figure("4-key band join: dicts in plain Python", plain * per, "ns/tuple"))
    for k in ks:
        few = load if k > 1 else Load(tuples // 16)
        run = Run(few, spec(), k)
        assert few is not load or run.rows == expected, (run.rows, expected)
        spent = best_of(repeats, lambda few=few, k=k: Run(few, spec(), k))  # type: ignore[misc]
        bound = 80.0 if k == 4096 else None
        name = f"4-key band join: engine, k = {k}"
        figures.append(Figure(name, spent * 1e9 / (2 * len(few.ts)), "ns/tuple", bound))
    figures += ordered(load, expected, repeats)
    figures.append(Figure("4-key band join: kernel alone", kernel_alone(load, repeats) * per, "ns/tuple"))
    return figures


def ordered(load: Load, expected: int, repeats: int) -> list[Figure]:
    figures = []
    for order in ("sync", "filter"):
        joined = spec(order=order)
        assert Run(load, joined, 4096).rows <= expected  # the last second waits for its promise
        spent = best_of(repeats, lambda joined=joined: Run(load, joined, 4096))  # type: ignore[misc]
        figures.append(
            Figure(f"4-key band join: engine, k = 4096, {order}", spent * 1e9 / (2 * len(load.ts)), "ns/tuple")
        )
    return figures


def kernel_alone(load: Load, repeats: int) -> float:
    """The loops over whole arrays: hash four columns, probe, store."""
    count = len(load.ts)

    def run() -> None:
        for keys in load.sides:
            states = np.zeros(count, np.int64)
            joining.fold(states, list(keys))
        table, sieve = np.zeros(1 << 14, np.int32), np.zeros(1 << 14, np.uint8)
        links = np.empty(8192, np.int32)
        pairs, work = np.empty((2, 65_536), np.int64), np.empty((3, 512), np.int32)
        for at in range(0, count, 4096):
            ts = load.ts[at : at + 4096]
            keys64 = states[at : at + 4096]
            table[:] = 0
            finder = joining.Finder(keys64, ts, table, sieve, links, 21, ALL)
            for _ in range(2):
                finder.probe(
                    keys64, ts, None, BAND_US, BAND_US, 0, len(ts), int(ts[0]), int(ts[-1]), 0, NO_HINTS, work, pairs, 0
                )
                finder.link(None, 0, len(ts))

    return best_of(repeats, run)


def single(steps: int) -> list[Figure]:
    """One tuple through source, join and sink by `Engine.step`, both sides in turn; three of ten find a partner."""
    load = Load(steps + 2 * RATE)
    engine = engine_with(spec(), 4096)
    sides = [load.batches(side, 1) for side in (0, 1)]
    feed = itertools.chain.from_iterable(zip(*sides, strict=True))
    streams = itertools.cycle(("s", "t"))
    now = itertools.count(1)

    def some() -> None:
        for _ in range(BLOCK):
            engine.step(next(now), [Arrived(next(streams), "bench", next(feed))])

    for _ in range(2 * RATE // BLOCK):
        some()
    blocks = max(steps // BLOCK, 1)
    return [
        # The cost of a row in the fastest of many short runs, including rows with partners.
        Figure("one tuple through source, join and sink", best_of(blocks, some) * 1e6 / BLOCK, "us", 15.0),
        Figure("one tuple, the kernel alone", row_alone(load) * 1e6, "us"),
    ]


def row_alone(load: Load) -> float:
    """The kernel's part of the work per row: hash four columns, probe two segments, store."""
    keys, ts = np.zeros(2 * RATE, np.int64), np.zeros(2 * RATE, np.int64)
    table, sieve = np.zeros(1 << 14, np.int32), np.zeros(1 << 14, np.uint8)
    links = np.empty(2 * RATE, np.int32)
    finder = joining.Finder(keys, ts, table, sieve, links, 63, ALL)
    rows = [batch.columns for batch in load.batches(0, 1)[:BLOCK]]
    slots = np.empty(256, np.int64)

    def run() -> None:
        for slot, columns in enumerate(rows):
            key = joining.fold_row(columns, (1, 2, 3, 4))
            for _ in range(2):
                finder.find(key, 0, BAND_US, 0, BAND_US, slots, 0)
            finder.put(slot, key, slot)

    return best_of(20, run) / len(rows)


def skew(tuples: int) -> list[Figure]:
    """One key has a share of the tuples: the costs of a tuple and of a row."""
    figures = []
    for heavy in (0.0, 0.05, 0.2, 0.5):
        # A short band: one key with half of the tuples makes a thousand rows out of each tuple in a second.
        joined, load = spec(BAND_US // 20), Load(tuples, heavy=heavy)
        begin = time.perf_counter()
        rows = Run(load, joined, 4096).rows
        spent = time.perf_counter() - begin
        note = f"{rows / (2 * tuples):,.1f} rows a tuple, {spent * 1e9 / max(rows, 1):,.0f} ns a row"
        name = f"one key has {heavy:.0%} of the tuples"
        figures.append(Figure(name, spent * 1e9 / (2 * tuples), "ns/tuple", note=note))
    return figures


def by_rows(tuples: int, *, repeats: int = 2) -> list[Figure]:
    """[ROWS 1000] on both sides: the sides' times alternate tuple by tuple, or in runs of 64."""
    figures = []
    for run in (1, 64):
        load = Load(tuples)
        places = np.arange(tuples)
        # Each side has every other run of the time line.
        sides = [(places // run * 2 + side) * run + places % run for side in (0, 1)]
        batches = [with_times(load.batches(side, 4096), times * EVERY_US) for side, times in enumerate(sides)]
        spent = best_of(repeats, lambda batches=batches: play_rows(*batches))  # type: ignore[misc]
        name = "newest 1,000 rows a side, " + ("alternating" if run == 1 else f"in runs of {run}")
        figures.append(Figure(name, spent * 1e9 / (2 * tuples), "ns/tuple"))
    return figures


def with_times(batches: Sequence[Batch], times: Int64s) -> list[Batch]:
    cuts = np.cumsum([len(batch) for batch in batches])[:-1]
    return [
        Batch(SCHEMA, ts, [ts, *batch.columns[1:]]) for batch, ts in zip(batches, np.split(times, cuts), strict=True)
    ]


def play_rows(left: Sequence[Batch], right: Sequence[Batch]) -> None:
    run = Run.__new__(Run)
    run.rows, run.engine = 0, engine_with(spec(None, rows=(1000, 1000)), 4096)
    for batch, other in zip(left, right, strict=True):
        run.step(batch, other)


def size(sizes: Sequence[int], *, tuples: int = 400_000) -> list[Figure]:
    """The cost of a tuple with `sizes` stored tuples on each side, and the longest step."""
    figures = []
    for stored in sizes:
        load = Load(stored + tuples)
        run = Run.__new__(Run)
        run.rows, run.engine = 0, engine_with(spec(stored * EVERY_US // 2), 4096)
        pairs = zip(load.batches(0, 4096), load.batches(1, 4096), strict=True)
        for left, right in itertools.islice(pairs, stored // 4096):
            run.step(left, right)
        spent = list(timed(run, pairs))
        operator = run.engine.graph.operator("q.join1")
        note = f"longest step {max(spent) * 1e3:.1f} ms, {operator.state_tuples:,} stored in "
        note += f"{operator.state_bytes / 1e6:,.0f} MB"
        count = 2 * 4096 * len(spent)
        figures.append(Figure(f"{stored:,} tuples a side", sum(spent) * 1e9 / count, "ns/tuple", note=note))
    return figures


def timed(run: Run, pairs: Iterator[tuple[Batch, Batch]]) -> Iterator[float]:
    for left, right in pairs:
        begin = time.perf_counter()
        run.step(left, right)
        yield time.perf_counter() - begin
