"""A standby: the same records, the same state and the same rows as its primary, whenever either is interrupted."""

import asyncio
import io
import json
import shutil
from contextlib import asynccontextmanager

import msgpack
import pytest

from millrace.cli.link import Link
from millrace.journal.disk import JOURNAL_FOLDER, RealDisk
from millrace.journal.reader import JournalReader
from millrace.journal.segments import Segment
from millrace.protocol import MillraceError, Refuse
from millrace.protocol.messages import Open, Opened
from millrace.run.config import parse_where
from millrace.run.standby import FILE, Standby, StandbyError, read_role
from millrace.run.standbys import Known, mark_of
from millrace.run.upstream import Upstream
from millrace.store.backups import BackupError, make_backup, restore_backup
from millrace.store.copies import messages_of, receive
from tests.server.directories import SQL, contents, feed, killed, rows, state
from tests.server.harness import lines, peer, played, running, settle, until

MORE = (
    SQL.replace("(k BIGINT);", "(k BIGINT) WITH (history = 'true');")
    + "CREATE SINK f FROM q WITH (type = 'file', path = 'out.jsonl');"
)


@pytest.fixture(autouse=True)
def unheard(monkeypatch):
    """A promoted server does not reach the one that it has replaced, which goes on; test_failover.py has the rest."""

    async def depose(_):
        pass

    monkeypatch.setattr(Standby, "depose", depose)


def working(folder, sql=None, **sections):
    """A server with a data directory."""
    folder.mkdir(exist_ok=True)
    return running(sql, server={"data_dir": str(folder)}, **sections)


def following(folder, primary, **standby):
    """A standby of a server."""
    folder.mkdir(exist_ok=True)
    return running(server={"data_dir": str(folder)}, standby={"follow": f"http://{primary.admin}", **standby})


@asynccontextmanager
async def pair(folder, sql=SQL, **sections):
    async with (
        working(folder / "one", sql, **sections) as primary,
        following(folder / "two", primary) as standby,
    ):
        yield primary, standby


async def level(primary, standby):
    """Wait until the standby has taken all of the primary's steps."""
    recorder = primary.durability.recorder
    await until(lambda: standby.durability.recovery.lsn == recorder.recorded)


def records(folder):
    """All records of a data directory's journal."""
    reader = JournalReader(RealDisk(folder / JOURNAL_FOLDER))
    found = [(one.lsn, one.time_us, one.payload) for one in reader.records(reader.first_lsn)]
    reader.close()
    return found


def request(daemon, method, path, body=None):
    """A request to a server of this loop, from a thread."""
    link = Link(str(daemon.admin))
    return asyncio.get_running_loop().run_in_executor(None, link.request, method, path, body)


# -- the copy ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    folder = tmp_path_factory.mktemp("image")

    async def more(daemon):
        await daemon.durability.make()
        await feed(daemon, 20, 5)

    return folder / "image", killed(folder / "one", folder / "image", more=more, sql=MORE)


def unpacked(folder):
    return [msgpack.unpackb(message) for message in messages_of(folder, 1_000_000)]


def test_a_copy_is_what_a_backup_restores(image, tmp_path):
    make_backup(image[0], tmp_path / "backup", 1_000_000)
    restored = restore_backup(tmp_path / "backup", tmp_path / "restored")
    copied = receive(unpacked(image[0]), tmp_path / "copied", {})
    assert copied == restored
    assert contents(tmp_path / "copied") == contents(tmp_path / "restored")


def test_a_copy_that_breaks_off_or_is_damaged_leaves_nothing(image, tmp_path):
    messages = unpacked(image[0])
    whole = next(at for at, one in enumerate(messages) if one[0] == 4)  # bytes of a file
    cases = {
        "broke off": messages[:-1],
        "damaged": [*messages[:whole], [4, b"other"], *messages[whole + 1 :]],
        "lacks files": [*messages[:0], messages[-1]],
        "no known kind": [[77]],
        "not a path": [[0, "../out", 0o600, 0, {}]],
        "bytes of no file": [[4, b"x"]],
        "other than a manifest": [[5, {"form": 1}]],
        "newer Millrace": [[5, {"form": 2}]],
        "cannot copy": [[6, "no disk"]],
    }
    for words, found in cases.items():
        with pytest.raises(BackupError, match=words):
            receive(found, tmp_path / "copied", {})
        assert list(tmp_path.iterdir()) == []


