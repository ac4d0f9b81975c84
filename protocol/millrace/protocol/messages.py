"""Messages, the content of a frame's body. `encode` and `decode` are inverse to each other.

Rule: a body is one msgpack array `[kind, field, ...]` with exactly the fields of LAYOUT, in order. The array's head and
the kind have one byte each, so `body[1]` is the kind. Maps and extension types are not allowed, and an array only
where a layout has one. This limits nesting: the body 1, rows or schema 2, one row 3. Optional fields are at the end
and may be left out; some require a capability that both sides have (REQUIRED_CAPABILITIES). Invalid bytes raise
PeerError and nothing else. Add a message here (dataclass, Kind, LAYOUT), in `session.py` (its rules), in
`docs/protocol.md` and in the byte vectors.

The hot path does not use `decode`: `peek` reads the head of DATA and returns the offset of the rows, for a decoder that
knows the schema. `data_head` and `array_head` are the counterparts for sending.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import msgpack

from millrace.protocol.errors import MillraceError, PeerError, RowError
from millrace.protocol.fields import (
    BIN_HEADS,
    INT64,
    NUMBER,
    Item,
    UnfitError,
    announced,
    between,
    choice_item,
    flag_item,
    nullable_number_item,
    nullable_text_item,
    number_item,
    or_nil,
    pack_integer,
    read_array,
    read_bytes,
    read_integer,
    read_length,
    read_names,
    read_schema,
    text_item,
    time_item,
    trailing_item,
)
from millrace.protocol.frames import FRAME_BYTES, Body
from millrace.protocol.rows import MAX_ARRAY, Rows, read_keys, read_pairs, read_rows
from millrace.protocol.types import Schema
from millrace.protocol.units import UNITS

PROTOCOL = 1

MAX_CHANNEL = 2**31 - 1
MAX_NESTING = 4
MAX_CHANNELS = 1_024  # open at once on one connection, by default
PRODUCER_CHARACTERS = 1_024  # of the name of a feed or a producer: the server keeps it, and shows it

# The capabilities that clients offer in HELLO and servers grant in WELCOME, with the texts of `docs/protocol.md`.
CAPABILITIES: Mapping[str, str] = {
    "deleted": "the column that marks tombstones is called `$deleted`, not `$gone`, in SUBSCRIBED and RESULT_ARROW",
    "durable": "the server keeps tuples on disk, and ACK may have the meaning `durable`",
    "epoch": "HELLO, WELCOME, OPEN and SUBSCRIBE have the field `epoch`",
    "groups": "PUNCTUATION, ETS_REQUEST and ETS have the field `where`",
    "history": "SUBSCRIBE and SUBSCRIBED have the field `history`",
    "late": "CLOSED of a feed has the field `late`",
    "reads": "SUBSCRIBE has the fields `refresh_us` and `keys`",
    "time_unit": "OPENED has the field `time_unit`",
}


class Kind(IntEnum):
    """The first item of a body. It is below 128, one byte in msgpack."""

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
    """The limits of a server. Both sides observe them; `docs/protocol.md` has the defaults."""

    frame_bytes: int = FRAME_BYTES
    nesting: int = MAX_NESTING
    array_items: int = MAX_ARRAY
    channels: int = MAX_CHANNELS


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's first message. `epoch` is the highest that it has seen of this server or one that replaced it."""

    protocol: int
    client: str
    token: str | None = None
    capabilities: tuple[str, ...] | None = None
    epoch: str | None = None


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server's answer to HELLO: its limits, its clock, and its epoch, which each promotion of a standby raises."""

    protocol: int
    server: str
    limits: Limits
    now_us: int
    capabilities: tuple[str, ...] | None = None
    epoch: str | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """Open a feed of a stream on a new channel.

    `producer` names the feed across connections. `sequence` is the number of the producer's oldest unacknowledged
    tuple, or None to continue at the server's next number. `answers`: this feed answers ETS_REQUEST. `epoch` is the
    number of the epoch in which the tuples below `sequence` were acknowledged.
    """

    channel: int
    stream: str
    fingerprint: str | None
    producer: str
    sequence: int | None = None
    answers: bool = False
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The feed is open: the next tuple's number, the credit, and the schema of its rows.

    `timestamps` is 'external', 'internal' or 'latent'. `time` is the field with the timestamp of an external stream,
    else None. `time_unit` is the unit of numbers in that field, None for microseconds.
    """

    channel: int
    next_sequence: int
    credit: int
    schema: Schema
    timestamps: str = "external"
    time: str | None = None
    time_unit: str | None = None


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
    """A promise: no later tuple of this feed has a lower timestamp.

    With `where`, the promise is about the tuples with these values in the columns of the stream's punctuation key.
    """

    channel: int
    value_us: int
    where: tuple[tuple[str, object], ...] | None = None


@dataclass(frozen=True, slots=True)
class EtsRequest:
    """The server requests a timestamp of a feed; one of at least `need_us` unblocks it.

    With `where`, a promise about the tuples with these values in the columns of the stream's punctuation key is enough:
    they are the group that has waited the longest.
    """

    channel: int
    request: int
    need_us: int
    where: tuple[tuple[str, object], ...] | None = None


@dataclass(frozen=True, slots=True)
class Ets:
    """The answer: a promise like a punctuation, or None if the client cannot promise anything.

    With `where`, it is about the tuples with these values alone.
    """

    channel: int
    request: int
    value_us: int | None
    where: tuple[tuple[str, object], ...] | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """Every tuple of the feed below `sequence` was accepted, or refused by an earlier ERROR.

    `accepted`: it survives the end of the server's process if the server has a data directory. `durable`: it survives
    a power cut, too.
    """

    channel: int
    sequence: int
    meaning: str = "accepted"


@dataclass(frozen=True, slots=True)
class Error:
    """A refusal. With a channel, that message was refused and nothing else. Without one, the connection ends."""

    code: str
    text: str
    channel: int | None = None
    sequence: int | None = None
    row: int | None = None
    expected: str | None = None
    got: str | None = None

    @staticmethod
    def of(error: MillraceError, channel: int | None = None, sequence: int | None = None) -> Error:
        """The message that reports an exception to the peer."""
        detailed = error if isinstance(error, PeerError | RowError) else None
        return Error(
            error.code,
            error.text,
            channel,
            sequence,
            detailed.row if detailed else None,
            detailed.expected if detailed else None,
            detailed.got if detailed else None,
        )


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscribe to a query's rows, from a sequence number or from now on, with `credit` for the first rows.

    `history` is the history of the sequence number, by default the current one. The subscriber looks at the rows every
    `refresh_us`, at all keys or at these values of the update key. `epoch` is the number of the epoch in which it got
    the row before `from_sequence`: a promotion since then may have lost rows that it has.
    """

    channel: int
    query: str
    from_sequence: int | None = None
    credit: int = 65_536
    progress: bool = False
    format: str = "rows"
    history: str | None = None
    refresh_us: int | None = None
    keys: Rows | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The subscription is open: the schema, and the sequence number of the first row with its history."""

    channel: int
    schema: Schema
    next_sequence: int
    history: str | None = None


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
    """The query's rows are complete for every lower timestamp."""

    channel: int
    value_us: int


