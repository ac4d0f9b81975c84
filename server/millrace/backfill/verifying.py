"""Recompute a span and compare it with the written rows of a live query's sink, or of an earlier backfill.

Rule: only rows that both could have are compared. The default span of a live query is its complete output: from the
time at which it had all input of its rows, up to its promise. The default span of files lies between the first row and
the last. The own time of a written row decides whether it lies in the span: a backfill writes it with the row, and in a
sink's rows a column often determines it (a window's end, say). Without one all written rows are compared, and the
remaining ones may lie outside.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

from millrace.backfill.compare import Differences, Row, compare_final, compare_rows
from millrace.backfill.flow import Flow
from millrace.backfill.inputs import Input, first_behind, newest_before
from millrace.backfill.layout import OWN_TIME
from millrace.backfill.margins import margins_of
from millrace.backfill.outputs import MANIFEST, PLAN, Destination
from millrace.backfill.running import Advanced, BackfillRequest, Said, compute
from millrace.backfill.splitting import ALWAYS, Slice, span_words
from millrace.engine.plan import StreamDefinition
from millrace.history.files import Gap
from millrace.offline.files import read_batches
from millrace.protocol import DELETED, GONE, Field, Refuse, Schema, Type, format_timestamp
from millrace.protocol.words import counted
from millrace.values.eventtime import MAX_TIME, MIN_TIME

# Below this there is nothing: the end of a span of which nothing is known to be complete.
NOTHING_US: Final = MIN_TIME + 1


@dataclass(frozen=True)
class LiveQueryInfo:
    """A server's information about a running query.

    paths          the files of its sinks
    marks          by stream, the time below which no tuple on time will arrive; None if unknown
    since_us       when it received its first tuple, by the clock; None if it has all earlier ones from history
    seam_us, out   if it started with its history: from which time rows are its own, and where earlier ones are
    skipped        tuples that it missed while it was paused
    """

    paths: tuple[str, ...]
    marks: Mapping[str, int | None]
    since_us: int | None = None
    seam_us: int | None = None
    out: str | None = None
    skipped: int = 0


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison of a span."""

    equality: str
    span: Slice
    differences: Differences
    written: int
    notes: tuple[str, ...] = ()


def verify(
    wanted: BackfillRequest, against: Sequence[str], say: Said, advanced: Advanced, lived: LiveQueryInfo | None = None
) -> Verdict:
    """Recompute the request, and compare the result with the rows in these files or directories."""
    flow = wanted.flow
    if flow.equality == "load":
        raise Refuse(
            f"{flow.name} cannot be verified: its rows depend on the load of the engine or on a function that is "
            "not deterministic (equality load), so two runs can differ",
            code="cannot_verify",
        )
    for path in against:
        if not Path(path).exists():
            raise Refuse(f"{path}: the file or directory to compare with does not exist", code="bad_path")
    asked = wanted.span
    if lived is not None:
        wanted = replace(wanted, goes_on=any(lived.marks.get(name) != MAX_TIME for name in flow.streams))
    out = None if lived is None else lived.out
    below = out is not None and (Path(out) / MANIFEST).exists()
    if out is not None and below:
        # The rows below the seam are available: with the sinks' rows they form one sequence.
        against = [out, *against]
    if not (asked.begins and asked.ends):
        both = span_of_files(flow, against) if lived is None else span_of_query(flow, wanted.inputs, lived, below=below)
        span = _within(asked, both)
        wanted = replace(wanted, span=span, whole=lived is not None)
        say(f"compared {span_words(span)}, where both sides have all rows; --from and --to set another span")
    written = _written(flow, wanted.span, against)
    with tempfile.TemporaryDirectory(prefix="millrace-verify-") as folder:
        out = str(Path(folder) / "rows")
        compute(replace(wanted, out=out), say, advanced)
        recomputed = list(_without_time(read_backfill(out)))
    rows = [*written.inside, *written.perhaps]
    if flow.equality == "final":
        differences = compare_final(recomputed, rows, flow.query.update_key or ())
    else:
        differences = compare_rows(recomputed, rows)
        # Rows that may be outside the span do not count as extra.
        spared = set(map(id, written.perhaps))
        differences.extra = [row for row in differences.extra if id(row) not in spared]
    if lived is not None and lived.skipped:
        passed = counted(lived.skipped, "tuple")
        written.notes.append(f"{flow.name} skipped {passed} while it was paused: its rows do not contain them")
    return Verdict(flow.equality, wanted.span, differences, len(rows), tuple(written.notes))


