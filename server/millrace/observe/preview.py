"""The rows that a query would emit of the newest tuples of its streams, for a person who writes it.

Rule: a preview changes nothing. The query runs in an engine aside, in a thread, on tuples that passed while somebody
looked. The tuples, the work and the memory are bounded, and the answer says how many tuples it is made of. What a
preview leaves is a tap on each stream, for so long that the next preview finds more tuples.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Answer,
    Arrived,
    Command,
    CommandBody,
    Deliver,
    Event,
    FeedClosed,
    FeedOpened,
    QueryFailed,
    RowsFailed,
)
from millrace.engine.plan import CHANGE_STREAM, QueryPlan, StreamDefinition, origin_of
from millrace.engine.sizes import state_bytes
from millrace.observe.tails import columns_of, rows_of
from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.tap import Tap
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import PreviewInputView, PreviewView, PriceView
from millrace.run.timers import Handle
from millrace.run.worker import Worker
from millrace.sql import Catalog
from millrace.values.batch import Batch

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

# Tuples of all streams that a preview is made of: a few milliseconds of work for most queries.
MOST_TUPLES: Final = 10_000
# Seconds of the processor that a preview takes at the most.
MOST_SECONDS: Final = 0.5
# Bytes of state and of queued tuples at which it stops, and of tuples that a stream keeps for it.
MOST_BYTES: Final = 64 * 2**20
STREAM_BYTES: Final = 4 * 2**20
# Streams whose tuples are kept at the same time.
MOST_STREAMS: Final = 16
# How long a stream keeps tuples after a preview, and how often one looks for the first.
KEPT_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.05
# Tuples that an execution takes: a join of so many with all others is the most that is made at once.
EXECUTION: Final = 32
STRATEGY: Final = f"dfs({EXECUTION})"
FEED: Final = "preview"


@dataclass(frozen=True, slots=True)
class Previewed:
    """A query, the queries that it reads, the least first, and their streams."""

    name: str
    plans: Sequence[QueryPlan]
    streams: Sequence[StreamDefinition]


def previewed(name: str, known: Catalog) -> Previewed:
    """What a preview of a query needs. Raises Refuse if it cannot be made."""
    plans: dict[str, QueryPlan] = {}
    _add(name, known, plans)
    streams = list(dict.fromkeys(stream for plan in plans.values() for stream in plan.reads_streams))
    for stream in streams:
        if origin_of(stream) is not None or stream == CHANGE_STREAM.name:
            raise Refuse(f"a preview reads tuples that are on time, and {stream} has others", code="no_preview")
    if len(streams) > MOST_STREAMS:
        raise Refuse(f"a preview reads {MOST_STREAMS} streams at most, and {name} {len(streams)}", code="no_preview")
    return Previewed(name, list(plans.values()), [known.streams[stream] for stream in streams])


def _add(name: str, known: Catalog, plans: dict[str, QueryPlan]) -> None:
    plan = known.queries[name]
    for below in plan.reads_queries:
        if below not in plans:
            _add(below, known, plans)
    plans[name] = plan


# -- the newest tuples -------------------------------------------------------------------------------------------------


class _Kept:
    """A stream that keeps its newest tuples for previews."""

    def __init__(self, place: Buffer) -> None:
        if place.tap is None:
            place.tap = Tap(place.end, STREAM_BYTES)
        self.place = place
        self.tap = place.tap
        self.handle: Handle | None = None
        self.tap.watchers += 1
        self.tap.most = max(self.tap.most, MOST_TUPLES)

    def leave(self) -> None:
        if self.handle is not None:
            self.handle.cancel()
        self.tap.watchers -= 1
        if not self.tap.watchers and self.place.tap is self.tap:
            self.place.tap = None


class Previews:
    """The previews of a server: one at a time."""

    def __init__(self, daemon: Daemon) -> None:
        self.kept: dict[str, _Kept] = {}
        self._daemon = daemon
        self._worker = Worker("preview")

    async def make(self, query: Previewed, rows: int, wait: float) -> PreviewView:
        """The newest of its rows. Waits until each stream has a tuple, for so many seconds at the most."""
        timers, news, runner = self._daemon.timers, self._daemon.broadcasts.news, self._daemon.runner
        until = timers.time() + wait
        await runner.at_rest()
        while not self._look(query.streams) and timers.time() < until and not self._daemon.stopping:
            await news.wait(LOOK_SECONDS)
            await runner.at_rest()
        most = MOST_TUPLES // max(len(query.streams), 1)
        kept = [(stream.name, self.kept.get(stream.name)) for stream in query.streams]
        found = {name: [batch for _, batch in one.tap.newest(0, most)] for name, one in kept if one is not None}
        return await self._worker.run(lambda: preview(query, found, rows))

    def _look(self, streams: Sequence[StreamDefinition]) -> bool:
        """Let the streams keep tuples from now on; whether each has one. A new stream has none."""
        for stream in streams:
            found = self._daemon.engine.streams_by_name.get(stream.name)
            kept = self.kept.pop(stream.name, None)
            if kept is not None and (found is None or found.source.output is not kept.place):
                kept.leave()  # it was dropped, or is another one of the same name
                kept = None
            if found is None:
                continue
            if kept is None:
                kept = _Kept(found.source.output)
            elif kept.handle is not None:
                kept.handle.cancel()
            self.kept[stream.name] = kept  # the one that was looked at last is the last
            kept.handle = self._daemon.timers.call_later(KEPT_SECONDS, self._forget, stream.name)
        while len(self.kept) > MOST_STREAMS:
            self._forget(next(iter(self.kept)))
        return all(self.kept[stream.name].tap.newest(0, 1) for stream in streams if stream.name in self.kept)

    def _forget(self, name: str) -> None:
        self.kept.pop(name).leave()

    def close(self) -> None:
        for name in list(self.kept):
            self._forget(name)
        self._worker.close()


# -- the engine aside --------------------------------------------------------------------------------------------------


class _Stopwatch:
    """Reads what executions cost this thread."""

    def __init__(self) -> None:
        self.ns = 0
        self._began = 0

    def start(self) -> None:
        self._began = time.thread_time_ns()

    def stop(self, operator: str, tuples: int) -> None:
        self.ns += time.thread_time_ns() - self._began


class _Run:
    """A query in an engine aside."""

    def __init__(self, query: Previewed, rows: int) -> None:
        self.emitted = self.failed = 0
        self.reason: str | None = None
        self.cut: str | None = None
        self.watch = _Stopwatch()
        self.engine = Engine(stopwatch=self.watch, share=True)
        self._query = query
        self._kept = Tap(0, MOST_BYTES)
        self._kept.most = rows
        self._rows = rows
        self._ends = time.thread_time() + MOST_SECONDS

    def obey(self, now_us: int, bodies: Sequence[CommandBody]) -> None:
        self.step(now_us, [Command(number, body) for number, body in enumerate(bodies)])

    def step(self, now_us: int, events: Sequence[Event]) -> None:
        """Take events and do all work, as far as the bounds permit."""
        more = self._step(now_us, events)
        while more and self.cut is None:
            more = self._step(now_us, ())

    def _step(self, now_us: int, events: Sequence[Event]) -> bool:
        effects = self.engine.step(now_us, events, executions=1)
        for order in effects.orders:
            match order:
                case Deliver(query, _, batch) if query == self._query.name:
                    self.emitted += len(batch)
                    self._kept.add(self.emitted, batch)
                case Answer(refused=refused) if refused is not None:
                    raise refused
                case RowsFailed(_, count, reason):
                    self.failed, self.reason = self.failed + count, reason
                case QueryFailed(query, reason):
                    self.cut = f"{query} failed: {reason}"
                case _:
                    pass  # requests get no answer, and nothing is written
        if self.cut is None and time.thread_time() > self._ends:
            self.cut = f"it took more than {MOST_SECONDS:g} seconds of work"
        elif self.cut is None and self.engine.gauge.bytes + state_bytes(self.engine) > MOST_BYTES:
            self.cut = f"its state took more than {MOST_BYTES // 2**20} MiB"
        return effects.more

    def newest(self) -> list[dict[str, Any]]:
        found = self._kept.newest(0, self._rows)
        return [row for first, batch in found for row in rows_of(range(first + 1, first + 1 + len(batch)), batch)]


def preview(query: Previewed, found: Mapping[str, Sequence[Batch]], rows: int) -> PreviewView:
    """Run a query over tuples of its streams, and then end the streams, so that rows that wait show as well."""
    run = _Run(query, rows)
    pieces = sorted(_pieces(found), key=lambda piece: piece[0])
    now_us = pieces[0][0] if pieces else 0
    definitions = [_ungoverned(stream, found.get(stream.name, ())) for stream in query.streams]
    run.obey(now_us, [*(AddStream(one, STRATEGY) for one in definitions), *map(AddQuery, query.plans)])
    run.step(now_us, [FeedOpened(stream.name, FEED) for stream in query.streams])
    taken = dict.fromkeys((stream.name for stream in query.streams), 0)
    for now_us, event in pieces:
        if run.cut is not None:
            break
        run.step(now_us, [event])
        taken[event.stream] += len(event.batch)
    tuples = sum(taken.values())
    operators = run.engine.operators()
    price = PriceView(
        tuples=tuples,
        us_per_tuple=run.watch.ns / 1_000 / tuples if tuples else None,
        state_tuples=sum(one.state_tuples for one in operators),
        state_bytes=sum(one.state_bytes for one in operators),
    )
    final = run.emitted
    if run.cut is None:
        run.step(now_us, [FeedClosed(stream.name, FEED, ended=True) for stream in query.streams])
    return PreviewView(
        problem=None,
        query=query.name,
        columns=columns_of(query.plans[-1].schema),
        rows=run.newest(),
        emitted=run.emitted,
        open=run.emitted - final,
        inputs=[_input(name, found.get(name, ()), taken[name]) for name in taken],
        failed=run.failed,
        reason=run.reason,
        cut=run.cut,
        price=price,
    )


def _input(name: str, batches: Sequence[Batch], taken: int) -> PreviewInputView:
    first, last = (int(batches[0].arrival[0]), int(batches[-1].arrival[-1])) if batches else (None, None)
    return PreviewInputView(stream=name, tuples=taken, first_us=first, last_us=last)


def _pieces(found: Mapping[str, Sequence[Batch]]) -> Iterator[tuple[int, Arrived]]:
    """The tuples of each stream in the steps in which they arrived, with their times."""
    for stream, batches in found.items():
        for batch in batches:
            ends = [*(np.flatnonzero(np.diff(batch.arrival)) + 1).tolist(), len(batch)]
            for first, end in zip([0, *ends], ends, strict=False):
                yield int(batch.arrival[first]), Arrived(stream, FEED, batch.slice(first, end))


def _ungoverned(stream: StreamDefinition, batches: Sequence[Batch]) -> StreamDefinition:
    """The stream without what its clock and its feeds decided: all of these tuples were on time."""
    ts = np.concatenate([batch.ts for batch in batches]) if batches else np.zeros(0, np.int64)
    disorder = int((np.maximum.accumulate(ts) - ts).max(initial=0)) if stream.timestamps == "external" else 0
    return replace(
        stream,
        disorder_us=max(stream.disorder_us, disorder),
        progress="tuples",
        max_skew_us=None,
        lull_us=None,
        ahead_us=None,
        history=False,
    )