@dataclass(frozen=True, slots=True)
class Credit:
    """Credit for more tuples: from the server for a feed, from the client for a subscription."""

    channel: int
    tuples: int


@dataclass(frozen=True, slots=True)
class Close:
    """The client ends a feed, which then no longer holds back the stream's time, or a subscription."""

    channel: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The channel has ended, and no message about it follows. `code` is the reason.

    `late` counts the late tuples of a feed among those sent on this channel.
    """

    channel: int
    code: str = "closed"
    text: str = ""
    late: int | None = None


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks whether the peer is alive. The peer answers PONG with the same token."""

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


def _limits(body: Body, at: int) -> tuple[Limits, int]:
    count, at = read_array(body, at)
    if count != 4:
        raise UnfitError(f"{count} items")
    values = []
    for _ in range(count):
        value, at = NUMBER(body, at)
        values.append(value)
    return Limits(*values), at


# The fields of each message, in the order of its dataclass.

_CHANNEL = Item("channel", "integer 0 to 2^31 - 1", between(0, MAX_CHANNEL))
_CHANNEL_OR_NIL = Item("channel", "integer 0 to 2^31 - 1 or nil", or_nil(_CHANNEL.read))
_SCHEMA = Item("schema", "array of [name, type, nullable]", read_schema)
_ROWS = Item("rows", "array of rows", read_rows)
_BATCH = Item("batch", "bytes", read_bytes)
_SEQUENCE = number_item("sequence")
_COUNT = number_item("count")
_LIMITS = Item("limits", "array of 4 integers >= 0", _limits)
_CAPABILITIES = trailing_item(Item("capabilities", "array of text", read_names))
_EPOCH = trailing_item(text_item("epoch"))
_EPOCH_NUMBER = trailing_item(number_item("epoch"))
_WHERE = trailing_item(Item("where", "array of [name, value]", read_pairs))
_HISTORY = trailing_item(text_item("history"))
_REFRESH = trailing_item(Item("refresh_us", "integer 1 to 2^63 - 1", between(1, 2**63 - 1)))
_KEYS = trailing_item(Item("keys", "array of rows", read_keys))

