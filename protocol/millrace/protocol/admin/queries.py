"""The views of queries and sinks, and why a query emits no rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.protocol.admin.data import key, sparse
from millrace.protocol.admin.operators import AggregateView, LinkView
from millrace.protocol.admin.streams import AutoView, Columns


@dataclass(frozen=True, slots=True)
class Why:
    """Why a query emits no rows, or emitted none at a moment of the past (`at_us`). `since` is the start of the wait,
    `held` the tuples that it delays, `try_` a command that would help, `group` the punctuation key of the group that
    has waited the longest, if a promise about it alone would help."""

    text: str
    reason: str
    operator: str | None = None
    input: str | None = None
    stream: str | None = None
    feed: str | None = None
    since: int | None = None
    held: int = 0
    asked: int | None = None
    answered: int | None = None
    group: Mapping[str, Any] | None = None
    try_: str | None = field(default=None, metadata=key("try"))
    at_us: int | None = sparse()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedView:
    """An operator that a query shares with others, or could share: `apart` says why it does not."""

    node: str
    operator: str
    with_: Sequence[str] = field(metadata=key("with"))
    apart: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOrderView:
    """How a join takes and emits rows."""

    order: str
    alpha: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderView:
    """A subscriber that says how often it looks, and at how many keys; None stands for all."""

    reader: str
    refresh_us: int
    keys: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowReaderView:
    """The subscriber or sink that the feeds of a query's streams wait for."""

    kind: str
    name: str
    since_us: int
    rows: int
    bytes: int
    streams: Sequence[str]
    obstacle: str | None
    text: str
    try_: str = field(metadata=key("try"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartedView:
    """When a restored query started again without its state, and the consequence."""

    at_us: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillView:
    """The progress of a query that starts with the history of its streams."""

    query: str
    state: str
    phase: str
    reason: str | None
    rows: int
    of: int
    seam_us: int | None
    given: int
    kept: int
    history_us: int | None
    history_done: bool
    out: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryView:
    """A query. The fields with a default are the server's: its retained rows, its readers and its past."""

    name: str
    fields: Columns
    component: str
    operators: Sequence[str]
    shared: Sequence[SharedView]
    order: str
    joins: Mapping[str, JoinOrderView]
    update_key: Sequence[str] | None
    auto: Mapping[str, str]
    reads: Sequence[ReaderView]
    state: str
    reason: str | None
    rows: int
    skipped: int
    start: str
    ignored: Mapping[str, int]
    lost: int
    state_tuples: int
    max_state: int | None
    progress_us: int | None
    reads_streams: Sequence[str]
    reads_queries: Sequence[str]
    sql: str
    history: str | None = None
    next_sequence: int = 0
    oldest_sequence: int = 0
    retained_tuples: int = 0
    retained_bytes: int = 0
    slow_reader: SlowReaderView | None = None
    subscribers: int = 0
    since_us: int | None = None
    restarted: RestartedView | None = None
    backfill: BackfillView | None = None
    temporary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainView:
    """The plan of a query."""

    query: str
    text: str
    sql: str
    shared: Sequence[SharedView]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredView:
    """An operator in EXPLAIN ANALYZE. Without executions in the last seconds, its selectivity and cost are those of its
    whole life."""

    name: str
    kind: str
    seconds: float | None
    input: float | None
    output: float | None
    selectivity: float | None
    cost_us: float | None
    queue_tuples: int
    idle: float | None
    blocked: bool
    chain: LinkView | None
    state_tuples: int
    state_bytes: int
    aggregate: AggregateView | None
    auto: Sequence[AutoView | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzedView:
    """The plan of a query, and measurements of its operators."""

    query: str
    text: str
    sql: str
    shared: Sequence[SharedView]
    state: str
    reason: str | None
    seconds: float
    operators: Sequence[MeasuredView]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleRowView:
    """A key of which a sink has delivered, or still has, a row of this age."""

    key: Mapping[str, Any]
    age_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessView:
    """What a sink promises of the age of its rows, and how it has kept that."""

    bound_us: int
    breaches: int
    late: int
    last_us: int | None
    worst: Sequence[StaleRowView]
    waiting: int
    waiting_worst: Sequence[StaleRowView]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkView:
    """A sink: `held` rows are queued, `unfinished` rows are not in a complete file yet, `dropped` rows are lost."""

    name: str
    query: str
    history: str | None
    type: str
    path: str | None
    outside: bool
    format: str
    state: str
    reason: str | None
    since_us: int | None
    on_slow: str
    slow_limit: int
    slow_bytes: int
    delivered: int
    held: int
    held_bytes: int
    unfinished: int
    dropped: int
    superseded: int
    freshness: FreshnessView | None
    lag_us: int
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeInputView:
    """An input of a query on the axis of event time: a stream that it reads, also through other queries."""

    stream: str
    mark_us: int | None
    newest_us: int | None
    disorder_us: int
    slack_us: int | None
    late: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowView:
    """A window on the axis of event time; the end is not part of it."""

    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsView:
    """The windows of an operator: `open` are the first of those with tuples that have not been emitted, `open_count` is
    their number. All that end at `closed_us` or before have been emitted. Sessions have a `gap_us`, others a size."""

    operator: str
    size_us: int | None
    slide_us: int | None
    offset_us: int | None
    gap_us: int | None
    closed_us: int | None
    open_count: int
    open: Sequence[WindowView]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTimeView:
    """A query on the axis of event time."""

    query: str
    at_us: int
    inputs: Sequence[TimeInputView]
    windows: Sequence[WindowsView]
