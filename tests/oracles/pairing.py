"""The output of joins and sequences, from the output and the bounds of their inputs.

Simple by design; shares no code with the engine. A row is (time, id, v), as in all worlds of the simulator. A joined
row has the ids of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.oracles import joins, sequences
from tests.oracles.stream import END, NEVER

Row = tuple[int | None, int, int | None]
Values = tuple[int, tuple[int | None, ...]]  # time; id, v, id % REMAINDERS

REMAINDERS = 3
COLUMNS = {"id": 0, "v": 1, "remainder": 2}


@dataclass(frozen=True)
class Pairing:
    """How rows of several inputs are joined.

    key      the column that must be equal in rows of neighbouring inputs, if any
    rising   whether the first row's v must also be at most the second row's
    within   for a sequence: how much later the second row may be
    """

    kind: Literal["join", "recent", "chronicle", "absent"]
    bands: tuple[joins.Band, ...] = ()
    key: Literal["v", "remainder"] | None = None
    rising: bool = False
    outer: tuple[int, ...] = ()
    order: Literal["arrival", "sync", "filter", "adaptive"] = "arrival"
    within: int | None = None

    @property
    def ordered(self) -> bool:
        return self.kind != "join" or self.order != "arrival"

    @property
    def vague(self) -> bool:
        """Whether the withheld rows depend on the order of inspection.

        A row without a partner so far withholds later rows, and its partner may be later in the queue.
        """
        return bool(self.outer) and self.ordered


def compute(pairing: Pairing, inputs: Sequence[tuple[list[Row], int]]) -> tuple[list[Row], int]:
    """The emitted rows, and the bound for all others."""
    rows = [[_values(row) for row in output] for output, _ in inputs]
    bounds = [bound for _, bound in inputs]
    if pairing.kind == "join":
        return _join(pairing, rows, bounds)
    if pairing.kind == "absent":
        return _absent(pairing, rows, bounds)
    return _followed(pairing, rows, bounds)


def _values(row: Row) -> Values:
    time, number, v = row
    assert time is not None
    return time, (number, v, number % REMAINDERS)


def _rising(a: Values, b: Values) -> bool:
    first, second = a[1][1], b[1][1]
    return first is not None and second is not None and first <= second


def _join(pairing: Pairing, rows: list[list[Values]], bounds: list[int]) -> tuple[list[Row], int]:
    equal = []
    if pairing.key is not None:
        at = COLUMNS[pairing.key]
        equal = [(right - 1, at, right, at) for right in range(1, len(rows))]

    def holds(chosen: Sequence[Values]) -> bool:
        return not pairing.rising or _rising(chosen[0], chosen[1])

    results = joins.join(rows, pairing.bands, equal, holds, pairing.outer)
    low = min(bounds)
    joined: list[Row] = []
    for time, chosen in results:
        if None in chosen:
            missing = chosen.index(None)
            _, _, least, most = pairing.bands[0] if pairing.bands else (0, 1, None, None)
            after = most if missing else None if least is None else -least
            if bounds[missing] != END and (after is None or time >= bounds[missing] - after):
                low = min(low, time)
                continue
        joined.append(_put_together(time, chosen))
    if pairing.ordered:
        joined = [row for row in joined if row[0] is not None and row[0] <= low]
    return joined, low


def _put_together(time: int, chosen: Sequence[Values | None]) -> Row:
    ids = [None if row is None else row[1][0] for row in chosen]
    first, *others = ids
    if first is None:
        first = others[0]
    assert first is not None
    for number in others[:-1]:
        assert number is not None
        first = first * 1000 + number
    return time, first, others[-1]


def _ordered_through(bounds: Sequence[int]) -> int:
    """The time up to which rows of the second input have their place in the order of both. A first row may still arrive
    at the time of the bound.
    """
    first, second = bounds
    if first > second or first == END:
        return second
    return NEVER if first == NEVER else first - 1


def _followed(pairing: Pairing, rows: list[list[Values]], bounds: list[int]) -> tuple[list[Row], int]:
    through = _ordered_through(bounds)
    seconds = [row for row in rows[1] if row[0] <= through]
    keys = [] if pairing.key is None else [COLUMNS[pairing.key]]
    pairs, _ = sequences.following(
        rows[0],
        seconds,
        keys,
        pairing.kind,
        pairing.within,
        _rising if pairing.rising else lambda a, b: True,
        bool(pairing.outer),
    )
    emitted: list[Row] = [(b[0], a[1][0], b[1][0]) for a, b in pairs if a is not None]
    return emitted, min([bounds[1], *(row[0] for row in rows[1] if row[0] > through)])


def _absent(pairing: Pairing, rows: list[list[Values]], bounds: list[int]) -> tuple[list[Row], int]:
    assert pairing.within is not None
    through = _ordered_through(bounds)
    seconds = [row for row in rows[1] if row[0] <= through]
    bound = min([bounds[1], *(row[0] for row in rows[1] if row[0] > through)])
    over = END if bound == END else bound - pairing.within
    firsts = [row for row in rows[0] if row[0] <= bounds[0]]
    keys = [] if pairing.key is None else [COLUMNS[pairing.key]]
    alone, _ = sequences.absent(firsts, seconds, keys, pairing.within, _rising if pairing.rising else lambda a, b: True)
    emitted: list[Row] = [(row[0] + pairing.within, row[1][0], row[1][1]) for row in alone if row[0] < over]
    begun = [row[0] for row in alone if row[0] >= over] + [row[0] for row in rows[0] if row[0] > bounds[0]]
    least = min([bounds[0], *begun])
    return emitted, least if least in (NEVER, END) else least + pairing.within
