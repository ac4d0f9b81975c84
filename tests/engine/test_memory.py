"""Memory that is short, as the engine sees it: feeds without credit, queues that supersede, a query that fails."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddStream,
    Command,
    FeedOpened,
    MemoryExceeded,
    MemoryHeld,
    QueryFailed,
    Rejected,
    ResumeQuery,
)
from millrace.engine.sizes import query_bytes, state_bytes
from millrace.journal.steps import Step, StepReader, encode
from millrace.sql import Catalog, parse, plan_all
from tests.engine.graphs import Bench, arrive, path
from tests.engine.test_withholding import CREDIT, give, granted, made, ordered

REASON = "the server's memory was used up"


def test_no_feed_gets_credit_while_memory_is_held_and_all_get_what_they_are_owed_afterwards() -> None:
    bench = made("a", "b", "c")
    bench.query(ordered("u", "a", "b"))  # it waits for b: under every other wait b gets credit
    bench.query(path("w", 1, "c"))
    assert granted(bench.run(MemoryHeld(True))) == []
    assert granted(bench.run(give("a", 1, 2, feed="f"), give("c", 1, 2, feed="f"), give("b", 0, 0, feed="f"))) == []
    assert granted(bench.run(FeedOpened("a", "g"))) == [("a", 0)]
    bench.engine = Engine.restore(bench.engine.save())
    assert granted(bench.run(give("c", 3, feed="f"))) == []
    released = granted(bench.run(MemoryHeld(False)))
    assert sorted(released) == [("a", 2), ("a", CREDIT), ("b", 2), ("c", 3)]


def test_a_query_that_memory_is_taken_from_fails_alone_and_with_the_reason() -> None:
    bench = made("a", "b")
    bench.may_fail = True
    bench.query(ordered("u", "a", "b"))
    bench.query(path("w", 1, "a"))
    effects = bench.run(give("a", 1, 2, feed="f"), MemoryExceeded("u", REASON))
    failed = [order for order in effects.orders if isinstance(order, QueryFailed)]
    assert [(order.query, order.reason) for order in failed] == [("u", REASON)]
    assert bench.engine.query_states() == {"u": "failed", "w": "running"}
    assert query_bytes(bench.engine).keys() == {"w"}
    again = bench.run(MemoryExceeded("u", "again"))
    assert not [order for order in again.orders if isinstance(order, QueryFailed)]
    bench.run(Command(1, ResumeQuery("u")))
    assert bench.engine.query_states() == {"u": "running", "w": "running"}


def test_a_query_that_has_gone_meanwhile_is_rejected() -> None:
    bench = made("a")
    (order,) = bench.run(MemoryExceeded("u", REASON)).orders
    assert isinstance(order, Rejected)
    assert order.refused.code == "unknown_query"


@pytest.mark.parametrize("event", [MemoryHeld(True, True), MemoryHeld(False), MemoryExceeded("u", REASON)])
def test_a_replay_of_the_record_comes_to_the_same_state(event: Any) -> None:
    bench = made("a", "b")
    bench.query(ordered("u", "a", "b"))
    bench.run(give("a", 1, 2, feed="f"))
    twin = Engine.restore(bench.engine.save())
    record = b"".join(bytes(part) for part in encode(Step(bench.engine.clock.now_us, 100, [event])))
    step = StepReader(twin).read(record)
    assert isinstance(step, Step)
    assert list(step.events) == [event]
    twin.step(step.now_us, step.events, budget=step.budget)
    bench.engine.step(step.now_us, [event], budget=100)
    assert twin.save() == bench.engine.save()


SQL = """
CREATE STREAM a (k BIGINT);
CREATE STREAM b (k BIGINT);
CREATE QUERY plain AS SELECT k + 1 AS k FROM a;
CREATE QUERY pairs AS SELECT p.k FROM plain p JOIN b ON p.k = b.k;
CREATE QUERY again AS SELECT p.k FROM plain p JOIN b ON p.k = b.k;
"""


def test_a_query_holds_its_state_and_not_what_waits_for_others() -> None:
    bench = Bench()
    _, catalog = plan_all(parse(SQL), Catalog())
    for stream in catalog.streams.values():
        bench.do(AddStream(stream))
    for query in catalog.queries.values():
        bench.query(query)
    empty = query_bytes(bench.engine)
    bench.run(FeedOpened("a", "f"))
    bench.step(arrive("a", *range(5_000), feed="f"), executions=1)
    waiting = query_bytes(bench.engine)
    assert bench.engine.gauge.tuples >= 5_000
    assert waiting == empty, "queued tuples become fewer by themselves"
    bench.run()
    sizes = query_bytes(bench.engine)
    assert sizes["plain"] == empty["plain"]
    assert sizes["pairs"] - empty["pairs"] >= 5_000 * 8
    assert sizes["again"] == sizes["pairs"]
    assert state_bytes(bench.engine) >= sizes["pairs"]
