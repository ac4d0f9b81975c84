"""A progress bar for long inputs, on a terminal's stderr, unless rows are printed there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from millrace.offline.files import STANDARD

# Below this a run is over before a bar would be drawn.
LONG_BYTES: Final = 4 << 20

# Stages of a bar from one number to another: more would not be seen.
STAGES: Final = 200


class Bar:
    """Counts the bytes of input that have been read."""

    def advanced(self, amount: int) -> None:
        """Without a terminal the count is not shown."""


@contextmanager
def bar(paths: Sequence[str], outputs: Sequence[tuple[str, str]]) -> Iterator[Bar]:
    """A bar over all inputs if they are long and stderr is a terminal without rows."""
    total = sum(Path(path).stat().st_size for path in paths if path != STANDARD and Path(path).is_file())
    if total < LONG_BYTES or STANDARD in paths or not has_terminal() or _prints_rows(outputs):
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(None), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)

        class Drawn(Bar):
            def advanced(self, amount: int) -> None:
                progress.advance(task, amount)

        yield Drawn()


@contextmanager
def percent(first: int, last: int) -> Iterator[Callable[[int], None]]:
    """A bar from one number to another."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    columns = (BarColumn(None), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=last - first)
        drawn = first

        def advanced(at: int) -> None:
            nonlocal drawn
            if (at - drawn) * STAGES >= last - first:
                drawn = at
                progress.update(task, completed=at - first)

        yield advanced


def has_terminal() -> bool:
    return sys.stderr.isatty()


def _prints_rows(outputs: Sequence[tuple[str, str]]) -> bool:
    printed = not outputs or any(path == STANDARD for _, path in outputs)
    return printed and sys.stdout.isatty()
