"""The source wrapper: the fast way, the slow way and Arrow refuse and accept the same rows."""

import contextlib
import math

import msgpack
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.client.arrow import to_stream
from millrace.engine.plan import StreamDefinition
from millrace.formats.decoder import StreamDecoder
from millrace.protocol import Field, MillraceError, RowError, Schema, TimestampError, Type, parse_timestamp
from millrace.values.eventtime import FIRST_US, LAST_US

SCHEMA = Schema(
    (
        Field("ts", Type.TIMESTAMP),
        Field("b", Type.BOOLEAN),
        Field("i", Type.BIGINT),
        Field("d", Type.DOUBLE),
        Field("t", Type.TEXT),
        Field("y", Type.BYTES),
        Field("must", Type.BIGINT, nullable=False),
    )
)
STREAM = StreamDefinition("s", SCHEMA, timestamps="external", time="ts")
SOURCE = StreamDecoder(STREAM)
GOOD = (5, True, 1, 1.5, "x", b"y", 7)


def oracle(row):
    """The row as it should come out, or None if it should be refused: the contract, spelt out one value at a time."""
    if type(row) is not list or len(row) != 7:
        return None
    out = []
    for field, value in zip(SCHEMA, row, strict=True):
        if value is None:
            if field.name in ("ts", "must"):
                return None
        elif field.type is Type.TIMESTAMP and type(value) is str:
            try:
                value = parse_timestamp(value)
            except TimestampError:
                return None
        elif field.type in (Type.BIGINT, Type.TIMESTAMP):
            if type(value) is not int or not -(2**63) <= value < 2**63:
                return None
        elif field.type is Type.DOUBLE:
            if type(value) not in (int, float) or not math.isfinite(value):
                return None
            value = float(value)
        elif type(value) is not {Type.BOOLEAN: bool, Type.TEXT: str, Type.BYTES: bytes}[field.type]:
            return None
        out.append(value)
    return tuple(out) if FIRST_US <= out[0] <= LAST_US else None


INT64 = st.integers(-(2**63), 2**63 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
FITTING = st.tuples(
    st.one_of(st.integers(FIRST_US, LAST_US), st.just("2026-01-01T00:00:00Z")),
    st.none() | st.booleans(),
    st.none() | INT64,
    st.none() | FINITE | st.integers(-1000, 1000),
    st.none() | st.text(max_size=5),
    st.none() | st.binary(max_size=5),
    INT64,
).map(list)
ANYTHING = st.one_of(
    st.none(), st.booleans(), INT64, st.integers(2**63, 2**64 - 1), st.floats(), st.text(max_size=5),
    st.binary(max_size=5), st.lists(st.integers(0, 3), max_size=2),
    st.dictionaries(st.text(max_size=2), st.none(), max_size=1),
)  # fmt: skip


@st.composite
def frames(draw):
    """Rows that fit; in most frames one value or row that may not."""
    rows = draw(st.lists(FITTING, max_size=6))
    if rows and draw(st.booleans()):
        at = draw(st.integers(0, len(rows) - 1))
        way = draw(st.integers(0, 2))
        if way == 0:
            rows[at][draw(st.integers(0, 6))] = draw(ANYTHING)
        elif way == 1:
            rows[at] = draw(st.one_of(ANYTHING, st.lists(ANYTHING, max_size=8)))
        else:
            rows[at] = rows[at][:-1]
    return rows


def outcome(decode):
    """The rows, or the number of the row that was refused."""
    try:
        return decode().rows()
    except RowError as error:
        complete = error.code in ("bad_row", "bad_value") and error.expected and error.got
        return error.row if complete else error


@given(frames())
@example([[*GOOD[:3], math.nan, *GOOD[4:]]])
@example([[*GOOD[:2], 2**63, *GOOD[3:]]])
@example([["5", *GOOD[1:]]])
def test_a_frame_is_what_the_oracle_says(rows):
    wanted = [oracle(row) for row in rows]
    expected = wanted if None not in wanted else wanted.index(None)
    payload = msgpack.packb(rows)
    assert outcome(lambda: SOURCE.decode(payload)) == expected
    assert outcome(lambda: SOURCE.decode(memoryview(b"..." + payload)[3:])) == expected


@given(st.lists(st.lists(FITTING, max_size=4), max_size=4))
def test_frames_together_are_the_frames_one_after_the_other(several):
    payloads = [msgpack.packb(rows) for rows in several]
    together = SOURCE.decode_many(payloads).rows() if payloads else []
    assert together == [row for payload in payloads for row in SOURCE.decode(payload).rows()]


@given(frames())
def test_objects_by_name_fit_like_rows(rows):
    rows = [row for row in rows if type(row) is list and len(row) == 7]
    wanted = [oracle(row) for row in rows]
    expected = wanted if None not in wanted else wanted.index(None)
    # What a JSON object can say: everything but bytes, which are base64.
    objects = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
    assert outcome(lambda: SOURCE.from_objects(objects)) == expected


def test_objects_may_spell_bytes_as_casts_do():
    assert SOURCE.from_objects([{"ts": 1, "must": 2, "y": "\\x6869"}]).rows()[0][5] == b"hi"
    for wrong in ("\\x6", "\\xzz", "\\"):
        with pytest.raises(RowError):
            SOURCE.from_objects([{"ts": 1, "must": 2, "y": wrong}])


def test_objects_may_leave_nullable_fields_out_and_spell_bytes_in_base64():
    assert SOURCE.from_objects([{"ts": 1, "must": 2, "y": "aGk="}]).rows() == [(1, None, None, None, None, b"hi", 2)]
    for wrong in ({"ts": 1}, {"must": 1}, {"ts": 1, "must": 2, "z": 1}, {"ts": 1, "must": 2, "y": "a"}):
        with pytest.raises(RowError):
            SOURCE.from_objects([wrong])
    loose = StreamDecoder(StreamDefinition("s", SCHEMA, timestamps="external", time="ts", extra="ignore"))
    assert loose.from_objects([{"ts": 1, "must": 2, "z": 1}]).rows()[0][-1] == 2


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x91", b"\xdd\xff\xff\xff\xff", b"\x91" * 5_000, b"\x80", b"\x05", b"\x90\x90"]
)
def test_broken_payloads(payload):
    with pytest.raises(RowError):
        SOURCE.decode(payload)


