"""The late ledger of a server: its route, its command, and that a kill loses nothing of it."""

import asyncio
import json
import re
from dataclasses import replace
from random import Random
from urllib.request import urlopen

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import AlterStream, Command
from millrace.journal.past import Past
from millrace.protocol import MillraceError
from millrace.protocol.admin.data import from_data
from millrace.protocol.admin.streams import LateView
from millrace.run.moments import late_between
from tests.cli.conftest import millrace
from tests.journal.recording import Recording, play
from tests.server.directories import killed, restarted
from tests.server.harness import peer, running, served, until

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
PAST = "CREATE STREAM a (at TIMESTAMP) WITH (time = 'at'); CREATE QUERY q AS SELECT at FROM a"
START = 1_767_225_600 * SECOND
# By how many seconds each tuple lags the newest one before it: with two seconds, the last two are late.
LAGS = (0, 0, 1, 2, 3, 40)


async def feed(daemon, stream="s"):
    times = [START, START + 60 * SECOND, *(START + (60 - lag) * SECOND for lag in LAGS[2:])]
    async with peer(daemon) as client:
        await client.open(stream)
        client.data(0, [(time, number) for number, time in enumerate(times)])
        await until(lambda: daemon.engine.late(stream).tuples == len(LAGS))


def counted(answer):
    return {one.disorder_us // SECOND: one.late for one in answer.disorders}


def check(answer):
    found = counted(answer)
    assert [found[at] for at in (0, 1, 2, 3, 30, 45, 3600)] == [4, 3, 2, 1, 1, 0, 0]
    assert (answer.tuples, answer.disorder_us, answer.progress) == (6, 2 * SECOND, "tuples")
    assert list(answer.queries) == ["ordered", "below", "windows"]


@served(SQL)
async def test_the_route_and_the_command(daemon):
    await feed(daemon)
    url = f"http://{daemon.admin.host}:{daemon.admin.port}/api/v1/streams/s/late"

    def ask(*arguments):
        return millrace("late", *arguments, MILLRACE_ADMIN=f"{daemon.admin.host}:{daemon.admin.port}")

    answer = from_data(LateView, json.loads(await asyncio.to_thread(lambda: urlopen(url).read())))
    check(answer)
    assert answer == daemon.engine.late("s")
    done = await asyncio.to_thread(ask, "s", "--keep", "80")
    assert done.returncode == 0, done.stderr
    assert "6 tuples of s from 20" in done.stdout
    assert "'3 seconds' would have kept 83.33 %, at 1 s more latency for 3 queries" in done.stdout
    assert "(ordered, below, windows)" in done.stdout
    assert done.stderr == "try: millrace sql \"ALTER STREAM s SET (disorder = '3 seconds')\"\n"
    check(from_data(LateView, json.loads((await asyncio.to_thread(ask, "s", "--json")).stdout)))
    for name, words in (("i", "has internal timestamps: none of its tuples is late"), ("x", "stream x does not exist")):
        done = await asyncio.to_thread(ask, name)
        assert done.returncode == 1
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
    await daemon.catalog.execute("ALTER STREAM s SET (disorder = '3 seconds')")
    again = daemon.engine.late("s")
    assert (again.tuples, set(counted(again).values())) == (0, {0})
    assert again.since_us > answer.since_us


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
        assert [replace(one, until_us=0) for one in found] == [replace(one, until_us=0) for one in before]
        check(found[0])

    restarted(tmp_path / "two", look)


# -- spans of the past -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_span_has_what_was_counted_between_its_ends(tmp_path, seed):
    random = Random(seed)
    recording, moments = play(tmp_path / "data", random, steps=40)
    recording.close()
    for _ in range(6):
        (from_us, first), (to_us, last) = sorted(random.sample(moments, 2))
        for stream in ("a", "b"):
            answer = late_between(tmp_path / "data", stream, from_us, to_us)
            before, after = (Engine.restore(one).source(stream) for one in (first, last))
            found = {one.disorder_us: one.late for one in answer.disorders}
            assert (answer.since_us, answer.until_us) == (from_us, to_us)
            assert answer.tuples == after.counts.input_tuples - before.counts.input_tuples
            assert found[answer.disorder_us] == after.late - before.late
            assert list(found.values()) == sorted(found.values(), reverse=True)


def test_a_span_begins_with_a_ledger_that_is_younger(tmp_path):
    recording = Recording(tmp_path / "data", PAST)
    begin_us, changed_us = recording.now_us, recording.now_us + 10
    recording.now_us += 1
    for time in (9, 5, 1):
        recording.feed("a", [(time,)])
    recording.now_us = changed_us
    recording.step(Command(9, AlterStream("a", (("disorder_us", 4),))))
    recording.now_us += 10
    recording.feed("a", [(8,), (3,)])
    recording.close()
    answer = late_between(tmp_path / "data", "a", begin_us, recording.now_us)
    found = {one.disorder_us: one.late for one in answer.disorders}
    assert (answer.since_us, answer.tuples, answer.disorder_us) == (changed_us, 2, 4)
    assert (found[0], found[4], found[10]) == (2, 1, 0)
    answer = late_between(tmp_path / "data", "a", begin_us, changed_us - 1)
    assert (answer.since_us, answer.tuples, answer.disorder_us) == (begin_us, 3, 0)


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((0, None), "is not in the recorded past of"),
        ((None, 10**18), "is not in the recorded past of"),
        ((SECOND + 5, SECOND + 4), "expected a later end"),
    ],
)
def test_spans_that_have_no_answer(tmp_path, ends, words):
    recording = Recording(tmp_path / "data", PAST)
    recording.now_us += 100
    recording.feed("a", [(9,)])
    recording.close()
    with pytest.raises(MillraceError, match=words):
        late_between(tmp_path / "data", "a", *ends)
    with pytest.raises(MillraceError, match="stream c does not exist"):
        late_between(tmp_path / "data", "c", None, None)


def test_a_server_and_a_directory_answer_for_a_span(tmp_path):
    async def play():
        async with running(SQL, server={"data_dir": str(tmp_path)}) as daemon:
            await feed(daemon)
            admin = f"{daemon.admin.host}:{daemon.admin.port}"
            done = await asyncio.to_thread(millrace, "late", "s", "--from", "-1 day", MILLRACE_ADMIN=admin)
            assert done.returncode == 1
            assert re.search(r"reaches from \S+ to \S+: `\[journal\] keep` decides", done.stderr)
            past = Past(tmp_path).span()
            flags = ("late", "s", "--from", str(past.from_us), "--to", str(past.to_us), "--json")
            asked = await asyncio.to_thread(millrace, *flags, MILLRACE_ADMIN=admin)
            read = await asyncio.to_thread(millrace, *flags, "--data-dir", str(tmp_path))
            check(from_data(LateView, json.loads(asked.stdout)))
            return past, asked.stdout, read.stdout

    past, asked, read = asyncio.run(play())
    assert json.loads(asked)["until_us"] == past.to_us
    assert json.loads(read) == json.loads(asked)
