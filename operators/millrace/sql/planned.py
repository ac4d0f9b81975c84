"""Planned statements: definitions to create, names to drop, plans to show. This module changes nothing.

A catalog is a value: `with_` returns the catalog after a planned statement. A file of statements is therefore planned
as a whole, each statement in the catalog after the previous ones, and only then applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeVar

from millrace.engine.events import AlterStream, RenameQuery
from millrace.engine.plan import CHANGE_STREAM, QueryPlan, StreamDefinition, origin_of
from millrace.protocol import Field, Schema
from millrace.sql.syntax import Name
from millrace.values.lags import Lags

SinkType = Literal["file", "stdout"]
OnSlow = Literal["wait", "drop_oldest", "disconnect", "latest"]
Format = Literal["jsonl", "csv", "parquet", "arrow"]


@dataclass(frozen=True, slots=True)
class SinkDefinition:
    """A destination of a query's rows in addition to its subscribers.

    `on_slow` is the policy when `slow_limit` tuples or `slow_bytes` bytes wait for the sink: the feeds of the query's
    streams wait, the sink's oldest rows are dropped, or the sink ends. With `latest`, the sink of an update
    stream receives the newest row of each key.
    `freshness_us` is the maximum age of a row when it is written; older rows are counted. `rotate_...` limit a file of
    Parquet or Arrow: its rows, its bytes in memory, and the time after its first row. `id` is as that of a stream.
    """

    name: str
    query: str
    type: SinkType
    path: str | None = None
    format: Format = "jsonl"
    on_slow: OnSlow = "wait"
    slow_limit: int = 65_536
    slow_bytes: int = 67_108_864
    freshness_us: int | None = None
    rotate_rows: int = 1_000_000
    rotate_bytes: int = 64 * 2**20
    rotate_age_us: int = 60_000_000
    sql: str = ""
    id: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CreateStream:
    stream: StreamDefinition


@dataclass(frozen=True, slots=True)
class AlterStatement:
    """Other policies, more fields, or another name of a field, for a running stream: the changed attributes, the
    resulting definition, the added fields, the rewritten queries that read the stream, the field and its new name."""

    name: str
    changes: tuple[tuple[str, Any], ...]
    stream: StreamDefinition
    fields: tuple[Field, ...] = ()
    queries: Mapping[str, QueryPlan] = field(default_factory=dict)
    renamed: tuple[str, str] | None = None

    @property
    def command(self) -> AlterStream:
        texts = tuple((name, plan.sql) for name, plan in self.queries.items())
        return AlterStream(self.name, self.changes, self.stream.sql, self.fields, texts, self.renamed)


@dataclass(frozen=True, slots=True)
class CreateQuery:
    """A new query, or with `replaces` a new definition for one that exists."""

    plan: QueryPlan
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class RenameStatement:
    """A new name for a query, with the rewritten texts of the query, its readers and its sinks."""

    name: str
    to: str
    queries: Mapping[str, QueryPlan]
    sinks: Mapping[str, SinkDefinition]

    @property
    def command(self) -> RenameQuery:
        return RenameQuery(self.name, self.to, tuple((name, plan.sql) for name, plan in self.queries.items()))


@dataclass(frozen=True, slots=True)
class CreateSink:
    sink: SinkDefinition


@dataclass(frozen=True, slots=True)
class DropStatement:
    kind: Literal["stream", "query", "sink"]
    name: str


@dataclass(frozen=True, slots=True)
class Explain:
    plan: QueryPlan
    text: str


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A statement that changes nothing: its action, the kind and name of its object, and the reason."""

    statement: str
    kind: Literal["stream", "query", "sink"]
    name: str
    text: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Insert:
    """Rows for a stream, in the order of its fields; `places` are the offsets of the values in the text."""

    stream: str
    rows: tuple[tuple[Any, ...], ...]
    sql: str
    places: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Show:
    """A list of a server's streams, queries, sinks, components or operators."""

    of: Literal["streams", "queries", "sinks", "components", "operators"]


@dataclass(frozen=True, slots=True)
class ShowCreate:
    """The statement that creates a stream, query or sink in its current form."""

    kind: Literal["stream", "query", "sink"]
    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Describe:
    """The columns and options of a stream, query or sink. The stream may be the late side stream of another."""

    kind: Literal["stream", "query", "sink"]
    name: str


@dataclass(frozen=True, slots=True)
class ExplainRunning:
    """The plan of a query by its name, with `analyze` also its measurements."""

    name: str
    analyze: bool
    text: str


# Statements that only read.
Inspection = Show | ShowCreate | Describe | ExplainRunning

Planned = (
    CreateStream
    | AlterStatement
    | CreateQuery
    | RenameStatement
    | CreateSink
    | DropStatement
    | Unchanged
    | Insert
    | Show
    | ShowCreate
    | Describe
    | Explain
    | ExplainRunning
    | QueryPlan
)

_Value = TypeVar("_Value")
_Object = TypeVar("_Object", bound=StreamDefinition | QueryPlan | SinkDefinition)

Kind = Literal["streams", "queries", "sinks"]
KINDS: Final[tuple[Kind, ...]] = ("streams", "queries", "sinks")


class Facts(NamedTuple):
    """Facts that a query's readers rely on.

    orders   whether the rows of each of its operators, and of those that it reads, are in order of time
    timed    whether all rows have a time
    lags     the distance of its columns from that time
    """

    orders: Mapping[str, bool]
    timed: bool
    lags: Lags


