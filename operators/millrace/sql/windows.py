"""Windows in SQL: reads TUMBLE, HOP, SESSION and the brackets after a table into numbers.

A window always uses the rows' own time, so the column that it names is checked, not used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from millrace.operators.frame.windows import RowWindow, SessionWindow, TimeWindow
from millrace.operators.queues.edge import EdgeSpec
from millrace.protocol import Refuse
from millrace.sql import syntax as s
from millrace.sql.dialects import TABLES
from millrace.sql.errors import SqlError, did_you_mean
from millrace.values.expression import Expression
from millrace.values.intervals import check_duration, format_interval, parse_duration

# The columns that a window adds, by their placeholder positions until the plan has its operator.
BOUNDS: Final = {"window_start": -2, "window_end": -3}
# The maximum of windows per row: with this many windows each, three rows in HOP(s, ts, '10 ms', '1000 s') took
# `millrace run` 5.7 s. And the maximum of rows in a window of rows: with two times and one column they take 24 GB.
MOST_WINDOWS: Final = 100_000
MOST_ROWS: Final = 1_000_000_000
# Table functions by name: the form of a call, and the number of arguments.
FUNCTIONS: Final = {
    "tumble": ("TUMBLE(s, ts, size [, offset])", (3, 4)),
    "hop": ("HOP(s, ts, slide, size [, offset])", (4, 5)),
    "session": ("SESSION(s, ts, gap [PARTITION BY k])", (3, 3)),
}


@dataclass(frozen=True, slots=True)
class Window:
    """A window over a source.

    spec        None: all rows so far (RANGE UNBOUNDED)
    place       its place in the text, for errors
    partition   the PARTITION BY of SESSION, as written
    joint       it is implied by GROUP BY, and adds no columns
    times       per input of the join that promises the times of its groups together: the group of its time, the length
                of the spans of it, and by input how much later than it that one's time may be
    key         the update key of its input, if that is an update stream (positions)
    latest      an update queue of these windows, and the LATEST clause
    """

    spec: TimeWindow | SessionWindow | RowWindow | None
    place: s.Node
    partition: tuple[s.Expr, ...] = ()
    joint: bool = False
    times: tuple[tuple[Expression, int, tuple[int | None, ...]], ...] = ()
    key: tuple[int, ...] | None = None
    latest: tuple[EdgeSpec, s.Latest] | None = None


def window_of(sql: str, call: s.TableFunction, constant_us: Callable[[s.Expr], int]) -> Window:
    """The window of a table function; `constant_us` reads an argument that is a time."""
    name = call.name.text
    if name not in FUNCTIONS:
        word = TABLES.get(name)
        if word is not None:
            raise SqlError(sql, call.span.start, word.sentence(f"the table function {name} does not exist"))
        hint = did_you_mean(name, FUNCTIONS) or f"; there are {', '.join(FUNCTIONS)}"
        raise SqlError(sql, call.span.start, f"the table function {name} does not exist{hint}")
    form, (least, most) = FUNCTIONS[name]
    if not least <= len(call.arguments) <= most:
        raise SqlError(sql, call.span.start, f"expected {form}, got {len(call.arguments)} arguments")
    if call.partition and name != "session":
        raise SqlError(
            sql, call.partition[0].span.start, f"only SESSION takes PARTITION BY; for {name.upper()} use GROUP BY"
        )
    times = [(node, constant_us(node)) for node in call.arguments[2:]]
    for node, us in times:
        _check_duration(sql, node, us)
    for node, us in times[: least - 2]:
        _check_above_zero(sql, node, us)
    if name == "session":
        return Window(SessionWindow(times[0][1]), call, call.partition)
    slide, size = times[0][1], times[least - 3][1]
    offset = times[least - 2][1] if len(times) > least - 2 else 0
    _check_overlap(sql, call, size, slide)
    return Window(TimeWindow(size, slide, offset % slide), call)


def bracket_window(sql: str, node: s.RangeWindow | s.RowsWindow) -> Window:
    """The window in brackets after a table."""
    if isinstance(node, s.RowsWindow):
        return Window(_rows(sql, node), node)
    if node.range is None:
        if node.slide is not None:
            raise SqlError(sql, node.slide.span.start, "RANGE UNBOUNDED emits a result with every row: remove SLIDE")
        return Window(None, node)
    if node.slide is None:
        raise SqlError(
            sql,
            node.span.end - 1,
            f"this window needs a slide: [RANGE '{node.range.text}' SLIDE '...'] (a range alone belongs to a JOIN)",
        )
    size, slide = interval_us(sql, node.range), interval_us(sql, node.slide)
    _check_above_zero(sql, node.range, size)
    _check_above_zero(sql, node.slide, slide)
    _check_overlap(sql, node, size, slide)
    return Window(TimeWindow(size, slide), node)


def _rows(sql: str, node: s.RowsWindow) -> RowWindow:
    if node.slide is None:
        raise SqlError(sql, node.span.end - 1, f"this window needs a slide: [ROWS {node.rows} SLIDE ...]")
    if node.rows < 1 or node.slide < 1:
        raise SqlError(sql, node.span.start, "expected at least one row, and a slide of at least one row")
    if max(node.rows, node.slide) > MOST_ROWS:
        raise SqlError(sql, node.span.start, f"expected at most {MOST_ROWS:,} rows, and a slide of at most as many")
    _check_overlap(sql, node, node.rows, node.slide)
    return RowWindow(node.rows, node.slide)


def interval_us(sql: str, node: s.IntervalText) -> int:
    """The value of an interval in brackets or after WITHIN."""
    try:
        return parse_duration(node.text, node.unit)
    except Refuse as error:
        raise SqlError(sql, node.span.start, error.text) from None


def _check_duration(sql: str, node: s.Node, us: int) -> None:
    try:
        check_duration(us, format_interval(us))
    except Refuse as error:
        raise SqlError(sql, node.span.start, error.text) from None


def _check_overlap(sql: str, node: s.Node, size: int, slide: int) -> None:
    """Refuse windows that would block the server for minutes with each tuple, which indicates a wrong unit."""
    if size // slide > MOST_WINDOWS:
        raise SqlError(
            sql,
            node.span.start,
            f"each row would be in {size // slide:,} windows; expected at most {MOST_WINDOWS:,}: use a longer "
            "slide, or a shorter window",
        )


def _check_above_zero(sql: str, node: s.Node, us: int) -> None:
    if us <= 0:
        raise SqlError(sql, node.span.start, "expected a time above 0")
