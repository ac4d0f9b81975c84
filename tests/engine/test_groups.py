"""Promises about groups against their definition, computed tuple by tuple: which tuples are late, and when rows leave.

A group's window leaves in the step after which no tuple that could still arrive on time belongs to it: not before, and
not after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import Arrived, Event, FeedClosed, Late, Punctuated
from millrace.engine.plan import StreamDefinition
from millrace.operators.aggregate import panes
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.frame.windows import SessionWindow, TimeWindow
from millrace.operators.project.spec import MapSpec
from millrace.operators.source import groups
from millrace.protocol import Schema, Type
from millrace.values.batch import Batch
from millrace.values.expression import Call, Column, Constant
from tests.depth import examples
from tests.engine.graphs import Bench, plan, rows

TUPLES = Schema.of(ts="timestamp", k="bigint", x="text", v="bigint")
TS, K, X, V = (Column(field.type, True, at, field.name) for at, field in enumerate(TUPLES))
# A projection in between puts the columns in another order.
MOVED = MapSpec((("v", V), ("x", X), ("when", TS), ("k", K)))
K2, X2, V2 = Column(Type.BIGINT, True, 3, "k"), Column(Type.TEXT, True, 1, "x"), Column(Type.BIGINT, True, 0, "v")
CALLS = (
    ("n", AggregateCall(Type.BIGINT, False, "count()")),
    ("v", AggregateCall(Type.BIGINT, True, "sum(bigint)", (V2,))),
)
ANY = Call(Type.BOOLEAN, True, ">=(bigint, bigint)", (V, Constant(Type.BIGINT, False, -(2**40))))

Group = tuple[Any, ...]
Window = TimeWindow | SessionWindow
Result = tuple[int | None, str | None, int, int, int, int]


def stream(key: Iterable[str], disorder: int) -> StreamDefinition:
    return StreamDefinition("s", TUPLES, "external", "ts", disorder_us=disorder, punctuation_key=tuple(key))


def query(window: Window, *, early: bool = True, flush: str = "none") -> Any:
    spec = AggregateSpec(
        window,
        (("k", K2), ("x", X2)),
        CALLS,
        (("window_start", "start"), ("window_end", "end")),
        early=early,
        flush=flush,  # type: ignore[arg-type]
        max_delay_us=30,
    )
    nodes = (("F", SelectSpec(ANY), ["s.source"]), ("M", MOVED, ["F"]), ("A", spec, ["M"]))
    return plan("q", *nodes, schema=Schema.of(v="bigint"))


class Model:
    """The definition: marks of feeds, promises for groups, and the tuples on time."""

    def __init__(self, key: tuple[int, ...], disorder: int) -> None:
        self.key, self.disorder = key, disorder
        self.mark = -(10**9)
        self.feeds: dict[str, int] = {}
        self.promises: dict[tuple[str, Group], int] = {}
        self.group_marks: dict[Group, int] = {}
        self.on_time: list[tuple[int, Any, Any, int]] = []
        self.late: list[tuple[int, Any, Any, int]] = []

    def mark_of(self, row: tuple[Any, ...]) -> int:
        return max(self.mark, self.group_marks.get(tuple(row[at] for at in self.key), self.mark))

    def settle(self) -> None:
        if not self.feeds:
            return
        self.mark = max(self.mark, min(self.feeds.values()))
        for group in {group for _, group in self.promises}:
            least = min(max(mark, self.promises.get((feed, group), mark)) for feed, mark in self.feeds.items())
            self.group_marks[group] = max(self.group_marks.get(group, least), least)

    def hear(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self.feeds.setdefault(event.feed, self.mark)
            for row in event.batch.rows():
                (self.on_time if row[0] >= self.mark_of(row) else self.late).append(row)
                self.feeds[event.feed] = max(self.feeds[event.feed], row[0] - self.disorder)
                self.settle()
        elif isinstance(event, Punctuated):
            mark = self.feeds.setdefault(event.feed, self.mark)
            if event.group:
                place = event.feed, event.group
                self.promises[place] = max(event.value_us, self.promises.get(place, event.value_us))
            else:
                self.feeds[event.feed] = max(mark, event.value_us)
        elif isinstance(event, FeedClosed):
            self.feeds.pop(event.feed, None)
            self.promises = {place: us for place, us in self.promises.items() if place[0] != event.feed}
        self.settle()

    def results(self, window: Window) -> Counter[Result]:
        """The rows of all groups' windows to which no tuple can come any more."""
        groups: dict[tuple[Any, Any], list[tuple[int, Any, Any, int]]] = {}
        for row in self.on_time:
            groups.setdefault((row[1], row[2]), []).append(row)
        found: Counter[Result] = Counter()
        for (k, x), members in groups.items():
            mark = self.mark_of(members[0])
            for start, end, inside in windows(window, members):
                if end <= mark:
                    found[k, x, len(inside), sum(row[3] for row in inside), start, end] += 1
        return found


def windows(window: Window, members: list[Any]) -> Iterable[tuple[int, int, list[Any]]]:
    members = sorted(members, key=lambda row: row[0])
    if isinstance(window, SessionWindow):
        session: list[Any] = []
        for row in members:
            if session and row[0] - session[-1][0] >= window.gap_us:
                yield session[0][0], session[-1][0] + window.gap_us, session
                session = []
            session.append(row)
        yield session[0][0], session[-1][0] + window.gap_us, session
        return
    first, last = members[0][0], members[-1][0]
    for start in range(first - window.size_us - window.slide_us, last + 1):
        if (start - window.offset_us) % window.slide_us == 0:
            inside = [row for row in members if start <= row[0] < start + window.size_us]
            if inside:
                yield start, start + window.size_us, inside


