"""`millrace backfill`: queries over history, on Spark. The flags, checked and handed on to the backfill room.

Rule: everything that can be known without Spark is checked before it starts, and Spark and pyarrow are imported only
when one of these commands runs.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from millrace.cli import show
from millrace.cli.link import Link, ServerError, segment
from millrace.protocol.errors import MillraceError
from millrace.protocol.words import counted

if TYPE_CHECKING:
    from millrace.backfill.flow import Flow
    from millrace.backfill.inputs import Input
    from millrace.backfill.running import Advanced, Wanted
    from millrace.backfill.verifying import Lived, Verdict
    from millrace.sql import Catalog


# Differences that are shown; --json shows all of them.
SHOWN: Final = 10
# Letters of a statement that is wrong: enough to know it by.
STATEMENT_LETTERS: Final = 60


class How(StrEnum):
    AUTO = "auto"
    KEY = "key"
    TIME = "time"


@dataclass(frozen=True)
class Asked:
    """The options that `start` and `verify` share: their declarations and values."""

    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="A running server's query; with --sql one of the file's.")
    ] = None
    sql: Annotated[str | None, typer.Option("--sql", metavar="FILE", help="Statements: streams and the query.")] = None
    history: Annotated[
        str | None, typer.Option("--history", metavar="DIR", help="A server's history; of a running one it is known.")
    ] = None
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="STREAM=PATH", help="Parquet, CSV or JSON lines, a directory of such, or table:NAME."
        ),
    ] = None
    from_: Annotated[str | None, typer.Option("--from", metavar="T", help="Rows whose own time is at least this.")] = (
        None
    )
    to: Annotated[str | None, typer.Option("--to", metavar="T", help="Rows whose own time is below this.")] = None
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="Spark's master. By default Spark runs embedded, on all cores."),
    ] = None
    mode: Annotated[How, typer.Option("--mode", help="How to split: by key, by slices of time, or as is best.")] = (
        How.AUTO
    )
    tasks: Annotated[
        int | None, typer.Option("--tasks", min=1, help="The number of tasks; two per core by default.")
    ] = None
    functions: Annotated[
        str | None,
        typer.Option("--functions", metavar="MODULE", envvar="MILLRACE_SERVER__FUNCTIONS", help="Functions for SQL."),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's, any number of times."),
    ] = None


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the flags of Asked in place of its second parameter."""
    hints = get_type_hints(Asked, include_extras=True)

    @functools.wraps(command)
    def with_asked(link: Link, **given: Any) -> None:
        command(link, Asked(**{flag.name: given.pop(flag.name) for flag in fields(Asked)}), **given)

    first, _, *own = inspect.signature(command, eval_str=True).parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    flags = [
        inspect.Parameter(flag.name, keyword, default=flag.default, annotation=hints[flag.name])
        for flag in fields(Asked)
    ]
    own = [parameter.replace(kind=keyword) for parameter in own]
    with_asked.__signature__ = inspect.Signature([first, *own, *flags])  # type: ignore[attr-defined]
    return with_asked


@asking
def start(
    link: Link,
    asked: Asked,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the rows go, as Parquet.")],
    then_live: Annotated[
        bool,
        typer.Option(
            "--then-live",
            help="Also make the query on the server: rows below a time go to --out, all others to the query's sinks.",
        ),
    ] = False,
) -> None:
    """Compute a query's rows over history. After an interruption, the same command resumes the work."""
    from millrace.backfill.running import start as run

    if then_live:
        _check_then_live(asked)
    wanted, _ = _wanted(link, asked, out=out, then_live=then_live)
    if then_live:
        up_to = _up_to_the_seam(link, asked, wanted)
        if up_to is None:
            _tell_nothing_before(link, wanted)
            return
        wanted = up_to
    with _interruptible(), _bar() as advanced:
        manifest = run(wanted, show.tell, advanced)
    _tell_failed(manifest["failed_rows"])
    if then_live:
        _tell_caught_up(link, wanted)
    if link.as_json:
        show.as_json(manifest)
    else:
        show.out(f"{out}: {counted(manifest['rows'], 'row')} in {counted(len(manifest['files']), 'file')}")


