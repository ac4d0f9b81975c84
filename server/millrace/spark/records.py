"""The records of a checkpoint: the work of an epoch, and its outcome.

Rule: an epoch record is written before the epoch's tasks start and a commit after they end; neither ever changes. A
re-run uses the record of the first run, so that it makes the same states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

# A bucket: the number of its group, and its number within the group.
Unit = tuple[int, int]

# "end" is the epoch after the last rows, in which incomplete windows are emitted.
Kind = Literal["rows", "end"]


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """What an epoch is to do.

    at_us   the batch time, which no later epoch precedes
    tasks   the buckets of each task
    source  the fingerprint of the offsets that it reads, empty for an end
    changes  how many changes of the job its plan contains
    """

    epoch: int
    kind: Kind
    at_us: int
    tasks: Sequence[Sequence[Unit]]
    source: str
    changes: int = 0

    def to_data(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "kind": self.kind,
            "at_us": self.at_us,
            "tasks": [[list(unit) for unit in units] for units in self.tasks],
            "source": self.source,
            "changes": self.changes,
        }

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> EpochRecord:
        tasks = [[(group, bucket) for group, bucket in units] for units in data["tasks"]]
        return EpochRecord(data["epoch"], data["kind"], data["at_us"], tasks, data["source"], data["changes"])


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Where the state of a bucket is: a piece of a file, compressed.

    size  of the state itself
    sum   CRC-32 of the piece
    """

    file: str
    offset: int
    length: int
    size: int
    sum: int


@dataclass(frozen=True, slots=True)
class RowFile:
    """A task's rows of one query.

    file     its name in the folder where the query's sink stages files
    buckets  the numbers of the buckets and their rows, in the order of the file
    """

    query: str
    task: int
    file: str
    rows: int
    buckets: Sequence[tuple[int, int]]

    def to_data(self) -> dict[str, Any]:
        return {
            "query": self.query,
            "task": self.task,
            "file": self.file,
            "rows": self.rows,
            "buckets": [list(one) for one in self.buckets],
        }

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> RowFile:
        buckets = [(bucket, rows) for bucket, rows in data["buckets"]]
        return RowFile(data["query"], data["task"], data["file"], data["rows"], buckets)


@dataclass(frozen=True, slots=True)
class PartProgress:
    """How far a part of a stream has been read.

    newest   the newest time of its rows
    promise  the time below which no row of it follows
    rows     rows in all epochs
    """

    newest: int | None
    promise: int | None
    rows: int


@dataclass(slots=True)
class Totals:
    """Counts, of an epoch or of all epochs up to one: by stream, query or operator."""

    input: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    failed: dict[str, tuple[int, str]] = field(default_factory=dict)

    def plus(self, other: Totals) -> Totals:
        failed = dict(self.failed)
        for operator, (count, reason) in other.failed.items():
            failed[operator] = failed.get(operator, (0, ""))[0] + count, reason
        return Totals(
            add_counts(self.input, other.input),
            add_counts(self.rows, other.rows),
            add_counts(self.late, other.late),
            failed,
        )

    def to_data(self) -> dict[str, Any]:
        failed = {operator: list(told) for operator, told in self.failed.items()}
        return {"input": self.input, "rows": self.rows, "late": self.late, "failed": failed}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Totals:
        failed = {operator: (count, reason) for operator, (count, reason) in data["failed"].items()}
        return Totals(dict(data["input"]), dict(data["rows"]), dict(data["late"]), failed)


def add_counts(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """What an epoch has done.

    states   by bucket, its state after this epoch
    files    the rows, in the order in which they are numbered
    first    by query, the number of this epoch's first row
    sinks    by query, the sink that gets the rows
    marks    by stream, the time below which all rows have arrived
    counts   of this epoch; totals of all epochs up to it
    parts    by stream and part, how far it has been read
    seconds  by bucket, for the next placement
    spent    by phase, the seconds of the epoch, and of its slowest task
    """

    epoch: int
    kind: Kind
    at_us: int
    states: Mapping[Unit, StatePlace]
    files: Sequence[RowFile]
    first: Mapping[str, int]
    sinks: Mapping[str, str]
    marks: Mapping[str, int]
    counts: Totals
    totals: Totals
    parts: Mapping[str, Mapping[str, PartProgress]]
    seconds: Mapping[Unit, float]
    spent: Mapping[str, float]

    def to_data(self) -> dict[str, Any]:
        files = list(dict.fromkeys(place.file for place in self.states.values()))
        return {
            "epoch": self.epoch,
            "kind": self.kind,
            "at_us": self.at_us,
            "state_files": files,
            "states": [
                [*unit, files.index(place.file), place.offset, place.length, place.size, place.sum]
                for unit, place in self.states.items()
            ],
            "files": [one.to_data() for one in self.files],
            "first": dict(self.first),
            "sinks": dict(self.sinks),
            "marks": dict(self.marks),
            "counts": self.counts.to_data(),
            "totals": self.totals.to_data(),
            "parts": {
                stream: {name: [one.newest, one.promise, one.rows] for name, one in parts.items()}
                for stream, parts in self.parts.items()
            },
            "seconds": [[*unit, round(seconds, 6)] for unit, seconds in self.seconds.items()],
            "spent": {phase: round(seconds, 6) for phase, seconds in self.spent.items()},
        }

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> CommitRecord:
        files = data["state_files"]
        return CommitRecord(
            data["epoch"],
            data["kind"],
            data["at_us"],
            {(group, bucket): StatePlace(files[at], *place) for group, bucket, at, *place in data["states"]},
            [RowFile.from_data(one) for one in data["files"]],
            data["first"],
            data["sinks"],
            data["marks"],
            Totals.from_data(data["counts"]),
            Totals.from_data(data["totals"]),
            {
                stream: {name: PartProgress(*one) for name, one in parts.items()}
                for stream, parts in data["parts"].items()
            },
            {(group, bucket): seconds for group, bucket, seconds in data["seconds"]},
            data["spent"],
        )
