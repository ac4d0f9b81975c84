"""The parsed form of SQL: the written text and its places, before names are resolved. Plain frozen data.

Every node has a span, the offsets of its start and end in the text, because every error points at its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple


class Span(NamedTuple):
    """Offsets into the text of all statements."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Node:
    span: Span


@dataclass(frozen=True, slots=True)
class Name(Node):
    """An identifier: folded to lower case, or exactly as quoted."""

    text: str


# -- expressions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expr(Node):
    """Anything with a value."""


@dataclass(frozen=True, slots=True)
class Constant(Expr):
    """A number, a text, a truth value or NULL (None). A text may still become a timestamp or an interval."""

    value: int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class IntervalLiteral(Expr):
    text: str
    unit: str | None


@dataclass(frozen=True, slots=True)
class TimestampLiteral(Expr):
    text: str


@dataclass(frozen=True, slots=True)
class ColumnRef(Expr):
    table: Name | None
    name: Name


@dataclass(frozen=True, slots=True)
class TypeName(Node):
    """A type as written; the binder resolves it."""

    text: str


@dataclass(frozen=True, slots=True)
class OrderItem(Node):
    expression: Expr
    descending: bool
    nulls_first: bool | None


@dataclass(frozen=True, slots=True)
class Over(Node):
    partition: tuple[Expr, ...]
    order: tuple[OrderItem, ...]


@dataclass(frozen=True, slots=True)
class FunctionCall(Expr):
    """A function by name, or an operator by its sign. `star` is count(*)."""

    name: Name
    arguments: tuple[Expr, ...]
    star: bool = False
    distinct: bool = False
    filter: Expr | None = None
    over: Over | None = None
    operator: bool = False


@dataclass(frozen=True, slots=True)
class Between(Expr):
    value: Expr
    low: Expr
    high: Expr
    negated: bool


