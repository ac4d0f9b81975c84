"""Recompute a span and compare it with what was written: by a live query's sink, or by an earlier backfill.

Rule: only rows that both could have are compared. Which of the written rows lie in the span is told by their own time:
a backfill writes it beside them, and of a sink's rows a column often tells it (a window's end, say). Where nothing
does, all written rows are compared, and the span must hold all of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from millrace.backfill.compare import Differences, Row, compare_final, compare_rows
from millrace.backfill.flow import Flow
from millrace.backfill.layout import OWN_TIME
from millrace.backfill.outputs import MANIFEST, PLAN, Destination
from millrace.backfill.running import Advanced, Said, Wanted, start
from millrace.backfill.splitting import Slice
from millrace.engine.plan import StreamDefinition
from millrace.offline.files import read_batches
from millrace.operators.batch import BEGINNING, END_OF_TIME
from millrace.protocol import GONE, Field, Refuse, Schema, Type


@dataclass(frozen=True)
class Verdict:
    """What came of a comparison."""

    equality: str
    differences: Differences
    written: int
    notes: tuple[str, ...] = ()


def verify(wanted: Wanted, against: Sequence[str], say: Said, advanced: Advanced) -> Verdict:
    """Recompute what is wanted, and compare it with what lies in these files or directories."""
    flow = wanted.flow
    if flow.equality == "load":
        raise Refuse(
            f"{flow.name} cannot be verified: what it gives depends on how busy the engine is (equality load), so no "
            "two runs need to agree",
            code="cannot_verify",
        )
    for path in against:
        if not Path(path).exists():
            raise Refuse(f"{path}: there is no such file or directory to compare with", code="bad_path")
    rows, notes = _written(flow, wanted.span, against)
    with tempfile.TemporaryDirectory(prefix="millrace-verify-") as folder:
        out = str(Path(folder) / "rows")
        start(replace(wanted, out=out), say, advanced)
        recomputed = list(_without_time(read_backfill(out)))
    if flow.equality == "final":
        differences = compare_final(recomputed, rows, flow.query.update_key or ())
    else:
        differences = compare_rows(recomputed, rows)
    return Verdict(flow.equality, differences, len(rows), tuple(notes))


def read_backfill(path: str) -> Iterator[Row]:
    """The rows of a finished backfill, in the order of their own time; equal times in the order of the files."""
    place = Destination(path)
    manifest = place.manifest()
    if manifest is None:
        raise Refuse(f"{path}: this backfill is not finished; start it again to finish it", code="unfinished")
    times = {name for name, kind, _ in manifest["schema"] if kind == Type.TIMESTAMP.value}
    for file in sorted(manifest["files"], key=lambda file: (Path(file["path"]).parent.name, file["path"])):
        for batch in pq.ParquetFile(place.path / file["path"]).iter_batches():
            for name in times:
                at = batch.schema.names.index(name)
                batch = batch.set_column(at, name, batch.column(at).cast("int64"))
            yield from batch.to_pylist()


def _without_time(rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        yield {name: value for name, value in row.items() if name != OWN_TIME}


def _written(flow: Flow, span: Slice, against: Sequence[str]) -> tuple[list[Row], list[str]]:
    """The rows that were written, of the span as far as that can be told."""
    rows: list[Row] = []
    notes: list[str] = []
    whole = span.from_us == BEGINNING and span.to_us == END_OF_TIME
    told = flow.time_column
    for path in against:
        if (Path(path) / PLAN).exists() or (Path(path) / MANIFEST).exists():
            rows += _without_time(row for row in read_backfill(path) if _inside(row[OWN_TIME], span))
            continue
        found = list(_sink_rows(flow, path))
        if told is not None:
            name = flow.schema.names[told[0]]
            found = [row for row in found if row[name] is None or _inside(row[name] + told[1], span)]
        elif not whole:
            notes.append(f"{path}: no column tells a row's time, so all {len(found)} of its rows are compared")
        rows += found
    return rows, notes


def _inside(time_us: int | None, span: Slice) -> bool:
    return time_us is not None and span.from_us <= time_us < span.to_us


def _sink_rows(flow: Flow, path: str) -> Iterator[Row]:
    """The rows of a sink's file; tombstones say that they are gone."""
    schema = Schema(tuple(Field(field.name, field.type) for field in flow.schema))
    stream = StreamDefinition(f"rows of {flow.name}", schema, extra="ignore")
    for batch in read_batches(path, stream):
        for row in batch.rows():
            yield _as_row(dict(zip(schema.names, row, strict=True)), flow.schema.retracts)


def _as_row(row: Mapping[str, Any], retracts: bool) -> Row:
    return {**row, GONE: bool(row[GONE])} if retracts else row
