"""The race's workloads at a small size: equal rows everywhere, files that hold the same tuples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from bench.race import inprocess
from bench.race.workloads import FORMATS, WORKLOADS, digest, digest_of_rows, files


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_engine_against_duckdb(name: str) -> None:
    """`against_duckdb` itself compares the rows of both."""
    engine, duckdb, ratio = inprocess.against_duckdb(name, 20_000, repeats=1)
    assert min(engine.value, duckdb.value, ratio.value) > 0


@pytest.mark.parametrize("kind", FORMATS)
def test_files_hold_the_tuples(tmp_path: Path, kind: str) -> None:
    workload = WORKLOADS["w3"]
    for name, path in files(workload, tmp_path, kind, 2_000).items():
        if kind == "parquet":
            table = pyarrow.parquet.read_table(path)
        elif kind == "arrow":
            table = pa.ipc.open_file(path).read_all()
        else:
            table = pa.Table.from_pylist([json.loads(line) for line in path.read_text().splitlines()])
        assert table.equals(workload.streams(2_000)[name].table())


def test_the_same_seed_makes_the_same_tuples() -> None:
    for workload in WORKLOADS.values():
        first, again, other = (workload.streams(1_000, seed) for seed in (1, 1, 2))
        assert sum(map(len, first.values())) == 1_000
        for name, stream in first.items():
            assert all(map(np.array_equal, stream.columns, again[name].columns))
            assert not all(map(np.array_equal, stream.columns, other[name].columns))


def test_a_digest_depends_on_the_rows_but_not_on_their_order() -> None:
    rows = [(1, 2.5), (1, 2.25), (0, 9.0)]
    assert digest_of_rows(rows) == digest_of_rows(rows[::-1])
    assert digest_of_rows(rows) == digest([np.array([0, 1, 1], np.int32), np.array([9.0, 2.25, 2.5])])
    assert digest_of_rows(rows) != digest_of_rows(rows[:2])
    assert digest_of_rows(rows) != digest_of_rows([(1, 2.5), (1, 2.25), (0, 9.5)])
