"""Expressions over batches against an oracle that computes row by row and shares no code with them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.protocol import Field, Schema, Type
from millrace.values.batch import DTYPES, FILLERS, Batch
from millrace.values.evaluate import Computed, compile_columns, compile_expression, compile_predicate, evaluate
from millrace.values.expression import Call, Case, Cast, Column, Constant, Expression
from millrace.values.functions import LIBRARY, Function, arithmetic
from millrace.values.functions.faults import REASONS
from millrace.values.kernels import arithmetic as kernel
from millrace.values.texts import is_texts
from tests.depth import examples
from tests.oracles.expression_strategies import SCHEMA, VALUES, call, expressions, rows
from tests.oracles.expressions import CASTS_KNOWN, FAILED, LAZY, STRICT, value_of

EXAMPLES = settings(max_examples=examples(150))
TYPES = [Type.BOOLEAN, Type.BIGINT, Type.DOUBLE, Type.TEXT, Type.TIMESTAMP, Type.INTERVAL]


def batch_of(given_rows: list[tuple[Any, ...]]) -> Batch:
    return Batch.from_rows(SCHEMA, given_rows, [1_700_000_000_000_000 + at for at in range(len(given_rows))])


def outcomes(computed: Computed, type: Type) -> list[Any]:
    """A column as the oracle represents it, after checking properties that Python values do not show."""
    values = computed.values
    assert values.dtype == DTYPES[type]
    failed = np.zeros(len(values), bool) if computed.error is None else computed.error.rows
    if computed.error is not None:
        assert failed.any()
        assert computed.error.reason in REASONS.values()
    there = np.ones(len(values), bool) if computed.valid is None else computed.valid
    assert all(value == FILLERS[type] for value in values[~there & ~failed].tolist()), "a filler that is none"
    if type is Type.DOUBLE:
        assert np.isfinite(values).all()
    return [
        FAILED if bad else value if ok else None
        for value, ok, bad in zip(values.tolist(), there.tolist(), failed.tolist(), strict=True)
    ]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or math.isclose(one, other, rel_tol=1e-15)
    return one is other or (type(one) is type(other) and bool(one == other))


@pytest.mark.parametrize("type", TYPES, ids=str)
@given(data=st.data(), given_rows=rows())
@EXAMPLES
def test_every_row_is_what_the_oracle_says(type: Type, data: st.DataObject, given_rows: list[tuple[Any, ...]]) -> None:
    expression = data.draw(expressions(type))
    batch = batch_of(given_rows)
    got = outcomes(evaluate(expression, batch), type)
    expected = [value_of(expression, row, int(ts)) for row, ts in zip(given_rows, batch.ts, strict=True)]
    assert all(map(same, got, expected)), [pair for pair in zip(got, expected, strict=True) if not same(*pair)]
    if not expression.nullable:
        assert None not in got


Made = Callable[[Sequence[Column]], Expression]


def alone(type: Type, expression: Made, arguments: Sequence[Type], data: Any) -> None:
    """One function over separate columns, so that each function is tested often and with odd values of its types."""
    values = [st.none() | oddities(one) for one in arguments]
    given_rows = data.draw(st.lists(st.tuples(*values), min_size=1, max_size=20))
    schema = Schema(tuple(Field(f"c{at}", one) for at, one in enumerate(arguments)))
    tried = expression([Column(one, True, at, f"c{at}") for at, one in enumerate(arguments)])
    got = outcomes(evaluate(tried, Batch.from_rows(schema, given_rows, range(len(given_rows)))), type)
    expected = [value_of(tried, row) for row in given_rows]
    assert all(map(same, got, expected)), list(zip(given_rows, got, expected, strict=True))


def oddities(type: Type) -> st.SearchStrategy[Any]:
    """Small values more often than others."""
    small = {
        Type.BIGINT: st.integers(-6, 6),
        Type.DOUBLE: st.sampled_from([-1.5, -0.5, 0.5, 1.5, 2.5, 0.7, -0.7]),
        Type.TEXT: st.text("ab ,%", max_size=5),
        Type.BYTES: st.binary(max_size=3),
    }
    known = VALUES.get(type, small.get(type, st.nothing()))
    return small[type] | known if type in small else known


KNOWN = [one for one in LIBRARY if one.name in STRICT or one.name in LAZY]


@pytest.mark.parametrize("function", KNOWN, ids=lambda function: function.key)
@given(data=st.data())
@settings(max_examples=examples(15))
def test_every_function_by_itself(function: Function, data: st.DataObject) -> None:
    arguments = function.arguments
    if function.name in ("date_trunc", "in"):
        return  # Their arguments are constants; the random expressions have them.
    alone(function.result, lambda columns: Call(function.result, True, function.key, tuple(columns)), arguments, data)


@pytest.mark.parametrize(("source", "target"), CASTS_KNOWN, ids=str)
@given(data=st.data())
@settings(max_examples=examples(20))
def test_every_cast_by_itself(source: Type, target: Type, data: st.DataObject) -> None:
    alone(target, lambda columns: Cast(target, True, columns[0]), [source], data)


@pytest.mark.parametrize("type", TYPES, ids=str)
@given(data=st.data(), given_rows=rows(), cut=st.integers(0, 12))
@settings(max_examples=examples(40))
def test_cuts_change_nothing(type: Type, data: st.DataObject, given_rows: list[tuple[Any, ...]], cut: int) -> None:
    compute = compile_expression(data.draw(expressions(type)))
    batch = batch_of(given_rows)
    parts = [batch.slice(0, cut), batch.slice(cut, len(batch))]
    pieces = [value for part in parts for value in outcomes(compute(part), type)]
    assert all(map(operator.eq, pieces, outcomes(compute(batch), type)))


@given(data=st.data(), given_rows=rows())
@settings(max_examples=examples(150))
def test_a_predicate_passes_what_is_true_and_reports_what_fails(
    data: st.DataObject, given_rows: list[tuple[Any, ...]]
) -> None:
    predicate = data.draw(expressions(Type.BOOLEAN))
    mask, errors = compile_predicate(predicate)(batch_of(given_rows))
    expected = [value_of(predicate, row, 1_700_000_000_000_000 + at) for at, row in enumerate(given_rows)]
    count = len(given_rows)
    assert ([True] * count if mask is None else mask.tolist()) == [value is True for value in expected]
    assert ([False] * count if errors is None else errors.rows.tolist()) == [value is FAILED for value in expected]


@given(data=st.data(), given_rows=rows())
@settings(max_examples=examples(60))
def test_columns_together_are_columns_one_by_one(data: st.DataObject, given_rows: list[tuple[Any, ...]]) -> None:
    wanted = [data.draw(expressions(type, 2)) for type in TYPES]
    batch = batch_of(given_rows)
    columns, masks, errors = compile_columns(wanted)(batch)
    failed = np.zeros(len(batch), bool)
    for expression, values, valid in zip(wanted, columns, masks, strict=True):
        alone_ = evaluate(expression, batch)
        assert outcomes(Computed(values, valid, alone_.error), expression.type) == outcomes(alone_, expression.type)
        failed |= alone_.error.rows if alone_.error is not None else False
    assert failed.tolist() == ([False] * len(batch) if errors is None else errors.rows.tolist())


@given(data=st.data(), given_rows=rows(), type=st.sampled_from(TYPES))
@settings(max_examples=examples(150))
def test_inputs_are_never_written(data: st.DataObject, given_rows: list[tuple[Any, ...]], type: Type) -> None:
    batch = batch_of(given_rows)
    for array in [batch.ts, *batch.columns, *(mask for mask in batch.valid if mask is not None)]:
        for part in (array.data, array.offsets) if is_texts(array) else (array,):
            part.flags.writeable = False
    evaluate(data.draw(expressions(type)), batch)


@given(a=VALUES[Type.BIGINT], b=VALUES[Type.BIGINT], sign=st.sampled_from(["+", "-", "*", "/", "%"]))
@example(a=-(2**63), b=-1, sign="/")
@example(a=-(2**63), b=-1, sign="%")
@example(a=-(2**63), b=-1, sign="*")
@example(a=1, b=-(2**63), sign="-")
@settings(max_examples=examples(200))
def test_constants_and_columns_agree(a: int, b: int, sign: str) -> None:
    """Shortcuts for a constant on either side, and folding, have the same result as two columns."""
    pair = Schema.of(a="bigint", b="bigint")
    batch = Batch.from_rows(pair, [(a, b), (a, b)], [1, 2])
    left, right = (Column(Type.BIGINT, True, at, name) for at, name in enumerate("ab"))
    first, second = (Constant(Type.BIGINT, False, value) for value in (a, b))
    results = [outcomes(evaluate(call(sign, x, y), batch), Type.BIGINT) for x in (left, first) for y in (right, second)]
    assert all(result == results[0] for result in results)


@given(a=VALUES[Type.BIGINT], b=VALUES[Type.BIGINT], sign=st.sampled_from(["+", "-", "*"]))
def test_overflow_is_found_with_and_without_the_compiled_kernel(a: int, b: int, sign: str) -> None:
    plain, checked, overflows = {
        "+": (np.add, kernel.add_checked, arithmetic.overflows_add),
        "-": (np.subtract, kernel.sub_checked, arithmetic.overflows_subtract),
        "*": (np.multiply, kernel.mul_checked, arithmetic.overflows_multiply),
    }[sign]
    one, other = np.array([a, 1]), np.array([b, 1])
    exact = {"+": a + b, "-": a - b, "*": a * b}[sign]
    out = np.empty(2, np.int64)
    fits = -(2**63) <= exact < 2**63
    assert checked(one, other, out) is not fits
    assert overflows(one, other, plain(one, other)).tolist() == [not fits, False]


BIG = Column(Type.BIGINT, True, 0, "a")


def numbers(*values: int | None) -> Batch:
    return Batch.from_rows(Schema.of(a="bigint"), [(value,) for value in values], range(len(values)))


def bigint(value: int) -> Constant:
    return Constant(Type.BIGINT, False, value)


def test_an_error_says_the_first_reason() -> None:
    quotient = call("/", bigint(10), call("+", BIG, bigint(1)))
    error = evaluate(quotient, numbers(1, -1, 2**63 - 1)).error
    assert error is not None
    assert error.rows.tolist() == [False, True, True]
    assert error.reason == "division by zero"
    error = evaluate(quotient, numbers(1, 2**63 - 1, -1)).error
    assert error is not None
    assert error.reason.startswith("bigint out of range")


def test_a_guard_in_and_keeps_the_row() -> None:
    nonzero = call("<>", BIG, bigint(0))
    large = call(">", call("/", bigint(10), BIG), bigint(1))
    for guarded in (call("and", nonzero, large), call("and", large, nonzero)):
        assert outcomes(evaluate(guarded, numbers(0, 2, 9, None)), Type.BOOLEAN) == [False, True, False, None]


def test_a_branch_that_is_not_taken_cannot_fail() -> None:
    quotient = Case(Type.BIGINT, True, ((call("=", BIG, bigint(0)), bigint(-1)),), call("/", bigint(6), BIG))
    assert outcomes(evaluate(quotient, numbers(0, 2, None)), Type.BIGINT) == [-1, 3, None]


def test_a_row_that_is_decided_does_not_fail_by_a_later_condition() -> None:
    zero = (call("=", BIG, bigint(0)), bigint(-1))
    inverse = (call(">", call("/", bigint(6), BIG), bigint(2)), bigint(1))
    guarded = Case(Type.BIGINT, True, (zero, inverse), bigint(0))
    assert outcomes(evaluate(guarded, numbers(0, 2, 3, None)), Type.BIGINT) == [-1, 1, 0, 0]
    unguarded = Case(Type.BIGINT, True, (inverse, zero), bigint(0))
    assert outcomes(evaluate(unguarded, numbers(0, 2)), Type.BIGINT) == [FAILED, 1]


def test_bigints_are_compared_with_doubles_as_numbers() -> None:
    double = Column(Type.DOUBLE, True, 1, "x")
    batch = Batch.from_rows(Schema.of(a="bigint", x="double"), [(2**53 + 1, 2.0**53), (2**63 - 1, 2.0**63)], [1, 2])
    assert evaluate(call(">", BIG, double), batch).values.tolist() == [True, False]
    assert evaluate(call("<", double, BIG), batch).values.tolist() == [True, False]


def test_a_latent_time_is_null_until_it_is_stamped() -> None:
    from millrace.values.eventtime import MIN_TIME
    from millrace.values.expression import TIME

    batch = Batch.from_rows(Schema.of(a="bigint"), [(1,), (2,)], [MIN_TIME, 5])
    computed = evaluate(Column(Type.TIMESTAMP, True, TIME, "ts"), batch)
    assert outcomes(computed, Type.TIMESTAMP) == [None, 5]


@pytest.mark.parametrize("count", [0, 1, 2, 33])
def test_constants_fill_a_batch_of_any_length(count: int) -> None:
    wholes: list[tuple[Expression, Any]] = [
        (bigint(7), 7),
        (call("+", bigint(3), bigint(4)), 7),
        (Constant(Type.BIGINT, True, None), None),
        (call("/", bigint(3), bigint(0)), FAILED),
    ]
    for expression, value in wholes:
        assert outcomes(evaluate(expression, numbers(*range(count))), Type.BIGINT) == [value] * count


@given(values=st.lists(st.floats(-700, 700), min_size=1, max_size=70))
@settings(max_examples=examples(30))
def test_transcendental_functions_do_not_depend_on_the_batch(values: list[float]) -> None:
    column = Column(Type.DOUBLE, True, 0, "x")
    schema = Schema.of(x="double")
    for name in ("exp", "sqrt", "ln"):
        compute = compile_expression(call(name, column))
        whole = compute(Batch.from_rows(schema, [(value,) for value in values], range(len(values)))).values
        single = [compute(Batch.from_rows(schema, [(value,)], [0])).values for value in values]
        assert whole.tobytes() == np.concatenate(single).tobytes()


def test_every_row_of_the_library_can_be_made() -> None:
    for function in LIBRARY:
        assert LIBRARY[function.key] is function
        arguments = tuple(Column(type, True, at, f"c{at}") for at, type in enumerate(function.arguments))
        compile_expression(Call(function.result, True, function.key, arguments))
