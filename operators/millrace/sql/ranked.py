"""ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) with an upper limit: the top n of each partition.

The SELECT that selects the number adds the operator. A condition on the number limits the rows that it keeps: QUALIFY
in the same SELECT, or WHERE in the outer one. Without a limit, every new row would change the numbers of all rows, so
such a query is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.operators.top.spec import Rank, TopSpec
from millrace.protocol import MAX_INT64, Schema
from millrace.sql import syntax as s
from millrace.sql.aggregation import free_name
from millrace.sql.binder import Ranking, Relation
from millrace.sql.conditions import conjuncts
from millrace.sql.ordering import in_event_order, stamp_rows
from millrace.sql.planned import schemas_of
from millrace.sql.windowed import conjoin
from millrace.values import expression as e
from millrace.values.functions.comparison import MIRRORED

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner


def row_numbers(select: s.Select) -> list[s.FunctionCall]:
    """The ROW_NUMBER() OVER (...) of a SELECT."""
    places: list[s.Node] = [*select.items, *filter(None, (select.qualify,))]
    return [
        part
        for place in places
        for part in s.walk(place)
        if isinstance(part, s.FunctionCall) and part.over is not None and part.name.text == "row_number"
    ]


def number_rows(
    planner: QueryPlanner, select: s.Select, relation: Relation, calls: Sequence[s.FunctionCall]
) -> Relation:
    """The rows with their number as the last column. A later condition limits how many are kept."""
    relation = stamp_rows(planner, relation)
    partition, order = _over(planner, relation, calls[0])
    for other in calls[1:]:
        if _over(planner, relation, other) != (partition, order):
            raise planner.error(
                other, "the two numbers have different orders: select one here, and the other in an outer query"
            )
    items = [item for item in select.items if isinstance(item, s.Item) and item.alias is not None]
    named = [item.alias.text for item in items if item.alias is not None and item.expression in calls]
    names = [field.name for field in relation.schema.data_fields]
    spec = TopSpec(
        partition,
        order,
        named[0] if named and named[0] not in names else free_name("row_number", names),
        replaces=None if relation.update_key is None else relation.key_at,
        emit=planner.options.emit,
    )
    closes = _closes(planner, relation, spec.partition_at)
    if closes is not None:
        spec = replace(spec, closes_at=closes[0], closes_us=closes[1], emit="latest")
    top = planner.add(spec, [relation if closes is not None else in_event_order(planner, relation)])
    final = closes is not None
    return replace(
        top,
        time_known=True,
        tables=relation.tables,
        update_key=tuple(top.schema.names[at] for at in spec.partition_at),
        ranking=Ranking(top.node, len(names), calls[0], final),
    )


def without_number(relation: Relation) -> Relation:
    """The rows as expressions read them: the number is not a column, but the value of ROW_NUMBER() OVER (...)."""
    assert relation.ranking is not None
    return replace(relation, schema=Schema(relation.schema.fields[: relation.ranking.position]))


def _over(
    planner: QueryPlanner, relation: Relation, call: s.FunctionCall
) -> tuple[tuple[e.Column, ...], tuple[Rank, ...]]:
    over = call.over
    assert over is not None
    if call.arguments or call.star or call.distinct or call.filter is not None:
        raise planner.error(call, "ROW_NUMBER() takes no arguments")
    if not over.order:
        raise planner.error(call, "ROW_NUMBER() needs an order: ROW_NUMBER() OVER (... ORDER BY ...)")
    binder = planner.binder(
        relation, instead="rows are numbered individually: aggregate in a query in parentheses first"
    )
    partition: list[e.Column] = []
    for node in over.partition:
        column = binder.bind(node)
        if not isinstance(column, e.Column) or column.position < 0:
            raise planner.error(
                node, "PARTITION BY takes columns here: select the expression in a query in parentheses, and name it"
            )
        if column not in partition:
            partition.append(column)
    order = []
    for item in over.order:
        by = binder.bind(item.expression)
        planner.check_runs(item.expression, by)
        first = item.descending if item.nulls_first is None else item.nulls_first
        order.append(Rank(by, item.descending, first))
    return tuple(partition), tuple(order)


# -- the limit ---------------------------------------------------------------------------------------------------------


def limit_rows(
    planner: QueryPlanner, where: s.Expr | None, relation: Relation, name: str | None
) -> tuple[Relation, s.Expr | None]:
    """The relation limited by a condition on the number, and the rest of the condition.

    `name` is the name of the number, if it is selected.
    """
    ranking = relation.ranking
    assert ranking is not None
    most, rest = None, None
    for part in () if where is None else conjuncts(where):
        limit = _most(part, name, relation)
        if limit is None:
            rest = conjoin(rest, part)
        else:
            most = limit if most is None else min(most, limit)
    if most is None:
        raise missing_limit(planner, ranking, conditional=where is not None)
    if most < 1:
        assert where is not None
        raise planner.error(
            where,
            "this condition limits ROW_NUMBER() to less than 1, and numbers start at 1: the query would never "
            "emit a row",
        )
    return _with_most(planner, relation, ranking, most, name is not None), rest


def missing_limit(planner: QueryPlanner, ranking: Ranking, *, conditional: bool = False) -> Exception:
    """The error for a number without a limit; `conditional` if a condition exists but does not limit it."""
    text = (
        "ROW_NUMBER() of all rows would change with every new row: limit it with QUALIFY ROW_NUMBER() OVER "
        "(...) <= 10, or select it as r in a query in parentheses and write WHERE r <= 10 around it"
    )
    if conditional:
        text += "; this condition has no upper bound that is a whole number, such as <= 10, < 11 or = 1"
    return planner.error(ranking.place, text)


def _with_most(planner: QueryPlanner, relation: Relation, ranking: Ranking, most: int, selected: bool) -> Relation:
    at = next(at for at, node in enumerate(planner.nodes) if node.name == ranking.node)
    spec = planner.nodes[at].spec
    assert isinstance(spec, TopSpec)
    planner.nodes[at] = replace(planner.nodes[at], spec=replace(spec, most=most))
    key = relation.update_key
    assert key is not None
    if ranking.final:
        key = None
    elif most > 1:
        if not selected:
            raise planner.error(
                ranking.place,
                "each row must show its place, because there are several: select ROW_NUMBER() OVER (...) AS r too",
            )
        key = (*key, relation.schema.names[ranking.position])
    return replace(relation, update_key=key, ranking=None)


def _most(node: s.Expr, name: str | None, relation: Relation) -> int | None:
    """The number of rows that a condition admits, if it is an upper limit of the number alone."""
    match node:
        case s.FunctionCall(operator=True, name=s.Name(text=sign), arguments=(left, right)) if sign in MIRRORED:
            if _is_number(right, name, relation):
                left, right, sign = right, left, MIRRORED[sign]
            count = right.value if isinstance(right, s.Constant) else None
            if not _is_number(left, name, relation) or type(count) is not int or abs(count) >= MAX_INT64:
                return None
            if sign == "=":
                return 1 if count == 1 else None
            return {"<": count - 1, "<=": count}.get(sign)
        case s.Between(value=value, low=s.Constant(value=1), high=s.Constant(value=int(high)), negated=False):
            return high if _is_number(value, name, relation) else None
    return None


def _is_number(node: s.Expr, name: str | None, relation: Relation) -> bool:
    if isinstance(node, s.FunctionCall):
        return node.over is not None and node.name.text == "row_number"
    if not isinstance(node, s.ColumnRef):
        return False
    return node.name.text == name and (node.table is None or node.table.text == relation.alias)


# -- windows -----------------------------------------------------------------------------------------------------------


def _closes(planner: QueryPlanner, relation: Relation, partition: Sequence[int]) -> tuple[int, int] | None:
    """A partition column that is a bound of a time window, and the maximum of row time - bound."""
    for at in partition:
        lag = relation.lags.get(at)
        if lag is not None and lag[1] is not None and _is_bound(planner, relation.node, at):
            return at, lag[1]
    return None


def _is_bound(planner: QueryPlanner, name: str, at: int) -> bool:
    """Whether a column is copied from the bound of a window."""
    nodes, schemas = {node.name: node for node in planner.nodes}, planner.schemas
    while True:
        if name not in nodes:
            query = next((one for one in planner.catalog.queries.values() if one.output == name), None)
            if query is None:
                return False
            nodes, schemas = {node.name: node for node in query.nodes}, schemas_of(query, planner.catalog)
        bound = nodes[name].spec.window_bound(at, len(schemas[name]))
        if isinstance(bound, bool):
            return bound
        source, at = bound
        name = nodes[name].inputs[source]
