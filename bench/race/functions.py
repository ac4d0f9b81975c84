"""The functions of the race's lines about Python: what the programs of the peers compute, too."""

from millrace.functions import aggregate, function


@function("bigint", "bigint", returns="bigint")
def score(k: int, v: int) -> int:
    return v * 2 + 1 if v > k else k - v


@aggregate("bigint", returns="bigint")
class alternating:  # noqa: N801 - its name in SQL
    @staticmethod
    def init() -> int:
        return 0

    @staticmethod
    def iterate(state: int, value: int) -> int:
        return value - state

    @staticmethod
    def terminate(state: int) -> int:
        return state
