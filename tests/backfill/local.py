"""A backfill without Spark: the same split, the same packages and the same tasks, in the test's own process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.backfill.flow import Flow
from millrace.backfill.job import Job, job_of, read_between
from millrace.backfill.layout import SEQUENCE, TIME, Lane, result_batch, result_schema, slot_type
from millrace.backfill.splitting import Extent, Split
from millrace.formats.arrow import to_arrow
from millrace.protocol import DELETED, GONE
from millrace.values.batch import Batch


def extent_of(inputs: Mapping[str, Batch]) -> Extent | None:
    times = [int(end) for batch in inputs.values() if len(batch) for end in (batch.ts.min(), batch.ts.max() + 1)]
    return Extent(min(times), max(times)) if times else None


def lane_table(lane: Lane, batch: Batch) -> Any:
    """A stream's rows, in the order of their arrival, as a reader passes them to the packer."""
    rows = to_arrow(batch)
    columns = {TIME: pa.array(batch.ts), SEQUENCE: pa.array(np.arange(len(batch)))}
    for at, slot in zip(lane.positions, lane.slots, strict=True):
        columns[slot] = rows.column(at).cast(slot_type(lane.stream.schema.fields[at].type))
    return pa.table(columns)


def packed(job: Job, inputs: Mapping[str, Batch], rows_at_a_time: int = 7) -> list[list[Any]]:
    """By task, its packages as record batches, in the order in which Spark sorts them."""
    made: list[list[Any]] = [[] for _ in range(job.split.tasks)]
    for number, name in enumerate(job.flow.streams):
        low, high = read_between(job.flow, job.split, name)
        batch = inputs[name]
        table = lane_table(job.lanes[number], batch).filter(pa.array((batch.ts >= low) & (batch.ts < high)))
        packer = job.packer(number, True)
        for portion in table.to_batches(rows_at_a_time):
            for package in packer.packages([portion]):
                made[package.column("task")[0].as_py()].append(package)
    return [sorted(own, key=lambda package: package.column("first")[0].as_py()) for own in made]


def run_split(flow: Flow, split: Split, inputs: Mapping[str, Batch], rows_at_a_time: int = 7) -> list[dict]:
    """All tasks one after the other; inputs are rows on time, in order of arrival."""
    job = job_of(flow, split)
    tasks = enumerate(packed(job, inputs, rows_at_a_time))
    return list(chain.from_iterable(run_task(job, number, own) for number, own in tasks))


def run_task(job: Job, number: int, packages: Iterable[Any]) -> list[dict]:
    names = result_schema(job.flow.schema).names
    _, batches = job.task(number, packages, lambda rows: None)
    rows = (row for batch in batches for row in result_batch(batch).rows())
    return [_without_deleted(dict(zip(names, row, strict=True))) for row in rows]


def _without_deleted(row: dict) -> dict:
    """The row as the query has it: the second mark of a tombstone is equal to the first."""
    assert row.pop(DELETED, None) == row.get(GONE)
    return row
