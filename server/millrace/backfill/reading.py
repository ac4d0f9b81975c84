"""Rows of inputs as Arrow tables, read by the tasks that pack them: of files without Spark, of frames from Spark.

Only types change here, as for Arrow frames in the daemon: nothing computes an expression of a query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.backfill.inputs import Input, read_text
from millrace.backfill.layout import SEQUENCE, TIME, Lane, slot_type
from millrace.backfill.packing import CHUNK, PORTION
from millrace.engine.plan import StreamDefinition
from millrace.formats.arrow import read_table, to_arrow
from millrace.history.files import ARRIVED, FEED, IMPLICIT_TIME, LATE, MARK
from millrace.history.files import SEQUENCE as SEQ
from millrace.protocol import Field, Refuse, Type
from millrace.values.batch import Int64s
from millrace.values.eventtime import MAX_TIME, MIN_TIME

# Rows without numbers are in the order of the files, or partitions, and of their place there: so many bits are for it.
PLACE_BITS: Final = 44
# Bytes of a row of text, roughly: how large a file is decides how many read.
ROW_BYTES: Final = 50

# A table, and the place of its first row.
Raw = tuple[Any, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """A row group of a Parquet file, or a whole file of text; `number` is the place of the file among all."""

    path: str
    format: str
    number: int
    rows: int
    group: int | None = None


def pieces_of(one: Input, low_us: int = MIN_TIME, high_us: int = MAX_TIME) -> list[Piece]:
    """The pieces that may hold rows of these times, files in order of their names."""
    found = []
    for number, part in enumerate(sorted(one.parts, key=attrgetter("path"))):
        if one.format != "parquet":
            found.append(Piece(part.path, one.format, number, max(part.size // ROW_BYTES, 1)))
            continue
        for group, (first, last, rows) in zip(part.groups, part.spans or (), strict=True):
            if first < high_us and last >= low_us:
                found.append(Piece(part.path, one.format, number, rows, group))
    return found


def portions(pieces: Sequence[Piece], cores: int) -> list[list[Piece]]:
    """Neighbouring pieces put together: enough rows for large packages, and enough portions for all cores."""
    total = sum(piece.rows for piece in pieces)
    wanted = max(-(-total // PORTION), min(cores, -(-total // CHUNK)), 1)
    made: list[list[Piece]] = []
    rows = 0
    for piece in pieces:
        if len(made) <= rows * wanted // max(total, 1):
            made.append([])
        made[-1].append(piece)
        rows += piece.rows
    return made


def needed(lane: Lane, origin: StreamDefinition) -> list[str]:
    """The columns of an input that a lane's rows are made of, as far as the input has them."""
    names = [time_column(origin), SEQ, LATE, *(field.name for field in lane.fields)]
    if lane.stream.name != origin.name:
        names += [MARK, FEED, ARRIVED]
    return list(dict.fromkeys(names))


def time_column(stream: StreamDefinition) -> str:
    return stream.time or IMPLICIT_TIME


# -- reading -----------------------------------------------------------------------------------------------------------


def read(pieces: Iterable[Piece], names: Sequence[str], stream: StreamDefinition) -> Iterator[Raw]:
    """These columns of pieces of files, as far as the files have them."""
    for path, own in groupby(pieces, attrgetter("path")):
        piece, *more = own
        place = piece.number << PLACE_BITS
        if piece.group is not None:
            yield from _row_groups(path, [piece, *more], names, place)
            continue
        for batch in read_text(Path(path), piece.format, stream):
            table = to_arrow(batch)
            yield table.select([name for name in names if name in table.schema.names]), place
            place += len(batch)


def _row_groups(path: str, pieces: Sequence[Piece], names: Sequence[str], place: int) -> Iterator[Raw]:
    with pq.ParquetFile(path) as file:
        metadata = file.metadata
        known = file.schema_arrow.names
        rows = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
        for piece in pieces:
            assert piece.group is not None
            table = file.read_row_group(piece.group, [name for name in names if name in known], use_threads=False)
            yield table, place + sum(rows[: piece.group])


