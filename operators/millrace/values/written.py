"""Expressions as SQL that parses to the same expression."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from millrace.protocol import Type
from millrace.protocol.timestamps import format_timestamp
from millrace.values import expression as e
from millrace.values.intervals import format_interval

# A dot separates a table from its column.
_PLAIN_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)*")
_INFIX: Final = frozenset(
    (
        "+",
        "-",
        "*",
        "/",
        "%",
        "||",
        "=",
        "<>",
        "<",
        "<=",
        ">",
        ">=",
        "and",
        "or",
        "is distinct from",
        "is not distinct from",
    )
)


def show_name(name: str) -> str:
    """The name of a column, in quotes if it is not a plain one."""
    return name if _PLAIN_NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def show_as(shown: str, name: str) -> str:
    return shown if shown == show_name(name) else f"{shown} AS {show_name(name)}"


def show_column(name: str, column: e.Expression) -> str:
    return show_as(show(column), name)


def show(expression: e.Expression) -> str:
    """An expression as SQL."""
    match expression:
        case e.Column():
            return show_name(expression.name)
        case e.Constant():
            return _constant(expression.type, expression.value)
        case e.Cast():
            return f"CAST({show(expression.argument)} AS {expression.type})"
        case e.Case():
            branches = " ".join(f"WHEN {show(test)} THEN {show(value)}" for test, value in expression.branches)
            return f"CASE {branches} ELSE {show(expression.otherwise)} END"
        case e.Call():
            return _call(expression.function.partition("(")[0], expression.arguments)
    raise AssertionError(expression)


def _call(name: str, arguments: Sequence[e.Expression]) -> str:
    shown = [show(argument) for argument in arguments]
    inner = [f"({text})" if _infix(argument) else text for text, argument in zip(shown, arguments, strict=True)]
    if len(shown) == 2 and name in _INFIX:
        return f"{inner[0]} {name.upper()} {inner[1]}"
    if len(shown) == 1 and name.startswith("is "):
        return f"{inner[0]} {name.upper()}"
    if name == "not":
        return f"NOT {inner[0]}"
    if name == "-" and len(shown) == 1:
        return f"-{inner[0]}" if not inner[0].startswith("-") else f"-({inner[0]})"
    if name == "in":
        return f"{inner[0]} IN ({', '.join(shown[1:])})"
    if name in ("like", "ilike"):
        escape = f" ESCAPE {inner[2]}" if len(inner) > 2 else ""
        return f"{inner[0]} {name.upper()} {inner[1]}{escape}"
    if name.startswith("extract "):
        return f"extract({name.removeprefix('extract ')} FROM {shown[0]})"
    return f"{name}({', '.join(shown)})"


def _infix(argument: e.Expression) -> bool:
    if not isinstance(argument, e.Call):
        return False
    name = argument.function.partition("(")[0]
    return name in _INFIX or name in ("in", "like", "ilike", "not") or name.startswith("is ")


def _constant(type: Type, value: Any) -> str:
    if value is None:
        return "NULL"
    match type:
        case Type.BOOLEAN:
            return str(value).upper()
        case Type.TEXT:
            return "'" + str(value).replace("'", "''") + "'"
        case Type.TIMESTAMP:
            return f"TIMESTAMP '{format_timestamp(value)}'"
        case Type.INTERVAL:
            return f"INTERVAL '{format_interval(value)}'"
        case Type.BYTES:
            return f"CAST('\\x{value.hex()}' AS bytes)"
    return repr(value)
