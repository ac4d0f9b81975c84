"""Reconfigurations of a loaded daemon: untouched queries return the same bytes; the benchmark measures the delay.

A separate process (`python -m bench.reconfigure ADDRESS SECONDS FILE`) feeds streams at 50,000 tuples a second and
reads the untouched queries. In one run nothing else happens. In the other run queries are created, dropped, replaced
and paused; strategies, weights, break points, queues and join orders change. Invalid changes are requested as well,
and must change nothing.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from bench.figure import Figure
from bench.wire import Daemon, daemon
from millrace.client import AsyncClient
from millrace.client.subscription import RowBatch

RATE: Final = 50_000
FRAME: Final = 500
# Nine of ten tuples are events. All times differ, so that there is only one order.
SHARE: Final = 10
APART_US: Final = 1_000_000 // RATE
BASE_US: Final = 1_767_225_600_000_000
KEYS: Final = 50
# The latency that a reconfiguration may add at the 99th percentile.
ALLOWED_MS: Final = 50.0

STREAMS: Final = """
CREATE STREAM events (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts');
CREATE STREAM marks (ts TIMESTAMP, k BIGINT, w BIGINT) WITH (time = 'ts');
CREATE STREAM prices (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts', update_key = 'k');
"""
UNTOUCHED: Final[Mapping[str, str]] = {
    "plain": "WITH (order = 'event') AS SELECT ts, k, v FROM events WHERE v % 100 = 0",
    "counts": """AS SELECT k, window_start, count(*) AS n, sum(v) AS total
        FROM TUMBLE(events, ts, INTERVAL '100 milliseconds') GROUP BY k, window_start""",
    "pairs": """WITH (order = 'event') AS SELECT e.ts, e.k, e.v, m.w
        FROM events [RANGE '1 millisecond'] e JOIN marks [RANGE '1 millisecond'] m ON e.k = m.k""",
    "next": "AS SELECT m.ts, m.k, m.w, e.v FROM marks m FOLLOWED BY events e RECENT ON m.k = e.k WITHIN '2 ms'",
    "either": """WITH (order = 'event') AS SELECT ts, k FROM events WHERE v % 50 = 1
        UNION ALL SELECT ts, k FROM marks WHERE w % 10 = 1""",
    "over": "AS SELECT k, n FROM counts WHERE n > 3",
    "running": "WITH (emit = 'every') AS SELECT k, count(*) AS n FROM marks GROUP BY k",
}
TEMPLATES: Final = (
    "AS SELECT ts, k, v + {n} AS v FROM events WHERE v % {n} = 0",
    "AS SELECT ts, k, v FROM events WHERE v % 100 = 0",
    "WITH (order = 'event') AS SELECT ts, k, v FROM events WHERE v % {n} = 0",
    """AS SELECT k, window_end, max(v) AS top FROM HOP(events, ts, INTERVAL '{n} ms', INTERVAL '{m} ms')
        GROUP BY k, window_end""",
    "AS SELECT e.k, e.v, m.w FROM events [RANGE '1 ms'] e JOIN marks [RANGE '1 ms'] m ON e.k = m.k AND e.v > {n}",
    """WITH (order = 'event', join = 'adaptive') AS SELECT e.k, m.w
        FROM events [RANGE '1 ms'] e JOIN marks [RANGE '1 ms'] m ON e.k = m.k AND e.v % {n} = 0""",
    "WITH (order = 'event') AS SELECT ts, k FROM events WHERE v % {n} = 0 UNION ALL SELECT ts, k FROM marks",
    "AS SELECT k, n * {n} AS n FROM counts",
    "AS SELECT k, v FROM prices LATEST USING INPLACE",
    "AS SELECT k, sum(v) AS total FROM prices GROUP BY k",
    "WITH (emit = 'every') AS SELECT k, sum(n) AS n FROM counts GROUP BY k",
    "AS SELECT e.k, m.w FROM events e FOLLOWED BY marks m CHRONICLE ON e.k = m.k WITHIN '{n} ms'",
)
# Changes that may not apply to the drawn operator: join order, queue of an update edge, insertion, removal.
MAY_BE_REFUSED: Final = ("order", "queue", "insert", "remove")
# The server may merge equal operators between two looks at it: a refused change is then repeated, at most so often.
MERGES: Final = 5
STRATEGIES: Final = ("dfs", "bfs", "rr", "dfs(500)", "bfs(1000)", "rr(700)", "chain", "chain(600)")


# -- feeding and reading, in a separate process -----------------------------------------------------------------------


@dataclass(slots=True)
class Output:
    """The output of a query: its rows with their sequence numbers, and their delays."""

    rows: list[tuple[int, Sequence[object]]] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)


def tuples(first: int, count: int) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Events and marks with these numbers."""
    events: list[tuple[int, int, int]] = []
    marks: list[tuple[int, int, int]] = []
    for number in range(first, first + count):
        row = (BASE_US + number * APART_US, (number * 2_654_435_761 >> 9) % KEYS, (number * 40_503 >> 5) % 1_000)
        (marks if number % SHARE == 0 else events).append(row)
    return events, marks


async def _read(client: AsyncClient, query: str, began: float, read: Output) -> None:
    subscription = await client.subscribe(query)
    async for batch in subscription.batches():
        assert isinstance(batch, RowBatch)
        if query == "plain":
            newest = max(int(str(row[0])) for row in batch.rows)
            read.late_ms.append((time.perf_counter() - began) * 1e3 - (newest - BASE_US) / 1e3)
        read.rows += enumerate(batch.rows, batch.sequence)


async def feed(address: str, seconds: float, reads: Mapping[str, Output]) -> None:
    """Feed at the rate, each frame at its time, and read until no more rows arrive."""
    async with AsyncClient(address) as reader, AsyncClient(address) as client:
        events, marks, prices = [await client.open(stream, producer=stream) for stream in ("events", "marks", "prices")]
        began = time.perf_counter() + 0.5
        readers = [asyncio.create_task(_read(reader, query, began, read)) for query, read in reads.items()]
        await asyncio.sleep(0.5)
        print("fed", flush=True)
        total = int(seconds * RATE)
        for first in range(0, total, FRAME):
            rows, others = tuples(first, min(FRAME, total - first))
            due = began + (first + FRAME) * APART_US / 1e6
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            await events.send(rows)
            await marks.send(others)
            await prices.send(others)
        for stream in (events, marks, prices):
            await stream.punctuate(BASE_US + total * APART_US + 1_000_000)
            await stream.flush()
        await _settled(reads)
        for task in readers:
            task.cancel()


async def _settled(reads: Mapping[str, Output]) -> None:
    """Wait until no row has arrived for a second."""
    before = -1
    while (now := sum(len(read.rows) for read in reads.values())) != before:
        before = now
        await asyncio.sleep(1.0)


def main(address: str, seconds: str, file: str) -> None:
    reads = {query: Output() for query in UNTOUCHED}
    asyncio.run(feed(address, float(seconds), reads))
    Path(file).write_bytes(pickle.dumps({query: (read.rows, read.late_ms) for query, read in reads.items()}))


# -- valid and invalid changes -----------------------------------------------------------------------------------------


# The catalog, the queries and their states, the strategy and the table of each component.
Everything = tuple[object, list[tuple[str, str]], list[tuple[str, list[tuple[str, Any]]]]]


class Admin:
    """A client that makes random changes from a seed."""

    def __init__(self, server: Daemon, seed: int) -> None:
        self._http = httpx.Client(base_url=f"{server.admin}/api/v1", timeout=60)
        self._draw = random.Random(seed)
        self._queries: dict[str, str] = {}
        self._paused: set[str] = set()
        self._made = 0
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.slowest_ms = 0.0

    def close(self) -> None:
        self._http.close()

    def change(self) -> None:
        """Make one random valid change."""
        makers: list[Callable[[], tuple[str, httpx.Response]]] = [
            self._create,
            self._strategy,
            self._break,
            self._weight,
        ]
        if self._queries:
            makers += [self._drop, self._replace, self._rename, self._pause, self._order, self._queue, self._edit]
        if len(self._queries) > 20:
            makers += [self._drop] * 5
        began = time.perf_counter()
        kind, answer = self._draw.choice(makers)()
        self.slowest_ms = max(self.slowest_ms, (time.perf_counter() - began) * 1e3)
        if answer.status_code >= 500 or (answer.status_code >= 400 and kind not in MAY_BE_REFUSED):
            raise AssertionError(f"{kind}: {answer.status_code} {answer.text}")
        (self.done if answer.is_success else self.refused)[kind] += 1

    def invalid(self) -> None:
        """Request one change that must be refused without effect."""
        wrong = self._draw.choice(self._wrong)
        for last in (False,) * MERGES + (True,):
            before = self.everything()
            kind, answer = wrong()
            if not 400 <= answer.status_code < 500:
                raise AssertionError(f"invalid {kind}: {answer.status_code} {answer.text}")
            after = self.everything()
            if after == before:
                break
            if last or not only_merged(before, after):
                changed = "\n".join(f"{was}\n{now}" for was, now in zip(before, after, strict=True) if was != now)
                raise AssertionError(f"invalid {kind} changed something:\n{changed}")
        self.refused[f"invalid {kind}"] += 1

    def everything(self) -> Everything:
        """The catalog, the states of queries, and the components with the rows of their state tables."""
        components = [(entry["strategy"], self._rows(entry)) for entry in self._http.get("/components").json()]
        queries = [(entry["name"], entry["state"]) for entry in self._http.get("/queries").json()]
        return self._http.get("/catalog").json(), queries, components

    def _rows(self, component: dict[str, Any]) -> list[tuple[str, Any]]:
        """By state. `chain` breaks paths by itself as costs drift, so only the states in its table are compared."""
        rows: list[dict[str, Any]] = self._http.get(f"/components/{component['name']}/table").json()["rows"]
        adapts = any(row["transition"].startswith("CHAIN") for row in rows)
        return [(row["state"], None if adapts else row) for row in rows]

    def _sql(self, text: str) -> httpx.Response:
        return self._http.post("/sql", json={"sql": text})

    def _text(self) -> str:
        n = self._draw.randint(2, 90)
        return self._draw.choice(TEMPLATES).format(n=n, m=n * self._draw.randint(1, 4))

    def _create(self) -> tuple[str, httpx.Response]:
        self._made += 1
        name, text = f"q{self._made}", self._text()
        self._queries[name] = text
        return "create", self._sql(f"CREATE QUERY {name} {text}")

    def _some(self) -> str:
        return self._draw.choice(list(self._queries))

    def _drop(self) -> tuple[str, httpx.Response]:
        name = self._some()
        del self._queries[name]
        self._paused.discard(name)
        return "drop", self._http.delete(f"/queries/{name}")

    def _replace(self) -> tuple[str, httpx.Response]:
        name, text = self._some(), self._text()
        self._queries[name] = text
        return "replace", self._sql(f"CREATE OR REPLACE QUERY {name} {text}")

    def _rename(self) -> tuple[str, httpx.Response]:
        self._made += 1
        name, to = self._some(), f"q{self._made}"
        self._queries[to] = self._queries.pop(name)
        if name in self._paused:
            self._paused ^= {name, to}
        return "rename", self._http.post(f"/queries/{name}/rename", json={"to": to})

    def _edit(self) -> tuple[str, httpx.Response]:
        own = [operator["name"] for operator in self._operators() if set(operator["queries"]) <= set(self._queries)]
        if not own:
            return self._create()
        if self._draw.random() < 0.3:
            return "remove", self._http.delete(f"/operators/{self._draw.choice(own)}")
        body = self._draw.choice([{"sample": 0.5, "seed": 7}, {"where": "k > 3"}])
        return "insert", self._http.post(f"/operators/{self._draw.choice(own)}/insert", json=body)

    def _pause(self) -> tuple[str, httpx.Response]:
        name = self._some()
        verb = "resume" if name in self._paused else "pause"
        self._paused ^= {name}
        return verb, self._http.post(f"/queries/{name}/{verb}")

    def _operators(self) -> list[dict[str, Any]]:
        operators: list[dict[str, Any]] = self._http.get("/operators").json()
        return [operator for operator in operators if operator["kind"] not in ("source", "fork", "sink")]

    def _strategy(self) -> tuple[str, httpx.Response]:
        operator = self._draw.choice(self._operators())
        body = {"strategy": self._draw.choice(STRATEGIES), "operator": self._draw.choice([None, operator["name"]])}
        return "strategy", self._http.put(f"/components/{operator['component']}/strategy", json=body)

    def _break(self) -> tuple[str, httpx.Response]:
        broken = [operator["name"] for operator in self._operators() if operator["break"] == "user"]
        if len(broken) > 4:
            return "break unset", self._http.delete(f"/operators/{self._draw.choice(broken)}/break")
        inner = [operator["name"] for operator in self._operators() if operator["name"] not in broken]
        return "break set", self._http.put(f"/operators/{self._draw.choice(inner)}/break")

    def _weight(self) -> tuple[str, httpx.Response]:
        component = self._draw.choice(self._operators())["component"]
        return "weight", self._http.put(f"/components/{component}/weight", json={"weight": self._draw.randint(1, 9)})

    def _order(self) -> tuple[str, httpx.Response]:
        joins = [name for name, text in self._queries.items() if "join = 'adaptive'" in text] or ["pairs"]
        body = {"join": self._draw.choice(["sync", "filter", "adaptive"]), "alpha": 0.3}
        return "order", self._http.put(f"/queries/{self._draw.choice(joins)}/order", json=body)

    def _queue(self) -> tuple[str, httpx.Response]:
        edges = [
            operator["name"] for operator in self._operators() if any(port["queue"] for port in operator["inputs"])
        ]
        if not edges:
            return self._create()
        body = {"kind": self._draw.choice(["append", "fifo", "inplace", "linecutting"]), "input": 0}
        return "queue", self._http.put(f"/operators/{self._draw.choice(edges)}/queue", json=body)

    @property
    def _wrong(self) -> list[Callable[[], tuple[str, httpx.Response]]]:
        put, post, delete, sql = self._http.put, self._http.post, self._http.delete, self._sql
        good = f"CREATE QUERY never {self._text()};"
        component = "/components/events"
        return [
            lambda: ("syntax", sql("CREATE QUERY never AS SELEC 1")),
            lambda: ("column", sql("CREATE QUERY never AS SELECT nothing FROM events")),
            lambda: ("second statement", sql(good + "CREATE QUERY never2 AS SELECT nothing FROM events")),
            lambda: ("name taken", sql(good + "CREATE QUERY plain AS SELECT k FROM events")),
            lambda: ("in use", sql(good + "DROP STREAM events")),
            lambda: ("read by others", delete("/queries/counts")),
            lambda: ("replaced under readers", sql("CREATE OR REPLACE QUERY counts AS SELECT k FROM events")),
            lambda: ("unknown query", post("/queries/nothing/pause")),
            lambda: ("not paused", post("/queries/plain/resume")),
            lambda: ("strategy", put(f"{component}/strategy", json={"strategy": "fastest", "operator": None})),
            lambda: ("operator", put(f"{component}/strategy", json={"strategy": "dfs", "operator": "no.filter1"})),
            lambda: ("weight", put(f"{component}/weight", json={"weight": -1})),
            lambda: ("break", put("/operators/events.source/nothing")),
            lambda: ("break of nothing", put("/operators/no.filter1/break")),
            lambda: ("order", put("/queries/plain/order", json={"join": "sync"})),
            lambda: ("alpha", put("/queries/pairs/order", json={"join": "filter", "alpha": 7})),
            lambda: ("queue", put("/operators/counts.aggregate1/queue", json={"kind": "lifo", "input": 0})),
            lambda: ("tag", put(f"{component}/weight", json={"weight": 2}, headers={"If-Match": '"old"'})),
            lambda: (
                "no bound",
                sql(good + "CREATE QUERY never3 AS SELECT sum(v) FROM events [RANGE '1 s'] GROUP BY k"),
            ),
        ]


def only_merged(before: Everything, after: Everything) -> bool:
    """Whether the server itself has merged equal operators: some are gone, only forks are new, the rest is the same."""
    were, are = (
        {state for _, rows in components for state, _ in rows if ".fork" not in state}
        for _, _, components in (before, after)
    )
    strategies, strategies_now = ([strategy for strategy, _ in components] for _, _, components in (before, after))
    return before[:2] == after[:2] and strategies == strategies_now and are < were


# -- the two runs ------------------------------------------------------------------------------------------------------

Outputs = Mapping[str, tuple[list[tuple[int, Sequence[object]]], list[float]]]


def run(seconds: float, changes: int, invalid: int, seed: int = 1) -> tuple[Outputs, Admin, Mapping[str, Any]]:
    """The output of the untouched queries, with changes spread over the time; and the changes made."""
    with daemon() as server, tempfile.TemporaryDirectory() as folder:
        server.sql(STREAMS + "".join(f"CREATE QUERY {name} {text};" for name, text in UNTOUCHED.items()))
        file = Path(folder) / "rows"
        command = [sys.executable, "-m", "bench.reconfigure", server.listen, str(seconds), str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as feeding:
            assert feeding.stdout is not None
            feeding.stdout.readline()
            with closing(Admin(server, seed)) as admin:
                began = time.perf_counter()
                kinds = ["change"] * changes + ["invalid"] * invalid
                random.Random(seed).shuffle(kinds)
                for number, kind in enumerate(kinds):
                    wait = began + seconds * number / len(kinds) - time.perf_counter()
                    time.sleep(max(wait, 0))
                    admin.change() if kind == "change" else admin.invalid()
            if feeding.wait(600):
                raise RuntimeError("the feeding process failed")
        return pickle.loads(file.read_bytes()), admin, server.get("/api/v1/server")


def under_load(seconds: float, changes: int, invalid: int) -> list[Figure]:
    """Fail if the changes affect the rows of an untouched query; return the cost of the changes."""
    calm, _, _ = run(seconds, 0, 0)
    busy, admin, _ = run(seconds, changes, invalid)
    for name in UNTOUCHED:
        assert calm[name][0], f"{name} has no rows"
        _same(name, calm[name][0], busy[name][0])
    rows = sum(len(output[0]) for output in calm.values())
    least = {name: percentile(output["plain"][1], 0.99) for name, output in (("calm", calm), ("busy", busy))}
    title = f"{changes} reconfigurations, {RATE:,} tuples/s"
    return [
        Figure(f"{title}: rows that are the same", rows, "rows", note=json.dumps(admin.done)),
        Figure(f"{title}: refused without a trace", sum(admin.refused.values()), "changes", invalid, most=False),
        Figure(f"{title}: latency p99 without", least["calm"], "ms"),
        Figure(f"{title}: latency p99 above it", least["busy"] - least["calm"], "ms", ALLOWED_MS),
        Figure(f"{title}: latency max", max(busy["plain"][1]), "ms", note=f"without: {max(calm['plain'][1]):.1f}"),
        Figure(f"{title}: slowest answer", admin.slowest_ms, "ms"),
    ]


def _same(name: str, calm: list[tuple[int, Any]], busy: list[tuple[int, Any]]) -> None:
    for place, (row, other) in enumerate(zip(calm, busy, strict=False)):
        assert row == other, f"{name} differs at row {place}: {row} without changes, {other} with them"
    assert len(calm) == len(busy), f"{name} has {len(calm)} rows without changes, {len(busy)} with them"


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


if __name__ == "__main__":
    main(*sys.argv[1:])
