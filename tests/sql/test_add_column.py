"""A stream gets more columns while queries run: the existing queries continue unchanged.

The oracle is the same engine without the change, fed the same tuples without the new column.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    AlterStream,
    Answer,
    Arrived,
    Command,
    Deliver,
    InsertOperator,
    PauseQuery,
    RemoveOperator,
    ReplaceQuery,
    ResumeQuery,
)
from millrace.operators.filter.spec import SelectSpec
from millrace.protocol import Field, Refuse, Schema, Type
from millrace.sql import AlterStatement, Catalog, CreateQuery, CreateStream, SqlError, parse, plan_all
from millrace.values.batch import Batch
from millrace.values.expression import Constant
from tests.depth import examples

BASE = """CREATE STREAM s (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts', update_key = 'k');
CREATE STREAM t (ts TIMESTAMP, k BIGINT, w BIGINT) WITH (time = 'ts');
"""
QUERIES = [
    "SELECT * FROM s WHERE v > 1",
    "SELECT v, k FROM s",
    "SELECT k, count(*) AS n, window_start FROM TUMBLE(s, ts, INTERVAL '10 us') GROUP BY k, window_start",
    "SELECT *, s.v + 1 AS more FROM s [RANGE '5 us'] JOIN t [RANGE '3 us'] ON s.k = t.k",
    "SELECT s.*, w FROM t [RANGE '5 us'] JOIN s [RANGE '3 us'] ON s.k = t.k",
    "SELECT * FROM s UNION ALL SELECT * FROM t",
    "SELECT DISTINCT * FROM TUMBLE(s, ts, '10 us')",
    "SELECT k, sum(v) AS total FROM s GROUP BY k",
    "SELECT k, v FROM s LATEST",
    "SELECT * FROM s SHED RANDOM 3",
    "SELECT s.v, t.w FROM s FOLLOWED BY t WITHIN '9 us' ON s.k = t.k",
    "SELECT k FROM (SELECT * FROM s) d",
    "SELECT k, late_by_us FROM s.late",
    "SELECT * FROM s.late",
]
NARROW = Schema.of(ts="timestamp", k="bigint", v="bigint")
ALTER = "ALTER STREAM s ADD COLUMN x DOUBLE"


def command(step):
    match step:
        case CreateStream(stream):
            return AddStream(stream)
        case CreateQuery(plan):
            return AddQuery(plan)
        case AlterStatement():
            return step.command
    raise AssertionError(step)


class Server:
    """An engine and a catalog with the parts that this test needs."""

    def __init__(self, sql):
        self.engine, self.catalog, self.rows, self.now = Engine(), Catalog(), {}, 0
        self.execute(sql)

    def execute(self, sql):
        steps, self.catalog = plan_all(parse(sql), self.catalog)
        for step in steps:
            self.engine.obey(command(step))
        return steps

    def step(self, *events, **limits):
        self.now += 1
        effects = self.engine.step(self.now, events, **limits)
        for order in effects.orders:
            if isinstance(order, Deliver):
                rows = zip(order.batch.ts.tolist(), order.batch.rows(), strict=True)
                self.rows.setdefault(order.query, []).extend(rows)
        return effects

    def drain(self):
        while self.step().more:
            pass

    def give(self, stream, rows, **limits):
        wide = len(rows[0]) > 3
        schema = Schema((*NARROW, Field("x", Type.DOUBLE))) if wide else NARROW
        return self.step(Arrived(stream, "f", Batch.from_rows(schema, rows, [row[0] for row in rows])), **limits)

    def save_and_restore(self):
        saved = self.engine.save()
        self.engine = Engine.restore(saved)
        assert self.engine.save() == saved


def named(queries):
    return BASE + "".join(f"CREATE QUERY q{number} AS {query};" for number, query in enumerate(queries))


TUPLES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=6)
DOINGS = st.lists(
    st.one_of(
        st.tuples(st.just("s"), TUPLES, st.booleans()),
        st.tuples(st.just("t"), TUPLES, st.just(False)),
        st.tuples(st.just("pause"), st.integers(0, 3), st.none()),
        st.tuples(st.just("restore"), st.none(), st.none()),
        st.tuples(st.just("work"), st.integers(1, 9), st.none()),
    ),
    max_size=14,
)


@settings(max_examples=examples(120), deadline=None)
@given(st.lists(st.sampled_from(QUERIES), min_size=1, max_size=4), DOINGS, st.integers(0, 14), st.booleans())
def test_existing_queries_continue_unchanged(queries, doings, when, twice):
    plain, altered = Server(named(queries)), Server(named(queries))
    at = 0
    for number, (kind, what, wide) in enumerate([*doings, ("t", [(90, 9, 9)], False), ("s", [(90, 9, 9)], True)]):
        if number == min(when, len(doings)):
            altered.execute(ALTER)
            if twice:
                altered.execute("ALTER STREAM s ADD COLUMN y TEXT DEFAULT NULL")
        if kind == "pause":
            name = f"q{what % len(queries)}"
            for each in (plain, altered):
                # A pause skips tuples that its query has not received yet; their number depends on the scheduler.
                each.drain()
                body = ResumeQuery(name) if each.engine.query(name).paused else PauseQuery(name)
                each.engine.obey(body)
        elif kind == "restore":
            altered.save_and_restore()
        elif kind == "work":
            for each in (plain, altered):
                each.step(budget=what)
        else:
            at += 2
            rows = [(at + ts, k, v) for ts, k, v in what]
            has_x = wide and len(altered.engine.streams_by_name[kind].definition.schema) == 4
            plain.give(kind, rows, budget=1)
            altered.give(kind, [(*row, 0.5) for row in rows] if has_x else rows, budget=1)
    for each in (plain, altered):
        each.drain()
    for name, query in plain.engine.queries_by_name.items():
        # With rows in order of arrival, the scheduler chooses the input that is read first.
        several = any(len(operator.inputs) > 1 for operator in query.operators)
        first, second = (server.rows.get(name, []) for server in (plain, altered))
        assert (sorted(first, key=repr) == sorted(second, key=repr)) if several else first == second
    assert altered.engine.gauge.tuples == plain.engine.gauge.tuples


@pytest.mark.parametrize("query", QUERIES)
def test_the_texts_mean_the_same_in_a_new_server(query):
    """The rewritten statements, applied to an empty server, return the same rows as the altered queries."""
    running = Server(named([query]))
    running.execute(ALTER)
    streams = [stream.sql for stream in running.catalog.streams.values()]
    fresh = Server(";".join([*streams, *(plan.sql for plan in running.catalog.queries.values())]))
    assert fresh.catalog.queries["q0"].schema == running.catalog.queries["q0"].schema
    for server in (running, fresh):
        for at in (1, 4, 2, 9, 30, 29, 60):
            server.give("s", [(at, at % 3, at, 1.5)])
            server.give("t", [(at, at % 3, at)])
        server.drain()
    assert fresh.rows == running.rows


def test_a_new_query_reads_the_new_column_and_old_feeds_have_none():
    server = Server(named(["SELECT * FROM s"]))
    server.give("s", [(1, 1, 1)], executions=0)
    server.execute(f"{ALTER}; CREATE QUERY later AS SELECT k, x FROM s; CREATE QUERY star AS SELECT * FROM s")
    server.give("s", [(2, 2, 2)])
    server.give("s", [(3, 3, 3, 0.5)])
    server.drain()
    assert server.rows["q0"] == [(1, (1, 1, 1)), (2, (2, 2, 2)), (3, (3, 3, 3))]
    assert server.rows["later"] == [(2, (2, None)), (3, (3, 0.5))]
    assert server.rows["star"] == [(2, (2, 2, 2, None)), (3, (3, 3, 3, 0.5))]


def test_late_tuples_have_the_column_too():
    server = Server(named(["SELECT * FROM s.late"]))
    server.execute(f"{ALTER}; CREATE QUERY lost AS SELECT k, x, late_by_us FROM s.late")
    server.give("s", [(9, 1, 1, 0.5)])
    server.give("s", [(4, 2, 2, 0.25), (5, 3, 3, 1.0)])
    server.drain()
    assert [row for _, row in server.rows["lost"]] == [(2, 0.25, 5), (3, 1.0, 4)]
    assert [row[:4] for _, row in server.rows["q0"]] == [(4, 2, 2, 5), (5, 3, 3, 4)]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("ALTER STREAM s ADD COLUMN x DOUBLE NOT NULL", "an added column must be nullable"),
        ("ALTER STREAM s ADD COLUMN x DOUBLE DEFAULT 1.5", "DEFAULT NULL"),
        ("ALTER STREAM s ADD COLUMN k DOUBLE", "s already has a column k"),
        ("ALTER STREAM s ADD COLUMN mark BIGINT", "s.late already has a column mark, which describes each late tuple"),
        ("ALTER STREAM s ADD COLUMN x INTERVAL", "a column cannot be an interval"),
        ('ALTER STREAM s ADD COLUMN "$gone" BOOLEAN', "marks deleted rows"),
        ('ALTER STREAM s ADD COLUMN "$deleted" BOOLEAN', "marks deleted rows"),
        ("ALTER STREAM q0 ADD COLUMN x DOUBLE", "q0 is a query, not a stream"),
        ("ALTER STREAM nobody ADD COLUMN x DOUBLE", "the stream nobody does not exist"),
        ("ALTER STREAM i ADD COLUMN ts TIMESTAMP", "i already has a column ts"),
        ("ALTER STREAM s ADD x DOUBLE", "expected COLUMN"),
        ("ALTER STREAM s ADD COLUMN w DOUBLE", "w could refer to another column than before in q1"),
        ("ALTER STREAM s ADD COLUMN n DOUBLE", "n could refer to another column than before in q2"),
    ],
)
def test_an_invalid_column_is_refused_with_the_reason(sql, words):
    server = Server(
        named(
            [
                "SELECT k FROM s",
                "SELECT v, w FROM s [RANGE '5 us'] JOIN t [RANGE '3 us'] ON s.k = t.k",
                "SELECT v + 1 AS n, count(*) AS c FROM TUMBLE(s, ts, '1 s') GROUP BY n",
            ]
        )
        + "CREATE STREAM i (k BIGINT); CREATE STREAM h (k BIGINT) WITH (history = true)"
    )
    with pytest.raises(SqlError, match=words):
        server.execute(sql)


def test_the_engine_refuses_by_itself_and_nothing_has_changed():
    server = Server(named(["SELECT k FROM s"]))
    before = server.engine.save()
    for field in (Field("x", Type.DOUBLE, False), Field("k", Type.DOUBLE), Field("feed", Type.TEXT)):
        with pytest.raises(Refuse, match=r"nullable|already"):
            server.engine.obey(AlterStream("s", (), fields=(field,)))
    assert server.engine.save() == before


def test_a_plan_shows_it_and_touches_nothing():
    server = Server(named(["SELECT * FROM s"]))
    before = server.engine.save()
    (step,), _ = plan_all(parse(ALTER), server.catalog)
    shown = server.engine.plan([command(step)])
    assert {stream.name: stream.change for stream in shown.streams} == {"s": "changes", "t": "stays"}
    assert server.engine.save() == before
    (answer,) = server.engine.step(0, [Command(1, command(step))]).orders
    assert isinstance(answer, Answer)
    assert answer.refused is None


def test_a_query_whose_stream_got_more_can_be_renamed_and_replaced():
    server = Server(
        named(["SELECT k, v FROM s", "SELECT q0.k, w FROM q0 [RANGE '5 us'] JOIN t [RANGE '3 us'] ON q0.k = t.k"])
    )
    server.execute(ALTER)
    sql = "ALTER QUERY q0 RENAME TO z; CREATE OR REPLACE QUERY z AS SELECT k, v FROM s"
    _, after = plan_all(parse(sql), server.catalog)
    assert after.queries["q1"].sql.endswith("FROM z AS q0 [RANGE '5 us'] JOIN t [RANGE '3 us'] ON q0.k = t.k")
    assert all(edge.columns is None for node in after.queries["z"].nodes for edge in node.edges)


@pytest.mark.parametrize("order", ["arrival", "event"])
def test_a_replaced_query_keeps_the_aggregates_over_a_stream_that_got_more(order):
    text = "SELECT k, count(*) AS n, window_start FROM TUMBLE(s, ts, INTERVAL '10 us') GROUP BY k, window_start"
    server = Server(BASE + f"CREATE QUERY q0 WITH (order = '{order}') AS {text}")
    server.give("s", [(1, 1, 1), (2, 1, 2)])
    server.execute(ALTER)
    sql = f"CREATE OR REPLACE QUERY q0 WITH (order = '{order}') AS {text} HAVING count(*) > 1"
    (step,), server.catalog = plan_all(parse(sql), server.catalog)
    assert isinstance(step, CreateQuery)
    assert server.engine.obey(ReplaceQuery(step.plan)).kept == [node.name for node in step.plan.nodes[:-1]]
    server.save_and_restore()
    server.give("s", [(3, 1, 3, 0.5), (12, 1, 1, None)])
    server.drain()
    assert server.rows["q0"] == [(9, (1, 3, 0))]


@pytest.mark.parametrize("order", ["arrival", "event"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SELECT * FROM SESSION(s, ts, INTERVAL '10 us')", "k, v, x"),
        ("SELECT sum(v) FROM SESSION(s, ts, INTERVAL '10 us')", "sum(x)"),
    ],
)
def test_a_replaced_query_that_reads_the_new_column_starts_again(before, after, order):
    server = Server(BASE + f"CREATE QUERY q0 WITH (order = '{order}') AS {before}")
    server.give("s", [(1, 1, 1), (2, 1, 2)])
    server.execute(ALTER)
    text = before.replace("*", after).replace("sum(v)", after)
    sql = f"CREATE OR REPLACE QUERY q0 WITH (order = '{order}') AS {text}"
    (step,), server.catalog = plan_all(parse(sql), server.catalog)
    assert isinstance(step, CreateQuery)
    assert server.engine.obey(ReplaceQuery(step.plan)).kept == []
    server.save_and_restore()
    server.give("s", [(13, 1, 3, 0.5), (120, 1, 1, None)])
    server.drain()
    assert server.rows["q0"] == [(22, (1, 3, 0.5))] if "*" in before else [(22, (0.5,))]


@pytest.mark.parametrize("waits", [0, 2])
def test_an_operator_is_put_in_front_of_one_that_reads_less_and_taken_out_again(waits):
    server = Server(named(["SELECT v, k FROM s WHERE v > 0", "SELECT v, k FROM s"]))
    server.execute(ALTER)
    server.engine.obey(InsertOperator("q1.project1", SelectSpec(Constant(Type.BOOLEAN, False, True))))
    server.save_and_restore()
    server.execute("ALTER STREAM s ADD COLUMN y TEXT")
    for at in range(waits):
        server.give("s", [(at, 1, at + 1, 0.5)], executions=1)
    server.save_and_restore()
    server.engine.obey(RemoveOperator("q1.filter1"))
    server.save_and_restore()
    server.give("s", [(9, 1, 9, 0.5)])
    server.drain()
    assert server.rows["q0"] == server.rows["q1"] == [(at, (at + 1, 1)) for at in range(waits)] + [(9, (9, 1))]


def test_a_query_that_is_not_there_leaves_the_stream_as_it_is():
    server = Server(named(["SELECT * FROM s"]))
    before = server.engine.save()
    with pytest.raises(Refuse, match="query nope does not exist"):
        server.engine.obey(AlterStream("s", (), fields=(Field("x", Type.DOUBLE),), texts=(("nope", "SELECT"),)))
    assert server.engine.save() == before
