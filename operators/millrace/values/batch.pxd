# Every operator makes batches, and every module on the way of a tuple reads their times.

import cython


cdef class Batch:
    cdef public object schema, ts, arrival, _weight
    cdef public tuple columns, valid


@cython.locals(count=cython.longlong)
cpdef take_times(times, rows)

cpdef constant_int64(value, long long count)
