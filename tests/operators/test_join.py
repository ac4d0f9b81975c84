"""Joins compared with nested loops, under disorder, random batches, limits, saves, restores and changes of order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.engine.saving import pack, unpack
from millrace.operators.build import build
from millrace.operators.frame.buffer import Buffer, Gauge
from millrace.operators.frame.operator import StepClock
from millrace.operators.join import join as join_module
from millrace.operators.join import matching, segments
from millrace.operators.join.bands import Band
from millrace.operators.join.join import Join
from millrace.operators.join.spec import Equal, JoinSpec
from millrace.protocol import Field, Refuse, Schema, Type
from millrace.values.batch import Batch
from millrace.values.eventtime import LATENT, MAX_TIME, MIN_TIME
from millrace.values.expression import TIME, Call, Column, Constant, Expression
from tests.depth import examples
from tests.kernels import installed, uncompiled
from tests.oracles import joins as oracle

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
ROW = (0, 0.0, "", True, b"", 0, 0)
SCHEMA = Schema(tuple(Field(name, type, True) for name, type in COLUMNS.items()))
VALUES = {
    "i": st.sampled_from([0, 1, 2, -(2**63), 2**63 - 1]),
    "d": st.sampled_from([0.0, -0.0, 1.5, -2.25]),
    "t": st.sampled_from(["", "a", "é"]),
    "b": st.booleans(),
    "y": st.sampled_from([b"", b"\x00"]),
    "m": st.integers(0, 2),
    "n": st.integers(0, 1),
}
ORDERS = ["arrival", "sync", "filter", "adaptive"]
EVENT_ORDERS = ORDERS[1:]
OUTER = [(), (), (0,), (1,), (0, 1)]


def column(name: str) -> Column:
    return Column(COLUMNS[name], True, NAMES.index(name), name)


def picked(inputs: int) -> tuple[tuple[str, int, int], ...]:
    """Every column of every input, its time first."""
    return tuple(
        (f"{name}{at}", at, position)
        for at in range(inputs)
        for name, position in [("ts", TIME), *((name, number) for number, name in enumerate(NAMES))]
    )


@pytest.fixture(params=["installed", "uncompiled"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of running the kernel."""
    kernel = uncompiled("join") if request.param == "uncompiled" else installed("join")
    monkeypatch.setattr(segments, "joining", kernel)
    return str(request.param)


class Harness:
    """One join with inputs that a test fills, and all emitted rows."""

    def __init__(self, spec: JoinSpec, inputs: int, *, ordered: bool = False, schema: Schema = SCHEMA) -> None:
        self.spec = spec
        self.ordered = ordered
        self.schema = schema
        self.clock = StepClock()
        self.inputs = [self._buffer() for _ in range(inputs)]
        self.start()
        self.rows: list[tuple[Any, ...]] = []
        self.times: list[int] = []

    def _buffer(self) -> Buffer:
        buffer = Buffer(self.schema, ordered=self.ordered, gauge=Gauge())
        buffer.punctuates = True
        return buffer

    def start(self) -> None:
        readers = [buffer.attach() for buffer in self.inputs]
        operator = build("q.join1", self.spec, readers, Gauge(), self.clock)
        assert isinstance(operator, Join)
        self.operator = operator
        self.operator.output.punctuates = True
        self.output = self.operator.output.attach()

    def put(self, at: int, rows: Sequence[oracle.Timed]) -> None:
        self.inputs[at].put(Batch.from_rows(self.schema, [row for _, row in rows], [ts for ts, _ in rows], arrival=7))

    def work(self, limit: int = 1 << 30) -> None:
        operator = self.operator
        spent = 0
        while operator.fresh() or operator.more():
            self.once(limit)
            spent += 1
            assert spent < 10_000, "it never ends"
        wait = operator.need()
        assert wait is None or operator.holding(), "it waits for nobody"

    def once(self, limit: int) -> None:
        taken = self.operator.execute(limit)
        assert taken <= limit
        self.collect()

    def collect(self) -> None:
        floor = self.output.punctuation_us
        batch = self.output.take(1 << 30)
        if batch is not None:
            assert all(ts >= floor for ts in batch.ts.tolist()), "below its own promise"
            self.rows += batch.rows()
            self.times += batch.ts.tolist()
        self.output.pass_punctuations()

    def again(self) -> None:
        """Save the operator and continue with the restored one."""
        operator = self.operator
        saved = pack([[b.save(), r.save()] for b, r in zip(self.inputs, operator.inputs, strict=True)])
        state = pack(operator.save())
        passed, promise = self.output.punctuation_us, operator.output.promise
        held = [operator.queue_tuples(at) for at in range(len(self.inputs))]
        counts = operator.state_tuples, operator.state_bytes, operator.numbers(), operator.counts.errors
        self.inputs = [self._buffer() for _ in self.inputs]
        self.start()
        for buffer, reader, (b, r) in zip(self.inputs, self.operator.inputs, unpack(saved), strict=True):
            buffer.restore(b)
            reader.restore(r)
        self.operator.restore(unpack(state))
        self.operator.counts.errors = counts[3]
        self.operator.output.promise = promise
        self.output.punctuation_us = passed
        assert pack(self.operator.save()) == state
        assert [self.operator.queue_tuples(at) for at in range(len(self.inputs))] == held
        assert (self.operator.state_tuples, self.operator.numbers()) == (counts[0], counts[2])

    def end(self, limit: int = 1 << 30) -> None:
        for buffer in self.inputs:
            buffer.punctuate(MAX_TIME)
        self.work(limit)

    def queued(self) -> int:
        return sum(buffer.gauge.tuples for buffer in self.inputs)


