"""The contents of an installation, compiled or not."""

import importlib
import importlib.machinery
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

from millrace.engine import engine
from millrace.engine.scheduler import component, rules
from millrace.operators.frame import buffer, operator
from millrace.values import kernels
from tests.kernels import NAMES, installed

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = [
    "server/millrace/access",
    "server/millrace/backfill",
    "server/millrace/cli",
    "server/millrace/console",
    "server/millrace/formats",
    "server/millrace/history",
    "server/millrace/http",
    "server/millrace/journal",
    "server/millrace/net",
    "server/millrace/observe",
    "server/millrace/offline",
    "server/millrace/run",
    "server/millrace/spark",
    "server/millrace/standby",
    "server/millrace/store",
    "operators/millrace/changes",
    "operators/millrace/engine",
    "operators/millrace/functions",
    "operators/millrace/operators",
    "operators/millrace/sql",
    "operators/millrace/values",
    "protocol/millrace/client",
    "protocol/millrace/protocol",
]


def test_every_package_is_typed():
    present = [package for package in PACKAGES if any((REPOSITORY / package).rglob("*.py"))]
    assert [package for package in present if not (REPOSITORY / package / "py.typed").is_file()] == []


def test_every_package_is_listed():
    present = {
        f"{root}/millrace/{path.name}"
        for root in ("server", "operators", "protocol")
        for path in (REPOSITORY / root / "millrace").iterdir()
        if path.is_dir() and path.name != "__pycache__"
    }
    assert present - set(PACKAGES) == set()


@pytest.mark.parametrize("name", NAMES)
def test_kernels_are_importable_all_compiled_or_none(name):
    assert str(installed(name).__file__).endswith(".py") is not kernels.compiled()
    if os.environ.get("MILLRACE_NO_KERNELS", "") not in ("", "0"):
        assert not kernels.compiled()


def test_all_kernels_are_compiled_or_none():
    compiled = [not str(module.__file__).endswith(".py") for module in (component, engine, rules, buffer, operator)]
    assert set(compiled) == {kernels.compiled()}


def test_a_compiled_file_that_is_older_than_its_source_is_noticed(monkeypatch, tmp_path):
    assert kernels.outdated() == []
    source, compiled = tmp_path / "edited.py", tmp_path / f"edited{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    for number, path in enumerate((source, compiled)):
        path.touch()
        os.utime(path, ns=(number, number))
    edited = types.ModuleType("millrace.edited")
    edited.__file__ = str(compiled)
    monkeypatch.setitem(sys.modules, "millrace.edited", edited)
    assert kernels.outdated() == []
    os.utime(source, ns=(2, 2))
    assert kernels.outdated() == ["millrace.edited"]
    monkeypatch.setattr(kernels, "CHECKOUT", tmp_path / "build_hook.py")
    assert kernels.outdated() == []  # a regular installation, whose files are not edited


def test_the_client_depends_on_msgpack_alone():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert [requirement.split(">")[0] for requirement in project["dependencies"]] == ["msgpack"]


def test_the_installed_version_is_the_project_s():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert importlib.metadata.version("millrace") == project["version"]


def test_the_lock_has_every_hash_and_no_index():
    for lock in (REPOSITORY / "requirements").glob("*.lock"):
        requirements = lock.read_text().replace("\\\n", "").splitlines()
        pinned = [line for line in requirements if line and not line.lstrip().startswith("#")]
        assert pinned
        assert [line for line in pinned if "==" not in line or "--hash=sha256:" not in line] == []
        assert "://" not in lock.read_text()


@pytest.mark.parametrize("name", ["server", "build"])
def test_an_image_has_the_tested_versions(name):
    """An image has the same versions that `make check` runs."""
    pins = {lock: set(re.findall(r"^([\w.-]+==\S+)", pinned(lock), re.MULTILINE)) for lock in (name, "dev")}
    assert pins[name]
    assert pins[name] - pins["dev"] == set()


def pinned(lock):
    return (REPOSITORY / f"requirements/{lock}.lock").read_text()


# --- the build hook, on a small separate tree ---


@pytest.fixture
def tree(tmp_path):
    """A copy of the build hook with one tiny kernel."""
    shutil.copy(REPOSITORY / "build_hook.py", tmp_path)
    folder = tmp_path / "operators/millrace/values/kernels"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "tiny.py").write_text(TINY)
    return tmp_path


TINY = "import cython\n\n\ndef compiled() -> bool:\n    return cython.compiled\n"


