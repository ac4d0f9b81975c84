"""A query gets another name in a running server: subscribers, sinks, readers and the catalog go along."""

import asyncio
import json

import pytest

from millrace.changes.pause_query import PauseQuery
from millrace.changes.resume_query import ResumeQuery
from millrace.changes.set_break import SetBreak
from millrace.engine.events import WithholdCredit
from millrace.protocol import Refuse
from millrace.protocol.messages import Result, Subscribe
from tests.server.harness import lines, peer, running, served, until
from tests.server.test_api import ask
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
        daemon.runner.watch("q", True)
        return asked

    daemon.runner.command = ask_and_more
    await daemon.catalog.execute("ALTER QUERY q RENAME TO z")
    await until(lambda: daemon.engine.withheld() == {"s": ["z"]})
    assert daemon.engine.queries_by_name["z"].sink.watched
    await daemon.catalog.execute("ALTER QUERY z RENAME TO q")
    assert daemon.engine.withheld() == {"s": ["q"]}
    await command(WithholdCredit("q", withheld=False))
    assert daemon.engine.withheld() == {}