def seen(harness: Harness) -> Counter[Any]:
    return Counter(zip(harness.times, map(canonical, harness.rows), strict=True))


def canonical(row: Sequence[Any]) -> str:
    """A row as text that distinguishes types, with one zero."""
    return repr([0.0 if isinstance(value, float) and value == 0 else value for value in row])


def wanted(results: Sequence[oracle.Result]) -> Counter[Any]:
    """The oracle's results as rows of all columns."""
    flat = []
    for time, rows in results:
        values: list[Any] = []
        for row in rows:
            values += [None] * (1 + len(NAMES)) if row is None else [row[0], *row[1]]
        flat.append((time, canonical(values)))
    return Counter(flat)


def row_strategy(names: Sequence[str]) -> Any:
    """Rows that have values only in these columns."""
    return st.tuples(*(st.one_of(VALUES[name], st.none()) if name in names else st.none() for name in NAMES))


bounds_strategy = st.tuples(st.none() | st.integers(-8, 8), st.none() | st.integers(0, 12))


@st.composite
def bands_strategy(draw: Any, inputs: int) -> list[oracle.Band]:
    bands = []
    for right in range(1, inputs):
        left = draw(st.integers(0, right - 1))
        low, width = draw(bounds_strategy)
        kind = (
            draw(st.sampled_from(["both", "low", "high", "none"])) if low is not None and width is not None else "none"
        )
        if kind == "both":
            bands.append((left, right, low, low + width))
        elif kind == "low":
            bands.append((left, right, low, None))
        elif kind == "high":
            bands.append((left, right, None, low))
    return bands


@st.composite
def equal_strategy(draw: Any, inputs: int, names: Sequence[str]) -> list[oracle.Equal]:
    equal = []
    for right in range(1, inputs):
        for name in draw(st.lists(st.sampled_from(names), max_size=2, unique=True)):
            at = NAMES.index(name)
            equal.append((draw(st.integers(0, right - 1)), at, right, at))
    return equal


def spec_of(inputs: int, bands: Sequence[oracle.Band], equal: Sequence[oracle.Equal], **options: Any) -> JoinSpec:
    return JoinSpec(
        picked(inputs),
        tuple(Band(*band) for band in bands),
        tuple(Equal(a, column(NAMES[mine]), b, column(NAMES[theirs])) for a, mine, b, theirs in equal),
        **options,
    )


