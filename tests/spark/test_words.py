"""What a live job says before and while it runs, what it exports, and where buckets go."""

from __future__ import annotations

import json
import urllib.request
from random import Random

import pytest
from typer.testing import CliRunner

from millrace.cli.main import app
from millrace.protocol import Refuse
from millrace.spark.metrics import Metrics, parse_place
from millrace.spark.placing import place
from millrace.spark.records import CommitRecord, PartProgress, RowFile, StatePlace, Totals
from millrace.spark.words import epoch_line, explain, short, span
from tests.spark.sparkloop import job_of
from tests.spark.test_epochs import BUCKETS, SQL, epochs_of

STREAM = "CREATE STREAM packets (ts TIMESTAMP, src TEXT, bytes BIGINT) WITH (time = 'ts', disorder = '2 s'{more});\n"
QUERIES = {
    "SELECT src, sum(bytes) AS n FROM TUMBLE(packets, ts, INTERVAL '10 s') GROUP BY src": (
        "by key src, 64 buckets; state: rows of 10 s + disorder 2 s; equality rows"
    ),
    "SELECT src FROM packets WHERE bytes > 3": "rows go anywhere, 64 buckets; state: none; equality rows",
    "SELECT a.src FROM packets a JOIN packets b ON a.src = b.src AND a.ts BETWEEN b.ts AND b.ts + INTERVAL '1 min'": (
        "by key src, 64 buckets; state: rows of 1 min + disorder 2 s; equality rows"
    ),
    "SELECT count(*) AS n FROM packets": (
        "one bucket: all rows must meet, because of q.aggregate1: it has no GROUP BY; state: "
    ),
}


@pytest.mark.parametrize("query", QUERIES)
def test_explain(query):
    explained = explain(STREAM.format(more="") + f"CREATE QUERY q AS {query};")
    assert explained.runs
    assert explained.lines[0].startswith(f"q: {QUERIES[query]}")
    assert "note: stream packets has no max_skew: a part of it that is silent" in explained.lines[1]
    assert len(explain(STREAM.format(more=", max_skew = '1 s'") + f"CREATE QUERY q AS {query};").lines) == 1


def test_explain_says_why_a_query_cannot_run(tmp_path):
    """And how the others would; the exit code is 1."""
    path = tmp_path / "q.sql"
    path.write_text(
        STREAM.format(more="") + "CREATE STREAM ticks (n BIGINT) WITH (timestamps = 'latent');\n"
        "CREATE QUERY a AS SELECT n FROM ticks;\n"
        "CREATE QUERY b AS SELECT src FROM packets;"
    )
    done = CliRunner().invoke(app, ["spark", "explain", str(path)])
    assert done.exit_code == 1
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith("query a cannot run here: its result depends on the load of the engine")
    assert second.startswith("b: rows go anywhere")


def test_the_line_of_an_epoch():
    at_us = 1_767_225_600_000_000
    commit = CommitRecord(
        812,
        "rows",
        at_us,
        {},
        [],
        {},
        {},
        {"packets": at_us - 2_100_000, "owners": at_us},
        Totals({"packets": 1_890_000, "owners": 10_000}, {}, {"packets": 41}, {}),
        Totals(),
        {},
        {(0, 16): 0.1, (0, 17): 0.2, (1, 0): 0.4},
        {"restore": 0.05, "step": 0.25, "write": 0.04, "save": 0.1, "publish": 0.1, "whole": 1.14},
    )
    assert epoch_line(commit) == (
        "epoch 812: 1.9 M rows, 1.1 s (restore 0.1, step 0.2, write 0.0, save 0.1, publish 0.1, read and Spark 0.6), "
        "mark 2025-12-31T23:59:57.900000Z (2.1 s behind), slowest bucket 17 (1.3 x mean), 41 late"
    )


