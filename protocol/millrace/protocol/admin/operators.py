"""The views of operators, components and their state tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millrace.protocol.admin.data import former, key, sparse
from millrace.protocol.admin.streams import AutoView


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """What the strategy `chain` has decided of an operator, and from which numbers."""

    slope: float
    selectivity: float
    cost_us: float
    segment: str
    break_: bool = field(metadata=key("break"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesView:
    """The pages of a queue."""

    taken: int
    free: int
    returned: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """The separate queue of an input."""

    kind: str
    key: Sequence[str]
    commit: str | None
    shed_above: int | None
    waiting: int
    superseded: int
    shed: int
    keys: int
    pages: PagesView
    oldest_us: int | None
    queue_staleness_us: float
    application_staleness_us: float
    auto: AutoView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputView:
    """An input of an operator."""

    from_: str = field(metadata=key("from"))
    queue_tuples: int
    peak_queue_tuples: int
    skipped: int
    idle_wait_us: int
    register_us: int | None
    queue: QueueView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchView:
    """A change of a join's mode: when (event time), to what, and the numbers that caused it."""

    at_us: int
    mode: str
    cost_us: float
    window_s: float
    rates: Sequence[float]
    value: float
    alpha: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinView:
    """The order of a join, its measurements, and the predictions from them: response times (equations 3 and 5 of NILE)
    and the gain of ordering its results (7). `value` is compared with `alpha`."""

    order: str
    mode: str
    rates: Sequence[float]
    cost_us: float
    window_s: float
    value: float
    alpha: float
    gain: float
    sync_response_s: float | None
    filter_response_s: float | None
    held_rows: int
    closed_rows: int
    switches: int
    last_switches: Sequence[SwitchView]


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateView:
    """How an aggregate keeps open windows: the counts of the last complete pane, and those of its table if that is
    bounded."""

    keeps: str
    adaptive: bool
    changes: int | None = sparse()
    last_tuples: int | None = sparse()
    last_groups: int | None = sparse()
    last_rows_bytes: int | None = sparse()
    last_groups_bytes: int | None = sparse()
    slots: int | None = sparse()
    partials: int | None = sparse()
    table_bytes: int | None = sparse()
    table_tuples: int | None = sparse()
    evicted: int | None = sparse()
    flushed: int | None = sparse()
    buffered_tuples: int | None = sparse()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorView:
    """An operator with its counters; `join` and `aggregate` depend on its kind."""

    name: str
    kind: str
    queries: Sequence[str]
    component: str
    strategy: str | None
    break_: str | None = field(metadata=key("break"))
    chain: LinkView | None
    reads: Sequence[str]
    queues: Sequence[str]
    input_tuples: int
    output_tuples: int
    executions: int
    superseded: int
    shed: int
    inserted: bool
    where: str | None
    sample: float | None
    filtered: int
    errors: int
    last_error: str | None
    busy_us: float
    inputs: Sequence[InputView]
    waits: bool
    blocked: bool
    state_tuples: int
    state_bytes: int
    join: JoinView | None
    aggregate: AggregateView | None
    low_water_us: int | None
    left_out: int = field(init=False, repr=False, compare=False, metadata=former("filtered"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainedView:
    """An operator's link in the decisions of `chain`."""

    operator: str
    slope: float
    selectivity: float
    cost_us: float
    segment: str
    break_: bool = field(metadata=key("break"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainView:
    """What `chain` has decided of a component, the steepest operators first."""

    decisions: int
    operators: Sequence[ChainedView]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInputView:
    """An input of one of a component's operators."""

    operator: str
    from_: str = field(metadata=key("from"))
    queue_tuples: int
    peak_queue_tuples: int
    skipped: int
    idle_wait_us: int
    register_us: int | None
    queue: QueueView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentView:
    """A connected set of operators with one scheduler. The server adds `inputs`."""

    name: str
    strategy: str
    strategies: Mapping[str, str]
    weight: int
    steps: int
    queued: int
    queued_bytes: int
    ready: bool
    chain: ChainView | None
    operators: Sequence[str]
    breaks: Mapping[str, str]
    inputs: Sequence[MemberInputView] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RateView:
    """The work of an operator over `seconds`.

    selectivity   tuples out for each tuple in; None without input
    cost_us       microseconds for each tuple in; None likewise
    idle          per input, the share of the time for which it held tuples of others back
    """

    seconds: float
    input: float
    output: float
    executions: float
    selectivity: float | None
    cost_us: float | None
    busy: float
    idle: Sequence[float]

    @property
    def idle_most(self) -> float:
        """The share of the time in which the operator waited for some input."""
        return max(self.idle, default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """An operator in a component's graph."""

    name: str
    kind: str
    queries: Sequence[str]
    strategy: str | None
    break_: str | None = field(metadata=key("break"))
    blocked: bool
    state_tuples: int
    rate: RateView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArcView:
    """An arc of a component's graph. Without a queue it leads to a fork."""

    from_: str = field(metadata=key("from"))
    to: str
    queue_tuples: int | None
    idle_wait_us: int | None
    break_: str | None = field(metadata=key("break"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    """A component's graph."""

    component: str
    strategy: str
    weight: int
    operators: Sequence[NodeView]
    arcs: Sequence[ArcView]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """An operator's row in the state table."""

    state: str
    pred: Sequence[str]
    succ: Sequence[str]
    transition: str
    chain: LinkView | None = sparse()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """The state table of a component's scheduler: its rows, and the moves of each transition, in order."""

    rows: Sequence[RowView]
    rules: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawingView:
    """A component's graph as text."""

    component: str
    format: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyView:
    """The strategy of a component, and of each of its operators."""

    component: str
    strategy: str
    operators: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuresView:
    """The measures of a span. Latency is delivery minus the arrival of the newest tuple in the row.

    idle    the share of the time in which operators that can wait did, on average
    memory  of the queued tuples and the operators' states
    """

    seconds: float
    rows: float
    mean_us: float | None
    p50_us: float | None
    p99_us: float | None
    max_us: float | None
    queue_mean: float
    queue_peak: float
    memory_mean_bytes: float
    memory_peak_bytes: float
    idle: float
    steps_per_second: float
    input_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """A trial of a strategy: what was measured before and during it, and its outcome."""

    component: str
    strategy: str
    operator: str | None
    for_seconds: float
    before_seconds: float
    revert_if: str | None
    revert: bool
    previous: str
    state: str
    left_seconds: float
    before: MeasuresView | None
    during: MeasuresView | None
    outcome: str | None
    reason: str | None
    was: str = field(init=False, repr=False, compare=False, metadata=former("previous"))
