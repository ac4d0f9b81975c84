"""Client: the same for programs without an event loop. A thread of its own hosts the loop of an AsyncClient."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from millrace.client.aio import AsyncClient
from millrace.client.errors import Ended
from millrace.client.feed import AsyncFeed
from millrace.client.rows import Row
from millrace.client.subscription import AsyncSubscription, Batch, ProgressTo
from millrace.protocol import Schema

_T = TypeVar("_T")


class Client:
    """A connection to a server, for threads. `with Client("127.0.0.1:7420") as client:`.

    Takes what AsyncClient takes and connects at once. Every method may be called from any thread; an
    `answer` function is called in the client's own thread.
    """

    def __init__(self, address: str = "127.0.0.1", **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"millrace {address}", daemon=True)
        self._thread.start()
        try:
            self._client = self.run(AsyncClient.connect(address, **options))
        except BaseException:
            self._end_thread()
            raise

    @classmethod
    def connect(cls, address: str = "127.0.0.1", **options: Any) -> Client:
        """The same as the class; for symmetry with AsyncClient."""
        return cls(address, **options)

    def open(self, stream: str, **options: Any) -> Feed:
        """Open a feed; takes what `AsyncClient.open` takes."""
        return Feed(self, self.run(self._client.open(stream, **options)))

    def subscribe(self, query: str, **options: Any) -> Subscription:
        """Read a query's rows; takes what `AsyncClient.subscribe` takes."""
        return Subscription(self, self.run(self._client.subscribe(query, **options)))

    def close(self) -> None:
        """Close every feed (which flushes it) and subscription, and disconnect. Twice is fine."""
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
        """Do this in the client's loop and wait for it. TimeoutError cancels it."""
        if not self._thread.is_alive():
            work.close()
            raise Ended("this client is closed; make another")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("an answer function runs in the client's own thread: it must not use the client")
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
    """One feed of a stream; see AsyncFeed. A context manager that closes itself."""

    def __init__(self, client: Client, feed: AsyncFeed) -> None:
        self._client = client
        self._feed = feed

    @property
    def schema(self) -> Schema:
        """The fields that a row has, in order."""
        return self._feed.schema

    @property
    def next_sequence(self) -> int:
        """The number that the next tuple will have."""
        return self._feed.next_sequence

    @property
    def acknowledged(self) -> int:
        """Every tuple below this number was dealt with by the server."""
        return self._feed.acknowledged

    @property
    def refused(self) -> int:
        """Tuples below `acknowledged` that the server refused."""
        return self._feed.refused

    @property
    def late(self) -> int | None:
        """Tuples that were late, once the feed is closed; None if that is not known."""
        return self._feed.late

    @property
    def held(self) -> int:
        """Tuples in this program's memory: not sent, or not acknowledged."""
        return self._feed.held

    def send(self, rows: Sequence[Row] | Row, timeout: float | None = None) -> None:
        """Send rows, sequences or mappings; waits while the feed holds too much. Send many at a time: a call costs a
        hop to the client's thread, whatever it carries."""
        self._client.run(self._feed.send(rows), timeout)

    def send_arrow(self, batch: Any, timeout: float | None = None) -> None:
        """Send a pyarrow RecordBatch or Table."""
        self._client.run(self._feed.send_arrow(batch), timeout)

    def punctuate(self, time: int | datetime | str) -> None:
        """Promise that no later row of this feed has a timestamp below this one."""
        self._client.run(self._feed.punctuate(time))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent was acknowledged."""
        self._client.run(self._feed.flush(), timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush, then end the feed."""
        self._client.run(self._feed.close(), timeout)

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._client.run(self._feed.__aexit__(kind, error, trace))


class Subscription:
    """One subscription; see AsyncSubscription. Iterate over it for rows as dicts, or over `batches()`."""

    def __init__(self, client: Client, subscription: AsyncSubscription) -> None:
        self._client = client
        self._subscription = subscription

    @property
    def schema(self) -> Schema:
        """The fields of a row."""
        return self._subscription.schema

    @property
    def progress_us(self) -> int | None:
        """Rows are complete for every timestamp below this one (with `progress=True`)."""
        return self._subscription.progress_us

    @property
    def gaps(self) -> int:
        """How often rows were missed after a reconnect (with `on_gap="continue"`)."""
        return self._subscription.gaps

    @property
    def next_sequence(self) -> int | None:
        """The number of the first row not received yet."""
        return self._subscription.next_sequence

    @property
    def history(self) -> str | None:
        """The history that row numbers belong to."""
        return self._subscription.history

    def __iter__(self) -> Iterator[dict[str, object]]:
        for batch in self.batches():
            yield from batch.dicts()

    def batches(self, timeout: float | None = None) -> Iterator[Batch]:
        """Batches as they come; TimeoutError if none came for so long, after which it may be called again."""
        while True:
            # Two steps: a batch taken out as the time ran out would be lost.
            self._client.run(self._subscription.wait(), timeout)
            batch = self._client.run(self._subscription.next_batch())
            if batch is None:
                return
            yield batch

    def updates(self, timeout: float | None = None) -> Iterator[Batch | ProgressTo]:
        """Batches and progress as they come, in their order; TimeoutError as with `batches`."""
        while True:
            self._client.run(self._subscription.wait_update(), timeout)
            update = self._client.run(self._subscription.next_update())
            if update is None:
                return
            yield update

    def close(self) -> None:
        """Tell the server to stop."""
        self._client.run(self._subscription.close())

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
