"""Start a server, feed it two network links and a stream of address owners, and print a query's rows as they arrive.
docs/tutorial.md builds the same network step by step.

    python examples/demo.py [--seconds N] [--free-ports]

The server listens on the usual ports (7420 and 7421), or on free ones if another program uses them. Ctrl-C ends the
demo and the server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from millrace.client import AsyncClient, AsyncFeed

HERE = Path(__file__).parent
MILLRACE = (sys.executable, "-m", "millrace.cli.main")

PORTS = (443, 443, 443, 443, 80, 80, 53, 22, 25, 3389, 23)


@dataclass(frozen=True)
class Link:
    """One network link: its stream and its average packet rate."""

    stream: str
    network: str
    per_second: float


LINKS = (Link("office", "10.1.0", 50.0), Link("branch", "10.2.0", 1.5))
HOSTS = range(2, 41)
OWNERS = ("Ada", "Edsger", "Grace", "Katherine", "Tony")
# How often an address changes hands.
MOVES_PER_SECOND = 0.5


@dataclass
class Totals:
    """Tuples fed per stream, rows received per query, and how long each row took."""

    fed: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)


def available(port: int) -> int:
    """The port, or 0 (any free one) if another program listens on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port


@contextlib.contextmanager
def server(*, free_ports: bool) -> Iterator[tuple[dict[str, str], Path]]:
    """A server in a separate process, and the file of its token; SIGTERM lets it finish its work."""
    with tempfile.TemporaryDirectory(prefix="millrace-demo-") as folder:
        addresses = Path(folder, "addresses.json")
        ports = [0, 0] if free_ports else [available(7420), available(7421)]
        if 0 in ports and not free_ports:
            print("Port 7420 or 7421 is in use (another Millrace server?): the demo uses free ports.", flush=True)
            ports = [0, 0]
        listen, admin = (f"127.0.0.1:{port}" for port in ports)
        flags = ["--listen", listen, "--admin", admin, "--data-dir", folder]
        process = subprocess.Popen(
            [*MILLRACE, "serve", *flags],
            env={**os.environ, "MILLRACE_LOG__LEVEL": "warning"},
            start_new_session=True,  # Ctrl-C reaches the demo alone, which ends the server
        )
        try:
            yield wait_for(addresses, process), Path(folder, "admin.token")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)


def wait_for(addresses: Path, process: subprocess.Popen[bytes]) -> dict[str, str]:
    """The server's addresses, once it listens."""
    for _ in range(600):
        if process.poll() is not None:
            sys.exit("the server did not start; its last line says why")
        with contextlib.suppress(OSError, ValueError):
            content: dict[str, str] = json.loads(addresses.read_text(encoding="utf-8"))
            return content
        time.sleep(0.05)
    sys.exit("the server did not start within 30 seconds")


async def packets(link: Link, feed: AsyncFeed, totals: Totals, seed: int) -> None:
    """Feed one link: packets at random times, most of them web traffic, some of them large."""
    chance = random.Random(seed)
    while True:
        await asyncio.sleep(chance.expovariate(link.per_second))
        source, target = (f"{link.network}.{chance.choice(HOSTS)}" for _ in range(2))
        size = int(min(chance.paretovariate(1.1) * 1_500, 1_000_000))
        await feed.send([(source, target, chance.choice(PORTS), size)])
        totals.fed[link.stream] += 1


async def owners(feed: AsyncFeed, totals: Totals) -> None:
    """Feed the owner of every address once, then one change of hands at a time."""
    chance = random.Random(2)
    addresses = [f"{link.network}.{host}" for link in LINKS for host in HOSTS]
    await feed.send([(address, chance.choice(OWNERS)) for address in addresses])
    totals.fed["owners"] += len(addresses)
    while True:
        await asyncio.sleep(chance.expovariate(MOVES_PER_SECOND))
        await feed.send([(chance.choice(addresses), chance.choice(OWNERS))])
        totals.fed["owners"] += 1


async def watch(client: AsyncClient, totals: Totals) -> None:
    """Print the rows of the union."""
    print(f"{'time':<15} {'link':<7} {'from':<11} {'to':<11} {'port':>5} {'KiB':>6}", flush=True)
    async for row in await client.subscribe("watch"):
        stamped_us = row["ts"]
        assert isinstance(stamped_us, int)
        totals.rows["watch"] += 1
        totals.latencies_ms.append(time.time() * 1_000 - stamped_us / 1_000)
        clock = time.strftime("%H:%M:%S", time.gmtime(stamped_us / 1e6)) + f".{stamped_us // 1_000 % 1_000:03d}"
        line = f"{clock:<15} {row['link']:<7} {row['src']:<11} {row['dst']:<11} {row['port']:>5} {row['kib']:>6}"
        print(line, flush=True)


