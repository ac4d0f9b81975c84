"""The daemon: one event loop with the engine's driver, the TCP port, the HTTP port, and an orderly end.

Rule: everything that can be wrong at the start is found before the daemon says that it is ready, and costs one clear
line and an exit code: 78 for the configuration, 1 for the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import heapq
import json
import os
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from millrace.access.access import Access, check_tokens
from millrace.access.certificates import CertificateError, Certificates, check_certificates
from millrace.access.first import FirstTokens, prepare
from millrace.access.sessions import Sessions
from millrace.changes.state import StreamDefaults
from millrace.engine import views
from millrace.engine.engine import Engine
from millrace.engine.saving import LIMITS
from millrace.functions.loading import FunctionsError
from millrace.history.archive import Archive, open_files
from millrace.history.archive import Limits as ArchiveLimits
from millrace.http.hosts import Hosts
from millrace.http.operations import cores, guard_of, kernels, process
from millrace.journal.errors import JournalError
from millrace.net.connection import Connection, ConnectionContext
from millrace.net.feeds import Feeds
from millrace.net.frames import FrameDialect
from millrace.net.freshness import in_json
from millrace.net.guesses import Guesses
from millrace.net.lines import LineDialect
from millrace.net.readers import slow_reader
from millrace.net.silence import Silence
from millrace.net.sink import Outlet, Retention, Slow
from millrace.net.turns import Turns
from millrace.observe.broadcast import Broadcasts
from millrace.observe.inspection import Inspector
from millrace.observe.logs import add_context, sparing, without_controls
from millrace.observe.metrics import Metrics, version
from millrace.observe.preview import Previews
from millrace.observe.rates import LOOK_SECONDS, Rates
from millrace.observe.recent import recent
from millrace.observe.standbys import Facts
from millrace.observe.trial import Trials
from millrace.protocol import Limits, MillraceError, Refuse
from millrace.protocol.admin.operators import ComponentView, MemberInputView, OperatorView
from millrace.protocol.admin.queries import QueryView, RestartedView, Why
from millrace.protocol.admin.server import PromotionView, ReloadView, ServerView
from millrace.protocol.admin.streams import ArchivedView, FeedView, StalenessView, StreamView
from millrace.run.announcement import Announcement
from millrace.run.banner import print_banner
from millrace.run.budget import CREDIT_SHARE, QUEUED_SHARE, Budget, budget_of
from millrace.run.catalog import Catalog
from millrace.run.changelog import ChangeLog
from millrace.run.config import (
    Address,
    ConfigError,
    Settings,
    admin_security,
    history_folder,
    listen_security,
    parse_where,
)
from millrace.run.durability import LAST_SECONDS, Durability
from millrace.run.moments import Moments
from millrace.run.overload import Overload
from millrace.run.planning import Planning
from millrace.run.recovery import RecoveryError, RecoveryStopped
from millrace.run.runner import NOTHING, Runner, Stopwatch, Timepiece
from millrace.run.seams import Seams
from millrace.run.standby import Role, Standby, role_at_start
from millrace.run.standbys import Standbys
from millrace.run.supervision import Supervisor
from millrace.run.timers import LoopTimers, Timers
from millrace.run.worker import Worker
from millrace.sql.functions import install_module
from millrace.sql.limits import Limits as SqlLimits
from millrace.standby.epoch import Epoch, Epochs, Fence
from millrace.standby.lease import PrimaryLease
from millrace.standby.sinkfence import SinkFence
from millrace.standby.superseded import Superseded
from millrace.store.places import SinkFolders
from millrace.store.restarts import Marker, UncleanEnd
from millrace.store.results import ResultLimits, Results, ResultsBroken
from millrace.values.batch import Batch
from millrace.values.intervals import parse_interval
from millrace.values.retention import parse_bytes

if TYPE_CHECKING:
    from millrace.http.web import HttpServer

log = structlog.get_logger()

# New objects that may wait for the cyclic collector: the rows of a few large reads, some megabytes.
YOUNG_OBJECTS: Final = 100_000
# Free memory that the C library keeps, and the largest piece of it.
KEPT_BYTES: Final = 32 * 2**20
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
# A text of SQL may have this many times the tokens of a statement: the definitions of a thousand queries.
SQL_STATEMENTS: Final = 25
# Connections that wait to be accepted: what Linux allows by default.
BACKLOG: Final = 4096
# How often idle connections are looked for, as a share of `idle_seconds`.
SWEEP_SHARE: Final = 4


# Feeds of a stream that are shown: a quarter of a megabyte, and a person looks at the first few.
FEEDS_SHOWN: Final = 1_000
# How long the end waits for files to be finished, after the rows have been written.
SINK_SECONDS: Final = 5.0
# How long the end waits for retained rows to be written: mostly a megabyte.
RESULTS_SECONDS: Final = 2.0
# How long the end waits for history to be written: the most that may be queued, on a disk with 10 MB/s.
HISTORY_SECONDS: Final = 30.0
# How long the end waits for the change that is being made: one of a thousand queries takes less than two.
CHANGE_SECONDS: Final = 5.0
# How long the end waits for trials to be taken back: a step or two of the engine.
TRIAL_SECONDS: Final = 2.0
# How long a TLS handshake may take, on either port.
HANDSHAKE_SECONDS: Final = 5.0
# How long the end waits for running tasks: mostly answers at the HTTP port.
TASK_SECONDS: Final = 5.0
# How long the end may take beyond `server.drain_seconds`; a service manager must wait longer before it kills.
END_SECONDS: Final = (
    TRIAL_SECONDS + CHANGE_SECONDS + LAST_SECONDS + SINK_SECONDS + RESULTS_SECONDS + HISTORY_SECONDS + TASK_SECONDS
)
# How often it is looked for rows that are older than sinks promise: at the least, and at the most.
MOST_SECONDS: Final = 1.0
LEAST_SECONDS: Final = 0.05
# What a server without a data directory knows of promotions.
NO_PROMOTION: Final = Epochs()
# Operators that a view describes before the loop does something else: two milliseconds.
PIECE = 200
# The states of a server that takes another one's steps.
FOLLOWING: Final = ("following", "promoting")
PROMOTE: Final = "`millrace promote` makes this one the primary"


class StartError(MillraceError):
    """The daemon cannot start although its configuration is fine."""

    code = "start"


class Daemon:
    """A running server. `start`, then `wait_ended`; `stop` starts the orderly end."""

    def __init__(self, settings: Settings, clock: Timepiece | None = None, timers: Timers | None = None) -> None:
        self.settings = settings
        self.timers = timers or LoopTimers()
        self.state = "starting"
        sparing.forget()
        self.stuck = False  # whether a sink's thread hangs in a write that will never end
        self.stopwatch = Stopwatch()
        memory = budget_of(settings.server.memory)
        self.limits = {name: _limit(settings, name, memory) for name in LIMITS}
        self.engine = Engine(share=True, stopwatch=self.stopwatch, **self.limits)
        limits = settings.limits
        results = ResultLimits(parse_bytes(settings.results.max), settings.results.waiting_bytes)
        self.results = Results(settings.server.data_dir, results, lambda: self.runner.now_us())
        threads = settings.engine.threads or min(cores(), 2)
        self.lease = _lease(settings)
        self.silence = Silence(self.lease)
        self.sink_fence = SinkFence(lambda: Epoch(max(self.epoch or 1, self.promoted_epoch)))
        self._reader = Worker("lines") if threads > 1 else None
        self.runner = Runner(
            self.engine,
            self.stopwatch,
            budget=settings.engine.budget,
            retain=Retention(limits.retained_tuples, limits.retained_bytes),
            results=self.results,
            clock=clock,
            threads=threads,
            silence=self.silence,
        )
        self.budget = Budget(self, memory)
        self.overload = Overload(self)
        self.results.on_failure = self.fail
        self.feeds = Feeds(self.runner)
        self.metrics = Metrics(self.engine, self.runner, self.feeds)
        self.runner.on_ask_ended = self.metrics.ask_ended
        self.archive = Archive(
            ArchiveLimits(
                history_folder(settings.server),
                settings.server.archive_file_bytes,
                parse_interval(settings.server.archive_file_age),
                settings.server.archive_waiting_bytes,
            ),
            submit=self.runner.submit,
            mark_of=self.mark_of,
            now_us=self.runner.now_us,
            at_rest=self.runner.at_rest,
        )
        self.runner.on_history = self.archive.take
        self.metrics.archives = self.archive.views
        slow = Slow(limits.on_slow, limits.slow_limit, limits.slow_bytes)
        self.catalog = Catalog(
            self.engine,
            self.runner,
            self.feeds,
            self.metrics,
            strategy=settings.engine.strategy,
            defaults=StreamDefaults(parse_interval(settings.engine.grace), parse_interval(limits.max_ahead)),
            folder=settings.server.data_dir,
            archive=self.archive,
            places=SinkFolders.of(settings),
            fence=self.sink_fence,
            planning=Planning(
                SqlLimits(limits.sql_characters, limits.sql_tokens, limits.sql_depth, SQL_STATEMENTS),
                limits.sql_waiting,
            ),
            timers=self.timers,
        )
        self.catalog.inspect = Inspector(self).show
        self.runner.on_failure = self.catalog.query_failed
        self.changes = ChangeLog(self)
        self.seams = Seams(self)
        self.catalog.seams = self.seams.kept
        self.catalog.performer.on_query_dropped = self.seams.dropped
        self.catalog.performer.on_query_renamed = self.seams.renamed
        self.trials = Trials(self.engine, self.runner, self.catalog)
        self.runner.on_delivery = self._delivered
        self.rates = Rates(self.engine, self.runner.now_us)
        self.broadcasts = Broadcasts(self)
        self.previews = Previews(self)
        self.certificates = Certificates(settings.server)
        self.access = self.metrics.access = Access(settings.server, self.runner.now_us)
        self.sessions = Sessions(self.access, self.runner.now_us)
        self.hosts = Hosts(settings.server.hosts)
        self.guesses = self.metrics.guesses = Guesses(self.timers)
        self.context = ConnectionContext(
            runner=self.runner,
            feeds=self.feeds,
            limits=Limits(frame_bytes=limits.frame_bytes),
            slow=slow,
            write_buffer=limits.write_buffer_bytes,
            credit_bytes=self.limits["credit_bytes"],
            access=self.access,
            server=f"millrace {version()}",
            most_connections=limits.connections,
            admin=lambda: self.admin_url,
            frames=FrameDialect,
            json_lines=LineDialect,
            reader=self._reader,
            connections={},
            timers=self.timers,
            guesses=self.guesses,
            turns=Turns(),
            refusals=self.metrics.refusals,
            silence=self.silence,
            epochs=lambda: NO_PROMOTION if self.durability is None else self.durability.epochs,
            epoch=self.epoch_text,
            shown=self.shown_epoch,
            most_strangers=limits.unauthenticated_connections,
            strangers={},
            turned_away={},
            refused=self.refused,
        )
        self.listen = settings.server.listen
        self.admin = settings.server.admin
        folder = settings.server.data_dir
        self.announcement: Announcement | None = None  # to programs of the same user
        self._addresses = None if folder is None else folder / "addresses.json"
        self._marker = None if folder is None else Marker(folder)
        self.durability = None if folder is None else Durability(self, folder)
        self.standbys = None if folder is None else Standbys(self, folder)
        self.role, self.standby = self._role(folder)
        self.silence.follows = self.standby is not None
        self.sink_fence.outdated = self.shown_epoch
        self.moments = Moments(folder, settings.server.functions)
        self.metrics.durability = self.durability
        self.metrics.problems = self.problems
        self.metrics.budget, self.metrics.overload = self.budget, self.overload
        self.metrics.standby = self._standby_facts
        self.unclean_end: UncleanEnd | None = None  # of the server that was here before
        self._stopping = asyncio.Event()
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._server: asyncio.Server | None = None
        self._http: HttpServer | None = None
        self._standby: asyncio.Task[None] | None = None
        self._failure: MillraceError | None = None
        self._disorder: StartError | None = None  # a part of the end has failed

    def _role(self, folder: Path | None) -> tuple[Role | None, Standby | None]:
        """What the data directory is, and the standby that this server is."""
        role, follows = role_at_start(self.settings)
        follow = self.settings.standby.follow
        if folder is None or follow is None or not follows:
            return role, None
        return role, Standby(self, folder, parse_where(follow), role)

    @property
    def promoted_epoch(self) -> int:
        """The epoch that a promotion of this directory has decided; 0: it was not promoted."""
        return 0 if self.role is None else self.role.epoch

    @property
    def follows(self) -> bool:
        """Whether this server only takes the steps of another one."""
        return self.state in FOLLOWING

    @property
    def leads(self) -> bool:
        """Whether standbys can follow."""
        return self.durability is not None and self.durability.leads

    def refused(self) -> MillraceError | None:
        """Why no client of streams is served."""
        if not self.follows or self.standby is None:
            return None
        return Refuse(f"this server follows {self.standby.where}: connect to that one; {PROMOTE}", code="standby")

    @property
    def admin_url(self) -> str:
        return f"http{'s' if admin_security(self.settings.server).certificate is not None else ''}://{self.admin}"

    # -- views -------------------------------------------------------------------------------------

    def streams(self) -> list[StreamView]:
        """The engine's streams with the counts of the sockets, and the side streams of their late tuples."""
        engine = {stream.name: stream for stream in self.engine.streams()}
        withheld = self.engine.withheld()
        found = []
        for name, at in self.feeds.received().items():
            stream = engine[name]
            shown = replace(
                stream,
                connections=at.connections,
                bytes=at.bytes,
                too_far_ahead=self.runner.far.get(name, 0),
                rejected=at.rejected + self.runner.far.get(name, 0),
                feeds=_holding_most(stream.feeds),
                groups=[replace(group, group=_key_in_json(group.group)) for group in stream.groups],
                withheld_for=withheld.get(name, []),
                archive=self.archive.view(name),
            )
            found.append(shown)
            if stream.timestamps == "external":
                found.append(self._side_stream(shown, engine))
        return found

    def _side_stream(self, origin: StreamView, engine: Mapping[str, StreamView]) -> StreamView:
        """A stream of late tuples as a stream; in the engine it is only there while a query reads it."""
        late = self.feeds.source(origin.name).stream.late
        found = engine.get(late.name)
        if found is None:
            blank: dict[str, Any] = {one.name: _blank(getattr(origin, one.name)) for one in fields(origin) if one.init}
            own: dict[str, Any] = {
                "name": late.name,
                "fields": late.schema.to_data(),
                "fingerprint": late.schema.fingerprint(),
                "timestamps": late.timestamps,
                "punctuations_by_cause": {},
                "feeds": [],
                "groups": [],
                "withheld_for": [],
                "archive": None,
            }
            found = StreamView(**{**blank, **own})
        return replace(found, tuples=origin.late)

    def stale(self, stream: str, worst: int) -> list[StalenessView]:
        """How stale the update queues downstream of a stream are; keys as JSON values."""
        self.catalog.must_know("stream", stream)
        return [
            replace(queue, worst=[replace(found, key=_key_in_json(found.key)) for found in queue.worst])
            for queue in self.engine.stale(stream, worst)
        ]

    def operators(self) -> list[OperatorView]:
        """The engine's operators. Waiting continues while the engine is idle."""
        return views.operators(self.engine, self.runner.now_us())

    async def operators_in_pieces(self) -> AsyncIterator[list[OperatorView]]:
        """The same in lists, between which the loop is free."""
        await self.runner.at_rest()
        for piece in views.operators_in_pieces(self.engine, PIECE, self.runner.now_us()):
            yield piece
            await asyncio.sleep(0)
            await self.runner.at_rest()

    def operator(self, name: str) -> OperatorView | None:
        """One of them; None if there is none of this name."""
        with contextlib.suppress(Refuse):
            return self._operator(name)
        return None

    def _operator(self, name: str) -> OperatorView:
        return views.operator_named(self.engine, name, self.runner.now_us())

    def components(self) -> list[ComponentView]:
        """The engine's components, with the inputs of their operators: what waits, and for how long it has."""
        return self.components_of(self.operators())

    def components_of(self, operators: Sequence[OperatorView]) -> list[ComponentView]:
        """The same from views of operators, which may be of an earlier moment."""
        known = {operator.name: operator for operator in operators}
        return [_with_inputs(component, known) for component in self.engine.components()]

    def component(self, name: str) -> ComponentView | None:
        """One of them; None if there is none of this name."""
        found = next((one for one in self.engine.graph.components if one.name == name), None)
        if found is None:
            return None
        component = views.component(self.engine, found)
        return _with_inputs(component, {one: self._operator(one) for one in component.operators})

    def queries(self) -> list[QueryView]:
        """The engine's queries, with who reads them."""
        self.engine.graph.settle()
        return [query for name in self.engine.queries_by_name if (query := self._query(name)) is not None]

    def query(self, name: str) -> QueryView | None:
        """One of them; None if there is none of this name."""
        self.engine.graph.settle()
        return self._query(name)

    def _query(self, name: str) -> QueryView | None:
        outlet, found = self.runner.outlets.get(name), self.engine.queries_by_name.get(name)
        if outlet is None or found is None:
            return None
        reader = slow_reader(outlet, self.engine.withheld()) if outlet.backpressure else None
        return views.query(
            self.engine,
            found,
            history=outlet.history,
            next_sequence=outlet.next_sequence,
            oldest_sequence=outlet.oldest_retained,
            retained_tuples=outlet.retained_tuples,
            retained_bytes=outlet.retained_bytes,
            slow_reader=None if reader is None else reader.view(),
            subscribers=len(outlet.consumers),
            since_us=outlet.since_us,
            restarted=self._restarted(outlet),
            backfill=self.seams.view(name),
            temporary=name in self.catalog.temporaries.names,
        )

    def _restarted(self, outlet: Outlet) -> RestartedView | None:
        """When a restored query started again without its state, and the consequence; None for any other query."""
        found = self.catalog.performer.restarted.get(outlet.history)
        if found is None:
            return None
        at_us, meaning = found
        return RestartedView(at_us=at_us, text=f"restarted without operator state: {meaning}")

    def describe(self) -> ServerView:
        server, facts = self.settings.server, self._standby_facts()
        return ServerView(
            version=version(),
            state=self.state,
            listen=str(self.listen),
            listen_tls=listen_security(server).certificate is not None,
            admin=str(self.admin),
            now_us=self.runner.now_us(),
            steps=self.runner.steps,
            connections=len(self.context.connections),
            data_dir=None if server.data_dir is None else str(server.data_dir.absolute()),
            history_dir=None if self.archive.limits.folder is None else str(self.archive.limits.folder),
            journal=None if self.durability is None else self.durability.view(),
            epoch=self.epoch,
            problems=self.problems(),
            catalog_error=self.catalog.keeper.error,
            unclean_end=None if self.unclean_end is None else self.unclean_end.view(),
            kernels=kernels(),
            clock_held_back_us=self.runner.clock_held_back_us,
            listen_guard=guard_of(server.listen, listen_security(server), token=self.access.required("listen")),
            admin_guard=guard_of(server.admin, admin_security(server), token=self.access.required("admin")),
            process=process(),
            follows=facts.follows,
            standbys=facts.standbys,
            memory=self.budget.view(),
            overload=self.overload.view(),
        )

    @property
    def keeps_no_tokens(self) -> bool:
        """Whether the data directory was made before directories had tokens: it keeps its setting."""
        return self.settings.server.data_dir is not None and not self.access.required("admin")

    def introduce(self) -> ServerView:
        """The server, for a client that may not see everything: without what names objects, files and other servers."""
        return replace(self.describe(), **self.hidden())

    @staticmethod
    def hidden() -> dict[str, Any]:
        """What such a client sees in place of it."""
        hidden: dict[str, Any] = {"data_dir": None, "history_dir": None, "journal": None, "unclean_end": None}
        hidden |= {"catalog_error": None, "follows": None, "memory": None, "overload": None}
        return {**hidden, "problems": [], "standbys": []}

    def _standby_facts(self) -> Facts:
        recorder = None if self.durability is None else self.durability.recorder
        newest = 0 if recorder is None else recorder.recorded
        return Facts(
            follows=self.standby.view() if self.standby is not None and self.follows else None,
            standbys=[] if self.standbys is None else self.standbys.views(newest),
            epoch=self.epoch or 1,
        )

    def tuples_taken(self) -> int:
        """Tuples that the engine's streams have taken in. Also asked while a thread changes the engine."""
        return sum(stream.source.counts.input_tuples for stream in tuple(self.engine.streams_by_name.values()))

    # -- epochs ------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int | None:
        """The number of the server's epoch; None without a data directory."""
        return None if self.durability is None else self.durability.epochs.newest.number

    def epoch_text(self) -> str | None:
        """The server's epoch, for those who may meet an older server."""
        fence = None if self.durability is None else self.durability.fence
        return None if fence is None else fence.proof

    def shown_epoch(self, text: str) -> bool:
        """A peer shows an epoch; whether another server has taken over, so that this one ends."""
        durability = self.durability
        if durability is None or durability.fence is None or not durability.fence.show(text):
            return False
        if not self.lease.revoked:
            self._end_superseded(durability, durability.fence)
        return True

    def _end_superseded(self, durability: Durability, fence: Fence) -> None:
        """Say nothing more to anyone, and stop."""
        self.lease.revoke()
        own, higher = fence.epoch.number, fence.superseded
        assert higher is not None
        log.error("another server has taken over: this one stops", epoch=own, higher=higher.number)
        try:
            durability.superseded(higher)
        except OSError as error:  # it stops anyway, and the next start is shown the epoch again
            log.error("superseded.json cannot be written", reason=_reason(error))
        text = f"epoch {higher.number} has taken over from this server, which has epoch {own}"
        self._failure = Superseded(f"{text}: connect to the server that was promoted")
        for connection in tuple(self.context.connections):
            connection.abort()
        self.runner.fail(self._failure)
        self.stop()

    @property
    def progress(self) -> tuple[str, int]:
        """The state in words, for a start with how far it is; and a number that grows while it advances."""
        recovery = None if self.durability is None else self.durability.recovery
        if self.follows and self.standby is not None:
            return self.standby.sentence, 0
        if self.state == "starting" and recovery is None and self.standby is not None and self.standby.copied_bytes:
            return f"copying, {self.standby.copied_bytes >> 20} MB", self.standby.copied_bytes
        if self.state == "ready" and self.lease.matters and self.lease.alone:
            return "ready, without a standby until one follows", 0
        awaited = None if self.durability is None else self.durability.awaits_standby
        if self.state == "starting" and awaited is not None:
            return f"waiting for the standby: {awaited}", 0
        if self.state != "starting" or recovery is None:
            return self.state, 0
        return f"replaying {recovery.percent} %", recovery.replayed

    def problems(self) -> list[str]:
        """The reasons why the server cannot save its state, for its health."""
        journal = [] if self.durability is None else self.durability.problems()
        access = [one for one in (self.access.problem, self.certificates.problem) if one is not None]
        return [*self.catalog.problems(), *self.archive.problems(), *self.results.problems(), *journal, *access]

    def mark_of(self, stream: str) -> int:
        """No tuple that the archive does not have yet is on time below it: the engine stamps tuples with at least its
        clock. While steps wait to be durable, the engine is ahead of the archive."""
        if self.runner.settles or self.follows:
            return self.archive.mark(stream)
        source = self.engine.source(stream)
        return source.mark if source.clocking.timestamps == "external" else max(source.mark, self.runner.now_us())

    def why(self, query: str) -> Why:
        """The input that a query waits for, and the progress of its history."""
        found = self.catalog.writers.why(query)
        journal = None if self.durability is None else self.durability.sentence()
        sentences = [self.seams.sentence(query), journal, self.budget.sentence()]
        return replace(found, text=" ".join([found.text, *filter(None, sentences)]))

    async def archive_now(self, stream: str) -> ArchivedView:
        """Write all rows received so far into the files of a stream's history."""
        self.catalog.must_know("stream", stream)
        await self.runner.command(NOTHING)  # its answer follows the lateness decisions about earlier rows
        return ArchivedView(stream=stream, archive=await self.archive.flush(stream))

    def hurry(self, requests: int) -> None:
        """So many more requests of admins are in progress, or fewer: then steps and turns of feeds are shorter."""
        self.runner.requests += requests
        self.context.turns.hurries = self.runner.requests > 0

    # -- tokens ------------------------------------------------------------------------------------

    def reload(self) -> ReloadView:
        """Read the files of tokens and certificates again. Raises Refuse, and then the earlier ones stay in use."""
        try:
            self.access.reload()
        except MillraceError as error:
            raise Refuse(error.text, code="tokens") from None
        finally:
            self._look_at_tokens()
        try:
            self.certificates.reload()
        except CertificateError as error:
            raise Refuse(error.text, code="certificate") from None
        return ReloadView(tokens=self.access.tokens, certificates=len(self.certificates))

    def hang_up(self) -> None:
        """SIGHUP: the same, whose outcome is in the log."""
        with contextlib.suppress(Refuse):
            self.reload()

    def _look_at_tokens(self) -> None:
        """Close the connections whose token is no longer valid."""
        if self.access.news():
            for connection in tuple(self.context.connections):
                connection.look_at_token()
            self.broadcasts.wake()

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open both ports and be ready; whatever is in the way is a MillraceError, and then nothing stays open."""
        try:
            await self._start()
        except BaseException as error:
            for part in (
                self._close_sinks,
                self._close_results,
                self._close_archive,
                self._end_tasks,
                self._close_journal,
            ):
                await self._whatever_happens(part)
            for bound in self._sockets:
                bound.close()
            if isinstance(error, RecoveryStopped) and self._failure is not None:
                raise self._failure from None
            raise

    async def _start(self) -> None:
        server = self.settings.server
        if self.standby is None:
            self._hold_folder()
        for setting, address in (("server.listen", server.listen), ("server.admin", server.admin)):
            self._sockets.append(_bind(setting, address))
        tcp, http = self._sockets
        self.listen, self.admin = _bound(tcp), _bound(http)
        if self.durability is None:
            self.run_engine()
            await self.catalog.load()
        else:
            self._serve_http(http)  # first: its clients see the progress
            if self.standby is not None:
                await self.standby.prepare()
                self._hold_folder()
                self.access.reload()  # the copy may have brought tokens
            await self.durability.open()
            with self._in_the_folder():
                self._remove_addresses()  # of a server that was killed
            await self.durability.start(self.run_engine, follows=self.standby is not None)
        self._report_unclean_end()
        self.seams.load()
        loop = asyncio.get_running_loop()
        tls = self.certificates.context("listen")
        if self.standby is not None:
            self.state = "following"
        self._server = await loop.create_server(
            lambda: Connection(self.context), sock=tcp, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=_handshake(tls)
        )
        if self.durability is None:
            self._serve_http(http)
        if self.settings.limits.idle_seconds:
            self._watch(asyncio.create_task(self._sweep(self.settings.limits.idle_seconds), name="sweep"))
        self._watch(asyncio.create_task(self._measure(), name="rates"))
        self._watch(asyncio.create_task(self.budget.run(), name="memory"))
        self._watch(asyncio.create_task(self.overload.run(), name="overload"))
        self._watch(asyncio.create_task(self.archive.run(), name="history"))
        if self.durability is not None:
            self._watch(asyncio.create_task(self.durability.run(), name="checkpoints"))
        if self.announcement is not None:
            self.announcement.write()
        with self._in_the_folder():
            self._write_addresses()
            if self._marker is not None:
                self._marker.write(self.runner.now_us())
        if self.standby is None:
            self.become_ready()
        else:
            self._standby = asyncio.create_task(self.standby.run(), name="standby")
            self._watch(self._standby)
            log.info("following", server=str(self.standby.where), listen=str(self.listen), admin=self.admin_url)

    def _hold_folder(self) -> None:
        """Keep other servers out of the data directory, and see how the last one ended."""
        self.catalog.keeper.open()
        self._look_for_unclean_end()

    def become_ready(self) -> None:
        """Serve clients: at the end of a start, or of a promotion."""
        self.changes.start()
        self.results.forget_unknown([outlet.history for outlet in self.runner.outlets.values()])
        self._watch(asyncio.create_task(self._watch_ages(), name="freshness"))
        if self.durability is not None:
            self._watch(asyncio.create_task(self.durability.watch(), name="follower"))
        self.state = "ready"
        log.info("ready", listen=str(self.listen), admin=self.admin_url)
        if self.settings.server.data_dir is None:
            log.info("no data_dir: streams and queries are lost when the server ends")

    async def promote(self, *, force: bool) -> PromotionView:
        """Make a standby the primary."""
        if self.standby is None or not self.follows:
            raise Refuse("this server follows none: it is a primary already", code="not_standby")
        return await self.standby.promote(force=force)

    def run_engine(self) -> None:
        self._watch(asyncio.create_task(self.runner.run(), name="engine"))

    async def make_durable(self) -> dict[str, Any]:
        """Have everything that was delivered so far on the disk, outside the journal: where that got to."""
        for stream in self.archive.next_numbers():
            await self.archive.flush(stream)
        await self.results.sync()
        await self.catalog.writers.sync()
        return {"positions": self.catalog.writers.positions()}

    def _serve_http(self, bound: socket.socket) -> None:
        """Its libraries take a third of all imports, so they are imported once feeds can connect, unless there may be
        much to recover before that."""
        from millrace.http.web import make_http

        self._http = make_http(self)
        self._watch(asyncio.create_task(self._http.serve(sockets=[bound]), name="http"))

    async def wait_ended(self) -> None:
        """Until `stop` is called or something fails; then drain, and end."""
        await self.wait_stopping()
        await self._end()
        if (failure := self._failure or self._disorder) is not None:
            raise failure

    async def wait_stopping(self) -> None:
        """Wait until the orderly end starts."""
        await self._stopping.wait()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def fail(self, error: Exception) -> None:
        """An error that ends the server."""
        if self.follows:
            told = StartError("internal error; see the server's log", code="internal")
            self._failure = error if isinstance(error, MillraceError) else told
            self.stop()
        else:
            self.runner.fail(error)

    def stop(self) -> None:
        """Start the orderly end."""
        self._stopping.set()
        self.broadcasts.wake()

    def _delivered(self, outlet: Outlet, now_us: int, batch: Batch) -> None:
        self.metrics.delivered(outlet, now_us, batch)
        self.trials.delivered(outlet.query, now_us, batch)

    async def _end(self) -> None:
        """Stop accepting, process queued tuples within the time limit, flush the sinks, close the connections."""
        await self._whatever_happens(self._end_following)
        followed, self.state = self.follows, "draining"
        log.info("draining", at_most_seconds=self.settings.server.drain_seconds)
        for part in (
            self._withdraw_addresses,
            self.seams.close,
            self._end_trials,
            self._end_changes,
            self._stop_reading,
            *(() if followed else (self._drain,)),
            self._say_goodbye,
            self._make_last_checkpoint,
            self._end_standbys,
            self._close_sinks,
            self._close_results,
            self._close_archive,
            self._end_tasks,
            self._close_journal,
            self._remove_marker,
        ):
            await self._whatever_happens(part)
        sparing.flush(everything=True)
        log.info("ended")

    def _look_for_unclean_end(self) -> None:
        if self._marker is not None:
            found = self._marker.read(self.runner.now_us(), open_files(self.archive.limits.folder))
            self.unclean_end = found

    def _report_unclean_end(self) -> None:
        """Log how the last server ended, once it is known what was recovered."""
        found, recovery = self.unclean_end, None if self.durability is None else self.durability.recovery
        if found is not None:
            if recovery is not None:
                found = self.unclean_end = replace(found, replayed=recovery.steps)
            log.warning("the previous server did not end cleanly", text=found.text)

    async def _remove_marker(self) -> None:
        """The end was clean, unless a part of the server failed."""
        if self._marker is not None and self._failure is None and self._disorder is None:
            self._marker.remove()

    async def _whatever_happens(self, part: Callable[[], Awaitable[None]]) -> None:
        """One part of the end. If it fails, the others still save as much as possible."""
        try:
            await part()
        except Exception as error:
            text = "a shutdown step failed; the others continue"
            log.error(text, part=part.__name__.strip("_"), reason=repr(error))
            told = "a shutdown step failed; see the server's log"
            self._disorder = StartError(told, code="internal")

    async def _withdraw_addresses(self) -> None:
        if self.announcement is not None:
            self.announcement.remove()
        try:
            self._remove_addresses()
        except OSError as error:
            log.warning("addresses.json cannot be removed", path=str(self._addresses), reason=_reason(error))

    async def _end_trials(self) -> None:
        """Nothing that is only tried outlives the server."""
        if self._failure is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TRIAL_SECONDS):
                    await self.trials.close()

    async def _end_changes(self) -> None:
        """Finish the change that is being made; its sender gets an answer."""
        try:
            async with asyncio.timeout(CHANGE_SECONDS):
                await self.catalog.end_changes()
        except TimeoutError:
            log.warning("a change did not finish in time; after a restart it may be missing")

    async def _stop_reading(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.context.connections):
            connection.hold_reading("draining")
            connection.settle()

    async def _drain(self) -> None:
        if self.lease.revoked:
            return  # nothing may leave
        try:
            async with asyncio.timeout(self.settings.server.drain_seconds):
                if self._failure is None:
                    await self.runner.wait_drained()
                await self.runner.wait_delivered()
        except TimeoutError:
            log.warning("draining took too long; queued rows are lost")

    async def _say_goodbye(self) -> None:
        for connection in tuple(self.context.connections):
            connection.farewell("the server is ending")

    async def _make_last_checkpoint(self) -> None:
        if self.durability is not None and self._failure is None:
            await self.durability.make_last()

    async def _end_following(self) -> None:
        if self._standby is not None and self.standby is not None:
            self.standby.end()
            await asyncio.wait([self._standby])

    async def _end_standbys(self) -> None:
        if self.standbys is not None:
            await self.standbys.close()

    async def _close_journal(self) -> None:
        if self.durability is not None:
            await self.durability.close()

    async def _close_sinks(self) -> None:
        try:
            async with asyncio.timeout(SINK_SECONDS):
                await self.catalog.close()
        except TimeoutError:
            self.stuck = True
            log.error("a sink did not accept its last rows; they are lost")

    async def _close_results(self) -> None:
        try:
            async with asyncio.timeout(RESULTS_SECONDS):
                await self.results.close()
        except TimeoutError:
            self.stuck = True
            log.error("the last retained rows could not be written")

    async def _close_archive(self) -> None:
        try:
            async with asyncio.timeout(HISTORY_SECONDS):
                await self.archive.close()
        except TimeoutError:
            self.stuck = True
            log.error("the last rows of history could not be written; they are lost")

    async def _end_tasks(self) -> None:
        if self._http is not None:
            self._http.stop()
        if self._reader is not None:
            self._reader.close()
        self.previews.close()
        for task in self._tasks:
            if task.get_name() != "http":
                task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TASK_SECONDS):
                await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in tuple(self.context.connections):
            connection.abort()

    def _watch(self, task: asyncio.Task[Any]) -> None:
        """Watch a task whose failure ends the daemon. An internal error is logged in full."""
        self._tasks.append(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, JournalError | RecoveryError | ResultsBroken | Superseded):  # logged when it happened
                self._failure = error
            else:
                log.error("internal error: the server is stopping", task=task.get_name(), exc_info=error)
                self._failure = StartError("internal error; see the server's log", code="internal")
            self.stop()

    async def _sweep(self, idle_seconds: float) -> None:
        while True:
            await asyncio.sleep(idle_seconds / SWEEP_SHARE)
            for connection in tuple(self.context.connections):
                if connection.idle_since(self.timers.time()) > idle_seconds:
                    connection.farewell(f"no input for {idle_seconds} seconds")

    async def _measure(self) -> None:
        while True:
            await self.runner.at_rest()
            self.rates.look()
            self.catalog.keeper.write_again()
            self.access.refresh()
            self.certificates.refresh()
            self._look_at_tokens()
            if self._marker is not None:
                self._marker.touch()
            await asyncio.sleep(LOOK_SECONDS)

    async def _watch_ages(self) -> None:
        """Look at what waits for sinks that promise freshness, twice in the time that they promise; as it takes time
        where much waits, never for more than a twentieth of it."""
        loop = asyncio.get_running_loop()
        while True:
            await self.runner.at_rest()
            began = loop.time()
            self.catalog.writers.look_for_breaches()
            took = loop.time() - began
            bound_us = self.catalog.writers.strictest_us
            pause = MOST_SECONDS if bound_us is None else min(bound_us / 2e6, MOST_SECONDS)
            await asyncio.sleep(max(pause, LEAST_SECONDS, 20 * took))

    @contextmanager
    def _in_the_folder(self) -> Iterator[None]:
        """At the start, a folder that takes nothing is a reason not to."""
        try:
            yield
        except OSError as error:
            text = f"server.data_dir: cannot write {self._addresses}: {_reason(error)}"
            raise StartError(text) from None

    def _write_addresses(self) -> None:
        """Write the server's addresses to a file for local programs, as long as it listens."""
        if self._addresses is not None:
            text = json.dumps({"listen": str(self.listen), "admin": str(self.admin)})
            aside = self._addresses.with_suffix(".part")
            aside.write_text(text + "\n", encoding="utf-8")
            aside.rename(self._addresses)

    def _remove_addresses(self) -> None:
        if self._addresses is not None:
            self._addresses.unlink(missing_ok=True)


