"""Session rules: which side may send which message when. One table for connections, one for channels.

Rule: the tables are data and total (a test checks every cell), so each cell of a new message or phase must be decided.
Sans-I/O and the same for both sides: `receive` checks messages of the peer, and `say` records messages of this side.
A refused message changes nothing.

Phases of a channel, from the client's request to its end:

    FREE -> OPENING -> FEED    -> CLOSING_FEED -> GONE       a feed
    FREE -> ASKING  -> READING -> CLOSING_READ -> GONE       a subscription

Channel numbers only increase within a connection, so GONE needs no memory: a number that is neither open nor above the
highest one is gone, and messages in flight for it are silently dropped.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from millrace.protocol.epochs import epoch_number
from millrace.protocol.errors import PeerError, Refuse
from millrace.protocol.frames import frame
from millrace.protocol.messages import (
    CAPABILITIES,
    PROTOCOL,
    REQUIRED_CAPABILITIES,
    Ack,
    Credit,
    Data,
    DataArrow,
    Ets,
    EtsRequest,
    Hello,
    Kind,
    Limits,
    Message,
    Open,
    Opened,
    Result,
    ResultArrow,
    Subscribe,
    Subscribed,
    Welcome,
    ack,
    encode,
    kind_of,
)
from millrace.protocol.types import MAX_INT64


class Side(Enum):
    """The sender of a message."""

    CLIENT = "client"
    SERVER = "server"

    __hash__ = object.__hash__  # Enum's own takes as long as all else of a look-up in the tables

    @property
    def other(self) -> Side:
        return Side.SERVER if self is Side.CLIENT else Side.CLIENT


class Stage(Enum):
    """The stage of a connection. The values are for error texts."""

    NEW = "HELLO was not sent yet"
    GREETED = "HELLO was sent, and WELCOME was not"
    READY = "WELCOME was sent"
    ENDED = "BYE, or ERROR without a channel, was sent"


class Phase(Enum):
    """The phase of a channel. The values are for error texts."""

    FREE = "not used yet"
    OPENING = "OPEN was sent"
    FEED = "an open feed"
    ASKING = "SUBSCRIBE was sent"
    READING = "an open subscription"
    CLOSING_FEED = "a feed after CLOSE"
    CLOSING_READ = "a subscription after CLOSE"
    GONE = "ended"

    __hash__ = object.__hash__


class Verdict(Enum):
    """The entry of a table where no stage or phase follows."""

    DROP = "in flight when its channel or connection ended: ignored, and not an error"
    UNEXPECTED = "unexpected_message"
    USED = "channel_used"
    NOT_OPEN = "not_open"


DROP, UNEXPECTED, USED, NOT_OPEN = Verdict.DROP, Verdict.UNEXPECTED, Verdict.USED, Verdict.NOT_OPEN

_NO_FIELDS: Mapping[str, str] = {}
# Any message about a channel, in the table of connections.
ABOUT_CHANNEL: Literal["a channel"] = "a channel"
_Topic = Kind | Literal["a channel"]
_StageRule = Stage | Verdict
_PhaseRule = Phase | Verdict


def _stages(new: _StageRule, greeted: _StageRule, ready: _StageRule, ended: _StageRule) -> Mapping[Stage, _StageRule]:
    return dict(zip(Stage, (new, greeted, ready, ended), strict=True))


_NEVER_HERE = _stages(UNEXPECTED, UNEXPECTED, UNEXPECTED, DROP)
_ONCE_READY = _stages(UNEXPECTED, UNEXPECTED, Stage.READY, DROP)
_ALWAYS_ENDS = _stages(Stage.ENDED, Stage.ENDED, Stage.ENDED, DROP)

# One row per speaker and topic, impossible ones too; columns are the stages: NEW, GREETED, READY, ENDED.
CONNECTION: Mapping[tuple[Side, _Topic], Mapping[Stage, _StageRule]] = {
    (Side.CLIENT, Kind.HELLO): _stages(Stage.GREETED, UNEXPECTED, UNEXPECTED, DROP),
    (Side.SERVER, Kind.HELLO): _NEVER_HERE,
    (Side.CLIENT, Kind.WELCOME): _NEVER_HERE,
    (Side.SERVER, Kind.WELCOME): _stages(UNEXPECTED, Stage.READY, UNEXPECTED, DROP),
    (Side.CLIENT, Kind.PING): _ONCE_READY,
    (Side.SERVER, Kind.PING): _ONCE_READY,
    (Side.CLIENT, Kind.PONG): _ONCE_READY,
    (Side.SERVER, Kind.PONG): _ONCE_READY,
    (Side.CLIENT, Kind.BYE): _ALWAYS_ENDS,
    (Side.SERVER, Kind.BYE): _ALWAYS_ENDS,
    (Side.CLIENT, Kind.ERROR): _ALWAYS_ENDS,  # ERROR without a channel
    (Side.SERVER, Kind.ERROR): _ALWAYS_ENDS,
    (Side.CLIENT, ABOUT_CHANNEL): _ONCE_READY,
    (Side.SERVER, ABOUT_CHANNEL): _ONCE_READY,
}


def _phases(
    free: _PhaseRule,
    opening: _PhaseRule,
    feed: _PhaseRule,
    asking: _PhaseRule,
    reading: _PhaseRule,
    closing_feed: _PhaseRule,
    closing_read: _PhaseRule,
    gone: _PhaseRule,
) -> Mapping[Phase, _PhaseRule]:
    row = (free, opening, feed, asking, reading, closing_feed, closing_read, gone)
    return dict(zip(Phase, row, strict=True))


_F, _O, _FEED, _A, _READ, _CF, _CR, _GONE = Phase
_NO = UNEXPECTED
_WRONG_SIDE = _phases(_NO, _NO, _NO, _NO, _NO, _NO, _NO, _NO)
# Messages of a client on an open feed: too early before OPENED, not allowed after its CLOSE.
_ON_FEED = _phases(NOT_OPEN, NOT_OPEN, _FEED, _NO, _NO, _NO, _NO, DROP)
# Messages of a server on an open feed. The client's CLOSE may be in flight.
_TO_FEED = _phases(_NO, _NO, _FEED, _NO, _NO, _CF, _NO, DROP)
# Messages of a server on a subscription. After CLOSE the client ignores them.
_TO_READER = _phases(_NO, _NO, _NO, _NO, _READ, _NO, DROP, DROP)

# One row per speaker and kind, impossible ones too; columns are the phases:
#            FREE      OPENING   FEED      ASKING    READING   CLOSING_FEED CLOSING_READ GONE
CHANNEL: Mapping[tuple[Side, Kind], Mapping[Phase, _PhaseRule]] = {
    (Side.CLIENT, Kind.OPEN): _phases(
             _O,       USED,     USED,     USED,     USED,     USED,        USED,        USED),
    (Side.SERVER, Kind.OPENED): _phases(
             _NO,      _FEED,    _NO,      _NO,      _NO,      _NO,         _NO,         DROP),
    (Side.CLIENT, Kind.DATA): _ON_FEED,
    (Side.CLIENT, Kind.DATA_ARROW): _ON_FEED,
    (Side.CLIENT, Kind.PUNCTUATION): _ON_FEED,
    (Side.SERVER, Kind.ETS_REQUEST): _TO_FEED,
    (Side.CLIENT, Kind.ETS): _ON_FEED,
    (Side.SERVER, Kind.ACK): _TO_FEED,
    (Side.SERVER, Kind.ERROR): _phases(
             _F,       _GONE,    _FEED,    _GONE,    _READ,    _CF,         _CR,         DROP),
    (Side.CLIENT, Kind.SUBSCRIBE): _phases(
             _A,       USED,     USED,     USED,     USED,     USED,        USED,        USED),
    (Side.SERVER, Kind.SUBSCRIBED): _phases(
             _NO,      _NO,      _NO,      _READ,    _NO,      _NO,         _NO,         DROP),
    (Side.SERVER, Kind.RESULT): _TO_READER,
    (Side.SERVER, Kind.RESULT_ARROW): _TO_READER,
    (Side.SERVER, Kind.PROGRESS): _TO_READER,
    (Side.CLIENT, Kind.CREDIT): _phases(
             NOT_OPEN, _NO,      _NO,      NOT_OPEN, _READ,    _NO,         _NO,         DROP),
    (Side.SERVER, Kind.CREDIT): _TO_FEED,
    (Side.CLIENT, Kind.CLOSE): _phases(
             NOT_OPEN, NOT_OPEN, _CF,      NOT_OPEN, _CR,      _NO,         _NO,         DROP),
    (Side.SERVER, Kind.CLOSED): _phases(
             _NO,      _NO,      _GONE,    _NO,      _GONE,    _GONE,       _GONE,       DROP),
    (Side.SERVER, Kind.OPEN): _WRONG_SIDE,
    (Side.CLIENT, Kind.OPENED): _WRONG_SIDE,
    (Side.SERVER, Kind.DATA): _WRONG_SIDE,
    (Side.SERVER, Kind.DATA_ARROW): _WRONG_SIDE,
    (Side.SERVER, Kind.PUNCTUATION): _WRONG_SIDE,
    (Side.CLIENT, Kind.ETS_REQUEST): _WRONG_SIDE,
    (Side.SERVER, Kind.ETS): _WRONG_SIDE,
    (Side.CLIENT, Kind.ACK): _WRONG_SIDE,
    (Side.CLIENT, Kind.ERROR): _WRONG_SIDE,
    (Side.SERVER, Kind.SUBSCRIBE): _WRONG_SIDE,
    (Side.CLIENT, Kind.SUBSCRIBED): _WRONG_SIDE,
    (Side.CLIENT, Kind.RESULT): _WRONG_SIDE,
    (Side.CLIENT, Kind.RESULT_ARROW): _WRONG_SIDE,
    (Side.CLIENT, Kind.PROGRESS): _WRONG_SIDE,
    (Side.SERVER, Kind.CLOSE): _WRONG_SIDE,
    (Side.CLIENT, Kind.CLOSED): _WRONG_SIDE,
}  # fmt: skip


@dataclass(slots=True)
class Channel:
    """The state of one feed or subscription, the same on both sides.

    `credit`: tuples that may still be sent. `next_sequence`: the number of the next tuple (for a subscription the least
    possible one, because a slow reader can lose rows). `last_request`: the newest ETS request.
    """

    number: int
    phase: Phase
    name: str
    producer: str = ""
    credit: int = 0
    next_sequence: int = 0
    last_request: int = -1


class Session:
    """The rules of one connection, seen from `side`. Whether a client may connect at all, with the token of its HELLO,
    is the server's decision.

    `offered` holds the capabilities of HELLO (None: HELLO does not have the field), and `capabilities` the granted
    ones of WELCOME. Only these allow the fields that require a capability.
    """

    def __init__(
        self,
        side: Side,
        *,
        limits: Limits | None = None,
        known: Container[str] = CAPABILITIES,
    ) -> None:
        self.side = side
        self.limits = limits or Limits()
        self.stage = Stage.NEW
        self.offered: tuple[str, ...] | None = None
        self.capabilities: frozenset[str] = frozenset()
        # Open channels by number: none of them FREE or GONE, each at most `highest`.
        self.channels: dict[int, Channel] = {}
        self.highest = -1
        self._known = known

    def receive(self, message: Message) -> bool:
        """Check a message of the peer: True to process it, False to drop it silently.

        Raises PeerError (report it and close) or Refuse (report it and continue); then nothing has changed.
        """
        return self._accept(self.side.other, message)

    def say(self, message: Message) -> bytes:
        """Record a message of this side and return the frame to write.

        The frame is empty if the channel has ended meanwhile. Raises Refuse if the rules do not allow the message now
        (a second feed of one name, more tuples than the credit).
        """
        try:
            accepted = self._accept(self.side, message)
        except PeerError as error:
            raise AssertionError(f"this side must not send {message!r:.200}: {error.text}") from error
        return frame(encode(message)) if accepted else b""

    @property
    def grants(self) -> tuple[str, ...] | None:
        """The `capabilities` of a server's WELCOME: those that the client offered and this server knows."""
        return None if self.offered is None else tuple(name for name in self.offered if name in self._known)

    def acknowledge(self, channel: int, sequence: int, durable: bool = False) -> bytes:
        """The frame of an ACK, as `say` returns it, for the feeds that send a tuple at a time."""
        state = self.channels.get(channel)
        if self.stage is not Stage.READY or state is None or state.phase is not Phase.FEED:
            return self.say(Ack(channel, sequence, "durable" if durable else "accepted"))
        assert sequence <= state.next_sequence, f"tuple {sequence} has not arrived on channel {channel}"
        return frame(ack(channel, sequence, durable))

    def take(self, channel: int, sequence: int, tuples: int) -> int:
        """Accept tuples of a feed. Returns how many leading ones are duplicates that the caller must skip.

        This can be all of them (a resent frame, or a channel that has ended). New ones use credit and sequence numbers.
        Raises Refuse `out_of_order`, `no_credit` or `not_open`, or PeerError; then nothing has changed.
        """
        state = self.channels.get(channel)
        if state is None or state.phase is not Phase.FEED:
            self._next_phase(Side.CLIENT, Kind.DATA, channel)
            return tuples
        if sequence > state.next_sequence:
            raise Refuse(
                f"DATA on channel {channel}: expected at most sequence {state.next_sequence}, got {sequence};"
                f" send the tuples from {state.next_sequence} on",
                code="out_of_order",
            )
        if sequence + tuples > MAX_INT64:
            raise self._unfit(Kind.DATA, channel, "sequence numbers below 2^63", f"{sequence} + {tuples}", "bad_value")
        skip = min(state.next_sequence - sequence, tuples)
        self._use_credit(state, tuples - skip, "DATA")
        state.next_sequence += tuples - skip
        return skip

    def give(self, channel: int, sequence: int, rows: int) -> bool:
        """Record rows sent to a subscriber (by `say`, or encoded elsewhere). False: the channel has ended."""
        kind = Kind.RESULT
        state = self.channels.get(channel)
        if state is None or state.phase is not Phase.READING:
            if self._next_phase(Side.SERVER, kind, channel) is DROP:
                return False
            state = self.channels[channel]
        if sequence < state.next_sequence:
            raise self._unfit(kind, channel, f"sequence {state.next_sequence} or above", str(sequence), "out_of_order")
        self._use_credit(state, rows, kind.name)
        state.next_sequence = sequence + rows
        return True

    def _accept(self, speaker: Side, message: Message) -> bool:
        kind = kind_of(message)
        channel = getattr(message, "channel", None)
        stage = CONNECTION[speaker, kind if channel is None else ABOUT_CHANNEL][self.stage]
        if stage is DROP:
            return False
        if not isinstance(stage, Stage):
            raise PeerError.at(
                f"{kind.name} from the {speaker.value}",
                expected=f"another message ({self.stage.value})",
                got=kind.name,
                code=stage.value,
            )
        if channel is not None:
            self._check_fields(kind, message)
            return self._accept_on_channel(speaker, kind, channel, message)
        if isinstance(message, Hello):
            self._check_hello(message)
            self.offered = message.capabilities
        elif isinstance(message, Welcome):
            self._check_welcome(message)
            self.capabilities = frozenset(message.capabilities or ())
        self.stage = stage
        if stage is Stage.ENDED:
            self.channels.clear()
        return True

    def _check_hello(self, hello: Hello) -> None:
        if hello.protocol != PROTOCOL:
            got = str(hello.protocol)
            raise PeerError.at("HELLO", expected=f"protocol {PROTOCOL}", got=got, code="unsupported_protocol")
        _check_epoch("HELLO", hello.epoch, hello.capabilities)

    def _check_welcome(self, welcome: Welcome) -> None:
        unoffered = [name for name in welcome.capabilities or () if name not in (self.offered or ())]
        if unoffered or (welcome.capabilities is not None and self.offered is None):
            expected, got = (
                "capabilities that HELLO offered",
                ", ".join(unoffered) or "an array, but HELLO does not have the field",
            )
            raise PeerError.at("WELCOME", expected=expected, got=got, code="bad_message")
        _check_epoch("WELCOME", welcome.epoch, welcome.capabilities)

    def _check_fields(self, kind: Kind, message: Message) -> None:
        for field, capability in REQUIRED_CAPABILITIES.get(type(message), _NO_FIELDS).items():
            if capability not in self.capabilities and getattr(message, field) is not None:
                expected = f"nil, because the connection does not have the capability {capability!r}"
                got = repr(getattr(message, field))[:60]
                raise PeerError.at(f"{kind.name}, field {field}", expected=expected, got=got, code="bad_message")

    def _accept_on_channel(self, speaker: Side, kind: Kind, channel: int, message: Message) -> bool:
        phase = self._next_phase(speaker, kind, channel)
        if phase is DROP:
            return False
        assert isinstance(phase, Phase)
        match message:
            case Data():
                return self.take(channel, message.sequence, len(message.rows)) < max(len(message.rows), 1)
            case DataArrow():
                return self.take(channel, message.sequence, message.count) < max(message.count, 1)
            case Result():
                return self.give(channel, message.sequence, len(message.rows))
            case ResultArrow():
                return self.give(channel, message.sequence, message.count)
            case Open() | Subscribe():
                self._open_channel(phase, message)
            case _:
                self._move(channel, phase, message)
        return True

    def _move(self, channel: int, phase: Phase, message: Message) -> None:
        state = self.channels.get(channel)
        if state is None:
            return  # an ERROR about an unused number
        self._update_numbers(state, message)
        state.phase = phase
        if phase is Phase.GONE:
            del self.channels[channel]

    def _next_phase(self, speaker: Side, kind: Kind, channel: int) -> _PhaseRule:
        """The table's entry for this message, as an exception if the message is not allowed."""
        state = self.channels.get(channel)
        phase = state.phase if state else Phase.GONE if channel <= self.highest else Phase.FREE
        rule = CHANNEL[speaker, kind][phase]
        if rule is NOT_OPEN:
            raise Refuse(
                f"{kind.name} on channel {channel}: it is {_phase_text(phase)}; wait for OPENED", code=rule.value
            )
        if rule is UNEXPECTED or rule is USED:
            expected = "a number above every earlier one" if rule is USED else "another message"
            got = f"{kind.name} from the {speaker.value} while it is {_phase_text(phase)}"
            raise self._unfit(kind, channel, expected, got, rule.value)
        return rule

    def _open_channel(self, phase: Phase, message: Open | Subscribe) -> None:
        if len(self.channels) >= self.limits.channels:
            raise Refuse(
                f"this connection has {len(self.channels)} open channels, the limit: close one or reconnect",
                code="too_many_channels",
            )
        state = Channel(message.channel, phase, message.stream if isinstance(message, Open) else message.query)
        if isinstance(message, Open):
            self._refuse_duplicate_feed(message)
            state.producer = message.producer
        else:
            state.credit = message.credit
        self.channels[message.channel] = state
        self.highest = message.channel

    def _refuse_duplicate_feed(self, message: Open) -> None:
        for state in self.channels.values():
            if state.phase in (Phase.OPENING, Phase.FEED) and (state.name, state.producer) == (
                message.stream,
                message.producer,
            ):
                raise Refuse(
                    f"producer {message.producer!r} already feeds stream {message.stream!r} on channel {state.number}:"
                    " use that channel or another producer name",
                    code="already_open",
                )

    def _update_numbers(self, state: Channel, message: Message) -> None:
        """Update the numbers that a message changes. Raises PeerError, before any change, if they are not possible."""
        match message:
            case Opened():
                state.next_sequence, state.credit = message.next_sequence, message.credit
            case Subscribed():
                state.next_sequence = message.next_sequence
            case Credit():
                if state.credit + message.tuples > MAX_INT64:
                    got = f"{message.tuples} in addition to {state.credit}"
                    raise self._unfit(Kind.CREDIT, state.number, "at most 2^63 - 1 in total", got, "bad_value")
                state.credit += message.tuples
            case EtsRequest():
                if message.request <= state.last_request:
                    got = str(message.request)
                    raise self._unfit(
                        Kind.ETS_REQUEST, state.number, f"above {state.last_request}", got, "out_of_order"
                    )
                state.last_request = message.request
            case Ets():
                if message.request > state.last_request:
                    got = str(message.request)
                    raise self._unfit(
                        Kind.ETS, state.number, "the number of a request that was sent", got, "unexpected_message"
                    )
            case Ack():
                if message.meaning == "durable" and "durable" not in self.capabilities:
                    expected, got = "the meaning accepted", "durable, without the capability 'durable'"
                    raise self._unfit(Kind.ACK, state.number, expected, got, "bad_message")
                if message.sequence > state.next_sequence:
                    expected, got = f"at most {state.next_sequence}", str(message.sequence)
                    raise self._unfit(Kind.ACK, state.number, expected, got, "out_of_order")
            case _:
                pass

    def _use_credit(self, state: Channel, tuples: int, kind: str) -> None:
        if tuples > state.credit:
            raise Refuse(
                f"{kind} on channel {state.number}: expected at most {state.credit} tuples (the remaining credit),"
                f" got {tuples}; wait for CREDIT",
                code="no_credit",
            )
        state.credit -= tuples

    def _unfit(self, kind: Kind, channel: int, expected: str, got: str, code: str) -> PeerError:
        return PeerError.at(f"{kind.name} on channel {channel}", expected=expected, got=got, code=code)


def _phase_text(phase: Phase) -> str:
    return f"{phase.name.lower().replace('_', ' ')} ({phase.value})"


def _check_epoch(message: str, epoch: str | None, capabilities: tuple[str, ...] | None) -> None:
    """The one field of a greeting that requires a capability of the same greeting."""
    if epoch is None:
        return
    where = f"{message}, field epoch"
    if "epoch" not in (capabilities or ()):
        expected = "nil, because the message does not have the capability 'epoch'"
        raise PeerError.at(where, expected=expected, got=repr(epoch)[:60], code="bad_message")
    if epoch_number(epoch) is None:
        expected = "a number, '-' and 16 hexadecimal digits"
        raise PeerError.at(where, expected=expected, got=repr(epoch)[:60], code="bad_value")
