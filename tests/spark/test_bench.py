"""The benchmark of backfills at a small size: all ways emit the same number of rows."""

from __future__ import annotations

from bench import backfill


def test_the_race(spark) -> None:
    """`race` itself compares the number of rows of each way."""
    figures = backfill.race(5_000, 20, spark, tasks=2)
    assert all(figure.value > 0 for figure in figures)
