"""Rows and sinks over kills of a real server: `tail --from` reaches back, and files have every row once."""

import json
import random
import signal

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Server
from tests.patience import wait_until

SQL = "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s WHERE k % 2 = 0"


def feed(server, first, count):
    rows = "".join(json.dumps({"k": k}) + "\n" for k in range(first, first + count))
    assert server.millrace("feed", "s", stdin=rows).returncode == 0


def kill(server, data):
    server.process.send_signal(signal.SIGKILL)
    server.process.communicate()
    (data / "addresses.json").unlink()


def emitted(server, rows):
    wait_until(lambda: server.json("query", "show", "q")["next_sequence"] == rows)
    wait_until(lambda: server.json("sink", "show", "f")["held"] == 0)


def test_tail_reaches_back_over_kills(tmp_path):
    data, fed, histories = tmp_path / "data", 0, set()
    data.mkdir()
    rng = random.Random(1)
    for life in range(4):
        with Server(data) as server:
            if not life:
                assert server.millrace("sql", SQL).returncode == 0
            count = rng.randrange(100, 400)
            feed(server, fed, count)
            fed += count
            expected = list(range(0, fed, 2))
            for first in (0, rng.randrange(len(expected))):
                limit = str(len(expected) - first)
                done = server.millrace("tail", "q", "--from", str(first), "--limit", limit)
                assert [json.loads(line)["k"] for line in done.stdout.splitlines()] == expected[first:]
            histories.add(server.json("query", "show", "q")["history"])
            kill(server, data)
    assert len(histories) == 1


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_sinks_have_every_row_once_over_kills(tmp_path, ending):
    data, fed = tmp_path / "data", 0
    data.mkdir()
    rng = random.Random(ending)
    more = ", rotate_rows = 50" if ending == "parquet" else ""
    for life in range(5):
        with Server(data) as server:
            if not life:
                sink = f"; CREATE SINK f FROM q WITH (type = 'file', path = 'out.{ending}'{more})"
                assert server.millrace("sql", SQL + sink).returncode == 0
            count = rng.randrange(100, 400)
            feed(server, fed, count)
            fed += count
            if life < 4:
                kill(server, data)
            else:
                emitted(server, (fed + 1) // 2)
                assert server.end()[0] == 0
    path = data / f"sinks/out.{ending}"
    if ending == "parquet":
        found = [k for file in sorted(path.glob("*.parquet")) for k in pq.read_table(file)["k"].to_pylist()]
    elif ending == "csv":
        found = [int(line) for line in path.read_text().splitlines()[1:]]
    else:
        found = [json.loads(line)["k"] for line in path.read_text().splitlines()]
    assert found == list(range(0, fed, 2))
