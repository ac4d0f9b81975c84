"""The queue that chooses against its oracle: which tuples are superseded, and when the load turns it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.operators.queues import load
from millrace.operators.queues.auto import AutoQueue
from millrace.protocol import Schema
from millrace.values.batch import Batch
from tests.depth import examples
from tests.operators.queues.auditing import audit_tuples
from tests.oracles.update_queues import AutoOracle, LoadOracle

SCHEMA = Schema.of(k="bigint", v="bigint")
ENOUGH = 3
SECOND = 1_000_000


@pytest.fixture(autouse=True, scope="module")
def few_services_are_enough() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "SERVED", ENOUGH)
        yield


def batch_of(rows: list[tuple[int, int, int]], now: int) -> Batch:
    """Rows of (key, time, value)."""
    return Batch.from_rows(SCHEMA, [(key, value) for key, _, value in rows], [ts for _, ts, _ in rows], now)


def served(found: Batch | None) -> list[tuple[int, int, int]]:
    if found is None:
        return []
    return [(key, ts, value) for (key, value), ts in zip(found.rows(), found.ts.tolist(), strict=True)]


# -- against the oracle ------------------------------------------------------------------------------------------------

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 99)), min_size=1, max_size=9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("in"), ROWS, st.sampled_from([0, 200_000, 500_000, SECOND])),
        st.tuples(st.just("out"), st.integers(1, 8)),
        st.just(("save",)),
        st.just(("short",)),
        st.tuples(st.just("rest"), st.sampled_from([SECOND, 5 * SECOND])),
    ),
    max_size=60,
)


@given(steps=STEPS, overloaded=st.booleans())
@settings(max_examples=examples(200))
def test_agrees_with_the_oracle(steps: list[Any], overloaded: bool) -> None:
    play(seconds(2, arrive=20, serve=10) + steps if overloaded else steps)


def test_a_pause_in_arrivals_counts_as_calm_and_is_saved() -> None:
    few: list[Any] = [("out", 99), ("rest", SECOND), ("in", [(1, 0, 1)], 0), ("save",)]
    busy = seconds(3, arrive=40, serve=10, keys=30)
    assert play(busy)[0].load.mode == play(busy + few * 2)[0].load.mode == "update"
    assert play(busy + few * 4)[0].load.mode == "append"
    assert play([*busy, *few, *few[:1], ("rest", 9 * SECOND), *few])[0].load.mode == "append"


def play(steps: list[Any]) -> tuple[AutoQueue, AutoOracle]:
    made, wanted = AutoQueue(SCHEMA, (0,)), AutoOracle(LoadOracle(enough=ENOUGH))
    now, said = 10 * SECOND, []
    wanted.load.start = -SECOND
    for step in steps:
        match step:
            case "in", rows, passed:
                now += passed
                rows = [(key, now + ts, value) for key, ts, value in rows]
                made.enqueue(batch_of(rows, now), now)
                wanted.enqueue(rows, now)
            case "out", limit:
                assert served(made.dequeue(limit, now)) == wanted.dequeue(limit, now)
            case "rest", passed:
                now += passed
            case ("short",):
                if not made.bounded:
                    made.supersede(now)
                    then = wanted.load.superseded_then
                    wanted.load.turn()
                    wanted.turn("append", now)
                    wanted.load.superseded_then = then  # the span continues
            case _:
                other = AutoQueue(SCHEMA, (0,))
                other.restore(made.save())
                assert (other.load.switches, other.load.last) == (made.load.switches, made.load.last)
                made = other
        if made.load.untold is not None:
            said.append(made.load.untold.mode)
            made.load.untold = None
        assert (made.load.mode, made.waiting, made.superseded) == (wanted.load.mode, wanted.waiting, wanted.superseded)
        assert made.bounded == (made.load.mode == "update")
        if made.load.mode == "update":
            audit_tuples(made._queue)  # type: ignore[arg-type]
    assert said == wanted.load.modes
    return made, wanted


def seconds(count: int, arrive: int, serve: int, keys: int = 4) -> list[Any]:
    """So many seconds, in tenths: so many tuples arrive, and so many can be served."""
    rows = [(at % keys, 0, at) for at in range(arrive)]
    return [one for _ in range(10 * count) for one in (("in", rows, SECOND // 10), ("out", serve))]


def test_it_supersedes_while_memory_is_short_and_returns_when_it_has_room() -> None:
    short: list[Any] = [("in", [(1, 0, at) for at in range(40)], 0), ("short",)]
    made, _ = play(short)
    assert (made.load.mode, made.waiting, made.superseded) == ("update", 1, 39)
    made, _ = play(short + seconds(6, arrive=5, serve=10))
    assert (made.load.mode, made.load.switches) == ("append", 2)


def test_a_state_of_an_earlier_version_says_nothing_of_costs() -> None:
    made, _ = play(seconds(3, arrive=20, serve=10))
    modes, span, queue = made.save()
    other = AutoQueue(SCHEMA, (0,))
    other.restore([modes, span[:-1], queue])
    assert (other.save()[:2], other.waiting) == (made.save()[:2], made.waiting)


def test_it_turns_under_overload_and_back_and_the_load_says_why() -> None:
    made, _ = play(seconds(5, arrive=5, serve=10))
    assert (made.load.mode, made.load.switches, made.superseded) == ("append", 0, 0)
    made, _ = play(seconds(5, arrive=40, serve=10, keys=30))
    assert (made.load.mode, made.load.switches) == ("update", 1)
    assert made.superseded > 500
    assert made.load.last is not None
    assert [made.load.last.arrived, made.load.last.capacity, made.load.last.load] == pytest.approx([400, 100, 4])
    made, _ = play(seconds(5, arrive=40, serve=10, keys=30) + seconds(6, arrive=7, serve=10))
    assert (made.load.mode, made.load.switches) == ("append", 2)
    assert made.load.last is not None
    assert made.load.last.load == pytest.approx(0.7, abs=0.05)


def test_a_load_between_the_two_thresholds_changes_nothing() -> None:
    above, between = seconds(4, arrive=20, serve=10, keys=12), seconds(4, arrive=8, serve=10)
    assert play(between)[0].load.mode == "append"
    assert play(above + between)[0].load.mode == "update"


def test_a_burst_that_the_reader_works_off_is_no_overload() -> None:
    burst = [("in", [(1, 0, at) for at in range(9)], 0)] * 40
    made, _ = play([*burst, *seconds(8, arrive=4, serve=9)])
    assert (made.load.mode, made.load.switches, made.superseded) == ("append", 0, 0)


def test_a_reader_that_waits_for_another_input_is_not_overloaded() -> None:
    made, _ = play([("in", [(1, 0, 1)], SECOND // 10)] * 50)
    assert (made.load.mode, made.superseded) == ("append", 0)


def test_a_feed_that_waits_for_credit_does_not_hide_the_overload() -> None:
    """It sends as many tuples as are served, and the queue is never empty."""
    made, _ = play([("in", [(at, 0, at) for at in range(9)], 0)] * 4 + seconds(4, arrive=10, serve=10))
    assert made.load.mode == "update"


def test_a_lasting_overload_is_measured_again_now_and_then() -> None:
    """Where superseding leaves so few keys that the queue empties, what could be served is not seen any more."""
    _, wanted = play(seconds(75, arrive=20, serve=10, keys=8))
    assert wanted.load.modes == ["update", "append", "update"]
    assert play(seconds(75, arrive=20, serve=10, keys=12))[1].load.modes == ["update"]


def test_where_hardly_anything_is_superseded_it_appends_again_whatever_the_capacity_was() -> None:
    """The price of a tuple has fallen, not the rate."""
    above = seconds(4, arrive=20, serve=10, keys=12)
    assert play(above + seconds(5, arrive=20, serve=30, keys=20))[0].load.mode == "append"
    assert play(above + seconds(5, arrive=20, serve=30, keys=9))[0].load.mode == "update"


def test_an_execution_takes_few_tuples_where_they_are_dear() -> None:
    """If it took all, the queue would be empty after each execution, and no overload could be seen."""
    made = AutoQueue(SCHEMA, (0,))
    made.enqueue(batch_of([(at, 0, at) for at in range(100)], 0), 0)
    for cost, count in ((0, 20), (1, 20), (10_000, 10), (40_000, 2), (10_000_000, 1)):
        made.costs(cost)
        assert len(served(made.dequeue(20, 0))) == count
        other = AutoQueue(SCHEMA, (0,))
        other.restore(made.save())
        made = other
