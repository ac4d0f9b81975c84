"""What `apply --plan` prints: what would become of queries, operators, states, components and the state table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from millrace.cli import show
from millrace.protocol.words import counted


def show_plan(plan: Mapping[str, Any]) -> None:
    """Print what would change, and nothing of what would stay as it is."""
    changes = list(_changes(plan))
    if not changes:
        show.out("nothing would change")
        return
    show.table(["what", "name", "change", "state"], changes)
    for merge in plan["merges"]:
        show.out(f"components {', '.join(merge['parts'])} become {merge['component']}")
    for split in plan["splits"]:
        show.out(f"component {split['component']} becomes {', '.join(split['parts'])}")
    for when in ("before", "after"):
        rows = plan["table"][when]
        if rows:
            show.out("")
            show.table([f"state {when}", "pred", "succ", "transition", "break"], [_row(row) for row in rows])


def _changes(plan: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    told: set[Sequence[str]] = set()  # operators of queries that share them are told once, with the first
    for stream in plan["streams"]:
        if stream["change"] != "stays":
            yield "stream", stream["name"], stream["change"], ""
    for query in plan["queries"]:
        if query["change"] == "stays":
            continue
        was = query["was"]
        yield "query", query["name"] if was is None else f"{query['name']} (was {was})", query["change"], ""
        for one in query["shared"]:
            if one["with"]:
                yield "shared", one["node"], f"is {one['operator']}", f"with {', '.join(one['with'])}"
            else:
                yield "not shared", one["node"], "", one["apart"]
        for one in query["operators"]:
            line = "operator", _name(one), one["change"], _state(one)
            if line not in told:
                told.add(line)
                yield line
    for component in plan["components"]:
        if component["change"] != "stays":
            yield "component", component["name"], component["change"], ""


def _name(operator: Mapping[str, Any]) -> str:
    renamed = operator["was"] is not None and operator["change"] in ("stays", "changes")
    return f"{operator['operator']} (was {operator['was']})" if renamed else str(operator["operator"])


def _state(operator: Mapping[str, Any]) -> str:
    if operator["state"] in (None, "begins empty"):
        return operator["state"] or ""
    return f"{operator['state']}, {counted(operator['state_tuples'], 'tuple')}"


def _row(row: Mapping[str, Any]) -> list[str]:
    return [row["state"], ", ".join(row["pred"]), ", ".join(row["succ"]), row["transition"], row["break"] or ""]