def build(tree, **environment):
    inherited = {name: value for name, value in os.environ.items() if name != "MILLRACE_NO_KERNELS"}
    result = subprocess.run(
        [sys.executable, "build_hook.py"],
        cwd=tree,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr == ""
    return result.stdout


def compiled_files(tree):
    return sorted(path.name for path in tree.rglob("tiny.*") if path.suffix in (".so", ".pyd"))


def runs_compiled(tree):
    code = "from millrace.values.kernels import tiny; print(tiny.compiled())"
    environment = os.environ | {"PYTHONPATH": str(tree / "operators")}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_without_a_compiler_one_line_is_printed_and_python_runs(tree):
    output = build(tree, CC="no-such-compiler")
    reason = "no C compiler: no-such-compiler not found"
    assert output == f"kernels: not compiled, running as Python: slower, same results ({reason})\n"
    assert runs_compiled(tree) == "False\n"


def test_a_compiled_kernel_that_may_not_be_used_is_removed(tree):
    stale = tree / "operators/millrace/values/kernels" / f"tiny{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    stale.write_bytes(b"an older build")
    output = build(tree, MILLRACE_NO_KERNELS="1")
    assert "MILLRACE_NO_KERNELS is set" in output
    assert compiled_files(tree) == []
    assert runs_compiled(tree) == "False\n"


def test_a_kernel_that_cython_refuses_leaves_python(tree):
    (tree / "operators/millrace/values/kernels/tiny.py").write_text("def broken(:\n")
    assert build(tree).startswith("kernels: not compiled")
    assert compiled_files(tree) == []


def test_without_kernels_compiled_files_are_removed(tree):
    source = tree / "operators/millrace/values/kernels/tiny.py"
    source.with_name(f"tiny{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_bytes(b"compiled once")
    source.unlink()
    assert build(tree) == "kernels: 0 compiled, up to date\n"
    assert compiled_files(tree) == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_with_a_compiler_only_changed_kernels_are_compiled_again(tree):
    assert build(tree) == "kernels: compiled 1/1 (tiny)\nkernels: 1 compiled\n"
    assert runs_compiled(tree) == "True\n"
    assert build(tree) == "kernels: 1 compiled, up to date\n"
    source = tree / "operators/millrace/values/kernels/tiny.py"
    os.utime(source, ns=(newer := source.stat().st_mtime_ns + 60_000_000_000, newer))
    assert build(tree).endswith("\nkernels: 1 compiled\n")
    assert sorted(path.name for path in tree.iterdir()) == ["build_hook.py", "operators"]


def test_the_scheduler_is_compiled_next_to_its_source(tree):
    folder = tree / "operators/millrace/engine/scheduler"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "rules.py").write_text("def last(row: list[int], at: int) -> int:\n    return row[at] + 2**70\n")
    (folder / "views.py").write_text("")
    *progress, line = build(tree).splitlines()
    assert line == "kernels: 2 compiled"
    assert [report.partition(" (")[0] for report in progress] == ["kernels: compiled 1/2", "kernels: compiled 2/2"]
    compiled = [path for path in folder.iterdir() if path.suffix in (".so", ".pyd")]
    assert [path.name.partition(".")[0] for path in compiled] == ["rules"]
    code = "from millrace.engine.scheduler import rules; print(rules.__file__, rules.last([1, 2], -1) == 2 + 2**70)"
    environment = os.environ | {"PYTHONPATH": str(tree / "operators")}
    completed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert completed.stdout == f"{compiled[0]} True\n"
    (folder / "rules.py").unlink()
    assert build(tree) == "kernels: 1 compiled, up to date\n"
    assert [path for path in folder.iterdir() if path.suffix in (".so", ".pyd")] == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_changed_declaration_compiles_the_modules_of_the_scheduler_again(tree):
    """They share the layout of the declared classes."""
    folder = tree / "operators/millrace/operators/frame"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    for name in ("buffer", "inlet"):
        (folder / f"{name}.py").write_text("class Counted:\n    def __init__(self):\n        self.count = 1\n")
    declaration = folder / "buffer.pxd"
    declaration.write_text("cdef class Counted:\n    cdef public long long count\n")
    assert build(tree).endswith("\nkernels: 3 compiled\n")
    assert build(tree) == "kernels: 3 compiled, up to date\n"
    os.utime(declaration, ns=(newer := declaration.stat().st_mtime_ns + 60_000_000_000, newer))
    assert [line.partition(" (")[0] for line in build(tree).splitlines()] == [
        "kernels: compiled 1/2",
        "kernels: compiled 2/2",
        "kernels: 3 compiled",
    ]


@pytest.mark.parametrize("declaration", sorted((REPOSITORY / "operators").rglob("*.pxd")), ids=lambda path: path.stem)
def test_declarations_have_the_fields_of_their_classes(declaration):
    """A field that only one of the two names would be missing in one way of running."""
    module = importlib.import_module(".".join(declaration.relative_to(REPOSITORY / "operators").with_suffix("").parts))
    for name, body in re.findall(r"^cdef class (\w+):\n((?:(?: .*)?\n)+)", declaration.read_text(), re.MULTILINE):
        fields = re.findall(r"^    cdef (?:public )?(?:long long|\w+) (.+)$", body, re.MULTILINE)
        declared = [field.strip() for line in fields for field in line.split(",")]
        assert sorted(declared) == sorted(getattr(module, name).__slots__)
