"""The commands against a server in another process: their outputs and exit codes."""

import json
import re
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.cli.admin import table_lines
from millrace.protocol.admin.operators import RowView
from tests.cli.conftest import Server, clean_environment, millrace
from tests.patience import HANG_SECONDS, line_with, wait_until
from tests.server.harness import forget_journal
from tests.warm.start import warm

SQL = """
CREATE STREAM a (k BIGINT, name TEXT);
CREATE STREAM b (k BIGINT, name TEXT);
CREATE QUERY q WITH (order = 'event') AS
  SELECT k, name FROM a WHERE k > 0 UNION ALL SELECT k, name FROM b;
"""


@pytest.fixture(scope="module", autouse=True)
def applied(server, tmp_path_factory):
    file = tmp_path_factory.mktemp("sql") / "all.sql"
    file.write_text(SQL)
    planned = server.millrace("apply", str(file), "--plan")
    assert (planned.returncode, planned.stdout.splitlines()[0].split()) == (0, ["what", "name", "change", "state"])
    assert "would create query q" in planned.stderr
    assert server.json("query", "list") == []
    done = server.millrace("apply", str(file))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == ["create stream a", "create stream b", "create query q"]


def test_lists_and_items(server):
    listed = server.millrace("stream", "list")
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["name", "a", "b"]
    assert [item["name"] for item in server.json("stream", "list")] == ["a", "b"]
    for kind, name in [("stream", "a"), ("query", "q"), ("component", "a"), ("operator", "q.union1")]:
        assert server.json(kind, "show", name)["name"] == name
        shown = server.millrace(kind, "show", name)
        assert name in shown.stdout.splitlines()[0]
    assert server.json("sink", "list") == []
    assert server.json("operator", "list")[0]["name"] == "a.source"


def test_the_state_table_is_printed_as_in_the_papers(server):
    printed = server.millrace("component", "table", "a")
    rows = [line.split() for line in printed.stdout.splitlines()]
    assert rows[0] == ["state", "pred", "succ", "transition"]
    assert ["a.source", "-", "q.filter1", "DFS-Source"] in rows
    union = next(row for row in rows if row[0] == "q.union1")
    assert union == ["q.union1", "q.filter1", "-", "DFS-IWP"]
    assert rows[rows.index(union) + 1] == ["b.source"]
    with_rules = server.millrace("component", "table", "a", "--rules").stdout
    assert with_rules.startswith(printed.stdout)
    assert "forward, leap, encore" in with_rules
    assert server.json("component", "table", "a")["rows"][0]["succ"] == ["q.filter1"]


def test_a_fork_has_a_line_per_successor():
    row = RowView(state="q.fork1", pred=["s.source"], succ=["x", "y"], transition="DFS-Fork")
    assert table_lines([row]) == [["q.fork1", "s.source", "x", "DFS-Fork"], ["", "", "y", ""]]


def test_strategies_and_break_points(server):
    assert server.millrace("strategy", "set", "a", "bfs").stderr == "a now runs bfs\n"
    assert server.json("strategy", "show", "a")["strategy"] == "bfs"
    assert server.millrace("strategy", "set", "a", "dfs(2)", "--operator", "q.filter1").returncode == 0
    assert "q.filter1  dfs(2)" in server.millrace("strategy", "show", "a").stdout
    assert server.millrace("strategy", "set", "a", "dfs").returncode == 0
    assert server.millrace("break", "set", "q.filter1").returncode == 0
    assert "q.filter1" in server.json("component", "show", "a")["breaks"]
    assert server.millrace("break", "unset", "q.filter1").returncode == 0


