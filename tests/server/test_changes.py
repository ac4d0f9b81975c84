"""Changes of every kind, alone and several as one, with nonsense among them: each is refused and changes nothing, or is
applied, and its undo brings back what it does not call lost, also under other names."""

import asyncio
import dataclasses
import itertools
import json
import re
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as settle
from hypothesis import strategies as st

from millrace.changes.create_query import CreateQuery
from millrace.changes.create_sink import CreateSink
from millrace.changes.drop_query import DropQuery
from millrace.changes.drop_sink import DropSink
from millrace.changes.drop_stream import DropStream
from millrace.changes.insert_operator import InsertOperator
from millrace.changes.pause_query import PauseQuery
from millrace.changes.rename_query import RenameQuery
from millrace.changes.set_break import SetBreak
from millrace.changes.set_order import SetOrder
from millrace.changes.set_strategy import SetStrategy
from millrace.changes.statements import Terms
from millrace.changes.table import CHANGES, read
from millrace.changes.unshare_query import UnshareQuery
from millrace.engine import shadow
from millrace.engine.plan import CHANGE_STREAM
from millrace.protocol import Refuse, format_timestamp
from millrace.protocol.messages import Error, Open
from millrace.store.catalog import StoreError
from tests.depth import examples
from tests.server.directories import ids
from tests.server.harness import SCHEMA_SQL, lines, peer, played, running, served, until
from tests.server.test_api import ask
from tests.server.test_catalog import by_operator, working

