"""Aggregates over windows: bucket and aggregate as one operator (OOP, figures A-2 and A-3).

Tuples count as they arrive. A window closes when the input's low water has reached its end. Windows are emitted in
order of their ends, so the output is in order of time whatever the input's order, and the operator announces the time
of the next window that is possible. A window without tuples has no row.

The end of an open window is a need: it makes sources promise, or a timer ring, when nothing arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from millrace.operators.aggregate.early import EarlyPanes, EarlySessions
from millrace.operators.aggregate.groups import Grouping
from millrace.operators.aggregate.joint import JointPanes
from millrace.operators.aggregate.panes import Ages, Panes, Windows
from millrace.operators.aggregate.row_positions import RowPositions
from millrace.operators.aggregate.sessionrows import SessionRows
from millrace.operators.aggregate.sessions import Sessions, numbered
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.frame.clause import Clause, Equal
from millrace.operators.frame.idle_waiting import IdleWaiting, WindowWaiting
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.punctuation_grain import PunctuationGrain, union_of
from millrace.operators.frame.windows import OpenWindows, SessionWindow
from millrace.operators.source.groups import Group
from millrace.values.batch import Batch
from millrace.values.eventtime import LATENT, MAX_TIME, stamped
from millrace.values.expression import Column


def make_windows(spec: AggregateSpec, schema: Any, since_us: int | None) -> Windows:
    """The state that a spec's windows need."""
    if spec.rows:
        return SessionRows(spec, schema, since_us)
    grouping = Grouping(spec)
    if spec.early:
        panes = JointPanes if spec.joint else EarlyPanes
        early = EarlySessions if isinstance(spec.window, SessionWindow) else panes
        return early(spec, schema, grouping, since_us)
    if isinstance(spec.window, SessionWindow):
        return Sessions(spec, schema, grouping, since_us)
    return Panes(spec, schema, grouping, since_us)


class Pace:
    """How fast closed windows are emitted: at once, so many rows per tuple taken, or when nothing else waits."""

    def __init__(self, spec: AggregateSpec) -> None:
        self._flush = spec.flush
        self._every = spec.flush_every
        self._delay_us = spec.max_delay_us
        self.credit = 0

    def urgent(self, windows: Windows) -> bool:
        """Whether closed windows are emitted before more tuples are taken."""
        if self._flush == "none":
            return windows.due()
        end = windows.next_end()
        return end is not None and end <= windows.reached - self._delay_us

    def allowance(self, windows: Windows, taken: int, limit: int) -> int:
        """How many groups this execution may handle."""
        if not taken or self.urgent(windows):
            return limit
        if self._flush == "lazy":
            return 0
        self.credit += taken
        rows, self.credit = divmod(self.credit, self._every)
        return min(rows, limit)


def _of_version_1(operator: Operator, state: Any) -> Any:
    """Version 1 had no numbers of sessions, and panes had nothing but their tables."""
    assert isinstance(operator, WindowAggregate)
    *own, windows = state[0] if isinstance(operator, RowAggregate) else state
    if isinstance(operator.windows, SessionRows):
        windows = [numbered(windows[0]), *windows[1:]]
    elif isinstance(operator.windows, Sessions):
        windows = numbered(windows)
    elif isinstance(operator.windows, Panes):
        windows = [*windows, [operator.windows.choice.save(), None, []]]
    return [[*own, windows], *state[1:]] if isinstance(operator, RowAggregate) else [*own, windows]


