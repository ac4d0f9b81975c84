"""The benchmark of backfills at a small size: all ways give as many rows."""

from __future__ import annotations

from bench import backfill


def test_the_race(spark) -> None:
    """`race` itself compares how many rows each way gives."""
    figures = backfill.race(20_000, 100, spark)
    assert all(figure.value > 0 for figure in figures)
