"""A step that changes the graph runs outside the loop: who is served meanwhile, who waits, and how the step ends."""

import asyncio
import sys
import threading
from contextlib import asynccontextmanager

import pytest

from millrace.changes.pause_query import PauseQuery
from millrace.engine import shadow
from millrace.engine.events import WatchProgress
from millrace.protocol import Refuse
from millrace.protocol.messages import Ack, Result, Subscribed
from millrace.run import worker
from tests.patience import HANG_SECONDS
from tests.server.harness import Held, peer, running, served, settle, until
from tests.server.test_planning import ask

SCHEMA = "CREATE STREAM s (k BIGINT, v BIGINT); CREATE QUERY q AS SELECT k, v FROM s"
HEAVY = "CREATE QUERY heavy AS SELECT k FROM s"


@asynccontextmanager
async def changing(daemon, sql=HEAVY):
    """A change whose step is held, as a task; it is let go at the end."""
    held = Held(daemon)
    change = asyncio.create_task(daemon.catalog.execute(sql))
    try:
        await held.wait_entered()
        yield held, change
    finally:
        held.open.set()


@served(SCHEMA)
async def test_the_loop_goes_on_while_the_graph_is_changed(daemon):
    async with changing(daemon) as (held, change):
        status, text, _ = await ask(daemon, "GET", "/-/healthy", text=True)
        async with peer(daemon) as reader:  # which is greeted
            subscribed = await reader.subscribe("q")
        assert (status, text) == (200, "healthy\n")
        assert isinstance(subscribed, Subscribed)
        assert not change.done()
    assert (await change)[0].name == "heavy"
    assert threading.get_ident() not in held.threads


@served(SCHEMA)
async def test_tuples_that_arrive_meanwhile_are_taken_by_the_next_step(daemon):
    async with peer(daemon) as feed, peer(daemon) as reader:
        await feed.open()
        assert isinstance(await reader.subscribe("q"), Subscribed)
        reader.credit(100)
        async with changing(daemon):
            feed.data(0, [[1, 2], [3, 4]])
            await until(lambda: daemon.feeds.received()["s"].bytes)
            assert daemon.runner.outlets["q"].next_sequence == 0
        assert isinstance(await feed.hear(Ack), Ack)
        assert (await reader.hear(Result)).rows == [(1, 2), (3, 4)]
        assert daemon.query("heavy").rows == 2


@served(SCHEMA)
async def test_whoever_subscribes_meanwhile_reads_from_the_next_step_on(daemon):
    async with peer(daemon) as feed, peer(daemon) as reader:
        await feed.open()
        async with changing(daemon, "CREATE QUERY heavy AS SELECT k FROM s; ALTER QUERY q RENAME TO p"):
            assert isinstance(await reader.subscribe("q", progress=True), Subscribed)
            reader.credit(100)
            feed.data(0, [[1, 2]])
        assert (await reader.hear(Result)).rows == [(1, 2)]
        assert daemon.engine.query("p").sink.watched


@served(SCHEMA)
async def test_to_watch_progress_is_a_step_beside_the_loop_too(daemon):
    held = Held(daemon, (WatchProgress,))
    async with peer(daemon) as reader:
        await reader.subscribe("q", progress=True)
        await held.wait_entered()
        held.open.set()
        await daemon.runner.wait_drained()
    assert threading.get_ident() not in held.threads


ROUTES = [
    "/metrics",
    "/api/v1/catalog",
    "/api/v1/streams",
    "/api/v1/streams/s",
    "/api/v1/queries",
    "/api/v1/queries/q",
    "/api/v1/queries/q/time",
    "/api/v1/queries/q/why",
    "/api/v1/queries/q/explain",
    "/api/v1/queries/q/explain?analyze=true",
    "/api/v1/sinks",
    "/api/v1/advice",
    "/api/v1/trials",
    "/api/v1/components",
    "/api/v1/components/s",
    "/api/v1/components/s/table",
    "/api/v1/components/s/graph",
    "/api/v1/operators",
    "/api/v1/operators/q.project1",
    "/api/v1/operators/q.project1/tap?lines=1",
    "/api/v1/tail/q?lines=1",
    "/api/v1/events?lines=1",
]


@served(SCHEMA)
async def test_whoever_looks_at_the_engine_waits_for_the_end_of_the_step(daemon):
    """No view shows half a change: none is made while the step is in its middle."""
    ends: list[str] = []
    waits = 0
    at_rest = daemon.runner.at_rest

    async def counted():
        nonlocal waits
        waits += 1
        await at_rest()

    async def look(route):
        status, _, _ = await ask(daemon, "GET", route, text=True)
        ends.append(route)
        return status

    async with changing(daemon) as (_, change):
        daemon.runner.at_rest = counted
        looks = [asyncio.create_task(look(route)) for route in ROUTES]
        await until(lambda: waits >= len(ROUTES))
        await settle()
        assert ends == []
    await change
    assert [route for route, status in zip(ROUTES, await asyncio.gather(*looks), strict=True) if status != 200] == []


@served(SCHEMA)
async def test_every_route_that_looks_at_the_engine_is_among_them(daemon):
    """A route that is not exempt waits: a new one does so without being told."""
    _, document, _ = await ask(daemon, "GET", "/api/v1/openapi.json")
    plain = {path for path, methods in document["paths"].items() if "get" in methods and "{" not in path}
    exempt = {"/api/v1/standby/copy", "/api/v1/standby/journal"}  # they read files
    exempt |= {"/-/healthy", "/-/ready", "/api/v1/changes", "/api/v1/configuration", "/api/v1/log", "/api/v1/server"}
    exempt |= {"/api/v1/console/session"}
    assert plain - exempt <= {route.partition("?")[0] for route in ROUTES}


