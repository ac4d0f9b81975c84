"""A primary that depends on its standby: nothing leaves without it, and no promotion precedes the end of its lease."""

import asyncio

import pytest

from millrace.protocol import Refuse
from millrace.protocol.messages import Open, Opened
from tests.server.directories import SQL, feed, state
from tests.server.harness import peer, running, settle, until
from tests.server.test_standby import following, level, played, unheard, working

__all__ = ["unheard"]


@pytest.mark.parametrize("standby", [{"lease": "1 second"}, {"confirm": True}, {"lease": "1 second", "confirm": True}])
@played
async def test_nothing_leaves_without_the_standby(tmp_path, standby):
    async with working(tmp_path / "one", SQL) as daemon:
        await feed(daemon, 0, 3)
        admin = str(daemon.admin)
        async with following(tmp_path / "two", daemon) as other:
            await level(daemon, other)
    server = {"data_dir": str(tmp_path / "one"), "admin": admin}
    starting = running(server=server, standby=standby)
    start = asyncio.create_task(starting.__aenter__())
    await settle(50)
    assert not start.done()  # it waits for its standby
    async with following(tmp_path / "two", daemon) as other:
        primary = await start
        try:
            await feed(primary, 3, 5)
            await level(primary, other)
            other.standby._closing = True  # it hears and answers nothing more
            other.standby._stream.close()
            async with peer(primary) as client:
                client.say(Open(0, "s", None, "p"))  # its step is recorded, and its answer waits
                await until(lambda: primary.durability.recorder.awaits_standby is not None)
                await settle()
                other.standby._closing = False
                receiving = other.standby._receive(other.durability.recorder)
                other.standby._receiving = asyncio.create_task(receiving, name="receiving")
                assert await client.hear(Opened) is not None
            await until(lambda: primary.durability.recorder.awaits_standby is None)
            await level(primary, other)
            assert state(other) == state(primary)
        finally:
            await starting.__aexit__(None, None, None)


@played
async def test_a_promotion_waits_for_the_end_of_the_lease(tmp_path):
    async with working(tmp_path / "one", SQL) as daemon:
        await feed(daemon, 0, 3)
        admin = str(daemon.admin)
        async with following(tmp_path / "two", daemon) as other:
            await level(daemon, other)
    server = {"data_dir": str(tmp_path / "one"), "admin": admin}
    starting = running(server=server, standby={"lease": "1 second"})
    start = asyncio.create_task(starting.__aenter__())
    async with following(tmp_path / "two", daemon, lease="1 second", confirm=True) as other:
        primary = await start
        await feed(primary, 3, 5)
        await level(primary, other)
        await until(lambda: other.standby.role.lease_us == 1_000_000)
        with pytest.raises(Refuse, match="still works"):
            await other.promote(force=False)
        promoting = asyncio.create_task(other.promote(force=True))
        await until(lambda: other.state == "promoting")
        await promoting
        assert not primary.lease.valid(primary.durability.recorder._clock())
        assert other.state == "ready"
        assert state(other)["sequences"] == state(primary)["sequences"]
        await feed(other, 8, 2)  # it works alone until it has a standby
        await starting.__aexit__(None, None, None)
