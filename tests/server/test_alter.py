"""ALTER STREAM and late tuples in a running server: applied, shown first, undone, kept."""

import asyncio

import pyarrow
import pytest

from millrace.client import AsyncClient
from millrace.engine.events import AddQuery
from millrace.protocol import Refuse, Schema
from millrace.protocol.admin.changes import FateView, StatementView
from millrace.protocol.messages import DataArrow, Error, Open, Opened
from millrace.values.eventtime import LAST_US
from tests.server.harness import lines, peer, running, served, until

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
    assert shown == [
        StatementView(kind="alter_stream", name="s", changes={"max_skew_us": 2_000_000, "ets": "periodic"})
    ]
    assert policies(daemon) == (1_000_000, None, "on-demand")
    assert await daemon.catalog.execute(sql) == shown
    assert policies(daemon) == (1_000_000, 2_000_000, "periodic")


@served(SQL)
async def test_an_alteration_is_undone_with_the_rest_of_its_request(daemon, monkeypatch):
    await daemon.catalog.execute("ALTER STREAM s SET (max_skew = '5 s')")
    carry_out = type(daemon.engine).carry_out

    def stubborn(engine, body):
        if isinstance(body, AddQuery):
            raise Refuse("not today")
        return carry_out(engine, body)

    monkeypatch.setattr(type(daemon.engine), "carry_out", stubborn)
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


# -- with feeds connected ----------------------------------------------------------------------------------------------

PLAIN = "CREATE STREAM s (k BIGINT, v BIGINT); CREATE QUERY q AS SELECT * FROM s"
ADD = "ALTER STREAM s ADD COLUMN x DOUBLE"
NARROW = Schema.of(k="bigint", v="bigint")
WIDE = Schema.of(k="bigint", v="bigint", x="double")


@served(PLAIN)
async def test_a_connected_feed_goes_on_with_the_schema_that_it_opened(daemon):
    async with peer(daemon) as old, peer(daemon) as new, lines(daemon) as nc, lines(daemon) as reader:
        opened = await old.open()
        assert opened.schema == NARROW
        nc.say('{"stream": "s", "tuple": {"k": 0}}')
        await until(lambda: daemon.engine.streams()[0].tuples == 1)
        await daemon.catalog.execute(f"{ADD}; CREATE QUERY wide AS SELECT * FROM s")
        reader.say('{"subscribe": "wide"}')
        await until(lambda: daemon.runner.outlets["wide"].consumers)

        async def row():
            return (await reader.hear())["row"]

        old.data(0, [(1, 1)])
        assert await row() == {"k": 1, "v": 1, "x": None}
        batch = pyarrow.RecordBatch.from_pydict({"k": [2], "v": [2]})
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        old.say(DataArrow(0, 1, 1, sink.getvalue().to_pybytes()))
        assert await row() == {"k": 2, "v": 2, "x": None}
        nc.say('{"stream": "s", "tuple": {"k": 3, "x": 0.5}}')
        assert await row() == {"k": 3, "v": None, "x": 0.5}
        for channel, fingerprint, schema, values in (
            (0, NARROW.fingerprint(), NARROW, (4, 4)),
            (1, WIDE.fingerprint(), WIDE, (5, 5, 1.5)),
            (2, None, WIDE, (6, 6, None)),
        ):
            new.say(Open(channel, "s", fingerprint, f"p{channel}"))
            assert (await new.hear(Opened)).schema == schema
            new.data(0, [values], channel)
            assert await row() == {"k": values[0], "v": values[1], "x": (*values, None)[2]}
        new.say(Open(3, "s", Schema.of(k="bigint", x="double").fingerprint(), "p"))
        assert (await new.hear(Error)).code == "schema_mismatch"
        old.data(2, [(7, 7, 7.0)])
        assert (await old.hear(Error)).code == "bad_row", "three values in a feed that was opened with two"


