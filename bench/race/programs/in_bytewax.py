"""The race's workloads in bytewax, one worker.

The fastest way that was found: batches of 10,000 items pass each step in one call, each batch is reduced to a
dictionary by a loop in Python, and only these partial results are keyed. bytewax' own windows, which call Python for
every item, take several times as long.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.testing import TestingSink, run_main
from exchange import SECOND_US, WINDOW_US, Alternating, Rows, Streams, by_pane, main, score

BATCH = 10_000
THREE = ("ts", "k", "v")
FOUR = ("ts", "a", "b", "v")


Sources = Mapping[str, DynamicSource[Any]]


class Batches(StatelessSourcePartition[Any]):
    """The rows of a stream, a batch at a time."""

    def __init__(self, columns: list[Any]) -> None:
        self._columns = columns
        self._at = 0

    def next_batch(self) -> Iterable[Any]:
        if self._at >= len(self._columns[0]):
            raise StopIteration
        start, self._at = self._at, self._at + BATCH
        return list(zip(*(column[start : self._at] for column in self._columns), strict=True))


class Columns(DynamicSource[Any]):
    """A stream's columns, for the only worker."""

    def __init__(self, columns: list[Any]) -> None:
        self._columns = columns

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Batches:
        return Batches(self._columns)


def columns_of(streams: Streams, names: tuple[str, ...]) -> Sources:
    return {stream: Columns([columns[field] for field in names]) for stream, columns in streams.items()}


def reduced(name: str, sources: Sources, keep: Any, partial: Callable[[list[Any]], Any], merge: Any) -> Any:
    """All streams, filtered and united, each batch reduced by `partial`, the partial results merged per window."""
    flow = Dataflow(name)
    inputs = [op.input(f"in-{stream}", flow, source) for stream, source in sources.items()]
    if keep is not None:
        inputs = [
            op.flat_map_batch(f"filter{at}", one, lambda rows: [row for row in rows if keep(row)])
            for at, one in enumerate(inputs)
        ]
    united = op.merge("union", *inputs)
    partials = op.flat_map_batch("partial", united, partial)
    done: list[tuple[str, Any]] = []
    op.output("out", op.reduce_final("merge", partials, merge), TestingSink(done))
    run_main(flow)
    return done


def _counted(rows: list[Any]) -> Iterable[tuple[str, Any]]:
    windows: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for ts, k, _ in rows:
        windows[ts // SECOND_US][k] += 1
    return [(str(window), counts) for window, counts in windows.items()]


def _summed(left: Any, right: Any) -> Any:
    for key, n in right.items():
        left[key] = left.get(key, 0) + n
    return left


def w1(sources: Sources) -> Rows:
    done = reduced("w1", sources, lambda row: row[2] < 500, _counted, _summed)
    return [(k, n, (int(window) + 1) * SECOND_US) for window, counts in done for k, n in counts.items()]


def _grouped(rows: list[Any]) -> Iterable[tuple[str, Any]]:
    windows: defaultdict[int, dict[tuple[int, int], tuple[int, int]]] = defaultdict(dict)
    for ts, a, b, v in rows:
        groups = windows[ts // WINDOW_US]
        n, total = groups.get((a, b), (0, 0))
        groups[a, b] = n + 1, total + v
    return [(str(window), groups) for window, groups in windows.items()]


def _paired(left: Any, right: Any) -> Any:
    for key, (n, total) in right.items():
        before = left.get(key)
        left[key] = (n, total) if before is None else (before[0] + n, before[1] + total)
    return left


def w2(sources: Sources) -> Rows:
    done = reduced("w2", sources, None, _grouped, _paired)
    return [
        (a, b, n, total, (int(window) + 1) * WINDOW_US)
        for window, groups in done
        for (a, b), (n, total) in groups.items()
    ]


def _panes(rows: list[Any]) -> Iterable[tuple[str, Any]]:
    windows: defaultdict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for ts, k, v in rows:
        groups = windows[ts // WINDOW_US]
        total, n = groups.get(k, (0, 0))
        groups[k] = total + v, n + 1
    return [(str(window), groups) for window, groups in windows.items()]


def w4(streams: Streams) -> Rows:
    done = reduced("w4", columns_of(streams, THREE), None, _panes, _paired)
    return by_pane({(k, int(window)): pane for window, groups in done for k, pane in groups.items()})


def w3(streams: Streams) -> Rows:
    """The state of the join is in the step's function, which bytewax neither keys nor saves."""
    sides: tuple[defaultdict[Any, list[int]], ...] = (defaultdict(list), defaultdict(list))

    def join(rows: list[Any]) -> Iterable[tuple[str, int]]:
        counts: Counter[int] = Counter()
        for side, at, *key in rows:
            found = tuple(key)
            for other in sides[1 - side].get(found, ()):
                if abs(at - other) <= SECOND_US:
                    counts[max(at, other) // WINDOW_US] += 1
            sides[side][found].append(at)
        return [(str(window), n) for window, n in counts.items()]

    names = ("ts", "src", "dst", "sport", "dport")
    tagged = {
        stream: {"side": [side] * len(columns["ts"]), **columns}
        for side, (stream, columns) in enumerate(streams.items())
    }
    done = reduced("w3", columns_of(tagged, ("side", *names)), None, join, lambda left, right: left + right)
    return [(n, (int(window) + 1) * WINDOW_US) for window, n in done]


def _scored(rows: list[Any]) -> Iterable[tuple[str, int]]:
    totals: Counter[int] = Counter()
    for ts, k, v in rows:
        totals[ts // WINDOW_US] += score(k, v)
    return [(str(window), total) for window, total in totals.items()]


def function(streams: Streams) -> Rows:
    done = reduced("function", columns_of(streams, THREE), None, _scored, lambda left, right: left + right)
    return [(total, (int(window) + 1) * WINDOW_US) for window, total in done]


def aggregate(streams: Streams) -> Rows:
    """The states are in the step's function: the aggregate has no way to merge two of them."""
    states: dict[tuple[int, int], int] = {}

    def iterate(rows: list[Any]) -> Iterable[tuple[str, int]]:
        for ts, k, v in rows:
            key = k, ts // WINDOW_US
            state = states.get(key)
            states[key] = Alternating.iterate(Alternating.init() if state is None else state, v)
        return []

    reduced("aggregate", columns_of(streams, THREE), None, iterate, lambda left, right: left + right)
    return [(k, Alternating.terminate(state), (window + 1) * WINDOW_US) for (k, window), state in states.items()]


if __name__ == "__main__":
    main(
        {
            "w1": lambda streams: w1(columns_of(streams, THREE)),
            "w2": lambda streams: w2(columns_of(streams, FOUR)),
            "w3": w3,
            "w4": w4,
            "function": function,
            "aggregate": aggregate,
        }
    )
