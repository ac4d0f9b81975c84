"""A few kills of a server under load; `make torture` makes hundreds."""

import secrets

import pytest

from tests.torture.world import World


@pytest.mark.parametrize(("sync", "follower"), [("always", "on"), ("10 ms", "off")])
def test_killed_servers_lose_and_double_nothing(tmp_path, sync, follower):
    settings = f'[journal]\nsync = "{sync}"\ncheckpoint_seconds = 1\nfollower = "{follower}"\n'
    world = World(tmp_path / "data", secrets.randbits(32), settings)
    try:
        world.play(3)
    finally:
        world.end()
