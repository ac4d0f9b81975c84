"""Operators whose emission order an admin may change while they run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from millrace.operators.frame.operator import Operator


class Pacing(Protocol):
    """How it chooses a mode: by the threshold `alpha`. `untold` switches have not been reported."""

    alpha: float
    untold: int

    def tell(self) -> Sequence[Any]:
        """The switches that have not been reported, as named tuples."""


class OrderSwitching(Operator, ABC):
    """An operator that emits in one of several orders. In some, it chooses a mode from the rates of its inputs.

    order  as the query defines it or an admin has set it
    """

    order: Any
    pacing: Pacing

    @property
    @abstractmethod
    def as_planned(self) -> bool:
        """Whether order and alpha are unchanged from its spec."""

    @abstractmethod
    def check_order(self, order: Any, alpha: float | None) -> None:
        """Refuse an order that it cannot have; `set_order` takes what is not refused."""

    @abstractmethod
    def set_order(self, order: Any = None, alpha: float | None = None) -> None:
        """Change how rows are ordered, from the next execution on; None leaves as it is."""

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """Measurements, the predictions from them, and its mode."""
