"""The engine's state as bytes: a restored engine continues exactly where the saved one was."""

from __future__ import annotations

import errno
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine import saved_parts, saving
from millrace.engine.engine import Engine
from millrace.engine.events import AlterStream, FeedOpened, PauseQuery, SetBreak, SetStrategy, WatchProgress
from millrace.engine.plan import POLICIES
from millrace.engine.time.watermarks import Timers
from millrace.operators.source.source import Clocking
from millrace.protocol import Field, Refuse, Type
from millrace.values.texts import texts_from
from tests.depth import examples
from tests.engine.graphs import Bench, arrive, external, figure_4, give_tv, path, plan, union


def busy_bench() -> Bench:
    bench = Bench("a", "b", external("x", disorder_us=3))
    bench.query(figure_4(ordered=True))
    bench.query(path("p", 3, "a"), "bfs(2)")
    bench.query(path("q", 2, "a"))
    bench.query(plan("w", ("U", union(), ["p.Q3", "q.Q2"])))
    bench.do(SetBreak("p.Q1", on=True))
    bench.do(SetStrategy("a", "rr(2)", "q.Q1"))
    bench.do(WatchProgress("u"))
    bench.do(PauseQuery("q"))
    bench.step(FeedOpened("a", "main"), arrive("a", *range(11)), executions=5)
    bench.step(give_tv("x", 5, 3, 9))
    return bench


def test_saving_and_restoring_is_the_identity() -> None:
    bench = busy_bench()
    saved = bench.engine.save()
    assert Engine.restore(saved).save() == saved


PLAIN: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=40),
    st.binary(max_size=300),
    st.integers(0, 300).map(lambda size: np.arange(size) * 3),
    st.integers(0, 300).map(lambda size: np.arange(2 * size)[::2]),
    st.just(np.array(["a", None], object)),
    st.lists(st.text(max_size=9), max_size=60).map(lambda texts: texts_from(texts, False)),
    st.just(Field("k", Type.BIGINT)),
)
COLUMNS = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=20))


@pytest.mark.parametrize("large", [1, 16, 200, 2**14])
def test_the_parts_together_are_the_bytes(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_parts, "LARGE", large)

    @settings(max_examples=examples(60))
    @given(COLUMNS)
    def check(value: Any) -> None:
        assert b"".join(saved_parts.pack_parts(value)) == saving.pack(value)

    check()


def test_parts_copy_no_large_array() -> None:
    value = [[np.arange(10**6), np.arange(10**6) > 5], texts_from(["x" * 100] * 10**4, False)]
    tracemalloc.start()
    parts = saved_parts.pack_parts(value)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(map(len, parts)) > 10**7
    assert peak < 3 * 10**6  # texts are copied once


def test_a_restored_engine_gives_the_same_effects_to_the_byte() -> None:
    bench = busy_bench()
    other = Engine.restore(bench.engine.save(), trace=True)
    for turn in range(12):
        events = [arrive("ab"[turn % 2], turn, turn + 1), give_tv("x", turn)] if turn % 3 else []
        mine = bench.engine.step(1_000 + turn, events, budget=7)
        theirs = other.step(1_000 + turn, events, budget=7)
        assert mine == theirs
        assert bench.engine.save() == other.save()


def test_a_state_with_its_arrays_apart_is_the_same_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "APART_BYTES", 8)
    bench = busy_bench()
    arrays: list[bytes] = []

    def put(data: memoryview) -> int:
        arrays.append(bytes(data))
        return len(arrays) - 1

    body = bench.engine.save_apart(put)
    assert len(arrays) > 10
    assert Engine.restore(saving.SavedState(body, arrays.__getitem__)).save() == bench.engine.save()


def test_a_full_disk_is_not_a_fault_of_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "APART_BYTES", 8)

    def put(_: memoryview) -> int:
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        busy_bench().engine.save_apart(put)


def test_a_source_keeps_the_clocking_that_it_was_given() -> None:
    """Replaying history judges no tuple again, before a restore and after it."""
    bench = Bench(external("x", disorder_us=3))
    bench.engine.source("x").clocking = Clocking("external", by_tuples=False)
    bench.step(give_tv("x", 90))
    other = Engine.restore(bench.engine.save())
    assert other.source("x").clocking == bench.engine.source("x").clocking
    for engine in (bench.engine, other):
        engine.step(2, [give_tv("x", 100), give_tv("x", 5)])
        assert engine.source("x").late == 0


def test_a_source_keeps_the_policies_that_it_was_altered_to() -> None:
    bench = Bench(external("x", disorder_us=3))
    changes = {
        "ets": "periodic", "ets_interval_us": 9, "ets_retry_us": 8, "max_skew_us": 7, "grace_us": 6, "ahead_us": 50,
        "propagation": "punctuation", "disorder_us": 5, "lull_us": 4, "history": True,
        "time_unit": "ms",
    }  # fmt: skip
    assert changes.keys() == POLICIES
    bench.do(AlterStream("x", tuple(changes.items())))
    other = Engine.restore(bench.engine.save())
    assert other.streams_by_name["x"].definition == bench.engine.streams_by_name["x"].definition
    assert other.source("x").clocking == Clocking("external", 5, True, 50, True)
    assert [source.name for source in other.graph.punctuating] == ["x.source"]


def test_a_state_of_another_version_is_refused() -> None:
    saved = saving.unpack(Bench("a").engine.save())
    saved["version"] = 99
    with pytest.raises(Refuse, match="version 99"):
        Engine.restore(saving.pack(saved))


def test_what_is_not_a_definition_is_not_saved() -> None:
    with pytest.raises(TypeError, match="cannot save a"):
        saving.pack(object())


def test_arrays_tuples_and_texts_come_back_as_they_were() -> None:
    value = [(1, "two", b"3"), np.array([1.5, 2.5]), np.array(["a", None], object), {"k": None}]
    first, numbers, texts, mapping = saving.unpack(saving.pack(value))
    assert first == (1, "two", b"3")
    assert numbers.tolist() == [1.5, 2.5]
    assert texts.tolist() == ["a", None]
    assert mapping == {"k": None}


def test_timers_of_one_time_are_due_in_the_order_in_which_they_were_set_before_and_after_a_restore() -> None:
    running, restored = Timers(), Timers()
    running.set(10, "leave", "s", "a")
    running.set(10, "leave", "s", "b")
    running.unset("leave", "s", "a")
    restored.restore(running.save())
    assert restored.save() == running.save()
    for timers in (running, restored):
        timers.set(10, "leave", "s", "a")
    assert restored.save() == running.save() == [[10, 0, ["leave", "s", "b"]], [10, 1, ["leave", "s", "a"]]]
    assert list(restored.due(10)) == list(running.due(10)) == [("leave", "s", "b"), ("leave", "s", "a")]
