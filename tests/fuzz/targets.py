"""What is fuzzed: code that reads bytes of others. `run` takes any bytes, and raises only what is a fault of Millrace.

`seeds` are valid inputs to start from. A target that names two ways to read the same bytes compares them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any, Final, NamedTuple, cast

import msgpack
import structlog

from millrace.client.arrow import to_stream
from millrace.engine.engine import Engine
from millrace.engine.events import AddStream, Arrived, Command, FeedOpened
from millrace.engine.plan import StreamDefinition
from millrace.formats.decoder import StreamDecoder
from millrace.formats.linecolumns import LineColumns
from millrace.journal.errors import JournalError
from millrace.journal.layout import segment_lsns, segment_name
from millrace.journal.reader import JournalReader
from millrace.journal.segments import Journal
from millrace.journal.steps import Step, StepReader, encode
from millrace.net.connection import Connection
from millrace.protocol import FrameReader, MillraceError, decode, frame
from millrace.protocol.jsonlines import LineReader, TupleLine, parse
from millrace.protocol.messages import PROTOCOL, Data, Hello, Message, Open, Punctuation, Subscribe
from millrace.protocol.messages import encode as message
from millrace.run.daemon import Daemon
from millrace.sql import Catalog
from millrace.sql import parse as parse_sql
from millrace.sql.planner import plan_all
from millrace.values.batch import Batch
from tests.journal.simdisk import SimulatedDisk
from tests.server.harness import settings

SQL: Final = """
CREATE STREAM s (k BIGINT NOT NULL, v DOUBLE, t TEXT, b BOOLEAN, at TIMESTAMP, x BYTES)
  WITH (time = 'at', disorder = '2 s');
CREATE STREAM o (k BIGINT, u BIGINT);
CREATE QUERY q AS SELECT k, v FROM s WHERE k > 3;
"""


class Target(NamedTuple):
    """`most` bytes of an input are enough to reach everything."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    most: int = 4_096


# -- frames ------------------------------------------------------------------------------------------------------------


def run_frames(data: bytes) -> None:
    """The bodies do not depend on how the bytes were split."""
    cut = data[0] * len(data) // 256 if data else 0
    assert _bodies(data[:cut], data[cut:]) == _bodies(data)


def _bodies(*chunks: bytes) -> list[str]:
    reader, found = FrameReader(1 << 16), []
    try:
        for chunk in chunks:
            reader.feed(chunk)
        for body in reader.bodies():
            try:
                found.append(repr(decode(bytes(body))))
            except MillraceError as error:
                found.append(error.text)
    except MillraceError as error:
        found.append(error.text)
    return found


def frame_seeds() -> list[bytes]:
    rows = [(1, 1.5, "abc"), (2, None, None)]
    said: list[Message] = [Hello(PROTOCOL, "x"), Open(0, "s", None, "p"), Data(0, 0, rows), Punctuation(0, 5)]
    said.append(Subscribe(2, "q"))
    return [frame(message(one)) for one in said] + [b"".join(frame(message(one)) for one in said)]


# -- rows and Arrow ----------------------------------------------------------------------------------------------------


@cache
def catalog() -> Catalog:
    return plan_all(parse_sql(SQL), Catalog())[1]


@cache
def stream() -> StreamDefinition:
    return catalog().streams["s"]


@cache
def decoder() -> StreamDecoder:
    return StreamDecoder(stream())


def rows_of(batch: Batch) -> list[Any]:
    return [repr(row) for row in batch.rows()]


def run_rows(data: bytes) -> None:
    """Two frames at once have the rows of both."""
    with suppress(MillraceError):
        one = rows_of(decoder().decode(data))
        assert rows_of(decoder().decode_many([data, data])) == one + one


def row_seeds() -> list[bytes]:
    return [msgpack.packb([[1, 2.5, "abc", True, 5, b"x"], [2, None, None, None, 6, None]]), msgpack.packb([])]


def run_arrow(data: bytes) -> None:
    """The head of a frame, which credit covers, says how many rows it has."""
    for count in (1, 2):
        with suppress(MillraceError):
            rows_of(decoder().from_arrow(data, count))


