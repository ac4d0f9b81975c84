"""Recompute a span and compare it with what was written: by a live query's sink, or by an earlier backfill.

Rule: only rows that both could have are compared. Which of the written rows lie in the span is told by their own time:
a backfill writes it beside them, and of a sink's rows a column often tells it (a window's end, say). Where nothing
does, all written rows are compared, and the span must hold all of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from millrace.backfill.compare import Differences, Row, compare_final, compare_rows
from millrace.backfill.flow import Flow
from millrace.backfill.layout import OWN_TIME
from millrace.backfill.outputs import MANIFEST, PLAN, Destination
from millrace.backfill.running import Advanced, Said, Wanted, compute
from millrace.backfill.splitting import ALWAYS, Slice
from millrace.engine.plan import StreamDefinition
from millrace.offline.files import read_batches
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
    written = _written(flow, wanted.span, against)
    with tempfile.TemporaryDirectory(prefix="millrace-verify-") as folder:
        out = str(Path(folder) / "rows")
        compute(replace(wanted, out=out), say, advanced)
        recomputed = list(_without_time(read_backfill(out)))
    rows = [*written.inside, *written.perhaps]
    if flow.equality == "final":
        differences = compare_final(recomputed, rows, flow.query.update_key or ())
    else:
        differences = compare_rows(recomputed, rows)
        # What may as well lie outside is not too much.
        spared = set(map(id, written.perhaps))
        differences.extra = [row for row in differences.extra if id(row) not in spared]
    return Verdict(flow.equality, differences, len(rows), tuple(written.notes))


@dataclass
class _Written:
    """Rows that were written: those of the span, and those that may lie on either side of an end."""

    inside: list[Row] = field(default_factory=list)
    perhaps: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


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


def _written(flow: Flow, span: Slice, against: Sequence[str]) -> _Written:
    """The rows that were written, of the span as far as that can be told."""
    found = _Written()
    for path in against:
        if (Path(path) / PLAN).exists() or (Path(path) / MANIFEST).exists():
            found.inside += _without_time(row for row in read_backfill(path) if _inside(row[OWN_TIME], span))
        else:
            _sort_out(flow, span, path, found)
    return found


def _sort_out(flow: Flow, span: Slice, path: str, found: _Written) -> None:
    """The rows of a sink's file, by the column that tells their time best."""
    rows = list(_sink_rows(flow, path))
    told = flow.time_column
    if told is None or (flow.equality == "final" and told[1] != told[2]):
        if span != ALWAYS:
            found.notes.append(f"{path}: no column tells a row's time, so all {len(rows)} of its rows are compared")
        found.inside += rows
        return
    at, low, high = told
    name = flow.schema.names[at]
    for row in rows:
        time = row[name]
        ends = [time is None or _inside(time + lag, span) for lag in (low, high)]
        if all(ends):
            found.inside.append(row)
        elif time + high >= span.from_us and time + low < span.to_us:
            found.perhaps.append(row)


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
