"""Update queues of windows: per key the newest window, whole or not at all (UPS, sections 6 and 7.2).

An update is a window here. LAZY commits to the newest window that has fully arrived, EAGER to the newest that has
started, and takes its tuples as they arrive. A key goes through the states of figure 10:

    WAIT    it has an update that the queue has not committed to, and a place in line
    READY   its window is being processed and has tuples to serve (or only its end)
    IDLE    its window is being processed, has not fully arrived, and has no tuples to serve at present

A key may wait while an earlier window of the same key is being processed; the later one is not served before the
earlier one has finished. The queue chooses the newest window when it commits; all older ones are superseded.

`buffers.py` stores tuples in blocks (figure 11), `arrivals.py` decides per key which window is its update,
`key_state.py` holds a key's states, `freshness.py` measures staleness, `queue.py` is the queue.
"""

from millrace.operators.queues.windows.arrivals import Commit
from millrace.operators.queues.windows.queue import FinishedWindow, ServedTuples, WindowQueue, update_keys

__all__ = ["Commit", "FinishedWindow", "ServedTuples", "WindowQueue", "update_keys"]
