"""Whole queries over update streams, of random tuples out of order, compared with recomputation at the end.

Intermediate rows may differ with order, strategy and emit; the final rows may not.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from millrace.sql import Catalog, CreateQuery, Explain, parse, plan_all
from tests.running import run_events

STREAMS = """
CREATE STREAM s (at TIMESTAMP, k BIGINT, g TEXT, v BIGINT) WITH (time = 'at', disorder = '8 us');
CREATE STREAM b (at TIMESTAMP, k BIGINT) WITH (time = 'at', disorder = '8 us');
"""
Row = dict[str, Any]
Final = dict[tuple[Any, ...], tuple[Any, ...]]


def tuples(seed: int) -> list[Row]:
    """Tuples of both streams, all at different times, so that the order of arrival does not matter."""
    draw = random.Random(seed)
    times = sorted(range(draw.choice([5, 40, 90])), key=lambda at: at + draw.randrange(8))
    return [
        {
            "stream": draw.choice("sssb"),
            "at": at,
            "k": draw.randrange(4),
            "g": draw.choice(["x", "y", "z", None]),
            "v": draw.choice([None, *range(6)]),
        }
        for at in times
    ]


def events(rows: Sequence[Row]) -> list[Row]:
    names = {"s": ("at", "k", "g", "v"), "b": ("at", "k")}
    return [{"stream": row["stream"], "tuple": {name: row[name] for name in names[row["stream"]]}} for row in rows]


def final_of(rows: Sequence[Row], key: Sequence[str]) -> Final:
    """The final state of rows; a tombstone has its key, both marks and nothing else."""
    state: Final = {}
    for row in rows:
        at = tuple(row.get(name) for name in key)
        if row.get("$gone"):
            assert at in state, f"{row} was never there"
            assert row["$deleted"] is True
            assert set(row) <= {*key, "$gone", "$deleted"}
            del state[at]
        else:
            assert not {"$gone", "$deleted"} & set(row)
            state[at] = tuple(value for name, value in row.items() if name not in key)
    return state


def by(rows: Sequence[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["at"]):
        groups[tuple(row[name] for name in names)].append(row)
    return groups


def last_of(rows: Sequence[Row], name: str) -> Any:
    there = [row[name] for row in rows if row[name] is not None]
    return there[-1] if there else None


def having(rows: Sequence[Row]) -> Final:
    return {key: (len(members),) for key, members in by(rows, "k").items() if len(members) % 2}


def where(rows: Sequence[Row]) -> Final:
    sums = {key: sum(row["v"] or 0 for row in members) for key, members in by(rows, "k").items()}
    seen = {key: any(row["v"] is not None for row in members) for key, members in by(rows, "k").items()}
    return {key: (total * 2,) for key, total in sums.items() if seen[key] and total > 7}


def regrouped(rows: Sequence[Row]) -> Final:
    current = [(last_of(members, "g"), last_of(members, "v")) for members in by(rows, "k").values()]
    groups: dict[Any, list[Any]] = defaultdict(list)
    for g, v in current:
        groups[g].append(v)
    known = {g: [v for v in values if v is not None] for g, values in groups.items()}
    return {
        (g,): (
            len(values),
            sum(known[g]) if known[g] else None,
            mean(known[g]) if known[g] else None,
            max(known[g], default=None),
        )
        for g, values in groups.items()
    }


def chained(rows: Sequence[Row]) -> Final:
    groups: dict[int, int] = defaultdict(int)
    for members in by(rows, "k", "g").values():
        groups[len(members)] += 1
    return {(size,): (many,) for size, many in groups.items() if size > 1 and many > 1}


def ranked(rows: Sequence[Row]) -> Final:
    counts = sorted(
        ((len(members), key) for key, members in by(rows, "k").items()), key=lambda item: (-item[0], item[1])
    )
    return {(place,): (key[0], count) for place, (count, key) in enumerate(counts[:2], 1)}


def top(rows: Sequence[Row]) -> Final:
    state: Final = {}
    for key, members in by(rows, "k").items():
        members.sort(key=lambda row: (row["v"] is not None, -(row["v"] or 0), row["at"]))
        for place, row in enumerate(members[:3], 1):
            state[(*key, place)] = (row["v"], row["at"])
    return state


def newest(rows: Sequence[Row]) -> Final:
    return {key: (members[-1]["g"], members[-1]["v"]) for key, members in by(rows, "k").items()}


def united(rows: Sequence[Row]) -> Final:
    state: Final = {}
    low, high = ([row for row in rows if (row["g"] == "x") == is_x] for is_x in (True, False))
    for key in by(rows, "k"):
        arms = [by(part, "k").get(key, []) for part in (low, high)]
        last = max((arm for arm in arms if arm), key=lambda arm: arm[-1]["at"])
        state[key] = (len(last), "x" if last is arms[0] else "other")
    return state


def windowed(rows: Sequence[Row]) -> Final:
    """Every row of running totals, one for each tuple, except those that HAVING excludes; tombstones do not count."""
    counts: dict[int, int] = defaultdict(int)
    for members in by(rows, "k").values():
        for number, row in enumerate(members, 1):
            counts[row["at"] // 10] += number % 2
    return {((window + 1) * 10,): (count,) for window, count in counts.items() if count}


QUERIES: dict[str, tuple[str, tuple[str, ...], Callable[[Sequence[Row]], Final]]] = {
    "having": ("SELECT k, count(*) AS n FROM s GROUP BY k HAVING count(*) % 2 = 1", ("k",), having),
    "where": (
        "SELECT total * 2 AS twice, k FROM (SELECT k, sum(v) AS total FROM s GROUP BY k) WHERE total > 7",
        ("k",),
        where,
    ),
    "regrouped": (
        """SELECT g, count(*) AS n, sum(v) AS s, avg(v) AS a, max(v) AS m
           FROM (SELECT k, last(g) AS g, last(v) AS v FROM s GROUP BY k) GROUP BY g""",
        ("g",),
        regrouped,
    ),
    "chained": (
        """SELECT n, count(*) AS many FROM (SELECT k, g, count(*) AS n FROM s GROUP BY k, g HAVING count(*) > 1)
           GROUP BY n HAVING count(*) > 1""",
        ("n",),
        chained,
    ),
    "ranked": (
        """SELECT k, n, r FROM (SELECT k, n, ROW_NUMBER() OVER (ORDER BY n DESC, k) AS r
                                FROM (SELECT k, count(*) AS n FROM s GROUP BY k)) WHERE r < 3""",
        ("r",),
        ranked,
    ),
    "top": (
        "SELECT k, v, at, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, at) AS r FROM s QUALIFY r <= 3",
        ("k", "r"),
        top,
    ),
    "newest": (
        """WITH numbered AS (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY at DESC) AS r FROM s)
           SELECT k, g, v FROM numbered WHERE 1 = r""",
        ("k",),
        newest,
    ),
    "united": (
        """SELECT k, count(*) AS n, 'x' AS arm FROM s WHERE g = 'x' GROUP BY k
           UNION ALL SELECT k, count(*) AS n, 'other' FROM s WHERE g <> 'x' OR g IS NULL GROUP BY k""",
        ("k",),
        united,
    ),
    "windowed": (
        """SELECT count(*) AS n, window_end
           FROM TUMBLE((SELECT k, count(*) AS n FROM s GROUP BY k HAVING count(*) % 2 = 1), ts, INTERVAL '10 us')""",
        ("window_end",),
        windowed,
    ),
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("seed", range(6))
def test_the_final_state_agrees_with_recomputation(name: str, seed: int, tmp_path: Path) -> None:
    sql, key, recompute = QUERIES[name]
    rows = tuples(seed)
    draw = random.Random(seed)
    emit, order = draw.choice(["latest", "every"]), draw.choice(["arrival", "event"])
    strategy = draw.choice(["dfs", "dfs(1)", "bfs", "rr"])
    create = f"CREATE QUERY q WITH (emit = '{emit}', order = '{order}') AS {sql};"
    got = run_events(STREAMS + create, events(rows), tmp_path, strategy=strategy).rows["q"]
    assert final_of(got, key) == recompute([row for row in rows if row["stream"] == "s"])


@pytest.mark.parametrize("seed", range(6))
def test_a_query_over_an_update_stream_of_another(seed: int, tmp_path: Path) -> None:
    rows = tuples(seed)
    script = (
        "CREATE QUERY counts AS SELECT k, g, count(*) AS n FROM s GROUP BY k, g HAVING count(*) > 1;"
        "CREATE QUERY q AS SELECT n, count(*) AS many FROM counts GROUP BY n HAVING count(*) > 1;"
    )
    got = run_events(STREAMS + script, events(rows), tmp_path).rows["q"]
    assert final_of(got, ["n"]) == chained([row for row in rows if row["stream"] == "s"])


@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN"])
@pytest.mark.parametrize("seed", range(4))
def test_join_latest_finds_no_row_of_a_key_that_is_gone(seed: int, kind: str, tmp_path: Path) -> None:
    rows = tuples(seed)
    odd = "SELECT k, count(*) AS n FROM s GROUP BY k HAVING count(*) % 2 = 1"
    sql = f"SELECT b.at AS at, b.k AS k, c.n AS n FROM b {kind} LATEST ({odd}) c ON b.k = c.k;"
    got = run_events(STREAMS + sql, events(rows), tmp_path).rows["q"]
    expected = []
    for row in sorted(rows, key=lambda row: row["at"]):
        before = [
            earlier
            for earlier in rows
            if earlier["stream"] == "s" and earlier["k"] == row["k"] and earlier["at"] < row["at"]
        ]
        if row["stream"] == "b" and (len(before) % 2 or kind == "LEFT JOIN"):
            expected.append({"at": row["at"], "k": row["k"], "n": len(before) if len(before) % 2 else None})
    assert got == expected


def test_latest_emits_a_key_once_per_step_and_every_emits_all(tmp_path: Path) -> None:
    burst = [{"at": 1, "stream": "s", "tuple": {"at": 1, "k": at % 2, "g": "x", "v": at}} for at in range(20)]
    sql = "SELECT k, total FROM (SELECT k, sum(v) AS total FROM s GROUP BY k) WHERE total % 3 > 0"
    counts = {}
    for emit in ("latest", "every"):
        create = f"CREATE QUERY q WITH (emit = '{emit}') AS {sql};"
        got = run_events(STREAMS + create, burst, tmp_path).rows["q"]
        counts[emit] = len(got)
        assert final_of(got, ["k"]) == {(1,): (100,)}
    assert counts["latest"] < counts["every"]


def explained(sql: str) -> str:
    planned, _ = plan_all(parse(f"{STREAMS} EXPLAIN {sql};"), Catalog())
    assert isinstance(planned[-1], Explain)
    return planned[-1].text


def test_explain_prints_the_key_and_the_operators_that_retract() -> None:
    text = explained(
        """SELECT g, count(*) AS n FROM (SELECT k, last(g) AS g FROM s GROUP BY k) GROUP BY g HAVING count(*) > 1"""
    )
    assert "update key g, equality final" in text
    assert "q.aggregate2  aggregate the current rows by g: count(*) AS n, retracts rows <- q.aggregate1" in text
    assert "q.filter1     filter current rows WHERE n > 1, retracts rows <- q.aggregate2" in text
    text = explained(QUERIES["top"][0])
    assert "top 3 by k, in order of v DESC, at: r <- s.source" in text
    assert "takes back" not in text


def test_which_rows_are_current_does_not_depend_on_steps_inside_a_query() -> None:
    assert "equality rows" in explained(QUERIES["windowed"][0])
    script = f"""{STREAMS} CREATE QUERY counts AS SELECT k, count(*) AS n FROM s GROUP BY k;
                 EXPLAIN SELECT count(*) AS n FROM TUMBLE(counts, ts, INTERVAL '1 s');"""
    planned, _ = plan_all(parse(script), Catalog())
    assert isinstance(planned[-1], Explain)
    assert "equality load" in planned[-1].text
    assert "counts emits only the last row of each key and step" in planned[-1].text


def test_a_plan_knows_its_key_under_the_names_that_are_selected() -> None:
    planned, _ = plan_all(
        parse(f"{STREAMS} CREATE QUERY q AS SELECT v + 1 AS w, r AS place, k AS who FROM "
              "(SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) AS r FROM s) WHERE r <= 2;"),
        Catalog(),
    )  # fmt: skip
    created = planned[-1]
    assert isinstance(created, CreateQuery)
    assert created.plan.update_key == ("who", "place")
