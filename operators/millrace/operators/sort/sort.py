"""Sort: order, for those who want it back."""

from __future__ import annotations

from typing import ClassVar

from millrace.operators.frame.layout import Layout
from millrace.operators.frame.waiting import Merging
from millrace.values.batch import Batch


class Sort(Merging):
    """Give the tuples of one disordered stream in order of time, each when the stream's mark has reached it.

    Equal times keep their order of arrival. The output is ordered.
    """

    kind: ClassVar[str] = "sort"
    layout: ClassVar[Layout] = Layout(1)

    def consume(self, batch: Batch) -> Batch | None:
        return batch
