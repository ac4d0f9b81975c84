"""Keeps a catalog: what holds now, as statements and decisions; its file; and how a server starts from it.

Rule: after each change everything is written down, if there is a folder. A write that fails is logged once, shown by
`problems`, and tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import ValidationError

from millrace.changes.decisions import (
    ComponentDecisions,
    Decisions,
    KeptPlace,
    about_queries,
    apart,
    decided,
    written,
)
from millrace.changes.ledger import Applied, Ledger
from millrace.engine.engine import Engine
from millrace.engine.plan import QueryPlan
from millrace.protocol import MillraceError
from millrace.protocol.admin.server import CatalogView
from millrace.run.config import CATALOG
from millrace.run.pause import Pause
from millrace.run.runner import Runner
from millrace.run.sinks import Sinks
from millrace.sql import Catalog as Definitions
from millrace.sql.planned import KINDS
from millrace.store.catalog import CatalogFile, Stored, StoreError
from millrace.store.stored import PlanTexts

log = structlog.get_logger()

# Of the decisions, for the disk alone.
_INTERNAL: Final[dict[str, Any]] = {"places": True, "operators": {"__all__": {"id"}}}


class Keeper:
    """The catalog of one server, as it is kept.

    definitions  as they are, or as the change in progress will leave them once the engine has obeyed
    temporary    the queries that end with their readers, and `catching_up` those that have yet to get their past:
                 neither are kept
    held         by first operator, the components of trials, as they were before
    loaded       before that, the present state must not be saved
    error        why the newest state is not on the disk
    """

    def __init__(
        self, engine: Engine, runner: Runner, sinks: Sinks, ledger: Ledger, strategy: str, folder: Path | None
    ) -> None:
        self.definitions = Definitions()
        self.temporary: Mapping[str, Any] = {}
        self.catching_up: set[str] = set()
        self.held: dict[str, ComponentDecisions] = {}
        self.loaded = False
        self.error: str | None = None
        self.took = Pause()  # of the change whose turn it is
        self.store: CatalogFile | None = None
        self._folder = folder
        self._engine = engine
        self._runner = runner
        self._sinks = sinks
        self._ledger = ledger
        self._strategy = strategy
        self._plan_texts = PlanTexts()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="catalog")  # a disk may take its time
        self._writing: asyncio.Task[None] | None = None

    # -- what holds --------------------------------------------------------------------------------

    def decisions(self, definitions: Definitions | None = None) -> Decisions:
        """The admins' decisions beyond statements, about the present definitions or those given."""
        known = self.definitions if definitions is None else definitions
        temporary = self.temporary
        lasting = {name: plan for name, plan in known.queries.items() if name not in temporary}
        return Decisions(
            apart=apart(self._engine),
            # By name: the order of the graph is another one after a restart.
            components=tuple(
                self._settled(found)
                for found in sorted(decided(self._engine), key=attrgetter("component"))
                if _outlasts(found, known)
            ),
            places=tuple(KeptPlace(sink=name, path=path) for name, path in self._sinks.kept_places()),
            **about_queries(self._engine, lasting)._asdict(),
        )

    def _settled(self, component: ComponentDecisions) -> ComponentDecisions:
        """The decisions about a component, without a strategy on trial."""
        held = self.held.get(component.first)
        if held is None:
            return component
        return component.model_copy(update={"strategy": held.strategy, "operators": held.operators})

    def statements(self, definitions: Definitions | None = None) -> list[str]:
        """What makes everything again, in an order in which it can be applied; not queries that have yet to get their
        past, nor who reads them."""
        known = self.definitions if definitions is None else definitions
        return _statements(known, {*self.catching_up, *self.temporary})

    def export(self) -> CatalogView:
        """The catalog as SQL that can be applied to an empty server; what SQL does not say as comments."""
        known, decisions = self.definitions, self.decisions()
        statements = self.statements()
        commands = decisions.model_copy(
            update={"components": tuple(one for one in decisions.components if self._worth_telling(one, known))}
        ).shell()
        parts = [f"{statement}\n;" if "--" in statement.rpartition("\n")[2] else f"{statement};"
                 for statement in statements]  # fmt: skip
        if commands:
            parts.append(
                "\n".join(["-- Decisions that SQL does not express:", *(f"-- {command}" for command in commands)])
            )
        sql = "".join(f"{part}\n\n" for part in parts)[:-1]
        return CatalogView(sql=sql, statements=statements, decisions=_as_data(decisions), commands=commands)

    def decided(self) -> dict[str, Any]:
        """The part of `export` that its tag covers."""
        return {"statements": self.statements(), "decisions": _as_data(self.decisions())}

    def _worth_telling(self, component: ComponentDecisions, known: Definitions) -> bool:
        """Whether a user has decided something: otherwise a side stream, which no user creates, has the defaults."""
        own = component.strategy != self._strategy or component.weight != 1 or component.operators or component.breaks
        return bool(own) or component.component in known.streams

    async def plans(self) -> dict[str, str]:
        """The text of each query's plan, as it was created, by its statement."""
        queries, running = self.definitions.queries, await self._runner.between_steps(self._running)
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._plan_texts.of, queries, running)

    def _running(self) -> dict[str, QueryPlan]:
        return {name: query.plan for name, query in self._engine.queries_by_name.items()}

    # -- the file ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Lock the file for this server; StoreError if that is not possible."""
        if self._folder is not None:
            self.store = CatalogFile(self._folder / CATALOG)

    def read(self) -> tuple[Stored, Decisions]:
        """The file's contents, of which the ledger gets its part."""
        assert self.store is not None
        stored = self.store.read()
        self._ledger.load(self._parsed(Applied, text, "the changes") for text in stored.changes)
        self._ledger.dirty.clear()
        decisions = Decisions() if stored.decisions is None else self._parsed(Decisions, stored.decisions, "decisions")
        return stored, decisions

    def _parsed(self, model: Any, document: str, subject: str) -> Any:
        try:
            return model.model_validate_json(document)
        except ValidationError as error:
            assert self.store is not None
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise StoreError(
                f"cannot read the {subject} in the catalog {self.store.path}: {where}: {first['msg']}"
            ) from None

    def recovered(self) -> None:
        """The state came from the journal: the file, of whatever state it is, follows it from now on."""
        if self.store is not None:
            self.store.read()
        self.loaded = True
        self.begin_to_write()

    async def keep(self) -> None:
        """Write down what holds now; it has been written when this returns."""
        writing = self.begin_to_write()
        if writing is None:
            return
        try:
            await asyncio.shield(writing)
        except StoreError as error:
            text = f"the change is in effect, but is lost when the server ends: {error.text}"
            raise StoreError(text) from None

    def begin_to_write(self) -> asyncio.Task[None] | None:
        """Save the present state, after earlier writes."""
        if self.store is None or not self.loaded:
            return None
        writing = self._writing = asyncio.create_task(self._write(self.store), name="catalog")
        writing.add_done_callback(self._written)
        return writing

    async def _write(self, store: CatalogFile) -> None:
        known = self.definitions
        unwritten = {*self.catching_up, *self.temporary}
        running, decisions = await self._runner.between_steps(
            lambda: (self._running(), self.decisions(known)), self.took.add
        )
        entries = self._ledger.unwritten()

        def write() -> None:
            statements = _statements(known, unwritten)
            texts = self._plan_texts.of(known.queries, running)
            plans = {sql: texts[sql] for sql in statements if sql in texts}
            changes = {entry.number: entry.model_dump_json() for entry in entries}
            numbers = {one.sql: one.id for kind in KINDS for one in getattr(known, kind).values()}
            ids = {sql: numbers[sql] for sql in statements}
            store.write(statements, plans, written(decisions, running), changes, ids, known.last_id)

        await asyncio.get_running_loop().run_in_executor(self._writer, write)
        self._ledger.dirty.difference_update(entry.number for entry in entries)

    def _written(self, writing: asyncio.Task[None]) -> None:
        """Record whether the newest state is on the disk, and log when that changes."""
        if writing.cancelled():
            return
        error = writing.exception()
        if isinstance(error, MillraceError):
            if self.error is None:
                log.error("the catalog cannot be written", reason=error.text)
            self.error = error.text
        elif error is None and self.error is not None:
            self.error = None
            log.info("the catalog can be written again")

    def write_again(self) -> None:
        """Retry a failed write after a pause."""
        if self.error is not None and self._writing is not None and self._writing.done():
            self.begin_to_write()

    def problems(self) -> list[str]:
        """Unsaved state, for the server's health."""
        return [] if self.error is None else [f"{self.error}; later changes are lost at the next start"]

    async def close(self) -> None:
        store, self.store = self.store, None
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if store is not None:
            await asyncio.get_running_loop().run_in_executor(self._writer, store.close)
        self._writer.shutdown(wait=False)


def _outlasts(component: ComponentDecisions, known: Definitions) -> bool:
    """Whether a component exists after a restart: a side stream without readers does not."""
    stream = component.first.removesuffix(".source")
    return stream in known.streams or any(stream in query.reads_streams for query in known.queries.values())


def _as_data(decisions: Decisions) -> dict[str, Any]:
    return decisions.model_dump(mode="json", exclude=_INTERNAL)


def _statements(known: Definitions, unwritten: Collection[str]) -> list[str]:
    kept: dict[str, str] = {}
    for query in _readers_last(known.queries):
        if query.name not in unwritten and all(name in kept for name in query.reads_queries):
            kept[query.name] = query.sql
    return [
        *(stream.sql for stream in known.streams.values()),
        *kept.values(),
        *(sink.sql for sink in known.sinks.values() if sink.query in kept),
    ]


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
