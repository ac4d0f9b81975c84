"""How much of a query's result is retained: `7 days`, `1 GB`, `1000 rows` or `none`, as people write it; and how much
of a server's past is kept: `1 hour`, `4 GB`, `1 hour | 4 GB` or `none`.

A kB, MB, GB or TB is a power of 1000, a KiB, MiB, GiB or TiB a power of 1024.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from millrace.protocol import MAX_INT64, Refuse
from millrace.values.intervals import parse_duration

UNITS_BYTES: Final[dict[str, int]] = {
    **{unit: 1_000**power for power, unit in enumerate(("b", "kb", "mb", "gb", "tb"))},
    **{unit: 1_024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), 1)},
    "byte": 1,
    "bytes": 1,
}
FORMS: Final = "a size such as '64 MB', a time such as '7 days', a number of rows such as '1000 rows', or 'none'"
DEFAULT: Final = "64 MB"
KEEP_FORMS: Final = "a time such as '1 hour', a size such as '4 GB', both as in '1 hour | 4 GB', or 'none'"
_AMOUNT: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]+)\s*", re.ASCII)
# Longer texts are nonsense; the pattern's time grows with their length.
_MOST_CHARACTERS: Final = 64


@dataclass(frozen=True, slots=True)
class Retain:
    """The newest rows of a query: at most so many bytes on disk, at least so many rows, or those of so long a time.

    One of the three is set. `bytes` is 0 if no row is retained.
    """

    bytes: int | None = None
    rows: int | None = None
    age_us: int | None = None

    @property
    def nothing(self) -> bool:
        return self.bytes == 0


@dataclass(frozen=True, slots=True)
class Keep:
    """A server's past: at most so long, and at most so many bytes on disk. None: no such limit; one of them is set."""

    age_us: int | None = None
    bytes: int | None = None


def parse_keep(text: str) -> Keep:
    """What `[journal] keep` says; Refuse names the forms that it has."""
    if text.strip().lower() == "none":
        return Keep(bytes=0)
    parts = text.split("|")
    if len(text) > _MOST_CHARACTERS or len(parts) > 2:
        raise Refuse(f"expected {KEEP_FORMS}, got {text!r:.60}")
    found = [_keep_part(part, text) for part in parts]
    if len(found) == 1:
        return found[0]
    first, second = found
    if (first.bytes is None) == (second.bytes is None):
        raise Refuse(f"expected one time and one size, got {text!r:.60}")
    return Keep(first.age_us or second.age_us, first.bytes or second.bytes)


def _keep_part(part: str, text: str) -> Keep:
    try:
        retain = parse_retain(part)
    except Refuse as error:
        raise Refuse(f"expected {KEEP_FORMS}, got {text!r:.60}" if FORMS in error.text else error.text) from None
    if retain.rows is not None or retain.nothing:
        raise Refuse(f"expected {KEEP_FORMS}, got {text!r:.60}")
    return Keep(retain.age_us, retain.bytes)


def parse_retain(text: str) -> Retain:
    """What an option says; Refuse names the forms that it has."""
    if text.strip().lower() == "none":
        return Retain(bytes=0)
    found = _AMOUNT.fullmatch(text) if len(text) <= _MOST_CHARACTERS else None
    if found is not None and found[2].lower() in ("row", "rows"):
        if not found[1].isdecimal():
            raise Refuse(f"expected a whole number of rows, got {text!r}")
        return Retain(rows=_above_zero(int(found[1]), text))
    if found is not None and found[2].lower() in UNITS_BYTES:
        return Retain(bytes=parse_bytes(text))
    try:
        age_us = parse_duration(text)
    except Refuse as error:
        if found is None:
            raise Refuse(f"expected {FORMS}, got {text!r:.60}") from None
        raise Refuse(f"{error.text}; expected {FORMS}") from None
    return Retain(age_us=_above_zero(age_us, text))


def parse_bytes(text: str) -> int:
    """A size such as `4 GB`."""
    found = _AMOUNT.fullmatch(text) if len(text) <= _MOST_CHARACTERS else None
    unit = None if found is None else UNITS_BYTES.get(found[2].lower())
    if found is None or unit is None:
        raise Refuse(f"expected a size such as '64 MB' or '4 GiB', got {text!r:.60}")
    return _above_zero(int(Fraction(found[1]) * unit), text)


def _above_zero(number: int, text: str) -> int:
    if number <= 0:
        raise Refuse(f"expected more than 0, or 'none', got {text!r:.60}")
    if number > MAX_INT64:
        raise Refuse(f"expected at most {MAX_INT64}, got {text!r:.60}")
    return number
