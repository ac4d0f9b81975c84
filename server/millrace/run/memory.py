"""How much memory processes use, and how much the machine or a cgroup lets the server have."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

# Version 1 of cgroups writes "no limit" as a number that no machine reaches.
NO_LIMIT: Final = 2**60


def resident_bytes(pid: int | None = None, root: Path = Path("/")) -> int | None:
    """What this process, or another one, has in memory; None: the system does not say, or the process is gone."""
    try:
        pages = int((root / f"proc/{pid or 'self'}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def limit_bytes(root: Path = Path("/")) -> int | None:
    """What all processes here may have together: the machine's memory, or the least limit of the process's cgroups.
    None: the system does not say."""
    found = [limit for limit in (_of_machine(root), *_of_cgroups(root)) if limit is not None]
    return min(found, default=None)


def _of_machine(root: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    return None


def _of_cgroups(root: Path) -> list[int]:
    """The limits of the process's cgroup and of those that contain it, in versions 2 and 1. In a container the path may
    be the host's, of which only the top is visible."""
    top = root / "sys/fs/cgroup"
    found: list[int] = []
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            if not controllers:
                found += _limits(top, path, "memory.max")
            elif "memory" in controllers.split(","):
                found += _limits(top / "memory", path, "memory.limit_in_bytes")
    return found


def _limits(top: Path, path: str, name: str) -> list[int]:
    folder = top / path.lstrip("/")
    within = [one for one in (folder, *folder.parents) if one == top or top in one.parents]
    limits = [_number(one / name) for one in within]
    return [limit for limit in limits if limit is not None and limit < NO_LIMIT]


def _number(path: Path) -> int | None:
    """None: the file says `max`, or does not exist."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None
