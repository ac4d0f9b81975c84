"""Sequences: B after the newest and after the oldest unused A of its key, against a plain Python loop."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Literal

import numpy as np

from bench.figure import Figure, best_of, median_of
from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Answer, Arrived, Command, Deliver, Effects, Event, FeedClosed
from millrace.engine.plan import Node, QueryPlan, StreamDefinition
from millrace.operators.sequence.spec import SequenceSpec
from millrace.protocol import Schema, Type
from millrace.values.batch import Batch, Int64s
from millrace.values.expression import Column

Mode = Literal["recent", "chronicle"]
SCHEMA = Schema.of(ts="timestamp", k="bigint", v="bigint")
KEY = Column(Type.BIGINT, True, 1, "k")
PICKED = (("k", 1, 1), ("a", 0, 2), ("b", 1, 2))


class Load:
    """Two streams of equal rates in order of time, whose keys and values are drawn from a seed."""

    def __init__(self, tuples: int, keys: int) -> None:
        rng = np.random.default_rng(1)
        half = tuples // 2
        self.tuples = 2 * half
        self.ts: tuple[Int64s, Int64s] = (np.arange(half) * 10, np.arange(half) * 10 + 5)
        self.k = [rng.integers(0, keys, half) for _ in "ab"]
        self.v = [rng.integers(0, 1000, half) for _ in "ab"]

    def batches(self, side: int, k: int) -> list[Batch]:
        columns = (self.ts[side], self.k[side], self.v[side])
        return [
            Batch(SCHEMA, self.ts[side][at : at + k], [column[at : at + k] for column in columns])
            for at in range(0, len(self.ts[side]), k)
        ]

    def rows(self, side: int) -> list[tuple[int, int, int]]:
        return list(zip(self.ts[side].tolist(), self.k[side].tolist(), self.v[side].tolist(), strict=True))


def in_python(mode: Mode, firsts: list[tuple[int, int, int]], seconds: list[tuple[int, int, int]]) -> tuple[int, int]:
    """The papers' loop over rows: take the input with the least time, insert or probe. Rows, and the sum of A's."""
    newest: dict[int, tuple[int, int, int]] = {}
    unused: dict[int, deque[tuple[int, int, int]]] = {}
    rows: list[tuple[int, int, int]] = []
    i = j = 0
    while i < len(firsts) or j < len(seconds):
        if i < len(firsts) and (j == len(seconds) or firsts[i][0] <= seconds[j][0]):
            row = firsts[i]
            i += 1
            if mode == "recent":
                newest[row[1]] = row
            elif row[1] in unused:
                unused[row[1]].append(row)
            else:
                unused[row[1]] = deque((row,))
            continue
        _, key, value = seconds[j]
        j += 1
        if mode == "recent":
            match = newest.get(key)
        else:
            queue = unused.get(key)
            match = queue.popleft() if queue else None
        if match is not None:
            rows.append((key, match[2], value))
    return len(rows), sum(row[1] for row in rows)


def engine_with(mode: Mode, k: int) -> Engine:
    engine = Engine()
    spec = SequenceSpec(PICKED, ((KEY, KEY),), mode=mode)
    node = Node("q.sequence1", spec, ("a.source", "b.source"))
    plan = QueryPlan("q", (node,), node.name, spec.schema([SCHEMA, SCHEMA]), reads_streams=("a", "b"))
    commands = [
        *(Command(at, AddStream(StreamDefinition(name, SCHEMA, "external", "ts"))) for at, name in enumerate("ab")),
        Command(2, AddQuery(plan, f"dfs({k})")),
    ]
    for effect in engine.step(0, commands).orders:
        assert isinstance(effect, Answer)
        assert effect.refused is None
    return engine


def delivered(effects: Effects) -> tuple[int, int]:
    """Rows, and the sum of their second column."""
    batches = [effect.batch for effect in effects.orders if isinstance(effect, Deliver)]
    return sum(map(len, batches)), sum(int(batch.columns[1].sum()) for batch in batches)


def through_engine(mode: Mode, batches: tuple[list[Batch], list[Batch]], k: int) -> tuple[int, int]:
    engine = engine_with(mode, k)
    count = total = 0
    steps: list[list[Event]] = [
        [Arrived("a", "bench", a), Arrived("b", "bench", b)] for a, b in zip(*batches, strict=True)
    ]
    steps.append([FeedClosed(name, "bench", ended=True) for name in "ab"])
    for events in steps:
        rows, values = delivered(engine.step(1, events, budget=1 << 60))
        count, total = count + rows, total + values
    return count, total


def throughput(tuples: int, mode: Mode, *, keys: int = 1000, k: int = 4096, repeats: int = 5) -> list[Figure]:
    """All tuples through one sequence; both ways return equal numbers of rows with the same A's."""
    load = Load(tuples, keys)
    batches = load.batches(0, k), load.batches(1, k)
    lists = load.rows(0), load.rows(1)
    assert through_engine(mode, batches, k) == in_python(mode, *lists)
    ours = best_of(repeats, lambda: through_engine(mode, batches, k))
    theirs = best_of(repeats, lambda: in_python(mode, *lists))
    name = f"sequence {mode.upper()}, {keys:,} keys, k = {k}"
    return [
        Figure(f"{name}: engine", ours / load.tuples * 1e9, "ns/tuple"),
        Figure(f"{name}: Python loop", theirs / load.tuples * 1e9, "ns/tuple"),
        Figure(f"{name}: Python loop / engine", theirs / ours, "times"),
    ]


def single_tuple(steps: int, mode: Mode) -> list[Figure]:
    """The time of a step, with an A and a B in turn; each pair emits a row a step later."""
    engine = engine_with(mode, 4096)
    clock = itertools.count(10, 10)
    rows = 0

    def run() -> None:
        nonlocal rows
        for name in "ab":
            ts = next(clock)
            rows += len(engine.step(ts, [Arrived(name, "bench", Batch.from_rows(SCHEMA, [(ts, 1, 7)], [ts]))]).orders)

    seconds = median_of(steps, run) / 2
    assert rows >= steps - 1
    return [Figure(f"one tuple through a sequence {mode.upper()}", seconds * 1e6, "us", note="with its batch made")]
