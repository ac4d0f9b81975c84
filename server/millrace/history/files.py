"""History on disk: the folder of a stream's archive, the layout of its files, and how they are written.

Rule: a file under its final name is whole and stays as it is. It is written aside, under a name that readers pass over,
made durable, and then renamed. Layout, columns and `_reach.json` are promises of `docs/history.md`: the daemon writes
them, Spark and the daemon's own replay read them.

    <history>/<stream>/date=2026-11-18/<first sequence>-<last sequence>.parquet      the date is the event's, in UTC
    <history>/<stream>/_reach.json
"""

from __future__ import annotations

import errno
import fcntl
import filecmp
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from millrace.engine.plan import StreamDefinition
from millrace.formats.durable import ASIDE, make_folder, sync_file, sync_folder, write_whole
from millrace.protocol import Field, MillraceError, Refuse, Schema, Type
from millrace.values.batch import Batch, Bools, Int64s
from millrace.values.eventtime import MAX_TIME, MIN_TIME

# The columns that a file has after the stream's own.
SEQUENCE, ARRIVED, LATE, MARK, FEED = "__seq", "__arrived", "__late", "__mark", "__feed"
OWN_COLUMNS: Final = (SEQUENCE, ARRIVED, LATE, MARK, FEED)
# The column that carries the time of a stream whose tuples bring none.
IMPLICIT_TIME: Final = "ts"
REACH_FILE: Final = "_reach.json"
# A process that writes below a history folder locks this file of it; the system unlocks it when the process ends.
HOLD_FILE: Final = ".lock"
# Earlier names of keys of that file, before `stream show` used the same ones.
_FORMERLY: Final = {"mark": "reach_us", "file_bytes": "bytes"}
# The key of a file's metadata.
KEY: Final = b"millrace"
# Rows of a row group: enough to compress well, few enough for a reader's memory.
ROW_GROUP: Final = 65_536
# Digits of a sequence number in a name: all of an int64, so that names sort as the numbers do.
DIGITS: Final = 19
DAY_US: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)
# Times outside the years 1 to 9999 are in the folder of the first or the last date.
_FIRST_DAY: Final = (date.min - _EPOCH).days
_LAST_DAY: Final = (date.max - _EPOCH).days


class HistoryError(MillraceError):
    """An archive that cannot be read or written."""

    code = "history_failed"


# -- the description of an archive -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gap:
    """Tuples that were received and may be missing: those that arrived after `after_seq`, on time from `from_us` on.

    `reason` is `killed` (the server ended without writing what waited), `off` (the stream had no history meanwhile) or
    `failed` (what waited could not be written when the server ended). `found_us` is when it was noticed.
    """

    after_seq: int
    from_us: int | None
    reason: str
    found_us: int


@dataclass(frozen=True, slots=True)
class Reach:
    """How far an archive reaches.

    reach_us     every on-time tuple below it, received since `since_us`, is in complete files, except for the gaps
    last_seq     the greatest sequence number in complete files; -1 if there is none
    since_us     since when the archive has the stream; None: from its start
    rows, ...    everything ever written, including files that were deleted since
    open         a server writes here, or was killed while it did
    fields       the stream's columns; files from before it got some of them lack those
    """

    stream: str
    fingerprint: str
    fields: tuple[tuple[str, str, bool], ...]
    reach_us: int | None = None
    last_seq: int = -1
    since_us: int | None = None
    rows: int = 0
    late_rows: int = 0
    files: int = 0
    bytes: int = 0
    open: bool = False
    gaps: tuple[Gap, ...] = field(default=())

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Reach:
        found = {_FORMERLY.get(name, name): value for name, value in json.loads(text).items()}
        gaps, fields = (Gap(**gap) for gap in found["gaps"]), (tuple(one) for one in found["fields"])
        return Reach(**{**found, "gaps": tuple(gaps), "fields": tuple(fields)})

    @staticmethod
    def begun(stream: StreamDefinition) -> Reach:
        """Of an archive that has nothing yet."""
        return Reach(stream.name, stream.schema.fingerprint(), _fields(stream))

    def of(self, stream: StreamDefinition) -> Reach:
        """The same, for a stream that may have got more columns."""
        return replace(self, fingerprint=stream.schema.fingerprint(), fields=_fields(stream))

    def fits(self, stream: StreamDefinition) -> bool:
        """Whether the stream has the columns that are archived, and more at most: those are null in older files."""
        return _fields(stream)[: len(self.fields)] == self.fields


