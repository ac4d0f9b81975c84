"""Archives and other Parquet files, read by the tasks that pack their rows: Spark never sees a row of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.backfill.inputs import Input
from millrace.backfill.layout import SEQUENCE, TIME, Lane, slot_type
from millrace.backfill.packing import CHUNK, PORTION
from millrace.engine.plan import StreamDefinition
from millrace.formats.arrow import read_table
from millrace.history.files import ARRIVED, FEED, IMPLICIT_TIME, LATE, MARK
from millrace.history.files import SEQUENCE as SEQ
from millrace.protocol import Field, Type
from millrace.values.batch import Int64s
from millrace.values.eventtime import MAX_TIME, MIN_TIME

# Rows of files without numbers are in the order of the files and of their place there: so many bits are for the place.
PLACE_BITS: Final = 44


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a file; `number` is the place of the file among all."""

    path: str
    number: int
    group: int
    rows: int


def row_groups(one: Input, low_us: int, high_us: int) -> list[RowGroup]:
    """The row groups that may hold rows of these times, files in order of their names."""
    found = []
    for number, part in enumerate(sorted(one.parts, key=attrgetter("path"))):
        for group, (first, last, rows) in zip(part.groups, part.spans, strict=True):
            if first < high_us and last >= low_us:
                found.append(RowGroup(part.path, number, group, rows))
    return found


def portions(groups: Sequence[RowGroup], cores: int) -> list[list[RowGroup]]:
    """Neighbouring row groups put together: enough rows for large packages, and enough portions for all cores."""
    total = sum(group.rows for group in groups)
    wanted = max(-(-total // PORTION), min(cores, -(-total // CHUNK)), 1)
    made: list[list[RowGroup]] = []
    rows = 0
    for group in groups:
        if len(made) <= rows * wanted // max(total, 1):
            made.append([])
        made[-1].append(group)
        rows += group.rows
    return made


def tables(
    groups: Iterable[RowGroup], lane: Lane, origin: StreamDefinition, low_us: int, high_us: int
) -> Iterator[Any]:
    """A lane's rows in these row groups between two times, as the packer takes them.

    `origin` is the stream whose rows the files hold, also if its late ones are wanted.
    """
    for path, own in groupby(groups, attrgetter("path")):
        with pq.ParquetFile(path) as file:
            heads = [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)]
            names = [name for name in _needed(lane, origin) if name in file.schema_arrow.names]
            for group in own:
                table = file.read_row_group(group.group, names, use_threads=False)
                place = (group.number << PLACE_BITS) + sum(heads[: group.group])
                yield _table(table, lane, origin, place, low_us, high_us)


def _needed(lane: Lane, origin: StreamDefinition) -> list[str]:
    names = [origin.time or IMPLICIT_TIME, SEQ, LATE, *(field.name for field in lane.fields)]
    if lane.stream.name != origin.name:
        names += [MARK, FEED, ARRIVED]
    return list(dict.fromkeys(names))


def _table(table: Any, lane: Lane, origin: StreamDefinition, place: int, low_us: int, high_us: int) -> Any:
    late = lane.stream.name != origin.name
    if SEQ not in table.column_names:
        table = table.append_column(SEQ, pa.array(place + np.arange(table.num_rows)))
    if LATE in table.column_names:
        flags = table.column(LATE)
        table = table.filter(flags if late else pc.invert(flags))
    elif late:
        table = table.slice(0, 0)
    ts = _micros(table, ARRIVED if late else origin.time or IMPLICIT_TIME, origin)
    columns = {TIME: pa.array(ts), SEQUENCE: table.column(SEQ).cast(pa.int64())}
    for at, slot in zip(lane.positions, lane.slots, strict=True):
        columns[slot] = _slot(table, lane, origin, at)
    made = pa.table(columns)
    inside = (ts >= low_us) & (ts < high_us)
    return made if inside.all() or (low_us, high_us) == (MIN_TIME, MAX_TIME) else made.filter(pa.array(inside))


def _slot(table: Any, lane: Lane, origin: StreamDefinition, at: int) -> Any:
    """A column: the tuple's own, or of a late one how late it was, against which mark, of which feed, and when."""
    field = lane.stream.schema.fields[at]
    own = len(origin.schema)
    if at < own:
        if field.name not in table.column_names:
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
    return pa.array(_micros(table, MARK, origin) - _micros(table, origin.time or IMPLICIT_TIME, origin))


def _micros(table: Any, name: str, stream: StreamDefinition) -> Int64s:
    """A time of each row in microseconds; RowError at one that has none."""
    (values,), _ = read_table(
        table.select([name]), [Field(name, Type.TIMESTAMP, nullable=False)], False, lambda field: stream.unit_of(name)
    )
    return values  # type: ignore[return-value]
