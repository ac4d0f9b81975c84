"""A query that starts with its history: Spark's rows before the seam and the server's later rows are one sequence."""

from __future__ import annotations

import json
import random
from pathlib import Path

from millrace.backfill.layout import OWN_TIME
from millrace.backfill.outputs import MANIFEST
from millrace.backfill.verifying import read_backfill
from tests.cli.conftest import Server
from tests.comparison import same_rows
from tests.running import run_script
from tests.server.harness import forget_journal
from tests.spark.test_spark import cli_at, text

SECOND = 1_000_000
BEGIN = 1_767_225_600_000_000
STREAM = "CREATE STREAM packets (ts TIMESTAMP, src BIGINT, len BIGINT) WITH (time = 'ts', history = 'true');"
QUERY = """CREATE QUERY talkers AS SELECT src, count(*) AS n, sum(len) AS bytes, window_end
FROM HOP(packets, ts, INTERVAL '5 seconds', INTERVAL '20 seconds') GROUP BY src, window_end;"""


def lines(first: int, last: int) -> list[str]:
    rng = random.Random(first)
    return [
        json.dumps({"ts": BEGIN + number * SECOND // 4, "src": rng.randrange(4), "len": rng.randrange(100)})
        for number in range(first, last)
    ]


def test_history_and_live_rows_are_one_sequence(spark, tmp_path):
    before, after = lines(0, 800), lines(800, 1_200)
    sink = tmp_path / "data/sinks" / "live.jsonl"
    sql = text(tmp_path, QUERY + f"CREATE SINK s FROM talkers WITH (type = 'file', path = '{sink.name}');")
    out = tmp_path / "out"
    with Server(tmp_path / "data") as server:
        assert server.millrace("sql", STREAM).returncode == 0
        assert server.millrace("feed", "packets", stdin="\n".join(before) + "\n").returncode == 0
        flags = ("start", "--sql", sql, "--then-live", "--out", str(out), "--tasks", "2")
        done = cli_at(server.admin, *flags)
        assert done.exit_code == 0, (done.output, done.exception)
        assert "talkers is caught up" in done.output
        assert server.json("query", "show", "talkers")["backfill"]["state"] == "caught up"
        again = cli_at(server.admin, *flags)
        assert "this backfill is already done" in again.output, (again.output, again.exception)
        other = cli_at(server.admin, *flags[:-4], "--out", str(tmp_path / "second"))
        assert f"before its seam go to {out}, not to {tmp_path / 'second'}" in str(other.exception)
        assert not (tmp_path / "second").exists()
        assert server.millrace("feed", "packets", stdin="\n".join(after) + "\n").returncode == 0
        # The rows from history and of the sink, up to the open windows: no span has to be set.
        assert told(cli_at(server.admin, "verify", "talkers", "--json")) == (True, None)
        code, _, said = server.end()
        assert code == 0, said
    written = sink.read_text()
    with Server(tmp_path / "data") as server:
        # The same command after a restart of the server: finished tasks stay, and the others run.
        again = cli_at(server.admin, *flags)
        assert again.exit_code == 0, (again.output, again.exception)
        assert "this backfill is already done" in again.output
        assert "talkers is caught up" in again.output
        (out / MANIFEST).unlink()
        (out / "_tasks" / "00001.json").unlink()
        again = cli_at(server.admin, *flags)
        assert again.exit_code == 0, (again.output, again.exception)
        assert "continuing: 1 of 2 tasks are done" in again.output
        assert "later rows may still be missing" not in again.output
        # The query was created by hand, so the end of its history is unknown.
        assert server.millrace("sql", QUERY.replace("QUERY talkers", "QUERY byhand")).returncode == 0
        (tmp_path / "byhand.sql").write_text(QUERY.replace("QUERY talkers", "QUERY byhand"))
        by_hand = ("start", "--sql", str(tmp_path / "byhand.sql"))
        refused = cli_at(server.admin, *by_hand, "--then-live", "--out", str(tmp_path / "third"))
        assert "byhand already exists and was not created with its history" in str(refused.exception)
        assert not (tmp_path / "third").exists()
        assert server.end()[0] == 0
    assert sink.read_text() == written
    history = [{name: value for name, value in row.items() if name != OWN_TIME} for row in read_backfill(str(out))]
    live = [json.loads(line) for line in sink.read_text().splitlines()]
    (tmp_path / "all.jsonl").write_text("\n".join([*before, *after]) + "\n")
    inputs = [("packets", str(tmp_path / "all.jsonl"))]
    plain_sql = STREAM.replace(", history = 'true'", "") + QUERY
    right = run_script(plain_sql, tmp_path, inputs=inputs, close=False, iso=True).rows["talkers"]
    assert history
    assert live
    assert same_rows([*map(plain, history), *live], right) is None


ROWS_STREAM = "CREATE STREAM t (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', history = 'true', disorder = '2 seconds')"


def rows_out_of_order(first: int, last: int) -> list[str]:
    """Adjacent pairs are swapped: on time, and out of order."""
    return [json.dumps({"ts": BEGIN + (at ^ 1) * SECOND, "k": at}) for at in range(first, last)]


def test_windows_of_rows_go_on_in_the_order_of_arrival(spark, tmp_path):
    sink = tmp_path / "data/sinks" / "live.jsonl"
    query = "CREATE QUERY q AS SELECT sum(k) AS s, max(ts) AS at FROM t [ROWS 3 SLIDE 2];"
    sql = text(tmp_path, query + f"CREATE SINK s FROM q WITH (type = 'file', path = '{sink.name}');")
    with Server(tmp_path / "data") as server:
        assert server.millrace("sql", ROWS_STREAM).returncode == 0
        feed_rows(server, 0, 41)
        assert server.end()[0] == 0
    forget_journal(tmp_path / "data")
    with Server(tmp_path / "data") as server:
        # No tuple has arrived since the start: no time is known, so the server has all rows.
        nothing = text_of(tmp_path, query.replace("QUERY q", "QUERY early"))
        done = cli_at(server.admin, "start", "--sql", nothing, "--then-live", "--out", str(tmp_path / "none"))
        assert done.exit_code == 0, (done.output, done.exception)
        assert "early is live and has emitted all its rows: no rows to compute from history" in done.output
        assert server.json("query", "show", "early")["backfill"]["state"] == "caught up"
        feed_rows(server, 41, 61)
        done = cli_at(server.admin, "start", "--sql", sql, "--then-live", "--out", str(tmp_path / "out"))
        assert done.exit_code == 0, (done.output, done.exception)
        assert "q is caught up" in done.output
        feed_rows(server, 61, 80)
        verified = cli_at(server.admin, "verify", "q", "--json")
        assert verified.exit_code == 0, (verified.output, verified.exception)
        assert json.loads(verified.stdout)["recomputed"] > 30
        assert server.end()[0] == 0
    given = [row["s"] for row in read_backfill(str(tmp_path / "out"))]
    given += [json.loads(line)["s"] for line in sink.read_text().splitlines()]
    full = [sum(range(max(end - 3, 0), end)) for end in range(1, 80, 2)]
    assert sorted(given)[: len(full) - 1] == full[:-1]  # the end of the stream may have closed the last one


def feed_rows(server: Server, first: int, last: int) -> None:
    done = server.millrace("feed", "t", stdin="\n".join(rows_out_of_order(first, last)) + "\n")
    assert done.returncode == 0, done


def text_of(folder: Path, sql: str) -> str:
    path = folder / "early.sql"
    path.write_text(sql)
    return str(path)


def told(done) -> tuple[bool, int | None]:
    """Whether a comparison found no difference, and the start of its span."""
    assert done.stdout, (done.output, done.exception)
    found = json.loads(done.stdout)
    assert found["recomputed"] > 100
    assert found["to_us"] is not None
    return found["equal"], found["from_us"]


def plain(row: dict) -> dict:
    from millrace.protocol import format_timestamp

    return {**row, "window_end": format_timestamp(row["window_end"])}
