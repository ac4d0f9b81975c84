"""A user function that takes its time, so that an overload lasts for tuples that anybody can send."""

from __future__ import annotations

import os
import time
from typing import Final

from millrace.functions import function
from millrace.values.batch import Int64s

# The variable of the environment that says how many microseconds a tuple takes.
VARIABLE: Final = "SLOWLY_US"
COST_US: Final = float(os.environ.get(VARIABLE, "0"))


@function("bigint", returns="bigint", vectorised=True)
def slowly(n: Int64s) -> Int64s:
    """The same number, later: as work does it keeps the server from everything else, but no processor busy."""
    time.sleep(len(n) * COST_US / 1e6)
    return n
