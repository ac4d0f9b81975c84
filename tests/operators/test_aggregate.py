"""Windows and aggregates against recounting everything, under disorder, cuts, limits, saves and restores."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millrace.engine.saving import pack, unpack
from millrace.operators import groups, sessions
from millrace.operators.aggregates import AGGREGATES, accumulator
from millrace.operators.batch import BEGINNING, END_OF_TIME, Batch
from millrace.operators.buffer import Buffer, Gauge
from millrace.operators.build import build
from millrace.operators.expression import Column, Constant
from millrace.operators.operator import Moment
from millrace.operators.spec import AggregateCall, AggregateSpec, RowWindow, SessionWindow, TimeWindow
from millrace.protocol import Field, Schema, Type
from tests.kernels import installed, uncompiled
from tests.oracles import windows as oracle

COLUMNS = {
    "i": Type.BIGINT,
    "d": Type.DOUBLE,
    "t": Type.TEXT,
    "b": Type.BOOLEAN,
    "y": Type.BYTES,
    "m": Type.TIMESTAMP,
    "n": Type.INTERVAL,
}
NAMES = list(COLUMNS)
SCHEMA = Schema(tuple(Field(name, type, True) for name, type in COLUMNS.items()))
LARGE = 2**63 - 1

VALUES = {
    "i": st.one_of(st.integers(-3, 3), st.sampled_from([LARGE, -LARGE - 1, LARGE // 2])),
    "d": st.sampled_from([0.0, -0.0, 1.5, -2.25, 1e15, -1e15, 0.1]),
    "t": st.sampled_from(["", "a", "b", "é", "ab"]),
    "b": st.booleans(),
    "y": st.sampled_from([b"", b"\x00", b"z"]),
    "m": st.integers(-5, 5),
    "n": st.integers(-5, 5),
}


def column(name: str) -> Column:
    return Column(COLUMNS[name], True, NAMES.index(name), name)


def call(name: str, *arguments: str, distinct: bool = False, only: bool = False) -> AggregateCall:
    key = f"{name}({', '.join(str(COLUMNS[argument]) for argument in arguments)})"
    row = AGGREGATES[key]
    return AggregateCall(
        row.result, row.nullable, key, tuple(map(column, arguments)), distinct, column("b") if only else None
    )


def recount(name: str, *arguments: str, distinct: bool = False, only: bool = False) -> oracle.Aggregate:
    by_name = {
        "count": oracle.count,
        "sum": oracle.total,
        "avg": oracle.mean,
        "stddev": oracle.deviation,
        "min": oracle.least,
        "max": oracle.greatest,
        "first": oracle.first,
        "last": oracle.last,
        "arg_min": oracle.arg_min,
        "arg_max": oracle.arg_max,
    }

    def compute(rows: Sequence[oracle.Row]) -> Any:
        kept = [row for row in rows if row["b"]] if only else rows
        if name in ("arg_min", "arg_max"):
            return by_name[name](kept, *arguments)
        return by_name[name](kept, arguments[0] if arguments else None, distinct)

    return compute


CALLS = [
    ("count", ()),
    *(("count", (name,)) for name in NAMES),
    ("sum", ("i",)),
    ("sum", ("d",)),
    ("sum", ("n",)),
    ("avg", ("i",)),
    ("avg", ("d",)),
    ("stddev", ("d",)),
    *((function, (name,)) for function in ("min", "max", "first", "last") for name in NAMES),
    *((function, (name, by)) for function in ("arg_min", "arg_max") for name in "it" for by in NAMES),
]

rows_strategy = st.lists(
    st.tuples(st.integers(-40, 60), st.tuples(*(st.one_of(st.none(), VALUES[name]) for name in NAMES))), max_size=30
)
calls_strategy = st.lists(st.tuples(st.sampled_from(CALLS), st.booleans(), st.booleans()), max_size=4)
windows_strategy = st.one_of(
    st.builds(TimeWindow, st.integers(1, 25), st.integers(1, 30), st.integers(-7, 7)),
    st.builds(lambda size: TimeWindow(size, size), st.integers(1, 20)),
    st.builds(SessionWindow, st.integers(1, 20)),
)


@pytest.fixture(params=["installed", "uncompiled"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of running the kernels."""
    if request.param == "uncompiled":
        grouping, accumulating = uncompiled("grouping"), uncompiled("accumulating")
    else:
        grouping, accumulating = installed("grouping"), installed("accumulating")
    monkeypatch.setattr(groups, "grouping", grouping)
    monkeypatch.setattr(sessions, "kernel", grouping)
    monkeypatch.setattr(groups, "accumulating", accumulating)
    monkeypatch.setattr(accumulator, "accumulating", accumulating)
    return str(request.param)


