"""The lines of `--events`, in order of arrival, as events of the engine grouped by their time.

One JSON object per line: `at` (default: the line's before; a tuple's own time if that is later), and one of `stream`
with `tuple`, `punctuation` (for one group, with `where`) or `close`, or `tick` alone. Integers in `at` are
microseconds. Those in a tuple's time field and in `punctuation` are in the stream's unit. The clock never goes back: an
`at` below it means the clock's time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from millrace.engine.events import Arrived, Event, FeedClosed, Punctuated
from millrace.engine.plan import StreamDefinition
from millrace.formats.decoder import StreamDecoder, check_clock, check_promise
from millrace.offline.driver import Instant
from millrace.offline.files import ROWS, STANDARD, Advanced, lines_of, located, read_object, refuse_file, shown
from millrace.offline.merge import EXACT_ROWS
from millrace.protocol import Refuse, RowError, TimestampError
from millrace.protocol.timestamps import FIRST_US, LAST_US
from millrace.protocol.units import MICROSECONDS, TimeUnit
from millrace.protocol.words import spelt
from millrace.values.eventtime import MIN_TIME

FEED: Final = "main"

KEYS: Final = ("at", "stream", "feed", "tuple", "punctuation", "where", "close", "tick")
ONE_OF: Final = ("tuple", "punctuation", "close", "tick")


def read_events(
    path: str, streams: Mapping[str, StreamDefinition], advanced: Advanced, *, exact: bool
) -> Iterator[Instant]:
    """The instants of a file of events; `exact`: each of them is at its own time."""
    reader = _Events(path, streams, exact)
    try:
        if path == STANDARD:
            yield from reader.read(lines_of(sys.stdin.buffer, path, advanced))
        else:
            with Path(path).open("rb") as file:
                yield from reader.read(lines_of(file, path, advanced))
    except OSError as error:
        raise refuse_file(path, error) from None


class _Events:
    """Reads lines; tuples that one feed sends one after the other in one instant become one batch.

    _held    the tuples of the batches to come, by stream and feed, each with the number of its line
    _tuples  how many tuples have been read; `_start` of them before the instant at hand
    """

    def __init__(self, path: str, streams: Mapping[str, StreamDefinition], exact: bool) -> None:
        self._path = path
        self._sources = {name: StreamDecoder(stream) for name, stream in streams.items()}
        self._exact = exact
        self._clock: int | None = None
        self._events: list[Event] = []
        self._held: dict[tuple[str, str], list[tuple[int, Mapping[str, Any]]]] = {}
        self._tuples = self._start = 0

    def read(self, pieces: Iterator[tuple[int, bytes]]) -> Iterator[Instant]:
        for first, piece in pieces:
            for offset, line in enumerate(piece.split(b"\n")):
                if line.strip():
                    yield from self._line(first + offset, line)
        yield from self._instant()

    def _line(self, number: int, line: bytes) -> Iterator[Instant]:
        where = self._where(number)
        event = read_object(line, where)
        kind = _kind(event, where)
        at_us = self._time(event, kind, where)
        if at_us != self._clock:
            if not self._sliced or self._tuples - self._start >= ROWS:
                yield from self._instant()
            self._clock = at_us
        if kind != "tick":
            self._add(event, kind, where, number)

    @property
    def _sliced(self) -> bool:
        return not self._exact and self._tuples >= EXACT_ROWS

    def _where(self, number: int) -> str:
        return f"{shown(self._path)}, line {number}"

    def _instant(self) -> Iterator[Instant]:
        """The events collected at the clock's time."""
        self._end_runs()
        self._start = self._tuples
        if self._clock is not None:
            events, self._events = self._events, []
            yield Instant(self._clock, events)

    def _time(self, event: Mapping[str, Any], kind: str, where: str) -> int:
        clock = MIN_TIME if self._clock is None else self._clock
        if "at" in event:
            at_us = _timestamp(event["at"], "at", where)
            check_clock(where, at_us)
            return max(clock, at_us)
        if kind == "tick":
            raise Refuse(f"{where}: expected a time in at, because a tick has no other, got none", code="bad_row")
        own = self._own_time(event, where) if kind == "tuple" else None
        if own is not None and FIRST_US <= own <= LAST_US:
            return max(clock, own)
        return 0 if self._clock is None else clock

    def _own_time(self, event: Mapping[str, Any], where: str) -> int | None:
        source = self._source(event, where)
        values = event["tuple"]
        if source.stream.time is None or not isinstance(values, dict) or values.get(source.stream.time) is None:
            return None
        try:
            return source.unit.parse(values[source.stream.time])
        except TimestampError:
            return None  # refused with the row

    def _source(self, event: Mapping[str, Any], where: str) -> StreamDecoder:
        name = event.get("stream")
        if name is None:
            raise Refuse(f"{where}: expected the name of a stream in stream, got none", code="bad_row")
        source = self._sources.get(name) if isinstance(name, str) else None
        if source is None:
            known = ", ".join(self._sources) or "none"
            raise Refuse(f"{where}: expected one of the streams {known}, got {spelt(name)}", code="unknown_stream")
        return source

    def _add(self, event: Mapping[str, Any], kind: str, where: str, number: int) -> None:
        source = self._source(event, where)
        stream = source.stream.name
        feed = event.get("feed", FEED)
        if not isinstance(feed, str) or not feed:
            raise Refuse(f"{where}: expected a feed's name in feed, got {spelt(feed)}", code="bad_row")
        if kind == "tuple":
            self._tuple(stream, feed, event["tuple"], where, number)
            return
        self._end_runs()
        if kind == "punctuation":
            value_us = _timestamp(event["punctuation"], "punctuation", where, source.unit)
            check_promise(where, value_us, source.unit)
            self._events.append(Punctuated(stream, feed, value_us, self._group(event, source, where)))
        elif event["close"] is True:
            self._events.append(FeedClosed(stream, feed, ended=True))
        else:
            raise Refuse(f"{where}: expected true in close, got {spelt(event['close'])}", code="bad_row")

    def _group(self, event: Mapping[str, Any], source: StreamDecoder, where: str) -> tuple[Any, ...]:
        """The group that a punctuation is about; none: the whole stream."""
        if "where" not in event:
            return ()
        try:
            return source.group(event["where"])
        except Refuse as error:
            raise Refuse(f"{where}, {error.text}", code="bad_row") from None

    def _tuple(self, stream: str, feed: str, values: Any, where: str, number: int) -> None:
        if not isinstance(values, dict):
            raise Refuse(f"{where}: expected an object in tuple, got {spelt(values)}", code="bad_row")
        key = (stream, feed)
        if key not in self._held and (not self._sliced or any(other == stream for other, _ in self._held)):
            self._end_runs()
        self._held.setdefault(key, []).append((number, values))
        self._tuples += 1

    def _end_runs(self) -> None:
        """Make a batch of each feed's tuples."""
        for (stream, feed), held in self._held.items():
            try:
                batch = self._sources[stream].from_objects([values for _, values in held])
            except RowError as error:
                with located(self._where(held[error.row][0])):
                    raise
            self._events.append(Arrived(stream, feed, batch))
        self._held = {}


