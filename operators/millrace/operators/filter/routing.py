"""Routing: filters of an arc sleep until a batch has a row for them.

A filter that has taken all that lies on its arc reads nothing until the predicate index finds a row that it may keep,
or until its reader is to know a new promise. Meanwhile the tuples pass it at no cost: they are counted as taken by it
when it reads again, or when anyone looks (`settle`). Readers that are awake are scheduled as without an index, so rows,
their order and their numbers are the same, and nothing of this is saved.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from millrace.operators.filter.index import PredicateIndex
from millrace.operators.filter.select import Select
from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.inlet import Inlet
from millrace.values.batch import Batch
from millrace.values.eventtime import LATENT
from millrace.values.expression import Column, Expression, anonymous, rewrite

# Filters from which an index costs less than asking each of them.
LEAST = 16


class Routing:
    """The filters of one arc.

    asleep   those that read nothing, and how many tuples had been put when they fell asleep
    awake    those that read
    others   the arc's readers that are not filters, or are not in the index
    due      by promise: the filters asleep whose readers are to know it
    quiet    an arc on which nothing is ever put, which they read meanwhile
    index    the predicates of the filters, once it is made
    """

    __slots__ = ("_buffer", "_may_sleep", "_members", "asleep", "awake", "due", "index", "others", "quiet")

    index: PredicateIndex

    def __init__(self, buffer: Buffer, may_sleep: Callable[[Inlet], bool]) -> None:
        self._buffer = buffer
        self._may_sleep = may_sleep
        self._members: list[list[Inlet]] | None = None
        self.asleep: dict[Inlet, int] = {}
        self.awake: dict[Inlet, None] = {}
        self.others: list[Inlet] = []
        self.due: list[tuple[int, int, Inlet]] = []
        self.quiet = buffer.empty()

    def describe(self, reader: Inlet) -> tuple[int, int] | None:
        """Of a filter in the index: how many are, and the expressions that are computed for all of them."""
        if not self.made() or reader in self.others:
            return None
        return len(self.asleep) + len(self.awake), self.index.keys

    def made(self) -> bool:
        """Make the index when it is first needed; say whether the arc has enough filters for one."""
        if self._members is None:
            filters = [reader for reader in self._buffer.readers if self._may_sleep(reader)]
            if len(filters) < LEAST:
                return False
            by_predicate: dict[Expression, list[Inlet]] = {}
            for reader in filters:
                by_predicate.setdefault(_predicate(reader), []).append(reader)
            self.index = PredicateIndex(list(by_predicate))
            self._members = list(by_predicate.values())
            self.awake = dict.fromkeys(filters)
            self.others = [reader for reader in self._buffer.readers if reader not in self.awake]
            self.quiet.ready = self._buffer.ready
        return True

    def put(self, batch: Batch) -> Sequence[Inlet]:
        """The readers that are to see a batch, which is put next; the promise does not follow from it yet."""
        assert self._members is not None
        self._let_sleep()
        for number, matches in self.index.match(batch).items():
            for reader in self._members[number]:
                if reader in self.asleep:
                    self._wake(reader)
                consumer = reader.consumer
                assert isinstance(consumer, Select)
                consumer.found = batch, matches
        self.promised(max(self._buffer.promise, batch.ts.item(-1)) if self._buffer.ordered else self._buffer.promise)
        return [*self.awake, *self.others]

    def told(self, promise: int) -> Sequence[Inlet]:
        """The readers that are to see a promise."""
        if not self.made():
            return self._buffer.readers
        self._let_sleep()
        self.promised(promise)
        return [*self.awake, *self.others]

    def rouse(self, readers: Iterable[Inlet]) -> None:
        """Wake these."""
        for reader in readers:
            if reader in self.asleep:
                self._wake(reader)

    def promised(self, promise: int) -> None:
        """Wake the filters whose readers are to know this promise."""
        while self.due and self.due[0][0] <= promise:
            _, _, reader = heapq.heappop(self.due)
            if reader in self.asleep:
                self._wake(reader)
        self.quiet.promise = promise

    def settle(self) -> None:
        """Wake all, before readers are looked at or changed."""
        for reader in list(self.asleep):
            self._wake(reader)
            assert reader.consumer is not None
            if reader.consumer.output.punctuates:
                reader.consumer.announce()  # what is of no use to its readers yet, or it would have been awake
        self.due.clear()

    def _let_sleep(self) -> None:
        buffer = self._buffer
        promise = buffer.promise
        for reader in list(self.awake):
            if reader.unseen or reader.position != buffer.end or reader.punctuations:
                continue
            since_us, consumer = reader.since_us, reader.consumer
            if not (since_us is None or since_us <= promise < LATENT):
                continue
            assert consumer is not None
            output = consumer.output
            if output.punctuates:
                if output.grain.every:
                    continue
                heapq.heappush(self.due, (output.grain.above(output.promise), reader.place, reader))
            del self.awake[reader]
            self.asleep[reader] = buffer.end
            reader.sleep(self.quiet)

    def _wake(self, reader: Inlet) -> None:
        passed = self._buffer.end - self.asleep.pop(reader)
        self.awake[reader] = None
        reader.read_on()
        if passed:
            assert reader.consumer is not None
            reader.consumer.count_without_rows(passed)


def can_sleep(reader: Inlet) -> bool:
    """Whether an index can look at tuples for this reader."""
    return type(reader) is Inlet and isinstance(reader.consumer, Select)


def _predicate(reader: Inlet) -> Expression:
    """A filter's predicate over the fields of the arc."""
    assert isinstance(reader.consumer, Select)
    predicate, columns = reader.consumer.predicate, reader.columns
    if columns is not None:
        predicate = rewrite(predicate, lambda part: _at(part, columns))
    return anonymous(predicate)


def _at(part: Expression, columns: Sequence[int]) -> Expression | None:
    if not isinstance(part, Column) or part.position < 0:
        return None
    return Column(part.type, part.nullable, columns[part.position], part.name)