def test_numbers_and_durations_are_short():
    assert [short(number) for number in (0, 9_999, 41_200, 1_900_000, 12_345_678, 3_000_000_000)] == [
        "0",
        "9999",
        "41.2 k",
        "1.9 M",
        "12.3 M",
        "3.0 G",
    ]
    assert [span(us) for us in (0, 10_000_000, 1_500, 120_000_000, 7_200_000_000)] == [
        "0 s",
        "10 s",
        "0.0015 s",
        "2 min",
        "2 h",
    ]


# -- records -----------------------------------------------------------------------------------------------------------


def test_a_record_is_the_same_after_json():
    commit = CommitRecord(
        7,
        "end",
        9,
        {(0, 0): StatePlace("a", 0, 3, 9, 5), (1, 2): StatePlace("b", 3, 4, 8, 6)},
        [RowFile("q", 1, "f", 3, [(0, 1), (2, 2)])],
        {"q": 40},
        {"q": "file:/out"},
        {"s": 3},
        Totals({"s": 1}, {"q": 3}, {"s": 2}, {"q.join1": (2, "division by zero")}),
        Totals({"s": 9}, {"q": 43}, {"s": 2}, {}),
        {"s": {"s-0": PartProgress(None, 4, 0)}},
        {(0, 0): 0.25, (1, 2): 0.5},
        {"step": 0.75},
    )
    assert CommitRecord.from_data(json.loads(json.dumps(commit.to_data()))) == commit


# -- where buckets go --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_buckets_are_spread_by_their_time(seed):
    """Each bucket is placed once; no task has more than the mean and one bucket (the bound of the greedy order)."""
    rng = Random(seed)
    units = [(group, bucket) for group in range(rng.randint(1, 3)) for bucket in range(rng.randint(1, 40))]
    seconds = {unit: rng.expovariate(1) for unit in units if rng.random() < 0.9}
    tasks = rng.randint(1, 9)
    placed = place(units, tasks, seconds)
    assert sorted(unit for own in placed for unit in own) == units
    loads = [sum(seconds.get(unit, 0.0) for unit in own) for own in placed]
    assert max(loads) <= sum(loads) / tasks + max(seconds.values(), default=0)
    without = [len(own) for own in place(units, tasks, {})]
    assert max(without) - min(without) <= 1


def test_buckets_stay_unless_moving_them_pays():
    units = [(0, bucket) for bucket in range(4)]
    before = [[(0, 0), (0, 2)], [(0, 1), (0, 3)]]
    even = dict.fromkeys(units, 1.0)
    assert place(units, 2, even | {(0, 0): 1.1}, before) == before
    moved = place(units, 2, even | {(0, 0): 9.0, (0, 2): 9.0}, before)
    assert sorted(len({(0, 0), (0, 2)} & set(own)) for own in moved) == [1, 1]
    assert len(place(units, 3, even, before)) == 3
    assert place([*units, (1, 0)], 2, even, before) != before


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_metrics_follow_the_commits(tmp_path):
    job = job_of(tmp_path, SQL, epochs_of(1), BUCKETS)
    with Metrics("127.0.0.1:0") as metrics:
        job.run()
        for commit in job.reports:
            metrics.observe(commit)
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    totals = job.checkpoint.last().totals
    assert float(values["millrace_spark_epoch"]) == len(job.epochs) - 1
    assert float(values['millrace_spark_rows_read_total{stream="packets"}']) == totals.input["packets"]
    assert float(values['millrace_spark_late_total{stream="packets"}']) == totals.late["packets"]
    assert float(values['millrace_spark_rows_emitted_total{query="large"}']) == totals.rows["large"]
    assert float(values["millrace_spark_bucket_skew"]) >= 1
    assert float(values["millrace_spark_parts_behind"]) in (0, 1)


def test_where_metrics_are_served():
    assert parse_place("9100") == ("127.0.0.1", 9100)
    assert parse_place("0.0.0.0:9100") == ("0.0.0.0", 9100)
    for text in ("", "x", "host:", "host:70000"):
        with pytest.raises(Refuse, match="expected PORT or HOST:PORT"):
            parse_place(text)
    with Metrics("127.0.0.1:0") as first, pytest.raises(Refuse, match="cannot listen there"):
        Metrics(f"127.0.0.1:{first.port}").__enter__()
