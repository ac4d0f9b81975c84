"""Where the engine's orders go in `millrace run`: rows to files and the standard output, late tuples, the trace.

Rule: every line leaves in the engine's order; rows are gathered and written some thousands at a
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import msgspec

from millrace.engine.events import Execution, Late
from millrace.formats.textrows import json_text
from millrace.formats.writers import TypedWriter, Writer, json_lines, json_rows
from millrace.offline.driver import Time
from millrace.offline.files import STANDARD, create, plain_times, refuse_file
from millrace.protocol import Schema, format_timestamp
from millrace.values.batch import Batch
from millrace.values.eventtime import MAX_TIME

# Rows that are held before they are written.
HELD: Final = 4_096
_JSON: Final = msgspec.json.Encoder()


class Output(Protocol):
    """Takes the rows of queries."""

    def deliver(self, query: str, sequence: int, batch: Batch) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """The run has failed: close the file."""


class FileOutput:
    """One query's rows in one file, which exists from the start."""

    def __init__(self, writer: Writer, path: str) -> None:
        self._writer = writer
        self._path = path
        self._held: list[Batch] = []
        self._rows = 0

    def deliver(self, query: str, sequence: int, batch: Batch) -> None:
        self._held.append(batch)
        self._rows += len(batch)
        if self._rows >= HELD:
            self._write()

    def close(self) -> None:
        try:
            self._write()
            self._writer.close()
        except OSError as error:
            raise refuse_file(self._path, error) from None

    def abandon(self) -> None:
        """Keep written lines; discard a file that is complete only at its end."""
        if isinstance(self._writer, TypedWriter):
            self._writer.abandon()
        else:
            self._writer.close()

    def _write(self) -> None:
        if self._held:
            self._writer.write(Batch.concat(self._held))
            self._held, self._rows = [], 0


class StandardOutput:
    """Rows as JSON lines on the standard output: bare if they are one query's, else each with its query's name."""

    def __init__(self, stdout: BinaryIO, *, named: bool, iso: bool) -> None:
        self._stdout = stdout
        self._named = named
        self._iso = iso
        self._held: list[tuple[str, int, Batch]] = []
        self._rows = 0

    def deliver(self, query: str, sequence: int, batch: Batch) -> None:
        self._held.append((query, sequence, batch))
        self._rows += len(batch)
        if self._rows >= HELD:
            self._write()

    def close(self) -> None:
        self._write()
        self._stdout.flush()

    abandon = close

    def _write(self) -> None:
        held, self._held, self._rows = self._held, [], 0
        if not held:
            return
        if self._named:
            for query, sequence, batch in held:
                self._stdout.write(self._named_lines(query, sequence, batch))
        else:
            self._stdout.write(json_lines(self._shown(Batch.concat([batch for _, _, batch in held]))))

    def _shown(self, batch: Batch) -> Batch:
        return batch if self._iso else batch.renamed(plain_times(batch.schema))

    def _named_lines(self, query: str, sequence: int, batch: Batch) -> bytes:
        shown = self._shown(batch)
        text = json_text(shown, b'{"query":' + _JSON.encode(query) + b',"seq":', b"}", sequence)
        if text is not None:
            return text
        return b"".join(
            _line({"query": query, "seq": number, "row": row}) for number, row in enumerate(json_rows(shown), sequence)
        )


def outputs_of(
    outputs: Iterable[tuple[str, str, str | None]],
    schemas: Mapping[str, Schema],
    stdout: BinaryIO,
    *,
    iso: bool,
) -> tuple[dict[str, list[Output]], list[Output]]:
    """Open the outputs of (query, path, format): the takers of each query's rows, and all of them once."""
    outputs = list(outputs)
    standard: StandardOutput | None = None
    if any(path == STANDARD for _, path, _ in outputs):
        named = len({query for query, path, _ in outputs if path == STANDARD}) > 1
        standard = StandardOutput(stdout, named=named, iso=iso)
    takers: dict[str, list[Output]] = {query: [] for query, _, _ in outputs}
    opened: list[Output] = [] if standard is None else [standard]
    for query, path, format_ in outputs:
        if path == STANDARD:
            assert standard is not None
            takers[query].append(standard)
        else:
            output = FileOutput(create(path, schemas[query], format=format_, iso=iso), path)
            takers[query].append(output)
            opened.append(output)
    return takers, opened


class Lines:
    """A file of JSON lines about the run, or the standard output."""

    def __init__(self, path: str, stdout: BinaryIO, *, iso: bool) -> None:
        self._iso = iso
        self._owned = path != STANDARD
        self._file = stdout
        if self._owned:
            try:
                self._file = Path(path).open("wb")  # noqa: SIM115 - closed by close()
            except OSError as error:
                raise refuse_file(path, error) from None

    def close(self) -> None:
        if self._owned:
            self._file.close()
        else:
            self._file.flush()

    def time(self, us: Time) -> Any:
        """A time as the run shows times; the end of time is null. Fractions of a microsecond stay a number."""
        if us == MAX_TIME:
            return None
        whole = int(us)
        if whole != us:
            return float(us)
        return format_timestamp(whole) if self._iso else whole

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        self._file.write(b"".join(map(_line, lines)))


class LateLines(Lines):
    """The late tuples of a stream."""

    def late(self, order: Late, at_us: Sequence[int]) -> None:
        batch = order.batch if self._iso else order.batch.renamed(plain_times(order.batch.schema))
        facts = zip(json_rows(batch), order.batch.ts.tolist(), order.marks.tolist(), at_us, strict=True)
        self.write(
            {
                "tuple": row,
                "ts": self.time(ts),
                "mark": self.time(mark),
                "late_by_us": mark - ts,
                "feed": order.feed,
                "at": self.time(at),
            }
            for row, ts, mark, at in facts
        )


class TraceLines(Lines):
    """Executions, and punctuation that reached a sink."""

    def executed(self, step: int, at_us: Time, execution: Execution) -> None:
        self.write(
            [
                {
                    "step": step,
                    "at": self.time(at_us),
                    "operator": execution.operator,
                    "rule": execution.rule,
                    "took": execution.took,
                    "gave": execution.gave,
                    "next": execution.next,
                    **(execution.counts or {}),
                }
            ]
        )

    def progressed(self, at_us: Time, query: str, value_us: int) -> None:
        self.write([{"at": self.time(at_us), "query": query, "punctuation": self.time(value_us)}])


def _line(value: Mapping[str, Any]) -> bytes:
    return _JSON.encode(value) + b"\n"
