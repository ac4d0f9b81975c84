"""Groups by the times of all inputs of a join leave in the step after which no row of it can still belong to them.

The definition looks at every microsecond of a group: could a row of an input at this time, at or above its stream's
mark, be in a row of the group, together with rows of the other inputs at any times of the group, stored or to come?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import Arrived, FeedClosed, Punctuated
from millrace.operators.aggregate import joint
from millrace.operators.aggregate.aggregate import WindowAggregate
from millrace.operators.aggregate.joint import JointPanes
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.join import join as joining
from millrace.operators.join.spec import JoinSpec
from millrace.protocol import Schema
from millrace.sql import Catalog, parse, plan_all
from millrace.values.batch import Batch
from tests.depth import examples
from tests.engine.graphs import Bench, rows
from tests.oracles.joins import join

TUPLES = Schema.of(ts="timestamp", k="bigint")
SPANS = {"microsecond": 1, "millisecond": 1_000, "second": 1_000_000}
# left, right, low, high
Band = tuple[int, int, int | None, int | None]


def script(
    units: Sequence[str], bands: Sequence[Band], kind: str = "", disorder: int = 0, options: str = "", also: str = ""
) -> str:
    """A count per group of times; a time per microsecond is written as it is."""
    names = "abc"[: len(units)]
    times = [
        f"{name}.ts" if unit == "microsecond" else f"date_trunc('{unit}', {name}.ts)"
        for name, unit in zip(names, units, strict=True)
    ]
    tables = "a"
    for at, name in enumerate(names[1:], 1):
        on = [f"{name}.k = a.k"]
        for left, right, low, high in bands:
            if max(left, right) == at:
                one, other = f"{names[left]}.ts", f"{names[right]}.ts"
                on += [] if low is None else [f"{other} >= {one} + INTERVAL '{low} us'"]
                on += [] if high is None else [f"{other} <= {one} + INTERVAL '{high} us'"]
        tables += f" {kind} JOIN {name} ON {' AND '.join(on)}"
    streams = "".join(
        f"CREATE STREAM {name} (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '{disorder} us');"
        for name in names
    )
    groups = [*times, also] if also else times
    items = ", ".join(f"{text} AS g{at}" for at, text in enumerate(groups))
    by = ", ".join(groups)
    return f"{streams} CREATE QUERY q {options} AS SELECT {items}, count(*) AS n FROM {tables} GROUP BY {by};"


def playing(sql: str) -> Bench:
    _, catalog = plan_all(parse(sql), Catalog())
    bench = Bench(*catalog.streams.values())
    bench.query(catalog.queries["q"])
    return bench


class Model:
    """The marks, the rows on time, and what follows by definition."""

    def __init__(self, sizes: Sequence[int], bands: Sequence[Band], outer: Sequence[int], disorder: int) -> None:
        self.sizes, self.bands, self.outer, self.disorder = sizes, bands, outer, disorder
        self.marks = [-(10**9)] * len(sizes)
        self.rows: list[list[tuple[int, tuple[Any, ...]]]] = [[] for _ in sizes]

    def give(self, at: int, made: Sequence[tuple[int, int]]) -> None:
        for ts, k in made:
            if ts >= self.marks[at]:
                self.rows[at].append((ts, (k,)))
            self.marks[at] = max(self.marks[at], ts - self.disorder)

    def complete(self) -> tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]:
        """The groups to which the marks let no row be added; and those to which the rows at hand let none be added,
        since an outer join knows which rows may still match."""
        equal = [(0, 0, at, 0) for at in range(1, len(self.sizes))]
        groups: Counter[tuple[int | None, ...]] = Counter()
        waiting = set()
        for _, members in join(self.rows, self.bands, equal, outer=self.outer):
            group = tuple(
                None if row is None else row[0] - row[0] % size for row, size in zip(members, self.sizes, strict=True)
            )
            groups[group] += 1
            if None in group and any(self._may_match(at, row[0]) for at, row in enumerate(members) if row is not None):
                waiting.add(group)
        must = {group for group in groups if not self.open(group)}
        may = must | {group for group in groups if None in group and group not in waiting and not self._grows(group)}
        return Counter({(*group, groups[group]): 1 for group in must}), Counter(
            {(*group, groups[group]): 1 for group in may}
        )

    def _grows(self, group: Sequence[int | None]) -> bool:
        """Whether a row can arrive that may be in such a group, of rows without a match."""
        spans = zip(group, self.sizes, self.marks, strict=True)
        return any(start is not None and start + size > mark for start, size, mark in spans)

    def open(self, group: Sequence[Any]) -> bool:
        if None in group:
            ((at, start),) = [(at, start) for at, start in enumerate(group) if start is not None]
            return any(ts >= self.marks[at] or self._may_match(at, ts) for ts in range(start, start + self.sizes[at]))
        # The last input's times count in one piece, from one to another, for each combination of the other times.
        *others, (last, size) = zip(group, self.sizes, strict=True)
        times = np.meshgrid(*(np.arange(start, start + size) for start, size in others))
        least, most = np.full_like(times[0], last), np.full_like(times[0], last + size - 1)
        inside = np.ones(times[0].shape, np.bool_)
        for left, right, low, high in self.bands:
            if right < len(others):
                inside &= low is None or times[right] - times[left] >= low
                inside &= high is None or times[right] - times[left] <= high
            else:
                least = least if low is None else np.maximum(least, times[left] + low)
                most = most if high is None else np.minimum(most, times[left] + high)
        to_come = most >= self.marks[-1]
        for time, mark in zip(times, self.marks, strict=False):
            to_come |= time >= mark
        return bool((inside & (least <= most) & to_come).any())

    def _may_match(self, at: int, ts: int) -> bool:
        """Whether a row of the other input can still arrive for the one at this time."""
        ((left, right, low, high),) = self.bands
        if at == left:
            return high is None or ts + high >= self.marks[right]
        return low is None or ts - low >= self.marks[left]


BANDS: st.SearchStrategy[tuple[int | None, int | None]] = st.sampled_from(
    [
        (0, 2_000),
        (-1_500, 0),
        (-700, 700),
        (50, 100),
        (1, 4_000),
        (-4, 4),
        (0, 0),
        (-900, None),
        (None, 5),
        (None, None),
    ]
)
KINDS = {"": (), "LEFT": (0,), "RIGHT": (1,), "FULL": (0, 1)}


def draw_time(data: st.DataObject, model: Model, at: int) -> int:
    """A time above the mark, mostly next to one at which something is decided: an end of a span or of a band."""
    mark = max(model.marks[at], 0)
    if data.draw(st.booleans()):
        return mark + data.draw(st.sampled_from([0, 1, 3, 40, 300, 700, 1_000, 2_500]))
    times = [ts for rows in model.rows for ts, _ in rows[-4:]]
    ends = [0, *(end for band in model.bands for end in band[2:] if end is not None)]
    size = data.draw(st.sampled_from([1, 1_000]))
    near = {
        time - time % size + size + sign * end + beside
        for time in times
        for end in ends
        for sign in (-1, 1)
        for beside in (-1, 0, 1)
    }
    return data.draw(st.sampled_from(sorted({mark, *(time for time in near if time >= mark)})))


@pytest.fixture(params=[2, 65_536])
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much a join does in an execution."""
    monkeypatch.setattr(joining, "MOST_LOOKED", request.param)


