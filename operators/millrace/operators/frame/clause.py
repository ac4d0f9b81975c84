"""Punctuation on a vector of columns: what no later row of an arc satisfies (OOP, section 7 and appendix A.1.1).

A clause is a conjunction. `k = 7 AND time < t` is a promise about one group: no later row of group 7 is below t.
`t0 < a AND t1 < b` is joint punctuation: no later row of a join is below both. Plain punctuation, `time < t`, has its
own path, because every row and every operator is concerned with it. A clause is an additional promise that an operator
may drop, which is always safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from millrace.values.expression import TIME

# Columns and their values.
Equal = tuple[tuple[int, Any], ...]


class Clause(NamedTuple):
    """No later row has these values in these columns, and times below these in those. Column TIME is the row's own."""

    equal: Equal
    below: tuple[tuple[int, int], ...]

    def moved(self, places: Mapping[int, int]) -> Clause | None:
        """The same over rows that have column `at` at `places[at]`; None if one of the columns is gone."""
        try:
            equal = tuple((places[at], value) for at, value in self.equal)
            below = tuple((at if at == TIME else places[at], us) for at, us in self.below)
        except KeyError:
            return None
        return Clause(equal, below)

    def save(self) -> list[Any]:
        return [[list(one) for one in self.equal], [list(one) for one in self.below]]

    @classmethod
    def restore(cls, data: Any) -> Clause:
        equal, below = data
        return cls(tuple((at, value) for at, value in equal), tuple((at, us) for at, us in below))