class Script:
    """The order in which rows arrive on the inputs, and promises that no later row breaks."""

    def __init__(self, data: st.DataObject, inputs: Sequence[Sequence[oracle.Timed]]) -> None:
        self.data = data
        self.left = [list(rows) for rows in inputs]

    def play(self, harness: Harness, limit: int, change: Any = None) -> None:
        draw = self.data.draw
        while any(self.left):
            at = draw(st.sampled_from([at for at, rows in enumerate(self.left) if rows]))
            size = draw(st.integers(1, 6))
            rows, self.left[at] = self.left[at][:size], self.left[at][size:]
            harness.put(at, rows)
            promised = draw(st.integers(0, 3))
            if promised and self.left[at]:
                least = min(time for time, _ in self.left[at])
                harness.inputs[at].punctuate(least if promised > 1 else least - 5)
            elif promised == 1:
                harness.inputs[at].punctuate(draw(st.integers(0, 60)))
            what = draw(st.sampled_from(["work", "once", "nothing", "again", "change"]))
            if what == "work":
                harness.work(limit)
            harness.operator.settle()
            if what == "once" and harness.operator.more():
                harness.once(limit)
            elif what == "again":
                harness.again()
            elif what == "change" and change is not None:
                change(harness)
        harness.end(limit)


def inputs_strategy(inputs: int, names: Sequence[str], most: int, *, ordered: bool = False) -> Any:
    rows = st.lists(st.tuples(st.integers(0, 40), row_strategy(names)), max_size=most)
    if ordered:
        rows = rows.map(lambda found: sorted(found, key=lambda row: row[0]))
    return st.tuples(*(rows for _ in range(inputs)))


SETTINGS = settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
LIMITS = st.sampled_from([1, 2, 7, 1 << 30])


def small(monkeypatch: pytest.MonkeyPatch, data: st.DataObject) -> None:
    """Small limits: few pairs at a time, segments of few tuples, keys whose identities collide."""
    monkeypatch.setattr(segments, "MOST_PAIRS", data.draw(st.sampled_from([2, 65_536])))
    monkeypatch.setattr(segments, "FEW_PAIRS", 2)
    monkeypatch.setattr(segments, "SMALLEST", 2)
    monkeypatch.setattr(segments, "LARGEST", data.draw(st.sampled_from([2, 262_144])))
    monkeypatch.setattr(segments, "FEW", data.draw(st.sampled_from([1, 3, 64])))
    monkeypatch.setattr(segments, "TOGETHER", data.draw(st.sampled_from([1, 4, 1024])))
    monkeypatch.setattr(segments, "WORTH_CLEARING", 2)
    monkeypatch.setattr(segments, "MANY", data.draw(st.sampled_from([2, 65_536])))
    monkeypatch.setattr(segments, "ENOUGH", 2)
    monkeypatch.setattr(join_module, "MOST_LOOKED", data.draw(st.sampled_from([1, 5, 65_536])))
    if data.draw(st.booleans()):
        collide(monkeypatch)


def collide(monkeypatch: pytest.MonkeyPatch) -> None:
    """All identities are one of two."""
    real = segments.bits

    def identity_of(types: Sequence[Type]) -> Any:
        def identify(columns: Any, rows: int) -> Any:
            states = np.zeros(rows, np.int64)
            for type, values in zip(types, columns, strict=True):
                states ^= real(type, values) & 1
            return states

        return identify, not types

    def identity_of_row(types: Sequence[Type]) -> Any:
        identify, _ = identity_of(types)
        return lambda columns, key: identify([columns[at] for at in key], 1).item(0)

    monkeypatch.setattr(segments, "identity_of", identity_of)
    monkeypatch.setattr(matching, "identity_of", identity_of)
    monkeypatch.setattr(matching, "identity_of_row", identity_of_row)


def finish(harness: Harness, results: Sequence[oracle.Result]) -> None:
    assert seen(harness) == wanted(results)
    if harness.operator.output.ordered:
        assert harness.times == sorted(harness.times)
    assert harness.operator.state_tuples == 0
    assert harness.operator.held_tuples() == 0
    assert harness.queued() == 0
    assert harness.output.promise == MAX_TIME


