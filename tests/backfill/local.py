"""A backfill without Spark: the same split, the same layout and the same tasks, in the test's own process."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from millrace.backfill.assign import first_and_last, key_numbers
from millrace.backfill.flow import Flow
from millrace.backfill.job import read_between
from millrace.backfill.layout import layout_of, result_batch, result_schema
from millrace.backfill.splitting import Extent, Split
from millrace.backfill.task import Task
from millrace.protocol import DELETED, GONE
from millrace.values.batch import Batch

SEQUENCE, STREAM = "seq", "s"


def extent_of(inputs: Mapping[str, Batch]) -> Extent | None:
    times = [int(end) for batch in inputs.values() if len(batch) for end in (batch.ts.min(), batch.ts.max() + 1)]
    return Extent(min(times), max(times)) if times else None


def run_split(flow: Flow, split: Split, inputs: Mapping[str, Batch], rows_at_a_time: int = 7) -> list[dict]:
    """All tasks one after the other; inputs are rows on time, in order of arrival."""
    layout = layout_of(flow)
    tables: list[list] = [[] for _ in range(split.tasks)]
    for number, name in enumerate(flow.streams):
        batch = inputs[name]
        order = np.argsort(batch.ts, kind="stable")
        table = layout.table(number, batch).append_column(SEQUENCE, pa.array(np.arange(len(batch))))
        if STREAM not in table.column_names:
            table = table.append_column(STREAM, pa.array(np.zeros(len(batch), np.int32)))
        for task, chosen in enumerate(_chosen(flow, split, name, batch)):
            tables[task].append(table.take(pa.array(order[chosen[order]])))
    rows = []
    for task, parts in enumerate(tables):
        whole = pa.concat_tables(parts).combine_chunks()
        whole = whole.sort_by([(name, "ascending") for name in layout.order()])
        rows += run_task(flow, split, task, layout.chunks(whole.to_batches(rows_at_a_time)))
    return rows


def run_task(flow: Flow, split: Split, number: int, chunks) -> list[dict]:
    names = result_schema(flow.schema).names
    task = Task(flow, split.slices[number])
    rows = (row for batch in task.run(chunks) for row in result_batch(batch).rows())
    return [_without_deleted(dict(zip(names, row, strict=True))) for row in rows]


def _without_deleted(row: dict) -> dict:
    """The row as the query has it: the second mark of a tombstone is equal to the first."""
    assert row.pop(DELETED, None) == row.get(GONE)
    return row


def _chosen(flow: Flow, split: Split, name: str, batch: Batch) -> list[np.ndarray]:
    """Per task, a mask of the rows that go to it."""
    if split.how == "key":
        numbers = key_numbers(batch, split.keys.get(name, ()), split.tasks)
        return [numbers == task for task in range(split.tasks)]
    if split.how == "one":
        low, high = read_between(flow, split, name)
        return [(batch.ts >= low) & (batch.ts < high)]
    first, last = first_and_last(batch.ts, split.slices, split.reach(name))
    return [(first <= task) & (task <= last) for task in range(split.tasks)]
