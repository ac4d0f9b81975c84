"""A thread that writes the journal and syncs it, for all records that have been appended meanwhile (group commit).

`GroupCommit` has the rule, without a thread; `JournalWriter` is the thread. Callbacks are called in the thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from millrace.journal.disk import Buffer
from millrace.journal.errors import JournalFull
from millrace.journal.segments import Journal, Statistics

Sync = Literal["always", "10 ms", "off"]

# `10 ms`: how long a written record waits for its sync.
UNSYNCED_SECONDS: Final = 0.010
# How often a full disk is tried again.
RETRY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Full:
    """The disk has no room for the next segment. `since_us` is in microseconds since the epoch."""

    since_us: int
    reason: str


def _ignore_full(full: Full | None) -> None:
    """For callers that read `full` instead."""


def _no_room() -> int | None:
    """For callers that hold nothing that they could do without."""
    return None


class GroupCommit:
    """Decides when the journal is written and synced.

    `always`   after every write
    `10 ms`    at most 10 ms after the oldest record that is written and not synced
    `off`      when a segment is full, and at the end

    While the disk is full, `make_room` returns the LSN before which records may go; None: all of them are needed.
    """

    def __init__(
        self,
        journal: Journal,
        sync: Sync,
        on_written: Callable[[int], None],
        on_synced: Callable[[int], None],
        on_full: Callable[[Full | None], None] = _ignore_full,
        clock: Callable[[], float] = time.monotonic,
        make_room: Callable[[], int | None] = _no_room,
    ) -> None:
        self.journal = journal
        self.sync = sync
        self.full: Full | None = None
        # Segments with records before this LSN only may be removed.
        self.trim_before = 0
        # Records up to this LSN are to be synced whatever the mode.
        self.wanted = 0
        self._on_written, self._on_synced, self._on_full = on_written, on_synced, on_full
        self._clock, self._make_room = clock, make_room
        self._written, self._synced = journal.written, journal.synced
        self._oldest_unsynced: float | None = None

    def turn(self, *, last: bool = False) -> float | None:
        """Write and sync what is due; `last`: everything. Returns the seconds until a sync or another try is due."""
        journal = self.journal
        stuck = self._write()
        while journal.full is not None and (before := self._make_room()) is not None:
            journal.trim(before)
            stuck = self._write()
        self._say_full()
        if journal.written > self._written:
            self._written = journal.written
            self._on_written(self._written)
            if self._oldest_unsynced is None:
                self._oldest_unsynced = self._clock()
        if last or self._due():
            journal.sync()
        if journal.synced > self._synced:  # a full segment is synced too
            self._synced = journal.synced
            self._on_synced(self._synced)
        if self._synced == self._written:
            self._oldest_unsynced = None
        if self.trim_before > journal.first_lsn:
            journal.trim(self.trim_before)
        if last and stuck is not None:
            raise stuck
        return self._wait()

    def _write(self) -> JournalFull | None:
        """Write what can be written; the error if that is not everything."""
        try:
            self.journal.write()
        except JournalFull as error:
            return error
        return None

    def _due(self) -> bool:
        if self._synced < self.wanted:
            return True
        if self.sync == "10 ms" and self._oldest_unsynced is not None:
            return self._clock() >= self._oldest_unsynced + UNSYNCED_SECONDS
        return self.sync == "always"

    def _wait(self) -> float | None:
        wait = RETRY_SECONDS if self.full is not None else None
        if self.sync == "10 ms" and self._oldest_unsynced is not None:
            left = max(0.0, self._oldest_unsynced + UNSYNCED_SECONDS - self._clock())
            wait = left if wait is None else min(wait, left)
        return wait

    def _say_full(self) -> None:
        reason = self.journal.full
        if reason is None and self.full is not None:
            self.full = None
            self._on_full(None)
        elif reason is not None and self.full is None:
            self.full = Full(time.time_ns() // 1_000, reason)
            self._on_full(self.full)


class JournalWriter:
    """Appends from an event loop; a thread writes and syncs.

    `on_written` and `on_synced` get the newest LSN that is written or durable. `on_failure` gets the error after which
    nothing more is written. `on_full` gets the state of a full disk, and None when there is room again. Records that
    do not fit wait in memory: stop appending while the disk is full. `make_room` is tried before that.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        sync: Sync,
        on_written: Callable[[int], None],
        on_synced: Callable[[int], None],
        on_failure: Callable[[Exception], None],
        on_full: Callable[[Full | None], None] = _ignore_full,
        make_room: Callable[[], int | None] = _no_room,
    ) -> None:
        self.journal = journal
        self._commit = GroupCommit(journal, sync, on_written, on_synced, on_full, make_room=make_room)
        self._on_failure = on_failure
        self._wake = threading.Event()
        self._closing = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="millrace-journal", daemon=True)
        self._thread.start()

    @property
    def full(self) -> Full | None:
        return self._commit.full

    @property
    def statistics(self) -> Statistics:
        return self.journal.statistics

    def append(self, payload: Buffer | list[Buffer], time_us: int | None = None) -> int:
        """Buffer a record, and return its LSN. Its bytes must not change until it is written. `time_us`: as in
        `Journal.append`."""
        lsn = self.journal.append(payload, time_us)
        if not self._wake.is_set():
            self._wake.set()
        return lsn

    def want_synced(self, lsn: int) -> None:
        """Have the records up to this LSN synced soon, also under `off`."""
        self._commit.wanted = lsn
        self._wake.set()

    def trim(self, before_lsn: int) -> None:
        """Let the thread remove segments with records before this LSN only."""
        self._commit.trim_before = before_lsn
        self._wake.set()

    def close(self) -> None:
        """Write and sync the rest, and end the thread. Raises if that failed: then records are lost."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            wait: float | None = None
            while not self._closing:
                self._wake.wait(wait)
                self._wake.clear()
                wait = self._commit.turn()
            self._commit.turn(last=True)
        except Exception as error:
            self._failure = error
            self._on_failure(error)
