"""Sequences compared with all pairs, under disorder within promises, ties, batches, limits, saves and restores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millrace.engine.saving import pack, unpack
from millrace.operators.aggregate import groups
from millrace.operators.build import build
from millrace.operators.frame.buffer import Buffer, Gauge
from millrace.operators.frame.operator import StepClock
from millrace.operators.frame.picked import Picked
from millrace.operators.sequence import sequence
from millrace.operators.sequence import store as sequence_store
from millrace.operators.sequence.spec import SequenceSpec
from millrace.protocol import Field, Schema, Type
from millrace.values.batch import Batch
from millrace.values.eventtime import FIRST_US, HORIZON_US, LAST_US, MAX_TIME, MIN_TIME
from millrace.values.expression import TIME, Call, Column, Constant, Expression
from tests.depth import examples
from tests.kernels import installed, uncompiled
from tests.oracles import sequences as oracle

WITHIN_US = 5
REMOVE_BELOW = sequence_store.SequenceStore.remove_below
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
# The inputs have their columns in different places, and one of them has one more.
FIRST = Schema((Field("id", Type.BIGINT, False), *(Field(name, type, True) for name, type in COLUMNS.items())))
SECOND = Schema((*(Field(name, type, True) for name, type in COLUMNS.items()), Field("id", Type.BIGINT, False)))
ID = len(NAMES)

VALUES = {
    "i": st.integers(-1, 2),
    "d": st.sampled_from([0.0, -0.0, 1.5]),
    "t": st.sampled_from(["", "a", "é"]),
    "b": st.booleans(),
    "y": st.sampled_from([b"", b"\x00"]),
    "m": st.integers(-1, 1),
    "n": st.integers(-1, 1),
}
values_strategy = st.tuples(*(st.one_of(VALUES[name], VALUES[name], st.none()) for name in NAMES))
rows_strategy = st.lists(st.tuples(st.integers(-6, 14), values_strategy), max_size=14)

PICKED: tuple[Picked, ...] = (
    ("a_ts", 0, TIME),
    ("a_id", 0, 0),
    *((f"a_{name}", 0, 1 + at) for at, name in enumerate(NAMES)),
    ("b_ts", 1, TIME),
    ("b_id", 1, ID),
    *((f"b_{name}", 1, at) for at, name in enumerate(NAMES)),
)
ALONE = PICKED[: 2 + len(NAMES)]


def key(name: str) -> tuple[Expression, Expression]:
    kind, at = COLUMNS[name], NAMES.index(name)
    return Column(kind, True, 1 + at, name), Column(kind, True, at, name)


def of_pair(name: str) -> Column:
    at = [picked[0] for picked in PICKED].index(name)
    return Column(COLUMNS[name[2:]], True, at, name)


LESS = Call(Type.BOOLEAN, True, "<(bigint, bigint)", (of_pair("a_i"), of_pair("b_i")))
QUOTIENT = Call(
    Type.BOOLEAN,
    True,
    ">=(bigint, bigint)",
    (Call(Type.BIGINT, True, "/(bigint, bigint)", (of_pair("a_i"), of_pair("b_i"))), Constant(Type.BIGINT, False, 0)),
)


def less(a: oracle.Row, b: oracle.Row) -> bool:
    return a[1][0] is not None and b[1][0] is not None and a[1][0] < b[1][0]


def quotient(a: oracle.Row, b: oracle.Row) -> bool:
    if b[1][0] == 0 and a[1][0] is not None:
        raise oracle.Impossible
    return a[1][0] is not None and b[1][0] is not None and int(a[1][0] / b[1][0]) >= 0


TESTS: dict[str, tuple[Expression | None, oracle.Test]] = {
    "none": (None, lambda a, b: True),
    "less": (LESS, less),
    "quotient": (QUOTIENT, quotient),
}


@pytest.fixture(params=["installed", "uncompiled"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of running the kernels, and stores that are swept all the time."""
    load = uncompiled if request.param == "uncompiled" else installed
    following = load("sequence")
    monkeypatch.setattr(groups, "grouping", load("grouping"))
    monkeypatch.setattr(sequence_store, "kernel", following)
    monkeypatch.setattr(sequence, "kernel", following)
    return str(request.param)


