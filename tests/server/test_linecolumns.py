"""Lines read into columns say the same as lines read one by one: a dialect that has the kernel against one without."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millrace.access.callers import ANYONE
from millrace.engine.events import Arrived, Punctuated
from millrace.formats import linecolumns
from millrace.formats.decoder import StreamDecoder
from millrace.formats.linecolumns import LONG, WORTHWHILE, LineColumns, newlines
from millrace.net import lines
from millrace.net.feeds import Feeds
from millrace.protocol import Limits
from millrace.sql import Catalog, parse, plan
from millrace.values.batch import Batch
from tests.depth import examples
from tests.kernels import installed, uncompiled

STREAMS = {
    "s": "CREATE STREAM s (k BIGINT, v DOUBLE, name TEXT, ok BOOLEAN, at TIMESTAMP, must BIGINT NOT NULL, raw BYTES)",
    "ms": "CREATE STREAM ms (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts', time_unit = 'ms')",
    "sec": "CREATE STREAM sec (ts TIMESTAMP, k BIGINT) WITH (timestamps = 'external', time = 'ts', time_unit = 's')",
}
NOW_US = 1_790_000_000_000_000


@given(st.text("\n{}", max_size=40), st.integers(0, 2), st.integers(0, 50))
def test_many_newlines_are_counted_like_few(text, times, start):
    data = text.encode() + b"{}\n" * (LONG * times // 4)
    assert newlines(data, start) == data[start:].count(b"\n")


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


def heard(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch, *, in_columns: bool) -> tuple[Any, ...]:
    """Everything that follows from these bytes: tuples by feed in order, answers, and counts."""
    world = World()
    monkeypatch.setattr(lines, "WORTHWHILE", in_columns and WORTHWHILE)
    monkeypatch.setattr(linecolumns, "MOST_VALUES", 40)
    runner: Any = SimpleNamespace(
        submit=world.submit,
        now_us=lambda: NOW_US,
        add_side_outlet=lambda *args: None,
        open_feed=lambda *args, **options: None,
        close_feed=lambda *args, **options: None,
    )
    feeds = Feeds(runner)
    for name in STREAMS:
        feeds.add_stream(definition(name))
    context: Any = SimpleNamespace(limits=Limits(), feeds=feeds, credit_bytes=1 << 30, timers=Timers(), reader=None)
    connection: Any = SimpleNamespace(
        context=context,
        caller=ANYONE,
        told=lambda error: error,
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
            "2026-03-01T00:00:00+01:30",
            "2026-03-01T00:00:00.25-23:59",
            "2026-03-01T00:00:00+24:00",
            "2026-03-01T00:00:00+0100",
            "2026-03-01 00:00:00 Z",
            "9999-12-31T23:59:59.9999999",
        ]
    )
    | st.integers(-(10**9), 2 * 10**18)
)
NAMES = ["plain", 'q"uote', "ä", "\\", "\x01", "\ud800", "\0", "€ 💧"]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "k": st.none() | integers | st.booleans() | st.floats(allow_nan=False),
    "v": st.none() | st.floats() | integers | st.text(max_size=2),
    "name": st.none() | st.text(max_size=4) | st.sampled_from(NAMES),
    "ok": st.none() | st.booleans() | st.integers(0, 1),
    "at": st.none() | times,
    "must": integers | st.none(),
    "raw": st.none() | st.sampled_from(["AA==", "\\x00ff", "", "A", "\\x0"]),
    "more": st.none() | st.integers(0, 1) | st.just({"a": []}),
}
USUAL: dict[str, st.SearchStrategy[Any]] = {
    "k": st.integers(-9, 9) | st.none(),
    "v": st.floats(-1e9, 1e9).filter(lambda value: not 0 < abs(value) < 1e-6) | st.integers(-9, 9),
    "name": st.sampled_from(["a", "bc", "ä", 'two\nlines, "quoted"', "€ and 💧"]),
    "ok": st.booleans(),
    "at": st.sampled_from(["2026-01-01T00:00:00Z", "1969-12-31 23:59:59.123456", "2026-01-01T00:00:00-09:30", -7]),
    "must": st.integers(-9, 9),
    "raw": st.sampled_from(["AA==", None]),
}


Writer = tuple[str, str | None, bool, bool, Sequence[str]]
writers = st.tuples(
    st.sampled_from(["s", "s", "s", "ms", "sec", "none"]),
    st.sampled_from([None, None, "a", "b"]),
    st.booleans(),
    st.booleans(),
    st.permutations(["stream", "tuple", "feed"]),
)
others = st.sampled_from(
    [
        b"",
        b"{}",
        b"x",
        b" ",
        b'{"stream": "s", "punctuation": 5}',
        b'{"stream": "s", "close": true}',
        b'{"a": "\xff"}',
        b'{"stream": "s", "stream": "s", "tuple": {"must": 1}}',
        b'{"stream": "s", "tuple": {"must": 1}, "tuple": {"must": 1}}',
        b'{"tuple": {"must": 1, "must": 2}, "stream": "s"}',
        b'{"tuple": {"must": 1, "name": "}\\""}, "stream": "s"}',
        b'{"tuple": {"must": 1',
        b'{"stream": "s", "tuple": {}}',
        b'{"stream": "ms", "tuple": {}}',
        b'{"stream": "s", "tuple": {"must": 1}, "feed": ""}',
        b'{"stream": "s", "tuple": {"must": 1}} x',
        b'{"stream": "s", "tuple": {"must": 1,}}',
        b'{"stream": "s", "tuple": {"must": 01}}',
        b'{"stream": "s", "tuple": {"must": 1e2}}',
        b'{"stream": "s", "tuple": {"must": -0, "v": -0}}',
        b'{"stream": "s", "tuple": {"must": 1, "v": NaN}}',
        b'{"stream": "s", "tuple": {"must": 1, "v": 1.}}',
        b'{"stream": "s", "tuple": {"must": 1, "ok": tru}}',
        b'{"stream": "s", "tuple": {"must": 1, "name": "',
        b'{"stream": "s", "tuple": {"must": 1, "name": "\\x"}}',
        b'{"stream": "s", "tuple": {"must": 1, "na\\u006de": "x"}}',
        b'{"stream": "s", "tuple": {"must": 1, "name": "\\ud83d\\udca7\\u00e4"}} ',
        b'{"stream": "s", "tuple": {"must": 1, "name": "\\udca7\\u00E4"}}',
        b'{"stream": "s", "tuple": {"must": 1, "name": "\xc3"}}',
        b'\t{ "stream" :\t"s" , "tuple" : { "must" : 1 , "k" : null } }\t',
    ]
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
    stream, feed, ascii_only, tight, order = writer
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
    said = {key: said[key] for key in order if key in said}
    text = json.dumps(said, ensure_ascii=ascii_only, separators=(",", ":") if tight else (", ", ": "))
    return text.encode(errors="replace") + draw(st.sampled_from([b"", b"", b"", b"\r"]))


@settings(suppress_health_check=[HealthCheck.too_slow])  # long inputs are the point
@example(
    [
        [
            b'{"stream": "s", "tuple": {"must": 1}}',
            b'{"stream": "s", "close": true}',
            b'{"stream": "s", "tuple": {"must": 2}}',
        ]
    ]
    * 2,
    0,
)
@given(st.lists(traffic(), max_size=3), st.integers(0, 20))
def test_the_same_is_heard_in_columns_and_one_by_one(batches: list[list[bytes]], cut: int) -> None:
    data = [b"".join(line + b"\n" for line in batch) for batch in batches]
    whole = b"".join(data)
    data = [whole[:cut], whole[cut:]] if cut and len(batches) == 1 else data
    with pytest.MonkeyPatch.context() as patch:
        assert heard(data, patch, in_columns=True) == heard(data, patch, in_columns=False)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.decimals(allow_nan=False, allow_infinity=False).map(float))
def test_doubles_are_rounded_as_python_rounds_them(value: float) -> None:
    read_double(repr(value))


@given(st.integers(0, 10**19), st.integers(-25, 25))
def test_digits_and_exponents(digits: int, exponent: int) -> None:
    read_double(f"{digits}e{exponent}")
    text = str(digits)
    read_double(f"{text[:-1] or 0}.{text[-1]}")


def read_double(text: str) -> None:
    batch = columns("s").read_all(b'{"v": %b, "must": 1}\n' % text.encode())
    assert batch is None or [column.tolist() for column in batch.columns[1:2]] == [[float(text)]]


def columns(stream: str) -> LineColumns:
    """A reader of objects of this stream."""
    decoder = StreamDecoder(definition(stream))
    made = LineColumns(lambda _: decoder, bare=True)
    if not made.learn(stream):
        assert not WORTHWHILE
        pytest.skip("kernels are not compiled")
    return made


def test_most_doubles_are_read() -> None:
    numbers = np.random.default_rng(7).random(2_000)
    for scale in (1e-3, 1.0, 1e9):
        texts = [repr(float(number)) for number in numbers * scale]
        read = columns("s").read(b"".join(b'{"v": %b, "must": 1}\n' % text.encode() for text in texts))
        assert not read.left


@given(st.fixed_dictionaries({}, optional=USUAL), st.permutations(list(USUAL)), st.booleans(), st.booleans())
def test_usual_lines_are_read(values: dict[str, Any], order: list[str], ascii_only: bool, tight: bool) -> None:
    row = {name: values[name] for name in order if name in values} | {"must": 5}
    line = json.dumps(row, ensure_ascii=ascii_only, separators=(",", ":") if tight else (", ", ": ")).encode() + b"\n"
    assert columns("s").read_all(line) is not None


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=examples(60))
@given(traffic())
def test_the_kernel_reads_the_same_uncompiled(batch: list[bytes]) -> None:
    data = b"".join(line + b"\n" for line in batch)
    found = []
    for kernel in (installed("reading"), uncompiled("reading")):
        reader = LineColumns(lambda name: decoders[name])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(linecolumns, "WORTHWHILE", True)
            patch.setattr(linecolumns, "reading", kernel)
            for stream, feed in (("s", "main"), ("ms", "a"), ("s", "b"), ("sec", "main")):
                reader.learn(stream, feed)
            read = reader.read(data)
        rows_of = [(one.stream, one.feed, rows(one.batch), one.lines.tolist()) for one in read.tuples]
        found.append((read.starts.tolist(), read.sizes.tolist(), rows_of, list(read.left)))
    assert found[0] == found[1]


decoders = {name: StreamDecoder(definition(name)) for name in STREAMS}