class WindowAggregate(WindowWaiting):
    """Groups per window, from tuples in any order. The output is in order of time."""

    kind: ClassVar[str] = "aggregate"
    layout: ClassVar[Layout] = Layout(2, _of_version_1)
    paced = True

    def __init__(self, site: Site, spec: AggregateSpec) -> None:
        super().__init__(site)
        self.windows = make_windows(spec, site.output.schema, site.since_us)
        self._pace = Pace(spec)

    # -- time ----------------------------------------------------------------------------------------------------------

    def need(self) -> int | None:
        reader = self.inputs[0]
        if reader.waiting:
            return None
        end = self.windows.next_end()
        known = self.windows.reached if reader.latent else reader.promise
        return None if end is None or end <= known else end

    def declares(self) -> PunctuationGrain | None:
        """The ends of its windows: between two of them it can neither act nor promise."""
        return self.windows.grain()

    def _clocked(self, promise_us: int) -> int:
        """Tuples without a time are stamped here with the clock, so nothing later is promised of them."""
        return self.clock.now_us if promise_us == LATENT else promise_us

    def stamps(self, holding: Sequence[int]) -> bool:
        return self.inputs[0].latent

    def reach(self) -> bool:
        """Whether the clock has reached the end of a window of latent tuples."""
        if not self.inputs[0].latent:
            return super().reach()
        self.windows.reached = max(self.windows.reached, self.clock.now_us)
        return self.windows.due()

    def demand(self, need_us: int) -> int:
        """Less than the need: once a window has closed, nothing is emitted before the end of the next."""
        return self.windows.demand(need_us)

    def low_water(self) -> int:
        return self.windows.low_water()

    # -- running -------------------------------------------------------------------------------------------------------

    def more(self) -> bool:
        return self.inputs[0].waiting > 0 or self.windows.due()

    def fresh(self) -> bool:
        return self.inputs[0].unseen or self.windows.due()

    def run(self, limit: int) -> None:
        windows = self.windows
        if not self._pace.urgent(windows):
            self._take(limit)
        self.inputs[0].mark_seen()
        windows.reached = max(windows.reached, self._clocked(self._promised()))
        rows, self.state_scanned = windows.flush(self._pace.allowance(windows, self.taken, limit))
        if rows is not None:
            self.emit(rows)
        for count, reason in windows.errors:
            self.failed(count, reason)
        windows.errors.clear()
        if self.state_scanned and isinstance(windows, Panes) and windows.choice.untold:
            self.clock.turned.append((self.name, windows.choice.tell()))

    def _promised(self) -> int:
        """No tuple that has not been taken is below this time."""
        return self.inputs[0].low_water()

    def _take(self, limit: int) -> None:
        batch = self.take(self.inputs[0], limit)
        if batch is not None:
            self.consume(batch)

    def consume(self, batch: Batch) -> None:
        """Let tuples count in their windows."""
        batch = batch.at(stamped(batch.ts, max(self.clock.now_us, self.windows.reached)))
        rows, failed, reason = self.windows.grouping.compute(batch)
        if failed:
            self.failed(failed, reason)
        if len(rows.ts):
            self.newest_us = max(self.newest_us, int(rows.ts.max()))
            self.windows.take(rows, rows.ts)

    def kept(self) -> dict[str, Any] | None:
        """What it keeps of open windows, and the counts that the choice goes by; None for sessions."""
        return self.windows.numbers() if isinstance(self.windows, Panes) else None

    def open_windows(self, most: int) -> OpenWindows | None:
        return self.windows.open_windows(most)

    def traced(self) -> dict[str, int] | None:
        low = self.windows.low if isinstance(self.windows, Panes) else None
        return None if low is None else {"partials": low.count, "evicted": low.evicted, "flushed": low.flushed}

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def state_tuples(self) -> int:
        return self.windows.tuples

    @property
    def state_bytes(self) -> int:
        return self.windows.nbytes

    def save(self) -> Any:
        return [super().save(), self.newest_us, self._pace.credit, self.windows.save()]

    def essence(self) -> Any:
        return [self.newest_us, self.windows.essence()]

    def restore(self, data: Any) -> None:
        idle, self.newest_us, self._pace.credit, windows = data
        super().restore(idle)
        self.windows.restore(windows)


def _early_of_version_1(operator: Operator, state: Any) -> Any:
    """Version 1 knew no promises about groups of several times."""
    assert isinstance(operator, EarlyAggregate)
    *own, windows = state
    return [*own, [*windows, [], []]] if isinstance(operator.windows, JointPanes) else state


