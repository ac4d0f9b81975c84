"""A value of bytes can be read in each of its spellings, from every text format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.running import run_events, run_script

SQL = "CREATE STREAM s (ts TIMESTAMP, y BYTES) WITH (time = 'ts'); CREATE QUERY q AS SELECT y::text AS t FROM s;"
WRITTEN = {"t": "\\x00ff"}


@pytest.mark.parametrize("spelled", ["AP8=", "\\x00ff", "\\x00FF"])
def test_json(spelled: str, tmp_path: Path) -> None:
    row = {"ts": 1, "y": spelled}
    assert run_events(SQL, [{"stream": "s", "tuple": row}], tmp_path).rows["q"] == [WRITTEN]
    file = tmp_path / "s.jsonl"
    file.write_text(json.dumps(row) + "\n")
    assert run_script(SQL, tmp_path, inputs=[("s", str(file))]).rows["q"] == [WRITTEN]


@pytest.mark.parametrize("spelled", ["00ff", "\\x00ff", "\\x00FF"])
def test_csv(spelled: str, tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    file.write_text(f"ts,y\n1,{spelled}\n")
    assert run_script(SQL, tmp_path, inputs=[("s", str(file))]).rows["q"] == [WRITTEN]
