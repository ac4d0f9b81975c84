"""More fields for a stream while feeds are connected and queries run.

Queued tuples get them too, with nulls. Present readers of the stream still read the fields that they were built for:
their edges name them (`EdgeSpec.columns`), so that a restored engine does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.engine.plan import StreamDefinition
from millrace.protocol import Field, Refuse

if TYPE_CHECKING:
    from millrace.engine.engine import Engine
    from millrace.engine.streams import Stream


def check(stream: StreamDefinition, fields: Sequence[Field]) -> None:
    """Refuse fields that the stream cannot get."""
    used = set(stream.late.schema.names)
    for field in fields:
        if field.name in used:
            own = field.name in stream.schema.names
            where = f"a field {field.name}" if own else f"a side stream whose late tuples have a {field.name}"
            raise Refuse(f"stream {stream.name} already has {where}", code="exists")
        if not field.nullable:
            raise Refuse(
                f"stream {stream.name}: an added field must be nullable: existing tuples and connected feeds have "
                f"no {field.name}",
                code="not_nullable",
            )
        used.add(field.name)


def widen(engine: Engine, stream: Stream, fields: Sequence[Field], texts: Mapping[str, str]) -> None:
    """Add fields to a stream, and to its side stream if that runs."""
    readers = [(engine.query(name), sql) for name, sql in texts.items()]
    after = stream.definition.with_fields(fields)
    aside = engine.streams_by_name.get(after.late.name)
    _widen(engine, stream, after)
    if aside is not None:
        _widen(engine, aside, after.late)
    for query, sql in readers:
        query.plan = replace(query.plan, sql=sql)


def _widen(engine: Engine, stream: Stream, after: StreamDefinition) -> None:
    before, output = stream.definition.schema, stream.source.output
    stream.definition = after
    output.widen(after.schema)
    for query in engine.queries_by_name.values():
        if after.name not in query.plan.reads_streams:
            continue
        query.plan = query.plan.reading_of(after.source, before, after.schema)
        for node, operator in zip(query.plan.nodes, query.operators, strict=True):
            for position, reader in enumerate(operator.inputs):
                columns = node.edge(position).columns
                if reader.arc is output and columns is not None:
                    reader.narrow(columns)
