"""Changes of every kind, alone and several as one, with nonsense among them: each is refused and changes nothing, or is
applied, and its undo brings back what it does not call lost."""

import asyncio
import dataclasses
import itertools
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import settings as settle
from hypothesis import strategies as st

from millrace.changes.create_query import CreateQuery
from millrace.changes.drop_query import DropQuery
from millrace.changes.pause_query import PauseQuery
from millrace.changes.rename_query import RenameQuery
from millrace.changes.table import CHANGES, read
from millrace.engine import shadow
from millrace.protocol import Refuse
from millrace.store.catalog import StoreError
from tests.depth import examples
from tests.server.harness import served
from tests.server.test_api import ask
from tests.server.test_catalog import by_operator, working

STREAMS, QUERIES, SINKS = ("a", "b"), ("p", "q", "r"), ("f", "g")
SELECTS = (
    "SELECT k FROM a WHERE k > 0",
    "SELECT k FROM a WHERE k > 0 AND k < 9",
    "SELECT k FROM a UNION ALL SELECT k FROM b",
    "SELECT k FROM p WHERE k > 5",
    "SELECT k FROM a.late",
    "SELECT k, count(*) AS n FROM b GROUP BY k",
    "SELECT x.k FROM a [RANGE '1 second'] x JOIN b [RANGE '1 second'] y ON x.k = y.k",
    "SELECT * FROM a",
)
OPERATORS = tuple(f"{query}.{kind}1" for query in QUERIES for kind in ("filter", "union", "join", "aggregate"))
START = (
    *(f"CREATE STREAM {name} (ts TIMESTAMP, k BIGINT) WITH (time = 'ts')" for name in STREAMS),
    f"CREATE QUERY p AS {SELECTS[0]}",
    f"CREATE QUERY q AS {SELECTS[2]}",
    f"CREATE QUERY r AS {SELECTS[6]}",
)

# Mostly names of the kind that a field needs, and sometimes another one or none at all.
NONSENSE = st.sampled_from(["", "?", "a.late", "no", "p.filter1.", ".", "a" * 300, "\x00", "p", "a"])
stream, query, sink = (st.one_of(st.sampled_from(names), st.sampled_from(names), NONSENSE)
                       for names in (STREAMS, QUERIES, SINKS))  # fmt: skip
