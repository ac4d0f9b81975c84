"""A feed: rows in, frames out, within the server's credit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from millrace.client import arrow
from millrace.client.errors import Ended, ServerError
from millrace.client.outbox import FRAME_TARGET_BYTES, ArrowEntry, Entry, MarkEntry, Outbox
from millrace.client.rows import Row, RowPacker, least_time, pairs_of, unpack_rows
from millrace.client.waiting import Waiting
from millrace.protocol import MAX_INT64, Schema, parse_timestamp
from millrace.protocol.errors import row_place
from millrace.protocol.messages import (
    Ack,
    Close,
    Closed,
    Error,
    Ets,
    EtsRequest,
    Message,
    Open,
    Opened,
    Punctuation,
)
from millrace.protocol.units import MICROSECONDS, UNITS, TimeUnit

if TYPE_CHECKING:
    from millrace.client.aio import AsyncClient

# The answer to the server's request for a timestamp: from the least timestamp that would help to the least timestamp
# that a row not yet sent can have, both in microseconds, or None.
Answer = Callable[[int], int | datetime | None] | Literal["clock"]
# The same for a request that names a group: the second argument has its values by column of the punctuation key. The
# promise is about the rows of this group alone.
GroupAnswer = Callable[[int, dict[str, object]], int | datetime | None]

FRAME_ROWS = 8_192
HELD_TUPLES = 131_072  # two windows of 65,536 rows: one in flight, one queued
HELD_BYTES = 32 * 2**20  # two frames of the default limit
ARROW_ROWS = 65_536
# A frame refused for its place means that client and server count differently, which ends the feed. Every other refusal
# concerns the frame's rows, and the feed continues.
_COUNT_ERRORS = frozenset({"out_of_order", "no_credit", "not_open"})
_MOST_REFUSALS = 1_000
NO_DISK = (
    "the server does not report what is on its disk: it needs a data directory, [journal] sync = 'always' or '10 ms', "
    "and this version or a newer one"
)


class AsyncFeed:
    """A feed of a stream, opened by `AsyncClient.open`. As an async context manager, it closes itself.

    If the server refuses rows, the next `send`, `punctuate`, `flush` or `close` raises ServerError. Rows of other
    frames are not affected, and the feed stays open.
    """

    def __init__(
        self,
        client: AsyncClient,
        stream: str,
        *,
        producer: str,
        fingerprint: str | None = None,
        answer: Answer | None = None,
        answer_group: GroupAnswer | None = None,
        frame_rows: int = FRAME_ROWS,
        held_tuples: int = HELD_TUPLES,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        self.stream = stream
        self.producer = producer
        self._client = client
        self._fingerprint = fingerprint
        self._answer = _clock if answer == "clock" else answer
        self._answer_group = answer_group
        self._limits = (frame_rows, held_tuples, held_bytes)
        self._arrow_rows = ARROW_ROWS
        self._channel: int | None = None  # None until OPENED on the current connection
        self._opened: Opened | None = None
        self._outbox: Outbox | None = None
        self._packer: RowPacker | None = None
        self._unit = MICROSECONDS  # of numbers in the time field, known from OPENED
        self._refusals: list[ServerError] = []
        self._refused = 0
        self._late: int | None = None
        self._durable = 0
        self._epoch: int | None = None  # in which the newest tuples were acknowledged
        self._waiting = Waiting()
        self._closing = False
        self._pump_due = False

    @property
    def schema(self) -> Schema:
        """The fields of a row, in order."""
        assert self._opened is not None, "AsyncClient.open returns a feed once it is open"
        return self._opened.schema

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next tuple. After `open` with a known producer: where to resume the input."""
        return self._box.next_sequence

    @property
    def acknowledged(self) -> int:
        """The server has acknowledged every tuple with a sequence number below this one."""
        return self._box.acked

    @property
    def durable(self) -> int:
        """The server has every tuple with a sequence number below this one on its disk.

        0 until it says so, which it does only with a data directory and `[journal] sync = 'always'` or `'10 ms'`.
        """
        return self._durable

    @property
    def refused(self) -> int:
        """How many tuples below `acknowledged` the server refused."""
        return self._refused

    @property
    def late(self) -> int | None:
        """How many tuples sent on the last connection were late: acknowledged, but in no result.

        None until the feed is closed, and if the server does not report it.
        """
        return self._late

    @property
    def held(self) -> int:
        """Tuples in this program's memory: not sent, or not acknowledged."""
        return self._box.held_tuples

    async def send(self, rows: Sequence[Row] | Row) -> None:
        """Send rows. Waits while the feed holds too many unacknowledged rows.

        Rows of small sends share a frame. `flush` waits until the server has acknowledged them.

        Args:
            rows: a list of tuples or lists in the order of `schema`, or of dicts by field name; or one dict.

        Raises:
            ServerError: the server refused rows of an earlier call.
            ValueError, TypeError: a row does not have the schema's fields or types; none of the rows is sent.
        """
        self._must_be_open()
        many: Sequence[Row] = rows if isinstance(rows, Sequence) else [rows]  # type: ignore[assignment]
        for packed, count in list(self._packed(many)):
            self._box.add_rows(packed, count)
        await self._sent()

    async def send_arrow(self, batch: Any) -> None:
        """Send a pyarrow RecordBatch or Table, in as many frames as the limits require.

        Args:
            batch: the rows. Columns are matched by name.
        """
        self._must_be_open()
        for stream, count in list(self._streams(batch)):
            self._box.add_arrow(stream, count)
        await self._sent()

    async def punctuate(self, time: float | datetime | str, where: Mapping[str, object] | None = None) -> None:
        """Promise that no later row of this feed has a lower timestamp.

        Args:
            time: a number in the stream's time unit (microseconds since 1970 by default), a datetime, or ISO 8601 text.
            where: the values of the stream's punctuation key, if the promise is about the rows with these values alone.
                If the connection breaks, such a promise is not repeated. Raises ServerError if the server is older
                than such promises.
        """
        self._must_be_open()
        if where is not None and self._channel is not None and not self._client.has("groups"):
            raise ServerError(Error("bad_message", "the server does not know punctuation with where: upgrade it"))
        self._box.add_mark(self._unit.parse(time), None if where is None else pairs_of(where))
        self._pump_soon()

    async def flush(self, durable: bool = False) -> None:
        """Wait until the server has acknowledged all rows.

        Args:
            durable: wait until it has them on its disk, where a power cut does not lose them.

        Raises:
            ServerError: the server refused some rows, or it does not report what is on its disk.
        """
        self.pump()
        await self._waiting.until(lambda: not self._box)
        if durable:
            last = self.next_sequence
            await self._waiting.until(lambda: self._durable >= last or self._lacks_disk())
            if self._durable < last:
                raise ServerError(Error("refused", NO_DISK))
        self._raise_refusals()

    def _lacks_disk(self) -> bool:
        """Whether the server will never report what is on its disk."""
        return self._channel is not None and not self._client.has("durable")

    async def close(self) -> None:
        """Flush, then end the feed: the server no longer waits for its rows. A second call does nothing."""
        if self._closing:
            return
        try:
            await self.flush()
        finally:
            await self._end()

    async def __aenter__(self) -> AsyncFeed:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            self._abandon()

    # Adding to the outbox.

    @property
    def _box(self) -> Outbox:
        assert self._outbox is not None, "AsyncClient.open returns a feed once it is open"
        return self._outbox

    def _must_be_open(self) -> None:
        if self._waiting.failed is not None:
            raise self._waiting.failed
        if self._closing:
            raise self._ended()
        self._raise_refusals()

    def _raise_refusals(self) -> None:
        if self._refusals:
            refusals, self._refusals = self._refusals, []
            refusals[0].others = tuple(refusals[1:])
            raise refusals[0]

    def _packed(self, rows: Sequence[Row], first: int = 0) -> Iterator[tuple[bytes, int]]:
        """Packed rows, a frame at a time. A frame above the server's limit is split into halves.

        `first` is the index of the first row in the program's call.
        """
        assert self._packer is not None
        step = self._box.frame_rows
        for start in range(0, len(rows), step):
            part = rows if len(rows) <= step else rows[start : start + step]
            packed = self._packer.pack(part, first + start)
            if len(packed) <= self._client.frame_room:
                yield packed, len(part)
            elif len(part) == 1:
                size, room = len(packed), self._client.frame_room
                raise ValueError(f"{row_place(first + start)}: a row of {size} bytes does not fit a frame of {room}")
            else:
                half = len(part) // 2
                yield from self._packed(part[:half], first + start)
                yield from self._packed(part[half:], first + start + half)

    def _streams(self, batch: Any, first: int = 0) -> Iterator[tuple[bytes, int]]:
        """The same for Arrow."""
        for start in range(0, batch.num_rows, self._arrow_rows):
            part = batch.slice(start, self._arrow_rows)
            stream = arrow.to_stream(part)
            if len(stream) <= self._client.frame_room:
                yield stream, part.num_rows
            elif part.num_rows == 1:
                size, room = len(stream), self._client.frame_room
                raise ValueError(f"{row_place(first + start)}: a row of {size} bytes does not fit a frame of {room}")
            else:
                half = part.num_rows // 2
                yield from self._streams(part.slice(0, half), first + start)
                yield from self._streams(part.slice(half), first + start + half)

    async def _sent(self) -> None:
        self._pump_soon()
        if self._box.full:
            self.pump()
            await self._waiting.until(lambda: not self._box.full)

    # Writing.

    def _pump_soon(self) -> None:
        """Write at the end of this turn of the loop, so that small sends share a frame."""
        if not self._pump_due:
            self._pump_due = True
            self._client.loop.call_soon(self.pump)

    def pump(self) -> None:
        """Write as much as the connection and the credit allow."""
        self._pump_due = False
        while self._channel is not None and self._client.writable:
            entry = self._box.take(self._client.credit(self._channel))
            if entry is None:
                return
            if isinstance(entry, MarkEntry):
                if entry.where is None or self._client.has("groups"):
                    self._client.say(Punctuation(self._channel, entry.value_us, entry.where))
            else:
                self._client.write_tuples(self._channel, entry)

    # Called by the client.

    async def opened(self) -> None:
        """Wait for the first OPENED."""
        await self._waiting.until(lambda: self._opened is not None)

    def connect(self, channel: int) -> None:
        """Open a channel on a new connection. Packed rows have the schema of the first OPENED, so require that one."""
        if self._opened is not None:
            self._fingerprint = self._opened.schema.fingerprint()
        sequence = None if self._outbox is None else self._outbox.acked
        answers = self._answer is not None or self._answer_group is not None
        epoch = self._epoch if self._client.has("epoch") else None
        self._client.say(Open(channel, self.stream, self._fingerprint, self.producer, sequence, answers, epoch))

    def disconnect(self) -> None:
        """The connection is lost. A feed that was closing ends with it."""
        self._channel = None
        if self._closing:
            self._abandon()

    def receive(self, message: Message) -> None:
        """Handle a message about this feed."""
        match message:
            case Opened():
                self._on_opened(message)
            case Ack():
                self._box.acknowledge(message.sequence)
                if message.meaning == "durable":
                    self._durable = max(self._durable, message.sequence)
                self._waiting.wake()
            case EtsRequest():
                self._on_request(message)
            case Error():
                self._on_error(message)
            case Closed():
                self._on_closed(message)
            case _:
                pass  # CREDIT: counted by the session
        self.pump()

    def fail(self, error: BaseException) -> None:
        """No further connection will be made."""
        self._channel = None
        self._waiting.fail(error)

    def _on_opened(self, opened: Opened) -> None:
        if self._outbox is None:
            rows, tuples, size = self._limits
            # A frame above the first credit could not be sent whole.
            window = max(opened.credit, 1)
            frame_bytes = min(FRAME_TARGET_BYTES, self._client.frame_room)
            self._outbox = Outbox(opened.next_sequence, min(rows, window), frame_bytes, tuples, size)
            self._arrow_rows = min(ARROW_ROWS, window)
        elif not self._outbox.acked <= opened.next_sequence <= self._outbox.next_sequence:
            self._give_up(self._count_error(opened.next_sequence))
            return
        unit = UNITS.get(opened.time_unit or "us", MICROSECONDS)
        if self._packer is None:
            self._packer, self._unit = RowPacker(opened.schema, unit), unit
        elif unit is not self._unit:
            self._give_up(self._unit_error(unit))
            return
        self._opened, self._channel = opened, opened.channel
        self._epoch = self._client.epoch if self._client.has("epoch") else None
        self._outbox.rewind(opened.next_sequence)
        if self._outbox.mark_us is not None:
            self._client.say(Punctuation(opened.channel, self._outbox.mark_us))
        self._waiting.wake()

    def _count_error(self, sequence: int) -> ServerError:
        expected = f"a number from {self._box.acked} to {self._box.next_sequence}"
        text = f"the server resumes at tuple {sequence}: expected {expected}; do two programs use one producer name?"
        return ServerError(Error("out_of_order", text, expected=expected, got=str(sequence)))

    def _unit_error(self, unit: TimeUnit) -> ServerError:
        expected, got = self._unit.name, unit.name
        text = (
            f"stream {self.stream} was altered: its time_unit was {expected!r} and is {got!r} now; open the feed again"
        )
        return ServerError(Error("altered", text, expected=expected, got=got))

    def _on_error(self, error: Error) -> None:
        if self._channel is None or error.code in _COUNT_ERRORS:
            self._give_up(ServerError(error))
            return
        if self._outbox is not None and error.sequence is not None:
            self._refused += self._outbox.frame_at(error.sequence)
        if len(self._refusals) < _MOST_REFUSALS:
            self._refusals.append(ServerError(error))

    def _on_closed(self, closed: Closed) -> None:
        self._late = closed.late
        self._give_up(self._ended() if self._closing else ServerError.ended(closed))

    def _on_request(self, request: EtsRequest) -> None:
        """Answer with the program's promise about the group or the feed, but never above the oldest row that is not
        sent."""
        self.pump()
        where, promised = request.where, None
        try:
            if where is not None and self._answer_group is not None:
                promised = self._answer_group(request.need_us, dict(where))
            if promised is None:
                where, promised = None, None if self._answer is None else self._answer(request.need_us)
            value_us = None if promised is None else min(parse_timestamp(promised), self._least_unsent())
        except Exception as error:  # raised by the program's function: the program sees it
            self._give_up(error)
            return
        self._client.say(Ets(request.channel, request.request, value_us, where))

    def _least_unsent(self) -> int:
        least = MAX_INT64
        for entry in self._box.unsent_entries():
            least = min(least, self._least_of(entry))
        return least

    def _least_of(self, entry: Entry) -> int:
        opened = self._opened
        if opened is None or opened.time is None:
            return MAX_INT64
        if isinstance(entry, ArrowEntry):
            least = arrow.least_time(entry.batch, opened.schema, opened.time, self._unit)
        else:
            least = least_time(unpack_rows(entry.packed), opened.schema, opened.time, self._unit)
        return MAX_INT64 if least is None else least

    # Closing.

    async def _end(self) -> None:
        self._closing = True
        if self._channel is None or self._waiting.failed is not None:
            self._abandon()
            return
        self._client.say(Close(self._channel))
        with contextlib.suppress(Ended):
            await self._waiting.until(lambda: False)

    def _abandon(self) -> None:
        """End without waiting. Rows that were not sent are dropped."""
        self._closing = True
        self._give_up(self._ended())

    def _give_up(self, error: BaseException) -> None:
        self._client.forget(self)
        self.fail(error)

    def _ended(self) -> Ended:
        return Ended(f"this feed of {self.stream} is closed; open another")


def _clock(_: int) -> int:
    return time.time_ns() // 1000
