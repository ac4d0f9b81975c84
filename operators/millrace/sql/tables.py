"""The parser's tables, stored next to the grammar: building them takes half a second, reading them a few hundredths.

`build_hook.py` writes the file when the package is built or refreshed. The parser reads the file if it matches and
otherwise builds the tables itself, so a missing or old file only costs time. The file matches if it was built from the
same grammar, by the same version of Lark, with the same settings. It is JSON and not a pickle, because its content is
data and must never run.

This module imports nothing of Millrace, because the build hook loads it by its path.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import lark

SETTINGS: Final[dict[str, Any]] = {
    "parser": "lalr",
    "lexer": "contextual",
    "propagate_positions": True,
    "maybe_placeholders": True,
}
GRAMMAR: Final = "grammar.lark"
TABLES: Final = "grammar.tables.json"


def make_parser(grammar: str, stored: bytes | None) -> lark.Lark:
    """The parser of this grammar, from the stored tables if they match."""
    parser = None if stored is None else _read(grammar, stored)
    return _passing(parser or lark.Lark(grammar, **SETTINGS))


def _passing(parser: lark.Lark) -> lark.Lark:
    """The same parser, in which an inlined rule of one part (`?sum: product`) only returns its child.

    A constant in an expression passes through thirteen such rules, and Lark computes its position again in each.
    """
    callbacks = parser.parser.parser.parser.callbacks
    for rule in callbacks:
        alone = len(rule.expansion) == 1 and not rule.expansion[0].name.startswith("_")
        if alone and rule.options.expand1 and rule.alias is None and not any(rule.options.empty_indices or ()):
            callbacks[rule] = itemgetter(0)
    return parser


def _read(grammar: str, stored: bytes) -> lark.Lark | None:
    """The parser of the stored tables, or None if they belong to another grammar or are damaged."""
    try:
        tables = json.loads(stored)
        if tables["key"] != _key(grammar):
            return None
        data = tables["data"]
        automaton = data["parser"]["parser"]
        automaton["tokens"] = _by_number(automaton["tokens"])
        automaton["states"] = {int(state): _by_number(row) for state, row in automaton["states"].items()}
        # The start of Lark's own standalone parsers.
        load: Callable[..., lark.Lark] = lark.Lark._load_from_dict
        return load(data, _by_number(tables["memo"]))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def keep_tables(folder: Path) -> bool:
    """Write the tables next to the grammar in this folder, if needed; True if so. The file is replaced atomically."""
    grammar = (folder / GRAMMAR).read_text("utf-8")
    path = folder / TABLES
    if path.exists() and _read(grammar, path.read_bytes()) is not None:
        return False
    data, memo = lark.Lark(grammar, **SETTINGS).memo_serialize([lark.lexer.TerminalDef, lark.grammar.Rule])
    waiting = path.with_name(path.name + ".new")
    tables = {"key": _key(grammar), "data": data, "memo": memo}
    waiting.write_text(json.dumps(tables, separators=(",", ":")), "utf-8")
    waiting.replace(path)
    return True


def _key(grammar: str) -> dict[str, Any]:
    """The inputs that the tables depend on."""
    return {"grammar": hashlib.sha256(grammar.encode()).hexdigest(), "lark": lark.__version__, "settings": SETTINGS}


def _by_number(items: dict[str, Any]) -> dict[int, Any]:
    """Convert keys: JSON has texts, Lark needs numbers."""
    return {int(number): item for number, item in items.items()}
