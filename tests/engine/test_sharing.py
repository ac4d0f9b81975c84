"""Queries that share operators emit the same rows as alone, whatever changes are made to any of them.

The oracle is an engine that shares nothing, with the same commands and the same tuples.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Change,
    DropQuery,
    FeedOpened,
    InsertOperator,
    PauseQuery,
    RemoveOperator,
    RenameQuery,
    ReplaceQuery,
    ResumeQuery,
    SetBreak,
    SetQueue,
    SetStrategy,
    UnshareQuery,
    WatchProgress,
)
from millrace.engine.graph.rewire import sharing
from millrace.engine.plan import StreamDefinition
from millrace.operators.frame.windows import TimeWindow
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import UnshareReply
from millrace.protocol.admin.queries import SharedView
from tests.depth import examples
from tests.engine.graphs import TV, Bench, compare, external, give_tv, identity, plan, refusal, rows, select, sort
from tests.engine.test_windows import counted

COUNT = counted(TimeWindow(10, 10))
ABOVE = select(compare(">", 1))
NODES = {
    "select": [("S1", ABOVE, ["s.source"])],
    "deeper": [("S1", ABOVE, ["s.source"]), ("S2", select(compare("<", 40)), ["S1"])],
    "mapped": [("S1", ABOVE, ["s.source"]), ("M", identity(TV), ["S1"])],
    "counted": [("S1", ABOVE, ["s.source"]), ("A", COUNT, ["S1"])],
    "having": [("S1", ABOVE, ["s.source"]), ("A", COUNT, ["S1"]), ("H", select(compare(">", 1)), ["A"])],
    "sorted": [("S1", ABOVE, ["s.source"]), ("O", sort(), ["S1"])],
    "plain": [("M", identity(TV), ["s.source"])],
}


def query(name, kind):
    made = plan(name, *NODES[kind], schema=TV)
    return replace(made, schema=COUNT.schema([])) if kind in ("counted", "having") else made


def bench(share, **options):
    made = Bench(external("s", disorder_us=5, **options))
    made.engine.share = share
    return made


def operators(made, *kinds):
    return [one.name for one in made.engine.operators() if one.kind in kinds]


def restored(made):
    saved = made.engine.save()
    made.engine = Engine.restore(saved, trace=True)
    assert made.engine.save() == saved


# -- what is shared ----------------------------------------------------------------------------------------------------


def test_a_prefix_is_one_operator_with_a_fork():
    made = bench(True)
    for name, kind in (("p", "counted"), ("q", "sorted"), ("r", "plain")):
        made.query(query(name, kind))
    assert operators(made, "select") == ["p.S1"]
    (shared,) = (one for one in made.engine.operators() if one.name == "p.S1")
    assert shared.queries == ["p", "q"]
    assert {one.name: one.shared for one in made.engine.queries()} == {
        "p": [SharedView(node="p.S1", operator="p.S1", with_=["q"], apart=None)],
        "q": [SharedView(node="q.S1", operator="p.S1", with_=["p"], apart=None)],
        "r": [],
    }
    restored(made)
    assert operators(made, "select") == ["p.S1"]


def test_the_same_query_twice_is_one_and_two_sinks_when_nothing_has_gone_by():
    made = bench(True)
    made.query(query("p", "having"))
    made.query(query("q", "having"))
    assert operators(made, "select", "aggregate") == ["p.S1", "p.A", "p.H"]
    restored(made)
    effects = made.run(give_tv("s", 2, 3, 30))
    assert rows(effects, "p") == rows(effects, "q") == [(2, 0)]


def test_who_comes_later_shares_what_remembers_nothing_and_reads_from_its_own_beginning():
    made = bench(True)
    made.query(query("p", "counted"))
    made.step(give_tv("s", 2, 3), executions=0)
    made.query(query("q", "counted"))
    made.query(query("r", "counted"))
    assert operators(made, "select", "aggregate") == ["p.S1", "p.A", "q.A", "r.A"]
    (told,) = (one.shared for one in made.engine.queries() if one.name == "q")
    assert told[0].with_ == ["p", "r"]
    assert (told[1].apart or "").startswith("equal to p.A, but its state contains tuples")
    effects = made.run(give_tv("s", 4, 12, 40))
    assert rows(effects, "p") == [(3, 0), (1, 10)]
    assert rows(effects, "q") == rows(effects, "r") == [(1, 10)], "the window at 0 began before them"


@pytest.mark.parametrize("kind", ["select", "deeper", "mapped"])
def test_what_waits_for_a_shared_operator_is_not_for_who_comes_later(kind):
    made = bench(True)
    made.query(query("p", kind))
    made.step(give_tv("s", 20, 30), executions=0)
    made.query(query("q", kind))
    restored(made)
    effects = made.run(give_tv("s", 31, 29, 35))
    assert operators(made, "select") == ["p.S1", "p.S2"][: 2 if kind == "deeper" else 1]
    assert rows(effects, "p") == [(20, 20), (30, 30), (31, 31), (29, 29), (35, 35)]
    assert rows(effects, "q") == [(31, 31), (35, 35)]


def test_queries_that_come_in_one_change_share_all_they_have_in_common():
    made = bench(True)
    made.run(give_tv("s", 2, 3))
    made.do(Change((AddQuery(query("p", "counted")), AddQuery(query("q", "counted")))))
    made.query(query("r", "counted"))
    assert operators(made, "aggregate") == ["p.A", "r.A"]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (lambda one: replace(one, options=replace(one.options, max_state=7)), "its query has other options"),
        (lambda one: replace(one, nodes=(replace(one.nodes[0], spec=select(compare(">", 9))),)), None),
    ],
)
def test_what_is_not_equal_is_not_shared(other, why):
    made = bench(True)
    made.query(query("p", "select"))
    made.query(other(query("q", "select")))
    assert operators(made, "select") == ["p.S1", "q.S1"]
    (told,) = (one.shared for one in made.engine.queries() if one.name == "q")
    assert [one.apart for one in told] == ([] if why is None else [f"equal to p.S1, but {why}"])


def test_tuples_without_a_time_cannot_be_told_apart():
    made = Bench(StreamDefinition("s", TV, "latent"))
    made.engine.share = True
    made.query(query("p", "select"))
    made.query(query("q", "select"))
    made.step(give_tv("s", 2, 3), executions=0)
    made.query(query("r", "select"))
    assert operators(made, "select") == ["p.S1", "r.S1"]
    effects = made.run(give_tv("s", 4))
    assert rows(effects, "p") == rows(effects, "q") == [(2, 2), (3, 3), (4, 4)]
    assert rows(effects, "r") == [(4, 4)]


# -- taking apart ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["p", "q"])
@pytest.mark.parametrize(
    "command",
    [
        lambda name: PauseQuery(name),
        lambda name: DropQuery(name),
        lambda name: SetBreak(f"{name}.S1", on=True),
        lambda name: SetStrategy("s", "bfs(1)", f"{name}.S1"),
        lambda name: SetQueue(f"{name}.S1", "append"),
        lambda name: ReplaceQuery(query(name, "select")),
    ],
)
def test_what_concerns_one_query_gets_it_operators_of_its_own(name, command):
    made = bench(True)
    for one in ("p", "q", "r"):
        made.query(query(one, "having"))
    made.step(give_tv("s", 2, 3, 14), executions=3)
    made.do(command(name))
    left = [one for one in ("p", "q", "r") if one != name]
    assert [one.queries for one in made.engine.operators() if one.name == f"{left[0]}.A"] == [left]
    restored(made)
    effects = made.run(give_tv("s", 15, 40))
    for one in left:
        assert rows(effects, one) == [(2, 0), (2, 10)]


def test_what_is_refused_leaves_all_together():
    made = bench(True)
    made.query(query("p", "having"))
    made.query(query("q", "having"))
    made.query(plan("over", ("M", identity(COUNT.schema([])), ["q.H"]), schema=COUNT.schema([])))
    before = made.engine.save()
    for command in (
        ReplaceQuery(query("q", "plain")),
        SetBreak("q.S1", on=False),
        SetStrategy("nowhere", "bfs", "q.S1"),
        SetStrategy("s", "zigzag", "q.S1"),
        DropQuery("q"),
        SetQueue("q.S1", "fifo", 3),
    ):
        assert refusal(made, command)
        assert made.engine.save() == before


def test_a_failure_stops_each_of_them_and_they_begin_again_apart(monkeypatch):
    made = bench(True)
    made.may_fail = True
    made.query(query("p", "select"))
    made.query(query("q", "select"))
    made.query(query("r", "plain"))
    broken = made.engine.graph.operators["p.S1"]
    monkeypatch.setattr(type(broken), "compute", lambda self, batch: 1 // 0)
    effects = made.run(give_tv("s", 2, 3))
    monkeypatch.undo()
    states = {one.name: one.state for one in made.engine.queries()}
    assert states == {"p": "failed", "q": "failed", "r": "running"}
    assert rows(effects, "r") == [(2, 2), (3, 3)]
    made.do(ResumeQuery("q"))
    restored(made)
    effects = made.run(give_tv("s", 9))
    assert (rows(effects, "p"), rows(effects, "q")) == ([], [(9, 9)])


def test_a_plan_shows_what_is_shared_and_what_is_kept():
    made = bench(True)
    made.query(query("p", "counted"))
    made.query(query("q", "counted"))
    made.run(give_tv("s", 2, 3))
    before = made.engine.save()
    shown = made.engine.plan([AddQuery(query("r", "counted")), ReplaceQuery(query("q", "having"))])
    assert made.engine.save() == before
    told = {one.name: one for one in shown.queries}
    assert [(one.node, one.with_) for one in told["r"].shared] == [("r.S1", ["p"]), ("r.A", [])]
    (kept,) = (one for one in told["q"].operators if one.operator == "q.A")
    assert (kept.state, kept.change) == ("kept", "appears")


def test_a_shared_query_is_renamed():
    made = bench(True)
    made.query(query("p", "having"))
    made.query(query("q", "having"))
    made.do(RenameQuery("p", "z"))
    assert operators(made, "aggregate") == ["z.A"]
    made.do(RenameQuery("q", "y"))
    made.do(DropQuery("z"))
    restored(made)
    assert operators(made, "aggregate") == ["y.A"]
    assert rows(made.run(give_tv("s", 2, 3, 30)), "y") == [(2, 0)]


def test_a_fork_follows_the_name_of_its_operator():
    made = bench(True)
    for name in ("p", "q"):
        made.query(query(name, "having"))
    for name, bound in (("r", 2), ("t", 3)):
        made.query(plan(name, ("R", select(compare(">", bound)), ["q.H"]), schema=COUNT.schema([])))
    made.do(SetStrategy("s", "bfs(3)", "p.fork1"))
    made.do(DropQuery("p"))
    restored(made)
    assert made.engine.components()[0].strategies["q.fork1"] == "bfs(3)"
    made.do(RenameQuery("q", "z"))
    restored(made)
    assert made.engine.components()[0].strategies["z.fork1"] == "bfs(3)"
    assert [name for name in made.engine.components()[0].strategies if name[:2] in ("p.", "q.")] == []


# -- against engines that share nothing --------------------------------------------------------------------------------

NAMES = ("a", "b", "c", "d")
DOINGS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.lists(st.tuples(st.integers(-4, 8), st.integers(0, 5)), min_size=1, max_size=5)),
        st.tuples(st.just("lay"), st.lists(st.tuples(st.integers(-4, 8), st.just(0)), min_size=1, max_size=5)),
        st.tuples(st.just("add"), st.tuples(st.sampled_from(NAMES), st.sampled_from(sorted(NODES)))),
        st.tuples(st.just("add"), st.tuples(st.sampled_from(NAMES), st.sampled_from(sorted(NODES)))),
        st.tuples(st.just("both"), st.sampled_from(sorted(NODES))),
        st.tuples(st.just("over"), st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES))),
        st.tuples(st.just("drop"), st.sampled_from(NAMES)),
        st.tuples(st.just("pause"), st.sampled_from(NAMES)),
        st.tuples(st.just("resume"), st.sampled_from(NAMES)),
        st.tuples(st.just("replace"), st.tuples(st.sampled_from(NAMES), st.sampled_from(sorted(NODES)))),
        st.tuples(st.just("break"), st.tuples(st.sampled_from(NAMES), st.booleans())),
        st.tuples(st.just("watch"), st.sampled_from(NAMES)),
        st.tuples(st.just("unshare"), st.sampled_from(NAMES)),
        st.tuples(st.just("restore"), st.none()),
        st.tuples(st.just("work"), st.integers(1, 4)),
    ),
    max_size=30,
)


class Play:
    """The same doings in an engine that shares and in one that does not. Of the work in progress either nothing is done
    before the next command (`lay`) or all of it: how far two schedulers come in between differs."""

    def __init__(self, share):
        self.bench = bench(share)
        self.share = share
        self.given: dict[str, list[tuple[object, ...]]] = {}
        self.at = 0

    def command(self, body):
        try:
            self.bench.do(body)
        except Refuse as refused:
            return refused.text
        return None

    def took(self, effects):
        for name in (*NAMES, *(f"over_{one}" for one in NAMES)):
            self.given.setdefault(name, []).extend(rows(effects, name))

    def do(self, kind, what):
        match kind:
            case "give" | "lay":
                times = [max(self.at + ts, 1) for ts, _ in what]
                self.at += 3
                work = self.bench.run if kind == "give" else partial(self.bench.step, executions=0)
                self.took(work(give_tv("s", *times)))
            case "add":
                return self.command(AddQuery(query(*what)))
            case "both":
                return self.command(Change((AddQuery(query("a", what)), AddQuery(query("b", what)))))
            case "over":
                below = self.bench.engine.queries_by_name.get(what[0])
                if below is not None:
                    schema = below.plan.schema
                    name = f"over_{what[1]}"
                    made = plan(name, ("M", identity(schema), [below.plan.output]), schema=schema)
                    return self.command(AddQuery(made))
            case "drop":
                return self.command(DropQuery(what))
            case "pause":
                return self.command(PauseQuery(what))
            case "resume":
                return self.command(ResumeQuery(what))
            case "replace":
                return self.command(ReplaceQuery(query(*what)))
            case "break":
                return self.command(SetBreak(f"{what[0]}.S1", on=what[1]))
            case "watch":
                return self.command(WatchProgress(what))
            case "unshare":
                return self.command(UnshareQuery(what))
            case "restore":
                restored(self.bench)
        return None


@settings(max_examples=examples(300), deadline=None)
@example(
    [
        ("give", [(0, 0)]),
        ("add", ("b", "counted")),
        ("give", [(3, 0)]),
        ("add", ("a", "select")),
        ("lay", [(0, 0)]),
        ("over", ("a", "a")),
    ]
)
@example(
    [
        ("add", ("a", "counted")),
        ("give", [(0, 0)]),
        ("give", [(0, 0)]),
        ("add", ("b", "counted")),
        ("lay", [(-3, 0)]),
        ("replace", ("b", "deeper")),
    ]
)
@given(DOINGS)
def test_every_query_gives_what_it_gives_alone(doings):
    shared, alone = Play(True), Play(False)
    for kind, what in [*doings, ("give", [(60, 0)])]:
        assert (shared.do(kind, what) is None) == (alone.do(kind, what) is None), (kind, what)
        assert shared.given == alone.given, (kind, what)
    for one in shared.bench.engine.queries():
        assert one.rows == alone.bench.engine.query(one.name).sink.sequence


@settings(max_examples=examples(150), deadline=None)
@given(DOINGS, st.randoms(use_true_random=False))
def test_nothing_is_lost_or_repeated_in_the_middle_of_the_work(doings, chance):
    """Every reader reads the tuples on arcs once when operators are separated.

    The final rows are the same, where no query starts in the middle.
    """
    plays = [Play(True), Play(False)]
    names = ("a", "b", "c")
    for one in plays:
        one.bench.do(Change(tuple(AddQuery(query(name, "having")) for name in names)))
    for kind, what in doings:
        if kind == "give":
            times = [max(plays[0].at + ts, 1) for ts, _ in what]
            for one in plays:
                one.at += 3
                one.took(one.bench.step(give_tv("s", *times), budget=1, executions=chance.choice([0, 1, 2])))
        elif kind in ("break", "work", "restore"):
            plays[0].do("break", (chance.choice(names), chance.random() < 0.5))
            if kind == "restore":
                restored(plays[0].bench)
    for one in plays:
        one.took(one.bench.run(give_tv("s", one.at + 60)))
    assert plays[0].given == plays[1].given
    assert plays[0].bench.engine.gauge.tuples == plays[1].bench.engine.gauge.tuples


def test_a_stream_is_added_beside():
    made = bench(True)
    made.query(query("p", "select"))
    made.do(AddStream(external("t")))
    made.query(query("q", "select"))
    made.do(DropQuery("p"))
    restored(made)
    assert rows(made.run(give_tv("s", 5)), "q") == [(5, 5)]


def test_some_operators_are_taken_apart_and_what_is_apart_is_known():
    made = bench(True)
    for name in ("p", "q"):
        made.query(query(name, "having"))
    made.run(give_tv("s", 2, 3))
    assert sharing.apart(made.engine) == {}
    assert made.do(UnshareQuery("q", ("q.A",))) == UnshareReply(query="q", operators=["q.A", "q.H"])
    assert operators(made, "select", "aggregate") == ["p.S1", "p.A", "p.H", "q.A", "q.H"]
    assert sharing.apart(made.engine) == {"q": ["q.A", "q.H"]}
    restored(made)
    assert refusal(made, UnshareQuery("q", ("p.A",))) == "query q has no operator p.A"
    assert made.do(UnshareQuery("q")) == UnshareReply(query="q", operators=["q.S1"])
    assert made.do(UnshareQuery("q")).operators == []
    effects = made.run(give_tv("s", 4, 40))
    assert rows(effects, "p") == rows(effects, "q") == [(3, 0)]


def test_what_has_a_queue_of_its_own_is_not_shared():
    """A later query reads the arc; an operator downstream of a removed one has a queue, while tuples wait."""
    made = bench(True)
    made.query(query("p", "plain"))
    made.do(InsertOperator("p.M", ABOVE))
    made.step(give_tv("s", 2, 3), executions=0)
    made.do(RemoveOperator("p.filter1"))
    made.run()
    made.query(query("q", "plain"))
    assert operators(made, "map") == ["p.M", "q.M"]
    made.do(PauseQuery("p"))
    effects = made.run(give_tv("s", 4))
    assert (rows(effects, "p"), rows(effects, "q")) == ([], [(4, 4)])


@pytest.mark.parametrize("body", [DropQuery("p"), DropQuery("q")])
def test_who_goes_takes_nothing_along(body, monkeypatch):
    """The state of shared operators is not copied for a query that is dropped."""
    made = bench(True)
    for name in ("p", "q"):
        made.query(query(name, "counted"))
    made.run(give_tv("s", 2, 3))
    with monkeypatch.context() as patch:
        patch.setattr(type(made.engine.named("p.A")), "restore", lambda *_: pytest.fail("it was copied"))
        made.do(body)
    stays = "q" if body.name == "p" else "p"
    assert rows(made.run(give_tv("s", 40)), stays) == [(2, 0)]


def test_why_it_is_apart_is_told_after_a_rename_and_a_restart_and_not_of_another_plan():
    made = bench(True)
    made.query(query("p", "counted"))
    made.step(give_tv("s", 2, 3), executions=0)
    made.query(query("q", "counted"))

    def told(name):
        (shared,) = (one.shared for one in made.engine.queries() if one.name == name)
        return [one.node for one in shared if one.apart]

    assert told("q") == ["q.A"]
    made.do(RenameQuery("q", "r", ()))
    restored(made)
    assert told("r") == ["r.A"]
    made.do(ReplaceQuery(query("r", "having")))
    assert told("r") == []


@pytest.mark.parametrize("share", [False, True])
def test_what_a_failed_query_held_is_counted_whoever_shared_it(share):
    made = bench(share)
    made.may_fail = True
    for name in ("p", "q"):
        one = query(name, "counted")
        made.query(replace(one, options=replace(one.options, max_state=2)))
    made.run(FeedOpened("s", "slow"), give_tv("s", 2, 13))  # its windows stay open for a feed that says nothing
    made.run(give_tv("s", 24, 35))
    assert [(one.state, one.lost) for one in made.engine.queries()] == [("failed", 4)] * 2
