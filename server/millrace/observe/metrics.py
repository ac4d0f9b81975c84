"""The metrics for Prometheus, collected from the engine's views at each scrape.

Rule: names, labels and units are a contract: `reference` prints the table of `docs/metrics.md`, and a test compares it.
The help text of a metric explains it to a reader who has never seen it. No label has a value from data. Every metric
exists from the first scrape, with zeros.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric

from millrace.access.access import REASONS as AUTH_REASONS
from millrace.access.access import Access
from millrace.changes.table import CHANGES
from millrace.engine.events import AskEnded
from millrace.net.feeds import Feeds
from millrace.net.guesses import OUTCOMES as GUESS_OUTCOMES
from millrace.net.guesses import Guesses
from millrace.net.refusals import PORTS, Refusals
from millrace.net.sink import Outlet, WriterSink
from millrace.observe.families import counter as _counter
from millrace.observe.families import gauge as _gauge
from millrace.observe.journals import journal_families
from millrace.observe.loads import load_families
from millrace.observe.standbys import Facts, standby_families
from millrace.operators.source.source import CAUSES
from millrace.protocol.admin.operators import ComponentView, InputView, OperatorView
from millrace.protocol.admin.streams import ArchiveView
from millrace.run.runner import Runner
from millrace.run.threads import in_thread
from millrace.values.batch import Batch

if TYPE_CHECKING:
    from millrace.run.budget import Budget
    from millrace.run.durability import Durability
    from millrace.run.overload import Overload

# Bounds of the latency histogram: a quarter of a millisecond, where a tuple at a time ends up, to a minute.
BOUNDS_US: Final = (250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
                    2_500_000, 5_000_000, 10_000_000, 60_000_000)  # fmt: skip
BOUNDS: Final = (*(str(bound / 1e6) for bound in BOUNDS_US), "+Inf")
# Histograms between which the loop is free: a millisecond or two.
PIECE: Final = 100

# The changes by admins; each is counted with its result from the first scrape on.
RECONFIGURATIONS: Final = (*(change.label for change in CHANGES), "statements")
STATES: Final = ("running", "paused", "failed")
# Operators that never leave out a row because it is older than its key's.
PASSING: Final = ("source", "fork", "sink")
JOIN_MODES: Final = ("arrival", "sync", "filter")
RESULTS: Final = ("done", "refused", "rolled_back")
OUTCOMES: Final = ("answered", "below", "timeout", "closed")


class Views(Protocol):
    """The engine's views between two steps."""

    def components(self) -> list[ComponentView]: ...

    def operators(self) -> list[OperatorView]: ...

    def query_states(self) -> dict[str, str]: ...

    def withheld(self) -> dict[str, list[str]]: ...

    def punctuations(self) -> dict[str, dict[str, int]]: ...


