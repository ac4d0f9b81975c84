"""A subscription: frames in, rows out, with at most a window of rows in memory."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
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

WINDOW = 65_536  # rows in flight or not read yet, at most


@dataclass(frozen=True, slots=True)
class RowBatch:
    """The rows of one frame, as tuples. Timestamps are integer microseconds."""

    sequence: int  # of the first row
    schema: Schema
    rows: Rows
    history: str | None = None  # that the sequence number belongs to; None if the server does not report it

    def __len__(self) -> int:
        return len(self.rows)

    def dicts(self) -> list[dict[str, object]]:
        """The rows by name."""
        names = self.schema.names
        rows = [dict(zip(names, row, strict=True)) for row in self.rows]
        return with_both_names(rows) if self.schema.retracts else rows


@dataclass(frozen=True, slots=True)
class ArrowBatch:
    """The rows of one frame, as an Arrow IPC stream."""

    sequence: int
    schema: Schema
    count: int
    stream: bytes
    history: str | None = None

    def __len__(self) -> int:
        return self.count

    def table(self) -> Any:
        """The rows as a pyarrow Table."""
        return arrow.from_stream(self.stream)

    def dicts(self) -> list[dict[str, object]]:
        """The rows by name."""
        rows: list[dict[str, object]] = self.table().to_pylist()
        return with_both_names(rows) if self.schema.retracts else rows


@dataclass(frozen=True, slots=True)
class ProgressTo:
    """All rows with a lower timestamp have arrived."""

    below_us: int


def with_both_names(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Rows of an update stream with `$deleted` and, until 0.3, its former name `$gone`, whichever the server writes."""
    for row in rows:
        row[DELETED] = row[GONE] = bool(row.get(DELETED, row.get(GONE)))
    return rows


Batch = RowBatch | ArrowBatch


