"""The commands that look at a server and change it, each one request to its API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from millrace.cli import planned, show, statements
from millrace.cli.link import Link, segment
from millrace.protocol.errors import MillraceError
from millrace.protocol.words import counted
from millrace.server import chained

Name = Annotated[str, typer.Argument()]

# What `list` prints of each kind of thing: heads and where the value is.
COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "stream": ("name", "timestamps", "tuples", "late", "rejected", "connections", "component"),
    "query": ("name", "state", "order", "rows", "subscribers", "component"),
    "sink": ("name", "query", "type", "state", "delivered", "held", "dropped"),
    "component": ("name", "strategy", "weight", "steps", "queued", "ready"),
    "operator": ("name", "kind", "component", "input_tuples", "output_tuples", "executions", "blocked", "inserted"),
}
PLURALS: Final = {
    "stream": "streams",
    "query": "queries",
    "sink": "sinks",
    "component": "components",
    "operator": "operators",
}


def _lister(kind: str) -> Callable[..., None]:
    """The `list` command of a kind."""

    def list_all(link: Link) -> None:
        items = link.get(PLURALS[kind])
        if link.as_json:
            show.as_json(items)
        else:
            _print_list(PLURALS[kind], items)

    return list_all


def _print_list(plural: str, items: Sequence[Mapping[str, Any]]) -> None:
    """A table of things of one kind, which SHOW and `list` print alike."""
    columns = COLUMNS[next(kind for kind, name in PLURALS.items() if name == plural)]
    rows = [[_told_of(item).get(at) for at in columns] for item in items]
    show.table([name.replace("_", " ") for name in columns], rows)


def _told_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """A fork has turns and takes nothing: its readers take from what it shares, so its own counts would be noughts."""
    if item.get("temporary"):
        return {**item, "state": f"{item['state']}, temporary"}
    return {**item, "input_tuples": None, "output_tuples": None} if item.get("kind") == "fork" else item


def _shower(kind: str) -> Callable[..., None]:
    """The `show` command of a kind."""

    def show_one(link: Link, name: Name) -> None:
        _print(link, link.get(f"{PLURALS[kind]}/{segment(name)}"))

    return show_one


def _dropper(kind: str) -> Callable[..., None]:
    """The `drop` command of a kind."""

    def drop(link: Link, name: Name) -> None:
        done = link.delete(f"{PLURALS[kind]}/{segment(name)}")
        _done(link, done, f"dropped {kind} {name}")

    return drop


def _print(link: Link, item: Mapping[str, Any]) -> None:
    if link.as_json:
        show.as_json(item)
    else:
        show.details(_told_of(item))


def _done(link: Link, answer: object, text: str) -> None:
    if link.as_json:
        show.as_json(answer)
    else:
        show.tell(text)


# -- SQL ---------------------------------------------------------------------------------------------------------------


def apply(
    link: Link,
    file: Annotated[Path, typer.Argument(help="A file of statements.")],
    plan: Annotated[bool, typer.Option("--plan", help="Plan and check everything, apply nothing.")] = False,
) -> None:
    """Apply all statements of a file, or none of them."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise MillraceError(f"{file}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise MillraceError(f"{file}, line {line}: expected statements as UTF-8 text, got other bytes") from None
    if not statements.apply(link, text, _print_list, dry_run=plan):
        show.tell(f"there is no statement in {file}")


def sql(link: Link, statement: Annotated[str, typer.Argument(help="One or more statements.")]) -> None:
    """Execute statements. A SELECT prints its rows as they arrive, until its LIMIT or Ctrl-C."""
    try:
        if not statements.run(link, statement, _print_list):
            raise typer.BadParameter("there is no statement in it", param_hint="STATEMENT")
    except (KeyboardInterrupt, BrokenPipeError):
        # What is still buffered is dropped: writing it could block if the reader has stopped reading.
        show.nobody_reads()


def run_statements(link: Link, text: str) -> None:
    """What the prompt does with statements."""
    statements.run(link, text, _print_list)


def export(link: Link) -> None:
    """Print the catalog as SQL that another server can apply; what SQL does not say stands in comments."""
    answer = link.get("catalog")
    if link.as_json:
        show.as_json(answer)
    else:
        show.out(answer["sql"].rstrip())


def explain(
    link: Link,
    query: Name,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Per operator: rates, selectivity, cost, queue, idle-waiting, state.")
    ] = False,
    order: Annotated[
        bool, typer.Option("--order", help="Of its joins: measured rates and costs, predicted response times, gain.")
    ] = False,
) -> None:
    """Show the plan of a running query, and what its operators really do."""
    if order:
        _explain_order(link, query)
        return
    answer = link.get(f"queries/{segment(query)}/explain" + ("?analyze=true" if analyze else ""))
    if link.as_json:
        show.as_json(answer)
    else:
        show.out(answer["text"])


