"""Nexmark's joins and windows over events that arrive out of order, against the same events in order."""

from __future__ import annotations

import io
import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.figure import Figure
from millrace.offline.run import Options, Run
from millrace.offline.script import plan_script

SECOND_US: Final = 1_000_000
BEGIN_US: Final = 1_436_918_400 * SECOND_US
# Events of a second, and how much later than others an event may arrive.
RATE: Final = 1_000
DISORDER_US: Final = 10 * SECOND_US
STREAMS: Final = """
CREATE STREAM person (at TIMESTAMP, id BIGINT, name TEXT, state TEXT)
  WITH (time = 'at', disorder = '{seconds} seconds');
CREATE STREAM auction (at TIMESTAMP, expires TIMESTAMP, id BIGINT, item TEXT, seller BIGINT, category BIGINT)
  WITH (time = 'at', disorder = '{seconds} seconds');
CREATE STREAM bid (at TIMESTAMP, auction BIGINT, bidder BIGINT, price BIGINT)
  WITH (time = 'at', disorder = '{seconds} seconds');
"""
QUERIES: Final[Mapping[str, str]] = {
    # The average of the winning prices by category.
    "q4": """SELECT category, avg(final) AS mean FROM (
               SELECT a.id, a.category, max(b.price) AS final FROM auction a JOIN bid b
                 ON a.id = b.auction AND b.at BETWEEN a.at AND a.at + INTERVAL '10 s' AND b.at <= a.expires
               GROUP BY a.id, a.category) GROUP BY category""",
    # The auctions with the most bids of each window.
    "q5": """SELECT auction, n, window_end, place FROM (
               SELECT *, ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY n DESC, auction) AS place
               FROM (SELECT auction, count(*) AS n, window_end
                     FROM HOP(bid, at, INTERVAL '2 s', INTERVAL '10 s') GROUP BY auction)) WHERE place <= 1""",
    # The highest bids of each window.
    "q7": """SELECT b.auction, b.price, b.bidder, b.at AS bid_at FROM bid b
               JOIN (SELECT max(price) AS most, window_start, window_end FROM TUMBLE(bid, at, INTERVAL '10 s')) m
                 ON b.price = m.most WHERE b.at >= m.window_start AND b.at < m.window_end""",
    # The winning bid of each auction.
    "q9": """SELECT id, item, bidder, price, won FROM (
               SELECT a.id, a.item, b.bidder, b.price, b.at AS won,
                      ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.at) AS place
               FROM auction a JOIN bid b
                 ON a.id = b.auction AND b.at BETWEEN a.at AND a.at + INTERVAL '10 s' AND b.at <= a.expires)
             WHERE place <= 1""",
}


def events(count: int, seed: int = 1) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of 50 events one is a person, three are auctions and the others bids, mostly on the newest auctions."""
    chance = random.Random(seed)
    people = auctions = 0
    for number in range(count):
        at = BEGIN_US + number * (SECOND_US // RATE)
        kind = number % 50
        if kind == 0:
            people += 1
            yield "person", {"at": at, "id": people, "name": f"name {people}", "state": chance.choice(["or", "id"])}
        elif kind < 4:
            auctions += 1
            expires = at + chance.randrange(SECOND_US, 20 * SECOND_US)
            sold = {"item": f"item {auctions}", "seller": chance.randint(1, people), "category": chance.randint(10, 14)}
            yield "auction", {"at": at, "expires": expires, "id": auctions, **sold}
        else:
            newest = max(auctions - chance.randrange(100), 1)
            price = int(10 ** (chance.random() * 6))
            yield "bid", {"at": at, "auction": newest, "bidder": chance.randint(1, max(people, 1)), "price": price}


def write(rows: Iterable[tuple[str, dict[str, Any]]], path: Path, delay_us: int = 0, seed: int = 2) -> None:
    """Write events in the order of their arrival: each is under way for up to this long."""
    chance = random.Random(seed)
    arrivals = [
        {"at": row["at"] + (chance.randrange(delay_us) if delay_us else 0), "stream": stream, "tuple": row}
        for stream, row in rows
    ]
    arrivals.sort(key=itemgetter("at"))
    path.write_text("".join(json.dumps(event) + "\n" for event in arrivals), "utf-8")


def spent(sql: str, path: Path, disorder_us: int) -> tuple[float, list[str]]:
    """The CPU seconds of a run over these events, and its rows."""
    script = plan_script(STREAMS.format(seconds=disorder_us // SECOND_US) + f"CREATE QUERY q AS {sql};\n")
    with TemporaryDirectory() as folder:
        output = Path(folder) / "rows.jsonl"
        run = Run(script, Options(events=str(path), outputs=[("q", str(output))]), io.BytesIO())
        begin = time.process_time()
        run.run()
        seconds = time.process_time() - begin
        assert not run.late_tuples
        return seconds, output.read_text("utf-8").splitlines()


def disorder(count: int, names: Sequence[str] = tuple(QUERIES), repeats: int = 1) -> list[Figure]:
    """CPU time of the same events in order and out of order. The rows of windows are equal."""
    figures = []
    with TemporaryDirectory() as folder:
        ways = [(Path(folder) / f"{delay_us}.jsonl", delay_us) for delay_us in (0, DISORDER_US)]
        for path, delay_us in ways:
            write(events(count), path, delay_us)
        for name in names:
            pairs = [[spent(QUERIES[name], *way) for way in ways] for _ in range(repeats)]
            # Running totals (q4, q9) emit rows as often as they change, the windows' rows are the same.
            assert name not in ("q5", "q7") or sorted(pairs[0][0][1]) == sorted(pairs[0][1][1])
            quick, slow = (min(pair[side][0] for pair in pairs) for side in (0, 1))
            figures.append(Figure(f"{name}, {count:,} events: in order", quick / count * 1e6, "us/event"))
            figures.append(Figure(f"{name}, {count:,} events: with disorder", slow / count * 1e6, "us/event"))
            figures.append(Figure(f"{name}, {count:,} events: disorder / order", slow / quick, "times", 1.5))
    return figures
