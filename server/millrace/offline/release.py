"""When rows of a slice leave: the time at which each would have left if every tuple had arrived at its own time.

Rule: the report's latencies are the same in slices as in the exact merge. A query that does not wait delivers a row
when its newest tuple arrives. A query with one operator that waits for time delivers a row when the mark (watermark) of
every stream that it reads has reached the row. For other queries a slice does not show it, so their runs are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.operators.frame.spec import Leaving
from millrace.values.batch import Batch, Int64s
from millrace.values.eventtime import MIN_TIME


class Wait(NamedTuple):
    """What the rows of an operator wait for: until the marks of these streams reach their time plus so much."""

    streams: frozenset[str]
    leaving: Leaving


def waits_of(plans: Iterable[QueryPlan], streams: Iterable[StreamDefinition]) -> dict[str, Wait] | None:
    """By query what its rows wait for; None if that is unknown of any query."""
    known = {
        stream.source: Wait(frozenset([stream.name]), "at once") for stream in streams if stream.progress == "tuples"
    }
    waits = {}
    for plan in plans:
        for node in plan.nodes:
            inputs = [known[name] for name in node.inputs if name in known]
            if len(inputs) < len(node.inputs):
                return None
            read = frozenset[str]().union(*(wait.streams for wait in inputs))
            known[node.name] = Wait(read, node.spec.leaving([wait.leaving for wait in inputs]))
        wait = known.get(plan.output)
        if wait is None or wait.leaving == "unknown":
            return None
        waits[plan.name] = wait
    return waits


class Releases:
    """The tuples of the current slice by stream, and the times at which rows leave."""

    def __init__(self, waits: Mapping[str, Wait], streams: Mapping[str, StreamDefinition]) -> None:
        self._waits = waits
        self._disorder_us = {name: stream.disorder_us for name, stream in streams.items()}
        self._newest: dict[str, Int64s] = {}

    def arrived(self, stream: str, before_us: int, newest: Int64s) -> None:
        """The slice has tuples of a stream: `newest` is the newest time up to each of them, `before_us` before them."""
        self._newest[stream] = np.concatenate([[before_us], newest])

    def released(self, query: str, batch: Batch, at_us: int) -> Int64s:
        """When each row leaves; `at_us` if no tuple releases it, but the end."""
        streams, beyond_us = self._waits[query]
        left = batch.arrival
        if isinstance(beyond_us, str):
            return left
        for stream in streams:
            newest = self._newest.get(stream)
            if newest is None:
                return np.full(len(batch), at_us)
            place = newest.searchsorted(batch.ts + (beyond_us + self._disorder_us[stream]))
            # Row 0 is what an earlier slice had reached.
            times = np.concatenate([[MIN_TIME], newest[1:], [at_us]])
            left = np.maximum(left, times[place])
        return left
