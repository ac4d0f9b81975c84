"""The catalog stores lowered plans: a restart runs them, whatever the planner would do by then."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.changes.insert_operator import InsertOperator
from millrace.changes.set_break import SetBreak
from millrace.changes.set_queue import SetQueue
from millrace.changes.set_strategy import SetStrategy
from millrace.engine import lowered
from millrace.engine.plan import Node
from millrace.operators.filter.spec import SelectSpec
from millrace.protocol import Refuse, Type
from millrace.sql import parse, plan_all, planner
from millrace.sql.planned import Catalog
from millrace.sql.queries import QueryPlanner
from millrace.store.stored import catalog_of
from millrace.values.expression import Constant
from tests.server.harness import forget_journal, served
from tests.server.test_api import ask, get
from tests.server.test_catalog import lives, scheduling

AGAIN = "CREATE OR REPLACE QUERY p AS SELECT k, v FROM s WHERE v > 1"
OLD = Path(__file__).parent / "catalogs" / "format-2.sql"
SQL = """
CREATE STREAM s (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts');
CREATE QUERY p AS SELECT k, v FROM s WHERE v > 1;
CREATE QUERY q AS SELECT k FROM p WHERE k > 2;
CREATE QUERY pairs AS SELECT a.v, b.k FROM s [RANGE '5 s'] a JOIN s [RANGE '5 s'] b ON a.k = b.k;
"""


class OtherPlanner(QueryPlanner):
    """Later versions might lower queries like this: with one more operator behind the others."""

    def run(self, body):
        plan = super().run(body)
        spec = SelectSpec(Constant(Type.BOOLEAN, False, True))
        last = Node(self.namer.name("filter"), spec, (plan.output,))
        return replace(plan, nodes=(*plan.nodes, last), output=last.name)


def operators(daemon, query):
    return [node.name.partition(".")[2] for node in daemon.engine.query(query).plan.nodes]


def all_ids(daemon):
    return {name: query.plan.ids for name, query in daemon.engine.queries_by_name.items()}


def rewrite(folder, change):
    """Change the stored plans: a function from a document to another, or to None. Without a journal they are read."""
    forget_journal(folder)
    with sqlite3.connect(folder / "catalog.sqlite") as database:
        for statement, text in database.execute("SELECT statement, plan FROM plans").fetchall():
            changed = change(json.loads(text))
            database.execute("UPDATE plans SET plan = ? WHERE statement = ?", (json.dumps(changed), statement))
    database.close()


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_a_restart_runs_the_stored_plan_and_a_replacement_takes_the_planner(tmp_path, monkeypatch):
    async def first(daemon):
        await daemon.catalog.execute(SQL)
        return all_ids(daemon)

    async def second(daemon):
        found = all_ids(daemon)
        explained = (await get(daemon, "/api/v1/queries/q/explain"))["text"]
        _, _, told = await ask(daemon, "POST", "/api/v1/sql", {"sql": AGAIN, "dry_run": True, "idempotent": True})
        planned = next(one for one in told["plan"]["queries"] if one["name"] == "p")
        await daemon.catalog.execute(AGAIN)
        return found, explained, planned, operators(daemon, "p"), all_ids(daemon)

    async def third(daemon):
        return operators(daemon, "p"), all_ids(daemon)

    (made,) = lives(tmp_path, first)
    monkeypatch.setattr(planner, "QueryPlanner", OtherPlanner)
    (found, explained, planned, after, ids), again = lives(tmp_path, second, third)
    assert found == made
    assert "q.filter2" not in explained
    changes = {one["operator"]: one["change"] for one in planned["operators"]}
    assert changes == {"p.filter1": "stays", "p.project1": "changes", "p.filter2": "appears", "p.sink1": "stays"}
    assert after == ["filter1", "project1", "filter2"]
    assert {name: ids["p"][name] for name in made["p"]} == made["p"], "what goes on keeps its id"
    assert ids["p"]["p.filter2"] not in {one for query in made.values() for one in query.values()}
    assert again == (after, ids)


def test_a_restart_never_plans(tmp_path, monkeypatch):
    async def first(daemon):
        await daemon.catalog.execute(SQL)
        await daemon.catalog.execute("ALTER STREAM s ADD COLUMN w BIGINT; ALTER QUERY p RENAME TO better")
        await daemon.catalog.change(InsertOperator(before="better.project1", sample=0.5))
        await daemon.catalog.change(SetStrategy(name="s", strategy="dfs(4)", operator="better.filter2"))
        await daemon.catalog.change(SetQueue(name="pairs.join1", kind="append", input=0))
        return all_ids(daemon), scheduling(daemon), daemon.catalog.keeper.export()

    async def second(daemon):
        return all_ids(daemon), scheduling(daemon), daemon.catalog.keeper.export()

    def never(*_):
        raise AssertionError("a stored query is planned")

    (made,) = lives(tmp_path, first)
    monkeypatch.setattr(QueryPlanner, "run", never)
    assert lives(tmp_path, second, second) == [made, made]


# -- older and newer catalogs ------------------------------------------------------------------------------------------


def test_decisions_saved_under_names_of_kinds_are_carried_over(tmp_path):
    database = sqlite3.connect(tmp_path / "catalog.sqlite")
    database.executescript(OLD.read_text(encoding="utf-8"))
    database.close()

    async def look(daemon):
        return all_ids(daemon), daemon.catalog.keeper.export().commands

    (ids, commands), again = lives(tmp_path, look, look)
    assert commands == [
        "millrace operator insert pairs.join1 --input 1 --where 'k > 7' --name pairs.filter3",
        "millrace operator insert pairs.join1 --input 0 --sample 0.5 --seed 4 --name pairs.filter9",
        "millrace operator replace pairs.filter1 --where 'v > 2'",
        "millrace operator remove pairs.filter2",
        "millrace strategy set a bfs",
        "millrace strategy set a 'rr(4)' --operator a.fork1",
        "millrace strategy set a 'dfs(3)' --operator picked.filter1",
        "millrace strategy set a 'rr(2)' --operator windowed.project1",
        "millrace strategy set a 'dfs(6)' --operator looked.latest_join1",
        "millrace strategy set a 'dfs(5)' --operator followed.followed_by1",
        "millrace strategy set a 'dfs(7)' --operator pairs.filter9",
        "millrace component weight a 3",
        "millrace break set windowed.window1",
        "millrace query order pairs filter --alpha 0.3",
        "millrace operator queue newest.project1 fifo --input 0",
        "millrace query pause followed --reason 'too noisy'",
    ]
    assert again == (ids, commands)


def test_a_plan_that_cannot_be_read_is_made_again(tmp_path, capsys):
    """Its operators keep their ids, and so does what was decided of them."""

    async def first(daemon):
        await daemon.catalog.execute(SQL)
        await daemon.catalog.change(SetBreak(name="p.filter1", on=True))
        return all_ids(daemon), scheduling(daemon)

    async def second(daemon):
        return all_ids(daemon), scheduling(daemon)

    (made,) = lives(tmp_path, first)
    rewrite(tmp_path, lambda plan: plan | {"version": 99} if plan["plan"]["name"] == "p" else plan)
    assert lives(tmp_path, second) == [made]
    said = capsys.readouterr().out
    assert "a newer Millrace wrote it (plan format 99; this one reads up to 1)" in said
    assert "p, which it reads, is planned again" in said
    assert lives(tmp_path, second) == [made]
    assert "is planned again" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan | {"version": "new"},
        lambda plan: [],
        lambda plan: plan | {"plan": {"is": "Plan"}},
        lambda plan: plan | {"plan": {**plan["plan"], "weather": "fair"}},
        lambda plan: plan | {"plan": {"is": "EdgeSpec"}},
        lambda plan: plan | {"plan": {**plan["plan"], "nodes": [{"is": "Node", "name": "p.filter1"}]}},
    ],
)
def test_any_damage_of_a_plan_leads_to_a_new_one(tmp_path, change):
    async def first(daemon):
        await daemon.catalog.execute(SQL)
        return operators(daemon, "p"), operators(daemon, "q")

    async def second(daemon):
        return operators(daemon, "p"), operators(daemon, "q")

    (made,) = lives(tmp_path, first)
    rewrite(tmp_path, change)
    assert lives(tmp_path, second, second) == [made, made]


@served(SQL)
async def test_a_name_of_a_kind_is_refused_with_the_name_of_today(daemon):
    strategy = {"strategy": "dfs", "operator": "p.map1"}
    for path, body, name in [
        ("operators/p.select1/break", None, "p.filter1"),
        ("components/s/strategy", strategy, "p.project1"),
    ]:
        status, _, said = await ask(daemon, "PUT", f"/api/v1/{path}", body)
        assert (status, said["code"]) == (404, "unknown_operator")
        assert said["detail"].endswith(f"does not exist; names are made of SQL's words now, and it is called {name}")


# -- backfills -------------------------------------------------------------------------------------------------------


@served(SQL)
async def test_a_backfill_of_a_running_query_uses_its_plan(daemon):
    made = daemon.catalog.known.queries
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "QueryPlanner", OtherPlanner)
        found = await get(daemon, "/api/v1/catalog?plans=true")
        warnings: list[str] = []
        known = catalog_of(found["statements"], found["plans"], warnings.append)
        assert {name: plan.nodes for name, plan in known.queries.items()} == {
            name: plan.nodes for name, plan in made.items()
        }
        assert not warnings
        broken = {statement: text.replace('"version":1', '"version":9') for statement, text in found["plans"].items()}
        assert len(catalog_of(found["statements"], broken, warnings.append).queries["p"].nodes) == 3
    assert len(warnings) == 3
    assert "plans" not in await get(daemon, "/api/v1/catalog")


# -- texts -------------------------------------------------------------------------------------------------------------

QUERIES = [
    "SELECT k, count(*) AS n, max(v) FILTER (WHERE v > 1.5) AS m FROM TUMBLE(s, ts, '1 s') GROUP BY k",
    "SELECT a.v, b.k FROM s [RANGE '5 s'] a LEFT JOIN s [RANGE '5 s'] b ON a.k = b.k AND a.v < b.v",
    "SELECT a.v FROM s a FOLLOWED BY NO s b WITHIN '3 s' ON a.k = b.k",
    "SELECT k, sum(v) AS n FROM s GROUP BY k HAVING sum(v) > 5",
    "SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v DESC) AS n FROM s QUALIFY n <= 3",
    "SELECT CASE WHEN k > 1 THEN 'ü\"' ELSE NULL END AS c, CAST(v AS DOUBLE) / 3 AS d FROM s SHED RANDOM 5",
    "SELECT * FROM SESSION(s, ts, '1 s' PARTITION BY k)",
    "SELECT k FROM s UNION ALL SELECT v FROM s",
]


@given(st.sampled_from(QUERIES), st.integers(1, 2**40))
def test_a_plan_is_the_same_after_reading(sql, number):
    statements = f"{SQL.strip().splitlines()[0]} CREATE QUERY x WITH (order = 'event') AS {sql}"
    _, catalog = plan_all(parse(statements), Catalog())
    plan = catalog.queries["x"]
    plan = plan.numbered({node.name: number + at for at, node in enumerate(plan.nodes)})
    text = lowered.write(plan)
    again = lowered.read(text)
    assert again == plan
    assert again.ids == plan.ids == lowered.ids(text)
    assert lowered.write(again) == text


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(Refuse, match="does not fit this version"):
        lowered.read("{")
    assert lowered.ids("{") == {}