@contextmanager
def _interruptible(advice: str = "start it again with the same flags to continue") -> Iterator[None]:
    """Ctrl-C is one line: what Spark's bridge to Java logs of it is left out."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    except KeyboardInterrupt:
        show.tell(f"interrupted: {advice}")
        raise typer.Exit(130) from None
    finally:
        logging.disable(logging.NOTSET)


def status(
    link: Link, directory: Annotated[str, typer.Argument(metavar="DIR", help="The directory of --out.")]
) -> None:
    """Show the progress of a backfill."""
    from millrace.backfill.running import status as look

    progress = look(directory)
    if link.as_json:
        show.as_json(progress)
        return
    show.details(progress)
    if progress["finished"] is None:
        show.tell("it is not finished: start it again with the same flags to continue")


@asking
def verify(
    link: Link,
    asked: Asked,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against", metavar="PATH", help="A sink's file or a backfill's directory; else the query's sinks."
        ),
    ] = None,
) -> None:
    """Recompute a span on Spark and compare it with the written rows. The default is the span that both have."""
    from millrace.backfill.verifying import verify as compare

    # Asked before the history is brought up to date: all that these rows were made of is in it then.
    lived = _lived(link, asked) if asked.sql is None and not against else None
    wanted, catalog = _wanted(link, asked)
    paths = list(against or ())
    if not paths:
        paths = _sink_files(catalog, wanted.flow.name) if lived is None else list(lived.paths)
    with _interruptible("start it again"), _bar() as advanced:
        verdict = compare(wanted, paths, show.tell, advanced, lived)
    _show_verdict(link, wanted.flow, verdict)
    if verdict.differences.count:
        raise typer.Exit(1)


def _show_verdict(link: Link, flow: Flow, verdict: Verdict) -> None:
    from millrace.backfill.compare import side_by_side
    from millrace.backfill.splitting import span_words
    from millrace.protocol import Type

    found, name = verdict.differences, flow.name
    times = frozenset(field.name for field in flow.schema if field.type is Type.TIMESTAMP)
    plain = functools.partial(_plain, times)
    for note in verdict.notes:
        show.tell(f"note: {note}")
    if link.as_json:
        show.as_json(
            {
                "query": name,
                "equality": verdict.equality,
                "from_us": verdict.span.from_us if verdict.span.begins else None,
                "to_us": verdict.span.to_us if verdict.span.ends else None,
                "recomputed": found.compared,
                "written": verdict.written,
                "equal": not found.count,
                "missing": [plain(row) for row in found.missing],
                "extra": [plain(row) for row in found.extra],
                "changed": [{"recomputed": plain(one), "written": plain(other)} for one, other in found.changed],
            }
        )
        return
    show.out(
        f"{name} {span_words(verdict.span)}: {counted(found.compared, 'row')} recomputed, {verdict.written} written, "
        f"equality {verdict.equality}: {counted(found.count, 'difference') if found.count else 'equal'}"
    )
    told = flow.time_column
    for one, other in islice(side_by_side(found, None if told is None else flow.schema.names[told[0]]), SHOWN):
        if one is not None and other is not None:
            show.out(f"~ {plain(one)}   written {plain(other)}")
        elif one is not None:
            show.out(f"- {plain(one)}   only recomputed")
        elif other is not None:
            show.out(f"+ {plain(other)}   only written")
    if found.count > SHOWN:
        show.out(f"... and {found.count - SHOWN} more (--json shows all)")


def _plain(times: Collection[str], row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as a sink has it: times as text."""
    return {name: _shown(value, name in times) for name, value in row.items()}


def _shown(value: Any, is_time: bool) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return _iso(value) if is_time and isinstance(value, int) else value


# -- what is meant -----------------------------------------------------------------------------------------------------


