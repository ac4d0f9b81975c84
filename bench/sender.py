"""A feed in a process of its own: `python -m bench.sender ADDRESS STREAM KIND ROWS FRAMES` prints the seconds it took.

Frames are made before the clock starts, so that the sender is no part of what is measured; what counts is the time from
the first byte to the acknowledgement of the last tuple, within the credit that the server grants.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import cast

import msgpack
import numpy as np
import pyarrow as pa

from millrace.client.arrow import to_stream
from millrace.protocol import FrameReader, decode, encode, frame
from millrace.protocol.messages import PROTOCOL, Ack, Credit, Data, DataArrow, Error, Hello, Message, Open, Opened


def tail(kind: str, rows: int) -> tuple[bytes, bytes]:
    """A frame's body around its sequence number. A row is three integers and a double."""
    numbers = np.arange(rows)
    columns = [numbers, numbers % 7, numbers * 3, numbers * 0.5]
    message: Data | DataArrow
    if kind == "rows":
        message = Data(0, 0, [tuple(row) for row in zip(*(column.tolist() for column in columns), strict=True)])
    else:
        batch = pa.record_batch([pa.array(column) for column in columns], names=["src", "dst", "len", "rate"])
        message = DataArrow(0, 0, rows, to_stream(batch))
    body = encode(message)
    # An array of small head, kind, channel and sequence: one byte each.
    return body[:3], body[4:]


class Sender(asyncio.Protocol):
    """Speaks just enough of the protocol to send as fast as credit allows."""

    def __init__(self, stream: str, kind: str, rows: int, frames: int) -> None:
        self.stream, self.rows, self.total = stream, rows, rows * frames
        self.head, self.tail = tail(kind, rows)
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
            size = len(self.head) + len(number) + len(self.tail)
            self.transport.write(size.to_bytes(4, "big") + self.head + number + self.tail)
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
