"""The graph: which operators there are, who reads whom, and the state tables that follow from it.

Everything derived (forks, components, tables, who wants punctuation) is made anew by `rewire` after each change, from
the operators and three small things that an admin decides: a strategy per operator, break points, and weights. A
graph changes between two steps only, so `rewire` never meets a cycle in progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from millrace.engine.component import Component
from millrace.engine.rules import RULES
from millrace.engine.table import Discipline, Next, Row, Strategy, role_of
from millrace.operators.arcs import Arc
from millrace.operators.buffer import Reader
from millrace.operators.fork import Fork
from millrace.operators.grain import EVERY, Grain, union_of
from millrace.operators.operator import Operator
from millrace.operators.prone import Prone
from millrace.operators.sink import Sink
from millrace.operators.source import Source
from millrace.protocol import Refuse

DEFAULT: Final = Strategy()


class Graph:
    """Operators by name in order of their making (an operator comes after those it reads), and their components.

    components   in order of the age of their oldest stream, whose name each one has
    strategies   per operator; one without an entry has its component's
    breaks       the operators at whose output an admin has set a break point
    punctuating  the sources whose promises on demand go through the operators, not by arcs
    thin         whether arcs carry only the punctuation that their readers declare, or all there is (to compare)
    """

    def __init__(self, *, thin: bool = True) -> None:
        self.thin = thin
        self._still = False
        self.operators: dict[str, Operator] = {}
        self.components: list[Component] = []
        self.strategies: dict[str, Strategy] = {}
        self.breaks: dict[str, None] = {}
        self.forks: dict[Operator, Fork] = {}
        self.punctuating: dict[Source, None] = {}
        self._component_of: dict[Operator, Component] = {}
        self._consumers: dict[Reader, Operator] = {}
        self._producers: dict[int, Operator] = {}

    # -- changing ------------------------------------------------------------------------------------------------------

    def add(self, operators: Sequence[Operator], strategy: Strategy | None = None) -> None:
        """Add operators, under a strategy of their own or their component's."""
        for operator in operators:
            self.operators[operator.name] = operator
            if not isinstance(operator, Sink):
                self._producers[id(operator.output)] = operator
            if strategy is not None:
                self.strategies[operator.name] = strategy
        self.rewire()

    def remove(self, operators: Iterable[Operator]) -> None:
        for operator in operators:
            del self.operators[operator.name]
            if isinstance(operator, Source):
                self.punctuating.pop(operator, None)
            self.strategies.pop(operator.name, None)
            self.breaks.pop(operator.name, None)
        self.rewire()

    def exchange(
        self, arranged: Sequence[Operator], before: Iterable[Operator], renamed: Mapping[Operator, str]
    ) -> None:
        """Take all operators anew, in this order, without a `rewire`: of those before, only the renamed ones go on.

        What an admin decided of an operator follows its name.
        """
        strategies: dict[str, Strategy] = {}
        breaks: dict[str, None] = {}
        for operator in before:
            strategy, broken = self.strategies.pop(operator.name, None), operator.name in self.breaks
            self.breaks.pop(operator.name, None)
            if operator in renamed:
                if strategy is not None:
                    strategies[renamed[operator]] = strategy
                if broken:
                    breaks[renamed[operator]] = None
        for operator, name in renamed.items():
            operator.name = name
        self.strategies |= strategies
        self.breaks |= breaks
        self.operators = {operator.name: operator for operator in arranged}

    def rename(self, names: Mapping[Operator, str]) -> None:
        """Other names for operators and forks, which keep their places and what was decided of them."""
        moved = {operator.name: name for operator, name in names.items()}
        for operator, name in names.items():
            operator.name = name
        self.operators = {operator.name: operator for operator in self.operators.values()}
        self.strategies = {moved.get(name, name): strategy for name, strategy in self.strategies.items()}
        self.breaks = {moved.get(name, name): None for name in self.breaks}

    def replace(self, renewed: Iterable[tuple[Operator, Operator]]) -> None:
        """Put operators in the places of others of the same names, on the same arcs."""
        for old, new in renewed:
            self.operators[new.name] = new
            if old in self.forks:
                self.forks[new] = self.forks.pop(old)
            self._component_of[new] = self._component_of.pop(old)
        self.rewire()

    def set_strategy(self, component_name: str, strategy: Strategy, operator_name: str | None) -> None:
        """Re-map the rows of a component, or one of them."""
        component = self.component(component_name)
        if operator_name is None:
            component.strategy = strategy
            for operator in component.table:
                self.strategies[operator.name] = strategy
        else:
            operator = self._row_operator(operator_name)
            if self._component_of[operator] is not component:
                raise Refuse(
                    f"operator {operator_name} is not in component {component_name} but in "
                    f"{self._component_of[operator].name}"
                )
            self.strategies[operator.name] = strategy
        self.rewire()

    def set_break(self, operator_name: str, on: bool) -> None:
        """Set or unset a break point at the output of an operator."""
        operator = self._row_operator(operator_name)
        if isinstance(operator, Fork):
            raise Refuse(f"{operator_name} is a fork: set the break point at the operator before it")
        if on == (operator.name in self.breaks):
            raise Refuse(f"operator {operator_name} has {'a' if on else 'no'} break point already")
        if on:
            self.breaks[operator.name] = None
        else:
            del self.breaks[operator.name]
        self.rewire()

    @contextmanager
    def still(self) -> Iterator[None]:
        """While this holds, additions are not derived from; once at the end they are."""
        self._still = True
        try:
            yield
        finally:
            self._still = False
        self.rewire()

    def decide_as(self, other: Graph) -> None:
        """Take over what was decided of another graph with the same operators: strategies, weights, break points, and
        the names that forks and components have got."""
        for operator, fork in other.forks.items():
            mine = self.operators[operator.name]
            if mine in self.forks:
                self.forks[mine].name = fork.name
        by_first = {next(iter(found.table)).name: found for found in other.components}
        self.rewire()
        for component in self.components:
            twin = by_first[next(iter(component.table)).name]
            component.name, component.strategy, component.weight = twin.name, twin.strategy, twin.weight
        self.strategies, self.breaks = dict(other.strategies), dict(other.breaks)
        self.rewire()

    # -- looking up ----------------------------------------------------------------------------------------------------

    def component(self, name: str) -> Component:
        for component in self.components:
            if component.name == name:
                return component
        raise Refuse(
            f"there is no component {name}; there are: {', '.join(c.name for c in self.components) or 'none'}",
            code="unknown_component",
        )

    def component_of(self, operator: Operator) -> Component:
        return self._component_of[operator]

    def operator(self, name: str) -> Operator:
        found = self.operators.get(name) or next((fork for fork in self.forks.values() if fork.name == name), None)
        if found is None:
            raise Refuse(f"there is no operator {name}", code="unknown_operator")
        return found

    def producer(self, reader: Reader) -> Operator:
        """The operator that fills what this reader reads."""
        return self._producers[id(reader.home)]

    def readers(self, operator: Operator) -> list[Operator]:
        """The operators that read what this one gives; a sink gives nothing."""
        if isinstance(operator, Sink):
            return []
        return [self._consumers[reader] for reader in operator.output.readers]

    def all_operators(self) -> list[Operator]:
        """Every operator, each fork behind the operator whose output it shares."""
        listed: list[Operator] = []
        for operator in self.operators.values():
            listed.append(operator)
            if operator in self.forks:
                listed.append(self.forks[operator])
        return listed

    def broken(self, operator: Operator) -> str | None:
        """Why there is a break point at an operator's output: `user`, `rr`, or None if there is none.

        Round robin runs paths only, so an operator under it ends its fragment before a fork or a join of several
        inputs.
        """
        if operator.name in self.breaks:
            return "user"
        if self._strategy(operator).discipline is Discipline.RR:
            scheduled = self._scheduled(operator)
            if len(scheduled) > 1 or any(len(self._consumers[reader].inputs) > 1 for reader in scheduled):
                return "rr"
        return None

    def _row_operator(self, name: str) -> Operator:
        operator = self.operator(name)
        if isinstance(operator, Sink):
            raise Refuse(f"{name} is a sink: it has no row in the state table")
        return operator

    def _strategy(self, operator: Operator) -> Strategy:
        own = self.strategies.get(operator.name)
        if own is not None:
            return own
        component = self._component_of.get(operator)
        return component.strategy if component is not None else DEFAULT

    def _scheduled(self, operator: Operator) -> list[Reader]:
        """The readers of an operator's output that have turns: sinks have none."""
        return [reader for reader in operator.output.readers if not isinstance(self._consumers[reader], Sink)]

    # -- deriving ------------------------------------------------------------------------------------------------------

    def rewire(self) -> None:
        """Derive forks, components, state tables and the wish for punctuation from the operators."""
        if self._still:
            return
        operators = list(self.operators.values())
        self._consumers = {reader: operator for operator in operators for reader in operator.inputs}
        self._producers = {id(operator.output): operator for operator in operators if not isinstance(operator, Sink)}
        self._sort_readers(operators)
        self._fork(operators)
        self._divide(operators)
        self._want(operators)
        self._draw_arcs(operators)
        for component in self.components:
            members = [operator for operator in self.all_operators() if self._component_of[operator] is component]
            sinks = [operator for operator in members if isinstance(operator, Sink)]
            component.rows((self._row(operator) for operator in members if not isinstance(operator, Sink)), sinks)

    def _sort_readers(self, operators: Sequence[Operator]) -> None:
        """Readers of an output stand in the order of their operators, after a pause too: forks take turns by it."""
        age = {operator: position for position, operator in enumerate(operators)}
        for operator in operators:
            if len(operator.output.readers) > 1:
                operator.output.readers.sort(key=lambda reader: age[self._consumers[reader]])

    def _fork(self, operators: Sequence[Operator]) -> None:
        """A fork wherever an output has several scheduled readers; one that exists keeps its name and its turn."""
        forks: dict[Operator, Fork] = {}
        taken = {fork.name for operator, fork in self.forks.items() if self.operators.get(operator.name) is operator}
        for operator in operators:
            if isinstance(operator, Sink) or len(self._scheduled(operator)) < 2:
                continue
            fork = self.forks.get(operator)
            if fork is None:
                fork = Fork(self._fork_name(operator, taken), operator.output)
                taken.add(fork.name)
            forks[operator] = fork
        self.forks = forks

    def _fork_name(self, operator: Operator, taken: set[str]) -> str:
        base = operator.name.rpartition(".")[0]
        number = 1
        while f"{base}.fork{number}" in taken:
            number += 1
        return f"{base}.fork{number}"

    def _divide(self, operators: Sequence[Operator]) -> None:
        """Find the connected sets: merged ones go on as the one with the oldest stream, parts of a split inherit."""
        leader: dict[Operator, Operator] = {operator: operator for operator in operators}

        def find(operator: Operator) -> Operator:
            while leader[operator] is not operator:
                leader[operator] = leader[leader[operator]]
                operator = leader[operator]
            return operator

        age = {operator: position for position, operator in enumerate(operators)}
        for operator in operators:
            for reader in operator.inputs:
                one, other = sorted((find(operator), find(self.producer(reader))), key=age.__getitem__)
                leader[other] = one
        before = {component.name: component for component in self.components}
        made: dict[Operator, Component] = {}
        component_of: dict[Operator, Component] = {}
        for operator in operators:
            first = find(operator)
            if first not in made:
                name = first.name.rpartition(".")[0]
                parent = self._component_of.get(first)
                strategy = parent.strategy if parent is not None else DEFAULT
                made[first] = before.get(name) or Component(name, strategy)
            component_of[operator] = made[first]
        for operator, fork in self.forks.items():
            component_of[fork] = component_of[operator]
        # Rows that exist keep their rule when components merge; new operators take the strategy of the one they join.
        for operator, parent in self._component_of.items():
            if operator in component_of and component_of[operator] is not parent:
                self.strategies.setdefault(operator.name, parent.strategy)
        self._component_of = component_of
        self.components = list(made.values())

    def _want(self, operators: Sequence[Operator]) -> None:
        """Punctuation is put on an arc only where somebody behind it has a use for it, and only what is of use."""
        for operator in reversed(operators):
            if isinstance(operator, Sink):
                continue
            declared: list[Grain] = []
            for reader in operator.output.readers:
                grain = self._consumers[reader].declares()
                if grain is not None:
                    reader.grain = grain if self.thin else EVERY
                    declared.append(reader.grain)
            operator.output.want(union_of(declared) if declared else None)

    def _draw_arcs(self, operators: Sequence[Operator]) -> None:
        """An ETS arc from each source or idle-waiting operator to each next register below it (EQG, section 4).

        Behind a source whose promises are to go through the operators, nothing goes by arcs.
        """
        through: dict[Operator, None] = {}
        for operator in operators:
            if operator in self.punctuating or any(self.producer(reader) in through for reader in operator.inputs):
                through[operator] = None
            if isinstance(operator, Source | Prone):
                operator.arcs = () if operator in through else tuple(self._arcs_from(operator, ()))

    def _arcs_from(self, operator: Operator, between: tuple[Reader, ...]) -> Iterator[Arc]:
        for reader in operator.output.readers:
            consumer = self._consumers[reader]
            if consumer.declares() is None:
                continue
            if isinstance(consumer, Sink) or consumer.waits or consumer.bends or len(consumer.inputs) > 1:
                yield Arc(reader, consumer, between)
            else:
                yield from self._arcs_from(consumer, (*between, reader))

    def _row(self, operator: Operator) -> Row:
        strategy = self._strategy(operator)
        if isinstance(operator, Fork):
            origin = next(producer for producer, fork in self.forks.items() if fork is operator)
            readers = tuple(self._scheduled(origin))
            succs = tuple(self._consumers[reader] for reader in readers)
            preds: tuple[Operator | None, ...] = (None if self.broken(origin) else origin,)
            sinks: tuple[Sink, ...] = ()
        else:
            preds = tuple(self._pred(reader) for reader in operator.inputs)
            readers = tuple(self._scheduled(operator))
            sinks = tuple(
                consumer for reader in operator.output.readers if isinstance(consumer := self._consumers[reader], Sink)
            )
            succs = self._succs(operator, readers)
            operator.output.entries = self._entries(operator, readers)
            if not succs:
                readers = ()
        role = role_of(operator, preds, succs)
        rule = RULES[role, strategy.discipline]
        return Row(operator, preds, succs, readers, sinks, role, strategy, rule, self._leaps(operator))

    def _leaps(self, operator: Operator) -> tuple[tuple[Reader, Next], ...]:
        """The moves along an operator's ETS arcs; a register at a sink is nobody's turn."""
        if not isinstance(operator, Source | Prone):
            return ()
        return tuple(
            (arc.register, Next(arc.target, execute=True)) for arc in operator.arcs if not isinstance(arc.target, Sink)
        )

    def _pred(self, reader: Reader) -> Operator | None:
        producer = self.producer(reader)
        if producer in self.forks:
            return self.forks[producer]
        return None if self.broken(producer) else producer

    def _succs(self, operator: Operator, readers: Sequence[Reader]) -> tuple[Operator, ...]:
        if self.broken(operator) or not readers:
            return ()
        return (self.forks[operator],) if operator in self.forks else (self._consumers[readers[0]],)

    def _entries(self, operator: Operator, readers: Sequence[Reader]) -> tuple[Operator, ...]:
        """Where a cycle may begin when something is put into the operator's output."""
        if self.broken(operator):
            return (self.forks[operator],) if operator in self.forks else tuple(self._consumers[r] for r in readers)
        return (operator,) if isinstance(operator, Source) else ()
