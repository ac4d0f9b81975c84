"""The stream `millrace.changes`: the ledger of changes as rows, for subscribers.

Rule: the row of change n has the sequence number n. A row never changes: that a change was undone is the row of another
one. The rows are made of the ledger, so they are as durable as it is, and a start or a promotion makes them again.
Queries get each row in the step of its change, from the engine's stream of the same name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.changes.ledger import KEPT, Applied, row_of
from millrace.engine.plan import CHANGE_STREAM
from millrace.net.sink import Outlet, Retention, new_history
from millrace.values.batch import Batch

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon


class ChangeLog:
    """The outlet of a server's changes."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._outlet: Outlet | None = None

    def start(self) -> None:
        """Serve subscribers: the rows so far are there, and each change adds one."""
        ledger, durability = self._daemon.catalog.ledger, self._daemon.durability
        entries = ledger.entries()
        next_number = (ledger.newest() or 0) + 1
        first = entries[0].number if entries else next_number
        history = new_history() if durability is None else _history(durability.server_id)
        keep = Retention(KEPT)
        outlet = Outlet(
            CHANGE_STREAM.name, CHANGE_STREAM.schema, keep, lambda _: None, history=history, next_sequence=first
        )
        self._daemon.runner.built_in[CHANGE_STREAM.name] = self._outlet = outlet
        for entry in entries:
            self.add(entry)
        outlet.next_sequence = next_number
        ledger.on_entered = self.add

    def add(self, entry: Applied) -> None:
        """A change was applied."""
        assert self._outlet is not None
        self._outlet.deliver(entry.number, rows_of([entry]))
        self._daemon.broadcasts.wake()


def rows_of(entries: Sequence[Applied]) -> Batch:
    """Entries of the ledger as rows."""
    return Batch.from_rows(CHANGE_STREAM.schema, list(map(row_of, entries)), [entry.at_us for entry in entries])


def _history(server_id: bytes) -> str:
    """The name of this count: the data directory's, also after a restart or a promotion."""
    return hashlib.sha256(b"changes of " + server_id).hexdigest()[:16]
