"""The advice of `millrace doctor` and the console: a function per possible problem, computed from the API's answers.

Rule: a rule reads a snapshot and nothing else, so that a test needs only views. Its advice is a sentence with
the numbers it saw, and the one command that would help. A rule that cannot decide stays silent, because people stop
reading advice that was wrong once. The bounds below are where a user would start to care.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.protocol.admin.operators import OperatorView
from millrace.protocol.admin.queries import QueryView, SinkView, Why
from millrace.protocol.admin.server import Advice, ServerView
from millrace.protocol.admin.streams import StreamView
from millrace.protocol.timestamps import format_timestamp
from millrace.protocol.units import UNITS, LikelyUnit, in_century, likely_unit
from millrace.protocol.words import counted, readable_bytes

SECOND_US: Final = 1_000_000
# A reader of rows notices a delay of this length.
WAIT_US: Final = 2 * SECOND_US
# A sink with this lag does not catch up in its next write.
LAG_US: Final = 5 * SECOND_US
# One tuple of a thousand: below that a late tuple is an accident, above it a habit.
LATE_SHARE: Final = 0.001
# Tuples on one append edge of an update stream. An operator processes about a thousand tuples per millisecond, so this
# is more than a few milliseconds of work.
QUEUED_TUPLES: Final = 10_000
# The default of max_ahead. Rows in order of time are delayed by the disorder, so few users want a day of it.
DAY_US: Final = 86_400 * SECOND_US
MOST_DISORDER_US: Final = DAY_US
# Seconds and milliseconds since 1970, read as microseconds, are this near to it.
NEAR_1970_US: Final = 90 * DAY_US
# A join that switches this often within a minute gains nothing by it.
FLAPS: Final = 4
FLAP_US: Final = 60 * SECOND_US
# Time services keep clocks within milliseconds.
CLOCK_US: Final = SECOND_US
# Users notice rows that a restart lost within the first hours; later the advice would be noise.
RESTART_US: Final = 24 * 3600 * SECOND_US
# State near `max_state` stops the query.
STATE_SHARE: Final = 0.8
# An engine that works for so much of the time has no room for more.
BUSY: Final = 0.8
# The parts of the memory in words.
PARTS: Final[Mapping[str, str]] = {
    "program": "the program itself",
    "state": "the state of queries",
    "queues": "queued tuples",
    "results": "retained rows",
    "readers": "rows that wait for subscribers and sinks",
    "buffers": "the buffers of connections",
    "journal": "records that wait for the disk",
    "history": "rows that wait for their history",
    "follower": "the follower of the journal",
    "other": "what no part explains, such as free pages of the allocator",
}
# The server waits so long for a checkpoint of its follower.
FOLLOWER_SECONDS: Final = 300
# Sockets leave this many descriptors for files, and a process that uses this share of its limit is close to it.
SPARE_DESCRIPTORS: Final = 64
DESCRIPTOR_SHARE: Final = 0.8
# The reasons of `why` for rows that wait for a silent feed.
SILENT: Final = ("asked", "no_answer", "no_feed", "ets_none", "no_first_tuple", "answered_below")
# The other reasons why an operator waits. Each ends by itself; a rule reports the long ones.
LASTING: Final = ("skew", "sending", "clock_behind", "periodic", "lull", "unread", "grace", "clock")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Answers of the API: each field is the answer of the path that it is named after."""

    server: ServerView
    configuration: Mapping[str, Any] = field(default_factory=dict)
    streams: Sequence[StreamView] = ()
    queries: Sequence[QueryView] = ()
    sinks: Sequence[SinkView] = ()
    operators: Sequence[OperatorView] = ()
    whys: Mapping[str, Why] = field(default_factory=dict)
    own_clock_us: int | None = None  # of the machine that runs the command


def advise(snapshot: Snapshot) -> list[Advice]:
    """All advice, in the order of RULES: stopped items first, future risks last."""
    return [advice for rule in RULES for advice in rule(snapshot)]


# -- stopped items -----------------------------------------------------------------------------------------------------


