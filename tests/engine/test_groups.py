"""Promises about groups against their definition, computed tuple by tuple: which tuples are late, and when rows leave.

A group's window leaves in the step after which no tuple that could still arrive on time belongs to it: not before, and
not after.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import (
    Answered,
    Arrived,
    AskTimestamp,
    Event,
    FeedClosed,
    FeedOpened,
    InsertOperator,
    Late,
    Punctuated,
    RemoveOperator,
)
from millrace.engine.plan import StreamDefinition
from millrace.operators.aggregate import panes
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.frame.windows import SessionWindow, TimeWindow
from millrace.operators.project.spec import MapSpec
from millrace.operators.source import groups
from millrace.operators.union.spec import UnionSpec
from millrace.protocol import Schema, Type
from millrace.values.batch import Batch
from millrace.values.expression import Call, Column, Constant
from tests.depth import DEEP, examples
from tests.engine.graphs import Bench, plan, rows

TUPLES = Schema.of(ts="timestamp", k="bigint", x="text", v="bigint")
TS, K, X, V = (Column(field.type, True, at, field.name) for at, field in enumerate(TUPLES))
# A projection in between puts the columns in another order.
MOVED = MapSpec((("v", V), ("x", X), ("when", TS), ("k", K)))
K2, X2, V2 = Column(Type.BIGINT, True, 3, "k"), Column(Type.TEXT, True, 1, "x"), Column(Type.BIGINT, True, 0, "v")
X1, WHEN1 = Column(Type.TEXT, True, 0, "x"), Column(Type.TIMESTAMP, True, 1, "when")
K1, V1 = Column(Type.BIGINT, True, 2, "k"), Column(Type.BIGINT, True, 3, "v")
WHEN2 = Column(Type.TIMESTAMP, True, 2, "when")
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

    def group_of(self, row: tuple[Any, ...]) -> Group:
        return tuple(row[at] for at in self.key)

    def mark_of(self, row: tuple[Any, ...]) -> int:
        return max(self.mark, self.group_marks.get(self.group_of(row), self.mark))

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
        return results([self], window)


def results(models: Sequence[Model], window: Window, *, ordered: bool = False) -> Counter[Result]:
    """The rows of all groups' windows to which no tuple of any of the streams can come any more. An `ordered` union
    holds the tuples above the least mark of the streams back, and with a tuple the later windows of its group."""
    groups: dict[tuple[Any, Any], list[tuple[int, Any, Any, int]]] = {}
    for row in (row for model in models for row in model.on_time):
        groups.setdefault((row[1], row[2]), []).append(row)
    found: Counter[Result] = Counter()
    horizon = min(model.mark for model in models)
    queued = [
        (row[0], model.group_of(row)) for model in models for row in model.on_time if ordered and row[0] > horizon
    ]
    for (k, x), members in groups.items():
        marks = [model.mark_of(members[0]) for model in models]
        mark = min(marks + [ts for ts, group in queued if group == models[0].group_of(members[0])])
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


def united(window: Window, *, ordered: bool, view: bool) -> list[Any]:
    """A union of two streams, and the groups of its rows; as one query, or the groups as a query over the union."""
    (aggregate,) = [node.spec for node in query(window).nodes if node.name == "q.A"]
    union = [("M", MOVED, ["s.source"]), ("N", MOVED, ["t.source"]), ("U", UnionSpec(ordered), ["M", "N"])]
    if not view:
        return [plan("q", *union, ("A", aggregate, ["U"]), schema=Schema.of(v="bigint"))]
    renamed = ("R", MapSpec((("x", X2), ("when", WHEN2), ("k", K2), ("v", V2))), ["U"])
    names = ("V", MapSpec((("v", V1), ("x", X1), ("when", WHEN1), ("k", K1))), ["u.R"])
    first = plan("u", *union, renamed, schema=Schema.of(x="text", when="timestamp", k="bigint", v="bigint"))
    return [first, plan("q", names, ("A", aggregate, ["V"]), schema=Schema.of(v="bigint"))]


def happening(rng: random.Random) -> Event:
    """One of two streams hears tuples of two groups, or a promise; most promises are about a group."""
    name, feed = rng.choice("st"), "f" if rng.random() < 0.97 else "g"
    what = rng.choices(["tuples", "group", "mark", "close"], [5, 5, 1, 0.2])[0]
    if what == "tuples":
        made = [(rng.randint(0, 60), rng.choice([1, 2]), rng.choice("ab"), 1) for _ in range(rng.randint(1, 4))]
        return Arrived(name, feed, Batch.from_rows(TUPLES, made, [row[0] for row in made]))
    if what == "close":
        return FeedClosed(name, feed)
    return Punctuated(name, feed, rng.randint(0, 70), (rng.choice([1, 2]),) if what == "group" else ())


def play_union(seed: int) -> int:
    """Each side must have promised: a window of a group is released neither too early nor too late. Returns how many
    rows a promise about their group has released."""
    rng = random.Random(seed)
    disorder = rng.choice([30, 60, 60])
    size = rng.randint(1, 25)
    kinds: list[Window] = [TimeWindow(size, rng.randint(1, 30)), TimeWindow(size, size), SessionWindow(size)]
    window = rng.choice(kinds)
    ordered, view = rng.random() < 0.5, rng.random() < 0.5
    definition = stream(("k",), disorder)
    bench = Bench(definition, replace(definition, name="t"))
    for made in united(window, ordered=ordered, view=view):
        bench.query(made)
    models = {name: Model((1,), disorder) for name in "st"}
    before: Counter[Result] = Counter()
    limits = rng.choice([{}, {"executions": 1}, {"budget": 2}])
    early = 0
    for _ in range(rng.randint(4, 14)):
        heard = [happening(rng) for _ in range(rng.randint(1, 3))]
        for event in heard:
            models[event.stream].hear(event)  # type: ignore[union-attr]
        now = results(list(models.values()), window, ordered=ordered)
        found = Counter(rows(bench.run(*heard, **limits), "q"))
        assert found == now - before, f"seed {seed}, {window}, ordered {ordered}, view {view}"
        early += sum(row[-1] > min(model.mark for model in models.values()) for row in found)
        before |= now
        if rng.random() < 0.2:
            saved = bench.engine.save()
            bench.engine = Engine.restore(saved, trace=True)
            assert bench.engine.save() == saved
    return early


def test_groups_pass_unions_and_views_at_the_exact_time() -> None:
    first = random.randrange(10**9) if DEEP else 0
    assert sum(play_union(first + seed) for seed in range(examples(600))) > 100


RETRY_US = 10


def oldest_blocked(model: Model, window: TimeWindow) -> tuple[int, Group] | None:
    """The end of the earliest window that is still to be emitted for some group, and of such groups the first to
    arrive."""
    open_windows = []
    for order, row in enumerate(model.on_time):
        end = row[0] - (row[0] - window.offset_us) % window.size_us + window.size_us
        if end > model.mark_of(row):
            open_windows.append((end, order, model.group_of(row)))
    return (min(open_windows)[0], min(open_windows)[2]) if open_windows else None


def answers(rng: random.Random, ask: AskTimestamp) -> Answered | None:
    """For the group alone, mostly; sometimes for the whole feed, too little, too late, or never."""
    about = ask.group if rng.random() < 0.8 else ()
    value = ask.need_us + rng.choice([0, 0, 0, 3, 12, -4])
    return None if rng.random() < 0.1 else Answered("s", ask.feed, ask.request, value, about)


def play_requests(seed: int) -> int:
    """Requests name the group that has been blocked for the longest, of the feeds that hold it back, and nothing else;
    when they are answered, everything leaves. Returns how many there were."""
    rng = random.Random(seed)
    window = TimeWindow(size := rng.randint(3, 20), size, rng.randint(0, 5))
    key = rng.choice([("k",), ("x", "k")])
    bench = Bench(replace(stream(key, 1_000), ets_retry_us=RETRY_US))
    bench.query(query(window))
    model = Model(tuple(TUPLES.names.index(name) for name in key), 1_000)
    feeds = "f" if rng.random() < 0.5 else "fg"
    bench.run(*(FeedOpened("s", feed, can_answer=True) for feed in feeds))
    model.feeds = dict.fromkeys(feeds, model.mark)
    asked: dict[tuple[str, Group], tuple[int, int]] = {}
    found: Counter[Result] = Counter()
    waiting: list[AskTimestamp] = []
    now = count = 0
    for turn in range(30 + 400):
        now += rng.randint(1, 8)
        heard: list[Event] = []
        for ask in waiting:
            if turn >= 30:
                heard.append(Answered("s", ask.feed, ask.request, ask.need_us, ask.group))
            elif (answer := answers(rng, ask)) is not None:
                heard.append(answer)
        if turn < 30 and rng.random() < 0.6:
            made = [(max(now - rng.randint(0, 30), 0), rng.choice([1, 2, None]), rng.choice("ab"), 1) for _ in "12"]
            heard.append(Arrived("s", rng.choice(feeds), Batch.from_rows(TUPLES, made, [row[0] for row in made])))
        for event in heard:
            if isinstance(event, Answered):
                event = Punctuated("s", event.feed, event.value_us, event.group)
            model.hear(event)
        effects = bench.run(*heard, at=now)
        found += Counter(rows(effects, "q"))
        assert found == model.results(window), f"seed {seed}"
        waiting = [order for order in effects.orders if isinstance(order, AskTimestamp)]
        for ask in waiting:
            assert (ask.need_us, ask.group) == oldest_blocked(model, window), f"seed {seed}"
            assert model.feeds[ask.feed] < ask.need_us, f"seed {seed}"
            assert model.promises.get((ask.feed, ask.group), model.mark) < ask.need_us, f"seed {seed}"
            need, at = asked.get((ask.feed, ask.group), (ask.need_us - 1, 0))
            assert ask.need_us > need or now >= at + RETRY_US, f"seed {seed}: a request was repeated too soon"
            asked[ask.feed, ask.group] = ask.need_us, now
        count += len(waiting)
        if rng.random() < 0.1:
            bench.engine = Engine.restore(bench.engine.save(), trace=True)
        if turn >= 30 and oldest_blocked(model, window) is None:
            return count
    raise AssertionError(f"seed {seed}: {oldest_blocked(model, window)} is still blocked")


def test_requests_name_the_oldest_blocking_group() -> None:
    first = random.randrange(10**9) if DEEP else 0
    assert sum(play_requests(first + seed) for seed in range(examples(300))) > 1_000


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


def test_why_names_the_group_that_has_waited_the_longest() -> None:
    bench = Bench(stream(("k",), 1_000))
    bench.query(query(TimeWindow(10, 10)))
    bench.run(FeedOpened("s", "f", can_answer=True), give((2, 8, "a", 1), (1, 7, "a", 1), (12, 9, "a", 1)), at=20)
    found = bench.engine.why("q")
    assert (found.reason, found.group) == ("asked", {"k": 8})
    assert found.text.endswith("has not answered the last request for its time. The group that has waited the "
                                  "longest is k = 8.")  # fmt: skip
    bench.run(Answered("s", "f", 1, 10, (8,)), at=21)
    assert bench.engine.why("q").group == {"k": 7}
    bench.run(Answered("s", "f", 2, 10), at=22)
    assert bench.engine.why("q").group is None


def test_a_need_of_all_rows_is_asked_for_before_one_of_a_group() -> None:
    """An aggregate by another column waits for the same window: one answer about all rows serves both."""
    bench = Bench(stream(("k",), 1_000))
    bench.query(query(TimeWindow(10, 10)))
    total = AggregateSpec(TimeWindow(10, 10), (), CALLS[:1], ())
    bench.query(plan("total", ("A", total, ["s.source"]), schema=Schema.of(n="bigint")))
    effects = bench.run(FeedOpened("s", "f", can_answer=True), give((1, 7, "a", 1), (12, 9, "a", 1)), at=20)
    assert [(one.need_us, one.group) for one in effects.orders if isinstance(one, AskTimestamp)] == [(10, ())]


def test_promises_pass_a_union_before_which_an_operator_was_inserted() -> None:
    bench = Bench(stream(("k",), 30), replace(stream(("k",), 30), name="t"))
    for made in united(TimeWindow(10, 10), ordered=False, view=False):
        bench.query(made)
    bench.do(InsertOperator("q.U", SelectSpec(Constant(Type.BOOLEAN, False, True))))
    effects = bench.run(give((1, 7, "a", 1), (2, 8, "a", 1)), *(Punctuated(name, "f", 10, (7,)) for name in "st"))
    assert [row[0] for row in rows(effects, "q")] == [7]


def test_promises_pass_the_queue_that_a_removed_operator_leaves() -> None:
    """Tuples that waited in front of the operator are queued; a promise does not overtake them."""
    bench = Bench(stream(("k",), 30), replace(stream(("k",), 30), name="t"))
    for made in united(TimeWindow(10, 10), ordered=False, view=False):
        bench.query(made)
    bench.do(InsertOperator("q.U", SelectSpec(Constant(Type.BOOLEAN, False, True))))
    bench.step(give((1, 7, "a", 1), (2, 8, "a", 1)), Punctuated("s", "f", 0), executions=2)
    bench.do(RemoveOperator("q.filter1"))
    found = [bench.step(*(Punctuated(name, "f", 10, (7,)) for name in "st"), executions=1)]
    found += [bench.step(executions=1) for _ in range(20)]
    assert [row[:3] for effects in found for row in rows(effects, "q")] == [(7, "a", 1)]


def test_a_group_that_is_promised_again_is_saved_as_it_would_be_restored() -> None:
    key = [TUPLES.fields[1]]
    marks = groups.GroupMarks(key)
    for side, group, value_us in ((0, 7, 10), (0, 8, 50), (0, 9, 50)):
        marks.promise(side, (group,), value_us)
    marks.forget(20)
    marks.promise(1, (7,), 30)
    marks.forget(10)
    restored = groups.GroupMarks(key)
    restored.restore(marks.save())
    assert restored.save() == marks.save()
    assert [group for group, _, _ in marks] == [(8,), (9,), (7,)]
    assert [by for _, _, by in marks] == [{0: 50}, {0: 50}, {1: 30}]
