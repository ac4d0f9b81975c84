"""The binder resolves names and types: it turns parsed expressions into typed ones.

All types are decided here, and every remaining conversion becomes a cast in the expression. Every error names the
expected and the actual input, and points at its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from millrace.operators.aggregate.spec import AggregateCall
from millrace.operators.frame.windows import RowWindow
from millrace.operators.queues.edge import APPEND, EdgeSpec
from millrace.protocol import GONE, MAX_INT64, MIN_INT64, MillraceError, Refuse, Schema, Type
from millrace.protocol.timestamps import parse_timestamp
from millrace.sql import dialects
from millrace.sql import syntax as s
from millrace.sql.aggregation import Calls, is_bound
from millrace.sql.errors import SqlError, did_you_mean
from millrace.sql.windows import BOUNDS, Window
from millrace.values import expression as e
from millrace.values.aggregates import AGGREGATES, Aggregate
from millrace.values.functions import LIBRARY, Library
from millrace.values.functions.casts import CASTS
from millrace.values.functions.comparison import as_bigint
from millrace.values.intervals import parse_interval
from millrace.values.lags import EXACT, Lags
from millrace.values.signatures import Readings

TYPE_NAMES: Final[dict[str, Type]] = {
    **dict.fromkeys(("boolean", "bool"), Type.BOOLEAN),
    **dict.fromkeys(("bigint", "int", "integer", "int8", "int4", "smallint"), Type.BIGINT),
    **dict.fromkeys(("double", "double precision", "float", "float8", "real"), Type.DOUBLE),
    **dict.fromkeys(("text", "varchar", "string", "char"), Type.TEXT),
    **dict.fromkeys(("bytes", "bytea", "blob"), Type.BYTES),
    **dict.fromkeys(("timestamp", "timestamptz"), Type.TIMESTAMP),
    "interval": Type.INTERVAL,
}
# The name of a row's time if no column carries it.
TIME_NAME: Final = "ts"
# Functions of other systems whose result would differ between runs.
CLOCKS: Final = frozenset(["now", "current_timestamp", "clock_timestamp", "localtimestamp", "current_date", "random"])
# Each level costs some frames of Python's stack in the binder, in the evaluator and in EXPLAIN.
MAX_DEPTH: Final = 120
# Parts of an expression. A value that is used in several tests counts once for each: twice for BETWEEN, and once for
# each branch of CASE and IN.
MAX_PARTS: Final = 50_000
_ANY_TYPE: Final[Readings] = dict.fromkeys(Type, 0)


@dataclass(frozen=True, slots=True)
class Named:
    """One of the tables of a join: its columns by name, with their positions in the joined row.

    A position is None if no downstream operator needs the column. `time` is the position of the implicit column `ts`,
    if the table has one. `absent` is the reason why the columns of this table are not available.
    """

    alias: str | None
    columns: Mapping[str, int | None]
    time: int | None = None
    absent: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.columns, *(() if self.time is None or TIME_NAME in self.columns else (TIME_NAME,)))


@dataclass(frozen=True, slots=True)
class Ranking:
    """Numbered rows that have no limit yet: the operator that numbers them, the position of the number (-1: it is not
    selected), its place in the text, and whether ranks are final because the rows belong to windows.
    """

    node: str
    position: int
    place: s.Node
    final: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """Rows that a query can read: their origin and their form.

    node        the operator that emits them
    alias       the name that qualifies their columns in expressions
    time_known  whether every row has a time (rows of a latent stream do not)
    time_name   the field that carries the time, if any; else the time is the implicit column `ts`
    lags        the distance between each progressing field and the rows' time
    update_key  of an update stream: the fields that identify the row that a new row replaces
    window      the window that no operator has applied yet; its bounds are columns too
    ranking     of rows with a ROW_NUMBER() that has no limit yet; until then their key is the partition
    edge        the rows that the first operator downstream keeps
    tables      of the rows of a join: the joined tables, which qualify its columns
    """

    node: str
    schema: Schema
    alias: str | None
    time_known: bool
    time_name: str | None
    lags: Lags = field(default_factory=dict)
    update_key: tuple[str, ...] | None = None
    window: Window | None = None
    ranking: Ranking | None = None
    tables: tuple[Named, ...] = ()
    edge: EdgeSpec = APPEND

    @property
    def times(self) -> tuple[int, ...]:
        """The positions of the fields that carry the rows' own time, under any name."""
        return tuple(position for position, lag in self.lags.items() if lag == EXACT)

    @property
    def retracts(self) -> bool:
        """Whether its rows may be tombstones."""
        return self.schema.retracts

    @property
    def key_at(self) -> tuple[int, ...]:
        """The positions of the update key."""
        return tuple(self.schema.names.index(name) for name in self.update_key or ())

    def column(self, name: str) -> e.Column | None:
        """A bound of the window, else a field, else the implicit time."""
        if name in self.bounds:
            rows = self.window is not None and isinstance(self.window.spec, RowWindow)
            return e.Column(Type.BIGINT if rows else Type.TIMESTAMP, False, BOUNDS[name], name)
        if self.tables:
            holders = self.holders(name)
            if holders:
                return self.column_of(holders[0], name) if len(holders) == 1 else None
            return e.Column(Type.TIMESTAMP, not self.time_known, e.TIME, TIME_NAME) if name == TIME_NAME else None
        position = None if name == GONE else self.schema.index(name)
        if position is not None:
            field = self.schema.fields[position]
            return e.Column(field.type, field.nullable, position, field.name)
        if name == TIME_NAME and self.time_name is None:
            return e.Column(Type.TIMESTAMP, not self.time_known, e.TIME, TIME_NAME)
        return None

    def holders(self, name: str) -> list[Named]:
        """The joined tables that have a column. Tables with available columns take precedence."""
        tables = [table for table in self.tables if name in table.columns]
        return [table for table in tables if table.absent is None] or tables

    def column_of(self, table: Named, name: str) -> e.Column | None:
        """A column of one of the joined tables, or its own time."""
        position = table.columns.get(name, table.time if name == TIME_NAME else None)
        if position is None:
            return None
        field = self.schema.fields[position]
        return e.Column(field.type, field.nullable, position, field.name)

    @property
    def column_names(self) -> tuple[str, ...]:
        if self.tables:
            return tuple(dict.fromkeys(name for table in self.tables for name in table.columns))
        fields = [field.name for field in self.schema.data_fields if field.name not in self.bounds]
        return (*fields, *self.bounds, *(() if self.time_name or TIME_NAME in fields else (TIME_NAME,)))

    @property
    def bounds(self) -> tuple[str, ...]:
        """The columns that the window adds."""
        return () if self.window is None or self.window.spec is None or self.window.joint else tuple(BOUNDS)


