"""JSON lines: the same port spoken by hand, with `nc`, or by a program without msgpack.

Rule: one JSON object in one line of UTF-8, ended by a newline. Garbage gives PeerError and nothing else. Values
come out as plain Python values whose numbers were checked; fitting them to a schema is the server's. A form is
added here and in `docs/protocol.md`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from millrace.protocol.errors import MillraceError, PeerError
from millrace.protocol.messages import MAX_NESTING
from millrace.protocol.timestamps import TimestampError, format_timestamp, parse_timestamp
from millrace.protocol.types import MAX_INT64, MIN_INT64
from millrace.protocol.words import spelt

LINE_BYTES = 2**20  # the default limit: a thousand fields of a kilobyte
MAIN_FEED = "main"  # the feed of a line that names none


@dataclass(frozen=True, slots=True)
class Token:
    """`{"token": "..."}`: the first line where the server wants one."""

    token: str


@dataclass(frozen=True, slots=True)
class TupleLine:
    """`{"stream": S, "tuple": {...}}`: one tuple, fields by name."""

    stream: str
    values: Mapping[str, object]
    feed: str = MAIN_FEED


@dataclass(frozen=True, slots=True)
class PunctuationLine:
    """`{"stream": S, "punctuation": P}`: no later tuple of this feed lies below P."""

    stream: str
    value_us: int
    feed: str = MAIN_FEED


@dataclass(frozen=True, slots=True)
class CloseLine:
    """`{"stream": S, "close": true}`: the feed ends deliberately."""

    stream: str
    feed: str = MAIN_FEED


@dataclass(frozen=True, slots=True)
class SubscribeLine:
    """`{"subscribe": Q}`: rows from now on, or `"from"` a sequence number (of the `"history"` that is named, else the
    current one); `"progress": true` for progress too."""

    query: str
    from_sequence: int | None = None
    progress: bool = False
    history: str | None = None


@dataclass(frozen=True, slots=True)
class UnsubscribeLine:
    """`{"unsubscribe": Q}`."""

    query: str


Line = Token | TupleLine | PunctuationLine | CloseLine | SubscribeLine | UnsubscribeLine


class LineReader:
    """Cuts lines out of what arrives: (number from 1, bytes without the end of line). Blank lines are passed over.

    Invariant: `_partial` holds the beginning of one line, at most the limit. After a line that is too long
    nothing more is taken, and the lines that came before it are still given.
    """

    def __init__(self, limit: int = LINE_BYTES) -> None:
        self.limit = limit
        self._partial = bytearray()
        self._lines: deque[tuple[int, bytes]] = deque()
        self._number = 0
        self._error: PeerError | None = None

    @property
    def buffered(self) -> int:
        """Bytes held of a line that is not whole yet."""
        return len(self._partial)

    @property
    def number(self) -> int:
        """The number of the line that has begun, or is the next to begin."""
        return self._number + 1

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes as they came. Errors wait for `lines`."""
        *whole, rest = bytes(data).split(b"\n")
        for piece in whole:
            self._take(piece)
            self._end_line()
        self._take(rest)

    def end(self) -> None:
        """The peer has no more to say: a last line without a newline counts as a line."""
        if self._partial:
            self._end_line()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines that are whole, in order; then PeerError if the next one is too long."""
        while self._lines:
            yield self._lines.popleft()
        if self._error is not None:
            raise self._error

    def _take(self, piece: bytes) -> None:
        if self._error is None and len(self._partial) + len(piece) > self.limit:
            where, expected = f"line {self._number + 1}", f"at most {self.limit} bytes"
            self._error = PeerError.at(where, expected=expected, got="more", code="frame_too_large")
        if self._error is None:
            self._partial += piece
        else:
            self._partial.clear()

    def _end_line(self) -> None:
        if self._error is not None:
            return
        self._number += 1
        if line := bytes(self._partial).rstrip(b"\r"):
            self._lines.append((self._number, line))
        self._partial.clear()


def parse(line: bytes | str) -> Line:
    """What a line says, or PeerError."""
    said = parse_object(line)
    for key, form in _FORMS:
        if key in said:
            return form(said)
    expected = "an object with " + ", ".join(f'"{key}"' for key, _ in _FORMS)
    raise _unfit("a line", expected, f"the keys {', '.join(said)}" if said else "no keys")


def parse_object(line: bytes | str) -> dict[str, Any]:
    """One JSON object: no name twice, finite numbers, integers of 64 bits, true UTF-8; else PeerError."""
    try:
        text = line if isinstance(line, str) else line.decode()
        said = json.loads(text, object_pairs_hook=_no_name_twice, parse_constant=_no_constant)
    except UnicodeError:
        raise _unfit("a line", "UTF-8", "bytes that are not") from None
    except RecursionError:
        raise _unfit("a line", f"at most {MAX_NESTING} levels", "deep nesting") from None
    except json.JSONDecodeError as error:
        where = f"a line, character {error.pos + 1}"
        raise _unfit(where, "JSON", f"{text[error.pos : error.pos + 20]!r} ({error.msg})") from None
    except ValueError as error:  # an integer of thousands of digits
        raise _unfit("a line", "integers of 64 bits", str(error)[:60], "bad_value") from None
    if not isinstance(said, dict):
        raise _unfit("a line", "a JSON object", spelt(said))
    _check(said, "a line", 1)
    return said


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    said = dict(pairs)
    if len(said) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _unfit("a line", "each name once", f"{spelt(twice)} twice")
    return said


def _no_constant(word: str) -> object:
    raise _unfit("a line", "finite numbers", word, "bad_value")


def _check(value: object, where: str, level: int) -> None:
    """Numbers and text that JSON allows and Millrace does not."""
    if isinstance(value, dict | list):
        if level > MAX_NESTING:
            raise _unfit(where, f"at most {MAX_NESTING} levels", "one more")
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            _check_text(name, where)
            _check(item, f"field {name}", level + 1)
    elif isinstance(value, float) and not isfinite(value):
        raise _unfit(where, "a finite number", "one beyond a double's range", "bad_value")
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


# Reading the forms. Each takes its keys and leaves none over: a misspelt key must not be passed over in silence.


def _only(said: Mapping[str, object], *keys: str) -> None:
    for key in said:
        if key not in keys:
            raise _unfit("a line", "the keys " + ", ".join(keys), spelt(key))


def _text(said: Mapping[str, object], key: str, default: str | None = None) -> str:
    value = said.get(key, default)
    if not isinstance(value, str) or not value:
        raise _unfit(f'"{key}"', "text", spelt(value) if key in said else "no such key")
    return value


def _flag(said: Mapping[str, object], key: str) -> bool:
    value = said.get(key, False)
    if not isinstance(value, bool):
        raise _unfit(f'"{key}"', "true or false", spelt(value))
    return value


def _token(said: Mapping[str, object]) -> Token:
    _only(said, "token")
    return Token(_text(said, "token"))


def _tuple(said: Mapping[str, object]) -> TupleLine:
    _only(said, "stream", "tuple", "feed")
    values = said["tuple"]
    if not isinstance(values, dict):
        raise _unfit('"tuple"', "an object of fields by name", spelt(values))
    return TupleLine(_text(said, "stream"), values, _text(said, "feed", MAIN_FEED))


def _punctuation(said: Mapping[str, object]) -> PunctuationLine:
    _only(said, "stream", "punctuation", "feed")
    try:
        value_us = parse_timestamp(said["punctuation"])
    except TimestampError as error:
        raise PeerError(f'"punctuation": {error.text}', code="bad_value", where='"punctuation"') from None
    return PunctuationLine(_text(said, "stream"), value_us, _text(said, "feed", MAIN_FEED))


def _close(said: Mapping[str, object]) -> CloseLine:
    _only(said, "stream", "close", "feed")
    if said["close"] is not True:
        raise _unfit('"close"', "true", spelt(said["close"]))
    return CloseLine(_text(said, "stream"), _text(said, "feed", MAIN_FEED))


def _subscribe(said: Mapping[str, object]) -> SubscribeLine:
    _only(said, "subscribe", "from", "progress", "history")
    start = said.get("from")
    if start is not None and (not isinstance(start, int) or isinstance(start, bool) or start < 0):
        raise _unfit('"from"', "a sequence number", spelt(start))
    history = None if said.get("history") is None else _text(said, "history")
    return SubscribeLine(_text(said, "subscribe"), start, _flag(said, "progress"), history)


def _unsubscribe(said: Mapping[str, object]) -> UnsubscribeLine:
    _only(said, "unsubscribe")
    return UnsubscribeLine(_text(said, "unsubscribe"))


# The key that makes a line what it is.
_FORMS: Sequence[tuple[str, Callable[[Mapping[str, object]], Line]]] = (
    ("tuple", _tuple),
    ("punctuation", _punctuation),
    ("close", _close),
    ("subscribe", _subscribe),
    ("unsubscribe", _unsubscribe),
    ("token", _token),
)


# Lines out.


def row_line(query: str, sequence: int, row: Mapping[str, object]) -> bytes:
    """`{"query": Q, "seq": N, "row": {...}}`; the row's timestamps are already text, its bytes base64."""
    return _line({"query": query, "seq": sequence, "row": row})


def progress_line(query: str, value_us: int) -> bytes:
    """`{"query": Q, "progress": "..."}`: complete for every timestamp below."""
    return _line({"query": query, "progress": format_timestamp(value_us)})


def error_line(error: MillraceError, line: int | None) -> bytes:
    """`{"error": {"code", "text", "line"}}`: which line (counted from 1), or null if none."""
    return _line({"error": {"code": error.code, "text": error.text, "line": line}})


def late_line(late: Mapping[str, object]) -> bytes:
    """`{"late": {...}}`: a tuple that came too late, for who asked."""
    return _line({"late": late})


def _line(value: object) -> bytes:
    return _ENCODE(value).encode() + b"\n"


_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(", ", ": ")).encode
