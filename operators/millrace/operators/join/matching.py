"""Matching new rows of one input with the stored rows of the others: which columns that takes, and in which order.

A new row looks through the other inputs one after the other, first those that equalities tie to inputs already bound.
What is found on the way lives only as long as the execution, a bounded number of combinations at a time: no pair is
ever stored. A combination is found once, by its row that is processed last, because a row is stored only after it has
looked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from millrace.operators.join.bands import Bands
from millrace.operators.join.segments import (
    NONE_UNLINKED,
    SOME_TIME_US,
    Found,
    Identify,
    IdentifyRow,
    Segment,
    SegmentStore,
    Shape,
    Strip,
    identity_of,
    identity_of_row,
)
from millrace.operators.join.spec import Equal, JoinSpec
from millrace.protocol import Refuse, Schema, Type
from millrace.values.batch import FILLERS, Batch, Bools, Int64s, Values, constant_column, constant_int64
from millrace.values.evaluate import compile_columns, compile_predicate
from millrace.values.eventtime import UNBOUNDED_US
from millrace.values.expression import TIME, Column, Expression

# More inputs than this are more likely an error than a request.
MOST_INPUTS: Final = 6

# Two inputs, each with the column of its side that must equal the other's.
Equality = tuple[tuple[int, int], tuple[int, int]]


class Check(NamedTuple):
    """A column of the looked-up input that must equal a column of a bound one."""

    column: int
    bound: int
    bound_column: int


@dataclass(frozen=True, slots=True)
class Step:
    """Look an input up for the inputs already bound.

    target   the input, and which `index` of its store
    checks   the equalities, `own` their columns in what is bound; `identify` makes keys of such columns, which say all
             if they are `exact`
    around   per bound input how much earlier and later than its row the target's may be
    carry    per input, the target among them, the columns that are needed further on
    """

    target: int
    index: int
    checks: tuple[Check, ...]
    own: tuple[int, ...]
    identify: Identify
    exact: bool
    around: tuple[tuple[int, int, int], ...]
    carry: tuple[tuple[int, tuple[int, ...]], ...]


class Way(NamedTuple):
    """How a row that comes by itself is matched and stored: which columns of its batch are stored and which are its
    key, how much earlier and later than it a partner may be, where the partners are and where it goes itself."""

    step: Step
    columns: tuple[int, ...]
    key: tuple[int, ...]
    identify: IdentifyRow
    below: int
    above: int
    others: SegmentStore
    own: SegmentStore


class Incoming:
    """New rows of one input, ready to be matched and stored: all columns that its store keeps.

    unlinked   which rows can match nothing (a key is null) and are kept for their own sake; empty if none
    matched    which rows have matched something, if that is to be known
    """

    __slots__ = ("_identities", "count", "greatest", "least", "matched", "position", "strip", "unlinked")

    def __init__(
        self, position: int, strip: Strip, unlinked: Values = NONE_UNLINKED, matched: Bools | None = None
    ) -> None:
        self.position = position
        self.strip = strip
        self.unlinked = unlinked
        self.matched = matched
        self._identities: dict[tuple[int, ...], Int64s] = {}
        ts = strip.ts
        self.count = len(ts)
        if self.count == 1:
            self.least = self.greatest = ts.item(0)
        else:
            self.least, self.greatest = int(ts.min()), int(ts.max())

    def identity(self, columns: tuple[int, ...], identify: Identify) -> Int64s:
        """The identities of the rows' keys over these columns."""
        numbers = self._identities.get(columns)
        if numbers is None:
            numbers = self._identities[columns] = identify([self.strip.columns[at] for at in columns], self.count)
        return numbers

    def part(self, start: int, stop: int) -> Incoming:
        """Rows from one to another."""
        if start == 0 and stop == self.count:
            return self
        part = Incoming(
            self.position,
            self.strip.part(start, stop),
            self.unlinked[start:stop],
            None if self.matched is None else self.matched[start:stop],
        )
        part._identities = {columns: keys[start:stop] for columns, keys in self._identities.items()}
        return part

    def take(self, rows: Int64s) -> Incoming:
        incoming = Incoming(
            self.position,
            self.strip.take(rows, range(len(self.strip.columns))),
            self.unlinked[rows] if len(self.unlinked) else NONE_UNLINKED,
            None if self.matched is None else self.matched[rows],
        )
        incoming._identities = {columns: keys[rows] for columns, keys in self._identities.items()}
        return incoming

    def save(self) -> list[Any]:
        strip = self.strip
        arrays = [strip.ts, np.ascontiguousarray(strip.arrival), list(strip.columns), list(strip.valid)]
        return [self.position, *arrays, self.unlinked, self.matched]

    @staticmethod
    def restore(data: Sequence[Any]) -> Incoming:
        position, ts, arrival, columns, valid, unlinked, matched = data
        return Incoming(
            position, Strip(ts, arrival, columns, valid), unlinked, None if matched is None else matched.copy()
        )


