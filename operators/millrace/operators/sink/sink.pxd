import cython

from millrace.operators.frame.inlet cimport Inlet
from millrace.operators.frame.operator cimport Counts


@cython.locals(count=cython.longlong)
cpdef _drain(Inlet reader, Counts counts)
