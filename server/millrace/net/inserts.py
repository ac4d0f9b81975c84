"""INSERT: rows that no connection brings.

Rule: a stream has one feed `sql`. It opens, its tuples arrive and it ends in one step of the engine, so it never holds
the stream's watermark back. All rows of a statement are checked before any of them enters the stream.
"""

from __future__ import annotations

from typing import Any, Final

from millrace.engine.engine import Engine
from millrace.engine.events import Late
from millrace.engine.plan import StreamDefinition
from millrace.formats.decoder import StreamDecoder
from millrace.net.feeds import Feeds
from millrace.protocol import Refuse, RowError
from millrace.run.runner import Runner
from millrace.sql import Insert, SqlError
from millrace.values.batch import Batch
from millrace.values.eventtime import MAX_TIME

FEED: Final = "sql"


class _Feed:
    """The feed of one statement: counts its late tuples."""

    def __init__(self) -> None:
        self.tuples_late = 0

    def granted(self, tuples: int) -> None:
        """The statement has sent all it had."""

    def asked(self, request: int, need_us: int, group: tuple[Any, ...]) -> None:
        """The feed ends in the step in which it opens."""

    def late(self, late: Late) -> None:
        self.tuples_late += len(late.batch)


class Inserts:
    """Checks the rows of INSERT and hands them to the engine."""

    def __init__(self, engine: Engine, runner: Runner, feeds: Feeds) -> None:
        self._engine = engine
        self._runner = runner
        self._feeds = feeds

    def check(self, insert: Insert, stream: StreamDefinition) -> Batch:
        """The tuples of a statement. Raises SqlError at the first value that the stream refuses."""
        try:
            batch = StreamDecoder(stream).from_rows(insert.rows)
            if stream.name in self._feeds.received():
                self._feeds.check_times(stream.name, batch)
        except RowError as error:
            raise self._refusal(insert, stream, error) from None
        if stream.name in self._feeds.received():
            self._check_open(insert.stream)
        return batch

    @staticmethod
    def _refusal(insert: Insert, stream: StreamDefinition, error: RowError) -> SqlError:
        """A refused row at its place in the text. An error that names no column is about the row's time."""
        names = stream.schema.names
        field = next((name for name in names if f"field {name}:" in error.text), stream.time or names[0])
        place = insert.places[error.row][names.index(field)]
        return SqlError(insert.sql, place, f"column {field}: expected {error.expected}, got {error.got}")

    def _check_open(self, stream: str) -> None:
        if self._engine.memory_held:
            raise Refuse("the server is short of memory, and all feeds wait: try again in a few seconds", code="busy")
        if self._engine.source(stream).mark == MAX_TIME:
            raise Refuse(f"stream {stream} has ended: its feeds said that no tuple follows", code="stream_ended")
        if self._feeds.owns(stream, FEED):
            raise Refuse(
                f"a client feeds {stream} as the producer {FEED!r}, which INSERT uses: let the client use another name",
                code="already_open",
            )

    async def run(self, insert: Insert, batch: Batch) -> int:
        """Put the tuples into their stream; how many of them were late."""
        feed = _Feed()
        self._feeds.count_tuples(insert.stream, len(batch))
        await self._runner.feed_at_once(insert.stream, FEED, feed, batch)
        return feed.tuples_late
