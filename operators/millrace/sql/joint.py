"""GROUP BY of all times of a join: emits each group once, when it is complete, without an explicit window.

When the join's own time is past all times of a group, no further row of the join can belong to the group. This is a
promise about the pair of times, not about each time alone (joint punctuation; OOP, section 7). A row's time is the
latest of the times. Groups by whole or truncated times are therefore windows of that time. The longest span sets the
length of the windows.

In order of arrival the join also promises the times together, input by input, and each group leaves as soon as no row
of any input can add to it, which is long before its window closes if one input is ahead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.engine.plan import Node
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.join.bands import close_bands
from millrace.operators.join.spec import JoinSpec
from millrace.sql import syntax as s
from millrace.sql.binder import Relation
from millrace.sql.errors import SqlError
from millrace.sql.grouped import GroupedSelect
from millrace.sql.windows import Window
from millrace.values import expression as e
from millrace.values.functions.times import unit_named
from millrace.values.lags import EXACT, SPANS, name_of

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner

# The length and the start of the spans of a time, and its column.
_Cut = tuple[int, int, int]


def joint_window(planner: QueryPlanner, select: s.Select, relation: Relation) -> Window | None:
    """The windows of the join's own time that are equivalent to the groups of a SELECT, or None."""
    joined = planner.below(relation.node, SelectSpec)
    node = next((candidate for candidate in planner.nodes if candidate.name == joined), None)
    if node is None or not isinstance(node.spec, JoinSpec) or not select.group_by:
        return None
    grouped = GroupedSelect(planner, select, relation)
    cuts: dict[int, _Cut] = {}
    keys: dict[_Cut, e.Expression] = {}
    for group in select.group_by:
        try:
            key = planner.binder(relation).bind(grouped.resolve_group(group))
        except SqlError:
            # Planning the groups reports the error.
            return None
        source_and_cut = _cut(planner, key, node)
        if source_and_cut is not None:
            source, cut = source_and_cut
            # Of two spans of one time, the shorter one bounds the row's time.
            cuts[source] = min(cut, cuts.get(source, cut))
            keys[cut] = key
    count = len(node.inputs)
    _follow(cuts, node.spec, count)
    if len(cuts) < count:
        return None
    size_us, offset_us, _ = max(cuts.values())
    planner.notes.append(
        "each group is emitted once, as soon as no pair of rows can arrive for all of its times together "
        "(joint punctuation), which is earlier than by each time alone"
    )
    window = Window(TimeWindow(size_us, size_us, offset_us), select.group_by[0], joint=True)
    if planner.options.order != "arrival" or node.spec.counts_rows:
        return window
    own = [cuts[at] for at in range(count)]
    spec = replace(node.spec, times=tuple((column, size, offset) for size, offset, column in own))
    planner.nodes[planner.nodes.index(node)] = replace(node, spec=spec)
    reach = close_bands(spec.bands, count)
    return replace(window, times=tuple((keys[cut], cut[0], tuple(reach[at])) for at, cut in enumerate(own)))


def _cut(planner: QueryPlanner, key: e.Expression, node: Node) -> tuple[int, _Cut] | None:
    """The input whose own time a group uses, whole or truncated to spans of one length."""
    assert isinstance(node.spec, JoinSpec)
    cut = _span(key)
    if cut is None:
        return None
    _, source, position = node.spec.columns[cut[2]]
    own = position == e.TIME or planner.lags[node.inputs[source]].get(position) == EXACT
    return (source, cut) if own else None


def _span(key: e.Expression) -> _Cut | None:
    """The spans into which a group cuts a column of times."""
    size, offset = 1, 0
    if isinstance(key, e.Call) and name_of(key) == "date_trunc":
        unit, key = key.arguments
        name = unit_named(unit.value) if isinstance(unit, e.Constant) and unit.value else ""
        if name not in SPANS:
            return None
        size, offset = SPANS[name]
    if not isinstance(key, e.Column) or key.position < 0:
        return None
    return size, offset, key.position


def _follow(cuts: dict[int, _Cut], spec: JoinSpec, count: int) -> None:
    """Rows of equal time are in the same group."""
    most = close_bands(spec.bands, count)
    missing = {1 - at for at in spec.outer}
    for source in range(count):
        for other in range(count):
            if (
                source in cuts
                and source not in missing
                and other not in cuts
                and most[source][other] == 0
                and most[other][source] == 0
            ):
                cuts[other] = cuts[source]
