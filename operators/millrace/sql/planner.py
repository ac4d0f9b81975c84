"""From statements to what the engine runs: plans of operators, definitions of streams and sinks.

What cannot run is refused here with the reason and what would make it legal; nothing is ever done half. Operators are
made in plan order, depth first and the left input first, which is what their names count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from millrace.engine.plan import Namer, Node, QueryOptions, QueryPlan, StreamDefinition
from millrace.operators import expression as e
from millrace.operators.evaluate import compile_expression
from millrace.operators.functions import LIBRARY, Library
from millrace.operators.spec import MapSpec, SelectSpec, SortSpec, Spec, UnionSpec
from millrace.protocol import Field, Refuse, Schema, Type
from millrace.sql import syntax as s
from millrace.sql.binder import Binder, Relation
from millrace.sql.errors import SqlError, did_you_mean
from millrace.sql.explain import explain
from millrace.sql.options import QUERY_OPTIONS, SINK_OPTIONS, STREAM_OPTIONS, read_options
from millrace.sql.planned import (
    Catalog,
    CreateQuery,
    CreateSink,
    CreateStream,
    DropStatement,
    Explain,
    Planned,
    SinkDefinition,
)

# Names appear in operators' names, URLs, file names and metrics' labels.
_NAME: Final = re.compile(r"[^\W\d][\w-]{0,127}")


def plan(statement: s.Statement, catalog: Catalog, name: str = "q", library: Library = LIBRARY) -> Planned:
    """What a statement comes to in this catalog. Raises SqlError.

    `name` is what a bare SELECT or EXPLAIN is called; where it is taken, q2, q3 and so on.
    """
    body = statement.body
    if catalog.kind_of(name):
        name = bare_name(catalog)
    match body:
        case s.CreateStreamStatement():
            return _create_stream(statement, body, catalog)
        case s.CreateQueryStatement():
            return _create_query(statement, body, catalog, library)
        case s.CreateSinkStatement():
            return _create_sink(statement, body, catalog)
        case s.DropStatementNode():
            return _drop(statement, body, catalog)
        case s.ExplainStatement():
            made = _Planner(statement, catalog, name, QueryOptions(), library).run(body.query)
            return Explain(made, explain(made, catalog))
        case s.SelectStatement():
            return _Planner(statement, catalog, name, QueryOptions(), library).run(body.query)


def plan_all(
    statements: Sequence[s.Statement], catalog: Catalog, library: Library = LIBRARY
) -> tuple[list[Planned], Catalog]:
    """All statements of a file, each on top of those before it; bare SELECTs are q, q2, q3 and so on."""
    planned: list[Planned] = []
    for statement in statements:
        planned.append(plan(statement, catalog, library=library))
        catalog = catalog.with_(planned[-1])
    return planned, catalog


def bare_name(catalog: Catalog) -> str:
    """The name of the next bare SELECT."""
    number = 1
    while catalog.kind_of(name := "q" if number == 1 else f"q{number}"):
        number += 1
    return name


# -- streams, sinks, drops ---------------------------------------------------------------------------------------------


def _new_name(statement: s.Statement, name: s.Name, catalog: Catalog) -> str:
    _check_name(statement, name)
    kind = catalog.kind_of(name.text)
    if kind is not None:
        article = "a stream" if kind == "stream" else "a query"
        raise SqlError(statement.text, name.span.start, f"there is already {article} called {name.text}")
    return name.text


def _check_name(statement: s.Statement, name: s.Name) -> None:
    if not _NAME.fullmatch(name.text):
        raise SqlError(
            statement.text,
            name.span.start,
            f"expected a name of letters, digits, '_' and '-' (at most 128), got {name.text!r:.60}",
        )


def _create_stream(statement: s.Statement, body: s.CreateStreamStatement, catalog: Catalog) -> CreateStream:
    sql = statement.text
    name = _new_name(statement, body.name, catalog)
    values, seen = read_options(sql, body.options, STREAM_OPTIONS, "a stream")
    if "time" in values:
        values.setdefault("timestamps", "external")
    fields = _fields(sql, body, values.get("time"))
    for option in ("time", "update_key"):
        _check_columns(sql, seen.get(option), values.get(option), fields)
    if values.get("timestamps") == "external" and "time" not in values:
        at = seen["timestamps"].value_span.start
        times = [one.name for one in fields if one.type is Type.TIMESTAMP]
        hint = f": add time = '{times[0]}'" if times else ": it needs a column of type TIMESTAMP"
        raise SqlError(sql, at, f"an external stream names the column that carries its time{hint}")
    try:
        return CreateStream(StreamDefinition(name, Schema(tuple(fields)), **values, sql=statement.sql))
    except Refuse as error:
        raise SqlError(sql, body.name.span.start, error.text) from None


def _fields(sql: str, body: s.CreateStreamStatement, time: str | None) -> list[Field]:
    if not body.fields:
        raise SqlError(sql, body.name.span.start, "a stream has at least one column")
    binder = Binder(sql, None)
    fields: list[Field] = []
    for one in body.fields:
        if one.name.text in (made.name for made in fields):
            raise SqlError(sql, one.name.span.start, f"there are two columns called {one.name.text}")
        type = binder.type_named(one.type)
        if type is Type.INTERVAL:
            raise SqlError(sql, one.type.span.start, "a column cannot be an interval: make it a bigint of microseconds")
        # A tuple without its time cannot enter the stream, so nobody downstream has to expect a null there.
        fields.append(Field(one.name.text, type, not (one.not_null or one.name.text == time)))
    return fields


def _check_columns(sql: str, option: s.Option | None, value: Any, fields: Sequence[Field]) -> None:
    if option is None:
        return
    known = [one.name for one in fields]
    for name in (value,) if isinstance(value, str) else value:
        if name not in known:
            hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise SqlError(sql, option.value_span.start, f"{option.name.text}: there is no column {name}{hint}")


def _create_sink(statement: s.Statement, body: s.CreateSinkStatement, catalog: Catalog) -> CreateSink:
    sql = statement.text
    _check_name(statement, body.name)
    name, query = body.name.text, body.query.text
    if name in catalog.sinks:
        raise SqlError(sql, body.name.span.start, f"there is already a sink called {name}")
    if query not in catalog.queries:
        why = "is a stream: make a query of it first" if query in catalog.streams else "does not exist"
        raise SqlError(sql, body.query.span.start, f"the query {query} {why}{did_you_mean(query, catalog.queries)}")
    values, seen = read_options(sql, body.options, SINK_OPTIONS, "a sink")
    if "type" not in values:
        raise SqlError(sql, body.name.span.start, "a sink says what it is: WITH (type = 'file' or 'stdout', ...)")
    if values["type"] == "file":
        if "path" not in values:
            raise SqlError(sql, seen["type"].span.start, "a file sink says which file: add path = '...'")
        values.setdefault("format", _format_of(values["path"]))
    elif "path" in values:
        raise SqlError(sql, seen["path"].span.start, "only a file sink has a path")
    return CreateSink(SinkDefinition(name, query, **values, sql=statement.sql))


def _format_of(path: str) -> str:
    ending = path.rpartition(".")[2].lower()
    return ending if ending in ("csv", "parquet", "arrow") else "jsonl"


def _drop(statement: s.Statement, body: s.DropStatementNode, catalog: Catalog) -> DropStatement:
    name = body.name.text
    known: Mapping[str, Any] = {"stream": catalog.streams, "query": catalog.queries, "sink": catalog.sinks}[body.kind]
    at = body.name.span.start
    if name not in known:
        raise SqlError(statement.text, at, f"there is no {body.kind} called {name}{did_you_mean(name, known)}")
    users = [] if body.kind == "sink" else _users(catalog, body.kind, name)
    if users:
        raise SqlError(statement.text, at, f"{name} is still read by {', '.join(users)}: drop that first")
    return DropStatement(body.kind, name)


def _users(catalog: Catalog, kind: str, name: str) -> list[str]:
    queries = [
        f"query {query.name}"
        for query in catalog.queries.values()
        if name in (query.reads_streams if kind == "stream" else query.reads_queries)
    ]
    sinks = [f"sink {sink.name}" for sink in catalog.sinks.values() if kind == "query" and sink.query == name]
    return queries + sinks


# -- queries -----------------------------------------------------------------------------------------------------------


def _create_query(
    statement: s.Statement, body: s.CreateQueryStatement, catalog: Catalog, library: Library
) -> CreateQuery:
    sql = statement.text
    name = body.name.text
    replaces = body.replace and name in catalog.queries
    if replaces:
        _check_name(statement, body.name)
    else:
        _new_name(statement, body.name, catalog)
    values, _ = read_options(sql, body.options, QUERY_OPTIONS, "a query")
    made = _Planner(statement, catalog, name, QueryOptions(**values), library).run(body.query)
    if replaces:
        _check_readers(statement, body.name, catalog, made)
    return CreateQuery(made, replaces)


def _check_readers(statement: s.Statement, name: s.Name, catalog: Catalog, made: QueryPlan) -> None:
    """Queries that read a replaced one go on reading it: its rows must still look the same."""
    before = catalog.queries[made.name]
    readers = [user for user in _users(catalog, "query", made.name) if user.startswith("query ")]
    if readers and (before.schema, before.output) != (made.schema, made.output):
        raise SqlError(
            statement.text,
            name.span.start,
            f"{made.name} is read by {', '.join(readers)}, which need the same columns from the same kind of operator: "
            "drop them first",
        )


def reaches(name: str, goal: str, catalog: Catalog) -> bool:
    """Whether a query reads another one, directly or through others."""
    made = catalog.queries.get(name)
    return name == goal or (made is not None and any(reaches(one, goal, catalog) for one in made.reads_queries))


@dataclass(frozen=True, slots=True)
class _Cte:
    """A query of WITH and the ones that it can see itself."""

    query: s.QueryBody
    scope: Mapping[str, _Cte]


@dataclass(slots=True)
class _Planner:
    """Makes the plan of one query."""

    statement: s.Statement
    catalog: Catalog
    name: str
    options: QueryOptions
    library: Library
    nodes: list[Node] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    namer: Namer = field(init=False)

    def __post_init__(self) -> None:
        self.namer = Namer(self.name)

    def run(self, body: s.QueryBody) -> QueryPlan:
        relation = self._query(body, {})
        if not self.nodes:
            relation = self._pass_through(relation)
        if self.options.order == "event" and not relation.ordered:
            relation = self._add(SortSpec(), [relation], ordered=True)
        return QueryPlan(
            self.name,
            tuple(self.nodes),
            relation.node,
            relation.schema,
            self.options,
            tuple(dict.fromkeys(self.streams)),
            tuple(dict.fromkeys(self.queries)),
            self.statement.sql,
        )

    def _error(self, node: s.Node, message: str) -> SqlError:
        return SqlError(self.statement.text, node.span.start, message)

    def _add(self, spec: Spec, inputs: Sequence[Relation], ordered: bool) -> Relation:
        """One more operator. Its rows have the times of those it reads."""
        name = self.namer.name(spec.kind)
        self.nodes.append(Node(name, spec, tuple(one.node for one in inputs)))
        schema = spec.schema([one.schema for one in inputs])
        first = inputs[0]
        time_known = all(one.time_known for one in inputs)
        time_name = first.time_name if isinstance(spec, SelectSpec | SortSpec) else None
        return Relation(name, schema, first.alias, time_known, time_name, ordered)

    def _pass_through(self, relation: Relation) -> Relation:
        columns = [relation.column(name) for name in relation.schema.names]
        spec = MapSpec(tuple((column.name, column) for column in columns if column is not None))
        return self._add(spec, [relation], relation.ordered)

    # -- queries and unions ----------------------------------------------------------------------------------------

    def _query(self, body: s.QueryBody, scope: Mapping[str, _Cte]) -> Relation:
        branches = self._branches(body, scope)
        if len(branches) == 1:
            return branches[0][1]
        return self._union(branches)

    def _branches(self, body: s.QueryBody, scope: Mapping[str, _Cte]) -> list[tuple[s.Node, Relation]]:
        """The sides of a UNION ALL, however it is nested, each with the place that wrote it."""
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
            raise self._error(body, "a query cannot read itself: WITH RECURSIVE has no end on a stream")
        if body.order_by is not None:
            raise self._error(
                body.order_by,
                "ORDER BY needs all rows and a stream never ends; for rows in order of time create the query "
                "WITH (order = 'event')",
            )
        if body.limit is not None:
            raise self._error(
                body.limit,
                f"{body.limit.words} needs an end and a stream has none; keep rows by a condition in WHERE instead",
            )
        for arm in body.arms:
            if arm.operator != "UNION ALL":
                raise self._error(
                    arm, f"{arm.operator} has to remember every row of an unbounded stream; UNION ALL does not"
                )

    def _with_ctes(self, body: s.QueryBody, scope: Mapping[str, _Cte]) -> Mapping[str, _Cte]:
        for cte in body.ctes:
            if cte.name.text in (other.name.text for other in body.ctes if other is not cte):
                raise self._error(cte, f"two queries of WITH are called {cte.name.text}")
            # One that nobody reads is checked all the same, in a plan that is thrown away.
            _Planner(self.statement, self.catalog, self.name, self.options, self.library)._query(cte.query, scope)
            scope = {**scope, cte.name.text: _Cte(cte.query, scope)}
        return scope

    def _union(self, branches: Sequence[tuple[s.Node, Relation]]) -> Relation:
        first = branches[0][1]
        for place, relation in branches:
            if len(relation.schema) != len(first.schema):
                raise self._error(
                    place, f"UNION ALL is by position: expected {len(first.schema)} columns, got {len(relation.schema)}"
                )
        types = [self._union_type(position, branches) for position in range(len(first.schema))]
        inputs = [self._as_types(relation, types) for _, relation in branches]
        spec = UnionSpec(self.options.order == "event")
        return replace(self._add(spec, inputs, spec.ordered), alias=None)

    def _union_type(self, position: int, branches: Sequence[tuple[s.Node, Relation]]) -> Type:
        types = {relation.schema.fields[position].type: None for _, relation in branches}
        if set(types) == {Type.BIGINT, Type.DOUBLE}:
            return Type.DOUBLE
        expected = next(iter(types))
        for place, relation in branches:
            one = relation.schema.fields[position]
            if one.type is not expected:
                raise self._error(
                    place, f"column {position + 1} of UNION ALL: expected {expected}, got {one.type} ({one.name})"
                )
        return expected

    def _as_types(self, relation: Relation, types: Sequence[Type]) -> Relation:
        """The relation with its columns widened, if any has to be."""
        if [one.type for one in relation.schema] == list(types):
            return relation
        for at, node in enumerate(self.nodes):
            if node.name == relation.node and isinstance(node.spec, MapSpec):
                # The branch computes its columns anyway: it can give them the type at once.
                self.nodes[at] = replace(node, spec=_widened(node.spec.columns, types))
                return replace(relation, schema=self.nodes[at].spec.schema([]))
        columns = [
            (one.name, e.Column(one.type, one.nullable, position, one.name))
            for position, one in enumerate(relation.schema)
        ]
        return self._add(_widened(columns, types), [relation], relation.ordered)

    # -- select ----------------------------------------------------------------------------------------------------

    def _select(self, select: s.Select, scope: Mapping[str, _Cte]) -> Relation:
        relation = self._from(select, scope)
        self._refuse_aggregation(select)
        binder = Binder(self.statement.text, relation, self.library)
        if select.where is not None:
            predicate = binder.bind_boolean(select.where, "WHERE")
            self._check_runs(select.where, predicate)
            relation = self._add(SelectSpec(predicate), [relation], relation.ordered)
        names, columns = self._columns(select, relation, binder)
        if self._changes_nothing(names, columns, relation):
            return replace(relation, alias=None)
        spec = MapSpec(tuple(zip(names, columns, strict=True)))
        return replace(self._add(spec, [relation], relation.ordered), alias=None)

    def _refuse_aggregation(self, select: s.Select) -> None:
        if select.group_by:
            raise self._error(select.group_by[0], "GROUP BY is not available yet")
        if select.having is not None:
            raise self._error(select.having, "HAVING is not available yet")
        if select.qualify is not None:
            raise self._error(select.qualify, "QUALIFY is not available yet")
        if select.distinct:
            raise self._error(
                select,
                "SELECT DISTINCT has to remember every row of an unbounded stream; it is legal inside a window, "
                "and windows are not available yet",
            )

    def _columns(self, select: s.Select, relation: Relation, binder: Binder) -> tuple[list[str], list[e.Expression]]:
        names: list[str] = []
        columns: list[e.Expression] = []
        for position, item in enumerate(select.items, 1):
            if isinstance(item, s.Star):
                made = self._star(item, relation)
            else:
                bound = binder.bind(item.expression)
                self._check_runs(item.expression, bound)
                if bound.type is Type.INTERVAL:
                    raise self._error(
                        item, "an interval cannot leave a query: CAST it AS text, or take extract(epoch FROM ...)"
                    )
                made = [(item.alias.text if item.alias else _name_of(item.expression, position, names), bound)]
            for name, column in made:
                if name in names:
                    raise self._error(item, f"two columns are called {name}: give one another name with AS")
                names.append(name)
                columns.append(column)
        return names, columns

    def _star(self, item: s.Star, relation: Relation) -> list[tuple[str, e.Expression]]:
        if item.table is not None and item.table.text != relation.alias:
            known = [relation.alias] if relation.alias else []
            raise self._error(
                item, f"there is no table {item.table.text} in FROM{did_you_mean(item.table.text, known)}"
            )
        return [
            (one.name, e.Column(one.type, one.nullable, position, one.name))
            for position, one in enumerate(relation.schema)
        ]

    def _check_runs(self, node: s.Expr, bound: e.Expression) -> None:
        """Compile once now: a bad constant (a pattern, a unit) is found here and not by the first tuple."""
        try:
            compile_expression(bound, self.library)
        except Refuse as error:
            raise self._error(node, error.text) from None

    @staticmethod
    def _changes_nothing(names: Sequence[str], columns: Sequence[e.Expression], relation: Relation) -> bool:
        positions = [column.position if isinstance(column, e.Column) else None for column in columns]
        return tuple(names) == relation.schema.names and positions == list(range(len(names)))

    # -- from ------------------------------------------------------------------------------------------------------

    def _from(self, select: s.Select, scope: Mapping[str, _Cte]) -> Relation:
        if not select.tables:
            raise self._error(select, "a query reads a stream or another query: add FROM")
        if len(select.tables) > 1:
            raise self._error(select.tables[1], "tables with a comma between them are a join: write a JOIN b ON ...")
        table = select.tables[0]
        match table:
            case s.Join():
                raise self._error(table.right, "joins are not available yet")
            case s.Followed():
                raise self._error(table.right, "FOLLOWED BY is not available yet")
        assert isinstance(table, s.TablePrimary)
        if table.window is not None:
            raise self._error(table.window, "windows are not available yet")
        if table.latest is not None:
            raise self._error(table.latest, "LATEST edges are not available yet")
        if table.shed is not None:
            raise self._error(table.shed, "SHED RANDOM is not available yet")
        relation = self._source(table.source, scope)
        return replace(relation, alias=table.alias.text) if table.alias else relation

    def _source(self, source: s.TableSource, scope: Mapping[str, _Cte]) -> Relation:
        match source:
            case s.Subquery():
                return self._query(source.query, scope)
            case s.TableFunction():
                name = source.name.text
                if name in _WINDOWS:
                    raise self._error(source, "windows are not available yet")
                hint = did_you_mean(name, _WINDOWS) or f"; there are {', '.join(_WINDOWS)}"
                raise self._error(source, f"there is no table function {name}{hint}")
        assert isinstance(source, s.NamedTable)
        return self._named(source, scope)

    def _named(self, source: s.NamedTable, scope: Mapping[str, _Cte]) -> Relation:
        name = source.name.text
        if source.part is not None:
            raise self._late(source, name, source.part)
        if name in scope:
            cte = scope[name]
            return replace(self._query(cte.query, cte.scope), alias=name)
        if name in self.catalog.streams:
            return self._stream(self.catalog.streams[name])
        if name == self.name:
            raise self._error(source, f"{name} cannot read itself")
        if name in self.catalog.queries:
            if reaches(name, self.name, self.catalog):
                raise self._error(source, f"{name} reads {self.name}: the two would wait for each other for ever")
            return self._other_query(self.catalog.queries[name])
        known = [*self.catalog.streams, *self.catalog.queries, *scope]
        hint = did_you_mean(name, known) or (
            f"; there are {', '.join(known[:10])}" if known else "; CREATE STREAM makes one"
        )
        raise self._error(source, f"there is no stream or query {name}{hint}")

    def _late(self, source: s.NamedTable, name: str, part: s.Name) -> SqlError:
        if part.text == "late" and name in self.catalog.streams:
            return self._error(source, f"the late tuples of {name} cannot be queried yet")
        return self._error(part, f"there is no {name}.{part.text}; a stream has one side stream, {name}.late")

    def _stream(self, stream: StreamDefinition) -> Relation:
        self.streams.append(stream.name)
        known = stream.timestamps != "latent"
        # What waits for nothing needs no sorting: the engine's stamps are in order, and latent tuples never wait.
        ordered = stream.always_ordered or not known
        return Relation(stream.source, stream.schema, stream.name, known, stream.time, ordered)

    def _other_query(self, other: QueryPlan) -> Relation:
        self.queries.append(other.name)
        known = time_known(other, self.catalog)
        return Relation(other.output, other.schema, other.name, known, None, is_ordered(other, self.catalog))


_WINDOWS: Final = ("tumble", "hop", "session")


def _widened(columns: Sequence[tuple[str, e.Expression]], types: Sequence[Type]) -> MapSpec:
    """The columns with a cast where the type is another."""
    return MapSpec(
        tuple(
            (name, column if column.type is type else e.Cast(type, column.nullable, column))
            for (name, column), type in zip(columns, types, strict=True)
        )
    )


def _name_of(node: s.Expr, position: int, taken: Sequence[str]) -> str:
    """What a column without AS is called: the column's or function's own name, else its number."""
    match node:
        case s.ColumnRef():
            return node.name.text
        case s.CastExpr():
            return _name_of(node.argument, position, taken)
        case s.FunctionCall() if not node.operator and node.name.text not in taken:
            return node.name.text
        case s.CaseExpr() if "case" not in taken:
            return "case"
    return f"column{position}"


def is_ordered(made: QueryPlan, catalog: Catalog) -> bool:
    """Whether a query's rows come in order of time for sure."""
    nodes = {node.name: node for node in made.nodes}

    def ordered(name: str) -> bool:
        node = nodes.get(name)
        if node is None:
            return _input_ordered(name, catalog)
        if isinstance(node.spec, SortSpec):
            return True
        if isinstance(node.spec, UnionSpec):
            return node.spec.ordered
        return all(ordered(one) for one in node.inputs)

    return ordered(made.output)


def _input_ordered(name: str, catalog: Catalog) -> bool:
    for stream in catalog.streams.values():
        if stream.source == name:
            return stream.always_ordered or stream.timestamps == "latent"
    return any(query.output == name and is_ordered(query, catalog) for query in catalog.queries.values())


def time_known(made: QueryPlan, catalog: Catalog) -> bool:
    """Whether every row of a query has a time: no latent stream feeds it."""
    return all(catalog.streams[name].timestamps != "latent" for name in made.reads_streams) and all(
        time_known(catalog.queries[name], catalog) for name in made.reads_queries
    )