# -- which span --------------------------------------------------------------------------------------------------------


def _within(asked: Slice, both: Slice) -> Slice:
    """The requested span; an open end is where both have rows."""
    low = asked.from_us if asked.begins else both.from_us
    high = asked.to_us if asked.ends else both.to_us
    if low >= high:
        start = _start_words(low)
        ends = (
            "no row is complete yet"
            if high <= NOTHING_US
            else f"rows are complete only before {format_timestamp(high)}"
        )
        raise Refuse(
            f"no span is complete on both sides yet: it would start {start}, and {ends}. Wait for more "
            "rows, or set a span with --from and --to",
            code="no_span",
        )
    return Slice(low, high)


def _start_words(low: int) -> str:
    if low == MAX_TIME:
        return "after a gap of an archive, and no tuple has arrived since"
    return "at the start" if low == MIN_TIME else f"at {format_timestamp(low)}"


def span_of_query(flow: Flow, inputs: Mapping[str, Input], lived: LiveQueryInfo, *, below: bool = False) -> Slice:
    """The span in which a query has emitted all its rows, none of which depends on tuples that it or the archive lacks.
    With `below`, the rows below its seam are available too."""
    low = MIN_TIME if lived.seam_us is None or below else lived.seam_us
    if lived.since_us is not None:
        low = max([low, *(_seen_from(flow, inputs, name, lived.since_us) for name in flow.streams)])
    low = max([low, *(_archived_from(flow, inputs, name, gap) for name, gap in _gaps(flow, inputs, lived))])
    if flow.equality == "final" and _telling(flow) is None:
        # The last row of each key counts, and no column shows which one was the last at a given time.
        return Slice(low)
    return Slice(low, max(min(_given_below(flow, lived, name) for name in flow.streams), NOTHING_US))


def _given_below(flow: Flow, lived: LiveQueryInfo, name: str) -> int:
    """Rows below this wait for nothing from a stream: it has passed all that they may be made of."""
    mark, ahead = lived.marks.get(name), margins_of(flow).streams[name].ahead
    if mark is None or ahead is None:
        return MIN_TIME
    return mark if mark == MAX_TIME else mark - ahead


def _seen_from(flow: Flow, inputs: Mapping[str, Input], name: str, since_us: int) -> int:
    """The time from which on rows depend only on tuples that a stream received since a time of the clock."""
    base = name.removesuffix(".late")
    newest = newest_before(inputs[base], flow.catalog.stream(base), since_us)
    if newest is None:
        return MIN_TIME
    back = margins_of(flow).streams[name].back
    if back is None:
        raise Refuse(
            f"{flow.name} was created at {format_timestamp(since_us)}, when {base} already had rows, and its rows can "
            "depend on those forever: no span can be compared. A query that starts with its history can be compared "
            "(millrace backfill start --then-live)",
            code="no_span",
        )
    return newest + 1 + back


def _gaps(flow: Flow, inputs: Mapping[str, Input], lived: LiveQueryInfo) -> Iterator[tuple[str, Gap]]:
    """Gaps with tuples that written rows may depend on. For times before its seam, a query that started with its
    history has no more than the archive."""
    for name in flow.streams:
        for gap in inputs[name.removesuffix(".late")].gaps:
            known = lived.since_us is None and lived.seam_us is not None
            if not known or (gap.from_us is not None and gap.from_us >= (lived.seam_us or 0)):
                yield name, gap


def _archived_from(flow: Flow, inputs: Mapping[str, Input], name: str, gap: Gap) -> int:
    """The time from which on rows depend only on tuples after a gap: a feed continues where the gap was, or earlier by
    at most the stream's disorder."""
    base = name.removesuffix(".late")
    stream = flow.catalog.stream(base)
    first, back = first_behind(inputs[base], stream, gap), margins_of(flow).streams[name].back
    if first is None:
        return MAX_TIME
    if back is None:
        raise Refuse(
            f"the rows of {flow.name} can depend forever on tuples that the archive of {base} lacks (those that "
            f"arrived after sequence number {gap.after_seq}: {gap.reason}): no span can be compared",
            code="no_span",
        )
    return first + stream.disorder_us + 1 + back


def span_of_files(flow: Flow, against: Sequence[str]) -> Slice:
    """From the first of the written rows to the last; for a backfill, its requested span."""
    spans = [_span_of(flow, path) for path in against]
    return Slice(min(span.from_us for span in spans), max(span.to_us for span in spans))


