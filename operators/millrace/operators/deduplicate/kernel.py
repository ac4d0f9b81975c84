"""Which rows of an ordered batch are the first of their key in a span of time."""

import cython


def first_of_spans(
    slots: cython.const[cython.longlong][:],
    times: cython.const[cython.longlong][:],
    within: cython.longlong,
    never: cython.longlong,
    last: cython.longlong[:],
    first: cython.uchar[:],
) -> None:
    """kept[i] says whether the key of row i has kept no row at its time or up to `within` earlier; last[slot] is the
    time of the row that the key kept last, or `never`."""
    i: cython.Py_ssize_t
    slot: cython.longlong
    if not cython.compiled:
        slots, times, last, first = memoryview(slots), memoryview(times), memoryview(last), memoryview(first)
    for i in range(slots.shape[0]):
        slot = slots[i]
        if last[slot] == never or times[i] - last[slot] > within:
            last[slot] = times[i]
            first[i] = 1
