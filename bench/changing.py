"""One change of a server with many queries, each kind of change: how long it keeps tuples waiting, and the loop busy.

The server runs in this process, so that the processor time of its loop can be read, and a thread sends the requests.
Each figure is the least of several: of the processor time of the loop for a request, and of the time in which tuples
wait, as the server itself measures it.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import structlog
import uvloop

from bench.figure import Figure
from millrace.run.config import Settings
from millrace.run.daemon import Daemon

# How long a change may keep tuples waiting, and the loop busy.
ALLOWED_MS: Final = 5.0
STREAMS: Final = """CREATE STREAM s (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts');
CREATE STREAM u (k BIGINT, v BIGINT) WITH (update_key = 'k');
CREATE QUERY pairs WITH (order = 'event', join = 'adaptive') AS
    SELECT a.k, b.v FROM s [RANGE '1 ms'] a JOIN s [RANGE '1 ms'] b ON a.k = b.k;
CREATE QUERY latest AS SELECT k, v FROM u LATEST USING INPLACE;
"""


class Request(NamedTuple):
    """A change as a request; one without a kind is not measured."""

    kind: str | None
    method: str
    path: str
    body: Mapping[str, Any] | None = None


def _sql(kind: str | None, text: str) -> Request:
    return Request(kind, "POST", "sql", {"sql": text})


def requests(queries: int, folder: str) -> list[Request]:
    """Changes of each kind, after which the server is as before."""
    name = f"q{queries // 2}"
    one, other = (f"SELECT k, v FROM s WHERE k = {queries // 2}{rest}" for rest in ("", " AND v > 0"))
    inside = f"operators/{name}.filter1"
    several = [
        {"change": "create_query", "sql": "CREATE QUERY extra AS SELECT k FROM s WHERE v = -1"},
        {"change": "pause_query", "name": name},
    ]
    return [
        _sql("create query", "CREATE QUERY extra AS SELECT k FROM s WHERE v = -1"),
        Request("drop query", "DELETE", "queries/extra"),
        _sql("replace query", f"CREATE OR REPLACE QUERY {name} AS {other}"),
        _sql(None, f"CREATE OR REPLACE QUERY {name} AS {one}"),
        Request("rename query", "POST", f"queries/{name}/rename", {"to": "renamed"}),
        Request(None, "POST", "queries/renamed/rename", {"to": name}),
        Request("pause query", "POST", f"queries/{name}/pause"),
        Request("resume query", "POST", f"queries/{name}/resume"),
        _sql(None, f"CREATE QUERY twin AS {one}"),
        Request("unshare query", "POST", "queries/twin/unshare", {}),
        Request(None, "DELETE", "queries/twin"),
        Request("strategy of an operator", "PUT", "components/s/strategy",
                {"strategy": "bfs", "operator": f"{name}.filter1"}),
        Request(None, "PUT", "components/s/strategy", {"strategy": "dfs", "operator": f"{name}.filter1"}),
        Request("strategy of all", "PUT", "components/s/strategy", {"strategy": "bfs"}),
        Request(None, "PUT", "components/s/strategy", {"strategy": "dfs"}),
        Request("weight", "PUT", "components/s/weight", {"weight": 2}),
        Request(None, "PUT", "components/s/weight", {"weight": 1}),
        Request("set break", "PUT", f"{inside}/break"),
        Request("unset break", "DELETE", f"{inside}/break"),
        Request("order", "PUT", "queries/pairs/order", {"join": "sync"}),
        Request(None, "PUT", "queries/pairs/order", {"join": "adaptive"}),
        Request("queue", "PUT", "operators/latest.project1/queue", {"kind": "fifo"}),
        Request(None, "PUT", "operators/latest.project1/queue", {"kind": "inplace"}),
        Request("insert operator", "POST", f"{inside}/insert", {"where": "v > 3", "name": f"{name}.filter9"}),
        Request("replace operator", "PUT", f"operators/{name}.filter9", {"where": "v > 4"}),
        Request("remove operator", "DELETE", f"operators/{name}.filter9"),
        _sql("create sink", f"CREATE SINK written FROM {name} WITH (type = 'file', path = '{folder}/rows.jsonl')"),
        Request("drop sink", "DELETE", "sinks/written"),
        _sql("create stream", "CREATE STREAM more (k BIGINT)"),
        _sql("alter stream", "ALTER STREAM more ADD COLUMN v BIGINT"),
        Request("rename column", "POST", "streams/more/rename-column", {"column": "v", "to": "w"}),
        Request("drop stream", "DELETE", "streams/more"),
        Request("two as one", "POST", "changes", {"changes": several}),
        Request("undo them", "POST", "changes/undo", {}),
    ]  # fmt: skip


async def _measured(daemon: Daemon, client: httpx.Client, request: Request) -> tuple[float, float]:
    """The milliseconds for which a change kept tuples waiting, and for which the loop worked on it."""
    began = time.thread_time()
    answer = await asyncio.to_thread(client.request, request.method, f"/{request.path}", json=request.body)
    loop = time.thread_time() - began
    if not answer.is_success:
        raise RuntimeError(f"{request.method} {request.path}: {answer.status_code} {answer.text}")
    return daemon.catalog.keeper.took.seconds * 1e3, loop * 1e3


async def _run(queries: int, repeats: int, folder: str) -> dict[str, tuple[float, float]]:
    data, sinks = Path(folder, "data"), Path(folder, "sinks")
    for path in (data, sinks):
        path.mkdir()
    server = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "data_dir": data, "allow_paths": [sinks]}
    sections: dict[str, Any] = {"server": server}
    daemon = Daemon(Settings(**sections))
    await daemon.start()
    least: dict[str, tuple[float, float]] = {}
    try:
        texts = (f"CREATE QUERY q{n} AS SELECT k, v FROM s WHERE k = {n};" for n in range(queries))
        await daemon.catalog.execute(STREAMS + "".join(texts))
        with httpx.Client(base_url=f"{daemon.admin_url}/api/v1", timeout=60) as client:
            for _ in range(repeats):
                for request in requests(queries, str(sinks)):
                    found = await _measured(daemon, client, request)
                    if request.kind is not None:
                        before = least.get(request.kind, found)
                        least[request.kind] = min(found[0], before[0]), min(found[1], before[1])
    finally:
        daemon.stop()
        await daemon.wait_ended()
    return least


def one_change(queries: int, repeats: int = 7) -> list[Figure]:
    """Each kind of change, next to so many queries on one stream."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        with tempfile.TemporaryDirectory() as folder:
            least = uvloop.run(_run(queries, repeats, folder))
    finally:
        structlog.configure(**before)
    return list(_figures(queries, least))


def _figures(queries: int, least: Mapping[str, tuple[float, float]]) -> Iterator[Figure]:
    bound = ALLOWED_MS if queries == 1_000 else None
    for kind, (waiting, loop) in least.items():
        yield Figure(f"{queries:,} queries, {kind}: tuples wait", waiting, "ms", bound)
        yield Figure(f"{queries:,} queries, {kind}: loop", loop, "ms", bound)
