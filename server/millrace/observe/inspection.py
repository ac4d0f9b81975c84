"""The answers of SHOW, DESCRIBE and EXPLAIN: the views of the API, and definitions as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from millrace.observe.analysis import analyze
from millrace.protocol import Refuse, Schema
from millrace.protocol.admin.changes import ColumnView, StatementView
from millrace.protocol.admin.data import to_data
from millrace.protocol.admin.queries import AnalyzedView, ExplainView
from millrace.sql import Describe, ExplainRunning, Inspection, Show, ShowCreate
from millrace.sql.options import QUERY_OPTIONS, SINK_OPTIONS, STREAM_OPTIONS, shown_options

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon


class Inspector:
    """Answers statements that read a server's objects."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._lists: Mapping[str, Callable[[], Sequence[object]]] = {
            "streams": daemon.streams,
            "queries": daemon.queries,
            "sinks": daemon.catalog.sinks,
            "components": daemon.components,
            "operators": daemon.operators,
        }

    async def show(self, step: Inspection, told: StatementView) -> StatementView:
        """The outcome of a statement with what it shows."""
        await self._daemon.runner.at_rest()
        match step:
            case Show(of):
                return replace(told, items=[to_data(item) for item in self._lists[of]()])
            case Describe("stream", name):
                return self._stream(name, told)
            case Describe("query", name):
                return self._query(name, told)
            case Describe(_, name):
                return self._sink(name, told)
            case ExplainRunning(name, True):
                return explained(told, await analyze(self._daemon, name))
            case ExplainRunning(name):
                return explained(told, await self._daemon.catalog.explain(name))
            case ShowCreate():
                return told

    def _stream(self, name: str, told: StatementView) -> StatementView:
        stream = self._daemon.catalog.known.stream(name)
        options = {"timestamps": stream.timestamps, **options_of("stream", stream)}
        return replace(told, of="stream", columns=_columns(stream.schema), options=options)

    def _query(self, name: str, told: StatementView) -> StatementView:
        query = self._daemon.catalog.known.queries[name]
        options = options_of("query", query.options)
        if query.update_key is not None:
            options = {"update_key": ", ".join(query.update_key), **options}
        reads = [*query.reads_streams, *query.reads_queries]
        temporary = name in self._daemon.catalog.temporaries.names
        columns = _columns(query.schema)
        return replace(told, of="query", columns=columns, options=options, reads=reads, temporary=temporary)

    def _sink(self, name: str, told: StatementView) -> StatementView:
        known = self._daemon.catalog.known
        sink = known.sinks.get(name)
        if sink is None:
            raise Refuse(f"sink {name} does not exist", code="unknown_sink")
        columns = _columns(known.queries[sink.query].schema)
        return replace(told, of="sink", columns=columns, options=options_of("sink", sink), query=sink.query)


def explained(told: StatementView, plan: ExplainView | AnalyzedView) -> StatementView:
    """The outcome of EXPLAIN with the plan of a running query."""
    return replace(told, **{field.name: getattr(plan, field.name) for field in fields(plan)})


def options_of(kind: str, definition: object) -> dict[str, Any]:
    """The options of a definition that differ from their defaults, as a statement would say them."""
    tables = {"stream": STREAM_OPTIONS, "query": QUERY_OPTIONS, "sink": SINK_OPTIONS}
    return shown_options(definition, tables[kind])


def _columns(schema: Schema) -> list[ColumnView]:
    return [ColumnView(name=field.name, type=str(field.type), nullable=field.nullable) for field in schema.data_fields]
