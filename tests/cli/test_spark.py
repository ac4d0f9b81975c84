"""The output of `millrace spark` without Spark: refusals before anything starts, and the answers from checkpoints."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from millrace.cli.main import app
from millrace.protocol import MillraceError
from millrace.spark.checkpoint import EPOCHS
from tests.spark.sparkloop import job_of
from tests.spark.test_epochs import BUCKETS, SQL, epochs_of

OTHER = SQL + "CREATE QUERY more AS SELECT src FROM large;"
SINK = SQL + "CREATE SINK out FROM large WITH (type = 'file', path = 'out.jsonl');"


@pytest.fixture
def spark(tmp_path):
    """Runs a command over a file of SQL and a file of rows."""
    (tmp_path / "rows.jsonl").write_text('{"ts": 1, "src": "a", "bytes": 2, "port": 3}\n')

    def call(command, sql=SQL, *flags, source="packets=rows.jsonl"):
        (tmp_path / "q.sql").write_text(sql)
        place = source.replace("rows.jsonl", "HERE/rows.jsonl").replace("HERE", str(tmp_path))
        inputs = ["--input", place, "--checkpoint", str(tmp_path / "job")] if command == "run" else []
        return CliRunner().invoke(app, ["spark", command, str(tmp_path / "q.sql"), *inputs, *flags])

    return call


REFUSED = {
    "its own rows": (SQL, "packets=HERE", (), "is inside the input"),
    "its own rows by a pattern": (SQL, "packets=HERE/**/*.jsonl", (), "is inside the input"),
    "a pattern for this folder alone": (SQL, "packets=HERE/r*.jsonl", ("--trigger", "soon"), "--trigger soon"),
    "no input": (SQL, "other=rows.jsonl", (), "no query reads stream other; the streams are: packets"),
    "no file": (SQL, "packets=rows.jsonl.gone", (), "rows.jsonl.gone: the file or directory does not exist"),
    "no such query": (SQL, "packets=rows.jsonl", ("--sink", "x=file:out"), "query x does not exist; the queries are: "),
    "no sink": (SQL, "packets=rows.jsonl", ("--sink", "large=out"), "expected file:FOLDER, kafka://HOST:PORT/TOPIC or"),
    "sinks of a server": (SINK, "packets=rows.jsonl", (), "sink out of the file is a server's: remove CREATE SINK"),
    "no query": (SQL[: SQL.index("CREATE QUERY")], "packets=rows.jsonl", (), "missing query: add a SELECT or"),
    "a trigger": (SQL, "packets=rows.jsonl", ("--trigger", "soon"), "--trigger soon: expected a duration such as"),
    "metrics": (SQL, "packets=rows.jsonl", ("--metrics", "x"), "--metrics x: expected PORT or HOST:PORT"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_run_refuses_in_one_line_and_writes_nothing(spark, tmp_path, wrong):
    sql, source, flags, reason = REFUSED[wrong]
    done = spark("run", sql, *flags, source=source)
    assert isinstance(done.exception, MillraceError)
    text = str(done.exception)
    assert reason in text
    assert "\n" not in text
    assert not (tmp_path / "job").exists()


def test_a_flag_twice_is_refused(spark):
    done = spark("run", SQL, "--input", "packets=other")
    assert done.exit_code == 2
    assert "packets appears twice" in done.output


def test_explain_prints_a_line_per_query(spark):
    done = spark("explain", OTHER, "--buckets", "8")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0].startswith("traffic: by key src, 8 buckets; state: rows of 3 s + disorder 1 s; ")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["traffic", "total", "more", "note"]


def test_status_and_verify(tmp_path):
    job = job_of(tmp_path, SQL, epochs_of(1), BUCKETS)
    job.run()
    place = str(job.checkpoint.path)
    last = job.checkpoint.last()
    assert last is not None
    told = CliRunner().invoke(app, ["spark", "status", place]).stdout
    assert f"epoch: {last.epoch}, committed " in told
    assert f"rows read: packets {last.totals.input['packets']}" in told
    assert f"late: packets {last.totals.late['packets']}" in told
    assert json.loads(CliRunner().invoke(app, ["spark", "status", place, "--json"]).stdout)["epoch"] == last.epoch

    done = CliRunner().invoke(app, ["spark", "verify", place])
    assert (done.exit_code, done.stdout.strip().rpartition(": ")[2]) == (0, "whole")
    (job.checkpoint.path / EPOCHS / "0000000000.json").unlink()
    done = CliRunner().invoke(app, ["spark", "verify", place])
    assert done.exit_code == 1
    assert done.stdout.splitlines()[0] == "commit 0: its epoch record is missing"
    assert done.stdout.splitlines()[-1].endswith(": 1 problem")


def test_changes_and_reasons(tmp_path):
    job = job_of(tmp_path, SQL, epochs_of(1), BUCKETS)
    job.run(1)
    place = str(job.checkpoint.path)

    def call(*words: str, text: str | None = None) -> str:
        done = CliRunner().invoke(app, ["spark", words[0], place, *words[1:]], input=text, catch_exceptions=False)
        assert done.exit_code == 0
        return done.stdout

    assert "; part packets-" in call("why", "traffic")
    assert call("sql", "-", text="DROP QUERY large;\n").startswith("change 1 is stored: DROP QUERY large;\n")
    assert call("strategy", "traffic", "bfs(3)").startswith("change 2 is stored: strategy traffic bfs(3)\n")
    assert call("status").count("not yet") == 2
    job.run()
    told = json.loads(call("status", "--json"))
    assert told["queries"] == ["traffic", "total"]
    assert [change["in_effect"] for change in told["changes"]] == [True, True]
    assert call("pause", "total").startswith("change 3 is stored: pause total")
    assert call("resume", "total").startswith("change 4 is stored: resume total")
    with pytest.raises(MillraceError, match="query large does not exist; the queries are: traffic, total"):
        call("why", "large")
