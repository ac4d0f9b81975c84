"""A stream's rows as an Arrow table on their way to a task, and as a batch again.

ts     the row's time; times are integers of microseconds all the way
seq    its place in the order of arrival
c0...  the columns that the query reads, by their position in the stream
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millrace.backfill.columns import used_columns
from millrace.backfill.flow import Flow
from millrace.engine.plan import StreamDefinition
from millrace.formats.arrow import ARROW_TYPES, read_table
from millrace.formats.decoder import EVENT_TIME, time_shown
from millrace.formats.writers import file_batch, file_schema
from millrace.protocol import Field, Refuse, Schema, Type
from millrace.values.batch import DTYPES, FILLERS, Batch, Int64s, Values
from millrace.values.eventtime import MIN_TIME, outside

TIME, SEQUENCE = "ts", "seq"
# A result's rows have one more column: their own time, which a query over them would window on.
OWN_TIME: Final = "__ts"


@dataclass(frozen=True)
class Lane:
    """One stream's rows on their way: the positions of the columns that travel."""

    stream: StreamDefinition
    positions: tuple[int, ...]

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The names of these columns in the table."""
        return tuple(f"c{at}" for at in self.positions)

    @property
    def fields(self) -> list[Field]:
        return [self.stream.schema.fields[at] for at in self.positions]


def slot_type(type: Type) -> Any:
    return pa.int64() if type is Type.TIMESTAMP else ARROW_TYPES[type]


def lanes_of(flow: Flow) -> tuple[Lane, ...]:
    """The lane of each stream that a flow reads."""
    return tuple(Lane(flow.streams[name], positions) for name, positions in used_columns(flow).items())


def batch_of(lane: Lane, table: Any, arrival: Int64s | None = None) -> Batch:
    """A stream's rows from the table; Refuse names the stream and the mismatch."""
    schema, count = lane.stream.schema, table.num_rows
    ts: Int64s = table.column(TIME).to_numpy(zero_copy_only=False)
    if (row := outside(ts)) is not None:
        got = time_shown(int(ts[row]))
        raise Refuse(f"stream {lane.stream.name}: expected rows with {EVENT_TIME}, got {got}", code="bad_value")
    columns: list[Values] = [_filler(field.type, count) for field in schema]
    valid: list[Any] = [None] * len(schema)
    if lane.stream.time_position is not None:
        columns[lane.stream.time_position] = ts
    fields = lane.fields
    if fields:
        own = table.select(lane.slots).rename_columns([field.name for field in fields])
        try:
            read, masks = read_table(own, fields, False)
        except Refuse as error:
            raise Refuse(f"stream {lane.stream.name}: {error.text}", code=error.code) from None
        for at, values, mask in zip(lane.positions, read, masks, strict=True):
            columns[at], valid[at] = values, mask
    return Batch(schema, ts, columns, valid, arrival)


def _filler(type: Type, count: int) -> Values:
    """An array of `count` fillers in the memory of one."""
    dtype = DTYPES[type]
    one = np.empty(1, dtype)
    one[0] = FILLERS[type]
    return np.broadcast_to(one, (count,))


# -- results -----------------------------------------------------------------------------------------------------------


def result_schema(schema: Schema) -> Schema:
    """The columns of a backfill's rows: the query's, as files have them, and the row's time."""
    return Schema((*file_schema(schema).fields, Field(OWN_TIME, Type.TIMESTAMP)))


def result_batch(batch: Batch) -> Batch:
    """Rows with their own time as the last column, which is null where a row has none."""
    schema, batch = result_schema(batch.schema), file_batch(batch)
    timed = batch.ts != MIN_TIME
    ts, mask = (batch.ts, None) if timed.all() else (np.where(timed, batch.ts, 0), timed)
    return Batch(schema, batch.ts, [*batch.columns, ts], [*batch.valid, mask], batch.arrival)
