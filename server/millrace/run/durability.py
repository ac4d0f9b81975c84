"""The journal and the checkpoints of a server with a data directory.

Rule: a server records steps only after a complete checkpoint exists. So a journal with records and without a checkpoint
has lost one, and is not started over.

A checkpoint is made between two steps by a child process, which has a copy of the server's memory: the server itself
waits for the copying of its page tables alone. The checkpoint becomes complete when all rows that the steps before it
have led to are durable outside the journal, too.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from millrace.engine.events import Archived, Late
from millrace.engine.saving import LIMITS
from millrace.journal.checkpoints import CheckpointError, Checkpoints
from millrace.journal.disk import JOURNAL_FOLDER, RealDisk
from millrace.journal.layout import FIRST_LSN
from millrace.journal.segments import Journal
from millrace.journal.steps import FORM
from millrace.observe.metrics import version
from millrace.protocol import MillraceError
from millrace.run.control import as_data
from millrace.run.recorder import Recorder
from millrace.run.recovery import Recovery, RecoveryError

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

log = structlog.get_logger()

# How often it is looked whether a checkpoint is due.
LOOK_SECONDS: Final = 1.0
# A checkpoint that could not be made is tried again after this time.
RETRY_SECONDS: Final = 60.0


class Durability:
    """What survives of one server.

    recovery     the recovery of this start; None: there was nothing to recover
    checkpoint   the last step of the newest complete checkpoint, made at `checkpoint_us`
    pause        for how long the newest checkpoint kept the loop waiting, in seconds
    error        why the newest checkpoint could not be made
    """

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.recorder: Recorder | None = None
        self.recovery: Recovery | None = None
        self.checkpoint: int | None = None
        self.checkpoint_us: int | None = None
        self.pause = 0.0
        self.error: str | None = None
        self._daemon = daemon
        self._folder = folder
        self._settings = daemon.settings.journal
        self._checkpoints = Checkpoints(folder)
        self._journal: Journal | None = None
        self._one_at_a_time = asyncio.Lock()
        self._bytes = 0  # recorded when the newest checkpoint was made
        self._made_at = 0.0

    # -- the start ---------------------------------------------------------------------------------

    async def start(self, run: Callable[[], None]) -> None:
        """Recover, or load the catalog of a data directory that has no journal yet. `run` starts the engine's
        driver."""
        complete = self._checkpoints.complete()
        if not complete:  # first, because a catalog that cannot be read must leave the directory as it is
            run()
            await self._daemon.catalog.load()
            await self._daemon.runner.wait_drained()
        journal = self._journal = await asyncio.get_running_loop().run_in_executor(None, self._open)
        if journal.torn is not None:
            log.warning("cut off the unsynced end of the journal", file=journal.torn.file, bytes=journal.torn.bytes)
        if not complete:
            if journal.next_lsn > FIRST_LSN:
                raise RecoveryError(
                    f"{self._folder / JOURNAL_FOLDER} has {journal.next_lsn - FIRST_LSN} records, but "
                    f"{self._checkpoints.folder} has no checkpoint to start them from: restore the data directory from "
                    "a backup"
                )
            await self._make(journal.next_lsn - 1)
            self._record(journal)
            return
        recovery = await self._recover(journal, complete)
        self._record(journal)
        run()
        await recovery.tidy()

    def _open(self) -> Journal:
        disk = RealDisk(self._folder / JOURNAL_FOLDER)
        journal = Journal.open(disk, reaches=max(self._checkpoints.complete(), default=0))
        try:
            self._checkpoints.prepare()
        except OSError as error:
            journal.close()
            raise CheckpointError(f"cannot write {self._checkpoints.folder}: {error.strerror}") from None
        return journal

    async def _recover(self, journal: Journal, complete: list[int]) -> Recovery:
        """From the newest checkpoint that can be read."""
        loop = asyncio.get_running_loop()
        for number, lsn in enumerate(reversed(complete)):
            try:
                checkpoint = await loop.run_in_executor(None, self._checkpoints.read, lsn)
                break
            except CheckpointError as error:
                log.error("a checkpoint cannot be read", reason=error.text)
                if number == len(complete) - 1:
                    raise
        if checkpoint.control["server"] != journal.server_id:
            raise RecoveryError(
                f"{self._checkpoints.folder} belongs to another journal than {self._folder / JOURNAL_FOLDER}: restore "
                "both from the same backup"
            )
        if checkpoint.control["form"] > FORM:
            raise RecoveryError(f"{self._checkpoints.folder} was written by a newer Millrace: start that version")
        if not journal.first_lsn - 1 <= checkpoint.lsn < journal.next_lsn:
            raise RecoveryError(
                f"the journal has records {journal.first_lsn} to {journal.next_lsn - 1}, and the checkpoint needs "
                f"those after {checkpoint.lsn}: {self._folder} is a copy of parts of different times"
            )
        self.checkpoint, self.checkpoint_us = checkpoint.lsn, checkpoint.control["at_us"]
        recovery = self.recovery = Recovery(self._daemon, journal, checkpoint)
        await recovery.run()
        return recovery

    def _record(self, journal: Journal) -> None:
        runner, engine = self._daemon.runner, self._daemon.engine
        for name, value in self._daemon.limits.items():
            setattr(engine, name, value)
        self.recorder = Recorder(journal, self._settings.sync, runner.durable, runner.fail)
        self.recorder.start(version(), {name: getattr(engine, name) for name in LIMITS})
        runner.record_in(self.recorder)
        self._made_at = time.monotonic()

    # -- checkpoints -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Make checkpoints when they are due, forever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._is_due():
                try:
                    await self.make()
                except (MillraceError, OSError) as error:
                    self._failed(error)
                    await asyncio.sleep(RETRY_SECONDS)

    def _is_due(self) -> bool:
        assert self.recorder is not None
        more = self.recorder.bytes - self._bytes
        age = time.monotonic() - self._made_at
        return more >= self._settings.checkpoint_bytes or (more > 0 and age >= self._settings.checkpoint_seconds)

    def _failed(self, error: Exception) -> None:
        text = error.text if isinstance(error, MillraceError) else str(error)
        if self.error != text:
            log.error("a checkpoint could not be made; the journal keeps its records", reason=text)
        self.error = text

    async def make(self) -> None:
        """Make a checkpoint, and let go of what is not needed any more."""
        recorder = self.recorder
        assert recorder is not None
        async with self._one_at_a_time:
            self._bytes, self._made_at = recorder.bytes, time.monotonic()
            await self._make(None)
            oldest = self._checkpoints.forget_old()
            if oldest is not None:
                recorder.trim(oldest + 1)
            self.error = None

    async def _make(self, lsn: int | None) -> None:
        """A checkpoint after this step, or the newest one."""
        daemon, loop = self._daemon, asyncio.get_running_loop()
        async with daemon.catalog.at_rest():
            await daemon.runner.at_rest()
            began = time.perf_counter()
            recorder = self.recorder
            if lsn is None:
                assert recorder is not None
                lsn = recorder.recorded
            if lsn == self.checkpoint:
                return
            assert self._journal is not None
            control = self._control(self._journal.server_id)
            child = self._fork(lsn)
            self.pause = time.perf_counter() - began
        try:
            _, status = await loop.run_in_executor(None, os.waitpid, child, 0)
            if status != 0:
                raise CheckpointError(
                    f"the process that saves the engine ended with {os.waitstatus_to_exitcode(status)}"
                )
            if recorder is not None:
                await recorder.wait_synced(lsn)
                await daemon.runner.wait_durable(lsn)
            control |= await daemon.make_durable()
            await loop.run_in_executor(None, self._checkpoints.write_control, lsn, control)
        except BaseException:
            self._checkpoints.discard(lsn)
            raise
        self.checkpoint, self.checkpoint_us = lsn, control["at_us"]
        log.info("made a checkpoint", steps=lsn, pause_seconds=round(self.pause, 4))

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
        return {
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
            self._checkpoints.write_state(lsn, self._daemon.engine.save())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    # -- the end -----------------------------------------------------------------------------------

    async def make_last(self) -> None:
        """Leave a checkpoint, so that the next start replays nothing."""
        if self.recorder is not None:
            try:
                await self.make()
            except (MillraceError, OSError) as error:
                self._failed(error)

    async def close(self) -> None:
        """Write the rest, and close the journal. The engine takes no step any more."""
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            await recorder.close()
        elif self._journal is not None:
            self._journal.close()
        self._journal = None

    def problems(self) -> list[str]:
        """For the server's health."""
        found = [] if self.recorder is None else self.recorder.problems()
        return found if self.error is None else [*found, f"no checkpoint can be made: {self.error}"]
