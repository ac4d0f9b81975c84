"""`millrace://host:port/QUERY`: the rows of a query on a server, as a subscriber gets them.

One part. Its position is a row's number, and the server's progress is its promise. So a server can collect at the edge,
with its own order and disorder, and a job does the heavy part. The server must still have the rows when a task requests
them: with a data directory they survive restarts, and the query's option `retain` says how many stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from millrace.client import Client, ConnectionLost, ServerError
from millrace.client.subscription import ArrowBatch, ProgressTo
from millrace.engine.plan import StreamDefinition
from millrace.formats.decoder import StreamDecoder
from millrace.history.files import words
from millrace.protocol import MillraceError, Refuse, Schema
from millrace.spark.inputs.reader import End, Numbered, Piece, Portion, Position, refuse_option, table_of

# Unread rows in a task's memory.
WINDOW: Final = 262_144
# How long the server may take to say how far a query is: it does so at once, if it knows.
PROGRESS_SECONDS: Final = 0.5
# How long rows that the server has may take.
PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class ServerReader(Numbered):
    """A query of a server.

    since   the number of the first row for a new job; None: the next row of the query
    """

    address: str
    query: str
    since: int | None
    tls: bool
    token: str | None = field(repr=False)

    punctuated = True
    options: ClassVar[Mapping[str, str]] = {"from": "next", "tls": "true", "token_file": "/etc/millrace/token"}

    @classmethod
    def parsed(cls, stream: StreamDefinition, source: str, options: Mapping[str, str], most: int | None) -> Self:
        address, slash, query = source.removeprefix("//").partition("/")
        if not source.startswith("//") or not address or not slash or not query:
            raise Refuse(f"millrace:{source}: expected millrace://host:port/QUERY", code="bad_input")
        since, tls = options.get("from", "0"), options.get("tls", "false")
        if since != "next" and not (since.isascii() and since.isdigit()):
            raise refuse_option("from", since, "the number of a row, or next")
        if tls not in ("true", "false"):
            raise refuse_option("tls", tls, "true or false")
        token = _token(options["token_file"]) if "token_file" in options else None
        return cls(stream, most, address, query, None if since == "next" else int(since), tls == "true", token)

    @property
    def identity(self) -> str:
        return f"query {self.query}"

    @property
    def _where(self) -> str:
        return f"millrace://{self.address}/{self.query}"

    # -- what is there -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        # A job that continues needs later rows than its first ones, which the server may have no longer.
        with self._connected() as client, closing(self._subscribed(client, None)) as subscription:
            self._check_columns(subscription.schema)

    def first(self) -> Mapping[str, Position]:
        with self._connected() as client, closing(self._subscribed(client, self.since)) as subscription:
            # The subscription's own number moves on as rows arrive.
            first = subscription.next_sequence if self.since is None else self.since
            return {self._part(subscription.history): first}

    def look(self, parts: Mapping[str, Position]) -> dict[str, End]:
        """The number of the next row, and the progress before it."""
        with self._connected() as client, closing(self._subscribed(client, None)) as subscription:
            end, part = subscription.next_sequence, self._part(subscription.history)
            if part not in parts:
                raise Refuse(
                    f"{self._where}: the query counts its rows from 0 again: it was created again, or its server has "
                    "no data directory. Start with a new checkpoint",
                    code="not_retained",
                )
            try:
                update = next(subscription.updates(PROGRESS_SECONDS), None)
            except TimeoutError:
                update = None
            except (ServerError, ConnectionLost) as error:
                raise self._refused(error) from None
            return {part: End(end, update.below_us if isinstance(update, ProgressTo) else None)}

    def _part(self, history: str | None) -> str:
        """Numbers mean something in their history alone."""
        return self.query if history is None else f"{self.query}@{history}"

    def _check_columns(self, schema: Schema) -> None:
        there = {one.name: one.type for one in schema}
        for one in self.stream.schema:
            if one.name not in there and (not one.nullable or one.name == self.stream.time):
                raise Refuse(
                    f"{self._where}: expected the columns of stream {self.stream.name} "
                    f"({', '.join(self.stream.schema.names)}), got no {one.name}; the query has: {', '.join(there)}",
                    code="schema",
                )
            if there.get(one.name, one.type) is not one.type:
                raise Refuse(
                    f"{self._where}: column {one.name}: expected {one.type}, got {there[one.name]}", code="schema"
                )

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, piece: Piece) -> Iterator[Portion]:
        start, end = piece.rows
        if start >= end:
            return
        # The server sends times in microseconds, whatever the unit of the stream's clients.
        stream = replace(self.stream, extra="ignore", time_unit="us")
        decoder = StreamDecoder(stream)
        history = piece.part.rpartition("@")[2] if "@" in piece.part else None
        at = start
        with self._connected() as client, closing(self._subscribed(client, start, history, WINDOW)) as subscription:
            try:
                for batch in subscription.batches(PATIENCE_SECONDS):
                    assert isinstance(batch, ArrowBatch)
                    if batch.sequence != at:
                        raise Refuse(
                            f"{self._where}: rows {at} to {batch.sequence - 1} were dropped by the server",
                            code="not_retained",
                        )
                    table = batch.table().slice(0, end - at)
                    table = table.select([name for name in stream.schema.names if name in table.schema.names])
                    yield Portion(table_of(decoder.from_table(table), self.stream, piece.at_us), at)
                    at += table.num_rows
                    if at == end:
                        return
            except TimeoutError:
                raise Refuse(
                    f"{self._where}: no row {at} within {PATIENCE_SECONDS:.0f} s, though the server said that the "
                    f"query has {end}",
                    code="unreachable",
                ) from None
            except (ServerError, ConnectionLost) as error:
                raise self._refused(error) from None
        raise Refuse(f"{self._where}: the server ended the subscription at row {at}", code="not_retained")

    # -- the client ----------------------------------------------------------------------------------------------------

    def _connected(self) -> Client:
        try:
            # A task that fails is repeated: reconnecting is Spark's business.
            return Client(self.address, token=self.token, tls=self.tls, name="millrace spark", reconnect=None)
        except (MillraceError, OSError, ValueError) as error:
            raise self._refused(error) from None

    def _subscribed(self, client: Client, first: int | None, history: str | None = None, window: int = 1) -> Any:
        try:
            return client.subscribe(
                self.query, from_sequence=first, history=history, window=window, progress=True, format="arrow"
            )
        except (ServerError, ConnectionLost) as error:
            raise self._refused(error) from None

    def _refused(self, error: Exception) -> Refuse:
        code = getattr(error, "code", "unreachable")
        text = getattr(error, "text", None) or words(error)
        hint = ""
        if code == "unknown_query":
            hint = "; a stream is read through a query: CREATE QUERY name AS SELECT * FROM stream"
        elif code == "not_retained":
            hint = "; start with from=next or from=NUMBER, and let the server keep more: the query's option retain"
        return Refuse(f"{self._where}: {text}{hint}", code=code)


def _token(path: str) -> str:
    try:
        return Path(path).read_text("utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Refuse(f"{path}: {words(error)}", code="bad_path") from None
