"""The output of `apply --plan`: changes to queries, operators, their state, components and the state table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millrace.cli import show
from millrace.protocol.admin.changes import OperatorFateView, PlannedRowView, PlanView
from millrace.protocol.words import counted


def show_plan(plan: PlanView) -> None:
    """Print the changes; unchanged objects are left out."""
    changes = list(_changes(plan))
    if not changes:
        show.out("nothing would change")
        return
    show.table(["what", "name", "change", "state"], changes)
    for merge in plan.merges:
        show.out(f"components {', '.join(merge.parts)} become {merge.component}")
    for split in plan.splits:
        show.out(f"component {split.component} becomes {', '.join(split.parts)}")
    for when, rows in (("before", plan.table.before), ("after", plan.table.after)):
        if rows:
            show.out("")
            show.table([f"state {when}", "pred", "succ", "transition", "break"], [_row(row) for row in rows])


def _changes(plan: PlanView) -> Iterator[Sequence[str]]:
    printed: set[Sequence[str]] = set()  # a shared operator is printed once, with its first query
    for stream in plan.streams:
        if stream.change != "stays":
            yield "stream", stream.name, stream.change, ""
    for query in plan.queries:
        if query.change == "stays":
            continue
        yield "query", query.name if query.was is None else f"{query.name} (was {query.was})", query.change, ""
        for node in query.shared:
            if node.with_:
                yield "shared", node.node, f"is {node.operator}", f"with {', '.join(node.with_)}"
            else:
                yield "not shared", node.node, "", node.apart or ""
        for operator in query.operators:
            line = "operator", _name(operator), operator.change, _state(operator)
            if line not in printed:
                printed.add(line)
                yield line
    for component in plan.components:
        if component.change != "stays":
            yield "component", component.name, component.change, ""


def _name(operator: OperatorFateView) -> str:
    renamed = operator.was is not None and operator.change in ("stays", "changes")
    return f"{operator.operator} (was {operator.was})" if renamed else operator.operator


def _state(operator: OperatorFateView) -> str:
    if operator.state in (None, "begins empty"):
        return operator.state or ""
    return f"{operator.state}, {counted(operator.state_tuples, 'tuple')}"


def _row(row: PlannedRowView) -> list[str]:
    return [row.state, ", ".join(row.pred), ", ".join(row.succ), row.transition, row.break_ or ""]
