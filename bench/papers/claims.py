"""What the papers say against what was measured: `docs/figures/claims.csv`.

Rule: the file holds the rows of the last run of every experiment; a run replaces the rows of the figures it draws and
keeps the others. `docs/figures/README.md` is made of it and of the experiments' descriptions, and of nothing else.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of a paper (or one that must hold here), what was expected of it and what was measured."""

    claim: str
    expected: str
    measured: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Found:
    """What an experiment found: its claims, and how its figure is drawn."""

    claims: Sequence[Claim]
    draw: Callable[[Figure], None]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A figure of a paper.

    setting  what was run
    says     what the paper says
    remark   where and why we differ, or how to read it
    """

    paper: str
    figure: str
    title: str
    setting: str
    says: str
    remark: str
    run: Callable[[], Found]
    wide: bool = False

    @property
    def name(self) -> str:
        return f"{self.paper}-{self.figure}"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the file."""

    paper: str
    figure: str
    claim: str
    expected: str
    measured: str
    holds: str


INTRODUCTION: Final = (
    "Made by `make figures` (`python -m bench.papers`): Millrace's engine under a virtual clock, with Poisson arrivals "
    "from fixed seeds, so the same sources give the same numbers. The claims are also in [claims.csv](claims.csv)."
)
TITLES: Final = (
    "**ETS** is *Optimizing Timestamp Management in Data Stream Management Systems*, **EQG** is *A Flexible Query "
    "Graph Based Model for the Efficient Execution of Continuous Queries*, both by Bai, Thakkar, Wang and Zaniolo."
)
COLUMNS = tuple(field.name for field in fields(Row))


def rows_of(experiment: Experiment, claims: Iterable[Claim]) -> list[Row]:
    return [
        Row(
            experiment.paper, experiment.figure, made.claim, made.expected, made.measured, "yes" if made.holds else "no"
        )
        for made in claims
    ]


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [Row(*(line[name] for name in COLUMNS)) for line in csv.DictReader(file)]


def merged(kept: Iterable[Row], made: Mapping[str, Sequence[Row]], order: Sequence[Experiment]) -> list[Row]:
    """The rows of this run, and those of the experiments that were not run, in the experiments' order."""
    by_name: dict[str, list[Row]] = {}
    for row in kept:
        by_name.setdefault(f"{row.paper}-{row.figure}", []).append(row)
    by_name.update({name: list(rows) for name, rows in made.items()})
    return [row for experiment in order for row in by_name.get(experiment.name, [])]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        lines.writerows(astuple(row) for row in rows)


def page(experiments: Sequence[Experiment], rows: Sequence[Row]) -> str:
    """README.md: every figure that was drawn, with what was run, said and measured."""
    shown = [(experiment, [row for row in rows if _is_of(row, experiment)]) for experiment in experiments]
    held = sum(row.holds == "yes" for row in rows)
    parts = ["# The papers' figures", INTRODUCTION, f"Of {len(rows)} claims {held} hold.", TITLES]
    parts += [_section(experiment, own) for experiment, own in shown if own]
    return "\n\n".join(parts) + "\n"


def _is_of(row: Row, experiment: Experiment) -> bool:
    return (row.paper, row.figure) == (experiment.paper, experiment.figure)


def _section(experiment: Experiment, rows: Sequence[Row]) -> str:
    table = ["| claim | expected | measured | holds |", "|---|---|---|---|"]
    table += [
        f"| {_cell(row.claim)} | {_cell(row.expected)} | {_cell(row.measured)} | {_cell(row.holds)} |" for row in rows
    ]
    parts = [
        f"## {experiment.paper.upper()}, figure {experiment.figure}: {experiment.title}",
        f"![{experiment.title}]({experiment.name}.png)",
        f"**Setting.** {experiment.setting}",
        f"**The paper says:** {experiment.says}",
        "\n".join(table),
    ]
    if experiment.remark:
        parts.append(experiment.remark)
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
