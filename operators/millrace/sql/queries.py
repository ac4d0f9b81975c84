"""One query's plan: its operators, made in plan order, depth first and the left input first, which is what names count.

What cannot run on a stream, or not yet, is refused here with the reason and what would make it legal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from millrace.engine.plan import Namer, Node, QueryOptions, QueryPlan, StreamDefinition
from millrace.operators import expression as e
from millrace.operators.evaluate import compile_expression
from millrace.operators.functions import Library
from millrace.operators.spec import MapSpec, SelectSpec, SortSpec, Spec, UnionSpec
from millrace.protocol import Refuse, Type
from millrace.sql import syntax as s
from millrace.sql.binder import Binder, Relation
from millrace.sql.errors import SqlError, did_you_mean
from millrace.sql.planned import Catalog

# A query of WITH is planned anew wherever it is read, which can double with each level.
MAX_OPERATORS: Final = 1000


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
class QueryPlanner:
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
        if len(self.nodes) >= MAX_OPERATORS:
            raise self._error(self.statement.body, f"expected at most {MAX_OPERATORS} operators in a query")
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
            QueryPlanner(self.statement, self.catalog, self.name, self.options, self.library)._query(cte.query, scope)
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
            return self._late(source, name, source.part, scope)
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

    def _late(self, source: s.NamedTable, name: str, part: s.Name, scope: Mapping[str, _Cte]) -> Relation:
        """The side stream of a stream's late tuples."""
        if part.text != "late":
            hint = did_you_mean(part.text, ("late",)) or f"; a stream has one side stream, {name}.late"
            raise self._error(part, f"there is no {name}.{part.text}{hint}")
        if name in scope or (name not in self.catalog.streams and name in self.catalog.queries):
            raise self._error(
                source,
                f"{name} is a query, and only a stream has late tuples: what is late enters no query; read them from "
                "the stream's side stream",
            )
        if name not in self.catalog.streams:
            raise self._error(source, f"there is no stream {name}{did_you_mean(name, self.catalog.streams)}")
        return replace(self._stream(self.catalog.streams[name].late), alias=part.text)

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
        for one in (stream, stream.late):
            if one.source == name:
                return one.always_ordered or one.timestamps == "latent"
    return any(query.output == name and is_ordered(query, catalog) for query in catalog.queries.values())


def time_known(made: QueryPlan, catalog: Catalog) -> bool:
    """Whether every row of a query has a time: no latent stream feeds it."""
    return all(catalog.stream(name).timestamps != "latent" for name in made.reads_streams) and all(
        time_known(catalog.queries[name], catalog) for name in made.reads_queries
    )
