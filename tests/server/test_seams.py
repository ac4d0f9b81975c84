"""A query that starts with its history, in a running server: the rows from history and its own are one query's rows."""

import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest
import uvloop

from millrace.engine.events import HoldQuery
from millrace.protocol import MillraceError, Refuse
from millrace.protocol.admin.data import to_data
from millrace.run import seams
from millrace.standby.superseded import Superseded
from tests.patience import HANG_SECONDS
from tests.server.harness import running, served, until
from tests.server.test_api import ask as answer

NOW = 1_792_000_000_000_000
STREAMS = """
CREATE STREAM a (at TIMESTAMP, k BIGINT, name TEXT) WITH (time = 'at', disorder = '2 s', history = 'true');
CREATE STREAM b (at TIMESTAMP, k BIGINT) WITH (time = 'at', history = 'true');
CREATE STREAM i (k BIGINT) WITH (history = 'true')
"""
WINDOWS = (
    "SELECT name, count(*) AS n, window_start FROM TUMBLE(a, at, INTERVAL '10 seconds') GROUP BY name, window_start"
)
PAIRS = """SELECT x.k, x.name, y.at AS t FROM a x JOIN b y
           ON x.k = y.k AND x.at BETWEEN y.at - INTERVAL '5 seconds' AND y.at + INTERVAL '5 seconds'"""
RUNNING = "SELECT k, count(*) AS n FROM b GROUP BY k"


def play(coroutine):
    async def within():
        async with asyncio.timeout(HANG_SECONDS):
            return await coroutine

    return uvloop.run(within())


def feed(daemon, stream, rows):
    source = daemon.feeds.source(stream)
    if source.stream.time is not None:
        rows = [(source.unit.count(row[0]), *row[1:]) for row in rows]
    daemon.feeds.arrived(stream, "f", source.from_rows(rows))


def some(daemon, begin, end):
    """A second apart, some out of order, some late; names that repeat."""
    for second in range(begin, end):
        at = NOW + second * 1_000_000
        feed(daemon, "a", [(at - (second % 4) * 900_000, second % 5, f"n{second % 3}")])
        feed(daemon, "b", [(at, second % 5)])
        feed(daemon, "i", [(second,)])


class Rows:
    """The rows of queries, with their times."""

    def __init__(self, daemon):
        self.of: dict[str, list[tuple[int, tuple[object, ...]]]] = {}
        before = daemon.runner.on_delivery

        def delivered(outlet, now_us, batch):
            self.of.setdefault(outlet.query, []).extend(zip(batch.ts.tolist(), batch.rows(), strict=True))
            before(outlet, now_us, batch)

        daemon.runner.on_delivery = delivered


async def live(daemon, query="q"):
    await until(lambda: daemon.seams.look(query).phase in ("live", "failed"))
    found = daemon.seams.look(query)
    assert found.phase == "live", found
    return found


