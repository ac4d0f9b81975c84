"""Bytes in, bodies out, however the bytes are split into chunks."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.protocol import FrameReader, PeerError, frame, speaks_http, speaks_json
from millrace.protocol.frames import FRAME_BYTES, HTTP, LARGEST_LIMIT

LIMIT = 40
BODIES = st.lists(st.binary(min_size=2, max_size=LIMIT), max_size=8)


def cut(data, cuts):
    places = sorted({min(place, len(data)) for place in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def read(chunks, limit=LIMIT):
    """The bodies, and the code of the error after them."""
    reader = FrameReader(limit)
    bodies: list[bytes] = []
    try:
        for chunk in chunks:
            reader.feed(chunk)
            bodies.extend(bytes(body) for body in reader.bodies())
            assert reader.buffered <= limit + 4
    except PeerError as error:
        return bodies, error.code
    return bodies, None


def oracle(data, limit=LIMIT):
    """The oracle: the same from all bytes at once."""
    bodies: list[bytes] = []
    while len(data) >= 4:
        size = int.from_bytes(data[:4], "big")
        if size > limit or size < 2:
            return bodies, "bad_frame" if size <= limit else "wrong_port" if data[:4] in HTTP else "frame_too_large"
        if len(data) < 4 + size:
            break
        bodies.append(data[4 : 4 + size])
        data = data[4 + size :]
    return bodies, None


@given(BODIES, st.lists(st.integers(0, 300)))
@example([b"ab"], [1, 2, 3, 4, 5])
def test_chunks_do_not_matter(bodies, cuts):
    data = b"".join(map(frame, bodies))
    assert read(cut(data, cuts)) == (bodies, None)


@given(st.lists(st.one_of(st.binary(max_size=9), st.binary(min_size=2, max_size=50).map(frame))).map(b"".join))
@example(b"\0\0\0\x02ab\x7b\0\0\0rest")
def test_any_bytes_in_any_chunks_agree_with_the_oracle(data):
    expected = oracle(data)
    assert read([data]) == expected
    assert read([data[i : i + 1] for i in range(len(data))]) == expected
    assert read([memoryview(data[:7]), bytearray(data[7:])]) == expected


def test_every_split_into_two_chunks():
    bodies = [b"ab", b"c" * LIMIT, b"de"]
    data = b"".join(map(frame, bodies))
    for place in range(len(data) + 1):
        assert read([data[:place], data[place:]]) == (bodies, None)


def test_an_announced_length_is_refused_before_buffering():
    reader = FrameReader(LIMIT)
    reader.feed(frame(b"ok"))
    reader.feed((LIMIT + 1).to_bytes(4, "big"))
    bodies = reader.bodies()
    assert next(bodies) == b"ok"
    with pytest.raises(PeerError) as caught:
        next(bodies)
    assert (caught.value.code, caught.value.expected, caught.value.got) == (
        "frame_too_large",
        "2 to 40 bytes",
        "41 bytes",
    )
    reader.feed(b"x" * 1_000)
    assert reader.buffered == 0
    with pytest.raises(PeerError):
        next(reader.bodies())


def test_a_reused_buffer_does_not_change_a_body():
    buffer = bytearray(frame(b"ab") + frame(b"cd")[:5])
    reader = FrameReader()
    reader.feed(memoryview(buffer))
    buffer[:] = b"\xff" * len(buffer)
    reader.feed(b"d")
    assert [bytes(body) for body in reader.bodies()] == [b"ab", b"cd"]


def test_a_large_frame_in_many_chunks():
    body = random.Random(1).randbytes(3 * 2**20)
    data = frame(body) + frame(b"ab")
    chunks = [data[start : start + 65_536] for start in range(0, len(data), 65_536)]
    assert read(chunks, FRAME_BYTES) == ([body, b"ab"], None)


def test_http_is_detected_unless_it_can_be_a_frame():
    for word in HTTP:
        assert len(word) == 4
        assert read([word + b"/1.1"]) == ([], "wrong_port")
        assert speaks_http(word + b"/")
        assert not speaks_http(word[:3])
        assert not speaks_http(word, LARGEST_LIMIT)


def test_json_and_frames_cannot_be_confused():
    assert speaks_json(b"{"[0])
    assert not any(speaks_json(frame(b"x" * size)[0]) for size in (2, 255, 65_536))
    assert LARGEST_LIMIT.to_bytes(4, "big")[:1] == b"{"
    with pytest.raises(AssertionError):
        FrameReader(LARGEST_LIMIT)
