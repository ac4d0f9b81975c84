"""Failures of other brokers and databases, played against the journal and the stores.

`docs/decisions/simulated-disk.md` says what happened there.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from millrace.journal.checkpoints import Checkpoints
from millrace.journal.disk import JOURNAL_FOLDER, RealDisk
from millrace.journal.errors import JournalDamaged, JournalError
from millrace.journal.keeping import Keeping
from millrace.journal.segments import Journal
from millrace.journal.steps import FORM
from millrace.store import resultlog, sinkfiles
from millrace.store.places import SinkFolders
from millrace.store.resultlog import ResultLog
from millrace.store.results import Results
from millrace.store.sinkfiles import Label, Rotation, SinkFile, SinkPosition, line_file, whole_files
from millrace.values.retention import parse_keep, parse_retain
from tests.disk.machine import Machine, every_cut
from tests.disk.stores import HISTORY, LINES, SCHEMA, WHOLE, Request, rows_of

STORES = ("results", *LINES, *WHOLE)
ROWS = 20
LIVES = [0] * ROWS


class Store:
    """Rows of one history in one place: retained, or in a sink's file or folder."""

    def __init__(self, folder: Path, kind: str, position: SinkPosition | None = None) -> None:
        self.kind = kind
        if kind == "results":
            self.results = Results(folder, now_us=lambda: 1, threaded=False)
            found = self.results.open(HISTORY, SCHEMA, parse_retain("1 GB"))
            assert found is not None
            self.log: ResultLog = found
            return
        places = SinkFolders(folder / "sinks")
        place = places.locate(f"out.{kind}")
        self.file: SinkFile = (
            line_file(places, place, SCHEMA, kind)
            if kind in LINES
            else whole_files(places, place, SCHEMA, Label("f", "q", kind), Rotation(5, 1 << 40, 10**12))
        )
        self.file.history = HISTORY
        if position is None:
            self.file.open(makes=True)
            position = SinkPosition(HISTORY, 0, **self.file.start())
        self.file.prepare(position, complete=True)

    def write(self, first: int, count: int) -> None:
        """Take rows, and make them visible to other programs at least."""
        if self.kind == "results":
            self.log.append(first, rows_of(first, LIVES[first : first + count]))
            self.results.work()
        else:
            self.file.write(first, rows_of(first, LIVES[first : first + count]))

    def sync(self) -> SinkPosition | None:
        if self.kind != "results":
            return self.file.committed()
        self.results._syncs.append(request := Request())  # type: ignore[arg-type]
        self.results.work()
        if request.error is not None:
            raise request.error
        return None

    def rows(self) -> list[int]:
        """The numbers of the rows that another program finds."""
        if self.kind == "results":
            return [row[0] for _, batch in self.log.read(0, 1 << 30, 1 << 30) for row in batch.rows()]
        path = self.file.path
        assert path is not None
        if self.kind in LINES:
            text = path.read_text()
            if "\0" in text:
                return []  # it has lost sectors
            if self.kind == "jsonl":
                return [json.loads(line)["k"] for line in text.splitlines()]
            return [int(row[0]) for row in list(csv.reader(io.StringIO(text, newline="")))[1:]]
        found = manifest(path)
        assert {entry["file"] for entry in found} <= set(os.listdir(path)), "the manifest is ahead of its files"
        return [k for entry in found for k in range(entry["first_seq"], entry["last_seq"] + 1)]


def manifest(folder: Path) -> list[dict[str, Any]]:
    path = folder / "_f.manifest.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def found_by_the_next(machine: Machine, kind: str, position: SinkPosition | None) -> list[int]:
    found: list[int] = []
    machine.run(lambda folder: found.extend(Store(folder, kind, position).rows()))
    return found


@pytest.fixture
def machine(memory_path: Path) -> Machine:
    return Machine(memory_path)


# -- counted before it is durable --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STORES)
def test_a_new_file_has_a_durable_name(machine: Machine, kind: str) -> None:
    positions: list[SinkPosition | None] = []

    def program(folder: Path) -> None:
        store = Store(folder, kind)
        store.write(0, ROWS)
        positions.append(store.sync())

    machine.run(program)
    machine.cut(0)
    assert found_by_the_next(machine, kind, positions[0]) == list(range(ROWS))


@pytest.mark.parametrize("kind", STORES)
def test_rows_that_a_killed_server_left_in_memory_become_durable(machine: Machine, kind: str) -> None:
    """The next server finds them, and counts them. So it makes them durable, although it writes none of them."""
    positions: list[SinkPosition | None] = []

    def killed(folder: Path) -> None:
        store = Store(folder, kind)
        positions.append(store.sync())
        store.write(0, ROWS)

    def again(folder: Path) -> None:
        store = Store(folder, kind, positions[0])
        store.write(0, ROWS)
        positions.append(store.sync())

    machine.run(killed)
    machine.run(again)
    machine.cut(0)
    assert found_by_the_next(machine, kind, positions[1]) == list(range(ROWS))


