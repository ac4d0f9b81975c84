"""The admin API: every route, problems, tokens, TLS; and the catalog."""

import asyncio
import json
import ssl
import subprocess
import threading

import pytest

from millrace.net.connection import GREETING_SECONDS
from millrace.observe.metrics import RECONFIGURATIONS
from millrace.protocol import Refuse
from millrace.protocol.messages import Error, Welcome
from millrace.run import daemon as daemon_module
from millrace.store.sinkfiles import StandardOutput
from tests.patience import HANG_SECONDS
from tests.server.harness import SCHEMA_SQL, FakeTimers, lines, peer, running, served, until


async def ask(daemon, method, path, body=None, token=None, ssl=None, raw=None):
    """Status, content type and content of one request."""
    reader, writer = await asyncio.open_connection(daemon.admin.host, daemon.admin.port, ssl=ssl)
    content = raw if raw is not None else json.dumps(body).encode() if body is not None else b""
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(content)}\r\n"
    head += "content-type: application/json\r\n" + (f"authorization: Bearer {token}\r\n" if token else "")
    writer.write(head.encode() + b"\r\n" + content)
    answer = await reader.read()
    writer.close()
    top, _, rest = answer.partition(b"\r\n\r\n")
    status = int(top.split()[1])
    kind = next(line for line in top.decode().lower().split("\r\n") if line.startswith("content-type")).split(": ")[1]
    return status, kind, json.loads(rest) if "json" in kind else rest.decode()


async def get(daemon, path, **options):
    status, _, said = await ask(daemon, "GET", path, **options)
    assert status == 200, said
    return said


@served()
async def test_pages(daemon):
    assert await get(daemon, "/-/healthy") == "healthy\n"
    assert await get(daemon, "/-/ready") == "ready\n"
    assert "Millrace" in await get(daemon, "/")
    document = await get(daemon, "/api/v1/openapi.json")
    assert "/api/v1/components/{name}/table" in document["paths"]
    server = await get(daemon, "/api/v1/server")
    assert server["listen"] == str(daemon.listen)
    daemon.state = "draining"
    assert (await ask(daemon, "GET", "/-/ready"))[0] == 503


@served()
async def test_lists_and_items(daemon):
    assert [stream["name"] for stream in await get(daemon, "/api/v1/streams")] == ["s"]
    assert (await get(daemon, "/api/v1/streams/s"))["fields"][0] == ["k", "bigint", True]
    assert (await get(daemon, "/api/v1/queries/q"))["state"] == "running"
    assert (await get(daemon, "/api/v1/components"))[0]["strategy"] == "dfs"
    assert (await get(daemon, "/api/v1/operators/q.filter1"))["kind"] == "select"
    assert "q.filter1" in (await get(daemon, "/api/v1/queries/q/explain"))["text"]
    rows = (await get(daemon, "/api/v1/components/s/table"))["rows"]
    assert [set(row) for row in rows] == [{"state", "pred", "succ", "transition"}] * len(rows)
    assert rows[0]["state"] == "s.source"
    assert await get(daemon, "/api/v1/sinks") == []


@served()
async def test_unknown_names_are_problems(daemon):
    for path, code, near in [
        ("streams/t", "unknown_stream", "there is s"),
        ("queries/qq", "unknown_query", "did you mean q?"),
        ("queries/qq/explain", "unknown_query", "did you mean q?"),
        ("sinks/x", "unknown_sink", "there are none yet"),
        ("components/x", "unknown_component", "there is s"),
        ("components/x/table", "unknown_component", "there is s"),
        ("operators/q.filtr1", "unknown_operator", "did you mean q.filter1?"),
    ]:
        status, kind, said = await ask(daemon, "GET", f"/api/v1/{path}")
        assert (status, kind) == (404, "application/problem+json")
        assert (said["code"], said["status"]) == (code, 404)
        assert near in said["detail"]
        assert said["title"]
        assert said["type"]
    assert (await ask(daemon, "GET", "/nowhere"))[1] == "application/problem+json"
    assert (await ask(daemon, "PATCH", "/api/v1/streams"))[0] == 405


