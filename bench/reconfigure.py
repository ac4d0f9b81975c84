"""Reconfigurations of a loaded daemon: untouched queries return the same bytes; the benchmark measures the delay.

A separate process (`python -m bench.reconfigure SECONDS ROUNDS FILE CALM BUSY`) feeds two daemons in turns, at 50,000
tuples a second, and reads their untouched queries. One daemon is left alone. On the other, queries are created,
dropped, replaced, renamed, paused and unshared; operators are inserted, removed and exchanged; strategies, weights,
break points, queues and join orders change; several changes are made as one, and changes are undone. Both get the same
tuples, and the load of the machine is much the same for both, because each round is short. Invalid changes are
requested as well, and must change nothing.
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
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from bench.figure import Figure
from bench.wire import Daemon, daemon
from millrace.client import AsyncClient
from millrace.client.feed import AsyncFeed
from millrace.client.subscription import AsyncSubscription, RowBatch

RATE: Final = 50_000
FRAME: Final = 500
# Nine of ten tuples are events. All times differ, so that there is only one order.
SHARE: Final = 10
APART_US: Final = 1_000_000 // RATE
BASE_US: Final = 1_767_225_600_000_000
KEYS: Final = 50
# How many times as long as without reconfigurations a row may take, at the 99th percentile.
ALLOWED: Final = 2.0
# How long no row may arrive before the rest of a part is taken to be idle, and the same at the end.
QUIET_SECONDS: Final = 0.2
END_SECONDS: Final = 1.0

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
# Changes that may not apply to the drawn operator: join order, queue of an update edge, insertion, removal, another
# condition; or to what the server is by now: undo.
MAY_BE_REFUSED: Final = ("order", "queue", "insert", "remove", "exchange", "undo")
# The server may merge equal operators between two looks at it: a refused change is then repeated, at most so often.
MERGES: Final = 5
STRATEGIES: Final = ("dfs", "bfs", "rr", "dfs(500)", "bfs(1000)", "rr(700)", "chain", "chain(600)")


# -- feeding and reading, in a separate process -----------------------------------------------------------------------


@dataclass(slots=True)
class Output:
    """The output of a query: its rows with their sequence numbers, and their delays."""

    rows: list[tuple[int, Sequence[object]]] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Side:
    """A daemon under load: its streams, and the outputs of its untouched queries.

    first  the number of the first tuple of the present part; tuple n is due at `zero` + n * APART_US
    """

    streams: Sequence[AsyncFeed]
    reads: Mapping[str, Output] = field(default_factory=lambda: {query: Output() for query in UNTOUCHED})
    first: int = 0
    zero: float = 0.0

    def late_ms(self, time_us: int) -> float | None:
        """How late a row of this time is now; None if its tuple belongs to an earlier part."""
        number_us = time_us - BASE_US
        if number_us < self.first * APART_US:
            return None
        return (time.perf_counter() - self.zero) * 1e3 - number_us / 1e3


def tuples(first: int, count: int) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Events and marks with these numbers."""
    events: list[tuple[int, int, int]] = []
    marks: list[tuple[int, int, int]] = []
    for number in range(first, first + count):
        row = (BASE_US + number * APART_US, (number * 2_654_435_761 >> 9) % KEYS, (number * 40_503 >> 5) % 1_000)
        (marks if number % SHARE == 0 else events).append(row)
    return events, marks


async def _open(open_: AsyncExitStack, address: str) -> Side:
    """A daemon whose streams are fed and whose untouched queries are read from now on."""
    reader, client = [await open_.enter_async_context(AsyncClient(address)) for _ in range(2)]
    side = Side([await client.open(stream, producer=stream) for stream in ("events", "marks", "prices")])
    for query in side.reads:
        reading = asyncio.create_task(_read(side, query, await reader.subscribe(query)))
        open_.callback(reading.cancel)
    return side


async def _read(side: Side, query: str, subscription: AsyncSubscription) -> None:
    output = side.reads[query]
    async for batch in subscription.batches():
        assert isinstance(batch, RowBatch)
        if query == "plain":
            late_ms = side.late_ms(max(int(str(row[0])) for row in batch.rows))
            if late_ms is not None:
                output.late_ms.append(late_ms)
        output.rows += enumerate(batch.rows, batch.sequence)


async def feed(addresses: Sequence[str], seconds: float, rounds: int) -> list[Side]:
    """Feed the daemons in turns, a part in each round, and read until no more rows arrive. Each part waits for a line
    of input, and is announced and ended with a line of output; the second one has the time."""
    count = int(seconds * RATE / rounds)
    async with AsyncExitStack() as open_:
        sides = [await _open(open_, address) for address in addresses]
        for number in range(rounds):
            for side in sides:
                await asyncio.to_thread(sys.stdin.readline)
                await _feed_part(side, number * count, count)
                print(time.perf_counter(), flush=True)
                await _settled(side, QUIET_SECONDS)
        for side in sides:
            for stream in side.streams:
                await stream.punctuate(BASE_US + rounds * count * APART_US + 1_000_000)
                await stream.flush()
            await _settled(side, END_SECONDS)
    return sides


