"""The stores of a server on a disk that is cut off again and again, and an auditor that knows what was promised.

A small server without an engine: a record of its journal is a number of rows, and a row's content follows from its
number and from the life in which it was emitted. It does with its stores what a server does, in the same order: orders
of a step are carried out when its record is synced (`early`: when it is written, as with `sync = '10 ms'`), a
checkpoint is completed when retained rows, sinks and history are durable, and a start repeats the records after it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.engine.plan import StreamDefinition
from millrace.formats.writers import csv_lines, csv_names, file_batch, file_schema, json_lines
from millrace.history import archive
from millrace.history import files as history
from millrace.history.files import ArchivedRows
from millrace.journal.checkpoints import Checkpoint, Checkpoints
from millrace.journal.disk import JOURNAL_FOLDER, RealDisk
from millrace.journal.errors import JournalError, JournalFull
from millrace.journal.keeping import Keeping
from millrace.journal.segments import Journal
from millrace.journal.steps import FORM
from millrace.protocol import Schema
from millrace.store.places import SinkFolders
from millrace.store.resultlog import ResultLog
from millrace.store.results import ResultLimits, Results, ResultsBroken
from millrace.store.sinkfiles import Label, NotDurableError, Rotation, SinkFile, SinkPosition, line_file, whole_files
from millrace.values.batch import Batch
from millrace.values.retention import parse_keep, parse_retain
from tests.disk.calls import Recording
from tests.disk.model import Folder, crash, store

SCHEMA = Schema.of(k="bigint", t="text")
STREAM = StreamDefinition("s", SCHEMA, history=True)
SEGMENT_BYTES = 1_500
ROTATION = Rotation(9, 1 << 40, 10**12)
# The histories of two queries with the same rows, and how much they retain.
LOGS = {"aa" * 8: "1 GB", "bb" * 8: "30 rows"}
HISTORY = next(iter(LOGS))
LINES, WHOLE = ("jsonl", "csv"), ("parquet", "arrow")
ACTIONS = (
    *["step"] * 5,
    *["sync"] * 4,
    *["write"] * 2,
    *["write_results"] * 2,
    "checkpoint",
    "commit",
    "archive",
    "age",
    "rotate",
)
DAY_US = 86_400_000_000


class PowerCut(BaseException):
    """The machine or the process stops in the middle of a call."""


class ServerEndsError(Exception):
    """A failure of the disk that ends a server."""


@dataclass
class Plan:
    """One life of a server: its actions, and the change in whose middle it ends. `kill`: the machine goes on. `faults`
    are errors of the disk, by the number of the change that fails."""

    actions: list[str]
    cut_at: int | None
    kill: bool = False
    faults: dict[int, int] = field(default_factory=dict)


def draw_plan(random: Random) -> Plan:
    actions = [random.choice(ACTIONS) for _ in range(random.randrange(1, 40))]
    faults = {}
    if random.random() < 0.3:
        numbers = [errno.EIO, errno.EIO, errno.ENOSPC]
        faults = {random.randrange(1, 150): random.choice(numbers) for _ in range(random.randrange(1, 4))}
    cut_at = random.choice((random.randrange(1, 40), random.randrange(1, 200))) if random.random() < 0.9 else None
    return Plan(actions, cut_at, random.random() < 0.25, faults)


def rows_of(first: int, lives: list[int]) -> Batch:
    """Rows with these numbers on. Their days alternate."""
    rows = [(k, f"{life}-" + ('line\n"' if k % 3 else "äö,") * (k * 7 % 30)) for k, life in enumerate(lives, first)]
    return Batch.from_rows(SCHEMA, rows, [k % 3 * DAY_US + k for k, _ in rows], arrival=1)


@dataclass
class Queue:
    """A sink, the rows that it has taken, and its newest position."""

    file: SinkFile
    position: dict[str, Any]
    next: int
    failed: bool = False


@dataclass
class Request:
    """A request to make retained rows durable."""

    error: Exception | None = None
    told: bool = False

    def tell(self, error: Exception | None) -> None:
        self.error, self.told = error, True


class Server:
    """One life. `lives` has, for each row, the life that it was first emitted in."""

    def __init__(self, world: World) -> None:
        self.world, self.random = world, world.random
        self.checkpoints = Checkpoints(world.folder)
        self.checkpoints.chunk_bytes = 64  # type: ignore[misc]
        self.keeping = Keeping(self.checkpoints, parse_keep("none"))
        self.now_us = 1_000_000
        self.lives: list[int] = []
        self.recorded = 0
        self.waiting: list[tuple[int, int, int]] = []  # record, first row, rows: not carried out
        self.logs: dict[str, ResultLog] = {}
        self.sinks: dict[str, Queue] = {}
        self.writing: tuple[int, int] | None = None  # rows of history whose files are not complete

    @property
    def emitted(self) -> int:
        return len(self.lives)

    # -- the start ---------------------------------------------------------------------------------

    def start(self) -> None:
        complete = self.checkpoints.complete()
        found: Checkpoint | None = self.checkpoints.read(complete[-1]) if complete else None
        self.journal = Journal.open(
            RealDisk(self.world.folder / JOURNAL_FOLDER),
            segment_bytes=SEGMENT_BYTES,
            server_id=b"0" * 16,
            reaches=0 if found is None else found.lsn,
            now_us=lambda: self.now_us,
        )
        self.checkpoints.prepare()
        self.keeping.load()
        self.lives = [] if found is None else list(found.control["lives"])
        if found is not None:
            assert bytes(found.state.get(0)) == self.state(), "the state of a checkpoint"
        self.recorded = self.emitted
        self._open_results()
        self._open_sinks({} if found is None else found.control["positions"])
        self._open_history()
        if found is None:
            assert self.journal.next_lsn == 1, "records without a checkpoint"
            self._complete(0)
            return
        for _, record in self.journal.read(found.lsn + 1):
            first, count, life = json.loads(record)
            assert first == self.emitted, "the journal has a gap"
            self._emit([life] * count)
        self.recorded = self.emitted
        for log in self.logs.values():
            log.cut(self.emitted)
        assert self.world.promised <= self.emitted, "promised rows are lost"
        self.world.promised = self.emitted

    def _open_results(self) -> None:
        self.results = Results(self.world.folder, ResultLimits(1 << 30), lambda: self.now_us, threaded=False)
        self.results.forget_unknown(LOGS)
        for name, retain in LOGS.items():
            found = self.results.open(name, SCHEMA, parse_retain(retain), self.emitted)
            assert found is not None
            self.logs[name] = found

    def _open_sinks(self, positions: dict[str, Any]) -> None:
        places = SinkFolders(self.world.folder / "sinks")
        for ending in (*LINES, *WHOLE) if not self.world.early else ():
            place = places.locate(f"below/out.{ending}")
            file: SinkFile = (
                line_file(places, place, SCHEMA, ending)
                if ending in LINES
                else whole_files(places, place, SCHEMA, Label("f", "q", ending), ROTATION)
            )
            position = positions.get(ending)
            if position is None:
                file.open(makes=True)
                position = {"history": HISTORY, "next": 0, **file.start()}
            file.history = HISTORY
            file.prepare(SinkPosition.from_data(position), complete=True)
            queue = self.sinks[ending] = Queue(file, position, position["next"])
            self._write(queue)

    def _open_history(self) -> None:
        self.history = history.stream_folder(self.world.folder / "history", STREAM.name)
        history.hold(self.world.folder / "history")
        self.reach = archive._open(self.history, STREAM, self.now_us, comes_again=True)
        self.archived = self.reach.last_seq + 1

    # -- rows --------------------------------------------------------------------------------------

    def _emit(self, lives: list[int]) -> None:
        """Carry out the orders of a step."""
        first = self.emitted
        self.lives += lives
        for log in self.logs.values():
            log.append(first, rows_of(first, lives))
        for queue in self.sinks.values():
            self._write(queue)

    def _write(self, queue: Queue) -> None:
        if queue.failed:
            return
        try:
            if queue.next < self.emitted:
                queue.file.write(queue.next, rows_of(queue.next, self.lives[queue.next :]))
                queue.next = self.emitted
            queue.file.flush()
        except OSError:
            if queue.next < self.emitted:
                queue.next += queue.file.taken
        except NotDurableError:
            queue.failed = True

    # -- actions -----------------------------------------------------------------------------------

    def step(self) -> None:
        count = self.random.choice((1, 1, 3, 10))
        record = json.dumps([self.recorded, count, self.world.life]).encode()
        lsn = self.journal.append(record + b" " * self.random.choice((0, 300)))
        self.waiting.append((lsn, self.recorded, count))
        self.recorded += count

    def write(self) -> None:
        with suppress(JournalFull):
            self.journal.write()
        if self.world.early:
            self._carry_out(self.journal.written)

    def sync(self) -> None:
        self.write()
        synced = self.journal.sync()
        self._carry_out(synced)
        self.world.promised = self.emitted

    def _carry_out(self, lsn: int) -> None:
        while self.waiting and self.waiting[0][0] <= lsn:
            _, first, count = self.waiting.pop(0)
            assert first == self.emitted
            if not self.world.early:
                self.world.promised = first + count
            self._emit([self.world.life] * count)

    def write_results(self) -> None:
        self.results.work()
        self._look()

    def age(self) -> None:
        self.now_us += 10_000_000

    def rotate(self) -> None:
        """Another program renames files of lines, as a rotation of logs does."""
        folder = self.world.folder / "sinks" / "below"
        for ending in LINES:
            if (folder / f"out.{ending}").exists() and self.random.random() < 0.7:
                self.world.rotations += 1
                with suppress(OSError):
                    os.rename(folder / f"out.{ending}", folder / f"out.{ending}.{self.world.rotations:04d}")

    def commit(self) -> None:
        """A sink whose file can't be made durable stops until the next start."""
        for queue in self.sinks.values():
            self._write(queue)
            if not queue.failed:
                try:
                    position = queue.file.committed()
                except OSError:
                    queue.failed = True
                else:
                    if position is not None:
                        queue.position = position.to_data()

    def archive(self) -> None:
        """Write the rows that wait, or repeat what failed; then the reach."""
        if self.world.early:
            return
        with suppress(OSError, pa.ArrowException):
            self._archive()

    def _archive(self) -> None:
        if self.writing is None and self.archived < self.emitted:
            self.writing = (self.archived, self.emitted)
        if self.writing is not None:
            first, end = self.writing
            batch = rows_of(first, self.lives[first:end])
            rows = ArchivedRows(first, batch, np.zeros(end - first, np.bool_), batch.ts.copy(), (("f", end - first),))
            history.write_rows(self.history, STREAM, rows)
            self.reach = replace(self.reach, last_seq=end - 1, rows=self.reach.rows + end - first)
            self.archived, self.writing = end, None
        history.write_reach(self.history, self.reach)

    def checkpoint(self) -> None:
        """As `Durability` makes one: the control state after a step, complete when all before it is durable."""
        self.sync()
        if not self.waiting:  # else the disk is full
            self._complete(self.journal.next_lsn - 1)

    def _complete(self, lsn: int) -> None:
        if lsn in {saved.lsn for saved in self.keeping.saved}:
            return
        control = {"form": FORM, "lives": list(self.lives), "at_us": self.now_us}
        try:
            self.checkpoints.write_state(lsn, lambda put: b"state" * put(memoryview(self.state())))
            control["positions"] = self.make_durable()
            self.checkpoints.write_control(lsn, control)
        except (OSError, pa.ArrowException):
            self.checkpoints.discard(lsn)
            if not self.keeping.saved:
                raise  # a server without any checkpoint does not start
            return
        self.keeping.add(lsn, self.now_us)
        self.journal.trim(self.keeping.tidy(self.journal.segments, self.now_us))

    def state(self) -> bytes:
        """The state of the engine: an array that grows, and whose end changes."""
        return b"".join(b"%4d" % life for life in self.lives) + b"%d rows" % len(self.lives)

    def make_durable(self) -> dict[str, Any]:
        """As `Daemon.make_durable`."""
        if not self.world.early:
            while self.archived < self.emitted:
                self._archive()
            self._archive()
        self.sync_results()
        self.commit()
        return {ending: queue.position for ending, queue in self.sinks.items()}

    def sync_results(self) -> None:
        request = Request()
        self.results._syncs.append(request)  # type: ignore[arg-type]
        while not request.told:
            self.results.work()
            self._look()
        if request.error is not None:
            raise request.error

    def _look(self) -> None:
        if self.results.failed is not None:
            raise ServerEndsError

    # -- the audit ---------------------------------------------------------------------------------

    def audit(self) -> None:
        self.results.work()
        for log in self.logs.values():
            assert log.next == self.emitted
            found = log.read(0, 1 << 30, 1 << 30)
            while found and found[-1][0] + len(found[-1][1]) < log.next:
                found += log.read(found[-1][0] + len(found[-1][1]), 1 << 30, 1 << 30)
            oldest = found[0][0] if found else self.emitted
            least = 0 if log.history == HISTORY else self.emitted - 30
            assert oldest <= max(least, 0), (log.history, oldest, self.emitted)
            rows = [row for _, batch in found for row in batch.rows()]
            assert rows == rows_of(oldest, self.lives[oldest:]).rows(), "retained rows"
        for ending, queue in self.sinks.items():
            assert queue.file.notice is None, queue.file.notice
            assert queue.next == self.emitted
            self._audit_sink(ending, queue)
        if not self.world.early:
            self._archive()
            assert self._archived_rows() == list(range(self.emitted)), "history"

    def _audit_sink(self, ending: str, queue: Queue) -> None:
        folder, batch = self.world.folder / "sinks" / "below", rows_of(0, self.lives)
        path = folder / f"out.{ending}"
        if ending in LINES:
            header = csv_names(file_schema(SCHEMA)) if ending == "csv" else b""
            found = [one.read_bytes() for one in (*sorted(folder.glob(f"{path.name}.*")), path)]
            assert all(part.startswith(header) for part in found if part), "header"
            rows_found = b"".join(part[len(header) :] for part in found)
            assert rows_found == (csv_lines(file_batch(batch)) if header else json_lines(batch)), ending
        else:
            entries = [json.loads(line) for line in (path / "_f.manifest.jsonl").read_bytes().splitlines()] \
                if (path / "_f.manifest.jsonl").exists() else []  # fmt: skip
            assert sorted(entry["file"] for entry in entries) == sorted(one.name for one in path.glob(f"f*.{ending}"))
            tables = [_table(path / entry["file"]) for entry in entries]
            rows = [tuple(row[name] for name in ("k", "t")) for table in tables for row in table.to_pylist()]
            assert len(rows) + queue.file.unfinished == self.emitted, "rows in whole files"
            assert rows == batch.rows()[: len(rows)], "whole files"

    def _archived_rows(self) -> list[int]:
        tables = [_table(path) for path in history.files(self.history)]
        return sorted(number for table in tables for number in table[history.SEQUENCE].to_pylist())


