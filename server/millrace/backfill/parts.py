"""Rows of a live job in parcels: one bucket's share of the rows of a part that were read together.

A part is input with one order: a partition of Kafka, a list of files, a server's stream. It is a feed of its
stream, and lateness depends on its order. So every bucket gets a parcel of all that was read, even if none of
the rows are its own: it says how far the part has come. Spark moves and sorts a few rows in each epoch, and every
bucket comes to the same marks.

    group    the number of the group of queries that share a key
    bucket   the bucket
    lane     the number of the stream in the group
    part     the part's name
    first    the position of the first row that was read: a part's parcels are in this order
    rows     how many rows there are in the parcel
    whole    how many were read together, for all buckets
    newest   the newest time of all of them; null: there are none
    promise  below this time nothing will come of the part any more; null: it promises nothing
    data     an Arrow stream; each row has its time, and the newest time `before` it among the rows read together
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.backfill.assign import key_numbers
from millrace.backfill.layout import TIME, batch_of
from millrace.backfill.packing import from_stream, to_stream
from millrace.values.batch import Int64s
from millrace.values.eventtime import MIN_TIME

if TYPE_CHECKING:
    from millrace.backfill.bucket import Group

BEFORE: Final = "before"
LIVE: Final = pa.schema(
    [
        ("group", pa.int32()),
        ("bucket", pa.int32()),
        ("lane", pa.int32()),
        ("part", pa.string()),
        ("first", pa.int64()),
        ("rows", pa.int64()),
        ("whole", pa.int64()),
        ("newest", pa.int64()),
        ("promise", pa.int64()),
        ("data", pa.binary()),
    ]
)
# The same for Spark.
LIVE_DDL: Final = (
    "group int, bucket int, lane int, part string, first bigint, rows bigint, whole bigint, newest bigint, "
    "promise bigint, data binary"
)


class Parcel(NamedTuple):
    """A bucket's share of rows of a part."""

    group: int
    bucket: int
    lane: int
    part: str
    first: int
    rows: int
    whole: int
    newest: int | None
    promise: int | None
    data: Any

    def table(self) -> Any:
        return from_stream(self.data)


def parcels_of(batches: Iterable[Any]) -> Iterator[Parcel]:
    """The parcels in record batches of `LIVE`, not in their order yet."""
    for batch in batches:
        *fixed, data = batch.columns
        for at, values in enumerate(zip(*(column.to_pylist() for column in fixed), strict=True)):
            yield Parcel._make((*values, data[at].as_buffer() if data[at].is_valid else None))


@dataclass(frozen=True)
class PartPacker:
    """Divides the rows of one part among the buckets of a group.

    number   of the group
    lane     of the stream in the group
    """

    group: Group
    number: int
    lane: int
    part: str

    def pack(self, table: Any, first: int, promise: int | None = None, at_us: int | None = None) -> Any:
        """Rows in the order of the part as a record batch of `LIVE`, a row for each bucket; there may be no rows.

        `first` is the position of the first row. Times that lie too far above the clock `at_us` move nothing, because
        the bucket refuses them.
        """
        group, count = self.group, table.num_rows
        ts: Int64s = table.column(TIME).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        ahead_us = group.lanes[self.lane].stream.ahead_us
        seen = ts if ahead_us is None or at_us is None else np.where(ts <= at_us + ahead_us, ts, MIN_TIME)
        newest = np.maximum.accumulate(seen)
        before = np.concatenate(([MIN_TIME], newest[:-1]))[:count]
        table = table.select([TIME, *group.lanes[self.lane].slots]).append_column(BEFORE, pa.array(before))
        buckets = self._buckets(table, first)
        if group.buckets > 1:
            order = np.argsort(buckets, kind="stable")  # a stable sort of small integers is a radix sort
            table, buckets = table.take(pa.array(order)), buckets[order]
        ends = np.searchsorted(buckets, np.arange(group.buckets), side="right").tolist()
        starts = [0, *ends[:-1]]
        spans = list(zip(starts, ends, strict=True))
        blobs = [to_stream(table.slice(low, high - low)) if high > low else None for low, high in spans]
        last = int(newest[-1]) if count else MIN_TIME
        values: dict[str, list[Any]] = {
            "group": [self.number] * group.buckets,
            "bucket": list(range(group.buckets)),
            "lane": [self.lane] * group.buckets,
            "part": [self.part] * group.buckets,
            "first": [first] * group.buckets,
            "rows": [high - low for low, high in spans],
            "whole": [count] * group.buckets,
            "newest": [None if last == MIN_TIME else last] * group.buckets,
            "promise": [promise] * group.buckets,
            "data": blobs,
        }
        return pa.RecordBatch.from_pydict(values, schema=LIVE)

    def _buckets(self, table: Any, first: int) -> Any:
        """The bucket of each row: by its key, or by its place if rows need not meet."""
        group, lane = self.group, self.group.lanes[self.lane]
        if group.buckets == 1:
            return np.zeros(table.num_rows, np.int16)
        key = group.keys.get(lane.stream.name, ())
        if not key:
            return ((first + np.arange(table.num_rows)) % group.buckets).astype(np.int16)
        return key_numbers(batch_of(lane, table), key, group.buckets).astype(np.int16)
