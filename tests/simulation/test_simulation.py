"""Small worlds, played in every style; `make simulate` plays many more."""

from __future__ import annotations

import random
import re
from collections import Counter

import numpy as np
import pytest

from millrace.engine import seam
from millrace.engine.graph.rewire import failing, replacing
from millrace.engine.time.watermarks import WatermarkCoordinator
from millrace.operators.aggregate.aggregate import WindowAggregate
from millrace.operators.aggregate.early import EarlyPanes
from millrace.operators.aggregate.joint import JointPanes
from millrace.operators.aggregate.lowlevel import LowTable
from millrace.operators.aggregate.sessionrows import SessionRows
from millrace.operators.aggregate.sessions import Sessions
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.deduplicate.deduplicate import Deduplicate
from millrace.operators.frame.ets_arcs import Arc
from millrace.operators.frame.group_passing import GroupPassing
from millrace.operators.frame.operator import RowWise
from millrace.operators.frame.punctuation_grain import PunctuationGrain
from millrace.operators.frame.waiting import TimeOrdered
from millrace.operators.gate.gate import Gate
from millrace.operators.join.bands import Bands
from millrace.operators.join.groups import JoinGroups
from millrace.operators.join.join import Join
from millrace.operators.join.matching import Matcher
from millrace.operators.queues.update import UpdateQueue
from millrace.operators.queues.windows import WindowQueue
from millrace.operators.queues.windows.arrivals import LazyArrivals
from millrace.operators.retime.retime import Retime
from millrace.operators.sink.sink import Sink
from millrace.operators.source.feeds import Feed
from millrace.operators.source.source import Source
from millrace.operators.top.top import FinalTop
from millrace.operators.updates.updates import KeyVersions
from millrace.protocol import Refuse, Type
from millrace.values.eventtime import MAX_TIME, MIN_TIME
from tests.simulation.__main__ import again, play
from tests.simulation.auditors import Broken
from tests.simulation.clocks import Live, clocks_of
from tests.simulation.joined import joined_world_of, running
from tests.simulation.odds import draw
from tests.simulation.simulator import Expected, Play, compare, compare_untouched, simulate, simulate_sharing
from tests.simulation.sql import sql_world_of
from tests.simulation.sqlplay import SqlPlay, expected, simulate_sql
from tests.simulation.updates import UpdatePlay, simulate_updates, updates_of
from tests.simulation.world import windowed_world_of, world_of

BLOCK = 8

# Worlds that have found a bug, which the comment names, with the styles that it takes. A fresh seed that fails joins.
FIXED_SEEDS = [
    ("graphs", 13, 1),  # the numbers of timers were other ones after a restore
    ("clocks", 4, 1),  # a timer unset and set again for the same time came first, but not after a restore
    ("clocks", 910170, 0),  # which need a client was asked for depended on which cycle ended first
    ("joins", 950039, 1),  # a save changed which masks a sequence operator gave its rows
    ("clocks", 910172, 2),  # a feed that got credit again was not looked at again
    ("sql", 212, 1),  # the oracle took back final places of windows that replace each other
]
# The same in one rough play.
FIXED_PLAYS = [
    (world_of, 910105, 1),  # a total created over a stream that had ended emitted its row after the promised end
    (joined_world_of, 910045, 1),  # a join that had finished earlier rows was not executed again for queued ones
]

# So many worlds of each kind are new in each run.
FRESH = {"graphs": 2, "joins": 1, "clocks": 1, "updates": 3, "sql": 3}


@pytest.mark.parametrize(("kind", "seed", "styles"), FIXED_SEEDS)
def test_worlds_that_have_found_something(kind, seed, styles):
    playing(seed, styles, kind=kind)


@pytest.mark.parametrize(("worlds", "seed", "style"), FIXED_PLAYS)
def test_plays_that_have_found_something(worlds, seed, style):
    expected = Expected(worlds(seed))
    compare_untouched(expected, Play(expected.world, style, rough=True).run(), style)


@pytest.mark.parametrize("kind", FRESH)
def test_fresh_worlds(kind, record_property):
    """The end of the run lists these worlds; a failure also prints the command that plays its world again."""
    for _ in range(FRESH[kind]):
        seed = draw(random.SystemRandom(), "seeds.fresh")
        record_property("fresh world", again(seed, 1, kind))
        playing(seed, styles=1, kind=kind)


def test_a_fresh_world_that_fails_says_how_to_play_it_again(monkeypatch):
    monkeypatch.setattr(RowWise, "promised", lambda self, low_us: self.inputs[0].promise)
    monkeypatch.setitem(FRESH, "graphs", 200)
    with pytest.raises(Broken) as failure:
        test_fresh_worlds("graphs", lambda name, value: None)
    (note,) = failure.value.__notes__
    command = re.fullmatch(r"again: python -m tests.simulation --from (\d+) --seeds 1 --styles 1 --graphs", note)
    assert command is not None
    with pytest.raises(Broken):
        play(int(command[1]), 1, kind="graphs")


