"""User aggregates in every window, with random batches, saves and restores, compared with calls over all rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.functions import DECLARED, aggregate
from millrace.operators.aggregate.spec import AggregateCall, AggregateSpec
from millrace.operators.frame.windows import RowWindow, SessionWindow, TimeWindow
from millrace.protocol import Type
from millrace.sql.functions import install, uninstall
from millrace.values.aggregates import AGGREGATES
from millrace.values.aggregates.user import plain
from tests.operators.test_aggregate import (
    COLUMNS,
    NAMES,
    SETTINGS,
    Harness,
    column,
    overlapping,
    row,
    rows_strategy,
    same,
)
from tests.oracles import windows as oracle


def product(name: str, *, merged: bool, vectorised: bool) -> Any:
    """The values, the sum of their doubles, and their number; 3 is refused."""

    class Sum:
        @staticmethod
        def init() -> Any:
            return [0.0, 0, ()]

        @staticmethod
        def iterate(state: Any, i: Any, d: Any) -> Any:
            values = np.atleast_1d(i).tolist()
            if 3 in values:
                raise ValueError("not three")
            state[0] += float(np.sum(d))
            state[1] += len(values)
            return [*state[:2], (*state[2], *values)]

        @staticmethod
        def terminate(state: Any) -> Any:
            return None if not state[1] else f"{state[1]} {sorted(state[2])} {state[0]:.3f}"

    if merged:
        Sum.merge = staticmethod(lambda state, other: [left + right for left, right in zip(state, other, strict=True)])  # type: ignore[attr-defined]
    return aggregate("bigint", "double", returns="text", name=name, vectorised=vectorised)(Sum)


@aggregate(returns="bigint")
class tally:  # noqa: N801
    @staticmethod
    def init() -> int:
        return 0

    @staticmethod
    def iterate(state: int) -> int:
        return state + 1

    @staticmethod
    def terminate(state: int) -> int:
        return state

    @staticmethod
    def merge(state: int, other: int) -> int:
        return state + other


@aggregate("bigint", returns="bigint")
class unsavable:  # noqa: N801
    @staticmethod
    def init() -> set[int]:
        return set()

    @staticmethod
    def iterate(state: set[int], value: int) -> set[int]:
        return {*state, value}

    @staticmethod
    def terminate(state: set[int]) -> int:
        return len(state)


FORMS = {
    f"product{'_merged' if merged else ''}{'_many' if many else ''}": (merged, many)
    for merged in (False, True)
    for many in (False, True)
}
MADE = [product(name, merged=merged, vectorised=many) for name, (merged, many) in FORMS.items()]


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    rows = [row for target in (*MADE, tally, unsavable) for row in vars(target)[DECLARED]]
    install(rows)
    yield
    uninstall(rows)


def call(name: str, *arguments: str, only: bool = False, distinct: bool = False) -> AggregateCall:
    key = f"{name}({', '.join(str(COLUMNS[argument]) for argument in arguments)})"
    filtered = column("b") if only else None
    return AggregateCall(AGGREGATES[key].result, True, key, tuple(map(column, arguments)), distinct, filtered)


def recounted(only: bool, distinct: bool) -> oracle.Aggregate:
    def compute(rows: Any) -> Any:
        pairs = [(row["i"], row["d"]) for row in rows if row["b"] or not only]
        pairs = [(i, d) for i, d in pairs if i is not None and d is not None]
        if distinct:
            pairs = list(dict.fromkeys(pairs))
        if any(i == 3 for i, _ in pairs):
            raise oracle.Failed
        values = sorted(i for i, _ in pairs)
        return f"{len(pairs)} {values} {sum(d for _, d in pairs):.3f}" if pairs else None

    return compute


def tallied(only: bool) -> oracle.Aggregate:
    return lambda rows: sum(1 for row in rows if row["b"] or not only)


windows = st.one_of(
    st.builds(TimeWindow, st.integers(1, 25), st.integers(1, 30), st.integers(-7, 7)),
    st.builds(lambda size: TimeWindow(size, size), st.integers(1, 20)),
    st.builds(SessionWindow, st.integers(1, 20)),
    st.builds(RowWindow, st.integers(1, 9), st.integers(1, 9)),
)


def tame(rows: Any) -> Any:
    """Doubles whose sums are all exact."""
    return [(ts, (values[0], None if values[1] is None else round(values[1] % 8 * 4) / 4, *values[2:]))
            for ts, values in rows]  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
@SETTINGS
@given(data=st.data())
def test_user_aggregates_agree_with_one_call_over_all_rows(name: str, data: st.DataObject) -> None:
    rows = tame(data.draw(rows_strategy))
    window = data.draw(windows)
    keys = data.draw(st.lists(st.sampled_from(NAMES), max_size=1))
    only, distinct = data.draw(st.booleans()), data.draw(st.booleans())
    calls = (("u", call(name, "i", "d", only=only, distinct=distinct)), ("t", call("tally", only=only)))
    bounds: Any = (("a", "start"), ("z", "end"))
    spec = AggregateSpec(window, tuple((key, column(key)) for key in keys), calls, bounds)
    harness = Harness(spec)
    overlapping(data, harness, rows, data.draw(st.sampled_from([1, 3, 1 << 30])))
    harness.work(1 << 30)
    promised = harness.output.promise
    harness.end()
    numbered = [{"ts": ts, "place": at, **dict(zip(NAMES, row, strict=True))} for at, (ts, row) in enumerate(rows)]
    wanted: Any
    aggregates = [recounted(only, distinct), tallied(only)]
    match window:
        case SessionWindow():
            wanted = oracle.sessions(numbered, keys, aggregates, window.gap_us)
        case RowWindow():
            places = [(at, ts) for at, (ts, _) in enumerate(rows)]
            options: Any = {"axis": "place", "everything": places, "promised": promised}
            wanted = oracle.time_windows(numbered, keys, aggregates, window.size, window.slide, **options)
        case _:
            wanted = oracle.time_windows(numbered, keys, aggregates, window.size_us, window.slide_us, window.offset_us)
    same(list(zip(harness.rows, harness.times, strict=True)), wanted, len(keys))


@pytest.mark.parametrize("name", FORMS)
@SETTINGS
@given(data=st.data())
def test_running_totals_end_where_one_call_does(name: str, data: st.DataObject) -> None:
    rows = tame(data.draw(rows_strategy))
    spec = AggregateSpec(None, (("t", column("t")),), (("u", call(name, "i", "d")),))
    harness = Harness(spec)
    overlapping(data, harness, rows, data.draw(st.sampled_from([1, 3, 1 << 30])))
    harness.end()
    numbered = [{"ts": ts, "place": at, **dict(zip(NAMES, row, strict=True))} for at, (ts, row) in enumerate(rows)]
    final = dict(harness.rows)
    for (key,), members in oracle.groups(numbered, ["t"]).items():
        try:
            wanted = recounted(False, False)(members)
        except oracle.Failed:
            assert harness.operator.counts.errors + harness.errors > 0
        else:
            assert final[key] == wanted


def test_an_unsavable_state_is_reported_with_the_first_row() -> None:
    harness = Harness(AggregateSpec(TimeWindow(10, 10), (), (("u", call("unsavable", "i")),)))
    harness.put([row(1, 5)])
    harness.end()
    assert harness.rows == []
    assert "unsavable() failed: TypeError: expected a state of numbers" in harness.operator.counts.last_error
    assert "got one with a set" in harness.operator.counts.last_error


@pytest.mark.parametrize("state", [1 << 70, [[1 << 70]], {"a": object()}, np.array([object()])])
def test_unsavable_values_are_refused(state: Any) -> None:
    with pytest.raises(TypeError):
        plain(state)


def test_numbers_of_numpy_become_numbers_of_python() -> None:
    found = plain((np.float64(1.5), [np.int64(2)], {np.str_("k"): np.bool_(True)}))
    assert found == (1.5, [2], {"k": True})
    assert [type(one) for one in (found[0], found[1][0], found[2]["k"])] == [float, int, bool]


def test_results_are_of_the_declared_type() -> None:
    assert AGGREGATES["tally()"].result is Type.BIGINT
