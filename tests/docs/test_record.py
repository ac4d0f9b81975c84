"""The README's pictures of terminals show the commands that docs/record.py types."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs import record
from tests.documents import File

ROOT = Path(__file__).parents[2]


def lines(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_a_drawing_has_every_line_in_order_and_escaped() -> None:
    drawn = record.draw("$ echo '<a & b>'  # why\n<a & b>\n" + "word " * 40 + "\n", "A <title>")
    assert lines(drawn)[:2] == ["$ echo '<a & b>'  # why", "<a & b>"]
    assert "".join(lines(drawn)[2:]).split() == ["word"] * 40
    assert max(map(len, lines(drawn))) <= record.WIDTH


def test_only_an_animated_drawing_moves() -> None:
    assert "animation" in record.draw("$ ls\n", "t")
    assert "animation" not in record.draw("$ ls\n", "t", animated=False)


def test_the_recorded_session_has_the_commands_of_the_script() -> None:
    shown = lines((record.ASSETS / "session.svg").read_text(encoding="utf-8"))
    typed = [line[2:] for line in shown if line.startswith("$ ")]
    assert typed == [step for step in record.SESSION if not isinstance(step, File)]


@pytest.mark.parametrize("name", ["session.svg", "top.svg"])
def test_a_picture_fetches_nothing(name: str) -> None:
    svg = unescape((record.ASSETS / name).read_text(encoding="utf-8"))
    assert not re.search(r"url\(|href|<script|@import", svg)
