"""How long a test waits for something that must happen.

Rule: no test asserts a duration. A wait ends when its condition holds. The bound only ends a test that hangs, and is
far longer than a busy machine needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import IO

HANG_SECONDS = 240.0


def wait_until(true: Callable[[], object]) -> None:
    """Look again and again until something holds."""
    end = time.monotonic() + HANG_SECONDS
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)


def line_with(words: str, lines: IO[str]) -> str:
    """The next line of a process's output with these words; an error if the process ends first."""
    read = []
    for line in lines:
        if words in line:
            return line
        read.append(line)
    raise AssertionError(f"it has ended without saying {words!r}:\n{''.join(read)}")
