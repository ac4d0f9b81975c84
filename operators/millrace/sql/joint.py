"""GROUP BY of all times of a join: each group once, when it is complete, without a window being written.

No row of the join can come for a group any more once the join's own time is past all of the group's times: a promise
about the pair of times, not about each by itself (joint punctuation; OOP, section 7). The row's time is the latest of
the times, so groups by whole times, or by times cut to spans, are windows of that time, as long as the longest span.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.engine.plan import Node
from millrace.operators import expression as e
from millrace.operators.functions.times import unit_named
from millrace.operators.spec import JoinSpec, SelectSpec, TimeWindow
from millrace.sql import syntax as s
from millrace.sql.binder import Relation
from millrace.sql.errors import SqlError
from millrace.sql.grouped import GroupedSelect
from millrace.sql.progress import EXACT, SPANS, ahead, name_of
from millrace.sql.windows import Window

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner

# How long the windows are and where they begin, and how GROUP BY writes the time.
_Cut = tuple[int, int]


def joint_window(planner: QueryPlanner, select: s.Select, relation: Relation) -> Window | None:
    """The windows of the join's own time that the groups of a SELECT are, or None if they are not."""
    joined = planner.below(relation.node, SelectSpec)
    node = next((one for one in planner.nodes if one.name == joined), None)
    if node is None or not isinstance(node.spec, JoinSpec) or not select.group_by:
        return None
    grouped = GroupedSelect(planner, select, relation)
    cuts: dict[int, _Cut] = {}
    for group in select.group_by:
        try:
            key = planner.binder(relation).bind(grouped.meant(group))
        except SqlError:
            # Whoever plans the groups will say what is wrong.
            return None
        found = _cut(planner, key, node)
        if found is not None:
            source, cut = found
            # Of two spans of one time the shorter says where the row lies.
            cuts[source] = min(cut, cuts.get(source, cut))
    _follow(cuts, node.spec, len(node.inputs))
    if len(cuts) < len(node.inputs):
        return None
    size_us, offset_us = max(cuts.values())
    planner.notes.append(
        "each group is emitted once, as soon as no pair of rows can arrive for all of its times together "
        "(joint punctuation), which is earlier than by each time alone"
    )
    return Window(TimeWindow(size_us, size_us, offset_us), select.group_by[0], joint=True)


def _cut(planner: QueryPlanner, key: e.Expression, node: Node) -> tuple[int, _Cut] | None:
    """The input whose rows' own time a group is by, whole or cut to spans of one length."""
    assert isinstance(node.spec, JoinSpec)
    cut = (1, 0)
    if isinstance(key, e.Call) and name_of(key) == "date_trunc":
        unit, key = key.arguments
        name = unit_named(unit.value) if isinstance(unit, e.Constant) and unit.value else ""
        if name not in SPANS:
            return None
        cut = SPANS[name]
    if not isinstance(key, e.Column) or key.position < 0:
        return None
    _, source, position = node.spec.columns[key.position]
    own = position == e.TIME or planner.lags[node.inputs[source]].get(position) == EXACT
    return (source, cut) if own else None


def _follow(cuts: dict[int, _Cut], spec: JoinSpec, count: int) -> None:
    """Rows of equal time are in the group together."""
    most = ahead(spec.bands, count)
    missing = {1 - at for at in spec.outer}
    for one in range(count):
        for other in range(count):
            if (
                one in cuts
                and one not in missing
                and other not in cuts
                and most[one][other] == 0
                and most[other][one] == 0
            ):
                cuts[other] = cuts[one]
