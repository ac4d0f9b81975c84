"""The server's state and numbers for those who watch it: consoles and `millrace top`.

Rule: views are made once per interval, however many watch, and not at all while nobody does. Making them takes at most
a twentieth of the time, so a large server is looked at less often. No line waits for a watcher that reads slowly: it
gets the whole newest state next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

from millrace.access.callers import Caller
from millrace.access.roles import Action, Grant
from millrace.engine import views
from millrace.protocol.admin.data import to_data
from millrace.protocol.admin.events import SECTIONS, HealthView
from millrace.run.timers import sleep

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

Section = Literal["streams", "queries", "sinks", "components", "operators"]
# The intervals that are computed, in seconds. A watcher gets the next longer one, so that there are few.
INTERVALS: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
# Making the views takes at most this part of the time.
SHARE: Final = 20
# Views that are made before the loop does something else: two milliseconds.
PIECE: Final = 50

Data = dict[str, Any]


class View(Protocol):
    """The view of an object with a name."""

    @property
    def name(self) -> str: ...


def in_pieces(daemon: Daemon) -> Iterator[tuple[Section, Sequence[Any]]]:
    """All views, in pieces that are made one at a time. Between two of them the server may change."""
    engine = daemon.engine
    yield "streams", daemon.streams()
    names = tuple(engine.queries_by_name)
    for start in range(0, len(names), PIECE):
        found = [daemon.query(name) for name in names[start : start + PIECE]]
        yield "queries", [query for query in found if query is not None]
    yield "sinks", daemon.catalog.sinks()
    operators = []
    for piece in views.operators_in_pieces(engine, PIECE, daemon.runner.now_us()):
        operators += piece
        yield "operators", piece
    yield "components", daemon.components_of(operators)


class Bell:
    """Wakes all who wait for it."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        rung, self._rung = self._rung, asyncio.Event()
        rung.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until it rings, or for so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()


class Broadcasts:
    """The broadcasts of a server: one for each interval at which somebody watches. `news` rings when a change was
    applied, when tokens have changed, and when the server stops."""

    def __init__(self, daemon: Daemon) -> None:
        self.news = Bell()
        self._daemon = daemon
        self._running: dict[float, Broadcast] = {}

    def wake(self) -> None:
        """Something happened that watchers do not wait an interval for."""
        self.news.ring()
        for broadcast in self._running.values():
            broadcast.bell.ring()

    async def lines(self, caller: Caller, holds: Callable[[], bool], seconds: float) -> AsyncGenerator[bytes]:
        """The lines for one watcher, without an end while it `holds` its permission."""
        interval = next(one for one in INTERVALS if one >= seconds)
        broadcast = self._running.get(interval)
        if broadcast is None:
            broadcast = self._running[interval] = Broadcast(self._daemon, interval)
        broadcast.watchers += 1
        try:
            async with aclosing(broadcast.lines(caller, holds)) as lines:
                async for line in lines:
                    yield line
        finally:
            broadcast.watchers -= 1
            if not broadcast.watchers:
                broadcast.end()
                del self._running[interval]


