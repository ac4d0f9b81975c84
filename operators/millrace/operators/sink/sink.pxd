import cython

from millrace.operators.frame.inlet cimport Inlet
from millrace.operators.frame.operator cimport Counts
from millrace.values.batch cimport Batch


@cython.locals(batch=Batch, count=cython.longlong)
cpdef _drain(Inlet reader, Counts counts)
