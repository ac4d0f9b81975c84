"""The race's workloads: SQL for Millrace and DuckDB, generated tuples as columns and as files, a digest of the rows.

Every program that takes part computes the same rows: no figure counts before its digest is equal to DuckDB's. Tuples
come from a seed. They are in order of time, and in the race every stream is complete before its end is announced.

    w1           filter, union, count by 1,000 keys per second; `w1-ordered` puts the union in order of time
    w2           count and sum by two keys in tumbling windows, 65,536 groups; `w2-260000` has 262,144
    w3           band join on four keys, count of the pairs
    w4           average by key over the last minute, every ten seconds
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from millrace.protocol import Schema

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

Column = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]

TUPLES: Final = 5_000_000
# Tuples per second of event time: all streams of a workload together, but for the join's.
RATE: Final = 100_000
SECOND_US: Final = 1_000_000
FORMATS: Final = ("parquet", "arrow", "jsonl")


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream's tuples as columns in the order of its schema; the first one, `ts`, is the time in microseconds."""

    schema: Schema
    columns: tuple[Column, ...]

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def ts(self) -> Int64s:
        return self.columns[0]

    def part(self, start: int, stop: int) -> Stream:
        return Stream(self.schema, tuple(column[start:stop] for column in self.columns))

    def table(self) -> pa.Table:
        """The tuples as an Arrow table, whose times are integers."""
        import pyarrow as pa

        return pa.table(dict(zip(self.schema.names, self.columns, strict=True)))


@dataclass(frozen=True, slots=True)
class Workload:
    """One line of the race.

    streams_sql, query_sql   statements of Millrace: the streams, and the query `q`
    duckdb_sql               the same rows from tables that are named after the streams
    columns                  the names of the rows' columns, in the order in which the digest reads them
    make                     the streams' tuples for a number of tuples in all and a seed
    """

    name: str
    title: str
    streams_sql: str
    query_sql: str
    duckdb_sql: str
    columns: tuple[str, ...]
    make: Callable[[int, int], Mapping[str, Stream]]

    @property
    def sql(self) -> str:
        return self.streams_sql + self.query_sql

    def streams(self, tuples: int = TUPLES, seed: int = 1) -> Mapping[str, Stream]:
        return self.make(tuples, seed)


# -- tuples ------------------------------------------------------------------------------------------------------------

THREE: Final = Schema.of(ts="timestamp", k="bigint", v="bigint")
TWO_KEYS: Final = Schema.of(ts="timestamp", a="bigint", b="bigint", v="bigint")
FOUR_KEYS: Final = Schema.of(ts="timestamp", src="bigint", dst="bigint", sport="bigint", dport="bigint", v="bigint")
# Each side of the join: tuples per second, and the share of right tuples that have the keys of a left one.
JOIN_RATE: Final = 4_000
MATCHING: Final = 0.3


def _two_streams(tuples: int, seed: int) -> Mapping[str, Stream]:
    """Two streams that take turns, with values up to 1,000."""
    rng = np.random.default_rng(seed)
    count = tuples // 2
    apart = SECOND_US // RATE
    return {
        name: Stream(
            THREE,
            ((2 * np.arange(count) + side) * apart, rng.integers(0, 1000, count), rng.integers(0, 1000, count)),
        )
        for side, name in enumerate(("s", "t"))
    }


