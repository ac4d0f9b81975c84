"""Messages: what a frame's body says. `encode` and `decode` are each other's inverse.

Rule: a body is one msgpack array `[kind, field, ...]` with exactly the fields of LAYOUT, in its
order; the array's head and the kind take one byte each, so `body[1]` is the kind. There are no maps and
no extension types, and an array stands only where a layout has one, so nesting is bounded by construction:
the body 1, rows or schema 2, one row 3. Garbage gives PeerError and nothing else. A message is added here
(dataclass, Kind, LAYOUT), in `session.py` (its rules), in `docs/protocol.md` and in the byte vectors.

The hot way does not pass through `decode`: `peek` reads the head of DATA and gives the place where the rows
begin, for a decoder that knows the schema; `data_head` and `array_head` are its counterpart for sending.
"""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import isfinite
from typing import Any, NamedTuple

import msgpack

from millrace.protocol.errors import MillraceError, PeerError, RowError
from millrace.protocol.frames import FRAME_BYTES, Body
from millrace.protocol.types import FIELD_TYPES, MAX_INT64, MIN_INT64, Field, Schema, Type

PROTOCOL = 1

MAX_CHANNEL = 2**31 - 1
MAX_ARRAY = 65_536  # rows of a frame, and any other array
MAX_COLUMNS = 4_096  # values of a row; with it a hostile row of nested arrays costs at most 32 MiB while it is refused
MAX_NESTING = 4
MAX_CHANNELS = 1_024  # open at once on one connection, by default
MAX_TEXT = 65_536  # bytes of a name, a token, an error's text


class Kind(IntEnum):
    """The first item of a body. One byte as msgpack, so below 128."""

    HELLO = 1
    WELCOME = 2
    OPEN = 3
    OPENED = 4
    DATA = 5
    DATA_ARROW = 6
    PUNCTUATION = 7
    ETS_REQUEST = 8
    ETS = 9
    ACK = 10
    ERROR = 11
    SUBSCRIBE = 12
    SUBSCRIBED = 13
    RESULT = 14
    RESULT_ARROW = 15
    PROGRESS = 16
    CREDIT = 17
    CLOSE = 18
    CLOSED = 19
    PING = 20
    PONG = 21
    BYE = 22


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server takes. A client keeps to them; defaults are those of DESIGN's contract."""

    frame_bytes: int = FRAME_BYTES
    nesting: int = MAX_NESTING
    array_items: int = MAX_ARRAY
    channels: int = MAX_CHANNELS


# Rows as the decoder gives them: tuples of None, bool, int, float, str, bytes.
Rows = Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's first message."""

    protocol: int
    client: str
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server's answer to HELLO: what it takes, and its clock."""

    protocol: int
    server: str
    limits: Limits
    now_us: int


@dataclass(frozen=True, slots=True)
class Open:
    """Open a feed of a stream on a new channel.

    `producer` names the feed across connections. `sequence` is the number of the oldest tuple that the
    producer still holds unacknowledged, or None when it begins anew and takes up where the server is.
    `answers` says that this feed will answer ETS_REQUEST.
    """

    channel: int
    stream: str
    fingerprint: str | None
    producer: str
    sequence: int | None = None
    answers: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """The feed is open: the next tuple's number, the credit, and the schema that its rows have.

    `timestamps` is 'external', 'internal' or 'latent'; `time` names the field that carries an external
    stream's timestamp, else None.
    """

    channel: int
    next_sequence: int
    credit: int
    schema: Schema
    timestamps: str = "external"
    time: str | None = None


@dataclass(frozen=True, slots=True)
class Data:
    """Rows of a feed; `sequence` is the number of the first."""

    channel: int
    sequence: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class DataArrow:
    """`count` tuples of a feed as one Arrow IPC stream (schema and record batches)."""

    channel: int
    sequence: int
    count: int
    batch: bytes


@dataclass(frozen=True, slots=True)
class Punctuation:
    """No later tuple of this feed has a timestamp below the value."""

    channel: int
    value_us: int


@dataclass(frozen=True, slots=True)
class EtsRequest:
    """The server asks a feed for a timestamp; one of at least `need_us` would unblock it."""

    channel: int
    request: int
    need_us: int


@dataclass(frozen=True, slots=True)
class Ets:
    """The answer: a promise like a punctuation, or None when the client has none to give."""

    channel: int
    request: int
    value_us: int | None


