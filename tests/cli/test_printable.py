"""Names that peers chose never control the terminal that prints them."""

import json

import pytest

from millrace.cli import show, top
from millrace.observe.logs import without_controls
from millrace.protocol.words import printable

TITLE = "\x1b]0;owned\x07"
ACTING = [
    TITLE,
    "\x9b31m",
    "a\nb",
    "a\rb",
    "\x7f",
    "\u202egnp.exe",
    "\u2066",
    "\u2028",
    "\x00",
    "\ud800",
    "\t",
    "\u0085",
]


@pytest.mark.parametrize("text", ACTING)
def test_control_characters_are_escaped_as_in_json(text):
    shown = printable(text)
    assert shown.isprintable()
    assert json.loads(f'"{shown}"') == text


@pytest.mark.parametrize("text", ["", "plain", "naïve Ärger", "東京", "👩‍👩‍👧", "a b", "\\u001b"])
def test_other_text_stays(text):
    assert printable(text) == text


def test_text_that_is_laid_out_keeps_its_lines():
    assert printable("a\n\tb\x1b\r", lines=True) == "a\n\tb\\u001b\\u000d"


def test_no_printer_of_the_command_line_lets_it_through(capsys):
    item = {
        "name": TITLE,
        "feeds": [{"feed": TITLE}],
        "list": [TITLE],
        "fields": [[TITLE, "text", True]],
        "map": {"k": TITLE},
    }
    show.details(item)
    show.table(["name"], [[TITLE], [f"{TITLE}\n{TITLE}"]])
    show.as_json(item)
    show.out(show.compact("\x9b" + TITLE))
    show.tell(TITLE)
    said = capsys.readouterr()
    assert not set(said.out + said.err) & set("\x1b\x07\x9b")
    assert r"\u001b]0;owned\u0007" in said.out
    assert said.out.count("owned") == 14


def test_json_stays_json(capsys):
    show.as_json({"name": f"{TITLE}\x9b\x7f"})
    assert json.loads(capsys.readouterr().out)["name"] == f"{TITLE}\x9b\x7f"


def test_the_log_shows_names_and_does_not_obey_them():
    event = without_controls(
        None, "info", {"event": "a feed opened", "feed": TITLE, "times": 3, "exception": "a\nb\x1b"}
    )
    assert event["feed"] == r"\u001b]0;owned\u0007"
    assert event["times"] == 3
    assert event["exception"] == "a\nb\\u001b"


def test_top_shows_names_and_does_not_obey_them():
    assert "\x1b" not in top._text(TITLE).plain
