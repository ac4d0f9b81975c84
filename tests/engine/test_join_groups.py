"""Promises about groups at a join against their definition, computed tuple by tuple.

A window of a group above the join leaves in the step after which no row of the join that is still to come belongs to
it; a stored row goes in the step after which nothing that is still to come can match it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import (
    Answered,
    Arrived,
    AskTimestamp,
    Event,
    FeedClosed,
    FeedOpened,
    Punctuated,
    SetOrder,
)
from millrace.operators.aggregate.aggregate import EarlyAggregate
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.join import join as joining
from millrace.operators.join.bands import Band, close_bands
from millrace.operators.join.join import Join
from millrace.operators.join.spec import Equal, JoinSpec
from millrace.protocol import Schema, Type
from millrace.values.batch import Batch
from millrace.values.expression import Column
from tests.depth import DEEP, examples
from tests.engine.graphs import Bench, plan, rows
from tests.engine.test_groups import TUPLES, Model, stream
from tests.engine.test_joint import SECOND, SPANS, playing, script
from tests.engine.test_joint import TUPLES as PAIRS
from tests.engine.test_joint import Model as Times
from tests.oracles.joins import join

KEYS: Final = ("ts", "k", "x")
OUT_K, OUT_X = Column(Type.BIGINT, True, 0, "k"), Column(Type.TEXT, True, 1, "x")
NEVER: Final = 10**12
Row = tuple[int, Any, Any, int]


class World:
    """A join of two or three streams by some columns, and windows of its rows by the first stream's k and x."""

    def __init__(self, rng: random.Random) -> None:
        self.count = rng.choice([2, 2, 2, 3])
        self.outer = rng.choice([(), (), (0,), (1,), (0, 1)]) if self.count == 2 else ()
        self.equal = rng.choice([("k",), ("k", "x")])
        key = rng.choice([("k",), ("k", "x")])
        self.keys = [key if at == 0 or rng.random() < 0.8 else () for at in range(self.count)]
        self.bands = tuple(
            Band(0, at, *rng.choice([(-10, 10), (-40, 40), (0, 30), (-3, 0)])) for at in range(1, self.count)
        )
        self.reach = close_bands(self.bands, self.count)
        self.size = rng.choice([3, 10, 25])
        disorder = rng.choice([30, 1_000])
        self.streams = [replace(stream(of, disorder), name="stu"[at]) for at, of in enumerate(self.keys)]
        self.models = [Model(tuple(map(KEYS.index, of)), disorder) for of in self.keys]

    def bench(self, order: str = "arrival") -> Bench:
        equal = [
            Equal(0, Column(TUPLES.fields[place].type, True, place, name), at, Column(field.type, True, place, name))
            for at in range(1, self.count)
            for name in self.equal
            for place, field in [(KEYS.index(name), TUPLES.fields[KEYS.index(name)])]
        ]
        columns = (("k", 0, 1), ("x", 0, 2), ("v", self.count - 1, 3))
        spec = JoinSpec(columns, self.bands, tuple(equal), outer=self.outer, order=order)  # type: ignore[arg-type]
        groups = AggregateSpec(
            TimeWindow(self.size, self.size),
            (("k", OUT_K), ("x", OUT_X)),
            (("n", AggregateCall(Type.BIGINT, False, "count()")),),
            (("window_end", "end"),),
            early=True,
        )
        bench = Bench(*self.streams)
        sources = [f"{one.name}.source" for one in self.streams]
        bench.query(plan("q", ("J", spec, sources), ("A", groups, ["J"]), schema=Schema.of(n="bigint")))
        return bench

    # -- the definition ------------------------------------------------------------------------------------------------

    def of_group(self, at: int, group: tuple[Any, Any]) -> int:
        """How far an input is for a group (k, x) of the first stream's rows, as far as it tells them apart."""
        model = self.models[at]
        known = {"k", "x"} if at == 0 else set(self.equal)
        if not model.key or not set(self.keys[at]) <= known:
            return model.mark
        shown = dict(zip(("k", "x"), group, strict=True))
        if None in [shown[name] for name in self.keys[at] if name in self.equal]:
            return model.mark  # nothing matches null: such promises are dropped
        return model.mark_of((0, *group, 0))

    def floor(self, at: int, row: Row) -> int:
        """Below which time a row of an input can match nothing that is still to come."""
        floors = []
        for other, model in enumerate(self.models):
            if other != at:
                mark = model.mark
                known = set(self.equal)
                named = [row[place] for place in model.key]
                if model.key and set(self.keys[other]) <= known and None not in named:
                    mark = model.mark_of(row)
                most = self.reach[at][other]
                floors.append(-NEVER if most is None else mark - most)
        return min(floors)

    def waiting(self) -> Iterator[tuple[int, Row]]:
        """Rows without a match that may still get one."""
        matched: list[set[int]] = [set(), set()]
        for _, members in self.joined(()):
            for at, row in enumerate(members[:2]):
                matched[at].add(row[1][-1])
        for at in self.outer:
            for number, row in enumerate(self.models[at].on_time):
                if number not in matched[at] and row[0] >= self.floor(at, row):
                    yield at, row

    def joined(self, outer: Sequence[int]) -> list[Any]:
        """The rows of the join; each input's row ends with its number."""
        inputs = [[(row[0], (*row[1:3], number)) for number, row in enumerate(model.on_time)] for model in self.models]
        equal = [
            (0, KEYS.index(name) - 1, at, KEYS.index(name) - 1) for at in range(1, self.count) for name in self.equal
        ]
        bands = [(band.left, band.right, band.low_us, band.high_us) for band in self.bands]
        return join(inputs, bands, equal, outer=outer)

    def results(self) -> tuple[Counter[Any], Counter[Any]]:
        """Windows that must have left, and those that may: if nobody promises their group, rows of others may hold the
        join's time back."""
        waiting = list(self.waiting())
        gone = {(at, row) for at, row in waiting}
        groups: Counter[Any] = Counter()
        for time, members in self.joined(self.outer):
            lone = [(at, row) for at, row in enumerate(members) if row is not None] if None in members else []
            if lone and (lone[0][0], self.models[lone[0][0]].on_time[lone[0][1][1][-1]]) in gone:
                continue
            k, x = members[0][1][:2] if members[0] is not None else (None, None)
            groups[k, x, time - time % self.size + self.size] += 1
        whole = min([*(model.mark for model in self.models), *(row[0] for _, row in waiting)])
        must: Counter[Any] = Counter()
        may: Counter[Any] = Counter()
        for (k, x, end), count in groups.items():
            mark = min(self.of_group(at, (k, x)) for at in range(self.count))
            ahead = mark > min(model.mark for model in self.models)
            mark = min([mark, *(row[0] for at, row in waiting if self.belongs(at, row, (k, x)))])
            if end <= whole or (end <= mark and ahead and not self.unnamed((k, x))):
                must[k, x, count, end] += 1
            if end <= max(whole, mark):
                may[k, x, count, end] += 1
        return must, may

    def belongs(self, at: int, row: Row, group: tuple[Any, Any]) -> bool:
        """Whether a row of the first input would be one of a group without a match; rows of others are in none."""
        known = {name for of in self.keys for name in of}
        return at == 0 and all(row[1 + place] == group[place] for place in (0, 1) if KEYS[1 + place] in known)

    def unnamed(self, group: tuple[Any, Any]) -> bool:
        """Rows without a match on the first input are in the group of nulls, of which nothing is promised."""
        return 1 in self.outer and None in [
            value
            for name, value in zip(("k", "x"), group, strict=True)
            if name in {one for of in self.keys for one in of}
        ]

    def check_state(self, bench: Bench) -> int:
        """Each stored row is there or dropped as it has to be. Returns how many were dropped for their group."""
        (operator,) = [one for one in bench.engine.graph.operators.values() if isinstance(one, Join)]
        assert operator.ahead == bool(operator.groups), "a restored join goes by its groups alone"
        dropped = 0
        exact = set(self.equal)
        for at, store in enumerate(operator.matcher.stores):
            places = operator.matcher.places(at)
            for segment in store.segments:
                for slot in range(segment.count):
                    strip = segment.strip(np.array([slot]))
                    values = [strip.columns[places[KEYS.index(name)]][0] for name in self.equal]
                    shown = dict(zip(self.equal, values, strict=True))
                    valid = [strip.valid[places[KEYS.index(name)]] for name in self.equal]
                    if any(mask is not None and not mask[0] for mask in valid):
                        continue
                    row = (int(strip.ts[0]), int(shown["k"]), str(shown["x"]) if "x" in exact else "a", 0)
                    over = segment.over is not None and bool(segment.over[slot])
                    plain = min(
                        model.mark - most
                        for other, model in enumerate(self.models)
                        if other != at and (most := self.reach[at][other]) is not None
                    )
                    if row[0] >= plain:
                        assert over == (row[0] < self.floor(at, row)), (at, row)
            dropped += store.closed
        return dropped

    # -- events --------------------------------------------------------------------------------------------------------

    def happening(self, rng: random.Random) -> Event:
        at = rng.randrange(self.count)
        name, model = "stu"[at], self.models[at]
        what = rng.choices(["tuples", "group", "mark"], [6, 6, 1])[0]
        if what == "tuples" or (what == "group" and not model.key):
            made = [
                (rng.randint(0, 60), rng.choice([1, 1, 1, 2, None]), rng.choice(["a", "a", "a", "b", None]), 1)
                for _ in range(rng.randint(1, 4))
            ]
            return Arrived(name, "f", Batch.from_rows(TUPLES, made, [row[0] for row in made]))
        row = (0, rng.choice([1, 1, 2, None]), rng.choice(["a", "a", "b", None]))
        group = tuple(row[place] for place in model.key) if what == "group" else ()
        return Punctuated(name, "f", rng.randint(0, 80), group)


