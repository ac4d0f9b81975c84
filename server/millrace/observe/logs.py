"""The events of the log, and a limit on how often one is repeated.

Rule: an event has one text, one level and fixed field names; all variable parts are fields. The table below is the
log's contract: `docs/logs.md` is printed from it, and a test compares it with the calls. An event that bad rows or many
clients could repeat without end goes through `Sparing`.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from contextvars import Context, ContextVar
from typing import Any, Final, Literal, NamedTuple

import structlog

from millrace.protocol.words import printable
from millrace.run.clock import monotonic_us

log = structlog.get_logger()

Level = Literal["debug", "info", "warning", "error"]

# A repeated event is logged at once, and then at most this often for each cause.
EVERY_US: Final = 10_000_000
# Causes that are tracked. Beyond this number all pending counts are logged, and tracking starts again.
CAUSES: Final = 10_000

# The client whose bytes or request are being processed, the name of its token, and the request. Each line logged
# meanwhile names them.
client: Final[ContextVar[str | None]] = ContextVar("client", default=None)
token: Final[ContextVar[str | None]] = ContextVar("token", default=None)
request: Final[ContextVar[str | None]] = ContextVar("request", default=None)


def add_context(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: adds the client, its token and the request that caused the event, if any."""
    for name, context in (("client", client), ("token", token), ("request", request)):
        if (value := context.get()) is not None:
            event.setdefault(name, value)
    return event