@pytest.mark.parametrize("unit", ["us", "ns"])
@pytest.mark.parametrize("sql", [WINDOWS, PAIRS])
def test_history_and_live_are_one_sequence(tmp_path, sql, unit, monkeypatch):
    monkeypatch.setattr(seams, "NEAR_ROWS", 1)

    async def run():
        streams = STREAMS.replace("time = 'at'", f"time = 'at', time_unit = '{unit}'")
        async with running(streams, server={"data_dir": tmp_path}) as daemon:
            rows = Rows(daemon)
            await daemon.catalog.execute(f"CREATE QUERY always AS {sql}")
            some(daemon, 0, 300)
            await daemon.runner.wait_drained()
            sinks = "CREATE SINK f FROM q WITH (type = 'file', path = 'out.jsonl', format = 'jsonl')"
            begun = await daemon.seams.begin(f"CREATE QUERY q AS {sql}; {sinks}", None, "/past")
            assert (begun.state, begun.phase) == ("catching up", "replaying")
            shown = next(query for query in daemon.queries() if query.name == "q")
            assert (shown.state, shown.backfill.phase) == ("catching up", "replaying")
            assert "is processing the history of its streams" in daemon.why("q").text
            assert not any("QUERY q " in statement for statement in daemon.catalog.keeper.statements())
            assert not any("SINK" in statement for statement in daemon.catalog.keeper.statements())
            assert daemon.catalog.keeper.decisions().paused == ()
            second = 300
            while daemon.seams.look("q").phase not in ("live", "failed"):
                some(daemon, second, second + 1)
                second += 1
                await asyncio.sleep(0.002)
            some(daemon, second, second + 50)
            await daemon.runner.wait_drained()
            found = await live(daemon)
            assert not found.history_done
            assert "before its seam" in daemon.why("q").text
            assert (await daemon.seams.tell("q", found.seam_us, True)).state == "caught up"
            assert "seam" not in daemon.why("q").text
            seam = found.seam_us
            below = [row for row in rows.of["always"] if row[0] < seam]
            assert seam > NOW
            assert len(below) == found.given > 0
            assert Counter(below) + Counter(rows.of["q"]) == Counter(rows.of["always"])
            assert rows.of["q"]
            assert any("QUERY q " in statement for statement in daemon.catalog.keeper.statements())
            with pytest.raises(Refuse, match="go to /past, not to /elsewhere: continue with the first"):
                await daemon.seams.tell("q", None, False, "/elsewhere")
            assert (await daemon.seams.tell("q", None, False, "/past")).out == "/past"
            told = {query.name: query.since_us for query in daemon.queries()}
            assert told["q"] is None
            assert told["always"] > 0
            return len(rows.of["q"]), daemon.seams.look("q")

    count, before = play(run())
    assert len((tmp_path / "sinks/out.jsonl").read_text().splitlines()) == count

    async def again():
        """Where the seam is outlives the server, as long as the query is there, and by whatever name."""
        async with running(server={"data_dir": tmp_path}) as daemon:
            shown = {query.name: query for query in daemon.queries()}
            assert shown["q"].state == "running"
            assert shown["q"].since_us is None, "it still has the state from its history"
            assert (shown["q"].backfill, shown["always"].backfill) == (before, None)
            await daemon.catalog.execute("ALTER QUERY q RENAME TO p")
        async with running(server={"data_dir": tmp_path}) as daemon:
            assert daemon.seams.look("p") == replace(before, query="p")
            await daemon.catalog.execute("DROP SINK f; DROP QUERY p")
        async with running(server={"data_dir": tmp_path}) as daemon:
            assert daemon.seams.view("p") is None
            assert json.loads((tmp_path / seams.FILE).read_text()) == {}

    play(again())
    (tmp_path / seams.FILE).write_text('{"always": 1}')
    with pytest.raises(MillraceError, match=r"seams\.json: expected a file written by a server"):
        play(again())


def test_state_without_bounds_and_a_margin(tmp_path):
    async def run():
        async with running(STREAMS, server={"data_dir": tmp_path, "archive_file_bytes": 65536}) as daemon:
            rows = Rows(daemon)
            await daemon.catalog.execute(f"CREATE QUERY always AS {RUNNING}; CREATE QUERY w0 AS {WINDOWS}")
            for begin in range(0, 500, 100):
                some(daemon, begin, begin + 100)
                await daemon.archive_now("a")
                await daemon.archive_now("b")
            await daemon.seams.begin(f"CREATE QUERY q AS {RUNNING}", None)
            await daemon.seams.begin(f"CREATE QUERY w AS {WINDOWS}", 30_000_000)
            await live(daemon)
            found = await live(daemon, "w")
            seam = found.seam_us
            assert (found.state, found.history_done) == ("catching up", False)
            assert daemon.seams.look("w").rows < 500
            some(daemon, 500, 550)
            await daemon.runner.wait_drained()
            last = {row[0]: row for _, row in rows.of["q"]}
            assert last == {row[0]: row for _, row in rows.of["always"]}
            assert Counter(rows.of["w"]) == Counter(row for row in rows.of["w0"] if row[0] >= seam)

    play(run())


def test_a_stream_that_got_a_column_since(tmp_path):
    async def run():
        async with running(STREAMS, server={"data_dir": tmp_path}) as daemon:
            rows = Rows(daemon)
            feed(daemon, "b", [(NOW, 1), (NOW + 1_000_000, 2)])
            await daemon.archive_now("b")
            await daemon.catalog.execute("ALTER STREAM b ADD COLUMN w BIGINT")
            feed(daemon, "b", [(NOW + 2_000_000, 3, 7)])
            sql = "SELECT count(*) AS n, sum(w) AS w, window_end FROM TUMBLE(b, at, INTERVAL '1 hour')"
            await daemon.seams.begin(f"CREATE QUERY q AS {sql}", None)
            await live(daemon)
            feed(daemon, "b", [(NOW + 7_200_000_000, 4, 1)])
            await daemon.runner.wait_drained()
            assert [row[:2] for _, row in rows.of["q"]] == [(3, 7)]

    play(run())


