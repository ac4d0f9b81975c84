"""Recorded states of every kind of operator, one file per class and version.

`python -m tests.engine.states` records the current version of each class that has no file yet. Files of older versions
stay as they are: they show that a state of the version before is still read. Delete a file to record it again, which is
right only as long as no release has written its version.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from millrace.engine import saving
from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, AdoptBootstrap, Arrived, Deliver, HoldQuery, InsertOperator
from millrace.engine.seam import gated
from millrace.operators.frame.operator import Operator
from millrace.operators.sample.spec import SampleSpec
from millrace.protocol import Schema
from millrace.sql import parse, plan_all
from millrace.sql.planned import Catalog, CreateQuery, CreateStream
from millrace.values.batch import Batch

FOLDER: Final = Path(__file__).parent
STREAMS: Final = """
CREATE STREAM a (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts', disorder = '20 us');
CREATE STREAM b (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts', disorder = '20 us');
CREATE STREAM u (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts', disorder = '20 us', update_key = 'k');
"""
EVENT: Final = "WITH (order = 'event') "
WINDOW: Final = "a, ts, '50 us'"
QUERIES: Final = {
    "filtered": "AS SELECT k, v FROM a WHERE v > 2",
    "deduplicated": "AS SELECT * FROM a DEDUPLICATE BY k WITHIN '60 us'",
    "totals": "AS SELECT k, sum(v) AS n, count(DISTINCT v) AS m FROM a GROUP BY k",
    "total": "AS SELECT count(*) AS n, max(v) AS m FROM a",
    "ordered_totals": f"{EVENT}AS SELECT k, sum(v) AS n FROM a GROUP BY k",
    "current_totals": "AS SELECT v, count(*) AS n FROM u LATEST GROUP BY v",
    "having": "AS SELECT k, sum(v) AS n FROM a GROUP BY k HAVING sum(v) > 9",
    "low_level": "WITH (aggregate = 'bounded', slots = 2) "
    "AS SELECT k, count(*) AS n FROM TUMBLE(a, ts, '60 us') GROUP BY k",
    "buffered": "WITH (aggregate = 'buffered') AS SELECT k, count(*) AS n FROM HOP(a, ts, '20 us', '60 us') GROUP BY k",
    "panes": "AS SELECT k, avg(v) AS n FROM HOP(a, ts, '20 us', '60 us') GROUP BY k",
    "sessions": "AS SELECT k, count(*) AS n FROM SESSION(a, ts, '30 us' PARTITION BY k) GROUP BY k",
    "session_rows": "AS SELECT * FROM SESSION(a, ts, '30 us' PARTITION BY k)",
    "early_windows": "AS SELECT k, sum(v) AS n FROM TUMBLE(a, ts, '50 us') GROUP BY k",
    "early_sessions": "AS SELECT k, count(*) AS n FROM SESSION(a, ts, '30 us' PARTITION BY k) GROUP BY k",
    "counted": "AS SELECT k, sum(v) AS n FROM a [ROWS 7 SLIDE 3] GROUP BY k",
    "counted_rows": "AS SELECT * FROM a [ROWS 7 SLIDE 3]",
    "window_rows": f"AS SELECT * FROM TUMBLE({WINDOW})",
    "newest_windows": "AS SELECT k, sum(v) AS n FROM HOP(u, ts, '20 us', '60 us') LATEST LAZY USING FIFO GROUP BY k",
    "top": "AS SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v DESC) AS n FROM a QUALIFY n <= 2",
    "ordered_top": f"{EVENT}AS SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v) AS n FROM a QUALIFY n <= 2",
    "final_top": f"AS SELECT *, row_number() OVER (PARTITION BY window_start ORDER BY v) AS n FROM TUMBLE({WINDOW})"
    " QUALIFY n <= 2",
    "union": "AS SELECT k, v FROM a UNION ALL SELECT k, v FROM b",
    "ordered_union": f"{EVENT}AS SELECT k, v FROM a UNION ALL SELECT k, v FROM b",
    "newest_union": "AS SELECT * FROM u LATEST UNION ALL SELECT * FROM u LATEST USING FIFO",
    "joined": "AS SELECT a.v, b.v AS w FROM a [RANGE '60 us'] LEFT JOIN b [RANGE '60 us'] ON a.k = b.k",
    "ordered_join": f"{EVENT}AS SELECT a.v, b.v AS w FROM a [RANGE '60 us'] JOIN b [RANGE '60 us'] ON a.k = b.k",
    "adaptive_join": "WITH (order = 'event', join = 'adaptive') AS SELECT a.v, b.v AS w FROM a [RANGE '60 us'] "
    "JOIN b [RANGE '60 us'] ON a.k = b.k",
    "followed": "AS SELECT a.v, b.v AS w FROM a FOLLOWED BY b WITHIN '60 us' ON a.k = b.k",
    "used_up": "AS SELECT a.v, b.v AS w FROM a FOLLOWED BY b CHRONICLE WITHIN '60 us' ON a.k = b.k",
    "absent": "AS SELECT a.v FROM a FOLLOWED BY NO b WITHIN '60 us' ON a.k = b.k",
    "latest": "AS SELECT a.v, u.v AS w FROM a LEFT JOIN LATEST u ON a.k = u.k",
    "current_join": "AS SELECT t.k, t.n, u.k AS l, u.v FROM (SELECT k, sum(v) AS n FROM a GROUP BY k) t "
    "FULL JOIN u LATEST ON t.k = u.k",
    "ordered_current_join": f"{EVENT}AS SELECT t.k, t.n, u.n AS m FROM (SELECT k, sum(v) AS n FROM a GROUP BY k) t "
    "LEFT JOIN (SELECT k, max(v) AS n FROM b GROUP BY k) u ON t.k = u.k AND t.n > u.n",
    "retimed": "AS SELECT count(*) AS n FROM TUMBLE((SELECT b.ts AS at, a.v FROM a [RANGE '60 us'] JOIN b "
    "[RANGE '60 us'] ON a.k = b.k), at, '50 us')",
    "sampled": f"{EVENT}AS SELECT k FROM a",
    "gated": "AS SELECT k FROM a",
}
SCHEMA: Final = Schema.of(ts="timestamp", k="bigint", v="bigint")


def rows(begin: int, end: int) -> Iterator[list[Arrived]]:
    """What arrives, step by step: three streams, a little out of order."""
    for number in range(begin, end):
        base = number * 17
        yield [
            Arrived(stream, "f", Batch.from_rows(SCHEMA, found, [row[0] for row in found]))
            for stream, shift in (("a", 0), ("b", 5), ("u", 9))
            for found in [[(base + shift + (step * 11) % 20, (number + step) % 3, (number * step + shift) % 7)
                           for step in range(3)]]
        ]  # fmt: skip


class Play:
    """A query's engine, fed step by step; the rows that it has delivered."""

    def __init__(self, query: str) -> None:
        self.engine = Engine()
        self.delivered: list[Any] = []
        self.now_us = 0
        streams = STREAMS.replace("')", "', punctuation_key = 'k')", 1) if query.startswith("early") else STREAMS
        steps, _ = plan_all(parse(f"{streams} CREATE QUERY q {QUERIES[query]}"), Catalog())
        for step in steps:
            if isinstance(step, CreateStream):
                self.engine.obey(AddStream(step.stream))
            elif isinstance(step, CreateQuery):
                self.engine.obey(AddQuery(gated(step.plan) if query == "gated" else step.plan))
        if query == "sampled":
            self.engine.obey(InsertOperator("q.sort1", SampleSpec(0.5, 3)))
        if query == "gated":
            self.engine.obey(HoldQuery("q"))
            self.engine.obey(AdoptBootstrap("q", None))

    def feed(self, begin: int, end: int) -> None:
        for events in rows(begin, end):
            self.now_us += 1
            more, given = True, events
            while more:
                effects = self.engine.step(self.now_us, given, budget=5)
                self.delivered += [one for one in effects.orders if isinstance(one, Deliver)]
                more, given = effects.more, []


CUT, END = 9, 30


def states(engine: Engine) -> dict[str, tuple[type[Operator], list[Any]]]:
    """By operator of an engine: its class, and its state with its version."""
    return {name: (type(one), saving.save_state(one)) for name, one in engine.graph.operators.items()}


def path(kind: type[Operator], version: int) -> Path:
    return FOLDER / f"{kind.__name__}-{version}.json"


def recorded(kind: type[Operator], version: int) -> dict[tuple[str, str], list[Any]]:
    """By query and operator, the states of a version."""
    found = json.loads(path(kind, version).read_text(encoding="utf-8"))
    return {
        (query, operator): [version, saving.unpack(b64decode(state))]
        for query, operators in found.items()
        for operator, state in operators.items()
    }


def record() -> list[str]:
    """Write the files that are missing; their names."""
    found: dict[Path, dict[str, dict[str, str]]] = {}
    for query in QUERIES:
        play = Play(query)
        play.feed(0, CUT)
        for operator, (kind, (version, state)) in states(play.engine).items():
            text = b64encode(saving.pack(state)).decode()
            found.setdefault(path(kind, version), {}).setdefault(query, {})[operator] = text
    missing = {file: content for file, content in found.items() if not file.exists()}
    for file, content in missing.items():
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return sorted(file.name for file in missing)
