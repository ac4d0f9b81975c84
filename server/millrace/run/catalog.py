"""The changes of a server, planned and applied together or not at all.

Rule: one change at a time. Changes are planned first, on top of each other; then all their commands go to the engine as
one, which it obeys or refuses as a whole. Files are opened before that, because a file that cannot be written must
refuse the whole. Their effects follow, and everything is written down, if there is a folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from millrace.access.callers import ANYONE, Caller
from millrace.access.needs import check_text, visible
from millrace.access.roles import WHOLE, Action
from millrace.changes.change import Change, ChangeLabel, Planned
from millrace.changes.create_query import CreateQuery
from millrace.changes.decisions import ComponentDecisions, Decisions, about_queries, decided_of, named
from millrace.changes.drop_query import DropQuery
from millrace.changes.edits import RowChoice
from millrace.changes.effects import AddOutlet, AlterFeeds, Effect, FollowStream, ForgetStream
from millrace.changes.insert_operator import InsertOperator
from millrace.changes.ledger import Applied, Ledger, row_of
from millrace.changes.names import formerly
from millrace.changes.pause_query import PauseQuery
from millrace.changes.pruning import prune
from millrace.changes.remove_operator import RemoveOperator
from millrace.changes.rename_query import RenameQuery
from millrace.changes.replace_operator import ReplaceOperator
from millrace.changes.resume_query import ResumeQuery
from millrace.changes.set_order import SetOrder
from millrace.changes.set_queue import SetQueue
from millrace.changes.set_strategy import SetStrategy
from millrace.changes.state import ControlState, StreamDefaults
from millrace.changes.statements import STRICT, Draft, Terms, draft, outcome
from millrace.changes.table import change_of
from millrace.changes.unshare_query import UnshareQuery
from millrace.engine import events, shadow, views
from millrace.engine.engine import Engine
from millrace.engine.events import CommandBody
from millrace.engine.graph.rewire import sharing
from millrace.engine.plan import CHANGE_STREAM, StreamDefinition
from millrace.history.archive import Archive
from millrace.net.feeds import Feeds
from millrace.net.inserts import Inserts
from millrace.net.sink import Count, new_history
from millrace.observe import logs
from millrace.observe.metrics import Metrics
from millrace.protocol import MillraceError, Refuse
from millrace.protocol.admin.changes import PlanView, StatementView
from millrace.protocol.admin.queries import ExplainView, SharedView, SinkView
from millrace.run.control import difference
from millrace.run.keeper import Keeper
from millrace.run.pause import Pause
from millrace.run.performer import Performer
from millrace.run.planning import Planning
from millrace.run.runner import Runner
from millrace.run.sinks import Sinks
from millrace.run.temporary import Temporaries
from millrace.run.timers import Timers
from millrace.sql import Catalog as Definitions
from millrace.sql import CreateQuery as NewQuery
from millrace.sql import Insert, Inspection, Unchanged, explain, parse, plan_all
from millrace.sql import Planned as Step
from millrace.sql.completion import Completion, complete
from millrace.sql.limits import KNOWN
from millrace.sql.planned import identified, with_id
from millrace.standby.sinkfence import SinkFence
from millrace.store.openings import Opened, abandon
from millrace.store.places import SinkFolders
from millrace.store.restarts import lost_state
from millrace.store.stored import StoredPlans
from millrace.values.batch import Batch

log = structlog.get_logger()

T = TypeVar("T")

# Awaited when it is a change's turn; raises to refuse the change.
Check = Callable[[], Awaitable[None]]

# A text that was refused before its object was known.
SOME: Final = ChangeLabel("statements")
# The characters of a statement in the log: a definition, mostly.
STATEMENT_SHOWN: Final = 1_000
# Changes that depend only on the queries that they mention, and on what these read or share.
ABOUT_QUERIES: Final = (
    *(CreateQuery, DropQuery, RenameQuery, PauseQuery, ResumeQuery, UnshareQuery, SetOrder, SetQueue),
    *(InsertOperator, RemoveOperator, ReplaceOperator),
)
# The author of changes that no client asks for.
SERVER: Final = "the server"


async def _nothing() -> None:
    """The check that accepts everything."""


async def _show_nothing(_: Inspection, told: StatementView) -> StatementView:
    """The view of a catalog without a server."""
    return told


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
        defaults: StreamDefaults,
        folder: Path | None,
        archive: Archive,
        places: SinkFolders,
        fence: SinkFence,
        planning: Planning,
        timers: Timers,
    ) -> None:
        self._planning = planning
        self._engine = engine
        self._runner = runner
        self._metrics = metrics
        self._strategy = strategy
        self._defaults = defaults
        self._archive = archive
        self._inserts = Inserts(engine, runner, feeds)
        self.ledger = Ledger()
        self.writers = Sinks(engine, runner, places, fence)
        self.keeper = Keeper(engine, runner, self.writers, self.ledger, strategy, folder)
        self.temporaries = Temporaries(runner, timers, lambda name: self.change(DropQuery(name=name)))
        self.keeper.temporary = self.temporaries.names
        self.performer = Performer(engine, runner, feeds, metrics, archive, self.writers, self.temporaries)
        self.seams: Callable[[], Mapping[str, Any]] = dict  # those of live queries, as plain data
        self.inspect: Callable[[Inspection, StatementView], Awaitable[StatementView]] = _show_nothing
        self._one_at_a_time = asyncio.Lock()
        self._ending = False

    @property
    def known(self) -> Definitions:
        return self.keeper.definitions

    @property
    def catching(self) -> set[str]:
        """Queries that lack their past yet: they are not saved."""
        return self.keeper.catching_up

    @property
    def state(self) -> ControlState:
        return ControlState(
            self.known,
            self._strategy,
            self._defaults,
            frozenset(self.temporaries.names),
            frozenset(self.catching),
            self._planning.limits,
        )

    # -- statements --------------------------------------------------------------------------------

    def terms(self, *, idempotent: bool, temporary: bool, prune: bool) -> Terms:
        """How the statements of a request are taken."""
        if prune and temporary:
            raise Refuse("prune and temporary contradict each other: remove one", code="invalid_request")
        taken = {*self.known.streams, *self.known.queries}
        return Terms(idempotent, self.temporaries.next_name(taken) if temporary else None, prune)

    async def plan(
        self, sql: str, check: Check = _nothing, terms: Terms = STRICT, caller: Caller = ANYONE
    ) -> tuple[list[StatementView], PlanView]:
        """The outcome of each statement, and of the graph, without applying anything."""
        return await asyncio.shield(asyncio.ensure_future(self._plan_whole(_Request(sql, terms, caller), check)))

    async def _plan_whole(self, request: _Request, check: Check) -> tuple[list[StatementView], PlanView]:
        with self._planning.admitted():
            drafted = await self._draft(request, check)
            async with self._one_at_a_time:
                await check()
                text = await self._settled(request, drafted)
                await self._runner.at_rest()
                self._check_inserts(text)
                plans, outcomes = await self._planned(text)
                effects = [effect for plan in plans for effect in plan.effects]
                for stream in new_streams(effects):
                    self._archive.check(stream)
                await self.writers.open_files(effects, opens=False, known=not self.keeper.loaded)
                return outcomes, await self._foresee(_commands(plans))

    async def _foresee(self, commands: Sequence[CommandBody]) -> PlanView:
        """The effect of commands on the graph. Only the snapshot needs the engine: tuples flow while a shadow is built
        from it and obeys."""
        snapshot = await self._runner.between_steps(lambda: shadow.Snapshot.of(self._engine))
        return await self._planning.run(lambda: shadow.plan(snapshot, commands))

    async def complete(self, sql: str, offset: int, caller: Caller) -> Completion:
        """What can stand at an offset of a text, of what a caller may see."""
        known = self.known if caller.sees_all else visible(caller, self.known)
        with self._planning.admitted():
            return await self._planning.run(lambda: complete(sql, offset, known, self._planning.limits))

    async def last_query(self, sql: str) -> tuple[str, Definitions]:
        """The last query that a text defines, a SELECT too, and the definitions that it would lead to."""
        with self._planning.admitted():
            text = await self._drafted(_Request(sql, self.terms(idempotent=True, temporary=True, prune=False), ANYONE))
        for step, _ in reversed(text.statements):
            if isinstance(step, NewQuery):
                return step.plan.name, text.after.with_(step)
            if isinstance(step, Unchanged) and step.kind == "query":
                return step.name, text.after
        raise Refuse("no statement of this text defines a query", code="no_preview")

    async def execute(
        self,
        sql: str,
        *,
        check: Check = _nothing,
        label: ChangeLabel = SOME,
        terms: Terms = STRICT,
        caller: Caller = ANYONE,
    ) -> list[StatementView]:
        """Plan all statements, then apply all of them or none; the outcome of each.

        Continues if the client disconnects: a half-known change would be worse than one without an answer. `check`,
        here and below, is called when it is this change's turn, and may refuse it. `label` is the subject of the
        statements as far as it is known before they are planned. Statements that the `caller` may not send are refused.
        """
        return await self._admitted(lambda: self._execute(_Request(sql, terms, caller), check, label), [label])

    async def _execute(self, request: _Request, check: Check, label: ChangeLabel) -> list[StatementView]:
        labels = [label]
        drafted = await self._draft(request, check)
        if isinstance(drafted[1], Draft) and drafted[1].inspects:
            return await self._inspected(request, drafted, check)

        async def change() -> list[StatementView]:
            nonlocal labels
            await check()
            text = await self._settled(request, drafted)
            labels = [change.labelled for change in text.changes]
            await self._runner.at_rest()
            batches = self._check_inserts(text)
            plans, outcomes = await self._planned(text)
            if plans:
                await self._try(plans)
                await self._apply(plans, text.after, together=True)
            self.keeper.definitions = text.after
            outcomes = await self._insert(text, outcomes, batches)
            return await self._with_views(text, outcomes)

        return await self._alone(change, lambda: labels)

    async def _inspected(self, request: _Request, drafted: _Drafted, check: Check) -> list[StatementView]:
        """Statements that only read: they wait for no change, and count as none."""
        await check()
        text = await self._settled(request, drafted)
        await self._runner.at_rest()
        return await self._with_views(text, (await self._planned(text))[1])

    async def _draft(self, request: _Request, check: Check) -> _Drafted:
        """A plan over the present definitions, before it is its change's turn: other changes continue meanwhile."""
        known = self.known
        try:
            await check()
        except MillraceError as error:
            return None, error  # by then it may not be refused any more
        try:
            return known, await self._drafted(request)
        except MillraceError as error:
            return known, error

    async def _settled(self, request: _Request, drafted: _Drafted) -> Draft:
        """The plan of the text whose turn it is: its draft, or a new one if something else was changed first."""
        known, found = drafted
        if known is not self.known:
            return await self._drafted(request)
        if isinstance(found, MillraceError):
            raise found
        return found

    async def _drafted(self, request: _Request) -> Draft:
        state = self.state
        return await self._planning.run(lambda: request.draft(state))

    async def _planned(self, text: Draft) -> tuple[list[Planned], list[StatementView]]:
        """The plans of a text's changes, and the outcome of each statement."""
        changes = [(change, step) for step, change in text.statements if change is not None]
        for change, _ in changes:
            self._refuse_on_trial(change)
        state = self.state
        if any(isinstance(change, RenameQuery) for change, _ in changes[:-1]):
            # What follows a new name looks at what the old one stands for.
            snapshot = shadow.Snapshot.of(self._engine)
            plans = await self._planning.run(lambda: _plan_on_shadow(changes, state, snapshot))
        else:
            plans = []
            for change, step in changes:
                plans.append(change.planned(state, step, change.facts(self._engine)))
                state = state.with_(plans[-1].definitions)
        rest = iter(plans)
        outcomes = []
        for drafted in text.statements:
            told = outcome(drafted.step) if drafted.change is None else next(rest).outcome
            assert told is not None, f"{drafted.change} is no statement"
            outcomes.append(told)
        if text.texts is not None:
            outcomes = [
                replace(told, before=before, after=after)
                for told, (before, after) in zip(outcomes, text.texts, strict=True)
            ]
        return plans, outcomes

    async def _with_views(self, text: Draft, outcomes: list[StatementView]) -> list[StatementView]:
        """The views that statements show, after all of them."""
        return [
            await self.inspect(step, told) if isinstance(step, Inspection) else told
            for told, (step, _) in zip(outcomes, text.statements, strict=True)
        ]

    def _check_inserts(self, text: Draft) -> list[Batch]:
        """The tuples of each INSERT; a refusal says which value its stream does not take."""
        batches = []
        for step, _ in text.statements:
            if isinstance(step, Insert):
                stream = text.after.streams.get(step.stream)
                if stream is None:
                    raise Refuse(f"INSERT INTO {step.stream}: the same text drops that stream", code="sql")
                batches.append(self._inserts.check(step, stream))
        return batches

    async def _insert(self, text: Draft, outcomes: list[StatementView], batches: list[Batch]) -> list[StatementView]:
        rest = iter(batches)
        return [
            replace(told, late=await self._inserts.run(step, next(rest))) if isinstance(step, Insert) else told
            for told, (step, _) in zip(outcomes, text.statements, strict=True)
        ]

    # -- changes -----------------------------------------------------------------------------------

    async def change(self, change: Change, check: Check = _nothing) -> Any:
        """Apply one change; the reply of its route."""
        (reply,) = await self.change_all([change], check)
        return reply

    async def change_all(
        self, changes: Sequence[Change], check: Check = _nothing, undoes: int | None = None
    ) -> list[Any]:
        """Apply changes as one: all of them, or none. The reply of each."""
        labels = [change.labelled for change in changes]

        async def turn() -> list[Any]:
            async def whole() -> list[Any]:
                nonlocal labels
                await check()
                if undoes is not None:
                    self.ledger.inverse(self.ledger.find(undoes))  # another client may have undone it meanwhile
                plans = await self._plan_changes(changes, undoes=undoes is not None)
                if len(changes) == 1:  # several have been obeyed by a shadow
                    await self._try(plans)
                labels = [plan.change.labelled for plan in plans]
                answers = await self._apply(plans, plans[-1].definitions, undoes)
                self.keeper.definitions = plans[-1].definitions
                return _replies(plans, answers)

            return await self._alone(whole, lambda: labels)

        if any(map(_is_slow, changes)):
            return await self._admitted(turn, labels)
        return await asyncio.shield(asyncio.ensure_future(turn()))

    async def foresee(self, changes: Sequence[Change], check: Check = _nothing) -> PlanView:
        """The effect of changes on the graph, without applying them."""
        return (await self._foresee_changes(changes, check, undoes=False))[1]

    async def foresee_undo(self, entry: Applied) -> tuple[list[Change], PlanView]:
        """The changes that would undo an applied one, and their effect on the graph."""
        plans, view = await self._foresee_changes(self.ledger.inverse(entry), _nothing, undoes=True)
        return [plan.change for plan in plans], view

    async def _foresee_changes(
        self, changes: Sequence[Change], check: Check, *, undoes: bool
    ) -> tuple[list[Planned], PlanView]:
        with self._planning.admitted():
            async with self._one_at_a_time:
                await check()
                plans = await self._plan_changes(changes, undoes=undoes)
                effects = [effect for plan in plans for effect in plan.effects]
                await self.writers.open_files(effects, opens=False, known=False)
                return plans, await self._foresee(_commands(plans))

    async def _plan_changes(self, changes: Sequence[Change], *, undoes: bool = False) -> list[Planned]:
        """Plan changes, each in the state after those before it: one alone on the engine, several on its shadow. An
        undo leaves out what holds already."""
        await self._runner.at_rest()
        state = self.state
        if len(changes) > 1:
            snapshot = shadow.Snapshot.of(self._engine)
            plans = await self._planning.run(
                lambda: _plan_on_shadow([(change, None) for change in changes], state, snapshot, undoes=undoes)
            )
            for plan in plans:
                self._refuse_on_trial(plan.change)
            return plans
        change = changes[0].resolved(state.definitions)
        if undoes and change.holds(self._engine):
            raise _nothing_left()
        self._refuse_on_trial(change)
        facts = change.facts(self._engine)
        if not _is_slow(change):
            return [change.planned(state, None, facts)]
        plan = await self._planning.run(lambda: change.planned(state, change.step(state), facts))
        await self._runner.at_rest()
        return [plan]

    async def _try(self, plans: Sequence[Planned]) -> None:
        """Refuse what the engine would have to take back, because it is refused after a part of it: a shadow obeys it
        first, while tuples flow."""
        commands = _commands(plans)
        if self._engine.takes_back(commands):
            snapshot = shadow.Snapshot.of(self._engine)
            await self._planning.run(lambda: shadow.check(snapshot, commands))
            await self._runner.at_rest()

    async def undo(self, number: int | None, check: Check = _nothing) -> Applied:
        """Undo an applied change: the newest, or the one of this number. The change that has undone it."""
        entry = self.ledger.find(number)
        await self.change_all(self.ledger.inverse(entry), check, entry.number)
        return self.ledger.find(self.ledger.find(entry.number).undone_by)

    def _entry(self, plans: Sequence[Planned], undoes: int | None) -> Applied | None:
        """The entry of changes in the ledger; None if it does not have them."""
        lasting = [plan for plan in plans if plan.lasting]
        if not lasting:
            return None
        client = logs.client.get() or SERVER
        author = logs.token.get() or client
        return self.ledger.entry(lasting, self.known, self._runner.now_us(), author, undoes, client)

    async def _apply(
        self, plans: Sequence[Planned], after: Definitions, undoes: int | None = None, *, together: bool = False
    ) -> list[Any]:
        """Perform plans, which lead to these definitions: their files, their commands, their effects. The engine's
        answer to each command."""
        effects = [effect for plan in plans for effect in plan.effects]
        commands = _commands(plans)
        files = await self.writers.open_files(effects, opens=True, known=not self.keeper.loaded)
        await self._runner.at_rest()
        self._metrics.count_punctuations()
        entry = self._entry(plans, undoes) if self.keeper.loaded else None
        counts = new_counts(effects)
        read = any(CHANGE_STREAM.name in query.reads_streams for query in after.queries.values())
        row = row_of(entry) if read and entry is not None else None

        def obeyed() -> None:
            """Within the engine's step, before it emits any row of a new query."""
            self.performer.at_once(effects, files, counts)

        try:
            with self._archive.prepared(new_streams(effects)):
                note = self._note(effects, after, entry, counts, files) if self._runner.recorded else None
                if len(commands) == 1 and not together:
                    answers = [await self._command(commands[0], obeyed, note, row)]
                else:
                    answers = await self._command(events.Change(commands), obeyed, note, row)
        except BaseException:
            abandon(files)
            raise
        if entry is not None:
            self.ledger.enter(entry)
        await self.performer.after(effects)
        return answers

    def _note(
        self,
        effects: Sequence[Effect],
        after: Definitions,
        entry: Applied | None,
        counts: Mapping[str, Count],
        files: Mapping[str, Opened],
    ) -> dict[str, Any]:
        """What the journal has of a change in addition to its commands."""
        return {
            "effects": list(effects),
            "counts": {name: list(count) for name, count in counts.items()},
            "archive": self._archive.next_numbers(),
            "positions": {name: opened.file.start() for name, opened in files.items()},
            "definitions": difference(self.known, after),
            "entry": None if entry is None else entry.model_dump_json(),
            **self.undecided(),
        }

    def undecided(self) -> dict[str, Any]:
        """The control state that lasts for a while: a restart ends what it is about."""
        return {
            "catching_up": sorted(self.catching),
            "held": [found.model_dump_json() for found in self.keeper.held.values()],
        }

    async def note_undecided(self) -> None:
        """Have the journal know it."""
        if self._runner.recorded:
            await self._runner.command(events.Change(()), note={**self.undecided(), "seams": self.seams()})

    async def _admitted(self, change: Callable[[], Coroutine[Any, Any, T]], labels: Sequence[ChangeLabel]) -> T:
        """Make a change that needs the planner. It goes on if its client leaves."""

        async def whole() -> T:
            try:
                with self._planning.admitted():
                    return await change()
            except Refuse as error:
                if error.code == "busy":
                    for label in labels:
                        self._tell(label, "refused", error.text)
                raise

        return await asyncio.shield(asyncio.ensure_future(whole()))

    async def _alone(
        self, change: Callable[[], Coroutine[Any, Any, T]], labels: Callable[[], Sequence[ChangeLabel]]
    ) -> T:
        """Make a change when it is its turn, and write down what holds then. Done or refused, it is counted and logged,
        and how long it kept tuples waiting is measured."""

        async def whole() -> T:
            try:
                answer = await change()
            except MillraceError as error:
                for label in labels():
                    self._tell(label, "rolled_back" if error.code == "rolled_back" else "refused", error.text)
                raise
            for label in labels():
                self._tell(label, "done")
            await self.keeper.keep()
            return answer

        async with self._one_at_a_time:
            self._refuse_at_the_end()
            took = self.keeper.took = Pause()
            try:
                return await took.of(whole())
            finally:
                self._metrics.paused(took.seconds)

    def _refuse_at_the_end(self) -> None:
        if self._ending:
            raise Refuse("the server is ending: send this again once it has started again", code="shutting_down")

    def _command(
        self,
        body: CommandBody,
        obeyed: Callable[[], None] | None = None,
        note: Any = None,
        row: tuple[Any, ...] | None = None,
    ) -> asyncio.Future[Any]:
        """Send the engine a command of the current change."""
        return self._runner.command(body, obeyed, self.keeper.took.add, note, row)

    def _tell(self, label: ChangeLabel, result: str, reason: str | None = None) -> None:
        """Count a change, and log it."""
        self._metrics.reconfigured(label.kind, result)
        about = {"change": label.kind, "name": label.name}
        if label.statement is not None:
            about["statement"] = label.statement[:STATEMENT_SHOWN]
        if result == "done":
            log.info("changed", **about)
        elif result == "rolled_back":
            log.error("a change was rolled back", **about, reason=reason)
        else:
            # Mostly a typo, and the client got the whole text: the place in the statement and a caret follow below.
            first_line = None if reason is None else reason.partition("\n")[0]
            log.info("a change was refused", **about, reason=first_line)

    @asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """Between two changes."""
        async with self._one_at_a_time:
            yield

    # -- views -------------------------------------------------------------------------------------

    def sinks(self) -> list[SinkView]:
        return self.writers.views()

    def must_know(self, kind: str, name: str) -> None:
        """Refuse a name that nothing has; there may be one much like it."""
        self.state.must_know(kind, name)

    def refuse_former(self, operator: str) -> None:
        """Refuse the name that an operator had when names were made of kinds, if no other has it now."""
        hint = formerly(operator, self.known.queries)
        if hint and operator not in self._engine.graph.operators:
            raise Refuse(f"operator {operator} does not exist{hint}", code="unknown_operator")

    async def plan_alone(self, sql: str) -> list[Step]:
        """The plans of statements in the present catalog."""
        known = self.known
        with self._planning.admitted():
            steps, _ = await self._planning.run(lambda: plan_all(parse(sql, self._planning.limits), known))
        return steps

    async def explain(self, name: str) -> ExplainView:
        self.must_know("query", name)
        query, known = self.known.queries[name], self.known
        plan = await self._planning.run(lambda: explain(query, known))
        await self._runner.at_rest()
        self.must_know("query", name)
        shared = sharing.told(self._engine, self._engine.query(name))
        indexed = [f"indexed: {line}" for line in views.indexed(self._engine, self._engine.query(name))]
        text = "\n".join([plan, *map(_shared_words, shared), *indexed])
        found = about_queries(self._engine, {name: self.known.queries[name]})
        changed = Decisions(operators=found.operators, joins=found.joins, queues=found.queues).shell()
        if changed:
            text = "\n".join(
                [text, "", "edited while it runs, until it is replaced:", *(f"  {line}" for line in changed)]
            )
        return ExplainView(query=name, text=text, sql=query.sql, shared=shared)

    # -- trials ------------------------------------------------------------------------------------

    async def hold_strategy(self, component: str, check: Check = _nothing) -> ComponentDecisions:
        """Start a trial of the component: until it is decided, its present decisions are saved and exported."""
        async with self._one_at_a_time:
            await check()
            await self._runner.at_rest()
            self._refuse_in_trial(component)
            found = decided_of(self._engine, component)
            assert found is not None
            self.keeper.held[found.first] = found
            await self.note_undecided()
            return found

    async def release_strategy(self, component: ComponentDecisions) -> None:
        """The trial is decided."""
        del self.keeper.held[component.first]
        await self.note_undecided()
        await self.keeper.keep()

    async def try_strategy(self, command: events.SetStrategy) -> None:
        """Set a strategy that is not decided yet."""
        await self.carry_out(ChangeLabel("strategy", command.operator or command.component), [command])

    async def carry_out(self, label: ChangeLabel, commands: Sequence[CommandBody]) -> None:
        """Several commands as one change; the first refusal is raised, after all of them."""

        async def ask() -> None:
            outcomes = await asyncio.gather(*map(self._command, commands), return_exceptions=True)
            for found in outcomes:
                if isinstance(found, BaseException):
                    raise found

        await self._alone(ask, lambda: [label])

    def _refuse_on_trial(self, change: Change) -> None:
        """A trial decides about its component's strategies, and identifies operators by their names."""
        match change:
            case RenameQuery(name=name) if name in self._engine.queries_by_name:
                query = self._engine.query(name)
                self._refuse_in_trial(self._engine.graph.component_of(query.sink).name)
            case SetStrategy(name=name, operator=operator):
                self._refuse_in_trial(name)
                if operator is not None:
                    self.refuse_former(operator)
            case _:
                pass

    def _refuse_in_trial(self, name: str) -> None:
        """Refuse a change of a component while a trial of it runs."""
        table = next((one.table for one in self._engine.graph.components if one.name == name), None)
        if table is None:
            raise Refuse(f"component {name} does not exist", code="unknown_component")
        if next(iter(table)).name in self.keeper.held:
            raise Refuse(
                f"a trial of component {name} is running: wait for its end, or cancel it with "
                f"`millrace strategy trial {name} --cancel`",
                code="trial_running",
            )

    # -- life --------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Apply the statements and the decisions of an earlier run."""
        keeper = self.keeper
        if keeper.store is not None:
            stored, decisions = keeper.read()
            keeper.definitions = Definitions(last_id=stored.last_id)
            places = decisions.places
            self.writers.openings.kept = None if places is None else {place.sink: place.path for place in places}
            plans = StoredPlans(stored, decisions)
            for statement in stored.statements:
                await self._load_statement(keeper.store.path, statement, plans, stored.ids.get(statement, 0))
            await self._decide(named(decisions, self.known.queries, stored.version))
            if stored.statements:
                log.info("restored from the catalog", statements=len(stored.statements))
                self._report_lost_state()
            keeper.loaded = True
            if plans.renewed or not stored.ids.keys() >= set(stored.statements):
                keeper.begin_to_write()
        keeper.loaded = True

    def _report_lost_state(self) -> None:
        now_us = self._runner.now_us()
        for name, query in self._engine.queries_by_name.items():
            meaning = lost_state(query)
            if meaning is not None:
                self.performer.restarted[self._runner.outlets[name].history] = now_us, meaning
                log.warning("restarted without operator state", query=name, meaning=meaning)

    async def _load_statement(self, path: Path, statement: str, plans: StoredPlans, number: int) -> None:
        plan = plans.plan(statement)
        if plan is not None:
            try:
                await self._load_step(NewQuery(with_id(plan, number)), statement)
            except Refuse as error:
                plans.refused(statement, error.text)
            else:
                return
        try:
            text = draft(statement, replace(self.state, limits=KNOWN))
            for step, _ in text.statements:
                renewed = NewQuery(plans.renew(statement, step.plan)) if isinstance(step, NewQuery) else step
                await self._load_step(identified(renewed, number), statement)
        except Refuse as error:
            raise Refuse(
                f"{path} contains a statement that cannot be executed now: {error.text}\n(the statement: {statement})",
                code="start",
            ) from None

    async def _load_step(self, step: Step, statement: str) -> None:
        """Carry out a planned statement of the catalog."""
        change = change_of(step, statement)
        assert change is not None
        plan = change.planned(self.state, step, change.facts(self._engine))
        await self._apply([plan], plan.definitions, together=True)
        self.keeper.definitions = plan.definitions

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
        for found in outcomes:
            if isinstance(found, BaseException):
                log.warning("cannot restore a decision of the catalog", reason=str(found))

    def problems(self) -> list[str]:
        """Unsaved state and sinks that cannot write, for the server's health."""
        return self.keeper.problems() + self.writers.problems()

    def query_failed(self) -> None:
        """A query has failed: save that, so that it does not start again with the server. No client waits for it."""
        self.keeper.begin_to_write()

    async def end_changes(self) -> None:
        """Finish the change in progress; refuse later ones, and those that wait for their turns."""
        self._ending = True
        async with self._one_at_a_time:
            pass

    async def close(self) -> None:
        """Finish every file."""
        await self.writers.close(resumes=self.keeper.store is not None)
        await self.keeper.close()
        self._planning.close()


