"""LATEST and SHED RANDOM: which rows of a table the first operator downstream keeps.

The relation carries the edge until the plan adds an operator that reads it. With a window, the edge belongs to the
aggregate: WHERE tests rows before they enter a window, and so before the queue.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, get_args

from millrace.engine.plan import Node
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.project.spec import MapSpec
from millrace.operators.queues.edge import EdgeSpec, QueueKind
from millrace.protocol import Refuse
from millrace.sql import syntax as s
from millrace.sql.binder import Relation
from millrace.sql.errors import did_you_mean
from millrace.sql.sequences import key_of
from millrace.values import expression as e

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner

KINDS: Final[tuple[QueueKind, ...]] = get_args(QueueKind)


def apply_edge(planner: QueryPlanner, table: s.TablePrimary, relation: Relation) -> Relation:
    """The table with the edge of its LATEST or SHED RANDOM."""
    if table.latest is not None and table.shed is not None:
        raise planner.error(
            table.shed,
            "an edge takes one policy: LATEST keeps the newest row of each key and never sheds rows; remove "
            "LATEST or SHED RANDOM",
        )
    if (table.latest is not None or table.shed is not None) and not relation.edge.plain:
        raise planner.error(
            table.latest or table.shed or table,
            "an edge takes one policy, and the query in parentheses already has one",
        )
    if table.latest is not None:
        return _latest(planner, table.latest, relation)
    if table.shed is not None:
        return _shed(planner, table.shed, relation)
    return relation


def settle_edge(planner: QueryPlanner, relation: Relation) -> Relation:
    """The rows after their edge, for an operator that takes all queued rows at once, which would leave its queue no
    choice. An operator in between takes them one turn at a time."""
    return relation if relation.edge.plain else pass_rows(planner, relation)


def pass_rows(planner: QueryPlanner, relation: Relation) -> Relation:
    """The same rows, passed on by a separate operator."""
    columns = [
        (field.name, e.Column(field.type, field.nullable, at, field.name)) for at, field in enumerate(relation.schema)
    ]
    passed = planner.add(MapSpec(tuple(columns)), [relation])
    return replace(passed, alias=relation.alias, time_name=relation.time_name, update_key=relation.update_key)


def only_names(node: Node, width: int) -> bool:
    """Whether an operator copies each of so many columns, and gives them names at most."""
    spec = node.spec
    if not isinstance(spec, MapSpec) or len(spec.columns) != width or not node.edge(0).plain:
        return False
    return all(isinstance(one, e.Column) and one.position == at for at, (_, one) in enumerate(spec.columns))


def _latest(planner: QueryPlanner, latest: s.Latest, relation: Relation) -> Relation:
    if planner.options.order == "event":
        raise planner.error(
            latest,
            "LATEST serves keys in its own order. Waiting for the order of time would make every row as old "
            "as the oldest: create the query WITH (order = 'arrival')",
        )
    window = relation.window
    key = key_of(planner, relation) if window is None else window.key
    if key is None:
        raise planner.error(
            latest,
            "LATEST keeps the newest row of each key, but its input has no key: expected a stream WITH "
            "(update_key = '...'), or a query that emits an update stream (LATEST, or GROUP BY without a window)",
        )
    if not relation.time_known:
        raise planner.error(
            latest, "LATEST keeps the newest tuple by time, and the tuples of a latent stream have no time"
        )
    kind = _kind(planner, latest, relation)
    if window is not None and window.spec is not None:
        return _windowed(planner, latest, relation, EdgeSpec(kind, key))
    if latest.commit is not None:
        raise planner.error(
            latest,
            f"{latest.commit.upper()} sets when a window is committed, but this input has no window: write "
            "FROM TUMBLE(...) or HOP(...) LATEST, or remove it",
        )
    names = tuple(relation.schema.names[at] for at in key)
    edge = EdgeSpec() if kind == "append" else EdgeSpec(kind, key)
    return replace(relation, edge=edge, update_key=names)


def _kind(planner: QueryPlanner, latest: s.Latest, relation: Relation) -> QueueKind:
    """The kind of queue: from USING, else from the stream's definition."""
    if latest.using is None:
        return next(
            (stream.queue for name, stream in planner.catalog.streams.items()
             if name in planner.streams and planner.below(relation.node, MapSpec) == stream.source),
            "inplace",
        )  # fmt: skip
    for kind in KINDS:
        if kind == latest.using.text:
            return kind
    hint = did_you_mean(latest.using.text, KINDS) or f"; expected {', '.join(kind.upper() for kind in KINDS)}"
    raise planner.error(latest.using, f"the queue {latest.using.text} does not exist{hint}")


def _windowed(planner: QueryPlanner, latest: s.Latest, relation: Relation, edge: EdgeSpec) -> Relation:
    window = relation.window
    assert window is not None
    if not isinstance(window.spec, TimeWindow):
        raise planner.error(
            latest, "LATEST takes windows of one length in time, TUMBLE and HOP: sessions and ROWS windows have none"
        )
    if edge.kind == "append":
        raise planner.error(
            latest,
            "LATEST drops windows that a newer window has superseded: remove LATEST to get all of them, write USING "
            "AUTO to drop them only under overload, or USING FIFO, INPLACE, LINECUTTING or DEADLINE",
        )
    for option, wrong in (("flush", planner.options.flush != "none"), ("partial", planner.options.partial == "emit")):
        if wrong:
            raise planner.error(
                latest, f"{option} does not apply to LATEST windows, which Millrace emits whole and at once"
            )
    commit = latest.commit or "lazy"
    if (edge.kind, commit) == ("auto", "eager"):
        raise planner.error(
            latest,
            "AUTO processes all windows of a key, whole, while there is no overload, but EAGER starts windows before "
            "they are complete: write LAZY, or another USING",
        )
    edge = replace(edge, window=window.spec, commit=commit)
    return replace(relation, window=replace(window, latest=(edge, latest)))


def _shed(planner: QueryPlanner, shed: s.Shed, relation: Relation) -> Relation:
    edge = EdgeSpec(shed=shed.bound)
    if relation.update_key is not None:
        raise planner.error(
            shed,
            "shedding a row of an update stream would leave the old row of its key current: write LATEST instead",
        )
    try:
        edge.check(relation.schema, "this edge")
    except Refuse:
        raise planner.error(shed, f"expected a number of tuples from 1 to 2147483646, got {shed.bound}") from None
    shedding = replace(relation, edge=edge)
    if planner.options.order == "event" or not relation.time_known:
        return replace(settle_edge(planner, shedding), window=relation.window)
    return shedding
