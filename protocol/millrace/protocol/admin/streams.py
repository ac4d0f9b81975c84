"""The views of streams, their feeds and their archives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.protocol.admin.data import former

# Fields of a schema: [name, type, nullable].
Columns = Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedView:
    """A feed of a stream. Its credit is what arrived since it last received credit."""

    feed: str
    mark_us: int | None
    tuples: int
    late: int
    broke_promise: int
    credit_used: int
    credit_used_bytes: int
    can_answer: bool
    requested_at_us: int | None
    requested_us: int | None
    requested_group: Mapping[str, Any] | None
    answered_us: int | None
    leaves_at_us: int | None
    broken: int = field(init=False, repr=False, compare=False, metadata=former("broke_promise"))
    owed: int = field(init=False, repr=False, compare=False, metadata=former("credit_used"))
    owed_bytes: int = field(init=False, repr=False, compare=False, metadata=former("credit_used_bytes"))
    leaves_us: int | None = field(init=False, repr=False, compare=False, metadata=former("leaves_at_us"))
    asked_us: int | None = field(init=False, repr=False, compare=False, metadata=former("requested_at_us"))
    asked_need_us: int | None = field(init=False, repr=False, compare=False, metadata=former("requested_us"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group that is ahead of its stream: its mark, and the promises of feeds that it follows from."""

    group: Mapping[str, Any]
    mark_us: int | None
    feeds: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GapView:
    """Rows that an archive lacks after a sequence number."""

    reason: str
    after_seq: int
    from_us: int | None
    found_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveView:
    """How far a stream's archive reaches, and its queued rows."""

    folder: str
    reach_us: int | None
    lag_us: int
    last_seq: int
    since_us: int | None
    rows: int
    late_rows: int
    files: int
    bytes: int
    waiting_rows: int
    waiting_bytes: int
    waiting_us: int
    held: bool
    error: str | None
    errors: int
    gaps: Sequence[GapView]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedView:
    """A stream's archive, once all rows so far are in complete files."""

    stream: str
    archive: ArchiveView


@dataclass(frozen=True, slots=True, kw_only=True)
class DisorderView:
    """A disorder, and how many tuples would have been late with it."""

    disorder_us: int
    late: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LateView:
    """How many of a stream's tuples would have been on time with which disorder.

    since_us    the start of the count: of the span, or when the stream was created or its disorder was changed;
                `until_us` is its end: of the span, or the time of the engine's last step
    progress    with `punctuation`, the disorder makes no difference
    disorders   ascending; the present one (`disorder_us`) is one of them
    queries     those that emit rows later with a larger disorder
    """

    stream: str
    since_us: int | None
    until_us: int
    disorder_us: int
    progress: str
    tuples: int
    disorders: Sequence[DisorderView]
    queries: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """A stream, or the side stream of its late tuples, which has fewer properties.

    The fields with a default are the server's: what its connections, readers and files add to the engine's stream.
    """

    name: str
    fields: Columns
    fingerprint: str
    timestamps: str
    time: str | None
    time_unit: str | None
    update_key: Sequence[str] | None
    punctuation_key: Sequence[str] | None
    disorder_us: int
    max_skew_us: int | None
    progress: str | None
    ets: str | None
    ets_interval_us: int
    ets_retry_us: int
    grace_us: int | None
    ahead_us: int | None
    propagation: str | None
    lull_us: int | None
    history: bool | None
    component: str | None
    tuples: int
    late: int
    late_by_max_us: int
    broke_promise: int
    too_far_ahead: int
    punctuations: int
    punctuations_by_cause: Mapping[str, int]
    mark_us: int | None
    ended: bool
    newest_us: int | None
    groups_ahead: int
    groups: Sequence[GroupView]
    group_promises_ignored: int
    feeds: Sequence[FeedView]
    sql: str | None
    far: int = field(init=False, repr=False, compare=False, metadata=former("too_far_ahead"))
    broken: int = field(init=False, repr=False, compare=False, metadata=former("broke_promise"))
    connections: int = 0
    bytes: int = 0
    rejected: int = 0
    withheld_for: Sequence[str] = ()
    archive: ArchiveView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketView:
    """A part of a histogram: updates that waited less than this, and not less than the bound before."""

    below_us: int
    updates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleKeyView:
    """A key whose newest update has waited for so long."""

    key: Mapping[str, Any]
    stale_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoView:
    """Whether a queue that chooses appends or supersedes, and the load that decided it."""

    mode: str
    load: float
    arrived: float
    capacity: float
    switches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessView:
    """How stale the results of an input's update queue are."""

    operator: str
    input: int
    kind: str
    auto: AutoView | None
    waiting: int
    superseded: int
    paused: bool
    skipped: int
    keys: int
    queue_mean_us: float
    application_mean_us: float
    queue_histogram: Sequence[BucketView]
    application_histogram: Sequence[BucketView]
    oldest_us: int | None
    worst: Sequence[StaleKeyView]
