"""A column of a stream gets another name while queries run: they continue, and their own columns keep their names.

The oracle is the same engine without the change. Every rewritten text is planned again in an empty server.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.events import AlterStream, Arrived, InsertOperator, PauseQuery, RemoveOperator, ResumeQuery
from millrace.operators.filter.spec import SelectSpec
from millrace.protocol import Refuse, Schema, Type
from millrace.sql import Catalog, SqlError, Unchanged, parse, plan_all, rename_column
from millrace.values.batch import Batch
from millrace.values.expression import Constant
from tests.depth import examples
from tests.sql.test_add_column import BASE, DOINGS, QUERIES, Server, named

ALTER = "ALTER STREAM s RENAME COLUMN v TO worth"
BACK = "ALTER STREAM s RENAME COLUMN worth TO v"
# A query that reads `s`, and its text after `v` is renamed to `worth`; None if it is the same.
READERS = [
    ("SELECT v FROM s", "SELECT worth AS v FROM s"),
    ("SELECT s.v AS x, k FROM s WHERE V > 1", "SELECT s.worth AS x, k FROM s WHERE worth > 1"),
    ("SELECT v AS worth FROM s", "SELECT worth FROM s"),
    ("SELECT k FROM s", None),
    ("SELECT 'v' AS w /* v */ FROM s", None),
    ("SELECT v + 1 FROM s", "SELECT worth + 1 FROM s"),
    ("SELECT CAST(v AS DOUBLE) FROM s", "SELECT CAST(worth AS DOUBLE) AS v FROM s"),
    ("SELECT abs(v) FROM s", "SELECT abs(worth) FROM s"),
    ("SELECT * FROM s WHERE v > 1", "SELECT ts, k, worth AS v FROM s WHERE worth > 1"),
    ("SELECT * FROM (SELECT v FROM s) d", "SELECT * FROM (SELECT worth AS v FROM s) d"),
    ("SELECT d.v FROM (SELECT k AS v FROM s) d", None),
    ("WITH s2 AS (SELECT v, k FROM s) SELECT v FROM s2", "WITH s2 AS (SELECT worth AS v, k FROM s) SELECT v FROM s2"),
    ("SELECT k, sum(v) AS total FROM s GROUP BY k", "SELECT k, sum(worth) AS total FROM s GROUP BY k"),
    ("SELECT v, count(*) AS n FROM s GROUP BY v", "SELECT worth AS v, count(*) AS n FROM s GROUP BY worth"),
    ("SELECT k AS v, count(*) AS n FROM TUMBLE(s, ts, '1 s') GROUP BY k HAVING max(s.v) > 1",
     "SELECT k AS v, count(*) AS n FROM TUMBLE(s, ts, '1 s') GROUP BY k HAVING max(s.worth) > 1"),
    ("SELECT a.v, b.v AS other FROM s a [RANGE '5 us'] JOIN s b [RANGE '3 us'] ON a.v = b.v",
     "SELECT a.worth AS v, b.worth AS other FROM s a [RANGE '5 us'] JOIN s b [RANGE '3 us'] ON a.worth = b.worth"),
    ("SELECT s.v, t.w FROM s FOLLOWED BY t WITHIN '9 us' ON s.k = t.k AND s.v = t.w",
     "SELECT s.worth AS v, t.w FROM s FOLLOWED BY t WITHIN '9 us' ON s.k = t.k AND s.worth = t.w"),
    ("SELECT v, late_by_us FROM s.late", "SELECT worth AS v, late_by_us FROM s.late"),
    ("SELECT v FROM s UNION ALL SELECT w FROM t", "SELECT worth AS v FROM s UNION ALL SELECT w FROM t"),
    ("SELECT w AS v FROM t UNION ALL SELECT v FROM s", "SELECT w AS v FROM t UNION ALL SELECT worth AS v FROM s"),
    ("SELECT k, v FROM s DEDUPLICATE BY v WITHIN '9 us'",
     "SELECT k, worth AS v FROM s DEDUPLICATE BY worth WITHIN '9 us'"),
]  # fmt: skip
ALL = [*QUERIES, *(before for before, _ in READERS)]


def fields(schema, **renamed):
    return Schema(tuple(replace(field, name=renamed.get(field.name, field.name)) for field in schema))


@pytest.mark.parametrize(("before", "after"), READERS)
def test_readers_use_the_new_name_and_keep_theirs(before, after):
    server = Server(named([before]))
    was = server.catalog
    server.execute(ALTER)
    query = server.catalog.queries["q0"]
    assert query.sql == f"CREATE QUERY q0 AS {after or before}"
    assert query.schema == was.queries["q0"].schema
    assert server.catalog.streams["s"].schema == fields(was.streams["s"].schema, v="worth")
    assert server.engine.streams_by_name["s"].definition == server.catalog.streams["s"]


def give(server, stream, rows):
    """Rows of a feed that does not know of an added column, under the present names."""
    schema = Schema(server.engine.streams_by_name[stream].definition.schema.fields[:3])
    server.step(Arrived(stream, "f", Batch.from_rows(schema, rows, [row[0] for row in rows])), budget=1)


@settings(max_examples=examples(120), deadline=None)
@given(st.lists(st.sampled_from(ALL), min_size=1, max_size=4), DOINGS, st.integers(0, 14), st.booleans(), st.booleans())
def test_existing_queries_continue_unchanged(queries, doings, when, back, wide):
    plain, altered = Server(named(queries)), Server(named(queries))
    at = 0
    for number, (kind, what, _) in enumerate([*doings, ("t", [(90, 9, 9)], False), ("s", [(90, 9, 9)], True)]):
        if number == min(when, len(doings)):
            for server in (plain, altered) if wide else ():
                server.execute("ALTER STREAM s ADD COLUMN x DOUBLE")
            altered.execute(ALTER)
        if number == min(when, len(doings)) + 2 and back:
            altered.execute(BACK)
        if kind == "pause":
            name = f"q{what % len(queries)}"
            for each in (plain, altered):
                # A pause skips tuples that its query has not received yet; their number depends on the scheduler.
                each.drain()
                each.engine.obey(ResumeQuery(name) if each.engine.query(name).paused else PauseQuery(name))
        elif kind == "restore":
            altered.save_and_restore()
        elif kind == "work":
            for each in (plain, altered):
                each.step(budget=what)
        else:
            at += 2
            for each in (plain, altered):
                give(each, kind, [(at + ts, k, v) for ts, k, v in what])
    for each in (plain, altered):
        each.drain()
    for name, query in plain.engine.queries_by_name.items():
        # With rows in order of arrival, the scheduler chooses the input that is read first.
        several = any(len(operator.inputs) > 1 for operator in query.operators)
        first, second = (server.rows.get(name, []) for server in (plain, altered))
        assert (sorted(first, key=repr) == sorted(second, key=repr)) if several else first == second
        assert altered.engine.query(name).plan.schema == query.plan.schema
    assert altered.engine.gauge.tuples == plain.engine.gauge.tuples


@pytest.mark.parametrize("query", ALL)
def test_the_texts_mean_the_same_in_a_new_server(query):
    """The rewritten statements, applied to an empty server, return the same rows as the altered queries."""
    running = Server(named([query]))
    running.execute(ALTER)
    streams = [stream.sql for stream in running.catalog.streams.values()]
    fresh = Server(";".join([*streams, *(plan.sql for plan in running.catalog.queries.values())]))
    assert fresh.catalog.queries["q0"].schema == running.catalog.queries["q0"].schema
    for server in (running, fresh):
        for at in (1, 4, 2, 9, 30, 29, 60):
            server.give("s", [(at, at % 3, at)])
            server.give("t", [(at, at % 3, at)])
        server.drain()
    assert fresh.rows == running.rows


@pytest.mark.parametrize("query", ALL)
def test_the_way_back_with_the_old_texts_is_what_was_before(query):
    server = Server(named([query]))
    server.engine.obey(AlterStream("s", ()))  # any ALTER derives the rows of the component again
    before, engine = server.catalog, server.engine.save()
    server.execute(ALTER)
    step = rename_column("s", ("worth", "v"), server.catalog, texts={"q0": before.queries["q0"].sql})
    server.engine.obey(step.command)
    assert server.catalog.with_(step) == before
    assert server.engine.save() == engine


def test_texts_of_an_undo_count_only_if_they_mean_the_same():
    server = Server(named(["SELECT v FROM s"]))
    server.execute(ALTER)
    for text in ("CREATE QUERY q0 AS SELECT k AS v FROM s", "CREATE QUERY q0 AS SELECT v + 0 AS v FROM s", "(("):
        step = rename_column("s", ("worth", "v"), server.catalog, texts={"q0": text})
        assert step.queries["q0"].sql == "CREATE QUERY q0 AS SELECT v FROM s"


def test_options_that_name_the_column_follow():
    base = (
        "CREATE STREAM m (t TIMESTAMP, k TEXT, n BIGINT) WITH (time = 't', update_key = 'k, n', punctuation_key = 'k')"
    )
    server = Server(base)
    server.execute('ALTER STREAM m RENAME COLUMN t TO moment; ALTER STREAM m RENAME COLUMN k TO "Key\'s"')
    stream = server.catalog.streams["m"]
    assert (stream.time, stream.update_key, stream.punctuation_key) == ("moment", ("Key's", "n"), ("Key's",))
    assert Server(stream.sql).catalog.streams["m"] == stream == server.engine.streams_by_name["m"].definition
    server.save_and_restore()


def test_an_operator_in_front_and_its_removal_keep_the_names():
    server = Server(named(["SELECT * FROM s WHERE v > 1"]))
    server.execute(ALTER)
    where = SelectSpec(Constant(Type.BOOLEAN, False, True))
    server.engine.obey(InsertOperator("q0.filter1", where, 0, "true"))
    server.give("s", [(1, 1, 7)], budget=1)
    server.save_and_restore()
    server.engine.obey(RemoveOperator("q0.filter2"))
    assert server.engine.query("q0").operators[0].output.schema.names == ("ts", "k", "v")
    server.save_and_restore()
    server.give("s", [(2, 1, 8)])
    server.drain()
    assert [row for _, row in server.rows["q0"]] == [(1, 1, 7), (2, 1, 8)]


@pytest.mark.parametrize(
    ("sql", "words", "caret"),
    [
        ("ALTER STREAM s RENAME COLUMN worth TO x", "the column worth does not exist in s", "worth"),
        ("ALTER STREAM s RENAME COLUMN vv TO x", r"the column vv does not exist in s; did you mean v\?", "vv"),
        ("ALTER STREAM s RENAME COLUMN v TO k", "s already has a column k", "k"),
        ("ALTER STREAM s RENAME COLUMN v TO v", "s already has a column v", "v"),
        ("ALTER STREAM s RENAME COLUMN v TO feed", "s.late already has a column feed", "feed"),
        ("ALTER STREAM s RENAME COLUMN late_by_us TO x", "the column late_by_us does not exist", "late_by_us"),
        ("ALTER STREAM m RENAME COLUMN mark TO x", "m.late calls a column of its own late_mark", "mark"),
        ('ALTER STREAM s RENAME COLUMN v TO "$gone"', "marks deleted rows", '"$gone"'),
        ("ALTER STREAM i RENAME COLUMN k TO ts", "i already has a column ts, the time that the server sets", "ts"),
        ("ALTER STREAM h RENAME COLUMN k TO x", "h has history, whose files call the column k", "k"),
        ("ALTER STREAM q0 RENAME COLUMN k TO x", "q0 is a query, not a stream", "q0"),
        ("ALTER STREAM nobody RENAME COLUMN k TO x", "the stream nobody does not exist", "nobody"),
        ("ALTER STREAM s RENAME COLUMN v TO w", "v is read by q1, whose text cannot refer to w", "v"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_the_place(sql, words, caret):
    server = Server(
        named(["SELECT k FROM s", "SELECT v, w FROM s [RANGE '5 us'] JOIN t [RANGE '3 us'] ON s.k = t.k"])
        + "CREATE STREAM i (k BIGINT); CREATE STREAM h (k BIGINT) WITH (history = true);"
        "CREATE STREAM m (mark BIGINT)"
    )
    before = server.engine.save()
    with pytest.raises(SqlError, match=words) as refused:
        server.execute(sql)
    assert sql[refused.value.at :].startswith(caret)
    assert server.engine.save() == before


def test_the_engine_refuses_by_itself_and_nothing_has_changed():
    server = Server(named(["SELECT k FROM s"]))
    before = server.engine.save()
    for renamed in (("no", "x"), ("v", "k"), ("v", "feed")):
        with pytest.raises(Refuse, match=r"no field|already"):
            server.engine.obey(AlterStream("s", (), renamed=renamed))
    assert server.engine.save() == before


@pytest.mark.parametrize("query", ALL)
@pytest.mark.parametrize("more", ["", "; ALTER STREAM s ADD COLUMN x DOUBLE", "; ALTER STREAM s RENAME COLUMN k TO j"])
def test_the_same_file_applied_twice_changes_nothing(query, more):
    text = f"{named([query])}{ALTER}{more}; CREATE QUERY later AS SELECT worth FROM s"
    _, once = plan_all(parse(text), Catalog(), idempotent=True)
    steps, twice = plan_all(parse(text), once, idempotent=True)
    assert [type(step) for step in steps] == [Unchanged] * len(steps)
    assert twice == once


def test_a_file_that_goes_on_after_what_was_applied():
    _, once = plan_all(parse(BASE), Catalog(), idempotent=True)
    steps, after = plan_all(parse(f"{BASE}{ALTER}"), once, idempotent=True)
    assert [isinstance(step, Unchanged) for step in steps] == [True, True, False]
    assert "worth" in after.streams["s"].schema.names
