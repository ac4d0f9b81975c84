"""Windows and aggregates compared with recomputation, under disorder, random batches, limits, saves and restores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.engine.saving import pack, unpack
from millrace.operators.aggregate import groups, panes, sessions
from millrace.operators.aggregate.lowlevel import size_of
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.build import build
from millrace.operators.frame.buffer import Buffer, Gauge
from millrace.operators.frame.operator import StepClock
from millrace.operators.frame.windows import RowWindow, SessionWindow, TimeWindow
from millrace.protocol import Field, Refuse, Schema, Type
from millrace.sql.functions import install, uninstall
from millrace.values.aggregates import AGGREGATES, accumulator, user_aggregate
from millrace.values.batch import Batch
from millrace.values.eventtime import MAX_TIME
from millrace.values.expression import Column, Constant
from tests.depth import examples
from tests.kernels import installed, uncompiled
from tests.oracles import windows as oracle
from tests.simulation.auditors import grammar

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
    by_name: dict[str, Any] = {
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
    st.tuples(
        st.one_of(st.integers(-6, 9), st.integers(-40, 60)),
        st.tuples(*(st.one_of(st.none(), VALUES[name]) for name in NAMES)),
    ),
    min_size=1,
    max_size=30,
)
calls_strategy = st.lists(st.tuples(st.sampled_from(CALLS), st.booleans(), st.booleans()), max_size=4)
windows_strategy = st.one_of(
    st.builds(TimeWindow, st.integers(1, 25), st.integers(1, 30), st.integers(-7, 7)),
    st.builds(lambda size: TimeWindow(size, size), st.integers(1, 20)),
    st.builds(SessionWindow, st.integers(1, 20)),
)


@pytest.fixture(params=[2, panes.MANY])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All windows are merged from blocks of panes, or only windows of many panes."""
    monkeypatch.setattr(panes, "MANY", request.param)


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
    """One operator with an input that a test fills, and all emitted rows."""

    def __init__(self, spec: AggregateSpec, since: int | None = None) -> None:
        self.spec = spec
        self.since = since
        self.input = Buffer(SCHEMA, ordered=False)
        self.input.punctuates = True
        self.start()
        self.rows: list[tuple[Any, ...]] = []
        self.times: list[int] = []
        self.errors = 0

    def start(self) -> None:
        reader = self.input.attach()
        self.operator = build("q.aggregate1", self.spec, [reader], Gauge(), StepClock(), self.since)
        self.operator.output.punctuates = True
        self.output = self.operator.output.attach()

    def put(self, rows: Sequence[tuple[int, tuple[Any, ...]]]) -> None:
        self.input.put(Batch.from_rows(SCHEMA, [row for _, row in rows], [ts for ts, _ in rows]))

    def work(self, limit: int) -> None:
        """Execute until no work is left, and check every promise."""
        operator = self.operator
        spent = 0
        while operator.fresh() or operator.more():
            operator.execute(limit)
            spent += 1
            assert spent < 10_000, "it never ends"
            self.collect()
        need = getattr(operator, "need", lambda: None)()
        assert need is None or need > operator.inputs[0].promise

    def account(self) -> None:
        """The reported state agrees with an inspection of all of it."""
        windows = getattr(self.operator, "windows", None)
        if isinstance(windows, panes.Panes):
            tables: list[Any] = [*windows.panes.values()]
            if windows.closing is not None and windows.closing.merged is not None:
                tables.append(windows.closing.merged)
            low = [windows.low] if windows.low is not None else []
            waiting = [*windows.buffered.values()]
            tables += [rows.table for rows in waiting]
            kept = sum(len(part.ts) for rows in waiting for part in rows.parts)
            assert windows.tuples == sum(one.count for one in (*tables, *low)) + kept
            rows_bytes = sum(size_of(part) for rows in waiting for part in rows.parts)
            assert windows.nbytes == sum(one.nbytes for one in (*tables, *low)) + rows_bytes

    def collect(self) -> None:
        self.account()
        floor = self.output.punctuation_us
        batch = self.output.take(1 << 30)
        if batch is not None:
            assert all(ts >= floor for ts in batch.ts.tolist()), "below its own promise"
            self.rows += batch.rows()
            self.times += batch.ts.tolist()
        self.output.pass_punctuations()

    def again(self) -> None:
        """Save the operator and continue with the restored one."""
        saved = pack([self.input.save(), [r.save() for r in self.operator.inputs], self.operator.save()])
        passed = self.output.punctuation_us
        errors = self.operator.counts.errors
        wanted = self.input.promise
        self.input = Buffer(SCHEMA, ordered=False)
        self.input.punctuates = True
        self.start()
        buffer, readers, state = unpack(saved)
        self.input.restore(buffer)
        for reader, data in zip(self.operator.inputs, readers, strict=True):
            reader.restore(data)
        self.operator.restore(state)
        self.operator.output.promise = passed
        self.output.punctuation_us = passed
        self.operator.counts.errors = errors
        assert self.input.promise == wanted
        assert pack(self.operator.save()) == pack(state)

    def end(self, limit: int = 1 << 30) -> None:
        self.input.punctuate(MAX_TIME)
        self.work(limit)


