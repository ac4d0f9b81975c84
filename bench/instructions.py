"""`python -m bench instructions`: the instructions of a tuple on six paths, against a baseline or another commit.

Callgrind counts the same on a busy machine as on a quiet one, so this is the guard of changes to the engine: a path may
not take more than 3 % more instructions than before. The counts depend on the interpreter, its libraries and the
compiler, so there is a baseline per version of Python, numpy and the compiler in `baselines/`, and the first run with
other versions records one. `--against REVISION` counts both on this machine.

Python looks attributes up in a cache whose collisions depend on addresses: they change the counts by up to 4 % from
one environment to another. Callgrind therefore leaves the slow way of a lookup out, and every run has another layout;
the least run counts.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import engine, paths
from millrace.values import kernels

ROOT: Final = Path(__file__).parents[1]
BASELINES: Final = Path(__file__).with_name("baselines")
# Layouts of memory move the counts by 0.4 %, the runs of one layout by nothing.
TOLERANCE: Final = 1.03
# `_PyType_Lookup` calls it where the cache of attributes has no entry.
SLOW_LOOKUP: Final = "find_name_in_mro"
# Settings of other programs' Python and allocator must not reach the counted one.
FOREIGN: Final = ("PYTHON", "MILLRACE_", "MALLOC_", "GLIBC_", "LD_PRELOAD")


class CountError(Exception):
    """The counts are not available; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Count:
    """A path: instructions per tuple in the least run, tuples, rows, and by how much the other runs were higher."""

    instructions: float
    tuples: int
    rows: int
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Counts:
    """The paths by name, and the other things that the counts depend on."""

    build: Mapping[str, str]
    paths: Mapping[str, Count]


# -- counting ----------------------------------------------------------------------------------------------------------


def measure(root: Path, names: Sequence[str] = (), runs: int = 2) -> Counts:
    """The paths of the checkout at `root`, by its own `bench.paths`."""
    _valgrind()
    _run(_paths(names), root)  # Python compiles what it imports, which callgrind would slow down
    build: dict[str, str] = {}
    by_path: dict[str, list[Count]] = {}
    for number in range(runs):
        build, counts = _count(root, names, number)
        for name, count in counts.items():
            by_path.setdefault(name, []).append(count)
    return Counts(build, {name: _least(counts) for name, counts in by_path.items()})


def _count(root: Path, names: Sequence[str], number: int) -> tuple[dict[str, str], dict[str, Count]]:
    """One run of callgrind."""
    command = [
        _valgrind(),
        "--tool=callgrind",
        f"--callgrind-out-file={os.devnull}",
        f"--instr-atstart={'no' if paths.CAN_SWITCH else 'yes'}",
        f"--toggle-collect={SLOW_LOOKUP}",
        "--collect-atstart=yes",
        *_paths(names),
    ]
    done = _run(command, root, BENCH_LAYOUT="x" * 100 * number)
    collected = dict(re.findall(r"==(\d+)== Collected : (\d+)", done.stderr))
    libraries, *lines = map(json.loads, done.stdout.splitlines())
    counts = {}
    for line in lines:
        first, second, last = (int(collected[str(mark)]) for mark in line["marks"])
        counts[line["path"]] = Count((last - second - (second - first)) / line["tuples"], line["tuples"], line["rows"])
    tools = {"compiler": _first_line(_compiler(), "--version"), "valgrind": _first_line(_valgrind(), "--version")}
    return libraries | tools, counts


def _paths(names: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "bench.paths", *names]


def _least(counts: Sequence[Count]) -> Count:
    least = min(counts, key=lambda count: count.instructions)
    most = max(count.instructions for count in counts)
    return Count(least.instructions, least.tuples, least.rows, most / least.instructions - 1)


def _valgrind() -> str:
    if path := shutil.which("valgrind"):
        return path
    raise CountError("counting instructions needs valgrind, which is not installed: apt install valgrind, or the like")


