"""The kinds of query that no operator computes yet: why, and a statement that is therefore refused.

This list shrinks. A test runs every statement; the first that is no longer refused wants its cases to be run instead.
"""

from __future__ import annotations

from typing import NamedTuple

STREAMS = """
CREATE STREAM s (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts');
CREATE STREAM t (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts');
"""


class NotYet(NamedTuple):
    reason: str
    statement: str


WINDOWS = "windows are not computed yet"
JOINS = "joins are not computed yet"
SEQUENCES = "sequence operators are not computed yet"
UPDATES = "update streams and their queues are not computed yet"

# By the operation that a case's query names.
OPERATIONS = {
    "window_agg": NotYet(WINDOWS, "SELECT count(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 second')"),
    "session_agg": NotYet(WINDOWS, "SELECT count(*) AS n FROM SESSION(s, ts, INTERVAL '1 second')"),
    "interval_join": NotYet(JOINS, "SELECT s.v FROM s [RANGE '1 s'] JOIN t [RANGE '1 s'] ON s.k = t.k"),
    "window_join": NotYet(
        JOINS,
        "SELECT a.v FROM TUMBLE(s, ts, INTERVAL '1 s') a JOIN TUMBLE(t, ts, INTERVAL '1 s') b "
        "ON a.window_start = b.window_start",
    ),
    "sequence": NotYet(SEQUENCES, "SELECT s.v FROM s FOLLOWED BY t RECENT ON s.k = t.k"),
    "dedup": NotYet(UPDATES, "SELECT k, last(v) AS v FROM s GROUP BY k"),
    "update_queue": NotYet(UPDATES, "SELECT k, v FROM s LATEST USING INPLACE"),
    "upstream_trace": NotYet(
        UPDATES, "SELECT count(*) AS n FROM HOP(s, ts, INTERVAL '1 s', INTERVAL '3 s') LATEST EAGER"
    ),
}

# By the Nexmark query.
NEXMARK = {
    "q3": NotYet(JOINS, "SELECT s.v FROM s JOIN t ON s.k = t.k"),
    "q7": OPERATIONS["window_agg"],
    "q17": NotYet(UPDATES, "SELECT k, count(*) AS n FROM s GROUP BY k"),
    "q18": NotYet(
        UPDATES,
        "SELECT k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts DESC) AS r FROM s) WHERE r <= 1",
    ),
    "q101": NotYet(
        JOINS, "SELECT s.v, t.v AS w FROM s LEFT JOIN (SELECT k, max(v) AS v FROM t GROUP BY k) t ON s.k = t.k"
    ),
}
