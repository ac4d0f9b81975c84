"""Retained rows on disk: a log has what it should have after whatever happens, and readers get each row once."""

import asyncio
import errno
import os
import random
import shutil
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from millrace.client import AsyncClient, ServerError
from millrace.client.subscription import RowBatch
from millrace.net.sink import Backpressure, Outlet, Retention, Sender, Slow, Subscription
from millrace.protocol import Refuse, Schema
from millrace.run.config import ConfigError, load
from millrace.sql import Catalog, parse, plan_all
from millrace.sql.errors import SqlError
from millrace.store import resultlog, rowfiles
from millrace.store import results as results_module
from millrace.store.resultlog import ResultLog
from millrace.store.results import ResultLimits, Results, ResultsBroken
from millrace.store.rowfiles import DamagedRowsError
from millrace.values.batch import Batch
from millrace.values.retention import Retain, parse_retain
from tests.depth import examples
from tests.server.harness import running, until

SCHEMA = Schema.of(k="bigint", t="text")
WIDER = Schema.of(k="bigint", t="text", v="double")
HISTORY = "ab" * 8


def rows_of(first, count, schema=SCHEMA, size=1):
    """Rows whose content follows from their number."""
    rows = [(k, f"{k}" * size, None)[: len(schema.fields)] for k in range(first, first + count)]
    return Batch.from_rows(schema, rows, [k * 3 for k in range(first, first + count)], arrival=first)


def numbers(found):
    return [(sequence + at, row[0]) for sequence, batch in found for at, row in enumerate(batch.rows())]


def all_of(log, first=0):
    found = []
    while part := log.read(first, 7, 5_000):
        found += part
        first = part[-1][0] + len(part[-1][1])
    return found


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(resultlog, "RECORD_BYTES", 4_000)
    monkeypatch.setattr(resultlog, "LEAST_FILE_BYTES", 2_000)
    monkeypatch.setattr(resultlog, "MOST_FILE_BYTES", 3_000)
    monkeypatch.setattr(resultlog, "ORDINARY_FILE_BYTES", 2_000)
    monkeypatch.setattr(rowfiles, "STRIDE_BYTES", 600)
    monkeypatch.setattr(rowfiles, "CHUNK_BYTES", 3_000)


class Clock:
    us = 1_000_000

    def __call__(self):
        return self.us


def made(folder, retain="1 GB", clock=None, next_sequence=0, **limits):
    results = Results(folder, ResultLimits(**limits), clock or Clock(), threaded=False)
    return results, opened(results, retain, next_sequence)


def opened(results, retain, next_sequence=0, history=HISTORY) -> ResultLog:
    log = results.open(history, SCHEMA, parse_retain(retain), next_sequence)
    assert log is not None
    return log


