"""The race's results on paper: `docs/race/results.csv`, pictures beside it, and a section of `docs/performance.md`."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.race.lines import MILLRACE, Line, Sample

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
RESULTS: Final = DOCS / "race" / "results.csv"
CONDITIONS: Final = DOCS / "race" / "conditions.json"
PAGE: Final = DOCS / "performance.md"
SECTION: Final = re.compile(r"(<!-- race: written by `python -m bench race` -->\n).*?(<!-- race: end -->)", re.DOTALL)

HOW: Final = """Medians, with the least and the most of several turns in brackets. Before a figure counts, the rows are
compared with DuckDB's by a digest, or with a number that was computed in another way. Lines about functions, JSON
lines and row frames take a fifth of the tuples, Arrow frames half of them."""
FAIRNESS: Final = "What is unfair, in whose favour:"


# -- results -----------------------------------------------------------------------------------------------------------


def read(path: Path = RESULTS) -> list[Sample]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            Sample(
                row["line"],
                row["metric"],
                row["program"],
                float(row["x"]) if row["x"] else None,
                float(row["median"]),
                float(row["least"]),
                float(row["most"]),
                int(row["turns"]),
            )
            for row in csv.DictReader(file)
        ]


def write(samples: Iterable[Sample], path: Path = RESULTS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Sample._fields)
        for sample in samples:
            x = "" if sample.x is None else f"{sample.x:g}"
            numbers = (f"{number:.4g}" for number in (sample.median, sample.least, sample.most))
            writer.writerow([*sample[:3], x, *numbers, sample.turns])


def merged(before: Iterable[Sample], new: Sequence[Sample], lines: Iterable[Line]) -> list[Sample]:
    """The new samples of the lines that have run, and the earlier ones of the others, in the order of the lines."""
    ran = {sample.line for sample in new}
    kept = [sample for sample in before if sample.line not in ran]
    return [sample for line in lines for sample in (*kept, *new) if sample.line == line.name]


# -- the section -------------------------------------------------------------------------------------------------------


def section(lines: Sequence[Line], samples: Sequence[Sample], conditions: Mapping[str, str]) -> str:
    """The lines as a table, what is unfair, and the pictures."""
    by_line = {line.name: [sample for sample in samples if sample.line == line.name] for line in lines}
    shown = [line for line in lines if by_line[line.name]]
    rows = ["| line | unit | Millrace | others | wanted |", "|---|---|---|---|---|"]
    for line in shown:
        rows += table_rows(line, by_line[line.name])
    unfair: dict[str, list[str]] = {}
    for line in shown:
        if line.unfair:
            unfair.setdefault(line.unfair, []).append(line.name)
    fairness = [f"- {', '.join(f'`{name}`' for name in names)}: {text}" for text, names in unfair.items()]
    pictures = [f"![{title}](race/{name}.png)" for name, title in picture_titles(shown, samples).items()]
    parts = [
        conditions_text(conditions),
        HOW,
        "\n".join(rows),
        "\n".join([FAIRNESS, "", *fairness]),
        "\n\n".join(pictures),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def conditions_text(conditions: Mapping[str, str]) -> str:
    if not conditions:
        return ""
    return "Measured with `make race`: " + "; ".join(f"{name} {value}" for name, value in conditions.items()) + "."


def table_rows(line: Line, samples: Sequence[Sample]) -> Iterator[str]:
    """A row per metric and place."""
    title, goal = f"{line.title} (`{line.name}`)", line.goal
    for metric, (unit, _) in line.metrics.items():
        own = [sample for sample in samples if sample.metric == metric]
        for x in dict.fromkeys(sample.x for sample in own):
            at = [sample for sample in own if sample.x == x]
            name = title if x is None else f"{title}, {line.x}: {x:,.0f}"
            ours = "; ".join(value_text(sample) for sample in at if sample.program == MILLRACE)
            others = "; ".join(f"{sample.program} {value_text(sample)}" for sample in at if sample.program != MILLRACE)
            label = unit if metric in ("speed", "time") else f"{metric}, {unit}"
            yield f"| {name} | {label} | {ours} | {others} | {goal} |"
            goal = ""


def value_text(sample: Sample) -> str:
    median = number_text(sample.median)
    return median if sample.turns == 1 else f"{median} ({number_text(sample.least)}-{number_text(sample.most)})"


def number_text(value: float) -> str:
    """Three digits that count."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def update(lines: Sequence[Line], samples: Sequence[Sample], conditions: Mapping[str, str], page: Path = PAGE) -> None:
    """Replace the section of the page."""
    made = section(lines, samples, conditions)
    page.write_text(SECTION.sub(lambda match: f"{match[1]}\n{made}\n{match[2]}", page.read_text("utf-8")), "utf-8")


