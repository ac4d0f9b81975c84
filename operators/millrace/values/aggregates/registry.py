"""The table of aggregates: name, argument types, result, and how to make one's state.

One row per signature, as with functions. Aggregates that a user registers become rows of the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from millrace.protocol import Refuse, Type
from millrace.values.aggregates.accumulator import (
    OBJECTS,
    Accumulator,
    Chosen,
    Compared,
    Count,
    Deviation,
    Extreme,
    IntervalSum,
    PreciseMean,
    PreciseSum,
    WideMean,
    WideSum,
)
from millrace.values.aggregates.sketch import Quantile
from millrace.values.aggregates.user import UserAccumulator, UserFunctions
from millrace.values.signatures import Signatures

Combines = Literal["exactly", "rounded", "never"]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One signature.

    make       an accumulator, from the values of its constant arguments and whether its groups are never merged
    nullable   whether the result may be null: it is for a group without values
    constants  the positions of arguments that must be constants and are not columns of its state
    distinct   whether DISTINCT makes a difference
    combines   whether partial results of a group's rows make its result: exactly, but for the rounding of doubles, or
               never
    """

    name: str
    arguments: tuple[Type, ...]
    result: Type
    make: Callable[[Sequence[Any], bool], Accumulator]
    nullable: bool = True
    constants: tuple[int, ...] = ()
    distinct: bool = True
    combines: Combines = "exactly"

    def parts_of(self, distinct: bool) -> Combines:
        """`combines` of a call; one with DISTINCT keeps values."""
        return "never" if distinct and self.distinct and self.arguments else self.combines

    @property
    def key(self) -> str:
        """The name of this row in a plan: its signature as people write it."""
        return f"{self.name}({', '.join(map(str, self.arguments))})"

    def expected(self, count: int) -> tuple[Type, ...] | None:
        return self.arguments if count == len(self.arguments) else None


class Aggregates(Signatures[Aggregate]):
    """The aggregates."""

    noun: ClassVar[str] = "an aggregate"


def user_aggregate(
    name: str,
    arguments: Sequence[Type],
    result: Type,
    *,
    init: Callable[[], Any],
    iterate: Callable[..., Any],
    terminate: Callable[[Any], Any],
    merge: Callable[[Any, Any], Any] | None = None,
    vectorised: bool = False,
) -> Aggregate:
    """A row for an aggregate that a user has written (`user.py` describes the functions)."""
    functions = UserFunctions(name, len(arguments), init, iterate, terminate, merge, vectorised)
    combines: Combines = "never" if merge is None else "rounded"  # what it rounds is up to its author
    return Aggregate(
        name,
        tuple(arguments),
        result,
        lambda _, whole: UserAccumulator(functions, result, whole),
        combines=combines,
    )


# -- built-in rows -----------------------------------------------------------------------------------------------------


def _simple(name: str, argument: Type, result: Type, kind: type[Accumulator]) -> Aggregate:
    rounds = issubclass(kind, PreciseSum | Deviation)
    return Aggregate(name, (argument,), result, lambda *_: kind(), combines="rounded" if rounds else "exactly")


def _extreme(name: str, type: Type) -> Aggregate:
    greatest = name == "max"

    def make(*_: object) -> Accumulator:
        return Compared(type, None, greatest) if type in OBJECTS else Extreme(type, greatest)

    return Aggregate(name, (type,), type, make, distinct=False)


def _by_time(name: str, type: Type) -> Aggregate:
    return Aggregate(name, (type,), type, lambda *_: Chosen(type, None, name == "last"), distinct=False)


def _by_value(name: str, type: Type, by: Type) -> Aggregate:
    greatest = name == "arg_max"

    def make(*_: object) -> Accumulator:
        return Compared(type, by, greatest) if by in OBJECTS else Chosen(type, by, greatest)

    return Aggregate(name, (type, by), type, make, distinct=False)


def _quantile(constants: Sequence[Any], whole: bool) -> Accumulator:
    (share,) = constants
    if share is None or not 0 <= share <= 1:
        raise Refuse(f"approx_quantile: the second argument is a share from 0 to 1, got {share}")
    return Quantile(share)


def _rows() -> Iterator[Aggregate]:
    yield Aggregate("count", (), Type.BIGINT, lambda *_: Count(), nullable=False)
    for type in Type:
        yield Aggregate("count", (type,), Type.BIGINT, lambda *_: Count(), nullable=False)
    yield _simple("sum", Type.BIGINT, Type.BIGINT, WideSum)
    yield _simple("sum", Type.DOUBLE, Type.DOUBLE, PreciseSum)
    yield _simple("sum", Type.INTERVAL, Type.INTERVAL, IntervalSum)
    yield _simple("avg", Type.BIGINT, Type.DOUBLE, WideMean)
    yield _simple("avg", Type.DOUBLE, Type.DOUBLE, PreciseMean)
    yield _simple("stddev", Type.BIGINT, Type.DOUBLE, Deviation)
    yield _simple("stddev", Type.DOUBLE, Type.DOUBLE, Deviation)
    yield Aggregate(
        "approx_quantile", (Type.DOUBLE, Type.DOUBLE), Type.DOUBLE, _quantile, constants=(1,), combines="never"
    )
    for name in ("min", "max"):
        yield from (_extreme(name, type) for type in Type)
    for name in ("first", "last"):
        yield from (_by_time(name, type) for type in Type)
    for name in ("arg_min", "arg_max"):
        yield from (_by_value(name, type, by) for type in Type for by in Type)


AGGREGATES: Final = Aggregates(list(_rows()))
