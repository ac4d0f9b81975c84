"""The inputs of a backfill: archives and other files, checked before Spark starts.

Rule: whatever is wrong with an input is said here, in one line: a path that is not there, a column that is missing or
of another type, rows without a time. Parquet files have it in their metadata. The reader of `millrace run` reads text:
a small input completely, of a large one the start of each file. For an error that Spark finds later the same reader
searches (`refuse_bad_rows`), so that the message has the same words and a line. Where the metadata has the times of
rows, slices follow them, so that each has about as many rows.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.backfill.flow import Flow
from millrace.backfill.splitting import Extent
from millrace.engine.plan import StreamDefinition
from millrace.formats.arrow import ARROW_TYPES, accepts, read_table
from millrace.formats.decoder import EVENT_TIME, value_shown
from millrace.history.files import ARRIVED, IMPLICIT_TIME, LATE, OWN_COLUMNS, REACH_FILE, Gap, Name, read_reach
from millrace.history.files import SEQUENCE as SEQ
from millrace.offline.files import read_opened
from millrace.protocol import Field, Refuse, Type, format_timestamp
from millrace.protocol.timestamps import FIRST_US, LAST_US
from millrace.protocol.units import MICROSECONDS, TimeUnit, likely_unit
from millrace.protocol.words import counted
from millrace.values.batch import Batch
from millrace.values.eventtime import MAX_TIME, MIN_TIME

FORMATS: Final = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
TABLE: Final = "table:"
# The formats' names in the reader of `millrace run`.
READ_AS: Final = {"parquet": "parquet", "csv": "csv", "json": "jsonl"}
COMPRESSED: Final[Mapping[str, Callable[[Path], Any]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".zst": lambda path: io.BufferedReader(pa.input_stream(str(path), compression="zstd")),
}
# Bytes of a text input that are read before Spark starts: a second or two. Of each further file one piece.
LOOKED_AT: Final = 64 * 2**20
# Heads of Parquet files that are read at a time: on a network each takes tens of milliseconds, most of them waiting.
HEADS_AT_ONCE: Final = 16
# Cuts are found on a grid of so many times: a slice is off by less than a thousandth of the rows of all.
GRID: Final = 4_096


@dataclass(frozen=True, slots=True)
class Part:
    """A file.

    groups   of Parquet, the row groups that have rows
    spans    first and last time and number of rows of each row group, or piece of text; None if it was not read yet
    """

    path: str
    size: int
    changed_ns: int
    groups: tuple[int, ...] = ()
    spans: tuple[tuple[int, int, int], ...] | None = None


@dataclass(frozen=True)
class Input:
    """A stream's rows.

    format    parquet, csv, json, or table (a name that Spark knows)
    columns   the Arrow types of its columns, where they are known before Spark reads it
    reach_us  how far an archive is whole: every row on time below this is in it
    gaps      where rows may still be missing from it
    """

    stream: str
    path: str
    format: str
    parts: tuple[Part, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    reach_us: int | None = None
    gaps: tuple[Gap, ...] = ()

    @property
    def flagged(self) -> bool:
        """Whether its rows say if they were late."""
        return LATE in self.columns

    @property
    def known(self) -> bool:
        """Whether the times of its rows are known already."""
        return self.format != "table" and all(part.spans is not None for part in self.parts)

    def identity(self) -> dict[str, Any]:
        """The identity of an input: equal for two runs that read the same."""
        parts = [[part.path, part.size, part.changed_ns] for part in self.parts]
        return {"stream": self.stream, "path": self.path, "files": parts}


# -- finding -----------------------------------------------------------------------------------------------------------


def find_history(flow: Flow, directory: str, streams: Sequence[str]) -> dict[str, Input]:
    """The archives of streams of a flow, below a server's history directory."""
    top = Path(directory)
    if not top.is_dir():
        raise Refuse(f"--history {directory}: the directory does not exist", code="bad_path")
    found = {}
    for name in streams:
        place = top / name
        if not place.is_dir():
            there = sorted(one.name for one in top.iterdir() if one.is_dir() and not one.name.startswith((".", "_")))
            raise Refuse(
                f"--history {directory}: it has no rows of stream {name} (it has: {', '.join(there) or 'none'})"
                "; a stream is archived if it is created WITH (history = 'true')",
                code="bad_path",
            )
        found[name] = find_input(flow, name, str(place))
    return found


