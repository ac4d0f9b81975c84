"""Measures the console: how smooth a browser stays, and the cost of open consoles for the server.

    python -m tests.console.measures [--seconds 20]       (`make measure-console`)

Each figure has its like without the cause beside it, in the same run: a busy machine slows both. Nothing here fails;
`docs/console.md` has the figures of one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.console.browser import browser, screen
from tests.console.world import World, many

TICKETS: Final = (
    "CREATE STREAM tickets (line BIGINT, cents BIGINT); CREATE QUERY all_tickets AS SELECT line, cents FROM tickets"
)
# 2,500 rows every 50 ms.
ROWS: Final = 2_500
# Notes the time between two frames, and each task that kept the page from answering for more than 50 ms.
RECORD: Final = """() => {
  const found = window.found = {gaps: [], tasks: []};
  let last = null;
  const step = now => {
    if (last !== null) found.gaps.push(now - last);
    last = now;
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
  new PerformanceObserver(list => found.tasks.push(...list.getEntries().map(entry => entry.duration)))
    .observe({type: 'longtask'});
}"""
# Until the first answers are over.
SETTLE_SECONDS: Final = 4
# What ten pages request: addresses, and the seconds between two requests; None: the answer does not end.
EVENTS: Final = ("events?interval=1", None)
WHY: Final = ("queries/crossings/why", 2.0)
PREVIEW: Final = ("sql/preview", 2.0)
PREVIEWED: Final = {"sql": "SELECT road, speed FROM cars WHERE speed > 30", "rows": 50, "wait": 0}
PAGES: Final[Sequence[Sequence[tuple[str, float | None]]]] = (
    (EVENTS, ("advice", 15.0)),
    (EVENTS,),
    (EVENTS,),
    (EVENTS, WHY, ("log?about=crossings", 10.0)),
    (EVENTS, ("tail/crossings?from=latest&limit=23&every=0.25", None)),
    (EVENTS, ("tail/speeds?from=latest&limit=500&every=0.5", None)),
    (
        EVENTS,
        ("queries/speeds/time", 1.0),
        ("streams/cars/late", 5.0),
        ("tail/cars.late?from=0&limit=200&every=1", None),
    ),
    (EVENTS, ("log?about=cars", 10.0)),
    (EVENTS, ("components/trams/table", 5.0), ("trials", 1.0)),
    (EVENTS, PREVIEW),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of measurements that are compared")
    options = parser.parse_args()
    with browser() as running:
        for line in frames(running, options.seconds):
            _say(line)
    for words, world, pages in (
        ("15 operators", {}, PAGES),
        ("300 operators", {"sql": many(100), "streams": ("trams",)}, [(EVENTS,)] * 10),
    ):
        for line in consoles(options.seconds, options.rounds, world, pages):
            _say(f"server with {words}, {line}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# -- frames ------------------------------------------------------------------------------------------------------------


def frames(running: Any, seconds: float) -> Iterator[str]:
    """How evenly a page paints that shows a tail, without rows and with 50,000 a second."""
    with _world(sql=TICKETS, streams=("tickets",), rows=ROWS) as world, screen(running, world.url) as page:
        for silent in (True, False):
            (world.feeds.silent.add if silent else world.feeds.silent.discard)("tickets")
            page.open("queries/all_tickets/rows")
            page.page.reload()
            page.see("live", ".status")
            time.sleep(SETTLE_SECONDS)
            before, began = _rows(world), time.perf_counter()
            page.page.evaluate(RECORD)
            time.sleep(seconds)
            found = page.page.evaluate("() => window.found")
            rows = (_rows(world) - before) / (time.perf_counter() - began)
            yield f"tail of {rows:,.0f} rows a second: {_words(found['gaps'], found['tasks'], seconds)}"


def _words(gaps: Sequence[float], tasks: Sequence[float], seconds: float) -> str:
    ordered = sorted(gaps)
    middle, late = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    return (
        f"{len(gaps) / seconds:.1f} frames a second, {middle:.1f} ms between two, p99 {late:.1f} ms, at most "
        f"{ordered[-1]:.1f} ms; {len(tasks)} long tasks, {sum(tasks) / seconds / 10:.1f} % of the time"
    )


def _rows(world: World) -> int:
    return int(_asked(world, "queries/all_tickets")["rows"])


# -- consoles ----------------------------------------------------------------------------------------------------------


def consoles(
    seconds: float, rounds: int, options: dict[str, Any], pages: Sequence[Sequence[tuple[str, float | None]]]
) -> Iterator[str]:
    """The processor time of a server without a console, with one, and with one for each of the pages: in turns.

    Readers send what the pages send. Ten browsers on a small machine would slow the server's own work.
    """
    shares: dict[int, list[float]] = {0: [], 1: [], len(pages): []}
    with _world(**options) as world:
        pid = int(_asked(world, "server")["process"]["pid"])
        time.sleep(SETTLE_SECONDS)
        for _ in range(rounds):
            for count, found in shares.items():
                with Readers(world.server.admin, pages[:count]) as readers:
                    time.sleep(SETTLE_SECONDS)
                    before, began = _cpu_seconds(pid), time.perf_counter()
                    time.sleep(seconds)
                    found.append((_cpu_seconds(pid) - before) / (time.perf_counter() - began))
                assert readers.lines >= count * seconds / 2, "the readers got too little"
    least = statistics.median(shares[0])
    for count, found in shares.items():
        middle = statistics.median(found)
        spread = f"{min(found):.1%} to {max(found):.1%}"
        yield f"{count} consoles: {middle:.1%} of a core ({spread}), {middle - least:.1%} more than without"


class Readers(threading.Thread):
    """Send the requests of pages, in an event loop of a thread, and count the lines and answers that come."""

    def __init__(self, admin: str, pages: Sequence[Sequence[tuple[str, float | None]]]) -> None:
        super().__init__(daemon=True)
        self.lines = 0
        self._host, _, self._port = admin.rpartition(":")
        self._requests = [request for page in pages for request in page]
        self._ended = threading.Event()

    def run(self) -> None:
        asyncio.run(self._all())

    async def _all(self) -> None:
        tasks = [asyncio.create_task(self._send(*request)) for request in self._requests]
        while not self._ended.is_set():
            await asyncio.sleep(0.05)
            for task in tasks:
                assert not task.done(), task.result()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, path: str, seconds: float | None) -> None:
        reader, writer = await asyncio.open_connection(self._host, int(self._port))
        body = json.dumps(PREVIEWED).encode() if path == PREVIEW[0] else b""
        head = (
            f"{'POST' if body else 'GET'} /api/v1/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        )
        try:
            while True:
                if reader.at_eof():  # the server closes connections that say nothing for a few seconds
                    writer.close()
                    reader, writer = await asyncio.open_connection(self._host, int(self._port))
                writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
                answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                assert answer.startswith("http/1.1 200"), answer
                while seconds is None:
                    assert await reader.read(1 << 20)
                    self.lines += 1
                await reader.readexactly(int(answer.partition("content-length: ")[2].partition("\r\n")[0]))
                self.lines += 1
                await asyncio.sleep(seconds or 0)
        finally:
            writer.close()

    def __enter__(self) -> Readers:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(timeout=10)


def _cpu_seconds(pid: int) -> float:
    """The processor time of a process, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _asked(world: World, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{world.url}/api/v1/{path}") as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@contextmanager
def _world(**options: Any) -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder, World(Path(folder), **options) as world:
        yield world


if __name__ == "__main__":
    main()
