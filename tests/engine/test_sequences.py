"""Sequences in an engine: the papers' packing cases, absence by clocks and by silent clients, chains and their arcs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AlterStream,
    Answered,
    Arrived,
    AskTimestamp,
    DropQuery,
    FeedClosed,
    FeedOpened,
    RowsFailed,
    WakeAt,
)
from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.frame.picked import Picked
from millrace.operators.sequence.sequence import FollowedBy
from millrace.operators.sequence.spec import SequenceSpec
from millrace.protocol import Field, Schema, Type
from millrace.values.batch import Batch
from millrace.values.expression import TIME, Call, Column
from tests.depth import examples
from tests.engine.graphs import Bench, arrive, compare, path, plan, punctuate, rows, times
from tests.oracles import sequences as oracle

KV = Schema.of(ts="timestamp", k="bigint", v="bigint")
KEY = (Column(Type.BIGINT, True, 1, "k"), Column(Type.BIGINT, True, 1, "k"))
BOTH: tuple[Picked, ...] = (("k", 1, 1), ("a", 0, 2), ("b", 1, 2))
FIRST: tuple[Picked, ...] = (("ts", 0, 0), ("k", 0, 1), ("v", 0, 2))


def stream(name: str, **options: Any) -> StreamDefinition:
    return StreamDefinition(name, KV, "external", "ts", **options)


def tell(name: str, *tuples: tuple[int, int | None, int | None], feed: str = "main") -> Arrived:
    """Tuples `(time, key, value)`."""
    return Arrived(name, feed, Batch.from_rows(KV, tuples, [ts for ts, _, _ in tuples]))


def sequence_plan(spec: SequenceSpec, one: str = "a", other: str = "b", schema: Schema = KV) -> QueryPlan:
    made = spec.schema([schema, schema])
    return plan("q", ("sequence1", spec, [f"{one}.source", f"{other}.source"]), schema=made)


def bench_of(spec: SequenceSpec, **options: Any) -> Bench:
    bench = Bench(stream("a", **options), stream("b", **options))
    bench.query(sequence_plan(spec))
    return bench


def operator(bench: Bench, name: str = "q.sequence1") -> FollowedBy:
    found = bench.engine.graph.operator(name)
    assert isinstance(found, FollowedBy)
    return found


def asked(effects: Any) -> list[tuple[str, int]]:
    return [(order.stream, order.need_us) for order in effects.orders if isinstance(order, AskTimestamp)]


def woken(effects: Any) -> list[int]:
    return [order.at_us for order in effects.orders if isinstance(order, WakeAt)]


# -- the packing cases of the paper ------------------------------------------------------------------------------------


def test_products_are_packed_into_the_waiting_case() -> None:
    """Example 1: every product with the most recent case, each when the next case's time is known (figure 12)."""
    bench = bench_of(SequenceSpec((("case", 0, 2), ("product", 1, 2))))
    assert rows(bench.run(tell("a", (10, 0, 1))), "q") == []
    # The case at 10 may be followed by another at 10 or 11: the product at 11 idles.
    assert rows(bench.run(tell("b", (11, 0, 101), (12, 0, 102))), "q") == []
    assert operator(bench).need() == 12
    assert rows(bench.run(punctuate("a", 12)), "q") == [(1, 101)]
    # The products at 12 and 21 came before the case that the second belongs into.
    assert rows(bench.run(tell("b", (21, 0, 103), (22, 0, 104))), "q") == []
    assert rows(bench.run(tell("a", (20, 0, 2))), "q") == [(1, 102)]
    effects = bench.run(tell("a", (30, 0, 3)))
    assert rows(effects, "q") == [(2, 103), (2, 104)]
    assert times(effects, "q") == [21, 22]
    assert operator(bench).state_tuples == 1  # the one-tuple window


def test_each_product_is_packed_into_a_case_of_its_own() -> None:
    """The scenario of one product per case: the earliest case that is free, and both are used up (figure 13)."""
    bench = bench_of(SequenceSpec((("case", 0, 2), ("product", 1, 2)), mode="chronicle"))
    bench.run(tell("b", (5, 0, 100)), tell("a", (10, 0, 1), (11, 0, 2), (13, 0, 3)))
    bench.run(tell("b", (12, 0, 101), (14, 0, 102)))
    assert operator(bench).state_tuples == 2
    assert rows(bench.run(tell("a", (20, 0, 4))), "q") == [(2, 102)]
    bench.run(tell("b", (21, 0, 103), (22, 0, 104), (23, 0, 105)), tell("a", (40, 0, 5)))
    # The product at 5 had no case, the one at 23 neither: nothing waits for them.
    bench.run(tell("b", (40, 0, 106)), punctuate("a", 100), punctuate("b", 100))
    assert operator(bench).state_tuples == 0


