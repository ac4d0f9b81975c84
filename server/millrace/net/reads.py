"""How often a subscriber looks at a query's rows, as it says in SUBSCRIBE, and at which keys.

The interval becomes a command of the engine, whose DEADLINE queues serve keys for it, and ends with the subscription.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from millrace.engine.events import SetReads
from millrace.engine.plan import StreamDefinition
from millrace.formats.decoder import StreamDecoder
from millrace.operators.queues.reads import MOST_KEYS
from millrace.protocol import Refuse, RowError, Schema
from millrace.protocol.errors import row_place
from millrace.protocol.timestamps import LIFETIME_US
from millrace.values.intervals import parse_interval

if TYPE_CHECKING:
    from millrace.net.sink import Outlet
    from millrace.run.runner import Runner

# No two subscriptions of a server have the same number.
_NUMBERS: Final = count()


class RefreshInterval:
    """The stated reads of one subscription; `refused` is called with code and text if the engine refuses them."""

    def __init__(
        self,
        outlet: Outlet,
        refresh: int | str,
        keys: Sequence[Sequence[object]] | None,
        refused: Callable[[str, str], None],
    ) -> None:
        self._outlet = outlet
        self._interval_us = _interval(refresh)
        self._keys = None if keys is None else _keys(outlet, keys)
        self._refused = refused
        self._number = next(_NUMBERS)

    def state(self, runner: Runner, subscriber: str, looks: bool) -> None:
        """The subscription begins, or ends."""
        reader = f"{subscriber}/{self._number}"
        if looks:
            command = SetReads(self._outlet.query, reader, self._interval_us, self._keys)
            runner.command(command).add_done_callback(self._answered)
        else:
            runner.command(SetReads(self._outlet.query, reader, None)).add_done_callback(_ignore)

    def _answered(self, answer: asyncio.Future[Any]) -> None:
        refused = None if answer.cancelled() else answer.exception()
        if isinstance(refused, Refuse):
            self._refused(refused.code, refused.text)


def stated(
    outlet: Outlet,
    refresh: int | str | None,
    keys: Sequence[Sequence[object]] | None,
    refused: Callable[[str, str], None],
) -> RefreshInterval | None:
    """What a SUBSCRIBE says of its reads; Refuse if it makes no sense."""
    if refresh is None and keys is not None:
        raise Refuse("keys: expected a refresh interval with them, got none", code="bad_value")
    return None if refresh is None else RefreshInterval(outlet, refresh, keys, refused)


def _interval(refresh: int | str) -> int:
    if isinstance(refresh, str):
        try:
            refresh = parse_interval(refresh)
        except Refuse as error:
            raise Refuse(f"refresh: {error.text}", code="bad_value") from None
    if refresh < 1:
        raise Refuse(f"refresh: expected an interval above 0, got {refresh} us", code="bad_value")
    return min(refresh, LIFETIME_US)


def _keys(outlet: Outlet, keys: Sequence[Sequence[object]]) -> tuple[tuple[Any, ...], ...]:
    """Values of the update key of a query, as its rows have them."""
    if outlet.key is None:
        raise Refuse(f"keys: query {outlet.query} emits no update stream, so its rows have no key", code="bad_value")
    if not 0 < len(keys) <= MOST_KEYS:
        raise Refuse(f"keys: expected 1 to {MOST_KEYS:,} keys, got {len(keys):,}", code="bad_value")
    columns = Schema(tuple(outlet.schema.fields[at] for at in outlet.key))
    for key in keys:
        if len(key) != len(columns):
            expected = ", ".join(columns.names)
            raise Refuse(f"keys: expected a value for each of {expected} per key, got {len(key)}", code="bad_value")
    decoder = StreamDecoder(StreamDefinition(outlet.query, columns))
    try:
        batch = decoder.from_objects([dict(zip(columns.names, key, strict=True)) for key in keys])
    except RowError as error:
        where = row_place(error.row or 0)
        raise Refuse(error.text.replace(where, f"keys, item {error.row or 0}", 1), code="bad_value") from None
    return tuple(row[: len(columns)] for row in batch.rows())


def _ignore(answer: asyncio.Future[Any]) -> None:
    """The query may have gone with its readers."""
    if not answer.cancelled():
        answer.exception()
