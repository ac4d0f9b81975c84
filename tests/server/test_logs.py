"""Log events: the table of events is the log's contract, and repeated events are logged rarely."""

import ast
import asyncio
from pathlib import Path

from structlog.testing import capture_logs

from millrace.engine.events import Measured
from millrace.observe.logs import CAUSES, EVENTS, EVERY_US, Sparing, add_context, client
from millrace.protocol.messages import Ack
from tests.patience import HANG_SECONDS
from tests.server.harness import lines, peer, running, served, until
from tests.server.test_api import ask
from tests.server.test_etags import ask as tagged

REPOSITORY = Path(__file__).resolve().parents[2]
LEVELS = ("debug", "info", "warning", "error", "exception")
LATE = "CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts')"


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def variables(function):
    """The texts that a function assigns to names."""
    return {
        node.targets[0].id: node.value.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.targets[0], ast.Name)
    }


def calls():
    """Every call of the log in the server's code: file, level, text (None if it cannot be read), names of fields."""
    for path in sorted((REPOSITORY / "server/millrace").rglob("*.py")):
        if path.name == "logs.py":
            continue
        functions = [
            node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, FUNCTIONS)
        ]
        for function, node in ((one, node) for one in functions for node in ast.walk(one)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
                continue
            if ast.unparse(node.func.value) not in ("log", "sparing", "logs.sparing"):
                continue
            said = node.args[0]
            text = said.value if isinstance(said, ast.Constant) else variables(function).get(ast.unparse(said))
            yield path.name, node.func.attr, text, {word.arg for word in node.keywords}


def test_every_event_that_is_logged_is_in_the_table_with_its_level_and_fields():
    for file, level, text, fields in calls():
        assert text in EVENTS, f"{file}: {text!r} is not in millrace.observe.logs.EVENTS"
        told = EVENTS[text]
        assert ("error" if level == "exception" else level) == told.level, (file, text)
        named = fields - {None, "exc_info", "client", "unit"}
        assert named <= set(told.fields), (file, text)


def test_every_event_of_the_table_is_logged():
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (REPOSITORY / "server/millrace").rglob("*.py")
        if path.name != "logs.py"
    )
    assert [event for event in EVENTS if f'"{event}"' not in source] == []


# -- sparing -----------------------------------------------------------------------------------------------------------


class Clock:
    now_us = 0

    def __call__(self):
        return self.now_us


def test_what_repeats_is_told_at_once_and_then_in_sum_and_nothing_is_lost():
    clock = Clock()
    sparing = Sparing(clock)
    with capture_logs() as logs:
        for second in range(35):
            clock.now_us = second * 1_000_000
            sparing.warning("tuples arrived late", "s p", 2, unit="tuples", stream="s", feed=f"p{second}")
            sparing.flush()
        clock.now_us += EVERY_US
        sparing.flush()
        told = [(line["tuples"], line["feed"]) for line in logs]
    assert told == [(2, "p0"), (20, "p10"), (20, "p20"), (20, "p30"), (8, "p34")]


def test_culprits_do_not_silence_each_other_and_are_forgotten_when_nothing_is_left_to_tell():
    clock = Clock()
    sparing = Sparing(clock)
    with capture_logs() as logs:
        for stream in ("a", "b", "a"):
            sparing.info("a feed opened", stream, stream=stream, feed="p")
    assert [(line["stream"], line["times"]) for line in logs] == [("a", 1), ("b", 1)]
    clock.now_us += EVERY_US
    with capture_logs() as logs:
        sparing.flush()
        clock.now_us += EVERY_US
        sparing.flush()
        sparing.info("a feed opened", "a", stream="a", feed="p")
    assert [(line["stream"], line["times"]) for line in logs] == [("a", 1), ("a", 1)]


def test_endless_culprits_take_no_endless_memory():
    """Tracking starts again beyond its bound: causes of before are logged at once, as new ones are."""
    sparing = Sparing(Clock())
    with capture_logs():
        for number in range(CAUSES + 5):
            sparing.info("a feed opened", str(number), stream=str(number), feed="p")
    tracked = range(CAUSES, CAUSES + 5)
    with capture_logs() as logs:
        for number in (*tracked, *range(CAUSES - 5)):
            sparing.info("a feed opened", str(number), stream=str(number), feed="p")
    assert [line["stream"] for line in logs] == [str(number) for number in range(CAUSES - 5)]


def test_what_was_kept_back_of_culprits_that_are_forgotten_is_told_first():
    sparing = Sparing(Clock())
    with capture_logs(processors=[add_context]) as logs:
        before = client.set("crowd")
        for number in (*[0] * 50, *range(CAUSES + 5)):
            sparing.info("a feed opened", str(number), stream=str(number), feed="p")
        client.reset(before)
    assert sum(line["times"] for line in logs) == CAUSES + 55


