"""A query that runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.engine.plan import QueryPlan
from millrace.operators.frame.operator import Operator
from millrace.operators.frame.order_switching import OrderSwitching
from millrace.operators.gate.gate import Gate
from millrace.operators.sink.sink import Sink
from millrace.protocol import Refuse


@dataclass(slots=True, eq=False)
class Query:
    """A running query: its plan, and its operators in plan order.

    `paused` says why it reads nothing at present, `failed` that it could not continue, and `lost` how many tuples
    that cost. `apart` says which operators it could have shared, and why it does not;
    `separate` has the nodes whose operators an admin has separated. `remembers` says whether any of its operators has
    state that can grow, `gates` which of them hold rows back until its history is there, `switches` which of them is a
    join whose order can change, and `requeued` whether any of its inputs has an edge that is not the default.
    """

    plan: QueryPlan
    operators: list[Operator]
    sink: Sink
    paused: str | None = None
    failed: bool = False
    lost: int = 0
    apart: dict[str, str] = field(default_factory=dict)
    separate: dict[str, None] = field(default_factory=dict)
    remembers: bool = field(init=False)
    gates: list[Gate] = field(init=False)
    switches: OrderSwitching | None = field(init=False)
    requeued: bool = field(init=False)

    def __post_init__(self) -> None:
        self.become(self.plan, self.operators)

    def become(self, plan: QueryPlan, operators: list[Operator]) -> None:
        self.plan, self.operators = plan, operators
        self.separate = {node.name: None for node in plan.nodes if node.name in self.separate}
        self.switches = next((operator for operator in operators if isinstance(operator, OrderSwitching)), None)
        self.requeued = any(node.edges for node in plan.nodes)
        self.gates = [operator for operator in operators if isinstance(operator, Gate)]
        self.remembers = any(type(operator).state_tuples is not Operator.state_tuples for operator in operators)

    @property
    def may_differ(self) -> bool:
        """Whether anything may be decided of it beyond its statement."""
        return bool(
            self.requeued or self.switches is not None or self.paused is not None or self.separate or self.plan.edits
        )

    @property
    def catching_up(self) -> bool:
        """Whether the query still lacks its history."""
        return any(gate.closed for gate in self.gates)


def refuse_catching_up(query: Query) -> None:
    if query.catching_up:
        raise Refuse(
            f"query {query.plan.name} is catching up with its history: wait until it is live, or drop it",
            code="catching_up",
        )
