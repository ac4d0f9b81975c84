"""Analyses the conditions of a join: bounds on the distance in time of its rows, equal keys, and other conditions.

Conditions are bound over the columns of all inputs. A bound on the times of two inputs may have any equivalent form: a
comparison or BETWEEN, with intervals on either side, over columns that carry the rows' own time or lie within known
bounds of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from millrace.operators.join.bands import Band
from millrace.operators.join.spec import Equal
from millrace.protocol import Field, Schema, Type
from millrace.sql import syntax as s
from millrace.sql.binder import TIME_NAME, Named, Relation
from millrace.values import expression as e
from millrace.values.batch import Batch
from millrace.values.evaluate import compile_expression
from millrace.values.functions import LIBRARY
from millrace.values.functions.comparison import MIRRORED
from millrace.values.lags import Lag, lag_of, minus, name_of, plus

_COMPARED: Final = {"<", "<=", "=", ">=", ">"}
_TIMES: Final = (Type.TIMESTAMP, Type.INTERVAL)

# A parsed condition, or a bound one.
_Condition = TypeVar("_Condition", s.Expr, e.Expression)


class Wide:
    """The wide row: the columns of each input in turn, each followed by the input's own time."""

    def __init__(self, inputs: Sequence[Relation]) -> None:
        self.inputs = inputs
        self._places: list[tuple[int, int]] = []
        fields: list[Field] = []
        for at, relation in enumerate(inputs):
            self._places += [(at, position) for position in (*range(len(relation.schema)), e.TIME)]
            fields += [*relation.schema, Field(TIME_NAME, Type.TIMESTAMP, not relation.time_known)]
        self._schema = Schema(tuple(fields))
        self._position = {place: position for position, place in enumerate(self._places)}

    def position(self, source: int, position: int) -> int:
        """The position of an input's column in the wide row."""
        return self._position[source, position]

    def place(self, position: int) -> tuple[int, int]:
        """The input of a column, and its position in that input."""
        return self._places[position]

    def column(self, source: int, position: int) -> e.Column:
        field_ = self._schema.fields[self.position(source, position)]
        return e.Column(field_.type, field_.nullable, self.position(source, position), field_.name)

    def named(self, table: Named, source: int) -> Named:
        """A table of an input, with its positions in the wide row."""

        def shifted(position: int | None) -> int | None:
            return None if position is None else self.position(source, position)

        columns = {name: shifted(position) for name, position in table.columns.items()}
        return replace(table, columns=columns, time=shifted(table.time))

    def relation(self, tables: Sequence[Named]) -> Relation:
        """The relation for binding conditions over these tables."""
        return Relation("", self._schema, None, True, None, tables=tuple(tables))

    def sources(self, expression: e.Expression) -> set[int]:
        """The inputs that an expression reads; -1 stands for the time of the joined row."""
        return {
            -1 if column.position == e.TIME else self._places[column.position][0] for column in e.columns_of(expression)
        }

    def over_input(self, expression: e.Expression) -> e.Expression:
        """The expression over the only input that it reads."""

        def placed(part: e.Expression) -> e.Expression | None:
            return replace(part, position=self._places[part.position][1]) if isinstance(part, e.Column) else None

        return e.rewrite(expression, placed)

    def lag(self, expression: e.Expression) -> Lag | None:
        """The distance between an expression over one input and its rows' time."""
        sources = self.sources(expression)
        if len(sources) != 1 or -1 in sources:
            return None
        return lag_of(self.over_input(expression), self.inputs[sources.pop()].lags)


def conjuncts(condition: _Condition) -> Iterator[_Condition]:
    """The operands of a chain of ANDs."""
    if _is_and(condition):
        operands: Sequence[_Condition] = condition.arguments  # type: ignore[attr-defined]
        for operand in operands:
            yield from conjuncts(operand)
    else:
        yield condition


def _is_and(condition: s.Expr | e.Expression) -> bool:
    if isinstance(condition, e.Call):
        return name_of(condition) == "and"
    return isinstance(condition, s.FunctionCall) and condition.operator and condition.name.text == "and"


