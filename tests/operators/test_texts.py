"""Columns of texts against lists of Python's strings, compiled and not."""

from __future__ import annotations

from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millrace.engine import saving
from millrace.operators.aggregate.groups import Keys
from millrace.protocol import Type
from millrace.values import text_cells, text_index, texts
from millrace.values.aggregates import accumulator
from millrace.values.aggregates.accumulator import Compared
from millrace.values.batch import Values, column_from, column_of, listed
from millrace.values.functions.text import SHORT_PART, Part
from millrace.values.text_cells import TextCells
from millrace.values.text_index import TextIndex
from millrace.values.texts import ANYWHERE, ENDS, STARTS, WHOLE, Texts, as_texts, texts_at, texts_from
from tests.depth import examples
from tests.kernels import both_ways

LETTERS = st.sampled_from("aAbzÄß€𝄞\x00\x7f \ud800%_")
TEXTS = st.text(LETTERS, max_size=12) | st.sampled_from(["", "a", "abcdefgh", "abcdefghi", "ab", "abcdefgg"])
LISTS = st.lists(TEXTS, max_size=12)


@pytest.fixture
def module(kernel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "kernel", kernel)
    monkeypatch.setattr(text_index, "kernel", kernel)
    monkeypatch.setattr(text_cells, "kernel", kernel)


def generated(many: int) -> Any:
    checks = [HealthCheck.function_scoped_fixture]
    return settings(max_examples=examples(many), suppress_health_check=checks, deadline=None)


def column(values: list[Any], binary: bool, before: int = 0) -> Texts:
    """A column that is a part of a larger one."""
    pad = [b"pad" if binary else "päd"] * before
    found: Texts = texts_from([*pad, *values, *pad], binary)[before : before + len(values)]
    return found


def spelt(values: list[str], binary: bool) -> list[Any]:
    return [value.encode("utf-8", "surrogatepass") for value in values] if binary else values


@both_ways("texts")
@pytest.mark.usefixtures("module")
@given(given_=LISTS, binary=st.booleans(), before=st.integers(0, 2), data=st.data())
@generated(200)
def test_a_column_is_like_a_list(
    kernel: ModuleType, given_: list[str], binary: bool, before: int, data: st.DataObject
) -> None:
    values = spelt(given_, binary)
    texts_ = column(values, binary, before)
    count = len(values)
    assert texts_.tolist() == list(texts_) == np.asarray(texts_).tolist() == values
    assert len(texts_) == texts_.size == count
    assert [texts_.item(at) for at in range(count)] == values
    start, stop = data.draw(st.integers(-3, 14)), data.draw(st.integers(-3, 14))
    assert texts_[start:stop].tolist() == values[start:stop]
    assert texts_[::-2].tolist() == values[::-2]
    mask = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    assert texts_[np.array(mask, bool)].tolist() == [value for value, there in zip(values, mask, strict=True) if there]
    rows = data.draw(st.lists(st.integers(-count, count - 1), max_size=8)) if count else []
    assert texts_[np.array(rows, np.int64)].tolist() == [values[row] for row in rows]
    with pytest.raises(IndexError):
        texts_[np.array([0, count])]
    other = spelt(data.draw(st.lists(TEXTS, min_size=count, max_size=count)), binary)
    if count:
        both = [value if there else more for value, more, there in zip(values, other, mask, strict=True)]
        assert np.where(np.array(mask), texts_, column(other, binary, 1)).tolist() == both
        one = [value if there else other[0] for value, there in zip(values, mask, strict=True)]
        assert np.where(np.array(mask), texts_, other[0]).tolist() == one
        assert np.where(~np.array(mask), other[0], texts_).tolist() == one
    assert np.concatenate([texts_, column(other, binary, 1), texts_]).tolist() == [*values, *other, *values]
    assert saving.unpack(saving.pack(texts_)).tolist() == values
    assert saving.pack(texts_) == saving.pack(texts_from(values, binary))
    times = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    assert np.repeat(texts_, times).tolist() == np.repeat(np.asarray(texts_), times).tolist()
    assert np.unique(texts_, return_inverse=True)[1].tolist() == [sorted(set(values)).index(one) for one in values]


