"""A feed in a separate process: `python -m bench.sender ADDRESS STREAM KIND ROWS FRAMES` prints the seconds it took.

The clock starts after all frames are encoded, so that the work of the sender is not measured. The time ends with the
acknowledgement of the last tuple. The sender observes the server's credit.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final, Protocol, cast

import msgpack
import numpy as np
import pyarrow as pa

from millrace.client.arrow import to_stream
from millrace.protocol import FrameReader, decode, encode, frame
from millrace.protocol.messages import PROTOCOL, Ack, Credit, Data, DataArrow, Error, Hello, Message, Open, Opened

# Frames of groups: the number of keys, the distance of tuples in time, and the number of different frames. The frames
# are sent repeatedly, with new times.
GROUPS: Final = 65_536
APART_US: Final = 10
DIFFERENT: Final = 64


class Frames(Protocol):
    """Bodies of frames, each in two parts with its sequence number between them."""

    head: bytes

    def tail(self, number: int) -> bytes:
        """The bytes after the sequence number in the frame with this number."""


class Repeated:
    """The same rows in every frame: three integers and a double."""

    def __init__(self, kind: str, rows: int) -> None:
        numbers = np.arange(rows)
        columns = [numbers, numbers % 7, numbers * 3, numbers * 0.5]
        message: Data | DataArrow
        if kind == "rows":
            message = Data(0, 0, [tuple(row) for row in zip(*(column.tolist() for column in columns), strict=True)])
        else:
            batch = pa.record_batch([pa.array(column) for column in columns], names=["src", "dst", "len", "rate"])
            message = DataArrow(0, 0, rows, to_stream(batch))
        self.head, self._tail = parts(message)

    def tail(self, number: int) -> bytes:
        return self._tail


class Grouped:
    """Arrow frames of a time, a key and a value, in order of time: 100,000 tuples in a second of it."""

    def __init__(self, rows: int) -> None:
        rng = np.random.default_rng(1)
        self._times = np.arange(rows) * APART_US
        self._tails: list[bytearray] = []
        self.keys = [rng.integers(0, GROUPS, rows) for _ in range(DIFFERENT)]
        for keys in self.keys:
            columns = {
                "ts": pa.array(self._times, pa.timestamp("us", "UTC")),
                "k": pa.array(keys),
                "v": pa.array(rng.integers(0, 1500, rows)),
            }
            self.head, tail = parts(DataArrow(0, 0, rows, to_stream(pa.record_batch(columns))))
            self._tails.append(bytearray(tail))
        self._at = self._tails[0].index(self._times.tobytes())

    def tail(self, number: int) -> bytes:
        tail = self._tails[number % DIFFERENT]
        times = self._times + number * len(self._times) * APART_US
        tail[self._at : self._at + times.nbytes] = times.tobytes()
        return bytes(tail)

    def pairs(self, frames: int, band_us: int) -> int:
        """The number of pairs with one key within the band, including each tuple with itself."""
        keys = np.concatenate([self.keys[number % DIFFERENT] for number in range(frames)])
        span = len(keys) * APART_US + 2 * band_us
        places = np.sort(keys * span + np.arange(len(keys)) * APART_US)
        above = np.searchsorted(places, places + band_us, "right")
        return int((above - np.searchsorted(places, places - band_us, "left")).sum())

    def groups(self, frames: int, window_us: int) -> int:
        """The number of groups in all windows that are closed when the last tuple arrives."""
        rows = len(self._times)
        each = window_us // APART_US
        total = 0
        for start in range(0, rows * frames - each, each):
            first, last = start // rows, (start + each - 1) // rows
            keys = np.concatenate([self.keys[number % DIFFERENT] for number in range(first, last + 1)])
            total += int(np.count_nonzero(np.bincount(keys[start - first * rows :][:each])))
        return total


def parts(message: Message) -> tuple[bytes, bytes]:
    """A frame's body around its sequence number."""
    body = encode(message)
    # An array of small head, kind, channel and sequence: one byte each.
    return body[:3], body[4:]


def frames_of(kind: str, rows: int) -> Frames:
    return Grouped(rows) if kind == "groups" else Repeated(kind, rows)


class Sender(asyncio.Protocol):
    """Implements just enough of the protocol to send as fast as credit allows."""

    def __init__(self, stream: str, kind: str, rows: int, frames: int) -> None:
        self.stream, self.rows, self.total = stream, rows, rows * frames
        self.frames = frames_of(kind, rows)
        self.reader = FrameReader()
        self.credit = 0
        self.sent = 0
        self.began = 0.0
        self.writable = True
        self.done: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.say(Hello(PROTOCOL, "bench", None))
        self.say(Open(0, self.stream, None, "bench"))

    def say(self, message: Message) -> None:
        self.transport.write(frame(encode(message)))

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        for body in self.reader.bodies():
            message = decode(bytes(body))
            if isinstance(message, Opened):
                self.credit += message.credit
                self.began = time.perf_counter()
            elif isinstance(message, Credit):
                self.credit += message.tuples
            elif isinstance(message, Ack) and message.sequence >= self.total and not self.done.done():
                self.done.set_result(time.perf_counter() - self.began)
            elif isinstance(message, Error) and not self.done.done():
                self.done.set_exception(RuntimeError(message.text))
        if self.began:
            self.pump()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.pump()

    def pump(self) -> None:
        while self.writable and self.credit >= self.rows and self.sent < self.total:
            number = msgpack.packb(self.sent)
            head, tail = self.frames.head, self.frames.tail(self.sent // self.rows)
            size = len(head) + len(number) + len(tail)
            self.transport.write(size.to_bytes(4, "big") + head + number + tail)
            self.sent += self.rows
            self.credit -= self.rows


async def main(address: str, stream: str, kind: str, rows: int, frames: int) -> None:
    host, port = address.rsplit(":", 1)
    loop = asyncio.get_running_loop()
    _, sender = await loop.create_connection(lambda: Sender(stream, kind, rows, frames), host, int(port))
    print(await sender.done)


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        runner = asyncio.run
    else:
        runner = uvloop.run
    runner(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