def read_conditions(path: Path = CONDITIONS) -> dict[str, str]:
    found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return found


# -- pictures ----------------------------------------------------------------------------------------------------------

THROUGHPUT: Final = "throughput"
LATENCY: Final = "latency"
PERCENTILES: Final = {"median": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9}


def picture_titles(lines: Sequence[Line], samples: Sequence[Sample]) -> dict[str, str]:
    """The pictures that these lines make, by name."""
    made = {sample.line for sample in samples}
    lines = [line for line in lines if line.name in made]
    titles = {}
    if any("speed" in line.metrics and not line.x for line in lines):
        titles[THROUGHPUT] = "Throughput by line and program"
    if any("p99.9" in line.metrics for line in lines):
        titles[LATENCY] = "Distribution of latency by program and rate"
    titles |= {line.name: line.title for line in lines if line.x}
    return titles


def draw(lines: Sequence[Line], samples: Sequence[Sample], folder: Path = RESULTS.parent) -> None:
    """Draw all pictures."""
    shown = [line for line in lines if any(sample.line == line.name for sample in samples)]
    for name, title in picture_titles(shown, samples).items():
        path = folder / f"{name}.png"
        if name == THROUGHPUT:
            _bars(
                [line for line in shown if "speed" in line.metrics and not line.x],
                samples,
                title,
                folder / f"{name}.png",
            )
        elif name == LATENCY:
            _percentiles([line for line in shown if "p99.9" in line.metrics], samples, title, path)
        else:
            (line,) = (line for line in shown if line.name == name)
            _growth(line, samples, path)


def _bars(lines: Sequence[Line], samples: Sequence[Sample], title: str, path: Path) -> None:
    from matplotlib.figure import Figure

    found = {(sample.line, sample.program): sample for sample in samples if sample.metric == "speed"}
    programs = list(dict.fromkeys(program for _, program in found))
    figure = Figure(figsize=(11.0, 0.5 + 0.55 * len(lines)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(programs)
    for place, program in enumerate(programs):
        own = [(at, found[line.name, program]) for at, line in enumerate(lines) if (line.name, program) in found]
        medians = [sample.median for _, sample in own]
        spread = [
            [sample.median - sample.least for _, sample in own],
            [sample.most - sample.median for _, sample in own],
        ]
        axes.barh([at + place * height for at, _ in own], medians, height, xerr=spread, label=program)
    axes.set_yticks([at + 0.4 for at in range(len(lines))], [line.name for line in lines])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("million tuples per CPU second")
    axes.set_title(title)
    axes.legend(fontsize="small")
    _save(figure, path)


def _percentiles(lines: Sequence[Line], samples: Sequence[Sample], title: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.0 * len(lines), 4.2), layout="constrained")
    for axes, line in zip(figure.subplots(1, len(lines), squeeze=False)[0], lines, strict=True):
        own = [sample for sample in samples if sample.line == line.name and sample.metric in PERCENTILES]
        for program in dict.fromkeys(sample.program for sample in own):
            points = [(PERCENTILES[sample.metric], sample.median) for sample in own if sample.program == program]
            places = [1 / (1 - percentile / 100) for percentile, _ in points]
            axes.plot(places, [value for _, value in points], marker="o", label=program)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks([2, 10, 100, 1000], ["50 %", "90 %", "99 %", "99.9 %"])
        axes.set_xlabel("rows that are at least as fast")
        axes.set_ylabel("milliseconds")
        axes.set_title(line.title, fontsize="small")
        axes.legend(fontsize="small")
    figure.suptitle(title)
    _save(figure, path)


def _growth(line: Line, samples: Sequence[Sample], path: Path) -> None:
    from matplotlib.figure import Figure

    own = [sample for sample in samples if sample.line == line.name and sample.x is not None]
    metrics = list(dict.fromkeys(sample.metric for sample in own))
    figure = Figure(figsize=(6.0 * len(metrics), 4.2), layout="constrained")
    for axes, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        for program in dict.fromkeys(sample.program for sample in own):
            points = [sample for sample in own if (sample.program, sample.metric) == (program, metric)]
            spread = [[one.median - one.least for one in points], [one.most - one.median for one in points]]
            axes.errorbar([one.x for one in points], [one.median for one in points], spread, marker="o", label=program)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(line.x)
        axes.set_ylabel(f"{metric}, {line.metrics[metric].unit}")
        axes.legend(fontsize="small")
    figure.suptitle(line.title)
    _save(figure, path)


def _save(figure, path: Path) -> None:  # type: ignore[no-untyped-def]
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    from bench.race.__main__ import LINES

    draw(LINES, read())
    update(LINES, read(), read_conditions())
