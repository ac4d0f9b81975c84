"""The planner's claims about progressing columns are true: their distance from the row's time is within the lag."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.plan import QueryPlan
from millrace.operators.join.bands import Band, close_bands, contradict, join_lags
from millrace.sql import Catalog, parse, plan_all
from millrace.sql.facts import facts_of
from tests.depth import examples
from tests.running import run_events
from tests.sql.test_joins_duckdb import STREAMS, feeds

RANGED = "a [RANGE '4 us'] JOIN b [RANGE '7 us'] ON a.k = b.k"

# A query, and the columns that must be known to be progressing.
QUERIES = [
    ("tuv", "SELECT ts AS t, ts + INTERVAL '3 us' AS u, ts - INTERVAL '2 us' AS v FROM a"),
    ("t", "SELECT date_trunc('milliseconds', ts) AS t FROM a"),
    ("tuv", "SELECT window_start AS t, window_end AS u, a.ts AS v FROM HOP(a, ts, '2 us', '5 us') a"),
    ("tu", "SELECT window_start AS t, window_end AS u, count(*) AS n FROM HOP(a, ts, '2 us', '5 us') GROUP BY k"),
    ("tu", "SELECT window_start AS t, window_end AS u, count(*) AS n FROM SESSION(a, ts, '4 us')"),
    ("tuv", "SELECT window_start AS t, window_end AS u, a.ts AS v FROM SESSION(a, ts, '4 us') a"),
    ("tuvw", f"SELECT a.ts AS t, b.ts AS u, greatest(a.ts, b.ts) AS v, least(a.ts, b.ts) AS w FROM {RANGED}"),
    (
        "tuv",
        """SELECT a.ts AS t, b.ts AS u, coalesce(b.ts, a.ts) AS v
           FROM a LEFT JOIN b ON b.ts BETWEEN a.ts AND a.ts + INTERVAL '5 us'""",
    ),
    ("tu", "SELECT a.ts AS t, b.ts AS u FROM a LEFT JOIN b ON a.ts > b.ts AND a.ts < b.ts"),
    ("tu", "SELECT a.ts AS t, b.ts AS u FROM a JOIN b ON a.ts >= b.ts"),
    ("tuv", f"SELECT a.ts AS t, b.ts AS u, c.ts AS v FROM {RANGED} JOIN c ON abs(c.ts - b.ts) < INTERVAL '2 us'"),
    (
        "tu",
        """SELECT a.ts AS t, m.e AS u FROM a JOIN (SELECT max(v) AS v, window_end AS e FROM TUMBLE(b, ts, '6 us')) m
           ON a.ts <= m.e AND m.e <= a.ts + INTERVAL '6 us'""",
    ),
    ("tu", "SELECT a.ts AS t, b.ts AS u FROM a FOLLOWED BY b WITHIN '9 us' ON a.k = b.k"),
    ("tu", "SELECT a.ts AS t, b.ts AS u FROM a FOLLOWED BY b CHRONICLE"),
    ("t", "SELECT a.ts AS t FROM a FOLLOWED BY NO b WITHIN '9 us' ON a.k = b.k"),
    (
        "t",
        """SELECT b.ts AS t, m.total
           FROM b LEFT JOIN LATEST (SELECT k, sum(v) AS total FROM a GROUP BY k) m ON m.k = b.k""",
    ),
    ("tuv", f"SELECT t, u, window_start AS v FROM TUMBLE((SELECT a.ts AS t, b.ts AS u FROM {RANGED}), t, '5 us')"),
    ("t", "SELECT ts AS t FROM a UNION ALL SELECT ts + INTERVAL '1 us' FROM b"),
]


@pytest.mark.parametrize(("known", "sql"), QUERIES)
@given(feed=feeds)
@settings(max_examples=examples(8))
def test_lags_hold_of_all_rows(known: str, sql: str, feed: list[Any]) -> None:
    planned, catalog = plan_all(parse(STREAMS + sql), Catalog())
    query = planned[-1]
    assert isinstance(query, QueryPlan)
    lags = {query.schema.names[at]: lag for at, lag in facts_of(query, catalog).lags.items()}
    assert set(known) <= set(lags)
    events = [
        {"stream": stream, "tuple": {"ts": ts, "k": key, "v": value, "n": n}}
        for n, (stream, ts, key, value) in enumerate(feed)
    ]
    with TemporaryDirectory() as folder:
        rows = run_events(f"{STREAMS} SELECT *, ts AS own FROM ({sql}) q", events, Path(folder)).rows["q"]
    for row in rows:
        for name, (low, high) in lags.items():
            if row[name] is not None:
                distance = row["own"] - row[name]
                assert low is None or low <= distance, (name, row)
                assert high is None or distance <= high, (name, row)


numbers = st.none() | st.integers(-5, 5)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), numbers, numbers).filter(lambda band: band[0] != band[1]),
        max_size=5,
    ),
    st.lists(st.integers(0, 12), min_size=4, max_size=4),
)
def test_conclusions_from_bands_hold_for_all_times(bounds: list[Any], times: list[int]) -> None:
    bands = [Band(*bound) for bound in bounds]
    if not all(
        (band.low_us is None or band.low_us <= times[band.right] - times[band.left])
        and (band.high_us is None or times[band.right] - times[band.left] <= band.high_us)
        for band in bands
    ):
        return
    assert not contradict(bands, 4)
    for first, most in enumerate(close_bands(bands, 4)):
        assert all(bound is None or times[second] - times[first] <= bound for second, bound in enumerate(most))
    for first, (low, high) in enumerate(join_lags(bands, 4)):
        assert low == 0
        assert high is None or max(times) - times[first] <= high


def test_bands_without_times_contradict() -> None:
    assert contradict([Band(0, 1, 1, None), Band(1, 2, 1, None), Band(0, 2, None, 1)], 3)
    assert not contradict([Band(0, 1, 1, None), Band(1, 2, 1, None), Band(0, 2, None, 2)], 3)