@served()
async def test_what_a_query_should_think_about_is_answered(daemon):
    join = "CREATE QUERY pairs AS SELECT x.k FROM s x JOIN s y ON x.k = y.k"
    _, _, said = await ask(daemon, "POST", "/api/v1/sql", {"sql": join, "dry_run": True})
    (warning,) = said["statements"][0]["warnings"]
    assert warning.startswith("this join keeps the rows of x and of y without a time limit")
    _, _, said = await ask(daemon, "POST", "/api/v1/sql", {"sql": f"{join} AND x.ts = y.ts", "dry_run": True})
    assert said["statements"][0]["warnings"] == []


@served()
async def test_sql_as_a_whole_or_not_at_all(daemon):
    async def sql(text, **more):
        return await ask(daemon, "POST", "/api/v1/sql", {"sql": text, **more})

    status, _, said = await sql("CREATE STREAM a (x BIGINT); CREATE QUERY b AS SELECT x FROM a", dry_run=True)
    assert (status, [made["kind"] for made in said["statements"]]) == (200, ["create_stream", "create_query"])
    assert [stream["name"] for stream in await get(daemon, "/api/v1/streams")] == ["s"]
    status, kind, said = await sql("CREATE STREAM a (x BIGINT);\nCREATE QUERY b AS SELECT y FROM a")
    assert (status, kind, said["code"]) == (400, "application/problem+json", "sql")
    assert (said["line"], said["column"]) == (2, 26)
    assert [stream["name"] for stream in await get(daemon, "/api/v1/streams")] == ["s"]
    assert (await sql("SELECT k FROM s"))[2]["detail"].startswith("a SELECT alone")
    assert "q.filter1" not in (await sql("EXPLAIN SELECT k FROM s"))[2]["statements"][0]["text"]
    assert (await sql("CREATE STREAM a (x BIGINT); CREATE QUERY b AS SELECT x FROM a"))[0] == 200
    assert (await sql("DROP STREAM a"))[0] == 400
    assert (await ask(daemon, "DELETE", "/api/v1/streams/a"))[0] == 400
    assert (await ask(daemon, "DELETE", "/api/v1/queries/b"))[0] == 200
    assert (await ask(daemon, "DELETE", "/api/v1/streams/a"))[0] == 200
    assert (await ask(daemon, "DELETE", "/api/v1/streams/a"))[2]["code"] == "unknown_stream"


@served()
async def test_a_refusal_by_the_engine_takes_back_what_was_done(daemon, monkeypatch):
    carry_out = type(daemon.engine).carry_out

    def stubborn(engine, body):
        from millrace.engine.events import AddQuery

        if isinstance(body, AddQuery) and body.plan.name == "b":
            raise Refuse("not today")
        return carry_out(engine, body)

    monkeypatch.setattr(type(daemon.engine), "carry_out", stubborn)
    before = daemon.engine.streams(), daemon.engine.queries()
    status, _, said = await ask(
        daemon, "POST", "/api/v1/sql", {"sql": "CREATE STREAM a (x BIGINT); CREATE QUERY b AS SELECT x FROM a"}
    )
    assert (status, said["detail"]) == (409, "not today")
    assert (daemon.engine.streams(), daemon.engine.queries()) == before
    assert "a" not in daemon.catalog.known.streams


@served()
async def test_requests_that_are_not_well_formed(daemon):
    for raw in (b"", b"{", b"[]", b'{"sql": 5}', b'{"sql": "", "dryrun": true}'):
        status, kind, said = await ask(daemon, "POST", "/api/v1/sql", raw=raw)
        assert (status, kind, said["code"]) == (422, "application/problem+json", "invalid_request")
    assert (await ask(daemon, "POST", "/api/v1/sql", raw=b"\xff"))[:2] == (400, "application/problem+json")
    assert (await ask(daemon, "PUT", "/api/v1/components/s/weight", {"weight": 0}))[0] == 422


