"""`python -m tests.fuzz [TARGET...] --seconds 60`: looks for bytes that break a target, guided by coverage.

It starts from `tests/fuzz/corpus`. Inputs that reach new code are kept in a folder (default `build/fuzz`), so that a
later run continues; `--keep` makes them the corpus. An input that breaks a target is written
to `tests/fuzz/crashes`, where the tests find it. Kernels run as Python here, so that their branches guide the search;
the tests run the same inputs through the compiled ones.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import zipfile
from functools import partial
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
# By target, the packages whose branches guide it: others are imported faster, and run faster.
GUIDES: Final = {
    "frames": ["millrace.protocol"],
    "rows": ["millrace.formats", "millrace.values.kernels"],
    "arrow": ["millrace.formats", "millrace.values.texts"],
    "lines": ["millrace.protocol.jsonlines", "millrace.formats", "millrace.values.kernels"],
    "sql": ["millrace.sql"],
    "segment": ["millrace.journal"],
    "record": ["millrace.journal", "millrace.formats"],
    "state": ["millrace.engine", "millrace.operators.frame"],
    "connection": ["millrace.net", "millrace.protocol", "millrace.formats"],
}
# One input: it may take so long, and the process so much.
HANG_SECONDS: Final = 20
MEMORY_MB: Final = 2_048


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(GUIDES)}")
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--corpus", type=Path, default=ROOT / "build" / "fuzz", help="the folder of kept inputs")
    parser.add_argument("--keep", action="store_true", help="make the kept inputs tests/fuzz/corpus")
    options = parser.parse_args()
    if unknown := [name for name in options.targets if name not in GUIDES]:
        parser.error(f"no target {unknown[0]}: the targets are {', '.join(GUIDES)}")
    names = options.targets or GUIDES
    broken = [name for name in names if not explore(name, options.seconds, options.corpus / name)]
    if options.keep:
        for name in names:
            keep(name, options.corpus / name)
    if broken:
        sys.stdout.write(f"fuzz: {', '.join(broken)} broke: see {HERE / 'crashes'}\n")
    return 1 if broken else 0


def explore(name: str, seconds: int, corpus: Path) -> bool:
    """Fuzz a target in its own process; whether nothing was found."""
    crashes = HERE / "crashes" / name
    for folder in (corpus, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    if (known := HERE / "corpus" / f"{name}.zip").exists():
        with zipfile.ZipFile(known) as inputs:
            inputs.extractall(corpus)
    command = [sys.executable, "-m", "tests.fuzz.__main__", "--child", name, str(corpus), "-print_final_stats=1"]
    command += [f"-max_total_time={seconds}", f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={MEMORY_MB}"]
    command += [f"-artifact_prefix={crashes}/"]
    ran = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    runs = re.findall(r"stat::number_of_executed_units:\s*(\d+)", ran.stderr)
    edges = re.findall(r"\bcov: (\d+)", ran.stderr)
    kept = sum(1 for _ in corpus.iterdir())
    counts = [int(found[-1]) if found else 0 for found in (runs, edges)]
    sys.stdout.write(f"{name}: {counts[0]:,} executions, {counts[1]:,} branches, {kept:,} inputs kept\n")
    if ran.returncode:
        sys.stdout.write(ran.stderr[-8_000:])
    if not any(crashes.iterdir()):
        crashes.rmdir()
    return not ran.returncode


def keep(name: str, corpus: Path) -> None:
    """Make the inputs of this folder the corpus."""
    paths = sorted(corpus.iterdir())
    with zipfile.ZipFile(HERE / "corpus" / f"{name}.zip", "w") as kept:
        for path in paths:  # of one date, so that equal inputs are equal bytes
            kept.writestr(zipfile.ZipInfo(path.name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    sys.stdout.write(f"{name}: {len(paths):,} inputs in the corpus\n")


def child(name: str, arguments: list[str]) -> None:
    sys.path_hooks.insert(0, partial(sources, Guided.of(name)))
    sys.path_importer_cache.clear()
    import atheris

    from tests.fuzz.targets import TARGETS

    target = TARGETS[name]
    corpus = Path(arguments[0])
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], *arguments, f"-max_len={target.most}"], target.run)
    atheris.Fuzz()


def sources(loader: type[SourceFileLoader], path: str) -> FileFinder:
    """Imports Millrace's modules from their sources, not from what was compiled."""
    if not os.path.realpath(path).startswith(f"{ROOT}{os.sep}") or ".venv" in path:
        raise ImportError
    return FileFinder(path, (loader, SOURCE_SUFFIXES))


class Guided(SourceFileLoader):
    """Modules of which some report the branches that they take."""

    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str) -> type[SourceFileLoader]:
        return type("Guided", (cls,), {"prefixes": tuple(f"{package}." for package in GUIDES[name])})

    def get_code(self, fullname: str) -> Any:
        from atheris.instrument_bytecode import patch_code

        code = super().get_code(fullname)
        return patch_code(code, True) if f"{fullname}.".startswith(self.prefixes) else code


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        # A new program inherits the peak of its parent's memory, which the fuzzer counts: the peak of all tests.
        # A fork starts from zero.
        if forked := os.fork():
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))
        child(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
