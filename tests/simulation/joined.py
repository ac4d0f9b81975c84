"""Worlds of joins and sequences: their operators, what an admin may do to them, and limits that small worlds meet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from millrace.engine.events import Measured, SetOrder
from millrace.engine.plan import Node, StreamDefinition
from millrace.operators.frame.spec import Spec
from millrace.operators.join import join, segments
from millrace.operators.join import pacing as join_pacing
from millrace.operators.join.bands import Band
from millrace.operators.join.join import Join
from millrace.operators.join.spec import Equal, JoinSpec
from millrace.operators.project.spec import MapSpec
from millrace.operators.sequence.spec import SequenceSpec
from millrace.protocol import Type
from millrace.values.expression import Call, Column, Constant, Expression
from tests.oracles.graph import NodeModel
from tests.oracles.joins import Band as BandModel
from tests.oracles.pairing import REMAINDERS, Pairing
from tests.simulation.odds import draw, draw_without
from tests.simulation.world import World, _Maker

if TYPE_CHECKING:
    from tests.simulation.simulator import Play

# Limits by module, such that small worlds come to them.
LIMITS = (
    (join, "MOST_LOOKED", 12),
    (segments, "SMALLEST", 2),
    (segments, "LARGEST", 8),
    (segments, "MANY", 6),
    (segments, "ENOUGH", 4),
    (segments, "FEW", 2),
    (segments, "TOGETHER", 4),
    (segments, "WORTH_CLEARING", 4),
    (segments, "FEW_PAIRS", 2),
    (segments, "MOST_PAIRS", 8),
    (join_pacing, "SHORTEST_US", 10),
)


@contextmanager
def small() -> Iterator[None]:
    """While this holds, joins meet their limits."""
    before = [(module, name, getattr(module, name)) for module, name, _ in LIMITS]
    for module, name, value in LIMITS:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


# -- operators ---------------------------------------------------------------------------------------------------------


def _call(type: Type, sign: str, one: Expression, other: Expression) -> Expression:
    return Call(type, True, f"{sign}(bigint, bigint)", (one, other))


def _column(position: int, name: str) -> Column:
    return Column(Type.BIGINT, True, position, name)


def _key(pairing: Pairing) -> Expression | None:
    if pairing.key is None:
        return None
    if pairing.key == "v":
        return _column(2, "v")
    return _call(Type.BIGINT, "%", Column(Type.BIGINT, False, 1, "id"), Constant(Type.BIGINT, False, REMAINDERS))


def nodes_of_pairing(node: NodeModel) -> list[Node]:
    """The join or sequence, and a map that brings its rows back to the columns that all rows have."""
    assert node.pairing is not None
    count = len(node.inputs)
    pairs = Node(f"{node.name}.pairs", spec_of_pairing(node.pairing, count), node.inputs)
    ids = [_column(2 * at, f"id{at}") for at in range(count)]
    first: Expression = ids[0]
    for other in ids[1:-1]:
        first = _call(Type.BIGINT, "+", _call(Type.BIGINT, "*", first, Constant(Type.BIGINT, False, 1000)), other)
    if 1 in node.pairing.outer:
        first = Call(Type.BIGINT, True, "coalesce(bigint, ...)", tuple(ids))
    last = _column(1, "v0") if node.pairing.kind == "absent" else ids[-1]
    nothing = Constant(Type.TIMESTAMP, True, None)
    return [pairs, Node(node.name, MapSpec((("ts", nothing), ("id", first), ("v", last))), (pairs.name,))]


def spec_of_pairing(pairing: Pairing, count: int) -> Spec:
    columns = tuple((f"{name}{at}", at, place) for at in range(count) for name, place in (("id", 1), ("v", 2)))
    rising = _call(Type.BOOLEAN, "<=", _column(1, "v0"), _column(3, "v1")) if pairing.rising else None
    key = _key(pairing)
    if pairing.kind == "join":
        equal = () if key is None else tuple(Equal(right - 1, key, right, key) for right in range(1, count))
        bands = tuple(Band(*band) for band in pairing.bands)
        return JoinSpec(columns, bands, equal, rising, outer=pairing.outer, order=pairing.order, alpha=0.0)
    absent = pairing.kind == "absent"
    return SequenceSpec(
        columns[:2] if absent else columns,
        () if key is None else ((key, key),),
        rising,
        mode="chronicle" if pairing.kind == "chronicle" else "recent",
        within_us=pairing.within,
        absent=absent,
        tested=columns if absent else (),
    )


# -- worlds ------------------------------------------------------------------------------------------------------------


def joined_world_of(seed: int) -> World:
    """One in which most of what has several inputs is a join or a sequence."""
    return _JoinMaker(seed).make()


class _JoinMaker(_Maker):
    ODDS: ClassVar[str] = "joins"

    def make(self) -> World:
        self.joined: set[str] = set()  # queries that have a join already: a command changes the order of all it has
        self.vague: set[str] = set()
        self.clocked: set[str] = set()
        return super().make()

    def _stream(self, name: str) -> StreamDefinition:
        """Mostly one with times of its own."""
        made = super()._stream(name)
        if made.timestamps == "external" or draw(self.rng, "joins.latent or internal stream"):
            return made
        return super()._stream(name)

    def _many(self, name: str, inputs: tuple[str, ...]) -> NodeModel:
        kind = draw(self.rng, "joins.several inputs")
        if kind in ("union", "merge"):
            return self._seen(NodeModel(name, kind, inputs))
        query = name.partition(".")[0]
        given, inputs = inputs, self._paired(kind, inputs, query, all_of_them=name.endswith(".last"))
        if not inputs or (kind == "join" and query in self.joined):
            if len(given) == 1:
                return super()._node(name, given)
            return self._seen(NodeModel(name, "merge", given))
        if kind == "join":
            self.joined.add(query)
        node = NodeModel(name, kind, inputs, pairing=self._pairing(kind, len(inputs)))
        self.copies[name] = 4
        self.timeless[name] = False
        return self._told(node)

    def _node(self, name: str, inputs: tuple[str, ...]) -> NodeModel:
        return self._many(name, inputs) if draw(self.rng, "joins.pairing of one input") else super()._node(name, inputs)

    def _paired(self, kind: str, inputs: tuple[str, ...], query: str, *, all_of_them: bool) -> tuple[str, ...]:
        """Inputs that such an operator may have, these as far as possible; none if that cannot be."""
        most = 3 if kind == "join" else 2
        chosen = [name for name in inputs if self._may_pair(kind, name)][:most]
        if all_of_them:
            return tuple(chosen) if len(chosen) == len(inputs) > 1 else ()
        inside = [name for name in self.copies if name.startswith(f"{query}.")]
        others = [name for name in [*(one.source for one in self.streams), *inside] if self._may_pair(kind, name)]
        while others and len(chosen) < {2: 2, "most": most}[draw(self.rng, "joins.inputs")]:
            chosen.append(self.rng.choice(others))
        return tuple(chosen) if len(chosen) > 1 else ()

    def _may_pair(self, kind: str, name: str) -> bool:
        """Whether a node's rows have times of their own and are not too many; for a sequence, that they also come in
        one order, and are not stamped at a time that an earlier answer of the clock has moved (what comes a microsecond
        after a row is waited for)."""
        if self.timeless[name] or name in self.stamped or self.copies[name] > 1:
            return False
        return kind == "join" or (name in self.straight and name not in self._by_clock())

    def _by_clock(self) -> set[str]:
        """Nodes above which the clock answers for a stream."""
        asked = {one.source for one in self.streams if one.timestamps == "internal" and one.ets == "on-demand"}
        return self.clocked | asked

    def _pairing(self, kind: str, count: int) -> Pairing:
        rng = self.rng
        key = draw(rng, "joins.key")
        rising = draw(rng, "joins.rising")
        if kind != "join":
            within = draw(rng, "joins.absent within" if kind == "absent" else "joins.within")
            return Pairing(kind, key=key, rising=rising, within=within)  # type: ignore[arg-type]
        order = draw(rng, "joins.order")
        bands = tuple(self._band(at, count) for at in range(1, count))
        outer = draw(rng, "joins.outer") if count == 2 else ()
        return Pairing("join", bands, key, rising, outer, order)

    def _band(self, right: int, count: int) -> BandModel:
        low = draw(self.rng, "joins.band low")
        if count == 2 and draw(self.rng, "joins.open band"):
            above = draw(self.rng, "joins.open end") == "above"
            return (0, right, low, None) if above else (0, right, None, low)
        return right - 1, right, low, low + draw(self.rng, "joins.band width")

    def _seen(self, node: NodeModel) -> NodeModel:
        return self._told(super()._seen(node))

    def _told(self, node: NodeModel) -> NodeModel:
        """Note what is known of a node because of those above it."""
        if (node.pairing is not None and node.pairing.vague) or any(name in self.vague for name in node.inputs):
            self.vague.add(node.name)
        if any(name in self._by_clock() for name in node.inputs):
            self.clocked.add(node.name)
        return node


# -- commands ----------------------------------------------------------------------------------------------------------


def meddle(play: Play) -> None:
    """Change how a join takes its rows, or tell it what executions have cost."""
    rng = play.rng
    joins = running(play)
    if not joins:
        return
    if draw(rng, "play.set order"):
        query, operator = rng.choice(joins)
        order = draw_without(rng, "play.order", ["arrival"] if operator.output.ordered else [])
        play.command(SetOrder(query, order, draw(rng, "play.alpha")))
    if draw(rng, "play.measure a join"):
        _, operator = rng.choice(joins)
        play.step([Measured(operator.name, draw(rng, "play.tuples of a join"), draw(rng, "play.us of a join"))])


def settle(play: Play) -> None:
    """Joins that were made to give rows at once do so again: what they have withheld was a matter of the command."""
    for query, operator in running(play):
        if operator.spec.order == "arrival" and operator.order != "arrival":
            play.command(SetOrder(query, "arrival"))


def running(play: Play) -> list[tuple[str, Join]]:
    return [
        (name, operator)
        for name, query in play.engine.queries_by_name.items()
        if query.paused is None
        for operator in query.operators
        if isinstance(operator, Join)
    ]
