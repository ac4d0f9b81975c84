"""Every aggregate of SQL, over every type of column that it accepts, in every window, compared with recomputation.

Statements go through `millrace run`: tuples arrive in disorder that the stream allows, and none is late.
"""

from __future__ import annotations

import base64
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from millrace.protocol import Type
from millrace.values.aggregates import AGGREGATES
from tests.comparison import equal_values
from tests.oracles import windows as oracle
from tests.running import run_events

STREAM = """CREATE STREAM s (ts TIMESTAMP, b BOOLEAN, i BIGINT, d DOUBLE, t TEXT, y BYTES, m TIMESTAMP)
  WITH (time = 'ts', disorder = '1000 us');"""
LARGE = 2**63 - 1
VALUES: dict[str, list[Any]] = {
    "b": [True, False],
    "i": [-3, -2, -1, 0, 1, 2, 3],
    "d": [0.0, -0.0, 0.1, 1.5, -2.25, 1e15, -1e15, 1e-9],
    "t": ["", "a", "B", "é", "ab", "\U0001f600"],
    "y": [b"", b"\x00", b"\xff", b"z"],
    "m": [0, -1, 10**15, -(10**15), 7],
}
NAMES = list(VALUES)
TYPES = dict(zip(NAMES, ["boolean", "bigint", "double", "text", "bytes", "timestamp"], strict=True))


class CallCase(NamedTuple):
    """A call as SQL writes it, and its expected result for the rows of a group."""

    sql: str
    recount: oracle.Aggregate
    check: Callable[[Any, Any], bool] = equal_values


def over(name: str, recount: Any, distinct: bool, column: str) -> CallCase:
    word = "DISTINCT " if distinct else ""
    return CallCase(f"{name}({word}{column})", lambda rows: recount(rows, column, distinct), close)


def simple(name: str, recount: Any, columns: Sequence[str], *, distinct: bool = True) -> list[CallCase]:
    forms = (False, True) if distinct else (False,)
    return [over(name, recount, form, column) for column in columns for form in forms]


def chosen_by(name: str, recount: Any, x: str, by: str) -> CallCase:
    return CallCase(f"{name}({x}, {by})", lambda rows: recount(rows, x, by))


def close(actual: Any, expected: Any) -> bool:
    """Equal to nine digits of the largest double that may have been summed."""
    if isinstance(expected, float) and isinstance(actual, int | float) and not isinstance(actual, bool):
        return math.isclose(actual, expected, rel_tol=1e-9, abs_tol=1.0 if abs(expected) > 1e9 else 1e-5)
    return equal_values(actual, expected)


def deviation(column: str, distinct: bool) -> CallCase:
    """The aggregate reads values as doubles: large values that are close to each other become equal."""

    def near(actual: Any, expected: tuple[float | None, float]) -> bool:
        exact, largest = expected
        if actual is None or exact is None:
            return actual is None and exact is None
        return math.isclose(actual, exact, rel_tol=1e-9, abs_tol=max(1e-9, largest * 1e-9))

    def recount(rows: Any) -> tuple[float | None, float]:
        values = oracle.values(rows, column, distinct)
        return oracle.deviation(rows, column, distinct), max((abs(float(value)) for value in values), default=0.0)

    return CallCase(f"stddev({'DISTINCT ' if distinct else ''}{column})", recount, near)


def quantile(share: float, distinct: bool) -> CallCase:
    def near(actual: Any, values: list[float]) -> bool:
        if not values:
            return actual is None
        below = sum(value < actual for value in values) / len(values)
        through = sum(value <= actual for value in values) / len(values)
        slack = 1 / len(values) + 0.01
        return min(values) <= actual <= max(values) and below - slack <= share <= through + slack

    word = "DISTINCT " if distinct else ""
    sql = f"approx_quantile({word}d, {share})"
    return CallCase(sql, lambda rows: [value + 0.0 for value in oracle.values(rows, "d", distinct)], near)


CALLS = [
    CallCase("count(*)", lambda rows: oracle.count(rows, None, False)),
    *simple("count", oracle.count, NAMES),
    *simple("sum", oracle.total, "id"),
    *simple("avg", oracle.mean, "id"),
    *(deviation(column, distinct) for column in "id" for distinct in (False, True)),
    *simple("min", oracle.least, NAMES),
    *simple("max", oracle.greatest, NAMES),
    *simple("first", oracle.first, NAMES, distinct=False),
    *simple("last", oracle.last, NAMES, distinct=False),
    *(
        chosen_by(name, recount, x, by)
        for name, recount in (("arg_min", oracle.arg_min), ("arg_max", oracle.arg_max))
        for x in NAMES
        for by in NAMES
    ),
    *(quantile(share, distinct) for share in (0, 0.25, 0.5, 0.9, 1) for distinct in (False, True)),
]


def filtered(call: CallCase) -> CallCase:
    return CallCase(f"{call.sql} FILTER (WHERE b)", lambda rows: call.recount([r for r in rows if r["b"]]), call.check)


