"""The parts of a record: however large its values are, they are the same record."""

from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.events import Arrived, Event, FeedOpened, Heard
from millrace.journal import steps
from millrace.journal.layout import pack_record, size_of
from millrace.journal.steps import STEP, Step, encode, unpack
from millrace.protocol import Schema
from millrace.values.batch import Batch

SCHEMA = Schema.from_data([["k", "bigint", True], ["name", "text", True], ["x", "double", True]])


def columns(rows: int) -> Arrived:
    values = [(n if n % 3 else None, "x" * (n % 5), n / 2) for n in range(rows)]
    return Arrived("s", "f", Batch.from_rows(SCHEMA, values, [0] * rows), np.arange(rows))


def frames(sizes: Sequence[int]) -> Arrived:
    wire = [memoryview(bytes([n]) * size) for n, size in enumerate(sizes)]
    return Arrived("s", "f", columns(len(sizes)).batch, None, wire)


events = st.one_of(
    st.just(FeedOpened("s", "f")),
    st.just(Heard(5)),
    st.integers(0, 40).map(columns),
    st.lists(st.integers(1, 60), min_size=1, max_size=9).map(frames),
)


@given(st.lists(events, max_size=4), st.integers(0, 300))
def test_large_values_are_parts_of_the_same_record(arrived: list[Event], large: int) -> None:
    step = Step(3, 4, arrived, {1: "note"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "_LARGE", 1 << 30)
        whole = b"".join(encode(step))
        patch.setattr(steps, "_LARGE", large)
        parts = encode(step)
    found = unpack(b"".join(parts))
    assert str(found) == str(unpack(whole))
    assert found[:4] == [STEP, 3, 4, {1: "note"}]
    sent = [list(map(bytes, event.wire)) for event in arrived if isinstance(event, Arrived) and event.wire]
    assert [event[5] for event in found[4] if isinstance(event, list) and len(event) == 6] == sent


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_the_checksum_of_parts_is_that_of_their_bytes(data: list[bytes], seed: int) -> None:
    kinds: list[Any] = [bytes, bytearray, memoryview]
    parts = [kinds[n % 3](one) for n, one in enumerate(data)]
    head, *written = pack_record(seed, 9, 8, 7, size_of(parts), parts)
    assert written == parts
    assert int.from_bytes(bytes(head[:4]), "little") == google_crc32c.extend(seed, bytes(head[4:]) + b"".join(data))
