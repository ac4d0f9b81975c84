"""Operators over update streams compared with recomputation, under disorder, random batches, saves and restores.

After every execution the state of the emitted rows must agree with the oracle's state of the rows taken so far.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millrace.engine.saving import pack, unpack
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.build import build
from millrace.operators.filter.spec import FilterSpec
from millrace.operators.frame.buffer import Buffer, Gauge
from millrace.operators.frame.operator import Operator, StepClock
from millrace.operators.frame.spec import Spec, retracting
from millrace.operators.project.spec import MapSpec
from millrace.operators.top.spec import Rank, TopSpec
from millrace.operators.union.spec import UnionSpec
from millrace.protocol import Field, Schema, Type
from millrace.sql import parse
from millrace.sql.binder import Binder, Relation
from millrace.sql.syntax import Item, Select, SelectStatement
from millrace.values.aggregates import AGGREGATES
from millrace.values.batch import Batch
from millrace.values.eventtime import MAX_TIME
from millrace.values.expression import Column, Expression
from tests.comparison import equal_rows
from tests.depth import examples
from tests.kernels import both_ways
from tests.oracles import updates as oracle
from tests.oracles import windows

COLUMNS = {"k": Type.BIGINT, "g": Type.TEXT, "v": Type.BIGINT, "d": Type.DOUBLE, "t": Type.TEXT}
NAMES = list(COLUMNS)
PLAIN = Schema(tuple(Field(name, type) for name, type in COLUMNS.items()))
RETRACTING = retracting(PLAIN.fields, (0,))
KEY = (0,)
SETTINGS = settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
VALUES: dict[str, Sequence[Any]] = {
    "k": [1, 2, 3, 4, None],
    "g": ["a", "b", "", None],
    "v": [-(2**63), 2**63 - 1, -2, 0, 0, 1, 2, 3, None],
    "d": [1e300, -1e300, 0.1, 0.2, -1.5, 3.0, 1e-9, None],
    "t": ["x", "y", "é", None],
}


def column(name: str) -> Column:
    return Column(COLUMNS[name], True, NAMES.index(name), name)


def expression(text: str) -> Expression:
    """An expression of SQL over the columns."""
    (statement,) = parse(f"SELECT {text}")
    assert isinstance(statement.body, SelectStatement)
    select = statement.body.query.first
    assert isinstance(select, Select)
    (item,) = select.items
    assert isinstance(item, Item)
    return Binder(statement.text, Relation("u", PLAIN, None, True, None)).bind(item.expression)


def drawn(draw: random.Random, *, gone: bool) -> list[dict[str, Any]]:
    """Rows of few keys, out of order by chance."""
    spread = draw.choice([1, 5, 40])
    ties = draw.random() < 0.3
    rows = []
    for place in range(draw.choice([1, 8, 40])):
        row: dict[str, Any] = {name: draw.choice(values) for name, values in VALUES.items()}
        ts = draw.randrange(3) if ties else place + draw.randrange(spread)
        row |= {"ts": ts, "place": place, "gone": gone and draw.random() < 0.25}
        if row["gone"]:
            row |= dict.fromkeys(NAMES[1:])
        rows.append(row)
    return rows


def in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as a sort emits them: equal times in order of arrival."""
    return [{**row, "place": place} for place, row in enumerate(sorted(rows, key=lambda row: row["ts"]))]


def batch_of(rows: Sequence[dict[str, Any]], schema: Schema) -> Batch:
    names = [*NAMES, *(["gone"] if schema.retracts else [])]
    return Batch.from_rows(schema, [tuple(row[name] for name in names) for row in rows], [row["ts"] for row in rows])


