"""Nexmark's queries over windows, sessions, groups and joins: compared with DuckDB.

The benchmark has few events, so many random ones over the same minutes are added. A query over processing time (q12)
uses event time here, because results depend on tuples alone.
"""

from __future__ import annotations

import json
import random
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest

from tests.comparison import same_final, same_rows
from tests.conformance.rows import BID, HERE, NEXMARK, STREAMS
from tests.running import lines, run_script

SECOND = 1_000_000
TEN = 10 * SECOND
BEGIN = 1_436_918_400 * SECOND
NAMES = ("ts_us", "auction", "bidder", "price", "channel", "url", "extra")
RANKS = """count(*) FILTER (WHERE price < 10000) AS rank1,
           count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2,
           count(*) FILTER (WHERE price >= 1000000) AS rank3"""
DISTINCTS = """count(DISTINCT bidder) AS bidders, count(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
               count(DISTINCT auction) AS auctions,
               count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions"""


class Comparison(NamedTuple):
    ours: str
    theirs: str
    key: tuple[str, ...] = ()


# `moment` is the time as a timestamp of DuckDB; all other times are in microseconds.
QUERIES = {
    # Hot items: the greatest number of bids on one auction per window. (Which auctions had as many needs a join.)
    "q5": Comparison(
        """SELECT max(num) AS num, window_end
           FROM TUMBLE((SELECT auction, count(*) AS num FROM HOP(bid, ts_us, INTERVAL '2 s', INTERVAL '10 s')
                        GROUP BY auction), ts, INTERVAL '2 s')
           GROUP BY window_end""",
        f"""SELECT max(num), w + 10 * {SECOND} FROM (
              SELECT auction, w, count(*) AS num
              FROM generate_series({BEGIN} - 10 * {SECOND}, {BEGIN} + 200 * {SECOND}, 2 * {SECOND}) g(w)
              JOIN bid ON ts_us >= w AND ts_us < w + 10 * {SECOND} GROUP BY auction, w) GROUP BY w""",
    ),
    "q3": Comparison(
        NEXMARK["q3"],
        """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
           WHERE a.category = 10 AND p.state IN ('or', 'id', 'ca')""",
    ),
    "q7": Comparison(
        NEXMARK["q7"],
        f"""SELECT b.auction, b.price, b.bidder, b.ts_us
            FROM bid b JOIN (SELECT max(price) AS most, ts_us // {TEN} * {TEN} AS w FROM bid GROUP BY w) m
              ON b.price = m.most AND b.ts_us BETWEEN w AND w + {TEN}""",
    ),
    "q8": Comparison(
        """SELECT p.id, p.name, p.window_start
           FROM (SELECT id, name, window_start, window_end FROM TUMBLE(person, ts_us, INTERVAL '10 s')
                 GROUP BY id, name, window_start, window_end) p
           JOIN (SELECT seller, window_start, window_end FROM TUMBLE(auction, ts_us, INTERVAL '10 s')
                 GROUP BY seller, window_start, window_end) a
             ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
        f"""SELECT DISTINCT p.id, p.name, p.ts_us // {TEN} * {TEN} FROM person p JOIN auction a
              ON p.id = a.seller AND a.ts_us // {TEN} = p.ts_us // {TEN}""",
    ),
    "q9": Comparison(
        """SELECT a.id, a.item_name, b.bidder, b.price, b.ts_us FROM auction a JOIN bid b ON a.id = b.auction
             AND b.ts_us BETWEEN a.ts_us AND a.ts_us + INTERVAL '20 s' AND b.ts_us <= a.expires_us""",
        f"""SELECT a.id, a.item_name, b.bidder, b.price, b.ts_us FROM auction a JOIN bid b
              ON a.id = b.auction AND b.ts_us BETWEEN a.ts_us AND least(a.ts_us + 20 * {SECOND}, a.expires_us)""",
    ),
    # The average of the winning prices by category. The highest bid of an auction in time wins.
    "q4": Comparison(
        """SELECT category, avg(final) AS mean
           FROM (SELECT a.id, a.category, max(b.price) AS final FROM auction a JOIN bid b
                   ON a.id = b.auction AND b.ts_us BETWEEN a.ts_us AND a.expires_us GROUP BY a.id, a.category)
           GROUP BY category""",
        """SELECT category, avg(final) FROM (
             SELECT a.id, a.category, max(b.price) AS final FROM auction a JOIN bid b
               ON a.id = b.auction AND b.ts_us BETWEEN a.ts_us AND a.expires_us GROUP BY a.id, a.category)
           GROUP BY category""",
        ("category",),
    ),
    # As q4, for the categories with enough auctions: HAVING adds and removes rows.
    "q4 having": Comparison(
        """SELECT category, avg(final) AS mean, stddev(final) AS deviation, count(*) AS sold
           FROM (SELECT a.id, a.category, max(b.price) AS final, count(*) AS bids FROM auction a JOIN bid b
                   ON a.id = b.auction AND b.ts_us BETWEEN a.ts_us AND a.expires_us GROUP BY a.id, a.category)
           WHERE bids % 3 > 0 GROUP BY category HAVING count(*) < 12""",
        """SELECT category, avg(final), stddev(final), count(*) FROM (
             SELECT a.id, a.category, max(b.price) AS final, count(*) AS bids FROM auction a JOIN bid b
               ON a.id = b.auction AND b.ts_us BETWEEN a.ts_us AND a.expires_us GROUP BY a.id, a.category)
           WHERE bids % 3 > 0 GROUP BY category HAVING count(*) < 12""",
        ("category",),
    ),
    # The winning bid of each auction.
    "q9 winner": Comparison(
        """SELECT id, item_name, seller, bidder, price, won FROM (
             SELECT a.id, a.item_name, a.seller, b.bidder, b.price, b.ts_us AS won,
                    ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts_us) AS place
             FROM auction a JOIN bid b ON a.id = b.auction AND b.ts_us BETWEEN a.ts_us AND a.expires_us)
           WHERE place <= 1""",
        """SELECT id, item_name, seller, bidder, price, won FROM (
              SELECT a.id, a.item_name, a.seller, b.bidder, b.price, b.ts_us AS won,
                     ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts_us) AS place
              FROM auction a JOIN bid b ON a.id = b.auction AND b.ts_us BETWEEN a.ts_us AND a.expires_us)
            WHERE place = 1""",
        ("id",),
    ),
    "q18": Comparison(
        """SELECT auction, bidder, price, ts_us FROM bid
           QUALIFY ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY ts_us DESC, price) = 1""",
        """SELECT auction, bidder, price, ts_us FROM bid
           QUALIFY ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY ts_us DESC, price) = 1""",
        ("bidder", "auction"),
    ),
    "q19": Comparison(
        """SELECT auction, bidder, price, ts_us, place FROM (
             SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, ts_us, bidder) AS place FROM bid)
           WHERE place <= 10""",
        """SELECT auction, bidder, price, ts_us, place FROM (
             SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, ts_us, bidder) AS place FROM bid)
           WHERE place <= 10""",
        ("auction", "place"),
    ),
    # The three auctions with the most bids so far.
    "hot": Comparison(
        """SELECT auction, bids, place FROM (
             SELECT auction, bids, ROW_NUMBER() OVER (ORDER BY bids DESC, auction) AS place
             FROM (SELECT auction, count(*) AS bids FROM bid GROUP BY auction)) WHERE place < 4""",
        """SELECT auction, bids, place FROM (
             SELECT auction, bids, ROW_NUMBER() OVER (ORDER BY bids DESC, auction) AS place
             FROM (SELECT auction, count(*) AS bids FROM bid GROUP BY auction)) WHERE place < 4""",
        ("place",),
    ),
    # The same for each window when it closes: final rows.
    "q5 top": Comparison(
        """SELECT auction, bids, window_end, place FROM (
             SELECT *, ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY bids DESC, auction) AS place
             FROM (SELECT auction, count(*) AS bids, window_end FROM TUMBLE(bid, ts_us, INTERVAL '10 s')
                   GROUP BY auction)) WHERE place BETWEEN 1 AND 3""",
        f"""SELECT auction, bids, w + {TEN}, place FROM (
              SELECT *, ROW_NUMBER() OVER (PARTITION BY w ORDER BY bids DESC, auction) AS place
              FROM (SELECT auction, count(*) AS bids, ts_us // {TEN} * {TEN} AS w FROM bid GROUP BY auction, w))
            WHERE place <= 3""",
    ),
    "window top": Comparison(
        """SELECT window_start, auction, bidder, price, ts_us FROM TUMBLE(bid, ts_us, INTERVAL '10 s')
           QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, auction ORDER BY price DESC, ts_us, bidder) <= 2""",
        f"""SELECT w, auction, bidder, price, ts_us FROM (SELECT *, ts_us // {TEN} * {TEN} AS w FROM bid)
            QUALIFY ROW_NUMBER() OVER (PARTITION BY w, auction ORDER BY price DESC, ts_us, bidder) <= 2""",
    ),
    "q20": Comparison(
        """SELECT b.auction, bidder, price, channel, item_name, initial_bid, reserve, seller, expires_us
           FROM bid b INNER JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
        """SELECT b.auction, bidder, price, channel, item_name, initial_bid, reserve, seller, expires_us
           FROM bid b INNER JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    ),
    "q101": Comparison(
        NEXMARK["q101"],
        """SELECT a.id AS auction_id, a.item_name, max(b.price) FROM auction a LEFT JOIN bid b ON a.id = b.auction
           GROUP BY a.id, a.item_name""",
        ("auction_id",),
    ),
    "q11": Comparison(
        """SELECT bidder, count(*) AS bids, window_start, window_end FROM SESSION(bid, ts_us, INTERVAL '10 s')
           GROUP BY bidder, window_start, window_end""",
        f"""SELECT bidder, count(*), min(ts_us), max(ts_us) + 10 * {SECOND} FROM (
              SELECT bidder, ts_us, sum(fresh) OVER (PARTITION BY bidder ORDER BY ts_us) AS session FROM (
                SELECT bidder, ts_us,
                       CASE WHEN ts_us - lag(ts_us) OVER (PARTITION BY bidder ORDER BY ts_us) < 10 * {SECOND}
                            THEN 0 ELSE 1 END AS fresh FROM bid)) GROUP BY bidder, session""",
    ),
    "q12": Comparison(
        """SELECT bidder, count(*) AS bids, window_start, window_end FROM TUMBLE(bid, ts_us, INTERVAL '10 s')
           GROUP BY bidder, window_start, window_end""",
        f"""SELECT bidder, count(*), ts_us // {10 * SECOND} * {10 * SECOND} AS w, w + {10 * SECOND}
            FROM bid GROUP BY bidder, w""",
    ),
    "q15": Comparison(
        f"SELECT to_char(ts_us, 'YYYY-MM-DD') AS day, count(*) AS total, {RANKS}, {DISTINCTS} FROM bid GROUP BY day",
        f"SELECT strftime(moment, '%Y-%m-%d') AS day, count(*), {RANKS}, {DISTINCTS} FROM bid GROUP BY day",
        ("day",),
    ),
    "q16": Comparison(
        f"""SELECT channel, to_char(ts_us, 'YYYY-MM-DD') AS day, max(to_char(ts_us, 'HH24:MI')) AS minute,
                   count(*) AS total, {RANKS}, {DISTINCTS} FROM bid GROUP BY channel, 2""",
        f"""SELECT channel, strftime(moment, '%Y-%m-%d') AS day, max(strftime(moment, '%H:%M')), count(*),
                   {RANKS}, {DISTINCTS}
            FROM bid GROUP BY channel, day""",
        ("channel", "day"),
    ),
    "q17": Comparison(
        f"""SELECT auction, to_char(ts_us, 'YYYY-MM-DD') AS day, count(*) AS total, {RANKS}, min(price) AS low,
                   max(price) AS high, avg(price) AS mean, sum(price) AS sum FROM bid GROUP BY auction, day""",
        f"""SELECT auction, strftime(moment, '%Y-%m-%d') AS day, count(*), {RANKS}, min(price), max(price), avg(price),
                   sum(price)::BIGINT FROM bid GROUP BY auction, day""",
        ("auction", "day"),
    ),
    "q22": Comparison(
        """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
                  split_part(url, '/', 6) AS dir3 FROM bid""",
        """SELECT auction, bidder, price, channel, split_part(url, '/', 4), split_part(url, '/', 5),
                  split_part(url, '/', 6) FROM bid""",
    ),
}


