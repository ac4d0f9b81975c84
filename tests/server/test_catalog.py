"""What was created and decided is there again: after a restart, and in another server by its export."""

import asyncio
import shlex
import sqlite3

import pytest
from typer.testing import CliRunner

from millrace.cli.main import app
from millrace.protocol import MillraceError
from millrace.server.decisions import Decisions
from millrace.server.store import Store, StoreError
from tests.server.harness import lines, running, served, until
from tests.server.test_api import ask, get

SQL = """
CREATE STREAM a (k BIGINT, name TEXT);
CREATE STREAM late (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '1 s');
CREATE STREAM "Odd-name" (k BIGINT); -- a comment
CREATE QUERY q WITH (order = 'event', fuse = 'off') AS SELECT k FROM a WHERE k > 0 -- of that one
UNION ALL SELECT k FROM "Odd-name";
CREATE QUERY "on-q" AS SELECT k FROM q;
CREATE QUERY forked AS SELECT k FROM a;
CREATE QUERY lost AS SELECT k FROM late.late;
CREATE QUERY base AS SELECT k FROM late;
CREATE OR REPLACE QUERY forked AS SELECT k FROM base;
CREATE QUERY again AS SELECT k FROM base;
CREATE SINK f FROM "on-q" WITH (type = 'file', path = '{folder}/out.jsonl');
ALTER STREAM late SET (disorder = '2 s')
"""


async def decide(daemon):
    """Something of every kind that SQL does not say."""
    fork = next(iter(daemon.engine.graph.forks.values())).name
    await daemon.catalog.set_strategy("a", "bfs(7)", None)
    await daemon.catalog.set_strategy("a", "dfs(3)", "q.select1")
    await daemon.catalog.set_strategy("late", "dfs(2)", fork)
    await daemon.catalog.set_strategy("late.late", "rr", None)
    await daemon.catalog.set_weight("late", 5)
    await daemon.catalog.set_break("q.union1", True)
    await daemon.catalog.pause("again", "it's too\nnoisy")
    await daemon.catalog.pause("lost")


def scheduling(daemon):
    """All that an admin can see of what was decided."""
    kept = ("name", "strategy", "strategies", "weight", "breaks", "operators")
    components = [{key: found[key] for key in kept} for found in daemon.components()]
    return components, [(query["name"], query["state"], query["reason"]) for query in daemon.queries()]


def lives(folder, *plays):
    """One server after the other in a folder; what each play came to."""

    async def live(play):
        async with running(server={"data_dir": folder}) as daemon:
            return await play(daemon)

    return [asyncio.run(live(play)) for play in plays]


def test_everything_is_there_again(tmp_path):
    async def first(daemon):
        await daemon.catalog.execute(SQL.format(folder=tmp_path))
        await decide(daemon)
        return scheduling(daemon), daemon.catalog.export()

    async def second(daemon):
        return scheduling(daemon), daemon.catalog.export()

    made, *again = lives(tmp_path, first, second, second)
    assert again == [made, made]
    components, queries = made[0]
    assert ("again", "paused", "it's too\nnoisy") in queries
    assert {found["name"]: found["weight"] for found in components} == {"a": 1, "late": 5, "late.late": 1}


def test_names_that_depend_on_the_order_of_making_are_found_again(tmp_path):
    """A stream's side stream is made when it is first read; after a restart other streams are older."""

    async def first(daemon):
        await daemon.catalog.execute(
            "CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts'); CREATE QUERY lost AS SELECT k FROM s.late"
        )
        await daemon.catalog.execute(
            "CREATE STREAM t (k BIGINT); CREATE QUERY merged AS SELECT k FROM lost UNION ALL SELECT k FROM t"
        )
        await daemon.catalog.set_strategy("s.late", "bfs", None)
        await daemon.catalog.set_weight("s.late", 3)
        return [(found["name"], found["strategy"], found["weight"]) for found in daemon.components()]

    async def second(daemon):
        return [(found["name"], found["strategy"], found["weight"]) for found in daemon.components()]

    made, again = lives(tmp_path, first, second)
    assert made == [("s", "dfs", 1), ("s.late", "bfs", 3)]
    assert again == [("s", "dfs", 1), ("t", "bfs", 3)]


def test_a_query_that_failed_does_not_begin_again_by_itself(tmp_path):
    async def first(daemon):
        await daemon.catalog.execute(
            "CREATE STREAM s (k BIGINT);"
            "CREATE QUERY q WITH (max_state = 2) AS SELECT k, count(*) AS n FROM s GROUP BY k"
        )
        async with lines(daemon) as feeder:
            for k in range(5):
                feeder.say(f'{{"stream": "s", "tuple": {{"k": {k}}}}}')
            await until(lambda: daemon.queries()[0]["state"] == "failed")

    async def second(daemon):
        query = daemon.queries()[0]
        await daemon.catalog.resume("q")
        return query["state"], query["reason"], daemon.queries()[0]["state"]

    state, reason, after = lives(tmp_path, first, second)[1]
    assert (state, after) == ("paused", "running")
    assert reason.startswith("failed before the server was started again: it remembered")