def _explain_order(link: Link, query: str) -> None:
    """What was measured of a query's joins, and what NILE predicts of putting rows in order before or after."""
    members = link.get(f"queries/{segment(query)}")["operators"]
    joins = [one for one in (link.get(f"operators/{segment(member)}") for member in members) if one["join"] is not None]
    if link.as_json:
        show.as_json([{"operator": one["name"], **one["join"]} for one in joins])
    elif not joins:
        show.out(f"{query} has no join")
    for one in [] if link.as_json else joins:
        show.out("\n".join(_told(one["name"], one["join"])))


def _told(name: str, join: dict[str, Any]) -> list[str]:
    def seconds(value: float | None) -> str:
        return "not known yet" if value is None else f"{value:.6g} s"

    rates = ", ".join(f"{rate:.6g}" for rate in join["rates"])
    lines = [
        f"{name}: order {join['order']}, takes rows by {join['mode']} now",
        f"  rates of its inputs          {rates} tuples/s",
        f"  cost c of joining two tuples {join['cost_us']:.6g} us",
        f"  window |w|                   {join['window_s']:.6g} s",
        f"  c |w| l1 l2                  {join['value']:.6g} (alpha {join['alpha']:.6g})",
        f"  response time, sync          {seconds(join['sync_response_s'])} (eq. 3)",
        f"  response time, filter        {seconds(join['filter_response_s'])} (eq. 5)",
        f"  gain of filter               {join['gain'] * 100:.3g} % (eq. 7)",
        f"  rows in the hold buffer      {join['held_rows']}",
        f"  switches                     {join['switches']}",
    ]
    return lines + [
        f"    at {switch['at_us']} to {switch['mode']}: c |w| l1 l2 {switch['value']:.6g}, alpha {switch['alpha']:.6g}"
        for switch in join["last_switches"]
    ]


def why(link: Link, query: Name) -> None:
    """Say what a query waits for, in a sentence, and what would help."""
    answer = link.get(f"queries/{segment(query)}/why")
    if link.as_json:
        show.as_json(answer)
        return
    show.out(answer["text"])
    if answer["try"] is not None:
        show.tell(f"try: {answer['try']}")


# -- queries -----------------------------------------------------------------------------------------------------------


def query_pause(
    link: Link, name: Name, reason: Annotated[str | None, typer.Option(help="Why, for whoever looks later.")] = None
) -> None:
    """Pause a query: it takes nothing, and counts what it skips, until it is resumed."""
    body = None if reason is None else {"reason": reason}
    _done(link, link.post(f"queries/{segment(name)}/pause", body), f"paused query {name}")


def query_resume(link: Link, name: Name) -> None:
    """Resume a paused query at the then current end."""
    answer = link.post(f"queries/{segment(name)}/resume")
    _done(link, answer, f"resumed query {name}; it skipped {counted(answer['skipped'], 'tuple')}")


def query_rename(link: Link, name: Name, to: Annotated[str, typer.Argument(help="Its new name.")]) -> None:
    """Give a query another name. Its rows go on with their numbers, and whoever reads it reads on."""
    answer = link.post(f"queries/{segment(name)}/rename", {"to": to})
    _done(link, answer, f"query {name} is called {to} now")


def query_unshare(
    link: Link,
    name: Name,
    operators: Annotated[
        list[str] | None, typer.Argument(help="By their names in its plan; all if none is named.")
    ] = None,
) -> None:
    """Give a query operators of its own, where it shares them with others. No row is lost or repeated."""
    answer = link.post(f"queries/{segment(name)}/unshare", {"operators": operators or []})
    done = ", ".join(answer["operators"]) or "nothing that it had in common"
    _done(link, answer, f"query {name} has for itself now: {done}")


class JoinMode(StrEnum):
    ARRIVAL = "arrival"
    SYNC = "sync"
    FILTER = "filter"
    ADAPTIVE = "adaptive"


def query_order(
    link: Link,
    name: Name,
    order: Annotated[JoinMode, typer.Argument(help="As rows come, in order before, in order after, or what pays.")],
    alpha: Annotated[
        float | None, typer.Option(min=0, help="Adaptive turns to filter where c |w| l1 l2 >= alpha; below 1.")
    ] = None,
) -> None:
    """Change how a query's joins take and give rows, while they run. No pair is lost or repeated."""
    if alpha is not None and not alpha < 1:
        raise typer.BadParameter(f"expected a number from 0 to below 1, got {alpha:g}", param_hint="--alpha")
    answer = link.put(f"queries/{segment(name)}/order", {"join": order.value, "alpha": alpha})
    _done(link, answer, f"joins of {name} go by {order.value} now")


