"""Queues of windows: figure 12 tick by tick, the oracle, figure 10's states, figure 11's blocks, and integrity."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millrace.engine import saving
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.queues import load
from millrace.operators.queues.reads import Reads
from millrace.operators.queues.windows import FinishedWindow, ServedTuples, WindowQueue
from millrace.protocol import Schema
from millrace.values.batch import Batch
from millrace.values.eventtime import MIN_TIME
from tests.depth import examples
from tests.operators.queues.auditing import audit_windows, ready, states, waits
from tests.oracles.update_queues import AutoWindowsOracle, CommittedWindow, WindowsRun, simulate_windows

SCHEMA = Schema.of(k="text", v="bigint")
CASES = Path(__file__).resolve().parents[2] / "conformance" / "cases"


def queue(
    commit: Any, size: int, slide: int, policy: Any = "inplace", begin: int = MIN_TIME, **more: Any
) -> WindowQueue:
    made = WindowQueue(SCHEMA, (0,), TimeWindow(size, slide), commit, policy, begin_us=begin, block=2, blocks=2, **more)
    made.timed = True
    return made


def batch_of(*rows: tuple[str, int]) -> Batch:
    ts = np.array([time for _, time in rows], np.int64)
    return Batch.from_rows(SCHEMA, [(key, time) for key, time in rows], ts, 0)


def arrive(made: WindowQueue, *rows: tuple[str, int]) -> None:
    """Tuples that arrive at their own times."""
    batch = batch_of(*rows)
    made.enqueue(Batch(SCHEMA, batch.ts, batch.columns, batch.valid, batch.ts), int(batch.ts[-1]))


class Server:
    """One server over the queue: `cost` ticks per tuple, one tuple at a time."""

    def __init__(self, made: WindowQueue, cost: int) -> None:
        self.made, self.cost = made, cost
        self.free = 0
        self.processed: dict[str, CommittedWindow] = {}
        self.all: list[CommittedWindow] = []
        self.leaving: Sequence[FinishedWindow] = ()

    def tick(self, now: int) -> None:
        if self.free > now:
            return
        if self.leaving:
            self.made.measured(self.cost, now)
            self._out(self.leaving, now)
            self.leaving = ()
        served = self.made.serve(1, now)
        ahead = [done for done in served.finished if done.rows == 0]
        self._out(ahead, now)
        if served.batch is None:
            self.made.measured(0, now)
            return
        (key, time), mark = served.batch.rows()[0], int(served.marks[0])
        if mark > 0:
            # Its predecessor must be over: a window is processed whole or not at all.
            assert self.processed.get(key) is None or self.processed[key].output is not None
            self.processed[key] = CommittedWindow(key, mark - self.made.window.size_us, now)
            self.all.append(self.processed[key])
        self.processed[key].tuples.append(time)
        self.free = now + self.cost
        self.leaving = [done for done in served.finished if done.rows == 1]

    def _out(self, done: Sequence[FinishedWindow], now: int) -> None:
        for one in done:
            processed = self.processed[one.key[0]]
            assert (processed.start, processed.start + self.made.window.size_us) == (one.start_us, one.end_us)
            processed.output = now


def run(
    commit: str,
    policy: str,
    size: int,
    slide: int,
    arrivals: Sequence[tuple[int, str]],
    cost: int,
    horizon: int,
    begin: int,
) -> tuple[WindowsRun, WindowQueue]:
    """The same as the oracle's run, with the queue itself, saved and restored now and then."""
    server = Server(queue(commit, size, slide, policy, begin), cost)
    left, stale = list(arrivals), []
    for now in range(horizon):
        rows = []
        while left and left[0][0] == now:
            rows.append((left[0][1], left.pop(0)[0]))
        if rows:
            arrive(server.made, *rows)
        server.tick(now)
        audit(server.made)
        stale.append(sum(server.made.stale_us(key, now) for key in states(server.made)))
        if now % 7 == 3:
            saved = saving.pack(server.made.save())
            blank = queue(commit, size, slide, policy, begin)
            blank.restore(saving.unpack(saved))
            assert saving.pack(blank.save()) == saved
            server.made = blank
    pending = {key[0]: state.arrivals.pending_us for key, state in states(server.made).items()}
    waiting = {key: start for key, start in pending.items() if start is not None}
    return WindowsRun(server.all, server.made.superseded, waiting, stale), server.made


def audit(made: WindowQueue) -> None:
    audit_windows(made)
    for state in states(made).values():
        if made.by_tuples and made.bounded:  # and then one of a key at a time, in these tests
            assert state.arrivals.buffer.count <= made.window.size_us + made.window.slide_us
            assert state.processing.buffer.count <= made.window.size_us


# -- figure 12 ---------------------------------------------------------------------------------------------------------