class Case:
    """Tuples and a query by a seed: dense, with equal times and equal values, which random choices alone make rare."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.rows = [self._row() for _ in range(self.draw.choice([3, 15, 40]))]
        self.by = self.draw.sample(NAMES, self.draw.choice([0, 1, 1, 2]))
        self.calls = [self._call() for _ in range(40)]
        self.order = self.draw.choice(["arrival", "event"])

    def _row(self) -> tuple[Any, ...]:
        times = range(self.draw.choice([4, 60]))
        return (self.draw.choice(times), *(self._value(name) for name in NAMES))

    def _value(self, name: str) -> Any:
        chance = self.draw.random()
        if chance < 0.15:
            return None
        if name == "i" and chance < 0.2:
            return self.draw.choice([LARGE, -LARGE - 1, LARGE - 1])
        return self.draw.choice(VALUES[name])

    def _call(self) -> CallCase:
        call = self.draw.choice(CALLS)
        return filtered(call) if self.draw.random() < 0.3 else call


def test_every_signature_is_tested() -> None:
    """A new aggregate needs a row in the table above. Intervals are not columns, so another test covers them."""
    written = {call.sql.partition("(")[0] for call in CALLS}
    # The conformance cases have a separate one.
    assert written == set(AGGREGATES.names) - {"sorted_list"}
    for row in AGGREGATES:
        if row.name == "sorted_list":
            continue
        if Type.INTERVAL not in row.arguments and row.name not in ("count", "approx_quantile"):
            columns = [next(name for name in NAMES if TYPES[name] == str(type)) for type in row.arguments]
            assert f"{row.name}({', '.join(columns)})" in {call.sql for call in CALLS}, row.key


def event(row: tuple[Any, ...]) -> dict[str, Any]:
    values = dict(zip(["ts", *NAMES], row, strict=True))
    if values["y"] is not None:
        values["y"] = base64.b64encode(values["y"]).decode()
    return {"stream": "s", "tuple": values}


def dicts(rows: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [{"place": at, **dict(zip(["ts", *NAMES], row, strict=True))} for at, row in enumerate(rows)]


def shown(value: Any) -> Any:
    """A value as JSON represents it."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def selected(keys: Sequence[str], calls: Sequence[CallCase], *more: str) -> str:
    items = [*keys, *(f"{call.sql} AS c{at}" for at, call in enumerate(calls)), *more]
    return ", ".join(items)


def run(sql: str, rows: Sequence[tuple[Any, ...]], order: str) -> list[tuple[Any, ...]]:
    with TemporaryDirectory() as folder:
        result = run_events(f"{STREAM} {sql}", [event(row) for row in rows], Path(folder), order=order)
    return [tuple(row.values()) for row in result.rows["q"]]


def same(
    actual: Sequence[tuple[Any, ...]],
    expected: Sequence[tuple[Any, ...]],
    keys: Sequence[str],
    calls: Sequence[CallCase],
) -> None:
    """Equal rows in any order, matched by keys and bounds."""

    def place(row: tuple[Any, ...]) -> str:
        exact = [*row[: len(keys)], *row[len(keys) + len(calls) :]]
        return repr([shown(value + 0.0 if isinstance(value, float) else value) for value in exact])

    assert sorted(map(place, actual)) == sorted(map(place, expected))
    for row, other in zip(sorted(actual, key=place), sorted(expected, key=place), strict=True):
        for at, call in enumerate(calls, len(keys)):
            assert call.check(row[at], shown(other[at])), (call.sql, row[at], other[at])


class Window(NamedTuple):
    sql: str
    recount: Callable[[Any, Any, Any], list[oracle.Result]]


def of_time(size: int, slide: int, offset: int) -> Window:
    table = f"HOP(s, ts, '{slide} us', '{size} us', '{offset} us')"
    if size == slide:
        table = f"TUMBLE(s, ts, '{size} us', '{offset} us')"
    return Window(table, lambda rows, by, calls: oracle.time_windows(rows, by, calls, size, slide, offset))


def of_rows(size: int, slide: int) -> Window:
    return Window(
        f"s [ROWS {size} SLIDE {slide}]",
        lambda rows, by, calls: oracle.time_windows(rows, by, calls, size, slide, axis="place"),
    )


def of_sessions(gap: int) -> Window:
    return Window(f"SESSION(s, ts, '{gap} us')", lambda rows, by, calls: oracle.sessions(rows, by, calls, gap))