@SETTINGS
@given(data=st.data())
def test_agrees_with_nested_loops(kernels: str, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        small(monkeypatch, data)
        count = data.draw(st.sampled_from([2, 2, 3, 4]))
        names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        bands = data.draw(bands_strategy(count))
        equal = data.draw(equal_strategy(count, names))
        inputs = data.draw(inputs_strategy(count, names, {2: 14, 3: 8, 4: 5}[count]))
        order = data.draw(st.sampled_from(ORDERS))
        outer = data.draw(st.sampled_from(OUTER)) if count == 2 else ()
        harness = Harness(spec_of(count, bands, equal, order=order, outer=outer), count)

        def change(harness: Harness) -> None:
            wished = data.draw(st.sampled_from(ORDERS if order == "arrival" else EVENT_ORDERS))
            harness.operator.set_order(
                wished,  # type: ignore[arg-type]
                data.draw(st.sampled_from([None, 0.0, 0.5])),
            )

        Script(data, inputs).play(harness, data.draw(LIMITS), change)
        finish(harness, oracle.join(inputs, bands, equal, outer=outer))


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("time", [4, 5, 6])
def test_a_row_at_its_floor_is_kept(kernels: str, at: int, time: int) -> None:
    """A join that matches only rows at exactly the other side's mark, with rows at and around it."""
    rows = [(5, ROW)] if at == 0 else [(time, ROW)]
    others = [(time, ROW)] if at == 0 else [(5, ROW)]
    inputs = (rows, others) if at == 0 else (others, rows)
    bands = [(0, 1, 0, 1)]
    harness = Harness(spec_of(2, bands, []), 2)
    harness.inputs[1 - at].punctuate(others[0][0])
    harness.put(at, rows)
    harness.work(1)
    harness.put(1 - at, others)
    harness.work(1)
    harness.end()
    finish(harness, oracle.join(inputs, bands, []))


@SETTINGS
@given(data=st.data())
def test_rows_that_come_alone_agree_with_nested_loops(kernels: str, data: st.DataObject) -> None:
    """One row at a time, sometimes several at once or with nulls, so that both ways use one state."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        small(monkeypatch, data)
        names = data.draw(st.lists(st.sampled_from(["m", "n", "t", "d"]), max_size=2, unique=True))
        low = data.draw(st.integers(-4, 2))
        bands = [(0, 1, low, low + data.draw(st.integers(0, 4)))]
        equal = [(0, NAMES.index(name), 1, NAMES.index(name)) for name in names]
        full = st.tuples(*(VALUES[name] for name in NAMES))
        row = st.one_of(full, full, full, row_strategy(NAMES))
        inputs = data.draw(st.tuples(*(st.lists(st.tuples(st.integers(0, 15), row), max_size=24) for _ in range(2))))
        where = None
        if data.draw(st.booleans()):
            left, right = (Column(Type.TIMESTAMP, False, at, "ts") for at in (0, 1 + len(NAMES)))
            where = Call(Type.BOOLEAN, False, "<(timestamp, timestamp)", (left, right))
        harness = Harness(spec_of(2, bands, equal, where=where), 2)
        left_over = [list(rows) for rows in inputs]
        while any(left_over):
            at = data.draw(st.sampled_from([at for at, rows in enumerate(left_over) if rows]))
            size = data.draw(st.sampled_from([1, 1, 1, 1, 3]))
            harness.put(at, left_over[at][:size])
            left_over[at] = left_over[at][size:]
            what = data.draw(st.sampled_from(["work", "work", "work", "work", "nothing", "again", "promise", "order"]))
            if what == "promise":
                harness.inputs[at].punctuate(min([40, *(time for time, _ in left_over[at])]))
            elif what == "again":
                harness.again()
            elif what == "order":
                harness.operator.set_order(data.draw(st.sampled_from(["arrival", "arrival", "sync", "filter"])))
            if what != "nothing":
                harness.work(data.draw(LIMITS))
        harness.end()

        def holds(rows: Sequence[oracle.Timed]) -> bool:
            return where is None or rows[0][0] < rows[1][0]

        finish(harness, oracle.join(inputs, bands, equal, holds))


@SETTINGS
@given(data=st.data())
def test_windows_of_rows_agree_with_nested_loops(kernels: str, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        small(monkeypatch, data)
        count = data.draw(st.sampled_from([2, 2, 3]))
        bands = data.draw(bands_strategy(count))
        equal = data.draw(equal_strategy(count, ["i", "t"]))
        inputs = data.draw(inputs_strategy(count, ["i", "t"], {2: 14, 3: 8}[count]))
        # The order of rows of several inputs at one time is their order of arrival, which the loops do not know.
        inputs = [[(time * count + at, row) for time, row in rows] for at, rows in enumerate(inputs)]
        newest = tuple(data.draw(st.lists(st.none() | st.integers(1, 4), min_size=count, max_size=count)))
        if newest == (None,) * count:
            newest = (1, *newest[1:])
        order = data.draw(st.sampled_from(ORDERS))
        outer = data.draw(st.sampled_from(OUTER)) if count == 2 else ()
        harness = Harness(spec_of(count, bands, equal, order=order, outer=outer, rows=newest), count)
        assert harness.operator.output.ordered
        Script(data, inputs).play(harness, data.draw(LIMITS))
        finish(harness, oracle.join(inputs, bands, equal, outer=outer, newest=newest))


# -- what must match besides -------------------------------------------------------------------------------------------


def compared(function: str, left: Expression, right: Expression) -> Expression:
    return Call(Type.BOOLEAN, True, f"{function}(bigint, bigint)", (left, right))


@SETTINGS
@given(data=st.data())
def test_where_decides_and_its_errors_cost_their_own_pairs(data: st.DataObject) -> None:
    count = data.draw(st.sampled_from([2, 3]))
    row = st.tuples(st.integers(0, 40), st.integers(0, 3).map(lambda value: (value, *[None] * 6)))
    inputs = data.draw(st.tuples(*(st.lists(row, max_size=8) for _ in range(count))))
    outer = data.draw(st.sampled_from(OUTER)) if count == 2 else ()
    # 6 / i of the last input > i of the first; the columns of a result are the time and seven more per input.
    first = Column(Type.BIGINT, True, 1, "i0")
    last = Column(Type.BIGINT, True, 1 + 8 * (count - 1), "i")
    quotient = Call(Type.BIGINT, True, "/(bigint, bigint)", (Constant(Type.BIGINT, False, 6), last))
    bands = [(0, right, -10, 10) for right in range(1, count)]
    order = data.draw(st.sampled_from(ORDERS))
    harness = Harness(spec_of(count, bands, [], where=compared(">", quotient, first), order=order, outer=outer), count)
    Script(data, inputs).play(harness, data.draw(LIMITS))

    def where(rows: Sequence[oracle.Timed]) -> bool:
        divisor = rows[-1][1][0]
        return divisor != 0 and 6 // divisor > rows[0][1][0]

    finish(harness, oracle.join(inputs, bands, [], where, outer))
    failing = oracle.join(inputs, bands, [], lambda rows: rows[-1][1][0] == 0)
    assert harness.operator.counts.errors == len(failing)


def test_a_key_that_cannot_be_computed_costs_its_row_once() -> None:
    key = Call(Type.BIGINT, True, "/(bigint, bigint)", (Constant(Type.BIGINT, False, 6), column("i")))
    spec = JoinSpec((("a", 0, 0), ("b", 1, 0)), (), (Equal(0, key, 1, column("i")),))
    harness = Harness(spec, 2)
    harness.put(0, [(1, (0, *[None] * 6)), (2, (3, *[None] * 6))])
    harness.put(1, [(3, (2, *[None] * 6))])
    harness.work()
    assert harness.rows == [(3, 2)]
    assert harness.operator.counts.errors == 1
    assert "division by zero" in harness.operator.counts.last_error


def blank(**values: Any) -> tuple[Any, ...]:
    return tuple(values.get(name) for name in NAMES)


def test_a_time_may_be_a_key() -> None:
    time = Column(Type.TIMESTAMP, False, TIME, "ts")
    harness = Harness(JoinSpec((("a", 0, 0), ("b", 1, 0)), (), (Equal(0, time, 1, column("m")),)), 2)
    harness.put(0, [(5, blank(i=1)), (6, blank(i=2))])
    harness.put(1, [(90, blank(i=3, m=6))])
    harness.work()
    assert list(zip(harness.times, harness.rows, strict=True)) == [(90, (2, 3))]


# -- state -------------------------------------------------------------------------------------------------------------

KEYED = (Equal(0, column("i"), 1, column("i")),)


def keyed(*bands: Band, **options: Any) -> JoinSpec:
    return JoinSpec((("a", 0, 0), ("b", 1, 0)), bands, KEYED, **options)


def test_rows_that_can_match_nothing_more_are_not_remembered() -> None:
    """A pair matches iff a - 2 <= b <= a + 3: the promise of one side frees the other's."""
    harness = Harness(keyed(Band(0, 1, -2, 3)), 2)
    harness.inputs[1].punctuate(100)
    harness.put(0, [(96, blank(i=1)), (97, blank(i=2))])
    harness.work()
    assert harness.operator.state_tuples == 1, "the row at 96 can match nothing from 100 on"
    harness.inputs[1].punctuate(101)
    harness.work()
    assert harness.operator.state_tuples == 0
    harness.inputs[0].punctuate(50)
    harness.put(1, [(101, blank(i=2))])
    harness.work()
    assert harness.operator.state_tuples == 1
    harness.inputs[0].punctuate(103)
    harness.work()
    assert harness.operator.state_tuples == 1, "a row at 103 still matches one at 101"
    harness.inputs[0].punctuate(104)
    harness.work()
    assert harness.operator.state_tuples == 0


def test_state_stays_as_large_as_the_window_in_a_long_run() -> None:
    rng = np.random.default_rng(3)
    harness = Harness(keyed(Band(0, 1, -1_000, 1_000), order="filter"), 2, ordered=True)
    most = 0
    for at in range(0, 200_000, 500):
        for side in (0, 1):
            ts = np.sort(rng.integers(at, at + 500, 50))
            harness.put(
                side, [(int(time), blank(i=int(key))) for time, key in zip(ts, rng.integers(0, 9, 50), strict=True)]
            )
        harness.work()
        most = max(most, harness.operator.state_tuples)
        assert len(harness.operator.matcher.stores[0].segments) < 8
    # A window has 100 rows a side; a segment spans twice that, and the hold buffer has the newest rows.
    assert most < 3_000, most
    harness.end()
    assert harness.operator.state_bytes < 1_000


def test_one_far_row_does_not_make_a_segment_keep_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "WORTH_CLEARING", 64)
    harness = Harness(keyed(Band(0, 1, -10, 10)), 2)
    for at in range(0, 40_000, 10):
        far = [(10**9, blank(i=1))] if at == 0 else []
        harness.put(0, [(at, blank(i=1)), *far])
        for buffer in harness.inputs:
            buffer.punctuate(at)
        harness.work()
        assert harness.operator.state_tuples < 1_500
    assert sum(len(segment.ts) for segment in harness.operator.matcher.stores[0].segments) < 3_000


