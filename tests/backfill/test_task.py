"""A task keeps what the widest window holds, however many rows stream through it, and emits its slice alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from millrace.backfill.job import flow_of_text
from millrace.backfill.splitting import Slice
from millrace.backfill.task import Chunk, Task
from millrace.operators.batch import Batch
from millrace.protocol import Refuse

STREAMS = """
CREATE STREAM a (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '1 hour');
CREATE STREAM b (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', progress = 'punctuation');
"""
ROWS, AT_ONCE, WINDOW_US = 40_000, 500, 1_000


def chunks(task: Task, seen: list[int]) -> Iterator[Chunk]:
    """A row of `a` in each microsecond, and none of `b`: what the task remembers is looked at as it goes."""
    for first in range(0, ROWS, AT_ONCE):
        ts = np.arange(first, first + AT_ONCE)
        yield {"a": Batch(task.flow.streams["a"].schema, ts, [ts, ts % 7])}
        seen.append(sum(operator.state_tuples for operator in task.engine.graph.operators.values()))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, count(*) AS n FROM TUMBLE(a, ts, INTERVAL '1000 us') GROUP BY k",
        "SELECT a.k FROM a [RANGE '1000 us'] LEFT JOIN b [RANGE '1000 us'] ON a.k = b.k",
        "SELECT a.k FROM a FOLLOWED BY NO b WITHIN '1000 us' ON a.k = b.k",
        "SELECT x.k FROM a x JOIN a y ON x.k = y.k AND y.ts BETWEEN x.ts AND x.ts + INTERVAL '7 us'",
    ],
)
def test_what_a_task_remembers_does_not_grow_with_its_rows(query):
    flow = flow_of_text(STREAMS + query)
    task = Task(flow, Slice())
    seen: list[int] = []
    rows = sum(len(batch) for batch in task.run(chunks(task, seen)))
    assert rows > ROWS / WINDOW_US
    assert max(seen) <= 4 * (WINDOW_US + AT_ONCE)
    assert task.engine.gauge.peak_tuples <= 8 * AT_ONCE


def test_only_rows_of_the_slice_come_out():
    flow = flow_of_text(STREAMS + "SELECT k, ts FROM a WHERE k < 5")
    task = Task(flow, Slice(1_000, 1_010))
    times = [ts for batch in task.run(chunks(task, [])) for ts in batch.ts.tolist()]
    assert times == [ts for ts in range(1_000, 1_010) if ts % 7 < 5]


def test_a_task_without_rows_gives_none():
    flow = flow_of_text(STREAMS + "SELECT k, count(*) AS n FROM TUMBLE(a, ts, INTERVAL '1 s') GROUP BY k")
    assert list(Task(flow, Slice()).run(())) == []


def test_rows_that_cannot_be_computed_are_counted_and_a_query_that_fails_says_so():
    flow = flow_of_text(STREAMS + "SELECT 1 / k AS x FROM a")
    task = Task(flow, Slice())
    assert sum(len(batch) for batch in task.run(chunks(task, []))) == ROWS - len(range(0, ROWS, 7))
    ((count, reason),) = task.failed_rows.values()
    assert count == len(range(0, ROWS, 7))
    assert "zero" in reason
    small = flow_of_text(STREAMS + "CREATE QUERY q WITH (max_state = 10) AS SELECT a.k FROM a JOIN b ON a.k = b.k")
    failing = Task(small, Slice())
    with pytest.raises(Refuse, match=r"query q failed: .*max_state"):
        list(failing.run(chunks(failing, [])))