class EarlyAggregate(WindowAggregate):
    """Groups per window; promises about groups close their windows alone. The output is in no order."""

    windows: EarlyPanes | EarlySessions
    layout: ClassVar[Layout] = Layout(2, _early_of_version_1)
    by_group = True

    def __init__(self, site: Site, spec: AggregateSpec) -> None:
        super().__init__(site, spec)
        self._keys = [key.position if isinstance(key, Column) else None for _, key in spec.keys]
        # The end and the group that `windows.blocked` returns, until the next execution.
        self._blocked: list[tuple[int, Group] | None] = []

    def need(self) -> int | None:
        """The end of the earliest window that a group waits for: some may be closed for all groups in them."""
        reader = self.inputs[0]
        if reader.waiting:
            return None
        found = self._first_blocked()
        return None if found is None or found[0] <= reader.promise else found[0]

    def _first_blocked(self) -> tuple[int, Group] | None:
        if not self._blocked:
            self._blocked = [self.windows.blocked()]
        return self._blocked[0]

    def blocked_group(self, position: int) -> Equal:
        found = self._first_blocked()
        if found is None:
            return ()
        return tuple((at, value) for at, value in zip(self._keys, found[1], strict=True) if at is not None)

    def copied_from(self, position: int, side: int = 0) -> int | None:
        return self._keys[position] if position < len(self._keys) else None

    def heed(self, reader: Inlet, clause: Clause) -> None:
        self.windows.heed(clause)

    def run(self, limit: int) -> None:
        self._blocked.clear()
        super().run(limit)
        heard = self.windows.heard
        for clause in heard.passed:
            self.output.put_clause(clause)
        heard.passed.clear()

    def restore(self, data: Any) -> None:
        super().restore(data)
        self._blocked.clear()


class RowAggregate(WindowAggregate):
    """Groups per so many tuples of one source: a tuple's place is its position on the source's arc.

    Windows close by position, and at the end of the stream. A row's time is the newest time at its window's positions
    (if the end closes the window, at least the last promise). So the output is in order if the input is, and an open
    window delays no promise.
    """

    layout: ClassVar[Layout] = Layout(2, _of_version_1)

    def __init__(self, site: Site, spec: AggregateSpec) -> None:
        reader = site.inputs[0]
        self._positions = RowPositions(reader, spec.where, self.failed)
        self.place = reader.position
        super().__init__(site if site.since_us is None else site._replace(since_us=self.place), spec)

    def need(self) -> int | None:
        return None

    def reach(self) -> bool:
        """The clock closes no window of tuples; it only promises what it can."""
        return IdleWaiting.reach(self)

    def declares(self) -> PunctuationGrain | None:
        own = self.windows.grain()
        return union_of((own, self.output.grain)) if self.output.punctuates else own

    def demand(self, need_us: int) -> int:
        return need_us

    def low_water(self) -> int:
        """The input's promise, because the tuple that completes an open window is no older; or the times of complete
        windows that have not been emitted."""
        low = self._input_low()
        return min(low, self._ages.floor()) if self.windows.due() else low

    @property
    def _ages(self) -> Ages:
        assert isinstance(self.windows, Panes)
        assert self.windows.ages is not None
        return self.windows.ages

    def announce(self, low_us: int | None = None) -> bool:
        """The promise also holds for windows that the end will close."""
        low_us = self.low_water()
        if low_us < MAX_TIME:
            self._ages.promised = max(self._ages.promised, low_us)
        return super().announce(low_us)

    def _input_low(self) -> int:
        return self.inputs[0].low_water()

    def _promised(self) -> int:
        return MAX_TIME if self._input_low() == MAX_TIME else self.place

    def _take(self, limit: int) -> None:
        self.place = self.inputs[0].position  # what was skipped in a pause counts too
        super()._take(limit)
        self.place = self.inputs[0].position

    def consume(self, batch: Batch) -> None:
        ts = batch.ts
        batch, places = self._positions.of(batch, self.place)
        grouping = self.windows.grouping
        computed, failed, reason = grouping.compute(Batch(batch.schema, batch.ts, batch.columns, batch.valid, places))
        if failed:
            self.failed(failed, reason)
        if len(computed.ts):
            arrival = batch.arrival[np.searchsorted(places, computed.arrival)]
            self.windows.take(computed._replace(arrival=arrival), computed.arrival)
        assert isinstance(self.windows, Panes)
        self.windows.note(self.place, ts)

    def save(self) -> Any:
        return [super().save(), self._positions.since_us, self.place]

    def restore(self, data: Any) -> None:
        saved, self._positions.since_us, self.place = data
        super().restore(saved)

    def essence(self) -> Any:
        return [super().essence(), self._positions.since_us, self.place]
