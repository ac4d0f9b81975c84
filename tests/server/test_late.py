"""The late ledger of a server: its route, its command, and that a kill loses nothing of it."""

import asyncio
import json
from urllib.request import urlopen

from tests.cli.conftest import millrace
from tests.server.directories import killed, restarted
from tests.server.harness import peer, served, until

SQL = """
CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '2 seconds');
CREATE STREAM u (ts TIMESTAMP, k BIGINT) WITH (time = 'ts');
CREATE STREAM i (k BIGINT);
CREATE QUERY plain AS SELECT k FROM s WHERE k > 0;
CREATE QUERY ordered WITH (order = 'event') AS SELECT k FROM s;
CREATE QUERY below AS SELECT k FROM ordered;
CREATE QUERY windows AS SELECT count(*) AS n FROM TUMBLE(s, ts, '1 minute');
CREATE QUERY totals AS SELECT k, count(*) AS n FROM s GROUP BY k;
CREATE QUERY pairs AS SELECT s.k FROM s JOIN u ON s.k = u.k AND s.ts BETWEEN u.ts AND u.ts + INTERVAL '1 minute';
CREATE QUERY other WITH (order = 'event') AS SELECT k FROM u;
"""
SECOND = 1_000_000
START = 1_767_225_600 * SECOND
# By how many seconds each tuple lags the newest one before it: with two seconds, the last two are late.
LAGS = (0, 0, 1, 2, 3, 40)


async def feed(daemon, stream="s"):
    times = [START, START + 60 * SECOND, *(START + (60 - lag) * SECOND for lag in LAGS[2:])]
    async with peer(daemon) as client:
        await client.open(stream)
        client.data(0, [(time, number) for number, time in enumerate(times)])
        await until(lambda: daemon.engine.late(stream)["tuples"] == len(LAGS))


def counted(answer):
    return {one["disorder_us"] // SECOND: one["late"] for one in answer["disorders"]}


def check(answer):
    found = counted(answer)
    assert [found[at] for at in (0, 1, 2, 3, 30, 45, 3600)] == [4, 3, 2, 1, 1, 0, 0]
    assert (answer["tuples"], answer["disorder_us"], answer["progress"]) == (6, 2 * SECOND, "tuples")
    assert answer["queries"] == ["ordered", "below", "windows"]


@served(SQL)
async def test_the_route_and_the_command(daemon):
    await feed(daemon)
    url = f"http://{daemon.admin.host}:{daemon.admin.port}/api/v1/streams/s/late"

    def ask(*arguments):
        return millrace("late", *arguments, MILLRACE_ADMIN=f"{daemon.admin.host}:{daemon.admin.port}")

    answer = json.loads(await asyncio.to_thread(lambda: urlopen(url).read()))
    check(answer)
    assert answer == daemon.engine.late("s")
    done = await asyncio.to_thread(ask, "s", "--keep", "80")
    assert done.returncode == 0, done.stderr
    assert "6 tuples of s since" in done.stdout
    assert "'3 seconds' would have kept 83.33 %, at 1 s more latency for 3 queries" in done.stdout
    assert "(ordered, below, windows)" in done.stdout
    assert done.stderr == "try: millrace sql \"ALTER STREAM s SET (disorder = '3 seconds')\"\n"
    check(json.loads((await asyncio.to_thread(ask, "s", "--json")).stdout))
    for name, words in (("i", "has internal timestamps: none of its tuples is late"), ("x", "stream x does not exist")):
        done = await asyncio.to_thread(ask, name)
        assert done.returncode == 1
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
    await daemon.catalog.execute("ALTER STREAM s SET (disorder = '3 seconds')")
    again = daemon.engine.late("s")
    assert (again["tuples"], set(counted(again).values())) == (0, {0})
    assert again["since_us"] > answer["since_us"]


def test_a_kill_loses_nothing_of_it(tmp_path):
    before = []

    async def play(daemon):
        await feed(daemon)
        await daemon.durability.make()
        await feed(daemon, "u")
        before.extend([daemon.engine.late("s"), daemon.engine.late("u")])

    killed(tmp_path / "one", tmp_path / "two", count=0, more=play, sql=SQL)

    async def look(daemon):
        found = [daemon.engine.late("s"), daemon.engine.late("u")]
        assert [one | {"until_us": 0} for one in found] == [one | {"until_us": 0} for one in before]
        check(found[0])

    restarted(tmp_path / "two", look)
