"""Client: AsyncClient for programs without an event loop. A background thread runs the loop."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

from millrace.client.aio import HEARTBEAT, AsyncClient
from millrace.client.backoff import Backoff
from millrace.client.errors import Ended
from millrace.client.feed import FRAME_ROWS, HELD_BYTES, HELD_TUPLES, Answer, AsyncFeed, GroupAnswer
from millrace.client.rows import Row
from millrace.client.subscription import WINDOW, AsyncSubscription, Batch, ProgressTo
from millrace.protocol import Schema

_T = TypeVar("_T")


class Client:
    """A connection to a Millrace server, for programs without an event loop.

        with Client("127.0.0.1:7420") as client:
            with client.open("ticks") as feed:
                feed.send([("abc", 10.5), ("xyz", 7.25)])

    The client connects when it is created and reconnects when the connection breaks, as AsyncClient does. All methods
    may be called from any thread. An `answer` function runs in the client's thread and must not use the client.

    Args:
        address: `host`, `host:port` or `[::1]:port`. The default port is 7420. Several, as a list or with commas
            between, are a server and its standby: the client tries them in turn and follows a promotion.
        token: the token, if the server requires one; by default that of this user's server on this machine.
        tls: True to verify the server with the system's certificates, or an `ssl.SSLContext`.
        name: the name of this client in the server's log.
        reconnect: the pauses between attempts to reconnect. None: do not reconnect.
        heartbeat: seconds without data before the client sends PING, and again before it drops the connection.
        on_lost: called with the reason each time the connection breaks and the client tries to reconnect.

    Raises:
        ConnectionLost: the server cannot be reached.
        ServerError: the server refused the connection, for example because the token is wrong.
    """

    def __init__(
        self,
        address: str | Sequence[str] = "127.0.0.1",
        *,
        token: str | None = None,
        tls: ssl.SSLContext | bool | None = None,
        name: str = "python",
        reconnect: Backoff | None = Backoff(),  # noqa: B008 - frozen
        heartbeat: float = HEARTBEAT,
        on_lost: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"millrace {address}", daemon=True)
        self._thread.start()
        try:
            self._client = self.run(
                AsyncClient.connect(
                    address,
                    token=token,
                    tls=tls,
                    name=name,
                    reconnect=reconnect,
                    heartbeat=heartbeat,
                    on_lost=on_lost,
                )
            )
        except BaseException:
            self._end_thread()
            raise

    @classmethod
    def connect(
        cls,
        address: str | Sequence[str] = "127.0.0.1",
        *,
        token: str | None = None,
        tls: ssl.SSLContext | bool | None = None,
        name: str = "python",
        reconnect: Backoff | None = Backoff(),  # noqa: B008 - frozen
        heartbeat: float = HEARTBEAT,
        on_lost: Callable[[BaseException | None], None] | None = None,
    ) -> Client:
        """Connect to a server: the same as `Client(...)`, by the name that AsyncClient has for it.

        Args:
            address: `host`, `host:port` or `[::1]:port`. The default port is 7420. Several, as a list or with commas
                between, are a server and its standby: the client tries them in turn and follows a promotion.
            token: the token, if the server requires one; by default that of this user's server on this machine.
            tls: True to verify the server with the system's certificates, or an `ssl.SSLContext`.
            name: the name of this client in the server's log.
            reconnect: the pauses between attempts to reconnect. None: do not reconnect.
            heartbeat: seconds without data before the client sends PING, and again before it drops the connection.
            on_lost: called with the reason each time the connection breaks and the client tries to reconnect.
        """
        return cls(
            address,
            token=token,
            tls=tls,
            name=name,
            reconnect=reconnect,
            heartbeat=heartbeat,
            on_lost=on_lost,
        )

    def open(
        self,
        stream: str,
        *,
        producer: str | None = None,
        schema: Schema | None = None,
        answer: Answer | None = None,
        answer_group: GroupAnswer | None = None,
        frame_rows: int = FRAME_ROWS,
        held_tuples: int = HELD_TUPLES,
        held_bytes: int = HELD_BYTES,
    ) -> Feed:
        """Open a feed, which sends rows to a stream.

        Args:
            stream: the name of the stream.
            producer: the feed's name on the server, which stores `next_sequence` for each name. A program that can
                repeat its input sets it and resumes at `feed.next_sequence`. The default is a new random name.
            schema: the schema that the program expects. The server refuses the feed if the stream's schema differs.
            answer: how to answer the server's request for a timestamp. A function takes the least timestamp that would
                help, in microseconds, and returns the least timestamp that a row not yet sent can have, or None.
                "clock": the current time of this machine, for rows that are stamped with it and sent at once.
            answer_group: how to answer a request that names the group that has waited the longest, on a stream with a
                `punctuation_key`. A function takes the least timestamp that would help, and the group's values by
                column (timestamps in microseconds), and returns the least timestamp that a row of this group not yet
                sent can have. If it returns None, `answer` answers for all rows.
            frame_rows: the most rows in a frame.
            held_tuples: `send` blocks while this many tuples are not acknowledged.
            held_bytes: `send` blocks while this many bytes are not acknowledged.

        Raises:
            ServerError: `unknown_stream`, `schema_mismatch` or another code of the protocol.
        """
        opening = self._client.open(
            stream,
            producer=producer,
            schema=schema,
            answer=answer,
            answer_group=answer_group,
            frame_rows=frame_rows,
            held_tuples=held_tuples,
            held_bytes=held_bytes,
        )
        return Feed(self, self.run(opening))

    def subscribe(
        self,
        query: str,
        *,
        from_sequence: int | None = None,
        window: int = WINDOW,
        progress: bool = False,
        format: Literal["rows", "arrow"] = "rows",  # noqa: A002 - the protocol's word
        on_gap: Literal["fail", "continue"] = "fail",
        history: str | None = None,
        refresh_us: int | None = None,
        keys: Sequence[object] | None = None,
        epoch: int | None = None,
    ) -> Subscription:
        """Subscribe to the rows of a query.

        Args:
            query: the name of the query.
            from_sequence: the sequence number of the first row to read. None: the next row that the query emits.
            window: the most rows in memory that the program has not read yet.
            progress: also receive progress; see `updates` and `progress_us`.
            format: "rows" for RowBatch, "arrow" for ArrowBatch (requires pyarrow).
            on_gap: what to do if the server no longer retains the rows that follow after a reconnect. "fail": raise
                ServerError `not_retained`, or `lost` if a promotion has lost rows. "continue": count the gap in `gaps`
                and resume, in a new history at sequence 0, at the first lost row, else at the next row.
            history: the history that `from_sequence` belongs to, from `subscription.history` of an earlier run. The
                server refuses a sequence number of an ended history with `not_retained`.
            refresh_us: how often the program looks at the rows, in microseconds. Edges `LATEST USING DEADLINE` of the
                query and of queries that it reads serve keys for that. Without one the server refuses: `no_deadline`.
            keys: the keys that it looks at so often: values of the update key, tuples if it has several columns. None:
                all keys.
            epoch: the epoch in which the program got the row before `from_sequence`, from `subscription.epoch` of an
                earlier run. The server refuses with `lost` if a promotion has lost rows that the program has.

        Raises:
            ServerError: `unknown_query`, `not_retained`, `lost` or another code of the protocol.
        """
        subscribing = self._client.subscribe(
            query,
            from_sequence=from_sequence,
            window=window,
            progress=progress,
            format=format,
            on_gap=on_gap,
            history=history,
            refresh_us=refresh_us,
            keys=keys,
            epoch=epoch,
        )
        return Subscription(self, self.run(subscribing))

    @property
    def epoch(self) -> int | None:
        """The number of the highest epoch that the client has seen. Each promotion of a standby raises it.

        None: no server has said its epoch.
        """
        return self._client.epoch

    def close(self) -> None:
        """Flush and close every feed, close every subscription, and disconnect. A second call does nothing."""
        if not self._thread.is_alive():
            return
        try:
            self.run(self._client.close())
        finally:
            self._end_thread()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            try:
                self.run(self._client.__aexit__(kind, error, trace))
            finally:
                self._end_thread()

    def run(self, work: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine in the client's loop and wait for its result.

        Args:
            work: the coroutine.
            timeout: seconds before TimeoutError, which cancels the coroutine.
        """
        if not self._thread.is_alive():
            work.close()
            raise Ended("this client is closed; create another")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("an answer function runs in the client's thread: it must not use the client")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


