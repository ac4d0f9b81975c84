"""Many subscribers in one process: `python -m bench.race.reader ADDRESS KIND SUBSCRIBERS ROWS` prints the rows.

It looks into no row: lines and sequence numbers are enough to count them.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from millrace.protocol import FrameReader, decode, encode, frame
from millrace.protocol.messages import PROTOCOL, Credit, Hello, Message, Result, Subscribe, Subscribed


class Reader(asyncio.Protocol):
    """A subscriber that counts."""

    def __init__(self, kind: str, rows: int, name: str) -> None:
        self.kind, self.wanted, self.name = kind, rows, name
        self.rows = 0
        self.frames = FrameReader()
        loop = asyncio.get_running_loop()
        self.subscribed: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.kind == "json":
            transport.write(b'{"subscribe":"q"}\n')
            self.subscribed.set_result(None)
        else:
            self.say(Hello(PROTOCOL, self.name))
            self.say(Subscribe(0, "q", None, self.wanted + 65_536))

    def say(self, message: Message) -> None:
        self.transport.write(frame(encode(message)))

    def data_received(self, data: bytes) -> None:
        if self.kind == "json":
            self.rows += data.count(b"\n")
        else:
            self.frames.feed(data)
            for body in self.frames.bodies():
                message = decode(bytes(body))
                if isinstance(message, Subscribed):
                    self.subscribed.set_result(None)
                elif isinstance(message, Result):
                    self.rows += len(message.rows)
                    self.say(Credit(0, len(message.rows)))
        if self.rows >= self.wanted and not self.done.done():
            self.done.set_result(None)


async def main(address: str, kind: str, count: int, rows: int) -> None:
    host, port = address.rsplit(":", 1)
    loop = asyncio.get_running_loop()
    readers = []
    for number in range(count):
        make = partial(Reader, kind, rows, f"r{number}")
        _, reader = await loop.create_connection(make, host, int(port))
        readers.append(reader)
    await asyncio.gather(*(reader.subscribed for reader in readers))
    await asyncio.sleep(0.5 if kind == "json" else 0)  # subscriptions by lines are not answered
    print("subscribed", flush=True)
    await asyncio.gather(*(reader.done for reader in readers))
    print(sum(reader.rows for reader in readers))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
