"""All figures, in the order in which the page shows them.

A paper is a module that lists its `EXPERIMENTS`; a new paper gets a module and its name below.
"""

from __future__ import annotations

from typing import Final

from bench.papers import eqg, ets, held, live, nile, oop, oop_joins, promises, slides, upcoming, ups
from bench.papers.claims import Experiment, NotTried

EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    *ets.EXPERIMENTS,
    *eqg.EXPERIMENTS,
    *slides.EXPERIMENTS,
    *nile.EXPERIMENTS,
    *held.EXPERIMENTS,
    *sorted((*oop.EXPERIMENTS, *oop_joins.EXPERIMENTS), key=lambda experiment: int(experiment.figure)),
    *promises.EXPERIMENTS,
    *ups.EXPERIMENTS,
    *upcoming.EXPERIMENTS,
    *live.EXPERIMENTS,
)

# Claims that are not measured here.
NOT_TRIED: Final[tuple[NotTried, ...]] = (
    NotTried(
        eqg.EQG,
        "section 1",
        "changes of queries and strategies have minimal overhead",
        "the paper has no number; `python -m bench reconfigure` measures ours",
    ),
    NotTried(oop.OOP, "figures 11 to 13", "the same on packets of a real network", "the traces are not available"),
    NotTried(
        ups.UPS, "figure 8", "updates of symbols on a stock exchange are far from uniform", "data of the exchange"
    ),
)
