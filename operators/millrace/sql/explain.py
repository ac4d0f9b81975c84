"""EXPLAIN: prints a plan, one line per operator, and its class of equality.

Expressions are printed as SQL that parses to the same expression.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from typing import Any, Final

from millrace.engine.plan import Node, QueryPlan, origin_of
from millrace.operators.join.bands import close_bands
from millrace.operators.queues.edge import EdgeSpec
from millrace.operators.spec import (
    AggregateCall,
    AggregateSpec,
    Band,
    FilterSpec,
    JoinSpec,
    MapSpec,
    Rank,
    RetimeSpec,
    RowWindow,
    SelectSpec,
    SequenceSpec,
    SessionWindow,
    SortSpec,
    Spec,
    TimeWindow,
    TopSpec,
    UnionSpec,
    WindowSpec,
)
from millrace.protocol import Schema, Type
from millrace.protocol.timestamps import format_timestamp
from millrace.protocol.units import UNITS
from millrace.sql.parser import written
from millrace.sql.planned import Catalog
from millrace.sql.updates import depends_on_steps, sheds
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

# By the inputs whose rows are all emitted.
KINDS: Final = {(): "join", (0,): "left join", (1,): "right join", (0, 1): "full join"}


def explain(plan: QueryPlan, catalog: Catalog) -> str:
    """The plan, one line per operator, inputs before their readers."""
    lines = [f"query {plan.name}: order {plan.options.order}{_key_words(plan)}, equality {equality(plan, catalog)}"]
    rows = [(f"{name}.source", _stream_words(name, catalog)) for name in plan.reads_streams]
    rows += [(catalog.queries[name].output, f"the rows of query {name}") for name in plan.reads_queries]
    schemas = _schemas(plan, catalog)
    for node in plan.nodes:
        retracts = _emits_tombstones(node.spec) and schemas[node.name].retracts
        words = f"{spec_words(node)}{', retracts rows' if retracts else ''}"
        inputs = [f"{name}{_edge_words(node.edge(at), schemas[name])}" for at, name in enumerate(node.inputs)]
        rows.append((node.name, f"{words} <- {', '.join(inputs)}"))
    rows.append((plan.sink, f"sink <- {plan.output}"))
    width = max(len(name) for name, _ in rows)
    lines += [f"  {name:<{width}}  {words}" for name, words in rows]
    lines += [f"  note: {note}" for note in plan.notes]
    lines += [f"  warning: {warning}" for warning in plan.warnings]
    return "\n".join(lines)


def _key_words(plan: QueryPlan) -> str:
    if plan.update_key is None:
        return ""
    return f", update key {', '.join(map(_name, plan.update_key))}" if plan.update_key else ", one row"


def _edge_words(edge: EdgeSpec, schema: Schema) -> str:
    """The policy of an edge, or nothing if it keeps every row."""
    if edge.shed is not None:
        return f" SHED RANDOM {edge.shed}"
    if not edge.updates:
        return ""
    commit = f" {edge.commit.upper()}" if edge.commit else ""
    key = ", ".join(_name(schema.names[at]) for at in edge.key)
    return f" LATEST{commit} USING {edge.kind.upper()}{f' by {key}' if key else ''}"


def _schemas(plan: QueryPlan, catalog: Catalog) -> dict[str, Schema]:
    """The schema of every operator's rows."""
    schemas = {stream.source: stream.schema for stream in map(catalog.stream, plan.reads_streams)}
    schemas |= {query.output: query.schema for query in map(catalog.queries.__getitem__, plan.reads_queries)}
    for node in plan.nodes:
        schemas[node.name] = node.spec.schema(
            [node.edge(at).reads(schemas[name]) for at, name in enumerate(node.inputs)]
        )
    return schemas


def _emits_tombstones(spec: Spec) -> bool:
    """Whether an operator itself emits tombstones, and does not only pass them on."""
    return isinstance(spec, FilterSpec | TopSpec | AggregateSpec)


def equality(plan: QueryPlan, catalog: Catalog) -> str:
    """The class of equality: the guarantee for two runs over the same tuples.

    rows    the same rows; with event order also in the same order, up to ties
    final   the same last row for each key of an update stream, whatever the number of updates in between
    load    the rows depend on how busy the engine is. A latent stream's tuples are stamped when an operator needs
            their time; a query or an edge that emits only some rows of a key changes which row is current; or SHED
            drops rows.
    """
    if depends_on_steps(plan, catalog) or sheds(plan):
        return "load"
    latent = any(catalog.stream(name).timestamps == "latent" for name in plan.reads_streams)
    below = any(equality(catalog.queries[name], catalog) == "load" for name in plan.reads_queries)
    return "load" if latent or below else "rows" if plan.update_key is None else "final"