WINDOWS: dict[str, Callable[[random.Random], Window]] = {
    "tumble": lambda draw: of_time(size := draw.choice([1, 3, 20]), size, draw.randrange(-7, 8)),
    "hop": lambda draw: of_time(draw.randrange(1, 26), draw.randrange(1, 26), draw.randrange(-7, 8)),
    "session": lambda draw: of_sessions(draw.randrange(1, 8)),
    "rows": lambda draw: of_rows(draw.randrange(1, 20), draw.randrange(1, 20)),
}
SEEDS = range(25)


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("seed", SEEDS)
def test_windows_agree_with_recounting(kind: str, seed: int) -> None:
    case = Case(seed)
    window = WINDOWS[kind](case.draw)
    bounds = ["window_start", "window_end"]
    group_by = ", ".join([*case.by, *bounds])
    sql = f"SELECT {selected(case.by, case.calls, *bounds)} FROM {window.sql} GROUP BY {group_by}"
    expected = window.recount(dicts(case.rows), case.by, [call.recount for call in case.calls])
    same(run(sql, case.rows, case.order), [row for row, _ in expected], case.by, case.calls)


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("seed", range(8))
def test_groups_without_aggregates_come_once_per_window(kind: str, seed: int) -> None:
    case = Case(seed)
    window = WINDOWS[kind](case.draw)
    by = case.by or ["t"]
    expected = [row for row, _ in window.recount(dicts(case.rows), by, [])]
    items = ", ".join([*by, "window_start", "window_end"])
    same(run(f"SELECT {items} FROM {window.sql} GROUP BY {', '.join(by)}", case.rows, case.order), expected, by, [])
    if kind != "session":
        same(run(f"SELECT DISTINCT {items} FROM {window.sql}", case.rows, case.order), expected, by, [])


@pytest.mark.parametrize("seed", SEEDS)
def test_running_totals_agree_with_recounting_after_each_row(seed: int) -> None:
    case = Case(seed)
    by = case.by
    group_by = f" GROUP BY {', '.join(by)}" if by else ""
    sql = f"CREATE QUERY q WITH (emit = 'every') AS SELECT {selected(by, case.calls)} FROM s{group_by}"
    arrivals = dicts(case.rows)
    if case.order == "event":
        arrivals.sort(key=lambda row: row["ts"])
    expected: list[tuple[Any, ...]] = []
    for at, row in enumerate(arrivals):
        key = tuple(row[name] for name in by)
        members = [other for other in arrivals[: at + 1] if tuple(other[name] for name in by) == key]
        try:
            expected.append((*key, *(call.recount(members) for call in case.calls)))
        except oracle.Failed:
            continue
    emitted = run(sql, case.rows, case.order)
    assert len(emitted) == len(expected)
    for actual, other in zip(emitted, expected, strict=True):
        assert list(actual[: len(by)]) == [shown(value) for value in other[: len(by)]]
        for at, call in enumerate(case.calls, len(by)):
            assert call.check(actual[at], shown(other[at])), (call.sql, actual[at], other[at])


def test_intervals_are_aggregated_between_columns() -> None:
    rows = [(ts, None, None, None, None, None, m) for ts, m in ((1, 11), (2, 4), (3, None), (4, 24), (5, 10))]
    away = "(m - ts)"
    calls = [f"{name}{away}" for name in ("sum", "min", "max", "first", "last")]
    calls += [f"arg_min({away}, ts)", f"arg_max({away}, m)", f"sum(DISTINCT {away})"]
    items = ", ".join(f"extract(microseconds FROM {call}) AS c{at}" for at, call in enumerate(calls))
    more = f"count({away}), count(DISTINCT {away}) AS d, arg_max(m, {away}) AS m, arg_min(t, {away}) AS t"
    for table in ("TUMBLE(s, ts, '1 min')", "SESSION(s, ts, '1 s')", "s [ROWS 5 SLIDE 5]"):
        emitted = run(f"SELECT {items}, {more} FROM {table}", rows, "arrival")
        assert emitted == [(37, 2, 20, 10, 5, 10, 20, 37, 4, 4, 24, None)]


@pytest.mark.parametrize(
    "table",
    ["TUMBLE(s, ts, '1 s')", "HOP(s, ts, '100 us', '1 ms')", "SESSION(s, ts, '1 ms')", "s [ROWS 3000 SLIDE 3000]", "s"],
)
def test_quantiles_of_many_values_are_near(table: str) -> None:
    rows = [(at // 5, True, None, float((at * 7919) % 3000), "", None, None) for at in range(3000)]
    shares = [0, 0.01, 0.1, 0.5, 0.9, 0.99, 1]
    items = ", ".join(f"approx_quantile(d, {share}) AS c{at}" for at, share in enumerate(shares))
    emitted = run(f"SELECT count(*) AS n, {items} FROM {table}", rows, "arrival")
    n, *values = max(emitted, key=lambda row: int(row[0]))
    assert n == 3000
    for share, value in zip(shares, values, strict=True):
        assert abs(value - 3000 * share) <= 3000 * 0.01


def test_the_deviation_is_the_sample_deviation() -> None:
    rows = [
        (0, True, 2, None, "a", None, None),
        (1, True, 4, None, "a", None, None),
        (2, True, 9, None, "b", None, None),
    ]
    emitted = run("SELECT t, stddev(i) AS d, stddev(d) AS e FROM TUMBLE(s, ts, '1 s') GROUP BY t", rows, "event")
    assert emitted == [("a", pytest.approx(math.sqrt(2)), None), ("b", None, None)]
