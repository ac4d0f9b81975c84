"""Events, which enter the engine by its one door, and effects, which leave it.

Events happened, effects are orders. All are plain frozen data; times are microseconds. A log of the events with the
clock and the budget of each step, from a saved state, replays the engine exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.operators.frame.spec import Spec
from millrace.operators.queues.edge import QueueKind
from millrace.operators.source.source import Judged
from millrace.protocol import Field, Refuse, Schema, Type
from millrace.protocol.admin.operators import LinkView
from millrace.values.batch import Batch, Int64s, constant_column, constant_int64
from millrace.values.functions.tape import Results

# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)  # not frozen: that takes longer for each tuple
class Arrived:
    """Tuples of one feed, in the order in which it sent them. For an external stream `batch.ts` is its time field.

    at_us  when each tuple of an external stream arrived, if they arrived at different times; None: in this step
    wire   the row frames that the tuples came in, for a driver that records them: the engine does not read it
    before_us  the newest time of the feed before each tuple, if other engines take the others (never recorded)
    """

    stream: str
    feed: str
    batch: Batch
    at_us: Int64s | None = None
    wire: Sequence[bytes | memoryview] | None = None
    before_us: Int64s | None = None


@dataclass(frozen=True, slots=True)
class Punctuated:
    """The feed promised to send nothing below this time; with a `group`, nothing with this punctuation key."""

    stream: str
    feed: str
    value_us: int
    group: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Passed:
    """The newest time of a feed, of which other engines take some tuples: all before it have been handed over."""

    stream: str
    feed: str
    newest_us: int


@dataclass(frozen=True, slots=True)
class FeedOpened:
    """A feed joined the stream. It holds the stream's mark where it is until it has moved its own."""

    stream: str
    feed: str
    can_answer: bool = False


@dataclass(frozen=True, slots=True)
class FeedClosed:
    """A feed left.

    `ended` means that the stream itself ends when its last feed has left (files do, connections do not); `lost` that
    the connection broke, so that the feed may come back within the stream's grace.
    """

    stream: str
    feed: str
    ended: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class FeedHeld:
    """Whether the feed may have unread input: then the time that passes does not count as its silence."""

    stream: str
    feed: str
    held: bool


@dataclass(frozen=True, slots=True)
class Heard:
    """All that came before this time has been handed over; without it, all that came before the step's time has."""

    until_us: int


@dataclass(frozen=True, slots=True)
class ClockStepped:
    """The clock jumped: the difference does not count as time in which feeds were silent."""

    by_us: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A feed answered a request for a timestamp; with a `group`, for the tuples with this punctuation key alone."""

    stream: str
    feed: str
    request: int
    value_us: int
    group: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Sequenced:
    """The feed's tuples below this sequence number have been taken or refused: a client need not send them again."""

    stream: str
    feed: str
    next_sequence: int


@dataclass(frozen=True, slots=True)
class HistoryHeld:
    """Whether the stream's history lags too far: while it does, the stream's feeds get no new credit."""

    stream: str
    held: bool


@dataclass(frozen=True, slots=True)
class MemoryHeld:
    """Whether the server's memory is nearly used up: while it is, no feed gets new credit.

    `shed`: queues that supersede only under overload start to, whatever their load is.
    """

    held: bool
    shed: bool = False


@dataclass(frozen=True, slots=True)
class MemoryExceeded:
    """The server's memory is used up, and the driver has chosen this query to free some: it fails."""

    query: str
    reason: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What executions of an operator have cost, read by the driver's stopwatch; counts from this step on."""

    operator: str
    tuples: int
    us: float


@dataclass(frozen=True, slots=True)
class Command:
    """Something an admin wants; `id` comes back with the answer. `row` enters the stream of changes if it is obeyed."""

    id: int
    body: CommandBody
    row: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class AddStream:
    """A new stream, which starts a component. Operators that join a component take its strategy."""

    stream: StreamDefinition
    strategy: str | None = None


