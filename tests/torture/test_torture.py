"""A few kills of a server under load; `make torture` makes hundreds."""

import secrets

import pytest

from tests.torture.world import World


@pytest.mark.parametrize("sync", ["always", "10 ms"])
def test_killed_servers_lose_and_double_nothing(tmp_path, sync):
    world = World(tmp_path / "data", secrets.randbits(32), f'[journal]\nsync = "{sync}"\ncheckpoint_seconds = 1\n')
    try:
        world.play(3)
    finally:
        world.end()
