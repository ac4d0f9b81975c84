"""Aggregates: the registry that the binder resolves names in, and the states that operators keep."""

from millrace.values.aggregates.accumulator import Accumulator
from millrace.values.aggregates.registry import AGGREGATES, Aggregate, Aggregates, Combines, user_aggregate

__all__ = ["AGGREGATES", "Accumulator", "Aggregate", "Aggregates", "Combines", "user_aggregate"]
