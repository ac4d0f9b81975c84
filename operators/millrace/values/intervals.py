"""Intervals as people write them: `10 seconds`, `1 h 30 min`, `-0.5 s`, `01:02:03.5`.

An interval is a number of microseconds. Months and years do not exist: they have no fixed length.
"""

from __future__ import annotations

import re
from fractions import Fraction

from millrace.protocol import MAX_INT64, MIN_INT64, Refuse
from millrace.protocol.timestamps import DAY, LIFETIME_US, TimestampError, parse_timestamp

UNITS_US: dict[str, int] = {
    **dict.fromkeys(("us", "usec", "usecs", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000_000),
}
_CALENDAR = ("month", "months", "mon", "mons", "year", "years", "y", "yr", "yrs", "quarter", "quarters")
_PART = re.compile(r"\s*([+-]?)\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]+)", re.ASCII)
_CLOCK = re.compile(r"\s*([+-]?)(\d+):([0-5]?\d)(?::([0-5]?\d(?:\.\d*)?))?\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)\s*", re.ASCII)
# No interval needs more; the time to read one grows with the square of its blanks and digits.
MOST_CHARACTERS = 256
FORMS = "a number and a unit such as '10 seconds', '1.5 h' or '250 ms'"


def parse_interval(text: str, unit: str | None = None) -> int:
    """Microseconds. `unit` is the unit of a bare number, as in INTERVAL '10' SECOND."""
    if len(text) > MOST_CHARACTERS:
        raise Refuse(f"expected an interval ({FORMS}), got {len(text)} characters: {text!r:.60}")
    if unit is not None and _NUMBER.fullmatch(text):
        return _whole(Fraction(text.strip()) * unit_us(unit), text)
    parts, rest = _parts(text)
    clock = _CLOCK.fullmatch(rest) if rest.strip() else None
    if clock is not None:
        sign, hours, minutes, seconds = clock.groups(default="0")
        amount = Fraction(hours) * 3600 + Fraction(minutes) * 60 + Fraction(seconds)
        parts.append(amount * 1_000_000 * (-1 if sign == "-" else 1))
    elif rest.strip() or not parts:
        raise Refuse(f"expected an interval ({FORMS}), got {text!r:.60}")
    return _whole(sum(parts, Fraction(0)), text)


def parse_duration(text: str, unit: str | None = None) -> int:
    """Microseconds of an option, a window or a range: no longer than all of event time."""
    us = parse_interval(text, unit)
    check_duration(us, repr(text)[:60])
    return us


def parse_moment(text: str, now_us: int) -> int:
    """A time as people name it: ISO 8601, integer microseconds, or `-10 minutes`, which is before `now_us`."""
    bare = text.strip()
    try:
        if bare.lstrip("-").isdecimal():
            return parse_timestamp(int(bare))
        if not bare.startswith("-"):
            return parse_timestamp(bare)
        if (ago_us := parse_duration(bare[1:])) >= 0:
            return now_us - ago_us
    except (TimestampError, Refuse, ValueError):
        pass
    raise Refuse(
        "expected a time (ISO 8601 such as 2026-01-01T09:30:00Z, integer microseconds, or a time ago such as "
        f"'-10 minutes'), got {text!r:.60}",
        code="bad_value",
    )


def check_duration(us: int, shown: str) -> None:
    """Refuse an interval longer than all of event time: no two tuples are that far apart."""
    if abs(us) > LIFETIME_US:
        raise Refuse(f"expected at most {LIFETIME_US // DAY} days, which is all of event time, got {shown}")


def unit_us(unit: str) -> int:
    """The length of a unit."""
    us = UNITS_US.get(unit.lower())
    if us is None:
        known = "us, ms, s, min, h, d or w"
        if unit.lower() in _CALENDAR:
            raise Refuse(f"a {unit} has no fixed length: write the interval in {known}")
        raise Refuse(f"expected a unit of time ({known}, or a word such as seconds), got {unit!r:.60}")
    return us


def format_interval(us: int) -> str:
    """Days, then hours, minutes and seconds: `1 day 02:03:04.5`. parse_interval reads it back."""
    days, rest = divmod(abs(us), UNITS_US["d"])
    sign = "-" if us < 0 else ""
    words = [f"{sign}{days} day{'s' if sign or days != 1 else ''}"] if days else []
    if rest or not days:
        seconds, fraction = divmod(rest, 1_000_000)
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        tail = f".{fraction:06d}".rstrip("0") if fraction else ""
        words.append(f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}{tail}")
    return " ".join(words)


def _parts(text: str) -> tuple[list[Fraction], str]:
    """The `number unit` pairs at the start, and the rest."""
    parts = []
    at = 0
    while match := _PART.match(text, at):
        sign, number, unit = match.groups()
        parts.append(
            Fraction(number if number[-1] != "." else number[:-1]) * unit_us(unit) * (-1 if sign == "-" else 1)
        )
        at = match.end()
    return parts, text[at:]


def _whole(us: Fraction, text: str) -> int:
    rounded = round(us)
    if not MIN_INT64 <= rounded <= MAX_INT64:
        raise Refuse(f"the interval {text!r:.60} does not fit 64 bits of microseconds")
    return rounded
