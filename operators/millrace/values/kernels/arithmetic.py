"""Arithmetic on int64 columns that notices when a result does not fit.

Each function fills `out` with the results modulo 2**64 and returns whether any of them overflowed; what an overflow
means (an error, and of which row) is the caller's to say. `out` may be one of the inputs.
"""

import cython


@cython.cfunc
@cython.inline
def wrap(value: cython.longlong) -> cython.longlong:
    """The int64 to which C's arithmetic wraps `value`; Python's integers do not wrap."""
    if cython.compiled:
        return value
    return ((value + 2**63) & (2**64 - 1)) - 2**63


def add_checked(
    a: cython.const[cython.longlong][:], b: cython.const[cython.longlong][:], out: cython.longlong[:]
) -> bool:
    """out = a + b. The sum of two numbers of one sign overflowed if its sign is the other one."""
    i: cython.Py_ssize_t
    x: cython.longlong
    y: cython.longlong
    total: cython.longlong
    overflowed: cython.longlong = 0
    if not cython.compiled:
        a, b, out = memoryview(a), memoryview(b), memoryview(out)
    for i in range(a.shape[0]):
        x = a[i]
        y = b[i]
        total = wrap(x + y)
        out[i] = total
        overflowed |= (x ^ total) & (y ^ total)
    return overflowed < 0


def sub_checked(
    a: cython.const[cython.longlong][:], b: cython.const[cython.longlong][:], out: cython.longlong[:]
) -> bool:
    """out = a - b. The difference of two numbers of unlike sign overflowed if it lost the sign of the first."""
    i: cython.Py_ssize_t
    x: cython.longlong
    y: cython.longlong
    difference: cython.longlong
    overflowed: cython.longlong = 0
    if not cython.compiled:
        a, b, out = memoryview(a), memoryview(b), memoryview(out)
    for i in range(a.shape[0]):
        x = a[i]
        y = b[i]
        difference = wrap(x - y)
        out[i] = difference
        overflowed |= (x ^ y) & (x ^ difference)
    return overflowed < 0


def mul_checked(
    a: cython.const[cython.longlong][:], b: cython.const[cython.longlong][:], out: cython.longlong[:]
) -> bool:
    """out = a * b. A product overflowed if it is far from the same product in doubles.

    Wrapping moves a product by a multiple of 2**64 (about 1.8e19), rounding to double one that fits by at most a
    few thousand: any bound in between separates them.
    """
    i: cython.Py_ssize_t
    x: cython.longlong
    y: cython.longlong
    product: cython.longlong
    distance: cython.double
    overflowed: cython.bint = False
    if not cython.compiled:
        a, b, out = memoryview(a), memoryview(b), memoryview(out)
    for i in range(a.shape[0]):
        x = a[i]
        y = b[i]
        product = wrap(x * y)
        out[i] = product
        distance = float(x) * float(y) - float(product)
        if distance > 4e18 or distance < -4e18:
            overflowed = True
    return overflowed
