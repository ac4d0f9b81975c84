import cython

from millrace.engine.scheduler.component cimport Component


@cython.locals(component=Component, done=cython.longlong, used=cython.longlong)
cpdef work(engine, effects, budget, executions)
