"""Loops over arrays, in Python that Cython compiles when the package is built (`build_hook.py`).

A kernel's arguments are one-dimensional arrays that its wrapper has allocated and checked; a kernel allocates nothing
and raises nothing. Uncompiled it views its arrays through `memoryview`, so that elements are Python's exact numbers and
not numpy's, and says in `if not cython.compiled` what C does by itself. Both ways give the same results, and the tests
run both: `make test-pure` runs the whole suite without a compiled kernel.
"""

from millrace.operators.kernels import arithmetic


def compiled() -> bool:
    """Whether this installation's kernels are compiled; all are or none is."""
    return not arithmetic.__file__.endswith(".py")
