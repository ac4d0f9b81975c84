"""The rows of queries on disk, so that readers resume by number after a restart and lag on disk instead of in memory.

    <data_dir>/results/<history>/<number of the first row>.rows

Rule: the engine emits the same rows under the same numbers again when it replays its steps, so rows on disk are never
written twice: `append` skips what a log has. The event loop appends to a buffer; one thread writes the buffers of all
logs, and trims them; readers read in another thread. A write that fails is retried until it succeeds, and meanwhile
the rows wait in memory and press the feeds. A failed `fsync` is final: what it should have made durable may be lost.
Nothing more is written then, the server stops, and its next start emits the rows again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from millrace.protocol import MillraceError, Schema, format_timestamp
from millrace.protocol.words import counted
from millrace.store.places import error_words
from millrace.store.resultlog import ResultLog, Rows
from millrace.store.rowfiles import RowFile
from millrace.values.retention import Retain

log = structlog.get_logger()

FOLDER: Final = "results"
# The buffers of all logs are written when they have so many bytes, or after so long: few records, each with many rows.
WRITE_BYTES: Final = 1 << 20
WRITE_SECONDS: Final = 0.5
# Rows that wait in memory to be written before the feeds of their queries wait.
WAITING_BYTES: Final = 1 << 25
# Age is looked at this often, although no row arrives.
TRIM_SECONDS: Final = 30.0
# Trimming follows writing, so that all logs together exceed their limit by a little.
EXCESS: Final = 1.1
# Files that stay open between two writes.
MOST_OPEN: Final = 128
LEAST_PAUSE_SECONDS: Final = 0.1
MOST_PAUSE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class ResultLimits:
    """The limits of all logs together: bytes on disk, and bytes in memory that wait to be written."""

    most_bytes: int = 4 * 10**9
    waiting_bytes: int = WAITING_BYTES


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why results cannot be written, and since when."""

    reason: str
    since_us: int


class ResultsBroken(MillraceError):  # noqa: N818 - named after the state
    """An fsync failed, so the state of the disk is unknown until a restart reads it."""

    code = "results_broken"


@dataclass(slots=True)
class Sync:
    """A caller waits until everything appended so far is durable."""

    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]

    def tell(self, error: Exception | None) -> None:
        def finish() -> None:
            if self.done.done():
                return
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)

        with suppress(RuntimeError):  # the loop has been closed
            self.loop.call_soon_threadsafe(finish)


