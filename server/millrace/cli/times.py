"""`millrace query time`: how far the inputs of a query have come in event time, and which of its windows are open."""

from __future__ import annotations

from typing import Final

from millrace.cli import show
from millrace.cli.admin import Query
from millrace.cli.details import duration, instant
from millrace.cli.link import Link
from millrace.cli.names import request
from millrace.protocol.admin.data import from_data
from millrace.protocol.admin.queries import QueryTimeView, WindowsView

NONE: Final = "-"


def query_time(link: Link, query: Query) -> None:
    """Show the watermark and the newest tuple of each stream that a query reads, and its open windows."""
    answer, _ = request(link, "GET", "query", query, "/time")
    if link.as_json:
        show.as_json(answer)
        return
    view = from_data(QueryTimeView, answer)
    heads = ("stream", "watermark", "newest tuple", "disorder", "watermark behind", "late")
    show.table(
        heads,
        [
            (
                one.stream,
                _time(one.mark_us),
                _time(one.newest_us),
                duration(one.disorder_us),
                _span(one.slack_us),
                one.late,
            )
            for one in view.inputs
        ],
    )
    if view.windows:
        show.out("")
        show.table(
            ("windows of", "length", "every", "open", "first open", "closed up to"),
            [
                (one.operator, _length(one), _span(one.slide_us), one.open_count, _first(one), _time(one.closed_us))
                for one in view.windows
            ],
        )


def _length(windows: WindowsView) -> str:
    return _span(windows.size_us) if windows.gap_us is None else f"gaps of {duration(windows.gap_us)}"


def _first(windows: WindowsView) -> str:
    return instant(windows.open[0].start_us) if windows.open else NONE


def _time(us: int | None) -> str:
    return NONE if us is None else instant(us)


def _span(us: int | None) -> str:
    return NONE if us is None else duration(us)
