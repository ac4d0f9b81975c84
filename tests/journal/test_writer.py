"""The journal is written and synced in groups; a full disk is waited for, a failing one ends it."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from random import Random

import pytest

from millrace.journal import segments
from millrace.journal.disk import RealDisk
from millrace.journal.errors import JournalBroken, JournalError, JournalFull
from millrace.journal.layout import HEADER_BYTES, RECORD_BYTES
from millrace.journal.reader import JournalReader
from millrace.journal.segments import Journal
from millrace.journal.writer import RETRY_SECONDS, UNSYNCED_SECONDS, Full, GroupCommit, JournalWriter, Sync
from tests.journal.simdisk import SimulatedDisk
from tests.patience import wait_until

SEGMENT_BYTES = 1_000


class Bench:
    """Group commit without a thread, on a simulated disk with a simulated clock."""

    def __init__(self, sync: Sync) -> None:
        self.disk = SimulatedDisk(Random(1))
        self.disk.before = self._before
        self.calls: list[str] = []
        self.fails: dict[str, int] = {}
        self.now = 0.0
        self.journal = Journal.open(self.disk, segment_bytes=SEGMENT_BYTES, now_us=lambda: int(self.now * 1e6))
        self.calls.clear()
        self.events: list[tuple[str, object]] = []
        self.commit = GroupCommit(
            self.journal,
            sync,
            lambda lsn: self.events.append(("written", lsn)),
            lambda lsn: self.events.append(("synced", lsn)),
            lambda full: self.events.append(("full", full is not None)),
            lambda: self.now,
        )

    def _before(self, operation: str, _name: str) -> None:
        self.calls.append(operation)
        if operation in self.fails:
            number = self.fails[operation]
            raise OSError(number, errno.errorcode[number])

    def turn(self) -> float | None:
        self.events.clear()
        self.calls.clear()
        return self.commit.turn()


def test_always_syncs_after_every_write() -> None:
    bench = Bench("always")
    for _ in range(5):
        bench.journal.append(b"x")
    assert bench.turn() is None
    assert bench.events == [("written", 5), ("synced", 5)]
    # One group, one call (the simulated disk counts the halves of a write).
    assert bench.calls == ["write", "write", "sync"]
    assert bench.turn() is None
    assert not bench.events
    assert not bench.calls


def test_ten_milliseconds_after_the_oldest_record() -> None:
    bench = Bench("10 ms")
    bench.journal.append(b"x")
    assert bench.turn() == pytest.approx(UNSYNCED_SECONDS)
    assert bench.events == [("written", 1)]
    bench.now += UNSYNCED_SECONDS / 2
    bench.journal.append(b"x")
    assert bench.turn() == pytest.approx(UNSYNCED_SECONDS / 2)
    assert bench.events == [("written", 2)]
    assert "sync" not in bench.calls
    bench.now += UNSYNCED_SECONDS / 2
    assert bench.turn() is None
    assert bench.events == [("synced", 2)]
    bench.journal.append(b"x")
    assert bench.turn() == pytest.approx(UNSYNCED_SECONDS)


def test_off_syncs_full_segments_and_at_the_end() -> None:
    bench = Bench("off")
    bench.journal.append(b"x")
    assert bench.turn() is None
    assert bench.events == [("written", 1)]
    assert "sync" not in bench.calls
    bench.journal.append(bytes(SEGMENT_BYTES - HEADER_BYTES - RECORD_BYTES))
    bench.turn()
    assert bench.events == [("written", 2), ("synced", 1)]
    bench.commit.turn(last=True)
    assert bench.events[-1] == ("synced", 2)


def test_a_full_disk_is_noticed_ahead_and_resumes() -> None:
    bench = Bench("always")
    bench.fails["create"] = errno.ENOSPC
    record = bytes(150)
    for lsn in (1, 2):
        bench.journal.append(record)
        bench.turn()
        assert bench.events == [("written", lsn), ("synced", lsn)]
    # More than half of the segment is used, and the disk has no room for another.
    bench.journal.append(record)
    assert bench.turn() == RETRY_SECONDS
    assert bench.events == [("full", True), ("written", 3), ("synced", 3)]
    assert bench.commit.full is not None
    assert "ENOSPC" in bench.commit.full.reason
    # There is room for two more; the rest waits, and every turn tries again.
    for _ in range(3):
        bench.journal.append(record)
    assert bench.turn() == RETRY_SECONDS
    assert bench.events == [("written", 5), ("synced", 5)]
    assert bench.turn() == RETRY_SECONDS
    assert bench.events == []
    with pytest.raises(JournalFull, match="make room on the disk"):
        bench.commit.turn(last=True)
    del bench.fails["create"]
    assert bench.turn() is None
    assert bench.events == [("full", False), ("written", 6), ("synced", 6)]
    assert [payload for _, payload in bench.journal.read(1)] == [record] * 6


def test_a_full_disk_is_tried_again_while_there_is_room() -> None:
    bench = Bench("always")
    bench.fails["create"] = errno.ENOSPC
    bench.journal.append(bytes(600))
    bench.turn()
    bench.journal.append(b"x")
    bench.turn()
    assert "create" not in bench.calls
    bench.now += RETRY_SECONDS
    bench.turn()
    assert "create" in bench.calls
    bench.now += RETRY_SECONDS
    bench.fails.clear()
    assert bench.turn() is None
    assert bench.events == [("full", False)]


def test_a_write_without_room_is_repeated() -> None:
    """Some file systems have no room in allocated blocks either."""
    bench = Bench("always")
    bench.journal.append(b"one")
    bench.fails["write"] = errno.ENOSPC
    assert bench.turn() == RETRY_SECONDS
    assert bench.events == [("full", True)]
    bench.journal.append(b"two")
    bench.fails.clear()
    assert bench.turn() is None
    assert bench.events == [("full", False), ("written", 2), ("synced", 2)]
    assert list(bench.journal.read(1)) == [(1, b"one"), (2, b"two")]


def test_a_new_segment_without_room_for_its_header_is_repeated() -> None:
    bench = Bench("always")
    bench.journal.append(bytes(600))
    bench.turn()
    bench.journal.append(bytes(600))
    bench.fails["write"] = errno.ENOSPC
    assert bench.turn() == RETRY_SECONDS
    assert bench.events == [("full", True)]
    assert bench.commit.full is not None
    assert "starting disk/00000000000000000002.segment failed (ENOSPC)" in bench.commit.full.reason
    bench.fails.clear()
    assert bench.turn() is None
    assert bench.events == [("full", False), ("written", 2), ("synced", 2)]
    assert [lsn for lsn, _ in bench.journal.read(1)] == [1, 2]


def test_a_new_journal_starts_at_any_number() -> None:
    disk = SimulatedDisk(Random(1))
    journal = Journal.open(disk, first_lsn=1_000)
    assert (journal.first_lsn, journal.next_lsn, journal.written, journal.synced) == (1_000, 1_000, 999, 999)
    assert journal.append(b"x") == 1_000
    journal.write()
    journal.sync()
    journal.close()
    assert list(JournalReader(disk).read(1_000)) == [(1_000, b"x")]
    # Only a new journal takes it.
    journal = Journal.open(disk, first_lsn=7)
    assert (journal.first_lsn, journal.next_lsn) == (1_000, 1_001)
    journal.close()


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_nothing_follows_a_failed_write_or_sync(operation: str) -> None:
    bench = Bench("always")
    bench.journal.append(b"one")
    bench.fails[operation] = errno.EIO
    with pytest.raises(JournalBroken, match=r"ing disk/0+1\.segment .*failed \(EIO\): restart the server"):
        bench.turn()
    assert ("synced", 1) not in bench.events
    bench.fails.clear()
    journal = bench.journal
    for act in (lambda: journal.append(b"two"), journal.write, journal.sync, lambda: journal.trim(2)):
        with pytest.raises(JournalBroken):
            act()
    assert journal.synced == 0


def test_trimming_waits_for_the_thread() -> None:
    bench = Bench("always")
    for _ in range(20):
        bench.journal.append(bytes(200))
    bench.turn()
    assert len(bench.journal.segments) > 3
    bench.commit.trim_before = 10
    bench.turn()
    assert 5 < bench.journal.first_lsn <= 10


def test_statistics() -> None:
    bench = Bench("always")
    for _ in range(3):
        bench.journal.append(bytes(10))
    bench.turn()
    statistics = bench.journal.statistics
    assert (statistics.records, statistics.bytes, statistics.syncs) == (3, 3 * (RECORD_BYTES + 10), 1)
    assert sum(statistics.sync_counts) == 1
    assert statistics.sync_seconds > 0


def test_a_record_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.journal.segments.MOST_PAYLOAD", 100)
    bench = Bench("always")
    with pytest.raises(JournalError, match="a record of 101 bytes is too large: the journal takes up to 100"):
        bench.journal.append(bytes(101))
    assert bench.journal.append(bytes(100)) == 1


# -- the thread --------------------------------------------------------------------------------------------------------


class Watch:
    def __init__(self) -> None:
        self.written, self.synced = 0, 0
        self.failures: list[Exception] = []
        self.full: list[Full | None] = []

    def on_written(self, lsn: int) -> None:
        assert lsn > self.written
        assert threading.current_thread().name == "millrace-journal"
        self.written = lsn

    def on_synced(self, lsn: int) -> None:
        assert self.synced < lsn <= self.written
        self.synced = lsn

    def start(self, journal: Journal, sync: Sync) -> JournalWriter:
        return JournalWriter(
            journal,
            sync=sync,
            on_written=self.on_written,
            on_synced=self.on_synced,
            on_failure=self.failures.append,
            on_full=self.full.append,
        )


@pytest.mark.parametrize("sync", ["always", "10 ms", "off"])
def test_the_thread_writes_everything(tmp_path: Path, sync: Sync) -> None:
    """A reader in between sees records in order, and nothing else."""
    journal = Journal.open(RealDisk(tmp_path), segment_bytes=20_000)
    watch = Watch()
    writer = watch.start(journal, sync)
    random = Random(1)
    payloads = [random.randbytes(random.randrange(200)) for _ in range(3_000)]
    reader, read = JournalReader(RealDisk(tmp_path)), list[bytes]()
    for lsn, payload in enumerate(payloads, 1):
        assert writer.append(payload) == lsn
        if lsn % 100 == 0:
            read += [found for _, found in reader.read(len(read) + 1)]
    if sync == "always":
        wait_until(lambda: watch.synced == len(payloads))
    wait_until(lambda: watch.written == len(payloads))
    writer.close()
    assert watch.synced == len(payloads)
    read += [found for _, found in reader.read(len(read) + 1)]
    assert read == payloads
    assert (watch.failures, watch.full) == ([], [])
    reader.close()
    journal.close()


def test_a_full_disk_resumes_by_itself() -> None:
    disk = SimulatedDisk(Random(1))
    journal = Journal.open(disk, segment_bytes=SEGMENT_BYTES)
    full = True

    def before(operation: str, _name: str) -> None:
        if full and operation == "create":
            raise OSError(errno.ENOSPC, "No space left on device")

    disk.before = before
    watch = Watch()
    writer = watch.start(journal, "always")
    for _ in range(10):
        writer.append(bytes(300))
    wait_until(lambda: writer.full)
    assert writer.full is not None
    assert "No space left on device" in writer.full.reason
    assert watch.synced < 10
    full = False
    wait_until(lambda: watch.synced == 10)
    wait_until(lambda: writer.full is None)
    writer.close()
    assert [state is not None for state in watch.full] == [True, False]


def test_a_failure_is_reported_once() -> None:
    disk = SimulatedDisk(Random(1))
    journal = Journal.open(disk, segment_bytes=SEGMENT_BYTES)

    def before(operation: str, _name: str) -> None:
        if operation == "sync":
            raise OSError(errno.EIO, "Input/output error")

    disk.before = before
    watch = Watch()
    writer = watch.start(journal, "always")
    writer.append(b"one")
    wait_until(lambda: watch.failures)
    with pytest.raises(JournalBroken, match="Input/output error"):
        writer.append(b"two")
    with pytest.raises(JournalBroken):
        writer.close()
    assert (len(watch.failures), watch.written, watch.synced) == (1, 1, 0)


def test_segments_start_small_and_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "FIRST_SEGMENT_BYTES", 300)
    disk, count = SimulatedDisk(Random(1)), 0
    for expected in ([300], [300, 1_200], [300, 1_200, 4_000], [300, 1_200, 4_000, 4_000]):
        journal = Journal.open(disk, segment_bytes=4_000)  # a start continues with the size that it finds
        while len(journal.segments) < len(expected):
            journal.append(bytes(50))
            journal.write()
            count += 1
        journal.sync()
        assert [segment.bytes for segment in journal.segments] == expected
        assert len(list(journal.read(1))) == count
        journal.close()