@both_ways("texts")
@pytest.mark.usefixtures("module")
@given(pairs=st.lists(st.tuples(TEXTS, TEXTS), max_size=10), one=TEXTS, binary=st.booleans())
@example([("abcdefgh", "abcdefgi"), ("ab", "abc"), ("\uffff", "\U00010000"), ("", "")], "ab", False)
@generated(200)
def test_columns_compare_as_code_points(
    kernel: ModuleType, pairs: list[tuple[str, str]], one: str, binary: bool
) -> None:
    left, right = (spelt([pair[side] for pair in pairs], binary) for side in (0, 1))
    constant = spelt([one], binary)[0]
    a, b = column(left, binary, 1), column(right, binary, 2)
    for compare in (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal):
        python = getattr(__import__("operator"), {"equal": "eq", "not_equal": "ne"}.get(
            compare.__name__, compare.__name__.replace("less_equal", "le").replace("greater_equal", "ge")
            .replace("less", "lt").replace("greater", "gt"),
        ))  # fmt: skip
        expected = [python(x, y) for x, y in zip(left, right, strict=True)]
        assert compare(a, b).tolist() == expected
        assert compare(a, np.asarray(b)).tolist() == expected
        assert compare(np.asarray(a), b).tolist() == expected
        for value in (constant, np.array(constant, object), column([constant], binary)):
            assert compare(a, value).tolist() == [python(x, constant) for x in left]
        assert compare(np.array(constant, object), a).tolist() == [python(constant, x) for x in left]


@both_ways("texts")
@pytest.mark.usefixtures("module")
@given(batches=st.lists(st.lists(st.none() | TEXTS, max_size=40), max_size=6), binary=st.booleans())
@generated(200)
def test_an_index_numbers_texts_as_they_first_appear(
    kernel: ModuleType, batches: list[list[str | None]], binary: bool
) -> None:
    index = TextIndex(binary)
    known: dict[Any, int] = {}
    type = Type.BYTES if binary else Type.TEXT
    for batch in batches:
        given_ = [value if value is None else spelt([value], binary)[0] for value in batch]
        values, mask = column_from(type, given_)
        expected = [known.setdefault(value, len(known)) for value in given_]
        assert index.find(values, mask).tolist() == expected
        restored = TextIndex(binary)
        restored.restore(saving.unpack(saving.pack(index.save())))
        assert saving.pack(restored.save()) == saving.pack(index.save())
        index = restored if len(batch) % 2 else index
        assert index.count == len(known)
        assert listed(*index.decode(0, index.count)) == list(known)
        assert listed(*index.decode_at(np.array(expected, np.int64))) == given_
    assert listed(*index.decode_at(np.array([-1, *range(index.count)]))) == [None, *known]


@given(batches=st.lists(st.lists(st.tuples(st.none() | TEXTS, st.integers(0, 2)), min_size=1, max_size=9), max_size=4))
@settings(max_examples=examples(100))
def test_keys_with_texts_are_numbered_as_rows_first_appear(batches: list[list[tuple[str | None, int]]]) -> None:
    wide, single = Keys([Type.TEXT, Type.BIGINT], ()), Keys([Type.TEXT], ())
    pairs: dict[Any, int] = {}
    alone: dict[Any, int] = {}
    for batch in batches:
        (values, mask), (numbers, _) = (column_from(type, [row[at] for row in batch])
                                        for at, type in enumerate([Type.TEXT, Type.BIGINT]))  # fmt: skip
        expected = [pairs.setdefault(row, len(pairs)) for row in batch]
        assert wide.find([values, numbers], [mask, None]).tolist() == expected
        firsts = [alone.setdefault(row[0], len(alone)) for row in batch]
        assert single.find([values], [mask]).tolist() == firsts
        one = values[:1], None if mask is None else mask[:1]
        assert single.find_one([one[0]], [one[1]], [0]) == firsts[0]
        assert wide.find_one([one[0], numbers[:1]], [one[1], None], [0, 1]) == expected[0]
    assert rows_of(wide) == list(pairs)
    assert rows_of(single) == [(value,) for value in alone]
    kept = np.arange(len(alone))[::-2].copy()
    assert rows_of(single.kept(kept)) == [(value,) for value in list(alone)[::-2]]


def rows_of(keys: Keys) -> list[Any]:
    return list(zip(*(listed(*one) for one in keys.decode(0, keys.count)), strict=True)) if keys.count else []


