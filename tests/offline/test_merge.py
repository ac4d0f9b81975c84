"""Files merged by event time, exactly and in slices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.events import Arrived
from millrace.engine.plan import StreamDefinition
from millrace.offline import merge
from millrace.offline.merge import Cursor, Merge, in_time_order
from millrace.protocol import Schema
from millrace.values.batch import Batch

SCHEMA = Schema.of(ts="timestamp", n="bigint")
TIMES = st.lists(st.lists(st.integers(0, 30), max_size=25), min_size=1, max_size=3)


def stream(number, kind="external"):
    return StreamDefinition(f"s{number}", SCHEMA, kind, "ts" if kind == "external" else None)


def batches(times, size, first=0):
    """The rows of a file in batches of a size; n is the position in the file."""
    for start in range(0, len(times), size):
        part = times[start : start + size]
        yield Batch.from_rows(SCHEMA, [(ts, first + start + n) for n, ts in enumerate(part)], part)


def merged(files, size=4, *, exact=True, kind="external"):
    """(at, stream, time, position) of every row, in order of arrival."""
    cursors = [Cursor(stream(number, kind), "main", batches(times, size)) for number, times in enumerate(files)]
    rows = []
    clocks = []
    for instant in Merge(cursors, exact=exact).instants():
        clocks.append(instant.at_us)
        for event in instant.events:
            assert isinstance(event, Arrived)
            rows += [(instant.at_us, event.stream, ts, n) for ts, n in event.batch.rows()]
    assert clocks == sorted(set(clocks) if exact else clocks)
    return rows


def expected(files):
    """The oracle: always the file with the earliest head, the first of several; the clock never goes back."""
    left = [list(enumerate(times)) for times in files]
    clock = min((times[0] for times in files if times), default=0)
    merged = []
    while any(left):
        number = min((number for number, rows in enumerate(left) if rows), key=lambda number: left[number][0][1])
        place, ts = left[number].pop(0)
        clock = max(clock, ts)
        merged.append((clock, f"s{number}", ts, place))
    return merged


@given(files=TIMES, size=st.integers(1, 9))
def test_the_exact_merge_is_the_merge_in_words(files, size):
    assert merged(files, size) == expected(files)


@given(files=TIMES, size=st.integers(1, 9), rows=st.integers(1, 6), beginning=st.integers(0, 12))
def test_slices_keep_every_file_and_end_where_the_exact_merge_could(files, size, rows, beginning):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "ROWS", rows)
        patch.setattr(merge, "EXACT_ROWS", beginning)
        got = merged(files, size, exact=False)
    wanted = expected(files)
    for name in {row[1] for row in wanted}:
        assert [row[2:] for row in got if row[1] == name] == [row[2:] for row in wanted if row[1] == name]
    # The clock of a slice is its newest time, so no row arrives earlier than its own time.
    newest = 0
    for at in sorted({row[0] for row in got}):
        newest = max([newest, *(row[2] for row in got if row[0] == at)])
        assert at == newest


@given(times=st.lists(st.integers(0, 9), max_size=30), size=st.integers(1, 7))
def test_sorting_keeps_the_order_of_equal_times(times, size):
    rows = [row for batch in in_time_order(batches(times, size)) for row in batch.rows()]
    assert rows == sorted(((ts, n) for n, ts in enumerate(times)), key=lambda row: row[0])


def test_rows_without_a_time_come_at_once():
    assert [row[:2] for row in merged([[5, 6], [7]], kind="internal")] == [(0, "s0"), (0, "s0"), (0, "s1")]
