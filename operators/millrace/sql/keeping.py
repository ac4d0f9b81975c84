"""What an aggregate over windows keeps before a window closes: the option `aggregate`, or the planner's choice.

Windows of equal size are cut into panes, whose rows can pass a low-level table, or be buffered. Other aggregates keep
groups. A low-level table hands partial results up, so every call must follow from partial results.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.frame.windows import RowWindow, TimeWindow
from millrace.sql import syntax as s
from millrace.values.aggregates import AGGREGATES

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner


def with_state(planner: QueryPlanner, spec: AggregateSpec, place: s.Node) -> AggregateSpec:
    """The operator with its way to keep windows, and a note of it if the query says what it wants."""
    wanted = planner.options.aggregate
    if spec.early:
        if wanted is not None:
            _note(planner, wanted, "keeps groups, because windows close early for some of them")
        return spec
    if not isinstance(spec.window, TimeWindow | RowWindow) or spec.newest:
        if wanted is not None:
            _note(planner, wanted, "keeps groups, because only TUMBLE, HOP and windows of rows have panes")
        return spec
    if wanted == "bounded":
        combines = spec.combines()
        if combines == "never":
            name = next(call.function for _, call in spec.calls if _never(call.function, call.distinct))
            called = f"{name.partition('(')[0]}{' with DISTINCT' if AGGREGATES[name].combines != 'never' else ''}"
            raise planner.error(
                place,
                f"aggregate = 'bounded' combines partial results, which {called} does not have: use 'groups' or "
                "'buffered'",
            )
        slots = planner.options.slots
        rounding = ". Sums of doubles may differ in their last digit" if combines == "rounded" else ""
        _note(planner, wanted, f"counts in a low-level table of {slots:,} slots first{rounding}")
        return replace(spec, keeps="bounded", slots=slots)
    if wanted == "buffered":
        _note(planner, wanted, "buffers the rows of a window until it closes")
    elif wanted == "groups":
        _note(planner, wanted, "keeps a partial result per group")
    elif wanted == "adaptive":
        _note(
            planner, wanted, "starts with a partial result per group, and buffers rows while they take half the memory"
        )
    return replace(spec, keeps=wanted or "adaptive")


def _never(function: str, distinct: bool) -> bool:
    return AGGREGATES[function].parts_of(distinct) == "never"


def _note(planner: QueryPlanner, wanted: str, what: str) -> None:
    planner.notes.append(f"the aggregate {what} (aggregate = '{wanted}')")
