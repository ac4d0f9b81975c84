"""Effects of a change outside the engine. The executor performs them after the engine has obeyed.

Effects on streams and outlets happen within the engine's step, before it emits a row. Effects on sinks follow it; their
files were opened before, because a file that cannot be written refuses the whole change.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.protocol import Schema
from millrace.sql import SinkDefinition


@dataclass(frozen=True, slots=True)
class FollowStream:
    """Accept feeds of a new stream, and archive it if it has history."""

    stream: StreamDefinition


@dataclass(frozen=True, slots=True)
class AlterFeeds:
    """Feeds of a stream go by another definition."""

    stream: StreamDefinition


@dataclass(frozen=True, slots=True)
class ForgetStream:
    name: str


@dataclass(frozen=True, slots=True)
class AddOutlet:
    """Accept subscribers of a new query. A temporary one ends with its last subscriber."""

    query: QueryPlan
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class ReplaceOutlet:
    query: QueryPlan


@dataclass(frozen=True, slots=True)
class RenameOutlet:
    name: str
    to: str


@dataclass(frozen=True, slots=True)
class RemoveOutlet:
    """End the subscriptions of a query."""

    name: str


@dataclass(frozen=True, slots=True)
class OpenSink:
    """Start the writer of a sink, whose rows have this schema."""

    sink: SinkDefinition
    schema: Schema


@dataclass(frozen=True, slots=True)
class RetargetSink:
    """A sink's query has another name."""

    sink: SinkDefinition


@dataclass(frozen=True, slots=True)
class CloseSink:
    """Finish a sink's file."""

    name: str


Effect = (
    FollowStream
    | AlterFeeds
    | ForgetStream
    | AddOutlet
    | ReplaceOutlet
    | RenameOutlet
    | RemoveOutlet
    | OpenSink
    | RetargetSink
    | CloseSink
)
