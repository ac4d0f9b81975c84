"""Every SQL statement of the concept pages, the guides and the guarantees plans, each page from an empty catalog."""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path

import pytest

from millrace.protocol.codes import CODES
from millrace.sql import Catalog, SqlError, parse, plan_all

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


STREAM = "CREATE STREAM s (ts TIMESTAMP, k BIGINT, x DOUBLE, t TEXT) WITH (time = 'ts');"
TOTALS = "CREATE QUERY u AS SELECT k, count(*) AS n FROM s GROUP BY k;"
READ = "CREATE QUERY a AS SELECT k FROM s; CREATE QUERY b AS SELECT k FROM a;"
WINDOW = "FROM TUMBLE(s, ts, INTERVAL '1 s')"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT kk FROM s", "did you mean"),
        ("CREATE MATERIALIZED VIEW v AS SELECT k FROM s", "is not supported"),
        ("SELECT hour(ts) FROM s", "see docs/guides/coming-from.md"),
        ("CREATE STREAM z (k BIGINT) WITH (lul = '1 s')", "has no option"),
        ("CREATE STREAM z (k BIGINT) WITH (disorder = '1 s')", "does not apply here"),
        (f"SELECT x, count(*) {WINDOW} GROUP BY k", "is neither grouped nor aggregated"),
        ("SELECT count(*) FROM s GROUP BY k", "without a window the result is an update stream"),
        (f"SELECT k {WINDOW} WHERE count(*) > 1", "is an aggregate: WHERE tests rows"),
        ("SELECT count(*) FROM TUMBLE(s, k, INTERVAL '1 s')", "a window uses the rows' own time"),
        ("SELECT k FROM s ORDER BY k", "ORDER BY needs all rows"),
        ("SELECT k FROM s LIMIT 1", "LIMIT needs an end"),
        ("SELECT DISTINCT k FROM s", "SELECT DISTINCT would keep every row"),
        ("SELECT now() FROM s", "would make the result depend on the clock"),
        ("SELECT k FROM s WHERE k IN (SELECT k FROM s)", "needs all rows of a query"),
        (f"{TOTALS} SELECT s.k FROM s JOIN u ON s.k = u.k", "is an update stream, whose rows replace each other"),
        ("SELECT k FROM s LATEST", "its input has no key"),
        (f"{READ} DROP QUERY a", "is still read by"),
        (f"{READ} CREATE OR REPLACE QUERY a AS SELECT x FROM s", "need the same columns"),
        ("SELECT regexp_like(t, '(?=a)b') FROM s", "the pattern is not valid"),
        ("SELECT lag(x) OVER (ORDER BY ts) FROM s", "OVER (...) is not available"),
    ],
)
def test_troubleshooting_has_the_words_of_errors(statement: str, words: str) -> None:
    """A change of a message changes the page, so that readers find it."""
    with pytest.raises(SqlError) as refused:
        plan_all(parse(f"{STREAM} {statement}"), Catalog())
    assert words in str(refused.value)
    assert words in (DOCS / "guides" / "troubleshooting.md").read_text(encoding="utf-8")


MISSING = [
    "SELECT k FROM s ORDER BY k",
    "SELECT k FROM s LIMIT 1",
    "SELECT DISTINCT k FROM s",
    "SELECT k FROM s UNION SELECT k FROM s",
    "SELECT k FROM s INTERSECT SELECT k FROM s",
    "WITH RECURSIVE r AS (SELECT k FROM s) SELECT k FROM r",
    "SELECT now() FROM s",
    "SELECT k FROM s WHERE k IN (SELECT k FROM s)",
    "SELECT k FROM s WHERE EXISTS (SELECT k FROM s)",
    "SELECT (SELECT max(k) FROM s) AS m FROM s",
    "SELECT * FROM s NATURAL JOIN s AS z",
    "SELECT * FROM s JOIN s AS z USING (k)",
    f"{TOTALS} SELECT s.k FROM s JOIN u ON s.k = u.k",
    "SELECT lag(x) OVER (ORDER BY ts) FROM s",
]


@pytest.mark.parametrize("statement", MISSING)
def test_an_error_about_what_other_systems_have_names_their_guide(statement: str) -> None:
    with pytest.raises(SqlError) as refused:
        plan_all(parse(f"{STREAM} {statement}"), Catalog())
    assert refused.value.message.endswith("see docs/guides/coming-from.md")


def test_troubleshooting_has_every_code() -> None:
    page = (DOCS / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
    assert [code for code in CODES if f"`{code}`" not in page] == []
    reasons = (DOCS / "http.md").read_text(encoding="utf-8").partition("| reason | meaning |")[2].partition("\n\n")[0]
    names = [name for row in reasons.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert len(names) > 20
    assert [name for name in names if f"`{name}`" not in page] == []


def test_the_pictures_are_up_to_date() -> None:
    """Each picture is as its script draws it, and a page shows it."""
    pictures = run_path(str(DOCS / "concepts" / "draw.py"))["PICTURES"]
    assert {path.stem for path in (DOCS / "concepts").glob("*.svg")} == set(pictures)
    shown = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "concepts").glob("*.md"))
    for name, draw in pictures.items():
        assert (DOCS / "concepts" / f"{name}.svg").read_text(encoding="utf-8") == draw().svg(), name
        assert f"({name}.svg)" in shown, name