def test_what_a_killed_copy_has_left_is_removed(image, tmp_path):
    left = tmp_path / ".copied.restoring-abc"
    left.mkdir()
    (left / "file").write_text("x")
    receive(unpacked(image[0]), tmp_path / "copied", {})
    assert [path.name for path in tmp_path.iterdir()] == ["copied"]


# -- following ---------------------------------------------------------------------------------------------------------


@played
async def test_a_standby_has_the_records_the_state_and_the_rows(tmp_path):
    async with pair(tmp_path, MORE) as (primary, standby):
        await feed(primary, 0, 20)
        await level(primary, standby)
        assert state(standby) == state(primary)
        await primary.catalog.execute(
            "CREATE STREAM t (v BIGINT); CREATE QUERY w AS SELECT v FROM t; DROP QUERY totals"
        )
        await feed(primary, 20, 7)
        await level(primary, standby)
        assert state(standby) == state(primary)
        assert standby.catalog.known.queries.keys() == {"q", "w"}
        have = {one[0]: one for one in records(tmp_path / "two")}
        assert have == {one[0]: one for one in records(tmp_path / "one") if one[0] in have}
        await standby.make_durable()
        await primary.make_durable()
        out = (tmp_path / "one/sinks/out.jsonl").read_bytes()
        assert out == (tmp_path / "two/sinks/out.jsonl").read_bytes()
        assert out.count(b"\n") == 14


@played
async def test_a_standby_shows_its_state_and_changes_nothing(tmp_path):
    async with pair(tmp_path) as (primary, standby):
        await feed(primary, 0, 6)
        await level(primary, standby)
        assert (await request(standby, "GET", "streams"))[0]["tuples"] == 6
        assert (await request(standby, "GET", "server"))["follows"]["lsn"] > 6
        for method, path, body in (
            ("POST", "sql", {"sql": "CREATE STREAM x (k BIGINT)"}),
            ("DELETE", "queries/q", None),
            ("GET", "standby/copy?standby=x", None),
            ("POST", "standby/heard", {"standby": "x", "ping": 1, "lsn": 1}),
        ):
            with pytest.raises(MillraceError, match=r"follows .*: connect to that one; `millrace promote`") as caught:
                await request(standby, method, path, body)
            assert caught.value.code == "standby"
        async with lines(standby) as client:
            client.say('{"op": "feed", "stream": "s"}')
            assert (await client.hear())["error"]["code"] == "standby"
        async with peer(standby, greet=False) as client:
            assert (await client.greet()).code == "standby"
        await until(lambda: primary.standbys.views(0)[0].heard_us is not None)
        seen = (await request(primary, "GET", "server"))["standbys"]
        assert [one["connected"] for one in seen] == [True]


@played
async def test_a_promoted_standby_goes_on_with_the_same_rows(tmp_path):
    async with working(tmp_path / "one", MORE) as primary:
        async with following(tmp_path / "two", primary) as standby:
            await feed(primary, 0, 20)
            await level(primary, standby)
            with pytest.raises(Refuse, match="still works"):
                await standby.promote(force=False)
            before = state(primary)
            done = await standby.promote(force=True)
            assert (done.epoch, done.missing_steps, standby.state) == (2, 0, "ready")
            assert state(standby) == before
            await feed(standby, 20, 10)
            assert [k for (k,) in await rows(standby, "q", 15)] == list(range(0, 30, 2))
            with pytest.raises(Refuse, match="primary already"):
                await standby.promote(force=False)
        shutil.copytree(tmp_path / "two", tmp_path / "former")
        (tmp_path / "former" / FILE).unlink()
        with pytest.raises(StandbyError, match=r"records that this server does not have|is not this server's"):
            await refollow(tmp_path / "former", primary)
    async with working(tmp_path / "two") as again:
        assert again.epoch == 2
        assert [k for (k,) in await rows(again, "q", 15)] == list(range(0, 30, 2))
        out = (tmp_path / "two/sinks/out.jsonl").read_text().splitlines()
        assert [json.loads(line)["k"] for line in out] == list(range(0, 30, 2))


async def refollow(folder, primary):
    """Start a directory as a standby."""
    async with following(folder, primary):
        pass


