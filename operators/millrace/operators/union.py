"""Union: one stream out of several, in event order or as the tuples come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from millrace.operators.batch import ANY_TIME, NO_TIME, Batch, Int64s
from millrace.operators.buffer import Buffer, Reader
from millrace.operators.operator import Operator
from millrace.operators.waiting import Merging


class OrderedUnion(Merging):
    """Merge streams in timestamp order (ETS, figure 6).

    Emits whatever no input can still undercut, so simultaneous tuples never wait for each other. Ties: input order,
    then arrival. The output is ordered. Latent tuples wait for nothing: they are stamped here, with the least time
    that keeps the order and lies as close to now as the other inputs allow.
    """

    kind: ClassVar[str] = "union"

    def consume(self, batch: Batch) -> Batch | None:
        ts = batch.ts
        if ts[0] == NO_TIME:
            ts = self._stamped(ts)
        self.last_us = max(self.last_us, int(ts[-1]))
        return Batch(self.output.schema, ts, batch.columns, batch.valid, batch.arrival)

    def low_water(self) -> int:
        """Nothing above the clock while a latent input may bring more, which is stamped with the clock."""
        promised = super().low_water()
        if promised > self.moment.now_us and any(reader.promise == ANY_TIME for reader in self.inputs):
            return max(self.last_us, self.moment.now_us)
        return promised

    def _stamped(self, ts: Int64s) -> Int64s:
        """Give a time to the tuples that have none, which come first: no later than any tuple that is still to come."""
        untimed = int(np.searchsorted(ts, NO_TIME, "right"))
        following = [int(time) for time in ts[untimed : untimed + 1]]
        following += [time for reorder in self.waiting if (time := reorder.least_timed()) is not None]
        stamped = ts.copy()
        stamped[:untimed] = max(self.last_us, self.output.promise, min(self.moment.now_us, self.horizon(), *following))
        return stamped


class ArrivalUnion(Operator):
    """Pass the tuples of all inputs as they come (OOP, figure A-1). Promises no order; its bound is the least of its
    inputs'."""

    kind: ClassVar[str] = "union"

    def __init__(self, name: str, inputs: Sequence[Reader], output: Buffer) -> None:
        super().__init__(name, inputs, output)
        self._turn = 0
        self._renames = [reader.buffer.schema != output.schema for reader in inputs]

    def execute(self, limit: int) -> int:
        counts = self.counts
        counts.executions += 1
        taken = 0
        output = self.output
        for _ in self.inputs:
            reader = self.inputs[self._turn]
            if reader.taken != reader.buffer.end:
                before = reader.taken
                batch = reader.take(limit - taken)
                taken += reader.taken - before
                if batch is not None:
                    counts.input_tuples += len(batch.ts)
                    counts.output_tuples += len(batch.ts)
                    output.put(batch.renamed(output.schema) if self._renames[self._turn] else batch)
                if taken >= limit:
                    break
            self._turn = (self._turn + 1) % len(self.inputs)
        for reader in self.inputs:
            if reader.punctuations:
                reader.pass_punctuations()
            reader.unseen = reader.taken != reader.buffer.end or bool(reader.punctuations)
        if output.wanted:
            output.punctuate(self.low_water())
        return taken

    def save(self) -> int:
        return self._turn

    def restore(self, data: int) -> None:
        self._turn = data