def without_controls(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: names chosen by clients cannot send control characters to a terminal."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = printable(value, lines=name == "exception")
    return event


class LogEvent(NamedTuple):
    """An event. Rate-limited ones have a field with the number of times (or of tuples) since the last line."""

    level: Level
    fields: tuple[str, ...]
    meaning: str


EVENTS: Final[dict[str, LogEvent]] = {
    # -- the server's life
    "ready": LogEvent("info", ("listen", "admin"), "Both ports are open and the catalog is restored."),
    "no data_dir: streams and queries are lost when the server ends": LogEvent(
        "info", (), "Logged once, at the start."
    ),
    "restored from the catalog": LogEvent(
        "info", ("statements",), "The statements of earlier runs are in effect again."
    ),
    "recovered": LogEvent(
        "info",
        ("checkpoint", "steps", "seconds"),
        "The server continues where the one before ended: `steps` of the journal followed the checkpoint.",
    ),
    "replaying": LogEvent(
        "info", ("percent", "steps", "of"), "The start repeats the steps of the journal; every 5 seconds."
    ),
    "stopped while recovering": LogEvent(
        "info", ("reason",), "The server was stopped before it was ready: its next start does the same work."
    ),
    "cut off the unsynced end of the journal": LogEvent(
        "warning",
        ("file", "bytes"),
        "A kill or a power cut has torn the last records; nothing in them was acknowledged.",
    ),
    "the other server has stopped": LogEvent(
        "info", ("server",), "The server that this one has replaced has seen the higher epoch."
    ),
    "superseded.json cannot be written": LogEvent(
        "error",
        ("reason",),
        "The server stops. Its next start serves clients until it is shown the epoch again.",
    ),
    "another server has taken over: this one stops": LogEvent(
        "error",
        ("epoch", "higher"),
        "A standby was promoted, so this server refuses all clients and does not start again.",
    ),
    "the start waits for the standby": LogEvent(
        "warning", ("reason",), "The server depends on its standby (`[standby] lease`, `confirm`) and has not heard it."
    ),
    "no standby has followed this server yet: it works without one until one does": LogEvent(
        "warning", (), "`[standby] lease` and `confirm` have no effect so far."
    ),
    "this server works without a standby from now on, until one follows": LogEvent(
        "warning", ("reason",), "An operator has said so with `millrace promote --alone`."
    ),
    "made a checkpoint": LogEvent(
        "info",
        ("steps", "pause_seconds", "bytes", "written_bytes"),
        "A start from here repeats no step up to this one. The loop waited so long; other bytes had not changed.",
    ),
    "a checkpoint could not be made; the journal keeps its records": LogEvent(
        "error", ("reason",), "It is tried again; the next start repeats more steps."
    ),
    "a checkpoint cannot be read": LogEvent(
        "error", ("reason",), "It is damaged. The server starts from the one before, if there is one."
    ),
    "memory is short: feeds wait": LogEvent(
        "warning",
        ("used_bytes", "budget_bytes"),
        "`server.memory` is nearly used up: feeds get no credit for seconds at a time.",
    ),
    "memory is short: rows were dropped": LogEvent(
        "warning",
        ("retained", "waiting", "closed"),
        "Retained rows, rows that waited for slow readers, and connections with the largest buffers.",
    ),
    "memory is used up: the query that has grown most fails": LogEvent(
        "error",
        ("query", "bytes", "grown_bytes", "seconds", "used_bytes", "budget_bytes"),
        "`millrace query resume` starts it again with empty state.",
    ),
    "memory is used up, and no query holds much of it: feeds wait": LogEvent(
        "error", ("used_bytes", "budget_bytes"), "`millrace top` and the metrics show what holds it."
    ),
    "memory suffices again": LogEvent("info", ("used_bytes", "budget_bytes"), "Feeds continue."),
    "the memory budget is hardly more than the program needs": LogEvent(
        "warning", ("used_bytes", "budget_bytes"), "Feeds will wait, and queries fail: raise `server.memory`."
    ),
    "the server is overloaded": LogEvent(
        "warning",
        ("mode", "streams"),
        "Feeds of these streams have waited for credit for seconds: `millrace doctor` says why.",
    ),
    "the server is no longer overloaded": LogEvent("info", (), "Feeds get credit as they use it."),
    "the follower was stopped: memory is short": LogEvent(
        "warning", (), "The server makes the next checkpoint itself."
    ),
    "started a follower of the journal": LogEvent(
        "info", ("pid",), "A process of low priority takes the same steps, and writes the checkpoints."
    ),
    "the follower failed; the server makes the next checkpoint itself": LogEvent(
        "warning", ("reason",), "It ended, or lagged too much. The next checkpoint starts another one."
    ),
    "the follower cannot be started; the server makes its checkpoints itself": LogEvent(
        "warning", ("reason",), "The system refused another process. It is tried again after the next checkpoint."
    ),
    "a replay of the journal leads to another state than the server's": LogEvent(
        "error",
        ("step", "operators"),
        "A restart could emit other rows: a user function is not deterministic, or this is a bug in the server.",
    ),
    "a standby copies the data directory": LogEvent("info", ("standby",), "It does so once, before it follows."),
    "a standby follows this server": LogEvent(
        "info", ("standby", "after"), "It has the records up to this one, and gets each further one."
    ),
    "a standby follows this server no more": LogEvent(
        "warning", ("standby", "has"), "Its connection has ended. Its records are kept, up to `standby.keep`."
    ),
    "a standby lacks more records than are kept for it: it has to copy the data directory again": LogEvent(
        "error", ("standby", "lacks"), "Start it with an empty data directory, or raise `standby.keep`."
    ),
    "a standby did not take the last records in time": LogEvent(
        "warning", (), "This server has ended; its next start sends the rest."
    ),
    "copying the data directory of the server to follow": LogEvent(
        "info", ("server",), "This standby has an empty data directory."
    ),
    "copied the data directory": LogEvent(
        "info", ("files", "bytes", "records"), "Every file was compared with its checksum."
    ),
    "following": LogEvent("info", ("server", "listen", "admin"), "This server is a standby: it shows its state only."),
    "connected to the server that this one follows": LogEvent(
        "info", ("server", "after"), "It sends the records after this one."
    ),
    "not connected to the server that this one follows; trying again": LogEvent(
        "warning", ("reason",), "This standby keeps trying. `millrace promote` makes it the primary."
    ),
    "the records of the other server cannot be replayed: this one stops": LogEvent(
        "error", ("reason",), "The versions differ, or a user function is missing here."
    ),
    "being promoted: replaying what was received": LogEvent("warning", ("records",), "Clients are refused until then."),
    "being promoted: waiting until the lease of the other server has expired": LogEvent(
        "warning", ("seconds",), "The other server could still emit until then."
    ),
    "promoted: this server is the primary": LogEvent(
        "warning", ("epoch", "after", "missing_steps"), "Steps that the other server had announced may be missing."
    ),
    "this data directory was promoted: standby.follow is ignored": LogEvent(
        "warning", ("follow",), "Remove the setting: this server follows no other one."
    ),
    "the journal's disk is full: feeds wait and changes are refused": LogEvent(
        "error", ("reason",), "Make room in the data directory. Readers are served meanwhile."
    ),
    "the disk fills: the oldest of the past was removed": LogEvent(
        "warning",
        ("bytes", "now_from"),
        "`replay` and `why --at` now reach back to `now_from`. The past goes before anything waits for room.",
    ),
    "the past cannot be removed": LogEvent(
        "error", ("reason",), "The disk is full, and an old checkpoint cannot be removed."
    ),
    "the journal's disk has room again: feeds continue": LogEvent("info", (), "The server takes steps again."),
    "the journal cannot be written: the server stops, and its next start reads what is on the disk": LogEvent(
        "error", ("reason",), "A write or a sync failed. Look at the disk before you start the server again."
    ),
    "a query was still reading its history: it is dropped, create it again": LogEvent(
        "warning", ("query",), "The server ended while the query had not reached the present."
    ),
    "the history of a stream lacks rows": LogEvent(
        "error", ("stream", "first", "rows"), "Files of its history were removed since the last checkpoint."
    ),
    "restarted without operator state": LogEvent(
        "warning",
        ("query", "meaning"),
        "A restored query lost its windows, joins or totals; `meaning` describes the effect on its first rows.",
    ),
    "the previous server did not end cleanly": LogEvent(
        "warning", ("text",), "It was killed or crashed; `text` has the time and the possible losses."
    ),
    "the marker of the previous server cannot be read": LogEvent(
        "warning", ("path", "reason"), "It is unknown whether the previous server ended cleanly."
    ),
    "a query is planned again from its statement": LogEvent(
        "warning",
        ("reason", "statement"),
        "The plan in the catalog cannot be used, for example because a newer Millrace wrote it. The query runs the "
        "plan of this version; `millrace explain` shows it.",
    ),
    "cannot restore a decision of the catalog": LogEvent(
        "warning", ("reason",), "A strategy, weight or pause of an earlier run could not be restored."
    ),
    "the catalog cannot be written": LogEvent(
        "error", ("reason",), "Changes are in effect, but are lost at the next start. The server retries every second."
    ),
    "the catalog can be written again": LogEvent("info", (), "The problem of the previous row is over."),
    "the seams of queries cannot be written": LogEvent(
        "error",
        ("path", "reason"),
        "After a restart, `--then-live` does not know where the history of a query ends.",
    ),
    "addresses.json cannot be removed": LogEvent(
        "warning", ("path", "reason"), "The server still ends; the file keeps its old addresses."
    ),
    "a shutdown step failed; the others continue": LogEvent(
        "error", ("part", "reason"), "The server saves what it can, and ends with exit code 1."
    ),
    "a change did not finish in time; after a restart it may be missing": LogEvent(
        "warning", (), "The server stopped waiting for a change of the graph; check the queries after the next start."
    ),
    "a temporary query could not be dropped": LogEvent(
        "warning", ("query", "reason"), "The query of a SELECT stays until `DROP QUERY` or a restart removes it."
    ),
    "draining": LogEvent("info", ("at_most_seconds",), "The server is stopping in good order."),
    "draining took too long; queued rows are lost": LogEvent(
        "warning", (), "Raise `server.drain_seconds`, or find the slow consumer."
    ),
    "a sink did not accept its last rows; they are lost": LogEvent(
        "error", (), "A write hangs; the server ends without it."
    ),
    "ended": LogEvent("info", (), "The last line."),
    "internal error: the server is stopping": LogEvent("error", ("task",), "A bug in the server, with its traceback."),
    "cannot notify the service manager": LogEvent(
        "warning", ("message", "reason"), "systemd's socket did not accept the message."
    ),
    # -- clocks
    "the system clock jumped forward; the server clock follows": LogEvent(
        "warning", ("seconds",), "The clock of the machine was set."
    ),
    "the system clock was set back; the server clock slows down until both agree": LogEvent(
        "warning", ("seconds",), "The clock of the machine was set; the server's time never goes back."
    ),
    "the system clock and the server clock agree again": LogEvent(
        "info", (), "The problem of the previous row is over."
    ),
    # -- clients
    "a client connected": LogEvent("debug", (), "A TCP connection."),
    "a client left": LogEvent("debug", ("reason",), "A TCP connection ended; `reason` is set if it broke."),
    "refused a connection: the limit is reached": LogEvent("warning", ("times",), "More than `limits.connections`."),
    "closed an unauthenticated connection to admit newer ones": LogEvent(
        "warning", ("times",), "More than `limits.unauthenticated_connections`."
    ),
    "a client was disconnected": LogEvent(
        "warning",
        ("code", "reason", "times"),
        "It was silent, too slow, or did not read; `millrace_connections_refused_total` counts these by reason.",
    ),
    "internal error in a connection": LogEvent("error", (), "A bug in the server, with its traceback."),
    "a client used the wrong port": LogEvent("warning", ("times",), "HTTP on the port for streams, or the reverse."),
    "a client sent a wrong token": LogEvent(
        "warning",
        ("port", "address", "times"),
        "At most one line in ten seconds; the metrics `millrace_wrong_tokens_total` and `millrace_auth_failures_total` "
        "count each.",
    ),
    "closed a connection: its token is no longer valid": LogEvent(
        "info", ("token",), "The token was revoked or has expired, or the server now requires one."
    ),
    "created the first tokens": LogEvent(
        "info", ("admin", "scrape"), "The data directory is new: clients of both ports must send a token."
    ),
    "this data directory is of an earlier version: no token is required": LogEvent(
        "warning", (), "`millrace token create admin admin` creates one. `server.auth` decides explicitly."
    ),
    "the server cannot announce itself to programs": LogEvent(
        "warning", ("path", "reason"), "Commands on this machine need `--token-file`; everything else works."
    ),
    "read the tokens again": LogEvent(
        "info", ("tokens",), "Their file has changed, or SIGHUP or the API asked for it."
    ),
    "read the certificates again": LogEvent(
        "info", (), "Their files have changed; later connections use the new ones."
    ),
    "the certificates cannot be read: the earlier ones are still used": LogEvent(
        "error", ("reason",), "A certificate and its key do not fit, for example while they are being replaced."
    ),
    "the tokens cannot be read: the earlier ones are still valid": LogEvent(
        "error", ("reason",), "Repair or restore the file: the server looks at it again when it changes."
    ),
    "a client violated the protocol": LogEvent("warning", ("code", "reason", "times"), "Its connection was closed."),
    "a client was refused": LogEvent(
        "warning",
        ("code", "reason", "times"),
        "A frame, a line or a request was refused; the client received the same text.",
    ),
    "a feed opened": LogEvent("info", ("stream", "feed", "times"), "A client feeds the stream."),
    "a feed ended": LogEvent(
        "info", ("stream", "feed", "lost", "times"), "`lost` is true if its connection broke; then it may come back."
    ),
    "a subscription started": LogEvent("info", ("query", "times"), "A client reads the query's rows."),
    "a subscription ended": LogEvent(
        "info", ("query", "times"), "The client left or was disconnected, or the query ended."
    ),
    "requested a timestamp": LogEvent(
        "debug", ("stream", "feed", "need_us"), "An operator waits for this feed's time."
    ),
    "a request for a timestamp ended": LogEvent(
        "debug", ("stream", "feed", "outcome", "took_us"), "`outcome` is as in the metrics."
    ),
    # -- tuples
    "tuples arrived late": LogEvent(
        "warning", ("stream", "feed", "tuples"), "They are in the stream's `.late` side stream."
    ),
    "a client sent tuples older than its punctuation; they are late": LogEvent(
        "warning", ("stream", "feed", "tuples"), "It had promised to send no such tuples."
    ),
    "tuples too far in the future were refused": LogEvent(
        "warning",
        ("stream", "feed", "tuples"),
        "Beyond `max_ahead`. A frame with one such tuple is refused as a whole.",
    ),
    "forgot the position of a producer": LogEvent(
        "info",
        ("stream", "feed"),
        "It has sent nothing for longer than `limits.producers_kept_for`, or the stream has more producers than "
        "`limits.producers_kept`. If it returns, it starts at the number that it names.",
    ),
    "rows were dropped": LogEvent("warning", ("operator", "reason", "tuples"), "Rows that could not be computed."),
    "the engine rejected an event": LogEvent(
        "warning", ("kind", "reason"), "It was valid when it arrived, and no longer when its turn came."
    ),
    # -- consumers
    "feeds wait for a slow reader": LogEvent(
        "warning",
        ("query", "reader", "tuples"),
        "The query's streams get no credit until the subscriber or sink has caught up (`on_slow = 'wait'`).",
    ),
    "feeds continue: every reader has caught up": LogEvent(
        "info", ("query",), "The problem of the previous row is over."
    ),
    "disconnected a slow subscriber": LogEvent(
        "warning", ("subscriber", "reason"), "It was too slow (`on_slow = 'disconnect'`)."
    ),
    "a consumer is too slow; its oldest rows are dropped": LogEvent(
        "warning", ("consumer", "tuples"), "`on_slow = 'drop_oldest'`."
    ),
    "stopped a slow sink": LogEvent("warning", ("sink", "reason"), "It was too slow (`on_slow = 'disconnect'`)."),
    "a sink cannot write: it waits and retries": LogEvent(
        "error",
        ("sink", "reason"),
        "A full disk, a permission, or a missing folder. `on_slow` decides how many rows it holds.",
    ),
    "a sink writes again": LogEvent("info", ("sink", "seconds", "lost"), "The problem of the previous row is over."),
    "a sink cannot write and has stopped": LogEvent(
        "error", ("sink", "reason"), "The reason says what to do; else drop it and create it again."
    ),
    "a sink could not complete its file": LogEvent("error", ("sink", "reason"), "The end of its file is missing."),
    "a sink ended without writing its last rows; they are lost": LogEvent(
        "error", ("sink", "rows"), "It could not write when it was dropped or the server ended."
    ),
    "a sink writes outside the folders that sinks may write to": LogEvent(
        "warning",
        ("sink", "path"),
        "Logged at each start: the sink is older than the rule. Add the folder to `server.allow_paths`.",
    ),
    "removed a partially written row": LogEvent(
        "warning", ("path", "bytes"), "A server was killed while a sink was writing."
    ),
    "removed the unfinished files of a sink": LogEvent("warning", ("sink", "files"), "A killed server left them."),
    "another program changed the file of a sink": LogEvent(
        "error", ("sink", "reason"), "The sink continues with the next row. `/-/healthy` shows it for an hour."
    ),
    "rows that a sink had not written are no longer retained": LogEvent(
        "error", ("sink", "rows", "first"), "At a start. The query's `retain` was too short for the sink's delay."
    ),
    "rows became older than a sink's freshness": LogEvent(
        "warning",
        ("sink", "reason", "times"),
        "The rows of some keys; the API lists the keys.",
    ),
    # -- rows of queries on disk
    "results cannot be written: the server retries": LogEvent(
        "error", ("reason",), "Rows wait in memory; when too many do, feeds wait. No row is lost."
    ),
    "results are written again": LogEvent("info", ("seconds",), "The problem of the previous row is over."),
    "retained rows cannot be made durable: the server stops, and its next start emits them again": LogEvent(
        "error", ("reason",), "An fsync failed: the disk may have lost what was written before."
    ),
    "retained rows are damaged; subscribers resume after them": LogEvent(
        "error", ("reason", "rows"), "A checksum or a read failed. Nobody receives a wrong row."
    ),
    "retained rows are missing; subscribers resume after them": LogEvent(
        "error", ("folder", "first", "following"), "A file was removed from the folder."
    ),
    "retained rows cannot be read: the server retries": LogEvent(
        "warning", ("consumer", "reason"), "The consumer continues when the disk can be read again."
    ),
    "removed a torn file of retained rows": LogEvent(
        "warning", ("path", "bytes"), "A server was killed while it started the file."
    ),
    "removed a torn record of retained rows": LogEvent(
        "warning", ("path", "bytes"), "A server was killed while it was writing."
    ),
    "removed retained rows of lost steps": LogEvent(
        "warning", ("folder", "rows"), "A power cut lost the steps that had emitted them."
    ),
    "removed retained rows of queries that are gone": LogEvent("info", ("histories",), "At the start."),
    "the last retained rows could not be written": LogEvent("error", (), "A write hangs during shutdown."),
    # -- queries that start with their history
    "a query continues live after its history": LogEvent(
        "info",
        ("query", "seam_us", "rows_before"),
        "It is live. Rows before the seam come from history, and `rows_before` of them are already computed. With a "
        "bounded look-back the server processed only the newest part of the history.",
    ),
    "a query could not process its history": LogEvent(
        "error", ("query", "reason"), "The server drops it again, with its sinks."
    ),
    "a query could not be dropped and emits no rows": LogEvent(
        "warning", ("query", "reason"), "Other queries read it: drop these first."
    ),
    "a query is live, but switching from history had an error": LogEvent(
        "error", ("query", "reason"), "It runs with its whole history."
    ),
    # -- history
    "removed files of history that a killed server had not made all of": LogEvent(
        "warning", ("files",), "The server makes all of them again, with the same rows."
    ),
    "the history of a stream lags: its feeds wait": LogEvent("warning", ("stream", "rows"), "The disk is too slow."),
    "the history of a stream has caught up: its feeds continue": LogEvent(
        "info", ("stream",), "The problem of the previous row is over."
    ),
    "history cannot be written; the server retries": LogEvent("error", ("stream", "reason"), "No rows are lost yet."),
    "history is written again": LogEvent("info", ("stream",), "The problem of the previous row is over."),
    "rows of a stream's history could not be written and are lost": LogEvent(
        "error", ("stream", "rows"), "The server ended before the disk accepted them."
    ),
    "the last rows of history could not be written; they are lost": LogEvent(
        "error", (), "A write hangs during shutdown."
    ),
    "removed unfinished files of history": LogEvent("warning", ("stream", "files"), "A killed server left them."),
    "the server was killed while it wrote history: unwritten rows are missing there": LogEvent(
        "warning",
        ("stream", "after_seq", "from_us"),
        "Logged at the next start; the stream's archive reports the same gap.",
    ),
    # -- queries and changes
    "a query failed": LogEvent(
        "error", ("query", "reason", "lost", "detail"), "`millrace query resume` starts it again."
    ),
    "a join switched its order": LogEvent(
        "info", ("operator", "numbers"), "`numbers` are the measurements that decided it."
    ),
    "an aggregate changed what it keeps": LogEvent(
        "info", ("operator", "numbers"), "`numbers` are what it keeps now, and the counts that decided it."
    ),
    "a queue turned with the load": LogEvent(
        "info",
        ("operator", "input", "mode", "load", "arrived", "capacity"),
        "A `LATEST USING AUTO` edge supersedes older rows from now on (`update`) or keeps all (`append`). `arrived` "
        "and `capacity` are tuples per second.",
    ),
    "refused an admin request": LogEvent(
        "warning",
        ("status", "times"),
        "Without the token (401, 429), from a page of another site or with a host name that is not in `server.hosts` "
        "(403), or with too large a body (413).",
    ),
    "refused an HTTP request": LogEvent(
        "warning",
        ("status", "reason", "times"),
        "Not HTTP (400), too slow (408), too long a head (431), or too many connections (503).",
    ),
    "internal error in a request": LogEvent("error", (), "A bug in the server, with its traceback."),
    "chain updated its segments": LogEvent(
        "info",
        ("component", "decisions", "breaks"),
        "The strategy `chain` split the component again, based on new measurements.",
    ),
    "changed": LogEvent(
        "info",
        ("change", "name", "statement"),
        "A change is in effect; `client` and `token` say whose it is, and `request` has the path.",
    ),
    "a change was rolled back": LogEvent(
        "error",
        ("change", "name", "statement", "reason"),
        "The engine refused what its trial had accepted, an internal error: everything is as it was before the change.",
    ),
    "a change was refused": LogEvent(
        "info",
        ("change", "name", "statement", "reason"),
        "A statement or a name has a mistake, for example. The administrator received the whole text.",
    ),
    "a trial ended": LogEvent(
        "info", ("component", "strategy", "outcome"), "A trial of `millrace strategy try` ended."
    ),
    "internal error in a trial": LogEvent("error", ("component",), "A bug in the server, with its traceback."),
}


def without_data(text: str) -> str:
    """The reason without the value that a client sent: that is data, and only the client receives it."""
    return text.partition(", got ")[0]


class Sparing:
    """Logs an event at once, and then at intervals with the number of repetitions.

    `flush` logs pending counts when they are due, and all of them at the end, so no count is lost.
    """

    def __init__(self, now_us: Callable[[], int] = monotonic_us) -> None:
        self._now_us = now_us
        self._pending: dict[tuple[str, ...], _Pending] = {}

    def info(self, event: str, by: str, count: int = 1, *, unit: str = "times", **about: Any) -> None:
        self._add("info", event, by, count, unit, about)

    def warning(self, event: str, by: str, count: int = 1, *, unit: str = "times", **about: Any) -> None:
        self._add("warning", event, by, count, unit, about)

    def _add(self, level: Level, event: str, by: str, count: int, unit: str, about: dict[str, Any]) -> None:
        """`by` names the cause: events of different causes are counted separately."""
        pending = self._pending.get((event, by))
        if pending is None:
            if len(self._pending) >= CAUSES:
                self.flush(everything=True)
            pending = self._pending[event, by] = _Pending(level, unit)
        pending.add(count, about)
        self._log_if_due(event, pending)

    def forget(self) -> None:
        """Start without pending counts, as a new server does."""
        self._pending.clear()

    def flush(self, *, everything: bool = False) -> None:
        """Log the pending counts that are due, or all; drop causes without pending counts."""
        now_us = self._now_us()
        for (event, by), pending in tuple(self._pending.items()):
            if pending.count and (everything or now_us >= pending.due_us):
                # The present client did not cause this event.
                Context().run(self._log_pending, event, pending)
            elif now_us >= pending.due_us:
                del self._pending[event, by]
        if everything:
            self._pending.clear()

    def _log_if_due(self, event: str, pending: _Pending) -> None:
        if self._now_us() >= pending.due_us:
            self._log_pending(event, pending)

    def _log_pending(self, event: str, pending: _Pending) -> None:
        count, pending.count, pending.due_us = pending.count, 0, self._now_us() + EVERY_US
        getattr(log, pending.level)(event, **{pending.unit: count}, **pending.about)


class _Pending:
    """Repetitions that are not logged yet: their number, and the newest fields."""

    def __init__(self, level: Level, unit: str) -> None:
        self.level = level
        self.unit = unit
        self.count = 0
        self.due_us = 0
        self.about: dict[str, Any] = {}

    def add(self, count: int, about: dict[str, Any]) -> None:
        self.count += count
        # Who spoke now is not who speaks when it is entry.
        self.about = about if client.get() is None else {**about, "client": client.get()}


# One per process, as the log is.
sparing: Final = Sparing()


def reference() -> str:
    """The table of `docs/logs.md`."""
    lines = ["| event | level | fields | meaning |", "|---|---|---|---|"]
    for event, entry in EVENTS.items():
        fields = ", ".join(f"`{field}`" for field in entry.fields)
        lines.append(f"| {event} | {entry.level} | {fields} | {entry.meaning} |")
    return "\n".join(lines) + "\n"
