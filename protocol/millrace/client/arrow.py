"""Arrow streams. Importing this module does not import pyarrow; calling its functions does."""

from __future__ import annotations

from typing import Any

from millrace.protocol import Schema
from millrace.protocol.units import MICROSECONDS, TimeUnit


def to_stream(batch: Any) -> bytes:
    """A record batch or a table as the bytes of one Arrow IPC stream."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write(batch)
    return bytes(sink.getvalue())


def from_stream(stream: bytes | memoryview) -> Any:
    """The table of an Arrow IPC stream."""
    import pyarrow

    with pyarrow.ipc.open_stream(pyarrow.py_buffer(stream)) as reader:
        return reader.read_all()


def split_stream(stream: bytes, rows: int) -> tuple[bytes, bytes]:
    """The first `rows` rows and the remaining ones, as two streams."""
    table = from_stream(stream)
    return to_stream(table.slice(0, rows)), to_stream(table.slice(rows))


def least_time(stream: bytes, schema: Schema, time: str, unit: TimeUnit = MICROSECONDS) -> int | None:
    """The least timestamp in a stream's time column, in microseconds; None if it has none."""
    import pyarrow
    import pyarrow.compute

    column = from_stream(stream).column(time)
    if pyarrow.types.is_timestamp(column.type):
        column, unit = column.cast(pyarrow.timestamp("us"), safe=False).cast(pyarrow.int64()), MICROSECONDS
    least = pyarrow.compute.min(column).as_py()
    return None if least is None else unit.micros(least)
