"""Worlds of SQL: tables of all types of columns, drawn at random, each with an oracle that recomputes its rows.

Every table has the columns of COLUMNS, so each clause may read the rows of each other. A table appends rows, or is an
update stream with a key. Times are small numbers of microseconds; doubles are multiples of a quarter, whose sums are
exact; an interval is no column, so keys and aggregates compute one from `w`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.sql import Catalog, CreateStream, parse, plan, plan_all
from tests.oracles import joins, sequences, updates, windows
from tests.oracles.deduplication import first_rows
from tests.simulation.odds import draw
from tests.simulation.world import BEGIN_US, Said

Row = Mapping[str, Any]
Taken = Mapping[str, Sequence[Row]]
Key = tuple[str, Callable[[Row], Any]]  # an expression, and its value

COLUMNS: Final = ("b", "k", "x", "t", "y", "w", "n")
SELECTED: Final = ", ".join(COLUMNS)
DECLARED: Final = "b BOOLEAN, k BIGINT, x DOUBLE, t TEXT, y BYTES, w TIMESTAMP, n BIGINT"
# The stream whose rows update those of the same k and b.
KEYED: Final = "c"
KEY: Final = ("k", "b")
# A stream that comes and goes in rough plays, with the query that reads it.
PASSING: Final = "z"
EPOCH: Final = "TIMESTAMP '1970-01-01'"
# All columns, so that rows which are equal in them are the only ties.
RANKED: Final = (("x", True, True), ("n", False, False), ("t", True, False), ("k", False, True))
RANKED_REST: Final = (("y", False, False), ("w", True, False), ("b", False, False))
VALUES: Final[Mapping[str, Sequence[Any]]] = {
    "b": (True, False, None),
    "k": (-1, 0, 1, 2, None),
    "x": (-0.5, 0.0, 0.25, 1.5, None),
    "t": ("", "a", "ab", "é", None),
    "y": (b"", b"a", b"\x00\xff", None),
    "w": (0, 3, 1_005, 1_010, None),
}


@dataclass(frozen=True)
class SqlTable:
    """What may follow FROM.

    rows     its rows, of an update stream the current ones, recomputed from what each stream has taken in
    settled  whether the order of its rows depends on the order of arrival alone
    counted  the stream whose tuples a window of rows counts, if that is possible, and `timed`: whether the oracle knows
             the times of the rows
    key      that of an update stream
    streams  those that it reads
    windows  of windows that replace each other, with a bound as `w`: the rows of all. The load chooses which are there,
             but the last one of each key always is
    chosen   the rows, if the load chooses them: recomputed from what each stream has taken in and the rows given
    """

    sql: str
    rows: Callable[[Taken], list[Row]]
    streams: frozenset[str]
    settled: bool = False
    counted: str | None = None
    timed: bool = True
    key: tuple[str, ...] | None = None
    windows: Callable[[Taken], list[Row]] | None = None
    chosen: Callable[[Taken, Collection[tuple[Any, ...]]], list[Row]] | None = None

    @property
    def nested(self) -> str:
        """The table as an item of FROM."""
        return f"({self.sql})" if self.sql.startswith("SELECT") else self.sql


@dataclass(frozen=True)
class SqlQuery:
    """A query; `steady`: whether its rows so far depend on the tuples alone, not only those in the end."""

    name: str
    table: SqlTable
    options: str = ""
    reads_queries: tuple[str, ...] = ()
    steady: bool = True

    @property
    def text(self) -> str:
        return self.text_as(self.name)

    def text_as(self, name: str) -> str:
        body = self.table.sql if self.table.sql.startswith("SELECT") else f"SELECT {SELECTED} FROM {self.table.sql}"
        return f"CREATE QUERY {name} {self.options} AS {body};"


@dataclass(frozen=True)
class SqlWorld:
    seed: int
    text: str  # of the streams
    streams: tuple[StreamDefinition, ...]
    queries: tuple[SqlQuery, ...]
    log: tuple[Said, ...]
    later: tuple[str, ...] = ()
    stamped: frozenset[str] = field(default_factory=frozenset)
    punctuation_key: str = ""  # of stream `a`, about whose groups its feed makes promises

    def query(self, name: str) -> SqlQuery:
        return next(query for query in self.queries if query.name == name)


def planned(catalog: Catalog, text: str) -> QueryPlan:
    """The plan of a CREATE QUERY."""
    (statement,) = parse(text)
    made = plan(statement, catalog)
    return [*catalog.with_(made).queries.values()][-1]


def sql_world_of(seed: int) -> SqlWorld:
    return _SqlMaker(seed).make()


# -- values ------------------------------------------------------------------------------------------------------------


def of(column: str) -> Callable[[Row], Any]:
    return lambda row: row[column]


def both(function: Callable[[Any], Any], column: str) -> Callable[[Row], Any]:
    """A function of a column; of null it is null."""
    return lambda row: None if row[column] is None else function(row[column])


class Impossible(Exception):  # noqa: N818 - an outcome of a row
    """The row cannot be computed."""


def divided(k: int) -> bool:
    if k == 0:
        raise Impossible
    return int(6 / k) > 2


CONDITIONS: Final[Sequence[Key]] = (
    ("b", of("b")),
    ("NOT b OR k IS NULL", lambda row: row["k"] is None or (row["b"] is not None and not row["b"])),
    ("k % 2 = 0", both(lambda k: k % 2 == 0, "k")),
    ("6 / k > 2", both(divided, "k")),
    ("x > -0.25", both(lambda x: x > -0.25, "x")),
    ("t >= 'ab'", both(lambda t: t >= "ab", "t")),
    ("t LIKE 'a%'", both(lambda t: t.startswith("a"), "t")),
    ("y >= 'a'::bytes", both(lambda y: y >= b"a", "y")),
    (f"w - {EPOCH} > INTERVAL '3 us'", both(lambda w: w > 3, "w")),
    ("n % 5 <> 0", both(lambda n: n % 5 != 0, "n")),
)
MAPS: Final[Mapping[str, Sequence[Key]]] = {
    "b": (("NOT b", both(lambda b: not b, "b")), ("t < 'ab'", both(lambda t: t < "ab", "t"))),
    "k": (("k + 1", both(lambda k: k + 1, "k")), ("octet_length(y)", both(len, "y"))),
    "x": (("x * 2", both(lambda x: x * 2, "x")), ("k / 2.0", both(lambda k: k / 2, "k"))),
    "t": (("upper(t)", both(str.upper, "t")), ("k::text", both(str, "k"))),
    "y": (("y || y", both(lambda y: y + y, "y")), ("t::bytes", both(str.encode, "t"))),
    "w": ((f"w + (w - {EPOCH})", both(lambda w: w + w, "w")), ("ts", of("ts"))),
    "n": (("n", of("n")), ("n + 100", both(lambda n: n + 100, "n"))),
}
# What a table may be divided by: the name of the column that shows it, the expression, its value.
KEYS: Final[Mapping[str, Key]] = {
    **{column: (column, of(column)) for column in ("b", "k", "x", "t", "y", "w")},
    "interval": (f"w - {EPOCH}", of("w")),
}
Aggregate = tuple[str, Callable[[Sequence[Row]], Any]]


def _aggregate(text: str, function: Callable[..., Any], *columns: str) -> Aggregate:
    return text, lambda rows: function(rows, *columns)


def _of_column(function: Callable[..., Any], column: str, rows: Sequence[Row]) -> Any:
    return function(rows, column, False)


def _simple(column: str, names: Sequence[str]) -> list[Aggregate]:
    functions = {
        "sum": windows.total,
        "min": windows.least,
        "max": windows.greatest,
        "first": windows.first,
        "last": windows.last,
    }
    return [(f"{name}({column})", partial(_of_column, functions[name], column)) for name in names]


# For each column, those that do not depend on the order of arrival, and those that do.
FREE: Final[Mapping[str, Sequence[Aggregate]]] = {
    "b": _simple("b", ["min", "max"]),
    "k": [*_simple("k", ["sum", "max"]), ("count(DISTINCT t)", lambda rows: windows.count(rows, "t", True))],
    "x": _simple("x", ["sum", "min", "max"]),
    "t": _simple("t", ["min", "max"]),
    "y": _simple("y", ["min", "max"]),
    "w": [*_simple("w", ["max"]), (f"{EPOCH} + min(w - {EPOCH})", lambda rows: windows.least(rows, "w", False))],
    "n": [
        *_simple("n", ["sum", "min"]),
        ("count(*)", len),
        ("count(*) FILTER (WHERE b)", lambda rows: sum(row["b"] is True for row in rows)),
    ],
}
FIRST: Final[Mapping[str, Sequence[Aggregate]]] = {
    "b": _simple("b", ["first", "last"]),
    "k": [*_simple("k", ["last"]), _aggregate("arg_max(k, n)", windows.arg_max, "k", "n")],
    "x": _simple("x", ["first", "last"]),
    "t": [*_simple("t", ["last"]), _aggregate("arg_min(t, x)", windows.arg_min, "t", "x")],
    "y": [*_simple("y", ["first"]), _aggregate("arg_max(y, w)", windows.arg_max, "y", "w")],
    "w": _simple("w", ["first", "last"]),
    "n": _simple("n", ["last"]),
}


def _of_group(column: str, rows: Sequence[Row]) -> Any:
    return rows[0][column]


def _numbered(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "place": place} for place, row in enumerate(rows)]


def _row(ts: int, values: Sequence[Any]) -> dict[str, Any]:
    return {"ts": ts, **dict(zip(COLUMNS, values, strict=True))}


def _values(row: Row) -> tuple[Any, ...]:
    return tuple(row[column] for column in COLUMNS)


# -- worlds ------------------------------------------------------------------------------------------------------------


@dataclass
class _SqlMaker:
    """Draws tables: `table` any that appends, `straight` one whose order of rows is settled, `current` update streams.

    joined  whether the query has a join already: a command changes the order of all it has
    """

    seed: int
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"sql {self.seed}")
        self.apart = random.Random(f"groups {self.seed}")
        self.punctuation_key = draw(self.apart, "sql.punctuation key")
        self.promised: dict[Any, int] = {}
        self.joined = False
        self.queries: list[SqlQuery] = []

    def draw(self, name: str) -> Any:
        return draw(self.rng, f"sql.{name}")

    def make(self) -> SqlWorld:
        text = "".join(self._stream(name) for name in ("a", KEYED, "i", PASSING))
        statements, catalog = plan_all(parse(text), Catalog())
        streams = tuple(made.stream for made in statements if isinstance(made, CreateStream))
        self.disorder = {stream.name: stream.disorder_us for stream in streams}
        for number in range(self.draw("queries")):
            made = self._query(f"q{number}")
            catalog = catalog.with_(plan(parse(made.text)[0], catalog))
            # A change while it runs may drop a promise about groups on its way.
            early = any(getattr(node.spec, "early", False) for node in catalog.queries[made.name].nodes)
            self.queries.append(replace(made, steady=made.steady and not early))
        self.queries.append(SqlQuery("passing", self._read(PASSING)))
        log = self._log()
        if self.punctuation_key:
            self.rng = self.apart
            self.queries.append(SqlQuery("groups", self._groups(), steady=False))
        return SqlWorld(self.seed, text, streams, tuple(self.queries), log, punctuation_key=self.punctuation_key)

    def _stream(self, name: str) -> str:
        key = f", update_key = '{', '.join(KEY)}'" if name == KEYED else ""
        ets = "ets = 'none', history = 'true'"
        if name == "i":
            return f"CREATE STREAM i ({DECLARED}) WITH ({ets});"
        disorder = self.draw("disorder")
        if name == "a" and self.punctuation_key:
            key = f", punctuation_key = '{self.punctuation_key}'"
        options = f"time = 'ts', disorder = '{disorder} us', {ets}{key}"
        return f"CREATE STREAM {name} (ts TIMESTAMP, {DECLARED}) WITH ({options});"

    def _query(self, name: str) -> SqlQuery:
        self.joined = self.outer = self.superseding = False
        self.read: set[str] = set()
        if self.draw("update stream"):
            table = self.current(self.draw("update depth"))
            options = {"": "", "every": "WITH (emit = 'every')"}[self.draw("emit")]
        else:
            table = self.table(self.draw("depth"), last=True)
            flush = self.draw("flush")
            chosen = ["order = 'event'"] if self.draw("in order") else []
            chosen += [f"flush = '{flush}'"] if flush else []
            aggregate = self.draw("aggregate")
            if aggregate == "bounded" and "(DISTINCT" in table.sql:
                aggregate = ""  # it has no partial results
            chosen += [f"aggregate = '{aggregate}'"] if aggregate else []
            chosen += [f"slots = {self.draw('slots')}"] if aggregate == "bounded" else []
            options = f"WITH ({', '.join(chosen)})" if chosen else ""
        # Which windows of a key are superseded is a matter of load, but for the last. A row without a partner so far
        # withholds later ones in order of time, and its partner may be later in the queue.
        unsteady = self.superseding or (self.outer and "'event'" in options)
        unsteady |= any(query.name in self.read and not query.steady for query in self.queries)
        return SqlQuery(name, table, options, tuple(sorted(self.read)), not unsteady)

    # -- tables that append --------------------------------------------------------------------------------------------

    def table(self, depth: int, *, last: bool = False) -> SqlTable:
        if not depth:
            return self._base(self.draw("stream"))
        kind = self.draw("last clause" if last else "clause")
        if kind == "join" and self.joined:
            kind = "filter"
        return getattr(self, f"_{kind.replace(' ', '_')}")(depth - 1)

    def straight(self, depth: int) -> SqlTable:
        if not depth:
            return self._base(self.draw("stream"), settled=True)
        return {"filter": self._filter, "project": self._project}[self.draw("straight clause")](
            depth - 1, self.straight(depth - 1)
        )

    def _base(self, stream: str, *, settled: bool = False) -> SqlTable:
        """A stream, or an earlier query."""
        named = [query for query in self.queries if query.table.key is None and query.table.timed]
        named = [query for query in named if query.table.chosen is None and (query.table.settled or not settled)]
        if named and self.draw("over a query"):
            query = self.rng.choice(named)
            self.read.add(query.name)
            return replace(query.table, sql=query.name, counted=None)
        return self._read(stream)

    def _read(self, stream: str) -> SqlTable:
        return SqlTable(
            stream, lambda taken: _numbered(taken[stream]), frozenset({stream}), settled=True, counted=stream
        )

    def _filter(self, depth: int, table: SqlTable | None = None) -> SqlTable:
        table = self.table(depth) if table is None else table
        text, test = self.rng.choice(CONDITIONS)

        def passes(row: Row) -> bool:
            try:
                return bool(test(row))
            except Impossible:
                return False

        sql = f"SELECT {SELECTED} FROM {table.nested} r WHERE {text}"
        return replace(table, sql=sql, rows=lambda taken: [row for row in table.rows(taken) if passes(row)])

    def _project(self, depth: int, table: SqlTable | None = None) -> SqlTable:
        table = self.table(depth) if table is None else table
        maps = {column: MAPS[column] if table.timed or column != "w" else MAPS[column][:1] for column in COLUMNS}
        chosen = {
            column: self.rng.choice(maps[column]) if column not in (table.key or ()) and self.draw("mapped") else None
            for column in COLUMNS
        }
        listed = ", ".join(column if made is None else f"{made[0]} AS {column}" for column, made in chosen.items())

        def rows(taken: Taken) -> list[Row]:
            return [
                {**row} | {column: made[1](row) for column, made in chosen.items() if made is not None}
                for row in table.rows(taken)
            ]

        return replace(table, sql=f"SELECT {listed} FROM {table.nested} r", rows=rows)

    def _union(self, depth: int) -> SqlTable:
        return self._united(self.table(depth), self.table(depth))

    def _united(self, one: SqlTable, other: SqlTable) -> SqlTable:
        return SqlTable(
            " UNION ALL ".join(f"SELECT {SELECTED} FROM {arm.nested} r" for arm in (one, other)),
            lambda taken: _numbered([*one.rows(taken), *other.rows(taken)]),
            one.streams | other.streams,
        )

    def _deduplicate(self, depth: int) -> SqlTable:
        table, keys, within = self.straight(depth), self._keys("deduplicated by"), self.draw("within")

        def rows(taken: Taken) -> list[Row]:
            found = [
                (row["ts"], tuple(value(row) for _, value in keys), row) for row in windows.by_time(table.rows(taken))
            ]
            return _numbered([row for _, row in first_rows(found, within)])

        by = ", ".join(text for text, _ in keys)
        sql = f"SELECT {SELECTED} FROM {table.nested} DEDUPLICATE BY {by} WITHIN '{within} us'"
        return SqlTable(sql, rows, table.streams, settled=True)

    def _keys(self, name: str, *, least: int = 1) -> list[Key]:
        return [KEYS[column] for column in self._columns(name, least=least)]

    def _columns(self, name: str, *, least: int = 1) -> list[str]:
        chosen = [self.draw("key") for _ in range(max(self.draw(name), least))]
        return list(dict.fromkeys(chosen))

    # -- windows -------------------------------------------------------------------------------------------------------

    def _windows(self, depth: int) -> SqlTable:
        """Aggregates over windows of time, or over sessions."""
        table = self.table(depth)
        return self._over(table, self.draw("window"), table.nested)

    def _windows_of_rows(self, depth: int) -> SqlTable:
        """Aggregates over so many tuples of a stream."""
        table = self.straight(depth)
        return self._over(table, "hop" if table.counted is None else "rows", table.nested)

    def _retimed(self, depth: int) -> SqlTable:
        """Windows over a join by the time of one side."""
        if self.joined:
            return self._windows(depth)
        return self._by_side(self._joined(depth, outer=False))

    def _by_side(self, joined: SqlTable, by_too: Sequence[str] = ()) -> SqlTable:
        side = self.draw("side")
        sql = joined.sql.replace("SELECT ", f"SELECT {side}.ts AS s, ", 1)
        retimed = replace(
            joined, sql=sql, rows=lambda taken: [{**row, "ts": row[f"{side}.ts"]} for row in joined.rows(taken)]
        )
        return self._over(retimed, "tumble", f"({sql})", time="s", by_too=by_too)

    def _groups(self) -> SqlTable:
        """Windows by the punctuation key of `a`, which promises about its groups reach."""
        table = self._read("a")
        for clause in self.draw("way of groups"):
            table = self._united(table, self._read("a")) if clause == "union" else self._filter(0, table)
        by = self.draw("groups of a join")
        if by:
            sides, tables, rows, streams = self._paired(table, self._read("a"), "JOIN", self.punctuation_key)
            if by == "times":
                return self._by_times(sides, tables, rows, streams, by_too=self.punctuation_key)
            return self._by_side(
                SqlTable(f"SELECT {_listed(sides)} FROM {tables}", rows, streams), [self.punctuation_key]
            )
        return self._over(table, self.draw("window"), table.nested, by_too=[self.punctuation_key])

    def _over(self, table: SqlTable, kind: str, item: str, *, time: str = "ts", by_too: Sequence[str] = ()) -> SqlTable:
        size, slide = self.draw("size"), self.draw("slide")
        columns = self._columns("grouped by", least=0)
        columns = list(dict.fromkeys([*columns, *by_too]))
        keys = [KEYS[column] for column in columns]
        text = {
            "tumble": f"TUMBLE({item}, {time}, INTERVAL '{size} us')",
            "hop": f"HOP({item}, {time}, INTERVAL '{slide} us', INTERVAL '{size} us')",
            "session": f"SESSION({item}, {time}, INTERVAL '{slide} us')",
            "rows": f"{item} r [ROWS {size} SLIDE {slide}]",
        }[kind]
        slide = size if kind == "tumble" else slide
        shown = self._aggregates(columns, ordered=table.settled)
        bound = self.draw("shown bound") if kind != "rows" and "w" not in columns and "interval" not in columns else ""
        listed = ", ".join(f"{bound} AS w" if bound and c == "w" else f"{shown[c][0]} AS {c}" for c in COLUMNS)
        by = f" GROUP BY {', '.join(expression for expression, _ in keys)}" if keys else ""

        def rows(taken: Taken) -> list[Row]:
            found = [
                {**row} | {f"key {at}": value(row) for at, (_, value) in enumerate(keys)} for row in table.rows(taken)
            ]
            names = [f"key {at}" for at in range(len(keys))]
            functions = [function for _, function in shown.values()]
            if kind == "session":
                results = windows.sessions(found, names, functions, slide)
            elif kind == "rows":
                counted = [(row["place"], row["ts"]) for row in _numbered(taken[table.counted or ""])]
                results = windows.time_windows(found, names, functions, size, slide, axis="place", everything=counted)
            else:
                results = windows.time_windows(found, names, functions, size, slide)
            made = []
            for values, ts in results:
                row = _row(ts, values[len(keys) : -2])
                if bound:
                    row["w"] = values[-2] if bound == "window_start" else values[-1]
                made.append(row)
            return _numbered(made)

        sql = f"SELECT {listed} FROM {text}{by}"
        return SqlTable(sql, rows, table.streams, timed=kind != "rows")

    def _aggregates(self, columns: Sequence[str], *, ordered: bool) -> dict[str, Aggregate]:
        """What each column of the result shows: the group's key, or an aggregate."""
        shown: dict[str, Aggregate] = {}
        for column in COLUMNS:
            if column in columns:
                shown[column] = (column, partial(_of_group, column))
            elif column == "w" and "interval" in columns:
                shown[column] = (f"{EPOCH} + (w - {EPOCH})", lambda rows: rows[0]["w"])
            else:
                choice = [*FREE[column], *(FIRST[column] if ordered else ())]
                shown[column] = self.rng.choice(choice)
        return shown

    def _rows_of_windows(self, depth: int) -> SqlTable:
        """Each row once per window that it is in, or when its session has closed."""
        table, kind = self.table(depth), self.draw("window of rows")
        size, slide = self.draw("size"), self.draw("slide")
        bound = self.draw("shown bound") or "w"
        listed = ", ".join(f"{bound} AS w" if column == "w" else column for column in COLUMNS)
        columns = self._columns("grouped by", least=1)
        by = ", ".join(KEYS[column][0] for column in columns)

        def shown(results: Sequence[windows.Result]) -> list[Row]:
            made = []
            for values, ts in results:
                row = _row(ts, values[:-2])
                made.append(row if bound == "w" else row | {"w": values[-2] if bound == "window_start" else values[-1]})
            return _numbered(made)

        if kind == "session":
            names = ["w" if column == "interval" else column for column in columns]
            return SqlTable(
                f"SELECT {listed} FROM SESSION({table.nested}, ts, INTERVAL '{slide} us' PARTITION BY {by})",
                lambda taken: shown(windows.rows_of_sessions(table.rows(taken), names, COLUMNS, slide)),
                table.streams,
            )
        return SqlTable(
            f"SELECT {listed} FROM HOP({table.nested}, ts, INTERVAL '{slide} us', INTERVAL '{size} us')",
            lambda taken: shown(windows.rows_of_windows(table.rows(taken), COLUMNS, size, slide)),
            table.streams,
        )

    def _final_top(self, depth: int) -> SqlTable:
        """The first rows of each window: final, so the table appends."""
        table, most = self.table(depth), self.draw("top")
        size, slide = self.draw("size"), self.draw("slide")
        part = self._columns("partitioned by", least=0)
        by = ", ".join(["window_end", *(KEYS[column][0] for column in part if column != "interval")])
        names = ["window_end", *(column for column in part if column != "interval")]
        inner = (
            f"SELECT *, ROW_NUMBER() OVER (PARTITION BY {by} ORDER BY {_ranked()}) AS place FROM "
            f"HOP({table.nested}, ts, INTERVAL '{slide} us', INTERVAL '{size} us')"
        )

        def rows(taken: Taken) -> list[Row]:
            found = windows.rows_of_windows(table.rows(taken), COLUMNS, size, slide)
            there = [_row(values[-1] - 1, values[:-2]) | {"window_end": values[-1]} for values, _ in found]
            return _numbered(_places(_numbered(there), names, most, time=lambda row: int(row["window_end"]) - 1))

        listed = ", ".join("place AS n" if column == "n" else column for column in COLUMNS)
        return SqlTable(f"SELECT {listed} FROM ({inner}) r WHERE place <= {most}", rows, table.streams)

    # -- several tables ------------------------------------------------------------------------------------------------

    def _join(self, depth: int) -> SqlTable:
        return self._joined(depth, outer=True)

    def _joined(self, depth: int, *, outer: bool) -> SqlTable:
        sides, tables, rows, streams = self._pairs(depth, outer=outer)
        return SqlTable(f"SELECT {_listed(sides)} FROM {tables}", rows, streams)

    def _joint(self, depth: int) -> SqlTable:
        """Aggregates over a join by the times of both sides."""
        if self.joined:
            return self._windows(depth)
        return self._by_times(*self._pairs(depth, outer=True))

    def _by_times(
        self, sides: dict[str, str], tables: str, pairs: Callable[[Taken], list[Row]], streams: Any, by_too: str = ""
    ) -> SqlTable:
        sizes = {f"{side}.ts": self.draw("span") for side in "pq"}
        function = self.draw("of a joint group")
        oracle = {"min": windows.least, "max": windows.greatest}[function]
        listed = ", ".join(f"{function}({text}) AS {column}" for column, text in _expressions(sides).items())
        by = ", ".join(time if size == 1 else f"date_trunc('millisecond', {time})" for time, size in sizes.items())

        def rows(taken: Taken) -> list[Row]:
            groups: dict[tuple[Any, ...], list[Row]] = {}
            for row in pairs(taken):
                times = [None if row[time] is None else row[time] // size for time, size in sizes.items()]
                groups.setdefault((*times, row[by_too] if by_too else None), []).append(row)
            size = max(sizes.values())
            return _numbered(
                [
                    _row(found[0]["ts"] // size * size + size - 1, [oracle(found, column, False) for column in COLUMNS])
                    for found in groups.values()
                ]
            )

        by += f", p.{by_too}" if by_too else ""
        return SqlTable(f"SELECT {listed} FROM {tables} GROUP BY {by}", rows, streams)

    def _pairs(self, depth: int, *, outer: bool) -> tuple[dict[str, str], str, Callable[[Taken], list[Row]], Any]:
        """A join: the side that each column is from, the tables, their rows, and the streams."""
        one, other = self.table(depth), self.table(0)
        self.joined = True
        kind = self.draw("join") if outer else "JOIN"
        self.outer |= kind != "JOIN"
        return self._paired(one, other, kind)

    def _paired(
        self, one: SqlTable, other: SqlTable, kind: str, by: str = ""
    ) -> tuple[dict[str, str], str, Callable[[Taken], list[Row]], Any]:
        before, after = self.draw("range"), self.draw("range")
        key = KEYS[by or self.draw("key")]
        equal = f"p.{key[0]} = q.{key[0]}"
        if kind == "JOIN":
            tables = f"{one.nested} p [RANGE '{after} us'] JOIN {other.nested} q [RANGE '{before} us'] ON {equal}"
        else:
            tables = (
                f"{one.nested} p {kind} {other.nested} q ON {equal} AND q.ts BETWEEN p.ts - INTERVAL '{before} us' "
                f"AND p.ts + INTERVAL '{after} us'"
            )
        sides = self._sides(outer=kind != "JOIN")
        at = COLUMNS.index("w" if key[0] not in COLUMNS else key[0])
        alone = {"JOIN": (), "LEFT JOIN": (0,), "RIGHT JOIN": (1,), "FULL JOIN": (0, 1)}[kind]

        def rows(taken: Taken) -> list[Row]:
            inputs = [[(row["ts"], _values(row)) for row in table.rows(taken)] for table in (one, other)]
            found = joins.join(inputs, [(0, 1, -before, after)], [(0, at, 1, at)], outer=alone)
            made = []
            for ts, pair in found:
                row = _row(ts, _chosen(sides, [None if part is None else part[1] for part in pair]))
                made.append(row | {f"{name}.ts": part and part[0] for name, part in zip("pq", pair, strict=True)})
            return _numbered(made)

        return sides, tables, rows, one.streams | other.streams

    def _sides(self, *, outer: bool = False) -> dict[str, str]:
        """The side that each column is from; of outer joins n is from the one that is there."""
        sides = {column: self.draw("side") for column in COLUMNS}
        return sides | {"n": "both"} if outer else sides

    def _followed_by(self, depth: int) -> SqlTable:
        one, other = self.straight(depth), self.straight(0)
        mode, within = self.draw("followed by"), self.draw("within")
        key = KEYS[self.draw("key")]
        at = COLUMNS.index("w" if key[0] not in COLUMNS else key[0])
        word = {"recent": "FOLLOWED BY", "chronicle": "FOLLOWED BY", "absent": "FOLLOWED BY NO"}[mode]
        chosen = "" if mode == "absent" else mode.upper()
        tables = f"{one.nested} p {word} {other.nested} q {chosen} WITHIN '{within} us' ON p.{key[0]} = q.{key[0]}"
        sides = dict.fromkeys(COLUMNS, "p") if mode == "absent" else self._sides()

        def rows(taken: Taken) -> list[Row]:
            firsts, seconds = ([(row["ts"], _values(row)) for row in table.rows(taken)] for table in (one, other))
            if mode == "absent":
                alone, _ = sequences.absent(firsts, seconds, [at], within, lambda a, b: True)
                return _numbered([_row(ts + within, values) for ts, values in alone])
            pairs, _ = sequences.following(firsts, seconds, [at], mode, within, lambda a, b: True, False)
            found = [(b[0], _chosen(sides, [a and a[1], b[1]])) for a, b in pairs]
            return _numbered([_row(ts, values) for ts, values in found])

        return SqlTable(f"SELECT {_listed(sides)} FROM {tables}", rows, one.streams | other.streams)

    def _latest_join(self, depth: int) -> SqlTable:
        """Each row with the row of the keyed stream that is current at its time."""
        table, outer = self.table(depth), self.draw("outer")
        sides = self._sides() | {"n": "p"}
        at = [COLUMNS.index(column) for column in KEY]

        def rows(taken: Taken) -> list[Row]:
            firsts = [(row["ts"], _values(row)) for row in taken[KEYED]]
            seconds = [(row["ts"], _values(row)) for row in table.rows(taken)]
            pairs, _ = sequences.following(firsts, seconds, at, "recent", None, lambda a, b: True, outer)
            return _numbered([_row(b[0], _chosen(sides, [b[1], a and a[1]])) for a, b in pairs])

        on = " AND ".join(f"p.{column} = q.{column}" for column in KEY)
        join = "LEFT JOIN LATEST" if outer else "JOIN LATEST"
        sql = f"SELECT {_listed(sides)} FROM {table.nested} p {join} {KEYED} q ON {on}"
        return SqlTable(sql, rows, table.streams | {KEYED})

    # -- update streams ------------------------------------------------------------------------------------------------

    def current(self, depth: int) -> SqlTable:
        if not depth:
            return self._latest()
        kind = self.draw("update clause")
        return getattr(self, f"_{kind}")(depth - 1)

    def _latest(self) -> SqlTable:
        """The newest row of each key, by every kind of queue."""

        def rows(taken: Taken) -> list[Row]:
            there = [{**row, "gone": False} for row in _numbered(taken[KEYED])]
            return [dict(row) for row in updates.current(there, KEY)]

        sql = f"SELECT {SELECTED} FROM {KEYED} LATEST {self.draw('queue')}"
        return SqlTable(sql, rows, frozenset({KEYED}), key=KEY)

    def _newest_windows(self, depth: int) -> SqlTable:
        self.superseding = True
        size, slide, bound = self.draw("size"), self.draw("slide"), self.draw("shown bound") or "window_end"
        slide = min(size, slide)
        shown = self._aggregates(KEY, ordered=False)
        listed = ", ".join(
            f"{bound} AS w" if column == "w" else f"{shown[column][0]} AS {column}" for column in COLUMNS
        )

        def every(taken: Taken) -> list[Row]:
            functions = [function for _, function in shown.values()]
            found = windows.time_windows(_numbered(taken[KEYED]), KEY, functions, size, slide)
            return [
                _row(ts, values[len(KEY) : -2]) | {"w": values[-2] if bound == "window_start" else values[-1]}
                for values, ts in found
            ]

        def rows(taken: Taken) -> list[Row]:
            # Windows are in order of their starts.
            return list({tuple(row[column] for column in KEY): row for row in every(taken)}.values())

        sql = (
            f"SELECT {listed} FROM HOP({KEYED}, ts, INTERVAL '{slide} us', INTERVAL '{size} us') LATEST "
            f"{self.draw('when')} {self.draw('queue')} GROUP BY {', '.join(KEY)}, {bound}"
        )
        return SqlTable(sql, rows, frozenset({KEYED}), key=KEY, windows=every)

    def _current_filter(self, depth: int) -> SqlTable:
        return self._filter(depth, self.current(depth))

    def _current_project(self, depth: int) -> SqlTable:
        return self._project(depth, self.current(depth))

    def _totals(self, depth: int) -> SqlTable:
        table = self.table(depth) if self.draw("totals of rows") else self.current(depth)
        columns = [column for column in self._columns("grouped by", least=0) if column != "interval"]
        shown = self._aggregates(columns, ordered=table.settled and table.key is None)
        listed = ", ".join(f"{shown[column][0]} AS {column}" for column in COLUMNS)
        by = f" GROUP BY {', '.join(columns)}" if columns else ""

        def rows(taken: Taken) -> list[Row]:
            found = table.rows(taken)
            members = windows.groups(found, columns) if columns else {(): found}
            return [_row(0, [function(some) for _, function in shown.values()]) for some in members.values()]

        sql = f"SELECT {listed} FROM {table.nested} r{by}"
        return SqlTable(sql, rows, table.streams, timed=False, key=tuple(columns))

    def _top(self, depth: int) -> SqlTable:
        table = self.table(depth) if self.draw("totals of rows") else self.current(depth)
        most = self.draw("top")
        columns = [column for column in self._columns("partitioned by") if column != "interval"] or ["k"]
        over = f"PARTITION BY {', '.join(columns)} ORDER BY {_ranked()}"
        inner = f"SELECT *, ROW_NUMBER() OVER ({over}) AS place FROM {table.nested} r"
        listed = ", ".join("place AS n" if column == "n" else column for column in COLUMNS)
        sql = f"SELECT {listed} FROM ({inner}) r WHERE place <= {most}"
        key = (*columns, "n") if most > 1 else tuple(columns)

        def rows(taken: Taken) -> list[Row]:
            return _places(_numbered(table.rows(taken)), columns, most, time=lambda row: 0)

        if table.windows is not None and "w" in columns:
            return self._top_of_windows(replace(table, sql=sql), table.windows, columns, most)
        return SqlTable(sql, rows, table.streams, timed=False, key=key)

    def _top_of_windows(
        self, table: SqlTable, every: Callable[[Taken], list[Row]], columns: Sequence[str], most: int
    ) -> SqlTable:
        """The first rows of each of windows that replace each other: final, also if a key's row is replaced later."""

        def chosen(taken: Taken, given: Collection[tuple[Any, ...]]) -> list[Row]:
            """The places, if the windows that were processed are the last ones and those of the rows given."""
            last, shown = table.rows(taken), {values[1:-1] for values in given}
            there = [row for row in every(taken) if row in last or _values(row)[:-1] in shown]
            return _places(_numbered(there), columns, most, time=lambda row: int(row["ts"]))

        return SqlTable(table.sql, lambda taken: chosen(taken, ()), table.streams, chosen=chosen)

    # -- the log -------------------------------------------------------------------------------------------------------

    def _log(self) -> tuple[Said, ...]:
        rng = self.rng
        self.now, number = BEGIN_US, 0
        log: list[Said] = []
        for _ in range(self.draw("lines")):
            self.now += self.draw("time passes")
            stream, kind = self.draw("fed stream"), self.draw("line")
            if kind == "tuples":
                tuples = []
                for _ in range(self.draw("rows")):
                    back = rng.randint(0, self.disorder[stream] + 2)
                    ts = None if stream == "i" else max(self.now - back, BEGIN_US)
                    values = [rng.choice(VALUES[column]) for column in COLUMNS if column != "n"]
                    if stream == "a" and self.punctuation_key and ts is not None:
                        ts = max(ts, self.promised.get(values[COLUMNS.index(self.punctuation_key)], ts))
                    tuples.append((ts, *values, number))
                    number += 1
                log.append(Said(self.now, "tuples", stream, "main", tuple(tuples)))
            elif kind == "punctuation" and stream != "i":
                log.append(
                    Said(self.now, "punctuation", stream, "main", value=self.now - self.draw("punctuation back"))
                )
            else:
                log.append(Said(self.now, "check"))
            if self.punctuation_key and draw(self.apart, "sql.promise about a group"):
                group = self.apart.choice(VALUES[self.punctuation_key])
                value = self.promised[group] = max(
                    self.now + draw(self.apart, "sql.promised ahead"), self.promised.get(group, BEGIN_US)
                )
                log.append(Said(self.now, "punctuation", "a", "main", value=value, group=(group,)))
        ends = [Said(self.now, "end", name) for name in ("a", KEYED, "i", PASSING)]
        return (*log, Said(self.now, "check"), *ends, Said(self.now, "check"))


def _ranked() -> str:
    """ORDER BY of all columns."""
    order = [*RANKED, *RANKED_REST]
    return ", ".join(
        f"{name}{' DESC' if descending else ''} NULLS {'FIRST' if first else 'LAST'}"
        for name, descending, first in order
    )


def _places(rows: list[Row], part: Sequence[str], most: int, *, time: Callable[[Row], int]) -> list[Row]:
    """The rows with a place, which is their n."""
    order = [*RANKED, *RANKED_REST]
    made: list[Row] = []
    for members in windows.groups(rows, part).values():
        for row in members:
            number = 1 + sum(updates.first_of(other, row, order) for other in members if other is not row)
            if number <= most:
                made.append({**row, "n": number, "ts": time(dict(row))})
    return made


def _listed(sides: Mapping[str, str]) -> str:
    return ", ".join(f"{expression} AS {column}" for column, expression in _expressions(sides).items())


def _expressions(sides: Mapping[str, str]) -> dict[str, str]:
    """Each column, as one of a pair of rows has it."""
    return {
        column: f"coalesce(p.{column}, q.{column})" if side == "both" else f"{side}.{column}"
        for column, side in sides.items()
    }


def _chosen(sides: Mapping[str, str], pair: Sequence[Sequence[Any] | None]) -> list[Any]:
    """The values of a pair of rows, of which one may be missing."""
    chosen = []
    for at, side in enumerate(sides.values()):
        values = [None if part is None else part[at] for part in pair]
        chosen.append(next((v for v in values if v is not None), None) if side == "both" else values["pq".index(side)])
    return chosen
