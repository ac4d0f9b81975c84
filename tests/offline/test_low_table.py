"""The trace of a low-level table of one slot, against the paper's figure 7 done by hand."""

from __future__ import annotations

from itertools import groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.depth import examples
from tests.running import run_events

SECOND_US = 1_000_000
WINDOW_S = 10
QUERY = """
CREATE STREAM packets (ts TIMESTAMP, src BIGINT) WITH (time = 'ts');
CREATE QUERY q WITH (aggregate = 'bounded', slots = {slots}, flush = 'lazy', max_delay = '20 seconds') AS
  SELECT src, count(*) AS n, window_end FROM TUMBLE(packets, ts, INTERVAL '10 seconds') GROUP BY src;
"""
COUNTS = ("took", "gave", "partials", "evicted", "flushed")


def traced(packets, slots=1):
    """The rows, and the counts of each execution of the aggregate."""
    events = [
        {"at": at, "stream": "packets", "tuple": {"ts": second * SECOND_US, "src": src}}
        for at, (second, src) in enumerate(packets)
    ]
    with TemporaryDirectory() as folder:
        result = run_events(QUERY.format(slots=slots), events, Path(folder), trace=True)
    return result.rows["q"], [tuple(line[count] for count in COUNTS) for line in result.trace if "took" in line]


def test_the_steps_of_figure_7():
    _, steps = traced([(1, 1), (2, 1), (3, 2), (11, 2), (12, 1)])
    assert steps == [
        (1, 0, 1, 0, 0),
        (1, 0, 1, 0, 0),
        (1, 0, 2, 1, 0),
        (1, 0, 3, 2, 0),
        (0, 2, 1, 2, 0),
        (1, 0, 2, 3, 0),
        (0, 2, 0, 3, 1),
    ]


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=30))
def test_each_change_of_group_evicts(steps):
    """With one slot a run of packets of one group makes a partial result: a collision or the end hands it up."""
    second, packets = 0, []
    for later, src in steps:
        second += later
        packets.append((second, src))
    rows, executions = traced(packets)
    groups = [(second // WINDOW_S, src) for second, src in packets]
    taken = [counts for counts in executions if counts[0]]
    assert [counts[0] for counts in taken] == [1] * len(packets)
    *_, (_, _, partials, evicted, flushed) = executions
    assert partials == 0
    assert evicted + flushed == sum(1 for _ in groupby(groups))
    assert flushed <= len({window for window, _ in groups})
    for (_, _, _, before, _), (_, _, partials, after, _) in pairwise(executions):
        assert after - before in (0, 1)
        assert partials >= after - before
    assert sum(row["n"] for row in rows) == len(packets)


def test_a_table_with_room_evicts_nothing():
    _, executions = traced([(1, 1), (2, 2), (3, 1), (11, 3)], slots=4096)
    *_, (_, _, partials, evicted, flushed) = executions
    assert (partials, evicted, flushed) == (0, 0, 3)