@dataclass(slots=True)
class Histogram:
    """Durations, counted by bounds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_US) + 1))
    total_us: int = 0

    def observe(self, us: int) -> None:
        self.counts[bisect_left(BOUNDS_US, us)] += 1
        self.total_us += us

    def observe_rows(self, now_us: int, batch: Batch) -> None:
        """For each row, delivery minus the arrival of the newest tuple in it."""
        arrival = batch.arrival
        count = len(arrival)
        if count == 1 or arrival.strides == (0,):
            # Rows of one frame: one look-up for all of them.
            late_us = now_us - arrival.item(0)
            self.counts[bisect_left(BOUNDS_US, late_us)] += count
            self.total_us += late_us * count
            return
        waited = now_us - arrival
        found = np.bincount(np.searchsorted(BOUNDS_US, waited), minlength=len(self.counts)).tolist()
        self.counts = [before + more for before, more in zip(self.counts, found, strict=True)]
        self.total_us += int(waited.sum())


class _Collected(CollectorRegistry):
    """Families that have been collected."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class Metrics:
    """A collector over one server."""

    def __init__(self, engine: Views, runner: Runner, feeds: Feeds) -> None:
        self._engine = engine
        self._runner = runner
        self._feeds = feeds
        self._latency: dict[str, Histogram] = {}  # by history
        self._asks: dict[tuple[str, str], Histogram] = {}
        self._punctuations: Counter[str] = Counter()
        self._punctuated: dict[str, dict[str, int]] = {}
        self._pauses = Histogram()
        self.archives: Callable[[], Mapping[str, ArchiveView]] = dict
        self._reconfigurations: Counter[tuple[str, str]] = Counter()
        self.durability: Durability | None = None
        self.budget: Budget | None = None
        self.overload: Overload | None = None
        self.standby: Callable[[], Facts] = Facts
        self.problems: Callable[[], list[str]] = list
        self.refusals = Refusals()
        self.guesses: Guesses | None = None
        self.access: Access | None = None
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._process = ProcessCollector(registry=self.registry)

    # -- told while the server runs ----------------------------------------------------------------

    def delivered(self, outlet: Outlet, now_us: int, batch: Batch) -> None:
        found = self._latency.get(outlet.history)
        if found is None:
            found = self._latency[outlet.history] = Histogram()
        found.observe_rows(now_us, batch)

    def reconfigured(self, kind: str, result: str) -> None:
        self._reconfigurations[kind, result] += 1

    def paused(self, seconds: float) -> None:
        """Record how long a change, or the step in which a query adopted its past, blocked the event loop."""
        self._pauses.observe(round(seconds * 1e6))

    def ask_ended(self, order: AskEnded) -> None:
        self._asks.setdefault((order.stream, order.outcome), Histogram()).observe(order.took_us)

    def count_punctuations(self) -> None:
        """Add the engine's counts since the last call; called before a stream is dropped with its counts."""
        found = self._engine.punctuations()
        for stream, counts in found.items():
            before = self._punctuated.get(stream, {})
            for cause, count in counts.items():
                self._punctuations[cause] += count - before.get(cause, 0)
        self._punctuated = found

    def forget_stream(self, stream: str) -> None:
        self._punctuated.pop(stream, None)
        for key in [key for key in self._asks if key[0] == stream]:
            del self._asks[key]

    # -- asked -------------------------------------------------------------------------------------

    def text(self) -> bytes:
        return generate_latest(self.registry)

    async def scrape(self, pieces: AsyncIterable[list[OperatorView]] | None) -> bytes:
        """The same text. The loop is free after each piece of the operators and each family, and a thread renders.

        Without operators the engine is being recovered, and the families that read it are left out."""
        if pieces is None:
            early = [*self._server(), *self._process.collect()]
            return await in_thread(lambda: generate_latest(_Collected(early)))
        operators = [operator async for piece in pieces for operator in piece]
        families: list[Metric] = []
        for family in self._collect(operators):
            if family is not None:
                families.append(family)
            await asyncio.sleep(0)
            await self._runner.at_rest()
        families += self._process.collect()
        return await in_thread(lambda: generate_latest(_Collected(families)))

    def collect(self) -> Iterator[Metric]:
        return (family for family in self._collect(self._engine.operators()) if family is not None)

    def _collect(self, operators: list[OperatorView]) -> Iterator[Metric | None]:
        """The families; None where one takes long, so that the caller can do something else."""
        yield from self._server()
        yield from self._sources()
        yield from self._operators(operators)
        yield from self._components()
        yield _gauge(
            "query_state",
            "1 for the present state of the query: running, paused, or failed and waiting to be resumed.",
            ("query", "state"),
            [((name, state), int(at == state)) for name, at in self._engine.query_states().items() for state in STATES],
        )
        yield from self._sinks()
        yield from self._retained()
        yield from self._archived()
        yield from self._latencies()
        self.count_punctuations()
        yield _counter(
            "punctuation",
            "Punctuation that raised the time of an operator's input, by cause.",
            ("cause",),
            [((cause,), self._punctuations[cause]) for cause in CAUSES],
        )
        yield self._requests()
        yield _counter(
            "reconfigurations",
            "Changes requested by administrators, by kind and by result: done, refused, or rolled back because the "
            "engine refused it after its trial; `statements` is SQL that was refused before its kind of change was "
            "known.",
            ("kind", "result"),
            [((kind, result), self._reconfigurations[kind, result]) for kind in RECONFIGURATIONS for result in RESULTS],
        )
        pauses = HistogramMetricFamily(
            "millrace_reconfiguration_pause_seconds",
            "How long a change by an administrator, done or refused, kept tuples waiting; "
            "they do not wait for planning.",
        )
        pauses.add_metric((), list(_buckets(self._pauses)), self._pauses.total_us / 1e6)
        yield pauses
        yield _counter(
            "connections_refused",
            "Connections that the server closed, by port and reason: too many connections, a "
            "silent client, too slow or too large input, another protocol, unread answers, replaced by newer "
            "connections before authentication, or large buffers while memory was short.",
            ("port", "reason"),
            [((port, reason), count) for (port, reason), count in self.refusals.counts.items()],
        )
        yield _counter(
            "wrong_tokens",
            "Wrong tokens from clients, by port and outcome: the client received its delayed answer, or was "
            "disconnected because too many clients of its address were waiting for one.",
            ("port", "outcome"),
            [
                ((port, outcome), 0 if self.guesses is None else self.guesses.counts[port, outcome])
                for port in PORTS
                for outcome in GUESS_OUTCOMES
            ],
        )
        yield _counter(
            "auth_failures",
            "Requests and connections that were refused, by port and reason: no token (missing), one that the server "
            "does not know (wrong), one that has expired, or one whose roles do not allow it (role).",
            ("port", "reason"),
            [
                ((port, reason), 0 if self.access is None else self.access.failures[port, reason])
                for port in PORTS
                for reason in AUTH_REASONS
            ],
        )
        yield _counter("steps", "Steps that the engine has executed.", (), [((), self._runner.steps)])
        yield from load_families(self.budget, self.overload)

    def _server(self) -> Iterator[Metric]:
        """What needs no engine."""
        yield _gauge(
            "build_info", "Always 1; the label has the version of the server.", ("version",), [((version(),), 1)]
        )
        yield _gauge(
            "problems",
            "Reasons why the server cannot save its state; `/-/healthy` has their text.",
            (),
            [((), len(self.problems()))],
        )
        yield from journal_families(self.durability, self._runner.now_us())
        yield from standby_families(self.standby())

    def _sources(self) -> Iterator[Metric]:
        received = self._feeds.received()
        late = self._runner.late
        label = ("stream",)

        yield _gauge(
            "source_connections",
            "Number of feeds that are open now.",
            label,
            [((name,), at.connections) for name, at in received.items()],
        )
        for metric, text, values in (
            (
                "source_tuples",
                "Tuples that the server accepted from clients, including late ones.",
                {name: at.tuples for name, at in received.items()},
            ),
            (
                "source_bytes",
                "Bytes of the frames and lines with tuples from clients.",
                {name: at.bytes for name, at in received.items()},
            ),
            (
                "source_rejected",
                "Tuples refused because they did not match the stream's schema or were too far in the future.",
                {name: at.rejected + self._runner.far.get(name, 0) for name, at in received.items()},
            ),
            (
                "source_repeated",
                "Tuples that were skipped because their sequence numbers had been taken before.",
                {name: at.repeated for name, at in received.items()},
            ),
            (
                "source_producers_forgotten",
                "Producers whose next sequence number is not kept any more, by the limits for producers.",
                {name: at.forgotten for name, at in received.items()},
            ),
            (
                "source_late_tuples",
                "Tuples older than the time that their stream had already promised; they enter no query.",
                {name: late.get(name, 0) for name in received},
            ),
        ):
            yield _counter(metric, text, label, [((name,), value) for name, value in values.items()])

    def _operators(self, operators: list[OperatorView]) -> Iterator[Metric]:
        labels = ("component", "operator")
        for metric, text, key in (
            ("operator_input_tuples", "Tuples that the operator has read from its inputs.", "input_tuples"),
            ("operator_output_tuples", "Tuples that the operator has emitted so far.", "output_tuples"),
            ("operator_executions", "How often the scheduler has run the operator.", "executions"),
            (
                "operator_errors",
                "Rows that the operator dropped because they could not be computed, such as a division by zero.",
                "errors",
            ),
        ):
            yield _counter(metric, text, labels, [(_labels(at), getattr(at, key)) for at in operators])
        yield _counter(
            "operator_busy_seconds", "Time that the operator has spent executing.", labels,
            [(_labels(at), at.busy_us / 1e6) for at in operators],
        )  # fmt: skip
        for metric, text, key in (
            (
                "operator_state_tuples",
                "Tuples in the operator's state, for example in windows, without those queued in its inputs.",
                "state_tuples",
            ),
            ("operator_state_bytes", "Bytes in memory of the operator's state.", "state_bytes"),
        ):
            yield _gauge(metric, text, labels, [(_labels(at), getattr(at, key)) for at in operators])
        yield from self._inputs(operators)
        yield from self._queues(operators)
        yield from self._joins(operators)
        yield _gauge(
            "operator_low_watermark_seconds",
            "The operator emits no further tuple older than this time, in seconds since the epoch.",
            labels,
            [(_labels(at), at.low_water_us / 1e6) for at in operators if at.low_water_us is not None],
        )

    def _inputs(self, operators: list[OperatorView]) -> Iterator[Metric]:
        labels = ("component", "operator", "input")
        inputs = [((*_labels(at), name), given) for at in operators for name, given in _named_inputs(at.inputs)]
        yield _gauge(
            "operator_queue_tuples",
            "Tuples that wait in the queue of the input.",
            labels,
            [(at, given.queue_tuples) for at, given in inputs],
        )
        yield _counter(
            "operator_idle_wait_seconds",
            "Time for which the operator was blocked because the time of this input was too low.",
            labels,
            [(at, given.idle_wait_us / 1e6) for at, given in inputs],
        )

    def _queues(self, operators: list[OperatorView]) -> Iterator[Metric]:
        """Of the inputs that have an update queue or shed; and without an input what operators leave out themselves."""
        labels = ("component", "operator", "input")
        queues = [
            ((*_labels(at), name), given.queue)
            for at in operators
            for name, given in _named_inputs(at.inputs)
            if given.queue is not None
        ]
        older = [((*_labels(at), ""), at.superseded) for at in operators if at.kind not in PASSING]
        yield _counter(
            "update_superseded",
            "Updates replaced by a newer one of the same key before they were processed; without an input, updates "
            "that were older than the newest of their key when they reached an operator of update streams.",
            labels,
            [*((at, queue.superseded) for at, queue in queues), *older],
        )
        yield _counter(
            "update_shed", "Tuples dropped by random load shedding.", labels,
            [(at, queue.shed) for at, queue in queues],
        )  # fmt: skip
        autos = [(at, queue.auto) for at, queue in queues if queue.auto is not None]
        yield _gauge(
            "update_superseding",
            "Of LATEST USING AUTO: 1 while only the newest row or window of each key is kept, 0 while all are.",
            labels,
            [(at, int(auto.mode == "update")) for at, auto in autos],
        )
        yield _counter(
            "update_switches",
            "Of LATEST USING AUTO: how often the load has changed whether the queue supersedes.",
            labels,
            [(at, auto.switches) for at, auto in autos],
        )
        yield _gauge(
            "update_staleness_seconds",
            "Mean age of the oldest pending update of a key (queue), or of the oldest update that is not in the "
            "results yet (application); zero if no update is pending.",
            (*labels, "kind"),
            [
                ((*at, kind), getattr(queue, f"{kind}_staleness_us") / 1e6)
                for at, queue in queues
                for kind in ("queue", "application")
            ],
        )

    def _joins(self, operators: list[OperatorView]) -> Iterator[Metric]:
        labels = ("component", "operator")
        joins = [(_labels(at), at.join) for at in operators if at.join is not None]
        yield _gauge(
            "join_mode",
            "1 for the present mode of the join: it reads rows as they arrive (arrival, filter), or in order (sync).",
            (*labels, "mode"),
            [((*at, mode), int(join.mode == mode)) for at, join in joins for mode in JOIN_MODES],
        )
        yield _counter(
            "join_mode_switches",
            "How often the join has switched its mode.",
            labels,
            [(at, join.switches) for at, join in joins],
        )
        yield _counter(
            "join_closed_rows",
            "Stored tuples that the join has dropped early, because promises had closed their groups.",
            labels,
            [(at, join.closed_rows) for at, join in joins],
        )

    def _components(self) -> Iterator[Metric]:
        components = self._engine.components()
        yield _counter(
            "component_steps", "Executions of all operators by the component's scheduler.", ("component",),
            [((at.name,), at.steps) for at in components],
        )  # fmt: skip
        yield _gauge(
            "component_strategy_info", "Always 1; the label has the scheduling strategy of the component.",
            ("component", "strategy"),
            [((at.name, at.strategy), 1) for at in components],
        )  # fmt: skip
        yield _gauge(
            "component_queue_bytes", "Bytes in memory of all tuples that are queued in the component.",
            ("component",),
            [((at.name,), at.queued_bytes) for at in components],
        )  # fmt: skip
        yield _gauge(
            "component_ready", "1 if the component has work that it can do now, else 0.", ("component",),
            [((at.name,), int(at.ready)) for at in components],
        )  # fmt: skip

    def _sinks(self) -> Iterator[Metric]:
        labels = ("query", "sink")
        writers = [(query, consumer) for query, outlet in self._runner.outlets.items()
                   for consumer in outlet.consumers if isinstance(consumer, WriterSink)]  # fmt: skip
        yield _gauge(
            "sink_waiting", "1 while the sink cannot write and retries, as with a full disk, else 0.", labels,
            [((query, sink.name), int(sink.state == "waiting")) for query, sink in writers],
        )  # fmt: skip
        yield _gauge(
            "sink_failed", "1 if the sink stopped because of an error or `on_slow = 'disconnect'`, else 0.", labels,
            [((query, sink.name), int(sink.state == "failed")) for query, sink in writers],
        )  # fmt: skip
        yield _counter(
            "sink_retries", "How often the sink retried a write and failed again.", labels,
            [((query, sink.name), sink.retries) for query, sink in writers],
        )  # fmt: skip
        yield _gauge(
            "sink_unfinished_tuples",
            "Rows that a Parquet or Arrow sink holds in memory for its next file.",
            labels,
            [((query, sink.name), sink.unfinished) for query, sink in writers],
        )
        now_us = self._runner.now_us()
        counts = [((query, sink), at) for query, outlet in self._runner.outlets.items()
                  for sink, at in outlet.counts(now_us).items()]  # fmt: skip
        yield _counter(
            "sink_delivered_tuples",
            "Rows that the sink has written, or sent to subscribers.",
            labels,
            [(name, at.delivered) for name, at in counts],
        )
        yield _counter(
            "sink_dropped_tuples", "Rows dropped because the sink was too slow or had failed.", labels,
            [(name, at.dropped) for name, at in counts],
        )  # fmt: skip
        yield _counter(
            "sink_superseded_tuples",
            "Rows replaced by a newer one of the same key while they waited for a slow sink.",
            labels, [(name, at.superseded) for name, at in counts],
        )  # fmt: skip
        yield _counter(
            "sink_freshness_breaches", "How often the row of a key became older than `freshness` allows.", labels,
            [(name, at.breaches) for name, at in counts],
        )  # fmt: skip
        yield _gauge(
            "sink_unacked_tuples",
            "Rows that the sink holds because it could not deliver them yet.",
            labels,
            [(name, at.held) for name, at in counts],
        )
        yield _gauge(
            "sink_unacked_bytes",
            "Bytes in memory of the rows that the sink holds because it could not deliver them yet.",
            labels,
            [(name, at.held_bytes) for name, at in counts],
        )
        yield _gauge(
            "sink_lag_seconds",
            "Age of the oldest row that the sink holds; zero if it holds none.",
            labels,
            [(name, at.lag_us / 1e6) for name, at in counts],
        )

    def _retained(self) -> Iterator[Metric]:
        """What queries retain, and how long feeds wait for their slow readers."""
        label, now_us = ("query",), self._runner.now_us()
        outlets = {name: self._runner.outlets.get(name) for name in self._engine.query_states()}
        found = [((name,), outlet) for name, outlet in outlets.items() if outlet is not None]
        yield _gauge(
            "query_retained_tuples",
            "Newest rows that are retained for subscribers that start at an earlier sequence number.",
            label,
            [(name, outlet.retained_tuples) for name, outlet in found],
        )
        yield _gauge(
            "query_retained_bytes", "Bytes of the retained rows: on disk, or in memory without a data folder.", label,
            [(name, outlet.retained_bytes) for name, outlet in found],
        )  # fmt: skip
        results = self._runner.results
        yield _gauge("results_bytes", "Bytes on disk of the retained rows of all queries.", (),
                     [((), results.disk_bytes)])  # fmt: skip
        yield _gauge(
            "results_waiting_bytes", "Bytes in memory of rows that wait to be written to disk.", (),
            [((), results.waiting_bytes)],
        )  # fmt: skip
        yield _counter(
            "results_retries", "How often writing retained rows failed again.", (), [((), results.retries)],
        )  # fmt: skip
        yield _gauge(
            "results_waiting", "1 while retained rows cannot be written and the server retries, else 0.", (),
            [((), int(results.trouble is not None))],
        )  # fmt: skip
        yield _gauge(
            "results_failed", "1 if retained rows were damaged, or could not be made durable, else 0.", (),
            [((), int(results.failed is not None or bool(results.damaged)))],
        )  # fmt: skip
        yield _gauge(
            "query_waiting",
            "1 while the feeds of the query's streams wait for a slow subscriber or sink (`on_slow = 'wait'`), else 0.",
            label,
            [(name, int(outlet.waiting_since_us is not None)) for name, outlet in found],
        )
        yield _counter(
            "query_waits", "How often feeds had to wait for a slow subscriber or sink of the query.", label,
            [(name, outlet.waits) for name, outlet in found],
        )  # fmt: skip
        yield _counter(
            "query_wait_seconds",
            "How long feeds have waited for slow subscribers and sinks of the query.",
            label,
            [(name, outlet.all_waited_us(now_us) / 1e6) for name, outlet in found],
        )
        withheld = self._engine.withheld()
        yield _gauge(
            "source_withheld",
            "1 while the stream's feeds get no credit because a subscriber or sink is slow, else 0.",
            ("stream",),
            [((name,), int(name in withheld)) for name in self._feeds.received()],
        )

    def _archived(self) -> Iterator[Metric]:
        """Of the streams with history."""
        archives, label = self.archives(), ("stream",)
        for metric, text, key in (
            ("archive_rows", "Rows of the stream in complete files of history, including late ones.", "rows"),
            ("archive_late_rows", "Late rows among the rows written to history.", "late_rows"),
            ("archive_files", "Complete files of history that were written.", "files"),
            ("archive_bytes", "Bytes of the complete files of history.", "bytes"),
        ):
            yield _counter(metric, text, label, [((name,), getattr(at, key)) for name, at in archives.items()])
        yield _counter(
            "archive_errors", "Failed attempts to write history; the rows are retried.", label,
            [((name,), at.errors) for name, at in archives.items()],
        )  # fmt: skip
        for metric, text, key, unit in (
            ("archive_waiting_rows", "Accepted rows that are in no complete file yet.", "waiting_rows", 1),
            ("archive_waiting_bytes", "Bytes of the rows that are in no complete file yet.", "waiting_bytes", 1),
            (
                "archive_waiting_seconds",
                "Age of the oldest row that is in no complete file yet.",
                "waiting_us",
                1e6,
            ),
            (
                "archive_reach_lag_seconds",
                "Distance from the end of the complete history to the stream's mark (watermark).",
                "lag_us",
                1e6,
            ),
            ("archive_held", "1 while the stream's feeds wait for its history to be written, else 0.", "held", 1),
        ):
            yield _gauge(metric, text, label, [((name,), getattr(at, key) / unit) for name, at in archives.items()])

    def _requests(self) -> Metric:
        family = HistogramMetricFamily(
            "millrace_ets_request_seconds",
            "How long clients took to answer a request for a timestamp, by outcome.",
            labels=("stream", "outcome"),
        )
        for stream in self._feeds.received():
            for outcome in OUTCOMES:
                taken = self._asks.setdefault((stream, outcome), Histogram())
                family.add_metric((stream, outcome), list(_buckets(taken)), taken.total_us / 1e6)
        return family

    def _latencies(self) -> Iterator[Metric | None]:
        family = HistogramMetricFamily(
            "millrace_query_latency_seconds",
            "Time from the arrival of the newest tuple in a row to the row's delivery.",
            labels=("query",),
        )
        outlets = tuple(self._runner.outlets.values())
        self._latency = {outlet.history: self._latency.get(outlet.history, Histogram()) for outlet in outlets}
        for at, outlet in enumerate(outlets):
            if at % PIECE == PIECE - 1:
                yield None
            if self._runner.outlets.get(outlet.query) is outlet:
                latency = self._latency[outlet.history]
                family.add_metric((outlet.query,), list(_buckets(latency)), latency.total_us / 1e6)
        yield family


def reference(metrics: Metrics) -> str:
    """The table of `docs/metrics.md`: what any server exposes, whatever it runs."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in metrics.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        # The library keeps a family's labels to itself, and shows them with samples alone.
        labels = ", ".join(getattr(family, "_labelnames", ()))
        lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(lines) + "\n"


def version() -> str:
    """The installed version."""
    try:
        return importlib.metadata.version("millrace")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _buckets(histogram: Histogram) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip(BOUNDS, histogram.counts, strict=True):
        total += count
        yield bound, total


def _labels(operator: OperatorView) -> tuple[str, str]:
    return operator.component, operator.name


def _named_inputs(inputs: Iterable[InputView]) -> Iterator[tuple[str, InputView]]:
    """Each input with the name of the operator it reads; a second input from the same one has its number added."""
    seen: Counter[str] = Counter()
    for given in inputs:
        name = given.from_
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}#{seen[name]}", given