@dataclass(slots=True)
class Conditions:
    """The conditions of one join by kind. Expressions are over the wide row, except `equal`.

    own     conditions on the rows of one input
    equal   equal keys of two inputs
    where   all other conditions
    timed   whether to extract bounds on times
    """

    wide: Wide
    timed: bool = True
    own: dict[int, list[e.Expression]] = field(default_factory=dict)
    equal: list[Equal] = field(default_factory=list)
    where: list[e.Expression] = field(default_factory=list)
    _bounds: dict[tuple[int, int], tuple[int | None, int | None]] = field(default_factory=dict)

    @property
    def bands(self) -> tuple[Band, ...]:
        return tuple(Band(left, right, *bounds) for (left, right), bounds in sorted(self._bounds.items()))

    def add(self, condition: e.Expression) -> None:
        """Split one condition and classify its parts."""
        for term in conjuncts(condition):
            self._take(term)

    def _take(self, term: e.Expression) -> None:
        if isinstance(term, e.Constant) and term.value is True:
            return
        sources = self.wide.sources(term)
        if len(sources) == 1 and -1 not in sources:
            self.own.setdefault(sources.pop(), []).append(term)
            return
        if self._take_times(term) or self._take_key(term):
            return
        self.where.append(term)

    def _take_times(self, term: e.Expression) -> bool:
        """Extract a term's bound on the times of two inputs; True if the bound is equivalent to the term."""
        between = self._between(term) if self.timed else None
        if between is None:
            return False
        left, right, low, high, exact = between
        if low is None and high is None:
            return False
        self.bound(left, right, low, high)
        return exact

    def bound(self, left: int, right: int, low: int | None, high: int | None) -> None:
        """Narrow the distance of two inputs' rows: low <= right's time - left's time <= high."""
        if left > right:
            left, right = right, left
            low, high = (None if high is None else -high), (None if low is None else -low)
        known = self._bounds.get((left, right), (None, None))
        lows = [limit for limit in (known[0], low) if limit is not None]
        highs = [limit for limit in (known[1], high) if limit is not None]
        self._bounds[left, right] = max(lows, default=None), min(highs, default=None)

    def _take_key(self, term: e.Expression) -> bool:
        """Extract an equality of two inputs' expressions as a key; True if the term is one."""
        pair = equality(term, self.wide)
        if pair is None:
            return False
        (left, left_key), (right, right_key) = pair
        self.equal.append(Equal(left, left_key, right, right_key))
        return True

    # -- times -----------------------------------------------------------------------------------------------------

    def _between(self, term: e.Expression) -> tuple[int, int, int | None, int | None, bool] | None:
        """A comparison as a bound on two inputs' times: the inputs, the bounds, and whether the bound is exact."""
        compared = comparison(term)
        if compared is None:
            return None
        sign, left, right = compared
        distance = _absolute_comparison(sign, left, right)
        if distance is not None:
            inner, limit = distance
            return self._absolute_distance(inner, -limit, limit)
        first, second = self._linear(left), self._linear(right)
        if first is None or second is None:
            return None
        # one - other <sign> 0, in whole microseconds
        least, most = {"<": (None, -1), "<=": (None, 0), "=": (0, 0), ">=": (0, None), ">": (1, None)}[sign]
        return self._distance(_subtract(first, second), least, most)

    def _absolute_distance(
        self, inner: e.Expression, least: int, most: int
    ) -> tuple[int, int, int | None, int | None, bool] | None:
        linear = self._linear(inner)
        return None if linear is None else self._distance(linear, least, most)

    def _distance(
        self, linear: _Linear, least: int | None, most: int | None
    ) -> tuple[int, int, int | None, int | None, bool] | None:
        """The bounds on the rows' times that least <= later - earlier + constant <= most implies."""
        terms = {atom: times for atom, times in linear.terms.items() if times}
        if sorted(terms.values()) != [-1, 1]:
            return None
        earlier, later = sorted(terms, key=lambda atom: terms[atom])
        (left,), (right,) = self.wide.sources(earlier), self.wide.sources(later)
        if left == right:
            return None
        from_left, from_right = self.wide.lag(earlier), self.wide.lag(later)
        assert from_left is not None
        assert from_right is not None
        low = plus(minus(least, linear.constant), minus(from_right[0], from_left[1]))
        high = plus(minus(most, linear.constant), minus(from_right[1], from_left[0]))
        exact = from_left[0] == from_left[1] and from_right[0] == from_right[1]
        return left, right, low, high, exact and not (earlier.nullable or later.nullable)

    def _linear(self, expression: e.Expression) -> _Linear | None:
        """A sum of progressing columns and constants."""
        if expression.type not in _TIMES:
            return None
        if not any(e.columns_of(expression)):
            value = constant(expression)
            return None if value is None else _Linear({}, value)
        if isinstance(expression, e.Call) and name_of(expression) in ("+", "-"):
            parts = [self._linear(part) for part in expression.arguments]
            known = [part for part in parts if part is not None]
            if len(known) == len(parts):
                return _sum(name_of(expression), known)
        return None if self.wide.lag(expression) is None else _Linear({expression: 1}, 0)


