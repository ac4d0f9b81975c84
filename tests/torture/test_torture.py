"""A few kills of a server under load; `make torture` makes hundreds."""

import secrets

import pytest

from tests.torture.pair import Pair
from tests.torture.world import SETTINGS, World


@pytest.mark.parametrize(("sync", "follower"), [("always", "on"), ("10 ms", "off")])
def test_killed_servers_lose_and_double_nothing(tmp_path, sync, follower):
    settings = f'[journal]\nsync = "{sync}"\ncheckpoint_seconds = 1\nfollower = "{follower}"\n{SETTINGS}'
    world = World(tmp_path / "data", secrets.randbits(32), settings)
    try:
        world.play(3)
    finally:
        world.end()


def test_a_killed_standby_that_takes_over_from_a_killed_primary_loses_and_doubles_nothing(tmp_path):
    pair = Pair(tmp_path / "data", secrets.randbits(32), "[journal]\ncheckpoint_seconds = 1\n")
    try:
        pair.play_pair(kills=1, changes=1)
    finally:
        pair.end()
