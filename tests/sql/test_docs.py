"""The pages of docs/sql are run in order: statements planned, events fed, expressions evaluated, errors compared."""

from __future__ import annotations

import json
import re
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from millrace.offline.run import Options, Run
from millrace.offline.script import plan_script
from millrace.protocol import Schema
from millrace.sql import Catalog, Explain, SqlError, parse, plan, plan_all
from millrace.sql.binder import Binder
from millrace.sql.options import QUERY_OPTIONS, SINK_OPTIONS, STREAM_OPTIONS
from millrace.sql.syntax import Item, Select, SelectStatement
from millrace.values.batch import Batch
from millrace.values.evaluate import evaluate
from millrace.values.functions import LIBRARY

FOLDER = Path(__file__).parents[2] / "docs" / "sql"
# Examples may use streams and queries of earlier pages. docs/sql.md says this order.
ORDER = (
    "statements",
    "sinks",
    "windows",
    "update-streams",
    "joins",
    "patterns",
    "time",
    "expressions",
    "errors",
    "options",
)
PAGE = "\n".join((FOLDER / f"{name}.md").read_text("utf-8") for name in ORDER)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXPRESSIONS = [
    tuple(re.split(r"\s+-> ", line, maxsplit=1))
    for kind, text in BLOCKS
    if kind == "expressions"
    for line in text.splitlines()
]


def test_every_page_is_run() -> None:
    assert sorted(ORDER) == sorted(path.stem for path in FOLDER.glob("*.md"))


def test_the_statements_run_in_order() -> None:
    catalog = Catalog()
    for (kind, text), (following, answer) in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
        if kind != "sql":
            continue
        if following == "error":
            with pytest.raises(SqlError) as refused:
                plan_all(parse(text), catalog)
            assert str(refused.value) == answer.rstrip("\n")
            continue
        planned, after = plan_all(parse(text), catalog)
        # Bare SELECTs are printed, not stored: later examples are bare too.
        catalog = Catalog(after.streams, {name: q for name, q in after.queries.items() if name[0] != "q"}, after.sinks)
        if following == "text":
            last = planned[-1]
            assert isinstance(last, Explain)
            assert last.text == answer.rstrip("\n")


def examples() -> list[tuple[str, str, str]]:
    """Statements, events and the rows that the page shows; several events may follow the same statements."""
    cases: list[tuple[str, str, str]] = []
    script = ""
    for (kind, text), (_, answer) in pairwise(BLOCKS):
        if kind == "sql":
            script = text
        elif kind == "events":
            cases.append((script, text, answer))
    return cases


@pytest.mark.parametrize(("script", "events", "rows"), examples())
def test_events_produce_the_rows_of_the_page(script: str, events: str, rows: str, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(events, "utf-8")
    printed = BytesIO()
    Run(plan_script(script), Options(events=str(tmp_path / "events.jsonl"), close=False), printed).run()
    assert printed.getvalue().decode() == rows


def value_of(text: str) -> Any:
    """An expression over a batch of one row without columns; bytes and errors as the page writes them."""
    (statement,) = parse(f"SELECT {text}")
    assert isinstance(statement.body, SelectStatement)
    select = statement.body.query.first
    assert isinstance(select, Select)
    (item,) = select.items
    assert isinstance(item, Item)
    bound = Binder(statement.text, None).bind(item.expression)
    computed = evaluate(bound, Batch.from_rows(Schema.of(a="bigint"), [(1,)], [0]))
    if computed.error is not None:
        return f"error: {computed.error.reason}"
    null = computed.valid is not None and not computed.valid[0]
    return None if null else computed.values.tolist()[0]


@pytest.mark.parametrize(("expression", "result"), EXPRESSIONS)
def test_an_expression_has_the_value_of_the_page(expression: str, result: str) -> None:
    got = value_of(expression)
    if result.startswith("error: "):
        assert got == result
    else:
        expected = json.loads(result)
        assert got == expected
        assert type(got) is type(expected)


def test_every_option_is_on_the_page() -> None:
    for option in (*STREAM_OPTIONS, *QUERY_OPTIONS, *SINK_OPTIONS):
        if "later" not in option.read.__qualname__:
            assert f"| `{option.name}` |" in PAGE, option.name


def test_every_function_is_on_the_page() -> None:
    for name in LIBRARY.names:
        shown = name.removeprefix("extract ")
        assert re.search(rf"(?i)(?<!\w){re.escape(shown)}(?!\w)", PAGE), f"{name} is not in docs/sql"


def test_statements_of_the_page_leave_nothing_to_chance() -> None:
    """Planning twice returns the same plans."""
    text = next(text for kind, text in BLOCKS if kind == "sql")
    assert [plan(statement, Catalog()) for statement in parse(text)] == [
        plan(statement, Catalog()) for statement in parse(text)
    ]
