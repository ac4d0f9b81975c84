"""Set the order mode of a query's joins."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from millrace.changes.change import Change, Planned, Route, Verb
from millrace.changes.fields import QueryName
from millrace.changes.state import ControlState
from millrace.engine import events
from millrace.engine.engine import Engine
from millrace.protocol.admin.changes import OrderReply
from millrace.sql import Planned as Step

JoinOrder = Literal["arrival", "sync", "filter", "adaptive"]


class SetOrder(Change):
    """Change how a running query's joins order their rows. No pair is lost or repeated. Omitted settings do not
    change."""

    label: ClassVar[str] = "order"
    answers: ClassVar[type] = OrderReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "PUT",
            "queries/{name}/order",
            "Change the order mode of a query's joins while they run",
            Verb(
                "Tune",
                "query order",
                "millrace query order pairs sync",
                "joins of {name} now use order {join}",
                arguments=("join",),
                metavars={"join": "ORDER", "alpha": "A"},
            ),
        ),
    )

    name: QueryName
    join: Annotated[
        JoinOrder | None,
        Field(
            description="arrival: rows as they arrive; sync: inputs sorted first; filter: results sorted "
            "after; adaptive: the cheaper of both."
        ),
    ] = None
    alpha: Annotated[
        float | None,
        Field(
            ge=0,
            lt=1,
            allow_inf_nan=False,
            description="adaptive uses filter if c |w| l1 l2 >= alpha; from 0 to below 1.",
        ),
    ] = None

    def facts(self, engine: Engine) -> Any:
        """The order and the alpha of its joins."""
        query = engine.queries_by_name.get(self.name)
        join = None if query is None else query.switches
        return None if join is None else (join.order, join.pacing.alpha)

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        inverse = None if facts is None else (SetOrder(name=self.name, join=facts[0], alpha=facts[1]),)
        return Planned(
            self,
            state.definitions,
            commands=(events.SetOrder(self.name, self.join, self.alpha),),
            inverse=inverse,
            lost=None if inverse else "the query has no join",
            sentence=f"set the order of the joins of query {self.name}",
        )
