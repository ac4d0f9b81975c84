"""Executions with a cost: the virtual clock advances by the cost, and measurements are exact."""

from __future__ import annotations

import pytest

from tests.running import run_events

PATH = """
CREATE STREAM s (v BIGINT) WITH (timestamps = 'latent');
CREATE QUERY q WITH (fuse = 'off') AS SELECT v FROM (SELECT v FROM s WHERE v >= 0) WHERE v >= 0;
"""


def burst(n, at=1_000):
    return [{"at": at, "stream": "s", "tuple": {"v": number}} for number in range(n)]


def worked(result):
    """The operators that took a tuple, by number."""
    return [line["operator"].partition(".")[2] for line in result.trace if line.get("took")]


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_a_burst_through_two_operators_costs_as_much_as_in_the_paper(tmp_path, n):
    # EQG, figure 14(b): depth first finishes tuple i at 2ic, breadth first at (n + i)c.
    c = 7
    depth = run_events(PATH, burst(n), tmp_path, strategy="dfs(1)", cost=str(c))
    breadth = run_events(PATH, burst(n), tmp_path, strategy="bfs(1)", cost=str(c))
    assert depth.report["queries"]["q"]["latency_us"]["mean"] == (n + 1) * c
    assert breadth.report["queries"]["q"]["latency_us"]["mean"] == (1.5 * n + 0.5) * c
    assert depth.report["totals"]["virtual_us"] == breadth.report["totals"]["virtual_us"] == 2 * n * c


def test_the_order_of_operators(tmp_path):
    depth = run_events(PATH, burst(3), tmp_path, strategy="dfs(1)", trace=True)
    breadth = run_events(PATH, burst(3), tmp_path, strategy="bfs(1)", trace=True)
    assert worked(depth) == ["filter1", "filter2"] * 3
    assert worked(breadth) == ["filter1"] * 3 + ["filter2"] * 3


def test_a_trace_has_the_time_before_each_execution(tmp_path):
    result = run_events(PATH, burst(2), tmp_path, strategy="dfs(1)", trace=True, cost="10")
    steps = [(line["at"], line["operator"], line["next"]) for line in result.trace if line.get("took")]
    assert steps == [
        (1_000, "q.filter1", "q.filter2"),
        (1_010, "q.filter2", "q.filter1"),
        (1_020, "q.filter1", "q.filter2"),
        (1_030, "q.filter2", None),
    ]
    # No operator is executed for the end of the stream: it passes to the sink directly.
    assert [line["step"] for line in result.trace if "step" in line] == [1, 2, 3, 4]
    assert result.trace[4:] == [{"at": 1_040, "query": "q", "punctuation": None}]


def test_tuples_that_arrive_during_an_execution_enter_before_the_next(tmp_path):
    events = [
        {"at": 0, "stream": "s", "tuple": {"v": 0}},
        {"at": 15, "stream": "s", "tuple": {"v": 1}},
        {"at": 17, "stream": "s", "tuple": {"v": 2}},
    ]
    result = run_events(PATH, events, tmp_path, strategy="bfs(1)", trace=True, cost="10")
    assert worked(result) == ["filter1", "filter2", "filter1", "filter1", "filter2", "filter2"]
    assert [line["at"] for line in result.trace if line.get("took")] == [0, 10, 20, 30, 40, 50]
    latency = result.report["queries"]["q"]["latency_us"]
    assert latency == {"mean": (20 + 35 + 43) / 3, "p50": 35, "p99": 43, "max": 43}


def test_internal_tuples_are_stamped_when_they_arrive_not_when_they_are_looked_at(tmp_path):
    sql = PATH.replace("latent", "internal").replace("SELECT v FROM (", "SELECT ts, v FROM (")
    sql = sql.replace("(SELECT v FROM s", "(SELECT ts, v FROM s")
    events = [{"at": at, "stream": "s", "tuple": {"v": at}} for at in (100, 101, 107)]
    result = run_events(sql, events, tmp_path, strategy="dfs(1)", cost="50")
    assert [(row["ts"], row["v"]) for row in result.rows["q"]] == [(100, 100), (101, 101), (107, 107)]


def test_without_a_price_the_clock_waits_for_the_work(tmp_path):
    events = [{"at": at, "stream": "s", "tuple": {"v": at}} for at in (10, 20, 30)]
    result = run_events(PATH, events, tmp_path, strategy="dfs(1)")
    assert result.report["queries"]["q"]["latency_us"]["max"] == 0
    assert result.report["totals"]["virtual_us"] == 20


