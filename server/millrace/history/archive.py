"""The daemon's side of history: tuples of streams with history are written into files, off the event loop.

Rule: a tuple is in memory here until the file that has it is whole and durable, then it is let go; nothing is dropped
in between. What cannot be written (the disk is full, or gone) waits and is tried again, and when so much waits that the
bound is reached, the stream's feeds get no new credit until it is less. `history.py` knows what the files look like;
here is decided when they are written.

The event loop puts rows in (`take`), one thread writes them. They share the streams' queues under one lock, which is
never held while a file is written.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from millrace.engine.events import Archived, Event, HistoryHeld
from millrace.engine.plan import StreamDefinition
from millrace.formats.durable import make_folder
from millrace.history import files as history
from millrace.history.files import ArchivedRows, Gap, HistoryError, Reach, Written
from millrace.protocol import Refuse
from millrace.protocol.admin.streams import ArchiveView, GapView
from millrace.values.eventtime import MAX_TIME, MIN_TIME, is_time

log = structlog.get_logger()

# The cost of a queued piece in addition to its values: the Python objects of a batch with a few columns.
PIECE_BYTES: Final = 2_000
# How many small pieces in a row are merged: else a stream of single tuples would hold a hundred times their size.
MERGED_PIECES: Final = 64
SMALL_ROWS: Final = 1_024
# How often the reach is saved if only the mark has moved. (The API returns the newest.)
REACH_SECONDS: Final = 10.0
# How often the marks are looked at.
LOOK_SECONDS: Final = 1.0
# The pause after an error before the thread tries again, at first and at most.
RETRY_SECONDS: Final = 1.0
RETRY_SECONDS_MOST: Final = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The folder of history (None: none), when a file is closed, and how much may wait per stream."""

    folder: Path | None = None
    file_bytes: int = 64 * 2**20
    file_age_us: int = 60_000_000
    waiting_bytes: int = 256 * 2**20


