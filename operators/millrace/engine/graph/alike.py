"""Operators with equal definitions over the same inputs: where a query may share, and where two may be merged.

Rule: an operator with a separate queue, or one that is never shared, is not listed. Definitions may be large, so the
key has only the first values of each; a lookup compares the specs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.engine.plan import Node
from millrace.engine.queries import Query
from millrace.operators.frame.operator import Operator

if TYPE_CHECKING:
    from millrace.engine.engine import Engine

# Parts of a definition in its key. A definition may have a hundred thousand.
GIST: Final = 64


class Member(NamedTuple):
    """An operator, and a query to which it belongs, with its node there."""

    query: Query
    node: Node
    operator: Operator


class Alike:
    """By key, the operators that have it, in the order of their queries, and of the nodes of each.

    `_several` has the keys of several operators, `_keys` those of each query.
    """

    def __init__(self) -> None:
        self._members: dict[Hashable, list[Member]] = {}
        self._several: dict[Hashable, None] = {}
        self._keys: dict[Query, list[Hashable]] = {}

    def __bool__(self) -> bool:
        return any(_pair(self._members[key]) is not None for key in self._several)

    @property
    def unique(self) -> bool:
        """Whether no two operators have one key, of one query or of several."""
        return not self._several

    def add(self, engine: Engine, query: Query) -> None:
        """List the operators of a query that is younger than all others here."""
        for node, operator in _sharable(query):
            key = _key_of(engine, node, operator)
            members = self._members.setdefault(key, [])
            members.append(Member(query, node, operator))
            self._keys.setdefault(query, []).append(key)
            if members[0].operator is not operator:
                self._several[key] = None

    def exchange(self, engine: Engine, queries: Iterable[Query]) -> None:
        """These queries have other operators than before, other names for them, or the same over other inputs."""
        queries = list(queries)
        for query in queries:
            self.remove(query)
        for query in queries:
            self.add(engine, query)
        keys = {key: None for query in queries for key in self._keys.get(query, ())}
        shared = [members for key in keys if len(members := self._members[key]) > 1]
        if shared:
            place = {query: at for at, query in enumerate(engine.queries_by_name.values())}
            for members in shared:
                members.sort(key=lambda member: place[member.query])  # members of one query are in order

    def remove(self, query: Query) -> None:
        """Forget a query."""
        for key in dict.fromkeys(self._keys.pop(query, ())):
            members = self._members[key]
            members[:] = [member for member in members if member.query is not query]
            if not members:
                del self._members[key]
            if key in self._several and not _differ(members):
                del self._several[key]

    def members(self, node: Node, inputs: Sequence[Operator]) -> Iterator[Member]:
        """The operators with a node's definition over these inputs."""
        return (member for member in self._members.get(_key(node, inputs), ()) if member.node.spec == node.spec)

    def groups(self, engine: Engine) -> Iterator[Sequence[Member]]:
        """The operators of several queries that may have equal definitions, in the order of the younger ones."""
        place = {query: at for at, query in enumerate(engine.queries_by_name.values())}
        found = [(second, members) for key in self._several if (second := _pair(members := self._members[key]))]
        found.sort(key=lambda one: (place[one[0].query], one[0].query.operators.index(one[0].operator)))
        return (members for _, members in found)

    def queries(self) -> set[Query]:
        """The queries with an operator that has the key of another one, of the same query or of another."""
        return {member.query for key in self._several for member in self._members[key]}


def _differ(members: Sequence[Member]) -> bool:
    return any(member.operator is not members[0].operator for member in members)


def _pair(members: Sequence[Member]) -> Member | None:
    """The first member that has another operator than those before it, and another query than the first."""
    seen: set[Operator] = set()
    for member in members:
        if seen and member.operator not in seen and member.query is not members[0].query:
            return member
        seen.add(member.operator)
    return None


def sharable(node: Node) -> bool:
    """Whether it may be shared and has no separate queues, whose tuples depend on when they are served."""
    return node.spec.state().shared != "never" and all(node.edge(at).plain for at in range(len(node.inputs)))


def _sharable(query: Query) -> list[tuple[Node, Operator]]:
    return [both for both in zip(query.plan.nodes, query.operators, strict=True) if sharable(both[0])]


def _key_of(engine: Engine, node: Node, operator: Operator) -> Hashable:
    return _key(node, [engine.graph.producer(inlet) for inlet in operator.inputs])


def _key(node: Node, inputs: Sequence[Operator]) -> Hashable:
    return type(node.spec), _gist(node.spec), tuple(inputs), tuple(node.edge(at) for at in range(len(inputs)))


def _gist(spec: object) -> tuple[object, ...]:
    """The first plain values in a definition, breadth first: equal definitions have equal ones."""
    values: list[object] = []
    queue: deque[object] = deque([spec])
    visited = 0
    while queue and visited < GIST:
        part = queue.popleft()
        visited += 1
        if isinstance(part, tuple):
            queue.extend(part[:GIST])
        elif is_dataclass(part):
            queue.extend(getattr(part, field.name) for field in fields(part))
        elif isinstance(part, str | int | bool):
            values.append(part)
    return tuple(values)
