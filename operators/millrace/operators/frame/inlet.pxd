import cython

from millrace.operators.frame.buffer cimport Buffer, Gauge
from millrace.values.batch cimport Batch


cdef class Inlet:
    cdef public Buffer arc, buffer
    cdef public object columns, consumer, grain, names, punctuations, schema, since_us
    cdef public bint unseen
    cdef public long long ignored, peak, place, position, punctuation_us, register, skipped, took, width
    cdef public long long _offset, _segment

    @cython.locals(batch=Batch, buffer=Buffer, gauge=Gauge, count=cython.longlong, index=cython.longlong, left=cython.longlong,
                   missing=cython.longlong, start=cython.longlong)
    cpdef take(self, long long limit)
    cpdef pass_punctuations(self)
    cpdef mark_seen(self)

    @cython.locals(buffer=Buffer, promise=cython.longlong)
    cpdef long long low_water(self)
