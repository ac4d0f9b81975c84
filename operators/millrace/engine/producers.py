"""The positions of a stream's producers, and the policy that forgets them.

Rule: this is the only place that forgets a producer. Producers with an open feed stay, so whoever is connected can
continue after a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator, Mapping
from typing import Final

# Kept per stream by default: a few megabytes, for as long as a device may reasonably be switched off.
PRODUCERS_KEPT: Final = 65_536
PRODUCERS_KEPT_US: Final = 30 * 86_400 * 1_000_000
# The oldest producers that are looked at when another one sends something: many open feeds must not make that slow.
LOOKS: Final = 4


class Producers:
    """By producer, the number of its next tuple and when it last sent something; the latest at the end."""

    def __init__(self, saved: Mapping[str, list[int]] | None = None) -> None:
        self._by_name: OrderedDict[str, tuple[int, int]] = OrderedDict()
        for name, (next_sequence, at_us) in (saved or {}).items():
            self._by_name[name] = next_sequence, at_us

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def save(self) -> dict[str, list[int]]:
        return {name: list(position) for name, position in self._by_name.items()}

    def positions(self) -> dict[str, int]:
        """The number of each producer's next tuple."""
        return {name: next_sequence for name, (next_sequence, _) in self._by_name.items()}

    def took(self, name: str, next_sequence: int, now_us: int) -> None:
        self._by_name[name] = next_sequence, now_us
        self._by_name.move_to_end(name)

    def forget(self, now_us: int, most: int, kept_us: int, is_open: Container[str]) -> Iterator[tuple[str, int]]:
        """Forget the oldest producers where there are more than `most`, and those older than `kept_us`; each with its
        position."""
        for _ in range(min(LOOKS, len(self._by_name))):
            name, (next_sequence, at_us) = next(iter(self._by_name.items()))
            if len(self._by_name) <= most and at_us >= now_us - kept_us:
                return
            if name in is_open:
                self.took(name, next_sequence, now_us)
            else:
                del self._by_name[name]
                yield name, next_sequence
