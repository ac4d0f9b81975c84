# The rows that moves read are compiled classes.

import cython

from millrace.engine.scheduler.table cimport Next, Row
from millrace.operators.frame.buffer cimport Buffer


cpdef forward(Row row)
cpdef leap(Row row)
cpdef encore(Row row)
cpdef backtrack(Row row)

@cython.locals(buffer=Buffer)
cpdef branch(Row row)