class Binder:
    """Binds expressions of one SELECT.

    calls     collects the aggregates, where aggregates are allowed
    instead   the advice of the error, where aggregates are not allowed
    number    the column for ROW_NUMBER() OVER (...), where it is allowed
    """

    def __init__(
        self,
        sql: str,
        relation: Relation | None,
        library: Library = LIBRARY,
        *,
        calls: Calls | None = None,
        instead: str = "aggregates belong in the select list and in HAVING",
        number: e.Column | None = None,
    ) -> None:
        self._sql = sql
        self._relation = relation
        self._library = library
        self._calls = calls
        self._instead = instead
        self._number = number
        self._depth = 0
        self._repeats = False  # whether a part of the expression is used in several places

    def error(self, node: s.Node, message: str) -> SqlError:
        return SqlError(self._sql, node.span.start, message)

    # -- entry -----------------------------------------------------------------------------------------------------

    def bind(self, node: s.Expr) -> e.Expression:
        """The typed expression of a parsed one."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.error(node, f"expected at most {MAX_DEPTH} levels of nesting here")
        bound = self._bind(node)
        self._depth -= 1
        if self._repeats and self._depth == 0:
            self._check_parts(node, bound)
        return bound

    def _check_parts(self, node: s.Expr, bound: e.Expression) -> None:
        self._repeats = False
        if e.extent(bound).parts > MAX_PARTS:
            raise self.error(
                node,
                f"expected at most {MAX_PARTS:,} parts in an expression: the value of BETWEEN, IN and CASE is "
                "computed for each of their tests. Compute it in a query in parentheses, and test its column",
            )

    def _check_repeated(self, node: s.Expr, value: e.Expression) -> None:
        """Refuse a value that several tests would compute, if it may differ each time."""
        drawn = self._library.drawn(value)
        if drawn:
            raise self.error(
                node,
                f"{drawn[0]} is not deterministic, and the value of BETWEEN, IN and CASE is computed for each of their "
                "tests: compute it in a query in parentheses, and test its column",
            )

    def _bind(self, node: s.Expr) -> e.Expression:
        match node:
            case s.Constant():
                return self._constant(node)
            case s.ColumnRef():
                return self._column(node)
            case s.FunctionCall():
                return self._function(node)
            case s.IntervalLiteral():
                return self._literal(node, Type.INTERVAL, lambda: parse_interval(node.text, node.unit))
            case s.TimestampLiteral():
                return self._literal(node, Type.TIMESTAMP, lambda: parse_timestamp(node.text))
            case s.CastExpr():
                return self._cast(node)
            case s.CaseExpr():
                return self._case(node)
            case s.Between():
                return self._between(node)
            case s.InList():
                return self._in(node)
            case s.Like():
                return self._like(node)
            case s.QueryExpr():
                raise self.error(node, _QUERY_EXPRESSIONS[node.form])
        raise AssertionError(node)

    def bind_boolean(self, node: s.Expr, where: str) -> e.Expression:
        """Bind an expression that must be a condition."""
        bound = self.bind(node)
        if Type.BOOLEAN not in readings(node, bound):
            raise self.error(node, f"{where}: expected boolean, got {bound.type}")
        return self._convert(node, bound, Type.BOOLEAN)

    def as_type(self, node: s.Expr, bound: e.Expression, type: Type) -> e.Expression:
        return self._convert(node, bound, type)

    # -- leaves ----------------------------------------------------------------------------------------------------

    def _constant(self, node: s.Constant) -> e.Constant:
        value = node.value
        if value is None:
            return e.Constant(Type.TEXT, True, None)
        if isinstance(value, bool):
            return e.Constant(Type.BOOLEAN, False, value)
        if isinstance(value, int):
            if not MIN_INT64 <= value <= MAX_INT64:
                raise self.error(node, f"expected a number within 64 bits, got {value}; write {value}.0 for a double")
            return e.Constant(Type.BIGINT, False, value)
        if isinstance(value, float):
            if value in (float("inf"), float("-inf")):
                raise self.error(node, "this number is too large for a double")
            return e.Constant(Type.DOUBLE, False, value)
        return e.Constant(Type.TEXT, False, value)

    def _literal(self, node: s.Expr, type: Type, read: Callable[[], int]) -> e.Constant:
        try:
            return e.Constant(type, False, read())
        except MillraceError as error:
            raise self.error(node, error.text) from None

    def _column(self, node: s.ColumnRef) -> e.Column:
        relation = self._relation
        name = node.name.text
        if relation is None:
            raise self.error(node, f"the column {name} does not exist: this SELECT has no FROM")
        if relation.tables:
            return self._joined_column(node, relation)
        if node.table is not None and node.table.text != relation.alias:
            known = [relation.alias] if relation.alias else []
            hint = did_you_mean(node.table.text, known) or (f"; the table here is {known[0]}" if known else "")
            raise self.error(node.table, f"FROM has no table {node.table.text}{hint}")
        column = relation.column(name)
        if column is None:
            raise self.error(node.name, _no_column(f"the column {name} does not exist{_of(relation)}", name, relation))
        return column

    def _joined_column(self, node: s.ColumnRef, relation: Relation) -> e.Column:
        """A column of several tables. A name that two of them have must be qualified."""
        name = node.name.text
        if node.table is not None:
            table = self._table(node.table, relation)
            if table.absent is not None and name in table.names:
                raise self.error(node, f"{table.alias}.{name} is not available: {table.absent}")
            column = relation.column_of(table, name)
            if column is None:
                known = did_you_mean(name, table.names) or f"; the columns are {', '.join(table.names)}"
                raise self.error(node.name, f"the column {name} does not exist in {table.alias}{known}")
            return column
        holders = relation.holders(name)
        if len(holders) > 1:
            named = [f"{table.alias}.{name}" for table in holders if table.alias is not None]
            write = " or ".join(named) or "an alias after each table"
            raise self.error(node, f"several tables have a column {name}: write {write}")
        if holders and holders[0].absent is not None:
            raise self.error(node, f"{name} is not available: {holders[0].absent}")
        match = relation.column(name)
        if match is None:
            raise self.error(
                node.name, _no_column(f"the column {name} does not exist in the joined tables", name, relation)
            )
        return match

    def _table(self, name: s.Name, relation: Relation) -> Named:
        for table in relation.tables:
            if table.alias == name.text:
                return table
        known = [table.alias for table in relation.tables if table.alias is not None]
        hint = did_you_mean(name.text, known) or f"; the tables here are {', '.join(known)}"
        raise self.error(name, f"FROM has no table {name.text}{hint}")

    # -- functions -------------------------------------------------------------------------------------------------

    def _function(self, node: s.FunctionCall) -> e.Expression:
        name = node.name.text
        if not node.operator:
            if node.over is not None and name == "row_number" and self._number is not None:
                return self._number
            if node.over is not None or AGGREGATES.named(name):
                return self._aggregate(node)
            self._check_function(node)
        if name in ("extract", "date_part") and len(node.arguments) == 2:
            return self._extract(node)
        bound = [self.bind(argument) for argument in node.arguments]
        if name == "||" or name == "concat":
            bound = self._texts(node, bound)
        return self._call(node, name, node.arguments, bound)

    def _check_function(self, node: s.FunctionCall) -> None:
        name = node.name.text
        if not self._library.named(name) and name not in ("extract", "date_part", *CLOCKS):
            raise self.error(node.name, self._no_function(name))
        if node.star or node.distinct:
            raise self.error(node, f"{name} is not an aggregate: it takes neither * nor DISTINCT")
        if node.filter is not None:
            raise self.error(node.filter, f"{name} is not an aggregate, so FILTER does not apply: write CASE WHEN")
        if name in CLOCKS:
            text = f"{name} would make the result depend on the clock: use ts, the row's own time"
            raise self.error(node, dialects.guided(text))

    def _no_function(self, name: str) -> str:
        complaint = f"the function {name} does not exist"
        word = dialects.FUNCTIONS.get(name) or dialects.AGGREGATES.get(name)
        if word is not None:
            return word.sentence(complaint)
        names = [known for known in self._library.names if known[0].isalpha() and " " not in known]
        return complaint + did_you_mean(
            name, [*(name_ for name_ in names if name_ not in _OPERATORS), *AGGREGATES.names]
        )

    # -- aggregates ------------------------------------------------------------------------------------------------

    def _aggregate(self, node: s.FunctionCall) -> e.Expression:
        """The placeholder of an aggregate's result."""
        name = node.name.text
        if node.over is not None:
            raise self._over(node)
        if self._calls is None:
            raise self.error(node, f"{name} is an aggregate: {self._instead}")
        if node.star != (name == "count" and not node.arguments) or (node.star and node.distinct):
            many = "takes * or an expression" if name == "count" else "needs an expression, not *"
            raise self.error(node, f"{name} {many}")
        inner = self._inner("aggregates do not nest; aggregate again over (SELECT ... ) in FROM")
        bound = [inner.bind(argument) for argument in node.arguments]
        types = [readings(argument, value) for argument, value in zip(node.arguments, bound, strict=True)]
        function = AGGREGATES.resolve(name, types)
        if function is None:
            raise self._no_such_aggregate(node, bound)
        arguments = tuple(
            self._convert(argument, value, type)
            for argument, value, type in zip(node.arguments, bound, function.arguments, strict=True)
        )
        self._check_constants(node, function, arguments)
        only = None
        if node.filter is not None:
            only = self._inner("FILTER tests rows before aggregation").bind_boolean(node.filter, "FILTER")
        for place, part in zip((*node.arguments, node.filter), (*arguments, only), strict=True):
            if place is not None and part is not None and any(map(is_bound, e.columns_of(part))):
                raise self.error(
                    place,
                    f"{name} reads rows, which may be in several windows: use the window's bounds outside the "
                    "aggregate",
                )
        call = AggregateCall(function.result, function.nullable, function.key, arguments, node.distinct, only)
        return self._calls.column(call, name)

    def _over(self, node: s.FunctionCall) -> SqlError:
        name = node.name.text
        if name == "row_number":
            return self.error(
                node,
                "ROW_NUMBER() OVER (...) belongs in the select list or in QUALIFY: Millrace numbers rows after WHERE",
            )
        word = dialects.OVER.get(name)
        if word is not None:
            return self.error(node, word.sentence(f"{name} OVER (...) is not available"))
        return self.error(
            node,
            f"{name} OVER (...) is not available. Use ROW_NUMBER() OVER (...) <= n, or an aggregate with "
            "GROUP BY, with or without a window: FROM TUMBLE(...)",
        )

    def _check_constants(self, node: s.FunctionCall, function: Aggregate, arguments: Sequence[e.Expression]) -> None:
        constants = []
        for position in function.constants:
            argument = arguments[position]
            if not isinstance(argument, e.Constant):
                raise self.error(node.arguments[position], f"{function.name}: expected a constant here")
            constants.append(argument.value)
        try:
            function.make(constants, True)
        except Refuse as error:
            raise self.error(node.arguments[function.constants[0]], error.text) from None

    def _inner(self, instead: str) -> Binder:
        """A binder over the same rows that refuses aggregates."""
        inner = Binder(self._sql, self._relation, self._library, instead=instead)
        inner._depth = self._depth
        return inner

    def _no_such_aggregate(self, node: s.FunctionCall, bound: Sequence[e.Expression]) -> SqlError:
        name = node.name.text
        rows = AGGREGATES.named(name)
        counts = sorted({len(row.arguments) for row in rows} - ({0} if name == "count" else set()))
        if len(bound) not in counts:
            return self.error(node, f"{name}: expected {_arguments(' or '.join(map(str, counts)))}, got {len(bound)}")
        for position, (argument, value) in enumerate(zip(node.arguments, bound, strict=True)):
            types = dict.fromkeys(row.arguments[position] for row in rows if len(row.arguments) == len(bound))
            if not set(types) & set(readings(argument, value)):
                return self.error(argument, f"{name}: expected {_alternatives(types)}, got {value.type}")
        return self.error(node, f"{name} does not take ({', '.join(str(value.type) for value in bound)})")

    def _call(
        self, node: s.Expr, name: str, arguments: Sequence[s.Expr], bound: Sequence[e.Expression]
    ) -> e.Expression:
        choices = [readings(argument, value) for argument, value in zip(arguments, bound, strict=True)]
        function = self._library.resolve(name, choices)
        if function is None:
            raise self._mismatch(node, name, arguments, bound, choices)
        expected = function.expected(len(bound))
        assert expected is not None
        converted = tuple(
            self._convert(argument, value, type)
            for argument, value, type in zip(arguments, bound, expected, strict=True)
        )
        nullable = function.nullable([value.nullable for value in converted])
        return e.Call(function.result, nullable, function.key, converted)

    def _mismatch(
        self,
        node: s.Expr,
        name: str,
        arguments: Sequence[s.Expr],
        bound: Sequence[e.Expression],
        choices: Sequence[Readings],
    ) -> SqlError:
        """An error that names the wrong argument if all others fit a signature, else all signatures."""
        signatures = self._library.named(name)
        counts = sorted({len(row.arguments) for row in signatures})
        fitting = [row for row in signatures if row.expected(len(choices)) is not None]
        if not fitting:
            many = " or ".join(map(str, counts)) + (" or more" if any(row.variadic for row in signatures) else "")
            return self.error(node, f"{name}: expected {_arguments(many)}, got {len(choices)}")
        for position in reversed(range(len(choices))):
            types: list[Type] = []
            for row in fitting:
                row_types = row.expected(len(choices)) or ()
                others = [have for at, have in enumerate(choices) if at != position]
                if all(want in have for want, have in zip(_without(row_types, position), others, strict=True)):
                    types.append(row_types[position])
            if types:
                self._refuse_literal(arguments[position], types)
                expected = _alternatives(dict.fromkeys(types))
                return self.error(
                    arguments[position], f"{_call_name(name)}: expected {expected}, got {bound[position].type}"
                )
        got = ", ".join(str(value.type) for value in bound)
        some = "; ".join(row.key for row in fitting[:6])
        return self.error(node, f"{_call_name(name)} does not take ({got}); expected {some}")

    def _refuse_literal(self, node: s.Expr, types: Sequence[Type]) -> None:
        """Treat a text literal as a time if only a time is valid here, and report why it is not one."""
        if isinstance(node, s.Constant) and isinstance(node.value, str):
            for type in types:
                if type in (Type.TIMESTAMP, Type.INTERVAL):
                    self._literal(node, type, partial(_READ_LITERAL[type], node.value))

    def _texts(self, node: s.FunctionCall, bound: Sequence[e.Expression]) -> list[e.Expression]:
        """`||` with a text operand, and concat, convert any type to text."""
        if node.name.text == "||" and all(value.type is not Type.TEXT for value in bound):
            return list(bound)
        return [
            value
            if value.type in (Type.TEXT, Type.BYTES) and node.name.text == "||"
            else self._to_text(argument, value)
            for argument, value in zip(node.arguments, bound, strict=True)
        ]

    def _to_text(self, node: s.Expr, bound: e.Expression) -> e.Expression:
        if bound.type is Type.TEXT:
            return bound
        return e.Cast(Type.TEXT, bound.nullable, bound)

    def _extract(self, node: s.FunctionCall) -> e.Expression:
        field, value = node.arguments
        if not (isinstance(field, s.Constant) and isinstance(field.value, str)):
            raise self.error(field, "expected the name of a field such as 'hour'")
        known = [name.removeprefix("extract ") for name in self._library.names if name.startswith("extract ")]
        word = field.value.lower()
        if word not in known:
            raise self.error(
                field,
                f"extract has no field {word}{did_you_mean(word, known) or '; expected ' + ', '.join(known)}",
            )
        return self._call(node, f"extract {word}", [value], [self.bind(value)])

    # -- forms with a special syntax -------------------------------------------------------------------------------

    def _cast(self, node: s.CastExpr) -> e.Expression:
        type = self.resolve_type(node.type)
        bound = self.bind(node.argument)
        if isinstance(bound, e.Constant) and bound.value is None:
            return e.Constant(type, True, None)
        if bound.type is type:
            return bound
        if (bound.type, type) not in CASTS:
            known = _alternatives(to for source, to in CASTS if source is bound.type and to is not source)
            raise self.error(node, f"{bound.type} cannot be cast to {type}; it can become {known}")
        return e.Cast(type, bound.nullable, bound)

    def resolve_type(self, node: s.TypeName) -> Type:
        type = TYPE_NAMES.get(node.text)
        if type is None:
            word = dialects.TYPES.get(node.text)
            if word is not None:
                raise self.error(node, word.sentence(f"the type {node.text} does not exist"))
            known = ", ".join(str(known_type) for known_type in Type)
            raise self.error(
                node,
                f"the type {node.text} does not "
                f"exist{did_you_mean(node.text, TYPE_NAMES) or f'; the types are {known}'}",
            )
        return type

    def _case(self, node: s.CaseExpr) -> e.Expression:
        subject = None if node.subject is None else self.bind(node.subject)
        if node.subject is not None and subject is not None and len(node.branches) > 1:
            self._check_repeated(node.subject, subject)
            self._repeats = True
        tests = [self._test(node.subject, subject, test) for test, _ in node.branches]
        otherwise = node.otherwise or s.Constant(node.span, None)
        values = [value for _, value in node.branches] + [otherwise]
        converted = self.unify(values, [self.bind(value) for value in values], "the branches of CASE")
        branches = tuple(zip(tests, converted[:-1], strict=True))
        return e.Case(converted[0].type, any(value.nullable for value in converted), branches, converted[-1])

    def _test(self, node: s.Expr | None, subject: e.Expression | None, test: s.Expr) -> e.Expression:
        if node is None or subject is None:
            return self.bind_boolean(test, "CASE WHEN")
        return self._call(test, "=", [node, test], [subject, self.bind(test)])

    def unify(self, nodes: Sequence[s.Expr], bound: Sequence[e.Expression], what: str) -> list[e.Expression]:
        """The expressions as one type: the common type with the lowest cost of conversion."""
        choices = [readings(node, value) for node, value in zip(nodes, bound, strict=True)]
        costs = {type: sum(have[type] for have in choices) for type in Type if all(type in have for have in choices)}
        if not costs:
            first = bound[0].type
            for node, value, have in zip(nodes, bound, choices, strict=True):
                if first not in have:
                    raise self.error(node, f"{what} must have one type: expected {first}, got {value.type}")
            raise self.error(nodes[0], f"{what} must have one type")
        # NULL can be read as any type. If all values are NULL, the type is text.
        type = Type.TEXT if len(costs) == len(Type) else min(costs, key=lambda candidate: costs[candidate])
        return [self._convert(node, value, type) for node, value in zip(nodes, bound, strict=True)]

    def _between(self, node: s.Between) -> e.Expression:
        value, low, high = self.bind(node.value), self.bind(node.low), self.bind(node.high)
        self._check_repeated(node.value, value)
        self._repeats = True
        above = self._call(node.low, ">=", [node.value, node.low], [value, low])
        below = self._call(node.high, "<=", [node.value, node.high], [value, high])
        return self._negate(self._logic("and", above, below), node.negated)

    def _in(self, node: s.InList) -> e.Expression:
        value = self.bind(node.value)
        members = [self.bind(member) for member in node.members]
        if all(isinstance(member, e.Constant) for member in members):
            listed = list(zip(node.members, members, strict=True))
            possible = [(at, exact) for at, member in listed if (exact := _exactly(value.type, member)) is not None]
            # If none is possible, one of them reports it.
            name, pairs = ("in", possible) if possible else ("=", listed[:1])
            bound = self._call(
                node, name, [node.value, *(at for at, _ in pairs)], [value, *(constant for _, constant in pairs)]
            )
        else:
            self._check_repeated(node.value, value)
            self._repeats = True
            equal = [
                self._call(at, "=", [node.value, at], [value, member])
                for at, member in zip(node.members, members, strict=True)
            ]
            bound = self._any_of(equal)
        return self._negate(bound, node.negated)

    def _any_of(self, tests: Sequence[e.Expression]) -> e.Expression:
        """Build a shallow tree of ORs."""
        if len(tests) == 1:
            return tests[0]
        half = len(tests) // 2
        return self._logic("or", self._any_of(tests[:half]), self._any_of(tests[half:]))

    def _like(self, node: s.Like) -> e.Expression:
        nodes = [node.value, node.pattern] + ([node.escape] if node.escape else [])
        bound = self._call(node, "ilike" if node.fold else "like", nodes, [self.bind(part) for part in nodes])
        return self._negate(bound, node.negated)

    def _logic(self, word: str, left: e.Expression, right: e.Expression) -> e.Expression:
        function = self._library.named(word)[0]
        return e.Call(Type.BOOLEAN, left.nullable or right.nullable, function.key, (left, right))

    def _negate(self, bound: e.Expression, negated: bool) -> e.Expression:
        if not negated:
            return bound
        return e.Call(Type.BOOLEAN, bound.nullable, self._library.named("not")[0].key, (bound,))

    # -- conversions -----------------------------------------------------------------------------------------------

    def _convert(self, node: s.Expr, bound: e.Expression, type: Type) -> e.Expression:
        """The expression converted to a type that it can be read as."""
        if isinstance(bound, e.Constant) and bound.value is None:
            return e.Constant(type, True, None)
        if bound.type is type:
            return bound
        if isinstance(bound, e.Constant):
            return e.Constant(type, False, _READ_LITERAL[type](bound.value))
        return e.Cast(type, bound.nullable, bound)