@pytest.mark.usefixtures("looks")
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_groups_of_times_leave_as_soon_as_they_are_complete(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["", "", *KINDS]))
    bands: list[Band] = [(0, 1, *data.draw(BANDS))]
    units = data.draw(st.sampled_from([*product(("microsecond", "millisecond"), repeat=2)]))
    if not kind and data.draw(st.booleans()):
        bands.append((data.draw(st.integers(0, 1)), 2, *data.draw(BANDS)))
        units = (*units, "microsecond" if "millisecond" in units[:1] else "millisecond")
        units = (units[0], "microsecond", units[2])
    disorder = data.draw(st.sampled_from([0, 900]))
    bench = playing(script(units, bands, kind, disorder))
    model = Model([SPANS[unit] for unit in units], bands, KINDS[kind], disorder)
    seen: Counter[tuple[Any, ...]] = Counter()
    limits = data.draw(st.sampled_from([{}, {"executions": 1}, {"budget": 1}]))
    for _ in range(data.draw(st.integers(4, 16))):
        events: list[Any] = []
        for _ in range(data.draw(st.sampled_from([1, 1, 2]))):
            at = data.draw(st.integers(0, len(units) - 1))
            if data.draw(st.booleans()):
                keys = data.draw(st.lists(st.sampled_from([1, 1, 2]), min_size=1, max_size=3))
                made = [(draw_time(data, model, at), k) for k in keys]
                model.give(at, made)
                events.append(Arrived("abc"[at], "f", Batch.from_rows(TUPLES, made, [ts for ts, _ in made])))
            else:
                model.marks[at] = draw_time(data, model, at)
                events.append(Punctuated("abc"[at], "f", model.marks[at]))
        must, may = model.complete()
        seen += Counter(rows(bench.run(*events, **limits), "q"))
        assert must <= seen <= may
        if data.draw(st.integers(0, 3)) == 0:
            saved = bench.engine.save()
            bench.engine = Engine.restore(saved, trace=True)
            assert bench.engine.save() == saved


LOG = st.lists(
    st.tuples(st.integers(0, 1), st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 2)), min_size=1, max_size=4)),
    max_size=12,
)


