"""Aggregates written by users: init, iterate, terminate, and merge if they can.

    init()                      the state of a group that has seen nothing
    iterate(state, *arguments)  the state with one more row (it may change the state it is given)
    terminate(state)            the result, None for null
    merge(state, other)         both in one

Rows with a null argument are left out, as with every aggregate. States are plain data (numbers, texts, bytes, lists,
dicts), because they are saved. Without `merge`, a group whose parts have to be put together (sliding windows,
sessions) keeps its rows and iterates over them in order of time when it ends. One that raises costs the row of its
group and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from millrace.operators.aggregates.accumulator import Accumulator
from millrace.operators.batch import DTYPES, FILLERS, Int64s, Values, object_array
from millrace.operators.functions.faults import Fault
from millrace.operators.functions.vectors import Vector
from millrace.protocol import Type


@dataclass(frozen=True, slots=True)
class UserFunctions:
    """What a user gives."""

    init: Callable[[], Any]
    iterate: Callable[..., Any]
    terminate: Callable[[Any], Any]
    merge: Callable[[Any, Any], Any] | None = None


class UserAccumulator(Accumulator):
    """A state per group, and the groups that have failed.

    states   by slot: None (nothing seen), or [state]; without `merge` [(time, arguments), ...]
    """

    def __init__(self, functions: UserFunctions, result: Type, whole: bool) -> None:
        self._functions = functions
        self._result = result
        self._keeps = functions.merge is None and not whole
        self.states: list[list[Any] | None] = []
        self.failed: dict[int, None] = {}

    def reserve(self, room: int) -> None:
        self.states += [None] * (room - len(self.states))

    def clear(self, slots: Int64s) -> None:
        for slot in slots.tolist():
            self.states[slot] = None
            self.failed.pop(slot, None)

    def update(self, slots: Int64s, columns: Sequence[Values], ts: Int64s) -> None:
        arguments = zip(*(column.tolist() for column in columns), strict=True) if columns else [()] * len(slots)
        for slot, time, row in zip(slots.tolist(), ts.tolist(), arguments, strict=True):
            if self._keeps:
                kept = self.states[slot]
                if kept is None:
                    kept = self.states[slot] = []
                kept.append([time, list(row)])
            elif slot not in self.failed:
                self._iterate(slot, row)

    def _iterate(self, slot: int, row: Sequence[Any]) -> None:
        try:
            held = self.states[slot]
            state = self._functions.init() if held is None else held[0]
            self.states[slot] = [self._functions.iterate(state, *row)]
        except Exception:  # a user's function may raise anything
            self.failed[slot] = None

    def merge(self, other: Self, slots: Int64s, start: int, stop: int) -> None:
        for slot, at in zip(slots.tolist(), range(start, stop), strict=True):
            theirs = other.states[at]
            if at in other.failed:
                self.failed[slot] = None
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
            # A copy: a pane is merged into several windows, and the user may keep what is given.
            state = self._functions.init() if own is None else own[0]
            self.states[slot] = [self._functions.merge(state, deepcopy(theirs[0]))]
        except Exception:
            self.failed[slot] = None

    def finish(self, slots: Int64s) -> Vector:
        count = len(slots)
        faults = np.zeros(count, np.uint8)
        valid = np.ones(count, np.bool_)
        values = [FILLERS[self._result]] * count
        for at, slot in enumerate(slots.tolist()):
            try:
                found = self._terminate(slot)
                if found is None:
                    valid[at] = False
                else:
                    values[at] = found
            except Exception:
                faults[at] = Fault.USER_FUNCTION
        dtype = DTYPES[self._result]
        array = object_array(values) if dtype.hasobject else np.array(values, dtype)
        return array, None if valid.all() else valid, faults if faults.any() else None

    def _terminate(self, slot: int) -> Any:
        if slot in self.failed:
            raise ValueError("failed before")
        held = self.states[slot]
        functions = self._functions
        state = functions.init() if held is None else held[0]
        if self._keeps:
            state = functions.init()
            for _, row in sorted(held or (), key=lambda kept: kept[0]):
                state = functions.iterate(state, *row)
        found = functions.terminate(state)
        if found is not None:
            DTYPES[self._result].type(found)
        return found

    def save(self, count: int) -> Any:
        return [self.states[:count], list(self.failed)]

    def restore(self, data: Any) -> None:
        states, failed = data
        self.states[: len(states)] = states
        self.failed = dict.fromkeys(failed)

    @property
    def nbytes(self) -> int:
        return 8 * len(self.states)
