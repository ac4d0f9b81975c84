"""Credit that is withheld for slow readers: whose, for how long, and whose need is an exception."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.engine import credit
from millrace.engine.engine import Engine
from millrace.engine.events import (
    Arrived,
    Command,
    DropQuery,
    FeedOpened,
    Grant,
    PauseQuery,
    RenameQuery,
    ResumeQuery,
    WithholdCredit,
)
from millrace.protocol import Refuse
from millrace.values.batch import Batch
from tests.engine.graphs import TV, Bench, external, path, plan, union

CREDIT = 8


def give(stream: str, *times: int, feed: str) -> Arrived:
    return Arrived(stream, feed, Batch.from_rows(TV, [(time, 0) for time in times], times))


def ordered(name: str, *streams: str) -> Any:
    return plan(name, ("U", union(ordered=True), [f"{stream}.source" for stream in streams]), ordered=True)


def made(*streams: str) -> Bench:
    bench = Bench(*(external(stream) for stream in streams), credit=CREDIT)
    bench.run(*(FeedOpened(stream, "f") for stream in streams))
    return bench


def granted(effects: Any) -> list[tuple[str, int]]:
    return [(effect.stream, effect.tuples) for effect in effects.orders if isinstance(effect, Grant)]


def test_all_streams_above_a_query_get_no_credit_and_others_do() -> None:
    bench = made("a", "b", "c")
    bench.query(ordered("u", "a", "b"))
    bench.query(plan("v", ("Q", union(), ["u.U", "u.U"])))
    bench.query(path("w", 1, "c"))
    bench.do(WithholdCredit("v"))
    assert bench.engine.withheld() == {"a": ["v"], "b": ["v"]}
    assert granted(bench.run(give("a", 1, 2, feed="f"), give("b", 1, 2, feed="f"), give("c", 1, 2, feed="f"))) == [
        ("c", 2)
    ]
    assert granted(bench.run(FeedOpened("a", "g"))) == [("a", 0)]
    released = bench.run(Command(1, WithholdCredit("v", withheld=False)))
    assert sorted(granted(released)) == [("a", 2), ("a", CREDIT), ("b", 2)]


def test_a_stream_of_late_tuples_is_fed_by_its_origin() -> None:
    bench = made("a", "b")
    bench.do(WithholdCredit("a.late"))
    assert bench.engine.withheld() == {"a": ["a.late"]}


def test_a_paused_query_withholds_nothing() -> None:
    bench = made("a")
    bench.query(path("q", 1, "a"))
    bench.do(WithholdCredit("q"))
    bench.do(PauseQuery("q"))
    assert bench.engine.withheld() == {}
    assert granted(bench.run(give("a", 1, 2, feed="f"))) == [("a", 2)]
    bench.do(ResumeQuery("q"))
    assert bench.engine.withheld() == {"a": ["q"]}


def test_what_is_withheld_follows_a_name_and_goes_with_its_query() -> None:
    bench = made("a")
    bench.query(path("q", 1, "a"))
    bench.do(WithholdCredit("q", strict=True))
    bench.do(RenameQuery("q", "z"))
    assert credit.slow(bench.engine) == {"z": True}
    restored = Engine.restore(bench.engine.save())
    assert restored.withheld() == {"a": ["z"]}
    assert restored.save() == bench.engine.save()
    bench.do(DropQuery("z"))
    assert credit.slow(bench.engine) == {}
    with pytest.raises(Refuse, match="query z does not exist"):
        bench.do(WithholdCredit("z"))


def test_another_query_that_waits_for_a_stream_lets_it_have_credit_up_to_a_bound() -> None:
    """The union holds the tuples of b until a has come as far: nothing else frees them."""
    bench = made("a", "b")
    bench.query(path("slow", 1, "a"))
    bench.query(ordered("u", "a", "b"))
    bench.do(WithholdCredit("slow"))
    bench.run(give("a", 1, feed="f"), give("b", *range(50, 56), feed="f"))
    assert bench.engine.withheld() == {}
    assert granted(bench.run(give("a", 2, 3, feed="f"))) == [("a", 3)]
    bench.do(WithholdCredit("slow", strict=True))
    assert bench.engine.withheld() == {"a": ["slow"]}
    assert granted(bench.run(give("a", 4, 5, feed="f"))) == []
    assert granted(bench.run(Command(1, WithholdCredit("slow")))) == [("a", 2)]


def test_the_need_of_the_slow_query_itself_is_no_exception() -> None:
    """Its reader would get even more rows."""
    bench = made("a", "b")
    bench.query(ordered("u", "a", "b"))
    bench.run(give("a", 1, feed="f"), give("b", *range(50, 56), feed="f"))
    bench.do(WithholdCredit("u"))
    assert sorted(bench.engine.withheld()) == ["a", "b"]
    assert granted(bench.run(give("a", 2, 3, feed="f"))) == []