def _wanted(link: Link, asked: Asked, *, out: str = "", then_live: bool = False) -> tuple[Wanted, Catalog]:
    """The request, checked as far as possible without Spark, and the catalog of its query."""
    if asked.query is None and asked.sql is None:
        raise typer.BadParameter("name a query of a running server, or use --sql FILE", param_hint="QUERY")
    if asked.sql is not None and not asked.history and not asked.inputs and not then_live:
        raise typer.BadParameter("say where the rows are: --history DIR or --input STREAM=PATH", param_hint="--input")
    from millrace.backfill.flow import flow_of
    from millrace.backfill.job import slice_of
    from millrace.backfill.running import Wanted
    from millrace.sql.functions import install_module

    span = slice_of(_time("--from", asked.from_), _time("--to", asked.to))
    if asked.functions is not None:
        install_module(asked.functions)
    catalog = _catalog_with(link.get("catalog")["sql"], asked) if then_live else _catalog(link, asked)
    if not catalog.queries:
        raise MillraceError("it contains no query: add a SELECT or CREATE QUERY")
    flow = flow_of(catalog, asked.query or list(catalog.queries)[-1])
    functions = () if asked.functions is None else (asked.functions,)
    wanted = Wanted(
        flow,
        _inputs(link, asked, flow, live=then_live or asked.sql is None),
        out,
        span,
        asked.mode,  # type: ignore[arg-type]
        asked.tasks,
        asked.master,
        functions,
        tuple(_pair("--conf", text, "NAME=VALUE") for text in asked.settings or ()),
        whole=then_live,
        goes_on=then_live,
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
    from millrace.offline.script import plan_script
    from millrace.sql import Catalog

    if asked.sql is None:
        script = plan_script(link.get("catalog")["sql"])
    else:
        with _statements_of(asked.sql, asked.query) as text:
            script = plan_script(text)
    return Catalog(script.streams, script.queries, script.sinks)


@contextmanager
def _statements_of(path: str, query: str | None) -> Iterator[str]:
    """A file's text. The error names the wrong statement, which may differ from the requested query."""
    from millrace.sql.errors import SqlError

    text = _text(path)
    try:
        yield text
    except SqlError as error:
        at = _statement_at(text, error.line, error.column)
        where = path if at is None else f'{path}, in the statement "{at}"'
        all_of_it = "" if query is None else f" (query {query} needs the whole file to be right)"
        raise MillraceError(f"{where}{all_of_it}: {error.text}") from None


def _statement_at(text: str, line: int, column: int) -> str | None:
    """The first words of the statement at a place; None if the text cannot be parsed."""
    from millrace.sql import parse
    from millrace.sql.errors import SqlError

    try:
        statements = parse(text)
    except SqlError:
        return None
    place = sum(map(len, text.split("\n")[: line - 1])) + line - 1 + column - 1
    words = next((" ".join(one.sql.split()) for one in reversed(statements) if one.body.span.start <= place), None)
    return words if words is None or len(words) <= STATEMENT_LETTERS else f"{words[:STATEMENT_LETTERS]}..."


def _inputs(link: Link, asked: Asked, flow: Flow, *, live: bool) -> dict[str, Input]:
    """The input of each stream: what is named, and of the others the history; a running server's if it is `live`."""
    from millrace.backfill.inputs import base_streams, find_history, find_input

    found: dict[str, Input] = {}
    for text in asked.inputs or ():
        stream, path = _pair("--input", text, "STREAM=PATH")
        if stream in found:
            raise typer.BadParameter(
                f"{stream} appears twice; a directory may contain several files", param_hint="--input"
            )
        found[stream] = find_input(flow, stream, path)
    missing = [name for name in base_streams(flow) if name not in found]
    if not missing:
        return found
    directory = asked.history
    if directory is None and live:
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
        raise MillraceError(_no_sink(query))
    return paths


def _no_sink(query: str) -> str:
    return f"query {query} has no sink that writes a file: name what it wrote with --against PATH"


def _pair(flag: str, text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise typer.BadParameter(f"expected {form}, got {text!r}", param_hint=flag)
    return name, value


def _lived(link: Link, asked: Asked) -> Lived | None:
    """A running server's account of the rows that its query emitted."""
    from millrace.backfill.verifying import Lived

    if asked.query is None:
        return None  # refused in a moment
    shown = link.get(f"queries/{segment(asked.query)}")
    paths = [sink["path"] for sink in link.get("sinks") if sink["query"] == asked.query and sink["path"] is not None]
    if not paths:
        raise MillraceError(_no_sink(asked.query))
    begun = shown["backfill"] or {"seam_us": None, "out": None}
    marks = {stream["name"]: _mark(stream) for stream in link.get("streams")}
    return Lived(tuple(paths), marks, shown["since_us"], begun["seam_us"], begun["out"], shown["skipped"])


def _mark(stream: Mapping[str, Any]) -> int | None:
    """Below which time a stream's tuples have all come."""
    from millrace.operators.eventtime import MAX_TIME

    if stream["ended"]:
        return MAX_TIME
    mark: int | None = stream["mark_us"]
    # The server passes tuples on as soon as it stamps them: the newest has been emitted.
    return mark if mark is None or stream["timestamps"] == "external" else mark + 1


# -- then live ---------------------------------------------------------------------------------------------------------

# How often the command reads the progress of the backfill: often enough for a moving bar.
LOOK_SECONDS: Final = 0.25
# The server's code for a query without a backfill.
UNKNOWN: Final = "unknown_backfill"


def _text(path: str) -> str:
    """A file of SQL. Standard input can be read only once, so its text is cached."""
    from millrace.offline.files import STANDARD
    from millrace.offline.script import load_text

    return _standard_input() if path == STANDARD else load_text(path)


@functools.cache
def _standard_input() -> str:
    from millrace.offline.files import STANDARD
    from millrace.offline.script import load_text

    return load_text(STANDARD)


def _check_then_live(asked: Asked) -> None:
    if asked.sql is None:
        raise typer.BadParameter(
            "--then-live creates a query: put its CREATE QUERY and its sinks into a file, and use --sql FILE",
            param_hint="--sql",
        )
    given = {"--from": asked.from_, "--to": asked.to, "--input": asked.inputs, "--history": asked.history}
    wrong = [flag for flag, value in given.items() if value]
    if wrong:
        raise typer.BadParameter(
            "the server says up to which time history's rows go, and its own history is the input: leave "
            f"{' and '.join(wrong)} out",
            param_hint="--then-live",
        )


def _catalog_with(known: str, asked: Asked) -> Catalog:
    """The server's catalog with the file's query, which may be there already if this is not the first attempt."""
    from millrace.sql import Catalog, CreateQuery, parse, plan_all
    from millrace.sql.limits import KNOWN

    assert asked.sql is not None
    _, catalog = plan_all(parse(known, KNOWN), Catalog())
    with _statements_of(asked.sql, asked.query) as text:
        names = {step.body.name.text for step in parse(text) if hasattr(step.body, "name")}
        queries = {name: query for name, query in catalog.queries.items() if name not in names}
        sinks = {name: sink for name, sink in catalog.sinks.items() if name not in names}
        planned, catalog = plan_all(parse(text), Catalog(catalog.streams, queries, sinks))
    made = [step.plan.name for step in planned if isinstance(step, CreateQuery)]
    if len(made) != 1:
        raise MillraceError(f"{asked.sql}: expected one CREATE QUERY and sinks over it, got {len(made)} of them")
    if asked.query not in (None, *made):
        raise MillraceError(f"{asked.sql}: expected CREATE QUERY {asked.query}, got {made[0]}")
    # The one that is made is the last.
    return Catalog(catalog.streams, {name: catalog.queries[name] for name in [*queries, *made]}, catalog.sinks)


def _up_to_the_seam(link: Link, asked: Asked, wanted: Wanted) -> Wanted | None:
    """Have the server make the query with its past; history's part are the rows below the seam, if there are any."""
    from dataclasses import replace

    from millrace.backfill.java import find_java
    from millrace.backfill.outputs import Destination
    from millrace.backfill.running import check_beforehand
    from millrace.backfill.splitting import Slice

    begun = Destination(wanted.out).plan()
    if begun is not None:
        return replace(wanted, span=Slice(to_us=begun["identity"]["to_us"]))
    check_beforehand(wanted)
    find_java()
    _begin_on_the_server(link, asked, wanted)
    found = _wait_for_the_seam(link, wanted.flow.name)
    seam = found["seam_us"]
    if seam is None:
        return None
    show.tell(
        f"{found['query']} is live: the server emits its rows from {_iso(seam)} on, and earlier rows go to {wanted.out}"
    )
    # What the archive has got meanwhile belongs to the input.
    return replace(wanted, span=Slice(to_us=seam), inputs=_inputs(link, asked, wanted.flow, live=True))


def _begin_on_the_server(link: Link, asked: Asked, wanted: Wanted) -> None:
    """Create the query, or resume an existing one with the same directory for the rows of history."""
    from millrace.backfill.margins import margins_of

    name, out = wanted.flow.name, str(Path(wanted.out).absolute())
    if name not in {query["name"] for query in link.get("queries")}:
        reach = margins_of(wanted.flow).widest
        margin = None if reach.back is None or reach.ahead is None else reach.back + reach.ahead
        assert asked.sql is not None
        link.post("backfills", {"sql": _text(asked.sql), "margin_us": margin, "out": out})
        return
    try:
        link.put(f"backfills/{segment(name)}", {"out": out})
    except ServerError as error:
        if error.code != UNKNOWN:
            raise
        raise MillraceError(
            f"query {name} already exists and was not created with its history, so it has no seam: use another name "
            f"for the new query, or drop the old one first (millrace query drop {name})"
        ) from None


def _wait_for_the_seam(link: Link, name: str) -> dict[str, Any]:
    import time

    with _bar("archived rows") as advanced:
        while True:
            found: dict[str, Any] = link.get(f"backfills/{segment(name)}")
            if found["phase"] == "failed":
                raise MillraceError(f"query {found['query']} could not process its history: {found['reason']}")
            if found["phase"] == "live":
                return found
            advanced(found["rows"], found["of"])
            time.sleep(LOOK_SECONDS)


def _iso(us: int) -> str:
    from millrace.protocol import format_timestamp

    return format_timestamp(us)


def _tell_nothing_before(link: Link, wanted: Wanted) -> None:
    """All is well, and nothing is left to do: no tuple's time is known yet, so no row lies below it."""
    name = wanted.flow.name
    if link.as_json:
        show.as_json({"query": name, "seam_us": None, "rows": 0, "files": []})
    else:
        show.out(f"{name} is live and has emitted all its rows: no rows to compute from history")


def _tell_caught_up(link: Link, wanted: Wanted) -> None:
    name, out = wanted.flow.name, str(Path(wanted.out).absolute())
    try:
        found = link.put(f"backfills/{segment(name)}", {"history_us": wanted.span.to_us, "done": True, "out": out})
    except ServerError as error:
        if error.code != UNKNOWN:
            raise
        show.tell(
            f"note: query {name}, which started with this history, no longer exists on the server; its rows are "
            "complete"
        )
    else:
        show.tell(f"{name} is {found['state']}")


# -- what is shown -----------------------------------------------------------------------------------------------------


@contextmanager
def _bar(what: str = "Spark's tasks") -> Iterator[Advanced]:
    """A progress bar on a terminal's stderr, moved by Spark's counts."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total or None)


def _tell_failed(failed: Mapping[str, Sequence[Any]]) -> None:
    for operator, (count, reason) in failed.items():
        show.tell(f"millrace: {operator}: dropped {counted(count, 'row')} that could not be computed: {reason}")