def base_streams(flow: Flow) -> list[str]:
    """The streams whose rows are read: a side stream's late tuples are stored with the stream's own."""
    return list(dict.fromkeys(name.removesuffix(".late") for name in flow.streams))


def find_input(flow: Flow, stream: str, path: str) -> Input:
    """One stream's input, looked into and checked."""
    known = base_streams(flow)
    if stream not in known:
        raise Refuse(
            f"--input {stream}={path}: the query reads no stream {stream}; it reads {', '.join(known)}",
            code="unknown_name",
        )
    if path.startswith(TABLE):
        return Input(stream, path, "table")
    place = Path(path)
    if not place.exists():
        raise Refuse(f"{path}: the file or directory does not exist", code="bad_path")
    files = [place] if place.is_file() else sorted(files_below(place))
    kinds = {format_of(file) for file in files}
    if len(kinds) != 1 or None in kinds:
        got = "no such file" if not files else f"files such as {files[0].name}"
        raise Refuse(f"{path}: expected files of one kind ({', '.join(FORMATS)}); got {got}", code="bad_path")
    made = _LOOKED_INTO[kinds.pop() or ""](stream, path, files, flow)
    check_columns(made.columns, flow.catalog.stream(stream), path)
    return made


def files_below(place: Path) -> Iterable[Path]:
    """The files of a directory, except unfinished ones and those that describe others."""
    for file in place.rglob("*"):
        inside = file.relative_to(place).parts
        if file.is_file() and not any(part.startswith((".", "_")) for part in inside) and format_of(file) is not None:
            yield file


def format_of(file: Path) -> str | None:
    suffixes = [suffix for suffix in file.suffixes if suffix not in COMPRESSED]
    return FORMATS.get(suffixes[-1].lower()) if suffixes else None


def _look_into_parquet(stream: str, path: str, files: Sequence[Path], flow: Flow) -> Input:
    definition = flow.catalog.stream(stream)
    time = definition.time or IMPLICIT_TIME
    columns: dict[str, Any] = {}
    parts = []
    with ThreadPoolExecutor(HEADS_AT_ONCE) as pool:
        for file, (part, own) in zip(
            files, pool.map(lambda file: _head(file, time, definition.unit_of(time)), files), strict=True
        ):
            if columns and own != columns:
                archived = SEQ in own and SEQ in columns
                if not archived or any(columns.get(name, kind) != kind for name, kind in own.items()):
                    told = _unlike(columns, own)
                    raise Refuse(f"{file} and {files[0]} have different columns: {told}", code="schema")
            columns |= own
            parts.append(part)
    return Input(stream, path, "parquet", tuple(parts), columns, *_reach(Path(path)))


def _head(file: Path, time: str, unit: TimeUnit) -> tuple[Part, dict[str, Any]]:
    """A file, and the Arrow types of its columns."""
    try:
        with pq.ParquetFile(file) as head:
            own = {one.name: one.type for one in head.schema_arrow}
            return replace(_part(file), **_spans(head, time, file, unit)), own
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0][:120]
        raise Refuse(f"{file}: expected a Parquet file, got something else ({reason})", code="bad_file") from None


def _part(file: Path) -> Part:
    seen = file.stat()
    return Part(str(file), seen.st_size, seen.st_mtime_ns)


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    for name in [*one, *other]:
        if one.get(name) != other.get(name):
            return f"{name} is {one.get(name, 'missing')} there and {other.get(name, 'missing')} here"
    return "their order"