operator = st.one_of(st.sampled_from([*OPERATORS, "a.source", "a.fork1", "p.fork1"]), NONSENSE)
component = st.one_of(stream, st.just("a.late"))
select = st.sampled_from(SELECTS)
row_choice: dict[str, Any] = {
    "where": st.one_of(st.none(), st.sampled_from(["k > 3", "k > 'x'", "((", "", "nothing = 1"])),
    "sample": st.one_of(st.none(), st.none(), st.just(0.5)),
    "seed": st.one_of(st.none(), st.just(7)),
}
FIELDS: dict[str, dict[str, Any]] = {
    "create_stream": {"sql": stream.map("CREATE STREAM {} (ts TIMESTAMP, k BIGINT) WITH (time = 'ts')".format)},
    "alter_stream": {"sql": st.one_of(
        stream.map("ALTER STREAM {} SET (disorder = '3 s')".format),
        stream.map("ALTER STREAM {} ADD COLUMN extra TEXT".format),
        stream.map("CREATE OR REPLACE STREAM {} (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', grace = '1 s')".format),
    )},
    "rename_column": {"name": stream, "column": st.sampled_from(["k", "k", "j", "ts", "extra", ""]),
                      "to": st.sampled_from(["j", "j", "k", "n", "feed", "two words", "\x00"])},
    "drop_stream": {"name": stream},
    "create_query": {"sql": st.builds("CREATE {}QUERY {} AS {}".format, st.sampled_from(["", "OR REPLACE "]), query,
                                      select)},
    "select": {"sql": select},
    "rename_query": {"name": query, "to": st.one_of(query, st.just("s"))},
    "drop_query": {"name": query},
    "pause_query": {"name": query, "reason": st.sampled_from(["paused by an admin", "noise", "two\nlines"])},
    "resume_query": {"name": query},
    "unshare_query": {"name": query, "operators": st.lists(operator, max_size=2)},
    "set_order": {"name": query, "join": st.sampled_from([None, "sync", "filter", "adaptive"]),
                  "alpha": st.sampled_from([None, 0.0, 0.5])},
    "create_sink": {"sql": st.builds("CREATE SINK {} FROM {} WITH (type = 'stdout')".format, sink, query)},
    "drop_sink": {"name": sink},
    "set_strategy": {"name": component,
                     "strategy": st.sampled_from(["dfs", "bfs", "rr(2)", "chain", "", "dfs(0)", "dfs(x)"]),
                     "operator": st.one_of(st.none(), operator)},
    "set_weight": {"name": component, "weight": st.integers(1, 3)},
    "set_break": {"name": operator, "on": st.booleans()},
    "set_queue": {"name": operator, "kind": st.sampled_from(["append", "fifo", "inplace", "auto"]),
                  "input": st.integers(0, 2)},
    "insert_operator": {"before": operator, "input": st.integers(0, 1),
                        "name": st.one_of(st.none(), st.just("p.own"), operator), **row_choice},
    "replace_operator": {"name": operator, **row_choice},
    "remove_operator": {"name": operator},
}  # fmt: skip
CHANGE = st.one_of(*(
    st.fixed_dictionaries({"change": st.just(action), **fields}).map(read) for action, fields in FIELDS.items()
))  # fmt: skip
# Several changes as one, or how many changes back to undo.
TURNS = st.one_of(CHANGE.map(lambda one: [one]), st.lists(CHANGE, min_size=2, max_size=3), st.integers(1, 3))


def test_every_kind_of_change_is_drawn():
    assert set(FIELDS) == {kind.action for kind in CHANGES}


def holds(daemon):
    """Definitions by name, and decisions by operator; not the order of creation, names of forks, or which operators are
    not merged yet."""
    known = daemon.catalog.known
    definitions = [
        {name: re.sub(r"^CREATE OR REPLACE", "CREATE", one.sql) for name, one in found.items()}
        for found in (known.streams, known.queries, known.sinks)
    ]
    decisions = daemon.catalog.keeper.decisions()
    components = [
        ([row for row in rows if row[1] != strategy], strategy, weight, breaks)
        for rows, strategy, weight, breaks in by_operator(daemon)
    ]
    return definitions, sorted(components), decisions.model_dump(exclude={"apart", "components", "places"})


def everything(daemon):
    """The export, the ledger, and the engine's graph with every decision about it."""
    graph = shadow.Snapshot.of(daemon.engine)
    parts = [getattr(graph, field.name) for field in dataclasses.fields(graph) if field.name != "empty"]
    return daemon.catalog.keeper.export(), daemon.catalog.ledger.entries(), parts


def entered(daemon):
    """The same with the number of the newest change in the ledger."""
    return holds(daemon), daemon.catalog.ledger.newest()


async def apply(daemon, changes, undoes=None):
    """Whether they were applied; refused, nothing has changed."""
    before = everything(daemon)
    try:
        await daemon.catalog.change_all(changes, undoes=undoes)
    except Refuse:
        pass
    else:
        return True
    assert everything(daemon) == before, changes
    return False


async def play(turns):
    async with working(None) as daemon:
        catalog = daemon.catalog
        await catalog.execute(";".join(START))
        for turn in turns:
            if isinstance(turn, int):
                number = (catalog.ledger.newest() or 0) + 1 - turn
                entry = catalog.ledger.find(max(1, number))
                if entry.inverse is not None and entry.undone_by is None:
                    await apply(daemon, catalog.ledger.inverse(entry), entry.number)
                continue
            before = holds(daemon)
            if not await apply(daemon, turn):
                continue
            entry = catalog.ledger.find(None)
            assert [read(record) for record in entry.changes] == turn
            if entry.inverse is None:
                assert entry.lost
                continue
            after = holds(daemon)
            assert await apply(daemon, catalog.ledger.inverse(entry), entry.number), (entry.changes, entry.inverse)
            assert holds(daemon) == before, (entry.changes, entry.inverse)
            undo = catalog.ledger.find(catalog.ledger.newest())
            if undo.inverse is not None:
                assert await apply(daemon, catalog.ledger.inverse(undo), undo.number), (undo.changes, undo.inverse)
                assert holds(daemon) == after, (undo.changes, undo.inverse)


