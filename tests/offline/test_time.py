"""On-demand timestamps (requested watermarks) under the virtual clock: latencies and idle-waiting computed by hand."""

from __future__ import annotations

import pytest

from tests.running import run_events, run_script

# ETS, figure 4: a selection on each of two streams, and a union in order of time.
FIGURE_4 = """
CREATE STREAM a (v BIGINT) WITH ({});
CREATE STREAM b (v BIGINT) WITH ({});
CREATE QUERY u WITH (order = 'event') AS SELECT v FROM a WHERE v >= 0 UNION ALL SELECT v FROM b WHERE v >= 0;
"""
ARRIVALS = [
    {"at": 100, "stream": "a", "tuple": {"v": 1}},
    {"at": 200, "stream": "a", "tuple": {"v": 2}},
    {"at": 250, "stream": "b", "tuple": {"v": 3}},
    {"at": 300, "stream": "a", "tuple": {"v": 4}},
    {"at": 400, "tick": True},
]


def union_of(report):
    (union,) = (operator for operator in report["operators"].values() if operator["kind"] == "union")
    return union


@pytest.mark.parametrize(
    ("policy", "latencies", "idle", "peak"),
    [
        # A: 1 and 2 wait for b's 250, which waits for a's 300; 4 waits for the end.
        ("ets = 'none'", [150, 50, 50, 100], 150 + 50 + 100, 3),
        # B: heartbeats at 160, 220, 280 and 340.
        ("ets = 'periodic', ets_interval = '60 us'", [60, 20, 30, 40], 60 + 20 + 30 + 40, 1),
        # C: the silent stream returns its time on demand.
        ("ets = 'on-demand'", [0, 0, 0, 0], 0, 1),
        # D: latent tuples have no time to wait for.
        ("timestamps = 'latent'", [0, 0, 0, 0], 0, 1),
    ],
    ids=["none", "periodic", "on demand", "latent"],
)
def test_the_four_policies_on_the_simple_union(tmp_path, policy, latencies, idle, peak):
    result = run_events(FIGURE_4.format(policy, policy), ARRIVALS, tmp_path)
    assert [row["v"] for row in result.rows["u"]] == [1, 2, 3, 4]
    found = result.report["queries"]["u"]["latency_us"]
    assert (found["mean"], found["max"]) == (sum(latencies) / 4, max(latencies))
    union = union_of(result.report)
    assert (union["idle_wait_us"], union["input_tuples"]) == (idle, 4)
    assert result.report["totals"]["peak_queue_tuples"] == peak


EXTERNAL = """
CREATE STREAM a (ts TIMESTAMP, v BIGINT) WITH (time = 'ts');
CREATE STREAM b (ts TIMESTAMP, v BIGINT) WITH (time = 'ts', {});
CREATE QUERY u WITH (order = 'event') AS SELECT v FROM a UNION ALL SELECT v FROM b;
"""


def external(*arrivals, until=None):
    """Tuples `(stream, time)` that arrive at their own time."""
    events: list = [{"stream": stream, "tuple": {"ts": ts, "v": ts}} for stream, ts in arrivals]
    return events if until is None else [*events, {"at": until, "tick": True}]


def test_a_silent_external_stream_is_waited_for_until_its_skew_has_passed(tmp_path):
    events = external(("b", 90), ("a", 100), ("a", 200), until=500)
    result = run_events(EXTERNAL.format("max_skew = '30 us'"), events, tmp_path, close=False)
    assert [row["v"] for row in result.rows["u"]] == [90, 100, 200]
    # 90 waits for a's first tuple. Then b may lag by 30: 100 is released at 130 and 200 at 230 in any case.
    assert result.report["queries"]["u"]["latency_us"] == {"mean": 70 / 3, "p50": 30, "p99": 30, "max": 30}
    assert union_of(result.report)["idle_wait_us"] == 70
    assert result.report["totals"]["virtual_us"] == 410


def test_without_more_events_the_clock_stops_at_the_last(tmp_path):
    sql = EXTERNAL.format("max_skew = '30 us'")
    events = external(("b", 90), ("a", 100), until=129)
    assert [row["v"] for row in run_events(sql, events, tmp_path, close=False).rows["u"]] == [90]
    events = external(("b", 90), ("a", 100), until=130)
    assert [row["v"] for row in run_events(sql, events, tmp_path, close=False).rows["u"]] == [90, 100]
    closed = run_events(sql, external(("b", 90), ("a", 100)), tmp_path)
    assert [row["v"] for row in closed.rows["u"]] == [90, 100]
    assert closed.report["queries"]["u"]["latency_us"]["max"] == 10


def test_in_run_no_client_answers_and_without_a_skew_no_clock_does(tmp_path):
    events = external(("b", 90), ("a", 100), until=10_000_000)
    assert [
        row["v"] for row in run_events(EXTERNAL.format("ets = 'on-demand'"), events, tmp_path, close=False).rows["u"]
    ] == [90]
    none = EXTERNAL.format("ets = 'none', max_skew = '30 us'")
    assert [row["v"] for row in run_events(none, events, tmp_path, close=False).rows["u"]] == [90]