def test_what_the_margin_has_not_looked_at_is_not_done(tmp_path):
    """No row was emitted after the margin, but the rows before it are unknown."""

    async def run():
        async with running(STREAMS, server={"data_dir": tmp_path}) as daemon:
            feed(daemon, "b", [(NOW + second * 1_000_000, 1) for second in range(100)])
            sql = "SELECT count(*) AS n, window_end FROM TUMBLE(b, at, INTERVAL '10 seconds')"
            for name, margin, done in (("q", 1_000_000, False), ("r", None, False)):
                await daemon.seams.begin(f"CREATE QUERY {name} AS {sql}", margin)
                found = await live(daemon, name)
                assert (found.given == 0, found.history_done) == (margin is not None, done)
            await daemon.seams.begin("CREATE QUERY s AS SELECT k FROM b WHERE k > 1", None)
            assert (await live(daemon, "s")).history_done

    play(run())


def test_streams_that_the_server_stamps(tmp_path):
    async def run():
        async with running(STREAMS, server={"data_dir": tmp_path}) as daemon:
            rows = Rows(daemon)
            await daemon.catalog.execute("CREATE QUERY always AS SELECT k, ts FROM i WHERE k > 2")
            some(daemon, 0, 10)
            await daemon.seams.begin("CREATE QUERY q AS SELECT k, ts FROM i WHERE k > 2", None)
            found = await live(daemon)
            some(daemon, 10, 20)
            await daemon.runner.wait_drained()
            below = [row for row in rows.of["always"] if row[0] < found.seam_us]
            assert Counter(below) + Counter(rows.of["q"]) == Counter(rows.of["always"])

    play(run())


def test_what_goes_wrong_leaves_nothing_behind(tmp_path, monkeypatch):
    async def run():
        async with running(STREAMS, server={"data_dir": tmp_path}) as daemon:
            some(daemon, 0, 20)
            await daemon.archive_now("a")
            file = next((tmp_path / "history" / "a").glob("date=*/*.parquet"))
            whole = file.read_bytes()
            file.write_bytes(whole[:100])
            sinks = "CREATE SINK f FROM q WITH (type = 'file', path = 'out.jsonl', format = 'jsonl')"
            await daemon.seams.begin(f"CREATE QUERY q AS {WINDOWS}; {sinks}", None)
            await until(lambda: daemon.seams.look("q").phase == "failed")
            await until(lambda: not daemon.catalog.known.queries)
            found = daemon.seams.look("q")
            assert (found.state, file.name in found.reason) == ("failed", True)
            assert not daemon.catalog.sinks()
            assert not daemon.catalog.catching
            file.write_bytes(whole)
            # Read by another meanwhile, it stays, closed, and keeps nothing.
            await daemon.seams.begin(f"CREATE QUERY q AS {WINDOWS}", None)
            await daemon.catalog.execute("CREATE QUERY r AS SELECT n FROM q")
            await daemon.seams.cancel("q")
            assert {query.name: query.state for query in daemon.queries()} == {"q": "catching up", "r": "running"}
            await daemon.catalog.execute("DROP QUERY r; DROP QUERY q")
            # Cancel another one early.
            await daemon.seams.begin(f"CREATE QUERY q AS {WINDOWS}", None)
            await daemon.seams.cancel("q")
            assert not daemon.engine.queries()
            with pytest.raises(Refuse, match="was not created with its history"):
                daemon.seams.look("q")
            # Held too long.
            monkeypatch.setattr(seams, "HOLD_SECONDS", 0.0)
            await daemon.seams.begin(f"CREATE QUERY q AS {WINDOWS}", None)
            await until(lambda: daemon.seams.look("q").phase == "failed")
            assert "took more than 0 seconds" in daemon.seams.look("q").reason
            await until(lambda: not daemon.catalog.known.queries)

    play(run())


def test_a_server_that_ends_meanwhile_forgets_the_query(tmp_path):
    async def run():
        async with running(STREAMS, server={"data_dir": tmp_path}) as daemon:
            some(daemon, 0, 20)
            await daemon.seams.begin(f"CREATE QUERY q AS {WINDOWS}", None)
        async with running(server={"data_dir": tmp_path}) as daemon:
            assert not daemon.engine.queries()

    play(run())


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("CREATE QUERY q AS SELECT k FROM nope", "no stream or query is called nope"),
        ("CREATE QUERY q AS SELECT k FROM plain", "stream plain has no history: ALTER STREAM plain SET"),
        (
            "CREATE QUERY q AS SELECT k FROM a.late",
            "a.late has no separate archive. Create the query without its history",
        ),
        ("CREATE QUERY q AS SELECT k FROM lazy", "get their time only when an operator needs one"),
        ("CREATE QUERY q AS SELECT k FROM other", "reads other, which has only rows since its own creation"),
        ("CREATE OR REPLACE QUERY other AS SELECT k FROM a", "expected one CREATE QUERY with a new name"),
        ("SELECT k FROM a", "expected one CREATE QUERY with a new name"),
        ("CREATE QUERY q AS SELECT k FROM a; DROP QUERY other", "expected one CREATE QUERY with a new name"),
    ],
)
def test_what_has_no_past(tmp_path, sql, said):
    async def run():
        more = """; CREATE STREAM plain (k BIGINT); CREATE QUERY other AS SELECT k FROM a;
                  CREATE STREAM lazy (k BIGINT) WITH (timestamps = 'latent', history = 'true')"""
        async with running(STREAMS + more, server={"data_dir": tmp_path}) as daemon:
            with pytest.raises(Refuse, match=said):
                await daemon.seams.begin(sql, None)
            assert [query.name for query in daemon.queries()] == ["other"]
            assert not daemon.catalog.catching

    play(run())


