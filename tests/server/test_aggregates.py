"""Aggregates of a running server report what they keep: in the log when it changes, and in EXPLAIN ANALYZE."""

import pytest
from structlog.testing import capture_logs

from millrace.operators.aggregate import choosing
from tests.server.harness import lines, served, until
from tests.server.test_api import get

STREAM = "CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts');"
QUERY = (
    "CREATE QUERY q WITH (aggregate = '{}') AS SELECT k, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '10 s') GROUP BY k"
)
WINDOW_US = 10_000_000


async def feed(daemon, *windows):
    """A tuple per key for each window, in this order; then one that closes them."""
    fed = sum(map(len, windows)) + 1
    async with lines(daemon) as feeder:
        for number, keys in enumerate([*windows, [0]]):
            for place, key in enumerate(keys):
                feeder.say(f'{{"stream": "s", "tuple": {{"ts": {number * WINDOW_US + place}, "k": {key}}}}}')
        await until(lambda: operator(daemon).input_tuples == fed and not operator(daemon).inputs[0].queue_tuples)


def operator(daemon):
    return next(one for one in daemon.operators() if one.name == "q.aggregate1")


async def analyzed(daemon):
    """The lines about what aggregates keep."""
    text = (await get(daemon, "/api/v1/queries/q/explain?analyze=true"))["text"]
    return [line.strip() for line in text.splitlines() if line.strip().startswith("q.aggregate1 keeps")]


@pytest.fixture
def few_groups(monkeypatch):
    """Two groups are many."""
    monkeypatch.setattr(choosing, "MANY_GROUPS", 2)


@served(STREAM + QUERY.format("adaptive"))
async def test_an_adaptive_aggregate_logs_each_change_with_the_counts_that_caused_it(daemon, few_groups):
    with capture_logs() as logs:
        await feed(daemon, [1, 2, 3], [1, 2, 3, 3], [1], [1, 1, 1, 1, 1])
    changes = [line for line in logs if line["event"] == "an aggregate changed what it keeps"]
    told = [(line["operator"], line["keeps"], line["tuples"], line["groups"]) for line in changes]
    assert told == [("q.aggregate1", "buffered", 4, 3), ("q.aggregate1", "groups", 5, 1)]
    assert all(line["log_level"] == "info" for line in changes)
    assert changes[0]["rows_bytes"] < choosing.BUFFERED * changes[0]["groups_bytes"]
    assert operator(daemon).aggregate.changes == 2


@served(STREAM + QUERY.format("adaptive"))
async def test_one_window_alone_changes_nothing(daemon, few_groups):
    with capture_logs() as logs:
        await feed(daemon, [1, 2, 3], [1], [1, 2, 3], [1])
    assert [line for line in logs if line["event"] == "an aggregate changed what it keeps"] == []


@served(STREAM + QUERY.format("adaptive"))
async def test_explain_analyze_has_the_price_of_an_adaptive_aggregate(daemon, few_groups):
    assert await analyzed(daemon) == ["q.aggregate1 keeps groups"]
    await feed(daemon, [1, 2, 3], [1, 2, 3, 3])
    kept = operator(daemon).aggregate
    rows, groups = f"{kept.last_rows_bytes:,}", f"{kept.last_groups_bytes:,}"
    (line,) = await analyzed(daemon)
    assert line == (
        f"q.aggregate1 keeps buffered rows: 4 tuples of 3 groups in the last pane would take {rows} bytes as rows, "
        f"{groups} as groups"
    )
    assert 0 < kept.last_rows_bytes < kept.last_groups_bytes


@served(STREAM + QUERY.format("bounded', slots = '1"))
async def test_explain_analyze_has_the_counts_of_a_low_level_table(daemon):
    await feed(daemon, [1, 1, 2, 1], [1, 2, 2])
    # With one slot, each change of key or window evicts; nothing is left of a window when it closes.
    (line,) = await analyzed(daemon)
    assert line == (
        "q.aggregate1 keeps a low-level table of 1 slots: 8 tuples counted, 5 partial results evicted by collisions, "
        "0 flushed by closing windows"
    )
