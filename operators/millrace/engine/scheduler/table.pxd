# Rows and moves as compiled classes: the scheduler reads their fields from C.

import cython

from millrace.operators.frame.buffer cimport Buffer
from millrace.operators.frame.inlet cimport Inlet


cdef class Next:
    cdef public object operator
    cdef public bint execute


cdef class Row:
    cdef public object operator, role, strategy, link
    cdef public tuple preds, succs, readers, sinks, moves, ets_arcs, back, branches
    cdef public Next ahead, again
    cdef public bint leaves
    cdef public long long limit

    @cython.locals(output=Buffer, reader=Inlet)
    cpdef bint yields(self)

    @cython.locals(register=Inlet)
    cpdef register_target(self)
