"""The benchmark of backfills at a small size: all ways give as many rows."""

from __future__ import annotations

from bench import backfill


def test_the_race(spark) -> None:
    """`race` itself compares how many rows each way gives."""
    figures = backfill.race(5_000, 20, spark, tasks=2)
    assert all(figure.value > 0 for figure in figures)
