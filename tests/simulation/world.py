"""A world from a seed: streams, queries over them, and a log of what happens, all small and as nasty as can be.

A world says what happens; how it is cut, scheduled, saved and restored is another seed's business, because none of that
may change what comes out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from millrace.engine.plan import EtsPolicy, Node, Propagation, QueryPlan, StreamDefinition, Timestamps
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.frame.spec import Spec
from millrace.operators.frame.windows import SessionWindow, TimeWindow
from millrace.operators.project.spec import MapSpec
from millrace.operators.sort.spec import SortSpec
from millrace.operators.union.spec import UnionSpec
from millrace.protocol import Field, Schema, Type
from millrace.values.expression import Call, Column, Constant, Expression
from tests.oracles.graph import GROUPS, NodeModel
from tests.simulation.odds import draw

SCHEMA = Schema((Field("ts", Type.TIMESTAMP), Field("id", Type.BIGINT, False), Field("v", Type.BIGINT)))
EXTERNAL = Schema((Field("ts", Type.TIMESTAMP, False), *SCHEMA.fields[1:]))
TS, ID, V = (Column(field.type, field.nullable, at, field.name) for at, field in enumerate(SCHEMA))

# The most copies of a tuple that unions of a query with itself may make.
MOST_COPIES = 8

# The world begins at a time that no default value has.
BEGIN_US = 1_000

Kind = Literal["tuples", "punctuation", "open", "close", "end", "tick", "add", "drop", "pause", "resume", "check"]
TupleOf = tuple[int | None, int, int | None]  # the field ts, the id, v


@dataclass(frozen=True)
class Said:
    """One line of the log. `tuples` are a batch of one feed; a command is a query's name and what to do with it. A
    punctuation with a `group` is about the tuples with this punctuation key."""

    at: int
    kind: Kind
    stream: str = ""
    feed: str = ""
    tuples: tuple[TupleOf, ...] = ()
    value: int = 0
    query: str = ""
    group: tuple[Any, ...] = ()


@dataclass(frozen=True)
class QueryModel:
    """A query: its operators in plan order. Inputs are names of nodes, `<stream>.source`, or another query's output."""

    name: str
    nodes: tuple[NodeModel, ...]
    reads_streams: tuple[str, ...]
    reads_queries: tuple[str, ...]

    @property
    def output(self) -> NodeModel:
        return self.nodes[-1]

    def plan(self) -> QueryPlan:
        nodes = tuple(made for node in self.nodes for made in nodes_of(node))
        return QueryPlan(
            self.name,
            nodes,
            self.output.name,
            SCHEMA,
            reads_streams=self.reads_streams,
            reads_queries=self.reads_queries,
        )


@dataclass(frozen=True)
class World:
    seed: int
    streams: tuple[StreamDefinition, ...]
    queries: tuple[QueryModel, ...]
    log: tuple[Said, ...]
    later: tuple[str, ...] = ()  # queries that the log adds
    dropped: tuple[str, ...] = ()
    stamped: frozenset[str] = frozenset()  # nodes below which rows of latent streams may have got a time
    vague: frozenset[str] = frozenset()  # nodes whose rows, before the end, depend on what has been looked at

    def query(self, name: str) -> QueryModel:
        return next(query for query in self.queries if query.name == name)


def renamed(plan: QueryPlan) -> QueryPlan:
    """The same plan with other names for all operators but the last, which other queries know."""
    return _with_names(plan, {node.name: f"{node.name}'" for node in plan.nodes if node.name != plan.output})


def longer(plan: QueryPlan) -> QueryPlan:
    """The same rows through one more operator."""
    last = Node(f"{plan.output}+", SelectSpec(Constant(Type.BOOLEAN, False, True)), (plan.output,))
    return replace(plan, nodes=(*plan.nodes, last), output=last.name)


def moved(plan: QueryPlan, name: str) -> QueryPlan:
    """The plan under another query's name."""
    names = {node.name: f"{name}.{node.name.partition('.')[2]}" for node in plan.nodes}
    return replace(_with_names(plan, names), name=name)


def _with_names(plan: QueryPlan, names: Mapping[str, str]) -> QueryPlan:
    nodes = tuple(
        replace(
            node, name=names.get(node.name, node.name), inputs=tuple(names.get(one, one) for one in node.inputs), id=0
        )
        for node in plan.nodes
    )
    return replace(plan, nodes=nodes, output=names.get(plan.output, plan.output))