@dataclass(frozen=True, slots=True)
class _Linear:
    terms: Mapping[e.Expression, int]
    constant: int


def _subtract(left: _Linear, right: _Linear) -> _Linear:
    terms = dict(left.terms)
    for atom, times in right.terms.items():
        terms[atom] = terms.get(atom, 0) - times
    return _Linear(terms, left.constant - right.constant)


def _sum(sign: str, parts: Sequence[_Linear]) -> _Linear:
    nothing = _Linear({}, 0)
    if len(parts) == 1:
        return _subtract(nothing, parts[0]) if sign == "-" else parts[0]
    left, right = parts
    return _subtract(left, right if sign == "-" else _subtract(nothing, right))


def _absolute_comparison(sign: str, left: e.Expression, right: e.Expression) -> tuple[e.Expression, int] | None:
    """A comparison of the form abs(difference) <= limit."""
    if sign in (">", ">="):
        sign, left, right = MIRRORED[sign], right, left
    if sign == "=" or not (isinstance(left, e.Call) and name_of(left) == "abs" and left.type is Type.INTERVAL):
        return None
    limit = None if any(e.columns_of(right)) else constant(right)
    return None if limit is None else (left.arguments[0], limit - (sign == "<"))


def comparison(term: e.Expression) -> tuple[str, e.Expression, e.Expression] | None:
    """The sign and the sides of a comparison."""
    if isinstance(term, e.Call) and name_of(term) in _COMPARED:
        left, right = term.arguments
        return name_of(term), left, right
    return None


def equality(term: e.Expression, wide: Wide) -> tuple[tuple[int, e.Expression], tuple[int, e.Expression]] | None:
    """The two sides of an equality between two inputs, each with its input; the lower input first.

    A bigint and a double are compared as numbers and are not a key, because they have no common form without rounding.
    """
    compared = comparison(term)
    if compared is None or compared[0] != "=" or compared[1].type is not compared[2].type:
        return None
    sides = []
    for side in compared[1:]:
        sources = wide.sources(side)
        if len(sources) != 1 or -1 in sources:
            return None
        sides.append((sources.pop(), wide.over_input(side)))
    if sides[0][0] == sides[1][0]:
        return None
    first, second = sorted(sides, key=lambda side: side[0])
    return first, second


def constant(expression: e.Expression) -> int | None:
    """The value of a time that reads no columns; None if it is null or cannot be computed."""
    if isinstance(expression, e.Constant):
        return None if expression.value is None else int(expression.value)
    computed = compile_expression(expression)(Batch.from_rows(Schema.of(a="bigint"), [(1,)], [0]))
    if computed.error is not None or (computed.valid is not None and not computed.valid[0]):
        return None
    return int(computed.values[0])


def call(name: str, *arguments: e.Expression) -> e.Call:
    """A call of a library function. The arguments must have exactly its types."""
    function = LIBRARY.resolve(name, [{argument.type: 0} for argument in arguments])
    assert function is not None, name
    nullable = function.nullable([argument.nullable for argument in arguments])
    return e.Call(function.result, nullable, function.key, arguments)


def all_of(conditions: Iterable[e.Expression | None]) -> e.Expression | None:
    """The conjunction of several conditions, some of which may be missing."""
    terms = [condition for condition in conditions if condition is not None]
    if len(terms) < 2:
        return terms[0] if terms else None
    half = len(terms) // 2
    left, right = all_of(terms[:half]), all_of(terms[half:])
    assert left is not None
    assert right is not None
    return call("and", left, right)


# Functions that return null if an argument is null.
_STRICT: Final = {*_COMPARED, "<>", "+", "-", "*", "/", "%", "||", "like", "ilike", "in", "date_trunc"}


def needs_row_of(source: int, term: e.Expression, wide: Wide) -> bool:
    """Whether a condition fails without a row of an input, because the columns of that input are null then."""
    if isinstance(term, e.Call) and name_of(term) == "is not null":
        return _null_without(source, term.arguments[0], wide)
    return _null_without(source, term, wide)


def _null_without(source: int, part: e.Expression, wide: Wide) -> bool:
    match part:
        case e.Column():
            return wide.sources(part) == {source}
        case e.Cast():
            return _null_without(source, part.argument, wide)
        case e.Call() if name_of(part) in _STRICT:
            return any(_null_without(source, argument, wide) for argument in part.arguments)
    return False
