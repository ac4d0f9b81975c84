"""Load a kernel both ways: as it is installed, and as plain Python from its source."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import millrace.operators.kernels

FOLDER = Path(millrace.operators.kernels.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


def installed(name: str) -> ModuleType:
    """The kernel as Millrace imports it: compiled where possible."""
    return importlib.import_module(f"millrace.operators.kernels.{name}")


def uncompiled(name: str) -> ModuleType:
    """The same file run by Python, under another name so that both can be loaded."""
    spec = importlib.util.spec_from_file_location(f"uncompiled_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def both_ways(name: str) -> pytest.MarkDecorator:
    """Run a test with its `kernel` argument installed and uncompiled: `@both_ways("arithmetic")`."""
    return pytest.mark.parametrize("kernel", [installed(name), uncompiled(name)], ids=["installed", "uncompiled"])
