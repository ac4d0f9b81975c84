"""Packages: whatever rows are read together, each task gets its rows in order, each once."""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.backfill import packing
from millrace.backfill.assign import first_and_last, key_numbers
from millrace.backfill.job import flow_of_text, job_of
from millrace.backfill.packing import by_arrival, by_time, packages_of
from millrace.backfill.splitting import Extent, Slice, Split, plan_split
from millrace.formats.arrow import read_table, to_arrow
from millrace.protocol import Schema
from millrace.values.batch import Batch
from millrace.values.expression import Column
from tests.backfill.local import packed
from tests.depth import examples

T = "CREATE STREAM t (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '1 hour');"
U = "CREATE STREAM u (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '1 hour');"
BOTH = "SELECT t.k FROM t JOIN u ON t.k = u.k AND u.ts BETWEEN t.ts AND t.ts + INTERVAL '3 us'"
TIMES = st.lists(st.integers(0, 30), max_size=40)


def batch_of(flow, name: str, times: list[int]) -> Batch:
    """Rows of these times, numbered in `k`."""
    ts = np.array(times, np.int64)
    return Batch(flow.streams[name].schema, ts, [ts, np.arange(len(ts))])


def merged(job, number: int, packages, merge) -> list[tuple[str, int, int, int]]:
    """Each row of a task: its stream, time, number and arrival."""
    made = []
    for chunk in merge(job.lanes, packages_of(packages)):
        for name, batch in chunk.items():
            made += [
                (name, ts, row[1], arrival)
                for ts, row, arrival in zip(batch.ts.tolist(), batch.rows(), batch.arrival.tolist(), strict=True)
            ]
    return made


@pytest.fixture(autouse=True)
def few_rows_together(monkeypatch):
    monkeypatch.setattr(packing, "CHUNK", 3)


@given(TIMES, TIMES, st.integers(1, 9), st.sampled_from(["key", "time"]), st.integers(1, 4))
@settings(max_examples=examples(100), deadline=None)
def test_rows_in_order_of_time(one, other, together, mode, tasks):
    flow = flow_of_text(T + U + BOTH)
    inputs = {"t": batch_of(flow, "t", one), "u": batch_of(flow, "u", other)}
    split = plan_split(flow, Extent(0, 31), mode=mode if tasks > 1 else "auto", tasks=tasks)
    job = job_of(flow, split)
    for number, packages in enumerate(packed(job, inputs, together)):
        expected = []
        for name, batch in inputs.items():
            for at, ts in enumerate(batch.ts.tolist()):
                if number in tasks_of(split, name, batch, at):
                    expected.append((name, ts, at, ts))
        got = merged(job, number, packages, by_time)
        # Streams may take turns; each one's rows are in order, and no chunk goes back.
        for name in inputs:
            own = [row for row in got if row[0] == name]
            assert own == sorted((row for row in expected if row[0] == name), key=lambda row: (row[1], row[2]))
        assert len(got) == len(expected)


def tasks_of(split: Split, name: str, batch: Batch, at: int) -> set[int]:
    if split.how == "one":
        return {0}
    if split.how == "key":
        return {int(key_numbers(batch, split.keys[name], split.tasks)[at])}
    first, last = first_and_last(batch.ts, split.slices, split.reach(name))
    return set(range(int(first[at]), int(last[at]) + 1))


@given(TIMES, TIMES, st.integers(1, 9))
@settings(max_examples=examples(100), deadline=None)
def test_no_chunk_goes_back_in_time(one, other, together):
    flow = flow_of_text(T + U + BOTH)
    job = job_of(flow, plan_split(flow, Extent(0, 31)))
    (packages,) = packed(job, {"t": batch_of(flow, "t", one), "u": batch_of(flow, "u", other)}, together)
    newest = -1
    for chunk in by_time(job.lanes, packages_of(packages)):
        times = list(chain.from_iterable(batch.ts.tolist() for batch in chunk.values()))
        assert min(times) > newest  # equal times come together
        newest = max(times)


@given(TIMES, TIMES, st.integers(1, 9))
@settings(max_examples=examples(100), deadline=None)
def test_rows_in_the_order_of_their_arrival(one, other, together):
    counted = "CREATE QUERY c AS SELECT sum(k) AS s FROM t [ROWS 2 SLIDE 1]; CREATE QUERY q AS "
    counted += "SELECT c.s FROM c [RANGE '1 hour'] JOIN u [RANGE '1 hour'] ON c.s = u.k"
    flow = flow_of_text(T + U + counted)
    inputs = {"t": batch_of(flow, "t", one), "u": batch_of(flow, "u", other)}
    job = job_of(flow, plan_split(flow, Extent(0, 31)))
    (packages,) = packed(job, inputs, together)
    got = merged(job, 0, packages, by_arrival)
    for name, times in (("t", one), ("u", other)):
        expected = [(name, ts, at, min(times[at:])) for at, ts in enumerate(times)]
        assert [row for row in got if row[0] == name] == expected
    # Streams come together by what may still come: none is ahead of the other by more than a chunk.
    arrivals = [arrival for *_, arrival in got]
    for name in ("t", "u"):
        own = [arrival for stream, *_, arrival in got if stream == name]
        assert own == sorted(own)
    assert len(arrivals) == len(one) + len(other)


def test_packages_are_sorted_by_spark_only_by_their_first_key():
    """A package whose rows reach far ahead is held until their time has come."""
    flow = flow_of_text(T + "SELECT k FROM t")
    job = job_of(flow, Split("one", (Slice(),), plan_split(flow, None).margins, ""))
    (packages,) = packed(job, {"t": batch_of(flow, "t", [0, 90, 91, 1, 2, 3, 4, 5, 6, 7, 8, 95])}, 3)
    seen = []

    def read():
        for package in packages_of(packages):
            seen.append(package.first)
            yield package

    first = next(by_time(job.lanes, read()))
    assert first["t"].ts.tolist() == [0]
    assert seen == [0, 1]


def test_equal_keys_have_equal_numbers_however_they_are_held():
    """Rows of a stream whose key is a column meet rows of another whose key is computed."""
    schema = Schema.of(n="bigint", t="text", y="bytes", b="boolean", d="double")
    rng = random.Random(1)
    rows = [
        (rng.choice([None, -5, 0, 2**62]), rng.choice([None, "", "ä", "a\x1f"]), rng.choice([None, b"", b"\x00\xff"]),
         rng.choice([None, True, False]), rng.choice([None, 0.0, -0.0, 2.5]))
        for _ in range(300)
    ]  # fmt: skip
    plain = Batch.from_rows(schema, rows, range(len(rows)))
    columns, valid = read_table(to_arrow(plain), schema.fields, False)
    shared = Batch(schema, plain.ts, columns, valid)
    keys = [Column(field.type, True, at, field.name) for at, field in enumerate(schema)]
    for chosen in ([keys[0]], [keys[1]], [keys[4]], [keys[2], keys[1]], keys):
        numbers = key_numbers(plain, chosen, 101)
        assert numbers.tolist() == key_numbers(shared, chosen, 101).tolist()
        by_value: dict[tuple, int] = {}
        for row, number in zip(rows, numbers.tolist(), strict=True):
            value = tuple(row[key.position] for key in chosen)
            assert by_value.setdefault(value, number) == number
        assert len(set(by_value.values())) > 1
