"""A client in a separate process: feeds what its input asks for, and prints what it learns, a line of JSON each.

Started with the addresses of a server and its standby. A line of input is a number: the client sends the tuples below
it, and prints `acknowledged` once the server has them. Rows are printed with their numbers as they arrive.
"""

import asyncio
import json
import sys

from millrace.client import AsyncClient, Backoff, RowBatch


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def main(addresses: str) -> None:
    loop = asyncio.get_running_loop()
    async with AsyncClient(addresses, reconnect=Backoff(0.01, 1.5, 0.2, attempts=100_000), heartbeat=1.0) as client:
        feed = await client.open("s", producer="p")
        subscription = await client.subscribe("q", from_sequence=0)

        async def read() -> None:
            while True:
                batch = await subscription.next_batch()
                assert isinstance(batch, RowBatch)
                say(first=batch.sequence, rows=[k for (k,) in batch.rows], epoch=client.epoch)

        reading = asyncio.create_task(read())
        sent = 0
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            while sent < int(line):
                await feed.send([(sent,)])
                sent += 1
            await feed.flush()
            say(acknowledged=feed.acknowledged, epoch=client.epoch)
        reading.cancel()


asyncio.run(main(sys.argv[1]))
