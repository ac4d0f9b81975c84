"""A task retains the rows of the widest window, however many rows stream through it, and emits only its slice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.backfill.flow import Flow
from millrace.backfill.job import flow_of_text, job_of
from millrace.backfill.layout import batch_of, lanes_of
from millrace.backfill.splitting import Slice, plan_split
from millrace.backfill.task import Chunk, Task
from millrace.protocol import Refuse
from millrace.values.batch import Batch
from millrace.values.eventtime import FIRST_US, LAST_US
from tests.backfill.local import extent_of, lane_table, packed, run_split
from tests.depth import examples

STREAMS = """
CREATE STREAM a (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '1 hour');
CREATE STREAM b (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', progress = 'punctuation');
"""
ROWS, AT_ONCE, WINDOW_US = 40_000, 500, 1_000


def chunks(task: Task, seen: list[int]) -> Iterator[Chunk]:
    """A row of `a` in each microsecond, and none of `b`. The state is measured as the task runs."""
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


# -- rows in the order of their arrival --------------------------------------------------------------------------------

DISORDER_US = 5
T = "CREATE STREAM t (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '5 us');"
U = "CREATE STREAM u (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '5 us');"


def on_time(times: list[int]) -> list[int]:
    """The times that are not below the mark at their arrival."""
    kept: list[int] = []
    newest = -DISORDER_US
    for time in times:
        if time >= newest - DISORDER_US:
            kept.append(time)
            newest = max(newest, time)
    return kept


def batch_of_times(flow: Flow, stream: str, times: list[int]) -> Batch:
    ts = np.array(times, np.int64)
    return Batch(flow.streams[stream].schema, ts, [ts, np.arange(len(ts))])


ARRIVED = st.lists(st.integers(0, 40), max_size=30).map(on_time)


@given(ARRIVED, st.sampled_from([(1, 1), (2, 1), (3, 1), (3, 2), (4, 4)]), st.integers(1, 9))
@settings(max_examples=examples(150), deadline=None)
def test_windows_of_rows_count_in_the_order_of_arrival(times, window, at_once):
    size, slide = window
    flow = flow_of_text(T + f"SELECT sum(k) AS s, count(*) AS n FROM t [ROWS {size} SLIDE {slide}]")
    job = job_of(flow, plan_split(flow, None), goes_on=True)
    (packages,) = packed(job, {"t": batch_of_times(flow, "t", times)}, at_once)
    _, given = job.task(0, packages, lambda rows: None)
    rows = [(int(ts), *row) for batch in given for ts, row in zip(batch.ts, batch.rows(), strict=True)]
    expected = []
    for end in range(1, len(times) + 1):
        if (end - size) % slide:
            continue  # no window ends here: one starts every `slide` rows
        members = range(max(end - size, 0), end)
        expected.append((max(times[at] for at in members), sum(members), len(members)))
    assert rows == expected


@given(ARRIVED, st.integers(0, 45))
@settings(max_examples=examples(60), deadline=None)
def test_a_span_of_windows_of_rows_is_a_part_of_all_of_them(times, to_us):
    flow = flow_of_text(T + "SELECT sum(k) AS s FROM t [ROWS 3 SLIDE 2]")
    inputs = {"t": batch_of_times(flow, "t", times)}
    extent = extent_of(inputs)
    every = run_split(flow, plan_split(flow, extent), inputs)
    part = run_split(flow, plan_split(flow, extent, wanted=Slice(to_us=to_us)), inputs)
    assert part == [row for row in every if row["__ts"] < to_us]


@given(ARRIVED, ARRIVED, st.integers(1, 9))
@settings(max_examples=examples(60), deadline=None)
def test_streams_beside_counted_rows_come_together_by_time(one, other, at_once):
    sql = "CREATE QUERY c AS SELECT sum(k) AS s FROM t [ROWS 2 SLIDE 1]; CREATE QUERY q AS "
    sql += "SELECT c.s FROM c [RANGE '1 hour'] JOIN u [RANGE '1 hour'] ON c.s = u.k"
    flow = flow_of_text(T + U + sql)
    inputs = {"t": batch_of_times(flow, "t", one), "u": batch_of_times(flow, "u", other)}
    rows = run_split(flow, plan_split(flow, extent_of(inputs)), inputs, at_once)
    sums = [max(2 * at - 1, 0) for at in range(len(one))] + [len(one) - 1] * bool(one)
    assert sorted(row["s"] for row in rows) == sorted(total for total in sums if total < len(other))


def test_what_is_out_of_order_is_told_without_its_rows():
    flow = flow_of_text(T + "SELECT k FROM t")
    chunks = [{"t": batch_of_times(flow, "t", [at])} for at in (7, 3)]
    with pytest.raises(
        AssertionError, match=r"^t: 1 row came out of order, .* bug in Millrace, not a problem of the input$"
    ):
        list(Task(flow, Slice()).run(chunks))


@pytest.mark.parametrize("us", [FIRST_US - 1, LAST_US + 1, 2**62, -(2**63)])
def test_a_row_outside_event_time_is_refused(us):
    (lane,) = lanes_of(flow_of_text(STREAMS + "SELECT k, ts FROM a WHERE k < 5"))
    rows = [Batch.from_rows(lane.stream.schema, [(one, 1)], [one]) for one in (FIRST_US, LAST_US, us)]
    for fits in rows[:2]:
        assert batch_of(lane, lane_table(lane, fits)) == fits
    with pytest.raises(Refuse, match=f"stream a: expected rows with a time from 0001-.* to 9999-.*, got {us} "):
        batch_of(lane, lane_table(lane, rows[2]))
