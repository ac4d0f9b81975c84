# Hundreds of filters fall asleep and wake with each batch, so what that takes is in C.

import cython

from millrace.operators.frame.buffer cimport Buffer
from millrace.operators.frame.inlet cimport Inlet


cdef class Routing:
    cdef public Buffer _buffer, quiet
    cdef public object _may_sleep, index
    cdef public list _members, due, others
    cdef public dict asleep, awake

    @cython.locals(reader=Inlet)
    cpdef put(self, batch)

    @cython.locals(reader=Inlet)
    cpdef promised(self, promise)

    @cython.locals(buffer=Buffer, output=Buffer, promise=cython.longlong, reader=Inlet)
    cpdef _let_sleep(self)

    @cython.locals(passed=cython.longlong)
    cpdef _wake(self, Inlet reader)
