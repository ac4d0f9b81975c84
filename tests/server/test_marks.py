"""Marks of the journal: which operators they have digests of, and what a replay of everything that arrives leads to."""

import asyncio
import base64
import json
from dataclasses import replace

import pyarrow

from millrace.engine.digests import ENGINE, all_digests, differing, size_of
from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Command
from millrace.engine.plan import StreamDefinition
from millrace.journal.follower import Follower
from millrace.protocol.messages import DataArrow
from millrace.run import marks
from millrace.run.marks import Marks
from tests.engine.graphs import V, arrive, path
from tests.server.directories import killed, restarted
from tests.server.harness import lines, peer, running, until
from tests.server.test_api import get

SQL = """
CREATE STREAM s (ts TIMESTAMP, k BIGINT, name TEXT, data BYTES)
  WITH (time = 'ts', grace = '1 hour', disorder = '5 seconds');
CREATE STREAM t (ts TIMESTAMP, k BIGINT, name TEXT) WITH (time = 'ts', grace = '1 hour');
CREATE QUERY plain AS SELECT k, upper(name) AS name, data FROM s WHERE k > 2;
CREATE QUERY windows AS
  SELECT name, count(*) AS n, max(name) AS most, count(DISTINCT data) AS datas, window_end
  FROM TUMBLE(s, ts, INTERVAL '2 seconds') GROUP BY name, window_end;
CREATE QUERY totals AS SELECT name, count(*) AS n, min(data) AS least FROM s GROUP BY name;
CREATE QUERY pairs AS
  SELECT s.k, s.name, t.name AS other FROM s JOIN t ON s.k = t.k AND t.ts BETWEEN s.ts AND s.ts + INTERVAL '3 seconds';
CREATE QUERY merged WITH (order = 'event') AS SELECT k, name FROM s UNION ALL SELECT k, name FROM t;
CREATE QUERY once AS SELECT name, k FROM s DEDUPLICATE BY name WITHIN '4 seconds';
"""
NAMES = ("", "a", "bé", "a longer name that does not fit into a cell of sixteen bytes", None)
START_US = 1_790_000_000_000_000


def row(number):
    """A row of s; some are late, and some of the values are null."""
    ts = START_US + number * 100_000 - (number % 7 == 0) * 3_000_000 - (number % 29 == 0) * 60_000_000
    data = None if number % 5 == 0 else bytes([number % 3, 0xFF])
    return ts, number % 11, NAMES[number % len(NAMES)], data


def as_arrow(rows):
    columns = list(zip(*rows, strict=True))
    types = {"ts": pyarrow.timestamp("us"), "k": pyarrow.int64(), "name": pyarrow.string(), "data": pyarrow.binary()}
    arrays = [pyarrow.array(values, kind) for values, kind in zip(columns, types.values(), strict=False)]
    batch = pyarrow.RecordBatch.from_arrays(arrays, list(types)[: len(arrays)])
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return DataArrow(0, 0, len(rows), sink.getvalue().to_pybytes())


def as_line(number):
    ts, k, name, data = row(number)
    encoded = None if data is None else base64.b64encode(data).decode()
    return json.dumps({"stream": "s", "tuple": {"ts": ts, "k": k, "name": name, "data": encoded}})


async def feed_everything(daemon, halfway):
    """Rows of every form, taken in turn."""

    async def taken(stream, count):
        await until(lambda: daemon.engine.source(stream).output.end + daemon.engine.source(stream).late >= count)

    async with peer(daemon) as frames, peer(daemon) as arrow, lines(daemon) as text:
        await frames.open("s", producer="frames")
        await frames.open("t", channel=1, producer="others")
        await arrow.open("s", producer="arrow")
        sent = 0
        for turn in range(12):
            first = turn * 30
            frames.data(sent, [row(number) for number in range(first, first + 10)])
            await taken("s", first + 10)
            arrow.say(replace(as_arrow([row(number) for number in range(first + 10, first + 20)]), sequence=sent))
            await taken("s", first + 20)
            text.say("\n".join(as_line(number) for number in range(first + 20, first + 30)))
            await taken("s", first + 30)
            frames.data(sent, [row(number)[:3] for number in range(first, first + 30, 3)], channel=1)
            sent += 10
            if turn == 6:
                await halfway()


