"""Any bytes decode to a message or raise PeerError."""

import math
import random

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.protocol import (
    CODES,
    MAX_INT64,
    MIN_INT64,
    Field,
    PeerError,
    RowError,
    Schema,
    Type,
    decode,
    encode,
    peek,
)
from millrace.protocol import messages as m
from millrace.protocol.fields import array_head, pack_integer
from millrace.protocol.messages import LAYOUT, Kind, carries_tuples, data_head, kind_of
from millrace.protocol.types import FIELD_TYPES
from tests.protocol.vectors import ACCEPTED, EXAMPLES, MESSAGES, REFUSED, message, plain

# The vectors. The packer of msgpack is the oracle of their bytes.


@pytest.mark.parametrize("vector", MESSAGES, ids=lambda vector: f"{vector['message']}: {vector['says']}")
def test_vectors(vector):
    body = bytes.fromhex(vector["body"])
    assert msgpack.packb(plain(vector["data"])) == body
    assert encode(message(vector)) == body
    assert decode(body) == message(vector)
    assert decode(memoryview(body)) == message(vector)
    assert vector["frame"] == len(body).to_bytes(4, "big").hex() + vector["body"]


def test_every_message_has_a_vector():
    assert {type(example) for example in EXAMPLES} == set(LAYOUT)
    assert {kind for kind, _ in LAYOUT.values()} == set(Kind)


@pytest.mark.parametrize("vector", REFUSED, ids=lambda vector: vector["says"])
def test_refused_bodies(vector):
    with pytest.raises(PeerError) as caught:
        decode(bytes.fromhex(vector["body"]))
    error = caught.value
    assert error.code == vector["code"]
    assert all((error.expected, error.got, error.where))
    assert error.code in CODES


@pytest.mark.parametrize("vector", ACCEPTED, ids=lambda vector: vector["says"])
def test_other_forms_of_the_same_body(vector):
    assert decode(bytes.fromhex(vector["body"])) == decode(bytes.fromhex(vector["same_as"]))


# Complete, cut at every byte, and with further bytes.


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_cut_and_trailing(example):
    body = encode(example)
    for end in range(len(body)):
        refused(body[:end])
    for more in (b"\0", b"\xc0", b"\x93abc"):
        refused(body + more)


def refused(body):
    with pytest.raises(PeerError) as caught:
        decode(body)
    assert caught.value.code in CODES
    return caught.value


# Any message is decoded as it was encoded.

NUMBER = st.integers(0, MAX_INT64)
INT64 = st.integers(MIN_INT64, MAX_INT64)
TEXT = st.text(max_size=40)
CHANNEL = st.integers(0, 2**31 - 1)
SCHEMA = st.lists(
    st.builds(Field, TEXT, st.sampled_from(FIELD_TYPES), st.booleans()), max_size=6, unique_by=lambda field: field.name
).map(lambda fields: Schema(tuple(fields)))
VALUE = st.one_of(
    st.none(), st.booleans(), INT64, st.floats(allow_nan=False, allow_infinity=False), TEXT, st.binary(max_size=20)
)
ROWS = st.integers(0, 5).flatmap(lambda width: st.lists(st.tuples(*[VALUE] * width), max_size=20))
BY_READING = {
    "integer >= 0": NUMBER,
    "integer >= 0 or nil": st.none() | NUMBER,
    "integer": INT64,
    "integer or nil": st.none() | INT64,
    "integer 0 to 2^31 - 1": CHANNEL,
    "integer 0 to 2^31 - 1 or nil": st.none() | CHANNEL,
    "text": TEXT,
    "text or nil": st.none() | TEXT,
    "integer >= 0 or nil; may be left out": st.none() | NUMBER,
    "text or nil; may be left out": st.none() | TEXT,
    "array of text or nil; may be left out": st.none() | st.lists(TEXT, max_size=5).map(tuple),
    "array of [name, value] or nil; may be left out": st.none()
    | st.dictionaries(TEXT, VALUE, max_size=3).map(lambda pairs: tuple(pairs.items())),
    "integer 1 to 2^63 - 1 or nil; may be left out": st.none() | st.integers(1, MAX_INT64),
    "array of rows or nil; may be left out": st.none() | ROWS,
    "boolean": st.booleans(),
    "bytes": st.binary(max_size=100),
    "array of rows": ROWS,
    "array of [name, type, nullable]": SCHEMA,
    "array of 4 integers >= 0": st.builds(m.Limits, NUMBER, NUMBER, NUMBER, NUMBER),
    "'accepted' or 'durable'": st.sampled_from(["accepted", "durable"]),
    "'rows' or 'arrow'": st.sampled_from(["rows", "arrow"]),
    "'us' or 'ms' or 's' or 'ns' or nil; may be left out": st.none() | st.sampled_from(["us", "ms", "s", "ns"]),
    "'external' or 'internal' or 'latent'": st.sampled_from(["external", "internal", "latent"]),
}


