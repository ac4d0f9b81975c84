"""A subscription: frames in, rows out, no more of them in memory than the window."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.client import arrow
from millrace.client.errors import Ended, ServerError
from millrace.client.waiting import Waiting
from millrace.protocol import DELETED, GONE, Schema
from millrace.protocol.messages import (
    Closed,
    Credit,
    Error,
    Message,
    Progress,
    Result,
    ResultArrow,
    Subscribe,
    Subscribed,
)
from millrace.protocol.rows import Rows

if TYPE_CHECKING:
    from millrace.client.aio import AsyncClient

WINDOW = 65_536  # rows that may be under way or waiting to be read


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows that came together. Timestamps are integer microseconds."""

    sequence: int  # the number of the first row
    schema: Schema
    rows: Rows
    history: str | None = None  # what the number belongs to; None from a server that does not say so

    def __len__(self) -> int:
        return len(self.rows)

    def dicts(self) -> list[dict[str, object]]:
        """The rows by name."""
        names = self.schema.names
        rows = [dict(zip(names, row, strict=True)) for row in self.rows]
        return with_both_names(rows) if self.schema.retracts else rows


@dataclass(frozen=True, slots=True)
class ArrowBatch:
    """Rows that came together as Arrow."""

    sequence: int
    schema: Schema
    count: int
    stream: bytes
    history: str | None = None

    def __len__(self) -> int:
        return self.count

    def table(self) -> Any:
        """As a pyarrow Table."""
        return arrow.from_stream(self.stream)

    def dicts(self) -> list[dict[str, object]]:
        """The rows by name."""
        rows: list[dict[str, object]] = self.table().to_pylist()
        return with_both_names(rows) if self.schema.retracts else rows


@dataclass(frozen=True, slots=True)
class ProgressTo:
    """Every row with a timestamp below this one has come."""

    below_us: int


