"""Several subscribers of one query: each gets every row, and each piece of them is encoded once."""

import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocol import Field, Schema, Type
from millrace.server import sink
from millrace.server.sink import Outlet, Retention, Sender, Slow, Subscription
from millrace.values.batch import Batch

SCHEMA = Schema((Field("v", Type.BIGINT),))


class Reader(Sender):
    """Encodes rows as its dialect does, and counts how often that was done for anybody."""

    def __init__(self, encoded: list[str], chunk_bytes: int) -> None:
        self.encoded = encoded
        self.chunk_bytes = chunk_bytes
        self.left = 0
        self.text = ""
        self.subscription = Subscription("reader", Slow(), self)

    def room(self) -> int:
        return self.left

    def writable(self) -> bool:
        return True

    def send_rows(self, sequence: int, batch: Batch) -> None:
        self.left -= len(batch)
        self.text += self.subscription.shared.once(batch, ("text", sequence), lambda: self.encode(sequence, batch))

    def encode(self, sequence: int, batch: Batch) -> str:
        text = "".join(f"{sequence + at}:{row[0]} " for at, row in enumerate(batch.rows()))
        self.encoded.append(text)
        return text

    def send_progress(self, value_us: int) -> None: ...

    def end(self, code: str, reason: str) -> None: ...


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


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "SHARED_BYTES", 1_000)
    query = outlet()
    readers = [Reader([], 1 << 20) for _ in range(2)]
    for reader in readers:
        query.add(reader.subscription)
        reader.left = 10_000
    kept = []
    for at in range(50):
        made = batch(at, 10)
        kept.append(weakref.ref(made.ts))
        query.deliver(at * 10, made)
    del made
    assert sum(ref() is not None for ref in kept) < 10
    query.remove(readers[0].subscription)
    assert sum(ref() is not None for ref in kept) == 0
