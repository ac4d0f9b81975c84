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


UPDATES = "LATEST edges are not computed yet"

# By the operation that a case's query names.
OPERATIONS = {
    "update_queue": NotYet(UPDATES, "SELECT k, v FROM s LATEST USING INPLACE"),
    "upstream_trace": NotYet(
        UPDATES, "SELECT count(*) AS n FROM HOP(s, ts, INTERVAL '1 s', INTERVAL '3 s') LATEST EAGER"
    ),
}

# By the Nexmark query.
NEXMARK: dict[str, NotYet] = {}
