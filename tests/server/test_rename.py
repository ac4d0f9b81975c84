"""A query gets another name in a running server: subscribers, sinks, readers and the catalog go along."""

import asyncio
import gc
import json
import types

import pytest

from millrace.changes.insert_operator import InsertOperator
from millrace.changes.pause_query import PauseQuery
from millrace.changes.resume_query import ResumeQuery
from millrace.changes.set_break import SetBreak
from millrace.changes.set_strategy import SetStrategy
from millrace.changes.unshare_query import UnshareQuery
from millrace.engine.events import WithholdCredit
from millrace.protocol import Refuse
from millrace.protocol.messages import Result, Subscribe
from tests.server.harness import lines, peer, running, served, until
from tests.server.test_api import ask, get
from tests.server.test_etags import ask as tagged

SQL = """CREATE STREAM s (k BIGINT);
CREATE QUERY q AS SELECT k FROM s WHERE k > 0;
CREATE QUERY r AS SELECT q.k FROM q;
"""


def row(k):
    return f'{{"stream": "s", "tuple": {{"k": {k}}}}}'


@served(SQL)
async def test_subscribers_read_on_and_the_rows_are_numbered_on(daemon):
    async with lines(daemon) as feeder, lines(daemon) as reader, peer(daemon) as framed:
        reader.say('{"subscribe": "q", "progress": true}')
        framed.say(Subscribe(1, "q", credit=10))
        await until(lambda: len(daemon.runner.outlets["q"].consumers) == 2)
        feeder.say(row(1))
        assert [(await reader.hear())["seq"], (await framed.hear(Result)).sequence] == [0, 0]
        status, _, said = await ask(daemon, "POST", "/api/v1/queries/q/rename", {"to": "z"})
        assert (status, said) == (200, {"query": "z", "was": "q"})
        feeder.say(row(2))
        assert (await framed.hear(Result)).sequence == 1
        while "progress" in (heard := await reader.hear()):
            assert heard["query"] == "q"
        history = daemon.queries()[0].history
        said = {"query": "q", "seq": 1, "row": {"k": 2}, "history": history}
        assert heard == said, "the name that it asked for"
        reader.say('{"unsubscribe": "q"}')
        await until(lambda: len(daemon.runner.outlets["z"].consumers) == 1)
        assert daemon.queries()[0].next_sequence == 2
        await until(lambda: not daemon.engine.queries_by_name["z"].sink.watched)


def test_everything_is_there_again_under_the_new_name(tmp_path):
    out = tmp_path / "sinks/out.jsonl"

    async def first_life():
        async with running(SQL, server={"data_dir": tmp_path}) as daemon:
            await daemon.catalog.execute("CREATE SINK f FROM q WITH (type = 'file', path = 'out.jsonl')")
            await daemon.catalog.change(SetBreak(name="q.filter1", on=True))
            await daemon.catalog.change(PauseQuery(name="q"))
            await daemon.catalog.execute("ALTER QUERY q RENAME TO z")
            await daemon.catalog.change(ResumeQuery(name="z"))
            async with lines(daemon) as feeder:
                feeder.say(row(5))
                await until(lambda: daemon.catalog.sinks()[0].delivered == 1)
            await daemon.catalog.change(PauseQuery(name="z"))
            return daemon.catalog.keeper.export(), daemon.components()[0].breaks

    async def second_life():
        async with running(server={"data_dir": tmp_path}) as daemon:
            return daemon.catalog.keeper.export(), daemon.components()[0].breaks

    first = asyncio.run(first_life())
    assert [json.loads(line) for line in out.read_text().splitlines()] == [{"k": 5}]
    assert first == asyncio.run(second_life())
    export, breaks = first
    assert breaks == {"z.filter1": "user"}
    assert "CREATE QUERY r AS SELECT q.k FROM z AS q;" in export.sql
    assert "CREATE SINK f FROM z WITH" in export.sql
    assert [paused["query"] for paused in export.decisions["paused"]] == ["z"]


@served(SQL)
async def test_a_dry_run_shows_it_and_does_nothing(daemon):
    before = daemon.engine.save()
    sql = "ALTER QUERY q RENAME TO z"
    _, _, said = await ask(daemon, "POST", "/api/v1/sql", {"sql": sql, "dry_run": True})
    assert said["statements"] == [{"kind": "rename_query", "name": "z", "was": "q", "rewritten": ["r"]}]
    assert {query["name"]: query["was"] for query in said["plan"]["queries"]} == {"z": "q", "r": None}
    assert daemon.engine.save() == before
    assert "q" in daemon.runner.outlets


@served(SQL)
async def test_what_is_refused_changes_nothing(daemon):
    before = daemon.engine.save(), daemon.catalog.keeper.export()
    for path, to, status in (("q", "r", 400), ("q", "s", 400), ("q", "a.b", 400), ("nobody", "z", 404)):
        found, _, said = await ask(daemon, "POST", f"/api/v1/queries/{path}/rename", {"to": to})
        assert found == status, said
    status, _, said = await tagged(daemon, "POST", "queries/q/rename", {"to": "z"}, '"stale"')
    assert (status, said["code"]) == (412, "changed")
    assert (daemon.engine.save(), daemon.catalog.keeper.export()) == before


