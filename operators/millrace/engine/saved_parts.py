"""Columns in parts, so that their arrays are written without a copy.

Rule: the parts together are the bytes of `saving.pack`, which packs every value inside out: each tuple and each array
copies all that is in it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgpack
import numpy as np

from millrace.engine import saving
from millrace.values.texts import Texts

Part = bytes | bytearray | memoryview

# Bytes from which a value becomes a part.
LARGE: Final = 2**14


def pack_parts(values: Sequence[Any]) -> list[Part]:
    """The bytes of `pack`, for a list of columns. Arrays must not change until they are written."""
    packing = _Packing()
    packing.add(values)
    return packing.end()


class _Packing:
    """Small values one after the other, and large ones as they are. `size` is that of all."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[Part] = []
        self._small = bytearray()
        self._packer = msgpack.Packer()

    def end(self) -> list[Part]:
        self._flush()
        return self._parts

    def add(self, value: Any) -> None:
        match value:
            case list():
                self._add_list(value)
            case np.ndarray() if value.nbytes >= LARGE and not value.dtype.hasobject:
                content = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
                self._add_extension(saving.ARRAY, [value.dtype.str, content])
            case Texts():
                self._add_extension(saving.TEXTS, value.save())
            case bytes() | memoryview() if len(value) >= LARGE:
                self._put(_bytes_head(len(value)))
                self._put_large(value)
            case _:
                self._put(saving.pack(value))

    def _add_list(self, values: Sequence[Any]) -> None:
        self._put(self._packer.pack_array_header(len(values)))
        for one in values:
            self.add(one)

    def _add_extension(self, code: int, values: Sequence[Any]) -> None:
        inner = _Packing()
        inner._add_list(values)
        self._put(_extension_head(code, inner.size))
        for part in inner.end():
            (self._put_large if len(part) >= LARGE else self._put)(part)

    def _put(self, data: Part) -> None:
        self._small += data
        self.size += len(data)

    def _put_large(self, data: Part) -> None:
        self._flush()
        self._parts.append(data)
        self.size += len(data)

    def _flush(self) -> None:
        if self._small:
            self._parts.append(self._small)
            self._small = bytearray()


def _bytes_head(size: int) -> bytes:
    if size < 2**8:
        return struct.pack(">BB", 0xC4, size)
    return struct.pack(">BH", 0xC5, size) if size < 2**16 else struct.pack(">BI", 0xC6, size)


def _extension_head(code: int, size: int) -> bytes:
    fixed = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}.get(size)
    if fixed is not None:
        return bytes((fixed, code))
    if size < 2**8:
        return struct.pack(">BBB", 0xC7, size, code)
    return struct.pack(">BHB", 0xC8, size, code) if size < 2**16 else struct.pack(">BIB", 0xC9, size, code)
