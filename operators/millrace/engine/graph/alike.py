"""Operators with equal definitions over the same inputs: where a query may share, and where two may be merged.

Rule: an operator with a separate queue, or one that is never shared, is not listed. Definitions may be large, so the
key has only the first values of each; a lookup compares the specs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
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
    """By key, the operators that have it, in the order of their queries; `groups` are the keys of several queries.

    `unique` says that no two operators have one key, of one query or of several.
    """

    def __init__(self) -> None:
        self._members: dict[Hashable, list[Member]] = {}
        self._groups: dict[Hashable, None] = {}
        self._operators: set[Operator] = set()
        self._keys: dict[Query, list[Hashable]] = {}
        self.unique = True

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, engine: Engine, query: Query) -> None:
        """List the operators of a query that is younger than all others here."""
        for node, operator in _sharable(query):
            key = _key_of(engine, node, operator)
            members = self._members.setdefault(key, [])
            members.append(Member(query, node, operator))
            self._keys.setdefault(query, []).append(key)
            if operator not in self._operators and len(members) > 1:
                self.unique = False
                if members[0].query is not query:
                    self._groups[key] = None
            self._operators.add(operator)

    def exchange(self, engine: Engine, query: Query, former: Sequence[Operator]) -> bool:
        """A query has other operators than before, or the same over other inputs. Returns whether that was possible:
        not if one has equals, before or now."""
        if not self.remove(query, former):
            return False
        if any(_key_of(engine, node, operator) in self._members for node, operator in _sharable(query)):
            return False
        self.add(engine, query)
        return True

    def remove(self, query: Query, operators: Sequence[Operator]) -> bool:
        """Forget a query with these operators. Returns whether that was possible: not if one of them has equals, which
        are listed in an order that depends on it."""
        for key in self._keys.pop(query, ()):
            members = self._members[key]
            if any(member.operator is not members[0].operator for member in members):
                return False
            members[:] = [member for member in members if member.query is not query]
            if not members:
                del self._members[key]
        self._operators.difference_update(operators)
        return True

    def rename(self, engine: Engine, query: Query) -> bool:
        """Its plan has other names for the same operators. Returns whether that is all: not if an input of one keeps
        other tuples now."""
        keys = [_key_of(engine, node, operator) for node, operator in _sharable(query)]
        if keys != self._keys.get(query, []):
            return False
        nodes = dict(zip(query.operators, query.plan.nodes, strict=True))
        for key in keys:
            self._members[key] = [
                member._replace(node=nodes[member.operator]) if member.query is query else member
                for member in self._members[key]
            ]
        return True

    def members(self, node: Node, inputs: Sequence[Operator]) -> Iterator[Member]:
        """The operators with a node's definition over these inputs."""
        return (member for member in self._members.get(_key(node, inputs), ()) if member.node.spec == node.spec)

    def groups(self) -> Iterator[Sequence[Member]]:
        """The operators that may have equal definitions, where there are several."""
        return (self._members[key] for key in self._groups)


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