def test_at_the_end_everything_is_told_with_what_it_was_about_and_nothing_twice():
    sparing = Sparing(Clock())
    with capture_logs(processors=[add_context]) as logs:
        for number in range(5):
            sparing.info("a feed opened", "s", stream="s", feed=f"p{number}")
        before = client.set("somebody else")
        sparing.flush(everything=True)
        sparing.flush(everything=True)
        client.reset(before)
    assert [(line["times"], line["feed"], line.get("client")) for line in logs] == [(1, "p0", None), (4, "p4", None)]


def test_a_line_that_is_told_later_names_who_spoke_then():
    clock = Clock()
    sparing = Sparing(clock)
    with capture_logs(processors=[add_context]) as logs:
        for name in ("ann", "ben"):
            before = client.set(name)
            sparing.info("a feed opened", "s", stream="s", feed=name)
            client.reset(before)
        clock.now_us = EVERY_US
        sparing.flush()
    assert [(line["feed"], line["client"]) for line in logs] == [("ann", "ann"), ("ben", "ben")]


# -- a server ----------------------------------------------------------------------------------------------------------


@served(LATE)
async def test_what_a_client_sent_is_not_in_the_log(daemon):
    with capture_logs() as logs:
        async with lines(daemon) as nc:
            nc.say('{"stream": "s", "tuple": {"ts": 1, "k": "ada@example.org"}}')
            told = await nc.hear()
    assert "ada@example.org" in str(told)
    (refused,) = [line for line in logs if line["event"] == "a client was refused"]
    assert "field k: expected bigint" in refused["reason"]
    assert "ada" not in str(logs)


@served(LATE)
async def test_who_did_what_is_told(daemon):
    with capture_logs(processors=[add_context]) as logs:
        await ask(daemon, "POST", "/api/v1/sql", {"sql": "CREATE QUERY q AS SELECT k FROM s"})
        async with peer(daemon) as feeder, lines(daemon) as nc:
            nc.say('{"subscribe": "q"}')
            nc.say('{"subscribe": "nothing"}')
            await nc.hear()
            await feeder.open("s", producer="till")
            for number, at in enumerate((1_000, 10, 20)):
                feeder.data(number, [(at, 1)])
                await feeder.hear(Ack)
            await until(lambda: daemon.runner.late.get("s") == 2)
        await until(lambda: not daemon.feeds.received()["s"].connections)
        await ask(daemon, "POST", "/api/v1/sql", {"sql": "DROP QUERY q"})
    told = {line["event"]: line for line in logs}
    assert told["changed"]["change"] == "drop_query"
    assert told["changed"]["name"] == "q"
    assert told["changed"]["request"] == "POST /api/v1/sql"
    assert told["changed"]["client"].startswith("admin 127.0.0.1:")
    assert told["a subscription started"]["query"] == "q"
    assert told["a client was refused"]["code"] == "unknown_query"
    assert (told["a feed opened"]["stream"], told["a feed opened"]["feed"]) == ("s", "till")
    assert told["a feed opened"]["client"].endswith(" (test)")
    assert (told["tuples arrived late"]["stream"], told["tuples arrived late"]["tuples"]) == ("s", 1)
    assert told["a feed ended"]["lost"] is True
    assert [line["event"] for line in logs if line["log_level"] == "error"] == []


@served("CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k + 1 AS n FROM s WHERE k > 90")
async def test_the_break_points_of_chain_are_logged(daemon):
    await ask(daemon, "PUT", "/api/v1/components/s/strategy", {"strategy": "chain"})
    filtering = daemon.engine.query("q").operators[0]
    with capture_logs() as logs:
        async with lines(daemon) as feeder:
            for fed in (100, 200, 300):
                for k in range(100):
                    feeder.say(f'{{"stream": "s", "tuple": {{"k": {k}}}}}')
                await until(lambda fed=fed: filtering.counts.input_tuples == fed)
                for name, cost_us in (("q.filter1", 1.0), ("q.project1", 1_000.0)):
                    daemon.runner.submit(Measured(name, 10_000, 10_000 * cost_us))
        await until(lambda: any(line["event"] == "chain updated its segments" for line in logs))
    assert [line for line in logs if line["event"] == "chain updated its segments"][-1]["breaks"] == ["q.filter1"]


