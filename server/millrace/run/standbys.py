"""The standbys of this server: each copies its data directory once, and then its journal for as long as it lives.

Rule: a standby gets a record once it is durable here, and this server waits for no standby. Records that a standby
lacks are kept for it, up to a bound, whether it is connected or not.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgpack
import structlog

from millrace.journal.disk import JOURNAL_FOLDER, Disk, RealDisk
from millrace.journal.errors import JournalError, NotRetained
from millrace.journal.keeping import bytes_between
from millrace.journal.layout import digest_of, seed_of
from millrace.journal.reader import JournalReader
from millrace.journal.segments import Segment
from millrace.protocol import Refuse
from millrace.protocol.admin.server import StandbyView
from millrace.run.recorder import Recorder
from millrace.run.worker import Worker
from millrace.store.copies import messages_of
from millrace.values.retention import parse_bytes

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

log = structlog.get_logger()

T = TypeVar("T")

# How often a standby hears how far this server is.
PING_SECONDS: Final = 1.0
# The same while this server ends: only the standbys are waited for then.
LAST_PING_SECONDS: Final = 0.02
# Pings in the time of a lease: some may be late.
PINGS: Final = 5
# Bytes of records, or of a copy, that leave at once.
CHUNK_BYTES: Final = 1 << 20
# How long the end of the server waits until its standbys have everything.
LAST_SECONDS: Final = 5.0
# Standbys that are known at once: a machine or two, and earlier attempts.
MOST: Final = 16
ENDED: Final = "the server that this one follows has ended"
# The kinds of messages of the journal's stream.
RECORD, PING, END = 0, 1, 2


def mark_of(server_id: bytes) -> str:
    """What identifies a server to its standbys, without its id."""
    return hashlib.sha256(b"standby of " + server_id).hexdigest()[:32]


@dataclass(slots=True)
class Known:
    """A standby. It has the records up to `lsn` on its disk, as far as is known here.

    peer        its address
    streams     its connections for the journal: one, mostly
    sent        the newest record that was sent, and `sent_bytes` all of them
    heard_us    when it answered last
    left        whether it lacks more than is kept for it
    """

    peer: str
    lsn: int
    since_us: int
    streams: int = 0
    copies: int = 0
    sent: int = 0
    sent_bytes: int = 0
    heard_us: int | None = None
    left: bool = False


class Standbys:
    """The standbys of one server, by the names that they have invented for themselves."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.known: dict[str, Known] = {}
        self._daemon = daemon
        self._folder = folder
        self._most_bytes = parse_bytes(daemon.settings.standby.keep)
        self._draining = False
        self._ending: str | None = None
        self._leased: str | None = None  # the standby that the lease depends on
        self._news = asyncio.Event()  # whenever something ends, or is heard

    # -- copies ------------------------------------------------------------------------------------

    async def copy(self, name: str, peer: str) -> AsyncIterator[bytes]:
        """The messages of a copy of the data directory."""
        checkpoint = self._daemon.durability.checkpoint if self._daemon.durability is not None else None
        known = self._known(name, peer, checkpoint or 0)
        known.lsn, known.left = checkpoint or 0, False
        messages = messages_of(self._folder, self._daemon.runner.now_us())
        worker = Worker("standby-copy")
        known.copies += 1
        log.info("a standby copies the data directory", standby=peer)
        try:
            while chunk := await worker.run_whole(lambda: _some(messages)):
                known.sent_bytes += len(chunk)
                yield chunk
        finally:
            known.copies -= 1
            worker.close()

    # -- the journal -------------------------------------------------------------------------------

    async def admit(self, name: str, last: int, digest: str, server: str) -> None:
        """Refuse a standby whose newest record is not one of this server's, and a second one under a lease: either
        could be promoted while the other answers."""
        recorder = self._recorder()
        journal = recorder.journal
        if server != mark_of(journal.server_id):
            raise Refuse(
                "its data directory belongs to another server: name the server that it was copied from, or another "
                "data directory",
                code="another_server",
            )
        if last > recorder.settled:
            raise Refuse(
                f"it has {last - recorder.settled} records that this server does not have (it ends with record "
                f"{recorder.settled}): keep that directory if you need them, and start with an empty one",
                code="diverged",
            )
        if last < journal.first_lsn and (last or journal.first_lsn > 1):
            raise Refuse(
                f"its journal ends with record {last}, and this server has removed the records before "
                f"{journal.first_lsn}: start it with an empty data directory, so that it copies this server's again",
                code="trimmed",
            )
        found = await _aside(lambda: digest_at(RealDisk(self._folder / JOURNAL_FOLDER), journal.server_id, last))
        if found != digest:
            raise Refuse(
                f"its record {last} is not this server's, so the two have gone different ways: keep that directory if "
                "you need what only it has, and start with an empty one",
                code="diverged",
            )
        if recorder.lease.matters and self._leased not in (None, name):
            raise Refuse(
                "this server depends on another standby (standby.lease, standby.confirm): make sure that one is gone "
                "for good, and restart this server",
                code="too_many_standbys",
            )
        self._leased = name  # at once: another one may have been looked at meanwhile

    async def stream(self, name: str, peer: str, last: int) -> AsyncIterator[bytes]:
        """The durable records after this one as messages, and pings between them, without an end."""
        recorder = self._recorder()
        known = self._known(name, peer, last)
        known.lsn, known.sent, known.left = max(known.lsn, last), last, False
        reader = JournalReader(RealDisk(self._folder / JOURNAL_FOLDER), server_id=recorder.journal.server_id)
        worker, news = Worker("standby"), asyncio.Event()
        recorder.watchers.add(news)
        known.streams += 1
        log.info("a standby follows this server", standby=peer, after=last)
        try:
            async for message in self._messages(known, recorder, reader, worker, news):
                known.sent_bytes += len(message)
                yield message
        finally:
            known.streams -= 1
            recorder.watchers.discard(news)
            worker.close()
            reader.close()
            self._news.set()
            log.warning("a standby follows this server no more", standby=peer, has=known.lsn)

    async def _messages(
        self, known: Known, recorder: Recorder, reader: JournalReader, worker: Worker, news: asyncio.Event
    ) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        assert self._daemon.durability is not None
        await self._daemon.durability.end_alone()
        lease_us = recorder.lease.lease_us
        every = PING_SECONDS if lease_us is None else min(PING_SECONDS, lease_us / 1e6 / PINGS)
        pinged = loop.time() - every
        while True:
            news.clear()
            if self._draining:
                every = LAST_PING_SECONDS
            if loop.time() >= pinged + every:
                pinged = loop.time()
                yield msgpack.packb([PING, self._ping(recorder)])
            if known.sent < recorder.settled:
                first, upto = known.sent + 1, recorder.settled
                try:
                    records, known.sent = await worker.run_whole(lambda a=first, b=upto: _records(reader, a, b))  # type: ignore[misc]
                except NotRetained as error:
                    yield msgpack.packb([END, "trimmed", error.text])
                    return
                yield records
                continue
            if self._ending is not None:
                yield msgpack.packb([PING, self._ping(recorder)])
                yield msgpack.packb([END, "ended", self._ending])
                return
            try:
                async with asyncio.timeout(max(pinged + every - loop.time(), 0)):
                    await news.wait()
            except TimeoutError:
                pass

    def _ping(self, recorder: Recorder) -> dict[str, Any]:
        """How far this server is."""
        daemon, standby = self._daemon, self._daemon.settings.standby
        return {
            "ping": recorder.ping(),
            "lsn": recorder.recorded,
            "at_us": daemon.runner.now_us(),
            "tuples": daemon.tuples_taken(),
            "lease_us": recorder.lease.lease_us or 0,
            "confirm": standby.confirm,
        }

    def heard(self, name: str, ping: int, lsn: int, epoch: str | None = None) -> None:
        """A standby has answered a ping, and has the records up to this one on its disk; or it has been promoted, and
        shows its epoch."""
        if epoch is not None:
            if self._daemon.shown_epoch(epoch):
                raise Refuse("a higher epoch has taken over: this server stops", code="superseded")
            return
        known = self.known.get(name)
        if known is None:
            raise Refuse("this server does not know the standby: it has to connect again", code="unknown_standby")
        known.lsn = max(known.lsn, min(lsn, self._recorder().recorded))
        known.heard_us = self._daemon.runner.now_us()
        if name == self._leased and self._daemon.durability is not None:
            self._daemon.durability.heard(ping, known.lsn)
        self._news.set()

    # -- what is kept for them -----------------------------------------------------------------------

    def needed(self, before: int, newest: int, segments: Sequence[Segment]) -> int:
        """The record before which others may go: `before`, or an earlier one that a standby lacks."""
        for name, known in list(self.known.items()):
            if known.lsn >= before or known.left:
                continue
            if bytes_between(known.lsn, newest, segments) <= self._most_bytes:
                before = known.lsn  # its newest one stays, too: it proves that the two are alike
            else:
                known.left = True
                log.error(
                    "a standby lacks more records than are kept for it: it has to copy the data directory again",
                    standby=known.peer,
                    lacks=newest - known.lsn,
                )
                if not known.streams:
                    del self.known[name]
        return before

    def go_alone(self) -> None:
        """An operator says that none of them will take over: another one may follow."""
        durability = self._daemon.durability
        if durability is None or durability.recorder is None or not durability.leads:
            raise Refuse("this server records nothing yet: look at /-/ready", code="shutting_down")
        connected = [known.peer for known in self.known.values() if known.streams]
        if connected:
            raise Refuse(f"a standby is connected, from {connected[0]}: stop it first", code="standby_connected")
        durability.go_alone()
        self._leased = None

    def check_data_dir(self) -> None:
        """Refuse a copy while there is nothing to follow."""
        self._recorder()

    def _known(self, name: str, peer: str, lsn: int) -> Known:
        """The standby of this name; the one that was not heard for the longest time makes room for it."""
        found = self.known.get(name)
        if found is None:
            gone = [one for one, known in self.known.items() if not known.streams and not known.copies]
            while len(self.known) >= MOST and gone:
                del self.known[gone.pop(0)]
            if len(self.known) >= MOST:
                raise Refuse(f"this server already has {MOST} standbys", code="too_many_standbys")
            found = self.known[name] = Known(peer, lsn, self._daemon.runner.now_us())
        found.peer = peer
        return found

    def _recorder(self) -> Recorder:
        durability = self._daemon.durability
        if durability is None or durability.recorder is None or not durability.leads or self._ending is not None:
            raise Refuse("the server is ending: try again once it has started again", code="shutting_down")
        return durability.recorder

    # -- the end, and views --------------------------------------------------------------------------

    async def close(self) -> None:
        """Nothing more is recorded: let those that are connected have everything on their disks, and end."""
        durability = self._daemon.durability
        recorder = None if durability is None else durability.recorder
        if recorder is None:
            self._ending = ENDED
            return
        self._draining = True
        try:
            async with asyncio.timeout(LAST_SECONDS):
                last = recorder.settled
                await self._until(recorder, lambda known: not known.streams or known.lsn >= last)
                self._ending = ENDED
                await self._until(recorder, lambda known: not (known.streams or known.copies))
        except TimeoutError:
            self._ending = ENDED
            log.warning("a standby did not take the last records in time")

    async def _until(self, recorder: Recorder, true: Callable[[Known], bool]) -> None:
        """Wait until something is true of each standby."""
        for watcher in recorder.watchers:
            watcher.set()
        while not all(map(true, self.known.values())):
            self._news.clear()
            await self._news.wait()

    def views(self, newest: int) -> list[StandbyView]:
        return [
            StandbyView(
                peer=known.peer,
                connected=known.streams > 0,
                copying=known.copies > 0,
                lsn=known.lsn,
                lag_steps=max(newest - known.lsn, 0),
                sent_bytes=known.sent_bytes,
                since_us=known.since_us,
                heard_us=known.heard_us,
                left=known.left,
            )
            for known in self.known.values()
        ]