def same(found: Sequence[tuple[tuple[Any, ...], int]], wanted: Sequence[oracle.Result], keys: int) -> None:
    """Equal rows at equal times, in any order; doubles to nine digits of the greatest input."""

    def order(item: tuple[tuple[Any, ...], int]) -> str:
        row, time = item
        exact = [*row[:keys], *(value for value in row[keys:] if not isinstance(value, float))]
        return repr((time, [0.0 if isinstance(value, float) and value == 0 else value for value in exact]))

    assert len(found) == len(wanted), (found, wanted)
    for (row, time), (other, other_time) in zip(sorted(found, key=order), sorted(wanted, key=order), strict=True):
        assert time == other_time
        for value, expected in zip(row, other, strict=True):
            if isinstance(expected, float):
                assert value is not None
                assert math.isclose(value, expected, rel_tol=1e-9, abs_tol=1.0 if abs(expected) > 1e9 else 1e-6)
            else:
                assert value == expected
                assert type(value) is type(expected)


def spec_of(window: Any, keys: Sequence[str], calls: Any, **options: Any) -> AggregateSpec:
    return AggregateSpec(
        window,
        tuple((key, column(key)) for key in keys),
        tuple(
            (f"c{at}", call(named[0], *named[1], distinct=distinct, only=only))
            for at, (named, distinct, only) in enumerate(calls)
        ),
        (("window_start", "start"), ("window_end", "end")) if window is not None else (),
        **options,
    )


def recounted(
    window: Any, data: Any, keys: Sequence[str], calls: Any, since: int | None = None, **options: Any
) -> list[oracle.Result]:
    numbered = data if isinstance(window, RowWindow) else enumerate(data)
    rows = [{"ts": ts, "place": place, **dict(zip(NAMES, row, strict=True))} for place, (ts, row) in numbered]
    aggregates = [recount(named[0], *named[1], distinct=distinct, only=only) for named, distinct, only in calls]
    if isinstance(window, SessionWindow):
        return oracle.sessions(rows, keys, aggregates, window.gap_us, since)
    if isinstance(window, RowWindow):
        return oracle.time_windows(rows, keys, aggregates, window.size, window.slide, axis="place", **options)
    return oracle.time_windows(rows, keys, aggregates, window.size_us, window.slide_us, window.offset_us, since)


def on_time(data: Any, draw: Any) -> list[Any]:
    """Parts of the data, and between them promises that no later tuple breaks."""
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


SETTINGS = settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.usefixtures("blocks")
@SETTINGS
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
    spec = spec_of(window, keys, calls, flush=flush, max_delay_us=data.draw(st.integers(0, 30)))
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
    assert harness.times == sorted(harness.times)
    wanted = recounted(window, rows, keys, calls, since)
    same(list(zip(harness.rows, harness.times, strict=True)), wanted, len(keys))
    assert harness.operator.state_tuples == 0
    assert harness.output.promise == MAX_TIME


def overlapping(data: st.DataObject, harness: Harness, rows: Any, limit: int) -> None:
    """Put rows in parts, with executions and saves in between."""
    for piece, promise in on_time(rows, data.draw):
        harness.put(piece)
        if promise is not None:
            harness.input.punctuate(promise)
        if data.draw(st.booleans()):
            harness.work(limit)
        if data.draw(st.integers(0, 3)) == 0:
            harness.again()


