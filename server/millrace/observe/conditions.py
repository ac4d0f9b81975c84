"""When a trial is reverted: `p99 > 200ms or queue > 2x`.

A condition is one or more comparisons joined by `or`; it holds if one of them does. A value is a number in the
measure's unit, or a multiple of the earlier measurement: `1.5x`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from millrace.protocol import Refuse
from millrace.protocol.admin.bodies import FORMS
from millrace.values.intervals import parse_duration

# What can be compared: the word, and where its value is in the measures of a span.
LATENCIES: Final = {"mean": "mean_us", "p50": "p50_us", "p99": "p99_us", "max": "max_us"}
OTHERS: Final = {"queue": "queue_mean", "peak-queue": "queue_peak", "idle-wait": "idle", "steps": "steps_per_second"}
MEASURES: Final[Mapping[str, str]] = {**LATENCIES, **OTHERS}
_COMPARISON: Final = re.compile(r"\s*([a-z0-9-]+)\s*(>=|<=|>|<)\s*(\S.*?)\s*", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d{1,15}(?:\.\d{1,9})?|\.\d{1,9}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measure against a bound: `value` in the measure's unit, or times what it was before."""

    text: str
    measure: str
    sign: str
    value: float
    relative: bool

    def holds(self, before: Mapping[str, float | None], during: Mapping[str, float | None]) -> bool:
        """False where nothing could be measured: `Condition.reason` has an eye on rows that stay away."""
        key = MEASURES[self.measure]
        got, base = during[key], before[key]
        if got is None or (self.relative and base is None):
            return False
        bound = self.value * (base or 0.0) if self.relative else self.value
        return {">": got > bound, ">=": got >= bound, "<": got < bound, "<=": got <= bound}[self.sign]


@dataclass(frozen=True, slots=True)
class Condition:
    """Comparisons of which one suffices."""

    comparisons: tuple[Comparison, ...]

    def reason(self, before: Mapping[str, float | None], during: Mapping[str, float | None]) -> str | None:
        """Why the condition holds, or None if it does not.

        A strategy that stops all output has no latency to compare, so a condition on latency holds.
        """
        for comparison in self.comparisons:
            if comparison.holds(before, during):
                return comparison.text
            if comparison.measure in LATENCIES and before["rows"] and not during["rows"]:
                return f"{comparison.text}: no rows were emitted during the trial, and {before['rows']:.0f} before"
        return None


def parse_condition(text: str) -> Condition:
    """Refuse names the error and the valid forms."""
    parts = re.split(r"\s+or\s+", text.strip(), flags=re.IGNORECASE)
    return Condition(tuple(_comparison(part) for part in parts))


def _comparison(text: str) -> Comparison:
    found = _COMPARISON.fullmatch(text)
    if found is None:
        raise _refused(f"expected a comparison, got {text!r:.60}")
    measure, sign, bound = found[1].lower(), found[2], found[3]
    if measure not in MEASURES:
        raise _refused(f"{found[1]!r:.60} is not a known measure; the known ones are {', '.join(MEASURES)}")
    relative = bound.endswith(("x", "X"))
    if relative:
        value = _number(bound[:-1], bound)
    elif measure in LATENCIES:
        value = _interval(bound)
    elif measure == "idle-wait":
        if not bound.endswith("%"):
            raise _refused(f"idle-wait is a share of the time: expected a percentage, got {bound!r:.60}")
        value = _number(bound[:-1], bound) / 100
    else:
        value = _number(bound, bound)
    return Comparison(text.strip(), measure, sign, value, relative)


def _number(text: str, whole: str) -> float:
    if not _NUMBER.fullmatch(text.strip()):
        raise _refused(f"expected a number, got {whole!r:.60}")
    return float(text)


def _interval(text: str) -> float:
    try:
        us = parse_duration(text)
    except Refuse as error:
        raise _refused(error.text) from None
    if us < 0:
        raise _refused(f"expected a latency of 0 or more, got {text!r:.60}")
    return float(us)


def _refused(what: str) -> Refuse:
    return Refuse(f"{what}; the forms are {FORMS}", code="bad_condition")
