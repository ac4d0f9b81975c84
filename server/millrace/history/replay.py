"""A query's past, computed from an archive in a separate process: `python -m millrace.history.replay`.

Years of history would block the server's event loop, so a child process computes them. The two exchange lines of JSON.
The first line describes the query and its archives. Each further line is a round: how far to read, and the promise
about later tuples. After the last round the child writes the state to a file, which the server's engine adopts. A line
of the child has `rows` and `of` (progress), `round` (done), `seam_us` (done with the last), or `error`.

Rule: rows enter the engine in the order of their arrival, file by file over all streams, without late rows. The promise
in between is the least later time, which the files record.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from millrace.engine import lowered
from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.engine.seam import Bootstrap
from millrace.formats.decoder import StreamDecoder
from millrace.history import files as history
from millrace.protocol import MillraceError, Refuse
from millrace.sql import Catalog, parse, plan_all
from millrace.sql.functions import install_module
from millrace.sql.limits import KNOWN
from millrace.values.batch import Batch
from millrace.values.eventtime import MIN_TIME

# Rows per step of the engine: enough for its kernels, with promises in between.
CHUNK: Final = 16_384


@dataclass(frozen=True, slots=True)
class Until:
    """The end of a round in a stream: the tuples numbered below, and the least time of all later ones."""

    below: int
    mark_us: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Files of one stream whose numbers overlap (one per day), their useful rows, and the least later time."""

    stream: str
    paths: tuple[Path, ...]
    first: int
    arrived_us: int
    rows: int
    later: int


class Replay:
    """The past of one query over one archive."""

    def __init__(
        self, folder: Path, streams: Sequence[StreamDefinition], plan: QueryPlan, from_us: int | None = None
    ) -> None:
        self.past = Bootstrap(streams, plan)
        self._streams = {stream.name: stream for stream in streams}
        self._sources = {stream.name: StreamDecoder(stream) for stream in streams}
        self._folders = {stream.name: history.stream_folder(folder, stream.name) for stream in streams}
        self._from_us = MIN_TIME if from_us is None else from_us
        self._next = dict.fromkeys(self._streams, 0)
        self.rows = 0

    def round(self, until: Mapping[str, Until], report: Callable[[int, int], None]) -> None:
        """Read all new tuples below the limits."""
        pieces = [piece for stream, so_far in until.items() for piece in self._pieces(stream, so_far)]
        pieces.sort(key=lambda piece: (piece.arrived_us, piece.stream, piece.first))
        total = self.rows + sum(piece.rows for piece in pieces)
        for piece in pieces:
            self._take(piece, until[piece.stream])
            report(self.rows, total)
        for stream, so_far in until.items():
            self._next[stream] = so_far.below
            self.past.promise(stream, so_far.mark_us)

    def _pieces(self, stream: str, until: Until) -> list[_Piece]:
        """The files from the last row read up to a limit, each with the least time of all later rows."""
        groups: list[list[tuple[Path, dict[str, Any]]]] = []
        last = -1
        for path in history.files(self._folders[stream]):
            name = history.Name.parse(path.name)
            if name is None or name.last < self._next[stream] or name.first >= until.below:
                continue
            if not groups or name.first > last:
                groups.append([])
            groups[-1].append((path, history.about_file(path)))
            last = max(last, name.last)
        pieces: list[_Piece] = []
        later = until.mark_us
        for group in reversed(groups):
            told = [about for _, about in group]
            times = [about["least_on_time_us"] for about in told if about["least_on_time_us"] is not None]
            if max(about["newest_us"] for about in told) >= self._from_us:
                pieces.append(
                    _Piece(
                        stream,
                        tuple(path for path, _ in group),
                        min(about["first_seq"] for about in told),
                        min(about["first_arrived_us"] for about in told),
                        sum(about["rows"] for about in told),
                        later,
                    )
                )
            later = min([later, *times])
        return pieces[::-1]

    def _take(self, piece: _Piece, until: Until) -> None:
        self.rows += piece.rows
        batch = self._read(piece, until)
        if not len(batch):
            return
        # The least time after each chunk: of the following rows of this piece, or of all later ones.
        rest = np.minimum.accumulate(np.append(batch.ts, piece.later)[::-1])[::-1]
        for start in range(0, len(batch), CHUNK):
            stop = min(start + CHUNK, len(batch))
            self.past.take(piece.stream, batch.slice(start, stop), int(batch.arrival[stop - 1]))
            self.past.promise(piece.stream, int(rest[stop]))

    def _read(self, piece: _Piece, until: Until) -> Batch:
        """The rows of a piece that were on time, in the order of their arrival."""
        import pyarrow as pa

        stream = self._streams[piece.stream]
        time = stream.time or history.IMPLICIT_TIME
        names = [*history.stored_schema(stream).names, history.SEQUENCE, history.ARRIVED, history.LATE]
        try:
            table = pa.concat_tables([_table(path, names) for path in piece.paths], promote_options="default")
        except (pa.ArrowException, OSError, KeyError) as error:
            raise history.HistoryError(f"{piece.paths[0]}: {history.words(error)}") from None
        numbers = table[history.SEQUENCE].to_numpy()
        times = table[time].cast(pa.int64()).to_numpy()
        wanted = (numbers >= self._next[piece.stream]) & (numbers < until.below) & (times >= self._from_us)
        wanted &= ~table[history.LATE].to_numpy()
        rows = np.flatnonzero(wanted)
        rows = rows[np.argsort(numbers[rows], kind="stable")]
        taken = table.take(pa.array(rows))
        arrival = taken[history.ARRIVED].cast(pa.int64()).to_numpy()
        ts = np.ascontiguousarray(times[rows])
        if stream.always_ordered:
            ts = np.maximum.accumulate(ts) if len(ts) else ts  # the clock may have been set back between two lives
        # The stream may have got columns since: they are null here.
        there = [name for name in stream.schema.names if name in taken.schema.names]
        made = self._sources[piece.stream].from_table(taken.select(there))
        return Batch(made.schema, ts, made.columns, made.valid, np.ascontiguousarray(arrival))


def _table(path: Path, names: Sequence[str]) -> Any:
    """These columns of a file; those that its stream got later are not in it."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        there = set(file.schema_arrow.names)
        return file.read([name for name in names if name in there])


# -- the child ---------------------------------------------------------------------------------------------------------


def begin(job: Mapping[str, Any]) -> Replay:
    """The replay that the first line describes."""
    if job["functions"] is not None:
        install_module(job["functions"])
    _, catalog = plan_all(parse(";\n".join(job["statements"]), KNOWN), Catalog())
    plan = lowered.read(job["plan"])
    streams = [catalog.streams[name] for name in plan.reads_streams]
    return Replay(Path(job["history"]), streams, plan, job["from_us"])


def talk(lines: Iterator[str], say: Callable[[Mapping[str, Any]], None]) -> None:
    job = json.loads(next(lines))
    replay = begin(job)
    for line in lines:
        order = json.loads(line)
        until = {stream: Until(below, mark) for stream, (below, mark) in order["until"].items()}
        replay.round(until, lambda rows, of: say({"rows": rows, "of": of}))
        if order["last"]:
            found = replay.past.finish()
            Path(job["state"]).write_bytes(found.state)
            say({"seam_us": found.seam_us, "given": found.given, "kept": found.kept})
            return
        say({"round": True})


def main() -> None:
    def say(message: Mapping[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    try:
        talk(iter(sys.stdin), say)
    except (MillraceError, Refuse, OSError) as error:
        say({"error": str(error), "code": getattr(error, "code", "history_failed")})
        sys.exit(1)


if __name__ == "__main__":
    main()