def test_an_execution_gives_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_module, "MOST_LOOKED", 1_000)
    monkeypatch.setattr(segments, "MOST_PAIRS", 1_000)
    harness = Harness(keyed(), 2)
    harness.put(0, [(1, blank(i=1))] * 300)
    harness.put(1, [(2, blank(i=1))] * 300)
    harness.operator.execute(600)
    assert harness.operator.held_tuples() > 0, "the others have not looked"
    assert 1_000 < harness.operator.state_scanned <= 2_000
    given = 0
    while harness.operator.more():
        given = harness.operator.counts.output_tuples
        harness.once(600)
        assert harness.operator.counts.output_tuples - given <= 2_000
    assert len(harness.rows) == 90_000


def test_texts_are_forgotten_with_their_rows() -> None:
    spec = JoinSpec((("a", 0, 2),), (Band(0, 1, -10, 10),), (Equal(0, column("t"), 1, column("t")),))
    harness = Harness(spec, 2, ordered=True)
    for at in range(0, 5_000, 5):
        harness.put(0, [(at, blank(t=f"name {at}"))])
        harness.put(1, [(at, blank(t=f"name {at}"))])
        harness.work()
        assert harness.operator.state_bytes < 60_000
    assert len(harness.rows) == 1_000


# -- order -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", EVENT_ORDERS)
def test_rows_without_a_time_get_the_clock_and_wait_for_it(order: Any) -> None:
    harness = Harness(keyed(Band(0, 1, -10, 10), order=order), 2)
    harness.inputs[1].promise = LATENT
    harness.clock.now_us = 100
    harness.inputs[1].put(Batch.from_rows(SCHEMA, [blank(i=1)], [MIN_TIME]))
    harness.put(0, [(105, blank(i=1))])
    harness.inputs[0].punctuate(200)
    harness.work()
    assert harness.rows == []
    assert harness.operator.need() == 105
    assert harness.operator.stamps(harness.operator.holding())
    harness.clock.now_us = 105
    assert harness.operator.reach()
    harness.work()
    assert list(zip(harness.times, harness.rows, strict=True)) == [(105, (1, 1))]
    assert harness.output.promise == 105