@dataclass(frozen=True, slots=True)
class Ack:
    """Every tuple of the feed below `sequence` was dealt with: taken, or refused by an ERROR of its own."""

    channel: int
    sequence: int
    meaning: str = "accepted"


@dataclass(frozen=True, slots=True)
class Error:
    """A refusal. With a channel: that message was refused, all else goes on. Without: the connection ends."""

    code: str
    text: str
    channel: int | None = None
    sequence: int | None = None
    row: int | None = None
    expected: str | None = None
    got: str | None = None

    @staticmethod
    def of(error: MillraceError, channel: int | None = None, sequence: int | None = None) -> Error:
        """An exception as the message that tells the peer."""
        known = error if isinstance(error, PeerError | RowError) else None
        return Error(
            error.code,
            error.text,
            channel,
            sequence,
            known.row if known else None,
            known.expected if known else None,
            known.got if known else None,
        )


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Ask for a query's rows: from a sequence number or from now on, at most `credit` of them for the start."""

    channel: int
    query: str
    from_sequence: int | None = None
    credit: int = 65_536
    progress: bool = False
    format: str = "rows"


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The subscription stands: the rows' schema and the number of the first row that will come."""

    channel: int
    schema: Schema
    next_sequence: int


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of a query; `sequence` is the number of the first."""

    channel: int
    sequence: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class ResultArrow:
    """`count` rows of a query as one Arrow IPC stream."""

    channel: int
    sequence: int
    count: int
    batch: bytes


@dataclass(frozen=True, slots=True)
class Progress:
    """The query's rows are complete for every timestamp below the value."""

    channel: int
    value_us: int


@dataclass(frozen=True, slots=True)
class Credit:
    """So many more tuples may come: to a feed from the server, to a subscription from the client."""

    channel: int
    tuples: int


@dataclass(frozen=True, slots=True)
class Close:
    """The client ends a feed (deliberately: its hold on time ends) or a subscription."""

    channel: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The channel has ended; nothing about it follows. `code` says why."""

    channel: int
    code: str = "closed"
    text: str = ""


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there? The peer answers PONG with the same token."""

    token: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to PING."""

    token: int


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender's last message; the connection is closed after it."""

    reason: str = ""


Message = (
    Hello | Welcome | Open | Opened | Data | DataArrow | Punctuation | EtsRequest | Ets | Ack | Error | Subscribe
    | Subscribed | Result | ResultArrow | Progress | Credit | Close | Closed | Ping | Pong | Bye
)  # fmt: skip


# Reading fields. A reader takes the body and a place, and gives the value and the place after it. It raises
# _UnfitError when what stands there is not what the layout wants, IndexError or struct.error when the body ends early.

Reader = Callable[[Body, int], tuple[Any, int]]


class _UnfitError(Exception):
    def __init__(self, got: str, code: str = "bad_message") -> None:
        self.got = got
        self.code = code


_NIL = 0xC0
_INTEGERS: Mapping[int, struct.Struct] = {
    0xCC: struct.Struct(">B"), 0xCD: struct.Struct(">H"), 0xCE: struct.Struct(">I"), 0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"), 0xD1: struct.Struct(">h"), 0xD2: struct.Struct(">i"), 0xD3: struct.Struct(">q"),
}  # fmt: skip
_LENGTH_BYTES: Mapping[int, int] = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4, 0xDC: 2, 0xDD: 4}
_TEXT_HEADS, _BIN_HEADS, _ARRAY_HEADS = (0xD9, 0xDA, 0xDB), (0xC4, 0xC5, 0xC6), (0xDC, 0xDD)
# What a first byte announces, for the texts of errors: (first, last, words).
_ANNOUNCES = (
    (0x00, 0x7F, "an integer"), (0x80, 0x8F, "a map"), (0x90, 0x9F, "an array"), (0xA0, 0xBF, "text"),
    (0xC0, 0xC0, "nil"), (0xC1, 0xC1, "a byte that msgpack never uses"), (0xC2, 0xC3, "a boolean"),
    (0xC4, 0xC6, "bytes"), (0xC7, 0xC9, "an extension type"), (0xCA, 0xCB, "a float"), (0xCC, 0xD3, "an integer"),
    (0xD4, 0xD8, "an extension type"), (0xD9, 0xDB, "text"), (0xDC, 0xDD, "an array"), (0xDE, 0xDF, "a map"),
    (0xE0, 0xFF, "an integer"),
)  # fmt: skip


def _announced(first: int) -> str:
    return next(words for low, high, words in _ANNOUNCES if low <= first <= high)


