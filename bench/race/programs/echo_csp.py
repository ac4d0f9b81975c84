"""One filter in csp between two ends of a TCP connection: `python echo_csp.py PORT`."""

from __future__ import annotations

import socket
import sys
import threading
from datetime import timedelta

import csp
import orjson
from csp import ts
from csp.impl.pushadapter import PushInputAdapter
from csp.impl.wiring import py_push_adapter_def
from lines_in import Lines, listen


class Reading(PushInputAdapter):
    """The rows of a connection, those of one receipt together."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self, starttime, endtime) -> None:
        self._thread.start()

    def _read(self) -> None:
        while (rows := self._lines.read()) is not None:
            if rows:
                self.push_tick(rows)


arriving = py_push_adapter_def("arriving", Reading, ts[object], lines=object)


@csp.node  # noqa: RET503 - a node that does not tick returns nothing
def passing(rows: ts[object]) -> ts[object]:
    if csp.ticked(rows):
        return [row for row in rows if row[1] >= 0]


@csp.node
def leaving(rows: ts[object], connection: object):
    if csp.ticked(rows):
        connection.sendall(b"".join([orjson.dumps({"id": id, "v": v}) + b"\n" for id, v in rows]))  # noqa: A001


@csp.graph
def graph(lines: object):
    leaving(passing(arriving(lines, push_mode=csp.PushMode.NON_COLLAPSING)), lines.connection)


def main() -> None:
    connection = listen(int(sys.argv[1])).accept()[0]
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    csp.run(graph, Lines(connection, ("id", "v")), realtime=True, endtime=timedelta(hours=1))


if __name__ == "__main__":
    main()