@settings(max_examples=examples(100), deadline=None)
@given(
    log=LOG,
    units=st.sampled_from([*product(SPANS, repeat=2)]),
    band=BANDS,
    kind=st.sampled_from([*KINDS]),
    flush=st.sampled_from(["", "flush = 'slow', max_delay = '5 ms'", "flush = 'lazy', max_delay = '5 ms'"]),
)
def test_the_rows_are_those_of_order_by_time(
    log: list[Any], units: tuple[str, str], band: tuple[Any, Any], kind: str, flush: str
) -> None:
    """There no group leaves early, and a group by one more column is a group by itself."""
    found = []
    for options in (f"WITH ({flush})" if flush else "", "WITH (order = 'event')"):
        bench = playing(script(units, [(0, 1, *band)], kind, 4_000, options, also="a.k"))
        out = []
        for at, made in log:
            event = Arrived("ab"[at], "f", Batch.from_rows(TUPLES, made, [ts for ts, _ in made]))
            out += rows(bench.run(event, budget=3), "q")
        out += rows(bench.run(*(FeedClosed(name, "f", ended=True) for name in "ab")), "q")
        found.append(Counter(out))
    assert found[0] == found[1]


SECOND = 1_000_000


def test_the_example_of_the_paper() -> None:
    """Group (0, 1 min) with a band of two minutes: not when S1 has passed its time, but when S0 has too."""
    bench = playing(script(("second", "second"), [(0, 1, 1, 120 * SECOND)]))

    def give(stream: str, second: int) -> list[Any]:
        row = (second * SECOND, 7)
        return rows(bench.run(Arrived(stream, "f", Batch.from_rows(TUPLES, [row], [row[0]]))), "q")

    assert give("a", 0) == []
    assert give("b", 60) == []
    assert give("b", 179) == []  # no individual punctuation before S1 is at 121 s and S0 has passed 0
    assert give("a", 1) == [(0, 60 * SECOND, 1)]
    assert give("b", 180) == []
    assert give("a", 2) == [(SECOND, 60 * SECOND, 1)]


def give(stream: str, *times: int) -> Arrived:
    return Arrived(stream, "f", Batch.from_rows(TUPLES, [(ts, 7) for ts in times], list(times)))


def test_a_band_that_cuts_a_group_off_completes_it_within_a_span() -> None:
    """Individual punctuation: after 1.7 ms no row of b matches one of the first millisecond of a."""
    bench = playing(script(("millisecond", "millisecond"), [(0, 1, 0, 700)]))
    assert rows(bench.run(give("a", 500), give("b", 1_100), Punctuated("a", "f", 5_000)), "q") == []
    assert rows(bench.run(Punctuated("b", "f", 1_699)), "q") == []
    assert rows(bench.run(Punctuated("b", "f", 1_700)), "q") == [(0, 1_000, 1)]


@pytest.mark.usefixtures("looks")
def test_rows_without_a_match_that_take_several_executions_leave_as_one_group() -> None:
    unmatched, past = give("a", 1, 2, 3, 4, 5, 5_000), Punctuated("b", "f", 1_700)
    for events in ((unmatched, past), (past, unmatched)):
        bench = playing(script(("millisecond", "microsecond"), [(0, 1, 0, 700)], "LEFT"))
        assert rows(bench.run(events[0]), "q") == []
        assert rows(bench.run(events[1]), "q") == [(0, None, 5)]


def test_without_the_promises_groups_leave_with_their_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator in between may drop them."""
    monkeypatch.setattr(JointPanes, "heed", lambda self, clause: None)
    monkeypatch.setattr(joint, "FEW", 0)
    bench = playing(script(("second", "second"), [(0, 1, 0, 10 * SECOND)]))
    out = []
    for stream, seconds in (("a", [1, 2]), ("b", [3, 5]), ("a", [4])):
        made = [(second * SECOND, 7) for second in seconds]
        out += rows(bench.run(Arrived(stream, "f", Batch.from_rows(TUPLES, made, [ts for ts, _ in made]))), "q")
    assert sorted(out) == [(SECOND, 3 * SECOND, 1), (2 * SECOND, 3 * SECOND, 1)]
    for second in range(6, 40):
        bench.run(give("a", second * SECOND), give("b", second * SECOND))
    (aggregate,) = [one for one in bench.engine.graph.operators.values() if isinstance(one, WindowAggregate)]
    assert isinstance(aggregate.windows, JointPanes)
    assert aggregate.windows.frontier.waiting <= 2 * aggregate.windows.tuples


@pytest.mark.parametrize(
    ("units", "options", "early"),
    [
        (("second", "second"), "", True),
        (("millisecond", "hour"), "", True),
        (("microsecond", "second"), "", True),
        (("second", "second"), "WITH (order = 'event')", False),
    ],
)
def test_which_joins_promise_times_together(units: tuple[str, str], options: str, early: bool) -> None:
    _, catalog = plan_all(parse(script(units, [(0, 1, 0, 10)], options=options)), Catalog())
    specs = [node.spec for node in catalog.queries["q"].nodes]
    assert [spec.early for spec in specs if isinstance(spec, AggregateSpec)] == [early]
    assert [len(spec.times) for spec in specs if isinstance(spec, JoinSpec)] == [2 * early]
