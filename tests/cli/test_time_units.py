"""A stream's unit on the command line: files that are fed, and where the option is shown."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.client.arrow import to_stream

NOW_S = 1_770_588_380
PER_SECOND = {"us": 10**6, "ms": 10**3, "s": 1, "ns": 10**9}
WHOLE = ["2026-02-08T22:06:20Z", "2026-02-08T22:06:21Z"]


@pytest.fixture(scope="module")
def units(server):
    """A stream and a query per unit."""
    statements = [
        f"CREATE STREAM in_{unit} (ts TIMESTAMP, k BIGINT)"
        f" WITH (time = 'ts', time_unit = '{unit}', disorder = '1 day');"
        f"CREATE QUERY q_{unit} AS SELECT ts, k FROM in_{unit};"
        for unit in PER_SECOND
    ]
    assert server.millrace("sql", "".join(statements)).returncode == 0
    return server


def write(path, times):
    columns = {"ts": times, "k": list(range(len(times)))}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".arrow":
        path.write_bytes(to_stream(pa.table(columns)))
    elif path.suffix == ".csv":
        path.write_text("ts,k\n" + "".join(f"{row['ts']},{row['k']}\n" for row in rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def fed(server, unit, path):
    """The times that a file adds to a stream."""
    before = server.json("query", "show", f"q_{unit}")["next_sequence"]
    done = server.millrace("feed", f"in_{unit}", path)
    assert done.returncode == 0, done.stderr
    count = server.json("query", "show", f"q_{unit}")["next_sequence"] - before
    lines = server.millrace("tail", f"q_{unit}", "--from", str(before), "--limit", str(count)).stdout.splitlines()
    return [json.loads(line)["ts"] for line in lines]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet", "arrow"])
@pytest.mark.parametrize("unit", PER_SECOND)
def test_a_fed_file_counts_in_the_streams_unit(units, tmp_path, unit, ending):
    times = [NOW_S * PER_SECOND[unit], (NOW_S + 1) * PER_SECOND[unit]]
    assert fed(units, unit, write(tmp_path / f"s.{ending}", times)) == WHOLE


@pytest.mark.parametrize("unit", PER_SECOND)
def test_typed_times_and_text_mean_the_same_in_every_unit(units, tmp_path, unit):
    typed = np.array([NOW_S, NOW_S + 1], "datetime64[s]")
    assert fed(units, unit, write(tmp_path / "s.parquet", typed)) == WHOLE
    fine = [*WHOLE[:1], "2026-02-08T22:06:20.000001Z"]
    assert fed(units, unit, write(tmp_path / "s.jsonl", fine)) == fine  # finer than seconds, and nothing is lost


def test_fractions_of_seconds_are_fed(units, tmp_path):
    assert fed(units, "s", write(tmp_path / "s.csv", [NOW_S + 0.25])) == ["2026-02-08T22:06:20.250000Z"]


def test_a_fed_file_in_another_unit_is_refused_with_the_place_and_the_option(units, tmp_path):
    done = units.millrace("feed", "in_s", write(tmp_path / "s.csv", [NOW_S, NOW_S * 1_000]))
    assert done.returncode == 1
    assert "s.csv, line 3, field ts: expected a time from 0001-01-01T00:00:00Z" in done.stderr
    assert f"got {NOW_S * 1_000} seconds (" in done.stderr
    assert "or declare the stream WITH (time_unit = 'ms')" in done.stderr
    done = units.millrace("feed", "in_ms", write(tmp_path / "s.csv", [NOW_S]))
    assert done.returncode == 1
    assert "row 1: field ts: expected milliseconds since 1970, got 1770588380, which is 1970-01-21" in done.stderr
    assert "or declare the stream WITH (time_unit = 's')" in done.stderr


def test_the_option_is_shown_where_it_is_not_the_default(units):
    shown = {unit: units.millrace("stream", "show", f"in_{unit}").stdout for unit in PER_SECOND}
    assert "time unit" not in shown["us"]
    assert all(f"time unit    {unit}" in shown[unit] for unit in ("ms", "s", "ns")), shown["ms"]
    assert "time_unit" not in units.millrace("sql", "DESCRIBE in_us").stdout
    assert "time_unit" in units.millrace("sql", "DESCRIBE in_ms").stdout
    assert "in milliseconds" in units.millrace("sql", "EXPLAIN q_ms").stdout


def test_an_export_applied_again_changes_nothing_until_the_unit_differs(units, tmp_path):
    exported = units.millrace("export").stdout
    assert "time_unit = 'ms'" in exported
    path = tmp_path / "all.sql"
    path.write_text(exported)
    assert all(statement["unchanged"] for statement in units.json("apply", str(path))["statements"])
    path.write_text("CREATE OR REPLACE STREAM in_ns (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', time_unit = 's');")
    plan = units.millrace("apply", "--plan", str(path))
    assert plan.returncode == 0, plan.stderr
    assert "in_ns" in plan.stdout
    assert units.json("stream", "show", "in_ns")["time_unit"] == "ns"
