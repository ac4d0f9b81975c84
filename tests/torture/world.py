"""A server that is killed again and again while programs feed it, read it and change it.

What must hold in the end, whenever it was killed: every row that was sent is counted once, the rows of each query
have the numbers 0, 1, 2, ... without a gap, each sink has exactly the rows of its query, in their order, and history
has each row of its stream once, whose days alternate, so that each write makes several files. The follower is killed
alone, too.

`make torture KILLS=200` runs it for long; `--seed` draws the same kills again, though not at the same moments.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from millrace.client import Backoff, Client, RowBatch
from tests.cli.conftest import clean_environment
from tests.patience import wait_until

STEP_US = 1_000
START_US = 1_790_000_000_000_000
WINDOW_US = 500_000
BAND_US = 3_000
GAP_US = 3_000
KEYS = 7
SQL = """
CREATE STREAM a (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts', grace = '1 hour');
CREATE STREAM b (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts', grace = '1 hour');
CREATE STREAM d (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts', disorder = '10 days', history = 'true');
CREATE QUERY plain WITH (retain = '1 GB') AS SELECT k, v FROM a WHERE v % 3 = 0;
CREATE QUERY windows WITH (retain = '1 GB') AS
  SELECT k, count(*) AS n, sum(v) AS total, window_start FROM TUMBLE(a, ts, INTERVAL '500 milliseconds')
  GROUP BY k, window_start;
CREATE QUERY pairs WITH (retain = '1 GB') AS
  SELECT a.k, a.v AS av, b.v AS bv FROM a JOIN b
  ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '3 milliseconds';
CREATE QUERY totals WITH (retain = '1 GB') AS SELECT k, count(*) AS n FROM b GROUP BY k;
CREATE QUERY sparse AS SELECT ts, v FROM a WHERE v % 11 < 4;
CREATE QUERY sessions WITH (retain = '1 GB') AS
  SELECT count(*) AS n, sum(v) AS total, window_start FROM SESSION(sparse, ts, INTERVAL '3 milliseconds');
CREATE SINK lines FROM plain WITH (type = 'file', path = 'plain.jsonl');
CREATE SINK table FROM pairs WITH (type = 'file', path = 'pairs.csv', format = 'csv');
CREATE SINK files FROM plain WITH (type = 'file', path = 'plain', format = 'parquet', rotate_rows = 700);
"""
# The longest pauses before a kill, in seconds.
PAUSES = (0.05, 0.5, 1.5)
# Small files of history, so that a kill often finds one in the making. Readers may lag: this machine may be busy.
SETTINGS = """
[server]
archive_file_age = "200 milliseconds"
[limits]
slow_limit = 100_000_000
slow_bytes = 4_000_000_000
"""
QUERIES = ("plain", "windows", "pairs", "totals", "sessions")
# The feeds, each with its stream; two feed one stream.
FEEDS = {"a1": "a", "a2": "a", "b1": "b", "d1": "d"}
DAYS = 3
DAY_US = 86_400_000_000


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def key(v: int) -> int:
    return v * 31 % KEYS


class Worker(threading.Thread):
    """A client's thread; `error` is what ended it too early."""

    error: BaseException | None = None


class Feeder(Worker):
    """Sends rows 0, 1, 2, ... of one feed, in frames of any size, until it is stopped."""

    def __init__(self, world: World, producer: str, stream: str, seed: int) -> None:
        super().__init__(name=producer, daemon=True)
        self.world, self.producer, self.stream = world, producer, stream
        self.random = random.Random(seed)
        self.sent = 0

    def row(self, number: int) -> tuple[int, int, int]:
        v = 2 * number + (self.producer == "a2")
        day = number % DAYS if self.stream == "d" else 0
        return START_US + number * STEP_US + day * DAY_US, key(v), v

    def run(self) -> None:
        try:
            with self.world.client() as client:
                feed = client.open(self.stream, producer=self.producer)
                self.world.opened.wait()  # a feed that opens after tuples of another could only be late
                while not self.world.stopping.is_set():
                    self.world.rest(feed)
                    count = self.random.choice((1, 3, 20, 200))
                    feed.send([self.row(number) for number in range(self.sent, self.sent + count)])
                    self.sent += count
                    self.world.stopping.wait(self.random.choice((0.0, 0.001, 0.01)))
                feed.flush()
                feed.punctuate(START_US + 10**12)
                feed.flush()
                self.world.finish.wait()
        except BaseException as error:  # shown by the main thread
            self.error = error


class Reader(Worker):
    """Collects a query's rows, with their numbers."""

    def __init__(self, world: World, query: str) -> None:
        super().__init__(name=f"reader of {query}", daemon=True)
        self.world, self.query = world, query
        self.rows: list[tuple[int, tuple[Any, ...]]] = []

    def run(self) -> None:
        try:
            with self.world.client() as client:
                subscription = client.subscribe(self.query, from_sequence=0)
                for batch in subscription.batches():
                    assert isinstance(batch, RowBatch)
                    self.rows += [(number, tuple(row)) for number, row in enumerate(batch.rows, batch.sequence)]
                    if self.world.finish.is_set():
                        return
        except BaseException as error:  # shown by the main thread
            self.error = error


class World:
    """One data directory, and the servers that live in it one after the other."""

    def __init__(self, folder: Path, seed: int, settings: str = "") -> None:
        self.folder, self.seed = folder, seed
        self.random = random.Random(seed)
        self.listen, self.admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.stopping, self.finish = threading.Event(), threading.Event()
        self.going = threading.Event()  # cleared: feeders rest when everything that they sent is accepted
        self.going.set()
        self.resting = 0
        self._counting = threading.Lock()
        self.server: subprocess.Popen[bytes] | None = None
        self.opened = threading.Barrier(len(FEEDS))
        self.kills = self.follower_kills = self.checkpoints = 0
        self.followers: set[int] = set()  # the processes of followers that were seen
        self.log = (folder.parent / f"{folder.name}.log").open("wb")
        config = folder.parent / f"{folder.name}.toml"
        config.write_text(settings)
        self.config = config

    def client(self) -> Client:
        return Client(self.listen, reconnect=Backoff(first=0.05, factor=1.5, most=0.5, attempts=1_000))

    def rest(self, feed: Any) -> None:
        """A feeder rests while it should."""
        if self.going.is_set():
            return
        feed.flush()
        with self._counting:
            self.resting += 1
        self.going.wait()
        with self._counting:
            self.resting -= 1

    # -- servers -----------------------------------------------------------------------------------

    def start(self) -> None:
        command = [sys.executable, "-m", "millrace.cli.main", "serve", "--config", str(self.config)]
        command += ["--listen", self.listen, "--admin", self.admin, "--data-dir", str(self.folder), "--no-token"]
        self.server = subprocess.Popen(
            command, env=clean_environment(), stdout=self.log, stderr=self.log, cwd=self.folder.parent
        )

    def wait_ready(self) -> None:
        assert self.server is not None
        wait_until(lambda: self.is_ready() or self.has_ended())
        assert self.server.poll() is None, f"the server ended with {self.server.poll()}:\n{self.tail_of_log()}"

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.admin}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def has_ended(self) -> bool:
        return self.server is None or self.server.poll() is not None

    def kill(self) -> None:
        assert self.server is not None
        assert self.server.poll() is None, f"the server ended with {self.server.poll()}:\n{self.tail_of_log()}"
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()
        self.kills += 1

    def tail_of_log(self) -> str:
        self.log.flush()
        return Path(self.log.name).read_text(errors="replace")[-4000:]

    def sql(self, text: str) -> None:
        body = json.dumps({"sql": text}).encode()
        request = urllib.request.Request(f"http://{self.admin}/api/v1/sql", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self.admin}/api/v1/{path}", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def change_something(self) -> None:
        """A change that must disturb nobody; the server may be killed while it is made."""
        name = f"extra{self.random.randrange(3)}"
        text = self.random.choice(
            (
                f"CREATE OR REPLACE QUERY {name} AS SELECT k, count(*) AS n FROM a GROUP BY k",
                f"DROP QUERY {name}",
                f"CREATE OR REPLACE QUERY {name} AS SELECT v FROM b WHERE k = 1",
            )
        )
        with suppress(OSError):  # it does not exist, or the server was killed
            self.sql(text)

    def wait_checkpoint(self) -> None:
        """Wait for the next checkpoint: a server that is always killed before it makes one replays more and more."""

        counts: list[int] = []

        def more() -> bool:
            with suppress(OSError):  # a busy machine may let it answer late
                counts.append(int(self.get("server")["journal"]["checkpoint"]["made"]))
            return len(counts) > 1 and counts[-1] > counts[0]

        wait_until(more)
        self.checkpoints += 1

    def meet_follower(self) -> None:
        """Note which process the follower is, and perhaps kill it."""
        with suppress(OSError):  # the server was killed
            follower = self.get("server")["journal"]["follower"]
            assert follower["differences"] == 0, follower
            if follower["pid"] is not None:
                self.followers.add(follower["pid"])
                if self.random.random() < 0.5:
                    os.kill(follower["pid"], signal.SIGKILL)
                    self.follower_kills += 1

    # -- the play ----------------------------------------------------------------------------------

    def end(self) -> None:
        """Leave no process behind."""
        self.stopping.set()
        self.finish.set()
        self.opened.abort()
        if self.server is not None and self.server.poll() is None:
            self.server.kill()
            self.server.wait()
        self.log.close()

    def play(self, kills: int, seconds: float = float("inf")) -> str:
        """Kill the server so often, or as often as the time allows, and judge; what was survived, in a line."""
        end = time.monotonic() + seconds
        self.start()
        self.wait_ready()
        self.sql(SQL)
        feeders = [Feeder(self, name, stream, self.seed + at) for at, (name, stream) in enumerate(FEEDS.items())]
        readers = [Reader(self, query) for query in QUERIES]
        for thread in (*feeders, *readers):
            thread.start()
        while self.kills < kills and time.monotonic() < end:
            early = self.random.random() < 0.2
            if not early:
                self.wait_ready()
                changing = threading.Thread(target=self.change_something, daemon=True)
                changing.start()
                if self.random.random() < 0.2:
                    self.wait_checkpoint()
            time.sleep(self.random.uniform(0, self.random.choice(PAUSES)))
            if not early:
                self.meet_follower()
            self.kill()
            if self.kills % 20 == 0:
                sys.stdout.write(f"{self.kills} kills\n")
                sys.stdout.flush()
            self.start()
        self.wait_ready()
        self.stopping.set()
        verdict = self.judge(feeders, readers)
        assert self.server is not None
        self.server.send_signal(signal.SIGTERM)
        assert self.server.wait(60) == 0, self.tail_of_log()
        rows = next(reader.rows for reader in readers if reader.query == "plain")
        in_order("files", parquet_rows(self.folder / "sinks" / "plain"), [row for _, row in rows])
        self.judge_history(feeders[-1])
        wait_until(lambda: not any(map(lives, self.followers)))
        return verdict

    def judge_history(self, feeder: Feeder) -> None:
        """After the end, when every row is in a file."""
        files = (self.folder / "history" / feeder.stream).glob("date=*/*.parquet")
        tables = [pq.read_table(path, columns=["__seq", "v"], partitioning=None) for path in files]
        found = sorted((row["__seq"], row["v"]) for table in tables for row in table.to_pylist())
        in_order("history", found, [(at, feeder.row(at)[2]) for at in range(feeder.sent)])

    def judge(self, feeders: list[Feeder], readers: list[Reader]) -> str:
        """Wait until everything has arrived, and compare it with what was sent."""
        threads: list[Worker] = [*feeders, *readers]

        def arrived() -> bool:
            with suppress(OSError):
                return all_arrived()
            return False

        def all_arrived() -> bool:
            for thread in threads:
                if thread.error is not None:
                    raise AssertionError(f"{thread.name}: {thread.error!r}\n{self.tail_of_log()}")
            assert self.get("streams/a")["late"] == self.get("streams/b")["late"] == 0, "tuples were late"
            numbers = {reader.query: self.get(f"queries/{reader.query}")["next_sequence"] for reader in readers}
            plain = sum(feeder.row(at)[2] % 3 == 0 for feeder in feeders[:2] for at in range(feeder.sent))
            return numbers["plain"] == plain and all(len(one.rows) >= numbers[one.query] for one in readers)

        wait_until(arrived)
        time.sleep(0.5)
        rows = {}
        for reader in readers:
            numbers = [number for number, _ in reader.rows]
            assert numbers == list(range(len(numbers))), (reader.query, first_fault(numbers))
            rows[reader.query] = [row for _, row in reader.rows]
        sent = {feeder.producer: [feeder.row(at) for at in range(feeder.sent)] for feeder in feeders}
        a, b = [*sent["a1"], *sent["a2"]], sent["b1"]
        same("plain", rows["plain"], [(k, v) for _, k, v in a if v % 3 == 0])
        same("windows", [row[:3] for row in rows["windows"]], windows(a))
        same("pairs", rows["pairs"], pairs(a, b))
        same("sessions", [row[:2] for row in rows["sessions"]], sessions([row for row in a if row[2] % 11 < 4]))
        assert dict(rows["totals"]) == Counter(k for _, k, _ in b), "totals"
        lines = [json.loads(line) for line in (self.folder / "sinks" / "plain.jsonl").read_text().splitlines()]
        in_order("lines", [(line["k"], line["v"]) for line in lines], rows["plain"])
        table = (self.folder / "sinks" / "pairs.csv").read_text().splitlines()[1:]
        in_order("table", [tuple(map(int, line.split(","))) for line in table], rows["pairs"])
        self.finish.set()
        return (
            f"seed {self.seed}: {self.kills} kills, {self.checkpoints} of them after a checkpoint, "
            f"{self.follower_kills} more of the follower alone, "
            f"{sum(len(one) for one in sent.values())} rows sent, "
            f"{sum(map(len, rows.values()))} received: 0 lost, 0 doubled, 0 reordered"
        )


def lives(pid: int) -> bool:
    """Whether this process is a follower that runs."""
    try:
        return b"millrace.run.follow" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def first_fault(numbers: list[int]) -> str:
    at = next(place for place, number in enumerate(numbers) if number != place)
    return f"row {at} has number {numbers[at]}, around {numbers[max(at - 3, 0) : at + 3]}"


def same(name: str, found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    lost, more = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    assert not lost, (
        f"{name}: lost {sum(lost.values())}, such as {next(iter(lost))}; {sum(more.values())} doubled or wrong"
    )
    assert not more, f"{name}: {sum(more.values())} doubled or wrong, such as {next(iter(more))}"


def in_order(name: str, found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    if found != expected:
        at = next(
            (at for at, (one, other) in enumerate(zip(found, expected, strict=False)) if one != other),
            min(len(found), len(expected)),
        )
        raise AssertionError(
            f"{name}: {len(found)} rows instead of {len(expected)}; "
            f"row {at} is {found[at : at + 2]}, not {expected[at : at + 2]}"
        )


def windows(rows: list[tuple[int, int, int]]) -> list[tuple[Any, ...]]:
    found: dict[tuple[int, int], list[int]] = {}
    for ts, k, v in rows:
        entry = found.setdefault((ts // WINDOW_US, k), [0, 0])
        entry[0] += 1
        entry[1] += v
    return [(k, n, total) for (_, k), (n, total) in found.items()]


def sessions(rows: list[tuple[int, int, int]]) -> list[tuple[Any, ...]]:
    found: list[tuple[int, int]] = []
    before = 0
    for ts, _, v in sorted(rows):
        if ts - before >= GAP_US:
            found.append((0, 0))
        n, total = found[-1]
        found[-1], before = (n + 1, total + v), ts
    return list(found)


def parquet_rows(folder: Path) -> list[tuple[Any, ...]]:
    """The rows of a sink's files, in the order of its manifest; every file is in it."""
    entries = [json.loads(line) for line in (folder / "_files.manifest.jsonl").read_text().splitlines()]
    assert sorted(entry["file"] for entry in entries) == sorted(path.name for path in folder.glob("*.parquet"))
    tables = [pq.read_table(folder / entry["file"]) for entry in entries]
    return [(row["k"], row["v"]) for table in tables for row in table.to_pylist()]


def pairs(a: list[tuple[int, int, int]], b: list[tuple[int, int, int]]) -> list[tuple[Any, ...]]:
    at: dict[tuple[int, int], list[int]] = {}
    for ts, k, v in b:
        at.setdefault((ts, k), []).append(v)
    return [
        (k, v, other)
        for ts, k, v in a
        for later in range(0, BAND_US + 1, STEP_US)
        for other in at.get((ts + later, k), ())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="judge after so many, whatever is left")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--sync", default="always")
    parser.add_argument("--checkpoint-seconds", type=int, default=1)
    parser.add_argument("--follower", default="on")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="millrace-torture-")) / "data"
    sys.stdout.write(f"seed {options.seed}, data in {folder}\n")
    sys.stdout.flush()
    settings = f'[journal]\nsync = "{options.sync}"\ncheckpoint_seconds = {options.checkpoint_seconds}\n'
    settings += f'follower = "{options.follower}"\n{SETTINGS}'
    world = World(folder, options.seed, settings)
    try:
        sys.stdout.write(world.play(options.kills, options.minutes * 60) + "\n")
    finally:
        world.end()


if __name__ == "__main__":
    main()