def _blank(value: object) -> object:
    """The value of a property that a side stream does not have."""
    return False if isinstance(value, bool) else 0 if isinstance(value, int) else None


def _key_in_json(key: Mapping[str, Any]) -> dict[str, Any]:
    return {name: in_json(value) for name, value in key.items()}


def _with_inputs(component: ComponentView, operators: Mapping[str, OperatorView]) -> ComponentView:
    inputs = [
        MemberInputView(
            operator=name,
            from_=reader.from_,
            queue_tuples=reader.queue_tuples,
            peak_queue_tuples=reader.peak_queue_tuples,
            skipped=reader.skipped,
            idle_wait_us=reader.idle_wait_us,
            register_us=reader.register_us,
            queue=reader.queue,
        )
        for name in component.operators
        if name in operators
        for reader in operators[name].inputs
    ]
    return replace(component, inputs=inputs)


def _holding_most(feeds: Sequence[FeedView]) -> Sequence[FeedView]:
    """The feeds that hold their stream back most; all of them, if they are not very many."""
    if len(feeds) <= FEEDS_SHOWN:
        return feeds
    # A feed that has promised nothing yet holds most.
    return heapq.nsmallest(FEEDS_SHOWN, feeds, lambda feed: (feed.mark_us is not None, feed.mark_us or 0))


