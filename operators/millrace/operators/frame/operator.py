"""What every operator is: inputs, an output, `more`, `run`, and a state that can be saved.

An operator never looks at a clock, a thread or its neighbours. `execute(limit)` is the frame of an execution: it
counts, marks inputs as seen and promises. In it, `run` takes at most `limit` tuples from all inputs together and emits
rows. Only the scheduler decides when. Operators that may have to wait for a time on another input (the papers'
idle-waiting-prone ones) extend `IdleWaiting` in `idle_waiting.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.clause import Clause, Equal
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.punctuation_grain import PunctuationGrain
from millrace.values.batch import Batch

if TYPE_CHECKING:
    from millrace.operators.frame.windows import OpenWindows
    from millrace.values.evaluate import Errors


class StepClock:
    """The engine's clock as data: the time of the step in progress. Operators and queues that changed their way note it
    here, with the counts that caused it."""

    __slots__ = ("now_us", "requeued", "turned")

    def __init__(self) -> None:
        self.now_us = 0
        self.turned: list[tuple[str, Sequence[Any]]] = []
        self.requeued: list[tuple[Inlet, Any]] = []


class Site(NamedTuple):
    """Where an operator is built. Its query reads from `since_us` on, if there was something to read before."""

    name: str
    inputs: Sequence[Inlet]
    output: Buffer
    clock: StepClock
    since_us: int | None


class Counts:
    """An operator's work since its start, and the tuples and rows of its last execution."""

    __slots__ = ("errors", "executions", "input_tuples", "last_error", "last_given", "last_taken", "output_tuples")

    def __init__(self) -> None:
        self.input_tuples = self.output_tuples = self.executions = self.errors = 0
        self.last_taken = self.last_given = 0
        self.last_error = ""

    def save(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]

    def restore(self, data: Sequence[Any]) -> None:
        for name, value in zip(self.__slots__, data, strict=True):
            setattr(self, name, value)


