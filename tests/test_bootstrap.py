"""Setting up: repeated runs, progress on the terminal, and messages of failures."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a virtual environment in a folder of the test."""
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", ROOT / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path)
    return module


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_lock_file_is_installed_again_only_after_a_change(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "small.lock"
    lock.write_text("one==1\n")
    bootstrap.stamp("small.lock")
    assert bootstrap.start_packages("small.lock") is None
    lock.write_text("one==2\n")
    monkeypatch.setattr(bootstrap, "installer", lambda: python(""))
    job = bootstrap.start_packages("small.lock")
    assert job is not None
    bootstrap.follow([job])


def test_every_fifth_package_is_reported(bootstrap: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    code = "for n in range(7): print(f'Collecting p{n}==1 (from -r x)')\nprint('Installing collected packages: p0')"
    bootstrap.follow([bootstrap.start(python(code), "packages", 7)])
    assert capsys.readouterr().out.splitlines() == [
        "setup: downloading 1/7 (p0)",
        "setup: downloading 6/7 (p5)",
        "setup: unpacking 7 packages",
    ]


def test_a_silent_job_is_reported(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "SILENCE_SECONDS", 0.01)
    bootstrap.follow([bootstrap.start(python("import time; time.sleep(0.2)"), "kernels")])
    assert "setup: still busy with kernels (" in capsys.readouterr().out


def test_a_failure_shows_the_last_lines_and_how_to_resume(
    bootstrap: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys; print('no such package'); sys.exit(1)"
    with pytest.raises(SystemExit, match=r"could not install packages; .* Run the same command again"):
        bootstrap.follow([bootstrap.start(python(code), "packages", 1)])
    assert "no such package" in capsys.readouterr().err


def test_every_make_target_that_a_page_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    pages = [ROOT / "Makefile", *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    named = {
        (page.relative_to(ROOT).as_posix(), target)
        for page in pages
        for target in re.findall(
            r"(?:^#?\s*|`| {3,})make (?:[A-Z]+=\S+ )*([a-z][a-z-]*)", page.read_text(), re.MULTILINE
        )
    }
    assert ("docs/install.md", "server") in named
    assert {(page, target) for page, target in named if target not in targets} == set()
