"""What the strategy `chain` has decided, as lines of a table: the steepest segment first, with its numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millrace.protocol.admin.operators import LinkView

HEADS: Final = ("chain", "segment", "slope", "selectivity", "us/tuple", "break")


def lines(links: Iterable[tuple[str, LinkView | None]]) -> list[tuple[str, ...]]:
    """A line per operator for which anything was decided."""
    decided = sorted(((name, link) for name, link in links if link is not None), key=lambda one: -one[1].slope)
    return [
        (
            name,
            link.segment,
            f"{link.slope:.4g}",
            f"{link.selectivity:.3f}",
            f"{link.cost_us:.2f}",
            "yes" if link.break_ else "",
        )
        for name, link in decided
    ]
