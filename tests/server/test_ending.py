"""The end of a server whose data folder has become unwritable: it saves what it can, and reports the rest."""

import asyncio
import sqlite3

import pyarrow.parquet as pq
import pytest
import uvloop
from structlog.testing import capture_logs

from millrace.protocol import MillraceError
from millrace.run.daemon import Daemon, StartError
from millrace.store.sinkfiles import WholeFiles
from tests.patience import HANG_SECONDS
from tests.server.harness import lines, running, settings, until
from tests.server.test_api import get

SQL = """
    CREATE STREAM s (k BIGINT);
    CREATE QUERY q AS SELECT k FROM s;
    CREATE SINK f FROM q WITH (type = 'file', path = '{}', format = 'parquet')
"""


def files_of(folder):
    """The rows of a sink's folder."""
    return [k for path in sorted(folder.glob("*.parquet")) for k in pq.read_table(path)["k"].to_pylist()]


def play(test):
    async def bounded():
        async with asyncio.timeout(HANG_SECONDS):
            await test

    uvloop.run(bounded())


def block(addresses):
    """What no process may unlink, root's neither."""
    addresses.unlink(missing_ok=True)
    (addresses / "in the way").mkdir(parents=True)


def test_addresses_that_cannot_be_removed_stop_nothing(tmp_path):
    """The rows of a sink are still in its file."""
    out = tmp_path / "sinks/out.parquet"

    async def live():
        with capture_logs() as logs:
            async with running(SQL.format("out.parquet"), server={"data_dir": tmp_path}) as daemon:
                async with lines(daemon) as nc:
                    nc.say('{"stream": "s", "tuple": {"k": 7}}')
                    await until(lambda: daemon.streams()[0].tuples == 1)
                block(tmp_path / "addresses.json")
        told = [line["event"] for line in logs]
        assert told[-1] == "ended"
        assert told.index("draining") < told.index("addresses.json cannot be removed")

    play(live())
    assert files_of(out) == [7]


def test_a_sink_that_cannot_be_finished_leaves_the_others(tmp_path, monkeypatch):
    out = tmp_path / "out.parquet"
    close = WholeFiles.close

    def fails(file):
        if file.path == tmp_path / "first":
            raise ValueError("no footer")
        close(file)

    monkeypatch.setattr(WholeFiles, "close", fails)

    async def live():
        with capture_logs() as logs:
            async with running(SQL.format(tmp_path / "first")) as daemon:
                await daemon.catalog.execute(
                    f"CREATE SINK g FROM q WITH (type = 'file', path = '{out}', format = 'parquet')"
                )
                async with lines(daemon) as nc:
                    nc.say('{"stream": "s", "tuple": {"k": 7}}')
                    await until(lambda: daemon.streams()[0].tuples == 1)
        (told,) = [line for line in logs if line["event"] == "a sink could not complete its file"]
        assert (told["sink"], told["reason"]) == ("f", "no footer")

    play(live())
    assert files_of(out) == [7]


PARTS = ("seams", "trials", "catalog", "archive")


@pytest.mark.parametrize("broken", PARTS)
def test_a_part_of_the_end_that_fails_leaves_the_others(tmp_path, monkeypatch, broken):
    ended = []

    async def live():
        daemon = Daemon(settings(server={"data_dir": tmp_path}))
        await daemon.start()
        for name in PARTS:
            room = getattr(daemon, name)
            monkeypatch.setattr(room, "close", closing(name, room.close))
        daemon.stop()
        with capture_logs() as logs, pytest.raises(StartError, match="a shutdown step failed"):
            await daemon.wait_ended()
        (told,) = [line for line in logs if line["event"] == "a shutdown step failed; the others continue"]
        assert told["reason"] == "PermissionError(13, 'no')"
        assert logs[-1]["event"] == "ended"

    def closing(name, close):
        async def maybe():
            ended.append(name)
            if name == broken:
                raise PermissionError(13, "no")
            await close()

        return maybe

    play(live())
    assert ended == list(PARTS)


def test_addresses_that_cannot_be_written_are_told_at_the_start(tmp_path):
    block(tmp_path / "addresses.json")

    async def live():
        daemon = Daemon(settings(server={"data_dir": tmp_path}))
        with pytest.raises(StartError, match=r"server\.data_dir: cannot write .*addresses\.json"):
            await daemon.start()

    play(live())


def test_a_catalog_that_cannot_be_written_is_told_until_it_can(tmp_path, monkeypatch):
    full: list[bool] = []
    refused: list[str] = []
    connect = sqlite3.connect

    class Disk(sqlite3.Connection):
        """Of a disk that may be full."""

        def executemany(self, sql, *given):
            if full:
                refused.append(sql)
                raise sqlite3.OperationalError("database or disk is full")
            return super().executemany(sql, *given)

    monkeypatch.setattr(sqlite3, "connect", lambda *given, **options: connect(*given, **options, factory=Disk))

    async def live():
        async with running("CREATE STREAM s (k BIGINT)", server={"data_dir": tmp_path}) as daemon:
            full.append(True)
            with capture_logs() as logs:
                with pytest.raises(MillraceError, match="is lost when the server ends"):
                    await daemon.catalog.execute("CREATE STREAM t (k BIGINT)")
                failed = len(refused)
                daemon.catalog.keeper.write_again()
                await until(lambda: len(refused) > failed)
                text = "cannot write the catalog"
                assert text in (await get(daemon, "/-/healthy")).split("\n")[1]
                server = await get(daemon, "/api/v1/server")
                assert text in server["catalog_error"]
                assert text in server["problems"][0]
                full.clear()
                # Unless the write before is still under way, this one is the next.
                await until(lambda: daemon.catalog.keeper.write_again() or daemon.catalog.keeper.error is None)
                assert await get(daemon, "/-/healthy") == "healthy\n"
            told = [line["event"] for line in logs if "catalog" in line["event"]]
            assert told == ["the catalog cannot be written", "the catalog can be written again"], "told once each"
        async with running(server={"data_dir": tmp_path}) as daemon:
            assert [stream.name for stream in daemon.streams()] == ["s", "t"]

    play(live())
