"""The built wheel, installed into an empty environment, runs the README's first example."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "shop"
# The new interpreter must not find anything of this checkout on its path.
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("MILLRACE_")}


def run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, env={**CLEAN, **variables}, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.timeout(900)  # pip downloads packages that are not in its cache
def test_the_server_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    quietly = ("--quiet", "--no-compile", "--disable-pip-version-check")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", *quietly)
    run(*pip, "--require-hashes", "-r", ROOT / "requirements" / "server.lock")
    run(*pip, f"{wheel}[server]")
    millrace = tmp_path / "env" / "bin" / "millrace"
    rows = run(
        millrace, "run", SHOP / "shop.sql", "--events", SHOP / "morning.jsonl", "--late", f"door={tmp_path}/l.jsonl"
    )
    assert '{"ts":"2026-03-01T09:00:20Z","visitor":"ada","what":"paid 12 euros"}' in rows
    where = run(python, "-c", "import millrace.engine.engine as engine; print(engine.__file__)")
    assert str(tmp_path) in where


def test_the_client_and_its_imports_stay_small(wheel: Path) -> None:
    """The packages that a program with a client imports; compiled kernels take 1.5 MB of the wheel."""
    with zipfile.ZipFile(wheel) as files:
        own = sum(
            file.file_size
            for file in files.infolist()
            if file.filename.startswith(("millrace/client/", "millrace/protocol/"))
        )
    import msgpack

    package = Path(msgpack.__file__).parent
    others = sum(file.stat().st_size for file in package.rglob("*") if file.suffix in (".py", ".so", ".pyd"))
    assert own + others < 2_000_000
