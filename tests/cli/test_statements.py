"""SQL on the command line: a file applied twice, INSERT, SHOW, DESCRIBE, and SELECT until Ctrl-C."""

import json
import re
import signal
import subprocess

import pytest

from tests.cli.conftest import Server, clean_environment
from tests.patience import wait_until
from tests.warm.start import warm

FILE = """CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts');
CREATE QUERY q AS SELECT ts, k FROM s WHERE k > 0;
CREATE SINK out FROM q WITH (type = 'stdout');
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "all.sql").write_text(FILE)
    with Server(folder) as server:
        server.folder = folder
        yield server


def test_a_file_applied_twice(server):
    file = str(server.folder / "all.sql")
    first = server.millrace("apply", file)
    assert first.returncode == 0, first
    assert "create stream s" in first.stderr
    again = server.millrace("apply", file)
    assert again.returncode == 0
    assert again.stderr.splitlines() == [
        "unchanged: stream s exists with this definition",
        "unchanged: query q exists with this definition",
        "unchanged: sink out exists with this definition",
        "nothing to change: 1 stream, 1 query, 1 sink exist as the file defines",
    ]
    planned = server.millrace("apply", "--plan", file)
    assert planned.returncode == 0
    assert "nothing to change" in planned.stderr
    assert all(told["unchanged"] for told in server.json("apply", file)["statements"])
    (server.folder / "other.sql").write_text("CREATE QUERY q AS SELECT ts FROM s")
    refused = server.millrace("apply", str(server.folder / "other.sql"))
    assert refused.returncode != 0
    assert "CREATE OR REPLACE QUERY replaces it" in refused.stderr


def test_the_difference_from_a_file(tmp_path):
    file, data = tmp_path / "all.sql", tmp_path / "data"
    data.mkdir()
    file.write_text(FILE)
    with Server(data) as server:
        server.millrace("apply", str(file))
        same = server.millrace("diff", str(file))
        assert (same.returncode, same.stdout, same.stderr) == (0, "", "")
        file.write_text(FILE.replace("k > 0", "k > 1").replace("SINK out", "SINK other") + "CREATE STREAM t (k BIGINT)")
        differs = server.millrace("diff", str(file))
        assert differs.returncode == 1
        signed = [line for line in differs.stdout.splitlines() if line[0] in "+-~"]
        assert signed == ["- sink out", "+ stream t", "~ query q", "+ sink other"]
        assert "    -CREATE QUERY q AS SELECT ts, k FROM s WHERE k > 0" in differs.stdout
        assert server.millrace("apply", "--prune", "--plan", str(file)).stderr.startswith("would drop sink out\n")
        assert server.millrace("apply", "--prune", str(file)).returncode == 0
        assert server.millrace("diff", str(file)).returncode == 0
        file.write_text("CREATE")
        wrong = server.millrace("diff", str(file))
        assert wrong.returncode == 2
        assert wrong.stderr.startswith("millrace: line 1")


def test_insert_show_and_describe(server):
    server.millrace("apply", str(server.folder / "all.sql"))
    done = server.millrace("sql", "INSERT INTO s VALUES ('2026-01-01', 1), ('2026-01-02', 2)")
    assert done.stderr == "insert 2 rows into s\n"
    late = server.millrace("sql", "INSERT INTO s VALUES ('2025-01-01', 1)")
    assert late.stderr == "insert 1 row into s, 1 of them late\n"
    assert server.millrace("sql", "SHOW QUERIES").stdout == server.millrace("query", "list").stdout
    assert server.millrace("sql", "DESCRIBE s").stdout.splitlines()[:3] == [
        "column  type       null",
        "ts      timestamp  not null",
        "k       bigint",
    ]
    assert "CREATE QUERY q AS" in server.millrace("sql", "SHOW CREATE QUERY q").stdout
    assert server.millrace("sql", "EXPLAIN q").stdout == server.millrace("explain", "q").stdout
    assert server.json("sql", "DESCRIBE q")["statements"][0]["columns"][1]["name"] == "k"
    refused = server.millrace("sql", "INSERT INTO s VALUES ('2026-01-01', 'x')")
    assert refused.returncode != 0
    assert "column k: expected bigint, got the text 'x'" in refused.stderr
    assert "^" in refused.stderr


def temporary(server):
    return [query["name"] for query in server.json("query", "list") if query["temporary"]]


@pytest.mark.parametrize(("way", "day"), [(signal.SIGINT, "2026-02-01"), (signal.SIGKILL, "2026-02-02")])
def test_a_select_is_read_until_its_reader_leaves(server, way, day):
    server.millrace("apply", str(server.folder / "all.sql"))
    reader = subprocess.Popen(
        [*warm(), "sql", "SELECT k FROM s WHERE k > 5"],
        env=clean_environment(MILLRACE_ADMIN=server.admin),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with reader:
        assert reader.stderr is not None
        assert reader.stdout is not None
        assert "Ctrl-C ends it" in reader.stderr.readline()
        (name,) = temporary(server)
        assert "running, temporary" in server.millrace("query", "list").stdout
        assert name not in server.millrace("export").stdout
        described = server.millrace("sql", f"DESCRIBE {name}")
        assert (described.returncode, described.stderr) == (0, "")
        assert described.stdout.split("\n\n")[1].split() == ["reads", "s", "temporary", "yes"]
        server.millrace("sql", f"INSERT INTO s VALUES ('{day}', 5), ('{day}', 6)")
        assert json.loads(reader.stdout.readline()) == {"k": 6}
        reader.send_signal(way)
        assert reader.wait() == (0 if way is signal.SIGINT else -signal.SIGKILL)
    wait_until(lambda: temporary(server) == [])


def test_limit_ends_a_select(server):
    server.millrace("apply", str(server.folder / "all.sql"))
    with subprocess.Popen(
        [*warm(), "sql", "--json", "SELECT k FROM s LIMIT 2"],
        env=clean_environment(MILLRACE_ADMIN=server.admin),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stderr is not None
        assert reader.stdout is not None
        assert "Ctrl-C" in reader.stderr.readline()
        server.millrace("sql", "INSERT INTO s VALUES ('2026-03-01', 5), ('2026-03-01', 6), ('2026-03-01', 7)")
        rows = [json.loads(line) for line in reader.stdout]
        assert [row["row"] for row in rows] == [{"k": 5}, {"k": 6}]
        assert reader.wait() == 0
    wait_until(lambda: temporary(server) == [])
    refused = server.millrace("sql", "SELECT kk FROM s")
    assert refused.returncode != 0
    assert "did you mean k?" in refused.stderr


def test_a_preview_prints_rows_and_their_price(server):
    server.millrace("sql", "CREATE STREAM p (k BIGINT)")
    text = "CREATE QUERY double AS SELECT k * 2 AS double FROM p"
    first = server.millrace("sql", "--preview", "SELECT k FROM nothing")
    assert (first.returncode, first.stdout) == (1, "")
    assert "no stream or query is called nothing" in first.stderr
    assert server.json("sql", "--preview", text)["inputs"][0]["tuples"] == 0
    server.millrace("sql", "INSERT INTO p VALUES (4), (9)")
    shown = server.millrace("sql", "--preview", text)
    assert shown.stdout.splitlines() == ['{"double":8}', '{"double":18}']
    assert "2 rows; made of the newest 2 tuples of p" in shown.stderr
    assert "measured on 2 tuples" in shown.stderr
    assert "double" not in [query["name"] for query in server.json("query", "list")]


def test_the_time_of_a_query_is_shown(server):
    server.millrace("sql", "CREATE STREAM e (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '5 seconds')")
    windows = "TUMBLE(e, ts, INTERVAL '1 minute')"
    server.millrace(
        "sql", f"CREATE QUERY minutes AS SELECT count(*) AS n, window_start FROM {windows} GROUP BY window_start"
    )
    assert "e       -          -             5 s" in server.millrace("query", "time", "minutes").stdout
    server.millrace("sql", "INSERT INTO e VALUES (TIMESTAMP '2026-01-01 00:01:10', 1)")
    inputs, windows = server.millrace("query", "time", "minutes").stdout.split("\n\n")
    assert re.split("  +", inputs.splitlines()[1].strip()) == [
        *("e", "2026-01-01T00:01:05Z", "2026-01-01T00:01:10Z"),
        *("5 s", "5 s", "0"),
    ]
    assert re.split("  +", windows.splitlines()[1].strip()) == [
        *("minutes.aggregate1", "1 min", "1 min", "1"),
        *("2026-01-01T00:01:00Z", "2026-01-01T00:01:00Z"),
    ]
