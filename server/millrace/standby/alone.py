"""What lets a server work without the standby that its settings want: a file in its data directory.

Rule: while the file is there, no standby has heard a ping of this server, so none can take over by the lease. It is
there from the start of a new server, from a promotion, or because an operator has said so (`millrace promote --alone`).
It goes, durably, before the first ping is sent. No copy of the directory has it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from millrace.formats.durable import sync_folder, write_whole

ALONE: Final = "alone.json"


def note_alone(folder: Path) -> None:
    """Have later starts of this data directory wait for no standby."""
    write_whole(folder / ALONE, b"{}\n")


def is_alone(folder: Path) -> bool:
    return (folder / ALONE).exists()


def forget_alone(folder: Path) -> None:
    """A standby is about to hear this server."""
    (folder / ALONE).unlink(missing_ok=True)
    sync_folder(folder)
