"""Previews against the running query over the same tuples, their bounds, and that they leave nothing."""

import asyncio
from collections import Counter

import pytest

from millrace.access.roles import parse_grant
from millrace.access.tokens import create
from millrace.http.api import build
from millrace.observe import preview as previews
from millrace.protocol.admin.data import to_data
from tests.server.harness import FakeTimers, played, running, served, until
from tests.server.test_console import ask as console_ask
from tests.server.test_etags import ask
from tests.server.test_tails import gather, insert, tail

SQL = (
    "CREATE STREAM s (k BIGINT, name TEXT);"
    "CREATE STREAM t (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts', disorder = '2 seconds');"
    "CREATE QUERY q AS SELECT k, k * 2 AS double FROM s WHERE k >= 0"
)
QUERIES = (
    "SELECT double, k FROM q WHERE double > 4",
    "SELECT name, count(*) AS n FROM s GROUP BY name",
    "SELECT k, count(*) AS n, window_start FROM TUMBLE(t, ts, INTERVAL '3 seconds') GROUP BY k, window_start",
    "SELECT a.k AS a, b.k AS b FROM t [RANGE '2 seconds'] a JOIN t [RANGE '2 seconds'] b ON a.k = b.k",
    "SELECT ts, k FROM t UNION ALL SELECT ts, k FROM t WHERE k > 3",
    "SELECT k / (k - 3) AS x FROM s",
)


async def preview(daemon, sql, **more):
    status, _, answer = await ask(daemon, "POST", "sql/preview", {"sql": sql, "wait": 0, **more})
    assert status == 200
    return answer


def counted(rows):
    return Counter(tuple(sorted(one["row"].items())) for one in rows)


async def fill(daemon, seconds=range(0, 40, 2)):
    """Tuples out of order, of which some are late."""
    for number in seconds:
        await insert(daemon, (number % 7, f"'{number % 3}'"), (-number, "'x'"))
        times = (number, number + 3, number - 1, number - 9)
        rows = [(f"TIMESTAMP '2026-01-01 00:01:{at % 60:02}'", at % 5) for at in times if at >= 0]
        await insert(daemon, *rows, stream="t (ts, k)")


@played
async def test_a_preview_has_the_rows_of_the_running_query():
    """All rows that it has emitted, and those for which it still waits."""
    texts = {
        f"{order}{number}": f"CREATE QUERY {order}{number} WITH (order = '{order}') AS {query}"
        for order in ("arrival", "event")
        for number, query in enumerate(QUERIES)
    }
    async with running(SQL) as daemon:
        await daemon.catalog.execute("; ".join(texts.values()))
        tails = {name: tail(daemon, name).lines() for name in texts}
        for name, lines in tails.items():
            await anext(lines)
            assert (await preview(daemon, texts[name]))["inputs"][0]["tuples"] == 0
        await fill(daemon)
        for name, text in texts.items():
            expected, _, _ = await gather(tails[name], daemon.runner.outlets[name].next_sequence)
            answer = await preview(daemon, text, rows=1_000)
            assert (answer["problem"], answer["cut"], answer["emitted"]) == (None, None, len(answer["rows"]))
            assert answer["columns"][0]["name"] == daemon.query(name).fields[0][0]
            assert expected
            assert counted(answer["rows"]) >= counted(expected)
            assert len(answer["rows"]) - len(expected) <= answer["open"]
            last = await preview(daemon, text, rows=3)
            assert last["rows"] == answer["rows"][-3:]
            assert answer["failed"] == sum(one.errors for one in daemon.operators() if name in one.queries)
            assert ("division by zero" in (answer["reason"] or "")) == ("/" in text)


@served(SQL)
async def test_windows_that_are_open_are_counted(daemon):
    text = "SELECT count(*) AS n, window_start FROM TUMBLE(t, ts, INTERVAL '10 seconds') GROUP BY window_start"
    await preview(daemon, text)
    rows = [(f"TIMESTAMP '2026-01-01 00:01:{at:02}'", 1) for at in range(28)]
    await insert(daemon, *rows, stream="t (ts, k)")
    answer = await preview(daemon, text)
    assert [one["row"]["n"] for one in answer["rows"]] == [10, 10, 8]
    assert answer["open"] == 1
    assert answer["price"]["tuples"] == 28
    assert answer["price"]["us_per_tuple"] > 0
    assert answer["price"]["state_tuples"] >= 1


@served(SQL)
async def test_a_preview_waits_for_the_first_tuples(daemon):
    waiting = asyncio.create_task(preview(daemon, "SELECT k FROM s", wait=10))
    await until(lambda: "s" in daemon.previews.kept)
    await insert(daemon, (5, "'x'"))
    assert [one["row"] for one in (await waiting)["rows"]] == [{"k": 5}]


def everything(daemon):
    return [
        to_data(one) for kind in (daemon.streams, daemon.queries, daemon.operators, daemon.components) for one in kind()
    ]


