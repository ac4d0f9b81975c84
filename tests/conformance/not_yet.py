"""The kinds of query that no operator computes yet: the reason, and a statement that is refused for it.

None at present. A test runs every statement; as soon as one is accepted, its cases must be run instead.
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


# By the operation that a case's query names.
OPERATIONS: dict[str, NotYet] = {}

# By the Nexmark query.
NEXMARK: dict[str, NotYet] = {}
