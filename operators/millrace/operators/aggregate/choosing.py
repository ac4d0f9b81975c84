"""Which state an aggregate over windows keeps, chosen from counts (OOP, section 5.5).

groups     a partial result per group and pane
buffered   the rows of a pane, until its first window closes: less memory where a group has hardly more than one row,
           but its results are computed when the window closes
bounded    a low-level table of fixed size in front of the groups: only where a query says so

Each complete pane is judged by the bytes that its rows and its groups take. They follow from the tuples alone, so a
replay chooses the same. A choice changes after two panes in turn that say so, and what changes it lies apart from what
changes it back. It is about new panes: the rows of a pane are all kept in one way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from millrace.operators.aggregate.groups import ComputedRows, Table
from millrace.operators.aggregate.lowlevel import size_of
from millrace.operators.aggregate.spec import AggregateSpec

Mode = Literal["groups", "buffered", "bounded"]

# Panes of fewer groups stay as they are: their groups take little memory.
MANY_GROUPS: Final = 16_384
# Rows are kept where they take less than this share of the bytes of their groups; groups again from BACK on.
BUFFERED: Final = 0.5
BACK: Final = 0.8


class Judged(NamedTuple):
    """The counts of a complete pane, and how the next ones are kept."""

    keeps: Mode
    tuples: int
    groups: int
    rows_bytes: int
    groups_bytes: int


class Choice:
    """The way that the rows of a new pane are kept.

    last    the counts of the last complete pane
    changes how often the choice has changed
    untold  the counts that changed it and have not been reported
    """

    def __init__(self, spec: AggregateSpec) -> None:
        self.adaptive = spec.keeps == "adaptive"
        self.mode: Mode = "groups" if spec.keeps == "adaptive" else spec.keeps
        self.last: Judged | None = None
        self.changes = 0
        self.untold: list[Judged] = []
        self._wanted: Mode = self.mode
        self._counts: dict[int, tuple[int, int]] = {}

    def took(self, pane: int, rows: ComputedRows) -> None:
        """Rows of a pane were taken in."""
        tuples, row_bytes = self._counts.get(pane, (0, 0))
        count = len(rows.ts)
        self._counts[pane] = tuples + count, row_bytes or size_of(rows) // count

    def complete(self, beyond: int, tables: Mapping[tuple[int, int], Table]) -> None:
        """Panes before this one are complete."""
        for pane in [pane for pane in self._counts if pane < beyond]:
            tuples, row_bytes = self._counts.pop(pane)
            table = tables[0, pane]
            self._judge(Judged(self.mode, tuples, table.count, tuples * row_bytes, table.groups_bytes))

    def _judge(self, pane: Judged) -> None:
        share = BACK if self.mode == "buffered" else BUFFERED
        less = pane.groups >= MANY_GROUPS and pane.rows_bytes < share * pane.groups_bytes
        wanted: Mode = "buffered" if less else "groups"
        again, self._wanted = wanted == self._wanted, wanted
        if wanted != self.mode and again:
            self.mode = wanted
            self.changes += 1
            self.untold.append(pane._replace(keeps=wanted))
        self.last = pane._replace(keeps=self.mode)

    def numbers(self) -> dict[str, Any]:
        """For reports: the way, and the counts of the last complete pane."""
        numbers: dict[str, Any] = {"keeps": self.mode, "adaptive": self.adaptive}
        if self.last is not None:
            last = {f"last_{name}": count for name, count in self.last._asdict().items() if name != "keeps"}
            numbers |= {"changes": self.changes, **last}
        return numbers

    def tell(self) -> list[Judged]:
        """The changes since this was last asked."""
        untold, self.untold = self.untold, []
        return untold

    def save(self) -> Any:
        last = None if self.last is None else list(self.last)
        counts = [[pane, *counts] for pane, counts in self._counts.items()]
        return [self.mode, last, self.changes, self._wanted, counts]

    def restore(self, data: Any) -> None:
        self.mode, last, self.changes, self._wanted, counts = data
        self.last = None if last is None else Judged(*last)
        self._counts = {pane: (tuples, row_bytes) for pane, tuples, row_bytes in counts}