def save_and_restore(bench: Bench) -> None:
    saved = bench.engine.save()
    bench.engine = Engine.restore(saved, trace=True)
    assert bench.engine.save() == saved


def play(seed: int) -> Counter[str]:
    """Returns how many rows left early, and how many stored rows were dropped."""
    rng = random.Random(seed)
    world = World(rng)
    bench = world.bench()
    limits = rng.choice([{}, {"executions": 1}, {"budget": 2}])
    seen: Counter[Any] = Counter()
    needed: Counter[Any] = Counter()
    done: Counter[str] = Counter()
    for _ in range(rng.randint(6, 16)):
        heard = [world.happening(rng) for _ in range(rng.randint(1, 3))]
        for event in heard:
            world.models["stu".index(event.stream)].hear(event)  # type: ignore[union-attr]
        must, may = world.results()
        found = Counter(rows(bench.run(*heard, **limits), "q"))
        seen += found
        needed |= must
        assert needed <= seen <= may, f"seed {seed}"
        done["early"] += sum(row[-1] > min(model.mark for model in world.models) for row in found)
        done["lone"] += bool(world.outer) * len(found)
        dropped = world.check_state(bench)
        if rng.random() < 0.2:
            save_and_restore(bench)
            assert world.check_state(bench) == dropped
    done["dropped"] += world.check_state(bench)
    return done


