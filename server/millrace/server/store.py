"""The catalog on disk: the statements that made what exists, in the order in which they can be executed again."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from millrace.server.config import ConfigError

# Counted up when the tables change; a newer server reads older files, never the other way round.
VERSION: Final = 1


class Store:
    """One SQLite file. A write replaces all statements in one transaction: a crash leaves the old ones or the new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._database = sqlite3.connect(path)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            found = self._database.execute("PRAGMA user_version").fetchone()[0]
            if found > VERSION:
                raise ConfigError([f"server.data_dir: {path} was written by a newer Millrace (format {found})"])
            with self._database:
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS statements (place INTEGER PRIMARY KEY, sql TEXT NOT NULL)"
                )
                self._database.execute(f"PRAGMA user_version = {VERSION}")
        except sqlite3.Error as error:
            raise ConfigError([f"server.data_dir: cannot use {path}: {error}"]) from None

    def read(self) -> list[str]:
        return [sql for (sql,) in self._database.execute("SELECT sql FROM statements ORDER BY place")]

    def write(self, statements: Sequence[str]) -> None:
        with self._database:
            self._database.execute("DELETE FROM statements")
            self._database.executemany("INSERT INTO statements (sql) VALUES (?)", [(sql,) for sql in statements])

    def close(self) -> None:
        self._database.close()
