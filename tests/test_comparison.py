"""The classes of equality: the differences that they accept, and those that they report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.comparison import equal_values, same_event_order, same_final, same_rows

VALUES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("ab", max_size=2)
ROWS = st.lists(st.tuples(VALUES, VALUES), max_size=12)


@given(rows=ROWS, seed=st.randoms(use_true_random=False))
def test_the_order_of_rows_is_free_and_their_number_is_not(rows, seed):
    shuffled = rows[:]
    seed.shuffle(shuffled)
    assert same_rows(rows, shuffled) is None
    assert same_rows([*rows, (9, 9)], shuffled) is not None
    assert same_rows(rows, [*shuffled, (9, 9)]) is not None
    if rows:
        assert same_rows(rows, [*shuffled[1:], ("other", 0)]) is not None


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (0.1 + 0.2, 0.3, True),
        (1.0, 1, True),
        (1e300, 1e300 * (1 + 1e-10), True),
        (1.0, 1.0 + 1e-8, False),
        (0.0, 1e-12, False),
        (1, True, False),
        (0, None, False),
        ("1", 1, False),
        (None, None, True),
    ],
)
def test_values(first, second, same):
    assert equal_values(first, second) is same
    assert equal_values(second, first) is same


def test_doubles_that_differ_in_their_last_digits_find_each_other():
    ones = [(number + 0.1 + 0.2, "x") for number in range(50)]
    assert same_rows(ones, [(number + 0.3, "x") for number in reversed(range(50))]) is None
    assert same_rows(ones, [(number + 0.3, "x" if number else "y") for number in range(50)]) is not None


def test_event_order_is_up_to_ties():
    def time(row):
        return row[0]

    assert same_event_order([(1, "a"), (1, "b"), (2, "c")], [(1, "b"), (1, "a"), (2, "c")], time) is None
    assert "falls back" in (same_event_order([(2, "c"), (1, "a")], [(1, "a"), (2, "c")], time) or "")
    assert same_event_order([(1, "a")], [(1, "b")], time) is not None


def test_final_compares_the_last_row_of_each_key():
    def key(row):
        return row["k"]

    rows: list[dict] = [{"k": 1, "v": 1}, {"k": 2, "v": 5}, {"k": 1, "v": 2.0}]
    assert same_final(rows, [{"k": 1, "v": 2.0}, {"k": 2, "v": 5}], key) is None
    assert same_final(rows, [{"k": 1, "v": 1}, {"k": 2, "v": 5}], key) is not None
    assert same_final(rows, [{"k": 1, "v": 2.0}], key) is not None