@played
async def test_a_preview_leaves_nothing():
    """No change, no query, and after a minute no tap."""
    timers = FakeTimers()
    async with running(SQL, timers=timers) as daemon:
        before = everything(daemon)
        changes = daemon.catalog.ledger.entries()
        text = "CREATE STREAM new (k BIGINT); CREATE OR REPLACE QUERY q AS SELECT k FROM s; SELECT k FROM q"
        answer = await preview(daemon, text)
        assert [one["stream"] for one in answer["inputs"]] == ["s"]
        assert everything(daemon) == before
        assert daemon.catalog.ledger.entries() == changes
        source = daemon.engine.streams_by_name["s"].source
        assert source.output.tap is not None
        timers.advance(previews.KEPT_SECONDS - 1)
        assert (await preview(daemon, text))["problem"] is None
        timers.advance(previews.KEPT_SECONDS - 1)
        assert source.output.tap is not None
        timers.advance(1)
        assert source.output.tap is None
        assert daemon.previews.kept == {}


@served(SQL)
async def test_a_stream_that_is_another_one_now_is_looked_at(daemon):
    await preview(daemon, "SELECT k FROM t")
    await daemon.catalog.execute("DROP STREAM t; CREATE STREAM t (k BIGINT)")
    await preview(daemon, "SELECT k FROM t")
    await insert(daemon, (8,), stream="t (k)")
    assert [one["row"] for one in (await preview(daemon, "SELECT k FROM t"))["rows"]] == [{"k": 8}]


@served(SQL)
async def test_few_streams_keep_tuples(daemon):
    for number in range(previews.MOST_STREAMS + 3):
        await daemon.catalog.execute(f"CREATE STREAM s{number} (k BIGINT)")
        await preview(daemon, f"SELECT k FROM s{number}")
    assert list(daemon.previews.kept) == [f"s{number}" for number in range(3, previews.MOST_STREAMS + 3)]
    assert daemon.engine.streams_by_name["s2"].source.output.tap is None
    many = " UNION ALL ".join(f"SELECT k FROM s{number}" for number in range(previews.MOST_STREAMS + 1))
    assert "streams at most" in (await preview(daemon, many))["problem"]["detail"]


@pytest.mark.parametrize(
    ("bound", "words"), [("MOST_SECONDS", "more than 0 seconds"), ("MOST_BYTES", "more than 0 MiB")]
)
@played
async def test_a_preview_ends_at_its_bounds(monkeypatch, bound, words):
    async with running(SQL) as daemon:
        text = "SELECT name, count(*) AS n FROM s GROUP BY name"
        await preview(daemon, text)
        for number in range(9):
            await insert(daemon, *[(number, f"'{number}'")] * 100)
        monkeypatch.setattr(previews, bound, 0)
        answer = await preview(daemon, text)
        assert words in answer["cut"]
        assert answer["price"]["tuples"] == answer["inputs"][0]["tuples"] < 900


@played
async def test_an_execution_of_a_preview_is_short(monkeypatch):
    """A join of all tuples with all others is cut, and not made as a whole."""
    taken: list[int] = []
    monkeypatch.setattr(previews._Stopwatch, "stop", lambda self, operator, tuples: taken.append(tuples))
    monkeypatch.setattr(previews, "MOST_SECONDS", 0.05)
    async with running(SQL) as daemon:
        join = "SELECT a.k AS k FROM s [RANGE '1 hour'] a JOIN s [RANGE '1 hour'] b ON a.k <= b.k"
        await preview(daemon, join)
        for first in range(0, 3_000, 500):
            await insert(daemon, *[(number, "'x'") for number in range(first, first + 500)])
        answer = await preview(daemon, join)
        assert "more than 0.05 seconds" in answer["cut"]
        assert max(taken) == previews.EXECUTION


@played
async def test_a_preview_is_made_of_the_newest_tuples(monkeypatch):
    monkeypatch.setattr(previews, "MOST_TUPLES", 100)
    async with running(SQL) as daemon:
        await preview(daemon, "SELECT k FROM s")
        for number in range(30):
            await insert(daemon, *[(number, "'x'")] * 10)
        answer = await preview(daemon, "SELECT k FROM s")
        assert [one["row"]["k"] for one in answer["rows"]] == [number for number in range(20, 30) for _ in range(10)]
        assert answer["inputs"][0]["tuples"] == 100


@served(SQL)
async def test_what_cannot_be_previewed_is_said_as_data(daemon):
    for text, words in (
        ("SELECT k FROM", "line 1, column 14"),
        ("DROP QUERY q", "no statement of this text defines a query"),
        ("SELECT k FROM t.late", "t.late has others"),
        ("SELECT number FROM millrace.changes", "millrace.changes has others"),
        ("SELECT x FROM s", "x does not exist in s"),
    ):
        answer = await preview(daemon, text)
        assert words in answer["problem"]["detail"]
        assert (answer["query"], answer["rows"], answer["price"]) == (None, [], None)
    assert daemon.previews.kept == {}


@played
async def test_a_reader_may_preview_any_text(tmp_path):
    path = tmp_path / "tokens.json"
    statuses = {"admin": 200, "read": 200, "feed": 403, "read:s": 403}
    tokens = {role: create(path, role.replace(":", "-"), [parse_grant(role)], 1).token for role in statuses}
    async with running(SQL, server={"tokens_file": path}) as daemon:
        app, body = build(daemon), {"sql": "DROP QUERY q; CREATE QUERY p AS SELECT k FROM s", "wait": 0}
        for role, expected in statuses.items():
            bearer = {"authorization": f"Bearer {tokens[role]}"}
            status, _, answer = await console_ask(app, "POST", "/api/v1/sql/preview", body, **bearer)
            assert (status, answer.get("query")) == (expected, "p" if expected == 200 else None)
        assert [query.name for query in daemon.queries()] == ["q"]
