"""Small worlds, played in every style; `make simulate` plays many more."""

from __future__ import annotations

from collections import Counter

import pytest

from millrace.operators.buffer import Reader
from millrace.operators.source import Source
from millrace.operators.waiting import Waiting
from tests.simulation.__main__ import again
from tests.simulation.auditors import Broken
from tests.simulation.simulator import Expected, Play, simulate
from tests.simulation.world import world_of

BLOCK = 10


@pytest.mark.parametrize("first", range(0, 60, BLOCK))
def test_worlds(first):
    for seed in range(first, first + BLOCK):
        play(seed, styles=1)


def simulate_many(worlds):
    for seed in range(worlds):
        simulate(world_of(seed), 1)


def play(seed, styles):
    try:
        simulate(world_of(seed), styles)
    except Exception as error:
        error.add_note(f"again: {again(seed, styles)}")
        raise


def test_worlds_are_worth_playing():
    """Every kind of thing happens in some of the first worlds, or the simulator proves less than it seems to."""
    kinds: Counter = Counter()
    late = far = impossible = rows = compared = 0
    for seed in range(60):
        world = world_of(seed)
        kinds.update(said.kind for said in world.log)
        kinds.update(stream.timestamps for stream in world.streams)
        kinds.update(node.kind for query in world.queries for node in query.nodes)
        kinds.update("late" for query in world.queries for name in query.reads_streams if name.endswith(".late"))
        kinds.update("query over query" for query in world.queries if query.reads_queries)
        expected = Expected(world)
        outcome = Play(world, None).run()
        late += outcome.late.total()
        far += outcome.far.total()
        impossible += outcome.impossible
        for given in expected.checkpoints:
            compared += sum(found is not None for found in given.values())
            rows += sum(found.total() for found in given.values() if found)
    assert all(kinds[kind] >= 10 for kind in kinds), kinds
    assert {"add", "drop", "pause", "resume", "merge", "sort", "latent", "late", "query over query"} <= kinds.keys()
    assert late > 30
    assert far > 30
    assert impossible > 100
    assert compared > 400
    assert rows > 5_000


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Source, "_marks_met", lambda self, feed, ts: ts - 1),
        (Waiting, "horizon", lambda self: max(reader.promise for reader in self.inputs)),
        (Reader, "low_water", lambda self: self.promise),
    ],
    ids=["lateness", "horizon", "low water"],
)
def test_a_broken_engine_is_noticed(monkeypatch, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Broken):
        simulate_many(20)