@pytest.mark.parametrize("first", range(0, 24, BLOCK))
def test_worlds(first):
    for seed in range(first, first + BLOCK):
        playing(seed, styles=1, kind="graphs")


@pytest.mark.parametrize("first", range(0, 8, 4))
def test_worlds_of_joins(first):
    for seed in range(first, first + 4):
        playing(seed, styles=1, kind="joins")


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_worlds_of_clocks(first):
    for seed in range(first, first + 4):
        playing(seed, styles=1, kind="clocks")


@pytest.mark.parametrize("first", range(0, 6, 2))
def test_worlds_of_queries_that_share(first):
    """Windowed ones remember much, the others merge and split."""
    shared = merged = 0
    for seed in range(first, first + 2):
        for world in (world_of(seed), windowed_world_of(seed)):
            try:
                found = simulate_sharing(world)
            except Exception as error:
                error.add_note(f"simulate_sharing, seed {seed}, {world.queries[0].nodes[0].kind}")
                raise
            shared, merged = shared + found[0], merged + found[1]
    assert shared > 10
    assert merged > 0


def play_many(worlds, first):
    """The world that notices what is broken comes first; the others are played if it does not any more."""
    for seed in (first, *range(worlds)):
        play(seed, 1, kind="graphs")


def join_many(seeds):
    for seed in reversed(seeds):
        simulate(joined_world_of(seed), 1)


def live_many(worlds, first):
    for seed in (first, *range(worlds)):
        for style in (None, 0):
            Live(clocks_of(seed), style).play()


def playing(seed, styles, *, kind=""):
    try:
        play(seed, styles, kind=kind)
    except Exception as error:
        error.add_note(f"again: {again(seed, styles, kind)}")
        raise


@pytest.mark.parametrize("strategy", ["dfs(1)", "dfs", "bfs", "rr(2)", "chain(2)"])
def test_thin_punctuation_changes_neither_rows_nor_the_steps_that_release_them(strategy):
    less = 0
    for seed in range(16):
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
    ("first", "owner", "name", "broken"),
    [
        (3, Source, "_marks_met", lambda self, feed, batch, before: (batch.ts - 1, batch.ts - 1, self.mark)),
        (0, TimeOrdered, "horizon", lambda self: max(reader.promise for reader in self.inputs)),
        (0, RowWise, "promised", lambda self, low_us: self.inputs[0].promise),
        (2, PunctuationGrain, "above", lambda self, value_us: value_us + (1 if self.every else 50)),
        (19, WindowAggregate, "paced", False),
        (0, replacing, "unchanged", lambda before, after, *, read: {}),
        (0, TimeOrdered, "registers", lambda self: self.failed(1, "asked") or [0] * len(self.inputs)),
    ],
    ids=["lateness", "horizon", "low water", "grain", "pace", "kept state", "questions"],
)
def test_a_broken_engine_is_noticed(monkeypatch, first, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Broken):
        play_many(20, first)


@pytest.mark.parametrize(
    ("owner", "field", "value"),
    [(Sink, 1, MIN_TIME), (Sink, 2, False)],
    ids=["progress", "watched"],
)
def test_a_field_that_is_not_saved_is_noticed(monkeypatch, owner, field, value):
    """Only plays that restore can: a state that is saved and restored without the field is the same again."""
    save = owner.save
    monkeypatch.setattr(owner, "save", lambda self: [*save(self)[:field], value, *save(self)[field + 1 :]])
    with pytest.raises(Broken, match=r"a restored engine|a refused change"):
        play_many(20, 0)


def test_a_world_saves_after_commands():
    plays = [Play(world_of(seed), 0, rough=True) for seed in range(6)]
    for played in plays:
        played.run()
    assert sum(played.twin.commands for played in plays) > 3


def test_worlds_of_joins_are_worth_playing():
    """Every kind of pairing gives rows that are compared, and joins change their order."""
    kinds: Counter = Counter()
    rows: Counter = Counter()
    turned = 0
    for seed in range(60):
        world = joined_world_of(seed)
        pairings = {node.name: node.pairing for query in world.queries for node in query.nodes if node.pairing}
        for query in world.queries:
            for node in query.nodes:
                if node.pairing:
                    kinds.update([node.kind, node.pairing.order, f"{len(node.inputs)} inputs", node.pairing.key])
                    kinds.update([f"alone {node.pairing.outer}"] + ["rising"] * node.pairing.rising)
        expected = Expected(world)
        for query in world.queries:
            if query.output.name in pairings:
                for given in expected.checkpoints:
                    rows[query.output.kind] += (given[query.name] or Counter()).total()
        if turned <= 10:
            wild = Play(world, 0)
            wild.run()
            turned += sum(join.pacing.switches for _, join in running(wild))
    wanted = {
        "join",
        "recent",
        "chronicle",
        "absent",
        "sync",
        "filter",
        "adaptive",
        "3 inputs",
        "alone (0,)",
        "alone (1,)",
        "alone (0, 1)",
        "rising",
        None,
    }
    assert wanted <= kinds.keys()
    assert all(kinds[kind] >= 5 for kind in kinds), kinds
    assert all(rows[kind] > 100 for kind in ("join", "recent", "chronicle", "absent")), rows
    assert turned > 10


