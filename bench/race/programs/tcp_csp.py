"""Two workloads in csp from JSON lines over TCP: `python tcp_csp.py WORKLOAD FOLDER PORT CONNECTIONS`.

A thread per connection parses and pushes a list of rows at a time; one row per push takes several times as long.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import csp
from csp import ts
from csp.impl.pushadapter import PushInputAdapter
from csp.impl.wiring import py_push_adapter_def
from exchange import SECOND_US, WINDOW_US, finish
from lines_in import Lines, listen

counts: defaultdict[tuple[int, int], int] = defaultdict(int)
groups: dict[tuple[int, int, int], list[int]] = {}


class Reading(PushInputAdapter):
    """The rows of a connection, a list at a time; None at its end."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._thread = threading.Thread(target=self._read)

    def start(self, starttime, endtime) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.join()

    def _read(self) -> None:
        while (rows := self._lines.read()) is not None:
            if rows:
                self.push_tick(rows)
        self._lines.connection.close()
        self.push_tick(None)


arriving = py_push_adapter_def("arriving", Reading, ts[object], lines=object)


@csp.node
def count_seconds(rows: {int: ts[object]}):
    with csp.state():
        s_open = len(rows)

    for batch in rows.tickedvalues():
        if batch is None:
            s_open -= 1
        else:
            for at, k, v in batch:
                if v < 500:
                    counts[k, at // 1_000_000] += 1
    if not s_open:
        csp.stop_engine()


@csp.node
def group(rows: {int: ts[object]}):
    with csp.state():
        s_open = len(rows)

    for batch in rows.tickedvalues():
        if batch is None:
            s_open -= 1
        else:
            for at, a, b, v in batch:
                key = a, b, at // 10_000_000
                found = groups.get(key)
                if found is None:
                    groups[key] = [1, v]
                else:
                    found[0] += 1
                    found[1] += v
    if not s_open:
        csp.stop_engine()


@csp.graph
def graph(name: str, lines: object):
    rows = {at: arriving(one, push_mode=csp.PushMode.NON_COLLAPSING) for at, one in enumerate(lines)}
    if name == "w1":
        count_seconds(rows)
    else:
        group(rows)


def main() -> None:
    name, folder, port, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    server = listen(port)
    connections = [server.accept()[0] for _ in range(count)]
    begin = time.process_time()
    names = ("ts", "k", "v") if name == "w1" else ("ts", "a", "b", "v")
    lines = [Lines(connection, names) for connection in connections]
    csp.run(graph, name, lines, realtime=True, endtime=timedelta(hours=1))
    seconds = time.process_time() - begin
    rows = [(k, n, (second + 1) * SECOND_US) for (k, second), n in counts.items()]
    rows += [(a, b, n, total, (window + 1) * WINDOW_US) for (a, b, window), (n, total) in groups.items()]
    finish(folder, rows, seconds)


if __name__ == "__main__":
    main()