def test_a_disk_that_fails_at_the_start_is_named(tmp_path, monkeypatch):
    results, log = made(tmp_path)
    log.append(0, rows_of(0, 5))
    results.work(final=True)

    def fails(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(resultlog, "settle", fails)
    with pytest.raises(ResultsBroken, match=r"results/abab\w+ cannot be read and made durable: Input/output error; "):
        made(tmp_path)


def test_without_a_folder_nothing_is_on_disk():
    assert Results(None).open(HISTORY, SCHEMA, Retain(bytes=1)) is None


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_log_agrees_with_a_list(tmp_path_factory, data):
    """Appends with overlaps and gaps, writes, reads, trims by every kind of `retain`, kills, and restarts that replay
    from what was durable."""
    folder = tmp_path_factory.mktemp("results")
    retain = data.draw(st.sampled_from(["1 GB", "6 kB", "20 rows", "50 us", "none"]))
    clock = Clock()
    results, log = made(folder, retain, clock)
    following = durable = oldest = 0  # of the list, as if it had every row
    hold = None
    for _ in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["append"] * 6 + ["again", "gap", "write", "sync", "hold", "kill", "read"]))
        clock.us += data.draw(st.integers(0, 20))
        if what == "append":
            count = data.draw(st.integers(1, 60))
            log.append(following, rows_of(following, count, size=data.draw(st.integers(1, 9))))
            following += count
        elif what == "again":
            first = data.draw(st.integers(max(following - 40, oldest), following))
            count = data.draw(st.integers(1, 60))
            log.append(first, rows_of(first, count))
            following = max(following, first + count)
        elif what == "gap":
            following += 1
            log.append(following, rows_of(following, 2))
            oldest = following
            following += 2
            hold = None
            log.release("reader")
        elif what == "write":
            assert results.work()
        elif what == "sync":
            assert results.work(final=True)
            durable = following
        elif what == "hold":
            hold = data.draw(st.integers(oldest, following))
            if not log.hold("reader", hold):
                hold = None
                log.release("reader")
        elif what == "kill":
            before = log.next
            results, log = made(folder, retain, clock)
            hold = None
            assert log.next <= before
            if retain != "none":
                assert log.next >= durable or oldest > durable
            begin = max(durable, oldest)  # of the replay
            log.resume(begin)
            if following > begin:
                log.append(begin, rows_of(begin, following - begin))
        assert log.next == following
        assert oldest <= log.oldest <= following
        assert numbers(all_of(log, log.oldest)) == [(k, k) for k in range(log.oldest, following)]
        if hold is not None:
            assert log.oldest <= hold
        if retain.endswith("rows"):
            assert log.oldest <= max(following - 20, oldest) or what == "kill" or durable < following
    assert (
        results.disk_bytes
        == log.disk_bytes
        == sum(os.path.getsize(file) for file in (folder / "results" / HISTORY).glob("*.rows"))
        if (folder / "results" / HISTORY).exists() and results.work(final=True)
        else True
    )