class Broadcast:
    """What is known at one interval: each object as it was last seen, and what differed from the time before.

    version  how often everything was looked at
    """

    def __init__(self, daemon: Daemon, interval: float) -> None:
        self.watchers = 0
        self.version = 0
        self.bell = Bell()
        self._daemon = daemon
        self._interval = interval
        self._at_us = 0
        self._server: Data = {}
        self._server_changes: Data = {}
        self._health: Data = {}
        self._health_changed = False
        self._changes = 0  # the newest change before it was looked
        self._sections = {section: _Objects(section) for section in SECTIONS}
        self._texts: dict[tuple[str, tuple[Grant, ...]], bytes] = {}  # lines of this version, by event and grants
        self._task = asyncio.create_task(self._run(), name="broadcast")
        self._task.add_done_callback(lambda _: self.bell.ring())

    def end(self) -> None:
        self._task.cancel()

    # -- looking ---------------------------------------------------------------------------------------

    async def _run(self) -> None:
        timers = self._daemon.timers
        while True:
            began = timers.time()
            worked = await self._look()
            self.bell.ring()
            await sleep(timers, max(self._interval - (timers.time() - began), SHARE * worked, 0))

    async def _look(self) -> float:
        """Look at everything once; how many seconds that kept the loop busy."""
        changes = self._daemon.catalog.ledger.newest() or 0
        pieces, worked = in_pieces(self._daemon), 0.0
        while True:
            await self._daemon.runner.at_rest()
            began = time.thread_time()
            try:
                section, found = next(pieces)
            except StopIteration:
                break
            self._sections[section].take(found)
            worked += time.thread_time() - began
            await asyncio.sleep(0)
        for objects in self._sections.values():
            objects.settle()
        daemon = self._daemon
        server = to_data(daemon.describe())
        self._server, self._server_changes = server, _differences(self._server, server)
        health = to_data(HealthView(ready=daemon.state == "ready", problems=server["problems"]))
        self._health_changed, self._health = health != self._health, health
        self._at_us, self._changes = daemon.runner.now_us(), changes
        self.version += 1
        self._texts.clear()
        return worked + time.thread_time() - began

    # -- lines -----------------------------------------------------------------------------------------

    async def lines(self, caller: Caller, holds: Callable[[], bool]) -> AsyncGenerator[bytes]:
        ledger = self._daemon.catalog.ledger
        seen = told = 0
        while True:
            if self._daemon.stopping or not holds():
                reason = "stopping" if self._daemon.stopping else "token"
                yield _line({"event": "end", "reason": reason})
                return
            if seen and caller.sees_all and (ledger.newest() or 0) > told:
                for entry in ledger.since(told):
                    told = entry.number
                    yield _line({"event": "changed", **entry.model_dump(mode="json")})
            elif self.version > seen:
                whole = not seen or self.version > seen + 1
                seen = self.version
                if whole:
                    told = self._changes
                yield self._text("state" if whole else "numbers", caller)
            else:
                if self._task.done():
                    self._task.result()  # raises
                await self.bell.wait()

    def _text(self, event: Literal["state", "numbers"], caller: Caller) -> bytes:
        """A line for all watchers with the same roles."""
        key = event, caller.grants
        found = self._texts.get(key)
        if found is None:
            found = self._texts[key] = _line(self._state(caller) if event == "state" else self._numbers(caller))
        return found

    def _state(self, caller: Caller) -> Data:
        health = self._health if caller.sees_all else {**self._health, "problems": []}
        return {
            "event": "state",
            "at_us": self._at_us,
            "server": self._server if caller.sees_all else {**self._server, **self._daemon.hidden()},
            **{section: objects.all(caller) for section, objects in self._sections.items()},
            "health": health,
            "changes": self._changes if caller.sees_all else 0,
        }

    def _numbers(self, caller: Caller) -> Data:
        server, data = self._server_changes, {"event": "numbers", "at_us": self._at_us}
        if not caller.sees_all:
            hidden = self._daemon.hidden()
            server = {name: value for name, value in server.items() if name not in hidden}
        elif self._health_changed:
            data["health"] = self._health
        data["server"] = server
        gone = {}
        for section, objects in self._sections.items():
            if changed := objects.changed(caller):
                data[section] = changed
            if left := objects.gone(caller):
                gone[section] = left
        return {**data, "gone": gone} if gone else data


class _Objects:
    """The objects of one section: as they are, and what of them differs from the look before."""

    def __init__(self, section: Section) -> None:
        self._section: Final = section
        self._views: dict[str, View] = {}
        self._data: dict[str, Data] = {}
        self._before: dict[str, View] = {}
        self._changes: list[Data] = []
        self._left: list[Data] = []
        self._fresh: list[Data] = []  # of the look in progress

    def take(self, found: Sequence[View]) -> None:
        """Views of the look in progress."""
        for view in found:
            name = view.name
            self._before[name] = view
            if self._views.get(name) == view:
                continue
            data, known = to_data(view), self._data.get(name)
            self._data[name] = data
            self._fresh.append(data if known is None else {"name": name, **_differences(known, data)})

    def settle(self) -> None:
        """All have been taken: the others are gone."""
        self._left = [self._data.pop(name) for name in self._views if name not in self._before]
        self._views, self._before = self._before, {}
        self._changes, self._fresh = self._fresh, []

    def all(self, caller: Caller) -> list[Data]:
        return [data for data in self._data.values() if self._shows(caller, data)]

    def changed(self, caller: Caller) -> list[Data]:
        return [data for data in self._changes if self._shows(caller, self._data.get(data["name"], data))]

    def gone(self, caller: Caller) -> list[str]:
        return [data["name"] for data in self._left if self._shows(caller, data)]

    def _shows(self, caller: Caller, data: Data) -> bool:
        """Whether a client may see an object, as in the lists of the API."""
        if caller.sees_all:
            return True
        match self._section:
            case "streams":
                return caller.may(Action.LOOK, data["name"])
            case "queries":
                return caller.may(Action.READ, data["name"])
            case "sinks":
                return caller.may(Action.READ, data["query"])
            case _:
                return False


_ABSENT: Final = object()


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Data:
    """The keys with another value than before; null for those that have gone."""
    changed = {key: value for key, value in now.items() if before.get(key, _ABSENT) != value}
    return {**changed, **{key: None for key in before if key not in now}}


def _line(data: Data) -> bytes:
    return msgspec.json.encode(data) + b"\n"
