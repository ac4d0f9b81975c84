"""A query's new name in the statements that use it: each has the same plan as before."""

from __future__ import annotations

import itertools

import pytest

from millrace.sql import Catalog, RenameStatement, parse, plan_all

BASE = """CREATE STREAM s (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts');
CREATE QUERY a AS SELECT ts, k, v FROM s WHERE v > 1;
"""
# A query that reads `a`, and the same query after `a` is renamed to `b`.
READERS = [
    ("SELECT k FROM a", "SELECT k FROM b"),
    ("SELECT a.k FROM A", "SELECT a.k FROM b AS a"),
    ("SELECT * FROM a x WHERE x.k > 0", "SELECT * FROM b x WHERE x.k > 0"),
    ("SELECT a.* /* FROM a */ FROM a", "SELECT a.* /* FROM a */ FROM b AS a"),
    ("SELECT k FROM a [RANGE '5 s' SLIDE '1 s']", "SELECT k FROM b [RANGE '5 s' SLIDE '1 s']"),
    ("SELECT x.k FROM a x JOIN a [RANGE '3 s'] ON a.k = x.k",
     "SELECT x.k FROM b x JOIN b AS a [RANGE '3 s'] ON a.k = x.k"),
    ("SELECT k, count(*) AS n FROM TUMBLE(a, ts, '1 s') GROUP BY k",
     "SELECT k, count(*) AS n FROM TUMBLE(b, ts, '1 s') GROUP BY k"),
    ("SELECT a.k, count(*) AS n FROM TUMBLE(a, ts, '1 s') GROUP BY a.k",
     "SELECT a.k, count(*) AS n FROM TUMBLE(b, ts, '1 s') AS a GROUP BY a.k"),
    ("WITH a AS (SELECT k FROM a) SELECT a.k FROM a", "WITH a AS (SELECT k FROM b) SELECT a.k FROM a"),
    ("WITH c AS (SELECT k FROM a), a AS (SELECT k FROM c) SELECT k FROM a UNION ALL SELECT k FROM c",
     "WITH c AS (SELECT k FROM b), a AS (SELECT k FROM c) SELECT k FROM a UNION ALL SELECT k FROM c"),
    ("WITH b AS (SELECT k FROM a) SELECT k FROM b", "WITH b AS (SELECT k FROM b) SELECT k FROM b"),
    ("SELECT k FROM (SELECT k AS k FROM a) a", "SELECT k FROM (SELECT k AS k FROM b) a"),
    ("SELECT k AS a FROM \"a\" WHERE 'a' <> 'b'", "SELECT k AS a FROM b WHERE 'a' <> 'b'"),
    ("SELECT k FROM a SHED RANDOM 5", "SELECT k FROM b SHED RANDOM 5"),
    ("SELECT a.k FROM a FOLLOWED BY s WITHIN '1 s' ON a.k = s.k",
     "SELECT a.k FROM b AS a FOLLOWED BY s WITHIN '1 s' ON a.k = s.k"),
]  # fmt: skip


def planned_again(catalog):
    """The result of the statements of a catalog in an empty one."""
    texts = [item.sql for kind in (catalog.streams, catalog.queries, catalog.sinks) for item in kind.values()]
    return plan_all(parse(";\n".join(texts)), Catalog())[1]


@pytest.mark.parametrize(("before", "after"), READERS)
def test_readers_use_the_new_name(before, after):
    (*_, step), catalog = plan_all(parse(f"{BASE}CREATE QUERY r AS {before}; ALTER QUERY a RENAME TO b"), Catalog())
    assert isinstance(step, RenameStatement)
    assert catalog.queries["r"].sql == f"CREATE QUERY r AS {after}"
    assert list(catalog.queries) == ["b", "r"]
    again = planned_again(catalog)
    assert again.queries == catalog.queries


@pytest.mark.parametrize("name", ["union", "latest", "to", "rename", "Odd-name", "_x"])
def test_any_name_that_a_query_may_have(name):
    script = f"{BASE}CREATE QUERY r AS SELECT a.k FROM a; CREATE SINK f FROM a WITH (type = 'stdout')"
    _, catalog = plan_all(parse(f'{script}; ALTER QUERY a RENAME TO "{name}"'), Catalog())
    again = planned_again(catalog)
    assert again.queries == catalog.queries
    assert again.sinks == catalog.sinks
    assert catalog.sinks["f"].query == name


@pytest.mark.parametrize("reader", [reader for pair in READERS for reader in pair])
def test_there_and_back_is_the_same_text_and_plan(reader):
    """Also by way of another name. A name gets its plainest spelling."""
    first, other = ("a", "b") if reader in [before for before, _ in READERS] else ("b", "a")
    plain = reader.replace("FROM A", "FROM a").replace('FROM "a"', "FROM a")
    _, before = plan_all(parse(f"{BASE.replace('a AS', f'{first} AS')}CREATE QUERY r AS {plain}"), Catalog())
    names = [first, other, "third", first]
    renames = [f"ALTER QUERY {name} RENAME TO {to}" for name, to in itertools.pairwise(names)]
    _, after = plan_all(parse(";".join(renames)), before)
    assert after == before


def test_a_table_keeps_its_name_where_another_one_has_the_new_name():
    reader = "CREATE QUERY r AS SELECT v FROM a AS b JOIN {} [RANGE '1 s'] ON j = k"
    script = f"{BASE}CREATE QUERY c AS SELECT ts, k AS j FROM s; {reader.format('c')}; ALTER QUERY c RENAME TO b"
    _, catalog = plan_all(parse(script), Catalog())
    assert catalog.queries["r"].sql == reader.format("b AS c")
