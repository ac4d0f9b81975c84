"""Which slow reader feeds wait for, as data and as a sentence, for `why`, `doctor` and views of a query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from millrace.net.sink import Consumer, Outlet, Unwritten, WriterSink
from millrace.protocol.admin.queries import SlowReaderView, Why
from millrace.protocol.timestamps import format_timestamp
from millrace.protocol.words import counted, readable_bytes

# The reasons of `why` that a slow reader does not explain: the query takes nothing anyway.
TAKES_NOTHING = ("paused", "failed", "catching_up")


@dataclass(frozen=True, slots=True)
class SlowReader:
    """The subscriber or sink that the feeds of `streams` wait for; of several, the one that lags most."""

    query: str
    kind: str
    name: str
    since_us: int
    rows: int
    bytes: int
    streams: tuple[str, ...]
    keyed: bool
    obstacle: str | None = None

    @property
    def text(self) -> str:
        if self.kind == "disk":
            who, backlog = f"{self.name}", f"{readable_bytes(self.bytes)} of rows wait to be written"
        else:
            who = f"{self.kind} {self.name} of query {self.query}"
            backlog = f"it has {counted(self.rows, 'row')} ({readable_bytes(self.bytes)}) to read"
        since = format_timestamp(self.since_us)
        if self.streams:
            waits = f"The feeds of {_listed(self.streams)} wait since {since} for {who}"
        else:
            waits = f"Since {since} {who} is too slow; its streams get credit, because another query waits for them"
        obstacle = f", and cannot write: {self.obstacle}" if self.obstacle else ""
        policy = "" if self.kind == "disk" else " (on_slow = 'wait')"
        return f"{waits}: {backlog}{obstacle}{policy}. No row is lost. {self._advice}"

    @property
    def _advice(self) -> str:
        if self.kind == "disk":
            return "Feeds continue by themselves when the disk has caught up; free space on it, or retain fewer rows."
        latest = ", or on_slow = 'latest' to send it only the newest row of each key" if self.keyed else ""
        if self.kind == "sink":
            return f"To let the feeds continue without it, create it with on_slow = 'disconnect'{latest}."
        return f"To let the feeds continue without it, set limits.on_slow = 'disconnect'{latest}."

    @property
    def try_(self) -> str:
        return f"millrace sink show {self.name}" if self.kind == "sink" else f"millrace query show {self.query}"

    def view(self) -> SlowReaderView:
        return SlowReaderView(
            kind=self.kind,
            name=self.name,
            since_us=self.since_us,
            rows=self.rows,
            bytes=self.bytes,
            streams=list(self.streams),
            obstacle=self.obstacle,
            text=self.text,
            try_=self.try_,
        )


def slow_reader(outlet: Outlet, withheld: Mapping[str, Iterable[str]]) -> SlowReader | None:
    """The reader that the feeds of an outlet's query wait for, by the streams that get no credit for which queries."""
    slowest = outlet.slowest
    if slowest is None or outlet.waiting_since_us is None:
        return None
    return SlowReader(
        outlet.query,
        _kind(slowest),
        slowest.name,
        outlet.waiting_since_us,
        slowest.held,
        slowest.held_bytes,
        tuple(stream for stream, queries in withheld.items() if outlet.query in queries),
        outlet.key is not None,
        slowest.obstacle,
    )


def explained(why: Why, reader: SlowReader) -> Why:
    """The answer of `why` if a slow reader holds rows back."""
    return replace(
        why,
        text=reader.text,
        reason="slow_reader",
        operator=None,
        input=None,
        stream=next(iter(reader.streams), why.stream),
        feed=None,
        since=reader.since_us,
        held=reader.rows,
        try_=reader.try_,
    )


def _kind(consumer: Consumer) -> str:
    if isinstance(consumer, Unwritten):
        return "disk"
    return "sink" if isinstance(consumer, WriterSink) else "subscriber"


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