def _limit(settings: Settings, name: str, memory: int | None) -> Any:
    """A limit of the engine. Those in bytes leave room in the memory budget."""
    match name:
        case "credit_bytes" if memory is not None:
            return min(settings.engine.credit_bytes, memory // CREDIT_SHARE)
        case "most_queued_bytes" if memory is not None:
            return min(settings.engine.most_queued_bytes, memory // QUEUED_SHARE)
        case "producers_kept":
            return settings.limits.producers_kept
        case "producers_kept_us":
            return parse_interval(settings.limits.producers_kept_for)
        case _:
            return getattr(settings.engine, name)


def _lease(settings: Settings) -> PrimaryLease:
    """What the server's effects depend on."""
    standby = settings.standby
    lease_us = None if standby.lease is None else parse_interval(standby.lease)
    return PrimaryLease(lease_us, confirm=standby.confirm, first=secrets.randbits(48))


def _handshake(tls: ssl.SSLContext | None) -> float | None:
    """How long a TLS handshake may take; without TLS asyncio refuses a number."""
    return None if tls is None else HANDSHAKE_SECONDS


def load_functions(settings: Settings) -> None:
    """Make the functions of the configured module known to SQL, in this process; ConfigError if they cannot be."""
    if settings.server.functions is not None:
        try:
            install_module(settings.server.functions)
        except FunctionsError as error:
            raise ConfigError([f"server.{error.text}"]) from None


def _bind(setting: str, address: Address) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _find_dead_peers(bound)
            bound.bind(where)
            bound.listen(BACKLOG)
            bound.setblocking(False)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        reason = _reason(error)
        hint = "; is another server running?" if "in use" in reason else ""
        raise StartError(f"{setting}: cannot listen on {address}: {reason}{hint}") from None
    return bound


def _find_dead_peers(bound: socket.socket) -> None:
    """TCP keep-alive, which accepted sockets inherit: a peer whose machine or network has gone is found in minutes."""
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _bound(bound: socket.socket) -> Address:
    host, port = bound.getsockname()[:2]
    return Address(host, port)


def configure_logging(settings: Settings) -> None:
    """Log lines to stderr, for people or for programs."""
    renderer: Any = structlog.processors.JSONRenderer()
    if settings.log.format == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            add_context,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            without_controls,
            recent,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(settings.log.level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


async def serve(settings: Settings, first: FirstTokens | None = None) -> bool:
    """Run until SIGTERM or SIGINT; whether everything could be ended. `first` tokens were created for this start."""
    daemon = Daemon(settings)
    daemon.announcement = Announcement(daemon)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.stop)
    loop.add_signal_handler(signal.SIGHUP, daemon.hang_up)
    supervisor = Supervisor()
    async with supervisor.reassured():
        try:
            async with supervisor.patient(lambda: daemon.progress):
                await daemon.start()
        except RecoveryStopped as stopped:
            log.info("stopped while recovering", reason=stopped.text)
            return not daemon.stuck
        spare_the_collector()
        print_banner(daemon, first)
        if settings.server.auth is None and daemon.keeps_no_tokens:
            log.warning("this data directory is of an earlier version: no token is required")
        supervisor.ready(f"listening on {daemon.listen}, admin on {daemon.admin}")
        await daemon.wait_stopping()
        supervisor.stopping()
        await daemon.wait_ended()
    return not daemon.stuck


def spare_the_collector() -> None:
    """Keep the cyclic collector away from what lives as long as the process, and call it seldom.

    Decoding makes a tuple per row, and each thousand of them had all of the loaded program looked through for cycles;
    docs/decisions/garbage-collector.md has the figures.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 50, 100)
    _return_memory()


def _return_memory() -> None:
    """Return what imports used and freed, 3 MB that glibc keeps; other C libraries lack the functions. From now on it
    keeps more: each step frees what the next one needs again, and new pages take as long as copying that."""
    c = ctypes.CDLL(None)
    if hasattr(c, "malloc_trim"):
        c.malloc_trim(0)
    if hasattr(c, "mallopt"):
        c.mallopt(_MMAP_THRESHOLD, KEPT_BYTES)
        c.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


def main(settings: Settings) -> None:
    """Run the daemon on uvloop; MillraceError says why it could not."""
    import uvloop

    configure_logging(settings)
    check_certificates(settings.server)
    check_tokens(settings.server)
    load_functions(settings)
    _make_folder(settings)
    first = prepare(settings)
    if not uvloop.run(serve(settings, first)):
        # Python would wait for the hanging thread forever.
        sys.stderr.flush()
        os._exit(1)


def _make_folder(settings: Settings) -> None:
    folder = settings.server.data_dir
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError([f"server.data_dir: cannot create {folder}: {_reason(error)}"]) from None
