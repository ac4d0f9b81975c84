"""Windowed rows without aggregates compared with the oracle, under disorder, batches, limits, saves and restores."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.operators.aggregate import sessionrows
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.frame.windows import RowWindow, SessionWindow, TimeWindow
from millrace.operators.window.spec import WindowSpec
from millrace.values.eventtime import MAX_TIME
from tests.kernels import installed, uncompiled
from tests.operators.test_aggregate import (
    NAMES,
    SETTINGS,
    Harness,
    column,
    kernels,
    on_time,
    overlapping,
    row,
    rows_strategy,
)
from tests.oracles import windows as oracle

__all__ = ["kernels"]
BOUNDS: Any = (("window_start", "start"), ("window_end", "end"))


@pytest.fixture(autouse=True)
def chains(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of rows uses the same kernel for chains."""
    monkeypatch.setattr(sessionrows, "kernel", (uncompiled if kernels == "uncompiled" else installed)("grouping"))


def dicts(data: Any) -> list[dict[str, Any]]:
    return [{"ts": ts, "place": at, **dict(zip(NAMES, values, strict=True))} for at, (ts, values) in enumerate(data)]


def given_by(harness: Harness) -> list[oracle.Result]:
    return list(zip(harness.rows, harness.times, strict=True))


@SETTINGS
@given(data=st.data())
def test_rows_of_sessions_agree_with_cutting_them_afresh(data: st.DataObject) -> None:
    rows = data.draw(rows_strategy)
    gap = data.draw(st.integers(1, 20))
    keys = data.draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
    since = data.draw(st.none() | st.integers(-20, 20))
    if since is not None:
        rows = [row for row in rows if row[0] >= since]
    limit = data.draw(st.sampled_from([1, 2, 7, 1 << 30]))
    spec = AggregateSpec(
        SessionWindow(gap),
        tuple((key, column(key)) for key in keys),
        bounds=BOUNDS,
        flush=data.draw(st.sampled_from(["none", "slow", "lazy"])),
        max_delay_us=data.draw(st.integers(0, 30)),
        rows=True,
    )
    harness = Harness(spec, since)
    for piece, promise in on_time(rows, data.draw):
        harness.put(piece)
        if promise is not None:
            harness.input.punctuate(promise)
        if data.draw(st.booleans()):
            harness.work(limit)
        elif data.draw(st.booleans()) and (harness.operator.more() or harness.operator.fresh()):
            harness.operator.execute(limit)
            harness.collect()
        if data.draw(st.integers(0, 3)) == 0:
            harness.again()
    harness.end(limit)
    assert given_by(harness) == oracle.rows_of_sessions(dicts(rows), keys, NAMES, gap, since)
    assert harness.operator.state_tuples == 0
    assert harness.output.promise == MAX_TIME


@SETTINGS
@given(data=st.data())
def test_rows_of_windows_agree_with_trying_every_window(data: st.DataObject) -> None:
    rows = data.draw(rows_strategy)
    since = data.draw(st.none() | st.integers(-20, 20))
    partial: Any = data.draw(st.sampled_from(["skip", "emit"]))
    window = data.draw(st.builds(TimeWindow, st.integers(1, 25), st.integers(1, 30), st.integers(-7, 7)))
    harness = Harness(WindowSpec(window, BOUNDS, partial), since)  # type: ignore[arg-type]
    overlapping(data, harness, rows, data.draw(st.sampled_from([1, 3, 1 << 30])))
    harness.end()
    first = None if partial == "emit" else since
    wanted = oracle.rows_of_windows(dicts(rows), NAMES, window.size_us, window.slide_us, window.offset_us, first)
    assert given_by(harness) == wanted


@SETTINGS
@given(data=st.data())
def test_rows_of_windows_of_rows_count_positions(data: st.DataObject) -> None:
    rows = data.draw(rows_strategy)
    window = data.draw(st.builds(RowWindow, st.integers(1, 9), st.integers(1, 9)))
    where = data.draw(st.booleans())
    shown = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    spec = WindowSpec(
        window,
        BOUNDS,
        columns=tuple((name, column(name)) for name in shown),
        where=column("b") if where else None,
    )
    harness = Harness(spec)  # type: ignore[arg-type]
    overlapping(data, harness, rows, data.draw(st.sampled_from([1, 3, 1 << 30])))
    harness.end()
    kept = [one for one in dicts(rows) if not where or one["b"]]
    assert given_by(harness) == oracle.rows_of_windows(kept, shown, window.size, window.slide, axis="place")


def session_rows(gap: int, *keys: str) -> Harness:
    spec = AggregateSpec(SessionWindow(gap), tuple((key, column(key)) for key in keys), bounds=BOUNDS, rows=True)
    return Harness(spec)


def test_a_session_gives_its_rows_when_the_mark_is_at_its_end() -> None:
    harness = session_rows(10)
    harness.put([row(3, 1), row(7, 2)])
    harness.input.punctuate(16)
    harness.work(100)
    assert harness.rows == []
    assert harness.operator.state_tuples == 2
    harness.input.punctuate(17)
    harness.work(100)
    assert [(values[0], *values[-2:]) for values in harness.rows] == [(1, 3, 17), (2, 3, 17)]
    assert harness.times == [16, 16]


def test_a_long_session_goes_in_pieces() -> None:
    harness = session_rows(10)
    harness.put([row(at, at) for at in range(50)])
    harness.work(1 << 30)
    harness.input.punctuate(100)
    pieces: list[int] = []
    while harness.operator.fresh() or harness.operator.more():
        harness.operator.execute(20)
        harness.collect()
        pieces.append(len(harness.rows) - sum(pieces))
        harness.again()
    assert [piece for piece in pieces if piece] == [20, 20, 10]
    assert [values[0] for values in harness.rows] == list(range(50))


def test_rows_that_have_gone_are_forgotten() -> None:
    harness = session_rows(5, "t")
    sizes = []
    for at in range(40):
        harness.put([row(10 * at + number % 3, None, f"{at}-{number}") for number in range(200)])
        harness.input.punctuate(10 * at)
        harness.work(1 << 30)
        sizes.append(harness.operator.state_bytes)
    assert len(harness.rows) == 200 * 39
    assert max(sizes[10:]) <= 2 * max(sizes[:10])
