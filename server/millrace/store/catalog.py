"""The catalog on disk: the statements that made what exists, in the order in which they can be executed again, the
lowered plans of queries, and what was decided beyond them.

Rule: a file that cannot be read in full is left as it is, and the server does not start.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from millrace.changes.ledger import KEPT
from millrace.protocol import MillraceError
from millrace.run.config import is_writable

# Counted up when the tables change; a newer server reads older files, never the other way round.
# 1: statements. 2: decisions beside them. 3: lowered plans, and decisions that refer to operators by id. Older servers
# of this format do not know the tables of changes and ids, and leave them as they are.
VERSION: Final = 3
# Between the places of neighbouring statements, so that others fit between them. A statement that comes between two
# takes the next place but STEP, because a query, for example, precedes all sinks and follows all other queries.
SPACE: Final = 2**32
STEP: Final = 2**10


_NO_CHANGES: Final[Mapping[int, str]] = {}
_NO_IDS: Final[Mapping[str, int]] = {}
# In the table of ids: the place of the newest one, for which no statement may be there any more.
_NEWEST: Final = ""
_TABLES: Final = frozenset({"statements", "decisions", "plans", "changes", "ids"})


class StoreError(MillraceError):
    """The catalog's file cannot be read or written."""

    code = "catalog"


class Stored(NamedTuple):
    """The contents of a catalog: `plans` has the text of a lowered plan by the statement that creates its query, and
    `decisions` is the document as it was written (None: none was). `version` is that of the file's format,
    `changes` has the ledger's entries, oldest first, `ids` has the objects' by their statements, and `last_id` is the
    newest of all that there have been."""

    statements: list[str]
    plans: Mapping[str, str]
    decisions: str | None
    version: int
    changes: Sequence[str] = ()
    ids: Mapping[str, int] = _NO_IDS
    last_id: int = 0


