"""SQL on the command line and at the prompt: sends statements and prints their outcomes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from millrace.cli import planned, show
from millrace.cli.link import Link
from millrace.protocol import MillraceError
from millrace.protocol.admin.bodies import PreviewRequest, SqlRequest
from millrace.protocol.admin.changes import ColumnView, PreviewView, SqlView, StatementView
from millrace.protocol.admin.data import from_data, to_data
from millrace.protocol.words import counted

# Prints the items of a list, by its name in SHOW.
Lists = Callable[[str, Sequence[Mapping[str, Any]]], None]

_KINDS: Final = ("stream", "query", "sink")


def run(link: Link, text: str, lists: Lists) -> bool:
    """Execute statements and print their outcomes; whether there are any. A SELECT at the end prints rows until it has
    as many as its LIMIT, or until KeyboardInterrupt."""
    answer = link.post("sql", SqlRequest(sql=text, temporary=True))
    statements = from_data(SqlView, answer).statements
    selected = statements[-1] if statements and statements[-1].kind == "select" else None
    if not link.as_json:
        _print(statements if selected is None else statements[:-1], lists)
    elif selected is None:
        show.as_json(answer)
    if selected is not None:
        _print_rows(link, selected)
    return bool(statements)


def apply(link: Link, text: str, lists: Lists, *, dry_run: bool, prune: bool = False) -> bool:
    """Apply a file, which may have been applied before, or plan it; whether it has statements."""
    answer = link.post("sql", SqlRequest(sql=text, dry_run=dry_run, idempotent=True, prune=prune))
    if link.as_json:
        show.as_json(answer)
        return True
    told = from_data(SqlView, answer)
    statements = told.statements
    _print(statements, lists, dry_run=dry_run)
    if statements and all(statement.unchanged for statement in statements):
        show.tell(f"nothing to change: {_exist(statements)}")
    elif told.plan is not None and statements:
        planned.show_plan(told.plan)
    return bool(statements)


def preview(link: Link, text: str) -> None:
    """Print the rows that the last query would emit of the newest tuples, and how many tuples that are."""
    answer = link.post("sql/preview", PreviewRequest(sql=text, wait=2.0))
    if link.as_json:
        show.as_json(answer)
        return
    found = from_data(PreviewView, answer)
    if found.problem is not None:
        raise MillraceError(found.problem.detail, code=found.problem.code)
    for one in found.rows:
        show.out(show.compact(one["row"]))
    made_of = ", ".join(f"the newest {counted(one.tuples, 'tuple')} of {one.stream}" for one in found.inputs)
    open_ = f", {found.open:,} of them would still wait for later tuples" if found.open else ""
    show.tell(f"{counted(found.emitted, 'row')}{open_}; made of {made_of or 'no stream'}")
    if found.failed:
        show.tell(f"{counted(found.failed, 'row')} could not be computed: {found.reason}")
    if found.cut:
        show.tell(f"the preview ended early: {found.cut}")
    price = found.price
    if price is not None and price.us_per_tuple is not None:
        state = f"{counted(price.state_tuples, 'tuple')} ({price.state_bytes:,} bytes) of state"
        show.tell(
            f"price: {price.us_per_tuple:.2f} us per tuple, {state}, measured on {counted(price.tuples, 'tuple')}"
        )


def diff(link: Link, text: str, file: str) -> bool:
    """Print the differences between the server and a file that is all it is to define; whether there are any."""
    answer = link.post("sql", SqlRequest(sql=text, dry_run=True, prune=True))
    changed = [statement for statement in from_data(SqlView, answer).statements if not statement.unchanged]
    if link.as_json:
        show.as_json([to_data(statement) for statement in changed])
        return bool(changed)
    # A dropped and created object is one difference.
    objects = {(_kind_of(statement), statement.name): statement for statement in changed}
    again = [(_kind_of(statement), statement.name) for statement in changed]
    for (kind, name), statement in objects.items():
        before, after = statement.before, statement.after
        sign = "+" if before is None else "-" if after is None else "~"
        show.out(f"{sign} {kind} {name}{' (dropped and created again)' if again.count((kind, name)) > 1 else ''}")
        if before is not None and after is not None and before != after:
            lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "the server", file, lineterm="")
            show.out("\n".join(f"    {line}" for line in lines))
    return bool(changed)


def _kind_of(statement: StatementView) -> str:
    """The kind of the object that a statement is about."""
    return statement.kind.partition("_")[2]


def _exist(statements: Sequence[StatementView]) -> str:
    """The objects of a file that changes nothing."""
    created = [statement.kind.removeprefix("create_") for statement in statements]
    parts = [counted(created.count(kind), kind) for kind in _KINDS if kind in created]
    if not parts:
        return "what these statements drop does not exist"
    verb = "exists" if len(created) == 1 else "exist"
    return f"{', '.join(parts)} {verb} as the file defines"


def _print(statements: Sequence[StatementView], lists: Lists, *, dry_run: bool = False) -> None:
    for statement in statements:
        for warning in statement.warnings or ():
            show.tell(f"warning: {warning}")
        if statement.unchanged:
            show.tell(f"unchanged: {statement.reason}")
        elif statement.items is not None:
            lists(statement.name, statement.items)
        elif statement.columns is not None:
            _print_description(statement, statement.columns)
        elif statement.text is not None:
            show.out(statement.text)
        else:
            show.tell(f"{'would ' if dry_run else ''}{_words(statement)}")


def _words(statement: StatementView) -> str:
    name = statement.name
    if statement.kind == "rename_query":
        return f"rename query {statement.was} to {name}"
    if statement.kind == "insert":
        late = f", {statement.late:,} of them late" if statement.late else ""
        return f"insert {counted(statement.rows or 0, 'row')} into {name}{late}"
    if statement.replaces:
        return f"replace query {name}"
    return f"{statement.kind.replace('_', ' ')} {name}"


def _print_description(statement: StatementView, columns: Sequence[ColumnView]) -> None:
    """DESCRIBE: the columns, then the options that differ from their defaults."""
    rows = [(column.name, column.type, "" if column.nullable else "not null") for column in columns]
    show.table(["column", "type", "null"], rows)
    more = {
        **({} if statement.query is None else {"query": statement.query}),
        **({} if statement.reads is None else {"reads": ", ".join(statement.reads)}),
        **({"temporary": True} if statement.temporary else {}),
        **(statement.options or {}),
    }
    if more:
        show.out("")
        show.details(more)


def _print_rows(link: Link, selected: StatementView) -> None:
    from millrace.cli.streaming import print_rows

    for warning in selected.warnings or ():
        show.tell(f"warning: {warning}")
    print_rows(link, selected.name, 0, selected.limit, follow=False)
