"""Queries as the disk has them: with the lowered plans that they were created with.

Rule: a query that starts again runs the plan that is stored, whatever the planner would do by now. One whose plan is
missing or cannot be used is planned from its statement, and so are the queries that read its rows; operators of the
same names keep their ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import structlog

from millrace.changes.decisions import Decisions
from millrace.engine import lowered
from millrace.engine.plan import QueryPlan
from millrace.protocol import Refuse
from millrace.sql import Catalog, CreateQuery, parse, plan_all
from millrace.sql.limits import KNOWN
from millrace.store.catalog import Stored

log = structlog.get_logger()


class StoredPlans:
    """The plans of a catalog's file. `renewed` has the queries that are planned again."""

    def __init__(self, stored: Stored, decisions: Decisions) -> None:
        self._texts = stored.plans
        self.renewed: set[str] = set()
        known = (number for text in self._texts.values() for number in lowered.ids(text).values())
        inserted = (edit.id for edit in decisions.operators)
        self._numbers = itertools.count(max(itertools.chain(known, inserted), default=0) + 1)

    def plan(self, statement: str) -> QueryPlan | None:
        """The plan that a statement's query has; None if it is to be planned again."""
        text = self._texts.get(statement)
        if text is None:
            return None
        try:
            plan = lowered.read(text)
        except Refuse as error:
            self.refused(statement, error.text)
            return None
        renewed = [name for name in plan.reads_queries if name in self.renewed]
        if renewed:
            self.refused(statement, f"{renewed[0]}, which it reads, is planned again")
            return None
        return plan

    def refused(self, statement: str, reason: str) -> None:
        """A plan cannot be used."""
        log.warning("a query is planned again from its statement", statement=statement, reason=reason)

    def renew(self, statement: str, plan: QueryPlan) -> QueryPlan:
        """A new plan for a stored query, whose operators keep the ids that those of their names had."""
        self.renewed.add(plan.name)
        ids = lowered.ids(self._texts[statement]) if statement in self._texts else {}
        return plan.numbered({node.name: ids.get(node.name) or next(self._numbers) for node in plan.nodes})


class PlanTexts:
    """The texts of plans, each made when the plan or its operators' ids have changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[QueryPlan, QueryPlan, str]] = {}

    def of(self, planned: Mapping[str, QueryPlan], running: Mapping[str, QueryPlan]) -> dict[str, str]:
        """By statement, the plans as they were created, with the ids that their operators have in the engine."""
        before, self._known = self._known, {}
        for name, plan in planned.items():
            if name in running:
                known = before.get(name)
                if known is None or known[0] is not plan or known[1] is not running[name]:
                    known = plan, running[name], lowered.write(plan.numbered(running[name].ids))
                self._known[name] = known
        return {plan.sql: text for plan, _, text in self._known.values()}


def catalog_of(statements: Sequence[str], plans: Mapping[str, str], warn: Callable[[str], None]) -> Catalog:
    """A server's catalog, whose queries have the plans that they run there."""
    catalog = Catalog()
    for statement in statements:
        try:
            stored = CreateQuery(lowered.read(plans[statement])) if statement in plans else None
        except Refuse as error:
            warn(f"the server's plan cannot be used, so this one is made from its statement: {error.text}: {statement}")
            stored = None
        if stored is None:
            _, catalog = plan_all(parse(statement, KNOWN), catalog)
        else:
            catalog = catalog.with_(stored)
    return catalog
