"""A server that follows another one: its recovery does not end until it is promoted.

Rule: it copies the data directory once, and then appends the other server's records to its own journal: the same
numbers, times and bytes. A record is replayed when it is durable here, so whatever this server writes elsewhere can be
made again from its own journal. A promotion ends the replay, and continues as a start does after its recovery.

`standby.json` in the data directory marks the directory of a standby, or of one that was promoted. It changes as a
whole, and that change is the promotion: a start before it is a standby's, and a start after it a server's.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from millrace.formats.durable import write_whole
from millrace.journal.disk import JOURNAL_FOLDER, RealDisk
from millrace.journal.layout import digest_of, seed_of, segment_lsns
from millrace.journal.reader import JournalReader
from millrace.journal.segments import Journal
from millrace.protocol import MillraceError, Refuse
from millrace.protocol.admin.server import FollowedView, PromotionView
from millrace.protocol.words import counted
from millrace.run.config import Settings, Where, admin_security, parse_where
from millrace.run.recorder import Recorder
from millrace.run.recovery import Recovery, RecoveryError, RecoveryStopped
from millrace.run.standbys import END, PING, RECORD, digest_at, mark_of
from millrace.run.upstream import Rejected, Stream, Unreachable, Upstream
from millrace.standby.lease import StandbyLease, steady_us
from millrace.standby.superseded import forget_superseded
from millrace.store.backups import BackupError
from millrace.store.copies import receive

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

log = structlog.get_logger()

FILE: Final = "standby.json"
# The pause before the next try to connect: at first and at most.
LEAST_PAUSE_SECONDS: Final = 0.1
MOST_PAUSE_SECONDS: Final = 5.0
# How often a promoted server shows its epoch to the one that it has replaced.
DEPOSE_SECONDS: Final = 5.0
# How often it is looked whether rows that wait for the disk have become fewer.
ROOM_SECONDS: Final = 0.01
# A server whose newest ping is older than this does not answer.
SILENT_SECONDS: Final = 3.0


class StandbyError(MillraceError):
    """This server cannot follow the other one. Its data directory is as it was."""

    code = "standby"


@dataclass(frozen=True, slots=True)
class Role:
    """What a data directory is: a standby's, under a name that it has invented for itself, or since `promoted_us` a
    server's, of this `epoch`. `follow` is the server that it follows or has followed, and `lease_us` the lease that it
    has answered for."""

    follow: str
    name: str
    epoch: int = 0
    lease_us: int = 0
    promoted_us: int | None = None

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode() + b"\n"


def read_role(folder: Path | None) -> Role | None:
    """None: the directory has nothing to do with standbys."""
    if folder is None:
        return None
    path = folder / FILE
    try:
        role = Role(**json.loads(path.read_text(encoding="utf-8")))
        parse_where(role.follow)
        return role
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StandbyError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, TypeError, AttributeError):
        raise StandbyError(f"{path} is damaged: it does not say what the directory is; restore it") from None


def write_role(folder: Path, role: Role) -> None:
    """Durable and whole, or as it was."""
    write_whole(folder / FILE, role.to_bytes())


def role_at_start(settings: Settings) -> tuple[Role | None, bool]:
    """What the data directory is, and whether this server follows; StandbyError if the two don't fit."""
    folder, follow = settings.server.data_dir, settings.standby.follow
    role = read_role(folder)
    if follow is None:
        if role is not None and role.promoted_us is None:
            raise StandbyError(
                f"{folder} is the directory of a standby of {role.follow}: start it with --follow {role.follow}, and "
                "`millrace promote` makes it the primary"
            )
        return role, False
    if role is not None and role.promoted_us is not None:
        log.warning("this data directory was promoted: standby.follow is ignored", follow=follow)
        return role, False
    return role, True


@dataclass(slots=True)
class Announced:
    """The primary's last message: its newest record, its clock, the tuples that it has taken, and how far it depends on
    its standby."""

    lsn: int
    at_us: int
    tuples: int
    ping: int
    lease_us: int = 0
    confirm: bool = False


