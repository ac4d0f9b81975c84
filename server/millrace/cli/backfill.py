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
from millrace.cli.names import names_of
from millrace.protocol.errors import MillraceError
from millrace.protocol.words import counted

if TYPE_CHECKING:
    from millrace.backfill.flow import Flow
    from millrace.backfill.inputs import Input
    from millrace.backfill.running import Advanced, BackfillRequest
    from millrace.backfill.verifying import LiveQueryInfo, Verdict
    from millrace.protocol.admin.queries import BackfillView
    from millrace.protocol.admin.streams import StreamView
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
class BackfillOptions:
    """The options that `start` and `verify` share: their declarations and values."""

    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="A query of a running server, or with --sql of the file.")
    ] = None
    sql: Annotated[str | None, typer.Option("--sql", metavar="FILE", help="Statements: streams and the query.")] = None
    history: Annotated[
        str | None, typer.Option("--history", metavar="DIR", help="A server's history. Default: the running server's.")
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
    to: Annotated[str | None, typer.Option("--to", metavar="T", help="Rows whose own time is before this.")] = None
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="Spark's master. By default Spark runs embedded, on all cores."),
    ] = None
    mode: Annotated[How, typer.Option("--mode", help="How to split: by key, by slices of time, or automatically.")] = (
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
        typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting; can be repeated."),
    ] = None


def with_backfill_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the flags of BackfillOptions in place of its second parameter."""
    hints = get_type_hints(BackfillOptions, include_extras=True)

    @functools.wraps(command)
    def with_options(link: Link, **values: Any) -> None:
        options = BackfillOptions(**{flag.name: values.pop(flag.name) for flag in fields(BackfillOptions)})
        command(link, options, **values)

    first, _, *own = inspect.signature(command, eval_str=True).parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    flags = [
        inspect.Parameter(flag.name, keyword, default=flag.default, annotation=hints[flag.name])
        for flag in fields(BackfillOptions)
    ]
    own = [parameter.replace(kind=keyword) for parameter in own]
    with_options.__signature__ = inspect.Signature([first, *own, *flags])  # type: ignore[attr-defined]
    return with_options


@with_backfill_options
def start(
    link: Link,
    options: BackfillOptions,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the rows go, as Parquet.")],
    then_live: Annotated[
        bool,
        typer.Option(
            "--then-live",
            help="Also create the query on the server: rows before a time go to --out, later ones to its sinks.",
        ),
    ] = False,
) -> None:
    """Compute a query's rows over history. After an interruption, the same command resumes the work."""
    from millrace.backfill.running import start as run

    if then_live:
        _check_then_live(options)
    request, _ = _request_of(link, options, out=out, then_live=then_live)
    if then_live:
        up_to = _up_to_the_seam(link, options, request)
        if up_to is None:
            _report_nothing_before(link, request)
            return
        request = up_to
    with interruptible(), _bar() as advanced:
        manifest = run(request, show.tell, advanced)
    _report_failed(manifest["failed_rows"])
    if then_live:
        _report_caught_up(link, request)
    if link.as_json:
        show.as_json(manifest)
    else:
        show.out(f"{out}: {counted(manifest['rows'], 'row')} in {counted(len(manifest['files']), 'file')}")


@contextmanager
def interruptible(advice: str = "start it again with the same flags to continue") -> Iterator[None]:
    """Report Ctrl-C in one line, without the log of Spark's bridge to Java."""
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


@with_backfill_options
def verify(
    link: Link,
    options: BackfillOptions,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against", metavar="PATH", help="A sink's file or a backfill's directory; else the query's sinks."
        ),
    ] = None,
) -> None:
    """Recompute a span on Spark and compare it with the written rows. The default is the span that both have."""
    from millrace.backfill.verifying import verify as compare

    # Requested before the history is brought up to date, which then has every tuple of these rows.
    lived = _account_of(link, options) if options.sql is None and not against else None
    request, catalog = _request_of(link, options)
    paths = list(against or ())
    if not paths:
        paths = _sink_files(catalog, request.flow.name) if lived is None else list(lived.paths)
    with interruptible("start it again"), _bar() as advanced:
        verdict = compare(request, paths, show.tell, advanced, lived)
    _show_verdict(link, request.flow, verdict)
    if verdict.differences.count:
        raise typer.Exit(1)


