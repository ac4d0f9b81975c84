"""A live job without Spark: parts cut into epochs at random, packed, and stepped bucket by bucket.

The state of each bucket goes through bytes between any two epochs, as it does in a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from millrace.backfill.bucket import Bucket, Group, Stepped
from millrace.backfill.parts import Parcel, PartPacker, parcels_of
from millrace.engine.events import CommandBody
from millrace.values.batch import Batch
from tests.backfill.local import lane_table


class Read(NamedTuple):
    """Rows of a part that were read together, and its promise after them."""

    stream: str
    part: str
    rows: Batch
    promise: int | None = None


@dataclass
class Outcome:
    """All rows of a job, and the tuples that entered nothing."""

    rows: dict[str, list[dict]] = field(default_factory=dict)
    late: Counter[str] = field(default_factory=Counter)
    too_far: Counter[str] = field(default_factory=Counter)
    marks: dict[str, set[int]] = field(default_factory=dict)

    def add(self, stepped: Stepped) -> None:
        for query, batches in stepped.rows.items():
            names = batches[0].schema.names
            self.rows.setdefault(query, []).extend(
                dict(zip(names, row, strict=True)) for batch in batches for row in batch.rows()
            )
        self.late.update(stepped.late)
        self.too_far.update(stepped.too_far)
        for stream, mark in stepped.marks.items():
            self.marks.setdefault(stream, set()).add(mark)


Change = tuple[Group, Sequence[CommandBody]]


def run_epochs(
    groups: Sequence[Group],
    epochs: Sequence[tuple[int, Sequence[Read]]],
    *,
    ended: bool = True,
    changes: Mapping[int, Change] | None = None,
) -> Outcome:
    """Every bucket of every group through all epochs; `ended`: the parts are over then.

    changes   by the number of an epoch, what the only group becomes before its rows, and the commands for that
    """
    if changes:
        return _run_changing(groups[0], epochs, changes, ended=ended)
    outcome = Outcome()
    parcels = [(at_us, list(packed(groups, reads, at_us))) for at_us, reads in _numbered(epochs)]
    for number, group in enumerate(groups):
        for bucket in range(group.buckets):
            state: bytes | None = None
            at_us = 0
            for at_us, own in parcels:
                running = Bucket(group, state)
                mine = [one for one in own if (one.group, one.bucket) == (number, bucket)]
                Random(at_us).shuffle(mine)  # Spark's shuffle keeps no order
                outcome.add(running.step(at_us, mine))
                state = running.save()
            if ended:
                outcome.add(Bucket(group, state).end(at_us + 1))
    return outcome


def _run_changing(
    group: Group, epochs: Sequence[tuple[int, Sequence[Read]]], changes: Mapping[int, Change], *, ended: bool
) -> Outcome:
    outcome = Outcome()
    states: list[bytes | None] = [None] * group.buckets
    at_us = 0
    for number, (at_us, reads) in enumerate(_numbered(epochs)):
        after, commands = changes.get(number, (group, ()))
        parcels = list(packed([after], reads, at_us))
        for bucket in range(group.buckets):
            running = Bucket(group, states[bucket])
            if commands:
                running.become(after, commands)
            outcome.add(running.step(at_us, [one for one in parcels if one.bucket == bucket]))
            states[bucket] = running.save()
        group = after
    if ended:
        for state in states:
            outcome.add(Bucket(group, state).end(at_us + 1))
    return outcome


def _numbered(
    epochs: Sequence[tuple[int, Sequence[Read]]],
) -> Iterator[tuple[int, list[tuple[Read, int]]]]:
    """The same, with the position of each read's first row in its part."""
    positions: Counter[tuple[str, str]] = Counter()
    for at_us, reads in epochs:
        placed = []
        for read in reads:
            placed.append((read, positions[read.stream, read.part]))
            positions[read.stream, read.part] += len(read.rows)
        yield at_us, placed


def packed(groups: Sequence[Group], reads: Sequence[tuple[Read, int]], at_us: int) -> Iterator[Parcel]:
    for number, group in enumerate(groups):
        for at, lane in enumerate(group.lanes if group.buckets else ()):
            for read, first in reads:
                if read.stream == lane.stream.name:
                    packer = PartPacker(group, number, at, read.part)
                    yield from parcels_of([packer.pack(lane_table(lane, read.rows), first, read.promise, at_us)])


def cut(rng: Random, reads: Sequence[Read], cuts: int) -> list[tuple[int, list[Read]]]:
    """Reads of all parts in epochs: each part's in its order, cut at random, also within a read."""
    waiting: dict[tuple[str, str], list[Read]] = {}
    for read in reads:
        waiting.setdefault((read.stream, read.part), []).append(read)
    epochs: list[tuple[int, list[Read]]] = []
    for number in range(cuts + 1):
        here: list[Read] = []
        for own in waiting.values():
            here += own if number == cuts else _taken(rng, own, 1 / (cuts + 1 - number))
            if number == cuts:
                own.clear()
        epochs.append((number + 1, here))
    return epochs


def _taken(rng: Random, own: list[Read], share: float) -> list[Read]:
    """About this share of the rows that a part has left; they are taken out."""
    rows = sum(len(read.rows) for read in own)
    take = min(rng.randint(0, max(int(2 * share * rows), 1)), rows)
    made = []
    while own and (take or (not len(own[0].rows) and rng.random() < 0.5)):
        read = own.pop(0)
        count = min(take, len(read.rows))
        if count < len(read.rows):
            made.append(read._replace(rows=read.rows.slice(0, count), promise=None))
            own.insert(0, read._replace(rows=read.rows.slice(count, len(read.rows))))
        else:
            made.append(read)
        take -= count
        if not take:
            break
    return made


def streams_parts(epochs: Sequence[tuple[int, Sequence[Read]]]) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    for _, reads in epochs:
        for read in reads:
            found.setdefault(read.stream, set()).add(read.part)
    return found
