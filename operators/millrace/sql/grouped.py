"""Plans a SELECT that groups or aggregates: one aggregate operator, the filter of HAVING, and the select list.

Without a window the groups are running totals: an update stream whose key is the GROUP BY columns. With a window, every
aggregate is per window, whether or not GROUP BY names the window's bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.frame.windows import RowWindow, SessionWindow
from millrace.sql import syntax as s
from millrace.sql.aggregation import Calls, Output, Ungrouped, has_bound, is_bound
from millrace.sql.binder import Relation
from millrace.sql.conditions import all_of
from millrace.sql.dialects import guided
from millrace.sql.errors import SqlError
from millrace.sql.groupwise import punctuated_groups
from millrace.sql.keeping import with_state
from millrace.sql.ordering import in_event_order, stamp_rows
from millrace.sql.parser import written
from millrace.sql.unfolded import unfold_rows
from millrace.sql.updates import filter_rows, map_rows
from millrace.sql.windowed import distinct_session_rows, partition_keys
from millrace.sql.windows import Window
from millrace.values import expression as e
from millrace.values.aggregates import AGGREGATES

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner

WHERE: Final = "WHERE tests rows before aggregation; move this condition to HAVING"


def aggregates(select: s.Select) -> bool:
    """Whether a SELECT groups or aggregates."""
    if select.group_by or select.having is not None:
        return True
    return any(_aggregate_in(item.expression) for item in select.items if isinstance(item, s.Item))


def _aggregate_in(node: s.Expr) -> bool:
    return any(
        isinstance(part, s.FunctionCall)
        and not part.operator
        and part.over is None
        and bool(AGGREGATES.named(part.name.text))
        for part in s.walk(node)
    )


class GroupedSelect:
    """Plans one such SELECT over its source."""

    def __init__(self, planner: QueryPlanner, select: s.Select, relation: Relation) -> None:
        self._planner = planner
        self._select = select
        self._relation = relation
        self._window = relation.window or Window(None, select)
        self._calls = Calls()
        self._binder = planner.binder(relation, calls=self._calls)

    def plan(self) -> Relation:
        self._check_source()
        where = self._where()
        keys = self._keys()
        names, bound = self._columns()
        having = None
        if self._select.having is not None:
            having = self._binder.bind_boolean(self._select.having, "HAVING")
        output = Output([key for _, key in keys], self._calls.calls)
        columns = [self._over_output(item, column, output) for item, column in bound]
        if having is not None:
            assert self._select.having is not None
            having = self._over_output(self._select.having, having, output)
        rows = self._aggregate(output, where, output.names(list(zip(names, columns, strict=True))))
        replaces = self._window.spec is None or self._window.latest is not None
        key = self._update_key(keys, names, columns) if replaces else None
        if having is not None:
            rows = filter_rows(self._planner, _under_names(having, rows), rows)
        if not self._planner.changes_nothing(names, columns, rows):
            rows = map_rows(self._planner, zip(names, columns, strict=True), rows)
        return replace(rows, alias=None, update_key=key)

    def _error(self, node: s.Node, message: str) -> SqlError:
        return self._planner.error(node, message)

    # -- the input -------------------------------------------------------------------------------------------------

    def _check_source(self) -> None:
        if self._relation.window is None:
            self._relation = stamp_rows(self._planner, self._relation)

    def _where(self) -> e.Expression | None:
        """The condition of WHERE: a separate select. Over ROWS it stays here, because excluded tuples still count."""
        where = self._select.where
        if where is None:
            return None
        predicate = self._planner.binder(self._relation, instead=WHERE).bind_boolean(where, "WHERE")
        self._planner.check_runs(where, predicate)
        if has_bound(predicate):
            raise self._error(where, f"the bounds of a window are known when it closes: {WHERE}")
        if isinstance(self._window.spec, RowWindow):
            return predicate
        relation = self._relation
        self._relation = replace(filter_rows(self._planner, predicate, relation), window=relation.window)
        return None

    # -- groups ----------------------------------------------------------------------------------------------------

    def _keys(self) -> list[tuple[s.Expr, e.Expression]]:
        """The groups except the window's bounds, each once, with its place in the text."""
        keys = list(self._bound_keys(self._select.group_by))
        if not self._window.partition:
            return keys
        partition = partition_keys(self._planner, self._relation, self._window.partition)
        if not self._select.group_by:
            return partition
        if {key for _, key in keys} != {key for _, key in partition}:
            raise self._error(
                self._select.group_by[0],
                "PARTITION BY already divides these sessions: expected GROUP BY with the same columns, or no "
                "PARTITION BY",
            )
        return keys

    def _bound_keys(self, nodes: Sequence[s.Expr]) -> Iterator[tuple[s.Expr, e.Expression]]:
        seen: set[e.Expression] = set()
        binder = self._planner.binder(self._relation, instead="GROUP BY is evaluated before aggregation")
        for node in nodes:
            resolved = self.resolve_group(node)
            key = binder.bind(resolved)
            self._planner.check_runs(node, key)
            if is_bound(key) or key in seen:
                continue
            if has_bound(key):
                raise self._error(
                    node, "every group is already per window: write GROUP BY window_start, window_end alone"
                )
            if not any(e.columns_of(key)):
                raise self._error(node, "expected a column or an expression of columns, got a constant")
            seen.add(key)
            yield node, key

    def resolve_group(self, node: s.Expr) -> s.Expr:
        """The expression for a name in GROUP BY: an item by its number, a source column, else an item by its alias."""
        items = self._select.items
        if isinstance(node, s.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
            if not 1 <= node.value <= len(items):
                raise self._error(node, f"GROUP BY {node.value}: expected a column's number from 1 to {len(items)}")
            item = items[node.value - 1]
            if isinstance(item, s.Star):
                raise self._error(node, "a number cannot refer to *: name the columns")
            return item.expression
        if isinstance(node, s.ColumnRef) and node.table is None and self._relation.column(node.name.text) is None:
            for item in items:
                if isinstance(item, s.Item) and item.alias is not None and item.alias.text == node.name.text:
                    return item.expression
        return node

    # -- the select list and HAVING --------------------------------------------------------------------------------

    def _columns(self) -> tuple[list[str], list[tuple[s.Expr, e.Expression]]]:
        for item in self._select.items:
            if isinstance(item, s.Star):
                raise self._error(
                    item, "* selects all columns, but a group has only the columns of GROUP BY: name the columns"
                )
        names, columns = self._planner.columns(self._select, self._relation, self._binder, check=False)
        nodes = [item.expression for item in self._select.items if isinstance(item, s.Item)]
        return names, list(zip(nodes, columns, strict=True))

    def _over_output(self, node: s.Expr, bound: e.Expression, output: Output) -> e.Expression:
        try:
            column = output.column(bound)
        except Ungrouped as ungrouped:
            raise self._ungrouped(node, ungrouped.column) from None
        self._planner.check_runs(node, column)
        return column

    def _ungrouped(self, node: s.Expr, column: e.Column) -> SqlError:
        place = next((part for part in _outside_aggregates(node) if _is_column(part, column.name)), node)
        return self._error(
            place,
            f"{column.name} is neither grouped nor aggregated: add it to GROUP BY, or choose one of the "
            f"group's values, such as last({column.name})",
        )

    # -- the operator ----------------------------------------------------------------------------------------------

    def _aggregate(self, output: Output, where: e.Expression | None, names: Sequence[str]) -> Relation:
        options = self._planner.options
        keys, calls = len(output.keys), len(output.calls)
        spec = AggregateSpec(
            self._window.spec,
            tuple(zip(names[:keys], output.keys, strict=True)),
            tuple(zip(names[keys : keys + calls], output.calls, strict=True)),
            tuple(zip(names[keys + calls :], map(_side, output.bounds), strict=True)),
            where=where,
        )
        if self._window.spec is None:
            current = None if self._relation.update_key is None else self._relation.key_at
            spec = replace(spec, emit=options.emit, replaces=current)
            groups = self._planner.add(spec, [in_event_order(self._planner, self._relation)])
            return replace(groups, update_key=tuple(names[:keys]))
        delay = 0 if options.flush == "none" else options.max_delay_us
        spec = replace(spec, flush=options.flush, max_delay_us=delay, partial=options.partial)
        newest = self._window.latest is not None
        early = not newest and not isinstance(self._window.spec, RowWindow) and options.order == "arrival"
        early = early and punctuated_groups(self._planner, self._relation.node, output.keys)
        joint = tuple((output.keys.index(key), size, later) for key, size, later in self._window.times)
        spec = replace(spec, newest=newest, early=early or bool(joint), joint=joint)
        spec = with_state(self._planner, spec, self._select)
        if self._window.latest is not None:
            return self._newest(spec)
        if isinstance(self._window.spec, RowWindow):
            spec = self._over_source(spec)
            return replace(self._planner.add(spec, [self._relation]), time_known=True)
        return self._planner.add(spec, [in_event_order(self._planner, self._relation)])

    def _newest(self, spec: AggregateSpec) -> Relation:
        """The newest window of each key. The groups are the keys, so that each window is one update."""
        assert self._window.latest is not None
        edge, place = self._window.latest
        grouped = {key.position if isinstance(key, e.Column) else -1 for _, key in spec.keys}
        if grouped != set(edge.key):
            listed = ", ".join(self._relation.schema.names[at] for at in edge.key)
            raise self._error(
                place,
                f"LATEST keeps the newest window of each {listed}: expected GROUP BY with {listed} and the "
                "window's bounds only",
            )
        windows = self._planner.add(spec, [replace(self._relation, edge=edge)])
        return replace(windows, update_key=tuple(name for name, _ in spec.keys))

    def _over_source(self, spec: AggregateSpec) -> AggregateSpec:
        """The same operator over the stream itself. It includes the selects and maps in between."""
        self._relation, columns, where = unfold_rows(self._planner, self._relation, self._window.place)

        def over(expression: e.Expression) -> e.Expression:
            return e.substitute(expression, columns)

        calls = [
            (
                name,
                replace(
                    call,
                    arguments=tuple(map(over, call.arguments)),
                    filter=None if call.filter is None else over(call.filter),
                ),
            )
            for name, call in spec.calls
        ]
        return replace(
            spec,
            keys=tuple((name, over(key)) for name, key in spec.keys),
            calls=tuple(calls),
            where=all_of([where, None if spec.where is None else over(spec.where)]),
        )

    def _update_key(
        self, keys: Sequence[tuple[s.Expr, e.Expression]], names: Sequence[str], columns: Sequence[e.Expression]
    ) -> tuple[str, ...]:
        """The columns that carry the key. An update without them could not identify the row that it replaces."""
        key: list[str] = []
        for position, (node, _) in enumerate(keys):
            name = next(
                (
                    name
                    for name, column in zip(names, columns, strict=True)
                    if isinstance(column, e.Column) and column.position == position
                ),
                None,
            )
            if name is None:
                raise self._error(
                    node,
                    "without a window the result is an update stream, and each row must identify the row "
                    "that it replaces: select this column too, or aggregate per window: FROM TUMBLE(...)",
                )
            key.append(name)
        return tuple(key)


def distinct(planner: QueryPlanner, select: s.Select, relation: Relation) -> Relation:
    """SELECT DISTINCT: each row once per window, which is GROUP BY of all selected expressions."""
    if relation.window is None or relation.window.spec is None:
        raise planner.error(
            select,
            guided(
                "SELECT DISTINCT would keep every row of an unbounded stream; use it over a window: FROM TUMBLE(...)"
            ),
        )
    if isinstance(relation.window.spec, SessionWindow):
        return distinct_session_rows(planner, select, relation)
    items: list[s.Item] = []
    for item in select.items:
        if isinstance(item, s.Star):
            names = list(dict.fromkeys([*relation.schema.names, *relation.bounds]))
            planner.stars[item.span] = ", ".join(map(written, names))
            items += [s.Item(item.span, s.ColumnRef(item.span, item.table, s.Name(item.span, name)), None)
                      for name in names]  # fmt: skip
        else:
            items.append(item)
    keys = []
    for item in items:
        bound = planner.binder(relation).bind(item.expression)
        if has_bound(bound) and not all(map(is_bound, e.columns_of(bound))):
            raise planner.error(
                item, "DISTINCT takes the bounds of a window alone, not in an expression with other columns"
            )
        if not has_bound(bound) and any(e.columns_of(bound)):
            keys.append(item.expression)
    grouped = replace(select, items=tuple(items), group_by=tuple(keys), distinct=False)
    return GroupedSelect(planner, grouped, relation).plan()


def _under_names(having: e.Expression, rows: Relation) -> e.Expression:
    """The condition with the column names of the rows that it tests, as EXPLAIN shows them."""
    names = rows.schema.names

    def named(part: e.Expression) -> e.Expression | None:
        return replace(part, name=names[part.position]) if isinstance(part, e.Column) and part.position >= 0 else None

    return e.rewrite(having, named)


def _side(bound: str) -> Literal["start", "end"]:
    return "start" if bound == "window_start" else "end"


def _outside_aggregates(node: s.Node) -> Iterator[s.Node]:
    return s.walk(node, lambda part: isinstance(part, s.FunctionCall) and bool(AGGREGATES.named(part.name.text)))


def _is_column(node: s.Node, name: str) -> bool:
    return isinstance(node, s.ColumnRef) and node.name.text == name