def nodes_of(node: NodeModel) -> list[Node]:
    """The operators of a node: an aggregate's rows are brought back to the columns that all rows have.

    A running total without groups also has a row over no rows, whose time depends on when its input is looked at: the
    one without an id is left out.
    """
    if node.pairing is not None:
        from tests.simulation.joined import nodes_of_pairing  # which makes worlds of these

        return nodes_of_pairing(node)
    if not node.aggregates:
        return [Node(node.name, spec_of(node), node.inputs)]
    sorting = Node(f"{node.name}.sort", SortSpec(), node.inputs)
    before = [sorting] if node.in_order else []
    counted = Node(f"{node.name}.groups", spec_of(node), (sorting.name,) if node.in_order else node.inputs)
    at = 1 if node.grouped else 0
    columns = [Column(Type.BIGINT, True, at, "id"), Column(Type.BIGINT, True, at + 1, "v")]
    ts = Constant(Type.TIMESTAMP, True, None)
    back = MapSpec((("ts", ts), ("id", columns[0]), ("v", columns[1])))
    if node.kind != "total" or node.grouped:
        return [*before, counted, Node(node.name, back, (counted.name,))]
    there = SelectSpec(Call(Type.BOOLEAN, False, "is not null(bigint)", (columns[0],)))
    some = Node(f"{node.name}.some", there, (counted.name,))
    return [counted, some, Node(node.name, back, (some.name,))]


def aggregate_of(node: NodeModel) -> Spec:
    windows: dict[str, TimeWindow | SessionWindow | None] = {
        "hop": TimeWindow(node.size, node.slide, node.offset),
        "session": SessionWindow(node.size),
        "total": None,
    }
    keys = (("g", _call(Type.BIGINT, "%", ID, Constant(Type.BIGINT, False, GROUPS))),) if node.grouped else ()
    calls = [(name, AggregateCall(Type.BIGINT, True, "sum(bigint)", (of,))) for name, of in (("id", ID), ("v", V))]
    return AggregateSpec(
        windows[node.kind],
        keys,
        tuple(calls),
        flush=node.flush,
        max_delay_us=node.delay,
        partial=node.partial,
        emit="every",
        keeps=node.keeps,
        slots=node.slots,
    )


def spec_of(node: NodeModel) -> Spec:
    if node.aggregates:
        return aggregate_of(node)
    c = Constant(Type.BIGINT, False, node.constant)
    match node.kind:
        case "below":
            return SelectSpec(_call(Type.BOOLEAN, "<", V, c))
        case "divisor":
            return SelectSpec(_call(Type.BOOLEAN, "=", _call(Type.BIGINT, "%", c, V), Constant(Type.BIGINT, False, 0)))
        case "plus":
            return _map(_call(Type.BIGINT, "+", V, c))
        case "quotient":
            return _map(_call(Type.BIGINT, "/", c, V))
        case "union" | "merge":
            return UnionSpec(node.kind == "merge")
        case "sort":
            return SortSpec()
    raise AssertionError(node.kind)


def _call(type: Type, sign: str, one: Expression, other: Expression) -> Expression:
    return Call(type, True, f"{sign}(bigint, bigint)", (one, other))


def _map(v: Expression) -> Spec:
    return MapSpec((("ts", TS), ("id", ID), ("v", v)))


def world_of(seed: int) -> World:
    return _Maker(seed).make()


def windowed_world_of(seed: int) -> World:
    """One in which hardly anybody wants to know every time."""
    return _WindowMaker(seed).make()