class CatalogFile:
    """One SQLite file. A write changes the rows that differ, in one transaction: a crash leaves the old state or the
    new.

    The file is locked as long as it is open: a second server in the same folder would overwrite the work of the first.
    Threads may use it in turns, one call after the other.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # As they are in the file; a statement with its place.
        self._statements: list[tuple[int, str]] = []
        self._plans: dict[str, str] = {}
        self._ids: dict[str, int] = {}
        self._decisions: str | None = None
        with self._told("read"):
            self._database = sqlite3.connect(path, timeout=0, check_same_thread=False)
            try:
                self._open()
            except BaseException:
                self._database.close()
                raise

    def _open(self) -> None:
        database = self._database
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        found = self._version = database.execute("PRAGMA user_version").fetchone()[0]
        if found > VERSION:
            raise StoreError(f"{self.path} was written by a newer Millrace (format {found}, this one reads {VERSION})")
        self._tables = {name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if (self._tables and not found) or (found and "statements" not in self._tables):
            raise StoreError(f"{self.path} is not a Millrace catalog: use another data_dir, or move the file away")
        damage = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":
            raise sqlite3.DatabaseError(damage)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")

    def read(self) -> Stored:
        with self._told("read"):
            if "statements" in self._tables:
                self._statements = list(self._database.execute("SELECT place, sql FROM statements ORDER BY place"))
            if "decisions" in self._tables:
                document = self._database.execute("SELECT document FROM decisions").fetchone()
                self._decisions = None if document is None else document[0]
            if "plans" in self._tables:
                self._plans = dict(self._database.execute("SELECT statement, plan FROM plans ORDER BY rowid"))
            changes: list[str] = []
            if "changes" in self._tables:
                changes = [text for (text,) in self._database.execute("SELECT document FROM changes ORDER BY number")]
            if "ids" in self._tables:
                self._ids = dict(self._database.execute("SELECT statement, id FROM ids ORDER BY id"))
        statements = [sql for _, sql in self._statements]
        ids = {sql: number for sql, number in self._ids.items() if sql != _NEWEST}
        return Stored(
            statements,
            dict(self._plans),
            self._decisions,
            self._version,
            changes,
            ids,
            self._ids.get(_NEWEST, 0),
        )

    def write(
        self,
        statements: Sequence[str],
        plans: Mapping[str, str],
        decisions: str,
        changes: Mapping[int, str] = _NO_CHANGES,
        ids: Mapping[str, int] = _NO_IDS,
        last_id: int = 0,
    ) -> None:
        """Only here does a file of an older format become one of this format. Rows that have not changed stay; of
        `changes` these are new or different, by number."""
        database = self._database
        gone, new, placed = _difference(self._statements, statements)
        with self._told("write"), database:
            if self._version < VERSION or not self._tables >= _TABLES:
                self._renew(database)
            database.executemany("DELETE FROM statements WHERE place = ?", [(place,) for place, _ in gone])
            database.executemany("INSERT INTO statements VALUES (?, ?)", new)
            if decisions != self._decisions:
                database.execute("INSERT OR REPLACE INTO decisions VALUES (1, ?)", (decisions,))
            unplanned = [(sql,) for sql in self._plans if sql not in plans]
            database.executemany("DELETE FROM plans WHERE statement = ?", unplanned)
            replanned = [(sql, plan) for sql, plan in plans.items() if self._plans.get(sql) != plan]
            database.executemany("INSERT OR REPLACE INTO plans VALUES (?, ?)", replanned)
            ids = {**ids, _NEWEST: last_id}
            database.executemany("DELETE FROM ids WHERE statement = ?", [(sql,) for sql in self._ids if sql not in ids])
            numbered = [(sql, number) for sql, number in ids.items() if self._ids.get(sql) != number]
            database.executemany("INSERT OR REPLACE INTO ids VALUES (?, ?)", numbered)
            if changes:
                database.executemany("INSERT OR REPLACE INTO changes VALUES (?, ?)", changes.items())
                database.execute("DELETE FROM changes WHERE number <= ?", (max(changes) - KEPT,))
        self._statements, self._plans, self._decisions = placed, dict(plans), decisions
        self._ids, self._tables, self._version = ids, set(_TABLES), VERSION

    def _renew(self, database: sqlite3.Connection) -> None:
        database.execute("CREATE TABLE IF NOT EXISTS statements (place INTEGER PRIMARY KEY, sql TEXT NOT NULL)")
        database.execute("CREATE TABLE IF NOT EXISTS decisions (place INTEGER PRIMARY KEY, document TEXT NOT NULL)")
        database.execute("CREATE TABLE IF NOT EXISTS plans (statement TEXT PRIMARY KEY, plan TEXT NOT NULL)")
        database.execute("CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY, document TEXT NOT NULL)")
        database.execute("CREATE TABLE IF NOT EXISTS ids (statement TEXT PRIMARY KEY, id INTEGER NOT NULL)")
        database.execute(f"PRAGMA user_version = {VERSION}")

    @property
    def changes(self) -> int:
        """Rows written so far."""
        return self._database.total_changes

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _told(self, verb: str) -> Iterator[None]:
        """SQLite's errors as Millrace's."""
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"cannot {verb} the catalog {self.path}: {error}{self._hint(error)}") from None

    def _hint(self, error: sqlite3.Error) -> str:
        """SQLite has the same few words for many causes: the one that a person can mend is looked for."""
        if "locked" in str(error):
            return "; is another server using the folder?"
        closed = next((path for path in (self.path.parent, self.path) if path.exists() and not is_writable(path)), None)
        return "" if closed is None else f"; {closed} is not writable for this server's user"


_Places = list[tuple[int, str]]


def _difference(before: _Places, statements: Sequence[str]) -> tuple[_Places, _Places, _Places]:
    """The rows to delete and to insert, and all rows after that. Statements before the first difference and behind the
    last one keep their places."""
    least = min(len(before), len(statements))
    first = next((at for at in range(least) if before[at][1] != statements[at]), least)
    rest = least - first
    last = next((at for at in range(rest) if before[-1 - at][1] != statements[-1 - at]), rest)
    low = before[first - 1][0] if first else 0
    between, step = statements[first : len(statements) - last], SPACE
    if last:
        step = min(STEP, (before[-last][0] - low) // (len(between) + 1))
    if step == 0:  # no room: all get new places
        placed = [((at + 1) * SPACE, sql) for at, sql in enumerate(statements)]
        return before, placed, placed
    new = [(low + (at + 1) * step, sql) for at, sql in enumerate(between)]
    return before[first : len(before) - last], new, [*before[:first], *new, *before[len(before) - last :]]