LAYOUT: Mapping[type[Message], tuple[Kind, tuple[Item, ...]]] = {
    Hello: (Kind.HELLO, (number_item("protocol"), text_item("client"), nullable_text_item("token"), _CAPABILITIES,
                         _EPOCH)),
    Welcome: (Kind.WELCOME, (number_item("protocol"), text_item("server"), _LIMITS, time_item("now_us"),
                             _CAPABILITIES, _EPOCH)),
    Open: (Kind.OPEN, (_CHANNEL, text_item("stream"), nullable_text_item("fingerprint"), text_item("producer"),
                       nullable_number_item("sequence"), flag_item("answers"),
                       _EPOCH_NUMBER)),
    Opened: (Kind.OPENED, (_CHANNEL, number_item("next_sequence"), number_item("credit"), _SCHEMA,
                           choice_item("timestamps", "external", "internal", "latent"), nullable_text_item("time"),
                           trailing_item(choice_item("time_unit", *UNITS)))),
    Data: (Kind.DATA, (_CHANNEL, _SEQUENCE, _ROWS)),
    DataArrow: (Kind.DATA_ARROW, (_CHANNEL, _SEQUENCE, _COUNT, _BATCH)),
    Punctuation: (Kind.PUNCTUATION, (_CHANNEL, time_item("value_us"), _WHERE)),
    EtsRequest: (Kind.ETS_REQUEST, (_CHANNEL, number_item("request"), time_item("need_us"), _WHERE)),
    Ets: (Kind.ETS, (_CHANNEL, number_item("request"), Item("value_us", "integer or nil", or_nil(INT64)), _WHERE)),
    Ack: (Kind.ACK, (_CHANNEL, _SEQUENCE, choice_item("meaning", "accepted", "durable"))),
    Error: (Kind.ERROR, (text_item("code"), text_item("text"), _CHANNEL_OR_NIL, nullable_number_item("sequence"),
                         nullable_number_item("row"), nullable_text_item("expected"), nullable_text_item("got"))),
    Subscribe: (Kind.SUBSCRIBE, (_CHANNEL, text_item("query"), nullable_number_item("from_sequence"),
                                 number_item("credit"), flag_item("progress"), choice_item("format", "rows", "arrow"),
                                 _HISTORY, _REFRESH, _KEYS, _EPOCH_NUMBER)),
    Subscribed: (Kind.SUBSCRIBED, (_CHANNEL, _SCHEMA, number_item("next_sequence"), _HISTORY)),
    Result: (Kind.RESULT, (_CHANNEL, _SEQUENCE, _ROWS)),
    ResultArrow: (Kind.RESULT_ARROW, (_CHANNEL, _SEQUENCE, _COUNT, _BATCH)),
    Progress: (Kind.PROGRESS, (_CHANNEL, time_item("value_us"))),
    Credit: (Kind.CREDIT, (_CHANNEL, number_item("tuples"))),
    Close: (Kind.CLOSE, (_CHANNEL,)),
    Closed: (Kind.CLOSED, (_CHANNEL, text_item("code"), text_item("text"), trailing_item(number_item("late")))),
    Ping: (Kind.PING, (number_item("token"),)),
    Pong: (Kind.PONG, (number_item("token"),)),
    Bye: (Kind.BYE, (text_item("reason"),)),
}  # fmt: skip
# The capability that an optional field requires. HELLO and WELCOME negotiate capabilities, so theirs require none.
REQUIRED_CAPABILITIES: Mapping[type[Message], Mapping[str, str]] = {
    Open: {"epoch": "epoch"},
    Subscribe: {"history": "history", "refresh_us": "reads", "keys": "reads", "epoch": "epoch"},
    Subscribed: {"history": "history"},
    Closed: {"late": "late"},
    Opened: {"time_unit": "time_unit"},
    Punctuation: {"where": "groups"},
    EtsRequest: {"where": "groups"},
    Ets: {"where": "groups"},
}
_MESSAGES: Mapping[int, tuple[type[Message], tuple[Item, ...]]] = {
    kind: (message, items) for message, (kind, items) in LAYOUT.items()
}
_KIND_NAMES: Mapping[int, str] = {kind: kind.name for kind in Kind}


def kind_of(message: Message) -> Kind:
    """The kind in the body of this message."""
    return LAYOUT[type(message)][0]


def encode(message: Message) -> bytes:
    """The body of a frame. The caller guarantees valid UTF-8 and values within the ranges of their fields."""
    kind, items = LAYOUT[type(message)]
    fields = [_to_data(getattr(message, item.name)) for item in items]
    while items[len(fields) - 1].optional and fields[-1] is None:
        fields.pop()
    return bytes(msgpack.packb([int(kind), *fields], use_bin_type=True))


def _to_data(value: object) -> object:
    if isinstance(value, Schema):
        return value.to_data()
    if isinstance(value, Limits):
        return [value.frame_bytes, value.nesting, value.array_items, value.channels]
    return value


