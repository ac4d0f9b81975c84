"""Joins of two update streams: the current rows of one key, put together, are an update stream again.

ON names the whole key of both sides. Its other conditions are tested for the current pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.operators.current_join.spec import CurrentJoinSpec
from millrace.sql import syntax as s
from millrace.sql.conditions import Wide, all_of, conjuncts, equality
from millrace.sql.dialects import guided
from millrace.sql.sequences import key_of
from millrace.sql.sides import Operand, Side, shifted
from millrace.values import expression as e

if TYPE_CHECKING:
    from millrace.sql.joins import FromPlanner

Keys = list[tuple[e.Column, e.Column]]


def join_current_rows(
    tables: FromPlanner, linked: Sequence[tuple[Side, Operand]], above: Sequence[s.Node], where: s.Expr | None
) -> Side:
    """A chain of inner joins of update streams, two at a time, and the rows that pass `where`."""
    conditions = [operand.condition for _, operand in linked if operand.condition is not None]
    needed = [*above, *conditions, *([] if where is None else [where])]
    (side, _), *rest = linked
    for other, operand in rest:
        side = pair_current_rows(tables, [side, other], operand, needed, ())
    return side if where is None else replace(side, relation=tables.tested(where, side.relation))


def pair_current_rows(
    tables: FromPlanner, sides: Sequence[Side], operand: Operand, above: Sequence[s.Node], outer: tuple[int, ...]
) -> Side:
    """The current rows of two sides by key; `above` are the conditions that are tested downstream."""
    planner = tables.planner
    for side, other in (sides, sides[::-1]):
        if side.relation.update_key is None:
            raise planner.error(operand.table, _append_error(tables, side, other))
    wide = Wide([side.relation for side in sides])
    joined = [table for at, side in enumerate(sides) for table in shifted(side, wide, at)]
    terms = [] if operand.condition is None else list(conjuncts(tables.bound(operand.condition, wide, joined)))
    keys, tests = _split(tables, sides, operand, wide, terms)
    alike = _keys_after(sides, keys, outer)
    selected = tables.selected_as_they_are(joined)
    picks = tables.picks(wide, joined, above, clocks=False)
    key: list[int] = []
    for places in alike:
        positions = [wide.position(*place) for place in places]
        key.append(next((position for position in positions if position in selected), positions[0]))
        picks.add(key[-1])
    where = all_of(tests)
    tested = None if where is None else tables.picks_of(wide, joined, e.columns_of(where))
    spec = CurrentJoinSpec(
        picks.columns(),
        tuple(keys),
        tuple(picks.order.index(position) for position in key),
        None if where is None or tested is None else tested.over(where),
        () if tested is None else tested.columns(),
        outer,
        planner.options.emit,
        planner.options.order == "event",
    )
    side = tables.joined_side(spec, sides, joined, picks)
    names = picks.names()
    return replace(
        side,
        relation=replace(side.relation, update_key=tuple(names[at] for at in spec.key)),
        alike=tuple(
            tuple(at for place in places if (at := picks.index(wide.position(*place))) is not None) for places in alike
        ),
    )


def _keys_after(sides: Sequence[Side], keys: Keys, outer: tuple[int, ...]) -> list[list[tuple[int, int]]]:
    """By part of the result's key, the columns (side, position) that hold it in every row."""
    own = [
        [[(at, position) for places in _parts(side) if pair[at].position in places for position in places]
         for pair in keys]
        for at, side in enumerate(sides)
    ]  # fmt: skip
    if not outer:
        return [[*left, *right] for left, right in zip(*own, strict=True)]
    return [places for at in outer for places in own[at]]


def _parts(side: Side) -> tuple[tuple[int, ...], ...]:
    """By part of a side's key, the positions that hold it."""
    return side.alike or tuple((at,) for at in side.relation.key_at)


def _split(
    tables: FromPlanner, sides: Sequence[Side], operand: Operand, wide: Wide, terms: Sequence[e.Expression]
) -> tuple[Keys, list[e.Expression]]:
    """ON as equalities of the whole keys of both sides, and its other conditions."""
    parts = [_parts(side) for side in sides]
    found: dict[int, tuple[int, e.Column, e.Column]] = {}
    tests = []
    for term in terms:
        pair = equality(term, wide)
        if pair is not None:
            (_, left), (_, right) = pair
            first, second = _part_of(left, parts[0]), _part_of(right, parts[1])
            if first is not None and second is not None and first not in found:
                taken = [other for other, *_ in found.values()]
                if second not in taken and isinstance(left, e.Column) and isinstance(right, e.Column):
                    found[first] = second, left, right
                    continue
        tests.append(term)
    if not len(parts[0]) == len(parts[1]) == len(found):
        raise tables.planner.error(operand.condition or operand.table, _key_error(sides))
    return [found[at][1:] for at in sorted(found)], tests


def _part_of(key: e.Expression, parts: Sequence[Sequence[int]]) -> int | None:
    """The part of a key that an expression is."""
    if not isinstance(key, e.Column):
        return None
    return next((at for at, places in enumerate(parts) if key.position in places), None)


def _key_error(sides: Sequence[Side]) -> str:
    keys = [", ".join(side.relation.update_key or ()) or "nothing: it is one row" for side in sides]
    return (
        "a join of update streams pairs the current rows of one key, so ON needs equalities of columns that cover "
        f"the keys of both: {sides[0].title} is keyed by {keys[0]}; {sides[1].title} by {keys[1]}. Group both by the "
        "same columns, or look up the current row of one for each row of a stream with JOIN LATEST"
    )


def _append_error(tables: FromPlanner, side: Side, updates: Side) -> str:
    """Why rows that do not replace each other cannot be joined with rows that do."""
    key = key_of(tables.planner, side.relation)
    if key is None or not side.relation.edge.plain:
        return update_stream_error(updates)
    names = ", ".join(side.relation.schema.names[at] for at in key)
    return (
        f"{updates.title} is an update stream, and {side.title} is read row by row. {side.title} has the update key "
        f"{names}: write LATEST after it to join the current rows of both"
    )


def update_stream_error(side: Side) -> str:
    """Why an update stream cannot be joined with rows that do not replace each other."""
    name = "this query" if len(side.tables) > 1 else side.tables[0].named.alias or "this query"
    key = ", ".join(side.relation.update_key or ())
    latest = f"JOIN LATEST {name} ON its key ({key}), which takes the row that is current at the time; " if key else ""
    return guided(
        f"{name} is an update stream, whose rows replace each other, so joined rows would have to be "
        f"retracted. Use {latest}an aggregate per window, FROM TUMBLE(...); or join the inputs of {name}, and "
        "aggregate the joined rows"
    )
