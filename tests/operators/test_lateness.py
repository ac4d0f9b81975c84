"""The late ledger of a source, compared with a stream that is played again for each disorder, tuple by tuple."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.operators.frame.buffer import Buffer
from millrace.operators.source import feeds as feeds_module
from millrace.operators.source.lateness import DISORDERS
from millrace.operators.source.source import Clocking, Source
from millrace.protocol import Schema
from millrace.values.batch import Batch
from tests.depth import examples

SCHEMA = Schema.of(ts="timestamp", k="bigint")


class Played:
    """A stream with one disorder: every mark is kept as it is, and looked at for each tuple."""

    def __init__(self, disorder_us: int, by_tuples: bool) -> None:
        self.disorder_us = disorder_us
        self.by_tuples = by_tuples
        self.mark = -math.inf
        self.feeds: dict[str, float] = {}
        self.late = 0

    def play(self, event: tuple[Any, ...]) -> None:
        match event:
            case "arrive", feed, times:
                self.open(feed)
                for time in times:
                    self.late += time < self.mark
                    if self.by_tuples:
                        self.promise(feed, time - self.disorder_us)
            case "promise", feed, value:
                self.open(feed)
                self.promise(feed, value)
            case "open", feed:
                self.open(feed)
            case "close", feed:
                self.feeds.pop(feed, None)
                self.rise()
            case "reach", value:
                self.mark = max(self.mark, value)

    def open(self, feed: str) -> None:
        self.feeds.setdefault(feed, self.mark)

    def promise(self, feed: str, value: float) -> None:
        self.feeds[feed] = max(self.feeds[feed], value)
        self.rise()

    def rise(self) -> None:
        self.mark = max([self.mark, min(self.feeds.values(), default=-math.inf)])


def made(disorder_us: int, **clocking: Any) -> Source:
    return Source("s.source", "s", Clocking("external", disorder_us, **clocking), Buffer(SCHEMA, ordered=False))


def feed_source(source: Source, event: tuple[Any, ...]) -> None:
    match event:
        case "arrive", feed, times:
            rows = [(time, number % 2) for number, time in enumerate(times)]
            source.arrive(feed, Batch.from_rows(SCHEMA, rows, list(times)), 0, 0)
        case "promise", feed, value:
            source.promise(source.open(feed), value, "client" if value % 2 else "ets")
        case "open", feed:
            source.open(feed)
        case "close", feed:
            if feed in source.feeds.by_name:
                source.close(feed, ended=False)
        case "reach", value:
            source.reach(value, "lull")
        case "group", feed, group, value:
            source.promise_group(source.open(feed), (group,), value, "client")


def restored(source: Source) -> Source:
    again = made(0)
    again.counts.restore(source.counts.save())
    again.clocking = source.clocking
    again.groups = type(source.groups)([SCHEMA.fields[at] for at in source.clocking.key])
    again.restore(source.save())
    again.restore_ledger(source.save_ledger(), 0)
    return again


def late_by_disorder(source: Source) -> dict[int, int]:
    lateness = source.lateness()
    assert lateness is not None
    left, found = lateness.tuples, {}
    for disorder_us, kept in lateness.needed.items():
        left -= kept
        found[disorder_us] = left
    return found


names = st.sampled_from(["a", "b", "c"])
times = st.integers(0, 60)
arrivals = st.tuples(st.just("arrive"), names, st.lists(times, min_size=1, max_size=6))
events = st.one_of(
    arrivals,
    arrivals,
    st.tuples(st.just("promise"), names, times),
    st.tuples(st.just("open"), names),
    st.tuples(st.just("close"), names),
    st.tuples(st.just("reach"), times),
)


def scaled(event: tuple[Any, ...], unit: int) -> tuple[Any, ...]:
    """The same a while later, with other distances."""
    kind, *rest = event
    values = [[part * unit for part in one] if isinstance(one, list) else one for one in rest]
    return kind, *(one * unit if isinstance(one, int) else one for one in values)


@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(events, max_size=25),
    st.sampled_from([1, 7, 1_000, 1_000_000]),
    st.sampled_from([0, 5, 3_000, 10_000_000]),
    st.booleans(),
    st.integers(0, 25),
)
@example([("arrive", "a", [50]), ("open", "b"), ("arrive", "b", [45])], 1, 0, True, 0)
@example([("arrive", "a", [9]), ("promise", "b", 8), ("arrive", "a", [4]), ("arrive", "b", [5])], 1, 5, True, 0)
def test_each_disorder_is_late_as_often_as_a_stream_that_has_it(played, unit, disorder_us, by_tuples, saved_at):
    source = made(disorder_us, by_tuples=by_tuples)
    streams = {one: Played(one, by_tuples) for one in sorted({*DISORDERS, disorder_us})}
    for number, event in enumerate(played):
        event = scaled(event, unit)
        feed_source(source, event)
        for stream in streams.values():
            stream.play(event)
        if number == saved_at:
            source = restored(source)
    assert late_by_disorder(source) == {one: stream.late for one, stream in streams.items()}
    assert late_by_disorder(source)[disorder_us] == source.late


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.one_of(events, st.tuples(st.just("group"), names, st.integers(0, 1), times)),
        max_size=25,
    ),
    st.sampled_from([0, 5, 20]),
    st.sampled_from([None, 40]),
)
def test_the_present_disorder_has_the_late_tuples_of_the_stream(played, disorder_us, ahead_us):
    """Also with promises about groups, and with tuples too far in the future, which are none of the ledger's."""
    source = made(disorder_us, key=(1,), ahead_us=ahead_us)
    for event in played:
        feed_source(source, event)
    found = late_by_disorder(source)
    assert found[disorder_us] == source.late
    assert list(found.values()) == sorted(found.values(), reverse=True)
    lateness = source.lateness()
    assert lateness is not None
    assert lateness.tuples == sum(len(event[2]) for event in played if event[0] == "arrive") - source.far


