"""`python -m bench.papers [NAME...]`: all figures, or those whose name starts with one of the words."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from bench.papers.claims import Experiment, Found, Paper, Row, merged, page, read_rows, rows_of, write_rows
from bench.papers.experiments import EXPERIMENTS

FIGURES: Final = Path(__file__).resolve().parents[2] / "docs" / "figures"


def main(words: Sequence[str], folder: Path = FIGURES, experiments: Sequence[Experiment] = EXPERIMENTS) -> int:
    """Run the experiments, draw their figures, and update the claims and the page."""
    unknown = [word for word in words if not any(one.name.startswith(word) for one in experiments)]
    if unknown:
        names = ", ".join(one.name for one in experiments)
        print(f"bench.papers: no name starts with {' or '.join(unknown)}; names: {names}", file=sys.stderr)
        return 2
    chosen = [one for one in experiments if not words or one.name.startswith(tuple(words))]
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, Sequence[Row]] = {}
    paper: Paper | None = None
    for experiment in chosen:
        if experiment.paper != paper:
            paper = experiment.paper
            print(f"{paper.short.upper()}: {paper.title}", flush=True)
        began = time.perf_counter()
        found = experiment.run()
        draw(found, folder / f"{experiment.name}.png", wide=experiment.wide)
        made[experiment.name] = rows_of(experiment, found.claims)
        tell(experiment, made[experiment.name], time.perf_counter() - began)
    renew(folder, made, experiments)
    return 0


def draw(found: Found, path: Path, *, wide: bool) -> None:
    figure = Figure(figsize=(11.0 if wide else 7.0, 4.2), layout="constrained")
    found.draw(figure)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def tell(experiment: Experiment, rows: Sequence[Row], seconds: float) -> None:
    print(f"  {experiment.name}  {experiment.title}  ({seconds:.0f} s)")
    for row in rows:
        print(f"    {'holds' if row.holds == 'yes' else 'DOES NOT HOLD':<14} {row.claim}: {row.measured}", flush=True)


def renew(folder: Path, made: Mapping[str, Sequence[Row]], experiments: Sequence[Experiment]) -> None:
    """Replace the rows of the drawn figures; keep the others."""
    rows = merged(read_rows(folder / "claims.csv"), made, experiments)
    write_rows(folder / "claims.csv", rows)
    (folder / "README.md").write_text(page(experiments, rows), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
