"""The entries of a feed that are not sent, or sent and not acknowledged. Sans-I/O.

Rule: tuples and punctuation keep their order when they are sent again, and a tuple keeps its sequence number. The
caller bounds the memory by checking `full` before it adds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgpack

from millrace.client.arrow import split_stream
from millrace.protocol.fields import array_head
from millrace.protocol.messages import Kind, arrow_head, data_head

FRAME_TARGET_BYTES = 256 * 1024  # rows of small sends share a frame up to this size; larger frames are not faster


@dataclass(slots=True)
class RowsEntry:
    """Packed rows, concatenated, without the head of their array."""

    sequence: int
    tuples: int
    pieces: list[bytes]
    size: int

    @property
    def packed(self) -> bytes:
        """All rows as one bytes object."""
        if len(self.pieces) > 1:
            self.pieces = [b"".join(self.pieces)]
        return self.pieces[0]

    def body(self, channel: int) -> tuple[bytes, bytes]:
        return data_head(Kind.DATA, channel, self.sequence) + array_head(self.tuples), self.packed

    def split(self, tuples: int) -> tuple[RowsEntry, RowsEntry]:
        """The first `tuples` rows, and the rest."""
        packed = self.packed
        unpacker = msgpack.Unpacker(max_buffer_size=max(len(packed), 1))
        unpacker.feed(packed)
        for _ in range(tuples):
            unpacker.skip()
        at = unpacker.tell()
        return (
            RowsEntry(self.sequence, tuples, [packed[:at]], at),
            RowsEntry(self.sequence + tuples, self.tuples - tuples, [packed[at:]], self.size - at),
        )


@dataclass(slots=True)
class ArrowEntry:
    """Rows as one Arrow IPC stream."""

    sequence: int
    tuples: int
    batch: bytes

    @property
    def size(self) -> int:
        return len(self.batch)

    def body(self, channel: int) -> tuple[bytes, bytes]:
        head = data_head(Kind.DATA_ARROW, channel, self.sequence)
        return head + arrow_head(self.tuples, len(self.batch)), self.batch

    def split(self, tuples: int) -> tuple[ArrowEntry, ArrowEntry]:
        first, rest = split_stream(self.batch, tuples)
        return ArrowEntry(self.sequence, tuples, first), ArrowEntry(self.sequence + tuples, self.tuples - tuples, rest)


@dataclass(slots=True)
class MarkEntry:
    """A punctuation in its place among the tuples; `where` names the group that it is about, if it is not the feed."""

    value_us: int
    where: Where | None = None


Where = tuple[tuple[str, object], ...]
Entry = RowsEntry | ArrowEntry
_Any = RowsEntry | ArrowEntry | MarkEntry


@dataclass(slots=True)
class Outbox:
    """Invariant: `sent`, then `unsent`, have consecutive sequence numbers, and `acked` is the first of them.

    `mark_us` is the newest punctuation that has left both. It applies to all entries in them.
    """

    next_sequence: int
    frame_rows: int
    frame_bytes: int
    limit_tuples: int
    limit_bytes: int
    acked: int = field(init=False)
    held_tuples: int = 0
    held_bytes: int = 0
    mark_us: int | None = None
    sent: deque[_Any] = field(default_factory=deque)
    unsent: deque[_Any] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.acked = self.next_sequence

    def __bool__(self) -> bool:
        """Whether any entry is not sent or not acknowledged."""
        return bool(self.unsent or self.sent)

    @property
    def full(self) -> bool:
        """Whether the producer has to wait."""
        return self.held_tuples >= self.limit_tuples or self.held_bytes >= self.limit_bytes

    def add_rows(self, packed: bytes, tuples: int) -> None:
        """Add packed rows, to the newest entry if it is not sent and stays below the frame's limits."""
        last = self.unsent[-1] if self.unsent else None
        size = len(packed)
        if (
            isinstance(last, RowsEntry)
            and last.tuples + tuples <= self.frame_rows
            and last.size + size <= self.frame_bytes
        ):
            last.pieces.append(packed)
            last.tuples += tuples
            last.size += size
        else:
            self.unsent.append(RowsEntry(self.next_sequence, tuples, [packed], size))
        self._hold(tuples, size)

    def add_arrow(self, batch: bytes, tuples: int) -> None:
        self.unsent.append(ArrowEntry(self.next_sequence, tuples, batch))
        self._hold(tuples, len(batch))

    def add_mark(self, value_us: int, where: Where | None = None) -> None:
        """Add a punctuation. It replaces one about the same directly before it."""
        if self.unsent and isinstance(last := self.unsent[-1], MarkEntry) and last.where == where:
            self.unsent.pop()
        self.unsent.append(MarkEntry(value_us, where))

    def _hold(self, tuples: int, size: int) -> None:
        self.next_sequence += tuples
        self.held_tuples += tuples
        self.held_bytes += size

    def take(self, credit: int) -> _Any | None:
        """The next entry to write, which moves to `sent`; None if there is none or the credit is too small.

        An entry larger than the credit is split only if no tuple is in flight: then no ACK is due, and the server
        offers no more credit than this.
        """
        if not self.unsent:
            return None
        entry = self.unsent[0]
        if not isinstance(entry, MarkEntry) and entry.tuples > credit:
            if credit == 0 or self._in_flight():
                return None
            entry = self._split(entry, credit)
        self.sent.append(self.unsent.popleft())
        self._release_marks()
        return entry

    def _split(self, entry: Entry, credit: int) -> Entry:
        """Replace the first entry by two, the first of which fits the credit."""
        first, rest = entry.split(credit)
        self.held_bytes += first.size + rest.size - entry.size
        self.unsent[0] = rest
        self.unsent.appendleft(first)
        return first

    def _in_flight(self) -> bool:
        return any(not isinstance(entry, MarkEntry) for entry in self.sent)

    def acknowledge(self, sequence: int) -> None:
        """Drop the sent entries with all tuples below this sequence number."""
        self.acked = max(self.acked, sequence)
        while self.sent:
            entry = self.sent[0]
            if isinstance(entry, MarkEntry) or entry.sequence + entry.tuples > sequence:
                break
            self.sent.popleft()
            self._release(entry)
            self._release_marks()

    def _release_marks(self) -> None:
        """Move punctuation without unacknowledged tuples before it from `sent` to `mark_us`.

        Promises about groups are not stored: a server that has lost them closes these groups with the others.
        """
        while self.sent and isinstance(mark := self.sent[0], MarkEntry):
            self.sent.popleft()
            if mark.where is not None:
                continue
            self.mark_us = mark.value_us if self.mark_us is None else max(self.mark_us, mark.value_us)

    def _release(self, entry: Entry) -> None:
        self.held_tuples -= entry.tuples
        self.held_bytes -= entry.size

    def rewind(self, next_sequence: int) -> None:
        """Start on a new connection: entries that the server does not have are unsent again, in order."""
        self.acknowledge(next_sequence)
        while self.sent:
            self.unsent.appendleft(self.sent.pop())

    def frame_at(self, sequence: int) -> int:
        """The number of tuples of the sent frame that starts with this sequence number; 0 without such a frame."""
        entries = (entry for entry in self.sent if not isinstance(entry, MarkEntry))
        return next((entry.tuples for entry in entries if entry.sequence == sequence), 0)

    def unsent_entries(self) -> Iterator[Entry]:
        """Entries with tuples that are not written."""
        return (entry for entry in self.unsent if not isinstance(entry, MarkEntry))