class Feed:
    """A feed of a stream, opened by `Client.open`. As a context manager, it closes itself.

    If the server refuses rows, the next `send`, `punctuate`, `flush` or `close` raises ServerError. Rows of other
    frames are not affected, and the feed stays open.
    """

    def __init__(self, client: Client, feed: AsyncFeed) -> None:
        self._client = client
        self._feed = feed

    @property
    def schema(self) -> Schema:
        """The fields of a row, in order."""
        return self._feed.schema

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next tuple. After `open` with a known producer: where to resume the input."""
        return self._feed.next_sequence

    @property
    def acknowledged(self) -> int:
        """The server has acknowledged every tuple with a sequence number below this one."""
        return self._feed.acknowledged

    @property
    def durable(self) -> int:
        """The server has every tuple with a sequence number below this one on its disk.

        0 until it says so, which it does only with a data directory and `[journal] sync = 'always'` or `'10 ms'`.
        """
        return self._feed.durable

    @property
    def refused(self) -> int:
        """How many tuples below `acknowledged` the server refused."""
        return self._feed.refused

    @property
    def late(self) -> int | None:
        """How many tuples were late. None until the feed is closed, and if the server does not report it."""
        return self._feed.late

    @property
    def held(self) -> int:
        """Tuples in this program's memory: not sent, or not acknowledged."""
        return self._feed.held

    def send(self, rows: Sequence[Row] | Row, timeout: float | None = None) -> None:
        """Send rows. Blocks while the feed holds too many unacknowledged rows.

        Each call has the fixed cost of a switch to the client's thread, so send many rows at a time.

        Args:
            rows: a list of tuples or lists in the order of `schema`, or of dicts by field name; or one dict.
            timeout: seconds before TimeoutError. The feed still sends the rows.

        Raises:
            ServerError: the server refused rows of an earlier call.
            ValueError, TypeError: a row does not have the schema's fields or types; none of the rows is sent.
        """
        self._client.run(self._feed.send(rows), timeout)

    def send_arrow(self, batch: Any, timeout: float | None = None) -> None:
        """Send a pyarrow RecordBatch or Table. Columns are matched by name.

        Args:
            batch: the rows.
            timeout: seconds before TimeoutError. The feed still sends the rows.
        """
        self._client.run(self._feed.send_arrow(batch), timeout)

    def punctuate(self, time: float | datetime | str, where: Mapping[str, object] | None = None) -> None:
        """Promise that no later row of this feed has a lower timestamp.

        Args:
            time: a number in the stream's time unit (microseconds since 1970 by default), a datetime, or ISO 8601 text.
            where: the values of the stream's punctuation key, if the promise is about the rows with these values alone.
                If the connection breaks, such a promise is not repeated. Raises ServerError if the server is older
                than such promises.
        """
        self._client.run(self._feed.punctuate(time, where))

    def flush(self, timeout: float | None = None, *, durable: bool = False) -> None:
        """Wait until the server has acknowledged all rows.

        Args:
            timeout: seconds before TimeoutError.
            durable: wait until it has them on its disk, where a power cut does not lose them.

        Raises:
            ServerError: the server refused some rows, or it does not report what is on its disk.
        """
        self._client.run(self._feed.flush(durable), timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush, then end the feed: the server no longer waits for its rows. A second call does nothing.

        Args:
            timeout: seconds before TimeoutError.
        """
        self._client.run(self._feed.close(), timeout)

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._client.run(self._feed.__aexit__(kind, error, trace))


class Subscription:
    """A subscription to a query, opened by `Client.subscribe`. Iterate over it for rows as dicts.

    `batches()` is faster. The iteration raises ServerError if the server ends the subscription.
    """

    def __init__(self, client: Client, subscription: AsyncSubscription) -> None:
        self._client = client
        self._subscription = subscription

    @property
    def schema(self) -> Schema:
        """The fields of a row, in order."""
        return self._subscription.schema

    @property
    def progress_us(self) -> int | None:
        """All rows with a lower timestamp have been read. None without `progress=True` and before the first one."""
        return self._subscription.progress_us

    @property
    def gaps(self) -> int:
        """How often rows were lost after a reconnect (with `on_gap="continue"`)."""
        return self._subscription.gaps

    @property
    def next_sequence(self) -> int | None:
        """The sequence number of the next row: pass it as `from_sequence`, with `history`, to resume later."""
        return self._subscription.next_sequence

    @property
    def epoch(self) -> int | None:
        """The epoch in which the newest rows were received: pass it as `epoch`, with `from_sequence`, to resume later.

        None if the server does not report it.
        """
        return self._subscription.epoch

    @property
    def history(self) -> str | None:
        """The history that the sequence numbers belong to. None if the server does not report it."""
        return self._subscription.history

    def __iter__(self) -> Iterator[dict[str, object]]:
        for batch in self.batches():
            yield from batch.dicts()

    def batches(self, timeout: float | None = None) -> Iterator[Batch]:
        """The rows in batches, as they arrive.

        Args:
            timeout: seconds without a batch before TimeoutError. No row is lost; call `batches` again to continue.
        """
        while True:
            # Two steps: a batch that is taken out just before the timeout would be lost.
            self._client.run(self._subscription.wait(), timeout)
            batch = self._client.run(self._subscription.next_batch())
            if batch is None:
                return
            yield batch

    def updates(self, timeout: float | None = None) -> Iterator[Batch | ProgressTo]:
        """Batches and progress, in order, as they arrive.

        Args:
            timeout: seconds without either before TimeoutError. Nothing is lost; call `updates` again to continue.
        """
        while True:
            self._client.run(self._subscription.wait_update(), timeout)
            update = self._client.run(self._subscription.next_update())
            if update is None:
                return
            yield update

    def close(self) -> None:
        """End the subscription."""
        self._client.run(self._subscription.close())

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
