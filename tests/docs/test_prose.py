"""docs/prose.py flags constructions, long sentences and commit subjects, and nothing in code blocks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from docs import prose

ROOT = Path(__file__).parents[2]


def page(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_construction_is_flagged_with_its_line(tmp_path: Path) -> None:
    report = prose.examine(page(tmp_path, "# Title\n\nThe client is told the reason.\n"))
    assert [(place.line, place.problem) for place in report.places] == [(3, "is told, tells (of a program)")]


@pytest.mark.parametrize(
    "sentence",
    [
        "Whoever reads this.",
        "It begins with nothing.",
        "This is no error.",
        "A folder of its own.",
        "What came is shown.",
    ],
)
def test_constructions_of_the_style_guide_are_flagged(sentence: str, tmp_path: Path) -> None:
    assert prose.examine(page(tmp_path, sentence)).places


def test_plain_english_and_code_are_not_flagged(tmp_path: Path) -> None:
    text = "The server reports why. Use `what came`.\n\n```console\n$ echo nobody is told\n```\n\n    whoever\n"
    assert prose.examine(page(tmp_path, text)).places == []


def test_a_long_sentence_is_reported_with_its_length(tmp_path: Path) -> None:
    text = "One two three.\n\n" + " ".join(["word"] * 41) + ".\n\n" + " ".join(["word"] * 40) + ".\n"
    assert [(place.line, place.problem) for place in prose.long_sentences(page(tmp_path, text))] == [
        (3, "a sentence of 41 words")
    ]


def test_comments_and_literals_of_code_are_read(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text('"""Whoever calls."""\nbegun = 1  # it begins\nprint("nobody")\n')
    assert len(prose.examine(path).places) == 3
    assert len(prose.examine(path, messages=True).places) == 1


def test_commit_subjects_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "first")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True)
    monkeypatch.setattr(prose, "SUBJECTS_SINCE", head.stdout.strip())
    git("commit", "--allow-empty", "-m", "why: count lost tuples")
    assert list(prose.subject_problems()) == []
    git("commit", "--allow-empty", "-m", "why: counted lost tuples")
    git("commit", "--allow-empty", "-m", "why: " + "count " * 12)
    problems = list(prose.subject_problems())
    assert len(problems) == 2
    assert "below 60" in problems[0]
    assert "imperative" in problems[1]
