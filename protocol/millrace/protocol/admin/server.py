"""The views of the server itself and of its catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.protocol.admin.data import key, sparse


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardView:
    """Who can reach a port, and what it requires of them."""

    loopback: bool
    tls: bool
    token: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadView:
    """What was read again: how many tokens and certificates the server knows now."""

    tokens: int
    certificates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """A link that logs a browser in, once, until it expires."""

    url: str
    expires_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """A client: `auth` is `off` if the server requires no token; the name and the roles of its token, such as
    `read:board`."""

    auth: str
    name: str | None
    roles: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """The process and its limits; None where there is none, or the system does not say."""

    pid: int
    python: str
    platform: str
    processors: int | None
    open_files: int | None
    open_files_limit: int | None
    open_files_hard_limit: int | None
    memory_limit_bytes: int | None
    libraries: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanEndView:
    """The server before this one was killed or crashed. `replayed` steps led from its last checkpoint to its end; None:
    it had no journal."""

    started_us: int
    seen_us: int
    pid: int
    open_files: Sequence[str]
    found_us: int
    replayed: int | None = None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFullView:
    """The disk of the data directory has had no room for the journal since then."""

    since_us: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """The newest checkpoint: the last step in it, how long it took, and for how long it stopped the event loop. Of its
    `bytes` only `written_bytes` had changed since an earlier one. `made` counts since the start, `followed` those of
    them by another process, and `failures` the others; `steps_since` is how many steps a start would replay."""

    lsn: int | None
    at_us: int | None
    bytes: int
    written_bytes: int = 0
    seconds: float
    pause_seconds: float
    made: int
    followed: int = 0
    failures: int
    error: str | None
    steps_since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryView:
    """The recovery of this start: the steps that it has to replay, and how many it has replayed in which time."""

    steps: int
    replayed: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PastView:
    """The recorded past: how much of it is to be kept, and since when it is there; the checkpoints, and the bytes that
    are there for it alone; and what was removed because the disk was full. Older servers keep none."""

    keep: str = "none"
    from_us: int | None = None
    checkpoints: int = 0
    bytes: int = 0
    dropped_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceView:
    """Operators whose state in a replay of the journal was not the server's after a step (`lsn`)."""

    at_us: int | None
    lsn: int
    operators: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerView:
    """The process that follows the journal, or the reason why there is none; the newest record that it has taken, and
    what it lacks; how many were started, failed, and led to another state, and the latest difference."""

    mode: str = "off"
    running: bool = False
    pid: int | None = None
    reason: str | None = None
    lsn: int | None = None
    lag_steps: int = 0
    lag_seconds: float = 0.0
    starts: int = 0
    failures: int = 0
    differences: int = 0
    difference: DifferenceView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalView:
    """The journal and the checkpoints of a server with a data directory."""

    sync: str
    segments: int
    disk_bytes: int
    oldest_lsn: int
    newest_lsn: int
    waiting_bytes: int
    full: JournalFullView | None
    checkpoint: CheckpointView
    past: PastView = PastView()
    follower: FollowerView = FollowerView()
    recovery: RecoveryView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyView:
    """A standby of this server: its address, the newest record on its disk, how many it lacks, and when it answered
    last. `left`: it lacks more than is kept for it, so it must copy the data directory again."""

    peer: str
    connected: bool
    copying: bool
    lsn: int
    lag_steps: int
    sent_bytes: int
    since_us: int
    heard_us: int | None
    left: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedView:
    """The server that this one follows: whether it is connected, or why not; the newest record on the disk here; the
    newest one that the other server has announced, and by its clock when; how far behind that this server is, in steps,
    tuples and seconds; the records that are on the disk and not replayed; and for how long the other was silent."""

    server: str
    connected: bool
    error: str | None
    lsn: int
    announced_lsn: int | None
    announced_us: int | None
    lag_steps: int
    lag_tuples: int
    lag_seconds: float
    to_replay: int
    silent_seconds: float | None
    received_bytes: int
    connections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionView:
    """A promotion: the last record of the server before, the newest one that it had announced and at which time of its
    clock, and what of that is missing here. It was silent for so long: what it did meanwhile is missing, too."""

    epoch: int
    last_lsn: int
    announced_lsn: int | None
    announced_us: int | None
    missing_steps: int
    missing_tuples: int
    silent_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """The memory of the server: the budget (None: not known), the used bytes, and which part uses them. `stage` is
    the server's reaction: `enough`, `wait` (feeds get no credit), `shed` (rows that may be dropped are dropped) or
    `fail` (the query that grows most fails). `holds`: feeds wait now; `since_us`: memory has been short since then.
    The counts are of this start: rows dropped by kind, the newest failed queries, connections closed for their
    buffers."""

    budget_bytes: int | None
    used_bytes: int
    parts: Mapping[str, int]
    stage: str
    holds: bool
    since_us: int | None
    failed: Sequence[str]
    shed_rows: Mapping[str, int]
    closed_connections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadView:
    """Whether the server has more to do than it can: `mode` is `none`, `wait` (feeds wait), `shed` (rows are dropped)
    or `fail` (queries fail), since `since_us`. `streams` have feeds that wait for credit; `load` is the share of the
    last seconds that the engine worked, and `loop_delay_seconds` the longest time for which sockets had to wait."""

    mode: str
    since_us: int | None
    streams: Sequence[str]
    load: float
    loop_delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """The server. The fields with a default are those that older servers do not send."""

    version: str
    state: str
    listen: str
    listen_tls: bool = False
    admin: str
    now_us: int
    steps: int
    connections: int
    data_dir: str | None
    history_dir: str | None = None
    journal: JournalView | None = None
    epoch: int | None = None
    problems: Sequence[str] = ()
    catalog_error: str | None = None
    unclean_end: UncleanEndView | None = None
    kernels: str | None = None
    clock_held_back_us: int = 0
    listen_guard: GuardView | None = None
    admin_guard: GuardView | None = None
    process: ProcessView | None = None
    standbys: Sequence[StandbyView] = ()
    follows: FollowedView | None = None
    memory: MemoryView | None = None
    overload: OverloadView | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """`code` is the word for programs, `about` the item's name, `try_` the command that would help."""

    code: str
    about: str
    text: str
    try_: str = field(metadata=key("try"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogView:
    """All definitions and decisions, as SQL and as data; `plans` only if they are requested."""

    sql: str
    statements: Sequence[str]
    decisions: Mapping[str, Any]
    commands: Sequence[str]
    plans: Mapping[str, str] | None = sparse()