def _stream_words(name: str, catalog: Catalog) -> str:
    stream = catalog.stream(name)
    if name not in catalog.streams:
        return f"late tuples of stream {origin_of(name)}, internal time at"
    time = f"external time {stream.time}" if stream.time else f"{stream.timestamps} time"
    unit = "" if stream.time_unit == "us" else f" in {UNITS[stream.time_unit].words}"
    return f"stream {name}, {time}{unit}"


def spec_words(node: Node) -> str:
    """An operator in words; a join or a sequence names its inputs."""
    match node.spec:
        case JoinSpec() as spec:
            return join_words(spec, labels(node.inputs))
        case SequenceSpec() as spec:
            return sequence_words(spec, labels(node.inputs))
    return _spec_words(node.spec)


def labels(inputs: Sequence[str]) -> list[str]:
    """Short names for inputs: the stream's name, with a number from its second use on."""
    names: list[str] = []
    for name in inputs:
        short = name.removesuffix(".source")
        uses = sum(earlier.removesuffix(".source") == short for earlier in inputs[: len(names)])
        names.append(f"{short}{uses + 1}" if uses else short)
    return names


def _spec_words(spec: Spec) -> str:
    match spec:
        case SelectSpec(predicate):
            return f"filter WHERE {show(predicate)}"
        case MapSpec(columns):
            return "project " + ", ".join(_column_words(name, column) for name, column in columns)
        case UnionSpec(key=tuple()):
            return "union of the newest row of each key"
        case UnionSpec(ordered):
            return "union in order of time" if ordered else "union as rows arrive"
        case FilterSpec(predicate, emit=emit):
            return f"filter current rows WHERE {show(predicate)}{_after_every(emit)}"
        case TopSpec():
            return _top_words(spec)
        case SortSpec():
            return "sort by time"
        case WindowSpec():
            return _window_spec_words(spec)
        case AggregateSpec():
            return _aggregate_words(spec)
        case RetimeSpec(position, lag_us):
            return f"retime to the time of column {position + 1}, {_lag_words(lag_us)} (individual punctuation)"
    return spec.kind


def _after_every(emit: str) -> str:
    return " after every row" if emit == "every" else ""


def _top_words(spec: TopSpec) -> str:
    words = f"top {spec.most}"
    if spec.replaces is not None:
        words += " of the current rows"
    if spec.partition:
        words += " by " + ", ".join(_name(column.name) for column in spec.partition)
    words += ", in order of " + ", ".join(map(_rank_words, spec.order))
    if spec.ordered:
        words += " in order"
    final = ", emitted when the window closes" if spec.closes_at is not None else ""
    return f"{words}{_after_every(spec.emit)}{final}: {_name(spec.number)}"


def _rank_words(rank: Rank) -> str:
    words = show(rank.by) + (" DESC" if rank.descending else "")
    # The opposite is the default.
    return words if rank.nulls_first == rank.descending else f"{words} NULLS {'FIRST' if rank.nulls_first else 'LAST'}"


def _window_spec_words(spec: WindowSpec) -> str:
    words = f"{_window_words(spec.window)}, each row once per window"
    if spec.columns is not None:
        words += ": " + ", ".join(_column_words(name, column) for name, column in spec.columns)
    return words if spec.where is None else f"{words} WHERE {show(spec.where)}"


def _lag_words(lag_us: int) -> str:
    if lag_us < 0:
        return f"at least {format_interval(-lag_us)} after the row's own"
    return f"at most {format_interval(lag_us)} before the row's own"


# -- joins and sequences -----------------------------------------------------------------------------------------------


def join_words(spec: JoinSpec, names: Sequence[str]) -> str:
    """The order of a join, its keys, bounds on times and other conditions, and the rows that it keeps."""
    how = {
        "arrival": "as rows arrive",
        "sync": "in order of time (sync)",
        "filter": "in order of time (filter)",
        "adaptive": f"in order of time (adaptive, alpha {spec.alpha})",
    }[spec.order]
    keys = [f"{_of(names[pair.left], pair.left_key)} = {_of(names[pair.right], pair.right_key)}" for pair in spec.equal]
    tests = [*keys, *(_band_words(band, names) for band in spec.bands)]
    tests += [] if spec.where is None else [show(spec.where)]
    state = [_kept_words(spec, at, names) for at in range(len(names))]
    condition = " AND ".join(tests) or "TRUE"
    return f"{KINDS[spec.outer]} {how}: {' with '.join(names)} ON {condition}; keeps {', '.join(state)}"