@dataclass(frozen=True, slots=True)
class Catalog:
    """Streams, queries and sinks by name.

    last_id  the newest id of an object. A new object gets the next one; one that is replaced or renamed keeps its id
    facts    a cache of the facts of queries, each with the plan that it holds for, because computing them needs all
             upstream queries. Additions keep the cache; any other change clears it.
    """

    streams: Mapping[str, StreamDefinition] = field(default_factory=dict)
    queries: Mapping[str, QueryPlan] = field(default_factory=dict)
    sinks: Mapping[str, SinkDefinition] = field(default_factory=dict)
    last_id: int = field(default=0, compare=False, kw_only=True)
    facts: dict[str, tuple[QueryPlan, Facts]] = field(default_factory=dict, compare=False, repr=False)

    def with_(self, planned: Planned) -> Catalog:
        """The catalog after this statement."""
        after = self._with(planned)
        adds = isinstance(planned, CreateStream | CreateSink | Explain)
        if adds or (isinstance(planned, CreateQuery) and not planned.replaces):
            return after
        return replace(after, facts={})

    def _with(self, planned: Planned) -> Catalog:
        match planned:
            case CreateStream(stream):
                return self._put("streams", stream)
            case AlterStatement(stream=stream, queries=queries):
                readers = {name: _same_object(self.queries[name], plan) for name, plan in queries.items()}
                return replace(self, queries={**self.queries, **readers})._put("streams", stream)
            case CreateQuery(plan):
                return replace(self, queries=self._reading(plan))._put("queries", plan)
            case RenameStatement():
                return self._renamed(planned)
            case QueryPlan():
                return self._put("queries", planned)
            case CreateSink(sink):
                return self._put("sinks", sink)
            case DropStatement("stream", name):
                return replace(self, streams=_unset(self.streams, name))
            case DropStatement("query", name):
                return replace(self, queries=_unset(self.queries, name))
            case DropStatement(_, name):
                return replace(self, sinks=_unset(self.sinks, name))
            case Unchanged() | Insert() | Show() | ShowCreate() | Describe() | Explain() | ExplainRunning():
                return self

    def _put(self, kind: Kind, definition: StreamDefinition | QueryPlan | SinkDefinition) -> Catalog:
        """The catalog with a new or a replaced object."""
        known: Mapping[str, Any] = getattr(self, kind)
        before = known.get(definition.name)
        number = (0 if before is None else before.id) or definition.id or self.last_id + 1
        put = {**known, definition.name: with_id(definition, number)}
        return replace(self, last_id=max(self.last_id, number), **{kind: put})

    def identified(self) -> Catalog:
        """The same catalog, in which every object has an id: those of earlier versions get theirs in their order."""
        last, parts = self.last_id, {}
        for kind in KINDS:
            parts[kind] = dict(getattr(self, kind))
            for name, one in parts[kind].items():
                if not one.id:
                    last += 1
                    parts[kind][name] = with_id(one, last)
        return self if last == self.last_id else replace(self, last_id=last, **parts)

    def _reading(self, plan: QueryPlan) -> Mapping[str, QueryPlan]:
        """The queries after a replacement: readers of the query read the output of its new plan."""
        before = self.queries.get(plan.name)
        if before is None or before.output == plan.output:
            return self.queries
        return {
            name: query.reading(before.output, plan.output) if plan.name in query.reads_queries else query
            for name, query in self.queries.items()
        }

    def _renamed(self, step: RenameStatement) -> Catalog:
        names = {name: step.to if name == step.name else name for name in self.queries}
        queries = {
            names[name]: _same_object(plan, step.queries.get(names[name], plan)) for name, plan in self.queries.items()
        }
        return replace(self, queries=queries, sinks={**self.sinks, **step.sinks})

    def stream(self, name: str) -> StreamDefinition:
        """The stream that a plan names, which may be the late side stream of another, or that of changes."""
        if name == CHANGE_STREAM.name:
            return CHANGE_STREAM
        origin = origin_of(name)
        return self.streams[name] if origin is None else self.streams[origin].late

    def kind_of(self, name: str) -> str | None:
        """Whether a stream or a query has this name. Both share one namespace, because FROM can name either."""
        return "stream" if name in self.streams else "query" if name in self.queries else None


def is_changes(name: Name, part: Name | None) -> bool:
    """Whether `name.part` is the stream of the server's changes. A stream called `millrace` has no such part."""
    return part is not None and f"{name.text}.{part.text}" == CHANGE_STREAM.name


def _unset(items: Mapping[str, _Value], name: str) -> dict[str, _Value]:
    return {key: value for key, value in items.items() if key != name}


def with_id(definition: _Object, number: int) -> _Object:
    return definition if definition.id == number else replace(definition, id=number)


def identified(step: Planned, number: int) -> Planned:
    """A statement whose object has this id."""
    match step:
        case CreateStream(stream):
            return CreateStream(with_id(stream, number))
        case CreateQuery(plan):
            return replace(step, plan=with_id(plan, number))
        case CreateSink(sink):
            return CreateSink(with_id(sink, number))
        case _:
            return step


def _same_object(before: _Object, after: _Object) -> _Object:
    """Another definition of an object."""
    return with_id(after, before.id)


def schemas_of(plan: QueryPlan, catalog: Catalog) -> dict[str, Schema]:
    """The schema of every operator's rows."""
    schemas = {stream.source: stream.schema for stream in map(catalog.stream, plan.reads_streams)}
    schemas |= {query.output: query.schema for query in map(catalog.queries.__getitem__, plan.reads_queries)}
    for node in plan.nodes:
        schemas[node.name] = node.spec.schema(
            [node.edge(at).reads(schemas[name]) for at, name in enumerate(node.inputs)]
        )
    return schemas
