"""JSON lines: the dialect for use by hand, with `nc`, and for programs without msgpack.

Rule: each line is one JSON object in UTF-8, ended by a newline. Invalid lines raise PeerError and nothing else. Values
are plain Python values with checked numbers; the server matches them with a schema. Add a form here and in
`docs/protocol.md`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from millrace.protocol.epochs import epoch_number
from millrace.protocol.errors import MillraceError, PeerError
from millrace.protocol.fields import MAX_TEXT
from millrace.protocol.messages import MAX_NESTING, PRODUCER_CHARACTERS
from millrace.protocol.timestamps import TimestampError, format_timestamp, parse_timestamp
from millrace.protocol.types import MAX_INT64, MIN_INT64
from millrace.protocol.units import TimeUnit
from millrace.protocol.words import spelt

LINE_BYTES = 2**20  # the default limit: a thousand fields of a kilobyte
MAIN_FEED = "main"  # the default feed of a line


@dataclass(frozen=True, slots=True)
class Token:
    """`{"token": "..."}`: the first line, if the server requires a token."""

    token: str


@dataclass(frozen=True, slots=True)
class EpochLine:
    """`{"epoch": E}`: the highest epoch that the client has seen, or null. The server answers with its own."""

    epoch: str | None


@dataclass(frozen=True, slots=True)
class TupleLine:
    """`{"stream": S, "tuple": {...}}`: one tuple, fields by name.

    With `"producer": P, "seq": N` it is the tuple number N of this producer, whichever connection it arrives on.
    """

    stream: str
    values: Mapping[str, object]
    feed: str = MAIN_FEED
    producer: str | None = None
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class PunctuationLine:
    """`{"stream": S, "punctuation": P}`: no later tuple of this feed has a timestamp below P.

    `value` is in microseconds if P is text. If P is an integer (`counts`), it is in the stream's unit. With
    `"where": {...}` the promise is about the tuples with these values in the stream's punctuation key.
    """

    stream: str
    value: int
    feed: str = MAIN_FEED
    counts: bool = field(default=False, compare=False)
    where: Mapping[str, object] | None = None
    producer: str | None = None

    def time_us(self, unit: TimeUnit) -> int:
        """The promised time, of a stream with this unit."""
        return unit.micros(self.value) if self.counts else self.value


@dataclass(frozen=True, slots=True)
class AnswersLine:
    """`{"stream": S, "answers": true}`: open the feed; the client answers the server's requests for timestamps."""

    stream: str
    feed: str = MAIN_FEED
    producer: str | None = None


@dataclass(frozen=True, slots=True)
class OpenLine:
    """`{"stream": S, "producer": P, "open": true}`: open the feed; the server says where it continues.

    With `"seq": N` a server that does not know the producer continues at N, its oldest unacknowledged tuple.
    `"answers": true` as in AnswersLine. `"epoch"` is the number of the epoch in which the tuples below N were
    acknowledged.
    """

    stream: str
    producer: str
    sequence: int = 0
    answers: bool = False
    feed: str = MAIN_FEED
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerLine:
    """`{"stream": S, "answer": N, "punctuation": P}`: the answer to request N, a punctuation or null."""

    stream: str
    request: int
    promise: PunctuationLine | None
    feed: str = MAIN_FEED
    producer: str | None = None


@dataclass(frozen=True, slots=True)
class CloseLine:
    """`{"stream": S, "close": true}`: the client ends the feed."""

    stream: str
    feed: str = MAIN_FEED
    producer: str | None = None


@dataclass(frozen=True, slots=True)
class SubscribeLine:
    """`{"subscribe": Q}`: rows from now on, or `"from"` a sequence number on.

    The number is one of `"history"`, by default the current one. `"progress": true` adds progress. `"refresh"` is how
    often the client looks at the rows, of all keys or of `"keys"`. `"epoch"` is the number of the epoch in which it got
    the row before `"from"`.
    """

    query: str
    from_sequence: int | None = None
    progress: bool = False
    history: str | None = None
    refresh: int | str | None = None
    keys: list[list[object]] | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class UnsubscribeLine:
    """`{"unsubscribe": Q}`."""

    query: str


