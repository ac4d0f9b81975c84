"""Random typed expressions and rows for them, with small numbers and the ends of their ranges."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from millrace.protocol import Field, Schema, Type
from millrace.values.expression import TIME, Call, Case, Cast, Column, Constant, Expression
from millrace.values.functions import LIBRARY

B, D, T, O, TS, I = Type.BIGINT, Type.DOUBLE, Type.TEXT, Type.BOOLEAN, Type.TIMESTAMP, Type.INTERVAL  # noqa: E741

SCHEMA = Schema(
    (
        Field("a", B),
        Field("b", B),
        Field("c", B, nullable=False),
        Field("x", D),
        Field("y", D),
        Field("s", T),
        Field("u", T),
        Field("p", O),
        Field("q", O),
        Field("t", TS),
    )
)

# 1900 to 2100: the range of datetime, the oracle's calendar.
_TIMES = st.one_of(
    st.integers(-2_208_988_800_000_000, 4_102_444_800_000_000), st.sampled_from([0, -1, 951_782_400_000_000])
)
VALUES: dict[Type, st.SearchStrategy[Any]] = {
    B: st.one_of(
        st.integers(-4, 4),
        st.sampled_from([2**63 - 1, -(2**63), 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 3_037_000_500]),
        st.integers(-(2**63), 2**63 - 1),
    ),
    D: st.one_of(
        st.sampled_from(
            [0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 1e308, -1e308, 2.0**53, 2.0**63, -(2.0**63), 9007199254740994.0]
        ),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    T: st.one_of(
        st.sampled_from(["", "a", "ab", "%", "a%b", " a ", "12", "-7", "x1", "a_b", "é"]),
        st.text("ab%_\\ ", max_size=6),
    ),
    O: st.booleans(),
    TS: _TIMES,
    I: st.one_of(st.integers(-10, 10), st.integers(-(10**14), 10**14)),
}


def rows(most: int = 12) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    columns = [st.none() | VALUES[field.type] if field.nullable else VALUES[field.type] for field in SCHEMA]
    return st.lists(st.tuples(*columns), min_size=1, max_size=most)


def call(name: str, *arguments: Expression) -> Call:
    """A call of the signature with exactly these argument types."""
    function = LIBRARY.resolve(name, [{argument.type: 0} for argument in arguments])
    assert function is not None, (name, [argument.type for argument in arguments])
    nullable = function.nullable([argument.nullable for argument in arguments])
    return Call(function.result, nullable, function.key, arguments)


_COLUMNS = {
    type: [Column(type, field.nullable, at, field.name) for at, field in enumerate(SCHEMA) if field.type is type]
    for type in Type
}
_TIME = Column(TS, False, TIME, "ts")


@cache
def _leaf(type: Type) -> st.SearchStrategy[Expression]:
    constants = st.builds(lambda value: Constant(type, value is None, value), st.none() | VALUES[type])
    columns = _COLUMNS[type] + ([_TIME] if type is TS else [])
    return st.sampled_from(columns) | constants if columns else constants


_UNITS = st.sampled_from(["second", "minute", "hour", "day", "week", "month", "quarter", "year"])
_FIELDS = {
    B: ["year", "quarter", "month", "day", "hour", "minute", "week", "isoyear", "isodow", "dow", "doy", "microseconds"],
    D: ["second", "epoch"],
}
# A constant pattern that is not valid is refused before the first row, so only columns contain such patterns.
_PATTERNS = st.sampled_from(
    [*_COLUMNS[T], *(Constant(T, False, pattern) for pattern in ["%", "a%", "%b", "%a%", "_", "a\\%b", ""])]
)
_COMPARISONS = ["=", "<>", "<", "<=", ">", ">=", "is distinct from", "is not distinct from"]
_TESTS = ["is null", "is not null", "is true", "is not true", "is false", "is not false"]


def _calls(names: list[str], *arguments: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.builds(call, st.sampled_from(names), *arguments)


@cache
def expressions(type: Type, depth: int = 3) -> st.SearchStrategy[Expression]:
    """Expressions of a type, up to this depth."""
    if depth == 0:
        return _leaf(type)

    def of(pattern: Type) -> st.SearchStrategy[Expression]:
        return expressions(pattern, depth - 1)

    any_type = [
        _calls(["coalesce"], of(type), of(type)),
        _calls(["nullif"], of(type), of(type)),
        _calls(["greatest", "least"], of(type), of(type), of(type)),
        st.builds(lambda test, value, other: Case(type, True, ((test, value),), other), of(O), of(type), of(type)),
    ]
    return st.one_of(_leaf(type), *any_type, *_OF_TYPE[type](of))


def _booleans(of: Any) -> list[st.SearchStrategy[Expression]]:
    comparisons = [
        _calls(_COMPARISONS, of(left), of(right))
        for left, right in [(B, B), (D, D), (B, D), (D, B), (T, T), (O, O), (TS, TS), (I, I)]
    ]
    members = st.lists(st.builds(lambda v: Constant(B, v is None, v), st.none() | VALUES[B]), min_size=1, max_size=12)
    words = st.lists(st.builds(lambda v: Constant(T, v is None, v), st.none() | VALUES[T]), min_size=1, max_size=4)
    return [
        *comparisons,
        _calls(["and", "or"], of(O), of(O)),
        _calls(["and", "or"], of(O), of(O)),
        _calls(["not"], of(O)),
        _calls(_TESTS, of(O)),
        st.builds(lambda value, many: call("in", value, *many), of(B), members),
        st.builds(lambda value, many: call("in", value, *many), of(T), words),
        _calls(["like"], of(T), _PATTERNS),
        _calls(["starts_with"], of(T), of(T)),
        st.builds(lambda value: Cast(O, value.nullable, value), of(B)),
    ]


def _bigints(of: Any) -> list[st.SearchStrategy[Expression]]:
    return [
        _calls(["+", "-", "*", "/", "%"], of(B), of(B)),
        _calls(["+", "-", "*", "/", "%"], of(B), _leaf(B)),
        _calls(["-", "abs", "sign"], of(B)),
        _calls(["length"], of(T)),
        _calls(["position"], of(T), of(T)),
        st.builds(lambda field, time: call(f"extract {field}", time), st.sampled_from(_FIELDS[B]), _leaf(TS)),
        st.builds(lambda value: Cast(B, value.nullable, value), st.one_of(of(O), of(D), of(T), of(TS))),
    ]


def _doubles(of: Any) -> list[st.SearchStrategy[Expression]]:
    return [
        _calls(["+", "-", "*", "/", "%"], of(D), of(D)),
        _calls(["-", "abs", "floor", "ceil", "round", "trunc", "sqrt", "ln", "exp"], of(D)),
        _calls(["power"], of(D), of(D)),
        st.builds(lambda field, time: call(f"extract {field}", time), st.sampled_from(_FIELDS[D]), _leaf(TS)),
        st.builds(lambda value: Cast(D, value.nullable, value), of(B)),
    ]


def _texts(of: Any) -> list[st.SearchStrategy[Expression]]:
    return [
        _calls(["||"], of(T), of(T)),
        _calls(["concat"], of(T), of(T)),
        _calls(["upper", "lower", "btrim"], of(T)),
        _calls(["replace"], of(T), of(T), of(T)),
        _calls(["substring", "left", "right"], of(T), of(B)),
        _calls(["substring"], of(T), of(B), of(B)),
        _calls(["split_part"], of(T), of(T), of(B)),
        st.builds(lambda value: Cast(T, value.nullable, value), st.one_of(of(B), of(O), _leaf(TS))),
    ]


def _timestamps(of: Any) -> list[st.SearchStrategy[Expression]]:
    return [
        _calls(["+", "-"], of(TS), of(I)),
        _calls(["+"], of(I), of(TS)),
        st.builds(lambda unit, time: call("date_trunc", Constant(T, False, unit), time), _UNITS, _leaf(TS)),
        st.builds(lambda value: Cast(TS, value.nullable, value), of(B)),
    ]


def _intervals(of: Any) -> list[st.SearchStrategy[Expression]]:
    return [
        _calls(["+", "-"], of(I), of(I)),
        _calls(["-"], of(TS), of(TS)),
        _calls(["*"], of(I), of(B)),
        _calls(["*"], of(B), of(I)),
        _calls(["*"], of(I), of(D)),
        _calls(["/"], of(I), of(B)),
        _calls(["/"], of(I), of(D)),
        _calls(["-", "abs"], of(I)),
    ]


_OF_TYPE = {O: _booleans, B: _bigints, D: _doubles, T: _texts, TS: _timestamps, I: _intervals}