class Harness:
    """One operator with an input that a test fills, and all that it has given."""

    def __init__(self, spec: AggregateSpec, since: int | None = None) -> None:
        self.spec = spec
        self.since = since
        self.input = Buffer(SCHEMA, ordered=False)
        self.input.wanted = True
        self.start()
        self.rows: list[tuple[Any, ...]] = []
        self.times: list[int] = []
        self.errors = 0

    def start(self) -> None:
        reader = self.input.attach()
        self.operator = build("q.aggregate1", self.spec, [reader], Gauge(), Moment(), self.since)
        self.operator.output.wanted = True
        self.output = self.operator.output.attach()

    def put(self, rows: Sequence[tuple[int, tuple[Any, ...]]]) -> None:
        self.input.put(Batch.from_rows(SCHEMA, [row for _, row in rows], [ts for ts, _ in rows]))

    def work(self, limit: int) -> None:
        """Execute until nothing is left; what was promised is kept."""
        operator = self.operator
        spent = 0
        while operator.fresh() or operator.more():
            operator.execute(limit)
            spent += 1
            assert spent < 10_000, "it never ends"
            self.collect()
        need = getattr(operator, "need", lambda: None)()
        assert need is None or need > operator.inputs[0].promise

    def collect(self) -> None:
        floor = self.output.passed
        batch = self.output.take(1 << 30)
        if batch is not None:
            assert all(ts >= floor for ts in batch.ts.tolist()), "below its own promise"
            self.rows += batch.rows()
            self.times += batch.ts.tolist()
        self.output.pass_punctuations()

    def again(self) -> None:
        """Save all and go on with what is restored."""
        saved = pack([self.input.save(), [r.save() for r in self.operator.inputs], self.operator.save()])
        passed = self.output.passed
        errors = self.operator.counts.errors
        wanted = self.input.promise
        self.input = Buffer(SCHEMA, ordered=False)
        self.input.wanted = True
        self.start()
        buffer, readers, state = unpack(saved)
        self.input.restore(buffer)
        for reader, data in zip(self.operator.inputs, readers, strict=True):
            reader.restore(data)
        self.operator.restore(state)
        self.operator.output.promise = passed
        self.output.passed = passed
        self.operator.counts.errors = errors
        assert self.input.promise == wanted
        assert pack(self.operator.save()) == pack(state)

    def end(self, limit: int = 1 << 30) -> None:
        self.input.punctuate(END_OF_TIME)
        self.work(limit)


def same(found: Sequence[tuple[tuple[Any, ...], int]], wanted: Sequence[oracle.Result]) -> None:
    """Equal rows at equal times, in any order; doubles to nine digits of the greatest that came in."""

    def order(item: tuple[tuple[Any, ...], int]) -> str:
        return repr((item[1], [0.0 if value == 0 else value for value in item[0] if not isinstance(value, float)]))

    assert len(found) == len(wanted), (found, wanted)
    for (row, time), (other, other_time) in zip(sorted(found, key=order), sorted(wanted, key=order), strict=True):
        assert time == other_time
        for value, expected in zip(row, other, strict=True):
            if isinstance(expected, float):
                assert value is not None
                assert math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-9 * 1e15 * 1e-6)
            else:
                assert value == expected
                assert type(value) is type(expected)


def spec_of(window: Any, keys: Sequence[str], calls: Any, **options: Any) -> AggregateSpec:
    return AggregateSpec(
        window,
        tuple((key, column(key)) for key in keys),
        tuple((f"c{at}", call(name, *arguments, distinct=distinct, only=only)) for at, ((name, arguments), distinct, only) in enumerate(calls)),
        (("window_start", "start"), ("window_end", "end")) if window is not None else (),
        **options,
    )


def recounted(window: Any, data: Any, keys: Sequence[str], calls: Any, since: int | None = None) -> list[oracle.Result]:
    rows = [{"ts": ts, "place": place, **dict(zip(NAMES, row, strict=True))} for place, (ts, row) in enumerate(data)]
    aggregates = [recount(name, *arguments, distinct=distinct, only=only) for (name, arguments), distinct, only in calls]
    if isinstance(window, SessionWindow):
        return oracle.sessions(rows, keys, aggregates, window.gap_us, since)
    if isinstance(window, RowWindow):
        return oracle.time_windows(rows, keys, aggregates, window.size, window.slide, axis="place")
    return oracle.time_windows(rows, keys, aggregates, window.size_us, window.slide_us, window.offset_us, since)


def on_time(data: Any, cuts: Sequence[int], draw: Any) -> list[Any]:
    """Pieces of the data, and between them promises that no later tuple breaks."""
    pieces = []
    at = 0
    while at < len(data):
        size = draw(st.integers(1, 8))
        pieces.append(data[at : at + size])
        at += size
    told = []
    for number, piece in enumerate(pieces):
        later = [ts for after in pieces[number + 1 :] for ts, _ in after]
        told.append((piece, draw(st.integers(-60, min(later))) if later and draw(st.booleans()) else None))
    return told


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_agrees_with_recounting(kernels: str, data: st.DataObject) -> None:
    rows = data.draw(rows_strategy)
    window = data.draw(windows_strategy)
    keys = data.draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True))
    calls = data.draw(calls_strategy)
    since = data.draw(st.none() | st.integers(-20, 20))
    if since is not None:
        rows = [row for row in rows if row[0] >= since]
    limit = data.draw(st.sampled_from([1, 2, 7, 1 << 30]))
    flush = data.draw(st.sampled_from(["none", "slow", "lazy"]))
    ordered = data.draw(st.booleans())
    spec = spec_of(window, keys, calls, flush=flush, max_delay_us=data.draw(st.integers(0, 30)), ordered=ordered)
    harness = Harness(spec, since)
    for piece, promise in on_time(rows, (), data.draw):
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
    assert harness.times == sorted(harness.times)
    wanted = recounted(window, rows, keys, calls, since)
    same(list(zip(harness.rows, harness.times, strict=True)), wanted)
    assert harness.operator.state_tuples == 0
    assert harness.output.promise == END_OF_TIME
