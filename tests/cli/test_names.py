"""Names of one kind where a command expects another: components resolve, everything else names the candidates."""

import json

import pytest

from millrace.cli.names import Directory
from millrace.protocol.admin.queries import QueryView, SinkView
from millrace.protocol.admin.streams import StreamView
from tests.views import view

SQL = """
CREATE STREAM door (ts TIMESTAMP, person TEXT) WITH (time = 'ts');
CREATE STREAM till (ts TIMESTAMP, person TEXT) WITH (time = 'ts');
CREATE STREAM alone (k BIGINT);
CREATE QUERY diary AS SELECT ts, person FROM door UNION ALL SELECT ts, person FROM till;
CREATE QUERY late_shift AS SELECT ts FROM till;
CREATE SINK alerts FROM diary WITH (type = 'file', path = 'alerts.jsonl');
"""


@pytest.fixture(scope="module", autouse=True)
def applied(server):
    done = server.millrace("sql", SQL)
    assert done.returncode == 0, done


@pytest.mark.parametrize(
    ("name", "kind"),
    [("diary", "query"), ("till", "stream"), ("diary.union1", "operator"), ("alerts", "sink")],
)
def test_any_name_finds_its_component(server, name, kind):
    for command in (("component", "show"), ("component", "table"), ("strategy", "show")):
        shown = server.millrace(*command, name)
        assert (shown.returncode, shown.stderr) == (0, f"{kind} {name} is in component door\n"), shown
    assert server.millrace("component", "show", name, "--format", "dot").stdout.startswith('digraph "door"')
    assert server.json("component", "show", name)["name"] == "door"
    assert server.millrace("strategy", "set", name, "bfs").stderr.endswith("door now runs bfs\n")
    assert server.millrace("component", "weight", name, "2").stderr.endswith("door now weighs 2\n")
    tried = server.json("strategy", "try", name, "dfs", "--for", "20ms", "--revert")
    assert (tried["component"], tried["outcome"]) == ("door", "reverted")
    assert server.json("strategy", "trial", name)["component"] == "door"


def test_a_name_of_the_expected_kind_needs_no_further_request(server):
    assert server.millrace("component", "table", "door").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("why", "door"), "door is a stream; did you mean query diary?"),
        (("tail", "door"), "door is a stream; did you mean query diary?"),
        (("explain", "door"), "door is a stream; did you mean query diary?"),
        (("explain", "door", "--order"), "door is a stream; did you mean query diary?"),
        (("query", "show", "till"), "till is a stream; did you mean one of the queries diary, late_shift?"),
        (("query", "pause", "alone"), "alone is a stream, and no query reads it"),
        (("query", "drop", "alerts"), "alerts is a sink; did you mean query diary?"),
        (("why", "diary.union1"), "diary.union1 is an operator; did you mean query diary?"),
        (("feed", "late_shift", "/dev/null"), "late_shift is a query; did you mean stream till?"),
        (("stream", "show", "diary"), "diary is a query; did you mean one of the streams door, till?"),
        (("stream", "show", "diary", "--stale"), "diary is a query; did you mean one of the streams door, till?"),
        (("stream", "drop", "late_shift"), "late_shift is a query; did you mean stream till?"),
        (("sink", "show", "diary"), "diary is a query; did you mean sink alerts?"),
        (("sink", "drop", "late_shift"), "late_shift is a query, and no sink receives its rows"),
        (("operator", "show", "door"), "door is a stream; did you mean operator door.source?"),
        (("break", "set", "late_shift"), "late_shift is a query; did you mean operator late_shift.project1?"),
        (("why", "dor"), "query dor does not exist; did you mean stream door?"),
        (("component", "show", "diarry"), "component diarry does not exist; did you mean query diary?"),
        (("sink", "show", "dairy"), "sink dairy does not exist; did you mean query diary?"),
        (("query", "show", "diarry"), "query diarry does not exist; did you mean diary?"),
    ],
)
def test_a_name_of_another_kind_names_the_candidates(server, arguments, text):
    done = server.millrace(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"millrace: {text}\n")


def test_a_name_in_two_components_is_ambiguous():
    """A sink and a stream may share a name."""
    directory = Directory(
        streams=[view(StreamView, {"name": "x", "component": "one"})],
        queries=[view(QueryView, {"name": "q", "component": "two"})],
        sinks=[view(SinkView, {"name": "x", "query": "q"})],
    )
    assert directory.components_of("x") == {"one": "stream x", "two": "sink x"}
    assert directory.explain("component", "x") == (
        "x is ambiguous: stream x is in component one, sink x is in component two; name the component"
    )


def test_json_stays_json(server):
    done = server.millrace("component", "show", "diary", "--json")
    assert json.loads(done.stdout)["name"] == "door"
