"""`millrace run`: a file of SQL over files of rows, through the server's engine, with a virtual clock.

Rule: the same files produce the same bytes. Every problem with a file, an option or a statement is one clear line. The
script is planned and every output opened before the first row is read.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

import msgspec

from millrace.engine.engine import Engine
from millrace.engine.events import (
    Arrived,
    Command,
    CommandBody,
    Deliver,
    Effect,
    Event,
    Execution,
    FeedClosed,
    FeedOpened,
    Late,
    Progressed,
    QueryFailed,
    RowsFailed,
    SetStrategy,
    TooFar,
    WatchProgress,
)
from millrace.engine.plan import StreamDefinition
from millrace.offline.driver import Driver, Instant, Price, Time
from millrace.offline.events import FEED, names_of_feeds, read_events
from millrace.offline.files import STANDARD, Advanced, read_batches, refuse_file
from millrace.offline.files import shown as called
from millrace.offline.merge import Cursor, Merge, in_time_order
from millrace.offline.outputs import LateLines, Output, TraceLines, outputs_of
from millrace.offline.progress import Bar, bar
from millrace.offline.release import Releases, waits_of
from millrace.offline.report import Measures, report
from millrace.offline.script import Script
from millrace.protocol import Refuse
from millrace.protocol.timestamps import format_timestamp
from millrace.protocol.units import UNITS, likely_unit
from millrace.protocol.words import counted
from millrace.values.batch import Int64s


@dataclass(frozen=True, slots=True)
class Options:
    """The flags of `millrace run`; pairs are (stream or query, path)."""

    inputs: Sequence[tuple[str, str]] = ()
    events: str | None = None
    outputs: Sequence[tuple[str, str]] = ()
    late: Sequence[tuple[str, str]] = ()
    strategy: str | None = None
    close: bool = True
    iso: bool = True
    report: str | None = None
    trace: str | None = None
    cost: Fraction | None = None
    sorted: bool = False


class Run:
    """One run of a script. `driver.engine` may be looked at when it is over."""

    def __init__(self, script: Script, options: Options, stdout: BinaryIO) -> None:
        self.script = script
        self.options = options
        self.failed_rows: dict[str, tuple[int, str]] = {}
        self.failed_queries: dict[str, str] = {}
        self.refused_rows: dict[str, int] = {}
        self.late_tuples: dict[str, int] = {}  # of streams whose late tuples go nowhere
        self.rows = 0  # of all queries with an output
        self.doubtful_units: dict[str, str] = {}
        self._stdout = stdout
        self._price = None if options.cost is None else Price(options.cost)
        self._measures: Measures | None = None if options.report is None else Measures(script.queries)
        self._trace: TraceLines | None = None
        self._late: dict[str, LateLines] = {}
        read = {name for query in script.queries.values() for name in query.reads_streams}
        self._read_late = {name for name, stream in script.streams.items() if stream.late.name in read}
        self._takers: Mapping[str, Sequence[Output]] = {}
        self._merge: Merge | None = None
        self._waits = None if options.report is None else waits_of(script.queries.values(), script.streams.values())
        self.driver = Driver(self, price=self._price, trace=options.trace is not None)
        _check_names(script, options)
        _check_files(script, options)

    @property
    def engine(self) -> Engine:
        return self.driver.engine

    def run(self) -> None:
        """Run to the end; files are whole when this returns."""
        began = time.perf_counter_ns()
        with ExitStack() as closing, bar(self._paths(), self.options.outputs) as shown:
            self._open(closing)
            begin_us, instants = self._instants(shown)
            self.driver.begin(begin_us)
            self._prepare(begin_us)
            self.driver.run(self._watch_units(instants))
            if self.options.close:
                self.driver.run([Instant(int(self.driver.clock_us), self._closings())])
        if self.options.report is not None:
            self._write_report(self.options.report, begin_us, (time.perf_counter_ns() - began) // 1_000)

    # -- before --------------------------------------------------------------------------------------------------------

    def _paths(self) -> list[str]:
        return [path for _, path in self.options.inputs] or [path for path in (self.options.events,) if path]

    def _open(self, closing: ExitStack) -> None:
        iso = self.options.iso
        outputs = self.script.outputs(self.options.outputs)
        schemas = {name: plan.schema for name, plan in self.script.queries.items()}
        self._takers, opened = outputs_of(outputs, schemas, self._stdout, iso=iso)
        for output in opened:
            closing.push(_ended(output))
        for stream, path in self.options.late:
            self._late[stream] = LateLines(path, self._stdout, iso=iso)
            closing.callback(self._late[stream].close)
        if self.options.trace is not None:
            self._trace = TraceLines(self.options.trace, self._stdout, iso=iso)
            closing.callback(self._trace.close)

    def _instants(self, shown: Bar) -> tuple[int, Iterator[Instant]]:
        """The start time of the clock, and the instants."""
        if self.options.events is not None:
            exact = self._exact() or bool(self.options.late or self.options.report)
            return _begun(read_events(self.options.events, self.script.streams, shown.advanced, exact=exact))
        exact = self._exact()
        releases = None if exact or self._waits is None else Releases(self._waits, self.script.streams)
        self._merge = Merge(self._cursors(shown.advanced), exact=exact, releases=releases)
        if self._measures is not None:
            self._measures.releases = releases
        return self._merge.clock_us, self._merge.instants()

    def _watch_units(self, instants: Iterator[Instant]) -> Iterator[Instant]:
        """The same instants. Notes streams whose first tuples make sense in another unit alone.

        A run has no real clock to compare them with, and test data may use any times, so it accepts them.
        """
        streams = {stream.name for stream in self.script.streams.values() if stream.timestamps == "external"}
        for instant in instants:
            if streams:
                for event in instant.events:
                    if isinstance(event, Arrived) and event.stream in streams and len(event.batch):
                        streams.remove(event.stream)
                        self._look_at_unit(event.stream, event.batch.ts)
            yield instant

    def _look_at_unit(self, stream: str, ts: Int64s) -> None:
        """The first batch decides: all of its times are in one unit, and it is not the declared one."""
        unit = UNITS[self.script.streams[stream].time_unit]
        least, most = (likely_unit(unit.count(int(us)), unit) for us in (ts.min(), ts.max()))
        if least is not None and most is not None and least.name == most.name:
            us = int(ts[0])
            first = unit.count(us)
            likely = likely_unit(first, unit)
            self.doubtful_units[stream] = f"its first time, {first}, is {format_timestamp(us)}; {likely}"

    def _exact(self) -> bool:
        """Whether something looks at the clock between two rows: a trace, a price, a stream of which the clock decides.

        A report looks at it only where the slices do not show when rows leave.
        """
        options, streams = self.options, self.script.streams
        looks = options.trace is not None or options.cost is not None
        looks |= options.report is not None and self._waits is None
        clocked = any(_clocked(stream) for stream in streams.values())
        # An undeclared stream has late tuples, and late tuples have their time of arrival.
        late = any(name not in streams for query in self.script.queries.values() for name in query.reads_streams)
        # An update queue supersedes tuples that arrive together, so tuples of different times arrive separately.
        newest = any(edge.updates for q in self.script.queries.values() for node in q.nodes for edge in node.edges)
        return looks or clocked or late or newest

    def _cursors(self, advanced: Advanced) -> list[Cursor]:
        cursors = []
        for stream, paths in _by_stream(self.options.inputs).items():
            definition = self.script.streams[stream]
            for path, feed in zip(paths, names_of_feeds(paths), strict=True):
                batches = read_batches(path, definition, advanced)
                if self.options.sorted:
                    batches = in_time_order(batches)
                cursors.append(Cursor(definition, feed, batches))
        return cursors

    def _prepare(self, begin_us: int) -> None:
        """Send the script to the engine, and open the feeds of files."""
        self._obey(begin_us, self.script.commands)
        if self.options.strategy is not None:
            names = [component.name for component in self.engine.components()]
            self._obey(begin_us, [SetStrategy(name, self.options.strategy) for name in names])
        if self._trace is not None:
            self._obey(begin_us, [WatchProgress(name) for name in self.script.queries])
        feeds: list[Event] = [
            FeedOpened(stream, feed)
            for stream, paths in _by_stream(self.options.inputs).items()
            for feed in names_of_feeds(paths)
        ]
        self.driver.run([Instant(begin_us, feeds)])
        if self._measures is not None:
            self._measures.watch(self.engine.graph.operators.values())

    def _obey(self, begin_us: int, commands: Sequence[CommandBody]) -> None:
        self.driver.run([Instant(begin_us, [Command(number, body) for number, body in enumerate(commands)])])

    def _closings(self) -> list[Event]:
        """The end of every stream: its feeds close, and the tuples that they held back are processed."""
        return [
            FeedClosed(stream.name, feed, ended=True)
            for stream in self.engine.streams()
            for feed in [feed.feed for feed in stream.feeds] or [FEED]
        ]

    # -- effects of the engine -----------------------------------------------------------------------------------------

    def ordered(self, at_us: Time, order: Effect) -> None:
        match order:
            case Deliver(query, sequence, batch):
                if self._measures is not None:
                    sliced = self._merge is not None and self._merge.sliced
                    self._measures.delivered(query, batch, at_us, sliced=sliced)
                takers = self._takers.get(query, ())
                self.rows += len(batch) if takers else 0
                for taker in takers:
                    taker.deliver(query, sequence, batch)
            case Late():
                self._on_late(order)
            case Progressed(query, value_us):
                if self._trace is not None:
                    self._trace.progressed(at_us, query, value_us)
            case TooFar(stream, _, batch):
                self.refused_rows[stream] = self.refused_rows.get(stream, 0) + len(batch)
            case RowsFailed(operator, count, reason):
                before, _ = self.failed_rows.get(operator, (0, ""))
                self.failed_rows[operator] = before + count, reason
            case QueryFailed(query, reason):
                self.failed_queries[query] = reason
            case _:
                pass  # files need no credit and answer no requests

    def _on_late(self, late: Late) -> None:
        lines = self._late.get(late.stream)
        if lines is not None:
            lines.late(late, self._arrivals(late))
        elif late.stream not in self._read_late:
            self.late_tuples[late.stream] = self.late_tuples.get(late.stream, 0) + len(late.batch)

    def _arrivals(self, late: Late) -> list[int]:
        """When each late tuple arrived. In a slice, its mark plus the disorder is the newest time before it."""
        if self._merge is None or not self._merge.sliced:
            return [late.at_us] * len(late.batch)
        disorder = self.script.streams[late.stream].disorder_us
        return [mark + disorder for mark in late.marks.tolist()]

    def executed(self, step: int, at_us: Time, execution: Execution) -> None:
        if self._trace is not None:
            self._trace.executed(step, at_us, execution)

    def stepped(self) -> None:
        if self._measures is not None:
            self._measures.stepped(self.engine.clock.now_us)

    # -- after ---------------------------------------------------------------------------------------------------------

    def _write_report(self, path: str, begin_us: int, wall_us: int) -> None:
        assert self._measures is not None
        self._measures.stepped(int(self.driver.clock_us))
        numbers = report(self.engine, self._measures, self.refused_rows, self.driver.clock_us - begin_us, wall_us)
        text = msgspec.json.format(msgspec.json.encode(numbers), indent=2) + b"\n"
        try:
            if path == STANDARD:
                self._stdout.write(text)
            else:
                Path(path).write_bytes(text)
        except OSError as error:
            raise refuse_file(path, error) from None


def _clocked(stream: StreamDefinition) -> bool:
    """Whether the clock stamps the stream, moves its time while it is silent, or bounds tuples ahead of it."""
    spoken_for = stream.max_skew_us is not None or stream.lull_us is not None
    return stream.timestamps != "external" or spoken_for or stream.ahead_us is not None


def _ended(output: Output) -> Callable[[type[BaseException] | None, BaseException | None, object], None]:
    """Closes an output after the run, or discards it after a failure."""

    def exit_(kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            output.close()
        else:
            output.abandon()

    return exit_


def _begun(instants: Iterator[Instant]) -> tuple[int, Iterator[Instant]]:
    """The time of the first instant, and all of them."""
    first = next(instants, None)
    if first is None:
        return 0, iter(())

    def all_of_them() -> Iterator[Instant]:
        yield first
        yield from instants

    return first.at_us, all_of_them()


def _by_stream(inputs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    paths: dict[str, list[str]] = {}
    for stream, path in inputs:
        paths.setdefault(stream, []).append(path)
    return paths


def _check_names(script: Script, options: Options) -> None:
    """Check names before anything is read or written."""
    for flag, kind, pairs, known in (
        ("--input", "stream", options.inputs, script.streams),
        ("--late", "stream", options.late, script.streams),
        ("--output", "query", options.outputs, script.queries),
    ):
        for name, path in pairs:
            if name not in known:
                listed = ", ".join(known) or "none"
                raise Refuse(
                    f"{flag} {name}={path}: unknown {kind} {name}; the file has: {listed}", code="unknown_name"
                )
    once = [stream for stream, _ in options.late]
    twice = [stream for stream in once if once.count(stream) > 1]
    if twice:
        raise Refuse(f"--late appears twice for {twice[0]}; a stream has one file for late tuples")
    for stream, path in options.inputs:
        _check_sorted(script.streams[stream], path, options)


def _check_files(script: Script, options: Options) -> None:
    """Check before any output is opened: a wrong name must destroy neither the last run's rows nor the input."""
    read = [path for _, path in options.inputs] + [path for path in (options.events,) if path is not None]
    if read.count(STANDARD) > 1:
        raise Refuse("two inputs cannot both be read from standard input: read one of them from a file")
    for path in read:
        _check_readable(path)
    sources = read if script.path is None else [*read, script.path]
    uses = {_place(path): f"{called(path)} is read" for path in sources}
    written = [path for _, path, _ in script.outputs(options.outputs)] + [path for _, path in options.late]
    written += [path for path in (options.trace, options.report) if path is not None]
    for path in written:
        place = _place(path)
        if path == STANDARD or place is None:
            continue
        if place in uses:
            raise Refuse(f"cannot write {path}: {uses[place]} by this run; choose another file", code="in_use")
        uses[place] = f"{called(path)} is written already"