def test_trying_a_strategy(server):
    done = server.millrace("strategy", "try", "a", "bfs", "--for", "50ms", "--revert-if", "queue >= 0")
    assert done.returncode == 0, done
    head, *table = done.stdout.splitlines()
    assert head.split() == ["before", "(dfs)", "during", "(bfs)", "change"]
    assert [line.split("  ")[0] for line in table][:5] == [
        "latency mean",
        "latency p50",
        "latency p99",
        "latency max",
        "queue mean",
    ]
    assert "measuring under dfs" in done.stderr
    assert done.stderr.endswith("the trial reverted to dfs: queue >= 0\n")
    assert server.json("strategy", "show", "a")["strategy"] == "dfs"
    said = server.json("strategy", "try", "a", "bfs", "--for", "20ms", "--before", "30ms", "--revert")
    assert (said["outcome"], said["for_seconds"], said["before_seconds"]) == ("reverted", 0.02, 0.03)
    assert server.json("strategy", "trial", "a")["outcome"] == "reverted"
    assert "latency p99" in server.millrace("strategy", "trial", "a").stdout
    assert server.millrace("strategy", "trial", "a", "--cancel").returncode == 1
    assert server.millrace("strategy", "try", "a", "fast").returncode == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--revert-if", "p99 > 5"), ("p99 > 200ms", "idle-wait > 20%")),
        (("--for", "long"), ("10 seconds",)),
        (("--before", "5"), ("10 seconds",)),
        (("--revert", "--revert-if", "p99 > 5 ms"), ("one of the two",)),
    ],
)
def test_an_invalid_trial_is_a_usage_error(server, flags, words):
    done = server.millrace("strategy", "try", "a", "bfs", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    said = " ".join(done.stderr.replace("│", " ").split())
    assert all(word in said for word in words), said


def test_a_watcher_that_goes_away_does_not_end_the_trial(server):
    watcher = subprocess.Popen(
        [*warm(), "strategy", "try", "a", "bfs", "--for", "20s", "--before", "10ms"],
        env=clean_environment(MILLRACE_ADMIN=server.admin),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert watcher.stderr
    line_with("under bfs", watcher.stderr)
    watcher.send_signal(signal.SIGINT)
    assert "millrace strategy trial a" in watcher.stderr.read()
    assert watcher.wait(HANG_SECONDS) == 1
    watcher.stderr.close()
    assert server.json("strategy", "trial", "a")["state"] == "during"
    assert "a trial of component a is running" in server.millrace("strategy", "set", "a", "rr").stderr
    assert server.json("strategy", "trial", "a", "--cancel")["outcome"] == "cancelled"
    assert server.json("strategy", "show", "a")["strategy"] == "dfs"


def test_explain(server):
    assert "q.union1" in server.millrace("explain", "q").stdout
    assert "q.union1" in server.json("explain", "q")["text"]
    assert "WHERE k > 5" in server.millrace("sql", "EXPLAIN SELECT k FROM a WHERE k > 5").stdout


def test_a_plan_shows_the_effect_on_the_graph(server, tmp_path):
    file = tmp_path / "change.sql"
    file.write_text("CREATE QUERY shown AS SELECT k + 1 AS k FROM a; DROP QUERY q;", "utf-8")
    planned = server.millrace("apply", str(file), "--plan")
    assert planned.returncode == 0, planned.stderr
    assert "appears" in planned.stdout
    assert "goes" in planned.stdout
    assert "state after" in planned.stdout
    assert server.json("apply", str(file), "--plan")["plan"]["queries"]


def test_explain_analyze(server):
    shown = server.millrace("explain", "q", "--analyze").stdout
    assert "q.union1" in shown
    assert "selectivity" in shown
    assert server.millrace("sql", "EXPLAIN ANALYZE q").stdout.splitlines()[0] == shown.splitlines()[0]
    assert server.json("explain", "q", "--analyze")["state"] == "running"


def test_the_graph_as_a_drawing(server):
    heads = {
        "mermaid": "flowchart LR",
        "dot": 'digraph "a" {',
        "table": "operator",
        "text": "component a: dfs, weight 1",
    }
    for form, head in heads.items():
        assert server.millrace("component", "show", "a", "--format", form).stdout.startswith(head)
    assert server.json("component", "show", "a", "--format", "dot")["arcs"][0]["from"] == "a.source"
    assert server.millrace("component", "show", "a", "--format", "png").returncode == 2


def test_export(server, tmp_path):
    exported = server.millrace("export").stdout
    assert "CREATE STREAM a (k BIGINT, name TEXT);\n" in exported
    assert "-- millrace strategy set a dfs\n" in exported
    file = tmp_path / "again.sql"
    file.write_text(exported)
    assert "nothing to change" in server.millrace("apply", str(file)).stderr
    assert server.json("export")["statements"][0] == "CREATE STREAM a (k BIGINT, name TEXT)"


def test_weight_and_the_reason_of_a_pause(server):
    assert server.millrace("component", "weight", "z", "3").returncode == 1
    assert server.millrace("component", "weight", "a", "3").stderr == "a now weighs 3\n"
    assert server.json("component", "show", "a")["weight"] == 3
    assert server.millrace("component", "weight", "a", "0").returncode == 2
    assert server.millrace("query", "pause", "q", "--reason", "for lunch").returncode == 0
    assert server.json("query", "show", "q")["reason"] == "for lunch"
    assert server.millrace("query", "resume", "q").returncode == 0


def test_unbounded_state_causes_a_warning(server, tmp_path):
    file = tmp_path / "join.sql"
    file.write_text("CREATE QUERY pairs AS SELECT a.k FROM a JOIN b ON a.k = b.k;", "utf-8")
    planned = server.millrace("apply", str(file), "--plan")
    assert planned.stderr.startswith("warning: this join keeps the rows of a and of b without a time limit")
    file.write_text("CREATE STREAM a (k BIGINT); SELECT x.k FROM a x JOIN a y ON x.k = y.k;", "utf-8")
    ran = millrace("run", str(file))
    assert ran.stderr.startswith(
        "millrace: query q: warning: this join keeps the rows of x and of y without a time limit"
    )


def test_why(server):
    said = server.millrace("why", "q")
    assert said.returncode == 0
    assert said.stdout.startswith("No input yet: ")
    assert said.stderr.startswith("try: millrace ")
    found = server.json("why", "q")
    assert (found["text"], found["reason"]) == (said.stdout.strip(), "no_tuples")
    gone = server.millrace("why", "qq")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "did you mean q?" in gone.stderr


def test_waiting_operators_are_shown_with_component_and_stream(server):
    (union, *_) = [
        given for given in server.json("component", "show", "a")["inputs"] if given["operator"] == "q.union1"
    ]
    assert set(union) >= {"from", "queue_tuples", "peak_queue_tuples", "idle_wait_us", "register_us"}
    assert "q.union1 from b.source: idle" in server.millrace("component", "show", "a").stdout
    assert "ets" not in server.millrace("stream", "show", "a").stdout
    shown = server.millrace("stream", "show", "a", "--all").stdout
    assert "  by cause" in shown
    assert "  ets           on-demand" in shown


def rows(kind, tmp_path):
    """The same rows as a file of each format."""
    path = tmp_path / f"rows.{kind}"
    data = [{"k": 1, "name": "one"}, {"k": -1, "name": "gone"}, {"k": 2, "name": None}]
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in data))
    elif kind == "csv":
        path.write_text("k,name\n1,one\n-1,gone\n2,\n")
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(data), path)
    else:
        with pa.ipc.new_file(path, pa.Table.from_pylist(data).schema) as writer:
            writer.write(pa.Table.from_pylist(data))
    return path


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow"])
def test_feed_and_tail(server, tmp_path, kind):
    start = server.json("query", "show", "q")["next_sequence"]
    fed = server.millrace("feed", "a", str(rows(kind, tmp_path)))
    assert (fed.returncode, fed.stdout) == (0, ""), fed.stderr
    assert fed.stderr.startswith("fed 3 tuples to a")
    tailed = server.millrace("tail", "q", "--from", str(start), "--limit", "2")
    assert [json.loads(line) for line in tailed.stdout.splitlines()] == [
        {"k": 1, "name": "one"},
        {"k": 2, "name": None},
    ]
    assert f"from sequence {start};" in tailed.stderr
    said = server.millrace("tail", "q", "--from", str(start), "--limit", "1", "--json").stdout
    history = server.json("query", "show", "q")["history"]
    assert json.loads(said) == {"query": "q", "seq": start, "row": {"k": 1, "name": "one"}, "history": history}