async def _feed_part(side: Side, first: int, count: int) -> None:
    """Feed these tuples at the rate, each frame at its time."""
    events, marks, prices = side.streams
    side.first, side.zero = first, time.perf_counter() - first * APART_US / 1e6
    print("fed", flush=True)
    for start in range(first, first + count, FRAME):
        size = min(FRAME, first + count - start)
        rows, others = tuples(start, size)
        wait = side.zero + (start + size) * APART_US / 1e6 - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        await events.send(rows)
        await marks.send(others)
        await prices.send(others)
    for stream in side.streams:
        await stream.flush()


async def _settled(side: Side, seconds: float) -> None:
    """Wait until no row has arrived for so long."""
    before = -1
    while (now := sum(len(read.rows) for read in side.reads.values())) != before:
        before = now
        await asyncio.sleep(seconds)


def main(seconds: str, rounds: str, file: str, *addresses: str) -> None:
    sides = asyncio.run(feed(addresses, float(seconds), int(rounds)))
    outputs = [{query: (read.rows, read.late_ms) for query, read in side.reads.items()} for side in sides]
    Path(file).write_bytes(pickle.dumps(outputs))


# -- valid and invalid changes -----------------------------------------------------------------------------------------


# The catalog, the queries and their states, the strategy and the table of each component.
Everything = tuple[object, list[tuple[str, str]], list[tuple[str, list[tuple[str, Any]]]]]


class Admin:
    """A client that makes random changes from a seed."""

    def __init__(self, server: Daemon, seed: int) -> None:
        self._http = httpx.Client(base_url=f"{server.admin}/api/v1", timeout=60)
        self._metrics = f"{server.admin}/metrics"
        self._draw = random.Random(seed)
        self._queries: dict[str, str] = {}
        self._paused: set[str] = set()
        self._made = 0
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.slowest_ms = 0.0
        self.ended: list[float] = []

    def close(self) -> None:
        self._http.close()

    def pause_ms(self) -> float:
        """For how long a change has kept tuples waiting, on average."""
        lines = self._http.get(self._metrics).text.splitlines()
        name = "millrace_reconfiguration_pause_seconds"
        total, count = (
            next(float(line.split()[-1]) for line in lines if line.startswith(f"{name}_{part}"))
            for part in ("sum", "count")
        )
        return total / max(count, 1) * 1e3

    def change(self) -> None:
        """Make one random valid change."""
        makers: list[Callable[[], tuple[str, httpx.Response]]] = [
            self._create,
            self._strategy,
            self._break,
            self._weight,
            self._several,
            self._undo,
        ]
        if self._queries:
            makers += [self._drop, self._replace, self._rename, self._pause, self._order, self._queue, self._edit]
            makers += [self._unshare]
        if len(self._queries) > 20:
            makers += [self._drop] * 5
        began = time.perf_counter()
        kind, answer = self._draw.choice(makers)()
        self.ended.append(time.perf_counter())
        self.slowest_ms = max(self.slowest_ms, (self.ended[-1] - began) * 1e3)
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
        catalog = self._http.get("/catalog").json()
        del catalog["decisions"]["apart"]  # a merge by the server changes it; the tables show the operators
        return catalog, queries, components

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
        if self._draw.random() < 0.3:
            return "exchange", self._http.put(f"/operators/{self._draw.choice(own)}", json=body)
        return "insert", self._http.post(f"/operators/{self._draw.choice(own)}/insert", json=body)

    def _unshare(self) -> tuple[str, httpx.Response]:
        return "unshare", self._http.post(f"/queries/{self._some()}/unshare", json={})

    def _several(self) -> tuple[str, httpx.Response]:
        """Two new queries as one change, of which the second gets another name."""
        first, second, last = (f"q{self._made + number}" for number in (1, 2, 3))
        self._made += 3
        texts = [self._text(), self._text()]
        changes: list[dict[str, Any]] = [
            {"change": "create_query", "sql": f"CREATE QUERY {name} {text}"}
            for name, text in zip((first, second), texts, strict=True)
        ]
        changes.append({"change": "rename_query", "name": second, "to": last})
        self._queries |= dict(zip((first, last), texts, strict=True))
        return "several", self._http.post("/changes", json={"changes": changes})

    def _undo(self) -> tuple[str, httpx.Response]:
        """Undo the newest change; which queries there are then, the server says."""
        answer = self._http.post("/changes/undo", json={})
        views: list[dict[str, Any]] = [
            view for view in self._http.get("/queries").json() if view["name"] not in UNTOUCHED
        ]
        self._queries = {view["name"]: view["sql"] for view in views}
        self._paused = {view["name"] for view in views if view["state"] == "paused"}
        return "undo", answer

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


