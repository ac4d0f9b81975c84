"""CREATE QUERY, CREATE OR REPLACE QUERY, and a SELECT that becomes a temporary query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from millrace.changes.change import Change, Planned
from millrace.changes.drop_query import DropQuery
from millrace.changes.effects import AddOutlet, ReplaceOutlet
from millrace.changes.pause_query import PauseQuery
from millrace.changes.restoring import decisions_about
from millrace.changes.resume_query import ResumeQuery
from millrace.changes.state import ControlState
from millrace.changes.texts import TextChange, replacing
from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, ReplaceQuery
from millrace.engine.plan import QueryPlan
from millrace.engine.seam import gated
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import StatementView
from millrace.sql import CreateQuery as NewQuery
from millrace.sql import Planned as Step
from millrace.sql import SinkDefinition
from millrace.sql.temporary import CreateTemporary


class _Facts(NamedTuple):
    """Lost by a replacement: the decisions about the query, and whether its operators have been edited."""

    decisions: tuple[Change, ...]
    edited: bool


class CreateQuery(TextChange):
    """Create a query, or replace one: equal operators keep their state."""

    steps: ClassVar[tuple[type, ...]] = (NewQuery, CreateTemporary)

    def facts(self, engine: Engine) -> Any:
        name = self.labelled.name
        query = None if name is None else engine.queries_by_name.get(name)
        if name is None or query is None:
            return _Facts((), edited=False)
        return _Facts(decisions_about(engine, name), bool(query.plan.edits))

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        assert isinstance(step, NewQuery)
        after = state.definitions.with_(step)
        query = after.queries[step.plan.name]
        state.refuse_temporary(*query.reads_queries, query.name)
        warnings = list(query.warnings)
        outcome = StatementView(
            kind=self.action, name=query.name, fields=query.schema.to_data(), replaces=step.replaces, warnings=warnings
        )
        if isinstance(step, CreateTemporary):
            outcome = replace(outcome, kind="select", replaces=None, temporary=True, limit=step.limit)
        if not step.replaces:
            plan = gated(query) if query.name in state.catching_up else query
            return Planned(
                self,
                after,
                outcome,
                (AddQuery(plan),),
                (AddOutlet(query, temporary=isinstance(step, CreateTemporary)),),
                (DropQuery(name=query.name),),
                lasting=not isinstance(step, CreateTemporary),
                sentence=f"created query {query.name}",
            )
        before = state.definitions.queries[query.name]
        check_sinks_fit(before, query, state.definitions.sinks)
        if facts.edited:
            warnings.append(f"query {query.name} has inserted, removed or replaced operators: these edits are undone")
        # A replaced query stays paused, and what is paused cannot be edited again.
        resumed = [ResumeQuery(name=query.name) for one in facts.decisions if isinstance(one, PauseQuery)]
        return Planned(
            self,
            after,
            outcome,
            (ReplaceQuery(query),),
            (ReplaceOutlet(query),),
            (*resumed, CreateQuery(sql=replacing(before.sql)), *facts.decisions),
            lost="operators that the replacement removed start with empty state",
            sentence=f"replaced query {query.name}",
        )


class Select(CreateQuery):
    """Read a SELECT: a query that ends with its reader."""


def check_sinks_fit(before: QueryPlan, after: QueryPlan, sinks: Mapping[str, SinkDefinition]) -> None:
    """Refuse a replacement whose rows have other columns, because the query's files continue."""
    name = after.name
    writing = [sink for sink in sinks.values() if sink.query == name]
    if after.schema != before.schema and writing:
        raise Refuse(
            f"query {name} would have other columns than {', '.join(sink.name for sink in writing)} writes: drop that "
            "sink first",
            code="in_use",
        )
    newest = [sink.name for sink in writing if sink.on_slow == "latest"]
    if after.update_key != before.update_key and newest:
        raise Refuse(
            f"query {name} would have another update key than {', '.join(newest)} keeps the newest rows by: drop that "
            "sink first",
            code="in_use",
        )
