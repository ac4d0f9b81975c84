"""How a backfill is cut into tasks, and why: by key, by slices of time with a margin, or not at all.

A task emits the rows whose own time is in its slice, and reads the input that they depend on. Slices are cheap where
margins are much shorter; keys need no margin but bring all rows of a key, of all times, to one task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal

from millrace.backfill.flow import Flow
from millrace.backfill.keys import Keys, keys_of
from millrace.backfill.margins import Margins, margins_of
from millrace.protocol import Refuse, format_timestamp
from millrace.protocol.words import counted
from millrace.values import expression as e
from millrace.values.eventtime import MAX_TIME, MIN_TIME
from millrace.values.intervals import format_interval
from millrace.values.reach import Reach

Mode = Literal["auto", "key", "time"]
How = Literal["key", "time", "one"]

# Slices read their margin twice: up to a quarter of a slice that is cheaper than a shuffle with unknown skew.
MOST_MARGIN: Final = 0.25


@dataclass(frozen=True, slots=True)
class Extent:
    """The times of the input: the first, and one above the last."""

    from_us: int
    to_us: int

    @property
    def span_us(self) -> int:
        return max(self.to_us - self.from_us, 0)


@dataclass(frozen=True, slots=True)
class Slice:
    """A task emits rows whose own time is at least `from_us` and below `to_us`."""

    from_us: int = MIN_TIME
    to_us: int = MAX_TIME

    @property
    def begins(self) -> bool:
        """Whether it has a bound below."""
        return self.from_us != MIN_TIME

    @property
    def ends(self) -> bool:
        return self.to_us != MAX_TIME

    def reads(self, reach: Reach) -> tuple[int, int]:
        """The times of a stream's rows that it needs; MIN_TIME and MAX_TIME mean unbounded."""
        low = MIN_TIME if reach.back is None or not self.begins else self.from_us - reach.back
        high = MAX_TIME if reach.ahead is None or not self.ends else self.to_us + reach.ahead
        return low, high


ALWAYS: Final = Slice()


@dataclass(frozen=True)
class Split:
    """The tasks of a backfill. Task n of a split by key has the keys of number n; of a split by time, the nth slice.

    keys    by stream, the key of its rows; rows of a stream without an entry go to any task
    reason  why it is split so, in words
    """

    how: How
    slices: tuple[Slice, ...]
    margins: Margins
    reason: str
    keys: dict[str, tuple[e.Expression, ...]] = field(default_factory=dict)
    overall: Slice = ALWAYS

    @property
    def tasks(self) -> int:
        return len(self.slices)

    def reach(self, stream: str) -> Reach:
        return self.margins.streams[stream]

    def words(self) -> list[str]:
        """The split as people read it."""
        return [
            f"split: {how_words(self.how)}, {counted(self.tasks, 'task')}",
            f"why: {self.reason}",
            f"margin: {margin_words(self.margins)}",
        ]

    def to_data(self) -> dict[str, Any]:
        return {
            "how": self.how,
            "tasks": self.tasks,
            "reason": self.reason,
            "slices": [[one.from_us, one.to_us] for one in self.slices] if self.how == "time" else None,
        }


def how_words(how: str) -> str:
    return {"key": "by key", "time": "by time", "one": "not at all"}[how]


def margin_words(margins: Margins) -> str:
    """The warm-up margin, look-back and look-ahead."""
    widest = margins.widest
    told = [
        f"{name} {'without bound' if us is None else format_interval(us) if us else 'none'}"
        for name, us in (("look-back", widest.back), ("look-ahead", widest.ahead))
    ]
    text = ", ".join(told)
    if margins.unbounded:
        text += " (" + "; ".join(f"{name}: {reason}" for name, reason in margins.unbounded.items()) + ")"
    return text