class Run:
    """One operator, fed in parts, and the state of its rows."""

    def __init__(self, spec: Spec, schema: Schema | Sequence[Schema], key: Sequence[str], inputs: int = 1) -> None:
        self.spec, self.key = spec, key
        self.schemas = [schema] * inputs if isinstance(schema, Schema) else schema
        self.state: oracle.State = {}
        self.times: dict[tuple[Any, ...], int] = {}
        self.rows: list[tuple[Any, ...]] = []
        self.given: list[int] = []
        self.sources = [Buffer(schema, ordered=False, gauge=Gauge()) for schema in self.schemas]
        self.operator = self._built()

    def _built(self) -> Operator:
        operator = build("u", self.spec, [source.attach() for source in self.sources], Gauge(), StepClock())
        self.out = operator.output.attach()
        return operator

    def swap(self) -> None:
        """Continue in another operator, restored from the saved state of this one."""
        saved = unpack(pack([self.operator.save(), self.operator.counts.save()]))
        for source, reader in zip(self.sources, self.operator.inputs, strict=True):
            source.detach(reader)
        before = self.operator
        self.operator = self._built()
        self.operator.restore(saved[0])
        assert self.operator.state_tuples == before.state_tuples
        assert self.operator.superseded == before.superseded

    def put(self, rows: Sequence[dict[str, Any]], at: int = 0) -> None:
        self.sources[at].put(batch_of(rows, self.schemas[at]))

    def execute(self, limit: int = 10_000) -> None:
        self.operator.settle()
        while self.operator.more():
            self.operator.execute(limit)
        batch = self.out.take(10_000)
        if batch is not None:
            self._tell(batch)

    def _tell(self, batch: Batch) -> None:
        """Build the state of a reader, and check the guarantees for every reader."""
        names = batch.schema.names
        assert batch.schema == self.operator.output.schema
        fillers = Batch.from_rows(batch.schema, batch.rows(), batch.ts)
        assert all(np.array_equal(one, other) for one, other in zip(fillers.columns, batch.columns, strict=True))
        for row, ts in zip(batch.rows(), batch.ts.tolist(), strict=True):
            said = dict(zip(names, row, strict=True))
            key = tuple(said[name] for name in self.key)
            assert ts >= self.times.get(key, ts), f"{key} goes back in time"
            self.times[key] = ts
            self.rows.append(row)
            self.given.append(ts)
            if said.pop("$gone", False):
                assert key in self.state, f"{key} was not there, and is said to have gone"
                assert all(value is None for name, value in said.items() if name not in self.key)
                del self.state[key]
            else:
                self.state[key] = tuple(value for name, value in said.items() if name not in self.key)


def played(
    draw: random.Random, run: Run, rows: Sequence[dict[str, Any]], check: Callable[[Sequence[dict[str, Any]]], None]
) -> None:
    """Feed rows in batches, with swaps, and check after each."""
    done = 0
    while done < len(rows):
        cut = draw.choice([1, 3, 10, 50])
        run.put(rows[done : done + cut])
        done = min(len(rows), done + cut)
        run.execute(draw.choice([1, 4, 10_000]))
        if draw.random() < 0.2:
            run.swap()
        check(rows[:done])


def timely(run: Run, rows: Sequence[dict[str, Any]], held: Callable[[Sequence[Any]], Any], *, every: bool) -> None:
    """The time of each key with a row, and with `every` of each tombstone, is the time with single rows."""
    wanted = oracle.times(rows, held)
    found = run.times if every else {key: run.times[key] for key in run.state}
    assert found == {key: ts for key, ts in wanted.items() if key in found}
    assert not every or found.keys() == wanted.keys()


def same(found: oracle.State, wanted: oracle.State) -> None:
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        assert equal_rows(found[key], row), (key, found[key], row)


# -- filters -----------------------------------------------------------------------------------------------------------


@SETTINGS
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from(["latest", "every"]))
def test_a_filter_keeps_the_keys_whose_current_row_passes(seed: int, gone: bool, emit: Any) -> None:
    draw = random.Random(seed)
    rows = drawn(draw, gone=gone)
    schema = RETRACTING if gone else PLAIN
    # A division by zero fails, so such a row does not pass. Division of integers truncates. Nulls may pass too.
    test, passes = draw.choice(
        [("10 / v > 2", lambda v: v in (1, 2, 3)), ("v IS NULL OR v > 1", lambda v: v is None or v > 1)]
    )
    run = Run(FilterSpec(expression(test), KEY, emit), schema, ["k"])

    def check(taken: Sequence[dict[str, Any]]) -> None:
        wanted = oracle.filtered(taken, ["k"], NAMES[1:], lambda row: passes(row["v"]))
        same(run.state, wanted)

    def held(taken: Sequence[Any]) -> oracle.State:
        return oracle.filtered(taken, ["k"], ["place"], lambda row: passes(row["v"]))

    played(draw, run, rows, check)
    timely(run, rows, held, every=emit == "every")