@served()
async def test_scheduling(daemon):
    status, _, said = await ask(daemon, "PUT", "/api/v1/components/s/strategy", {"strategy": "bfs"})
    assert (status, said["strategy"]) == (200, "bfs")
    assert (await get(daemon, "/api/v1/components/s/strategy"))["strategy"] == "bfs"
    body = {"strategy": "dfs(5)", "operator": "q.filter1"}
    assert (await ask(daemon, "PUT", "/api/v1/components/s/strategy", body))[0] == 200
    assert (await get(daemon, "/api/v1/components/s/strategy"))["operators"]["q.filter1"] == "dfs(5)"
    status, kind, said = await ask(daemon, "PUT", "/api/v1/components/s/strategy", {"strategy": "fastest"})
    assert (status, kind) == (400, "application/problem+json")
    assert (await ask(daemon, "PUT", "/api/v1/operators/s.source/break"))[0] == 200
    assert "s.source" in (await get(daemon, "/api/v1/components/s"))["breaks"]
    assert (await ask(daemon, "DELETE", "/api/v1/operators/s.source/break"))[0] == 200
    assert (await ask(daemon, "PUT", "/api/v1/components/s/weight", {"weight": 3}))[0] == 200
    assert (await get(daemon, "/api/v1/components/s"))["weight"] == 3
    assert (await ask(daemon, "POST", "/api/v1/queries/q/pause"))[0] == 200
    assert (await ask(daemon, "POST", "/api/v1/queries/q/pause"))[0] == 409
    assert (await get(daemon, "/api/v1/queries/q"))["state"] == "paused"
    assert (await ask(daemon, "POST", "/api/v1/queries/q/resume"))[0] == 200


@served(engine={"strategy": "bfs"})
async def test_new_operators_take_their_components_strategy(daemon):
    assert set((await get(daemon, "/api/v1/components/s"))["strategies"].values()) == {"bfs"}
    await ask(daemon, "PUT", "/api/v1/components/s/strategy", {"strategy": "rr(3)"})
    await daemon.catalog.execute("CREATE QUERY more AS SELECT k FROM q WHERE k > 5")
    assert set((await get(daemon, "/api/v1/components/s"))["strategies"].values()) == {"rr(3)"}
    assert (await ask(daemon, "PUT", "/api/v1/components/s/strategy", {"strategy": "fast"}))[0] == 400


@served()
async def test_replacing_a_query(daemon, tmp_path):
    path = tmp_path / "out.csv"
    await daemon.catalog.execute(f"CREATE SINK f FROM q WITH (type = 'file', path = '{path}')")
    with pytest.raises(Exception, match="drop that sink first"):
        await daemon.catalog.execute("CREATE OR REPLACE QUERY q AS SELECT k FROM s")
    await daemon.catalog.execute("CREATE OR REPLACE QUERY q AS SELECT k + 1 AS k, v, name FROM s")
    async with lines(daemon) as nc:
        nc.say('{"stream": "s", "tuple": {"k": 1}}')
        await until(lambda: daemon.catalog.sinks()[0].delivered == 1)
    await daemon.catalog.execute("DROP SINK f")
    assert path.read_text() == "k,v,name\n2,,\n"


@pytest.mark.parametrize(
    ("ending", "wanted"),
    [
        ("jsonl", '{"k":1,"v":0.5,"name":"ä"}\n{"k":2,"v":null,"name":null}\n'),
        ("csv", "k,v,name\n1,0.5,ä\n2,,\n"),
    ],
)
@served()
async def test_text_sinks(daemon, tmp_path, ending, wanted):
    path = tmp_path / f"out.{ending}"
    await daemon.catalog.execute(f"CREATE SINK f FROM q WITH (type = 'file', path = '{path}')")
    async with lines(daemon) as nc:
        nc.say('{"stream": "s", "tuple": {"k": 1, "v": 0.5, "name": "ä"}}')
        nc.say('{"stream": "s", "tuple": {"k": 2}}')
        # Rows are on disk while the sink runs, not only when it ends.
        await until(lambda: path.exists() and path.read_text() == wanted)


