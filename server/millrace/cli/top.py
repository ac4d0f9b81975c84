"""`millrace top`: the terminal around `topmodel.py`.

Rule: a thread reads the server's lines, so that keys are obeyed however long they take; everything else happens where
keys and lines are waited for together. The terminal is left as it was found, whatever happens.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace.cli import show
from millrace.cli.link import TIMEOUT_SECONDS, Link, ServerError
from millrace.cli.topmodel import (
    COLUMNS,
    HELP,
    Row,
    Snapshot,
    View,
    cell,
    columns,
    component_rows,
    keys,
    load_words,
    operator_rows,
    standing,
)
from millrace.protocol.admin.data import to_data
from millrace.protocol.admin.events import Mirror
from millrace.protocol.errors import MillraceError
from millrace.protocol.words import printable

# Lines besides the rows and those above the table: its heads, and one below.
FRAME_LINES: Final = 2
# With --once, the two samples are at most this far apart.
ONCE_SECONDS: Final = 1.0


def _text(content: str, *, style: str = "") -> Text:
    """Text that shows names of peers without acting on the terminal."""
    return Text(printable(content), style=style)


def top(
    link: Link,
    interval: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
) -> None:
    """Watch components and operators: rates, queues, idle-waiting, strategies. Press ? for the keys."""
    if once or link.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print_once(link, min(interval, ONCE_SECONDS))
    else:
        _Screen(link, interval).run()


def looks(link: Link, interval: float, most: int | None = None) -> Iterator[Snapshot]:
    """Looks at the server, so many or until it ends: at once, and then one per interval."""
    mirror = Mirror()
    path = f"events?interval={interval}" + ("" if most is None else f"&lines={most}")
    try:
        for line in link.within(interval + TIMEOUT_SECONDS).lines(path):
            if mirror.take(line):
                now = mirror.view()
                server = now.server
                loads = server.memory, server.overload
                yield Snapshot(now.at_us, now.components, now.operators, standing(server), *loads)
    except ServerError as error:
        if error.code == "http":
            text = f"the server at {link.admin} is older than this command: use the `millrace` of its version"
            raise MillraceError(text) from None
        raise


def _print_once(link: Link, seconds: float) -> None:
    before, now = looks(link, seconds, 2)
    levels = {"components": component_rows(before, now), "operators": operator_rows(before, now)}
    if link.as_json:
        loads = {"memory": now.memory, "overload": now.overload}
        server = {name: to_data(view) for name, view in loads.items() if view is not None}
        seconds = (now.at_us - before.at_us) / 1e6
        show.as_json({"at_us": now.at_us, "seconds": seconds, "standby": now.standing, **levels, **server})
        return
    if now.standing is not None:
        show.out(now.standing)
        show.out("")
    for level, rows in levels.items():
        shown = columns(level, rows, sys.maxsize)
        show.table([column.head for column in shown], [[cell(column, row) for column in shown] for row in rows])
        if level == "components":
            show.out("")
    if words := load_words(now):
        show.out(f"\n{words}")


class _Watcher:
    """Reads the server's lines in a thread, and wakes the reader of `fileno`."""

    def __init__(self, link: Link, interval: float) -> None:
        self._link = link
        self._interval = interval
        self._reading, self._writing = os.pipe()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._sample: Snapshot | None = None
        self._error: str | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._reading

    def take(self) -> tuple[Snapshot | None, str | None]:
        """The newest sample, unless it was taken already, and the last error."""
        os.read(self._reading, 4096)
        with self._lock:
            sample, self._sample = self._sample, None
            return sample, self._error

    def wake(self) -> None:
        with suppress(OSError):
            os.write(self._writing, b".")

    def end(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                for sample in looks(self._link, self._interval):
                    if self._ended.is_set():
                        return
                    self._say(sample, None)
                error = "the server has ended this answer"
            except MillraceError as failed:
                error = failed.text
            self._say(None, error)
            self._ended.wait(self._interval)

    def _say(self, sample: Snapshot | None, error: str | None) -> None:
        with self._lock:
            self._sample, self._error = sample or self._sample, error
        self.wake()


class _Screen:
    """The view on a terminal."""

    def __init__(self, link: Link, interval: float) -> None:
        self._link = link
        self._interval = interval
        self._view = View()
        self._before: Snapshot | None = None
        self._now: Snapshot | None = None
        self._rows: list[Row] = []
        self._error: str | None = None
        self._console = Console()

    def run(self) -> None:
        # The first look is made here: a server that is not there is an ordinary error, on an ordinary screen.
        (self._now,) = looks(self._link, self._interval, 1)
        watcher = _Watcher(self._link, self._interval)
        try:
            with _cbreak(), _told_of_size(watcher.wake), self._live() as live:
                while not self._view.done:
                    self._draw(live)
                    self._wait(watcher)
        except KeyboardInterrupt:
            pass
        finally:
            watcher.end()

    def _live(self) -> Live:
        return Live(console=self._console, screen=True, auto_refresh=False)

    def _wait(self, watcher: _Watcher) -> None:
        """Until a key was pressed, the server answered, or the terminal changed its size."""
        stdin = sys.stdin.fileno()
        ready, _, _ = select.select([stdin, watcher], [], [])
        if watcher in ready:
            sample, self._error = watcher.take()
            if sample is not None and not self._view.paused:
                self._before, self._now = self._now, sample
        if stdin in ready:
            data = os.read(stdin, 1024)
            for key in keys(data) if data else ("q",):  # the terminal has gone
                self._view.press(key, self._rows)

    # -- drawing ---------------------------------------------------------------------------------------

    def _draw(self, live: Live) -> None:
        assert self._now is not None
        self._rows = self._view.rows(self._before, self._now)
        self._view.cursor = min(self._view.cursor, max(len(self._rows) - 1, 0))
        width, height = self._console.size
        lines: list[Any] = [self._title()]
        if self._now.standing is not None:
            lines.append(_text(self._now.standing))
        lines.append(self._place())
        height -= len(lines) + FRAME_LINES
        if self._view.help:
            lines += [_text(f"  {key:<14} {words}") for key, words in HELP]
        elif self._view.level == "operator":
            lines.append(self._detail(height))
        else:
            lines.append(self._table(width, height))
        lines = [*lines, self._foot()]
        for line in lines:
            if isinstance(line, Text):
                line.no_wrap, line.overflow = True, "ellipsis"
        live.update(Group(*lines), refresh=True)

    def _title(self) -> Text:
        assert self._now is not None
        title = _text("millrace top", style="bold")
        if self._view.paused:
            title.append("  PAUSED", style="bold yellow")
        if self._error is not None:
            title.append(printable(f"  {self._error}"), style="bold red")
        else:
            components, operators = len(self._now.components), len(self._now.operators)
            title.append(f"  {self._link.admin}  components: {components}, operators: {operators}", style="not bold")
            if words := load_words(self._now):
                busy = self._now.overload is not None and self._now.overload.mode != "none"
                title.append(f"  {words}", style="bold yellow" if busy else "not bold")
        return title

    def _place(self) -> Text:
        view = self._view
        if view.level == "components":
            where = "components"
        else:
            where = "all operators" if view.component is None else f"component {view.component}"
            where += f" > {view.operator}" if view.level == "operator" else ""
        text = _text(where, style="cyan")
        if view.typing or view.filter:
            text.append(f"   filter: {view.filter}{'_' if view.typing else ''}", style="yellow")
        return text

    def _table(self, width: int, height: int) -> Table:
        level = self._view.level
        shown = columns(level, self._rows, width)
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="reverse")
        key, greatest_first = self._view.sort[level]
        for column in shown:
            mark = "" if column.key != key else "v" if greatest_first else "^"
            table.add_column(
                mark + column.head,
                justify="right" if column.right else "left",
                no_wrap=True,
                overflow="ellipsis",
                min_width=column.width,
                ratio=1 if column.key == "name" else None,
            )
        for number, row in self._visible(height):
            style = "reverse" if number == self._view.cursor else "yellow" if row["blocked"] else ""
            table.add_row(*(_text(cell(column, row)) for column in shown), style=style)
        return table

    def _visible(self, height: int) -> Iterator[tuple[int, Row]]:
        """The rows around the cursor that fit, with their numbers."""
        height = max(height, 1)
        first = min(max(self._view.cursor - height // 2, 0), max(len(self._rows) - height, 0))
        yield from enumerate(self._rows[first : first + height], first)

    def _detail(self, height: int) -> Group:
        assert self._now is not None
        name = self._view.operator
        row = next((row for row in operator_rows(self._before, self._now) if row["name"] == name), None)
        operator = next((operator for operator in self._now.operators if operator.name == name), None)
        if row is None or operator is None:
            return Group(_text(f"  {name} is gone; Esc goes back"))
        words = {column.head: cell(column, row) for column in COLUMNS["operators"]}
        words |= {
            "queries": ", ".join(operator.queries) or "-",
            "tuples": "" if operator.kind == "fork" else f"{operator.input_tuples} in, {operator.output_tuples} out",
            "turns": f"{operator.executions} executions",
            "errors": f"{operator.errors}  {operator.last_error}".strip(),
            "blocked": "yes" if operator.blocked else "no",
        }
        lines = [_text(f"  {head:<10} {value}") for head, value in words.items() if value]
        for number, reader in enumerate(operator.inputs, 1):
            lines.append(
                _text(
                    f"  input {number:<4} {reader.from_}: {reader.queue_tuples} wait (at most "
                    f"{reader.peak_queue_tuples}), idle-wait {reader.idle_wait_us / 1e6:.1f} s"
                )
            )
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*lines[: max(height + 1, 1)])

    def _foot(self) -> Text:
        if self._view.help:
            return _text("any key goes back", style="dim")
        return _text("q quit  ? keys  Enter in  Esc back  s sort  r reverse  / filter  p pause  a all", style="dim")


@contextmanager
def _cbreak() -> Iterator[None]:
    """Read keys singly and without echo; restore the terminal afterwards."""
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    try:
        tty.setcbreak(stdin)
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


@contextmanager
def _told_of_size(wake: Callable[[], None]) -> Iterator[None]:
    """Draw again when the terminal has another size."""
    before = signal.signal(signal.SIGWINCH, lambda *_: wake())
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
