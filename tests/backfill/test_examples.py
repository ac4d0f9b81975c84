"""The queries of the examples over generated rows: every split has the same rows as `millrace run`."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from millrace.backfill.flow import flow_of
from millrace.engine.plan import StreamDefinition
from millrace.offline.script import load
from millrace.protocol import Type
from millrace.sql import Catalog
from millrace.values.batch import Batch
from tests.backfill.test_equality import differences
from tests.running import run_events

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
# One continues with the server of another file, one needs its module of functions.
NOT_ALONE = {"demo-change.sql", "trips.sql"}
ALONE = sorted(path for path in EXAMPLES.glob("**/*.sql") if path.name not in NOT_ALONE)
BEGIN = 1_767_225_600_000_000
SECOND = 1_000_000


def made_up(stream: StreamDefinition, rng: random.Random) -> list[tuple[int, dict]]:
    """Rows at rising times over five minutes, with values that match each other."""
    rows = []
    for number in range(250):
        at = BEGIN + number * 300 * SECOND // 250 + rng.randrange(SECOND)
        values = {
            Type.BIGINT: rng.randrange(6),
            Type.DOUBLE: rng.choice([0.5, 2.0, 99.25]),
            Type.TEXT: rng.choice(["a", "b", "paid", "error"]),
            Type.BOOLEAN: rng.random() < 0.5,
            Type.TIMESTAMP: at,
            Type.BYTES: b"",
        }
        rows.append(
            (at, {field.name: at if field.name == stream.time else values[field.type] for field in stream.schema})
        )
    return rows


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.name)
def test_the_queries_of_an_example(path, tmp_path):
    script = load(str(path))
    rng = random.Random(path.name)
    rows = {name: made_up(stream, rng) for name, stream in script.streams.items()}
    events = [{"at": at, "stream": name, "tuple": row} for name, own in rows.items() for at, row in own]
    result = run_events(path.read_text(), sorted(events, key=lambda event: event["at"]), tmp_path)
    catalog = Catalog(script.streams, script.queries)
    ways: Counter[str] = Counter()
    for name in script.queries:
        flow = flow_of(catalog, name)
        inputs = {}
        for one, stream in flow.streams.items():
            own = sorted(rows.get(one, ()), key=lambda row: row[0])
            values = [tuple(row.values()) for _, row in own]
            inputs[one] = Batch.from_rows(stream.schema, values, [at for at, _ in own])
        more, found = differences(flow, inputs, result.rows[name])
        assert not found
        ways += more
    assert ways["one"]