class Standby:
    """The standby's side of one server, as long as it follows.

    error      why it is not connected
    announced  what the other server said last, at `contact`
    """

    def __init__(self, daemon: Daemon, folder: Path, where: Where, role: Role | None) -> None:
        settings = daemon.settings
        self.where = where
        self.error: str | None = None
        self.announced: Announced | None = None
        self.connected = False
        self.copied_bytes = 0
        self.received_bytes = 0
        self.connections = 0
        self._daemon = daemon
        self._folder = folder
        self._role = role
        own = settings.standby.token_file or admin_security(settings.server).token_file
        self._upstream = Upstream(where, own, settings.standby.ca_file)
        self._contact: float | None = None  # when something was heard last
        self._level: float | None = None  # when everything announced was durable here last
        self._stream: Stream | None = None
        self._news = asyncio.Event()
        self._told = asyncio.Event()
        self._settled = asyncio.Event()
        self._lease = StandbyLease(0 if role is None else role.lease_us, steady_us())
        self._closing = self._ends = False
        self._wanted: asyncio.Future[PromotionView] | None = None  # the promotion
        self._receiving: asyncio.Task[None] | None = None
        self._deposing: asyncio.Task[None] | None = None
        self._reader: JournalReader | None = None
        self._last_digest, self._last_us = "", 0  # of the newest record
        self._differs = False
        self._waited = False  # for the lease, in a promotion

    @property
    def role(self) -> Role:
        assert self._role is not None, "it is known once `prepare` has returned"
        return self._role

    # -- the start ---------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Have a data directory that can follow: this one, or a copy of the other server's."""
        aside = asyncio.get_running_loop().run_in_executor
        where = str(self.where)
        role = Role(where, secrets.token_hex(8)) if self._role is None else replace(self._role, follow=where)
        journal = RealDisk(self._folder / JOURNAL_FOLDER)
        if await aside(None, segment_lsns, journal):
            if role != self._role:
                await aside(None, self._mark, journal, role)
        else:
            log.info("copying the data directory of the server to follow", server=str(self.where))
            made = await aside(None, self._copy, role)
            log.info("copied the data directory", files=len(made.files), bytes=made.bytes, records=made.last_lsn)
        self._role = role

    def _copy(self, role: Role) -> Any:
        """In a thread."""
        stream = self._stream = self._upstream.open("copy", standby=role.name)
        try:
            return receive(self._counted(stream), self._folder, {FILE: role.to_bytes()})
        except BackupError as error:
            raise StandbyError(f"{self._folder} is as it was: {error.text}") from None
        finally:
            stream.end()

    def _counted(self, stream: Stream) -> Iterator[Any]:
        for messages in stream.batches():
            self.copied_bytes = stream.received
            yield from messages
            if self._daemon.stopping:
                raise RecoveryStopped("stopped while the data directory was copied: nothing was kept")

    def _mark(self, disk: RealDisk, role: Role) -> None:
        """In a thread: mark the directory, which no other server uses, if it can follow."""
        if not disk.lock():
            raise StandbyError(f"{self._folder} is in use by another server: stop that one first")
        try:
            if self._role is None:
                self._ask_whether_alike(disk, role)
                forget_superseded(self._folder)  # its records are those of the server that has taken over
            write_role(self._folder, role)
        finally:
            disk.unlock()

    def _ask_whether_alike(self, disk: RealDisk, role: Role) -> None:
        """StandbyError if the other server does not have this directory's newest record."""
        reader = JournalReader(disk)
        try:
            first = reader.first_lsn
            last = first - 1
            for record in reader.records(first):
                last = record.lsn
            assert reader.server_id is not None
            digest = digest_at(disk, reader.server_id, last) if last >= first else ""
            self._upstream.open(
                "journal", standby=role.name, server=mark_of(reader.server_id), after=last, digest=digest
            ).end()
        except Rejected as error:
            raise StandbyError(f"{self._folder} cannot follow {self.where}: {error.text}") from None
        finally:
            reader.close()

    # -- following ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until the promotion, and promote."""
        durability = self._daemon.durability
        assert durability is not None
        assert durability.recorder is not None
        assert durability.recovery is not None
        recorder, recovery = durability.recorder, durability.recovery
        journal = recorder.journal
        self._reader = JournalReader(journal.disk, server_id=journal.server_id)
        self._last_digest = await self._newest_digest(journal)
        self._last_us = int(self._last_digest.partition("-")[0] or 0)
        recorder.watchers |= {self._news, self._settled}
        confirming = asyncio.create_task(self._confirm(), name="confirming")
        self._receiving = asyncio.create_task(self._receive(recorder), name="receiving")
        answering = asyncio.create_task(self._answer(recorder), name="answering")
        try:
            promoted = await self._replay(recorder, recovery)
        except RecoveryError as error:
            log.error("the records of the other server cannot be replayed: this one stops", reason=error.text)
            self._give_up(error)
            raise
        finally:
            await self._end_receiving()
            answering.cancel()
            confirming.cancel()
            await asyncio.wait([answering, confirming])
            recorder.watchers -= {self._news, self._settled}
            self._reader.close()
            self._upstream.close()
        if not promoted:
            self._give_up(Refuse("the server is ending: start it again first", code="shutting_down"))
            return
        try:
            await self._take_over(recorder)
        except RecoveryStopped as stopped:
            self._give_up(stopped)
        except MillraceError as error:
            self._give_up(error)
            raise

    def end(self) -> None:
        """The server ends: follow no more."""
        self._ends = True
        if self._deposing is not None:
            self._deposing.cancel()
        self._news.set()

    async def _newest_digest(self, journal: Journal) -> str:
        last = journal.next_lsn - 1
        if last < journal.first_lsn:
            return ""
        return await asyncio.get_running_loop().run_in_executor(None, digest_at, journal.disk, journal.server_id, last)

    async def _replay(self, recorder: Recorder, recovery: Recovery) -> bool:
        """Replay what is durable here: up to the last record that was received, if this server is promoted, or until it
        ends; whether it is promoted. No piece is left half done: a checkpoint follows."""
        daemon = self._daemon
        while not self._ends:
            self._news.clear()
            if recovery.lsn < recorder.settled:
                while daemon.results.pressure > 1 and not self._ends:  # noqa: ASYNC110 - a thread writes them
                    await asyncio.sleep(ROOM_SECONDS)
                await recovery.advance(self._durable(recorder.settled, recovery.lsn + 1))
                self._note_difference(recovery)
            elif self._waited and self._ended and recorder.settled == recorder.recorded:
                return True
            else:
                await self._news.wait()
        return False

    def _durable(self, upto: int, first: int) -> Iterator[tuple[int, bytes]]:
        """In a thread: the records of the own journal from one on, up to another."""
        assert self._reader is not None
        for lsn, record in self._reader.read(first):
            yield lsn, record
            if lsn >= upto:
                return

    def _note_difference(self, recovery: Recovery) -> None:
        durability = self._daemon.durability
        assert durability is not None
        if recovery.difference is not None and not self._differs:
            self._differs = True
            durability.following.differed(recovery.difference)

    # -- receiving ---------------------------------------------------------------------------------

    @property
    def _ended(self) -> bool:
        return self._receiving is None or self._receiving.done()

    async def _receive(self, recorder: Recorder) -> None:
        """Stay connected."""
        pause = LEAST_PAUSE_SECONDS
        try:
            while not self._closing:
                began = time.monotonic()
                try:
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(None, self._pump, recorder, loop)
                    text = "the connection has ended"
                except MillraceError as error:
                    text = error.text
                self._lost(text)
                pause = LEAST_PAUSE_SECONDS if time.monotonic() - began > MOST_PAUSE_SECONDS else 2 * pause
                pause = min(pause, MOST_PAUSE_SECONDS)
                if not self._closing:
                    await asyncio.sleep(pause)
        finally:
            self._news.set()

    def _lost(self, text: str) -> None:
        self.connected, self._stream = False, None
        if self.error != text and not self._closing:
            log.warning("not connected to the server that this one follows; trying again", reason=text)
        self.error = text

    def _pump(self, recorder: Recorder, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: one connection. Returns or raises when it ends."""
        journal, last, digest = recorder.journal, recorder.recorded, self._last_digest
        stream = self._upstream.open(
            "journal", standby=self.role.name, server=mark_of(journal.server_id), after=last, digest=digest
        )
        self._stream = stream
        try:
            if self._closing:
                return
            for messages in stream.batches():
                taking: Future[None] = asyncio.run_coroutine_threadsafe(self._take(recorder, messages), loop)
                taking.result()
                self.received_bytes += 0 if self._closing else sum(map(_size, messages))
        finally:
            stream.end()

    async def _take(self, recorder: Recorder, messages: list[Any]) -> None:
        """Messages of the other server."""
        if self._closing:
            raise Unreachable("this server ends, or is being promoted")
        if not self.connected:
            self.connected, self.error = True, None
            self.connections += 1
            log.info("connected to the server that this one follows", server=str(self.where), after=recorder.recorded)
        self._contact = time.monotonic()
        for message in messages:
            match message:
                case [kind, int(lsn), int(time_us), int(digest), bytes(record)] if kind == RECORD:
                    self._append(recorder, lsn, time_us, digest, record)
                case [kind, dict(data)] if kind == PING:
                    self._hear(data)
                case [kind, str(code), str(text)] if kind == END:
                    raise Unreachable(text, code=code)
                case _:
                    raise Rejected(f"{self.where} sent a message of no known kind: is it of a newer version?")
        while recorder.stalled and not self._closing:
            with suppress(TimeoutError):
                async with asyncio.timeout(SILENT_SECONDS):
                    await recorder.wait_room()

    def _append(self, recorder: Recorder, lsn: int, time_us: int, digest: int, record: bytes) -> None:
        if lsn != recorder.recorded + 1:
            raise Rejected(f"{self.where} sent record {lsn}, expected {recorder.recorded + 1}")
        if digest != digest_of(seed_of(recorder.journal.server_id), lsn, time_us, record):
            raise Unreachable(f"record {lsn} of {self.where} was damaged on its way")
        recorder.copy(record, time_us)
        self._last_us, self._last_digest = time_us, f"{time_us}-{digest:08x}"

    def _hear(self, data: dict[Any, Any]) -> None:
        try:
            facts = {key: int(data[key]) for key in ("lsn", "at_us", "tuples", "ping", "lease_us")}
            self.announced = Announced(**facts, confirm=bool(data["confirm"]))
        except (KeyError, TypeError, ValueError):
            raise Rejected(f"{self.where} sent a ping of no known form: is it of a newer version?") from None
        if self._level is None:
            self._level = time.monotonic() - max(self.announced.at_us - self._last_us, 0) / 1e6
        self._told.set()

    async def _answer(self, recorder: Recorder) -> None:
        """Answer each ping with the newest record that is durable here."""
        while True:
            await self._told.wait()
            self._told.clear()
            known = self.announced
            if known is None:
                continue
            self._note(known)
            lsn = recorder.settled
            if lsn >= known.lsn:
                self._level = time.monotonic()
            # The lease counts from this moment, so that no answer of ours is younger than what is waited for.
            ping = self._lease.answer(known.ping, known.lease_us, steady_us())
            if ping is None:
                return
            body = {"standby": self.role.name, "ping": ping, "lsn": lsn}
            with suppress(MillraceError):  # the connection for records shows whether the other server is there
                await asyncio.get_running_loop().run_in_executor(None, self._upstream.post, "heard", body)

    async def _confirm(self) -> None:
        """Also answer when more is durable, if the other server waits for that."""
        while True:
            await self._settled.wait()
            self._settled.clear()
            if self.announced is not None and self.announced.confirm:
                self._told.set()

    def _note(self, announced: Announced) -> None:
        """Keep the other server's lease, which changes rarely: a promotion after a restart waits for its end."""
        known = replace(self.role, lease_us=announced.lease_us)
        if known != self.role:
            write_role(self._folder, known)
            self._role = known

    async def _end_receiving(self) -> None:
        """Break the connection off, and wait until nothing more is appended."""
        self._closing = True
        receiving = self._receiving
        if receiving is None:
            return
        while not receiving.done():
            if self._stream is not None:
                self._stream.close()
            await asyncio.wait([receiving], timeout=2 * ROOM_SECONDS)

    # -- the promotion -----------------------------------------------------------------------------

    async def promote(self, *, force: bool) -> PromotionView:
        """Make this server the primary, once everything that was received is replayed."""
        recorder = None if self._daemon.durability is None else self._daemon.durability.recorder
        if recorder is None or self._wanted is not None:
            raise Refuse("this server is being promoted, or ends: look at `millrace standby`", code="standby")
        recorder.refuse_changes()
        if self.works and not force:
            raise Refuse(
                f"{self.where} still works, and two primaries would go different ways: stop it first, or use --force",
                code="primary_works",
            )
        self._daemon.state = "promoting"
        log.warning("being promoted: replaying what was received", records=recorder.recorded - self._replayed)
        self._wanted = asyncio.get_running_loop().create_future()
        await self._end_receiving()
        await self._wait_for_lease()
        self._news.set()
        return await asyncio.shield(self._wanted)

    async def _wait_for_lease(self) -> None:
        """Until the other server has no valid lease any more, whatever it does."""
        until_us = self._lease.promote()
        left = (until_us - steady_us()) / 1e6
        if left > 0:
            log.warning(
                "being promoted: waiting until the lease of the other server has expired", seconds=round(left, 1)
            )
        while (left := (until_us - steady_us()) / 1e6) > 0 and not self._ends:  # noqa: ASYNC110 - a clock has no event
            await asyncio.sleep(min(left, MOST_PAUSE_SECONDS))
        self._waited = True

    def _give_up(self, error: MillraceError) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_exception(error)

    async def depose(self) -> None:
        """Show the other server that it was replaced, until it has understood. Clients may reach it earlier."""
        upstream = Upstream(self.where, self._upstream.token_file, self._upstream.ca_file)
        body = {"standby": self.role.name, "ping": 0, "lsn": 0, "epoch": self._daemon.epoch_text()}
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(None, upstream.post, "heard", body)
                return  # its epoch is not lower: it is this server's standby now
            except MillraceError as error:
                if error.code == "superseded":
                    log.info("the other server has stopped", server=str(self.where))
                    return
            finally:
                upstream.close()
            await asyncio.sleep(DEPOSE_SECONDS)

    async def _take_over(self, recorder: Recorder) -> None:
        daemon = self._daemon
        assert daemon.durability is not None
        known, last = self.announced, recorder.recorded
        epoch = daemon.durability.epochs.newest.next.number
        missing = self.lag_steps, self.lag_tuples
        role = replace(self.role, epoch=epoch, promoted_us=daemon.runner.now_us())
        await asyncio.get_running_loop().run_in_executor(None, write_role, self._folder, role)
        self._role = role
        daemon.role = role
        await daemon.durability.take_over(daemon.run_engine)
        daemon.become_ready()
        self._deposing = asyncio.create_task(self.depose(), name="deposing")
        view = PromotionView(
            epoch=epoch,
            last_lsn=last,
            announced_lsn=None if known is None else known.lsn,
            announced_us=None if known is None else known.at_us,
            missing_steps=missing[0],
            missing_tuples=missing[1],
            silent_seconds=self.silent_seconds,
        )
        log.warning("promoted: this server is the primary", epoch=epoch, after=last, missing_steps=missing[0])
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(view)

    # -- views -------------------------------------------------------------------------------------

    @property
    def works(self) -> bool:
        """Whether the other server was heard just now."""
        return self.connected and self._contact is not None and time.monotonic() - self._contact < SILENT_SECONDS

    @property
    def silent_seconds(self) -> float | None:
        """For how long the other server was not heard; None: it never was."""
        return None if self._contact is None else max(time.monotonic() - self._contact, 0.0)

    @property
    def _replayed(self) -> int:
        recovery = None if self._daemon.durability is None else self._daemon.durability.recovery
        return 0 if recovery is None else recovery.lsn

    @property
    def _durable_lsn(self) -> int:
        recorder = None if self._daemon.durability is None else self._daemon.durability.recorder
        return 0 if recorder is None else recorder.settled

    @property
    def lag_steps(self) -> int:
        """Steps that the other server had announced and that are not durable here."""
        return 0 if self.announced is None else max(self.announced.lsn - self._durable_lsn, 0)

    @property
    def lag_tuples(self) -> int:
        """Tuples that it had announced to have taken, and that the engine here has not."""
        return 0 if self.announced is None else max(self.announced.tuples - self._daemon.tuples_taken(), 0)

    @property
    def lag_seconds(self) -> float:
        """The time since everything announced was durable here; 0 if it is now."""
        if self.works and not self.lag_steps:
            return 0.0
        since = self._contact if not self.lag_steps else self._level
        return 0.0 if since is None else max(time.monotonic() - since, 0.0)

    @property
    def sentence(self) -> str:
        """For `/-/ready`."""
        if self.announced is None:
            return f"standby of {self.where}, not connected yet"
        lag = f"{counted(self.lag_steps, 'step')} and {self.lag_seconds:.0f} seconds behind"
        return f"standby of {self.where}, {lag}" if self.connected else f"standby of {self.where}, not connected, {lag}"

    def view(self) -> FollowedView:
        recorded = self._durable_lsn
        known = self.announced
        return FollowedView(
            server=str(self.where),
            connected=self.connected,
            error=self.error,
            lsn=recorded,
            announced_lsn=None if known is None else known.lsn,
            announced_us=None if known is None else known.at_us,
            lag_steps=self.lag_steps,
            lag_tuples=self.lag_tuples,
            lag_seconds=self.lag_seconds,
            to_replay=max(recorded - self._replayed, 0),
            silent_seconds=self.silent_seconds,
            received_bytes=self.received_bytes,
            connections=self.connections,
        )


def _size(message: Any) -> int:
    return len(message[-1]) if message and isinstance(message[-1], bytes) else 0
