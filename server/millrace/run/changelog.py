"""The stream `millrace.changes`: the ledger of changes as rows, for subscribers.

Rule: the row of change n has the sequence number n. A row never changes: that a change was undone is the row of another
one. The rows are made of the ledger, so they are as durable as it is, and a start or a promotion makes them again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from millrace.changes.ledger import KEPT, Applied
from millrace.net.sink import Outlet, Retention, new_history
from millrace.protocol import Field, Schema, Type
from millrace.values.batch import Batch

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

NAME: Final = "millrace.changes"
SCHEMA: Final = Schema(
    (
        Field("number", Type.BIGINT, nullable=False),
        Field("at", Type.TIMESTAMP, nullable=False),
        Field("author", Type.TEXT, nullable=False),
        Field("client", Type.TEXT, nullable=False),
        Field("change", Type.TEXT, nullable=False),
        Field("statements", Type.TEXT, nullable=False),
        Field("undoes", Type.BIGINT),
    )
)


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
        outlet = Outlet(NAME, SCHEMA, keep, lambda _: None, history=history, next_sequence=first)
        self._daemon.runner.built_in[NAME] = self._outlet = outlet
        for entry in entries:
            self.add(entry)
        outlet.next_sequence = next_number
        ledger.on_entered = self.add

    def add(self, entry: Applied) -> None:
        """A change was applied."""
        assert self._outlet is not None
        self._outlet.deliver(entry.number, rows_of([entry]))


def rows_of(entries: Sequence[Applied]) -> Batch:
    """Entries of the ledger as rows; `statements` has the changes as JSON, as `POST /api/v1/changes` takes them."""
    rows = [
        (
            entry.number,
            entry.at_us,
            entry.author,
            entry.client,
            entry.text,
            json.dumps(entry.changes, ensure_ascii=False),
            entry.undoes,
        )
        for entry in entries
    ]
    return Batch.from_rows(SCHEMA, rows, [entry.at_us for entry in entries])


def _history(server_id: bytes) -> str:
    """The name of this count: the data directory's, also after a restart or a promotion."""
    return hashlib.sha256(b"changes of " + server_id).hexdigest()[:16]