@dataclass(frozen=True, slots=True)
class InList(Expr):
    value: Expr
    members: tuple[Expr, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Like(Expr):
    value: Expr
    pattern: Expr
    escape: Expr | None
    negated: bool
    fold: bool


@dataclass(frozen=True, slots=True)
class CaseExpr(Expr):
    subject: Expr | None
    branches: tuple[tuple[Expr, Expr], ...]
    otherwise: Expr | None


@dataclass(frozen=True, slots=True)
class CastExpr(Expr):
    argument: Expr
    type: TypeName


@dataclass(frozen=True, slots=True)
class QueryExpr(Expr):
    """A query in place of a value: EXISTS, IN or a scalar subquery. None of them runs on a stream."""

    form: Literal["exists", "in", "scalar"]
    query: QueryBody


# -- tables ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IntervalText(Node):
    text: str
    unit: str | None


@dataclass(frozen=True, slots=True)
class RangeWindow(Node):
    """`[RANGE r SLIDE s]`; no range means UNBOUNDED."""

    range: IntervalText | None
    slide: IntervalText | None


@dataclass(frozen=True, slots=True)
class RowsWindow(Node):
    rows: int
    slide: int | None


@dataclass(frozen=True, slots=True)
class Latest(Node):
    """LATEST [LAZY | EAGER] [USING policy]: the edge to this table is an update queue."""

    commit: Literal["lazy", "eager"] | None
    using: Name | None


@dataclass(frozen=True, slots=True)
class Shed(Node):
    bound: int


@dataclass(frozen=True, slots=True)
class Deduplicate(Node):
    """DEDUPLICATE BY keys WITHIN a span."""

    keys: tuple[Expr, ...]
    within: IntervalText


@dataclass(frozen=True, slots=True)
class TableSource(Node):
    """A source of rows, without its modifiers."""


@dataclass(frozen=True, slots=True)
class NamedTable(TableSource):
    """A stream, a query, a CTE; `part` follows a dot, as in `packets.late`."""

    name: Name
    part: Name | None


@dataclass(frozen=True, slots=True)
class TableFunction(TableSource):
    """TUMBLE, HOP or SESSION."""

    name: Name
    arguments: tuple[Expr, ...]
    partition: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Subquery(TableSource):
    query: QueryBody


@dataclass(frozen=True, slots=True)
class Table(Node):
    """Anything in FROM."""


@dataclass(frozen=True, slots=True)
class TablePrimary(Table):
    source: TableSource
    alias: Name | None
    window: RangeWindow | RowsWindow | None
    latest: Latest | None
    shed: Shed | None
    deduplicate: Deduplicate | None


@dataclass(frozen=True, slots=True)
class Join(Table):
    left: Table
    right: TablePrimary
    kind: Literal["inner", "left", "right", "full", "cross"]
    condition: Expr | None
    latest: bool


@dataclass(frozen=True, slots=True)
class Followed(Table):
    """left FOLLOWED BY [NO] right."""

    left: Table
    right: TablePrimary
    absent: bool
    mode: Literal["recent", "chronicle"]
    within: IntervalText | None
    condition: Expr | None


# -- queries -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Item(Node):
    """An expression of the SELECT list."""

    expression: Expr
    alias: Name | None


@dataclass(frozen=True, slots=True)
class Star(Node):
    """`*`, or `t.*`."""

    table: Name | None


@dataclass(frozen=True, slots=True)
class Select(Node):
    items: tuple[Item | Star, ...]
    table: Table | None
    where: Expr | None
    group_by: tuple[Expr, ...]
    having: Expr | None
    qualify: Expr | None
    distinct: bool


@dataclass(frozen=True, slots=True)
class Arm(Node):
    """UNION ALL and the SELECT after it; `operator` is the text in capitals."""

    operator: str
    term: Select | QueryBody


@dataclass(frozen=True, slots=True)
class Cte(Node):
    name: Name
    query: QueryBody


@dataclass(frozen=True, slots=True)
class Clause(Node):
    """A clause that only a temporary query may have, or none: its place, and the value of LIMIT."""

    words: str
    value: Expr | None = None


@dataclass(frozen=True, slots=True)
class QueryBody(Node):
    ctes: tuple[Cte, ...]
    recursive: bool
    first: Select | QueryBody
    arms: tuple[Arm, ...]
    order_by: Clause | None
    limit: Clause | None


# -- statements --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option(Node):
    """`name = value` of WITH; `word` is true if the value has no quotes."""

    name: Name
    value: str | int | float | bool
    value_span: Span
    word: bool = False


@dataclass(frozen=True, slots=True)
class FieldDef(Node):
    name: Name
    type: TypeName
    not_null: bool


@dataclass(frozen=True, slots=True)
class CreateStreamStatement(Node):
    """`options_span` covers the parentheses after WITH; `unless_exists` is IF NOT EXISTS."""

    name: Name
    fields: tuple[FieldDef, ...]
    options: tuple[Option, ...]
    options_span: Span | None
    replace: bool = False
    unless_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateQueryStatement(Node):
    name: Name
    replace: bool
    options: tuple[Option, ...]
    query: QueryBody
    unless_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateSinkStatement(Node):
    """`part` follows a dot: `s.late` is not a query, and the planner refuses it."""

    name: Name
    query: Name
    part: Name | None
    options: tuple[Option, ...]
    unless_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterStreamStatement(Node):
    name: Name
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class AddColumnStatement(Node):
    """ALTER STREAM ... ADD COLUMN ... DEFAULT."""

    name: Name
    field: FieldDef
    default: Expr | None


@dataclass(frozen=True, slots=True)
class RenameColumnStatement(Node):
    """ALTER STREAM ... RENAME COLUMN ... TO."""

    name: Name
    column: Name
    to: Name


@dataclass(frozen=True, slots=True)
class AlterQueryStatement(Node):
    """RENAME TO."""

    name: Name
    to: Name


@dataclass(frozen=True, slots=True)
class DropStatementNode(Node):
    kind: Literal["stream", "query", "sink"]
    name: Name
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class InsertStatement(Node):
    """INSERT INTO ... VALUES. Without `columns` a row has a value for each column of the stream."""

    name: Name
    part: Name | None
    columns: tuple[Name, ...] | None
    rows: tuple[ValueRow, ...]


@dataclass(frozen=True, slots=True)
class ValueRow(Node):
    values: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class ShowStatement(Node):
    """SHOW STREAMS and the like."""

    of: Literal["streams", "queries", "sinks", "components", "operators"]


@dataclass(frozen=True, slots=True)
class ShowCreateStatement(Node):
    kind: Literal["stream", "query", "sink"]
    name: Name


@dataclass(frozen=True, slots=True)
class DescribeStatement(Node):
    """`part` follows a dot, as in `packets.late`."""

    kind: Literal["stream", "query", "sink"] | None
    name: Name
    part: Name | None


@dataclass(frozen=True, slots=True)
class ExplainStatement(Node):
    query: QueryBody


@dataclass(frozen=True, slots=True)
class ExplainRunningStatement(Node):
    """EXPLAIN [ANALYZE] of a query by its name."""

    name: Name
    analyze: bool


@dataclass(frozen=True, slots=True)
class SelectStatement(Node):
    query: QueryBody


Body = (
    CreateStreamStatement
    | CreateQueryStatement
    | CreateSinkStatement
    | AlterStreamStatement
    | AddColumnStatement
    | RenameColumnStatement
    | AlterQueryStatement
    | DropStatementNode
    | InsertStatement
    | ShowStatement
    | ShowCreateStatement
    | DescribeStatement
    | ExplainStatement
    | ExplainRunningStatement
    | SelectStatement
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement and the whole text that contains it, so that an error can show its line."""

    text: str
    body: Body

    @property
    def sql(self) -> str:
        """The statement's own words."""
        return self.text[self.body.span.start : self.body.span.end]


def walk(node: Node, closed: Callable[[Node], bool] = lambda _: False) -> Iterator[Node]:
    """A node and all nodes in it, in the order of the text, without those in queries and in `closed` nodes."""
    if closed(node) or isinstance(node, QueryBody):
        return
    yield node
    for part in children(node):
        yield from walk(part, closed)


def children(node: Node) -> Iterator[Node]:
    """The direct children of a node, in the order of the text."""
    for place in fields(node):
        yield from _parts(getattr(node, place.name))


def _parts(value: object) -> Iterator[Node]:
    """The nodes in an attribute, which may be tuples of tuples."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _parts(item)
