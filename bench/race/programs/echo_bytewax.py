"""One filter in bytewax between two ends of a TCP connection: `python echo_bytewax.py PORT`."""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Iterable
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main
from lines_in import Lines, listen

WAIT_S = 0.01


class Arriving(StatelessSourcePartition[Any]):
    """The rows of a connection; waits for them in the only worker, which has nothing else to do."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def next_batch(self) -> Iterable[Any]:
        if not select.select([self._lines.connection], [], [], WAIT_S)[0]:
            return []
        rows = self._lines.read()
        if rows is None:
            raise StopIteration
        return rows


class Source(DynamicSource[Any]):
    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Arriving:
        return Arriving(self._lines)


class Leaving(StatelessSinkPartition[Any]):
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write_batch(self, items: list[Any]) -> None:
        self._connection.sendall(b"".join([orjson.dumps({"id": id, "v": v}) + b"\n" for id, v in items]))  # noqa: A001


class Sink(DynamicSink[Any]):
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Leaving:
        return Leaving(self._connection)


def main() -> None:
    connection = listen(int(sys.argv[1])).accept()[0]
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    flow = Dataflow("echo")
    rows = op.input("in", flow, Source(Lines(connection, ("id", "v"))))
    kept = op.filter("filter", rows, lambda row: row[1] >= 0)
    op.output("out", kept, Sink(connection))
    run_main(flow)


if __name__ == "__main__":
    main()
