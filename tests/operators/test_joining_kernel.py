"""The loops that find matching tuples, compared with all pairs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.values.batch import Int64s
from tests.depth import examples
from tests.kernels import both_ways

tuples = st.lists(st.tuples(st.integers(0, 3), st.integers(-20, 20), st.booleans()), max_size=20)


def int64(values: Any) -> Int64s:
    found: Int64s = np.array(list(values), np.int64)
    return found


@both_ways("join")
@settings(deadline=None, max_examples=examples(200))
@given(
    stored=tuples,
    new=tuples,
    below=st.integers(-5, 20),
    above=st.integers(-5, 20),
    shift=st.sampled_from([0, 1, 3, 63]),
    places=st.sampled_from([1, 4, 64]),
    cut=st.integers(0, 20),
    least=st.integers(0, 5),
    room=st.integers(0, 40),
    alike=st.booleans(),
    part=st.integers(1, 25),
    bit=st.integers(-1, 7),
)
def test_probe_finds_what_looking_at_every_pair_finds(
    kernel: ModuleType,
    stored: Any,
    new: Any,
    below: int,
    above: int,
    shift: int,
    places: int,
    cut: int,
    least: int,
    room: int,
    alike: bool,
    part: int,
    bit: int,
) -> None:
    if bit >= 0:
        # Segments share a sieve only if all their times are in bucket 0.
        shift, stored = 63, [(key, abs(time), marked) for key, time, marked in stored]
    keys, ts = int64(key for key, _, _ in stored), int64(time for _, time, _ in stored)
    unlinked = np.array([marked for _, _, marked in stored], np.uint8)
    table, sieve, links = np.zeros(places, np.int32), np.zeros(4 * places, np.uint8), np.zeros(len(stored), np.int32)
    if bit >= 0:
        sieve[:] = 255 - (1 << bit)  # others have marked everything
    cut = min(cut, len(stored))
    finder = kernel.Finder(keys, ts, table, sieve, links, shift, bit)
    finder.link(unlinked, 0, cut)
    finder.link(unlinked, cut, len(stored))
    first, last = (int(ts.min()), int(ts.max())) if stored else (1, 0)
    wanted = [
        (row, slot)
        for row, (key, time, _) in enumerate(new)
        for slot, (other, at, marked) in enumerate(stored)
        if key == other and time - below <= at <= time + above and not marked and slot >= least
    ]
    pairs = np.empty((2, room), np.int64)
    new_keys, new_ts = int64(key for key, _, _ in new), int64(time for _, time, _ in new)
    high = None if alike else new_ts
    hints = np.zeros(len(new), np.uint8)
    if bit >= 0:
        kernel.sift(new_keys, 0, len(new), sieve, hints)
    stop, count = finder.probe(
        new_keys, new_ts, high, below, above, 0, len(new), first, last, least, hints, np.empty((3, part), np.int32),
        pairs, 0,
    )  # fmt: skip
    found = list(zip(*pairs[:, :count].tolist(), strict=True))
    assert sorted(found) == [pair for pair in wanted if pair[0] < stop]
    assert [row for row, _ in found] == sorted(row for row, _ in found)
    if shift == 63:
        # All times of one sign are in one bucket, in which tuples are found in order of arrival.
        for row in range(stop):
            later = [slot for at, slot in found if at == row and ts[slot] >= 0]
            assert later == sorted(later)
    if stop < len(new):
        assert len([pair for pair in wanted if pair[0] <= stop]) > room, "there was room for the row's pairs"


@both_ways("join")
def test_a_row_goes_on_where_an_earlier_call_stopped(kernel: ModuleType) -> None:
    keys, ts = int64([1, 1, 1]), int64([0, 0, 0])
    table, sieve, links = np.zeros(8, np.int32), np.zeros(8, np.uint8), np.zeros(3, np.int32)
    finder = kernel.Finder(keys, ts, table, sieve, links, 4, -1)
    finder.link(None, 0, 3)
    pairs, hints, work = np.empty((2, 7), np.int64), np.empty(0, np.uint8), np.empty((3, 2), np.int32)
    stop, count = finder.probe(keys, ts, None, 0, 0, 0, 3, 0, 0, 0, hints, work, pairs, 0)
    assert (stop, count) == (2, 6), "the third row's pairs do not fit"
    stop, count = finder.probe(keys, ts, None, 0, 0, 2, 3, 0, 0, 0, hints, work, pairs, 0)
    assert (stop, count) == (3, 3)
    assert pairs[:, :3].tolist() == [[2, 2, 2], [0, 1, 2]]


@both_ways("join")
def test_fold_tells_rows_apart_and_depends_on_the_order_of_columns(kernel: ModuleType) -> None:
    columns = [int64([1, 2, 1, -1]), int64([2, 1, 2, 2**63 - 1])]
    states = np.zeros(4, np.int64)
    kernel.fold(states, columns)
    assert states[0] == states[2]
    assert len(set(states.tolist())) == 3
    other = np.zeros(4, np.int64)
    kernel.fold(other, columns[::-1])
    assert other[0] == states[1]
    assert other[0] != states[0]


def test_both_ways_hash_alike() -> None:
    from tests.kernels import installed, uncompiled

    columns = [int64([0, 1, -1, 2**63 - 1, -(2**63)]), int64([5, -5, 0, -(2**63), 7])]
    one, other = np.zeros(5, np.int64), np.zeros(5, np.int64)
    installed("join").fold(one, columns)
    uncompiled("join").fold(other, columns)
    assert one.tolist() == other.tolist()


@both_ways("join")
@settings(deadline=None, max_examples=examples(200))
@given(
    stored=tuples,
    key=st.integers(0, 3),
    begin=st.integers(-30, 30),
    end=st.integers(-30, 30),
    shift=st.sampled_from([0, 1, 3, 63]),
    before=st.integers(0, 3),
    room=st.integers(0, 24),
)
def test_a_finder_finds_what_it_was_given_and_what_was_there(
    kernel: ModuleType, stored: Any, key: int, begin: int, end: int, shift: int, before: int, room: int
) -> None:
    keys, ts = np.zeros(len(stored), np.int64), np.zeros(len(stored), np.int64)
    table, sieve, links = np.zeros(16, np.int32), np.zeros(16, np.uint8), np.zeros(len(stored), np.int32)
    finder = kernel.Finder(keys, ts, table, sieve, links, shift, -1)
    half = len(stored) // 2
    for slot, (other, time, _) in enumerate(stored[:half]):
        finder.put(slot, other, time)
    keys[half:], ts[half:] = [other for other, _, _ in stored[half:]], [time for _, time, _ in stored[half:]]
    finder.link(None, half, len(stored))
    first, last = (int(ts.min()), int(ts.max())) if stored else (1, 0)
    wanted = [slot for slot, (other, time, _) in enumerate(stored) if other == key and begin <= time <= end]
    slots = np.full(room, -7, np.int64)
    count = finder.find(key, begin, end, first, last, slots, min(before, room))
    if len(wanted) > room - min(before, room):
        assert count == -1
    else:
        assert sorted(slots[min(before, room) : count].tolist()) == wanted
        assert (slots[: min(before, room)] == -7).all()


@both_ways("join")
def test_a_row_has_the_hash_that_it_has_among_others(kernel: ModuleType) -> None:
    columns = tuple(int64([value, 9]) for value in (2**63 - 1, -1, 0, -(2**63)))
    states = np.zeros(2, np.int64)
    kernel.fold(states, [columns[3], columns[0], columns[1]])
    assert kernel.fold_row(columns, (3, 0, 1)) == states[0]