def _integer(body: Body, at: int) -> tuple[int, int]:
    first = body[at]
    if first < 0x80:
        return first, at + 1
    if first >= 0xE0:
        return first - 256, at + 1
    form = _INTEGERS.get(first)
    if form is None:
        raise _UnfitError(_announced(first))
    return form.unpack_from(body, at + 1)[0], at + 1 + form.size


def _between(low: int, high: int) -> Reader:
    def read(body: Body, at: int) -> tuple[int, int]:
        value, at = _integer(body, at)
        if not low <= value <= high:
            raise _UnfitError(str(value))
        return value, at

    return read


def _length(body: Body, at: int, heads: tuple[int, ...], fix: int, fix_mask: int) -> tuple[int, int]:
    """The length of text, bytes or an array that begins here, and the place of its content."""
    first = body[at]
    if fix and first & fix_mask == fix:
        return first & ~fix_mask & 0xFF, at + 1
    if first not in heads:
        raise _UnfitError(_announced(first))
    size = _LENGTH_BYTES[first]
    if at + 1 + size > len(body):
        raise IndexError
    return int.from_bytes(body[at + 1 : at + 1 + size], "big"), at + 1 + size


def _content(body: Body, at: int, length: int) -> tuple[bytes, int]:
    if at + length > len(body):
        raise IndexError
    return bytes(body[at : at + length]), at + length


def _text(body: Body, at: int) -> tuple[str, int]:
    length, at = _length(body, at, _TEXT_HEADS, 0xA0, 0xE0)
    if length > MAX_TEXT:
        raise _UnfitError(f"text of {length} bytes")
    content, at = _content(body, at, length)
    try:
        return content.decode(), at
    except UnicodeDecodeError:
        raise _UnfitError("bytes that are not UTF-8") from None


def _one_of(*choices: str) -> Reader:
    def read(body: Body, at: int) -> tuple[str, int]:
        value, at = _text(body, at)
        if value not in choices:
            raise _UnfitError(repr(value[:60]))
        return value, at

    return read


def _or_nil(reader: Reader) -> Reader:
    def read(body: Body, at: int) -> tuple[Any, int]:
        return (None, at + 1) if body[at] == _NIL else reader(body, at)

    return read


def _boolean(body: Body, at: int) -> tuple[bool, int]:
    first = body[at]
    if first not in (0xC2, 0xC3):
        raise _UnfitError(_announced(first))
    return first == 0xC3, at + 1


def _bytes(body: Body, at: int) -> tuple[bytes, int]:
    length, at = _length(body, at, _BIN_HEADS, 0, 0)
    return _content(body, at, length)


def _array(body: Body, at: int) -> tuple[int, int]:
    """The number of items of the array that begins here, and the place of the first."""
    return _length(body, at, _ARRAY_HEADS, 0x90, 0xF0)


def _limits(body: Body, at: int) -> tuple[Limits, int]:
    count, at = _array(body, at)
    if count != 4:
        raise _UnfitError(f"{count} items")
    values = []
    for _ in range(count):
        value, at = _NUMBER(body, at)
        values.append(value)
    return Limits(*values), at


def _schema(body: Body, at: int) -> tuple[Schema, int]:
    count, at = _array(body, at)
    if count > MAX_COLUMNS:
        raise _UnfitError(f"{count} fields")
    fields = []
    for _ in range(count):
        field, at = _field(body, at)
        fields.append(field)
    if len({field.name for field in fields}) < count:
        raise _UnfitError("a name given twice")
    return Schema(tuple(fields)), at


def _field(body: Body, at: int) -> tuple[Field, int]:
    count, at = _array(body, at)
    if count != 3:
        raise _UnfitError(f"a field of {count} items")
    name, at = _text(body, at)
    name_of_type, at = _TYPE(body, at)
    nullable, at = _boolean(body, at)
    return Field(name, Type(name_of_type), nullable), at


_MAP_REFUSED = "a map"


def _refuse_map(_: object) -> object:
    raise ValueError(_MAP_REFUSED)


