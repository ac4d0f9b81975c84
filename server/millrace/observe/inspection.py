"""The answers of SHOW, DESCRIBE and EXPLAIN: the views of the API, and definitions as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from millrace.observe.analysis import analyze
from millrace.protocol import Refuse, Schema
from millrace.sql import Describe, ExplainRunning, Inspection, Show, ShowCreate
from millrace.sql.options import QUERY_OPTIONS, SINK_OPTIONS, STREAM_OPTIONS, shown_options

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon


class Inspector:
    """Answers statements that read a server's objects."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._lists: Mapping[str, Callable[[], list[dict[str, Any]]]] = {
            "streams": daemon.streams,
            "queries": daemon.queries,
            "sinks": daemon.catalog.sinks,
            "components": daemon.components,
            "operators": daemon.operators,
        }

    async def show(self, step: Inspection) -> dict[str, Any]:
        await self._daemon.runner.at_rest()
        match step:
            case Show(of):
                return {"items": self._lists[of]()}
            case Describe("stream", name):
                return self._stream(name)
            case Describe("query", name):
                return self._query(name)
            case Describe(_, name):
                return self._sink(name)
            case ExplainRunning(name, True):
                return await analyze(self._daemon, name)
            case ExplainRunning(name):
                return await self._daemon.catalog.explain(name)
            case ShowCreate():
                return {}

    def _stream(self, name: str) -> dict[str, Any]:
        stream = self._daemon.catalog.known.stream(name)
        return _described("stream", stream.schema, {"timestamps": stream.timestamps, **options_of("stream", stream)})

    def _query(self, name: str) -> dict[str, Any]:
        query = self._daemon.catalog.known.queries[name]
        options = options_of("query", query.options)
        if query.update_key is not None:
            options = {"update_key": ", ".join(query.update_key), **options}
        reads = [*query.reads_streams, *query.reads_queries]
        temporary = name in self._daemon.catalog.temporaries.names
        return {**_described("query", query.schema, options), "reads": reads, "temporary": temporary}

    def _sink(self, name: str) -> dict[str, Any]:
        known = self._daemon.catalog.known
        sink = known.sinks.get(name)
        if sink is None:
            raise Refuse(f"sink {name} does not exist", code="unknown_sink")
        options = options_of("sink", sink)
        return {**_described("sink", known.queries[sink.query].schema, options), "query": sink.query}


def options_of(kind: str, definition: object) -> dict[str, Any]:
    """The options of a definition that differ from their defaults, as a statement would say them."""
    tables = {"stream": STREAM_OPTIONS, "query": QUERY_OPTIONS, "sink": SINK_OPTIONS}
    return shown_options(definition, tables[kind])


def _described(of: str, schema: Schema, options: Mapping[str, Any]) -> dict[str, Any]:
    columns = [
        {"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema.data_fields
    ]
    return {"of": of, "columns": columns, "options": dict(options)}