@pytest.fixture(autouse=True)
def swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores are swept often, and pairs arrive in small parts."""
    monkeypatch.setattr(sequence_store, "IDLE", 3)
    monkeypatch.setattr(sequence, "PAIRS", 2)


class Harness:
    """A sequence with two inputs that a test fills, and all emitted rows."""

    def __init__(self, spec: SequenceSpec, ordered: tuple[bool, bool] = (False, False)) -> None:
        self.spec = spec
        self.ordered = ordered
        self.gauge = Gauge()
        self.rows: list[tuple[int, tuple[Any, ...]]] = []
        self.start()
        self.floor = MIN_TIME

    def start(self) -> None:
        schemas = (FIRST, SECOND)
        self.inputs = [Buffer(schemas[at], ordered=self.ordered[at], gauge=self.gauge) for at in (0, 1)]
        for buffer in self.inputs:
            buffer.punctuates = True
        readers = [buffer.attach() for buffer in self.inputs]
        made = build("q.sequence1", self.spec, readers, self.gauge, StepClock())
        assert isinstance(made, sequence.FollowedBy)
        self.operator = made
        self.operator.output.punctuates = True
        self.output = self.operator.output.attach()

    def put(self, at: int, rows: Sequence[tuple[int, tuple[Any, ...]]]) -> None:
        if rows:
            schema = (FIRST, SECOND)[at]
            made = [(row[-1], *row[:-1]) if at == 0 else row for _, row in rows]
            self.inputs[at].put(Batch.from_rows(schema, made, [ts for ts, _ in rows], arrival=100 + at))

    def work(self, limit: int) -> None:
        """Execute until no work is left."""
        operator = self.operator
        spent = 0
        while operator.fresh() or operator.more():
            assert operator.execute(limit) <= limit
            spent += 1
            assert spent < 10_000, "it never ends"
            self.collect()
        assert self.output.promise == operator.low_water()

    def collect(self) -> None:
        batch = self.output.take(1 << 30)
        if batch is not None:
            assert all(ts >= self.floor for ts in batch.ts.tolist()), "below its own promise"
            newest = 100 if self.spec.absent else 101
            assert set(batch.arrival.tolist()) <= {newest}, "a row arrived when its newest tuple did"
            self.rows += zip(batch.ts.tolist(), batch.rows(), strict=True)
        self.output.pass_punctuations()
        self.floor = self.output.buffer.promise

    def again(self) -> None:
        """Save the operator and continue with the restored one."""
        self.collect()
        saved = pack(
            [
                [buffer.save() for buffer in self.inputs],
                [reader.save() for reader in self.operator.inputs],
                self.operator.output.promise,
                self.operator.counts.save(),
                self.operator.save(),
            ]
        )
        before = self.operator.state_tuples, self.operator.state_bytes, self.operator.need()
        tuples = self.gauge.tuples
        self.gauge = Gauge()
        self.start()
        buffers, readers, promise, counts, state = unpack(saved)
        for buffer, data in zip(self.inputs, buffers, strict=True):
            buffer.restore(data)
        for reader, data in zip(self.operator.inputs, readers, strict=True):
            reader.restore(data)
        self.operator.restore(state)
        self.operator.counts.restore(counts)
        self.operator.output.promise = promise
        assert pack(self.operator.save()) == pack(state)
        assert (self.operator.state_tuples, self.operator.state_bytes, self.operator.need()) == before
        assert self.gauge.tuples == tuples

    def end(self, limit: int = 1 << 30) -> None:
        for buffer in self.inputs:
            buffer.punctuate(MAX_TIME)
        self.work(limit)
        assert self.output.promise == MAX_TIME
        assert self.gauge.tuples == self.operator.held_tuples() == 0


def pieces(draw: Any, rows: Sequence[oracle.Row]) -> list[tuple[list[oracle.Row], int | None]]:
    """Parts of an input, each optionally with a promise that no later row breaks."""
    made = []
    at = 0
    while at < len(rows):
        stop = at + draw(st.integers(1, 5))
        least = min((ts for ts, _ in rows[stop:]), default=20)
        made.append((list(rows[at:stop]), draw(st.none() | st.integers(-8, least) | st.just(least))))
        at = stop
    return made


def numbered(rows: Sequence[oracle.Row]) -> list[oracle.Row]:
    return [(ts, (*values, at)) for at, (ts, values) in enumerate(rows)]


def shown(pair: oracle.Pair) -> tuple[int, tuple[Any, ...]]:
    a, b = pair
    first = (None,) * len(ALONE) if a is None else (a[0], a[1][ID], *a[1][:ID])
    return b[0], (*first, b[0], b[1][ID], *b[1][:ID])


class World:
    """A random sequence, its data, and the expected result."""

    def __init__(self, data: st.DataObject) -> None:
        draw = data.draw
        self.ordered = (draw(st.booleans()), draw(st.booleans()))
        self.rows = [numbered(draw(rows_strategy)) for _ in range(2)]
        for at in (0, 1):
            if self.ordered[at]:
                self.rows[at].sort(key=lambda row: row[0])
        names = draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
        self.keys = [NAMES.index(name) for name in names]
        self.absent = draw(st.booleans())
        self.within = draw(st.integers(0, 8) if self.absent else st.none() | st.integers(0, 8))
        self.mode = draw(st.sampled_from(["recent", "chronicle"]))
        self.outer = not self.absent and draw(st.booleans())
        where, self.test = TESTS[draw(st.sampled_from(list(TESTS)))]
        separate = self.absent or draw(st.booleans())
        self.spec = SequenceSpec(
            ALONE if self.absent else PICKED,
            tuple(map(key, names)),
            where,
            self.mode,  # type: ignore[arg-type]
            self.within,
            self.absent,
            self.outer,
            PICKED if separate and where is not None else (),
        )

    def wanted(self) -> tuple[list[tuple[int, tuple[Any, ...]]], int]:
        first, second = self.rows
        if self.absent:
            assert self.within is not None
            alone, failed = oracle.absent(first, second, self.keys, self.within, self.test)
            return [(a[0] + self.within, (a[0], a[1][ID], *a[1][:ID])) for a in alone], failed
        pairs, failed = oracle.following(first, second, self.keys, self.mode, self.within, self.test, self.outer)
        return list(map(shown, pairs)), failed

    def known(self, harness: Harness, come: Sequence[Sequence[oracle.Row]]) -> list[tuple[int, tuple[Any, ...]]]:
        """The rows that must be emitted when no work is left."""
        wanted, _ = self.wanted()
        first, second = (buffer.promise for buffer in harness.inputs)
        if self.absent:
            assert self.within is not None
            undecided = [ts for ts, _ in come[1] if ts >= first or ts > second]
            bound = min([first + self.within + 1, second, *undecided])
        else:
            bound = min(first, second + 1)
        # A row at exactly the promised time may still arrive.
        place = 1 if self.absent else len(ALONE) + 1
        there = {values[ID] for _, values in come[0 if self.absent else 1]}
        return [row for row in wanted if row[0] < bound and row[1][place] in there]


SETTINGS = settings(
    max_examples=examples(150),
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@SETTINGS
@given(data=st.data())
def test_agrees_with_looking_at_all_pairs(kernels: str, data: st.DataObject) -> None:
    world = World(data)
    draw = data.draw
    wanted, failed = world.wanted()
    harness = Harness(world.spec, world.ordered)
    parts = [pieces(draw, rows) for rows in world.rows]
    come: list[list[oracle.Row]] = [[], []]
    limit = draw(st.sampled_from([1, 2, 5, 1 << 30]))
    while any(parts):
        at = draw(st.sampled_from([at for at in (0, 1) if parts[at]]))
        rows, promise = parts[at].pop(0)
        harness.put(at, rows)
        come[at] += rows
        if promise is not None:
            harness.inputs[at].punctuate(promise)
        action = draw(st.sampled_from(["work", "work", "execute", "nothing"]))
        if action == "work":
            harness.work(limit)
            # No certain result is withheld, and no result is emitted too early.
            assert harness.rows == world.known(harness, come)
            need = harness.operator.need()
            holding = harness.operator.holding()
            assert (need is None) == (not holding)
            assert need is None or all(harness.operator.inputs[at].promise < need for at in holding)
        harness.operator.settle()
        if action == "execute" and (harness.operator.more() or harness.operator.fresh()):
            harness.operator.execute(limit)
            harness.collect()
        if draw(st.integers(0, 3)) == 0:
            harness.again()
    harness.end(limit)
    assert harness.rows == wanted
    assert harness.operator.counts.errors == failed
    if world.within is not None:
        assert harness.operator.state_tuples == 0


VALUE: tuple[Any, ...] = (1, 0.5, "a", True, b"", 0, 0)
FAR = LAST_US - 1


@pytest.mark.parametrize("within", [0, 1, FAR, 2**63 - 1])
@pytest.mark.parametrize("mode", ["recent", "chronicle", "absent"])
def test_times_and_bounds_far_apart_do_not_wrap(kernels: str, mode: Any, within: int) -> None:
    spread = [(FIRST_US, VALUE), (FIRST_US + 5, VALUE), (-1, VALUE), (0, VALUE), (FAR - 1, VALUE), (FAR + 1, VALUE)]
    rows = numbered(spread)
    absent = mode == "absent"
    names = ALONE if absent else PICKED
    spec = SequenceSpec(names, (key("i"),), None, "recent" if absent else mode, within, absent)
    harness = Harness(spec)
    harness.put(0, rows)
    harness.put(1, [(ts + 1, values) for ts, values in rows])
    harness.end(2)
    second = [(ts + 1, values) for ts, values in rows]
    if absent:
        alone, _ = oracle.absent(rows, second, [0], within, lambda a, b: True)
        assert [row[1][1] for row in harness.rows] == [a[1][ID] for a in alone]
        assert [row[0] for row in harness.rows] == [min(a[0] + within, HORIZON_US) for a in alone]
    else:
        pairs, _ = oracle.following(rows, second, [0], mode, within, lambda a, b: True, False)
        assert harness.rows == list(map(shown, pairs))


def test_without_bounds_recent_keeps_one_row_per_key_and_chronicle_what_is_unused(kernels: str) -> None:
    rows = numbered([(at, (at % 3, *VALUE[1:])) for at in range(60)])
    for mode, kept in (("recent", 3), ("chronicle", 60)):
        harness = Harness(SequenceSpec(PICKED, (key("i"),), None, mode))  # type: ignore[arg-type]
        harness.put(0, rows)
        harness.inputs[0].punctuate(100)
        harness.inputs[1].punctuate(100)
        harness.work(7)
        assert harness.operator.state_tuples == kept
        assert harness.operator.held_tuples() == 0
        harness.operator.clear()
        assert harness.operator.state_tuples == 0


def test_null_equals_nothing(kernels: str) -> None:
    nobody = (None, *VALUE[1:])
    for absent, outer, wanted in ((False, False, 0), (False, True, 1), (True, False, 1)):
        columns = ALONE if absent else PICKED
        spec = SequenceSpec(columns, (key("i"),), within_us=10, absent=absent, outer=outer)
        harness = Harness(spec)
        harness.put(0, numbered([(1, nobody)]))
        harness.put(1, numbered([(2, nobody)]))
        harness.end()
        assert len(harness.rows) == wanted
        if outer:
            assert harness.rows[0][1][1] is None


@pytest.mark.parametrize(
    ("mode", "kind", "part", "broken"),
    [
        ("recent", sequence.Following, "bounds", lambda self: (self.horizon(), self.horizon())),
        ("recent", sequence.Following, "bounds", lambda self: (self.horizon(), self.inputs[1].promise)),
        (
            "chronicle",
            sequence_store.SequenceStore,
            "remove_below",
            lambda self, time_us, limit: REMOVE_BELOW(self, time_us + WITHIN_US, limit),
        ),
    ],
    ids=["simultaneous", "ahead of A", "forgets too early"],
)
def test_a_broken_sequence_is_noticed(
    monkeypatch: pytest.MonkeyPatch, mode: Any, kind: type, part: str, broken: Any
) -> None:
    before, after = numbered([(1, VALUE), (4, VALUE), (4, VALUE)]), numbered([(4, VALUE), (5, VALUE), (6, VALUE)])

    def agrees() -> bool:
        harness = Harness(SequenceSpec(PICKED, (key("i"),), None, mode, WITHIN_US), (True, True))
        for a, b in zip(before, after, strict=True):
            harness.put(0, [a])
            harness.put(1, [b])
            harness.work(1)
        harness.end()
        pairs, _ = oracle.following(before, after, [0], mode, WITHIN_US, lambda a, b: True, False)
        return harness.rows == list(map(shown, pairs))

    assert agrees()
    monkeypatch.setattr(kind, part, broken)
    assert not agrees()
