"""Backfills: a tumbling count by 65,536 groups over archived packets, against Spark's own SQL and a Python UDF per row.

All run in one session on local[2], one after the other, from the same Parquet to Parquet; what counts are ratios of one
run. `python -m bench.backfill ROWS...` measures more sizes: how the cost grows.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.figure import Figure
from millrace.backfill.inputs import find_input
from millrace.backfill.job import flow_of_text
from millrace.backfill.running import BackfillRequest, start
from millrace.backfill.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS = 65_536
WINDOW_US = 10_000_000
# 100,000 packets in a second of event time.
APART_US = 10
BEGIN_US = 1_767_225_600_000_000
SQL = """CREATE STREAM packets (ts TIMESTAMP, src BIGINT, dst BIGINT, len BIGINT) WITH (time = 'ts');
SELECT src, count(*) AS n, window_start FROM TUMBLE(packets, ts, INTERVAL '10 seconds') GROUP BY src, window_start"""
SETTINGS = {"spark.driver.memory": "3g", "spark.sql.shuffle.partitions": "4"}
PORTION = 1_000_000


def archive(folder: Path, rows: int, groups: int = GROUPS) -> Path:
    """Packets as the server archives them, a file per million."""
    place = folder / f"packets-{rows}"
    place.mkdir(exist_ok=True)
    rng = np.random.default_rng(1)
    for first in range(0, rows, PORTION):
        count = min(PORTION, rows - first)
        ts = BEGIN_US + (first + np.arange(count)) * APART_US
        time_type = pa.timestamp("us", "UTC")
        table = pa.table(
            {
                "ts": pa.array(ts, time_type),
                "src": rng.integers(0, groups, count),
                "dst": rng.integers(0, groups, count),
                "len": rng.integers(40, 1_500, count),
                "__seq": first + np.arange(count),
                "__arrived": pa.array(ts + 200, time_type),
                "__late": np.zeros(count, np.bool_),
                "__mark": pa.array(ts - APART_US, time_type),
                "__feed": pa.array(["main"]).take(pa.array(np.zeros(count, np.int64))),
            }
        )
        pq.write_table(table, place / f"{first:012}.parquet")
    return place


class Race:
    """The same question in several ways, over one archive."""

    def __init__(self, session: SparkSession, place: Path, folder: Path) -> None:
        self.session = session
        self.place = place
        self.folder = folder

    def millrace(self, mode: Literal["key", "time"], tasks: int = 4) -> tuple[float, dict[str, Any]]:
        flow = flow_of_text(SQL)
        out = self.folder / "millrace"
        shutil.rmtree(out, ignore_errors=True)
        inputs = {"packets": find_input(flow, "packets", str(self.place))}
        request = BackfillRequest(flow, inputs, str(out), mode=mode, tasks=tasks)
        began = time.perf_counter()
        manifest = start(request, lambda line: None, lambda done, total: None)
        return time.perf_counter() - began, manifest

    def spark_sql(self) -> tuple[float, int]:
        from pyspark.sql import functions as f

        window = f.window("ts", f"{WINDOW_US // 1_000_000} seconds")
        return self._counted(lambda frame: frame.groupBy("src", window).agg(f.count("*").alias("n")))

    def spark_integers(self) -> tuple[float, int]:
        """The windows by integer arithmetic, which Spark computes faster than its own windows of time."""
        from pyspark.sql import functions as f

        us = f.unix_micros("ts")
        return self._counted(
            lambda frame: frame.groupBy("src", (us - us % WINDOW_US).alias("w")).agg(f.count("*").alias("n"))
        )

    def python_udf(self) -> tuple[float, int]:
        """A Python function computes the window of each packet."""
        from pyspark.sql import functions as f

        window_of = f.udf(lambda us: us - us % WINDOW_US, "bigint", useArrow=False)
        return self._counted(
            lambda frame: (
                frame.withColumn("w", window_of(f.unix_micros("ts"))).groupBy("src", "w").agg(f.count("*").alias("n"))
            )
        )

    def python_rows(self) -> tuple[float, int]:
        """Each packet goes through a Python loop that counts."""

        def count(rows: Any) -> Any:
            counts: dict[tuple[int, int], int] = {}
            for row in rows:
                at = (row[0], row[1] - row[1] % WINDOW_US)
                counts[at] = counts.get(at, 0) + 1
            return ((src, window, n) for (src, window), n in counts.items())

        from pyspark.sql import functions as f

        def aggregate(frame: Any) -> Any:
            pairs = frame.select("src", f.unix_micros("ts")).rdd.mapPartitions(count)
            partial_counts = self.session.createDataFrame(pairs, "src bigint, w bigint, n bigint")
            return partial_counts.groupBy("src", "w").agg(f.sum("n").alias("n"))

        return self._counted(aggregate)

    def _counted(self, aggregate: Callable[[Any], Any]) -> tuple[float, int]:
        out = str(self.folder / "spark")
        began = time.perf_counter()
        aggregate(self.session.read.parquet(str(self.place)).where("not __late")).write.mode("overwrite").parquet(out)
        took = time.perf_counter() - began
        return took, self.session.read.parquet(out).count()


def race(rows: int, groups: int = GROUPS, session: SparkSession | None = None, tasks: int = 4) -> list[Figure]:
    """Spark's SQL, Python per row, and Millrace by key and by time; the numbers of rows must be equal."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as name:
        folder = Path(name)
        own = session is None
        spark = session or open_session("local[2]", SETTINGS)
        try:
            contest = Race(spark, archive(folder, rows, groups), folder)
            if own:
                warm = Race(spark, archive(folder, 20_000, groups), folder)
                for run in (warm.spark_sql, warm.spark_integers, warm.python_udf, warm.python_rows):
                    run()
                warm.millrace("key")
            sql, right = best(contest.spark_sql)
            integers, by_integers = best(contest.spark_integers)
            udf, by_udf = contest.python_udf()
            loop, by_loop = contest.python_rows()
            results = {mode: best(partial(contest.millrace, mode, tasks)) for mode in MODES}
        finally:
            if own:
                spark.stop()
    assert {right, by_integers, by_udf, by_loop, *(manifest["rows"] for _, manifest in results.values())} == {right}
    figures = [
        Figure(f"{rows:,} packets: Spark's SQL", sql, "s"),
        Figure(f"{rows:,} packets: Spark's SQL, windows as integers", integers, "s"),
        Figure(f"{rows:,} packets: a Python UDF per row", udf, "s"),
        Figure(f"{rows:,} packets: a Python loop over rows", loop, "s"),
    ]
    for mode, (took, manifest) in results.items():
        seconds = [task["seconds"] for task in manifest["tasks"]]
        figures += [
            Figure(f"by {mode}", took, "s"),
            Figure(f"by {mode}, over Spark's SQL", took / sql, "times", 3),
            Figure(f"by {mode}, over Spark's SQL, windows as integers", took / integers, "times", 3),
            Figure(f"by {mode}, a Python UDF per row over it", udf / took, "times"),
            Figure(f"by {mode}, a Python loop over rows over it", loop / took, "times", 5, most=False),
            Figure(f"by {mode}, slowest task", max(seconds), "s"),
            Figure(f"by {mode}, slowest task over the mean", max(seconds) * len(seconds) / sum(seconds), "times"),
        ]
    return figures


def best(run: Callable[[], tuple[float, Any]]) -> tuple[float, Any]:
    """The faster of two runs: the first one also fills the disk's cache and warms up Java."""
    return min(run(), run(), key=itemgetter(0))


MODES: Sequence[Literal["key", "time"]] = ("key", "time")


def growth(sizes: Sequence[int]) -> list[Figure]:
    """The time by the number of rows."""
    figures = []
    spark = open_session("local[2]", SETTINGS)
    try:
        for rows in sizes:
            with tempfile.TemporaryDirectory(prefix="millrace-bench-") as name:
                contest = Race(spark, archive(Path(name), rows), Path(name))
                for mode in MODES:
                    took, manifest = contest.millrace(mode, max(4, rows // 5_000_000))
                    assert manifest["rows"]
                    figures.append(Figure(f"{rows:,} packets by {mode}", took, "s"))
                    figures.append(Figure(f"{rows:,} packets by {mode}, each", took / rows * 1e9, "ns/tuple"))
    finally:
        spark.stop()
    return figures


if __name__ == "__main__":
    for figure in growth([int(word) for word in sys.argv[1:]]) if sys.argv[1:] else race(10_000_000):
        print(figure.line(), flush=True)
