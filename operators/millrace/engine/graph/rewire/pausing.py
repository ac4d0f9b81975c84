"""Queries that stop for a while: their inlets leave the arcs that they share with others, and come back at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.engine.events import PauseQuery, ResumeQuery
from millrace.engine.graph.rewire import failing
from millrace.engine.queries import Query, refuse_catching_up
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import PauseReply, ResumeReply

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


def pause(engine: Engine, command: PauseQuery) -> PauseReply:
    query = engine.query(command.name)
    refuse_pause(query)
    leave(engine, query, command.reason)
    return PauseReply(query=command.name, paused=command.reason)


def refuse_pause(query: Query) -> None:
    """Refuse to pause a query that reads nothing at present."""
    name = query.plan.name
    refuse_catching_up(query)
    if query.failed:
        raise Refuse(f"query {name} has already failed: {query.paused}", code="already_paused")
    if query.paused is not None:
        raise Refuse(f"query {name} is already paused: {query.paused}", code="already_paused")


def leave(engine: Engine, query: Query, reason: str) -> None:
    """Read nothing more, for this reason."""
    entries = engine.entries(query)
    for inlet in entries:
        inlet.detach()
    query.paused = reason
    engine.graph.touch(map(engine.graph.producer, entries), sorts=False)


def come_back(engine: Engine, query: Query) -> int:
    """Read again from now on; returns how many tuples were skipped meanwhile."""
    entries = engine.entries(query)
    before = sum(inlet.skipped for inlet in entries)
    for inlet in entries:
        inlet.resume()
    query.paused = None
    engine.graph.touch(map(engine.graph.producer, entries))
    return sum(inlet.skipped for inlet in entries) - before


def resume(engine: Engine, command: ResumeQuery) -> ResumeReply:
    query = engine.query(command.name)
    refuse_catching_up(query)
    if query.paused is None:
        raise Refuse(f"query {command.name} is not paused", code="not_paused")
    if query.failed:
        failing.begin_again(engine, query)
    return ResumeReply(query=command.name, skipped=come_back(engine, query))