def test_simultaneous_tuples_wait_for_one_promise_alone() -> None:
    bench = bench_of(SequenceSpec(BOTH, (KEY,)))
    bench.run(tell("b", (10, 1, 7)), tell("a", (10, 1, 5)))
    assert operator(bench).need() == 11
    assert operator(bench).holding() == [0]
    # Of two at one time the later arrival is the more recent.
    assert rows(bench.run(tell("a", (10, 1, 6)), punctuate("a", 11)), "q") == [(1, 6, 7)]


def test_a_silent_first_stream_of_the_engine_s_own_stamps_holds_nobody_back() -> None:
    bench = Bench("a", "b")
    spec = SequenceSpec((("a", 0, 0), ("b", 1, 0)))
    bench.query(
        plan("q", ("sequence1", spec, ["a.source", "b.source"]), schema=spec.schema([Schema.of(v="bigint")] * 2))
    )
    effects = bench.run(arrive("a", 1), at=100)
    assert woken(effects) == []
    effects = bench.run(arrive("b", 2), arrive("a", 3), at=200)
    assert rows(effects, "q") == [(3, 2)]
    assert times(effects, "q") == [200]
    assert woken(effects) == []


@pytest.mark.parametrize("strategy", ["dfs", "dfs(1)", "bfs", "rr"])
def test_parts_of_one_stream_may_follow_each_other(strategy: str) -> None:
    value = Column(Type.BIGINT, True, 2, "v")
    spec = SequenceSpec((("k", 1, 1), ("a", 0, 2), ("b", 1, 2)), (KEY,))
    bench = Bench(stream("a"))
    bench.query(
        plan(
            "q",
            ("filter1", SelectSpec(compare("<", 10, value)), ["a.source"]),
            ("filter2", SelectSpec(compare(">=", 10, value)), ["a.source"]),
            ("sequence1", spec, ["filter1", "filter2"]),
            schema=spec.schema([KV, KV]),
        ),
        strategy,
    )
    assert rows(bench.run(tell("a", (1, 1, 2), (2, 1, 11), (3, 1, 3), (3, 1, 12), (3, 1, 4))), "q") == [(1, 2, 11)]
    assert rows(bench.run(tell("a", (4, 2, 20))), "q") == [(1, 4, 12)]


# -- absence -----------------------------------------------------------------------------------------------------------

ABSENT = SequenceSpec(FIRST, (KEY,), within_us=50, absent=True)


def test_absence_on_streams_of_the_engine_s_own_stamps_fires_by_a_timer() -> None:
    bench = Bench("a", "b")
    spec = SequenceSpec((("v", 0, 0),), within_us=500, absent=True)
    bench.query(plan("q", ("sequence1", spec, ["a.source", "b.source"])))
    effects = bench.run(arrive("a", 1), at=1_000)
    assert rows(effects, "q") == []
    assert woken(effects) == [1_501]
    effects = bench.run(at=1_501)
    assert rows(effects, "q") == [(1,)]
    assert times(effects, "q") == [1_500]
    assert woken(effects) == []
    assert operator(bench).state_tuples == 0
    bench.run(arrive("a", 2), at=2_000)
    bench.run(arrive("b", 9), at=2_500)  # at the last microsecond, and it belongs to it
    assert rows(bench.run(at=4_000), "q") == []


def test_absence_is_no_idle_waiting_before_its_end() -> None:
    bench = Bench("a", "b")
    spec = SequenceSpec((("v", 0, 0),), within_us=500, absent=True)
    bench.query(plan("q", ("sequence1", spec, ["a.source", "b.source"])))
    bench.run(arrive("a", 1), at=1_000)
    assert operator(bench).need() == 1_501
    assert not operator(bench).blocked()
    bench.run(at=1_501)
    assert operator(bench).idle_us == [0, 0]


