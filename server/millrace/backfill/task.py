"""One task of a backfill: sorted rows in, rows of the result out, through the engine that the server runs.

Rule: only the engine decides what a query means. The task adds the queries to the engine, feeds it rows in order of
time, advances every stream's mark with them (so that no operator waits, and state is no wider than the widest
window), and keeps the rows whose own time is in its slice. Late rows never arrive here: lateness was
decided when they arrived.

Queries that count rows get them in the order of their arrival. Each row says then, as its arrival by the virtual clock,
the least later time, and the marks follow it. Of rows in order of time that is their own time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from millrace.backfill.flow import Flow
from millrace.backfill.splitting import Slice
from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Arrived,
    Command,
    Deliver,
    Effect,
    Event,
    Execution,
    FeedClosed,
    FeedOpened,
    Late,
    Punctuated,
    QueryFailed,
    RowsFailed,
    TooFar,
)
from millrace.engine.plan import StreamDefinition
from millrace.offline.driver import Driver, Instant, Time
from millrace.operators.source.source import Clocking
from millrace.protocol import Refuse
from millrace.protocol.words import counted
from millrace.values.batch import Batch, Int64s
from millrace.values.eventtime import LAST_WATERMARK

FEED = "archive"

# Rows of several streams that belong together: each stream's in order of time, none below earlier ones; or each
# in the order of arrival, none below the arrival of one before.
Chunk = Mapping[str, Batch]


class Collected:
    """Collects the engine's output: the query's rows of the slice, and the rows that could not be computed."""

    def __init__(self, flow: Flow, slice_: Slice) -> None:
        self._name = flow.name
        self._slice = slice_
        self._rows: list[Batch] = []
        self.failed_rows: dict[str, tuple[int, str]] = {}

    def take(self) -> list[Batch]:
        rows, self._rows = self._rows, []
        return rows

    def ordered(self, at_us: Time, order: Effect) -> None:
        match order:
            case Deliver(query, _, batch):
                if query == self._name:
                    self._keep(batch)
            case RowsFailed(operator, count, reason):
                before, _ = self.failed_rows.get(operator, (0, ""))
                self.failed_rows[operator] = before + count, reason
            case QueryFailed(query, reason):
                raise Refuse(f"query {query} failed: {reason}", code="query_failed")
            case Late(stream, batch=batch) | TooFar(stream, batch=batch):
                raise AssertionError(
                    f"{stream}: {counted(len(batch), 'row')} came out of order, although they were sorted. This is a "
                    "bug in Millrace, not a problem of the input"
                )
            case _:
                pass  # a task neither answers requests nor needs credit

    def _keep(self, batch: Batch) -> None:
        inside = (batch.ts >= self._slice.from_us) & (batch.ts < self._slice.to_us)
        if inside.all():
            self._rows.append(batch)
        elif inside.any():
            self._rows.append(batch.take(np.flatnonzero(inside)))

    def executed(self, step: int, at_us: Time, execution: Execution) -> None:
        raise AssertionError("no trace was requested")

    def stepped(self) -> None:
        """Nothing is measured."""


class Task:
    """Runs a flow over one task's rows. `engine` may be looked at meanwhile.

    goes_on   whether the streams continue after the last row: incomplete windows are not emitted then
    """

    def __init__(self, flow: Flow, slice_: Slice, *, goes_on: bool = False) -> None:
        self.flow = flow
        self._goes_on = goes_on and flow.counts_rows  # all other rows below a mark are final
        self.collected = Collected(flow, slice_)
        self.driver = Driver(self.collected)
        self._exact = _comes_apart(flow)

    @property
    def engine(self) -> Engine:
        return self.driver.engine

    @property
    def failed_rows(self) -> Mapping[str, tuple[int, str]]:
        """By operator, how many rows it could not compute, and the last reason."""
        return self.collected.failed_rows

    def run(self, chunks: Iterable[Chunk]) -> Iterator[Batch]:
        """The rows of the result, as they are emitted."""
        begun = False
        for instant in self._instants(chunks):
            if not begun:
                self._begin(instant.at_us)
                begun = True
            self.driver.run([instant])
            yield from self.collected.take()
        if not begun:
            self._begin(0)
        self._obey(int(self.driver.clock_us), list(self._last()))
        yield from self.collected.take()

    def _begin(self, at_us: int) -> None:
        flow, driver = self.flow, self.driver
        driver.begin(at_us)
        streams = [replayed(stream) for stream in flow.streams.values()]
        # Queries that the flow holds may name streams that none of the wanted operators reads.
        named = {name for query in flow.catalog.queries.values() for name in query.reads_streams}
        streams += [replayed(flow.catalog.stream(name)) for name in sorted(named - flow.streams.keys())]
        self._obey(at_us, [Command(number, AddStream(stream)) for number, stream in enumerate(streams)])
        for stream in streams:
            if stream.timestamps != "latent":
                # Its rows have their times, or the server's stamps, and the marks arrive with them.
                self.engine.source(stream.name).clocking = Clocking("external", by_tuples=False)
        queries = flow.catalog.queries.values()
        self._obey(at_us, [Command(number, AddQuery(query)) for number, query in enumerate(queries)])
        self._obey(at_us, [FeedOpened(name, FEED) for name in flow.streams])

    def _last(self) -> Iterator[Event]:
        """The events after all rows."""
        for name, stream in self.flow.streams.items():
            if not self._goes_on:
                yield FeedClosed(name, FEED, ended=True)
            elif stream.timestamps != "latent":
                yield Punctuated(name, FEED, LAST_WATERMARK)

    def _obey(self, at_us: int, events: list[Event]) -> None:
        self.driver.run([Instant(at_us, events)])

    def _instants(self, chunks: Iterable[Chunk]) -> Iterator[Instant]:
        for chunk in chunks:
            batches = {name: batch for name, batch in chunk.items() if len(batch)}
            if not batches:
                continue
            if self._exact:
                yield from self._one_by_one(batches)
            else:
                at_us = max(int(self._comes_at(batch)[-1]) for batch in batches.values())
                yield self._instant(at_us, batches)

    def _one_by_one(self, batches: Chunk) -> Iterator[Instant]:
        """The rows of each arrival time separately: an update may supersede only rows that arrived with it."""
        times = np.unique(np.concatenate([self._comes_at(batch) for batch in batches.values()]))
        for at_us in times.tolist():
            here = {}
            for name, batch in batches.items():
                first, last = np.searchsorted(self._comes_at(batch), [at_us, at_us + 1]).tolist()
                if first < last:
                    here[name] = batch.slice(first, last)
            if self.flow.counts_rows:
                yield from self._run_by_run(at_us, here)
            else:
                yield self._instant(at_us, here)

    def _comes_at(self, batch: Batch) -> Int64s:
        """When rows arrive by the virtual clock: later rows arrive no earlier."""
        return batch.arrival if self.flow.counts_rows else batch.ts

    def _run_by_run(self, at_us: int, batches: Chunk) -> Iterator[Instant]:
        """Rows that arrived together, divided where the time changes: later rows precede a row that holds the mark."""
        for name, batch in batches.items():
            cuts = (np.flatnonzero(np.diff(batch.ts)) + 1).tolist()
            for first, last in pairwise([0, *cuts, len(batch)]):
                yield self._instant(at_us, {name: batch.slice(first, last)})

    def _instant(self, at_us: int, batches: Chunk) -> Instant:
        events: list[Event] = [Arrived(name, FEED, batch) for name, batch in batches.items()]
        # More rows of this time may follow, none below it.
        events += [
            Punctuated(name, FEED, at_us) for name, stream in self.flow.streams.items() if stream.timestamps != "latent"
        ]
        return Instant(at_us, events)


def replayed(stream: StreamDefinition) -> StreamDefinition:
    """The stream without options for clients and clocks: its rows are sorted and on time."""
    return replace(stream, disorder_us=0, max_skew_us=None, lull_us=None, ahead_us=None, ets="none", grace_us=None)


def _comes_apart(flow: Flow) -> bool:
    """Whether rows of different times must arrive separately."""
    newest = any(edge.updates for node in flow.nodes.values() for edge in node.edges)
    return newest or any(stream.timestamps == "latent" for stream in flow.streams.values())
