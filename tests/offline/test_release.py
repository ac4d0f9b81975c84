"""Latencies of a report: a run in slices reports what the run with every tuple at its own time reports."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.offline import merge
from millrace.offline.release import waits_of
from millrace.offline.script import plan_script
from tests.depth import examples
from tests.running import run_script

STREAMS = """
CREATE STREAM a (ts TIMESTAMP, n BIGINT) WITH (time = 'ts', disorder = '3 microseconds');
CREATE STREAM b (ts TIMESTAMP, n BIGINT) WITH (time = 'ts');
"""
SLICED = {
    "filter": "CREATE QUERY q AS SELECT ts, n FROM a WHERE n % 3 > 0;",
    "union": "CREATE QUERY q AS SELECT ts, n FROM a UNION ALL SELECT ts, n FROM b;",
    "ordered union": "CREATE QUERY q WITH (order = 'event') AS SELECT ts, n FROM a UNION ALL SELECT ts, n FROM b;",
    "in order": "CREATE QUERY q WITH (order = 'event') AS SELECT ts, n + 1 AS m FROM a;",
    "windows": "CREATE QUERY q AS SELECT n, count(*) AS c FROM TUMBLE(a, ts, INTERVAL '7 microseconds') GROUP BY n;",
    "sliding windows of a union": """CREATE QUERY q AS SELECT sum(n) AS total FROM HOP(
        (SELECT ts, n FROM a WHERE n > 2 UNION ALL SELECT ts, n FROM b), ts, INTERVAL '5 us', INTERVAL '10 us');""",
    "windows in order": """CREATE QUERY q WITH (order = 'event') AS SELECT sum(n) AS total FROM TUMBLE(
        (SELECT ts, n FROM a UNION ALL SELECT ts, n FROM b), ts, INTERVAL '5 us') GROUP BY n;""",
    "sessions": "CREATE QUERY q AS SELECT n, count(*) AS c FROM SESSION(a, ts, INTERVAL '4 us') GROUP BY n;",
    "join": "CREATE QUERY q AS SELECT a.n, b.ts FROM a [RANGE '6 us'] JOIN b [RANGE '2 us'] ON a.n = b.n;",
    "windows of a join": """CREATE QUERY q AS SELECT count(*) AS c FROM TUMBLE(
        (SELECT a.n FROM a [RANGE '6 us'] JOIN b [RANGE '9 us'] ON a.n = b.n), ts, INTERVAL '8 us');""",
    "query over a query": """CREATE QUERY r AS SELECT ts, n FROM a WHERE n > 1;
        CREATE QUERY q AS SELECT count(*) AS c FROM TUMBLE(r, ts, INTERVAL '5 us');""",
}
JOINS_IN_ORDER = {
    f"join in order, {mode}": f"""CREATE QUERY q WITH (order = 'event', join = '{mode}') AS
        SELECT a.n, b.ts FROM a [RANGE '6 us'] JOIN b [RANGE '2 us'] ON a.n = b.n;"""
    for mode in ("sync", "filter", "adaptive")
}
EXACT = {
    "windows of windows": """CREATE QUERY r AS SELECT count(*) AS c FROM TUMBLE(a, ts, INTERVAL '3 us');
        CREATE QUERY q AS SELECT sum(c) AS c FROM TUMBLE(r, ts, INTERVAL '7 us');""",
    "left join": "CREATE QUERY q AS SELECT a.n, b.ts FROM a [RANGE '6 us'] LEFT JOIN b [RANGE '2 us'] ON a.n = b.n;",
    "running total": "CREATE QUERY q AS SELECT n, count(*) AS c FROM a GROUP BY n;",
}
# Mostly in order, with gaps, repetitions and steps back.
ROWS = st.lists(st.tuples(st.sampled_from([0, 0, 1, 1, 1, 2, 5, 30, -2, -5]), st.integers(0, 4)), max_size=40)


def written(folder, name, steps):
    path, ts = folder / f"{name}.jsonl", 100
    with path.open("w") as file:
        for step, n in steps:
            ts += step
            file.write(json.dumps({"ts": ts, "n": n}) + "\n")
    return name, str(path)


@pytest.mark.parametrize("name", [*SLICED, *JOINS_IN_ORDER])
@settings(max_examples=examples(60))
@given(a=ROWS, b=ROWS, rows=st.integers(1, 9), exact=st.integers(0, 20), close=st.booleans())
def test_slices_report_the_exact_latencies(tmp_path_factory, name, a, b, rows, exact, close):
    folder = tmp_path_factory.mktemp("run")
    inputs = [written(folder, "a", a), written(folder, "b", b)]
    sql = STREAMS + (SLICED | JOINS_IN_ORDER)[name]
    wanted = run_script(sql, folder, inputs=inputs, cost="0", close=close).report
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "ROWS", rows)
        patch.setattr(merge, "EXACT_ROWS", exact)
        found = run_script(sql, folder, inputs=inputs, close=close).report
    assert found["queries"] == wanted["queries"]
    for stream in ("a", "b"):
        assert (found["streams"][stream]["tuples"], found["streams"][stream]["late"]) == (
            wanted["streams"][stream]["tuples"],
            wanted["streams"][stream]["late"],
        )


@pytest.mark.parametrize("sql", EXACT.values(), ids=EXACT)
def test_other_queries_are_run_exactly(sql):
    script = plan_script(STREAMS + sql)
    assert waits_of(script.queries.values(), script.streams.values()) is None
