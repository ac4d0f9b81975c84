"""The state table: one row per operator, and nothing else steers the scheduler (EQG, section 3).

A row maps an operator to its neighbours and to a transition of the rule library. A change of strategy replaces
transitions, a change of topology replaces neighbours; both happen between two executions. A break point at an
operator's output empties its successors and its readers' predecessors, which makes the buffer between them the sink
of one fragment and the source of the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from millrace.operators.fork.fork import Fork
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator
from millrace.operators.sink.sink import Sink
from millrace.operators.source.source import Source
from millrace.protocol import Refuse
from millrace.protocol.admin.operators import LinkView, RowView

# The most tuples an execution takes when the strategy names no number. Below a few thousand the fixed cost of an
# execution shows in every tuple; above, columns stop fitting the cache and a low-rate neighbour waits longer for its
# turn.
MOST_TUPLES: Final = 16_384
# The same under `chain`, which is worth something only if a steeper segment gets its turn soon.
MOST_CHAINED: Final = 256


class Role(Enum):
    """An operator's place in the table, which with the strategy decides its transition."""

    SOURCE = "Source"
    INNER = "NOS"
    SINK = "Sink"
    SOURCE_SINK = "Source-Sink"
    FORK = "Fork"
    WAITING = "IWP"


class StrategyKind(Enum):
    """The strategies of the rule library."""

    DFS = "dfs"
    BFS = "bfs"
    RR = "rr"
    CHAIN = "chain"


@dataclass(frozen=True, slots=True)
class Strategy:
    """A kind of strategy, and the most tuples of an execution: a number, or as many as wait within a bound."""

    kind: StrategyKind = StrategyKind.DFS
    k: int | None = None

    @staticmethod
    def parse(text: str) -> Strategy:
        """`dfs`, `bfs`, `rr`, `chain`, each also with a number of tuples: `dfs(1)`."""
        match = re.fullmatch(r"\s*([a-z]+)\s*(?:\(\s*(\d{1,9})\s*\))?\s*", text.lower())
        names = [kind.value for kind in StrategyKind]
        if match is None or match[1] not in names:
            raise Refuse(
                f"unknown strategy {text!r}: expected one of {', '.join(names)}, each optionally with the most tuples "
                "per execution, as in dfs(1)",
                code="unknown_strategy",
            )
        if match[2] is not None and int(match[2]) < 1:
            raise Refuse(f"strategy {text!r}: an execution takes at least one tuple", code="unknown_strategy")
        return Strategy(StrategyKind(match[1]), None if match[2] is None else int(match[2]))

    @property
    def limit(self) -> int:
        if self.k is not None:
            return self.k
        return MOST_CHAINED if self.kind is StrategyKind.CHAIN else MOST_TUPLES

    def __str__(self) -> str:
        return self.kind.value if self.k is None else f"{self.kind.value}({self.k})"


@dataclass(frozen=True, slots=True)
class Link:
    """What `chain` has decided of an operator, and from which numbers (see chain.py).

    slope        of its segment: tuples that leave the queues per microsecond of work
    selectivity, cost_us    tuples that it emits for each that it takes, and microseconds for each
    segment      the first operator of its segment
    cut          whether the segment ends here with a break point
    """

    slope: float
    selectivity: float
    cost_us: float
    segment: Operator
    cut: bool

    def view(self) -> LinkView:
        return LinkView(
            slope=self.slope,
            selectivity=self.selectivity,
            cost_us=self.cost_us,
            segment=self.segment.name,
            break_=self.cut,
        )


class Next:
    """Where to go: execute the operator, or only apply its row's rule (the papers' "repeat this step on pred")."""

    __slots__ = ("execute", "operator")

    def __init__(self, operator: Operator, *, execute: bool) -> None:
        self.operator = operator
        self.execute = execute


Move = Callable[["Row"], Next | None]