def figure_12(commit: str, horizon: int) -> tuple[list[list[Any]], list[int]]:
    """Omega 3, delta 1, C_t 2, one tuple per time unit from time 1: commits and outputs, and staleness at each tick."""
    arrivals = [(at, "k") for at in range(1, horizon + 1)]
    found, _ = run(commit, "inplace", 3, 1, arrivals, 2, horizon + 1, 1)
    wanted = simulate_windows(commit, "inplace", 3, 1, arrivals, 2, horizon + 1, begin=1)
    assert found.stale == wanted.stale
    rows = [
        [one.start, one.commit, one.output, found.stale[one.output]]
        for one in found.processed
        if one.output is not None
    ]
    assert all(one.tuples == [one.start, one.start + 1, one.start + 2] for one in found.processed if one.output)
    return rows, found.stale


def test_figure_12_lazy() -> None:
    rows, stale = figure_12("lazy", 21)
    assert rows == [[1, 3, 9, 5], [7, 9, 15, 5], [13, 15, 21, 5]]
    assert stale == [0, 0, 0, 0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 5, 6, 7, 8, 9, 10, 5]


def test_figure_12_eager() -> None:
    rows, stale = figure_12("eager", 20)
    assert rows == [[1, 1, 7, 3], [7, 7, 13, 3], [13, 13, 19, 3]]
    assert stale == [0, 0, 0, 0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 3, 4, 5, 6, 7, 8, 3, 4]


@pytest.mark.parametrize("path", sorted(CASES.glob("upstream-*fig12*.json")), ids=lambda path: path.stem)
def test_conformance_of_figure_12(path: Path) -> None:
    case = json.loads(path.read_text())
    assert (case["query"]["omega"], case["query"]["delta"], case["query"]["c_t"]) == (3, 1, 2)
    rows, _ = figure_12(case["query"]["mode"], case["query"]["horizon"])
    assert rows == case["expected"]["rows"]


# -- against the oracle ------------------------------------------------------------------------------------------------

GAPS = st.lists(st.tuples(st.sampled_from([0, 1, 1, 1, 2, 3, 9]), st.sampled_from("abc")), max_size=30)


@pytest.mark.parametrize("commit", ["lazy", "eager"])
@given(
    gaps=GAPS,
    size=st.integers(1, 6),
    slide=st.integers(1, 7),
    cost=st.integers(1, 4),
    policy=st.sampled_from(["fifo", "inplace"]),
    begin=st.integers(-9, 5),
)
@settings(max_examples=examples(150))
@example(gaps=[(5, "a"), (30, "a"), (1, "a")], size=3, slide=3, cost=1, policy="inplace", begin=0)
def test_agrees_with_the_oracle(
    commit: str, gaps: list[tuple[int, str]], size: int, slide: int, cost: int, policy: str, begin: int
) -> None:
    arrivals = at_times(gaps)
    horizon = max((at for at, _ in arrivals), default=0) + 30
    found, _ = run(commit, policy, size, slide, arrivals, cost, horizon, begin)
    wanted = simulate_windows(commit, policy, size, slide, arrivals, cost, horizon, begin=begin)
    assert found.processed == wanted.processed
    assert found.waiting == wanted.waiting
    assert found.superseded == wanted.superseded
    assert found.stale == wanted.stale


def at_times(gaps: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Arrivals with these gaps between them; at one time a key has one value."""
    arrivals: list[tuple[int, str]] = []
    now, last = 0, {"a": -1, "b": -1, "c": -1}
    for gap, key in gaps:
        now = max(now + gap, last[key] + 1)
        last[key] = now
        arrivals.append((now, key))
    return arrivals


@pytest.fixture
def short_spans() -> Iterator[None]:
    """Spans of so many ticks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "SPAN_US", SPAN)
        patch.setattr(load, "SERVED", 2)
        yield


SPAN = 8


def phases(*lengths: tuple[int, int]) -> list[tuple[int, str]]:
    """Arrivals at one rate after another: gaps, and how many tuples of three keys in turn."""
    return [(gap, "abc"[at % 3]) for gap, count in lengths for at in range(count)]


@given(
    rates=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 40)), max_size=5),
    size=st.integers(1, 6),
    slide=st.integers(1, 7),
    cost=st.integers(1, 4),
    begin=st.integers(-9, 5),
)
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(rates=[(1, 60), (9, 20)], size=4, slide=2, cost=3, begin=0)
@example(rates=[(1, 600)], size=4, slide=4, cost=2, begin=0)
def test_windows_under_auto_agree_with_the_oracle(
    short_spans: None, rates: list[tuple[int, int]], size: int, slide: int, cost: int, begin: int
) -> None:
    play_auto(phases(*rates), size, slide, cost, begin)