def _spans(head: Any, time: str, file: Path, unit: TimeUnit) -> dict[str, Any]:
    """The row groups that have rows; first time, last time and rows of each, by the metadata if that has them."""
    metadata = head.metadata
    groups = [at for at in range(metadata.num_row_groups) if metadata.row_group(at).num_rows]
    leaf = next((at for at in range(metadata.num_columns) if metadata.schema.column(at).path == time), None)
    if leaf is None:
        return {"spans": ()}  # a column that is missing is refused soon
    kind = head.schema_arrow.field(time).type
    spans = []
    before = 0
    for group in groups:
        told = metadata.row_group(group)
        statistics = told.column(leaf).statistics
        if statistics is not None and statistics.null_count:
            at = before + _first_null(head, group, time)
            raise Refuse(f"{file}, row {at}: {time} is null; {without_time(statistics.null_count)}", code="bad_row")
        if statistics is None or not statistics.has_min_max:
            first, last = _read_span(head, group, time, file, unit)
        elif not all(map(unit.is_number, (statistics.min_raw, statistics.max_raw))):
            return {"spans": ()}  # a column of another type is refused soon
        else:
            first, last = (_micros(value, kind, unit) for value in (statistics.min_raw, statistics.max_raw))
        if unit is not MICROSECONDS and not FIRST_US <= first <= last <= LAST_US:
            raw = statistics.min_raw if first < FIRST_US else statistics.max_raw
            raise Refuse(f"{file}, field {time}: expected {EVENT_TIME}, got {value_shown(raw, unit)}", code="bad_value")
        spans.append((first, last, told.num_rows))
        before += told.num_rows
    return {"groups": tuple(groups), "spans": tuple(spans)}


def _read_span(head: Any, group: int, time: str, file: Path, unit: TimeUnit) -> tuple[int, int]:
    """The first and the last time of a row group whose metadata does not have them."""
    table = head.read_row_group(group, [time])
    try:
        (times,), _ = read_table(table, [Field(time, Type.TIMESTAMP, nullable=False)], False, lambda field: unit)
    except Refuse as error:
        raise Refuse(f"{file}, {error.text}", code=error.code) from None
    return int(times.min()), int(times.max())


def _first_null(head: Any, group: int, time: str) -> int:
    """The place of the first row of a row group that has no time, from 1."""
    nulls = head.read_row_group(group, [time]).column(time).is_null().to_numpy()
    return int(np.argmax(nulls)) + 1


def _micros(raw: int | float, kind: Any, unit: TimeUnit) -> int:
    if isinstance(raw, float) or not pa.types.is_timestamp(kind):
        return unit.micros(raw)
    scale = {"s": 1_000_000, "ms": 1_000, "us": 1}
    return raw // 1_000 if kind.unit == "ns" else raw * scale[kind.unit]


def without_time(count: int) -> str:
    return f"{counted(count, 'row')} {'has' if count == 1 else 'have'} no time"


def _reach(directory: Path) -> tuple[int | None, tuple[Gap, ...]]:
    """How far an archive is whole, if it says so, and its gaps."""
    told = read_reach(directory)
    return (None, ()) if told is None else (told.reach_us, told.gaps)


def _look_into_csv(stream: str, path: str, files: Sequence[Path], flow: Flow) -> Input:
    for file in files:
        _check_header(file, list(flow.catalog.stream(stream).schema.names))
    return _look_into_text(stream, path, "csv", files, flow)


def _check_header(file: Path, expected: list[str]) -> None:
    """Refuse a file whose columns are others, before any is read."""
    with _opened(file) as opened:
        try:
            with TextIOWrapper(opened, "utf-8-sig", newline="") as text:
                header = next(csv.reader(text), [])
        except (UnicodeDecodeError, csv.Error) as error:
            raise Refuse(f"{file}: expected CSV in UTF-8 with a header, got {error}", code="bad_file") from None
    if header != expected:
        got = ",".join(header)[:200]
        raise Refuse(f"{file}, line 1: expected the header {','.join(expected)}, got {got}", code="schema")


def _look_into_json(stream: str, path: str, files: Sequence[Path], flow: Flow) -> Input:
    return _look_into_text(stream, path, "json", files, flow)


def _look_into_text(stream: str, path: str, kind: str, files: Sequence[Path], flow: Flow) -> Input:
    """Read what is cheap to read: small files to their end, so that their times are known."""
    definition = flow.catalog.stream(stream)
    columns = _declared(definition)
    left = LOOKED_AT
    parts = []
    for part in map(_part, files):
        read, spans = _read(part, kind, definition, max(left, 1))
        left -= read
        parts.append(replace(part, spans=spans))
    return Input(stream, path, kind, tuple(parts), columns)


def refuse_bad_rows(inputs: Iterable[Input], flow: Flow) -> None:
    """Read files to the end, and refuse the first row that does not fit, with its file and line."""
    for one in inputs:
        for part in one.parts:
            _read(part, one.format, flow.catalog.stream(one.stream), None)


