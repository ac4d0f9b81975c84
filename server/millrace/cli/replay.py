"""`millrace replay`: a span of a server's past again, as it was and with a change, as a table or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millrace.cli import show
from millrace.cli.journal import DataDirOption, JsonOption
from millrace.cli.past import alive_us, moment, opened
from millrace.cli.serving import ConfigOption
from millrace.protocol.errors import MillraceError, Refuse
from millrace.protocol.timestamps import format_timestamp
from millrace.protocol.words import counted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from millrace.run.variation import Variation

SIDES: Final = ("recorded", "changed")


def replay(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="T", help="The beginning: ISO 8601, microseconds, or '-1 hour'. [the oldest]"),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="T", help="The end, in the same forms. [the newest]")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", metavar="S", help="dfs, bfs, rr or chain, each also with (k), as in dfs(1)."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[NAME.]OPTION=VALUE",
            help="Another value for an option of a stream or query, or of all that have it; may be repeated.",
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option("--query", metavar="FILE.sql", help="Queries to add or replace, as SQL; - for stdin."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a span of a server's past again, as it was and with a change, and compare latency, memory and rows.

    Without a change, it compares the rows with those that the server delivered. It only reads the data directory, so
    its server may run.
    """
    from millrace.run.replay import replay as replayed

    variation = _variation(strategy, settings or [], query)
    wanted = [None if text is None else moment(flag, text) for flag, text in (("--from", from_), ("--to", to))]
    past = opened(config, data_dir)
    span = past.span(alive_us(past.folder))
    from_us, to_us = (end if us is None else us for us, end in zip(wanted, span, strict=True))
    if from_us >= to_us:
        raise MillraceError(
            f"--from {format_timestamp(from_us)} is not before --to {format_timestamp(to_us)}; the past of "
            f"{past.folder} reaches {span.text}"
        )
    for at_us in (from_us, to_us):
        past.refuse_outside(at_us, span)
    with _progress(from_us, to_us) as advanced:
        found = replayed(past, from_us, to_us, variation, advanced)
    if as_json:
        show.as_json(found.data)
    else:
        _print(found.data)
    if not found.faithful:
        raise MillraceError("rows of the replay differ from those that the server delivered: see the table above")


def _variation(strategy: str | None, settings: Sequence[str], query: str | None) -> Variation:
    from millrace.engine.scheduler.table import Strategy
    from millrace.offline.script import load_text
    from millrace.run.variation import Variation, parse_setting

    try:
        if strategy is not None:
            Strategy.parse(strategy)
    except Refuse as refused:
        raise typer.BadParameter(refused.text, param_hint="--strategy") from None
    try:
        parsed = [parse_setting(text) for text in settings]
    except Refuse as refused:
        raise typer.BadParameter(refused.text, param_hint="--set") from None
    return Variation(strategy, parsed, None if query is None else load_text(query))


def _progress(from_us: int, to_us: int) -> AbstractContextManager[Callable[[int], None]]:
    """On a terminal, how far the replay is."""
    if not sys.stderr.isatty():
        return nullcontext(lambda _: None)
    from millrace.offline.progress import percent

    return percent(from_us, to_us)


# -- tables ------------------------------------------------------------------------------------------------------------


def _print(found: Mapping[str, Any]) -> None:
    show.out(f"{found['from']} to {found['to']}: {counted(found['steps'], 'step')}")
    heads = ("query", "", "rows", "p50", "p99", "max", "state", "verdict")
    show.table(heads, [line for name, query in found["queries"].items() for line in _lines(name, query)])
    late = [_late(name, sides, found["totals"]) for name, sides in found["streams"].items()]
    if late:
        show.out("")
        words = ("late as recorded", "late with the change") if "changed" in found["totals"] else ("late",)
        show.table(("stream", "tuples", *words), late)
    show.out("")
    show.table(("total", *found["totals"]), _totals(found["totals"]))
    for name, query in found["queries"].items():
        for text in _differences(name, query):
            show.out(text)
    for text in dict.fromkeys(found.get("refused", ())):
        show.tell(f"a recorded change was refused with the change of the replay: {text}")


def _lines(name: str, query: Mapping[str, Any]) -> list[list[object]]:
    """A line per engine."""
    lines: list[list[object]] = []
    for side in SIDES:
        if side in query:
            verdict = _verdict(query) if not lines else ""
            lines.append(["" if lines else name, side, *_measures(query[side]), verdict])
    return lines


def _verdict(query: Mapping[str, Any]) -> str:
    if "delivered" in query:
        counts = query["delivered"]
        parts = [f"{counts[key]} {words}" for key, words in DELIVERED.items() if counts[key]]
        return ", ".join(parts) or "no rows"
    if "rows" not in query:
        return "only with the change" if "changed" in query else "only as recorded"
    rows = query["rows"]
    verdict: str = rows["verdict"]
    if rows["only_recorded"] or rows["only_changed"]:
        return f"{verdict}: {rows['only_recorded']} only as recorded, {rows['only_changed']} only with the change"
    return verdict


DELIVERED: Final = {"same": "as delivered", "different": "different", "not_retained": "not on disk"}


def _measures(side: Mapping[str, Any]) -> list[object]:
    from millrace.cli import details

    latency = side["latency_us"]
    times = ["-" if latency[key] is None else details.duration(latency[key]) for key in ("p50", "p99", "max")]
    state = f"{side['peak_state_tuples']} ({details.size(side['peak_state_bytes'])})"
    return [side["rows"], *times, state]


def _late(name: str, sides: Mapping[str, Any], known: Iterable[str]) -> list[object]:
    counts = next(iter(sides.values()))
    return [name, counts["tuples"], *(sides[side]["late"] if side in sides else "-" for side in known)]


def _totals(totals: Mapping[str, Mapping[str, Any]]) -> list[list[object]]:
    from millrace.cli import details

    return [
        [words, *(details.size(side[key]) if key.endswith("bytes") else side[key] for side in totals.values())]
        for key, words in (
            ("executions", "executions"),
            ("peak_queue_tuples", "peak queue, tuples"),
            ("peak_queue_bytes", "peak queue, bytes"),
            ("peak_state_tuples", "peak state, tuples"),
            ("peak_state_bytes", "peak state, bytes"),
        )
    ]


def _differences(name: str, query: Mapping[str, Any]) -> list[str]:
    """Examples of rows that differ."""
    first = query.get("delivered", {}).get("first")
    if first is not None:
        delivered, again = show.compact(first["delivered"]), show.compact(first["replayed"])
        return [f"{name}, row {first['number']}: delivered {delivered}, replayed {again}"]
    examples = query.get("rows", {}).get("examples", {})
    words = {"recorded": "only as recorded", "changed": "only with the change"}
    return [f"{name}, {words[side]}: {show.compact(row)}" for side in SIDES for row in examples.get(side, ())]
