"""Memory under an endless supply of new text keys: `python -m bench.memory SECONDS KEYS` prints samples.

It runs in a separate process, so that memory of other benchmarks does not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from bench.engine import engine_with
from bench.figure import Figure
from millrace.engine.events import Arrived, Deliver
from millrace.operators.frame.operator import Operator
from millrace.protocol import Schema, Type
from millrace.values.batch import Batch, column_of

COUNTED: Final = """
CREATE STREAM s (ts TIMESTAMP, k TEXT) WITH (time = 'ts');
CREATE QUERY q AS SELECT k, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '10 seconds') GROUP BY k;
"""
WINDOW_S: Final = 10


def resident_bytes() -> int:
    """The resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def windows(seconds: int, keys: int) -> Iterator[Operator]:
    """Feed `keys` new keys per second, each twice; yield the aggregate after every ten seconds."""
    engine = engine_with(COUNTED)
    schema = engine.streams_by_name["s"].definition.schema
    (aggregate,) = (operator for operator in engine.graph.operators.values() if operator.kind == "aggregate")
    for second in range(seconds):
        effects = engine.step(second, [Arrived("s", "bench", _second(schema, second, keys))], budget=1 << 60)
        closed = sum(len(order.batch) for order in effects.orders if isinstance(order, Deliver))
        assert closed == (WINDOW_S * keys if second and second % WINDOW_S == 0 else 0)
        if second % WINDOW_S == WINDOW_S - 1:
            yield aggregate


def _second(schema: Schema, second: int, keys: int) -> Batch:
    texts = [f"key {second:05}-{number:05}" for number in range(keys)]  # of one length: they count as state
    ts = second * 1_000_000 + np.arange(2 * keys) * (500_000 // keys)
    return Batch(schema, ts, [ts, column_of(Type.TEXT, [*texts, *texts])])


def endless_keys(seconds: int, keys: int) -> list[Figure]:
    """The peak memory after the first minute of event time, as a multiple of the peak before."""
    command = [sys.executable, "-m", "bench.memory", str(seconds), str(keys)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    start, samples = json.loads(done.stdout)
    minute = 60 // WINDOW_S
    grown = [resident - start for resident, _ in samples]
    states = [state for _, state in samples]
    name = f"{seconds:,} s of {keys:,} new text keys each"
    return [
        Figure(
            f"{name}: state", max(states[minute:]) / max(states[:minute]), "times", 1.05, note="of the first minute"
        ),
        Figure(f"{name}: process", max(grown[minute:]) / max(grown[:minute]), "times", 1.1, note="of the first minute"),
        Figure(f"{name}: process grew by", max(grown) / 1e6, "MB"),
    ]


if __name__ == "__main__":
    began = resident_bytes()
    samples = [(resident_bytes(), aggregate.state_bytes) for aggregate in windows(int(sys.argv[1]), int(sys.argv[2]))]
    print(json.dumps([began, samples]))
