"""The seam between history and the live stream: a query that continues as if it had always run.

Such a query has a gate before each stream that it reads. It is added with its gates closed and nothing kept
(`AddQuery` of a plan that is `gated`). Meanwhile another engine, `Bootstrap`, computes the past: it takes what the
streams took in, in the order of arrival, without the late tuples. When that has nearly reached the present, the gates
start to keep what arrives (`HoldQuery`), and the other engine takes what arrived before. Then the query takes over the
state of its twin there, and the gates open (`AdoptBootstrap`). Arrival decides which tuple goes where, so no query
waits for a watermark: it is as if the query had been saved in one engine and restored in another.

The seam is a time. The twin has promised to emit no more rows earlier than it, so the earlier rows are complete: they
are history's part. Rows at or after it that the twin has emitted already (a plain SELECT emits its rows as they arrive,
however old the mark is) are the first ones of the live query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from millrace.engine.events import (
    AddQuery,
    AddStream,
    AdoptBootstrap,
    Answer,
    Arrived,
    Command,
    CommandBody,
    Deliver,
    Effects,
    Event,
    HoldQuery,
    Late,
    Progressed,
    Punctuated,
    QueryFailed,
    Rejected,
    WatchProgress,
)
from millrace.engine.graph.rewire import pausing
from millrace.engine.plan import CHANGE_STREAM, Node, QueryPlan, StreamDefinition, names
from millrace.engine.queries import Query
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.gate.gate import Gate
from millrace.operators.gate.spec import GateSpec
from millrace.operators.source.source import Clocking
from millrace.protocol import Refuse
from millrace.values.batch import Batch
from millrace.values.eventtime import LAST_WATERMARK, MIN_TIME

if TYPE_CHECKING:
    from millrace.engine.engine import Engine

# Why a query that still lacks its history emits nothing.
CATCHING_UP: Final = "catching up with history"
# The one feed by which the past enters its engine.
FEED: Final = "history"


# -- plans -------------------------------------------------------------------------------------------------------------


def gated(plan: QueryPlan) -> QueryPlan:
    """The plan with a gate before each stream, or why it cannot start with its history."""
    check(plan)
    gates = {stream: f"{plan.name}.gate{number}" for number, stream in enumerate(plan.reads_streams, 1)}
    behind = {f"{stream}.source": gate for stream, gate in gates.items()}
    nodes = [Node(gate, GateSpec(), (source,)) for source, gate in behind.items()]
    nodes += [replace(node, inputs=tuple(behind.get(name, name) for name in node.inputs)) for node in plan.nodes]
    return replace(plan, nodes=tuple(nodes))


def check(plan: QueryPlan) -> None:
    """Refuse a query whose rows depend on more than its streams' tuples."""
    late = [name for name in plan.reads_streams if name.endswith(".late")]
    reason = None
    if plan.reads_queries:
        reason = f"it reads {names(plan.reads_queries)}, which has only rows since its own creation: read its streams "
        "instead"
    elif CHANGE_STREAM.name in plan.reads_streams:
        reason = f"{CHANGE_STREAM.name} has no history: `millrace changes` lists the newest changes"
    elif late:
        reason = (
            f"{late[0]} has no separate archive. Create the query without its history, and compute its past with "
            "`millrace backfill start` without --then-live: late tuples are marked in the history of "
            f"{late[0].removesuffix('.late')}"
        )
    elif any(not node.edge(at).plain for node in plan.nodes for at in range(len(node.inputs))):
        reason = "the rows that LATEST and SHED drop depend on the load of the server"
    if reason is not None:
        raise Refuse(f"query {plan.name} cannot start with its history: {reason}", code="no_past")


def is_gated(plan: QueryPlan) -> bool:
    return any(isinstance(node.spec, GateSpec) for node in plan.nodes)


# -- the live side -----------------------------------------------------------------------------------------------------


def hold(engine: Engine, command: HoldQuery) -> dict[str, Any]:
    """Let the gates queue tuples from now on, and return each stream's mark at this moment; or stop that again, because
    the history is not available."""
    name, query = command.name, engine.query(command.name)
    if not query.catching_up or (query.paused is None) == command.keep:
        reason = "waiting for its history" if command.keep else "buffering live input"
        raise Refuse(f"query {name} is not {reason}", code="not_catching_up" if command.keep else "not_held")
    if not command.keep:
        pausing.leave(engine, query, CATCHING_UP)
        return {"query": name}
    pausing.come_back(engine, query)
    for inlet in engine.entries(query):
        inlet.skipped = 0
    return {"query": name, "marks": {stream: engine.source(stream).mark for stream in query.plan.reads_streams}}


def adopt(engine: Engine, command: AdoptBootstrap) -> dict[str, Any]:
    """Take over the state of the query's twin in the past (None: it has none), and open the gates."""
    from millrace.engine import saving

    name, past = command.name, command.past
    query = engine.query(name)
    if not query.catching_up or query.paused is not None:
        raise Refuse(
            f"query {name} is not waiting for its history, or is not buffering live input yet", code="not_held"
        )
    emitted = 0
    if past is not None:
        saved = saving.unpack(past)
        if saved["version"] != saving.VERSION or saved["plan"] != query.plan:
            raise Refuse(f"query {name}: the state is from another query, or from another version", code="bad_state")
        emitted = _restore(query, saved, engine.clock.now_us)
    for gate in query.gates:
        gate.open()
    engine.graph.rewire()
    return {"query": name, "rows": emitted}


