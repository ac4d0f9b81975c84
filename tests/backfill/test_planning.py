"""Margins, keys and the choice between them, with the reasons in the output."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.backfill.assign import first_and_last, key_numbers
from millrace.backfill.columns import used_columns
from millrace.backfill.job import flow_of_text
from millrace.backfill.keys import keys_of
from millrace.backfill.margins import margins_of
from millrace.backfill.splitting import Extent, Slice, plan_split
from millrace.protocol import Field, Refuse, Schema, Type
from millrace.values.batch import Batch
from millrace.values.expression import Column
from millrace.values.reach import Reach

STREAMS = """
CREATE STREAM a (ts TIMESTAMP, k BIGINT, g TEXT, v DOUBLE) WITH (time = 'ts');
CREATE STREAM b (ts TIMESTAMP, k BIGINT, w BIGINT) WITH (time = 'ts');
CREATE STREAM c (ts TIMESTAMP, j BIGINT, w BIGINT) WITH (time = 'ts');
"""
SECOND = 1_000_000
PINNED = [826, 636, 401, 711, 826]
DAY = Extent(0, 86_400 * SECOND)


def flow(query: str, streams: str = STREAMS):
    return flow_of_text(streams + query)


@pytest.mark.parametrize(
    ("query", "margins"),
    [
        ("SELECT k FROM a WHERE v > 1", {"a": (0, 0)}),
        ("SELECT count(*) AS n FROM TUMBLE(a, ts, INTERVAL '10 s')", {"a": (10 * SECOND - 1, 0)}),
        ("SELECT count(*) AS n FROM HOP(a, ts, INTERVAL '2 s', INTERVAL '10 s')", {"a": (10 * SECOND - 1, 0)}),
        (
            (
                "SELECT max(n) AS n FROM TUMBLE((SELECT count(*) AS n, window_end FROM TUMBLE(a, ts, INTERVAL '2 s')), "
                "window_end, INTERVAL '20 s')"
            ),
            None,
        ),
        (
            "SELECT a.v FROM a [RANGE '3 s'] JOIN b [RANGE '2 s'] ON a.k = b.k",
            {"a": (3 * SECOND, 0), "b": (2 * SECOND, 0)},
        ),
        (
            "SELECT v FROM a LEFT JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '1 s' AND a.ts + INTERVAL '2s'",
            {"a": (2 * SECOND, 0), "b": (SECOND, 2 * SECOND)},
        ),
        (
            "SELECT v FROM a RIGHT JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '1 s' AND a.ts + INTERVAL '2s'",
            {"a": (2 * SECOND, SECOND), "b": (SECOND, 0)},
        ),
        (
            "SELECT v FROM a FULL JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '1 s' AND a.ts + INTERVAL '2s'",
            {"a": (2 * SECOND, SECOND), "b": (SECOND, 2 * SECOND)},
        ),
        ("SELECT a.v FROM a FOLLOWED BY b WITHIN '5 s' ON a.k = b.k", {"a": (5 * SECOND, 0), "b": (0, 0)}),
        ("SELECT a.v FROM a FOLLOWED BY NO b WITHIN '5 s' ON a.k = b.k", {"a": (5 * SECOND, 0), "b": (5 * SECOND, 0)}),
    ],
)
def test_margins(query, margins):
    found = margins_of(flow(query))
    assert not found.unbounded
    if margins is None:
        # The inner window's rows are at its last microsecond, and the column window_end reads them.
        back = found.streams["a"].back
        assert back is not None
        assert 22 * SECOND - 3 <= back <= 22 * SECOND
    else:
        assert found.streams == margins


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT k, count(*) AS n FROM SESSION(a, ts, INTERVAL '1 s') GROUP BY k", "a session can be of any length"),
        ("SELECT count(*) AS n FROM a [ROWS 10 SLIDE 10]", "windows of rows count from the first row"),
        ("SELECT k, count(*) AS n FROM a GROUP BY k", "a running total has no window"),
        ("SELECT a.v FROM a JOIN b ON a.k = b.k", "one input of the join has no time bound"),
        ("SELECT a.v FROM a FOLLOWED BY b ON a.k = b.k", "without WITHIN has no time bound"),
        ("SELECT a.v FROM a FOLLOWED BY b CHRONICLE WITHIN '5 s' ON a.k = b.k", "consumes rows"),
        ("SELECT k, v FROM a LATEST USING INPLACE", "LATEST keeps the newest row"),
    ],
)
def test_what_has_no_bound_says_why(query, reason):
    streams = STREAMS.replace("v DOUBLE) WITH (time = 'ts'", "v DOUBLE) WITH (time = 'ts', update_key = 'k'")
    found = margins_of(flow(query, streams))
    assert found.streams["a"].back is None
    assert any(reason in words for words in found.unbounded.values())
    with pytest.raises(Refuse, match="--mode time: it cannot be split by time"):
        plan_split(flow(query, streams), DAY, mode="time", tasks=4)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT k, count(*) AS n FROM a GROUP BY k", "a by k"),
        ("SELECT k % 3 AS r, g, count(*) AS n FROM a GROUP BY k % 3, g", "a by k % 3, g"),
        ("SELECT r, count(*) AS n FROM (SELECT k + 1 AS r FROM a WHERE v > 0) GROUP BY r", "a by k + 1"),
        ("SELECT a.v FROM a JOIN b ON a.k = b.k", "a by k and b by k"),
        ("SELECT a.k, count(*) AS n FROM a JOIN c ON a.k = c.j GROUP BY a.k", "a by k and c by j"),
        ("SELECT c.j, count(*) AS n FROM a JOIN c ON a.k = c.j GROUP BY c.j", "a by k and c by j"),
        ("SELECT a.v FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.j", "a by k and b by k and c by j"),
        (
            "SELECT k, sum(w) AS w FROM (SELECT k, w FROM b UNION ALL SELECT j, w FROM c) GROUP BY k",
            "b by k and c by j",
        ),
        (
            (
                "SELECT k, max(n) AS m FROM (SELECT k, g, count(*) AS n, window_end FROM TUMBLE(a, ts, INTERVAL '1s') "
                "GROUP BY k, g, window_end) GROUP BY k"
            ),
            "a by k",
        ),
        ("SELECT a.v FROM a FOLLOWED BY b CHRONICLE ON a.k = b.k", "a by k and b by k"),
        (
            "SELECT k, p FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC) AS p FROM a) WHERE p <= 2",
            "a by k",
        ),
    ],
)
def test_common_keys(query, words):
    assert keys_of(flow(query)).words() == words


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT count(*) AS n FROM a", "it has no GROUP BY"),
        ("SELECT a.v FROM a [RANGE '1 s'] JOIN b [RANGE '1 s'] ON TRUE", "it has no equality"),
        ("SELECT a.v FROM a JOIN b ON a.k = b.k JOIN c ON b.w = c.j", ""),
        ("SELECT g, count(*) AS n FROM (SELECT a.g, a.k FROM a JOIN b ON a.k = b.k) GROUP BY g", ""),
        ("SELECT b.k, count(*) AS n FROM a LEFT JOIN b ON a.k = b.k GROUP BY b.k", ""),
        ("SELECT a.k, count(*) AS n FROM a RIGHT JOIN b ON a.k = b.k GROUP BY a.k", ""),
        ("SELECT a.k, count(*) AS n FROM a FULL JOIN b ON a.k = b.k GROUP BY a.k", ""),
        ("SELECT count(*) AS n FROM a [ROWS 10 SLIDE 10]", "it counts all rows"),
        ("SELECT v, sum(n) AS m FROM (SELECT k, last(v) AS v, count(*) AS n FROM a GROUP BY k) GROUP BY v", ""),
    ],
)
def test_no_common_key(query, reason):
    found = keys_of(flow(query))
    assert found.refused is not None
    assert reason in found.refused[1]


def test_the_choice_is_explained():
    windowed = "SELECT k, count(*) AS n FROM TUMBLE(a, ts, INTERVAL '10 s') GROUP BY k"
    short = plan_split(flow(windowed), DAY, tasks=4)
    assert (short.how, len(short.slices)) == ("time", 4)
    assert "slices of time repeat little" in short.reason
    long = plan_split(flow(windowed), Extent(0, 60 * SECOND), tasks=4)
    assert long.how == "key"
    assert "every slice of time would read 67% of its length again" in long.reason
    longer = plan_split(flow(windowed), Extent(0, 4), tasks=4)
    assert "every slice of time would read 9,999,999 times its length again as its margin" in longer.reason
    forced = plan_split(flow(windowed), Extent(0, 4), tasks=4, mode="time")
    assert "its margin is 9,999,999 times the length of a slice" in forced.reason
    assert plan_split(flow(windowed), None, tasks=4).reason == "the inputs have nothing to split"
    neither = plan_split(flow("SELECT count(*) AS n FROM a"), DAY, tasks=4)
    assert neither.how == "one"
    assert "a running total has no window" in neither.reason
    assert "it has no GROUP BY" in neither.reason
    assert neither.words()[0] == "split: not at all, 1 task"


def test_what_depends_on_load_runs_in_one_task_only():
    made = flow("SELECT v FROM a SHED RANDOM 10")
    assert made.equality == "load"
    assert plan_split(made, DAY, tasks=4).how == "one"
    for mode in ("key", "time"):
        with pytest.raises(Refuse, match="the load of the engine"):
            plan_split(made, DAY, mode=mode, tasks=4)


def test_only_what_is_looked_at_travels():
    made = flow("SELECT k, sum(w) AS w, window_end FROM TUMBLE(b, ts, INTERVAL '10 s') GROUP BY k")
    assert used_columns(made) == {"b": (1, 2)}
    assert used_columns(flow("SELECT count(*) AS n FROM TUMBLE(a, ts, INTERVAL '1 s')")) == {"a": ()}
    assert used_columns(flow("SELECT g FROM (SELECT * FROM a) WHERE v > 1")) == {"a": (2, 3)}


def test_rows_of_equal_keys_go_to_one_task_whatever_their_type():
    schema = Schema((Field("n", Type.BIGINT), Field("d", Type.DOUBLE), Field("t", Type.TEXT), Field("y", Type.BYTES)))
    rows = [(n, d, t, y) for n in (1, None) for d in (0.0, -0.0, 1.5) for t in ("ä", None) for y in (b"", b"\x00")]
    batch = Batch.from_rows(schema, rows, range(len(rows)))
    key = [Column(field.type, True, at, field.name) for at, field in enumerate(schema)]
    by_row = key_numbers(batch, key, 1_000).tolist()
    one_by_one = [int(key_numbers(batch.slice(at, at + 1), key, 1_000)[0]) for at in range(len(rows))]
    assert by_row == one_by_one
    numbers: dict[tuple, int] = {}
    for row, number in zip(rows, by_row, strict=True):
        assert numbers.setdefault(row, number) == number
    assert len(set(by_row)) > 10
    # The same on every machine and in every version: a continued backfill finds its rows in the same places.
    assert by_row[:5] == PINNED


def test_slices_read_their_margins():
    slices = (Slice(to_us=100), Slice(100, 200), Slice(200))
    first, last = first_and_last(np.array([0, 80, 95, 100, 195, 204, 205, 300]), slices, Reach(10, 5))
    assert list(zip(first.tolist(), last.tolist(), strict=True)) == [
        (0, 0), (0, 0), (0, 1), (0, 1), (1, 2), (1, 2), (2, 2), (2, 2),
    ]  # fmt: skip