def _rows(body: Body, at: int) -> tuple[list[tuple[object, ...]], int]:
    """Rows as tuples: each value none of array, map, extension; finite; integers within 64 bits signed."""
    count, at = _array(body, at)
    if count > MAX_ARRAY:
        raise _UnfitError(f"{count} rows")
    size = len(body) - at
    unpacker = msgpack.Unpacker(
        use_list=False, max_array_len=MAX_COLUMNS, max_map_len=MAX_COLUMNS, max_ext_len=0, object_hook=_refuse_map,
        max_buffer_size=max(size, 1), max_str_len=size, max_bin_len=size,
    )  # fmt: skip
    unpacker.feed(body[at:])
    try:
        rows = list(unpacker)
    except ValueError as error:
        raise _UnfitError(f"broken or forbidden msgpack ({str(error) or type(error).__name__})", "bad_frame") from None
    if unpacker.tell() != size or len(rows) != count:
        raise _UnfitError(f"{len(rows)} whole items", "bad_frame")
    check_rows(rows)
    return rows, len(body)


_PLAIN = frozenset({type(None), bool, str, bytes})
_VALUES = _PLAIN | {int, float}


def check_rows(rows: Sequence[Any]) -> None:
    """Rows are tuples of one length, of values that the wire allows; PeerError says which row is not."""
    if rows and not _fit(rows):
        row, expected, code = next((row, *fault) for row, fault in enumerate(map(_fault(rows[0]), rows)) if fault)
        raise PeerError.at(f"row {row}", expected=expected, got=reprlib.repr(rows[row]), code=code, row=row)


def _fit(rows: Sequence[Any]) -> bool:
    """The fast way, a column at a time, for the frames that are right."""
    if set(map(type, rows)) != {tuple} or len(set(map(len, rows))) > 1:
        return False
    return all(_column_fits(column, set(map(type, column))) for column in zip(*rows, strict=True))


def _column_fits(column: Sequence[Any], types: set[type]) -> bool:
    if types <= _PLAIN:
        return True
    if types == {float}:
        return all(map(isfinite, column))
    if types == {int}:
        return bool(max(column) <= MAX_INT64)
    return types <= _VALUES and all(_allowed(value) for value in column)


def _allowed(value: object) -> bool:
    return isfinite(value) if isinstance(value, float) else not isinstance(value, int) or value <= MAX_INT64


def _fault(first: object) -> Callable[[object], tuple[str, str] | None]:
    """The slow way, for one row: what was expected of it and the code, or None if it is right."""
    width = len(first) if isinstance(first, tuple) else 0

    def fault(row: object) -> tuple[str, str] | None:
        if not isinstance(row, tuple):
            return "an array of values", "bad_row"
        if len(row) != width:
            return f"{width} values, as in the first row", "bad_row"
        if not set(map(type, row)) <= _VALUES:
            return "nil, booleans, integers, floats, text and bytes only", "bad_row"
        return None if all(map(_allowed, row)) else ("finite floats and integers of 64 bits, signed", "bad_value")

    return fault


# The fields of each message, in the order of its dataclass: (name, what is expected, reader).

_NUMBER = _between(0, MAX_INT64)
_INT64 = _between(MIN_INT64, MAX_INT64)
_TYPE = _one_of(*(known.value for known in FIELD_TYPES))


class Item(NamedTuple):
    """One field of a layout; `expects` is the wording of `docs/protocol.md`."""

    name: str
    expects: str
    read: Reader


def _number(name: str) -> Item:
    return Item(name, "integer >= 0", _NUMBER)


def _number_or_nil(name: str) -> Item:
    return Item(name, "integer >= 0 or nil", _or_nil(_NUMBER))


def _time(name: str) -> Item:
    return Item(name, "integer", _INT64)


def _words(name: str) -> Item:
    return Item(name, "text", _text)


def _words_or_nil(name: str) -> Item:
    return Item(name, "text or nil", _or_nil(_text))


def _flag(name: str) -> Item:
    return Item(name, "boolean", _boolean)


def _choice(name: str, *choices: str) -> Item:
    return Item(name, " or ".join(f"'{choice}'" for choice in choices), _one_of(*choices))


_CHANNEL = Item("channel", "integer 0 to 2^31 - 1", _between(0, MAX_CHANNEL))
_CHANNEL_OR_NIL = Item("channel", "integer 0 to 2^31 - 1 or nil", _or_nil(_CHANNEL.read))
_SCHEMA = Item("schema", "array of [name, type, nullable]", _schema)
_ROWS = Item("rows", "array of rows", _rows)
_BATCH = Item("batch", "bytes", _bytes)
_SEQUENCE = _number("sequence")
_COUNT = Item("count", "integer >= 0", _NUMBER)

