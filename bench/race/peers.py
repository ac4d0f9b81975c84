"""The other programs: each in an environment with its packages from PyPI, below `build/peers`, apart from `.venv`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.race.workloads import Column, Stream

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "build" / "peers"
PROGRAMS: Final = Path(__file__).parent / "programs"
# What each environment gets. orjson is the fastest way in Python from lines of JSON to rows.
PACKAGES: Final[Mapping[str, Sequence[str]]] = {
    "bytewax": ("bytewax", "orjson"),
    "csp": ("csp", "orjson"),
    "Flink": ("apache-flink",),
}


@dataclass(frozen=True, slots=True)
class Peers:
    """The environments that are installed: by name their interpreter and version."""

    pythons: Mapping[str, Path]
    versions: Mapping[str, str]


def install() -> Peers:
    """Create the environments that do not exist yet. A peer that cannot be installed is left out, and reported."""
    pythons: dict[str, Path] = {}
    versions: dict[str, str] = {}
    for name, packages in PACKAGES.items():
        python = FOLDER / packages[0] / "bin" / "python"
        done = python.parent.parent / "installed"
        if not done.exists():
            print(f"race: installing {' '.join(packages)} into {python.parent.parent}", flush=True)
            try:
                _run(sys.executable, "-m", "venv", str(python.parent.parent))
                _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
            except subprocess.CalledProcessError as error:
                print(f"race: {name} takes no part: {error.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
                continue
            done.touch()
        pythons[name] = python
        code = f"from importlib.metadata import version; print(version({packages[0]!r}))"
        versions[name] = _run(str(python), "-c", code).strip()
    return Peers(pythons, versions)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def write_columns(streams: Mapping[str, Stream], folder: Path) -> Path:
    """The streams as files that the programs read (see `programs/exchange.py`)."""
    import numpy as np
    import pyarrow.csv

    folder.mkdir(parents=True, exist_ok=True)
    for name, stream in streams.items():
        for field, column in zip(stream.schema.names, stream.columns, strict=True):
            np.ascontiguousarray(column, np.int64).tofile(folder / f"{name}.{field}")
        with (folder / f"{name}.csv").open("wb") as file:
            pyarrow.csv.write_csv(stream.table(), file, pyarrow.csv.WriteOptions(include_header=False))
    schemas = {name: stream.schema.names for name, stream in streams.items()}
    (folder / "streams.json").write_text(json.dumps(schemas))
    return folder


def run_program(python: Path | str, program: str, *arguments: str, timeout: float = 600) -> dict[str, float]:
    """What a program prints in its last line."""
    command = [str(python), str(PROGRAMS / f"{program}.py"), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n" + "\n".join(done.stderr.splitlines()[-20:]))
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def read_rows(folder: Path) -> list[Column]:
    """The columns of the rows that a program wrote."""
    import pyarrow.csv

    options = pyarrow.csv.ReadOptions(autogenerate_column_names=True)
    table = pyarrow.csv.read_csv(folder / "rows.csv", options)
    return [column.to_numpy() for column in table.columns]