@pytest.fixture(params=[2, 65_536])
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much a join does in an execution."""
    monkeypatch.setattr(joining, "MOST_LOOKED", request.param)


@pytest.mark.usefixtures("looks")
def test_groups_pass_a_join_and_are_dropped_from_it_at_the_exact_time() -> None:
    first = random.randrange(10**9) if DEEP else 0
    done: Counter[str] = Counter()
    for seed in range(examples(600)):
        done += play(first + seed)
    assert done["early"] > 40, done
    assert done["dropped"] > 200, done


def play_in_order(seed: int) -> int:
    """In order of time, or in an order that changes: no window leaves too early, and in the end the rows are those
    without any promise about a group. Returns how many rows left before their inputs' marks."""
    rng = random.Random(seed)
    world = World(rng)
    orders: list[Any] = rng.choice([["sync", "filter", "adaptive"], ["arrival", "sync", "filter"]])
    order = orders[0] if "arrival" in orders else rng.choice(orders)
    bench, plain = world.bench(order), world.bench(order)
    limits = rng.choice([{}, {"executions": 1}, {"budget": 2}])
    seen: Counter[Any] = Counter()
    others: Counter[Any] = Counter()
    early = 0
    for _ in range(rng.randint(6, 16)):
        event = world.happening(rng)
        model = world.models["stu".index(event.stream)]  # type: ignore[union-attr]
        late = len(model.on_time)
        model.hear(event)
        if isinstance(event, Arrived):
            made = model.on_time[late:]
            event = Arrived(event.stream, "f", Batch.from_rows(TUPLES, made, [row[0] for row in made]))
        found = Counter(rows(bench.run(event, **limits), "q"))
        early += sum(row[-1] > min(model.mark for model in world.models) for row in found)
        seen += found
        assert seen <= world.results()[1], f"seed {seed}"
        if not (isinstance(event, Punctuated) and event.group):
            others += Counter(rows(plain.run(event, **limits), "q"))
        if rng.random() < 0.2:
            save_and_restore(bench)
        if rng.random() < 0.2:
            bench.do(SetOrder("q", rng.choice(orders)))
    ends = [FeedClosed(one.name, "f", ended=True) for one in world.streams]
    for found, one in ((seen, bench), (others, plain)):
        found += Counter(rows(one.run(*ends), "q"))
    assert seen == others, f"seed {seed}"
    return early


