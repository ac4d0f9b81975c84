"""Many subscribers in one process: `python -m bench.race.reader ADDRESS KIND SUBSCRIBERS FIRST ROWS`.

It prints a line when all have subscribed, when each has the `FIRST` rows, and when each has all `ROWS`; then it keeps
its connections until its input ends. It looks into no row: lines and heads are enough to count them.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Final

from millrace.client.subscription import WINDOW
from millrace.protocol import FrameReader, carries_tuples, decode, encode, frame, peek
from millrace.protocol.messages import PROTOCOL, Credit, Hello, Message, Subscribe, Subscribed

# It tells the server nothing while rows arrive, as most subscribers do most of the time.
SUBSCRIBE: Final = b'{"subscribe":"q","from":0}\n'


class Reader(asyncio.Protocol):
    """A subscriber that counts."""

    def __init__(self, kind: str, marks: tuple[int, int], name: str) -> None:
        self.kind, self.name = kind, name
        self.rows = self.owed = 0
        self.frames = FrameReader()
        loop = asyncio.get_running_loop()
        self.subscribed: asyncio.Future[None] = loop.create_future()
        self.reached = [(rows, loop.create_future()) for rows in marks]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.kind == "json":
            transport.write(SUBSCRIBE)
            self.subscribed.set_result(None)  # it is not answered, and a late one gets the earlier rows
        else:
            self.say(Hello(PROTOCOL, self.name))
            self.say(Subscribe(0, "q", 0, WINDOW))

    def say(self, message: Message) -> None:
        self.transport.write(frame(encode(message)))

    def data_received(self, data: bytes) -> None:
        if self.kind == "json":
            self.rows += data.count(b"\n")
        else:
            self.read_frames(data)
        for rows, reached in self.reached:
            if self.rows >= rows and not reached.done():
                reached.set_result(None)

    def read_frames(self, data: bytes) -> None:
        """Count rows, and return credit as the client does: half a window at a time."""
        self.frames.feed(data)
        for body in self.frames.bodies():
            if carries_tuples(body):
                tuples = peek(body).tuples
                self.rows += tuples
                self.owed += tuples
            elif isinstance(decode(bytes(body)), Subscribed):
                self.subscribed.set_result(None)
        if self.owed * 2 >= WINDOW:
            self.say(Credit(0, self.owed))
            self.owed = 0


async def main(address: str, kind: str, count: int, first: int, rows: int) -> None:
    host, port = address.rsplit(":", 1)
    loop = asyncio.get_running_loop()
    readers: list[Reader] = []
    for number in range(count):
        make = partial(Reader, kind, (first, rows), f"r{number}")
        _, reader = await loop.create_connection(make, host, int(port))
        readers.append(reader)
    await asyncio.gather(*(reader.subscribed for reader in readers))
    print("subscribed", flush=True)
    for mark in range(2):
        await asyncio.gather(*(reader.reached[mark][1] for reader in readers))
        print(sum(reader.rows for reader in readers), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    address, kind, *numbers = sys.argv[1:]
    asyncio.run(main(address, kind, *map(int, numbers)))
