"""`millrace run`: checks the options and passes them to `millrace.offline`."""

from __future__ import annotations

import sys
from enum import StrEnum
from fractions import Fraction
from typing import Annotated

import typer

from millrace.offline.run import Options, Run, refuse_failures, report_failures, report_late
from millrace.offline.script import load
from millrace.protocol import Refuse
from millrace.sql.functions import install_module


class Order(StrEnum):
    ARRIVAL = "arrival"
    EVENT = "event"


class Times(StrEnum):
    US = "us"
    ISO = "iso"


def run(
    file: Annotated[str, typer.Argument(metavar="FILE.sql", help="Statements: streams, queries, sinks; - for stdin.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="STREAM=FILE", help="Rows of a stream: .jsonl, .csv, .parquet, .arrow or -."),
    ] = None,
    events: Annotated[
        str | None, typer.Option("--events", metavar="FILE", help="Events in order of arrival, as JSON lines.")
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            metavar="QUERY=FILE",
            help="The file for a query's rows; its ending is the format; - is standard output.",
        ),
    ] = None,
    late: Annotated[
        list[str] | None,
        typer.Option("--late", metavar="STREAM=FILE", help="The file for a stream's late tuples, as JSON lines."),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", metavar="S", help="dfs, bfs, rr or chain, each also with (k), as in dfs(1)."),
    ] = None,
    order: Annotated[
        Order | None, typer.Option("--order", help="The order of every query's rows; overrides the queries.")
    ] = None,
    close: Annotated[bool, typer.Option("--close/--no-close", help="Whether the streams end with their input.")] = True,
    times: Annotated[
        Times, typer.Option("--time", help="The format of timestamps: integers (us) or ISO 8601.")
    ] = Times.ISO,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE.json", help="Write the measurements of the run.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option("--trace", metavar="FILE", help="Write a line per execution of an operator.")
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option("--cost", metavar="US", help="Virtual microseconds per tuple and execution of an operator."),
    ] = None,
    functions: Annotated[
        str | None,
        typer.Option(
            "--functions",
            metavar="MODULE",
            envvar="MILLRACE_SERVER__FUNCTIONS",
            help="A Python module with functions for SQL.",
        ),
    ] = None,
    in_time_order: Annotated[
        bool, typer.Option("--sorted", help="Sort each input by time first, so that nothing is late.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not report late tuples on stderr.")] = False,
) -> None:
    """Run a file of SQL over files of rows, with a virtual clock."""
    if events is not None and inputs:
        raise typer.BadParameter("use --input or --events, not both", param_hint="--events")
    if events is not None and in_time_order:
        raise typer.BadParameter(
            "events are in order of arrival; --sorted works with --input only", param_hint="--sorted"
        )
    options = Options(
        inputs=_pairs("--input", inputs, "STREAM=FILE"),
        events=events,
        outputs=_pairs("--output", outputs, "QUERY=FILE"),
        late=_pairs("--late", late, "STREAM=FILE"),
        strategy=_strategy(strategy),
        close=close,
        iso=times is Times.ISO,
        report=report,
        trace=trace,
        cost=_cost(cost),
        sorted=in_time_order,
    )
    if functions is not None:
        install_module(functions)
    script = load(file, None if order is None else order.value)
    for text in script.shown:
        sys.stderr.write(text + "\n")
    for query in script.queries.values():
        for warning in query.warnings:
            sys.stderr.write(f"millrace: query {query.name}: warning: {warning}\n")
    execution = Run(script, options, sys.stdout.buffer)
    execution.run()
    if not quiet:
        report_late(execution)
    report_failures(execution)
    refuse_failures(execution)


def _pairs(flag: str, texts: list[str] | None, form: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts or ():
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise typer.BadParameter(f"expected {form}, got {text!r}", param_hint=flag)
        pairs.append((name, path))
    return pairs


def _strategy(text: str | None) -> str | None:
    from millrace.engine.scheduler.table import Strategy

    if text is None:
        return None
    try:
        return str(Strategy.parse(text))
    except Refuse as refused:
        raise typer.BadParameter(refused.text, param_hint="--strategy") from None


def _cost(text: str | None) -> Fraction | None:
    if text is None:
        return None
    try:
        cost = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"expected microseconds per tuple, got {text!r}", param_hint="--cost") from None
    if cost < 0:
        raise typer.BadParameter(f"expected zero or more microseconds per tuple, got {text}", param_hint="--cost")
    return cost