_READ_LITERAL: Final[dict[Type, Callable[[Any], Any]]] = {
    Type.TIMESTAMP: parse_timestamp,
    Type.INTERVAL: parse_interval,
    Type.DOUBLE: float,
}


def readings(node: s.Expr, bound: e.Expression) -> Readings:
    """The types that an argument can be read as: a bigint as a double, a text literal as a time, NULL as anything."""
    if isinstance(bound, e.Constant) and bound.value is None:
        return _ANY_TYPE if isinstance(node, s.Constant) else {bound.type: 0}
    if bound.type is Type.BIGINT:
        return {Type.BIGINT: 0, Type.DOUBLE: 1}
    if isinstance(node, s.Constant) and isinstance(node.value, str):
        return {Type.TEXT: 0, **{type: 2 for type in (Type.TIMESTAMP, Type.INTERVAL) if _reads(node.value, type)}}
    return {bound.type: 0}


def _exactly(type: Type, member: e.Expression) -> e.Expression | None:
    """A number of an IN list converted to the compared type; None if no value of that type equals it."""
    if not isinstance(member, e.Constant) or member.value is None or {type, member.type} != {Type.BIGINT, Type.DOUBLE}:
        return member
    if type is Type.BIGINT:
        whole = as_bigint(member.value)
        return None if whole is None else e.Constant(type, False, whole)
    return e.Constant(type, False, float(member.value)) if int(float(member.value)) == member.value else None


