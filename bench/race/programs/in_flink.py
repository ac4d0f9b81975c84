"""The race's workloads in Flink: SQL over files of CSV, in a local cluster of one slot, started through PyFlink.

The seconds are those of the JVM from the query's start to its end: without the JVM's own start, with the compilation of
its code while it runs.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from pathlib import Path

COLUMNS = {
    "w1": "ts BIGINT, k BIGINT, v BIGINT",
    "w2": "ts BIGINT, a BIGINT, b BIGINT, v BIGINT",
    "w3": "ts BIGINT, src BIGINT, dst BIGINT, sport BIGINT, dport BIGINT, v BIGINT",
    "w4": "ts BIGINT, k BIGINT, v BIGINT",
}
TABLE = """CREATE TABLE {name} ({columns}, t AS TO_TIMESTAMP_LTZ(ts / 1000, 3), WATERMARK FOR t AS t)
WITH ('connector' = 'filesystem', 'path' = 'file://{path}', 'format' = 'csv')"""
SINK = """CREATE TABLE q ({columns}) WITH ('connector' = 'filesystem', 'path' = 'file://{path}', 'format' = 'csv')"""
END = "UNIX_TIMESTAMP(CAST(window_end AS STRING)) * 1000000"
QUERIES = {
    "w1": (
        "k BIGINT, n BIGINT, e BIGINT",
        f"""SELECT k, count(*), {END} FROM TABLE(TUMBLE(TABLE u, DESCRIPTOR(t), INTERVAL '1' SECOND))
        GROUP BY k, window_start, window_end""",
    ),
    "w2": (
        "a BIGINT, b BIGINT, n BIGINT, total BIGINT, e BIGINT",
        f"""SELECT a, b, count(*), sum(v), {END} FROM TABLE(TUMBLE(TABLE s, DESCRIPTOR(t), INTERVAL '10' SECOND))
        GROUP BY a, b, window_start, window_end""",
    ),
    "w3": (
        "n BIGINT, e BIGINT",
        """SELECT count(*), (w + 1) * 10000000 FROM (
        SELECT GREATEST(s.ts, x.ts) / 10000000 AS w FROM s JOIN x ON s.src = x.src AND s.dst = x.dst
        AND s.sport = x.sport AND s.dport = x.dport
        AND s.t BETWEEN x.t - INTERVAL '1' SECOND AND x.t + INTERVAL '1' SECOND) GROUP BY w""",
    ),
    "w4": (
        "k BIGINT, mean DOUBLE, e BIGINT",
        f"""SELECT k, avg(CAST(v AS DOUBLE)), {END}
        FROM TABLE(HOP(TABLE s, DESCRIPTOR(t), INTERVAL '10' SECOND, INTERVAL '1' MINUTE))
        GROUP BY k, window_start, window_end""",
    ),
}


def run(name: str, folder: Path) -> float:
    """The seconds of the query."""
    from pyflink.table import EnvironmentSettings, TableEnvironment

    # The pairs are counted without a window, because a join of times leaves none to a window in Flink.
    batch = name == "w3"
    environment = TableEnvironment.create(
        EnvironmentSettings.in_batch_mode() if batch else EnvironmentSettings.in_streaming_mode()
    )
    settings = environment.get_config()
    settings.set("parallelism.default", "1")
    settings.set("table.local-time-zone", "UTC")
    for table, stream in (("s", "s"), ("x", "t")):
        if (folder / f"{stream}.csv").exists():
            environment.execute_sql(TABLE.format(name=table, columns=COLUMNS[name], path=folder / f"{stream}.csv"))
    if name == "w1":
        environment.execute_sql(
            "CREATE VIEW u AS SELECT k, t FROM s WHERE v < 500 UNION ALL SELECT k, t FROM x WHERE v < 500"
        )
    columns, query = QUERIES[name]
    environment.execute_sql(SINK.format(columns=columns, path=folder / "flink-rows"))
    before = seconds_of_children()
    environment.execute_sql(f"INSERT INTO q {query}").wait()
    return seconds_of_children() - before


def seconds_of_children() -> float:
    """The CPU time of this process' children, the JVM among them, which still run."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    shutil.rmtree(folder / "flink-rows", ignore_errors=True)
    seconds = run(name.partition("-")[0], folder)
    rows = [row for path in sorted((folder / "flink-rows").rglob("*part-*")) for row in csv.reader(path.open())]
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
