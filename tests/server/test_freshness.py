"""A sink's promise about how old its rows get: what breaks it, and how often."""

import threading

import numpy as np

from millrace.net.freshness import Freshness
from millrace.protocol import Schema
from millrace.protocol.admin.data import to_data
from millrace.store.sinkfiles import LineFile
from millrace.values.batch import Batch
from tests.patience import HANG_SECONDS
from tests.server.harness import served, until
from tests.server.test_api import get
from tests.server.test_latest import SQL, feed

SCHEMA = Schema.of(k="double", v="bigint")
A, B = (("k", 1.0),), (("k", 2.0),)


def rows(*given):
    """Rows of (key, arrival)."""
    arrivals = np.array([arrival for _, arrival in given], np.int64)
    made = Batch.from_rows(SCHEMA, [(key, 0) for key, _ in given], arrivals)
    return Batch(SCHEMA, made.ts, made.columns, made.valid, arrivals)


def test_a_breach_is_counted_once_per_key_whether_its_rows_wait_or_are_written():
    made = Freshness(10, (0,))
    made.look(100, [(A, 11), (A, 30), (B, 12)])
    made.look(105, [(A, 35), (B, 17)])
    assert (made.breaches, made.waiting, made.last_us) == (2, {A: 35, B: 17}, 100)
    made.written(rows((1.0, 70), (2.0, 90), (2.0, 100)), 106)  # the promised rows, at last, and one that is fresh
    assert (made.breaches, made.late) == (2, 2)
    made.look(107, [])
    assert not made.waiting
    made.written(rows((1.0, 110)), 119)
    assert (made.breaches, made.late) == (2, 2)
    made.written(rows((1.0, 119)), 130)
    made.written(rows((1.0, 119)), 131)  # it was late together with the one before
    assert (made.breaches, made.late) == (3, 4)
    made.look(132, [])
    made.look(140, [(A, 11)])
    assert made.breaches == 4


def test_keys_are_told_as_json_can_say_them_and_nan_is_one_key():
    made = Freshness(10, (0,))
    made.written(rows((float("nan"), 0), (float("nan"), 5), (None, 7)), 100)
    assert made.breaches == 2
    assert to_data(made.view())["worst"] == [{"key": {"k": "nan"}, "age_us": 100}, {"key": {"k": None}, "age_us": 93}]
    assert "of k = nan by 00:00:00.00009" in str(made.sentence("f"))
    assert "nan" not in str(made.sentence("f", keys=False))


def test_rows_without_a_key_have_one_together():
    made = Freshness(10, ())
    made.look(50, [((), 40)])
    made.written(rows((1.0, 0), (2.0, 1)), 60)
    assert (made.breaches, made.late) == (1, 2)
    assert Freshness(10, ()).sentence("f") is None
    made.look(61, [((), 12)])
    assert "Now rows wait for longer than that, the oldest by" in str(made.sentence("f"))


@served(SQL)
async def test_a_sink_that_stands_still_breaks_its_promise_without_writing(daemon, tmp_path, monkeypatch):
    goes_on = threading.Event()
    write = LineFile.write

    def held(file, sequence, batch):
        goes_on.wait(HANG_SECONDS)
        write(file, sequence, batch)

    monkeypatch.setattr(LineFile, "write", held)
    await daemon.catalog.execute(
        f"CREATE SINK shown FROM board WITH (type = 'file', path = '{tmp_path / 'f.csv'}', on_slow = 'latest', "
        "freshness = '1 ms')"
    )
    try:
        await feed(daemon, ("a", 1))
        for row in (("b", 2), ("b", 3), ("c", 4)):
            await feed(daemon, row)
            await until(lambda row=row: daemon.queries()[0].rows == row[1])
        # No request arrives: the server checks by itself.
        breaches, of = "millrace_sink_freshness_breaches_total", {"query": "board", "sink": "shown"}
        await until(lambda: daemon.metrics.registry.get_sample_value(breaches, of) == 3)
        (shown,) = daemon.catalog.sinks()
        assert (shown.delivered, shown.freshness.late, shown.freshness.waiting) == (0, 0, 3)
        assert {one.key["k"] for one in shown.freshness.waiting_worst} == {"a", "b", "c"}
        why = (await get(daemon, "/api/v1/queries/board/why"))["text"]
        assert "Now 3 keys wait for longer than that, the oldest of k = a by" in why
        text = await get(daemon, "/metrics")
        assert 'millrace_sink_freshness_breaches_total{query="board",sink="shown"} 3.0' in text
    finally:
        goes_on.set()
    await until(lambda: daemon.catalog.sinks()[0].delivered >= 3)
    (shown,) = daemon.catalog.sinks()
    assert (shown.freshness.waiting, shown.freshness.breaches) == (0, 3)
    assert shown.delivered + shown.superseded == 4
    superseded = f'millrace_sink_superseded_tuples_total{{query="board",sink="shown"}} {float(shown.superseded)}'
    assert superseded in await get(daemon, "/metrics")


@served(SQL)
async def test_what_waits_in_the_query_breaks_the_promise_too(daemon, tmp_path):
    await daemon.catalog.execute(
        f"CREATE SINK shown FROM board WITH (type = 'file', path = '{tmp_path / 'f.csv'}', freshness = '1 ms')"
    )
    reader = daemon.engine.graph.operators["board.project1"].inputs[0]
    long_ago = daemon.runner.now_us() - 10_000_000
    reader.queue.enqueue(Batch.from_rows(reader.arc.schema, [("a", 1), ("b", 2)], [5, 6]), long_ago)
    (shown,) = daemon.catalog.sinks()
    assert (shown.freshness.breaches, shown.freshness.waiting) == (2, 2)
    assert shown.delivered == 0
