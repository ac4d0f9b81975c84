"""The objects that statements define, planned and applied together or not at all; and the decisions about them.

Rule: one change at a time. Statements are planned on top of each other first; then all their commands go to the engine
as one, which it obeys or refuses as a whole. Sinks are made before that, because a file that cannot be written must
refuse the whole. After each change everything is written down, if there is a folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

import structlog
from pydantic import ValidationError

from millrace.engine import shadow, views
from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Change,
    CommandBody,
    DropQuery,
    DropStream,
    PauseQuery,
    ReplaceQuery,
    ResumeQuery,
    SetBreak,
    SetOrder,
    SetQueue,
    SetStrategy,
    SetWeight,
    UnshareQuery,
)
from millrace.engine.graph.rewire import sharing
from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.engine.seam import gated
from millrace.history.archive import Archive
from millrace.net.feeds import Feeds
from millrace.net.freshness import Freshness, Key, in_json
from millrace.net.inserts import Inserts
from millrace.net.readers import TAKES_NOTHING, SlowReader, explained, slow_reader
from millrace.net.sink import Slow, WriterSink
from millrace.observe.metrics import Metrics
from millrace.operators.join.join import Order as JoinOrder
from millrace.operators.queues.edge import QueueKind
from millrace.protocol import MillraceError, Refuse
from millrace.run.config import CATALOG
from millrace.run.decisions import (
    ComponentDecisions,
    Decisions,
    JoinDecision,
    KeptPlace,
    OperatorEdit,
    apart,
    decided,
    edits,
    exchanged,
    named,
    paused,
    separate,
    written,
)
from millrace.run.names import formerly, nearest
from millrace.run.pause import Pause
from millrace.run.planning import Planning
from millrace.run.runner import Runner
from millrace.run.temporary import Temporaries
from millrace.run.threads import in_thread
from millrace.run.timers import Timers
from millrace.sql import (
    AlterStatement,
    CreateQuery,
    CreateSink,
    CreateStream,
    Describe,
    DropStatement,
    Explain,
    ExplainRunning,
    Insert,
    Inspection,
    Planned,
    RenameStatement,
    Show,
    ShowCreate,
    SinkDefinition,
    Unchanged,
    condition,
    explain,
    parse,
    plan_all,
)
from millrace.sql import (
    Catalog as Known,
)
from millrace.sql.limits import KNOWN, Limits
from millrace.sql.parser import written as quoted
from millrace.sql.temporary import CreateTemporary, without_limit
from millrace.store.catalog import CatalogFile, StoreError
from millrace.store.openings import NO_PLACE, NewSink, Opened, Openings, SinkPlace, Taken, abandon
from millrace.store.places import SinkFolders
from millrace.store.restarts import lost_state
from millrace.store.stored import PlanTexts, StoredPlans
from millrace.values.batch import Batch
from millrace.values.eventtime import MIN_TIME

log = structlog.get_logger()

T = TypeVar("T")

# The kinds of named objects.
Kind = Literal["stream", "query", "sink"]


class Terms(NamedTuple):
    """How statements are applied: with `idempotent` a CREATE that repeats an existing definition changes nothing;
    `temporary` is the name of the query that a SELECT becomes, where one is allowed."""

    idempotent: bool = False
    temporary: str | None = None


STRICT: Final = Terms()

# Of the decisions, for the disk alone.
_INTERNAL: Final[dict[str, Any]] = {"places": True, "operators": {"__all__": {"id"}}}

# Awaited when it is a change's turn; raises to refuse the change.
Check = Callable[[], Awaitable[None]]


class Asked(NamedTuple):
    """The kind of a change and its object, for the metrics and the log."""

    kind: str
    name: str | None = None


# A text that was refused before its object was known.
SOME: Final = Asked("statements")


async def _nothing() -> None:
    """The check that accepts everything."""


async def _show_nothing(_: Inspection) -> dict[str, Any]:
    """The view of a catalog without a server."""
    return {}


@dataclass(frozen=True, slots=True)
class Defaults:
    """Policies of streams that set none."""

    grace_us: int = 0
    ahead_us: int | None = None

    def settle(self, stream: StreamDefinition) -> StreamDefinition:
        if stream.timestamps != "external":
            return stream
        grace_us = self.grace_us if stream.grace_us is None else stream.grace_us
        ahead_us = self.ahead_us if stream.ahead_us is None else stream.ahead_us
        return replace(stream, grace_us=grace_us, ahead_us=ahead_us)

    def settle_step(self, step: Planned) -> Planned:
        match step:
            case CreateStream(stream):
                return CreateStream(self.settle(stream))
            case AlterStatement(_, changes, stream):
                settled = self.settle(stream)
                changes = tuple((policy, getattr(settled, policy)) for policy, _ in changes)
                return replace(step, changes=changes, stream=settled)
            case _:
                return step


class _Draft(NamedTuple):
    """The plans of statements, or their refusal, in the catalog of that time (None: they were not planned)."""

    known: Known | None
    result: tuple[list[Planned], Known] | MillraceError

    @property
    def inspects(self) -> bool:
        """Whether the statements only read."""
        if isinstance(self.result, MillraceError):
            return False
        steps, _ = self.result
        return bool(steps) and all(isinstance(step, Explain | Inspection) for step in steps)


@dataclass(slots=True)
class _Made:
    """A sink that writes."""

    definition: SinkDefinition
    consumer: WriterSink
    place: SinkPlace = NO_PLACE


class Catalog:
    """Streams, queries and sinks of one server, and the decisions about their scheduling."""

    def __init__(
        self,
        engine: Engine,
        runner: Runner,
        feeds: Feeds,
        metrics: Metrics,
        *,
        strategy: str,
        defaults: Defaults,
        folder: Path | None,
        archive: Archive,
        places: SinkFolders,
        planning: Planning,
        timers: Timers,
    ) -> None:
        self.known = Known()
        self._planning = planning
        self._engine = engine
        self._runner = runner
        self._feeds = feeds
        self._metrics = metrics
        self._strategy = strategy
        self._defaults = defaults
        self._archive = archive
        self._openings = Openings(places)
        self.temporaries = Temporaries(runner, timers, lambda name: self.drop("query", name))
        self._inserts = Inserts(engine, runner, feeds)
        self.inspect: Callable[[Inspection], Awaitable[dict[str, Any]]] = _show_nothing
        self.on_query_dropped: Callable[[str], None] = lambda _: None
        self.on_query_renamed: Callable[[str, str], None] = lambda name, to: None
        # Restored queries that lost their state: when they started again, and the consequence.
        self.restarted: dict[str, tuple[int, str]] = {}
        self.catching: set[str] = set()  # queries that lack their past yet: they are not saved
        self._sinks: dict[str, _Made] = {}
        self._held: dict[str, ComponentDecisions] = {}  # by first operator: the components of trials, as they were
        self._one_at_a_time = asyncio.Lock()
        self._took = Pause()  # of the change whose turn it is
        self._store = None if folder is None else CatalogFile(folder / CATALOG)
        self._plan_texts = PlanTexts()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="catalog")  # a disk may take its time
        self.error: str | None = None  # why the newest state is not on the disk
        self._writing: asyncio.Task[None] | None = None
        self._ending = False
        self._loaded = False  # before that, the present state must not be saved

    # -- statements --------------------------------------------------------------------------------

    def terms(self, *, idempotent: bool, temporary: bool) -> Terms:
        """How the statements of a request are taken."""
        taken = {*self.known.streams, *self.known.queries}
        return Terms(idempotent, self.temporaries.next_name(taken) if temporary else None)

    async def plan(
        self, sql: str, check: Check = _nothing, terms: Terms = STRICT
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The outcome of each statement, and of the graph, without applying anything."""
        return await asyncio.shield(asyncio.ensure_future(self._plan_whole(sql, check, terms)))

    async def _plan_whole(self, sql: str, check: Check, terms: Terms) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        with self._planning.admitted():
            draft = await self._draft(sql, check, terms)
            async with self._one_at_a_time:
                await check()
                return await self._shown(sql, draft, terms)

    async def _shown(self, sql: str, draft: _Draft, terms: Terms) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        steps, after = await self._settled_plan(sql, draft, terms)
        self._refuse_temporary(steps)
        for stream in _settled_streams(steps):
            self._archive.check(stream)
        await self._runner.at_rest()
        self._check_inserts(steps, after)
        self._refuse_renaming_in_trial(steps)
        described = self._describe_all(steps)
        await self._open_files(steps, opens=False)
        return described, await self._foresee(self._all_commands(steps))

    async def _foresee(self, commands: Sequence[CommandBody]) -> dict[str, Any]:
        """The effect of commands on the graph. Only the snapshot needs the engine: tuples flow while a shadow is built
        from it and obeys."""
        snapshot = await self._runner.between_steps(lambda: shadow.Snapshot.of(self._engine))
        return await self._planning.run(lambda: shadow.plan(snapshot, commands))

    async def execute(
        self, sql: str, *, check: Check = _nothing, asked: Asked = SOME, terms: Terms = STRICT
    ) -> list[dict[str, Any]]:
        """Plan all statements, then apply all of them or none; the outcome of each.

        Continues if the client disconnects: a half-known change would be worse than one without an answer. `check`,
        here and below, is called when it is this change's turn, and may refuse it. `asked` is the subject of the
        statements as far as it is known before they are planned.
        """
        return await asyncio.shield(asyncio.ensure_future(self._execute_admitted(sql, check, asked, terms)))

    async def _execute_admitted(self, sql: str, check: Check, asked: Asked, terms: Terms) -> list[dict[str, Any]]:
        try:
            with self._planning.admitted():
                return await self._execute(sql, check, asked, terms)
        except Refuse as error:
            if error.code == "busy":
                self._tell(asked, "refused", error.text)
            raise

    async def _execute(self, sql: str, check: Check, asked: Asked, terms: Terms) -> list[dict[str, Any]]:
        steps: list[Planned] = []
        draft = await self._draft(sql, check, terms)
        if draft.inspects:
            return await self._inspected(sql, draft, terms, check)

        async def change() -> list[dict[str, Any]]:
            nonlocal steps
            await check()
            steps, after = await self._settled_plan(sql, draft, terms)
            await self._runner.at_rest()
            self._refuse_temporary(steps)
            described = self._describe_all(steps)
            self._refuse_renaming_in_trial(steps)
            batches = self._check_inserts(steps, after)
            if _asked(steps):
                await self._apply(steps)
            self.known = after
            await self._insert(steps, described, batches)
            return await self._with_views(steps, described)

        return await self._alone(change, lambda: _asked(steps) if steps else [asked])

    async def _inspected(self, sql: str, draft: _Draft, terms: Terms, check: Check) -> list[dict[str, Any]]:
        """Statements that only read: they wait for no change, and count as none."""
        await check()
        steps, _ = await self._settled_plan(sql, draft, terms)
        await self._runner.at_rest()
        return await self._with_views(steps, self._describe_all(steps))

    async def _with_views(self, steps: Sequence[Planned], described: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The views that statements show, after all of them."""
        for told, step in zip(described, steps, strict=True):
            if isinstance(step, Inspection):
                told |= await self.inspect(step)
        return described

    def _check_inserts(self, steps: Sequence[Planned], after: Known) -> list[Batch]:
        """The tuples of each INSERT; a refusal says which value its stream does not take."""
        batches = []
        for step in steps:
            if isinstance(step, Insert):
                stream = after.streams.get(step.stream)
                if stream is None:
                    raise Refuse(f"INSERT INTO {step.stream}: the same text drops that stream", code="sql")
                batches.append(self._inserts.check(step, stream))
        return batches

    async def _insert(self, steps: Sequence[Planned], described: list[dict[str, Any]], batches: list[Batch]) -> None:
        rest = iter(batches)
        for told, step in zip(described, steps, strict=True):
            if isinstance(step, Insert):
                told |= await self._inserts.run(step, next(rest))

    def _refuse_temporary(self, steps: Sequence[Planned]) -> None:
        """Nothing that stays may depend on a query that ends with its reader."""
        for step in steps:
            for name in _queries_used(step):
                if name in self.temporaries.names:
                    raise Refuse(
                        f"{name} is a temporary query, which ends when its reader leaves: write CREATE QUERY name AS "
                        "and its SELECT for one that stays",
                        code="temporary",
                    )

    async def _alone(self, change: Callable[[], Coroutine[Any, Any, T]], asked: Callable[[], Sequence[Asked]]) -> T:
        """Make a change when it is its turn, and write down what holds then. Done or refused, it is counted and logged
        as what was `asked`, and how long it kept tuples waiting is measured."""

        async def whole() -> T:
            try:
                answer = await change()
            except MillraceError as error:
                for one in asked():
                    self._tell(one, "refused", error.text)
                raise
            for one in asked():
                self._tell(one, "done")
            await self.keep()
            return answer

        async with self._one_at_a_time:
            self._refuse_at_the_end()
            self._took = Pause()
            try:
                return await self._took.of(whole())
            finally:
                self._metrics.paused(self._took.seconds)

    def _refuse_at_the_end(self) -> None:
        if self._ending:
            raise Refuse("the server is ending: send this again once it has started again", code="shutting_down")

    def _command(self, body: CommandBody, obeyed: Callable[[], None] | None = None) -> asyncio.Future[Any]:
        """Send the engine a command of the current change."""
        return self._runner.command(body, obeyed, self._took.add)

    def _describe_all(self, steps: Sequence[Planned]) -> list[dict[str, Any]]:
        """The outcome of each statement, and the edits of a query's operators that end with it."""
        described = [_describe(step) for step in steps]
        edited = {edit.query for edit in edits(self._engine)}
        for step, told in zip(steps, described, strict=True):
            match step:
                case CreateQuery(query, replaces=True) if query.name in edited:
                    edited.remove(query.name)
                    told["warnings"].append(
                        f"query {query.name} has inserted, removed or replaced operators: these edits are undone"
                    )
                case RenameStatement(name, to) if name in edited:
                    edited = edited - {name} | {to}
                case DropStatement("query", name):
                    edited.discard(name)
                case _:
                    pass
        return described

    async def _draft(self, sql: str, check: Check, terms: Terms) -> _Draft:
        """A plan over the present catalog, before it is its change's turn: other changes continue meanwhile."""
        known = self.known
        try:
            await check()
        except MillraceError as error:
            return _Draft(None, error)  # by then it may not be refused any more
        try:
            return _Draft(known, await self._planned(sql, known, terms))
        except MillraceError as error:
            return _Draft(known, error)

    async def _settled_plan(self, sql: str, draft: _Draft, terms: Terms) -> tuple[list[Planned], Known]:
        """The plan of the change whose turn it is: its draft, or a new one if something else was changed first."""
        known = self.known
        if draft.known is not known:
            return await self._planned(sql, known, terms)
        if isinstance(draft.result, MillraceError):
            raise draft.result
        return draft.result

    async def _planned(self, sql: str, known: Known, terms: Terms) -> tuple[list[Planned], Known]:
        return await self._planning.run(lambda: self._plan(sql, known, self._planning.limits, terms))

    def _plan(self, sql: str, known: Known, limits: Limits, terms: Terms = STRICT) -> tuple[list[Planned], Known]:
        """The plans of statements, a function of its arguments: it runs in another thread."""
        statements, limit = parse(sql, limits), None
        if terms.temporary is not None:
            statements, limit = without_limit(statements)
        bare = terms.temporary or "q"
        planned, after = plan_all(statements, known, name=bare, idempotent=terms.idempotent)
        for position, step in enumerate(planned):
            if isinstance(step, QueryPlan):
                if terms.temporary is None:
                    raise Refuse(
                        "a SELECT alone has no destination for its rows here: write CREATE QUERY name AS SELECT ..., "
                        "then read it with `millrace tail name`, or print its rows with `millrace sql 'SELECT ...'`",
                        code="sql",
                    )
                planned[position] = CreateTemporary(step, limit=limit)
        settle = self._defaults.settle
        streams = {name: settle(stream) for name, stream in after.streams.items()}
        return [self._defaults.settle_step(step) for step in planned], replace(after, streams=streams)

    async def _apply(self, steps: list[Planned]) -> None:
        files = await self._open_files(steps)
        await self._runner.at_rest()
        self._metrics.count_punctuations()
        try:
            with self._archive.prepared(_settled_streams(steps)):
                # Within the engine's step, before it emits any row of a new query.
                await self._command(Change(self._all_commands(steps)), lambda: self._obeyed(steps))
        except BaseException:
            abandon(files)
            raise
        for step in steps:
            await self._done(step, files)

    def _all_commands(self, steps: list[Planned]) -> tuple[CommandBody, ...]:
        return tuple(command for step in steps for command in self._commands(step))

    def _new_sinks(self, steps: Sequence[Planned]) -> tuple[list[NewSink], list[str]]:
        """The sinks that steps create, with their queries, and the names of those that stay. Refuses a change after
        which a sink would no longer fit."""
        queries = dict(self.known.queries)
        sinks = {name: made.definition for name, made in self._sinks.items()}
        new: dict[str, NewSink] = {}
        for step in steps:
            match step:
                case CreateQuery(query):
                    if query.name in queries:
                        _check_sinks_fit(queries[query.name], query, sinks)
                    queries[query.name] = query
                case RenameStatement(name, _, renamed, moved):
                    queries = {known: plan for known, plan in queries.items() if known != name} | dict(renamed)
                    sinks |= moved
                case CreateSink(sink):
                    new[sink.name] = NewSink(sink, queries[sink.query].schema)
                    sinks[sink.name] = sink
                case DropStatement("sink", name):
                    sinks.pop(name, None)
                    new.pop(name, None)
                case _:
                    pass
        return list(new.values()), [name for name in sinks if name not in new]

    async def _open_files(self, steps: Sequence[Planned], *, opens: bool = True) -> dict[str, Opened]:
        """Open the files of new sinks. One that cannot be written refuses the whole change, and no file stays open."""
        new, staying = self._new_sinks(steps)
        if not new:
            return {}
        if not self._loaded:
            return await in_thread(lambda: {sink.definition.name: self._openings.known(sink) for sink in new})
        others = [
            Taken(name, made.consumer.path, made.consumer.identity)
            for name, made in self._sinks.items()
            if name in staying and made.consumer.path is not None
        ]
        return await in_thread(lambda: self._openings.new(new, others, opens=opens), abandon)

    def _commands(self, step: Planned) -> list[CommandBody]:
        match step:
            case CreateStream(stream):
                return [AddStream(stream, self._strategy)]
            case AlterStatement():
                return [step.command]
            case CreateQuery(query, replaces):
                if replaces:
                    return [ReplaceQuery(query)]
                return [AddQuery(gated(query) if query.name in self.catching else query)]
            case RenameStatement():
                return [step.command]
            case DropStatement("stream", name):
                return [DropStream(name)]
            case DropStatement("query", name):
                return [DropQuery(name)]
            case _:
                return []

    def _obeyed(self, steps: list[Planned]) -> None:
        """The engine has obeyed: let the sockets know."""
        for step in steps:
            match step:
                case CreateStream(stream):
                    self._feeds.add_stream(stream)
                    self._archive.follow(stream, MIN_TIME)
                case AlterStatement(_, _, stream):
                    self._feeds.alter_stream(stream)
                    self._archive.follow(stream, self._engine.source(stream.name).newest)
                case CreateQuery(query, replaces=True):
                    self._runner.replace_outlet(query)
                case CreateQuery(query):
                    self._runner.add_outlet(query)
                    if isinstance(step, CreateTemporary):
                        self.temporaries.add(query.name)
                case RenameStatement(name, to):
                    self._runner.rename_outlet(name, to)
                    self._metrics.rename_query(name, to)
                    if name in self.restarted:
                        self.restarted[to] = self.restarted.pop(name)
                    self.on_query_renamed(name, to)
                case DropStatement("stream", name):
                    self._feeds.drop_stream(name)
                    self._metrics.forget_stream(name)
                    self._archive.drop(name)
                case DropStatement("query", name):
                    self.temporaries.forget(name)
                    self._runner.remove_outlet(name)
                    self._metrics.forget_query(name)
                    self.restarted.pop(name, None)
                    self.on_query_dropped(name)
                case _:
                    pass

    async def _done(self, step: Planned, files: Mapping[str, Opened]) -> None:
        """Start and stop the writers of files."""
        match step:
            case CreateSink(sink):
                if sink.name in files:  # else it is dropped again by a later statement of the same text
                    self._add_sink(sink, files[sink.name])
            case RenameStatement(sinks=sinks):
                for name, sink in sinks.items():
                    if name in self._sinks:
                        self._sinks[name].definition = sink
            case DropStatement("sink", name):
                if name in self._sinks:
                    await self._end_sink(name)
            case _:
                pass

    def _tell(self, asked: Asked, result: str, reason: str | None = None) -> None:
        """Count a change, and log it."""
        self._metrics.reconfigured(asked.kind, result)
        if result == "done":
            log.info("changed", change=asked.kind, name=asked.name)
        else:
            # Mostly a typo, and the client got the whole text: the place in the statement and a caret follow below.
            first_line = None if reason is None else reason.partition("\n")[0]
            log.info("a change was refused", change=asked.kind, name=asked.name, reason=first_line)

    # -- sinks -------------------------------------------------------------------------------------

    def _add_sink(self, definition: SinkDefinition, opened: Opened) -> None:
        slow = Slow(definition.on_slow, definition.slow_limit, definition.slow_bytes)
        outlet = self._runner.outlets[definition.query]
        bound_us = definition.freshness_us
        freshness = None if bound_us is None else Freshness(bound_us)
        consumer = WriterSink(definition.name, slow, opened.file, freshness, self._runner.now_us)
        self._sinks[definition.name] = _Made(definition, consumer, opened.place)
        outlet.add(consumer)
        consumer.start()

    async def _end_sink(self, name: str) -> None:
        made = self._sinks.pop(name)
        outlet = self._runner.outlets.get(made.definition.query)
        if outlet is not None:
            outlet.remove(made.consumer)
        await made.consumer.close()

    def why(self, query: str) -> dict[str, Any]:
        """Why a query emits no rows, and which of its sinks have rows older than their `freshness`."""
        self.look_for_breaches()
        found = self._engine.why(query, self._runner.now_us())
        reader = self._slow_reader(query)
        if reader is not None and found["reason"] not in TAKES_NOTHING:
            found = explained(found, reader)
        told = [
            sentence
            for name, made in self._sinks.items()
            if made.definition.query == query and made.consumer.freshness is not None
            for sentence in [made.consumer.freshness.sentence(name)]
            if sentence is not None
        ]
        return {**found, "text": " ".join([found["text"], *told])}

    def _slow_reader(self, query: str) -> SlowReader | None:
        """The slow reader of a query, or of another whose streams it shares."""
        withheld = self._engine.withheld()
        sources = self._engine.graph.sources(*self._engine.query(query).operators)
        others = [name for source in sources for name in withheld.get(source.stream, ())]
        for name in dict.fromkeys((query, *others)):
            outlet = self._runner.outlets.get(name)
            reader = None if outlet is None else slow_reader(outlet, withheld)
            if reader is not None:
                return reader
        return None

    def look_for_breaches(self) -> None:
        """Hold what waits against what sinks promise of its age."""
        now_us = self._runner.now_us()
        for made in self._sinks.values():
            bound_us = made.definition.freshness_us
            if bound_us is not None:
                above = self._engine.older(made.definition.query, now_us, bound_us)
                made.consumer.look(now_us, [(_as_json(key), age) for key, age in above])

    @property
    def strictest_us(self) -> int | None:
        """The least age that a sink promises."""
        bounds = [made.definition.freshness_us for made in self._sinks.values()]
        return min((bound for bound in bounds if bound is not None), default=None)

    def sinks(self) -> list[dict[str, Any]]:
        self.look_for_breaches()
        now_us = self._runner.now_us()
        return [
            {
                "name": name,
                "query": made.definition.query,
                "history": made.consumer.history,
                "type": made.definition.type,
                "path": None if made.consumer.path is None else str(made.consumer.path),
                "outside": made.place.outside,
                "format": made.definition.format,
                "state": made.consumer.state,
                "reason": made.consumer.reason,
                "since_us": None if made.consumer.trouble is None else made.consumer.trouble.since_us,
                "on_slow": made.definition.on_slow,
                "slow_limit": made.definition.slow_limit,
                "slow_bytes": made.definition.slow_bytes,
                "delivered": made.consumer.delivered,
                "held": made.consumer.held,
                "held_bytes": made.consumer.held_bytes,
                "unfinished": made.consumer.unfinished,
                "dropped": made.consumer.dropped,
                "superseded": made.consumer.superseded,
                "freshness": None if made.consumer.freshness is None else made.consumer.freshness.to_data(),
                "lag_us": made.consumer.lag_us(now_us),
                "sql": made.definition.sql,
            }
            for name, made in self._sinks.items()
        ]

    # -- single changes ----------------------------------------------------------------------------

    def must_know(self, kind: Kind, name: str) -> None:
        """Refuse a name that nothing has; there may be one much like it."""
        known = {"stream": self.known.streams, "query": self.known.queries, "sink": self.known.sinks}[kind]
        if name not in known:
            raise Refuse(f"{kind} {name} does not exist{nearest(name, list(known))}", code=f"unknown_{kind}")

    def refuse_former(self, operator: str) -> None:
        """Refuse the name that an operator had when names were made of kinds, if no other has it now."""
        hint = formerly(operator, self.known.queries)
        if hint and operator not in self._engine.graph.operators:
            raise Refuse(f"operator {operator} does not exist{hint}", code="unknown_operator")

    async def drop(self, kind: Kind, name: str, check: Check = _nothing) -> dict[str, Any]:
        """DROP by the API."""

        async def check_all() -> None:
            self.must_know(kind, name)
            await check()

        await self.execute(f"DROP {kind.upper()} {quoted(name)}", check=check_all, asked=Asked(f"drop_{kind}", name))
        return {kind: name, "dropped": True}

    async def rename(self, name: str, to: str, check: Check = _nothing) -> dict[str, Any]:
        """ALTER QUERY ... RENAME TO by the API."""

        async def check_all() -> None:
            self.must_know("query", name)
            await check()

        sql = f"ALTER QUERY {quoted(name)} RENAME TO {quoted(to)}"
        await self.execute(sql, check=check_all, asked=Asked("rename_query", name))
        return {"query": to, "was": name}

    async def plan_alone(self, sql: str) -> list[Planned]:
        """The plans of statements in the present catalog."""
        known = self.known
        with self._planning.admitted():
            steps, _ = await self._planning.run(lambda: plan_all(parse(sql, self._planning.limits), known))
        return steps

    async def explain(self, name: str) -> dict[str, Any]:
        self.must_know("query", name)
        query, known = self.known.queries[name], self.known
        plan = await self._planning.run(lambda: explain(query, known))
        await self._runner.at_rest()
        self.must_know("query", name)
        shared = sharing.told(self._engine, self._engine.query(name))
        indexed = [f"indexed: {line}" for line in views.indexed(self._engine, self._engine.query(name))]
        text = "\n".join([plan, *map(_shared_words, shared), *indexed])
        joins = tuple(JoinDecision.model_validate(found) for found in views.join_orders(self._engine))
        changed = Decisions(
            operators=tuple(edit for edit in edits(self._engine) if edit.query == name),
            joins=tuple(join for join in joins if join.query == name),
            queues=exchanged(self._engine, {name: self.known.queries[name]}),
        ).shell()
        if changed:
            text = "\n".join(
                [text, "", "edited while it runs, until it is replaced:", *(f"  {line}" for line in changed)]
            )
        return {"query": name, "text": text, "sql": query.sql, "shared": shared}

    async def pause(self, name: str, reason: str | None = None, check: Check = _nothing) -> dict[str, Any]:
        return await self._change(Asked("pause", name), lambda: self._pause(name, reason), check)

    async def _pause(self, name: str, reason: str | None) -> dict[str, Any]:
        command = PauseQuery(name) if reason is None else PauseQuery(name, reason)
        paused: dict[str, Any] = await self._command(command)
        return paused

    async def unshare(self, name: str, operators: Sequence[str], check: Check = _nothing) -> dict[str, Any]:
        return await self._change(
            Asked("unshare", name), lambda: self._command(UnshareQuery(name, tuple(operators))), check
        )

    async def resume(self, name: str, check: Check = _nothing) -> dict[str, Any]:
        return await self._change(Asked("resume", name), lambda: self._command(ResumeQuery(name)), check)

    async def set_strategy(
        self, component: str, strategy: str, operator: str | None, check: Check = _nothing
    ) -> dict[str, Any]:
        command = SetStrategy(component, strategy, operator)

        async def check_all() -> None:
            await check()
            await self._runner.at_rest()
            self._refuse_in_trial(component)
            if operator is not None:
                self.refuse_former(operator)

        return await self._change(Asked("strategy", operator or component), lambda: self._command(command), check_all)

    async def set_break(self, operator: str, on: bool, check: Check = _nothing) -> dict[str, Any]:
        return await self._change(Asked("break", operator), lambda: self._command(SetBreak(operator, on)), check)

    async def set_weight(self, component: str, weight: int, check: Check = _nothing) -> dict[str, Any]:
        return await self._change(
            Asked("weight", component), lambda: self._command(SetWeight(component, weight)), check
        )

    async def set_order(
        self, query: str, order: JoinOrder | None, alpha: float | None, check: Check = _nothing
    ) -> dict[str, Any]:
        return await self._change(Asked("order", query), lambda: self._command(SetOrder(query, order, alpha)), check)

    async def set_queue(
        self, operator: str, kind: QueueKind, position: int = 0, check: Check = _nothing
    ) -> dict[str, Any]:
        return await self._change(
            Asked("queue", operator), lambda: self._command(SetQueue(operator, kind, position)), check
        )

    async def edit_operator(self, edit: OperatorEdit, check: Check = _nothing) -> dict[str, Any]:
        """Put an operator in, take it out or exchange it."""
        asked = Asked(f"{edit.change}_operator", edit.operator or edit.before)

        async def ask() -> Any:
            return await self._command(await self._edit_command(edit))

        with self._planning.admitted():
            return await self._change(asked, ask, check)

    async def plan_edit(self, edit: OperatorEdit, check: Check = _nothing) -> dict[str, Any]:
        """The effect of edits on the graph, without applying them."""
        with self._planning.admitted():
            async with self._one_at_a_time:
                await check()
                return await self._foresee([await self._edit_command(edit)])

    async def _edit_command(self, edit: OperatorEdit) -> CommandBody:
        """The command of an edit; its condition is planned outside the event loop."""
        await self._runner.at_rest()
        where, schema = edit.where, edit.columns(self._engine)
        if where is None or schema is None:
            return edit.command(self._engine)
        predicate = await self._planning.run(lambda: condition(where, schema, self._planning.limits))
        await self._runner.at_rest()
        return edit.command(self._engine, predicate)

    async def _change(self, asked: Asked, ask: Callable[[], Awaitable[Any]], check: Check) -> dict[str, Any]:
        async def change() -> dict[str, Any]:
            await check()
            answer: dict[str, Any] = await ask()
            return answer

        return await self._alone(change, lambda: [asked])

    # -- trials ------------------------------------------------------------------------------------

    async def hold_strategy(self, component: str, check: Check = _nothing) -> ComponentDecisions:
        """Start a trial of the component: until it is decided, its present decisions are saved and exported."""
        async with self._one_at_a_time:
            await check()
            await self._runner.at_rest()
            found = self._refuse_in_trial(component)
            self._held[found.first] = found
            return found

    async def release_strategy(self, component: ComponentDecisions) -> None:
        """The trial is decided."""
        del self._held[component.first]
        await self.keep()

    async def try_strategy(self, command: SetStrategy) -> None:
        """Set a strategy that is not decided yet."""
        await self.carry_out(Asked("strategy", command.operator or command.component), [command])

    async def carry_out(self, asked: Asked, commands: Sequence[CommandBody]) -> None:
        """Several commands as one change; the first refusal is raised, after all of them."""

        async def ask() -> dict[str, Any]:
            outcomes = await asyncio.gather(*map(self._command, commands), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
            return {}

        await self._change(asked, ask, _nothing)

    def _refuse_renaming_in_trial(self, steps: Sequence[Planned]) -> None:
        """A trial identifies operators by their names."""
        for step in steps:
            if isinstance(step, RenameStatement) and step.name in self._engine.queries_by_name:
                query = self._engine.query(step.name)
                self._refuse_in_trial(self._engine.graph.component_of(query.sink).name)

    def _refuse_in_trial(self, name: str) -> ComponentDecisions:
        """The decisions about the component; refused while a trial of it runs."""
        found = next((one for one in decided(self._engine) if one.component == name), None)
        if found is None:
            raise Refuse(f"component {name} does not exist", code="unknown_component")
        if found.first in self._held:
            raise Refuse(
                f"a trial of component {name} is running: wait for its end, or cancel it with "
                f"`millrace strategy trial {name} --cancel`",
                code="trial_running",
            )
        return found

    def _settled(self, component: ComponentDecisions) -> ComponentDecisions:
        """The decisions about a component, without a strategy on trial."""
        held = self._held.get(component.first)
        if held is None:
            return component
        return component.model_copy(update={"strategy": held.strategy, "operators": held.operators})

    # -- life --------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Apply the statements and the decisions of an earlier run."""
        if self._store is not None:
            stored = self._store.read()
            decisions = self._read_decisions(stored.decisions)
            places = decisions.places
            self._openings.kept = None if places is None else {place.sink: place.path for place in places}
            plans = StoredPlans(stored, decisions)
            for statement in stored.statements:
                await self._load_statement(self._store, statement, plans)
            await self._decide(named(decisions, self.known.queries, stored.version))
            if stored.statements:
                log.info("restored from the catalog", statements=len(stored.statements))
                self._report_lost_state()
            self._loaded = True
            if plans.renewed:
                self._begin_to_write()
        self._loaded = True

    def _report_lost_state(self) -> None:
        now_us = self._runner.now_us()
        for name, query in self._engine.queries_by_name.items():
            meaning = lost_state(query)
            if meaning is not None:
                self.restarted[name] = now_us, meaning
                log.warning("restarted without operator state", query=name, meaning=meaning)

    async def _load_statement(self, store: CatalogFile, statement: str, plans: StoredPlans) -> None:
        plan = plans.plan(statement)
        if plan is not None:
            try:
                await self._apply([CreateQuery(plan)])
            except Refuse as error:
                plans.refused(statement, error.text)
            else:
                self.known = self.known.with_(CreateQuery(plan))
                return
        try:
            steps, after = self._plan(statement, self.known, KNOWN)
            for position, step in enumerate(steps):
                if isinstance(step, CreateQuery):
                    plan = plans.renew(statement, step.plan)
                    steps[position] = CreateQuery(plan)
                    after = replace(after, queries={**after.queries, plan.name: plan})
            await self._apply(steps)
        except Refuse as error:
            raise Refuse(
                f"{store.path} contains a statement that cannot be executed now: {error.text}\n"
                f"(the statement: {statement})",
                code="start",
            ) from None
        self.known = after

    def _read_decisions(self, document: str | None) -> Decisions:
        if document is None:
            return Decisions()
        try:
            return Decisions.model_validate_json(document)
        except ValidationError as error:
            assert self._store is not None
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise StoreError(
                f"cannot read the decisions in the catalog {self._store.path}: {where}: {first['msg']}"
            ) from None

    async def _decide(self, decisions: Decisions) -> None:
        """Apply the decisions. One that does not apply (the operator differs now) is logged and skipped."""
        for edit in decisions.operators:  # each is about the operators that those before it have made
            try:
                await self._runner.command(edit.command(self._engine))
            except Refuse as refused:
                log.warning("cannot restore a decision of the catalog", reason=refused.text)
        futures = [self._runner.command(command) for command in decisions.parting()]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        futures = [self._runner.command(command) for command in decisions.commands(self._engine)]
        outcomes += await asyncio.gather(*futures, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                log.warning("cannot restore a decision of the catalog", reason=str(outcome))

    def decisions(self, known: Known | None = None) -> Decisions:
        """The admins' decisions beyond statements, about the present catalog or the `known` one."""
        known = self.known if known is None else known
        temporary = self.temporaries.names
        queries = {name: plan for name, plan in known.queries.items() if name not in temporary}
        joins = tuple(JoinDecision.model_validate(found) for found in views.join_orders(self._engine))
        return Decisions(
            apart=apart(self._engine),
            separate=tuple(one for one in separate(self._engine) if one.query not in temporary),
            # By name: the order of the graph is another one after a restart.
            components=tuple(
                self._settled(found)
                for found in sorted(decided(self._engine), key=attrgetter("component"))
                if _outlasts(found, known)
            ),
            paused=tuple(decision for decision in paused(self._engine) if decision.query not in temporary),
            joins=tuple(join for join in joins if join.query not in temporary),
            queues=exchanged(self._engine, queries),
            operators=tuple(edit for edit in edits(self._engine) if edit.query not in temporary),
            places=tuple(
                KeptPlace(sink=name, path=made.place.kept)
                for name, made in sorted(self._sinks.items())
                if made.place.kept is not None
            ),
        )

    @property
    def _unwritten(self) -> set[str]:
        """Queries that are not kept: those that have not got their past yet, and temporary ones."""
        return self.catching | self.temporaries.names.keys()

    def statements(self, known: Known | None = None) -> list[str]:
        """What makes everything again, in an order in which it can be applied; not queries that have yet to get their
        past, nor who reads them."""
        known = self.known if known is None else known
        unwritten = self._unwritten
        kept: dict[str, str] = {}
        for query in _readers_last(known.queries):
            if query.name not in unwritten and all(name in kept for name in query.reads_queries):
                kept[query.name] = query.sql
        return [
            *(stream.sql for stream in known.streams.values()),
            *kept.values(),
            *(sink.sql for sink in known.sinks.values() if sink.query in kept),
        ]

    def export(self) -> dict[str, Any]:
        """The catalog as SQL that can be applied to an empty server; what SQL does not say as comments."""
        known, decisions = self.known, self.decisions()
        covered = self._as_data(decisions)
        commands = decisions.model_copy(
            update={"components": tuple(one for one in decisions.components if self._worth_telling(one, known))}
        ).shell()
        parts = [f"{statement}\n;" if "--" in statement.rpartition("\n")[2] else f"{statement};"
                 for statement in covered["statements"]]  # fmt: skip
        if commands:
            parts.append(
                "\n".join(["-- Decisions that SQL does not express:", *(f"-- {command}" for command in commands)])
            )
        return {"sql": "".join(f"{part}\n\n" for part in parts)[:-1], **covered, "commands": commands}

    def decided(self) -> dict[str, Any]:
        """The part of `export` that its tag covers."""
        return self._as_data(self.decisions())

    def _as_data(self, decisions: Decisions) -> dict[str, Any]:
        return {
            "statements": self.statements(),
            "decisions": decisions.model_dump(mode="json", exclude=_INTERNAL),
        }

    def _worth_telling(self, component: ComponentDecisions, known: Known) -> bool:
        """Whether a user has decided something: otherwise a side stream, which no user creates, has the defaults."""
        own = component.strategy != self._strategy or component.weight != 1 or component.operators or component.breaks
        return bool(own) or component.component in known.streams

    async def keep(self) -> None:
        """Write down what holds now; it has been written when this returns."""
        writing = self._begin_to_write()
        if writing is None:
            return
        try:
            await asyncio.shield(writing)
        except StoreError as error:
            text = f"the change is in effect, but is lost when the server ends: {error.text}"
            raise StoreError(text) from None

    def _begin_to_write(self) -> asyncio.Task[None] | None:
        """Save the present state, after earlier writes."""
        if self._store is None or not self._loaded:
            return None
        writing = self._writing = asyncio.create_task(self._write(self._store), name="catalog")
        writing.add_done_callback(self._written)
        return writing

    async def _write(self, store: CatalogFile) -> None:
        known = self.known
        statements, running, decisions = await self._runner.between_steps(
            lambda: (self.statements(known), self._running(), self.decisions(known)), self._took.add
        )

        def write() -> None:
            texts = self._plan_texts.of(known.queries, running)
            plans = {sql: texts[sql] for sql in statements if sql in texts}
            store.write(statements, plans, written(decisions, running))

        await asyncio.get_running_loop().run_in_executor(self._writer, write)

    def _running(self) -> dict[str, QueryPlan]:
        return {name: query.plan for name, query in self._engine.queries_by_name.items()}

    async def plans(self) -> dict[str, str]:
        """The text of each query's plan, as it was created, by its statement."""
        queries, running = self.known.queries, await self._runner.between_steps(self._running)
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._plan_texts.of, queries, running)

    def _written(self, writing: asyncio.Task[None]) -> None:
        """Record whether the newest state is on the disk, and log when that changes."""
        if writing.cancelled():
            return
        error = writing.exception()
        if isinstance(error, StoreError):
            if self.error is None:
                log.error("the catalog cannot be written", reason=error.text)
            self.error = error.text
        elif error is None and self.error is not None:
            self.error = None
            log.info("the catalog can be written again")

    def write_again(self) -> None:
        """Retry a failed write after a pause."""
        if self.error is not None and self._writing is not None and self._writing.done():
            self._begin_to_write()

    def problems(self) -> list[str]:
        """Unsaved state and sinks that cannot write, for the server's health."""
        found = [] if self.error is None else [f"{self.error}; later changes are lost at the next start"]
        sinks = (made.consumer.problem() for made in self._sinks.values())
        return found + [problem for problem in sinks if problem is not None]

    def query_failed(self) -> None:
        """A query has failed: save that, so that it does not start again with the server. No client waits for it."""
        self._begin_to_write()

    async def end_changes(self) -> None:
        """Finish the change in progress; refuse later ones, and those that wait for their turns."""
        self._ending = True
        async with self._one_at_a_time:
            pass

    async def close(self) -> None:
        """Finish every file."""
        for name in tuple(self._sinks):
            await self._end_sink(name)
        store, self._store = self._store, None
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if store is not None:
            await asyncio.get_running_loop().run_in_executor(self._writer, store.close)
        self._writer.shutdown(wait=False)
        self._planning.close()


def _outlasts(component: ComponentDecisions, known: Known) -> bool:
    """Whether a component exists after a restart: a side stream without readers does not."""
    stream = component.first.removesuffix(".source")
    return stream in known.streams or any(stream in query.reads_streams for query in known.queries.values())


def _shared_words(found: Mapping[str, Any]) -> str:
    if found["apart"] is not None:
        return f"not shared: {found['node']} is {found['apart']}"
    return f"shared: {found['node']} is {found['operator']}, with {', '.join(found['with'])}"


def _settled_streams(steps: Sequence[Planned]) -> list[StreamDefinition]:
    """The streams that steps leave, each as the last one that says something of it has it."""
    found: dict[str, StreamDefinition] = {}
    for step in steps:
        match step:
            case CreateStream(stream):
                found[stream.name] = stream
            case AlterStatement(name=name, stream=stream):
                found[name] = stream
            case DropStatement("stream", name):
                found.pop(name, None)
            case _:
                pass
    return list(found.values())


def _readers_last(queries: Mapping[str, QueryPlan]) -> Iterator[QueryPlan]:
    """The queries, each after those that it reads (a replaced one may read a younger one)."""
    waiting: list[QueryPlan] = []
    there: set[str] = set()
    for query in queries.values():
        waiting.append(query)
        while (ready := next((one for one in waiting if there.issuperset(one.reads_queries)), None)) is not None:
            waiting.remove(ready)
            there.add(ready.name)
            yield ready


def _kind(step: Planned) -> str:
    match step:
        case CreateStream():
            return "create_stream"
        case AlterStatement():
            return "alter_stream"
        case CreateTemporary():
            return "select"
        case CreateQuery():
            return "create_query"
        case RenameStatement():
            return "rename_query"
        case CreateSink():
            return "create_sink"
        case DropStatement(kind, _):
            return f"drop_{kind}"
        case Unchanged(statement):
            return statement
        case Insert():
            return "insert"
        case Show():
            return "show"
        case ShowCreate():
            return "show_create"
        case Describe():
            return "describe"
        case _:
            return "explain"


def _asked(steps: Sequence[Planned]) -> list[Asked]:
    """The changes that statements ask for."""
    return [
        Asked(_kind(step), _describe(step)["name"])
        for step in steps
        if not isinstance(step, Explain | Inspection | Unchanged | Insert)
    ]


def _queries_used(step: Planned) -> Sequence[str]:
    """The queries that the object of a statement depends on."""
    match step:
        case CreateQuery(query):
            return [*query.reads_queries, query.name]
        case CreateSink(sink):
            return [sink.query]
        case RenameStatement(name):
            return [name]
        case _:
            return []


def _describe(step: Planned) -> dict[str, Any]:
    """The outcome of a statement, for its client."""
    kind = _kind(step)
    match step:
        case CreateStream(stream):
            return {"kind": kind, "name": stream.name, "fields": stream.schema.to_data()}
        case AlterStatement(name, _, _, new, queries) if new:
            added = [field.name for field in new]
            altered = {"kind": kind, "name": name, "added": added, "rewritten": list(queries)}
            return {**altered, "changes": dict(step.changes)} if step.changes else altered
        case AlterStatement(name, changes):
            return {"kind": kind, "name": name, "changes": dict(changes)}
        case CreateTemporary(query):
            fields, warnings = query.schema.to_data(), list(query.warnings)
            told = {"kind": kind, "name": query.name, "fields": fields, "warnings": warnings}
            return {**told, "temporary": True, "limit": step.limit}
        case CreateQuery(query, replaces):
            fields, warnings = query.schema.to_data(), list(query.warnings)
            return {"kind": kind, "name": query.name, "fields": fields, "replaces": replaces, "warnings": warnings}
        case RenameStatement(name, to, queries, sinks):
            rewritten = [query for query in queries if query != to] + list(sinks)
            return {"kind": kind, "name": to, "was": name, "rewritten": rewritten}
        case CreateSink(sink):
            return {"kind": kind, "name": sink.name, "query": sink.query}
        case DropStatement(_, name):
            return {"kind": kind, "name": name}
        case Unchanged(_, _, name, text, warnings):
            return {"kind": kind, "name": name, "unchanged": True, "reason": text, "warnings": list(warnings)}
        case Insert(stream, rows):
            return {"kind": kind, "name": stream, "rows": len(rows)}
        case Explain(_, text):
            return {"kind": kind, "name": "", "text": text}
        case Show(of):
            return {"kind": kind, "name": of}
        case ShowCreate(_, name, sql):
            return {"kind": kind, "name": name, "text": f"{sql};"}
        case Describe(_, name) | ExplainRunning(name):
            return {"kind": kind, "name": name}
        case _:
            raise AssertionError(f"a bare SELECT is refused before it comes here, got {step!r:.80}")


def _check_sinks_fit(before: QueryPlan, after: QueryPlan, sinks: Mapping[str, SinkDefinition]) -> None:
    """Refuse a replacement whose rows have other columns, because the query's files continue."""
    name = after.name
    writing = [sink for sink in sinks.values() if sink.query == name]
    if after.schema != before.schema and writing:
        raise Refuse(
            f"query {name} would have other columns than {', '.join(sink.name for sink in writing)} writes: drop that "
            "sink first",
            code="in_use",
        )
    newest = [sink.name for sink in writing if sink.on_slow == "latest"]
    if after.update_key != before.update_key and newest:
        raise Refuse(
            f"query {name} would have another update key than {', '.join(newest)} keeps the newest rows by: drop that "
            "sink first",
            code="in_use",
        )


def _as_json(key: Iterable[tuple[str, Any]]) -> Key:
    return tuple((name, in_json(value)) for name, value in key)
