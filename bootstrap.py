"""Set up `.venv`: an environment, the locked packages, the compiled kernels and Millrace itself, with progress.

    python3 bootstrap.py server     what a server needs (`make demo`)
    python3 bootstrap.py dev        that, and what the tests need (`make setup`)

Rule: this file needs nothing but Python and never is silent for 5 seconds. Each stage leaves a stamp with the digest of
what it depends on, so a second call takes a moment. `uv` does the downloads where it is installed, else pip.
"""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE / ".venv"
PYTHON = VENV / "bin" / "python"
# Packages that compile the kernels and build Millrace, then those that run it: the first are small, so that compiling
# starts while the others are still on their way.
BUILD = "requirements/build.lock"
LOCKS = {"server": "requirements/server.lock", "dev": "requirements/dev.lock"}
SILENCE_SECONDS = 3.0


def main(kind: str) -> None:
    started = time.monotonic()
    created = create_environment()
    install_packages(BUILD)
    packages = start_packages(LOCKS[kind])
    kernels = start([str(PYTHON), "-u", "build_hook.py"], "kernels")
    follow([kernels] if packages is None else [packages, kernels])
    if packages is not None:
        stamp(LOCKS[kind])
    if install_millrace() or created or packages is not None:
        say(f"ready after {time.monotonic() - started:.0f} s")


# -- stages ------------------------------------------------------------------------------------------------------------


def create_environment() -> bool:
    """Whether there was none."""
    if (VENV / ".created").exists():
        return False
    say(f"Python {sys.version.split()[0]} environment in {VENV.name}")
    uv = shutil.which("uv")
    command = [uv, "venv", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
    run([*command, str(VENV)], "the environment")
    (VENV / ".created").touch()
    return True


def install_packages(lock: str) -> None:
    if job := start_packages(lock):
        follow([job])
        stamp(lock)


def start_packages(lock: str) -> Job | None:
    """Install the packages of a lock file, unless that has been done."""
    if stamp_file(lock).exists() and stamp_file(lock).read_text() == digest(lock):
        return None
    count = (HERE / lock).read_text().count("==")
    say(f"installing {count} packages of {lock}")
    command = [*installer(), "--require-hashes", "--requirement", lock]
    return start(command, "packages", count)


def install_millrace() -> bool:
    files = ["pyproject.toml", "build_hook.py"]
    if stamp_file("millrace").exists() and stamp_file("millrace").read_text() == digest(*files):
        return False
    run([*installer(), "--no-deps", "--no-build-isolation", "--editable", "."], "Millrace itself")
    stamp_file("millrace").write_text(digest(*files))
    return True


def installer() -> list[str]:
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", str(PYTHON)]
    return [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]


# -- stamps ------------------------------------------------------------------------------------------------------------


def digest(*files: str) -> str:
    return hashlib.sha256(b"".join((HERE / file).read_bytes() for file in files)).hexdigest()


def stamp_file(name: str) -> Path:
    return VENV / f".installed-{Path(name).stem}"


def stamp(lock: str) -> None:
    stamp_file(lock).write_text(digest(lock))


# -- processes that report progress ------------------------------------------------------------------------------------


class Job:
    """A process under way: what it does in a word, how many packages it installs, and the lines that it printed."""

    def __init__(self, process: subprocess.Popen[str], what: str, count: int) -> None:
        self.process = process
        self.what = what
        self.count = count
        self.seen = 0
        self.lines: list[str] = []

    def news(self, line: str) -> str | None:
        """A line for the terminal, if this line of the process is worth one."""
        self.lines.append(line)
        if self.what == "kernels":
            return line
        if line.startswith("Collecting "):
            self.seen += 1
            name = line.split()[1].partition("==")[0]
            return f"downloading {self.seen}/{self.count} ({name})" if self.seen % 5 == 1 else None
        if self.count and line.startswith("Installing collected packages"):
            return f"unpacking {self.count} packages"
        return None


def start(command: list[str], what: str, count: int = 0) -> Job:
    # The kernels give way to the packages: those decide when the first row can appear.
    process = subprocess.Popen(
        command,
        cwd=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=(lambda: os.nice(5)) if what == "kernels" and hasattr(os, "nice") else None,
    )
    return Job(process, what, count)


def follow(jobs: list[Job]) -> None:
    """Print what the jobs report until all have ended; end the program if one failed."""
    lines: queue.Queue[tuple[Job, str | None]] = queue.Queue()
    for job in jobs:
        threading.Thread(target=read, args=(job, lines), daemon=True).start()
    running, started = list(jobs), time.monotonic()
    while running:
        try:
            job, line = lines.get(timeout=SILENCE_SECONDS)
        except queue.Empty:
            say(f"still busy with {' and '.join(job.what for job in running)} ({time.monotonic() - started:.0f} s)")
            continue
        if line is None:
            running.remove(job)
            finish(job)
        elif news := job.news(line):
            say(news)


def read(job: Job, lines: queue.Queue[tuple[Job, str | None]]) -> None:
    assert job.process.stdout is not None
    with job.process.stdout as output:
        for line in output:
            lines.put((job, line.rstrip()))
    lines.put((job, None))


def finish(job: Job) -> None:
    if job.process.wait() != 0:
        print("\n".join(job.lines[-20:]), file=sys.stderr)
        sys.exit(f"setup: could not install {job.what}; the lines above say why. Run the same command again to resume.")


def run(command: list[str], what: str) -> None:
    follow([start(command, what)])


def say(line: str) -> None:
    print(line if line.startswith(("kernels:", "parser:")) else f"setup: {line}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] not in (["server"], ["dev"]):
        sys.exit("usage: python3 bootstrap.py server | dev")
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit("setup: interrupted; run the same command again to resume")
