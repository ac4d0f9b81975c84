"""Renamed fields of views are written under both names."""

from __future__ import annotations

from millrace.engine.events import FeedOpened
from millrace.engine.fieldnames import NEW_NAMES, with_old_names
from tests.engine.graphs import TV, Bench, external, give_tv, identity, plan

SECOND = 1_000_000


def test_an_old_name_is_added_for_each_new_one() -> None:
    assert with_old_names({"too_far_ahead": 3, "tuples": 5}) == {"too_far_ahead": 3, "far": 3, "tuples": 5}


def test_streams_feeds_and_operators_have_both_names() -> None:
    bench = Bench(external("s"))
    bench.query(plan("q", ("M", identity(TV), ["s.source"]), schema=TV))
    bench.run(FeedOpened("s", "main"), give_tv("s", SECOND), at=SECOND)
    stream = bench.engine.streams()[0]
    operator = next(view for view in bench.engine.operators() if view["name"] == "q.M")
    seen = set()
    for view in (stream, stream["feeds"][0], operator):
        for old, new in NEW_NAMES.items():
            assert (old in view) == (new in view), (old, new)
            if old in view:
                assert view[old] == view[new]
                seen.add(old)
    assert seen == set(NEW_NAMES) - {"was"}  # a trial's
    assert stream["feeds"][0]["credit_used"] == 1