def test_auto_processes_all_windows_that_the_reader_keeps_up_with(short_spans: None) -> None:
    calm, found = play_auto(phases((4, 60)), 12, 12, 2, 0)
    assert (calm.load.modes, found.superseded) == ([], 0)
    busy, found = play_auto(phases((1, 60), (9, 20)), 4, 4, 3, 0)
    assert busy.load.modes == ["update", "append"]
    assert found.superseded


def play_auto(
    gaps: list[tuple[int, str]], size: int, slide: int, cost: int, begin: int
) -> tuple[AutoWindowsOracle, WindowsRun]:
    arrivals = at_times(gaps)
    horizon = max((at for at, _ in arrivals), default=0) + 30
    oracle = AutoWindowsOracle(SPAN, 2, size, slide, begin)
    found, made = run("lazy", "auto", size, slide, arrivals, cost, horizon, begin)
    wanted = simulate_windows("lazy", "auto", size, slide, arrivals, cost, horizon, begin=begin, auto=oracle)
    assert found.processed == wanted.processed
    assert found.waiting == wanted.waiting
    assert found.superseded == wanted.superseded
    assert found.stale == wanted.stale
    assert made.load is not None
    assert made.load.switches == len(oracle.load.modes)
    return oracle, found


# -- states, marks, blocks ---------------------------------------------------------------------------------------------


def test_the_states_of_figure_10() -> None:
    made = queue("eager", 4, 4)
    a = ("a",)
    arrive(made, ("a", 0))
    assert waits(made) == [a]  # WAIT
    served = made.serve(9, 0)
    assert served.marks.tolist() == [4]
    assert states(made)[a].processing.idle  # READY, and IDLE because the window has not arrived
    arrive(made, ("b", 1))
    assert made.serve(9, 1).batch is not None
    arrive(made, ("a", 2))
    assert ready(made) == [a]  # doPromote
    arrive(made, ("a", 5))
    assert a in waits(made)  # WAIT and READY at once
    assert a in ready(made)
    served = made.serve(9, 5)
    assert [one[:1] + one[2:] for one in served.finished] == [(1, 0, 4)]
    assert served.marks.tolist() == [-1, 8]
    assert states(made)[a].processing.start_us == 4


def test_windows_end_by_promise_where_tuples_come_in_any_order() -> None:
    for commit in ("lazy", "eager"):
        made = queue(commit, 10, 10, by_tuples=False)
        arrive(made, ("a", 7), ("a", 3), ("a", 9))
        first = made.serve(9, 9)
        assert (first.batch is None) == (commit == "lazy")
        assert not first.finished
        made.promised(9, 10)
        assert not made.serve(9, 10).finished
        made.promised(10, 11)
        last = made.serve(9, 11)
        assert [(one.start_us, one.end_us) for one in last.finished] == [(0, 10)]
        rows = [row for served in (first, last) if served.batch is not None for row in served.batch.ts.tolist()]
        assert rows == [7, 3, 9]
        assert made.superseded == 0


@pytest.mark.parametrize("commit", ["lazy", "eager"])
@given(
    moves=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.integers(0, 4), st.integers(0, 5)), max_size=40
    ),
    size=st.integers(1, 9),
    slide=st.integers(1, 9),
)
def test_windows_of_tuples_in_any_order_are_processed_whole(
    commit: str, moves: list[tuple[str, int, int, int]], size: int, slide: int
) -> None:
    """Each finished window has processed all its tuples that arrived before its end was promised, and no others."""
    made = queue(commit, size, slide, by_tuples=False)
    given: dict[str, list[int]] = {}
    taken: dict[str, list[int]] = {}
    promise = 0
    for now, (key, ahead, step, limit) in enumerate(moves):
        arrive(made, (key, promise + ahead))
        given.setdefault(key, []).append(promise + ahead)
        audit(made)
        promise += step
        made.promised(promise, now)
        audit(made)
        _whole(made.serve(limit, now), given, taken)
        audit(made)
    made.promised(10**6, len(moves))
    _whole(made.serve(10**6, len(moves)), given, taken)
    audit(made)
    assert not made.holds
    assert not any(taken.values())


def _whole(served: ServedTuples, given: dict[str, list[int]], taken: dict[str, list[int]]) -> None:
    rows = [] if served.batch is None else served.batch.rows()
    done = list(served.finished)
    for count in range(len(rows) + 1):
        while done and done[0].rows == count:
            one = done.pop(0)
            (key,) = one.key
            assert taken.pop(key, []) == [at for at in given[key] if one.start_us <= at < one.end_us]
        if count < len(rows):
            taken.setdefault(rows[count][0], []).append(rows[count][1])


def test_starters_are_marked_and_only_the_committed_window_opens() -> None:
    made = queue("lazy", 4, 2, begin=0)
    arrive(made, ("a", 0), ("a", 1), ("a", 2), ("a", 3))
    served = made.serve(9, 3)
    assert served.marks.tolist() == [4, -1, 0, -1]


