"""Plans one query. Operators are added depth first, left input first; the numbers in their names follow that order.

A query that cannot run on a stream is refused here, with the reason and a query that works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from millrace.engine.plan import CHANGE_STREAM, Namer, Node, QueryOptions, QueryPlan, StreamDefinition
from millrace.operators.frame.spec import Spec
from millrace.operators.frame.windows import RowWindow
from millrace.protocol import TOMBSTONE_NAMES, Refuse, Schema, Type
from millrace.sql import syntax as s
from millrace.sql.aggregation import Calls
from millrace.sql.binder import Binder, Relation, readings
from millrace.sql.deduplicated import deduplicate_rows
from millrace.sql.dialects import guided
from millrace.sql.edges import apply_edge, pass_rows
from millrace.sql.errors import SqlError, did_you_mean
from millrace.sql.facts import facts_of, stream_lags, stream_order
from millrace.sql.grouped import WHERE, GroupedSelect, aggregates, distinct
from millrace.sql.joins import FromPlanner
from millrace.sql.joint import joint_window
from millrace.sql.ordering import in_event_order, stamp_rows
from millrace.sql.parser import written
from millrace.sql.planned import Catalog, is_changes
from millrace.sql.ranked import limit_rows, missing_limit, number_rows, row_numbers, without_number
from millrace.sql.retimed import retime_for_window
from millrace.sql.sequences import key_of
from millrace.sql.unions import union_rows
from millrace.sql.updates import append_rows, filter_rows, map_rows
from millrace.sql.windowed import windowed_rows
from millrace.sql.windows import Window, bracket_window, window_of
from millrace.values import expression as e
from millrace.values.evaluate import compile_expression
from millrace.values.functions import Library
from millrace.values.lags import Lags

# A query of WITH is planned again for each reader, which can double the number of operators with each level.
MAX_OPERATORS: Final = 1000


# Levels of queries in parentheses and WITH. Each level costs a dozen frames of Python's stack.
MAX_QUERIES: Final = 40
# Columns of all operators together: the cost of a * does not show in the length of its statement.
MAX_COLUMNS: Final = 50_000
# Operators that are planned for a statement, also to check the queries of WITH, each with all its upstream operators: a
# tenth of a second.
MAX_CHECKED: Final = 1_000


def reaches(name: str, goal: str, catalog: Catalog) -> bool:
    """Whether a query reads another one, directly or through others."""
    if name == goal:
        return True
    return goal in catalog.queries and goal in upstream(name, catalog)


def upstream(name: str, catalog: Catalog) -> dict[str, QueryPlan]:
    """A query and all its upstream queries, each after the queries that it reads."""
    plans: dict[str, QueryPlan] = {}
    waiting = [name]
    while waiting:
        plan = catalog.queries.get(waiting[-1])
        more = [] if plan is None else [name_ for name_ in plan.reads_queries if name_ not in plans]
        if more:
            waiting += more
            continue
        done = waiting.pop()
        if plan is not None:
            plans[done] = plan
    return plans


@dataclass(slots=True)
class _Work:
    """The cost of planning one statement so far."""

    operators: int = 0
    columns: int = 0


@dataclass(frozen=True, slots=True)
class _Cte:
    """A query of WITH and the queries of WITH that it can read."""

    query: s.QueryBody
    scope: Mapping[str, _Cte]


@dataclass(slots=True)
class QueryPlanner:
    """Plans one query."""

    statement: s.Statement
    catalog: Catalog
    name: str
    options: QueryOptions
    library: Library
    nodes: list[Node] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # By the operator that emits them, whether rows are always in order of time, and the lags of their columns.
    ordered: dict[str, bool] = field(default_factory=dict)
    lags: dict[str, Lags] = field(default_factory=dict)
    schemas: dict[str, Schema] = field(default_factory=dict)  # of its own operators
    stars: dict[s.Span, str] = field(default_factory=dict)  # the columns of each *, as SQL
    work: _Work = field(default_factory=_Work)
    nested: int = 0  # queries that are being planned inside each other
    namer: Namer = field(init=False)

    def __post_init__(self) -> None:
        self.namer = Namer(self.name)

    def run(self, body: s.QueryBody) -> QueryPlan:
        relation = self._query(body, {})
        self.check_bounded(relation)
        if not self.nodes or not relation.edge.plain:
            relation = pass_rows(self, relation)
        relation = in_event_order(self, relation)
        return QueryPlan(
            self.name,
            tuple(self.nodes),
            relation.node,
            relation.schema,
            self.options,
            tuple(dict.fromkeys(self.streams)),
            tuple(dict.fromkeys(self.queries)),
            self.statement.sql,
            relation.update_key,
            tuple(dict.fromkeys(self.warnings)),
            tuple(dict.fromkeys(self.notes)),
        )

    def check_bounded(self, relation: Relation) -> None:
        if relation.ranking is not None:
            raise missing_limit(self, relation.ranking)

    def error(self, node: s.Node, message: str) -> SqlError:
        return SqlError(self.statement.text, node.span.start, message)

    def add(self, spec: Spec, inputs: Sequence[Relation], word: str | None = None) -> Relation:
        """Add an operator. Its rows have the times of its inputs. `word` is SQL's, if the spec has several."""
        if len(self.nodes) >= MAX_OPERATORS:
            raise self.error(self.statement.body, f"expected at most {MAX_OPERATORS} operators in a query")
        schema = self._count_schema(spec.schema([relation.schema for relation in inputs]))
        name = self.namer.name(word or spec.word)
        edges = () if all(relation.edge.plain for relation in inputs) else tuple(relation.edge for relation in inputs)
        self.put(Node(name, spec, tuple(relation.node for relation in inputs), edges))
        first = inputs[0]
        time_known = all(relation.time_known for relation in inputs)
        derivation = spec.derivation()
        keeps = derivation in ("passed", "extended")
        self.schemas[name] = schema
        self.lags[name] = spec.lags([relation.lags for relation in inputs], [relation.schema for relation in inputs])
        return Relation(
            name,
            schema,
            first.alias,
            time_known,
            first.time_name if keeps else None,
            self.lags[name],
            first.update_key if keeps else None,
            tables=first.tables if derivation == "passed" else (),
        )

    def put(self, node: Node) -> None:
        """Add a node to the plan."""
        self.nodes.append(node)
        self.ordered[node.name] = node.spec.gives_order(node.ordered(self.ordered))

    def _count_schema(self, schema: Schema) -> Schema:
        """The schema of another operator's rows, which counts towards the statement's limits."""
        self.work.operators += 1
        self._count_columns(len(schema))
        if self.work.operators > MAX_CHECKED:
            raise self.error(
                self.statement.body,
                f"the queries of WITH need more than {MAX_CHECKED:,} operators when each is expanded: create "
                "a separate query for each one that is read several times",
            )
        return schema

    def _count_columns(self, columns: int) -> None:
        self.work.columns += columns
        if self.work.columns > MAX_COLUMNS:
            raise self.error(
                self.statement.body,
                f"expected at most {MAX_COLUMNS:,} columns in all operators of a query together: select the columns "
                "that are needed, instead of *",
            )

    def binder(
        self,
        relation: Relation | None,
        *,
        calls: Calls | None = None,
        instead: str = "it needs a group",
        number: e.Column | None = None,
    ) -> Binder:
        return Binder(self.statement.text, relation, self.library, calls=calls, instead=instead, number=number)

    # -- queries and unions ----------------------------------------------------------------------------------------

    def _query(self, body: s.QueryBody, scope: Mapping[str, _Cte]) -> Relation:
        self.nested += 1
        if self.nested > MAX_QUERIES:
            raise self.error(
                body,
                f"expected at most {MAX_QUERIES} levels of nesting, got more queries inside each other: "
                "create the inner one as a separate query, and read from it",
            )
        branches = self._branches(body, scope)
        self.nested -= 1
        if len(branches) == 1:
            return branches[0][1]
        return union_rows(self, branches)

    def _branches(self, body: s.QueryBody, scope: Mapping[str, _Cte]) -> list[tuple[s.Node, Relation]]:
        """The sides of a UNION ALL at any nesting, each with its place in the text."""
        self._refuse_clauses(body)
        scope = self._with_ctes(body, scope)
        branches: list[tuple[s.Node, Relation]] = []
        for term in (body.first, *(arm.term for arm in body.arms)):
            if isinstance(term, s.QueryBody):
                branches += self._branches(term, scope)
            else:
                branches.append((term, self._select(term, scope)))
        return branches

    def _refuse_clauses(self, body: s.QueryBody) -> None:
        if body.recursive:
            raise self.error(body, guided("a query cannot read itself: WITH RECURSIVE has no end on a stream"))
        if body.order_by is not None:
            raise self.error(
                body.order_by,
                guided(
                    "ORDER BY needs all rows, and a stream never ends. For rows in order of time, create the "
                    "query WITH (order = 'event'). For the first rows of an order, select ROW_NUMBER() OVER "
                    "(ORDER BY ...) AS n and write QUALIFY n <= 10"
                ),
            )
        if body.limit is not None:
            raise self.error(
                body.limit,
                guided(f"{body.limit.words} needs an end, and a stream has none; filter rows with WHERE instead"),
            )
        for arm in body.arms:
            if arm.operator != "UNION ALL":
                text = f"{arm.operator} would keep every row of an unbounded stream; use UNION ALL"
                raise self.error(arm, guided(text))

    def _with_ctes(self, body: s.QueryBody, scope: Mapping[str, _Cte]) -> Mapping[str, _Cte]:
        counts = Counter(cte.name.text for cte in body.ctes)
        for cte in body.ctes:
            if counts[cte.name.text] > 1:
                raise self.error(cte, f"two queries of WITH are called {cte.name.text}")
            # An unused query of WITH is checked too, in a plan that is discarded.
            checked = QueryPlanner(self.statement, self.catalog, self.name, self.options, self.library)
            checked.work, checked.nested = self.work, self.nested
            checked._query(cte.query, scope)
            scope = {**scope, cte.name.text: _Cte(cte.query, scope)}
        return scope

    # -- select ----------------------------------------------------------------------------------------------------

    def _select(self, select: s.Select, scope: Mapping[str, _Cte]) -> Relation:
        if isinstance(select.table, s.Join | s.Followed):
            select, relation = self._join(select, scope)
        else:
            relation = self._from(select, scope)
        if relation.ranking is not None:
            at = relation.ranking.position
            relation, rest = limit_rows(self, select.where, relation, relation.schema.names[at] if at >= 0 else None)
            select = replace(select, where=rest)
        numbers = row_numbers(select)
        if select.qualify is not None and not numbers:
            raise self.error(select.qualify, "QUALIFY limits a ROW_NUMBER() OVER (...); test rows in WHERE")
        if numbers and (aggregates(select) or select.distinct):
            raise self.error(
                numbers[0],
                "rows are numbered individually: group them in a query in parentheses, and number its rows",
            )
        if aggregates(select):
            if select.distinct:
                raise self.error(
                    select, "a group is one row: remove DISTINCT, or select it FROM a separate windowed query"
                )
            return GroupedSelect(self, select, relation).plan()
        if select.distinct:
            return distinct(self, select, relation)
        relation, where = windowed_rows(self, select.where, relation)
        if where is not None:
            predicate = self.binder(relation, instead=WHERE).bind_boolean(where, "WHERE")
            self.check_runs(where, predicate)
            relation = filter_rows(self, predicate, relation)
        if numbers:
            return self._number_rows(select, relation, numbers)
        return self._map_columns(select, relation, *self.columns(select, relation, self.binder(relation)))

    def _number_rows(self, select: s.Select, relation: Relation, numbers: Sequence[s.FunctionCall]) -> Relation:
        """Rows with their number in an order, limited by QUALIFY."""
        relation = number_rows(self, select, replace(relation, window=None), numbers)
        assert relation.ranking is not None
        at = relation.ranking.position
        number = e.Column(Type.BIGINT, False, at, relation.schema.names[at])
        seen = without_number(relation)
        names, columns = self.columns(select, seen, self.binder(seen, number=number))
        at = next((at for at, column in enumerate(columns) if column == number), -1)
        if select.qualify is None:
            numbered = self._map_columns(select, relation, names, columns)
            return replace(numbered, ranking=replace(relation.ranking, position=at))
        # A row shows its place if the number is selected. QUALIFY may use its name in the select list.
        relation, rest = limit_rows(self, select.qualify, relation, names[at] if at >= 0 else None)
        if rest is not None:
            predicate = self.binder(relation, number=number).bind_boolean(rest, "QUALIFY")
            self.check_runs(rest, predicate)
            relation = filter_rows(self, predicate, relation)
        return self._map_columns(select, relation, names, columns)

    def _map_columns(
        self, select: s.Select, relation: Relation, names: Sequence[str], columns: Sequence[e.Expression]
    ) -> Relation:
        """The select list. An update stream keeps its key, under any names."""
        if self.changes_nothing(names, columns, relation):
            return replace(relation, alias=None, tables=())
        key = self._key_after(select, names, columns, relation)
        rows = map_rows(self, zip(names, columns, strict=True), relation)
        return replace(rows, alias=None, update_key=key)

    def _key_after(
        self, select: s.Select, names: Sequence[str], columns: Sequence[e.Expression], relation: Relation
    ) -> tuple[str, ...] | None:
        """The key of an update stream under the names of the select list."""
        if relation.update_key is None:
            return None
        key_names: list[str] = []
        for key in relation.update_key:
            position = relation.schema.index(key)
            named = [
                name
                for name, column in zip(names, columns, strict=True)
                if isinstance(column, e.Column) and column.position == position
            ]
            if not named:
                raise self.error(
                    select.items[0],
                    f"this reads an update stream keyed by {_key_words(relation.update_key)}, and each row must "
                    f"identify the row that it replaces: select {_qualified(key, position, relation)} too",
                )
            key_names.append(named[0])
        return tuple(key_names)

    def columns(
        self, select: s.Select, relation: Relation, binder: Binder, *, check: bool = True
    ) -> tuple[list[str], list[e.Expression]]:
        """The names and the expressions of a select list. Without `check`, they may contain placeholders."""
        names: dict[str, None] = {}
        columns: list[e.Expression] = []
        for position, item in enumerate(select.items, 1):
            if isinstance(item, s.Star):
                pairs = self._star(item, relation, names)
            else:
                bound = binder.bind(item.expression)
                if check:
                    self.check_runs(item.expression, bound)
                if bound.type is Type.INTERVAL:
                    raise self.error(
                        item, "a query cannot return an interval: CAST it AS text, or use extract(epoch FROM ...)"
                    )
                pairs = [(item.alias.text if item.alias else _name_of(item.expression, position, names), bound)]
            for name, column in pairs:
                if name in TOMBSTONE_NAMES:
                    raise self.error(item, f"{name} marks deleted rows, and is added automatically")
                if name in names:
                    raise self.error(item, f"two columns are called {name}: rename one with AS")
                names[name] = None
                columns.append(column)
        return list(names), columns

    def _star(self, item: s.Star, relation: Relation, used: Collection[str]) -> list[tuple[str, e.Expression]]:
        self._count_columns(len(relation.schema))
        if relation.tables:
            return self._joined_star(item, relation, used)
        if item.table is not None and item.table.text != relation.alias:
            known = [relation.alias] if relation.alias else []
            raise self.error(item, f"FROM has no table {item.table.text}{did_you_mean(item.table.text, known)}")
        self.stars[item.span] = ", ".join(written(field.name) for field in relation.schema.data_fields)
        return [
            (field.name, e.Column(field.type, field.nullable, position, field.name))
            for position, field in enumerate(relation.schema.data_fields)
        ]

    def _joined_star(self, item: s.Star, relation: Relation, used: Collection[str]) -> list[tuple[str, e.Expression]]:
        """All columns of the joined tables, or of one. A name that is in use is prefixed with its table's name."""
        tables = [table for table in relation.tables if table.absent is None]
        if item.table is not None:
            tables = [table for table in relation.tables if table.alias == item.table.text]
            if not tables:
                known = [table.alias for table in relation.tables if table.alias is not None]
                hint = did_you_mean(item.table.text, known) or f"; the tables here are {', '.join(known)}"
                raise self.error(item, f"FROM has no table {item.table.text}{hint}")
            if tables[0].absent is not None:
                raise self.error(item, f"{item.table.text}.* is not available: {tables[0].absent}")
        columns: list[tuple[str, e.Expression]] = []
        listed: list[str] = []
        names = set(used)
        for table in tables:
            for name in table.columns:
                column = relation.column_of(table, name)
                assert column is not None
                shown = f"{table.alias}_{name}" if name in names and table.alias else name
                names.add(shown)
                columns.append((shown, column))
                column_of = f"{written(table.alias)}.{written(name)}" if table.alias else written(name)
                listed.append(column_of if shown == name else f"{column_of} AS {written(shown)}")
        self.stars[item.span] = ", ".join(listed)
        return columns

    @property
    def sources(self) -> set[str]:
        """The operators that emit the streams that the query reads."""
        return {self.catalog.stream(name).source for name in self.streams}

    def below(self, name: str, *through: type[Spec]) -> str:
        """The first operator upstream that is not of these kinds."""
        for node in reversed(self.nodes):
            if node.name == name and isinstance(node.spec, through):
                (name,) = node.inputs
        return name

    def check_runs(self, node: s.Expr, bound: e.Expression) -> None:
        """Compile once now, so that a bad constant (a pattern, a unit) fails here and not at the first tuple."""
        try:
            compile_expression(bound, self.library)
        except Refuse as error:
            raise self.error(node, error.text) from None

    @staticmethod
    def changes_nothing(names: Sequence[str], columns: Sequence[e.Expression], relation: Relation) -> bool:
        positions = [column.position if isinstance(column, e.Column) else None for column in columns]
        own = tuple(field.name for field in relation.schema.data_fields)
        return tuple(names) == own and positions == list(range(len(names)))

    # -- from ------------------------------------------------------------------------------------------------------

    def _from(self, select: s.Select, scope: Mapping[str, _Cte]) -> Relation:
        if select.table is None:
            raise self.error(select, "a query reads a stream or another query: add FROM")
        assert isinstance(select.table, s.TablePrimary)
        return self.table(select.table, scope)[0]

    def _join(self, select: s.Select, scope: Mapping[str, _Cte]) -> tuple[s.Select, Relation]:
        """The rows of several tables after WHERE."""
        relation = FromPlanner(self, select, scope).plan()
        if aggregates(select):
            relation = replace(relation, window=joint_window(self, select, relation))
        return replace(select, where=None), relation

    def table(
        self, table: s.TablePrimary, scope: Mapping[str, _Cte], *, ranges: bool = False
    ) -> tuple[Relation, s.RangeWindow | s.RowsWindow | None]:
        """A table of FROM. With `ranges`, brackets without SLIDE set how long a join keeps its rows, not a window."""
        relation = self._source(table.source, scope)
        if ranges or table.deduplicate is not None:
            self.check_bounded(relation)
        if table.deduplicate is not None:
            relation = deduplicate_rows(self, table.deduplicate, relation)
        keeps = table.window if ranges and table.window is not None and table.window.slide is None else None
        if table.window is not None and keeps is None:
            if relation.window is not None:
                raise self.error(table.window, "this table already has a window")
            relation = self._apply_window(relation, bracket_window(self.statement.text, table.window))
        relation = apply_edge(self, table, relation)
        return replace(relation, alias=table.alias.text) if table.alias else relation, keeps

    def _source(self, source: s.TableSource, scope: Mapping[str, _Cte]) -> Relation:
        match source:
            case s.Subquery():
                return self._query(source.query, scope)
            case s.TableFunction():
                window = window_of(self.statement.text, source, self._constant_us)
                relation = self._source(self._table_of(source.arguments[0]), scope)
                return self._apply_window(retime_for_window(self, source.arguments[1], relation), window)
        assert isinstance(source, s.NamedTable)
        return self._named_source(source, scope)

    # -- windows ---------------------------------------------------------------------------------------------------

    def _constant_us(self, node: s.Expr) -> int:
        """The value of an argument that is a time."""
        binder = self.binder(None)
        bound = binder.bind(node)
        if not isinstance(bound, e.Constant) or Type.INTERVAL not in readings(node, bound) or bound.value is None:
            raise self.error(node, f"expected a time such as INTERVAL '10 seconds', got {bound.type}")
        constant = binder.as_type(node, bound, Type.INTERVAL)
        assert isinstance(constant, e.Constant)
        return int(constant.value)

    def _table_of(self, node: s.Expr) -> s.TableSource:
        """The input of a window: a name, a side stream, or a query in parentheses."""
        match node:
            case s.ColumnRef(table=None):
                return s.NamedTable(node.span, node.name, None)
            case s.ColumnRef(table=s.Name() as name):
                return s.NamedTable(node.span, name, node.name)
            case s.QueryExpr(form="scalar"):
                return s.Subquery(node.span, node.query)
        raise self.error(node, "expected a stream, a query, or a query in parentheses")

    def _apply_window(self, relation: Relation, window: Window) -> Relation:
        self.check_bounded(relation)
        window = replace(window, key=key_of(self, relation))
        if window.spec is not None:
            relation = append_rows(self, relation)
        if not isinstance(window.spec, RowWindow):
            relation = stamp_rows(self, relation)
        return replace(relation, window=window)

    # -- names -----------------------------------------------------------------------------------------------------

    def _named_source(self, source: s.NamedTable, scope: Mapping[str, _Cte]) -> Relation:
        name = source.name.text
        if source.part is not None:
            if is_changes(source.name, source.part):
                return replace(self._stream(CHANGE_STREAM), alias=source.part.text)
            return self._late(source, name, source.part, scope)
        if name in scope:
            cte = scope[name]
            return replace(self._query(cte.query, cte.scope), alias=name)
        if name in self.catalog.streams:
            return self._stream(self.catalog.streams[name])
        if name == self.name:
            raise self.error(source, f"{name} cannot read itself")
        if name in self.catalog.queries:
            if reaches(name, self.name, self.catalog):
                raise self.error(source, f"{name} reads {self.name}: the two queries would wait for each other forever")
            return self._other_query(self.catalog.queries[name])
        known = [*self.catalog.streams, *self.catalog.queries, *scope]
        hint = did_you_mean(name, known) or (
            f"; there are {', '.join(known[:10])}" if known else "; create a stream with CREATE STREAM"
        )
        raise self.error(source, f"no stream or query is called {name}{hint}")

    def _late(self, source: s.NamedTable, name: str, part: s.Name, scope: Mapping[str, _Cte]) -> Relation:
        """The side stream of a stream's late tuples."""
        if part.text != "late":
            hint = did_you_mean(part.text, ("late",)) or f"; a stream has one side stream, {name}.late"
            raise self.error(part, f"{name}.{part.text} does not exist{hint}")
        if name in scope or (name not in self.catalog.streams and name in self.catalog.queries):
            raise self.error(
                source,
                f"{name} is a query, and only a stream has late tuples: read the side stream of a stream that the "
                "query reads, such as s.late",
            )
        if name not in self.catalog.streams:
            raise self.error(source, f"the stream {name} does not exist{did_you_mean(name, self.catalog.streams)}")
        return replace(self._stream(self.catalog.streams[name].late), alias=part.text)

    def _stream(self, stream: StreamDefinition) -> Relation:
        self.streams.append(stream.name)
        known = stream.timestamps != "latent"
        self.ordered[stream.source] = stream_order(stream)
        self.schemas[stream.source] = stream.schema
        lags = self.lags[stream.source] = stream_lags(stream, self.catalog)
        return Relation(stream.source, stream.schema, stream.name, known, stream.time, lags)

    def _other_query(self, other: QueryPlan) -> Relation:
        self.queries.append(other.name)
        orders, known, lags = facts_of(other, self.catalog)
        self.ordered[other.output] = orders[other.output]
        self.schemas[other.output] = other.schema
        self.lags[other.output] = lags
        return Relation(other.output, other.schema, other.name, known, None, lags, other.update_key)


def _qualified(name: str, position: int | None, relation: Relation) -> str:
    """A column with the name of its table, if the rows are joined from several."""
    found = ((table.alias, own) for table in relation.tables for own, at in table.columns.items() if at == position)
    alias, own = next(found, (None, name))
    return f"{alias}.{own}" if alias else own


def _key_words(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing (it is one row)"


def _name_of(node: s.Expr, position: int, used: Collection[str]) -> str:
    """The name of a column without AS: the column's or function's name, else its number."""
    match node:
        case s.ColumnRef():
            return node.name.text
        case s.CastExpr():
            return _name_of(node.argument, position, used)
        case s.FunctionCall() if not node.operator and node.name.text not in used:
            return node.name.text
        case s.CaseExpr() if "case" not in used:
            return "case"
    return f"column{position}"
