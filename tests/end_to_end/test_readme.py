"""The README's example prints the rows that the README shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.patience import HANG_SECONDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def millrace(*arguments: str, folder: Path) -> str:
    command = [sys.executable, "-c", "from millrace.cli.main import main; main()", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=HANG_SECONDS).stdout


def test_the_offline_example_prints_the_rows_shown(tmp_path: Path) -> None:
    for file in (ROOT / "examples" / "shop").iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    shown = re.search(r"\$ millrace (run .*)\n((?:\{.*\n)+)\$ cat late.jsonl\n((?:\{.*\n)+)", README)
    assert shown is not None
    assert millrace(*shown[1].split(), folder=tmp_path) == shown[2]
    assert (tmp_path / "late.jsonl").read_text() == shown[3]


def test_the_statements_of_the_readme_are_those_of_the_example() -> None:
    statements = re.search(r"```sql\n-- shop.sql\n(.*?)```", README, re.DOTALL)
    assert statements is not None
    example = (ROOT / "examples" / "shop" / "shop.sql").read_text()
    assert statements[1].strip() == example.split("\n", 1)[1].strip()


def test_every_page_that_the_readme_names_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