FeedLine = TupleLine | PunctuationLine | AnswersLine | AnswerLine | OpenLine | CloseLine
Line = Token | EpochLine | FeedLine | SubscribeLine | UnsubscribeLine


def _newlines(piece: bytes) -> int:
    return piece.count(b"\n")


class LineReader:
    """Collects received bytes into pieces of whole lines; a line's number counts from 1.

    Invariant: `_partial` holds the start of one line, at most the limit. After too long a line it accepts no more
    bytes; lines that arrived earlier are still returned.
    """

    def __init__(self, limit: int = LINE_BYTES, count: Callable[[bytes], int] = _newlines) -> None:
        self.limit = limit
        self._count = count  # of lines in a piece
        self._partial = b""
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._number = 0
        self._error: PeerError | None = None

    @property
    def buffered(self) -> int:
        """Bytes of an incomplete line."""
        return len(self._partial)

    @property
    def number(self) -> int:
        """The number of the incomplete line, or of the next one."""
        return self._number + 1

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add received bytes. `pieces` raises errors."""
        if self._error is not None:
            return
        data = bytes(data)
        end = data.rfind(b"\n") + 1
        if end:
            self._take(self._partial + data[:end])
            self._partial = b""
        if self._error is None:
            self._partial += data[end:]
            if len(self._partial) > self.limit:
                self._refuse_next()

    def end(self) -> None:
        """The peer sends no more bytes: a last line without a newline counts as a line."""
        if self._partial:
            self._take(self._partial + b"\n")
            self._partial = b""

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """The complete lines, in order, as they came together; then PeerError if the next line is too long.

        A piece has the number of its first line, and each of its lines ends with a newline.
        """
        while self._pieces:
            yield self._pieces.popleft()
        if self._error is not None:
            raise self._error

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The same line by line, without line ends; empty lines are skipped."""
        for number, piece in self.pieces():
            yield from lines_of(number, piece)

    def _take(self, piece: bytes) -> None:
        if len(piece) > self.limit:
            lines = piece[:-1].split(b"\n")
            fit = next((at for at, line in enumerate(lines) if len(line) > self.limit), None)
            if fit is not None:
                piece = b"".join(line + b"\n" for line in lines[:fit])
        else:
            fit = None
        if piece:
            self._pieces.append((self._number + 1, piece))
            self._number += self._count(piece)
        if fit is not None:
            self._refuse_next()

    def _refuse_next(self) -> None:
        if self._error is not None:
            return
        self._partial = b""
        where, expected = f"line {self._number + 1}", f"at most {self.limit} bytes"
        self._error = PeerError.at(where, expected=expected, got="more", code="frame_too_large")