def stopped_queries(seen: Snapshot) -> Iterator[Advice]:
    for query in seen.queries:
        if query.state == "running":
            continue
        name, reason = query.name, query.reason
        if query.state == "failed":
            yield Advice("query_failed", name, f"Query {name} failed: {_sentence(reason)}", f"millrace why {name}")
        else:
            skipped = f" It has skipped {counted(query.skipped, 'tuple')} so far." if query.skipped else ""
            text = f"Query {name} is paused: {_sentence(reason)}{skipped}"
            yield Advice("query_paused", name, text, f"millrace query resume {name}")


def failed_sinks(seen: Snapshot) -> Iterator[Advice]:
    for sink in seen.sinks:
        if sink.state == "failed":
            text = f"Sink {sink.name} failed and writes no more rows: {_sentence(sink.reason)}"
            yield Advice("sink_failed", sink.name, text, f"millrace sink drop {sink.name}")


def waiting_sinks(seen: Snapshot) -> Iterator[Advice]:
    """Sinks that cannot write and retry: an administrator frees disk space, or restores a permission."""
    for sink in seen.sinks:
        if sink.state == "waiting":
            name, lost = sink.name, counted(sink.dropped, "row")
            waited = _seconds(seen.server.now_us - (sink.since_us or seen.server.now_us))
            text = (
                f"Sink {name} has not been able to write to {sink.path or 'the standard output'} for {waited}: "
                f"{_sentence(sink.reason)} {_waiting(sink.held + sink.unfinished, 'row')} for it, and it has "
                f"lost {lost}. It retries by itself and resumes when the cause is fixed."
            )
            yield Advice("sink_waiting", name, text, f"millrace sink show {name}")


def outside_sinks(seen: Snapshot) -> Iterator[Advice]:
    for sink in seen.sinks:
        if sink.outside:
            name = sink.name
            text = (
                f"Sink {name} writes to {sink.path}, outside the folders that sinks may write to. It was created "
                "when this was allowed, and cannot be created there again. Add its folder to server.allow_paths, or "
                "drop it."
            )
            yield Advice("sink_outside", name, text, "millrace config check --config FILE")


def standby_gone(seen: Snapshot) -> Iterator[Advice]:
    """A primary whose standby could not take over, and a standby that could not."""
    for one in seen.server.standbys:
        if one.left:
            text = (
                f"The standby at {one.peer} lacks {counted(one.lag_steps, 'step')}, more than standby.keep keeps for "
                "it. It has to copy the data directory again: start it with an empty one."
            )
            yield Advice("standby_gone", "server", text, "millrace standby")
        elif not (one.connected or one.copying):
            silent = "" if one.heard_us is None else f" for {_seconds(seen.server.now_us - one.heard_us)}"
            text = (
                f"The standby at {one.peer} has not been heard{silent} and lacks {counted(one.lag_steps, 'step')}: if "
                "this machine fails now, they are lost. Its records are kept up to standby.keep."
            )
            yield Advice("standby_gone", "server", text, "millrace standby")
    follows = seen.server.follows
    if follows is not None and not follows.connected:
        text = (
            f"This standby is not connected to {follows.server}: {_sentence(follows.error or 'it connects')} What that "
            "server does meanwhile is missing here if this one is promoted."
        )
        yield Advice("standby_gone", "server", text, "millrace standby")


def catalog_unwritten(seen: Snapshot) -> Iterator[Advice]:
    """A copy of the definitions that is out of date."""
    error = seen.server.catalog_error
    if error is not None:
        text = (
            f"The server cannot update catalog.sqlite: {_sentence(error)} Changes are safe in the journal, and "
            "a restart keeps them; only an earlier version would start without them. The server retries every second."
        )
        yield Advice("catalog_unwritten", "server", text, "millrace export > catalog.sql")


def journal_full(seen: Snapshot) -> Iterator[Advice]:
    """No room for what happens: the feeds wait."""
    journal, folder = seen.server.journal, seen.server.data_dir
    if journal is not None and journal.full is not None and folder is not None:
        text = (
            f"The disk of the data directory {folder} has been full for "
            f"{_seconds(seen.server.now_us - journal.full.since_us)}: {_sentence(journal.full.reason)} Feeds wait and "
            "changes are refused; readers are served. The server continues by itself when there is room."
        )
        yield Advice("journal_full", "server", text, f"df -h {shlex.quote(folder)}")


