"""Open windows against windows that are found tuple by tuple."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.engine import eventtimes
from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Arrived, Command
from millrace.sql import Catalog, parse, plan_all
from millrace.values.batch import Batch
from tests.depth import examples

STREAM = "CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '7 microseconds')"
NEAR = st.lists(st.tuples(st.integers(-60, 60), st.integers(0, 2)), max_size=12)
WINDOWS = st.one_of(
    st.tuples(st.just("HOP"), st.integers(1, 30), st.integers(1, 30), st.integers(0, 9)),
    st.tuples(st.just("TUMBLE"), st.integers(1, 30), st.integers(0, 9)),
    st.tuples(st.just("SESSION"), st.integers(1, 12)),
)


def made(kind, numbers):
    """An engine with a query over such windows."""
    spans = ", ".join(f"INTERVAL '{number} microseconds'" for number in numbers)
    query = f"CREATE QUERY q AS SELECT k, count(*) AS n FROM {kind}(s, ts, {spans}) GROUP BY k"
    _, known = plan_all(parse(f"{STREAM}; {query}"), Catalog())
    engine = Engine()
    engine.step(0, [Command(1, AddStream(known.streams["s"])), Command(2, AddQuery(known.queries["q"]))])
    return engine, known.streams["s"]


def found(engine):
    (windows,) = eventtimes.query_time(engine, "q", 0).windows
    return windows, [(one.start_us, one.end_us) for one in windows.open]


def sessions(rows, gap):
    """The sessions of rows on time: per key, as [first, last + gap)."""
    spans: list[list[int]] = []
    for key in range(3):
        times = sorted(at for at, k in rows if k == key)
        for at in times:
            if spans and spans[-1][0] == key and at - spans[-1][2] < gap:
                spans[-1][2] = at
            else:
                spans.append([key, at, at])
    return [(first, last + gap) for _, first, last in spans]


def windows(rows, size, slide, offset):
    starts = {start for at, _ in rows for start in range(at - size + 1, at + 1) if (start - offset) % slide == 0}
    return [(start, start + size) for start in starts]


@settings(max_examples=examples(300), deadline=None)
@given(WINDOWS, st.lists(NEAR, max_size=5))
@example(("HOP", 2, 20, 0), [[(0, 0), (5, 0)], [(30, 1)]])
@example(("HOP", 30, 2, 1), [[(0, 0)], [(29, 1), (60, 2)]])
@example(("SESSION", 5), [[(0, 0), (4, 0), (9, 1)], [(20, 1)]])
def test_the_open_windows_are_those_with_tuples_that_have_not_ended(window, batches):
    kind, *numbers = window
    engine, stream = made(kind, numbers)
    mark, kept = -(2**62), []
    for batch in filter(None, batches):
        tuples = Batch.from_rows(stream.schema, batch, [at for at, _ in batch])
        effects = engine.step(0, [Arrived("s", "f", tuples)])
        while effects.more:
            effects = engine.step(0)
        for at, key in batch:
            if at >= mark:
                kept.append((at, key))
                mark = max(mark, at - 7)
        if kind == "SESSION":
            expected = sessions(kept, *numbers)
        else:
            *slide, size, offset = numbers
            expected = windows(kept, size, slide[0] if slide else size, offset)
        still = sorted((start, end) for start, end in expected if end > mark)
        view, shown = found(engine)
        assert sorted(shown) == still
        assert view.open_count == len(still)
        closed = [end for _, end in expected if end <= mark]
        assert view.closed_us is None or all(end > view.closed_us for _, end in still)
        assert not closed or (view.closed_us is not None and max(closed) <= view.closed_us)
        (stream_view,) = eventtimes.query_time(engine, "q", 0).inputs
        assert (stream_view.mark_us, stream_view.newest_us) == (mark, max(at for at, _ in kept))
        assert stream_view.slack_us == max(at for at, _ in kept) - mark


def test_few_of_many_windows_are_listed(monkeypatch):
    monkeypatch.setattr(eventtimes, "LISTED", 3)
    engine, stream = made("HOP", [1, 100, 0])
    engine.step(0, [Arrived("s", "f", Batch.from_rows(stream.schema, [(500, 0)], [500]))])
    view, shown = found(engine)
    assert (view.open_count, shown) == (100, [(401, 501), (402, 502), (403, 503)])
