"""What is to run: definitions of streams, plans of queries, and their options. Plain frozen data.

The SQL room makes plans and the engine runs them; neither knows the other. Names of operators are decided here once:
`<stream>.source`, `<query>.<word><n>` with n counted per word of SQL in plan order, `<query>.sink1`, `<name>.fork1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from millrace.operators.frame.spec import Spec
from millrace.operators.queues.edge import APPEND, EdgeSpec, QueueKind
from millrace.protocol import Field, Refuse, Schema, Type
from millrace.protocol.units import MICROSECONDS, UNITS, TimeUnit, UnitName
from millrace.values.definitions import Definition
from millrace.values.retention import DEFAULT as RETAIN

Timestamps = Literal["external", "internal", "latent"]
EtsPolicy = Literal["none", "periodic", "on-demand"]
Progress = Literal["tuples", "punctuation"]
Propagation = Literal["arcs", "punctuation"]
Order = Literal["arrival", "event"]
# What may be changed of a stream while it runs.
POLICIES = frozenset(
    {
        "ets",
        "ets_interval_us",
        "ets_retry_us",
        "max_skew_us",
        "grace_us",
        "ahead_us",
        "propagation",
        "disorder_us",
        "lull_us",
        "history",
        "time_unit",
    }
)

# The fields that a late tuple gets in addition to its own.
LATE_FIELDS = (
    ("late_by_us", Type.BIGINT),
    ("mark", Type.TIMESTAMP),
    ("feed", Type.TEXT),
    ("at", Type.TIMESTAMP),
)
LATE = ".late"


def origin_of(stream: str) -> str | None:
    """The stream whose late tuples go to this one, if it is a side stream: no other name has a dot."""
    return stream.removesuffix(LATE) if stream.endswith(LATE) else None


@dataclass(frozen=True, slots=True)
class StreamDefinition(Definition):
    """A stream and its policies. Times are microseconds.

    `time` names the field that carries the time of an external stream; other streams have an implicit column `ts`.
    `disorder_us` is how much older than its newest tuple a tuple of a feed may be; `max_skew_us` (the papers' delta)
    bounds the clock's guess. `progress` says whether tuples move the mark or punctuation alone. `grace_us` is how
    long a feed that lost its connection still counts, `ahead_us` how far above the clock a tuple's time may lie,
    `propagation` how a timestamp made on demand travels: past the operators that do not need it, or through them, and
    `lull_us` the most by which the stream's time lags the clock: its user's promise. `time_unit` is the unit of
    numbers in the time field at the ways in; the engine knows microseconds alone. `punctuation_key` names the columns
    whose values name a group, about which a feed may promise more than about the stream. `id` stays while the name or
    the definition changes, and no other object gets it; 0 is not numbered yet.
    """

    name: str
    schema: Schema
    timestamps: Timestamps = "internal"
    time: str | None = None
    disorder_us: int = 0
    max_skew_us: int | None = None
    ets: EtsPolicy = "on-demand"
    ets_interval_us: int = 100_000
    ets_retry_us: int = 100_000
    progress: Progress = "tuples"
    grace_us: int | None = None
    update_key: tuple[str, ...] = ()
    queue: QueueKind = "inplace"
    history: bool = False
    extra: Literal["refuse", "ignore"] = "refuse"
    lull_us: int | None = None
    propagation: Propagation = "arcs"
    ahead_us: int | None = None
    sql: str = ""
    time_unit: UnitName = "us"
    punctuation_key: tuple[str, ...] = ()
    id: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if (self.time is not None) != (self.timestamps == "external"):
            raise Refuse(
                f"stream {self.name}: an external stream must name its time field, and other streams cannot have one"
            )
        if self.time is not None and self.time_field.type is not Type.TIMESTAMP:
            raise Refuse(
                f"stream {self.name}: the time field {self.time} must be a TIMESTAMP, it is {self.time_field.type}"
            )

    @property
    def late(self) -> StreamDefinition:
        """The side stream of its late tuples: its fields, and how late, against which mark, of which feed, and when.

        It is timed by `at`, the engine's own clock. A field of the stream that has one of these names keeps it, and the
        late stream's own is called `late_...`.
        """
        own = [
            Field(f"late_{name}" if self.schema.index(name) is not None else name, kind, nullable=False)
            for name, kind in LATE_FIELDS
        ]
        return StreamDefinition(f"{self.name}{LATE}", Schema((*self.schema, *own)))

    def with_fields(self, fields: Iterable[Field]) -> StreamDefinition:
        """The stream with more fields after its own."""
        return replace(self, schema=Schema((*self.schema, *fields)))

    def with_renamed(self, field: str, to: str) -> StreamDefinition:
        """The stream with another name of a field; the options that name the field follow."""

        def name(known: str) -> str:
            return to if known == field else known

        return replace(
            self,
            schema=Schema(tuple(replace(one, name=name(one.name)) for one in self.schema)),
            time=None if self.time is None else name(self.time),
            update_key=tuple(map(name, self.update_key)),
            punctuation_key=tuple(map(name, self.punctuation_key)),
        )

    @property
    def source(self) -> str:
        return f"{self.name}.source"

    @property
    def time_position(self) -> int | None:
        return None if self.time is None else self.schema.index(self.time)

    def unit_of(self, field: str) -> TimeUnit:
        """The unit of numbers in a field of this name at the ways in."""
        return UNITS[self.time_unit] if field == self.time else MICROSECONDS

    @property
    def time_field(self) -> Field:
        position = self.time_position
        if position is None:
            raise Refuse(f"stream {self.name}: its time field {self.time} does not exist")
        return self.schema.fields[position]

    @property
    def always_ordered(self) -> bool:
        """Whether the stream's tuples are in order of time whatever its feeds do: the engine's own stamps are."""
        return self.timestamps == "internal"


# The stream of a server's applied changes: a row per entry of its ledger, by the server alone.
CHANGE_STREAM = StreamDefinition(
    "millrace.changes",
    Schema(
        (
            Field("number", Type.BIGINT, nullable=False),
            Field("at", Type.TIMESTAMP, nullable=False),
            Field("author", Type.TEXT, nullable=False),
            Field("client", Type.TEXT, nullable=False),
            Field("change", Type.TEXT, nullable=False),
            Field("statements", Type.TEXT, nullable=False),
            Field("undoes", Type.BIGINT),
        )
    ),
)


def is_side_stream(name: str) -> bool:
    """Whether no statement has created this stream: late tuples, or changes. The names of others have no dot."""
    return name == CHANGE_STREAM.name or name.endswith(LATE)


@dataclass(frozen=True, slots=True)
class QueryOptions(Definition):
    """What WITH says of a query. `order` is the architecture: out of order, or in order.

    `max_state` is how many tuples the states of its operators may contain together, and `on_max_state` what happens
    above: it stops, or the streams that are ahead get no more credit until the others have freed it. `emit` is about
    running totals; `flush`, `max_delay_us`, `partial`, `aggregate` and `slots` about windows (see AggregateSpec; where
    `aggregate` is None the planner chooses), `join` and `alpha` about joins in order of time (see JoinSpec). `start`
    says from when on it reads streams that have tuples already: above the newest of them, or from their marks on.
    `retain` says how many of its rows a server with a data directory keeps on disk (see `values/retention.py`).
    """

    order: Order = "arrival"
    fuse: bool = True
    emit: Literal["latest", "every"] = "latest"
    max_state: int = 10_000_000
    on_max_state: Literal["fail", "backpressure"] = "fail"
    flush: Literal["none", "slow", "lazy"] = "none"
    max_delay_us: int = 1_000_000
    partial: Literal["skip", "emit"] = "skip"
    start: Literal["newest", "watermark"] = "newest"
    join: Literal["sync", "filter", "adaptive"] = "sync"
    alpha: float = 0.3
    aggregate: Literal["groups", "bounded", "buffered", "adaptive"] | None = None
    slots: int = 4096
    retain: str = RETAIN


@dataclass(frozen=True, slots=True)
class Node(Definition):
    """One operator of a plan: its name, what it does, and the names of the operators it reads, in order.

    `edges` says what each input keeps; inputs without an entry keep everything. The engine numbers operators when their
    query is created: `id` stays when the operator gets another name or another plan keeps it. 0 is not numbered yet.
    """

    name: str
    spec: Spec
    inputs: tuple[str, ...]
    edges: tuple[EdgeSpec, ...] = ()
    id: int = field(default=0, compare=False)

    def edge(self, position: int) -> EdgeSpec:
        return self.edges[position] if position < len(self.edges) else APPEND

    def ordered(self, known: Mapping[str, bool]) -> list[bool]:
        """Whether the rows of each input are in order of time, if that is known of the operators that emit them."""
        return [known[name] and not self.edge(at).updates for at, name in enumerate(self.inputs)]

    def with_edge(self, position: int, edge: EdgeSpec) -> Node:
        """The same with another edge at one of its inputs."""
        return replace(self, edges=tuple(edge if at == position else self.edge(at) for at in range(len(self.inputs))))

    def without_plain_edges(self) -> Node:
        """The same as it was planned, if no input has anything of its own."""
        plain = all(one == APPEND and not (one.queued or one.keyed) for one in self.edges)
        return replace(self, edges=()) if plain else self


@dataclass(frozen=True, slots=True)
class Edit(Definition):
    """A change of one operator that an admin has made to a query's plan while it ran (editing.py).

    `where` is the text of a select's predicate; `before` and `input` say where an operator was put in, and `id` is its
    number.
    """

    change: Literal["insert", "remove", "replace"]
    operator: str
    spec: Spec | None = None
    where: str | None = None
    before: str | None = None
    input: int = 0
    id: int = 0

    def moved(self, before: str, after: str) -> Edit:
        """The same when a query has another name."""
        behind = None if self.before is None else moved_name(self.before, before, after)
        return replace(self, operator=moved_name(self.operator, before, after), before=behind)


@dataclass(frozen=True, slots=True)
class QueryPlan(Definition):
    """A query ready to run. Nodes come after the nodes they read; `output` is the operator whose rows are the result.

    An input that is no node of the plan is a stream's source (`packets.source`) or another query's output operator.
    `reads_streams` and `reads_queries` name what must exist and may not be dropped meanwhile. `update_key` is that of
    an update stream: a row replaces the one before it with the same values there. Other results have None. `warnings`
    say what its author should think about, `notes` how it was understood. `edits` are what has been changed of the
    operators since, in order. `id` is the query's, as that of a stream; operators have theirs (`ids`).
    """

    name: str
    nodes: tuple[Node, ...]
    output: str
    schema: Schema
    options: QueryOptions = field(default_factory=QueryOptions)
    reads_streams: tuple[str, ...] = ()
    reads_queries: tuple[str, ...] = ()
    sql: str = ""
    update_key: tuple[str, ...] | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    id: int = field(default=0, compare=False)

    @property
    def sink(self) -> str:
        return f"{self.name}.sink1"

    @property
    def ids(self) -> dict[str, int]:
        """The operators that are numbered, by name."""
        return {node.name: node.id for node in self.nodes if node.id}

    def numbered(self, ids: Mapping[str, int]) -> QueryPlan:
        """The same plan, whose operators have these numbers."""
        nodes = tuple(replace(node, id=ids.get(node.name, node.id)) for node in self.nodes)
        return replace(self, nodes=nodes)

    def reading(self, before: str, after: str) -> QueryPlan:
        """The same plan, reading one operator outside of it instead of another."""
        nodes = tuple(
            replace(node, inputs=tuple(after if name == before else name for name in node.inputs))
            for node in self.nodes
        )
        return replace(self, nodes=nodes)

    def reading_of(self, operator: str, before: Schema, after: Schema) -> QueryPlan:
        """The same plan, reading the same fields of an operator outside of it that has more fields now, or other names
        for them."""
        nodes = list(self.nodes)
        for number, node in enumerate(nodes):
            for position, name in enumerate(node.inputs):
                if name == operator:
                    edge = nodes[number].edge(position).within(before, after)
                    nodes[number] = nodes[number].with_edge(position, edge).without_plain_edges()
        return replace(self, nodes=tuple(nodes))

    def renamed(self, before: str, after: str) -> QueryPlan:
        """The same plan where a query, this one or one that it reads, has another name."""

        def moved(operator: str) -> str:
            return moved_name(operator, before, after)

        nodes = tuple(
            replace(node, name=moved(node.name), inputs=tuple(map(moved, node.inputs))) for node in self.nodes
        )
        return replace(
            self,
            name=after if self.name == before else self.name,
            nodes=nodes,
            output=moved(self.output),
            edits=tuple(edit.moved(before, after) for edit in self.edits),
            reads_queries=tuple(after if name == before else name for name in self.reads_queries),
        )


def moved_name(operator: str, before: str, after: str) -> str:
    """An operator's name when its query has another; other queries' operators keep theirs."""
    return after + operator[len(before) :] if operator.startswith(f"{before}.") else operator


class Namer:
    """Names the operators of one query: `talkers.filter1`, `talkers.filter2`, `talkers.union1`."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._counts: dict[str, int] = {}

    def name(self, word: str) -> str:
        count = self._counts.get(word, 0) + 1
        self._counts[word] = count
        return f"{self._query}.{word}{count}"


def word_of(operator: str) -> str:
    """The word that an operator's name is made of: `latest_join` of `talkers.latest_join2`."""
    return operator.rpartition(".")[2].rstrip("0123456789")


def current_name(plan: QueryPlan, former: str) -> str:
    """What the operator is called now that had this name while names were made of kinds: `q.select2` is `q.filter2`."""
    if word_of(former) == "select":
        return former.replace(".select", ".filter")  # all of its kind have one word, so their numbers are the same
    namer = Namer(plan.name)
    return {namer.name(node.spec.kind): node.name for node in plan.nodes}.get(former, former)


def names(items: Iterable[object]) -> str:
    """A list of names for a sentence."""
    return ", ".join(str(item) for item in items)
