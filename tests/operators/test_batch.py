"""Batches: every type and null survives, parts share their arrays, and arrays are never written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocol import MAX_INT64, MIN_INT64, Field, Schema, Type
from millrace.values.batch import FILLERS, Batch, constant_int64
from millrace.values.texts import is_texts

ALL = Schema(
    tuple(
        Field(type.value, type)
        for type in (Type.BOOLEAN, Type.BIGINT, Type.DOUBLE, Type.TEXT, Type.BYTES, Type.TIMESTAMP)
    )
)

integers = st.integers(MIN_INT64, MAX_INT64)
values = st.tuples(
    st.none() | st.booleans(),
    st.none() | integers,
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.text(max_size=4),
    st.none() | st.binary(max_size=4),
    st.none() | integers,
)
tables = st.lists(values, max_size=12)


def made(rows: list[tuple[Any, ...]]) -> Batch:
    return Batch.from_rows(ALL, rows, list(range(len(rows))), arrival=7)


@given(tables)
def test_rows_of_every_type_come_back(rows: list[tuple[Any, ...]]) -> None:
    batch = made(rows)
    assert batch.rows() == rows
    assert [type(value) for row in batch.rows() for value in row] == [type(value) for row in rows for value in row]


@given(tables)
def test_what_stands_under_a_null_is_always_the_same(rows: list[tuple[Any, ...]]) -> None:
    batch = made(rows)
    for field, column, valid in zip(ALL, batch.columns, batch.valid, strict=True):
        if valid is not None:
            assert all(value == FILLERS[field.type] for value in column[~valid])


@given(tables, st.data())
def test_parts_are_the_parts_of_the_list(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    batch = made(rows)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), bool)
    assert batch.slice(start, stop).rows() == rows[start:stop]
    assert batch.take(mask).rows() == [row for row, kept in zip(rows, mask, strict=True) if kept]
    assert Batch.concat([batch.slice(0, start), batch.slice(start, stop), batch.slice(stop, len(rows))]) == batch
    assert Batch.restore(batch.save()) == batch


def test_a_slice_shares_its_arrays() -> None:
    batch = made([(True, 1, 1.0, "a", b"a", 1), (None, None, None, None, None, None), (False, 2, 2.0, "b", b"b", 2)])
    part = batch.slice(1, 3)
    for whole, cut in zip(batch.columns, part.columns, strict=True):
        if is_texts(whole):
            assert is_texts(cut)
            assert cut.data is whole.data
        else:
            assert np.shares_memory(whole, cut)
    assert np.shares_memory(batch.ts, part.ts)


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_a_constant_array_is_an_array_that_stores_one_value(count: int) -> None:
    array = constant_int64(5, count)
    assert array.tolist() == [5] * count
    if count > 1:
        assert array.strides == (0,)


def test_when_tuples_arrived_stays_a_constant_through_a_selection() -> None:
    batch = made([(True, n, 0.0, "", b"", n) for n in range(100)])
    assert batch.arrival.strides == (0,)
    taken = batch.take(np.arange(0, 100, 2))
    assert taken.arrival.strides == (0,)
    assert taken.arrival.tolist() == [7] * 50


def test_schemas_tell_themselves_apart() -> None:
    one = Schema.of(a="bigint", b="text")
    assert one.fingerprint() == Schema.of(a="bigint", b="text").fingerprint()
    others = [Schema.of(b="text", a="bigint"), Schema.of(a="double", b="text"), Schema.of(a="bigint", c="text")]
    others.append(Schema((Field("a", Type.BIGINT, nullable=False), Field("b", Type.TEXT))))
    assert len({schema.fingerprint() for schema in [one, *others]}) == 5
    assert Schema.from_data(one.to_data()) == one


@given(tables)
def test_the_weight_is_at_least_the_bytes_of_the_values(rows: list[tuple[Any, ...]]) -> None:
    import sys

    batch = made(rows)
    values = sum(sys.getsizeof(value) for row in batch.rows() for value in row if isinstance(value, str | bytes))
    assert batch.weight >= values
    assert batch.weight <= 1_500 + 400 * len(rows)


@given(tables, st.data())
def test_the_parts_of_a_batch_weigh_as_much_as_the_whole(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    batch = made(rows)
    at = data.draw(st.integers(0, len(rows)))
    first, rest = batch.split(at)
    assert first.rows() + rest.rows() == rows
    assert first.weight + rest.weight == batch.weight
