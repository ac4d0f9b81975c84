"""Invariants of a queue's pages and books."""

from __future__ import annotations

from millrace.operators.queues import update
from millrace.operators.queues.update import UpdateQueue
from millrace.operators.queues.windows import WindowQueue


def audit_tuples(made: UpdateQueue) -> None:
    """Every waiting tuple has a separate slot, every page in use has a tuple, and no tuple is lost."""
    books = made._pages
    slots = made._in_line()
    locations = made._cells.reshape(-1, update.CELL)[slots, update.LOCATION].tolist()
    assert len(set(locations)) == len(locations) == made.waiting == books.in_use()
    assert len({at // books.slots for at in locations}) == books.taken
    assert books.taken + books.free == books._count


def audit_windows(made: WindowQueue) -> None:
    """Every block is in one buffer or in the pool, every counted block exists, and a key's state fits its window."""
    states = made._states.values()
    buffers = [buffer for state in states for buffer in (state.arrivals.buffer, state.processing.buffer)]
    blocks = [at for buffer in buffers for at in buffer.locations]
    assert len(set(blocks)) == len(blocks) == made.paging.in_use
    assert len({at // made._pages.slots for at in blocks}) == made.paging.taken
    assert made._blocks.count == sum(buffer.count for buffer in buffers)
    assert not made._blocks.released
    assert made._committed == sum(state.processing.start_us is not None for state in states)
    assert made._servable == sum(made._states[key].processing.start_us is None for key in made._line)
    assert made.waiting == sum(state.takeable for state in states)
    for key, state in made._states.items():
        arrivals, processing = state.arrivals, state.processing
        pending = arrivals.pending_us
        if pending is not None:
            times = arrivals.buffer.times().tolist()
            assert arrivals.available == sum(0 <= at - pending < made.window.size_us for at in times)
        assert (key in made._line) == (pending is not None)
        assert (key in made._ready) == (processing.start_us is not None and not processing.idle)
        assert not (processing.idle and (processing.buffer.count or processing.arrived(made._reach(state))))