# -- update queues -----------------------------------------------------------------------------------------------------


class QueueKind(StrEnum):
    APPEND = "append"
    FIFO = "fifo"
    INPLACE = "inplace"
    LINECUTTING = "linecutting"


def operator_queue(
    link: Link,
    name: Name,
    kind: Annotated[QueueKind, typer.Argument(help="Everything, or the newest of each key by this policy.")],
    position: Annotated[int, typer.Option("--input", min=0, help="Which of its inputs, from 0.")] = 0,
) -> None:
    """Exchange the queue of an operator's input while it runs."""
    answer = link.put(f"operators/{segment(name)}/queue", {"kind": kind.value, "input": position})
    lost = f", {counted(answer['superseded'], 'tuple')} superseded by it" if answer["superseded"] else ""
    _done(link, answer, f"input {position} of {name} has a queue of kind {kind.value} now{lost}")


# -- operators put in and taken out ------------------------------------------------------------------------------------

Where = Annotated[str | None, typer.Option(metavar="CONDITION", help="Rows for which this is true go on.")]
Share = Annotated[float | None, typer.Option("--sample", help="This share of the rows goes on, drawn by chance.")]
Seed = Annotated[int | None, typer.Option(min=0, help="With --sample: what the lots are drawn from.")]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Show what would become of the graph, change nothing.")]


def operator_insert(
    link: Link,
    name: Name,
    position: Annotated[int, typer.Option("--input", min=0, help="In front of which of its inputs, from 0.")] = 0,
    where: Where = None,
    sample: Share = None,
    seed: Seed = None,
    called: Annotated[
        str | None,
        typer.Option("--name", help="QUERY.selectN, with a number that is free; the next if not given."),
    ] = None,
    plan: PlanOnly = False,
) -> None:
    """Put an operator in front of an input while it runs, for what SQL does not say.

    What waits before the input stays, what comes from now on goes through the operator, until the query is replaced.
    """
    body = {**_rows(where, sample, seed, plan), "input": position, "name": called}
    answer = link.post(f"operators/{segment(name)}/insert", body)
    _edited(
        link,
        answer,
        lambda: f"{answer['operator']} is in front of {name}, input {position}, until its query is replaced",
    )


def operator_remove(link: Link, name: Name, plan: PlanOnly = False) -> None:
    """Take out an operator that only leaves rows out: one that was put in, or a select. What waits for it goes on."""
    answer = link.delete(f"operators/{segment(name)}" + ("?dry_run=true" if plan else ""))
    _edited(link, answer, lambda: f"{name} is gone, until its query is replaced")


def operator_replace(
    link: Link, name: Name, where: Where = None, sample: Share = None, seed: Seed = None, plan: PlanOnly = False
) -> None:
    """Let an operator that leaves rows out leave out others, until its query is replaced."""
    answer = link.put(f"operators/{segment(name)}", _rows(where, sample, seed, plan))
    _edited(
        link,
        answer,
        lambda: (
            f"{name} lets other rows through now"
            + (f"; it forgot {counted(answer['forgotten'], 'tuple')}" if answer["forgotten"] else "")
        ),
    )


def _rows(where: str | None, sample: float | None, seed: int | None, plan: bool) -> dict[str, Any]:
    if where is None and sample is None:
        raise typer.BadParameter("say which rows go on: give --where or --sample", param_hint="--where")
    if where is not None and sample is not None:
        raise typer.BadParameter("give --where or --sample, not both: insert two operators", param_hint="--sample")
    if seed is not None and sample is None:
        raise typer.BadParameter("only --sample draws lots", param_hint="--seed")
    if sample is not None and not 0 < sample < 1:
        raise typer.BadParameter(f"expected a share between 0 and 1, got {sample:g}", param_hint="--sample")
    return {"where": where, "sample": sample, "seed": seed, "dry_run": plan}


def _edited(link: Link, answer: Mapping[str, Any], text: Callable[[], str]) -> None:
    """What was done, or what a plan shows."""
    if answer["dry_run"] and not link.as_json:
        planned.show_plan(answer["plan"])
    else:
        _done(link, answer, "" if answer["dry_run"] else text())