@served(SQL)
async def test_a_query_of_a_component_in_trial_keeps_its_name(daemon):
    body = {"strategy": "bfs", "for": "10s"}
    await ask(daemon, "POST", "/api/v1/components/s/trial", body)
    with pytest.raises(Refuse, match="a trial of component s is running"):
        await daemon.catalog.execute("ALTER QUERY q RENAME TO z")


@served(SQL)
async def test_what_a_slow_reader_asks_for_meanwhile_is_asked_of_the_query_by_its_new_name(daemon):
    """Backpressure and other events on their way to the engine reach the query after its name changes."""
    command = daemon.runner.command

    def ask_and_more(*asks):
        daemon.runner.command = command
        asked = command(*asks)
        command(WithholdCredit("q", withheld=True))
        daemon.runner.watch(daemon.runner.outlets["q"], True)
        return asked

    daemon.runner.command = ask_and_more
    await daemon.catalog.execute("ALTER QUERY q RENAME TO z")
    await until(lambda: daemon.engine.withheld() == {"s": ["z"]})
    assert daemon.engine.queries_by_name["z"].sink.watched
    await daemon.catalog.execute("ALTER QUERY z RENAME TO q")
    assert daemon.engine.withheld() == {"s": ["q"]}
    await command(WithholdCredit("q", withheld=False))
    assert daemon.engine.withheld() == {}


# -- the memory of a server --------------------------------------------------------------------------------------------

FORMER = "forsaken"
MANY = f"""CREATE STREAM s (k BIGINT, v BIGINT);
CREATE QUERY {FORMER} AS SELECT k, v FROM s WHERE k > 0;
CREATE QUERY twin AS SELECT k, v FROM s WHERE k > 0;
CREATE QUERY r AS SELECT k, count(*) AS n FROM {FORMER} GROUP BY k;
CREATE QUERY joined AS SELECT x.k FROM s [RANGE '1 s'] a JOIN {FORMER} [RANGE '1 s'] x ON x.k = a.k;
CREATE SINK f FROM {FORMER} WITH (type = 'file', path = 'out.jsonl')
"""
# These lead out of a server, or have been left.
OUTSIDE = (types.ModuleType, type, types.CodeType, types.FrameType, types.CoroutineType, types.TracebackType,
           asyncio.AbstractEventLoop, asyncio.Future)  # fmt: skip


def texts_of(root, word, *without):
    """The texts with a word that an object leads to, each with the way to it."""
    found, seen = {}, set(map(id, without))
    todo = [(root, "")]
    while todo:
        one, path = todo.pop()
        if isinstance(one, str):
            if word in one:
                found[one] = path
        elif not isinstance(one, OUTSIDE) and id(one) not in seen:
            seen.add(id(one))
            parts = one.__closure__ or () if isinstance(one, types.FunctionType) else gc.get_referents(one)
            path = f"{path} > {type(one).__name__}"
            todo += [(part, path) for part in parts]
    return found


@pytest.mark.parametrize("sql", [f"ALTER QUERY {FORMER} RENAME TO present",
                                 f"DROP SINK f; DROP QUERY r; DROP QUERY joined; DROP QUERY {FORMER}"])  # fmt: skip
def test_no_part_of_a_server_has_the_former_name(tmp_path, sql):
    """Whatever a part knows of a query goes along, or is gone."""

    async def play():
        async with running(MANY, server={"data_dir": tmp_path}) as daemon:
            catalog = daemon.catalog
            for change in (
                SetStrategy(name="s", strategy="bfs"),
                SetStrategy(name="s", strategy="rr(2)", operator=f"{FORMER}.filter1"),
                UnshareQuery(name=FORMER, operators=[f"{FORMER}.filter1"]),
                InsertOperator(before=f"{FORMER}.filter1", where="v > 0"),
                SetBreak(name=f"{FORMER}.filter1", on=True),
                PauseQuery(name=FORMER),
                ResumeQuery(name=FORMER),
            ):
                await catalog.change(change)
            await work(daemon, FORMER)
            await catalog.execute(sql)
            await daemon.durability.make()
            await work(daemon, "twin")
            return texts_of(daemon, FORMER, catalog.ledger, *daemon.runner.built_in.values())

    assert asyncio.run(play()) == {}


async def work(daemon, query):
    """Have everybody look at a query while it emits rows."""
    outlet = daemon.runner.outlets[query]
    others = len(outlet.consumers)
    async with lines(daemon) as feeder, peer(daemon) as reader:
        reader.say(Subscribe(1, query, credit=10, progress=True))
        await until(lambda: len(outlet.consumers) > others)
        for k in range(1, 4):
            feeder.say(f'{{"stream": "s", "tuple": {{"k": {k}, "v": 1}}}}')
        await until(lambda: outlet.next_sequence > 0)
        for path in ("queries", f"queries/{query}", f"queries/{query}/why", "operators", "components", "sinks"):
            await get(daemon, f"/api/v1/{path}")
        daemon.metrics.text()
        daemon.rates.now()
    await until(lambda: len(outlet.consumers) == others)
