"""Load a kernel both ways: as it is installed, and as plain Python from its source."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import millrace.values.kernels

ROOT = Path(millrace.values.kernels.__file__).parents[2]
# Shared kernels by their own names, an operator's kernel by the name of its folder.
KERNELS = {path.stem: path for path in ROOT.glob("values/kernels/[!_]*.py")} | {
    path.parent.name: path for path in ROOT.glob("operators/*/kernel.py")
}
NAMES = sorted(KERNELS)


def installed(name: str) -> ModuleType:
    """The kernel as Millrace imports it: compiled where possible."""
    return importlib.import_module(".".join(("millrace", *KERNELS[name].relative_to(ROOT).with_suffix("").parts)))


def uncompiled(name: str) -> ModuleType:
    """The same file run by Python, under another name so that both can be loaded."""
    spec = importlib.util.spec_from_file_location(f"uncompiled_{name}", KERNELS[name])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def both_ways(name: str) -> pytest.MarkDecorator:
    """Run a test with its `kernel` argument installed and uncompiled: `@both_ways("arithmetic")`."""
    return pytest.mark.parametrize("kernel", [installed(name), uncompiled(name)], ids=["installed", "uncompiled"])