@pytest.mark.usefixtures("blocks")
@SETTINGS
@given(data=st.data())
def test_windows_of_rows_agree_with_recounting(kernels: str, data: st.DataObject) -> None:
    rows = data.draw(rows_strategy)
    window = data.draw(st.builds(RowWindow, st.integers(1, 12), st.integers(1, 12)))
    keys = data.draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
    calls = data.draw(calls_strategy)
    where = data.draw(st.booleans())
    harness = Harness(spec_of(window, keys, calls, where=column("b") if where else None))
    with grammar():
        overlapping(data, harness, rows, data.draw(st.sampled_from([1, 3, 1 << 30])))
        told = data.draw(st.sampled_from([False, True]))
        if rows and told:
            harness.input.punctuate(data.draw(st.integers(-60, 60)))
        harness.work(1 << 30)
        # An open window does not delay the input's promise.
        assert harness.output.promise == harness.input.promise
        promised = harness.output.promise
        harness.end()
    kept = [row for row in enumerate(rows) if not where or row[1][1][NAMES.index("b")]]
    everything = [(place, ts) for place, (ts, _) in enumerate(rows)]
    wanted = recounted(window, kept, keys, calls, everything=everything, promised=promised)
    same(list(zip(harness.rows, harness.times, strict=True)), wanted, len(keys))


@SETTINGS
@given(data=st.data())
def test_running_totals_end_where_recounting_does(kernels: str, data: st.DataObject) -> None:
    rows = [(ts, (None if i is None else i % 1000, *rest)) for ts, (i, *rest) in data.draw(rows_strategy)]
    keys = data.draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
    calls = data.draw(calls_strategy)
    emit = data.draw(st.sampled_from(["latest", "every"]))
    harness = Harness(spec_of(None, keys, calls, emit=emit))
    overlapping(data, harness, rows, data.draw(st.sampled_from([1, 3, 1 << 30])))
    harness.end()
    places = [dict(zip(NAMES, row, strict=True), ts=ts, place=place) for place, (ts, row) in enumerate(rows)]
    if emit == "every":
        assert len(harness.rows) == len(rows)
    final: dict[Any, Any] = {}
    for row, time in zip(harness.rows, harness.times, strict=True):
        key = row[: len(keys)]
        assert key not in final or final[key][1] <= time
        final[key] = (row, time)
    wanted = []
    for key, members in oracle.groups(places, keys).items():
        made = [recount(named[0], *named[1], distinct=distinct, only=only)(members) for named, distinct, only in calls]
        wanted.append(((*key, *made), max(row["ts"] for row in members)))
    same(list(final.values()), wanted, len(keys))


def given_rows(spec: AggregateSpec, *rows: tuple[int, tuple[Any, ...]], cut: int = 1) -> Harness:
    """All rows, `cut` at a time, and the end."""
    harness = Harness(spec)
    for at in range(0, len(rows), cut):
        harness.put(rows[at : at + cut])
        harness.work(1 << 30)
    harness.end()
    return harness


def row(ts: int, i: int | None = None, t: str | None = None, d: float | None = None) -> tuple[int, tuple[Any, ...]]:
    return ts, (i, d, t, None, None, None, None)


def test_events_exactly_a_gap_apart_are_separate_sessions() -> None:
    spec = AggregateSpec(SessionWindow(10), (), (("n", call("count")),), (("a", "start"), ("b", "end")))
    assert given_rows(spec, row(0), row(10), row(29), row(20)).rows == [(1, 0, 10), (1, 10, 20), (2, 20, 39)]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("cut", [1, 5])
def test_ties_go_to_the_earliest_or_the_latest_arrival(cut: int) -> None:
    calls = (
        ("first", call("first", "t")),
        ("last", call("last", "t")),
        ("least", call("arg_min", "t", "i")),
        ("greatest", call("arg_max", "t", "i")),
    )
    rows = [row(5, 1, "a"), row(5, 1, "b"), row(2, 1, "c"), row(2, 1, "d"), row(5, 1, "e")]
    assert given_rows(AggregateSpec(TimeWindow(10, 10), (), calls), *rows, cut=cut).rows == [("c", "e", "c", "c")]


@pytest.mark.usefixtures("kernels")
def test_tuples_between_windows_are_in_none() -> None:
    spec = AggregateSpec(TimeWindow(3, 5), (), (("n", call("count")),), (("a", "start"),))
    harness = given_rows(spec, *(row(ts) for ts in (2, 3, 4, 5, -1, -2, -3)), cut=7)
    assert harness.rows == [(1, -5), (1, 0), (1, 5)]
    assert given_rows(spec, row(3)).rows == []


