"""Which places of sinks a server may change: those where no server of a higher epoch has written.

Rule: before its first row a sink leaves the epoch of its server at its place, durably. Each time before it changes
anything there, it looks for a higher one. An epoch is left as its proof (`epoch.py`), so what a server with another id
has left says nothing. A server of the first epoch leaves nothing, because no server has a lower one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from millrace.protocol import Refuse
from millrace.standby.epoch import FIRST, Epoch, Fence


class Outdated(Refuse):
    """A server of a higher epoch has written to the place of a sink, and has left this `proof` there."""

    code = "superseded"

    def __init__(self, text: str, proof: str) -> None:
        super().__init__(text)
        self.proof = proof


class SinkFence:
    """What one server compares with the epochs at the places of its sinks. The threads of sinks ask it.

    While it only replays, as a standby or after its start, the server leaves nothing, and its sinks wait where they
    find a higher epoch: its journal may say later that the epoch is its own. `lead` ends that. `outdated` is called on
    the loop with the proof of a higher epoch that a sink has found.
    """

    def __init__(self, replayed: Callable[[], Epoch] = Epoch) -> None:
        self.server_id: bytes | None = None  # None: without a journal, a server has no epoch
        self.outdated: Callable[[str], object] = _nothing
        self._replayed = replayed
        self._fence: Fence | None = None

    def lead(self, fence: Fence) -> None:
        """The server records steps, in the epoch of this fence."""
        self._fence = fence

    def look(self, path: Path, found: str | None) -> str | None:
        """Compare the text at a place with this server. Returns the text to leave there, or None if that is there."""
        if self.server_id is None:
            return None
        fence = self._fence
        own = self._replayed() if fence is None else fence.epoch
        there = None if found is None else Epoch.parse(found, self.server_id)
        if found is not None and there is not None and there > own:
            text = (
                f"cannot write {path}: a server of epoch {there.number} writes it, and this one has epoch {own.number}"
            )
            if fence is None:
                raise Refuse(f"{text}, as far as it has replayed its journal", code="superseded")
            raise Outdated(f"{text}: another server has taken over from it", found)
        if fence is None or own.number == FIRST or there == own:
            return None
        return fence.proof


def _nothing(_: str) -> None:
    """The default listener."""


# Of a file that no server with a journal writes.
OPEN: Final = SinkFence()
