# Operators stay ordinary classes, because most of them are not compiled; the objects that every execution writes to are
# compiled classes.

import cython

from millrace.operators.frame.buffer cimport Buffer
from millrace.operators.frame.inlet cimport Inlet
from millrace.values.batch cimport Batch


cdef class StepClock:
    cdef public long long now_us
    cdef public list requeued, turned


cdef class Counts:
    cdef public long long errors, executions, input_tuples, last_given, last_taken, output_tuples
    cdef public object last_error


@cython.locals(batch=Batch, rows=Batch, count=cython.longlong, emitted=cython.longlong, taken=cython.longlong)
cpdef long long _execute(operator, Inlet reader, Buffer output, Counts counts, long long limit)
