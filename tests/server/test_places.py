"""The places where sinks may write: no path outside the allowed folders, no special file, no file of the server."""

import asyncio
import json
import os
import socket
import sqlite3
import stat
from contextlib import closing

import pytest
import uvloop
from structlog.testing import capture_logs

from millrace.protocol import Refuse
from millrace.run.config import ConfigError, load
from millrace.run.daemon import Daemon
from millrace.store.places import SinkFolders
from tests.patience import HANG_SECONDS
from tests.server.harness import SCHEMA_SQL, forget_journal, lines, running, served, until
from tests.server.test_api import ask, get


def sink(path, name="f", more=""):
    return f"CREATE SINK {name} FROM q WITH (type = 'file', path = '{path}', format = 'jsonl'{more})"


def inside(test):
    """A server with a data folder and no other that sinks may write to."""

    def wrapped(tmp_path, *args, **kwargs):
        async def play():
            server = {"data_dir": tmp_path / "data", "allow_paths": []}
            (tmp_path / "data").mkdir()
            async with asyncio.timeout(HANG_SECONDS), running(SCHEMA_SQL, server=server) as daemon:
                await test(daemon, tmp_path / "data/sinks", *args, **kwargs)

        uvloop.run(play())

    wrapped.__name__ = test.__name__
    return wrapped


async def refusal(daemon, path, words, status=400, token=None):
    """Planned or carried out: refused, with a reason, and nothing is left."""
    for dry_run in (True, False):
        got, _, said = await ask(daemon, "POST", "/api/v1/sql", {"sql": sink(path), "dry_run": dry_run}, token)
        assert (got, words in said["detail"]) == (status, True), (got, said)
    assert daemon.catalog.sinks() == []


OUTSIDE = [
    ("../out.jsonl", "may not contain '..'"),
    ("a/../../out.jsonl", "may not contain '..'"),
    ("/etc/out.jsonl", "expected a path inside"),
    ("//etc/out.jsonl", "expected a path inside"),
    ("~/out.jsonl", "'~' is not expanded"),
    ("a\0b.jsonl", "printable"),
    ("a\nb.jsonl", "printable"),
    ("a\x1b[2Jb.jsonl", "printable"),
    ("a\u202eb.jsonl", "printable"),
    (".", "got a folder"),
    ("./", "got a folder"),
    (".hidden", "starts with a dot"),
    ("a/.f-0.parquet.part", "starts with a dot"),
    ("x" * 256, "names of up to 255 bytes"),
    ("ä" * 128, "names of up to 255 bytes"),
    ("a/" * 3000 + "x", "names of up to 255 bytes"),
]


def test_paths_that_lead_elsewhere_are_refused(tmp_path):
    @inside
    async def play(daemon, folder):
        for path, words in OUTSIDE:
            await refusal(daemon, path, words)
        assert not folder.exists()

    play(tmp_path)


def test_what_is_no_regular_file_is_refused(tmp_path):
    """A named pipe without a reader once stopped the server for good."""

    @inside
    async def play(daemon, folder):
        folder.mkdir()
        os.mkfifo(folder / "pipe")
        (folder / "folder").mkdir()
        (folder / "link").symlink_to(tmp_path / "target")
        (tmp_path / "elsewhere").mkdir()
        (folder / "away").symlink_to(tmp_path / "elsewhere")
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(folder / "socket"))
        for name, words in (
            ("pipe", "got a named pipe"),
            ("folder", "got a folder"),
            ("link", "got a symbolic link"),
            ("away/out.jsonl", "got a symbolic link"),
            ("socket", "got a socket"),
        ):
            await refusal(daemon, name, words)
        assert await get(daemon, "/-/healthy") == "healthy\n"
        assert not (tmp_path / "target").exists()
        assert list((tmp_path / "elsewhere").iterdir()) == []

    play(tmp_path)


@served(server={"allow_paths": ["/dev"]})
async def test_devices_are_refused(daemon):
    for name in ("null", "full"):
        await refusal(daemon, f"/dev/{name}", "got a device")