def decode(body: Body) -> Message:
    """The message in a body, or PeerError with code, expected, got and where."""
    if len(body) < 2 or body[0] & 0xF0 != 0x90:
        raise PeerError.at(
            "the head of a body",
            expected="an array [kind, ...] of at most 15 items, its head one byte",
            got=announced(body[0]) if len(body) else "nothing",
            code="bad_message",
        )
    layout = _MESSAGES.get(body[1])
    if layout is None:
        got = f"{body[1]}" if body[1] < 0x80 else announced(body[1])
        raise PeerError.at("the kind of a message", expected="1 to 22 in one byte", got=got, code="bad_message")
    return _fields(body, *layout)


def _fields(body: Body, message: type[Message], items: tuple[Item, ...]) -> Message:
    name = _KIND_NAMES[body[1]]
    count = (body[0] & 0x0F) - 1
    if count != len(items) and not (count < len(items) and items[count].optional):
        least = sum(not item.optional for item in items)
        expected = f"{least} fields after the kind" if least == len(items) else f"{least} to {len(items)} fields"
        raise PeerError.at(name, expected=expected, got=str(count), code="bad_message")
    values, at = [], 2
    for item in items[:count]:
        try:
            value, at = item.read(body, at)
        except UnfitError as unfit:
            where, expected = f"{name}, field {item.name}", item.expects
            raise PeerError.at(where, expected=expected, got=unfit.got, code=unfit.code) from None
        except (IndexError, struct.error):
            raise _cut_short(f"{name}, field {item.name}", item.expects) from None
        values.append(value)
    if at != len(body):
        raise PeerError.at(name, expected="its end", got=f"{len(body) - at} more bytes", code="bad_frame")
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

    Raises PeerError if the head is broken or announces more rows than an array may have. The schema-typed decoder
    checks the rows: that there are `tuples` of them, and no further bytes.
    """
    assert carries_tuples(body), "peek reads messages that carry tuples; check carries_tuples first"
    kind = body[1]
    name = _KIND_NAMES[kind]
    head = 0x94 if kind in _ROW_KINDS else 0x95
    if body[0] != head:
        raise PeerError.at(name, expected=f"an array of {head & 15} items", got="another head", code="bad_message")
    try:
        return _head(body, kind)
    except UnfitError as unfit:
        raise PeerError.at(f"the head of {name}", expected="its fields", got=unfit.got, code=unfit.code) from None
    except (IndexError, struct.error):
        raise _cut_short(f"the head of {name}", "channel, sequence and the start of the rows") from None


def _head(body: Body, kind: int) -> Head:
    channel, at = read_integer(body, 2)
    if not 0 <= channel <= MAX_CHANNEL:
        raise UnfitError(f"channel {channel}")
    sequence, at = NUMBER(body, at)
    if kind in _ROW_KINDS:
        count, _ = read_array(body, at)
        offset = at
    else:
        count, at = NUMBER(body, at)
        length, offset = read_length(body, at, BIN_HEADS, 0, 0)
        if offset + length != len(body):
            raise UnfitError(f"an announced length of {length} with {len(body) - offset} bytes left", "bad_frame")
    if count > MAX_ARRAY and kind in _ROW_KINDS:
        raise UnfitError(f"{count} rows, above {MAX_ARRAY}")
    return Head(kind, channel, sequence, offset, count)


def ack(channel: int, sequence: int, durable: bool = False) -> bytes:
    """The body of an ACK: what `encode` returns for `Ack(channel, sequence, meaning)`."""
    return _ACK + pack_integer(channel) + pack_integer(sequence) + (_DURABLE if durable else _ACCEPTED)


def channel_head(kind: Kind, channel: int) -> bytes:
    """The first bytes of DATA, DATA_ARROW, RESULT or RESULT_ARROW: a body is these, the sequence number, and either one
    msgpack array of arrays, or `arrow_head(...)` and the Arrow stream."""
    assert kind in CARRIES_TUPLES, "tuples travel in DATA, DATA_ARROW, RESULT and RESULT_ARROW"
    return bytes((0x94 if kind in _ROW_KINDS else 0x95, kind)) + pack_integer(channel)


def data_head(kind: Kind, channel: int, sequence: int) -> bytes:
    """The bytes of a body before its rows, or before `arrow_head(...)`."""
    return channel_head(kind, channel) + pack_integer(sequence)


def arrow_head(count: int, size: int) -> bytes:
    """The bytes before an Arrow stream of `count` tuples and `size` bytes."""
    return pack_integer(count) + b"\xc6" + size.to_bytes(4, "big")


_ACK = bytes((0x94, Kind.ACK))
_ACCEPTED, _DURABLE = (bytes(msgpack.packb(meaning)) for meaning in ("accepted", "durable"))