@served()
async def test_only_a_live_query_can_be_done(daemon):
    with pytest.raises(Refuse, match="was not created"):
        await daemon.seams.tell("q", None, True)
    with pytest.raises(Refuse, match="is not waiting for its history"):
        await daemon.runner.command(HoldQuery("q"))
    assert json.dumps([to_data(query) for query in daemon.queries()])


async def ask(*arguments):
    status, _, body = await answer(*arguments)
    assert status < 500
    return body


def test_over_http(tmp_path):
    async def run():
        async with running(STREAMS, server={"data_dir": tmp_path}) as daemon:
            some(daemon, 0, 20)
            body = {"sql": f"CREATE QUERY q AS {WINDOWS}", "margin_us": 60_000_000}
            assert (await ask(daemon, "POST", "/api/v1/backfills", body))["state"] == "catching up"
            await live(daemon)
            shown = await ask(daemon, "GET", "/api/v1/queries/q")
            assert shown["backfill"] == await ask(daemon, "GET", "/api/v1/backfills/q")
            told = await ask(daemon, "PUT", "/api/v1/backfills/q", {"history_us": 5})
            assert (told["history_us"], told["state"]) == (5, "catching up")
            assert (await ask(daemon, "PUT", "/api/v1/backfills/q", {"done": True}))["state"] == "caught up"
            await daemon.catalog.execute("ALTER QUERY q RENAME TO p")
            assert (await ask(daemon, "GET", "/api/v1/backfills/p"))["query"] == "p"
            await daemon.catalog.execute("ALTER QUERY p RENAME TO q")
            assert await ask(daemon, "DELETE", "/api/v1/backfills/q") == {"query": "q", "cancelled": False}
            assert (await ask(daemon, "GET", "/api/v1/backfills/q"))["code"] == "unknown_backfill"
            assert (await ask(daemon, "GET", "/api/v1/queries/q"))["state"] == "running"
            assert (await ask(daemon, "GET", "/api/v1/queries/q/explain?analyze=true"))["query"] == "q"
            assert (await ask(daemon, "GET", "/api/v1/components/a/graph?format=mermaid"))["text"]
            assert (await ask(daemon, "POST", "/api/v1/streams/a/archive"))["archive"]["waiting_rows"] == 0

    play(run())


def test_a_seam_reaches_the_standby(tmp_path):
    """It is defined after the standby has copied the data directory."""

    async def until_promoted():
        async with running(STREAMS, server={"data_dir": tmp_path / "one"}) as primary:
            some(primary, 0, 300)
            await primary.runner.wait_drained()
            follow = {"follow": f"http://{primary.admin}"}
            async with running(server={"data_dir": tmp_path / "two"}, standby=follow) as standby:
                await primary.seams.begin(f"CREATE QUERY q AS {WINDOWS}", None, "/past")
                found = await live(primary)
                assert found.given > 0
                await until(lambda: standby.seams.kept() == primary.seams.kept() != {})
                assert (await primary.seams.tell("q", found.seam_us, False)).history_us == found.seam_us
                await until(lambda: standby.seams.kept() == primary.seams.kept())
                assert standby.seams.look("q") == primary.seams.look("q")
                await primary.catalog.execute("ALTER QUERY q RENAME TO r")
                await until(lambda: standby.seams.kept().keys() == {"r"})
                await standby.promote(force=True)
                assert (await standby.seams.tell("r", None, True)).state == "caught up"

    async def again():
        async with running(server={"data_dir": tmp_path / "two"}) as daemon:
            assert daemon.seams.look("r").history_done

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with pytest.raises(Superseded):  # the old primary, in the end
        play(until_promoted())
    play(again())