def test_what_was_kept_back_is_told_before_the_end():
    async def play():
        async with asyncio.timeout(HANG_SECONDS), running(LATE) as daemon, lines(daemon) as nc:
            for _ in range(50):
                nc.say('{"nonsense": 1}')
                await nc.hear()

    with capture_logs() as logs:
        asyncio.run(play())
    told = [line.get("times") for line in logs if line["event"] in ("a client was refused", "ended")]
    assert told == [1, 49, None]


@served(limits={"connections": 1})
async def test_a_connection_that_was_turned_away_neither_came_nor_left(daemon):
    with capture_logs() as logs:
        async with lines(daemon) as nc:
            await until(lambda: daemon.context.connections)
            async with lines(daemon) as other:
                other.say('{"subscribe": "q"}')
                assert (await other.hear())["error"]["code"] == "too_many_connections"
                assert await other.hear() is None
            nc.writer.close()
            await until(lambda: not daemon.context.connections)
    events = [line["event"] for line in logs]
    assert [event.partition(":")[0] for event in events] == [
        "a client connected",
        "refused a connection",
        "a client left",
    ]


@served()
async def test_a_peer_that_talks_nonsense_is_one_line(daemon):
    with capture_logs() as logs:
        for _ in range(20):
            async with peer(daemon, greet=False) as stranger:
                stranger.say_raw(b"\xff" * 64)
                await stranger.hear()
    broke = [line for line in logs if line["event"] == "a client violated the protocol"]
    assert len(broke) == 1
    assert broke[0]["log_level"] == "warning"


def test_whoever_asks_without_the_token_is_one_line(tmp_path):
    (tmp_path / "token").write_text("s3cret\n")

    async def play():
        async with asyncio.timeout(HANG_SECONDS), running(server={"token_file": tmp_path / "token"}) as daemon:
            with capture_logs(processors=[add_context]) as logs:
                for _ in range(5):
                    assert (await ask(daemon, "GET", "/api/v1/queries"))[0] == 401
            return logs

    logs = asyncio.run(play())
    turned = [line for line in logs if line["event"] == "refused an admin request"]
    assert [(line["status"], line["request"]) for line in turned] == [(401, "GET /api/v1/queries")]


# -- changes -----------------------------------------------------------------------------------------------------------


def changes(logs, event):
    return [(line["change"], line["name"]) for line in logs if line["event"] == event]


def test_what_a_restart_brings_back_is_no_change(tmp_path):
    async def play():
        async with running(
            "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s", server={"data_dir": tmp_path}
        ):
            pass
        with capture_logs() as logs:
            async with running(server={"data_dir": tmp_path}) as daemon:
                metrics = daemon.metrics.text().decode()
        return logs, metrics

    logs, metrics = asyncio.run(play())
    assert changes(logs, "changed") == []
    assert 'millrace_reconfigurations_total{kind="create_query",result="done"} 0.0' in metrics


@served("CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s")
async def test_every_refusal_of_a_change_is_counted_and_logged_once_with_what_it_was_about(daemon):
    stale = '"stale"'
    asked = [
        ("POST", "sql", {"sql": "CREATE NOTHING"}, None, 400, ("statements", None)),
        ("POST", "sql", {"sql": "CREATE QUERY r AS SELECT nobody FROM s"}, None, 400, ("statements", None)),
        ("POST", "sql", {"sql": "DROP STREAM s"}, None, 400, ("statements", None)),
        ("POST", "sql", {"sql": "DROP QUERY q"}, stale, 412, ("statements", None)),
        ("DELETE", "queries/q", None, stale, 412, ("drop_query", "q")),
        ("DELETE", "queries/nobody", None, None, 404, ("drop_query", "nobody")),
        ("POST", "queries/nobody/rename", {"to": "r"}, None, 404, ("rename_query", "nobody")),
        ("POST", "queries/q/pause", None, stale, 412, ("pause", "q")),
        ("POST", "queries/q/resume", None, None, 409, ("resume", "q")),
    ]
    with capture_logs() as logs:
        for method, path, body, if_match, status, _ in asked:
            found, _, said = await tagged(daemon, method, path, body, if_match)
            assert found == status, said
        assert (await ask(daemon, "POST", "/api/v1/queries/q/pause"))[0] == 200
    assert changes(logs, "a change was refused") == [about for *_, about in asked]
    refusals = [line for line in logs if line["event"] == "a change was refused"]
    assert {line["log_level"] for line in refusals} == {"info"}
    assert not any("\n" in line["reason"] for line in refusals)
    assert changes(logs, "changed") == [("pause", "q")]
    metrics = daemon.metrics.text().decode()
    for kind, count in (("statements", 4), ("drop_query", 2), ("rename_query", 1), ("pause", 1), ("resume", 1)):
        assert f'millrace_reconfigurations_total{{kind="{kind}",result="refused"}} {count}.0' in metrics