def test_the_servers_own_files_are_refused_even_below_an_allowed_folder(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    token = tmp_path / "token"
    token.write_text("secret\n")
    config = tmp_path / "millrace.toml"
    config.write_text(
        f"""
        [server]
        listen = "127.0.0.1:0"
        admin = "127.0.0.1:0"
        data_dir = "{data}"
        allow_paths = ["{tmp_path}"]
        token_file = "{token}"
        """
    )

    async def refused(daemon, path, words="the server's own file"):
        await refusal(daemon, path, words, token="secret")

    async def play():
        daemon = Daemon(load(config))
        await daemon.start()
        try:
            await daemon.catalog.execute(SCHEMA_SQL)
            (data / "sinks").mkdir()
            for name in ("catalog.sqlite", "catalog.sqlite-wal", "addresses.json", "seams.json", "new", "history/x"):
                await refused(daemon, data / name)
            await refused(daemon, token)
            await refused(daemon, config)
            os.link(data / "catalog.sqlite", tmp_path / "harmless")
            os.link(token, data / "sinks/harmless")
            await refused(daemon, tmp_path / "harmless", "use another place")
            await refused(daemon, "harmless", "use another place")
            await daemon.catalog.execute(sink(data / "sinks/fine.jsonl"))
        finally:
            daemon.stop()
            await daemon.wait_ended()
        with closing(sqlite3.connect(data / "catalog.sqlite")) as found, found:
            assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    uvloop.run(play())
    assert token.read_text() == "secret\n"


def test_the_keys_and_the_configuration_are_the_servers_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours.py").write_text("")
    (tmp_path / "token").write_text("secret\n")
    config = tmp_path / "millrace.toml"
    config.write_text('[server]\nfunctions = "ours"\ntoken_file = "token"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    places = SinkFolders.of(load(config))
    for name in ("millrace.toml", "ours.py", "token"):
        with pytest.raises(Refuse, match="the server's own file"):
            places.locate(name)
    assert places.locate("rows.jsonl").path == tmp_path / "rows.jsonl"


def test_a_file_with_other_names_is_refused(tmp_path):
    @inside
    async def play(daemon, folder):
        folder.mkdir()
        (tmp_path / "private").write_text("mine\n")
        os.link(tmp_path / "private", folder / "shared")
        await refusal(daemon, "shared", "other names (hard links)")

    play(tmp_path)


def test_relative_paths_lie_in_the_sink_folder_which_is_created(tmp_path):
    @inside
    async def play(daemon, folder):
        await daemon.catalog.execute(sink("day/one.jsonl"))
        assert daemon.catalog.sinks()[0].path == str(folder / "day/one.jsonl")
        assert stat.S_ISREG((folder / "day/one.jsonl").stat().st_mode)
        got, _, said = await ask(daemon, "POST", "/api/v1/sql", {"sql": sink(folder / "night/two.jsonl", "two")})
        assert (got, "no such file or directory" in said["detail"]) == (409, True)

    play(tmp_path)


@served()
async def test_two_sinks_never_share_a_file_whatever_they_call_it(daemon, tmp_path):
    await daemon.catalog.execute(sink(tmp_path / "a.jsonl", "one"))
    await daemon.catalog.execute(
        f"CREATE SINK p FROM q WITH (type = 'file', path = '{tmp_path}/p', format = 'parquet')"
    )
    os.symlink(tmp_path / "p", tmp_path / "alias")
    for path in (
        tmp_path / "a.jsonl",
        f"{tmp_path}//./a.jsonl",
        tmp_path / "p/x.jsonl",
        tmp_path / "p/f-0000000000000000000-0000000000000000000.parquet",
    ):
        with pytest.raises(Refuse, match=r"already writes|the folder of sink"):
            await daemon.catalog.execute(sink(path, "two"))
    with pytest.raises(Refuse, match="symbolic link"):
        await daemon.catalog.execute(sink(tmp_path / "alias/x.jsonl", "two"))
    with pytest.raises(Refuse, match="sink x already writes"):
        await daemon.catalog.execute(f"{sink(tmp_path / 'n', 'x')}; {sink(tmp_path / 'n', 'y')}")
    assert not (tmp_path / "n").exists()


def test_a_swap_between_the_look_and_the_open_is_noticed(tmp_path, monkeypatch):
    """The file is a link by the time it is opened."""
    (tmp_path / "sinks").mkdir()
    places = SinkFolders(tmp_path / "sinks")
    place = places.locate("a.jsonl")
    assert places.look_for_file(place) is None
    opens = os.open

    def swapped(path, *args, **kwargs):
        if path == "a.jsonl":
            (tmp_path / "sinks/a.jsonl").symlink_to(tmp_path / "stolen")
        return opens(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(Refuse, match="expected a regular file"):
        places.open_file(place, makes=True)
    assert not (tmp_path / "stolen").exists()


def test_opening_does_not_keep_the_loop(tmp_path, monkeypatch):
    """A disk that does not answer refuses the sink; all other work continues meanwhile."""
    import threading

    from millrace.run import threads

    released = threading.Event()
    opened = SinkFolders.open_file

    def hangs(self, place, *, makes=False):
        released.wait(HANG_SECONDS)
        return opened(self, place, makes=makes)

    monkeypatch.setattr(SinkFolders, "open_file", hangs)
    monkeypatch.setattr(threads, "SECONDS", 0.3)

    @inside
    async def play(daemon, folder):
        asked = asyncio.create_task(ask(daemon, "POST", "/api/v1/sql", {"sql": sink("a.jsonl")}))
        assert await get(daemon, "/-/healthy") == "healthy\n"
        status, _, said = await asked
        assert (status, "did not answer" in said["detail"]) == (409, True)
        released.set()
        assert daemon.catalog.sinks() == []

    play(tmp_path)


# -- catalogs of before ------------------------------------------------------------------------------------------------


def forget_places(data):
    """Make a catalog one of before sinks had a folder."""
    with closing(sqlite3.connect(data / "catalog.sqlite")) as database, database:
        (document,) = database.execute("SELECT document FROM decisions").fetchone()
        decisions = json.loads(document)
        del decisions["places"]
        database.execute("UPDATE decisions SET document = ?", (json.dumps(decisions),))


def test_sinks_of_an_older_catalog_write_on_where_they_did(tmp_path, monkeypatch):
    """Outside the sink folder they are logged at each start, shown, and cannot be created again."""
    data, work = tmp_path / "data", tmp_path / "work"
    data.mkdir()
    work.mkdir()
    monkeypatch.chdir(work)
    before = {"data_dir": data, "allow_paths": [str(work)]}
    now = {"data_dir": data, "allow_paths": []}

    async def feed(daemon, k):
        async with lines(daemon) as nc:
            delivered = [found.delivered for found in daemon.catalog.sinks()]
            nc.say(json.dumps({"stream": "s", "tuple": {"k": k}}))
            await until(lambda: [found.delivered for found in daemon.catalog.sinks()] == [n + 1 for n in delivered])

    async def first():
        async with running(SCHEMA_SQL, server=before) as daemon:
            await daemon.catalog.execute(sink(work / "absolute.jsonl", "a"))
            await daemon.catalog.execute(sink("relative.jsonl", "r"))
            await feed(daemon, 1)
        (data / "sinks/relative.jsonl").rename(work / "relative.jsonl")
        forget_journal(data)
        forget_places(data)

    async def later(k):
        with capture_logs() as logs:
            async with running(server=now) as daemon:
                await feed(daemon, k)
                shown = {found.name: (found.path, found.outside) for found in daemon.catalog.sinks()}
                for name in "ar":
                    path = str(work / ("absolute.jsonl" if name == "a" else "relative.jsonl"))
                    assert shown[name] == (path, True)
                with pytest.raises(Refuse, match="expected a path inside"):
                    await daemon.catalog.execute(sink(work / "absolute.jsonl", "again"))
        told = [line["sink"] for line in logs if "outside the folders" in line["event"]]
        assert told == ["a", "r"]

    uvloop.run(first())
    uvloop.run(later(2))
    uvloop.run(later(3))
    for name in ("absolute", "relative"):
        rows = [json.loads(line)["k"] for line in (work / f"{name}.jsonl").read_text().splitlines()]
        assert rows == [1, 2, 3]


def test_a_sink_over_the_servers_own_catalog_waits_and_the_server_starts(tmp_path):
    data = tmp_path / "data"
    data.mkdir()

    async def first():
        async with running(SCHEMA_SQL, server={"data_dir": data}) as daemon:
            await daemon.catalog.execute(sink("x.jsonl"))
        with closing(sqlite3.connect(data / "catalog.sqlite")) as database, database:
            database.execute(
                "UPDATE statements SET sql = replace(sql, 'x.jsonl', ?) WHERE sql LIKE '%x.jsonl%'",
                (str(data / "catalog.sqlite"),),
            )
        forget_journal(data)

    async def second():
        async with running(server={"data_dir": data}) as daemon:
            await until(lambda: daemon.catalog.sinks()[0].state == "waiting")
            assert "the server's own" in daemon.catalog.sinks()[0].reason

    uvloop.run(first())
    size = (data / "catalog.sqlite").stat().st_size
    uvloop.run(second())
    assert (data / "catalog.sqlite").stat().st_size >= size
    with closing(sqlite3.connect(data / "catalog.sqlite")) as found, found:
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# -- configuration -----------------------------------------------------------------------------------------------------


def problems(**server):
    with pytest.raises(ConfigError) as found:
        load(flags={"server": server})
    return found.value.text


def test_folders_that_make_no_sense_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    assert "contains the server's own files" in problems(data_dir=tmp_path, sink_dir=tmp_path)
    assert "history of streams" in problems(data_dir=tmp_path, sink_dir=tmp_path / "history/x")
    assert "expected an absolute path" in problems(allow_paths=["here"])
    assert "is not a folder" in problems(allow_paths=[str(tmp_path / "file")])
    assert "is not a folder" in problems(sink_dir=tmp_path / "file")


def test_the_environment_has_several_paths(monkeypatch):
    monkeypatch.setenv("MILLRACE_SERVER__ALLOW_PATHS", "/a, /b")
    assert [str(path) for path in load().server.allow_paths] == ["/a", "/b"]
