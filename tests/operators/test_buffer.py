"""Arcs: the tuples of each reader, the time when tuples are freed, and the retained punctuation."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.operators.frame.buffer import Buffer, Gauge
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.punctuation_grain import EVERY
from millrace.protocol import Schema
from millrace.values.batch import Batch
from millrace.values.eventtime import MIN_TIME
from tests.depth import examples

V = Schema.of(v="bigint")


def batch(*values: int, at: int | None = None) -> Batch:
    return Batch.from_rows(V, [(value,) for value in values], [value if at is None else at for value in values])


def buffer(*, ordered: bool = False) -> Buffer:
    made = Buffer(V, ordered=ordered, gauge=Gauge())
    made.punctuates = True
    return made


def taken(reader: Inlet, limit: int) -> list[int]:
    found = reader.take(limit)
    return [] if found is None else [row[0] for row in found.rows()]


class Arcs(RuleBasedStateMachine):
    """Random puts, takes, and readers that join and leave, compared with plain lists."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = buffer()
        self.readers: list[tuple[Inlet, list[int]]] = []
        self.count = 0

    @rule(size=st.integers(0, 5))
    def put(self, size: int) -> None:
        values = list(range(self.count, self.count + size))
        self.count += size
        self.buffer.put(batch(*values))
        for _, expected in self.readers:
            expected.extend(values)

    @precondition(lambda self: len(self.readers) < 4)
    @rule()
    def attach(self) -> None:
        self.readers.append((self.buffer.attach(), []))

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 3), limit=st.integers(1, 7))
    def take(self, which: int, limit: int) -> None:
        reader, expected = self.readers[which % len(self.readers)]
        assert taken(reader, limit) == expected[:limit]
        del expected[:limit]

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 3))
    def skip(self, which: int) -> None:
        reader, expected = self.readers[which % len(self.readers)]
        reader.discard()
        expected.clear()

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 3))
    def detach(self, which: int) -> None:
        reader, _ = self.readers.pop(which % len(self.readers))
        self.buffer.detach(reader)

    @invariant()
    def holds_what_the_slowest_has_not_taken(self) -> None:
        slowest = max((len(expected) for _, expected in self.readers), default=0)
        assert self.buffer.queued == slowest
        assert [reader.waiting for reader, _ in self.readers] == [len(expected) for _, expected in self.readers]
        held = sum(len(segment) for segment in self.buffer.segments)
        # Whole batches are freed: at most one batch is retained that the slowest reader has passed in part.
        assert slowest <= held < slowest + 5 if held else slowest == 0
        assert self.buffer.gauge.tuples == held


Arcs.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestArcs = Arcs.TestCase


def test_a_tuple_is_freed_when_the_slowest_reader_has_passed_it() -> None:
    arc = buffer()
    fast, slow = arc.attach(), arc.attach()
    first: Any = batch(1, 2)
    freed = weakref.ref(first.columns[0])
    arc.put(first)
    del first
    taken(fast, 2)
    gc.collect()
    assert freed() is not None
    taken(slow, 2)
    gc.collect()
    assert freed() is None


def test_small_batches_come_out_as_one_and_a_large_one_is_cut_without_copying() -> None:
    arc = buffer()
    reader = arc.attach()
    for value in range(10):
        arc.put(batch(value))
    assert taken(reader, 100) == list(range(10))
    large = batch(*range(100))
    arc.put(large)
    part = reader.take(30)
    assert part is not None
    assert part.columns[0].base is large.columns[0] or part.columns[0].base is large.columns[0].base


def test_a_punctuation_right_behind_another_makes_it_void() -> None:
    arc = buffer()
    reader = arc.attach()
    arc.punctuate(5)
    arc.punctuate(9)
    assert list(reader.punctuations) == [(0, 9)]
    arc.put(batch(10))
    arc.punctuate(11)
    arc.punctuate(12)
    assert list(reader.punctuations) == [(0, 9), (1, 12)]


def test_a_promise_that_says_nothing_new_is_not_kept() -> None:
    arc = buffer()
    reader = arc.attach()
    arc.punctuate(9)
    arc.punctuate(9)
    arc.punctuate(3)
    assert list(reader.punctuations) == [(0, 9)]
    assert arc.promise == 9


def test_a_reader_passes_a_punctuation_with_the_tuples_before_it() -> None:
    arc = buffer()
    reader = arc.attach()
    arc.put(batch(1, 2))
    arc.punctuate(7)
    taken(reader, 1)
    reader.pass_punctuations()
    assert reader.punctuation_us == MIN_TIME
    taken(reader, 1)
    reader.pass_punctuations()
    assert reader.punctuation_us == 7


def test_on_an_ordered_arc_the_newest_tuple_promises_as_much_as_a_punctuation() -> None:
    arc = buffer(ordered=True)
    reader = arc.attach()
    arc.put(batch(3, 8))
    assert reader.promise == 8
    assert reader.low_water() == 3
    taken(reader, 2)
    assert reader.low_water() == 8
    arc.punctuate(8)
    assert not reader.punctuations


def test_nobody_gets_punctuation_that_nobody_wants_until_somebody_does() -> None:
    arc = buffer()
    arc.carry(None)
    reader = arc.attach()
    assert not arc.punctuate(9)
    assert not reader.punctuations
    arc.carry(EVERY)
    assert list(reader.punctuations) == [(0, 9)]
    reader.pass_punctuations()
    assert reader.punctuation_us == 9


def test_a_reader_that_comes_back_has_skipped_what_it_missed() -> None:
    arc = buffer()
    reader = arc.attach()
    arc.put(batch(1, 2, 3))
    taken(reader, 1)
    reader.detach()
    arc.put(batch(4))
    assert not reader.waiting
    assert taken(reader, 9) == []
    reader.resume()
    arc.put(batch(5))
    assert reader.skipped == 3
    assert taken(reader, 9) == [5]


@given(st.lists(st.booleans(), min_size=2, max_size=70), st.data())
def test_the_next_reader_is_the_first_from_a_turn_on_and_around(unseen: list[bool], data: st.DataObject) -> None:
    made = Buffer(V, ordered=False, gauge=Gauge())
    readers = [made.attach() for _ in unseen]
    for place, (reader, new) in enumerate(zip(readers, unseen, strict=True)):
        reader.place, reader.unseen = place, new
    made.turn_to(tuple(readers))
    turn = data.draw(st.integers(0, len(unseen) - 1))
    places = [*range(turn, len(unseen)), *range(turn)]
    assert made.next_awake(turn) == next((place for place in places if unseen[place]), -1)