def _read(
    part: Part, kind: str, stream: StreamDefinition, most: int | None
) -> tuple[int, tuple[tuple[int, int, int], ...] | None]:
    """Read a file's rows, all or up to `most` bytes: how many bytes it read, and the times if these are all. Refuse
    names the row that does not fit."""
    read = 0
    spans = []

    def advanced(count: int) -> None:
        nonlocal read
        read += count

    with closing(read_text(Path(part.path), kind, stream, advanced)) as batches:
        for batch in batches:
            if len(batch):
                spans.append((int(batch.ts.min()), int(batch.ts.max()), len(batch)))
            if most is not None and read >= most:
                return read, None
    return read, tuple(spans)


def read_text(
    file: Path, kind: str, stream: StreamDefinition, advanced: Callable[[int], None] = lambda count: None
) -> Generator[Batch, None, None]:
    """The rows of a file as `millrace run` reads them. `advanced` receives the number of bytes of each piece."""
    with _opened(file) as opened:
        # Columns that the stream does not have are passed over.
        yield from read_opened(opened, str(file), replace(stream, extra="ignore"), advanced, READ_AS[kind])


def _as_it_is(file: Path) -> BinaryIO:
    return file.open("rb")


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """A file, without its compression."""
    try:
        with COMPRESSED.get(file.suffix, _as_it_is)(file) as opened:
            yield opened
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Refuse(f"{file}: cannot be read: {reason}", code="bad_file") from None


def _declared(stream: StreamDefinition) -> dict[str, Any]:
    """The columns of files of text, which are read as the stream declares them."""
    if stream.time is None:
        raise Refuse(
            f"stream {stream.name} has no time column: only an archive (Parquet with a column {IMPLICIT_TIME}) records "
            "when its rows arrived",
            code="schema",
        )
    return {one.name: ARROW_TYPES[one.type] for one in stream.schema}


_LOOKED_INTO: Final[Mapping[str, Callable[[str, str, Sequence[Path], Flow], Input]]] = {
    "parquet": _look_into_parquet,
    "csv": _look_into_csv,
    "json": _look_into_json,
}


# -- checking ----------------------------------------------------------------------------------------------------------


def check_columns(columns: Mapping[str, Any], stream: StreamDefinition, where: str) -> None:
    """Refuse columns that are missing or of another type.

    Columns that the stream does not have are passed over, and one that it got later may be missing from its archive.
    """
    wanted = {one.name: one.type for one in stream.schema}
    if stream.time is None:
        wanted[IMPLICIT_TIME] = Type.TIMESTAMP
    later = {one.name for one in stream.schema if one.nullable} if SEQ in columns else set()
    missing = [name for name in wanted if name not in columns and name not in later]
    if missing:
        raise Refuse(
            f"{where}: expected the columns of stream {stream.name} ({', '.join(wanted)}), got no {', '.join(missing)}"
            f"; the columns are: {', '.join(columns) or 'none'}",
            code="schema",
        )
    for name, type_ in wanted.items():
        if name in columns and not accepts(type_, columns[name], stream.unit_of(name)):
            raise Refuse(f"{where}: column {name}: expected {type_}, got {columns[name]}", code="schema")
    flags = [name for name in OWN_COLUMNS if name in columns]
    if LATE in flags and SEQ not in flags:
        raise Refuse(f"{where}: expected a column {SEQ} as well as {LATE}, got none", code="schema")


# -- times -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Times:
    """The distribution of rows over time: spans, each with its rows evenly between its ends."""

    spans: tuple[tuple[int, int, int], ...]

    @property
    def rows(self) -> int:
        return sum(rows for _, _, rows in self.spans)

    def extent(self, low_us: int, high_us: int) -> Extent | None:
        """The times of the rows between two times; None if there are none."""
        inside = [(max(first, low_us), min(last + 1, high_us)) for first, last, _ in self.spans]
        inside = [(first, last) for first, last in inside if first < last]
        return Extent(min(first for first, _ in inside), max(last for _, last in inside)) if inside else None

    def cuts(self, extent: Extent, tasks: int) -> list[int]:
        """Times that cut the extent into slices of about as many rows each."""
        grid = np.unique(np.linspace(extent.from_us, extent.to_us, GRID).astype(np.int64))
        below = np.zeros(len(grid))
        for first, last, rows in self.spans:
            below += rows * np.clip((grid - first) / (last + 1 - first), 0.0, 1.0)
        wanted = below[0] + (below[-1] - below[0]) * np.arange(1, tasks) / tasks
        cuts: list[int] = grid[np.minimum(np.searchsorted(below, wanted), len(grid) - 1)].tolist()
        return cuts


