"""What an engine was before a change, so that it can become that again if a part of the change is refused.

Rule: this costs little, whatever else there is. Dicts are copied, and the state of the operators that the commands
concern is collected. All others are what they were, because nothing is derived before a change is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, TypeVar

from millrace.engine import events as e
from millrace.engine import saving
from millrace.engine.queries import Query
from millrace.operators.frame.operator import Operator

if TYPE_CHECKING:
    from millrace.engine.engine import Engine

T = TypeVar("T")


class Before:
    """An engine before a change.

    _copy       the engine with copies of its dicts, which have the same objects
    _queries    of each query, what a change may replace
    _streams    the same of each stream
    _forks      by fork, its name
    _operators  what the operators save that the commands concern
    _whole      what the rest saves that a change may alter
    """

    def __init__(self, engine: Engine, commands: Sequence[e.CommandBody]) -> None:
        engine.graph.derive()
        self._copy = _copied(engine)
        self._copy.graph, self._copy.chains = _copied(engine.graph), _copied(engine.chains)
        self._copy.reads = {sink: dict(readers) for sink, readers in engine.reads.items()}
        self._queries = [
            (one, one.plan, one.operators, one.paused, one.failed, one.lost, dict(one.apart), dict(one.separate))
            for one in engine.queries_by_name.values()
        ]
        self._streams = [(one, one.definition, one.source.ledger) for one in engine.streams_by_name.values()]
        self._forks = [(fork, fork.name) for fork in engine.graph.all_forks().values()]
        self._operators = {}
        for operator in _concerned(engine, commands):
            with suppress(Exception):  # it will raise again when it is saved with the others
                self._operators[operator] = saving.save_operator(operator)
        self._whole = {
            "time": engine.time.save(),
            "gauge": [engine.gauge.peak_tuples, engine.gauge.peak_bytes],
            "components": [component.save() for component in engine.graph.components],
        }

    def bring_back(self, engine: Engine) -> None:
        """Let the engine be what it was, in the step that is in progress."""
        before = self._copy
        for query, plan, operators, paused, failed, lost, apart, separate in self._queries:
            query.plan, query.operators, query.sink.query = plan, operators, plan.name
            query.paused, query.failed, query.lost, query.apart, query.separate = paused, failed, lost, apart, separate
        for stream, definition, ledger in self._streams:
            stream.definition, stream.source.ledger = definition, ledger
        for fork, name in self._forks:
            fork.name = name
        for name, operator in before.graph.operators.items():
            operator.name = name
        merge_wait = before.merge_wait
        before.queries_changed()  # its indexes list what there is now
        before.merge_wait = merge_wait
        collected = saving.collect(before, self._operators) | self._whole
        restored = saving.restore(saving.pack(collected), stopwatch=engine.stopwatch, trace=engine.trace)
        restored.graph.index = engine.graph.index
        restored.time.heard_us = engine.time.heard_us
        restored.time.serve(engine)
        vars(engine).update(vars(restored))


def _copied(whole: T) -> T:
    twin = copy(whole)
    vars(twin).update({name: value.copy() for name, value in vars(whole).items() if isinstance(value, dict | list)})
    return twin


def _concerned(engine: Engine, commands: Iterable[e.CommandBody]) -> dict[Operator, None]:
    """The operators whose state or inputs the commands may change: those of the queries that they are about, and of all
    that read these; and those that they read, whose queues end with them."""
    queries: dict[Query, None] = {}
    concerned: dict[Operator, None] = {}
    for command in commands:
        for query in _queries(engine, command):
            queries |= dict.fromkeys(_with_readers(engine, query))
        if isinstance(command, e.AlterStream | e.DropStream):
            names = (command.name, f"{command.name}.late")
            concerned |= {engine.source(name): None for name in names if name in engine.streams_by_name}
    for query in queries:
        for operator in (*query.operators, query.sink):
            concerned[operator] = None
            concerned |= {engine.graph.producer(inlet): None for inlet in operator.inputs}
    return concerned


def _queries(engine: Engine, command: e.CommandBody) -> Iterator[Query]:
    """The queries that a command is about."""
    match command:
        case e.Change(commands):
            for inner in commands:
                yield from _queries(engine, inner)
        case e.AddStream() | e.AddQuery() | e.SetWeight() | e.WithholdCredit() | e.SetStrategy(operator=None):
            pass
        case e.AlterStream(name) | e.DropStream(name):
            both = {name, f"{name}.late"}
            yield from (one for one in engine.queries_by_name.values() if not both.isdisjoint(one.plan.reads_streams))
        case e.SetBreak() | e.SetQueue() | e.RemoveOperator() | e.ReplaceOperator() | e.SetStrategy():
            yield from _named(engine, str(command.operator).partition(".")[0])
        case e.InsertOperator(before):
            yield from _named(engine, before.partition(".")[0])
        case e.ReplaceQuery(plan):
            yield from _named(engine, plan.name)
        case e.SetOrder(query):
            yield from _named(engine, query)
        case _:
            yield from _named(engine, command.name)


def _named(engine: Engine, name: str) -> Iterator[Query]:
    if name in engine.queries_by_name:  # else it is refused, or made by a command before
        yield engine.queries_by_name[name]


def _with_readers(engine: Engine, query: Query) -> list[Query]:
    """A query, and all that read its rows, directly or not."""
    found = [query]
    for one in found:
        found += [
            other
            for other in engine.queries_by_name.values()
            if one.plan.name in other.plan.reads_queries and other not in found
        ]
    return found