STREAMS, QUERIES, SINKS = ("a", "b"), ("p", "q", "r"), ("f", "g")
SELECTS = (
    "SELECT k FROM a WHERE k > 0",
    "SELECT k FROM a WHERE k > 0 AND k < 9",
    "SELECT k FROM a UNION ALL SELECT k FROM b",
    "SELECT p.k FROM p WHERE p.k > 5",
    "SELECT k FROM a.late",
    "SELECT k, count(*) AS n FROM b GROUP BY k",
    "SELECT x.k FROM a [RANGE '1 second'] x JOIN b [RANGE '1 second'] y ON x.k = y.k",
    "SELECT * FROM a",
    "SELECT number AS k FROM millrace.changes",
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
    """The export, the ledger, ids, and the engine's graph with every decision about it."""
    graph = shadow.Snapshot.of(daemon.engine)
    parts = [getattr(graph, field.name) for field in dataclasses.fields(graph) if field.name != "empty"]
    return daemon.catalog.keeper.export(), daemon.catalog.ledger.entries(), ids(daemon), parts


def entered(daemon):
    """The same with the number of the newest change in the ledger, and the ids of objects."""
    return holds(daemon), daemon.catalog.ledger.newest(), ids(daemon)


async def apply(daemon, changes, undoes=None):
    """Whether they were applied; refused, nothing has changed."""
    before, (known, last) = everything(daemon), ids(daemon)
    try:
        await daemon.catalog.change_all(changes, undoes=undoes)
    except Refuse:
        pass
    else:
        after, _ = ids(daemon)
        added = {*after.values()} - {*known.values()}
        assert undoes is not None or min(added, default=last + 1) > last, "an id of an object that was dropped"
        if not any(isinstance(change, RenameQuery | DropQuery | DropStream | DropSink) for change in changes):
            assert known.items() <= after.items(), "an object keeps its id"
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


def shape(daemon):
    """What holds, without the texts of queries and sinks: an alias makes no difference."""
    (streams, _, _), components, decisions = holds(daemon)
    known = daemon.catalog.known
    queries = {name: replace(plan, sql="", notes=(), warnings=()) for name, plan in known.queries.items()}
    sinks = {name: replace(sink, sql="") for name, sink in known.sinks.items()}
    return streams, queries, sinks, components, decisions, ids(daemon)[0]


async def rename(daemon, names):
    """Give the queries of these ids other names, in this order. Those that got theirs."""
    done = []
    for number, to in names:
        found = [name for name, plan in daemon.catalog.known.queries.items() if plan.id == number]
        if found and await apply(daemon, [RenameQuery(name=found[0], to=to)]):
            done.append((number, to))
    return done


@st.composite
def changes_of_any_kind(draw):
    """One strategy, which is drawn as often as each of those next to it."""
    return draw(CHANGE)


own = st.sampled_from(QUERIES)
# Mostly applied.
FITTING = st.one_of(
    st.builds("CREATE OR REPLACE QUERY {} AS {}".format, own, select).map(lambda sql: CreateQuery(sql=sql)),
    st.builds("CREATE QUERY s AS SELECT {0}.k FROM {0}".format, own).map(lambda sql: CreateQuery(sql=sql)),
    st.builds("CREATE SINK f FROM {} WITH (type = 'stdout')".format, own).map(lambda sql: CreateSink(sql=sql)),
    st.builds(RenameQuery, name=own, to=st.sampled_from(["s", "t"])),
    st.builds(DropQuery, name=own),
    st.builds(PauseQuery, name=own),
    st.builds(SetOrder, name=st.just("r"), join=st.sampled_from(["sync", "filter"])),
    st.builds(SetBreak, name=st.sampled_from(["p.filter1", "q.union1", "r.join1"]), on=st.just(True)),
    st.builds(SetStrategy, name=st.just("a"), strategy=st.sampled_from(["bfs", "rr(2)"]),
              operator=st.sampled_from([None, "p.filter1", "r.join1", "q.union1"])),
    st.builds(InsertOperator, before=st.sampled_from(["p.filter1", "r.join1"]), where=st.just("k > 3"),
              name=st.sampled_from([None, "r.filter7"])),
    changes_of_any_kind(),
)  # fmt: skip
NAMES = st.lists(st.tuples(st.integers(3, 6), st.sampled_from(["t", "u", *QUERIES])), min_size=1, max_size=5)


REPLACED_P = CreateQuery(sql=f"CREATE OR REPLACE QUERY p AS {SELECTS[1]}")


@settle(max_examples=examples(150), deadline=None)
@given(st.lists(FITTING, max_size=2), st.lists(FITTING, min_size=1, max_size=2), NAMES, st.booleans())
@example([], [PauseQuery(name="p")], [(3, "t"), (4, "p"), (3, "q")], True)
@example([], [CreateQuery(sql=f"CREATE OR REPLACE QUERY q AS {SELECTS[3]}")], [(3, "t"), (5, "p")], False)
@example([CreateQuery(sql="CREATE QUERY s AS SELECT p.k FROM p")], [DropQuery(name="s")], [(3, "k")], False)
@example([], [SetBreak(name="r.join1", on=True), DropQuery(name="r")], [(4, "s")], True)
@example([], [CreateSink(sql="CREATE SINK q FROM q WITH (type = 'stdout')")], [(4, "t")], False)
@example(
    [SetStrategy(name="a", strategy="bfs", operator="p.filter1")],
    [SetStrategy(name="a", strategy="rr(2)")],
    [(3, "t")],
    False,
)
@example([InsertOperator(before="p.filter1", where="k > 3", name="p.filter7")], [REPLACED_P], [(3, "t")], False)
@example(
    [CreateQuery(sql=f"CREATE QUERY s AS {SELECTS[0]}"), UnshareQuery(name="p", operators=["p.filter1"])],
    [REPLACED_P],
    [(3, "t")],
    True,
)
def test_an_undo_after_renames_is_as_an_undo_before_them(earlier, changes, names, restarts):
    """The same objects get the same names before the undo or after it, in two servers."""

    async def before():
        async with working(None) as daemon:
            await daemon.catalog.execute(";".join(START))
            for one in earlier:
                await apply(daemon, [one])
            if not await apply(daemon, changes):
                return None
            entry = daemon.catalog.ledger.find(None)
            if entry.inverse is None:
                return None
            there = [(number, to) for number, to in names if number in ids(daemon)[0].values()]
            await daemon.catalog.undo(entry.number)
            done = await rename(daemon, there)
            return done, shape(daemon)

    async def after(folder, names, expected):
        async with working(folder) as daemon:
            await daemon.catalog.execute(";".join(START))
            for one in earlier:
                await apply(daemon, [one])
            assert await apply(daemon, changes)
            number = daemon.catalog.ledger.find(None).number
            if await rename(daemon, names) != names:
                return  # what the undo brings back or removes is in the way
            if not restarts:
                await undo(daemon, number, expected)
                return
        async with working(folder) as daemon:
            await undo(daemon, number, expected)

    async def undo(daemon, number, expected):
        await daemon.catalog.undo(number)
        assert shape(daemon) == expected

    found = asyncio.run(before())
    if found is not None:
        with tempfile.TemporaryDirectory() as name:
            asyncio.run(after(Path(name), *found))


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


# -- the stream of changes ---------------------------------------------------------------------------------------------


async def rows_of_changes(daemon, wanted, start=None):
    """The rows that a subscriber of `millrace.changes` gets."""
    async with lines(daemon) as nc:
        nc.say(json.dumps({"subscribe": "millrace.changes", **({} if start is None else {"from": start})}))
        found = [await nc.hear() for _ in range(wanted)]
    assert [one["seq"] for one in found] == [one["row"]["number"] for one in found]
    return [one["row"] for one in found]


def as_row(entry):
    """An entry of the ledger as HTTP shows it, as a row."""
    entry = dict(entry)
    entry["at"] = format_timestamp(entry.pop("at_us"))
    entry["change"] = entry.pop("text")
    entry["statements"] = entry.pop("changes")
    for name in ("inverse", "lost", "undone_by"):
        entry.pop(name)
    return entry


AUDIT = """
CREATE QUERY audit AS SELECT number, author, change, undoes FROM millrace.changes;
CREATE QUERY by_author AS SELECT author, count(*) AS n FROM millrace.changes GROUP BY author
"""


@played
async def test_a_query_reads_the_stream_of_changes(tmp_path):
    """It gets each change from its own creation on once, also across restarts; no refused and no temporary one."""
    (tmp_path / "data").mkdir()
    for start in range(3):
        async with running(server={"data_dir": tmp_path / "data"}) as daemon:
            change = daemon.catalog
            if not start:
                await change.execute(SCHEMA_SQL)
                assert CHANGE_STREAM.name not in daemon.engine.streams_by_name  # until a query reads it
                await change.execute(AUDIT)
            await change.change(PauseQuery(name="q"))
            with pytest.raises(Refuse):
                await change.change(PauseQuery(name="none"))
            await change.undo(None)
            await change.execute("SELECT k FROM s", terms=Terms(temporary=f"passing{start}"))
            await change.execute(f"CREATE STREAM more{start} (k BIGINT); DROP STREAM more{start}")
            entries = [entry for entry in change.ledger.entries() if entry.number >= 2]
            wanted = [[entry.number, entry.author, entry.text, entry.undoes] for entry in entries]
            assert len(wanted) == 1 + 3 * (start + 1)
            async with lines(daemon) as nc:
                nc.say('{"subscribe": "audit", "from": 0}')
                assert [list((await nc.hear())["row"].values()) for _ in wanted] == wanted
                nc.say(f'{{"subscribe": "by_author", "from": {len(wanted) - 1}}}')
                assert (await nc.hear())["row"]["n"] == len(wanted)
            assert daemon.engine.query("audit").sink.sequence == len(wanted)


@served("CREATE STREAM s (k BIGINT); CREATE STREAM millrace (k BIGINT)")
async def test_only_the_server_writes_the_stream_of_changes(daemon):
    await daemon.catalog.execute("CREATE QUERY audit AS SELECT * FROM millrace.changes")
    async with peer(daemon) as client:
        client.say(Open(0, "millrace.changes", None, "p"))
        assert "cannot be fed" in (await client.hear(Error)).text
    for sql, words in (
        ("INSERT INTO millrace.changes VALUES (1)", "receives only what the server has changed"),
        ('DROP STREAM "millrace.changes"', "does not exist"),
        ("CREATE SINK f FROM millrace.changes WITH (type = 'stdout')", "a sink takes the rows of a query"),
    ):
        with pytest.raises(Refuse, match=words):
            await daemon.catalog.execute(sql)
    (told,) = await daemon.catalog.execute("DESCRIBE millrace.changes")
    assert [column.name for column in told.columns or ()] == list(CHANGE_STREAM.schema.names)


@played
async def test_the_stream_of_changes_has_what_the_ledger_has(tmp_path):
    """Before and after a restart, from each number on; and a row when a change is made."""
    (tmp_path / "data").mkdir()
    for start in range(2):
        async with running(server={"data_dir": tmp_path / "data"}) as daemon:
            if not start:
                await daemon.catalog.execute(SCHEMA_SQL)
                await daemon.catalog.change(PauseQuery(name="q"))
                with pytest.raises(Refuse):
                    await daemon.catalog.change(PauseQuery(name="none"))
                await daemon.catalog.undo(None)
                await daemon.catalog.execute("SELECT k FROM s", terms=Terms(temporary="passing"))
                history = daemon.runner.outlet("millrace.changes").history
            entries = [as_row(json.loads(entry.model_dump_json())) for entry in daemon.catalog.ledger.entries()]
            assert len(entries) == (5 if start else 3)
            for number in (1, 3, len(entries)):
                rows = await rows_of_changes(daemon, len(entries) + 1 - number, number)
                assert [{**row, "statements": json.loads(row["statements"])} for row in rows] == entries[number - 1 :]
            assert rows[-1]["undoes"] == (4 if start else 2)
            assert daemon.runner.outlet("millrace.changes").history == history
            async with lines(daemon) as nc:
                nc.say('{"subscribe": "millrace.changes"}')
                await until(lambda: daemon.runner.outlet("millrace.changes").consumers)
                await daemon.catalog.change(PauseQuery(name="q"))
                assert (await nc.hear())["row"]["change"] == "paused query q"
                await daemon.catalog.undo(None)
                assert (await nc.hear())["row"]["undoes"] is not None
