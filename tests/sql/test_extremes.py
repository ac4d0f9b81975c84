"""The first and the last microsecond of event time, through every form of SQL.

The oracle is a shift: results depend on the distance between rows, not on their absolute times. Each form runs over one
cluster of rows at the epoch. Then it runs over the same cluster at the start, at the epoch and at the end of event
time, all in one run. The second run must emit the rows of the first one three times, each shifted as far as its
cluster.
"""

from __future__ import annotations

import json

import pytest

from millrace.offline.script import plan_script
from millrace.protocol import MillraceError
from millrace.values.eventtime import FIRST_US, LAST_US
from tests.running import run_events

MINUTE = 60_000_000
# A cluster lasts five minutes; its first row is on a full minute, its last a microsecond before one.
LENGTH = 5 * MINUTE
OFFSETS = (FIRST_US, 0, LAST_US + 1 - LENGTH)
STREAMS = """
CREATE STREAM a (at TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'at', disorder = '1 minute');
CREATE STREAM b (at TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'at', disorder = '1 minute');
CREATE STREAM u (at TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'at', disorder = '1 minute', update_key = 'k');
"""
CLUSTER = [
    ("a", 0, 1), ("u", 0, 1), ("b", 1, 1), ("a", MINUTE // 2, 2), ("b", MINUTE, 2), ("u", MINUTE, 2),
    ("a", MINUTE - 1, 1), ("a", 2 * MINUTE, 1), ("b", 2 * MINUTE - 1, 1), ("u", 2 * MINUTE + 7, 1),
    ("a", 4 * MINUTE, 2), ("b", 4 * MINUTE + 5, 2), ("u", 4 * MINUTE, 2),
    ("a", LENGTH - 1, 1), ("b", LENGTH - 1, 1), ("u", LENGTH - 1, 1),
]  # fmt: skip
# Forms in which rows of distant clusters are independent.
LOCAL = {
    "select": "SELECT at, k, v FROM a WHERE k = 1",
    "map": "SELECT at, k + v AS n, at - INTERVAL '1 s' < at AS before FROM a",
    "sort": "SELECT at, k FROM a",
    "union": "SELECT at, k FROM a UNION ALL SELECT at, k FROM b",
    "tumble": "SELECT k, count(*) AS n, sum(v) AS v, window_start, window_end FROM TUMBLE(a, at, INTERVAL '1 min') "
        "GROUP BY k",
    "tumble offset": "SELECT count(*) AS n, window_start FROM TUMBLE(a, at, INTERVAL '1 min', INTERVAL '13 s')",
    "hop": "SELECT k, count(*) AS n, window_start, window_end FROM HOP(a, at, INTERVAL '1 min', INTERVAL '3 "
        "min') GROUP BY k",
    "hop of blocks": "SELECT count(*) AS n, window_end FROM HOP(a, at, INTERVAL '1 s', INTERVAL '2 min')",
    "hop with gaps": "SELECT count(*) AS n, window_end FROM HOP(a, at, INTERVAL '1 min', INTERVAL '1 s')",
    "session": "SELECT k, count(*) AS n, window_start, window_end FROM SESSION(a, at, INTERVAL '70 s') GROUP BY k",
    "tumbled rows": "SELECT at, k, window_start, window_end FROM TUMBLE(a, at, INTERVAL '1 min')",
    "hopped rows": "SELECT at, k, window_start, window_end FROM HOP(a, at, INTERVAL '30 s', INTERVAL '2 min')",
    "session rows": "SELECT at, k, window_start, window_end FROM SESSION(a, at, INTERVAL '70 s' PARTITION BY k)",
    "nested windows": """SELECT max(n) AS most, window_end FROM TUMBLE(
        (SELECT k, count(*) AS n FROM HOP(a, at, INTERVAL '30 s', INTERVAL '2 min') GROUP BY k),
        ts, INTERVAL '1 min')""",
    "top of a window": """SELECT k, n, window_end, place FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY n DESC, k) AS place
        FROM (SELECT k, count(*) AS n, window_end FROM TUMBLE(a, at, INTERVAL '1 min') GROUP BY k)) WHERE place <= 1""",
    "join of ranges": "SELECT a.at, b.at AS bat, a.k FROM a [RANGE '1 min'] JOIN b [RANGE '2 min'] ON a.k = b.k",
    "join of three": """SELECT a.at, b.at AS bat, u.at AS uat FROM a [RANGE '1 min'] JOIN b [RANGE '1 min'] ON a.k = b.k
        JOIN u [RANGE '1 min'] ON u.k = a.k""",
    "left join": "SELECT a.at, b.at AS bat FROM a LEFT JOIN b ON a.k = b.k AND b.at BETWEEN a.at AND a.at + INTERVAL "
        "'1 s'",
    "full join": "SELECT a.at, b.at AS bat FROM a FULL JOIN b ON a.k = b.k AND b.at BETWEEN a.at AND a.at + INTERVAL "
        "'1 s'",
    "join of windows": """SELECT x.n, y.n AS m, x.window_end AS e
        FROM (SELECT count(*) AS n, window_start, window_end FROM TUMBLE(a, at, INTERVAL '1 min')) x
        JOIN (SELECT count(*) AS n, window_start FROM TUMBLE(b, at, INTERVAL '1 min')) y
        ON x.window_start = y.window_start""",
    "join by the minute": """SELECT a.at, b.at AS bat FROM a JOIN b
        ON a.k = b.k AND date_trunc('minute', a.at) = date_trunc('minute', b.at)""",
    "groups of a join": """SELECT a.at, b.at AS bat, count(*) AS n FROM a [RANGE '1 min'] JOIN b [RANGE '1 min'] ON TRUE
        GROUP BY a.at, b.at""",
    "windows of a join": """SELECT count(*) AS n, window_end FROM TUMBLE(
        (SELECT a.at AS t, b.at AS bat FROM a [RANGE '2 min'] JOIN b [RANGE '2 min'] ON a.k = b.k),
        t, INTERVAL '1 min')""",
    "join of a past": "SELECT a.at, b.at AS bat FROM a JOIN b ON a.k = b.k "
        "AND b.at BETWEEN a.at - INTERVAL '2 min' AND "
        "a.at - INTERVAL '1 min'",
    "followed by within": "SELECT a.at, b.at AS bat FROM a FOLLOWED BY b RECENT WITHIN '90 s' ON a.k = b.k",
    "chronicle within": "SELECT a.at, b.at AS bat FROM a FOLLOWED BY b CHRONICLE WITHIN '90 s' ON a.k = b.k",
    "followed by no": "SELECT a.at, k FROM a FOLLOWED BY NO b WITHIN '30 s' ON a.k = b.k",
}  # fmt: skip
# Forms that relate all rows to each other, or whose windows are as long as event time: the number of emitted rows.
LIFETIME = "3652059 days"
WHOLE = {
    "running total": "SELECT k, count(*) AS n FROM a GROUP BY k",
    "latest": "SELECT k, v, at FROM u LATEST",
    "latest window": "SELECT k, count(*) AS n, window_end FROM TUMBLE(u, at, INTERVAL '1 min') LATEST GROUP BY k, "
        "window_end",
    "latest window eager": "SELECT k, count(*) AS n, window_end "
        "FROM HOP(u, at, INTERVAL '1 min', INTERVAL '5 min') LATEST EAGER "
        "GROUP BY k, window_end",
    "shed": "SELECT at, k FROM a SHED RANDOM 1000",
    "top": "SELECT k, at, ROW_NUMBER() OVER (PARTITION BY k ORDER BY at DESC) AS place FROM a QUALIFY place <= 2",
    "first rows": "SELECT k, at FROM a QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY at) = 1",
    "rows": "SELECT count(*) AS n, window_start FROM a [ROWS 4 SLIDE 2]",
    "rows of rows": "SELECT at, window_start FROM a [ROWS 4 SLIDE 2]",
    "union of updates": "SELECT k, v FROM u LATEST UNION ALL SELECT k, v FROM u LATEST",
    "late": "SELECT v, late_by_us, mark FROM a.late",
}  # fmt: skip
ENDLESS = {
    "join": "SELECT a.at, b.at AS bat FROM a JOIN b ON a.k = b.k",
    "join of one range": "SELECT a.at, b.at AS bat FROM a [RANGE '{long}'] JOIN b ON a.k = b.k",
    "join of long ranges": "SELECT a.at, b.at AS bat FROM a [RANGE '{long}'] JOIN b [RANGE '{long}'] ON a.k = b.k",
    "join of a long band": "SELECT a.at, b.at AS bat FROM a JOIN b ON a.k = b.k "
        "AND abs(a.at - b.at) <= INTERVAL '{long}'",
    "left join": "SELECT a.at, b.at AS bat FROM a LEFT JOIN b ON a.k = b.k AND abs(a.at - b.at) <= INTERVAL '{long}'",
    "cross join": "SELECT a.at, b.at AS bat FROM a JOIN b ON a.k = b.k AND a.at - b.at < INTERVAL '{long}'",
}  # fmt: skip


def events(offsets):
    """The cluster at each place; rows of a stream arrive out of order by less than its disorder."""
    return [
        {"at": offset + at, "stream": stream, "tuple": {"at": offset + at, "k": k, "v": number}}
        for offset in offsets
        for number, (stream, at, k) in enumerate(CLUSTER)
    ]


def in_some_order(rows):
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def shifted(row, by_us):
    times = ("at", "bat", "uat", "e", "window_start", "window_end")
    return {name: value + by_us if name in times and value is not None else value for name, value in row.items()}


def run(select, offsets, folder, options="", **flags):
    sql = f"{STREAMS} CREATE QUERY q {options} AS {select};"
    result = run_events(sql, events(offsets), folder, **flags)
    assert not any(result.late.values())
    for query in result.engine.queries():
        assert query.state == "running", query
    for operator in result.engine.operators():
        assert not operator.errors, operator
    return result


@pytest.mark.parametrize("options", ["", "WITH (order = 'event')"], ids=["arrival", "event"])
@pytest.mark.parametrize("form", LOCAL)
def test_rows_depend_on_differences_alone(form, options, tmp_path):
    once = run(LOCAL[form], [0], tmp_path, options).rows["q"]
    assert once
    thrice = run(LOCAL[form], OFFSETS, tmp_path, options).rows["q"]
    assert in_some_order(thrice) == in_some_order(shifted(row, offset) for offset in OFFSETS for row in once)


@pytest.mark.parametrize("form", [form for form in LOCAL if form != "union"])
def test_the_order_of_arrival_makes_no_difference(form, tmp_path, monkeypatch):
    """The end of time arrives before the start of time, within a disorder as long as event time."""
    monkeypatch.setitem(globals(), "STREAMS", STREAMS.replace("'1 minute'", f"'{LIFETIME}'"))
    rows = run(LOCAL[form], OFFSETS[::-1], tmp_path).rows["q"]
    assert in_some_order(rows) == in_some_order(run(LOCAL[form], OFFSETS, tmp_path).rows["q"])


@pytest.mark.parametrize("form", LOCAL)
def test_rows_can_be_written(form, tmp_path):
    """Bounds of windows may be outside event time; text, tables and files of results represent them."""
    run(LOCAL[form], OFFSETS, tmp_path, iso=True)


@pytest.mark.parametrize("join", ["sync", "filter", "adaptive"])
def test_joins_in_each_mode_depend_on_differences_alone(join, tmp_path):
    options = f"WITH (order = 'event', join = '{join}')"
    once = run(LOCAL["join of ranges"], [0], tmp_path, options).rows["q"]
    thrice = run(LOCAL["join of ranges"], OFFSETS, tmp_path, options).rows["q"]
    assert thrice == [shifted(row, offset) for offset in OFFSETS for row in once]


@pytest.mark.parametrize("form", ENDLESS)
def test_joins_without_an_end(form, tmp_path):
    rows = run(ENDLESS[form].format(long=LIFETIME), OFFSETS, tmp_path).rows["q"]
    sent = {name: [(offset + at, k) for offset in OFFSETS for s, at, k in CLUSTER if s == name] for name in "ab"}
    pairs = [{"at": at, "bat": bat} for at, k in sent["a"] for bat, key in sent["b"] if k == key]
    assert in_some_order(rows) == in_some_order(pairs)


@pytest.mark.parametrize("form", WHOLE)
def test_other_forms(form, tmp_path):
    result = run(WHOLE[form], OFFSETS, tmp_path)
    moved = run(WHOLE[form], [0, LENGTH * 2, LENGTH * 4], tmp_path)
    assert len(result.rows["q"]) == len(moved.rows["q"])


def test_a_window_as_long_as_event_time_holds_every_row(tmp_path):
    ways = (f"TUMBLE(a, at, INTERVAL '{LIFETIME}')", f"HOP(a, at, INTERVAL '{LIFETIME}', INTERVAL '{LIFETIME}')")
    for window in (*ways, f"SESSION(a, at, INTERVAL '{LIFETIME}')"):
        rows = run(f"SELECT count(*) AS n, window_end FROM {window}", OFFSETS, tmp_path).rows["q"]
        assert sum(row["n"] for row in rows) == sum(name == "a" for name, _, _ in CLUSTER) * len(OFFSETS)
        assert len(rows) <= 2
        assert rows[-1]["window_end"] > LAST_US


def test_windows_within_windows_beyond_the_end_lose_no_row(tmp_path):
    """Each level adds an end as long as event time, until the times that operators compute stop at their horizon."""
    inner = "SELECT count(*) AS n FROM TUMBLE(a, at, INTERVAL '3652058 days')"
    for level in range(12):
        inner = f"SELECT sum(n) AS n FROM TUMBLE(({inner}), ts, INTERVAL '{3_652_057 - level} days')"
    rows = run(inner, OFFSETS, tmp_path, "WITH (order = 'event')").rows["q"]
    assert sum(row["n"] for row in rows) == sum(name == "a" for name, _, _ in CLUSTER) * len(OFFSETS)


TOO_LONG = "3652060 days"
CLAUSES = [
    "CREATE STREAM x (at TIMESTAMP) WITH (time = 'at', disorder = '{us}');",
    "CREATE STREAM x (at TIMESTAMP) WITH (time = 'at', max_skew = '{us}');",
    "CREATE STREAM x (at TIMESTAMP) WITH (time = 'at', max_ahead = '{us}');",
    "CREATE STREAM x (at TIMESTAMP) WITH (time = 'at', lull = '{us}');",
    "CREATE STREAM x (at TIMESTAMP) WITH (time = 'at', grace = '{us}');",
    "CREATE STREAM x (at TIMESTAMP) WITH (time = 'at', ets = 'periodic', ets_interval = '{us}');",
    "SELECT count(*) FROM TUMBLE(a, at, INTERVAL '{us}');",
    "SELECT count(*) FROM TUMBLE(a, at, INTERVAL '1 s', INTERVAL '{us}');",
    "SELECT count(*) FROM TUMBLE(a, at, INTERVAL '1 s', INTERVAL '-{us}');",
    "SELECT count(*) FROM HOP(a, at, INTERVAL '{us}', INTERVAL '{us}');",
    "SELECT count(*) FROM SESSION(a, at, INTERVAL '{us}');",
    "SELECT count(*) FROM a [RANGE '{us}' SLIDE '{us}'];",
    "SELECT a.at FROM a [RANGE '{us}'] JOIN b ON a.k = b.k;",
    "SELECT a.at FROM a FOLLOWED BY b WITHIN '{us}' ON a.k = b.k;",
    "CREATE QUERY y WITH (flush = 'slow', max_delay = '{us}') AS SELECT count(*) FROM TUMBLE(a, at, INTERVAL '1 s');",
]  # fmt: skip


@pytest.mark.parametrize("clause", CLAUSES)
def test_no_interval_is_longer_than_event_time(clause):
    plan_script(STREAMS + clause.format(us=LIFETIME))
    for longer in (TOO_LONG, "400000000000 s", "100000000 days"):
        with pytest.raises(MillraceError, match="at most 3652059 days, which is all of event time, got"):
            plan_script(STREAMS + clause.format(us=longer))


@pytest.mark.parametrize("sign", "+-")
def test_rows_moved_beyond_all_computed_times_fail_and_are_counted(sign, tmp_path):
    """A window over a join may use a computed column, which has all of 64 bits."""
    joined = "FROM a [RANGE '2 min'] JOIN b [RANGE '2 min'] ON TRUE"
    moved = f"SELECT a.at {sign} INTERVAL '90000000 days' AS t, b.at AS bat {joined}"
    sql = f"{STREAMS} CREATE QUERY q AS SELECT count(*) AS n FROM TUMBLE(({moved}), t, INTERVAL '1 min');"
    result = run_events(sql, events(OFFSETS), tmp_path)
    pairs = run(f"SELECT a.at {joined}", OFFSETS, tmp_path).rows["q"]
    failed = {operator.name: operator.errors for operator in result.engine.operators() if operator.errors}
    assert result.rows["q"] == []
    assert list(failed.values()) == [len(pairs)]
    assert result.engine.queries()[0].state == "running"


def test_other_columns_take_all_of_64_bits_and_an_overflow_fails_its_row(tmp_path):
    sent = ((FIRST_US, 2**62), (LAST_US, 2**63 - 1))
    rows = [{"stream": "c", "tuple": {"at": us, "seen": seen}} for us, seen in sent]
    sql = """CREATE STREAM c (at TIMESTAMP, seen TIMESTAMP) WITH (time = 'at');
        CREATE QUERY q AS SELECT seen, seen + INTERVAL '1 us' AS next FROM c WHERE seen > TIMESTAMP '+100000-01-01';"""
    result = run_events(sql, rows, tmp_path, iso=True)
    assert result.rows["q"] == [{"seen": "+148108-07-06T14:00:27.387904Z", "next": "+148108-07-06T14:00:27.387905Z"}]
    (failed,) = (operator for operator in result.engine.operators() if operator.errors)
    assert (failed.errors, (failed.last_error or "").partition(":")[0]) == (1, "timestamp out of range")