def _reads(text: str, type: Type) -> bool:
    try:
        _READ_LITERAL[type](text)
    except MillraceError:
        return False
    return True


def _without(types: Sequence[Type], position: int) -> list[Type]:
    return [type for at, type in enumerate(types) if at != position]


def _alternatives(types: Iterable[Type]) -> str:
    words = [str(type) for type in types]
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _arguments(count: str) -> str:
    return "1 argument" if count == "1" else f"{count} arguments"


def _call_name(name: str) -> str:
    return name.upper() if name[0].isalpha() and name in ("and", "or", "not", "in", "like", "ilike") else name


def _no_column(complaint: str, name: str, relation: Relation) -> str:
    word = dialects.COLUMNS.get(name)
    if word is not None:
        return word.sentence(complaint)
    return complaint + (
        did_you_mean(name, relation.column_names) or f"; the columns are {', '.join(relation.column_names)}"
    )


def _of(relation: Relation) -> str:
    return f" in {relation.alias}" if relation.alias else ""


# Functions of the table that are written as operators. Messages never suggest them for a name.
_OPERATORS = ("and", "or", "not", "in", "like", "ilike")
_CURRENT_ROWS = dialects.guided(
    "write JOIN LATEST with a query that groups by a key, such as FROM s JOIN LATEST (SELECT k, max(v) AS "
    "most FROM r GROUP BY k) AS m ON s.k = m.k"
)
_QUERY_EXPRESSIONS = {
    "exists": "EXISTS needs all rows of a query, and a stream never ends; " + _CURRENT_ROWS,
    "in": "IN (SELECT ...) needs all rows of a query, and a stream never ends; " + _CURRENT_ROWS,
    "scalar": "a query cannot be used as one value, because its value changes over time; " + _CURRENT_ROWS,
}
