"""The guard of the engine's instructions per tuple: it counts, compares with its baseline, and notices a rise."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import instructions
from bench.__main__ import main
from bench.instructions import ROOT, TOLERANCE, Count, Counts
from bench.paths import PATHS
from millrace.values import kernels

BUILD = {"python": "3.11.7 (main)", "numpy": "2.4", "compiler": "gcc (Debian) 12.2.0", "machine": "x86_64"}
OTHER = BUILD | {"machine": "aarch64"}


def counts(build: dict[str, str] = BUILD, **by_path: float) -> Counts:
    return Counts(build, {name: Count(value, 200, 100) for name, value in by_path.items()})


@pytest.fixture
def baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A baseline of one path, in place of the stored ones."""
    monkeypatch.setattr(instructions, "BASELINES", tmp_path)
    return instructions.save(counts(join=1_000.0))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Counts], None]:
    """Replaces callgrind's counts."""
    return lambda now: monkeypatch.setattr(instructions, "measure", lambda *_, **__: now)


# -- with callgrind ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Counts:
    """One run of callgrind over all paths."""
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed, so no instructions are counted: apt install valgrind")
    return instructions.measure(ROOT, runs=1)


def test_every_path_is_counted(real: Counts) -> None:
    assert real.paths.keys() == PATHS.keys()
    assert all(count.rows for count in real.paths.values())
    per_tuple = {name: count.instructions for name, count in real.paths.items()}
    assert 10_000 < per_tuple["single"] < 5_000_000
    assert 10 < per_tuple["batches"] < per_tuple["single"] / 20
    assert per_tuple["single"] < per_tuple["union"]


def test_no_path_takes_more_instructions_than_the_baseline(real: Counts) -> None:
    """After a change that is worth more instructions: `python -m bench instructions --save`."""
    stored = instructions.load(real.build)
    if not stored.paths:
        pytest.skip(f"no baseline for this build:\n{instructions.table(instructions.compare({}, real.paths), '')}")
    if lines := instructions.differences(stored.build, real.build):
        pytest.skip("the baseline is of another build:\n" + "\n".join(lines))
    rows = instructions.compare(stored.paths, real.paths)
    assert not any(row.fault for row in rows), instructions.table(rows, "baseline")


def test_a_lower_baseline_fails_the_check(
    real: Counts, baseline: Path, counted: Callable[[Counts], None], capsys: pytest.CaptureFixture[str]
) -> None:
    lower = dict(real.paths)
    lower["join"] = dataclasses.replace(lower["join"], instructions=lower["join"].instructions / 1.04)
    instructions.save(Counts(real.build, lower))
    counted(real)
    assert main(["instructions", "--check"]) == 1
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("TOO HIGH")] == ["join"]


# -- with given counts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("now", "code"), [(900.0, 0), (1_000 * TOLERANCE, 0), (1_031.0, 1)])
def test_three_percent_more_are_allowed(
    now: float, code: int, baseline: Path, counted: Callable[[Counts], None]
) -> None:
    counted(counts(join=now))
    assert main(["instructions", "--check"]) == code
    assert main(["instructions"]) == 0


def test_a_path_without_a_baseline_and_another_number_of_rows_fail_the_check(
    baseline: Path, counted: Callable[[Counts], None], capsys: pytest.CaptureFixture[str]
) -> None:
    counted(counts(updates=1.0))
    assert main(["instructions", "--check"]) == 1
    assert "NO BASELINE" in capsys.readouterr().out
    counted(Counts(BUILD, {"join": Count(1_000.0, 200, 99)}))
    assert main(["instructions", "--check"]) == 1
    assert "NOT COMPARABLE: 100 rows of 200 tuples before" in capsys.readouterr().out


def test_a_baseline_of_another_build_is_not_compared(
    baseline: Path, counted: Callable[[Counts], None], capsys: pytest.CaptureFixture[str]
) -> None:
    counted(counts(OTHER, join=2_000.0))
    assert main(["instructions", "--check"]) == 0
    out = capsys.readouterr().out
    assert "  machine: x86_64 before, aarch64 now" in out
    assert "--against REVISION" in out


