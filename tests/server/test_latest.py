"""Update queues of a running server: seen from the outside, exchanged, and there again after a restart."""

import asyncio

from structlog.testing import capture_logs
from typer.testing import CliRunner

from millrace.changes.set_queue import SetQueue
from millrace.cli.main import app
from millrace.http.etags import etag
from millrace.operators.queues.load import QueueSwitch
from millrace.protocol.admin.data import to_data
from millrace.protocol.admin.streams import AutoView
from millrace.values.batch import Batch
from tests.server.harness import lines, running, served, until
from tests.server.test_api import ask, get

SQL = """
CREATE STREAM s (k TEXT, v BIGINT) WITH (timestamps = 'internal', update_key = 'k');
CREATE QUERY board AS SELECT k, v FROM s LATEST;
CREATE QUERY audit AS SELECT * FROM s;
CREATE QUERY above AS SELECT k, v + 1 AS v FROM board LATEST USING FIFO
"""


async def feed(daemon, *rows):
    async with lines(daemon) as feeder:
        for k, v in rows:
            feeder.say(f'{{"stream": "s", "tuple": {{"k": "{k}", "v": {v}}}}}')
        await until(lambda: daemon.streams()[0].tuples >= len(rows))


async def cli(daemon, *words):
    done = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--admin", str(daemon.admin)])
    return done.exit_code, done.output


def queue_of(daemon, operator):
    (found,) = (one for one in daemon.operators() if one.name == operator)
    return found.inputs[0].queue


@served(SQL)
async def test_the_staleness_of_a_stream_is_shown_with_its_worst_keys(daemon):
    await feed(daemon, ("a", 1), ("b", 2), ("a", 3))
    found = await get(daemon, "/api/v1/streams/s/stale")
    assert [(one["operator"], one["kind"], one["keys"]) for one in found] == [
        ("board.project1", "inplace", 2),
        ("above.project1", "fifo", 2),
    ]
    assert all(one["worst"] == [] for one in found), "everything was worked off"
    code, text = await cli(daemon, "stream", "show", "s", "--stale")
    assert code == 0, text
    assert "board.project1, input 0: inplace, 2 keys, 0 queued" in text
    await ask(daemon, "POST", "/api/v1/queries/board/pause")
    await feed(daemon, ("a", 4))
    code, text = await cli(daemon, "stream", "show", "s", "--stale")
    assert code == 0, text
    assert "board.project1, input 0: inplace; its query is paused and skipped 1 tuple, so its rows grow stale" in text
    assert "above.project1, input 0: fifo, 2 keys" in text


@served(
    "CREATE STREAM s (k BYTES, x DOUBLE, v BIGINT) WITH (update_key = 'k, x'); CREATE QUERY q AS SELECT * FROM s LATEST"
)
async def test_keys_that_wait_are_shown_as_json_can_say_them(daemon):
    reader = daemon.engine.graph.operators["q.project1"].inputs[0]
    rows = Batch.from_rows(reader.arc.schema, [(b"\x01\xff", float("nan"), 1)], [5])
    reader.queue.enqueue(rows, 5)
    (found,) = await get(daemon, "/api/v1/streams/s/stale?worst=1")
    assert found["worst"][0]["key"] == {"k": "\\x01ff", "x": "nan"}


@served(
    "CREATE STREAM s (k TEXT, v BIGINT) WITH (update_key = 'k'); CREATE QUERY q AS SELECT * FROM s LATEST USING AUTO"
)
async def test_an_edge_that_the_load_has_turned_is_shown_everywhere(daemon):
    with capture_logs() as log:
        load = daemon.engine.graph.operators["q.project1"].inputs[0].queue.load
        load.mode, load.switches = "update", 1  # as a second of overload does
        load.last = load.untold = QueueSwitch("update", 3.0, 300.0, 100.0)
        load.start_span(2**62, 0, empty=True)  # and no later span ends
        await feed(daemon, ("a", 1))
    (line,) = [line for line in log if line["event"] == "a queue turned with the load"]
    assert (line["operator"], line["input"], line["mode"], line["load"]) == ("q.project1", 0, "update", 3.0)
    assert queue_of(daemon, "q.project1").auto == AutoView(
        mode="update", load=3.0, arrived=300.0, capacity=100.0, switches=1
    )
    for words, expected in (
        (("query", "show", "q"), "q.project1 update"),
        (("operator", "show", "q.project1"), "update"),
        (("stream", "show", "s", "--stale"), "auto (now update)"),
        (("why", "q"), "reads only the newest row of each key until the load falls"),
        (("explain", "q", "--analyze"), "at a load of 3.00: 300 rows a second against 100 processed; changed 1 time"),
        (("explain", "q"), "LATEST USING AUTO by k"),
    ):
        code, text = await cli(daemon, *words)
        assert code == 0, text
        assert expected in " ".join(text.split()), text
    metrics = (await ask(daemon, "GET", "/metrics"))[2]
    lines_ = [line for line in metrics.split("\n") if 'operator="q.project1"' in line]
    for name in ("update_superseding", "update_switches_total"):
        (line,) = [line for line in lines_ if line.startswith(f"millrace_{name}{{")]
        assert line.endswith((" 1", " 1.0"))