def stream_show(
    link: Link,
    name: Name,
    stale: Annotated[
        bool, typer.Option("--stale", help="How stale its update queues are, and which keys most.")
    ] = False,
    worst: Annotated[int, typer.Option(min=0, max=1000, help="With --stale: so many keys of each queue.")] = 10,
) -> None:
    """Show one stream, whole, or how stale what LATEST keeps of it is."""
    if not stale:
        _print(link, link.get(f"streams/{segment(name)}"))
        return
    queues = link.get(f"streams/{segment(name)}/stale?worst={worst}")
    if link.as_json:
        show.as_json(queues)
        return
    if not queues:
        show.out(f"nobody reads {name} by LATEST: no queue of it supersedes anything")
    for queue in queues:
        told = f"{queue['operator']}, input {queue['input']}: {queue['kind']}"
        if queue["paused"]:
            skipped = counted(queue["skipped"], "tuple")
            show.out(f"{told}; its query is paused: what it has shown grows stale, and {skipped} went by")
            continue
        show.out(
            f"{told}, {counted(queue['keys'], 'key')}, {queue['waiting']} waiting, {queue['superseded']} superseded;"
            f" stale on the average: queue {_milliseconds(queue['queue_mean_us'])}, "
            f"application {_milliseconds(queue['application_mean_us'])}"
        )
        if queue["worst"]:
            rows = [[_key_words(one["key"]), _milliseconds(one["stale_us"])] for one in queue["worst"]]
            show.table(("key", "stale for"), rows)


def stream_archive(link: Link, name: Name) -> None:
    """Have all that has come in so far in whole files of the stream's history, and show how far it reaches."""
    answer = link.post(f"streams/{segment(name)}/archive", {})
    if link.as_json:
        show.as_json(answer)
    else:
        show.details(answer["archive"])


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
    name: Name,
    form: Annotated[
        Form | None,
        typer.Option("--format", help="Draw its graph: operators, arcs, queues, rates, strategies, breaks."),
    ] = None,
) -> None:
    """Show one component, whole, or its graph as a drawing."""
    if form is None:
        _print(link, link.get(f"components/{segment(name)}"))
    elif link.as_json:
        show.as_json(link.get(f"components/{segment(name)}/graph"))
    else:
        show.out(link.get(f"components/{segment(name)}/graph?format={form.value}")["text"])


def component_table(link: Link, name: Name) -> None:
    """Print a component's state table as the papers do: state, pred, succ, transition."""
    answer = link.get(f"components/{segment(name)}/table")
    if link.as_json:
        show.as_json(answer)
    else:
        show.table(("state", "pred", "succ", "transition"), table_lines(answer["rows"]))
        decided = chained.lines((row["state"], row.get("chain")) for row in answer["rows"])
        if decided:
            show.out("")
            show.table(chained.HEADS, decided)


def table_lines(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line per row; further predecessors and successors (a union's, a fork's) stand on lines of their own."""
    return [line for row in rows for line in _row_lines(row)]


def _row_lines(row: Mapping[str, Any]) -> Iterator[list[str]]:
    state, transition = row["state"], row["transition"]
    for pred, succ in zip_longest(row["pred"] or ["-"], row["succ"] or ["-"], fillvalue=""):
        yield [state, pred, succ, transition]
        state = transition = ""


def component_weight(link: Link, name: Name, weight: Annotated[int, typer.Argument(min=1)]) -> None:
    """Set a component's share of the processor against the others'."""
    answer = link.put(f"components/{segment(name)}/weight", {"weight": weight})
    _done(link, answer, f"{name} now weighs {weight}")


def strategy_show(link: Link, component: Name) -> None:
    """Show the strategy of a component and of its operators."""
    answer = link.get(f"components/{segment(component)}/strategy")
    if link.as_json:
        show.as_json(answer)
        return
    show.out(f"{component}: {answer['strategy']}")
    show.table(("operator", "strategy"), list(answer["operators"].items()))


def strategy_set(
    link: Link,
    component: Name,
    strategy: Annotated[str, typer.Argument(help="dfs, bfs, rr or chain, also with (k).")],
    operator: Annotated[str | None, typer.Option(help="Re-map this operator alone.")] = None,
) -> None:
    """Set the strategy of a component, or of one of its operators, while it runs."""
    body = {"strategy": strategy, "operator": operator}
    answer = link.put(f"components/{segment(component)}/strategy", body)
    _done(link, answer, f"{operator or component} now runs {answer['strategy']}")


def break_set(link: Link, operator: Name) -> None:
    """Set a break point at an operator's output."""
    _done(link, link.put(f"operators/{segment(operator)}/break"), f"set a break point at {operator}")


def break_unset(link: Link, operator: Name) -> None:
    """Unset a break point."""
    _done(link, link.delete(f"operators/{segment(operator)}/break"), f"unset the break point at {operator}")


stream_list, query_list, sink_list, component_list, operator_list = map(_lister, COLUMNS)
query_show, sink_show, operator_show = map(_shower, ("query", "sink", "operator"))
query_drop, stream_drop, sink_drop = map(_dropper, ("query", "stream", "sink"))
