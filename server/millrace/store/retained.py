"""The retained rows of a history, read in order without the server that writes them.

Rule: this only reads. A server may add and remove files meanwhile: what is not there, or not whole, is not held.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millrace.protocol import Schema
from millrace.store.rowfiles import Record, number_of, read_batch, read_head, records

# A row: its time, then its values.
Row = tuple[Any, ...]


class RetainedRows:
    """The rows of one history; without a folder there are none. Reads go forward."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._rows: Iterator[tuple[int, Row]] | None = None
        self._ahead: tuple[int, Row] | None = None

    def read(self, first: int, following: int) -> dict[int, Row]:
        """The rows from one number to below another that are held."""
        if self._rows is None:
            self._rows = self._from(first)
            self._ahead = next(self._rows, None)
        found: dict[int, Row] = {}
        while self._ahead is not None and self._ahead[0] < following:
            number, row = self._ahead
            if number >= first:
                found[number] = row
            self._ahead = next(self._rows, None)
        return found

    def _from(self, first: int) -> Iterator[tuple[int, Row]]:
        """All rows that are held, from the file with this one on."""
        paths = [] if self._folder is None or not self._folder.is_dir() else list(self._folder.iterdir())
        files = sorted((start, path) for path in paths if (start := number_of(path.name)) is not None)
        entry = max((start for start, _ in files if start <= first), default=0)
        for start, path in files:
            if start >= entry:
                yield from _rows_of(path, first)


def _rows_of(path: Path, first: int) -> Iterator[tuple[int, Row]]:
    """The whole records of a file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # its server has removed it
    try:
        found = read_head(handle, path)
        if found is None:
            return
        head, offset = found
        for record in records(handle, offset, os.fstat(handle).st_size):
            if record.first + record.rows > first:
                yield from enumerate(_decoded(record, head.schema), record.first)
    finally:
        os.close(handle)


def _decoded(record: Record, schema: Schema) -> Iterator[Row]:
    batch = read_batch(record, schema)
    return zip(batch.ts.tolist(), *batch.lists(), strict=True)
