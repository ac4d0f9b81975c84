"""The memory budget of the server: one account of all that it holds, and the actions when memory is short.

Rule: the resident memory of the process is the truth, because allocators keep and fragment what is freed; the parts
explain it, and `other` is the rest. Measured memory reaches the engine as events alone, which the journal records: a
replay, a follower and a standby come to the same state, whatever memory they have. So a standby that follows only
measures: it takes its primary's decisions.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from millrace.engine.events import MemoryExceeded, MemoryHeld
from millrace.engine.sizes import query_bytes, state_bytes
from millrace.protocol.admin.server import MemoryView
from millrace.protocol.words import readable_bytes
from millrace.run.memory import limit_bytes, resident_bytes
from millrace.run.shortage import RELEASE, Shortage, Stage
from millrace.values.retention import parse_bytes

if TYPE_CHECKING:
    from millrace.net.connection import Connection
    from millrace.run.daemon import Daemon

log = structlog.get_logger()

# How often memory is measured, where it may become short soon and elsewhere: 13 us each.
NEAR_SECONDS: Final = 0.02
FAR_SECONDS: Final = 0.25
# The share of the budget from which it may become short soon, and from which the growth of queries is recorded.
NEAR: Final = 0.5
# A growth by this share between two looks may make it short soon, too: a fast feed takes half a gigabyte in a second.
GROWS: Final = 1 / 64
# How often the sizes of queries are recorded, and how many records there are: the growth of the last minute.
SAMPLE_SECONDS: Final = 5.0
SAMPLES: Final = 12
# How long an action has for its effect before the next one of its kind.
SETTLE_SECONDS: Final = 1.0
# The least share of the budget that makes a query worth failing, or a reader worth ending.
WORTH: Final = 1 / 64
# The share of the budget that connections may buffer when memory is short, before those that buffer most are closed.
BUFFERS: Final = 1 / 8
# Shares of the budget: the most that one feed may have under way, and that one component may have queued.
CREDIT_SHARE: Final = 16
QUEUED_SHARE: Final = 4
# The reason why connections are not read.
HELD: Final = "memory"

# The kinds of rows that are dropped.
SHED_KINDS: Final = ("retained", "waiting")


def budget_bytes(text: str, limit: int | None) -> int | None:
    """A budget such as `512 MB`, or `60 %` of the system's limit; None: the limit is not known."""
    if not text.endswith("%"):
        return parse_bytes(text)
    return None if limit is None else int(limit * float(text[:-1]) / 100)