@pytest.mark.parametrize(
    ("seeds", "owner", "name", "broken"),
    [
        (range(8), Bands, "floor", lambda self, a, lows: min(lows) + 3),
        (range(8), Join, "_lowest", lambda self, lows: max(lows)),
        (range(8), Join, "paced", property(lambda self: False, lambda self, value: None)),
        ([41], Matcher, "match_row", lambda self, position, batch, time, floor, given: 0),
    ],
    ids=["floor", "what may leave", "rows left over", "single rows"],
)
def test_a_broken_join_is_noticed(monkeypatch, seeds, owner, name, broken):
    monkeypatch.setattr(owner, name, broken, raising=False)
    with pytest.raises(AssertionError):
        join_many(seeds)


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
    ("first", "owner", "name", "broken"),
    [
        (3, Feed, "clock", ahead),
        (37, Feed, "hold", lambda self, now_us: None),
        (2, WatermarkCoordinator, "step_clock", lambda self, by_us: None),
        (
            0,
            WatermarkCoordinator,
            "_end_request",
            lambda self, source, feed, outcome, effects: setattr(feed, "request", None),
        ),
        (9, WatermarkCoordinator, "_try_again", lambda self, at_us, source: None),
        (0, Arc, "drained", lambda self: True),
    ],
    ids=["a clock that is fast", "unread", "a clock that jumps", "requests that never end", "timers", "arcs"],
)
def test_broken_time_is_noticed(monkeypatch, first, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Broken):
        live_many(60, first)


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_worlds_of_update_streams(first):
    for seed in range(first, first + 6):
        playing(seed, styles=1, kind="updates")


def test_worlds_of_update_streams_are_worth_playing():
    """Every kind of query, queue and loss is in some of the first worlds."""
    kinds: Counter = Counter()
    for seed in range(60):
        world = updates_of(seed)
        kinds.update(query.kind for query in world.queries)
        kinds.update(line.kind for line in world.log)
        played = UpdatePlay(world, 0, rough=True)
        played.run()
        kinds.update({f"to {kind}": count for kind, count in played.exchanged.items()})
        kinds.update({f"turned to {mode}": count for mode, count in played.turned.items()})
        kinds.update(superseded=played.superseded, shed=played.shed, late=played.late.total())
        kinds.update(away=sum(consumer.away for consumer in played.consumers.values()))
        kinds.update(left_out=sum(o.superseded for o in played.engine.graph.operators.values()))
    assert all(kinds[kind] >= 5 for kind in kinds), kinds
    assert {
        "latest",
        "shed",
        "filter",
        "groups",
        "top",
        "union",
        "pairs",
        "over",
        "windows",
        "pause",
        "check",
    } <= kinds.keys()
    assert {
        "to append",
        "to auto",
        "to deadline",
        "to fifo",
        "to inplace",
        "to linecutting",
        "to reads",
    } <= kinds.keys()
    assert {"turned to update", "turned to append", "away", "left_out", "late"} <= kinds.keys()


def update_many(worlds, first):
    for seed in (first, *range(worlds)):
        simulate_updates(seed, 1)


def first_of_a_time(self, batch):
    """Of a key's rows of one time the first counts, not the last. (Queues have dropped the older ones before.)"""
    slots, rows = self.slots(batch), []
    for row, (slot, ts) in enumerate(zip(slots.tolist(), batch.ts.tolist(), strict=True)):
        if ts > self._last[slot]:
            self._last[slot] = ts
            rows.append(row)
    first = np.array(rows, np.int64)
    return first, slots[first]