def test_tail_shows_progress_that_no_row_brings(server):
    text = (
        "CREATE STREAM clocked (k BIGINT); CREATE QUERY counted AS SELECT count(*) AS n, window_end"
        " FROM TUMBLE(clocked, ts, INTERVAL '100 ms')"
    )
    assert server.millrace("sql", text).returncode == 0
    command = [*warm(), "tail", "counted", "--from", "0", "--progress"]
    environment = clean_environment(MILLRACE_ADMIN=server.admin)
    with (
        subprocess.Popen([*command, "--json"], env=environment, stdout=subprocess.PIPE, text=True) as lines,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as talk,
    ):
        try:
            assert server.millrace("feed", "clocked", "-", stdin='{"k": 5}\n').returncode == 0
            assert lines.stdout
            assert talk.stderr
            while "row" not in (row := json.loads(lines.stdout.readline())):
                assert row["query"] == "counted"
            told = json.loads(lines.stdout.readline())
            assert row["row"]["n"] == 1
            assert datetime.fromisoformat(told["progress"]) > datetime.fromisoformat(row["row"]["window_end"])
            assert "reading counted" in talk.stderr.readline()
            assert line_with(told["progress"], talk.stderr) == f"complete up to {told['progress']}\n"
        finally:
            lines.kill()
            talk.kill()