def test_a_tail_torn_at_any_byte_is_cut_and_comes_again(memory_path):
    results, log = made(memory_path / "a")
    log.append(0, rows_of(0, 30))
    results.work(final=True)
    for first, count in ((30, 6), (36, 8), (44, 5)):
        log.append(first, rows_of(first, count))
        results.work()
    following = log.next
    (path,) = (memory_path / "a/results" / HISTORY).iterdir()
    content = path.read_bytes()
    kept = set()
    for size in range(len(content) + 1):
        folder = memory_path / "b"
        (folder / "results" / HISTORY).mkdir(parents=True)
        (folder / "results" / HISTORY / path.name).write_bytes(content[:size])
        torn, log = made(folder)
        kept.add(log.next)
        assert numbers(all_of(log)) == [(k, k) for k in range(log.next)]
        log.append(log.next // 2, rows_of(log.next // 2, following - log.next // 2))
        torn.work(final=True)
        _, log = made(folder)
        assert numbers(all_of(log)) == [(k, k) for k in range(following)]
        shutil.rmtree(folder)
    assert kept == {0, 30, 36, 44, following}


def test_a_head_that_ends_in_zeros_is_torn(memory_path):
    """A power cut has lost the rest of it, and not the rows."""
    results, log = made(memory_path / "a")
    log.append(0, rows_of(0, 30))
    results.work(final=True)
    (path,) = (memory_path / "a/results" / HISTORY).iterdir()
    content = path.read_bytes()
    head = len(rowfiles.write_head(log._files[0].head))
    folder = memory_path / "b"
    (folder / "results" / HISTORY).mkdir(parents=True)
    for whole in range(head):
        (folder / "results" / HISTORY / path.name).write_bytes(content[:whole] + bytes(head - whole) + content[head:])
        _, torn = made(folder)
        assert torn.next == 0


def test_a_flipped_bit_is_never_a_row(memory_path):
    """In the last file it ends the log there, before that it is reported; readers go on after the damage."""
    rng = random.Random(5)
    for _ in range(60):
        folder = memory_path / "x"
        results, log = made(folder)
        for first in range(0, 400, 20):
            log.append(first, rows_of(first, 20))
            results.work()
        results.work(final=True)
        path = rng.choice(sorted((folder / "results" / HISTORY).iterdir()))
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        with capture_logs():
            again, log = made(folder)
            found = numbers(all_of(log))
            assert found == [(k, k) for k, _ in found]
            following = [number for number, _ in found]
            gaps = [b for a, b in pairwise(following) if b != a + 1]
            assert len(gaps) <= 1
            assert not gaps or again.problems()
            log.resume(400)
            log.append(400, rows_of(400, 3))
            assert numbers(all_of(log, 400)) == [(k, k) for k in range(400, 403)]
        shutil.rmtree(folder)


def test_a_missing_file_is_reported_and_what_follows_is_served(tmp_path):
    results, log = made(tmp_path)
    for first in range(0, 400, 20):
        log.append(first, rows_of(first, 20))
        results.work()
    results.work(final=True)
    paths = sorted((tmp_path / "results" / HISTORY).iterdir())
    assert len(paths) >= 3
    paths[1].unlink()
    with capture_logs() as logs:
        _, log = made(tmp_path)
    assert [one["event"] for one in logs] == ["retained rows are missing; subscribers resume after them"]
    assert log.oldest == rowfiles.number_of(paths[2].name)
    assert numbers(all_of(log, log.oldest)) == [(k, k) for k in range(log.oldest, 400)]


def test_a_file_of_a_later_version_is_refused_and_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(rowfiles, "VERSION", 2)
    results, log = made(tmp_path)
    log.append(0, rows_of(0, 3))
    results.work(final=True)
    monkeypatch.undo()
    (path,) = (tmp_path / "results" / HISTORY).iterdir()
    before = path.read_bytes()
    with pytest.raises(DamagedRowsError, match="a newer Millrace wrote it"):
        made(tmp_path)
    assert path.read_bytes() == before


def test_rows_of_lost_steps_are_cut(tmp_path):
    for at in (0, 1, 39, 40, 41, 99, 100, 150, 199, 200):
        folder = tmp_path / str(at)
        results, log = made(folder)
        for first in range(0, 200, 20):
            log.append(first, rows_of(first, 20))
            results.work()
        results.work(final=True)
        for _ in range(2):
            results, log = made(folder)
            log.cut(at)
            assert log.next == at
            assert numbers(all_of(log)) == [(k, k) for k in range(at)]
        log.append(at, rows_of(at, 10))
        results.work(final=True)
        _, log = made(folder)
        assert numbers(all_of(log)) == [(k, k) for k in range(at + 10)]


@pytest.mark.parametrize("retain", ["9 kB", "100 rows", "300 us"])
def test_what_is_too_old_goes_unless_a_reader_holds_it(tmp_path, retain):
    clock = Clock()
    results, log = made(tmp_path, retain, clock)
    log.hold("slow", 30)
    for first in range(0, 1_000, 10):
        clock.us += 10
        log.append(first, rows_of(first, 10))
        results.work()
        assert log.oldest <= 30
    assert log.fill(30) > 1
    log.release("slow")
    clock.us += 10
    results.work()
    assert log.oldest > 600
    assert log.fill(log.oldest) < 2
    if retain == "9 kB":
        assert log.disk_bytes <= 9_000
    if retain == "100 rows":
        assert log.next - log.oldest >= 100
    if retain == "300 us":
        clock.us += 10_000
        results.work()
        assert log.oldest == log.next == 1_000
    assert numbers(all_of(log, log.oldest)) == [(k, k) for k in range(log.oldest, 1_000)]


def test_all_logs_together_forget_the_oldest_first(tmp_path):
    clock = Clock()
    results = Results(tmp_path, ResultLimits(most_bytes=60_000), clock, threaded=False)
    logs = [opened(results, "1 GB", history=f"{number:016x}") for number in range(5)]
    for first in range(0, 2_000, 20):
        for log in logs:
            clock.us += 1
            log.append(first, rows_of(first, 20))
        results.work()
    assert results.disk_bytes <= 60_000
    oldest = [log.oldest for log in logs]
    assert 0 < max(oldest) - min(oldest) <= 300
    for log in logs:
        assert numbers(all_of(log, log.oldest)) == [(k, k) for k in range(log.oldest, 2_000)]


def test_other_columns_continue_the_numbers(tmp_path):
    results, log = made(tmp_path)
    log.append(0, rows_of(0, 10))
    results.work()
    log.adopt(WIDER, 10)
    assert (log.oldest, log.next) == (10, 10)
    log.append(10, rows_of(10, 5, WIDER))
    results.work(final=True)
    again, log = made(tmp_path)
    assert (log.oldest, log.next, log.schema) == (10, 15, WIDER)
    log.append(0, rows_of(0, 10))  # a replay from before two replacements
    log.adopt(Schema.of(other="text"), 5)
    log.adopt(WIDER, 10)
    assert numbers(all_of(log)) == [(k, k) for k in range(10, 15)]
    again.work(final=True)
    assert len(list((tmp_path / "results" / HISTORY).iterdir())) == 1


def test_a_dropped_query_leaves_no_files(tmp_path):
    results, log = made(tmp_path)
    log.append(0, rows_of(0, 10))
    results.work(final=True)
    log.remove()
    other = opened(results, "1 MB", history="c" * 16)
    other.append(0, rows_of(0, 1))
    results.work()
    assert os.listdir(tmp_path / "results") == ["c" * 16]
    results, log = made(tmp_path)
    results.forget_unknown([HISTORY])
    results.work()
    assert os.listdir(tmp_path / "results") == []


# -- a disk that fails -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_write_that_fails_is_retried_and_loses_nothing(tmp_path, monkeypatch, code):
    rng = random.Random(code)
    results, log = made(tmp_path)
    pwritev, fails = os.pwritev, [False]

    def flaky(handle, buffers, offset):
        if fails[0]:
            if rng.random() < 0.5:
                data = b"".join(buffers)
                pwritev(handle, [data[: rng.randrange(len(data))]], offset)
            raise OSError(code, os.strerror(code))
        return pwritev(handle, buffers, offset)

    monkeypatch.setattr(os, "pwritev", flaky)
    first = 0
    for _ in range(60):
        count = rng.randrange(1, 30)
        log.append(first, rows_of(first, count))
        first += count
        fails[0] = rng.random() < 0.6
        assert results.work() is not fails[0]
        assert bool(results.problems()) is fails[0]
        assert numbers(all_of(log)) == [(k, k) for k in range(first)]
    fails[0] = False
    assert results.work(final=True)
    _, log = made(tmp_path)
    assert numbers(all_of(log)) == [(k, k) for k in range(first)]


def test_a_failed_fsync_is_final(tmp_path, monkeypatch):
    async def play():
        results = Results(tmp_path, now_us=Clock())
        log = opened(results, "1 MB")
        log.append(0, rows_of(0, 10))
        await results.sync()
        log.append(10, rows_of(10, 10))
        fsync = os.fsync

        def broken(handle):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="output error"):
            await results.sync()
        monkeypatch.setattr(os, "fsync", fsync)
        log.append(20, rows_of(20, 10))
        with pytest.raises(OSError, match="an earlier fsync failed"):
            await results.sync()
        assert "may be lost in a power cut" in results.problems()[0]
        await results.close()

    asyncio.run(play())


