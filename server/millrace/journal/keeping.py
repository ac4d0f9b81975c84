"""Which checkpoints stay, and from where on the journal must: for starts, and for questions about the past.

Rule: of every checkpoint that stays, all later records stay too. A start needs the newest two, because one alone could
be damaged. The past is all before them. It is bounded by `[journal] keep`, begins with the newest checkpoint that is
not later than its bounds allow, and goes first when the disk is full, the oldest part first.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import structlog

from millrace.journal.checkpoints import CheckpointError, CheckpointRefused, Checkpoints
from millrace.journal.segments import Segment
from millrace.protocol.timestamps import format_timestamp
from millrace.values.retention import Keep

log = structlog.get_logger()

# Complete checkpoints that a start needs.
NEEDED: Final = 2
# Checkpoints inside the past make its replay shorter. One stays per so large a part of its time.
PARTS: Final = 8


class Saved(NamedTuple):
    """A complete checkpoint: the number of its last step, when it was made, and the bytes of its files, without those
    that it shares with earlier ones."""

    lsn: int
    at_us: int
    bytes: int


def staying(saved: Sequence[Saved], segments: Sequence[Segment], keep: Keep, now_us: int) -> list[Saved]:
    """The checkpoints that stay, of all complete ones, oldest first."""
    first_lsn = segments[0].first_lsn
    past = [one for one in saved[:-NEEDED] if one.lsn + 1 >= first_lsn]
    needed = list(saved[-NEEDED:])
    if keep.age_us is not None:
        while past and (past[1] if len(past) > 1 else needed[0]).at_us <= now_us - keep.age_us:
            past.pop(0)
    past = _thinned(past, segments, keep)
    if keep.bytes is not None:
        while past and past_bytes([*past, *needed], segments) > keep.bytes:
            past.pop(0)
    return past + needed


def _thinned(past: Sequence[Saved], segments: Sequence[Segment], keep: Keep) -> list[Saved]:
    """A checkpoint after the first of the past stays if it is smaller than the records that it saves a replay, or if
    much of the time has passed since the one before it."""
    found = list(past[:1])
    for one in past[1:]:
        before = found[-1]
        spares = bytes_between(before.lsn, one.lsn, segments) >= one.bytes
        if spares or (keep.age_us is not None and one.at_us - before.at_us >= keep.age_us // PARTS):
            found.append(one)
    return found


def bytes_between(first: int, last: int, segments: Sequence[Segment]) -> int:
    """About how many bytes the records after one and up to another take: records of a segment count alike."""
    total = 0
    for at, segment in enumerate(segments):
        end = segments[at + 1].first_lsn if at + 1 < len(segments) else max(last + 1, segment.first_lsn + 1)
        inside = min(last + 1, end) - max(first + 1, segment.first_lsn)
        total += segment.bytes * max(inside, 0) // (end - segment.first_lsn)
    return total


def past_bytes(saved: Sequence[Saved], segments: Sequence[Segment]) -> int:
    """The bytes on disk that are there for the past alone: checkpoints, and segments that a start does not need."""
    if not saved:
        return 0
    needed = saved[-NEEDED:][0].lsn + 1
    alone = [one.bytes for one, after in pairwise(segments) if after.first_lsn <= needed]
    return sum(alone) + sum(one.bytes for one in saved[:-NEEDED])


class Keeping:
    """The complete checkpoints of a server that runs. It may be called from several threads.

    dropped_bytes   of the past, because the disk was full
    """

    def __init__(self, checkpoints: Checkpoints, keep: Keep) -> None:
        self.dropped_bytes = 0
        self._checkpoints = checkpoints
        self._keep = keep
        self._saved: list[Saved] = []
        self._lock = threading.Lock()

    def load(self) -> None:
        """Find those that are there. One that a start could not read goes as soon as there is another one."""
        for lsn in self._checkpoints.complete():
            if lsn in self._checkpoints.damaged:
                continue
            try:
                self.add(lsn, self._checkpoints.control(lsn)["at_us"])
            except CheckpointRefused:
                raise
            except CheckpointError:
                continue  # a start has found it damaged, too

    def add(self, lsn: int, at_us: int) -> None:
        """A checkpoint is complete."""
        with self._lock:
            self._saved.append(Saved(lsn, at_us, self._checkpoints.written_bytes(lsn)))

    @property
    def saved(self) -> Sequence[Saved]:
        """Oldest first."""
        return tuple(self._saved)

    @property
    def has_past(self) -> bool:
        return len(self._saved) > NEEDED

    def tidy(self, segments: Sequence[Segment], now_us: int) -> int:
        """Remove what need not stay; the LSN before which records may go."""
        with self._lock:
            self._saved = staying(self._saved, segments, self._keep, now_us)
            lsns = {one.lsn for one in self._saved}
            for lsn in self._checkpoints.complete():
                if lsn not in lsns:
                    self._checkpoints.forget(lsn)
            return self._from()

    def make_room(self, segments: Sequence[Segment]) -> int | None:
        """Remove the oldest of the past, because the disk is full; the LSN before which records may go. None: there is
        no past."""
        with self._lock:
            if not self.has_past:
                return None
            before = past_bytes(self._saved, segments)
            try:
                self._checkpoints.forget(self._saved[0].lsn)
            except OSError as error:
                log.error("the past cannot be removed", reason=error.strerror or str(error))
                return None
            self._saved.pop(0)
            left = [one for at, one in enumerate(segments) if not _goes(at, segments, self._from())]
            dropped = before - past_bytes(self._saved, left)
            self.dropped_bytes += dropped
            since = format_timestamp(self._saved[0].at_us)
            log.warning("the disk fills: the oldest of the past was removed", bytes=dropped, now_from=since)
            return self._from()

    def _from(self) -> int:
        return self._saved[0].lsn + 1


def _goes(at: int, segments: Sequence[Segment], before_lsn: int) -> bool:
    """Whether trimming removes a segment."""
    return at + 1 < len(segments) and segments[at + 1].first_lsn <= before_lsn
