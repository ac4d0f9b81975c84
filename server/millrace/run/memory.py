"""How much memory the server uses, and how much is left for it: by the machine, and by its cgroup's limit."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def resident_bytes(root: Path = Path("/")) -> int | None:
    """What the process has in memory; None: the system does not say."""
    try:
        pages = int((root / "proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def available_bytes(root: Path = Path("/")) -> int | None:
    """What is left without swapping; None: the system does not say."""
    found = [left for left in (_of_machine(root), _of_cgroup(root)) if left is not None]
    return min(found, default=None)


def _of_machine(root: Path) -> int | None:
    with suppress(OSError, ValueError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _of_cgroup(root: Path) -> int | None:
    """By the nearest limit of cgroups (version 2). Cached files count as available."""
    with suppress(OSError, ValueError, IndexError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        own = next(line.split(":", 2)[2] for line in lines if line.startswith("0::"))
        top = root / "sys/fs/cgroup"
        folder = top / own.lstrip("/")
        left = []
        for one in (folder, *folder.parents):
            if one == top.parent:
                break
            limit = _number(one / "memory.max")
            used = _number(one / "memory.current")
            if limit is not None and used is not None:
                left.append(max(limit - used + _cached(one), 0))
        return min(left, default=None)
    return None


def _number(path: Path) -> int | None:
    """None: the file says `max`, or does not exist."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _cached(folder: Path) -> int:
    with suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                return int(line.split()[1])
    return 0