def _one_stream(schema: Schema, ranges: Sequence[int], tuples: int, seed: int) -> Mapping[str, Stream]:
    """One stream with integers below these bounds."""
    rng = np.random.default_rng(seed)
    ts = np.arange(tuples) * (SECOND_US // RATE)
    return {"s": Stream(schema, (ts, *(rng.integers(0, bound, tuples) for bound in ranges)))}


def _join_sides(tuples: int, seed: int) -> Mapping[str, Stream]:
    """Two sides with four keys. Three of ten right tuples have the keys of a left one up to a second older."""
    rng = np.random.default_rng(seed)
    count = tuples // 2
    ts = np.arange(count) * (SECOND_US // JOIN_RATE)
    left = rng.integers(0, 1 << 40, (4, count))
    right = rng.integers(0, 1 << 40, (4, count))
    matching = np.flatnonzero(rng.random(count) < MATCHING)
    partners = np.maximum(matching - rng.integers(0, JOIN_RATE, len(matching)), 0)
    right[:, matching] = left[:, partners]
    v = rng.integers(0, 1500, count)
    return {"s": Stream(FOUR_KEYS, (ts, *left, v)), "t": Stream(FOUR_KEYS, (ts, *right, v))}


def files(workload: Workload, folder: Path, kind: str, tuples: int = TUPLES, seed: int = 1) -> dict[str, Path]:
    """The tuples of each stream as a file (`parquet`, `arrow` or `jsonl`), written unless it is there already."""
    paths = {}
    for name, stream in workload.streams(tuples, seed).items():
        path = folder / f"{workload.name}-{name}-{tuples}-{seed}.{kind}"
        if not path.exists():
            waiting = path.with_name(path.name + ".new")
            _write(stream, waiting, kind)
            waiting.replace(path)
        paths[name] = path
    return paths


def _write(stream: Stream, path: Path, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    if kind == "parquet":
        pyarrow.parquet.write_table(stream.table(), path)
    elif kind == "arrow":
        table = stream.table()
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=65_536)
    elif kind == "jsonl":
        line = "{" + ",".join(f'"{name}":%d' for name in stream.schema.names) + "}\n"
        with path.open("w") as file:
            for start in range(0, len(stream), 65_536):
                rows = zip(*(column.tolist() for column in stream.part(start, start + 65_536).columns), strict=True)
                file.write("".join([line % row for row in rows]))
    else:
        raise ValueError(f"expected one of {', '.join(FORMATS)}, got {kind!r}")


# -- rows --------------------------------------------------------------------------------------------------------------


def digest(columns: Sequence[Column]) -> str:
    """A digest of rows given as columns, whatever their order: integers and times as int64, others as doubles."""
    made = [np.asarray(column) for column in columns]
    made = [column.astype(np.float64 if column.dtype.kind == "f" else np.int64) for column in made]
    order = np.lexsort(made[::-1])
    found = hashlib.sha256(f"{len(order)} rows".encode())
    for column in made:
        found.update(np.ascontiguousarray(column[order]).tobytes())
    return found.hexdigest()[:16]


def digest_of_rows(rows: Sequence[Sequence[float]]) -> str:
    """The digest of rows given as tuples of integers and floats."""
    return digest([np.array(column) for column in zip(*rows, strict=True)])


class InDuckDB:
    """The workload in DuckDB with one thread, over Arrow tables in memory."""

    def __init__(self, workload: Workload, streams: Mapping[str, Stream]) -> None:
        import duckdb

        self._sql = workload.duckdb_sql
        self._connection: duckdb.DuckDBPyConnection = duckdb.connect()
        self._connection.execute("SET threads = 1")
        for name, stream in streams.items():
            self._connection.register(name, stream.table())

    def prepare(self) -> None:
        """The tables are there already."""

    def run(self) -> list[Column]:
        """The rows as columns."""
        return list(self._connection.execute(self._sql).fetchnumpy().values())


# -- the lines ---------------------------------------------------------------------------------------------------------

_W1: Final = """CREATE QUERY q{options} AS
  SELECT k, count(*) AS n, window_end
  FROM TUMBLE((SELECT ts, k FROM s WHERE v < 500 UNION ALL SELECT ts, k FROM t WHERE v < 500), ts, INTERVAL '1 second')
  GROUP BY k;
"""
_W2: Final = """CREATE QUERY q AS
  SELECT a, b, count(*) AS n, sum(v) AS total, window_end
  FROM TUMBLE(s, ts, INTERVAL '10 seconds') GROUP BY a, b;
"""
_W3: Final = """CREATE QUERY q AS
  SELECT count(*) AS n, window_end
  FROM TUMBLE((SELECT s.v FROM s JOIN t ON s.src = t.src AND s.dst = t.dst AND s.sport = t.sport AND s.dport = t.dport
    AND abs(s.ts - t.ts) <= INTERVAL '1 second'), ts, INTERVAL '10 seconds');
"""
_W4: Final = """CREATE QUERY q WITH (partial = 'emit') AS
  SELECT k, avg(v) AS mean, window_end
  FROM HOP(s, ts, INTERVAL '10 seconds', INTERVAL '1 minute') GROUP BY k;
"""


def _create(schemas: Mapping[str, Schema]) -> str:
    lines = []
    for name, schema in schemas.items():
        fields = ", ".join(f"{field.name} {field.type.value.upper()}" for field in schema)
        lines.append(f"CREATE STREAM {name} ({fields}) WITH (time = 'ts');\n")
    return "".join(lines)


def _w1(name: str, title: str, options: str = "", duckdb_order: str = "") -> Workload:
    return Workload(
        name,
        title,
        _create({"s": THREE, "t": THREE}),
        _W1.format(options=options),
        "SELECT k, count(*) AS n, (ts // 1000000 + 1) * 1000000 AS window_end FROM (SELECT ts, k FROM s WHERE v < 500 "
        f"UNION ALL SELECT ts, k FROM t WHERE v < 500{duckdb_order}) GROUP BY k, window_end",
        ("k", "n", "window_end"),
        _two_streams,
    )


def _w2(name: str, keys: int) -> Workload:
    return Workload(
        name,
        f"count and sum by two keys, {keys * keys:,} groups",
        _create({"s": TWO_KEYS}),
        _W2,
        "SELECT a, b, count(*) AS n, sum(v)::BIGINT AS total, (ts // 10000000 + 1) * 10000000 AS window_end "
        "FROM s GROUP BY a, b, window_end",
        ("a", "b", "n", "total", "window_end"),
        partial(_one_stream, TWO_KEYS, (keys, keys, 1500)),
    )


WORKLOADS: Final[Mapping[str, Workload]] = {
    workload.name: workload
    for workload in (
        _w1("w1", "filter, union, count by 1,000 keys"),
        _w1("w1-ordered", "filter, ordered union, count by 1,000 keys", " WITH (order = 'event')", " ORDER BY ts"),
        _w2("w2", 256),
        _w2("w2-260000", 512),
        Workload(
            "w3",
            "band join on four keys, count",
            _create({"s": FOUR_KEYS, "t": FOUR_KEYS}),
            _W3,
            "SELECT count(*) AS n, (greatest(s.ts, t.ts) // 10000000 + 1) * 10000000 AS window_end "
            "FROM s JOIN t USING (src, dst, sport, dport) WHERE s.ts - t.ts BETWEEN -1000000 AND 1000000 "
            "GROUP BY window_end",
            ("n", "window_end"),
            _join_sides,
        ),
        Workload(
            "w4",
            "average by 1,000 keys, a minute every ten seconds",
            _create({"s": THREE}),
            _W4,
            # The fastest way in DuckDB that was found: ten seconds at a time, then windows of six such sums.
            "SELECT k, sum(s)::DOUBLE / sum(n) AS mean, (pane + i + 1) * 10000000 AS window_end "
            "FROM (SELECT k, ts // 10000000 AS pane, sum(v) AS s, count(*) AS n FROM s GROUP BY k, pane), "
            "range(6) AS later(i) GROUP BY k, window_end",
            ("k", "mean", "window_end"),
            partial(_one_stream, THREE, (1000, 1500)),
        ),
    )
}
