"""Lines read and steps taken in other threads: the rows and the answers are those of one thread, and the loop serves
sockets meanwhile."""

import json
import random
import threading
from typing import Any

import pytest
import uvloop

from millrace.net import lines as lines_module
from millrace.run import runner
from tests.server.harness import lines, running, served, settle, until

SQL = """
CREATE STREAM a (ts TIMESTAMP, k BIGINT, v DOUBLE) WITH (time = 'ts', disorder = '50 microseconds');
CREATE STREAM b (ts TIMESTAMP, k BIGINT, name TEXT) WITH (time = 'ts');
CREATE QUERY counted AS SELECT k, count(*) AS n, sum(v) AS total, window_start
  FROM TUMBLE(a, ts, INTERVAL '100 microseconds') GROUP BY k, window_start;
CREATE QUERY joined WITH (order = 'event') AS SELECT a.k, a.v, b.name FROM a JOIN b
  ON a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL '20 microseconds' AND b.ts + INTERVAL '20 microseconds';
"""
TUPLES = 3_000
ODD = [
    b'{"stream": "a", "tuple": {"ts": 1780000000000000, "k": 1.5}}\n',
    b'{"stream": "a", "tuple": {"k": 1}}\n',
    b'{"stream": "a", "feed": "other", "close": true}\n',
    b'{"stream": "none", "tuple": {}}\n',
    b"{\n",
    b"\n",
]


def load(seed: int) -> bytes:
    rng = random.Random(seed)
    said: list[dict[str, object]] = []
    for at in range(TUPLES):
        ts = 1_780_000_000_000_000 + at
        said.append({"stream": "a", "tuple": {"ts": ts - rng.randrange(40), "k": rng.randrange(5), "v": rng.random()}})
        said.append({"stream": "b", "tuple": {"ts": ts, "k": rng.randrange(5), "name": rng.choice(["x", "ä"])}})
    said += [{"stream": stream, "punctuation": "2026-12-01T00:00:00Z"} for stream in "ab"]
    text = [json.dumps(one).encode() + b"\n" for one in said]
    for _ in range(40):
        text.insert(rng.randrange(TUPLES), rng.choice(ODD))
    return b"".join(text)


async def rows_with(threads: int, data: bytes, seed: int) -> tuple[dict[str, list[Any]], bytes, int]:
    """The rows of both queries, the data having come in pieces, the answers, and the steps of the worker."""
    rng, aside = random.Random(seed), 0
    found: dict[str, list[Any]] = {"counted": [], "joined": []}
    async with running(SQL, engine={"threads": threads}) as daemon, lines(daemon) as feed:
        daemon.runner.on_delivery = lambda outlet, now_us, batch: found[outlet.query].extend(batch.rows())
        step, loop_thread = daemon.engine.step, threading.get_ident()

        def counted(now_us, events, *, budget):
            nonlocal aside
            aside += threading.get_ident() != loop_thread
            return step(now_us, events, budget=budget)

        daemon.runner.engine.step = counted
        while data:
            size = rng.choice([10, 1_000, 100_000])
            feed.writer.write(data[:size])
            await feed.writer.drain()
            data = data[size:]
        feed.writer.write_eof()
        answers = await feed.reader.read()
        await daemon.runner.wait_drained()
    return found, answers, aside


@pytest.mark.parametrize("seed", range(3))
def test_rows_do_not_depend_on_the_number_of_threads(seed, monkeypatch):
    monkeypatch.setattr(runner, "MANY_TUPLES", 50)
    monkeypatch.setattr(lines_module, "MANY_BYTES", 500)
    monkeypatch.setattr(lines_module, "WAITING_BYTES", 50_000)
    data = load(seed)
    one, answers, none = uvloop.run(rows_with(1, data, seed))
    two, same_answers, some = uvloop.run(rows_with(2, data, seed + 10))
    assert sorted(answers.splitlines()) == sorted(same_answers.splitlines())
    assert answers.count(b"error") > 10
    assert len(one["counted"]) > 100
    assert len(one["joined"]) > 1_000
    assert one["counted"] == two["counted"]
    # Rows of one time have no order: which of their steps saw more tuples decides.
    assert sorted(one["joined"]) == sorted(two["joined"])
    assert none == 0 < some


@served(SQL, engine={"threads": 2})
async def test_the_loop_serves_sockets_during_a_long_step(daemon, monkeypatch):
    monkeypatch.setattr(runner, "MANY_TUPLES", 10)
    entered, leave = threading.Event(), threading.Event()
    step = daemon.engine.step

    def held(now_us, events, *, budget):
        entered.set()
        assert leave.wait(60)
        return step(now_us, events, budget=budget)

    async with lines(daemon) as feed, lines(daemon) as other:
        line = '{"stream": "%s", "tuple": {"ts": 1780000000000000, "k": 1}}'
        other.say(line % "b")
        await until(lambda: daemon.feeds.received()["b"].tuples == 1)
        await settle()
        daemon.runner.engine.step = held
        try:
            feed.say("\n".join([line % "a"] * 10))
            await until(entered.is_set)
            other.say(line % "b")
            await until(lambda: daemon.feeds.received()["b"].tuples == 2)
        finally:
            leave.set()
        await daemon.runner.wait_drained()
        assert daemon.engine.source("b").feeds.by_name
