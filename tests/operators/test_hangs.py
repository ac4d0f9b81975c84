"""No function of text takes more time than its text is long, or returns a result out of all proportion.

Time is not asserted: each of these took minutes, hours, or never ended when it backtracked.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.protocol import MillraceError, Schema, Type
from millrace.values.batch import Batch
from millrace.values.evaluate import evaluate
from millrace.values.expression import Call, Column
from millrace.values.functions import LIBRARY, patterns, text
from millrace.values.functions.casts import text_to_bigint
from millrace.values.functions.faults import REASONS, Fault, RowFault
from millrace.values.intervals import parse_interval
from tests.oracles.expressions import _like as like_oracle

LONG = "a" * 1_000_000
_TEXTS = tuple(Column(Type.TEXT, True, at, name) for at, name in enumerate("xy"))
JOINED = Call(Type.TEXT, True, next(one.key for one in LIBRARY if (one.name, one.result) == ("||", Type.TEXT)), _TEXTS)


def fault(compute: Any, *arguments: Any) -> Fault:
    with pytest.raises(RowFault) as caught:
        compute(*arguments)
    return caught.value.fault


@pytest.mark.parametrize(
    ("pattern", "value", "found"),
    [
        ("%a" * 20 + "b", "a" * 42, False),
        ("%a" * 20 + "b", LONG, False),
        ("%a" * 20 + "b", LONG + "b", True),
        ("%a_" * 20 + "b", "a" * 42, False),
        ("%a_" * 20 + "b", "a" * 100_000, False),
        ("%" + "_" * 500 + "b%", "a" * 10_000, False),
        ("%" * 10_000 + "b", LONG, False),
        ("%ab" * 1_000 + "%", "ab" * 100_000, True),
    ],
)
def test_like(pattern: str, value: str, found: bool) -> None:
    assert text.like(pattern)(value) is found


@pytest.mark.parametrize(
    "pattern", ["^(a|a)*$", "(a+)+$", "(a*)*b", "(x+x+)+y", "^(([a-z])+.)+[A-Z]([a-z])+$", "(a|aa)+$"]
)
def test_regular_expressions(pattern: str) -> None:
    value = "a" * 100_000 + "!"
    text.regexp_like(pattern)(value)
    text.regexp_substr(pattern)(value)
    text.regexp_replace(pattern, "b")(value)
    text.ilike("%a" * 20 + "b")(value)


def test_all_matches_cost_what_a_row_may_cost() -> None:
    assert text.regexp_replace("a", "b", "g")("a" * 10_000) == "b" * 10_000
    assert fault(text.regexp_replace("a*b|a", "c", "g"), "a" * 100_000) is Fault.TOO_MUCH
    assert fault(text.regexp_substr("a*b|a", 1, 90_000), "a" * 100_000) is Fault.TOO_MUCH
    assert fault(text.regexp_like("(a?){900}(b)"), "a" * 200_000) is Fault.TOO_MUCH


def test_a_pattern_of_any_size_is_refused_before_it_is_built() -> None:
    assert fault(text.regexp_like, "((((a{30}){30}){30}){30})") is Fault.BAD_PATTERN
    assert fault(text.regexp_like, "a|" * 2_000_000) is Fault.BAD_PATTERN


def test_results_are_bounded() -> None:
    value = "a" * 10_000
    assert fault(text.replace, value, "a", value) is Fault.TOO_LONG
    assert fault(text.regexp_replace("a", value, "g"), value) is Fault.TOO_LONG
    most = "a" * patterns.MOST_RESULT
    joined = evaluate(JOINED, Batch.from_rows(Schema.of(x="text", y="text"), [(most, "b"), (most[1:], "b")], [0, 0]))
    assert joined.error is not None
    assert joined.error.rows.tolist() == [True, False]
    assert joined.error.reason == REASONS[Fault.TOO_LONG]
    assert len(joined.values[1]) == patterns.MOST_RESULT
    assert text.replace(LONG, "a", "") == ""


def test_long_arguments_of_other_functions() -> None:
    many = "".join(map(chr, range(32, 50_000)))
    assert text.btrim(chr(49_999) * 200_000, many) == ""
    assert text.ltrim(chr(49_999) * 1_000 + "\U0001f600x", many) == "\U0001f600x"
    assert text.rtrim("\U0001f600x" + chr(49_999) * 1_000, many) == "\U0001f600"
    assert text.split_part("a," * 1_000_000, ",", 1) == "a"
    assert text.split_part("a,b", ",", 2) == "b"
    assert text.split_part("a,b", ",", 3) == ""
    assert text.split_part("a,b,c", ",", 2) == "b"
    assert text.split_part("a,b,c", ",", -1) == "c"


@pytest.mark.parametrize("value", [" " * 100_000 + "x", "1" * 100_000, "1" * 100_000 + " s", "0." + "1" * 5_000 + " s"])
def test_an_interval_that_is_none_is_refused_at_once(value: str) -> None:
    with pytest.raises(MillraceError, match="expected an interval"):
        parse_interval(value)


def test_a_number_that_is_none_is_refused_at_once() -> None:
    from millrace.values.functions.casts import _DOUBLE

    assert _DOUBLE.fullmatch("1" * 100_000 + "x") is None
    assert fault(text_to_bigint, "1" * 1_000_000) is Fault.NOT_BIGINT


# -- the same answers as before ----------------------------------------------------------------------------------------


@given(st.text("ab_%\\é", max_size=8), st.text("abé%_\\\n", max_size=10))
@example("%a_b%", "xaybz")
@example("a%a", "a")
@example("_%_", "a")
@example("%__%", "é")
def test_like_agrees_with_the_oracle(pattern: str, value: str) -> None:
    try:
        matches = text.like(pattern)
    except RowFault:
        return
    assert matches(value) == like_oracle(value, pattern, result=Type.BOOLEAN)
    assert text.ilike(pattern)(value) == like_oracle(value.lower(), pattern.lower(), result=Type.BOOLEAN)


SIMPLE = st.recursive(
    st.sampled_from(["a", "b", "é", ".", "[ab]", "^", "$", "\\."]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join).map("({})".format),
        inner.map("(?:{})*".format),
        inner.map("({})?".format),
    ),
    max_leaves=6,
)


@given(SIMPLE, st.text("abé.", max_size=8))
def test_patterns_agree_with_pythons(pattern: str, value: str) -> None:
    python = re.compile(pattern, re.DOTALL)
    found = python.search(value)
    assert text.regexp_like(pattern)(value) == (found is not None)
    assert text.regexp_substr(pattern)(value) == (found and found[0])


def test_lone_surrogates_and_positions_are_characters() -> None:
    assert text.regexp_like("b")("\ud800b") is True
    assert text.regexp_substr(".", 2)("éb") == "b"
    assert text.regexp_substr(".", 9)("éb") is None
    assert text.regexp_replace("é*", "-", "g")("aéb") == "-a--b-"
    assert text.regexp_like("a b # c", "x")("ab") is True
    assert text.regexp_like("[ #]a", "x")("#a") is True
    assert text.regexp_like("^b", "n")("a\nb") is True
    assert text.regexp_like("a.b", "n")("a\nb") is False


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?=a)b", "lookahead and lookbehind are not available"),
        ("(?<!a)b", "lookahead and lookbehind are not available"),
        (r"(a)\1", "references back to a group are not available"),
        ("a++", "possessive and atomic matching are not available"),
        ("(?>a)", "possessive and atomic matching are not available"),
        ("a{2000}", "a repetition is at most 1000"),
        (r"a\Z", r"write \z for the end of the text"),
        ("(", "missing )"),
    ],
)
def test_missing_syntax_is_named(pattern: str, words: str) -> None:
    with pytest.raises(patterns.PatternFault) as caught:
        text.regexp_like(pattern)
    assert words in caught.value.detail
    assert "RE2" in caught.value.detail
