"""`python -m bench.papers [NAME...]`: all figures, or those whose name starts with one of the words."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from bench.papers.claims import (
    Experiment,
    ExperimentResult,
    Paper,
    Row,
    idea_file,
    merged,
    page,
    read_rows,
    rows_of,
    write_rows,
)
from bench.papers.experiments import EXPERIMENTS, NOT_TRIED
from bench.papers.ideas import IDEAS, Idea
from bench.papers.spread import draw_with_spread

FIGURES: Final = Path(__file__).resolve().parents[2] / "docs" / "figures"


def main(
    words: Sequence[str],
    folder: Path = FIGURES,
    experiments: Sequence[Experiment] = EXPERIMENTS,
    ideas: Sequence[Idea] = IDEAS,
) -> int:
    """Run the experiments, draw their figures and the ideas, and update the claims and the page."""
    unknown = [word for word in words if not any(experiment.name.startswith(word) for experiment in experiments)]
    if unknown:
        names = ", ".join(experiment.name for experiment in experiments)
        print(f"bench.papers: no name starts with {' or '.join(unknown)}; names: {names}", file=sys.stderr)
        return 2
    chosen = [experiment for experiment in experiments if not words or experiment.name.startswith(tuple(words))]
    folder.mkdir(parents=True, exist_ok=True)
    new_rows: dict[str, Sequence[Row]] = {}
    paper: Paper | None = None
    for experiment in chosen:
        if experiment.paper != paper:
            paper = experiment.paper
            print(f"{paper.short.upper()}: {paper.title}", flush=True)
        began = time.perf_counter()
        results = {seed: experiment.run(seed) for seed in experiment.seeds}
        draw(list(results.values()), folder / f"{experiment.name}.png", wide=experiment.wide)
        new_rows[experiment.name] = rows_of(experiment, results)
        print_claims(experiment, new_rows[experiment.name], time.perf_counter() - began)
    for idea in ideas:
        figure = Figure(figsize=(7.0, 2.6), layout="constrained")
        idea.draw(figure)
        figure.savefig(folder / idea_file(idea.paper), dpi=110, metadata={"Software": None})
    update_files(folder, new_rows, experiments, ideas)
    return 0


def draw(results: Sequence[ExperimentResult], path: Path, *, wide: bool) -> None:
    figure = Figure(figsize=(11.0 if wide else 7.0, 4.2), layout="constrained")
    draw_with_spread(figure, [result.draw for result in results])
    figure.savefig(path, dpi=110, metadata={"Software": None})


def print_claims(experiment: Experiment, rows: Sequence[Row], seconds: float) -> None:
    print(f"  {experiment.name}  {experiment.title}  ({seconds:.0f} s)")
    for row in rows:
        print(
            f"    {'holds' if row.holds == 'yes' else 'DOES NOT HOLD':<14} {row.claim} ({row.seeds}): {row.measured}",
            flush=True,
        )


def update_files(
    folder: Path, new_rows: Mapping[str, Sequence[Row]], experiments: Sequence[Experiment], ideas: Sequence[Idea]
) -> None:
    """Replace the rows of the drawn figures; keep the others."""
    rows = merged(read_rows(folder / "claims.csv"), new_rows, experiments)
    write_rows(folder / "claims.csv", rows)
    (folder / "README.md").write_text(
        page(experiments, rows, [(idea.paper, idea.text) for idea in ideas], NOT_TRIED), encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