class AsyncSubscription:
    """A subscription to a query, opened by `AsyncClient.subscribe`.

    `async for row in subscription` returns rows as dicts; `subscription.batches()` is faster. Reading returns credit to
    the server. The iteration raises ServerError if the server ends the subscription.
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
        refresh_us: int | None = None,
        keys: Sequence[object] | None = None,
        epoch: int | None = None,
    ) -> None:
        self.query = query
        self._refresh_us = refresh_us
        self._keys = None if keys is None else [key if isinstance(key, tuple) else (key,) for key in keys]
        self._history = history
        self._epoch = epoch
        self.progress_us: int | None = None
        self._skipping = False  # after a gap, while the client tries to resume at sequence 0
        self.gaps = 0  # how often rows were lost: no longer retained by the server, or lost by a promotion
        self._on_gap = on_gap
        self._client = client
        self._from = from_sequence
        self._window = window
        self._progress = progress
        self._format = format
        self._schema: Schema | None = None
        self._channel: int | None = None
        # Unread batches and progress, in order. At most `window` rows.
        self._inbox: deque[Batch | ProgressTo] = deque()
        self._waiting_rows = 0
        self._owed = 0  # rows read whose credit was not returned
        self._waiting = Waiting()

    @property
    def schema(self) -> Schema:
        """The fields of a row, in order."""
        assert self._schema is not None, "AsyncClient.subscribe returns an open subscription"
        return self._schema

    @property
    def next_sequence(self) -> int | None:
        """The sequence number of the next row: pass it as `from_sequence`, with `history`, to resume later."""
        return self._from

    @property
    def history(self) -> str | None:
        """The history that the sequence numbers belong to; it changes when the query counts from 0 again.

        None if the server does not report it.
        """
        return self._history

    @property
    def epoch(self) -> int | None:
        """The epoch in which the newest rows were received: pass it as `epoch`, with `from_sequence`, to resume later.

        None if the server does not report it.
        """
        return self._epoch

    async def __aiter__(self) -> AsyncIterator[dict[str, object]]:
        async for batch in self.batches():
            for row in batch.dicts():
                yield row

    async def batches(self) -> AsyncIterator[Batch]:
        """The rows in batches, as they arrive. `progress_us` is the progress at the time of the batch."""
        while (batch := await self.next_batch()) is not None:
            yield batch

    async def close(self) -> None:
        """End the subscription. A second call does nothing."""
        self._give_up(Ended(f"this subscription of {self.query} is closed"))

    async def __aenter__(self) -> AsyncSubscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def wait(self) -> None:
        """Wait until `next_batch` returns at once."""
        with contextlib.suppress(Ended):
            await self._waiting.until(lambda: any(not isinstance(item, ProgressTo) for item in self._inbox))

    async def wait_update(self) -> None:
        """Wait until `next_update` returns at once."""
        with contextlib.suppress(Ended):
            await self._waiting.until(lambda: bool(self._inbox))

    async def next_batch(self) -> Batch | None:
        """The next batch, or None after `close`."""
        while True:
            item = await self.next_update()
            if not isinstance(item, ProgressTo):
                return item

    async def next_update(self) -> Batch | ProgressTo | None:
        """The next batch or progress, in order, or None after `close`."""
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
        """Batches and progress, in order, as they arrive."""
        while (update := await self.next_update()) is not None:
            yield update

    def _repay(self) -> None:
        """Return credit once it amounts to half a window, so that rows flow while credit travels."""
        if self._channel is not None and self._owed and self._owed * 2 >= self._window:
            self._client.say(Credit(self._channel, self._owed))
            self._owed = 0

    # Called by the client.

    async def opened(self) -> None:
        """Wait for the first SUBSCRIBED."""
        await self._waiting.until(lambda: self._schema is not None)

    def connect(self, channel: int) -> None:
        """Subscribe on a new connection, from the next row."""
        self._owed = 0
        credit = self._window - self._waiting_rows
        history = self._history if self._client.has("history") else None
        if self._refresh_us is not None and not self._client.has("reads"):
            self._give_up(ServerError(Error("bad_message", "the server does not know refresh_us: upgrade it")))
            return
        self._client.say(
            Subscribe(
                channel, self.query, self._from, credit, self._progress, self._format, history,
                self._refresh_us, self._keys, self._epoch if self._client.has("epoch") else None,
            )
        )  # fmt: skip

    def disconnect(self) -> None:
        self._channel = None

    def receive(self, message: Message) -> None:
        """Handle a message about this subscription."""
        match message:
            case Subscribed():
                self._schema, self._channel = message.schema, message.channel
                self._from, self._history = message.next_sequence, message.history
                self._epoch = self._client.epoch if self._client.has("epoch") else None
                self._skipping = False
                self._repay()  # for rows read while the channel was being opened
            case Result():
                self._put(RowBatch(message.sequence, self.schema, message.rows, self._history))
            case ResultArrow():
                self._put(ArrowBatch(message.sequence, self.schema, message.count, message.batch, self._history))
            case Progress():
                self._put_progress(message)
            case Error(code="not_retained") if self._on_gap == "continue" and self._schema is not None:
                self._skip()
            case Error(code="lost", sequence=int(first)) if self._on_gap == "continue" and self._schema is not None:
                self.gaps += 1
                self._from, self._epoch = first, None
                self._client.ask_again(self)
            case Error():
                self._give_up(ServerError(message))
            case Closed():
                self._give_up(ServerError.ended(message))
            case _:
                pass
        self._waiting.wake()

    def fail(self, error: BaseException) -> None:
        """No further rows will arrive. Unread rows can still be read."""
        self._channel = None
        self._waiting.fail(error)

    def _skip(self) -> None:
        """The server no longer retains the next row: try sequence 0 of a new history, then the query's next row."""
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
        """Progress directly after other progress replaces it, so unread progress does not accumulate."""
        if self._inbox and isinstance(self._inbox[-1], ProgressTo):
            self._inbox.pop()
        self._inbox.append(ProgressTo(progress.value_us))

    def _give_up(self, error: BaseException) -> None:
        self._client.forget(self)
        self.fail(error)
