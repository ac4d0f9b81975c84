"""Changes of a live job while it runs: the groups after them, and the commands that every bucket obeys.

Rule: a change is tried on empty buckets before it is stored, so that an epoch never meets one that an engine refuses.
The sequence of all changes is a part of the plan: a job that continues comes to the same groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from millrace.backfill.bucket import Bucket, Group, group_of
from millrace.backfill.flow import flow_of
from millrace.engine.events import CommandBody, PauseQuery, ResumeQuery, SetStrategy
from millrace.engine.scheduler.table import Strategy
from millrace.protocol import Refuse
from millrace.sql import Catalog, SqlError, parse, plan
from millrace.sql import syntax as s
from millrace.sql.planner import bare_name

# A decision's name and its values: ("strategy", query, strategy), ("pause", query), ("resume", query).
Decision = tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """A change as its checkpoint stores it: statements, a decision, or both.

    by   who asked for it, and at_us when
    """

    sql: str = ""
    decision: Decision = ()
    by: str = ""
    at_us: int = 0

    def to_data(self) -> dict[str, Any]:
        return {"sql": self.sql, "decision": list(self.decision), "by": self.by, "at_us": self.at_us}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Change:
        return Change(data["sql"], tuple(data["decision"]), data["by"], data["at_us"])

    @property
    def words(self) -> str:
        return " ".join(self.sql.split()) or " ".join(self.decision)


@dataclass(frozen=True)
class Changed:
    """The definitions and groups of a changed job, and by number of the group the commands for its buckets."""

    catalog: Catalog
    groups: tuple[Group, ...]
    commands: Mapping[int, tuple[CommandBody, ...]]


@dataclass(frozen=True)
class Stage:
    """The groups of an epoch, and their changes since the epoch before.

    before    of groups that change, what they were
    commands  for their buckets
    """

    groups: tuple[Group, ...]
    before: Mapping[int, Group] = field(default_factory=dict)
    commands: Mapping[int, tuple[CommandBody, ...]] = field(default_factory=dict)

    def bucket(self, number: int, state: bytes | None) -> Bucket:
        """A bucket of a group, with the state that it had after the epoch before."""
        group = self.groups[number]
        if number not in self.before:
            return Bucket(group, state)
        bucket = Bucket(self.before[number], state)
        bucket.become(group, self.commands[number])
        return bucket


def apply(before: Catalog, groups: Sequence[Group], change: Change, buckets: int) -> Changed:
    """A job after a change; Refuse says why it cannot be made while the job runs.

    A new query joins the first group that it shares a key with; otherwise it gets new buckets. It reads later rows.
    """
    catalog = _planned(change.sql, before)
    found = list(groups)
    commands: dict[int, tuple[CommandBody, ...]] = {}
    flows = [[name for name in group.names if name in catalog.queries] for group in groups]
    for name in catalog.queries:
        if name not in before.queries:
            _check_inputs(name, catalog, groups)
            _add(name, catalog, groups, flows, found, buckets)
    for number, group in enumerate(groups):
        if not group.buckets:
            continue
        if not flows[number]:
            found[number] = replace(group, buckets=0)  # the others keep their numbers
            continue
        decisions = _decisions(group, change.decision)
        flow = flow_of(catalog, *flows[number])
        if decisions or flow.names != group.flow.names or flow.catalog.queries != group.flow.catalog.queries:
            found[number], commands[number] = group.after(flow, decisions)
    if not commands and found == list(groups):
        raise Refuse("it changes nothing", code="bad_value")
    return Changed(catalog, tuple(found), commands)


def _add(
    name: str, catalog: Catalog, groups: Sequence[Group], flows: list[list[str]], found: list[Group], buckets: int
) -> None:
    """Put a new query into the first group that it shares a key with, or into a new one."""
    for number, group in enumerate(groups):
        if not group.buckets:
            continue
        try:
            group.after(flow_of(catalog, *flows[number], name))
        except Refuse as refused:
            if refused.code != "cannot_split":
                raise
        else:
            flows[number].append(name)
            return
    found.append(group_of(flow_of(catalog, name), buckets))


def _planned(sql: str, catalog: Catalog) -> Catalog:
    """The definitions after some statements. A query's name stays, because its states and rows go by it."""
    for statement in parse(sql) if sql else ():
        match statement.body:
            case s.SelectStatement() | s.CreateQueryStatement():
                pass
            case s.DropStatementNode(kind="query"):
                pass
            case _:
                raise SqlError(
                    statement.text,
                    statement.body.span.start,
                    "a live job can create, replace and drop queries; for anything else stop it, and start a new one",
                )
        catalog = catalog.with_(plan(statement, catalog, bare_name(catalog)))
    return catalog


def _check_inputs(query: str, catalog: Catalog, groups: Sequence[Group]) -> None:
    inputs = list(dict.fromkeys(name for group in groups for name in group.flow.catalog.streams))
    for name in catalog.queries[query].reads_streams:
        if name.removesuffix(".late") not in inputs:
            raise Refuse(
                f"query {query} reads stream {name}, which has no input in this job; its inputs are: "
                f"{', '.join(inputs)}",
                code="bad_input",
            )


def _strategy(group: Group, query: str, strategy: str) -> CommandBody:
    engine = Bucket(group).engine
    component = engine.graph.component_of(engine.query(query).sink).name
    return SetStrategy(component, str(Strategy.parse(strategy)))


def _pause(group: Group, query: str) -> CommandBody:
    return PauseQuery(query)


def _resume(group: Group, query: str) -> CommandBody:
    return ResumeQuery(query)


DECISIONS: Final[Mapping[str, Callable[..., CommandBody]]] = {
    "strategy": _strategy,
    "pause": _pause,
    "resume": _resume,
}


def _decisions(group: Group, decision: Decision) -> tuple[CommandBody, ...]:
    """The command of a decision, if it is about a query of this group."""
    if not decision:
        return ()
    kind, query, *values = decision
    return (DECISIONS[kind](group, query, *values),) if query in group.names else ()


def check_query(groups: Sequence[Group], query: str) -> None:
    names = [name for group in groups for name in group.names]
    if query not in names:
        raise Refuse(f"query {query} does not exist; the queries are: {', '.join(names)}", code="unknown_name")
