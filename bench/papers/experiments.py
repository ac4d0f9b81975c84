"""All figures, in the order in which the page shows them.

A paper is a module that lists its `EXPERIMENTS`; a new paper gets a module and its name below.
"""

from __future__ import annotations

from typing import Final

from bench.papers import eqg, ets, live, nile, oop, oop_joins, promises, slides, upcoming, ups
from bench.papers.claims import Experiment, NotTried

EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    *ets.EXPERIMENTS,
    *eqg.EXPERIMENTS,
    *slides.EXPERIMENTS,
    *nile.EXPERIMENTS,
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
    NotTried(nile.NILE, "section 7.2.3", "the approaches extend to joins of more than two streams", "no figure"),
    NotTried(
        nile.NILE,
        "section 5.2",
        "with a low selectivity the hold buffer may be larger than the input queues of Sync-Filter",
        "no figure",
    ),
    NotTried(
        oop.OOP,
        "figure 9",
        "IOP's processor is half idle when a large table limits its rate",
        "rates are measured in processor time here",
    ),
    NotTried(oop.OOP, "figures 11 to 13", "the same on packets of a real network", "the traces are not available"),
    NotTried(
        ups.UPS, "figure 8", "updates of symbols on a stock exchange are far from uniform", "data of the exchange"
    ),
    NotTried(ups.UPS, "figure 9", "the gain is similar at other loads than 5", "one load is drawn"),
)