class Row:
    """One operator's row.

    preds     per input the operator to backtrack to, None after a break point; a source has none
    succs     the operators to go forward to; none before a sink or a break point
    readers   the head pointers of those successors: the row yields if one of them has something unseen
    sinks     the sinks that the operator fills
    ets_arcs  the operator's ETS arcs: each register and the move to the operator that has it
    moves     its rule: the first of these that leads somewhere is taken (rules.py)
    leaves    whether the rule moves on although the operator has more, which then waits for another turn
    link      what `chain` has decided of the operator, if that is its strategy and anything was measured

    Where moves lead is built once: a rule only chooses.
    """

    __slots__ = (
        "again",
        "ahead",
        "back",
        "branches",
        "ets_arcs",
        "leaves",
        "limit",
        "link",
        "moves",
        "operator",
        "preds",
        "readers",
        "role",
        "sinks",
        "strategy",
        "succs",
    )

    def __init__(
        self,
        operator: Operator,
        preds: tuple[Operator | None, ...],
        succs: tuple[Operator, ...],
        readers: tuple[Inlet, ...],
        sinks: tuple[Sink, ...],
        role: Role,
        strategy: Strategy,
        moves: tuple[Move, ...],
        leaves: bool,
        ets_arcs: tuple[tuple[Inlet, Next], ...] = (),
        link: Link | None = None,
    ) -> None:
        self.operator = operator
        self.preds = preds
        self.succs = succs
        self.readers = readers
        self.sinks = sinks
        self.role = role
        self.strategy = strategy
        self.moves = moves
        self.leaves = leaves
        self.ets_arcs = ets_arcs
        self.link = link
        self.limit = strategy.limit
        self.ahead = Next(succs[0], execute=not isinstance(succs[0], Fork)) if succs else None
        self.again = Next(operator, execute=True)
        self.branches = tuple(Next(succ, execute=True) for succ in succs) if len(succs) > 1 else ()
        self.back = tuple(None if pred is None else Next(pred, execute=False) for pred in preds)

    def follow(self, strategy: Strategy, moves: tuple[Move, ...], leaves: bool, link: Link | None) -> None:
        """Take another rule; where moves lead stays."""
        self.strategy, self.moves, self.leaves, self.link = strategy, moves, leaves, link
        self.limit = strategy.limit

    def grow(self, readers: Sequence[Inlet], succs: Sequence[Operator], sinks: Sequence[Sink]) -> None:
        """Lead to more operators; a row that leads to one, or to a fork, stays as it is."""
        self.readers = (*self.readers, *readers)
        self.succs = (*self.succs, *succs)
        self.sinks = (*self.sinks, *sinks)
        self.branches = (*self.branches, *(Next(succ, execute=True) for succ in succs))

    def yields(self) -> bool:
        """The papers' yield: the output holds something that a successor has not seen."""
        if len(self.readers) > 1:
            output = self.operator.output
            return output.next_awake(0) >= 0
        for reader in self.readers:  # noqa: SIM110 (this is the innermost loop of the scheduler)
            if reader.unseen:
                return True
        return False

    def register_target(self) -> Next | None:
        """The papers' TSM-yield: where this operator's arc has set a register that is not yet seen."""
        for register, leap in self.ets_arcs:
            if register.unseen:
                return leap
        return None

    @property
    def transition(self) -> str:
        """The rule's name as the papers print it, with the number of tuples if the strategy names one."""
        return f"{str(self.strategy).upper()}-{self.role.value}"

    def view(self) -> RowView:
        return RowView(
            state=self.operator.name,
            pred=[pred.name for pred in self.preds if pred is not None],
            succ=[succ.name for succ in self.succs],
            transition=self.transition,
            chain=None if self.link is None else self.link.view(),
        )


def role_of(operator: Operator, preds: Sequence[Operator | None], succs: Sequence[Operator]) -> Role:
    """The role of an operator by its place."""
    if isinstance(operator, Fork):
        return Role.FORK
    if operator.waits:
        return Role.WAITING
    if isinstance(operator, Source):
        return Role.SOURCE
    if all(pred is None for pred in preds):
        return Role.SOURCE if succs else Role.SOURCE_SINK
    return Role.INNER if succs else Role.SINK
