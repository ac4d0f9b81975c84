"""Lines that are alike are read as all others are: a dialect that knows templates against one that does not."""

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.engine.events import Arrived, Punctuated
from millrace.protocol import Limits
from millrace.server import alike, lines
from millrace.server.alike import WORTHWHILE, Piece, Template
from millrace.server.feeds import Feeds
from millrace.server.source import StreamDecoder
from millrace.sql import Catalog, parse, plan
from millrace.values.batch import Batch
from tests.kernels import both_ways

STREAMS = {
    "s": "CREATE STREAM s (k BIGINT, v DOUBLE, name TEXT, ok BOOLEAN, at TIMESTAMP, must BIGINT NOT NULL)",
    "ms": "CREATE STREAM ms (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts', time_unit = 'ms')",
    "sec": "CREATE STREAM sec (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts', time_unit = 's')",
}
NOW_US = 1_790_000_000_000_000


def definition(name: str) -> Any:
    planned: Any = plan(parse(STREAMS[name])[0], Catalog())
    return planned.stream


@dataclass
class World:
    """What a dialect says to the engine and to its peer."""

    events: list[tuple[Any, ...]] = field(default_factory=list)
    written: list[bytes] = field(default_factory=list)

    def submit(self, event: Any) -> None:
        match event:
            case Arrived(stream, feed, batch):
                for row, ts in zip(rows(batch), batch.ts.tolist(), strict=True):
                    self.events.append((stream, feed, ts, row))
            case Punctuated(stream, feed, value_us):
                self.events.append((stream, feed, "punctuation", value_us))


def rows(batch: Batch) -> list[tuple[Any, ...]]:
    return [
        tuple(
            None if mask is not None and not mask[number] else (type(column[number]).__name__, column[number])
            for column, mask in zip(batch.columns, batch.valid, strict=True)
        )
        for number in range(len(batch))
    ]


def heard(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch, *, with_templates: bool) -> tuple[Any, ...]:
    """Everything that follows from these bytes: tuples by feed in order, answers, and counts."""
    world = World()
    monkeypatch.setattr(lines, "WORTH_BYTES", 0 if with_templates else 1 << 60)
    monkeypatch.setattr(alike, "WINDOW", 4)
    monkeypatch.setattr(alike, "LONGEST_PATIENCE", 2)
    monkeypatch.setattr(lines, "RUN", 2)
    monkeypatch.setattr(alike, "RUN", 2)
    runner: Any = SimpleNamespace(
        submit=world.submit,
        now_us=lambda: NOW_US,
        add_side_outlet=lambda late: None,
        open_feed=lambda *args, **options: None,
        close_feed=lambda *args, **options: None,
    )
    feeds = Feeds(runner)
    for name in STREAMS:
        feeds.add_stream(definition(name))
    hall: Any = SimpleNamespace(token=None, limits=Limits(), feeds=feeds, credit_bytes=1 << 30, timers=Timers())
    connection: Any = SimpleNamespace(
        hall=hall,
        peer="peer",
        reads=True,
        write=world.written.append,
        introduced=lambda: None,
        said_something=lambda: None,
        log_refusal=lambda error: None,
        log_breach=lambda error: None,
        hold_reading=lambda why: None,
        let_read=lambda why: None,
        expect=lambda *args: None,
        expect_nothing=lambda: None,
        close=lambda: None,
    )
    dialect = lines.LineDialect(connection)
    for piece in pieces:
        dialect.received(piece)
    dialect.ended()
    by_feed: dict[Any, list[Any]] = {}
    for event in world.events:
        by_feed.setdefault(event[:2], []).append(event[2:])
    received = {name: (found.tuples, found.bytes, found.rejected) for name, found in feeds.received().items()}
    return by_feed, sorted(world.written), received


class Timers:
    def time(self) -> float:
        return 0.0


integers = st.integers(-(2**63) - 1, 2**63) | st.integers(-1000, 1000)
times = (
    st.datetimes().map(lambda time: time.isoformat() + "Z")
    | st.sampled_from(
        [
            "2026-02-29T00:00:00Z",
            "2024-02-29T23:59:59.5Z",
            "2026-01-01",
            "0001-01-01T00:00:00Z",
            "x",
            "2026-13-01T00:00:00",
        ]
    )
    | st.integers(-(10**9), 2 * 10**18)
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "k": st.none() | integers | st.booleans() | st.floats(allow_nan=False),
    "v": st.none() | st.floats() | integers | st.text(max_size=2),
    "name": st.none() | st.text(max_size=4) | st.sampled_from(["plain", 'q"uote', "ä", "\\", "\x01"]),
    "ok": st.none() | st.booleans() | st.integers(0, 1),
    "at": st.none() | times,
    "must": integers | st.none(),
}
USUAL: dict[str, st.SearchStrategy[Any]] = {
    "k": st.integers(-9, 9) | st.none(),
    "v": st.floats(-1e9, 1e9) | st.integers(-9, 9),
    "name": st.sampled_from(["a", "bc", "ä"]),
    "ok": st.booleans(),
    "at": st.sampled_from(["2026-01-01T00:00:00Z", "1969-12-31 23:59:59.123456", -7]),
    "must": st.integers(-9, 9),
}