def test_feed_from_the_standard_input_at_a_rate(server):
    fed = server.millrace("feed", "b", "--rate", "1000", "--json", stdin='{"k": 5}\n{"k": 6}\n')
    assert (fed.returncode, json.loads(fed.stdout)["tuples"]) == (0, 2)
    fed = server.millrace("feed", "b", "-", "--format", "csv", stdin="k\n7\n")
    assert fed.returncode == 0, fed.stderr


def test_tail_ends_quietly(server):
    server.millrace("feed", "b", stdin="".join(f'{{"k": {k}}}\n' for k in range(9_000)))
    start = str(server.json("query", "show", "q")["oldest_sequence"])
    for end in (lambda tail: tail.stdout.close(), lambda tail: tail.send_signal(signal.SIGINT)):
        tail = subprocess.Popen(
            [*warm(), "tail", "q", "--from", start],
            env=clean_environment(MILLRACE_ADMIN=server.admin),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A test runner in the background ignores interrupts, and its children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert tail.stdout
        assert tail.stderr
        assert "Ctrl-C" in tail.stderr.readline()
        tail.stdout.readline()
        end(tail)
        assert tail.stderr.read() == ""
        assert tail.wait(HANG_SECONDS) == 0
        tail.stdout.close()
        tail.stderr.close()


def test_pause_resume_drop(server):
    server.millrace("sql", "CREATE QUERY gone AS SELECT k FROM a")
    assert server.millrace("query", "pause", "gone").stderr == "paused query gone\n"
    assert server.json("query", "show", "gone")["state"] == "paused"
    assert server.millrace("query", "pause", "gone").returncode == 1
    assert server.millrace("query", "resume", "gone").stderr.startswith("resumed query gone")
    assert server.millrace("query", "drop", "gone").stderr == "dropped query gone\n"
    assert "gone" not in [query["name"] for query in server.json("query", "list")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("query", "show", "qq"), "query qq does not exist; did you mean q?"),
        (("query", "drop", "qq"), "query qq does not exist"),
        (("component", "table", "x"), "component x does not exist"),
        (("strategy", "set", "a", "fastest"), "fastest"),
        (("break", "set", "q.filtr1"), "did you mean q.filter1?"),
        (("tail", "qq"), "query qq does not exist"),
        (("tail", "q", "--from", "999999"), "query q does not have sequence 999999. It retains "),
        (("feed", "t", "/dev/null"), "stream t does not exist"),
        (("feed", "a", "/no/such.jsonl"), "/no/such.jsonl: no such file or directory"),
        (("apply", "/no/such.sql"), "/no/such.sql: no such file or directory"),
        (("sql", "CREATE QUERY z AS SELECT kk FROM a"), "did you mean k?"),
        (("query", "list", "--token-file", "/no/token"), "/no/token"),
    ],
)
def test_failures_are_one_message_and_exit_1(server, arguments, words):
    done = server.millrace(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert done.stderr.startswith("millrace: ")
    assert "Traceback" not in done.stderr


def test_wrong_usage_exits_2(server):
    for arguments, words in (
        (("feed", "a", "--format", "xml"), "'xml' is not one of"),
        (("sql", " -- nothing"), "it contains no statement"),
        (("operator", "insert", "q.project1"), "--where or --sample"),
        (("operator", "insert", "q.project1", "--where", "true", "--sample", "0.5"), "not both"),
        (("operator", "insert", "q.project1", "--where", "true", "--seed", "1"), "only --sample uses it"),
    ):
        done = server.millrace(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert words in done.stderr.replace("\n", " ")


def test_files_that_are_no_statements(server, tmp_path):
    path = tmp_path / "x.sql"
    path.write_bytes(b"SELECT 1;\n\x7fELF\xd0")
    done = server.millrace("apply", str(path))
    assert (done.returncode, done.stderr) == (
        1,
        f"millrace: {path}, line 2: expected statements as UTF-8 text, got other bytes\n",
    )
    path.write_text("-- nothing yet\n")
    for flags in ((), ("--plan",)):
        done = server.millrace("apply", str(path), *flags)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{path} contains no statement\n")


def test_names_that_are_not_there(server):
    crowd = range(10)
    server.millrace("sql", ";".join(f"CREATE STREAM crowd{n} (at TIMESTAMP) WITH (time = 'at')" for n in crowd))
    done = server.millrace("stream", "show", "zz")
    assert done.returncode == 1
    assert ".late" not in done.stderr
    assert re.search(r"crowd0, .* and \d+ more$", done.stderr.strip())
    done = server.millrace("feed", "crowd1.late")
    assert "crowd1.late cannot be fed: it contains the late tuples of crowd1; feed crowd1" in done.stderr
    server.millrace("sql", ";".join(f"DROP STREAM crowd{n}" for n in crowd))


def test_a_reader_is_notified_when_a_query_changes_its_columns(server):
    server.millrace("sql", "CREATE QUERY turns AS SELECT k FROM a")
    tail = subprocess.Popen(
        [*warm(), "tail", "turns"],
        env=clean_environment(MILLRACE_ADMIN=server.admin),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tail.stderr
    assert "reading turns" in tail.stderr.readline()
    server.millrace("sql", "CREATE OR REPLACE QUERY turns AS SELECT k, k + 1 AS more FROM a")
    assert tail.stderr.read() == "millrace: query turns has other columns now: subscribe again\n"
    assert tail.wait(HANG_SECONDS) == 1
    tail.stderr.close()
    server.millrace("query", "drop", "turns")


def test_a_plan_lists_a_shared_operator_once_and_a_rename_completely(server, tmp_path):
    server.millrace("sql", "CREATE QUERY one AS SELECT k FROM a WHERE k > 70; CREATE QUERY two AS SELECT k FROM one")
    path = tmp_path / "change.sql"
    path.write_text(
        "CREATE QUERY three AS SELECT k + 1 AS k FROM a WHERE k > 70; ALTER QUERY two RENAME TO second;\n"
        "CREATE OR REPLACE QUERY second AS SELECT k, k AS again FROM one"
    )
    done = server.millrace("apply", str(path), "--plan")
    assert done.returncode == 0, done
    assert done.stderr.splitlines() == [
        "would create query three",
        "would rename query two to second",
        "would replace query second",
    ]
    operators = [line for line in done.stdout.splitlines() if line.startswith("operator ")]
    assert sum("one.filter1" in line for line in operators) == 1
    assert len(operators) == len(set(operators))
    server.millrace("sql", "DROP QUERY two; DROP QUERY one")


def test_each_port_names_the_other_one(server):
    done = millrace("query", "list", "--admin", server.listen)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        f"this port is for feeds and subscribers (frames or JSON lines); the HTTP API is at http://{server.admin}"
        in (done.stderr)
    )
    done = server.millrace("tail", "q", "--server", server.admin)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"this port is for the HTTP API; feeds and subscribers are served at {server.listen}" in done.stderr


def test_a_bad_row_is_named_by_its_line(server, tmp_path):
    path = tmp_path / "half.jsonl"
    path.write_text('{"k": 1}\n{"k": "x"}\n')
    done = server.millrace("feed", "a", str(path))
    assert done.returncode == 1
    assert f"{path}, line 2, field k: expected bigint" in done.stderr
    assert "(nothing was fed)" in done.stderr
    before = server.json("stream", "show", "b")["tuples"]
    good = "".join(f'{{"k": {k}, "name": "{"x" * 400}"}}\n' for k in range(9_000))
    path.write_text(good + "half\n" + good)
    done = server.millrace("feed", "b", str(path))
    assert "line 9001" in done.stderr
    fed = int(done.stderr.partition("its first ")[2].split()[0].replace(",", ""))
    assert 0 < fed <= 9_000
    assert server.json("stream", "show", "b")["tuples"] - before == fed
    path.write_text('{"k": 1}\n{"k": 2')
    assert "line 2" in server.millrace("feed", "a", str(path)).stderr
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert server.millrace("feed", "a", str(empty)).returncode == 0


def test_feed_sends_the_punctuation_between_rows(server, tmp_path):
    server.millrace(
        "sql",
        "CREATE STREAM traffic (ts TIMESTAMP, protocol TEXT, punctuated TEXT) "
        "WITH (time = 'ts', disorder = '1 h', punctuation_key = 'protocol', time_unit = 'ms'); "
        "CREATE QUERY volume AS SELECT protocol, count(*) AS n FROM TUMBLE(traffic, ts, '10 ms') GROUP BY protocol;"
        "CREATE STREAM odd (k BIGINT, punctuation TEXT);",
    )
    path = tmp_path / "traffic.jsonl"
    lines = [
        {"ts": 1, "protocol": "tcp"},
        {"ts": 2, "protocol": "udp", "punctuated": 'a "punctuation" in a text'},
        {"punctuation": 20, "where": {"protocol": "udp"}},
        {"ts": 3, "protocol": "udp"},
        {"ts": 4, "protocol": "tcp"},
        {"punctuation": "1970-01-01T00:00:00.030Z"},
        {"ts": 25, "protocol": "tcp"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    fed = server.millrace("feed", "traffic", str(path))
    assert fed.returncode == 0, fed.stderr
    assert "fed 5 tuples to traffic" in fed.stderr
    assert "2 tuples late" in fed.stderr
    tailed = server.millrace("tail", "volume", "--from", "0", "--limit", "2")
    counted = {row["protocol"]: row["n"] for row in map(json.loads, tailed.stdout.splitlines())}
    assert counted == {"udp": 1, "tcp": 2}
    for line, error in (
        ({"punctuation": 40, "where": {"port": 1}}, "line 2, where: expected a value for each of protocol"),
        ({"punctuation": 40, "when": 1}, "line 2: expected the keys punctuation, where, got 'when'"),
        ({"punctuation": "soon"}, "line 2, punctuation: expected"),
    ):
        path.write_text(json.dumps({"ts": 50, "protocol": "tcp"}) + "\n" + json.dumps(line) + "\n")
        done = server.millrace("feed", "traffic", str(path))
        assert (done.returncode, f"{path}, {error}" in done.stderr) == (1, True), done.stderr
        assert "(nothing was fed)" in done.stderr
    fed = server.millrace("feed", "odd", stdin='{"k": 1, "punctuation": "a column"}\n')
    assert "fed 1 tuple to odd" in fed.stderr


def test_a_server_that_is_not_there():
    done = millrace("query", "list", MILLRACE_ADMIN="127.0.0.1:1")
    assert done.returncode == 1
    assert "no Millrace server answers at 127.0.0.1:1" in done.stderr
    assert "millrace serve" in done.stderr
    for wrong in ("nonsense:port", "ftp://x", "http://"):
        done = millrace("query", "list", "--admin", wrong)
        assert (done.returncode, "expected HOST:PORT" in done.stderr) == (1, True), done


def test_usage():
    assert millrace("fly").returncode == 2
    assert millrace("query", "show").returncode == 2
    assert millrace("query", "list", "--nonsense").returncode == 2
    assert millrace("tail", "q", "--from", "99999999999999999999").returncode == 2
    helped = millrace("--help")
    assert helped.returncode == 0
    for verb in ("serve", "run", "apply", "sql", "feed", "tail", "stream", "component", "strategy", "break", "config"):
        assert verb in helped.stdout


def test_version():
    assert millrace("version").stdout.startswith("millrace ")
    assert set(json.loads(millrace("version", "--json").stdout)) == {"version"}


def test_starting_is_cheap():
    """A command imports only the modules that it needs; the words name the most expensive ones."""
    code = "import sys, millrace.cli.main; print([name for name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("numpy", "pyarrow", "fastapi", "uvicorn", "pydantic", "msgspec", "lark", "rich.progress"):
        assert f"'{heavy}'" not in loaded, heavy


def test_a_row_that_the_server_refuses_is_named_by_its_place_in_the_file(server, tmp_path):
    assert (
        server.millrace("sql", "CREATE STREAM far (at TIMESTAMP) WITH (time = 'at', max_ahead = '1 s')").returncode == 0
    )
    file = tmp_path / "far.jsonl"
    file.write_text('{"at": "2020-01-01T00:00:00Z"}\n' * 3 + '{"at": "2920-01-01T00:00:00Z"}\n')
    said = server.millrace("feed", "far", str(file))
    assert said.returncode == 1
    assert f"{file}, row 4: field at: expected at most " in said.stderr
    assert (
        "(nothing was fed; the server accepts or refuses a frame as a whole). "
        "4 rows acknowledged: 0 fed, 4 refused" in said.stderr
    )


def test_a_feed_reports_the_number_of_late_tuples(server, tmp_path):
    server.millrace("sql", "CREATE STREAM early (at TIMESTAMP) WITH (timestamps = 'external', time = 'at')")
    file = tmp_path / "early.jsonl"
    file.write_text("".join(f'{{"at": "2020-01-01T00:00:{second:02}Z"}}\n' for second in (9, 7, 8, 10)))
    said = server.millrace("feed", "early", str(file)).stderr
    assert said.startswith("fed 4 tuples to early in ")
    assert said.endswith("s; 2 tuples late, in no result (`millrace tail early.late` prints late tuples)\n")
    told = server.json("feed", "early", str(file))
    assert (told["tuples"], told["acknowledged"], told["refused"], told["late"]) == (4, 4, 0, 3)


def start_feed(server, *flags):
    """`millrace feed s` in the background, with 20,000 rows written to its standard input."""
    feed = subprocess.Popen(
        [*warm(), "feed", "s", *flags],
        env=clean_environment(MILLRACE_ADMIN=server.admin),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test runner in the background ignores interrupts, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert feed.stdin
    feed.stdin.write('{"k": 1}\n' * 20_000)
    feed.stdin.flush()
    wait_until_fed(server, "s", 1, feed)
    return feed


def wait_until_fed(server, stream, count, feed):
    def enough():
        assert feed.poll() is None, "the feed has ended"
        return server.json("stream", "show", stream)["tuples"] >= count

    wait_until(enough)


@pytest.mark.parametrize("way", ["ctrl-c", "killed", "ended"])
def test_an_interrupted_feed_reports_acknowledged_rows(tmp_path, way):
    with Server(tmp_path) as made:
        made.millrace("sql", "CREATE STREAM s (k BIGINT)")
        feed = start_feed(made, "--rate", "100000", "--no-reconnect")
        if way == "ctrl-c":
            feed.send_signal(signal.SIGINT)
        else:
            made.process.send_signal(signal.SIGKILL if way == "killed" else signal.SIGTERM)
            made.process.communicate()
            with suppress(BrokenPipeError):
                feed.stdin.write('{"k": 1}\n' * 200_000)
                feed.stdin.close()
        said = feed.stderr.read()
        assert feed.wait() == (130 if way == "ctrl-c" else 1), said
        with suppress(BrokenPipeError):
            feed.stdin.close()
        feed.stderr.close()
    assert "Traceback" not in said
    counts = re.search(r"([0-9,]+) of ([0-9,]+) rows? read so far acknowledged", said)
    assert counts, said
    acknowledged, sent = (int(number.replace(",", "")) for number in counts.groups())
    assert 0 < acknowledged <= sent


def test_an_interrupted_feed_of_a_file_names_the_total(server, tmp_path):
    server.millrace("sql", "CREATE STREAM slow (k BIGINT)")
    file = tmp_path / "slow.jsonl"
    file.write_text('{"k": 1}\n' * 3_000)
    feed = subprocess.Popen(
        [*warm(), "feed", "slow", str(file), "--rate", "20"],
        env=clean_environment(MILLRACE_ADMIN=server.admin),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    wait_until_fed(server, "slow", 1, feed)
    feed.send_signal(signal.SIGINT)
    said = feed.communicate(timeout=HANG_SECONDS)[1]
    assert feed.returncode == 130
    assert re.search(r"^interrupted: [1-9][0-9]* of 3,000 rows acknowledged", said, re.MULTILINE), said


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_feed_continues_after_a_restart_of_the_server(tmp_path, ending):
    """No row is lost or repeated: the second server gets exactly the rows that the first does not have."""
    folder = tmp_path / "data"
    folder.mkdir()
    with Server(folder) as first:
        first.millrace("sql", "CREATE STREAM s (k BIGINT)")
        feed = start_feed(first)
        wait_until_fed(first, "s", 20_000 - 8_192, feed)
        first.process.send_signal(ending)
        first.process.communicate()
    (folder / "addresses.json").unlink(missing_ok=True)
    said = feed.stderr.readline()
    counts = re.match(
        r"connection lost after ([0-9,]+) acknowledged rows? \(.*\); reconnecting for up to two minutes", said
    )
    assert counts, said
    before = int(counts[1].replace(",", ""))
    with Server(folder, "--listen", first.listen) as second:
        feed.stdin.write('{"k": 2}\n' * 7)
        feed.stdin.close()
        said = feed.stderr.read()
        feed.stderr.close()
        assert (feed.wait(), "fed 20,007 tuples to s in " in said) == (0, True), said
        assert before <= 20_007
        assert second.json("stream", "show", "s")["tuples"] == 20_007


@pytest.mark.parametrize("journal", [True, False])
def test_tail_follows_a_query_across_a_restart(tmp_path, journal):
    """With a journal the rows continue. Without one, a new history is announced and read from its first row."""
    folder = tmp_path / "data"
    one = tmp_path / "one.jsonl"
    one.write_text('{"k": 1}\n{"k": 2}\n')
    two = tmp_path / "two.jsonl"
    two.write_text('{"k": 7}\n{"k": 8}\n{"k": 9}\n')
    folder.mkdir()
    with Server(folder) as first:
        first.millrace("sql", "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s")
        first.millrace("feed", "s", str(one))
        tail = subprocess.Popen(
            [*warm(), "tail", "q", "--from", "0", "--limit", "5"],
            env=clean_environment(MILLRACE_ADMIN=first.admin),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert tail.stdout
        assert tail.stderr
        assert [tail.stdout.readline() for _ in range(2)] == ['{"k":1}\n', '{"k":2}\n']
        before = first.json("query", "show", "q")["history"]
        first.end()
    assert "reading q from sequence 0" in tail.stderr.readline()
    assert "connection lost (" in tail.stderr.readline()
    if not journal:
        forget_journal(folder)
    with Server(folder, "--listen", first.listen) as second:
        second.millrace("feed", "s", str(two))
        assert tail.stdout.read() == '{"k":7}\n{"k":8}\n{"k":9}\n'
        after = second.json("query", "show", "q")["history"]
        told = [line for line in tail.stderr.read().splitlines() if "connection lost" not in line]
        if journal:
            assert (after, told) == (before, [])
        else:
            assert before != after
            assert len(told) == 1
            assert f"q restarted: its new history {after} continues here at sequence 0" in told[0]
        assert tail.wait() == 0
        tail.stdout.close()
        tail.stderr.close()
        second.end()


def test_tail_and_run_print_the_same_line(server):
    assert (
        server.millrace("sql", "CREATE STREAM one (k BIGINT); CREATE QUERY ones AS SELECT k FROM one").returncode == 0
    )
    assert server.millrace("feed", "one", stdin='{"k": 1}\n').returncode == 0
    assert server.millrace("tail", "ones", "--from", "0", "--limit", "1").stdout == '{"k":1}\n'


def test_a_fed_file_in_seconds_is_refused_with_the_place_and_the_likely_unit(server, tmp_path):
    server.millrace("sql", "CREATE STREAM epochs (ts TIMESTAMP, k BIGINT) WITH (time = 'ts')")
    path = tmp_path / "epochs.csv"
    path.write_text("ts,k\n1770588380,1\n1770588381,2\n")
    done = server.millrace("feed", "epochs", str(path))
    assert done.returncode == 1
    assert f"{path}, row 1: " in done.stderr
    assert "got 1770588380, which is 1970-01-01T00:29:30.588380Z; it looks like seconds (2026-" in done.stderr
    assert "so multiply by 1000000, or declare the stream WITH (time_unit = 's')" in done.stderr
    assert server.json("stream", "show", "epochs")["rejected"] == 2
    path.write_text("ts,k\n2026-02-08T22:06:20Z,1\n+200000-01-01,2\n")
    done = server.millrace("feed", "epochs", str(path))
    assert done.returncode == 1
    assert f"{path}, line 3, field ts: expected a time from 0001-01-01T00:00:00Z to " in done.stderr