# -- the run -----------------------------------------------------------------------------------------------------------

Outputs = Mapping[str, tuple[list[tuple[int, Sequence[object]]], list[float]]]


def run(
    seconds: float, changes: int, invalid: int, rounds: int, seed: int = 1
) -> tuple[Outputs, Outputs, Admin, int, float]:
    """The output of the untouched queries of a daemon that is left alone, and of one with changes spread over the time;
    the changes, how many ended while tuples were sent, and for how long each kept tuples waiting on average."""
    kinds = ["change"] * changes + ["invalid"] * invalid
    random.Random(seed).shuffle(kinds)
    with daemon() as calm, daemon() as busy, tempfile.TemporaryDirectory() as folder:
        for server in (calm, busy):
            server.sql(STREAMS + "".join(f"CREATE QUERY {name} {text};" for name, text in UNTOUCHED.items()))
        file = Path(folder) / "outputs"
        command = [sys.executable, "-m", "bench.reconfigure", str(seconds), str(rounds), str(file)]
        command += [calm.listen, busy.listen]
        under_way = 0
        with (
            closing(Admin(busy, seed)) as admin,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as feeding,
        ):
            for number in range(rounds):
                part = kinds[len(kinds) * number // rounds : len(kinds) * (number + 1) // rounds]
                _feed(feeding, lambda: None)
                before = len(admin.ended)
                end = _feed(feeding, partial(_make, admin, part, seconds / rounds))
                under_way += sum(ended <= end for ended in admin.ended[before:])
            if feeding.wait(600):
                raise RuntimeError("the feeding process failed")
            pause_ms = admin.pause_ms()
        outputs = pickle.loads(file.read_bytes())
    return *outputs, admin, under_way, pause_ms


def _feed(feeding: subprocess.Popen[str], meanwhile: Callable[[], None]) -> float:
    """Have a part fed; the time when its last tuple had been taken."""
    assert feeding.stdin is not None
    assert feeding.stdout is not None
    print(file=feeding.stdin, flush=True)
    if not feeding.stdout.readline():
        raise RuntimeError("the feeding process failed")
    meanwhile()
    return float(feeding.stdout.readline())


def _make(admin: Admin, kinds: Sequence[str], seconds: float) -> None:
    """Make changes of these kinds, spread over the time."""
    began = time.perf_counter()
    for number, kind in enumerate(kinds):
        time.sleep(max(began + seconds * number / len(kinds) - time.perf_counter(), 0))
        admin.change() if kind == "change" else admin.invalid()


def under_load(seconds: float, changes: int, invalid: int, rounds: int = 10) -> list[Figure]:
    """Fail if the changes affect the rows of an untouched query; return the cost of the changes."""
    calm, busy, admin, under_way, pause_ms = run(seconds, changes, invalid, rounds)
    for name in UNTOUCHED:
        assert calm[name][0], f"{name} has no rows"
        _same(name, calm[name][0], busy[name][0])
    rows = sum(len(output[0]) for output in calm.values())
    calm_ms, busy_ms = (percentile(output["plain"][1], 0.99) for output in (calm, busy))
    title = f"{changes} reconfigurations, {RATE:,} tuples/s"
    figures = [
        Figure(f"{title}: rows that are the same", rows, "rows", note=json.dumps(admin.done)),
        Figure(f"{title}: made under load", under_way, "changes", note=f"of {changes}"),
        Figure(f"{title}: latency p99 without", calm_ms, "ms"),
        Figure(f"{title}: latency p99 with", busy_ms, "ms"),
        Figure(f"{title}: times as long", busy_ms / calm_ms, "times", ALLOWED),
        Figure(f"{title}: latency max", max(busy["plain"][1]), "ms", note=f"without: {max(calm['plain'][1]):.1f}"),
        Figure(f"{title}: a change kept tuples waiting", pause_ms, "ms"),
        Figure(f"{title}: slowest answer", admin.slowest_ms, "ms"),
    ]
    if invalid:
        refused = sum(count for kind, count in admin.refused.items() if kind.startswith("invalid"))
        figures.append(Figure(f"{title}: refused without a trace", refused, "changes", invalid, most=False))
    return figures


def _same(name: str, calm: list[tuple[int, Any]], busy: list[tuple[int, Any]]) -> None:
    for place, (row, other) in enumerate(zip(calm, busy, strict=False)):
        assert row == other, f"{name} differs at row {place}: {row} without changes, {other} with them"
    assert len(calm) == len(busy), f"{name} has {len(calm)} rows without changes, {len(busy)} with them"


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


if __name__ == "__main__":
    main(*sys.argv[1:])
