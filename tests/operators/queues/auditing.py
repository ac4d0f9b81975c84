"""Invariants of a queue's pages and books.

What a queue serves is compared with an oracle, from outside. Memory and the papers' sets of keys show in no row: this
module reads them where they are, for all tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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


def mean_gaps(made: UpdateQueue) -> dict[Any, int]:
    """The measured time between the updates of each key that has one."""
    numbers = np.arange(made.keys)
    gaps = made._cells.reshape(-1, update.CELL)[numbers, update.GAP].tolist()
    return {key: gap for key, gap in zip(made._keys.rows(numbers), gaps, strict=True) if gap >= 0}


def held_texts(made: UpdateQueue) -> set[str]:
    """The texts to which the first column of a queue's pages refers, in use or not."""
    return set(made._pages.columns[0].tolist())


def states(made: WindowQueue) -> dict[Any, Any]:
    """What is known of each key, by figure 10."""
    return dict(made._states)


def waits(made: WindowQueue) -> list[Any]:
    """The keys of the figure's set WAIT, in order of service."""
    return list(made._line)


def ready(made: WindowQueue) -> list[Any]:
    """Those of its set READY."""
    return list(made._ready)


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