@settle(max_examples=examples(300), deadline=None)
@given(st.lists(TURNS, max_size=12))
def test_an_undo_restores_what_a_change_does_not_lose(turns):
    asyncio.run(play(turns))


@settle(max_examples=examples(100), deadline=None)
@given(st.lists(CHANGE, max_size=6), CHANGE)
def test_a_plan_is_total_and_the_shadow_agrees_with_the_engine(before, change):
    async def plan():
        async with working(None) as daemon:
            await daemon.catalog.execute(";".join(START))
            for one in before:
                await apply(daemon, [one])
            state, engine = daemon.catalog.state, daemon.engine
            with shadow.cast(shadow.Snapshot.of(engine)) as copy:
                assert planned(change, state, copy) == planned(change, state, engine)

    asyncio.run(plan())


def planned(change, state, engine):
    try:
        return change.plan(state, engine)
    except Refuse as refused:
        return refused.text


# Mostly applied, each with rows in several tables of the file.
APPLICABLE = (
    CreateQuery(sql="CREATE QUERY s AS SELECT k FROM b"),
    RenameQuery(name="p", to="t"),
    DropQuery(name="r"),
    PauseQuery(name="q"),
)


@settle(max_examples=examples(60), deadline=None)
@given(st.lists(CHANGE, max_size=3), st.lists(st.sampled_from(APPLICABLE), min_size=1, max_size=2), st.integers(0, 80))
def test_a_server_that_ends_before_or_while_it_writes_a_change_starts_without_it_or_with_it(
    before, changes, instructions
):
    """The engine has obeyed by then; the file's transaction ends after so many instructions of its database."""

    async def first(folder):
        async with working(folder) as daemon:
            await daemon.catalog.execute(";".join(START))
            for one in before:
                await apply(daemon, [one])
            past, left = entered(daemon), itertools.count()
            database = daemon.catalog.keeper.store._database
            database.set_progress_handler(lambda: next(left) >= instructions, 1)
            with suppress(Refuse, StoreError):
                await daemon.catalog.change_all(changes)
            found = entered(daemon)
            database.set_progress_handler(None, 1)
            return past, found

    async def second(folder):
        async with working(folder) as daemon:
            return entered(daemon)

    with tempfile.TemporaryDirectory() as name:
        states = asyncio.run(first(Path(name)))
        assert asyncio.run(second(Path(name))) in states


@served("CREATE STREAM s (k BIGINT)")
async def test_a_temporary_query_leaves_no_entry(daemon):
    before = len(daemon.catalog.ledger.entries())
    terms = daemon.catalog.terms(idempotent=False, temporary=True, prune=False)
    (told,) = await daemon.catalog.execute("SELECT k FROM s", terms=terms)
    await daemon.catalog.change(DropQuery(name=told.name))
    assert told.name not in daemon.engine.queries_by_name
    assert len(daemon.catalog.ledger.entries()) == before


@served("CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s WHERE k > 1")
async def test_a_request_cannot_choose_the_number_of_an_operator(daemon):
    change = {"change": "insert_operator", "before": "q.filter1", "where": "k > 2", "id": 1}
    status, _, told = await ask(daemon, "POST", "/api/v1/changes", {"changes": [change]})
    assert (status, told["code"]) == (422, "invalid_request")
    assert [node.name for node in daemon.engine.query("q").plan.nodes] == ["q.filter1"]
