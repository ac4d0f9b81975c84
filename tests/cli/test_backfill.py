"""The output of `millrace backfill` before Spark starts, and of differences."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from millrace.backfill.compare import Differences
from millrace.backfill.splitting import Slice
from millrace.backfill.verifying import Verdict
from millrace.cli.main import app

STREAM = "CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts');\n"
WINDOWS = "CREATE QUERY w AS SELECT k, count(*) AS n, window_end FROM TUMBLE(s, ts, INTERVAL '10 us') GROUP BY k"


@pytest.fixture
def backfill(tmp_path):
    (tmp_path / "s.jsonl").write_text('{"ts": 1, "k": 1}\n')

    def run(command, query, sql, *flags):
        (tmp_path / "q.sql").write_text(STREAM + sql)
        sources = ("--sql", str(tmp_path / "q.sql"), "--input", f"s={tmp_path / 's.jsonl'}")
        return CliRunner().invoke(app, ["backfill", command, *([query] if query else []), *sources, *flags])

    return run


@pytest.mark.parametrize("query", ["a", None])
def test_which_statement_of_a_file_is_wrong(backfill, tmp_path, query):
    done = backfill(
        "start",
        query,
        "CREATE QUERY a AS SELECT k FROM s;\nCREATE QUERY b AS\n  SELECT nope FROM s",
        "--out",
        str(tmp_path / "out"),
    )
    assert done.exit_code == 1
    asked = " (query a needs the whole file to be right)" if query else ""
    said = (
        f'q.sql, in the statement "CREATE QUERY b AS SELECT nope FROM s"{asked}: line 4, column 10: the column nope '
        "does not exist"
    )
    assert said in done.exception.text


def test_a_file_that_cannot_be_taken_apart_is_named(backfill, tmp_path):
    done = backfill("start", "a", "CREATE QUERY a AS SELEC k FROM s", "--out", str(tmp_path / "out"))
    assert "q.sql (query a needs the whole file to be right): line 2, column 19: expected" in done.exception.text


def test_differences_are_shown_as_sinks_write_rows(backfill, tmp_path, monkeypatch):
    def row(k, n, at):
        return {"k": k, "n": n, "window_end": at}

    found = Differences(3, missing=[row(1, 2, 20), row(1, 4, 10)], extra=[row(1, 5, 10), row(1, 3, 20)])
    monkeypatch.setattr("millrace.backfill.verifying.verify", lambda *_: Verdict("rows", Slice(0, 30), found, 3))
    (tmp_path / "w.jsonl").write_text("")
    done = backfill("verify", "w", WINDOWS, "--against", str(tmp_path / "w.jsonl"))
    assert done.exit_code == 1
    _, *lines = done.stdout.splitlines()
    assert lines == [
        "- {'k': 1, 'n': 4, 'window_end': '1970-01-01T00:00:00.000010Z'}   only recomputed",
        "+ {'k': 1, 'n': 5, 'window_end': '1970-01-01T00:00:00.000010Z'}   only written",
        "- {'k': 1, 'n': 2, 'window_end': '1970-01-01T00:00:00.000020Z'}   only recomputed",
        "+ {'k': 1, 'n': 3, 'window_end': '1970-01-01T00:00:00.000020Z'}   only written",
    ]
