"""Aggregates: the registry that the binder resolves names in, and the states that operators keep."""

from millrace.values.aggregates.accumulator import Accumulator
from millrace.values.aggregates.registry import AGGREGATES, Aggregate, Aggregates, user_aggregate

__all__ = ["AGGREGATES", "Accumulator", "Aggregate", "Aggregates", "user_aggregate"]
