"""The newest log lines, kept in memory so that `millrace support-bundle` can have them from a server far away.

A structlog processor that passes everything on unchanged; it stands before the one that makes text of an event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

# A day of a quiet server, some minutes of a troubled one; a few hundred kilobytes.
LINES: Final = 1_000
# Characters of one value: a traceback is complete, a value from data is not.
LONGEST: Final = 10_000


class Recent:
    """The newest lines, oldest first."""

    def __init__(self, lines: int = LINES) -> None:
        self._lines: deque[dict[str, Any]] = deque(maxlen=lines)

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        self._lines.append(plain(event))
        return event

    def lines(self) -> list[dict[str, Any]]:
        return list(self._lines)


def plain(event: Mapping[str, Any]) -> dict[str, Any]:
    """The event as JSON can say it."""
    return {
        str(name): value if value is None or isinstance(value, bool | int | float) else str(value)[:LONGEST]
        for name, value in event.items()
    }


# The process has one log, and so one of these.
recent: Final = Recent()
