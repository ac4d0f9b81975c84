"""An engine that follows a server's journal: it takes each step again as soon as its record can be read.

Rule: a follower changes nothing on the disk but the state of a checkpoint that the server has asked for by a mark, and
saves no state that has differed from the server's. It waits for nothing: its process does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from millrace.engine.engine import Engine
from millrace.journal.checkpoints import Checkpoints
from millrace.journal.disk import JOURNAL_FOLDER, Disk, RealDisk
from millrace.journal.reader import JournalReader
from millrace.journal.replay import Differs, Replay, Untimed
from millrace.journal.steps import Mark
from millrace.protocol import MillraceError
from millrace.values.functions.tape import Tape, played

# Records that are taken before the follower reports how far it is: some milliseconds of work.
RECORDS: Final = 512


class FollowerError(MillraceError):
    """The journal cannot be followed."""

    code = "follower"


class Advance(NamedTuple):
    """Records that were taken at once. `asked`: the last one is a mark where the state is to be saved."""

    records: int
    asked: bool


class Follower:
    """Follows the journal of a data directory from its newest checkpoint on; `lsn` is the newest record taken."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._checkpoints = Checkpoints(folder)
        complete = self._checkpoints.complete()
        if not complete:
            raise FollowerError(f"{self._checkpoints.folder} has no checkpoint: start the server, which makes one")
        checkpoint = self._checkpoints.read(complete[-1])
        self.lsn = checkpoint.lsn
        self.engine = Engine(share=True, stopwatch=Untimed())
        try:
            with played(Tape({})):  # a function that has gone may be needed by recorded steps alone
                self.engine.become(checkpoint.state)
        except Exception as error:
            raise FollowerError(f"the checkpoint after step {self.lsn} cannot be restored: {_reason(error)}") from error
        self._replay = Replay(self.engine)
        self._reader = JournalReader(disk or RealDisk(folder / JOURNAL_FOLDER), server_id=checkpoint.control["server"])
        self._records: Iterator[tuple[int, bytes]] | None = None

    @property
    def difference(self) -> Differs | None:
        """Where the state first differed from the server's: nothing is to be saved from then on."""
        return self._replay.difference

    def advance(self, most: int = RECORDS) -> Advance:
        """Take up to so many records, as far as the journal is written. Ends early at a mark that asks for the state,
        and at a difference."""
        taken = 0
        while taken < most and self.difference is None:
            if self._records is None:
                self._records = self._reader.read(self.lsn + 1)
            record = next(self._records, None)
            if record is None:
                self._records = None
                break
            taken += 1
            if self._take(*record) and self.difference is None:
                return Advance(taken, True)
        return Advance(taken, False)

    def _take(self, lsn: int, record: bytes) -> bool:
        """Take a record; whether it asks for the state."""
        try:
            found = self._replay.take(lsn, record)
        except Exception as error:
            raise FollowerError(f"record {lsn} of the journal cannot be taken again: {_reason(error)}") from error
        self.lsn = lsn
        return isinstance(found, Mark) and found.checkpoint

    def save(self) -> None:
        """Write the state after the newest record, for a checkpoint that the server completes."""
        self._checkpoints.write_state(self.lsn, self.engine.save_apart)

    def close(self) -> None:
        self._reader.close()


def _reason(error: Exception) -> str:
    return error.text if isinstance(error, MillraceError) else repr(error)
