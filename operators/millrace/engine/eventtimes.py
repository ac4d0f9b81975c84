"""A query on the axis of event time: how far its streams have come, and which of its windows are open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from millrace.engine.views import time_or_none
from millrace.operators.frame.windows import OpenWindows, SessionWindow, TimeWindow
from millrace.protocol.admin.queries import QueryTimeView, TimeInputView, WindowsView, WindowView
from millrace.values.eventtime import is_time

if TYPE_CHECKING:
    from millrace.engine.engine import Engine
    from millrace.engine.streams import Stream

# Open windows of an operator that are listed: more would be narrower than a pixel.
LISTED: Final = 500


def query_time(engine: Engine, name: str, now_us: int) -> QueryTimeView:
    """The streams that a query reads, also through other queries, and its windows."""
    query = engine.queries_by_name[name]
    windows = [(one.name, one.open_windows(LISTED)) for one in query.operators]
    return QueryTimeView(
        query=name,
        at_us=now_us,
        inputs=[_input(engine.streams_by_name[stream]) for stream in dict.fromkeys(_streams(engine, name))],
        windows=[_windows(operator, found) for operator, found in windows if found is not None],
    )


def _streams(engine: Engine, name: str) -> Iterator[str]:
    plan = engine.queries_by_name[name].plan
    yield from plan.reads_streams
    for below in plan.reads_queries:
        yield from _streams(engine, below)


def _input(stream: Stream) -> TimeInputView:
    source, definition = stream.source, stream.definition
    slack = max(source.newest - source.mark, 0) if is_time(source.mark) and is_time(source.newest) else None
    return TimeInputView(
        stream=definition.name,
        mark_us=time_or_none(source.mark),
        newest_us=time_or_none(source.newest),
        disorder_us=definition.disorder_us,
        slack_us=slack,
        late=source.late,
    )


def _windows(operator: str, found: OpenWindows) -> WindowsView:
    window, number, spans, closed_us = found
    timed = window if isinstance(window, TimeWindow) else None
    return WindowsView(
        operator=operator,
        size_us=None if timed is None else timed.size_us,
        slide_us=None if timed is None else timed.slide_us,
        offset_us=None if timed is None else timed.offset_us,
        gap_us=window.gap_us if isinstance(window, SessionWindow) else None,
        closed_us=time_or_none(closed_us),
        open_count=number,
        open=[WindowView(start_us=start, end_us=end) for start, end in spans],
    )