# -- an fsync that failed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["results", *LINES])
@pytest.mark.parametrize(("trusting", "seed"), [(False, 0), (False, 1), (False, 2), (True, 0)])
def test_rows_whose_fsync_failed_are_written_again(
    memory_path: Path, kind: str, trusting: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system shows the rows still, and a second fsync succeeds. Only what the disk has counts."""
    machine = Machine(memory_path, seed)
    if trusting:
        monkeypatch.setattr(resultlog, "settle", os.fsync)
        monkeypatch.setattr(sinkfiles, "settle", os.fsync)
    positions: list[SinkPosition | None] = []
    faults: dict[int, int] = {}

    def fails(folder: Path) -> None:
        store = Store(folder, kind)
        positions.append(store.sync())
        store.write(0, ROWS)
        faults[machine.changes + 1] = errno.EIO
        with pytest.raises(OSError, match="Input/output"):
            store.sync()
        if kind == "results":
            with pytest.raises(OSError, match="an earlier fsync failed"):
                store.sync()

    def again(folder: Path) -> None:
        store = Store(folder, kind, positions[0])
        store.write(0, ROWS)
        positions.append(store.sync())

    machine.run(fails, faults=faults)
    machine.run(again)
    machine.cut(0)
    assert (found_by_the_next(machine, kind, positions[1]) == list(range(ROWS))) is not trusting


# -- names: lost, and brought back -------------------------------------------------------------------------------------


def test_a_checkpoint_is_there_before_anything_is_removed(memory_path: Path) -> None:
    """Wherever the power is cut, a start finds a checkpoint and all later records."""

    def program(folder: Path) -> None:
        server = SmallServer(folder)
        for _ in range(3):
            server.work(8)
            server.checkpoint()

    for share in (0, None, 1):
        for machine in every_cut(memory_path / f"{share}", program, share):
            machine.run(lambda folder: SmallServer(folder).check())


def test_removed_rows_do_not_come_back(machine: Machine) -> None:
    """Rows of steps that a power cut took are removed. After another one they are not taken for new ones."""

    def before(folder: Path) -> None:
        store = Store(folder, "results")
        store.write(0, ROWS)
        store.sync()
        store.log.close_file()
        store.log._file_for(ROWS, 1, store.log._generation)  # a file with no row that stays
        store.write(ROWS, 0)
        store.sync()

    def after(folder: Path) -> None:
        Store(folder, "results").log.cut(5)

    machine.run(before)
    machine.run(after)
    machine.cut(0)
    assert found_by_the_next(machine, "results", None) == list(range(5))


def test_a_manifest_is_never_ahead_of_its_files(memory_path: Path) -> None:
    def program(folder: Path) -> None:
        store = Store(folder, "parquet")
        for first in range(0, ROWS, 5):
            store.write(first, 5)

    for machine in every_cut(memory_path, program):
        rows = found_by_the_next(machine, "parquet", None)
        assert rows == list(range(len(rows)))


# -- ends of files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("seed", range(4))
def test_sectors_of_zeros_at_the_end_are_cut_off(memory_path: Path, kind: str, seed: int) -> None:
    """A file is as long as it should be, and sectors in its last rows are not there."""
    machine = Machine(memory_path, seed)
    positions: list[SinkPosition | None] = []

    def program(folder: Path) -> None:
        store = Store(folder, kind)
        positions.append(store.sync())
        store.write(0, ROWS)

    def again(folder: Path) -> None:
        store = Store(folder, kind, positions[0])
        store.write(0, ROWS)
        assert kind == "results" or store.file.notice is None
        assert store.rows() == list(range(ROWS))

    machine.run(program)
    machine.cut(0.6)
    machine.run(again)


def test_damage_in_the_middle_is_not_an_end(machine: Machine) -> None:
    """Records after it were synced: the journal says where it is, and stays as it is."""
    machine.run(lambda folder: SmallServer(folder).work(8))
    path = machine.folder / JOURNAL_FOLDER / "00000000000000000001.segment"
    data = bytearray(path.read_bytes())
    at = data.index(b"record 2")
    data[at : at + 50] = bytes(50)
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match="offset"):
        list(Journal.open(RealDisk(machine.folder / JOURNAL_FOLDER)).read(1))
    assert path.read_bytes() == data


def test_a_torn_line_of_a_manifest_is_not_followed_by_another(machine: Machine) -> None:
    """The disk fills in the middle of a line, and the part cannot be removed either. The next line replaces it."""
    faults: dict[int, int] = {}

    def program(folder: Path) -> None:
        store = Store(folder, "parquet")
        store.write(0, 4)
        at = machine.changes
        faults.update(dict.fromkeys(range(at + 7, at + 10), errno.ENOSPC))
        with pytest.raises(OSError, match="No space"):
            store.write(4, 1)
        faults.clear()
        with (folder / "sinks" / "out.parquet" / "_f.manifest.jsonl").open("ab") as torn:
            torn.write(b'{"file":"f-0000')
        store.write(5, 10)
        assert store.rows() == list(range(15))

    machine.run(program, faults=faults)


# -- a log and a snapshot that do not fit ------------------------------------------------------------------------------


def test_a_journal_that_ends_before_its_checkpoint_is_refused(machine: Machine) -> None:
    """An older copy of the log below a newer snapshot: nothing starts, and nothing is removed."""

    def program(folder: Path) -> None:
        server = SmallServer(folder)
        server.work(4)
        copy = {path.name: path.read_bytes() for path in (folder / JOURNAL_FOLDER).iterdir()}
        server.work(4)
        server.checkpoint()
        server.journal.close()
        for path in (folder / JOURNAL_FOLDER).iterdir():
            path.unlink()
        for name, data in copy.items():
            (folder / JOURNAL_FOLDER / name).write_bytes(data)

    machine.run(program)
    before = (machine.folder / JOURNAL_FOLDER / "00000000000000000001.segment").read_bytes()
    with pytest.raises(JournalError, match="8"):
        SmallServer(machine.folder)
    assert (machine.folder / JOURNAL_FOLDER / "00000000000000000001.segment").read_bytes() == before


def test_a_full_disk_leaves_the_older_checkpoint(memory_path: Path) -> None:
    """Wherever the disk fills while a checkpoint is made, the older ones are there, and the next try succeeds."""
    at = 1
    while fills_at(Machine(memory_path / str(at)), at):
        at += 1


def fills_at(machine: Machine, at: int) -> bool:
    """Whether the making of a checkpoint came to this change, at which the disk was full."""
    faults: dict[int, int] = {}

    def program(folder: Path) -> None:
        server = SmallServer(folder)
        server.work(8)
        server.checkpoint()
        server.work(8)
        faults[machine.changes + at] = errno.ENOSPC
        try:
            server.checkpoint()
        except OSError:
            assert server.checkpoints.complete() == [0, 8]
        came = machine.changes >= max(faults)
        server.checkpoint()
        assert server.checkpoints.complete()[-1] == 16
        if not came:
            faults.clear()

    machine.run(program, faults=faults)
    machine.cut()
    machine.run(lambda folder: SmallServer(folder).check())
    return bool(faults)


def state_array(lsn: int) -> bytes:
    """An array of the state: most of it does not change."""
    return bytes(range(200)) + b"%d" % lsn


class SmallServer:
    """A journal and its checkpoints; the state after a record is its number."""

    def __init__(self, folder: Path) -> None:
        self.checkpoints = Checkpoints(folder)
        self.checkpoints.chunk_bytes = 64  # type: ignore[misc]
        complete = self.checkpoints.complete()
        self.journal = Journal.open(
            RealDisk(folder / JOURNAL_FOLDER),
            segment_bytes=600,
            server_id=b"0" * 16,
            reaches=complete[-1] if complete else 0,
        )
        self.checkpoints.prepare()
        self.keeping = Keeping(self.checkpoints, parse_keep("none"))
        self.keeping.load()
        if not complete:
            assert self.journal.next_lsn == 1, "records without a checkpoint"
            self.checkpoint()

    def work(self, records: int) -> None:
        for _ in range(records):
            self.journal.append(b"record %d" % self.journal.next_lsn + bytes(100))
        self.journal.write()
        self.journal.sync()

    def checkpoint(self) -> None:
        lsn = self.journal.next_lsn - 1
        if lsn in self.checkpoints.complete():
            return
        try:
            self.checkpoints.write_state(lsn, lambda put: b"%d" % (lsn + put(memoryview(state_array(lsn)))))
            self.checkpoints.write_control(lsn, {"form": FORM, "at_us": 1})
        except OSError:
            self.checkpoints.discard(lsn)
            raise
        self.keeping.add(lsn, 1)
        self.journal.trim(self.keeping.tidy(self.journal.segments, 1))

    def check(self) -> None:
        complete = self.checkpoints.complete()
        for lsn in complete:
            state = self.checkpoints.read(lsn).state
            assert (state.body, bytes(state.get(0))) == (b"%d" % lsn, state_array(lsn))
        assert self.journal.first_lsn <= complete[-1] + 1
        records = [data for _, data in self.journal.read(complete[-1] + 1)]
        assert records == [b"record %d" % lsn + bytes(100) for lsn in range(complete[-1] + 1, self.journal.next_lsn)]
