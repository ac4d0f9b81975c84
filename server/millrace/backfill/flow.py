"""Queries together with those that they read, as one graph of operators over streams.

The planners look at this, and a task runs it. Rule: nothing here depends on Spark or on the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from millrace.engine.plan import CHANGE_STREAM, Node, QueryPlan, StreamDefinition
from millrace.protocol import Refuse, Schema
from millrace.sql import Catalog
from millrace.sql.explain import equality
from millrace.values.lags import Lags

# Classes of equality, the strictest first.
CLASSES: Final = ("rows", "final", "load")


@dataclass(frozen=True)
class Flow:
    """The computation of a backfill, or of a live job.

    catalog   the streams and queries that the query needs, in the order in which they were created
    name      the query whose rows are wanted
    beside    other queries whose rows are wanted, too
    """

    catalog: Catalog
    name: str
    beside: tuple[str, ...] = ()

    @property
    def query(self) -> QueryPlan:
        return self.catalog.queries[self.name]

    @property
    def names(self) -> tuple[str, ...]:
        """The queries whose rows are wanted."""
        return self.name, *self.beside

    @property
    def schema(self) -> Schema:
        return self.query.schema

    @property
    def outputs(self) -> frozenset[str]:
        """The operators whose rows are wanted."""
        return frozenset(self.catalog.queries[name].output for name in self.names)

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        """The operators that the result depends on, inputs before readers."""
        every = {node.name: node for query in self.catalog.queries.values() for node in query.nodes}
        wanted = set(self.outputs)
        for node in reversed(list(every.values())):
            if node.name in wanted:
                wanted.update(node.inputs)
        return {name: node for name, node in every.items() if name in wanted}

    @cached_property
    def streams(self) -> Mapping[str, StreamDefinition]:
        """The streams that are read, side streams of late tuples too, in the order in which the queries name them."""
        names = [name for query in self.catalog.queries.values() for name in query.reads_streams]
        read = {name for node in self.nodes.values() for name in node.inputs} | self.outputs
        found = {name: self.catalog.stream(name) for name in dict.fromkeys(names)}
        return {name: stream for name, stream in found.items() if stream.source in read}

    @cached_property
    def sources(self) -> Mapping[str, str]:
        """The stream of each source operator."""
        return {stream.source: name for name, stream in self.streams.items()}

    @cached_property
    def schemas(self) -> Mapping[str, Schema]:
        """The schema of each operator's rows."""
        found = {stream.source: stream.schema for stream in self.streams.values()}
        for node in self.nodes.values():
            found[node.name] = node.spec.schema([found[name] for name in node.inputs])
        return found

    @cached_property
    def lags(self) -> Mapping[str, Lags]:
        """The bounds of the distance between columns of each operator's rows and the rows' own time."""
        found: dict[str, Lags] = {}
        for stream in self.streams.values():
            position = stream.time_position
            found[stream.source] = {} if position is None else {position: (0, 0)}
        for node in self.nodes.values():
            inputs = [found[name] for name in node.inputs]
            found[node.name] = node.spec.lags(inputs, [self.schemas[name] for name in node.inputs])
        return found

    @cached_property
    def equality(self) -> str:
        """The class by which two runs of it may be compared: rows, final or load."""
        return max((equality(self.catalog.queries[name], self.catalog) for name in self.names), key=CLASSES.index)

    @property
    def counts_rows(self) -> bool:
        """Whether it has windows of rows, which count tuples in the order in which they arrived."""
        return any(node.spec.state().counts for node in self.nodes.values())

    @property
    def time_column(self) -> tuple[int, int, int] | None:
        """The column of the result closest to a row's own time: its position, and its least and greatest distance."""
        lags = self.lags[self.query.output].items()
        known = [(at, low, high) for at, (low, high) in lags if low is not None and high is not None]
        return min(known, key=lambda column: column[2] - column[1], default=None)

    def streams_above(self, name: str) -> Iterator[str]:
        """The streams that an operator's rows depend on, each once."""
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            one = waiting.pop(0)
            if one in seen:
                continue
            seen.add(one)
            if one in self.sources:
                yield self.sources[one]
            else:
                waiting.extend(self.nodes[one].inputs)


def flow_of(catalog: Catalog, name: str, *beside: str) -> Flow:
    """The flow of a query of a catalog, or of several."""
    for one in (name, *beside):
        if one not in catalog.queries:
            listed = ", ".join(catalog.queries) or "none"
            raise Refuse(f"query {one} does not exist; the queries are: {listed}", code="unknown_name")
    wanted = {name, *beside}
    for query in reversed(list(catalog.queries.values())):
        if query.name in wanted:
            wanted.update(query.reads_queries)
    queries = {one: query for one, query in catalog.queries.items() if one in wanted}
    for one, query in queries.items():
        if CHANGE_STREAM.name in query.reads_streams:
            raise Refuse(f"query {one} reads {CHANGE_STREAM.name}, which has no history", code="no_past")
    read = {stream.removesuffix(".late") for query in queries.values() for stream in query.reads_streams}
    streams = {one: stream for one, stream in catalog.streams.items() if one in read}
    return Flow(Catalog(streams, queries), name, beside)
