"""Small graphs made by hand, and an engine to run them: the tests of the scheduler need no SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Answer,
    Arrived,
    Command,
    CommandBody,
    Deliver,
    Effects,
    Punctuated,
    QueryFailed,
)
from millrace.engine.plan import Node, QueryOptions, QueryPlan, StreamDefinition
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.frame.spec import Spec
from millrace.operators.project.spec import MapSpec
from millrace.operators.sort.spec import SortSpec
from millrace.operators.union.spec import UnionSpec
from millrace.protocol import Refuse, Schema, Type
from millrace.values.batch import Batch
from millrace.values.expression import Call, Column, Constant, Expression

V = Schema.of(v="bigint")
TV = Schema.of(ts="timestamp", v="bigint")
COLUMN = Column(Type.BIGINT, True, 0, "v")


def compare(operator: str, value: int, column: Expression = COLUMN) -> Expression:
    return Call(Type.BOOLEAN, True, f"{operator}(bigint, bigint)", (column, Constant(Type.BIGINT, False, value)))


EVERYTHING = compare(">=", -(2**62))


def select(predicate: Expression = EVERYTHING) -> Spec:
    return SelectSpec(predicate)


def identity(schema: Schema = V) -> Spec:
    return MapSpec(
        tuple((field.name, Column(field.type, field.nullable, at, field.name)) for at, field in enumerate(schema))
    )


def union(*, ordered: bool = False) -> Spec:
    return UnionSpec(ordered)


def sort() -> Spec:
    return SortSpec()


def plan(name: str, *nodes: tuple[str, Spec, Iterable[str]], schema: Schema = V, ordered: bool = False) -> QueryPlan:
    """A plan from `(operator, spec, inputs)`; names without a dot are the plan's own."""
    made = tuple(
        Node(
            f"{name}.{operator}",
            spec,
            tuple(source if "." in source else f"{name}.{source}" for source in inputs),
        )
        for operator, spec, inputs in nodes
    )
    outside = {source for node in made for source in node.inputs if not source.startswith(f"{name}.")}
    streams = tuple(sorted(source.removesuffix(".source") for source in outside if source.endswith(".source")))
    queries = tuple(sorted(source.split(".")[0] for source in outside if not source.endswith(".source")))
    return QueryPlan(
        name,
        made,
        made[-1].name,
        schema,
        QueryOptions(order="event" if ordered else "arrival"),
        reads_streams=streams,
        reads_queries=queries,
    )


def path(name: str, length: int, stream: str = "s") -> QueryPlan:
    """Operators Q1 to Qn in a row, all of which pass every tuple."""
    return plan(
        name, *((f"Q{n}", identity(), [f"{stream}.source" if n == 1 else f"Q{n - 1}"]) for n in range(1, length + 1))
    )


def figure_4(name: str = "u", *, ordered: bool) -> QueryPlan:
    """The papers' simple union: two streams, a selection on each."""
    return plan(
        name,
        ("A", select(), ["a.source"]),
        ("B", select(), ["b.source"]),
        ("U", union(ordered=ordered), ["A", "B"]),
        ordered=ordered,
    )


class Bench:
    """A running engine: commands that must succeed, arrivals, and their effects."""

    may_fail = False

    def __init__(self, *streams: StreamDefinition | str, **options: Any) -> None:
        self.engine = Engine(trace=True, **options)
        self.now_us = 0
        for stream in streams:
            definition = StreamDefinition(stream, V) if isinstance(stream, str) else stream
            self.do(AddStream(definition))

    def do(self, body: CommandBody) -> Any:
        """Obey a command; its answer's value, or its refusal raised."""
        effects = self.engine.step(self.now_us, [Command(1, body)], budget=0)
        (answer,) = (effect for effect in effects.orders if isinstance(effect, Answer))
        if answer.refused is not None:
            raise answer.refused
        return answer.value

    def query(self, made: QueryPlan, strategy: str | None = None) -> Any:
        return self.do(AddQuery(made, strategy))

    def step(self, *events: Any, at: int | None = None, **limits: Any) -> Effects:
        self.now_us = self.now_us + 1 if at is None else at
        return self._checked(self.engine.step(self.now_us, events, **limits))

    def _checked(self, effects: Effects) -> Effects:
        """A query that fails is a mistake, unless the test is about that."""
        failed = [effect for effect in effects.orders if isinstance(effect, QueryFailed)]
        assert self.may_fail or not failed, failed[0].detail or failed[0].reason
        return effects

    def run(self, *events: Any, at: int | None = None, **limits: Any) -> Effects:
        """Step until no work is left; return all effects as the effects of one step."""
        effects = self.step(*events, at=at, **limits)
        while effects.more:
            after = self._checked(self.engine.step(self.now_us, (), **limits))
            effects.orders += after.orders
            effects.executions += after.executions
            effects.more = after.more
        return effects

    def visits(self, *events: Any, at: int | None = None) -> str:
        """The operators executed, by their short names, as one string."""
        return " ".join(execution.operator.split(".")[1] for execution in self.run(*events, at=at).executions)

    def rule(self, operator: str) -> str:
        """The transition in an operator's row."""
        for component in self.engine.components():
            for row in self.engine.table(component.name).rows:
                if row.state == operator:
                    return row.transition
        raise AssertionError(f"no row {operator}")


def arrive(stream: str, *values: int, feed: str = "main") -> Arrived:
    """Tuples for an internal stream."""
    return Arrived(stream, feed, Batch.from_rows(V, [(value,) for value in values], [0] * len(values)))


def at_times(stream: str, *times: int, feed: str = "main", schema: Schema = V) -> Arrived:
    """Tuples for an external stream, each with its time for a value."""
    rows = [(time,) if len(schema) == 1 else (time, time) for time in times]
    return Arrived(stream, feed, Batch.from_rows(schema, rows, list(times)))


def punctuate(stream: str, value_us: int, feed: str = "main") -> Punctuated:
    return Punctuated(stream, feed, value_us)


def external(name: str, **options: Any) -> StreamDefinition:
    return StreamDefinition(name, TV, "external", "ts", **options)


def rows(effects: Effects, query: str) -> list[tuple[Any, ...]]:
    """The rows delivered for a query."""
    return [
        row
        for effect in effects.orders
        if isinstance(effect, Deliver) and effect.query == query
        for row in effect.batch.rows()
    ]


def times(effects: Effects, query: str) -> list[int]:
    return [
        int(time)
        for effect in effects.orders
        if isinstance(effect, Deliver) and effect.query == query
        for time in effect.batch.ts
    ]


def refusal(bench: Bench, body: CommandBody) -> str:
    """The text with which a command is refused."""
    try:
        bench.do(body)
    except Refuse as refused:
        return refused.text
    raise AssertionError(f"not refused: {body}")


def give_tv(stream: str, *at: int, feed: str = "main") -> Arrived:
    """Tuples `(time, value)` for an external stream."""
    return at_times(stream, *at, feed=feed, schema=TV)