Writer = tuple[str, str | None, bool, bool]
writers = st.tuples(
    st.sampled_from(["s", "s", "s", "ms", "sec", "none"]),
    st.sampled_from([None, None, "a", "b"]),
    st.booleans(),
    st.booleans(),
)
others = st.sampled_from(
    [b"", b"{}", b"x", b'{"stream": "s", "punctuation": 5}', b'{"stream": "s", "close": true}', b'{"a": "\xff"}']
)


@st.composite
def traffic(draw: st.DrawFn) -> list[bytes]:
    """What arrives together: mostly usual tuples of one or two writers."""
    known = draw(st.lists(writers, min_size=1, max_size=2))
    odds = st.sampled_from(["usual"] * 12 + ["odd", "odd", "mixed", "other"])
    made = []
    for kind in draw(st.lists(odds, min_size=1, max_size=40)):
        writer = draw(st.sampled_from(known))
        made.append(draw(others) if kind == "other" else draw(tuple_lines(kind, writer)))
    return made


@st.composite
def tuple_lines(draw: st.DrawFn, kind: str, writer: Writer) -> bytes:
    stream, feed, ascii_only, tight = writer
    values: dict[str, Any]
    if stream == "s":
        values = draw(st.fixed_dictionaries(USUAL))
        if kind == "odd":
            odd = draw(st.sampled_from(list(VALUES)))
            values[odd] = draw(VALUES[odd])
        elif kind == "mixed":
            values = {name: values[name] for name in draw(st.permutations(list(values)))[: draw(st.integers(0, 6))]}
    else:
        scale = 1_000 if stream == "ms" else 1
        odd_times = st.floats(1.7e9, 1.9e9).map(lambda time: time * scale) | st.just("2026-01-01T00:00:00Z")
        ts = st.integers(1_780_000_000 * scale, 1_780_000_009 * scale) if kind == "usual" else odd_times
        values = {"ts": draw(ts), "k": draw(st.integers(-9, 9))}
    said = {"stream": stream, "tuple": values} | ({} if feed is None else {"feed": feed})
    text = json.dumps(said, ensure_ascii=ascii_only, separators=(",", ":") if tight else (", ", ": "))
    return text.encode(errors="replace") + draw(st.sampled_from([b"", b"", b"", b"\r"]))


@settings(suppress_health_check=[HealthCheck.too_slow])  # long inputs are the point
@given(st.lists(traffic(), max_size=3), st.integers(0, 20))
def test_the_same_is_heard_with_templates_and_without(batches: list[list[bytes]], cut: int) -> None:
    data = [b"".join(line + b"\n" for line in batch) for batch in batches]
    whole = b"".join(data)
    data = [whole[:cut], whole[cut:]] if cut and len(batches) == 1 else data
    with pytest.MonkeyPatch.context() as patch:
        assert heard(data, patch, with_templates=True) == heard(data, patch, with_templates=False)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.decimals(allow_nan=False, allow_infinity=False).map(float))
def test_doubles_are_rounded_as_python_rounds_them(value: float) -> None:
    read_double(repr(value))


@given(st.integers(0, 10**19), st.integers(-25, 25))
def test_digits_and_exponents(digits: int, exponent: int) -> None:
    read_double(f"{digits}e{exponent}")
    text = str(digits)
    read_double(f"{text[:-1] or 0}.{text[-1]}")


def read_double(text: str) -> None:
    decoder = StreamDecoder(definition("s"))
    template = Template.of(b'{"v": 1.5, "must": 1}', decoder)
    if template is None:
        assert not WORTHWHILE
        pytest.skip("kernels are not compiled")
    piece = Piece(b'{"v": %b, "must": 1}\n' % text.encode(), 1)
    batch = template.read(piece, piece.starts, piece.ends)
    assert [column.tolist() for column in batch.columns[1:2]] in ([[]], [[float(text)]])


def test_most_doubles_are_read() -> None:
    decoder = StreamDecoder(definition("s"))
    template = Template.of(b'{"v": 1.5, "must": 1}', decoder)
    if template is None:
        assert not WORTHWHILE
        pytest.skip("kernels are not compiled")
    numbers = np.random.default_rng(7).random(2_000)
    for scale in (1e-3, 1.0, 1e9):
        texts = [repr(float(number)) for number in numbers * scale]
        piece = Piece(b"".join(b'{"v": %b, "must": 1}\n' % text.encode() for text in texts), 1)
        assert len(template.read(piece, piece.starts, piece.ends)) == len(texts)


@both_ways("reading")
def test_lines_are_found(kernel: Any) -> None:
    text = np.frombuffer(b"ab\n\r\n\nc\r\r\n", np.uint8)
    starts, ends = np.zeros(4, np.int64), np.zeros(4, np.int64)
    assert kernel.find_lines(text, starts, ends) == 4
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(0, 2), (3, 3), (5, 5), (6, 7)]
