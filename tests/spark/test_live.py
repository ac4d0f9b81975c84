"""The live server over TCP, its archive, and Spark: a sink has what Spark computes again, late tuples and all."""

from __future__ import annotations

import json
import random

import pytest

from tests.cli.conftest import Server
from tests.spark.test_spark import cli_at

SECOND = 1_000_000
BEGIN = 1_767_225_600_000_000
STREAMS = """
CREATE STREAM packets (ts TIMESTAMP, src BIGINT, len BIGINT) WITH (time = 'ts', disorder = '2 s', history = 'true');
CREATE STREAM logins (who TEXT) WITH (history = 'true');
"""
QUERIES = {
    "windows": "SELECT src, count(*) AS n, first(len) AS f, window_end FROM TUMBLE(packets, ts, INTERVAL '10 s') "
    "GROUP BY src",
    "pairs": "SELECT a.ts, a.src, b.len FROM packets a JOIN packets b ON a.src = b.src "
    "AND b.ts BETWEEN a.ts - INTERVAL '1 s' AND a.ts + INTERVAL '1 s' WHERE a.len < b.len",
    "totals": "SELECT src, sum(len) AS bytes FROM packets GROUP BY src",
    "missed": "SELECT src, late_by_us, ts FROM packets.late",
    "seen": "SELECT who, ts FROM logins WHERE who <> 'c'",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with history that has taken in tuples, some of them late, and has written its queries' rows."""
    folder = tmp_path_factory.mktemp("live")
    rng = random.Random(5)
    lines = []
    for number in range(1_200):
        late = rng.choice([0] * 9 + [3, 8])
        ts = BEGIN + (number * SECOND) // 10 - rng.randrange(SECOND) - late * SECOND
        lines.append(json.dumps({"ts": ts, "src": rng.randrange(4), "len": rng.randrange(50)}))
    with Server(folder / "data") as running:
        statements = [f"CREATE QUERY {name} AS {query}" for name, query in QUERIES.items()]
        sinks = [f"CREATE SINK to_{name} FROM {name} WITH (type = 'file', path = '{name}.jsonl')" for name in QUERIES]
        assert running.millrace("sql", STREAMS + ";".join([*statements, *sinks])).returncode == 0
        assert running.millrace("feed", "packets", stdin="\n".join(lines) + "\n").returncode == 0
        who = "\n".join(json.dumps({"who": rng.choice("abc")}) for _ in range(50)) + "\n"
        assert running.millrace("feed", "logins", stdin=who).returncode == 0
        yield running


@pytest.mark.parametrize("query", QUERIES)
def test_spark_computes_what_the_server_gave(spark, server, query):
    assert server.json("stream", "show", "packets")["late"] > 20
    done = cli_at(server.admin, "verify", query, "--tasks", "2", "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    told = json.loads(done.stdout)
    assert told["equal"]
    assert told["recomputed"] > (3 if query == "totals" else 20)