ARROW_SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", tz="UTC")),
        ("b", pa.bool_()),
        ("i", pa.int64()),
        ("d", pa.float64()),
        ("t", pa.string()),
        ("y", pa.binary()),
        ("must", pa.int64()),
    ]
)


@given(st.lists(FITTING, max_size=6))
def test_arrow_gives_the_same_batch_as_rows(rows):
    rows = [list(oracle(row)) for row in rows]
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(ARROW_SCHEMA)]
    payload = to_stream(pa.Table.from_arrays(columns, schema=ARROW_SCHEMA))
    found = SOURCE.from_arrow(payload)
    assert found.rows() == [tuple(row) for row in rows]
    assert found == SOURCE.decode(msgpack.packb(rows))


def table(**columns):
    fields = {
        "ts": [1, 2],
        "b": [True, None],
        "i": [1, 2],
        "d": [1.0, 2.0],
        "t": ["a", "b"],
        "y": [b"", b""],
        "must": [1, 2],
    }
    return pa.table({**fields, **columns})


@pytest.mark.parametrize(
    ("given_table", "row", "code"),
    [
        (table(must=[1, None]), 1, "bad_row"),
        (table(ts=pa.array([None, 1], pa.int64())), 0, "bad_row"),
        (table(d=[1.0, float("nan")]), 1, "bad_value"),
        (table(i=pa.array([1, 2**63], pa.uint64())), 1, "bad_value"),
        (table(ts=pa.array([1, 1001], pa.timestamp("ns"))), 0, "bad_value"),
    ],
)
def test_arrow_values_that_do_not_fit(given_table, row, code):
    with pytest.raises(RowError) as caught:
        SOURCE.from_arrow(to_stream(given_table))
    assert (caught.value.row, caught.value.code) == (row, code)


@pytest.mark.parametrize(
    "given_table",
    [
        table(i=["a", "b"]),
        table(i=[1.0, 2.0]),
        table(t=pa.array([b"a", b"b"], pa.binary())),
        table().drop_columns(["must"]),
        table(extra=[1, 2]),
    ],
)
def test_arrow_columns_that_do_not_fit(given_table):
    with pytest.raises(MillraceError) as caught:
        SOURCE.from_arrow(to_stream(given_table))
    assert caught.value.code == "schema_mismatch"


def test_arrow_of_wider_types():
    wide = table(i=pa.array([1, None], pa.int8()), d=pa.array([1, 2], pa.int32()))
    assert SOURCE.from_arrow(to_stream(wide)).rows()[0] == (1, True, 1, 1.0, "a", b"", 1)
    assert SOURCE.from_arrow(to_stream(wide)).rows()[1][2] is None


def test_what_could_grow_beyond_its_bytes_is_refused():
    """Compression and dictionaries: a small frame must not become a large batch."""
    for options in (pa.ipc.IpcWriteOptions(compression="zstd"), pa.ipc.IpcWriteOptions(compression="lz4")):
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, table().schema, options=options) as writer:
            writer.write(table())
        with pytest.raises(MillraceError, match="compressed"):
            SOURCE.from_arrow(out.getvalue().to_pybytes())
    with pytest.raises(MillraceError, match="dictionary"):
        SOURCE.from_arrow(to_stream(table(t=pa.array(["a", "a"]).dictionary_encode())))
    with pytest.raises(MillraceError, match="expected 3 rows"):
        SOURCE.from_arrow(to_stream(table()), 3)
    assert len(SOURCE.from_arrow(to_stream(table()), 2)) == 2


def test_tables_of_files_may_be_encoded():
    assert SOURCE.from_table(table(t=pa.array(["a", "a"]).dictionary_encode())).rows()[1][4] == "a"


def test_arrow_may_leave_nullable_columns_out():
    assert SOURCE.from_arrow(to_stream(table().drop_columns(["i", "y"]))).rows()[0] == (
        1,
        True,
        None,
        1.0,
        "a",
        None,
        1,
    )


def test_arrow_shares_the_payload_where_it_can():
    payload = to_stream(table())
    column = SOURCE.from_arrow(payload).columns[2]
    assert column.flags.aligned
    assert not column.flags.owndata


@given(st.data())
def test_damaged_arrow_is_refused_or_is_a_batch(data):
    payload = bytearray(to_stream(table()))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    for damaged in (bytes(payload), bytes(payload[:cut])):
        with contextlib.suppress(MillraceError):
            SOURCE.from_arrow(damaged).rows()