class _Request(NamedTuple):
    """A text of statements, how they are applied, and who has sent them."""

    sql: str
    terms: Terms
    caller: Caller

    def draft(self, state: ControlState) -> Draft:
        """The plan of the text. A caller who does not see everything gets the errors of what it sees."""
        sql, terms, caller = self
        if terms.prune:
            caller.must(Action.CHANGE, WHOLE)
        elif not caller.sees_all:
            seen = state.with_(visible(caller, state.definitions))
            check_text(caller, draft(sql, seen, terms), state.definitions)
        text = prune(sql, state) if terms.prune else draft(sql, state, terms)
        check_text(caller, text, state.definitions)
        return text


# The plan of a text, or its refusal, in the definitions of that time (None: it was not planned).
_Drafted = tuple[Definitions | None, Draft | MillraceError]


def _is_slow(change: Change) -> bool:
    """Whether a change needs the planner of SQL, which may take long."""
    return type(change).step is not Change.step or isinstance(change, RowChoice)


def _plan_on_shadow(
    changes: Sequence[tuple[Change, Step | None]],
    state: ControlState,
    snapshot: shadow.Snapshot,
    *,
    undoes: bool = False,
) -> list[Planned]:
    """Plan changes on an engine without tuples, which obeys each before the next is planned. Those of a text have their
    step."""
    plans: list[Planned] = []
    with shadow.cast(snapshot, _mentioned([change for change, _ in changes], state.definitions)) as engine:
        for number, (change, given) in enumerate(changes, 1):
            try:
                change = change.resolved(state.definitions)
                if undoes and change.holds(engine):
                    continue
                step = change.step(state) if given is None else given
                plan = change.planned(state, step, change.facts(engine))
                for command in plan.commands:
                    engine.carry_out(command)
            except Refuse as refused:
                if given is not None:
                    raise
                text = f"change {number} of {len(changes)} ({change.action}): {refused.text}"
                raise Refuse(text, code=refused.code) from None
            plans.append(plan)
            state = state.with_(plan.definitions)
    if not plans:
        raise _nothing_left()
    return plans


