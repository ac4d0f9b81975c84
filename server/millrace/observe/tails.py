"""The newest rows of a place, line by line, for people who look: of a query, a stream, late tuples, or an operator.

Rule: nothing waits for those who look. A line has at most `limit` rows, the newest; rows that came and are not in it
are counted. The cost is that of the shown rows, and of as many more as a condition is tried on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.formats.writers import json_rows
from millrace.net.sink import Outlet
from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.tap import Tap
from millrace.protocol import TOMBSTONE_NAMES, Schema
from millrace.sql.arcs import condition
from millrace.sql.errors import SqlError
from millrace.values.batch import Batch
from millrace.values.evaluate import compile_predicate
from millrace.values.eventtime import is_time

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

# The rows that a condition is tried on for a line: a millisecond or two of work.
TRIED: Final = 10_000
# The most bytes of rows that a place keeps for those who look at it, and that a first line is made of.
MOST_BYTES: Final = 2**22

# Where rows pass: a query's way out of the engine, or an arc.
Place = Outlet | Buffer
Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TailRequest:
    """What a client wants to see: at most `limit` rows per line, a line every so many seconds, the rows from a number
    on (None: later ones alone) for which a condition is true."""

    limit: int
    seconds: float
    first: int | None = None
    where: str | None = None


def place_of(daemon: Daemon, name: str) -> Place | None:
    """Where the rows of a query, a stream or a stream of late tuples pass; None if it does not exist."""
    runner = daemon.runner
    outlet = runner.outlets.get(name) or runner.built_in.get(name)
    if outlet is not None:
        return outlet
    stream = daemon.engine.streams_by_name.get(name)
    return None if stream is None else stream.source.output


def place_of_operator(daemon: Daemon, name: str) -> Place | None:
    """Where the rows of an operator pass."""
    engine = daemon.engine
    return engine.named(name).output if engine.knows(name) else None


class Tail:
    """One who looks. `find` returns the place of now: a change of the graph can put another one in its stead."""

    def __init__(
        self, daemon: Daemon, find: Callable[[], Place | None], wanted: TailRequest, holds: Callable[[], bool]
    ) -> None:
        self._daemon = daemon
        self._find = find
        self._wanted = wanted
        self._holds = holds
        self._place: Place | None = None
        self._tap: Tap | None = None
        self._schema: Schema | None = None
        self._test: Callable[[Batch], tuple[Any, Any]] | None = None
        self._next = 0  # the number of the first row that was not looked at
        self._examined = wanted.limit if wanted.where is None else max(wanted.limit, TRIED)
        place = find()
        assert place is not None
        self._learn(place.schema)

    async def lines(self) -> AsyncGenerator[bytes]:
        """The lines, as long as the place exists and the client is permitted to look."""
        wanted, news = self._wanted, self._daemon.broadcasts.news
        try:
            line: Data | None = await self._begin()
            while True:
                if line is not None:
                    yield msgspec.json.encode(line) + b"\n"
                    if "end" in line:
                        return
                if not self._over():
                    await news.wait(wanted.seconds)
                await self._daemon.runner.at_rest()
                line = self._look()
        finally:
            self._leave()

    async def _begin(self) -> Data:
        """The first line: the columns, and the rows that are there already if some are wanted."""
        await self._daemon.runner.at_rest()
        place, first = self._find(), self._wanted.first
        if place is None:
            return {"end": "gone"}
        tap = self._move(place)
        rows: list[tuple[int, Batch]] = []
        came = 0
        if first is not None and first < tap.end:
            came, end = tap.end - first, tap.end
            if isinstance(place, Outlet):
                found = await place.newest(first, self._examined, MOST_BYTES)
                rows = [(at, batch.slice(0, min(end - at, len(batch)))) for at, batch in found if at < end]
        return {**self._line(rows, came), "columns": columns_of(place.schema)}

    def _look(self) -> Data | None:
        """A line with what came since the last one; None if nothing did."""
        if over := self._over():
            return {"end": over}
        place = self._find()
        if place is None:
            return {"end": "gone"}
        tap = self._move(place)
        more: Data = {}
        if place.schema != self._schema:
            try:
                self._learn(place.schema)
            except SqlError as error:
                return {"end": "changed", "reason": error.text}
            more = {"columns": columns_of(place.schema)}
        came = tap.end - self._next
        if not came and not more:
            return None
        rows = [(at, batch) for at, batch in tap.newest(self._next, self._examined) if batch.schema == self._schema]
        self._next = tap.end
        return {**self._line(rows, came), **more}

    def _over(self) -> str | None:
        """Why the client may look no more."""
        return "stopping" if self._daemon.stopping else None if self._holds() else "token"

    def _line(self, found: list[tuple[int, Batch]], came: int) -> Data:
        """The newest rows for which the condition is true, of so many that came."""
        rows: list[Data] = []
        limit, passed, examined = self._wanted.limit, 0, 0
        for first, batch in reversed(found):
            numbers, passing = range(first, first + len(batch)), batch
            examined += len(batch)
            if self._test is not None:
                mask, _ = self._test(batch)
                if mask is not None:
                    numbers, passing = (mask.nonzero()[0] + first).tolist(), batch.take(mask)
            passed += len(passing)
            skip = max(len(passing) - (limit - len(rows)), 0)
            rows += reversed(rows_of(numbers[skip:], passing.slice(skip, len(passing))))
        line = {"rows": rows[::-1], "skipped": came - examined + passed - len(rows)}
        return line if self._test is None else {**line, "filtered": examined - passed}

    # -- the place -------------------------------------------------------------------------------------

    def _move(self, place: Place) -> Tap:
        """Look at this place, if that is another one than before."""
        if place is not self._place or self._tap is None or place.tap is not self._tap:
            self._leave()
            if place.tap is None:
                end = place.next_sequence if isinstance(place, Outlet) else place.end
                place.tap = Tap(end, MOST_BYTES)
            self._place, self._tap = place, place.tap
            self._tap.watchers += 1
            self._tap.most = max(self._tap.most, self._examined)
            self._next = self._tap.end
        return self._tap

    def _leave(self) -> None:
        """Look no more; the last one to leave takes the tap away."""
        place, tap, self._tap = self._place, self._tap, None
        if place is not None and tap is not None:
            tap.watchers -= 1
            if not tap.watchers and place.tap is tap:
                place.tap = None

    def _learn(self, schema: Schema) -> None:
        """The rows have these columns. Raises SqlError if the condition cannot be computed over them."""
        where = self._wanted.where
        if where is not None:
            self._test = compile_predicate(condition(where, schema, self._daemon.catalog.state.limits))
        self._schema = schema


def columns_of(schema: Schema) -> list[Data]:
    return [{"name": field.name, "type": str(field.type)} for field in schema if field.name not in TOMBSTONE_NAMES]


def rows_of(numbers: Any, batch: Batch) -> list[Data]:
    times = batch.ts.tolist()
    return [
        {"n": number, "at_us": at if is_time(at) else None, "row": row}
        for number, at, row in zip(numbers, times, json_rows(batch), strict=True)
    ]
