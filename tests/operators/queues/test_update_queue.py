"""The update queue against its oracle, compiled and uncompiled; the paper's figure 6; staleness; optimality."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.papers.ups import gain
from millrace.engine import saving
from millrace.operators.queues import pages, update
from millrace.operators.queues.reads import Reads
from millrace.operators.queues.update import SCHEDULERS, UpdateQueue
from millrace.protocol import Schema
from millrace.values.batch import Batch, column_from
from tests.depth import examples
from tests.kernels import installed, uncompiled
from tests.operators.queues.auditing import audit_tuples, held_texts, mean_gaps
from tests.oracles.update_queues import DeadlineOracle, QueueOracle, least_expected_staleness, simulate

SCHEMA = Schema.of(k="text", v="bigint")
KERNELS = [installed("queues"), uncompiled("queues")]


@pytest.fixture(params=KERNELS, ids=["installed", "uncompiled"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(update, "updating", request.param)
    monkeypatch.setattr(pages, "updating", request.param)
    return request.param


def batch_of(rows: Sequence[tuple[Any, int, int]], arrivals: Sequence[int]) -> Batch:
    """Rows of (key, time, value)."""
    columns = [column_from(field.type, [row[at] for row in rows]) for field, at in zip(SCHEMA, (0, 2), strict=True)]
    ts = np.array([row[1] for row in rows], np.int64)
    values, valid = [one for one, _ in columns], [mask for _, mask in columns]
    return Batch(SCHEMA, ts, values, valid, np.array(arrivals, np.int64))


def queue(policy: str, *, cost: float = 0.0, slots: int = 4) -> UpdateQueue:
    assert policy in SCHEDULERS
    made = UpdateQueue(SCHEMA, (0,), policy, slots=slots)
    made.costs(cost)
    return made


def served(found: Batch | None) -> list[tuple[Any, int, int]]:
    if found is None:
        return []
    return [(key, ts, value) for (key, value), ts in zip(found.rows(), found.ts.tolist(), strict=True)]


# -- the paper's examples ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("fifo", ["SUN1", "MSFT1", "IBM2"]),
        ("inplace", ["IBM2", "SUN1", "MSFT1"]),
        ("linecutting", ["IBM2", "SUN1", "MSFT1"]),
    ],
)
def test_figure_6(kernel: ModuleType, policy: str, order: list[str]) -> None:
    schema = Schema.of(key="text", id="text")
    made = UpdateQueue(schema, (0,), policy)  # type: ignore[arg-type]
    for at, row in enumerate([("IBM", "IBM1"), ("SUN", "SUN1"), ("MSFT", "MSFT1"), ("IBM", "IBM2")]):
        made.enqueue(Batch.from_rows(schema, [row], [at], at), at)
    found = made.dequeue(9, 4)
    assert found is not None
    assert [row[1] for row in found.rows()] == order
    assert made.superseded == 1
    assert made.waiting == 0


def test_a_key_that_updates_seldom_cuts_the_line(kernel: ModuleType) -> None:
    made = queue("linecutting", cost=10)
    for at in (0, 1000):
        made.enqueue(batch_of([("slow", at, 0)], [at]), at)
        made.dequeue(9, at)
    made.enqueue(batch_of([("a", 1, 1), ("b", 1, 2)], [1001, 1002]), 1002)
    # 1 / u = 1000: more than twice the 3 * 10 that serving the others and one more takes.
    made.enqueue(batch_of([("slow", 2000, 3)], [2000]), 2000)
    assert [row[0] for row in served(made.dequeue(9, 2000))] == ["slow", "a", "b"]


@pytest.mark.parametrize("speed", [50, 10])
def test_keys_that_cut_the_line_leave_room_for_the_others(speed: int) -> None:
    """Figure 9 (UPS): LINECUTTING gains with slow keys, and is not behind IN-PLACE where most keys are slow either."""
    gains = {slow: gain(8_000, 5, speed, slow) for slow in (4, 7, 8, 9)}
    assert min(gains.values()) > 0.95, gains
    assert speed < 50 or gains[8] > 1.15


def test_an_older_tuple_that_comes_later_is_superseded_at_once(kernel: ModuleType) -> None:
    made = queue("inplace")
    made.enqueue(batch_of([("a", 10, 1), ("a", 7, 2), ("b", 3, 3)], [0, 1, 2]), 2)
    assert made.superseded == 1
    assert served(made.dequeue(1, 3)) == [("a", 10, 1)]
    made.enqueue(batch_of([("a", 9, 4)], [4]), 4)  # served long ago, and still newer
    assert made.superseded == 2
    assert served(made.dequeue(9, 5)) == [("b", 3, 3)]
    made.enqueue(batch_of([("a", 10, 5)], [6]), 6)  # of two at one time the later arrival
    assert served(made.dequeue(9, 7)) == [("a", 10, 5)]


# -- against the oracle ------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", "c", "d", "e", None])
ROWS = st.tuples(KEYS, st.integers(0, 9), st.integers(0, 99))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("in"), st.lists(ROWS, min_size=1, max_size=6), st.integers(0, 30)),
        st.tuples(st.just("out"), st.integers(1, 4)),
        st.just(("save",)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("policy", SCHEDULERS)
@given(steps=STEPS, cost=st.integers(0, 20))
@settings(max_examples=examples(60))
@example(steps=[("in", [("a", 1, 1), ("b", 1, 2), ("a", 1, 3)], 0), ("out", 1)], cost=0)
def test_agrees_with_the_oracle(policy: str, steps: list[Any], cost: int) -> None:
    for kernel in KERNELS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(update, "updating", kernel)
            patch.setattr(pages, "updating", kernel)
            run_both(policy, steps, cost)


def run_both(policy: str, steps: list[Any], cost: int) -> None:
    made, wanted = queue(policy, cost=cost), QueueOracle(policy, cost)
    now = 0
    for step in steps:
        match step:
            case ("in", rows, wait):
                now += wait
                made.enqueue(batch_of(rows, [now] * len(rows)), now)
                for key, time, value in rows:
                    wanted.enqueue(key, time, value, now)
            case ("out", count):
                expected = [wanted.dequeue() for _ in range(min(count, len(wanted.line)))]
                assert served(made.dequeue(count, now)) == expected
            case _:
                saved = saving.pack(made.save())
                made = queue("fifo")
                made.restore(saving.unpack(saved))
                assert saving.pack(made.save()) == saved
        audit_tuples(made)
        assert made.waiting == len(wanted.line)
        assert made.superseded == wanted.superseded
        assert {key: gap for (key,), gap in mean_gaps(made).items()} == wanted.mean_gap
        if wanted.pending:
            assert made.floor_us() <= min(pending.newest[1] for pending in wanted.pending.values())
    assert served(made.drain()) == [wanted.dequeue() for _ in list(wanted.line)]
    audit_tuples(made)


@pytest.mark.parametrize("policy", SCHEDULERS)
@given(rows=st.lists(ROWS, max_size=40), cut=st.integers(1, 40))
def test_how_tuples_are_cut_into_batches_does_not_show(policy: str, rows: list[Any], cut: int) -> None:
    one, many = queue(policy, cost=3), queue(policy, cost=3)
    arrivals = list(range(0, 5 * len(rows), 5))
    for at in range(0, len(rows), cut):
        one.enqueue(batch_of(rows[at : at + cut], arrivals[at : at + cut]), arrivals[-1])
    for row, at in zip(rows, arrivals, strict=True):
        many.enqueue(batch_of([row], [at]), arrivals[-1])
    assert served(one.dequeue(100, 500)) == served(many.dequeue(100, 500))
    assert one.superseded == many.superseded


def test_the_floor_reaches_the_least_that_waits() -> None:
    made = queue("inplace")
    made.enqueue(batch_of([("a", 5, 0), ("b", 9, 0), ("c", 7, 0)], [0, 0, 0]), 0)
    assert made.floor_us() == 5
    made.dequeue(1, 0)
    made.tighten()
    assert made.floor_us() == 7
    made.enqueue(batch_of([("c", 8, 0)], [1]), 1)
    made.dequeue(1, 1)
    made.tighten()
    assert made.floor_us() == 8


# -- pages -------------------------------------------------------------------------------------------------------------


def test_pages_come_when_needed_and_go_back_when_empty(kernel: ModuleType) -> None:
    made = queue("fifo")
    many = [(str(at), at, at) for at in range(1000)]
    made.enqueue(batch_of(many, [0] * 1000), 0)
    assert (made.paging.taken, made.paging.in_use) == (250, 1000)
    assert served(made.dequeue(998, 1)) == many[:998]
    assert (made.paging.taken, made.paging.in_use, made.paging.returned) == (1, 2, 249)
    assert made.paging.free < 250  # the memory of unneeded pages is freed, not retained in the pool
    made.enqueue(batch_of(many, [2] * 1000), 2)
    audit_tuples(made)
    assert sorted(served(made.dequeue(2000, 3))) == sorted(many)
    assert made.paging.taken == 0


def test_a_freed_location_is_used_before_a_new_page(kernel: ModuleType) -> None:
    made = queue("inplace")
    made.enqueue(batch_of([(str(at), at, at) for at in range(8)], [0] * 8), 0)
    made.dequeue(3, 0)
    made.enqueue(batch_of([(str(at), at, at) for at in range(20, 23)], [0] * 3), 0)
    assert (made.paging.taken, made.paging.in_use) == (2, 8)


def test_texts_do_not_outlive_their_tuples() -> None:
    made = queue("inplace")
    made.enqueue(batch_of([("x", 1, 1), ("y", 1, 1)], [0, 0]), 0)
    made.dequeue(2, 0)
    assert held_texts(made) == {""}


def test_an_endless_supply_of_new_keys_does_not_grow_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "REMEMBERED", 64)
    made = queue("linecutting", cost=1)
    for at in range(200):
        made.promised(at, at)
        made.enqueue(batch_of([(f"{at}.{n}", at, n) for n in range(5)] + [("always", at, at)], [at] * 6), at)
        if at % 3 == 0:
            made.dequeue(100, at)
        audit_tuples(made)
    assert made.keys < 300
    assert mean_gaps(made)[("always",)] == 1  # keys with updates keep their rates


def test_a_queue_without_keys_keeps_one_tuple() -> None:
    made = UpdateQueue(SCHEMA, (), "inplace")
    made.enqueue(batch_of([("a", 1, 1), ("b", 2, 2), ("c", 3, 3)], [0, 0, 0]), 0)
    assert served(made.dequeue(9, 0)) == [("c", 3, 3)]
    assert made.superseded == 2


# -- staleness ---------------------------------------------------------------------------------------------------------

ARRIVALS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc")), min_size=1, max_size=14)


def spaced(gaps: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    found, now = [], 0
    for gap, key in gaps:
        now += gap
        found.append((now, key))
    return found


@pytest.mark.parametrize("policy", SCHEDULERS)
@given(gaps=ARRIVALS, cost=st.integers(1, 4))
@settings(max_examples=examples(60))
def test_staleness_is_what_ticks_add_up_to(policy: str, gaps: list[tuple[int, str]], cost: int) -> None:
    arrivals = spaced(gaps)
    horizon = arrivals[-1][0] + 30
    wanted = simulate(policy, arrivals, cost, horizon)
    made = queue(policy, cost=cost)
    made.timed = True
    left = list(arrivals)
    order = []
    now, free = 0, 0
    while now < horizon:
        while left and left[0][0] <= now:
            at, key = left.pop(0)
            made.enqueue(batch_of([(key, at, len(left))], [at]), at)
        if now >= free and made.waiting:
            order += [(now, update) for update in served(made.dequeue(1, now))]
            made.measured(cost, now)
            free = now + cost
        now += 1
    assert order == wanted.served
    found = made.staleness(horizon)
    first = arrivals[0][0]
    assert found.queue_mean_us * _key_time(arrivals, horizon) == pytest.approx(sum(wanted.queue.values()), abs=1e-6)
    assert found.application_mean_us * _key_time(arrivals, horizon) == pytest.approx(
        sum(wanted.application.values()), abs=1e-6
    )
    assert {key[0]: area for key, area in made.mean_by_key(horizon).items()} == pytest.approx(wanted.queue)
    assert sum(found.queue_histogram) == sum(found.application_histogram) == len(order)
    assert first >= 0


def _key_time(arrivals: Sequence[tuple[int, str]], horizon: int) -> int:
    """The total time for which the keys have been known."""
    first: dict[str, int] = {}
    for at, key in arrivals:
        first.setdefault(key, at)
    return sum(horizon - at for at in first.values())


def test_the_worst_keys_are_those_that_have_waited_longest() -> None:
    made = queue("inplace")
    made.enqueue(batch_of([("a", 1, 1), ("b", 1, 1), ("c", 1, 1)], [10, 20, 30]), 30)
    made.enqueue(batch_of([("a", 2, 2)], [35]), 35)
    found = made.staleness(40, worst=2)
    assert found.worst == [(("a",), 30), (("b",), 20)]
    assert found.oldest_us == 30


@pytest.mark.parametrize(("keys", "cost", "horizon"), [(2, 2, 14), (2, 3, 15), (3, 2, 12), (3, 1, 8), (4, 2, 8)])
def test_in_place_is_optimal_when_all_keys_update_alike(keys: int, cost: int, horizon: int) -> None:
    """No way of choosing the next key has a lower expected staleness than the one pending longest (section 5.2)."""
    oldest_first = least_expected_staleness(keys, cost, horizon, free=False)
    assert oldest_first == least_expected_staleness(keys, cost, horizon, free=True)


@given(gaps=ARRIVALS, cost=st.integers(1, 4))
def test_in_place_serves_the_key_that_has_been_pending_longest(gaps: list[tuple[int, str]], cost: int) -> None:
    arrivals = spaced(gaps)
    found = simulate("inplace", arrivals, cost, arrivals[-1][0] + 40)
    last: dict[str, int] = {}
    for now, (key, _, _) in found.served:
        # An arrival at the instant of a service before it went with that one only if it had been taken in by then.
        pending = {
            other: min(at for at, name in arrivals if name == other and last.get(other, -1) < at <= now)
            for other in "abc"
            if any(name == other and last.get(other, -1) < at <= now for at, name in arrivals)
        }
        assert pending[key] == min(pending.values())
        last[key] = now


# -- readers -----------------------------------------------------------------------------------------------------------

READERS = st.lists(
    st.tuples(
        st.integers(1, 60), st.integers(0, 40), st.one_of(st.none(), st.lists(st.sampled_from("abcd"), max_size=3))
    ),
    max_size=4,
)
READING = st.lists(
    st.one_of(
        st.tuples(st.just("in"), st.lists(ROWS, min_size=1, max_size=6), st.integers(0, 30)),
        st.tuples(st.just("out"), st.integers(1, 4)),
        st.tuples(st.just("read"), READERS),
    ),
    max_size=30,
)


@given(steps=READING, cost=st.integers(0, 9), readers=READERS)
@settings(max_examples=examples(200))
def test_the_most_urgent_key_is_served_first(steps: list[Any], cost: int, readers: Any) -> None:
    for kernel in KERNELS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(update, "updating", kernel)
            patch.setattr(pages, "updating", kernel)
            read_both([("read", readers), *steps], cost)


@pytest.mark.parametrize("seed", range(5))
def test_long_runs_serve_in_the_same_order(seed: int) -> None:
    """Many keys of many ages and readers: age, interval and price each decide somewhere."""
    rng = random.Random(seed)
    readers = [(rng.randint(3, 90), rng.randint(0, 40), rng.sample("abcde", 2)) for _ in range(5)]
    steps: list[Any] = [("read", readers)]
    for at in range(150):
        rows = [(rng.choice("abcdef"), at, at) for _ in range(rng.randint(1, 4))]
        steps += [("in", rows, rng.randint(0, 9)), ("out", rng.randint(1, 2))]
    read_both(steps, rng.randint(3, 9))


def read_both(steps: list[Any], cost: int) -> None:
    made, wanted = queue("deadline", cost=cost), DeadlineOracle("inplace", cost)
    now = 0
    for step in steps:
        match step:
            case "in", rows, passed:
                now += passed
                made.enqueue(batch_of(rows, [now] * len(rows)), now)
                for key, time, value in rows:
                    wanted.enqueue(key, time, value, now)
            case "out", limit:
                for _ in range(limit):  # one after the other: several at once are chosen together
                    expected = [wanted.serve(now)] if wanted.line else []
                    assert served(made.dequeue(1, now)) == expected
            case "read", readers:
                made.read_at([
                    Reads(interval, since, None if keys is None else tuple((key,) for key in keys))
                    for interval, since, keys in readers
                ])  # fmt: skip
                wanted.readers = readers
        audit_tuples(made)
    assert made.waiting == len(wanted.line)


def test_several_at_once_are_the_most_urgent_in_order() -> None:
    for count in (1, 2, 5, 9):
        made, alone = queue("deadline"), queue("deadline")
        for one in (made, alone):
            one.read_at([Reads(50, 0, (("c",), ("e",))), Reads(70, 0, (("b",),)), Reads(900, 3)])
            one.enqueue(batch_of([(key, 1, 1) for key in "abcdefg"], range(10, 17)), 17)
        together = served(made.dequeue(count, 40))
        assert together == [row for _ in range(count) for row in served(alone.dequeue(1, 40))]
        assert [row[0] for row in together][:3] == ["c", "e", "b"][:count]


def test_without_readers_the_keys_keep_their_places() -> None:
    made = queue("deadline")
    made.enqueue(batch_of([("a", 1, 1), ("b", 1, 2), ("a", 2, 3)], [0, 1, 2]), 2)
    assert [row[0] for row in served(made.dequeue(9, 3))] == ["a", "b"]
    made.read_at([Reads(5, 0, (("b",),))])
    made.reschedule("inplace")
    made.enqueue(batch_of([("a", 3, 1), ("b", 3, 2)], [5, 5]), 5)
    assert [row[0] for row in served(made.dequeue(9, 9))] == ["a", "b"]