async def count_alarms(client: AsyncClient, totals: Totals) -> None:
    async for _ in await client.subscribe("alarms"):
        totals.rows["alarms"] += 1


async def play(listen: str, token: str, seconds: float | None, totals: Totals) -> None:
    """Feed and watch, for this many seconds or until Ctrl-C."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, done.set)
    async with AsyncClient(listen, token=token, name="demo") as client:
        work = [asyncio.create_task(watch(client, totals)), asyncio.create_task(count_alarms(client, totals))]
        work.append(asyncio.create_task(owners(await client.open("owners"), totals)))
        for seed, link in enumerate(LINKS):
            work.append(asyncio.create_task(packets(link, await client.open(link.stream), totals, seed)))
        ended = asyncio.create_task(done.wait())
        await asyncio.wait([ended, *work], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, *work):
            task.cancel()
        results = await asyncio.gather(*work, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result


def print_instructions(addresses: dict[str, str], token_file: Path, seconds: float | None) -> None:
    """Lines to paste into another terminal; they work in any directory. The commands find the token by themselves."""
    admin = addresses["admin"]
    rates = " and ".join(f"{link.stream} ({link.per_second:g} packets/s)" for link in LINKS)
    commands = Path(sys.executable).parent
    change = shlex.quote(str(HERE / "demo-change.sql"))
    setup = [f'export PATH="{commands}:$PATH"']
    if admin != "127.0.0.1:7421":
        setup.append(f"export MILLRACE_ADMIN={admin}")
    lines = "\n".join(f"  {line}" for line in setup)
    end = f"The demo ends after {seconds:g} seconds." if seconds else "Ctrl-C ends the demo."
    print(
        f"""
Millrace is running: feeds and subscribers at {addresses["listen"]}, HTTP API at http://{admin}
Two links feed it: {rates}.
Paste into another terminal:

{lines}
  millrace tail alarms              rows of a second query: a live join with an update stream
  millrace top                      rates, latencies, and which operator waits for which stream
  millrace why alarms               why a query emits nothing right now
  millrace component table office   the scheduler's state table
  millrace strategy try office bfs --for 5s --revert-if 'p99 > 2x'
  millrace apply {change} --plan
  millrace apply {change}
                                    replaces a query while it runs; row sequence numbers continue
  millrace doctor                   advice
  curl -H "Authorization: Bearer $(cat {shlex.quote(str(token_file))})" http://{admin}/metrics

Web page: http://{admin}/ (its token is in {token_file})
{end} Rows of the query `watch`, in order of time:
""",
        flush=True,
    )


def print_summary(totals: Totals) -> None:
    fed = ", ".join(f"{totals.fed[link.stream]} on {link.stream}" for link in LINKS)
    print(f"\nFed {fed}; {totals.rows['watch']} rows of watch, {totals.rows['alarms']} of alarms.")
    if len(totals.latencies_ms) > 1:
        print(
            f"Latency from server arrival to this terminal: median {statistics.median(totals.latencies_ms):.1f} ms, "
            f"longest {max(totals.latencies_ms):.1f} ms, although the branch link was silent most of the time."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Start a server, feed two links, and print a query's rows.")
    parser.add_argument("--seconds", type=float, help="end after this many seconds (default: at Ctrl-C)")
    parser.add_argument("--free-ports", action="store_true", help="let the system choose the ports")
    arguments = parser.parse_args()
    seconds: float | None = arguments.seconds
    totals = Totals()
    try:
        with server(free_ports=arguments.free_ports) as (addresses, token_file):
            link = ("--admin", addresses["admin"], "--token-file", str(token_file))
            subprocess.run([*MILLRACE, "apply", str(HERE / "demo.sql"), *link], check=True)
            print_instructions(addresses, token_file, seconds)
            token = token_file.read_text(encoding="utf-8").strip()
            asyncio.run(play(addresses["listen"], token, seconds, totals))
    except KeyboardInterrupt:
        print("interrupted before the server was ready")
        return
    print_summary(totals)


if __name__ == "__main__":
    main()