def test_a_price_may_be_a_fraction(tmp_path):
    result = run_events(PATH, burst(4, at=1_700_000_000_000_000), tmp_path, strategy="dfs(1)", cost="0.3")
    assert result.report["queries"]["q"]["latency_us"]["mean"] == pytest.approx(5 * 0.3)
    assert result.report["totals"]["virtual_us"] == pytest.approx(2.4)


def test_sinks_and_forks_cost_nothing(tmp_path):
    sql = """CREATE STREAM s (v BIGINT) WITH (timestamps = 'latent');
             CREATE QUERY a AS SELECT v FROM s WHERE v >= 0;
             CREATE QUERY b AS SELECT v FROM s WHERE v >= -1;"""
    result = run_events(sql, burst(5), tmp_path, strategy="dfs(1)", cost="3")
    assert result.report["totals"]["virtual_us"] == 2 * 5 * 3


def test_how_long_a_silent_input_holds_the_other_back(tmp_path):
    # a's tuples wait from 10 and 20 until b has a tuple at 110; the second one waits until the streams end at 150.
    sql = """CREATE STREAM a (ts TIMESTAMP, v BIGINT) WITH (time = 'ts');
             CREATE STREAM b (ts TIMESTAMP, v BIGINT) WITH (time = 'ts');
             CREATE QUERY u WITH (order = 'event') AS SELECT * FROM a UNION ALL SELECT * FROM b;"""
    events = [
        {"at": 10, "stream": "a", "tuple": {"ts": 10, "v": 1}},
        {"at": 20, "stream": "a", "tuple": {"ts": 20, "v": 2}},
        {"at": 110, "stream": "b", "tuple": {"ts": 15, "v": 3}},
        {"at": 150, "tick": True},
    ]
    result = run_events(sql, events, tmp_path)
    assert [row["v"] for row in result.rows["u"]] == [1, 3, 2]
    operators = result.report["operators"]
    union = next(found for found in operators.values() if found["kind"] == "union")
    assert union["idle_wait_us"] == 140
    assert union["input_tuples"] == union["output_tuples"] == 3
    assert result.report["queries"]["u"]["latency_us"] == {
        "mean": (100 + 0 + 130) / 3,
        "p50": 100,
        "p99": 130,
        "max": 130,
    }
    assert result.report["totals"]["peak_queue_tuples"] == 3


def test_peaks_count_tuples_that_wait_for_their_time(tmp_path):
    sql = """CREATE STREAM a (ts TIMESTAMP, v BIGINT) WITH (time = 'ts', progress = 'punctuation');
             CREATE QUERY u WITH (order = 'event') AS SELECT v FROM a;"""
    events: list = [{"stream": "a", "tuple": {"ts": ts, "v": ts}} for ts in (3, 4, 9, 10)]
    events.insert(3, {"stream": "a", "punctuation": 4})
    report = run_events(sql, events, tmp_path).report
    (sort,) = (found for found in report["operators"].values() if found["kind"] == "sort")
    assert sort["peak_queue_tuples"] == report["totals"]["peak_queue_tuples"] == 3


def test_chain_holds_less_than_the_others_under_bursts(tmp_path):
    # Two operators pass everything or a tenth, then six pass it all. The first two drop the most for the least cost.
    select = "SELECT v FROM s WHERE v >= 0"
    for predicate in ["mod(v, 10) = 0", *["v >= 0"] * 6]:
        select = f"SELECT v FROM ({select}) WHERE {predicate}"
    sql = "CREATE STREAM s (v BIGINT) WITH (timestamps = 'latent');"
    sql += f"CREATE QUERY q WITH (fuse = 'off') AS {select};"
    events = [{"at": number * 15, "stream": "s", "tuple": {"v": number}} for number in range(1_500)]
    strategies = ("chain(1)", "dfs(1)", "bfs(1)", "rr(1)", "chain", "dfs", "rr")
    runs = [run_events(sql, events, tmp_path, strategy=strategy, cost="10") for strategy in strategies]
    peaks = [run.report["totals"]["peak_queue_tuples"] for run in runs]
    assert peaks[0] < min(peaks[1:4])
    assert peaks[4] < min(peaks[5:])
    assert len({run.report["totals"]["virtual_us"] for run in runs}) == 1
    assert all(sorted(row["v"] for row in run.rows["q"]) == [*range(0, 1_500, 10)] for run in runs)
