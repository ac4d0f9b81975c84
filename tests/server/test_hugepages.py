"""Memory that is in use is put into huge pages, with the same contents; unused memory stays unused."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
from pathlib import Path

import numpy as np
import pytest

from millrace.run import durability
from millrace.run.hugepages import HUGE_BYTES, gather_pages
from millrace.run.memory import resident_bytes
from tests.server.harness import running

PAGES = 8


def region(memory: mmap.mmap) -> tuple[int, int]:
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return begin, begin + len(memory)


@pytest.fixture
def used() -> mmap.mmap:
    """Memory of ordinary pages, filled."""
    memory = mmap.mmap(-1, (PAGES + 1) * HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    np.frombuffer(memory, np.uint8)[:] = 7
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def test_used_memory_is_put_into_huge_pages(used: mmap.mmap) -> None:
    found = gather_pages([region(used)])
    if not found:
        pytest.skip("this system has no huge pages on request")
    assert PAGES <= found <= PAGES + 1
    assert gather_pages([region(used)]) == found
    assert (np.frombuffer(used, np.uint8) == 7).all()


def test_unused_memory_stays_unused() -> None:
    memory = mmap.mmap(-1, (PAGES + 1) * HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    np.frombuffer(memory, np.uint8)[:: HUGE_BYTES // 4] = 7
    memory.madvise(mmap.MADV_HUGEPAGE)
    before = resident_bytes()
    assert gather_pages([region(memory)]) == 0
    assert before is not None
    assert (resident_bytes() or 0) - before < HUGE_BYTES


@pytest.mark.parametrize("grown", [0, durability.GATHER_BYTES])
def test_a_checkpoint_gathers_the_memory_of_a_server_that_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grown: int
) -> None:
    async def play() -> None:
        resident, gathered = [1_000_000], []
        monkeypatch.setattr(durability, "resident_bytes", lambda: resident[0])
        monkeypatch.setattr(durability, "gather_pages", lambda: gathered.append(resident[0]))
        async with running(server={"data_dir": str(tmp_path)}, journal={"follower": "off"}) as daemon:
            await daemon.catalog.execute("CREATE STREAM s (k BIGINT)")
            resident[0] += grown
            await daemon.durability.make()
            assert len(gathered) == (grown > 0)
        assert len(gathered) == (grown > 0)  # the last one need not be quick

    asyncio.run(play())


def test_memory_that_is_gone_is_left_out() -> None:
    assert gather_pages([(1 << 46, (1 << 46) + 4 * HUGE_BYTES)]) == 0
