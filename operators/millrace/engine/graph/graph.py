"""The graph: which operators there are, who reads whom, and the state tables that follow from it.

Everything else (forks, components, tables, punctuation of arcs) is derived again after a change, from the operators
and few small things that are decided: a strategy per operator, break points, weights, and which sources' promises go
through the operators. The next lookup derives it: several changes in a row cost one. A graph changes between two steps
only, so that never meets a cycle in progress.

`rewire` has everything derived. Most changes concern a few operators: these are named (`touch`, `rule_again`), and
only what follows from them is derived (`_reconnect`, `_rederive`). A new query changes nothing but the rows of what it
reads (`_link`, `_list`), so creating queries takes a time proportional to their number. Each way has the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter, lt
from typing import Final, NamedTuple, TypeVar

from millrace.engine.scheduler.component import Component
from millrace.engine.scheduler.rules import RULES, encore
from millrace.engine.scheduler.table import Link, Next, Row, Strategy, StrategyKind, role_of
from millrace.operators.filter import routing
from millrace.operators.fork.fork import Fork
from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.ets_arcs import Arc
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.frame.order_switching import OrderSwitching
from millrace.operators.frame.punctuation_grain import EVERY, PunctuationGrain, union_of
from millrace.operators.sink.sink import Sink
from millrace.operators.source.source import Source
from millrace.protocol import Refuse
from millrace.values.eventtime import MIN_TIME

DEFAULT: Final = Strategy()
NAME: Final = attrgetter("name")

_Decision = TypeVar("_Decision")
# The operators that a component lists by their kind, in their order.
LISTED: Final = (Source, IdleWaiting, OrderSwitching, Sink)


def hand_over(decided: dict[Operator, _Decision], old: Operator, new: Operator) -> None:
    """What was decided or measured of an operator belongs to the one that takes its place."""
    if old in decided:
        decided[new] = decided.pop(old)


class GraphDecisions(NamedTuple):
    """What is decided of a graph: strategies, weights, break points, and the names that forks and components have got.

    forks, resting    by operator whose output they share: the forks and their names, and turns of resting ones
    components        by first operator: name, strategy and weight
    """

    forks: Mapping[Operator, tuple[Fork, str]]
    resting: Mapping[Operator, tuple[Fork, str, int]]
    components: Mapping[Operator, tuple[str, Strategy, int]]
    strategies: Mapping[Operator, Strategy]
    breaks: Sequence[Operator]
    links: Mapping[Operator, Link]


class Touched:
    """What has changed: operators that have other readers, new and former ones, readers with other inputs, and
    operators in another place."""

    def __init__(self) -> None:
        self.operators: dict[Operator, None] = {}
        self.new: dict[Operator, None] = {}
        self.gone: dict[Operator, None] = {}
        self.readers: dict[Operator, None] = {}
        self.moved: dict[Operator, None] = {}
        self.reorders = False  # whether the forks are others
        self.sorts = False  # whether readers may stand in another order

    def __bool__(self) -> bool:
        return bool(self.operators or self.gone)

    @property
    def keeps_inputs(self) -> bool:
        """Whether every operator still has the inputs that it had."""
        return not (self.new or self.gone or self.readers)

    def note(
        self,
        operators: Iterable[Operator],
        new: Iterable[Operator],
        gone: Sequence[Operator],
        readers: Iterable[Operator],
    ) -> None:
        self.gone |= dict.fromkeys(gone)
        self.new |= dict.fromkeys(new)
        self.operators |= dict.fromkeys(operators)
        self.readers |= dict.fromkeys(readers)
        for one in gone:
            for known in (self.new, self.operators, self.readers, self.moved):
                known.pop(one, None)


class Exchanged(NamedTuple):
    """What becomes of operators: some are new, some are gone, and some stand in the place of others. `readers` may have
    other inputs than before, and `arcs` other readers. `in_place` says that all but the `moved` ones keep their order.
    """

    new: Sequence[Operator]
    gone: Sequence[Operator]
    instead: Mapping[Operator, Operator]
    readers: Sequence[Operator]
    arcs: Sequence[Buffer]
    moved: Sequence[Operator]
    in_place: bool


class Graph:
    """Operators by name in order of their making (an operator comes after those it reads), and their components.

    components   in order of the age of their oldest stream, whose name each one has
    strategies   per operator; one without an entry has its component's
    breaks       the operators at whose output an admin has set a break point
    links        by operator, what `chain` has decided of those that it schedules
    punctuating  the sources whose promises on demand go through the operators, not by arcs
    resting      forks of which a pause has left fewer than two readers: they keep their names, turns and strategies
    faults       the operators that raised while the graph was derived
    stopped      the operators of failed queries: they have rows, but no turn and no need
    index        whether a predicate index lets filters sleep, or each of them sees each batch (to compare)
    thin         whether arcs carry only the punctuation that their readers declare, or all there is (to compare)
    """

    def __init__(self, *, thin: bool = True, index: bool = True) -> None:
        self.thin = thin
        self.index = index
        self.operators: dict[str, Operator] = {}
        self.strategies: dict[Operator, Strategy] = {}
        self.breaks: dict[Operator, None] = {}
        self.links: dict[Operator, Link] = {}
        self.punctuating: dict[Source, None] = {}
        self.resting: dict[Operator, Fork] = {}
        self.stopped: dict[Operator, None] = {}
        self.faults: dict[Operator, Exception] = {}
        self._components: list[Component] = []
        self._forks: dict[Operator, Fork] = {}
        self._component_of: dict[Operator, Component] = {}
        self._consumers: dict[Inlet, Operator] = {}
        self._producers: dict[int, Operator] = {}
        self._broken: dict[Operator, str] = {}  # the break points in the tables
        self._connected = self._derived = True  # whether nothing below waits for _connect, or for derive
        self._unconnected = self._underived = False  # whether everything is to be derived
        self._unlinked: list[Operator] = []  # new operators, before _connect
        self._unlisted: list[Operator] = []  # and before derive
        self._touched = Touched()
        self._ruled: dict[Operator, None] = {}

    # -- changing ------------------------------------------------------------------------------------------------------

    def add(self, operators: Sequence[Operator], strategy: Strategy | None = None) -> None:
        """Add operators, under this strategy or their component's."""
        for operator in operators:
            self.operators[operator.name] = operator
            if not isinstance(operator, Sink):
                self._producers[id(operator.output)] = operator
            if strategy is not None:
                self.strategies[operator] = strategy
        self._unlinked.extend(operators)
        self._connected = self._derived = False

    def become(self, operators: Sequence[Operator], names: Mapping[Operator, str], change: Exchanged) -> None:
        """Consist of these operators, in this order; some have other names, as have their forks. What was decided of an
        operator goes with it, unless another takes its place."""
        before, new, gone = self.operators, change.new, dict.fromkeys(change.gone)
        above = {self.producer(inlet): None for one in gone for inlet in one.inputs}
        for operator, name in names.items():
            operator.name = name
        self._rename_forks(names)
        self.operators = dict(zip(map(NAME, operators), operators, strict=True))
        for one in gone:
            if not isinstance(one, Sink):
                del self._producers[id(one.output)]
        for one in (*new, *change.instead.values()):
            if not isinstance(one, Sink):
                self._producers[id(one.output)] = one
        for old, one in change.instead.items():
            self._stand_in(old, one)
        for operator in gone:
            self._forget(operator)
            self.stopped.pop(operator, None)
            if isinstance(operator, Source):
                self.punctuating.pop(operator, None)
            self._forget_fork(operator)
        for operator in above:
            if (operator in self._forks or operator in self.resting) and not self._is_shared(operator):
                self._forget_fork(operator)
        if not change.in_place:
            known, added = list(before.values()), dict.fromkeys(new)
            if known == list(operators):
                return
            stays = dict.fromkeys(operators)
            if [one for one in known if one in stays] != [one for one in operators if one not in added]:
                self.rewire()
                return
        elif not (new or gone or change.instead or change.moved):
            return
        self._touched.moved |= dict.fromkeys(change.moved)
        touched = [self._producers[id(arc)] for arc in change.arcs if id(arc) in self._producers]
        self._touch(
            [*touched, *(one for one in above if one not in gone)],
            new,
            [*gone, *change.instead],
            change.readers,
            sorts=bool(new or change.readers),
        )

    def _stand_in(self, old: Operator, new: Operator) -> None:
        for forks in (self._forks, self.resting):
            if old in forks:
                forks[new] = forks.pop(old)
        if old in self.stopped:
            del self.stopped[old]
            self.stopped[new] = None
        if old in self._component_of:
            self._component_of[new] = self._component_of.pop(old)
        hand_over(self.strategies, old, new)
        hand_over(self.breaks, old, new)
        hand_over(self.links, old, new)
        self._lead(old, new)

    def _forget(self, operator: Operator) -> None:
        self.strategies.pop(operator, None)
        self.breaks.pop(operator, None)
        self.links.pop(operator, None)
        self._lead(operator, None)

    def _lead(self, old: Operator, new: Operator | None) -> None:
        """Another operator is the first of a segment; None: each of the others names itself until `chain` decides."""
        for operator, link in self.links.items():
            if link.segment is old:
                self.links[operator] = replace(link, segment=operator if new is None else new)
                component = self._component_of.get(operator)
                if component is not None and operator in component.table:
                    component.table[operator].link = self.links[operator]

    def _forget_fork(self, operator: Operator) -> None:
        for forks in (self._forks, self.resting):
            fork = forks.pop(operator, None)
            if fork is not None:
                self._component_of.pop(fork, None)
                self._forget(fork)
                self._touched.reorders = True

    def _is_shared(self, operator: Operator) -> bool:
        """Whether several operators read an output, those that are away among them."""
        readers = (
            reader
            for one in self.operators.values()
            if not isinstance(one, Sink)
            for reader in one.inputs
            if reader.arc is operator.output
        )
        return next(readers, None) is not None and next(readers, None) is not None

    def decided(self, operator: Operator) -> bool:
        """Whether an admin has set a break point at an operator, or a strategy that its component has not."""
        own = self.strategies.get(operator)
        return operator in self.breaks or (own is not None and own != self.component_of(operator).strategy)

    def set_strategy(self, component_name: str, strategy: Strategy, operator_name: str | None) -> None:
        """Re-map the rows of a component, or one of them."""
        component = self._named(component_name)
        if operator_name is None:
            component.strategy = strategy
            members = [one for one in self.all_operators() if self._component_of[one] is component]
            scheduled = [one for one in members if not isinstance(one, Sink)]
            self.strategies |= dict.fromkeys((*scheduled, *self._resting_in(component)), strategy)
            self.rule_again(scheduled)
        else:
            resting: list[Operator] = [fork for fork in self._resting_in(component) if fork.name == operator_name]
            operator = resting[0] if resting else self._row_operator(operator_name)
            if self._component_of.get(operator, component) is not component:
                raise Refuse(
                    f"operator {operator_name} is not in component {component_name} but in "
                    f"{self._component_of[operator].name}"
                )
            self.strategies[operator] = strategy
            self.rule_again([] if resting else [operator])

    def rest(self, operator: Operator, name: str, turn: int) -> Fork:
        """Take a fork as it was saved while a pause had left it fewer than two readers."""
        fork = self.resting[operator] = Fork(name, operator.output)
        fork.turn = turn
        return fork

    def _resting_in(self, component: Component) -> list[Fork]:
        return [fork for operator, fork in self.resting.items() if self._component_of.get(operator) is component]

    def set_break(self, operator_name: str, on: bool) -> None:
        """Set or unset a break point at the output of an operator."""
        operator = self._row_operator(operator_name)
        if isinstance(operator, Fork):
            raise Refuse(f"{operator_name} is a fork: set the break point at the operator before it")
        if on == (operator in self.breaks):
            raise Refuse(f"operator {operator_name} {'already has a' if on else 'has no'} break point")
        if on:
            self.breaks[operator] = None
        else:
            del self.breaks[operator]
        self.rule_again([operator])

    def has_break(self, operator_name: str) -> bool:
        return any(operator.name == operator_name for operator in self.breaks)

    def decide_chain(self, links: Mapping[Operator, Link]) -> None:
        """Take what `chain` has decided of a component."""
        self.links.update(links)
        self.rule_again(links)

    def forget_links(self, operators: Iterable[Operator]) -> None:
        """Their paths become others: `chain` measures them again."""
        known = [operator for operator in operators if operator in self.links]
        for operator in known:
            del self.links[operator]
        self.rule_again(known)

    def set_weight(self, component_name: str, weight: int) -> None:
        self._named(component_name).weight = weight

    def decisions(self) -> GraphDecisions:
        """What is decided of the graph beyond its operators, at this moment."""
        return GraphDecisions(
            {operator: (fork, fork.name) for operator, fork in self.forks.items()},
            {operator: (fork, fork.name, fork.turn) for operator, fork in self.resting.items()},
            {next(iter(one.table)): (one.name, one.strategy, one.weight) for one in self.components},
            self.strategies.copy(),
            list(self.breaks),
            self.links.copy(),
        )

    def decide(self, decisions: GraphDecisions, twins: Mapping[Operator, Operator]) -> None:
        """Take over what was decided of another graph, of whose operators all, or some, have `twins` here."""
        known = dict(twins)
        for operator, (fork, name) in decisions.forks.items():
            if operator in twins and twins[operator] in self.forks:
                known[fork] = mine = self.forks[twins[operator]]
                mine.name = name
        for operator, (fork, name, turn) in decisions.resting.items():
            if operator in twins:
                known[fork] = self.rest(twins[operator], name, turn)
        for first, (name, strategy, weight) in decisions.components.items():
            if first in twins:
                component = self.component_of(twins[first])
                component.name, component.strategy, component.weight = name, strategy, weight
        self.strategies = {known[one]: strategy for one, strategy in decisions.strategies.items() if one in known}
        self.breaks = dict.fromkeys(known[one] for one in decisions.breaks if one in known)
        self.links = {
            known[one]: replace(link, segment=known.get(link.segment, known[one]))
            for one, link in decisions.links.items()
            if one in known
        }
        self.rewire()

    def take_apart(self) -> None:
        """Separate operators and arcs, which refer to each other, so that a graph that has served is freed at once."""
        for operator in (*self.operators.values(), *self._forks.values(), *self.resting.values()):
            if not isinstance(operator, Sink):
                operator.output.readers.clear()
                operator.output.branches, operator.output.routing = (), None
            vars(operator).clear()

    # -- looking up ----------------------------------------------------------------------------------------------------

    @property
    def components(self) -> list[Component]:
        if not self._derived:
            self.derive()
        return self._components

    @property
    def forks(self) -> dict[Operator, Fork]:
        """By operator whose output several share, the fork that says whose turn it is."""
        self._connect()
        return self._forks

    def all_forks(self) -> dict[Operator, Fork]:
        """The same, with those that rest."""
        return self.forks | self.resting

    def divided(self) -> list[Component]:
        """The same with their members alone: their tables may not have been derived yet."""
        self._connect()
        return self._components

    @property
    def chained(self) -> bool:
        """Whether any operator is under `chain`."""
        for component in self.components:  # noqa: SIM110 (asked in every step)
            if component.ready.slopes:
                return True
        return False

    def component(self, name: str) -> Component:
        self.derive()
        return self._named(name)

    def has(self, operator: Operator) -> bool:
        """Whether an operator, or a fork, is in the graph now."""
        self._connect()
        return operator in self._component_of

    def homes(self) -> Mapping[Operator, Component]:
        """By operator or fork, the component that it is in now; their tables are derived."""
        self.derive()
        return self._component_of

    def component_of(self, operator: Operator) -> Component:
        """The component that an operator is in; its table may not have been derived yet."""
        self._connect()
        return self._component_of[operator]

    def _named(self, name: str) -> Component:
        for component in self.divided():
            if component.name == name:
                return component
        raise Refuse(
            f"component {name} does not exist; there are: {', '.join(c.name for c in self._components) or 'none'}",
            code="unknown_component",
        )

    def operator(self, name: str) -> Operator:
        operator = self.operators.get(name) or next((fork for fork in self.forks.values() if fork.name == name), None)
        if operator is None:
            raise Refuse(f"operator {name} does not exist", code="unknown_operator")
        return operator

    def sources(self, *operators: Operator) -> list[Source]:
        """The sources above operators, each once."""
        sources: dict[Source, None] = {}
        todo, seen = [*operators], set[Operator]()
        while todo:
            operator = todo.pop()
            if operator in seen:
                continue
            seen.add(operator)
            if isinstance(operator, Source):
                sources[operator] = None
            todo.extend(self.producer(reader) for reader in operator.inputs)
        return list(sources)

    def beginning(self, operator: Operator) -> int | None:
        """From when on a new reader of the operator reads: above all that its streams had taken in before, if any."""
        return max((source.newest + 1 for source in self.sources(operator) if source.newest > MIN_TIME), default=None)

    def producer(self, reader: Inlet) -> Operator:
        """The operator that fills what this reader reads."""
        return self._producers[id(reader.arc)]

    def readers(self, operator: Operator) -> list[Operator]:
        """The operators that read this one's rows; a sink has none."""
        if isinstance(operator, Sink):
            return []
        self._connect()
        return [self._consumers[reader] for reader in operator.output.readers]

    def scheduled(self, operator: Operator) -> list[Operator]:
        """The same, without sinks: they have no turns."""
        return [reader for reader in self.readers(operator) if not isinstance(reader, Sink)]

    def all_operators(self) -> list[Operator]:
        """Every operator, each fork after the operator whose output it shares."""
        listed: list[Operator] = []
        forks = self.forks
        for operator in self.operators.values():
            listed.append(operator)
            if operator in forks:
                listed.append(forks[operator])
        return listed

    def broken(self, operator: Operator) -> str | None:
        """Why there is a break point at an operator's output: `user`, `rr`, `chain`, or None if there is none.

        Round robin and chain run paths only, so an operator under one of them ends its fragment before a fork or a join
        of several inputs; under chain also where its segment ends.
        """
        if operator in self.breaks:
            return "user"
        self._connect()
        kind = self._strategy(operator).kind
        if kind is StrategyKind.RR or kind is StrategyKind.CHAIN:
            why = "rr" if kind is StrategyKind.RR else "chain"
            scheduled = self._scheduled(operator)
            if len(scheduled) > 1 or any(len(self._consumers[reader].inputs) > 1 for reader in scheduled):
                return why
            if why == "chain" and operator in self.links and self.links[operator].cut:
                return why
        return None

    def _row_operator(self, name: str) -> Operator:
        operator = self.operator(name)
        if isinstance(operator, Sink):
            raise Refuse(f"{name} is a sink: it has no row in the state table")
        return operator

    def _strategy(self, operator: Operator) -> Strategy:
        own = self.strategies.get(operator)
        if own is not None:
            return own
        component = self._component_of.get(operator)
        return component.strategy if component is not None else DEFAULT

    def _count_scheduled(self, readers: Iterable[Inlet]) -> int:
        """How many of these readers have turns, counted up to two."""
        scheduled = (reader for reader in readers if not isinstance(self._consumers[reader], Sink))
        return len(list(islice(scheduled, 2)))

    def _scheduled(self, operator: Operator) -> list[Inlet]:
        """The readers of an operator's output that have turns: sinks have none."""
        return [reader for reader in operator.output.readers if not isinstance(self._consumers[reader], Sink)]

    # -- deriving ------------------------------------------------------------------------------------------------------

    def rewire(self) -> None:
        """The graph has changed: `derive` or the next lookup derives the rest from the operators."""
        self._unconnected = self._underived = True
        self._connected = self._derived = False

    def touch(self, operators: Iterable[Operator], readers: Iterable[Operator] = (), *, sorts: bool = True) -> None:
        """These have other readers than before, or ones that declare something else. Without `sorts` some have left.
        The `readers` have other inlets, or declare something else themselves."""
        self._touch(operators, (), (), readers, sorts=sorts)

    def _touch(
        self,
        operators: Iterable[Operator],
        new: Sequence[Operator],
        gone: Sequence[Operator],
        readers: Iterable[Operator],
        *,
        sorts: bool,
    ) -> None:
        self._touched.note(operators, new, gone, readers)
        self._touched.sorts = self._touched.sorts or sorts
        self._connected = self._derived = False

    def rule_again(self, operators: Iterable[Operator]) -> None:
        """Another strategy, or a break point, has been decided for these."""
        self._ruled |= dict.fromkeys(operators)
        self._derived = False

    def _connect(self) -> None:
        """Derive who reads whom, forks and components."""
        if self._connected:
            return
        self._connected = True
        if not self._unconnected and self._connect_part():
            return
        self._unconnected, self._underived = False, True
        self._unlinked.clear()
        operators = list(self.operators.values())
        self._consumers = {reader: operator for operator in operators for reader in operator.inputs}
        self._sort_readers(operators)
        self._fork(operators)
        self._divide(operators)

    def _connect_part(self) -> bool:
        """Connect what is new and what has been touched; returns whether that was possible without the rest."""
        new, touched = self._unlinked, self._touched
        if new and any(one in touched.gone for one in new):
            return False
        self._consumers |= {reader: one for one in (*new, *touched.new, *touched.readers) for reader in one.inputs}
        if new:
            if not self._link(new):
                return False
            self._unlisted.extend(new)
            self._unlinked.clear()
        return not touched or self._reconnect()

    def derive(self) -> None:
        """Derive everything that has changed: also the punctuation of arcs, ETS arcs and the state tables."""
        self._connect()
        if self._derived:
            return
        self._derived = True
        new = [one for one in self._unlisted if one in self._component_of]  # others have gone again
        touched, ruled = self._touched, [one for one in self._ruled if one in self._component_of]
        self._unlisted, self._touched, self._ruled = [], Touched(), {}
        if self._underived or (new and touched.new):  # new operators may read operators that have no row yet
            self._derive_all()
            return
        for home in dict.fromkeys(self._component_of[one] for one in new):
            self._list([one for one in new if self._component_of[one] is home])
        if touched or ruled:
            self._rederive(touched, ruled)

    def _derive_all(self) -> None:
        self._underived = False
        operators = list(self.operators.values())
        self._broken = {}
        for operator in operators:
            operator.output.turn_to(())
        self._want(operators)
        self._draw_arcs(operators)
        rows: dict[Component, list[Row]] = {component: [] for component in self._components}
        sinks: dict[Component, list[Sink]] = {component: [] for component in self._components}
        for operator in self.all_operators():
            component = self._component_of[operator]
            if isinstance(operator, Sink):
                sinks[component].append(operator)
            else:
                rows[component].append(self._row(operator))
        for component in self._components:
            component.rows(rows[component], sinks[component], self.stopped)

    def _sort_readers(self, operators: Sequence[Operator]) -> None:
        """Readers of an output stand in the order of their operators and inputs, after a pause too: forks take turns by
        it."""
        place = {reader: position for position, reader in enumerate(self._consumers)}
        for operator in operators:
            if len(operator.output.readers) > 1:
                operator.output.readers.sort(key=place.__getitem__)

    def _fork(self, operators: Sequence[Operator]) -> None:
        """A fork wherever an output has several scheduled readers; one that exists keeps its name and its turn.

        While a pause keeps its readers away it rests. Once they have gone it is forgotten, with what was decided of it.
        """
        readers: dict[int, int] = {}
        for reader, consumer in self._consumers.items():
            if not isinstance(consumer, Sink):
                readers[id(reader.arc)] = readers.get(id(reader.arc), 0) + 1
        shared = [one for one in operators if not isinstance(one, Sink) and readers.get(id(one.output), 0) > 1]
        stays = dict.fromkeys(shared)
        for operator in [one for one in (*self._forks, *self.resting) if one not in stays]:
            self._forget_fork(operator)
        known = self._forks | self.resting
        taken = {fork.name for fork in known.values()}
        self._forks, self.resting = {}, {}
        for operator in shared:
            fork = known.get(operator)
            if len(self._scheduled(operator)) > 1:
                if fork is None:
                    fork = Fork(self._fork_name(operator, taken), operator.output)
                    taken.add(fork.name)
                self._forks[operator] = fork
            elif fork is not None:
                self.resting[operator] = fork

    def _rename_forks(self, renamed: Iterable[Operator]) -> None:
        """A fork follows the name of its operator, and keeps its number if that is free."""
        forks = self._forks | self.resting
        for operator in renamed:
            if operator in forks:
                fork, base = forks[operator], operator.name.rpartition(".")[0]
                before, _, word = fork.name.rpartition(".")
                if before != base:
                    taken = {other.name for other in forks.values()}
                    name = f"{base}.{word}"
                    fork.name = self._fork_name(operator, taken) if name in taken else name

    def _fork_name(self, operator: Operator, taken: set[str]) -> str:
        base = operator.name.rpartition(".")[0]
        number = 1
        while f"{base}.fork{number}" in taken:
            number += 1
        return f"{base}.fork{number}"

    def _divide(self, operators: Sequence[Operator]) -> None:
        """Find the connected sets: merged ones continue as the one with the oldest stream, parts of a split inherit."""
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
        components: dict[Operator, Component] = {}
        component_of: dict[Operator, Component] = {}
        for operator in operators:
            first = find(operator)
            if first not in components:
                name = first.name.rpartition(".")[0]
                parent = self._component_of.get(first)
                strategy = parent.strategy if parent is not None else self.strategies.get(first, DEFAULT)
                # A component of this name with another first operator has gone, with its decisions.
                components[first] = parent if parent is not None and parent.name == name else Component(name, strategy)
            component_of[operator] = components[first]
        for operator, fork in self._forks.items():
            component_of[fork] = component_of[operator]
        # Rows that exist keep their rule when components merge; new operators take the strategy of the one they join.
        for operator, component in component_of.items():
            parent = self._component_of.get(operator)
            if parent is not None and parent is not component:
                self.strategies.setdefault(operator, parent.strategy)
        self._component_of = component_of
        self._components = list(components.values())

    def _want(self, operators: Sequence[Operator]) -> None:
        """Punctuation is put on an arc only where an operator downstream uses it, and only as far as it is used."""
        for operator in reversed(operators):
            if isinstance(operator, Sink):
                continue
            declared = self._declared(operator.output.readers)
            operator.output.carry(union_of(declared) if declared else None)

    def _declared(self, readers: Iterable[Inlet]) -> list[PunctuationGrain]:
        declared: list[PunctuationGrain] = []
        for reader in readers:
            grain = self._grain(self._consumers[reader])
            if grain is not None:
                reader.grain = grain if self.thin else union_of((EVERY, grain))
                declared.append(reader.grain)
        return declared

    def _grain(self, operator: Operator) -> PunctuationGrain | None:
        """What an operator declares. One that raises needs everything, until its queries have been stopped."""
        try:
            return operator.declares()
        except Exception as error:
            self.faults[operator] = error
            return EVERY

    def _draw_arcs(self, operators: Sequence[Operator]) -> None:
        """An ETS arc from each source or idle-waiting operator to each next register below it (EQG, section 4).

        Downstream of a source whose promises go through the operators there are no ETS arcs.
        """
        through: dict[Operator, None] = {}
        for operator in operators:
            if operator in self.punctuating or any(self.producer(reader) in through for reader in operator.inputs):
                through[operator] = None
            if isinstance(operator, Source | IdleWaiting):
                operator.ets_arcs = () if operator in through else tuple(self._arcs_from(operator.output.readers, ()))

    def _arcs_from(self, readers: Iterable[Inlet], between: tuple[Inlet, ...]) -> Iterator[Arc]:
        for reader in readers:
            consumer = self._consumers[reader]
            if self._grain(consumer) is None:
                continue
            if isinstance(consumer, Sink) or consumer.waits or consumer.shifts_time or len(consumer.inputs) > 1:
                yield Arc(reader, consumer, between)
            else:
                yield from self._arcs_from(consumer.output.readers, (*between, reader))

    def _row(self, operator: Operator) -> Row:
        strategy = self._strategy(operator)
        if isinstance(operator, Fork):
            origin = next(producer for producer, fork in self._forks.items() if fork is operator)
            readers = tuple(self._scheduled(origin))
            succs = tuple(self._consumers[reader] for reader in readers)
            self._place(origin, 0, readers)
            preds: tuple[Operator | None, ...] = (None if self.broken(origin) else origin,)
            sinks: tuple[Sink, ...] = ()
        else:
            preds = tuple(self._pred(reader) for reader in operator.inputs)
            readers = tuple(self._scheduled(operator))
            all_readers = operator.output.readers
            sinks = () if len(readers) == len(all_readers) else tuple(self._sinks_of(all_readers))
            succs = self._succs(operator, readers)
            operator.output.entries = self._entries(operator, readers)
            self._note_break(operator)
            if not succs:
                readers = ()
        role = role_of(operator, preds, succs)
        moves = RULES[strategy.kind][role]
        leaves = encore not in moves
        link = self.links.get(operator) if strategy.kind is StrategyKind.CHAIN else None
        return Row(operator, preds, succs, readers, sinks, role, strategy, moves, leaves, self._leaps(operator), link)

    def _sinks_of(self, readers: Iterable[Inlet]) -> Iterator[Sink]:
        return (consumer for reader in readers if isinstance(consumer := self._consumers[reader], Sink))

    def _note_break(self, operator: Operator) -> None:
        broken = self.broken(operator)
        if broken is None:
            self._broken.pop(operator, None)
        else:
            self._broken[operator] = broken

    # -- changing a part -----------------------------------------------------------------------------------------------

    def _reconnect(self) -> bool:
        """Connect what has been touched, if it is in one component, which stays as it is; returns whether it is.

        Streams, and promises through operators, concern too much for that.
        """
        touched = self._touched
        if self._only_streams_left(touched):
            return True
        if self.punctuating or any(isinstance(one, Source) for one in (*touched.new, *touched.gone)):
            return False
        for operator in touched.gone:
            for reader in operator.inputs:
                self._consumers.pop(reader, None)
        if touched.readers:
            for reader in [one for one, consumer in self._consumers.items() if consumer in touched.readers]:
                del self._consumers[reader]
                if id(reader.arc) in self._producers:
                    touched.operators[self.producer(reader)] = None
        for operator in (*touched.readers, *touched.new):
            self._consumers |= dict.fromkeys(operator.inputs, operator)
            touched.operators |= {self.producer(reader): None for reader in operator.inputs}
        homes = dict.fromkeys(self._component_of[one] for one in touched.operators if one in self._component_of)
        if len(homes) != 1 or not (touched.keeps_inputs or self._is_connected([*touched.operators, *touched.new])):
            return False
        (home,) = homes
        for operator in touched.gone:
            self._component_of.pop(operator, None)
            self._broken.pop(operator, None)
        self._component_of |= dict.fromkeys(touched.new, home)
        if touched.sorts:
            place = dict(zip(self.operators.values(), range(len(self.operators)), strict=True))
            touched.operators = dict.fromkeys(sorted((*touched.operators, *touched.new), key=place.__getitem__))
            for operator in touched.operators:
                if len(operator.output.readers) > 1:
                    self._sort(operator.output.readers, place)
        self._refork([one for one in touched.operators if not isinstance(one, Sink)], home)
        return True

    def _only_streams_left(self, touched: Touched) -> bool:
        """Take out streams that nothing has read, if that is all; returns whether it is."""
        alone = all(isinstance(one, Source) and not one.output.readers for one in touched.gone)
        if not alone or touched.new or touched.operators or touched.readers:
            return False
        for source in touched.gone:
            self._components.remove(self._component_of.pop(source))
            self._broken.pop(source, None)
        return True

    def _sort(self, readers: list[Inlet], place: Mapping[Operator, int]) -> None:
        """Let readers stand in the order of their operators and inputs; most do already, and there may be thousands."""
        places = [place[self._consumers[reader]] for reader in readers]
        if all(map(lt, places, islice(places, 1, None))):
            return
        if len(set(places)) == len(places):
            readers[:] = [readers[at] for at in sorted(range(len(places)), key=places.__getitem__)]
        else:
            readers.sort(key=lambda reader: (place[one := self._consumers[reader]], one.inputs.index(reader)))

    def _is_connected(self, operators: Sequence[Operator]) -> bool:
        """Whether there is a path from the first of these to each other one."""
        if self._have_sources_in_common(operators):
            return True
        missing, todo = set(operators), [operators[0]]
        seen = set(todo)
        away: dict[Operator, list[Operator]] = {}
        for reader in self._away():
            away.setdefault(self.producer(reader), []).append(self._consumers[reader])
        while todo:
            operator = todo.pop()
            missing.discard(operator)
            if not missing:
                return True
            near = [self.producer(reader) for reader in operator.inputs] + away.get(operator, [])
            if not isinstance(operator, Sink):
                near += [self._consumers[reader] for reader in operator.output.readers]
            for one in near:
                if one not in seen:
                    seen.add(one)
                    todo.append(one)
        return False

    def _have_sources_in_common(self, operators: Iterable[Operator]) -> bool:
        """Whether those that they read, directly or not, connect them already."""
        apart: list[set[Source]] = []
        for operator in operators:
            sources = set(self.sources(operator))
            others = [one for one in apart if one.isdisjoint(sources)]
            if len(others) == len(apart):
                apart.append(sources)
            else:
                apart = [*others, sources.union(*(one for one in apart if not one.isdisjoint(sources)))]
        return len(apart) == 1

    def _refork(self, operators: Sequence[Operator], home: Component) -> None:
        """The same as `_fork`, for these outputs."""
        scheduled = {operator: self._count_scheduled(operator.output.readers) for operator in operators}
        lone = [operator for operator in operators if scheduled[operator] < 2]
        away: dict[Operator, list[Inlet]] = {operator: [] for operator in lone}
        for operator, _, reader in self._away_from(lone):
            away[operator].append(reader)
        shared = dict.fromkeys(
            one for one in operators if one not in away or scheduled[one] + self._count_scheduled(away[one]) > 1
        )
        before = [*self._forks], [*self.resting]
        for operator in operators:
            if operator not in shared:
                self._forget_fork(operator)
        forks, resting = self._forks, self.resting
        taken = {fork.name for fork in (forks | resting).values()}
        for operator in shared:
            fork = forks.pop(operator, None) or resting.pop(operator, None)
            if scheduled[operator] > 1:
                if fork is None:
                    fork = Fork(self._fork_name(operator, taken), operator.output)
                    taken.add(fork.name)
                forks[operator] = fork
                self._component_of[fork] = home
            elif fork is not None:
                resting[operator] = fork
                self._component_of.pop(fork, None)
        if before != ([*forks], [*resting]) or self._touched.moved:
            self._touched.reorders = True
            self._forks = {one: forks[one] for one in self.operators.values() if one in forks}
            self.resting = {one: resting[one] for one in self.operators.values() if one in resting}

    def _away(self) -> Iterator[Inlet]:
        return (reader for reader in self._consumers if reader.away)

    def _away_from(self, operators: Iterable[Operator]) -> Iterator[tuple[Operator, Operator, Inlet]]:
        """Who would read these, but is away: the operator, its reader, and the reader's inlet."""
        arcs = {id(operator.output): operator for operator in operators}
        for reader in self._away() if arcs else ():
            if id(reader.arc) in arcs:
                yield arcs[id(reader.arc)], self._consumers[reader], reader

    def _rederive(self, touched: Touched, ruled: Sequence[Operator]) -> None:
        """Derive what follows from these alone, for them and for those above and below them."""
        changed = [one for one in touched.operators if not isinstance(one, Sink)]
        for operator in changed:
            operator.output.turn_to(())
        above = self._above(touched.operators)
        self._want_again(above, touched)
        for operator in above:
            if isinstance(operator, Source | IdleWaiting):
                operator.ets_arcs = tuple(self._arcs_from(operator.output.readers, ()))
        placed: dict[Operator, None] = {}  # whose readers take turns in another way
        for operator in ruled:
            if operator in touched.operators:
                continue
            row = self._component_of[operator].table[operator]
            was, strategy = row.strategy.kind, self._strategy(operator)
            if isinstance(operator, Fork) or self.broken(operator) == self._broken.get(operator):
                self._rule(row, strategy)
            else:
                changed.append(operator)
            if StrategyKind.CHAIN in (was, strategy.kind) and was is not strategy.kind:
                placed |= dict.fromkeys(
                    one for reader in operator.inputs if (one := self.producer(reader)) in self._forks
                )
        stale = self._stale(changed, touched)
        for operator in (*changed, *stale):
            self._component_of[operator].table[operator] = self._row(operator)
        for operator in dict.fromkeys((*changed, *placed)):
            if operator in self._forks:
                self._component_of[operator].table[self._forks[operator]] = self._row(self._forks[operator])
        for operator in above:
            if not isinstance(operator, Sink):
                self._component_of[operator].table[operator].ets_arcs = self._leaps(operator)
        homes = dict.fromkeys(self._component_of[one] for one in touched.operators)  # one at the most
        for home in homes:
            if touched.reorders or touched.new:
                self._list_members(home, touched)
            elif touched.gone:
                home.leave(touched.gone)
        for home in homes | dict.fromkeys(self._component_of[one] for one in ruled):
            home.changed(self.stopped)

    def _list_members(self, home: Component, touched: Touched) -> None:
        """Bring the operators of a component into their order, as they are now."""
        rows, forks = home.table, self._forks
        listed: list[Operator] = []
        for operator in self.operators.values():
            if operator in rows:
                listed.append(operator)
                if operator in forks:
                    listed.append(forks[operator])
        home.table = {operator: rows[operator] for operator in listed}
        if any(isinstance(one, LISTED) for one in (*touched.new, *touched.moved)):
            sinks = [
                one for one in self.operators.values() if isinstance(one, Sink) and self._component_of[one] is home
            ]
            home.members(listed, sinks, self.stopped)
        elif touched.gone:
            home.leave(touched.gone)
        for operator in (*touched.new, *touched.operators):
            operator.output.ready = home.ready.queue

    def _rule(self, row: Row, strategy: Strategy) -> None:
        """Another strategy for a row that leads to the same operators."""
        link = self.links.get(row.operator) if strategy.kind is StrategyKind.CHAIN else None
        moves = RULES[strategy.kind][row.role]
        row.follow(strategy, moves, encore not in moves, link)

    def _stale(self, changed: Sequence[Operator], touched: Touched) -> dict[Operator, None]:
        """The readers whose rows lead back to something else than they should. Those of an output have led back to the
        same so far, except for the ones that have come to it."""
        stale = {one: None for one in touched.readers if one not in touched.new and not isinstance(one, Sink)}
        known = dict.fromkeys(changed) | stale
        differs = [one for one in changed if self._leads_elsewhere(one, known)]
        for operator in differs:
            stale |= dict.fromkeys(self._consumers[reader] for reader in operator.output.readers)
        stale |= dict.fromkeys(consumer for _, consumer, _ in self._away_from(differs))
        return {one: None for one in stale if one not in changed and not isinstance(one, Sink)}

    def _leads_elsewhere(self, operator: Operator, known: Mapping[Operator, None]) -> bool:
        """Whether the rows that read an operator may lead back to something else than they should. Rows that are known
        will be built again."""
        for reader in operator.output.readers:
            consumer = self._consumers[reader]
            if consumer not in known and not isinstance(consumer, Sink):
                row = self._component_of[operator].table[consumer]
                return row.preds[consumer.inputs.index(reader)] is not self._back_to(operator)
        return True

    def _want_again(self, above: Sequence[Operator], touched: Touched) -> None:
        """Put the punctuation on arcs that their readers declare now, as far up as that differs."""
        differs = dict.fromkeys(touched.operators)
        for operator in reversed(above):
            if operator not in differs or isinstance(operator, Sink):
                continue
            output = operator.output
            before = output.punctuates, output.grain
            declared = self._declared(output.readers)
            output.carry(union_of(declared) if declared else None)
            if before != (output.punctuates, output.grain):
                differs |= dict.fromkeys(self.producer(reader) for reader in operator.inputs)

    # -- growing -------------------------------------------------------------------------------------------------------

    def _link(self, new: Sequence[Operator]) -> bool:
        """Connect a new stream or query to one component; say whether it was possible without looking at the rest."""
        read = dict.fromkeys(self.producer(reader) for operator in new for reader in operator.inputs)
        homes = list(dict.fromkeys(self._component_of[one] for one in read if one in self._component_of))
        alone = not homes and len(new) == 1 and isinstance(new[0], Source)
        strategies = [*map(self._strategy, (*new, *read)), *(home.strategy for home in homes)]
        paths = any(strategy.kind in (StrategyKind.RR, StrategyKind.CHAIN) for strategy in strategies)
        apart = not alone and any(isinstance(one, Source) for one in new)  # a stream that came in the same change
        if apart or paths or self.punctuating or not (alone or len(homes) == 1):
            return False
        if alone:
            name = new[0].name.rpartition(".")[0]
            homes = [Component(name, self.strategies.get(new[0], DEFAULT))]
            self._components += homes
        self._component_of |= dict.fromkeys(new, homes[0])
        self._consumers |= {reader: operator for operator in new for reader in operator.inputs}
        for operator in read:
            if operator not in self._forks and self._count_scheduled(operator.output.readers) > 1:
                self._grow_fork(operator)
        return True

    def _grow_fork(self, operator: Operator) -> None:
        taken = {fork.name for fork in (self._forks | self.resting).values()}
        fork = self.resting.pop(operator, None) or Fork(self._fork_name(operator, taken), operator.output)
        self._component_of[fork] = self._component_of[operator]
        forks = {**self._forks, operator: fork}
        self._forks = {one: forks[one] for one in self.operators.values() if one in forks}

    def _list(self, new: Sequence[Operator]) -> None:
        """Derive what follows from new operators that are linked, for them and for those above them."""
        self._want(new)
        self._draw_arcs(new)
        readers: dict[Operator, list[Inlet]] = {}
        for operator in new:
            for reader in operator.inputs:
                readers.setdefault(self.producer(reader), []).append(reader)
        for operator in new:
            readers.pop(operator, None)
        above = self._above(readers)
        self._want_more(above, readers)
        for operator in above:
            if isinstance(operator, Source | IdleWaiting):
                below = readers.get(operator)
                if below is None or any(operator in self._above([one]) for one in readers if one is not operator):
                    operator.ets_arcs = tuple(self._arcs_from(operator.output.readers, ()))
                else:
                    operator.ets_arcs = (*operator.ets_arcs, *self._arcs_from(below, ()))
        component = self._component_of[new[0]]
        # Rows that grow come first: a new fork has those below it built again, with all of their readers.
        for operator in sorted(readers, key=lambda one: self._forks.get(one) not in component.table):
            self._grow_rows(component, operator, readers[operator])
        rows = component.table
        for operator in above:
            rows[operator].ets_arcs = self._leaps(operator)
        for operator in new:
            if not isinstance(operator, Sink):
                rows[operator] = self._row(operator)
                if operator in self._forks:
                    rows[self._forks[operator]] = self._row(self._forks[operator])
        component.grow(new)

    def _want_more(self, above: Sequence[Operator], readers: Mapping[Operator, Sequence[Inlet]]) -> None:
        """Put what new readers have a use for on the arcs above them; the others need what they needed before."""
        changed = {operator: list(added) for operator, added in readers.items()}
        for operator in reversed(above):
            output = operator.output
            before = [output.grain] if output.punctuates else []
            declared = self._declared(changed.get(operator, ()))
            if not declared or before == [union := union_of(before + declared)]:
                continue
            output.carry(union)
            for reader in operator.inputs:
                if not reader.away:
                    changed.setdefault(self.producer(reader), []).append(reader)

    def _grow_rows(self, component: Component, operator: Operator, added: Sequence[Inlet]) -> None:
        """The rows of an operator that has more readers, and of those readers whose predecessor is another now."""
        rows, fork = component.table, self._forks.get(operator)
        if fork in rows:
            scheduled = [reader for reader in added if not isinstance(self._consumers[reader], Sink)]
            sinks = [one for reader in added if isinstance(one := self._consumers[reader], Sink)]
            rows[operator].grow(scheduled if rows[operator].succs else (), (), sinks)
            rows[fork].grow(scheduled, [self._consumers[reader] for reader in scheduled], ())
            self._place(operator, len(rows[fork].readers) - len(scheduled), scheduled)
            return
        rows[operator] = self._row(operator)
        # A paused reader has left the output, and finds it again when it is resumed.
        below = [one for reader, one in self._consumers.items() if reader.arc is operator.output]
        rows |= {one: self._row(one) for one in below if one in rows}
        if fork is not None:
            fork_row = self._row(fork)
            component.table = {}
            for one, row in rows.items():
                component.table[one] = row
                if one is operator:
                    component.table[fork] = fork_row

    def _place(self, operator: Operator, first: int, readers: Sequence[Inlet]) -> None:
        """Number the readers that take turns."""
        output = operator.output
        for place, reader in enumerate(readers, first):
            reader.place = place
        output.turn_to((*output.branches[:first], *readers))
        indexed = self.index and len(output.branches) >= routing.LEAST and self.broken(operator) != "chain"
        if indexed:
            output.routing = routing.Routing(output, self._may_sleep)

    def _may_sleep(self, reader: Inlet) -> bool:
        """Whether an index may look at tuples for this reader. `chain` measures what each execution selects."""
        consumer = self._consumers[reader]
        chained = self._strategy(consumer).kind is StrategyKind.CHAIN
        return routing.can_sleep(reader) and not chained

    def settle(self) -> None:
        """Count the tuples that filters have slept through, before someone looks at operators or changes them."""
        for operator in self._forks:
            operator.output.settle()

    def _above(self, operators: Iterable[Operator]) -> list[Operator]:
        """These and all that they read, an operator after those that it reads."""
        above: dict[Operator, None] = {}
        todo = [*operators]
        while todo:
            missing = [producer for reader in todo[-1].inputs if (producer := self.producer(reader)) not in above]
            if missing:
                todo += missing
            else:
                above[todo.pop()] = None
        return list(above)

    def _leaps(self, operator: Operator) -> tuple[tuple[Inlet, Next], ...]:
        """The moves along an operator's ETS arcs; a register at a sink causes no turn."""
        if not isinstance(operator, Source | IdleWaiting):
            return ()
        return tuple(
            (arc.register, Next(arc.target, execute=True))
            for arc in operator.ets_arcs
            if not isinstance(arc.target, Sink)
        )

    def _pred(self, reader: Inlet) -> Operator | None:
        return self._back_to(self.producer(reader))

    def _back_to(self, producer: Operator) -> Operator | None:
        """Where the readers of an operator backtrack to."""
        if producer in self._forks:
            return self._forks[producer]
        return None if self.broken(producer) else producer

    def _succs(self, operator: Operator, readers: Sequence[Inlet]) -> tuple[Operator, ...]:
        if self.broken(operator) or not readers:
            return ()
        return (self._forks[operator],) if operator in self._forks else (self._consumers[readers[0]],)

    def _entries(self, operator: Operator, readers: Sequence[Inlet]) -> tuple[Operator, ...]:
        """Where a cycle may start when tuples are put into the operator's output."""
        broken = self.broken(operator)
        if broken == "chain":
            # Each branch has its own slope: they take no turns.
            return tuple(self._consumers[reader] for reader in readers)
        if broken:
            return (self._forks[operator],) if operator in self._forks else tuple(self._consumers[r] for r in readers)
        return (operator,) if isinstance(operator, Source) else ()