def test_absence_with_both_clients_silent_asks_the_second_for_just_what_is_needed() -> None:
    bench = Bench(stream("a"), stream("b"))
    bench.query(sequence_plan(ABSENT))
    bench.run(FeedOpened("a", "main", can_answer=True), FeedOpened("b", "main", can_answer=True), at=0)
    bench.run(tell("b", (95, 2, 0)), at=95)
    effects = bench.run(tell("a", (100, 1, 7)), at=100)
    # B at 95 waits until no A at 95 can come any more: A has passed it.
    assert asked(effects) == []
    assert woken(effects) == [151]
    effects = bench.run(at=151)
    assert asked(effects) == [("b", 151)]
    effects = bench.run(Answered("b", "main", 1, 151), at=152)
    assert rows(effects, "q") == [(100, 1, 7)]
    assert times(effects, "q") == [150]
    assert asked(bench.run(at=10_000)) == []


def test_absence_with_both_feeds_silent_fires_by_the_clock_and_the_declared_skew() -> None:
    bench = Bench(stream("a", max_skew_us=20), stream("b", max_skew_us=20))
    bench.query(sequence_plan(ABSENT))
    bench.run(FeedOpened("a", "main"), FeedOpened("b", "main"), at=0)
    effects = bench.run(tell("a", (100, 1, 7), (110, 2, 8)), tell("b", (100, 3, 0), (120, 2, 0)), at=120)
    found: list[Any] = []
    while wake := woken(effects):
        assert bench.now_us < wake[0] < 1_000
        effects = bench.run(at=wake[0])
        found += zip(times(effects, "q"), rows(effects, "q"), strict=True)
    # B's clock showed 120 at 120, so 151 is sure at 171.
    assert found == [(150, (100, 1, 7))]
    assert bench.now_us == 171
    assert operator(bench).state_tuples == 0


def test_b_before_a_does_not_count_and_nothing_of_it_is_kept() -> None:
    bench = bench_of(ABSENT)
    bench.run(tell("a", (10, 9, 0)), tell("b", *((at, 1, 0) for at in range(20, 40))))
    bench.run(tell("a", (40, 1, 7)))
    assert operator(bench).state_tuples == 2
    assert operator(bench).held_tuples() == 0
    assert rows(bench.run(tell("b", (80, 2, 0), (90, 1, 0))), "q") == [(10, 9, 0)]
    # The row at 90 is in time, but only when no A at 90 can come any more is it gone.
    assert operator(bench).held_tuples() == 2
    assert rows(bench.run(punctuate("a", 91), punctuate("b", 91)), "q") == []
    assert (operator(bench).held_tuples(), operator(bench).state_tuples) == (0, 0)