def with_both_names(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Rows of an update stream with `$deleted` and, until 0.3, its former name `$gone`, whichever the server writes."""
    for row in rows:
        row[DELETED] = row[GONE] = bool(row.get(DELETED, row.get(GONE)))
    return rows


Batch = RowBatch | ArrowBatch


class AsyncSubscription:
    """One subscription. Made by `AsyncClient.subscribe`.

    `async for row in subscription` gives rows as dicts; `subscription.batches()` gives them as they came, which is
    faster. Credit is given back as rows are taken out. It ends with ServerError when the server ends it.
    """

    def __init__(
        self,
        client: AsyncClient,
        query: str,
        *,
        from_sequence: int | None = None,
        window: int = WINDOW,
        progress: bool = False,
        format: str = "rows",  # noqa: A002 - the protocol's word
        on_gap: str = "fail",
        history: str | None = None,
    ) -> None:
        self.query = query
        self._history = history
        self.progress_us: int | None = None
        self._skipping = False  # the server does not have the rows that follow, and was not asked for its next row yet
        self.gaps = 0  # times that rows were missed because the server no longer had them
        self._on_gap = on_gap
        self._client = client
        self._from = from_sequence
        self._window = window
        self._progress = progress
        self._format = format
        self._schema: Schema | None = None
        self._channel: int | None = None
        # What came and was not read: batches and progress, in order. At most `window` rows.
        self._inbox: deque[Batch | ProgressTo] = deque()
        self._waiting_rows = 0
        self._owed = 0  # rows read whose credit was not given back
        self._waiting = Waiting()

    @property
    def schema(self) -> Schema:
        """The fields of a row."""
        assert self._schema is not None, "AsyncClient.subscribe gives a subscription once it stands"
        return self._schema

    @property
    def next_sequence(self) -> int | None:
        """The number of the first row not received yet: give it as `from_sequence`, with `history`, to resume later."""
        return self._from

    @property
    def history(self) -> str | None:
        """The history that row numbers belong to; it changes when the query counts from 0 again. None if the server
        is too old to say so."""
        return self._history

    async def __aiter__(self) -> AsyncIterator[dict[str, object]]:
        async for batch in self.batches():
            for row in batch.dicts():
                yield row

    async def batches(self) -> AsyncIterator[Batch]:
        """Batches as they come. `progress_us` is what held when the batch was sent."""
        while (batch := await self.next_batch()) is not None:
            yield batch

    async def close(self) -> None:
        """Tell the server to stop. Twice is fine."""
        self._give_up(Ended(f"this subscription of {self.query} is closed"))

    async def __aenter__(self) -> AsyncSubscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def wait(self) -> None:
        """Until `next_batch` has an answer at once."""
        with contextlib.suppress(Ended):
            await self._waiting.until(lambda: any(not isinstance(item, ProgressTo) for item in self._inbox))

    async def wait_update(self) -> None:
        """Until `next_update` has an answer at once."""
        with contextlib.suppress(Ended):
            await self._waiting.until(lambda: bool(self._inbox))

    async def next_batch(self) -> Batch | None:
        """The next batch, or None at an end that this program wished."""
        while True:
            item = await self.next_update()
            if not isinstance(item, ProgressTo):
                return item

    async def next_update(self) -> Batch | ProgressTo | None:
        """The next batch or progress, in their order, or None at an end that this program wished."""
        try:
            await self._waiting.until(lambda: bool(self._inbox))
        except Ended:
            return None
        item = self._inbox.popleft()
        if isinstance(item, ProgressTo):
            self.progress_us = item.below_us
        else:
            self._waiting_rows -= len(item)
            self._owed += len(item)
            self._repay()
        return item

    async def updates(self) -> AsyncIterator[Batch | ProgressTo]:
        """Batches and progress as they come."""
        while (update := await self.next_update()) is not None:
            yield update

    def _repay(self) -> None:
        """Give credit back once it is half a window, so that rows flow while credit is under way."""
        if self._channel is not None and self._owed and self._owed * 2 >= self._window:
            self._client.say(Credit(self._channel, self._owed))
            self._owed = 0

    # What the client tells the subscription.

    async def opened(self) -> None:
        """Wait for the first SUBSCRIBED."""
        await self._waiting.until(lambda: self._schema is not None)

    def connect(self, channel: int) -> None:
        """There is a connection: ask for the rows from where the last one broke off."""
        self._owed = 0
        credit = self._window - self._waiting_rows
        history = self._history if self._client.has("history") else None
        self._client.say(Subscribe(channel, self.query, self._from, credit, self._progress, self._format, history))

    def disconnect(self) -> None:
        self._channel = None

    def receive(self, message: Message) -> None:
        """What the server said about this subscription."""
        match message:
            case Subscribed():
                self._schema, self._channel = message.schema, message.channel
                self._from, self._history = message.next_sequence, message.history
                self._skipping = False
                self._repay()  # what was read while the channel was being asked for
            case Result():
                self._put(RowBatch(message.sequence, self.schema, message.rows, self._history))
            case ResultArrow():
                self._put(ArrowBatch(message.sequence, self.schema, message.count, message.batch, self._history))
            case Progress():
                self._put_progress(message)
            case Error(code="not_retained") if self._on_gap == "continue" and self._schema is not None:
                self._skip()
            case Error():
                self._give_up(ServerError(message))
            case Closed():
                self._give_up(ServerError.ended(message))
            case _:
                pass
        self._waiting.wake()

    def fail(self, error: BaseException) -> None:
        """There will be no further rows; those that came can still be read."""
        self._channel = None
        self._waiting.fail(error)

    def _skip(self) -> None:
        """The rows that follow are gone. If the query counts from 0 again, all its rows are new to the program."""
        self._history = None
        if self._skipping:
            self._from = None
        else:
            self.gaps += 1
            self._skipping, self._from = True, 0
        self._client.ask_again(self)

    def _put(self, batch: Batch) -> None:
        self._from = batch.sequence + len(batch)
        self._waiting_rows += len(batch)
        self._inbox.append(batch)

    def _put_progress(self, progress: Progress) -> None:
        """A later progress directly after an earlier one takes its place, so that it needs no credit."""
        if self._inbox and isinstance(self._inbox[-1], ProgressTo):
            self._inbox.pop()
        self._inbox.append(ProgressTo(progress.value_us))

    def _give_up(self, error: BaseException) -> None:
        self._client.forget(self)
        self.fail(error)
