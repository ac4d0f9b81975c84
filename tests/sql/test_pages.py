"""Every SQL statement of the concept pages, the guides and the guarantees plans, each page from an empty catalog."""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path

import pytest

from millrace.sql import Catalog, parse, plan_all

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted((DOCS / "concepts").glob("*.md")), *sorted((DOCS / "guides").glob("*.md")), DOCS / "guarantees.md"]
SQL = re.compile(r"^```sql[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def statements(page: Path) -> list[str]:
    return SQL.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_the_statements_of_a_page_plan(page: Path) -> None:
    catalog = Catalog()
    for text in statements(page):
        _, catalog = plan_all(parse(text), catalog)


def test_the_pages_have_statements() -> None:
    assert sum(len(statements(page)) for page in PAGES) >= 30


def test_the_pictures_are_up_to_date() -> None:
    """Each picture is as its script draws it, and a page shows it."""
    pictures = run_path(str(DOCS / "concepts" / "draw.py"))["PICTURES"]
    assert {path.stem for path in (DOCS / "concepts").glob("*.svg")} == set(pictures)
    shown = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "concepts").glob("*.md"))
    for name, draw in pictures.items():
        assert (DOCS / "concepts" / f"{name}.svg").read_text(encoding="utf-8") == draw().svg(), name
        assert f"({name}.svg)" in shown, name