def plan_split(
    flow: Flow,
    extent: Extent | None,
    *,
    wanted: Slice = ALWAYS,
    mode: Mode = "auto",
    tasks: int = 1,
    cuts: Sequence[int] | None = None,
) -> Split:
    """Choose the split; Refuse has the reason against the requested one.

    extent  of the rows to emit; None if there is no input at all
    cuts    where slices may start so that each has about as many rows; without them slices are equally long
    """
    margins, keys = margins_of(flow), keys_of(flow)
    if flow.equality == "load":
        return _only_one(margins, wanted, mode, LOAD)
    if extent is None or not extent.span_us:
        return Split("one", (wanted,), margins, "the inputs have nothing to split", overall=wanted)
    by_time = _no_slices(flow, margins)
    by_key = _no_keys(keys)
    if mode == "time" and by_time:
        raise Refuse(f"--mode time: {by_time}. {_instead(by_key, 'key')}", code="cannot_split")
    if mode == "key" and by_key:
        raise Refuse(f"--mode key: {by_key}. {_instead(by_time, 'time')}", code="cannot_split")
    if by_time and by_key:
        return _only_one(margins, wanted, mode, f"{by_time}, and {by_key}")
    if tasks == 1:
        return Split("one", (wanted,), margins, "one task was requested", overall=wanted)
    choose_time, reason = _choose(margins, keys, extent, by_time, by_key, mode, tasks)
    if choose_time:
        slices = _slices(extent, wanted, tasks, margins, cuts)
        return Split("time", slices, margins, reason, overall=wanted)
    return Split("key", (wanted,) * tasks, margins, reason, dict(keys.streams), wanted)


LOAD: Final = (
    "the result depends on the load of the engine (equality load: a latent stamp, SHED, or rows appended below "
    "LATEST) or on a function that is not deterministic, so the results of tasks could not be combined"
)


def _only_one(margins: Margins, wanted: Slice, mode: Mode, reason: str) -> Split:
    if mode != "auto":
        raise Refuse(f"--mode {mode}: {reason}. Omit --mode to run it in one task", code="cannot_split")
    return Split("one", (wanted,), margins, reason, overall=wanted)


def _no_slices(flow: Flow, margins: Margins) -> str | None:
    """The reason against slices of time."""
    for name, reason in margins.unbounded.items():
        return f"it cannot be split by time, because {name} has no bound: {reason}"
    if not margins.widest.bounded:
        return "it cannot be split by time, because the input of a row can be of any age"
    return None


def _no_keys(keys: Keys) -> str | None:
    """The reason against a split by key."""
    if keys.refused is not None:
        return "it cannot be split by key, because of {}: {}".format(*keys.refused)
    if not keys.streams:
        return "it cannot be split by key, because no operator has a key"
    return None


def _instead(forbidden: str | None, mode: str) -> str:
    return f"--mode {mode} would work" if forbidden is None else "Omit --mode to run it in one task"


def _choose(
    margins: Margins, keys: Keys, extent: Extent, by_time: str | None, by_key: str | None, mode: Mode, tasks: int
) -> tuple[bool, str]:
    """Whether by time, and why."""
    key = f"all stateful operators share a key ({keys.words()})"
    margin = (margins.widest.back or 0) + (margins.widest.ahead or 0)
    share = margin * tasks / extent.span_us
    short = f"its margin is {_part(share)} of a slice" if margin else "no row depends on rows of another time"
    if mode != "auto":
        return mode == "time", f"--mode {mode} was requested; {short if mode == 'time' else key}"
    if by_time:
        return False, f"{key}; {by_time}"
    if by_key:
        return True, f"{short}; {by_key}"
    if share <= MOST_MARGIN:
        return (
            True,
            f"{short}, so slices of time repeat little work and keep the state of each task small; a key exists too",
        )
    again = f"{share:,.0f} times" if share >= 2 else f"{share:.0%} of"
    return False, f"{key}; every slice of time would read {again} its length again as its margin"


def _part(share: float) -> str:
    """A margin against a slice, as people say it."""
    if share >= 2:
        return f"{share:,.0f} times the length"
    return f"{share:.1%}" if share >= 0.001 else "less than 0.1%"


def _slices(
    extent: Extent, wanted: Slice, tasks: int, margins: Margins, cuts: Sequence[int] | None
) -> tuple[Slice, ...]:
    """Slices that cover all that is wanted."""
    if cuts is None:
        cuts = [extent.from_us + extent.span_us * number // tasks for number in range(1, tasks)]
    inner = sorted({cut for cut in cuts if extent.from_us < cut < extent.to_us})
    bounds = [wanted.from_us, *inner, wanted.to_us]
    return tuple(Slice(low, high) for low, high in pairwise(bounds))


def span_words(wanted: Slice) -> str:
    low = format_timestamp(wanted.from_us) if wanted.begins else "the start"
    high = format_timestamp(wanted.to_us) if wanted.ends else "the end"
    return f"from {low} to {high}"
