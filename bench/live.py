"""Live queries on Spark: time and processor of a micro-batch, against Spark's own Structured Streaming with RocksDB.

Both read the same Parquet files, one in each micro-batch, in one session on local[2], one after the other. What counts
are ratios of one run; the first batches, which start workers and compile, do not.

    python -m bench.live                          groups by 65,536 keys, at 400,000 rows
    python -m bench.live --rows 2000000 --case join
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.figure import Figure
from millrace.backfill.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS: Final = 65_536
BEGIN_US: Final = 1_767_225_600_000_000
# Event time of a batch: windows of three seconds close in every third one.
BATCH_US: Final = 1_000_000
# Batches that do not count.
WARM: Final = 4
SETTINGS: Final = {
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}
STREAMS: Final = """
CREATE STREAM packets (ts TIMESTAMP, src BIGINT, bytes BIGINT) WITH (time = 'ts', disorder = '1 second');
CREATE STREAM flows (ts TIMESTAMP, src BIGINT, kind BIGINT) WITH (time = 'ts', disorder = '1 second');
"""
GROUPED: Final = """CREATE QUERY traffic{n} AS SELECT src, sum(bytes) AS bytes, count(*) AS n, window_end
  FROM TUMBLE(packets, ts, INTERVAL '{size} seconds') GROUP BY src;"""
JOINED: Final = """CREATE QUERY pairs AS SELECT p.ts, p.src, p.bytes, f.kind FROM packets p JOIN flows f
  ON p.src = f.src AND f.ts BETWEEN p.ts - INTERVAL '1 second' AND p.ts;"""


@dataclass(frozen=True)
class Measured:
    """Seconds and processor seconds of a micro-batch, and the rows of the result."""

    seconds: float
    processor: float
    rows: int


# -- input -------------------------------------------------------------------------------------------------------------


def write_input(folder: Path, rows: int, batches: int, keys: int) -> None:
    """A file of each stream for each batch, slightly out of order."""
    rng = np.random.default_rng(1)
    for name, column, most in (("packets", "bytes", 1_500), ("flows", "kind", 9)):
        (folder / name).mkdir()
        count = rows if name == "packets" else rows // 4
        for batch in range(batches):
            times = np.sort(rng.integers(0, BATCH_US, count)) - rng.integers(0, 200_000, count)
            ts = pa.array(BEGIN_US + batch * BATCH_US + times, pa.timestamp("us", "UTC"))
            table = pa.table({"ts": ts, "src": rng.integers(0, keys, count), column: rng.integers(0, most, count)})
            pq.write_table(table, folder / name / f"{batch:06}.parquet")


# -- Spark alone -------------------------------------------------------------------------------------------------------


def native(spark: SparkSession, folder: Path, case: str) -> Measured:
    from pyspark.sql import functions as f

    packets = _stream(spark, folder / "packets", "ts timestamp, src bigint, bytes bigint")
    if case == "join":
        flows = _stream(spark, folder / "flows", "ts timestamp, src bigint, kind bigint").select(
            f.col("ts").alias("fts"), f.col("src").alias("fsrc"), "kind"
        )
        near = f.expr("src = fsrc AND fts BETWEEN ts - INTERVAL 1 SECOND AND ts")
        result = packets.join(flows, near).select("ts", "src", "bytes", "kind")
    else:
        grouped = packets.groupBy("src", f.window("ts", "3 seconds"))
        result = grouped.agg(f.sum("bytes").alias("bytes"), f.count("*").alias("n")).drop("window")
    out = folder / "native"

    def start() -> Any:
        sink = result.writeStream.format("parquet").option("path", str(out)).outputMode("append")
        return sink.option("checkpointLocation", str(folder / "native-checkpoint")).start()

    measured = watch(start)
    return Measured(*measured, spark.read.parquet(str(out)).count())


def _stream(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    return frame.withWatermark("ts", "1 second")


# -- Millrace ----------------------------------------------------------------------------------------------------------


def own(spark: SparkSession, folder: Path, case: str, rows: int, queries: int, buckets: int) -> Measured:
    from millrace.spark import Job
    from millrace.spark.checkpoint import Checkpoint

    sql = STREAMS + (JOINED if case == "join" else "".join(GROUPED.format(n=n, size=3 + n) for n in range(queries)))
    sizes = {"packets": rows} | ({"flows": rows // 4} if case == "join" else {})
    inputs = {name: f"{folder / name}?most={most}" for name, most in sizes.items()}
    checkpoint = folder / f"{case}-{queries}-{buckets}"
    job = Job(spark, sql, inputs, checkpoint, buckets=buckets)
    measured = watch(partial(job.start, "1 millisecond"))
    last = Checkpoint(checkpoint).last()
    assert last is not None
    return Measured(*measured, sum(last.totals.rows.values()))


# -- measuring ---------------------------------------------------------------------------------------------------------


def watch(start: Callable[[], Any]) -> tuple[float, float]:
    """The median of the micro-batches' seconds, and the processor seconds of each."""
    before = processor()
    query = start()
    query.processAllAvailable()
    spent = processor() - before
    query.stop()
    worked = [progress for progress in query.recentProgress if progress.numInputRows]
    took = [progress.durationMs["triggerExecution"] / 1_000 for progress in worked]
    return median(took[WARM:]), spent / max(len(took), 1)


def processor() -> float:
    """Processor seconds of this process and all below it, also of those that have ended."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            spent[int(entry.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    here = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in here and pid not in here}:
        here |= more
    return sum(spent[pid] for pid in here)


def figures(
    rows: int, case: str, batches: int, queries: int, buckets: int, session: SparkSession | None = None
) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as name:
        folder = Path(name)
        write_input(folder, rows, batches, KEYS)
        spark = session or open_session("local[2]", SETTINGS)
        try:
            theirs = native(spark, folder, case)
            ours = {number: own(spark, folder, case, rows, number, buckets) for number in sorted({1, queries})}
        finally:
            if session is None:
                spark.stop()
    one = ours[1]
    bound = 0.3 if case == "join" else 0.45 if rows < 1_000_000 else 0.35
    found = [
        Figure(f"{case}, {rows:,} rows: Spark's own, a batch", theirs.seconds, "s"),
        Figure(f"{case}, {rows:,} rows: Millrace, a batch", one.seconds, "s"),
        Figure("Millrace over Spark's own", one.seconds / theirs.seconds, "times", bound),
        Figure("processor, Millrace over Spark's own", one.processor / theirs.processor, "times", 0.6),
        Figure("rows of the result, Millrace over Spark's own", one.rows / max(theirs.rows, 1), "times"),
    ]
    if queries > 1:
        found.append(Figure(f"{queries} queries on one key over one", ours[queries].seconds / one.seconds, "times", 2))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.live", description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000, help="of a micro-batch")
    parser.add_argument("--case", choices=("group", "join"), default="group")
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--queries", type=int, default=1, help="also this many queries on one key")
    parser.add_argument("--buckets", type=int, default=64)
    options = parser.parse_args(argv)
    for figure in figures(options.rows, options.case, options.batches, options.queries, options.buckets):
        sys.stdout.write(f"{figure.line()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
