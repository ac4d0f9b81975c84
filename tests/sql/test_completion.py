"""Completion against the parser: each item makes a text that the grammar accepts so far, and names fit their place."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.changes.state import ControlState
from millrace.changes.statements import Terms, draft
from millrace.sql.completion import Completion, complete
from millrace.sql.parser import grammar
from tests.depth import examples

KNOWN = draft(
    "CREATE STREAM door (k BIGINT, name TEXT); CREATE STREAM trams (ts TIMESTAMP, line TEXT) WITH (time = 'ts');"
    'CREATE QUERY board AS SELECT line, count(*) AS n, line AS "odd name" FROM trams GROUP BY line;'
    "CREATE SINK papers FROM board WITH (type = 'stdout')",
    ControlState(),
    Terms(),
).after
# Statements that the grammar accepts, which the test cuts anywhere.
STATEMENTS = (
    "CREATE STREAM fresh (k BIGINT NOT NULL, at TIMESTAMP) WITH (time = 'at', disorder = '1 s')",
    "CREATE OR REPLACE QUERY q WITH (order = 'event') AS SELECT d.k, count(*) AS n FROM door AS d WHERE d.k > 5",
    "SELECT t.line FROM trams [RANGE '1 minute'] t LEFT JOIN board LATEST ON t.line = board.line ORDER BY n LIMIT 3",
    "SELECT CASE WHEN k > 1 THEN 'a; -- b' ELSE upper(name) END FROM door UNION ALL SELECT line FROM trams.late",
    "DROP QUERY IF EXISTS board; ALTER STREAM door RENAME COLUMN k TO kk; SHOW STREAMS",
    "INSERT INTO door (k, name) VALUES (1, NULL), (2, 'x')",
    "SELECT line FROM trams FOLLOWED BY NO door RECENT WITHIN '5 seconds' ON line = name -- the end",
)


def offered(text: str, **options) -> Completion:
    """What stands at the | in a text."""
    at = text.index("|")
    return complete(text.replace("|", "", 1), at, KNOWN, **options)


def texts(text, kind=None):
    return [item.text for item in offered(text).items if kind in (None, item.kind)]


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("SELECT k FROM |", None, ["door", "trams", "board"]),
        ("SELECT k FROM do| WHERE k > 1", None, ["door"]),
        ("select |\nfrom trams", "column", ["ts", "line"]),
        ("SELECT d.| FROM door AS d, trams", None, ["k", "name"]),
        ("SELECT d.| FROM door d, trams", None, ["k", "name"]),
        ("SELECT board.| FROM board, door", None, ["line", "n", '"odd name"']),
        ('SELECT "od| FROM board', None, ['"odd name"']),
        ("SELECT cou| FROM door", None, ["count"]),
        ("SELECT k FROM trams.|", None, ["late"]),
        ("CREATE |", None, ["OR", "QUERY", "SINK", "STREAM"]),
        ("CREATE STREAM do|", None, []),
        ("CREATE STREAM x (k BIGINT) WITH (dis|", None, ["disorder"]),
        ("CREATE QUERY x WITH (or|) AS SELECT k FROM door", None, ["order"]),
        ("CREATE SINK x FROM board WITH (pa|", None, ["path"]),
        ("CREATE SINK x FROM |", None, ["board"]),
        ("DROP QUERY |", "query", ["board"]),
        ("DROP SINK IF EXISTS |", None, ["papers"]),
        ("INSERT INTO |", None, ["door", "trams"]),
        ("ALTER STREAM |", None, ["door", "trams"]),
        ("EXPLAIN b|", None, ["board"]),
        ("SELECT k FROM door; DRO|", None, ["DROP"]),
        ("SELECT k FROM door; |; SELECT 1", "column", []),
        ("SELECT k FROM door GROUP |", None, ["BY"]),
        ("SELECT k FROM door WHERE name = 'do|", None, []),
        ("SELECT k FROM door -- do|", None, []),
        ("SELECT k FROM door /* do|", None, []),
        ("SELECT k FROM door WHERE name = 'a -- b' AN|", None, ["AND"]),
        ("nonsense do|", None, []),
        ("SELECT k FROM door |", "stream", []),
    ],
)
def test_what_stands_at_a_place(text, kind, wanted):
    assert texts(text, kind) == wanted


def test_details_say_what_a_name_is():
    details = {item.text: item.detail for item in offered("SELECT | FROM trams").items}
    assert details["line"] == "text of trams"
    assert "(" in details["count"]


def accepts(text: str) -> bool:
    """Whether the grammar accepts a text so far, read from scratch."""
    parser = grammar().parse_interactive(text)
    parser.exhaust_lexer()
    return bool(parser.accepts())


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(STATEMENTS), st.data())
def test_each_item_continues_a_text_that_the_grammar_accepts(statement, data):
    at = data.draw(st.integers(0, len(statement)))
    found = complete(statement, at, KNOWN)
    assert 0 <= found.start <= at
    begin = statement.rfind(";", 0, found.start) + 1 if "'a; -- b'" not in statement else 0
    for item in found.items:
        assert accepts(statement[begin : found.start] + item.text + " "), item
    # The word that is there is among them, where it is a word of the language.
    word = re.match(r"[A-Z]+\b", statement[found.start :])
    if found.start == at and found.items and word and word[0] not in ("BIGINT", "TIMESTAMP", "NULL"):
        assert word[0] in [item.text for item in found.items]


@settings(max_examples=examples(200), deadline=None)
@given(st.text(max_size=60) | st.text("\"'.;-/*( \nadoor", max_size=60), st.integers(0, 60))
def test_any_text_has_an_answer(text, at):
    found = complete(text, min(at, len(text)), KNOWN)
    assert found.start <= min(at, len(text))
