"""The ledger: the newest changes that were applied, each with its inverse."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from millrace.changes.change import Change, Planned
from millrace.changes.table import read
from millrace.protocol import Refuse
from millrace.sql import Catalog as Definitions

# How many applied changes it keeps.
KEPT: Final = 1_000


class Applied(BaseModel):
    """Changes that were applied as one: their number, when, and by whom.

    author     the name of the client's token, or what is known of a client without one
    client     its address, and the program
    text       a sentence
    inverse    the changes that undo it, which refer to objects by id; None if nothing does
    lost       why nothing does, or what undoing it does not bring back
    undoes     the number of the change that it has undone, and `undone_by` of the one that has undone it
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    number: int
    at_us: int
    author: str
    text: str
    changes: list[dict[str, Any]]
    inverse: list[dict[str, Any]] | None = None
    lost: str | None = None
    undoes: int | None = None
    undone_by: int | None = None
    client: str = ""


def row_of(entry: Applied) -> tuple[Any, ...]:
    """An entry as a row of the stream `millrace.changes`; `statements` has the changes as JSON, as
    `POST /api/v1/changes` takes them."""
    changes = json.dumps(entry.changes, ensure_ascii=False)
    return entry.number, entry.at_us, entry.author, entry.client, entry.text, changes, entry.undoes


class Ledger:
    """The applied changes of one server, oldest first. `dirty` has the numbers that are not on the disk yet, and
    `on_entered` is called with each new entry."""

    def __init__(self) -> None:
        self.on_entered: Callable[[Applied], None] = lambda _: None
        self._applied: dict[int, Applied] = {}
        self._last = 0
        self.dirty: set[int] = set()

    def load(self, entries: Iterable[Applied]) -> None:
        for entry in entries:
            self._applied[entry.number] = entry
            self._last = max(self._last, entry.number)

    def entry(
        self,
        plans: Sequence[Planned],
        before: Definitions,
        at_us: int,
        author: str,
        undoes: int | None = None,
        client: str = "",
    ) -> Applied:
        """The next entry: changes that are applied as one to these definitions."""
        inverses: list[list[dict[str, Any]]] = []
        for plan in plans:
            # What it created is in the definitions after it, what it dropped in those before.
            inverses.append([change.bound(plan.definitions, before).record() for change in plan.inverse or ()])
            before = plan.definitions
        known = all(plan.inverse is not None for plan in plans)
        inverse = [record for records in reversed(inverses) for record in records] if known else None
        lost = [plan.lost for plan in plans if plan.lost is not None and (known or plan.inverse is None)]
        return Applied(
            number=self._last + 1,
            at_us=at_us,
            author=author,
            text="; ".join(plan.sentence for plan in plans),
            changes=[plan.change.record() for plan in plans],
            inverse=inverse,
            lost="; ".join(dict.fromkeys(lost)) or None,
            undoes=undoes,
            client=client,
        )

    def enter(self, entry: Applied) -> None:
        """The changes of an entry were applied."""
        self._last = entry.number
        self._put(entry)
        if entry.undoes is not None and entry.undoes in self._applied:
            self._put(self._applied[entry.undoes].model_copy(update={"undone_by": entry.number}))
        while len(self._applied) > KEPT:
            del self._applied[next(iter(self._applied))]
        self.on_entered(entry)

    def _put(self, entry: Applied) -> None:
        self._applied[entry.number] = entry
        self.dirty.add(entry.number)

    def entries(self) -> list[Applied]:
        return list(self._applied.values())

    def since(self, number: int) -> list[Applied]:
        """The entries after this one, oldest first."""
        return [self._applied[later] for later in range(number + 1, self._last + 1) if later in self._applied]

    def newest(self) -> int | None:
        """The number of the newest change; None before the first."""
        return self._last or None

    def unwritten(self) -> list[Applied]:
        """The entries that are not on the disk yet."""
        return [self._applied[number] for number in sorted(self.dirty) if number in self._applied]

    def find(self, number: int | None) -> Applied:
        """The change of this number; without one, the newest that is not undone and undoes nothing itself."""
        if number is not None:
            if number not in self._applied:
                kept = f"; the oldest in the ledger is {next(iter(self._applied))}" if self._applied else ""
                raise Refuse(f"change {number} does not exist{kept}", code="unknown_change")
            return self._applied[number]
        for entry in reversed(self._applied.values()):
            if entry.undone_by is None and entry.undoes is None:
                return entry
        raise Refuse("there is no change to undo", code="unknown_change")

    def inverse(self, entry: Applied) -> list[Change]:
        """The changes that undo an entry. Raises Refuse."""
        if entry.undone_by is not None:
            raise Refuse(f"change {entry.number} was undone by change {entry.undone_by}", code="undone")
        if not entry.inverse:
            raise Refuse(f"change {entry.number} cannot be undone: {entry.lost}", code="not_undoable")
        return [read(record) for record in entry.inverse]
