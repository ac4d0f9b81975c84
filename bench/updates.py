"""Update queues against a plain dict of latest values: in batches, singly, and memory of a million keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.figure import Figure, best_of
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.queues.update import SCHEDULERS, Scheduler, UpdateQueue
from millrace.operators.queues.windows import Commit, WindowQueue
from millrace.protocol import Schema, Type
from millrace.values.batch import Batch, Values, column_of, constant_int64

NUMBERED = Schema.of(k="bigint", price="double", size="bigint")
NAMED = Schema.of(k="text", price="double", size="bigint")


def batches(schema: Schema, tuples: int, keys: int, size: int) -> list[Batch]:
    """Tuples of a number of keys, in order of time, in batches that arrived at once."""
    rng = np.random.default_rng(1)
    chosen = rng.integers(0, keys, tuples)
    price, count = rng.random(tuples), rng.integers(0, 1000, tuples)
    names: Values = chosen if schema is NUMBERED else column_of(Type.TEXT, [f"key{k:07}" for k in range(keys)])[chosen]
    ts = np.arange(tuples)
    return [
        Batch(
            schema,
            ts[at : at + size],
            [names[at : at + size], price[at : at + size], count[at : at + size]],
            None,
            constant_int64(at, len(ts[at : at + size])),
        )
        for at in range(0, tuples, size)
    ]


def filled(queue: UpdateQueue, load: Sequence[Batch]) -> None:
    for at, batch in enumerate(load):
        queue.enqueue(batch, at)


def in_and_out(queue: UpdateQueue, load: Sequence[Batch]) -> None:
    for at, batch in enumerate(load):
        queue.enqueue(batch, at)
        queue.dequeue(1, at)


def best(
    repeats: int,
    schema: Schema,
    scheduler: Scheduler,
    load: Sequence[Batch],
    run: Callable[[UpdateQueue, Sequence[Batch]], None],
) -> float:
    """The least time for the second half of a load, each time in a queue with the first half: a repeated tuple would
    only be superseded."""
    least = float("inf")
    for _ in range(repeats):
        queue = UpdateQueue(schema, (0,), scheduler)
        queue.costs(1.0)
        half = len(load) // 2
        filled(queue, load[:half])
        begin = time.perf_counter()
        run(queue, load[half:])
        least = min(least, time.perf_counter() - begin)
    return least


def in_a_dict(load: Sequence[Batch]) -> dict[Any, Any]:
    """The obvious program: the latest row per key."""
    latest: dict[Any, Any] = {}
    for batch in load:
        for row in zip(*(column.tolist() for column in batch.columns), strict=True):
            latest[row[0]] = row
    return latest


def enqueueing(tuples: int, keys: int, size: int, *, repeats: int = 5) -> list[Figure]:
    """Batches into a queue that keeps all keys, against a dict."""
    figures = []
    for schema, word in ((NUMBERED, "bigint"), (NAMED, "text")):
        load = batches(schema, tuples, keys, size)
        half = sum(map(len, load[len(load) // 2 :]))
        name = f"{keys:,} {word} keys, batches of {size:,}"
        plain = best_of(repeats, lambda load=load: in_a_dict(load[len(load) // 2 :])) / half * 1e9  # type: ignore[misc]
        figures.append(Figure(f"a dict, {name}", plain, "ns/tuple"))
        for scheduler in SCHEDULERS:
            took = best(repeats, schema, scheduler, load, filled) / half * 1e9
            figures.append(
                Figure(f"{scheduler}, {name}", took, "ns/tuple", 60.0, note=f"{took / plain:.2f} times the dict")
            )
    return figures


def single(rounds: int, *, repeats: int = 5) -> list[Figure]:
    """One tuple in and one out, at 10,000 keys."""
    figures = []
    for schema, word in ((NUMBERED, "bigint"), (NAMED, "text")):
        load = batches(schema, rounds, 10_000, 1)
        for scheduler in SCHEDULERS:
            took = best(repeats, schema, scheduler, load, in_and_out) / (rounds - rounds // 2) * 1e6
            figures.append(Figure(f"{scheduler}, {word} key, one tuple in and out", took, "us", 5.0))
    return figures


def few_keys(*, repeats: int = 20) -> list[Figure]:
    """10,000 updates of 100 keys in one batch against as many singly."""
    whole = batches(NUMBERED, 20_000, 100, 10_000)
    singles = batches(NUMBERED, 20_000, 100, 1)
    together = best(repeats, NUMBERED, "inplace", whole, filled)
    apart = best(max(1, repeats // 5), NUMBERED, "inplace", singles, filled)
    return [
        Figure("10,000 updates of 100 keys in one batch", together * 1e6, "us"),
        Figure("10,000 updates of 100 keys, one by one", apart * 1e6, "us"),
        Figure("one by one / in one batch", apart / together, "times", 20.0, most=False),
    ]


def many_keys(keys: int) -> list[Figure]:
    """Bytes per key of a queue in addition to the tuples."""
    figures = []
    for schema, word in ((NUMBERED, "bigint"), (NAMED, "text")):
        queue = UpdateQueue(schema, (0,), "inplace")
        names: Values = (
            np.arange(keys) if schema is NUMBERED else column_of(Type.TEXT, [f"key{k:07}" for k in range(keys)])
        )
        ts = np.arange(keys)
        for at in range(0, keys, 4096):
            part = ts[at : at + 4096]
            queue.enqueue(Batch(schema, part, [names[at : at + 4096], part * 1.0, part]), at)
        assert queue.waiting == keys
        figures.append(Figure(f"{keys:,} {word} keys, without their tuples", queue.beside / keys, "bytes/key", 200.0))
    return figures


def windows(tuples: int, sizes: Sequence[int] = (100, 1_000, 4_000), *, repeats: int = 20) -> list[Figure]:
    """Tuples into a queue of windows, of which one ends with every tuple: the cost must not grow with their size."""
    commits: tuple[Commit, ...] = ("lazy", "eager")
    figures = []
    for commit in commits:
        for by_tuples in (True, False):
            word = f"{commit.upper()}, closed by {'tuples' if by_tuples else 'promises'}"
            took = _into_windows(tuples, sizes, commit, by_tuples, repeats)
            figures += [
                Figure(f"{word}, windows of {size:,}", us, "us/tuple") for size, us in zip(sizes, took, strict=True)
            ]
            figures.append(Figure(f"{word}, windows of {sizes[-1]:,} / {sizes[0]:,}", took[-1] / took[0], "times", 2.0))
    return figures


def _into_windows(tuples: int, sizes: Sequence[int], commit: Commit, by_tuples: bool, repeats: int) -> list[float]:
    """By size the least time for a tuple of ten keys, where each key already has a window of so many; in turn, so that
    what else the machine does is shared by all."""
    keys = 10
    queues = [
        WindowQueue(NUMBERED, (0,), TimeWindow(size * keys, keys), commit, "inplace", by_tuples=by_tuples)
        for size in sizes
    ]
    reached = [_enqueue(queue, keys, 0, size * keys) for queue, size in zip(queues, sizes, strict=True)]
    least = [float("inf")] * len(sizes)
    for _ in range(repeats):
        for at, queue in enumerate(queues):
            begin = time.perf_counter()
            reached[at] = _enqueue(queue, keys, reached[at], tuples)
            least[at] = min(least[at], time.perf_counter() - begin)
    return [each / tuples * 1e6 for each in least]


def _enqueue(queue: WindowQueue, keys: int, at: int, tuples: int) -> int:
    """Enqueue tuples from a time on, one per microsecond; the time after them."""
    for first in range(at, at + tuples, 500):
        ts = np.arange(first, min(first + 500, at + tuples))
        queue.promised(first, first)
        queue.enqueue(Batch(NUMBERED, ts, [ts % keys, ts * 1.0, ts], None, ts), first)
    return at + tuples


BENCHMARKS: dict[str, Callable[[], list[Figure]]] = {
    "updates": lambda: enqueueing(1_000_000, 10_000, 4096),
    "updates-single": lambda: single(50_000),
    "updates-few-keys": few_keys,
    "updates-many-keys": lambda: many_keys(1_000_000),
    "updates-windows": lambda: windows(2_000),
}
