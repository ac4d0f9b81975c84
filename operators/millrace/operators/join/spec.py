"""Joins as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.picked import (
    Picked,
    picked_lags,
    picked_origins,
    picked_positions,
    picked_schema,
    show_of,
)
from millrace.operators.frame.spec import (
    FIXED,
    INDIFFERENT,
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
    if_at_once,
)
from millrace.operators.join.bands import Band, close_bands, join_lags
from millrace.protocol import Schema
from millrace.values import expression as e
from millrace.values.definitions import Definition
from millrace.values.intervals import format_interval
from millrace.values.lags import Lags
from millrace.values.reach import Reach, Reaches, unbounded
from millrace.values.written import show

# By the inputs whose rows are all emitted.
_KINDS: Final = {(): "join", (0,): "left join", (1,): "right join", (0, 1): "full join"}


@dataclass(frozen=True, slots=True)
class Equal(Definition):
    """Two inputs' rows match where these expressions, each over its own input, are equal. NULL equals nothing."""

    left: int
    left_key: e.Expression
    right: int
    right_key: e.Expression


@dataclass(frozen=True, slots=True)
class JoinSpec(Spec):
    """Rows of several inputs put together wherever they match: one row of each input, at the latest of their times.

    columns   what the rows hold; only what is named here is kept in the state
    bands     bounds on pairs of inputs; the operator derives what follows for the other pairs
    equal     keys; inputs that none ties to the others match by time and `where` alone
    where     what else must hold, over `columns`
    outer     rows of these inputs that no row of the other can match any more are emitted at their own time, with nulls
              for it (two inputs only)
    rows      per input, how many of its newest rows (in order of time, then arrival) may match; None is any number.
              With it, rows are joined in order of time whatever `order`
    order     `arrival`: rows are joined on arrival and emitted at once (OOP-Join). Otherwise the output is in order
              of time: `sync` puts the inputs in order first, `filter` joins at once and holds the output back, and
              `adaptive` is the one or the other, by whether c |w| l1 l2 reaches `alpha` (NILE)
    times     what an aggregate groups by: per input, the column that is its rows' time, and the length and start of the
              spans of it. The join promises these columns together. Empty if no aggregate uses that
    """

    kind: ClassVar[str] = "join"
    word: ClassVar[str] = "join"
    columns: tuple[Picked, ...]
    bands: tuple[Band, ...] = ()
    equal: tuple[Equal, ...] = ()
    where: e.Expression | None = None
    outer: tuple[int, ...] = ()
    rows: tuple[int | None, ...] | None = None
    order: Literal["arrival", "sync", "filter", "adaptive"] = "arrival"
    alpha: float = 0.3
    times: tuple[tuple[int, int, int], ...] = ()

    def schema(self, inputs: Sequence[Schema]) -> Schema:
        return picked_schema(self.columns, inputs, self.missing)

    @property
    def missing(self) -> set[int]:
        """The inputs whose columns may be null for want of a match."""
        return {1 - position for position in self.outer}

    @property
    def counts_rows(self) -> bool:
        """Whether any input's window is a number of rows."""
        return self.rows is not None and any(most is not None for most in self.rows)

    def derivation(self) -> Derivation:
        return "other"

    def gives_order(self, inputs: Sequence[bool]) -> bool:
        return self.order != "arrival" or self.counts_rows

    def lags(self, inputs: Sequence[Lags], schemas: Sequence[Schema]) -> Lags:
        return picked_lags(self.columns, inputs, join_lags(self.bands, len(inputs)))

    def window_bound(self, column: int, width: int) -> bool | tuple[int, int]:
        _, source, position = self.columns[column]
        return position >= 0 and (source, position)

    def used_columns(self, wanted: Positions, widths: Sequence[int]) -> list[Positions]:
        keys = [side for equal in self.equal for side in ((equal.left, equal.left_key), (equal.right, equal.right_key))]
        return picked_positions(self.columns, keys, len(widths))

    def state_keys(self, schemas: Sequence[Schema]) -> Sequence[Shared] | str:
        """The equalities that tie all inputs: chains of equal expressions."""
        if self.counts_rows:
            return "it counts all rows of an input"
        if not self.equal:
            return "it has no equality condition"
        chains: list[dict[int, e.Expression]] = []
        for equal in self.equal:
            if equal.left_key.type != equal.right_key.type:
                continue
            pair = {equal.left: e.anonymous(equal.left_key), equal.right: e.anonymous(equal.right_key)}
            for chain in [chain for chain in chains if any(chain.get(at) == key for at, key in pair.items())]:
                chains.remove(chain)
                pair = {**pair, **chain}
            chains.append(pair)
        return [sorted(chain.items()) for chain in chains if len(chain) == len(schemas)]

    def origins(self, key: e.Expression, schemas: Sequence[Schema]) -> list[Origin]:
        equal = [(condition.left, condition.left_key, condition.right, condition.right_key) for condition in self.equal]
        return picked_origins(key, self.columns, equal, schemas, self.missing)

    def reaches(self, lags: Sequence[Lags]) -> Reaches:
        if self.counts_rows:
            return unbounded("the newest rows of a join's input can be of any age", len(lags))
        reaches = [Reach(high, 0) for _, high in join_lags(self.bands, len(lags))]
        # A row that is emitted alone has its own time, and all rows of the other input that could match must be there.
        most = close_bands(self.bands, len(lags)) if self.outer else []
        for at in self.outer:
            before, after = most[1 - at][at], most[at][1 - at]
            other = Reach(None if before is None else max(before, 0), None if after is None else max(after, 0))
            reaches[1 - at] = reaches[1 - at].widest(other)
        bounded = all(reach.bounded for reach in reaches)
        return Reaches(reaches, None if bounded else "one input of the join has no time bound")

    def leaving(self, inputs: Sequence[Leaving]) -> Leaving:
        known = not self.outer and not self.counts_rows
        return if_at_once(inputs, "at once" if self.order == "arrival" else 0) if known else "unknown"

    def updates(self) -> Updates:
        return INDIFFERENT

    def every(self) -> JoinSpec:
        return self

    def state(self) -> State:
        return STATEFUL._replace(lost="joins find no partners among earlier rows")

    def edits(self) -> Edits:
        return FIXED

    def words(self, inputs: Sequence[str]) -> str:
        how = {
            "arrival": "as rows arrive",
            "sync": "in order of time (sync)",
            "filter": "in order of time (filter)",
            "adaptive": f"in order of time (adaptive, alpha {self.alpha})",
        }[self.order]
        keys = [
            f"{show_of(inputs[pair.left], pair.left_key)} = {show_of(inputs[pair.right], pair.right_key)}"
            for pair in self.equal
        ]
        tests = [*keys, *(_band_words(band, inputs) for band in self.bands)]
        tests += [] if self.where is None else [show(self.where)]
        state = [_kept_words(self, at, inputs) for at in range(len(inputs))]
        condition = " AND ".join(tests) or "TRUE"
        return f"{_KINDS[self.outer]} {how}: {' with '.join(inputs)} ON {condition}; keeps {', '.join(state)}"

    def build(self, site: Site) -> Operator:
        from millrace.operators.join.join import Join

        return Join(site, self)


def _band_words(band: Band, names: Sequence[str]) -> str:
    """Bounds on the rows' own times."""
    left, right = (f"time({names[at]})" for at in (band.left, band.right))
    if band.low_us == 0 == band.high_us:
        return f"{left} = {right}"
    words = right
    if band.low_us is not None:
        words = f"{_shift(left, band.low_us)} <= {words}"
    if band.high_us is not None:
        words = f"{words} <= {_shift(left, band.high_us)}"
    return words


def _shift(time: str, by_us: int) -> str:
    return time if not by_us else f"{time} {'-' if by_us < 0 else '+'} {format_interval(abs(by_us))}"


def _kept_words(spec: JoinSpec, at: int, names: Sequence[str]) -> str:
    name, count = names[at], len(names)
    if spec.rows is not None and spec.rows[at] is not None:
        return f"the newest {spec.rows[at]} of {name}"
    most = close_bands(spec.bands, count)[at]
    bounds = [bound for bound in most if bound is not None]
    if len(bounds) < count:
        return f"{name} forever"
    return f"{name} for {format_interval(max(bounds))}"
