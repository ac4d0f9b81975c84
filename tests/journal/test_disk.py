"""The real disk does what the simulated one pretends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.journal import disk
from millrace.journal.disk import Disk, RealDisk
from millrace.journal.errors import JournalFull, JournalLocked
from millrace.journal.reader import JournalReader
from millrace.journal.segments import Journal
from tests.depth import examples
from tests.journal.simdisk import SimulatedDisk

SIZES = st.sampled_from([0, 1, 30, 200, 900, 5_000])
STEPS = st.lists(st.sampled_from(["write", "sync", "open", "trim"]) | SIZES, max_size=40)


@given(STEPS, st.randoms(use_true_random=False))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_disks_have_the_same_journal(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[str | int], random: Random
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    simulated = SimulatedDisk(Random(1))
    play(RealDisk(folder), steps, Random(7))
    play(simulated, steps, Random(7))
    names = set(os.listdir(folder)) - {"lock"}
    assert {name: (folder / name).read_bytes() for name in names} == simulated.contents()


def play(disk: Disk, steps: Sequence[str | int], random: Random) -> None:
    def opened() -> Journal:
        return Journal.open(disk, segment_bytes=1_000, server_id=b"s" * 16, now_us=lambda: 1)

    journal, payloads = opened(), list[bytes]()
    for step in steps:
        match step:
            case "write":
                journal.write()
            case "sync":
                journal.write()
                journal.sync()
            case "trim":
                journal.trim(random.randrange(1, len(payloads) + 2))
            case "open":
                journal.write()
                journal.sync()
                journal.close()
                journal = opened()
                assert journal.torn is None
                assert journal.next_lsn == len(payloads) + 1
            case int(size):
                payloads.append(random.randbytes(size))
                journal.append([payloads[-1][:10], memoryview(payloads[-1])[10:]])
    journal.write()
    journal.sync()
    first = journal.first_lsn
    assert [payload for _, payload in journal.read(first)] == payloads[first - 1 :]
    journal.close()


def test_many_records_in_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More buffers than a system call takes, and a system that writes less than it should."""
    vectors, plain = os.pwritev, os.pwrite
    monkeypatch.setattr(
        os, "pwritev", lambda handle, buffers, offset: vectors(handle, buffers[: len(buffers) // 2 + 1], offset)
    )
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: plain(handle, data[: len(data) // 2 + 1], offset))
    journal = Journal.open(RealDisk(tmp_path))
    payloads = [str(number).encode() for number in range(3_000)]
    for payload in payloads:
        journal.append(payload)
    journal.write()
    assert [payload for _, payload in journal.read(1)] == payloads
    journal.close()


def test_a_group_is_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, calls = os.pwritev, list[int]()

    def count(handle: int, buffers: Sequence[bytes], offset: int) -> int:
        calls.append(len(buffers))
        return vectors(handle, buffers, offset)

    journal = Journal.open(RealDisk(tmp_path))
    monkeypatch.setattr(os, "pwritev", count)
    for _ in range(100):
        journal.append(b"x")
    journal.write()
    assert calls == [200]
    journal.close()


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.open(RealDisk(tmp_path), segment_bytes=1_000)
    names = sorted(os.listdir(tmp_path))

    def refuse(_handle: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        for _ in range(5):
            journal.append(bytes(300))
        with pytest.raises(JournalFull, match="failed \\(No space left on device\\): make room on the disk"):
            journal.write()
        assert sorted(os.listdir(tmp_path)) == names
    assert journal.write() == 5
    journal.close()


def test_blocks_are_allocated(tmp_path: Path) -> None:
    journal = Journal.open(RealDisk(tmp_path), segment_bytes=2**20)
    (name,) = (name for name in os.listdir(tmp_path) if name != "lock")
    status = (tmp_path / name).stat()
    assert status.st_size == journal.bytes == 2**20
    assert status.st_blocks * 512 >= 2**20
    journal.close()


def test_two_writers_never_share_a_journal(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "journal"
    journal = Journal.open(RealDisk(folder))
    with pytest.raises(JournalLocked, match="in use by another server"):
        Journal.open(RealDisk(folder))
    assert JournalReader(RealDisk(folder)).check().records == 0
    journal.close()
    Journal.open(RealDisk(folder)).close()


WRITER = """
import sys
from pathlib import Path
from millrace.journal.disk import RealDisk
from millrace.journal.segments import Journal
from millrace.journal.writer import JournalWriter
journal = Journal.open(RealDisk(Path(sys.argv[1])), segment_bytes=30_000)
def synced(lsn):
    sys.stdout.write(f"{lsn}\\n")
    sys.stdout.flush()
writer = JournalWriter(journal, sync="always", on_written=lambda lsn: None, on_synced=synced, on_failure=print)
while True:
    lsn = journal.next_lsn
    assert writer.append(str(lsn).encode() * 20) == lsn
    while lsn > journal.synced + 500:
        pass
"""


def test_a_killed_writer_loses_nothing_it_reported(tmp_path: Path) -> None:
    promised = 0
    for kill in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(5 + 10 * kill):
                promised = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            promised = max([promised, *(int(line) for line in process.stdout if line.endswith("\n"))])
        reader = JournalReader(RealDisk(tmp_path))
        for lsn, payload in reader.read(1):
            assert payload == str(lsn).encode() * 20
        assert reader.next_lsn > promised
        reader.close()


@pytest.mark.parametrize("refuses", [None, "open", "write", "half"])
def test_large_writes_change_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str | None) -> None:
    """Random writes to a file, and to an array; file systems without direct writes, and such as write half of it."""
    monkeypatch.setattr(disk, "_LARGE", 5_000)
    monkeypatch.setattr(disk, "_DIRECT_BYTES", 2 * 4_096)
    opens, write = os.open, os.pwrite

    def refuse_open(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return opens(path, flags, mode)

    def refuse_blocks(handle: int, data: bytes | memoryview, offset: int) -> int:
        if isinstance(data, memoryview) and refuses == "write":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return write(handle, data[: 4_096 if isinstance(data, memoryview) and refuses == "half" else None], offset)

    if refuses == "open":
        monkeypatch.setattr(os, "open", refuse_open)
    monkeypatch.setattr(os, "pwrite", refuse_blocks)
    random, size = Random(3), 100_001
    expected = bytearray(size)
    for turn in range(2):
        real = RealDisk(tmp_path)
        file = real.open("x", write=True) if turn else real.create("x", size)
        for _ in range(60):
            offset = random.choice([0, 4_096, random.randrange(size)])
            data = random.randbytes(min(random.choice([1, 96, 4_999, 5_000, 8_192, 12_288, 50_000]), size - offset))
            cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(4)))
            file.write_at(offset, [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)])
            expected[offset : offset + len(data)] = data
            assert file.read_at(0, size) == expected
        file.sync()
        file.close()
    assert (tmp_path / "x").read_bytes() == expected
