"""An hour of a server's past through another engine: the recorded steps again, as they were and with a change.

Rule: everything is computed from the records, so two replays of a span have the same result. A row's latency is the
clock of the step that emitted it minus the arrival of its newest tuple. The engine with the change takes the recorded
steps, and more of its own: when it has timers that the other lacks, and when it has work left where the other is done.
Feeds answer requests for timestamps as they were recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.engine.engine import BUDGET, Engine
from millrace.engine.events import Answer, Change, Command, Deliver, Effects, Event, WakeAt
from millrace.journal.past import Past, PastError, Playback
from millrace.journal.replay import Untimed
from millrace.journal.steps import Step
from millrace.protocol import Schema
from millrace.protocol.timestamps import format_timestamp
from millrace.run.measures import DeliveredRows, Meter, RowComparison
from millrace.run.variation import Variation

# The id of the command that changes the second engine: a server's start at 1.
_VARIATION: Final = 0


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay found, as plain data. It is not `faithful` if it contradicts what the server delivered."""

    data: Mapping[str, Any]
    faithful: bool


def replay(
    past: Past, from_us: int, to_us: int, variation: Variation, advanced: Callable[[int], None] = lambda _: None
) -> Replayed:
    """Run a span again. `advanced` is called with the time of each step."""
    playback = past.open(from_us)
    try:
        delivered = DeliveredRows(past.folder, playback)
        for step, effects in playback.steps(from_us):
            delivered.follow(step, effects)
            advanced(step.now_us)
        found = {"from": format_timestamp(from_us), "to": format_timestamp(to_us), "steps": 0}
        if variation.nothing:
            return _verified(playback, to_us, delivered, found, advanced)
        return _compared(playback, (from_us, to_us), variation, found, advanced)
    finally:
        playback.close()


def _verified(
    playback: Playback,
    to_us: int,
    delivered: DeliveredRows,
    found: dict[str, Any],
    advanced: Callable[[int], None],
) -> Replayed:
    """The span as it was, and whether its rows are those that the server delivered."""
    meter = Meter(playback.engine)
    for step, effects in playback.steps(to_us):
        found["steps"] += 1
        meter.stepped(step.events, effects)
        delivered.follow(step, effects)
        delivered.compare(effects)
        advanced(step.now_us)
    meter.look()
    queries = {
        name: {"recorded": query.to_data(), "delivered": delivered.of(name)} for name, query in meter.queries.items()
    }
    streams = {name: {"recorded": counts} for name, counts in meter.streams().items()}
    data = {**found, "streams": streams, "queries": queries, "totals": {"recorded": meter.totals()}}
    return Replayed(data, faithful=not any(query["delivered"]["different"] for query in queries.values()))


def _compared(
    playback: Playback,
    span: tuple[int, int],
    variation: Variation,
    found: dict[str, Any],
    advanced: Callable[[int], None],
) -> Replayed:
    """The span as it was, and with a change."""
    rows: dict[str, RowComparison] = {}
    recorded = Meter(playback.engine)
    changed = ChangedEngine(Engine.restore(playback.engine.save(), stopwatch=Untimed()), variation, rows)
    changed.apply(span[0])
    for step, effects in playback.steps(span[1]):
        found["steps"] += 1
        recorded.stepped(step.events, effects)
        _add(rows, 0, playback.engine, effects)
        changed.follow(step, effects)
        advanced(step.now_us)
    changed.wait(span[1] + 1)
    meters = {"recorded": recorded, "changed": changed.meter}
    for meter in meters.values():
        meter.look()
    queries: dict[str, Any] = {}
    for name in dict.fromkeys([*recorded.queries, *changed.meter.queries]):
        sides = {side: meter.queries[name] for side, meter in meters.items() if name in meter.queries}
        queries[name] = {side: query.to_data() for side, query in sides.items()}
        if len(sides) == len(meters):
            queries[name]["rows"] = rows.get(name, RowComparison(Schema(()), None)).to_data()
    streams: dict[str, dict[str, Any]] = {}
    for side, meter in meters.items():
        for name, counts in meter.streams().items():
            streams.setdefault(name, {})[side] = counts
    totals = {side: meter.totals() for side, meter in meters.items()}
    data = {**found, "streams": streams, "queries": queries, "totals": totals, "refused": changed.refusals}
    return Replayed(data, faithful=True)


def _add(rows: dict[str, RowComparison], side: int, engine: Engine, effects: Effects) -> None:
    """The rows of a step, for the comparison of both engines."""
    for order in effects.orders:
        if isinstance(order, Deliver) and len(order.batch.ts):
            if order.query not in rows:
                rows[order.query] = RowComparison(order.batch.schema, _key(engine, order.query))
            rows[order.query].add(side, order.batch)


def _key(engine: Engine, query: str) -> list[int] | None:
    """The positions of the update key in a query's rows."""
    plan = engine.queries_by_name[query].plan if query in engine.queries_by_name else None
    return None if plan is None or plan.update_key is None else [*map(plan.schema.names.index, plan.update_key)]


class ChangedEngine:
    """The engine with the change, from the beginning of the span.

    refusals   recorded changes that it could not obey: the reasons
    """

    def __init__(self, engine: Engine, variation: Variation, rows: dict[str, RowComparison]) -> None:
        self.engine = engine
        self.meter = Meter(engine)
        self.refusals: list[str] = []
        self._variation = variation
        self._rows = rows
        self._wake_us: int | None = None
        self._more = False

    def apply(self, now_us: int) -> None:
        """Change it."""
        commands = tuple(self._variation.commands(self.engine))
        effects = self._step(now_us, [Command(_VARIATION, Change(commands))], 0)
        for order in effects.orders:
            if isinstance(order, Answer) and order.id == _VARIATION and order.refused is not None:
                raise order.refused

    def follow(self, step: Step, effects: Effects) -> None:
        """Take a recorded step, which had these effects."""
        self.wait(step.now_us)
        its = self._step(step.now_us, self._variation.adapted(step.events), step.budget)
        obeyed = {order.id for order in effects.orders if isinstance(order, Answer) and order.refused is None}
        for order in its.orders:
            if isinstance(order, Answer) and order.id in obeyed and order.refused is not None:
                self.refusals.append(order.refused.text)
        while self._more and not effects.more:
            self._step(step.now_us, (), step.budget)

    def wait(self, until_us: int) -> None:
        """Its timers before this moment."""
        while self._wake_us is not None and self._wake_us < until_us:
            self._step(self._wake_us, (), BUDGET)

    def _step(self, now_us: int, events: Sequence[Event], budget: int) -> Effects:
        try:
            effects = self.engine.step(now_us, events, budget=budget)
        except Exception as error:
            raise PastError(f"the engine with the change failed at {format_timestamp(now_us)}: {error!r}") from error
        self._more = effects.more
        self._wake_us = next((order.at_us for order in reversed(effects.orders) if isinstance(order, WakeAt)), None)
        self.meter.stepped(events, effects)
        _add(self._rows, 1, self.engine, effects)
        return effects
