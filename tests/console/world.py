"""A server with feeds, each of which a test can silence: what the console shows of it is known.

`trams` and `cars` have external timestamps and a feed each, and the union `crossings` waits for both. `tickets` are
stamped by the server.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from types import TracebackType

from millrace.client import Client
from tests.cli.conftest import Server, millrace

SQL = """
CREATE STREAM trams (ts TIMESTAMP, line BIGINT, stop TEXT, delay DOUBLE) WITH (timestamps = 'external', time = 'ts');
CREATE STREAM cars (ts TIMESTAMP, road TEXT, speed DOUBLE)
  WITH (timestamps = 'external', time = 'ts', disorder = '1 second');
CREATE STREAM tickets (line BIGINT, cents BIGINT);
CREATE QUERY crossings WITH (order = 'event') AS
  SELECT ts, 'tram' AS kind, stop AS place, delay AS value FROM trams WHERE delay >= 0
  UNION ALL
  SELECT ts, 'car', road, speed FROM cars WHERE speed > 30;
CREATE QUERY conflicts AS
  SELECT t.ts, t.stop, t.line, c.road, c.speed
  FROM trams t JOIN cars c ON t.stop = c.road
  AND t.ts BETWEEN c.ts - INTERVAL '1 second' AND c.ts + INTERVAL '1 second';
CREATE QUERY speeds AS
  SELECT road, count(*) AS n, avg(speed) AS mean, max(speed) AS fastest, window_start
  FROM TUMBLE(cars, ts, INTERVAL '2 seconds') GROUP BY road, window_start;
CREATE QUERY sales AS SELECT line, count(*) AS tickets, sum(cents) AS cents FROM tickets GROUP BY line;
CREATE SINK speeding FROM speeds WITH (type = 'file', path = 'speeding.jsonl');
"""
PLACES = ("Harbour", "Market", "Mill Lane", "Old Bridge", "Station")
# A feed sends so many rows every so many seconds.
PAUSE = 0.05
NAMES = {"trams": "gateway-north", "cars": "induction-loops", "tickets": "machines"}


def many(queries: int) -> str:
    """One component of about three operators for each query."""
    stream = "CREATE STREAM trams (ts TIMESTAMP, line BIGINT, stop TEXT, delay DOUBLE)"
    query = "CREATE QUERY q{0:03d} AS SELECT stop, delay * {0} AS x FROM trams WHERE delay > {0};"
    statements = (query.format(number) for number in range(queries))
    return f"{stream} WITH (timestamps = 'external', time = 'ts'); {' '.join(statements)}"


class World:
    """The server and its feeds. `guarded`: it requires a token, which is `token`."""

    def __init__(
        self,
        folder: Path,
        *,
        sql: str = SQL,
        streams: Sequence[str] = tuple(NAMES),
        rows: int = 1,
        guarded: bool = False,
    ) -> None:
        self.folder, self.guarded = folder, guarded
        self.server = Server(folder, guarded=guarded)
        self.token = (folder / "admin.token").read_text().strip() if guarded else None
        done = self.command("sql", sql)
        assert done.returncode == 0, done.stderr
        self.url = f"http://{self.server.admin}"
        self.feeds = Feeds(self.server.listen, streams, rows, self.token)

    def command(self, *arguments: str) -> CompletedProcess[str]:
        """A command against the server, with its token."""
        secret = {} if self.token is None else {"MILLRACE_TOKEN": self.token}
        return millrace(*arguments, MILLRACE_ADMIN=self.server.admin, **secret)

    def restart(self, see: Callable[[str], object]) -> None:
        """End the server, wait until the page has noticed, and start it at the same addresses."""
        assert self.server.end()[0] == 0
        see("Disconnected")
        (self.folder / "addresses.json").unlink(missing_ok=True)
        self.server = Server(self.folder, "--listen", self.server.listen, "--admin", self.server.admin)

    def __enter__(self) -> World:
        self.feeds.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.feeds.end()
        self.server.__exit__(kind, error, at)


class Feeds(threading.Thread):
    """Feeds streams with rows of now, until the end. It leaves out those that are in `silent`."""

    def __init__(self, listen: str, streams: Sequence[str], rows: int, token: str | None) -> None:
        super().__init__(daemon=True)
        self.silent: set[str] = set()
        self.error: Exception | None = None
        self._listen, self._streams, self._rows, self._token = listen, streams, rows, token
        self._ended = threading.Event()
        self._chance = random.Random(7)

    def run(self) -> None:
        try:
            with Client(self._listen, name="console-world", token=self._token) as client:
                feeds = {stream: client.open(stream, producer=NAMES[stream]) for stream in self._streams}
                while not self._ended.wait(PAUSE):
                    for stream, feed in feeds.items():
                        if stream not in self.silent:
                            feed.send([self._row(stream) for _ in range(self._rows)])
        except Exception as error:  # a test that uses the world reports it
            self.error = error

    def _row(self, stream: str) -> tuple[object, ...]:
        now, chance = time.time_ns() // 1_000, self._chance
        if stream == "trams":
            return now, chance.randint(1, 12), chance.choice(PLACES), round(chance.expovariate(0.02), 1)
        if stream == "cars":
            late = 3_000_000 if chance.random() < 0.01 else chance.randrange(400_000)
            return now - late, chance.choice(PLACES), round(chance.gauss(42, 9), 1)
        return chance.randint(1, 12), chance.choice((180, 290, 350))

    def end(self) -> None:
        self._ended.set()
        self.join(timeout=10)
        assert self.error is None or not self.is_alive(), self.error