def test_keys_of_version_0_2_are_read() -> None:
    """Its states have texts in a list by code, and -1 for null."""
    single, wide = Keys([Type.TEXT], ()), Keys([Type.TEXT, Type.BIGINT], ())
    single.restore([3, np.array([0, -1, 1]), [["a", "b"]]])
    assert rows_of(single) == [("a",), (None,), ("b",)]
    more, there = column_from(Type.TEXT, ["b", None, "a", "c"])
    assert single.find([more], [there]).tolist() == [2, 1, 0, 3]
    wide.restore([3, np.array([0, 5, -1, 6, 1, 5]), [["a", "b"], None]])
    assert rows_of(wide) == [("a", 5), (None, 6), ("b", 5)]
    values, mask = column_from(Type.TEXT, [None, "b"])
    assert wide.find([values, np.array([6, 5])], [mask, None]).tolist() == [1, 2]


def test_texts_are_checked_one_by_one() -> None:
    data = np.frombuffer("aé€".encode(), np.uint8)

    def cut(*places: tuple[int, int]) -> Texts:
        starts, lengths = (np.array([place[at] for place in places]) for at in (0, 1))
        return texts_at(data, starts, lengths, False)

    cut((0, 1), (1, 2), (3, 0), (3, 3)).check()
    for bad in ([(0, 2)], [(0, 2), (2, 1)], [(1, 1), (2, 1)], [(4, 2)]):
        with pytest.raises(UnicodeDecodeError):
            cut(*bad).check()


def test_arrays_of_strings_stand_for_columns() -> None:
    objects: Values = np.array(["a", "ä", ""], object)
    assert as_texts(objects, False).tolist() == objects.tolist()
    assert as_texts(column_of(Type.BYTES, [b"\xff", b""]), True).tolist() == [b"\xff", b""]


@both_ways("texts")
@pytest.mark.usefixtures("module")
@given(given_=LISTS, parts=st.lists(TEXTS | st.just("abcd" * 20), min_size=1, max_size=3))
@example(["abcd" * 20 + "x", "abcd" * 19], ["abcd" * 20])
@generated(200)
def test_loops_over_columns_agree_with_python(kernel: ModuleType, given_: list[str], parts: list[str]) -> None:
    texts_ = column(given_, False, 1)
    assert texts_.characters().tolist() == [len(value) for value in given_]
    assert texts_.lengths.tolist() == [len(value) for value in spelt(given_, True)]
    assert texts_.is_ascii() == all(value.isascii() for value in given_)
    if texts_.is_ascii():
        assert texts_.folded(b"AZ").tolist() == [value.lower() for value in given_]
        assert texts_.folded(b"az").tolist() == [value.upper() for value in given_]
    for part in parts:
        for place in (STARTS, ENDS, ANYWHERE, WHOLE):
            test = Part(part, place)
            found = test.over(texts_)
            assert (found is None) == (place == ANYWHERE and len(part.encode("utf-8", "surrogatepass")) > SHORT_PART)
            assert found is None or found.tolist() == [test(value) for value in given_]
        assert texts_.followed(column([part], False)).tolist() == [value + part for value in given_]
        assert column([part], False).followed(texts_).tolist() == [part + value for value in given_]
    assert texts_.followed(texts_).tolist() == [value + value for value in given_]
    index = TextIndex(binary=False)
    index.find(column_of(Type.TEXT, parts), None)
    assert index.contains(cast(Values, texts_)).tolist() == [value in parts for value in given_]