def _check_readable(path: str) -> None:
    if path == STANDARD:
        return
    try:
        mode = Path(path).stat().st_mode
        # A pipe must not be opened twice: its writer would take the first close for the end.
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            Path(path).open("rb").close()
    except OSError as error:
        raise refuse_file(path, error) from None


def _place(path: str) -> tuple[int, int] | Path | None:
    """The identity of a file, whatever path leads to it; None for pipes and devices, which cannot be truncated."""
    try:
        status = os.fstat(0) if path == STANDARD else Path(path).stat()
    except OSError:
        return Path(path).resolve()
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _check_sorted(stream: StreamDefinition, path: str, options: Options) -> None:
    if options.sorted and stream.timestamps != "external":
        raise Refuse(f"--sorted: the rows of {path} have no time to be sorted by: {stream.name} is {stream.timestamps}")


def report_late(run: Run) -> None:
    """Report late tuples on stderr, and how to write them to a file."""
    late = run.late_tuples
    if late:
        each = "; ".join(
            f"{counted(count, 'tuple')} late in {stream} (write them with --late {stream}=FILE)"
            for stream, count in late.items()
        )
        sys.stderr.write(f"millrace: {counted(run.rows, 'row')}; {each}\n")


def report_failures(run: Run) -> None:
    """Report dropped rows and doubtful units on stderr."""
    for stream, text in run.doubtful_units.items():
        sys.stderr.write(f"millrace: stream {stream}: warning: {text}\n")
    for stream, count in run.refused_rows.items():
        sys.stderr.write(
            f"millrace: {stream}: {counted(count, 'row')} dropped: too far ahead of the clock (max_ahead)\n"
        )
    for operator, (count, reason) in run.failed_rows.items():
        sys.stderr.write(f"millrace: {operator}: {counted(count, 'row')} dropped because of an error: {reason}\n")


def refuse_failures(run: Run) -> None:
    """Fail for queries that failed. The rows of the others are complete."""
    if run.failed_queries:
        failures = "; ".join(f"query {query} failed: {reason}" for query, reason in run.failed_queries.items())
        raise Refuse(f"{failures}. Its rows end there", code="query_failed")
