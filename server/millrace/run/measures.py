"""What a replay measures of an engine, and how it compares rows: between two engines, and with those delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from millrace.changes.effects import RemoveOutlet, RenameOutlet
from millrace.engine.engine import Engine
from millrace.engine.events import Answer, Arrived, Deliver, Effects, Event, Late
from millrace.engine.faults import ask_quietly
from millrace.journal.past import Playback
from millrace.journal.steps import Step
from millrace.net.freshness import in_json
from millrace.observe.latencies import Latencies
from millrace.operators.frame.operator import Operator
from millrace.protocol import Field, Schema, Type
from millrace.protocol.timestamps import format_timestamp
from millrace.store.results import FOLDER as RESULTS
from millrace.store.retained import RetainedRows, Row
from millrace.values.batch import Batch

# Operators with state that are looked at after each step; with n times as many, after every n-th step.
LOOKED_AT: Final = 64
# Rows that differ, of each side, that are shown.
SHOWN: Final = 3
# Binary digits in which doubles must agree, as 1e-9: a sum depends on the order of its terms.
DIGITS: Final = 30


# -- what is measured --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class QueryMeasures:
    """The rows of one query in one engine."""

    rows: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    peak_tuples: int = 0
    peak_bytes: int = 0

    def to_data(self) -> dict[str, Any]:
        latencies = self.latencies
        p50, p99 = latencies.quantiles_us(50, 99)
        most = latencies.most_us if latencies.rows else None
        return {
            "rows": self.rows,
            "latency_us": {"mean": latencies.mean_us(), "p50": p50, "p99": p99, "max": most},
            "peak_state_tuples": self.peak_tuples,
            "peak_state_bytes": self.peak_bytes,
        }


class Meter:
    """Measures one engine over the span."""

    def __init__(self, engine: Engine) -> None:
        self.queries: dict[str, QueryMeasures] = {}
        self._tuples: Counter[str] = Counter()
        self._late: Counter[str] = Counter()
        self._engine = engine
        self._peak = (0, 0)
        self._steps = 0
        self._stateful: dict[Operator, list[str]] = {}
        self._executed = _executions(engine)
        engine.gauge.peak_tuples, engine.gauge.peak_bytes = engine.gauge.tuples, engine.gauge.bytes
        self.look()

    def stepped(self, events: Sequence[Event], effects: Effects) -> None:
        now_us = self._engine.clock.now_us
        for event in events:
            if isinstance(event, Arrived):
                self._tuples[event.stream] += len(event.batch)
        for order in effects.orders:
            match order:
                case Deliver(query=name, batch=batch) if len(batch.ts):
                    query = self.queries.setdefault(name, QueryMeasures())
                    query.rows += len(batch)
                    query.latencies.add(now_us - np.asarray(batch.arrival))
                case Late(stream=stream, batch=batch):
                    self._late[stream] += len(batch)
                case _:
                    pass
        self._steps += 1
        if self._steps % (len(self._stateful) // LOOKED_AT + 1) == 0:
            self.look()

    def _find(self) -> None:
        """The operators that have a state, and the queries that they belong to."""
        self._stateful.clear()
        for name, query in self._engine.queries_by_name.items():
            self.queries.setdefault(name, QueryMeasures())
            for operator in query.operators:
                if type(operator).state_tuples is not Operator.state_tuples:
                    self._stateful.setdefault(operator, []).append(name)

    def look(self) -> None:
        """Note the state. An operator that queries share counts for each of them."""
        self._find()
        totals: dict[str, tuple[int, int]] = {}
        tuples = bytes_ = 0
        for operator, names in self._stateful.items():
            own = ask_quietly(partial(_state, operator), (0, 0))
            tuples, bytes_ = tuples + own[0], bytes_ + own[1]
            for name in names:
                before = totals.get(name, (0, 0))
                totals[name] = before[0] + own[0], before[1] + own[1]
        self._peak = max(self._peak[0], tuples), max(self._peak[1], bytes_)
        for name, (own_tuples, own_bytes) in totals.items():
            query = self.queries[name]
            query.peak_tuples = max(query.peak_tuples, own_tuples)
            query.peak_bytes = max(query.peak_bytes, own_bytes)

    def streams(self) -> dict[str, dict[str, int]]:
        """By stream: the tuples that arrived, and those of them that were late."""
        return {name: {"tuples": count, "late": self._late[name]} for name, count in self._tuples.items()}

    def totals(self) -> dict[str, Any]:
        gauge = self._engine.gauge
        return {
            "executions": _executions(self._engine) - self._executed,
            "peak_queue_tuples": gauge.peak_tuples,
            "peak_queue_bytes": gauge.peak_bytes,
            "peak_state_tuples": self._peak[0],
            "peak_state_bytes": self._peak[1],
        }


def _state(operator: Operator) -> tuple[int, int]:
    return operator.state_tuples, operator.state_bytes


def _executions(engine: Engine) -> int:
    return sum(component.steps for component in engine.graph.components)


# -- whether the rows are the same -------------------------------------------------------------------------------------


class RowComparison:
    """The rows of one query in both engines.

    ahead   rows that only one of the two has emitted so far: how many more of them the recorded engine has
    order   by engine, a digest of the rows in their order
    last    by engine and update key, the newest row
    """

    def __init__(self, schema: Schema, key: Sequence[int] | None) -> None:
        self.ahead: Counter[Row] = Counter()
        self.order = [0, 0]
        self.last: tuple[dict[Row, Row], dict[Row, Row]] = ({}, {})
        self._schema = schema
        self._key = key

    def add(self, side: int, batch: Batch) -> None:
        digest = self.order[side]
        for row in comparable(batch):
            count = self.ahead[row] + (1 if side == 0 else -1)
            if count:
                self.ahead[row] = count
            else:
                del self.ahead[row]
            digest = hash((digest, row))
            if self._key is not None:
                self.last[side][tuple(row[1 + at] for at in self._key)] = row
        self.order[side] = digest

    def to_data(self) -> dict[str, Any]:
        if not self.ahead:
            verdict = "same" if self.order[0] == self.order[1] else "same, in another order"
        elif self._key is not None and self.last[0] == self.last[1]:
            verdict = "same final rows"
        else:
            verdict = "different"
        only = {
            name: [row for row, count in self.ahead.items() if count * sign > 0]
            for name, sign in (("recorded", 1), ("changed", -1))
        }
        return {
            "verdict": verdict,
            "only_recorded": sum(count for count in self.ahead.values() if count > 0),
            "only_changed": -sum(count for count in self.ahead.values() if count < 0),
            "examples": {name: [shown(self._schema, row) for row in rows[:SHOWN]] for name, rows in only.items()},
        }


def shown(schema: Schema, row: Row) -> dict[str, Any]:
    """A row as JSON, with its time as `$time`."""
    values = {one.name: in_json(_readable(one, value)) for one, value in zip(schema, row[1:], strict=False)}
    return {"$time": format_timestamp(row[0]), **values}


def _readable(one: Field, value: Any) -> Any:
    return format_timestamp(value) if one.type is Type.TIMESTAMP and value is not None else value


def comparable(batch: Batch) -> Iterator[Row]:
    """Rows with their times, whose doubles are rounded to what sums in another order have in common."""
    columns = [_rounded(values) if one.type is Type.DOUBLE else values
               for one, values in zip(batch.schema, batch.columns, strict=True)]  # fmt: skip
    rounded = Batch(batch.schema, batch.ts, columns, batch.valid, batch.arrival)
    return ((ts, *row) for ts, row in zip(batch.ts.tolist(), rounded.rows(), strict=True))


def _rounded(values: Any) -> Any:
    fraction, exponent = np.frexp(np.asarray(values))
    return np.ldexp(np.round(np.ldexp(fraction, DIGITS)), exponent - DIGITS)


# -- whether the server delivered them ---------------------------------------------------------------------------------


def obeyed_notes(step: Step, effects: Effects) -> Iterator[Mapping[str, Any]]:
    """What the server noted of the changes of a step that were not refused."""
    if step.note is not None:
        refused = {order.id for order in effects.orders if isinstance(order, Answer) and order.refused is not None}
        yield from (note for number, note in step.note.items() if number not in refused)


class DeliveredRows:
    """Compares rows with those that the server retains."""

    def __init__(self, folder: Path, playback: Playback) -> None:
        self._queries: dict[str, dict[str, Any]] = {}
        self._folder = folder / RESULTS
        self._histories: dict[str, str] = {name: count[0] for name, count in playback.control["counts"].items()}
        self._retained: dict[str, RetainedRows] = {}

    def follow(self, step: Step, effects: Effects) -> None:
        """Note which history the rows of a query belong to."""
        for note in obeyed_notes(step, effects):
            for name, count in note.get("counts", {}).items():
                self._histories[name] = count[0]
            for effect in note.get("effects", ()):
                match effect:
                    case RenameOutlet(name, to) if name in self._histories:
                        self._histories[to] = self._histories.pop(name)
                    case RemoveOutlet(name):
                        self._histories.pop(name, None)
                    case _:
                        pass

    def compare(self, effects: Effects) -> None:
        for order in effects.orders:
            if isinstance(order, Deliver) and len(order.batch.ts):
                self._compare(order)

    def of(self, query: str) -> dict[str, Any]:
        """How many rows of a query are the same, differ, or are not retained any more; and the first that differs."""
        return self._queries.setdefault(query, {"same": 0, "different": 0, "not_retained": 0, "first": None})

    def _compare(self, order: Deliver) -> None:
        found = self.of(order.query)
        held = self._rows(order.query).read(order.sequence, order.sequence + len(order.batch))
        schema = order.batch.schema
        rows = zip(order.batch.ts.tolist(), *order.batch.lists(), strict=True)
        for number, row in enumerate(rows, order.sequence):
            delivered = held.get(number)
            if delivered is None:
                found["not_retained"] += 1
            elif delivered == row:
                found["same"] += 1
            else:
                found["different"] += 1
                found["first"] = found["first"] or {
                    "number": number,
                    "replayed": shown(schema, row),
                    "delivered": shown(schema, delivered),
                }

    def _rows(self, query: str) -> RetainedRows:
        history = self._histories.get(query, "")
        if history not in self._retained:
            self._retained[history] = RetainedRows(self._folder / history if history else None)
        return self._retained[history]