@dataclass(frozen=True, slots=True)
class _Piece:
    """Queued rows: their bytes, the least time of the rows on time, and when they arrived."""

    rows: ArchivedRows
    bytes: int
    least: int
    since: float


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request to report when all rows below a number are in complete files and in the reach."""

    ticket: int
    below: int
    future: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class _Stream:
    """The archive of one stream.

    reach      as it was last written down; `floor` is the mark from the time before this server
    mark       the stream's mark after all rows that were put in
    waiting    rows for a later file, oldest first; `writing` those of the file that is being written
    rows       how many wait, in both, and their `bytes`; `writing_bytes` of them are in `writing`
    small      how many pieces at the end of `waiting` are small
    tell       whether to save the reach although no rows wait
    asked      the requests to report complete rows, each with a ticket
    ending     whether the stream has no history once this is written
    held       whether its feeds get no new credit
    """

    stream: StreamDefinition
    folder: Path
    reach: Reach
    next_seq: int
    floor: int = MIN_TIME
    mark: int = MIN_TIME
    waiting: deque[_Piece] = field(default_factory=deque)
    writing: list[_Piece] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    writing_bytes: int = 0
    small: int = 0
    tell: bool = False
    told_at: float = 0.0
    asked: list[_Asked] = field(default_factory=list)
    tickets: int = 0
    wanted: int = 0
    ending: bool = False
    held: bool = False
    error: str | None = None
    errors: int = 0
    pause: float = RETRY_SECONDS
    retry_at: float = 0.0

    # -- putting ---------------------------------------------------------------------------------------

    def put(self, rows: ArchivedRows, mark_us: int) -> None:
        """Tuples that have just arrived, and the mark after them."""
        piece = _Piece(rows, _weigh(rows), rows.least_on_time, time.monotonic())
        self.next_seq += len(rows)
        self.rows += len(rows)
        self.bytes += piece.bytes
        self.mark = max(self.mark, mark_us)
        self.waiting.append(piece)
        if self.reach.reach_us is not None and piece.least < self.reach.reach_us:
            # A restarted stream took in rows below its earlier mark, so the reach decreases.
            self.tell = True
        self.small = self.small + 1 if len(rows) < SMALL_ROWS else 0
        if self.small == MERGED_PIECES:
            self._merge()

    def become(self, stream: StreamDefinition) -> None:
        """The stream may have got more columns: what waits does not have them."""
        if stream.schema != self.stream.schema:
            self.small = 0
            self.reach = self.reach.of(stream)
            self.tell = True
        self.stream = stream

    def _merge(self) -> None:
        parts = [self.waiting.pop() for _ in range(self.small)][::-1]
        self.small = 0
        rows = ArchivedRows.joined([part.rows for part in parts])
        merged = _Piece(rows, _weigh(rows), min(part.least for part in parts), parts[0].since)
        self.bytes += merged.bytes - sum(part.bytes for part in parts)
        self.waiting.append(merged)

    # -- what is to be done ----------------------------------------------------------------------------

    @property
    def pieces(self) -> Iterator[_Piece]:
        yield from self.writing
        yield from self.waiting

    @property
    def whole_below(self) -> int:
        """All rows below this number are in whole files."""
        return self.next_seq - self.rows

    @property
    def waits_since(self) -> float | None:
        first = next(self.pieces, None)
        return None if first is None else first.since

    def reach_us(self) -> int:
        """Every on-time row below it is in whole files."""
        return min(max(self.floor, self.mark), min((piece.least for piece in self.pieces), default=MAX_TIME))

    def due_at(self, limits: Limits, closing: bool) -> float | None:
        """When there is something to do; None if nothing is."""
        if self.error is not None:
            return 0.0 if closing else self.retry_at
        return 0.0 if self.tell or self.ending or closing else self.rows_due_at(limits)

    def rows_due_at(self, limits: Limits) -> float | None:
        """When rows go into a file without anything ending; None if none wait."""
        if self.writing or self.wanted > self.whole_below:
            return 0.0
        if self.bytes - self.writing_bytes >= limits.file_bytes:
            return 0.0
        since = self.waits_since
        return None if since is None else since + limits.file_age_us / 1e6

    def _alike(self) -> bool:
        """Whether the next rows have the same columns as the rows in the file."""
        return not self.writing or self.waiting[0].rows.batch.schema == self.writing[-1].rows.batch.schema

    def cut(self, limits: Limits, closing: bool) -> list[_Piece]:
        """The rows of the next file: those of a failed write, or as many as a file should have, if one is due."""
        due = 0.0 if self.ending or closing else self.rows_due_at(limits)
        if not self.writing and due is not None and due <= time.monotonic():
            while self.waiting and self.writing_bytes < limits.file_bytes and self._alike():
                self.writing.append(self.waiting.popleft())
                self.writing_bytes += self.writing[-1].bytes
            self.small = min(self.small, len(self.waiting))
        return list(self.writing)


class Archive:
    """All streams with history of one server, and the thread that writes for them."""

    def __init__(
        self,
        limits: Limits,
        *,
        submit: Callable[[Event], None],
        mark_of: Callable[[str], int],
        now_us: Callable[[], int],
        at_rest: Callable[[], Awaitable[None]],
    ) -> None:
        self.limits = limits
        self._submit = submit
        self._mark_of = mark_of
        self._now_us = now_us
        self._at_rest = at_rest  # marks are read between two steps, when all below them has been put in
        self._streams: dict[str, _Stream] = {}
        self._ending: list[_Stream] = []
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._held: int | None = None  # the folder, from the first stream with history on
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._failure: BaseException | None = None
        # While steps are replayed: by stream, the number of its next row. Rows that files have are skipped.
        self._replayed: dict[str, int] = {}

    # -- streams -----------------------------------------------------------------------------------

    def check(self, stream: StreamDefinition) -> None:
        """Refuse a history that could not be kept."""
        if not stream.history:
            return
        if self.limits.folder is None:
            raise Refuse(
                f"stream {stream.name}: history = true needs a folder: start the server with --data-dir, or set "
                "server.history_dir",
                code="history",
            )
        history.check_columns(stream)
        folder = history.stream_folder(self.limits.folder, stream.name)
        reach = history.read_reach(folder)
        if reach is not None and not reach.fits(stream):
            raise Refuse(
                f"stream {stream.name}: {folder} contains the history of a stream with the same name and other "
                "columns: move it away, or rename the stream",
                code="history",
            )

    @contextmanager
    def prepared(self, streams: Iterable[StreamDefinition]) -> Iterator[None]:
        """Make ready for streams that will have history once the change inside is done; undone if it fails."""
        made: list[_Stream] = []
        try:
            for stream in streams:
                self.check(stream)
                if stream.history and stream.name not in self._streams:
                    made.append(self._prepare(stream))
                    self._streams[stream.name] = made[-1]
            yield
        except BaseException:
            for one in made:
                del self._streams[one.stream.name]
                self._finish(one)
            raise

    def _prepare(self, stream: StreamDefinition) -> _Stream:
        for at in self._ending:
            if at.stream.name == stream.name:
                # It is still being written from before: it continues.
                with self._lock:
                    self._ending.remove(at)
                    at.ending, at.tell = False, True
                    at.become(stream)
                    self._work.notify()
                return at
        assert self.limits.folder is not None, "check() refuses"
        folder = history.stream_folder(self.limits.folder, stream.name)
        try:
            if self._held is None:
                self._held = history.hold(self.limits.folder)
            reach = _open(folder, stream, self._now_us(), comes_again=stream.name in self._replayed)
        except OSError as error:
            raise Refuse(
                f"stream {stream.name}: cannot write {folder}: {history.words(error)}", code="history"
            ) from None
        self._begin()
        floor = MIN_TIME if reach.reach_us is None else reach.reach_us
        return _Stream(stream, folder, reach, reach.last_seq + 1, floor)

    def follow(self, stream: StreamDefinition, newest_us: int) -> None:
        """The stream has the prepared history, or none any more; `newest_us` is its newest time so far."""
        at = self._streams.get(stream.name)
        if at is None:
            return
        if not stream.history:
            self._leave(at, "off")
            return
        with self._lock:
            at.become(stream)
        if at.reach.since_us is None and not at.reach.rows and newest_us > MIN_TIME:
            at.reach = replace(at.reach, since_us=newest_us + 1)

    def drop(self, name: str) -> None:
        """The stream is gone; its archive stays."""
        at = self._streams.get(name)
        if at is not None:
            self._leave(at, None)

    def _leave(self, at: _Stream, reason: str | None) -> None:
        del self._streams[at.stream.name]
        with self._lock:
            if reason is not None:
                gap = Gap(at.next_seq - 1, _known(at.mark), reason, self._now_us())
                at.reach = replace(at.reach, gaps=(*at.reach.gaps, gap))
            at.ending = True
            self._ending.append(at)
            self._work.notify()
        self._let_go(at)

    def _finish(self, at: _Stream) -> None:
        """Nothing was put in: leave the folder as it was."""
        with suppress(OSError):
            history.write_reach(at.folder, replace(at.reach, open=False))

    # -- rows --------------------------------------------------------------------------------------

    def take(self, order: Archived) -> None:
        """Rows that a stream has received."""
        at = self._streams.get(order.stream)
        if at is None:
            return  # its history was turned off in this very step
        judged = order.judged
        count = len(judged.batch)
        late = np.zeros(count, np.bool_) if judged.late is None else judged.late
        mark = order.mark_us if at.stream.timestamps == "external" else int(judged.batch.ts[-1])
        batch, marks = judged.batch, judged.marks
        if order.stream in self._replayed and (known := self._known(at, count)):
            if known == count:
                return
            batch, late, marks = batch.slice(known, count), late[known:], marks[known:]
            count -= known
        with self._lock:
            at.put(ArchivedRows(at.next_seq, batch, late, marks, ((order.feed, count),)), mark)
            if at.rows == count or at.tell or at.bytes - at.writing_bytes >= self.limits.file_bytes:
                self._work.notify()
        if at.bytes >= self.limits.waiting_bytes and not at.held:
            at.held = True
            log.warning("the history of a stream lags: its feeds wait", stream=order.stream, rows=at.rows)
            self._submit(HistoryHeld(order.stream, True))

    def replays_from(self, numbers: Mapping[str, int]) -> None:
        """Rows of these streams come again, from these numbers on: those that files have are skipped."""
        self._replayed.update(numbers)

    def replays_no_more(self) -> None:
        self._replayed.clear()

    def _known(self, at: _Stream, count: int) -> int:
        """How many of the next rows of a replay files have."""
        name = at.stream.name
        first = self._replayed[name]
        self._replayed[name] = first + count
        if first > at.next_seq:
            log.error("the history of a stream lacks rows", stream=name, first=at.next_seq, rows=first - at.next_seq)
            at.next_seq = first
        return min(max(at.next_seq - first, 0), count)

    def mark(self, name: str) -> int:
        """The mark of a stream after the tuples that are here; the least time if it has no history."""
        at = self._streams.get(name)
        return MIN_TIME if at is None else at.mark

    def next_numbers(self) -> dict[str, int]:
        """By stream with history, the number of its next row."""
        return {name: at.next_seq for name, at in self._streams.items()}

    def _let_go(self, at: _Stream) -> None:
        if at.held and (at.ending or at.bytes < self.limits.waiting_bytes // 2):
            at.held = False
            log.info("the history of a stream has caught up: its feeds continue", stream=at.stream.name)
            self._submit(HistoryHeld(at.stream.name, False))

    def _look(self, at: _Stream) -> None:
        """Time passes without tuples too."""
        at.mark = max(at.mark, self._mark_of(at.stream.name))

    async def run(self) -> None:
        """Look at the marks periodically, forever; an error that ended the thread ends this."""
        while True:
            await self._at_rest()
            with self._lock:
                for at in self._streams.values():
                    self._look(at)
                    old = time.monotonic() - at.told_at >= REACH_SECONDS
                    if old and not at.rows and _known(at.reach_us()) != at.reach.reach_us:
                        at.tell = True
                        self._work.notify()
            if self._failure is not None:
                raise self._failure
            await asyncio.sleep(LOOK_SECONDS)

    async def flush(self, name: str) -> ArchiveView:
        """Have everything in whole files that was put in so far; what `view` says then, or why it cannot be."""
        await self._at_rest()
        at = self._streams.get(name)
        if at is None:
            raise Refuse(f"stream {name} has no history: ALTER STREAM {name} SET (history = 'true')", code="no_history")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._look(at)
            at.tickets += 1
            at.wanted, at.tell, at.retry_at = at.next_seq, True, 0.0
            at.asked.append(_Asked(at.tickets, at.next_seq, future))
            self._work.notify()
        await future
        return self._view(at)

    # -- the thread --------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._write_for_ever, name="history", daemon=True)
            self._thread.start()

    def _write_for_ever(self) -> None:
        try:
            while (at := self._wait_for_work()) is not None:
                self._call(self._wrote, at, self._write(at))
        except BaseException as error:  # told to the loop, which ends the server with it
            self._failure = error

    def _wait_for_work(self) -> _Stream | None:
        """The next stream with something to do; None when everything is done and the server ends."""
        with self._lock:
            while True:
                dues = [
                    (due, at)
                    for at in (*self._streams.values(), *self._ending)
                    if (due := at.due_at(self.limits, self._closing)) is not None
                ]
                if not dues and self._closing:
                    return None
                due, at = min(dues, key=lambda item: item[0], default=(None, None))
                if due is not None and due <= time.monotonic():
                    return at
                self._work.wait(None if due is None else due - time.monotonic())

    def _write(self, at: _Stream) -> tuple[int, int]:
        """One file (one per day that it has rows of), or nothing but the reach. Says which ticket was heard of when the
        reach was written, and below which number all rows were whole then."""
        import pyarrow as pa

        with self._lock:
            pieces = at.cut(self.limits, self._closing)
        try:
            if pieces:
                rows = ArchivedRows.joined([piece.rows for piece in pieces])
                written = history.write_rows(at.folder, replace(at.stream, schema=rows.batch.schema), rows)
                self._count(at, pieces, written)
            told = self._tell(at)
        except (OSError, pa.ArrowException) as error:
            self._failed(at, history.words(error))
            return 0, 0
        if at.error is not None:
            log.info("history is written again", stream=at.stream.name)
        at.error, at.pause = None, RETRY_SECONDS
        return told

    def _count(self, at: _Stream, pieces: list[_Piece], written: list[Written]) -> None:
        with self._lock:
            at.writing, at.writing_bytes = [], 0
            at.rows -= sum(len(piece.rows) for piece in pieces)
            at.bytes -= sum(piece.bytes for piece in pieces)
            at.reach = replace(
                at.reach,
                last_seq=max(at.reach.last_seq, at.whole_below - 1),
                rows=at.reach.rows + sum(one.rows for one in written),
                late_rows=at.reach.late_rows + sum(one.late_rows for one in written),
                files=at.reach.files + len(written),
                bytes=at.reach.bytes + sum(one.bytes for one in written),
            )

    def _tell(self, at: _Stream) -> tuple[int, int]:
        """Write the reach down."""
        with self._lock:
            ends = (at.ending or self._closing) and not at.rows
            at.tell, told = False, (at.tickets, at.whole_below)
            reach = at.reach = replace(at.reach, reach_us=_known(at.reach_us()), open=not ends)
            at.told_at = time.monotonic()
        history.write_reach(at.folder, reach)
        with self._lock:
            # While its end was written, the stream may have been created again, and even ended again with other rows.
            if ends and not at.rows and not at.tell:
                self._forget(at)
        return told

    def _forget(self, at: _Stream) -> None:
        """It is written, or never will be. Holds the lock."""
        if at in self._ending:
            self._ending.remove(at)
        elif self._closing:
            del self._streams[at.stream.name]

    def _failed(self, at: _Stream, text: str) -> None:
        if at.error != text:
            log.error("history cannot be written; the server retries", stream=at.stream.name, reason=text)
        at.errors += 1
        at.error = text
        at.retry_at = time.monotonic() + at.pause
        at.pause = min(2 * at.pause, RETRY_SECONDS_MOST)
        if self._closing:
            log.error(
                "rows of a stream's history could not be written and are lost", stream=at.stream.name, rows=at.rows
            )
            with self._lock:
                self._forget(at)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has ended before its thread
            self._loop.call_soon_threadsafe(function, *arguments)

    def _wrote(self, at: _Stream, told: tuple[int, int]) -> None:
        """On the loop again: answer the requests that this write completes."""
        self._let_go(at)
        asked, at.asked = at.asked, []
        for one in asked:
            if one.future.done():
                continue
            if one.ticket <= told[0] and one.below <= told[1]:
                one.future.set_result(None)
            elif at.error is not None:
                one.future.set_exception(HistoryError(f"history of {at.stream.name} cannot be written: {at.error}"))
            else:
                at.asked.append(one)

    # -- the end -----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Write everything, end the thread, and unlock the folder."""
        if self._thread is not None:
            await self._end_thread(self._thread)
        if self._held is not None:
            os.close(self._held)
            self._held = None

    async def _end_thread(self, thread: threading.Thread) -> None:
        await self._at_rest()
        with self._lock:
            for at in self._streams.values():
                self._look(at)
            self._closing = True
            self._work.notify()
        while thread.is_alive():  # noqa: ASYNC110 - a thread has nothing to be awaited by
            await asyncio.sleep(0.005)

    # -- views -------------------------------------------------------------------------------------

    def next_seq(self, name: str) -> int:
        """The number that the next tuple of a stream will have."""
        return self._streams[name].next_seq

    def view(self, name: str) -> ArchiveView | None:
        """How far a stream's archive reaches, and its queued rows; None if it has no history."""
        at = self._streams.get(name)
        return None if at is None else self._view(at)

    def views(self) -> dict[str, ArchiveView]:
        return {name: self._view(at) for name, at in self._streams.items()}

    def _view(self, at: _Stream) -> ArchiveView:
        with self._lock:
            reach, reach_us, mark = at.reach, at.reach_us(), max(at.mark, at.floor)
            since = at.waits_since
            return ArchiveView(
                folder=str(at.folder),
                reach_us=_known(reach_us),
                lag_us=mark - reach_us if is_time(reach_us) and is_time(mark) else 0,
                last_seq=reach.last_seq,
                since_us=reach.since_us,
                rows=reach.rows,
                late_rows=reach.late_rows,
                files=reach.files,
                bytes=reach.bytes,
                waiting_rows=at.rows,
                waiting_bytes=at.bytes,
                waiting_us=0 if since is None else round((time.monotonic() - since) * 1e6),
                held=at.held,
                error=at.error,
                errors=at.errors,
                gaps=[
                    GapView(reason=gap.reason, after_seq=gap.after_seq, from_us=gap.from_us, found_us=gap.found_us)
                    for gap in reach.gaps
                ],
            )

    def problems(self) -> list[str]:
        """The reasons why history cannot be written, for the server's health."""
        return [
            f"history of stream {name} cannot be written: {at.error}; {at.rows} rows wait"
            for name, at in self._streams.items()
            if at.error is not None
        ]


