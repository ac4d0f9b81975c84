# Component and Ready as compiled classes. Weights come from users and may be of any size, so they stay Python's integers.

import cython

from millrace.engine.scheduler.table cimport Next, Row
from millrace.operators.frame.inlet cimport Inlet
from millrace.operators.frame.operator cimport Counts


cdef class Ready:
    cdef public dict queue, slopes
    cdef public long long preferred
    cdef list _first

    cpdef add(self, operator)
    cpdef take(self)
    cpdef keep(self, Row row, long long taken)
    cpdef bint rotate(self, Row row)


cdef class Component:
    cdef public object name, strategy, weight, deficit, current, failed
    cdef public dict table
    cdef public Ready ready
    cdef public tuple sources, waiters, switching, sinks
    cdef public long long steps, cycled, decisions
    cdef public double worked_us
    cdef public bint has_work

    cpdef bint busy(self)

    @cython.locals(counts=Counts, row=Row, done=cython.longlong, errors=cython.longlong, taken=cython.longlong,
                   used=cython.longlong)
    cpdef run(self, long long budget, long long executions, effects, demand, propagate_demand, watch, bint trace)

    cpdef rotate(self)

    @cython.locals(row=Row)
    cpdef _begin(self, effects)

    @cython.locals(following=Next)
    cpdef _choose(self, Row row)

    @cython.locals(reader=Inlet)
    cpdef _drain(self, Row row, effects)

    @cython.locals(reader=Inlet)
    cpdef _empty(self, sink, effects)
