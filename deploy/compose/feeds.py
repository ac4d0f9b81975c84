"""Feeds the streams of demo.sql forever, reads the rows of `watch`, and prints their number at intervals.

The environment names the server, as for the command line: MILLRACE_SERVER, MILLRACE_CA_FILE, MILLRACE_TOKEN_FILE.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import ssl
import sys
from pathlib import Path

from millrace.client import AsyncClient

# Mean packets per second on each link.
LINKS = {"office": 200.0, "branch": 2.0}
PORTS = (443, 443, 443, 80, 53, 22)


async def packets(client: AsyncClient, stream: str, per_second: float) -> None:
    """Send packets at random times, some of them large."""
    chance = random.Random(stream)
    feed = await client.open(stream)
    while True:
        await asyncio.sleep(chance.expovariate(per_second))
        source, target = (f"10.0.0.{chance.randint(2, 40)}" for _ in range(2))
        size = int(min(chance.paretovariate(1.1) * 1_500, 1_000_000))
        await feed.send([(source, target, chance.choice(PORTS), size)])


async def read(client: AsyncClient, rows: list[int]) -> None:
    async for _ in await client.subscribe("watch"):
        rows[0] += 1


async def tell(rows: list[int]) -> None:
    while True:
        await asyncio.sleep(10)
        sys.stdout.write(f"{rows[0]} rows of watch so far\n")
        sys.stdout.flush()


def connection() -> AsyncClient:
    """Connect to the server, with the certificate and token of the environment."""
    ca, token = os.environ.get("MILLRACE_CA_FILE"), os.environ.get("MILLRACE_TOKEN_FILE")
    return AsyncClient(
        os.environ.get("MILLRACE_SERVER", "127.0.0.1:7420"),
        tls=ssl.create_default_context(cafile=ca) if ca else None,
        token=Path(token).read_text(encoding="utf-8").strip() if token else None,
        name="demo",
    )


async def main() -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    rows = [0]
    async with connection() as client:
        work = [packets(client, *link) for link in LINKS.items()]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in (*work, read(client, rows), tell(rows))]
            await ended.wait()
            for task in tasks:
                task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
