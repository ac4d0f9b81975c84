"""User functions over random columns, compared with single calls, and the results that are refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.functions import DECLARED, function
from millrace.protocol import Schema
from millrace.sql import parse
from millrace.sql import syntax as s
from millrace.sql.binder import Binder, Relation
from millrace.sql.functions import install, uninstall
from millrace.values.batch import Batch
from millrace.values.evaluate import Computed, evaluate
from millrace.values.functions.faults import MOST_TEXT
from tests.depth import examples

SCHEMA = Schema.of(a="bigint", b="bigint", x="double", t="text")
LARGE = 2**63 - 1


@function("bigint", "bigint", returns="bigint")
def picky(a: int, b: int) -> int | None:
    if a == 3:
        raise ValueError("not three")
    return None if b == 0 else a * b


@function("bigint", "bigint", returns="bigint", vectorised=True)
def picky_arrays(a: Any, b: Any) -> Any:
    if (a == 3).any():
        raise ValueError("not three")
    return np.ma.MaskedArray(a * b, b == 0)


@function("text", "bigint", returns="text", nulls=True)
def spelt(t: str | None, a: int | None) -> str:
    return f"{t}{a}"


@function("text", "bigint", returns="text", nulls=True, vectorised=True)
def spelt_arrays(t: Any, a: Any) -> list[str]:
    return [f"{x}{y}" for x, y in zip(t.tolist(), a.tolist(), strict=True)]


class Wrong:
    """The expected result of the function below."""

    value: Any = None


def of_type(type: str, vectorised: bool) -> Callable[..., Any]:
    @function("bigint", returns=type, name=f"wrong_{type}{'s' if vectorised else ''}", vectorised=vectorised)
    def wrong(a: Any) -> Any:
        return Wrong.value(a) if callable(Wrong.value) else Wrong.value

    return wrong


TYPES = ["boolean", "bigint", "double", "text", "bytes", "timestamp", "interval"]
ALL: list[Any] = [picky, picky_arrays]
ALL += [spelt, spelt_arrays]
ALL += [of_type(type, many) for type in TYPES for many in (False, True)]


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    rows = [row for target in ALL for row in vars(target)[DECLARED]]
    install(rows)
    yield
    uninstall(rows)


def compute(sql: str, rows: list[tuple[Any, ...]]) -> Computed:
    body = parse(f"SELECT {sql}")[0].body
    assert isinstance(body, s.SelectStatement)
    select = body.query.first
    assert isinstance(select, s.Select)
    (item,) = select.items
    assert isinstance(item, s.Item)
    bound = Binder(sql, Relation("s", SCHEMA, "s", True, None)).bind(item.expression)
    return evaluate(bound, Batch.from_rows(SCHEMA, rows, list(range(len(rows)))))


def outcomes(computed: Computed) -> list[Any]:
    """The values: None for null, "failed" for a row that failed."""
    values: list[Any] = computed.values.tolist()
    if computed.valid is not None:
        values = [value if there else None for value, there in zip(values, computed.valid.tolist(), strict=True)]
    if computed.error is not None:
        failed = computed.error.rows.tolist()
        values = ["failed" if bad else value for value, bad in zip(values, failed, strict=True)]
    return values


small = st.none() | st.integers(-1, 4)
many_rows = st.lists(
    st.tuples(small, small, st.none() | st.floats(-3, 3), st.none() | st.sampled_from("ab")), max_size=9
)


@given(many_rows)
@settings(max_examples=examples(200), deadline=None)
def test_functions_agree_with_calling_them_one_by_one(rows: list[tuple[Any, ...]]) -> None:
    wanted: list[Any] = []
    for a, b, _, _ in rows:
        wanted.append(None if a is None or b is None else "failed" if a == 3 else None if b == 0 else a * b)
    assert outcomes(compute("picky(a, b)", rows)) == wanted
    assert outcomes(compute("picky_arrays(a, b)", rows)) == wanted
    told = [f"{t}{a}" for a, _, _, t in rows]
    assert outcomes(compute("spelt(t, a)", rows)) == told
    assert outcomes(compute("spelt_arrays(t, a)", rows)) == told
    # The outer function is not called for a row whose argument failed.
    twice = ["failed" if value == "failed" or value == 3 else value for value in wanted]
    assert outcomes(compute("picky(picky_arrays(a, b), 1)", rows)) == twice
    assert outcomes(compute("CASE WHEN a <> 3 THEN picky(a, b) ELSE 0 END", rows)) == [
        0 if a is None or a == 3 else None if b is None or b == 0 else a * b for a, b, _, _ in rows
    ]


def test_the_reason_is_the_raised_error() -> None:
    error = compute("picky(a, b)", [(3, 1, None, None)]).error
    assert error is not None
    assert error.reason == "picky() failed: ValueError: not three"


GOOD: dict[str, list[Any]] = {
    "boolean": [True, np.True_],
    "bigint": [5, np.int32(5), LARGE, -LARGE - 1],
    "double": [1.5, 2, np.float32(1.5), np.int64(3)],
    "text": ["", "é"],
    "bytes": [b"x", bytearray(b"y")],
    "timestamp": [0, LARGE],
    "interval": [-5],
}
BAD: dict[str, list[Any]] = {
    "boolean": [1, "true", 0.0],
    "bigint": [1.0, True, "1", LARGE + 1, b"1"],
    "double": [True, "1", float("nan"), float("inf"), 1j],
    "text": [b"x", 5, "\ud800"],
    "bytes": ["x", 5],
    "timestamp": [1.5, "2026-01-01", LARGE + 1],
    "interval": [False, 2.0],
}


@pytest.mark.parametrize(("type", "value"), [(type, value) for type in TYPES for value in GOOD[type]])
def test_values_of_the_declared_type_pass(type: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bytes(value) if type == "bytes" else value
    for suffix, given_back in (("", value), ("s", lambda a: [value] * len(a))):
        monkeypatch.setattr(Wrong, "value", given_back)
        found = outcomes(compute(f"wrong_{type}{suffix}(a)", [(1, 1, None, None)]))
        assert found == [expected]


@pytest.mark.parametrize(("type", "value"), [(type, value) for type in TYPES for value in BAD[type]])
def test_any_other_value_fails_its_row(type: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for suffix, given_back in (("", value), ("s", lambda a: [value] * len(a))):
        monkeypatch.setattr(Wrong, "value", given_back)
        assert outcomes(compute(f"wrong_{type}{suffix}(a)", [(1, 1, None, None)])) == ["failed"]


@pytest.mark.parametrize(
    ("type", "value", "words"),
    [
        ("bigint", lambda a: a[:-1], "expected an array of 3 values, one for each row, got 2"),
        ("bigint", lambda a: a.sum(), "expected an array of 3 values"),
        ("bigint", lambda a: np.array([a]), "got an array of the shape (1, 3)"),
        ("bigint", lambda a: a * 1.0, "expected an array of bigint, got float64"),
        ("bigint", lambda a: np.full(3, 2**64 - 1, np.uint64), "64 bits"),
        ("double", lambda a: a > 1, "expected an array of double, got bool"),
        ("boolean", lambda a: a, "expected an array of boolean, got int64"),
        ("timestamp", lambda a: a.astype("M8[us]"), "expected an array of timestamp, got datetime64"),
        ("bigint", lambda a: None, "expected an array of 3 values"),
    ],
)
def test_arrays_of_a_wrong_shape_or_kind_fail_their_rows(
    type: str, value: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wrong, "value", value)
    computed = compute(
        f"wrong_{type}s(a)", [(1, 0, None, None), (2, 0, None, None), (None, 0, None, None), (4, 0, None, None)]
    )
    assert outcomes(computed) == ["failed", "failed", None, "failed"]
    assert computed.error is not None
    assert words in computed.error.reason


def test_a_double_that_is_not_finite_costs_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wrong, "value", lambda a: np.where(a == 2, np.nan, 1 / (a - 3)))
    assert outcomes(compute("wrong_doubles(a)", [(a, 0, None, None) for a in (1, 2, 3, 4)])) == [
        -0.5,
        "failed",
        "failed",
        1.0,
    ]


@given(st.lists(st.sampled_from([0, 1, 2, 3, 4, 5]), max_size=12))
def test_each_row_is_called_once_whatever_the_others_do(numbers: list[int]) -> None:
    """Values, nulls, values that do not fit, errors, and the error that ends a loop without being one."""
    called: list[int] = []

    def call(a: int) -> Any:
        called.append(a)
        if a >= 4:
            raise StopIteration if a == 4 else ValueError("five")
        return [a, None, 2**63, True][a]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wrong, "value", call)
        computed = compute("wrong_bigint(a)", [(a, 0, None, None) for a in numbers])
    assert outcomes(computed) == [[0, None, *["failed"] * 4][a] for a in numbers]
    assert called == numbers


def test_a_function_cannot_change_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []

    def grab(a: Any) -> Any:
        kept.append(np.array(a))
        return kept[-1]

    monkeypatch.setattr(Wrong, "value", grab)
    computed = compute("wrong_bigints(a)", [(1, 0, None, None)])
    kept[0][:] = 7
    assert computed.values.tolist() == [1]

    def write(a: Any) -> Any:
        a[:] = 7
        return a

    monkeypatch.setattr(Wrong, "value", write)
    rows = [(1, 0, None, None)]
    assert outcomes(compute("wrong_bigints(a)", rows)) == ["failed"]
    assert outcomes(compute("CASE WHEN wrong_bigints(a) = 7 THEN a ELSE a END", rows)) == ["failed"]


class Silent(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (lambda _: sys.exit(3), "SystemExit: 3"),
        (lambda _: (_ for _ in ()).throw(Silent()), "Silent"),
        (lambda _: (_ for _ in ()).throw(ValueError("two\nlines  " + "x" * 900)), "two lines xxx"),
        (lambda a: 1 // (a - a), "ZeroDivisionError"),
    ],
)
def test_whatever_is_raised_is_one_short_line(raised: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wrong, "value", raised)
    error = compute("wrong_bigint(a)", [(1, 0, None, None)]).error
    assert error is not None
    assert words in error.reason
    assert "\n" not in error.reason
    assert len(error.reason) <= MOST_TEXT