@pytest.mark.parametrize("failing", range(4))
def test_a_failed_fsync_of_a_full_file_or_a_folder_is_final_too(tmp_path, monkeypatch, failing):
    async def play():
        results = Results(tmp_path, now_us=Clock())
        failures: list[Any] = []
        results.on_failure = failures.append
        log = opened(results, "1 MB")
        fsync, calls = os.fsync, []

        def once(handle):
            calls.append(handle)
            if len(calls) == failing + 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            fsync(handle)

        monkeypatch.setattr(os, "fsync", once)
        with pytest.raises(OSError, match=r"output error|an earlier fsync failed"):  # noqa: PT012 - in one of the rounds
            for first in range(0, 400, 40):
                log.append(first, rows_of(first, 40, size=200))
                await results.sync()
        for _ in range(2):
            with pytest.raises(OSError, match="an earlier fsync failed"):
                await results.sync()
        assert [error.code for error in failures] == ["results_broken"]
        assert len(calls) == failing + 1
        await results.close()

    asyncio.run(play())


def test_sync_makes_everything_before_it_durable(tmp_path):
    async def play():
        results = Results(tmp_path, now_us=Clock())
        log = opened(results, "1 MB")
        for first in range(0, 200, 10):
            log.append(first, rows_of(first, 10))
            await results.sync()
            assert (log.waiting_bytes, log._unsynced) == (0, False)
        await results.close()

    asyncio.run(play())
    _, log = made(tmp_path)
    assert numbers(all_of(log)) == [(k, k) for k in range(200)]


