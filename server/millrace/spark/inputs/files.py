"""Files in order of name: one path, a folder, or a pattern. New files may appear, each after those that were read.

One part. Its position is a file and a place in it: a row of Parquet, or the byte of text where a line starts. So an
epoch can end inside a large file. A compressed text has no such places and is read as a whole.

    file     the name of the file that was read last
    at       the place in it of the next row
    done     whether it has been read to its end
    number   how many files were read completely before it
    before   how many files there were before it, by name: more mean that one appeared too late to be read in order
"""

from __future__ import annotations

import glob
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, NamedTuple, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.backfill.inputs import COMPRESSED, FORMATS, READ_AS, check_columns, files_below, format_of, read_text
from millrace.backfill.reading import PLACE_BITS, ROW_BYTES
from millrace.engine.plan import StreamDefinition
from millrace.formats.decoder import StreamDecoder
from millrace.history.files import IMPLICIT_TIME, REACH_FILE, words
from millrace.offline.files import read_opened
from millrace.protocol import Refuse, RowError
from millrace.spark.inputs.reader import Offset, Piece, Portion, Position, Reader, table_of
from millrace.values.batch import Batch

# Bytes in which line ends are looked for at a time.
CHUNK: Final = 1 << 22
# Rows from which on the files of an epoch are read by several tasks.
TASK_ROWS: Final = 250_000
QUOTE, NEWLINE = ord('"'), ord("\n")


class Span(NamedTuple):
    """Rows of a file between two places; `number` is the file's among all that were read."""

    name: str
    number: int
    start: int
    end: int


class Listed(NamedTuple):
    """A file that is there."""

    name: str
    size: int


