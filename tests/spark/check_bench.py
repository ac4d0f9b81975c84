"""The race of live queries runs, at a small size."""

from __future__ import annotations

import pytest

from bench import live


@pytest.mark.parametrize("case", ["group", "join"])
def test_the_race_of_live_queries(spark, case, monkeypatch):
    monkeypatch.setattr(live, "WARM", 1)
    figures = live.figures(2_000, case, 5, 2 if case == "group" else 1, 4, spark)
    assert all(figure.value > 0 for figure in figures)
