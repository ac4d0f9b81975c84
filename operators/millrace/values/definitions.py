"""The classes that a saved plan may contain, by name: every subclass of `Definition`.

A file of saved state names them, so a class keeps its name, and two classes never share one.
"""

from __future__ import annotations

from typing import Any, Final

DEFINITIONS: Final[dict[str, type]] = {}


class Definition:
    """Plain frozen data of plans."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        known = DEFINITIONS.setdefault(cls.__name__, cls)
        assert known.__module__ == cls.__module__, f"two definitions are called {cls.__name__}"
        DEFINITIONS[cls.__name__] = cls  # a class with slots is created twice
