"""Predicate index: which of many filters have a row in a batch, found for all of them at once.

A filter is in the index by conditions of which one must be true for its predicate to be true: `k = 17`, a range, one
of the members of IN, one side of AND, all branches of OR. Conditions on the same expression are looked up together,
and the expression is computed once: numbers that are equal to a constant by binary search among the constants, texts
by one hash table, ranges by binary search of their bounds among the sorted values. A predicate without such a
condition is computed once for all filters that have it.

The index never decides alone. A row that cannot be computed concerns every filter whose conditions need it, and their
own predicate decides. So rows, nulls and failures are those of filters without an index.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from millrace.protocol import Type
from millrace.values.batch import TEXTS, Batch, Bools, Int64s, column_of
from millrace.values.evaluate import Computed, Errors, Predicate, compile_expression, compile_predicate
from millrace.values.expression import Call, Column, Constant, Expression, anonymous, parts
from millrace.values.text_index import TextIndex

LEAST_INT64: Final = -(2**63)
MOST_INT64: Final = 2**63 - 1
MIRRORED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# Functions that fail no row whose arguments can be computed.
TOTAL: Final = {
    "=",
    "<>",
    "<",
    "<=",
    ">",
    ">=",
    "and",
    "or",
    "not",
    "in",
    "is null",
    "is not null",
    "is true",
    "is false",
}


class Condition(NamedTuple):
    """An expression between two bounds, which belong to it; a text is equal to both."""

    key: Expression
    low: Any
    high: Any


class Found:
    """Some rows of a batch may pass a predicate, or surely do: `rows`. Computed once for all filters that have it."""

    __slots__ = ("_result", "_test", "rows")

    def __init__(self, test: Predicate, rows: Int64s | None = None) -> None:
        self._test = test
        self.rows = rows
        self._result: tuple[Batch, Errors | None] | None = None

    def result(self, batch: Batch) -> tuple[Batch, Errors | None]:
        """The rows that pass, and those that cannot be computed."""
        if self._result is None:
            if self.rows is not None:
                self._result = batch.take(self.rows), None
            else:
                passing, errors = self._test(batch)
                self._result = batch if passing is None else batch.take(passing), errors
        return self._result


class PredicateIndex:
    """The predicates of filters over the same fields, by number."""

    def __init__(self, predicates: Sequence[Expression]) -> None:
        self._tests = [compile_predicate(predicate) for predicate in predicates]
        self._alone: list[int] = []
        conditions: dict[Expression, list[tuple[int, Condition]]] = {}
        self._exact: set[int] = set()
        for number, predicate in enumerate(predicates):
            found = conditions_of(anonymous(predicate))
            if found is None:
                self._alone.append(number)
                continue
            for condition in found:
                conditions.setdefault(condition.key, []).append((number, condition))
            if len(found) == 1 and _is_exact(predicate):
                self._exact.add(number)
        self._keys = [(compile_expression(key), *_tables(key.type, found)) for key, found in conditions.items()]

    @property
    def keys(self) -> int:
        """How many expressions are looked up, and how many predicates are computed as a whole: work per batch."""
        return len(self._keys) + len(self._alone)

    def match(self, batch: Batch) -> dict[int, Found]:
        """The predicates for which rows of the batch may be true, or fail; for no others."""
        matches: dict[int, Found] = {}
        for compute, equal, ranges, numbers in self._keys:
            computed = compute(batch)
            if computed.error is not None:
                matches.update((number, Found(self._tests[number])) for number in numbers)
                continue
            if equal is not None:
                for number, rows in equal.match(computed):
                    matches[number] = Found(self._tests[number], rows if number in self._exact else None)
            if ranges is not None:
                for number, rows in ranges.match(computed):
                    matches[number] = Found(self._tests[number], rows if number in self._exact else None)
        for number in self._alone:
            passing, errors = self._tests[number](batch)
            if errors is not None or passing is None or passing.any():
                matches[number] = Found(_known(passing, errors))
        return matches


def _known(passing: Bools | None, errors: Errors | None) -> Predicate:
    return lambda _: (passing, errors)


# -- conditions --------------------------------------------------------------------------------------------------------


def conditions_of(predicate: Expression) -> list[Condition] | None:
    """Conditions of which one is true in each row for which the predicate is true or fails, unless their own
    expressions fail; None if there are none."""
    if isinstance(predicate, Column):
        return [Condition(predicate, 1, 1)] if predicate.type is Type.BOOLEAN else None
    if not isinstance(predicate, Call):
        return None
    name, arguments = _name(predicate), predicate.arguments
    if name == "and":
        return _conditions_of_both(*arguments)
    if name == "or":
        branches = [conditions_of(one) for one in arguments]
        return None if any(found is None for found in branches) else [one for found in branches for one in found or ()]
    if name == "in":
        key, *members = arguments
        equals = [_comparison("=", key, one) for one in members]
        return None if any(one is None for one in equals) else [one for one in equals if one is not None]
    if name in MIRRORED:
        first, second = arguments
        found = _comparison(name, first, second) or _comparison(MIRRORED[name], second, first)
        return None if found is None else [found]
    return None


def _conditions_of_both(first: Expression, second: Expression) -> list[Condition] | None:
    """Those of the side that selects more. The other side must not fail where a null keeps this one from deciding."""
    left = conditions_of(first) if not first.nullable or _is_total(second) else None
    right = conditions_of(second) if not second.nullable or _is_total(first) else None
    if left is None or right is None:
        return left if right is None else right
    if len(left) == len(right) == 1 and left[0].key == right[0].key and left[0].key.type not in TEXTS:
        (one,), (other,) = left, right
        return [Condition(one.key, max(one.low, other.low), min(one.high, other.high))]
    return min(left, right, key=lambda conditions: (any(one.low != one.high for one in conditions), len(conditions)))


def _comparison(name: str, key: Expression, constant: Expression) -> Condition | None:
    if isinstance(key, Constant) or not isinstance(constant, Constant) or constant.value is None:
        return None
    value = constant.value
    if key.type is not constant.type:
        if key.type is Type.DOUBLE and constant.type is Type.BIGINT and int(float(value)) == value:
            value = float(value)
        elif key.type is not Type.BIGINT or constant.type is not Type.DOUBLE:
            return None
    if key.type in TEXTS:
        return Condition(key, value, value) if name == "=" else None
    if key.type is Type.DOUBLE:
        below, above, least, most = (
            math.nextafter(value, -math.inf),
            math.nextafter(value, math.inf),
            -math.inf,
            math.inf,
        )
        low = high = value
    else:
        low, high = math.ceil(value), math.floor(value)
        below, above, least, most = low - 1, high + 1, LEAST_INT64, MOST_INT64
    match name:
        case "=":
            bounds = low, high
        case "<":
            bounds = least, below
        case "<=":
            bounds = least, high
        case ">":
            bounds = above, most
        case _:
            bounds = low, most
    if not least <= bounds[0] <= most or not least <= bounds[1] <= most:
        bounds = 1, 0
    return Condition(key, *bounds)


def _is_exact(predicate: Expression) -> bool:
    """Whether a predicate with one condition is true wherever that is: nothing else decides."""
    if isinstance(predicate, Call) and _name(predicate) == "and":
        branches = [conditions_of(argument) for argument in predicate.arguments]
        keys = {argument[0].key for argument in branches if argument is not None and len(argument) == 1}
        return None not in branches and len(keys) == 1 and all(map(_is_exact, predicate.arguments))
    return isinstance(predicate, Column) or (isinstance(predicate, Call) and _name(predicate) in {*MIRRORED, "in"})


def _is_total(expression: Expression) -> bool:
    """Whether it can be computed for every row."""
    if isinstance(expression, Column | Constant):
        return True
    return isinstance(expression, Call) and _name(expression) in TOTAL and all(map(_is_total, parts(expression)))


def _name(call: Call) -> str:
    return call.function.partition("(")[0]


# -- looking up --------------------------------------------------------------------------------------------------------


class _Equal:
    """Constants, and the predicates for each."""

    def __init__(self, type: Type, found: Iterable[tuple[int, Condition]]) -> None:
        by_value: dict[Any, list[int]] = {}
        for number, condition in found:
            by_value.setdefault(condition.low, []).append(number)
        values = list(by_value) if type in TEXTS else sorted(by_value)
        self._numbers = [by_value[value] for value in values]
        self._texts: TextIndex | None = None
        if type in TEXTS:
            self._texts = TextIndex(type is Type.BYTES)
            self._texts.find(column_of(type, values), None)
        else:
            self._values = np.array(values, np.float64 if type is Type.DOUBLE else np.int64)

    def match(self, computed: Computed) -> Iterable[tuple[int, Int64s]]:
        """The predicates with rows, and those rows."""
        values = computed.values
        if self._texts is not None:
            places = self._texts.places(values)
            equal = places >= 0
        else:
            places = self._values.searchsorted(values)
            np.minimum(places, len(self._values) - 1, out=places)
            equal = self._values[places] == values
        if computed.valid is not None:
            equal &= computed.valid
        rows = equal.nonzero()[0]
        if not len(rows):
            return
        places = places[rows]
        order = places.argsort(kind="stable")
        rows, places = rows[order], places[order]
        cuts = [0, *((places[1:] != places[:-1]).nonzero()[0] + 1).tolist(), len(rows)]
        for start, stop in pairwise(cuts):
            for number in self._numbers[places[start]]:
                yield number, rows[start:stop]


class _Ranges:
    """Bounds, and the predicate for each pair."""

    def __init__(self, type: Type, found: Sequence[tuple[int, Condition]]) -> None:
        dtype = np.float64 if type is Type.DOUBLE else np.int64
        self._numbers = np.array([number for number, _ in found])
        self._low = np.array([condition.low for _, condition in found], dtype)
        self._high = np.array([condition.high for _, condition in found], dtype)

    def match(self, computed: Computed) -> Iterable[tuple[int, Int64s]]:
        """The predicates with rows, and those rows."""
        rows = computed.values.argsort(kind="stable")
        if computed.valid is not None:
            rows = rows[computed.valid[rows]]
        values = computed.values[rows]
        starts, stops = values.searchsorted(self._low), values.searchsorted(self._high, "right")
        hit = (starts < stops).nonzero()[0]
        if not len(hit):
            return
        starts, counts = starts[hit], stops[hit] - starts[hit]
        ends = counts.cumsum()
        # The rows of all predicates one after the other, each predicate's in their order: sorted once for all.
        places = np.arange(ends[-1]) + (starts - ends + counts).repeat(counts)
        found = rows[places] + (np.arange(len(hit)) * len(computed.values)).repeat(counts)
        found.sort()
        found %= len(computed.values)
        cuts = [0, *ends.tolist()]
        for number, (start, stop) in zip(self._numbers[hit].tolist(), pairwise(cuts), strict=True):
            yield number, found[start:stop]


Tables = tuple[_Equal | None, _Ranges | None, list[int]]


def _tables(type: Type, conditions: Sequence[tuple[int, Condition]]) -> Tables:
    equal = [(number, condition) for number, condition in conditions if condition.low == condition.high]
    ranges = [(number, condition) for number, condition in conditions if condition.low != condition.high]
    return (
        _Equal(type, equal) if equal else None,
        _Ranges(type, ranges) if ranges else None,
        [number for number, _ in conditions],
    )