def _table(path: Path) -> Any:
    data = pa.BufferReader(path.read_bytes())
    return pq.ParquetFile(data).read() if path.suffix == ".parquet" else pa.ipc.open_file(data).read_all()


class World:
    """One data directory and its servers, one after the other."""

    def __init__(self, folder: Path, random: Random, kind: type[Server] = Server, *, early: bool = False) -> None:
        self.root, self.random, self.kind, self.early = folder, random, kind, early
        self.folder = folder / "0"
        self.folder.mkdir(parents=True)
        self.disk = Folder()
        self.life = 0
        self.promised = 0
        self.rotations = 0
        self.cuts = 0
        self._plan = Plan([], None)
        self._changes = 0
        self._ended = False
        self._failed = False

    def live(self, plan: Plan) -> None:
        """A life, its end, and an audit by the next one, which ends by a kill."""
        self.life += 1
        self._play(plan)
        self._end(kill=plan.kill)
        self.life += 1
        self._play(Plan(["audit"], None))
        self._end(kill=self.random.random() < 0.5)

    def _play(self, plan: Plan) -> None:
        self._plan, self._changes, self._ended, self._failed = plan, 0, False, False
        server = self.kind(self)
        with Recording(self.folder, self.disk, self.random, self._before) as recording:
            try:
                server.start()
                for action in plan.actions:
                    getattr(server, action)()
            except (PowerCut, ServerEndsError):
                pass
            except (JournalError, ResultsBroken, OSError, pa.ArrowException):
                if not self._failed:
                    raise
        recording.check()
        close_files(self.folder)

    def _before(self, _call: str, _name: str) -> None:
        self._changes += 1
        if self._ended or self._changes == self._plan.cut_at:
            self._ended = True
            raise PowerCut
        fault = self._plan.faults.get(self._changes)
        if fault is not None:
            self._failed = True
            raise OSError(fault, os.strerror(fault))

    def _end(self, *, kill: bool) -> None:
        self.cuts += 1
        if kill:
            return
        crash(self.disk, self.random)
        before, self.folder = self.folder, self.root / str(self.cuts)
        store(self.disk, self.folder)
        shutil.rmtree(before)
        if self.early:
            self.promised = 0


def close_files(folder: Path) -> None:
    """Close what an ended process would not have open any more."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(f"{folder}{os.sep}"):
                os.close(int(name))


def play(folder: Path, seed: int, lives: int = 6, kind: type[Server] = Server) -> int:
    """Play one world; returns how often it was cut off."""
    random = Random(seed)
    world = World(folder / str(seed), random, kind, early=random.random() < 0.2)
    try:
        for _ in range(lives):
            world.live(draw_plan(random))
    except Exception as error:
        error.add_note(f"seed {seed} fails; again: python -m tests.disk --from {seed} --seeds 1")
        raise
    finally:
        shutil.rmtree(folder / str(seed), ignore_errors=True)
    return world.cuts