def test_blocks_go_back_when_windows_are_gone() -> None:
    made = queue("lazy", 6, 6, begin=0)
    for at in range(60):
        arrive(made, ("a", at), ("b", at))
        audit(made)
    assert made.superseded == 18
    assert made.waiting == 12
    served = made.serve(100, 60)
    assert served.batch is not None
    assert served.batch.ts.tolist() == [54, 55, 56, 57, 58, 59] * 2
    assert made.paging.taken == made.paging.in_use == 0
    assert made.paging.returned > 0


@pytest.mark.parametrize(("gap", "cuts"), [(100, False), (400, True)])
def test_a_key_cuts_by_what_a_whole_window_costs(gap: int, cuts: bool) -> None:
    """Section 6.1.2: an update costs its tuples, here ten times 2. With two others in line, 2.5 * 20 * 3 = 150."""
    made = queue("lazy", 100, 100, "linecutting", begin=0)
    made.costs(2)
    for start in range(0, 2_000, 100):
        keys = "fgs" if start % gap == 0 else "fg"
        arrive(made, *((key, start + at) for at in range(0, 100, 10) for key in keys))
        if start < 1_900:
            made.serve(10**6, start + 100)
    arrive(made, ("f", 2_000), ("g", 2_000), ("s", 2_000))
    assert waits(made) == ([("s",), ("f",), ("g",)] if cuts else [("f",), ("g",), ("s",)])


@pytest.mark.parametrize("commit", ["lazy", "eager"])
def test_the_window_of_the_most_urgent_key_goes_first(commit: str) -> None:
    """The greatest (age + 1) / time until the next read: at 13, LAZY, 3 / 2 of c, 1 of b, 11 / 87 of a. EAGER, whose
    windows are updates from their first tuple on, 6 / 2, 10 / 7, 14 / 87."""
    made = queue(commit, 4, 4, "deadline", begin=0)
    made.read_at([Reads(100, 0), Reads(20, 0, (("b",),)), Reads(15, 0, (("c",),))])
    for key, time in zip("abc", (0, 4, 8), strict=True):
        arrive(made, *((key, time + more) for more in range(4)))
    found = made.serve(10**6, 13).batch
    assert found is not None
    assert [row[0] for row in found.rows()] == list("ccccbbbbaaaa")


# -- saved state -------------------------------------------------------------------------------------------------------

# Per key both buffers (blocks, first, count), and 19 numbers: arrivals, turn, processing, freshness, takeable.
SAVED: dict[str, list[list[Any]]] = {
    "lazy": [
        [
            ["a"],
            [[1, 2, 4], 0, 5],
            [[3], 0, 2],
            [4, 6, 6, 5, 2, None, 2, *(5, 5, 2), *(0, True, 1, False), *(0, 3, 5, 0), 6],
        ],
        [
            ["b"],
            [[0], 0, 1],
            [[], 0, 0],
            [1, 5, 5, MIN_TIME, 2, None, 2, *(5, 5, None), *(None, False, MIN_TIME, False), *(None, 5, None, 0), 1],
        ],
    ],
    "eager": [
        [
            ["a"],
            [[3], 0, 1],
            [[0], 0, 2],
            [0, 6, 6, 5, 2, 6, 6, *(4, 6, 2), *(2, True, 3, False), *(2, 3, None, 0), 3],
        ],
        [
            ["b"],
            [[2], 0, 1],
            [[], 0, 0],
            [0, 5, 5, MIN_TIME, 2, 4, 4, *(5, 5, None), *(None, False, MIN_TIME, False), *(None, 5, None, 0), 1],
        ],
    ],
}


@pytest.mark.parametrize("commit", ["lazy", "eager"])
def test_saved_keys_stay_readable(commit: str) -> None:
    made = queue(commit, 4, 2, begin=0)
    arrive(made, *(("a", at) for at in range(4)))
    made.serve(2, 3)
    arrive(made, ("a", 4), ("a", 5), ("b", 5), ("a", 6))
    saved = made.save()
    restored = queue(commit, 4, 2, begin=0)
    restored.restore([SAVED[commit], *saved[1:]])
    assert saved[0] == restored.save()[0]
    for (*found, numbers), (*expected, before) in zip(saved[0], SAVED[commit], strict=True):
        assert found == expected
        # LAZY does not need the second newest time, which it used to save.
        assert numbers == before or (commit == "lazy" and numbers == [*before[:3], MIN_TIME, *before[4:]])
    audit(restored)
    first, second = made.serve(9, 7), restored.serve(9, 7)
    assert first.batch is not None
    assert second.batch is not None
    assert first.batch.rows() == second.batch.rows()
    assert first.finished == second.finished
