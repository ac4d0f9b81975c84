"""Many rows as text at once: JSON lines and comma-separated values, written by a kernel from columns.

Rule: the bytes are those of the ordinary way (`writers.py`), which writes the few rows and the odd values that this way
leaves to it by returning None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

import msgspec
import numpy as np

from millrace.protocol import Type
from millrace.protocol.timestamps import FIRST_US, LAST_US
from millrace.values.batch import Batch, Bools, Values, listed
from millrace.values.kernels import compiled, writing
from millrace.values.texts import Texts

# Uncompiled, the kernel takes longer than the ordinary way; so do its arrays for few rows.
WORTHWHILE: Final = compiled()
FEW_ROWS: Final = 8

_JSON: Final = msgspec.json.Encoder()
_KINDS: Final = {
    Type.BIGINT: writing.INTEGER,
    Type.INTERVAL: writing.INTEGER,
    Type.TIMESTAMP: writing.TIME,
    Type.BOOLEAN: writing.BOOLEAN,
}
_SPECIAL: Final = np.frombuffer(b'",\r\n', np.uint8)


def json_text(batch: Batch, before: bytes = b"", after: bytes = b"", first: int | None = None) -> bytes | None:
    """The rows as lines of JSON. `first` is the sequence number of the first row, whose place is behind `before`."""
    if not batch.columns or not _suits(batch):
        return None
    keys = [_JSON.encode(name) + b":" for name in batch.schema.names]
    opened = b"{" if first is None else b',"row":{'
    literals = [opened + keys[0], *(b"," + key for key in keys[1:]), b"}" + after + b"\n"]
    columns: list[tuple[Type, Values, Bools | None]] = [
        (field.type, values, mask) for field, values, mask in zip(batch.schema, batch.columns, batch.valid, strict=True)
    ]
    if first is None:
        literals[0] = before + literals[0]
    else:
        literals.insert(0, before)
        columns.insert(0, (Type.BIGINT, np.arange(first, first + len(batch)), None))
    return _written(columns, literals, b"null", _spelt_as_json, quoted=True)


def csv_text(batch: Batch) -> bytes | None:
    """The rows as comma-separated values; None also where a text needs quotation marks."""
    if not _suits(batch) or len(batch.columns) < 2:  # an only value that is empty has quotation marks
        return None
    for field, values in zip(batch.schema, batch.columns, strict=True):
        if field.type is Type.TEXT and np.isin(cast(Texts, values).packed, _SPECIAL).any():
            return None
    columns = [
        (field.type, values, mask) for field, values, mask in zip(batch.schema, batch.columns, batch.valid, strict=True)
    ]
    literals = [b"", *[b","] * (len(columns) - 1), b"\n"]
    return _written(columns, literals, b"", _spelt_as_csv, quoted=False)


def _suits(batch: Batch) -> bool:
    if not WORTHWHILE or len(batch) < FEW_ROWS or batch.schema.retracts:
        return False
    return all(
        field.type is not Type.TIMESTAMP or (int(values.min()) >= FIRST_US and int(values.max()) <= LAST_US)
        for field, values in zip(batch.schema, batch.columns, strict=True)
    )


def _written(
    columns: Sequence[tuple[Type, Values, Bools | None]],
    literals: Sequence[bytes],
    null: bytes,
    spell: Callable[[Type, Sequence[Any]], bytes],
    *,
    quoted: bool,
) -> bytes:
    count, width = len(columns[0][1]), len(columns)
    values, valid = np.zeros(count * width, np.int64), np.ones(count * width, np.uint8)
    kinds, places = np.empty(width, np.int64), np.zeros(width, np.int64)
    spelt: list[bytes] = []
    room, length = sum(map(len, literals)) * count, 0
    for number, (type_, column, mask) in enumerate(columns):
        kind = kinds[number] = _KINDS.get(type_, writing.SPELT)
        if kind == writing.SPELT:
            spelt.append(spell(type_, listed(column, mask)))
            places[number] = length
            length += len(spelt[-1]) + 1
        else:
            span = slice(number * count, number * count + count)
            values[span] = column
            room += max(writing.LONGEST[kind], len(null)) * count
            if mask is not None:
                valid[span] = mask
    text = b",".join(spelt)
    bounds = np.cumsum([0, *map(len, literals)], dtype=np.int64)
    out = np.empty(room + len(text), np.uint8)
    end = writing.write_rows(
        kinds, values, valid, _bytes(text), places, _bytes(b"".join(literals)), bounds, _bytes(null), quoted, out
    )
    return out[:end].tobytes()


def _bytes(text: bytes) -> Any:
    return np.frombuffer(text, np.uint8)


def _spelt_as_json(type: Type, values: Sequence[Any]) -> bytes:
    return _JSON.encode(values)[1:-1]


def _spelt_as_csv(type: Type, values: Sequence[Any]) -> bytes:
    return ",".join(_csv_values(type, values)).encode()


def _csv_values(type: Type, values: Sequence[Any]) -> Iterable[str]:
    if type is Type.DOUBLE:
        return ["" if value is None else repr(value) for value in values]
    if type is Type.BYTES:
        return ["" if value is None else value.hex() for value in values]
    return ["" if value is None else value for value in values]
