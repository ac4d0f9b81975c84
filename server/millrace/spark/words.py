"""A live job in lines for people: its plan, and the outcome of each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.backfill.bucket import Group, group_of
from millrace.backfill.flow import Flow, flow_of
from millrace.backfill.margins import margins_of
from millrace.protocol import Refuse, format_timestamp
from millrace.protocol.words import counted
from millrace.spark.epochs import PHASES
from millrace.spark.records import CommitRecord, Unit
from millrace.spark.request import BUCKETS, checked_script, wanted_queries
from millrace.sql import Catalog
from millrace.values.eventtime import is_time
from millrace.values.written import show

# -- before ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explained:
    """Lines about queries, and whether all of them can run."""

    lines: list[str]
    runs: bool


def explain(sql: str, buckets: int = BUCKETS) -> Explained:
    """How each query would run, or why it cannot."""
    script = checked_script(sql)
    catalog = Catalog(script.streams, script.queries)
    lines: list[str] = []
    runs = True
    streams: dict[str, None] = {}
    for name in wanted_queries(script):
        try:
            group = group_of(flow_of(catalog, name), buckets)
        except Refuse as error:
            lines.append(error.text)
            runs = False
        else:
            lines.append(f"{name}: {_how(group)}; state: {_state(group.flow)}; equality {group.flow.equality}")
            streams |= dict.fromkeys(lane.stream.name for lane in group.lanes)
    for name in streams:
        stream = script.streams[name]
        if stream.timestamps == "external" and stream.max_skew_us is None:
            lines.append(
                f"note: stream {name} has no max_skew: a part of it that is silent holds rows back until it has rows"
            )
    return Explained(lines, runs)


def _how(group: Group) -> str:
    match group.how:
        case "key":
            keys = {", ".join(map(show, key)) for key in group.keys.values()}
            words = keys.pop() if len(keys) == 1 else group.reason
            return f"by key {words}, {counted(group.buckets, 'bucket')}"
        case "spread":
            return f"rows go anywhere, {counted(group.buckets, 'bucket')}"
        case _:
            return f"one bucket: {group.reason}"


def _state(flow: Flow) -> str:
    """How much of its input a query keeps."""
    if not any(node.spec.state().lost is not None for node in flow.nodes.values()):
        return "none"
    margins = margins_of(flow)
    if margins.unbounded:
        return "; ".join(f"{name} without bound: {reason}" for name, reason in margins.unbounded.items())
    widest = margins.widest
    if widest.back is None or widest.ahead is None:
        return "rows of any age"
    disorder = max((stream.disorder_us for stream in flow.streams.values()), default=0)
    late = f" + disorder {span(disorder)}" if disorder else ""
    # A window of 10 s reaches back to its first microsecond.
    whole = -(-(widest.back + widest.ahead) // 1_000) * 1_000
    return f"rows of {span(whole)}{late}"


_UNITS: Final = ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"))


def span(us: int) -> str:
    """A duration, short: in seconds unless it is whole in a larger unit."""
    for unit, name in _UNITS:
        if us and us % unit == 0:
            return f"{us // unit} {name}"
    return f"{us / 1_000_000:.6f}".rstrip("0").rstrip(".") + " s"


# -- meanwhile ---------------------------------------------------------------------------------------------------------


def epoch_line(commit: CommitRecord) -> str:
    """What an epoch came to."""
    parts = [f"epoch {commit.epoch}: {short(sum(commit.counts.input.values()))} rows, {_times(commit.spent)}"]
    lag = mark_and_lag(commit)
    if commit.kind == "end":
        parts.append("the end of all input")
    else:
        parts.append("no mark yet" if lag is None else f"mark {format_timestamp(lag[0])} ({lag[1] / 1e6:.1f} s behind)")
    slow = slowest_bucket(commit)
    if slow is not None:
        parts.append(f"slowest bucket {slow[0][1]} ({slow[1]:.1f} x mean)")
    parts.append(f"{sum(commit.counts.late.values())} late")
    return ", ".join(parts)


def _times(spent: Mapping[str, float]) -> str:
    """The seconds of an epoch and of its parts; Spark's are the rest, with reading and packing."""
    whole = spent.get("whole", 0.0)
    own = {phase: spent.get(phase, 0.0) for phase in (*PHASES, "publish")}
    rest = max(whole - sum(own.values()), 0.0)
    words = [f"{phase} {seconds:.1f}" for phase, seconds in own.items()]
    return f"{whole:.1f} s ({', '.join(words)}, read and Spark {rest:.1f})"


def short(number: int) -> str:
    """A count in three digits or so."""
    for unit, name in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= 10 * unit or (number >= unit and name != "k"):
            return f"{number / unit:.1f} {name}"
    return str(number)


def mark_and_lag(commit: CommitRecord) -> tuple[int, int] | None:
    """The lowest mark of all streams, and how far it is below the time of the epoch; None before there is one."""
    marks = [mark for mark in commit.marks.values() if is_time(mark)]
    return (min(marks), max(commit.at_us - min(marks), 0)) if marks else None


def slowest_bucket(commit: CommitRecord) -> tuple[Unit, float] | None:
    """The bucket that took longest, and its time divided by the mean of its group; None if there is nothing to
    compare."""
    return max(_ratios(commit.seconds), key=lambda one: one[1], default=None)


def _ratios(seconds: Mapping[Unit, float]) -> Iterator[tuple[Unit, float]]:
    for group in sorted({unit[0] for unit in seconds}):
        own = {unit: took for unit, took in seconds.items() if unit[0] == group}
        mean = sum(own.values()) / len(own)
        if len(own) > 1 and mean > 0:
            slow = max(own, key=lambda unit: own[unit])
            yield slow, own[slow] / mean


def failed_lines(failed: Mapping[str, tuple[int, str]]) -> Sequence[str]:
    return [
        f"{operator}: dropped {counted(count, 'row')} that could not be computed: {reason}"
        for operator, (count, reason) in failed.items()
    ]
