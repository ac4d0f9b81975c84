"""Measures the console: how smooth a browser stays, and what open consoles cost the server.

    python -m tests.console.measures [--seconds 20]       (`make measure-console`)

Each figure has its like without the cause beside it, in the same run: a busy machine slows both. Nothing here fails;
`docs/console.md` has the figures of one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
# Ten people, each on another page.
PAGES: Final = (
    *("", "graph/trams", "queries", "queries/crossings", "queries/crossings/rows", "queries/speeds/chart"),
    *("queries/speeds/time", "streams/cars", "components/trams", "editor/speeds"),
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
            ("300 operators", {"sql": many(100), "streams": ("trams",)}, ("graph",) * 10),
        ):
            for line in consoles(running, options.seconds, options.rounds, world, pages):
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


def consoles(running: Any, seconds: float, rounds: int, options: dict[str, Any], pages: Sequence[str]) -> Iterator[str]:
    """The processor time of a server without a console, with one, and with one for each of the pages: in turns."""
    shares: dict[int, list[float]] = {0: [], 1: [], len(pages): []}
    with _world(**options) as world:
        pid = int(_asked(world, "server")["process"]["pid"])
        time.sleep(SETTLE_SECONDS)
        for _ in range(rounds):
            for count, found in shares.items():
                with ExitStack() as opened:
                    for place in pages[:count]:
                        opened.enter_context(screen(running, world.url)).open(place)
                    time.sleep(SETTLE_SECONDS)
                    before, began = _cpu_seconds(pid), time.perf_counter()
                    time.sleep(seconds)
                    found.append((_cpu_seconds(pid) - before) / (time.perf_counter() - began))
    least = statistics.median(shares[0])
    for count, found in shares.items():
        middle = statistics.median(found)
        spread = f"{min(found):.1%} to {max(found):.1%}"
        yield f"{count} consoles: {middle:.1%} of a core ({spread}), {middle - least:.1%} more than without"


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
