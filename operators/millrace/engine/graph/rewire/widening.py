"""More fields for a stream, or another name for one, while feeds are connected and queries run.

Queued tuples get the fields too, with nulls. Present readers of the stream still read the fields that they were built
for, under the names that these had: their edges name them (`EdgeSpec.columns`, `names`), so that a restored engine does
the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.engine.plan import LATE_FIELDS, StreamDefinition
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


def check_renamed(stream: StreamDefinition, field: str, to: str) -> None:
    """Refuse a new name of a field. The side stream's own fields must keep their names, too."""
    if field not in stream.schema.names:
        raise Refuse(f"stream {stream.name} has no field {field}", code="unknown_field")
    if to in stream.late.schema.names:
        where = f"a field {to}" if to in stream.schema.names else f"a side stream whose late tuples have a {to}"
        raise Refuse(f"stream {stream.name} already has {where}", code="exists")
    if field in (own for own, _ in LATE_FIELDS):
        raise Refuse(
            f"stream {stream.name}: its side stream calls a field of its own late_{field} because of {field}",
            code="in_use",
        )


def widen(engine: Engine, stream: Stream, after: StreamDefinition, texts: Mapping[str, str]) -> None:
    """Give a stream the fields of another definition, and its side stream if that runs."""
    readers = [(engine.query(name), sql) for name, sql in texts.items()]
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
                if reader.arc is output:
                    edge = node.edge(position)
                    reader.narrow(edge.columns, edge.names)
