"""The log of one history: its rows on disk, in files that grow at their end, and those that wait in memory.

Rule: fields change under the lock of `Results`, and files are read and written outside of it. A change that removes
rows changes `_generation`, so that the thread drops the record that it is writing. A file is removed as a whole, the
oldest first, and no reader holds its rows then.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from millrace.engine.saved_parts import Part
from millrace.journal.disk import RealFile, settle
from millrace.protocol import Schema
from millrace.protocol.words import counted
from millrace.store.rowfiles import (
    DamagedRowsError,
    Head,
    RowFile,
    name_of,
    number_of,
    read_batch,
    read_head,
    records,
    write_head,
    write_record,
)
from millrace.values.batch import Batch
from millrace.values.retention import Retain

if TYPE_CHECKING:
    from millrace.store.results import Results

log = structlog.get_logger()

# A record is read as a whole: a quarter of a megabyte is decoded in less than a millisecond.
RECORD_BYTES: Final = 1 << 18
# A log consists of at least so many files, because rows are removed by files.
PARTS: Final = 8
LEAST_FILE_BYTES: Final = 1 << 18
MOST_FILE_BYTES: Final = 1 << 23
# By number or age, files are at least as large as this: each costs an fsync.
ORDINARY_FILE_BYTES: Final = 1 << 20

Rows = tuple[int, Batch]


@dataclass(slots=True)
class Waiting:
    """Rows that are in memory only: numbered from `first`, emitted at `since_us`."""

    first: int
    batch: Batch
    since_us: int

    @property
    def following(self) -> int:
        return self.first + len(self.batch)


class ResultLog:
    """The retained rows of one history, numbered without a gap from `oldest` to below `next`.

    `hold` keeps rows from being trimmed for a reader that has not read them. Fields are changed under the lock of
    `Results`; `_files` and `_waiting` together have every row from `oldest` on, and a row is in one of them.
    """

    def __init__(self, results: Results, history: str, schema: Schema, retain: Retain, folder: Path) -> None:
        self.history = history
        self.schema = schema
        self.next = 0
        self.on_written: Callable[[], None] | None = None  # on the loop, while feeds wait for the disk
        self.removed = False
        self._retain = retain
        self._results = results
        self._folder = folder
        self._files: list[RowFile] = []
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._holds: dict[Hashable, int] = {}
        self._generation = 0  # changes when rows are removed that the thread may be writing
        self._handle: int | None = None  # of the last file
        self._unsynced = False

    # -- views -------------------------------------------------------------------------------------

    @property
    def oldest(self) -> int:
        """The number of the oldest row; `next` if there is none."""
        with self._results.lock:
            return self._oldest()

    def _oldest(self) -> int:
        if self._files:
            return self._files[0].first
        return self._waiting[0].first if self._waiting else self.next

    @property
    def disk_bytes(self) -> int:
        with self._results.lock:
            return sum(file.size for file in self._files)

    @property
    def waiting_bytes(self) -> int:
        """In memory, of rows that are not on disk."""
        return self._waiting_bytes

    @property
    def waiting_rows(self) -> int:
        with self._results.lock:
            return sum(len(part.batch) for part in self._waiting)

    @property
    def obstacle(self) -> str | None:
        """Why nothing can be written at present."""
        trouble = self._results.trouble
        return None if trouble is None else trouble.reason

    @property
    def pressure(self) -> float:
        """How full the buffers of all logs are; 1 if feeds have to wait for the disk."""
        return self._results.pressure if self._waiting else 0.0

    def bytes_from(self, sequence: int) -> int:
        """About how many bytes the rows from this one on take."""
        with self._results.lock:
            return self._waiting_bytes + sum(file.size for file in self._files if file.following > sequence)

    def fill(self, sequence: int) -> float:
        """The rows from this one on, as a part of those that may be retained: above 1, trimming would remove some."""
        retain = self._retain
        unread = self.bytes_from(sequence)
        share = max(unread / self._results.limits.most_bytes, self._results.excess)
        if retain.rows is not None:
            return max((self.next - sequence) / retain.rows, share)
        if retain.age_us is not None:
            return max((self._results.now_us() - self.time_of(sequence)) / retain.age_us, share)
        return max(unread / retain.bytes, share) if retain.bytes else float("inf")

    def time_of(self, sequence: int) -> int:
        """About when this row was emitted."""
        with self._results.lock:
            for file in reversed(self._files):
                if file.first <= sequence < file.following:
                    return file.head.since_us
            return self._waiting[0].since_us if self._waiting else self._results.now_us()

    # -- changes -----------------------------------------------------------------------------------

    def append(self, sequence: int, batch: Batch) -> None:
        """Add rows, except those that are here already. After a gap, older rows are removed."""
        following = sequence + len(batch.ts)
        if following <= self.next:
            return
        if sequence < self.next:
            batch = batch.slice(self.next - sequence, len(batch))
            sequence = self.next
        results = self._results
        with results.lock:
            if sequence > self.next or (batch.schema is not self.schema and batch.schema != self.schema):
                self._clear()
                self.schema = batch.schema
            self.next = following
            if self._retain.nothing and not self._holds and not self._files:
                if self._waiting:
                    self._clear()
                return
            self._waiting.append(Waiting(sequence, batch, results.now_us()))
            self._add_waiting(batch.weight)
            results.changed_log(self)

    def adopt(self, schema: Schema, sequence: int) -> None:
        """Rows have other columns from this number on: those before are removed, and the numbers continue. A replay of
        steps from before that changes nothing."""
        with self._results.lock:
            if sequence >= self.next and schema != self.schema:
                self._clear()
                self.schema = schema

    def cut(self, sequence: int) -> None:
        """Before the first `append`, remove the rows from this number on: the steps that emitted them are lost."""
        with self._results.lock:
            if sequence >= self.next:
                return
            log.warning("removed retained rows of lost steps", folder=str(self._folder), rows=self.next - sequence)
            self.next = sequence
            while self._files and self._files[-1].first >= sequence:
                self._results.doom([self._files.pop()])
            self._results.remove_doomed()
            self._sync_folder(self._folder)  # else a power cut could bring back a file with rows of lost steps
            if self._files:
                self._cut_file(self._files[-1], sequence)

    def _cut_file(self, file: RowFile, sequence: int) -> None:
        """Cut off the record with this row; its earlier rows are written again."""
        handle = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            for record in records(handle, file.entry(sequence), file.size):
                if record.first + record.rows > sequence:
                    rest = read_batch(record, file.head.schema).slice(0, sequence - record.first)
                    end = record.offset
                    if len(rest):
                        end += _write_at(handle, write_record(record.first, rest, record.since_us), record.offset)
                    os.ftruncate(handle, end)
                    os.fsync(handle)
                    self._results.disk_bytes -= file.size - end
                    file.cut(record)
                    file.size, file.following = end, sequence
                    return
        finally:
            os.close(handle)

    def resume(self, sequence: int) -> None:
        """The next row has at least this number: rows that should precede it and are not here are lost."""
        with self._results.lock:
            if sequence > self.next:
                if self.next:
                    text = "retained rows are missing; subscribers resume after them"
                    log.error(text, folder=str(self._folder), first=self.next, following=sequence)
                self._clear()
                self.next = sequence

    def retain(self, retain: Retain) -> None:
        """Retain more or less from now on."""
        with self._results.lock:
            self._retain = retain
            self._results.changed_log(self)

    def remove(self) -> None:
        """The query is gone, and its rows with it."""
        with self._results.lock:
            self._clear()
            self.removed = True
            self._results.remove_log(self)

    def hold(self, reader: Hashable, sequence: int) -> bool:
        """Keep the rows from this one on for a reader, if they are here."""
        with self._results.lock:
            if sequence < self._oldest():
                return False
            self._holds[reader] = sequence
            return True

    def release(self, reader: Hashable) -> None:
        """The reader needs no rows from here."""
        with self._results.lock:
            self._holds.pop(reader, None)

    def _clear(self) -> None:
        """Remove every row: the files go later."""
        self._generation += 1
        self._results.doom(self._files)
        self._files = []
        self._waiting.clear()
        self._add_waiting(-self._waiting_bytes)

    def _add_waiting(self, size: int) -> None:
        self._waiting_bytes += size
        self._results.waiting_bytes += size

    # -- reading -----------------------------------------------------------------------------------

    async def read_aside(self, sequence: int, most_rows: int, most_bytes: int) -> list[Rows]:
        """The same rows as `read` returns, read in a thread unless they are in memory."""
        with self._results.lock:
            if not self._files or sequence >= self._files[-1].following:
                return self._read_waiting(max(sequence, self._oldest()), most_rows, most_bytes)
        return await self._results.aside(lambda: self.read(sequence, most_rows, most_bytes))

    def read(self, sequence: int, most_rows: int, most_bytes: int) -> list[Rows]:
        """Rows from a number on, or from the oldest: at most so many, and about so many bytes; a row at least.

        It reads files, in any thread. Damage is logged, and reading continues after the damaged file.
        """
        while True:
            with self._results.lock:
                sequence = max(sequence, self._oldest())
                file = next((file for file in self._files if file.first <= sequence < file.following), None)
                if file is None:
                    return self._read_waiting(sequence, most_rows, most_bytes)
                offset, size = file.entry(sequence), file.size
            try:
                found = self._read_file(file, sequence, offset, size, most_rows, most_bytes)
            except FileNotFoundError:
                with self._results.lock:
                    if file not in self._files:
                        continue  # it has been trimmed
                self._lose(file, f"{file.path} is gone")
                continue
            except DamagedRowsError as error:
                self._lose(file, error.text)
                continue
            return found

    def _read_waiting(self, sequence: int, most_rows: int, most_bytes: int) -> list[Rows]:
        found: list[Rows] = []
        for part in self._waiting:
            if part.following <= sequence:
                continue
            if most_rows <= 0 or (found and part.batch.weight > most_bytes):
                break
            begin = max(sequence - part.first, 0)
            batch = part.batch.slice(begin, min(len(part.batch), begin + most_rows))
            found.append((part.first + begin, batch))
            most_rows -= len(batch)
            most_bytes -= batch.weight
        return found

    def _read_file(
        self, file: RowFile, sequence: int, offset: int, size: int, most_rows: int, most_bytes: int
    ) -> list[Rows]:
        found: list[Rows] = []
        handle = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for record in records(handle, offset, size):
                offset = record.offset + record.size
                if record.offset > file.offsets[-1]:
                    with self._results.lock:
                        file.note(record.first, record.offset)
                if record.first + record.rows <= sequence:
                    continue
                if found and record.size > most_bytes:
                    return found
                begin = max(sequence - record.first, 0)
                stop = min(record.rows, begin + most_rows)
                batch = read_batch(record, file.head.schema)
                found.append((record.first + begin, batch if stop - begin == record.rows else batch.slice(begin, stop)))
                most_rows -= stop - begin
                most_bytes -= record.size
                if most_rows <= 0 or most_bytes <= 0:
                    return found
        finally:
            os.close(handle)
        if not found:
            raise DamagedRowsError(f"{file.path} is damaged at offset {offset}")
        return found

    def _lose(self, damaged: RowFile, reason: str) -> None:
        """Remove the files up to a damaged one."""
        with self._results.lock:
            if damaged not in self._files:
                return
            position = self._files.index(damaged) + 1
            lost = damaged.following - self._files[0].first
            self._generation += position == len(self._files)
            self._results.doom(self._files[:position])
            del self._files[:position]
            self._results.damaged[self.history] = (
                f"{reason}; {counted(lost, 'retained row')} up to there cannot be read"
            )
        log.error("retained rows are damaged; subscribers resume after them", reason=reason, rows=lost)

    # -- in the thread -----------------------------------------------------------------------------

    def write(self) -> None:
        """Write the waiting rows."""
        while (parts := self._next_parts()) is not None:
            generation, first, batch, since_us = parts
            file = self._file_for(first, since_us, generation)
            if file is None:
                continue
            record = write_record(first, batch, since_us)
            offset = file.size
            handle = self._open_handle(file)
            self._unsynced = True
            size = _write_at(handle, record, offset)
            with self._results.lock:
                if self._generation == generation:
                    self._written(file, first, len(batch), since_us, offset, size)

    def _next_parts(self) -> tuple[int, int, Batch, int] | None:
        """The rows of the next record, which stay among those that wait."""
        with self._results.lock:
            if self._retain.nothing and not self._files:
                self._drop_unneeded()
            if not self._waiting:
                return None
            group: list[Batch] = []
            weight = 0
            for part in self._waiting:
                if group and weight + part.batch.weight > RECORD_BYTES:
                    break
                group.append(part.batch)
                weight += part.batch.weight
            oldest = self._waiting[0]
            generation = self._generation
        batch = Batch.concat(group)
        if batch.weight > RECORD_BYTES and len(batch) > 1:
            batch = batch.slice(0, max(len(batch) * RECORD_BYTES // batch.weight, 1))
        return generation, oldest.first, batch, oldest.since_us

    def _drop_unneeded(self) -> None:
        """Rows that no reader holds are not written if nothing is retained."""
        floor = self._floor()
        while self._waiting and self._waiting[0].following <= floor:
            self._add_waiting(-self._waiting.popleft().batch.weight)

    def _floor(self) -> int:
        return min(self._holds.values(), default=self.next)

    def _file_for(self, first: int, since_us: int, generation: int) -> RowFile | None:
        """The file that gets the row of this number; None if the rows before it were removed meanwhile."""
        with self._results.lock:
            if self._generation != generation:
                return None
            last = self._files[-1] if self._files else None
            if last is not None and not self._is_full(last):
                return last
        self.close_file()
        self._make_folder()
        head = Head(self.history, self.schema, first, None if last is None else last.first, since_us)
        path = self._folder / name_of(first)
        data = write_head(head)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        handle = os.open(path, flags, 0o600)
        try:
            _write_at(handle, [data], 0)
            self._sync_folder(self._folder)
        except BaseException:
            os.close(handle)
            raise
        file = RowFile(path, head, len(data), first, since_us, [first], [len(data)])
        with self._results.lock:
            if self._generation != generation:
                self._results.disk_bytes += file.size
                self._results.doom([file])
                os.close(handle)
                return None
            self._files.append(file)
            self._handle = handle
            self._results.disk_bytes += file.size
            self._results.keep(path)
        self._unsynced = True
        self._results.opened(self)
        return file

    def _is_full(self, file: RowFile) -> bool:
        retain = self._retain
        if retain.bytes is not None:
            return file.size >= min(max(retain.bytes // PARTS, LEAST_FILE_BYTES), MOST_FILE_BYTES)
        if file.size < ORDINARY_FILE_BYTES:
            return False
        if retain.rows is not None and file.following - file.first >= retain.rows // PARTS:
            return True
        old = retain.age_us is not None and self._results.now_us() - file.head.since_us >= retain.age_us // PARTS
        return old or file.size >= MOST_FILE_BYTES

    def _open_handle(self, file: RowFile) -> int:
        if self._handle is None:
            self._handle = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
            self._results.opened(self)
        return self._handle

    def _written(self, file: RowFile, first: int, rows: int, since_us: int, offset: int, size: int) -> None:
        file.note(first, offset)
        file.size = offset + size
        self._results.disk_bytes += size
        file.following = first + rows
        file.newest_us = since_us
        while rows > 0:
            part = self._waiting.popleft()
            self._add_waiting(-part.batch.weight)
            if len(part.batch) > rows:
                rest = part.batch.split(rows)[1]
                self._waiting.appendleft(Waiting(part.first + rows, rest, part.since_us))
                self._add_waiting(rest.weight)
            rows -= len(part.batch)

    def sync(self) -> None:
        """Make what is written durable."""
        if self._unsynced:
            if self._handle is not None:
                self._results.make_durable(self._handle)
            self._unsynced = False

    def _make_folder(self) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._sync_folder(self._folder.parent)
            self._sync_folder(self._folder.parent.parent)

    def _sync_folder(self, folder: Path) -> None:
        self._results.sync_folder(folder)

    def close_file(self) -> None:
        """Make the last file durable and close it; the next write opens it again."""
        if self._handle is not None:
            try:
                self.sync()
            finally:
                handle, self._handle = self._handle, None
                os.close(handle)
                self._results.closed(self)

    def trim(self) -> None:
        """Remove the oldest files as far as `retain` says and no reader holds them."""
        with self._results.lock:
            now_us, floor = self._results.now_us(), self._floor()
            while self._files and self._files[0].following <= floor and self._is_excess(now_us):
                self.drop_oldest()

    def drop_oldest(self) -> None:
        """Remove the oldest file, which may be the last one."""
        file = self._files.pop(0)
        if not self._files:
            self._generation += 1
        self._results.doom([file])

    @property
    def oldest_file(self) -> RowFile | None:
        """The oldest file if no reader holds it."""
        if self._files and self._files[0].following <= self._floor():
            return self._files[0]
        return None

    def _is_excess(self, now_us: int) -> bool:
        """Whether the oldest file has to go."""
        retain, oldest = self._retain, self._files[0]
        if retain.rows is not None:
            return self.next - oldest.following >= retain.rows
        if retain.age_us is not None:
            return oldest.newest_us < now_us - retain.age_us
        assert retain.bytes is not None
        return sum(file.size for file in self._files) > retain.bytes

    # -- at a start --------------------------------------------------------------------------------

    def load(self) -> None:
        """Find the rows of an earlier run: cut off the torn end, and use what precedes it without a gap. Names and the
        last file may not be durable yet if the server was killed."""
        self._sync_folder(self._folder)
        names = sorted(name for name in os.listdir(self._folder) if number_of(name) is not None)
        if names:
            handle = os.open(self._folder / names[-1], os.O_RDWR | os.O_CLOEXEC)
            try:
                settle(handle)
            finally:
                os.close(handle)
        chain: list[RowFile] = []
        for name in names:
            file = self._load_head(self._folder / name)
            if file is None:
                continue
            if chain and file.head.before != chain[-1].first:
                if file.head.before is not None:
                    text = "retained rows are missing; subscribers resume after them"
                    log.error(text, folder=str(self._folder), first=chain[-1].first, following=file.first)
                self._results.disk_bytes += sum(one.size for one in chain)
                self._results.doom(chain)
                chain = []
            if chain:
                chain[-1].following = file.first
                chain[-1].newest_us = max(chain[-1].newest_us, file.head.since_us)
            chain.append(file)
        self._files = chain
        self._results.disk_bytes += sum(file.size for file in chain)
        if chain:
            self._load_end(chain[-1])
            self.schema = chain[-1].head.schema
            self.next = chain[-1].following

    def _load_head(self, path: Path) -> RowFile | None:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found, size = read_head(handle, path), os.fstat(handle).st_size
        finally:
            os.close(handle)
        if found is None or found[0].history != self.history or name_of(found[0].first) != path.name:
            log.warning("removed a torn file of retained rows", path=str(path), bytes=size)
            path.unlink()
            return None
        head, begin = found
        return RowFile(path, head, size, head.first, head.since_us, [head.first], [begin])

    def _load_end(self, file: RowFile) -> None:
        """Look at each record of the last file, and cut off what follows the last whole one."""
        handle = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            end, size = file.offsets[0], file.size
            for record in records(handle, end, size):
                if record.first != file.following:
                    break
                file.note(record.first, record.offset)
                file.following, file.newest_us = record.first + record.rows, record.since_us
                end = record.offset + record.size
            if end < size:
                log.warning("removed a torn record of retained rows", path=str(file.path), bytes=size - end)
                os.ftruncate(handle, end)
                os.fsync(handle)
                self._results.disk_bytes -= size - end
            file.size = end
        finally:
            os.close(handle)


def _write_at(handle: int, parts: list[Part], offset: int) -> int:
    """Write all of them, one after the other; their size."""
    RealFile(handle).write_at(offset, parts)
    return sum(map(len, parts))
