"""A live job before Spark: what it computes, reads and writes, checked as far as that is possible without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from glob import has_magic
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.backfill.bucket import groups_of
from millrace.backfill.flow import flow_of
from millrace.offline.script import Script, plan_script
from millrace.protocol import Refuse
from millrace.spark.checkpoint import ROWS, Checkpoint
from millrace.spark.epochs import Plan, check_log
from millrace.spark.inputs.reader import as_read, punctuated
from millrace.spark.lock import Lock
from millrace.spark.sinks import FileSink, FunctionSink, Sink, parse_sink
from millrace.sql import Catalog
from millrace.sql.functions import install_module

if TYPE_CHECKING:
    from collections.abc import Callable

    from millrace.spark.inputs.reader import Reader

    # A sink, its text, or a function of (DataFrame, epoch).
    SinkLike = Sink | str | Callable[[Any, int], object]

# As many as the cores of a large cluster: more cost time in each epoch, fewer could not use them.
BUCKETS: Final = 64


@dataclass(frozen=True)
class LiveRequest:
    """A request for a live job.

    plan     as the job started
    readers  by stream
    sinks    by query
    spare    of queries that are created while it runs
    """

    plan: Plan
    readers: Mapping[str, Reader]
    sinks: Mapping[str, Sink]
    checkpoint: Checkpoint
    spare: Sink | None = None

    def open(self) -> Lock:
        """Check everything, and lock the checkpoint; Refuse, with nothing written, if something is wrong."""
        self.checkpoint.check(self.plan.identity())
        for query, sink in self.sinks.items():
            sink.check(query, self.plan.queries[query].schemas[query])
        lock = self.checkpoint.open(self.plan.identity())
        with ExitStack() as undo:
            undo.callback(lock.release)
            check_log(self.checkpoint)
            undo.pop_all()
        return lock


def request_of(
    sql: str,
    inputs: Mapping[str, Reader | str],
    checkpoint: str | Path,
    sinks: Mapping[str, SinkLike] | None = None,
    *,
    out: str | None = None,
    buckets: int = BUCKETS,
    functions: Sequence[str] = (),
) -> LiveRequest:
    """The request for the queries of some SQL; Refuse says what is wrong with it. `out` is the folder for the rows of
    queries without a sink."""
    for module in functions:
        install_module(module)
    place = Checkpoint(checkpoint)
    script = checked_script(sql)
    chosen = {query: _sink(sink) for query, sink in (sinks or {}).items()}
    names = wanted_queries(script, list(chosen))
    catalog = Catalog(script.streams, script.queries)
    groups_of(catalog, buckets, names)  # a query that cannot run is refused before its inputs
    readers = _readers(catalog, names, inputs)
    streams = punctuated(readers)
    catalog = as_read(catalog, streams)
    plan = Plan(sql, catalog, tuple(groups_of(catalog, buckets, names)), tuple(functions), buckets, streams)
    folder = place.path / ROWS if out is None else Path(out)
    spare = FileSink(folder)
    destinations = {query: chosen.get(query) or spare for query in plan.queries}
    written = [place.path, *(sink.folder for sink in destinations.values() if isinstance(sink, FileSink))]
    _check_apart(readers, written)
    return LiveRequest(plan, readers, destinations, place, spare)


def checked_script(sql: str) -> Script:
    """The statements; Refuse those that a live job cannot carry out."""
    script = plan_script(sql)
    if not script.queries:
        raise Refuse("missing query: add a SELECT or CREATE QUERY", code="sql")
    if script.sinks:
        listed = ", ".join(script.sinks)
        raise Refuse(
            f"sink {listed} of the file is a server's: remove CREATE SINK, and name sinks with --sink QUERY=SINK",
            code="sql",
        )
    return script


def wanted_queries(script: Script, named: Sequence[str] = ()) -> list[str]:
    """The queries that no other query reads, and those that are named."""
    for name in named:
        if name not in script.queries:
            listed = ", ".join(script.queries)
            raise Refuse(f"query {name} does not exist; the queries are: {listed}", code="unknown_name")
    read = {name for query in script.queries.values() for name in query.reads_queries}
    return [name for name in script.queries if name not in read or name in named]


def _sink(sink: SinkLike) -> Sink:
    if isinstance(sink, Sink):
        return sink
    if isinstance(sink, str):
        return parse_sink(sink)
    return FunctionSink(sink)


def _readers(catalog: Catalog, queries: Sequence[str], inputs: Mapping[str, Reader | str]) -> dict[str, Reader]:
    """The reader of each stream that the queries read."""
    from millrace.spark.inputs.parsing import parse_input

    flows = [flow_of(catalog, name) for name in queries]
    streams = list(dict.fromkeys(name.removesuffix(".late") for flow in flows for name in flow.streams))
    for name in inputs:
        if name not in streams:
            raise Refuse(f"no query reads stream {name}; the streams are: {', '.join(streams)}", code="unknown_name")
    if missing := [name for name in streams if name not in inputs]:
        raise Refuse(
            f"stream {missing[0]} has no input: add --input {missing[0]}=..., such as a folder of files or "
            "kafka://HOST:PORT/TOPIC",
            code="bad_input",
        )
    readers: dict[str, Reader] = {}
    for name in streams:
        given = inputs[name]
        if isinstance(given, str):
            readers[name] = parse_input(given, catalog.streams[name])
        else:
            given.check()
            readers[name] = given
    return readers


def _check_apart(readers: Mapping[str, Reader], written: Sequence[Path]) -> None:
    """Refuse to write below an input's folder: the job would read its own rows."""
    from millrace.spark.inputs.files import FilesReader

    for reader in readers.values():
        # A pattern reads the folders below only with two stars.
        if not isinstance(reader, FilesReader) or (has_magic(reader.path) and "**" not in reader.path):
            continue
        fixed = takewhile(lambda part: not has_magic(part), Path(reader.path).parts)
        source = Path(*fixed).resolve()
        for folder in written:
            if source == folder.resolve() or source in folder.resolve().parents:
                raise Refuse(
                    f"{folder} is inside the input {reader.path}, so the job would read its own rows: use separate "
                    "folders",
                    code="bad_path",
                )
