"""Attacks on a server that requires a token, one after the other: `make attacks`.

Beside each attack a client feeds 100,000 tuples a second, in turns with and without the attack. A line says how much
the server grew, how much of a processor the attack cost it, what the attacker got, how long `/-/healthy` took, and how
much of the feed's goodput was left. `--python` attacks the server of another environment, such as an earlier version.

    connect, http_connect    open connections as fast as possible, and close the oldest of 500
    slow_lines, slow_http    400 connections that send a byte a second
    guesses                  wrong tokens as fast as possible
    sizes                    frames that announce up to 4 GiB, without a token and with one
    deep                     JSON, a thousand levels deep and a megabyte long
    arrow                    Arrow payloads that announce 4 GiB, and compressed zeros
    headers, bodies          HTTP requests with endless headers, and with endless bodies
    statements               SQL that would grow exponentially, is deep, or is long and wrong at its end
    idle, trickle, sink      1,000 idle and 50 busy connections; a subscriber that reads a byte a second; a full disk
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import select
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa

from bench import soak
from bench import statements as expensive
from bench.soak import LEAST_BESIDE, MOST_SECONDS, TOKEN, Client, Outcome, Soak
from bench.wire import daemon
from millrace.protocol import CODES, decode, encode, frame
from millrace.protocol.messages import PROTOCOL, Ack, DataArrow, Error, Hello, Message, Open, Opened

# Connections that an attacker has open at once; for slow ones below the server's limits, so that they stay open.
OPEN: Final = 500
SLOW: Final = 400


# -- attackers, each in a process --------------------------------------------------------------------------------------

# One round of an attack: what became of it.
Round = Callable[[str, int], str]


def connect(host: str, port: int) -> Round:
    """Open connections; the oldest are closed."""
    held: list[socket.socket] = []
    opened = 0

    def attack(*_: object) -> str:
        nonlocal opened
        for _ in range(50):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection((host, port), timeout=1.0))
                opened += 1
        while len(held) > OPEN:
            held.pop(0).close()
        return f"{opened} opened"

    return attack


def slow(host: str, port: int, text: bytes) -> Round:
    """Connections that send one byte of the text a second, and are opened again when the server has closed them."""
    held: list[socket.socket | None] = [None] * SLOW
    closed = sent = 0

    def attack(*_: object) -> str:
        nonlocal closed, sent
        for at, peer in enumerate(held):
            try:
                if peer is None:
                    held[at] = peer = socket.create_connection((host, port), timeout=1.0)
                    peer.setblocking(False)
                peer.send(text[sent % len(text) : sent % len(text) + 1])
                if select.select([peer], [], [], 0)[0] and not peer.recv(4096):
                    raise ConnectionError
            except OSError:
                held[at] = None
                closed += peer is not None
        sent += 1
        time.sleep(1.0)
        return f"{closed} closed by the server"

    return attack


def said(host: str, port: int, *parts: bytes, most: int = 1) -> str:
    """The start of the answer to these bytes, which may be cut off; `most` times the last part."""
    heard = b""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5.0) as peer:
        with contextlib.suppress(OSError):
            for part in parts:
                peer.sendall(part)
            for _ in range(most - 1):
                peer.sendall(parts[-1])
        with contextlib.suppress(OSError):
            while piece := peer.recv(65536):
                heard += piece
                if b"error" in heard or heard.startswith(b"HTTP"):
                    break
    return _code(heard)


def _code(answer: bytes) -> str:
    """The status or the code of an error in an answer."""
    if answer.startswith(b"HTTP/"):
        return answer.split(b" ", 2)[1].decode()
    for code in (*CODES, "wrong_port"):
        if code.encode() in answer:
            return code
    return "closed" if not answer else "another answer"


def each(*attacks: Callable[[], str]) -> Round:
    """Attacks in turn, and the answers to them."""
    answers: dict[str, int] = {}

    def attack(*_: object) -> str:
        for one in attacks:
            answer = one()
            answers[answer] = answers.get(answer, 0) + 1
        return ", ".join(f"{count} {answer}" for answer, count in sorted(answers.items()))

    return attack


def fed(host: str, port: int, data: bytes) -> str:
    """What a server answers to the first data of a feed. Data before OPENED would be refused without a look at them."""
    with socket.create_connection((host, port), timeout=5.0) as peer, peer.makefile("rb") as heard:
        peer.sendall(hello() + frame(encode(Open(0, "other", None, secrets.token_hex(8)))))
        answer = _until(heard, Opened)
        if isinstance(answer, Opened):
            with contextlib.suppress(OSError):
                peer.sendall(data)
            answer = _until(heard, Ack)
    return answer.code if isinstance(answer, Error) else "accepted"


def _until(heard: BinaryIO, kind: type[Message]) -> Message:
    """The next message of this kind, or the error that comes instead."""
    while size := heard.read(4):
        message = decode(heard.read(int.from_bytes(size, "big")))
        if isinstance(message, kind | Error):
            return message
    return Error("connection closed", "")


def hello() -> bytes:
    return frame(encode(Hello(PROTOCOL, "attack", TOKEN)))


def sizes(host: str, port: int) -> Round:
    """Frames that announce more than they have, or than anybody may send."""
    announced = [(2**32 - 1).to_bytes(4, "big"), (2**31).to_bytes(4, "big"), (2**24).to_bytes(4, "big")]
    filler = b"\xc1" * 65536
    return each(
        *(lambda size=size: said(host, port, size, filler, most=32) for size in announced),  # type: ignore[misc]
        *(lambda size=size: said(host, port, hello(), size, filler, most=512) for size in announced),  # type: ignore[misc]
    )


def deep(host: str, port: int) -> Round:
    """Nested JSON, before and after the token."""
    token = json.dumps({"token": TOKEN}).encode() + b"\n"
    texts = [opening * 1_000 + closing * 1_000 for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"))]
    texts += [b"[" * 1_000_000, b'{"stream": "packets", "tuple": {"src": ' + b"[" * 500_000 + b"]" * 500_000 + b"}}"]
    return each(
        *(lambda text=text: said(host, port, text + b"\n") for text in texts),  # type: ignore[misc]
        *(lambda text=text: said(host, port, token, text + b"\n") for text in texts),  # type: ignore[misc]
    )


def arrow(host: str, port: int) -> Round:
    """Payloads that would become much larger, and some whose lengths are wrong."""
    columns = {"src": pa.int64(), "dst": pa.int64(), "len": pa.int64(), "rate": pa.float64()}
    bodies = []
    for rows, codec in ((4_000_000, "zstd"), (4_000_000, "lz4"), (1_000, None)):
        batch = pa.record_batch([pa.nulls(rows, kind).fill_null(0) for kind in columns.values()], names=list(columns))
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        bodies.append(sink.getvalue().to_pybytes())
    whole = bodies[-1]
    # Every eighth of the lengths in the metadata says 4 GiB.
    huge = (2**32).to_bytes(8, "little")
    bodies += [whole[:at] + huge + whole[at + 8 :] for at in range(0, min(len(whole), 1_024), 128)]
    frames = [frame(encode(DataArrow(0, 0, 1_000, body))) for body in bodies if len(body) < 4_000_000]
    return each(*(lambda one=one: fed(host, port, one) for one in frames))  # type: ignore[misc]


def http(host: str, port: int, *heads: tuple[bytes, bytes, int]) -> Round:
    """Requests whose head or body goes on."""
    return each(
        *(lambda head=head, part=part, most=most: said(host, port, head, part, most=most)  # type: ignore[misc]
          for head, part, most in heads)
    )  # fmt: skip


HEAD: Final = b"GET /api/v1/queries HTTP/1.1\r\nhost: 127.0.0.1\r\n"
POST: Final = f"POST /api/v1/sql HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {TOKEN}\r\n".encode()


def statements(host: str, port: int) -> Round:
    """Statements that the server must refuse; the slowest of them, in seconds of waiting for the answer."""
    texts = expensive.attacks()
    worst = dict.fromkeys(texts, 0.0)

    def attack(*_: object) -> str:
        for name, text in texts.items():
            body = json.dumps({"sql": text, "dry_run": True}).encode()
            head = POST + f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            began = time.perf_counter()
            answer = said(host, port, head, body)
            worst[name] = max(worst[name], time.perf_counter() - began)
            if answer not in ("400", "413", "422"):
                return f"{name}: expected a refusal, got {answer}"
        name, seconds = max(worst.items(), key=lambda one: one[1])
        return f"{len(texts)} refused, the slowest ({name}) in {seconds * 1e3:.0f} ms"

    return attack


# By attack: what makes its rounds, of the host and the port, and whether that is the HTTP port.
ATTACKERS: Final[dict[str, tuple[bool, Callable[[str, int], Round]]]] = {
    "connect": (False, connect),
    "http_connect": (True, connect),
    "slow_lines": (False, lambda host, port: slow(host, port, b'{"token": "')),
    "slow_http": (True, lambda host, port: slow(host, port, HEAD)),
    "guesses": (
        False,
        lambda host, port: each(
            lambda: said(host, port, json.dumps({"token": secrets.token_urlsafe(32)}).encode() + b"\n")
        ),
    ),
    "sizes": (False, sizes),
    "deep": (False, deep),
    "arrow": (False, arrow),
    "headers": (
        True,
        lambda host, port: http(
            host, port,
            (HEAD, b"x-%s: %s\r\n" % (b"a" * 100, b"b" * 8_000), 2_000),
            (HEAD, b"x: y\r\n", 20_000),
            (b"GET /", b"a" * 65_536, 500),
        ),
    ),
    "bodies": (
        True,
        lambda host, port: http(
            host, port,
            (POST + b"content-length: 9999999999\r\n\r\n", b" " * 65_536, 1_000),
            (POST + b"transfer-encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65_536 + b"\r\n", 1_000),
            (POST + b"content-encoding: gzip\r\ncontent-length: 65536\r\n\r\n", b"\x1f\x8b" + b" " * 65_534, 1),
        ),
    ),
    "statements": (True, statements),
}  # fmt: skip


def client(arguments: Sequence[str]) -> None:
    """An attacker in a separate process: its kind and the address."""
    kind, address = arguments
    host, _, port = address.rpartition(":")
    attack = ATTACKERS[kind][1](host, int(port))
    until = time.monotonic() + MOST_SECONDS
    while time.monotonic() < until and not select.select([0], [], [], 0)[0]:
        print(attack(host, int(port)), flush=True)


# -- the server --------------------------------------------------------------------------------------------------------


class Attacks(Soak):
    """One server and its attackers."""

    @contextlib.contextmanager
    def attackers(self, name: str) -> Iterator[list[Client]]:
        if name not in ATTACKERS:
            self.said = "-"
            with super().attackers(name) as feeds:
                yield feeds
            return
        address = self.server.admin.removeprefix("http://") if ATTACKERS[name][0] else self.server.listen
        attacker = Client(name, address, program="bench.attacks", token=self.server.token)
        while attacker.said == "0" and attacker.runs:
            time.sleep(0.05)
        try:
            yield []
        finally:
            attacker.end()
            self.said = attacker.said


def line(outcome: Outcome) -> str:
    """A row of the table."""
    with_it, without = (
        statistics.median(rate / each if each else 0 for rate, each in turns)
        for turns in (outcome.during, outcome.without)
    )
    return (
        f"| {outcome.name} | {max(outcome.grown, 0) / 2**20:.1f} | {100 * (with_it - without):.0f} | {outcome.said} | "
        f"{max(outcome.healthy, default=0) * 1e3:.0f} | {outcome.share:.1%} |"
    )


ATTACKS: Final = (*ATTACKERS, "idle", "trickle", "sink")


def run(seconds: float, attacks: Sequence[str], python: str) -> bool:
    """All attacks, each for so long; whether the goodput of others stayed, and nothing acknowledged was lost."""
    token = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory() as text, soak.full_disk(Path(text) / "full") as has_disk:
        secret = Path(text) / "token"
        secret.touch(0o600)
        secret.write_text(f"{token}\n")
        settings = {"MILLRACE_SERVER__ALLOW_PATHS": text, "MILLRACE_SERVER__TOKEN_FILE": str(secret)}
        with daemon(settings, token=token, python=python) as server:
            world = Attacks(server, Path(text))
            server.sql(expensive.SCHEMA)
            world.attack("idle", 4.0)  # a warm server has the memory that its work needs
            print("| attack | MiB more | % of a processor | outcome | healthy, ms at most | goodput beside it |")
            print("|---|---|---|---|---|---|", flush=True)
            holds = True
            for name in attacks:
                if name == "sink" and not has_disk:
                    continue
                outcome = world.attack(name, seconds)
                print(line(outcome), flush=True)
                holds &= outcome.share >= LEAST_BESIDE
            lost = world.lost()
            print(f"{world.acknowledged:,} tuples acknowledged, {lost} lost or doubled")
            return holds and lost == 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.attacks", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each attack")
    parser.add_argument("--attack", action="append", choices=ATTACKS)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the server")
    chosen = parser.parse_args(arguments)
    return 0 if run(chosen.seconds, chosen.attack or ATTACKS, chosen.python) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(sys.argv[2:])
    else:
        os.environ.pop("MILLRACE_TOKEN", None)
        sys.exit(main(sys.argv[1:]))
