"""The low-level table: a place per group, and a collision where two groups have the same (OOP, figure 7).

`index` has a row's number + 1 by place, or 0 where it is empty. A row of `stored` is a group's pane and its key, in
`width` int64. Rows that no place refers to are on the stack `free`, of which the first `left` count.
"""

import cython

# Of a hash, so that its product with the number of places stays within 64 bits.
LOW = cython.declare(cython.longlong, 0xFFFFFFFF)


def place(
    keys: cython.const[cython.longlong][::1],
    width: cython.Py_ssize_t,
    hashes: cython.const[cython.longlong][::1],
    index: cython.int[::1],
    stored: cython.longlong[::1],
    free: cython.const[cython.longlong][::1],
    left: cython.Py_ssize_t,
    rows: cython.longlong[::1],
    evicted: cython.longlong[::1],
) -> tuple[int, int]:
    """Put the row of each tuple's group into `rows`, and the rows that lost their places, in turn, into `evicted`.

    Returns how many those are, and how many free rows are left; there is one for each tuple.
    """
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    at: cython.Py_ssize_t
    row: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    places: cython.longlong = index.shape[0]
    if not cython.compiled:
        keys, hashes, index = memoryview(keys), memoryview(hashes), memoryview(index)
        stored, free, rows, evicted = memoryview(stored), memoryview(free), memoryview(rows), memoryview(evicted)
    with cython.nogil:
        for i in range(rows.shape[0]):
            at = ((hashes[i] & LOW) * places) >> 32
            row = index[at] - 1
            if row >= 0:
                j = 0
                while j < width and stored[row * width + j] == keys[i * width + j]:
                    j += 1
                if j == width:
                    rows[i] = row
                    continue
                evicted[count] = row
                count += 1
            left -= 1
            row = free[left]
            for j in range(width):
                stored[row * width + j] = keys[i * width + j]
            index[at] = row + 1
            rows[i] = row
    return count, left


def leave(
    index: cython.int[::1],
    stored: cython.const[cython.longlong][::1],
    width: cython.Py_ssize_t,
    beyond: cython.longlong,
    at: cython.Py_ssize_t,
    rows: cython.longlong[::1],
) -> tuple[int, int]:
    """Empty the places from `at` on whose groups are in panes before `beyond`, as many as `rows` has room for.

    Returns how many those are, and the place to continue at. (SlowFlush of the figure.)
    """
    row: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    if not cython.compiled:
        index, stored, rows = memoryview(index), memoryview(stored), memoryview(rows)
    with cython.nogil:
        while at < index.shape[0] and count < rows.shape[0]:
            row = index[at] - 1
            if row >= 0 and stored[row * width] < beyond:
                index[at] = 0
                rows[count] = row
                count += 1
            at += 1
    return count, at
