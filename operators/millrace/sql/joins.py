"""FROM with several tables: plans joins and sequences from the parsed tree.

A chain of inner joins becomes one operator. Any part that cannot join it (an outer join, LATEST, FOLLOWED BY, a seventh
input) becomes an input of the next operator. Every operator is planned in the same steps: bind the conditions over all
inputs, classify them (`conditions.py`), push conditions on one input upstream, and keep the columns that downstream
operators need.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from millrace.operators.filter.spec import SelectSpec
from millrace.operators.frame.spec import Spec
from millrace.operators.join.bands import close_bands, contradict
from millrace.operators.join.spec import JoinSpec
from millrace.operators.project.spec import MapSpec
from millrace.protocol import Type
from millrace.sql import syntax as s
from millrace.sql.binder import TIME_NAME, Named, Relation
from millrace.sql.conditions import Conditions, Wide, all_of, call, conjuncts, needs_row_of
from millrace.sql.current_joins import join_current_rows, pair_current_rows, update_stream_error
from millrace.sql.dialects import find_join, guided
from millrace.sql.edges import settle_edge
from millrace.sql.grouped import WHERE
from millrace.sql.ordering import stamp_rows
from millrace.sql.sequences import latest, plan_followed_by
from millrace.sql.sides import Operand, Picks, Side, Table, shifted
from millrace.sql.updates import filter_rows, read_of
from millrace.sql.windowed import windowed_rows
from millrace.sql.windows import interval_us
from millrace.values import expression as e

if TYPE_CHECKING:
    from millrace.sql.queries import QueryPlanner

_AS: Final = re.compile(r"\bAS\s*\Z", re.IGNORECASE)

# The operator probes every other input for each row, so more inputs are joined in several steps.
MAX_INPUTS: Final = 6

# The sides whose rows are all emitted, with or without a match.
OUTER: Final[Mapping[str, tuple[int, ...]]] = {"left": (0,), "right": (1,), "full": (0, 1)}


class FromPlanner:
    """Plans the FROM and the WHERE of one SELECT over several tables."""

    def __init__(self, planner: QueryPlanner, select: s.Select, scope: Mapping[str, Any]) -> None:
        self.planner = planner
        self._scope = scope
        assert select.table is not None
        self._root = select.table
        self._where = select.where
        self._ranged = any(
            isinstance(leaf.window, s.RangeWindow) and leaf.window.slide is None for leaf in _leaves(self._root)
        )
        self._stars = [item for item in select.items if isinstance(item, s.Star)]
        items = [item for item in select.items if isinstance(item, s.Item)]
        self._selected: list[s.Node] = [*items, *select.group_by, *filter(None, (select.having, select.qualify))]

    def plan(self) -> Relation:
        """The joined rows that pass WHERE."""
        self._check_names()
        where = self._where
        match self._root:
            case s.Join(latest=False) as join if _inner(join):
                return self._chain(join, (), where).relation
            case s.Join(latest=False) as join:
                side, where = self._outer_join(join, (), where)
            case table:
                side = self.side(table, () if where is None else (where,))
        if where is None:
            return side.relation
        return self.tested(where, side.relation)

    def tested(self, where: s.Expr, relation: Relation) -> Relation:
        """The joined rows that pass WHERE."""
        predicate = self.planner.binder(relation, instead=WHERE).bind_boolean(where, "WHERE")
        self.planner.check_runs(where, predicate)
        return filter_rows(self.planner, predicate, relation)

    # -- the tree --------------------------------------------------------------------------------------------------

    def _check_names(self) -> None:
        seen: set[str] = set()
        for table in _leaves(self._root):
            name = _alias(table)
            if name is None:
                continue
            if name in seen:
                raise self.planner.error(
                    table, f"two tables are called {name}: add an alias to each, such as {name} x and {name} y"
                )
            seen.add(name)

    def side(self, table: s.Table, above: Sequence[s.Node]) -> Side:
        """The rows of a part of the tree, which may not replace each other; `above` are the conditions that are tested
        downstream of it."""
        side = self.part(table, above)
        if side.relation.update_key is not None:
            raise self.planner.error(table, update_stream_error(side))
        return side

    def part(self, table: s.Table, above: Sequence[s.Node]) -> Side:
        """The rows of a part of the tree, which may be an update stream."""
        match table:
            case s.TablePrimary():
                return self.leaf(table)
            case s.Join(latest=True):
                return latest(self, table, above)
            case s.Join() if _inner(table):
                return self._chain(table, above, None)
            case s.Join():
                return self._outer_join(table, above, None)[0]
            case s.Followed():
                return plan_followed_by(self, table, above)
        raise AssertionError(table)

    def leaf(self, table: s.TablePrimary, *, latest: bool = False) -> Side:
        """One table; `latest` if JOIN LATEST takes its rows that were current at a time."""
        planner = self.planner
        relation, window = planner.table(table, self._scope, ranges=True)
        stays = rows = None
        if isinstance(window, s.RowsWindow):
            self._check_rows(window, relation)
            rows = window.rows
        elif window is not None and window.range is not None:
            stays = interval_us(planner.statement.text, window.range)
            if stays < 0:
                raise planner.error(window.range, "expected a time of 0 or more")
        policy = table.latest or table.shed
        if latest and (policy is not None or not relation.edge.plain):
            raise planner.error(
                policy or table,
                "JOIN LATEST takes the row that was current at a time, which an edge that drops rows may "
                "have lost: remove LATEST and SHED RANDOM from its input",
            )
        relation = stamp_rows(planner, windowed_rows(planner, None, relation)[0])
        if relation.update_key is None:
            relation = settle_edge(planner, relation)
        elif not latest and window is not None:
            raise planner.error(
                window, "each key of an update stream has one current row: remove the range, or compare times in ON"
            )
        columns: dict[str, int | None] = {field.name: at for at, field in enumerate(relation.schema.data_fields)}
        if relation.time_name is None:
            return Side(relation, (Table(Named(relation.alias, columns, e.TIME), e.TIME, stays),), rows)
        return Side(relation, (Table(Named(relation.alias, columns), columns[relation.time_name], stays),), rows)

    def _check_rows(self, window: s.RowsWindow, relation: Relation) -> None:
        """ROWS counts the tuples of a stream, so no operator in between may drop or combine rows."""
        if window.rows < 1:
            raise self.planner.error(window, "expected at least one row")
        if self.planner.below(relation.node, MapSpec) not in self.planner.sources:
            raise self.planner.error(
                window,
                "ROWS counts the tuples of one stream as they arrive: expected a stream, or a query in "
                "parentheses that only computes columns; move conditions to the WHERE of the join",
            )

    # -- inner joins -----------------------------------------------------------------------------------------------

    def _chain(self, root: s.Join, above: Sequence[s.Node], where: s.Expr | None) -> Side:
        """A chain of inner joins as one operator, or as several if it has too many inputs."""
        operands = list(self._operands(root))
        inside = [operand.condition for operand in operands if operand.condition is not None]
        outside: list[s.Node] = [*above, *inside, *([] if where is None else [where])]
        sides = [self.part(operand.table, outside) for operand in operands]
        if any(side.relation.update_key is not None for side in sides):
            return join_current_rows(self, list(zip(sides, operands, strict=True)), above, where)
        first, *rest = zip(sides, operands, strict=True)
        linked = [first]
        while rest:
            more = MAX_INPUTS - len(linked)
            linked, rest = [*linked, *rest[:more]], rest[more:]
            clocks = self.clocks(root) or (self._ranged and bool(rest))
            side = self._inner(linked, outside if rest else above, None if rest else where, clocks)
            linked = [(side, Operand(root))]
        return side

    def _operands(self, table: s.Table) -> Iterator[Operand]:
        if isinstance(table, s.Join) and _inner(table):
            yield from self._operands(table.left)
            self.check_condition(table)
            yield Operand(table.right, table.condition)
        else:
            yield Operand(table)

    def check_condition(self, join: s.Join) -> None:
        """A CROSS JOIN has no ON; every other join needs one."""
        self._refuse_dialect(_last_alias(join.left))
        if join.kind == "cross" and join.condition is not None:
            raise self.planner.error(
                join.condition, "CROSS JOIN takes no ON: write JOIN, or move the condition to WHERE"
            )
        if join.kind != "cross" and join.condition is None:
            alias = _last_alias(join.left)
            if alias is not None and alias.text == "natural":
                raise self.planner.error(
                    alias,
                    guided(
                        "NATURAL JOIN is not supported: columns with the same name in two tables may have "
                        "different meanings; write JOIN ... ON a.k = b.k"
                    ),
                )
            raise self.planner.error(
                join.right, "JOIN needs a condition: write JOIN ... ON a.k = b.k, or ON TRUE for every pair of rows"
            )

    def _refuse_dialect(self, alias: s.Name | None) -> None:
        """Refuse a join of another dialect, such as ASOF JOIN, whose first word the parser reads as an alias."""
        sentence = None if alias is None else find_join(alias.text)
        if (
            alias is not None
            and sentence is not None
            and not _AS.search(self.planner.statement.text[: alias.span.start])
        ):
            raise self.planner.error(alias, sentence)

    def _inner(
        self, linked: Sequence[tuple[Side, Operand]], above: Sequence[s.Node], where: s.Expr | None, clocks: bool
    ) -> Side:
        """One operator over these sides, which also tests `where` unless it is None."""
        sides = [side for side, _ in linked]
        wide = Wide([side.relation for side in sides])
        tables = [shifted(side, wide, at) for at, side in enumerate(sides)]
        conditions = Conditions(wide)
        for at, (_, operand) in enumerate(linked):
            if operand.condition is not None:
                seen = [table for group in tables[: at + 1] for table in group]
                conditions.add(self.bound(operand.condition, wide, seen))
        everything = [table for group in tables for table in group]
        return self._join_where(sides, conditions, everything, above, where, clocks)

    def _join_where(
        self,
        sides: Sequence[Side],
        conditions: Conditions,
        tables: Sequence[Table],
        above: Sequence[s.Node],
        where: s.Expr | None,
        clocks: bool,
    ) -> Side:
        """An inner join, with all conditions of WHERE."""
        own_time = self._add_where(where, conditions, tables)
        joined = self._join(sides, conditions, tables, above, own_time, clocks)
        predicate = all_of([joined.over(term) for term in own_time])
        if predicate is None:
            return joined.side
        return replace(joined.side, relation=self._filter_relation(predicate, joined.side.relation))

    def _add_where(self, where: s.Expr | None, conditions: Conditions, tables: Sequence[Table]) -> list[e.Expression]:
        """Add WHERE to the conditions of an inner join. Conditions on the joined row's time are tested downstream."""
        if where is None:
            return []
        later = []
        for term in conjuncts(self.bound(where, conditions.wide, tables, "WHERE")):
            if -1 in conditions.wide.sources(term):
                later.append(term)
            else:
                conditions.add(term)
        return later

    def bound(self, condition: s.Expr, wide: Wide, tables: Sequence[Table], what: str = "ON") -> e.Expression:
        """Bind a condition over the columns of these tables."""
        relation = wide.relation([table.named for table in tables])
        bound = self.planner.binder(relation, instead=WHERE if what == "WHERE" else "ON tests rows").bind_boolean(
            condition, what
        )
        self.planner.check_runs(condition, bound)
        if what == "ON" and -1 in wide.sources(bound):
            owned = [f"{table.named.alias}.{TIME_NAME}" for table in tables if table.named.alias is not None]
            raise self.planner.error(condition, f"each of these tables has a {TIME_NAME}: write {' or '.join(owned)}")
        return bound

    # -- outer joins -----------------------------------------------------------------------------------------------

    def _outer_join(self, join: s.Join, above: Sequence[s.Node], where: s.Expr | None) -> tuple[Side, s.Expr | None]:
        """A LEFT, RIGHT or FULL join, and the conditions of WHERE that remain to be tested."""
        self.check_condition(join)
        assert join.condition is not None
        outside = [*above, join.condition, *([] if where is None else [where])]
        sides = [self.part(join.left, outside), self.part(join.right, outside)]
        outer = OUTER[join.kind]
        if any(side.relation.update_key is not None for side in sides):
            needed = [*above, *([] if where is None else [where])]
            return pair_current_rows(self, sides, Operand(join.right, join.condition), needed, outer), where
        wide = Wide([side.relation for side in sides])
        everything = [table for at, side in enumerate(sides) for table in shifted(side, wide, at)]
        clocks = self.clocks(join)
        conditions = Conditions(wide)
        conditions.add(self.bound(join.condition, wide, everything))
        if where is not None:
            terms = list(conjuncts(self.bound(where, wide, everything, "WHERE")))
            # If WHERE needs a row of a side, rows without a match there never pass, so the join need not emit them.
            outer = tuple(at for at in outer if not any(needs_row_of(1 - at, term, wide) for term in terms))
            if not outer:
                return self._join_where(sides, conditions, everything, above, where, clocks), None
            if outer in ((0,), (1,)):
                (outer_side,) = outer
                sides[outer_side] = self._filter_side(
                    sides[outer_side], [term for term in terms if wide.sources(term) == {outer_side}], wide
                )
        needed = [*above, *([] if where is None else [where])]
        return self._join(sides, conditions, everything, needed, (), clocks, outer=outer).side, where

    # -- the operator ----------------------------------------------------------------------------------------------

    def _join(
        self,
        sides: Sequence[Side],
        conditions: Conditions,
        tables: Sequence[Table],
        above: Sequence[s.Node],
        own_time: Sequence[e.Expression],
        clocks: bool,
        *,
        outer: tuple[int, ...] = (),
    ) -> Joined:
        """One join operator. If all rows of a side are emitted, conditions on that side stay in the join."""
        for range_ in _ranges(conditions.wide, tables):
            conditions.add(range_)
        sides = [self.push_conditions(side, conditions, at, keep=at in outer) for at, side in enumerate(sides)]
        picks = self.picks(conditions.wide, tables, above, [*conditions.where, *own_time], clocks=clocks)
        where = all_of([picks.over(term) for term in conditions.where])
        options = self.planner.options
        rows = tuple(side.rows for side in sides)
        spec = JoinSpec(
            picks.columns(),
            conditions.bands,
            tuple(conditions.equal),
            where,
            outer,
            rows if any(rows) else None,
            options.join if options.order == "event" else "arrival",
            options.alpha,
        )
        self._warn(spec, sides)
        return Joined(self.joined_side(spec, sides, tables, picks), picks)

    def push_conditions(self, side: Side, conditions: Conditions, at: int, *, keep: bool = False) -> Side:
        """The side without the rows that fail its own conditions, so that the join does not store them.

        With `keep`, and with ROWS, which counts those rows too, the conditions stay in the join.
        """
        terms = conditions.own.pop(at, [])
        if keep or side.rows is not None:
            conditions.where += terms
            return side
        return self._filter_side(side, terms, conditions.wide)

    def _filter_side(self, side: Side, terms: Sequence[e.Expression], wide: Wide) -> Side:
        """The side without the rows that fail these conditions."""
        predicate = all_of([wide.over_input(term) for term in terms])
        if predicate is None or side.rows is not None:
            return side
        return replace(side, relation=self._filter_relation(predicate, side.relation))

    def _filter_relation(self, predicate: e.Expression, relation: Relation) -> Relation:
        return self.planner.add(SelectSpec(predicate), [relation])

    def joined_side(
        self, spec: Spec, sides: Sequence[Side], tables: Sequence[Table], picks: Picks, word: str | None = None
    ) -> Side:
        """The operator's rows, under the names of its tables."""
        relation = self.planner.add(spec, [side.relation for side in sides], word)
        placed = tuple(
            Table(
                replace(
                    table.named,
                    columns={name: picks.index(at) for name, at in table.named.columns.items()},
                    time=picks.index(table.named.time),
                ),
                picks.index(table.clock),
                table.stays,
            )
            for table in tables
        )
        named = tuple(table.named for table in placed)
        return Side(replace(relation, alias=None, time_name=None, update_key=None, tables=named), placed)

    # -- columns ---------------------------------------------------------------------------------------------------

    def picks(
        self,
        wide: Wide,
        tables: Sequence[Table],
        above: Sequence[s.Node],
        tested: Iterable[e.Expression] = (),
        *,
        clocks: bool,
    ) -> Picks:
        """The columns that a row must have: selected columns, and columns in conditions."""
        picks = Picks(wide, tables)
        parts = (part for node in (*self._selected, *above) for part in s.walk(node))
        names = {(part.table and part.table.text, part.name.text) for part in parts if isinstance(part, s.ColumnRef)}
        for table in tables:
            for name, position in (*table.named.columns.items(), (TIME_NAME, table.named.time)):
                if position is None or table.named.absent is not None:
                    continue
                # An unqualified name may be a column of this table. The implicit time of a table is always qualified.
                own = name in table.named.columns
                if (own and (self._in_star(table.named) or (None, name) in names)) or (
                    table.named.alias,
                    name,
                ) in names:
                    picks.add(position)
        for term in tested:
            for column in e.columns_of(term):
                if column.position != e.TIME:
                    picks.add(column.position)
        if clocks:
            for table in tables:
                if table.clock is not None:
                    picks.add(table.clock)
        if not picks.order:
            picks.add(wide.position(len(wide.inputs) - 1, e.TIME))
        return picks

    def picks_of(self, wide: Wide, tables: Sequence[Table], columns: Iterable[e.Column]) -> Picks:
        """Keep only these columns."""
        picks = Picks(wide, tables)
        for column in columns:
            picks.add(column.position)
        return picks

    def selected_as_they_are(self, tables: Sequence[Table]) -> set[int]:
        """The positions of the columns that the select list returns unchanged."""
        refs = [item.expression for item in self._selected if isinstance(item, s.Item)]
        names = {(ref.table and ref.table.text, ref.name.text) for ref in refs if isinstance(ref, s.ColumnRef)}
        return {
            position
            for table in tables
            for name, position in table.named.columns.items()
            if position is not None
            and (self._in_star(table.named) or (None, name) in names or (table.named.alias, name) in names)
        }

    def clocks(self, table: s.Table) -> bool:
        """Whether an operator downstream of a part of the tree needs its tables' own times, as ranges do."""
        return self._ranged and table is not self._root

    def _in_star(self, table: Named) -> bool:
        return any(star.table is None or star.table.text == table.alias for star in self._stars)

    # -- warnings --------------------------------------------------------------------------------------------------

    def _warn_versions(self, side: Side) -> None:
        """Warn that a join without LATEST treats each version of a key as a separate row."""
        name = read_of(side.relation.node, self.planner.nodes).removesuffix(".source")
        stream = self.planner.catalog.streams.get(name)
        if stream is not None and stream.update_key and side.relation.edge.plain:
            key = ", ".join(stream.update_key)
            self.planner.warnings.append(
                f"{name} has an update key ({key}), and this join emits a row for every version of a key, not "
                f"only for the current one: write JOIN LATEST {name} ON its key to join with the row that is "
                "current at the time, or LATEST after both tables to join the current rows of two update streams"
            )

    def _warn(self, spec: JoinSpec, sides: Sequence[Side]) -> None:
        """Warn about rows that are kept without a limit, and about unmatched rows that are emitted late or never."""
        if contradict(spec.bands, len(sides)):
            self.planner.warnings.append("no rows can match: the ranges and conditions on time contradict each other")
            return
        bounds = close_bands(spec.bands, len(sides))
        endless = [
            side.title
            for at, side in enumerate(sides)
            if side.rows is None and any(bound is None for bound in bounds[at])
        ]
        if endless:
            self.planner.warnings.append(
                f"this join keeps the rows of {' and of '.join(endless)} without a time limit, up to "
                f"max_state = {self.planner.options.max_state} tuples. Add [RANGE '...'] after a table, or a "
                "condition on both times, such as b.ts BETWEEN a.ts AND a.ts + INTERVAL '1 minute'"
            )
        for at, side in enumerate(sides):
            if any(bound is None for bound in bounds[at]) or any(
                bounds[other][at] is None for other in range(len(sides))
            ):
                self._warn_versions(side)
        for at in spec.outer:
            other = sides[1 - at]
            if bounds[at][1 - at] is None and other.rows is None:
                self.planner.warnings.append(
                    f"rows of {sides[at].title} without a match are emitted only when {other.title} ends: "
                    "until then a match may still arrive"
                )


