"""The stored rows of a join's input, compared with a list of rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.operators.join import segments
from millrace.operators.join.segments import SegmentStore, Shape, Strip
from millrace.protocol import Type
from millrace.values.batch import Int64s
from tests.depth import examples

SPAN = 10
rows = st.lists(st.tuples(st.integers(0, 5), st.integers(-60, 60)), min_size=1, max_size=60)


def int64(values: Any) -> Int64s:
    found: Int64s = np.array(list(values), np.int64)
    return found


@settings(deadline=None, max_examples=examples(200))
@given(
    stored=rows,
    new=rows,
    ordered=st.booleans(),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    floor=st.integers(-70, 70),
    largest=st.sampled_from([1, 2, 4, 262_144]),
    many=st.sampled_from([1, 8, 65_536]),
    resumed=st.booleans(),
)
def test_finds_what_was_stored(
    stored: list[tuple[int, int]],
    new: list[tuple[int, int]],
    ordered: bool,
    cuts: list[int],
    floor: int,
    largest: int,
    many: int,
    resumed: bool,
) -> None:
    if ordered:
        stored = sorted(stored, key=lambda row: row[1])
    with pytest.MonkeyPatch.context() as monkeypatch:
        limits = {"LARGEST": largest, "MANY": many, "ENOUGH": 2, "SMALLEST": 2, "FEW": 1, "TOGETHER": 4, "FEW_PAIRS": 2}
        for name, value in limits.items():
            monkeypatch.setattr(segments, name, value)
        shape = Shape((Type.BIGINT, Type.DOUBLE), ((0,),), SPAN, 4)
        store = SegmentStore(shape)
        for start, stop in pairwise(sorted({0, len(stored), *(min(cut, len(stored)) for cut in cuts)})):
            keys, ts = int64(key for key, _ in stored[start:stop]), int64(time for _, time in stored[start:stop])
            numbers = np.arange(start, stop)
            strip = Strip(ts, numbers, [keys, numbers * 1.5], [None, None])
            store.put(strip, int(ts.min()), int(ts.max()), [keys])
        store.expire(floor)
        if resumed:
            saved = store.save()
            store = SegmentStore(shape)
            store.restore(saved)
        new_keys, new_ts = int64(key for key, _ in new), int64(time for _, time in new)
        found: list[tuple[int, int, int, int]] = []
        start = 0
        while start < len(new):
            pairs = store.probe(0, new_keys, new_ts, None, 5, 4, start, len(new))
            if len(pairs.rows):
                strip = pairs.strip([0, 1], 2)
                assert (strip.columns[1] == strip.arrival * 1.5).all()
                found += zip(
                    pairs.rows.tolist(), strip.arrival.tolist(), strip.columns[0].tolist(), strip.ts.tolist(),
                    strict=True,
                )  # fmt: skip
            start = pairs.stop
        # A row below the floor may be there still: nothing asks for it.
        assert sorted(pair for pair in found if pair[3] >= floor) == [
            (row, number, other, at)
            for row, (key, time) in enumerate(new)
            for number, (other, at) in enumerate(stored)
            if key == other and time - 5 <= at <= time + 4 and at >= floor
        ]
        alone = store.probe_row(new[0][0], new[0][1] - 5, new[0][1] + 4)
        slots = [] if alone is None else alone.strip([], 2).arrival.tolist()
        assert sorted(slots) == sorted(number for row, number, _, _ in found if row == 0)


@pytest.mark.parametrize("behind", [0, 350])
@pytest.mark.parametrize("each", [40, 90])
def test_a_dense_store_retains_little_more_than_it_needs(behind: int, each: int) -> None:
    """Rows come in order, or two of three late by `behind`. What is over takes at most an eighth of a span, and room
    that no row uses as little."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in {"MANY": 4096, "ENOUGH": 256, "TOGETHER": 64}.items():
            monkeypatch.setattr(segments, name, value)
        span = 240
        part = span // segments.PARTS * 3 * each
        store = SegmentStore(Shape((Type.BIGINT,), ((0,),), span, 8))
        live = int64([])
        for now in range(12 * span):
            ts = np.repeat(int64([now, now - behind, now - behind]), each)
            ts = ts[ts >= 0]
            store.put(Strip(ts, ts, [ts], [None]), int(ts.min()), int(ts.max()), [ts])
            floor = now - behind - span
            store.expire(floor)
            live = np.concatenate([live[live >= floor], ts[ts >= floor]])
            if floor >= 0:
                assert len(live) <= store.tuples <= len(live) + part
            if floor > 2 * span:
                assert sum(segment.room for segment in store.segments) <= 1.1 * store.tuples + 2 * part