def test_what_an_order_would_break_is_refused() -> None:
    for spec, order, text in (
        (keyed(order="sync"), "arrival", "create the query again"),
        (keyed(rows=(2, None)), "filter", "count rows"),
        (keyed(), "sideways", "unknown order 'sideways'"),
    ):
        harness = Harness(spec, 2)
        with pytest.raises(Refuse, match=text):
            harness.operator.check_order(order, None)  # type: ignore[arg-type]
    with pytest.raises(Refuse, match="alpha"):
        Harness(keyed(order="adaptive"), 2).operator.check_order(None, -1.0)


@pytest.mark.parametrize("inputs", [1, 7])
def test_a_join_has_two_to_six_inputs(inputs: int) -> None:
    with pytest.raises(Refuse, match="2 to 6 inputs"):
        Harness(JoinSpec(()), inputs)


def feed(harness: Harness, seconds: range, rate: int, cost_us: float) -> None:
    """Both sides get `rate` rows a second, and each row costs this much."""
    for second in seconds:
        for side in (0, 1):
            rows = [(second * 1_000_000 + at * 1_000_000 // rate, blank(i=at)) for at in range(rate)]
            harness.put(side, rows)
        before = harness.operator.counts.input_tuples
        harness.work()
        taken = harness.operator.counts.input_tuples - before
        harness.operator.measured(taken, taken * cost_us)


def test_adaptive_goes_over_where_the_rule_says_and_back() -> None:
    """c |w| l1 l2 is the cost of a row times the rate of both sides together, halved: 0.5 at 50 rows/s and 10 ms."""
    harness = Harness(keyed(Band(0, 1, -2_000_000, 2_000_000), order="adaptive", alpha=0.3), 2, ordered=True)
    feed(harness, range(20), 50, 1_000.0)
    operator = harness.operator
    assert (operator.mode, operator.pacing.switches) == ("sync", 0)
    assert operator.numbers()["value"] == pytest.approx(0.05, rel=0.1)
    feed(harness, range(20, 40), 50, 10_000.0)
    assert (operator.mode, operator.pacing.switches) == ("filter", 1)
    assert operator.numbers()["value"] == pytest.approx(0.5, rel=0.1)
    assert operator.numbers()["gain"] == pytest.approx(1 / 3, rel=0.1)
    harness.again()
    feed(harness, range(40, 60), 50, 1_000.0)
    operator = harness.operator
    assert (operator.mode, operator.pacing.switches) == ("sync", 2)
    there, back = operator.numbers()["last_switches"]
    assert (there["mode"], back["mode"]) == ("filter", "sync")
    assert there["value"] >= 0.3 > 0.8 * 0.3 > back["value"]
    assert there["window_s"] == 2.0
    assert there["rates"] == pytest.approx((50.0, 50.0), rel=0.1)
    # c of NILE: the cost of a row over the rows in the other side's window of 2 s.
    assert operator.numbers()["cost_us"] == pytest.approx(1_000 / 100, rel=0.1)
    harness.end()
    assert harness.times == sorted(harness.times)
    assert len(harness.rows) == sum(min(59, second + 2) - max(0, second - 2) + 1 for second in range(60)) * 50


def test_adaptive_does_not_go_back_and_forth_at_the_border() -> None:
    """At 6 ms a row the value is alpha, within measurement error: over once, and back only well below."""
    harness = Harness(keyed(Band(0, 1, -2_000_000, 2_000_000), order="adaptive", alpha=0.3), 2, ordered=True)
    modes = []
    for second in range(0, 80, 4):
        feed(harness, range(second, second + 4), 50, 6_600.0 if second % 8 else 5_400.0)
        modes.append(harness.operator.mode)
    assert harness.operator.pacing.switches == 1
    assert modes[-1] == "filter"
    feed(harness, range(80, 90), 50, 4_500.0)
    assert harness.operator.numbers()["value"] == pytest.approx(0.225, rel=0.05)
    assert (harness.operator.mode, harness.operator.pacing.switches) == ("sync", 2)
    feed(harness, range(90, 100), 50, 5_400.0)
    assert (harness.operator.mode, harness.operator.pacing.switches) == ("sync", 2)


@pytest.mark.parametrize("valid", [None, np.array([False])])
def test_a_measuring_period_ends_though_nobody_wants_punctuation(valid: Any) -> None:
    """Ten rows a second for ten seconds, then one: the rate is the rate of the last periods."""
    harness = Harness(keyed(Band(0, 1, -1_000_000, 1_000_000), order="arrival"), 2, ordered=True)
    operator = harness.operator
    operator.output.punctuates = False
    for time in [*range(0, 10_000_000, 100_000), *range(10_000_000, 100_000_000, 1_000_000)]:
        row = Batch.from_rows(SCHEMA, [blank(i=1)], [time], arrival=7)
        masks = [valid, *(None for _ in SCHEMA.fields[1:])]
        harness.inputs[0].put(Batch(SCHEMA, row.ts, row.columns, masks, row.arrival))
        operator.execute(1)
    assert operator.pacing.rates() == [pytest.approx(1.0), 0.0]


def test_predicted_response_times_are_those_of_the_equations() -> None:
    """Figure 7's region: 1 and 10 tuples a second, a minute, c = 0.5 ms. Equation 1: 0.3, equation 7: 23 %."""
    harness = Harness(keyed(Band(0, 1, -60_000_000, 60_000_000), order="adaptive"), 2, ordered=True)
    for second in range(600):
        harness.put(0, [(second * 1_000_000, blank())])
        harness.put(1, [(second * 1_000_000 + at * 100_000, blank()) for at in range(10)])
        harness.work()
        # A row of the fast side is compared with 60 rows, one of the slow side with 600.
        harness.operator.measured(11, 10 * 60 * 500.0 + 600 * 500.0)
    numbers = harness.operator.numbers()
    assert numbers["cost_us"] == pytest.approx(500, rel=0.05)
    assert numbers["value"] == pytest.approx(0.3, rel=0.05)
    assert numbers["gain"] == pytest.approx(0.3 / 1.3, rel=0.05)
    waiting = 1 - 9 / 20
    assert numbers["filter_response_s"] == pytest.approx(waiting, rel=0.05)
    assert numbers["sync_response_s"] == pytest.approx(waiting + 11 / 2 * 0.0005 * 60, rel=0.05)