def numbered(batches: Iterable[Any], partition: int) -> Iterator[Raw]:
    """Record batches that come from Spark, one partition's."""
    place = partition << PLACE_BITS
    for batch in batches:
        yield batch, place
        place += batch.num_rows


# -- a lane's rows -----------------------------------------------------------------------------------------------------


def lane_tables(
    raw: Iterable[Raw], lane: Lane, origin: StreamDefinition, low_us: int = MIN_TIME, high_us: int = MAX_TIME
) -> Iterator[Any]:
    """A lane's rows between two times as the packer takes them: those on time, or of a side stream those that were
    late. `origin` is the stream whose rows the tables hold, also if its late ones are wanted."""
    for table, place in raw:
        yield _lane_table(table, place, lane, origin, low_us, high_us)


def _lane_table(table: Any, place: int, lane: Lane, origin: StreamDefinition, low_us: int, high_us: int) -> Any:
    late = lane.stream.name != origin.name
    if SEQ not in table.schema.names:
        table = table.append_column(SEQ, pa.array(place + np.arange(table.num_rows)))
    table = _flagged(table, late)
    ts = _micros(table, ARRIVED if late else time_column(origin), origin)
    columns = {TIME: pa.array(ts), SEQUENCE: table.column(SEQ).cast(pa.int64())}
    for at, slot in zip(lane.positions, lane.slots, strict=True):
        columns[slot] = _slot(table, lane, origin, at)
    made = pa.table(columns)
    inside = (ts >= low_us) & (ts < high_us)
    return made if inside.all() or (low_us, high_us) == (MIN_TIME, MAX_TIME) else made.filter(pa.array(inside))


def _flagged(table: Any, late: bool) -> Any:
    """The rows that were on time, or those that were late."""
    if LATE not in table.schema.names:
        return table.slice(0, 0) if late else table
    flags = table.column(LATE)
    return table.filter(flags if late else pc.invert(flags))


def _slot(table: Any, lane: Lane, origin: StreamDefinition, at: int) -> Any:
    """A column: the tuple's own, or of a late one how late it was, against which mark, of which feed, and when."""
    field = lane.stream.schema.fields[at]
    own = len(origin.schema)
    if at < own:
        if field.name not in table.schema.names:
            return pa.nulls(table.num_rows, slot_type(field.type))  # the stream got it later
        if field.name == origin.time:
            return pa.array(_micros(table, field.name, origin))
        column = table.column(field.name)
        return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    name = ("late_by_us", MARK, FEED, ARRIVED)[at - own]
    if name == FEED:
        return table.column(FEED)
    if name != "late_by_us":
        return pa.array(_micros(table, name, origin))
    return pa.array(_micros(table, MARK, origin) - _micros(table, time_column(origin), origin))


def _micros(table: Any, name: str, stream: StreamDefinition) -> Int64s:
    """A time of each row in microseconds; RowError at one that has none."""
    try:
        (values,), _ = read_table(
            table.select([name]),
            [Field(name, Type.TIMESTAMP, nullable=False)],
            False,
            lambda field: stream.unit_of(name),
        )
    except Refuse as error:
        raise Refuse(f"stream {stream.name}: {error.text}", code=error.code) from None
    return values


# -- times -------------------------------------------------------------------------------------------------------------

SPANS: Final = pa.schema([("first", pa.int64()), ("last", pa.int64()), ("rows", pa.int64()), ("nulls", pa.int64())])
SPANS_DDL: Final = "first bigint, last bigint, rows bigint, nulls bigint"


def spans(raw: Iterable[Raw], time: str, late: bool, origin: StreamDefinition) -> Iterator[Any]:
    """The first and the last time in a column of each table, and its rows, as record batches of `SPANS`: of those that
    were on time, or of those that were late."""
    for whole, _ in raw:
        table = _flagged(whole, late)
        nulls = table.column(time).null_count
        if nulls or not table.num_rows:
            values = [MAX_TIME, MIN_TIME, 0, nulls]
        else:
            ts = _micros(table, time, origin)
            values = [int(ts.min()), int(ts.max()), table.num_rows, 0]
        yield pa.RecordBatch.from_arrays([pa.array([value], pa.int64()) for value in values], schema=SPANS)
