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
    cells = made._cells.values()
    blocks = [at for cell in cells for buffer in (cell.arriving, cell.processing) for at in buffer.locations]
    assert len(set(blocks)) == len(blocks) == made.paging.in_use
    assert len({at // made._pages.slots for at in blocks}) == made.paging.taken
    assert made._arriving == sum(cell.arriving.count for cell in cells)
    assert made._processing == sum(cell.processing.count for cell in cells)
    assert made._committed == sum(cell.committed is not None for cell in cells)
    assert made._servable == sum(made._cells[key].committed is None for key in made._line)
    assert made.waiting == sum(cell.takeable for cell in cells)
    for key, cell in made._cells.items():
        if made.commit == "lazy":
            times = made._pages.ts[cell.arriving.rows()].tolist()
            inside = [at for at in times if cell.waits is not None and cell.waits <= at < made._end(cell.waits)]
            assert cell.inside == len(inside)
        assert (key in made._line) == (cell.waits is not None)
        assert (key in made._ready) == (cell.committed is not None and not cell.idle)
        assert not (cell.idle and (cell.processing.count or made._arrived(cell)))
