"""The loops that assign places, compared with recomputation after every event."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.values.batch import Int64s
from millrace.values.eventtime import MIN_TIME
from tests.depth import examples
from tests.kernels import both_ways
from tests.oracles import places as oracle


def int64(values: Any) -> Int64s:
    found: Int64s = np.array(list(values), np.int64)
    return found


class Game:
    """Cells of a few partitions, some of them there, and events of which each cell leaves and enters at most once."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.partitions, self.most = draw.choice([1, 3]), draw.choice([1, 2, 3, 8])
        count = draw.choice([1, 6, 20])
        self.owner = sorted(draw.randrange(self.partitions) for _ in range(count))
        self.present = [cell for cell in range(count) if draw.random() < 0.5]
        there, coming = list(self.present), [cell for cell in range(count) if cell not in self.present]
        draw.shuffle(coming)
        self.events: list[oracle.Event] = []
        while coming or (there and draw.random() < 0.8):
            leaves = there.pop(draw.randrange(len(there))) if there and draw.random() < 0.6 else -1
            enters = coming.pop() if coming and draw.random() < 0.7 else -1
            there += [enters] if enters >= 0 else []
            self.events.append((leaves, enters))
        self.ts = [draw.randrange(10) for _ in self.events]
        self.leaves, self.enters = (int64(event[at] for event in self.events) for at in (0, 1))

    def sizes(self) -> Int64s:
        return int64(sum(1 for cell in self.present if self.owner[cell] == one) for one in range(self.partitions))


@both_ways("top")
@settings(deadline=None, max_examples=examples(300))
@given(seed=st.integers(0, 2**32), every=st.booleans(), spare=st.integers(0, 10))
def test_places_are_those_found_anew_after_every_event(kernel: ModuleType, seed: int, every: bool, spare: int) -> None:
    game = Game(seed)
    most, owner = game.most, int64(game.owner)
    largest = max(
        count
        for one in range(game.partitions)
        for count in oracle.sizes(game.present, game.owner, game.events, len(owner), one)
    )
    width = max(1, min(most, largest))
    places, times, causes, late, late_by = (
        np.full(game.partitions * width, filler) for filler in (-1, MIN_TIME, -1, MIN_TIME, -1)
    )
    for (partition, at), cell in oracle.holders(game.present, game.owner, most).items():
        places[partition * width + at] = cell
    present = np.zeros(len(owner), np.uint8)
    present[game.present] = 1
    used = np.count_nonzero(places.reshape(-1, width) >= 0, axis=1)
    begins = np.searchsorted(owner, np.arange(game.partitions))
    listed: list[tuple[int, ...]] = []
    sizes, at = game.sizes(), 0
    while at < len(game.events):
        noted = [np.empty(2 * width + spare if every else 0, np.int64) for _ in range(4)]
        count = np.zeros(1, np.int64)
        at = kernel.give_places(
            at, game.leaves, game.enters, int64(game.ts), owner, begins, most, width, every,
            present, sizes, used, places, times, causes, late, late_by, *noted, count,
        )  # fmt: skip
        listed += zip(*(column[: count[0]].tolist() for column in noted), strict=True)
    kernel.spread(width, late, late_by, times, causes)
    wanted = oracle.played(game.present, game.owner, game.events, game.ts, most)
    as_numbers = [
        (change.partition * width + change.at, change.cell, change.ts, 2 * change.cause[0] + change.cause[1])
        for change in wanted
    ]
    if every:
        assert listed == as_numbers
    newest = {place: (ts, cause) for place, _, ts, cause in as_numbers}
    expected = [newest.get(place, (MIN_TIME, -1)) for place in range(len(places))]
    assert list(zip(times.tolist(), causes.tolist(), strict=True)) == expected
    there = [cell for cell in range(len(owner)) if present[cell]]
    holders = oracle.holders(there, game.owner, most)
    assert {divmod(place, width): cell for place, cell in enumerate(places.tolist()) if cell >= 0} == holders


@both_ways("top")
@settings(deadline=None, max_examples=examples(100))
@given(seed=st.integers(0, 2**32))
def test_a_partition_is_short_where_too_few_cells_reach_its_bound(kernel: ModuleType, seed: int) -> None:
    game = Game(seed)
    most, partitions = game.most, range(game.partitions)
    holders = oracle.holders(game.present, game.owner, most)
    bounds = int64(holders.get((one, most - 1), -1) for one in partitions)
    largest, short = game.sizes(), np.zeros(game.partitions, np.uint8)
    kernel.survey(
        game.leaves, game.enters, int64(game.owner), bounds, most, game.sizes(), largest,
        np.full(game.partitions, most), short,
    )  # fmt: skip
    for one in partitions:
        assert largest[one] == max(oracle.sizes(game.present, game.owner, game.events, len(game.owner), one))
        reached = oracle.sizes(game.present, game.owner, game.events, bounds[one], one)
        assert bool(short[one]) == (bounds[one] >= 0 and min(reached) < most)