def _run(command: Sequence[str], root: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command whose Python imports Millrace from this checkout, in one thread, with the same hashes every time."""
    rooms = os.pathsep.join(str(root / room) for room in ("server", "operators", "protocol"))
    own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    fixed = {"PYTHONPATH": rooms, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=own | fixed | variables, check=False, capture_output=True, text=True)
    if done.returncode:
        reason = "\n".join(done.stderr.strip().splitlines()[-20:])
        raise CountError(f"{' '.join(command)} failed in {root}:\n{reason}")
    return done


def _compiler() -> str:
    return (sysconfig.get_config_var("CC") or "cc").split()[0]


def _first_line(*command: str) -> str:
    if not shutil.which(command[0]):
        return "none"
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.partition("\n")[0]


# -- comparing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """A path before and now; `before` is missing for a new path."""

    name: str
    before: Count | None
    now: Count

    @property
    def fault(self) -> str:
        """Why the path does not pass."""
        if self.before is None:
            return "NO BASELINE"
        if (self.before.tuples, self.before.rows) != (self.now.tuples, self.now.rows):
            return f"NOT COMPARABLE: {self.before.rows:,} rows of {self.before.tuples:,} tuples before"
        return "TOO HIGH" if self.now.instructions > TOLERANCE * self.before.instructions else ""

    def line(self) -> str:
        before = f"{self.before.instructions:,.1f}" if self.before else "-"
        ratio = f"{self.now.instructions / self.before.instructions:.4f}" if self.before else "-"
        return (
            f"{self.name:<10} {self.now.tuples:>7,} {before:>14} {self.now.instructions:>14,.1f} {ratio:>8} "
            f"{self.now.spread:>8.3%}  {self.fault}"
        ).rstrip()


def compare(before: Mapping[str, Count], now: Mapping[str, Count]) -> list[Row]:
    return [Row(name, before.get(name), count) for name, count in now.items()]


def table(rows: Sequence[Row], before: str) -> str:
    head = f"{'path':<10} {'tuples':>7} {before:>14} {'now':>14} {'ratio':>8} {'spread':>8}"
    return "\n".join(["instructions per tuple", head, *(row.line() for row in rows)])


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The differences in what the counts depend on, a line each."""
    return [
        f"  {name}: {before.get(name, 'none')} before, {now.get(name, 'none')} now"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


# -- the baselines, and another commit ---------------------------------------------------------------------------------


def baseline_of(build: Mapping[str, str]) -> Path:
    """The file for counts of these versions of Python, numpy and the compiler."""
    versions = {name: build.get(name, "none").split() for name in ("python", "numpy", "compiler")}
    python, numpy, compiler = versions["python"][0], versions["numpy"][0], versions["compiler"]
    return BASELINES / f"python-{python}-numpy-{numpy}-{compiler[0]}-{compiler[-1]}.json"


def save(counts: Counts) -> Path:
    """Write the baseline of this build."""
    file = baseline_of(counts.build)
    file.parent.mkdir(exist_ok=True)
    rounded = {
        name: {"instructions": round(count.instructions, 1), "tuples": count.tuples, "rows": count.rows}
        for name, count in counts.paths.items()
    }
    file.write_text(json.dumps({"build": counts.build, "paths": rounded}, indent=2) + "\n")
    return file


def load(build: Mapping[str, str]) -> Counts:
    """The baseline of a build; empty if there is none for its versions."""
    file = baseline_of(build)
    if not file.exists():
        return Counts({}, {})
    content = json.loads(file.read_text())
    return Counts(content["build"], {name: Count(**fields) for name, fields in content["paths"].items()})


@contextlib.contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """The files of a revision in a temporary folder, compiled unless this checkout's are not."""
    done = subprocess.run(["git", "archive", revision], cwd=ROOT, check=False, capture_output=True)
    if done.returncode:
        raise CountError(f"git knows no revision {revision}: {done.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        root = Path(folder)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(root, filter="data")
        if not (root / "bench" / "paths.py").exists():  # older than this benchmark: the same paths through its engine
            shutil.copy(paths.__file__, root / "bench")
        _run([sys.executable, "build_hook.py"], root, **({} if kernels.compiled() else {"MILLRACE_NO_KERNELS": "1"}))
        yield root


# -- the command -------------------------------------------------------------------------------------------------------


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench instructions", description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", metavar="PATH", help=f"only these: {', '.join(paths.PATHS)}")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a path is more than 3 %% higher than before"
    )
    parser.add_argument("--runs", type=int, default=2, help="runs of callgrind, of which the least counts (default 2)")
    before = parser.add_mutually_exclusive_group()
    before.add_argument("--save", action="store_true", help="write the baseline of this build")
    before.add_argument("--against", metavar="REVISION", help="compare with this commit, counted now, on this machine")
    options = parser.parse_args(words)
    if unknown := set(options.paths) - set(paths.PATHS):
        parser.error(f"no path is named {', '.join(sorted(unknown))}; paths: {', '.join(paths.PATHS)}")
    if options.save and options.paths:
        parser.error("--save writes all paths: leave out their names")
    try:
        return _save(options) if options.save else _compare(options)
    except CountError as error:
        print(f"bench: instructions were not counted: {error}", file=sys.stderr)
        return 2


def _save(options: argparse.Namespace) -> int:
    counts = measure(ROOT, runs=options.runs)
    print(table(compare(load(counts.build).paths, counts.paths), "baseline"))
    print(f"saved in {_shown(save(counts))}")
    return 0


def _shown(file: Path) -> Path:
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file


def _compare(options: argparse.Namespace) -> int:
    now = measure(ROOT, options.paths, options.runs)
    before, name = load(now.build), "baseline"
    if options.against:
        with checkout(options.against) as root:
            before, name = measure(root, options.paths, options.runs), options.against[:14]
    rows = compare(before.paths, now.paths)
    print(table(rows, name))
    if not (before.paths or options.paths or options.against):
        print(f"no baseline for this build: recorded in {_shown(save(now))}; commit it to have later changes checked")
        return 0
    if "single" in now.paths:
        print(engine.single_tuple(20_000)[0].line())
    if before.paths and (lines := differences(before.build, now.build)):
        print(f"Not checked, because {name} is of another build, which counts differently:", *lines, sep="\n")
        print("To count both on this machine: python -m bench instructions --against REVISION")
        return 2 if options.against else 0
    return int(options.check and any(row.fault for row in rows))