@served(SQL)
async def test_policies_change_under_a_connected_feed(daemon):
    async with peer(daemon) as feed, lines(daemon) as reader:
        reader.say('{"subscribe": "q"}')
        await until(lambda: daemon.runner.outlets["q"].consumers)
        await feed.open()
        feed.data(0, [(9_000_000, 1), (7_500_000, 2)])
        await until(lambda: daemon.engine.streams()[0].late == 1)
        await daemon.catalog.execute("ALTER STREAM s SET (disorder = '5 s', max_ahead = '1 s')")
        feed.data(2, [(9_500_000, 3), (8_000_000, 4)])
        feed.data(4, [(LAST_US, 5)])
        error = await feed.hear(Error)
        assert (error.code, error.sequence) == ("bad_value", 4)
        assert [(await reader.hear())["row"]["k"] for _ in range(3)] == [1, 3, 4]
        assert daemon.engine.streams()[0].late == 1


@served(PLAIN)
async def test_a_client_that_reconnects_sends_what_it_had_packed(daemon):
    """The rows that wait in a client are of the schema that it opened, and so is its feed on the next connection."""
    async with AsyncClient(f"{daemon.listen.host}:{daemon.listen.port}") as client:
        feed = await client.open("s", producer="p")
        await feed.send([(1, 1)])
        await feed.flush()
        await daemon.catalog.execute(f"{ADD}; CREATE QUERY wide AS SELECT k, x FROM s")
        for connection in tuple(daemon.context.connections):
            connection.abort()
        await feed.send([(2, 2)])
        await feed.send({"k": 3, "v": 3})
        await feed.flush()
        assert feed.schema == NARROW
        await until(lambda: daemon.runner.outlets["wide"].next_sequence == 2)
        again = await client.open("s", producer="other")
        assert again.schema == WIDE


def test_more_columns_are_there_again_after_a_restart_and_in_the_export(tmp_path):
    async def first():
        async with running(PLAIN, server={"data_dir": tmp_path}) as daemon:
            await daemon.catalog.execute(ADD)
            return daemon.catalog.keeper.export()

    async def second():
        async with running(server={"data_dir": tmp_path}) as daemon, peer(daemon) as old:
            old.say(Open(0, "s", NARROW.fingerprint(), "p"))
            assert (await old.hear(Opened)).schema == NARROW, "a client that knows the old schema comes again"
            return daemon.catalog.keeper.export(), daemon.queries()[0].fields

    exported = asyncio.run(first())
    again, fields = asyncio.run(second())
    assert again == exported
    assert "CREATE STREAM s (k BIGINT, v BIGINT, x DOUBLE);" in exported.sql
    assert "CREATE QUERY q AS SELECT k, v FROM s;" in exported.sql
    assert [field[0] for field in fields] == ["k", "v"]


@served(SQL)
async def test_who_reads_late_tuples_directly_is_told_to_come_again(daemon):
    async with lines(daemon) as feeder, lines(daemon) as reader:
        reader.say('{"subscribe": "s.late"}')
        await until(lambda: daemon.runner.outlets["s.late"].consumers)
        await daemon.catalog.execute("ALTER STREAM s ADD COLUMN x DOUBLE")
        assert "subscribe again" in (await reader.hear())["error"]["text"]
        reader.say('{"subscribe": "s.late"}')
        await until(lambda: daemon.runner.outlets["s.late"].consumers)
        feeder.say('{"stream": "s", "tuple": {"ts": 9000000, "k": 1}}')
        feeder.say('{"stream": "s", "tuple": {"ts": 7000000, "k": 2, "x": 0.5}}')
        assert (await reader.hear())["row"]["x"] == 0.5


@served(PLAIN)
async def test_a_column_is_shown_before_and_refused_with_nothing_changed(daemon):
    shown, becomes = await daemon.catalog.plan(ADD)
    assert shown == [StatementView(kind="alter_stream", name="s", added=["x"], rewritten=["q"])]
    assert becomes.streams == [FateView(name="s", change="changes")]
    before = daemon.engine.save(), daemon.catalog.keeper.export()
    with pytest.raises(Refuse, match="must be nullable"):
        await daemon.catalog.execute(f"{ADD}; ALTER STREAM s ADD COLUMN y BIGINT NOT NULL")
    assert (daemon.engine.save(), daemon.catalog.keeper.export()) == before
