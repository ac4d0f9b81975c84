"""Windows whose rows pass a low-level table, or are buffered, compared with recomputation from all rows.

Disorder, promises, pieces, saves and restores are random, and so are the number of slots (down to one) and the choice.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.operators.aggregate import choosing, lowlevel
from millrace.operators.frame.windows import RowWindow, TimeWindow
from millrace.values.eventtime import MAX_TIME
from tests.kernels import installed, uncompiled
from tests.operators.test_aggregate import (
    CALLS,
    NAMES,
    SETTINGS,
    VALUES,
    Harness,
    blocks,
    kernels,
    on_time,
    recounted,
    row,
    same,
    spec_of,
)

__all__ = ["blocks", "kernels"]

windows = st.one_of(
    st.builds(TimeWindow, st.integers(1, 25), st.integers(1, 30), st.integers(-7, 7)),
    st.builds(lambda size: TimeWindow(size, size), st.integers(1, 20)),
    st.builds(RowWindow, st.integers(1, 9), st.integers(1, 9)),
)
# Without DISTINCT, whose values cannot leave a table group by group.
calls = st.lists(st.tuples(st.sampled_from(CALLS), st.just(False), st.booleans()), max_size=3)
COUNT: Any = (("count", ()), False, False)
# Enough rows of few groups that partial results collide.
many_rows = st.lists(
    st.tuples(st.integers(-6, 30), st.tuples(*(st.one_of(st.none(), VALUES[name]) for name in NAMES))),
    min_size=8,
    max_size=40,
)


@pytest.fixture(autouse=True)
def low_kernels(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The low-level table has its own kernel, and hashes as the groups do."""
    load = uncompiled if kernels == "uncompiled" else installed
    monkeypatch.setattr(lowlevel, "kernel", load("aggregate"))
    monkeypatch.setattr(lowlevel, "hashing", load("grouping"))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panes of a few rows are enough to change the choice, and a piece is a few rows."""
    monkeypatch.setattr(choosing, "MANY_GROUPS", 2)
    monkeypatch.setattr(lowlevel, "CHUNK", 5)


@pytest.mark.usefixtures("blocks")
@SETTINGS
@given(data=st.data())
def test_agrees_with_recounting(data: st.DataObject) -> None:
    rows = data.draw(many_rows)
    window = data.draw(windows)
    keys = data.draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
    chosen = [COUNT, *data.draw(calls)]
    in_time = isinstance(window, TimeWindow)
    since = data.draw(st.none() | st.integers(-20, 20)) if in_time else None
    if since is not None:
        rows = [row for row in rows if row[0] >= since]
    limit = data.draw(st.sampled_from([1, 2, 7, 1 << 30]))
    options: dict[str, Any] = {
        "keeps": data.draw(st.sampled_from(["bounded", "buffered", "adaptive"])),
        "slots": data.draw(st.sampled_from([1, 2, 3, 8, 100])),
        "flush": data.draw(st.sampled_from(["none", "slow", "lazy"])),
        "max_delay_us": data.draw(st.integers(0, 30)),
    }
    harness = Harness(spec_of(window, keys, chosen, **options), since)
    for piece, promise in on_time(rows, data.draw):
        harness.put(piece)
        if promise is not None and in_time:
            harness.input.punctuate(promise)
        if data.draw(st.booleans()):
            harness.work(limit)
        elif data.draw(st.booleans()) and (harness.operator.more() or harness.operator.fresh()):
            harness.operator.execute(limit)
            harness.collect()
        if data.draw(st.integers(0, 3)) == 0:
            harness.again()
        check(harness)
    harness.work(limit)
    promised = harness.output.promise
    harness.end(limit)
    if in_time:
        wanted = recounted(window, rows, keys, chosen, since)
    else:
        everything = [(place, ts) for place, (ts, _) in enumerate(rows)]
        wanted = recounted(window, list(enumerate(rows)), keys, chosen, everything=everything, promised=promised)
    same(list(zip(harness.rows, harness.times, strict=True)), wanted, len(keys))
    assert harness.operator.state_tuples == 0
    assert harness.output.promise == MAX_TIME
    check(harness)


def check(harness: Harness) -> None:
    """The low-level table has no more partial results than slots, and each tuple is in one of them or went up."""
    operator: Any = harness.operator
    low = operator.windows.low
    if low is not None:
        assert low.count <= low.slots + 2 * lowlevel.CHUNK
        assert low.flushed + low.evicted <= low.tuples


def counting(window: Any, key: str, **options: Any) -> Harness:
    return Harness(spec_of(window, [key], [COUNT], **options))


def kept(harness: Harness) -> dict[str, Any]:
    return harness.operator.kept() or {}


def taken(harness: Harness, *rows: Any) -> dict[str, Any]:
    """The counts of the low-level table after these rows."""
    if rows:
        harness.put(rows)
    harness.work(1 << 30)
    return kept(harness)


def test_a_collision_evicts_and_a_closing_window_flushes() -> None:
    harness = counting(TimeWindow(10, 10), "i", keeps="bounded", slots=1)
    assert taken(harness, row(1, 7), row(2, 7)) | {"table_bytes": 0} == {
        "keeps": "bounded", "adaptive": False,
        "slots": 1, "partials": 1, "table_bytes": 0, "table_tuples": 2, "evicted": 0, "flushed": 0,
    }  # fmt: skip
    assert taken(harness, row(3, 8), row(4, 8), row(5, 7))["evicted"] == 2
    harness.input.punctuate(10)
    low = taken(harness)
    assert (low["evicted"], low["flushed"], low["partials"]) == (2, 1, 0)
    assert sorted(harness.rows) == [(7, 3, 0, 10), (8, 2, 0, 10)]


def test_lazy_flush_leaves_a_closed_window_to_the_collisions_of_the_next() -> None:
    harness = counting(TimeWindow(10, 10), "i", keeps="bounded", slots=1, flush="lazy", max_delay_us=20)
    harness.put([row(1, 7), row(2, 7)])
    harness.work(1 << 30)
    harness.put([row(11, 7), row(12, 7)])
    harness.input.punctuate(10)
    harness.operator.execute(2)
    low = kept(harness)
    assert (low["evicted"], low["flushed"]) == (1, 0)


def test_texts_of_keys_do_not_grow_the_table() -> None:
    harness = counting(TimeWindow(10, 10), "t", keeps="bounded", slots=4)
    sizes = []
    for at in range(40):
        low = taken(harness, *(row(at, None, f"{at}.{number}") for number in range(10)))
        sizes.append(low["table_bytes"])
    assert max(sizes) == max(sizes[:8])
    harness.end()
    assert len(harness.rows) == 400


def test_adaptive_buffers_rows_of_groups_of_one_and_goes_back() -> None:
    """Twice in turn before each change."""
    harness = counting(TimeWindow(10, 10), "i", keeps="adaptive")
    modes = []
    for pane in range(8):
        one_each = pane < 4
        harness.put([row(10 * pane + at % 10, at if one_each else at % 4) for at in range(400)])
        harness.input.punctuate(10 * pane + 10)
        harness.work(1 << 30)
        numbers = kept(harness)
        modes.append(numbers["keeps"])
    assert modes == ["groups", "buffered", "buffered", "buffered", "buffered", "groups", "groups", "groups"]
    assert numbers["changes"] == 2
    assert len(harness.rows) == 4 * 400 + 4 * 4
