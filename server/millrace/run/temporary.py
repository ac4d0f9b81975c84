"""Temporary queries, created by a SELECT: each lives as long as it has a subscriber.

Rule: a temporary query lives as long as its subscriptions on the server. It is dropped when the last one ends, for any
reason, or when none has started within `GRACE_SECONDS`. It is never saved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from typing import Any, Final

import structlog

from millrace.protocol import MillraceError
from millrace.run.runner import Runner
from millrace.run.timers import Handle, Timers

log = structlog.get_logger()

# How long a client may take from the answer to its SELECT to its subscription.
GRACE_SECONDS: Final = 10.0


class Temporaries:
    """The temporary queries of a server. `drop` ends a query by its name. None ends while they `rest`: the steps that
    are replayed say when."""

    def __init__(self, runner: Runner, timers: Timers, drop: Callable[[str], Awaitable[Any]]) -> None:
        self.names: dict[str, Handle] = {}
        self.rest = False
        self._runner = runner
        self._timers = timers
        self._drop = drop
        self._last = 0
        self._dropping: set[asyncio.Task[None]] = set()

    def next_name(self, taken: Container[str]) -> str:
        """A name that no temporary query of this server has had, and nothing else has."""
        self._last += 1
        while (name := f"temporary{self._last}") in taken:
            self._last += 1
        return name

    def add(self, name: str) -> None:
        """The query exists now: wait for its reader."""
        outlet = self._runner.outlets[name]
        outlet.on_unread = lambda: self._end(name)
        self.names[name] = self._timers.call_later(GRACE_SECONDS, self._look, name)

    def forget(self, name: str) -> None:
        """The query is gone."""
        handle = self.names.pop(name, None)
        if handle is not None:
            handle.cancel()

    def _look(self, name: str) -> None:
        outlet = self._runner.outlets.get(name)
        if outlet is not None and not outlet.consumers:
            self._end(name)

    def _end(self, name: str) -> None:
        if name in self.names and not self.rest:
            task = asyncio.get_running_loop().create_task(self._dropped(name), name=f"drop {name}")
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def _dropped(self, name: str) -> None:
        try:
            await self._drop(name)
        except MillraceError as error:
            if name in self.names and error.code != "shutting_down":
                log.warning("a temporary query could not be dropped", query=name, reason=error.text)
