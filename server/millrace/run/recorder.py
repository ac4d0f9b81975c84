"""Records the engine's steps in the journal, and reports when they are durable.

Rule: the loop records, the journal's thread writes. What a step leads to outside the engine waits until the step is
durable: under `always` until it is synced, otherwise until it is written to its file. On a primary that depends on its
standby, it also waits for the lease, and with `confirm` until the standby has the step on its disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from millrace.engine.digests import Digest
from millrace.journal.disk import Buffer
from millrace.journal.layout import size_of
from millrace.journal.segments import Journal
from millrace.journal.steps import Mark, Start, Step, encode, encode_mark, encode_start
from millrace.journal.writer import Full, JournalWriter, Sync
from millrace.protocol import MillraceError, Refuse
from millrace.standby.lease import PrimaryLease, steady_us

log = structlog.get_logger()

# Bytes of recorded steps that may wait for the disk; with more, no step is taken. Feeds then run out of credit.
WAITING_BYTES: Final = 64 * 2**20


class Recorder:
    """The journal of a server that runs.

    durable   is called on the loop with the newest step that may have effects, and `fail` with the error that ends
              recording
    recorded  the number of the newest recorded step, and `bytes` all that was recorded since the server started
    settled   the newest step that is durable here, and `passed` the newest one that may have effects; each of the
              `watchers` is set when `settled` grows
    """

    def __init__(
        self,
        journal: Journal,
        sync: Sync,
        durable: Callable[[int], None],
        fail: Callable[[Exception], None],
        make_room: Callable[[], int | None],
        lease: PrimaryLease | None = None,
        clock: Callable[[], int] = steady_us,
    ) -> None:
        self.journal = journal
        self.sync = sync
        self.recorded = journal.next_lsn - 1
        self.settled = self.passed = self.recorded
        self.bytes = 0
        self.lease = lease or PrimaryLease()
        self.lease.recovered = self.recorded
        self._clock = clock
        self._durable = durable
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, int]] = deque()
        self._waiting_bytes = 0
        self._full: Full | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._synced = self.recorded
        self._syncing: deque[tuple[int, Callable[[], None]]] = deque()
        self._wanted: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.watchers: set[asyncio.Event] = set()
        self._writer = JournalWriter(
            journal,
            sync=sync,
            on_written=_nothing if sync == "always" else self._call(self._settle),
            on_synced=self._call(self._note_synced),
            on_failure=self._call(self._failed),
            on_full=self._call(self._look_at_full),
            make_room=make_room,
        )

    def _call(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        """The function, to be called from the journal's thread."""

        def call(value: Any) -> None:
            self._loop.call_soon_threadsafe(function, value)

        return call

    # -- recording ---------------------------------------------------------------------------------

    def start(self, version: str, limits: dict[str, int], epochs: Any = None) -> None:
        """A server starts with these limits, after these promotions."""
        self._append(encode_start(Start(version, limits, epochs)))

    def record(self, step: Step) -> int:
        return self._append(encode(step))

    def mark(self, digests: Sequence[Digest], *, checkpoint: bool) -> int:
        """Record what the state is between two steps; the number of the record."""
        return self._append(encode_mark(Mark(digests, checkpoint)))

    def copy(self, record: bytes, time_us: int) -> int:
        """Record what another server has recorded at that time."""
        return self._append(record, time_us)

    def _append(self, record: bytes | list[Buffer], time_us: int | None = None) -> int:
        number = self.recorded = self._writer.append(record, time_us)
        size = size_of(record)
        self.bytes += size
        self._waiting.append((number, size))
        self._waiting_bytes += size
        if self._waiting_bytes > WAITING_BYTES:
            self._room.clear()
        return number

    async def wait_synced(self, number: int) -> None:
        """Wait until the steps up to this one are synced, whatever the mode."""
        if self._synced < number:
            synced = self._loop.create_future()
            self._wanted.append((number, synced))
            self._writer.want_synced(number)
            await synced

    @property
    def syncs(self) -> bool:
        return self.sync != "off"

    @property
    def synced(self) -> bool:
        return self._synced >= self.settled

    def when_synced(self, call: Callable[[], None]) -> None:
        if self.synced:
            call()
        else:
            self._syncing.append((self.settled, call))

    def _note_synced(self, number: int) -> None:
        self._synced = number
        if self.sync == "always":
            self._settle(number)
        while self._syncing and self._syncing[0][0] <= number:
            self._syncing.popleft()[1]()
        for wanted in [one for one in self._wanted if one[0] <= number]:
            self._wanted.remove(wanted)
            if not wanted[1].done():
                wanted[1].set_result(None)

    def _settle(self, number: int) -> None:
        self.settled = number
        for watcher in self.watchers:
            watcher.set()
        self._pass(self.lease.passes(number, self._clock()) if self.lease.matters else number)

    def _pass(self, number: int) -> None:
        """The steps up to this one may have effects."""
        self.passed = max(self.passed, number)
        while self._waiting and self._waiting[0][0] <= self.passed:
            self._waiting_bytes -= self._waiting.popleft()[1]
        self._look_for_room()
        self._durable(self.passed)

    # -- the standby -------------------------------------------------------------------------------

    def ping(self) -> int:
        """The number of a ping that is being sent to the standby."""
        return self.lease.ping(self._clock())

    def heard(self, ping: int, lsn: int) -> None:
        """The standby has answered a ping, and has the records up to `lsn` on its disk."""
        self.lease.heard(ping, lsn, self._clock())
        self.look_at_lease()

    def look_at_lease(self) -> None:
        """More steps may have effects than before."""
        if self.lease.matters:
            self._pass(self.lease.passes(self.settled, self._clock()))

    @property
    def hindered(self) -> bool:
        """Whether nothing will leave before the standby answers again."""
        return self.lease.hinders(self._clock())

    @property
    def awaits_standby(self) -> str | None:
        """Why nothing leaves because of the standby; None: that is not so."""
        now_us = self._clock()
        if not self.lease.hinders(now_us) and (not self.lease.confirm or self.passed >= self.settled):
            return None
        if self.lease.revoked:
            return "another server has taken over"
        since = self.lease.heard_us
        if since is None:
            return "the standby has not answered since the server started"
        if not self.lease.hinders(now_us):
            return f"the standby has the records up to {self.lease.confirmed} of {self.settled}"
        return f"the standby has not answered for {(now_us - since) / 1e6:.1f} s"

    # -- the disk ----------------------------------------------------------------------------------

    @property
    def stalled(self) -> bool:
        return not self._room.is_set()

    async def wait_room(self) -> None:
        await self._room.wait()

    def refuse_changes(self) -> None:
        if self._full is not None:
            raise Refuse(f"the disk of the journal is full ({self._full.reason}): {ROOM}", code="disk_full")
        if self.hindered:
            raise Refuse(f"nothing is changed: {self.awaits_standby}; {CONTACT}", code="standby_silent")

    @property
    def waiting_bytes(self) -> int:
        """Bytes of recorded steps that may have no effects yet."""
        return self._waiting_bytes

    @property
    def full(self) -> Full | None:
        """Since when there is no room for another segment, and why; None: there is room."""
        return self._full

    def _look_at_full(self, full: Full | None) -> None:
        self._full = full
        if full is not None:
            log.error("the journal's disk is full: feeds wait and changes are refused", reason=full.reason)
        else:
            log.info("the journal's disk has room again: feeds continue")
        self._look_for_room()

    def _look_for_room(self) -> None:
        if self._full is None and self._waiting_bytes <= WAITING_BYTES // 2:
            self._room.set()
        elif self._full is not None:
            self._room.clear()

    def _failed(self, error: Exception) -> None:
        text = "the journal cannot be written: the server stops, and its next start reads what is on the disk"
        log.error(text, reason=error.text if isinstance(error, MillraceError) else repr(error))
        self._fail(error)

    def trim(self, before: int) -> None:
        """Let the records before this number go."""
        self._writer.trim(before)

    def problems(self) -> list[str]:
        """For the server's health."""
        found = [] if self._full is None else [f"the journal's disk is full ({self._full.reason}): {ROOM}"]
        if self.hindered:
            found.append(f"nothing leaves the server: {self.awaits_standby}; {CONTACT}")
        return found

    async def end(self) -> None:
        """Write and sync the rest. The journal stays open for another recorder."""
        await self._loop.run_in_executor(None, self._writer.close)

    async def close(self) -> None:
        """The same, and close the journal."""
        try:
            await self.end()
        finally:
            self.journal.close()


ROOM: Final = "make room in the data directory, and the server continues by itself"
ALONE: Final = "if there is no standby any more, `millrace promote --alone` lets the server work without one"
CONTACT: Final = f"the server continues by itself when the standby answers; {ALONE}"


def _nothing(_: int) -> None:
    """The step is durable in another sense than this mode waits for."""
