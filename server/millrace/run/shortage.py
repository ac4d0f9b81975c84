"""When memory is short, and which stage follows, as a function of looks at a clock and at the used bytes.

Rule: feeds wait before anything is dropped, and something is dropped before a query fails. A wait for memory ends after
`PATIENCE_SECONDS`, because a window that closes by the time of its tuples frees nothing while no tuple arrives: the
feeds then continue until a further `STEP` of the budget is used. So memory that stands still at nine tenths costs a few
waits and no more, and memory that grows reaches the next stage.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

# Shares of the budget. Below `ROOM` feeds continue at once, as when a query has failed; below `RELEASE` all is as if
# memory had never been short. Between two stages there is room for everything that can arrive before the server notices
# it: feeds have credit for a while, and a step of the engine may emit many rows.
RELEASE: Final = 0.70
WAIT: Final = 0.78
SHED: Final = 0.86
FAIL: Final = 0.92
STEP: Final = 0.03
ROOM: Final = 0.75
# How long feeds wait until a further step of the budget may be used: long enough that queued tuples are worked off and
# that slow readers have a chance.
PATIENCE_SECONDS: Final = 5.0


class Stage(IntEnum):
    """What memory allows: everything; nothing new from feeds; nothing that can be dropped; not every query."""

    ENOUGH = 0
    WAIT = 1
    SHED = 2
    FAIL = 3


class Shortage:
    """The present stage, and whether feeds wait.

    holds   whether no feed gets credit
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.stage = Stage.ENOUGH
        self.holds = False
        self._since = 0.0
        self._mark = WAIT

    def nears(self, used: int) -> bool:
        """Whether so much has consequences at the next look, so that it is worth returning free memory first."""
        return self.holds or used >= self._mark * self.budget

    def look(self, now: float, used: int) -> Stage:
        share = used / self.budget
        if share < RELEASE:
            self.holds, self._mark = False, WAIT
        elif self.holds:
            if share < ROOM:
                self.holds = False
            elif share < FAIL and now - self._since >= PATIENCE_SECONDS:
                self.holds, self._mark = False, min(share + STEP, FAIL)
        elif share >= self._mark:
            self.holds, self._since = True, now
        if share >= FAIL:
            self.stage = Stage.FAIL
        elif share >= SHED:
            self.stage = Stage.SHED
        else:
            self.stage = Stage.WAIT if self.holds else Stage.ENOUGH
        return self.stage