class Budget:
    """The account of one server.

    bytes     the budget; None: it is not known, and memory is only measured
    shed      rows dropped because memory was short, by kind
    failed    the queries that were failed for it since the start, the newest last
    closed    connections that were closed because they buffered most
    """

    def __init__(self, daemon: Daemon, bytes_: int | None) -> None:
        self.bytes = bytes_
        self.shed = dict.fromkeys(SHED_KINDS, 0)
        self.failed: deque[str] = deque(maxlen=100)
        self.failures = 0
        self.closed = 0
        self.since_us: int | None = None  # of the present shortage
        self._daemon = daemon
        self._shortage = None if bytes_ is None else Shortage(bytes_)
        self._base = 0
        self._holds = self._sheds = False
        self._braked: dict[Connection, None] = {}
        self._samples: deque[tuple[float, dict[str, int]]] = deque(maxlen=SAMPLES)
        self._acted: dict[str, float] = {}
        self._helpless = False
        self._seen: int | None = None  # used at the last look
        self._failed_one = False  # since memory was returned to the system last

    # -- the account -------------------------------------------------------------------------------

    def used(self) -> int:
        """What this process and its follower have in memory."""
        return (resident_bytes() or 0) + self._follower_bytes()

    def _follower_bytes(self) -> int:
        durability = self._daemon.durability
        process = None if durability is None else durability.following.process
        return 0 if process is None else resident_bytes(process.pid) or 0

    def parts(self, used: int | None = None) -> dict[str, int]:
        """By part of the used memory, the bytes that it holds. Rows that several hold count for each of them."""
        daemon = self._daemon
        runner, durability = daemon.runner, daemon.durability
        outlets = list(runner.outlets.values())
        recorder = None if durability is None else durability.recorder
        found = {
            "program": self._base,
            "state": state_bytes(daemon.engine),
            "queues": daemon.engine.gauge.bytes,
            "results": sum(outlet.memory_bytes for outlet in outlets) + runner.results.waiting_bytes,
            "readers": sum(consumer.held_bytes for outlet in outlets for consumer in outlet.consumers),
            "buffers": sum(connection.buffered for connection in daemon.context.connections),
            "journal": 0 if recorder is None else recorder.waiting_bytes,
            "history": sum(archive.waiting_bytes for archive in daemon.archive.views().values()),
            "follower": self._follower_bytes(),
        }
        found["other"] = max((self.used() if used is None else used) - sum(found.values()), 0)
        return found

    def query_bytes(self) -> dict[str, int]:
        """By query that has not failed: its state, and the rows that wait for its readers."""
        found = query_bytes(self._daemon.engine)
        for name, outlet in self._daemon.runner.outlets.items():
            if name in found:
                found[name] += sum(consumer.held_bytes for consumer in outlet.consumers)
        return found

    @property
    def stage(self) -> Stage:
        return Stage.ENOUGH if self._shortage is None else self._shortage.stage

    @property
    def holds(self) -> bool:
        """Whether feeds wait for memory."""
        return self._holds

    def view(self) -> MemoryView:
        used = self.used()
        return MemoryView(
            budget_bytes=self.bytes,
            used_bytes=used,
            parts=self.parts(used),
            stage=self.stage.name.lower(),
            holds=self._holds,
            since_us=self.since_us,
            failed=list(self.failed),
            shed_rows=dict(self.shed),
            closed_connections=self.closed,
        )

    def sentence(self) -> str | None:
        """Why feeds wait, for `why`."""
        if not self._holds or self.bytes is None:
            return None
        used, budget = readable_bytes(self.used()), readable_bytes(self.bytes)
        return f"Feeds wait for new credit, because memory is short: {used} of {budget} (server.memory) are used."

    def objection(self, checkpoint: int) -> str | None:
        """Why there should be no follower: it holds the server's state once more, and its bytes while it writes them.
        With both, no feed may have to wait for memory."""
        used = resident_bytes()
        if self.bytes is None or used is None:
            return "the system does not say how much memory there is: set server.memory"
        needed, most = 2 * used + checkpoint, int(self.bytes * RELEASE)
        if needed <= most:
            return None
        return (
            f"the server and its follower may need {readable_bytes(needed)}, and may use {readable_bytes(most)} of the "
            f"memory budget of {readable_bytes(self.bytes)} (server.memory)"
        )

    # -- measuring ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch forever."""
        self._base = resident_bytes() or 0
        if self._shortage is not None and self._base > RELEASE * self._shortage.budget:
            log.warning("the memory budget is hardly more than the program needs", **self._numbers(self._base))
        while True:
            near = await self.look(time.monotonic())
            await asyncio.sleep(NEAR_SECONDS if near else FAR_SECONDS)

    async def look(self, now: float) -> bool:
        """Measure once, and do what follows; whether memory may become short soon."""
        shortage, used = self._shortage, self.used()
        if shortage is None:
            return False
        if shortage.nears(used) and self._may("trim", now):
            trim(everything=self._failed_one)
            self._failed_one = False
            used = self.used()
        stage = shortage.look(now, used)
        near = used >= NEAR * shortage.budget
        grows = self._seen is not None and used - self._seen >= GROWS * shortage.budget
        self._seen = used
        if self._daemon.follows:
            return near or grows
        if near and self._may("sample", now, SAMPLE_SECONDS):
            await self._daemon.runner.at_rest()
            self._samples.append((now, self.query_bytes()))
        elif not near:
            self._samples.clear()
        self._tell(stage, used)
        if stage >= Stage.SHED and shortage.holds and self._may("shed", now):
            await self._drop()
        elif stage is Stage.FAIL and self._may("fail", now):
            await self._fail(now)
        self._hold(shortage.holds, stage >= Stage.SHED)
        self._brake(shortage.holds)
        return near or grows

    def _may(self, action: str, now: float, seconds: float = SETTLE_SECONDS) -> bool:
        """Whether the last action of this kind has had its time."""
        if now - self._acted.get(action, -seconds) < seconds:
            return False
        self._acted[action] = now
        return True

    def _numbers(self, used: int) -> dict[str, Any]:
        return {"used_bytes": used, "budget_bytes": self.bytes}

    def _tell(self, stage: Stage, used: int) -> None:
        if stage > Stage.ENOUGH and self.since_us is None:
            self.since_us = self._daemon.runner.now_us()
            log.warning("memory is short: feeds wait", **self._numbers(used))
        elif stage is Stage.ENOUGH and self.since_us is not None and used < RELEASE * (self.bytes or 0):
            self.since_us, self._helpless = None, False
            log.info("memory suffices again", **self._numbers(used))

    # -- acting ------------------------------------------------------------------------------------

    def _hold(self, holds: bool, sheds: bool) -> None:
        """Let feeds wait for credit, or no longer."""
        sheds = holds and sheds
        if holds == self._holds and sheds <= self._sheds:
            return
        self._holds, self._sheds = holds, sheds
        self._daemon.runner.submit(MemoryHeld(holds, sheds))

    def _brake(self, on: bool) -> None:
        """Read nothing from connections that only feed: they still have credit, and it would take memory at once."""
        connections = self._daemon.context.connections
        if not on:
            braked, self._braked = self._braked, {}
            for connection in braked:
                connection.let_read(HELD)
            return
        for connection in [one for one in connections if one.only_feeds and one not in self._braked]:
            connection.hold_reading(HELD)
            self._braked[connection] = None
        for connection in [one for one in self._braked if one not in connections]:
            del self._braked[connection]

    async def _drop(self) -> None:
        """Drop rows that no policy promises, and count them."""
        daemon, least = self._daemon, int(WORTH * (self.bytes or 0))
        retained = waiting = 0
        for outlet in list(daemon.runner.outlets.values()):
            retained += outlet.shed()
            waiting += sum([consumer.shed(least) for consumer in tuple(outlet.consumers)])
        self.shed["retained"] += retained
        self.shed["waiting"] += waiting
        closed = self._close_buffering()
        if retained or waiting or closed:
            log.warning("memory is short: rows were dropped", retained=retained, waiting=waiting, closed=closed)
        if daemon.durability is not None:
            await daemon.durability.following.make_room()
        self._acted.pop("trim", None)

    def _close_buffering(self) -> int:
        """Close the connections that buffer most, if all together buffer too much."""
        buffered = {connection: connection.buffered for connection in self._daemon.context.connections}
        excess, closed = sum(buffered.values()) - BUFFERS * (self.bytes or 0), 0
        for connection in sorted(buffered, key=lambda one: buffered[one], reverse=True):
            if excess <= 0:
                break
            text = f"the server is short of memory, and this connection buffers {readable_bytes(buffered[connection])}"
            connection.end_for("memory", text)
            excess -= buffered[connection]
            closed += 1
        self.closed += closed
        return closed

    async def _fail(self, now: float) -> None:
        """Fail the query that has grown most; nothing if no query holds much."""
        await self._daemon.runner.at_rest()
        sizes = self.query_bytes()
        then, before = self._samples[0] if self._samples else (now, sizes)
        query = most_grown(sizes, before, WORTH * (self.bytes or 0))
        if query is None:
            if not self._helpless:
                self._helpless = True
                log.error("memory is used up, and no query holds much of it: feeds wait", **self._numbers(self.used()))
            return
        grown = sizes[query] - before.get(query, 0)
        self.failed.append(query)
        self.failures += 1
        self._failed_one, self._acted["trim"] = True, now
        numbers = {"query": query, "bytes": sizes[query], "grown_bytes": grown, "seconds": round(now - then)}
        log.error("memory is used up: the query that has grown most fails", **numbers, **self._numbers(self.used()))
        self._daemon.runner.submit(MemoryExceeded(query, self._reason(query, sizes[query], grown, now - then)))

    def _reason(self, query: str, size: int, grown: int, seconds: float) -> str:
        budget = readable_bytes(self.bytes or 0)
        growth = f", {readable_bytes(grown)} of them within {seconds:.0f} s" if 0 < grown < size else ""
        return (
            f"the server's memory was used up ({readable_bytes(self.used())} of {budget}, server.memory), and this "
            f"query had grown most: it held {readable_bytes(size)}{growth}. Give it shorter windows and ranges, or a "
            f"max_state, or raise server.memory; then run: millrace query resume {query}"
        )


def most_grown(sizes: Mapping[str, int], before: Mapping[str, int], least: float) -> str | None:
    """The query that has grown most since it had the size before, among those that have a certain size now; of several,
    the largest. None: no query is worth it."""
    large = [name for name, size in sizes.items() if size >= least]
    return max(large, key=lambda name: (sizes[name] - before.get(name, 0), sizes[name]), default=None)


def trim(*, everything: bool = False) -> None:
    """Have the C library return free pages. `everything`: after collecting the cycles of a query that has failed, which
    takes 100 ms and more."""
    if everything:
        gc.collect()
    c = ctypes.CDLL(None)
    if hasattr(c, "malloc_trim"):
        c.malloc_trim(0)


def budget_of(text: str) -> int | None:
    """The bytes of a budget on this machine."""
    return budget_bytes(text, limit_bytes())