def _span_of(flow: Flow, path: str) -> Slice:
    if _is_backfill(path):
        manifest = Destination(path).manifest() or {}
        return Slice(manifest.get("from_us", MIN_TIME), manifest.get("to_us", MAX_TIME))
    told = _telling(flow)
    times = [] if told is None else [row[told.name] for row in _sink_rows(flow, path)]
    times = [time for time in times if time is not None]
    if told is None or not times:
        return ALWAYS
    return Slice(min(times) + told.low, max(times) + told.high + 1)


# -- written rows ------------------------------------------------------------------------------------------------------


@dataclass
class _Written:
    """Written rows: those in the span, and those that may lie on either side of its ends."""

    inside: list[Row] = field(default_factory=list)
    perhaps: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_backfill(path: str) -> Iterator[Row]:
    """The rows of a finished backfill, in the order of their own time; equal times in the order of the files.

    Tombstones have the column of the query's schema alone.
    """
    place = Destination(path)
    manifest = place.manifest()
    if manifest is None:
        raise Refuse(f"{path}: this backfill is not finished; start it again to finish it", code="unfinished")
    times = {name for name, kind, _ in manifest["schema"] if kind == Type.TIMESTAMP.value}
    for file in sorted(manifest["files"], key=lambda file: (Path(file["path"]).parent.name, file["path"])):
        for batch in pq.ParquetFile(place.path / file["path"]).iter_batches():
            for name in times:
                at = batch.schema.names.index(name)
                batch = batch.set_column(at, name, batch.column(at).cast("int64"))
            yield from batch.select([name for name in batch.schema.names if name != DELETED]).to_pylist()


def _without_time(rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        yield {name: value for name, value in row.items() if name != OWN_TIME}


def _written(flow: Flow, span: Slice, against: Sequence[str]) -> _Written:
    """The written rows, of the span as far as that can be determined."""
    found = _Written()
    for path in against:
        if _is_backfill(path):
            found.inside += _without_time(row for row in read_backfill(path) if _inside(row[OWN_TIME], span))
        else:
            _sort_out(flow, span, path, found)
    return found


def _is_backfill(path: str) -> bool:
    return (Path(path) / PLAN).exists() or (Path(path) / MANIFEST).exists()


class _Telling(NamedTuple):
    """The column of a sink's rows closest to their own time, and its least and greatest distance."""

    name: str
    low: int
    high: int


def _telling(flow: Flow) -> _Telling | None:
    told = flow.time_column
    if told is None or (flow.equality == "final" and told[1] != told[2]):
        return None
    at, low, high = told
    return _Telling(flow.schema.names[at], low, high)


def _sort_out(flow: Flow, span: Slice, path: str, found: _Written) -> None:
    """The rows of a sink's file, by the column closest to their time."""
    rows = list(_sink_rows(flow, path))
    told = _telling(flow)
    if told is None:
        if span == ALWAYS or flow.equality == "final":
            found.inside += rows
        else:
            found.perhaps += rows
            found.notes.append(
                f"{path}: no column has the time of a row, so rows that exist only there are not counted"
            )
        return
    for row in rows:
        time = row[told.name]
        ends = [time is None or _inside(time + lag, span) for lag in (told.low, told.high)]
        if all(ends):
            found.inside.append(row)
        elif time + told.high >= span.from_us and time + told.low < span.to_us:
            found.perhaps.append(row)


def _inside(time_us: int | None, span: Slice) -> bool:
    return time_us is not None and span.from_us <= time_us < span.to_us


def _sink_rows(flow: Flow, path: str) -> Iterator[Row]:
    """The rows of a sink's file, or of the whole files in its folder; tombstones say that they are gone."""
    schema = Schema(tuple(Field(field.name, field.type) for field in flow.schema))
    stream = StreamDefinition(f"rows of {flow.name}", schema, extra="ignore")
    for file in _sink_files(path):
        for batch in read_batches(file, stream):
            for row in batch.rows():
                yield _as_row(dict(zip(schema.names, row, strict=True)), flow.schema.retracts)


def _sink_files(path: str) -> list[str]:
    """The file, or the files in the folder of a sink of Parquet or Arrow; those in progress start with a dot."""
    if not Path(path).is_dir():
        return [path]
    found = [*Path(path).glob("*.parquet"), *Path(path).glob("*.arrow")]
    return [str(file) for file in sorted(found) if not file.name.startswith(".")]


def _as_row(row: Mapping[str, Any], retracts: bool) -> Row:
    return {**row, GONE: bool(row[GONE])} if retracts else row
