"""The rule library: how the next operator is chosen (ETS, section 3.1; EQG, section 2.3).

A rule is a row of moves. The first move that leads somewhere is taken; if none does, the cycle ends and the component
returns to its scheduler (the papers' Exit).

    forward     if the operator yields, execute its successor
    leap        if it set a register at the end of an ETS arc, execute the operator that has the register
    encore      if it has more, execute it again
    backtrack   apply the rule of the predecessor that feeds the input it lacks
    branch      of a fork: execute the next successor, in turn, that has something unseen

Depth first tries forward before encore, breadth first encore before forward; round robin ends where they backtrack.
Chain only goes forward: an operator left with tuples waits for its turn among all segments (`Ready` in
component.py, chain.py).
The number of tuples that an execution takes belongs to the strategy, not to its rules. A move reads its row and
nothing else; only `branch` changes anything, the turn of its fork and whether the fork is ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.engine.scheduler.table import Move, Next, Role, Row, StrategyKind
from millrace.operators.fork.fork import Fork


def forward(row: Row) -> Next | None:
    return row.ahead if row.yields() else None


def leap(row: Row) -> Next | None:
    return row.register_target()


def encore(row: Row) -> Next | None:
    return row.again if row.operator.more() else None


def backtrack(row: Row) -> Next | None:
    """None after a break point. An idle-waiting operator lacks the input that holds the others back."""
    back = row.back
    if len(back) > 1:
        return back[row.operator.empty_input()]
    return back[0] if back else None


def branch(row: Row) -> Next | None:
    """The cycle continues in one branch and may end far from here, so other unseen ones make the fork ready again."""
    fork = row.operator
    assert isinstance(fork, Fork)
    buffer = fork.output
    place = buffer.next_awake(buffer.turn % len(row.branches))
    if place < 0:
        return None
    buffer.turn = (place + 1) % len(row.branches)
    if fork not in buffer.ready and buffer.next_awake(buffer.turn) != place:
        buffer.ready[fork] = None
    return row.branches[place]


# For each strategy and role, impossible pairs too: a new role or strategy does not pass the tests until someone has
# decided every new row.
RULES: Final[Mapping[StrategyKind, Mapping[Role, tuple[Move, ...]]]] = {
    StrategyKind.DFS: {
        Role.SOURCE: (forward, leap, encore),  # after a break point the operator has queued tuples
        Role.INNER: (forward, encore, backtrack),
        Role.SINK: (encore, backtrack),  # what it emitted has left with the output wrapper already
        Role.SOURCE_SINK: (encore,),
        Role.FORK: (branch, backtrack),
        Role.WAITING: (forward, leap, encore, backtrack),
    },
    StrategyKind.BFS: {
        Role.SOURCE: (encore, forward, leap),
        Role.INNER: (encore, forward, backtrack),
        Role.SINK: (encore, backtrack),
        Role.SOURCE_SINK: (encore,),
        Role.FORK: (branch, backtrack),
        Role.WAITING: (encore, forward, leap, backtrack),
    },
    StrategyKind.RR: {
        Role.SOURCE: (encore, forward, leap),
        Role.INNER: (encore, forward),
        Role.SINK: (encore,),
        Role.SOURCE_SINK: (encore,),
        Role.FORK: (branch,),
        Role.WAITING: (encore, forward, leap),
    },
    StrategyKind.CHAIN: {
        Role.SOURCE: (forward, leap),
        Role.INNER: (forward,),
        Role.SINK: (),
        Role.SOURCE_SINK: (),
        Role.FORK: (branch,),
        Role.WAITING: (forward, leap),
    },
}
