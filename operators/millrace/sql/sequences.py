"""FOLLOWED BY and JOIN LATEST. Both use one operator, which pairs a row with an earlier row of another input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.operators.project.spec import MapSpec
from millrace.operators.sequence.spec import SequenceSpec
from millrace.sql import syntax as s
from millrace.sql.binder import Relation
from millrace.sql.conditions import Conditions, Wide, all_of, conjuncts, equality
from millrace.sql.sides import Side, Table, shifted
from millrace.sql.updates import read_every
from millrace.sql.windows import interval_us
from millrace.values import expression as e

if TYPE_CHECKING:
    from millrace.sql.joins import FromPlanner
    from millrace.sql.queries import QueryPlanner

Keys = tuple[tuple[e.Expression, e.Expression], ...]


def plan_followed_by(tables: FromPlanner, node: s.Followed, above: Sequence[s.Node]) -> Side:
    """a FOLLOWED BY [NO] b."""
    planner = tables.planner
    condition = [] if node.condition is None else [node.condition]
    within_us = None if node.within is None else interval_us(planner.statement.text, node.within)
    _check_form(tables, node, within_us)
    sides = [tables.side(node.left, [*above, *condition]), tables.side(node.right, [*above, *condition])]
    _check_side(tables, node.right, sides[1])
    if isinstance(node.left, s.TablePrimary):
        _check_side(tables, node.left, sides[0])
    wide = Wide([side.relation for side in sides])
    first, second = (shifted(side, wide, at) for at, side in enumerate(sides))
    joined = [*first, *second]
    keys, conditions = _classify(tables, node.condition, wide, joined)
    if node.absent or node.mode == "recent":
        # A row that cannot follow any row has no effect, so it is filtered out upstream.
        sides[1] = tables.push_conditions(sides[1], conditions, 1)
    where = [*conditions.where, *(term for terms in conditions.own.values() for term in terms)]
    if node.absent:
        joined = [*first, *map(_absent, second)]
    if node.mode == "chronicle" and within_us is None:
        planner.warnings.append(
            f"this pattern keeps a row of {sides[0].title} that no row follows without a time limit, up to "
            f"max_state = {planner.options.max_state} tuples: add WITHIN '...'"
        )
    spec = SequenceSpec((), keys, None, node.mode, within_us, node.absent)
    return _add_sequence(tables, node, spec, sides, joined, where, above)


def latest(tables: FromPlanner, join: s.Join, above: Sequence[s.Node]) -> Side:
    """a [LEFT] JOIN LATEST b: pairs each row of a with the row of b that is current at its time."""
    planner = tables.planner
    if join.kind not in ("inner", "left"):
        raise planner.error(
            join.right, f"{join.kind.upper()} JOIN LATEST is not supported: write JOIN LATEST or LEFT JOIN LATEST"
        )
    tables.check_condition(join)
    assert join.condition is not None
    outside = [*above, join.condition]
    first = tables.side(join.left, outside)
    second = tables.leaf(join.right, latest=True)
    _check_side(tables, join.right, second)
    if isinstance(join.left, s.TablePrimary):
        _check_side(tables, join.left, first)
    key = key_of(planner, second.relation)
    if key is None:
        raise planner.error(
            join.right,
            f"JOIN LATEST needs a key, but {second.title} is not an update stream. Use a stream WITH "
            "(update_key = '...') or a query with running totals (GROUP BY without a window). FOLLOWED BY "
            "finds the most recent row of any stream",
        )
    sides = [second, first]
    wide = Wide([side.relation for side in sides])
    joined = [*shifted(first, wide, 1), *shifted(second, wide, 0)]
    keys, where = _key_of(tables, join, wide, joined, key)
    read_every(planner, second.relation)
    spec = SequenceSpec((), keys, outer=join.kind == "left")
    return _add_sequence(tables, join, spec, sides, joined, where, above, "latest_join")


# -- shared parts ------------------------------------------------------------------------------------------------------


def _add_sequence(
    tables: FromPlanner,
    node: s.Table,
    spec: SequenceSpec,
    sides: Sequence[Side],
    joined: Sequence[Table],
    where: Sequence[e.Expression],
    above: Sequence[s.Node],
    word: str | None = None,
) -> Side:
    """The operator, with the selected columns and the tested ones."""
    wide = Wide([side.relation for side in sides])
    picks = tables.picks(wide, joined, above, clocks=tables.clocks(node))
    test = all_of(where)
    if test is not None:
        tested = tables.picks_of(wide, joined, e.columns_of(test))
        if any(position not in picks.order for position in tested.order):
            spec = replace(spec, tested=tested.columns(), where=tested.over(test))
        else:
            spec = replace(spec, where=picks.over(test))
    return tables.joined_side(replace(spec, columns=picks.columns()), sides, joined, picks, word)


def _check_side(tables: FromPlanner, table: s.TablePrimary, side: Side) -> None:
    """Refuse windows: WITHIN limits a pattern, and each row is one event."""
    if table.window is not None:
        raise tables.planner.error(table.window, "a range belongs to a JOIN: limit a pattern with WITHIN '...' instead")
    if isinstance(table.source, s.TableFunction):
        raise tables.planner.error(
            table, "each row would be an event once per window: put the window into a query in parentheses"
        )


# -- followed by -------------------------------------------------------------------------------------------------------


def _check_form(tables: FromPlanner, node: s.Followed, within_us: int | None) -> None:
    error = tables.planner.error
    if within_us is not None and within_us < 0:
        assert node.within is not None
        raise error(node.within, "expected a time of 0 or more")
    if not node.absent:
        return
    if within_us is None:
        raise error(
            node.right,
            "FOLLOWED BY NO is decided when a time has passed: add that time, FOLLOWED BY NO ... WITHIN '5 seconds'",
        )
    if node.mode == "chronicle":
        raise error(
            node.right, "CHRONICLE uses each matching row once, and FOLLOWED BY NO has no matching rows: remove it"
        )


def _classify(
    tables: FromPlanner, condition: s.Expr | None, wide: Wide, joined: Sequence[Table]
) -> tuple[Keys, Conditions]:
    """The keys that separate patterns, and the conditions that test the chosen pair."""
    conditions = Conditions(wide, timed=False)
    if condition is not None:
        conditions.add(tables.bound(condition, wide, joined))
    return tuple((equal.left_key, equal.right_key) for equal in conditions.equal), conditions


def _absent(table: Table) -> Table:
    name = table.named.alias or "the query"
    reason = f"the result means that no row of {name} arrived; ON may test its columns"
    return replace(table, named=replace(table.named, absent=reason))


# -- latest ------------------------------------------------------------------------------------------------------------


def key_of(planner: QueryPlanner, relation: Relation) -> tuple[int, ...] | None:
    """The update key: of running totals, or as declared for the stream upstream.

    A sample has none: after a row is shed, the previous row would be read as the current one.
    """
    if relation.update_key is not None:
        return tuple(relation.schema.names.index(name) for name in relation.update_key)
    name, columns = relation.node, list(range(len(relation.schema)))
    for node in reversed(planner.nodes):
        if node.name == name and isinstance(node.spec, MapSpec):
            if node.edge(0).shed is not None:
                return None
            computed = [column for _, column in node.spec.columns]
            columns = [_copied_position(computed[at]) if at >= 0 else at for at in columns]
            (name,) = node.inputs
    stream = next((source for source in map(planner.catalog.stream, planner.streams) if source.source == name), None)
    if stream is None or not stream.update_key:
        return None
    positions = [stream.schema.names.index(key) for key in stream.update_key]
    return tuple(columns.index(at) for at in positions) if set(positions) <= set(columns) else None


def _copied_position(column: e.Expression) -> int:
    """The position of a column that is only passed on; -1 if the column is computed."""
    return column.position if isinstance(column, e.Column) else -1


def _key_of(
    tables: FromPlanner, join: s.Join, wide: Wide, joined: Sequence[Table], key: Sequence[int]
) -> tuple[Keys, list[e.Expression]]:
    """ON as equalities for the whole key of the update stream, and its other conditions on the current row."""
    assert join.condition is not None
    pairs: dict[int, tuple[e.Expression, e.Expression]] = {}
    where = []
    for term in conjuncts(tables.bound(join.condition, wide, joined)):
        pair = equality(term, wide)
        if pair is not None:
            (_, left), (_, right) = pair
            if isinstance(left, e.Column) and left.position in key and left.position not in pairs:
                pairs[left.position] = left, right
                continue
        where.append(term)
    names = wide.inputs[0].schema.names
    missing = [names[at] for at in key if at not in pairs]
    if missing:
        listed = ", ".join(names[at] for at in key)
        raise tables.planner.error(
            join.condition,
            f"JOIN LATEST takes the current row of one key: expected an equality for each of {listed} "
            f"(missing: {', '.join(missing)})",
        )
    return tuple(pairs[at] for at in key), where
