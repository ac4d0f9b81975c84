"""In a backfill too, numbers in a stream's time field count in its unit: the rows are the same as of `millrace run`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.backfill import backfill
from millrace.backfill.inputs import find_input
from millrace.backfill.job import flow_of_text
from millrace.backfill.layout import OWN_TIME
from millrace.backfill.running import BackfillRequest, start
from millrace.backfill.verifying import read_backfill
from millrace.protocol import MillraceError
from millrace.protocol.units import UNITS
from tests.comparison import same_rows
from tests.running import run_script

NOW_S = 1_770_588_380
PER_SECOND = {"us": 10**6, "ms": 10**3, "s": 1, "ns": 10**9}
# Before 1970 and after, whole and with a rest: nanoseconds are rounded down.
INTEGERS = {
    "us": [NOW_S * 10**6 + 7, -1_500_001, 0],
    "ms": [NOW_S * 10**3 + 7, -1_501, 0],
    "s": [NOW_S, -2, 0],
    "ns": [NOW_S * 10**9 + 1_999, -1_500_000_001, -1],
}
FLOATS = {"ms": [NOW_S * 1_000 + 0.25, -1.75, 2.5], "s": [NOW_S + 0.123456, -0.5, 1.0]}
CASES = [*INTEGERS.items(), *FLOATS.items()]


def script(unit: str) -> str:
    return (
        f"CREATE STREAM s (ts TIMESTAMP, k BIGINT, at TIMESTAMP) WITH (time = 'ts', time_unit = '{unit}');"
        "CREATE QUERY q AS SELECT ts, k, at FROM s"
    )


def write(ending: str, times: list, folder: Path) -> Path:
    path = folder / f"s.{ending}"
    if ending == "parquet":
        at = pa.array([5] * len(times))
        pq.write_table(pa.table({"ts": times, "k": list(range(len(times))), "at": at}), path)
    elif ending == "csv":
        path.write_text("ts,k,at\n" + "".join(f"{time},{k},5\n" for k, time in enumerate(times)))
    else:
        rows = ({"ts": time, "k": k, "at": 5} for k, time in enumerate(times))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(text: str, path: Path, out: Path) -> list[dict]:
    flow = flow_of_text(text)
    start(
        BackfillRequest(flow, {"s": find_input(flow, "s", str(path))}, str(out)),
        lambda line: None,
        lambda done, total: None,
    )
    return [{name: value for name, value in row.items() if name != OWN_TIME} for row in read_backfill(str(out))]


@pytest.mark.parametrize(("unit", "times"), CASES)
def test_files_have_the_rows_of_millrace_run(spark, unit, times, tmp_path):
    for ending in ("parquet", "csv", "jsonl"):
        # ISO text between numbers, where a file can have it.
        path = write(ending, times if ending == "parquet" else [*times, "2026-02-08T22:06:23Z"], tmp_path)
        rows = run_script(script(unit), tmp_path, inputs=[("s", str(path))], sorted=True).rows["q"]
        wanted = [UNITS[unit].micros(time) for time in times]
        assert sorted(row["ts"] for row in rows)[: len(times) - 1] == sorted(wanted)[: len(times) - 1]
        assert same_rows(rows_of(script(unit), path, tmp_path / ending), rows) is None


@pytest.mark.parametrize("kind", ["s", "ms", "us", "ns"])
def test_typed_times_mean_what_they_say(spark, kind, tmp_path):
    times = np.array([NOW_S, NOW_S + 1], "datetime64[s]").astype(f"datetime64[{kind}]")
    path = tmp_path / "s.parquet"
    pq.write_table(pa.table({"ts": times, "k": [1, 2], "at": [5, 5]}), path)
    rows = rows_of(script("ms"), path, tmp_path / "out")
    assert sorted(row["ts"] for row in rows) == [NOW_S * 10**6, (NOW_S + 1) * 10**6]


@pytest.mark.parametrize(("unit", "times"), CASES)
def test_dataframes_count_in_the_unit(spark, unit, times):
    frame = spark.createDataFrame([(time, k, 5) for k, time in enumerate(times)], ["ts", "k", "at"])
    made = backfill(spark, script(unit), frame, tasks=1).toArrow()
    assert sorted(made["ts"].cast(pa.int64()).to_pylist()) == sorted(UNITS[unit].micros(time) for time in times)


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_a_number_beyond_event_time_is_refused_with_the_likely_unit(ending, tmp_path):
    path = write(ending, [NOW_S, NOW_S * 1_000], tmp_path)
    with pytest.raises(MillraceError) as refused:
        find_input(flow_of_text(script("s")), "s", str(path))
    assert "field ts: expected a time from 0001-01-01T00:00:00Z to 9999-" in refused.value.text
    assert f"got {NOW_S * 1_000} seconds (" in refused.value.text
    assert "it looks like milliseconds (2026-02-08T22:06:20Z)" in refused.value.text


def test_a_column_of_another_type_is_refused(tmp_path):
    path = tmp_path / "s.parquet"
    pq.write_table(pa.table({"ts": ["now"], "k": [1], "at": [5]}), path)
    with pytest.raises(MillraceError, match="column ts: expected timestamp, got string"):
        find_input(flow_of_text(script("s")), "s", str(path))
