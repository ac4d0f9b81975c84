"""Equal operators that were separate become one again as soon as their results cannot differ.

Two queries have equal operators over the same inputs, separately, after a pause, an edit or a failure of one of them,
or because one of them started later. From some moment on the two do the same: they have the same state, have read the
same tuples, have promised the same, and no tuple can arrive that only one of them accepts. Then the operator of the
older query serves both. The readers of the other one have taken all its rows, and continue at the arc that stays.

The engine looks at the end of a step with events and without commands. A look compares saved states, so the next one
waits for a number of steps that grows with the size of the states. Operators that an admin has separated stay separate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from millrace.engine.faults import ask
from millrace.engine.graph.alike import Member
from millrace.engine.graph.rewire.rewiring import Rewiring, carry_out
from millrace.engine.saving import pack
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator, RowWise
from millrace.operators.source.source import Source
from millrace.values.eventtime import MIN_TIME

if TYPE_CHECKING:
    from millrace.engine.engine import Engine

# The largest state that is compared, in tuples: packing two of this size takes about 20 ms.
LARGEST: Final = 16_384
# Operators of one group that another one is compared with.
FIRSTS: Final = 4
# Work of a look for which the next one waits a step: operators that were visited, or tuples of states.
PER_STEP: Final = 4


def look(engine: Engine) -> None:
    """Merge the operators that do the same by now, unless the last look was too recent."""
    if engine.merge_wait:
        engine.merge_wait -= 1
        return
    work = 0
    while engine.alike:
        search = _Search(engine)
        for group in engine.alike.groups(engine):
            search.compare(group)
        work += search.work
        if not search.merged:
            break
        _merge(engine, search.merged)  # those that read them read the same now
    engine.merge_wait = work // PER_STEP if engine.alike else None


def is_separate(engine: Engine, operator: Operator) -> bool:
    """Whether an operator stays as it is: an admin has separated it, or has decided how it is scheduled."""
    return (
        engine.graph.decided(operator)
        or fork_decided(engine, operator)
        or any(engine.named(name) is operator for query in engine.owners(operator) for name in query.separate)
    )


def fork_decided(engine: Engine, operator: Operator) -> bool:
    """Whether the fork after an operator has another strategy than its component."""
    fork = engine.graph.all_forks().get(operator)
    return fork is not None and engine.graph.decided(fork)


class _Search:
    """One look at the operators with equal definitions.

    merged  by operator, the one that takes its place
    work    what the look has cost
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        paused = [query for query in engine.queries_by_name.values() if query.paused is not None]
        self._missed = {
            inlet.arc for query in paused for operator in (*query.operators, query.sink) for inlet in operator.inputs
        }  # arcs with a reader that is away
        self.merged: dict[Operator, Operator] = {}
        self.work = len(engine.queries_by_name) // 16

    def compare(self, group: Sequence[Member]) -> None:
        """Compare each operator of a group with the first ones before it."""
        firsts: list[Member] = []
        for member in group:
            if member.operator in self.merged or any(first.operator is member.operator for first in firsts):
                continue
            self.work += 1
            if member.query.paused is not None or is_separate(self._engine, member.operator):
                continue
            for first in firsts:
                if self._can_merge(first, member):
                    self.merged[member.operator] = first.operator
                    break
            else:
                if len(firsts) < FIRSTS:
                    firsts.append(member)

    def _can_merge(self, first: Member, other: Member) -> bool:
        return (
            other.operator.output not in self._missed
            and first.node.spec == other.node.spec
            and first.query.plan.options == other.query.plan.options
            and not self._have_query_in_common(first.operator, other.operator)
            and _agree(self._engine, first.operator, other.operator)
            and self._same_state(first.operator, other.operator)
        )

    def _have_query_in_common(self, first: Operator, other: Operator) -> bool:
        """Whether a query would have the operator twice."""
        into_first = [first, *(operator for operator, into in self.merged.items() if into is first)]
        owners = {query.plan.name for operator in into_first for query in self._engine.owners(operator)}
        return any(query.plan.name in owners for query in self._engine.owners(other))

    def _same_state(self, first: Operator, other: Operator) -> bool:
        """Whether both will do the same with the same input. For how long they have been waiting does not matter."""
        held = ask(first, lambda: first.state_tuples)
        if held != ask(other, lambda: other.state_tuples) or held > LARGEST:
            return False
        self.work += held
        if not isinstance(first, IdleWaiting) or not isinstance(other, IdleWaiting):
            return pack(ask(first, first.essence)) == pack(ask(other, other.essence))
        idle = IdleWaiting.save(other)
        try:
            IdleWaiting.restore(other, IdleWaiting.save(first))
            return pack(ask(first, first.essence)) == pack(ask(other, other.essence))
        finally:
            IdleWaiting.restore(other, idle)


