"""Rows put together from columns of several inputs: what joins and sequences have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from millrace.operators.frame.spec import Origin, Positions, column_at, substituted
from millrace.protocol import Field, Schema, Type
from millrace.values import expression as e
from millrace.values.lags import EXACT, Lag, Lags, add
from millrace.values.written import show

# A column of a joined row: its name, the input that it comes from, its position there (TIME is that row's own time).
Picked = tuple[str, int, int]
# An expression over one input that equals one over another input.
Equality = tuple[int, e.Expression, int, e.Expression]


def picked_schema(columns: Sequence[Picked], inputs: Sequence[Schema], missing: set[int]) -> Schema:
    """The fields of a joined row; those of an input that may be missing can be null."""
    fields = []
    for name, at, position in columns:
        if position == e.TIME:
            fields.append(Field(name, Type.TIMESTAMP, at in missing))
        else:
            field = inputs[at].fields[position]
            fields.append(Field(name, field.type, field.nullable or at in missing))
    return Schema(tuple(fields))


def picked_lags(columns: Sequence[Picked], inputs: Sequence[Lags], of_inputs: Sequence[Lag]) -> Lags:
    """The lags of columns from inputs whose own times have these lags."""
    lags = {}
    for at, (_, source, position) in enumerate(columns):
        lag = EXACT if position == e.TIME else inputs[source].get(position)
        if lag is not None:
            lags[at] = add(lag, of_inputs[source])
    return lags


def picked_positions(
    columns: Iterable[Picked], keys: Iterable[tuple[int, e.Expression]], inputs: int
) -> list[Positions]:
    """The positions of each input that these columns and keys read."""
    positions: list[Positions] = [set() for _ in range(inputs)]
    for _, side, position in columns:
        positions[side].add(position)
    for side, key in keys:
        positions[side] |= e.positions_of([key])
    return positions


def picked_origins(
    key: e.Expression,
    columns: Sequence[Picked],
    equal: Sequence[Equality],
    schemas: Sequence[Schema],
    missing: set[int],
) -> list[Origin]:
    """The origin of an expression over joined rows: it belongs to one input, and equals an expression of the others."""
    sides = {columns[column.position][1] for column in e.columns_of(key)}
    if len(sides) != 1 or sides & missing:
        return [(0, None)]
    (side,) = sides
    picked = [column_at(schemas[side], at) if of == side and at >= 0 else None for _, of, at in columns]
    origin = substituted(key, picked)
    known: dict[int, e.Expression | None] = {side: None if origin is None else e.anonymous(origin)}
    for _ in schemas:
        for left, left_key, right, right_key in equal:
            if left_key.type != right_key.type:
                continue
            if known.get(left) == e.anonymous(left_key):
                known.setdefault(right, e.anonymous(right_key))
            elif known.get(right) == e.anonymous(right_key):
                known.setdefault(left, e.anonymous(left_key))
    return [(at, known.get(at)) for at in range(len(schemas))]


def show_of(name: str, key: e.Expression) -> str:
    """An expression over one input as SQL, with the input's name before each column."""

    def qualified(part: e.Expression) -> e.Expression | None:
        return replace(part, name=f"{name}.{part.name}") if isinstance(part, e.Column) else None

    return show(e.rewrite(key, qualified))
