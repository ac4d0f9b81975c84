"""The papers' claims compared with measurements: `docs/figures/claims.csv`.

Rule: the file contains the rows of the last run of every experiment. A run replaces the rows of the figures that it
draws and keeps the others. `docs/figures/README.md` is generated from the file and the experiments' descriptions alone.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

SEEDS: Final = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of a paper (or one that must hold here), its expected and its measured values."""

    claim: str
    expected: str
    measured: str
    holds: bool


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """The result of an experiment: its claims, and a function that draws its figure."""

    claims: Sequence[Claim]
    draw: Callable[[Figure], None]


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper, with the short name used in file names."""

    short: str
    title: str
    authors: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """A figure of a paper.

    run      runs it with the arrivals of one seed
    seeds    the seeds of a full run; a figure of formulas alone needs one
    setting  the configuration of the run
    says     the paper's figure
    remark   where and why we differ, or how to read it
    """

    paper: Paper
    figure: str
    title: str
    setting: str
    says: str
    remark: str
    run: Callable[[int], ExperimentResult]
    wide: bool = False
    seeds: Sequence[int] = SEEDS

    @property
    def name(self) -> str:
        return f"{self.paper.short}-{self.figure}"


@dataclass(frozen=True, slots=True)
class NotTried:
    """A claim of a paper that is not measured, and why."""

    paper: Paper
    place: str
    claim: str
    reason: str


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the file. A claim holds if it holds for every seed; `seeds` is the number of those for which it does."""

    paper: str
    figure: str
    claim: str
    expected: str
    measured: str
    holds: str
    seeds: str

    @property
    def name(self) -> str:
        """The experiment's."""
        return f"{self.paper}-{self.figure}"


INTRODUCTION: Final = (
    "`make figures` (`python -m bench.papers`) draws these figures: Millrace's engine under a virtual clock, with "
    "arrivals drawn from five fixed seeds. The same sources produce the same numbers. Where a figure measures the "
    "machine instead, its text says so, and it is measured five times. A line shows the first seed, the band around it "
    "reaches from the least to the most of all. A claim holds if it holds for every seed. The table shows the first "
    "seed's numbers, or those of the first seed for which the claim does not hold. A figure of formulas and evenly "
    "spaced arrivals, which no seed changes, is run once. The claims are also in [claims.csv](claims.csv)."
)
COLUMNS: Final = tuple(field.name for field in fields(Row))


# -- numbers in claims -----------------------------------------------------------------------------------------------


def percent(share: float) -> str:
    return f"{share * 100:.4g} %"


def milliseconds(value: float) -> str:
    return f"{value:,.3g} ms" if value < 100 else f"{value:,.0f} ms"


def falling(values: Sequence[float]) -> bool:
    return all(before > after for before, after in pairwise(values))


# -- the file ----------------------------------------------------------------------------------------------------------


def rows_of(experiment: Experiment, results: Mapping[int, ExperimentResult]) -> list[Row]:
    """One row per claim, over the results of all seeds."""
    paper, figure = experiment.paper.short, experiment.figure
    rows = []
    for claims in zip(*(result.claims for result in results.values()), strict=True):
        assert len({claim.claim for claim in claims}) == 1
        first = claims[0]
        missed = [(seed, claim) for seed, claim in zip(results, claims, strict=True) if not claim.holds]
        measured = f"seed {missed[0][0]}: {missed[0][1].measured}" if missed and first.holds else first.measured
        seeds = f"{len(claims) - len(missed)} of {len(claims)}"
        rows.append(Row(paper, figure, first.claim, first.expected, measured, "no" if missed else "yes", seeds))
    return rows


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [Row(*(line[name] for name in COLUMNS)) for line in csv.DictReader(file)]


def merged(earlier: Iterable[Row], new_rows: Mapping[str, Sequence[Row]], order: Sequence[Experiment]) -> list[Row]:
    """The rows of this run and the earlier rows of all other experiments, in the experiments' order."""
    by_name: dict[str, list[Row]] = {}
    for row in earlier:
        by_name.setdefault(row.name, []).append(row)
    by_name.update({name: list(rows) for name, rows in new_rows.items()})
    return [row for experiment in order for row in by_name.get(experiment.name, [])]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        lines.writerows(astuple(row) for row in rows)


# -- the page ----------------------------------------------------------------------------------------------------------


def page(
    experiments: Sequence[Experiment],
    rows: Sequence[Row],
    ideas: Sequence[tuple[Paper, str]] = (),
    not_tried: Sequence[NotTried] = (),
) -> str:
    """README.md: the papers' ideas, then every drawn figure, with its setting, the paper's statement and the values."""
    parts = ["# The papers' figures"]
    for paper, text in ideas:
        parts += [f"**{paper.short.upper()}.** {text}", f"![{text}]({idea_file(paper)})"]
    parts += [INTRODUCTION, _verdict(rows, not_tried)]
    shown: Paper | None = None
    for experiment in experiments:
        own = [row for row in rows if row.name == experiment.name]
        if own and experiment.paper != shown:
            shown = experiment.paper
            parts.append(f"## {shown.short.upper()}: {shown.title}")
            parts.append(f"By {shown.authors}.")
        if own:
            parts += _section(experiment, own)
    return "\n\n".join(parts) + "\n"


def idea_file(paper: Paper) -> str:
    return f"idea-{paper.short}.png"


def _verdict(rows: Sequence[Row], not_tried: Sequence[NotTried]) -> str:
    """The numbers of claims that hold, do not hold and were not tried, and lists of the last two."""
    missed = [f"- {row.paper.upper()}, figure {row.figure}: {row.claim}" for row in rows if row.holds != "yes"]
    held, tried = len(rows) - len(missed), len(rows)
    counts = f"{held} hold, {len(missed)} do not hold, and {len(not_tried)} were not tried"
    parts = [f"Of {tried + len(not_tried)} claims {counts}."]
    if missed:
        parts += ["", "These do not hold; the remark below each figure says why:", "", *missed]
    if not_tried:
        parts += ["", "These were not tried:", ""]
        parts += [
            f"- {claim.paper.short.upper()}, {claim.place}: {claim.claim} ({claim.reason})" for claim in not_tried
        ]
    return "\n".join(parts)


def _section(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    table = ["| claim | expected | measured | holds | seeds |", "|---|---|---|---|---|"]
    table += [
        f"| {_cell(row.claim)} | {_cell(row.expected)} | {_cell(row.measured)} | {_holds(row)} | {row.seeds} |"
        for row in rows
    ]
    parts = [
        f"### Figure {experiment.figure}: {experiment.title}",
        f"![{experiment.title}]({experiment.name}.png)",
        f"**What was run.** {experiment.setting}",
        f"**The paper says:** {experiment.says}",
        "\n".join(table),
    ]
    return [*parts, f"**Remark.** {experiment.remark}"] if experiment.remark else parts


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _holds(row: Row) -> str:
    return row.holds if row.holds == "yes" else f"**{row.holds}**"
