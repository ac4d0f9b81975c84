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


JOINS = "joins are not computed yet"
SEQUENCES = "sequence operators are not computed yet"
UPDATES = "LATEST edges and top n are not computed yet"

# By the operation that a case's query names.
OPERATIONS = {
    "interval_join": NotYet(JOINS, "SELECT s.v FROM s [RANGE '1 s'] JOIN t [RANGE '1 s'] ON s.k = t.k"),
    "window_join": NotYet(
        JOINS,
        "SELECT a.v FROM TUMBLE(s, ts, INTERVAL '1 s') a JOIN TUMBLE(t, ts, INTERVAL '1 s') b "
        "ON a.window_start = b.window_start",
    ),
    "sequence": NotYet(SEQUENCES, "SELECT s.v FROM s FOLLOWED BY t RECENT ON s.k = t.k"),
    "update_queue": NotYet(UPDATES, "SELECT k, v FROM s LATEST USING INPLACE"),
    "upstream_trace": NotYet(
        UPDATES, "SELECT count(*) AS n FROM HOP(s, ts, INTERVAL '1 s', INTERVAL '3 s') LATEST EAGER"
    ),
}

# By the Nexmark query.
NEXMARK = {
    "q3": NotYet(JOINS, "SELECT s.v FROM s JOIN t ON s.k = t.k"),
    "q7": NotYet(
        JOINS,
        "SELECT s.v FROM TUMBLE(s, ts, INTERVAL '1 s') s JOIN (SELECT max(v) AS v, window_start FROM "
        "TUMBLE(s, ts, INTERVAL '1 s')) m ON s.v = m.v AND s.window_start = m.window_start",
    ),
    "q18": NotYet(
        UPDATES,
        "SELECT k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts DESC) AS r FROM s) WHERE r <= 1",
    ),
    "q101": NotYet(
        JOINS, "SELECT s.v, t.v AS w FROM s LEFT JOIN (SELECT k, max(v) AS v FROM t GROUP BY k) t ON s.k = t.k"
    ),
}