def _restore(query: Query, saved: dict[str, Any], now_us: int) -> int:
    from millrace.engine.saving import restore_state

    for operator in query.operators:
        counts, readers, output, state = saved["operators"][operator.name]
        operator.counts.restore(counts)
        operator.output.restore(output)
        restore_state(operator, state)
        if isinstance(operator, IdleWaiting):
            operator.reset_idle_timer(now_us)  # the past had another clock
        if not isinstance(operator, Gate):
            for reader, data in zip(operator.inputs, readers, strict=True):
                reader.restore(data)
    result = query.sink.inputs[0].arc
    for reader in result.readers:
        reader.move_to_end()
    for operator in query.operators:
        operator.output.release()
    rows = saved["rows"]
    if rows is not None:
        result.put(Batch.restore(rows))
    for reader in result.readers:
        reader.wake()
    return 0 if rows is None else len(rows[1])


# -- the past ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BootstrapState:
    """What a query takes over from its past.

    `seam_us`: all rows earlier than it have been emitted, `given` of them, and will not be emitted again. `state` is
    for AdoptBootstrap; it has the `kept` rows at or after the seam that have been emitted already.
    """

    state: bytes
    seam_us: int
    given: int
    kept: int


class Bootstrap:
    """A query's twin, which processes the history of its streams.

    Tuples arrive in their former order, without those that were late. The caller sets the mark: it passes no earlier
    tuple afterwards.
    """

    def __init__(self, streams: Sequence[StreamDefinition], plan: QueryPlan) -> None:
        from millrace.engine.engine import Engine

        latent = [stream.name for stream in streams if stream.timestamps == "latent"]
        if latent:
            raise Refuse(
                f"query {plan.name} cannot start with its history: the tuples of {names(latent)} get their time only "
                "when an operator needs one",
                code="no_past",
            )
        self.plan = gated(plan)
        self.engine = Engine()
        self._kept: list[Batch] = []
        self._given = 0
        self._now_us = 0
        for stream in streams:
            quiet = replace(stream, ets="none", lull_us=None, max_skew_us=None, ahead_us=None, history=False)
            self._obey(AddStream(quiet))
            # Times and lateness were decided when the tuples arrived, and are not decided again.
            self.engine.source(stream.name).clocking = Clocking("external", by_tuples=False)
        self._obey(AddQuery(self.plan))
        self._obey(HoldQuery(plan.name))
        self._obey(AdoptBootstrap(plan.name, None))
        self._obey(WatchProgress(plan.name))

    @property
    def seam_us(self) -> int:
        """All earlier rows have been emitted. MIN_TIME if none are known to be complete."""
        return self.engine.query(self.plan.name).sink.progress_us

    def take(self, stream: str, batch: Batch, now_us: int) -> None:
        """Tuples on time, in the order of their arrival."""
        self._step([Arrived(stream, FEED, batch)], now_us)

    def promise(self, stream: str, mark_us: int) -> None:
        """No later tuple of the stream is earlier than this."""
        if mark_us > MIN_TIME:
            self._step([Punctuated(stream, FEED, min(mark_us, LAST_WATERMARK))], self._now_us)

    def finish(self) -> BootstrapState:
        """The state after all tuples so far."""
        from millrace.engine import saving

        query = self.engine.query(self.plan.name)
        self._forget()
        rows = Batch.concat(self._kept).save() if self._kept else None
        held = sum(map(len, self._kept))
        state = {
            "version": saving.VERSION,
            "plan": query.plan,
            "operators": {operator.name: saving.save_operator(operator) for operator in query.operators},
            "rows": rows,
        }
        return BootstrapState(saving.pack(state), self.seam_us, self._given - held, held)

    def _obey(self, body: CommandBody) -> None:
        self._step([Command(0, body)], self._now_us)

    def _step(self, events: Sequence[Event], now_us: int) -> None:
        self._now_us = max(self._now_us, now_us)
        effects = self._look(self.engine.step(self._now_us, events))
        while effects.more:
            effects = self._look(self.engine.step(self._now_us))

    def _look(self, effects: Effects) -> Effects:
        for order in effects.orders:
            match order:
                case Deliver(batch=batch):
                    self._given += len(batch)
                    self._kept.append(batch)
                case Progressed():
                    self._forget()
                case Answer(refused=refused) | Rejected(refused=refused) if refused is not None:
                    raise refused
                case QueryFailed(query, reason):
                    raise Refuse(f"query {query} fails on its history: {reason}", code="query_failed")
                case Late(stream):
                    raise AssertionError(f"the history of {stream} violates its own watermark")
                case _:
                    pass
        return effects

    def _forget(self) -> None:
        """The rows earlier than the seam belong to the history."""
        seam = self.seam_us
        left = [batch if batch.ts.min() >= seam else batch.take(batch.ts >= seam) for batch in self._kept if len(batch)]
        self._kept = [batch for batch in left if len(batch)]
