"""The folder of a live job, which may be killed at any moment and started again.

    job.json                  what is computed: written first, never changed
    lock                      who runs it now
    spark/                    Spark's own logs: the offsets of each epoch, and which epochs have ended
    epochs/0000000812.json    what an epoch is to do
    commits/0000000812.json   what it has done: its states, rows and counts. Written last; this decides
    changes/0000000003.json   the third change of the job, in effect from the epoch on whose record counts three
    states/0000000812-03-UNIQUE.states   the states of a task's buckets, each compressed
    staged/                   rows that wait for their sink
    rows/QUERY/epoch-0000000812-task-03.parquet   rows of queries without a sink

Rule: tasks write files under unique names, and only a commit makes them count. Records are created, never replaced, so
of two drivers only one commits an epoch. What no commit names is removed before the next epoch.
"""

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from millrace.formats.durable import ASIDE, make_folder, sync_file, sync_folder, write_absent
from millrace.protocol import Refuse
from millrace.spark.changing import Change
from millrace.spark.lock import LOCK, Lock
from millrace.spark.records import CommitRecord, EpochRecord, StatePlace, Unit

# Of the records and of the files of states.
VERSION: Final = 1
JOB, EPOCHS, COMMITS, STATES, STAGED, ROWS, SPARK = "job.json", "epochs", "commits", "states", "staged", "rows", "spark"
CHANGES: Final = "changes"
# Records that stay besides the newest: as many as Spark's logs keep by default.
KEPT: Final = 100
CODEC: Final = "zstd"


class Checkpoint:
    """The folder of a job."""

    def __init__(self, path: str | Path) -> None:
        if "://" in str(path):
            raise Refuse(
                f"--checkpoint {path}: expected a folder, on a file system that all executors share; object stores "
                "are not supported",
                code="bad_path",
            )
        self.path = Path(path).absolute()

    # -- the job -------------------------------------------------------------------------------------------------------

    def job(self) -> dict[str, Any] | None:
        """What is computed here; None if the folder is new. Refuse if something else is in it."""
        found = _read(self.path / JOB)
        if found is None:
            self._check_unused()
            return None
        if found.get("version") != VERSION:
            raise Refuse(
                f"checkpoint {self.path} has version {found.get('version')}, and this Millrace writes version "
                f"{VERSION}: continue it with the Millrace that wrote it, or use a new folder",
                code="checkpoint",
            )
        return found

    def _check_unused(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise Refuse(f"--checkpoint {self.path}: expected a folder, got a file", code="bad_path")
        # A driver that was killed at its very start leaves its lock and an unfinished record.
        if self.path.exists() and any(
            one.name != LOCK and not one.name.startswith(f"{ASIDE}{JOB}") for one in self.path.iterdir()
        ):
            raise Refuse(
                f"--checkpoint {self.path}: the folder has other files and no {JOB}; use an empty or a new folder",
                code="bad_path",
            )

    def check(self, identity: Mapping[str, Any]) -> None:
        """Refuse a folder of another job."""
        check_same(self.path, self.job(), identity)

    def open(self, identity: Mapping[str, Any]) -> Lock:
        """Lock the folder for this job and prepare it; Refuse, with nothing written, if it belongs to another job."""
        self.check(identity)
        try:
            make_folder(self.path)
        except OSError as error:
            raise Refuse(f"--checkpoint {self.path}: {_reason(error)}", code="bad_path") from None
        lock = Lock(self.path)
        try:
            self._prepare(identity)
        except OSError as error:
            lock.release()
            raise Refuse(f"--checkpoint {self.path}: {_reason(error)}", code="bad_path") from None
        except BaseException:
            lock.release()
            raise
        return lock

    def _prepare(self, identity: Mapping[str, Any]) -> None:
        job = {"version": VERSION, "id": uuid.uuid4().hex[:16], **identity}
        write_absent(self.path / JOB, _text(job))
        self.check(identity)
        for name in (EPOCHS, COMMITS, CHANGES, STATES, STAGED):
            make_folder(self.path / name)
        for folder in (self.path, self.path / EPOCHS, self.path / COMMITS):
            for left in folder.glob(f"{ASIDE}*.json.*"):
                left.unlink(missing_ok=True)

    @property
    def id(self) -> str:
        """The name of the job, which is different for each."""
        job = self.job()
        assert job is not None
        name: str = job["id"]
        return name

    # -- records -------------------------------------------------------------------------------------------------------

    def epoch(self, number: int) -> EpochRecord | None:
        found = _read(self._record(EPOCHS, number))
        return None if found is None else EpochRecord.from_data(found)

    def put_epoch(self, record: EpochRecord) -> EpochRecord:
        """The record of this epoch: this one, or the one of its first run."""
        write_absent(self._record(EPOCHS, record.epoch), _text(record.to_data()))
        found = self.epoch(record.epoch)
        assert found is not None
        return found

    def commit(self, number: int) -> CommitRecord | None:
        found = _read(self._record(COMMITS, number))
        return None if found is None else CommitRecord.from_data(found)

    def put_commit(self, record: CommitRecord) -> None:
        """Decide the epoch; Refuse if another driver has decided it."""
        if not write_absent(self._record(COMMITS, record.epoch), _text(record.to_data())):
            raise Refuse(
                f"checkpoint {self.path}: another driver has committed epoch {record.epoch}; this driver stops, and "
                "nothing of its epoch counts",
                code="locked",
            )

    def commits(self) -> list[int]:
        """The numbers of the commits, in order."""
        return sorted(int(path.stem) for path in (self.path / COMMITS).glob("[0-9]*.json"))

    def last(self) -> CommitRecord | None:
        numbers = self.commits()
        return self.commit(numbers[-1]) if numbers else None

    # -- changes -------------------------------------------------------------------------------------------------------

    def changes(self) -> list[Change]:
        """All changes of the job, in the order in which they take effect."""
        found: list[Change] = []
        while (told := _read(self._record(CHANGES, len(found) + 1))) is not None:
            found.append(Change.from_data(told))
        return found

    def put_change(self, number: int, change: Change) -> bool:
        """Store the change of this number; whether there was none."""
        return write_absent(self._record(CHANGES, number), _text(change.to_data()))

    def has_change(self, number: int) -> bool:
        return self._record(CHANGES, number).exists()

    def started(self) -> EpochRecord | None:
        """The record of an epoch that has started and is not committed."""
        last = self.last()
        return self.epoch(0 if last is None else last.epoch + 1)

    def _record(self, folder: str, number: int) -> Path:
        return self.path / folder / f"{number:010}.json"

    # -- removing ------------------------------------------------------------------------------------------------------

    def clean(self, commit: CommitRecord) -> None:
        """Remove states that neither this commit nor the one before names, and records that are old."""
        before = self.commit(commit.epoch - 1)
        named = {place.file for one in (before, commit) if one is not None for place in one.states.values()}
        remove_others(self.path / STATES, named)
        for folder in (EPOCHS, COMMITS):
            number = commit.epoch - KEPT
            while number >= 0 and (path := self._record(folder, number)).exists():
                path.unlink()
                number -= 1


def remove_others(folder: Path, named: Collection[str]) -> None:
    """Remove the files of a folder that are not named."""
    for path in folder.iterdir():
        if path.name not in named:
            path.unlink(missing_ok=True)


def check_same(path: Path, found: Mapping[str, Any] | None, identity: Mapping[str, Any]) -> None:
    """Refuse to continue a job that is not this one."""
    if found is None:
        return
    has, wanted = found["groups"], identity["groups"]
    for told, asked in zip(has, wanted, strict=False):
        for name, words in _DIFFERENCES.items():
            if told[name] != asked[name]:
                raise _other(path, f"{words} {_plain(told[name])}, not {_plain(asked[name])}")
    if len(has) != len(wanted):
        queries = [name for group in has for name in group["queries"]]
        raise _other(path, f"runs {_plain(queries)}")
    if [group["fingerprint"] for group in has] != [group["fingerprint"] for group in wanted]:
        raise _other(path, "has another plan: the statements differ, or another version of Millrace planned them")


_DIFFERENCES: Final = {
    "queries": "runs",
    "how": "divides its rows as",
    "key": "has the key",
    "buckets": "has buckets:",
}


def _other(path: Path, reason: str) -> Refuse:
    return Refuse(
        f"checkpoint {path} belongs to another job: it {reason}; use a new folder, or start it as before",
        code="checkpoint",
    )


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value) or "none"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise Refuse(f"{path}: expected a record of a live job, got {error}", code="checkpoint") from None
    return found