@dataclass(frozen=True, slots=True)
class AlterStream:
    """Change policies of a stream (POLICIES of plan.py), add fields, or rename one, while feeds are connected.

    `sql` is the statement that would have created it so; without it the stream keeps the one that it has. `fields` are
    nullable. `texts` are the statements of queries that read the stream, which still read the same fields. `renamed` is
    a field and its new name.
    """

    name: str
    changes: tuple[tuple[str, Any], ...]
    sql: str | None = None
    fields: tuple[Field, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    renamed: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class DropStream:
    name: str


@dataclass(frozen=True, slots=True)
class AddQuery:
    plan: QueryPlan
    strategy: str | None = None


@dataclass(frozen=True, slots=True)
class ReplaceQuery:
    """Another plan for a running query: equal operators keep their state, and the numbers of its rows continue."""

    plan: QueryPlan


@dataclass(frozen=True, slots=True)
class HoldQuery:
    """Let a query that is catching up keep what its streams take in from now on (see seam.py), or not any more."""

    name: str
    keep: bool = True


@dataclass(frozen=True, slots=True)
class AdoptBootstrap:
    """Let it continue from the state that its history led to, or from an empty one."""

    name: str
    past: bytes | None


@dataclass(frozen=True, slots=True)
class RenameQuery:
    """Another name for a running query, and for its operators.

    `texts` are the new statements: of the query, and of the queries that read it.
    """

    name: str
    to: str
    texts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DropQuery:
    name: str


@dataclass(frozen=True, slots=True)
class UnshareQuery:
    """Separate a query from the operators that it shares: of these, or of all. `lasting`: they stay separate,
    even when their states are equal."""

    name: str
    operators: tuple[str, ...] = ()
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class PauseQuery:
    """Detach the query's readers: it takes nothing until it is resumed at the then current end, and counts what it
    skips."""

    name: str
    reason: str = "paused by an admin"


@dataclass(frozen=True, slots=True)
class WithholdCredit:
    """Grant the streams that feed a query (or whose late tuples are read, by the side stream's name) no credit until
    its slow reader has caught up.

    A stream gets credit nevertheless while an operator of another query waits for it with tuples of other streams,
    unless `strict`: then the rows retained for the reader would take too much memory.
    """

    name: str
    withheld: bool = True
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ResumeQuery:
    """Let a paused query continue, or a failed one start again with empty state."""

    name: str


@dataclass(frozen=True, slots=True)
class WatchProgress:
    """Whether the query's punctuation is wanted as Progress effects."""

    name: str
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class SetReads:
    """A reader of the query looks at its rows so often from now on, at all keys or at these values of its update key;
    without an interval it looks no more."""

    name: str
    reader: str
    interval_us: int | None
    keys: tuple[tuple[Any, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class SetStrategy:
    """Re-map the rules of a component, or of one of its operators."""

    component: str
    strategy: str
    operator: str | None = None


@dataclass(frozen=True, slots=True)
class SetBreak:
    """Set or unset a virtual break point at the output of an operator."""

    operator: str
    on: bool


@dataclass(frozen=True, slots=True)
class SetQueue:
    """Exchange the queue of an operator's input while it runs.

    What waits is kept as far as the new kind keeps it. An input that has no update key yet gets that of the stream or
    query that it reads.
    """

    operator: str
    kind: QueueKind
    input: int = 0


@dataclass(frozen=True, slots=True)
class SetWeight:
    """The component's share of the processor against the others'."""

    component: str
    weight: int


@dataclass(frozen=True, slots=True)
class SetOrder:
    """Change the order in which a query's joins take and emit rows, or alpha, while it runs; None changes nothing."""

    query: str
    order: Literal["arrival", "sync", "filter", "adaptive"] | None = None
    alpha: float | None = None


@dataclass(frozen=True, slots=True)
class InsertOperator:
    """Put an operator that leaves rows out in front of an operator's input, until the query is replaced.

    `where` is the predicate as it was written, to be shown. Without a name it gets the next one, and so with its id.
    """

    before: str
    spec: Spec
    input: int = 0
    where: str | None = None
    name: str | None = None
    id: int = 0


@dataclass(frozen=True, slots=True)
class RemoveOperator:
    """Take out an operator that passes rows as they are, or not at all."""

    operator: str


@dataclass(frozen=True, slots=True)
class ReplaceOperator:
    """Let an operator that leaves rows out leave out others."""

    operator: str
    spec: Spec
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Several commands as one, between two executions: all are obeyed in this order, or none is."""

    commands: tuple[CommandBody, ...]


CommandBody = (
    AddStream
    | AlterStream
    | DropStream
    | AddQuery
    | ReplaceQuery
    | HoldQuery
    | AdoptBootstrap
    | RenameQuery
    | DropQuery
    | UnshareQuery
    | PauseQuery
    | WithholdCredit
    | ResumeQuery
    | WatchProgress
    | SetReads
    | SetStrategy
    | SetBreak
    | SetQueue
    | SetWeight
    | SetOrder
    | InsertOperator
    | RemoveOperator
    | ReplaceOperator
    | Change
)
Event = (
    Arrived
    | Punctuated
    | Passed
    | FeedOpened
    | FeedClosed
    | FeedHeld
    | Heard
    | ClockStepped
    | Answered
    | Sequenced
    | HistoryHeld
    | MemoryHeld
    | MemoryExceeded
    | Measured
    | Command
)


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)  # not frozen: that takes longer for each tuple
class Deliver:
    """Rows of a query's result; `sequence` is the number of the first, counted from 0 since the query was created."""

    query: str
    sequence: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class Progressed:
    """The query's result is complete below this time."""

    query: str
    value_us: int


@dataclass(frozen=True, slots=True)
class Late:
    """Tuples that came below their stream's mark: they enter no query. `marks` holds the mark each one met.

    `broken` of them are below what their client itself had promised.
    """

    stream: str
    feed: str
    at_us: int
    batch: Batch
    marks: Int64s
    broken: int = 0

    def told(self, schema: Schema, at_us: int) -> Batch:
        """As rows of the stream's side stream, which has this schema."""
        batch, count = self.batch, len(self.batch)
        at = constant_int64(at_us, count)
        columns = (*batch.columns, self.marks - batch.ts, self.marks, constant_column(Type.TEXT, self.feed, count), at)
        return Batch(schema, at, columns, (*batch.valid, None, None, None, None), at)


@dataclass(frozen=True, slots=True)
class TooFar:
    """Tuples whose time lies further above the clock than the stream allows: refused, counted, and never believed."""

    stream: str
    feed: str
    batch: Batch
    bound_us: int


@dataclass(frozen=True, slots=True)
class ProducerForgotten:
    """The position of a producer that has sent nothing for long is not kept any more: it was this one."""

    stream: str
    feed: str
    next_sequence: int


@dataclass(frozen=True, slots=True)
class Grant:
    """The feed may send so many more tuples."""

    stream: str
    feed: str
    tuples: int


@dataclass(frozen=True, slots=True)
class Archived:
    """Tuples that a stream with history has taken in, late ones too, as they were judged.

    After them `mark_us` is the stream's mark: no tuple that comes later is on time below it.
    """

    stream: str
    feed: str
    judged: Judged
    mark_us: int


@dataclass(frozen=True, slots=True)
class AskTimestamp:
    """Ask the feed for a promise; `need_us` is the least one that lets the blocked operator act.

    A promise about the `group` would do, if one is named: of the groups with this punctuation key the operator has
    waited for the longest.
    """

    stream: str
    feed: str
    request: int
    need_us: int
    group: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class AskEnded:
    """What became of a request for a timestamp, and how long it took."""

    stream: str
    feed: str
    request: int
    outcome: Literal["answered", "below", "timeout", "closed"]
    took_us: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Step the engine again at this time at the latest, even if nothing happens."""

    at_us: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a command: a value to show, or the refusal. A refused command has changed nothing."""

    id: int
    value: Any = None
    refused: Refuse | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """An event that made no sense (an unknown stream, say) and changed nothing."""

    event: Event
    refused: Refuse


@dataclass(frozen=True, slots=True)
class RowsFailed:
    """An operator could not compute some rows (an overflow, a division by zero): they are dropped and counted."""

    operator: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class JoinTurned:
    """A join takes its rows in another way from now on: which, and the numbers that caused it (see Switch)."""

    operator: str
    numbers: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AggregateTurned:
    """An adaptive aggregate keeps new rows in another way from now on: which, and the counts of the pane that caused it
    (see Judged)."""

    operator: str
    numbers: dict[str, Any]


@dataclass(frozen=True, slots=True)
class QueueTurned:
    """The queue of an input appends or supersedes from now on: which, and the load that caused it (see QueueSwitch)."""

    operator: str
    input: int
    numbers: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChainDecided:
    """A component under `chain` has other segments or slopes from now on: by operator, with the numbers; `decisions`
    counts how often that has happened."""

    component: str
    decisions: int
    links: dict[str, LinkView]


@dataclass(frozen=True, slots=True)
class QueryFailed:
    """A query could not continue and has stopped, alone: why, and how many tuples it has lost.

    `detail` is for who has to mend it: where in the code an unexpected error came from.
    """

    query: str
    reason: str
    lost: int
    detail: str = ""


Effect = (
    Deliver
    | Progressed
    | Late
    | TooFar
    | Archived
    | ProducerForgotten
    | Grant
    | AskTimestamp
    | AskEnded
    | WakeAt
    | Answer
    | Rejected
    | RowsFailed
    | JoinTurned
    | AggregateTurned
    | QueueTurned
    | ChainDecided
    | QueryFailed
)


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of an operator, for `--trace`: tuples taken and emitted, which rule chose the next one, and what it
    counts of its state."""

    operator: str
    rule: str
    took: int
    gave: int
    next: str | None
    counts: dict[str, int] | None = None


@dataclass(slots=True)
class Effects:
    """The orders of a step, in order; whether work is left; its executions if the engine traces; and what
    nondeterministic functions returned, if any was called."""

    orders: list[Effect] = field(default_factory=list)
    more: bool = False
    executions: list[Execution] = field(default_factory=list)
    results: Results | None = None
