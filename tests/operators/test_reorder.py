"""Waiting tuples: the least first, equal times in order of arrival, for any disorder and any batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.operators.frame import reorder as reorder_module
from millrace.operators.frame.reorder import Reorder, Run, least_of_each, merge_by_time
from millrace.protocol import Schema
from millrace.values.batch import Batch
from millrace.values.eventtime import MAX_TIME

V = Schema.of(v="bigint")


@pytest.fixture(autouse=True, params=[(16, 65_536), (0, 65_536), (1, 4)], ids=["usual", "merged at once", "few long"])
def merging(request: pytest.FixtureRequest) -> Iterator[None]:
    """The numbers of short runs and the length of a long one, so that few tuples are merged too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reorder_module, "SHORT_RUNS", request.param[0])
        patch.setattr(reorder_module, "LONG", request.param[1])
        yield


Log = list[list[int]]
logs = st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=6), max_size=12)


def put(reorder: Reorder, times: list[int], first: int) -> None:
    reorder.put(Batch.from_rows(V, [(first + at,) for at in range(len(times))], times))


def taken(found: Batch | None) -> list[tuple[int, int]]:
    return [] if found is None else [(int(time), row[0]) for time, row in zip(found.ts, found.rows(), strict=True)]


@given(logs)
def test_all_at_once_it_is_a_stable_sort(log: Log) -> None:
    reorder = Reorder()
    flat: list[tuple[int, int]] = []
    for times in log:
        put(reorder, times, len(flat))
        flat += [(time, len(flat) + at) for at, time in enumerate(times)]
    assert reorder.count == len(flat)
    assert taken(merge_by_time([reorder], MAX_TIME, 10**6)) == sorted(flat, key=lambda pair: pair[0])
    assert reorder.count == 0
    assert reorder.head_us() is None


@given(logs, st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=12))
def test_takes_between_puts_give_the_least_that_wait(log: Log, takes: list[tuple[int, int]]) -> None:
    """The oracle: a plain list that is sorted again for every take."""
    reorder = Reorder()
    waiting: list[tuple[int, int]] = []
    number = 0
    for times, (through, limit) in zip(log, takes, strict=False):
        put(reorder, times, number)
        waiting += [(time, number + at) for at, time in enumerate(times)]
        number += len(times)
        waiting.sort()
        ready = [pair for pair in waiting if pair[0] <= through][:limit]
        assert taken(merge_by_time([reorder], through, limit)) == ready
        waiting = [pair for pair in waiting if pair not in ready]
        assert reorder.head_us() == (waiting[0][0] if waiting else None)
        assert reorder.count == len(waiting)


@given(st.lists(logs, min_size=1, max_size=4), st.integers(0, 20), st.integers(1, 12))
def test_equal_times_of_several_inputs_come_in_their_order(inputs: list[Log], through: int, limit: int) -> None:
    reorders = []
    flat: list[tuple[int, int, int]] = []
    for which, log in enumerate(inputs):
        reorder = Reorder()
        number = 0
        for times in log:
            put(reorder, times, 1000 * which + number)
            flat += [(time, which, 1000 * which + number + at) for at, time in enumerate(times)]
            number += len(times)
        reorders.append(reorder)
    ready = sorted(triple for triple in flat if triple[0] <= through)
    got: list[tuple[int, int]] = []
    while part := taken(merge_by_time(reorders, through, limit)):
        assert len(part) <= limit
        got += part
    assert got == [(time, value) for time, _, value in ready]


@given(logs)
def test_what_waits_is_saved_and_restored(log: Log) -> None:
    reorder = Reorder()
    number = 0
    for times in log:
        put(reorder, times, number)
        number += len(times)
    merge_by_time([reorder], 10, 3)
    other = Reorder()
    other.restore(reorder.save())
    assert other.count == reorder.count
    assert taken(merge_by_time([other], MAX_TIME, 10**6)) == taken(merge_by_time([reorder], MAX_TIME, 10**6))


@given(st.lists(logs, min_size=1, max_size=3), st.integers(0, 20), st.integers(1, 12))
def test_each_input_s_share_of_the_least_is_what_merging_takes(inputs: list[Log], through: int, limit: int) -> None:
    apart, together = [], []
    number = 0
    for log in inputs:
        apart.append(Reorder())
        together.append(Reorder())
        for times in log:
            put(apart[-1], times, number)
            put(together[-1], times, number)
            number += len(times)
    merged = taken(merge_by_time(together, through, limit))
    shares = [taken(share) for share in least_of_each(apart, [through] * len(inputs), limit)]
    assert sorted((pair for share in shares for pair in share), key=lambda pair: pair[0]) == merged
    assert [reorder.count for reorder in apart] == [reorder.count for reorder in together]


@given(logs, logs, st.integers(0, 20), st.integers(0, 20), st.integers(1, 12))
def test_each_input_is_taken_up_to_its_own_bound(one: Log, other: Log, first: int, second: int, limit: int) -> None:
    reorders = [Reorder(), Reorder()]
    waiting: list[list[int]] = [[], []]
    for at, log in enumerate((one, other)):
        for times in log:
            put(reorders[at], times, 0)
            waiting[at] += times
    ready = sorted(
        [(time, 0) for time in waiting[0] if time <= first] + [(time, 1) for time in waiting[1] if time <= second]
    )[:limit]
    shares = least_of_each(reorders, [first, second], limit)
    for at, share in enumerate(shares):
        assert [time for time, _ in taken(share)] == [time for time, origin in ready if origin == at]


def test_disorder_does_not_make_a_tuple_look_at_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand tuples wait in up to some sixty runs; one that leaves or joins looks at one or two of them."""
    reorder = Reorder()
    times = np.random.default_rng(1).permutation(1_000).tolist()
    for at, time in enumerate(times):
        put(reorder, [time], at)
    looks = 0
    prefix = Run.prefix

    def counted(run: Run, through_us: int, limit: int) -> list[Batch]:
        nonlocal looks
        looks += 1
        return prefix(run, through_us, limit)

    monkeypatch.setattr(Run, "prefix", counted)
    for time in range(1_000):
        assert reorder.head_us() == time
        assert taken(merge_by_time([reorder], time, 10))[0][0] == time
    assert looks <= 2_000


def test_short_runs_are_few_and_a_tuple_is_copied_a_logarithmic_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied = 0

    class Counted(Batch):
        @staticmethod
        def concat(batches: Sequence[Batch]) -> Batch:
            nonlocal copied
            copied += sum(map(len, batches))
            return Batch.concat(batches)

    monkeypatch.setattr(reorder_module, "Batch", Counted)
    monkeypatch.setattr(reorder_module, "SHORT_RUNS", 16)
    reorder = Reorder()
    rng = np.random.default_rng(2)
    for number in range(400):
        put(reorder, rng.integers(0, 10_000, 10).tolist(), number * 10)
        short = [run for run in reorder.runs if run.count < reorder_module.LONG]
        assert len(short) <= 16 + len(reorder.runs) - len(short)
    assert copied <= 4_000 * 12
    assert sum(run.count for run in reorder.runs) == reorder.count == 4_000
