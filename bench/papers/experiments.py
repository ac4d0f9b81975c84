"""All figures, in the order in which the page shows them.

A paper is a module that lists its `EXPERIMENTS`; a new paper gets a module and its name below.
"""

from __future__ import annotations

from typing import Final

from bench.papers import eqg, ets, live, nile, oop, oop_joins, slides, ups
from bench.papers.claims import Experiment

EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    *ets.EXPERIMENTS,
    *eqg.EXPERIMENTS,
    *slides.EXPERIMENTS,
    *nile.EXPERIMENTS,
    *sorted((*oop.EXPERIMENTS, *oop_joins.EXPERIMENTS), key=lambda experiment: int(experiment.figure)),
    *ups.EXPERIMENTS,
    *live.EXPERIMENTS,
)