def _show_verdict(link: Link, flow: Flow, verdict: Verdict) -> None:
    from millrace.backfill.compare import side_by_side
    from millrace.backfill.splitting import span_words
    from millrace.protocol import Type

    differences, name = verdict.differences, flow.name
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
                "recomputed": differences.compared,
                "written": verdict.written,
                "equal": not differences.count,
                "missing": [plain(row) for row in differences.missing],
                "extra": [plain(row) for row in differences.extra],
                "changed": [{"recomputed": plain(row), "written": plain(other)} for row, other in differences.changed],
            }
        )
        return
    show.out(
        f"{name} {span_words(verdict.span)}: {counted(differences.compared, 'row')} recomputed, "
        f"{verdict.written} written, equality {verdict.equality}: "
        f"{counted(differences.count, 'difference') if differences.count else 'equal'}"
    )
    column = None if flow.time_column is None else flow.schema.names[flow.time_column[0]]
    for row, other in islice(side_by_side(differences, column), SHOWN):
        if row is not None and other is not None:
            show.out(f"~ {plain(row)}   written {plain(other)}")
        elif row is not None:
            show.out(f"- {plain(row)}   only recomputed")
        elif other is not None:
            show.out(f"+ {plain(other)}   only written")
    if differences.count > SHOWN:
        show.out(f"... and {differences.count - SHOWN} more (--json shows all)")


