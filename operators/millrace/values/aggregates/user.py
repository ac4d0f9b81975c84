"""Aggregates written by users: init, iterate, terminate, and merge if they can.

    init()                      the state of an empty group
    iterate(state, *arguments)  the state with one more row (it may change its argument); if vectorised,
                                with more rows, as arrays
    terminate(state)            the result, None for null; it may be called again
    merge(state, other)         both in one

Rows with a null argument are left out, as with every aggregate. States are plain data (numbers, texts, bytes, lists,
dicts, arrays of numbers), because they are saved. Without `merge`, a group whose parts have to be put together (sliding
windows, sessions) keeps its rows and iterates over them in order of time when it ends. One that raises costs the row of
its group and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from millrace.protocol import MAX_INT64, MIN_INT64, Type
from millrace.values.aggregates.accumulator import Accumulator, Rows, numbers
from millrace.values.batch import FILLERS, Int64s, Values, column_of, object_array
from millrace.values.functions.faults import told, user_fault
from millrace.values.functions.user import CHECKS, RAISED
from millrace.values.functions.vectors import Vector

# How deep a state may be nested: the form in which it is saved has its bound.
DEEPEST: Final = 32


@dataclass(frozen=True, slots=True)
class UserFunctions:
    """The functions of a user's aggregate."""

    name: str
    arity: int
    init: Callable[[], Any]
    iterate: Callable[..., Any]
    terminate: Callable[[Any], Any]
    merge: Callable[[Any, Any], Any] | None = None
    vectorised: bool = False


