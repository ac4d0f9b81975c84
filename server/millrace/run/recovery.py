"""Brings a server back: from its newest checkpoint, through the steps that the journal has after it.

Rule: the replayed engine emits the rows that it emitted before, with the same numbers. Files and retained rows take
what they lack and skip the rest, so replaying may start anywhere before the end. Nobody is connected meanwhile.
Afterwards `tidy` ends what belonged to connections, with events that are recorded like any other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog

from millrace.changes.decisions import ComponentDecisions, component_names
from millrace.changes.drop_query import DropQuery
from millrace.changes.drop_sink import DropSink
from millrace.changes.effects import AddOutlet, Effect, FollowStream, OpenSink
from millrace.changes.ledger import Applied
from millrace.engine import credit
from millrace.engine.events import (
    Answer,
    Effects,
    FeedClosed,
    FeedHeld,
    HistoryHeld,
    MemoryHeld,
    SetReads,
    WatchProgress,
    WithholdCredit,
)
from millrace.engine.saving import SavedState, no_array
from millrace.journal.checkpoints import Checkpoint
from millrace.journal.replay import Differs, Replay, Taken
from millrace.journal.segments import Journal
from millrace.journal.steps import Step
from millrace.net.sink import Count
from millrace.protocol import MillraceError, Refuse
from millrace.run.catalog import new_streams
from millrace.run.control import changed, from_data
from millrace.standby.epoch import Epochs
from millrace.values.expression import functions_in
from millrace.values.functions import LIBRARY
from millrace.values.functions.tape import Tape, played

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

log = structlog.get_logger()

# Steps and their events that the worker replays before the loop performs their effects: a few milliseconds of rows.
STEPS: Final = 512
BYTES: Final = 4 * 2**20
# How often the progress is logged.
LOG_SECONDS: Final = 5.0


class RecoveryError(MillraceError):
    """The journal cannot be replayed."""

    code = "recovery"


class RecoveryStopped(MillraceError):  # noqa: N818 - named after the event
    """The server was stopped before it was recovered. The next start does the same work."""

    code = "stopped"


class Recovery:
    """One recovery. `replayed` of `steps` steps are done, with `bytes` of records; `lsn` is the newest record whose
    effects are carried out."""

    def __init__(self, daemon: Daemon, journal: Journal, checkpoint: Checkpoint) -> None:
        self.steps = journal.next_lsn - 1 - checkpoint.lsn
        self.replayed = self.bytes = 0
        self._took = 0.0
        self._daemon = daemon
        self._journal = journal
        self._checkpoint = checkpoint
        self.lsn = self._newest = checkpoint.lsn
        self._records = Replay(daemon.engine)
        self._began = time.monotonic()
        self._done = False

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far."""
        return self._took if self._done else time.monotonic() - self._began

    @property
    def difference(self) -> Differs | None:
        """Where the replayed state first differed from the one that the server had."""
        return self._records.difference

    @property
    def epochs(self) -> Epochs:
        """What the checkpoint and the journal say of promotions."""
        return Epochs.from_data(self._records.epochs or self._checkpoint.control.get("epochs"))

    @property
    def percent(self) -> int:
        return 100 * self.replayed // self.steps if self.steps else 0

    async def run(self) -> None:
        self._daemon.runner.replays = self._daemon.catalog.temporaries.rest = True
        await self._restore()
        await self._replay()
        self._check_functions()
        self._took, self._done = time.monotonic() - self._began, True
        log.info("recovered", checkpoint=self._checkpoint.lsn, steps=self.steps, seconds=round(self.seconds, 3))

    # -- the checkpoint ----------------------------------------------------------------------------

    async def _restore(self) -> None:
        daemon, control = self._daemon, self._checkpoint.control
        try:
            await daemon.runner.between_steps(self._become)
        except Exception as error:
            reason = error.text if isinstance(error, MillraceError) else repr(error)
            raise RecoveryError(
                f"the checkpoint after step {self._checkpoint.lsn} cannot be restored: {reason}; Millrace "
                f"{control['version']} wrote it: start that version, or restore the data directory from a backup"
            ) from error
        self._checkpoint = self._checkpoint._replace(state=SavedState(b"", no_array))
        catalog, keeper = daemon.catalog, daemon.catalog.keeper
        keeper.definitions = from_data(control["definitions"])
        catalog.ledger.load(Applied.model_validate_json(entry) for entry in control["ledger"])
        self._take_undecided(control)
        known = keeper.definitions
        catalog.writers.openings.kept = dict(control["places"])
        effects: list[Effect] = [
            *map(FollowStream, known.streams.values()),
            *(AddOutlet(query, query.name in control["temporary"]) for query in known.queries.values()),
            *(OpenSink(sink, known.queries[sink.query].schema) for sink in known.sinks.values()),
        ]
        daemon.archive.replays_from(control["archive"])
        await self._perform(effects, _counts(control), control["positions"])
        for name, outlet in daemon.runner.outlets.items():
            outlet.since_us = control["since_us"].get(name)

    def _become(self) -> None:
        with played(Tape({})):  # a function that has gone may be needed by the replayed steps alone
            self._daemon.engine.become(self._checkpoint.state)

    async def _perform(
        self, effects: Sequence[Effect], counts: Mapping[str, Count], positions: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """What a change did outside the engine."""
        daemon = self._daemon
        files = await daemon.catalog.writers.open_files(effects, opens=True, known=True)
        with daemon.archive.prepared(new_streams(effects)):
            daemon.catalog.performer.at_once(effects, files, counts, positions)
        await daemon.catalog.performer.after(effects)

    def _take_undecided(self, control: Mapping[str, Any]) -> None:
        keeper = self._daemon.catalog.keeper
        keeper.catching_up = set(control["catching_up"])
        held = map(ComponentDecisions.model_validate_json, control["held"])
        keeper.held = {found.first: found for found in held}
        if "seams" in control:  # most notes have none, and those of earlier versions
            self._daemon.seams.take(control["seams"])

    # -- the journal -------------------------------------------------------------------------------

    async def _replay(self) -> None:
        daemon = self._daemon
        records = self._journal.read(self._checkpoint.lsn + 1) if self.steps else iter(())
        told = time.monotonic()
        try:
            while await self.advance(records):
                if daemon.stopping:
                    raise RecoveryStopped(f"stopped after {self.replayed} of {self.steps} steps were replayed")
                if time.monotonic() - told > LOG_SECONDS:
                    told = time.monotonic()
                    log.info("replaying", percent=self.percent, steps=self.replayed, of=self.steps)
        finally:
            daemon.archive.replays_no_more()
        for outlet in daemon.runner.outlets.values():
            if outlet.log is not None:  # a power cut may have left rows of steps that are lost
                outlet.log.cut(outlet.next_sequence)

    async def advance(self, records: Iterator[tuple[int, bytes]]) -> bool:
        """Replay some of these records; False: there were none. No change and no checkpoint is made meanwhile."""
        async with self._daemon.catalog.at_rest():
            for step, effects in await self._daemon.runner.between_steps(lambda: self._replay_some(records)):
                await self._follow(step, effects)
            before, self.lsn = self.lsn, self._newest
        return self.lsn > before

    def _check_functions(self) -> None:
        """The replay went without functions that have gone, but the queries of now cannot."""
        for name, query in self._daemon.engine.queries_by_name.items():
            gone = [key for key in functions_in(query.plan) if key not in LIBRARY]
            if gone:
                raise RecoveryError(
                    f"query {name}: function {gone[0]} does not exist; is its module configured? Drop or replace the "
                    "query before you remove the function"
                )

    def _replay_some(self, records: Iterator[tuple[int, bytes]]) -> list[tuple[Step, Effects]]:
        """In the worker: some steps, up to one with a change, whose effects outside must precede the next steps."""
        done, size = [], 0
        for lsn, record in records:
            try:
                taken = self._records.take(lsn, record)
                self.replayed, self._newest = self.replayed + 1, lsn
                self.bytes += len(record)
            except Exception as error:
                reason = error.text if isinstance(error, MillraceError) else repr(error)
                text = f"record {lsn} of the journal cannot be replayed: {reason}"
                raise RecoveryError(f"{text}; `millrace journal show --from {lsn} --limit 1` prints it") from error
            if not isinstance(taken, Taken):
                continue
            done.append((taken.step, taken.effects))
            size += len(record)
            if taken.step.note is not None or size > BYTES or len(done) >= STEPS:
                break
        return done

    async def _follow(self, step: Step, effects: Effects) -> None:
        """What the step did outside the engine: first that of its commands, which precede all rows."""
        for number, note in (step.note or {}).items():
            answer = next(one for one in effects.orders if isinstance(one, Answer) and one.id == number)
            if answer.refused is None:
                await self._change(note)
        self._daemon.runner.replayed(step.now_us, effects)

    async def _change(self, note: Mapping[str, Any]) -> None:
        catalog, keeper = self._daemon.catalog, self._daemon.catalog.keeper
        if "definitions" in note:
            new = {stream.name for stream in new_streams(note["effects"])} - self._daemon.archive.next_numbers().keys()
            self._daemon.archive.replays_from({name: at for name, at in note["archive"].items() if name in new})
            await self._perform(note["effects"], _counts(note), note["positions"])
            keeper.definitions = changed(keeper.definitions, note["definitions"])
            if note["entry"] is not None:
                catalog.ledger.enter(Applied.model_validate_json(note["entry"]))
        self._take_undecided(note)

    # -- afterwards --------------------------------------------------------------------------------

    async def tidy(self) -> None:
        """End what belonged to connections, and to work that a restart ends: trials, and queries that read history."""
        daemon = self._daemon
        engine, runner, catalog = daemon.engine, daemon.runner, daemon.catalog
        for name, stream in engine.streams_by_name.items():
            if name in catalog.known.streams:
                daemon.feeds.continue_from(name, stream.producers.positions())
        for name in catalog.known.streams:
            for feed in list(engine.source(name).feeds.by_name):
                runner.submit(FeedHeld(name, feed, False))
                runner.submit(FeedClosed(name, feed, lost=True))
        commands: list[Any] = [
            WatchProgress(name, wanted=False) for name, query in engine.queries_by_name.items() if query.sink.watched
        ]
        commands += [WithholdCredit(name, withheld=False) for name in credit.slow(engine)]
        commands += [SetReads(sink.query, reader, None) for sink, readers in engine.reads.items() for reader in readers]
        if engine.memory_held:
            runner.submit(MemoryHeld(False))
        for name in list(engine.history_held):
            runner.submit(HistoryHeld(name, False))
        names = component_names(engine)
        forks = {operator.name: fork.name for operator, fork in engine.graph.all_forks().items()}
        for component in catalog.keeper.held.values():
            commands += component.strategies(names, forks)
        for command in commands:
            try:
                await runner.command(command)
            except Refuse as refused:
                log.warning("cannot restore a decision of the catalog", reason=refused.text)
        catalog.keeper.held.clear()
        for name in list(catalog.temporaries.names):  # their readers are gone
            await catalog.change(DropQuery(name=name))
        for name in sorted(catalog.keeper.catching_up):
            log.warning("a query was still reading its history: it is dropped, create it again", query=name)
            sinks = [sink.name for sink in catalog.known.sinks.values() if sink.query == name]
            try:
                await catalog.change_all([*(DropSink(name=sink) for sink in sinks), DropQuery(name=name)])
            except Refuse as refused:
                log.warning("a query could not be dropped and emits no rows", query=name, reason=refused.text)
        catalog.keeper.catching_up.clear()
        await catalog.note_undecided()
        runner.press_again()


def _counts(data: Mapping[str, Any]) -> dict[str, Count]:
    return {name: Count(*count) for name, count in data["counts"].items()}