@st.composite
def any_message(draw):
    kind = draw(st.sampled_from(list(LAYOUT)))
    return kind(*(draw(BY_READING[item.expects]) for item in LAYOUT[kind][1]))


@example(m.Ack(0, 0))
@example(m.Ack(70_000, 2**40))
@given(any_message())
def test_any_message_survives_encoding(sample):
    body = encode(sample)
    assert decode(body) == sample
    assert body[1] == kind_of(sample)
    if carries_tuples(body):
        check_peek(body, sample)
    if isinstance(sample, m.Ack) and sample.meaning == "accepted":
        assert m.ack(sample.channel, sample.sequence) == body


def check_peek(body, sample):
    head = peek(body)
    count = len(sample.rows) if hasattr(sample, "rows") else sample.count
    assert head[:3] == (kind_of(sample), sample.channel, sample.sequence)
    assert head.tuples == count
    payload = body[head.offset :]
    if hasattr(sample, "rows"):
        assert msgpack.unpackb(payload, use_list=False) == tuple(sample.rows)
        assert data_head(Kind(body[1]), sample.channel, sample.sequence) + payload == body
    else:
        assert payload == sample.batch


@given(st.integers(0, MAX_INT64))
def test_integers_and_heads_are_packed_as_msgpack_packs_them(value):
    assert pack_integer(value) == msgpack.packb(value)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
def test_array_heads(count):
    assert msgpack.packb([None] * count).startswith(array_head(count) + b"\xc0" * min(count, 1))


# Invalid bytes.


def test_a_hundred_thousand_random_and_mutated_bodies():
    chance = random.Random(7)
    bodies = [encode(example) for example in EXAMPLES]
    decoded = 0
    for _ in range(100_000):
        body = mutated(chance, bodies)
        sample = ask(decode, body)
        if carries_tuples(body):
            ask(peek, body)
        if sample is not None:
            decoded += 1
            assert_wholesome(sample)
    assert decoded > 1_000  # some mutations are still valid


def mutated(chance, bodies):
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(40))
    body = bytearray(chance.choice(bodies))
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(body))
        match chance.randrange(4):
            case 0:
                body[at] = chance.randrange(256)
            case 1:
                body[at] ^= 1 << chance.randrange(8)
            case 2:
                body[at:at] = chance.randbytes(chance.randrange(1, 9))
            case _:
                del body[at : at + chance.randrange(1, 5)]
        if not body:
            break
    return bytes(body)


def ask(reader, body):
    """The result of a reader, or None for PeerError with a published code. Any other exception fails the test."""
    try:
        return reader(body)
    except PeerError as refusal:
        return CODES[refusal.code] and None


def assert_wholesome(sample):
    """A decoded message has only values that the wire allows."""
    for row in getattr(sample, "rows", ()):
        assert isinstance(row, tuple)
        for value in row:
            assert type(value) in (type(None), bool, int, float, str, bytes)
            if isinstance(value, float):
                assert math.isfinite(value)
            if isinstance(value, int):
                assert MIN_INT64 <= value <= MAX_INT64
    assert sample is None or decode(encode(sample)) == sample


