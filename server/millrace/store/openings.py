"""Finds and opens a sink's file or folder, and compares it with the files of other sinks.

Rule: a new sink that cannot write refuses its whole change, and nothing stays open. A sink of the catalog is opened
when it writes, so a full disk does not keep the server from starting. All of this runs in threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from millrace.protocol import Refuse, Schema
from millrace.sql import SinkDefinition
from millrace.standby.sinkfence import SinkFence
from millrace.store.places import Identity, Place, SinkFolders, error_words, identity
from millrace.store.sinkfiles import Label, Rotation, SinkFile, StandardOutput, Unwritable, line_file, whole_files

log = structlog.get_logger()

# The formats of which a sink writes whole files into a folder.
WHOLE: Final[frozenset[str]] = frozenset({"parquet", "arrow"})


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """Where a sink writes: None for the standard output, and for a path that is refused.

    `kept` is its path if that is not the one that its statement names today. `private`: no other server has it.
    """

    place: Place | None = None
    kept: str | None = None
    private: bool = True

    @property
    def outside(self) -> bool:
        """Whether an earlier configuration allowed it, and this one would not."""
        return self.place is not None and self.place.lenient


# For the standard output.
NO_PLACE: Final = SinkPlace()


class NewSink(NamedTuple):
    """A sink that is about to write."""

    definition: SinkDefinition
    schema: Schema


class Opened(NamedTuple):
    file: SinkFile
    place: SinkPlace


class Taken(NamedTuple):
    """A file or folder that a sink writes to."""

    sink: str
    path: Path
    identity: Identity | None


class Openings:
    """Finds and opens the files of sinks.

    `kept` has the paths of sinks whose relative path meant another folder once; None while a catalog is loaded from
    before sinks had a folder: its relative paths were resolved against the working directory.
    """

    def __init__(self, places: SinkFolders, fence: SinkFence) -> None:
        self.kept: Mapping[str, str] | None = {}
        self._places = places
        self._fence = fence

    def new(self, sinks: Sequence[NewSink], others: Sequence[Taken], *, opens: bool) -> dict[str, Opened]:
        """The files of new sinks. All are checked before the first is created; `opens` creates them."""
        taken = list(others)
        found: dict[str, Opened] = {}
        try:
            for definition, schema in sinks:
                place = None if definition.path is None else self._places.locate(definition.path)
                if place is not None:
                    taken.append(self._look(definition, place, taken))
                private = place is None or self._places.has(place)
                found[definition.name] = Opened(
                    self._file(definition, schema, place), SinkPlace(place, private=private)
                )
            if opens:
                for name, opened in found.items():
                    self._open(name, opened.file, taken)
        except BaseException:
            abandon(found)
            raise
        return found

    def known(self, sink: NewSink) -> Opened:
        """The file of a sink of the catalog. A path that no sink may have stops that sink, and not the server."""
        name, path = sink.definition.name, sink.definition.path
        if path is None:
            return Opened(StandardOutput(), NO_PLACE)
        kept = self._kept(name, path)
        try:
            place = self._places.locate_known(kept or path)
        except Refuse as error:
            return Opened(Unwritable(Path(path), error), SinkPlace(None, kept))
        if place.lenient:
            log.warning("a sink writes outside the folders that sinks may write to", sink=name, path=str(place.path))
        return Opened(self._file(sink.definition, sink.schema, place), SinkPlace(place, kept, self._places.has(place)))

    def _kept(self, name: str, path: str) -> str | None:
        if self.kept is not None:
            return self.kept.get(name)
        return None if path.startswith("/") else str(Path.cwd() / path)

    def _file(self, definition: SinkDefinition, schema: Schema, place: Place | None) -> SinkFile:
        if place is None:
            return StandardOutput()
        if definition.format in WHOLE:
            label = Label(definition.name, definition.query, definition.format)
            rotation = Rotation(definition.rotate_rows, definition.rotate_bytes, definition.rotate_age_us)
            return whole_files(self._places, place, schema, label, rotation, self._fence)
        return line_file(self._places, place, schema, definition.format, self._fence)

    def _look(self, definition: SinkDefinition, place: Place, taken: Sequence[Taken]) -> Taken:
        """The file or folder of a new sink, if it may have it; nothing is created."""
        name = definition.name
        with _refusing(place.path):
            if definition.format in WHOLE:
                found = self._places.find_folder(place)
                status = self._places.status(found)
                mine = Taken(name, found.path, None if status is None else identity(status))
            else:
                mine = Taken(name, place.path, self._places.look_for_file(place))
        _check_free(mine, taken)
        return mine

    def _open(self, name: str, file: SinkFile, taken: Sequence[Taken]) -> None:
        path = file.path
        with _refusing(path):
            file.open(makes=True)
        if path is not None:
            mine = Taken(name, file.path or path, file.identity)
            _check_free(mine, [other for other in taken if other.sink != name])


def abandon(found: Mapping[str, Opened]) -> None:
    """Close the files of sinks that were not created."""
    for opened in found.values():
        opened.file.abandon()


def _check_free(mine: Taken, taken: Sequence[Taken]) -> None:
    """Two sinks would write into each other's rows."""
    for other in taken:
        same = mine.identity is not None and mine.identity == other.identity
        if same or mine.path == other.path:
            raise Refuse(f"sink {mine.sink}: sink {other.sink} already writes {mine.path}", code="in_use")
        for inner, outer in ((mine, other), (other, mine)):
            if inner.path.is_relative_to(outer.path):
                text = f"sink {mine.sink}: {inner.path} is inside {outer.path}, the folder of sink {outer.sink}"
                raise Refuse(text, code="in_use")


@contextmanager
def _refusing(path: Path | None) -> Iterator[None]:
    """Errors of the system as refusals."""
    try:
        yield
    except OSError as error:
        raise Refuse(f"cannot write {path}: {error_words(error).lower()}") from None
