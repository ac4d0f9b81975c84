"""Rows as text from columns: the bytes are those of the ordinary way, one row after another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.formats import textrows, writers
from millrace.protocol import Schema
from millrace.protocol.timestamps import FIRST_US, LAST_US, format_timestamp
from millrace.values.batch import Batch
from tests.kernels import both_ways

TYPES = {
    "boolean": st.booleans(),
    "bigint": st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, -1, 10, 99, -(2**63), 2**63 - 1]),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "text": st.text() | st.sampled_from(["", ",", '"', "\\", 'a\\"', "\r", "\n", " x", "é€😀", "null"]),
    "bytes": st.binary(max_size=9),
    "timestamp": st.integers(FIRST_US, LAST_US)
    | st.sampled_from([FIRST_US, LAST_US, 0, -1, 951_782_400_000_000, 4_107_542_400_000_000 - 1])
    | st.integers(-(2**63), 2**63 - 1),
}


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    types = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=5))
    names = draw(st.lists(st.text(min_size=1, max_size=4), min_size=len(types), max_size=len(types), unique=True))
    # Mostly values that leave the rows to the kernel.
    values = [
        st.none() | (TYPES[type_] if draw(st.booleans()) else st.just({"timestamp": 0, "text": "a b"}.get(type_)))
        for type_ in types
    ]
    rows = draw(st.lists(st.tuples(*values), min_size=1, max_size=20))
    schema = Schema.of(**dict(zip(names, types, strict=True)))
    return Batch.from_rows(schema, rows, [0] * len(rows))


@pytest.fixture(autouse=True)
def every_batch(monkeypatch):
    """Few rows, too, and whether or not kernels are compiled."""
    monkeypatch.setattr(textrows, "FEW_ROWS", 0)
    monkeypatch.setattr(textrows, "WORTHWHILE", True)


def ordinary(write):
    """What is written without the kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(textrows, "WORTHWHILE", False)
        return write()


@both_ways("writing")
@given(batch=batches(), first=st.integers(0, 2**62), query=st.text(max_size=3))
def test_lines_and_values_are_those_of_the_ordinary_way(kernel, batch, first, query):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(textrows, "writing", kernel)
        for write in (
            lambda: writers.json_lines(batch),
            lambda: writers.csv_lines(batch),
            lambda: writers.row_lines(query, first, batch, "h\\"),
        ):
            assert write() == ordinary(write)


@both_ways("writing")
def test_every_day_has_its_date(kernel, monkeypatch):
    """A day in each month of all years, at any time of the day."""
    monkeypatch.setattr(textrows, "writing", kernel)
    ts = np.arange(FIRST_US, LAST_US, 29 * 86_400_000_000 + 3_661_000_001)
    if not kernel.__file__.endswith(".so"):
        ts = ts[::10]
    text = textrows.csv_text(Batch(Schema.of(a="timestamp", b="timestamp"), ts, [ts, ts]))
    assert text == "".join([f"{format_timestamp(us)},{format_timestamp(us)}\n" for us in ts.tolist()]).encode()


def test_which_rows_are_left_to_the_ordinary_way():
    def batch(**columns):
        rows = list(zip(*(values for _, values in columns.values()), strict=True))
        return Batch.from_rows(
            Schema.of(**{name: type_ for name, (type_, _) in columns.items()}), rows, [0] * len(rows)
        )

    assert textrows.json_text(batch(k=("bigint", [1, None]))) == b'{"k":1}\n{"k":null}\n'
    assert textrows.json_text(batch(k=("timestamp", [LAST_US + 1]))) is None
    assert textrows.csv_text(batch(k=("bigint", [1]), t=("text", ["a,b"]))) is None
    assert textrows.csv_text(batch(k=("bigint", [1]), t=("text", ["a b"]))) == b"1,a b\n"
    assert textrows.csv_text(batch(k=("bigint", [1]))) is None