def times_of(inputs: Iterable[Input]) -> Times:
    """The times of all rows in files that have them in their metadata."""
    return Times(tuple(span for one in inputs for part in one.parts for span in part.spans or ()))


def newest_before(one: Input, stream: StreamDefinition, arrived_us: int) -> int | None:
    """The newest time among an archive's rows that had arrived by then; None if there are none, or it is unknown."""
    if ARRIVED not in one.columns:
        return None
    names = [stream.time or IMPLICIT_TIME, ARRIVED]
    newest: list[int] = []
    for part in one.parts:
        with pq.ParquetFile(part.path) as file:
            for group in range(file.metadata.num_row_groups):
                times, arrived = (column.cast(pa.int64()).to_numpy() for column in file.read_row_group(group, names))
                newest += times[arrived <= arrived_us].max(initial=MIN_TIME, keepdims=True).tolist()
    found = max(newest, default=MIN_TIME)
    return None if found == MIN_TIME else found


def first_behind(one: Input, stream: StreamDefinition, gap: Gap) -> int | None:
    """The time of the first row on time that an archive has after a gap; None if it has none."""
    found: tuple[int, int] | None = None
    names = [SEQ, stream.time or IMPLICIT_TIME, LATE]
    for number, path in sorted((_first_of(part.path), part.path) for part in one.parts):
        if found is not None and number > found[0]:
            break  # all further rows arrived later
        with pq.ParquetFile(path) as file:
            for group in range(file.metadata.num_row_groups):
                numbers, times, late = (
                    column.cast(pa.int64()).to_numpy() for column in file.read_row_group(group, names).select(names)
                )
                behind = np.flatnonzero((numbers > gap.after_seq) & (late == 0))
                if len(behind):
                    at = behind[np.argmin(numbers[behind])]
                    mine = (int(numbers[at]), int(times[at]))
                    found = mine if found is None else min(found, mine)
    return None if found is None else found[1]


def _first_of(path: str) -> int:
    """The first number in an archive's file, as its name says it."""
    name = Name.parse(Path(path).name)
    return -1 if name is None else name.first


def notes_of(flow: Flow, inputs: Mapping[str, Input], to_us: int, *, whole: bool = False) -> list[str]:
    """Warnings about the inputs; `whole` if they are known to have all rows that the span needs."""
    notes = []
    for name, one in inputs.items():
        if not whole and one.reach_us is not None and to_us != MAX_TIME and to_us > one.reach_us:
            reach = "nothing yet" if one.reach_us == MIN_TIME else format_timestamp(one.reach_us)
            notes.append(f"{name}: the archive is complete up to {reach}; later rows may still be missing")
        if one.gaps:
            gaps = counted(len(one.gaps), "gap")
            notes.append(f"{name}: the archive has {gaps}, where rows may be missing ({one.path}/{REACH_FILE})")
        if one.columns and not one.flagged:
            notes.append(f"{name}: no {LATE} column, so rows are read in order of time and none counts as late")
        if (doubt := _doubtful_unit(one, flow.catalog.stream(name))) is not None:
            notes.append(f"{name}: {doubt}")
        if f"{name}.late" in flow.streams and one.columns and not one.flagged:
            notes.append(f"{name}.late: the input does not mark late rows of {name}, so it has none")
    return notes


def _doubtful_unit(one: Input, stream: StreamDefinition) -> str | None:
    """The warning about an input all of whose times make sense only in another unit, as in `millrace run`."""
    spans = [span for part in one.parts for span in part.spans or ()]
    if not spans or stream.time is None:
        return None
    unit = stream.unit_of(stream.time)
    first = unit.count(min(first for first, _, _ in spans))
    likely = [likely_unit(time, unit) for time in (first, unit.count(max(last for _, last, _ in spans)))]
    if likely[0] is None or likely[1] is None or likely[0].unit is not likely[1].unit:
        return None
    return f"its first time, {first}, is {format_timestamp(unit.micros(first))}; {likely[0]}"