# -- readers -----------------------------------------------------------------------------------------------------------


class Hand(Sender):
    """A subscriber whose room a test decides."""

    def __init__(self, room=0):
        self.left = room
        self.rows = []
        self.why = None

    def room(self):
        return self.left

    def writable(self):
        return True

    def send_rows(self, sequence, rows):
        self.left -= len(rows)
        self.rows += [sequence + at for at in range(len(rows))]
        assert rows.columns[0].tolist() == list(range(sequence, sequence + len(rows)))

    def send_progress(self, value_us): ...

    def end(self, code, reason):
        self.why = (code, reason)


class Query:
    """An outlet with a log."""

    def __init__(self, folder, retain="1 GB", **limits):
        self.results = Results(folder, ResultLimits(**limits), Clock())
        self.log = opened(self.results, retain)
        self.pressed: list[Backpressure] = []
        self.outlet = Outlet("q", SCHEMA, Retention(0), self.pressed.append, history=HISTORY, log=self.log)
        self.following = 0

    def emit(self, count, size=1):
        self.outlet.deliver(self.following, rows_of(self.following, count, size=size))
        self.following += count

    def subscribe(self, policy="wait", limit=100_000, room=0, start=None):
        hand = Hand(room)
        subscription = Subscription("x", Slow(policy, limit), hand)
        self.outlet.add(subscription, start)
        return hand, subscription


def test_a_reader_that_never_reads_costs_a_piece_of_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.net.sink.LIVE_BYTES", 20_000)
    monkeypatch.setattr("millrace.net.sink.PIECE_BYTES", 10_000)

    async def play():
        query = Query(tmp_path, waiting_bytes=2**40)
        hand, never = query.subscribe()
        quick, _ = query.subscribe(room=10**9)
        for _ in range(300):
            query.emit(100)
            assert never.held_bytes < 60_000
            await asyncio.sleep(0)
        await query.results.sync()
        assert query.results.waiting_bytes == 0
        assert never.held == 30_000
        assert quick.rows == list(range(30_000))
        hand.left = 10**9
        never.pump()
        await until(lambda: never.held == 0)
        assert hand.rows == list(range(30_000))
        query.emit(1)
        assert hand.rows[-1] == 30_000
        assert query.pressed == []
        await query.results.close()

    asyncio.run(play())


@pytest.mark.parametrize("seed", range(12))
def test_readers_at_any_speed_get_every_row_once_in_order(tmp_path, monkeypatch, seed):
    monkeypatch.setattr("millrace.net.sink.LIVE_BYTES", 5_000)
    monkeypatch.setattr("millrace.net.sink.PIECE_BYTES", 3_000)
    monkeypatch.setattr("millrace.net.sink.PIECE_ROWS", 37)
    rng = random.Random(seed)

    async def play():
        query = Query(tmp_path)
        readers: list[tuple[int, Hand, Subscription]] = []
        for _ in range(400):
            action = rng.random()
            if action < 0.5:
                query.emit(rng.randrange(1, 50), rng.randrange(1, 5))
            elif action < 0.53 and len(readers) < 8:
                start = rng.choice([None, rng.randrange(query.following + 1)])
                policy = rng.choice(["wait", "disconnect", "drop_oldest"])
                readers.append((query.following if start is None else start, *query.subscribe(policy, start=start)))
            elif readers:
                _, hand, subscription = rng.choice(readers)
                hand.left += rng.randrange(200)
                subscription.pump()
            if rng.random() < 0.3:
                await asyncio.sleep(0)
            if rng.random() < 0.05:
                await query.results.sync()
        for first, hand, subscription in readers:
            hand.left = 10**9
            subscription.pump()
            await until(lambda subscription=subscription: subscription.held == 0)
            assert hand.rows == list(range(first, query.following))
            assert (subscription.delivered, subscription.dropped) == (query.following - first, 0)
            assert subscription.held_bytes == 0
        await query.results.close()

    asyncio.run(play())