@served(SCHEMA)
async def test_changes_and_dry_runs_have_their_turns_in_order(daemon):
    async with changing(daemon) as (_, first):
        second = asyncio.create_task(daemon.catalog.execute("CREATE QUERY z AS SELECT k FROM heavy"))
        dry = asyncio.create_task(daemon.catalog.plan("CREATE QUERY y AS SELECT k FROM z"))
        third = asyncio.create_task(daemon.catalog.change(PauseQuery(name="q")))
        await settle()
    await asyncio.gather(first, second, third)
    (described,), becomes = await dry
    assert described.name == "y"
    last = becomes.queries[-1]
    assert (last.name, last.was, last.change) == ("y", None, "appears")
    assert set(daemon.catalog.known.queries) == {"q", "heavy", "z"}
    assert daemon.engine.query("q").paused


@served(SCHEMA)
async def test_tuples_flow_while_a_shadow_is_built_and_obeys(daemon, monkeypatch):
    entered, proceed, threads, plan = threading.Event(), threading.Event(), [], shadow.plan

    def slowly(snapshot, commands):
        threads.append(threading.get_ident())
        entered.set()
        assert proceed.wait(HANG_SECONDS)
        return plan(snapshot, commands)

    monkeypatch.setattr(shadow, "plan", slowly)
    async with peer(daemon) as feed, peer(daemon) as reader:
        await feed.open()
        await reader.subscribe("q")
        reader.credit(100)
        dry = asyncio.create_task(daemon.catalog.plan(f"{HEAVY}; DROP QUERY q"))
        await until(entered.is_set)
        feed.data(0, [[1, 2]])
        assert (await reader.hear(Result)).rows == [(1, 2)]
        status, queries, _ = await ask(daemon, "GET", "/api/v1/queries")
        assert (status, queries[0]["rows"]) == (200, 1)
        assert not dry.done()
        proceed.set()
        _, becomes = await dry
    assert [(query.name, query.change) for query in becomes.queries] == [("q", "goes"), ("heavy", "appears")]
    assert threading.get_ident() not in threads


@served(SCHEMA)
async def test_a_client_that_goes_away_leaves_a_whole_change(daemon):
    held = Held(daemon)
    reader, writer = await asyncio.open_connection(daemon.admin.host, daemon.admin.port)
    body = b'{"sql": "%s"}' % HEAVY.encode()
    head = f"POST /api/v1/sql HTTP/1.1\r\nhost: {daemon.admin}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    await held.wait_entered()
    writer.close()
    held.open.set()
    await until(lambda: "heavy" in daemon.catalog.known.queries)
    assert "heavy" in daemon.runner.outlets
    assert reader is not None


@pytest.mark.parametrize("sql", [HEAVY, f"{HEAVY}; CREATE QUERY more AS SELECT k FROM heavy"])
def test_the_end_of_the_server_waits_for_the_change(tmp_path, sql):
    """SIGTERM in the middle: the change is whole and known after a restart; one that comes later is refused."""

    async def run():
        async with running(SCHEMA, server={"data_dir": tmp_path}) as daemon:
            held = Held(daemon)
            change = asyncio.create_task(daemon.catalog.execute(sql))
            await held.wait_entered()
            waiting = asyncio.create_task(daemon.catalog.change(PauseQuery(name="q")))
            ending, end_changes = asyncio.Event(), daemon.catalog.end_changes

            async def end():
                ending.set()
                await end_changes()

            daemon.catalog.end_changes = end
            daemon.stop()
            ended = asyncio.create_task(daemon.wait_ended())
            await ending.wait()
            assert not ended.done()
            held.open.set()
            assert (await change)[0].name == "heavy"
            with pytest.raises(Refuse, match="the server is ending"):
                await waiting
            await ended
        async with running(server={"data_dir": tmp_path}) as daemon:
            assert "heavy" in daemon.catalog.known.queries
            assert not daemon.engine.query("q").paused

    asyncio.run(run())


def test_a_failure_of_the_step_ends_the_server_and_answers_the_change(tmp_path):
    async def run():
        async with running(SCHEMA, server={"data_dir": tmp_path}) as daemon:
            held = Held(daemon)
            held.failure = AssertionError("ours")
            change = asyncio.create_task(daemon.catalog.execute(HEAVY))
            await held.wait_entered()
            held.open.set()
            with pytest.raises(Refuse, match="nothing more is changed"):
                await change
            with pytest.raises(Refuse, match=r"the server is ending|nothing more"):
                await daemon.catalog.change(PauseQuery(name="q"))
            await daemon.wait_stopping()

    with pytest.raises(Exception, match="internal error"):
        asyncio.run(run())


@served(SCHEMA)
async def test_a_runner_that_is_cancelled_waits_for_the_step(daemon):
    """A thread whose caller has left never keeps the engine."""
    async with changing(daemon) as (held, change):
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "engine"]
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        held.open.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(Refuse, match="the server is ending"):
            await change


def test_the_collector_rests_while_a_worker_works():
    import gc

    gc.enable()
    before = sys.getswitchinterval()

    async def run():
        one, other = worker.Worker("one"), worker.Worker("other")
        inside = await asyncio.gather(one.run(gc.isenabled), other.run(gc.isenabled))
        with pytest.raises(ZeroDivisionError):
            await one.run(lambda: 1 // 0)
        await until(lambda: one.running == other.running == 0)
        one.close()
        other.close()
        with pytest.raises(Refuse, match="the server is ending"):
            await one.run(gc.isenabled)
        return inside

    assert asyncio.run(run()) == [False, False]
    assert gc.isenabled()
    assert sys.getswitchinterval() == before
