"""The outbox alone: any sequence of sends, acknowledgements and reconnects delivers every tuple once, in order."""

from typing import Any

import msgpack
import pyarrow
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.client.arrow import from_stream, to_stream
from millrace.client.outbox import ArrowEntry, MarkEntry, Outbox
from millrace.client.rows import RowPacker, least_time, unpack_rows
from millrace.protocol import Schema, decode
from millrace.protocol.messages import Data, DataArrow

SCHEMA = Schema.of(n="bigint")


class Handover(RuleBasedStateMachine):
    """A producer, an outbox, and a server that accepts written tuples or loses them with the connection.

    Tuples are numbered 0, 1, 2, ...; the value of a punctuation is the number of the next tuple, which shows its place.
    """

    def __init__(self):
        super().__init__()
        self.box = Outbox(0, frame_rows=8, frame_bytes=1_000, limit_tuples=10**6, limit_bytes=10**9)
        self.packer = RowPacker(SCHEMA)
        self.sent = 0
        self.wire: list[Any] = []
        self.accepted: list[int] = []
        self.mark: int | None = None  # the newest punctuation that the server has
        self.promised: int | None = None  # the newest one sent

    @rule(count=st.integers(1, 20))
    def send(self, count):
        rows = [(n,) for n in range(self.sent, self.sent + count)]
        self.box.add_rows(self.packer.pack(rows), count)
        self.sent += count

    @rule(count=st.integers(1, 20))
    def send_arrow(self, count):
        table = pyarrow.table({"n": list(range(self.sent, self.sent + count))})
        self.box.add_arrow(to_stream(table), count)
        self.sent += count

    @rule()
    def punctuate(self):
        self.box.add_mark(self.sent)
        self.promised = self.sent

    @rule(credit=st.integers(0, 30))
    def write(self, credit):
        while (entry := self.box.take(credit)) is not None:
            if not isinstance(entry, MarkEntry):
                assert entry.tuples <= credit
                credit -= entry.tuples
            self.wire.append(entry)

    @precondition(lambda self: self.wire)
    @rule()
    def arrive(self):
        entry = self.wire.pop(0)
        if isinstance(entry, MarkEntry):
            assert entry.value_us == len(self.accepted)
            self.mark = entry.value_us
            return
        head, payload = entry.body(3)
        message: Any = decode(head + payload)
        assert message.channel == 3
        assert message.sequence == len(self.accepted)
        if isinstance(message, Data):
            self.accepted += [row[0] for row in list[Any](message.rows)]
        else:
            assert isinstance(message, DataArrow)
            assert message.count == from_stream(message.batch).num_rows
            self.accepted += from_stream(message.batch).column("n").to_pylist()

    @rule(back=st.integers(0, 10))
    def acknowledge(self, back):
        self.box.acknowledge(max(len(self.accepted) - back, 0))

    @rule()
    def reconnect(self):
        self.wire.clear()
        self.box.rewind(len(self.accepted))
        if self.box.mark_us is not None:
            assert self.box.mark_us <= len(self.accepted)
            self.mark = max(self.mark or 0, self.box.mark_us)

    @invariant()
    def in_order_and_once(self):
        assert self.accepted == list(range(len(self.accepted)))

    @invariant()
    def the_book_is_right(self):
        held = [entry for entry in [*self.box.sent, *self.box.unsent] if not isinstance(entry, MarkEntry)]
        assert self.box.held_tuples == sum(entry.tuples for entry in held)
        assert self.box.held_bytes == sum(entry.size for entry in held)
        assert self.box.next_sequence == self.sent
        places = [self.box.acked, *(entry.sequence + entry.tuples for entry in held)]
        assert all(a.sequence <= b for a, b in zip(held, places, strict=False))
        assert places[-1] == self.sent

    def teardown(self):
        """In any state, all tuples arrive with a new connection and credit."""
        self.reconnect()
        self.write(10**9)
        while self.wire:
            self.arrive()
        self.box.acknowledge(len(self.accepted))
        assert len(self.accepted) == self.sent
        assert self.mark == self.promised
        assert not self.box
        assert (self.box.held_tuples, self.box.held_bytes) == (0, 0)


TestHandover = Handover.TestCase


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=80))
def test_packed_rows_are_the_arrays_items(rows):
    packed = RowPacker(SCHEMA).pack(rows)
    assert unpack_rows(packed) == rows
    assert msgpack.packb(rows).endswith(packed)


@given(st.lists(st.integers(0, 9), min_size=1))
def test_the_least_time_of_rows(times):
    schema = Schema.of(k="bigint", ts="timestamp")
    assert least_time([(1, us) for us in times], schema, "ts") == min(times)
    assert least_time([{"ts": us} for us in times], schema, "ts") == min(times)
    assert least_time([(1, None), (1,), (1, "x")], schema, "ts") is None
    assert least_time([(1, "1970-01-01T00:00:01Z")], schema, "ts") == 1_000_000


def test_decode_reads_an_arrow_body():
    stream = to_stream(pyarrow.table({"n": [1, 2, 3]}))
    head, payload = ArrowEntry(70_000, 3, stream).body(300)
    assert decode(head + payload) == DataArrow(300, 70_000, 3, stream)
