"""The memory budget: what it is, what follows when it is nearly used up, and that only the right query pays."""

import asyncio
import os
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from millrace.engine.events import MemoryExceeded, MemoryHeld
from millrace.net.sink import Outlet, Retention, Slow, Subscription
from millrace.protocol import Refuse, Schema
from millrace.protocol.messages import Ack, Error
from millrace.run import budget as budgets
from millrace.run import memory
from millrace.run.budget import Budget, budget_bytes, most_grown
from millrace.run.config import ConfigError, load
from millrace.run.shortage import FAIL, PATIENCE_SECONDS, ROOM, SHED, Shortage, Stage
from millrace.values.batch import Batch
from tests.depth import examples
from tests.server.directories import killed, restarted
from tests.server.harness import peer, running, until
from tests.server.test_api import get
from tests.server.test_slow import Hand

MB = 2**20

# -- what the system allows --------------------------------------------------------------------------------------------


def write(root, **files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_memory_is_limited_by_the_machine_and_by_every_cgroup_above(tmp_path):
    assert memory.limit_bytes(tmp_path) is None
    assert memory.resident_bytes(root=tmp_path) is None
    write(tmp_path, **{"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 800 kB\n", "proc/self/statm": "50 20 3\n"})
    assert memory.limit_bytes(tmp_path) == 9000 * 1024
    assert memory.resident_bytes(root=tmp_path) == 20 * os.sysconf("SC_PAGE_SIZE")
    top = "sys/fs/cgroup"
    write(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/slice/unit\n",
            f"{top}/slice/unit/memory.max": "max\n",
            f"{top}/slice/memory.max": "500000\n",
            "sys/memory.max": "1\n",
        },
    )
    assert memory.limit_bytes(tmp_path) == 500_000
    write(tmp_path, **{f"{top}/slice/unit/memory.max": "90000\n"})
    assert memory.limit_bytes(tmp_path) == 90_000


def test_version_1_of_cgroups_and_the_paths_of_a_container_are_understood(tmp_path):
    top = "sys/fs/cgroup/memory"
    write(
        tmp_path,
        **{
            "proc/meminfo": "MemTotal: 9000 kB\n",
            "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/docker/of/the/host\n1:name=systemd:/b\n",
            f"{top}/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert memory.limit_bytes(tmp_path) == 9000 * 1024
    write(tmp_path, **{f"{top}/memory.limit_in_bytes": "700000\n"})
    assert memory.limit_bytes(tmp_path) == 700_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_system_says_how_much_memory_there_is():
    assert (memory.resident_bytes() or 0) > MB
    assert (memory.limit_bytes() or 0) > MB


# -- the setting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("512 MB", 1, 512_000_000),
        ("1 GiB", None, 2**30),
        ("60 %", 1_000, 600),
        ("12.5%", 1_000, 125),
        ("60 %", None, None),
    ],
)
def test_a_budget_is_a_size_or_a_share(text, limit, expected):
    assert load(flags={"server": {"memory": text}}).server.memory == text
    assert budget_bytes(text, limit) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0 %", "expected a share above 0 % and up to 100 %, got '0 %'"),
        ("101 %", "expected a share above 0 % and up to 100 %, got '101 %'"),
        ("60", "expected a size such as '512 MB', or a share of the system's limit such as '60 %', got '60'"),
        ("100 MB", "expected at least 128 MiB, because an idle server needs 100, got '100 MB'"),
    ],
)
def test_another_setting_is_refused(text, problem):
    with pytest.raises(ConfigError) as raised:
        load(flags={"server": {"memory": text}})
    assert raised.value.problems == [f"server.memory: {problem}"]


# -- the stages --------------------------------------------------------------------------------------------------------

LOOKS = st.lists(st.tuples(st.sampled_from([0.0625, 0.25, 1.0, PATIENCE_SECONDS]), st.integers(60, 100)), max_size=60)


