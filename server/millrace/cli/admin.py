"""The commands that inspect and change a server. Each is one request to its API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from millrace.cli import show
from millrace.cli.link import Link, segment
from millrace.cli.names import PLURALS, Kind, request
from millrace.protocol.errors import MillraceError
from millrace.protocol.words import counted

if TYPE_CHECKING:
    from millrace.protocol.admin.operators import JoinView, RowView

T = TypeVar("T")

Query = Annotated[str, typer.Argument(metavar="QUERY")]
Stream = Annotated[str, typer.Argument(metavar="STREAM")]
Component = Annotated[
    str, typer.Argument(metavar="COMPONENT", help="A component, or a stream, query or operator in it.")
]
ShowAll = Annotated[bool, typer.Option("--all", help="Show everything, defaults and zeros too.")]

# The columns of each `list` command.
COLUMNS: Final[Mapping[Kind, Sequence[str]]] = {
    "stream": ("name", "timestamps", "tuples", "late", "rejected", "connections", "component"),
    "query": ("name", "state", "order", "rows", "subscribers", "component"),
    "sink": ("name", "query", "type", "state", "delivered", "held", "dropped"),
    "component": ("name", "strategy", "weight", "steps", "queued", "ready"),
    "operator": ("name", "kind", "component", "input_tuples", "output_tuples", "executions", "blocked", "inserted"),
}


def _lister(kind: Kind) -> Callable[..., None]:
    """The `list` command of a kind."""

    def list_all(link: Link) -> None:
        items = link.get(PLURALS[kind])
        if link.as_json:
            show.as_json(items)
        else:
            _print_list(PLURALS[kind], items)

    return list_all


def _print_list(plural: str, items: Sequence[Mapping[str, Any]]) -> None:
    """A table of items of one kind; SHOW and `list` print the same."""
    columns = COLUMNS[next(kind for kind in COLUMNS if PLURALS[kind] == plural)]
    rows = [[_listed(item).get(column) for column in columns] for item in items]
    show.table([name.replace("_", " ") for name in columns], rows)


def _listed(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """The item as a list shows it: a temporary query is marked, and a fork has no counts."""
    from millrace.cli import details

    if item.get("temporary"):
        return {**item, "state": f"{item['state']}, temporary"}
    return details.without_fork_counts(item)


def _shower(kind: Kind) -> Callable[..., None]:
    """The `show` command of a kind."""

    def show_item(link: Link, name: str, everything: bool = False) -> None:
        _print(link, kind, request(link, "GET", kind, name)[0], everything)

    return _named(show_item, kind, everything=ShowAll)


def _named(command: Callable[..., None], kind: Kind, **options: object) -> Callable[..., None]:
    """The command with its argument called after the kind in the help."""
    command.__annotations__.update(name=Annotated[str, typer.Argument(metavar=kind.upper())], **options)
    return command


def _print(link: Link, kind: Kind, item: Mapping[str, Any], everything: bool) -> None:
    from millrace.cli import details

    if link.as_json:
        show.as_json(item)
    else:
        show.out("\n".join(details.lines(kind, item, everything=everything)))


def _answer(link: Link, kind: type[T], answer: Any, text: Callable[[T], str]) -> None:
    """Print an answer as data, or as the text of its view."""
    from millrace.protocol.admin.data import from_data

    if link.as_json:
        show.as_json(answer)
    else:
        show.out(text(from_data(kind, answer)))


# -- SQL ---------------------------------------------------------------------------------------------------------------


def apply(
    link: Link,
    file: Annotated[Path, typer.Argument(metavar="FILE.sql", help="A file of SQL statements.")],
    plan: Annotated[bool, typer.Option("--plan", help="Show what would change, without changing anything.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Make the server equal to the file: drop what the file does not define.")
    ] = False,
) -> None:
    """Apply all statements of a file, or none of them."""
    from millrace.cli import statements

    if not statements.apply(link, _read(file), _print_list, dry_run=plan, prune=prune):
        show.tell(f"{file} contains no statement")


def diff(
    link: Link,
    file: Annotated[Path, typer.Argument(metavar="FILE.sql", help="A file of all definitions.")],
) -> None:
    """Print what `apply --prune` would create (+), drop (-) and replace (~).

    Exits with 0 if nothing, with 1 if anything, and with 2 after an error.
    """
    from millrace.cli import statements

    try:
        differs = statements.diff(link, _read(file), str(file))
    except MillraceError as error:
        show.tell(f"millrace: {error.text}")
        raise typer.Exit(2) from None
    if differs:
        raise typer.Exit(1)


def _read(file: Path) -> str:
    """The text of a file of statements."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise MillraceError(f"{file}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise MillraceError(f"{file}, line {line}: expected statements as UTF-8 text, got other bytes") from None


