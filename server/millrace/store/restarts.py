"""What a start says about the server before it: whether it was killed, and what of that was recovered; and about
queries of a data directory without a journal, which an earlier version left: their state is lost.

Rule: a server leaves a marker in its data folder for as long as it runs, and a clean end removes it. A marker that a
start finds was left by a server that was killed, if it is the very file that the server wrote: a copy of a folder has
other inodes. Only a server that has the catalog's lock reads or writes the marker.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from millrace.engine.queries import Query
from millrace.protocol.admin.server import UncleanEndView
from millrace.protocol.timestamps import format_timestamp
from millrace.protocol.words import counted

log = structlog.get_logger()

MARKER: Final = "running.json"


@dataclass(frozen=True, slots=True)
class UncleanEnd:
    """The last server in the folder started at `started_us` and was last known to run at `seen_us`. `replayed` steps
    of the journal led from its last checkpoint to its end; None: it had no journal."""

    started_us: int
    seen_us: int
    pid: int
    open_files: tuple[str, ...] = ()
    found_us: int = 0  # when the next server started
    replayed: int | None = None

    @property
    def text(self) -> str:
        """The event, and what was recovered or may be lost."""
        files = f" These files were not finished: {', '.join(self.open_files)}." if self.open_files else ""
        since, seen = map(format_timestamp, (self.started_us, self.seen_us))
        event = f"The previous server (process {self.pid}) was killed or crashed at or after {seen}. "
        if self.replayed is not None:
            return (
                f"{event}Its state was recovered: {counted(self.replayed, 'step')} replayed after the last checkpoint."
            )
        return (
            f"{event}"
            f"Tuples that it acknowledged since {since} may be lost: those that were queued, the operator state that "
            f"they had built, and rows that sinks and history had not written.{files}"
        )

    def view(self) -> UncleanEndView:
        return UncleanEndView(
            started_us=self.started_us,
            seen_us=self.seen_us,
            pid=self.pid,
            open_files=list(self.open_files),
            found_us=self.found_us,
            replayed=self.replayed,
            text=self.text,
        )


class Marker:
    """The marker of one data folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / MARKER

    def read(self, now_us: int, open_files: Sequence[Path] = ()) -> UncleanEnd | None:
        """The marker of the last server, if it ended without removing it."""
        try:
            status = self._path.stat()
            found = json.loads(self._path.read_text(encoding="utf-8"))
            if found["inode"] != status.st_ino:
                return None
            seen_us = max(status.st_mtime_ns // 1_000, found["started_us"])
            files = tuple(map(str, open_files))
            return UncleanEnd(found["started_us"], seen_us, found["pid"], files, now_us)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the marker of the previous server cannot be read", path=str(self._path), reason=str(error))
            return None

    def write(self, now_us: int) -> None:
        """This server runs."""
        self._path.unlink(missing_ok=True)
        with self._path.open("x", encoding="utf-8") as file:
            inode = os.fstat(file.fileno()).st_ino
            json.dump({"pid": os.getpid(), "started_us": now_us, "inode": inode}, file)
            file.flush()
            os.fsync(file.fileno())

    def touch(self) -> None:
        """This server still runs."""
        with suppress(OSError):  # if an admin removed it, the next start has nothing to report
            os.utime(self._path)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def lost_state(query: Query) -> str | None:
    """The consequence of an empty state for a query; None if it has no state to lose."""
    return "; ".join(dict.fromkeys(lost for node in query.plan.nodes if (lost := node.spec.state().lost))) or None