def _kind(event: Mapping[str, Any], where: str) -> str:
    unknown = [key for key in event if key not in KEYS]
    if unknown:
        raise Refuse(f"{where}: expected the keys {', '.join(KEYS)}, got {spelt(unknown[0])}", code="bad_row")
    kinds = [key for key in ONE_OF if key in event]
    if len(kinds) != 1:
        got = " and ".join(kinds) or "none of them"
        raise Refuse(f"{where}: expected one of {', '.join(ONE_OF)}, got {got}", code="bad_row")
    if "where" in event and kinds != ["punctuation"]:
        raise Refuse(f"{where}: expected where in a line with punctuation, got it with {kinds[0]}", code="bad_row")
    if kinds == ["tick"] and event["tick"] is not True:
        raise Refuse(f"{where}: expected true in tick, got {spelt(event['tick'])}", code="bad_row")
    return kinds[0]


def _timestamp(value: Any, key: str, where: str, unit: TimeUnit = MICROSECONDS) -> int:
    try:
        return unit.parse(value)
    except TimestampError as error:
        raise Refuse(f"{where}, {key}: {error.text}", code="bad_row") from None


def names_of_feeds(names: Sequence[str]) -> list[str]:
    """The names of a stream's feeds, if several files feed it."""
    return [FEED] if len(names) == 1 else list(names)