def test_a_tombstone_has_the_time_of_the_first_row_that_does_not_pass() -> None:
    blank = {"g": None, "d": None, "t": None, "gone": False}
    values = [(1, 1), (2, -1), (3, -1), (4, 1), (5, -1), (6, -1)]
    rows = [{"k": 1, "v": v, "ts": ts, "place": ts, **blank} for ts, v in values]
    for cuts in ([6], [1, 5], [3, 3], [4, 2], [1] * 6):
        run = Run(FilterSpec(expression("v > 0"), KEY), PLAIN, ["k"])
        begin = 0
        for cut in cuts:
            run.put(rows[begin : begin + cut])
            begin += cut
            run.execute()
        assert run.state == {}
        assert run.times in ({}, {(1,): 5})


def test_what_is_older_than_its_key_is_superseded_and_counted() -> None:
    run = Run(FilterSpec(expression("v > 0"), KEY), PLAIN, ["k"])
    blank = {"g": None, "d": None, "t": None, "gone": False, "place": 0}
    run.put([{"k": 1, "v": 1, "ts": 10, **blank}])
    run.execute()
    run.put([{"k": 1, "v": -1, "ts": 9, **blank}, {"k": 2, "v": 1, "ts": 3, **blank}])
    run.execute()
    assert run.operator.superseded == 1
    assert set(run.state) == {(1,), (2,)}


def test_latest_says_nothing_of_a_key_that_came_and_went_in_one_execution() -> None:
    blank = {"g": None, "d": None, "t": None, "gone": False, "place": 0}
    rows = [{"k": 1, "v": 1, "ts": 1, **blank}, {"k": 1, "v": -1, "ts": 2, **blank}]
    for emit, expected in (("latest", 0), ("every", 2)):
        run = Run(FilterSpec(expression("v > 0"), KEY, emit), PLAIN, ["k"])  # type: ignore[arg-type]
        run.put(rows)
        run.execute()
        assert len(run.rows) == expected


def test_nothing_is_computed_of_a_tombstone() -> None:
    mark = Column(Type.BOOLEAN, False, 5, "$gone")
    spec = MapSpec((("k", column("k")), ("x", expression("coalesce(v, 0) + 1")), ("$gone", mark)))
    run = Run(spec, RETRACTING, ["k"])
    row = {"k": 1, "g": None, "v": None, "d": None, "t": None, "ts": 1, "gone": False}
    run.put([row, {**row, "ts": 2, "gone": True}])
    run.execute()
    assert run.rows == [(1, 1, False), (1, None, True)]


# -- aggregates --------------------------------------------------------------------------------------------------------


def call(name: str, *arguments: str, distinct: bool = False, only: bool = False) -> AggregateCall:
    key = f"{name}({', '.join(str(COLUMNS[argument]) for argument in arguments)})"
    row = AGGREGATES[key]
    test = expression("v > 0") if only else None
    return AggregateCall(row.result, row.nullable, key, tuple(map(column, arguments)), distinct, test)


