"""`millrace backfill`: queries over history, on Spark. The flags, checked and handed on to the backfill room.

Rule: everything that can be known without Spark is checked before it starts, and Spark and pyarrow are imported only
when one of these commands runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millrace.cli import show
from millrace.cli.link import Link, segment
from millrace.cli.options import linked
from millrace.protocol.errors import MillraceError

if TYPE_CHECKING:
    from millrace.backfill.flow import Flow
    from millrace.backfill.inputs import Input
    from millrace.backfill.running import Advanced, Wanted
    from millrace.backfill.verifying import Verdict
    from millrace.sql import Catalog

app = typer.Typer(help="Queries over history, as a Spark job with the same operators.", no_args_is_help=True)

# Differences that are shown; --json shows all of them.
SHOWN: Final = 10


class How(StrEnum):
    AUTO = "auto"
    KEY = "key"
    TIME = "time"


Query = Annotated[
    str | None, typer.Argument(metavar="QUERY", help="A running server's query; with --sql one of the file's.")
]
Sql = Annotated[str | None, typer.Option("--sql", metavar="FILE", help="Statements: streams and the query.")]
History = Annotated[
    str | None, typer.Option("--history", metavar="DIR", help="A server's history; of a running one it is known.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", metavar="STREAM=PATH", help="Parquet, CSV or JSON lines, a directory of such, or table:NAME."
    ),
]
From = Annotated[str | None, typer.Option("--from", metavar="T", help="Rows whose own time is at least this.")]
To = Annotated[str | None, typer.Option("--to", metavar="T", help="Rows whose own time is below this.")]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master; embedded, on all cores, if not given.")
]
Mode = Annotated[How, typer.Option("--mode", help="How to split: by key, by slices of time, or as is best.")]
Tasks = Annotated[int | None, typer.Option("--tasks", min=1, help="How many tasks; two per core if not given.")]
Functions = Annotated[
    str | None,
    typer.Option("--functions", metavar="MODULE", envvar="MILLRACE_SERVER__FUNCTIONS", help="Functions for SQL."),
]
Settings = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's, any number of times.")
]


@dataclass(frozen=True)
class Asked:
    """The options that start and verify share."""

    query: str | None
    sql: str | None
    history: str | None
    inputs: Sequence[str]
    from_: str | None
    to: str | None
    out: str
    master: str | None
    mode: str
    tasks: int | None
    functions: str | None
    settings: Sequence[str]


def start(
    link: Link,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the rows go, as Parquet.")],
    query: Query = None,
    sql: Sql = None,
    history: History = None,
    inputs: Inputs = None,
    from_: From = None,
    to: To = None,
    master: Master = None,
    mode: Mode = How.AUTO,
    tasks: Tasks = None,
    functions: Functions = None,
    conf: Settings = None,
) -> None:
    """Compute a query's rows over history. Started again after an interruption, it goes on where it was."""
    asked = Asked(query, sql, history, inputs or (), from_, to, out, master, mode, tasks, functions, conf or ())
    from millrace.backfill.running import start as run

    wanted, _ = _wanted(link, asked)
    with _bar() as advanced:
        manifest = run(wanted, show.tell, advanced)
    _tell_failed(manifest["failed_rows"])
    if link.as_json:
        show.as_json(manifest)
    else:
        show.out(f"{out}: {_count(manifest['rows'], 'row')} in {_count(len(manifest['files']), 'file')}")


def status(
    link: Link, directory: Annotated[str, typer.Argument(metavar="DIR", help="What was given as --out.")]
) -> None:
    """How far a backfill has come."""
    from millrace.backfill.running import status as look

    found = look(directory)
    if link.as_json:
        show.as_json(found)
        return
    show.details(found)
    if found["finished"] is None:
        show.tell("it is not finished: start it again with the same flags to go on")


def verify(
    link: Link,
    query: Query = None,
    sql: Sql = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against", metavar="PATH", help="A sink's file or a backfill's directory; else the query's sinks."
        ),
    ] = None,
    history: History = None,
    inputs: Inputs = None,
    from_: From = None,
    to: To = None,
    master: Master = None,
    mode: Mode = How.AUTO,
    tasks: Tasks = None,
    functions: Functions = None,
    conf: Settings = None,
) -> None:
    """Recompute a span on Spark and compare it, row by row, with what was written."""
    asked = Asked(query, sql, history, inputs or (), from_, to, "", master, mode, tasks, functions, conf or ())
    from millrace.backfill.verifying import verify as compare

    wanted, catalog = _wanted(link, asked)
    paths = list(against or ()) or _sink_files(catalog, wanted.flow.name)
    with _bar() as advanced:
        verdict = compare(wanted, paths, show.tell, advanced)
    _show_verdict(link, wanted.flow.name, verdict)
    if verdict.differences.count:
        raise typer.Exit(1)


