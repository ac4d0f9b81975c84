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

from millrace.protocol import MillraceError
from millrace.server.config import is_writable

# Counted up when the tables change; a newer server reads older files, never the other way round.
# 1: statements. 2: decisions beside them. 3: lowered plans, and decisions that refer to operators by id.
VERSION: Final = 3


class StoreError(MillraceError):
    """The catalog's file cannot be read or written."""

    code = "catalog"


class Stored(NamedTuple):
    """The contents of a catalog: `plans` has the text of a lowered plan by the statement that creates its query, and
    `decisions` is the document as it was written (None: none was). `version` is that of the file's format."""

    statements: list[str]
    plans: Mapping[str, str]
    decisions: str | None
    version: int


class CatalogFile:
    """One SQLite file. A write replaces everything in one transaction: a crash leaves the old state or the new.

    The file is locked as long as it is open: a second server in the same folder would overwrite the work of the first.
    Threads may use it in turns, one call after the other.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._plans: dict[str, str] = {}  # as they are in the file
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
        statements, document = [], None
        with self._told("read"):
            if "statements" in self._tables:
                statements = [sql for (sql,) in self._database.execute("SELECT sql FROM statements ORDER BY place")]
            if "decisions" in self._tables:
                document = self._database.execute("SELECT document FROM decisions").fetchone()
            if "plans" in self._tables:
                self._plans = dict(self._database.execute("SELECT statement, plan FROM plans ORDER BY rowid"))
        return Stored(statements, dict(self._plans), None if document is None else document[0], self._version)

    def write(self, statements: Sequence[str], plans: Mapping[str, str], decisions: str) -> None:
        """Only here does a file of an older format become one of this format. Plans that have not changed stay."""
        database = self._database
        with self._told("write"), database:
            database.execute("CREATE TABLE IF NOT EXISTS statements (place INTEGER PRIMARY KEY, sql TEXT NOT NULL)")
            database.execute("CREATE TABLE IF NOT EXISTS decisions (place INTEGER PRIMARY KEY, document TEXT NOT NULL)")
            database.execute("CREATE TABLE IF NOT EXISTS plans (statement TEXT PRIMARY KEY, plan TEXT NOT NULL)")
            database.execute(f"PRAGMA user_version = {VERSION}")
            database.execute("DELETE FROM statements")
            database.executemany("INSERT INTO statements (sql) VALUES (?)", [(sql,) for sql in statements])
            database.execute("INSERT OR REPLACE INTO decisions VALUES (1, ?)", (decisions,))
            gone = [(sql,) for sql in self._plans if sql not in plans]
            database.executemany("DELETE FROM plans WHERE statement = ?", gone)
            changed = [(sql, plan) for sql, plan in plans.items() if self._plans.get(sql) != plan]
            database.executemany("INSERT OR REPLACE INTO plans VALUES (?, ?)", changed)
        self._tables, self._plans, self._version = {"statements", "decisions", "plans"}, dict(plans), VERSION

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