def only_positive(aggregate: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
    return lambda rows: aggregate([row for row in rows if row["v"] is not None and row["v"] > 0])


CALLS: dict[AggregateCall, Callable[[Sequence[Any]], Any]] = {
    call("count"): len,
    call("count", "t"): lambda rows: windows.count(rows, "t", False),
    call("count", "t", distinct=True): lambda rows: windows.count(rows, "t", True),
    call("sum", "v"): lambda rows: windows.total(rows, "v", False),
    call("sum", "v", only=True): only_positive(lambda rows: windows.total(rows, "v", False)),
    call("avg", "v"): lambda rows: windows.mean(rows, "v", False),
    call("sum", "d"): lambda rows: windows.total(rows, "d", False),
    call("avg", "d"): lambda rows: windows.mean(rows, "d", False),
    call("stddev", "v", only=True): only_positive(lambda rows: windows.deviation(rows, "v", False)),
    call("min", "v"): lambda rows: windows.least(rows, "v", False),
    call("max", "t"): lambda rows: windows.greatest(rows, "t", False),
    call("first", "t"): lambda rows: windows.first(rows, "t", False),
    call("last", "v"): lambda rows: windows.last(rows, "v", False),
    call("arg_max", "t", "d"): lambda rows: windows.arg_max(rows, "t", "d"),
}


@SETTINGS
@example(517, True, "latest", True)  # a row that could not be computed disappears, and its readers never saw it
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from(["latest", "every"]), st.booleans())
def test_aggregates_are_those_of_the_current_rows(seed: int, gone: bool, emit: Any, ordered: bool) -> None:
    draw = random.Random(seed)
    rows = drawn(draw, gone=gone)
    keys = draw.choice([[], ["g"], ["k"], ["g", "t"]])
    calls = draw.sample(list(CALLS), draw.choice([1, 3]))
    spec = AggregateSpec(
        None,
        tuple((name, column(name)) for name in keys),
        tuple((f"c{at}", one) for at, one in enumerate(calls)),
        emit=emit,
        replaces=KEY,
    )
    run = Run(spec, RETRACTING if gone else PLAIN, keys)
    assert run.operator.output.schema.retracts == (bool(keys) and (gone or keys != ["k"]))

    def check(taken: Sequence[dict[str, Any]]) -> None:
        wanted = oracle.grouped(oracle.current(taken, ["k"]), keys, [CALLS[one] for one in calls])
        for key, compute in wanted.items():
            try:
                row = compute()
            except (windows.Failed, OverflowError):
                # It is counted as failed, and the group keeps its previous row.
                continue
            if emit == "every" or key in run.state:
                assert equal_rows(run.state[key], row), (key, run.state[key], row)
        assert run.state.keys() <= wanted.keys()

    if ordered:
        rows = in_order(rows)
    played(draw, run, rows, check)
    assert not ordered or run.given == sorted(run.given)


@SETTINGS
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from(["latest", "every"]))
def test_the_time_of_a_group_is_that_of_its_last_cause_however_rows_are_cut(seed: int, gone: bool, emit: Any) -> None:
    draw = random.Random(seed)
    rows = drawn(draw, gone=gone)
    keys = draw.choice([["g"], ["g", "t"]])
    calls = (("n", call("count")), ("m", call("max", "t")))
    spec = AggregateSpec(None, tuple((name, column(name)) for name in keys), calls, emit=emit, replaces=KEY)
    run = Run(spec, RETRACTING if gone else PLAIN, keys)

    def held(taken: Sequence[Any]) -> dict[Any, list[int]]:
        members: dict[Any, list[int]] = {}
        for row in oracle.current(taken, ["k"]):
            members.setdefault(tuple(row[name] for name in keys), []).append(row["place"])
        return members

    played(draw, run, rows, lambda taken: None)
    timely(run, rows, held, every=emit == "every")


def test_doubles_that_came_and_went_leave_no_trace() -> None:
    spec = AggregateSpec(None, (), (("s", call("sum", "d")), ("a", call("avg", "d"))), replaces=KEY)
    run = Run(spec, PLAIN, [])
    draw = random.Random(7)
    values = dict.fromkeys(range(20), 0.0)
    for step in range(300):
        key = draw.randrange(20)
        values[key] = draw.choice([1e300, -1e250, 1e16, 1.0, 0.1, -3e-7, 1e-200])
        run.put([{"k": key, "g": None, "v": None, "d": values[key], "t": None, "ts": step, "gone": False}])
        run.execute()
    for key in range(20):
        values[key] = key / 7
        run.put([{"k": key, "g": None, "v": None, "d": values[key], "t": None, "ts": 1000, "gone": False}])
    run.execute()
    total = sum(values.values())
    assert equal_rows(run.state[()], (total, total / 20))


def test_many_keys_are_not_looked_at_one_by_one() -> None:
    """A call that is adjusted needs no other row of its group: the members are never gathered."""
    spec = AggregateSpec(
        None, (), (("n", call("count")), ("s", call("sum", "v")), ("a", call("avg", "d"))), replaces=KEY
    )
    run = Run(spec, PLAIN, [])
    state = run.operator.state  # type: ignore[attr-defined]
    state._located = None  # the call fails; the rows alone do not say whether it was made
    rows = [
        {"k": key % 1000, "g": None, "v": key, "d": 0.5, "t": None, "ts": key, "gone": False} for key in range(4096)
    ]
    run.put(rows)
    run.execute()
    assert run.state[()][:2] == (1000, sum(range(3096, 4096)))


# -- top n -------------------------------------------------------------------------------------------------------------

