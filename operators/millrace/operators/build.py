"""Operators from their specs."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.operators.frame.buffer import Buffer, Gauge
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator, Site, StepClock
from millrace.operators.frame.spec import Spec


def build(
    name: str, spec: Spec, inputs: Sequence[Inlet], gauge: Gauge, clock: StepClock, since_us: int | None = None
) -> Operator:
    """The operator of a spec. Its output starts with the promise that its inputs allow."""
    output = Buffer(
        spec.schema([inlet.schema for inlet in inputs]),
        ordered=spec.gives_order([inlet.ordered for inlet in inputs]),
        gauge=gauge,
    )
    operator = spec.build(Site(name, inputs, output, clock, since_us))
    output.promise = operator.low_water()
    return operator