@given(LOOKS)
@settings(max_examples=examples(300))
def test_the_stages_follow_the_use_and_feeds_wait_for_a_bounded_time(looks):
    shortage, now, waits = Shortage(1_000_000), 0.0, 0.0
    for passed, percent in looks:
        held = shortage.holds
        now += passed
        used = percent * 10_000
        stage = shortage.look(now, used)
        waits = waits + passed if held and shortage.holds else 0.0
        assert (stage is Stage.FAIL) == (used >= FAIL * 1_000_000)
        assert (stage is Stage.SHED) == (SHED * 1_000_000 <= used < FAIL * 1_000_000)
        assert not shortage.holds or used >= ROOM * 1_000_000
        assert waits < PATIENCE_SECONDS or stage is Stage.FAIL
        if stage is Stage.FAIL and not held:
            assert shortage.holds


def test_feeds_wait_again_only_when_a_further_step_is_used():
    shortage = Shortage(100)
    assert shortage.look(0, 77) is Stage.ENOUGH
    assert shortage.look(1, 78) is Stage.WAIT
    assert shortage.look(1 + PATIENCE_SECONDS, 79) is Stage.ENOUGH
    for now in range(10, 1_000, 10):
        assert not shortage.nears(81)
        assert shortage.look(now, 81) is Stage.ENOUGH, "it stands still"
    assert shortage.look(1_000, 83) is Stage.WAIT
    assert shortage.look(1_001, 60) is Stage.ENOUGH
    assert shortage.look(1_002, 78) is Stage.WAIT


@pytest.mark.parametrize(
    ("sizes", "before", "expected"),
    [
        ({"large": 900, "grows": 300}, {"large": 890, "grows": 100}, "grows"),
        ({"large": 900, "new": 300}, {"large": 890}, "new"),
        ({"large": 900, "grows": 99}, {"large": 890, "grows": 0}, "large"),
        ({"a": 300, "b": 400}, {"a": 200, "b": 300}, "b"),
        ({"small": 99}, {}, None),
        ({}, {"gone": 900}, None),
    ],
)
def test_the_query_that_has_grown_most_is_chosen(sizes, before, expected):
    assert most_grown(sizes, before, 100) == expected


# -- what may be dropped -----------------------------------------------------------------------------------------------

SCHEMA = Schema.of(k="bigint")


def batch(first, count):
    return Batch.from_rows(SCHEMA, [(k,) for k in range(first, first + count)], [0] * count)


@pytest.mark.parametrize(
    ("policy", "dropped", "why"),
    [("drop_oldest", 100, None), ("disconnect", 100, "too_slow"), ("wait", 0, None)],
)
def test_rows_of_slow_subscribers_are_dropped_by_their_policy(policy, dropped, why):
    outlet = Outlet("q", SCHEMA, Retention(1_000), lambda _: None)
    hand = Hand()
    reader = Subscription("r", Slow(policy, 1_000), hand)
    outlet.add(reader)
    outlet.deliver(0, batch(0, 100))
    assert reader.shed(least=10**9) == 0, "it holds hardly anything"
    assert reader.shed(least=1) == dropped
    assert (reader.dropped, hand.why, reader.held) == (dropped, why, 100 - dropped)


def test_retained_rows_are_dropped_and_the_next_subscriber_learns_that():
    outlet = Outlet("q", SCHEMA, Retention(1_000), lambda _: None)
    outlet.deliver(0, batch(0, 100))
    assert outlet.memory_bytes > 0
    assert outlet.shed() == 100
    assert (outlet.memory_bytes, outlet.retained_tuples, outlet.oldest_retained) == (0, 0, 100)
    with pytest.raises(Exception, match="It retains no rows, and the next sequence is 100"):
        outlet.first(5)
    outlet.deliver(100, batch(100, 5))
    assert (outlet.first(100), outlet.retained_tuples) == (100, 5)


# -- a server ----------------------------------------------------------------------------------------------------------

SQL = """
CREATE STREAM a (k BIGINT, v BIGINT);
CREATE STREAM b (k BIGINT, v BIGINT);
CREATE QUERY steady AS SELECT k, v FROM a WHERE v >= 0;
CREATE QUERY pairs AS SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k;
CREATE QUERY sums AS SELECT k, sum(v) AS total FROM b GROUP BY k;
"""