def test_feeds_wait_once_a_reader_lags_by_what_is_retained(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.net.sink.LIVE_BYTES", 2_000)
    monkeypatch.setattr("millrace.net.sink.PIECE_BYTES", 1_000)

    async def play():
        query = Query(tmp_path, "2000 rows")
        hand, slow = query.subscribe(limit=10)
        pressed_at = None
        while pressed_at is None:
            query.emit(10)
            await asyncio.sleep(0)
            pressed_at = query.following if query.pressed else None
        assert 2_000 <= pressed_at <= 2_500
        assert query.outlet.slowest == slow
        await query.results.sync()
        assert query.log.oldest <= query.following - 2_000
        hand.left = 10**9
        slow.pump()
        await until(lambda: slow.held == 0)
        assert query.pressed[-1] is Backpressure.NONE
        assert hand.rows == list(range(query.following))
        await query.results.close()

    asyncio.run(play())


def test_a_reader_of_rows_that_are_gone_is_notified(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.net.sink.PIECE_BYTES", 1_000)

    async def play():
        for policy, code in (("wait", "not_retained"), ("disconnect", "too_slow"), ("drop_oldest", None)):
            query = Query(tmp_path / policy)
            for _ in range(50):
                query.emit(10)
            hand, reader = query.subscribe(policy, start=0)
            await until(lambda reader=reader: reader.held_bytes > 0)
            query.log._clear()
            hand.left = 10**9
            reader.pump()
            if code is None:
                await until(lambda reader=reader: reader.held == 0)
                query.emit(5)
                assert hand.rows[-5:] == list(range(500, 505))
                assert len(hand.rows) + reader.dropped == 505
            else:
                await until(lambda hand=hand: hand.why is not None)
                assert hand.why[0] == code
                assert len(hand.rows) + reader.dropped == 500
            await query.results.close()

    asyncio.run(play())


def test_feeds_wait_when_readers_hold_more_than_all_queries_may(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.net.sink.LIVE_BYTES", 2_000)
    monkeypatch.setattr("millrace.net.sink.PIECE_BYTES", 1_000)

    async def play():
        query = Query(tmp_path, most_bytes=30_000)
        other = opened(query.results, "1 GB", history="c" * 16)
        hand, slow = query.subscribe(limit=10)
        while not query.pressed:
            query.emit(10)
            other.append(other.next, rows_of(other.next, 10))
            await query.results.sync()
        assert query.following > 200
        assert query.log.oldest == 0
        hand.left = 10**9
        slow.pump()
        await until(lambda: slow.held == 0)
        assert query.pressed[-1] is Backpressure.NONE
        assert hand.rows == list(range(query.following))
        await query.results.close()

    asyncio.run(play())


def test_rows_that_no_retention_keeps_wait_for_a_reader_that_holds_them(tmp_path, monkeypatch):
    """`none` retains nothing for others, and a reader under `wait` still loses no row."""
    monkeypatch.setattr("millrace.net.sink.LIVE_BYTES", 2_000)

    async def play():
        query = Query(tmp_path, "none")
        query.emit(50)
        assert query.outlet.oldest_retained == 50
        hand, slow = query.subscribe(limit=300)
        for _ in range(30):
            query.emit(10)
            await asyncio.sleep(0)
        assert query.pressed
        hand.left = 10**9
        slow.pump()
        await until(lambda: slow.held == 0)
        assert hand.rows == list(range(50, 350))
        query.emit(5)
        await query.results.sync()
        with pytest.raises(Refuse, match="retains no rows"):
            query.subscribe(start=0)
        await query.results.close()

    asyncio.run(play())


def test_a_disk_that_takes_nothing_makes_feeds_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(results_module, "LEAST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(results_module, "MOST_PAUSE_SECONDS", 0.01)
    pwritev = os.pwritev

    def full(handle, buffers, offset):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def play():
        query = Query(tmp_path, waiting_bytes=20_000)
        hand, _ = query.subscribe(room=10**9)
        monkeypatch.setattr(os, "pwritev", full)
        while not query.pressed:
            query.emit(10)
        slowest = query.outlet.slowest
        assert slowest is not None
        assert slowest.name == "the disk, on which results are retained"
        done = asyncio.ensure_future(query.results.sync())
        await until(lambda: query.results.trouble is not None)
        assert "No space left on device" in query.results.problems()[0]
        monkeypatch.setattr(os, "pwritev", pwritev)
        await done
        await until(lambda: query.pressed[-1] is Backpressure.NONE)
        assert query.results.problems() == []
        assert hand.rows == list(range(query.following))
        await query.results.close()

    asyncio.run(play())


def test_replayed_rows_that_are_here_are_passed_to_nobody(tmp_path):
    async def play():
        query = Query(tmp_path)
        query.emit(100)
        await query.results.close()
        again = Results(tmp_path, now_us=Clock())
        log = opened(again, "1 GB", next_sequence=40)
        outlet = Outlet("q", SCHEMA, Retention(0), lambda _: None, history=HISTORY, next_sequence=40, log=log)
        hand = Hand(10**9)
        outlet.add(Subscription("x", Slow(), hand), 30)
        for first in (40, 60, 80, 95, 115):
            outlet.deliver(first, rows_of(first, 20 if first != 80 else 15))
        await until(lambda: len(hand.rows) == 105)
        assert hand.rows == list(range(30, 135))
        await again.close()

    asyncio.run(play())


# -- a server ----------------------------------------------------------------------------------------------------------


def test_subscribers_of_a_server_with_a_folder_can_start_at_the_first_row(tmp_path):
    sql = """CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s;
             CREATE QUERY none WITH (retain = 'none') AS SELECT k FROM s"""

    async def play():
        async with running(sql, server={"data_dir": str(tmp_path)}) as daemon:
            async with AsyncClient(str(daemon.listen)) as client:
                async with await client.open("s", producer="p") as feed:
                    for first in range(0, 40_000, 4_000):
                        await feed.send([(k,) for k in range(first, first + 4_000)])
                await until(lambda: daemon.query("q").rows == 40_000)
                await daemon.results.sync()
                view = daemon.query("q")
                assert (view.oldest_sequence, view.retained_tuples) == (0, 40_000)
                assert view.retained_bytes == daemon.results.disk_bytes > 40_000
                assert daemon.query("none").retained_tuples == 0
                subscription = await client.subscribe("q", from_sequence=5)
                found: list[object] = []
                while len(found) < 39_995:
                    part = await subscription.next_batch()
                    assert isinstance(part, RowBatch)
                    found += [row[0] for row in part.rows]
                assert found == list(range(5, 40_000))
                with pytest.raises(ServerError, match="retains no rows"):
                    await client.subscribe("none", from_sequence=0)
            text = daemon.metrics.text().decode()
            assert "millrace_results_failed 0.0" in text
            assert f"millrace_results_bytes {float(daemon.results.disk_bytes)}" in text
            history = daemon.query("q").history
            assert (tmp_path / "results" / history).is_dir()
            await daemon.catalog.execute("CREATE OR REPLACE QUERY q WITH (retain = '1 row') AS SELECT k, k AS n FROM s")
            assert daemon.query("q").history == history
            assert (daemon.query("q").oldest_sequence, daemon.query("q").next_sequence) == (40_000, 40_000)
            await daemon.catalog.execute("DROP QUERY q")
            await until(lambda: not (tmp_path / "results" / history).exists())

    asyncio.run(play())


@pytest.mark.parametrize("text", ["5 apples", "0 rows", "-1 s", "", "1.5 rows", "7 months", "lots"])
def test_nonsense_is_refused_where_it_stands(text):
    sql = f"CREATE STREAM s (k BIGINT); CREATE QUERY q WITH (retain = '{text}') AS SELECT k FROM s"
    with pytest.raises(SqlError, match=r"retain: .*expected") as caught:
        plan_all(parse(sql), Catalog())
    assert "^" in str(caught.value)


@pytest.mark.parametrize("text", ["4 apples", "0 GB", "", "7 days"])
def test_nonsense_in_the_configuration_is_refused(text):
    with pytest.raises(ConfigError, match=r"results.max"):
        load(flags={"results": {"max": text}})
