"""Checked int64 arithmetic against Python's unbounded integers."""

import operator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.protocol import MAX_INT64, MIN_INT64
from tests.kernels import both_ways

ROOT = 3_037_000_499  # the largest number whose square fits
EDGES = [0, 1, -1, 2, -2, MAX_INT64, MIN_INT64, MAX_INT64 // 2, MIN_INT64 // 2, 2**32, -(2**32), ROOT, ROOT + 1]

int64 = st.one_of(st.integers(MIN_INT64, MAX_INT64), st.sampled_from(EDGES), st.integers(-(2**33), 2**33))
pairs = st.lists(st.tuples(int64, int64), max_size=20)

EXACT = {"add_checked": operator.add, "sub_checked": operator.sub, "mul_checked": operator.mul}


def run(kernel, function, rows):
    a, b = (np.array([row[side] for row in rows], dtype=np.int64) for side in (0, 1))
    a.flags.writeable = b.flags.writeable = False
    out = np.full(len(rows), 7, dtype=np.int64)
    return getattr(kernel, function)(a, b, out), out.tolist()


def by_big_integers(function, rows):
    exact = [EXACT[function](x, y) for x, y in rows]
    wrapped = [(value + 2**63) % 2**64 - 2**63 for value in exact]
    return exact != wrapped, wrapped


@both_ways("arithmetic")
@pytest.mark.parametrize("function", EXACT)
@given(rows=pairs)
@example(rows=[])
@example(rows=[(MIN_INT64, -1)])
@example(rows=[(ROOT, ROOT), (ROOT + 1, ROOT + 1)])
def test_agrees_with_big_integers(kernel, function, rows):
    assert run(kernel, function, rows) == by_big_integers(function, rows)


@both_ways("arithmetic")
@pytest.mark.parametrize("function", EXACT)
def test_every_pair_of_edges_alone(kernel, function):
    for x in EDGES:
        for y in EDGES:
            assert run(kernel, function, [(x, y)]) == by_big_integers(function, [(x, y)]), (x, y)


@both_ways("arithmetic")
@given(factor=st.integers(2, MAX_INT64), sign=st.sampled_from([1, -1]), nudge=st.integers(-2, 2))
def test_products_at_the_very_edge(kernel, factor, sign, nudge):
    other = sign * (2**63 // factor + nudge)
    rows = [(factor, max(MIN_INT64, min(MAX_INT64, other)))]
    assert run(kernel, "mul_checked", rows) == by_big_integers("mul_checked", rows)


@both_ways("arithmetic")
def test_takes_strided_columns_and_an_output_that_is_an_input(kernel):
    column = np.arange(20, dtype=np.int64)
    assert kernel.add_checked(column[::2], column[1::2], column[::2]) is False
    assert column[::2].tolist() == [1, 5, 9, 13, 17, 21, 25, 29, 33, 37]