def arrow_seeds() -> list[bytes]:
    import pyarrow as pa

    names = ["k", "v", "t", "b", "at", "x"]
    columns = [[1, 2], [1.5, None], ["a", None], [True, False], [5, 6], [b"x", None]]
    types = [pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.timestamp("us"), pa.binary()]
    table = pa.table([pa.array(values, type) for values, type in zip(columns, types, strict=True)], names)
    return [to_stream(table), to_stream(table.slice(1)), to_stream(table.slice(0, 0))]


# -- JSON lines --------------------------------------------------------------------------------------------------------


def run_lines(data: bytes) -> None:
    """A tuple has the same values whether the kernel reads it among others, or the parser reads it alone."""
    reader = LineReader(1 << 16)
    with suppress(MillraceError):
        reader.feed(data)
        reader.end()
        for _, piece in reader.pieces():
            columns = LineColumns(lambda _: decoder())
            columns.learn("s")
            read = columns.read(piece)
            for found in read.tuples:
                for line, row in zip(found.lines.tolist(), rows_of(found.batch), strict=True):
                    assert [row] == _alone(read.line(piece, line)), read.line(piece, line)
            for at in read.left:
                _alone(read.line(piece, at))


def _alone(line: bytes) -> list[str] | None:
    with suppress(MillraceError):
        parsed = parse(line)
        if isinstance(parsed, TupleLine) and parsed.stream == "s":
            return rows_of(decoder().from_objects([parsed.values]))
    return None


def line_seeds() -> list[bytes]:
    lines: list[dict[str, Any]] = [
        {
            "stream": "s",
            "tuple": {"k": 1, "v": 2.5, "t": "a\u00e9\n", "b": True, "at": "1970-01-01T00:00:01Z", "x": "AA=="},
        },
        {"stream": "s", "feed": "f", "tuple": {"k": 1, "v": None, "t": None, "b": None, "at": 5, "x": None}},
        {"open": "s", "producer": "p"},
        {"stream": "s", "producer": "p", "seq": 3, "tuple": {"k": 1, "at": 7}},
        {"punctuation": 5, "stream": "s", "where": {"k": 1}},
        {"subscribe": "q", "from": 0, "refresh": "1 s"},
        {"unsubscribe": "q"},
        {"token": "abc"},
        {"epoch": "2-0123456789abcdef"},
        {"stream": "s", "answers": True},
        {"answer": 1, "stream": "s", "at": 5},
        {"close": "s"},
    ]
    each = [json.dumps(line).encode() + b"\n" for line in lines]
    return [*each, b"".join(each)]


# -- SQL ---------------------------------------------------------------------------------------------------------------


def run_sql(data: bytes) -> None:
    with suppress(UnicodeDecodeError, MillraceError):
        plan_all(parse_sql(data.decode()), catalog())


def sql_seeds() -> list[bytes]:
    texts = [
        SQL,
        "CREATE QUERY a AS SELECT k, count(*) AS n, window_end FROM TUMBLE(s, at, INTERVAL '1 minute') GROUP BY k",
        "CREATE QUERY a AS WITH w AS (SELECT * FROM o) SELECT s.k, u FROM s [RANGE '1 s'] JOIN w [ROWS 5] ON s.k = w.k",
        "CREATE QUERY a AS SELECT CASE WHEN k IN (1, 2) THEN 'x' || t ELSE upper(t) END AS z FROM s ORDER BY k LIMIT 3",
        "SELECT DISTINCT k FROM s UNION ALL SELECT u FROM o; DROP QUERY q; ALTER STREAM s RENAME COLUMN k TO j",
        "EXPLAIN SELECT k, -v / 2 AS h FROM s LATEST BY k WHERE NOT (t LIKE 'a%' AND v BETWEEN 1 AND 2)",
        "CREATE SINK z FROM q INTO 'z.jsonl' WITH (retain = '7 days'); CREATE VIEW y AS SELECT * FROM s",
        "SELECT k, u FROM s DEDUPLICATE BY k WITHIN '10 minutes'",
    ]
    return [text.encode() for text in texts]


# -- what is on disk ---------------------------------------------------------------------------------------------------