def lines_of(number: int, piece: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines of a piece with their numbers, without line ends; empty lines are skipped."""
    for at, line in enumerate(piece[:-1].split(b"\n"), number):
        if line := line.rstrip(b"\r"):
            yield at, line


def parse(line: bytes | str) -> Line:
    """The meaning of a line, or PeerError."""
    keys = parse_object(line)
    for key, form in _FORMS:
        if key in keys:
            return form(keys)
    expected = "an object with " + ", ".join(f'"{key}"' for key, _ in _FORMS)
    raise _unfit("a line", expected, f"the keys {', '.join(keys)}" if keys else "no keys")


def parse_object(line: bytes | str) -> dict[str, Any]:
    """One JSON object with distinct names, finite numbers, integers of 64 bits and valid UTF-8; else PeerError."""
    try:
        text = line if isinstance(line, str) else line.decode()
        parsed = json.loads(text, object_pairs_hook=_distinct_names, parse_constant=_refuse_constant)
    except UnicodeError:
        raise _unfit("a line", "UTF-8", "other bytes") from None
    except RecursionError:
        raise _unfit("a line", f"at most {MAX_NESTING} levels", "deep nesting") from None
    except json.JSONDecodeError as error:
        where = f"a line, character {error.pos + 1}"
        raise _unfit(where, "JSON", f"{text[error.pos : error.pos + 20]!r} ({error.msg})") from None
    except ValueError as error:  # an integer of thousands of digits
        raise _unfit("a line", "integers of 64 bits", "one of thousands of digits", "bad_value") from error
    if not isinstance(parsed, dict):
        raise _unfit("a line", "a JSON object", spelt(parsed))
    _check(parsed, "a line", 1)
    return parsed


def _distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        duplicate = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _unfit("a line", "distinct names", f"{spelt(duplicate)} twice")
    return values


def _refuse_constant(word: str) -> object:
    raise _unfit("a line", "finite numbers", word, "bad_value")


def _check(value: object, where: str, level: int) -> None:
    """Refuse numbers and text that JSON allows and Millrace does not."""
    if isinstance(value, dict | list):
        if level > MAX_NESTING:
            raise _unfit(where, f"at most {MAX_NESTING} levels", "one more")
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            _check_text(name, where)
            _check(item, f"field {name}", level + 1)
    elif isinstance(value, float) and not isfinite(value):
        raise _unfit(where, "a finite number", "one beyond the range of a double", "bad_value")
    elif isinstance(value, int) and not MIN_INT64 <= value <= MAX_INT64:
        raise _unfit(where, "an integer of 64 bits, signed", spelt(value), "bad_value")
    else:
        _check_text(value, where)


def _check_text(value: object, where: str) -> None:
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _unfit(where, "text", "half of a surrogate pair", "bad_value") from None


def _unfit(where: str, expected: str, got: str, code: str = "bad_message") -> PeerError:
    return PeerError.at(where, expected=expected, got=got, code=code)


# Reading the forms. Each refuses unknown keys, so that a misspelt key is reported.


def _only(keys: Mapping[str, object], *allowed: str) -> None:
    for key in keys:
        if key not in allowed:
            raise _unfit("a line", "the keys " + ", ".join(allowed), spelt(key))


def _text(keys: Mapping[str, object], key: str, default: str | None = None) -> str:
    value = keys.get(key, default)
    if not isinstance(value, str) or not value:
        raise _unfit(f'"{key}"', "text", spelt(value) if key in keys else "no key")
    return _short(key, value, MAX_TEXT)


def _short(key: str, text: str, most: int) -> str:
    if len(text) > most:
        raise _unfit(f'"{key}"', f"at most {most:,} characters", f"{len(text):,}")
    return text


def _feed(keys: Mapping[str, object]) -> str:
    return _short("feed", _text(keys, "feed", MAIN_FEED), PRODUCER_CHARACTERS)


def _flag(keys: Mapping[str, object], key: str) -> bool:
    value = keys.get(key, False)
    if not isinstance(value, bool):
        raise _unfit(f'"{key}"', "true or false", spelt(value))
    return value


def _must_be_true(keys: Mapping[str, object], key: str) -> None:
    if keys[key] is not True:
        raise _unfit(f'"{key}"', "true", spelt(keys[key]))


def _token(keys: Mapping[str, object]) -> Token:
    _only(keys, "token")
    return Token(_text(keys, "token"))


def _producer(keys: Mapping[str, object]) -> str | None:
    if "producer" not in keys:
        return None
    if "feed" in keys:
        raise _unfit("a line", '"feed" or "producer"', "both")
    return _short("producer", _text(keys, "producer"), PRODUCER_CHARACTERS)


def _sequence(keys: Mapping[str, object]) -> int:
    number = keys.get("seq")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MAX_INT64:
        raise _unfit('"seq"', "the number of the tuple, from 0", spelt(number) if "seq" in keys else "no key")
    return number


def _tuple(keys: Mapping[str, object]) -> TupleLine:
    _only(keys, "stream", "tuple", "feed", "producer", "seq")
    values = keys["tuple"]
    if not isinstance(values, dict):
        raise _unfit('"tuple"', "an object of fields by name", spelt(values))
    stream, producer = _text(keys, "stream"), _producer(keys)
    if producer is not None:
        return TupleLine(stream, values, producer=producer, sequence=_sequence(keys))
    if "seq" in keys:
        raise _unfit("a line", '"producer" with "seq"', "no producer")
    return TupleLine(stream, values, _feed(keys))


def claimed(line: bytes) -> TupleLine | None:
    """The producer and number of a tuple that `parse` refuses, without its values; None if the line does not say."""
    try:
        keys = json.loads(line.decode(), object_pairs_hook=_distinct_members)
        if not isinstance(keys, dict) or "tuple" not in keys or (producer := _producer(keys)) is None:
            return None
        return TupleLine(_text(keys, "stream"), {}, producer=producer, sequence=_sequence(keys))
    except (ValueError, RecursionError, PeerError):
        return None


def _distinct_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, unless the names that say whose tuple it is are ambiguous."""
    names = [name for name, _ in pairs]
    if any(names.count(name) > 1 for name in ("stream", "producer", "seq")):
        raise ValueError
    return dict(pairs)


def _punctuation(keys: Mapping[str, object]) -> PunctuationLine:
    _only(keys, "stream", "punctuation", "feed", "where", "producer")
    where = keys.get("where")
    if where is not None and not isinstance(where, dict):
        raise _unfit('"where"', "an object of fields by name", spelt(where))
    try:
        value = parse_timestamp(keys["punctuation"])
    except TimestampError as error:
        raise PeerError(f'"punctuation": {error.text}', code="bad_value", where='"punctuation"') from None
    counts = isinstance(keys["punctuation"], int)
    feed = _feed(keys)
    return PunctuationLine(_text(keys, "stream"), value, feed, counts, where, _producer(keys))


def _epoch_number(keys: Mapping[str, object]) -> int | None:
    epoch = keys.get("epoch")
    if epoch is not None and (not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 1):
        raise _unfit('"epoch"', "the number of an epoch, from 1", spelt(epoch))
    return epoch


def _epoch(keys: Mapping[str, object]) -> EpochLine:
    _only(keys, "epoch")
    epoch = keys["epoch"]
    if epoch is not None and (not isinstance(epoch, str) or epoch_number(epoch) is None):
        raise _unfit('"epoch"', "the epoch of a server, such as 2-0123456789abcdef, or null", spelt(epoch), "bad_value")
    return EpochLine(epoch)


def _answers(keys: Mapping[str, object]) -> AnswersLine:
    _only(keys, "stream", "answers", "feed", "producer")
    _must_be_true(keys, "answers")
    return AnswersLine(_text(keys, "stream"), _feed(keys), _producer(keys))


def _open(keys: Mapping[str, object]) -> OpenLine:
    _only(keys, "stream", "open", "producer", "seq", "answers", "epoch")
    _must_be_true(keys, "open")
    producer = _producer(keys)
    if producer is None:
        raise _unfit('"producer"', "text", "no key")
    sequence = _sequence(keys) if "seq" in keys else 0
    return OpenLine(_text(keys, "stream"), producer, sequence, _flag(keys, "answers"), epoch=_epoch_number(keys))


def _answer(keys: Mapping[str, object]) -> AnswerLine:
    _only(keys, "stream", "answer", "punctuation", "feed", "where", "producer")
    request = keys["answer"]
    if not isinstance(request, int) or isinstance(request, bool) or request < 0:
        raise _unfit('"answer"', "the number of a request", spelt(request))
    if "punctuation" not in keys:
        raise _unfit('"punctuation"', "a timestamp or null", "no key")
    promises = keys["punctuation"] is not None
    promise = _punctuation({key: value for key, value in keys.items() if key != "answer"}) if promises else None
    return AnswerLine(_text(keys, "stream"), request, promise, _feed(keys), _producer(keys))


def _close(keys: Mapping[str, object]) -> CloseLine:
    _only(keys, "stream", "close", "feed", "producer")
    _must_be_true(keys, "close")
    return CloseLine(_text(keys, "stream"), _feed(keys), _producer(keys))


def _subscribe(keys: Mapping[str, object]) -> SubscribeLine:
    _only(keys, "subscribe", "from", "progress", "history", "refresh", "keys", "epoch")
    start = keys.get("from")
    if start is not None and (not isinstance(start, int) or isinstance(start, bool) or start < 0):
        raise _unfit('"from"', "a sequence number", spelt(start))
    history = None if keys.get("history") is None else _text(keys, "history")
    refresh, listed = keys.get("refresh"), keys.get("keys")
    if refresh is not None and (not isinstance(refresh, int | str) or isinstance(refresh, bool)):
        raise _unfit('"refresh"', "an interval such as '1 second', or microseconds", spelt(refresh))
    if listed is not None and not isinstance(listed, list):
        raise _unfit('"keys"', "an array of keys", spelt(listed))
    keyed = None if listed is None else [key if isinstance(key, list) else [key] for key in listed]
    return SubscribeLine(
        _text(keys, "subscribe"), start, _flag(keys, "progress"), history, refresh, keyed, _epoch_number(keys)
    )


def _unsubscribe(keys: Mapping[str, object]) -> UnsubscribeLine:
    _only(keys, "unsubscribe")
    return UnsubscribeLine(_text(keys, "unsubscribe"))


# The key that identifies each form.
_FORMS: Sequence[tuple[str, Callable[[Mapping[str, object]], Line]]] = (
    ("tuple", _tuple),
    ("answer", _answer),
    ("open", _open),
    ("answers", _answers),
    ("punctuation", _punctuation),
    ("close", _close),
    ("subscribe", _subscribe),
    ("unsubscribe", _unsubscribe),
    ("token", _token),
    ("epoch", _epoch),
)


# Lines of the server.


def row_line(query: str, sequence: int, row: Mapping[str, object]) -> bytes:
    """`{"query": Q, "seq": N, "row": {...}}`; timestamps are already text, and bytes base64."""
    return _line({"query": query, "seq": sequence, "row": row})


def progress_line(query: str, value_us: int) -> bytes:
    """`{"query": Q, "progress": "..."}`: complete for every lower timestamp."""
    return _line({"query": query, "progress": format_timestamp(value_us)})


def error_line(error: MillraceError, line: int | None, sequence: int | None = None) -> bytes:
    """`{"error": {"code", "text", "line"}}`: the line counts from 1, and is null if the error concerns none.

    `"seq"` follows if it is the tuple of a producer.
    """
    numbered = {} if sequence is None else {"seq": sequence}
    return _line({"error": {"code": error.code, "text": error.text, "line": line, **numbered}})


def ack_line(stream: str, producer: str, next_sequence: int, durable: int | None) -> bytes:
    """`{"ack": {"stream", "producer", "next", "durable"}}`: tuples below `next` were accepted or refused, and those
    below `durable` are on the disk; null: the server does not say what is on its disk."""
    return _line({"ack": {"stream": stream, "producer": producer, "next": next_sequence, "durable": durable}})


def epoch_line(epoch: str | None) -> bytes:
    """`{"epoch": E}`: the server's epoch; null without a data directory."""
    return _line({"epoch": epoch})


def late_line(late: Mapping[str, object]) -> bytes:
    """`{"late": {...}}`: a late tuple."""
    return _line({"late": late})


def _line(value: object) -> bytes:
    return _ENCODE(value).encode() + b"\n"


_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(", ", ": ")).encode
