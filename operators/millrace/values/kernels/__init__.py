"""Loops over arrays, in Python that Cython compiles when the package is built (`build_hook.py`).

A kernel's arguments are one-dimensional arrays that its wrapper has allocated and checked; a kernel allocates nothing
and raises nothing. Uncompiled it views its arrays through `memoryview`, so that elements are Python's exact numbers and
not numpy's, and adds in `if not cython.compiled` what C does by itself. Both ways give the same results, and the tests
run both: `make test-pure` runs the whole suite without a compiled kernel.
"""

import sys
from pathlib import Path

from millrace.values.kernels import arithmetic

# Source code changes only in a checkout: an installation was written file by file, in any order.
CHECKOUT = Path(__file__).parents[4] / "build_hook.py"


def compiled() -> bool:
    """Whether this installation's kernels are compiled; all are or none is."""
    return not arithmetic.__file__.endswith(".py")


def outdated() -> list[str]:
    """Millrace's compiled modules whose source has been edited since."""
    if not CHECKOUT.exists():
        return []
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.copy().items()}
    return sorted(
        name
        for name, file in files.items()
        if file is not None and name.startswith("millrace.") and not file.endswith(".py") and _older(Path(file))
    )


def _older(compiled: Path) -> bool:
    source = compiled.with_name(compiled.name.partition(".")[0] + ".py")
    sources = [path for path in (source, source.with_suffix(".pxd")) if path.exists()]
    return any(compiled.stat().st_mtime_ns < path.stat().st_mtime_ns for path in sources)