def test_many_that_are_over_at_once_leave_in_executions_of_the_strategy_s_size() -> None:
    bench = Bench(stream("a"), stream("b"))
    bench.query(sequence_plan(ABSENT), "dfs(10)")
    bench.run(tell("a", *((100 + at // 3, at, at) for at in range(95))))
    effects = bench.run(punctuate("b", 10_000))
    assert [row[1] for row in rows(effects, "q")] == list(range(95))
    assert times(effects, "q") == [150 + at // 3 for at in range(95)]
    assert sum(one.gave > 0 for one in effects.executions) == 10


def test_why_names_the_stream_that_an_absence_waits_for() -> None:
    bench = Bench(stream("a"), stream("b", ets="none"))
    bench.query(sequence_plan(ABSENT))
    bench.run(tell("a", (100, 1, 7)), FeedOpened("b", "main"), at=100)
    assert bench.engine.why("q").reason != "ets_none"
    bench.run(tell("a", (300, 1, 8)), at=300)
    told = bench.engine.why("q")
    assert (told.reason, told.stream, told.operator) == ("ets_none", "b", "q.sequence1")
    assert "until its input from" in told.text
    bench.do(AlterStream("b", (("ets", "on-demand"), ("max_skew_us", 0))))
    bench.run(tell("b", (120, 5, 0)), at=320)
    assert rows(bench.run(at=351), "q") == [(100, 1, 7)]


# -- chains ------------------------------------------------------------------------------------------------------------

CHAIN_1 = SequenceSpec((("k", 1, 1), ("a", 0, 2), ("b", 1, 2)), (KEY,), within_us=60)
CHAIN_2 = SequenceSpec(
    (("k", 1, 1), ("a", 0, 1), ("b", 0, 2), ("c", 1, 2)),
    ((Column(Type.BIGINT, True, 0, "k"), Column(Type.BIGINT, True, 1, "k")),),
    within_us=60,
)


def chain(one: SequenceSpec = CHAIN_1, other: SequenceSpec = CHAIN_2, between: bool = False) -> QueryPlan:
    """(a FOLLOWED BY b) FOLLOWED BY c, perhaps with a selection in between."""
    inner = one.schema([KV, KV])
    nodes: list[tuple[str, Any, Iterable[str]]] = [("sequence1", one, ["a.source", "b.source"])]
    if between:
        nodes.append(("filter1", SelectSpec(compare(">=", -(2**62), Column(Type.BIGINT, True, 0, "k"))), ["sequence1"]))
    nodes.append(("sequence2", other, ["filter1" if between else "sequence1", "c.source"]))
    return plan("q", *nodes, schema=other.schema([inner, KV]))


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("propagation", ["arcs", "punctuation"])
def test_a_chain_asks_only_the_stream_that_the_last_step_waits_for(propagation: Any, between: bool) -> None:
    options: dict[str, Any] = {"propagation": propagation}
    bench = Bench(stream("a", **options), stream("b", **options), stream("c", **options))
    bench.query(chain(between=between))
    bench.run(*(FeedOpened(name, "main", can_answer=True) for name in "abc"), at=0)
    bench.run(tell("b", (90, 2, 2)), tell("a", (100, 1, 1)), at=100)
    effects = bench.run(tell("c", (110, 1, 3)), at=125)
    # A row of b at 110 might still come, and whatever a does, c waits for b alone. A's row at 100 needs less of it.
    assert asked(effects) == [("b", 100)]
    effects = bench.run(Answered("b", "main", 1, 105), at=130)
    assert asked(effects) == [("b", 111)]
    assert operator(bench, "q.sequence2").need() == 111
    bench.run(Answered("b", "main", 2, 115), at=135)
    assert operator(bench, "q.sequence2").need() is None
    bench.run(tell("b", (120, 1, 5)), tell("a", (130, 1, 6)), at=140)
    effects = bench.run(tell("c", (125, 1, 9)), at=150)
    for request in (order for order in effects.orders if isinstance(order, AskTimestamp)):
        more = bench.run(Answered(request.stream, "main", request.request, 200), at=151)
        effects.orders += more.orders
    assert rows(effects, "q") == [(1, 1, 5, 9)]
    assert times(effects, "q") == [125]


def test_a_chain_over_an_absence_knows_what_it_can_promise() -> None:
    """(a FOLLOWED BY NO b WITHIN 50) FOLLOWED BY c: an alarm at a + 50, and the later tuple."""
    inner = SequenceSpec(FIRST, (KEY,), within_us=50, absent=True)
    outer = SequenceSpec((("a", 0, 2), ("b", 1, 2)), (KEY,))
    bench = Bench(stream("a"), stream("b"), stream("c"))
    bench.query(chain(inner, outer))
    bench.run(*(FeedOpened(name, "main", can_answer=True) for name in "abc"), at=0)
    bench.run(tell("a", (100, 1, 7)), tell("c", (149, 1, 1), (150, 1, 2), (155, 1, 3)), at=155)
    # c at 149 is before anything that can come of a: it is decided without asking b. c at 150 is not.
    assert operator(bench, "q.sequence2").need() == 151
    effects = bench.run(punctuate("b", 151), at=156)
    assert rows(effects, "q") == []
    effects = bench.run(punctuate("a", 106), at=157)
    assert rows(effects, "q") == [(7, 2), (7, 3)]
    assert times(effects, "q") == [150, 155]


def test_a_chain_of_streams_of_the_engine_s_own_stamps_needs_no_timer() -> None:
    bench = Bench("a", "b", "c")
    one_column = Schema.of(v="bigint")
    first = SequenceSpec((("a", 0, 0), ("b", 1, 0)))
    second = SequenceSpec((("a", 0, 0), ("b", 0, 1), ("c", 1, 0)))
    inner = first.schema([one_column, one_column])
    bench.query(
        plan(
            "q",
            ("sequence1", first, ["a.source", "b.source"]),
            ("sequence2", second, ["sequence1", "c.source"]),
            schema=second.schema([inner, one_column]),
        )
    )
    bench.run(arrive("a", 1), at=100)
    bench.run(arrive("b", 2), at=200)
    effects = bench.run(arrive("c", 3), arrive("b", 4), at=300)
    assert rows(effects, "q") == [(1, 4, 3)]
    assert woken(effects) == []


# -- everything at once ------------------------------------------------------------------------------------------------

tuples_strategy = st.lists(
    st.tuples(st.integers(0, 120), st.one_of(st.none(), st.integers(0, 2)), st.integers(0, 3)), max_size=14
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_chains_of_three_agree_with_looking_at_all_pairs(data: st.DataObject) -> None:
    draw = data.draw
    came = {name: [(ts, k, 100 * at + v) for at, (ts, k, v) in enumerate(draw(tuples_strategy))] for name in "abc"}
    kinds: list[Literal["recent", "chronicle"]] = ["recent", "chronicle"]
    modes = [draw(st.sampled_from(kinds)) for _ in range(2)]
    absent = draw(st.booleans())
    within = draw(st.integers(0, 60) if absent else st.none() | st.integers(0, 60))
    alone: tuple[Picked, ...] = (("k", 0, 1), ("a", 0, 2), ("b", 0, 2))
    first = SequenceSpec(alone if absent else CHAIN_1.columns, CHAIN_1.keys, None, modes[0], within, absent)
    second = SequenceSpec(CHAIN_2.columns, CHAIN_2.keys, None, modes[1], within)
    bench = Bench(*(stream(name, disorder_us=200) for name in "abc"))
    bench.query(
        chain(first, second, draw(st.booleans())), draw(st.sampled_from(["dfs(1)", "bfs", "rr(2)", "dfs", "rr"]))
    )
    found: list[Any] = []
    left = {name: list(tuples) for name, tuples in came.items()}

    def take(effects: Any) -> None:
        found.extend(zip(times(effects, "q"), rows(effects, "q"), strict=True))

    while any(left.values()):
        name = draw(st.sampled_from([name for name in "abc" if left[name]]))
        count = draw(st.integers(1, 4))
        events: list[Any] = [tell(name, *left[name][:count])]
        del left[name][:count]
        if draw(st.booleans()):
            events.append(punctuate(name, draw(st.integers(0, min((ts for ts, _, _ in left[name]), default=130)))))
        take((bench.run if draw(st.booleans()) else bench.step)(*events))
        if draw(st.integers(0, 4)) == 0:
            bench.engine = Engine.restore(bench.engine.save(), trace=True)
    take(bench.run(*(FeedClosed(name, "main", ended=True) for name in "abc")))

    a, b, c = ([(ts, (k, v)) for ts, k, v in came[name]] for name in "abc")
    if absent:
        assert within is not None
        left_alone, _ = oracle.absent(a, b, [0], within, lambda one, other: True)
        inner = [(one[0] + within, (one[1][0], one[1][1], one[1][1])) for one in left_alone]
    else:
        pairs, _ = oracle.following(a, b, [0], modes[0], within, lambda one, other: True, False)
        inner = [(two[0], (two[1][0], one[1][1], two[1][1])) for one, two in pairs if one is not None]
    last, _ = oracle.following(inner, c, [0], modes[1], within, lambda one, other: True, False)
    assert found == [(two[0], (two[1][0], one[1][1], one[1][2], two[1][1])) for one, two in last if one is not None]


# -- a JOIN LATEST b ---------------------------------------------------------------------------------------------------


def test_the_current_row_of_an_update_stream_is_the_newest_of_its_key() -> None:
    """`a LEFT JOIN LATEST b`: b's updates are input 0; each row of a with the row of its key as it was at a's time."""
    spec = SequenceSpec((("ts", 1, TIME), ("k", 1, 1), ("v", 1, 2), ("price", 0, 2)), (KEY,), outer=True)
    bench = Bench(stream("a"), stream("b"))
    bench.query(sequence_plan(spec, "b", "a"))
    bench.run(tell("b", (10, 1, 50), (20, 1, 51), (20, 2, 70)))
    effects = bench.run(tell("a", (9, 1, 1), (15, 1, 2), (19, 3, 3), (19, None, 4)))
    assert rows(effects, "q") == [(9, 1, 1, None), (15, 1, 2, 50), (19, 3, 3, None), (19, None, 4, None)]
    effects = bench.run(tell("a", (20, 1, 5), (21, 2, 6)), punctuate("b", 30))
    assert rows(effects, "q") == [(20, 1, 5, 51), (21, 2, 6, 70)]
    assert operator(bench).state_tuples == 2  # one per key


def test_an_inner_join_with_current_rows_leaves_out_the_keys_that_have_none() -> None:
    bench = Bench(stream("a"), stream("b"))
    bench.query(sequence_plan(SequenceSpec((("v", 1, 2), ("price", 0, 2)), (KEY,)), "b", "a"))
    bench.run(tell("b", (10, 1, 50), (20, 1, 51)))
    assert rows(bench.run(tell("a", (12, 1, 1), (13, 2, 2))), "q") == [(1, 50)]


def test_the_current_row_may_be_a_running_total() -> None:
    total = AggregateSpec(None, (("k", KEY[0]),), (("n", AggregateCall(Type.BIGINT, False, "count()")),), emit="every")
    joined = SequenceSpec((("v", 1, 2), ("n", 0, 1)), ((Column(Type.BIGINT, True, 0, "k"), KEY[1]),), outer=True)
    bench = Bench(stream("a"), stream("b"))
    made = joined.schema([total.schema([KV]), KV])
    bench.query(
        plan("q", ("aggregate1", total, ["b.source"]), ("sequence1", joined, ["aggregate1", "a.source"]), schema=made)
    )
    bench.run(tell("b", (10, 1, 0), (20, 1, 0), (30, 2, 0), (40, 1, 0)))
    effects = bench.run(tell("a", (9, 1, 7), (15, 1, 8), (39, 1, 9)), FeedClosed("a", "main", ended=True))
    assert rows(effects, "q") == [(7, None), (8, 1), (9, 2)]


# -- memory, and rows without a time -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        SequenceSpec(BOTH, (KEY,), within_us=100),
        SequenceSpec(BOTH, (KEY,), mode="chronicle", within_us=100),
        ABSENT,
    ],
    ids=["recent", "chronicle", "absent"],
)
def test_new_keys_for_ever_do_not_grow_memory(spec: SequenceSpec) -> None:
    bench = bench_of(spec)
    sizes = []
    for at in range(0, 100_000, 500):
        keys = [(at + step, at + step, 0) for step in range(500)]
        bench.run(tell("a", *keys), tell("b", *((ts, k + 10**9, v) for ts, k, v in keys)))
        sizes.append((operator(bench).state_tuples, operator(bench).state_bytes))
    assert max(tuples for tuples, _ in sizes[20:]) <= 2 * max(tuples for tuples, _ in sizes[:10])
    assert max(size for _, size in sizes[20:]) <= 2 * max(size for _, size in sizes[:10])


def test_texts_are_forgotten_with_the_state() -> None:
    names = Schema((Field("ts", Type.TIMESTAMP, True), Field("name", Type.TEXT, True)))
    name = Column(Type.TEXT, True, 1, "name")
    spec = SequenceSpec((("name", 0, 1),), ((name, name),), mode="chronicle")
    bench = Bench(*(StreamDefinition(each, names, "external", "ts") for each in "ab"))
    bench.query(sequence_plan(spec, schema=names))
    sizes = []
    for at in range(0, 20_000, 100):
        batch = Batch.from_rows(names, [(at + n, f"case {at + n}") for n in range(100)], list(range(at, at + 100)))
        bench.run(Arrived("a", "main", batch), Arrived("b", "main", batch))
        sizes.append(operator(bench).state_bytes)
    assert max(sizes[20:]) <= 2 * max(sizes[:10])


def test_a_tuple_without_a_time_is_in_no_sequence_and_is_counted() -> None:
    bench = Bench(StreamDefinition("a", Schema.of(v="bigint"), "latent"), "b")
    spec = SequenceSpec((("a", 0, 0), ("b", 1, 0)))
    bench.query(
        plan("q", ("sequence1", spec, ["a.source", "b.source"]), schema=spec.schema([Schema.of(v="bigint")] * 2))
    )
    effects = bench.run(arrive("a", 1, 2), arrive("b", 3))
    assert rows(effects, "q") == []
    assert [(order.count, order.reason) for order in effects.orders if isinstance(order, RowsFailed)] == [
        (2, "a row without a time is in no sequence")
    ]


def test_a_pair_that_cannot_be_tested_drops_its_row_alone() -> None:
    a, b = (Column(Type.BIGINT, True, at, "v") for at in (1, 2))
    where = Call(Type.BOOLEAN, True, ">(bigint, bigint)", (Call(Type.BIGINT, True, "/(bigint, bigint)", (a, b)), b))
    bench = bench_of(SequenceSpec(BOTH, (KEY,), where))
    bench.run(tell("a", (1, 1, 9)))
    effects = bench.run(tell("b", (2, 1, 0), (3, 1, 2), (4, 1, 5)), punctuate("a", 5))
    assert rows(effects, "q") == [(1, 9, 2)]
    assert [order.count for order in effects.orders if isinstance(order, RowsFailed)] == [1]


def test_a_dropped_query_gives_everything_back() -> None:
    bench = bench_of(SequenceSpec(BOTH, (KEY,)))
    bench.run(tell("a", (1, 1, 9)), tell("b", (20, 1, 0), (30, 1, 2)))
    found = operator(bench)
    assert found.held_tuples() == 2
    bench.do(DropQuery("q"))
    assert bench.engine.gauge.tuples == 0
    assert found.state_tuples == 0


# -- what others say ---------------------------------------------------------------------------------------------------

CASES = Path(__file__).parent.parent / "conformance" / "cases"
KINDS = {"int": Type.BIGINT, "string": Type.TEXT}


@pytest.mark.parametrize(
    "name", ["seq-01-pw-asof", "seq-04-snoop-recent", "seq-05-snoop-chronicle", "seq-10-flink-skipnext"]
)
@pytest.mark.parametrize("strategy", ["dfs", "dfs(1)", "bfs", "rr"])
def test_cases_of_other_engines(name: str, strategy: str) -> None:
    case = json.loads((CASES / f"{name}.json").read_text("utf-8"))
    query = case["query"]
    sides = {"a": query["first"], "b": query["then"]}
    schemas = {
        stream: Schema(
            (
                Field("ts", Type.TIMESTAMP, True),
                *(Field(field, KINDS[kind], True) for field, kind in fields.items() if field != "ts"),
            )
        )
        for stream, fields in case["streams"].items()
    }

    def column(side: str, field: str) -> tuple[int, int]:
        at = schemas[sides[side]].index(field)
        assert at is not None
        return "ab".index(side), at

    keys = tuple(
        tuple(
            Column(schemas[sides[side]].fields[at].type, True, at, field)
            for side, field in zip("ab", pair, strict=True)
            for _, at in [column(side, field)]
        )
        for pair in query["on"]
    )
    spec = SequenceSpec(
        tuple((shown, *column(side, field)) for side, field, shown in query["select"]),
        keys,  # type: ignore[arg-type]
        mode=query["mode"],
    )
    bench = Bench(
        *(StreamDefinition(each, schema, "external", "ts", progress="punctuation") for each, schema in schemas.items())
    )
    made = spec.schema([schemas[sides["a"]], schemas[sides["b"]]])
    bench.query(plan("q", ("sequence1", spec, [f"{sides[side]}.source" for side in "ab"]), schema=made), strategy)
    found: list[Any] = []
    for entry in case["feed"]:
        if entry.get("eos"):
            found += rows(bench.run(FeedClosed(entry["s"], "main", ended=True)), "q")
            continue
        schema = schemas[entry["s"]]
        values = (entry["ts"], *(entry["row"][field.name] for field in schema.fields[1:]))
        found += rows(bench.run(Arrived(entry["s"], "main", Batch.from_rows(schema, [values], [entry["ts"]]))), "q")
    assert sorted(found) == sorted(tuple(row) for row in case["expected"]["rows"])


def test_a_burst_goes_tuple_by_tuple_depth_first() -> None:
    case = json.loads((CASES / "nos-01-dfs.json").read_text("utf-8"))
    bench = Bench("s")
    bench.query(path("q", case["query"]["operators"]), f"{case['query']['strategy']}(1)")
    visited = bench.visits(arrive("s", *range(case["query"]["n"])))
    assert [[name] for name in visited.split()] == case["expected"]["rows"]