def lossy(self):
    """What waits goes, and half of it comes along."""
    batch = drain(self)
    return None if batch is None or len(batch) < 2 else batch.slice(0, len(batch) // 2)


drain = UpdateQueue.drain


@pytest.mark.parametrize(
    ("first", "owner", "name", "broken"),
    [
        (9, UpdateQueue, "drain", lossy),
        (3, UpdateQueue, "floor_us", lambda self: MAX_TIME),
        (1, WindowQueue, "floor_us", lambda self: MAX_TIME),
        (2, LazyArrivals, "keeps", lambda self, time_us: self.pending_us is None),
        (1, LazyArrivals, "drop_below", lambda self, time_us: self._times.__delitem__(slice(None))),
        (10, KeyVersions, "newest_rows", first_of_a_time),
    ],
    ids=["exchange", "promise", "promise of windows", "window's tuples", "overlap", "equal times"],
)
def test_broken_queues_are_noticed(monkeypatch, first, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises((Broken, AssertionError)):
        update_many(60, first)


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_worlds_of_sql(first):
    for seed in range(first, first + 4):
        playing(seed, styles=1, kind="sql")


TEXTS = ("SESSION(", "[ROWS", "EAGER", "LAZY", "place <=", "JOIN LATEST", "CHRONICLE", "FOLLOWED BY NO")


def test_worlds_of_sql_are_worth_playing():
    """Every clause, key, queue and trouble is in some of the first worlds, and gives rows that are compared."""
    words: Counter = Counter()
    done: Counter = Counter()
    rows = failed = 0
    for seed in range(80):
        world = sql_world_of(seed)
        played = SqlPlay(world, 0, rough=True)
        for query in world.queries:
            plan = played.plans[query.name]
            words.update(node.spec.word for node in plan.nodes)
            words.update(type for node in plan.nodes for type in key_types(node.spec))
            words.update(f"USING {edge.kind}" for node in plan.nodes for edge in node.edges)
            words.update(f"keeps {node.spec.keeps}" for node in plan.nodes if isinstance(node.spec, AggregateSpec))
            words.update(text for text in TEXTS if text in query.text)
        if seed < 16:
            rows += sum(found.total() for found in expected(world).values())
            played.run()
            done += played.done
            failed += sum(played.failed.values())
    wanted = {"aggregate", "window", "top", "join", "followed_by", "deduplicate", "retime", "union", "sort"}
    wanted |= {*TEXTS, "USING fifo", "USING inplace", "USING linecutting", "keeps bounded"}
    assert [word for word in [*wanted, *Type] if words[word] < 3] == [], words
    troubles = {"pause", "resume", "drop", "add", "replace", "fail", "drop stream", "past", "widen", "queue"}
    troubles |= {"replace operator", "asked for a group"}
    assert [trouble for trouble in troubles if done[trouble] < 3] == [], done
    assert rows > 400
    assert failed > 5


def key_types(spec):
    """The types by which an operator groups, joins or ranks rows."""
    keys = [key[-1] if isinstance(key, tuple) else key for key in getattr(spec, "keys", ())]
    return [key.type for key in [*keys, *(key.left_key for key in getattr(spec, "equal", ()))]]


def of_those_that_promised(self, sides, own=GroupPassing._sides):
    """The marks of a union's sides, without those that have promised nothing about a group."""
    return own(self, sides)[0], MAX_TIME


def without_the_last(self, keys, rows, own=JointPanes._needed):
    """The marks at which groups of times are complete, without the one of the last input if groups are promised."""
    needed = own(self, keys, rows)
    return [*needed[:-1], np.full_like(needed[-1], MIN_TIME)] if self.promised else needed


def sql_many(worlds, first):
    for seed in (first, *range(worlds)):
        simulate_sql(seed, 1)


@pytest.mark.parametrize(
    ("first", "owner", "name", "broken"),
    [
        (0, Deduplicate, "_forget", lambda self, low_us: self._last.fill(MIN_TIME)),
        (7, Retime, "promised", lambda self, low_us: low_us),
        (33, FinalTop, "low_water", lambda self: self.inputs[0].low_water()),
        (35, SessionRows, "next_end", lambda self: Sessions.next_end(self)),
        (0, seam, "_restore", lambda query, saved, now_us: 0),
        (13, failing, "_renew", lambda engine, query: None),
        (0, Gate, "save", lambda self: False),
        (7, LowTable, "rewind", lambda self: None),
        (0, EarlyPanes, "_last_ended", lambda self, time_us: (time_us - self.offset - self.size) // self.slide + 1),
        (35, GroupPassing, "_sides", of_those_that_promised),
        (0, JoinGroups, "_shifted", lambda self, low_us, position, other: low_us),
        (2, JointPanes, "_needed", without_the_last),
    ],
    ids=[
        "duplicates",
        "times",
        "final places",
        "rows of sessions",
        "past",
        "failure",
        "gate",
        "low-level table",
        "group",
        "side",
        "group of a join",
        "group of times",
    ],
)
def test_broken_clauses_are_noticed(monkeypatch, first, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises((Broken, AssertionError, Refuse)):
        sql_many(60, first)


def test_under_chain_who_has_more_gets_another_turn():
    """A join that releases in parts what it has held back: none of them asks for the next, so the scheduler must."""
    world = joined_world_of(201)
    expected = Expected(world)
    compare(expected, expected.checkpoints, Play(world, 0).run(), "wild 0")
