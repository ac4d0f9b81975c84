"""ALTER STREAM and late tuples in a running server: applied, shown first, undone, kept."""

import asyncio

import pytest

from millrace.engine.events import AddQuery
from millrace.protocol import Refuse
from tests.server.harness import lines, running, served, until

SQL = """CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '1 s');
CREATE QUERY q AS SELECT k FROM s; CREATE QUERY lost AS SELECT k, late_by_us, feed FROM s.late"""


def policies(daemon):
    """What the engine and the catalog hold of the stream; they must agree."""
    held = daemon.engine.streams_by_name["s"].definition
    assert held == daemon.catalog.known.streams["s"]
    return held.disorder_us, held.max_skew_us, held.ets


@served(SQL)
async def test_an_alteration_is_shown_then_applied(daemon):
    sql = "ALTER STREAM s SET (max_skew = '2 s', ets = 'periodic')"
    shown = (await daemon.catalog.plan(sql))[0]
    assert shown == [{"kind": "alter_stream", "name": "s", "changes": {"max_skew_us": 2_000_000, "ets": "periodic"}}]
    assert policies(daemon) == (1_000_000, None, "on-demand")
    assert await daemon.catalog.execute(sql) == shown
    assert policies(daemon) == (1_000_000, 2_000_000, "periodic")


@served(SQL)
async def test_an_alteration_is_undone_with_the_rest_of_its_request(daemon, monkeypatch):
    await daemon.catalog.execute("ALTER STREAM s SET (max_skew = '5 s')")
    obey = type(daemon.engine).obey

    def stubborn(engine, body):
        if isinstance(body, AddQuery):
            raise Refuse("not today")
        return obey(engine, body)

    monkeypatch.setattr(type(daemon.engine), "obey", stubborn)
    with pytest.raises(Refuse, match="not today"):
        await daemon.catalog.execute(
            "ALTER STREAM s SET (disorder = '7 s', max_skew = 'none'); ALTER STREAM s SET (disorder = '8 s');"
            "CREATE STREAM t (v BIGINT); ALTER STREAM t SET (ets = 'none'); CREATE QUERY x AS SELECT k FROM s"
        )
    assert policies(daemon) == (1_000_000, 5_000_000, "on-demand")
    assert "t" not in daemon.engine.streams_by_name


@served(SQL)
async def test_late_tuples_reach_the_subscribers_of_a_query_over_them(daemon):
    async with lines(daemon) as feeder, lines(daemon) as reader:
        reader.say('{"subscribe": "lost"}')
        await until(lambda: len(daemon.runner.outlets["lost"].consumers))
        feeder.say('{"stream": "s", "tuple": {"ts": 9000000, "k": 1}}')
        feeder.say('{"stream": "s", "tuple": {"ts": 7000000, "k": 2}}')
        row = (await reader.hear())["row"]
        assert (row["k"], row["late_by_us"]) == (2, 1_000_000)
    with pytest.raises(Refuse, match="s is still read by query q, query lost"):
        await daemon.catalog.execute("DROP STREAM s")


def test_an_altered_stream_comes_back_as_it_was(tmp_path):
    async def first_life():
        async with running(SQL, server={"data_dir": tmp_path}) as daemon:
            await daemon.catalog.execute("ALTER STREAM s SET (disorder = '2 s', max_skew = '3 s')")
            await daemon.catalog.execute("ALTER STREAM s SET (max_skew = '4 s')")
            return daemon.catalog.known.streams["s"]

    async def second_life():
        async with running(server={"data_dir": tmp_path}) as daemon:
            assert policies(daemon) == (2_000_000, 4_000_000, "on-demand")
            return daemon.catalog.known.streams["s"]

    assert asyncio.run(first_life()) == asyncio.run(second_life())
