"""How the command line prints: data on stdout, messages on stderr, and JSON with --json."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from millrace.protocol.words import printable


def out(text: str) -> None:
    """A line of data."""
    sys.stdout.write(printable(text, lines=True) + "\n")


def flush() -> None:
    """Pass buffered output on to its reader."""
    sys.stdout.flush()


def discard_output() -> None:
    """The reader of our output has ended (`| head`). That is not a failure, and Python must not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tell(text: str) -> None:
    """A message for the user at the terminal."""
    sys.stderr.write(printable(text, lines=True) + "\n")


def as_json(value: object) -> None:
    out(json.dumps(value, indent=2, ensure_ascii=False))


def compact(value: object) -> str:
    """A line of JSON as `millrace run` writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their content; nothing is cut, because names are there to be copied."""
    for line in aligned(heads, rows):
        out(line)


def aligned(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    lines = [list(heads), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        yield "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()


def details(item: Mapping[str, Any]) -> None:
    """One thing, a line per property; lists of properties are indented below their name."""
    width = max((len(name) for name in item), default=0)
    for name, value in item.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            out(f"{name}:")
            for part in value:
                out("  " + ", ".join(f"{key} {_cell(inner)}" for key, inner in part.items()))
        else:
            out(f"{name.ljust(width)}  {_cell(value)}")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_field(item) if isinstance(item, list) else _cell(item) for item in value) or "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_cell(inner)}" for key, inner in value.items()) or "-"
    return printable(str(value))


def _field(item: Sequence[object]) -> str:
    """A field of a schema: [name, type, nullable]."""
    name, kind, nullable = item
    return f"{printable(str(name))} {kind}" + ("" if nullable else " not null")
