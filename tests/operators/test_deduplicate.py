"""The first row of each key per span, compared with the oracle, under ties, batches, limits, saves and restores."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.operators.deduplicate import deduplicate
from millrace.operators.deduplicate.spec import DeduplicateSpec
from millrace.protocol import Type
from millrace.values.expression import Call, Constant, Expression
from tests.kernels import both_ways
from tests.operators.test_aggregate import NAMES, SETTINGS, Harness, column, on_time, rows_strategy
from tests.oracles.deduplication import first_rows

Row = tuple[int, tuple[Any, ...]]


def harness(within: int, *keys: Expression) -> Harness:
    return Harness(DeduplicateSpec(keys, within))  # type: ignore[arg-type]


def key_of(row: tuple[Any, ...], names: list[str]) -> tuple[Any, ...]:
    return tuple(row[NAMES.index(name)] for name in names)


@both_ways("deduplicate")
@SETTINGS
@given(data=st.data())
def test_kept_rows_agree_with_the_oracle(kernel: Any, data: st.DataObject) -> None:
    rows = sorted(data.draw(rows_strategy), key=lambda row: row[0])
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True))
    within = data.draw(st.integers(1, 30))
    limit = data.draw(st.sampled_from([1, 2, 7, 1 << 30]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deduplicate, "kernel", kernel)
        bench = harness(within, *map(column, names))
        for piece, promise in on_time(rows, data.draw):
            bench.put(piece)
            if promise is not None:
                bench.input.punctuate(promise)
            bench.work(limit)
            if data.draw(st.integers(0, 3)) == 0:
                bench.again()
        bench.end(limit)
    expected = first_rows([(ts, key_of(row, names), row) for ts, row in rows], within)
    assert list(zip(bench.times, bench.rows, strict=True)) == expected


def number(ts: int, key: int | None) -> Row:
    return ts, tuple(key if name == "i" else None for name in NAMES)


def test_both_ends_of_a_span_belong_to_it_and_null_is_a_key() -> None:
    bench = harness(10, column("i"))
    bench.put([number(0, 1), number(0, 1), number(10, 1), number(10, None), number(11, 1), number(20, None)])
    bench.end()
    assert bench.times == [0, 10, 11]


def test_state_is_dropped_as_time_passes() -> None:
    bench = harness(10, column("i"))
    bench.put([number(0, key) for key in range(100)])
    bench.work(1 << 30)
    assert bench.operator.state_tuples == 100
    bench.input.punctuate(10)
    bench.work(1 << 30)
    assert bench.operator.state_tuples == 100
    bench.input.punctuate(21)
    bench.work(1 << 30)
    assert bench.operator.state_tuples == 0


def test_many_keys_at_many_times_keep_at_most_two_spans() -> None:
    bench = harness(10, column("i"))
    for ts in range(1_000):
        bench.put([number(ts, ts)])
        bench.input.punctuate(ts)
        bench.work(1 << 30)
        assert bench.operator.state_tuples <= 2 * 11


def test_rows_without_a_key_are_counted() -> None:
    total = Call(Type.BIGINT, True, "+(bigint, bigint)", (Constant(Type.BIGINT, False, 2**63 - 1), column("i")))
    bench = harness(10, total)
    bench.put([number(0, 1), number(1, -1)])
    bench.end()
    assert (bench.times, bench.operator.counts.errors) == ([1], 1)