async def _aside(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


def _some(messages: Iterator[bytes]) -> bytes:
    """In a thread: the next messages of a copy; nothing at its end."""
    parts, size = [], 0
    for message in messages:
        parts.append(message)
        size += len(message)
        if size >= CHUNK_BYTES:
            break
    return b"".join(parts)


def _records(reader: JournalReader, first: int, upto: int) -> tuple[bytes, int]:
    """In a thread: the next records as messages, and the number of the last of them."""
    parts, size, last = [], 0, first - 1
    assert reader.server_id is not None
    seed = seed_of(reader.server_id)
    for record in reader.records(first):
        digest = digest_of(seed, record.lsn, record.time_us, record.payload)
        parts.append(msgpack.packb([RECORD, record.lsn, record.time_us, digest, record.payload]))
        size, last = size + len(record.payload), record.lsn
        if last >= upto or size >= CHUNK_BYTES:
            break
    if last < first:
        raise JournalError(f"record {first} was written, and cannot be read")
    return b"".join(parts), last


def digest_at(disk: Disk, server_id: bytes, lsn: int) -> str:
    """Identifies the record of this number, and by its time and contents all before it; nothing for number 0."""
    if not lsn:
        return ""
    reader = JournalReader(disk, server_id=server_id)
    try:
        for record in reader.records(lsn):
            return f"{record.time_us}-{digest_of(seed_of(server_id), lsn, record.time_us, record.payload):08x}"
    finally:
        reader.close()
    return ""
