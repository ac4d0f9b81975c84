"""Comparison by class of equality agrees with the tests' helpers, and shows exactly the differences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.backfill.compare import Differences, compare_final, compare_rows, side_by_side
from tests.comparison import same_final, same_rows

VALUES = st.one_of(st.none(), st.booleans(), st.sampled_from([0.0, -0.0, 1.0, 1.0 + 1e-12, 1.1]))
ROWS = st.lists(st.tuples(st.integers(0, 2), VALUES).map(lambda row: dict(zip("kv", row, strict=True))), max_size=6)


@given(ROWS, ROWS)
def test_multisets(one, other):
    found = compare_rows(one, other)
    assert (found.count == 0) == (same_rows(one, other) is None)
    assert len(one) - len(found.missing) == len(other) - len(found.extra)


@given(ROWS, ROWS, st.lists(st.booleans(), min_size=12, max_size=12))
def test_last_rows(one, other, gone):
    one = [{**row, "$gone": dead} for row, dead in zip(one, gone, strict=False)]
    other = [{**row, "$gone": dead} for row, dead in zip(other, reversed(gone), strict=False)]
    found = compare_final(one, other, ["k"])
    plain = [[{name: value for name, value in row.items() if name != "$gone" or value} for row in rows]
             for rows in (one, other)]  # fmt: skip
    assert (found.count == 0) == (same_final(plain[0], plain[1], lambda row: row["k"]) is None)


def test_what_differs_is_shown():
    rows = [{"k": 1, "v": 1.0}, {"k": 1, "v": 1.0}, {"k": 2, "v": 2.0}]
    found = compare_rows(rows, [{"k": 1, "v": 1.0 + 1e-12}, {"k": 2, "v": 2.1}])
    assert found.missing == [rows[0], rows[2]]
    assert found.extra == [{"k": 2, "v": 2.1}]
    final = compare_final(rows, [{"k": 1, "v": 3.0}, {"k": 3, "v": 0.0}], ["k"])
    assert final.changed == [({"k": 1, "v": 1.0}, {"k": 1, "v": 3.0})]
    assert (final.missing, final.extra) == ([rows[2]], [{"k": 3, "v": 0.0}])


def test_differences_come_in_order_of_time_with_the_halves_of_a_row_together():
    def row(at, key, n):
        return {"n": n, "key": key, "at": at}

    found = Differences(
        9,
        missing=[row(30, "a", 3), row(10, "a", 1), row(10, "b", 2), row(None, "c", 1)],
        extra=[row(10, "b", 5), row(20, "x", 1), row(10, "a", 7), row(10, "c", 9)],
        changed=[(row(20, "k", 1), row(25, "k", 2))],
    )
    assert list(side_by_side(found, "at")) == [
        (row(None, "c", 1), None),
        (row(10, "a", 1), None),
        (None, row(10, "a", 7)),
        (row(10, "b", 2), None),
        (None, row(10, "b", 5)),
        (None, row(10, "c", 9)),
        (row(20, "k", 1), row(25, "k", 2)),
        (None, row(20, "x", 1)),
        (row(30, "a", 3), None),
    ]
    assert len(list(side_by_side(found, None))) == found.count


@given(ROWS, ROWS)
def test_side_by_side_loses_nothing(one, other):
    found = compare_rows(one, other)
    shown = list(side_by_side(found, "k"))
    assert sorted(map(str, (left for left, _ in shown if left))) == sorted(map(str, found.missing))
    assert sorted(map(str, (right for _, right in shown if right))) == sorted(map(str, found.extra))