def _text(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


# -- states ------------------------------------------------------------------------------------------------------------


def write_states(folder: Path, name: str, states: Iterable[tuple[Unit, bytes]]) -> dict[Unit, StatePlace]:
    """Write the states of a task's buckets into a file; their places in it."""
    places: dict[Unit, StatePlace] = {}
    path = folder / name
    with path.open("xb") as file:
        for unit, state in states:
            piece = pa.compress(state, codec=CODEC, asbytes=True)
            places[unit] = StatePlace(name, file.tell(), len(piece), len(state), zlib.crc32(piece))
            file.write(piece)
    sync_file(path)
    sync_folder(folder)
    return places


def read_states(folder: Path, places: Mapping[Unit, StatePlace]) -> Iterator[tuple[Unit, bytes]]:
    """The states at these places. Each file is opened once."""
    by_file: dict[str, list[Unit]] = {}
    for unit, place in places.items():
        by_file.setdefault(place.file, []).append(unit)
    for name, units in by_file.items():
        with _opened(folder / name) as handle:
            for unit in units:
                yield unit, _state(folder / name, handle, places[unit])


def _opened(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise Refuse(
            f"{path}: cannot read the states of the last epoch ({_reason(error)})", code="checkpoint"
        ) from None


def _state(path: Path, handle: Any, place: StatePlace) -> bytes:
    piece = os.pread(handle.fileno(), place.length, place.offset)
    if len(piece) != place.length or zlib.crc32(piece) != place.sum:
        raise Refuse(f"{path}: damaged at byte {place.offset}; restore the folder from a copy", code="checkpoint")
    state: bytes = pa.decompress(piece, place.size, codec=CODEC, asbytes=True)
    return state
