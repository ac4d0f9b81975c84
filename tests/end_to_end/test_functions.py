"""Functions of a configured module in `millrace run` and in a server, which restarts with them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Server, clean_environment, millrace
from tests.warm.start import warm

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "functions"
PAGE = (ROOT / "docs" / "functions.md").read_text("utf-8")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder with the example's files."""
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*more):
    return subprocess.run(
        [*warm(), "run", "trips.sql", "--input", "trips=trips.jsonl", *more],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_example_prints_the_output_of_the_page(here):
    done = run("--functions", "my_functions")
    shown = re.search(r"^\$ millrace run trips.sql.*?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout == shown.group(1)


def test_a_function_that_raises_is_reported_at_the_end(here):
    sql = (
        (here / "trips.sql").read_text().replace("weighted_mean(fahrenheit, 1)", "weighted_mean(fahrenheit, lat - 49)")
    )
    (here / "trips.sql").write_text(sql)
    done = run("--functions", "my_functions")
    assert done.returncode == 0
    assert [json.loads(line)["row"]["car"] for line in done.stdout.splitlines() if "routes" in line] == [
        "NCD2",
        "unknown",
    ]
    assert re.search(
        r"routes.aggregate1: 1 row dropped .*: weighted_mean\(\) failed: ValueError: expected", done.stderr
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [("serve",), ("config", "check"), ("run", "trips.sql")])
def test_a_module_that_cannot_be_used_is_exit_78(here, command):
    (here / "broken.py").write_text("import millrace.functions\n1 / 0\n")
    for name, words in (
        ("nowhere", "the module nowhere does not exist"),
        ("broken", "cannot import broken: ZeroDivisionError: division by zero"),
    ):
        done = millrace(*command, "--functions", name)
        assert done.returncode == 78
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert words in done.stderr
    done = millrace(*command, MILLRACE_SERVER__FUNCTIONS="nowhere")
    assert done.returncode == 78


def test_a_server_with_functions(here):
    (here / "millrace.toml").write_text('[server]\nfunctions = "my_functions"\n')
    data = here / "data"
    data.mkdir()
    flags = ("--config", str(here / "millrace.toml"))
    rows = [
        {"ts": "2026-01-01T00:00:00Z", "k": 1, "x": 50.0, "w": 1.0},
        {"ts": "2026-01-01T00:00:01Z", "k": 2, "x": 41.0, "w": -1.0},
        {"ts": "2026-01-01T00:00:02Z", "k": 1, "x": None, "w": 1.0},
        {"ts": "2026-01-01T00:00:03Z", "k": 1, "x": 32.0, "w": 3.0},
        {"ts": "2026-01-01T00:01:03Z", "k": 1, "x": 32.0, "w": 3.0},
    ]
    sql = """CREATE STREAM s (ts TIMESTAMP, k BIGINT, x DOUBLE, w DOUBLE) WITH (time = 'ts');
             CREATE QUERY warm AS SELECT celsius(x) AS c FROM s WHERE celsius(x) > 0;
             CREATE QUERY means AS SELECT k, weighted_mean(x, w) AS mean FROM TUMBLE(s, ts, '1 min') GROUP BY k"""
    with Server(data, *flags) as server:
        assert server.millrace("sql", sql).returncode == 0
        assert "weighted_mean(x, w)" in server.millrace("explain", "means").stdout
        fed = server.millrace("feed", "s", stdin="".join(json.dumps(row) + "\n" for row in rows))
        assert fed.returncode == 0, fed.stderr
        tail = server.millrace("tail", "warm", "--from", "0", "--limit", "2")
        assert [json.loads(line)["c"] for line in tail.stdout.splitlines()] == [10.0, pytest.approx(5.0)]
        tail = server.millrace("tail", "means", "--from", "0", "--limit", "1")
        assert json.loads(tail.stdout) == {"k": 1, "mean": 36.5}
        shown = server.json("operator", "show", "means.aggregate1")
        assert shown["errors"] == 1
        assert shown["last_error"] == "weighted_mean() failed: ValueError: expected a weight of at least 0, got -1.0"
        said = server.millrace("sql", "CREATE QUERY bad AS SELECT celsius(k, x) FROM s")
        assert said.returncode == 1
        assert "celsius: expected 1 argument, got 2" in said.stderr
        code, _, err = server.end()
        assert code == 0
        assert "Traceback" not in err
        assert "expected a weight of at least 0" in err
    with Server(data, *flags) as again:
        assert [query["name"] for query in again.json("query", "list")] == ["warm", "means"]
        assert again.end()[0] == 0
    done = millrace("serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir", str(data))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "aggregate weighted_mean(double, double) does not exist; is its module configured?" in done.stderr


DICE = """
import secrets
from millrace.functions import function

@function("bigint", returns="bigint")
def same(k):
    return k
"""
ROLL = """
@function("bigint", returns="bigint", deterministic=False)
def roll(k):
    return secrets.randbelow(10**15)
"""


def tail(server, query, count):
    done = server.millrace("tail", query, "--from", "0", "--limit", str(count))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def kill(server, data):
    server.process.kill()
    server.process.communicate()
    (data / "addresses.json").unlink()


def test_a_killed_server_has_the_results_that_its_function_returned(here):
    (here / "dice.py").write_text(DICE + ROLL)
    (here / "millrace.toml").write_text('[server]\nfunctions = "dice"\n')
    data = here / "data"
    data.mkdir()
    flags = ("--config", str(here / "millrace.toml"))
    sql = """CREATE STREAM s (k BIGINT);
             CREATE QUERY rolls AS SELECT same(k) AS k, roll(k) AS r FROM s;
             CREATE QUERY totals WITH (emit = 'every') AS SELECT k % 2 AS g, sum(r) AS r, count(*) AS n FROM rolls
               GROUP BY k % 2"""

    def feed(server, first, end):
        fed = server.millrace("feed", "s", stdin="".join(json.dumps({"k": k}) + "\n" for k in range(first, end)))
        assert fed.returncode == 0, fed.stderr

    with Server(data, *flags) as server:
        assert server.millrace("sql", sql).returncode == 0
        feed(server, 0, 40)
        delivered, totals = tail(server, "rolls", 40), tail(server, "totals", 40)
        kill(server, data)
    with Server(data, *flags) as server:
        assert tail(server, "rolls", 40) == delivered
        assert tail(server, "totals", 40) == totals
        feed(server, 40, 50)
        delivered, totals = tail(server, "rolls", 50), tail(server, "totals", 50)
        expected = {g: [sum(row["r"] for row in delivered if row["k"] % 2 == g), 25] for g in (0, 1)}
        assert {row["g"]: [row["r"], row["n"]] for row in totals} == expected
        kill(server, data)
    (here / "dice.py").write_text(DICE)  # the replay needs no function that has gone, but the query does
    serve = ("serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir", str(data), *flags)
    done = millrace(*serve)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "query rolls: function roll(bigint) does not exist; is its module configured?" in done.stderr
    (here / "dice.py").write_text(DICE + ROLL)
    with Server(data, *flags) as server:
        assert tail(server, "rolls", 50) == delivered
        assert server.millrace("sql", "DROP QUERY totals; DROP QUERY rolls").returncode == 0
        kill(server, data)
    (here / "dice.py").write_text(DICE)
    with Server(data, *flags) as server:
        assert server.json("query", "list") == []
        assert server.end()[0] == 0