def checkpoint_failed(seen: Snapshot) -> Iterator[Advice]:
    """The journal grows, because nothing replaces its oldest records."""
    journal, folder = seen.server.journal, seen.server.data_dir
    if journal is not None and journal.checkpoint.error is not None and folder is not None:
        text = (
            f"The server cannot make a checkpoint: {_sentence(journal.checkpoint.error)} The journal keeps all records "
            f"until it can, and a start would replay {counted(journal.checkpoint.steps_since, 'step')}."
        )
        yield Advice("checkpoint_failed", "server", text, f"df -h {shlex.quote(folder)}")


def follower_differs(seen: Snapshot) -> Iterator[Advice]:
    """What the server's own proof has refuted: a replay that leads to another state."""
    journal = seen.server.journal
    found = None if journal is None else journal.follower.difference
    if found is not None:
        first, *others = found.operators
        more = f" and {counted(len(others), 'other operator')}" if others else ""
        text = (
            f"A replay of the journal led to another state of {first}{more} after step {found.lsn}: a restart could "
            "emit other rows than the server has. A user function does this if it returns different results and is not "
            "declared so; anything else is a bug in Millrace or a fault of the machine."
        )
        yield Advice("follower_differs", "server", text, f"millrace journal show --from {found.lsn} --limit 1")


def follower_behind(seen: Snapshot) -> Iterator[Advice]:
    """A follower that gets too little of the processor to write checkpoints."""
    journal = seen.server.journal
    if journal is not None and journal.follower.running and journal.follower.lag_seconds > FOLLOWER_SECONDS:
        follower = journal.follower
        text = (
            f"The follower of the journal is {_seconds(int(follower.lag_seconds * SECOND_US))} and "
            f"{counted(follower.lag_steps, 'step')} behind the server, which makes checkpoints itself meanwhile. "
            "It runs at the lowest priority: another processor would help, or journal.follower = 'off'."
        )
        yield Advice("follower_behind", "server", text, f"top -p {follower.pid}")


def unclean_end(seen: Snapshot) -> Iterator[Advice]:
    event = seen.server.unclean_end
    if event is not None and seen.server.now_us - event.found_us < RESTART_US:
        yield Advice("unclean_end", "server", event.text, "millrace stream list")


