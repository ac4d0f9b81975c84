"""A plan in words: one line per operator, and what may be compared with what.

Expressions are printed as SQL that reads back as the same expression.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import gcd
from typing import Any, Final

from millrace.engine.plan import QueryPlan
from millrace.operators import expression as e
from millrace.operators.intervals import format_interval
from millrace.operators.spec import (
    AggregateCall,
    AggregateSpec,
    MapSpec,
    RowWindow,
    SelectSpec,
    SessionWindow,
    SortSpec,
    Spec,
    TimeWindow,
    UnionSpec,
    WindowSpec,
)
from millrace.protocol import Type
from millrace.protocol.timestamps import format_timestamp
from millrace.sql.planned import LATE, Catalog

_PLAIN_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")
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


def explain(plan: QueryPlan, catalog: Catalog) -> str:
    """The plan, a line per operator, inputs before readers."""
    lines = [f"query {plan.name}: order {plan.options.order}, equality {equality(plan, catalog)}"]
    rows = [(f"{name}.source", _stream_words(name, catalog)) for name in plan.reads_streams]
    rows += [(catalog.queries[name].output, f"the rows of query {name}") for name in plan.reads_queries]
    rows += [(node.name, f"{_spec_words(node.spec)} <- {', '.join(node.inputs)}") for node in plan.nodes]
    rows.append((plan.sink, f"sink <- {plan.output}"))
    width = max(len(name) for name, _ in rows)
    lines += [f"  {name:<{width}}  {words}" for name, words in rows]
    return "\n".join(lines)


def equality(plan: QueryPlan, catalog: Catalog) -> str:
    """The class of equality: what two runs over the same tuples have in common.

    `rows`: the same rows, in event order also their order up to ties. `load`: what comes out depends on how busy the
    engine was, here because a latent stream's tuples are stamped when an operator needs their time. `final`: the same
    last row for each key of an update stream, however often it was updated on the way.
    """
    latent = any(catalog.stream(name).timestamps == "latent" for name in plan.reads_streams)
    below = any(equality(catalog.queries[name], catalog) == "load" for name in plan.reads_queries)
    return "load" if latent or below else "rows" if plan.update_key is None else "final"


def _stream_words(name: str, catalog: Catalog) -> str:
    stream = catalog.stream(name)
    if name not in catalog.streams:
        return f"late tuples of stream {name.removesuffix(LATE)}, internal time at"
    time = f"external time {stream.time}" if stream.time else f"{stream.timestamps} time"
    return f"stream {name}, {time}"


def _spec_words(spec: Spec) -> str:
    match spec:
        case SelectSpec(predicate):
            return f"select WHERE {show(predicate)}"
        case MapSpec(columns):
            return "map " + ", ".join(_column_words(name, column) for name, column in columns)
        case UnionSpec(ordered):
            return "union in order of time" if ordered else "union as rows arrive"
        case SortSpec():
            return "sort by time"
        case WindowSpec():
            return _window_spec_words(spec)
        case AggregateSpec():
            return _aggregate_words(spec)
    return spec.kind


def _window_spec_words(spec: WindowSpec) -> str:
    words = f"map to {_window_words(spec.window)}, each row once per window"
    if spec.columns is not None:
        words += ": " + ", ".join(_column_words(name, column) for name, column in spec.columns)
    return words if spec.where is None else f"{words} WHERE {show(spec.where)}"


def _aggregate_words(spec: AggregateSpec) -> str:
    """Window, groups, aggregates; in order or out of order."""
    words = ["aggregate", _window_words(spec.window)]
    if isinstance(spec.window, TimeWindow) and spec.window.slide_us != spec.window.size_us:
        words.append(f"in panes of {format_interval(gcd(spec.window.size_us, spec.window.slide_us))}")
    if spec.where is not None:
        words.append(f"WHERE {show(spec.where)}")
    if spec.keys:
        shown = (show(key) if spec.rows else _column_words(name, key) for name, key in spec.keys)
        words.append("by " + ", ".join(shown))
    if spec.rows:
        words[-1] += ", each row when its session closes"
    columns = [_named(_call_words(call), name) for name, call in spec.calls]
    columns += [_named(f"window_{side}", name) for name, side in spec.bounds]
    if spec.ordered:
        words.append("in order")
    if spec.flush != "none":
        words.append(f"given {spec.flush} within {format_interval(spec.max_delay_us)}")
    if spec.window is None and spec.emit == "every":
        words.append("after every row")
    return " ".join(words) + (f": {', '.join(columns)}" if columns else "")


def _window_words(window: TimeWindow | SessionWindow | RowWindow | None) -> str:
    match window:
        case TimeWindow(size, slide, offset):
            words = f"windows of {format_interval(size)}"
            if slide != size:
                words += f" every {format_interval(slide)}"
            return words + (f" from {format_interval(offset)}" if offset else "")
        case SessionWindow(gap):
            return f"sessions with gaps of {format_interval(gap)}"
        case RowWindow(size, slide):
            return f"windows of {size} rows every {slide}"
    return "all so far"


def _call_words(call: AggregateCall) -> str:
    name = call.function.partition("(")[0]
    arguments = ", ".join(map(show, call.arguments)) or "*"
    only = "" if call.filter is None else f" FILTER (WHERE {show(call.filter)})"
    return f"{name}({'DISTINCT ' if call.distinct else ''}{arguments}){only}"


def _named(shown: str, name: str) -> str:
    return shown if shown == _name(name) else f"{shown} AS {_name(name)}"


def _column_words(name: str, column: e.Expression) -> str:
    return _named(show(column), name)


def show(expression: e.Expression) -> str:
    """An expression as SQL."""
    match expression:
        case e.Column():
            return _name(expression.name)
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


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"'