@dataclass(frozen=True, slots=True)
class Joined:
    """The result of a join: its rows, and the mapping of expressions over its inputs to them."""

    side: Side
    picks: Picks

    def over(self, expression: e.Expression) -> e.Expression:
        return self.picks.over(expression)


def _ranges(wide: Wide, tables: Sequence[Table]) -> Iterator[e.Expression]:
    """Translate ranges to bounds: a row matches rows of other inputs that are later by at most its range.

    A side that is itself a join may lack a row of one of its tables. Then that table sets no bound.
    """
    for table in tables:
        for other in tables:
            if table.stays is None or table.clock is None or other.clock is None:
                continue
            if wide.place(table.clock)[0] == wide.place(other.clock)[0]:
                continue
            early, late = wide.column(*wide.place(table.clock)), wide.column(*wide.place(other.clock))
            range_: e.Expression = call("<=", late, call("+", early, e.Constant(Type.INTERVAL, False, table.stays)))
            for clock in (early, late):
                if clock.nullable:
                    range_ = call("or", call("is null", clock), range_)
            yield range_


def _inner(join: s.Join) -> bool:
    return not join.latest and join.kind in ("inner", "cross")


def _leaves(table: s.Table) -> Iterator[s.TablePrimary]:
    if isinstance(table, s.Join | s.Followed):
        yield from _leaves(table.left)
        yield table.right
    elif isinstance(table, s.TablePrimary):
        yield table


def _alias(table: s.TablePrimary) -> str | None:
    """The name that qualifies columns of a table."""
    if table.alias is not None:
        return table.alias.text
    source: s.Node = table.source
    if isinstance(source, s.TableFunction):
        source = source.arguments[0]
    match source:
        case s.NamedTable(name=name, part=part):
            return name.text if part is None else part.text
        case s.ColumnRef(name=name):
            return name.text
    return None


def _last_alias(table: s.Table) -> s.Name | None:
    """The alias before the word JOIN. The grammar does not have NATURAL, so the parser reads it as an alias."""
    match table:
        case s.TablePrimary():
            return table.alias
        case s.Join() | s.Followed():
            return table.right.alias
        case _:
            return None