@pytest.mark.usefixtures("kernels")
def test_both_zeros_are_one_key_and_a_null_is_none_of_them() -> None:
    spec = AggregateSpec(TimeWindow(10, 10), (("d", column("d")), ("i", column("i"))), (("n", call("count")),))
    harness = given_rows(spec, row(0, 0, d=0.0), row(1, 0, d=-0.0), row(2, None, d=0.0), row(3, 0), row(4, 0))
    assert harness.rows == [(0.0, 0, 2), (0.0, None, 1), (None, 0, 2)]


def test_a_session_closes_when_the_mark_is_at_its_end() -> None:
    harness = Harness(AggregateSpec(SessionWindow(10), (), (("n", call("count")),), (("b", "end"),)))
    harness.put([row(3)])
    harness.input.punctuate(12)
    harness.work(100)
    assert harness.rows == []
    harness.input.punctuate(13)
    harness.work(100)
    assert harness.rows == [(1, 13)]


def test_a_sum_that_does_not_fit_costs_its_own_row_and_one_that_comes_back_is_right() -> None:
    spec = AggregateSpec(TimeWindow(10, 10), (("t", column("t")),), (("s", call("sum", "i")),))
    harness = given_rows(spec, row(0, LARGE, "a"), row(1, 1, "a"), row(2, LARGE, "b"), row(3, 1, "b"), row(4, -2, "b"))
    assert harness.rows == [("b", LARGE - 1)]
    assert harness.operator.counts.errors == 1
    assert "out of range" in harness.operator.counts.last_error


def test_a_window_closes_when_the_mark_is_at_its_end_and_not_before() -> None:
    harness = Harness(AggregateSpec(TimeWindow(10, 10), (), (("n", call("count")),)))
    harness.put([row(3), row(12), row(4)])
    harness.input.punctuate(9)
    harness.work(100)
    assert harness.rows == []
    assert harness.operator.need() == 10  # type: ignore[attr-defined]
    harness.input.punctuate(10)
    harness.work(100)
    assert harness.rows == [(2,)]
    assert harness.times == [9]
    assert harness.operator.need() == 20  # type: ignore[attr-defined]
    assert harness.output.punctuation_us == 19


def test_texts_are_forgotten_with_their_panes() -> None:
    harness = Harness(AggregateSpec(TimeWindow(10, 10), (("t", column("t")),), (("n", call("count")),)))
    sizes = []
    for window in range(30):
        harness.put([row(10 * window + at % 10, None, f"{window}-{at}") for at in range(200)])
        harness.input.punctuate(10 * window)
        harness.work(1 << 30)
        sizes.append(harness.operator.state_bytes)
    assert max(sizes[2:]) <= 2 * sizes[1]
    assert len(harness.rows) == 200 * 29


