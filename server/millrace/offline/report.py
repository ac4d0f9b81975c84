"""The measurements of a run: the numbers of `--report`.

Rule: times are virtual and exact. Every latency is stored, and the sorted array has the percentiles (nearest rank).
Only `wall_us` differs between two runs of the same input.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from millrace.engine.engine import Engine
from millrace.offline.driver import Time
from millrace.offline.release import Releases
from millrace.operators.frame.idle_waiting import IdleWaiting
from millrace.operators.frame.operator import Operator
from millrace.protocol.admin.data import to_data
from millrace.protocol.admin.operators import OperatorView
from millrace.values.batch import Batch


class Measures:
    """Watches an engine from step to step.

    latencies    per query, of each delivered row: delivery minus the arrival of the newest tuple in it
    idle_us      per idle-waiting operator, how long any of its inputs held it back
    state_peaks  per operator with state, the maximum of its tuples and bytes after any step
    releases     in slices, when rows leave
    """

    def __init__(self, queries: Iterable[str]) -> None:
        self.latencies: dict[str, list[Any]] = {query: [] for query in queries}
        self.idle_us: dict[str, int] = {}
        self.state_peaks: dict[str, tuple[int, int]] = {}
        self.total_peak = (0, 0)
        self.releases: Releases | None = None
        self._idle_since: dict[str, int] = {}
        self._waiters: list[IdleWaiting] = []
        self._stateful: list[Operator] = []

    def watch(self, operators: Iterable[Operator]) -> None:
        """Look at these operators after each step."""
        for operator in operators:
            if isinstance(operator, IdleWaiting):
                self._waiters.append(operator)
            if type(operator).state_tuples is not Operator.state_tuples:
                self._stateful.append(operator)

    def delivered(self, query: str, batch: Batch, at_us: Time, *, sliced: bool) -> None:
        whole = int(at_us)
        left = self.releases.released(query, batch, whole) if sliced and self.releases is not None else whole
        waited = left - batch.arrival
        self.latencies[query].append(waited if whole == at_us else waited + float(at_us - whole))

    def stepped(self, now_us: int) -> None:
        for waiter in self._waiters:
            idle = any(since is not None for since in waiter.idle_since)
            since = self._idle_since.pop(waiter.name, None)
            if since is not None:
                self.idle_us[waiter.name] = self.idle_us.get(waiter.name, 0) + now_us - since
            if idle:
                self._idle_since[waiter.name] = now_us
        if self._stateful:
            self._look_at_states()

    def _look_at_states(self) -> None:
        tuples = bytes_ = 0
        for operator in self._stateful:
            own = operator.state_tuples, operator.state_bytes
            peak = self.state_peaks.get(operator.name, (0, 0))
            self.state_peaks[operator.name] = max(peak[0], own[0]), max(peak[1], own[1])
            tuples, bytes_ = tuples + own[0], bytes_ + own[1]
        self.total_peak = max(self.total_peak[0], tuples), max(self.total_peak[1], bytes_)


def latency_of(arrays: Sequence[Any]) -> dict[str, float | None]:
    """Mean, percentiles by nearest rank, and maximum; nulls if nothing was delivered."""
    if not arrays:
        return dict.fromkeys(("mean", "p50", "p99", "max"))
    waited = np.sort(np.concatenate(arrays))
    rank = {
        name: waited[max(int(np.ceil(share * len(waited))) - 1, 0)] for name, share in (("p50", 0.5), ("p99", 0.99))
    }
    return {
        "mean": float(waited.mean()),
        "p50": rank["p50"].item(),
        "p99": rank["p99"].item(),
        "max": waited[-1].item(),
    }


def report(
    engine: Engine, measures: Measures, rejected: dict[str, int], virtual_us: Time, wall_us: int
) -> dict[str, Any]:
    """The report as plain data."""
    gauge = engine.gauge
    return {
        "streams": {
            stream.name: {
                "tuples": stream.tuples,
                "late": stream.late,
                "rejected": rejected.get(stream.name, 0),
                "punctuations": stream.punctuations,
            }
            for stream in engine.streams()
        },
        "queries": {
            query.name: {"rows": query.rows, "latency_us": latency_of(measures.latencies[query.name])}
            for query in engine.queries()
        },
        "components": {
            component.name: {"strategy": component.strategy, "steps": component.steps}
            for component in engine.components()
        },
        "operators": {operator.name: _operator(operator, measures) for operator in engine.operators()},
        "totals": {
            "peak_queue_tuples": gauge.peak_tuples,
            "peak_queue_bytes": gauge.peak_bytes,
            "peak_state_tuples": measures.total_peak[0],
            "peak_state_bytes": measures.total_peak[1],
            "virtual_us": int(virtual_us) if virtual_us.denominator == 1 else float(virtual_us),
            "wall_us": wall_us,
        },
    }


def _queues(seen: OperatorView) -> dict[str, Any]:
    """The update queues of an operator: per input, its pages, and the superseded and shed tuples."""
    queues = [{"input": at, **to_data(reader.queue)} for at, reader in enumerate(seen.inputs) if reader.queue]
    return {"queues": queues} if queues else {}


def _operator(seen: OperatorView, measures: Measures) -> dict[str, Any]:
    state = measures.state_peaks.get(seen.name, (0, 0))
    return {
        "kind": seen.kind,
        "queries": seen.queries,
        "component": seen.component,
        "input_tuples": seen.input_tuples,
        "output_tuples": seen.output_tuples,
        "executions": seen.executions,
        "peak_queue_tuples": sum(reader.peak_queue_tuples for reader in seen.inputs),
        "idle_wait_us": measures.idle_us.get(seen.name, 0),
        "peak_state_tuples": state[0],
        "peak_state_bytes": state[1],
        **_queues(seen),
        **({"aggregate": to_data(seen.aggregate)} if seen.aggregate else {}),
    }
