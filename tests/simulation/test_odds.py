"""The table of odds is complete: nothing is drawn beside it, and each of its rows is drawn."""

from __future__ import annotations

import ast
import itertools
import random
import re
from pathlib import Path

import pytest

from tests.simulation import odds
from tests.simulation.__main__ import main
from tests.simulation.joined import _JoinMaker
from tests.simulation.world import _Maker, _WindowMaker

MODULES = [path for path in sorted(Path(__file__).parent.glob("*.py")) if path.name not in ("odds.py", "test_odds.py")]


def drawn_here(call: ast.Call) -> bool:
    """Whether a call draws with odds written at the place itself."""
    match call:
        case ast.Call(ast.Attribute(attr="random" | "choices" | "shuffle" | "sample" | "uniform")):
            return True
        case ast.Call(ast.Attribute(attr="choice"), [ast.List(options) | ast.Tuple(options)]):
            return not any(isinstance(option, ast.Starred) for option in options)
        case ast.Call(ast.Attribute(attr="choice"), [ast.Constant()]):
            return True
        case ast.Call(ast.Attribute(attr="randint" | "randrange"), limits):
            return all(isinstance(limit, ast.Constant) for limit in limits)
    return False


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_nothing_is_drawn_beside_the_table(module):
    calls = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)]
    assert [f"{module.name}:{call.lineno}" for call in calls if drawn_here(call)] == []


@pytest.mark.parametrize(
    "text", ["rng.random() < 0.5", "rng.choice([1, 2])", "rng.choice('ab')", "rng.choices(a, b)", "rng.randint(1, 2)"]
)
def test_odds_outside_the_table_are_noticed(text):
    assert any(drawn_here(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))


def test_each_row_is_drawn_and_has_options():
    source = "".join(path.read_text() for path in MODULES)
    names = set(re.findall(r'"([a-z]+\.[^"{}]+)"', source)) | set(re.findall(r"draw\(rng, '([^']+)'\)", source))
    sql = ast.walk(ast.parse((Path(__file__).parent / "sql.py").read_text()))
    names |= {f"sql.{node.value!s}" for node in sql if isinstance(node, ast.Constant)}
    rooms = [maker.ODDS for maker in (_Maker, _JoinMaker, _WindowMaker)]
    names |= {
        f"{room}.{what}" for room, what in itertools.product(rooms, re.findall(r'f"{self.ODDS}\.([^"]+)"', source))
    }
    assert odds.TABLE.keys() - names == set()
    for row in odds.TABLE.values():
        assert row.draw(random.Random(0)) is not None or None in row.shares()


def test_the_table_is_printed(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["simulation", "--odds"])
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines] == list(odds.TABLE)
    kinds = ("append", "auto", "deadline", "fifo", "inplace", "linecutting")
    assert "updates.queue" + " " * 20 + ", ".join(f"{kind} 16.7 %" for kind in kinds) in lines


def test_shares_are_those_of_the_draws():
    rng = random.Random(1)
    for name, row in odds.TABLE.items():
        if not isinstance(row, odds.Between | odds.Chance):
            found = [row.draw(rng) for _ in range(4_000)]
            for option, share in row.shares().items():
                assert abs(found.count(option) / len(found) - share) < 0.05, (name, option)
