"""Several subscribers of one query: each gets every row, and each piece of them is encoded once."""

import weakref
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.net import sink
from millrace.net.sink import (
    ALIGNED_ROWS,
    STRICT_FILL,
    Backpressure,
    Outlet,
    Retention,
    Sender,
    Slow,
    Subscription,
)
from millrace.protocol import Field, Schema, Type
from millrace.values.batch import Batch

SCHEMA = Schema((Field("v", Type.BIGINT),))


class Reader(Sender):
    """Encodes rows as its dialect does, and counts how often that was done for anybody."""

    def __init__(self, encoded: list[str], chunk_bytes: int, slow: Slow = Slow()) -> None:  # noqa: B008
        self.encoded = encoded
        self.chunk_bytes = chunk_bytes
        self.left = 0
        self.leave: Callable[[], None] = lambda: None
        self.text = ""
        self.subscription = Subscription("reader", slow, self)

    def room(self) -> int:
        return min(self.left, 4 * ALIGNED_ROWS)

    def writable(self) -> bool:
        return True

    def send_rows(self, sequence: int, batch: Batch) -> None:
        self.left -= len(batch)
        shared = self.subscription.shared
        self.text += shared.text(sequence, batch, "text", lambda: self.encode(sequence, batch)).decode()

    def encode(self, sequence: int, batch: Batch) -> bytes:
        text = "".join(f"{sequence + at}:{row[0]} " for at, row in enumerate(batch.rows()))
        self.encoded.append(text)
        return text.encode()

    def send_progress(self, value_us: int) -> None: ...

    def end(self, code: str, reason: str) -> None:
        self.leave()


def outlet() -> Outlet:
    return Outlet("q", SCHEMA, Retention(0), lambda level: None)


def batch(first: int, rows: int) -> Batch:
    return Batch.from_rows(SCHEMA, [(first + at,) for at in range(rows)], [0] * rows)


def test_what_everybody_gets_is_encoded_once() -> None:
    encoded: list[str] = []
    query = outlet()
    readers = [Reader(encoded, 1 << 20) for _ in range(50)]
    for reader in readers:
        reader.left = 1_000
        query.add(reader.subscription)
    query.deliver(0, batch(0, 10))
    query.deliver(10, batch(10, 10))
    assert {reader.text for reader in readers} == {"".join(encoded)}
    assert len(encoded) == 2


@given(
    st.lists(st.tuples(st.integers(1, 40), st.lists(st.integers(0, 30), min_size=3, max_size=3)), max_size=12),
    st.integers(1, 2_000),
    st.lists(st.integers(100, 1_000), min_size=3, max_size=3),
)
def test_every_reader_gets_every_row_in_order(steps, shared_bytes, chunks) -> None:
    encoded: list[str] = []
    query = outlet()
    readers = [Reader(encoded, chunk) for chunk in chunks]
    for reader in readers:
        query.add(reader.subscription)
    sequence = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink, "SHARED_BYTES", shared_bytes)
        for rows, rooms in steps:
            for reader, room in zip(readers, rooms, strict=False):
                reader.left += room
            query.deliver(sequence, batch(sequence * 7, rows))
            sequence += rows
            if rows == 13 and len(readers) > 1:
                query.remove(readers.pop().subscription)
    for reader in readers:
        reader.left = sequence
        reader.subscription.pump()
        assert [int(item.partition(":")[0]) for item in reader.text.split()] == list(range(sequence))
    assert len({reader.text for reader in readers}) == 1


def test_readers_that_fall_behind_each_other_meet_in_the_same_pieces() -> None:
    encoded: list[str] = []
    query = outlet()
    readers = [Reader(encoded, 1 << 20) for _ in range(20)]
    for reader in readers:
        query.add(reader.subscription)
    rows = 64 * ALIGNED_ROWS
    query.deliver(0, batch(0, rows))
    for number, reader in enumerate(readers):
        reader.left = 300 + 7 * number
        reader.subscription.pump()
    alone = len(encoded)
    for reader in readers:
        reader.left = rows
        reader.subscription.pump()
    assert {reader.text for reader in readers} == {"".join(f"{at}:{at} " for at in range(rows))}
    assert len(encoded) - alone == 20 + 15


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "SHARED_BYTES", 2_000)
    query = outlet()
    readers = [Reader([], 1 << 20) for _ in range(2)]
    for reader in readers:
        query.add(reader.subscription)
        reader.left = 10_000
    kept, again = [], []

    def write() -> bytes:
        again.append(True)
        return bytes(1_000)

    for at in range(50):
        made = batch(at, 10)
        kept.append(weakref.ref(made.ts))
        query.deliver(at * 10, made)
        query.shared.text(at * 10, made, "other", lambda: bytes(1_000))
    for at in range(50):
        query.shared.text(at * 10, made, "other", write)
    del made
    assert sum(ref() is not None for ref in kept) == 0
    assert len(again) == 50
    query.remove(readers[0].subscription)
    query.shared.text(490, batch(49, 10), "other", write)
    assert len(again) == 51


class Waits:
    """Whether feeds wait, decided again from all consumers after each operation."""

    def __init__(self, query: Outlet) -> None:
        self.query = query
        self.level = Backpressure.NONE

    def check(self) -> None:
        fill = max((consumer.fill for consumer in self.query.consumers), default=0)
        if fill >= STRICT_FILL:
            self.level = Backpressure.STRICT
        elif fill >= 1:
            self.level = max(self.level, Backpressure.SOFT)
        elif fill <= 1 / 2:
            self.level = Backpressure.NONE
        else:
            self.level = min(self.level, Backpressure.SOFT)
        assert self.query.backpressure is self.level


operations = st.tuples(
    st.sampled_from(["deliver", "deliver", "read", "read", "add", "remove"]), st.integers(0, 3), st.integers(1, 15)
)


@given(st.lists(operations, min_size=20, max_size=60))
def test_feeds_wait_for_the_consumer_that_lags_most(steps) -> None:
    pressed: list[Backpressure] = []
    query = Outlet("q", SCHEMA, Retention(0), pressed.append)
    policies = [Slow("wait", 10), Slow("wait", 20), Slow("drop_oldest", 5), Slow("disconnect", 8)]
    readers = [Reader([], 1 << 20, slow) for slow in policies]
    waits, sequence = Waits(query), 0
    for reader in readers:
        reader.leave = partial(query.remove, reader.subscription)
        query.add(reader.subscription)
    for operation, number, count in steps:
        reader = readers[number]
        if operation == "deliver":
            query.deliver(sequence, batch(sequence, count))
            sequence += count
        elif operation == "read":
            reader.left = 3 * count
            reader.subscription.pump()
        elif operation == "remove":
            query.remove(reader.subscription)
        elif reader.subscription not in query.consumers:
            query.add(reader.subscription)
        waits.check()
    assert all(before is not after for before, after in pairwise(pressed))
