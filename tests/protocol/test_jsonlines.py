"""JSON lines: split, parsed, written."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocol import CODES, PeerError
from millrace.protocol import jsonlines as lines
from millrace.protocol.jsonlines import LineReader, parse, parse_object
from millrace.protocol.messages import PRODUCER_CHARACTERS
from tests.protocol.test_frames import cut
from tests.protocol.vectors import LINES


@pytest.mark.parametrize("vector", LINES, ids=lambda vector: vector["line"])
def test_vectors(vector):
    if "says" in vector:
        name, *fields = vector["says"]
        assert parse(vector["line"]) == parse(vector["line"].encode()) == getattr(lines, name)(*fields)
    else:
        with pytest.raises(PeerError) as caught:
            parse(vector["line"].encode())
        assert caught.value.code == vector["code"]
        assert len(caught.value.text) < 300


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"\xff", "bad_message"),
        (b"\xef\xbb\xbf{}", "bad_message"),
        (b'{"a": "\xc3\x28"}', "bad_message"),
        (b"[" * 500_000, "bad_message"),
        (b'{"a":' * 200_000, "bad_message"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "bad_value"),
        (b'{"a": ' + b"9" * 400 + b"}", "bad_value"),
        (b"", "bad_message"),
    ],
)
def test_garbage(line, code):
    with pytest.raises(PeerError) as caught:
        parse_object(line)
    assert caught.value.code == code


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_a_line_or_an_error(line):
    try:
        parse(line)
    except PeerError as refusal:
        assert_known(refusal.code)


def assert_known(code):
    assert code in CODES


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def allowed(value, level=1):
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return level <= 4 and all(allowed(item, level + 1) for item in inner)
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -(2**63) <= value < 2**63


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_an_object_is_parsed_as_it_is_or_refused(value):
    text = json.dumps(value)
    if allowed(value):
        assert parse_object(text) == json.loads(text)
    else:
        with pytest.raises(PeerError):
            parse_object(text)


def read(chunks, limit=20, end=True):
    reader = LineReader(limit)
    got: list[tuple[int, bytes]] = []
    try:
        for chunk in chunks:
            reader.feed(chunk)
            got.extend(reader.lines())
        if end:
            reader.end()
        got.extend(reader.lines())
    except PeerError as error:
        return got, error.code
    return got, None


def oracle(data, limit=20):
    got: list[tuple[int, bytes]] = []
    *whole, last = data.split(b"\n")
    for number, line in enumerate([*whole, last], start=1):
        if len(line) > limit:
            return got, "frame_too_large"
        if line.rstrip(b"\r"):
            got.append((number, line.rstrip(b"\r")))
    return got, None


@given(
    st.lists(st.sampled_from([b"\n", b"\r\n", b"{}", b'{"a": 1}', b"x" * 19])).map(b"".join),
    st.lists(st.integers(0, 99)),
)
def test_chunks_do_not_matter(data, cuts):
    assert read(cut(data, cuts)) == oracle(data)


def test_a_line_that_is_too_long_is_refused_before_it_ends():
    reader = LineReader(10)
    reader.feed(b"{}\n" + b"x" * 11)
    got = reader.lines()
    assert next(got) == (1, b"{}")
    with pytest.raises(PeerError) as caught:
        next(got)
    assert caught.value.code == "frame_too_large"
    assert caught.value.where == "line 2"
    reader.feed(b"\n{}\n")
    with pytest.raises(PeerError):
        next(reader.lines())


def test_lines_of_the_server():
    assert (
        lines.row_line("q", 7, {"a": 1, "b": "\u00e4"})
        == '{"query": "q", "seq": 7, "row": {"a": 1, "b": "\u00e4"}}\n'.encode()
    )
    assert lines.progress_line("q", 1) == b'{"query": "q", "progress": "1970-01-01T00:00:00.000001Z"}\n'
    error = PeerError("no", code="bad_message")
    assert lines.error_line(error, 3) == b'{"error": {"code": "bad_message", "text": "no", "line": 3}}\n'
    assert lines.error_line(error, None) == b'{"error": {"code": "bad_message", "text": "no", "line": null}}\n'
    assert lines.late_line({"a": None}) == b'{"late": {"a": null}}\n'
    with pytest.raises(ValueError):
        lines.row_line("q", 0, {"a": math.nan})


def test_a_name_that_is_there_twice_is_found_in_one_pass() -> None:
    """A line of a megabyte has 90,000 names: to count each of them would take minutes."""
    line = "{" + ",".join(f'"{n}":1' for n in range(90_000)) + ',"89999":2}'
    with pytest.raises(PeerError, match="distinct names, got '89999' twice"):
        parse(line)


@pytest.mark.parametrize("key", ["stream", "feed", "producer"])
def test_long_names_are_refused(key: str) -> None:
    most = 65_536 if key == "stream" else PRODUCER_CHARACTERS
    words: dict[str, object] = {"stream": "s", "tuple": {}}
    for length in (most, most + 1):
        line = json.dumps({**words, key: "x" * length, **({"seq": 0} if key == "producer" else {})})
        if length == most:
            parse(line)
        else:
            with pytest.raises(PeerError, match=f"at most {most:,} characters, got {length:,}"):
                parse(line)
