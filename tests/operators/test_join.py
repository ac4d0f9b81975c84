"""Joins against nested loops, under disorder, cuts, limits, saves, restores and changes of order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.engine.saving import pack, unpack
from millrace.operators import join as join_module
from millrace.operators import matching, segments
from millrace.operators.batch import END_OF_TIME, Batch
from millrace.operators.buffer import Buffer, Gauge
from millrace.operators.build import build
from millrace.operators.expression import TIME, Column
from millrace.operators.join import Join
from millrace.operators.operator import Moment
from millrace.operators.spec import Band, Equal, JoinSpec
from millrace.protocol import Field, Schema, Type
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
    kernel = uncompiled("joining") if request.param == "uncompiled" else installed("joining")
    monkeypatch.setattr(segments, "joining", kernel)
    return str(request.param)


class Harness:
    """One join with inputs that a test fills, and all that it has given."""

    def __init__(self, spec: JoinSpec, inputs: int, *, ordered: bool = False, schema: Schema = SCHEMA) -> None:
        self.spec = spec
        self.ordered = ordered
        self.schema = schema
        self.moment = Moment()
        self.inputs = [self._buffer() for _ in range(inputs)]
        self.start()
        self.rows: list[tuple[Any, ...]] = []
        self.times: list[int] = []

    def _buffer(self) -> Buffer:
        buffer = Buffer(self.schema, ordered=self.ordered, gauge=Gauge())
        buffer.wanted = True
        return buffer

    def start(self) -> None:
        readers = [buffer.attach() for buffer in self.inputs]
        operator = build("q.join1", self.spec, readers, Gauge(), self.moment)
        assert isinstance(operator, Join)
        self.operator = operator
        self.operator.output.wanted = True
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
        assert wait is None or any(reader.promise < wait for reader in operator.inputs), "it waits for nothing"

    def once(self, limit: int) -> None:
        taken = self.operator.execute(limit)
        assert taken <= limit
        self.collect()

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
        operator = self.operator
        saved = pack([[b.save(), r.save()] for b, r in zip(self.inputs, operator.inputs, strict=True)])
        state = pack(operator.save())
        passed, promise = self.output.passed, operator.output.promise
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
        self.output.passed = passed
        assert pack(self.operator.save()) == state
        assert [self.operator.queue_tuples(at) for at in range(len(self.inputs))] == held
        assert (self.operator.state_tuples, self.operator.numbers()) == (counts[0], counts[2])

    def end(self, limit: int = 1 << 30) -> None:
        for buffer in self.inputs:
            buffer.punctuate(END_OF_TIME)
        self.work(limit)

    def queued(self) -> int:
        return sum(buffer.gauge.tuples for buffer in self.inputs)


def seen(harness: Harness) -> Counter[Any]:
    return Counter(zip(harness.times, map(canonical, harness.rows), strict=True))


def canonical(row: Sequence[Any]) -> str:
    """A row as text that tells types apart, with one zero."""
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
    """Rows that have values in these columns alone."""
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
    """What comes on the inputs in which order, and promises that it keeps."""

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
            elif what == "once" and harness.operator.more():
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
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
LIMITS = st.sampled_from([1, 2, 7, 1 << 30])


def small(monkeypatch: pytest.MonkeyPatch, data: st.DataObject) -> None:
    """Limits that are met: few pairs at a time, segments of few tuples, keys whose identities collide."""
    monkeypatch.setattr(segments, "MOST_PAIRS", data.draw(st.sampled_from([2, 65_536])))
    monkeypatch.setattr(segments, "SMALLEST", 2)
    monkeypatch.setattr(segments, "FEW", data.draw(st.sampled_from([1, 3, 64])))
    monkeypatch.setattr(segments, "TOGETHER", data.draw(st.sampled_from([1, 4, 1024])))
    monkeypatch.setattr(segments, "WORTH_CLEARING", 2)
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

    monkeypatch.setattr(segments, "identity_of", identity_of)
    monkeypatch.setattr(matching, "identity_of", identity_of)


def finish(harness: Harness, results: Sequence[oracle.Result]) -> None:
    assert seen(harness) == wanted(results)
    if harness.operator.output.ordered:
        assert harness.times == sorted(harness.times)
    assert harness.operator.state_tuples == 0
    assert harness.operator.held_tuples() == 0
    assert harness.queued() == 0
    assert harness.output.promise == END_OF_TIME


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
        outer = count == 2 and data.draw(st.booleans())
        harness = Harness(spec_of(count, bands, equal, order=order, outer=outer), count)

        def change(harness: Harness) -> None:
            wished = data.draw(st.sampled_from(ORDERS if order == "arrival" else EVENT_ORDERS))
            harness.operator.set_order(wished, data.draw(st.sampled_from([None, 0.0, 0.5])))

        Script(data, inputs).play(harness, data.draw(LIMITS), change)
        finish(harness, oracle.join(inputs, bands, equal, outer=outer))


@SETTINGS
@given(data=st.data())
def test_windows_of_rows_agree_with_nested_loops(kernels: str, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        small(monkeypatch, data)
        count = data.draw(st.sampled_from([2, 2, 3]))
        bands = data.draw(bands_strategy(count))
        equal = data.draw(equal_strategy(count, ["i", "t"]))
        inputs = data.draw(inputs_strategy(count, ["i", "t"], {2: 14, 3: 8}[count]))
        # Rows of several inputs at one time are in order as they come, which the loops do not know.
        inputs = [[(time * count + at, row) for time, row in rows] for at, rows in enumerate(inputs)]
        newest = tuple(data.draw(st.lists(st.none() | st.integers(1, 4), min_size=count, max_size=count)))
        if newest == (None,) * count:
            newest = (1, *newest[1:])
        order = data.draw(st.sampled_from(ORDERS))
        outer = count == 2 and data.draw(st.booleans())
        harness = Harness(spec_of(count, bands, equal, order=order, outer=outer, rows=newest), count)
        assert harness.operator.output.ordered
        Script(data, inputs).play(harness, data.draw(LIMITS))
        finish(harness, oracle.join(inputs, bands, equal, outer=outer, newest=newest))
