"""Huge pages, so that a fork copies few entries of page tables.

A fork copies an entry for each page of the process, and the loop waits for that. A huge page has one entry for 2 MiB
instead of 512. numpy requests huge pages for arrays of 4 MiB or more, which cuts the heap into regions that have them
and small ones that have none. A huge page that is changed while a child process has a copy falls apart. Here the heap
becomes one region, and the system is requested to put pages together again.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HUGE_BYTES: Final = 2**21
# A part of a huge page that was never used takes memory from then on, so it must be small.
LEAST_SHARE: Final = 0.875
# Linux 6.1: put these pages together now, whatever `/sys/kernel/mm/transparent_hugepage` says.
_MADV_COLLAPSE: Final = 25
_MADV_HUGEPAGE: Final = 14
# Private memory without a file. Only the heap has a name.
_ANONYMOUS: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p 0+ 00:00 0\s+(\[heap\])?")

Region = tuple[int, int]


def gather_pages(regions: list[Region] | None = None) -> int:
    """Put the memory of this process into huge pages, where it is nearly all in use; how many there are then. It takes
    half a millisecond for each that is new, and any thread may do it. An older system refuses, and nothing changes."""
    if sys.platform != "linux":
        return 0
    c = ctypes.CDLL(None)
    c.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    c.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    pages = HUGE_BYTES // mmap.PAGESIZE
    there = ctypes.create_string_buffer(pages)
    found = 0
    if regions is None:
        heap = [region for region, in_heap in _anonymous() if in_heap]
        if heap:
            c.madvise(heap[0][0], heap[-1][1] - heap[0][0], _MADV_HUGEPAGE)
        regions = [region for region, _ in _anonymous()]
    for begin, end in regions:
        for at in range(-(-begin // HUGE_BYTES) * HUGE_BYTES, end - HUGE_BYTES + 1, HUGE_BYTES):
            if c.mincore(at, HUGE_BYTES, there) != 0 or pages - there.raw.count(0) < LEAST_SHARE * pages:
                continue
            found += c.madvise(at, HUGE_BYTES, _MADV_COLLAPSE) == 0
    return found


def _anonymous() -> Iterator[tuple[Region, bool]]:
    """The memory that is no file's, and whether it is of the heap. It may change meanwhile: what is gone is refused."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        if (match := _ANONYMOUS.fullmatch(line)) is not None:
            yield (int(match[1], 16), int(match[2], 16)), match[3] is not None
