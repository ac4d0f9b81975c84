"""A server, two network links that feed it at very different rates, a stream of who has which address, and rows as they
arrive. It is the network of docs/tutorial.md.

    python examples/demo.py [--seconds N]

Starts a server of its own on free ports and ends it again. Ctrl-C ends the demo early.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
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
    """One network link: its stream and how often a packet passes, on average."""

    stream: str
    network: str
    per_second: float


LINKS = (Link("office", "10.1.0", 50.0), Link("branch", "10.2.0", 1.5))
HOSTS = range(2, 41)
OWNERS = ("Ada", "Edsger", "Grace", "Katherine", "Tony")
# An address changes hands about so often.
MOVES_PER_SECOND = 0.5


@dataclass
class Seen:
    """What came of it."""

    fed: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    waited_ms: list[float] = field(default_factory=list)


@contextlib.contextmanager
def server() -> Iterator[dict[str, str]]:
    """A server in a process of its own, on free ports; ended by SIGTERM, which lets it finish its work."""
    with tempfile.TemporaryDirectory(prefix="millrace-demo-") as folder:
        addresses = Path(folder, "addresses.json")
        process = subprocess.Popen(
            [*MILLRACE, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir", folder],
            env={**os.environ, "MILLRACE_LOG__LEVEL": "warning"},
            start_new_session=True,  # Ctrl-C is ours: the server ends when the demo has read its last rows
        )
        try:
            yield wait_for(addresses, process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)


def wait_for(addresses: Path, process: subprocess.Popen[bytes]) -> dict[str, str]:
    """Where the server listens, as soon as it does."""
    for _ in range(600):
        if process.poll() is not None:
            sys.exit("the server did not start; its last line says why")
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, str] = json.loads(addresses.read_text(encoding="utf-8"))
            return found
        time.sleep(0.05)
    sys.exit("the server did not start within 30 seconds")


async def packets(link: Link, feed: AsyncFeed, seen: Seen, seed: int) -> None:
    """Feed one link: packets at random times, most of them web traffic, some of them large."""
    chance = random.Random(seed)
    while True:
        await asyncio.sleep(chance.expovariate(link.per_second))
        source, target = (f"{link.network}.{chance.choice(HOSTS)}" for _ in range(2))
        size = int(min(chance.paretovariate(1.1) * 1_500, 1_000_000))
        await feed.send([(source, target, chance.choice(PORTS), size)])
        seen.fed[link.stream] += 1


async def owners(feed: AsyncFeed, seen: Seen) -> None:
    """Say who has which address: all of them once, then one that changes hands now and then."""
    chance = random.Random(2)
    addresses = [f"{link.network}.{host}" for link in LINKS for host in HOSTS]
    await feed.send([(address, chance.choice(OWNERS)) for address in addresses])
    seen.fed["owners"] += len(addresses)
    while True:
        await asyncio.sleep(chance.expovariate(MOVES_PER_SECOND))
        await feed.send([(chance.choice(addresses), chance.choice(OWNERS))])
        seen.fed["owners"] += 1


async def watch(client: AsyncClient, seen: Seen) -> None:
    """Print the rows of the union."""
    print(f"{'time':<15} {'link':<7} {'from':<11} {'to':<11} {'port':>5} {'KiB':>6}", flush=True)
    async for row in await client.subscribe("watch"):
        stamped_us = row["ts"]
        assert isinstance(stamped_us, int)
        seen.rows["watch"] += 1
        seen.waited_ms.append(time.time() * 1_000 - stamped_us / 1_000)
        clock = time.strftime("%H:%M:%S", time.gmtime(stamped_us / 1e6)) + f".{stamped_us // 1_000 % 1_000:03d}"
        line = f"{clock:<15} {row['link']:<7} {row['src']:<11} {row['dst']:<11} {row['port']:>5} {row['kib']:>6}"
        print(line, flush=True)


async def count_alarms(client: AsyncClient, seen: Seen) -> None:
    async for _ in await client.subscribe("alarms"):
        seen.rows["alarms"] += 1


async def play(listen: str, seconds: float | None, seen: Seen) -> None:
    """Feed and watch, for so many seconds or until Ctrl-C."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, done.set)
    async with AsyncClient(listen, name="demo") as client:
        work = [asyncio.create_task(watch(client, seen)), asyncio.create_task(count_alarms(client, seen))]
        work.append(asyncio.create_task(owners(await client.open("owners"), seen)))
        for seed, link in enumerate(LINKS):
            work.append(asyncio.create_task(packets(link, await client.open(link.stream), seen, seed)))
        ended = asyncio.create_task(done.wait())
        await asyncio.wait([ended, *work], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, *work):
            task.cancel()
        results = await asyncio.gather(*work, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result


def tell_how_to_look(addresses: dict[str, str], seconds: float | None) -> None:
    admin = addresses["admin"]
    rates = " and ".join(f"{link.stream} with about {link.per_second:g} packets a second" for link in LINKS)
    print(
        f"""
A Millrace server runs: feeds and subscribers at {addresses["listen"]}, admin API at http://{admin}
Two links feed it, {rates}.
In another terminal, try

  export MILLRACE_ADMIN={admin}
  millrace tail alarms              the rows of another query: a live join with an update stream
  millrace top                      what moves, and where it waits
  millrace why alarms               why nothing comes, when nothing comes
  millrace component table office   the scheduler's state table
  millrace strategy try office bfs --for 5s --revert-if 'p99 > 2x'
  millrace apply examples/demo-change.sql --plan
  millrace apply examples/demo-change.sql
                                    another query in its place; its rows are numbered on
  millrace doctor                   advice, if there is any
  curl http://{admin}/metrics

{f"It ends after {seconds:g} seconds." if seconds else "Ctrl-C ends it."} Rows of the query watch, in order of time:
"""
    )


def summary(seen: Seen) -> None:
    fed = ", ".join(f"{seen.fed[link.stream]} on {link.stream}" for link in LINKS)
    print(f"\nFed {fed}; {seen.rows['watch']} rows of watch, {seen.rows['alarms']} of alarms.")
    if len(seen.waited_ms) > 1:
        print(
            f"From arrival at the server to this terminal: median {statistics.median(seen.waited_ms):.1f} ms, "
            f"longest {max(seen.waited_ms):.1f} ms, although the branch link was silent most of the time."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="A server, two links, and a query's rows as they arrive.")
    parser.add_argument("--seconds", type=float, help="end after so many seconds (default: at Ctrl-C)")
    seconds: float | None = parser.parse_args().seconds
    seen = Seen()
    try:
        with server() as addresses:
            subprocess.run([*MILLRACE, "apply", str(HERE / "demo.sql"), "--admin", addresses["admin"]], check=True)
            tell_how_to_look(addresses, seconds)
            asyncio.run(play(addresses["listen"], seconds, seen))
    except KeyboardInterrupt:
        print("ended before it began")
        return
    summary(seen)


if __name__ == "__main__":
    main()