ORDERS = [
    [("v", True, True)],
    [("v", False, False), ("t", True, False)],
    [("t", False, True)],
    [("d", True, False), ("v", False, True)],
]


@SETTINGS
@given(
    st.integers(0, 2**32),
    st.sampled_from(["append", "updates", "gone"]),
    st.sampled_from(["latest", "every"]),
    st.booleans(),
)
def test_places_are_those_of_the_rows_in_order(seed: int, kind: str, emit: Any, ordered: bool) -> None:
    draw = random.Random(seed)
    rows = drawn(draw, gone=kind == "gone")
    partition = draw.choice([[], ["g"], ["g", "t"], ["k"]])
    order = draw.choice(ORDERS)
    most = draw.choice([1, 2, 3, 10])
    spec = TopSpec(
        tuple(map(column, partition)),
        tuple(Rank(column(name), descending, nulls_first) for name, descending, nulls_first in order),
        "r",
        most,
        replaces=None if kind == "append" else KEY,
        emit=emit,
    )
    rest = [name for name in NAMES if name not in partition]
    run = Run(spec, RETRACTING if kind == "gone" else PLAIN, [*partition, "r"])

    def check(taken: Sequence[dict[str, Any]]) -> None:
        alive = list(taken) if kind == "append" else oracle.current(taken, ["k"])
        same(run.state, oracle.top(alive, partition, order, rest, most))

    def held(taken: Sequence[Any]) -> oracle.State:
        alive = list(taken) if kind == "append" else oracle.current(taken, ["k"])
        return oracle.top(alive, partition, order, ["place"], most)

    if ordered:
        rows = in_order(rows)
    played(draw, run, rows, check)
    assert not ordered or run.given == sorted(run.given)
    timely(run, rows, held, every=emit == "every")


def test_an_append_stream_keeps_only_rows_that_have_a_place() -> None:
    spec = TopSpec((column("g"),), (Rank(column("v"), True),), "r", 2)
    run = Run(spec, PLAIN, ["g", "r"])
    row = {"g": "a", "d": None, "t": "x", "gone": False}
    for start in range(0, 3000, 100):
        run.put([{**row, "k": at, "v": at % 17, "ts": at} for at in range(start, start + 100)])
        run.execute()
    assert run.operator.state_tuples == 2 + 1
    assert run.operator.state_bytes < 20_000


def test_a_row_that_falls_makes_room_for_one_that_had_no_place() -> None:
    spec = TopSpec((), (Rank(column("v"), True),), "r", 2, replaces=KEY)
    run = Run(spec, PLAIN, ["r"])
    blank = {"g": None, "d": None, "t": None, "gone": False}
    run.put([{"k": key, "v": key, "ts": key, **blank} for key in range(1, 5)])
    run.execute()
    assert [row[0] for row in run.state.values()] == [4, 3]
    run.put([{"k": 4, "v": 0, "ts": 9, **blank}])
    run.execute()
    assert {key: row[0] for key, row in run.state.items()} == {(1,): 3, (2,): 2}


WINDOWED = Schema((*PLAIN.fields, Field("e", Type.TIMESTAMP)))


@SETTINGS
@given(st.integers(0, 2**32))
def test_places_of_windows_are_given_once_when_the_window_is_over(seed: int) -> None:
    """The bound is the end of windows of 10 us, so no row is later than the end less 1 us; promises are random."""
    draw = random.Random(seed)
    rows = drawn(draw, gone=False)
    for row in rows:
        row["e"] = None if draw.random() < 0.1 else row["ts"] // 10 * 10 + 10
    end = Column(Type.TIMESTAMP, True, 5, "e")
    spec = TopSpec((end,), (Rank(column("v"), True, True),), "r", 2, closes_at=5, closes_us=-1)
    run = Run(spec, WINDOWED, ["e", "r"])
    names = [*NAMES, "e"]
    promise, taken = 0, []
    for row in rows:
        if row["ts"] < promise:
            continue
        taken.append(row)
        run.sources[0].put(Batch.from_rows(WINDOWED, [tuple(row[name] for name in names)], [row["ts"]]))
        if draw.random() < 0.3:
            promise = max(promise, row["ts"] - draw.randrange(12))
            run.sources[0].punctuate(promise)
        run.execute(draw.choice([1, 10]))
        run.operator.execute(10)
        run.execute()
        if draw.random() < 0.2:
            run.swap()
        wanted = oracle.top([one for one in taken if one["e"]], ["e"], [("v", True, True)], NAMES, 2)
        same(run.state, {key: row for key, row in wanted.items() if key[0] <= promise})
        assert run.operator.low_water() <= min(
            (one["e"] - 1 for one in taken if one["e"] and one["e"] > promise), default=promise
        )
    assert len(run.rows) == len(run.state), "a place was given twice"
    run.sources[0].punctuate(MAX_TIME)
    run.operator.execute(10_000)
    run.execute()
    same(run.state, oracle.top([one for one in taken if one["e"]], ["e"], [("v", True, True)], NAMES, 2))
    assert run.operator.state_tuples == 0
    assert all(ts == key[0] - 1 for key, ts in run.times.items())