@served(SQL)
async def test_what_cannot_be_shown_or_exchanged_is_refused(daemon):
    for method, path, body, expected, word in (
        ("GET", "streams/t/stale", None, 404, "stream t does not exist"),
        ("GET", "streams/s/stale?worst=-1", None, 422, "worst"),
        ("PUT", "operators/nobody/queue", {"kind": "fifo"}, 404, "nobody"),
        ("PUT", "operators/board.project1/queue", {"kind": "lifo"}, 422, "inplace"),
        ("PUT", "operators/board.project1/queue", {"kind": "fifo", "input": 3}, 409, "from 0 to 0, got 3"),
        ("PUT", "operators/s.source/queue", {"kind": "fifo"}, 409, "only operators of queries"),
    ):
        status, _, said = await ask(daemon, method, f"/api/v1/{path}", body)
        assert status == expected, said
        assert word in str(said)


@served(SQL)
async def test_a_queue_is_exchanged_while_it_runs(daemon):
    code, text = await cli(daemon, "operator", "queue", "audit.project1", "linecutting")
    assert code == 0, text
    assert queue_of(daemon, "audit.project1").kind == "linecutting"
    seen = etag("operator", to_data(next(one for one in daemon.operators() if one.name == "board.project1")))
    status, _, said = await ask(daemon, "PUT", "/api/v1/operators/board.project1/queue", {"kind": "append"})
    assert status == 200, said
    assert (said["kind"], said["superseded"]) == ("append", 0)
    assert etag("operator", to_data(next(one for one in daemon.operators() if one.name == "board.project1"))) != seen
    assert (await ask(daemon, "PUT", "/api/v1/operators/board.project1/queue", {"kind": "fifo"}))[0] == 200
    await feed(daemon, ("a", 1))
    assert queue_of(daemon, "board.project1").kind == "fifo"


def test_an_exchanged_queue_is_there_again_and_exported(tmp_path):
    import uvloop

    async def lives():
        async with running(SQL, server={"data_dir": str(tmp_path)}) as daemon:
            await daemon.catalog.change(SetQueue(name="board.project1", kind="append"))
            await daemon.catalog.change(SetQueue(name="above.project1", kind="append"))
            await daemon.catalog.change(SetQueue(name="above.project1", kind="fifo"))
            exported = daemon.catalog.keeper.export()
        async with running(server={"data_dir": str(tmp_path)}) as daemon:
            assert queue_of(daemon, "board.project1").kind == "append"
            assert daemon.catalog.keeper.export() == exported
        assert exported.commands == [command for command in exported.commands if "operator queue" not in command] + [
            "millrace operator queue board.project1 append --input 0"
        ]

    uvloop.run(lives())


@served(SQL)
async def test_a_slow_sink_of_an_update_stream_writes_the_newest(daemon, tmp_path):
    path = tmp_path / "board.csv"
    await daemon.catalog.execute(
        f"CREATE SINK shown FROM board WITH (type = 'file', path = '{path}', on_slow = 'latest')"
    )
    await feed(daemon, *((f"k{at % 3}", at) for at in range(300)))
    await until(lambda: daemon.catalog.sinks()[0].held == 0 and path.read_text().count(",") > 3)
    last = dict(line.split(",") for line in path.read_text().split()[1:])
    assert last == {"k0": "297", "k1": "298", "k2": "299"}
    (sink,) = daemon.catalog.sinks()
    assert sink.dropped == 0
    status, _, said = await ask(
        daemon, "POST", "/api/v1/sql", {"sql": "CREATE SINK x FROM audit WITH (type = 'stdout', on_slow = 'latest')"}
    )
    assert status == 400
    assert "is not an update stream" in said["detail"]


@served(SQL)
async def test_rows_that_are_older_than_a_sink_promises_are_told_with_their_keys(daemon, tmp_path):
    for name, bound in (("strict", "1 us"), ("easy", "1 hour")):
        await daemon.catalog.execute(
            f"CREATE SINK {name} FROM board WITH (type = 'file', path = '{tmp_path / name}', freshness = '{bound}')"
        )
    await feed(daemon, ("a", 1), ("b", 2))
    await until(lambda: all(sink.delivered == 2 for sink in daemon.catalog.sinks()))
    strict, easy = (sink.freshness for sink in daemon.catalog.sinks())
    assert (strict.bound_us, strict.breaches, easy.breaches) == (1, 2, 0)
    assert sorted(one.key["k"] for one in strict.worst) == ["a", "b"]
    said = (await get(daemon, "/api/v1/queries/board/why"))["text"]
    assert "The sink strict promises rows no older than" in said
    assert "easy" not in said


@served(SQL)
async def test_a_promise_of_freshness_goes_by_the_key_that_the_query_has_now(daemon, tmp_path):
    await daemon.catalog.execute(
        f"CREATE SINK strict FROM board WITH (type = 'file', path = '{tmp_path / 'rows'}', freshness = '1 us')"
    )
    await daemon.catalog.execute("DROP QUERY above; CREATE OR REPLACE QUERY board AS SELECT k, v FROM s")
    await feed(daemon, ("a", 1), ("b", 2))
    await until(lambda: daemon.catalog.sinks()[0].delivered == 2)
    assert [one.key for one in daemon.catalog.sinks()[0].freshness.worst] == [{}]