def _plain(times: Collection[str], row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as a sink has it: times as text."""
    return {name: _shown(value, name in times) for name, value in row.items()}


def _shown(value: Any, is_time: bool) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return _iso(value) if is_time and isinstance(value, int) else value


# -- the request -------------------------------------------------------------------------------------------------------


def _request_of(
    link: Link, options: BackfillOptions, *, out: str = "", then_live: bool = False
) -> tuple[BackfillRequest, Catalog]:
    """The request, checked as far as possible without Spark, and the catalog of its query."""
    if options.query is None and options.sql is None:
        raise typer.BadParameter("name a query of a running server, or use --sql FILE", param_hint="QUERY")
    if options.sql is not None and not options.history and not options.inputs and not then_live:
        raise typer.BadParameter("say where the rows are: --history DIR or --input STREAM=PATH", param_hint="--input")
    from millrace.backfill.flow import flow_of
    from millrace.backfill.job import slice_of
    from millrace.backfill.running import BackfillRequest
    from millrace.sql.functions import install_module

    span = slice_of(_time("--from", options.from_), _time("--to", options.to))
    if options.functions is not None:
        install_module(options.functions)
    catalog = _catalog_with(_known(link), options) if then_live else _catalog(link, options)
    if not catalog.queries:
        raise MillraceError("it contains no query: add a SELECT or CREATE QUERY")
    flow = flow_of(catalog, options.query or list(catalog.queries)[-1])
    functions = () if options.functions is None else (options.functions,)
    request = BackfillRequest(
        flow,
        _inputs(link, options, flow, live=then_live or options.sql is None),
        out,
        span,
        options.mode,  # type: ignore[arg-type]
        options.tasks,
        options.master,
        functions,
        tuple(parse_pair("--conf", text, "NAME=VALUE") for text in options.settings or ()),
        whole=then_live,
        goes_on=then_live,
    )
    return request, catalog


def _time(flag: str, text: str | None) -> int | None:
    from millrace.protocol import TimestampError, parse_timestamp

    if text is None:
        return None
    try:
        return int(text) if text.lstrip("+-").isdecimal() else parse_timestamp(text)
    except (TimestampError, ValueError):
        raise typer.BadParameter(f"expected ISO 8601 or integer microseconds, got {text!r}", param_hint=flag) from None


def _catalog(link: Link, options: BackfillOptions) -> Catalog:
    from millrace.offline.script import plan_script
    from millrace.sql import Catalog

    if options.sql is None:
        return _known(link)
    with reading_statements(options.sql, options.query) as text:
        script = plan_script(text)
    return Catalog(script.streams, script.queries, script.sinks)


def _known(link: Link) -> Catalog:
    """The server's catalog: its queries have the plans that they run there."""
    from millrace.protocol.admin.server import CatalogView
    from millrace.store.stored import catalog_of

    found = link.view(CatalogView, "catalog?plans=true")
    return catalog_of(found.statements, found.plans or {}, show.tell)


@contextmanager
def reading_statements(path: str, query: str | None = None) -> Iterator[str]:
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
    before = [statement for statement in statements if statement.body.span.start <= place]
    words = " ".join(before[-1].sql.split()) if before else None
    return words if words is None or len(words) <= STATEMENT_LETTERS else f"{words[:STATEMENT_LETTERS]}..."


def _inputs(link: Link, options: BackfillOptions, flow: Flow, *, live: bool) -> dict[str, Input]:
    """The input of each stream: the named one, or else the history, of a running server if `live`."""
    from millrace.backfill.inputs import base_streams, find_history, find_input

    inputs: dict[str, Input] = {}
    for text in options.inputs or ():
        stream, path = parse_pair("--input", text, "STREAM=PATH")
        if stream in inputs:
            raise typer.BadParameter(
                f"{stream} appears twice; a directory may contain several files", param_hint="--input"
            )
        inputs[stream] = find_input(flow, stream, path)
    missing = [name for name in base_streams(flow) if name not in inputs]
    if not missing:
        return inputs
    directory = options.history
    if directory is None and live:
        directory = _server_history(link, missing)
    if directory is None:
        raise typer.BadParameter(
            f"no input for {', '.join(missing)}: use --input {missing[0]}=PATH, or --history DIR",
            param_hint="--input",
        )
    archives = find_history(flow, directory, missing)
    return {name: inputs.get(name) or archives[name] for name in base_streams(flow)}


def _server_history(link: Link, streams: Sequence[str]) -> str | None:
    """The history of a running server, with all rows so far."""
    from millrace.protocol.admin.server import ServerView

    directory = link.view(ServerView, "server").history_dir
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
    return f"query {query} has no sink that writes a file: name its rows with --against PATH"


def parse_pair(flag: str, text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise typer.BadParameter(f"expected {form}, got {text!r}", param_hint=flag)
    return name, value


def _account_of(link: Link, options: BackfillOptions) -> LiveQueryInfo | None:
    """A running server's account of the rows that its query emitted."""
    from millrace.backfill.verifying import LiveQueryInfo
    from millrace.protocol.admin.queries import QueryView, SinkView
    from millrace.protocol.admin.streams import StreamView

    if options.query is None:
        return None  # refused in a moment
    shown = link.view(QueryView, f"queries/{segment(options.query)}")
    sinks = link.views(SinkView, "sinks")
    paths = [sink.path for sink in sinks if sink.query == options.query and sink.path is not None]
    if not paths:
        raise MillraceError(_no_sink(options.query))
    seam_us, out = (None, None) if shown.backfill is None else (shown.backfill.seam_us, shown.backfill.out)
    marks = {stream.name: _mark(stream) for stream in link.views(StreamView, "streams")}
    return LiveQueryInfo(tuple(paths), marks, shown.since_us, seam_us, out, shown.skipped)


def _mark(stream: StreamView) -> int | None:
    """The time before which all tuples of a stream have arrived."""
    from millrace.values.eventtime import MAX_TIME

    if stream.ended:
        return MAX_TIME
    mark = stream.mark_us
    # The server passes tuples on as soon as it stamps them: the newest has been emitted.
    return mark if mark is None or stream.timestamps == "external" else mark + 1


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


def _check_then_live(options: BackfillOptions) -> None:
    if options.sql is None:
        raise typer.BadParameter(
            "--then-live creates a query: put its CREATE QUERY and its sinks into a file, and use --sql FILE",
            param_hint="--sql",
        )
    values = {"--from": options.from_, "--to": options.to, "--input": options.inputs, "--history": options.history}
    wrong = [flag for flag, value in values.items() if value]
    if wrong:
        raise typer.BadParameter(
            "the server determines the end of the history, and its own history is the input: remove "
            f"{' and '.join(wrong)}",
            param_hint="--then-live",
        )


def _catalog_with(catalog: Catalog, options: BackfillOptions) -> Catalog:
    """The server's catalog with the file's query, which exists already if this is not the first attempt."""
    from millrace.sql import Catalog, CreateQuery, parse, plan_all

    assert options.sql is not None
    with reading_statements(options.sql, options.query) as text:
        names = {step.body.name.text for step in parse(text) if hasattr(step.body, "name")}
        queries = {name: query for name, query in catalog.queries.items() if name not in names}
        sinks = {name: sink for name, sink in catalog.sinks.items() if name not in names}
        planned, catalog = plan_all(parse(text), Catalog(catalog.streams, queries, sinks))
    created = [step.plan.name for step in planned if isinstance(step, CreateQuery)]
    if len(created) != 1:
        raise MillraceError(f"{options.sql}: expected one CREATE QUERY and sinks over it, got {len(created)} of them")
    if options.query not in (None, *created):
        raise MillraceError(f"{options.sql}: expected CREATE QUERY {options.query}, got {created[0]}")
    # The created query is the last one.
    return Catalog(catalog.streams, {name: catalog.queries[name] for name in [*queries, *created]}, catalog.sinks)


def _up_to_the_seam(link: Link, options: BackfillOptions, request: BackfillRequest) -> BackfillRequest | None:
    """Let the server create the query with its history; return the request for the rows before the seam, if any."""
    from dataclasses import replace

    from millrace.backfill.java import find_java
    from millrace.backfill.outputs import Destination
    from millrace.backfill.running import check_beforehand
    from millrace.backfill.splitting import Slice

    earlier = Destination(request.out).plan()
    if earlier is not None:
        return replace(request, span=Slice(to_us=earlier["identity"]["to_us"]))
    check_beforehand(request)
    find_java()
    _create_on_the_server(link, options, request)
    progress = _wait_for_the_seam(link, request.flow.name)
    seam = progress.seam_us
    if seam is None:
        return None
    show.tell(
        f"{progress.query} is live: the server emits its rows from {_iso(seam)} on, and earlier rows go to "
        f"{request.out}"
    )
    # Rows that were archived meanwhile belong to the input.
    return replace(request, span=Slice(to_us=seam), inputs=_inputs(link, options, request.flow, live=True))


def _create_on_the_server(link: Link, options: BackfillOptions, request: BackfillRequest) -> None:
    """Create the query, or resume an existing one with the same directory for the rows of history."""
    from millrace.backfill.margins import margins_of
    from millrace.protocol.admin import bodies

    name, out = request.flow.name, str(Path(request.out).absolute())
    if name not in names_of(link, "queries"):
        reach = margins_of(request.flow).widest
        margin = None if reach.back is None or reach.ahead is None else reach.back + reach.ahead
        assert options.sql is not None
        link.post("backfills", bodies.BackfillRequest(sql=_text(options.sql), margin_us=margin, out=out))
        return
    try:
        link.put(f"backfills/{segment(name)}", bodies.BackfillProgress(out=out))
    except ServerError as error:
        if error.code != UNKNOWN:
            raise
        raise MillraceError(
            f"query {name} already exists and was not created with its history, so it has no seam: use another name "
            f"for the new query, or drop the old one first (millrace query drop {name})"
        ) from None


def _wait_for_the_seam(link: Link, name: str) -> BackfillView:
    import time

    from millrace.protocol.admin.queries import BackfillView

    with _bar("archived rows") as advanced:
        while True:
            progress = link.view(BackfillView, f"backfills/{segment(name)}")
            if progress.phase == "failed":
                raise MillraceError(f"query {progress.query} could not process its history: {progress.reason}")
            if progress.phase == "live":
                return progress
            advanced(progress.rows, progress.of)
            time.sleep(LOOK_SECONDS)


def _iso(us: int) -> str:
    from millrace.protocol import format_timestamp

    return format_timestamp(us)


def _report_nothing_before(link: Link, request: BackfillRequest) -> None:
    """No tuple's time is known yet, so there are no rows before the seam."""
    name = request.flow.name
    if link.as_json:
        show.as_json({"query": name, "seam_us": None, "rows": 0, "files": []})
    else:
        show.out(f"{name} is live and has emitted all its rows: no rows to compute from history")


def _report_caught_up(link: Link, request: BackfillRequest) -> None:
    from millrace.protocol.admin.bodies import BackfillProgress
    from millrace.protocol.admin.data import from_data
    from millrace.protocol.admin.queries import BackfillView

    name, out = request.flow.name, str(Path(request.out).absolute())
    body = BackfillProgress(history_us=request.span.to_us, done=True, out=out)
    try:
        progress = from_data(BackfillView, link.put(f"backfills/{segment(name)}", body))
    except ServerError as error:
        if error.code != UNKNOWN:
            raise
        show.tell(
            f"note: query {name}, which started with this history, no longer exists on the server; its rows are "
            "complete"
        )
    else:
        show.tell(f"{name} is {progress.state}")


# -- the output --------------------------------------------------------------------------------------------------------


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


def _report_failed(failed: Mapping[str, Sequence[Any]]) -> None:
    for operator, (count, reason) in failed.items():
        show.tell(f"millrace: {operator}: dropped {counted(count, 'row')} that could not be computed: {reason}")
