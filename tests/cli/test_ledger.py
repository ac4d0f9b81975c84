"""`millrace changes` and `millrace undo`: what was applied, what an undo restores, and what it refuses."""

import http.client
import json
import re

import pytest

from millrace.cli.link import Link
from tests.cli.conftest import Server

FILE = """CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts');
CREATE QUERY q AS SELECT ts, k FROM s WHERE k > 0;
"""
GONE = (
    "millrace: p does not exist any more: undo the change that has dropped it first, which `millrace changes` lists\n"
)


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path) as running:
        (tmp_path / "all.sql").write_text(FILE, "utf-8")
        assert running.millrace("apply", str(tmp_path / "all.sql")).returncode == 0
        yield running


def states(server, *arguments):
    """The table of changes: what each did, and its last column."""
    heads, *lines = server.millrace("changes", *arguments).stdout.splitlines()
    text, undo = heads.index("change"), heads.index("undo")
    return [(line[text:undo].strip(), line[undo:]) for line in lines]


def refused(server, *arguments):
    done = server.millrace("undo", *arguments)
    assert (done.returncode, done.stdout) == (1, ""), done
    return done.stderr


def test_undo_takes_back_the_newest_change_and_then_the_one_before(server):
    server.millrace("query", "pause", "q", "--reason", "painting")
    server.millrace("query", "rename", "q", "p")
    assert server.millrace("undo").stderr == "undid change 3: renamed query q to p\n"
    assert server.json("query", "show", "q")["state"] == "paused"
    done = server.millrace("undo")
    assert done.stderr == (
        "undid change 2: paused query q\nnot restored: the tuples that it skipped meanwhile stay skipped\n"
    )
    assert server.json("query", "show", "q")["state"] == "running"
    assert states(server, "--last", "4") == [
        ("paused query q", "undone by 5"),
        ("renamed query q to p", "undone by 4"),
        ("renamed query p to q", "undoes 3"),
        ("resumed query q", "undoes 2"),
    ]
    assert server.millrace("undo", "4").returncode == 0
    assert states(server, "--last", "2") == [("resumed query q", "undoes 2"), ("renamed query q to p", "undoes 4")]
    assert states(server)[3] == ("renamed query p to q", "undoes 3, undone by 6")
    assert [entry["number"] for entry in server.json("changes", "--last", "2")] == [5, 6]


def test_a_plan_of_an_undo_changes_nothing(server):
    server.millrace("query", "drop", "q")
    before = server.millrace("changes").stdout
    plan = server.millrace("undo", "2", "--plan")
    assert plan.stderr.splitlines() == [
        "would undo change 2: dropped query q",
        "not restored: the query starts with empty state, and its rows are numbered from 0",
    ]
    assert "q.filter1" in plan.stdout
    assert json.loads(server.millrace("undo", "--plan", "--json").stdout)["plan"]["queries"]
    assert server.millrace("changes").stdout == before
    assert server.json("query", "list") == []
    assert server.json("undo")["number"] == 3
    assert [query["name"] for query in server.json("query", "list")] == ["q"]


def test_what_cannot_be_undone_is_refused_in_one_line(server):
    assert refused(server, "99") == "millrace: change 99 does not exist; the oldest in the ledger is 1\n"
    server.millrace("query", "unshare", "q")
    assert states(server)[-1] == ("separated operators of query q", "no")
    assert refused(server, "2") == (
        "millrace: change 2 cannot be undone: operators are shared again when the query is replaced\n"
    )
    assert refused(server) == refused(server, "2")
    server.millrace("query", "rename", "q", "p")
    server.millrace("undo")
    assert refused(server, "3") == "millrace: change 3 was undone by change 4\n"
    assert len(states(server)) == 4
    server.millrace("query", "rename", "q", "p")
    server.millrace("query", "drop", "p")
    before = server.millrace("changes").stdout
    assert refused(server, "5") == refused(server, "5", "--plan") == GONE
    assert server.millrace("changes").stdout == before
    for wrong in (("undo", "0"), ("undo", "q"), ("changes", "--last", "0")):
        assert server.millrace(*wrong).returncode == 2


def test_a_server_without_changes(tmp_path):
    with Server(tmp_path) as server:
        assert states(server) == []
        assert server.json("changes") == []
        assert refused(server) == "millrace: there is no change to undo\n"


def test_an_entry_and_the_log_name_the_client(server):
    assert server.millrace("query", "pause", "q").returncode == 0
    authors = [entry["author"] for entry in server.json("changes")]
    assert [re.sub(r"^admin 127\.0\.0\.1:\d+ ", "", author) for author in authors] == [
        "(millrace apply)", "(millrace query pause)",
    ]  # fmt: skip
    assert authors[-1] in server.millrace("changes").stdout
    assert [line["client"] for line in Link(server.admin).get("log") if line["event"] == "changed"][-1] == authors[-1]


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        (None, ""),
        ("  ", ""),
        ("deploy/7 (night)", " (deploy/7 (night))"),
        ("a\tb\x1bc", " (a\\u0009b\\u001bc)"),
        ("x" * 4_000, f" ({'x' * 100})"),
    ],
)
def test_the_name_of_any_client_is_safe_and_short(server, agent, named):
    connection = http.client.HTTPConnection(server.admin)
    headers = {} if agent is None else {"user-agent": agent}
    connection.request("POST", "/api/v1/queries/q/pause", headers=headers)
    assert connection.getresponse().status == 200
    address, port = connection.sock.getsockname()
    connection.close()
    assert server.json("changes", "--last", "1")[0]["author"] == f"admin {address}:{port}{named}"