@both_ways("texts")
@pytest.mark.usefixtures("module")
@given(data=st.data(), binary=st.booleans())
@generated(200)
def test_cells_are_like_an_array_of_strings(kernel: ModuleType, data: st.DataObject, binary: bool) -> None:
    cells, expected = TextCells(binary, 3), np.full(3, b"" if binary else "", object)
    for _ in range(data.draw(st.integers(0, 8))):
        count = len(expected)
        places = data.draw(st.lists(st.integers(0, count - 1), max_size=5))
        long = st.just("0123456789" * 9)
        values = spelt(data.draw(st.lists(TEXTS | long, min_size=len(places), max_size=len(places))), binary)
        match data.draw(st.sampled_from(["many", "one", "cell", "slice", "clear", "resize", "copy"])):
            case "many":
                cells[np.array(places, np.int64)] = column(values, binary, 1)
                expected[np.array(places, np.int64)] = np.array(values, object)
            case "one" if places:
                cells[np.array(places)] = values[0]
                expected[np.array(places)] = values[0]
            case "cell" if places:
                cells[places[0]] = values[0]
                expected[places[0]] = values[0]
            case "slice":
                stop = min(len(values), count)
                cells[:stop] = column(values[:stop], binary)
                expected[:stop] = values[:stop]
            case "clear":
                cells[np.array(places, np.int64)] = b"" if binary else ""
                expected[np.array(places, np.int64)] = b"" if binary else ""
            case "resize":
                room = data.draw(st.integers(1, 9))
                cells = cells.resize(room)
                expected = np.array([*expected[:room], *[b"" if binary else ""] * (room - count)], object)
            case "copy":
                cells = cells.copy()
        assert cells[:].tolist() == cells.tolist() == expected.tolist()
        assert [cells[at] for at in range(len(expected))] == expected.tolist()
        assert [cells.item(at) for at in range(-1, len(expected))] == [expected[-1], *expected.tolist()]
        assert cells[np.array(places, np.int64) % len(expected)].tolist() == [
            expected[place % len(expected)] for place in places
        ]


@both_ways("texts")
@pytest.mark.usefixtures("module")
def test_what_cells_had_before_is_swept(kernel: ModuleType) -> None:
    cells = TextCells(binary=False, count=10)
    for number in range(200):
        cells[np.arange(10)] = column([f"{number} {at} {'x' * 40}" for at in range(10)], False)
    assert cells[3:5].tolist() == [f"199 {at} {'x' * 40}" for at in (3, 4)]
    assert cells.nbytes <= 10 * 12 + 2 * len(cells[:].packed)


ROWS = st.lists(st.tuples(st.integers(0, 3), TEXTS, st.integers(0, 5), st.integers(0, 3)), max_size=12)


@both_ways("texts")
@given(batches=st.lists(ROWS, max_size=4), greatest=st.booleans(), alone=st.booleans(), data=st.data())
@generated(200)
def test_the_least_and_the_greatest_text(
    kernel: ModuleType, batches: list[list[Any]], greatest: bool, alone: bool, data: st.DataObject
) -> None:
    """Against a dict; of equal texts the earliest, of equally early ones the first to arrive."""

    def made() -> Compared:
        found = Compared(Type.TEXT, None, greatest) if alone else Compared(Type.BIGINT, Type.TEXT, greatest)
        found.reserve(4)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulator, "kernel", kernel)
        best: dict[int, tuple[str, int, int]] = {}
        state = made()
        for rows in batches:
            slots, ts = (np.array([row[at] for row in rows], np.int64) for at in (0, 3))
            values = column_of(Type.TEXT, [row[1] for row in rows])
            numbers = np.array([row[2] for row in rows], np.int64)
            columns = [values] if alone else [numbers, values]
            if data.draw(st.booleans()):
                state.update(slots, columns, ts)
            else:
                other = made()
                other.update(slots, columns, ts)
                state.merge(other, np.arange(4), slice(0, 4))
            for slot, text, number, time in rows:
                known = best.get(slot)
                if known is None or (text != known[0] and (text > known[0]) == greatest) or (
                    text == known[0] and time < known[1]
                ):  # fmt: skip
                    best[slot] = text, time, number
            if data.draw(st.booleans()):
                restored = made()
                restored.restore(saving.unpack(saving.pack(state.save(4))))
                assert saving.pack(restored.save(4)) == saving.pack(state.save(4))
                state = restored
        finished, valid, faults = state.finish(np.arange(4))
        assert faults is None
        expected = [None if slot not in best else best[slot][0 if alone else 2] for slot in range(4)]
        assert listed(finished, valid) == expected
        listed_ = [None if slot not in best else [*best[slot][:2], best[slot][0 if alone else 2]] for slot in range(4)]
        old = made()
        old.restore(listed_)  # as version 0.2 saved it
        assert saving.pack(old.save(4)) == saving.pack(state.save(4))
        state.clear(np.array(sorted(best), np.int64))
        assert listed(*state.finish(np.arange(4))[:2]) == [None] * 4
