"""Slow readers of every kind, by seed: nobody who waits loses a row, memory stays bounded, and nothing gets stuck."""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.slow import ROWS, World

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_readers_at_any_pace(seed: int) -> None:
    async def play() -> World:
        world = World(seed)
        await world.play()
        return world

    world = asyncio.run(play())
    if not world.skipped:
        plain = next(outlet for outlet in world.all_rows if outlet.schema.names == ("n", "text"))
        assert plain.next_sequence == ROWS


def test_feeds_do_wait_in_these_worlds() -> None:
    async def play() -> list[int]:
        worlds = [World(seed) for seed in range(8)]
        for world in worlds:
            await world.play()
        return [world.waits for world in worlds]

    assert sum(asyncio.run(play())) > 20
