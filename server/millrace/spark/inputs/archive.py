"""`archive:DIR`: the rows that a server has archived of the stream, in the order in which they arrived there.

One part. Its position is a row's number in the archive. The server decided which rows were late: these are passed over,
and the mark that each other row met is a promise about all that follow. So the job finds the same rows on time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.engine.plan import StreamDefinition
from millrace.history import files as history
from millrace.protocol import Refuse
from millrace.spark.inputs.reader import End, Numbered, Piece, Portion, Position
from millrace.values.eventtime import MIN_TIME


@dataclass(frozen=True)
class ArchiveReader(Numbered):
    """The archive of a stream, below a server's history directory."""

    directory: str

    punctuated = True

    @classmethod
    def parsed(cls, stream: StreamDefinition, source: str, options: Mapping[str, str], most: int | None) -> Self:
        return cls(stream, most, source)

    @property
    def identity(self) -> str:
        return f"archive of {self.stream.name}"

    @property
    def _folder(self) -> Path:
        return history.stream_folder(Path(self.directory), self.stream.name)

    @property
    def _part(self) -> str:
        return f"{self.stream.name}-archive"

    def check(self) -> None:
        top = Path(self.directory)
        if not top.is_dir():
            raise Refuse(f"archive:{self.directory}: the directory does not exist", code="bad_path")
        reach = history.read_reach(self._folder) if self._folder.is_dir() else None
        if reach is None:
            there = sorted(one.parent.name for one in top.glob(f"*/{history.REACH_FILE}"))
            raise Refuse(
                f"archive:{self.directory}: it has no rows of stream {self.stream.name} (it has: "
                f"{', '.join(there) or 'none'}); a stream is archived if it is created WITH (history = 'true')",
                code="bad_path",
            )
        if not reach.fits(self.stream):
            got = ", ".join(f"{name} {kind}" for name, kind, _ in reach.fields)
            raise Refuse(
                f"{self._folder}: it has a stream with other columns than stream {self.stream.name} ({got})",
                code="schema",
            )

    def first(self) -> Mapping[str, Position]:
        names = self._names()
        return {self._part: names[0].first if names else 0}

    def look(self, parts: Mapping[str, Position]) -> dict[str, End]:
        reach = history.read_reach(self._folder)
        if reach is None:
            raise Refuse(f"{self._folder}: the archive is gone", code="bad_file")
        mark = None if reach.reach_us == MIN_TIME else reach.reach_us
        return {self._part: End(reach.last_seq + 1, mark)}

    def _names(self) -> list[history.Name]:
        named = (history.Name.parse(path.name) for path in history.files(self._folder))
        return [name for name in named if name is not None]

    def read(self, piece: Piece) -> Iterator[Portion]:
        start, end = piece.rows
        if start < end:
            self._check_kept(start)
        for paths in self._together(start, end):
            tables = [self._table(path) for path in paths]
            table = pa.concat_tables(tables, promote_options="default")
            numbers = table.column(history.SEQUENCE)
            table = table.filter(pc.and_(pc.greater_equal(numbers, start), pc.less(numbers, end)))
            if len(paths) > 1:
                table = table.sort_by(history.SEQUENCE)
            if table.num_rows:
                marks = table.column(history.MARK).cast(pa.int64())
                yield Portion(table, table.column(history.SEQUENCE)[0].as_py(), pc.max(marks).as_py())

    def _check_kept(self, start: int) -> None:
        first = min((name.first for name in self._names()), default=None)
        if first is None or first > start:
            kept = "all rows have" if first is None else f"rows {start} to {first - 1} have"
            raise Refuse(f"{self._folder}: {kept} been removed before they were read", code="bad_file")

    def _together(self, start: int, end: int) -> Iterator[list[Path]]:
        """The files with these rows. Files of several days are together if their numbers overlap."""
        group: list[Path] = []
        last = -1
        for path in history.files(self._folder):
            name = history.Name.parse(path.name)
            if name is None or name.last < start or name.first >= end:
                continue
            if group and name.first > last:
                yield group
                group = []
            group.append(path)
            last = max(last, name.last)
        if group:
            yield group

    def _table(self, path: Path) -> Any:
        names = [*history.stored_schema(self.stream).names, *history.OWN_COLUMNS]
        try:
            with pq.ParquetFile(path) as file:
                return file.read([name for name in names if name in file.schema_arrow.names], use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise Refuse(f"{path}: {history.words(error)}", code="bad_file") from None
