"""Windowed sources without aggregates: each row once per window, with the window's bounds as columns.

The windows of time and of rows are known when the row arrives, so the row is emitted at once with its own time. A
session is known when it closes. Its rows are emitted then, with the session's end minus 1 us as their time, like
aggregated rows.

WHERE filters rows before sessions are formed, as with aggregates. A condition on bounds is tested afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.frame.windows import RowWindow, SessionWindow, TimeWindow
from millrace.operators.project.spec import MapSpec
from millrace.operators.window.spec import WindowSpec
from millrace.sql import syntax as s
from millrace.sql.aggregation import free_name, has_bound
from millrace.sql.binder import Relation
from millrace.sql.conditions import conjuncts
from millrace.sql.ordering import in_event_order
from millrace.sql.unfolded import unfold_rows
from millrace.sql.windows import BOUNDS, Window
from millrace.values import expression as e

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner

_SIDES: Final[tuple[tuple[str, Literal["start", "end"]], ...]] = (("window_start", "start"), ("window_end", "end"))
# Rows of one session have the same time, and no other row falls into this window.
_INSTANT: Final = TimeWindow(1, 1)


def windowed_rows(
    planner: QueryPlanner, condition: s.Expr | None, relation: Relation
) -> tuple[Relation, s.Expr | None]:
    """The rows with their bounds, and the part of WHERE that remains to be tested."""
    window = relation.window
    if window is None or window.spec is None:
        return replace(relation, window=None), condition
    if window.latest is not None:
        raise planner.error(
            window.latest[1],
            "LATEST over windows takes a window as one update, whole or not at all: aggregate it, GROUP BY its key",
        )
    relation = _without_bounds(planner, relation)
    if isinstance(window.spec, SessionWindow):
        return _session_rows(planner, condition, relation, window)
    spec = WindowSpec(window.spec, _SIDES, planner.options.partial)
    if isinstance(window.spec, RowWindow):
        names = relation.schema.names
        relation, columns, where = unfold_rows(planner, relation, window.place)
        if names != relation.schema.names or any(
            column.position != at for at, column in enumerate(_row_windows(columns))
        ):
            spec = replace(spec, columns=tuple(zip(names, columns, strict=True)))
        spec = replace(spec, where=where)
    return planner.add(spec, [relation]), condition


def _row_windows(columns: Sequence[e.Expression]) -> Iterator[e.Column]:
    """The columns, with -1 for the position of a computed one."""
    for column in columns:
        yield column if isinstance(column, e.Column) else e.Column(column.type, column.nullable, -1, "")


def _without_bounds(planner: QueryPlanner, relation: Relation) -> Relation:
    """The rows without the columns that have the names of the window's bounds, which hide them."""
    names = [name for name in relation.schema.names if name not in BOUNDS]
    if len(names) == len(relation.schema):
        return relation
    columns = [(name, column) for name in names if (column := relation.column(name)) is not None]
    narrowed = planner.add(MapSpec(tuple(columns)), [relation])
    return replace(narrowed, window=relation.window)


# -- sessions ----------------------------------------------------------------------------------------------------------


def _session_rows(
    planner: QueryPlanner, where: s.Expr | None, relation: Relation, window: Window
) -> tuple[Relation, s.Expr | None]:
    keys = partition_keys(planner, relation, window.partition)
    before, after = _split(planner, where, relation)
    if before is not None:
        predicate = planner.binder(relation).bind_boolean(before, "WHERE")
        planner.check_runs(before, predicate)
        relation = replace(planner.add(SelectSpec(predicate), [relation]), window=window)
    options = planner.options
    spec = AggregateSpec(
        window.spec,
        tuple((f"key{number}", key) for number, (_, key) in enumerate(keys, 1)),
        bounds=_SIDES,
        flush=options.flush,
        max_delay_us=0 if options.flush == "none" else options.max_delay_us,
        partial=options.partial,
        rows=True,
    )
    return planner.add(spec, [in_event_order(planner, relation)]), after


def partition_keys(
    planner: QueryPlanner, relation: Relation, nodes: Sequence[s.Expr]
) -> list[tuple[s.Expr, e.Expression]]:
    """The columns of PARTITION BY, each once, with its place in the text."""
    keys: dict[e.Expression, s.Expr] = {}
    binder = planner.binder(relation, instead="sessions are formed before aggregation")
    for node in nodes:
        key = binder.bind(node)
        planner.check_runs(node, key)
        if has_bound(key):
            raise planner.error(
                node, "the bounds of a session are known when it closes: write PARTITION BY with columns of rows"
            )
        if not any(e.columns_of(key)):
            raise planner.error(node, "expected a column or an expression of columns, got a constant")
        keys.setdefault(key, node)
    return [(node, key) for key, node in keys.items()]


def _split(planner: QueryPlanner, where: s.Expr | None, relation: Relation) -> tuple[s.Expr | None, s.Expr | None]:
    """Split a condition into the part that rows alone decide, and the part that needs the bounds."""
    if where is None:
        return None, None
    binder = planner.binder(relation, instead="WHERE tests rows")
    before: s.Expr | None = None
    after: s.Expr | None = None
    for part in conjuncts(where):
        if has_bound(binder.bind_boolean(part, "WHERE")):
            after = conjoin(after, part)
        else:
            before = conjoin(before, part)
    return before, after


def conjoin(left: s.Expr | None, right: s.Expr) -> s.Expr:
    """The conjunction of two conditions, of which the first may be missing."""
    if left is None:
        return right
    span = s.Span(left.span.start, right.span.end)
    return s.FunctionCall(span, s.Name(span, "and"), (left, right), operator=True)


def distinct_session_rows(planner: QueryPlanner, select: s.Select, relation: Relation) -> Relation:
    """SELECT DISTINCT over sessions: each row once per session. A session is identified by its key and bounds."""
    window = relation.window
    assert window is not None
    relation, where = windowed_rows(planner, select.where, relation)
    if where is not None:
        predicate = planner.binder(relation).bind_boolean(where, "WHERE")
        planner.check_runs(where, predicate)
        relation = planner.add(SelectSpec(predicate), [relation])
    names, columns = planner.columns(select, relation, planner.binder(relation))
    own = [key for _, key in partition_keys(planner, relation, window.partition)]
    own += [column for name in BOUNDS if (column := relation.column(name)) is not None]
    keys = list(zip(names, columns, strict=True))
    for key in own:
        if key not in columns:
            keys.append((free_name("key", [name for name, _ in keys]), key))
    rows = planner.add(AggregateSpec(_INSTANT, tuple(keys), partial="emit"), [relation])
    if len(keys) > len(names):
        shown = [(name, e.Column(column.type, column.nullable, at, name)) for at, (name, column) in enumerate(keys)]
        rows = planner.add(MapSpec(tuple(shown[: len(names)])), [rows])
    return replace(rows, alias=None)
