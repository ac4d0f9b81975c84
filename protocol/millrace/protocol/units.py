"""Units of numeric timestamps: those that a stream can declare (`time_unit`), and the likely one of a value far off.

Rule: a unit says how numbers in a stream's time field count since 1970. Text and typed timestamps mean the same in
every unit, and everything that Millrace stores or sends is in microseconds. Seconds and milliseconds may have a
fraction, which is rounded to the nearest microsecond. Nanoseconds are rounded down, so that order is kept.

A time of this century makes sense in one unit only, because the four ranges do not overlap. The value alone therefore
determines its likely unit. The caller decides whether to believe it: the caller knows the stream's other times and the
clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from millrace.protocol.timestamps import SECOND, TimestampError, format_timestamp, parse_timestamp

UnitName = Literal["us", "ms", "s", "ns"]

# The times of live data: 2000 to 2099.
CENTURY_US = (946_684_800 * SECOND, 4_102_444_800 * SECOND)


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit: `numerator` microseconds are `denominator` of it. `fractions`: whether floats are allowed."""

    name: UnitName
    words: str
    numerator: int
    denominator: int = 1
    fractions: bool = False

    @property
    def forms(self) -> str:
        """The forms of a timestamp in this unit, for error texts."""
        numbers = f"{self.words} as a number" if self.fractions else f"integer {self.words}"
        return f"{numbers} or ISO 8601 text"

    def is_number(self, value: object) -> bool:
        """Whether the value is a number that counts in this unit."""
        if isinstance(value, float):
            return self.fractions and math.isfinite(value)
        return isinstance(value, int) and not isinstance(value, bool)

    def fraction_hint(self, value: object, stream: str) -> str:
        """What to do about a number with a fraction in the time field of a stream; empty if this unit takes it."""
        if not isinstance(value, float) or not math.isfinite(value) or self.fractions:
            return ""
        likely = likely_unit(int(value), self)
        unit = "ms" if likely is not None and likely.unit.name == "ms" else "s"
        return (
            f"; its time_unit is '{self.name}', which takes no fractions: send integers, or declare the unit with "
            f"ALTER STREAM {stream} SET (time_unit = '{unit}')"
        )

    def micros(self, number: int | float) -> int:
        """A number in this unit as microseconds, which may be beyond 64 bits."""
        if isinstance(number, int):
            return number * self.numerator // self.denominator
        fraction, whole = math.modf(number)
        return int(whole) * self.numerator + round(fraction * self.numerator)

    def parse(self, value: object) -> int:
        """Microseconds from a number in this unit, ISO 8601 text or a datetime. TimestampError for anything else."""
        if self.name != "us" and self.is_number(value):
            return self.micros(value)  # type: ignore[arg-type]
        if isinstance(value, int | float) and self.name != "us":
            raise TimestampError(f"expected a timestamp ({self.forms}), got {value!r:.60}")
        return parse_timestamp(value)

    def count(self, time_us: int) -> int:
        """Microseconds as an integer in this unit, rounded down."""
        return time_us * self.denominator // self.numerator


MICROSECONDS: Final = TimeUnit("us", "microseconds", 1)
# By the value of the option `time_unit`, the default first.
UNITS: Final[Mapping[str, TimeUnit]] = {
    unit.name: unit
    for unit in (
        MICROSECONDS,
        TimeUnit("ms", "milliseconds", 1_000, fractions=True),
        TimeUnit("s", "seconds", SECOND, fractions=True),
        TimeUnit("ns", "nanoseconds", 1, 1_000),
    )
}


class LikelyUnit(NamedTuple):
    """A unit in which a value makes sense, the unit in which it was read, and the time that it is then."""

    unit: TimeUnit
    declared: TimeUnit
    time_us: int

    @property
    def name(self) -> str:
        return self.unit.words

    def __str__(self) -> str:
        return (
            f"it looks like {self.name} ({format_timestamp(self.time_us)}): integer timestamps are "
            f"{self.declared.words}, so {self._remedy}, or declare the stream WITH (time_unit = '{self.unit.name}')"
        )

    @property
    def _remedy(self) -> str:
        """How to turn the value into the declared unit."""
        up = self.unit.numerator * self.declared.denominator
        down = self.unit.denominator * self.declared.numerator
        return f"multiply by {up // down}" if up > down else f"divide by {down // up}"


def likely_unit(value: int, declared: TimeUnit = MICROSECONDS) -> LikelyUnit | None:
    """The unit in which this integer is a time of this century, if that is not the declared one."""
    for unit in UNITS.values():
        if unit is not declared and in_century(time_us := unit.micros(value)):
            return LikelyUnit(unit, declared, time_us)
    return None


def in_century(time_us: int) -> bool:
    """Whether a time in microseconds belongs to live data, or to the recent past."""
    return CENTURY_US[0] <= time_us < CENTURY_US[1]