def run_segment(data: bytes) -> None:
    """A file of the journal: whatever is in it, a reader and a start end with records or with a reason."""
    disk = SimulatedDisk(Random(0))
    disk.store(segment_name(1), data)
    with suppress(JournalError):
        list(JournalReader(disk).read(1))
    with suppress(JournalError):
        Journal.open(disk, segment_bytes=4_096).close()


def segment_seeds() -> list[bytes]:
    disk = SimulatedDisk(Random(0))
    journal = Journal.open(disk, segment_bytes=4_096, now_us=lambda: 1_000_000)
    for payload in (b"", b"abc", bytes(300), b"\x93\x01\x02\x03"):
        journal.append(payload)
        journal.write()
        journal.sync()
    journal.close()
    return [disk.contents()[segment_name(first)] for first in segment_lsns(disk)]


@cache
def engine() -> Engine:
    made = Engine()
    made.step(1, [Command(1, AddStream(stream())), FeedOpened("s", "main")])
    return made


def run_record(data: bytes) -> None:
    """A record whose checksum is right. A start reports any exception, with the record's number: what counts is that
    the process survives."""
    with suppress(Exception):
        StepReader(engine()).read(data)


def record_seeds() -> list[bytes]:
    batch = decoder().decode(row_seeds()[0])
    arrived = Arrived("s", "main", batch)
    return [b"".join(map(bytes, encode(Step(5, 100, [arrived, FeedOpened("s", "other")]))))]


def run_state(data: bytes) -> None:
    """A checkpoint whose checksum is right: the same."""
    with suppress(Exception):
        Engine.restore(data).save()


def state_seeds() -> list[bytes]:
    made = Engine()
    made.step(1, [Command(1, AddStream(stream())), FeedOpened("s", "main")])
    made.step(2, [Arrived("s", "main", decoder().decode(row_seeds()[0]))])
    return [made.save()]


# -- a whole connection ------------------------------------------------------------------------------------------------


class Transport:
    """The other side of a connection: it keeps what the server says."""

    def __init__(self) -> None:
        self.closed = False
        self.said: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.said.append(data)

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.said += parts

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The test takes everything at once."""

    def pause_reading(self) -> None:
        """The test has sent everything."""

    resume_reading = pause_reading


@cache
def server() -> tuple[asyncio.AbstractEventLoop, Daemon, list[str]]:
    """A server of this process, and its internal errors."""
    loop, errors = asyncio.new_event_loop(), []
    daemon = Daemon(settings())
    loop.run_until_complete(daemon.start())
    loop.run_until_complete(daemon.catalog.execute(SQL))

    def note(_: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if method in ("exception", "critical"):
            errors.append(repr(event))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.processors.format_exc_info, note], cache_logger_on_first_use=False)
    return loop, daemon, errors


def run_connection(data: bytes) -> None:
    """What one client says ends at most its own connection."""
    loop, daemon, errors = server()
    if data:
        loop.run_until_complete(_converse(daemon, data))
    assert not errors, errors
    assert daemon.state == "ready"


async def _converse(daemon: Daemon, data: bytes) -> None:
    connection, transport = Connection(daemon.context), Transport()
    connection.connection_made(cast(asyncio.Transport, transport))
    cut = max(data[-1] * len(data) // 256, 1)
    for part in (data[:cut], data[cut:]):
        if part and not transport.closed:
            connection.data_received(part)
            for _ in range(3):
                await asyncio.sleep(0)
    connection.connection_lost(None)
    await asyncio.sleep(0)


def connection_seeds() -> list[bytes]:
    return [*line_seeds(), *frame_seeds()]


TARGETS: Final = {
    "frames": Target(run_frames, frame_seeds),
    "rows": Target(run_rows, row_seeds),
    "arrow": Target(run_arrow, arrow_seeds),
    "lines": Target(run_lines, line_seeds),
    "sql": Target(run_sql, sql_seeds, 1_024),
    "segment": Target(run_segment, segment_seeds, 4_608),
    "record": Target(run_record, record_seeds),
    "state": Target(run_state, state_seeds, 16_384),
    "connection": Target(run_connection, connection_seeds),
}
