"""The journal and the checkpoints of a server with a data directory.

Rule: a server records steps only after a complete checkpoint exists. So a journal with records and without a checkpoint
has lost one, and is not started over.

A checkpoint is made between two steps. A follower of the journal saves the engine when it reads the mark of the
checkpoint; the server itself waits while it collects its control state alone. Without a follower, a child process saves
the engine: it has a copy of the server's memory, and the server waits for the copying of its page tables, too. They are
small, because the memory is put into huge pages before. Each writes only what has changed since an earlier checkpoint.
The checkpoint becomes complete when all rows that the steps before it have led to are durable outside the journal.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from millrace.engine.events import Archived, Late
from millrace.engine.saving import LIMITS
from millrace.journal.checkpoints import Checkpoint, CheckpointError, CheckpointRefused, Checkpoints
from millrace.journal.disk import JOURNAL_FOLDER, RealDisk
from millrace.journal.keeping import Keeping, past_bytes
from millrace.journal.layout import segment_lsns
from millrace.journal.reader import JournalReader, open_segment
from millrace.journal.segments import Journal, Statistics
from millrace.journal.steps import FORM
from millrace.observe.metrics import version
from millrace.protocol import MillraceError, Refuse
from millrace.protocol.admin.server import CheckpointView, JournalFullView, JournalView, PastView, RecoveryView
from millrace.protocol.timestamps import format_timestamp
from millrace.run.control import as_data
from millrace.run.followerprocess import FollowerGone
from millrace.run.following import Following
from millrace.run.hugepages import gather_pages
from millrace.run.marks import Marks
from millrace.run.memory import resident_bytes
from millrace.run.recorder import ALONE, Recorder
from millrace.run.recovery import Recovery, RecoveryError, RecoveryStopped
from millrace.run.shortage import Stage
from millrace.standby.alone import forget_alone, is_alone, note_alone
from millrace.standby.epoch import Epoch, Epochs, Fence
from millrace.standby.lease import PrimaryLease
from millrace.standby.superseded import check_superseded, write_superseded
from millrace.values.retention import parse_keep

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

log = structlog.get_logger()

# How often it is looked whether a checkpoint is due.
LOOK_SECONDS: Final = 1.0
# How often the journal gets digests of the state, if steps were recorded meanwhile.
MARK_SECONDS: Final = 10.0
# While memory is short, a checkpoint waits until there is this much more journal than it is due for.
SHORT_FACTOR: Final = 4
# A checkpoint that could not be made is tried again after this time.
RETRY_SECONDS: Final = 60.0
# Memory in use since the start from which it is put into huge pages before a fork: less takes a fork 2 ms.
GATHER_BYTES: Final = 64 * 2**20
# How long the end waits for the last checkpoint: one of 3 GB on a disk with 100 MB/s.
LAST_SECONDS: Final = 30.0
RESTORE: Final = "restore the data directory from a backup"


class Durability:
    """What survives of one server.

    recovery     the recovery of this start; None: there was nothing to recover
    checkpoint   the last step of the newest complete checkpoint, made at `checkpoint_us`
    pause        for how long the newest checkpoint kept the loop waiting, in seconds
    took         how long it took to make, in seconds
    size         its bytes, and `written` those that it does not share with earlier ones
    made         checkpoints since the start, `followed` those by the follower, `failures` those that could not be made
    error        why the newest checkpoint could not be made
    following    the follower, if there is one
    """

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.recorder: Recorder | None = None
        self.recovery: Recovery | None = None
        self.checkpoint: int | None = None
        self.checkpoint_us: int | None = None
        self.pause = self.took = 0.0
        self.size = self.written = self.made = self.followed = self.failures = 0
        self.error: str | None = None
        self._daemon = daemon
        self._folder = folder
        self._settings = daemon.settings.journal
        self._checkpoints = Checkpoints(folder)
        self._keeping = Keeping(self._checkpoints, parse_keep(self._settings.keep))
        self._journal: Journal | None = None
        self._found: Checkpoint | None = None
        self._one_at_a_time = asyncio.Lock()
        self._bytes = 0  # recorded when the newest checkpoint was made
        self._made_at = 0.0
        self._resident_bytes = resident_bytes() or 0
        self.following = Following(
            self._settings.follower,
            folder,
            daemon.settings.server.functions,
            lambda: daemon.runner.now_us(),
            daemon.budget.objection,
        )
        self._marks = Marks(daemon.engine)
        self._marked = 0  # the newest record when there was a mark last
        self._marked_at = 0.0
        self._ending = False
        self._follows = False
        self._contact = asyncio.Event()
        self._epochs = Epochs()
        self.fence: Fence | None = None  # once the server records

    # -- the start ---------------------------------------------------------------------------------

    async def start(self, run: Callable[[], None], *, follows: bool = False) -> None:
        """Recover what `open` has found, or load the catalog of a data directory that has no journal yet. `run` starts
        the engine's driver. A server that `follows` another one only recovers."""
        checkpoint = self._found
        if checkpoint is None:  # first, because a catalog that cannot be read must leave the directory as it is
            run()
            await self._daemon.catalog.load()
            await self._daemon.runner.wait_drained()
            journal = await self._open_journal()
            await self._make(journal.next_lsn - 1)
            self._note_alone()
            self._record(journal)
            return
        assert self._journal is not None
        self.checkpoint, self.checkpoint_us = checkpoint.lsn, checkpoint.control["at_us"]
        self.size = self._checkpoints.bytes(checkpoint.lsn)
        recovery = self.recovery = Recovery(self._daemon, self._journal, checkpoint)
        self._found = None  # with the saved engine
        await recovery.run()
        if recovery.difference is not None:
            self.following.differed(recovery.difference)
        if follows:
            self._follows = True
            self.recorder = self._recorder(_nothing)
            self._bytes = -recovery.bytes  # the next start would replay them, too
            self._made_at = time.monotonic()
        else:
            await self._go_on(run)

    async def take_over(self, run: Callable[[], None]) -> None:
        """All that was copied from another server's journal is replayed: continue in its place."""
        assert self.recorder is not None
        async with self._one_at_a_time:
            await self.recorder.end()
            self._follows = False
            await self._go_on(run)

    async def _go_on(self, run: Callable[[], None]) -> None:
        """After the replay: work as a server."""
        assert self._journal is not None
        assert self.recovery is not None
        self._epochs = self.recovery.epochs
        promoted = self._daemon.promoted_epoch > self.epochs.newest.number
        if promoted:
            self.raise_epoch()
            self._note_alone()
        elif is_alone(self._folder):
            self._daemon.lease.alone = True
            if self._daemon.lease.matters:
                log.warning("no standby has followed this server yet: it works without one until one does")
        self._record(self._journal)
        run()
        if promoted:  # no client may learn of an epoch that a power cut takes back
            assert self.recorder is not None
            await self.recorder.wait_synced(self.recorder.recorded)
        self._daemon.silence.follows = False
        self._daemon.silence.look()
        self._daemon.catalog.temporaries.rest = False
        self._daemon.catalog.keeper.recovered()
        await self._wait_for_standby()
        await self.recovery.tidy()

    @property
    def epochs(self) -> Epochs:
        """The known promotions: until this server records itself, those that it has replayed."""
        return self._epochs if self.recovery is None or self.leads else self.recovery.epochs

    def raise_epoch(self) -> None:
        """This server takes over: between the end of its replay and its first record."""
        self._epochs = self.epochs.raised(
            {outlet.history: outlet.next_sequence for outlet in self._daemon.runner.outlets.values()}
        )

    def superseded(self, epoch: Epoch) -> None:
        """Another server has taken over: this directory serves no clients any more."""
        write_superseded(self._folder, epoch)

    async def open(self) -> None:
        """Find out whether this server can continue from the directory. One that it cannot continue from stays as it
        is."""
        self._found = await asyncio.get_running_loop().run_in_executor(None, self._examine)
        if self._found is not None:
            await self._open_journal()

    def _examine(self) -> Checkpoint | None:
        """The checkpoint to start from, of the same server as the journal; None: there is nothing yet. Only reads."""
        check_superseded(self._folder)
        disk, complete = RealDisk(self._folder / JOURNAL_FOLDER), self._checkpoints.complete()
        lsns = segment_lsns(disk)
        if not complete:
            if lsns and _has_records(disk, lsns[0]):
                raise RecoveryError(
                    f"{disk.folder} has records, but {self._checkpoints.folder} has no checkpoint to start them from: "
                    f"{RESTORE}"
                )
            return None
        if not lsns:
            raise RecoveryError(
                f"{self._checkpoints.folder} has a checkpoint, but {disk.folder} has no segments: {RESTORE}"
            )
        checkpoint = self._newest(complete)
        file, head = open_segment(disk, lsns[0], None)
        file.close()
        if checkpoint.control["server"] != head.server_id:
            raise RecoveryError(
                f"{self._checkpoints.folder} belongs to another server than {disk.folder}: restore both from the same "
                "backup"
            )
        if lsns[0] - 1 > checkpoint.lsn:
            raise RecoveryError(
                f"{disk.folder} starts with record {lsns[0]}, and the checkpoint needs those after {checkpoint.lsn}: "
                f"{RESTORE}"
            )
        return checkpoint

    def _newest(self, complete: list[int]) -> Checkpoint:
        """The newest checkpoint that can be read."""
        for lsn in reversed(complete):
            try:
                return self._checkpoints.read(lsn)
            except CheckpointRefused:
                raise
            except CheckpointError as error:
                if lsn == complete[0]:
                    raise CheckpointError(f"{error.text}; no other checkpoint can be read: {RESTORE}") from None
                log.error("a checkpoint cannot be read", reason=error.text)
        raise AssertionError("no checkpoint is complete")

    async def _open_journal(self) -> Journal:
        journal = self._journal = await asyncio.get_running_loop().run_in_executor(None, self._open)
        self._daemon.sink_fence.server_id = journal.server_id
        if journal.torn is not None:
            log.warning("cut off the unsynced end of the journal", file=journal.torn.file, bytes=journal.torn.bytes)
        return journal

    def _open(self) -> Journal:
        disk = RealDisk(self._folder / JOURNAL_FOLDER)
        journal = Journal.open(disk, reaches=max(self._checkpoints.complete(), default=0))
        try:
            self._checkpoints.prepare()
        except OSError as error:
            journal.close()
            raise CheckpointError(f"cannot write {self._checkpoints.folder}: {error.strerror}") from None
        self._keeping.load()
        return journal

    def _record(self, journal: Journal) -> None:
        runner, engine = self._daemon.runner, self._daemon.engine
        for name, value in self._daemon.limits.items():
            setattr(engine, name, value)
        self.recorder = self._recorder(runner.durable, self._daemon.lease)
        self.recorder.start(version(), {name: getattr(engine, name) for name in LIMITS}, self.epochs.to_data())
        self.fence = Fence(journal.server_id, self.epochs.newest)
        self._daemon.sink_fence.lead(self.fence)
        runner.record_in(self.recorder)
        if self.recovery is not None:
            self._bytes = -self.recovery.bytes  # the next start would replay them, too
        self._made_at = self._marked_at = time.monotonic()
        self._marked = self.recorder.recorded

    @property
    def leads(self) -> bool:
        """Whether this server records steps that it takes itself."""
        return self.recorder is not None and not self._follows

    def _note_alone(self) -> None:
        """Depend on no standby before one follows, after a restart as well."""
        if self._daemon.lease.matters:
            note_alone(self._folder)
        self._daemon.lease.alone = True

    def go_alone(self) -> None:
        """An operator says that no standby will take over."""
        assert self.recorder is not None
        if not self.recorder.hindered:
            raise Refuse("nothing waits for a standby: this server works", code="not_silent")
        reason = self.recorder.awaits_standby
        self._note_alone()
        self.recorder.look_at_lease()
        self._daemon.silence.look()
        self._contact.set()
        log.warning("this server works without a standby from now on, until one follows", reason=reason)

    async def end_alone(self) -> None:
        """A standby is about to hear this server, so that it can take over."""
        if self._daemon.lease.alone:
            await asyncio.get_running_loop().run_in_executor(None, forget_alone, self._folder)

    def heard(self, ping: int, lsn: int) -> None:
        """The standby has answered a ping, and has the records up to `lsn` on its disk."""
        assert self.recorder is not None
        self.recorder.heard(ping, lsn)
        self._daemon.silence.look()
        self._contact.set()

    @property
    def awaits_standby(self) -> str | None:
        """Why nothing leaves the server, and what to do, if the standby does not answer."""
        if not self.leads or self.recorder is None or not self.recorder.hindered:
            return None
        return f"{self.recorder.awaits_standby}; {ALONE}"

    async def _wait_for_standby(self) -> None:
        """A server that depends on its standby changes nothing before that has answered."""
        daemon, recorder = self._daemon, self.recorder
        assert recorder is not None
        if recorder.hindered:
            log.warning("the start waits for the standby", reason=self.awaits_standby)
        while recorder.hindered:
            self._contact.clear()
            waits = [asyncio.ensure_future(wait()) for wait in (self._contact.wait, daemon.wait_stopping)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if daemon.stopping:
                raise RecoveryStopped("stopped while it waited for the standby")

    def _recorder(self, durable: Callable[[int], None], lease: PrimaryLease | None = None) -> Recorder:
        assert self._journal is not None
        return Recorder(self._journal, self._settings.sync, durable, self._daemon.fail, self._make_room, lease)

    # -- digests -----------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look after the follower, and mark the journal with digests for it, and for the next start, forever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            recorder = self.recorder
            assert recorder is not None
            await self.following.look(recorder.recorded, self.size)
            await self._daemon.runner.at_rest()
            worked = recorder.recorded > self._marked and not self._ending  # nothing follows the last checkpoint
            if worked and time.monotonic() - self._marked_at >= MARK_SECONDS:
                self.mark()

    def mark(self, *, checkpoint: bool = False) -> int:
        """Record digests of the engine, which rests; the number of the record."""
        assert self.recorder is not None
        self._marked = self.recorder.mark(self._marks.take(), checkpoint=checkpoint)
        self._marked_at = time.monotonic()
        return self._marked

    # -- checkpoints -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Make checkpoints when they are due, forever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                if self._keeping.has_past:
                    await self._tidy()
                if self._is_due():
                    await self.make()
            except (MillraceError, OSError) as error:
                self._failed(error)
                await asyncio.sleep(RETRY_SECONDS)

    def _is_due(self) -> bool:
        assert self.recorder is not None
        more = self.recorder.bytes - self._bytes
        age = time.monotonic() - self._made_at
        if self.following.suspicious:
            return True
        if self._daemon.budget.stage >= Stage.SHED and more < SHORT_FACTOR * self._settings.checkpoint_bytes:
            return False  # the pages that change while a child process saves them are copied
        return more >= self._settings.checkpoint_bytes or (more > 0 and age >= self._settings.checkpoint_seconds)

    @property
    def _taken(self) -> int:
        """The newest record that the engine has taken: a server's newest one, unless it copies those of another."""
        assert self.recorder is not None
        if self._follows:
            assert self.recovery is not None
            return self.recovery.lsn
        return self.recorder.recorded

    def _failed(self, error: Exception) -> None:
        text = error.text if isinstance(error, MillraceError) else str(error)
        if self.error != text:
            log.error("a checkpoint could not be made; the journal keeps its records", reason=text)
        self.failures += 1
        self.error = text

    async def make(self) -> None:
        """Make a checkpoint, and let go of what is not needed any more."""
        recorder = self.recorder
        assert recorder is not None
        async with self._one_at_a_time:
            self._made_at = time.monotonic()
            if not await self._make_followed():
                self._bytes = recorder.bytes
                if self._has_grown and not self._ending:
                    await asyncio.get_running_loop().run_in_executor(None, gather_pages)
                await self._make(None)
                self.following.checkpoint_made()
            self.error = None
        await self._tidy()

    @property
    def _has_grown(self) -> bool:
        """Whether there is so much memory to copy that it is worth gathering."""
        return (resident_bytes() or 0) - self._resident_bytes >= GATHER_BYTES

    async def _tidy(self) -> None:
        """Let go of checkpoints and records that are needed neither for a start nor for the past."""
        journal, recorder = self._journal, self.recorder
        assert journal is not None
        assert recorder is not None
        now_us = self._daemon.runner.now_us()
        async with self._one_at_a_time:
            before = await asyncio.get_running_loop().run_in_executor(None, self._look_at_past, now_us)
            if self._daemon.standbys is not None:
                before = self._daemon.standbys.needed(before, recorder.recorded, journal.segments)
            recorder.trim(before)

    def _look_at_past(self, now_us: int) -> int:
        """Outside the loop: the record before which others may go. While the next checkpoint and the next segment would
        not fit the disk, the oldest of the past goes each time."""
        assert self._journal is not None
        segments = self._journal.segments
        before = self._keeping.tidy(segments, now_us)
        room = os.statvfs(self._folder)
        if room.f_bavail * room.f_frsize < self.size + self._journal.next_bytes:
            return self._make_room() or before
        return before

    def _make_room(self) -> int | None:
        """The disk is full: let go of the oldest of the past. Also called by the journal's thread."""
        assert self._journal is not None
        return self._keeping.make_room(self._journal.segments)

    async def _make_followed(self) -> bool:
        """A checkpoint by the follower; whether there is one now."""
        daemon, recorder, journal = self._daemon, self.recorder, self._journal
        assert recorder is not None
        assert journal is not None
        if self.following.suspicious or not self.following.ready:
            return False
        async with daemon.catalog.at_rest():
            await daemon.runner.at_rest()
            began = time.perf_counter()
            if recorder.recorded == self.checkpoint:
                return True
            lsn = self.mark(checkpoint=True)
            self._bytes = recorder.bytes
            control = self._control(journal.server_id)
            self.pause = time.perf_counter() - began
        most = self._bytes + self._settings.checkpoint_bytes
        try:
            await self.following.wait_saved(lsn, lambda: recorder.bytes > most)
            await self._complete(lsn, control, began)
        except FollowerGone:
            self._checkpoints.discard(lsn)
            return False
        except BaseException:
            self._checkpoints.discard(lsn)
            raise
        self.followed += 1
        return True

    async def _make(self, lsn: int | None) -> None:
        """A checkpoint by a child process, after this step or the newest one."""
        daemon, loop = self._daemon, asyncio.get_running_loop()
        async with daemon.catalog.at_rest():
            await daemon.runner.at_rest()
            began = time.perf_counter()
            if lsn is None:
                lsn = self._taken
            if lsn == self.checkpoint:
                return
            assert self._journal is not None
            control = self._control(self._journal.server_id)
            child, saves = self._fork(lsn), True
            self.pause = time.perf_counter() - began
        try:
            _, status = await loop.run_in_executor(None, os.waitpid, child, 0)
            saves = False
            if status != 0:
                raise CheckpointError(
                    f"the process that saves the engine ended with {os.waitstatus_to_exitcode(status)}"
                )
            await self._complete(lsn, control, began)
        except BaseException:
            if saves:
                os.kill(child, signal.SIGKILL)
            self._checkpoints.discard(lsn)
            raise

    async def _complete(self, lsn: int, control: dict[str, Any], began: float) -> None:
        """The engine is saved: the rest of the checkpoint, when all that precedes it is durable."""
        daemon, recorder = self._daemon, self.recorder
        if recorder is not None:
            await recorder.wait_synced(lsn)
            await daemon.runner.wait_durable(lsn)
        control |= await daemon.make_durable()
        await asyncio.get_running_loop().run_in_executor(None, self._checkpoints.write_control, lsn, control)
        self.checkpoint, self.checkpoint_us = lsn, control["at_us"]
        self._keeping.add(lsn, control["at_us"])
        self.took = time.perf_counter() - began
        self.size, self.written = self._checkpoints.bytes(lsn), self._checkpoints.written_bytes(lsn)
        self.made += 1
        if recorder is not None:  # else the first one, of an empty journal
            pause = round(self.pause, 4)
            log.info("made a checkpoint", steps=lsn, pause_seconds=pause, bytes=self.size, written_bytes=self.written)

    @property
    def server_id(self) -> bytes:
        """Identifies the data directory, also its copies."""
        assert self._journal is not None
        return self._journal.server_id

    def _control(self, server_id: bytes) -> dict[str, Any]:
        """The control state, as plain data. Orders of steps that are not durable yet count as carried out."""
        daemon = self._daemon
        catalog, keeper, runner = daemon.catalog, daemon.catalog.keeper, daemon.runner
        late: dict[str, int] = {}
        archived: dict[str, int] = daemon.archive.next_numbers()
        for order in runner.undurable_orders():
            match order:
                case Late(stream=stream, batch=batch):
                    late[f"{stream}.late"] = late.get(f"{stream}.late", 0) + len(batch)
                case Archived(stream=stream, judged=judged) if stream in archived:
                    archived[stream] += len(judged.batch)
                case _:
                    pass
        queries = daemon.engine.queries_by_name
        counts = {}
        for name, outlet in runner.outlets.items():
            number = queries[name].sink.sequence if name in queries else outlet.next_sequence + late.get(name, 0)
            counts[name] = [outlet.history, number]
        self._epochs = self.epochs.without({outlet.history for outlet in runner.outlets.values()})
        promoted = self._epochs.to_data()
        return {
            **({} if promoted is None else {"epochs": promoted}),
            "form": FORM,
            "server": server_id,
            "version": version(),
            "at_us": runner.now_us(),
            "definitions": as_data(keeper.definitions),
            "temporary": list(catalog.temporaries.names),
            "ledger": [entry.model_dump_json() for entry in catalog.ledger.entries()],
            "counts": counts,
            "since_us": {name: outlet.since_us for name, outlet in runner.outlets.items()},
            "archive": archived,
            "places": catalog.writers.kept_places(),
            **catalog.undecided(),
            "seams": catalog.seams(),
        }

    def _fork(self, lsn: int) -> int:
        """Have a child process save the engine."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the child runs none of their code
            child = os.fork()
        if child:
            return child
        try:
            # Nothing of the server may stay open: its ports and locks end with it, even while this child still writes.
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            gc.disable()
            self._checkpoints.write_state(lsn, self._daemon.engine.save_apart)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    # -- the end -----------------------------------------------------------------------------------

    async def make_last(self) -> None:
        """Leave a checkpoint, so that the next start replays nothing; without one it replays. A checkpoint waits until
        all steps before it have had their effects, and those of a server without its standby do not."""
        if self.recorder is not None and self.recorder.awaits_standby is None:
            self._ending = True
            await self.following.close()  # a child is faster now, whatever else the machine does
            try:
                async with asyncio.timeout(LAST_SECONDS):
                    await self.make()
            except TimeoutError:
                self._failed(CheckpointError(f"the last one took more than {LAST_SECONDS:g} seconds"))
            except (MillraceError, OSError) as error:
                self._failed(error)

    async def close(self) -> None:
        """Write the rest, and close the journal. The engine takes no step any more."""
        await self.following.close()
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            await recorder.close()
        elif self._journal is not None:
            self._journal.close()
        self._journal = None

    def view(self) -> JournalView:
        """The journal and the checkpoints, for the API and the metrics."""
        journal, recorder, recovery = self._journal, self.recorder, self.recovery
        full = None if recorder is None else recorder.full
        last = 0 if journal is None else journal.next_lsn - 1
        saved = self._keeping.saved
        return JournalView(
            sync=self._settings.sync,
            segments=0 if journal is None else len(journal.segments),
            disk_bytes=0 if journal is None else sum(segment.bytes for segment in journal.segments),
            oldest_lsn=0 if journal is None else journal.first_lsn,
            newest_lsn=last,
            waiting_bytes=0 if recorder is None else recorder.waiting_bytes,
            full=None if full is None else JournalFullView(since_us=full.since_us, reason=full.reason),
            checkpoint=CheckpointView(
                lsn=self.checkpoint,
                at_us=self.checkpoint_us,
                bytes=self.size,
                written_bytes=self.written,
                seconds=self.took,
                pause_seconds=self.pause,
                made=self.made,
                followed=self.followed,
                failures=self.failures,
                error=self.error,
                steps_since=0 if self.checkpoint is None else max(last - self.checkpoint, 0),
            ),
            past=PastView(
                keep=self._settings.keep,
                from_us=saved[0].at_us if saved else None,
                checkpoints=len(saved),
                bytes=0 if journal is None else past_bytes(saved, journal.segments),
                dropped_bytes=self._keeping.dropped_bytes,
            ),
            follower=self.following.view(last),
            recovery=None
            if recovery is None
            else RecoveryView(
                steps=recovery.steps, replayed=min(recovery.replayed, recovery.steps), seconds=recovery.seconds
            ),
        )

    @property
    def statistics(self) -> Statistics | None:
        """What the journal has done since the start."""
        return None if self._journal is None else self._journal.statistics

    def sentence(self) -> str | None:
        """Why nothing arrives at any query, if that is because of the disk or the standby."""
        if self.recorder is None:
            return None
        awaited, full = self.recorder.awaits_standby, self.recorder.full
        if awaited is not None:
            way_out = f"; {ALONE}" if self.recorder.hindered else ""
            return f"Nothing leaves the server: {awaited}. It continues by itself when the standby answers{way_out}."
        if full is None:
            return None
        return (
            f"All feeds wait: the disk of the data directory has been full since {format_timestamp(full.since_us)}. "
            f"The server continues by itself when there is room (df -h {shlex.quote(str(self._folder))})."
        )

    def problems(self) -> list[str]:
        """For the server's health."""
        found = [] if self.recorder is None else self.recorder.problems()
        found += self.following.problems()
        return found if self.error is None else [*found, f"no checkpoint can be made: {self.error}"]


def _nothing(_: int) -> None:
    """No effect waits for the records of another server."""


def _has_records(disk: RealDisk, first_lsn: int) -> bool:
    reader = JournalReader(disk)
    try:
        return any(True for _ in reader.records(first_lsn))
    finally:
        reader.close()