def _mentioned(changes: Sequence[Change], known: Definitions) -> set[str] | None:
    """The streams and queries whose names are in changes: all that these are about, or read, are among them. None if
    they may depend on any."""
    if not all(isinstance(change, ABOUT_QUERIES) for change in changes):
        return None
    text = "\n".join(text for change in changes for text in _texts(change.record())).lower()
    numbers = {number for change in changes for number in change.ids.values()}  # whatever they are called now
    ids = {name: one.id for name, one in known.streams.items()} | {name: one.id for name, one in known.queries.items()}
    return {name for name, number in ids.items() if number in numbers or name.lower() in text}


def _texts(value: object) -> Iterator[str]:
    """The texts in data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for part in value.values() for text in _texts(part))
    elif isinstance(value, list):
        yield from (text for part in value for text in _texts(part))


def _nothing_left() -> Refuse:
    return Refuse("nothing is left to undo: later changes have undone it", code="undone")


def _commands(plans: Sequence[Planned]) -> tuple[CommandBody, ...]:
    return tuple(command for plan in plans for command in plan.commands)


def _replies(plans: Sequence[Planned], answers: Sequence[Any]) -> list[Any]:
    """The reply of each plan: its own, or the engine's answer to its first command; None if it has neither."""
    replies = []
    at = 0
    for plan in plans:
        replies.append(plan.reply or (answers[at] if plan.commands else None))
        at += len(plan.commands)
    return replies


def new_streams(effects: Sequence[Effect]) -> list[StreamDefinition]:
    """The streams that changes leave, each as the last one that is about it has it."""
    found: dict[str, StreamDefinition] = {}
    for effect in effects:
        match effect:
            case FollowStream(stream) | AlterFeeds(stream):
                found[stream.name] = stream
            case ForgetStream(name):
                found.pop(name, None)
            case _:
                pass
    return list(found.values())


def new_counts(effects: Iterable[Effect]) -> dict[str, Count]:
    """The counts of the rows of each new query, and of each new stream's late tuples."""
    names = []
    for effect in effects:
        match effect:
            case FollowStream(stream) if stream.timestamps == "external":
                names.append(stream.late.name)
            case AddOutlet(query):
                names.append(query.name)
            case _:
                pass
    return {name: Count(new_history()) for name in names}


def _shared_words(found: SharedView) -> str:
    if found.apart is not None:
        return f"not shared: {found.node} is {found.apart}"
    return f"shared: {found.node} is {found.operator}, with {', '.join(found.with_)}"
