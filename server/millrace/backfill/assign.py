"""The task of a row: by the crc32 of its key, or by the slices of its time and the margins.

Rule: the same row goes to the same task on every machine and in every run, so nothing here uses Python's `hash`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa

from millrace.backfill.splitting import Slice
from millrace.values.batch import Batch, Int64s, Values
from millrace.values.evaluate import Computed, evaluate
from millrace.values.expression import Expression
from millrace.values.reach import Reach
from millrace.values.texts import is_texts

SEPARATOR: Final = b"\x1f"
NULL: Final = b"\x00"
TEXT_MARK: Final = b"t"
BYTES_MARK: Final = b"b"


def key_numbers(batch: Batch, key: Sequence[Expression], tasks: int) -> Int64s:
    """The task of each row by its key; without a key, by the row's time."""
    if not key:
        return batch.ts % tasks
    columns = [_ranked(evaluate(expression, batch)) for expression in key]
    # Rows of equal keys have equal ranks: each key is spelled out once.
    first, *others = columns
    ranks, words = first
    for more, spelled in others:
        ranks, which = np.unique(ranks * len(spelled) + more, return_inverse=True)
        pairs = (divmod(rank, len(spelled)) for rank in ranks.tolist())
        words = [SEPARATOR.join((words[one], spelled[other])) for one, other in pairs]
        ranks = which.reshape(-1)
    numbers = np.fromiter(map(crc32, words), np.int64, len(words)) % tasks
    found: Int64s = numbers[ranks]
    return found


def _ranked(computed: Computed) -> tuple[Int64s, list[bytes]]:
    """Each row's rank among the distinct values, and those spelled as bytes; null is the last."""
    values, valid, error = computed
    distinct, ranks = _distinct(values)
    whole = isinstance(distinct, pa.Array) and pa.types.is_integer(distinct.type)
    words = distinct.cast(pa.string()).cast(pa.binary()).to_pylist() if whole else map(_spelled, distinct.tolist())
    null = len(distinct)
    if valid is not None:
        ranks = np.where(valid, ranks, null)
    if error is not None:
        # The operator drops the row in any task.
        ranks = np.where(error.rows, null, ranks)
    return ranks, [*words, NULL]


def _distinct(values: Values) -> tuple[Any, Int64s]:
    """The distinct values, and the place of each row's among them."""
    if is_texts(values):
        kind = pa.large_binary() if values.binary else pa.large_string()
        offsets, data = np.ascontiguousarray(values.offsets, np.int64), np.ascontiguousarray(values.data)
        array = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    elif values.dtype == object:
        distinct, ranks = np.unique(values, return_inverse=True)
        return distinct, ranks.reshape(-1).astype(np.int64)
    else:
        array = pa.array(values)
    # A table of hashes: sorting a million values takes ten times as long.
    encoded = array.dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)


def _spelled(value: object) -> bytes:
    """Equal values alike: zero has no sign."""
    match value:
        case float():
            return struct.pack(">d", value + 0.0)
        case bytes():
            return BYTES_MARK + value
        case str():
            return TEXT_MARK + value.encode("utf-8", "surrogatepass")
        case _:
            return str(int(value)).encode()  # type: ignore[call-overload]


def slice_ranges(slices: Sequence[Slice], reach: Reach) -> tuple[Int64s, Int64s]:
    """The times of a stream's rows that slices read: slice n reads from starts[n] to below ends[n].

    Both rise, so the slices that read a row are a range: those that start by its time and have not ended.
    """
    bounds = [slice_.reads(reach) for slice_ in slices]
    starts = np.array([low for low, _ in bounds], np.int64)
    ends = np.array([high for _, high in bounds], np.int64)
    return starts, ends


def first_and_last(ts: Values, slices: Sequence[Slice], reach: Reach) -> tuple[Int64s, Int64s]:
    """The first and the last slice that reads each row; none does where the last is before the first."""
    starts, ends = slice_ranges(slices, reach)
    first = np.searchsorted(ends, ts, side="right")
    last = np.searchsorted(starts, ts, side="right") - 1
    return first.astype(np.int64), last.astype(np.int64)