def restarted_queries(seen: Snapshot) -> Iterator[Advice]:
    for query in seen.queries:
        restarted = query.restarted
        if restarted is not None and seen.server.now_us - restarted.at_us < RESTART_US:
            name, at = query.name, format_timestamp(restarted.at_us // SECOND_US * SECOND_US)
            text = f"Query {name} {restarted.text}. It started again at {at}."
            yield Advice("restarted", name, text, f"millrace query show {name}")


# -- waiting rows ------------------------------------------------------------------------------------------------------


def no_max_skew(seen: Snapshot) -> Iterator[Advice]:
    """One piece of advice per stream, however many queries wait for it."""
    waiting: dict[str, list[Why]] = {}
    for why in seen.whys.values():
        if why.reason == "silent" and why.stream is not None and _waits_long(why, seen):
            waiting.setdefault(why.stream, []).append(why)
    for stream, whys in waiting.items():
        text = (
            f"Stream {stream} is silent and has no max_skew: {_rows(whys, seen)}. Set max_skew to the largest error of "
            "its clock, and the server's clock moves its time forward. Or let its client answer requests for its time."
        )
        try_ = f"millrace sql \"ALTER STREAM {stream} SET (max_skew = '2 seconds')\""
        yield Advice("no_max_skew", stream, text, try_)


def silent_feeds(seen: Snapshot) -> Iterator[Advice]:
    waiting: dict[tuple[str, str | None], list[Why]] = {}
    for why in seen.whys.values():
        if why.reason in SILENT and why.stream is not None and _waits_long(why, seen):
            waiting.setdefault((why.stream, why.feed), []).append(why)
    for (stream, feed), whys in waiting.items():
        reason = whys[0].reason
        who = {
            "no_feed": f"No client is feeding stream {stream}",
            "ets_none": f"Stream {stream} is silent, and the server never requests its time (ets = 'none')",
        }.get(reason, f"Feed {feed} of stream {stream} is silent and does not report its time")
        text = f"{who}: {_rows(whys, seen)}."
        try_ = {
            "no_feed": whys[0].try_ or f"millrace feed {stream} FILE",
            "ets_none": f"millrace sql \"ALTER STREAM {stream} SET (ets = 'on-demand')\"",
        }.get(reason, f"millrace stream show {stream}")
        yield Advice("feed_silent", stream, text, try_)


def long_waits(seen: Snapshot) -> Iterator[Advice]:
    """Rows that are delayed for long; the text of `why` has the reason."""
    streams = {stream.name: stream for stream in seen.streams}
    waiting: dict[tuple[str, str | None], list[tuple[str, Why]]] = {}
    for query, why in seen.whys.items():
        if why.reason in LASTING and (_waits_long(why, seen) or _each_waits_long(why, streams)):
            waiting.setdefault((why.reason, why.stream), []).append((query, why))
    for (reason, stream), waits in waiting.items():
        query, why = waits[0]
        text = why.text
        if others := ", ".join(name for name, _ in waits[1:]):
            text += f" The same applies to {others}."
        try_ = why.try_ or (f"millrace query show {query}" if stream is None else f"millrace stream show {stream}")
        found = streams.get(stream or "")
        skew_us = (None if found is None else found.max_skew_us) or 0
        if reason == "skew" and skew_us > WAIT_US:
            text += f" If {stream} is never {interval(skew_us)} late, a smaller max_skew emits rows sooner."
            try_ = f"millrace sql \"ALTER STREAM {stream} SET (max_skew = '2 seconds')\""
        elif reason == "skew":
            # Its clock is near enough: the time of the other streams is ahead of it.
            text += f" The other streams are ahead of {stream}: rows are emitted when it receives tuples of that time."
            try_ = f"millrace feed {stream} FILE"
        yield Advice("waits_long", stream or query, text, try_)


def left_behind(seen: Snapshot) -> Iterator[Advice]:
    """A stream whose windows stay open because it is silent, while other inputs of the query advance."""
    streams = {stream.name: stream for stream in seen.streams if stream.timestamps == "external"}
    reads = {query.name: query.reads_streams for query in seen.queries}
    for query, why in seen.whys.items():
        stream = streams.get(why.stream or "")
        if why.reason != "gathering" or stream is None or stream.newest_us is None:
            continue
        oldest = stream.name
        newest_us = max((streams[name].newest_us or 0 for name in reads.get(query, ()) if name in streams), default=0)
        behind_us = newest_us - stream.newest_us
        if behind_us <= WAIT_US:
            continue
        if _likely(stream) is not None:
            continue  # `wrong_units` says why
        text = (
            f"Stream {oldest} is {_seconds(behind_us)} older than the other streams of query {query}, "
            f"which needs newer tuples of it to emit rows. {why.text}"
        )
        try_ = why.try_ or ""
        fed = try_.startswith("millrace feed")
        yield Advice("left_behind", oldest, text, try_ if fed else f"millrace stream show {oldest}")


def append_edges(seen: Snapshot) -> Iterator[Advice]:
    """Update streams whose updates queue up one by one, although only the newest row of each key may matter."""
    keyed = {f"{stream.name}.source": stream for stream in seen.streams if stream.update_key}
    for operator in seen.operators:
        for position, reader in enumerate(operator.inputs):
            stream, queued = keyed.get(reader.from_), reader.queue_tuples
            if stream is None or operator.queues[position] != "append" or queued < QUEUED_TUPLES:
                continue
            name = operator.name
            text = (
                f"{queued} updates of stream {stream.name} wait at {name}, whose queue keeps all of them. If only "
                "the newest row of each key matters there, let newer updates replace older ones: write FROM "
                f"{stream.name} LATEST in the query, or change the queue while it runs."
            )
            at = f" --input {position}" if position else ""
            yield Advice("append_edge", name, text, f"millrace operator queue {name} inplace{at}")


def flapping_joins(seen: Snapshot) -> Iterator[Advice]:
    now_us = seen.server.now_us
    for operator in seen.operators:
        join = operator.join
        if join is None:
            continue
        recent = [switch for switch in join.last_switches if now_us - switch.at_us <= FLAP_US]
        if join.order == "adaptive" and len(recent) >= FLAPS:
            query = operator.queries[0] if operator.queries else operator.name.partition(".")[0]
            text = (
                f"Join {operator.name} switched its order mode {len(recent)} times in the last minute: "
                f"c |w| l1 l2 is {join.value:.3g}, close to alpha {join.alpha:.3g}. Each switch drains its hold "
                "buffer. Choose one mode, or choose an alpha that is further away."
            )
            yield Advice("join_flaps", operator.name, text, f"millrace query order {query} {join.mode}")


def slow_readers(seen: Snapshot) -> Iterator[Advice]:
    """A subscriber or a sink that slows feeds down."""
    for query in seen.queries:
        reader = query.slow_reader
        if reader is not None and seen.server.now_us - reader.since_us > WAIT_US:
            yield Advice("reader_slow", query.name, reader.text, reader.try_)


def memory_short(seen: Snapshot) -> Iterator[Advice]:
    """Less memory than the server needs, or hardly more."""
    memory = seen.server.memory
    if memory is None or memory.budget_bytes is None or memory.since_us is None:
        return
    part = max(memory.parts, key=lambda name: memory.parts[name])
    doing = {
        "shed": " Rows that may be dropped are dropped.",
        "fail": " Rows that may be dropped are dropped, and the query that grows most fails.",
    }.get(memory.stage, "")
    text = (
        f"Memory has been short for {_seconds(seen.server.now_us - memory.since_us)}: "
        f"{readable_bytes(memory.used_bytes)} of {readable_bytes(memory.budget_bytes)} (server.memory) are used, most "
        f"of it by {PARTS.get(part, part)} ({readable_bytes(memory.parts[part])}). Feeds wait in turns.{doing} Shorter "
        "windows and ranges, or a larger server.memory, would help."
    )
    yield Advice("memory_short", "server", text, "millrace top")


def overloaded(seen: Snapshot) -> Iterator[Advice]:
    """More work than the processor can do; waits for readers, disks and memory have their own advice."""
    overload = seen.server.overload
    if overload is None or overload.since_us is None or overload.mode != "wait" or overload.load < BUSY:
        return
    busiest = max(seen.operators, key=lambda operator: operator.busy_us, default=None)
    most = "" if busiest is None else f", most of that time so far in {busiest.name}"
    waiting = f"The feeds of {', '.join(overload.streams)}" if overload.streams else "Feeds"
    text = (
        f"The server has had more to do than it can for {_seconds(seen.server.now_us - overload.since_us)}: the engine "
        f"worked {overload.load:.0%} of the last seconds{most}. {waiting} wait for credit, so their clients send more "
        "slowly, and nothing is lost. Fewer rows or cheaper queries, LATEST USING AUTO where only the newest row of a "
        "key matters, or a faster machine would help."
    )
    yield Advice("overloaded", "server", text, "millrace top")


def slow_sinks(seen: Snapshot) -> Iterator[Advice]:
    slow = {reader.name for query in seen.queries if (reader := query.slow_reader) is not None}
    for sink in seen.sinks:
        name, limit = sink.name, sink.slow_limit
        if name in slow and not sink.dropped:
            continue
        if sink.state == "waiting":
            continue  # It is not slow: it cannot write.
        lag = [f"{_waiting(sink.held, 'row')} for it, the oldest for {_seconds(sink.lag_us)}"] * (
            sink.lag_us > LAG_US or sink.held * 2 > limit
        )
        lost = [f"it has lost {counted(sink.dropped, 'row')} (on_slow = '{sink.on_slow}')"] * bool(sink.dropped)
        if lag or lost:
            text = (
                f"Sink {name} is slow: {' and '.join([*lag, *lost])}. Its on_slow policy applies at {limit} waiting "
                "rows. A faster disk, a query with fewer rows, or another on_slow would help."
            )
            yield Advice("sink_slow", name, text, f"millrace sink show {name}")


def history_behind(seen: Snapshot) -> Iterator[Advice]:
    """A history that cannot keep up with its stream, or has gaps."""
    for stream in seen.streams:
        name, archive = stream.name, stream.archive
        if archive is None:
            continue
        if archive.error is not None:
            text = f"The history of stream {name} cannot be written: {_sentence(archive.error)}"
        elif archive.held:
            text = (
                f"The history of stream {name} lags: {_waiting(archive.waiting_rows, 'row')} for the disk, "
                "and the stream's feeds wait until they are written."
            )
        elif archive.gaps:
            gaps = counted(len(archive.gaps), "gap")
            text = f"The history of stream {name} has {gaps}: results computed from it are incomplete."
        else:
            continue
        yield Advice("history_behind", name, text, f"millrace stream show {name}")


# -- tuples that enter no result ---------------------------------------------------------------------------------------


def wrong_units(seen: Snapshot) -> Iterator[Advice]:
    """A stream whose times make sense in another unit alone, while the server's clock shows the present."""
    for stream in seen.streams:
        name, newest_us = stream.name, stream.newest_us
        if stream.timestamps != "external" or newest_us is None or not in_century(seen.server.now_us):
            continue
        if (likely := _likely(stream)) is not None:
            text = (
                f"The newest time of stream {name} is {format_timestamp(newest_us)}, which is "
                f"{likely.declared.count(newest_us)} as an integer; {likely}."
            )
            try_ = f"millrace sql \"ALTER STREAM {name} SET (time_unit = '{likely.unit.name}')\""
            yield Advice("wrong_unit", name, text, try_)


def _likely(stream: StreamView) -> LikelyUnit | None:
    """The unit in which a stream's newest time makes sense, if that is not the declared one."""
    unit = UNITS[stream.time_unit or "us"]
    return None if stream.newest_us is None else likely_unit(unit.count(stream.newest_us), unit)


def ignored_tuples(seen: Snapshot) -> Iterator[Advice]:
    """Tuples that were on time for their stream and too old for a query that was created after newer ones."""
    for query in seen.queries:
        counts = query.ignored
        if not counts or query.state != "running":
            continue
        name = query.name
        counts_text = " and ".join(f"{counted(count, 'tuple')} of {stream}" for stream, count in counts.items())
        text = (
            f"Query {name} ignored {counts_text}: newer tuples had arrived before it was created. To read every "
            "tuple that is on time, create the query with start = 'watermark'."
        )
        yield Advice("ignored", name, text, f"millrace why {name}")


def late_tuples(seen: Snapshot) -> Iterator[Advice]:
    for stream in seen.streams:
        if stream.timestamps != "external" or stream.late <= stream.tuples * LATE_SHARE:
            continue
        name, share = stream.name, stream.late / max(stream.tuples, 1)
        text = (
            f"{stream.late} of {counted(stream.tuples, 'tuple')} of stream {name} ({share:.1%}) arrived late "
            "and are in no result."
        )
        if stream.broke_promise * 2 > stream.late:
            text += (
                f" {stream.broke_promise} of them broke a promise of their feed (a punctuation or an answer). No "
                "setting helps: find the client that sent them."
            )
            yield Advice("late", name, text, f"millrace tail {name}.late --from 0 --json")
            continue
        if not stream.late_by_max_us:
            continue  # the disorder was changed since, or the stream has ended: no other disorder would help
        if (enough_us := stream.disorder_us + stream.late_by_max_us) > MOST_DISORDER_US:
            text += f" The latest was {_seconds(stream.late_by_max_us)} late, too much for a disorder."
            if stream.newest_us is not None and abs(stream.newest_us - enough_us) < NEAR_1970_US:
                text += (
                    " Its time is near 1970, which suggests that its feed sends another unit: integer timestamps are"
                    f" {UNITS[stream.time_unit or 'us'].words}. Correct the sender, or set the time_unit of the"
                    " stream."
                )
            else:
                text += " Look at these tuples: a sender may repeat old rows, or its clock may be wrong."
            yield Advice("late", name, text, f"millrace tail {name}.late --from 0 --json")
            continue
        enough = _round_up(enough_us)
        text += (
            f" With disorder = '{enough}' instead of '{interval(stream.disorder_us)}', none of them would have been"
            " late. Rows in order of time are then delayed by as much."
            f" `millrace late {name}` shows what a smaller one keeps."
        )
        yield Advice("late", name, text, f"millrace sql \"ALTER STREAM {name} SET (disorder = '{enough}')\"")


def clocks_ahead(seen: Snapshot) -> Iterator[Advice]:
    """A feed whose clock is ahead can make the tuples of all others late."""
    now_us = seen.server.now_us
    for stream in seen.streams:
        if stream.timestamps != "external":
            continue
        name, newest_us = stream.name, stream.newest_us
        if stream.too_far_ahead:
            text = (
                f"The server refused {counted(stream.too_far_ahead, 'tuple')} of stream {name}: they, or others in "
                f"their frames, were ahead of the server's clock by more than max_ahead "
                f"({interval(stream.ahead_us)}). A sender's clock is wrong; the log names the feed."
            )
            yield Advice("clock_ahead", name, text, f"millrace stream show {name}")
        elif newest_us is not None and newest_us - now_us > CLOCK_US:
            text = (
                f"The newest tuple of stream {name} is {_seconds(newest_us - now_us)} ahead of the server's clock. A "
                "sender's clock is ahead, and tuples of other senders may be late compared to it. A max_ahead refuses "
                "such tuples."
            )
            try_ = f"millrace sql \"ALTER STREAM {name} SET (max_ahead = '1 second')\""
            yield Advice("clock_ahead", name, text, try_)


def refused_tuples(seen: Snapshot) -> Iterator[Advice]:
    for stream in seen.streams:
        refused = stream.rejected - stream.too_far_ahead
        if refused > 0:
            name = stream.name
            text = f"The server refused {counted(refused, 'tuple')} of stream {name} that did not fit its columns."
            yield Advice("rejected", name, text, f"millrace stream show {name}")


def rows_that_failed(seen: Snapshot) -> Iterator[Advice]:
    for operator in seen.operators:
        if operator.errors:
            name = operator.name
            query = operator.queries[0] if operator.queries else name.partition(".")[0]
            rows = counted(operator.errors, "row")
            text = f"{name} dropped {rows} that it could not compute: {operator.last_error}."
            yield Advice("rows_failed", name, text, f"millrace explain {query}")


# -- future risks ------------------------------------------------------------------------------------------------------


def full_states(seen: Snapshot) -> Iterator[Advice]:
    for query in seen.queries:
        state, bound = query.state_tuples, query.max_state
        if query.state == "running" and bound is not None and state > bound * STATE_SHARE:
            name = query.name
            text = (
                f"Query {name} holds {state} tuples in its state; at {bound} (max_state) it fails or slows its streams "
                "down. Shorten its ranges or windows, or raise max_state."
            )
            yield Advice("state_full", name, text, f"millrace explain {name} --analyze")


def clock(seen: Snapshot) -> Iterator[Advice]:
    held_us = seen.server.clock_held_back_us
    if held_us:
        text = (
            f"The machine's clock was set back by {_seconds(held_us)} while the server ran. The server's clock never "
            "goes back: it runs one percent slower until both agree."
        )
        yield Advice("clock", "server", text, "timedatectl status")
    elif seen.own_clock_us is not None and abs(seen.own_clock_us - seen.server.now_us) > CLOCK_US:
        apart = _seconds(abs(seen.own_clock_us - seen.server.now_us))
        text = (
            f"The server's clock and this machine's are {apart} apart. Timestamps of one machine are early or late on "
            "the other. Synchronise both clocks with a time service."
        )
        yield Advice("clock", "server", text, "timedatectl status")


def descriptors(seen: Snapshot) -> Iterator[Advice]:
    """Each connection uses a descriptor; without free ones, no client can connect and no file can be opened."""
    process = seen.server.process
    limit, used = (None, None) if process is None else (process.open_files_limit, process.open_files)
    connections = seen.configuration.get("limits", {}).get("connections")
    if limit is None:
        return
    if used is not None and used > limit * DESCRIPTOR_SHARE:
        text = f"The server has {used} files and sockets open; the system allows {limit}."
    elif connections is not None and connections + SPARE_DESCRIPTORS > limit:
        text = (
            f"The system allows the server {limit} open files and sockets, and its configuration {connections} "
            "connections: the server reaches the system's limit first."
        )
    else:
        return
    enough = max((connections or 0) + 1024, limit * 2)
    yield Advice("descriptors", "server", text, f"ulimit -n {enough}; millrace serve")


def open_to_network(seen: Snapshot) -> Iterator[Advice]:
    """`serve` refuses such a configuration; this rule covers one that was allowed some other way."""
    server = seen.server
    for port, at, guard in (
        ("listen", server.listen, server.listen_guard),
        ("admin", server.admin, server.admin_guard),
    ):
        if guard is None or guard.loopback or guard.token:
            continue
        action = "change everything and let the server write files" if port == "admin" else "feed and read everything"
        text = f"Anyone who can reach {at} can {action}: the port is open to the network and requires no token."
        yield Advice("open_to_network", port, text, "millrace config check --config FILE")


def nothing_kept(seen: Snapshot) -> Iterator[Advice]:
    if seen.server.data_dir is None and (seen.streams or seen.queries):
        text = "The server has no data folder: its streams and queries are lost when it ends."
        yield Advice("nothing_kept", "server", text, "millrace export > catalog.sql; millrace serve --data-dir DIR")


def slow_kernels(seen: Snapshot) -> Iterator[Advice]:
    if seen.server.kernels == "python":
        text = "The kernels are not compiled: results are the same, but joins and windows take many times as long."
        yield Advice("slow_kernels", "server", text, "make setup")


def outdated_build(seen: Snapshot) -> Iterator[Advice]:
    if seen.server.kernels == "outdated":
        text = "The server runs compiled files that are older than their sources, so edits of these have no effect yet."
        yield Advice("outdated_build", "server", text, "make setup")


Rule = Callable[[Snapshot], Iterator[Advice]]
RULES: Final[tuple[Rule, ...]] = (
    stopped_queries,
    failed_sinks,
    memory_short,
    overloaded,
    slow_readers,
    waiting_sinks,
    journal_full,
    checkpoint_failed,
    follower_differs,
    follower_behind,
    standby_gone,
    catalog_unwritten,
    unclean_end,
    restarted_queries,
    no_max_skew,
    silent_feeds,
    long_waits,
    left_behind,
    append_edges,
    flapping_joins,
    slow_sinks,
    outside_sinks,
    history_behind,
    wrong_units,
    late_tuples,
    ignored_tuples,
    clocks_ahead,
    refused_tuples,
    rows_that_failed,
    full_states,
    clock,
    descriptors,
    open_to_network,
    nothing_kept,
    slow_kernels,
    outdated_build,
)


# -- words -------------------------------------------------------------------------------------------------------------


def _waits_long(why: Why, seen: Snapshot) -> bool:
    since = why.since
    return since is not None and seen.server.now_us - since > WAIT_US


def _each_waits_long(why: Why, streams: Mapping[str, StreamView]) -> bool:
    """Whether the server's clock has moved the stream's time before. Each row then waits as long as the stream may be
    late, even if the wait for the present one has just started."""
    stream = streams.get(why.stream or "")
    if why.reason != "skew" or stream is None or stream.mark_us is None or stream.newest_us is None:
        return False
    return (stream.max_skew_us or 0) > WAIT_US and stream.mark_us > stream.newest_us


def _rows(whys: Sequence[Why], seen: Snapshot) -> str:
    """The waiting tuples and their delay. Queries of a graph can hold the same tuples, so the largest number counts."""
    operators = ", ".join(dict.fromkeys(why.operator for why in whys if why.operator is not None))
    most = max(why.held for why in whys)
    waited = _seconds(seen.server.now_us - min(why.since for why in whys if why.since is not None))
    if not most:
        return f"the state of {operators} has been waiting for {waited}"
    return f"{_waiting(most, 'tuple')} at {operators}, the first for {waited}"


def _waiting(number: int, word: str) -> str:
    return f"{counted(number, word)} {'waits' if number == 1 else 'wait'}"


def _sentence(text: str | None) -> str:
    text = text or "no reason is known"
    return text if text.endswith(".") else f"{text}."


def _seconds(us: int) -> str:
    """A duration in the unit that people use for its size."""
    for unit, length_us in (("days", DAY_US), ("hours", 3600 * SECOND_US), ("minutes", 60 * SECOND_US)):
        if us >= 2 * length_us:
            return f"{us / length_us:.1f} {unit}"
    return f"{us / SECOND_US:.1f} s"


def interval(us: int | None) -> str:
    """Microseconds as SQL takes them, in the largest unit that is exact."""
    if us is None:
        return "none"
    for word, unit in (("hour", 3600 * SECOND_US), ("minute", 60 * SECOND_US), ("second", SECOND_US)):
        if us and us % unit == 0:
            return f"{us // unit} {word}{'s' * (us != unit)}"
    if us == 0:
        return "0 seconds"
    return f"{us // 1000} ms" if us % 1000 == 0 else f"{us} us"


def _round_up(us: int) -> str:
    """The next round duration."""
    unit = next((unit for unit in (SECOND_US, 100_000, 1_000) if us >= 10 * unit), 1)
    if us >= SECOND_US:
        unit = SECOND_US
    return interval(-(-us // unit) * unit)
