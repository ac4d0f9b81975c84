"""Aggregation as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import ClassVar, Literal

from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.spec import (
    FIXED,
    STATEFUL,
    Derivation,
    Edits,
    Leaving,
    Origin,
    Positions,
    Shared,
    Spec,
    State,
    Updates,
    all_columns,
    computed,
    if_at_once,
    retracting,
    within,
)
from millrace.operators.frame.windows import COUNTED, RowWindow, SessionWindow, TimeWindow, bound_lags, window_words
from millrace.protocol import Field, Schema, Type
from millrace.values import expression as e
from millrace.values.aggregates import AGGREGATES, Combines
from millrace.values.definitions import Definition
from millrace.values.expression import Column, Expression
from millrace.values.intervals import format_interval
from millrace.values.lags import Lag, Lags, add
from millrace.values.reach import Reach, Reaches, unbounded
from millrace.values.written import show, show_as, show_column


@dataclass(frozen=True, slots=True)
class AggregateCall(Definition):
    """One aggregate of the select list: `function` is a key of the registry (`aggregates.AGGREGATES`)."""

    type: Type
    nullable: bool
    function: str
    arguments: tuple[Expression, ...] = ()
    distinct: bool = False
    filter: Expression | None = None


@dataclass(frozen=True, slots=True)
class AggregateSpec(Spec):
    """Group rows and aggregate each group, per window or (without one) as a running total.

    Its rows: keys, then calls, then bounds of the window. Each bound is `start` or `end`: timestamps, or
    positions in the arc under a RowWindow. Without a window the result is an update stream whose key is `keys`.

    flush     `none`: a closed window is emitted before more tuples are taken. `slow`: one row per `flush_every` tuples
              taken. `lazy`: only when nothing else waits. Both emit a row whenever no tuple waits, and at the latest
              when time is `max_delay_us` past the end of its window
    partial   whether windows that started before the query are emitted
    emit      of a running total: the last of a group's rows of one execution, or one row per tuple
    where     rows that count for nothing but their position (see RowWindow)
    replaces  the input is an update stream with this key (positions): a row takes the place of its key's in its group.
              A group without rows emits a tombstone
    rows      of sessions: emit each input row when its session closes, instead of one row per session. Then there are
              no calls, `keys` only separate sessions, and a row has the input's columns and the bounds
    early     promises about some groups close their windows before the windows of the others. Then the rows are in no
              order
    joint     with `early`, over a join: per input the place in `keys` of its time, the length of the spans of it, and
              by input how much later than it that one's time may be. The join's promise about all of these times
              together closes each group as soon as it is complete
    keeps     of windows of equal size: a partial result per group (`groups`); in front of them a low-level table of so
              many `slots` (`bounded`); the rows, until their first window closes (`buffered`); or groups or rows by
              counts (`adaptive`, see choosing.py)
    """

    kind: ClassVar[str] = "aggregate"
    word: ClassVar[str] = "aggregate"
    window: TimeWindow | SessionWindow | RowWindow | None
    keys: tuple[tuple[str, Expression], ...] = ()
    calls: tuple[tuple[str, AggregateCall], ...] = ()
    bounds: tuple[tuple[str, Literal["start", "end"]], ...] = ()
    flush: Literal["none", "slow", "lazy"] = "none"
    max_delay_us: int = 0
    flush_every: int = 4
    partial: Literal["skip", "emit"] = "skip"
    emit: Literal["latest", "every"] = "latest"
    where: Expression | None = None
    replaces: tuple[int, ...] | None = None
    rows: bool = False
    newest: bool = False
    early: bool = False
    joint: tuple[tuple[int, int, tuple[int | None, ...]], ...] = ()
    keeps: Literal["groups", "bounded", "buffered", "adaptive"] = "groups"
    slots: int = 4096

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        if self.rows:
            return Schema((*inputs[0], *(Field(name, Type.TIMESTAMP, False) for name, _ in self.bounds)))
        bound = Type.BIGINT if isinstance(self.window, RowWindow) else Type.TIMESTAMP
        fields = (
            *(Field(name, key.type, key.nullable) for name, key in self.keys),
            *(Field(name, call.type, call.nullable) for name, call in self.calls),
            *(Field(name, bound, False) for name, _ in self.bounds),
        )
        if self.replaces is None or not self.retracts(inputs[0]):
            return Schema(fields)
        return retracting(fields, range(len(self.keys)))

    def retracts(self, source: Schema) -> bool:
        """Whether groups may lose their last row and go: where rows go, or move from one group to another. The one
        group of all rows stays."""
        if self.replaces is None or not self.keys:
            return False
        moves = not all(isinstance(key, Column) and key.position in self.replaces for _, key in self.keys)
        return source.retracts or moves

    def derivation(self) -> Derivation:
        return "other" if self.rows else "made"

    def gives_order(self, inputs: Sequence[bool]) -> bool:
        if isinstance(self.window, TimeWindow | SessionWindow):
            return not (self.newest or self.early)
        return all(inputs)

    def lags(self, inputs: Sequence[Lags], schemas: Sequence[Schema]) -> Lags:
        """A window's row has the time of its last microsecond."""
        first = len(self.keys) + len(self.calls)
        match self.window:
            case TimeWindow(size):
                return bound_lags(self.bounds, first, (size - 1, size - 1), (-1, -1))
            case SessionWindow(gap):
                before: Lag = (gap - 1, None)
                if not self.rows:
                    return bound_lags(self.bounds, first, before, (-1, -1))
                own = {at: add(lag, before) for at, lag in inputs[0].items()}
                return {**own, **bound_lags(self.bounds, len(schemas[0]), before, (-1, -1))}
        return {}

    def window_bound(self, column: int, width: int) -> bool:
        return isinstance(self.window, TimeWindow | SessionWindow) and column >= width - len(self.bounds)

    def used_columns(self, used: Positions, widths: Sequence[int]) -> list[Positions]:
        if self.rows or self.replaces is not None:
            return all_columns(widths)
        return [e.positions_of(self._expressions())]

    def _expressions(self) -> Iterator[e.Expression]:
        yield from (key for _, key in self.keys)
        for _, call in self.calls:
            yield from call.arguments
            if call.filter is not None:
                yield call.filter
        if self.where is not None:
            yield self.where

    def state_keys(self, schemas: Sequence[Schema]) -> Sequence[Shared] | str:
        if isinstance(self.window, RowWindow):
            return "it counts all rows"
        if not self.keys:
            return "it has no GROUP BY"
        return [[(0, key)] for _, key in self.keys if self._stays(key)]

    def _stays(self, key: e.Expression) -> bool:
        """Whether a key's value is the same for all rows that take each other's place."""
        return self.replaces is None or (isinstance(key, e.Column) and key.position in self.replaces)

    def origins(self, key: e.Expression, schemas: Sequence[Schema]) -> list[Origin]:
        return within(key, len(schemas[0])) if self.rows else computed(key, [column for _, column in self.keys])

    def reaches(self, lags: Sequence[Lags]) -> Reaches:
        if isinstance(self.window, SessionWindow):
            return unbounded("a session can be of any length", 1)
        if isinstance(self.window, RowWindow):
            return unbounded(COUNTED, 1)
        if self.replaces is not None or self.newest:
            return unbounded("the current row of a key can be of any age", 1)
        if self.window is None:
            return unbounded("a running total has no window", 1)
        return Reaches([Reach(self.window.size_us - 1, 0)])

    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        # A window's row has the time of its last microsecond, and leaves at the window's end.
        windows = isinstance(self.window, TimeWindow | SessionWindow)
        known = windows and self.flush == "none" and not self.rows and self.replaces is None
        known = known and not (self.newest or self.early)
        return if_at_once(inputs, 1) if known else "unknown"

    def updates(self) -> Updates:
        running = self.window is None
        return Updates(
            takes=self.replaces is not None,
            reads_all=not running and not self.newest,
            emits="updates" if running or self.newest or self.replaces is not None else "rows",
            depends_on_steps=self.newest or (running and self.emit == "latest"),
            by_order=running,
            retracts=True,
        )

    def every(self) -> AggregateSpec:
        return replace(self, emit="every") if self.window is None else self

    def combines(self) -> Combines:
        """How exactly the results of its calls follow from partial results: as the least exact one."""
        found = {AGGREGATES[call.function].parts_of(call.distinct) for _, call in self.calls}
        return next((one for one in ("never", "rounded") if one in found), "exactly")

    def state(self) -> State:
        if self.window is None:
            return STATEFUL._replace(lost="totals and current rows start again without the earlier rows")
        lost = "windows that were open at the restart contain only later rows"
        # The windows of LATEST are always whole.
        start: Literal["newest", "query"] = "newest" if self.newest else "query"
        return STATEFUL._replace(lost=lost, start=start, counts=isinstance(self.window, RowWindow))

    def edits(self) -> Edits:
        return FIXED

    def words(self, inputs: Sequence[str]) -> str:
        words = ["aggregate", window_words(self.window) if self.replaces is None else "the current rows"]
        if self.newest:
            words[1] = f"the newest of {words[1]}"
        elif isinstance(self.window, TimeWindow) and self.window.slide_us != self.window.size_us:
            words.append(f"in panes of {format_interval(gcd(self.window.size_us, self.window.slide_us))}")
        if self.where is not None:
            words.append(f"WHERE {show(self.where)}")
        if self.keys:
            shown = (show(key) if self.rows else show_column(name, key) for name, key in self.keys)
            words.append("by " + ", ".join(shown))
        if self.rows:
            words[-1] += ", each row when its session closes"
        columns = [show_as(_call_words(call), name) for name, call in self.calls]
        columns += [show_as(f"window_{side}", name) for name, side in self.bounds]
        if self.keeps == "bounded":
            words.append(f"through {self.slots:,} slots")
        elif self.keeps == "buffered":
            words.append("from buffered rows")
        if self.flush != "none":
            words.append(f"emitted {self.flush} within {format_interval(self.max_delay_us)}")
        if self.window is None and self.emit == "every":
            words.append("after every row")
        if self.early:
            about = "its times together" if self.joint else "it"
            words.append(f"each group as soon as punctuation about {about} allows")
        return " ".join(words) + (f": {', '.join(columns)}" if columns else "")

    def build(self, site: Site) -> Operator:
        from millrace.operators.aggregate.aggregate import EarlyAggregate, RowAggregate, WindowAggregate
        from millrace.operators.aggregate.newest import NewestWindowAggregate
        from millrace.operators.aggregate.running import RunningAggregate, TotalOfAll

        if self.window is None:
            return (RunningAggregate if self.keys else TotalOfAll)(site, self)
        if self.newest:
            return NewestWindowAggregate(site, self)
        if self.early:
            return EarlyAggregate(site, self)
        kind = RowAggregate if isinstance(self.window, RowWindow) else WindowAggregate
        return kind(site, self)


def _call_words(call: AggregateCall) -> str:
    name = call.function.partition("(")[0]
    arguments = ", ".join(map(show, call.arguments)) or "*"
    only = "" if call.filter is None else f" FILTER (WHERE {show(call.filter)})"
    return f"{name}({'DISTINCT ' if call.distinct else ''}{arguments}){only}"
