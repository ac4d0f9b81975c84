"""Trying a strategy: measure, change, measure again, then keep it or go back.

Rule: a trial runs in the server and ends by itself, so its client may disconnect. Until it is decided, the catalog on
disk and every export have the earlier strategy, and no other change of the component's strategy is possible. A
component has one trial at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal

import numpy as np
import structlog

from millrace.changes.change import ChangeLabel
from millrace.changes.decisions import ComponentDecisions, component_names
from millrace.engine import views
from millrace.engine.engine import Engine
from millrace.engine.events import CommandBody, SetStrategy
from millrace.engine.scheduler.table import Strategy
from millrace.engine.sizes import component_bytes
from millrace.observe.conditions import Condition, parse_condition
from millrace.observe.latencies import Latencies
from millrace.observe.rates import Counters, between, goes_on
from millrace.protocol import MillraceError, Refuse
from millrace.protocol.admin.operators import MeasuresView, TrialView
from millrace.run.catalog import Catalog, Check
from millrace.run.runner import Runner
from millrace.values.batch import Batch

log = structlog.get_logger()

# How often queues are looked at: fifty looks are in a second, and each costs a few microseconds an operator.
QUEUE_LOOK_SECONDS: Final = 0.02
# Memory is looked at with each tenth of these looks, because states count their bytes; of queued tuples up to a GiB.
MEMORY_LOOKS: Final = 10
MOST_BYTES: Final = 2**30
# A shorter span would measure the server's own rhythm; a longer one would not end in reasonable time.
SHORTEST_US: Final = 10_000
LONGEST_US: Final = 3_600_000_000


class Meter:
    """Measures one component for a while."""

    def __init__(self, engine: Engine, component: str, now_us: int, counters: Mapping[str, Counters]) -> None:
        found = engine.graph.component(component)
        self.queries = {query.name for query in engine.queries() if query.component == component}
        self._component = found
        self._began_us = now_us
        self._steps = found.steps
        self._before = counters
        self._waits = [operator.name for operator in found.waiters]
        self._sources = [source.name for source in found.sources]
        self._latencies = Latencies()
        self._queues: list[int] = []
        self._bytes: list[int] = []

    def delivered(self, now_us: int, batch: Batch) -> None:
        """Rows left."""
        self._latencies.add(now_us - np.asarray(batch.arrival))

    def look(self) -> None:
        if len(self._queues) % MEMORY_LOOKS == 0:
            self._bytes.append(component_bytes(self._component, MOST_BYTES))
        self._queues.append(self._component.queued())

    def ended(self, now_us: int, counters: Mapping[str, Counters]) -> MeasuresView:
        """The results."""
        us = max(now_us - self._began_us, 1)
        rates = {name: between(self._before[name], after, us) for name, after in counters.items()
                 if name in self._before and goes_on(self._before[name], after)}  # fmt: skip
        waits = [rates[name].idle_most for name in self._waits if name in rates]
        latencies = self._latencies
        p50, p99 = latencies.quantiles_us(50, 99)
        return MeasuresView(
            seconds=us / 1e6,
            rows=latencies.rows,
            mean_us=latencies.mean_us(),
            p50_us=p50,
            p99_us=p99,
            max_us=latencies.most_us if latencies.rows else None,
            queue_mean=float(np.mean(self._queues)) if self._queues else 0.0,
            queue_peak=max(self._queues, default=0),
            memory_mean_bytes=float(np.mean(self._bytes)) if self._bytes else 0.0,
            memory_peak_bytes=max(self._bytes, default=0),
            idle=float(np.mean(waits)) if waits else 0.0,
            steps_per_second=max(self._component.steps - self._steps, 0) / (us / 1e6),
            input_per_second=sum(rates[name].output for name in self._sources if name in rates),
        )


@dataclass(frozen=True, slots=True)
class Wish:
    """The strategy to try, for how long, and when to reject it."""

    component: str
    strategy: str
    operator: str | None
    for_us: int
    before_us: int
    revert_if: str | None = None
    revert: bool = False

    @property
    def condition(self) -> Condition | None:
        return None if self.revert_if is None else parse_condition(self.revert_if)


State = Literal["before", "during", "ended"]
Outcome = Literal["kept", "reverted", "cancelled", "failed"]


@dataclass(slots=True)
class Trial:
    """One trial. `was` has the decisions from before it."""

    wish: Wish
    was: ComponentDecisions
    state: State = "before"
    until_us: int = 0
    before: MeasuresView | None = None
    during: MeasuresView | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    task: asyncio.Task[None] | None = None

    def view(self, now_us: int) -> TrialView:
        wish = self.wish
        left_us = max(self.until_us - now_us, 0)
        if self.state == "before":
            left_us += wish.for_us
        return TrialView(
            component=wish.component,
            strategy=wish.strategy,
            operator=wish.operator,
            for_seconds=wish.for_us / 1e6,
            before_seconds=wish.before_us / 1e6,
            revert_if=wish.revert_if,
            revert=wish.revert,
            previous=self.was.strategy if wish.operator is None else self.was_of(wish.operator),
            state=self.state,
            left_seconds=0.0 if self.state == "ended" else left_us / 1e6,
            before=self.before,
            during=self.during,
            outcome=self.outcome,
            reason=self.reason,
        )

    def was_of(self, operator: str) -> str:
        """The strategy that an operator had before."""
        own = (one.strategy for one in self.was.operators if one.operator == operator)
        return next(own, self.was.strategy)


class Trials:
    """The trials of one server: those that run, and the last one of each component."""

    def __init__(self, engine: Engine, runner: Runner, catalog: Catalog) -> None:
        self._engine = engine
        self._runner = runner
        self._catalog = catalog
        self._trials: dict[str, Trial] = {}
        self._meters: list[Meter] = []

    # -- asked -----------------------------------------------------------------------------------------

    async def begin(self, wish: Wish, check: Check) -> TrialView:
        """Start a trial, or refuse it. This finds every error in the request."""
        Strategy.parse(wish.strategy)
        _ = wish.condition
        for name, us in (("for", wish.for_us), ("before", wish.before_us)):
            if not SHORTEST_US <= us <= LONGEST_US:
                raise Refuse(f"{name}: expected 10 ms to 1 h, got {us / 1e6} s", code="bad_span")
        self._check_operator(wish)
        was = await self._catalog.hold_strategy(wish.component, check)
        trial = self._trials[wish.component] = Trial(wish, was, until_us=self._runner.now_us() + wish.before_us)
        trial.task = asyncio.create_task(self._run(trial), name=f"trial of {wish.component}")
        return trial.view(self._runner.now_us())

    def _check_operator(self, wish: Wish) -> None:
        rows = [operator.name for operator in self._engine.graph.component(wish.component).table]
        if wish.operator is not None and wish.operator not in rows:
            raise Refuse(f"component {wish.component} has no operator {wish.operator}", code="unknown_operator")

    def look(self, component: str) -> TrialView:
        """The component's trial that runs, or its last one."""
        if component not in self._trials:
            raise Refuse(f"component {component} has had no trial", code="unknown_trial")
        return self._trials[component].view(self._runner.now_us())

    def looks(self) -> list[TrialView]:
        """The trials that run, and the last one of each other component."""
        now_us = self._runner.now_us()
        return [trial.view(now_us) for trial in self._trials.values()]

    async def cancel(self, component: str) -> TrialView:
        """End a trial now, and go back."""
        trial = self._trials.get(component)
        if trial is None or trial.state == "ended":
            raise Refuse(f"no trial of component {component} is running", code="unknown_trial")
        await self._stop(trial)
        return trial.view(self._runner.now_us())

    async def close(self) -> None:
        """End every trial, and go back: the server ends."""
        for trial in self._trials.values():
            if trial.state != "ended":
                await self._stop(trial)

    async def _stop(self, trial: Trial) -> None:
        assert trial.task is not None
        trial.task.cancel()
        await asyncio.wait([trial.task])

    def delivered(self, query: str, now_us: int, batch: Batch) -> None:
        """Rows of a query leave the engine."""
        for meter in self._meters:
            if query in meter.queries:
                meter.delivered(now_us, batch)

    # -- one trial -------------------------------------------------------------------------------------

    async def _run(self, trial: Trial) -> None:
        """Whatever happens, the trial ends decided."""
        tried = False
        try:
            trial.before = await self._measure(trial, trial.wish.before_us)
            tried = True
            await self._catalog.try_strategy(self._command(trial))
            trial.state = "during"
            trial.during = await self._measure(trial, trial.wish.for_us)
            reason = self._why_not(trial)
            if reason is None:
                await self._decide(trial, "kept", _why_kept(trial))
            else:
                await self._go_back(trial)
                await self._decide(trial, "reverted", reason)
        except asyncio.CancelledError:
            await self._give_up(trial, tried, "cancelled", "the trial was cancelled")
        except MillraceError as error:
            await self._give_up(trial, tried, "failed", error.text)
        except Exception as error:
            log.error("internal error in a trial", component=trial.wish.component, exc_info=error)
            await self._give_up(trial, tried, "failed", f"internal error ({error!r:.200})")

    async def _give_up(self, trial: Trial, tried: bool, outcome: Outcome, reason: str) -> None:
        if tried:
            with contextlib.suppress(MillraceError):
                await self._go_back(trial)
        await self._decide(trial, outcome, reason)

    async def _decide(self, trial: Trial, outcome: Outcome, reason: str) -> None:
        trial.state, trial.outcome, trial.reason = "ended", outcome, reason
        log.info("a trial ended", component=trial.wish.component, strategy=trial.wish.strategy, outcome=outcome)
        with contextlib.suppress(MillraceError):  # a disk that is full is in the log
            await self._catalog.release_strategy(trial.was)

    def _why_not(self, trial: Trial) -> str | None:
        assert trial.before is not None
        assert trial.during is not None
        if trial.wish.revert:
            return "as requested"
        condition = trial.wish.condition
        return None if condition is None else condition.reason(asdict(trial.before), asdict(trial.during))

    def _component(self, trial: Trial) -> str:
        """The component's present name: it may have merged with an older one."""
        name = component_names(self._engine).get(trial.was.first)
        if name is None:
            raise Refuse(f"component {trial.wish.component} no longer exists", code="unknown_component")
        return name

    def _command(self, trial: Trial) -> SetStrategy:
        return SetStrategy(self._component(trial), trial.wish.strategy, trial.wish.operator)

    async def _go_back(self, trial: Trial) -> None:
        await self._runner.at_rest()
        component = self._component(trial)
        asked = ChangeLabel("strategy", trial.wish.operator or component)
        await self._catalog.carry_out(asked, undo(self._engine, component, trial))

    async def _measure(self, trial: Trial, us: int) -> MeasuresView:
        began_us = self._runner.now_us()
        trial.until_us = began_us + us
        await self._runner.at_rest()
        with self._metering(trial, began_us) as meter:
            while (left_us := trial.until_us - self._runner.now_us()) > 0:
                meter.look()
                await asyncio.sleep(min(QUEUE_LOOK_SECONDS, left_us / 1e6))
                await self._runner.at_rest()
                self._component(trial)
        now_us = self._runner.now_us()
        return meter.ended(now_us, views.counters(self._engine, now_us))

    @contextlib.contextmanager
    def _metering(self, trial: Trial, now_us: int) -> Iterator[Meter]:
        meter = Meter(self._engine, self._component(trial), now_us, views.counters(self._engine, now_us))
        self._meters.append(meter)
        try:
            yield meter
        finally:
            self._meters.remove(meter)


def _why_kept(trial: Trial) -> str:
    if trial.wish.revert_if is None:
        return "as requested"
    assert trial.during is not None
    return "the condition was not met" if trial.during.rows else "no row was emitted, so nothing could be compared"


def undo(engine: Engine, component: str, trial: Trial) -> list[CommandBody]:
    """Commands that restore every operator's strategy, and set the strategy of operators added meanwhile."""
    if trial.wish.operator is not None:
        return [SetStrategy(component, trial.was_of(trial.wish.operator), trial.wish.operator)]
    rows = engine.graph.component(component).table.values()
    tried = Strategy.parse(trial.wish.strategy)
    own = {one.operator: one.strategy for one in trial.was.operators}
    back: list[CommandBody] = [SetStrategy(component, trial.was.strategy)]
    for row in rows:
        strategy = own.get(row.operator.name, trial.was.strategy if row.strategy == tried else str(row.strategy))
        if strategy != trial.was.strategy:
            back.append(SetStrategy(component, strategy, row.operator.name))
    return back
