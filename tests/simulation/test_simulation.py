"""Small worlds, played in every style; `make simulate` plays many more."""

from __future__ import annotations

from collections import Counter

import pytest

from millrace.engine import replacing
from millrace.engine.timekeeper import Timekeeper
from millrace.operators.aggregate import WindowAggregate
from millrace.operators.arcs import Arc
from millrace.operators.buffer import Reader
from millrace.operators.feeds import Feed
from millrace.operators.grain import Grain
from millrace.operators.source import Source
from millrace.operators.waiting import Waiting
from tests.simulation.__main__ import again, play
from tests.simulation.auditors import Broken
from tests.simulation.clocks import Live, clocks_of
from tests.simulation.simulator import Expected, Play, simulate_sharing
from tests.simulation.world import windowed_world_of, world_of

BLOCK = 10


@pytest.mark.parametrize("first", range(0, 40, BLOCK))
def test_worlds(first):
    for seed in range(first, first + BLOCK):
        playing(seed, styles=1, clocks=False)


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_worlds_of_clocks(first):
    for seed in range(first, first + 4):
        playing(seed, styles=1, clocks=True)


@pytest.mark.parametrize("first", range(0, 6, 2))
def test_worlds_of_queries_that_share(first):
    """Windowed ones remember much, the others merge and split."""
    shared = 0
    for seed in range(first, first + 2):
        for world in (world_of(seed), windowed_world_of(seed)):
            try:
                shared += simulate_sharing(world)
            except Exception as error:
                error.add_note(f"simulate_sharing, seed {seed}, {world.queries[0].nodes[0].kind}")
                raise
    assert shared > 10


def play_many(worlds):
    for seed in range(worlds):
        play(seed, 1, clocks=False)


def live_many(worlds):
    for seed in range(worlds):
        for style in (None, 0):
            Live(clocks_of(seed), style).play()


def playing(seed, styles, *, clocks):
    try:
        play(seed, styles, clocks=clocks)
    except Exception as error:
        error.add_note(f"again: {again(seed, styles, clocks)}")
        raise


@pytest.mark.parametrize("strategy", ["dfs(1)", "dfs", "bfs", "rr(2)", "chain(2)"])
def test_thin_punctuation_changes_neither_rows_nor_the_steps_that_release_them(strategy):
    less = 0
    for seed in range(30):
        for world in (windowed_world_of(seed), world_of(seed)):
            thin, thick = (Play(world, None, strategy=strategy, thin=thin) for thin in (True, False))
            thin.run()
            thick.run()
            assert by_step(thin) == by_step(thick), world
            less += punctuations(thick) - punctuations(thin)
    assert less >= 5


def by_step(played):
    """Rows by step and query; which of two operators had its turn first in a step may differ."""
    found: dict = {}
    for step, query, rows in played.released:
        found.setdefault((step, query), Counter()).update((ts, repr(row)) for ts, row in rows)
    return found


def punctuations(played):
    return sum(sum(counts.values()) for counts in played.engine.punctuations().values())


def test_worlds_are_worth_playing():
    """Every kind of thing happens in some of the first worlds, or the simulator proves less than it seems to."""
    kinds: Counter = Counter()
    late = far = impossible = rows = compared = 0
    for seed in range(60):
        world = world_of(seed)
        kinds.update(said.kind for said in world.log)
        kinds.update(stream.timestamps for stream in world.streams)
        kinds.update(node.kind for query in world.queries for node in query.nodes)
        nodes = {node.name: node for query in world.queries for node in query.nodes if node.aggregates}
        kinds.update("in order" for node in nodes.values() if node.in_order)
        kinds.update("flush" for node in nodes.values() if node.flush != "none")
        kinds.update("windows of windows" for node in nodes.values() if node.inputs[0] in nodes)
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
    assert all(kinds[kind] >= 8 for kind in kinds), kinds
    assert {"add", "drop", "pause", "resume", "merge", "sort", "latent", "late", "query over query"} <= kinds.keys()
    assert {"hop", "session", "total", "in order", "flush", "windows of windows"} <= kinds.keys()
    assert late > 30
    assert far > 30
    assert impossible > 50
    assert compared > 400
    assert rows > 5_000


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Source, "_marks_met", lambda self, feed, ts: ts - 1),
        (Waiting, "horizon", lambda self: max(reader.promise for reader in self.inputs)),
        (Reader, "low_water", lambda self: self.promise),
        (Grain, "above", lambda self, value_us: value_us + (1 if self.every else 50)),
        (WindowAggregate, "paced", False),
        (replacing, "unchanged", lambda before, after, *, read: {}),
    ],
    ids=["lateness", "horizon", "low water", "grain", "pace", "kept state"],
)
def test_a_broken_engine_is_noticed(monkeypatch, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Broken):
        play_many(20)


def test_worlds_of_clocks_are_worth_playing():
    """Requests end in every way, somebody is late by joining late, and much waits for a time."""
    outcomes: Counter = Counter()
    refused = waited = 0
    events: Counter = Counter()
    for seed in range(30):
        live = Live(clocks_of(seed), None)
        live.play()
        outcomes += live.asks.outcomes
        refused += len(live.asks.refused)
        waited += sum(bool(seen.registers) for seen in live.seen)
        events.update(type(event).__name__ for handed in live.handed for event in handed.events)
        events.update("Heard" for handed in live.handed if handed.heard is not None)
        events.update("lost" for handed in live.handed for event in handed.events if getattr(event, "lost", False))
    assert {kind for kind, count in outcomes.items() if count >= 5} == {"answered", "below", "timeout", "closed"}
    assert refused > 20
    assert waited > 100
    assert min(events[kind] for kind in ("FeedHeld", "Heard", "ClockStepped", "Command", "Punctuated", "lost")) >= 5


def ahead(self, now_us, clock=Feed.clock):
    """A feed's clock that is a little fast."""
    shown = clock(self, now_us)
    return None if shown is None else shown + 8


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Feed, "clock", ahead),
        (Feed, "hold", lambda self, now_us: None),
        (Timekeeper, "step_clock", lambda self, by_us: None),
        (Timekeeper, "_end_request", lambda self, source, feed, outcome, effects: setattr(feed, "request", None)),
        (Timekeeper, "_try_again", lambda self, at_us, source: None),
        (Arc, "drained", lambda self: True),
    ],
    ids=["a clock that is fast", "unread", "a clock that jumps", "requests that never end", "timers", "arcs"],
)
def test_broken_time_is_noticed(monkeypatch, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Broken):
        live_many(60)