def _agree(engine: Engine, first: Operator, other: Operator) -> bool:
    """Whether two operators have read and promised the same, and the other one's readers have taken all its rows."""
    before, after = other.output, first.output
    return (
        all(_read_the_same(engine, *inlets) for inlets in zip(first.inputs, other.inputs, strict=True))
        and after.ordered == before.ordered
        and (after.promise == before.promise or not before.punctuates)
        and max(after.floor, before.floor) <= MIN_TIME
        and all(reader.absorbs or not (reader.waiting or reader.unseen) for reader in before.readers)
        and ask(first, first.decision) == ask(other, other.decision)
    )


def _read_the_same(engine: Engine, first: Inlet, other: Inlet) -> bool:
    """Whether two inlets have taken the same tuples of an arc, and will both accept whatever arrives there."""
    if any(inlet.away or inlet.waiting or inlet.unseen for inlet in (first, other)):
        return False
    if first.promise != other.promise and first.arc.punctuates:
        return False
    starts = [inlet.since_us for inlet in (first, other) if inlet.since_us is not None]
    return first.since_us == other.since_us or (not first.latent and max(starts) <= _least(engine, first))


def _least(engine: Engine, inlet: Inlet) -> int:
    """No tuple that is still to arrive is older. An arc whose readers use no punctuation may promise less."""
    producer = engine.graph.producer(inlet)
    if isinstance(producer, Source):
        return max(producer.mark, inlet.promise)
    if isinstance(producer, RowWise) and producer.inputs[0].drained:
        return max(producer.promised(_least(engine, producer.inputs[0])), inlet.promise)
    return inlet.promise


def _merge(engine: Engine, merged: Mapping[Operator, Operator]) -> None:
    change = Rewiring(joined=[(other.output, first.output) for other, first in merged.items()])
    for operator in dict.fromkeys((*merged, *merged.values())):
        _pass_counts(engine, operator)
    for query in engine.queries_by_name.values():
        if any(operator in merged for operator in query.operators):
            after = [merged.get(operator, operator) for operator in query.operators]
            same = {
                node.name
                for node, operator in zip(query.plan.nodes, query.operators, strict=True)
                if operator in merged
            }
            query.apart = {node: why for node, why in query.apart.items() if node not in same}
            change.after.append((query, query.plan, after))
    carry_out(engine, change)


def _pass_counts(engine: Engine, operator: Operator) -> None:
    """What an operator of one query skipped counts from now on at what reads it there."""
    skipped = sum(inlet.skipped for inlet in operator.inputs)
    ignored = max(inlet.ignored for inlet in operator.inputs)
    owners = engine.owners(operator)
    if len(owners) > 1:
        return  # they count there already
    reader = next(
        inlet for inlet in operator.output.readers if inlet.consumer in (*owners[0].operators, owners[0].sink)
    )
    reader.skipped += skipped
    reader.ignored += ignored
    for inlet in operator.inputs:
        inlet.skipped = inlet.ignored = 0
