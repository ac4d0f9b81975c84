"""The modules and names that are accepted, and the message for each that is not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.functions import DECLARED, aggregate, function
from millrace.functions.loading import FunctionsError, load
from millrace.protocol import Refuse
from millrace.sql import Catalog, CreateStream, Explain, SqlError, parse, plan, plan_all
from millrace.sql.functions import install, install_module, uninstall
from millrace.values.aggregates import AGGREGATES
from millrace.values.functions import LIBRARY

HEAD = "from millrace.functions import aggregate, function\n"
ONE = "@function('double', returns='double')\ndef half(x):\n    return x / 2\n"
Module = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    """Create a module of functions in the current folder, and remove its functions after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    known = [*LIBRARY], [*AGGREGATES]

    def make(text: str) -> str:
        name = f"made_for_test_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{name}.py").write_text(HEAD + text)
        return name

    yield make
    uninstall([row for row in [*LIBRARY, *AGGREGATES] if row not in known[0] and row not in known[1]])
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_of_the_current_folder_is_found_and_loaded_once(module: Module) -> None:
    more = "@function('text', returns='text')\n@function('bigint', returns='bigint')\ndef same(x):\n    return x\n"
    name = module(ONE + more)
    install_module(name)
    install_module(name)
    assert [row.key for row in LIBRARY.named("half")] == ["half(double)"]
    assert [row.key for row in LIBRARY.named("same")] == ["same(text)", "same(bigint)"]


PROBLEMS = {
    "": "registers no function: decorate them",
    "x = y": "NameError: name 'y' is not defined",
    "x = (": ": SyntaxError",
    "import no_such_module_at_all": ": ModuleNotFoundError: No module named 'no_such_module_at_all'",
    "raise SystemExit(3)": ": SystemExit: 3",
    "@function('number', returns='double')\ndef f(x): return x": "expected a type (boolean, bigint, double, text, ",
    "@function('double', returns='double')\ndef half(x, y): return x": "half: expected a function of 1 argument",
    "@function(returns='double', vectorised=True)\ndef f(): return 1": "a vectorised function needs an argument",
    "@aggregate('double', returns='double')\nclass f:\n  def init(): return 0": "and iterate is missing",
    "@aggregate(returns='double')\nclass f:\n  init = 5": "f.init: expected a function, got int",
}


@pytest.mark.parametrize(("text", "words"), PROBLEMS.items())
def test_an_unusable_module_is_reported_in_one_line(text: str, words: str, module: Module) -> None:
    name = module(text)
    with pytest.raises(FunctionsError) as refused:
        load(name)
    assert refused.value.code == "configuration"
    assert words in refused.value.text
    assert name in refused.value.text
    assert "\n" not in refused.value.text


@pytest.mark.parametrize("name", ["nowhere_to_be_found", "millrace.nowhere", "my_functions.py", "a/b", ""])
def test_a_module_that_is_not_there(name: str, module: Module) -> None:
    with pytest.raises(FunctionsError, match=r"does not exist|expected the name of a module"):
        load(name)


def identity(name: str, type: str = "double") -> list[Any]:
    @function(type, returns=type, name=name)
    def same(x: Any) -> Any:
        return x

    return list(vars(same)[DECLARED])


def counter(name: str) -> list[Any]:
    class Count:
        init = staticmethod(int)
        iterate = staticmethod(lambda state, x: state + 1)
        terminate = staticmethod(int)

    return list(vars(aggregate("double", returns="bigint", name=name)(Count))[DECLARED])


@pytest.mark.parametrize(
    "name",
    ["upper", "sum", "count", "extract", "date_part", "now", "random", "tumble", "session", "substring", "trim",
     "position", "select", "case", "over", "filter", "coalesce", "and", "not", "cast", "Über", "a b", "1st", "x" * 64],
)  # fmt: skip
def test_names_of_millrace_and_of_sql_are_refused(name: str) -> None:
    before = [row.key for row in LIBRARY], [row.key for row in AGGREGATES]
    for rows in (identity(name), counter(name)):
        with pytest.raises(FunctionsError, match="functions: "):
            install(rows)
    assert ([row.key for row in LIBRARY], [row.key for row in AGGREGATES]) == before


def test_all_are_taken_or_none() -> None:
    for rows in (
        [*identity("fine"), *identity("lower")],
        [*identity("fine"), *identity("fine")],
        [*identity("fine"), *counter("fine")],
    ):
        with pytest.raises(FunctionsError):
            install(rows)
        assert not LIBRARY.named("fine")
        assert not AGGREGATES.named("fine")


CREATE = "CREATE STREAM s (ts TIMESTAMP, a BIGINT, t TEXT) WITH (time = 'ts');"


@pytest.fixture
def known() -> Iterator[Catalog]:
    rows = [*identity("same"), *identity("same", "text"), *counter("counter")]
    install(rows)
    yield plan_all(parse(CREATE), Catalog())[1]
    uninstall(rows)


@pytest.mark.parametrize(
    ("select", "shown"),
    [
        ("SELECT same(a) FROM s", "same(CAST(a AS double))"),
        ("SELECT same(t) FROM s WHERE same(t) = 'x'", "WHERE same(t) = 'x'"),
        (
            "SELECT counter(a) FILTER (WHERE a > 1) FROM TUMBLE(s, ts, '1 s')",
            "counter(CAST(a AS double)) FILTER (WHERE a",
        ),
        ("SELECT same(t) AS k, counter(a) FROM s GROUP BY 1", "by same(t) AS k: counter(CAST(a AS double))"),
        ("SELECT counter(DISTINCT a) + 1 AS n FROM SESSION(s, ts, '1 s')", "counter(DISTINCT CAST(a AS double))"),
        (
            "SELECT counter(same(a)) FROM s [ROWS 3 SLIDE 1] HAVING counter(same(a)) > 1",
            "counter(same(CAST(a AS double)))",
        ),
    ],
)
def test_explain_names_them(select: str, shown: str, known: Catalog) -> None:
    explained = plan(parse(f"EXPLAIN {select}")[0], known)
    assert isinstance(explained, Explain)
    assert shown in explained.text


@pytest.mark.parametrize(
    ("select", "words"),
    [
        ("SELECT same(ts) FROM s", "same: expected double or text, got timestamp"),
        ("SELECT same(a, a) FROM s", "same: expected 1 argument, got 2"),
        ("SELECT smae(a) FROM s", "did you mean same?"),
        ("SELECT counter(t) FROM s", "counter: expected double, got text"),
        ("SELECT counter() FROM s", "counter: expected 1 argument, got 0"),
        ("SELECT counter(*) FROM s", "counter needs an expression, not *"),
        ("SELECT a FROM s WHERE counter(a) > 1", "counter is an aggregate"),
    ],
)
def test_invalid_calls_are_reported(select: str, words: str, known: Catalog) -> None:
    with pytest.raises(SqlError, match="line 1") as refused:
        plan(parse(select)[0], known)
    assert words in str(refused.value)


def test_planning_names_a_missing_function() -> None:
    rows = identity("gone")
    install(rows)
    planned, catalog = plan_all(parse(CREATE), Catalog())
    assert isinstance(planned[0], CreateStream)
    plan(parse("SELECT gone(a) FROM s")[0], catalog)
    uninstall(rows)
    with pytest.raises(Refuse, match="the function gone does not exist"):
        plan(parse("SELECT gone(a) FROM s")[0], catalog)
    with pytest.raises(Refuse, match="is its module configured"):
        LIBRARY["gone(double)"]
