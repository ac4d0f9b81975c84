"""`millrace late`: which disorder would have kept how many of a stream's tuples, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millrace.cli import show
from millrace.cli.admin import Stream
from millrace.cli.details import duration, instant
from millrace.cli.link import Link, segment
from millrace.cli.names import request
from millrace.observe.advice import interval
from millrace.protocol.words import counted

if TYPE_CHECKING:
    from millrace.protocol.admin.streams import DisorderView, LateView

# The rows of the table at most, so that it stays readable: the disorders that keep the most more than the one before.
ROWS: Final = 12


def late(
    link: Link,
    stream: Stream,
    keep: Annotated[
        float, typer.Option(min=0, max=100, metavar="PERCENT", help="The share of tuples that should be on time.")
    ] = 99.9,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="T", help="The beginning of a past span: ISO 8601, microseconds, or '-1 hour'."),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="T", help="Its end, in the same forms. By default now.")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Read the past in this data directory, without its server."),
    ] = None,
) -> None:
    """Say what share of a stream's tuples would have been on time with which `disorder`, and what that costs.

    It counts from the creation of the stream, or from the last change of its disorder, if no span is named.
    """
    from millrace.protocol.admin.data import from_data
    from millrace.protocol.admin.streams import LateView

    if data_dir is not None:
        from millrace.cli.past import late_in

        answer = late_in(data_dir, stream, from_, to)
    else:
        span = "&".join(f"{key}={segment(text)}" for key, text in (("from", from_), ("to", to)) if text is not None)
        answer, _ = request(link, "GET", "stream", stream, f"/late{'?' if span else ''}{span}")
    if link.as_json:
        show.as_json(answer)
        return
    lines, command = advised(from_data(LateView, answer), keep)
    for line in lines:
        show.out(line)
    if command is not None:
        show.tell(f"try: {command}")


def advised(answer: LateView, keep: float) -> tuple[list[str], str | None]:
    """What to print, and the command to try."""
    tuples, name = answer.tuples, answer.stream
    span = "" if answer.since_us is None else f" from {instant(answer.since_us)} to {instant(answer.until_us)}"
    if not tuples:
        return [f"stream {name} has received no tuple{span}"], None
    choices = answer.disorders
    present = next(one for one in choices if one.disorder_us == answer.disorder_us)
    head = f"{counted(tuples, 'tuple')} of {name}{span}, {present.late} of them late"
    if answer.progress == "punctuation":
        return [f"{head}: with progress = 'punctuation' the disorder makes no difference"], None
    lines = [head, *show.aligned(("disorder", "on time", "late", "latency"), table(choices, present, tuples))]
    if never := choices[-1].late:
        lines.append(f"{counted(never, 'tuple')} would have been late with any of these: below a promise, or older")
    best = chosen(choices, tuples, keep)
    if best == present:
        return [*lines, f"disorder = '{interval(present.disorder_us)}' keeps {share(present.late, tuples)}"], None
    lines.append(
        f"'{interval(best.disorder_us)}' would have kept {share(best.late, tuples)}, at "
        f"{price(best.disorder_us - present.disorder_us)} latency for {_queries(answer.queries)}"
    )
    return lines, f"millrace sql \"ALTER STREAM {name} SET (disorder = '{interval(best.disorder_us)}')\""


def chosen(choices: Sequence[DisorderView], tuples: int, keep: float) -> DisorderView:
    """The least disorder that keeps this share, or if none does, the least that keeps the most."""
    enough = (one for one in choices if (tuples - one.late) * 100 >= keep * tuples)
    return next(enough, min(choices, key=lambda one: (one.late, one.disorder_us)))


def table(choices: Sequence[DisorderView], present: DisorderView, tuples: int) -> Iterator[tuple[str, str, str, str]]:
    """The disorders that matter: none, the present one, and those that keep the most more than the one before."""
    gains = {one: before.late - one.late for before, one in pairwise(choices)}
    most = sorted((one for one in choices[1:] if gains[one]), key=lambda one: -gains[one])[:ROWS]
    for one in choices:
        if one in (choices[0], present) or one in most:
            added = one.disorder_us - present.disorder_us
            cost = "now" if one == present else price(added)
            yield interval(one.disorder_us), share(one.late, tuples), f"{one.late:,}", cost


def price(added_us: int) -> str:
    return f"{duration(abs(added_us))} {'more' if added_us > 0 else 'less'}"


def share(late: int, tuples: int) -> str:
    """The share on time, never rounded up to all."""
    percent = (tuples - late) * 10_000 // tuples / 100
    return f"{percent:g} %"


def _queries(names: Sequence[str]) -> str:
    """The queries that pay for it."""
    if not names:
        return "no query"
    listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} {'query' if len(names) == 1 else 'queries'} ({listed})"
