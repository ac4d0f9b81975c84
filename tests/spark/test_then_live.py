"""A query that begins with its history: Spark's rows below the seam and the server's from it on are one sequence."""

from __future__ import annotations

import json
import random

from millrace.backfill.layout import OWN_TIME
from millrace.backfill.verifying import read_backfill
from tests.cli.conftest import Server
from tests.comparison import same_rows
from tests.running import run_script
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
    sink = tmp_path / "live.jsonl"
    sql = text(tmp_path, QUERY + f"CREATE SINK s FROM talkers WITH (type = 'file', path = '{sink}');")
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
        assert "this backfill is done already" in again.output, (again.output, again.exception)
        assert server.millrace("feed", "packets", stdin="\n".join(after) + "\n").returncode == 0
        code, _, said = server.end()
        assert code == 0, said
    history = [{name: value for name, value in row.items() if name != OWN_TIME} for row in read_backfill(str(out))]
    live = [json.loads(line) for line in sink.read_text().splitlines()]
    (tmp_path / "all.jsonl").write_text("\n".join([*before, *after]) + "\n")
    inputs = [("packets", str(tmp_path / "all.jsonl"))]
    plain_sql = STREAM.replace(", history = 'true'", "") + QUERY
    right = run_script(plain_sql, tmp_path, inputs=inputs, close=False, iso=True).rows["talkers"]
    assert history
    assert live
    assert same_rows([*map(plain, history), *live], right) is None


def plain(row: dict) -> dict:
    from millrace.protocol import format_timestamp

    return {**row, "window_end": format_timestamp(row["window_end"])}
