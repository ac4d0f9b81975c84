"""Sink: where a query's rows leave the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import Counts, Operator
from millrace.operators.frame.punctuation_grain import EVERY, PunctuationGrain
from millrace.values.batch import Batch
from millrace.values.eventtime import LATENT, MIN_TIME


class Sink(Operator):
    """The papers' sink node: an output wrapper empties it as soon as the operator before it has emitted rows.

    It is not a row of the state table and has no turns. It numbers the rows, and reports punctuation as progress if it
    is `watched`.
    """

    kind: ClassVar[str] = "sink"
    layout: ClassVar[Layout] = Layout(1)

    def __init__(self, name: str, query: str, reader: Inlet) -> None:
        super().__init__(name, (reader,), reader.arc)
        self.query = query
        self.sequence = 0
        self.progress_us = MIN_TIME
        self.watched = False

    def declares(self) -> PunctuationGrain | None:
        return EVERY if self.watched else None

    def decision(self) -> bool:
        return self.watched

    def decide(self, decision: bool) -> None:
        self.watched = decision

    def drain(self) -> tuple[int, Batch] | None:
        """The queued rows, with the number of the first."""
        batch = _drain(self.inputs[0], self.counts)
        if batch is None:
            return None
        first = self.sequence
        self.sequence = first + len(batch.ts)
        return first, batch

    def progressed(self) -> int | None:
        """The new time below which the result is complete, if it has moved."""
        reader = self.inputs[0]
        reader.pass_punctuations()
        reached = reader.low_water()
        if reached <= self.progress_us or reached == LATENT:
            return None
        self.progress_us = reached
        return reached

    def save(self) -> list[Any]:
        return [self.sequence, self.progress_us, self.watched]

    def restore(self, data: Sequence[Any]) -> None:
        self.sequence, self.progress_us, self.watched = data


def _drain(reader: Inlet, counts: Counts) -> Batch | None:
    """The queued rows, which count as one execution."""
    reader.unseen = False
    batch = reader.take(reader.waiting)
    if batch is not None:
        count = len(batch.ts)
        counts.input_tuples += count
        counts.output_tuples += count
        counts.executions += 1
    return batch
