"""`millrace replay`: tables and JSON, what it refuses, and that a server may run meanwhile."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from millrace.journal.past import Past
from millrace.protocol import format_timestamp
from millrace.store.rowfiles import read_batch, read_head, records, write_head, write_record
from millrace.values.batch import Batch
from tests.cli.conftest import Server, millrace
from tests.server.directories import contents, killed


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    killed(folder / "one", folder / "image", count=12)
    return folder / "image"


def run(data: Path, *arguments: str, stdin: str = "") -> str:
    done = millrace("replay", "--data-dir", str(data), *arguments, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_a_replay_proves_the_rows(data: Path) -> None:
    before = contents(data)
    found = json.loads(run(data, "--json"))
    assert found["queries"]["q"]["recorded"]["rows"] == 6
    assert found["queries"]["q"]["delivered"] == {"same": 6, "different": 0, "not_retained": 0, "first": None}
    assert found["streams"]["s"] == {"recorded": {"tuples": 12, "late": 0}}
    lines = run(data).splitlines()
    assert lines[0].startswith(f"{found['from']} to {found['to']}: ")
    assert [line.split()[:3] for line in lines if "as delivered" in line] == [
        ["q", "recorded", "6"],
        ["totals", "recorded", "12"],
    ]
    assert contents(data) == before


def middle(data: Path) -> int:
    """When the queries existed and some rows were to come."""
    past = Past(data)
    span = past.span()
    playback = past.open(span.from_us)
    for _ in playback.steps(span.to_us):
        if "q" in playback.engine.queries_by_name and playback.engine.query("q").sink.sequence == 2:
            return playback.at_us
    raise AssertionError("no such moment")


def test_a_change_is_compared(data: Path, tmp_path: Path) -> None:
    sql = tmp_path / "more.sql"
    sql.write_text("CREATE OR REPLACE QUERY q AS SELECT k FROM s WHERE k % 4 = 0; CREATE QUERY all_ AS SELECT k FROM s")
    arguments = ["--from", str(middle(data)), "--strategy", "bfs", "--query", str(sql)]
    found = json.loads(run(data, *arguments, "--json"))
    rows = found["queries"]["q"]["rows"]
    assert rows["verdict"] == "different"
    assert rows["only_changed"] == 0
    assert set(found["queries"]["all_"]) == {"changed"}
    assert set(found["totals"]) == {"recorded", "changed"}
    lines = run(data, *arguments).splitlines()
    assert any(line.startswith("q ") and "different: " in line for line in lines)
    assert any(line.startswith("all_ ") and line.endswith("only with the change") for line in lines)
    assert any(line.startswith('q, only as recorded: {"$time":') for line in lines)
    assert run(data, *arguments[:-1], "-", stdin=sql.read_text()).splitlines() == lines


def test_a_row_that_differs_fails(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    path = next((copy / "results").rglob("*.rows"))
    with path.open("rb") as file:
        found = read_head(file.fileno(), path)
        assert found is not None
        head, offset = found
        first = next(records(file.fileno(), offset, path.stat().st_size))
        batch = read_batch(first, head.schema)
    other = Batch(batch.schema, batch.ts + 1, batch.columns, batch.valid, batch.arrival)
    path.write_bytes(b"".join([write_head(head), *write_record(first.first, other, first.since_us)]))
    done = millrace("replay", "--data-dir", str(copy))
    text = "rows of the replay differ from those that the server delivered: see the table above"
    assert (done.returncode, done.stderr) == (1, f"millrace: {text}\n")
    assert "row 0: delivered {" in done.stdout


def test_nonsense_is_refused(data: Path, tmp_path: Path) -> None:
    span = Past(data).span()
    early = format_timestamp(span.from_us - 1)
    for arguments, code, text in (
        (["--from", early], 1, f"{early} is not in the recorded past of {data}, which reaches {span.text}"),
        (["--to", "2999-01-01"], 1, "is not in the recorded past"),
        (
            ["--from", str(span.to_us), "--to", str(span.from_us)],
            1,
            f"is not before --to {format_timestamp(span.from_us)}",
        ),
        (["--from", "soon"], 2, "expected a time"),
        (["--strategy", "best"], 2, "best"),
        (["--set", "disorder"], 2, "expected OPTION=VALUE"),
        (["--set", "s.disorder=1 s"], 1, "--set s.disorder = 1 s: no stream or query s existed then"),
        (["--query", str(tmp_path / "none.sql")], 1, "none.sql"),
    ):
        done = millrace("replay", "--data-dir", str(data), *arguments)
        assert done.returncode == code, done
        assert text in " ".join(done.stderr.replace("│", " ").split()), done
        assert "Traceback" not in done.stderr
        assert code == 2 or done.stderr.count("\n") == 1
    assert "this needs a data directory" in millrace("replay").stderr
    assert "has no past" in millrace("replay", "--data-dir", str(tmp_path)).stderr


def test_check_says_how_far_the_past_reaches(data: Path) -> None:
    done = millrace("journal", "check", "--data-dir", str(data), "--json")
    assert json.loads(done.stdout)["past_from"] == format_timestamp(Past(data).span().from_us)


def test_its_server_may_run(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with Server(data) as server:
        server.millrace("sql", "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s")
        server.millrace("feed", "s", "-", stdin='{"k": 1}\n{"k": 2}\n')
        found = json.loads(run(data, "--json"))
        assert found["queries"]["q"]["recorded"]["rows"] == 2
        done = server.millrace("why", "q", "--at", "-10 ms")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith("q has emitted 2 rows.\n")
        done = server.millrace("why", "q", "--at", "-1 day")
        assert done.returncode == 1
        assert "is not in the recorded past" in done.stderr
        assert server.json("why", "q", "--at", "-10 ms")["reason"] == "flowing"