def _show_verdict(link: Link, name: str, verdict: Verdict) -> None:
    found = verdict.differences
    for note in verdict.notes:
        show.tell(f"note: {note}")
    if link.as_json:
        show.as_json(
            {
                "query": name,
                "equality": verdict.equality,
                "recomputed": found.compared,
                "written": verdict.written,
                "equal": not found.count,
                "missing": [_plain(row) for row in found.missing],
                "extra": [_plain(row) for row in found.extra],
                "changed": [{"recomputed": _plain(one), "written": _plain(other)} for one, other in found.changed],
            }
        )
        return
    show.out(
        f"{name}: {_count(found.compared, 'row')} recomputed, {verdict.written} written, equality {verdict.equality}: "
        + ("equal" if not found.count else f"{_count(found.count, 'difference')}")
    )
    lines = [f"- {_plain(row)}   only recomputed" for row in found.missing]
    lines += [f"+ {_plain(row)}   only written" for row in found.extra]
    lines += [f"~ {_plain(one)}   written {_plain(other)}" for one, other in found.changed]
    for line in lines[:SHOWN]:
        show.out(line)
    if len(lines) > SHOWN:
        show.out(f"... and {len(lines) - SHOWN} more (--json shows all)")


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()}


for _name, _command in (("start", start), ("status", status), ("verify", verify)):
    app.command(_name)(linked(_command))


# -- what is meant -----------------------------------------------------------------------------------------------------


def _wanted(link: Link, asked: Asked) -> tuple[Wanted, Catalog]:
    """What is asked for, checked as far as that goes without Spark, and the catalog that the query is of."""
    if asked.query is None and asked.sql is None:
        raise typer.BadParameter("name a running server's query, or give a file with --sql", param_hint="QUERY")
    if asked.sql is not None and not asked.history and not asked.inputs:
        raise typer.BadParameter("say where the rows are: --history DIR or --input STREAM=PATH", param_hint="--input")
    from millrace.backfill.flow import flow_of
    from millrace.backfill.job import slice_of
    from millrace.backfill.running import Wanted
    from millrace.sql.functions import install_module

    span = slice_of(_time("--from", asked.from_), _time("--to", asked.to))
    if asked.functions is not None:
        install_module(asked.functions)
    catalog = _catalog(link, asked)
    if not catalog.queries:
        raise MillraceError("there is no query: add a SELECT or CREATE QUERY")
    flow = flow_of(catalog, asked.query or list(catalog.queries)[-1])
    functions = () if asked.functions is None else (asked.functions,)
    wanted = Wanted(
        flow,
        _inputs(link, asked, flow),
        asked.out,
        span,
        asked.mode,  # type: ignore[arg-type]
        asked.tasks,
        asked.master,
        functions,
        tuple(_pair("--conf", text, "NAME=VALUE") for text in asked.settings),
    )
    return wanted, catalog


def _time(flag: str, text: str | None) -> int | None:
    from millrace.protocol import TimestampError, parse_timestamp

    if text is None:
        return None
    try:
        return int(text) if text.lstrip("+-").isdecimal() else parse_timestamp(text)
    except (TimestampError, ValueError):
        raise typer.BadParameter(f"expected ISO 8601 or integer microseconds, got {text!r}", param_hint=flag) from None


def _catalog(link: Link, asked: Asked) -> Catalog:
    from millrace.offline.script import load, plan_script
    from millrace.sql import Catalog

    script = load(asked.sql) if asked.sql is not None else plan_script(link.get("catalog")["sql"])
    return Catalog(script.streams, script.queries, script.sinks)


def _inputs(link: Link, asked: Asked, flow: Flow) -> dict[str, Input]:
    """The input of each stream: what is named, and of the others the history."""
    from millrace.backfill.inputs import base_streams, find_history, find_input

    found: dict[str, Input] = {}
    for text in asked.inputs:
        stream, path = _pair("--input", text, "STREAM=PATH")
        if stream in found:
            raise typer.BadParameter(
                f"{stream} is given twice; a directory may hold several files", param_hint="--input"
            )
        found[stream] = find_input(flow, stream, path)
    missing = [name for name in base_streams(flow) if name not in found]
    if not missing:
        return found
    directory = asked.history
    if directory is None and asked.sql is None:
        directory = _server_history(link, missing)
    if directory is None:
        raise typer.BadParameter(
            f"nothing says where the rows of {', '.join(missing)} are: --input {missing[0]}=PATH, or --history DIR",
            param_hint="--input",
        )
    archives = find_history(flow, directory, missing)
    return {name: found.get(name) or archives[name] for name in base_streams(flow)}


def _server_history(link: Link, streams: Sequence[str]) -> str | None:
    """The history of a running server, with all that it has taken in so far."""
    directory: str | None = link.get("server").get("history_dir")
    if directory is not None:
        for name in streams:
            link.post(f"streams/{segment(name)}/archive")
    return directory


def _sink_files(catalog: Catalog, query: str) -> list[str]:
    paths = [sink.path for sink in catalog.sinks.values() if sink.query == query and sink.path is not None]
    if not paths:
        raise MillraceError(f"query {query} has no sink that writes a file: name what it wrote with --against PATH")
    return paths


def _pair(flag: str, text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise typer.BadParameter(f"expected {form}, got {text!r}", param_hint=flag)
    return name, value


# -- what is shown -----------------------------------------------------------------------------------------------------


@contextmanager
def _bar() -> Iterator[Advanced]:
    """A bar on stderr, where somebody looks; Spark's own counts move it."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("Spark's tasks"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total or None)


def _tell_failed(failed: Mapping[str, Sequence[Any]]) -> None:
    for operator, (count, reason) in failed.items():
        show.tell(f"millrace: {operator}: {_count(count, 'row')} could not be computed and left out: {reason}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
