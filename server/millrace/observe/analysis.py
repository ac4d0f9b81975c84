"""EXPLAIN ANALYZE: measurements of a running query's operators over the last seconds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from millrace.observe import chained
from millrace.observe.graph import columns, per_second, percent
from millrace.protocol.admin.operators import OperatorView, RateView
from millrace.protocol.admin.queries import AnalyzedView, MeasuredView
from millrace.protocol.words import counted

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

# The one statement whose result only a server has.
STATEMENT: Final = re.compile(r'\s*+EXPLAIN\s++ANALYZE\s++(?:QUERY\s++)?("[^"]++"|[\w-]++)\s*+;?+\s*+', re.IGNORECASE)

KEPT: Final = {"groups": "groups", "buffered": "buffered rows", "bounded": "a low-level table"}


def asked_for(sql: str) -> str | None:
    """The query that `EXPLAIN ANALYZE [QUERY] name` names; None for any other text."""
    found = STATEMENT.fullmatch(sql)
    if found is None:
        return None
    return found[1][1:-1] if found[1].startswith('"') else found[1].lower()


async def analyze(daemon: Daemon, name: str) -> AnalyzedView:
    """The plan of a query, and the measurements of each operator."""
    plan = await daemon.catalog.explain(name)
    query = next(query for query in daemon.queries() if query.name == name)
    members = {*query.operators, f"{name}.sink1", *(f"{stream}.source" for stream in query.reads_streams)}
    rates = daemon.rates.now()
    measured = [
        _measured(operator, rates.get(operator.name)) for operator in daemon.operators() if operator.name in members
    ]
    seconds = max((found.seconds or 0.0 for found in measured), default=0.0)
    head = f"measured over {seconds:.1f} s; the query is {query.state}"
    if query.reason:
        head += f": {query.reason}"
    return AnalyzedView(
        query=plan.query,
        text="\n".join([plan.text, "", head, *(f"  {line}" for line in _table(measured))]),
        sql=plan.sql,
        shared=plan.shared,
        state=query.state,
        reason=query.reason,
        seconds=seconds,
        operators=measured,
    )


def _measured(operator: OperatorView, rate: RateView | None) -> MeasuredView:
    """One operator. Without executions in the last seconds, its selectivity and cost are those of its whole life."""
    selectivity = cost_us = None
    if rate is not None and rate.selectivity is not None:
        selectivity, cost_us = rate.selectivity, rate.cost_us
    elif operator.input_tuples:
        selectivity = operator.output_tuples / operator.input_tuples
        cost_us = operator.busy_us / operator.input_tuples
    return MeasuredView(
        name=operator.name,
        kind=operator.kind,
        seconds=None if rate is None else rate.seconds,
        input=None if rate is None else rate.input,
        output=None if rate is None else rate.output,
        selectivity=selectivity,
        cost_us=None if operator.kind in ("source", "sink") else cost_us,
        queue_tuples=sum(reader.queue_tuples for reader in operator.inputs),
        idle=None if rate is None or not operator.waits else rate.idle_most,
        blocked=operator.blocked,
        chain=operator.chain,
        state_tuples=operator.state_tuples,
        state_bytes=operator.state_bytes,
        aggregate=operator.aggregate,
        auto=[None if reader.queue is None else reader.queue.auto for reader in operator.inputs],
    )


def _table(measured: list[MeasuredView]) -> list[str]:
    heads = ("operator", "in/s", "out/s", "selectivity", "us/tuple", "queue", "idle", "state", "")
    rows = [
        (
            found.name,
            per_second(found.input),
            per_second(found.output),
            "-" if found.selectivity is None else f"{found.selectivity:.3f}",
            "-" if found.cost_us is None else f"{found.cost_us:.2f}",
            str(found.queue_tuples),
            percent(found.idle),
            str(found.state_tuples),
            "blocked" if found.blocked else "",
        )
        for found in measured
    ]
    return columns([heads, *rows]).split("\n") + _chain(measured) + _kept(measured) + _autos(measured)


def _kept(measured: list[MeasuredView]) -> list[str]:
    """What aggregates keep, and the price by which an adaptive one chooses."""
    lines = []
    for found in measured:
        kept = found.aggregate
        if kept is None:
            continue
        line = f"{found.name} keeps {KEPT[kept.keeps]}"
        if kept.slots is not None:
            line += (
                f" of {kept.slots:,} slots: {kept.table_tuples:,} tuples counted, {kept.evicted:,} partial "
                f"results evicted by collisions, {kept.flushed:,} flushed by closing windows"
            )
        elif kept.last_groups is not None:
            line += (
                f": {kept.last_tuples:,} tuples of {kept.last_groups:,} groups in the last pane would take "
                f"{kept.last_rows_bytes:,} bytes as rows, {kept.last_groups_bytes:,} as groups"
            )
        lines.append(line)
    return ["", *lines] if lines else []


def _autos(measured: list[MeasuredView]) -> list[str]:
    """Whether LATEST USING AUTO supersedes at present, and the load that decided it."""
    lines = []
    for found in measured:
        for auto in filter(None, found.auto):
            line = f"{found.name} {'reads everything' if auto.mode == 'append' else 'reads the newest of each key'}"
            if auto.switches:
                line += (
                    f" at a load of {auto.load:.2f}: {auto.arrived:,.0f} rows a second against "
                    f"{auto.capacity:,.0f} processed; changed {counted(auto.switches, 'time')}"
                )
            lines.append(line)
    return ["", *lines] if lines else []


def _chain(measured: list[MeasuredView]) -> list[str]:
    """The segments that `chain` has chosen, the steepest first, with their numbers."""
    rows = chained.lines((one.name, one.chain) for one in measured)
    return ["", *columns([chained.HEADS, *rows]).split("\n")] if rows else []
