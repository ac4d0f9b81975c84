"""Joins of update streams compared with recomputation from the current rows of both sides after each tuple."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.operators.current_join.spec import CurrentJoinSpec
from millrace.operators.frame.spec import retracting
from millrace.values.expression import TIME, Column, Expression, rewrite
from tests.depth import examples
from tests.kernels import both_ways
from tests.operators.test_updates import COLUMNS, NAMES, PLAIN, Run, column, drawn, expression, same
from tests.oracles import updates as oracle

OUTER: Sequence[tuple[int, ...]] = [(), (0,), (1,), (0, 1)]
KEYS: Sequence[Sequence[tuple[str, str]]] = [[("k", "k")], [("g", "t")], [("k", "k"), ("g", "t")], []]
Side = tuple[int, dict[str, Any]]


def spec_of(keys: Sequence[tuple[str, str]], outer: tuple[int, ...], emit: Any, *, where: bool) -> CurrentJoinSpec:
    """All columns of both sides and their times; the key first, so that the rest are values."""
    names = [(side, name) for side in (0, 1) for name in NAMES]
    columns = [(f"{'lr'[side]}_{name}", side, NAMES.index(name)) for side, name in names]
    columns += [("l_ts", 0, TIME), ("r_ts", 1, TIME)]
    of = {(): [0], (0,): [0], (1,): [1], (0, 1): [0, 1]}[outer]
    key = tuple(side * len(NAMES) + NAMES.index(pair[side]) for side in of for pair in keys)
    # 10 / v is tested over both sides' v: a zero on the left fails the test.
    tested = (("v", 0, NAMES.index("v")), ("w", 1, NAMES.index("v")))
    predicate = _moved(expression("10 / v > coalesce(k, 0)"), {"v": 0, "k": 1}) if where else None
    pairs = tuple((column(left), column(right)) for left, right in keys)
    return CurrentJoinSpec(tuple(columns), pairs, key, predicate, tested if where else (), outer, emit)


def _moved(predicate: Expression, at: Mapping[str, int]) -> Expression:
    return rewrite(predicate, lambda part: replace(part, position=at[part.name]) if isinstance(part, Column) else None)


def passes(left: oracle.Row, right: oracle.Row) -> bool:
    """The same test: integers truncate, a division by zero fails, null is not true."""
    value = left["v"]
    if not value:
        return False
    quotient = abs(10) // abs(value) * (1 if value > 0 else -1)
    return bool(quotient > (0 if right["v"] is None else right["v"]))


def wanted(fed: Sequence[Side], spec: CurrentJoinSpec, keys: Sequence[tuple[str, str]]) -> dict[Any, Any]:
    sides = [[row for at, row in fed if at == side] for side in (0, 1)]
    test = passes if spec.where is not None else lambda left, right: True
    return oracle.paired(sides[0], sides[1], keys, spec.outer, test)


def state_of(found: Mapping[Any, Any], spec: CurrentJoinSpec, key: Sequence[str]) -> oracle.State:
    def value(pair: Any, picked: Any) -> Any:
        _, side, position = picked
        row = pair[side]
        return None if row is None else row["ts" if position == TIME else NAMES[position]]

    return {
        at: tuple(value(pair, picked) for picked in spec.columns if picked[0] not in key) for at, pair in found.items()
    }


def times_of(fed: Sequence[Side], spec: CurrentJoinSpec, keys: Sequence[tuple[str, str]]) -> dict[Any, int]:
    """Per key of the result, the latest of its causes, of the rows in it, and of what its key was emitted with."""
    newest: dict[Any, int] = {}
    times: dict[Any, int] = {}
    before: dict[Any, Any] = {}
    for count, (side, row) in enumerate(fed, 1):
        after = wanted(fed[:count], spec, keys)
        slot = tuple(row[pair[side]] for pair in keys)
        for at in [*before, *after]:
            if before.get(at) != after.get(at):
                rows = [one["ts"] for one in after.get(at, ()) if one is not None]
                newest[slot] = times[at] = max(newest.get(slot, row["ts"]), row["ts"], *rows)
        before = after
    return times


@settings(deadline=None, max_examples=examples(600), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 2**32),
    st.sampled_from(KEYS),
    st.sampled_from(OUTER),
    st.sampled_from(["latest", "every"]),
    st.booleans(),
)
def test_pairs_are_those_of_the_current_rows(
    seed: int, keys: Sequence[tuple[str, str]], outer: tuple[int, ...], emit: Any, where: bool
) -> None:
    draw = random.Random(seed)
    spec = spec_of(keys, outer, emit, where=where)
    gone = [draw.random() < 0.5, draw.random() < 0.5]
    schemas = [
        retracting(PLAIN.fields, [NAMES.index(pair[side]) for pair in keys]) if gone[side] else PLAIN for side in (0, 1)
    ]
    key = [spec.columns[at][0] for at in spec.key]
    run = Run(spec, schemas, key)
    rows: list[Side] = []
    for side in (0, 1):
        for row in drawn(draw, gone=gone[side]):
            blank = [name for name in COLUMNS if name not in [pair[side] for pair in keys]]
            rows.append((side, {**row, **(dict.fromkeys(blank) if row["gone"] else {})}))
    draw.shuffle(rows)
    rows = [(side, {**row, "place": place}) for place, (side, row) in enumerate(rows)]
    alone = draw.random() < 0.5  # one input at a time, so that the order of rows is known
    done = 0
    while done < len(rows):
        cut = rows[done : done + draw.choice([1, 3, 10, 50])]
        if alone:
            cut = cut[: next((n for n, one in enumerate(cut) if one[0] != cut[0][0]), len(cut))]
        for side in (0, 1):
            run.put([row for at, row in cut if at == side], side)
        done += len(cut)
        run.execute(draw.choice([1, 4, 10_000]))
        if draw.random() < 0.2:
            run.swap()
        same(run.state, state_of(wanted(rows[:done], spec, keys), spec, key))
    if alone:
        expected = times_of(rows, spec, keys)
        found = run.times if emit == "every" else {at: run.times[at] for at in run.state}
        assert found == {at: ts for at, ts in expected.items() if at in found}
        assert emit == "latest" or found.keys() == expected.keys()


@both_ways("updates")
def test_times_of_a_slot_rise(kernel: Any) -> None:
    times, last = np.array([3, 1, 5, 2, 4]), np.array([2, 9])
    kernel.rise(np.array([0, 0, 0, 1, 0]), times, last)
    assert times.tolist() == [3, 3, 5, 9, 5]
    assert last.tolist() == [5, 9]
