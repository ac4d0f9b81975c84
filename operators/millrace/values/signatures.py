"""The common part of the tables of functions and aggregates: a row per signature, found by key, name or arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

from millrace.protocol import Refuse, Type

# The types that an argument may be read as, with what each reading costs: a bigint may become a double, a literal
# such as '10 s' an interval, NULL anything. Signatures are chosen by the least sum.
Readings = Mapping[Type, int]


class Signature(Protocol):
    """A row of such a table."""

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> str:
        """The name of this row in a plan: its signature as people write it."""

    def expected(self, count: int) -> Sequence[Type] | None:
        """The types of its arguments, or None if it does not take `count` of them."""


Row = TypeVar("Row", bound=Signature)


class Signatures(Generic[Row]):
    """The rows, found by key and by name; `noun` is what a row is called."""

    noun: ClassVar[str]

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self._by_key: dict[str, Row] = {}
        self._by_name: dict[str, list[Row]] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        if row.key in self._by_key:
            raise Refuse(f"{self.noun.split()[-1]} {row.key} already exists")
        self._by_key[row.key] = row
        self._by_name.setdefault(row.name, []).append(row)

    def remove(self, row: Row) -> None:
        """Take a row away."""
        del self._by_key[row.key]
        self._by_name[row.name].remove(row)
        if not self._by_name[row.name]:
            del self._by_name[row.name]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._by_key.values())

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def __getitem__(self, key: str) -> Row:
        if key not in self._by_key:
            raise Refuse(f"{self.noun.split()[-1]} {key} does not exist; is its module configured?")
        return self._by_key[key]

    def named(self, name: str) -> Sequence[Row]:
        """All signatures of a name."""
        return self._by_name.get(name, ())

    @property
    def names(self) -> Sequence[str]:
        return list(self._by_name)

    def resolve(self, name: str, given: Sequence[Readings]) -> Row | None:
        """The signature that takes these arguments with the fewest conversions; the earlier row on a tie."""
        best: tuple[int, Row] | None = None
        for row in self.named(name):
            cost = self.cost(row, given)
            if cost is not None and (best is None or cost < best[0]):
                best = cost, row
        return best[1] if best else None

    @staticmethod
    def cost(row: Row, given: Sequence[Readings]) -> int | None:
        """The cost of converting these arguments, or None if it does not take them."""
        wanted = row.expected(len(given))
        if wanted is None or any(want not in have for want, have in zip(wanted, given, strict=True)):
            return None
        return sum(have[want] for want, have in zip(wanted, given, strict=True))
