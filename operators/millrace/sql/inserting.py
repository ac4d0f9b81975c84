"""INSERT INTO ... VALUES: computes the rows of a stream from constant expressions.

Rule: a value must have its column's type, with the conversions of function arguments: a bigint as a double, a text as a
timestamp, NULL as anything. A number in the time field is in the stream's unit. Any other value is refused at its
place. The error names the column, the expected type and the actual value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from millrace.engine.plan import CHANGE_STREAM, LATE, StreamDefinition
from millrace.protocol import Field, Schema, Type
from millrace.protocol.timestamps import format_timestamp
from millrace.protocol.units import MICROSECONDS, UNITS
from millrace.sql import syntax as s
from millrace.sql.binder import Binder, readings
from millrace.sql.errors import SqlError, did_you_mean
from millrace.sql.planned import Catalog, Insert, is_changes
from millrace.values import expression as e
from millrace.values.batch import Batch
from millrace.values.evaluate import evaluate
from millrace.values.functions import Library

# The input for expressions without columns.
_ONE_ROW: Final = Batch(Schema(()), np.zeros(1, np.int64), ())
_HINTS: Final = {
    Type.TIMESTAMP: ": write TIMESTAMP '2026-01-31 12:00:00', or the text alone",
    Type.BYTES: ": write CAST('\\x00ff' AS bytes)",
    Type.TEXT: ": write it in quotes, or CAST it",
}


def insert(statement: s.Statement, body: s.InsertStatement, catalog: Catalog, library: Library) -> Insert:
    """The rows that a statement inserts. Raises SqlError."""
    stream = _target(statement.text, body, catalog)
    columns = _columns(statement.text, body, stream)
    values = _Values(statement.text, stream, library)
    rows: list[tuple[Any, ...]] = []
    places: list[tuple[int, ...]] = []
    for row in body.rows:
        if len(row.values) != len(columns):
            listed = ", ".join(field.name for field in columns)
            raise SqlError(
                statement.text,
                row.span.start,
                f"expected {len(columns)} values, for {listed}, got {len(row.values)}",
            )
        named = dict(zip((field.name for field in columns), row.values, strict=True))
        rows.append(tuple(values.value(field, named.get(field.name), row) for field in stream.schema))
        places.append(tuple(named.get(field.name, row).span.start for field in stream.schema))
    return Insert(stream.name, tuple(rows), statement.text, tuple(places))


def _target(sql: str, body: s.InsertStatement, catalog: Catalog) -> StreamDefinition:
    name, at = body.name.text, body.name.span.start
    if is_changes(body.name, body.part):
        raise SqlError(
            sql, at, f"{CHANGE_STREAM.name} receives only what the server has changed: INSERT takes other streams"
        )
    stream = catalog.streams.get(name)
    if stream is None:
        if name in catalog.queries:
            raise SqlError(sql, at, f"{name} is a query, whose rows Millrace computes: INSERT takes a stream")
        raise SqlError(sql, at, f"the stream {name} does not exist{did_you_mean(name, catalog.streams)}")
    if body.part is not None:
        if body.part.text != LATE.removeprefix("."):
            raise SqlError(sql, body.part.span.start, f"a stream has no part {body.part.text}")
        raise SqlError(sql, at, f"{name}{LATE} receives only the late tuples of {name}: INSERT INTO {name} instead")
    return stream


def _columns(sql: str, body: s.InsertStatement, stream: StreamDefinition) -> Sequence[Field]:
    """The fields that receive the statement's values."""
    if body.columns is None:
        return stream.schema.fields
    known = {field.name: field for field in stream.schema}
    columns: list[Field] = []
    for name in body.columns:
        field = known.get(name.text)
        if field is None:
            hint = did_you_mean(name.text, known) or f"; the columns are {', '.join(known)}"
            if name.text == "ts" and stream.time is None:
                hint = ": the server sets the time of each tuple"
            raise SqlError(sql, name.span.start, f"the column {name.text} does not exist in {stream.name}{hint}")
        if field in columns:
            raise SqlError(sql, name.span.start, f"the column {name.text} is listed twice")
        columns.append(field)
    return columns


class _Values:
    """Computes the values of one statement."""

    def __init__(self, sql: str, stream: StreamDefinition, library: Library) -> None:
        self._sql = sql
        self._stream = stream
        self._binder = Binder(sql, None, library, instead="VALUES takes expressions over constants")

    def value(self, field: Field, node: s.Expr | None, row: s.Node) -> Any:
        """The value for a field, in the form of a row frame."""
        if node is None or _is_default(node):
            value, place = None, node or row
        else:
            value, place = self._compute(field, node), node
        if value is None and (not field.nullable or field.name == self._stream.time):
            missing = "no value" if node is None else "NULL"
            raise self._error(place, f"column {field.name}: expected {field.type}, not null, got {missing}")
        return value

    def _compute(self, field: Field, node: s.Expr) -> Any:
        column = _column_in(node)
        if column is not None:
            raise self._error(
                column,
                f"column {field.name}: expected a constant, got the column {column.name.text}; write text in "
                "single quotes",
            )
        bound = self._binder.bind(node)
        if field.name == self._stream.time:
            return self._time(field, node, bound)
        return self._convert(field, node, bound)

    def _time(self, field: Field, node: s.Expr, bound: e.Expression) -> Any:
        """A value of the time field: a number in the stream's unit, or a timestamp, as text unless the unit is
        microseconds."""
        unit = UNITS[self._stream.time_unit]
        if not _is_null(bound) and (bound.type is Type.BIGINT or (bound.type is Type.DOUBLE and unit.fractions)):
            return self._evaluate(field, node, bound)
        value = self._convert(field, node, bound)
        return value if value is None or unit is MICROSECONDS else format_timestamp(value)

    def _convert(self, field: Field, node: s.Expr, bound: e.Expression) -> Any:
        if field.type not in readings(node, bound):
            hint = _HINTS.get(field.type, "")
            raise self._error(node, f"column {field.name}: expected {field.type}, got {_show(node, bound)}{hint}")
        return self._evaluate(field, node, self._binder.as_type(node, bound, field.type))

    def _evaluate(self, field: Field, node: s.Expr, bound: e.Expression) -> Any:
        if isinstance(bound, e.Constant):
            return bound.value
        values, mask, errors = evaluate(bound, _ONE_ROW)
        if errors is not None:
            raise self._error(node, f"column {field.name}: {errors.reason}")
        if mask is not None and not mask[0]:
            return None
        value = values[0]
        return value.item() if isinstance(value, np.generic) else value

    def _error(self, node: s.Node, message: str) -> SqlError:
        return SqlError(self._sql, node.span.start, message)


def _is_default(node: s.Expr) -> bool:
    return isinstance(node, s.ColumnRef) and node.table is None and node.name.text == "default"


def _is_null(bound: e.Expression) -> bool:
    return isinstance(bound, e.Constant) and bound.value is None


def _column_in(node: s.Node) -> s.ColumnRef | None:
    return next((part for part in s.walk(node) if isinstance(part, s.ColumnRef)), None)


def _show(node: s.Expr, bound: e.Expression) -> str:
    if isinstance(node, s.Constant):
        value = node.value
        text = repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
        return f"the {bound.type} {text:.60}"
    return str(bound.type)
