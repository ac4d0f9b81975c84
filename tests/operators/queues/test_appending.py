"""Queues that append: all tuples in order, or a random choice of a fixed number."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine import saving
from millrace.operators.queues import appending, pages
from millrace.operators.queues.appending import AppendQueue, SheddingQueue
from millrace.protocol import Schema
from millrace.values.batch import Batch
from tests.kernels import installed, uncompiled

SCHEMA = Schema.of(v="bigint")
STEPS = st.lists(st.one_of(st.integers(1, 7), st.integers(-5, -1), st.just(0)), max_size=30)


def batch_of(values: list[int]) -> Batch:
    return Batch(SCHEMA, np.array(values, np.int64), [np.array(values, np.int64)])


def values_of(batch: Batch | None) -> list[int]:
    return [] if batch is None else [row[0] for row in batch.rows()]


def reloaded(queue: Any, blank: Any) -> Any:
    saved = saving.pack(queue.save())
    blank.restore(saving.unpack(saved))
    assert saving.pack(blank.save()) == saved
    return blank


@given(steps=STEPS)
def test_append_loses_nothing(steps: list[int]) -> None:
    wanted: list[int] = []
    made, put = AppendQueue(), 0
    for step in steps:
        if step > 0:
            made.enqueue(batch_of(list(range(put, put + step))), 0)
            wanted += range(put, put + step)
            put += step
        elif step < 0:
            assert values_of(made.dequeue(-step, 0)) == wanted[:-step]
            del wanted[:-step]
        else:
            made = reloaded(made, AppendQueue())
        assert made.waiting == len(wanted)
        assert made.floor_us() <= min(wanted, default=2**63 - 1)
        assert wanted or made.floor_us() == 2**63 - 1
    assert values_of(made.drain()) == wanted


@given(steps=STEPS, limit=st.integers(1, 9), seed=st.integers(-5, 5))
def test_shedding_keeps_order_and_counts_what_it_drops(steps: list[int], limit: int, seed: int) -> None:
    """Compiled and uncompiled agree for all batches: the waiting tuples are a part of the input, in order."""
    outcomes = []
    for kernel in (installed("queues"), uncompiled("queues")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(appending, "updating", kernel)
            patch.setattr(pages, "updating", kernel)
            outcomes.append(shedding(steps, limit, seed))
    assert outcomes[0] == outcomes[1]


def shedding(steps: list[int], limit: int, seed: int) -> list[list[int]]:
    made = SheddingQueue(SCHEMA, limit, seed=seed, slots=2)
    put, taken, outcome = 0, 0, []
    last = -1
    for step in steps:
        if step > 0:
            full = made.waiting + step - limit
            shed = made.shed
            made.enqueue(batch_of(list(range(put, put + step))), 0)
            put += step
            assert made.shed == shed + max(0, full)
        elif step < 0:
            values = values_of(made.dequeue(-step, 0))
            assert values == sorted(set(values))
            assert not values or values[0] > last
            last = values[-1] if values else last
            taken += len(values)
            outcome.append(values)
        else:
            made = reloaded(made, SheddingQueue(SCHEMA, limit, slots=2))
        assert made.waiting <= limit
        assert put == made.waiting + made.shed + taken
        assert made.paging.in_use == made.waiting
        assert made.paging.taken <= made.waiting
    floor = made.floor_us()
    outcome.append(values_of(made.drain()))
    assert not outcome[-1] or floor <= outcome[-1][0]
    return outcome


def test_how_tuples_are_cut_into_batches_does_not_show() -> None:
    one, many = SheddingQueue(SCHEMA, 5), SheddingQueue(SCHEMA, 5)
    one.enqueue(batch_of(list(range(40))), 0)
    for at in range(40):
        many.enqueue(batch_of([at]), 0)
    assert values_of(one.drain()) == values_of(many.drain())


def test_each_tuple_is_as_likely_to_be_shed() -> None:
    """One too many among four, repeatedly: each of the five is dropped about equally often."""
    gone: Counter[int] = Counter()
    for seed in range(2000):
        made = SheddingQueue(SCHEMA, 4, seed=seed * 7919)
        made.enqueue(batch_of(list(range(5))), 0)
        gone.update({0, 1, 2, 3, 4} - set(values_of(made.drain())))
    assert all(330 < count < 470 for count in gone.values()), gone
