"""SQL on the command line and at the prompt: sends statements and prints their outcomes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from millrace.cli import planned, show
from millrace.cli.link import Link
from millrace.protocol.words import counted

# Prints the items of a list, by its name in SHOW.
Lists = Callable[[str, Sequence[Mapping[str, Any]]], None]

_KINDS: Final = ("stream", "query", "sink")


def run(link: Link, text: str, lists: Lists) -> bool:
    """Execute statements and print their outcomes; whether there are any. A SELECT at the end prints rows until it has
    as many as its LIMIT, or until KeyboardInterrupt."""
    answer = link.post("sql", {"sql": text, "temporary": True})
    statements = answer["statements"]
    selected = statements[-1] if statements and statements[-1].get("temporary") else None
    if not link.as_json:
        _print(statements if selected is None else statements[:-1], lists)
    elif selected is None:
        show.as_json(answer)
    if selected is not None:
        _print_rows(link, selected)
    return bool(statements)


def apply(link: Link, text: str, lists: Lists, *, dry_run: bool, prune: bool = False) -> bool:
    """Apply a file, which may have been applied before, or plan it; whether it has statements."""
    answer = link.post("sql", {"sql": text, "dry_run": dry_run, "idempotent": True, "prune": prune})
    statements = answer["statements"]
    if link.as_json:
        show.as_json(answer)
        return True
    _print(statements, lists, dry_run=dry_run)
    if statements and all(statement.get("unchanged") for statement in statements):
        show.tell(f"nothing to change: {_exist(statements)}")
    elif "plan" in answer and statements:
        planned.show_plan(answer["plan"])
    return bool(statements)


def diff(link: Link, text: str, file: str) -> bool:
    """Print the differences between the server and a file that is all it is to define; whether there are any."""
    answer = link.post("sql", {"sql": text, "dry_run": True, "prune": True})
    changed = [statement for statement in answer["statements"] if not statement.get("unchanged")]
    if link.as_json:
        show.as_json(changed)
        return bool(changed)
    # A dropped and created object is one difference.
    objects = {(_kind_of(statement), statement["name"]): statement for statement in changed}
    again = [(_kind_of(statement), statement["name"]) for statement in changed]
    for (kind, name), statement in objects.items():
        before, after = statement["before"], statement["after"]
        sign = "+" if before is None else "-" if after is None else "~"
        show.out(f"{sign} {kind} {name}{' (dropped and created again)' if again.count((kind, name)) > 1 else ''}")
        if before is not None and after is not None and before != after:
            lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "the server", file, lineterm="")
            show.out("\n".join(f"    {line}" for line in lines))
    return bool(changed)


def _kind_of(statement: Mapping[str, Any]) -> str:
    """The kind of the object that a statement is about."""
    return str(statement["kind"]).partition("_")[2]


def _exist(statements: Sequence[Mapping[str, Any]]) -> str:
    """The objects of a file that changes nothing."""
    created = [statement["kind"].removeprefix("create_") for statement in statements]
    parts = [counted(created.count(kind), kind) for kind in _KINDS if kind in created]
    if not parts:
        return "what these statements drop does not exist"
    verb = "exists" if len(created) == 1 else "exist"
    return f"{', '.join(parts)} {verb} as the file defines"


def _print(statements: Sequence[Mapping[str, Any]], lists: Lists, *, dry_run: bool = False) -> None:
    for statement in statements:
        for warning in statement.get("warnings", ()):
            show.tell(f"warning: {warning}")
        if statement.get("unchanged"):
            show.tell(f"unchanged: {statement['reason']}")
        elif "items" in statement:
            lists(statement["name"], statement["items"])
        elif "columns" in statement:
            _print_description(statement)
        elif "text" in statement:
            show.out(statement["text"])
        else:
            show.tell(f"{'would ' if dry_run else ''}{_words(statement)}")


def _words(statement: Mapping[str, Any]) -> str:
    name = statement["name"]
    if statement["kind"] == "rename_query":
        return f"rename query {statement.get('previous', statement.get('was'))} to {name}"
    if statement["kind"] == "insert":
        late = f", {statement['late']:,} of them late" if statement.get("late") else ""
        return f"insert {counted(statement['rows'], 'row')} into {name}{late}"
    if statement.get("replaces"):
        return f"replace query {name}"
    return f"{statement['kind'].replace('_', ' ')} {name}"


def _print_description(statement: Mapping[str, Any]) -> None:
    """DESCRIBE: the columns, then the options that differ from their defaults."""
    rows = [(column["name"], column["type"], "" if column["nullable"] else "not null")
            for column in statement["columns"]]  # fmt: skip
    show.table(["column", "type", "null"], rows)
    more = {
        **({"query": statement["query"]} if "query" in statement else {}),
        **({"reads": ", ".join(statement["reads"])} if "reads" in statement else {}),
        **({"temporary": True} if statement.get("temporary") else {}),
        **statement["options"],
    }
    if more:
        show.out("")
        show.details(more)


def _print_rows(link: Link, selected: Mapping[str, Any]) -> None:
    from millrace.cli.streaming import print_rows

    for warning in selected["warnings"]:
        show.tell(f"warning: {warning}")
    print_rows(link, selected["name"], 0, selected["limit"], follow=False)
