"""The race at a small size: every line of Millrace runs and checks its rows, and the page shows the stored results."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.race import page
from bench.race.__main__ import LINES, main
from bench.race.inmemory import check
from bench.race.lines import MILLRACE, Contender, Line, Metric, Sample, Scale, race


@pytest.mark.parametrize("line", LINES, ids=[line.name for line in LINES])
def test_every_line_runs_at_a_small_size(line: Line, tmp_path: Path) -> None:
    samples = list(race(line, Scale(tuples=30_000, repeats=1, folder=tmp_path)))
    assert {sample.metric for sample in samples if sample.program == MILLRACE} == set(line.metrics)
    assert all(sample.median > 0 for sample in samples)


def test_names_of_lines_are_unique_and_units_are_known() -> None:
    assert len({line.name for line in LINES}) == len(LINES)
    assert all(line.metrics and line.goal for line in LINES)


def test_other_rows_do_not_count() -> None:
    with pytest.raises(AssertionError, match="csp: the rows have the digest a, DuckDB's b"):
        check("csp", "a", "b")


def test_contenders_take_turns_and_the_median_counts(tmp_path: Path) -> None:
    order: list[str] = []
    figures = {"a": iter([1.0, 9.0, 2.0]), "b": iter([5.0, 5.0, 6.0])}

    def run(name: str) -> dict[str, float]:
        order.append(name)
        return {"speed": next(figures[name])}

    contenders = [Contender(name, lambda name=name: run(name)) for name in "ab"]  # type: ignore[misc]
    line = Line("l", "a line", {"speed": Metric("M/s", more=True)}, lambda _: contenders)
    samples = list(race(line, Scale(1, 3, tmp_path)))
    assert order == ["a", "b"] * 3
    assert samples == [Sample("l", "speed", "a", None, 2, 1, 9, 3), Sample("l", "speed", "b", None, 5, 5, 6, 3)]


SAMPLES = [
    Sample("w1", "speed", MILLRACE, None, 30.0, 28.0, 31.0, 3),
    Sample("w1", "speed", "csp", None, 4.0, 4.0, 4.0, 1),
]


def test_results_are_stored_and_merged(tmp_path: Path) -> None:
    page.write(SAMPLES, tmp_path / "results.csv")
    assert page.read(tmp_path / "results.csv") == SAMPLES
    newer = [Sample("w2", "speed", MILLRACE, None, 1.0, 1.0, 1.0, 1)]
    assert page.merged(SAMPLES, newer, LINES) == [*SAMPLES, *newer]
    again = [SAMPLES[0]._replace(median=29.0)]
    assert page.merged([*SAMPLES, *newer], again, LINES) == [*again, *newer]


def test_the_section_has_a_row_per_figure_and_pictures(tmp_path: Path) -> None:
    text = page.section(LINES, SAMPLES, {"load average": "3.0 before"})
    assert "| 30.0 (28.0-31.0) | csp 4 | at least DuckDB's speed |" in text
    assert "load average 3.0 before" in text
    page.draw(LINES, SAMPLES, tmp_path)
    drawn = {path.stem for path in tmp_path.glob("*.png")}
    assert drawn == set(page.picture_titles(LINES, SAMPLES)) == {"throughput"}


def test_the_page_shows_the_stored_results() -> None:
    """After a change of the section's form: `python -m bench.race.page`."""
    text = page.PAGE.read_text("utf-8")
    stored = page.read()
    if stored:
        assert page.section(LINES, stored, page.read_conditions()).strip() in text
    assert page.SECTION.search(text)


def test_an_unknown_line_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "no line starts with nothing; lines: w1, " in capsys.readouterr().err