class Gauge:
    """The memory of the process, as a test says."""

    def __init__(self, monkeypatch, used):
        self.used = used
        monkeypatch.setattr(budgets, "resident_bytes", lambda pid=None: self.used if pid is None else 0)
        monkeypatch.setattr(budgets, "trim", lambda everything=False: None)
        monkeypatch.setattr(budgets, "WORTH", 0)
        monkeypatch.setattr(budgets, "FAR_SECONDS", 3_600)
        monkeypatch.setattr(budgets, "NEAR_SECONDS", 3_600)


def sections(**more):
    return {**more, "server": {"memory": "1000 MB", **more.get("server", {})}}


async def fed(client, stream, rows, channel=0):
    """Feed rows, and return when the server has taken them."""
    opened = await client.open(stream, channel=channel, producer="p")
    client.data(opened.next_sequence, rows, channel=channel)
    await client.hear(Ack)


def text_of(logs):
    return [line["event"] for line in logs if "memory" in line["event"]]


def test_memory_is_measured_often_while_it_grows(monkeypatch):
    async def play():
        gauge = Gauge(monkeypatch, 100 * 10**6)
        async with running(SQL, **sections()) as daemon:
            await daemon.budget.look(1)
            for used, near in ((110, False), (130, True), (130, False), (100, False), (501, True), (501, True)):
                gauge.used = used * 10**6
                assert await daemon.budget.look(2) is near, used

    asyncio.run(play())


def test_a_checkpoint_waits_while_memory_is_short(tmp_path, monkeypatch):
    """Its child process would copy pages; the journal is not to grow without a bound either."""

    async def play():
        gauge = Gauge(monkeypatch, 100 * 10**6)
        async with running(SQL, **sections(server={"data_dir": tmp_path})) as daemon:
            durability = daemon.durability
            due = daemon.settings.journal.checkpoint_bytes
            for used, more, waits in (
                (100, 1, False),
                (880, 1, True),
                (880, 3.9, True),
                (880, 4, False),
                (600, 1, False),
            ):
                gauge.used = used * 10**6
                await daemon.budget.look(1)
                durability._bytes = durability.recorder.bytes - int(more * due)
                assert durability._is_due() is not waits, (used, more)
            durability._bytes = durability.recorder.bytes

    asyncio.run(play())


@pytest.mark.parametrize("threads", [1, 2])
def test_feeds_wait_then_rows_are_dropped_then_the_query_that_grows_most_fails(threads, monkeypatch):
    async def play():
        gauge = Gauge(monkeypatch, 100 * 10**6)
        async with running(SQL, **sections(engine={"threads": threads})) as daemon, peer(daemon) as client:
            budget = daemon.budget
            await fed(client, "a", [(k, k) for k in range(50)])
            assert await budget.look(1) is False
            gauge.used = 600 * 10**6
            assert await budget.look(2) is True, "sizes are recorded from now on"
            await fed(client, "b", [(k, k) for k in range(50)] * 4, channel=1)
            before = {query.name: query.state_tuples for query in daemon.queries()}

            with capture_logs() as logs:
                gauge.used = 800 * 10**6
                await budget.look(10)
            assert text_of(logs) == ["memory is short: feeds wait"]
            assert daemon.engine.queries_by_name.keys() == before.keys()
            (connection,) = daemon.context.connections
            assert not connection.reads, "it has credit for more"
            await until(lambda: daemon.engine.memory_held)
            with pytest.raises(Refuse, match="short of memory, and all feeds wait"):
                await daemon.catalog.execute("INSERT INTO b VALUES (1, 2)")
            assert (
                "Feeds wait for new credit, because memory is short: 762.9 MiB of 953.7 MiB" in daemon.why("sums").text
            )
            retained = sum(outlet.retained_tuples for outlet in daemon.runner.outlets.values())
            assert daemon.runner.outlets["steady"].retained_tuples == 50

            with capture_logs() as logs:
                gauge.used = 880 * 10**6
                await budget.look(11)
            assert text_of(logs) == ["memory is short: rows were dropped"]
            assert daemon.runner.outlets["steady"].retained_tuples == 0

            with capture_logs() as logs:
                gauge.used = 930 * 10**6
                await budget.look(12)
                await budget.look(12.5)
                await until(lambda: daemon.engine.query("pairs").failed)
            lines = [line for line in logs if line["event"].startswith("memory is used up")]
            assert [line["query"] for line in lines] == ["pairs"]
            query = daemon.query("pairs")
            assert query.state == "failed"
            assert "the server's memory was used up (886.9 MiB of 953.7 MiB, server.memory)" in query.reason
            assert query.reason.endswith("then run: millrace query resume pairs")

            gauge.used = 500 * 10**6
            with capture_logs() as logs:
                await budget.look(13)
            assert text_of(logs) == ["memory suffices again"]
            await until(lambda: not daemon.engine.memory_held)
            assert connection.reads
            after = {query.name: query.state_tuples for query in daemon.queries() if query.state == "running"}
            assert after == {name: before[name] for name in ("steady", "sums")}

            text = await get(daemon, "/metrics")
            assert "millrace_memory_budget_bytes 1e+09" in text
            assert "millrace_memory_failed_queries_total 1.0" in text
            assert f'millrace_shed_rows_total{{kind="retained"}} {retained}.0' in text
            view = (await get(daemon, "/api/v1/server"))["memory"]
            assert (view["failed"], view["stage"]) == (["pairs"], "enough")
            assert sum(view["parts"].values()) == view["used_bytes"]

    asyncio.run(play())