LAYOUT: Mapping[type[Message], tuple[Kind, tuple[Item, ...]]] = {
    Hello: (Kind.HELLO, (_number("protocol"), _words("client"), _words_or_nil("token"))),
    Welcome: (Kind.WELCOME, (_number("protocol"), _words("server"), Item("limits", "array of 4 integers >= 0", _limits),
                             _time("now_us"))),
    Open: (Kind.OPEN, (_CHANNEL, _words("stream"), _words_or_nil("fingerprint"), _words("producer"),
                       _number_or_nil("sequence"), _flag("answers"))),
    Opened: (Kind.OPENED, (_CHANNEL, _number("next_sequence"), _number("credit"), _SCHEMA,
                           _choice("timestamps", "external", "internal", "latent"), _words_or_nil("time"))),
    Data: (Kind.DATA, (_CHANNEL, _SEQUENCE, _ROWS)),
    DataArrow: (Kind.DATA_ARROW, (_CHANNEL, _SEQUENCE, _COUNT, _BATCH)),
    Punctuation: (Kind.PUNCTUATION, (_CHANNEL, _time("value_us"))),
    EtsRequest: (Kind.ETS_REQUEST, (_CHANNEL, _number("request"), _time("need_us"))),
    Ets: (Kind.ETS, (_CHANNEL, _number("request"), Item("value_us", "integer or nil", _or_nil(_INT64)))),
    Ack: (Kind.ACK, (_CHANNEL, _SEQUENCE, _choice("meaning", "accepted", "durable"))),
    Error: (Kind.ERROR, (_words("code"), _words("text"), _CHANNEL_OR_NIL, _number_or_nil("sequence"),
                         _number_or_nil("row"), _words_or_nil("expected"), _words_or_nil("got"))),
    Subscribe: (Kind.SUBSCRIBE, (_CHANNEL, _words("query"), _number_or_nil("from_sequence"), _number("credit"),
                                 _flag("progress"), _choice("format", "rows", "arrow"))),
    Subscribed: (Kind.SUBSCRIBED, (_CHANNEL, _SCHEMA, _number("next_sequence"))),
    Result: (Kind.RESULT, (_CHANNEL, _SEQUENCE, _ROWS)),
    ResultArrow: (Kind.RESULT_ARROW, (_CHANNEL, _SEQUENCE, _COUNT, _BATCH)),
    Progress: (Kind.PROGRESS, (_CHANNEL, _time("value_us"))),
    Credit: (Kind.CREDIT, (_CHANNEL, _number("tuples"))),
    Close: (Kind.CLOSE, (_CHANNEL,)),
    Closed: (Kind.CLOSED, (_CHANNEL, _words("code"), _words("text"))),
    Ping: (Kind.PING, (_number("token"),)),
    Pong: (Kind.PONG, (_number("token"),)),
    Bye: (Kind.BYE, (_words("reason"),)),
}  # fmt: skip
_MESSAGES: Mapping[int, tuple[type[Message], tuple[Item, ...]]] = {
    kind: (message, items) for message, (kind, items) in LAYOUT.items()
}
_KIND_NAMES: Mapping[int, str] = {kind: kind.name for kind in Kind}


def kind_of(message: Message) -> Kind:
    """The kind that stands at the head of this message's body."""
    return LAYOUT[type(message)][0]


def encode(message: Message) -> bytes:
    """The body of a frame. Text must be UTF-8 and values within their fields' ranges: the caller's promise."""
    kind, items = LAYOUT[type(message)]
    fields = (_to_data(getattr(message, item.name)) for item in items)
    return bytes(msgpack.packb([int(kind), *fields], use_bin_type=True))


def _to_data(value: object) -> object:
    if isinstance(value, Schema):
        return value.to_data()
    if isinstance(value, Limits):
        return [value.frame_bytes, value.nesting, value.array_items, value.channels]
    return value


def decode(body: Body) -> Message:
    """The message of a body, or PeerError with code, expected, got and where."""
    if len(body) < 2 or body[0] & 0xF0 != 0x90:
        raise PeerError.at(
            "the head of a body",
            expected="an array [kind, ...] of at most 15 items, its head one byte",
            got=_announced(body[0]) if len(body) else "nothing",
            code="bad_message",
        )
    known = _MESSAGES.get(body[1])
    if known is None:
        got = f"{body[1]}" if body[1] < 0x80 else _announced(body[1])
        raise PeerError.at("the kind of a message", expected="1 to 22 in one byte", got=got, code="bad_message")
    return _fields(body, *known)


