"""Rows at a rate, and how long each takes: `python -m bench.race.pacer ADDRESS KIND RATE ROWS PROCESS`.

Rows leave in the order in which they are sent, so the n-th row received is the n-th one sent, and none is looked into.
KIND is `json` or `rows` for Millrace, `echo` for a program that answers on the same connection. PROCESS is whose CPU
time is counted.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from array import array
from collections.abc import Callable
from typing import Final

import numpy as np

from bench.race.served import cpu_of
from millrace.protocol import FrameReader, decode, encode, frame
from millrace.protocol.messages import (
    PROTOCOL,
    Credit,
    Data,
    Hello,
    Message,
    Open,
    Opened,
    Result,
    Subscribe,
    Subscribed,
)

# Before the time starts: what the first rows set up does not count.
WARMING: Final = 20


class Connection:
    """A connection to the server, with the rows or lines that arrive on it counted."""

    def __init__(self, address: str, kind: str) -> None:
        host, port = address.rsplit(":", 1)
        self.kind = kind
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = FrameReader()
        if kind == "rows":
            self.say(Hello(PROTOCOL, "pacer"))

    def say(self, message: Message) -> None:
        self.socket.sendall(frame(encode(message)))

    def messages(self) -> list[Message]:
        self._frames.feed(self.socket.recv(1 << 18))
        return [decode(bytes(body)) for body in self._frames.bodies()]

    def await_message(self, kind: type[Message]) -> None:
        while not any(isinstance(message, kind) for message in self.messages()):
            pass

    def received(self) -> int:
        """The rows of the next bytes."""
        if self.kind != "rows":
            return self.socket.recv(1 << 18).count(b"\n")
        count = sum(len(message.rows) for message in self.messages() if isinstance(message, Result))
        if count:
            self.say(Credit(0, count))
        return count


def encoder(kind: str) -> Callable[[int, int], bytes]:
    """The bytes of the rows from one number to another."""
    if kind == "rows":
        return lambda start, stop: frame(encode(Data(0, start, [(at, at % 7) for at in range(start, stop)])))
    form = b'{"stream":"s","tuple":{"id":%d,"v":%d}}\n'
    return lambda start, stop: b"".join([form % (at, at % 7) for at in range(start, stop)])


def run(address: str, kind: str, rate: int, count: int, process: int) -> dict[str, float]:
    sender = Connection(address, kind)
    receiver = sender if kind == "echo" else Connection(address, kind)
    if kind == "rows":
        receiver.say(Subscribe(0, "q", None, 10 * count + 65_536))
        receiver.await_message(Subscribed)
        sender.say(Open(0, "s", None, "pacer"))
        sender.await_message(Opened)
    elif kind == "json":
        receiver.socket.sendall(b'{"subscribe":"q"}\n')
        time.sleep(0.3)  # a subscription by lines is not answered
    sent, arrived = array("d", bytes(8 * (count + WARMING))), array("d")
    made = encoder(kind)
    enough = threading.Event()

    def receive() -> None:
        while len(arrived) < count + WARMING:
            rows = receiver.received()
            arrived.extend([time.perf_counter()] * rows)
            if len(arrived) >= WARMING:
                enough.set()

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    sender.socket.sendall(made(0, WARMING))
    enough.wait(60)
    before = cpu_of(process)
    start, at = time.perf_counter() - WARMING / rate, WARMING
    while at < count + WARMING:
        due = min(int((time.perf_counter() - start) * rate), count + WARMING)
        if due <= at:
            time.sleep(max(start + (at + 1) / rate - time.perf_counter(), 0))
            continue
        data, now = made(at, due), time.perf_counter()
        sent[at:due] = array("d", [now] * (due - at))
        sender.socket.sendall(data)
        at = due
    thread.join(60)
    spent = cpu_of(process) - before
    assert len(arrived) == count + WARMING, f"{len(arrived)} rows of {count + WARMING} have arrived"
    waited = (np.array(arrived) - np.array(sent))[WARMING:] * 1e3
    shares = {"median": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9}
    return {name: float(np.percentile(waited, share)) for name, share in shares.items()} | {"CPU": spent / count * 1e6}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))))