# -- unions ------------------------------------------------------------------------------------------------------------


@SETTINGS
@given(st.integers(0, 2**32), st.booleans())
def test_a_union_delivers_the_youngest(seed: int, gone: bool) -> None:
    draw = random.Random(seed)
    rows = drawn(draw, gone=gone)
    schema = RETRACTING if gone else PLAIN
    run = Run(UnionSpec(False, KEY), schema, ["k"], inputs=2)
    arms = [(draw.randrange(2), row) for row in rows]
    for source, row in arms:
        run.sources[source].put(batch_of([row], schema))
        while run.operator.more():
            run.operator.execute(draw.choice([1, 10]))
    batch = run.out.take(10_000)
    given_rows = [] if batch is None else [row[: len(NAMES)] for row in batch.rows()]
    delivered = oracle.youngest(arms, ["k"])
    assert given_rows == [tuple(row[name] for name in NAMES) for row in delivered]
    assert run.operator.superseded == len(rows) - len(delivered)


# -- kernels -----------------------------------------------------------------------------------------------------------


@both_ways("updates")
def test_members_move_between_chains(kernel: Any) -> None:
    draw = random.Random(3)
    owner, following, before = (np.full(30, -1) for _ in range(3))
    head = np.full(5, -1)
    belongs = dict.fromkeys(range(30), -1)
    for _ in range(200):
        member, to = draw.randrange(30), draw.randrange(-1, 5)
        kernel.move(np.array([member]), np.array([to]), owner, head, following, before)
        belongs[member] = to
        for one in range(5):
            found, at = [], int(head[one])
            while at >= 0:
                found.append(at)
                at = int(following[at])
            assert sorted(found) == [key for key, value in belongs.items() if value == one]


@both_ways("updates")
def test_what_is_newest_and_what_shows(kernel: Any) -> None:
    slots, times = np.array([0, 1, 0, 0, 1]), np.array([5, 1, 4, 5, 2])
    last, kept = np.full(2, -(2**63)), np.zeros(5, np.uint8)
    kernel.newest(slots, times, last, kept)
    assert kept.tolist() == [1, 1, 0, 1, 1]
    assert last.tolist() == [5, 2]
    shown, said = np.zeros(2, np.uint8), np.zeros(5, np.uint8)
    kernel.show(slots, np.array([1, 0, 0, 0, 1], np.uint8), shown, said)
    assert said.tolist() == [1, 0, 2, 0, 1]
    last, sources, kept = np.full(2, -(2**63)), np.zeros(2, np.int64), np.zeros(5, np.uint8)
    kernel.youngest(slots, times, 0, last, sources, kept)
    assert kept.tolist() == [1, 1, 0, 1, 1]
    again = np.zeros(1, np.uint8)
    kernel.youngest(np.array([0]), np.array([5]), 1, last, sources, again)
    assert again.tolist() == [0]


@pytest.mark.parametrize("spec", [FilterSpec(expression("v > 0"), KEY), TopSpec((), (Rank(column("v")),), "r", 1)])
def test_what_is_remembered_counts(spec: Spec) -> None:
    run = Run(spec, PLAIN, [])
    before = run.operator.state_bytes
    run.put([{"k": key, "g": "a", "v": key, "d": 0.0, "t": "b", "ts": key, "gone": False} for key in range(100)])
    run.operator.execute(1000)
    assert run.operator.state_tuples > 0
    assert run.operator.state_bytes > before
