"""Numbering keys: against a dict, for keys that are packed, keys that are mixed, and changes from one to the other."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.operators.aggregate import groups
from millrace.operators.aggregate.groups import Keys
from millrace.protocol import MAX_INT64, MIN_INT64, Type
from millrace.values.batch import column_from, listed
from tests.depth import examples
from tests.kernels import both_ways

# Numbers in turn, numbers next to the ends of what fits, and numbers far from each other.
INTEGERS = st.one_of(
    st.integers(-3, 12),
    st.integers(0, 400),
    st.integers(MIN_INT64, MIN_INT64 + 3),
    st.integers(MAX_INT64 - 3, MAX_INT64),
    st.integers(-5, 5).map(lambda value: value << 40),
)
VALUES = {
    Type.BIGINT: INTEGERS,
    Type.DOUBLE: st.one_of(st.sampled_from([0.0, -0.0, 1.5, -1.5]), st.integers(0, 50).map(float)),
    Type.TEXT: st.text("ab", max_size=3),
    Type.BOOLEAN: st.booleans(),
}


def keys_strategy(draw: Any) -> tuple[list[Type], list[int], list[list[tuple[Any, ...]]]]:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    nullable = [at for at, type in enumerate(types) if type is not Type.TEXT and draw(st.booleans())]
    columns = [
        st.one_of(st.none(), VALUES[type]) if at in nullable or type is Type.TEXT else VALUES[type]
        for at, type in enumerate(types)
    ]
    batches = draw(st.lists(st.lists(st.tuples(*columns), min_size=1, max_size=40), min_size=1, max_size=6))
    return types, nullable, batches


@both_ways("grouping")
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_agrees_with_a_dict(kernel: ModuleType, data: st.DataObject) -> None:
    types, nullable, batches = keys_strategy(data.draw)
    known: dict[tuple[Any, ...], int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "grouping", kernel)
        patch.setattr(groups, "FEW", data.draw(st.sampled_from([1, 4, 64])))
        keys = Keys(types, nullable)
        for rows in batches:
            expected = [known.setdefault(row, len(known)) for row in rows]
            made = [column_from(type, values) for type, values in zip(types, zip(*rows, strict=True), strict=True)]
            if len(rows) == 1 and data.draw(st.booleans()):
                columns, valid = [column for column, _ in made], [mask for _, mask in made]
                assert [keys.find_one(columns, valid, range(len(types)))] == expected
            else:
                assert keys.find([column for column, _ in made], [mask for _, mask in made]).tolist() == expected
            assert keys.count == len(known)
            if data.draw(st.booleans()):
                restored = Keys(types, nullable)
                restored.restore(keys.save())
                assert restored.nbytes == keys.nbytes
                keys = restored
        decoded = [listed(values, mask) for values, mask in keys.decode(0, keys.count)]
        assert list(zip(*decoded, strict=True)) == list(known)


@both_ways("grouping")
def test_numbers_in_turn_have_a_place_each_until_one_is_far_away(kernel: ModuleType) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "grouping", kernel)
        keys = Keys([Type.BIGINT, Type.BIGINT], ())
        dense = np.arange(1024)
        expected = np.arange(1024)
        for low in (5, -27):  # the second time just below those that are there
            columns = [dense // 32 + low, dense % 32]
            assert keys.find(columns, [None, None]).tolist() == expected.tolist()
            assert keys._packs
            expected += 1024
        far = [np.array([0, 1 << 50]), np.array([0, 7])]
        assert keys.find(far, [None, None])[1] == keys.count - 1
        assert not keys._packs
        assert keys.find([dense // 32 + 5, dense % 32], [None, None]).tolist() == dense.tolist()


@both_ways("grouping")
@pytest.mark.parametrize("step", [1, -1])
def test_numbers_that_rise_or_fall_seldom_leave_the_range(kernel: ModuleType, step: int) -> None:
    """Each time costs a look at all groups."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "grouping", kernel)
        keys = Keys([Type.BIGINT], ())
        looks = 0
        include = keys._include

        def counted(rows: Any) -> None:
            nonlocal looks
            looks += 1
            include(rows)

        patch.setattr(keys, "_include", counted)
        for start in range(0, 4096, 8):
            assert keys.find([step * np.arange(start, start + 8)], [None]).tolist() == list(range(start, start + 8))
        assert keys._packs
        assert looks < 40
