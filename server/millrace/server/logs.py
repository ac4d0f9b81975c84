"""What the log says: its events, each with what it tells of, and a way to say one seldom.

Rule: an event has one text, one level and fixed names for what it tells; what varies is in the fields. The table below
is the log's contract (`docs/logs.md` is printed from it, a test compares it with the calls). An event that a stream of
bad rows, or a crowd of clients, could repeat for ever goes through `Sparing`.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from contextvars import Context, ContextVar
from typing import Any, Final, Literal, NamedTuple

import structlog

from millrace.protocol.words import printable
from millrace.server.clock import monotonic_us

log = structlog.get_logger()

Level = Literal["debug", "info", "warning", "error"]

# What is repeated is told at once, and then so often at most for each culprit.
EVERY_US: Final = 10_000_000
# Culprits that are remembered; beyond that what was kept back is told, and all may be told at once again.
CULPRITS: Final = 10_000

# Who speaks while a connection's bytes or an admin's request are dealt with, and what the admin asked for. Each line
# that comes of it names them.
client: Final[ContextVar[str | None]] = ContextVar("client", default=None)
request: Final[ContextVar[str | None]] = ContextVar("request", default=None)


def add_context(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: whose doing it is, if it is somebody's."""
    for name, context in (("client", client), ("request", request)):
        if (value := context.get()) is not None:
            event.setdefault(name, value)
    return event


