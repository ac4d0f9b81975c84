"""The data source `millrace` of Spark: it reads a stream's parts and packs the rows where it reads them.

Spark requests offsets from a process of Python, writes them into its log, requests the pieces between two of them, and
has a task read each. Only parcels leave the task (`backfill/parts.py`).
"""

from __future__ import annotations

import base64
import pickle
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from millrace.backfill.bucket import Group
from millrace.backfill.layout import SEQUENCE, TIME, Lane, slot_type
from millrace.backfill.parts import LIVE_DDL, PartPacker
from millrace.backfill.reading import lane_tables
from millrace.protocol import Refuse
from millrace.spark.inputs.reader import Offset, Piece, Portion, Reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = "millrace"
# There may be a password in it: Spark shows no option that has such a name.
INPUT: Final = "input_secret"
# Rows that are packed together: enough that a parcel's fixed cost vanishes.
PACKED_ROWS: Final = 262_144
# A refusal in the words of another process, in which it was raised.
_REFUSED: Final = re.compile(r"millrace\.protocol\.errors\.\w+: (.+)")


@dataclass(frozen=True)
class StreamInput:
    """A stream's reader, and the groups that its rows go to: the group's number, and the stream's in it."""

    reader: Reader
    targets: tuple[tuple[int, Group, int], ...]

    def packed(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """The rows of a piece as parcels. A part without rows has parcels too: they say what it promises."""
        last = Portion(None, 0)
        for portion in together(self.reader.read(piece), PACKED_ROWS):
            if last.table is not None:
                yield from self._parcels(piece, last, last.promise)
            last = portion
        promises = [one for one in (last.promise, piece.promise) if one is not None]
        yield from self._parcels(piece, last, max(promises, default=None))

    def _parcels(self, piece: Piece, portion: Portion, promise: int | None) -> Iterator[pa.RecordBatch]:
        for number, group, at in self.targets:
            lane = group.lanes[at]
            packer = PartPacker(group, number, at, piece.part)
            if portion.table is None:
                yield packer.pack(_no_rows(lane), portion.first, promise, piece.at_us)
            else:
                (table,) = lane_tables([(portion.table, portion.first)], lane, self.reader.stream)
                yield packer.pack(table, portion.first, promise, piece.at_us)


def together(portions: Iterable[Portion], rows: int) -> Iterator[Portion]:
    """Portions that follow each other as one, up to so many rows."""
    held: list[Portion] = []
    count = 0
    for portion in portions:
        if held and count + portion.table.num_rows > rows:
            yield _joined(held)
            held, count = [], 0
        held.append(portion)
        count += portion.table.num_rows
    if held:
        yield _joined(held)


def _joined(portions: Sequence[Portion]) -> Portion:
    table = pa.concat_tables([portion.table for portion in portions], promote_options="default")
    promises = [portion.promise for portion in portions if portion.promise is not None]
    return Portion(table, portions[0].first, max(promises, default=None))


def _no_rows(lane: Lane) -> Any:
    types = {TIME: pa.int64(), SEQUENCE: pa.int64()}
    types |= {slot: slot_type(field.type) for slot, field in zip(lane.slots, lane.fields, strict=True)}
    return pa.table({name: pa.array([], kind) for name, kind in types.items()})


# -- Spark's interface -------------------------------------------------------------------------------------------------


class MillraceSource(DataSource):
    """`spark.readStream.format("millrace")`, with a `StreamInput` as its one option."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return LIVE_DDL

    def streamReader(self, schema: Any) -> StreamReader:  # noqa: N802 - Spark's name
        return StreamReader(_unpickled(self.options[INPUT]))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader as Spark calls it."""

    def __init__(self, one: StreamInput) -> None:
        self._input = one
        self._reader = one.reader
        # Of a query that reads what there is and ends: what there was when it started, and when that was.
        self._ends = False
        self._until: tuple[Any, int] | None = None
        self._newest: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._reader.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable() if self._reader.most is None else ReadMaxRows(self._reader.most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._ends, self._until = True, None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        begin = Offset.from_json(start)
        seen, at_us = self._until or (self._reader.look(begin.parts), _now_us())
        if self._ends:
            self._until = seen, at_us
        self._newest = self._reader.newest(seen)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._reader.latest(begin, seen, at_us, most).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """In addition to its offsets, a query's progress has the end of each part."""
        return None if self._newest is None else {"parts": self._newest}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        pieces = self._reader.pieces(Offset.from_json(start), Offset.from_json(end))
        # One task speaks for all silent parts.
        silent = [piece for piece in pieces if piece.silent]
        return [InputPartition([piece]) for piece in pieces if not piece.silent] + [InputPartition(silent)] * bool(
            silent
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for piece in partition.value:
            yield from self._input.packed(piece)


def _now_us() -> int:
    return time.time_ns() // 1_000


def _pickled(one: StreamInput) -> str:
    return base64.b64encode(pickle.dumps(one)).decode()


def _unpickled(text: str) -> StreamInput:
    found = pickle.loads(base64.b64decode(text))
    assert isinstance(found, StreamInput)
    return found


# -- a job's input -----------------------------------------------------------------------------------------------------


def live_frame(spark: SparkSession, groups: Sequence[Group], readers: Mapping[str, Reader]) -> DataFrame:
    """The parcels of all streams of all groups, as a streaming DataFrame with the columns of `LIVE`."""
    # Spark's log knows sources by their order: the order of the inputs, also after a change.
    targets: dict[str, list[tuple[int, Group, int]]] = {name: [] for name in readers}
    for number, group in enumerate(groups):
        if not group.buckets:
            continue
        for at, lane in enumerate(group.lanes):
            targets.setdefault(lane.stream.name, []).append((number, group, at))
    if missing := [name for name in targets if name not in readers]:
        raise Refuse(f"stream {missing[0]} has no input: add --input {missing[0]}=...", code="bad_input")
    spark.dataSource.register(MillraceSource)
    frames = [
        spark.readStream.format(FORMAT).option(INPUT, _pickled(StreamInput(readers[name], tuple(own)))).load()
        for name, own in targets.items()
    ]
    return reduce(lambda one, other: one.union(other), frames)


def refusal_in(error: BaseException) -> str | None:
    """The one line of a refusal that another process has raised; None if the error is something else."""
    found = _REFUSED.findall(str(error))
    return found[-1].strip() if found else None