class Side:
    """The stored columns of one input: the ones that are emitted or compared, each once."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.columns: list[Expression] = []
        self.keys: list[int] = []
        self.indexes: list[tuple[int, ...]] = []

    def place(self, expression: Expression) -> int:
        """The place of a column; a plain one is the same whatever it is called."""
        for at, column in enumerate(self.columns):
            if column == expression or (
                isinstance(column, Column) and isinstance(expression, Column) and column.position == expression.position
            ):
                return at
        self.columns.append(expression)
        return len(self.columns) - 1

    def key(self, expression: Expression) -> int:
        at = self.place(expression)
        if at not in self.keys:
            self.keys.append(at)
        return at

    def index(self, columns: Sequence[int]) -> int:
        """The number of the index over these columns."""
        key = tuple(columns)
        if key not in self.indexes:
            self.indexes.append(key)
        return self.indexes.index(key)

    @property
    def types(self) -> tuple[Type, ...]:
        return tuple(column.type for column in self.columns)

    def plain(self) -> list[int] | None:
        """The positions of its columns, if they are nothing but columns."""
        positions = [
            column.position for column in self.columns if isinstance(column, Column) and column.position != TIME
        ]
        return positions if len(positions) == len(self.columns) else None


class Matcher:
    """The sides of a join, what each stores, and how a new row finds its combinations."""

    def __init__(self, spec: JoinSpec, inputs: Sequence[Schema], output: Schema) -> None:
        count = len(inputs)
        if not 2 <= count <= MOST_INPUTS:
            raise Refuse(f"a join has 2 to {MOST_INPUTS} inputs, got {count}: join the results of joins instead")
        if spec.outer and count != 2:
            raise Refuse(f"an outer join has two inputs, got {count}: join the results of joins instead")
        if not set(spec.outer) <= {0, 1}:
            raise Refuse(f"an outer join preserves rows of inputs 0 and 1, got {spec.outer}")
        self.bands = Bands(count, spec.bands)
        self.output = output
        self._outer = spec.outer
        self._rows = spec.rows or (None,) * count
        self.sides = [Side(position) for position in range(count)]
        # Where each column of a result comes from: the input, and its place there or TIME.
        self._picked = [
            (at, TIME if position == TIME else self._place(at, position, inputs[at]))
            for _, at, position in spec.columns
        ]
        equal = [self._equality(one) for one in spec.equal]
        self.steps = [self._plan(position, equal) for position in range(count)]
        self._plain = [side.plain() for side in self.sides]
        self._compute = [compile_columns(side.columns) for side in self.sides]
        self.stores = [SegmentStore(self._shape(side)) for side in self.sides]
        self._where = None if spec.where is None else compile_predicate(spec.where)
        self.failed: list[tuple[int, str]] = []
        self._ways = [self._way(position) for position in range(count)]

    # -- planning ------------------------------------------------------------------------------------------------------

    def _place(self, at: int, position: int, schema: Schema) -> int:
        field = schema.fields[position]
        return self.sides[at].place(Column(field.type, field.nullable, position, field.name))

    def _equality(self, equal: Equal) -> Equality:
        left, right = equal.left_key, equal.right_key
        assert left.type is right.type, f"{left} and {right} are compared, but have different types"
        return (equal.left, self.sides[equal.left].key(left)), (equal.right, self.sides[equal.right].key(right))

    def _plan(self, position: int, equal: Sequence[Equality]) -> tuple[Step, ...]:
        """The order in which a new row of an input looks through the others."""
        bound = [position]
        order: list[tuple[int, tuple[Check, ...]]] = []
        while len(bound) < len(self.sides):
            choices = [
                (target, self._checks(target, bound, equal)) for target in range(len(self.sides)) if target not in bound
            ]
            # Most equalities first; of as many, the one whose rows may lie least far apart in time.
            target, checks = max(choices, key=lambda one: (len(one[1]), -self._nearest(bound, one[0]), -one[0]))
            order.append((target, checks))
            bound.append(target)
        steps: list[Step] = []
        for number, (target, checks) in enumerate(order):
            known = [position, *(earlier for earlier, _ in order[:number])]
            later = [check for _, ahead in order[number + 1 :] for check in ahead]
            identify, exact = identity_of([self.sides[target].columns[check.column].type for check in checks])
            steps.append(
                Step(
                    target,
                    self.sides[target].index([check.column for check in checks]),
                    checks,
                    tuple(check.bound_column for check in checks),
                    identify,
                    exact,
                    tuple((one, self.bands.reach[target][one], self.bands.reach[one][target]) for one in known),
                    tuple((one, self._needed(one, later)) for one in [*known, target]),
                )
            )
        return tuple(steps)

    def _checks(self, target: int, bound: Sequence[int], equal: Sequence[Equality]) -> tuple[Check, ...]:
        checks = []
        for one, other in equal:
            for (a, mine), (b, theirs) in ((one, other), (other, one)):
                if a == target and b in bound:
                    checks.append(Check(mine, b, theirs))
        return tuple(dict.fromkeys(checks))

    def _nearest(self, bound: Iterable[int], target: int) -> int:
        return min(self.bands.width(side, target) for side in bound)

    def _needed(self, one: int, later: Iterable[Check]) -> tuple[int, ...]:
        picked = {at for side, at in self._picked if side == one and at != TIME}
        return tuple(sorted(picked | {check.bound_column for check in later if check.bound == one}))

    def _shape(self, side: Side) -> Shape:
        others = [other for other in range(len(self.sides)) if other != side.position]
        widest = max(self.bands.width(side.position, other) for other in others)
        shift = max(widest, 1).bit_length() if widest < UNBOUNDED_US else 63
        span = None
        if self.bands.expires(side.position):
            span = max(1, widest) if widest < UNBOUNDED_US else SOME_TIME_US
        newest = self._rows[side.position]
        return Shape(side.types, tuple(side.indexes), span, min(shift, 63), newest, self._watches(side.position))

    # -- new rows ------------------------------------------------------------------------------------------------------

    def prepare(self, position: int, batch: Batch) -> Incoming | None:
        """A batch's rows with the columns that the join needs. Rows that cannot match or be missed are left out."""
        kept: Bools | None = None
        plain = self._plain[position]
        if plain is not None:
            columns, valid = [batch.columns[at] for at in plain], [batch.valid[at] for at in plain]
        else:
            columns, valid, errors = self._compute[position](batch)
            if errors is not None:
                self.failed.append((int(errors.rows.sum()), errors.reason))
                kept = ~errors.rows
        unlinked = NONE_UNLINKED
        masks = [mask for at in self.sides[position].keys if (mask := valid[at]) is not None]
        if masks:
            keyed = np.logical_and.reduce(masks)
            if not keyed.all():
                if self._rows[position] is not None or self._watches(position):
                    unlinked = (~keyed).view(np.uint8)
                else:
                    kept = keyed if kept is None else kept & keyed
        matched = np.zeros(len(batch.ts), np.bool_) if self._watches(position) else None
        strip = Strip(batch.ts, batch.arrival, columns, valid)
        if kept is None:
            return Incoming(position, strip, unlinked, matched)
        rows = np.flatnonzero(kept)
        return Incoming(position, strip, unlinked, matched).take(rows) if len(rows) else None

    def _way(self, position: int) -> Way | None:
        """The way of a row by itself, if nothing is to be computed, counted or watched for it."""
        plain = self._plain[position]
        (step, *deeper) = self.steps[position]
        side = self.sides[position]
        if deeper or plain is None or self._outer or any(self._rows) or side.indexes != [step.own]:
            return None
        ((_, below, above),) = step.around
        identify = identity_of_row([side.types[at] for at in step.own])
        key = tuple(plain[at] for at in step.own)
        return Way(step, tuple(plain), key, identify, below, above, self.stores[step.target], self.stores[position])

    def places(self, position: int) -> dict[int, int]:
        """By column of an input, where it is stored."""
        columns = self.sides[position].columns
        return {column.position: at for at, column in enumerate(columns) if isinstance(column, Column)}

    def index_of(self, position: int, columns: Sequence[int]) -> tuple[int, list[int]] | None:
        """The index of an input's store over exactly these columns, and which of them it has, in order."""
        places = self.places(position)
        wanted = [places.get(column) for column in columns]
        for index, key in enumerate(self.sides[position].indexes):
            if set(key) == set(wanted):
                return index, [wanted.index(place) for place in key]
        return None

    @property
    def takes_rows(self) -> bool:
        """Whether `match_row` applies."""
        return None not in self._ways

    def match_row(self, position: int, batch: Batch, time: int, floor: int, given: list[Batch]) -> int | None:
        """What `prepare`, `match` and `remember` do together, for the one row of a batch, which has this time, in fewer
        steps; at how many others it looked, or None, with nothing done, if it takes more than that."""
        way = self._ways[position]
        if way is None or batch.valid.count(None) != len(batch.valid):
            return None
        step, kept, key_columns, identify, below, above, others, own = way
        columns = batch.columns
        key = identify(columns, key_columns)
        found = others.probe_row(key, time - below, time + above)
        looked = 0
        if found is not None:
            looked = len(found.rows)
            strip = self._strip(batch, kept)
            if looked == 1 and self._where is None:
                self._give_pair(step, position, strip, found, given)
            elif self._verify(step, {position: strip}, found):
                self._give(self._bind(step, {position: strip}, found), found.rows, given)
        if time >= floor and not own.put_row(time, batch.arrival.item(0), columns, kept, key):
            own.put(self._strip(batch, kept), time, time, [np.array((key,), np.int64)])
        return looked

    def _give_pair(self, step: Step, position: int, row: Strip, pairs: Found, batches: list[Batch]) -> None:
        """What `_verify`, `_bind` and `_give` do, for one row and the one that it found."""
        ((segment, slots),) = pairs.parts
        slot = slots.item(0)
        if not step.exact:
            for check in step.checks:
                if segment.columns[check.column][slot] != row.columns[check.bound_column][0]:
                    return
        ts = constant_int64(max(row.ts.item(0), segment.ts.item(slot)), 1)
        arrival = constant_int64(max(row.arrival.item(0), segment.arrival.item(slot)), 1)
        columns: list[Values] = []
        valid: list[Bools | None] = []
        for side, at in self._picked:
            if side == position:
                columns.append(row.ts if at == TIME else row.columns[at])
                valid.append(None)
            else:
                mask = None if at == TIME else segment.valid[at]
                columns.append((segment.ts if at == TIME else segment.columns[at])[slots])
                valid.append(None if mask is None else mask[slots])
        batches.append(Batch(self.output, ts, columns, valid, arrival))

    @staticmethod
    def _strip(batch: Batch, columns: Sequence[int]) -> Strip:
        """A batch without nulls, with these columns."""
        return Strip(batch.ts, batch.arrival, [batch.columns[at] for at in columns], (None,) * len(columns))

    def _watches(self, position: int) -> bool:
        """Whether it is to be known which rows of an input have matched."""
        return position in self._outer

    def remember(self, rows: Incoming, floor: int) -> list[tuple[Segment, int]]:
        """Put rows into their input's store, but for those below the floor, which can match nothing any more.

        Rows whose match is to be known are all put. Each segment that got some, and its first new slot.
        """
        position = rows.position
        store = self.stores[position]
        if rows.least < floor and not self._watches(position) and self._rows[position] is None:
            if rows.greatest < floor:
                return []
            rows = rows.take(np.flatnonzero(rows.strip.ts >= floor))
        keys = [rows.identity(index, store.identify[at]) for at, index in enumerate(store.shape.indexes)]
        return store.put(rows.strip, rows.least, rows.greatest, keys, rows.unlinked, rows.matched)

    # -- matching ------------------------------------------------------------------------------------------------------

    def match(self, rows: Incoming, most: int, batches: list[Batch]) -> tuple[int, int]:
        """Find the combinations of new rows with stored rows; how many rows have looked, and at how many others.

        It stops between two rows once they have looked at more than `most`. Rows that have matched are marked, the new
        ones and stored ones, if that is to be known.
        """
        if not len(rows.unlinked) or not rows.unlinked.any():
            return self._match(rows, most, batches)
        origins = np.flatnonzero(rows.unlinked == 0)
        if not len(origins):
            return rows.count, 0
        linked = rows.take(origins)
        done, looked = self._match(linked, most, batches)
        if rows.matched is not None:
            rows.matched[origins] = linked.matched
        return (rows.count if done == linked.count else int(origins[done])), looked

    def _match(self, rows: Incoming, most: int, batches: list[Batch]) -> tuple[int, int]:
        first, *deeper = self.steps[rows.position]
        bound = {rows.position: rows.strip}
        keys = rows.identity(first.own, first.identify)
        ts = rows.strip.ts
        ((_, below, above),) = first.around
        store = self.stores[first.target]
        looked = start = 0
        chunk = count = rows.count
        while start < count:
            pairs = store.probe(first.index, keys, ts, None, below, above, start, min(count, start + chunk))
            if len(pairs.rows):
                looked += len(pairs.rows)
                if self._verify(first, bound, pairs):
                    wider = self._bind(first, bound, pairs)
                    if deeper:
                        looked += self._deepen(deeper, wider, pairs.rows, batches)
                    else:
                        self._mark(rows, pairs, self._give(wider, pairs.rows, batches))
                if looked > most:
                    return pairs.stop, looked
            chunk = 2 * (pairs.stop - start)
            start = pairs.stop
        return count, looked

    def _deepen(self, steps: Sequence[Step], bound: dict[int, Strip], origins: Int64s, batches: list[Batch]) -> int:
        """Extend combinations of some inputs to all inputs; `origins` are the new rows that they come from."""
        first, *deeper = steps
        keys = first.identify([bound[check.bound].columns[check.bound_column] for check in first.checks], len(origins))
        low = np.maximum.reduce([bound[side].ts - before for side, before, _ in first.around])
        high = np.minimum.reduce([bound[side].ts + after for side, _, after in first.around])
        store = self.stores[first.target]
        looked = start = 0
        chunk = count = len(origins)
        while start < count:
            pairs = store.probe(first.index, keys, low, high, 0, 0, start, min(count, start + chunk))
            if len(pairs.rows):
                looked += len(pairs.rows)
                if self._verify(first, bound, pairs):
                    wider = self._bind(first, bound, pairs)
                    if deeper:
                        looked += self._deepen(deeper, wider, origins[pairs.rows], batches)
                    else:
                        self._give(wider, origins[pairs.rows], batches)
            chunk = 2 * (pairs.stop - start)
            start = pairs.stop
        return looked

    def _verify(self, step: Step, bound: dict[int, Strip], pairs: Found) -> bool:
        """Keep the pairs whose keys are equal and not only their identities; whether any is left."""
        if step.exact:
            return True
        same: Bools | None = None
        for check in step.checks:
            column = bound[check.bound].columns[check.bound_column]
            equal = pairs.column(check.column) == column[pairs.rows]
            same = equal if same is None else same & equal
        if same is not None and not same.all():
            pairs.keep(same)
        return len(pairs.rows) > 0

    def _bind(self, step: Step, bound: dict[int, Strip], pairs: Found) -> dict[int, Strip]:
        """The rows of the pairs, each input's with the columns that are needed further on."""
        wider = {side: bound[side].take(pairs.rows, columns) for side, columns in step.carry[:-1]}
        target, columns = step.carry[-1]
        wider[target] = pairs.strip(columns, len(self.sides[target].columns))
        return wider

    def _give(self, bound: dict[int, Strip], origins: Int64s, batches: list[Batch]) -> Bools | None:
        """Add results, in order of the new rows that they come from; which of the combinations are some (None: all)."""
        strips = [bound[side] for side in range(len(self.sides))]
        ts = np.maximum(strips[0].ts, strips[1].ts)
        arrival = np.maximum(strips[0].arrival, strips[1].arrival)
        for strip in strips[2:]:
            ts, arrival = np.maximum(ts, strip.ts), np.maximum(arrival, strip.arrival)
        columns = [strips[side].ts if at == TIME else strips[side].columns[at] for side, at in self._picked]
        valid = [None if at == TIME else strips[side].valid[at] for side, at in self._picked]
        batch = Batch(self.output, ts, columns, valid, arrival)
        mask: Bools | None = None
        if self._where is not None:
            mask, errors = self._where(batch)
            if errors is not None:
                self.failed.append((int(errors.rows.sum()), errors.reason))
            if mask is not None:
                batch, origins = batch.take(mask), origins[mask]
        if len(origins) > 1 and (origins[1:] < origins[:-1]).any():
            batch = batch.take(np.argsort(origins, kind="stable"))
        if len(origins):
            batches.append(batch)
        return mask

    def _mark(self, rows: Incoming, pairs: Found, mask: Bools | None) -> None:
        """Note who has matched."""
        if rows.matched is not None:
            rows.matched[pairs.rows if mask is None else pairs.rows[mask]] = True
        if self._watches(1 - rows.position):
            pairs.mark(mask)

    def alone(self, position: int, rows: Strip) -> Batch:
        """Rows of an input that match nothing, with nulls for the other's."""
        nulls = np.zeros(len(rows.ts), np.bool_)
        columns: list[Values] = []
        valid: list[Bools | None] = []
        for (side, at), field in zip(self._picked, self.output, strict=True):
            if side != position:
                columns.append(constant_column(field.type, FILLERS[field.type], len(nulls)))
                valid.append(nulls)
            else:
                columns.append(rows.ts if at == TIME else rows.columns[at])
                valid.append(None if at == TIME else rows.valid[at])
        return Batch(self.output, rows.ts, columns, valid, rows.arrival)
