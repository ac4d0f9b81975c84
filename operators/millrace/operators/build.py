"""Operators from their specs."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.operators.aggregate.aggregate import RowAggregate, WindowAggregate
from millrace.operators.aggregate.newest import NewestWindowAggregate
from millrace.operators.aggregate.running import build_running
from millrace.operators.aggregate.windowing import RowWindowing, Windowing
from millrace.operators.filter.filter import Filter
from millrace.operators.filter.select import Select
from millrace.operators.frame.buffer import Buffer, Gauge
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator, StepClock
from millrace.operators.gate.gate import Gate
from millrace.operators.join.join import Join
from millrace.operators.project.map import Map
from millrace.operators.retime.retime import Retime
from millrace.operators.sample.sample import Sample
from millrace.operators.sequence.sequence import build_sequence
from millrace.operators.sort.sort import Sort
from millrace.operators.spec import (
    AggregateSpec,
    FilterSpec,
    GateSpec,
    JoinSpec,
    MapSpec,
    RetimeSpec,
    RowWindow,
    SampleSpec,
    SelectSpec,
    SequenceSpec,
    SessionWindow,
    SortSpec,
    Spec,
    TimeWindow,
    TopSpec,
    UnionSpec,
    WindowSpec,
    undecided,
)
from millrace.operators.top.top import build_top
from millrace.operators.union.union import ArrivalUnion, OrderedUnion, YoungestUnion


def build(
    name: str, spec: Spec, inputs: Sequence[Inlet], gauge: Gauge, clock: StepClock, since_us: int | None = None
) -> Operator:
    """The operator that a spec describes. Its output begins with the promise that its inputs allow.

    `since_us` is from when on its query reads, if there was something to read before.
    """
    output = Buffer(
        spec.schema([reader.schema for reader in inputs]),
        ordered=gives_order(spec, [reader.ordered for reader in inputs]),
        gauge=gauge,
    )
    operator: Operator
    match spec:
        case SelectSpec():
            operator = Select(name, spec, inputs, output)
        case GateSpec():
            return Gate(name, inputs, output)  # which promises nothing before it is open
        case SampleSpec():
            operator = Sample(name, spec, inputs, output)
        case MapSpec():
            operator = Map(name, spec, inputs, output)
        case FilterSpec():
            operator = Filter(name, spec, inputs, output)
        case TopSpec():
            operator = build_top(name, spec, inputs, output, clock)
        case UnionSpec(key=tuple(key)):
            operator = YoungestUnion(name, key, inputs, output)
        case UnionSpec(ordered=True):
            operator = OrderedUnion(name, inputs, output, clock)
        case UnionSpec():
            operator = ArrivalUnion(name, inputs, output)
        case SortSpec():
            operator = Sort(name, inputs, output, clock)
        case AggregateSpec(window=None):
            operator = build_running(name, spec, inputs, output, clock)
        case AggregateSpec(window=RowWindow()):
            operator = RowAggregate(name, spec, inputs, output, clock, since_us)
        case AggregateSpec(newest=True):
            operator = NewestWindowAggregate(name, spec, inputs, output, clock)
        case AggregateSpec():
            operator = WindowAggregate(name, spec, inputs, output, clock, since_us)
        case WindowSpec(window=RowWindow()):
            operator = RowWindowing(name, spec, inputs, output, since_us)
        case WindowSpec():
            operator = Windowing(name, spec, inputs, output, since_us)
        case SequenceSpec():
            operator = build_sequence(name, spec, inputs, output, clock)
        case RetimeSpec():
            operator = Retime(name, spec, inputs, output)
        case JoinSpec():
            operator = Join(name, spec, inputs, output, clock)
        case _:
            raise AssertionError(f"{name}: no operator is made from {spec}")
    output.promise = operator.low_water()
    return operator


def gives_order(spec: Spec, inputs: Sequence[bool]) -> bool:
    """Whether the operator's output is in order of time, if these of its inputs are."""
    match spec:
        case UnionSpec(ordered=ordered):
            return ordered
        case SortSpec() | SequenceSpec():
            return True
        case AggregateSpec(window=TimeWindow() | SessionWindow()):
            return not spec.newest
        case AggregateSpec(window=None, ordered=True):
            return True
        case TopSpec() if spec.ordered or spec.closes_at is not None:
            return True
        case JoinSpec():
            return spec.order != "arrival" or spec.counts_rows
        case RetimeSpec():
            return False
        case SelectSpec() | GateSpec() | SampleSpec() | MapSpec() | FilterSpec() | WindowSpec():
            return all(inputs)
        case AggregateSpec() | TopSpec():
            return all(inputs)
    raise undecided("whether the output is in order of time", spec)
