"""Set up `.venv`: an environment, the locked packages, the compiled kernels and Millrace itself, with progress.

    python3 bootstrap.py demo     the packages of a server; kernels compile in the background (`make demo`)
    python3 bootstrap.py server   the packages of a server, and compiled kernels (`make server`)
    python3 bootstrap.py dev      the packages of the tests too, and compiled kernels (`make setup`)

Rule: this file needs only Python and is never silent for 5 seconds. Each stage leaves a stamp with the digest of the
files it depends on, so a second call takes a moment. `uv` installs the packages if it is available, else pip.
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
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE / ".venv"
PYTHON = VENV / "bin" / "python"
# Packages that compile the kernels and build Millrace, then those that run it: the first are small, so that compiling
# starts while the others are still being downloaded.
BUILD = "requirements/build.lock"
LOCKS = {
    "demo": "requirements/server.lock",
    "server": "requirements/server.lock",
    "dev": "requirements/dev.lock",
}
KERNELS_LOG = ".venv/kernels.log"
SILENCE_SECONDS = 4.0


def main(kind: str) -> None:
    started = time.monotonic()
    created = create_environment()
    install_packages(BUILD)
    packages = start_packages(LOCKS[kind])
    kernels = start_kernels()
    follow([kernels, *([packages] if packages else [])], until=packages if kind == "demo" else None)
    if packages is not None:
        stamp(LOCKS[kind])
    millrace = install_millrace()
    if kind == "demo" and kernels.process.poll() is None:
        say(f"kernels are compiling in the background (log: {KERNELS_LOG}); until the next start Millrace runs without")
    if created or packages is not None or millrace:
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
    """Install the packages of a lock file, unless they are installed."""
    if stamp_file(lock).exists() and stamp_file(lock).read_text() == digest(lock):
        return None
    count = (HERE / lock).read_text().count("==")
    say(f"installing {count} packages of {lock}")
    command = [*installer(), "--require-hashes", "--requirement", lock]
    return start(command, "packages", count)


def start_kernels() -> Job:
    """Compile outdated modules at low priority. The process may outlive this one."""
    log = HERE / KERNELS_LOG
    with log.open("w") as output:
        process = subprocess.Popen(
            ["nice", str(PYTHON), "-u", "build_hook.py"],
            cwd=HERE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    return Job(process, "kernels", log=log)


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
    # Compiled files take a sixth of the disk; Python writes those of the modules it imports.
    flags = ["--disable-pip-version-check", "--progress-bar", "off", "--no-compile"]
    return [str(PYTHON), "-m", "pip", "install", *flags]


# -- stamps ------------------------------------------------------------------------------------------------------------


def digest(*files: str) -> str:
    return hashlib.sha256(b"".join((HERE / file).read_bytes() for file in files)).hexdigest()


def stamp_file(name: str) -> Path:
    return VENV / f".installed-{Path(name).stem}"


def stamp(lock: str) -> None:
    stamp_file(lock).write_text(digest(lock))


# -- processes that report progress ------------------------------------------------------------------------------------


class Job:
    """A running process: its purpose in a word, the number of packages it installs, and the lines it printed."""

    def __init__(self, process: subprocess.Popen[str], purpose: str, count: int = 0, log: Path | None = None) -> None:
        self.process = process
        self.purpose = purpose
        self.count = count
        self.log = log
        self.collected = 0
        self.lines: list[str] = []

    def progress(self, line: str) -> str | None:
        """The line for the terminal, if this line of the process deserves one."""
        self.lines.append(line)
        if self.log is not None:
            return line
        if line.startswith("Collecting "):
            self.collected += 1
            name = line.split()[1].partition("==")[0]
            return f"downloading {self.collected}/{self.count} ({name})" if self.collected % 5 == 1 else None
        if self.count and line.startswith("Installing collected packages"):
            return f"unpacking {self.count} packages"
        return None

    def output(self) -> Iterator[str]:
        """Its lines, as it prints them, until it ends."""
        if self.log is None:
            assert self.process.stdout is not None
            with self.process.stdout as pipe:
                yield from pipe
            return
        with self.log.open() as file:
            ended = False
            while not ended:
                ended = self.process.poll() is not None
                yield from file
                time.sleep(0.1)


def start(command: list[str], purpose: str, count: int = 0) -> Job:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "MILLRACE_KERNELS": "later"}
    process = subprocess.Popen(
        command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    return Job(process, purpose, count)


def follow(jobs: list[Job], until: Job | None = None) -> None:
    """Print the progress of the jobs until all, or the named one, have ended; exit if one fails."""
    lines: queue.Queue[tuple[Job, str | None]] = queue.Queue()
    for job in jobs:
        threading.Thread(target=forward, args=(job, lines), daemon=True).start()
    running, started = list(jobs), time.monotonic()
    while until in running if until else running:
        try:
            job, line = lines.get(timeout=SILENCE_SECONDS)
        except queue.Empty:
            say(f"still busy with {' and '.join(job.purpose for job in running)} ({time.monotonic() - started:.0f} s)")
            continue
        if line is None:
            running.remove(job)
            finish(job)
        elif report := job.progress(line):
            say(report)


def forward(job: Job, lines: queue.Queue[tuple[Job, str | None]]) -> None:
    for line in job.output():
        lines.put((job, line.rstrip()))
    lines.put((job, None))


def finish(job: Job) -> None:
    if job.process.wait() != 0:
        print("\n".join(job.lines[-20:]), file=sys.stderr)
        reason = "the lines above say why. Run the same command again to resume."
        sys.exit(f"setup: could not install {job.purpose}; {reason}")


def run(command: list[str], purpose: str) -> None:
    follow([start(command, purpose)])


def say(line: str) -> None:
    print(line if line.startswith(("kernels:", "parser:")) else f"setup: {line}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in LOCKS:
        sys.exit(f"usage: python3 bootstrap.py {' | '.join(LOCKS)}")
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit("setup: interrupted; run the same command again to resume")
