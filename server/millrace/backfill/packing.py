"""Rows in packages: all rows of one task that were read together travel as one row of Spark's.

Spark's operators cost microseconds for each row that goes into or out of Python, and its shuffle and sort as much
again. A package costs that once for thousands of rows. It has rows of one stream, in order, as a compressed Arrow
stream; a task merges its packages, which come in the order of their first keys.

    task      the task
    lane      the number of the stream
    ordinal   whether the rows are in the order of their arrival, so that the key is their number; else it is their time
    first     the least key
    least     the least time
    rows      how many rows there are
    data      the Arrow stream
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millrace.backfill.assign import first_and_last, key_numbers
from millrace.backfill.layout import SEQUENCE, TIME, Lane, batch_of
from millrace.backfill.splitting import Split
from millrace.backfill.task import Chunk
from millrace.values.batch import Batch, Int64s
from millrace.values.eventtime import MAX_TIME

TASK, FIRST = "task", "first"
PACKED: Final = pa.schema(
    [
        (TASK, pa.int32()),
        ("lane", pa.int32()),
        ("ordinal", pa.bool_()),
        (FIRST, pa.int64()),
        ("least", pa.int64()),
        ("rows", pa.int64()),
        ("data", pa.binary()),
    ]
)
# The same for Spark.
PACKED_DDL: Final = "task int, lane int, ordinal boolean, first bigint, least bigint, rows bigint, data binary"
# Rows and bytes that are read before they are divided among the tasks: packages are large, and memory is bounded.
PORTION: Final = 1_000_000
PORTION_BYTES: Final = 64 * 2**20
# Rows that go into an engine together, unless more have the same time.
CHUNK: Final = 65_536
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


# -- packing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packer:
    """Divides the rows of one stream among the tasks.

    ordinal    whether the order of arrival matters and is known
    left_out   tasks that are done
    """

    lane: Lane
    number: int
    split: Split
    ordinal: bool = False
    left_out: frozenset[int] = frozenset()

    def packages(self, tables: Iterable[Any]) -> Iterator[Any]:
        """Packages as record batches of `PACKED`."""
        for table in _portions(tables):
            yield from self._divided(table)

    def _divided(self, table: Any) -> Iterator[Any]:
        ts, numbers = _numbers(table, TIME), _numbers(table, SEQUENCE)
        key = numbers if self.ordinal else ts
        rows, tasks = self._tasks(table, ts)
        if not _in_order(key, numbers):
            inner = np.lexsort((numbers, key)) if rows is None else np.lexsort((numbers[rows], key[rows]))
            rows, tasks = (inner if rows is None else rows[inner]), tasks[inner]
        if tasks.size and tasks.min() != tasks.max():
            # Few tasks: a stable sort of small integers is a radix sort.
            order = np.argsort(tasks.astype(np.int16 if self.split.tasks < 2**15 else np.int32), kind="stable")
            rows, tasks = (order if rows is None else rows[order]), tasks[order]
        starts = np.flatnonzero(np.diff(tasks, prepend=-1)).tolist()
        for first, last in zip(starts, [*starts[1:], len(tasks)], strict=True):
            task = int(tasks[first])
            if task not in self.left_out:
                own = table.slice(first, last - first) if rows is None else table.take(pa.array(rows[first:last]))
                yield self._package(task, own)

    def _tasks(self, table: Any, ts: Int64s) -> tuple[Int64s | None, Int64s]:
        """The rows that tasks need, None for all in order, and the task of each; in slices of time a row may have
        several."""
        split, lane = self.split, self.lane
        if split.how == "one":
            return None, np.zeros(len(ts), np.int64)
        if split.how == "key":
            return None, key_numbers(batch_of(lane, table), split.keys.get(lane.stream.name, ()), split.tasks)
        first, last = first_and_last(ts, split.slices, split.reach(lane.stream.name))
        counts = np.maximum(last - first + 1, 0)
        rows = np.repeat(np.arange(len(ts)), counts)
        places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, np.repeat(first, counts) + places

    def _package(self, task: int, table: Any) -> Any:
        table = table.select([TIME, SEQUENCE, *self.lane.slots])
        ts = _numbers(table, TIME)
        first = int(_numbers(table, SEQUENCE)[0]) if self.ordinal else int(ts[0])
        values = [task, self.number, self.ordinal, first, int(ts.min()), table.num_rows, to_stream(table)]
        return pa.RecordBatch.from_arrays(
            [pa.array([value], field.type) for value, field in zip(values, PACKED, strict=True)], schema=PACKED
        )


def to_stream(table: Any) -> bytes:
    """A table as a compressed Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as writer:
        writer.write(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_stream(data: Any) -> Any:
    """The table of an Arrow stream, in one piece."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all().combine_chunks()


def _portions(tables: Iterable[Any]) -> Iterator[Any]:
    """Tables put together until they are large; empty ones are dropped."""
    held: list[Any] = []
    rows = size = 0
    for table in tables:
        if not table.num_rows:
            continue
        held.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= PORTION or size >= PORTION_BYTES:
            yield _joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield _joined(held)


def _joined(tables: Sequence[Any]) -> Any:
    """Tables or record batches as one table whose columns have one piece each."""
    whole = [pa.Table.from_batches([one]) if isinstance(one, pa.RecordBatch) else one for one in tables]
    return pa.concat_tables(whole).combine_chunks()


def _numbers(table: Any, name: str) -> Int64s:
    found: Int64s = table.column(name).to_numpy()
    return found


def _in_order(key: Int64s, numbers: Int64s) -> bool:
    """Whether rows are in the order of their keys, and of their numbers where these are equal."""
    before, after = key[:-1], key[1:]
    if (after < before).any():
        return False
    equal = np.flatnonzero(after == before)
    return bool((numbers[equal] <= numbers[equal + 1]).all())


# -- merging -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Package:
    """A package as a task gets it."""

    lane: int
    ordinal: bool
    first: int
    least: int
    rows: int
    data: Any

    def table(self) -> Any:
        return from_stream(self.data)


def packages_of(batches: Iterable[Any]) -> Iterator[Package]:
    """The packages in record batches of `PACKED`."""
    for batch in batches:
        lanes, ordinal, first, least, rows = (batch.column(at).to_pylist() for at in range(1, 6))
        for at, fixed in enumerate(zip(lanes, ordinal, first, least, rows, strict=True)):
            yield Package(*fixed, batch.column(6)[at].as_buffer())


def by_time(lanes: Sequence[Lane], packages: Iterable[Package]) -> Iterator[Chunk]:
    """The rows of packages, which come in the order of their first times, in order of time.

    Held are only the rows of packages whose times overlap.
    """
    waiting = [_Waiting(lane, False) for lane in lanes]
    enough = CHUNK
    for package in packages:
        if sum(lane.rows for lane in waiting) >= enough:
            yield from _chunks(waiting, package.first)
            # If much of it waits for its time, it is not sorted again for each package.
            enough = max(2 * sum(lane.rows for lane in waiting), CHUNK)
        waiting[package.lane].add(package)
    yield from _chunks(waiting, None)


def _chunks(waiting: Sequence[_Waiting], below: int | None) -> Iterator[Chunk]:
    """The waiting rows below a time, in pieces."""
    for lane in waiting:
        lane.sort()
    while True:
        # The time up to which some stream has a chunk, and none has more than that.
        ends = [end for lane in waiting if (end := lane.time_after(CHUNK)) is not None]
        if below is not None:
            ends.append(below)
        bound = min(ends, default=None)
        chunk = {lane.name: rows for lane in waiting if (rows := lane.take(bound)) is not None}
        if chunk:
            yield chunk
        if bound == below:
            return


def by_arrival(lanes: Sequence[Lane], packages: Iterable[Package]) -> Iterator[Chunk]:
    """The rows of packages in the order of their arrival, which says of each the least time still to come.

    In each stream that time rises with the order of arrival, so it also brings streams together. It depends on all
    later rows, so all packages are held, as they are.
    """
    held: list[list[Package]] = [[] for _ in lanes]
    for package in packages:
        held[package.lane].append(package)
    pieces = {lane.stream.name: _arrivals(lane, own) for lane, own in zip(lanes, held, strict=True)}
    if len(pieces) > 1:
        yield from _together(pieces)
        return
    for name, own in pieces.items():
        for batch in own:
            yield {name: batch}


def _arrivals(lane: Lane, packages: list[Package]) -> Iterator[Batch]:
    """A stream's rows in the order of their arrival; if it is unknown, in order of time."""
    if not packages:
        return
    packages.sort(key=lambda package: package.first)
    later = np.minimum.accumulate([package.least for package in reversed(packages)])[::-1].tolist()
    waiting = _Waiting(lane, packages[0].ordinal)
    enough = CHUNK
    for at, package in enumerate(packages):
        if waiting.rows >= enough:
            waiting.sort()
            yield from _pieces(waiting.take(package.first, later[at]))
            enough = max(2 * waiting.rows, CHUNK)
        waiting.add(package)
    waiting.sort()
    yield from _pieces(waiting.take(None))


def _pieces(batch: Batch | None) -> Iterator[Batch]:
    for first in range(0, 0 if batch is None else len(batch), CHUNK):
        assert batch is not None
        yield batch.slice(first, min(first + CHUNK, len(batch)))


def _together(pieces: Mapping[str, Iterator[Batch]]) -> Iterator[Chunk]:
    """Several streams by their rows' arrival, which rises in each."""
    fresh = dict(pieces)
    held: dict[str, Batch] = {}
    while fresh or held:
        for name in list(fresh):
            # One whose rows all have the bound's arrival may have more of these.
            while name not in held or held[name].arrival[0] == held[name].arrival[-1]:
                more = next(fresh[name], None)
                if more is None:
                    del fresh[name]
                    break
                held[name] = Batch.concat([held[name], more]) if name in held else more
        bound = min((held[name].arrival[-1] for name in fresh), default=None)
        chunk = {}
        for name in list(held):
            batch = held[name]
            end = len(batch) if bound is None else int(np.searchsorted(batch.arrival, bound))
            if end:
                chunk[name] = batch.slice(0, end)
            if end == len(batch):
                del held[name]
            else:
                held[name] = batch.slice(end, len(batch))
        if chunk:
            yield {name: chunk[name] for name in pieces if name in chunk}


class _Waiting:
    """Rows of one stream that wait for their turn, by their key."""

    def __init__(self, lane: Lane, ordinal: bool) -> None:
        self.name = lane.stream.name
        self._lane = lane
        self._ordinal = ordinal
        self._new: list[Any] = []
        self._table: Any = None
        self._key: Int64s = np.empty(0, np.int64)
        self.rows = 0

    def add(self, package: Package) -> None:
        self._new.append(package.table())
        self.rows += package.rows

    def sort(self) -> None:
        """Put all waiting rows into one table, in order."""
        if not self._new:
            return
        table = _joined([*([] if self._table is None else [self._table]), *self._new])
        self._new = []
        numbers = _numbers(table, SEQUENCE)
        key = numbers if self._ordinal else _numbers(table, TIME)
        if not _in_order(key, numbers):
            order = np.lexsort((numbers, key))
            table, key = table.take(pa.array(order)), key[order]
        self._table, self._key = table, key

    def time_after(self, count: int) -> int | None:
        """A key so that about so many rows are below it, and at least one; None if there are fewer."""
        if len(self._key) <= count:
            return None
        bound = int(self._key[count])
        return bound if bound > self._key[0] else bound + 1

    def take(self, below: int | None, later: int | None = None) -> Batch | None:
        """The rows whose keys are below this, or all. `later`: the least time of rows that are still to be added."""
        end = self.rows if below is None else int(np.searchsorted(self._key, below))
        if not end:
            return None
        table, self._table = self._table.slice(0, end), self._table.slice(end)
        self._key, self.rows = self._key[end:], self.rows - end
        return batch_of(self._lane, table, self._arrival(_numbers(table, TIME), later))

    def _arrival(self, ts: Int64s, later: int | None) -> Int64s:
        """By the virtual clock, rows arrive at the least time of theirs and of those behind them."""
        if not self._ordinal:
            return ts
        behind = [int(_numbers(self._table, TIME).min())] if self.rows else []
        least = min([*behind, *([] if later is None else [later])], default=MAX_TIME)
        found: Int64s = np.minimum(np.minimum.accumulate(ts[::-1])[::-1], least)
        return found