def test_many_feeds_are_looked_at_in_part_and_the_count_is_then_rather_too_high(monkeypatch):
    monkeypatch.setattr(feeds_module, "_LOOKS", 2)
    source, stream = made(0), Played(10, by_tuples=True)
    played: list[tuple[Any, ...]] = [("arrive", name, [50 - at]) for at, name in enumerate("abcdef")]
    played += [("promise", name, 40 - 4 * at) for at, name in enumerate("fedcba")]
    played += [("arrive", "a", [time]) for time in (44, 31, 42, 22, 25)]
    for event in played:
        feed_source(source, event)
        stream.play(event)
    assert stream.late <= late_by_disorder(source)[10] <= 5


def test_a_changed_disorder_opens_the_ledger_again():
    source = made(0)
    for event in [("arrive", "a", [30]), ("arrive", "a", [10]), ("close", "a")]:
        feed_source(source, event)
    source.clocking = Clocking("external", 15)
    source.reopen_ledger(99)
    lateness = source.lateness()
    assert lateness is not None
    assert (lateness.since_us, lateness.tuples, late_by_disorder(source)[15]) == (99, 0, 0)
    # The mark that the stream was left with holds: it was 30 - disorder.
    feed_source(source, ("arrive", "b", [25]))
    found = late_by_disorder(source)
    assert (found[0], found[1], found[10], found[15], found[100]) == (1, 1, 0, 0, 0)


def test_a_state_without_a_ledger_starts_one():
    source = made(0)
    feed_source(source, ("arrive", "a", [30]))
    again = made(0)
    again.counts.restore(source.counts.save())
    again.restore(source.save())
    again.restore_ledger(None, 7)
    feed_source(again, ("arrive", "a", [20]))
    lateness = again.lateness()
    assert lateness is not None
    assert (lateness.since_us, lateness.tuples, late_by_disorder(again)[0]) == (7, 1, 1)


def test_streams_that_are_stamped_have_no_ledger():
    source = Source("s.source", "s", Clocking("internal"), Buffer(SCHEMA, ordered=True))
    source.arrive("a", Batch.from_rows(SCHEMA, [(1, 1)], [0]), 5, 5)
    assert source.lateness() is None
    assert source.save_ledger() is None


def test_tuples_in_order_touch_nothing():
    source = made(0)
    assert source.ledger is not None
    source.ledger.note = None  # type: ignore[method-assign,assignment]
    for start in range(5):
        times = np.arange(start * 10, start * 10 + 9)
        source.arrive("a", Batch.from_rows(SCHEMA, [(int(one), 0) for one in times], times.tolist()), 0, 0)
    assert source.lateness() == (source.ledger.since_us, 45, {**dict.fromkeys(source.ledger.disorders, 0), 0: 45})