def people() -> list[dict[str, Any]]:
    names = ("ts_us", "id", "name", "city", "state")
    return [{name: row[name] for name in names} for row in lines(HERE / "nexmark" / "data" / "person.jsonl")]


def auctions() -> list[dict[str, Any]]:
    names = ("ts_us", "expires_us", "id", "item_name", "initial_bid", "reserve", "seller", "category")
    rows = [{name: row[name] for name in names} for row in lines(HERE / "nexmark" / "data" / "auction.jsonl")]
    chance = random.Random(6)
    for _ in range(60):
        began = BEGIN + chance.randrange(40) * SECOND // 4
        sold = {"item_name": chance.choice(["ring", "cup"]), "initial_bid": 100, "reserve": 200}
        who = {"seller": 1000 + chance.randrange(20), "category": chance.choice([10, 11])}
        rows.append({"ts_us": began, "expires_us": began + 9 * SECOND, "id": 1000 + len(rows), **sold, **who})
    return sorted(rows, key=itemgetter("ts_us"))


EVENTS = {"person": people, "auction": auctions}


def bids() -> list[dict[str, Any]]:
    rows = [{name: row[name] for name in NAMES} for row in lines(HERE / "nexmark" / "data" / "bid.jsonl")]
    chance = random.Random(5)
    drawn = [
        {
            "ts_us": BEGIN + chance.randrange(180 * SECOND),
            "auction": 1000 + min(chance.randrange(12), chance.randrange(12)),
            "bidder": 1000 + chance.randrange(8),
            "price": chance.choice([100, 9_999, 10_000, 999_999, 1_000_000, 5_000_000]) + chance.randrange(2),
            "channel": chance.choice(["Apple", "Google", "channel-1", None]),
            "url": f"https://www.nexmark.com/{chance.choice(['a', 'bc', ''])}/d/item.htm?query=1",
            "extra": "",
        }
        for _ in range(250)
    ]
    return sorted(rows + drawn, key=itemgetter("ts_us"))


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE bid (ts_us BIGINT, auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR, "
        "extra VARCHAR, moment TIMESTAMP GENERATED ALWAYS AS (make_timestamp(ts_us)))"
    )
    for table, rows in EVENTS.items():
        kinds = ((name, "BIGINT" if isinstance(value, int) else "VARCHAR") for name, value in rows()[0].items())
        connection.execute(f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in kinds)})")
        places = ", ".join("?" for _ in rows()[0])
        connection.executemany(f"INSERT INTO {table} VALUES ({places})", [tuple(row.values()) for row in rows()])
    connection.executemany("INSERT INTO bid VALUES (?, ?, ?, ?, ?, ?, ?)", [tuple(row.values()) for row in bids()])
    return connection


@pytest.mark.parametrize("order", ["arrival", "event"])
@pytest.mark.parametrize("name", QUERIES)
def test_rows_match_duckdb(name: str, order: str, database: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    query = QUERIES[name]
    inputs = []
    for stream, rows in (*EVENTS.items(), ("bid", bids)):
        path = tmp_path / f"{stream}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows()), "utf-8")
        inputs.append((stream, str(path)))
    got = run_script(STREAMS + BID + query.ours, tmp_path, inputs=inputs, order=order).rows["q"]
    expected = database.execute(query.theirs).fetchall()
    assert expected
    if not query.key:
        assert same_rows(got, expected) is None, same_rows(got, expected)
        return
    theirs = [dict(zip(got[0], row, strict=True)) for row in expected]
    difference = same_final(got, theirs, itemgetter(*query.key))
    assert difference is None, difference