@served()
async def test_parquet_sinks_appear_whole(daemon, tmp_path):
    import pyarrow.parquet as pq

    path = tmp_path / "out.parquet"
    for number in (1, 2):
        names = [file.name for file in path.glob("*")]
        await daemon.catalog.execute(f"CREATE SINK f FROM q WITH (type = 'file', path = '{path}')")
        async with lines(daemon) as nc:
            nc.say(f'{{"stream": "s", "tuple": {{"k": {number}}}}}')
            await until(lambda: daemon.catalog.sinks()[0].delivered == 1)
        assert [file.name for file in path.glob("*")] == names
        await daemon.catalog.execute("DROP SINK f")
    assert sorted(row["k"] for row in pq.read_table(path).to_pylist()) == [1, 2]
    assert (path / f"f-{0:019d}-{0:019d}.parquet").exists()
    assert len(list(path.glob("*.parquet"))) == 2


@served()
async def test_a_sink_that_cannot_write_refuses_the_whole(daemon, tmp_path):
    status, _, said = await ask(
        daemon,
        "POST",
        "/api/v1/sql",
        {"sql": f"CREATE STREAM a (x BIGINT); CREATE SINK f FROM q WITH (type='file', path='{tmp_path}/no/x.csv')"},
    )
    assert status == 409
    assert "no such file or directory" in said["detail"]
    assert [stream.name for stream in daemon.streams()] == ["s"]


SHARING = """
CREATE STREAM a (ts TIMESTAMP, k BIGINT) WITH (time = 'ts');
CREATE STREAM b (ts TIMESTAMP, k BIGINT) WITH (time = 'ts');
CREATE STREAM c (k BIGINT);
CREATE QUERY big AS SELECT k FROM a WHERE k > 5;
CREATE QUERY same AS SELECT k FROM a WHERE k > 5;
CREATE QUERY late AS SELECT k FROM a.late;
CREATE QUERY pairs AS SELECT a.k FROM a [RANGE '1 s'] JOIN b [RANGE '1 s'] ON a.k = b.k;
CREATE QUERY alone AS SELECT k FROM c
"""


@served(SHARING)
async def test_one_thing_is_shown_as_it_is_among_all(daemon):
    async with lines(daemon) as nc:
        nc.say('{"stream": "a", "tuple": {"ts": 9, "k": 7}}')
        await until(lambda: daemon.query("same").rows == 1)
    await daemon.runner.wait_drained()
    daemon.runner.now_us = lambda: 2**60  # waiting times grow during the test, so the clock stands still
    for kind, one, every in (
        ("operators", daemon.operator, daemon.operators()),
        ("components", daemon.component, daemon.components()),
        ("queries", daemon.query, daemon.queries()),
    ):
        assert len(every) > 1
        assert [one(item.name) for item in every] == every
        assert one("nobody") is None
        status, _, said = await ask(daemon, "GET", f"/api/v1/{kind}/{every[0].name[:-1]}x")
        assert status == 404
        assert every[0].name in said["detail"], "the nearest name"


@served()
async def test_metrics(daemon):
    empty = await get(daemon, "/metrics")
    for name in RECONFIGURATIONS:
        assert f'millrace_reconfigurations_total{{kind="{name}",result="refused"}} 0.0' in empty
    async with lines(daemon) as nc:
        nc.say('{"subscribe": "q"}')
        for k in (1, -1, 2):
            nc.say(f'{{"stream": "s", "tuple": {{"k": {k}}}}}')
        nc.say('{"stream": "s", "tuple": {"k": "x"}}')
        await nc.hear()
        await until(lambda: daemon.streams()[0].rejected == 1)
        text = await get(daemon, "/metrics")
    for line in (
        'millrace_source_connections{stream="s"} 1.0',
        'millrace_source_tuples_total{stream="s"} 3.0',
        'millrace_source_rejected_total{stream="s"} 1.0',
        'millrace_source_late_tuples_total{stream="s"} 0.0',
        'millrace_operator_input_tuples_total{component="s",operator="q.filter1"} 3.0',
        'millrace_operator_output_tuples_total{component="s",operator="q.filter1"} 2.0',
        'millrace_operator_queue_tuples{component="s",input="s.source",operator="q.filter1"} 0.0',
        'millrace_component_strategy_info{component="s",strategy="dfs"} 1.0',
        'millrace_sink_delivered_tuples_total{query="q",sink="subscriptions"} 2.0',
        'millrace_query_latency_seconds_count{query="q"} 2.0',
        'millrace_query_latency_seconds_bucket{le="+Inf",query="q"} 2.0',
        'millrace_reconfigurations_total{kind="create_query",result="done"} 1.0',
    ):
        assert line in text, line
    assert "process_resident_memory_bytes" in text