@played
async def test_a_standby_that_ends_continues_and_is_no_server_by_accident(tmp_path):
    async with working(tmp_path / "one", SQL) as primary:
        async with following(tmp_path / "two", primary) as standby:
            await feed(primary, 0, 5)
            await level(primary, standby)
        await feed(primary, 5, 5)
        with pytest.raises(StandbyError, match=r"is the directory of a standby of http:.*--follow"):
            async with working(tmp_path / "two"):
                pass
        async with following(tmp_path / "two", primary) as standby:
            assert standby.durability.recovery.steps == 0  # its end has left a checkpoint
            await feed(primary, 10, 5)
            await level(primary, standby)
            assert state(standby) == state(primary)


@played
async def test_a_standby_outlives_its_primary(tmp_path):
    async with working(tmp_path / "one", SQL) as primary:
        await feed(primary, 0, 5)
        port = primary.admin
        standing = following(tmp_path / "two", primary)
        standby = await standing.__aenter__()
        await level(primary, standby)
        await feed(primary, 5, 4)
    try:  # its end has let the standby have everything, also the last checkpoint's mark
        assert records(tmp_path / "two") == records(tmp_path / "one")[-len(records(tmp_path / "two")) :]
        await until(lambda: not standby.standby.connected)
        where = {"data_dir": str(tmp_path / "one"), "admin": str(port)}
        async with running(server=where) as primary:
            await feed(primary, 9, 3)
            await level(primary, standby)
            assert state(standby) == state(primary)
    finally:
        await standing.__aexit__(None, None, None)


@played
async def test_epochs_rise_from_promotion_to_promotion(tmp_path):
    async with working(tmp_path / "1", SQL) as first:
        await feed(first, 0, 5)
        async with following(tmp_path / "2", first) as second:
            await level(first, second)
            assert (await second.promote(force=True)).epoch == 2
            await feed(second, 5, 5)
            async with following(tmp_path / "3", second) as third:
                await level(second, third)
                assert third.epoch == 2
            async with following(tmp_path / "3", second) as third:
                await level(second, third)
                assert (await third.promote(force=True)).epoch == 3
                assert state(third) == state(second)
    make_backup(tmp_path / "2", tmp_path / "backup", 1)
    restore_backup(tmp_path / "backup", tmp_path / "restored")
    assert read_role(tmp_path / "restored") is None


@played
async def test_the_directory_of_a_server_that_runs_is_not_marked(tmp_path):
    async with working(tmp_path / "one", SQL) as primary:
        await feed(primary, 0, 3)
        with pytest.raises(StandbyError, match="in use by another server"):
            await refollow(tmp_path / "one", primary)
    assert read_role(tmp_path / "one") is None


# -- what is kept for it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["1 GB", "1 kB"])
@played
async def test_records_are_kept_for_a_standby_that_is_away(tmp_path, monkeypatch, keep):
    monkeypatch.setattr("millrace.journal.segments.FIRST_SEGMENT_BYTES", 2**12)
    (tmp_path / "one").mkdir()
    sections = {"standby": {"keep": keep}, "journal": {"keep": "none"}}
    async with running(SQL, server={"data_dir": str(tmp_path / "one")}, **sections) as primary:
        async with following(tmp_path / "two", primary) as standby:
            await feed(primary, 0, 2)
            await level(primary, standby)
        for turn in range(4):
            await feed(primary, 2 + 50 * turn, 50)
            await primary.durability.make()
        journal = primary.durability.recorder.journal
        await until(lambda: (journal.first_lsn > 100) == (keep == "1 kB"))
        async with following(tmp_path / "two", primary) as standby:
            if keep == "1 GB":
                await level(primary, standby)
                assert state(standby) == state(primary)
                return
            await until(lambda: standby.standby.error is not None)
            assert "has removed the records before" in standby.standby.error
            assert standby.standby.view().lag_steps == 0
        shutil.rmtree(tmp_path / "two")
        async with following(tmp_path / "two", primary) as standby:
            await level(primary, standby)
            assert state(standby) == state(primary)


@played
async def test_a_standby_that_lags_too_far_is_left(tmp_path):
    async with working(tmp_path / "one", SQL) as primary:
        segments = [Segment(1 + 100 * at, 100, 0) for at in range(20)]
        standbys = primary.standbys
        standbys._most_bytes = 1_000
        standbys.known["far"] = Known("far", 500, 0)
        standbys.known["near"] = Known("near", 1_500, 0, streams=1)
        assert standbys.needed(1_800, 2_000, segments) == 1_500
        assert standbys.known.keys() == {"near"}
        assert standbys.needed(1_200, 2_000, segments) == 1_200
        standbys.known["near"].lsn = 700
        assert standbys.needed(1_800, 2_000, segments) == 1_800
        assert standbys.views(2_000)[0].left


