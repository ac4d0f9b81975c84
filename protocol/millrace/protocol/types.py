"""The types of fields, and the schema of a stream or a query.

Rule: this module contains names and types, and does not use arrays, sockets or SQL: the client imports it and depends
on msgpack only. Add a type here, in `values/batch.py` (its array), in `formats/decoder.py` (its decoder) and in
`docs/protocol.md`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

# Signed 64-bit range: bigint and timestamp values outside it are refused, never wrapped.
MIN_INT64 = -(2**63)
MAX_INT64 = 2**63 - 1

# The last field of an update stream whose keys can lose their row. Where it is true, the row is a tombstone: its key no
# longer has a row, and the other columns are null. A user's column cannot have either name.
# GONE is the name in schemas inside the server. DELETED replaces it: on the wire where the
# capability `deleted` is granted, and in JSON and files, which have both names until 0.3.
GONE = "$gone"
DELETED = "$deleted"
TOMBSTONE_NAMES = (GONE, DELETED)


class Type(Enum):
    """The type of a value. INTERVAL is for expressions only; a field of a stream cannot have it."""

    BOOLEAN = "boolean"
    BIGINT = "bigint"
    DOUBLE = "double"
    TEXT = "text"
    BYTES = "bytes"
    TIMESTAMP = "timestamp"  # int64 microseconds since the epoch, UTC
    INTERVAL = "interval"  # int64 microseconds

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__


FIELD_TYPES = tuple(kind for kind in Type if kind is not Type.INTERVAL)


@dataclass(frozen=True, slots=True)
class Field:
    """One named column."""

    name: str
    type: Type
    nullable: bool = True

    def __str__(self) -> str:
        return f"{self.name} {self.type}" + ("" if self.nullable else " not null")


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of a row, in order. Names are distinct."""

    fields: tuple[Field, ...]
    # Built on first use.
    _names: tuple[str, ...] | None = field(default=None, init=False, compare=False, repr=False)
    _places: dict[str, int] | None = field(default=None, init=False, compare=False, repr=False)
    _data: list[list[object]] | None = field(default=None, init=False, compare=False, repr=False)

    @staticmethod
    def of(**fields: Type | str) -> Schema:
        """A schema of nullable fields, for tests and short programs: `Schema.of(a="bigint")`."""
        return Schema(tuple(Field(name, Type(getattr(kind, "value", kind))) for name, kind in fields.items()))

    def __len__(self) -> int:
        return len(self.fields)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        if self._names is None:
            object.__setattr__(self, "_names", tuple(field.name for field in self.fields))
            assert self._names is not None
        return self._names

    def index(self, name: str) -> int | None:
        """The index of a field, or None if no field has this name."""
        if self._places is None:
            places = {field.name: position for position, field in reversed(tuple(enumerate(self.fields)))}
            object.__setattr__(self, "_places", places)
            return places.get(name)
        return self._places.get(name)

    @property
    def retracts(self) -> bool:
        """Whether rows may be tombstones."""
        return bool(self.fields) and self.fields[-1].name in TOMBSTONE_NAMES

    def with_deleted(self) -> Schema:
        """The schema with DELETED as the name of the field that marks tombstones, if it has one."""
        if not self.retracts:
            return self
        mark = self.fields[-1]
        return Schema((*self.fields[:-1], Field(DELETED, mark.type, mark.nullable)))

    @property
    def data_fields(self) -> tuple[Field, ...]:
        """The fields of a row without the one that marks tombstones."""
        return self.fields[:-1] if self.retracts else self.fields

    def fingerprint(self) -> str:
        """Sixteen hex digits that change whenever a name, a type, a null rule or the order does."""
        text = "\n".join(str(field) for field in self.fields)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_data(self) -> list[list[object]]:
        """As lists, for the wire: `[[name, type, nullable], ...]`. They are the same ones each time."""
        if self._data is None:
            data: list[list[object]] = [[field.name, field.type.value, field.nullable] for field in self.fields]
            object.__setattr__(self, "_data", data)
            return data
        return self._data

    @staticmethod
    def from_data(data: Sequence[Sequence[object]]) -> Schema:
        return Schema(tuple(Field(str(name), Type(kind), bool(nullable)) for name, kind, nullable in data))