def _fields(stream: StreamDefinition) -> tuple[tuple[str, str, bool], ...]:
    return tuple((field.name, str(field.type), field.nullable) for field in stream.schema)


def stream_folder(history: Path, stream: str) -> Path:
    """The folder of a stream's archive (a stream's name is letters, digits, `_` and `-`)."""
    return history / stream


def hold(history: Path) -> int:
    """Hold a history folder against other servers, until the handle is closed or the process ends."""
    with suppress(FileExistsError):  # a file of that name: opening says so
        make_folder(history)
    handle = os.open(history / HOLD_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise Refuse(
                f"another server writes history to {history}: set another folder for this server "
                "(server.history_dir), or stop the other one first",
                code="history",
            ) from None
        raise
    return handle


def read_reach(folder: Path) -> Reach | None:
    """The description of an archive; None if there is none."""
    path = folder / REACH_FILE
    try:
        return Reach.from_json(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise HistoryError(f"{path}: expected a file written by a server, got {words(error)}") from None


def write_reach(folder: Path, reach: Reach) -> None:
    write_whole(folder / REACH_FILE, reach.to_json().encode())


# -- files -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Name:
    """The parts of a file's name."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first:0{DIGITS}d}-{self.last:0{DIGITS}d}.parquet"

    @staticmethod
    def parse(text: str) -> Name | None:
        first, dash, last = text.removesuffix(".parquet").partition("-")
        if not dash or not text.endswith(".parquet") or not (first.isdecimal() and last.isdecimal()):
            return None
        return Name(int(first), int(last))


def files(folder: Path) -> list[Path]:
    """The whole files of an archive, by their first sequence number."""
    found = [
        (name.first, path)
        for path in folder.glob("date=*/*.parquet")
        if not path.name.startswith((ASIDE, "_")) and (name := Name.parse(path.name)) is not None
    ]
    return [path for _, path in sorted(found)]


def about_file(path: Path) -> dict[str, Any]:
    """A file's metadata: stream, fingerprint, first and last sequence number, least and newest time, rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found: dict[str, Any] = json.loads(pq.read_schema(path).metadata[KEY])
    except (pa.ArrowException, OSError, TypeError, KeyError, ValueError) as error:
        raise HistoryError(f"{path}: expected a file of an archive, got {words(error)}") from None
    return found


def caught_up(folder: Path, reach: Reach) -> Reach:
    """The reach including files that were completed after it was last saved (a server was killed in between)."""
    new = _after(folder, reach)
    for parent in dict.fromkeys(path.parent for path in new):  # their names may not be durable yet
        sync_folder(parent)
    told = [about_file(path) for path in new]
    return replace(
        reach,
        last_seq=max([reach.last_seq, *(one["last_seq"] for one in told)]),
        rows=reach.rows + sum(one["rows"] for one in told),
        late_rows=reach.late_rows + sum(one["late_rows"] for one in told),
        files=reach.files + len(new),
        bytes=reach.bytes + sum(path.stat().st_size for path in new),
    )


def remove_parts(folder: Path, reach: Reach) -> list[Path]:
    """Remove the files after the reach if some of their rows are missing: a server was killed when it had written the
    files of some days, and not those of the others. All of these rows arrive again."""
    new = _after(folder, reach)
    numbers = [number for path in new for number in _numbers(path)]
    if sorted(numbers) == list(range(reach.last_seq + 1, reach.last_seq + 1 + len(numbers))):
        return []
    for path in new:
        path.unlink()
    for parent in dict.fromkeys(path.parent for path in new):  # else a power cut could bring them back
        sync_folder(parent)
    return new


def _numbers(path: Path) -> list[int]:
    """The numbers of a file's rows."""
    import pyarrow.parquet as pq

    about = about_file(path)
    if about["rows"] == about["last_seq"] - about["first_seq"] + 1:
        return list(range(about["first_seq"], about["last_seq"] + 1))
    with pq.ParquetFile(path) as file:
        found: list[int] = file.read([SEQUENCE])[SEQUENCE].to_pylist()
    return found


def _after(folder: Path, reach: Reach) -> list[Path]:
    """The files with rows after the reach."""
    return [
        path for path in files(folder) if (name := Name.parse(path.name)) is not None and name.last > reach.last_seq
    ]


def leftovers(folder: Path) -> list[Path]:
    """The files of a stream that a server was writing when it was killed."""
    return [*folder.glob(f"date=*/{ASIDE}*"), *folder.glob(f"{ASIDE}*")]


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove the unfinished files of a killed server."""
    left = leftovers(folder)
    for path in left:
        path.unlink(missing_ok=True)
    return left


def date_folder(day: int) -> str:
    """The folder of a day, counted from the epoch."""
    return f"date={_EPOCH + timedelta(days=min(max(day, _FIRST_DAY), _LAST_DAY))}"


def by_day(ts: Int64s) -> Iterator[tuple[int, Int64s | slice]]:
    """The days of the times, with the rows of each day in their order."""
    days = np.clip(ts // DAY_US, _FIRST_DAY, _LAST_DAY)
    if len(days) and (days == days[0]).all():
        yield int(days[0]), slice(None)
        return
    order = np.argsort(days, kind="stable")
    there, begins = np.unique(days[order], return_index=True)
    yield from zip(there.tolist(), np.split(order, begins[1:]), strict=True)


# -- columns -----------------------------------------------------------------------------------------------------------


def check_columns(stream: StreamDefinition) -> None:
    """Refuse a stream with a column that the archive uses."""
    taken = [*OWN_COLUMNS, *([] if stream.timestamps == "external" else [IMPLICIT_TIME])]
    clash = [name for name in stream.schema.names if name.lower() in taken]
    if clash:
        raise Refuse(
            f"stream {stream.name}: a stream with history cannot have a column {clash[0]}, because the archive adds a "
            "column with this name: rename the column",
            code="history",
        )


def archive_schema(stream: StreamDefinition) -> Any:
    """The Arrow schema of a stream's files."""
    import pyarrow as pa

    from millrace.formats.arrow import arrow_schema

    moment = pa.timestamp("us", tz="UTC")
    own = [
        pa.field(SEQUENCE, pa.int64(), False),
        pa.field(ARRIVED, moment, False),
        pa.field(LATE, pa.bool_(), False),
        pa.field(MARK, moment),
        pa.field(FEED, pa.string(), False),
    ]
    return pa.schema([*arrow_schema(stored_schema(stream)), *own])


def stored_schema(stream: StreamDefinition) -> Schema:
    """The stream's columns as they are archived: its own, and the implicit time of those that bring none."""
    if stream.timestamps == "external":
        return stream.schema
    return Schema((*stream.schema, Field(IMPLICIT_TIME, Type.TIMESTAMP, False)))


@dataclass(frozen=True, slots=True)
class ArchivedRows:
    """Tuples on their way into files, numbered from `first` on; `feeds` has the runs of tuples of one feed."""

    first: int
    batch: Batch
    late: Bools
    marks: Int64s
    feeds: tuple[tuple[str, int], ...]

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def least_on_time(self) -> int:
        """The least time of those on time; the end of time if there are none."""
        ts = self.batch.ts
        if not self.late.any():
            return int(ts.min())
        return int(ts.min(where=~self.late, initial=MAX_TIME))

    @staticmethod
    def joined(parts: Sequence[ArchivedRows]) -> ArchivedRows:
        """The rows of all parts, which follow each other."""
        if len(parts) == 1:
            return parts[0]
        feeds: list[tuple[str, int]] = []
        for name, count in (feed for part in parts for feed in part.feeds):
            if feeds and feeds[-1][0] == name:
                count += feeds.pop()[1]
            feeds.append((name, count))
        return ArchivedRows(
            parts[0].first,
            Batch.concat([part.batch for part in parts]),
            np.concatenate([part.late for part in parts]),
            np.concatenate([part.marks for part in parts]),
            tuple(feeds),
        )


def table_of(stream: StreamDefinition, rows: ArchivedRows) -> Any:
    """The rows as they are archived, in the order of their arrival."""
    import pyarrow as pa

    from millrace.formats.arrow import to_arrow

    schema = archive_schema(stream)
    moment = schema.field(ARRIVED).type
    count = len(rows)
    columns = list(to_arrow(rows.batch).columns)
    if stream.timestamps != "external":
        columns.append(pa.array(rows.batch.ts, moment))
    no_mark = (rows.marks == MIN_TIME) | (rows.marks == MAX_TIME)
    names = pa.array([name for name, _ in rows.feeds], pa.string())
    feeds = np.repeat(np.arange(len(rows.feeds)), [many for _, many in rows.feeds])
    columns += [
        pa.array(np.arange(rows.first, rows.first + count), pa.int64()),
        pa.array(np.ascontiguousarray(rows.batch.arrival), moment),
        pa.array(rows.late, pa.bool_()),
        pa.array(rows.marks, moment, mask=no_mark),
        names.take(pa.array(feeds)),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


# -- writing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Written:
    """A completed file."""

    path: Path
    rows: int
    late_rows: int
    bytes: int


def write_rows(folder: Path, stream: StreamDefinition, rows: ArchivedRows) -> list[Written]:
    """Write rows into complete files, one per day. After a failure a repetition writes the same files."""
    import pyarrow as pa

    table = table_of(stream, rows)
    done = []
    for day, mine in by_day(rows.batch.ts):
        part = table if isinstance(mine, slice) else table.take(pa.array(mine))
        ts, late = rows.batch.ts[mine], rows.late[mine]
        done.append(_write_file(folder / date_folder(day), stream, part, ts, late))
    return done


def _write_file(folder: Path, stream: StreamDefinition, table: Any, ts: Int64s, late: Bools) -> Written:
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = Name(table[SEQUENCE][0].as_py(), table[SEQUENCE][-1].as_py())
    late_rows = int(late.sum())
    on_time = ts[~late]
    about = {
        "stream": stream.name,
        "fingerprint": stream.schema.fingerprint(),
        "first_seq": name.first,
        "last_seq": name.last,
        "least_us": int(ts.min()),
        "newest_us": int(ts.max()),
        "least_on_time_us": int(on_time.min()) if len(on_time) else None,
        "first_arrived_us": table[ARRIVED].cast(pa.int64())[0].as_py(),
        "rows": len(ts),
        "late_rows": late_rows,
    }
    table = table.replace_schema_metadata({KEY: json.dumps(about).encode()})
    make_folder(folder)
    path, aside = folder / str(name), folder / f"{ASIDE}{name}"
    try:
        # A number differs from row to row, and so do most times: a dictionary of them would only cost.
        texts = [one.name for one in table.schema if pa.types.is_string(one.type) or pa.types.is_binary(one.type)]
        pq.write_table(table, aside, row_group_size=ROW_GROUP, use_dictionary=texts, compression="snappy")
        sync_file(aside)
        size = aside.stat().st_size
        _give_name(aside, path)
        sync_folder(folder)
    except BaseException:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    return Written(path, len(ts), late_rows, size)


def _give_name(aside: Path, path: Path) -> None:
    """Give a complete file its final name. An existing file is never replaced."""
    try:
        os.link(aside, path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        if not path.exists():
            # A file system without second names for files: that this server holds the folder has to do.
            aside.rename(path)
            return
        # A repetition after a failure writes the same files.
        if not filecmp.cmp(aside, path, shallow=False):
            text = f"{path} already exists with other rows: does another program write there? Move it away to continue"
            raise FileExistsError(errno.EEXIST, text) from None
    aside.unlink()


def words(error: BaseException) -> str:
    """An error in a few words."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).partition("\n")[0][:200]