def _of(name: str, key: e.Expression) -> str:
    """An expression over one input, with its name before each column."""

    def qualified(part: e.Expression) -> e.Expression | None:
        return replace(part, name=f"{name}.{part.name}") if isinstance(part, e.Column) else None

    return show(e.rewrite(key, qualified))


def _band_words(band: Band, names: Sequence[str]) -> str:
    """Bounds on the rows' own times."""
    left, right = (f"time({names[at]})" for at in (band.left, band.right))
    if band.low_us == 0 == band.high_us:
        return f"{left} = {right}"
    words = right
    if band.low_us is not None:
        words = f"{_shift(left, band.low_us)} <= {words}"
    if band.high_us is not None:
        words = f"{words} <= {_shift(left, band.high_us)}"
    return words


def _shift(time: str, by_us: int) -> str:
    return time if not by_us else f"{time} {'-' if by_us < 0 else '+'} {format_interval(abs(by_us))}"


def _kept_words(spec: JoinSpec, at: int, names: Sequence[str]) -> str:
    name, count = names[at], len(names)
    if spec.rows is not None and spec.rows[at] is not None:
        return f"the newest {spec.rows[at]} of {name}"
    most = close_bands(spec.bands, count)[at]
    bounds = [bound for bound in most if bound is not None]
    if len(bounds) < count:
        return f"{name} forever"
    return f"{name} for {format_interval(max(bounds))}"


def sequence_words(spec: SequenceSpec, names: Sequence[str]) -> str:
    """How a sequence pairs rows of the first input with rows of the second."""
    first, second = names
    if spec.absent:
        words = f"each {first} that no {second} follows"
    elif spec.mode == "chronicle":
        words = f"each {second} with the oldest {first} before it that is not used yet (CHRONICLE)"
    else:
        words = f"each {second} with the newest {first} before it" + (
            ", if there is one" if spec.outer else " (RECENT)"
        )
    keys = [f"{_of(first, left)} = {_of(second, right)}" for left, right in spec.keys]
    if keys:
        words += f" ON {' AND '.join(keys)}"
    if spec.within_us is not None:
        words += f" WITHIN {format_interval(spec.within_us)}"
    if spec.where is not None:
        words += f" WHERE {show(spec.where)}"
    return f"sequence: {words}; keeps {_sequence_state(spec, first)}"


def _sequence_state(spec: SequenceSpec, first: str) -> str:
    each = " of each key" if spec.keys else ""
    if not spec.absent and spec.mode == "recent":
        return f"the newest {first}{each}"
    unused = f"{first} until it is used" if not spec.absent else first
    return f"{unused}, forever" if spec.within_us is None else f"{unused}, for {format_interval(spec.within_us)}"


def _aggregate_words(spec: AggregateSpec) -> str:
    """An aggregate's window, groups, aggregates, and whether its rows are in order."""
    words = ["aggregate", _window_words(spec.window) if spec.replaces is None else "the current rows"]
    if spec.newest:
        words[1] = f"the newest of {words[1]}"
    elif isinstance(spec.window, TimeWindow) and spec.window.slide_us != spec.window.size_us:
        words.append(f"in panes of {format_interval(gcd(spec.window.size_us, spec.window.slide_us))}")
    if spec.where is not None:
        words.append(f"WHERE {show(spec.where)}")
    if spec.keys:
        shown = (show(key) if spec.rows else _column_words(name, key) for name, key in spec.keys)
        words.append("by " + ", ".join(shown))
    if spec.rows:
        words[-1] += ", each row when its session closes"
    columns = [_alias_words(_call_words(call), name) for name, call in spec.calls]
    columns += [_alias_words(f"window_{side}", name) for name, side in spec.bounds]
    if spec.ordered:
        words.append("in order")
    if spec.flush != "none":
        words.append(f"emitted {spec.flush} within {format_interval(spec.max_delay_us)}")
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
    return "all rows so far"


def _call_words(call: AggregateCall) -> str:
    name = call.function.partition("(")[0]
    arguments = ", ".join(map(show, call.arguments)) or "*"
    only = "" if call.filter is None else f" FILTER (WHERE {show(call.filter)})"
    return f"{name}({'DISTINCT ' if call.distinct else ''}{arguments}){only}"


def _alias_words(shown: str, name: str) -> str:
    return shown if shown == _name(name) else f"{shown} AS {_name(name)}"


def _column_words(name: str, column: e.Expression) -> str:
    return _alias_words(show(column), name)


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
    return name if _PLAIN_NAME.fullmatch(name) else written(name)