# -- tokens and TLS ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key"), "-out", str(folder / "cert")]
    subprocess.run([*command.split(), *more], check=True, capture_output=True)
    (folder / "token").write_text("secret\n")
    return folder


def test_tls_and_tokens(certificate):
    @served(
        server={
            "tls_certificate": certificate / "cert",
            "tls_key": certificate / "key",
            "token_file": certificate / "token",
        }
    )
    async def play(daemon):
        trust = ssl.create_default_context(cafile=str(certificate / "cert"))
        async with peer(daemon, greet=False, ssl=trust) as asker:
            assert isinstance(await asker.greet("secret"), Welcome)
        for wrong in (None, "wrong"):
            async with peer(daemon, greet=False, ssl=trust) as asker:
                error = await asker.greet(wrong)
                assert isinstance(error, Error)
                assert error.code == "unauthorised"
                assert await asker.hear() is None
        assert await get(daemon, "/-/healthy", ssl=trust) == "healthy\n"
        for token in (None, "wrong"):
            status, _, said = await ask(daemon, "GET", "/api/v1/streams", ssl=trust, token=token)
            assert (status, said["code"]) == (401, "unauthorised")
            assert (await ask(daemon, "GET", "/metrics", ssl=trust, token=token))[0] == 401
        assert await get(daemon, "/api/v1/streams", ssl=trust, token="secret")

    play()


def test_a_token_by_lines(certificate):
    @served(server={"token_file": certificate / "token"})
    async def play(daemon):
        async with lines(daemon) as nc:
            nc.say('{"token": "secret"}')
            nc.say('{"subscribe": "q"}')
            nc.say('{"stream": "s", "tuple": {"k": 1}}')
            assert (await nc.hear())["seq"] == 0
        for first in ('{"token": "wrong"}', '{"subscribe": "q"}'):
            async with lines(daemon) as nc:
                nc.say(first)
                assert (await nc.hear())["error"]["code"] == "unauthorised"
                assert await nc.hear() is None

    play()


# -- the end, and the restart ------------------------------------------------------------------------------------------


def test_the_end_drains_and_the_catalog_comes_back(tmp_path):
    async def first_life():
        async with running(SCHEMA_SQL, server={"data_dir": tmp_path}) as daemon:
            await daemon.catalog.execute(
                "CREATE QUERY older AS SELECT k FROM q;"
                "CREATE QUERY base AS SELECT k FROM s; CREATE OR REPLACE QUERY older AS SELECT k FROM base;"
                "CREATE SINK f FROM older WITH (type = 'file', path = 'out.parquet')"
            )
            async with peer(daemon) as feeder, peer(daemon) as reader:
                await feeder.open()
                await reader.subscribe("older")
                addresses = json.loads((tmp_path / "addresses.json").read_text())
                feeder.data(0, [(k, 0.0, "") for k in range(1_000)])
                await until(lambda: daemon.streams()[0].tuples == 1_000)
                daemon.stop()
                await daemon.wait_ended()
                heard = [message async for message in everything(reader)]
                assert type(heard[-1]).__name__ == "Bye"
                assert sum(len(message.rows) for message in heard if hasattr(message, "rows")) == 1_000
        assert not (tmp_path / "addresses.json").exists()
        return addresses

    async def second_life():
        async with running(server={"data_dir": tmp_path}) as daemon:
            assert [query.name for query in daemon.queries()] == ["q", "base", "older"]
            assert daemon.catalog.sinks()[0].path == f"{tmp_path}/sinks/out.parquet"

    async def everything(reader):
        while (message := await reader.hear()) is not None:
            yield message

    assert set(asyncio.run(first_life())) == {"listen", "admin"}
    import pyarrow.parquet as pq

    assert pq.read_table(tmp_path / "sinks/out.parquet")["k"].to_pylist() == list(range(1_000))
    asyncio.run(second_life())


