"""Connections that feed take turns: nobody keeps the loop for long, nobody is passed over, and no byte is lost."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.net import turns
from millrace.net.turns import HURRIED_SECONDS, TURN_SECONDS, Turns
from millrace.protocol.messages import Ack, Result
from tests.server.harness import lines, peer, running, until


class Taker:
    """A connection that uses so many seconds in each of its turns."""

    def __init__(self, turns, costs, taken):
        self.turns, self.costs, self.taken = turns, list(costs), taken

    def take_turn(self):
        self.taken[-1].append((self, self.costs[0]))
        self.turns.spend(self.costs.pop(0))
        if self.costs:
            self.turns.wait(self)


COSTS = st.lists(st.lists(st.floats(0, 3 * TURN_SECONDS), min_size=1, max_size=5), min_size=1, max_size=8)


@given(COSTS, st.booleans())
def test_a_turn_of_the_loop_ends_soon_and_the_one_that_has_waited_longest_is_next(costs, hurries):
    async def play():
        made = Turns()
        made.hurries = hurries
        most = HURRIED_SECONDS if hurries else TURN_SECONDS
        taken: list[list[tuple[Taker, float]]] = [[]]
        takers = [Taker(made, each, taken) for each in costs]
        for taker in takers:
            made.wait(taker)
        expected = [(taker, len(taker.costs)) for taker in takers]
        while made.waiting:
            taken.append([])
            await asyncio.sleep(0)
            spent = [cost for _, cost in taken[-1]]
            assert spent, "each turn of the loop serves one at least"
            assert sum(spent[:-1]) < most, "and no further one when the time is used"
            for taker, _ in taken[-1]:
                first, left = expected.pop(0)
                assert taker is first
                if left > 1:
                    expected.append((taker, left - 1))
        assert not any(taker.costs for taker in takers)

    asyncio.run(play())


def test_one_that_has_gone_is_forgotten():
    async def play():
        made = Turns()
        taken: list[list[tuple[Taker, float]]] = [[]]
        first, second = Taker(made, [0], taken), Taker(made, [0], taken)
        made.wait(first)
        made.wait(second)
        made.forget(first)
        await asyncio.sleep(0)
        assert taken == [[(second, 0)]]

    asyncio.run(play())


SQL = "CREATE STREAM s (k BIGINT, v BIGINT); CREATE QUERY q AS SELECT k, v FROM s WHERE k >= 0"


def line(v):
    return json.dumps({"stream": "s", "tuple": {"k": 1, "v": v}})


@pytest.fixture
def short(monkeypatch):
    """Each turn is over before it has begun."""
    monkeypatch.setattr(turns, "TURN_SECONDS", 0)
    monkeypatch.setattr(turns, "HURRIED_SECONDS", 0)


@pytest.mark.usefixtures("short")
def test_all_that_waited_for_a_turn_arrives_once_and_in_order():
    async def play():
        async with running(SQL) as daemon, peer(daemon) as reader:
            await reader.subscribe(credit=10_000)
            feeds = [peer(daemon) for _ in range(4)]
            clients = [await one.__aenter__() for one in feeds]
            for k, client in enumerate(clients):
                await client.open("s", producer=f"p{k}")
            for at in range(0, 300, 3):
                for k, client in enumerate(clients):
                    client.data(at, [(k, at), (k, at + 1), (k, at + 2)])
            for client in clients:
                while (await client.hear(Ack)).sequence < 300:
                    pass
            found: list[tuple[int, int]] = []
            while len(found) < 1_200:
                found += [tuple(row) for row in (await reader.hear(Result)).rows]
            for k in range(4):
                assert [v for key, v in found if key == k] == list(range(300))
            assert not daemon.context.turns.waiting
            for one in feeds:
                await one.__aexit__(None, None, None)

    asyncio.run(play())


@pytest.mark.usefixtures("short")
def test_lines_that_waited_are_taken_although_their_client_has_left_or_the_server_ends(monkeypatch):
    async def play():
        async with running(SQL) as daemon:
            async with lines(daemon) as client:
                for at in range(100):
                    client.say(line(at))
                await client.writer.drain()
            await until(lambda: daemon.runner.outlets["q"].next_sequence == 100)
            async with lines(daemon) as client:
                client.say(line(100))
                await until(lambda: daemon.runner.outlets["q"].next_sequence == 101)
                monkeypatch.setattr(daemon.context.turns, "_schedule", lambda: None)
                client.say(line(101))
                await client.writer.drain()
                await until(lambda: daemon.context.turns.waiting)
                await daemon._stop_reading()
                await until(lambda: daemon.runner.outlets["q"].next_sequence == 102)

    asyncio.run(play())