@pytest.mark.usefixtures("looks")
def test_in_order_of_time_the_rows_are_those_without_promises() -> None:
    first = random.randrange(10**9) if DEEP else 0
    assert sum(play_in_order(first + seed) for seed in range(examples(400))) > 0


def play_times(seed: int) -> int:
    """Groups by (key, time, time): each leaves as soon as the marks of its key complete it. Returns how many rows left
    that the inputs' own marks do not let go."""
    rng = random.Random(seed)
    kind = rng.choice(["", "", "LEFT"])
    units = tuple(rng.choice(["microsecond", "millisecond"]) for _ in "ab")
    bands = [(0, 1, *rng.choice([(0, 2_000), (-700, 700), (1, 4_000), (-1_500, 0), (0, 0), (None, 5)]))]
    disorder = rng.choice([0, 900, 5_000])
    text = script(units, bands, kind, disorder, also="a.k").replace(
        "(time = 'ts'", "(time = 'ts', punctuation_key = 'k'"
    )
    bench = playing(text)
    models = [Model((1,), disorder) for _ in "ab"]
    limits = rng.choice([{}, {"executions": 1}, {"budget": 1}])
    seen: Counter[Any] = Counter()
    early = 0

    def complete(marks: Sequence[Sequence[int]]) -> tuple[Counter[Any], Counter[Any]]:
        both: tuple[Counter[Any], Counter[Any]] = Counter(), Counter()
        for k, of_key in zip((1, 2), marks, strict=True):
            times = Times([SPANS[unit] for unit in units], bands, (0,) if kind else (), disorder)
            times.marks = list(of_key)
            times.rows = [[(ts, (k,)) for ts, *own in model.on_time if own[0] == k] for model in models]
            for found, one in zip(times.complete(), both, strict=True):
                one.update({(*group[:2], k, group[2]): 1 for group in found})
        return both

    def near(at: int) -> int:
        """A time next to one at which something is decided."""
        times = [0, *(row[0] for model in models for row in model.on_time[-4:])]
        time = rng.choice(times) + rng.choice([0, 0, *(end for band in bands for end in band[2:] if end is not None)])
        return max(0, (time - time % 1_000 + 1_000 if rng.random() < 0.5 else time) + rng.randint(-1, 1))

    for _ in range(rng.randint(5, 18)):
        heard: list[Event] = []
        for _ in range(rng.choice([1, 1, 2])):
            at = rng.randrange(2)
            if rng.random() < 0.5:
                made = [(near(at) if rng.random() < 0.5 else rng.randrange(6_000), rng.choice([1, 1, 2])) for _ in "12"]
                heard.append(Arrived("ab"[at], "f", Batch.from_rows(PAIRS, made, [ts for ts, _ in made])))
            else:
                heard.append(Punctuated("ab"[at], "f", near(at), rng.choice([(), (1,), (1,), (2,)])))
            models[at].hear(heard[-1])
        must, may = complete([[model.mark_of((0, k)) for model in models] for k in (1, 2)])
        plain = complete([[model.mark for model in models]] * 2)[1]
        found = Counter(rows(bench.run(*heard, **limits), "q"))
        seen += found
        early += (found - plain).total()
        assert must <= seen <= may, f"seed {seed}"
        if rng.random() < 0.2:
            save_and_restore(bench)
    return early