class UserAccumulator(Accumulator):
    """A state per group, and the groups that have failed.

    states   by slot: None (nothing seen), or [state]; where rows are kept [(time, arguments), ...]
    failed   by slot the text of the exception
    """

    def __init__(self, functions: UserFunctions, result: Type, whole: bool) -> None:
        self._functions = functions
        self._result = result
        self._keeps = functions.merge is None and not whole
        self.states: list[list[Any] | None] = []
        self.failed: dict[int, str] = {}

    def reserve(self, room: int) -> None:
        self.states += [None] * (room - len(self.states))

    def clear(self, slots: Int64s) -> None:
        for slot in slots.tolist():
            self.states[slot] = None
            self.failed.pop(slot, None)

    # -- taking --------------------------------------------------------------------------------------------------------

    def update(self, slots: Int64s, columns: Sequence[Values], ts: Int64s) -> None:
        # A FILTER without arguments has an additional column.
        columns = columns[: self._functions.arity]
        if self._keeps:
            self._keep(slots, columns, ts)
        elif self._functions.vectorised:
            order = np.argsort(slots, kind="stable")
            ordered = slots[order]
            edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
            parts = [np.split(column[order], edges) for column in columns]
            for at, start in enumerate([0, *edges.tolist()]):
                self._iterate(int(ordered[start]), [part[at] for part in parts])
        else:
            with np.errstate(all="ignore"):
                self._iterate_rows(slots.tolist(), _rows(columns, len(slots)))

    def _iterate_rows(self, slots: Sequence[int], rows: Sequence[Sequence[Any]]) -> None:
        """As `_iterate` for each row, where it is called for thousands."""
        states, iterate = self.states, self._functions.iterate
        for slot, row in zip(slots, rows, strict=True):
            held = states[slot]
            if held is None:
                self._iterate(slot, row)
                continue
            try:
                state = iterate(held[0], *row)
                held[0] = state.item() if isinstance(state, np.generic) else state
            except RAISED as error:
                self._fail(slot, error)

    def _keep(self, slots: Int64s, columns: Sequence[Values], ts: Int64s) -> None:
        for slot, time, row in zip(slots.tolist(), ts.tolist(), _rows(columns, len(slots)), strict=True):
            kept = self.states[slot]
            if kept is None:
                kept = self.states[slot] = []
            kept.append([time, list(row)])

    def _iterate(self, slot: int, row: Sequence[Any]) -> None:
        if slot in self.failed:
            return
        held = self.states[slot]
        try:
            state = self._functions.init() if held is None else held[0]
            state = self._called(state, row)
            if held is None:
                plain(state)
            self.states[slot] = [state]
        except RAISED as error:
            self._fail(slot, error)

    def _called(self, state: Any, row: Sequence[Any]) -> Any:
        with np.errstate(all="ignore"):
            state = self._functions.iterate(state, *row)
        # A number stays a Python number, as it is when it has been saved.
        return state.item() if isinstance(state, np.generic) else state

    def _fail(self, slot: int, error: BaseException) -> None:
        self.failed[slot] = told(error)
        self.states[slot] = None

    def merge(self, other: Self, slots: Int64s, rows: Rows) -> None:
        for slot, at in zip(slots.tolist(), numbers(rows), strict=True):
            theirs = other.states[at]
            if at in other.failed:
                self.failed[slot] = other.failed[at]
                self.states[slot] = None
            if theirs is None or slot in self.failed:
                continue
            own = self.states[slot]
            if self._keeps:
                self.states[slot] = [*(own or ()), *theirs]
            else:
                self._merge(slot, own, theirs)

    def _merge(self, slot: int, own: list[Any] | None, theirs: list[Any]) -> None:
        assert self._functions.merge is not None
        try:
            # A copy: a pane is merged into several windows, and the user's function may keep its arguments.
            state = self._functions.init() if own is None else own[0]
            self.states[slot] = [self._functions.merge(state, deepcopy(theirs[0]))]
        except RAISED as error:
            self._fail(slot, error)

    # -- giving --------------------------------------------------------------------------------------------------------

    def finish(self, slots: Int64s) -> Vector:
        count = len(slots)
        faults = np.zeros(count, np.uint8)
        valid = np.ones(count, np.bool_)
        values = [FILLERS[self._result]] * count
        check = CHECKS[self._result]
        called = f"{self._functions.name}()"
        for at, slot in enumerate(slots.tolist()):
            if slot in self.failed:
                faults[at] = user_fault(called, self.failed[slot])
                continue
            try:
                found = self._terminate(slot)
                if found is None:
                    valid[at] = False
                else:
                    values[at] = check(found)
            except RAISED as error:
                faults[at] = user_fault(called, told(error))
        return column_of(self._result, values), None if valid.all() else valid, faults if faults.any() else None

    def _terminate(self, slot: int) -> Any:
        held = self.states[slot]
        functions = self._functions
        if not self._keeps:
            return functions.terminate(functions.init() if held is None else held[0])
        state = functions.init()
        rows = [row for _, row in sorted(held or (), key=lambda kept: kept[0])]
        if functions.vectorised and rows:
            state = self._called(state, [_array(values) for values in zip(*rows, strict=True)])
        elif not functions.vectorised:
            for row in rows:
                state = self._called(state, row)
        return functions.terminate(state)

    # -- state ---------------------------------------------------------------------------------------------------------

    def save(self, count: int) -> Any:
        if self._keeps:
            return [self.states[:count], []]
        saved: list[Any] = [None] * count
        for slot, held in enumerate(self.states[:count]):
            try:
                saved[slot] = None if held is None else [plain(held[0])]
            except RAISED as error:
                self._fail(slot, error)
        return [saved, [[slot, text] for slot, text in self.failed.items()]]

    def restore(self, data: Any) -> None:
        states, failed = data
        self.states[: len(states)] = states
        self.failed = dict(failed)

    @property
    def nbytes(self) -> int:
        return 8 * len(self.states)


def plain(state: Any, depth: int = 0) -> Any:
    """A state as plain data; TypeError names the part that cannot be saved."""
    kind = type(state)
    if depth > DEEPEST:
        raise TypeError(f"the state has more than {DEEPEST} levels of nesting")
    if isinstance(state, np.generic):
        return plain(state.item(), depth + 1)
    if kind is int and not MIN_INT64 <= state <= MAX_INT64:
        raise TypeError("the state contains an integer of more than 64 bits")
    if kind in (type(None), bool, int, float, str, bytes):
        return state
    if kind in (list, tuple):
        return kind([plain(item, depth + 1) for item in state])
    if kind is dict:
        return {plain(key, depth + 1): plain(value, depth + 1) for key, value in state.items()}
    if kind is np.ndarray and not state.dtype.hasobject:
        return state.copy()
    raise TypeError(
        "expected a state of numbers, texts, bytes, lists, tuples, dicts or arrays of numbers, got one with a "
        f"{kind.__name__}"
    )


def _rows(columns: Sequence[Values], count: int) -> Sequence[Sequence[Any]]:
    if not columns:
        return [()] * count
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _array(values: Sequence[Any]) -> Values:
    """Values of one type as an array of its kind."""
    return object_array(values) if isinstance(values[0], str | bytes) else np.array(values)
