"""The applied changes of a server, and undoing them."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli import planned, show
from millrace.cli.link import Link
from millrace.protocol.admin.bodies import UndoRequest
from millrace.protocol.admin.changes import LedgerEntryView, UndoView
from millrace.protocol.admin.data import from_data


def changes(
    link: Link,
    last: Annotated[int, typer.Option(min=1, max=1_000, metavar="N", help="Print at most N changes, the newest.")] = 20,
) -> None:
    """List the applied changes, oldest first: number, time, author, what changed, and whether it can be undone. The
    author is the name of a token; `millrace tail millrace.changes` also shows the client and the statements."""
    from millrace.cli import details

    answer = link.get(f"changes?last={last}")
    if link.as_json:
        show.as_json(answer)
        return
    entries = [from_data(LedgerEntryView, entry) for entry in answer]
    rows = [(one.number, details.instant(one.at_us), one.author, one.text, _undo_state(one)) for one in entries]
    show.table(("number", "at", "author", "change", "undo"), rows)


def _undo_state(entry: LedgerEntryView) -> str:
    """Whether a change can be undone, and which changes it belongs to as an undo or undone."""
    words = [] if entry.undoes is None else [f"undoes {entry.undoes}"]
    if entry.undone_by is not None:
        words.append(f"undone by {entry.undone_by}")
    elif entry.inverse is None or not words:
        words.append("no" if entry.inverse is None else "yes")
    return ", ".join(words)


def undo(
    link: Link,
    number: Annotated[
        int | None,
        typer.Argument(min=1, help="The change's number; by default the newest change that is not undone."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would change, without changing anything.")] = False,
) -> None:
    """Undo an applied change with a new change. It restores definitions and decisions, not tuples."""
    answer = link.post("changes/undo", UndoRequest(number=number, dry_run=plan))
    if link.as_json:
        show.as_json(answer)
        return
    undone = from_data(UndoView, answer)
    show.tell(f"{'would undo' if plan else 'undid'} change {undone.undoes}: {undone.text}")
    if undone.lost is not None:
        show.tell(f"not restored: {undone.lost}")
    if undone.plan is not None:
        planned.show_plan(undone.plan)