@pytest.mark.usefixtures("looks")
def test_groups_of_a_key_and_times_leave_as_soon_as_they_are_complete() -> None:
    first = random.randrange(10**9) if DEEP else 0
    assert sum(play_times(first + seed) for seed in range(examples(400))) > 50


RETRY_US: Final = 10


def open_windows(world: World) -> dict[tuple[Any, Any], int]:
    """By group of which rows of the join have not left, the end of its earliest window."""
    left, _ = world.results()
    ended = {(k, x, end) for k, x, _, end in left}
    ends: dict[tuple[Any, Any], int] = {}
    for time, members in world.joined(world.outer):
        k, x = members[0][1][:2] if members[0] is not None else (None, None)
        end = time - time % world.size + world.size
        if (k, x, end) not in ended:
            ends[k, x] = min(end, ends.get((k, x), end))
    return ends


def play_requests(seed: int) -> int:
    """Requests name an oldest group and a stream that holds it back; once they are answered, everything leaves. Returns
    how many named a group."""
    rng = random.Random(seed)
    world = World(rng)
    world.streams = [replace(one, disorder_us=1_000, ets_retry_us=RETRY_US) for one in world.streams]
    for model in world.models:
        model.disorder = 1_000
        model.feeds = {"f": model.mark}
    bench = world.bench()
    bench.run(*(FeedOpened(one.name, "f", can_answer=True) for one in world.streams))
    seen: Counter[Any] = Counter()
    waiting: list[AskTimestamp] = []
    now = named = 0
    for turn in range(30 + 600):
        now += rng.randint(1, 8)
        heard: list[Event] = []
        for ask in waiting:
            if turn >= 30 or rng.random() < 0.9:
                group = ask.group if rng.random() < 0.8 else ()
                value = ask.need_us + (rng.choice([0, 0, 3, 12, -4]) if turn < 30 else 0)
                heard.append(Answered(ask.stream, "f", ask.request, value, group))
        if turn < 30 and rng.random() < 0.6:
            made = [(max(now - rng.randint(0, 30), 0), rng.choice([1, 2, None]), rng.choice("ab"), 1) for _ in "12"]
            heard.append(
                Arrived(rng.choice(world.streams).name, "f", Batch.from_rows(TUPLES, made, [r[0] for r in made]))
            )
        for event in heard:
            model = world.models["stu".index(event.stream)]  # type: ignore[union-attr]
            model.hear(
                Punctuated(event.stream, "f", event.value_us, event.group) if isinstance(event, Answered) else event
            )
        effects = bench.run(*heard, at=now)
        seen += Counter(rows(effects, "q"))
        must, may = world.results()
        assert must <= seen <= may, f"seed {seed}"
        waiting = [order for order in effects.orders if isinstance(order, AskTimestamp)]
        ends = open_windows(world)
        for ask in waiting:
            at = "stu".index(ask.stream)
            model = world.models[at]
            assert model.mark < ask.need_us, f"seed {seed}"
            if ask.group:
                named += 1
                assert model.group_marks.get(ask.group, model.mark) < ask.need_us, f"seed {seed}"
            if not world.outer:
                oldest = {group for group, end in ends.items() if end == min(ends.values())}
                assert ask.need_us == min(ends.values()), f"seed {seed}"
                mine = [tuple((0, *group)[place] for place in model.key) for group in oldest]
                assert not ask.group or ask.group in mine, f"seed {seed}"
        if rng.random() < 0.1:
            bench.engine = Engine.restore(bench.engine.save(), trace=True)
        if turn >= 30 and not ends and not waiting:
            return named
    raise AssertionError(f"seed {seed}: {open_windows(world)} are still blocked")


def test_requests_name_the_oldest_group_above_a_join_and_the_stream_that_holds_it_back() -> None:
    first = random.randrange(10**9) if DEEP else 0
    assert sum(play_requests(first + seed) for seed in range(examples(200))) > 300


def counting() -> Bench:
    """The paper's query (section 7) with a key, whose feeds answer requests."""
    text = script(("second", "second"), [(0, 1, 1, 120 * SECOND)], disorder=3_600 * SECOND, also="a.k")
    bench = playing(text.replace("(time = 'ts'", "(time = 'ts', punctuation_key = 'k'"))
    bench.run(FeedOpened("a", "f", can_answer=True), FeedOpened("b", "f", can_answer=True))
    return bench


