"""The parser's tables, kept beside the grammar: building them takes half a second, reading them a few hundredths.

`build_hook.py` writes the file when the package is built or refreshed; the parser reads it if it fits and builds the
tables itself if it does not, so a missing or old file costs time and nothing else. It is JSON and not a pickle: what
is in it is data and never runs. It fits if it was made from this very grammar, by this version of Lark, with these
settings.

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


def make_parser(grammar: str, kept: bytes | None) -> lark.Lark:
    """The parser of this grammar, by the kept tables if they fit."""
    parser = None if kept is None else _read(grammar, kept)
    return _passing(parser or lark.Lark(grammar, **SETTINGS))


def _passing(parser: lark.Lark) -> lark.Lark:
    """The same parser; a rule of one part that is inlined (`?sum: product`) hands its child on and does no more.

    An expression's constant goes through thirteen of them, and Lark finds its position again in each.
    """
    callbacks = parser.parser.parser.parser.callbacks
    for rule in callbacks:
        alone = len(rule.expansion) == 1 and not rule.expansion[0].name.startswith("_")
        if alone and rule.options.expand1 and rule.alias is None and not any(rule.options.empty_indices or ()):
            callbacks[rule] = itemgetter(0)
    return parser


def _read(grammar: str, kept: bytes) -> lark.Lark | None:
    """The parser whose tables were kept, or None if they are another grammar's or damaged."""
    try:
        tables = json.loads(kept)
        if tables["key"] != _key(grammar):
            return None
        data = tables["data"]
        automaton = data["parser"]["parser"]
        automaton["tokens"] = _by_number(automaton["tokens"])
        automaton["states"] = {int(state): _by_number(row) for state, row in automaton["states"].items()}
        # What Lark's own standalone parsers begin with.
        load: Callable[..., lark.Lark] = lark.Lark._load_from_dict
        return load(data, _by_number(tables["memo"]))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def keep_tables(folder: Path) -> bool:
    """Put the tables beside the grammar in this folder; say whether that was needed. The file is swapped in whole."""
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
    """What the tables depend on."""
    return {"grammar": hashlib.sha256(grammar.encode()).hexdigest(), "lark": lark.__version__, "settings": SETTINGS}


def _by_number(items: dict[str, Any]) -> dict[int, Any]:
    """Keys are texts in JSON and numbers to Lark."""
    return {int(number): item for number, item in items.items()}