@given(st.binary(max_size=64))
def test_random_bytes(body):
    assert_wholesome(ask(decode, body))


@given(
    st.recursive(
        VALUE | st.floats() | st.integers(0, 2**64 - 1), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)
    )
)
def test_any_msgpack_value_in_any_field(value):
    packed = msgpack.packb(value)
    for body in (b"\x92\x14" + packed, b"\x92\x16" + packed, b"\x94\x05\0\0" + packed, b"\x94\x05\0\0\x91" + packed):
        assert_wholesome(ask(decode, body))


# Memory: a small body must not cause a large allocation.


@pytest.mark.parametrize(
    "payload",
    [
        b"\xdd\x00\x01\x00\x00" * 3_000,
        b"\xdd\xff\xff\xff\xff" * 3_000,
        b"\x91" + b"\xdc\x10\x00" * 3_000,
        b"\x91\xdb\x7f\xff\xff\xff",
        b"\x91\xc6\x7f\xff\xff\xff",
        b"\x91\xdf\x00\x00\x10\x00" * 3_000,
        b"\x91\xc9\x7f\xff\xff\xff\x05",
    ],
)
def test_announced_lengths_without_content_are_refused_cheaply(payload):
    import tracemalloc

    tracemalloc.start()
    try:
        refused(b"\x94\x05\x00\x00" + payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("94058000", "bad_message"),
        ("9405ff0090", "bad_message"),
        ("9405ce8000000000", "bad_message"),
        ("9405000080", "bad_message"),
        ("94050000dd00010001", "bad_message"),
        ("9305000090", "bad_message"),
        ("94050000", "bad_frame"),
        ("94050000dc00", "bad_frame"),
        ("9506000001c402ff", "bad_frame"),
        ("9506000001c401ff00", "bad_frame"),
        ("9506000001a161", "bad_message"),
        ("950e000090", "bad_message"),
    ],
)
def test_heads_that_peek_refuses(body, code):
    with pytest.raises(PeerError) as caught:
        peek(bytes.fromhex(body))
    assert caught.value.code == code


def test_a_bad_row_is_named_by_its_index():
    rows: list[tuple] = [(1, 2.0)] * 500
    for bad, code in (((1, math.nan), "bad_value"), ((2**63, 1.0), "bad_value"), ((1,), "bad_row")):
        rows[123] = bad
        error = refused(encode(m.Data(0, 0, rows)))
        assert (error.code, error.row) == (code, 123)


def test_an_exception_as_an_error_message():
    row = RowError("row 4: expected bigint, got text", row=3, expected="bigint", got="text")
    assert m.Error.of(row, 1, 7) == m.Error("bad_row", "row 4: expected bigint, got text", 1, 7, 3, "bigint", "text")
    peer = PeerError.at("HELLO", expected="protocol 1", got="2", code="unsupported_protocol")
    error = m.Error.of(peer)
    assert error.text == "HELLO: expected protocol 1, got 2"
    assert (error.channel, error.expected, error.got) == (None, "protocol 1", "2")


def test_layouts_follow_their_dataclasses():
    for kind, (_, items) in LAYOUT.items():
        assert tuple(item.name for item in items) == kind.__match_args__
        assert all(item.expects in BY_READING for item in items)
    assert Type.INTERVAL not in FIELD_TYPES


@pytest.mark.parametrize(("bad", "row"), [(0, "row 1"), (2, "row 3")])
def test_a_text_counts_rows_from_1_and_the_field_from_0(bad, row):
    rows = [(1,) if place != bad else (2**64 - 1,) for place in range(4)]
    with pytest.raises(PeerError) as refused:
        decode(encode(m.Data(0, 0, rows)))
    assert refused.value.row == bad
    assert refused.value.text.startswith(f"{row}: expected ")
