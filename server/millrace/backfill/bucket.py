"""A bucket of a live job: one engine over the keys whose hash falls into it.

Rule: only the engine decides what a query means, and which tuple is late. A bucket restores the state of the epoch
before, hands over what has been read since, and saves: the same parcels always make the same rows and the same bytes.
Parts are feeds, judged one after the other in the order of their names. An epoch is one step of the engine, at the
epoch's time.

A state holds what operators keep, and nothing of the plan, which a job has once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any, Final, Literal

from millrace.backfill.columns import used_columns
from millrace.backfill.flow import Flow, flow_of
from millrace.backfill.keys import Keys, keys_of
from millrace.backfill.layout import Lane, batch_of
from millrace.backfill.parts import BEFORE, Parcel
from millrace.engine import saving
from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Arrived,
    Command,
    CommandBody,
    Deliver,
    DropQuery,
    Effect,
    Event,
    Execution,
    FeedClosed,
    FeedOpened,
    Late,
    Passed,
    Punctuated,
    QueryFailed,
    ReplaceQuery,
    RowsFailed,
    TooFar,
)
from millrace.engine.plan import StreamDefinition
from millrace.engine.plan import names as listed
from millrace.offline.driver import Driver, Instant, Time
from millrace.operators.frame.inlet import Inlet
from millrace.operators.queues.inlet import QueueInlet
from millrace.protocol import Refuse, Schema
from millrace.sql import Catalog
from millrace.values import expression as e
from millrace.values.batch import Batch

How = Literal["key", "spread", "one"]

# The only feed of a stream of late tuples.
LATE_FEED: Final = "late"
# Of the form of a bucket's state and of its parcels.
VERSION: Final = 1


@dataclass(frozen=True)
class Group:
    """Queries that share a key, and so the buckets.

    buckets  how many; none: all of its queries have been dropped
    how    by key; spread: any row may go anywhere; one: all rows must meet
    keys   by stream, the key of its rows
    reason   why it is divided so, in words
    begun  its flow when its job started, if it has changed since
    past   the commands that have changed it since
    """

    flow: Flow
    buckets: int
    how: How
    reason: str
    keys: Mapping[str, tuple[e.Expression, ...]] = field(default_factory=dict)
    begun: Flow | None = None
    past: tuple[CommandBody, ...] = ()

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """What travels of each stream that clients feed. Late tuples travel as tuples: the bucket finds them late."""
        flow = self.flow
        positions: dict[str, set[int]] = {}
        for name, used in used_columns(flow).items():
            origin = flow.catalog.streams[name.removesuffix(".late")]
            own = positions.setdefault(origin.name, set())
            # A row of a side stream has all columns of its tuple.
            own.update(range(len(origin.schema)) if name != origin.name else used)
        lanes = []
        for name, places in positions.items():
            stream = flow.catalog.streams[name]
            lanes.append(Lane(stream, tuple(sorted(places - {stream.time_position}))))
        return tuple(lanes)

    @property
    def names(self) -> tuple[str, ...]:
        """The queries that it runs."""
        return self.flow.names if self.buckets else ()

    @property
    def schemas(self) -> Mapping[str, Schema]:
        """By query, the columns of its rows."""
        return {name: self.flow.catalog.queries[name].schema for name in self.flow.names}

    @cached_property
    def fingerprint(self) -> str:
        """Of all that a state depends on: states of another plan, key or number of buckets are not continued."""
        catalog = (self.begun or self.flow).catalog
        definitions = [*catalog.streams.values(), *catalog.queries.values()]
        keys = [[name, list(key)] for name, key in sorted(self.keys.items())]
        past = [[type(command).__name__, *_values(command)] for command in self.past]
        names = list(self.flow.names)
        whole = saving.pack([VERSION, saving.VERSION, self.buckets, self.how, names, definitions, keys, past])
        return hashlib.sha256(whole).hexdigest()[:32]

    def after(self, flow: Flow, decisions: Sequence[CommandBody] = ()) -> tuple[Group, tuple[CommandBody, ...]]:
        """The group with other queries, and the commands that every bucket obeys for it.

        Refuse says why it cannot become that while it runs: rows of a key must stay in the bucket of their key.
        """
        after = group_of(flow, self.buckets)
        moved = [name for name, key in self.keys.items() if name in after.keys and after.keys[name] != key]
        if after.how != self.how or moved:
            raise Refuse(
                f"the rows of {listed(self.flow.names)} are divided by {self.reason}, and after this change they would "
                f"have to be by {after.reason}: create it as a new query",
                code="cannot_split",
            )
        commands = (*_differences(self.flow, flow), *decisions)
        changed = replace(
            after, keys={**self.keys, **after.keys}, begun=self.begun or self.flow, past=(*self.past, *commands)
        )
        trial = Bucket(self)
        trial.become(changed, commands)
        if trial.form != Bucket(changed).form:
            raise Refuse(
                f"{listed(flow.names)} cannot be changed so while the job runs: states would have another form; "
                "start a new job",
                code="cannot_split",
            )
        return changed, commands


def _values(command: CommandBody) -> list[Any]:
    return [getattr(command, one.name) for one in fields(command)]


def _differences(before: Flow, after: Flow) -> Iterator[CommandBody]:
    """The commands that make one flow the other. Streams that are not read any more stay."""
    old, new = before.catalog, after.catalog
    for name in reversed(list(old.queries)):
        if name not in new.queries:
            yield DropQuery(name)
    for name, stream in new.streams.items():
        if name not in old.streams:
            yield AddStream(lived(stream))
    for name, query in new.queries.items():
        if name not in old.queries:
            yield AddQuery(query)
        elif query != old.queries[name]:
            yield ReplaceQuery(query)


def groups_of(catalog: Catalog, buckets: int, names: Sequence[str] | None = None) -> list[Group]:
    """The groups of these queries, or of all; Refuse says why a query cannot run so.

    A query joins the first group that it shares a key with: the rows are packed and moved once for all of them.
    """
    groups: list[Group] = []
    for name in catalog.queries if names is None else names:
        alone = group_of(flow_of(catalog, name), buckets)
        for at, group in enumerate(groups):
            both = group_of(flow_of(catalog, *group.flow.names, name), buckets)
            if group.how == alone.how == both.how:
                groups[at] = both
                break
        else:
            groups.append(alone)
    return groups


def group_of(flow: Flow, buckets: int) -> Group:
    """How the rows of queries are divided, and why."""
    if flow.equality == "load":
        raise Refuse(
            f"query {flow.name} cannot run here: its result depends on the load of the engine (a latent stamp, SHED, "
            "or rows appended below LATEST) or on a function that is not deterministic, and a repeated epoch would "
            "have other rows",
            code="cannot_split",
        )
    keys = keys_of(flow)
    if buckets == 1:
        return Group(flow, 1, "one", "one bucket was requested")
    if keys.refused is not None:
        return Group(flow, 1, "one", "all rows must meet, because of {}: {}".format(*keys.refused))
    if not keys.streams:
        return Group(flow, buckets, "spread", "no operator keeps rows")
    if flow.counts_rows:
        return Group(flow, 1, "one", "it counts rows in the order of their arrival")
    if missing := _without_key(flow, keys):
        return Group(
            flow,
            1,
            "one",
            f"all rows must meet, because {listed(missing)} {'has' if len(missing) == 1 else 'have'} no key",
        )
    return Group(flow, buckets, "key", keys.words(), dict(keys.streams))


def _without_key(flow: Flow, keys: Keys) -> list[str]:
    """Streams of late tuples that some state depends on: which bucket finds a tuple late is decided by its stream."""
    return [name for name in keys.streams if name not in flow.catalog.streams]


@dataclass
class Stepped:
    """What an epoch came to in a bucket.

    late, too_far   by stream, how many tuples entered nothing
    failed_rows     by operator, how many rows it could not compute, and the last reason
    marks           by stream, below which time no tuple is on time any more
    """

    rows: dict[str, list[Batch]] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    too_far: dict[str, int] = field(default_factory=dict)
    failed_rows: dict[str, tuple[int, str]] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)


class Bucket:
    """An engine that continues a bucket's state, or an empty one (None). It lives for an epoch: making it is cheap."""

    def __init__(self, group: Group, state: bytes | None = None) -> None:
        self.group = group
        self._stepped = Stepped()
        self._driver = Driver(self)
        begun = group.begun or group.flow
        engine = self.engine
        engine.share = len(begun.catalog.queries) > 1  # looking for equal operators takes time
        commands: list[CommandBody] = [AddStream(lived(stream)) for stream in begun.catalog.streams.values()]
        self._obey([*commands, *map(AddQuery, begun.catalog.queries.values())])
        engine.share = False  # equal operators are one from the start; later merges would make other forms of states
        if group.past:
            self._obey(group.past)
        if state is not None:
            saving.restore_states(engine, state)
            self._driver.clock_us = engine.clock.now_us

    @property
    def engine(self) -> Engine:
        return self._driver.engine

    @property
    def form(self) -> list[tuple[str, str, list[str]]]:
        """What a state of it is made of: its operators, and the kinds of their queues."""
        return [
            (operator.name, operator.kind, [_kind(inlet) for inlet in operator.inputs])
            for operator in self.engine.graph.operators.values()
        ]

    def save(self) -> bytes:
        return saving.save_states(self.engine)

    def become(self, group: Group, commands: Sequence[CommandBody]) -> None:
        """Change the plan or how it is run (Group.after); Refuse says why not, and the bucket is of no use then."""
        self._obey(commands)
        self.group = group

    def _obey(self, commands: Sequence[CommandBody]) -> None:
        at_us = int(self._driver.clock_us)
        self._run(at_us, [Command(number, body) for number, body in enumerate(commands)])
        for stream in self.engine.streams_by_name.values():
            stream.source.ledger = None

    def step(self, at_us: int, parcels: Sequence[Parcel]) -> Stepped:
        """Hand over what was read; the rows that it leads to."""
        # A parcel without rows has the position of the next rows, and its promise precedes them.
        parcels = sorted(parcels, key=lambda parcel: (parcel.lane, parcel.part, parcel.first, parcel.whole))
        parts = self._parts(parcels)
        opened = [FeedOpened(name, part) for name, known in parts.items() for part in known]
        rows = chain.from_iterable(map(self._events, parcels))
        return self._run(at_us, [*opened, *rows, *self._stamped(at_us, parts)])

    def end(self, at_us: int) -> Stepped:
        """All parts are over: nothing is incomplete any more."""
        closings = []
        for name, stream in self.engine.streams_by_name.items():
            feeds = [feed.name for feed in stream.source.feeds] or ["none"]
            closings += [FeedClosed(name, feed, ended=True) for feed in feeds]
        return self._run(at_us, closings)

    def _run(self, at_us: int, events: Sequence[Event]) -> Stepped:
        self._stepped = stepped = Stepped()
        self._driver.run([Instant(at_us, events)])
        for name, stream in self.engine.streams_by_name.items():
            stepped.marks[name] = stream.source.mark
        return stepped

    def _parts(self, parcels: Sequence[Parcel]) -> dict[str, list[str]]:
        """By stream, the parts that are new: they hold its mark before any row is judged."""
        found: dict[str, list[str]] = {}
        for parcel in parcels:
            name = self._stream(parcel).name
            own = found.setdefault(name, [])
            if parcel.part not in own and self.engine.source(name).feeds.get(parcel.part) is None:
                own.append(parcel.part)
        return found

    def _events(self, parcel: Parcel) -> Iterator[Event]:
        stream = self._stream(parcel)
        external = stream.timestamps == "external"
        if parcel.data is not None:
            table = parcel.table()
            before = table.column(BEFORE).to_numpy(zero_copy_only=False) if external else None
            batch = batch_of(self.group.lanes[parcel.lane], table)
            yield Arrived(stream.name, parcel.part, batch, before_us=before)
        if external and parcel.newest is not None:
            yield Passed(stream.name, parcel.part, parcel.newest)
        if external and parcel.promise is not None:
            yield Punctuated(stream.name, parcel.part, parcel.promise)

    def _stamped(self, at_us: int, new: Mapping[str, Sequence[str]]) -> Iterator[Event]:
        """Streams that the engine stamps have come to the epoch's time, in buckets without rows, too."""
        for name, stream in self.engine.streams_by_name.items():
            if stream.definition.timestamps == "internal":
                late = [] if name in self.group.flow.catalog.streams else [LATE_FEED]
                for part in dict.fromkeys([*(feed.name for feed in stream.source.feeds), *new.get(name, ()), *late]):
                    yield Punctuated(name, part, at_us)

    def _stream(self, parcel: Parcel) -> StreamDefinition:
        return self.group.lanes[parcel.lane].stream

    # -- effects of the engine -----------------------------------------------------------------------------------------

    def ordered(self, at_us: Time, order: Effect) -> None:
        stepped = self._stepped
        match order:
            case Deliver(query, _, batch):
                if query in self.group.flow.names:
                    stepped.rows.setdefault(query, []).append(batch)
            case Late(stream, batch=batch):
                stepped.late[stream] = stepped.late.get(stream, 0) + len(batch)
            case TooFar(stream, batch=batch):
                stepped.too_far[stream] = stepped.too_far.get(stream, 0) + len(batch)
            case RowsFailed(operator, count, reason):
                before, _ = stepped.failed_rows.get(operator, (0, ""))
                stepped.failed_rows[operator] = before + count, reason
            case QueryFailed(query, reason):
                raise Refuse(f"query {query} failed: {reason}", code="query_failed")
            case _:
                pass  # a bucket neither answers requests nor needs credit

    def executed(self, step: int, at_us: Time, execution: Execution) -> None:
        raise AssertionError("no trace was requested")

    def stepped(self) -> None:
        """Nothing is measured."""


def _kind(inlet: Inlet) -> str:
    return type(inlet.queue if isinstance(inlet, QueueInlet) else inlet).__name__


def lived(stream: StreamDefinition) -> StreamDefinition:
    """The stream without what needs its clients or a clock that runs: parts come with their promises."""
    return replace(stream, max_skew_us=None, lull_us=None, ets="none", grace_us=None, history=False)
