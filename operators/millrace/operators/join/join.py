"""Joins of streams over windows: several inputs, one operator, in four orders.

    arrival   rows are joined on arrival and emitted at once (OOP-Join, figure 4)
    sync      the inputs are put in order of time first (NILE, Sync-Filter)
    filter    rows are joined on arrival, and the joined rows held back until nothing earlier can arrive (NILE,
              Filter-Order)
    adaptive  sync or filter, by the cost and the rate of tuples (NILE, section 6)

An execution takes new rows, matches them with the stored rows of the other inputs, and stores them. What it finds
passes the hold buffer unless the order is `arrival`; under `sync` it leaves in the same execution. So changing the
order while rows are on their way loses nothing and repeats nothing: it only changes which rows may be taken.

Rows below their floor are dropped: all inputs that they could match promise to be past them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Final, Literal

import numpy as np

from millrace.operators.aggregate.groups import listed
from millrace.operators.frame.clause import Clause, Equal
from millrace.operators.frame.group_passing import Held
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import Operator, Site
from millrace.operators.frame.order_switching import OrderSwitching
from millrace.operators.frame.punctuation_grain import EVERYTHING, PunctuationGrain
from millrace.operators.frame.reorder import Reorder, merge_by_time, shares
from millrace.operators.frame.waiting import LinedInputs
from millrace.operators.join.bands import close_bands
from millrace.operators.join.groups import NO_GROUPS, Closed, JoinGroups
from millrace.operators.join.matching import Incoming, Matcher
from millrace.operators.join.pacing import JoinPacing
from millrace.operators.join.segments import Segment, Strip
from millrace.operators.join.spec import JoinSpec
from millrace.operators.join.unmatched import Unmatched
from millrace.operators.updates.key_index import Column
from millrace.protocol import Refuse
from millrace.values.batch import Batch, Bools, Int64s
from millrace.values.eventtime import LAST_WATERMARK, LATENT, MAX_TIME, MIN_TIME, UNBOUNDED_US, is_time, stamped

Order = Literal["arrival", "sync", "filter", "adaptive"]
Mode = Literal["arrival", "sync", "filter"]
ORDERS: Final[tuple[Order, ...]] = ("arrival", "sync", "filter", "adaptive")

# Combinations that an execution looks at before it leaves the rest of its rows to the next one: a few milliseconds.
MOST_LOOKED: Final = 65_536


def _of_version_1(operator: Operator, state: Any) -> Any:
    """Version 1 knew no groups, and no tuples that are over before their time."""
    lines, own, waiting, stores, tempo = state
    stores = [[*head, 0, [[*segment, None] for segment in segments]] for *head, segments in stores]
    return [lines, own, waiting, stores, tempo, NO_GROUPS]


class Join(LinedInputs, OrderSwitching):
    """Rows of several inputs put together wherever they match, each combination once, at the latest of their times.

    The output of an event order is in order of time; of `arrival` it is in no order.

    order     as the query wants it; `mode` is how rows are taken now: as they come, or in order
    rest      rows that were taken and have not looked yet
    hold      what was found and may not leave yet
    pending   per input whose rows are emitted alone if they match nothing: those that may still match
    frontier  per input, the mark that the last joint punctuation has carried
    groups    promises about groups; `ahead` says whether there are any
    """

    kind: ClassVar[str] = "join"
    layout: ClassVar[Layout] = Layout(2, _of_version_1)

    def __init__(self, site: Site, spec: JoinSpec) -> None:
        super().__init__(site)
        self.spec = spec
        self.matcher = Matcher(spec, [reader.schema for reader in self.inputs], self.output.schema)
        self.hold = Reorder()
        self.rest: deque[Incoming] = deque()
        self.pending = [Unmatched(self.matcher, position, MOST_LOOKED) for position in spec.outer]
        self._by_rows = spec.counts_rows
        self.order: Order = "sync" if self._by_rows else spec.order
        self.mode: Mode = "sync" if self.order == "adaptive" else self.order
        self.pacing: JoinPacing = JoinPacing(len(self.inputs), self._window_us(), spec.alpha)
        self._planned = (self.order, spec.alpha)
        self._short = self.matcher.takes_rows
        self._turn = 0
        self.paced = False
        self._stamps = [MIN_TIME] * len(self.inputs)
        self._grains = self._joint_grains()
        self.frontier = [MIN_TIME] * len(spec.times)
        self.groups = JoinGroups(self, spec, self.matcher.bands, self._arc_lows)
        self.ahead = False
        self.by_group = bool(spec.outer)

    def _window_us(self) -> int | None:
        """|w|: how far apart rows may be, half the width of the widest band."""
        bands = self.matcher.bands
        width = max(bands.width(a, b) for a in range(bands.inputs) for b in range(a))
        return None if width == UNBOUNDED_US else width // 2

    def _joint_grains(self) -> list[PunctuationGrain]:
        """Per input, the marks at which a group of times may become complete: the end of a span, or the last time at
        which the input's rows can match rows of another input's span."""
        reach = close_bands(self.spec.bands, len(self.inputs))
        grains = []
        for at, _ in enumerate(self.spec.times):
            ends = {
                (size, (offset + later) % size)
                for other, (_, size, offset) in enumerate(self.spec.times)
                if (later := reach[other][at]) is not None
            }
            grains.append(PunctuationGrain(False, tuple(sorted(ends))))
        return grains

    # -- time ----------------------------------------------------------------------------------------------------------

    def declares(self) -> PunctuationGrain | None:
        return EVERYTHING

    def heed(self, reader: Inlet, clause: Clause) -> None:
        self.groups.heed(reader, clause)
        if self.groups:
            self.ahead = self.paced = True
            self._short = False

    def copied_from(self, position: int, side: int = 0) -> int | None:
        return self.groups.copied_from(position, side)

    def behind(self, group: Equal, side: int) -> Equal:
        return self.groups.behind(group, side)

    def blocked_group(self, position: int) -> Equal:
        """The group of the row that waits for this input to be emitted alone."""
        for pending in self.pending if self.mode == "arrival" else ():
            first = pending.first_row() if pending.position != position else None
            if first is not None:
                return self._key_of(pending.position, *first)
        return ()

    def _key_of(self, position: int, segment: Segment, slots: Int64s) -> Equal:
        """A row's columns that are compared, as columns of the other input."""
        side = self.matcher.sides[position]
        row = segment.strip(slots[:1])
        group = {}
        for at in side.keys:
            mask = row.valid[at]
            if mask is not None and not mask[0]:
                return ()
            column = side.columns[at]
            own = self.groups.beside(position, column)
            if own is not None:
                ((group[own],),) = listed([(row.columns[at], None)])
        return tuple(group.items())

    def _arc_lows(self) -> list[int]:
        """Per input the least time of rows that have still to be taken from its arc."""
        return [
            self._promise(position) if reader.latent else reader.low_water()
            for position, reader in enumerate(self.inputs)
        ]

    def _promise(self, position: int) -> int:
        """An input's promise; if its rows are stamped here, at most the clock."""
        promise = self.inputs[position].promise
        return max(self.clock.now_us, self._stamps[position]) if promise == LATENT else promise

    def horizon(self) -> int:
        """Up to which time rows may be taken.

        Which rows are an input's newest depends on the order of rows of one time. So where windows count rows, none of
        a time is taken before all of that time have come: how arrivals were cut into batches never shows.
        """
        least = min([self._promise(position) for position in range(len(self.inputs))])
        return least - 1 if self._by_rows and least > MIN_TIME else least

    def _lows(self) -> list[int]:
        """Per input the least time of rows that have still to look for matches."""
        return self._with_rest(self._outside())

    def _outside(self) -> list[int]:
        """Per input the least time of rows that have still to be taken."""
        lows = []
        for position, reader in enumerate(self.inputs):
            low = self._promise(position) if reader.latent else reader.low_water()
            line = self.waiting[position]
            if line.count:
                head = line.head_us()
                assert head is not None
                low = min(low, head)
            lows.append(low)
        return lows

    def _with_rest(self, lows: list[int]) -> list[int]:
        """The same with the rows that were taken and have not looked."""
        if not self.rest:
            return lows
        lows = lows.copy()
        for rows in self.rest:
            lows[rows.position] = min(lows[rows.position], rows.least)
        return lows

    def low_water(self) -> int:
        return self._low_water(self._lows())

    def _low_water(self, lows: Sequence[int]) -> int:
        low = self._lowest(lows)
        if not self.hold.count:
            return low
        head = self.hold.head_us()
        assert head is not None
        return min(low, head)

    def _lowest(self, lows: Sequence[int]) -> int:
        """No row that is still to be found is below this time."""
        low = min(lows)
        for pending in self.pending:
            if (oldest := pending.oldest()) is not None:
                low = min(low, oldest)
        return low

    def registers(self) -> list[int]:
        if self.mode == "arrival":
            return super().registers()
        return [
            self._promise(position) if (head := line.head_us()) is None else head
            for position, line in enumerate(self.waiting)
        ]

    def need(self) -> int | None:
        waits = self.needs()
        return waits[0][0] if waits else None

    def holding(self) -> list[int]:
        waits = self.needs()
        return waits[0][1] if waits else []

    def blocked(self) -> bool:
        """Whether a row is held back. A row that may still match is not, until a row past its window has arrived."""
        return bool(self._waits(idle=True))

    def idle(self) -> list[int]:
        return sorted({position for _, holding in self._waits(idle=True) for position in holding})

    def needs(self) -> list[tuple[int, list[int]]]:
        return self._waits()

    def stamps(self, holding: Sequence[int]) -> bool:
        return bool(holding) and all(self.inputs[position].latent for position in holding)

    def reach(self) -> bool:
        """Whether rows that waited for the clock may be taken or emitted now."""
        lows = self._lows()
        if self.more() or self._may_leave(lows) or self._may_give_up(lows):
            self.paced = True
            return True
        return super().reach()

    def past_its_tuples(self) -> bool:
        return self._by_rows

    def _waits(self, *, idle: bool = False) -> list[tuple[int, list[int]]]:
        """Per row that may leave next, the least promise that lets it, and the inputs that owe it.

        On arrival the oldest unmatched row of each side may leave, whatever the other waits for: the rows that are held
        back are first. In order of time only the first of all rows may. `idle`: only waits that hold a row back.
        """
        if self.mode == "arrival" and not any(pending.count for pending in self.pending):
            return []
        if self.rest or (self.mode == "arrival" and any(reader.waiting for reader in self.inputs)):
            return []
        waits: list[tuple[bool, int, int, list[int]]] = []
        head = self._blocked_head()
        if head is not None:
            needed = head + 1 if self._by_rows and self._standing() else head
            waits.append((True, head, needed, [p for p in range(len(self.inputs)) if self._promise(p) < needed]))
        for pending in self.pending:
            row = pending.oldest()
            beside = 1 - pending.position
            after = self.matcher.bands.reach[pending.position][beside]
            if row is None or after == UNBOUNDED_US or self._promise(beside) > row + after:
                continue
            needed = row + after + 1
            waits.append((pending.newest >= needed, row, needed, [beside]))
        if self.mode == "arrival":
            waits.sort(key=lambda wait: (not wait[0], wait[1]))
        elif waits:
            waits = [min(waits, key=itemgetter(1))]
        return [(needed, holding) for past, _, needed, holding in waits if past or not idle]

    def _blocked_head(self) -> int | None:
        """The least time that waits in line or in the hold buffer, if the inputs do not promise it."""
        if self.mode == "arrival":
            return None
        heads = self._heads()
        if self.hold.count:
            heads.append(self.hold.head_us())  # type: ignore[arg-type]
        least = min(heads, default=None)
        return least if least is not None and least > self.horizon() else None

    # -- running -------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        if self.mode != "arrival":
            super().settle()

    def more(self) -> bool:
        if self.paced:
            return True
        if self.mode == "arrival":
            return super().more() or self._standing()
        heads = self._heads()
        return bool(heads) and (self.mode == "filter" or min(heads) <= self.horizon())

    def fresh(self) -> bool:
        for reader in self.inputs:
            if reader.unseen:
                return True
        return self.more()

    def _standing(self) -> bool:
        """Whether any row stands in line."""
        for line in self.waiting:  # noqa: SIM110 (asked in every execution: a generator would double its cost)
            if line.count:
                return True
        return False

    def stamped(self, position: int, batch: Batch) -> Batch:
        """Rows without a time get the clock's."""
        ts = batch.ts
        reader = self.inputs[position]
        if (ts.item(0) if reader.arc.ordered or len(ts) == 1 else int(ts.min())) != MIN_TIME:
            return batch
        promise = MIN_TIME if reader.latent else min(reader.promise, LAST_WATERMARK)
        stamp = self._stamps[position] = max(self.clock.now_us, self._stamps[position], promise)
        return batch.at(stamped(ts, stamp))

    def run(self, limit: int) -> int | None:
        if self._short and self.mode == "arrival" and not (self.rest or self.hold.count):
            first, second = self.inputs
            mine = first.waiting
            if mine + second.waiting == 1 and not self._standing():
                return self._run_row(*((0, first, second) if mine else (1, second, first)))
        batches: list[Batch] = []
        self.settle()
        # What may leave leaves before anything more is taken.
        works = not self.hold.count or not self._may_leave(self._lows())
        resumes = bool(self.rest)
        if resumes:
            self._account(-1)
        elif works:
            self._take(limit)
        for reader in self.inputs:
            reader.mark_seen()
        lows = self._outside()
        if self.rest:
            if works:
                self._work(lows, batches)
            self._account(1)
            lows = self._with_rest(lows)
        for pending in self.pending:
            if pending.count:
                pending.give_up(lows, batches)
                pending.forget()
        if self.ahead:
            self._close_groups(lows, batches)
        self._expire(lows)
        if batches or self.hold.count:
            self._release(lows, batches)
        self.paced = not works or bool(self.rest) or self._may_leave(lows) or self._may_give_up(lows)
        self.paced = self.paced or (resumes and self.more())  # then it has taken none of the queued rows
        return self._close(lows)

    def _close(self, lows: Sequence[int]) -> int | None:
        """The end of an execution: count failed rows and the time; the low water."""
        if self.matcher.failed:
            for count, reason in self.matcher.failed:
                self.failed(count, reason)
            self.matcher.failed.clear()
        if self.pacing.turned() and self.order == "adaptive":
            self._turn_to(self.pacing.choose(self.mode))
        if self.frontier and not self.hold.count and not self._may_give_up(lows):
            self._punctuate_jointly(lows)
        if not self.output.punctuates:
            return None
        low_us = self._low_water(lows)
        if self.ahead:
            self._pass_groups(low_us)
        return low_us

    def _punctuate_jointly(self, lows: Sequence[int]) -> None:
        """Promise all times together (OOP, section 7): no later row has all of them below these."""
        told = [
            max(known, grain.rounded(low)) for known, grain, low in zip(self.frontier, self._grains, lows, strict=True)
        ]
        if told != self.frontier:
            self.frontier = told
            if min(told) > MIN_TIME:
                columns = [column for column, _, _ in self.spec.times]
                self.output.put_clause(Clause((), tuple(zip(columns, told, strict=True))))

    def traced(self) -> dict[str, int] | None:
        """The marks of the last joint punctuation, by the column that has the input's time; how many stored tuples
        promises about groups have closed."""
        names = self.output.schema.names
        marks = zip(self.spec.times, self.frontier, strict=True)
        counts = {names[at]: us for (at, _, _), us in marks if is_time(us)}
        closed = self.closed_rows
        if closed:
            counts["closed"] = closed
        return counts or None

    # -- groups --------------------------------------------------------------------------------------------------------

    def _pass_groups(self, low_us: int) -> None:
        """Promise groups above the join, after its own time. On arrival all that was found has left once nothing waits
        here."""
        self.announce(low_us)
        waits = bool(self.rest) or self._standing() or self.hold.count > 0
        if self.mode == "arrival" and waits:
            return
        if not waits:
            self.groups.pass_on_jointly()
        self.groups.pass_on(self._held, low_us)
        self._look_ahead()

    def _close_groups(self, lows: Sequence[int], batches: list[Batch]) -> None:
        """Drop the rows that their groups let match nothing more; those that have to be emitted alone are."""
        waits = [line.count > 0 for line in self.waiting]
        for rows in self.rest:
            waits[rows.position] = True
        for closed in self.groups.close(waits):
            floor = self.matcher.bands.floor(closed.position, lows)
            self._drop(closed.position, self._candidates(closed, floor), floor, batches)
        for pending in self.pending:
            pending.forget()
        if not self.output.punctuates:
            self.groups.told.clear()
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Note whether groups are ahead, as a restored join does."""
        self.ahead = bool(self.groups)
        self._short = self.matcher.takes_rows and not self.ahead

    def _candidates(self, closed: Closed, floor: int) -> Iterable[tuple[Segment, Int64s]]:
        """Stored rows among which are all those of these groups."""
        store = self.matcher.stores[closed.position]
        found = self.matcher.index_of(closed.position, self.groups.columns_of(closed.position, closed.keys) or ())
        if found is None:
            return [(segment, np.arange(segment.count)) for segment in store.segments]
        index, order = found
        groups = self.groups.batch(closed.keys, closed.groups)
        keys = store.identify[index]([groups.columns[at] for at in order], len(groups))
        high = np.array(closed.floors, np.int64) - 1
        return store.of_keys(index, keys, np.full(len(groups), floor), high)

    def _drop(
        self, position: int, candidates: Iterable[tuple[Segment, Int64s]], floor: int, batches: list[Batch]
    ) -> None:
        """Drop those of an input's stored rows that are below their groups' floors, and emit those alone that have to
        be. Rows below the input's own floor have left."""
        store = self.matcher.stores[position]
        for segment, slots in candidates:
            floors = self._floors(position, segment, slots)
            if floors is None:
                return
            ts = segment.ts[slots]
            over: Bools = (ts >= floor) & (ts < floors)
            slots = slots[over if segment.over is None else over & ~segment.over[slots]]
            if segment.matched is not None and len(lone := slots[~segment.matched[slots]]):
                batches.append(self.matcher.alone(position, segment.strip(lone)))
                segment.matched[lone] = True
            if len(slots):
                store.drop(segment, slots)

    def _floors(self, position: int, segment: Segment, slots: Int64s) -> Int64s | None:
        """Per stored row, the time below which its groups let it match nothing more."""
        places = self.matcher.places(position)

        def columns(wanted: Sequence[int]) -> list[Column]:
            masks = [segment.valid[places[at]] for at in wanted]
            return [
                (segment.columns[places[at]][slots], None if mask is None else mask[slots])
                for at, mask in zip(wanted, masks, strict=True)
            ]

        return self.groups.floors(position, columns, len(slots))

    def _held(self, keys: Sequence[int]) -> Iterator[Held]:
        """Rows that wait here, of which others may follow, and rows that wait to leave."""
        latest = max((one.greatest for store in self.matcher.stores for one in store.segments), default=MIN_TIME)
        for position, line in enumerate(self.waiting):
            own = self.groups.columns_of(position, keys)
            for batch in line.batches():
                of_row = None if own is None else [(batch.columns[at], batch.valid[at]) for at in own]
                yield Held(batch.ts, of_row, latest)
        for rows in self.rest:
            yield Held(rows.strip.ts, self._keys_in(rows.position, keys, rows.strip), latest)
        for pending in self.pending:
            for segment, slots in pending.rows():
                yield from self._held_rows(keys, self.matcher.alone(pending.position, segment.strip(slots)))
        for batch in self.hold.batches():
            yield from self._held_rows(keys, batch)

    def _held_rows(self, keys: Sequence[int], rows: Batch) -> Iterator[Held]:
        for columns in self.groups.outputs_of(keys):
            yield Held(rows.ts, [(rows.columns[at], rows.valid[at]) for at in columns])

    def _keys_in(self, position: int, keys: Sequence[int], rows: Strip) -> list[Column] | None:
        own, places = self.groups.columns_of(position, keys), self.matcher.places(position)
        if own is None or not set(own) <= places.keys():
            return None
        return [(rows.columns[places[at]], rows.valid[places[at]]) for at in own]

    def _run_row(self, position: int, reader: Inlet, other: Inlet) -> int | None:
        """`run`, for a row that comes when nothing else waits: every row of streams that are not in a hurry."""
        batch = self.take(reader, 1)
        time = MIN_TIME
        if batch is not None:
            time = batch.ts.item(0)
            if time == MIN_TIME:
                batch = self.stamped(position, batch)
                time = batch.ts.item(0)
        matcher = self.matcher
        reach = matcher.bands.reach
        beside = 1 - position
        lows = [self._promise(0), self._promise(1)]
        # What Bands.floor says of two inputs: Python's integers do not overflow.
        floor = max(lows[beside] - reach[position][beside], MIN_TIME)
        batches: list[Batch] = []
        over = False
        if batch is not None:
            looked = matcher.match_row(position, batch, time, floor, batches)
            if looked is None:
                self._prepare(position, batch)
                self._work(lows, batches)
                over = True
            else:
                self.state_scanned = looked
                over = self.pacing.took_row(position, time)
        mine, theirs = matcher.stores[position], matcher.stores[beside]
        if floor != mine.floor:
            mine.expire(floor)
        floor = max(lows[position] - reach[beside][position], MIN_TIME)
        if floor != theirs.floor:
            theirs.expire(floor)
        if batches:
            self._release(lows, batches)
        self.paced = False
        if over or matcher.failed or self.output.punctuates:
            return self._close(lows)
        return None

    def _may_give_up(self, lows: Sequence[int]) -> bool:
        return any(pending.may_give_up(lows) for pending in self.pending)

    def _may_leave(self, lows: Sequence[int]) -> bool:
        """Whether the first row that is held back may be emitted."""
        if not self.hold.count:
            return False
        head = self.hold.head_us()
        assert head is not None
        return self.order == "arrival" or head <= self._lowest(lows)

    def _take(self, limit: int) -> None:
        """Take rows, at most `limit` in all, into `rest`."""
        if self._standing():
            self._take_lines(limit)  # in mode `arrival`: what stood in line before the order was changed
        if self.mode == "arrival":
            self._take_arcs(limit)

    def _take_arcs(self, limit: int) -> None:
        inputs = self.inputs
        for _ in inputs:
            if self.taken >= limit:
                break
            turn = self._turn
            batch = self.take(inputs[turn], limit - self.taken)
            if batch is not None:
                self._prepare(turn, self.stamped(turn, batch))
            self._turn = turn + 1 if turn + 1 < len(inputs) else 0

    def _take_lines(self, limit: int) -> None:
        through = self.horizon() if self.mode == "sync" else MAX_TIME
        for position, share in enumerate(shares(self.waiting, through, limit)):
            batch = merge_by_time([self.waiting[position]], through, share) if share else None
            if batch is not None:
                self.left_line(position, len(batch))
                self._prepare(position, batch)
        if self._by_rows and len(self.rest) > 1:
            self.rest = deque(in_turns(list(self.rest)))

    def _prepare(self, position: int, batch: Batch) -> None:
        rows = self.matcher.prepare(position, batch)
        if rows is None:
            self.pacing.took(position, len(batch), int(batch.ts.min()), int(batch.ts.max()))
            return
        self.pacing.took(position, len(batch), rows.least, rows.greatest)
        self.rest.append(rows)

    def _work(self, outside: list[int], batches: list[Batch]) -> None:
        """Let the rows look for matches, and store them. `outside`: per input the least time of rows not taken."""
        rest = self.rest
        matcher = self.matcher
        lows = self._with_rest(outside)
        while rest and self.state_scanned <= MOST_LOOKED:
            rows = rest.popleft()
            done, looked = matcher.match(rows, MOST_LOOKED - self.state_scanned, batches)
            self.state_scanned += looked
            if done < rows.count:
                rest.appendleft(rows.part(done, rows.count))
                rows = rows.part(0, done)
            if not self._by_rows:  # those may come in thousands of turns, and most are kept whatever their time
                lows = self._with_rest(outside)
            placed = matcher.remember(rows, matcher.bands.floor(rows.position, lows))
            for pending in self.pending:
                if pending.position == rows.position:
                    pending.watch(placed, rows.greatest)
            if self.ahead and placed:
                fresh = [(segment, np.arange(start, segment.count)) for segment, start in placed]
                self._drop(rows.position, fresh, matcher.bands.floor(rows.position, lows), batches)

    def _expire(self, lows: Sequence[int]) -> None:
        """Drop rows that can match nothing more."""
        bands = self.matcher.bands
        for position, store in enumerate(self.matcher.stores):
            floor = bands.floor(position, lows)
            for pending in self.pending:
                if pending.count and pending.position == position:
                    floor = min(floor, pending.head_us())
            store.expire(floor)

    def _release(self, lows: Sequence[int], batches: list[Batch]) -> None:
        """Emit what may leave."""
        if self.order == "arrival" and not self.hold.count:
            out = Batch.concat(batches) if batches else None
        else:
            for batch in batches:
                self.hold.put(batch)
            low = MAX_TIME if self.order == "arrival" else self._lowest(lows)
            out = merge_by_time([self.hold], low, MOST_LOOKED) if self.hold.count else None
        if out is not None:
            self.state_scanned = max(self.state_scanned, len(out.ts))
            self.emit(out)

    # -- changing the order --------------------------------------------------------------------------------------------

    def check_order(self, order: Order | None, alpha: float | None) -> None:
        if order is not None and order not in ORDERS:
            raise Refuse(f"{self.name}: unknown order {order!r}: expected one of {', '.join(ORDERS)}")
        if alpha is not None and not alpha >= 0:
            raise Refuse(f"{self.name}: expected alpha (a number of at least 0), got {alpha}")
        if self._by_rows and order not in (None, "sync"):
            raise Refuse(f"{self.name}: its windows count rows, so it joins in order of time and nothing else")
        if order == "arrival" and self.output.ordered:
            raise Refuse(
                f"{self.name}: a downstream operator needs its rows in order; choose sync, filter or adaptive, or "
                "create the query again with order = 'arrival'"
            )

    @property
    def as_planned(self) -> bool:
        return (self.order, self.pacing.alpha) == self._planned

    def set_order(self, order: Order | None = None, alpha: float | None = None) -> None:
        """Nothing is lost or repeated. A join whose readers were made for an output in order keeps its output in order.
        The caller has called `check_order`."""
        if order is not None:
            self.order = order
        if alpha is not None:
            self.pacing.alpha = alpha
        self._turn_to(self.pacing.choose(self.mode) if self.order == "adaptive" else self.order)
        self.paced = True

    def decision(self) -> tuple[Order, float]:
        return self.order, self.pacing.alpha

    def decide(self, decision: tuple[Order, float]) -> None:
        self.set_order(*decision)

    def _turn_to(self, mode: Mode) -> None:
        if mode != self.mode:
            self.mode = mode
            self.pacing.switched(mode)
            self.paced = True

    def measured(self, tuples: int, us: float) -> None:
        self.pacing.measured(tuples, us)

    def numbers(self) -> dict[str, Any]:
        """Measurements, NILE's predictions from them, and its mode."""
        return {
            "order": self.order,
            "mode": self.mode,
            **self.pacing.numbers(),
            "held_rows": self.hold.count,
            "closed_rows": self.closed_rows,
            "switches": self.pacing.switches,
            "last_switches": [switch._asdict() for switch in self.pacing.last],
        }

    # -- state ---------------------------------------------------------------------------------------------------------

    def _account(self, sign: int) -> None:
        """Rows in `rest` count as queued before their inputs, between executions."""
        for rows in self.rest:
            self.inputs[rows.position].account(sign * rows.count)

    def held_tuples(self) -> int:
        return super().held_tuples() + sum(rows.count for rows in self.rest)

    def queue_tuples(self, position: int) -> int:
        return super().queue_tuples(position) + sum(rows.count for rows in self.rest if rows.position == position)

    @property
    def closed_rows(self) -> int:
        """Stored tuples dropped because their groups were over."""
        return sum([store.closed for store in self.matcher.stores])

    @property
    def state_tuples(self) -> int:
        held = self.hold.count
        for store in self.matcher.stores:
            held += store.tuples
        return held

    @property
    def state_bytes(self) -> int:
        held = (self.hold.count + sum(pending.count for pending in self.pending)) * self.output.width
        return sum(store.nbytes for store in self.matcher.stores) + held

    def clear(self) -> None:
        super().clear()
        self._account(-1)
        self.rest.clear()

    def save(self) -> Any:
        own = [self.order, self.mode, self._turn, self.paced, self._stamps, *([self.frontier] if self.frontier else [])]
        waiting = [self.hold.save(), [pending.save() for pending in self.pending], [rows.save() for rows in self.rest]]
        return [
            super().save(),
            own,
            waiting,
            [store.save() for store in self.matcher.stores],
            self.pacing.save(),
            self.groups.save(),
        ]

    def restore(self, data: Any) -> None:
        lines, own, (hold, unmatched, rest), stores, tempo, groups = data
        super().restore(lines)
        self.order, self.mode, self._turn, self.paced, self._stamps, *frontier = own
        if frontier:
            (self.frontier,) = frontier
        self.hold.restore(hold)
        for pending, saved in zip(self.pending, unmatched, strict=True):
            pending.restore(saved)
        self.rest = deque(Incoming.restore(rows) for rows in rest)
        self._account(1)
        for store, saved in zip(self.matcher.stores, stores, strict=True):
            store.restore(saved)
        self.pacing.restore(tempo)
        self.groups.restore(groups)
        self._look_ahead()


def in_turns(rows: Sequence[Incoming]) -> list[Incoming]:
    """The rows of several inputs, each in order of time, cut so that they follow each other in order of time.

    Equal times: in order of the inputs.
    """
    order = np.argsort(np.concatenate([incoming.strip.ts for incoming in rows]), kind="stable")
    owners = np.repeat(np.arange(len(rows)), [incoming.count for incoming in rows])[order]
    cuts = np.flatnonzero(owners[1:] != owners[:-1]) + 1
    taken = [0] * len(rows)
    turns = []
    for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(owners)], strict=True):
        owner = int(owners[start])
        turns.append(rows[owner].part(taken[owner], taken[owner] + stop - start))
        taken[owner] += stop - start
    return turns
