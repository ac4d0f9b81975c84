"""Two workloads in bytewax from JSON lines over TCP: `python tcp_bytewax.py WORKLOAD FOLDER PORT CONNECTIONS`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bytewax.inputs import DynamicSource, StatelessSourcePartition
from exchange import finish
from in_bytewax import FOUR, THREE, w1, w2
from lines_in import Lines, listen

PAUSE = timedelta(milliseconds=1)


class Arriving(StatelessSourcePartition[Any]):
    """The rows of a connection, as they arrive."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._empty = False

    def next_batch(self) -> Iterable[Any]:
        self._empty = False
        try:
            rows = self._lines.read()
        except BlockingIOError:
            self._empty = True
            return []
        if rows is None:
            self._lines.connection.close()
            raise StopIteration
        return rows

    def next_awake(self) -> datetime | None:
        return datetime.now(UTC) + PAUSE if self._empty else None


class Connection(DynamicSource[Any]):
    """A connection, for the only worker."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Arriving:
        return Arriving(self._lines)


def main() -> None:
    name, folder, port, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    server = listen(port)
    connections = [server.accept()[0] for _ in range(count)]
    begin = time.process_time()
    for connection in connections:
        connection.setblocking(False)
    names = THREE if name == "w1" else FOUR
    sources = {str(at): Connection(Lines(connection, names)) for at, connection in enumerate(connections)}
    rows = list((w1 if name == "w1" else w2)(sources))
    finish(folder, rows, time.process_time() - begin)


if __name__ == "__main__":
    main()