# -- damage on the way -------------------------------------------------------------------------------------------------


@played
async def test_records_that_do_not_follow_or_are_damaged_are_not_taken(tmp_path):
    async with pair(tmp_path) as (primary, standby):
        await feed(primary, 0, 3)
        await level(primary, standby)
        recorder, taking = standby.durability.recorder, standby.standby._take
        lsn = recorder.recorded
        for words, message in {
            f"sent record {lsn}, expected {lsn + 1}": [0, lsn, 1, 1, b"x"],
            "was damaged on its way": [0, lsn + 1, 1, 1, b"x"],
            "no known kind": [9],
            "no known form": [1, {"lsn": 1}],
            "the end": [2, "ended", "the end"],
        }.items():
            with pytest.raises(MillraceError, match=words):
                await taking(recorder, [message])
        assert recorder.recorded == lsn
        await feed(primary, 3, 3)
        await level(primary, standby)


# -- what is refused ---------------------------------------------------------------------------------------------------


async def refused(folder, primary, words, **standby):
    """A start as a standby that is refused, and changes nothing on the disk."""
    before = contents(folder)
    with pytest.raises(MillraceError, match=words) as caught:
        async with following(folder, primary, **standby):
            pass
    assert "\n" not in caught.value.text
    assert contents(folder) == before


@played
async def test_directories_that_cannot_follow_are_refused(tmp_path):
    for name in ("two", "empty"):
        (tmp_path / name).mkdir()
    async with working(tmp_path / "two", SQL) as other:
        await feed(other, 0, 3)
    async with working(tmp_path / "one", SQL) as primary:
        await feed(primary, 0, 3)
        await refused(tmp_path / "two", primary, "belongs to another server")
        shutil.copytree(tmp_path / "one", tmp_path / "ahead")
    await ahead(tmp_path / "ahead")
    async with working(tmp_path / "one") as primary:
        await refused(tmp_path / "ahead", primary, r"it has \d+ records that this server does not have")
        await feed(primary, 3, 30)
        await refused(tmp_path / "ahead", primary, "is not this server's, so the two have gone different ways")
    async with running(SQL) as primary:
        await refused(tmp_path / "empty", primary, "has no data directory")
    await refused(tmp_path / "empty", primary, "does not answer")


async def ahead(folder):
    async with working(folder) as daemon:
        await feed(daemon, 3, 20)


