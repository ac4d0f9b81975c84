"""A data directory as a server would have left it, of the steps that a test takes with its own clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from millrace.engine.engine import BUDGET, Engine
from millrace.engine.events import AddQuery, Arrived, Command, Deliver, Effects, Event, FeedOpened, Late
from millrace.journal.checkpoints import Checkpoints
from millrace.journal.disk import Buffer, RealDisk
from millrace.journal.replay import Untimed
from millrace.journal.segments import Journal
from millrace.journal.steps import FORM, Start, Step, encode, encode_start
from millrace.offline.script import plan_script
from millrace.store.results import FOLDER as RESULTS
from millrace.store.rowfiles import Head, name_of, write_head, write_record
from millrace.values.batch import Batch

SECOND = 1_000_000
Row = tuple[Any, ...]


class Recording:
    """`rows` are those delivered, by query; `late` counts tuples by stream."""

    def __init__(self, folder: Path, sql: str, segment_bytes: int = 8_192) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.engine = Engine(share=True, stopwatch=Untimed())
        self.journal = Journal.open(RealDisk(folder / "journal"), segment_bytes=segment_bytes)
        self.checkpoints = Checkpoints(folder)
        self.checkpoints.prepare()
        self.now_us = SECOND
        self.rows: dict[str, list[Row]] = {}
        self.late: dict[str, int] = {}
        self.batches: dict[str, list[tuple[int, Batch]]] = {}
        self.checkpoint()
        self.now_us += 1
        self._append(encode_start(Start("test", {})))
        for number, body in enumerate(plan_script(sql).commands, 1):
            name = body.plan.name if isinstance(body, AddQuery) else None
            note = None if name is None else {number: {"counts": {name: [f"history-{name}", 0]}}}
            self.step(Command(number, body), note=note)

    def step(self, *events: Event, budget: int = BUDGET, note: Any = None) -> Effects:
        effects = self.engine.step(self.now_us, events, budget=budget)
        self._append(encode(Step(self.now_us, budget, events, note, effects.results or {})))
        for order in effects.orders:
            match order:
                case Deliver(query, sequence, batch) if len(batch.ts):
                    rows = self.rows.setdefault(query, [])
                    assert sequence == len(rows)
                    rows += zip(batch.ts.tolist(), *batch.lists(), strict=True)
                    self.batches.setdefault(query, []).append((sequence, batch))
                case Late(stream=stream, batch=batch):
                    self.late[stream] = self.late.get(stream, 0) + len(batch)
        return effects

    def feed(self, stream: str, rows: Sequence[Row], **limits: Any) -> Effects:
        """Rows whose first value is their time."""
        schema = self.engine.stream(stream).definition.schema
        return self.step(Arrived(stream, "f", Batch.from_rows(schema, rows, [row[0] for row in rows])), **limits)

    def open(self, *streams: str) -> None:
        self.step(*(FeedOpened(stream, "f") for stream in streams))

    def checkpoint(self) -> int:
        lsn = self.journal.next_lsn - 1
        self.checkpoints.write_state(lsn, self.engine.save_apart)
        self.checkpoints.write_control(
            lsn,
            {
                "form": FORM,
                "server": self.journal.server_id,
                "version": "test",
                "at_us": self.now_us,
                "counts": {name: [f"history-{name}", 0] for name in self.engine.queries_by_name},
            },
        )
        return lsn

    def retain(self) -> None:
        """Leave the delivered rows as retained rows."""
        for query, batches in self.batches.items():
            folder = self.folder / RESULTS / f"history-{query}"
            folder.mkdir(parents=True)
            first, batch = batches[0]
            data = write_head(Head(f"history-{query}", batch.schema, first, None, 0))
            data += b"".join(part for sequence, rows in batches for part in write_record(sequence, rows, 0))
            (folder / name_of(first)).write_bytes(data)

    def close(self) -> None:
        self.journal.sync()
        self.journal.close()

    def _append(self, record: bytes | list[Buffer]) -> None:
        self.journal.append(record)
        self.journal.write()


SQL = """
CREATE STREAM a (at TIMESTAMP, k BIGINT, x DOUBLE) WITH (time = 'at', disorder = '2 seconds');
CREATE STREAM b (at TIMESTAMP, k BIGINT, x DOUBLE) WITH (time = 'at');
CREATE QUERY large AS SELECT at, k, x FROM a WHERE x > 3;
CREATE QUERY both_ WITH (order = 'event') AS SELECT at, k, x FROM a UNION ALL SELECT at, k, x FROM b;
CREATE QUERY totals AS
  SELECT k, count(*) AS n, sum(x) AS s, window_end FROM TUMBLE(a, at, INTERVAL '5 seconds') GROUP BY k;
CREATE QUERY pairs AS
  SELECT a.at, a.k, a.x + b.x AS s FROM a [RANGE '2 seconds'] JOIN b [RANGE '2 seconds'] ON a.k = b.k;
CREATE QUERY running AS SELECT k, count(*) AS n FROM b GROUP BY k;
"""


def play(folder: Path, random: Random, steps: int = 60, sql: str = SQL) -> tuple[Recording, list[tuple[int, bytes]]]:
    """A server that ran for a while; with the time and the saved engine after some of its steps."""
    recording = Recording(folder, sql)
    recording.open("a", "b")
    moments = []
    times = {"a": 0, "b": 0}
    for _ in range(steps):
        recording.now_us += random.choice((0, 1, 1_000, SECOND))
        stream = random.choice("ab")
        rows = []
        for _ in range(random.randrange(1, 20)):
            times[stream] += random.randrange(0, SECOND)
            back = random.choice((0, 0, 0, 1, 2, 4)) * SECOND if stream == "a" else 0
            rows.append((max(times[stream] - back, 0), random.randrange(3), random.randrange(50) / 10))
        recording.feed(stream, rows, budget=random.choice((3, 50, BUDGET)))
        if random.random() < 0.1:
            recording.checkpoint()
        if random.random() < 0.2:
            recording.now_us += 1  # nothing else has this time
            recording.step()
            moments.append((recording.now_us, recording.engine.save()))
            recording.now_us += 1
    while recording.step().more:
        pass
    return recording, moments
