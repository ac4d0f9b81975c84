"""Timestamps as text and as Millrace stores them: int64 microseconds, UTC.

Rule: conversions are exact over the whole int64 range and use no floats. Years 0000 to 9999 have four digits. Other
years within int64 (-290308 to 294247) have a sign and six digits, as in the expanded form of ISO 8601. The calendar is
proleptic Gregorian without leap seconds, as in Python.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from millrace.protocol.errors import MillraceError
from millrace.protocol.types import MAX_INT64, MIN_INT64

SECOND = 1_000_000
DAY = 86_400 * SECOND
# Event time: the years 1 to 9999, the range of four digits and of datetime. A tuple's time is within it, both ends
# included. A TIMESTAMP column that is not the time of its stream can have any int64.
FIRST_US, LAST_US = -62_135_596_800 * SECOND, 253_402_300_799 * SECOND + SECOND - 1
# The length of event time. No two tuples are further apart, so a longer interval has the same effect.
LIFETIME_US = LAST_US - FIRST_US + 1
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH = _EPOCH_UTC.replace(tzinfo=None)
# The Gregorian calendar repeats after 400 years.
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097

_ISO = re.compile(
    r"(?P<year>\d{4}|[+-]\d{6})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?:[Tt ](?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?"
    r" ?(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)
_FORMS = "integer microseconds or ISO 8601 such as 2026-01-01T00:00:00.000001Z"


class TimestampError(MillraceError, ValueError):
    """A value that is not a timestamp. The text shows the expected forms."""

    code = "bad_value"


def parse_timestamp(value: object) -> int:
    """Microseconds since the epoch from an integer, ISO 8601 text or a datetime.

    Text or a datetime without a zone is UTC, and a date alone is its midnight. Digits beyond the sixth must be zeros,
    because rounding would change a time silently. Booleans and floats are refused.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _in_range(value, value)
    if isinstance(value, str):
        return _in_range(_parse_text(value), value)
    if isinstance(value, datetime):
        return (value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)) // timedelta(microseconds=1)
    raise TimestampError(f"expected a timestamp ({_FORMS}), got {value!r:.60}")


def format_timestamp(us: int) -> str:
    """ISO 8601 with Z, and six digits of fraction unless it is a whole second."""
    if FIRST_US <= us <= LAST_US:
        return (_EPOCH + timedelta(microseconds=us)).isoformat() + "Z"
    days, rest = divmod(us, DAY)
    cycles, day = divmod(days - _days(_CYCLE_YEARS, 1, 1), _CYCLE_DAYS)
    within = date.fromordinal(date(_CYCLE_YEARS, 1, 1).toordinal() + day)
    year = within.year + cycles * _CYCLE_YEARS
    clock = (_EPOCH + timedelta(microseconds=rest)).isoformat()[10:]
    digits = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+07d}"
    return f"{digits}-{within.month:02d}-{within.day:02d}{clock}Z"


def _parse_text(text: str) -> int:
    match = _ISO.fullmatch(text.strip())
    if match is None:
        raise TimestampError(f"expected a timestamp ({_FORMS}), got {text!r:.60}")
    part = match.groupdict(default="")
    try:
        days = _days(int(part["year"]), int(part["month"]), int(part["day"]))
        seconds = _seconds(part["hour"], part["minute"], part["second"]) - _zone(part["zone"])
    except ValueError as error:
        raise TimestampError(f"{text!r:.60} is not a valid time: {error}") from None
    return days * DAY + seconds * SECOND + _fraction(part["fraction"], text)


def _days(year: int, month: int, day: int) -> int:
    """Days since the epoch, in any year. datetime checks and counts at the same place of another cycle."""
    cycles, within = divmod(year, _CYCLE_YEARS)
    ordinal = date(within + _CYCLE_YEARS, month, day).toordinal()
    return ordinal - _EPOCH.toordinal() + (cycles - 1) * _CYCLE_DAYS


def _seconds(hour: str, minute: str, second: str) -> int:
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError("expected hours up to 23, minutes and seconds up to 59")
    return hours * 3600 + minutes * 60 + seconds


def _zone(zone: str) -> int:
    """Seconds east of UTC."""
    if zone in ("", "Z", "z"):
        return 0
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        raise ValueError("expected an offset up to 23:59")
    return (hours * 3600 + minutes * 60) * (-1 if zone[0] == "-" else 1)


def _fraction(digits: str, text: str) -> int:
    if digits[6:].strip("0"):
        raise TimestampError(f"{text!r:.60} is finer than a microsecond: use at most six digits of fraction")
    return int(digits[:6].ljust(6, "0")) if digits else 0


def _in_range(us: int, shown: object) -> int:
    if MIN_INT64 <= us <= MAX_INT64:
        return us
    raise TimestampError(f"expected a timestamp within 64 bits of microseconds, got {shown!r:.60}")