def test_a_query_that_waits_for_a_slow_consumer_is_not_paused_for_ever(tmp_path):
    async def first(daemon):
        await daemon.catalog.execute("CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s")
        daemon.runner._wait("q", True, "somebody does not keep up")
        await until(lambda: daemon.queries()[0]["state"] == "paused")
        assert daemon.catalog.decisions().paused == ()
        await daemon.catalog.pause("q")
        assert [paused.query for paused in daemon.catalog.decisions().paused] == ["q"]

    async def second(daemon):
        return daemon.queries()[0]["state"]

    assert lives(tmp_path, first, second)[1] == "paused"


@served()
async def test_the_export_makes_the_same_in_an_empty_server(daemon, tmp_path):
    """The statements by SQL, and the rest by the commands in the comments, typed one after the other."""
    await daemon.catalog.execute("DROP QUERY q; DROP STREAM s;" + SQL.format(folder=tmp_path))
    await decide(daemon)
    exported = await get(daemon, "/api/v1/catalog")
    async with running() as other:
        await other.catalog.execute(exported["sql"])
        assert other.catalog.export()["statements"] == exported["statements"]
        for command in exported["commands"]:
            verb, *words = shlex.split(command)
            assert verb == "millrace"
            assert f"-- {command}\n" in exported["sql"]
            arguments = [*words, "--admin", str(other.admin)]
            done = await asyncio.to_thread(CliRunner().invoke, app, arguments, catch_exceptions=False)
            assert done.exit_code == 0, done.output
        noisy, again = scheduling(daemon), scheduling(other)
        assert again[0] == noisy[0]
        assert {name: state for name, state, _ in again[1]} == {name: state for name, state, _ in noisy[1]}
        assert ("again", "paused", "it's too noisy") in again[1]


@served(None)
async def test_the_export_of_nothing_is_nothing(daemon):
    exported = await get(daemon, "/api/v1/catalog")
    assert exported == {
        "sql": "",
        "statements": [],
        "decisions": {"components": [], "paused": []},
        "commands": [],
    }


# -- files that cannot be read -------------------------------------------------------------------------------------


def test_a_file_of_the_first_format_is_read(tmp_path):
    old = sqlite3.connect(tmp_path / "catalog.sqlite")
    with old:
        old.execute("CREATE TABLE statements (place INTEGER PRIMARY KEY, sql TEXT NOT NULL)")
        old.execute("INSERT INTO statements (sql) VALUES ('CREATE STREAM s (k BIGINT)')")
        old.execute("PRAGMA user_version = 1")
    old.close()

    async def first(daemon):
        assert [stream["name"] for stream in daemon.streams()] == ["s"]
        await daemon.catalog.set_strategy("s", "bfs", None)

    async def second(daemon):
        return daemon.components()[0]["strategy"]

    assert lives(tmp_path, first, second)[1] == "bfs"


def database(path, *statements):
    made = sqlite3.connect(path)
    with made:
        for statement in statements:
            made.execute(statement)
    made.close()


def newer(path):
    database(path, "CREATE TABLE statements (place INTEGER PRIMARY KEY, sql TEXT)", "PRAGMA user_version = 99")


def foreign(path):
    database(path, "CREATE TABLE recipes (cake TEXT)")


def nonsense(path):
    path.write_bytes(b"this is no database, and long enough to be noticed as such" * 100)


def damaged(path):
    store = Store(path)
    store.write([f"CREATE STREAM s{n} (k BIGINT)" for n in range(2_000)], Decisions().model_dump_json())
    store.close()
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * 4096)


def undecided(path):
    store = Store(path)
    store.write(["CREATE STREAM s (k BIGINT)"], '{"components": 5}')
    store.close()


def unparsed(path):
    store = Store(path)
    store.write(["CREATE STREEM s (k BIGINT)"], Decisions().model_dump_json())
    store.close()


@pytest.mark.parametrize("spoil", [newer, foreign, nonsense, damaged, undecided, unparsed])
def test_a_file_that_cannot_be_read_is_told_and_left_alone(tmp_path, spoil):
    path = tmp_path / "catalog.sqlite"
    spoil(path)
    before = path.read_bytes()

    async def live():
        async with running(server={"data_dir": tmp_path}):
            raise AssertionError("it started")

    with pytest.raises(MillraceError, match=r"catalog\.sqlite") as told:
        asyncio.run(live())
    assert told.value.code in ("catalog", "start")
    kept = {entry.name for entry in tmp_path.iterdir()}
    assert kept <= {"catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm"}
    if spoil not in (undecided, unparsed):
        assert path.read_bytes() == before
    else:
        store = Store(path)
        assert "s (k BIGINT)" in store.read()[0][0]
        store.close()


def test_two_servers_in_one_folder(tmp_path):
    async def first(daemon):
        await daemon.catalog.execute("CREATE STREAM s (k BIGINT)")
        with pytest.raises(StoreError, match="does another server use the folder"):
            Store(tmp_path / "catalog.sqlite")

    lives(tmp_path, first)


def test_a_change_that_cannot_be_written_down_says_so(tmp_path, monkeypatch):
    async def first(daemon):
        await daemon.catalog.execute("CREATE STREAM s (k BIGINT)")
        monkeypatch.setattr(Store, "write", full)
        status, _, said = await ask(daemon, "PUT", "/api/v1/components/s/strategy", {"strategy": "bfs"})
        assert (status, said["code"]) == (500, "catalog")
        assert "the change holds now but will be forgotten" in said["detail"]
        assert daemon.components()[0]["strategy"] == "bfs"

    def full(self, statements, decisions):
        raise StoreError("cannot write the catalog: disk full")

    lives(tmp_path, first)
