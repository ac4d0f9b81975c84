"""Feed a Millrace server and read from it. Needs msgpack alone (and pyarrow, if you send Arrow)."""

from millrace.client.aio import AsyncClient
from millrace.client.backoff import Backoff
from millrace.client.errors import ConnectionLost, Ended, ServerError
from millrace.client.feed import AsyncFeed
from millrace.client.subscription import ArrowBatch, AsyncSubscription, ProgressTo, RowBatch
from millrace.client.sync import Client, Feed, Subscription

__all__ = [
    "ArrowBatch",
    "AsyncClient",
    "AsyncFeed",
    "AsyncSubscription",
    "Backoff",
    "Client",
    "ConnectionLost",
    "Ended",
    "Feed",
    "ProgressTo",
    "RowBatch",
    "ServerError",
    "Subscription",
]
