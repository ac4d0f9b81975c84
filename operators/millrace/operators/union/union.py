"""Union: one stream out of several, in event order or in order of arrival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from millrace.operators.frame.clause import Clause
from millrace.operators.frame.group_passing import NOTHING, GroupPassing
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.waiting import Merging, without_groups
from millrace.operators.updates import kernel as replacing
from millrace.operators.updates.key_index import KeyIndex
from millrace.protocol import Schema
from millrace.values.arrays import grown
from millrace.values.batch import Batch, Int64s
from millrace.values.eventtime import MIN_TIME, stamped, untimed


def _ordered_of_version_1(operator: Operator, state: Any) -> Any:
    lines, last_us = state
    return [without_groups(operator, lines), last_us]


def _of_version_1(_: Operator, turn: Any) -> Any:
    return [turn, NOTHING]


def _youngest_of_version_1(operator: Operator, state: Any) -> Any:
    turn, youngest = state
    return [_of_version_1(operator, turn), youngest]


class OrderedUnion(Merging):
    """Merge streams in timestamp order (ETS, figure 6).

    Emits every tuple that no input can precede any more, so simultaneous tuples never wait for each other. Ties: input
    order, then arrival. The output is ordered. Latent tuples do not wait: they are stamped here, with a time that keeps
    the order and is as close to now as the other inputs allow.
    """

    kind: ClassVar[str] = "union"
    layout: ClassVar[Layout] = Layout(2, _ordered_of_version_1)

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.last_us = MIN_TIME  # the time of the last row emitted

    def consume(self, batch: Batch) -> Batch | None:
        ts = batch.ts
        if ts[0] == MIN_TIME:
            ts = stamped(ts, self._stamp(ts, untimed(ts)))
        self.last_us = max(self.last_us, int(ts[-1]))
        return Batch(self.output.schema, ts, batch.columns, batch.valid, batch.arrival)

    def low_water(self) -> int:
        """Nothing above the clock while a latent input may bring more, which is stamped with the clock."""
        promised = super().low_water()
        if promised > self.clock.now_us and any(reader.latent for reader in self.inputs):
            return max(self.last_us, self.clock.now_us)
        return promised

    def _stamp(self, ts: Int64s, count: int) -> int:
        """The time for the first tuples, which have none: no later than any tuple that is still to come."""
        following = [int(time) for time in ts[count : count + 1]]
        following += [time for reorder in self.waiting if (time := reorder.least_timed()) is not None]
        return max(self.last_us, self.output.promise, min(self.clock.now_us, self.horizon(), *following))

    def save(self) -> Any:
        return [super().save(), self.last_us]

    def restore(self, data: Any) -> None:
        saved, self.last_us = data
        super().restore(saved)


class ArrivalUnion(Operator):
    """Pass the tuples of all inputs as they arrive (OOP, figure A-1). Promises no order; its bound is the least of its
    inputs', also for each group of which they promise more.

    The inputs take turns: an execution that ends with its limit leaves the next turn to the next input.
    """

    kind: ClassVar[str] = "union"
    layout: ClassVar[Layout] = Layout(2, _of_version_1)

    def __init__(self, site: Site) -> None:
        super().__init__(site.name, site.inputs, site.output)
        self._turn = 0
        self.groups = GroupPassing(self)
        self._renames = [reader.schema != site.output.schema for reader in site.inputs]

    def pass_on(self, batch: Batch, position: int) -> Batch:
        """The rows of an input to emit."""
        return batch

    def run(self, limit: int) -> None:
        schema = self.output.schema
        for _ in self.inputs:
            turn = self._turn
            batch = self.take(self.inputs[turn], limit - self.taken)
            if batch is not None:
                batch = self.pass_on(batch, turn)
                self.emit(batch.renamed(schema) if self._renames[turn] else batch)
            self._turn = (turn + 1) % len(self.inputs)
            if self.taken >= limit:
                break

    def heed(self, reader: Inlet, clause: Clause) -> None:
        self.groups.heed(reader, clause)

    def copied_from(self, position: int, side: int = 0) -> int | None:
        return position

    def announce(self, low_us: int | None = None) -> bool:
        useful = super().announce(low_us)
        if self.groups:
            self.groups.pass_on()
        return useful

    def save(self) -> Any:
        return [self._turn, self.groups.save()]

    def restore(self, data: Any) -> None:
        self._turn, groups = data
        self.groups.restore(groups)


class Youngest:
    """Of each key, the time of the last row delivered and the input that it came from."""

    def __init__(self, schema: Schema, key: Sequence[int]) -> None:
        self._key = key
        self._key_index = KeyIndex([schema.fields[at] for at in key])
        self._last, self._sources = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.superseded = 0

    def of(self, batch: Batch, source: int) -> Batch:
        """The rows that are not older than the last delivered one, nor of the same time from another input."""
        columns = [batch.columns[at] for at in self._key]
        slots = self._key_index.find(columns, [batch.valid[at] for at in self._key], len(batch))
        self._last = grown(self._last, self._key_index.count, MIN_TIME)
        self._sources = grown(self._sources, self._key_index.count, source)
        delivered = np.zeros(len(batch), np.uint8)
        replacing.youngest(slots, batch.ts, source, self._last, self._sources, delivered)
        self.superseded += len(delivered) - int(np.count_nonzero(delivered))
        return batch if delivered.all() else batch.take(delivered.view(np.bool_))

    @property
    def count(self) -> int:
        return self._key_index.count

    @property
    def nbytes(self) -> int:
        return int(self._key_index.nbytes + self._last.nbytes + self._sources.nbytes)

    def save(self) -> Any:
        count = self._key_index.count
        return [self._key_index.save(), self._last[:count].copy(), self._sources[:count].copy(), self.superseded]

    def restore(self, data: Any) -> None:
        numbers, last, sources, self.superseded = data
        self._key_index.restore(numbers)
        self._last, self._sources = last.copy(), sources.copy()


class YoungestUnion(ArrivalUnion):
    """Update streams of one key (UPS, section 3.2): deliver the youngest row of each key, and drop what is older than
    the last one delivered. Of two inputs' rows of one key and time only the first to come is delivered.
    """

    layout: ClassVar[Layout] = Layout(2, _youngest_of_version_1)

    def __init__(self, site: Site, key: Sequence[int]) -> None:
        super().__init__(site)
        self._youngest = Youngest(site.output.schema, key)

    def pass_on(self, batch: Batch, position: int) -> Batch:
        return self._youngest.of(batch, position)

    @property
    def superseded(self) -> int:
        return self._youngest.superseded

    @property
    def state_tuples(self) -> int:
        return self._youngest.count

    @property
    def state_bytes(self) -> int:
        return self._youngest.nbytes

    def save(self) -> Any:
        return [super().save(), self._youngest.save()]

    def restore(self, data: Any) -> None:
        turn, youngest = data
        super().restore(turn)
        self._youngest.restore(youngest)
