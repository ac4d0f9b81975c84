"""Frames that the kernel takes, value by value: the same rows, and the same refusals."""

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.formats import decoder as source
from millrace.formats.decoder import StreamDecoder
from millrace.protocol import RowError
from millrace.sql import Catalog, parse, plan
from tests.server.test_linecolumns import rows

FIELDS = "k BIGINT NOT NULL, v DOUBLE, name TEXT, raw BYTES, ok BOOLEAN, at TIMESTAMP"
SQL = {
    "us": f"CREATE STREAM s ({FIELDS})",
    "ms": f"CREATE STREAM s (ts TIMESTAMP, {FIELDS}) WITH (timestamps = 'external', time = 'ts', time_unit = 'ms')",
    "s": f"CREATE STREAM s (ts TIMESTAMP, {FIELDS}) WITH (timestamps = 'external', time = 'ts', time_unit = 's')",
    "wide": f"CREATE STREAM s ({', '.join(f'f{number} BIGINT' for number in range(20))})",
}


def decoder(unit: str) -> StreamDecoder:
    planned: Any = plan(parse(SQL[unit])[0], Catalog())
    return StreamDecoder(planned.stream)


class Raw(bytes):
    """A value as its bytes on the wire."""


def packed(value: Any) -> bytes:
    match value:
        case Raw():
            return bytes(value)
        case list() if len(value) < 16:
            return bytes([0x90 + len(value)]) + b"".join(map(packed, value))
        case list():
            return b"\xdc" + struct.pack(">H", len(value)) + b"".join(map(packed, value))
    return msgpack.packb(value)


integers = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200) | st.integers(-(2**33), 2**33)
LONG = [Raw(b"\xd3" + struct.pack(">q", 5)), Raw(b"\xd2" + struct.pack(">i", -5))]
texts = st.text(max_size=4) | st.sampled_from(["x" * 40, "y" * 300, Raw(b"\xda\x00\x01a")])
usual: dict[str, st.SearchStrategy[Any]] = {
    "k": integers | st.sampled_from(LONG),
    "v": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9) | st.none(),
    "name": texts | st.none(),
    "raw": st.binary(max_size=4) | st.just(b"z" * 300) | st.none(),
    "ok": st.booleans() | st.none(),
    "at": st.integers(-(10**15), 10**15) | st.none(),
}
odd: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 1.5, float("nan"), float("inf"), "2026-01-01", b"x", [], {}, Raw(b"\xca" + b"\0" * 4)]
)


@st.composite
def frames(draw: st.DrawFn, unit: str) -> list[bytes]:
    """Mostly frames that fit; some with one odd value, one of another length, or cut off."""
    made = []
    for _ in range(draw(st.integers(1, 3))):
        frame = []
        for _ in range(draw(st.integers(0, 4))):
            row = [draw(value) for value in usual.values()]
            if unit == "wide":
                row = draw(st.lists(integers | st.none(), min_size=20, max_size=20))
            elif unit != "us":
                row.insert(0, draw(st.integers(0, 2 * 10**9) | st.floats(0, 2e9)))
            if draw(st.integers(0, 15)) == 0:
                row[draw(st.integers(0, len(row) - 1))] = draw(odd)
            if draw(st.integers(0, 25)) == 0:
                row.pop()
            frame.append(row)
        heads = [bytes([0x90 + len(frame)]), struct.pack(">BH", 0xDC, len(frame)), struct.pack(">BI", 0xDD, len(frame))]
        payload = draw(st.sampled_from(heads)) + b"".join(map(packed, frame))
        made.append(payload[: draw(st.integers(0, len(payload)))] if draw(st.integers(0, 15)) == 0 else payload)
    return made


@pytest.mark.parametrize("unit", SQL)
@given(data=st.data())
def test_the_kernel_reads_what_is_read_value_by_value(unit: str, data: st.DataObject) -> None:
    payloads = data.draw(frames(unit))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "FEW_ROWS", 1)
        found = decoded(decoder(unit), payloads)
        patch.setattr(source, "FEW_ROWS", 1_000)
        assert found == decoded(decoder(unit), payloads)


def decoded(decoder: StreamDecoder, payloads: list[bytes]) -> object:
    try:
        batch = decoder.decode_many(payloads)
    except RowError as error:
        return str(error), error.row, error.code
    return batch.ts.tolist(), repr(rows(batch))