def open_files(folder: Path | None) -> list[Path]:
    """The files of all streams that the last server did not finish."""
    folders = () if folder is None or not folder.is_dir() else sorted(folder.iterdir())
    return [path for one in folders if one.is_dir() for path in history.leftovers(one)]


def _open(folder: Path, stream: StreamDefinition, now_us: int, *, comes_again: bool) -> Reach:
    """Start to write where an earlier server may have written; repair and log its unfinished work. What that did not
    write is lost, unless it comes again from a journal."""
    make_folder(folder)
    left = history.remove_leftovers(folder)
    if left:
        log.warning("removed unfinished files of history", stream=stream.name, files=[path.name for path in left])
    before = history.read_reach(folder)
    reach = Reach.begun(stream) if before is None else before.of(stream)
    if comes_again and (removed := history.remove_parts(folder, reach)):
        log.warning("removed files of history that a killed server had not made all of", files=len(removed))
    reach = history.caught_up(folder, reach)
    if reach.open and not comes_again:
        gap = Gap(reach.last_seq, reach.reach_us, "killed", now_us)
        reach = replace(reach, gaps=(*reach.gaps, gap))
        log.warning(
            "the server was killed while it wrote history: unwritten rows are missing there",
            stream=stream.name,
            after_seq=gap.after_seq,
            from_us=gap.from_us,
        )
    reach = replace(reach, open=True)
    history.write_reach(folder, reach)
    return reach


def _known(us: int) -> int | None:
    return us if is_time(us) else None


def _weigh(rows: ArchivedRows) -> int:
    """Bytes that rows hold while they wait."""
    return PIECE_BYTES + rows.batch.nbytes + 9 * len(rows)