def sql(
    link: Link,
    statement: Annotated[str, typer.Argument(help="One or more statements.")],
    preview: Annotated[
        bool, typer.Option("--preview", help="Apply nothing: print the last query's rows over the newest tuples.")
    ] = False,
) -> None:
    """Execute statements. A SELECT prints its rows as they arrive, until its LIMIT or Ctrl-C."""
    from millrace.cli import statements

    if preview:
        statements.preview(link, statement)
        return
    try:
        if not statements.run(link, statement, _print_list):
            raise typer.BadParameter("it contains no statement", param_hint="STATEMENT")
    except (KeyboardInterrupt, BrokenPipeError):
        # Buffered output is dropped: writing it could block if the reader has stopped reading.
        show.discard_output()


def run_statements(link: Link, text: str) -> None:
    """Execute the statements of the prompt."""
    from millrace.cli import statements

    statements.run(link, text, _print_list)


def export(link: Link) -> None:
    """Print the catalog as SQL that another server can apply; decisions beyond SQL are comments."""
    from millrace.protocol.admin.server import CatalogView

    _answer(link, CatalogView, link.get("catalog"), lambda catalog: catalog.sql.rstrip())


def explain(
    link: Link,
    query: Query,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Add per operator: rates, selectivity, cost, queue, idle-waiting, state.")
    ] = False,
    order: Annotated[
        bool, typer.Option("--order", help="Show joins only: measured rates and costs, predicted response times, gain.")
    ] = False,
) -> None:
    """Show the plan of a running query, and with --analyze the measurements of its operators."""
    if order:
        _explain_order(link, query)
        return
    from millrace.protocol.admin.queries import ExplainView

    answer, _ = request(link, "GET", "query", query, "/explain" + ("?analyze=true" if analyze else ""))
    _answer(link, ExplainView, answer, lambda plan: plan.text)


def _explain_order(link: Link, query: str) -> None:
    """The measurements of a query's joins, and NILE's predictions for ordering rows before or after the join."""
    from millrace.protocol.admin.data import from_data, to_data
    from millrace.protocol.admin.operators import OperatorView
    from millrace.protocol.admin.queries import QueryView

    members = from_data(QueryView, request(link, "GET", "query", query)[0]).operators
    operators = [link.view(OperatorView, f"operators/{segment(member)}") for member in members]
    joins = [(operator.name, operator.join) for operator in operators if operator.join is not None]
    if link.as_json:
        show.as_json([{"operator": name, **to_data(join)} for name, join in joins])
        return
    if not joins:
        show.out(f"{query} has no join")
    for name, join in joins:
        show.out("\n".join(_join_lines(name, join)))


def _join_lines(name: str, join: JoinView) -> list[str]:
    from millrace.cli import details

    def seconds(value: float | None) -> str:
        return "not known yet" if value is None else f"{value:.6g} s"

    rates = ", ".join(f"{rate:.6g}" for rate in join.rates)
    lines = [
        f"{name}: order {join.order}, now takes rows by {join.mode}",
        f"  rates of its inputs          {rates} tuples/s",
        f"  cost c of joining two tuples {join.cost_us:.6g} us",
        f"  window |w|                   {join.window_s:.6g} s",
        f"  c |w| l1 l2                  {join.value:.6g} (alpha {join.alpha:.6g})",
        f"  response time, sync          {seconds(join.sync_response_s)} (eq. 3)",
        f"  response time, filter        {seconds(join.filter_response_s)} (eq. 5)",
        f"  gain of filter               {join.gain * 100:.3g} % (eq. 7)",
        f"  rows in the hold buffer      {join.held_rows}",
        f"  rows dropped by group        {join.closed_rows}",
        f"  switches                     {join.switches}",
    ]
    return lines + [
        f"    at {details.instant(switch.at_us)} to {switch.mode}: "
        f"c |w| l1 l2 {switch.value:.6g}, alpha {switch.alpha:.6g}"
        for switch in join.last_switches
    ]


def why(
    link: Link,
    query: Query,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="T", help="A moment of the past: ISO 8601, microseconds, or '-10 minutes'."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="With --at: read this data directory, without its server."),
    ] = None,
) -> None:
    """Say in a sentence what a query waits for, or waited for at a moment of the past, and which command helps."""
    from millrace.protocol.admin.data import from_data
    from millrace.protocol.admin.queries import Why

    if data_dir is not None:
        from millrace.cli.past import why_in

        if at is None:
            raise typer.BadParameter("without --at, ask the server: leave out --data-dir", param_hint="--data-dir")
        answer = why_in(data_dir, query, at)
    else:
        moment = "" if at is None else f"?at={segment(at)}"
        answer, _ = request(link, "GET", "query", query, f"/why{moment}")
    if link.as_json:
        show.as_json(answer)
        return
    found = from_data(Why, answer)
    show.out(found.text)
    if found.try_ is not None and at is None:
        show.tell(f"try: {found.try_}")


# -- streams -----------------------------------------------------------------------------------------------------------


def stream_show(
    link: Link,
    name: Stream,
    stale: Annotated[
        bool, typer.Option("--stale", help="Show how stale the stream's update queues are, and their most stale keys.")
    ] = False,
    worst: Annotated[int, typer.Option(min=0, max=1000, help="Keys per queue to list, with --stale.")] = 10,
    everything: ShowAll = False,
) -> None:
    """Show one stream: its settings, tuples, progress and feeds."""
    if stale:
        _show_stale(link, name, worst)
    else:
        _print(link, "stream", request(link, "GET", "stream", name)[0], everything)