KS = st.sampled_from([1, 2, None])
XS = st.sampled_from(["a", "b", None])
FEEDS = st.sampled_from(["f", "g"])
TIMES = st.integers(-10, 70)
TUPLE = st.tuples(TIMES, KS, XS, st.integers(0, 9))


@st.composite
def events(draw: st.DrawFn, key: tuple[str, ...]) -> Event:
    feed = draw(FEEDS)
    what = draw(st.sampled_from(["tuples", "tuples", "group", "group", "mark", "close"]))
    if what == "tuples":
        made = draw(st.lists(TUPLE, min_size=1, max_size=5))
        return Arrived("s", feed, Batch.from_rows(TUPLES, made, [row[0] for row in made]))
    if what == "close":
        return FeedClosed("s", feed)
    if what == "mark":
        return Punctuated("s", feed, draw(TIMES))
    return Punctuated("s", feed, draw(TIMES), tuple(draw({"k": KS, "x": XS}[name]) for name in key))


WINDOWS = st.one_of(
    st.builds(TimeWindow, st.integers(1, 25), st.integers(1, 30), st.integers(-7, 7)),
    st.builds(lambda size: TimeWindow(size, size), st.integers(1, 20)),
    st.builds(SessionWindow, st.integers(1, 20)),
)


@pytest.fixture(params=[2, panes.MANY])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All windows are merged from blocks of panes, or only windows of many panes."""
    monkeypatch.setattr(panes, "MANY", request.param)


@pytest.mark.usefixtures("blocks")
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_groups_leave_as_soon_as_they_are_complete(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from([("k",), ("x",), ("x", "k")]))
    disorder = data.draw(st.sampled_from([0, 5, 30]))
    window = data.draw(WINDOWS)
    bench = Bench(stream(key, disorder))
    bench.query(query(window))
    model = Model(tuple(TUPLES.names.index(name) for name in key), disorder)
    before: Counter[Result] = Counter()
    limits = data.draw(st.sampled_from([{}, {"executions": 1}, {"budget": 2}]))
    for step in data.draw(st.lists(st.lists(events(key), min_size=1, max_size=3), max_size=12)):
        late = len(model.late)
        for event in step:
            model.hear(event)
        effects = bench.run(*step, **limits)
        told = [row for one in effects.orders if isinstance(one, Late) for row in one.batch.rows()]
        assert told == model.late[late:]
        now = model.results(window)
        assert Counter(rows(effects, "q")) == now - before
        before |= now
        if data.draw(st.integers(0, 3)) == 0:
            saved = bench.engine.save()
            bench.engine = Engine.restore(saved, trace=True)
            assert bench.engine.save() == saved


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_rows_are_those_of_the_tuples_on_time_however_they_are_flushed(data: st.DataObject) -> None:
    """The same rows as without closing anything early, which is what a slow flush and its pace may not change."""
    window = data.draw(WINDOWS)
    flush = data.draw(st.sampled_from(["none", "slow", "lazy"]))
    found = []
    log = data.draw(st.lists(events(("k",)), max_size=20))
    for early in (True, False):
        bench = Bench(stream(("k",), 5))
        bench.query(query(window, early=early, flush=flush if early else "none"))
        gone = [row for event in log for row in rows(bench.run(event, budget=3), "q")]
        gone += rows(bench.run(*(FeedClosed("s", feed, ended=True) for feed in "fg")), "q")
        found.append(Counter(gone))
    assert found[0] == found[1]


def give(*made: tuple[Any, ...], feed: str = "f") -> Arrived:
    return Arrived("s", feed, Batch.from_rows(TUPLES, made, [row[0] for row in made]))


def test_promises_are_forgotten_as_the_mark_passes_them_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOST_GROUPS", 3)
    bench = Bench(stream(("k",), 0))
    bench.query(query(TimeWindow(10, 10)))
    source = bench.engine.source("s")
    bench.run(*(Punctuated("s", "f", 50 + k, (k,)) for k in range(5)))
    assert (source.groups.ahead, source.groups.ignored) == (3, 2)
    assert rows(bench.run(give((1, 4, "a", 1), (2, 0, "a", 1))), "q") == []
    assert source.late == 1
    bench.run(give((51, 9, "a", 1)))
    assert source.groups.ahead == 1
    bench.run(Punctuated("s", "f", 60))
    assert not source.groups
    assert source.groups.marks.size == 0
    (operator,) = [one for one in bench.engine.graph.operators.values() if one.name == "q.A"]
    assert not any(operator.windows.marks.values())  # type: ignore[attr-defined]


def test_a_promise_that_goes_back_has_no_effect() -> None:
    bench = Bench(stream(("k",), 30))
    bench.query(query(TimeWindow(10, 10)))
    bench.run(give((1, 7, "a", 1), (1, 8, "a", 1)), Punctuated("s", "f", 20, (7,)), Punctuated("s", "f", 12, (7,)))
    effects = bench.run(give((15, 7, "a", 2)), Punctuated("s", "f", 0, (8,)), give((5, 8, "a", 3)))
    assert bench.engine.source("s").late == 1
    assert rows(effects, "q") == []