@played
async def test_a_standby_needs_the_token(tmp_path):
    for name in ("right", "wrong"):
        (tmp_path / name).write_text(name)
    (tmp_path / "one").mkdir()
    server = {"data_dir": str(tmp_path / "one"), "token_file": str(tmp_path / "right")}
    async with running(SQL, server=server) as primary:
        (tmp_path / "two").mkdir()
        await refused(tmp_path / "two", primary, "requires a token: set standby.token_file")
        await refused(tmp_path / "two", primary, "refuses the token in", token_file=str(tmp_path / "wrong"))
        async with following(tmp_path / "two", primary, token_file=str(tmp_path / "right")) as standby:
            await level(primary, standby)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("127.0.0.1", "http://127.0.0.1:7421"),
        ("localhost:1", "http://localhost:1"),
        ("10.0.0.1", "https://10.0.0.1:7421"),
        ("db.example:1", "https://db.example:1"),
        ("http://10.0.0.1:1", "http://10.0.0.1:1"),
        ("https://[::1]:1", "https://[::1]:1"),
        ("", None),
        ("ftp://x", None),
        ("x:y", None),
        ("x:99999", None),
        ("http://x/path", None),
        ("http://a@x", None),
        ("[", None),
    ],
)
def test_addresses(text, where):
    if where is None:
        with pytest.raises(ValueError, match="expected HOST:PORT or a URL"):
            parse_where(text)
    else:
        assert str(parse_where(text)) == where


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"follow": 1}', '{"follow": "x", "name": "y", "more": 1}'])
def test_a_damaged_role_is_reported(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(StandbyError, match="is damaged"):
        read_role(tmp_path)


def test_no_connection_is_kept_once_the_upstream_is_closed(monkeypatch):
    """A report may be under way in another thread meanwhile."""
    upstream = Upstream(parse_where("http://127.0.0.1:7421"), None, None)
    closed = []

    class Connection:
        def close(self):
            closed.append(self)

    def say(connection, *_):
        if len(made) == 2:
            upstream.close()
        return io.BytesIO()

    def connect():
        made.append(Connection())
        return made[-1]

    made: list[Connection] = []
    monkeypatch.setattr(upstream, "_connect", connect)
    monkeypatch.setattr(upstream, "_say", say)
    upstream.post("heard", {})
    upstream.post("heard", {})
    assert (len(made), closed) == (1, [])  # it is used again
    upstream.close()
    upstream.post("heard", {})
    assert closed == made
    assert len(made) == 2


# -- a primary that depends on its standby --------------------------------------------------------------------------


@pytest.mark.parametrize("standby", [{"lease": "1 second"}, {"confirm": True}, {"lease": "1 second", "confirm": True}])
@played
async def test_nothing_leaves_without_the_standby(tmp_path, standby):
    async with working(tmp_path / "one", SQL) as daemon:
        await feed(daemon, 0, 3)
        admin = str(daemon.admin)
        async with following(tmp_path / "two", daemon) as other:
            await level(daemon, other)
    server = {"data_dir": str(tmp_path / "one"), "admin": admin}
    starting = running(server=server, standby=standby)
    start = asyncio.create_task(starting.__aenter__())
    await settle(50)
    assert not start.done()  # it waits for its standby
    async with following(tmp_path / "two", daemon) as other:
        primary = await start
        try:
            await feed(primary, 3, 5)
            await level(primary, other)
            other.standby._closing = True  # it hears and answers nothing more
            other.standby._stream.close()
            async with peer(primary) as client:
                client.say(Open(0, "s", None, "p"))  # its step is recorded, and its answer waits
                await until(lambda: primary.durability.recorder.awaits_standby is not None)
                await settle()
                other.standby._closing = False
                receiving = other.standby._receive(other.durability.recorder)
                other.standby._receiving = asyncio.create_task(receiving, name="receiving")
                assert await client.hear(Opened) is not None
            await until(lambda: primary.durability.recorder.awaits_standby is None)
            await level(primary, other)
            assert state(other) == state(primary)
        finally:
            await starting.__aexit__(None, None, None)


@played
async def test_a_promotion_waits_for_the_end_of_the_lease(tmp_path):
    async with working(tmp_path / "one", SQL) as daemon:
        await feed(daemon, 0, 3)
        admin = str(daemon.admin)
        async with following(tmp_path / "two", daemon) as other:
            await level(daemon, other)
    server = {"data_dir": str(tmp_path / "one"), "admin": admin}
    starting = running(server=server, standby={"lease": "1 second"})
    start = asyncio.create_task(starting.__aenter__())
    async with following(tmp_path / "two", daemon, lease="1 second", confirm=True) as other:
        primary = await start
        await feed(primary, 3, 5)
        await level(primary, other)
        await until(lambda: other.standby.role.lease_us == 1_000_000)
        with pytest.raises(Refuse, match="still works"):
            await other.promote(force=False)
        promoting = asyncio.create_task(other.promote(force=True))
        await until(lambda: other.state == "promoting")
        await promoting
        assert not primary.lease.valid(primary.durability.recorder._clock())
        assert other.state == "ready"
        assert state(other)["sequences"] == state(primary)["sequences"]
        await feed(other, 8, 2)  # it works alone until it has a standby
        await starting.__aexit__(None, None, None)


@played
async def test_of_two_standbys_that_come_at_once_one_is_refused(tmp_path):
    async with running(server={"data_dir": str(tmp_path)}, standby={"lease": "1 hour"}) as primary:
        server = mark_of(primary.durability.recorder.journal.server_id)
        both = [primary.standbys.admit(name, 0, "", server) for name in ("a", "b")]
        found = await asyncio.gather(*both, return_exceptions=True)
        assert [type(one) for one in found] == [type(None), Refuse]


@played
async def test_a_standby_keeps_the_epoch_of_its_primary(tmp_path):
    async with working(tmp_path / "1", SQL) as first:
        await feed(first, 0, 5)
        async with following(tmp_path / "2", first) as second:
            async with following(tmp_path / "3", first) as third:
                await level(first, third)
            await level(first, second)
            await second.promote(force=True)
            for _ in range(2):  # from its records, and from its own checkpoint after them
                async with following(tmp_path / "3", second) as third:
                    await level(second, third)
                    assert third.epoch == 2
            assert third.durability.recovery.steps == 0