def _show_stale(link: Link, name: str, worst: int) -> None:
    from millrace.protocol.admin.data import from_data
    from millrace.protocol.admin.streams import StalenessView

    answer, _ = request(link, "GET", "stream", name, f"/stale?worst={worst}")
    if link.as_json:
        show.as_json(answer)
        return
    queues = [from_data(StalenessView, queue) for queue in answer]
    if not queues:
        show.out(f"no query reads {name} with LATEST, so none of its queues supersedes tuples")
    for queue in queues:
        mode = f" (now {queue.auto.mode})" if queue.auto else ""
        head = f"{queue.operator}, input {queue.input}: {queue.kind}{mode}"
        if queue.paused:
            skipped = counted(queue.skipped, "tuple")
            show.out(f"{head}; its query is paused and skipped {skipped}, so its rows grow stale")
            continue
        show.out(
            f"{head}, {counted(queue.keys, 'key')}, {queue.waiting} queued, {queue.superseded} superseded;"
            f" mean staleness: queue {_milliseconds(queue.queue_mean_us)}, "
            f"application {_milliseconds(queue.application_mean_us)}"
        )
        if queue.worst:
            rows = [[_key_words(key.key), _milliseconds(key.stale_us)] for key in queue.worst]
            show.table(("key", "stale for"), rows)


def stream_archive(link: Link, name: Stream) -> None:
    """Write the stream's history so far to complete files, and show how far it reaches."""
    from millrace.cli import details

    answer, _ = request(link, "POST", "stream", name, "/archive", {})
    if link.as_json:
        show.as_json(answer)
    else:
        show.out("\n".join(details.lines("archive", answer["archive"], everything=True)))


def _key_words(key: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in key.items()) or "(one row)"


def _milliseconds(us: float) -> str:
    return f"{us / 1000:.3f} ms"


# -- scheduling --------------------------------------------------------------------------------------------------------


class Form(StrEnum):
    MERMAID = "mermaid"
    DOT = "dot"
    TABLE = "table"
    TEXT = "text"


def component_show(
    link: Link,
    name: Component,
    form: Annotated[
        Form | None,
        typer.Option("--format", help="Draw the graph: operators, arcs, queues, rates, strategies, break points."),
    ] = None,
    everything: ShowAll = False,
) -> None:
    """Show one component, or its graph as a drawing."""
    if form is None:
        _print(link, "component", request(link, "GET", "component", name)[0], everything)
    elif link.as_json:
        show.as_json(request(link, "GET", "component", name, "/graph")[0])
    else:
        from millrace.protocol.admin.operators import DrawingView

        answer, _ = request(link, "GET", "component", name, f"/graph?format={form.value}")
        _answer(link, DrawingView, answer, lambda drawing: drawing.text)


def component_table(
    link: Link,
    name: Component,
    rules: Annotated[
        bool, typer.Option("--rules", help="Also print the rule of each transition: its moves, in order.")
    ] = False,
) -> None:
    """Print a component's state table as the papers do: state, pred, succ, transition."""
    from millrace.observe import chained
    from millrace.protocol.admin.data import from_data
    from millrace.protocol.admin.operators import TableView

    answer, _ = request(link, "GET", "component", name, "/table")
    if link.as_json:
        show.as_json(answer)
        return
    table = from_data(TableView, answer)
    show.table(("state", "pred", "succ", "transition"), table_lines(table.rows))
    links = chained.lines((row.state, row.chain) for row in table.rows)
    if links:
        show.out("")
        show.table(chained.HEADS, links)
    if rules:
        show.out("")
        show.table(("transition", "moves"), [[name, ", ".join(moves)] for name, moves in table.rules.items()])


def table_lines(rows: Sequence[RowView]) -> list[list[str]]:
    """A line per row; each further predecessor or successor (of a union or a fork) has a line below it."""
    return [line for row in rows for line in _row_lines(row)]


def _row_lines(row: RowView) -> Iterator[list[str]]:
    state, transition = row.state, row.transition
    for pred, succ in zip_longest(row.pred or ["-"], row.succ or ["-"], fillvalue=""):
        yield [state, pred, succ, transition]
        state = transition = ""


def strategy_show(link: Link, component: Component) -> None:
    """Show the strategy of a component and of its operators."""
    from millrace.protocol.admin.data import from_data
    from millrace.protocol.admin.operators import StrategyView

    answer, name = request(link, "GET", "component", component, "/strategy")
    if link.as_json:
        show.as_json(answer)
        return
    found = from_data(StrategyView, answer)
    show.out(f"{name}: {found.strategy}")
    show.table(("operator", "strategy"), list(found.operators.items()))


stream_list, query_list, sink_list, component_list, operator_list = (_lister(kind) for kind in COLUMNS)
query_show, sink_show, operator_show = _shower("query"), _shower("sink"), _shower("operator")