@dataclass(frozen=True)
class FilesReader(Reader):
    """The rows of files in order of name."""

    path: str

    options: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def parsed(cls, stream: StreamDefinition, source: str, options: Mapping[str, str], most: int | None) -> Self:
        return cls(stream, most, source)

    @property
    def identity(self) -> str:
        return self.path

    # -- what is there -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        place = Path(self.path)
        if not glob.has_magic(self.path) and not place.exists():
            raise Refuse(f"{self.path}: the file or directory does not exist", code="bad_path")
        if (place / REACH_FILE).exists():
            raise Refuse(
                f"{self.path} is the archive of a stream: read it in the order of arrival with archive:{place.parent}",
                code="bad_path",
            )
        for one in self.look({})[:1]:
            next(self._batches(Span(one.name, 0, 0, self._cut(one, 0, 1).end)), None)

    def look(self, parts: Mapping[str, Position]) -> list[Listed]:
        """The files that are there, by name. Those whose names start with a dot or `_` are not complete."""
        place = Path(self.path)
        if place.is_file():
            paths = [place]
        elif glob.has_magic(self.path):
            found = (Path(path) for path in glob.iglob(self.path, recursive=True))
            paths = [path for path in found if path.is_file() and not path.name.startswith((".", "_"))]
        elif place.is_dir():
            paths = list(files_below(place))
        else:
            raise Refuse(f"{self.path}: the directory is gone", code="bad_path")
        for path in paths:
            if format_of(path) is None:
                raise Refuse(f"{path}: expected a file of {', '.join(FORMATS)}", code="bad_path")
        return sorted(Listed(path.as_posix(), path.stat().st_size) for path in paths)

    # -- how far to read -----------------------------------------------------------------------------------------------

    @property
    def _part(self) -> str:
        return f"{self.stream.name}-files"

    def first(self) -> Mapping[str, Position]:
        return {self._part: {"file": "", "at": 0, "done": True, "number": 0, "before": 0}}

    def advance(
        self, parts: Mapping[str, Position], seen: Sequence[Listed], most: int | None
    ) -> tuple[dict[str, Position], list[str], dict[str, int]]:
        position = dict(parts[self._part])
        unread = self._unread(position, seen)
        position["before"] = bisect_left(seen, position["file"], key=attrgetter("name"))
        left = most
        for before, one in enumerate(unread, len(seen) - len(unread)):
            if left is not None and left <= 0:
                break
            same = one.name == position["file"]
            cut = self._cut(one, position["at"] if same else 0, left)
            number = position["number"] + (not same and bool(position["file"]))
            position = {"file": one.name, "at": cut.end, "done": cut.done, "number": number, "before": before}
            left = None if left is None else left - cut.rows
        ended = not unread or (position["file"] == unread[-1].name and position["done"])
        return {self._part: position}, [self._part] * ended, {}

    def _unread(self, position: Mapping[str, Any], seen: Sequence[Listed]) -> Sequence[Listed]:
        """The files that have rows after a position."""
        name, at, done = position["file"], position["at"], position["done"]
        index = bisect_left(seen, name, key=attrgetter("name"))
        if index > position["before"]:
            newest = max(seen[:index], key=lambda one: Path(one.name).stat().st_mtime_ns)
            raise Refuse(
                f"{newest.name} appeared after {name} had been read, and files are read in order of name: name new "
                "files so that they sort after earlier ones",
                code="bad_file",
            )
        there = index < len(seen) and seen[index].name == name
        if not done and not there:
            raise Refuse(f"{name} was removed before it had been read to its end", code="bad_file")
        if done and there and _is_plain_text(name) and seen[index].size != at:
            raise Refuse(
                f"{name} has changed since it was read: write a file under a name that starts with a dot, and rename "
                "it when it is complete",
                code="bad_file",
            )
        return seen[index + (there and done) :]

    def _cut(self, one: Listed, start: int, most: int | None) -> Cut:
        """Where so many rows of a file end."""
        if format_of(Path(one.name)) == "parquet":
            rows = self._head(one.name).num_rows
            end = rows if most is None else min(start + most, rows)
            return Cut(end, end - start, end == rows)
        if most is None or not _is_plain_text(one.name):
            return Cut(one.size, one.size // ROW_BYTES, done=True)
        return _cut_text(one, start, most)

    # -- reading -------------------------------------------------------------------------------------------------------

    def pieces(self, start: Offset, end: Offset) -> list[Piece]:
        made: list[list[Span]] = [[]]
        rows = 0
        spans = self._spans(start.parts[self._part], end.parts[self._part])
        for span in chain.from_iterable(map(self._divided, spans)):
            if rows >= TASK_ROWS:
                made.append([])
                rows = 0
            made[-1].append(span)
            rows += (span.end - span.start) // (1 if format_of(Path(span.name)) == "parquet" else ROW_BYTES)
        promises = [*[None] * (len(made) - 1), end.promises.get(self._part)]
        return [
            Piece(self._part, spans, promise, end.at, silent=not spans)
            for spans, promise in zip(made, promises, strict=True)
        ]

    def _divided(self, span: Span) -> Iterator[Span]:
        """A span in pieces that tasks read at the same time: of a large Parquet file, its row groups."""
        if format_of(Path(span.name)) != "parquet" or span.end - span.start <= TASK_ROWS:
            yield span
            return
        metadata = self._head(span.name)
        below = 0
        for group in range(metadata.num_row_groups):
            above, below = below, below + metadata.row_group(group).num_rows
            low, high = max(span.start, above), min(span.end, below)
            if low < high:
                yield span._replace(start=low, end=high)

    def _spans(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Span]:
        """The rows between two positions."""
        if start == end or start["file"] == end["file"] == "":
            return []
        files = [one for one in self.look({}) if start["file"] <= one.name <= end["file"]]
        if start["done"] and files and files[0].name == start["file"]:
            del files[0]
        number = start["number"] + (start["done"] and bool(start["file"]))
        if end["number"] < number:  # nothing new, but files that were read have been removed
            return []
        if len(files) != end["number"] + 1 - number:
            raise Refuse(
                f"{self.path}: expected the {end['number'] + 1 - number} files up to {end['file']} that the epoch is "
                f"made of, got {len(files)}: were files removed or added between them?",
                code="bad_file",
            )
        spans = []
        for at, one in enumerate(files, number):
            low = start["at"] if one.name == start["file"] else 0
            high = end["at"] if one.name == end["file"] else self._cut(one, 0, None).end
            spans.append(Span(one.name, at, low, high))
        return spans

    def read(self, piece: Piece) -> Iterator[Portion]:
        for span in piece.rows:
            place = span.number << PLACE_BITS | span.start
            for batch in self._batches(span):
                yield Portion(table_of(batch, self.stream, piece.at_us), place)
                place += len(batch)

    def _batches(self, span: Span) -> Iterator[Batch]:
        path = Path(span.name)
        kind = format_of(path)
        assert kind is not None
        if kind == "parquet":
            yield from self._parquet(span)
        elif span.start == 0 and span.end == path.stat().st_size:
            yield from read_text(path, kind, self.stream)
        else:
            yield from self._part_of_text(span, kind)

    def _part_of_text(self, span: Span, kind: str) -> Iterator[Batch]:
        stream = replace(self.stream, extra="ignore")
        with open(span.name, "rb") as file:
            head = b"" if kind != "csv" or not span.start else _first_line(file)
            file.seek(span.start)
            part = cast(BinaryIO, _Part(head, file, span.end - span.start))
            try:
                yield from read_opened(part, span.name, stream, lambda _: None, READ_AS[kind])
            except Refuse:
                for _ in read_text(Path(span.name), kind, self.stream):
                    pass  # the whole file says in which line the error is
                raise

    def _parquet(self, span: Span) -> Iterator[Batch]:
        """Rows of a file by row groups, decoded: a wrong value is refused with its row."""
        decoder = StreamDecoder(replace(self.stream, extra="ignore"))
        self._head(span.name)
        with pq.ParquetFile(span.name) as file:
            names = [name for name in self.stream.schema.names if name in file.schema_arrow.names]
            below = 0
            for group in range(file.metadata.num_row_groups):
                above, below = below, below + file.metadata.row_group(group).num_rows
                low, high = max(span.start, above), min(span.end, below)
                if low >= high:
                    continue
                table = file.read_row_group(group, names, use_threads=False).slice(low - above, high - low)
                try:
                    yield decoder.from_table(table)
                except RowError as error:
                    raise Refuse(f"{span.name}, row {low + error.row + 1}{error.fault}", code=error.code) from None
                except Refuse as error:
                    raise Refuse(f"{span.name}: {error.text}", code=error.code) from None

    def _head(self, name: str) -> Any:
        """The metadata of a Parquet file whose columns fit the stream."""
        try:
            with pq.ParquetFile(name) as file:
                columns = {one.name: one.type for one in file.schema_arrow}
                # The rows of a stream without a time column get the epoch's.
                columns.setdefault(IMPLICIT_TIME, pa.timestamp("us"))
                check_columns(columns, self.stream, name)
                return file.metadata
        except (pa.ArrowException, OSError) as error:
            raise Refuse(
                f"{name}: expected a Parquet file, got something else ({words(error)})", code="bad_file"
            ) from None


class Cut(NamedTuple):
    """A place in a file, how many rows there are up to it, about, and whether it is the file's end."""

    end: int
    rows: int
    done: bool


class _Part:
    """Some bytes of a file, after a header."""

    def __init__(self, head: bytes, file: BinaryIO, size: int) -> None:
        self._head = head
        self._file = file
        self._left = size

    def read(self, size: int = -1) -> bytes:
        if self._head:
            head, self._head = self._head, b""
            return head
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


def _is_plain_text(name: str) -> bool:
    path = Path(name)
    return format_of(path) != "parquet" and path.suffix not in COMPRESSED


def _cut_text(one: Listed, start: int, most: int) -> Cut:
    """The end of so many lines from a place where one starts. Line ends inside quotes of CSV are none."""
    quoted = format_of(Path(one.name)) == "csv"
    left = most + (quoted and start == 0)
    inside = False
    with open(one.name, "rb") as file:
        file.seek(start)
        place = start
        while place < one.size and (data := file.read(min(CHUNK, one.size - place))):
            array = np.frombuffer(data, np.uint8)
            ends = array == NEWLINE
            if quoted:
                after = np.logical_xor.accumulate(array == QUOTE) ^ inside
                ends &= ~after
                inside = bool(after[-1])
            found = np.flatnonzero(ends)
            if len(found) >= left:
                end = place + int(found[left - 1]) + 1
                return Cut(end, most, end == one.size)
            left -= len(found)
            place += len(data)
    return Cut(one.size, most - max(left, 0), done=True)


def _first_line(file: BinaryIO) -> bytes:
    """The header of a file of CSV."""
    head = _cut_text(Listed(file.name, Path(file.name).stat().st_size), 0, 0)
    return file.read(head.end)