class Operator:
    """A node of the graph.

    inputs          a reader for each input, in the order of the plan
    output          the arc that it fills
    waits           whether it is idle-waiting prone
    paced           whether it may take or emit less than it could, and continue when it is executed again
    taken, emitted  tuples of the last execution: those that it took from the arcs, and the rows that it put
    state_scanned   how many tuples of its own state the last execution scanned; a step's budget counts them too
    shifts_time     whether its promise differs from its input's, so that nothing may bypass it
    """

    kind: ClassVar[str]
    layout: ClassVar[Layout]
    waits: ClassVar[bool] = False
    paced: bool = False
    shifts_time: ClassVar[bool] = False

    def __init__(self, name: str, inputs: Sequence[Inlet], output: Buffer) -> None:
        self.name = name
        self.inputs = list(inputs)
        for reader in self.inputs:
            reader.consumer = self
        self.output = output
        self.counts = Counts()
        self.taken = self.emitted = self.state_scanned = 0

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def settle(self) -> None:
        """Put arrived tuples in their place. The scheduler calls this before any question; questions change nothing."""

    def more(self) -> bool:
        """Whether it could take input tuples now."""
        for reader in self.inputs:  # noqa: SIM110 (asked after every execution: a generator would double its cost)
            if reader.waiting:
                return True
        return False

    def fresh(self) -> bool:
        """Whether an execution would do anything: take a tuple or pass a punctuation."""
        return any(reader.unseen for reader in self.inputs)

    def execute(self, limit: int) -> int:
        """Let it take at most `limit` tuples and emit the rows that follow; say how many it took."""
        counts = self.counts
        counts.executions += 1
        self.taken = self.emitted = self.state_scanned = 0
        low_us = self.run(limit)
        counts.output_tuples += self.emitted
        for reader in self.inputs:
            if reader.unseen:
                reader.mark_seen()
        if self.output.punctuates:
            self.announce(low_us)
        return self.taken

    def run(self, limit: int) -> int | None:
        """Take at most `limit` tuples, and emit the rows that follow. Returns the low water if it is known."""
        raise AssertionError(f"{self.name} is never executed")

    def take(self, reader: Inlet, limit: int) -> Batch | None:
        """The next tuples of an input, without those from before its query."""
        batch = reader.take(limit)
        self.taken += reader.took
        if batch is None:
            return None
        count = len(batch.ts)
        self.counts.input_tuples += count
        return batch if count else None

    def emit(self, rows: Batch) -> None:
        self.emitted += len(rows.ts)
        self.output.put(rows)

    def announce(self, low_us: int | None = None) -> bool:
        """Promise a time for all later rows; say whether a reader has a use for it."""
        return self.output.punctuate(self.low_water() if low_us is None else low_us)

    def empty_input(self) -> int:
        """The input to backtrack to: one whose tuples it lacks."""
        for position, reader in enumerate(self.inputs):
            if not reader.waiting:
                return position
        return 0

    def queue_tuples(self, position: int) -> int:
        """Tuples that wait before this input."""
        return self.inputs[position].waiting

    def count_without_rows(self, tuples: int) -> None:
        """Count tuples from which no row follows, and which it has not seen (filter/routing.py)."""
        self.counts.input_tuples += tuples
        self.counts.last_taken, self.counts.last_given = tuples, 0

    def measured(self, tuples: int, us: float) -> None:
        """Take note of the measured cost of executions that took so many tuples."""

    def traced(self) -> dict[str, int] | None:
        """Counts of its state that a trace shows after an execution."""
        return None

    def kept(self) -> dict[str, Any] | None:
        """For reports: in which of several ways it keeps its state, with the counts of that."""
        return None

    def open_windows(self, most: int) -> OpenWindows | None:
        """For reports: its open windows, of which at most so many are listed; None if it cuts none from time."""
        return None

    def decision(self) -> Any:
        """A setting by an admin that its plan does not contain, as a value."""
        return None

    def decide(self, decision: Any) -> None:
        """Take over this setting of another operator of the same plan."""

    def failed(self, count: int, reason: str) -> None:
        """Count rows that could not be computed, of the input or of the result; they are dropped."""
        self.counts.errors += count
        self.counts.last_error = reason

    def without_failed(self, batch: Batch, errors: Errors | None) -> Batch:
        """The rows that could be computed; the others are counted."""
        if errors is None:
            return batch
        self.failed(int(errors.rows.sum()), errors.reason)
        return batch.take(~errors.rows)

    @property
    def state_tuples(self) -> int:
        """Tuples in its state, without queued ones."""
        return 0

    @property
    def state_bytes(self) -> int:
        return 0

    @property
    def superseded(self) -> int:
        """Rows of an update stream older than their key's row when they arrived."""
        return 0

    @property
    def shed(self) -> int:
        """Rows that it has left out at random, to reduce the load."""
        return 0

    def declares(self) -> PunctuationGrain | None:
        """Which promises of its inputs it or its readers have a use for; None if none."""
        return self.output.grain if self.output.punctuates else None

    def heed(self, reader: Inlet, clause: Clause) -> None:
        """Take note of a promise about certain rows of an input. What an operator does not pass on is dropped."""

    def copied_from(self, position: int, side: int = 0) -> int | None:
        """The column of an input that a column of its rows is copied from, if it passes promises about groups by that
        column; None if it drops them."""
        return None

    def behind(self, group: Equal, side: int) -> Equal:
        """The columns of an input, and their values, by which its rows for a group of its output are promised."""
        return tuple([(at, value) for own, value in group if (at := self.copied_from(own, side)) is not None])

    def demand(self, need_us: int) -> int:
        """The least that its inputs must promise for it to promise this."""
        return need_us

    def low_water(self) -> int:
        """No later row is below this time."""
        return min(reader.low_water() for reader in self.inputs)

    def lacking(self, need_us: int) -> list[Inlet]:
        """The inputs that must promise more before it can promise this itself."""
        return [reader for reader in self.inputs if reader.promise < need_us]

    def save(self) -> Any:
        """Its state beyond buffers and readers, as plain data."""
        return None

    def restore(self, data: Any) -> None:
        """Restore the result of `save`."""

    def essence(self) -> Any:
        """The part of its state that its rows depend on: operators of one definition in which it is equal emit the same
        rows for the same input. How they are spread over executions may differ."""
        return self.save()


class RowWise(Operator):
    """An operator that turns each tuple of its one input into one row or none, or into copies, at the same time. Keeps
    any order."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.name, site.inputs, site.output)

    @abstractmethod
    def compute(self, batch: Batch) -> Batch:
        """The rows that follow from these."""

    def heed(self, reader: Inlet, clause: Clause) -> None:
        own = self.passed(clause)
        if own is not None:
            self.output.put_clause(own)

    def passed(self, clause: Clause) -> Clause | None:
        """A promise about its input's rows as one about its own; None if nothing follows."""
        return clause

    def copied_from(self, position: int, side: int = 0) -> int | None:
        return position

    def more(self) -> bool:
        return self.inputs[0].waiting > 0

    def fresh(self) -> bool:
        return self.inputs[0].unseen

    def empty_input(self) -> int:
        return 0

    def execute(self, limit: int) -> int:
        return _execute(self, self.inputs[0], self.output, self.counts, limit)

    def promised(self, low_us: int) -> int:
        """Its promise if this is its input's."""
        return low_us

    def low_water(self) -> int:
        return self.promised(self.inputs[0].low_water())


def _execute(operator: RowWise, reader: Inlet, output: Buffer, counts: Counts, limit: int) -> int:
    """The frame in one piece, because most operators on a tuple's path are of this family."""
    counts.executions += 1
    batch = reader.take(limit)
    taken = reader.took
    emitted = 0
    if batch is not None and (count := len(batch.ts)):
        counts.input_tuples += count
        rows = operator.compute(batch)
        emitted = len(rows.ts)
        counts.last_taken = taken
        counts.last_given = emitted
        counts.output_tuples += emitted
        output.put(rows)
    operator.emitted = emitted
    reader.mark_seen()
    if output.punctuates:
        output.punctuate(operator.promised(reader.low_water()))
    return taken