def test_heartbeats_of_an_external_stream_keep_its_skew(tmp_path):
    # The clock starts at 90. Heartbeats at 140 and 190 promise 110 and 160.
    sql = EXTERNAL.format("ets = 'periodic', ets_interval = '50 us', max_skew = '30 us'")
    events = external(("b", 90), ("a", 100), ("a", 130), until=1_000)
    result = run_events(sql, events, tmp_path, close=False)
    assert result.report["queries"]["u"]["latency_us"] == {"mean": (10 + 40 + 60) / 3, "p50": 40, "p99": 60, "max": 60}
    # The tuple of b and eighteen heartbeats. After 190 no operator waits, so no heartbeat counts.
    assert result.report["streams"]["b"]["punctuations"] == 1 + 18


def test_a_tuple_that_breaks_the_skew_after_an_ets_is_late(tmp_path):
    sql = EXTERNAL.format("max_skew = '30 us'")
    events = [*external(("b", 90), ("a", 100)), {"at": 150, "stream": "b", "tuple": {"ts": 99, "v": 99}}]
    result = run_events(sql, events, tmp_path)
    assert [(line["ts"], line["mark"], line["at"]) for line in result.late["b"]] == [(99, 100, 150)]
    assert [row["v"] for row in result.rows["u"]] == [90, 100]


def test_a_feed_that_closes_lets_go_and_the_others_hold(tmp_path):
    sql = EXTERNAL.format("max_skew = '30 us'")
    events = [
        {"at": 90, "stream": "b", "feed": "x", "tuple": {"ts": 90, "v": 90}},
        {"at": 90, "stream": "b", "feed": "y", "tuple": {"ts": 90, "v": 91}},
        {"at": 95, "stream": "a", "tuple": {"ts": 300, "v": 300}},
        {"at": 96, "stream": "b", "feed": "x", "tuple": {"ts": 400, "v": 400}},
        {"at": 150, "stream": "b", "feed": "y", "close": True},
        {"at": 160, "tick": True},
    ]
    result = run_events(sql, events, tmp_path, close=False)
    # y alone delayed 300, at most until 324.
    assert [row["v"] for row in result.rows["u"]] == [90, 91, 300]
    assert result.report["queries"]["u"]["latency_us"]["max"] == 55


def test_late_tuples_of_several_streams_go_to_several_files(tmp_path):
    result = run_events(
        EXTERNAL.format("disorder = '2 us'"), external(("a", 9), ("a", 5), ("b", 9), ("b", 6), ("b", 8)), tmp_path
    )
    assert [(line["ts"], line["late_by_us"]) for line in result.late["a"]] == [(5, 4)]
    assert [(line["ts"], line["late_by_us"]) for line in result.late["b"]] == [(6, 1)]


def test_a_tuple_too_far_ahead_is_rejected_and_counted(tmp_path):
    sql = EXTERNAL.format("max_ahead = '1 second'")
    far = {"at": 20, "stream": "b", "tuple": {"ts": 10**15, "v": 1}}
    result = run_events(
        sql, [*external(("b", 10)), far, {"at": 30, "stream": "b", "tuple": {"ts": 30, "v": 30}}], tmp_path
    )
    assert [row["v"] for row in result.rows["u"]] == [10, 30]
    assert result.report["streams"]["b"] == {"tuples": 3, "late": 0, "rejected": 1, "punctuations": 3}


def test_with_costs_a_timer_stays_set_when_work_has_passed_it(tmp_path):
    # The union's first execution and the preceding selection take nothing; the work for the last tuple passes 130.
    sql = EXTERNAL.format("max_skew = '30 us'").replace("FROM a", "FROM a WHERE v > 0")
    result = run_events(sql, external(("b", 90), ("a", 100)), tmp_path, close=False, cost="50", strategy="dfs(1)")
    assert [row["v"] for row in result.rows["u"]] == [90, 100]


def test_slices_do_not_hide_the_clock(tmp_path, monkeypatch):
    """A long input is read row by row if a clock answers for silent streams or checks `max_ahead`."""
    from millrace.offline import merge

    monkeypatch.setattr(merge, "EXACT_ROWS", 3)
    rows = tmp_path / "a.jsonl"
    rows.write_text("".join(f'{{"ts": {100 * n}, "v": {n}}}\n' for n in range(20)))
    other = tmp_path / "b.jsonl"
    other.write_text('{"ts": 1, "v": 1}\n{"ts": 900, "v": 2}\n{"ts": 600, "v": 3}\n')
    for options in (
        "max_skew = '30 us'",
        "max_skew = '30 us', ets = 'periodic', ets_interval = '10 us'",
        "max_ahead = '1 us'",
    ):
        inputs = [("a", str(rows)), ("b", str(other))]
        reported = run_script(EXTERNAL.format(options), tmp_path, inputs=inputs)
        plain = run_script(EXTERNAL.format(options), tmp_path, inputs=inputs, report=None)
        assert (plain.rows, plain.late) == (reported.rows, reported.late)