def pair(stream: str, second: int, k: int) -> Arrived:
    return Arrived(stream, "f", Batch.from_rows(PAIRS, [(second * SECOND, k)], [second * SECOND]))


def asked(effects: Any) -> list[Any]:
    return [(one.stream, one.need_us // SECOND, one.group) for one in effects.orders if isinstance(one, AskTimestamp)]


def test_the_example_of_the_paper_for_one_key() -> None:
    """Group (7, 0, 1 min) leaves once both sides have passed its times for this key; key 8 has the same times."""
    bench = counting()
    bench.run(pair("a", 0, 7), pair("a", 0, 8), pair("b", 60, 7), pair("b", 60, 8))
    assert rows(bench.run(Punctuated("b", "f", 61 * SECOND, (7,))), "q") == []
    assert rows(bench.run(Punctuated("a", "f", SECOND, (7,))), "q") == [(0, 60 * SECOND, 7, 1)]
    (operator,) = [one for one in bench.engine.graph.operators.values() if isinstance(one, Join)]
    assert operator.closed_rows == 0
    bench.run(Punctuated("a", "f", 60 * SECOND, (7,)))
    assert (operator.closed_rows, operator.state_tuples) == (1, 3)
    bench.run(Punctuated("b", "f", 120 * SECOND, (7,)))
    assert operator.closed_rows == 1
    bench.run(Punctuated("b", "f", 120 * SECOND + 1, (7,)))
    assert (operator.closed_rows, operator.state_tuples) == (2, 2)


def test_a_request_names_the_group_and_the_stream_that_holds_it_back() -> None:
    bench = counting()
    waits = [pair("a", 0, 8), pair("a", 0, 7), pair("b", 60, 7), pair("b", 60, 8)]
    bench.run(*waits, pair("a", 61, 9), pair("b", 62, 9), at=7_000 * SECOND)
    effects = bench.run(at=7_200 * SECOND)
    assert asked(effects) == [("a", 61, (7,)), ("b", 61, (7,))]
    first, second = (one.request for one in effects.orders if isinstance(one, AskTimestamp))
    effects = bench.run(Answered("a", "f", first, 61 * SECOND, (7,)), at=7_200 * SECOND + 1)
    assert (rows(effects, "q"), asked(effects)) == ([], [])
    found = bench.engine.why("q")
    assert (found.stream, found.group) == ("b", {"k": 7})
    assert "The group that has waited the longest is k = 7." in found.text
    effects = bench.run(Answered("b", "f", second, 61 * SECOND, (7,)), at=7_200 * SECOND + 2)
    assert rows(effects, "q") == [(0, 60 * SECOND, 7, 1)]
    assert asked(effects) == [("a", 61, (8,)), ("b", 61, (8,))]


def test_a_row_that_waits_to_leave_an_outer_join_alone_names_its_group() -> None:
    text = script(("second", "second"), [(0, 1, 0, 10 * SECOND)], "LEFT", 3_600 * SECOND, also="a.k")
    bench = playing(text.replace("(time = 'ts'", "(time = 'ts', punctuation_key = 'k'"))
    bench.run(FeedOpened("b", "f", can_answer=True))
    bench.run(Punctuated("a", "f", 0), Punctuated("b", "f", 0), pair("a", 1, 7), pair("a", 1, 8))
    effects = bench.run(pair("b", 100, 9), at=7_200 * SECOND)
    assert ("b", 11, (7,)) in asked(effects)
    effects = bench.run(
        Punctuated("a", "f", 2 * SECOND, (7,)), Answered("b", "f", 1, 12 * SECOND, (7,)), at=7_201 * SECOND
    )
    assert rows(effects, "q") == [(SECOND, None, 7, 1)]


def test_joint_groups_of_a_state_from_before_keys_are_read() -> None:
    bench = counting()
    bench.run(pair("a", 0, 7), pair("b", 60, 7))
    (operator,) = [one for one in bench.engine.graph.operators.values() if isinstance(one, EarlyAggregate)]
    state = operator.save()
    assert operator.layout.read(operator, 1, [*state[:-1], state[-1][:-2]]) == state
