"""How rows of several streams travel to a task as one table, and become batches again.

One wide table would be mostly nulls, so streams share columns by type: the first bigint of each stream is in
`bigint0` and so on. Times are integers of microseconds all the way.

    s      which stream (only if there are several)
    ts     the row's time
    rest   the least time of this row and all that arrived after it (only if rows go in by the order of their arrival)
    seq    its place in the order of arrival; sorted by, then dropped
    task   its task; dropped too
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millrace.backfill.columns import used_columns
from millrace.backfill.flow import Flow
from millrace.backfill.task import Chunk
from millrace.engine.plan import StreamDefinition
from millrace.formats.arrow import ARROW_TYPES, read_table, to_arrow
from millrace.formats.decoder import EVENT_TIME, time_shown
from millrace.formats.writers import file_batch, file_schema
from millrace.protocol import Field, Refuse, Schema, Type
from millrace.values.batch import DTYPES, FILLERS, Batch, Int64s, Values
from millrace.values.eventtime import MIN_TIME, outside

STREAM, TIME, REST, SEQUENCE, TASK = "s", "ts", "rest", "seq", "task"
# A result's rows have one more column: their own time, which a query over them would window on.
OWN_TIME: Final = "__ts"


@dataclass(frozen=True)
class Lane:
    """One stream's part of the table: its fields, and the column of each."""

    stream: StreamDefinition
    positions: tuple[int, ...]
    slots: tuple[str, ...]

    @property
    def fields(self) -> list[Field]:
        return [self.stream.schema.fields[at] for at in self.positions]


@dataclass(frozen=True)
class Layout:
    """All streams' lanes, and the columns that they share, with their types.

    by_arrival   whether rows go in by the order of their arrival, each with its promise about later ones
    """

    lanes: tuple[Lane, ...]
    slots: Mapping[str, Type]
    by_arrival: bool = False

    @property
    def several(self) -> bool:
        return len(self.lanes) > 1

    def columns(self) -> list[str]:
        """The table's columns as a task gets them."""
        return [*([STREAM] if self.several else []), TIME, *([REST] if self.by_arrival else []), *self.slots]

    def order(self) -> list[str]:
        """What the rows of a task are sorted by. In each stream the least time that is still to come rises with the
        order of arrival, so sorting by it keeps that order, and brings streams together by time."""
        return [REST if self.by_arrival else TIME, *([STREAM] if self.several else []), SEQUENCE]

    # -- in ------------------------------------------------------------------------------------------------------------

    def chunks(self, tables: Iterable[Any]) -> Iterator[Chunk]:
        """Record batches as batches of the streams."""
        for table in tables:
            if not self.several:
                (lane,) = self.lanes
                yield {lane.stream.name: batch_of(lane, table)}
                continue
            numbers = table.column(STREAM).to_numpy(zero_copy_only=False)
            yield {
                lane.stream.name: batch_of(lane, table.take(pa.array(rows)))
                for number, lane in enumerate(self.lanes)
                if len(rows := np.flatnonzero(numbers == number))
            }

    # -- out (for tests, and wherever no Spark is needed) --------------------------------------------------------------

    def table(self, number: int, batch: Batch) -> Any:
        """A stream's rows, in the order of their arrival, in the table's columns, without seq and task."""
        lane = self.lanes[number]
        rows = to_arrow(batch)
        columns = {TIME: pa.array(batch.ts)}
        if self.by_arrival:
            columns[REST] = pa.array(np.minimum.accumulate(batch.ts[::-1])[::-1])
        if self.several:
            columns[STREAM] = pa.array(np.full(len(batch), number, np.int32))
        for at, slot in zip(lane.positions, lane.slots, strict=True):
            columns[slot] = rows.column(at).cast(slot_type(self.slots[slot]))
        for slot, type_ in self.slots.items():
            if slot not in columns:
                columns[slot] = pa.nulls(len(batch), slot_type(type_))
        return pa.table({name: columns[name] for name in self.columns()})


def slot_type(type: Type) -> Any:
    return pa.int64() if type is Type.TIMESTAMP else ARROW_TYPES[type]


def layout_of(flow: Flow) -> Layout:
    """Put the used columns of all streams into one table."""
    slots: dict[str, Type] = {}
    lanes = []
    for name, positions in used_columns(flow).items():
        stream = flow.streams[name]
        counts: dict[Type, int] = {}
        own = []
        for at in positions:
            kind = stream.schema.fields[at].type
            number = counts[kind] = counts.get(kind, -1) + 1
            own.append(f"{kind.value}{number}")
            slots[own[-1]] = kind
        lanes.append(Lane(stream, positions, tuple(own)))
    return Layout(tuple(lanes), slots, flow.counts_rows)


def batch_of(lane: Lane, table: Any) -> Batch:
    """A stream's rows from the table; Refuse names the stream and the mismatch.

    If rows go in by the order of their arrival, they arrive at the least later time.
    """
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
        own = pa.RecordBatch.from_arrays(
            [table.column(slot) for slot in lane.slots], names=[field.name for field in fields]
        )
        try:
            read, masks = read_table(own, fields, False)
        except Refuse as error:
            raise Refuse(f"stream {lane.stream.name}: {error.text}", code=error.code) from None
        for at, values, mask in zip(lane.positions, read, masks, strict=True):
            columns[at], valid[at] = values, mask
    arrival = table.column(REST).to_numpy(zero_copy_only=False) if REST in table.schema.names else None
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