def test_a_sink_whose_folder_is_gone_keeps_no_server_from_starting(tmp_path):
    folder = tmp_path / "sinks/out"

    async def first_life():
        async with running(SCHEMA_SQL, server={"data_dir": tmp_path}) as daemon:
            await daemon.catalog.execute("CREATE SINK f FROM q WITH (type = 'file', path = 'out/out.jsonl')")

    async def second_life():
        async with running(server={"data_dir": tmp_path}) as daemon, lines(daemon) as nc:
            nc.say('{"stream": "s", "tuple": {"k": 7}}')
            await until(lambda: daemon.catalog.sinks()[0].state == "waiting")
            assert "No such file or directory" in daemon.catalog.sinks()[0].reason
            folder.mkdir()
            await until(lambda: daemon.catalog.sinks()[0].delivered == 1)
        assert json.loads((folder / "out.jsonl").read_text())["k"] == 7

    asyncio.run(first_life())
    (folder / "out.jsonl").unlink()
    folder.rmdir()
    asyncio.run(second_life())


@served(server={"listen": "[::1]:0"})
async def test_ipv6(daemon):
    assert str(daemon.listen).startswith("[::1]:")
    async with peer(daemon) as asker:
        await asker.open()


def test_a_sink_that_hangs_does_not_keep_the_server(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(daemon_module, "SINK_SECONDS", 0.05)
    monkeypatch.setattr(StandardOutput, "write", lambda *_: released.wait(HANG_SECONDS))

    async def play():
        async with running(SCHEMA_SQL, server={"drain_seconds": 0.05}) as daemon:
            await daemon.catalog.execute("CREATE SINK stuck FROM q WITH (type = 'stdout')")
            async with lines(daemon) as nc:
                nc.say('{"stream": "s", "tuple": {"k": 1}}')
                await until(lambda: daemon.catalog.sinks()[0].held == 1)
        assert daemon.stuck
        released.set()

    asyncio.run(play())


TIMERS = FakeTimers()


@served(limits={"connections": 2}, timers=TIMERS)
async def test_connections_beyond_the_limit_are_turned_away(daemon):
    async with peer(daemon), peer(daemon), lines(daemon) as third:
        await until(lambda: daemon.context.turned_away)
        TIMERS.advance(GREETING_SECONDS)  # it says nothing that could be answered
        assert await third.reader.read() == b""
    await until(lambda: not daemon.context.connections)
    async with peer(daemon):
        pass


@served(limits={"idle_seconds": 0.05})
async def test_a_silent_connection_is_closed(daemon):
    async with peer(daemon) as silent:
        assert type(await silent.hear()).__name__ == "Bye"
        assert await silent.hear() is None


@served()
async def test_requests_of_other_sites_and_huge_ones_are_refused(daemon):
    async def with_head(head):
        reader, writer = await asyncio.open_connection(daemon.admin.host, daemon.admin.port)
        writer.write(
            f"POST /api/v1/queries/q/pause HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{head}\r\n\r\n".encode()
        )
        answer = await reader.read()
        writer.close()
        return int(answer.split()[1])

    assert await with_head("origin: http://elsewhere") == 403
    assert await with_head("origin: null") == 403
    assert await with_head(f"content-length: {10**9}") == 413
    assert await with_head("transfer-encoding: chunked\r\n\r\n0") == 413
    assert daemon.engine.queries()[0].state == "running"
    assert await with_head("origin: http://localhost") == 200


@served()
async def test_what_a_request_lacks_is_said_by_the_name_that_it_was_given(daemon):
    for body, words in (({"weight": 10**14}, "weight: expected less than or equal to"), ({}, "weight: Field required")):
        status, _, said = await ask(daemon, "PUT", "/api/v1/components/s/weight", body)
        assert status == 422
        assert said["detail"].startswith(words)
    assert (
        "got 100000000000000"
        in (await ask(daemon, "PUT", "/api/v1/components/s/weight", {"weight": 10**14}))[2]["detail"]
    )