def test_connections_that_buffer_most_are_closed_before_a_query_fails(monkeypatch):
    async def play():
        gauge = Gauge(monkeypatch, 10**6)
        monkeypatch.setattr(budgets, "BUFFERS", 10_000 / 10**9)
        async with running(SQL, **sections()) as daemon, peer(daemon) as large, peer(daemon) as small:
            for client, size in ((large, 9_000), (small, 2_000)):
                client.say_raw((2**16).to_bytes(4, "big") + bytes(size))
            await until(lambda: sum(one.buffered for one in daemon.context.connections) > 11_000)
            gauge.used = 880 * 10**6
            await daemon.budget.look(1)
            error = await large.hear(Error)
            assert error.code == "memory"
            assert "the server is short of memory, and this connection buffers 8.8 KiB" in error.text
            assert daemon.metrics.refusals.counts["listen", "memory"] == 1
            await until(lambda: len(daemon.context.connections) == 1)

    asyncio.run(play())


def test_a_query_that_failed_for_memory_has_failed_after_a_kill_too(tmp_path):
    async def fail(daemon):
        daemon.runner.submit(MemoryHeld(True, True))
        daemon.runner.submit(MemoryExceeded("totals", "no memory"))
        await until(lambda: daemon.engine.query("totals").failed)

    before = killed(tmp_path / "live", tmp_path / "image", more=fail)

    async def look(daemon):
        assert daemon.query("totals").reason == "no memory"
        assert daemon.query("q").state == "running"
        await until(lambda: not daemon.engine.memory_held)

    assert restarted(tmp_path / "image", look) == before


def test_a_standby_leaves_the_decisions_to_its_primary(monkeypatch):
    async def play():
        gauge = Gauge(monkeypatch, 10**6)
        async with running(SQL, **sections()) as daemon:
            gauge.used = 990 * 10**6
            daemon.state = "following"
            await daemon.budget.look(1)
            assert not daemon.budget.holds
            assert daemon.budget.view().used_bytes == gauge.used
            daemon.state = "ready"

    asyncio.run(play())


@pytest.mark.parametrize(
    ("bytes_", "used", "checkpoint", "objection"),
    [
        (1_000 * MB, 250 * MB, 200 * MB, None),
        (
            1_000 * MB,
            250 * MB,
            201 * MB,
            "may need 701.0 MiB, and may use 700.0 MiB of the memory budget of 1,000.0 MiB",
        ),
        (None, 1, 1, "set server.memory"),
    ],
)
def test_a_follower_needs_a_budget_for_twice_the_state(bytes_, used, checkpoint, objection, monkeypatch):
    monkeypatch.setattr(budgets, "resident_bytes", lambda pid=None: used)
    daemon: Any = None
    found = Budget(daemon, bytes_).objection(checkpoint)
    assert (found is None) == (objection is None)
    assert objection is None or objection in (found or "")
