"""Sort: rows in order of time, for the operators and readers that need it."""

from __future__ import annotations

from typing import Any, ClassVar

from millrace.operators.frame.layout import Layout
from millrace.operators.frame.waiting import Merging, without_groups
from millrace.values.batch import Batch


class Sort(Merging):
    """Emit the tuples of a disordered stream in order of time, each when the input's promise has reached it.

    Equal times keep their order of arrival. The output is ordered.
    """

    kind: ClassVar[str] = "sort"
    layout: ClassVar[Layout] = Layout(2, without_groups)

    def advance(self, limit: int) -> Batch | None:
        batch = super().advance(limit)
        self.output.held = self.held_tuples()
        return batch

    def consume(self, batch: Batch) -> Batch | None:
        return batch

    def restore(self, data: Any) -> None:
        super().restore(data)
        self.output.held = self.held_tuples()
