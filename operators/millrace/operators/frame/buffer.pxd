# Buffer as a compiled class: its fields are in C, and calls from compiled modules skip the look-up by name.

import cython

from millrace.operators.frame.inlet cimport Inlet
from millrace.values.batch cimport Batch


cdef class Gauge:
    cdef public long long tuples, bytes, peak_tuples, peak_bytes

    cpdef add(self, long long tuples, long long width)


cdef class Buffer:
    cdef public object schema, segments, behind, routing, grain, tap
    cdef public list readers
    cdef public bytearray awake
    cdef public tuple absorbers, branches, entries
    cdef public dict ready
    cdef public Gauge gauge
    cdef public bint ordered, punctuates, texts
    cdef public long long first, end, promise, floor, left_out, held, width, turn
    cdef long long _due

    @cython.locals(count=cython.longlong, newest=cython.longlong, end=cython.longlong, gauge=Gauge, reader=Inlet)
    cpdef put(self, Batch batch)

    @cython.locals(before=cython.longlong)
    cpdef bint punctuate(self, long long value_us)

    @cython.locals(index=cython.longlong)
    cpdef passed(self, long long start, long long stop)

    cpdef _free(self)
    cpdef _pop(self)

    cpdef let_awake(self, Inlet reader)

    @cython.locals(awake=bytearray, place=cython.longlong, reader=Inlet)
    cpdef long long next_awake(self, long long turn)