def without_controls(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: names that peers chose do not act on the terminal that shows the log."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = printable(value, lines=name == "exception")
    return event


class Told(NamedTuple):
    """An event. `sparing` ones have the number of times (or of tuples) since the last line in a field."""

    level: Level
    fields: tuple[str, ...]
    meaning: str


EVENTS: Final[dict[str, Told]] = {
    # -- the server's life
    "ready": Told("info", ("listen", "admin"), "Both ports are open and the catalog is restored."),
    "no data_dir: streams and queries are forgotten when the server ends": Told("info", (), "Said once, at the start."),
    "restored from the catalog": Told("info", ("statements",), "What an earlier run was told is in force again."),
    "restarted without operator state": Told(
        "warning",
        ("query", "meaning"),
        "A restored query lost its windows, joins or totals; `meaning` says what that does to its first rows.",
    ),
    "the previous server did not end cleanly": Told(
        "warning", ("text",), "It was killed or crashed; `text` says when, and what may be lost."
    ),
    "the marker of the previous server cannot be read": Told(
        "warning", ("path", "reason"), "Whether the previous server ended cleanly is not known."
    ),
    "a decision of the catalog does not fit any more": Told(
        "warning", ("reason",), "A strategy, weight or pause of an earlier run could not be restored."
    ),
    "the catalog cannot be written": Told(
        "error", ("reason",), "Changes hold now, and are lost at the next start. It is tried again every second."
    ),
    "the catalog is written again": Told("info", (), "The end of the line above."),
    "the seams of queries cannot be written": Told(
        "error",
        ("path", "reason"),
        "After a restart a `--then-live` does not know where its history ends.",
    ),
    "addresses.json cannot be removed": Told(
        "warning", ("path", "reason"), "The server ends all the same; the file says where it listened."
    ),
    "a part of the end failed; the others go on": Told(
        "error", ("part", "reason"), "The server keeps what can be kept, and ends with exit code 1."
    ),
    "draining": Told("info", ("at_most_seconds",), "The orderly end has begun."),
    "the time for draining is over; rows that were still queued are lost": Told(
        "warning", (), "Raise `server.drain_seconds`, or look for the slow consumer."
    ),
    "a sink does not take its last rows; they are lost": Told(
        "error", (), "A write hangs; the server ends all the same."
    ),
    "ended": Told("info", (), "The last line."),
    "the server made a mistake and ends": Told("error", ("task",), "A bug of the server's, with its traceback."),
    "the service manager cannot be told": Told("warning", ("message", "reason"), "systemd's socket does not take it."),
    # -- clocks
    "the system's clock jumped forward; the server's follows": Told("warning", ("seconds",), "Somebody set the clock."),
    "the system's clock was set back; the server's goes on, a little slower, until it has caught up": Told(
        "warning", ("seconds",), "Somebody set the clock; the server's time never goes back."
    ),
    "the system's clock has caught up with the server's": Told("info", (), "The end of the line above."),
    # -- clients
    "a client connected": Told("debug", (), "A TCP connection."),
    "a client left": Told("debug", ("reason",), "A TCP connection has ended; the reason, if it broke."),
    "turned a connection away: the limit is reached": Told("warning", ("times",), "More than `limits.connections`."),
    "closed a connection that had not introduced itself: newer ones came": Told(
        "warning", ("times",), "More than `limits.unauthenticated_connections`."
    ),
    "a client was disconnected": Told(
        "warning",
        ("code", "reason", "times"),
        "It was silent, too slow, or did not read; `millrace_connections_refused_total` counts them by reason.",
    ),
    "a connection failed by a mistake of the server": Told("error", (), "A bug of the server's, with its traceback."),
    "a client took the wrong port": Told(
        "warning", ("times",), "HTTP at the port for streams, or the other way round."
    ),
    "a client showed a wrong token": Told(
        "warning",
        ("port", "address", "times"),
        "At most one line in ten seconds; the metric `millrace_wrong_tokens_total` counts each.",
    ),
    "a client broke the protocol": Told("warning", ("code", "reason", "times"), "Its connection was closed."),
    "a client was refused": Told(
        "warning", ("code", "reason", "times"), "A frame, a line or a wish; the client was told the same."
    ),
    "a feed opened": Told("info", ("stream", "feed", "times"), "A client feeds the stream."),
    "a feed ended": Told(
        "info", ("stream", "feed", "lost", "times"), "`lost`: its connection broke; it may come back."
    ),
    "a subscription began": Told("info", ("query", "times"), "A client reads the query's rows."),
    "a subscription ended": Told("info", ("query", "times"), "It left, was cut off, or the query ended."),
    "asked for a timestamp": Told("debug", ("stream", "feed", "need_us"), "An operator waits for this feed's time."),
    "a request for a timestamp ended": Told("debug", ("stream", "feed", "outcome", "took_us"), "As in the metrics."),
    # -- tuples
    "tuples came late": Told("warning", ("stream", "feed", "tuples"), "They are in the stream's late side stream."),
    "a client broke its own punctuation; the tuples are late": Told(
        "warning", ("stream", "feed", "tuples"), "It sent tuples below what it had promised."
    ),
    "tuples too far in the future were refused": Told(
        "warning", ("stream", "feed", "tuples"), "Beyond `max_ahead`; all of a frame that holds one such tuple."
    ),
    "rows were dropped": Told("warning", ("operator", "reason", "tuples"), "Rows that could not be computed."),
    "the engine rejected an event": Told("warning", ("kind", "reason"), "What came from outside did not fit any more."),
    # -- consumers
    "feeds wait for a slow reader": Told(
        "warning",
        ("query", "reader", "tuples"),
        "The query's streams get no credit until the subscriber or sink has caught up (`on_slow = 'wait'`).",
    ),
    "feeds wait no longer: every reader has caught up": Told("info", ("query",), ""),
    "a subscriber was cut off": Told(
        "warning", ("subscriber", "reason"), "It was too slow (`on_slow = 'disconnect'`)."
    ),
    "a consumer is too slow; its oldest rows are dropped": Told(
        "warning", ("consumer", "tuples"), "`on_slow = 'drop_oldest'`."
    ),
    "a sink was cut off": Told("warning", ("sink", "reason"), "It was too slow (`on_slow = 'disconnect'`)."),
    "a sink cannot write: it waits and tries again": Told(
        "error",
        ("sink", "reason"),
        "A full disk, a permission, a folder that is gone. It holds rows as `on_slow` says.",
    ),
    "a sink writes again": Told("info", ("sink", "seconds", "lost"), "The end of the line above."),
    "a sink cannot write and has stopped": Told("error", ("sink", "reason"), "Drop it and create it again."),
    "a sink could not be finished": Told("error", ("sink", "reason"), "Its file lacks its end."),
    "a sink ended without writing its last rows; they are lost": Told(
        "error", ("sink", "rows"), "It could not write when it was dropped or the server ended."
    ),
    "a sink writes outside the folders that sinks may write to": Told(
        "warning", ("sink", "path"), "At each start: it was created before. Add the folder to `server.allow_paths`."
    ),
    "cut off a row that was written in part": Told(
        "warning", ("path", "bytes"), "A server was killed while a sink wrote."
    ),
    "removed the unfinished files of a sink": Told("warning", ("sink", "files"), "Of a server that was killed."),
    "rows got older than a sink promises": Told(
        "warning",
        ("sink", "reason", "times"),
        "A key's rows, against the sink's `freshness`; the API has the keys.",
    ),
    # -- queries that begin with their history
    "a query goes on from its history": Told(
        "info",
        ("query", "seam_us", "rows_before"),
        "It is live; rows below the seam are history's to compute. The server came by so many: where the look-back "
        "is bounded it worked through the newest part of the past alone.",
    ),
    "a query cannot be given its past": Told("error", ("query", "reason"), "It is dropped again, with its sinks."),
    "the query stays, and gives nothing": Told("warning", ("query", "reason"), "Others read it: drop them, then it."),
    "a query is live, but not all is well": Told("error", ("query", "reason"), "It runs with all of its past."),
    # -- history
    "the history of a stream is behind: its feeds wait": Told("warning", ("stream", "rows"), "The disk is too slow."),
    "the history of a stream has caught up: its feeds go on": Told("info", ("stream",), "The end of the line above."),
    "history cannot be written; it waits and is tried again": Told(
        "error", ("stream", "reason"), "Nothing is lost yet."
    ),
    "history is written again": Told("info", ("stream",), "The end of the line above."),
    "rows of a stream's history could not be written and are lost": Told(
        "error", ("stream", "rows"), "The server ended before the disk took them."
    ),
    "the disk does not take the last rows of history; they are lost": Told("error", (), "A write hangs at the end."),
    "removed what a server had begun to write": Told("warning", ("stream", "files"), "Of a server that was killed."),
    "the server was killed while it wrote history: what had arrived and was in no file yet is missing there": Told(
        "warning", ("stream", "after_seq", "from_us"), "At the next start; the stream's reach says the same."
    ),
    # -- queries and changes
    "a query failed": Told(
        "error", ("query", "reason", "lost", "detail"), "`millrace query resume` lets it begin again."
    ),
    "a join turned": Told(
        "info", ("operator", "numbers"), "To another way of taking rows, with what it was decided by."
    ),
    "an admin was turned away": Told(
        "warning",
        ("status", "times"),
        "Without the token (401, 429), from a page of another site or under a name that is not in `server.hosts` "
        "(403), or with too much (413).",
    ),
    "a request was not taken": Told(
        "warning",
        ("status", "reason", "times"),
        "Not HTTP (400), too slow (408), a head that is too long (431), or too many connections (503).",
    ),
    "a request failed by a mistake of the server": Told("error", (), "A bug of the server's, with its traceback."),
    "chain decided": Told(
        "info",
        ("component", "decisions", "breaks"),
        "The strategy `chain` has split the component anew, by what was measured.",
    ),
    "changed": Told("info", ("change", "name"), "What an admin asked for was done (`request` says by which path)."),
    "a change was refused": Told("warning", ("change", "name", "reason"), "The admin was told the same."),
    "a trial ended": Told("info", ("component", "strategy", "outcome"), "`millrace strategy try`."),
    "a trial broke off": Told("error", ("component",), "A bug of the server's, with its traceback."),
}


def without_data(text: str) -> str:
    """What was wrong, without what a client sent: that is data, and goes back to the client alone."""
    return text.partition(", got ")[0]


class Sparing:
    """Says an event at once, and then now and then, with how much of it there was since.

    What was kept back is told by `flush` as soon as it may be, and all of it at the end, so no number is lost.
    """

    def __init__(self, now_us: Callable[[], int] = monotonic_us) -> None:
        self._now_us = now_us
        self._kept: dict[tuple[str, ...], _Kept] = {}

    def info(self, event: str, by: str, count: int = 1, *, unit: str = "times", **about: Any) -> None:
        self._say("info", event, by, count, unit, about)

    def warning(self, event: str, by: str, count: int = 1, *, unit: str = "times", **about: Any) -> None:
        self._say("warning", event, by, count, unit, about)

    def _say(self, level: Level, event: str, by: str, count: int, unit: str, about: dict[str, Any]) -> None:
        """`by` names the culprit: two of them are told apart, and neither silences the other."""
        kept = self._kept.get((event, by))
        if kept is None:
            if len(self._kept) >= CULPRITS:
                self.flush(everything=True)
            kept = self._kept[event, by] = _Kept(level, unit)
        kept.add(count, about)
        self._tell(event, kept)

    def forget(self) -> None:
        """A server begins: whatever happens is told."""
        self._kept.clear()

    def flush(self, *, everything: bool = False) -> None:
        """Tell what was kept back, where it is time or all of it; forget culprits of whom there is nothing to tell."""
        now_us = self._now_us()
        for (event, by), kept in tuple(self._kept.items()):
            if kept.count and (everything or now_us >= kept.due_us):
                # Whoever speaks while it is told has nothing to do with it.
                Context().run(self._say_what_was_kept, event, kept)
            elif now_us >= kept.due_us:
                del self._kept[event, by]
        if everything:
            self._kept.clear()

    def _tell(self, event: str, kept: _Kept) -> None:
        if self._now_us() >= kept.due_us:
            self._say_what_was_kept(event, kept)

    def _say_what_was_kept(self, event: str, kept: _Kept) -> None:
        count, kept.count, kept.due_us = kept.count, 0, self._now_us() + EVERY_US
        getattr(log, kept.level)(event, **{kept.unit: count}, **kept.about)


class _Kept:
    """What was not told yet: how much, and what was last said of it."""

    def __init__(self, level: Level, unit: str) -> None:
        self.level = level
        self.unit = unit
        self.count = 0
        self.due_us = 0
        self.about: dict[str, Any] = {}

    def add(self, count: int, about: dict[str, Any]) -> None:
        self.count += count
        # Who spoke now is not who speaks when it is told.
        self.about = about if client.get() is None else {**about, "client": client.get()}


# The process has one log, and so one of these.
sparing: Final = Sparing()


def reference() -> str:
    """The table of `docs/logs.md`."""
    lines = ["| event | level | fields | meaning |", "|---|---|---|---|"]
    for event, told in EVENTS.items():
        fields = ", ".join(f"`{field}`" for field in told.fields)
        lines.append(f"| {event} | {told.level} | {fields} | {told.meaning} |")
    return "\n".join(lines) + "\n"
