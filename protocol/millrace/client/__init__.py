"""The Python client: feeds rows to a Millrace server and subscribes to queries.

It requires msgpack only, and pyarrow for Arrow.
"""

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
