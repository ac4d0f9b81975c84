"""What was created and decided is there again: after a restart, and in another server by its export."""

import asyncio
import shlex
import sqlite3
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settle
from hypothesis import strategies as st
from typer.testing import CliRunner

from millrace.changes.decisions import Decisions
from millrace.changes.pause_query import PauseQuery
from millrace.changes.resume_query import ResumeQuery
from millrace.changes.set_break import SetBreak
from millrace.changes.set_strategy import SetStrategy
from millrace.changes.set_weight import SetWeight
from millrace.cli.main import app
from millrace.engine import views
from millrace.engine.events import WithholdCredit
from millrace.protocol import MillraceError
from millrace.run.daemon import Daemon
from millrace.store.catalog import CatalogFile, StoreError
from tests.depth import examples
from tests.server.harness import forget_journal, lines, running, served, settings, until
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
CREATE QUERY again AS SELECT k AS same FROM base;
CREATE SINK f FROM "on-q" WITH (type = 'file', path = 'out.jsonl');
ALTER STREAM late SET (disorder = '2 s')
"""


async def decide(daemon):
    """Something of every kind that SQL does not say."""
    fork = next(iter(daemon.engine.graph.forks.values())).name
    await daemon.catalog.change(SetStrategy(name="a", strategy="bfs(7)"))
    await daemon.catalog.change(SetStrategy(name="a", strategy="dfs(3)", operator="q.filter1"))
    await daemon.catalog.change(SetStrategy(name="late", strategy="dfs(2)", operator=fork))
    await daemon.catalog.change(SetStrategy(name="late.late", strategy="rr"))
    await daemon.catalog.change(SetWeight(name="late", weight=5))
    await daemon.catalog.change(SetBreak(name="q.union1", on=True))
    await daemon.catalog.change(PauseQuery(name="again", reason="it's too\nnoisy"))
    await daemon.catalog.change(PauseQuery(name="lost"))


def scheduling(daemon):
    """Every decision that an admin can see."""
    kept = ("name", "strategy", "strategies", "weight", "breaks", "operators")
    components = [{key: getattr(found, key) for key in kept} for found in daemon.components()]
    return components, [(query.name, query.state, query.reason) for query in daemon.queries()]


def lives(folder, *plays):
    """One server after the other in a folder; what each play came to."""

    async def live(play):
        async with running(server={"data_dir": folder}) as daemon:
            return await play(daemon)

    return [asyncio.run(live(play)) for play in plays]


def test_everything_is_there_again(tmp_path):
    async def first(daemon):
        await daemon.catalog.execute(SQL)
        await decide(daemon)
        return scheduling(daemon), daemon.catalog.keeper.export()

    async def second(daemon):
        return scheduling(daemon), daemon.catalog.keeper.export()

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
        await daemon.catalog.change(SetStrategy(name="s.late", strategy="bfs"))
        await daemon.catalog.change(SetWeight(name="s.late", weight=3))
        return [(found.name, found.strategy, found.weight) for found in daemon.components()]

    async def second(daemon):
        return [(found.name, found.strategy, found.weight) for found in daemon.components()]

    (made,) = lives(tmp_path, first)
    assert made == [("s", "dfs", 1), ("s.late", "bfs", 3)]
    assert lives(tmp_path, second) == [made]
    forget_journal(tmp_path)
    assert lives(tmp_path, second) == [[("s", "dfs", 1), ("t", "bfs", 3)]]


FAILING = "CREATE STREAM s (k BIGINT);CREATE QUERY q WITH (max_state = 2) AS SELECT k, count(*) AS n FROM s GROUP BY k"


async def fail(daemon):
    async with lines(daemon) as feeder:
        for k in range(5):
            feeder.say(f'{{"stream": "s", "tuple": {{"k": {k}}}}}')
        await until(lambda: daemon.queries()[0].state == "failed")


def test_a_query_that_failed_does_not_begin_again_by_itself(tmp_path):
    async def first(daemon):
        await daemon.catalog.execute(FAILING)
        await fail(daemon)

    async def second(daemon):
        query = daemon.queries()[0]
        await daemon.catalog.change(ResumeQuery(name="q"))
        return query.state, query.reason, daemon.queries()[0].state

    (_, (state, reason, after)) = lives(tmp_path, first, second)
    assert (state, after) == ("failed", "running")
    assert reason.startswith("its state grew to")


def test_a_query_that_failed_stays_so_in_a_folder_without_a_journal(tmp_path):
    async def first(daemon):
        await daemon.catalog.execute(FAILING)
        await fail(daemon)

    async def second(daemon):
        return daemon.queries()[0].state, daemon.queries()[0].reason

    lives(tmp_path, first)
    forget_journal(tmp_path)
    ((state, reason),) = lives(tmp_path, second)
    assert state == "paused"
    assert reason.startswith("failed before the server was started again: its state grew to")


def test_feeds_that_wait_for_a_slow_consumer_are_no_decision_of_an_admin(tmp_path):
    async def first(daemon):
        await daemon.catalog.execute("CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s")
        await daemon.runner.command(WithholdCredit("q", withheld=True))
        assert daemon.engine.withheld() == {"s": ["q"]}
        assert daemon.catalog.keeper.decisions().paused == ()
        await daemon.catalog.change(PauseQuery(name="q"))
        assert [paused.query for paused in daemon.catalog.keeper.decisions().paused] == ["q"]

    async def second(daemon):
        return daemon.queries()[0].state, daemon.engine.withheld()

    assert lives(tmp_path, first, second)[1] == ("paused", {})


def test_the_export_makes_the_same_in_an_empty_server(tmp_path):
    """The statements by SQL, and the rest by the commands in the comments, typed one after the other."""
    served(SQL, server={"sink_dir": tmp_path})(export_elsewhere)(tmp_path)


async def export_elsewhere(daemon, tmp_path):
    await decide(daemon)
    exported = await get(daemon, "/api/v1/catalog")
    async with running(server={"sink_dir": tmp_path}) as other:
        await other.catalog.execute(exported["sql"])
        assert other.catalog.keeper.export().statements == exported["statements"]
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
        "decisions": {
            "apart": [],
            "separate": [],
            "components": [],
            "paused": [],
            "joins": [],
            "queues": [],
            "operators": [],
        },
        "commands": [],
    }


# -- any changes ---------------------------------------------------------------------------------------------------

STREAMS, QUERIES = ("a", "b"), ("p", "q", "r")
SELECTS = (
    "SELECT k FROM a WHERE k > 0",
    "SELECT k FROM a UNION ALL SELECT k FROM b",
    "SELECT k FROM p WHERE k > 5",
    "SELECT k FROM a.late",
    "SELECT k, count(*) AS n FROM b GROUP BY k",
)
OPERATORS = (
    "a.source",
    "b.source",
    "a.late.source",
    "p.filter1",
    "q.union1",
    "q.project1",
    "r.filter1",
    "a.fork1",
    "p.fork1",
)
CHANGES = st.one_of(
    st.sampled_from(STREAMS).map(
        lambda name: ("sql", f"CREATE STREAM {name} (ts TIMESTAMP, k BIGINT) WITH (time = 'ts')")
    ),
    st.builds(
        lambda name, select, replace: ("sql", f"CREATE {'OR REPLACE ' * replace}QUERY {name} AS {select}"),
        st.sampled_from(QUERIES),
        st.sampled_from(SELECTS),
        st.booleans(),
    ),
    st.sampled_from(STREAMS).map(lambda name: ("sql", f"DROP STREAM {name}")),
    st.sampled_from(QUERIES).map(lambda name: ("sql", f"DROP QUERY {name}")),
    st.sampled_from(STREAMS).map(lambda name: ("sql", f"ALTER STREAM {name} SET (disorder = '3 s')")),
    st.builds(
        lambda name, to: ("sql", f"ALTER QUERY {name} RENAME TO {to}"),
        st.sampled_from(QUERIES),
        st.sampled_from(QUERIES),
    ),
    st.tuples(
        st.just("strategy"),
        st.sampled_from([*STREAMS, "a.late"]),
        st.sampled_from(["dfs", "bfs", "rr(2)"]),
        st.sampled_from([None, *OPERATORS]),
    ),
    st.tuples(st.just("weight"), st.sampled_from([*STREAMS, "a.late"]), st.integers(0, 3)),
    st.tuples(st.just("break"), st.sampled_from(OPERATORS), st.booleans()),
    st.tuples(st.just("pause"), st.sampled_from(QUERIES)),
    st.tuples(st.just("resume"), st.sampled_from(QUERIES)),
)


@asynccontextmanager
async def working(folder):
    """A daemon without its ports: the engine runs, the catalog is read."""
    daemon = Daemon(settings(server={"data_dir": folder}))
    task = asyncio.create_task(daemon.runner.run())
    try:
        daemon.catalog.keeper.open()
        await daemon.catalog.load()
        yield daemon
    finally:
        await daemon.catalog.close()
        task.cancel()
        await asyncio.wait([task])


async def change(catalog, kind, *arguments):
    if kind == "sql":
        await catalog.execute(*arguments)
        return
    made: dict[str, Any] = {
        "strategy": lambda name, strategy, operator: SetStrategy(name=name, strategy=strategy, operator=operator),
        "weight": lambda name, weight: SetWeight(name=name, weight=weight),
        "break": lambda name, on: SetBreak(name=name, on=on),
        "pause": lambda name, *reason: PauseQuery(name=name, **dict(zip(("reason",), reason, strict=False))),
        "resume": lambda name: ResumeQuery(name=name),
    }
    await catalog.change(made[kind](*arguments))


@settle(max_examples=examples(40), deadline=None)
@given(st.lists(CHANGES, max_size=25))
def test_whatever_was_changed_is_there_again(changes):
    """A refused change has no effect."""
    create = [("sql", f"CREATE STREAM {name} (ts TIMESTAMP, k BIGINT) WITH (time = 'ts')") for name in STREAMS]
    create += [("sql", f"CREATE QUERY {name} AS {SELECTS[at]}") for at, name in enumerate(QUERIES)]

    async def first(folder):
        async with working(folder) as daemon:
            for one in (*create, *changes):
                before = daemon.catalog.keeper.export()
                try:
                    await change(daemon.catalog, *one)
                except MillraceError:
                    assert daemon.catalog.keeper.export() == before
            return (
                by_operator(daemon),
                daemon.catalog.keeper.export().statements,
                daemon.catalog.keeper.decisions().paused,
            )

    async def second(folder):
        async with working(folder) as daemon:
            return (
                by_operator(daemon),
                daemon.catalog.keeper.export().statements,
                daemon.catalog.keeper.decisions().paused,
            )

    with tempfile.TemporaryDirectory() as name:
        assert asyncio.run(first(Path(name))) == asyncio.run(second(Path(name)))


def by_operator(daemon):
    """The decisions for each operator. Names of components and forks depend on history, so operators identify them."""
    origins = {fork: f"fork of {operator}" for operator, fork in views.forks(daemon.engine).items()}
    components = []
    for found in daemon.components():
        if len(found.operators) == 1 and found.name.endswith(".late"):
            continue  # a side stream stays until the server ends, even without a reader
        own = {origins.get(operator, operator): strategy for operator, strategy in found.strategies.items()}
        components.append((sorted(own.items()), found.strategy, found.weight, sorted(found.breaks.items())))
    return sorted(components)


# -- files that cannot be read -------------------------------------------------------------------------------------


def test_a_file_of_the_first_format_is_read(tmp_path):
    old = sqlite3.connect(tmp_path / "catalog.sqlite")
    with old:
        old.execute("CREATE TABLE statements (place INTEGER PRIMARY KEY, sql TEXT NOT NULL)")
        old.execute("INSERT INTO statements (sql) VALUES ('CREATE STREAM s (k BIGINT)')")
        old.execute("PRAGMA user_version = 1")
    old.close()

    async def first(daemon):
        assert [stream.name for stream in daemon.streams()] == ["s"]
        await daemon.catalog.change(SetStrategy(name="s", strategy="bfs"))

    async def second(daemon):
        return daemon.components()[0].strategy

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
    store = CatalogFile(path)
    store.write([f"CREATE STREAM s{n} (k BIGINT)" for n in range(2_000)], {}, Decisions().model_dump_json())
    store.close()
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * 4096)


def undecided(path):
    store = CatalogFile(path)
    store.write(["CREATE STREAM s (k BIGINT)"], {}, '{"components": 5}')
    store.close()


def unparsed(path):
    store = CatalogFile(path)
    store.write(["CREATE STREEM s (k BIGINT)"], {}, Decisions().model_dump_json())
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
        store = CatalogFile(path)
        assert "s (k BIGINT)" in store.read().statements[0]
        store.close()


def test_two_servers_in_one_folder(tmp_path):
    async def first(daemon):
        await daemon.catalog.execute("CREATE STREAM s (k BIGINT)")
        with pytest.raises(StoreError, match="is another server using the folder"):
            CatalogFile(tmp_path / "catalog.sqlite")

    lives(tmp_path, first)


def test_a_change_that_cannot_be_written_down_says_so(tmp_path, monkeypatch):
    async def first(daemon):
        await daemon.catalog.execute("CREATE STREAM s (k BIGINT)")
        monkeypatch.setattr(CatalogFile, "write", full)
        status, _, said = await ask(daemon, "PUT", "/api/v1/components/s/strategy", {"strategy": "bfs"})
        assert (status, said["code"]) == (500, "catalog")
        assert "the change is in effect, but is lost" in said["detail"]
        assert daemon.components()[0].strategy == "bfs"

    def full(self, *contents):
        raise StoreError("cannot write the catalog: disk full")

    lives(tmp_path, first)