def _fields(body: Body, message: type[Message], items: tuple[Item, ...]) -> Message:
    name = _KIND_NAMES[body[1]]
    if (count := body[0] & 0x0F) != len(items) + 1:
        expected, got = f"{len(items)} fields after the kind", str(count - 1)
        raise PeerError.at(name, expected=expected, got=got, code="bad_message")
    values, at = [], 2
    for item in items:
        try:
            value, at = item.read(body, at)
        except _UnfitError as unfit:
            where, expected = f"{name}, field {item.name}", item.expects
            raise PeerError.at(where, expected=expected, got=unfit.got, code=unfit.code) from None
        except (IndexError, struct.error):
            raise _cut_short(f"{name}, field {item.name}", item.expects) from None
        values.append(value)
    if at != len(body):
        raise PeerError.at(name, expected="its end", got=f"{len(body) - at} bytes more", code="bad_frame")
    return message(*values)


def _cut_short(where: str, expected: str) -> PeerError:
    return PeerError.at(where, expected=expected, got="the end of the body", code="bad_frame")


class Head(NamedTuple):
    """The head of DATA, DATA_ARROW, RESULT or RESULT_ARROW.

    `body[offset:]` is the msgpack array of `tuples` rows, or the Arrow IPC stream itself.
    """

    kind: int
    channel: int
    sequence: int
    offset: int
    tuples: int


_ROW_KINDS = {Kind.DATA, Kind.RESULT}
_ARROW_KINDS = {Kind.DATA_ARROW, Kind.RESULT_ARROW}
CARRIES_TUPLES = frozenset(_ROW_KINDS | _ARROW_KINDS)


def carries_tuples(body: Body) -> bool:
    """Whether `peek` reads this body (else `decode` does)."""
    return len(body) > 1 and body[1] in CARRIES_TUPLES


def peek(body: Body) -> Head:
    """Read the head of a message that carries tuples, without touching its rows.

    PeerError if the head is broken or claims more rows than an array may have. The rows are the schema-typed
    decoder's to check: that there are `tuples` of them, and nothing after.
    """
    assert carries_tuples(body), "peek reads the messages that carry tuples; ask carries_tuples first"
    kind = body[1]
    name = _KIND_NAMES[kind]
    wanted = 0x94 if kind in _ROW_KINDS else 0x95
    if body[0] != wanted:
        raise PeerError.at(name, expected=f"an array of {wanted & 15} items", got="another head", code="bad_message")
    try:
        return _head(body, kind)
    except _UnfitError as unfit:
        raise PeerError.at(f"the head of {name}", expected="its fields", got=unfit.got, code=unfit.code) from None
    except (IndexError, struct.error):
        raise _cut_short(f"the head of {name}", "channel, sequence and the beginning of the rows") from None


def _head(body: Body, kind: int) -> Head:
    channel, at = _integer(body, 2)
    if not 0 <= channel <= MAX_CHANNEL:
        raise _UnfitError(f"channel {channel}")
    sequence, at = _NUMBER(body, at)
    if kind in _ROW_KINDS:
        count, _ = _array(body, at)
        offset = at
    else:
        count, at = _NUMBER(body, at)
        length, offset = _length(body, at, _BIN_HEADS, 0, 0)
        if offset + length != len(body):
            raise _UnfitError(f"bytes that claim to be {length} in {len(body) - offset}", "bad_frame")
    if count > MAX_ARRAY and kind in _ROW_KINDS:
        raise _UnfitError(f"{count} rows, above {MAX_ARRAY}")
    return Head(kind, channel, sequence, offset, count)


def data_head(kind: Kind, channel: int, sequence: int) -> bytes:
    """What stands before the rows: a body is `data_head(...)` and then one msgpack array of arrays."""
    assert kind in _ROW_KINDS, "rows travel in DATA and RESULT"
    return bytes((0x94, kind)) + pack_integer(channel) + pack_integer(sequence)


def array_head(count: int) -> bytes:
    """The head of a msgpack array of so many items that follow."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 65_536 else b"\xdd" + count.to_bytes(4, "big")


def pack_integer(value: int) -> bytes:
    """A non-negative integer in msgpack's shortest form."""
    if value < 0x80:
        return bytes((value,))
    for first, size in ((0xCC, 1), (0xCD, 2), (0xCE, 4)):
        if value < 1 << 8 * size:
            return bytes((first,)) + value.to_bytes(size, "big")
    return b"\xcf" + value.to_bytes(8, "big")
