"""The predicate index against the same queries without it: all effects, in their order, and all counts of tuples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Answer,
    Arrived,
    Command,
    CommandBody,
    Deliver,
    DropQuery,
    Effects,
    PauseQuery,
    Punctuated,
    ResumeQuery,
    RowsFailed,
    SetBreak,
    SetStrategy,
)
from millrace.operators.filter import routing
from millrace.sql import Catalog, CreateQuery, CreateStream, parse, plan
from millrace.values.batch import Batch
from tests.depth import examples

STREAM = "CREATE STREAM s (ts TIMESTAMP, a BIGINT, b DOUBLE, t TEXT, f BOOLEAN) WITH (time = 'ts', disorder = '{} us')"
FORMS = [
    "SELECT * FROM s WHERE {}",
    "SELECT a + 1 AS c, t FROM s WHERE {}",
    "SELECT a, count(*) AS n, window_start FROM TUMBLE(s, ts, INTERVAL '10 us') WHERE {} GROUP BY a, window_start",
    "SELECT a, b FROM s WHERE {} UNION ALL SELECT a, b FROM s WHERE a = 1",
]
BIGINTS = st.sampled_from([-(2**63), -2, -1, 0, 1, 2, 3, 7, 2**53 + 1, 2**63 - 1])
DOUBLES = st.sampled_from([-1e300, -1.5, -0.0, 0.0, 0.5, 1.0, 2.0, 2.5, 9007199254740992.0, 1e300])
TEXTS = st.sampled_from(["", "x", "y", "xy", "\u00e4", "\U0001f600"])
ROWS = st.tuples(
    st.integers(0, 40),
    st.none() | st.integers(-2, 4) | BIGINTS,
    st.none() | DOUBLES,
    st.none() | TEXTS,
    st.none() | st.booleans(),
)
NUMBERS = st.one_of(
    BIGINTS.map(lambda value: f"({value})" if value > -(2**63) else "(-9223372036854775807 - 1)"),
    DOUBLES.map(lambda value: f"({value!r})"),
)
LITERALS = TEXTS.map(lambda value: f"'{value}'")
KEYS = st.sampled_from(["a", "b", "a % 3", "a + 1", "10 / a", "CAST(a AS DOUBLE)"])
COMPARISONS = st.sampled_from(["=", "=", "=", "<", "<=", ">", ">=", "<>"])


def _atoms() -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(KEYS, COMPARISONS, NUMBERS).map(" ".join),
        st.tuples(NUMBERS, COMPARISONS, KEYS).map(" ".join),
        st.tuples(KEYS, NUMBERS, NUMBERS).map(lambda found: "{} BETWEEN {} AND {}".format(*found)),
        st.tuples(st.sampled_from(["a", "b"]), st.lists(NUMBERS, min_size=1, max_size=3)).map(
            lambda found: f"{found[0]} IN ({', '.join(found[1])})"
        ),
        st.tuples(st.sampled_from(["t", "lower(t)"]), COMPARISONS, LITERALS).map(" ".join),
        st.lists(LITERALS, min_size=1, max_size=3).map(lambda found: f"t IN ({', '.join(found)})"),
        st.sampled_from(
            ["f", "NOT f", "f IS NULL", "a IS NOT NULL", "t LIKE 'x%'", "a = NULL", "b > a", "1000 / a > 3"]
        ),
    )


PREDICATES = st.recursive(
    _atoms(),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["AND", "AND", "OR"]), inner).map(lambda f: f"({' '.join(f)})")
        | inner.map(lambda one: f"NOT ({one})")
    ),
    max_leaves=4,
)
QUERIES = st.tuples(st.sampled_from(FORMS[:2] * 3 + FORMS), PREDICATES)
ACTIONS = st.one_of(
    st.tuples(st.just("rows"), st.lists(ROWS, min_size=1, max_size=6)),
    st.tuples(st.just("rows"), st.lists(ROWS, min_size=1, max_size=6)),
    st.tuples(st.just("frames"), st.lists(st.lists(ROWS, min_size=1, max_size=3), min_size=2, max_size=3)),
    st.tuples(st.just("promise"), st.integers(0, 60)),
    st.tuples(st.just("add"), QUERIES),
    st.tuples(st.sampled_from(["drop", "pause", "resume", "break", "strategy", "save", "look"]), st.integers(0, 20)),
)


class Twins:
    """Two engines that obey the same: one has the index, the other does not."""

    def __init__(self, disorder_us: int) -> None:
        self.engines = [Engine(index=True), Engine(index=False)]
        self.made = self.now_us = 0
        self.obey(self.planned(STREAM.format(disorder_us)))

    def planned(self, sql: str) -> CommandBody:
        engine = self.engines[0]
        streams = {name: stream.definition for name, stream in engine.streams_by_name.items()}
        made = plan(parse(sql)[0], Catalog(streams, {name: one.plan for name, one in engine.queries_by_name.items()}))
        assert isinstance(made, CreateStream | CreateQuery)
        return AddStream(made.stream) if isinstance(made, CreateStream) else AddQuery(made.plan)

    def add(self, form: str, predicate: str) -> None:
        self.made += 1
        self.obey(self.planned(f"CREATE QUERY q{self.made} AS {form.format(predicate)}"))

    def obey(self, body: CommandBody) -> None:
        self.step(Command(1, body))

    def step(self, *events: Any) -> None:
        self.now_us += 1
        indexed, plain = ([*_run(engine, self.now_us, events)] for engine in self.engines)
        assert indexed == plain

    def look(self) -> None:
        """Whoever looks at operators wakes filters, so this is done now and then, and at the end."""
        assert _counts(self.engines[0]) == _counts(self.engines[1])

    def act(self, what: str, value: Any) -> None:
        queries = [*self.engines[0].queries_by_name]
        name = queries[value % len(queries)] if isinstance(value, int) and queries else "none"
        match what:
            case "rows":
                self.step(self.arrived(value))
            case "frames":
                self.step(*map(self.arrived, value))
            case "promise":
                self.step(Punctuated("s", "main", value))
            case "add":
                self.add(*value)
            case "drop":
                self.obey(DropQuery(name))
            case "pause":
                self.obey(PauseQuery(name))
            case "resume":
                self.obey(ResumeQuery(name))
            case "break":
                operators = [*self.engines[0].graph.operators]
                operator = operators[value % len(operators)]
                self.obey(SetBreak(operator, not self.engines[0].graph.has_break(operator)))
            case "strategy":
                self.obey(SetStrategy("s", ["dfs", "bfs", "rr", "chain", "dfs(2)", "bfs(1)"][value % 6], None))
            case "save":
                saved = self.engines[0].save()
                self.engines[0] = Engine.restore(saved)
                assert self.engines[0].save() == saved
            case "look":
                self.look()

    def arrived(self, rows: list[tuple[Any, ...]]) -> Arrived:
        schema = self.engines[0].streams_by_name["s"].definition.schema
        return Arrived("s", "main", Batch.from_rows(schema, rows, [row[0] for row in rows], self.now_us))


def _run(engine: Engine, now_us: int, events: tuple[Any, ...]) -> Iterator[Any]:
    effects: Effects = engine.step(now_us, events)
    while True:
        for order in effects.orders:
            if isinstance(order, Deliver):
                batch = order.batch
                yield order.query, order.sequence, batch.rows(), batch.ts.tolist(), batch.arrival.tolist()
            elif isinstance(order, RowsFailed | Answer):
                yield order if isinstance(order, RowsFailed) else (order.refused is None)
        if not effects.more:
            return
        effects = engine.step(now_us)


def _counts(engine: Engine) -> Any:
    keys = ("name", "input_tuples", "output_tuples", "errors", "state_tuples", "low_water_us")
    return [
        ([getattr(one, key) for key in keys], [(inlet.queue_tuples, inlet.skipped) for inlet in one.inputs])
        for one in engine.operators()
    ]


@pytest.fixture(autouse=True, scope="module")
def few() -> Iterator[None]:
    with patch.object(routing, "LEAST", 2):
        yield


@settings(max_examples=examples(400))
@given(st.sampled_from([0, 5]), st.lists(QUERIES, min_size=2, max_size=8), st.lists(ACTIONS, min_size=1, max_size=8))
def test_the_index_changes_no_effect(
    disorder_us: int, queries: list[tuple[str, str]], actions: list[tuple[str, Any]]
) -> None:
    twins = Twins(disorder_us)
    for query in queries:
        twins.add(*query)
    for action in actions:
        twins.act(*action)
    twins.look()