class Results:
    """The logs of a server, and the thread that writes them.

    folder      the data directory; without one, nothing is on disk and `open` returns None
    limits      of all logs together
    now_us      the server's clock
    """

    def __init__(
        self,
        folder: Path | None,
        limits: ResultLimits | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
        *,
        threaded: bool = True,
    ) -> None:
        self.limits = limits or ResultLimits()
        self.now_us = now_us
        self.lock = threading.RLock()
        self.waiting_bytes = 0
        self.disk_bytes = 0  # of all logs
        self.trouble: Trouble | None = None
        self.failed: str | None = None
        self.on_failure: Callable[[Exception], None] = _ignore_failure  # on the loop
        self.retries = 0
        self.damaged: dict[str, str] = {}
        self._folder = None if folder is None else folder / FOLDER
        self._threaded = threaded
        self._changed = threading.Condition(self.lock)
        self._logs: dict[str, ResultLog] = {}
        self._dirty: dict[ResultLog, None] = {}
        self._doomed: list[Path] = []
        self._doomed_folders: list[Path] = []
        self._open: OrderedDict[ResultLog, None] = OrderedDict()
        self._syncs: list[Sync] = []
        self._pause = LEAST_PAUSE_SECONDS
        self._closing = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="results-read")

    # -- on the loop -------------------------------------------------------------------------------

    def open(self, history: str, schema: Schema, retain: Retain, next_sequence: int = 0) -> ResultLog | None:
        """The log of a history. `next_sequence` is the number of the first row that the engine may emit again."""
        if self._folder is None:
            return None
        found = ResultLog(self, history, schema, retain, self._folder / history)
        with self.lock:
            try:
                if not self._logs and self._folder.is_dir():  # a killed server may have made folders just before
                    self.sync_folder(self._folder)
                    self.sync_folder(self._folder.parent)
                if (self._folder / history).is_dir():
                    found.load()
            except OSError as error:
                raise ResultsBroken(
                    f"retained rows in {self._folder / history} cannot be read and made durable: {error_words(error)}; "
                    "check the disk, and start the server again"
                ) from None
            found.resume(next_sequence)
            self._logs[history] = found
        return found

    def forget_unknown(self, histories: Collection[str]) -> None:
        """Remove the rows of histories that no query has."""
        if self._folder is None or not self._folder.is_dir():
            return
        unknown = [name for name in os.listdir(self._folder) if name not in histories and name not in self._logs]
        with self.lock:
            self._doomed_folders += [self._folder / name for name in unknown]
            self._wake()
        if unknown:
            log.info("removed retained rows of queries that are gone", histories=len(unknown))

    async def sync(self) -> None:
        """Return when everything appended before the call is durable. OSError: an fsync has failed, for good."""
        if self._folder is None:
            return
        loop = asyncio.get_running_loop()
        done = Sync(loop, loop.create_future())
        with self.lock:
            self._syncs.append(done)
            self._wake()
        await done.done

    async def aside(self, read: Callable[[], list[Rows]]) -> list[Rows]:
        """Read in the thread of readers."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, read)

    async def close(self) -> None:
        """Write everything, make it durable, and stop. After an error the rest is missing; a replay emits it again."""
        with self.lock:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(self._readers, thread.join)
        elif self._logs:
            self.work(final=True)

    @property
    def pressure(self) -> float:
        """How full the buffers are; 1 if feeds have to wait."""
        return self.waiting_bytes / self.limits.waiting_bytes

    @property
    def excess(self) -> float:
        """How far all logs together exceed their limit because readers hold rows; 0 if they hardly do."""
        share = self.disk_bytes / self.limits.most_bytes
        return share if share > EXCESS else 0.0

    def problems(self) -> list[str]:
        """The problems, for the server's health."""
        found = list(self.damaged.values())
        if self.failed is not None:
            found.append(f"retained rows may be lost in a power cut: {self.failed}")
        trouble = self.trouble
        if trouble is not None:
            since = format_timestamp(trouble.since_us)
            found.append(
                f"results cannot be written to {self._folder} since {since}: {trouble.reason}; "
                f"{counted(self.waiting_bytes, 'byte')} of rows wait in memory, and the server retries"
            )
        return found

    # -- for the logs, which have the lock -----------------------------------------------------------

    def changed_log(self, found: ResultLog) -> None:
        """The log has something to write or to trim."""
        first = not self._dirty
        self._dirty[found] = None
        if first or self.waiting_bytes >= WRITE_BYTES:
            self._wake()

    def remove_log(self, found: ResultLog) -> None:
        self._logs.pop(found.history, None)
        self.damaged.pop(found.history, None)
        self._doomed_folders.append(found._folder)
        self._dirty[found] = None
        self._wake()

    def doom(self, files: Collection[RowFile]) -> None:
        """Remove files later, in the thread."""
        self._doomed += [file.path for file in files]
        self.disk_bytes -= sum(file.size for file in files)

    def keep(self, path: Path) -> None:
        """A file takes the place of one that was to be removed."""
        self._doomed = [doomed for doomed in self._doomed if doomed != path]

    def opened(self, found: ResultLog) -> None:
        """The log has an open file; the one that has not been written for longest is closed instead."""
        self._open[found] = None
        self._open.move_to_end(found)
        while len(self._open) > MOST_OPEN:
            next(iter(self._open)).close_file()

    def closed(self, found: ResultLog) -> None:
        self._open.pop(found, None)

    def _wake(self) -> None:
        if self._threaded and self._thread is None and not self._closing:
            with suppress(RuntimeError):
                self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="results", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    # -- in the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        since: float | None = None  # when the first row that waits was noticed
        while True:
            with self.lock:
                while not self._is_due(since):
                    if since is None and self._dirty:
                        since = time.monotonic()
                    seconds = TRIM_SECONDS if since is None else max(since + WRITE_SECONDS - time.monotonic(), 0.0)
                    if not self._changed.wait(seconds) and since is None:
                        break
                closing = self._closing
            since = None
            worked = self.work(final=closing)
            if closing:
                return
            if not worked:
                self._rest()

    def _is_due(self, since: float | None) -> bool:
        if self._closing or self._syncs or self._doomed_folders or self.waiting_bytes >= WRITE_BYTES:
            return True
        return since is not None and time.monotonic() >= since + WRITE_SECONDS

    def _rest(self) -> None:
        """Wait before the next try."""
        with self.lock:
            end = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, MOST_PAUSE_SECONDS)
            while not self._closing and (seconds := end - time.monotonic()) > 0:
                self._changed.wait(seconds)

    def work(self, *, final: bool = False) -> bool:
        """Write what waits, make it durable if a caller waits for that, and trim; whether all of it succeeded."""
        if self.failed is not None:
            self._end_syncs(OSError(f"an earlier fsync failed: {self.failed}"))
            return False
        with self.lock:
            syncs, self._syncs = self._syncs, []
            dirty, self._dirty = list(self._dirty), {}
        done = 0
        try:
            for found in dirty:
                self._write(found)
                done += 1
        except OSError as error:
            self._failed_to_write(error)
            with self.lock:
                self._dirty = dict.fromkeys(dirty[done:]) | self._dirty
                self._syncs = syncs + self._syncs
            self._trim(dirty)
            if final or self.failed is not None:
                self._end_syncs(error)
            return False
        if self.trouble is not None:
            self._recovered()
        failure = self._sync_all(final=final) if syncs or final else None
        for sync in syncs:
            sync.tell(failure)
        self._trim(dirty)
        if final:
            self._end_syncs(None)
        self._tell_logs(dirty)
        return True

    @staticmethod
    def _write(found: ResultLog) -> None:
        if found.removed:
            with suppress(OSError):
                found.close_file()
        else:
            found.write()

    def _sync_all(self, *, final: bool) -> OSError | None:
        """fsync of every open file; the others were durable when they were closed."""
        try:
            for found in tuple(self._open):
                if final:
                    found.close_file()
                else:
                    found.sync()
        except OSError as error:
            return error
        return None

    def make_durable(self, handle: int) -> None:
        """fsync. Its failure is final."""
        try:
            os.fsync(handle)
        except OSError as error:
            self.failed = reason = error_words(error)
            text = "retained rows cannot be made durable: the server stops, and its next start emits them again"
            log.error(text, reason=reason)
            if self._loop is not None:
                with suppress(RuntimeError):  # the loop has been closed
                    self._loop.call_soon_threadsafe(self.on_failure, ResultsBroken(f"{self._folder}: {reason}"))
            raise

    def sync_folder(self, folder: Path) -> None:
        """Make every name in it durable."""
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.make_durable(handle)
        finally:
            os.close(handle)

    def _end_syncs(self, error: OSError | None) -> None:
        with self.lock:
            syncs, self._syncs = self._syncs, []
        for sync in syncs:
            sync.tell(error)

    def _failed_to_write(self, error: OSError) -> None:
        reason = error_words(error)
        if self.trouble is None:
            self.trouble = Trouble(reason, self.now_us())
            log.error("results cannot be written: the server retries", reason=reason)
        else:
            self.trouble = replace(self.trouble, reason=reason)
            self.retries += 1

    def _recovered(self) -> None:
        assert self.trouble is not None
        seconds = round((self.now_us() - self.trouble.since_us) / 1e6, 3)
        self.trouble, self._pause = None, LEAST_PAUSE_SECONDS
        log.info("results are written again", seconds=seconds)

    def _tell_logs(self, written: Collection[ResultLog]) -> None:
        calls = [call for found in written if (call := found.on_written) is not None]
        if calls and self._loop is not None:
            for call in calls:
                with suppress(RuntimeError):  # the loop has been closed
                    self._loop.call_soon_threadsafe(call)

    def _trim(self, changed: Collection[ResultLog]) -> None:
        """Remove rows that exceed the limits: of the changed logs, or of all if none has changed for long."""
        with self.lock:
            for found in changed or self._logs.values():
                found.trim()
            self._trim_together()
        self.remove_doomed()

    def remove_doomed(self) -> None:
        """Remove the files that are not needed any more, in this order: what remains after a kill has no gap."""
        with self.lock:
            doomed, self._doomed = self._doomed, []
            folders, self._doomed_folders = self._doomed_folders, []
        for path in doomed:
            with suppress(OSError):  # a file that stays is removed at the next start
                path.unlink()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _trim_together(self) -> None:
        """Remove the oldest files of all logs until they fit."""
        while self.disk_bytes > self.limits.most_bytes:
            oldest = [(file.head.since_us, found.history, found) for found in self._logs.values()
                      if (file := found.oldest_file) is not None]  # fmt: skip
            if not oldest:
                return
            min(oldest, key=lambda one: one[:2])[2].drop_oldest()


def _ignore_failure(_: Exception) -> None:
    """For callers that read `failed` instead."""
