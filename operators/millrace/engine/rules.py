"""The rule library: how the next operator is chosen (ETS, section 3.1; EQG, section 2.3).

One row per role and strategy. Every rule is made of the papers' four moves:

    Forward     if the operator yields, execute its successor; of a source or an idle-waiting operator also, if it has
                given no tuple but set a register at the end of an ETS arc, execute the operator that has it
    Encore      if it has more, execute it again
    Backtrack   apply the rule of the predecessor that feeds the input it lacks
    Exit        leave the component to its scheduler

Depth first tries Forward before Encore, breadth first Encore before Forward; round robin exits where they backtrack.
Chain only goes forward: whatever is left with tuples waits for its turn among all segments, of which the scheduler
takes the steepest (chain.py).
The number of tuples that an execution takes belongs to the strategy, not to its rules. A rule reads its row and
nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.engine.table import Next, Role, Row, Rule, StrategyKind
from millrace.operators.fork import Fork


def dfs_source(row: Row) -> Next | None:
    """Forward, else Encore (behind a break point the operator has tuples of its own), else Exit."""
    if row.yields():
        return row.ahead
    return row.register_target() or (row.again if row.operator.more() else None)


def dfs_inner(row: Row) -> Next | None:
    """Forward, else Encore, else Backtrack."""
    if row.yields():
        return row.ahead
    return row.again if row.operator.more() else backtrack(row)


def dfs_sink(row: Row) -> Next | None:
    """Encore, else Backtrack: what was given has left with the output wrapper already."""
    return row.again if row.operator.more() else backtrack(row)


def dfs_source_sink(row: Row) -> Next | None:
    """Encore, else Exit: a fragment of one operator."""
    return row.again if row.operator.more() else None


def dfs_fork(row: Row) -> Next | None:
    """The next branch with something unseen, else Backtrack."""
    return branch(row) or backtrack(row)


def dfs_waiting(row: Row) -> Next | None:
    """Forward by a tuple, else Forward by a register, else Encore by the relaxed condition, else Backtrack."""
    if row.yields():
        return row.ahead
    return row.register_target() or (row.again if row.operator.more() else backtrack(row))


def bfs_source(row: Row) -> Next | None:
    """Encore, else Forward, else Exit."""
    if row.operator.more():
        return row.again
    return row.ahead if row.yields() else row.register_target()


def bfs_inner(row: Row) -> Next | None:
    """Encore, else Forward, else Backtrack."""
    if row.operator.more():
        return row.again
    return row.ahead if row.yields() else backtrack(row)


def bfs_waiting(row: Row) -> Next | None:
    """Encore by the relaxed condition, else Forward by a tuple, else Forward by a register, else Backtrack."""
    if row.operator.more():
        return row.again
    return row.ahead if row.yields() else row.register_target() or backtrack(row)


def rr_inner(row: Row) -> Next | None:
    """Encore, else Forward, else Exit."""
    if row.operator.more():
        return row.again
    return row.ahead if row.yields() else None


def rr_waiting(row: Row) -> Next | None:
    """Encore by the relaxed condition, else Forward by a tuple, else Forward by a register, else Exit."""
    return bfs_source(row)


def rr_fork(row: Row) -> Next | None:
    """The next branch with something unseen, else Exit."""
    return branch(row)


def chain_inner(row: Row) -> Next | None:
    """Forward, else Exit."""
    return row.ahead if row.yields() else None


def chain_waiting(row: Row) -> Next | None:
    """Forward by a tuple, else Forward by a register, else Exit."""
    return row.ahead if row.yields() else row.register_target()


# One row per (role, strategy), impossible ones too: a new role or strategy does not pass the tests until someone has
# decided every new row.
RULES: Final[Mapping[tuple[Role, StrategyKind], Rule]] = {
    (Role.SOURCE, StrategyKind.DFS): dfs_source,
    (Role.INNER, StrategyKind.DFS): dfs_inner,
    (Role.SINK, StrategyKind.DFS): dfs_sink,
    (Role.SOURCE_SINK, StrategyKind.DFS): dfs_source_sink,
    (Role.FORK, StrategyKind.DFS): dfs_fork,
    (Role.WAITING, StrategyKind.DFS): dfs_waiting,
    (Role.SOURCE, StrategyKind.BFS): bfs_source,
    (Role.INNER, StrategyKind.BFS): bfs_inner,
    (Role.SINK, StrategyKind.BFS): dfs_sink,
    (Role.SOURCE_SINK, StrategyKind.BFS): dfs_source_sink,
    (Role.FORK, StrategyKind.BFS): dfs_fork,
    (Role.WAITING, StrategyKind.BFS): bfs_waiting,
    (Role.SOURCE, StrategyKind.RR): bfs_source,
    (Role.INNER, StrategyKind.RR): rr_inner,
    (Role.SINK, StrategyKind.RR): dfs_source_sink,
    (Role.SOURCE_SINK, StrategyKind.RR): dfs_source_sink,
    (Role.FORK, StrategyKind.RR): rr_fork,
    (Role.WAITING, StrategyKind.RR): rr_waiting,
    (Role.SOURCE, StrategyKind.CHAIN): chain_waiting,
    (Role.INNER, StrategyKind.CHAIN): chain_inner,
    (Role.SINK, StrategyKind.CHAIN): chain_inner,
    (Role.SOURCE_SINK, StrategyKind.CHAIN): chain_inner,
    (Role.FORK, StrategyKind.CHAIN): rr_fork,
    (Role.WAITING, StrategyKind.CHAIN): chain_waiting,
}


# -- the moves that look for a row ------------------------------------------------------------------------------------


def backtrack(row: Row) -> Next | None:
    """The predecessor that feeds the input it lacks, by that one's own rule; Exit behind a break point.

    For an idle-waiting operator that input is the one that holds the others back.
    """
    back = row.back
    if len(back) > 1:
        return back[row.operator.empty_input()]
    return back[0] if back else None


def branch(row: Row) -> Next | None:
    """The fork's next reader, in turn, that has something unseen."""
    fork = row.operator
    assert isinstance(fork, Fork)
    count = len(row.readers)
    for step in range(count):
        position = (fork.turn + step) % count
        if row.readers[position].unseen:
            fork.turn = (position + 1) % count
            return Next(row.succs[position], execute=True)
    return None