def test_a_replay_has_the_state_of_the_server_whatever_rows_arrive_as(tmp_path):
    async def play():
        async with running(SQL, server={"data_dir": str(tmp_path)}) as daemon:
            durability, early = daemon.durability, Follower(tmp_path)
            await feed_everything(daemon, durability.make)
            await daemon.catalog.execute("ALTER QUERY totals RENAME TO sums; DROP QUERY plain")
            await daemon.runner.wait_drained()
            assert [whole for _, whole, *_ in durability._marks.take()].count(False) == 0
            durability.mark()
            await durability.recorder.wait_synced(durability.recorder.recorded)
            late = Follower(tmp_path)
            assert early.lsn == 0 < late.lsn
            for follower in (early, late):
                while follower.advance().records:
                    assert follower.difference is None
                assert follower.lsn == durability.recorder.recorded
                assert differing(follower.engine, all_digests(daemon.engine)) == []
                assert follower.engine.save() == daemon.engine.save()

    asyncio.run(play())


def test_a_start_that_replays_to_another_state_says_so(tmp_path):
    """As if the server had computed something else than its next start does."""

    async def spoil(daemon):
        daemon.engine.graph.operators[spoiled(daemon)].counts.output_tuples += 1
        daemon.durability.mark()

    image = tmp_path / "image"
    killed(tmp_path / "made", image, more=spoil)

    async def look(daemon):
        following = daemon.durability.following
        assert following.differences == 1
        (text,) = daemon.problems()
        where = f"query totals, operator {spoiled(daemon)} after step {following.difference.lsn}"
        assert text == f"a replay of the journal leads to another state of {where}: a restart may emit other rows"
        assert (await get(daemon, "/-/healthy")).startswith("degraded\na replay of the journal")
        assert "millrace_journal_follower_differences_total 1.0" in await get(daemon, "/metrics")
        assert following.suspicious
        assert daemon.durability._is_due()
        made = daemon.durability.made
        await daemon.durability.make()
        assert daemon.durability.made == made + 1
        assert not following.suspicious

    restarted(image, look)


def test_a_start_compares_marks_and_finds_no_difference(tmp_path):
    async def mark(daemon):
        daemon.durability.mark()

    image = tmp_path / "image"
    killed(tmp_path / "made", image, more=mark)

    async def look(daemon):
        assert daemon.durability.recovery.difference is None
        assert daemon.problems() == []

    restarted(image, look)


def spoiled(daemon):
    """An operator of the query `totals`."""
    return daemon.engine.query("totals").operators[-1].name


# -- which operators ---------------------------------------------------------------------------------------------------


def engine_of(queries):
    engine = Engine()
    engine.step(0, [Command(0, AddStream(StreamDefinition("s", V)))])
    for number in range(queries):
        engine.step(0, [Command(0, AddQuery(path(f"q{number}", 3), None))])
    return engine


def test_every_operator_has_its_turn():
    engine = engine_of(70)
    made, names = Marks(engine), [*engine.graph.operators]
    seen: list[str] = []
    while len(seen) < 2 * len(names):
        digests = made.take()
        assert digests[0].operator == ENGINE
        assert len(digests) <= marks.OPERATORS + 1
        seen += [one.operator for one in digests[1:]]
    assert seen == (names * 3)[: len(seen)]


def test_large_and_slow_states_are_left_to_their_counts(monkeypatch):
    engine = engine_of(3)
    names = [*engine.graph.operators]
    sizes = dict.fromkeys(engine.graph.operators.values(), 1)
    sizes[engine.graph.operators[names[2]]] = marks.BYTES + 1
    monkeypatch.setattr(marks, "size_of", sizes.get)
    assert [one.operator for one in Marks(engine).take()[1:] if not one.whole] == [names[2]]
    ticks = iter(range(1_000))
    slow = Marks(engine, clock=lambda: float(next(ticks)))
    assert sum(one.whole for one in slow.take()[1:]) == len(names) - 1
    assert sum(one.whole for one in slow.take()[1:]) == 0, "each has taken a second"
    sizes.update(dict.fromkeys(engine.graph.operators.values(), marks.BYTES // 2))
    made = Marks(engine)
    seen: list[str] = []
    while len(seen) < len(names):
        found = made.take()[1:]
        assert 1 <= len(found) <= 2
        seen += [one.operator for one in found]
    assert seen[: len(names)] == names


def test_the_size_of_an_operator_grows_with_what_waits():
    engine = engine_of(1)
    source = engine.source("s")
    before = size_of(source)
    engine.step(1, [arrive("s", *range(100))], budget=0)
    assert size_of(source) >= before + 100 * 8