def test_a_window_of_many_panes_takes_few_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 1,000 panes, one of them new each time: some 20 merges for it, and no more tables than panes."""
    merges = 0
    merge = groups.Table.merge

    def counted(table: groups.Table, other: groups.Table, start: int, stop: int) -> None:
        nonlocal merges
        merges += 1
        merge(table, other, start, stop)

    monkeypatch.setattr(groups.Table, "merge", counted)
    harness = Harness(AggregateSpec(TimeWindow(1000, 1), (("i", column("i")),), (("n", call("count")),)))
    most = 0
    for at in range(3000):
        harness.put([row(at, 0)])
        harness.input.punctuate(at)
        before = merges
        harness.work(1 << 30)
        most = max(most, merges - before)
        assert len(harness.operator.windows.panes) <= 1001  # type: ignore[attr-defined]
    assert most <= 32
    assert merges <= 3000 * 22
    assert harness.rows == [(0, min(at, 1000)) for at in range(1, 3000)]


def test_keys_without_sessions_are_forgotten() -> None:
    harness = Harness(AggregateSpec(SessionWindow(5), (("t", column("t")),), (("n", call("count")),)))
    for at in range(40):
        harness.put([row(10 * at, None, f"{at}-{number}") for number in range(200)])
        harness.input.punctuate(10 * at)
        harness.work(1 << 30)
    assert len(harness.rows) == 200 * 39
    assert harness.operator.windows.keys.count < 3_000  # type: ignore[attr-defined]


def half(share: float = 0.5) -> AggregateCall:
    function = "approx_quantile(double, double)"
    return AggregateCall(Type.DOUBLE, True, function, (column("d"), Constant(Type.DOUBLE, False, share)))


@pytest.mark.parametrize("window", [TimeWindow(1000, 1000), TimeWindow(1000, 250), SessionWindow(50)], ids=str)
@pytest.mark.parametrize("saved", [False, True])
def test_quantiles_are_close_and_saving_does_not_change_them(window: Any, saved: bool) -> None:
    harness = Harness(AggregateSpec(window, (), (("q", half()),), (("a", "start"),)))
    twin = Harness(harness.spec)
    for at in range(0, 1000, 37):
        for one in (harness, twin):
            one.put([row(n, d=float((n * 7919) % 1000)) for n in range(at, min(at + 37, 1000))])
            one.work(1 << 30)
        if saved:
            harness.again()
    harness.end()
    twin.end()
    assert harness.rows == twin.rows
    (quantile,) = (value for value, start in harness.rows if start == 0)
    assert abs(quantile - 500) < 20


def test_a_share_that_is_none_is_refused_when_the_operator_is_made() -> None:
    with pytest.raises(Refuse, match="share from 0 to 1"):
        Harness(AggregateSpec(TimeWindow(1, 1), (), (("q", half(1.5)),)))


def iterate(state: list[int], value: int) -> list[int]:
    if value == 13:
        raise ValueError("unlucky")
    state.append(value)
    return state


LISTED = user_aggregate("listed", [Type.BIGINT], Type.TEXT, init=list, iterate=iterate, terminate=str)
JOINED = user_aggregate(
    "joined", [Type.BIGINT], Type.TEXT, init=list, iterate=iterate, terminate=lambda s: str(sorted(s)),
    merge=lambda state, other: state + other,
)  # fmt: skip


@pytest.fixture
def registered() -> Iterator[None]:
    install([LISTED, JOINED])
    yield
    uninstall([LISTED, JOINED])


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", ["listed", "joined"])
@pytest.mark.parametrize("window", [TimeWindow(10, 10), TimeWindow(10, 5), SessionWindow(4)], ids=str)
def test_a_user_aggregate_that_raises_loses_its_own_row(name: str, window: Any) -> None:
    made = AggregateCall(Type.TEXT, True, f"{name}(bigint)", (column("i"),))
    spec = AggregateSpec(window, (("t", column("t")),), (("u", made),), (("a", "start"),))
    harness = Harness(spec)
    rows = [row(1, 5, "a"), row(0, 4, "a"), row(1, 13, "b"), row(2, 1, "b"), row(3, None, "a")]
    for one in rows:
        harness.put([one])
        harness.work(1)
        harness.again()
    harness.end()
    inside = sorted if name == "joined" or window != TimeWindow(10, 10) else list
    texts = {text for key, text, _ in harness.rows if key == "a"}
    assert str(inside([5, 4])) in texts
    assert all(key == "a" for key, _, _ in harness.rows)
    assert harness.operator.counts.errors >= 1
    assert harness.operator.counts.last_error == f"{name}() failed: ValueError: unlucky"


def test_slow_flush_spreads_a_window_over_the_next_ones_tuples() -> None:
    spec = AggregateSpec(
        TimeWindow(10, 10), (("i", column("i")),), (("n", call("count")),), flush="slow", flush_every=4, max_delay_us=5
    )
    harness = Harness(spec)
    harness.put([row(0, at) for at in range(100)])
    harness.work(1 << 30)
    harness.put([row(11, at) for at in range(40)])
    harness.input.punctuate(11)
    harness.operator.execute(40)
    harness.collect()
    assert len(harness.rows) == 10
    harness.put([row(20, 0)])
    harness.input.punctuate(15)
    harness.operator.execute(1 << 30)
    harness.collect()
    assert len(harness.rows) == 100, "the delay is over: everything goes before more is taken"


def test_lazy_flush_waits_until_nothing_waits() -> None:
    spec = AggregateSpec(TimeWindow(10, 10), (), (("n", call("count")),), flush="lazy", max_delay_us=1_000)
    harness = Harness(spec)
    harness.put([row(0), row(20)])
    harness.input.punctuate(20)
    harness.operator.execute(100)
    harness.collect()
    assert harness.rows == []
    harness.work(100)
    assert harness.rows == [(1,)]
