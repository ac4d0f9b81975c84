"""Readers of single fields of a body: a msgpack decoder that accepts one expected form at a time.

Rule: a reader takes the body and an offset, and returns the value and the offset after it. It raises UnfitError if
the bytes there do not have the form of the layout, and IndexError or struct.error if the body ends early.
`messages.py` converts these to PeerErrors. A reader accepts expected forms only, so a peer can neither cause nesting
nor have memory allocated for an announced length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from millrace.protocol.frames import Body
from millrace.protocol.types import FIELD_TYPES, MAX_INT64, MIN_INT64, Field, Schema, Type

MAX_COLUMNS = 4_096  # values of a row; it limits the cost of refusing a hostile row of nested arrays to 32 MiB
MAX_TEXT = 65_536  # bytes of a name, a token, an error's text

Reader = Callable[[Body, int], tuple[Any, int]]


class UnfitError(Exception):
    """The bytes are not the form that the layout expects; `got` describes them."""

    def __init__(self, got: str, code: str = "bad_message") -> None:
        self.got = got
        self.code = code


_NIL = 0xC0
_INTEGERS: Mapping[int, struct.Struct] = {
    0xCC: struct.Struct(">B"), 0xCD: struct.Struct(">H"), 0xCE: struct.Struct(">I"), 0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"), 0xD1: struct.Struct(">h"), 0xD2: struct.Struct(">i"), 0xD3: struct.Struct(">q"),
}  # fmt: skip
_LENGTH_BYTES: Mapping[int, int] = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4, 0xDC: 2, 0xDD: 4}
_TEXT_HEADS, BIN_HEADS, _ARRAY_HEADS = (0xD9, 0xDA, 0xDB), (0xC4, 0xC5, 0xC6), (0xDC, 0xDD)
# The form that a first byte announces, for error texts: (first, last, words).
_ANNOUNCES = (
    (0x00, 0x7F, "an integer"), (0x80, 0x8F, "a map"), (0x90, 0x9F, "an array"), (0xA0, 0xBF, "text"),
    (0xC0, 0xC0, "nil"), (0xC1, 0xC1, "a byte that msgpack never uses"), (0xC2, 0xC3, "a boolean"),
    (0xC4, 0xC6, "bytes"), (0xC7, 0xC9, "an extension type"), (0xCA, 0xCB, "a float"), (0xCC, 0xD3, "an integer"),
    (0xD4, 0xD8, "an extension type"), (0xD9, 0xDB, "text"), (0xDC, 0xDD, "an array"), (0xDE, 0xDF, "a map"),
    (0xE0, 0xFF, "an integer"),
)  # fmt: skip


def announced(first: int) -> str:
    """The form of a value that starts with this byte, in words."""
    return next(words for low, high, words in _ANNOUNCES if low <= first <= high)


def read_integer(body: Body, at: int) -> tuple[int, int]:
    """An integer in any form of msgpack. The caller checks its range: it may exceed 2^63 - 1."""
    first = body[at]
    if first < 0x80:
        return first, at + 1
    if first >= 0xE0:
        return first - 256, at + 1
    form = _INTEGERS.get(first)
    if form is None:
        raise UnfitError(announced(first))
    return form.unpack_from(body, at + 1)[0], at + 1 + form.size


def between(low: int, high: int) -> Reader:
    """A reader of integers in this range, both ends included."""

    def read(body: Body, at: int) -> tuple[int, int]:
        value, at = read_integer(body, at)
        if not low <= value <= high:
            raise UnfitError(str(value))
        return value, at

    return read


def read_length(body: Body, at: int, heads: tuple[int, ...], fix: int, fix_mask: int) -> tuple[int, int]:
    """The length of the text, bytes or array that starts here, and the offset of its content."""
    first = body[at]
    if fix and first & fix_mask == fix:
        return first & ~fix_mask & 0xFF, at + 1
    if first not in heads:
        raise UnfitError(announced(first))
    size = _LENGTH_BYTES[first]
    if at + 1 + size > len(body):
        raise IndexError
    return int.from_bytes(body[at + 1 : at + 1 + size], "big"), at + 1 + size


def _content(body: Body, at: int, length: int) -> tuple[bytes, int]:
    if at + length > len(body):
        raise IndexError
    return bytes(body[at : at + length]), at + length


def read_text(body: Body, at: int) -> tuple[str, int]:
    length, at = read_length(body, at, _TEXT_HEADS, 0xA0, 0xE0)
    if length > MAX_TEXT:
        raise UnfitError(f"text of {length} bytes")
    content, at = _content(body, at, length)
    try:
        return content.decode(), at
    except UnicodeDecodeError:
        raise UnfitError("bytes that are not UTF-8") from None


def one_of(*choices: str) -> Reader:
    """A reader of one of these words."""

    def read(body: Body, at: int) -> tuple[str, int]:
        value, at = read_text(body, at)
        if value not in choices:
            raise UnfitError(repr(value[:60]))
        return value, at

    return read


def or_nil(reader: Reader) -> Reader:
    """A reader of nil, as None, or of the form of `reader`."""

    def read(body: Body, at: int) -> tuple[Any, int]:
        return (None, at + 1) if body[at] == _NIL else reader(body, at)

    return read


def read_boolean(body: Body, at: int) -> tuple[bool, int]:
    first = body[at]
    if first not in (0xC2, 0xC3):
        raise UnfitError(announced(first))
    return first == 0xC3, at + 1


def read_bytes(body: Body, at: int) -> tuple[bytes, int]:
    length, at = read_length(body, at, BIN_HEADS, 0, 0)
    return _content(body, at, length)


def read_array(body: Body, at: int) -> tuple[int, int]:
    """The number of items of the array that starts here, and the offset of the first."""
    return read_length(body, at, _ARRAY_HEADS, 0x90, 0xF0)


NUMBER = between(0, MAX_INT64)
INT64 = between(MIN_INT64, MAX_INT64)
_TYPE = one_of(*(kind.value for kind in FIELD_TYPES))


def read_schema(body: Body, at: int) -> tuple[Schema, int]:
    count, at = read_array(body, at)
    if count > MAX_COLUMNS:
        raise UnfitError(f"{count} fields")
    fields = []
    for _ in range(count):
        field, at = _field(body, at)
        fields.append(field)
    if len({field.name for field in fields}) < count:
        raise UnfitError("a duplicate name")
    return Schema(tuple(fields)), at


def _field(body: Body, at: int) -> tuple[Field, int]:
    count, at = read_array(body, at)
    if count != 3:
        raise UnfitError(f"a field of {count} items")
    name, at = read_text(body, at)
    name_of_type, at = _TYPE(body, at)
    nullable, at = read_boolean(body, at)
    return Field(name, Type(name_of_type), nullable), at


class Item(NamedTuple):
    """One field of a layout. `expects` is the wording of `docs/protocol.md`."""

    name: str
    expects: str
    read: Reader
    optional: bool = False


def number_item(name: str) -> Item:
    return Item(name, "integer >= 0", NUMBER)


def nullable_number_item(name: str) -> Item:
    return Item(name, "integer >= 0 or nil", or_nil(NUMBER))


def time_item(name: str) -> Item:
    return Item(name, "integer", INT64)


def text_item(name: str) -> Item:
    return Item(name, "text", read_text)


def nullable_text_item(name: str) -> Item:
    return Item(name, "text or nil", or_nil(read_text))


def flag_item(name: str) -> Item:
    return Item(name, "boolean", read_boolean)


def trailing_item(item: Item) -> Item:
    """The item as an optional field at the end of a message: omitted if absent, or nil before a present one."""
    return Item(item.name, f"{item.expects} or nil; may be left out", or_nil(item.read), optional=True)


MAX_CAPABILITIES = 64


def read_names(body: Body, at: int) -> tuple[tuple[str, ...], int]:
    """A short array of text."""
    count, at = read_array(body, at)
    if count > MAX_CAPABILITIES:
        raise UnfitError(f"{count} items")
    names = []
    for _ in range(count):
        name, at = read_text(body, at)
        names.append(name)
    return tuple(names), at


def choice_item(name: str, *choices: str) -> Item:
    return Item(name, " or ".join(f"'{choice}'" for choice in choices), one_of(*choices))


def array_head(count: int) -> bytes:
    """The head of a msgpack array with this number of items."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 65_536 else b"\xdd" + count.to_bytes(4, "big")


def pack_integer(value: int) -> bytes:
    """A non-negative integer in the shortest form of msgpack."""
    if value < 0x80:
        return bytes((value,))
    for first, size in ((0xCC, 1), (0xCD, 2), (0xCE, 4)):
        if value < 1 << 8 * size:
            return bytes((first,)) + value.to_bytes(size, "big")
    return b"\xcf" + value.to_bytes(8, "big")
