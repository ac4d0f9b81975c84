"""Nexmark's queries without state over the benchmark's own bids, compared with the rows of another engine."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from millrace.engine.plan import QueryPlan
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.project.spec import MapSpec
from millrace.protocol.timestamps import parse_timestamp
from millrace.sql import Catalog, CreateStream, parse, plan_all
from millrace.values.batch import Batch
from millrace.values.evaluate import compile_expression, compile_predicate

FOLDER = Path(__file__).parents[1] / "conformance" / "nexmark"
BID = """
CREATE STREAM bid (date_time TIMESTAMP, auction BIGINT, bidder BIGINT, price BIGINT, channel TEXT, url TEXT, extra TEXT)
  WITH (timestamps = 'external', time = 'date_time');
"""
QUERIES = {
    "q0": "SELECT auction, bidder, price, date_time FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction IN (1007, 1020, 2001, 2019, 2087)",
    "q10": """
        SELECT auction, bidder, price, date_time,
               to_char(date_time, 'YYYY-MM-DD') AS date, to_char(date_time, 'HH:MI') AS time
        FROM bid""",
    "q21": """
        SELECT auction, bidder, price, channel,
               CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
                 WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
                 ELSE regexp_substr(url, '(?:&|^|\\?)channel_id=([^&]*)', 1, 1, '', 1) END AS channel_id
        FROM bid
        WHERE regexp_substr(url, '(?:&|^|\\?)channel_id=([^&]*)', 1, 1, '', 1) IS NOT NULL
           OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
}


def bids(catalog: Catalog) -> Batch:
    rows = [json.loads(line) for line in (FOLDER / "data" / "bid.jsonl").read_text("utf-8").splitlines()]
    names = ["ts_us", "auction", "bidder", "price", "channel", "url", "extra"]
    tuples = [tuple(row[name] for name in names) for row in rows]
    return Batch.from_rows(catalog.streams["bid"].schema, tuples, [row["ts_us"] for row in rows])


def run(query: QueryPlan, batch: Batch) -> Batch:
    """A plan of consecutive selects and maps, without an engine."""
    for node in query.nodes:
        match node.spec:
            case SelectSpec(predicate):
                passing, errors = compile_predicate(predicate)(batch)
                assert errors is None
                batch = batch if passing is None else batch.take(passing)
            case MapSpec(columns):
                computed = [compile_expression(column)(batch) for _, column in columns]
                assert all(column.error is None for column in computed)
                schema = node.spec.schema([batch.schema])
                batch = Batch(
                    schema, batch.ts, [column.values for column in computed], [column.valid for column in computed]
                )
    return batch


def as_written(value: str, name: str) -> Any:
    if name == "date_time":
        return parse_timestamp(value)
    return int(value) if name in ("auction", "bidder", "price") else value or None


@pytest.mark.parametrize("name", QUERIES)
def test_rows_are_the_peers(name: str) -> None:
    planned, catalog = plan_all(parse(BID + QUERIES[name]), Catalog())
    assert isinstance(planned[0], CreateStream)
    query = planned[1]
    assert isinstance(query, QueryPlan)
    with (FOLDER / "expected" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    expected = [tuple(as_written(value, column) for value, column in zip(line, header, strict=True)) for line in lines]
    assert query.schema.names == tuple(header)
    assert sorted(run(query, bids(catalog)).rows()) == sorted(expected)