@pytest.mark.parametrize("versions", [{"python": "3.12.1 (main)"}, {"numpy": "2.5"}, {"compiler": "clang 19.1"}])
def test_other_versions_get_a_baseline_of_their_own(
    versions: dict[str, str], baseline: Path, counted: Callable[[Counts], None], capsys: pytest.CaptureFixture[str]
) -> None:
    counted(counts(BUILD | versions, join=2_000.0))
    assert main(["instructions", "--check"]) == 0
    assert "no baseline for this build: recorded in" in capsys.readouterr().out
    counted(counts(BUILD | versions, join=2_100.0))
    assert main(["instructions", "--check"]) == 1
    counted(counts(join=1_000.0))
    assert main(["instructions", "--check"]) == 0
    assert len(list(baseline.parent.glob("*.json"))) == 2


def test_counts_are_saved(baseline: Path, counted: Callable[[Counts], None]) -> None:
    counted(counts(join=2_000.0, union=3.25))
    assert main(["instructions", "--save"]) == 0
    assert main(["instructions", "--check"]) == 0
    assert json.loads(baseline.read_text())["paths"]["union"] == {"instructions": 3.2, "tuples": 200, "rows": 100}


def test_the_least_run_counts_and_the_spread_is_printed(
    monkeypatch: pytest.MonkeyPatch, baseline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = iter([1_010.0, 1_000.0, 1_020.0])
    monkeypatch.setattr(instructions, "_valgrind", lambda: "valgrind")
    monkeypatch.setattr(instructions, "_run", lambda *_: None)
    monkeypatch.setattr(instructions, "_count", lambda *_: (BUILD, {"join": Count(next(runs), 200, 100)}))
    assert main(["instructions", "join", "--runs", "3"]) == 0
    row = capsys.readouterr().out.splitlines()[2]
    assert row.split() == ["join", "200", "1,000.0", "1,000.0", "1.0000", "2.000%"]


def test_a_machine_without_valgrind_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert main(["instructions", "--check"]) == 2
    assert "needs valgrind, which is not installed: apt install valgrind" in capsys.readouterr().err


def test_a_failing_path_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(instructions, "_valgrind", lambda: "valgrind")
    monkeypatch.setattr(instructions, "_paths", lambda names: ["python", "-c", "raise SystemExit('no such path')"])
    assert main(["instructions"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "no such path"


def test_wrong_options_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["nothing"], ["join", "--save"], ["--save", "--against", "HEAD"]):
        with pytest.raises(SystemExit):
            main(["instructions", *words])
    assert "no path is named nothing; paths: single, batches" in capsys.readouterr().err


# -- another commit ----------------------------------------------------------------------------------------------------


@pytest.fixture
def repository() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this copy of the sources has no repository")


def test_another_commit_is_counted_by_its_own_files(
    repository: None, monkeypatch: pytest.MonkeyPatch, counted: Callable[[Counts], None]
) -> None:
    monkeypatch.setattr(kernels, "compiled", lambda: False)  # compiling takes a minute
    with instructions.checkout("HEAD") as root:
        assert {"bench", "operators", "server", "protocol"} <= {path.name for path in root.iterdir()}
        libraries, *lines = instructions._run(instructions._paths(["single"]), root).stdout.splitlines()
        assert json.loads(libraries)["kernels"] == "not compiled"
        assert [json.loads(line)["rows"] for line in lines] == [200]
    assert not root.exists()


def test_two_commits_are_compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = Path("elsewhere")
    monkeypatch.setattr(instructions, "checkout", lambda _: contextlib.nullcontext(elsewhere))

    def check(before: Counts, now: Counts) -> int:
        monkeypatch.setattr(instructions, "measure", lambda root, *_: {ROOT: now, elsewhere: before}[root])
        return main(["instructions", "--check", "--against", "v1"])

    assert check(counts(join=100.0), counts(join=102.0)) == 0
    assert check(counts(join=100.0), counts(join=104.0)) == 1
    assert "v1" in capsys.readouterr().out
    assert check(counts({"numpy": "1"}, join=100.0), counts(join=100.0)) == 2


def test_an_unknown_commit_is_reported(
    repository: None, counted: Callable[[Counts], None], capsys: pytest.CaptureFixture[str]
) -> None:
    counted(counts(join=1.0))
    assert main(["instructions", "--against", "nothing"]) == 2
    assert "git knows no revision nothing" in capsys.readouterr().err
