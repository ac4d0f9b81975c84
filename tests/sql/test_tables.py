"""The stored tables of the parser: the same parser as from the grammar, and never the tables of another grammar."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lark
import pytest

from millrace.sql import parser, tables
from tests.sql.test_errors import CASES
from tests.sql.test_plan import SHAPES, STREAMS

REPOSITORY = Path(__file__).parents[2]
GRAMMAR = (Path(tables.__file__).parent / tables.GRAMMAR).read_text("utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the grammar and tables generated from it."""
    path = tmp_path_factory.mktemp("sql")
    (path / tables.GRAMMAR).write_text(GRAMMAR, "utf-8")
    assert tables.keep_tables(path)
    return path


@pytest.fixture
def stored(folder: Path) -> bytes:
    return (folder / tables.TABLES).read_bytes()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The grammars whose tables were built again; a small stand-in is built instead, for speed."""
    grammars: list[str] = []

    class Watched(lark.Lark):
        def __init__(self, grammar: str, **settings: Any) -> None:
            grammars.append(grammar)
            assert settings == tables.SETTINGS
            super().__init__('start: "x"', parser="lalr")

    monkeypatch.setattr(lark, "Lark", Watched)
    return grammars


def outcome(parser: lark.Lark, text: str) -> Any:
    """The tree with its positions, or the error with the tokens that the parser expected."""
    try:
        tree = parser.parse(text)
    except lark.exceptions.UnexpectedToken as error:
        return str(error.token), error.token.start_pos, error.accepts
    except lark.exceptions.UnexpectedCharacters as error:
        return error.pos_in_stream, error.allowed
    spans = [
        (tree.data, tree.meta.start_pos, tree.meta.end_pos) for tree in tree.iter_subtrees() if not tree.meta.empty
    ]
    return tree, spans


def test_stored_tables_parse_like_the_grammar(stored: bytes) -> None:
    loaded, fresh = tables.make_parser(GRAMMAR, stored), lark.Lark(GRAMMAR, **tables.SETTINGS)
    for text in (STREAMS, *SHAPES, *(marked.replace("«", "") for marked, _ in CASES)):
        assert outcome(loaded, text) == outcome(fresh, text), text


def test_tables_that_fit_are_used(stored: bytes, built: list[str]) -> None:
    tables.make_parser(GRAMMAR, stored)
    assert built == []


def test_the_tables_of_another_grammar_are_not_used(stored: bytes, built: list[str]) -> None:
    tables.make_parser(GRAMMAR + "\n// changed", stored)
    assert built == [GRAMMAR + "\n// changed"]


def test_the_tables_of_another_lark_are_not_used(
    stored: bytes, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lark, "__version__", "0.0.1")
    tables.make_parser(GRAMMAR, stored)
    assert built == [GRAMMAR]


def test_missing_or_damaged_tables_are_not_used(stored: bytes, built: list[str]) -> None:
    content = json.loads(stored)
    without = [json.dumps({key: value for key, value in content.items() if key != gone}) for gone in content]
    values: list[Any] = [None, [], "x", {"a": 1}]
    wrong = [json.dumps({**content, name: value}) for name in ("data", "memo") for value in values]
    damaged = [b"", b"null", b"[]", b"\xff", stored[:-1], stored[: len(stored) // 2], *map(str.encode, without + wrong)]
    for broken in (None, *damaged):
        tables.make_parser(GRAMMAR, broken)
    assert built == [GRAMMAR] * (1 + len(damaged))


def test_tables_are_written_once_and_again_when_they_are_old(folder: Path) -> None:
    assert not tables.keep_tables(folder)
    grammar, path = folder / tables.GRAMMAR, folder / tables.TABLES
    try:
        grammar.write_text('start: "x"', "utf-8")
        assert tables.keep_tables(folder)
        assert tables.make_parser('start: "x"', path.read_bytes()).parse("x").data == "start"
        assert sorted(item.name for item in folder.iterdir()) == sorted([tables.GRAMMAR, tables.TABLES])
    finally:
        grammar.write_text(GRAMMAR, "utf-8")
        tables.keep_tables(folder)


def test_the_parser_works_where_no_tables_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "TABLES", "no-such.json")
    assert parser.kept_tables() is None
    assert parser.grammar.__wrapped__().parse("SELECT a FROM s").data == "start"


# -- the build hook ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The build hook and the sources of its tables, with a grammar that builds quickly."""
    sql = tmp_path / "operators/millrace/sql"
    sql.mkdir(parents=True)
    shutil.copy(REPOSITORY / "build_hook.py", tmp_path)
    shutil.copy(tables.__file__, sql)
    (sql / tables.GRAMMAR).write_text('start: "x"', "utf-8")
    return tmp_path


def test_the_build_writes_the_tables_and_reports_it_once(tree: Path) -> None:
    settings = {name: value for name, value in os.environ.items() if name != "MILLRACE_NO_KERNELS"}
    command = [sys.executable, "build_hook.py"]
    for output in ("kernels: 0 compiled, up to date\nparser: tables written\n", "kernels: 0 compiled, up to date\n"):
        done = subprocess.run(command, cwd=tree, env=settings, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == (output, "")
    assert (tree / "operators/millrace/sql" / tables.TABLES).is_file()


def hook_of(tree: Path) -> Any:
    """The build hook's module."""
    spec = importlib.util.spec_from_file_location("hook", tree / "build_hook.py")
    assert spec is not None
    assert spec.loader is not None
    hook: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    return hook


def test_a_build_without_lark_continues_and_reports_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = hook_of(tree)
    monkeypatch.setitem(sys.modules, "lark", None)
    assert hook.keep_tables(tree).startswith("parser: tables not kept, the first statement takes half a second longer")
    assert not (tree / "operators/millrace/sql" / tables.TABLES).exists()


@pytest.mark.parametrize("version", ["standard", "editable"])
def test_a_wheel_contains_the_tables_and_an_editable_install_finds_them(tree: Path, version: str) -> None:
    hook = hook_of(tree)
    builder = hook.get_build_hook()(str(tree), {}, None, None, str(tree), "wheel")
    data: dict[str, Any] = {"force_include": {}}
    builder.initialize(version, data)
    path = tree / "operators/millrace/sql" / tables.TABLES
    assert path.is_file()
    assert data["force_include"] == ({str(path): f"millrace/sql/{path.name}"} if version == "standard" else {})