@dataclass
class _Maker:
    # The rows of the table of odds that differ between kinds of worlds.
    ODDS: ClassVar[str] = "graphs"
    seed: int
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"world {self.seed}")
        self.vague: set[str] = set()

    def make(self) -> World:
        rng = self.rng
        self.streams = tuple(self._stream(f"s{number}") for number in range(draw(rng, "streams.count")))
        # Whether the rows of a node may have no time, and whether some may have been stamped on the way.
        self.timeless = {stream.source: stream.timestamps == "latent" for stream in self.streams}
        self.stamped: set[str] = set()
        # The nodes whose rows come in an order that does not depend on who runs when.
        self.straight = {stream.source for stream in self.streams}
        self.asides = [f"{stream.name}.late" for stream in self.streams if stream.timestamps == "external"]
        self.timeless |= {f"{aside}.source": False for aside in self.asides}
        self.copies = dict.fromkeys(self.timeless, 1)
        queries: list[QueryModel] = []
        for number in range(draw(rng, "queries.count")):
            queries.append(self._query(f"q{number}", queries))
        read = {name for query in queries for name in query.reads_queries}
        free = [query.name for query in queries if query.name not in read and not query.reads_queries]
        later = tuple(name for name in free if draw(rng, "log.added later"))
        dropped = tuple(name for name in free if draw(rng, "log.dropped"))
        paused = [name for name in free if draw(rng, "log.paused")]
        log = self._log(later, dropped, paused)
        stamped, vague = frozenset(self.stamped), frozenset(self.vague)
        return World(self.seed, self.streams, tuple(queries), log, later, dropped, stamped, vague)

    def _stream(self, name: str) -> StreamDefinition:
        rng = self.rng
        kind: Timestamps = draw(rng, "streams.timestamps")
        ets: EtsPolicy = draw(rng, "streams.ets")
        propagation: Propagation = draw(rng, "streams.propagation")
        if kind == "external":
            return StreamDefinition(
                name,
                EXTERNAL,
                "external",
                "ts",
                disorder_us=draw(rng, "streams.disorder"),
                progress=draw(rng, "streams.progress"),
                ahead_us=draw(rng, "streams.ahead"),
                propagation=propagation,
            )
        return StreamDefinition(name, SCHEMA, kind, ets=ets, propagation=propagation)

    # -- queries ---------------------------------------------------------------------------------------------------

    def _query(self, name: str, others: list[QueryModel]) -> QueryModel:
        """A random graph: nodes read sources, outputs of earlier queries and earlier nodes; the last is the result."""
        rng = self.rng
        outside = [stream.source for stream in self.streams]
        if others and draw(rng, "queries.over queries"):
            outside += [query.output.name for query in others] * 2
        nodes: list[NodeModel] = []
        unread: list[str] = []
        if self.asides and draw(rng, "queries.late rows"):
            # Late tuples have more columns than the others: a map comes first.
            first = NodeModel(f"{name}.late", "plus", (f"{rng.choice(self.asides)}.source",), 0)
            nodes.append(self._seen(first))
            unread.append(first.name)
        for number in range(draw(rng, "queries.nodes")):
            inputs = self._inputs(outside, [node.name for node in nodes], unread)
            node = self._node(f"{name}.n{number}", inputs)
            nodes.append(node)
            unread = [other for other in unread if other not in inputs] + [node.name]
        if len(unread) > 1:
            nodes.append(self._many(f"{name}.last", tuple(unread)))
        used = [reads for node in nodes for reads in node.inputs]
        by_output = {query.output.name: query.name for query in others}
        return QueryModel(
            name,
            tuple(nodes),
            tuple(dict.fromkeys(one.removesuffix(".source") for one in used if one.endswith(".source"))),
            tuple(dict.fromkeys(by_output[one] for one in used if one in by_output)),
        )

    def _inputs(self, outside: list[str], inside: list[str], unread: list[str]) -> tuple[str, ...]:
        rng = self.rng
        chosen = [
            rng.choice(unread if unread and draw(rng, "queries.unread input") else outside + inside)
            for _ in range(draw(rng, "queries.inputs"))
        ]
        while len(chosen) > 1 and sum(self.copies[name] for name in chosen) > MOST_COPIES:
            chosen.pop()
        return tuple(chosen)

    def _node(self, name: str, inputs: tuple[str, ...]) -> NodeModel:
        if len(inputs) > 1:
            return self._many(name, inputs)
        kind = draw(self.rng, f"{self.ODDS}.kind")
        if kind in ("hop", "session", "total"):
            return self._seen(self._aggregate(name, kind, inputs))
        return self._seen(NodeModel(name, kind, inputs, draw(self.rng, "queries.constant")))

    def _aggregate(self, name: str, kind: str, inputs: tuple[str, ...]) -> NodeModel:
        """Windows over what has times of its own; running totals over what comes in one order."""
        rng = self.rng
        if self.timeless[inputs[0]] or inputs[0] in self.stamped:
            return NodeModel(name, "plus", inputs, 1)
        if kind == "total" and inputs[0] not in self.straight:
            kind = "hop"
        size = draw(rng, f"{self.ODDS}.size")
        slides = {"size": size, "third": max(size // 3, 1), "half": max(size // 2, 1), "gap": size + 2}
        slide = slides[draw(rng, "aggregates.slide")]
        shift = draw(rng, "aggregates.shift")
        apart = random.Random(f"{name} {size} {shift}")  # so that the worlds of known seeds stay
        return NodeModel(
            name,
            kind,
            inputs,
            size=size,
            slide=slide,
            offset={"none": 0, "shift": shift}[draw(rng, "aggregates.offset")],
            grouped=draw(rng, "aggregates.grouped"),
            in_order=kind != "total" and draw(rng, f"{self.ODDS}.in order"),
            flush=draw(rng, "aggregates.flush"),
            delay=draw(rng, "aggregates.delay"),
            partial=draw(rng, "aggregates.partial"),
            keeps=draw(apart, "aggregates.keeps"),
            slots=draw(apart, "aggregates.slots"),
        )

    def _many(self, name: str, inputs: tuple[str, ...]) -> NodeModel:
        return self._seen(NodeModel(name, draw(self.rng, f"{self.ODDS}.several inputs"), inputs))

    def _seen(self, node: NodeModel) -> NodeModel:
        """Keep to what SQL can say: rows without a time are never sorted, and mixed with others by a merge alone."""
        self.copies[node.name] = sum(self.copies[name] for name in node.inputs)
        timeless = [self.timeless[name] for name in node.inputs]
        if node.kind == "sort" and any(timeless):
            node = NodeModel(node.name, "plus", node.inputs, 1)
        if node.kind == "union" and len(set(timeless)) > 1:
            node = NodeModel(node.name, "merge", node.inputs)
        if node.kind in ("below", "divisor", "plus", "quotient") and node.inputs[0] in self.straight:
            self.straight.add(node.name)
        merged = node.kind == "merge"
        self.timeless[node.name] = any(timeless) and not merged
        if any(name in self.stamped for name in node.inputs) or (merged and any(timeless)):
            self.stamped.add(node.name)
        return node

    # -- the log ---------------------------------------------------------------------------------------------------

    def _log(self, later: tuple[str, ...], dropped: tuple[str, ...], paused: list[str]) -> tuple[Said, ...]:
        rng = self.rng
        self.now = BEGIN_US
        self.ids = 0
        length = draw(rng, "log.lines")
        log: list[Said] = []
        for _ in range(length):
            self.now += draw(rng, "log.time passes")
            log.append(self._said())
        for name in later:
            self._insert(log, "add", name, 0)
        for name in paused:
            first = next((place + 1 for place, said in enumerate(log) if said.query == name), 0)
            self._insert(log, "resume", name, self._insert(log, "pause", name, first) + 1)
        for name in dropped:
            self._insert(log, "drop", name, len(log))
        end = log[-1].at
        ends = [Said(end, "end", name) for name in (*(stream.name for stream in self.streams), *self.asides)]
        log += [Said(end, "check"), *ends, Said(end, "check")]
        return tuple(log)

    def _insert(self, log: list[Said], kind: Kind, name: str, first: int) -> int:
        """Put a command, behind a check, at a random place from `first` on; where it stands now."""
        place = self.rng.randint(max(first, 1), len(log))
        at = log[place - 1].at
        log[place:place] = [Said(at, "check"), Said(at, kind, query=name)]
        return place + 1

    def _said(self) -> Said:
        rng = self.rng
        stream = rng.choice(self.streams)
        feed = draw(rng, "log.feed")
        kind: Kind = draw(rng, "log.line")
        if kind == "tuples":
            return Said(self.now, "tuples", stream.name, feed, self._tuples(stream))
        if kind == "punctuation":
            # Only clients of external streams make promises about time.
            value = self.now - draw(rng, "log.punctuation back")
            if stream.timestamps == "external":
                return Said(self.now, "punctuation", stream.name, feed, value=value)
            return Said(self.now, "tick")
        if kind in ("open", "close"):
            return Said(self.now, kind, stream.name, feed)
        return Said(self.now, kind)

    def _tuples(self, stream: StreamDefinition) -> tuple[TupleOf, ...]:
        rng = self.rng
        made: list[TupleOf] = []
        back = max(stream.disorder_us, 4) if stream.disorder_us or draw(rng, "log.unpromised disorder") else 0
        base = self.now - draw(rng, "log.rows back")
        for _ in range(draw(rng, "log.rows")):
            base += draw(rng, "log.step")
            ts = base - rng.randint(0, back)
            v = draw(rng, "log.value")
            null = draw(rng, "log.null value")
            external = stream.timestamps == "external"
            timed = external or draw(rng, "log.time though internal")
            made.append((ts if timed else None, self.ids, None if null else v))
            self.ids += 1
        return tuple(made)


class _WindowMaker(_Maker):
    ODDS: ClassVar[str] = "windows"
