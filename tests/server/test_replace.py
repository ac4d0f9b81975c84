"""CREATE OR REPLACE QUERY and plans in a running server: subscribers stay, nothing is done for a dry run."""

import asyncio

import pytest

from millrace.protocol import Refuse
from tests.server.harness import lines, running, served, until
from tests.server.test_api import ask

SQL = """CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts');
CREATE QUERY q AS SELECT k, count(*) AS n, window_start FROM TUMBLE(s, ts, INTERVAL '10 us') GROUP BY k, window_start;
CREATE QUERY r AS SELECT k, n FROM q"""
MORE = SQL.split(";")[1].replace("CREATE QUERY", "CREATE OR REPLACE QUERY") + " HAVING count(*) > 1"


def row(ts, k):
    return f'{{"stream": "s", "tuple": {{"ts": {ts}, "k": {k}}}}}'


@served(SQL)
async def test_subscribers_read_on_with_the_state_of_before(daemon):
    async with lines(daemon) as feeder, lines(daemon) as reader, lines(daemon) as other:
        reader.say('{"subscribe": "q"}')
        other.say('{"subscribe": "r"}')
        await until(lambda: daemon.runner.outlets["q"].consumers and daemon.runner.outlets["r"].consumers)
        for ts, k in ((1, 1), (2, 1), (3, 2)):
            feeder.say(row(ts, k))
        await until(lambda: daemon.engine.streams()[0].tuples == 3)
        await daemon.catalog.execute(MORE)
        feeder.say(row(4, 2))
        feeder.say(row(12, 3))
        feeder.say(row(25, 3))
        said = [await reader.hear(), await reader.hear()]
        assert [(one["seq"], one["row"]["k"], one["row"]["n"]) for one in said] == [(0, 1, 2), (1, 2, 2)]
        assert [(await other.hear())["row"] for _ in range(2)] == [{"k": 1, "n": 2}, {"k": 2, "n": 2}]


@served(SQL)
async def test_a_query_with_other_columns_counts_its_rows_on_and_tells_its_subscribers_that_it_ended(daemon):
    await daemon.catalog.execute("DROP QUERY r")
    async with lines(daemon) as feeder, lines(daemon) as reader:
        reader.say('{"subscribe": "q"}')
        await until(lambda: daemon.runner.outlets["q"].consumers)
        feeder.say(row(1, 1))
        feeder.say(row(11, 1))
        assert (await reader.hear())["seq"] == 0
        await daemon.catalog.execute("CREATE OR REPLACE QUERY q AS SELECT k FROM s")
        assert "error" in await reader.hear()
    async with lines(daemon) as feeder, lines(daemon) as reader:
        reader.say('{"subscribe": "q"}')
        await until(lambda: daemon.runner.outlets["q"].consumers)
        feeder.say(row(30, 7))
        history = daemon.query("q").history
        assert await reader.hear() == {"query": "q", "seq": 1, "row": {"k": 7}, "history": history}


@served(SQL)
async def test_a_dry_run_says_what_would_become_of_everything_and_does_nothing(daemon):
    before = daemon.engine.save()
    status, _, said = await ask(daemon, "POST", "/api/v1/sql", {"sql": f"DROP QUERY r; {MORE}", "dry_run": True})
    assert status == 200
    assert daemon.engine.save() == before
    fates = {query["name"]: query["change"] for query in said["plan"]["queries"]}
    assert fates == {"q": "changes", "r": "goes"}
    (kept,) = (one for one in said["plan"]["queries"][0]["operators"] if one["kind"] == "aggregate")
    assert kept["state"] == "kept"
    assert {row["state"] for row in said["plan"]["table"]["after"]} >= {"q.filter1"}
    assert [one["kind"] for one in said["statements"]] == ["drop_query", "create_query"]


@served(SQL)
async def test_what_cannot_go_on_is_refused_with_all_that_came_with_it(daemon):
    before = daemon.engine.save()
    with pytest.raises(Refuse, match="r"):
        await daemon.catalog.execute("CREATE STREAM t (v BIGINT); CREATE OR REPLACE QUERY q AS SELECT k FROM s")
    assert daemon.engine.save() == before


def test_a_replaced_query_that_others_read_is_there_again(tmp_path):
    async def first_life():
        async with running(SQL, server={"data_dir": tmp_path}) as daemon:
            await daemon.catalog.execute(MORE)
            return [found.operators for found in daemon.engine.components()]

    async def second_life():
        async with running(server={"data_dir": tmp_path}) as daemon:
            return [found.operators for found in daemon.engine.components()]

    assert asyncio.run(first_life()) == asyncio.run(second_life())
