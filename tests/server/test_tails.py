"""The newest rows of a place, for those who look: what is shown and what is counted, and that nothing else changes."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.http.api import build
from millrace.observe.tails import Tail, TailRequest, place_of, place_of_operator
from millrace.operators.frame.tap import Tap
from millrace.protocol import Field, Schema, Type
from millrace.values.batch import Batch
from tests.depth import examples
from tests.server.harness import played, request, running, until
from tests.server.test_events import ask

SQL = (
    "CREATE STREAM s (k BIGINT, name TEXT); CREATE STREAM t (ts TIMESTAMP, k BIGINT) WITH (time = 'ts');"
    "CREATE QUERY q WITH (fuse = 'off') AS SELECT k, k * 2 AS double FROM s WHERE k >= 0;"
    "CREATE QUERY r AS SELECT k FROM s"
)
NUMBERS = Schema((Field("n", Type.BIGINT),))


# -- the tap against a list --------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(st.tuples(st.just("add"), st.integers(1, 9)), st.tuples(st.integers(-3, 40), st.integers(1, 30))),
    max_size=30,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(1, 12), st.sampled_from([1, 900, 2**22]), STEPS)
def test_a_tap_has_the_newest_rows(most, most_bytes, steps):
    tap = Tap(0, most_bytes)
    rows: list[int] = []
    tap.most = most
    for step, number in steps:
        if step == "add":
            fresh = list(range(len(rows), len(rows) + number))
            rows += fresh
            tap.add(len(rows), Batch.from_rows(NUMBERS, [(one,) for one in fresh], [0] * number))
            held = sum(len(batch) for _, batch in tap._batches)
            assert held < most + 9 + number
            assert len(tap._batches) == 1 or sum(batch.weight for _, batch in tap._batches) <= most_bytes
        else:
            found = tap.newest(step, number)
            shown = [one for first, batch in found for one in range(first, first + len(batch))]
            assert shown == [row for _, batch in found for (row,) in batch.rows()]
            wanted = [row for row in rows[-number:] if row >= step]
            assert shown == wanted[len(wanted) - len(shown) :], "the newest, without a gap"
            if most_bytes == 2**22:
                assert len(shown) >= min(len(wanted), most)
        assert tap.end == len(rows)


# -- tails of a server -------------------------------------------------------------------------------------------------


def tail(daemon, name, find=place_of, holds=lambda: True, **wanted):
    return Tail(daemon, lambda: find(daemon, name), TailRequest(**{"limit": 500, "seconds": 0.01, **wanted}), holds)


async def insert(daemon, *rows, stream="s (k, name)"):
    values = ", ".join(f"({', '.join(map(str, row))})" for row in rows)
    await daemon.catalog.execute(f"INSERT INTO {stream} VALUES {values}")
    await daemon.runner.wait_drained()


async def gather(lines, count):
    """Lines up to this number of rows, shown or counted; the rows and the counts."""
    rows: list[Any] = []
    skipped = filtered = 0
    while len(rows) + skipped + filtered < count:
        line = json.loads(await anext(lines))
        rows += line["rows"]
        skipped += line["skipped"]
        filtered += line.get("filtered", 0)
    return rows, skipped, filtered


@played
async def test_a_tail_shows_every_row_of_a_place_while_they_fit():
    async with running(SQL) as daemon:
        places = [("q", place_of), ("s", place_of), ("q.filter1", place_of_operator), ("s.source", place_of_operator)]
        table = daemon.engine.table("s")
        tails = [tail(daemon, name, find).lines() for name, find in places]
        columns = [json.loads(await anext(lines))["columns"] for lines in tails]
        assert columns[0] == [{"name": "k", "type": "bigint"}, {"name": "double", "type": "bigint"}]
        assert [column["name"] for column in columns[1]] == ["k", "name"]
        for k in range(20):
            await insert(daemon, (k, f"'n{k}'"), (-k - 1, "NULL"))
        assert daemon.engine.table("s") == table, "the graph is the same"
        for (name, _), lines in zip(places, tails, strict=True):
            rows, skipped, _ = await gather(lines, 40 if name.startswith("s") else 20)
            assert skipped == 0
            assert [row["n"] for row in rows] == list(range(len(rows)))
            shown = [row["row"]["k"] for row in rows]
            everything = [one for k in range(20) for one in (k, -k - 1)]
            assert shown == (everything if name.startswith("s") else list(range(20))), name
            assert all(abs(row["at_us"] - daemon.runner.now_us()) < 10**9 for row in rows)
        assert daemon.query("q").subscribers == 0
        for lines in tails:
            await lines.aclose()
        engine = daemon.engine
        taps: list[Any] = [place_of(daemon, name) for name in ("q", "s")]
        assert [place.tap for place in taps] == [None, None]
        assert engine.named("q.filter1").output.tap is None


@played
async def test_rows_that_do_not_fit_are_counted_and_conditions_choose():
    async with running(SQL) as daemon:
        lines, chosen = tail(daemon, "q", limit=3).lines(), tail(daemon, "q", limit=3, where="k % 10 = 0").lines()
        await anext(lines)
        assert json.loads(await anext(chosen))["filtered"] == 0
        await insert(daemon, *[(k, "NULL") for k in range(100)])
        rows, skipped, _ = await gather(lines, 100)
        assert ([row["row"]["k"] for row in rows], skipped) == ([97, 98, 99], 97)
        rows, skipped, filtered = await gather(chosen, 100)
        assert ([row["n"] for row in rows], skipped, filtered) == ([70, 80, 90], 7, 90)
        # Two look at one place: the tap is one, and stays for the second.
        await lines.aclose()
        await insert(daemon, (1_000, "NULL"))
        assert [row["n"] for row in (await gather(chosen, 1))[0]] == [100]
        await chosen.aclose()


@pytest.mark.parametrize("kept", ["memory", "disk"])
@played
async def test_a_tail_starts_with_retained_rows(kept, tmp_path):
    server = {} if kept == "memory" else {"data_dir": tmp_path}
    async with running(SQL, server=server) as daemon:
        await insert(daemon, *[(k, "NULL") for k in range(30)])
        for first, limit, shown in ((0, 500, range(30)), (25, 500, range(25, 30)), (0, 4, range(26, 30))):
            lines = tail(daemon, "q", first=first, limit=limit).lines()
            line = json.loads(await anext(lines))
            assert [row["n"] for row in line["rows"]] == list(shown)
            assert line["skipped"] == 30 - first - len(shown)
            await insert(daemon, (7, "NULL"))
            rows, _, _ = await gather(lines, 1)
            assert [row["row"]["k"] for row in rows] == [7]
            await daemon.catalog.execute("DROP QUERY q; CREATE QUERY q WITH (fuse = 'off') AS SELECT k FROM s")
            line = json.loads(await anext(lines))
            assert [one["name"] for one in line["columns"]] == ["k"], "another query of this name is its successor"
            await daemon.catalog.execute("DROP QUERY q")
            assert json.loads(await anext(lines)) == {"end": "gone"}
            await daemon.catalog.execute("CREATE QUERY q WITH (fuse = 'off') AS SELECT k, 2 AS two FROM s")
            await insert(daemon, *[(k, "NULL") for k in range(30)])


@played
async def test_late_tuples_have_a_tail_and_new_columns_are_said():
    async with running(SQL) as daemon:
        late, stream = tail(daemon, "t.late").lines(), tail(daemon, "t").lines()
        await anext(late)
        await anext(stream)
        for second in (50, 10):
            await insert(daemon, (f"'2026-01-01T00:00:{second}Z'", second), stream="t (ts, k)")
        rows, _, _ = await gather(late, 1)
        assert rows[0]["row"]["k"] == 10
        rows, _, _ = await gather(stream, 1)
        assert rows[0]["row"] == {"ts": "2026-01-01T00:00:50Z", "k": 50}
        await daemon.catalog.execute("ALTER STREAM t ADD COLUMN more TEXT")
        assert [one["name"] for one in json.loads(await anext(stream))["columns"]] == ["ts", "k", "more"]
        await late.aclose()
        await stream.aclose()


@played
async def test_a_tail_ends_with_its_permission_and_with_the_server():
    async with running(SQL) as daemon:
        holds = True
        lines = tail(daemon, "q", holds=lambda: holds, seconds=60).lines()
        stays = tail(daemon, "q", seconds=60).lines()
        for one in (lines, stays):
            await anext(one)
        holds = False
        daemon.broadcasts.wake()
        assert json.loads(await anext(lines)) == {"end": "token"}
        daemon.stop()
        assert json.loads(await anext(stays)) == {"end": "stopping"}


@played
async def test_tails_over_http():
    async with running(SQL) as daemon:
        app = build(daemon)
        for path, status, code in (
            ("/api/v1/tail/none", 404, "unknown_query"),
            ("/api/v1/operators/none/tap", 404, "unknown_operator"),
            ("/api/v1/tail/q?where=nothing%20%3D%201", 400, "sql"),
            ("/api/v1/tail/q?where=k", 400, "sql"),
            ("/api/v1/tail/q?limit=0", 422, "invalid_request"),
            ("/api/v1/tail/q?from=soon", 422, "invalid_request"),
        ):
            found, _, said = await request(app, "GET", path)
            assert (found, json.loads(said)["code"]) == (status, code), path
        status, head, said = await request(app, "GET", "/api/v1/tail/millrace.changes?from=0&lines=1")
        assert (status, head["content-type"]) == (200, "application/x-ndjson")
        assert [row["n"] for row in json.loads(said)["rows"]] == [1]

        reader, writer = await ask(daemon, "/api/v1/operators/q.filter1/tap?every=0.05")
        await reader.readuntil(b'"columns":')
        tapped = daemon.engine.named("q.filter1").output
        assert tapped.tap is not None
        await insert(daemon, (1, "NULL"))
        await reader.readuntil(b'"rows":[{"n":0,')
        writer.transport.abort()
        await until(lambda: tapped.tap is None)


@played
async def test_one_who_does_not_read_holds_nothing_back():
    async with running(SQL) as daemon:
        lines = tail(daemon, "q", limit=10).lines()
        await anext(lines)
        for number in range(50):
            await insert(daemon, *[(k, "'x'") for k in range(number * 100, number * 100 + 100)])
        outlet: Any = daemon.runner.outlets["q"]
        assert outlet.backpressure == 0
        assert sum(len(batch) for _, batch in outlet.tap._batches) < 10 + 100
        rows, skipped, _ = await gather(lines, 5_000)
        assert ([row["n"] for row in rows], skipped) == (list(range(4_990, 5_000)), 4_990)
        await lines.aclose()
        await asyncio.sleep(0)
