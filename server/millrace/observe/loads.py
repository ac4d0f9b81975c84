"""The metrics of memory and overload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from millrace.observe.families import counter, gauge

if TYPE_CHECKING:
    from millrace.run.budget import Budget
    from millrace.run.overload import Overload


def load_families(budget: Budget | None, overload: Overload | None) -> Iterator[Metric]:
    """Without a daemon, families without samples."""
    yield gauge(
        "memory_budget_bytes",
        "The memory budget of the server, from its configuration.",
        (),
        [] if budget is None or budget.bytes is None else [((), budget.bytes)],
    )
    yield gauge(
        "memory_used_bytes",
        "Bytes in memory of the server and its follower, by part; `other` is what no part explains, such as free pages "
        "that the allocator keeps.",
        ("part",),
        [] if budget is None else [((part,), size) for part, size in budget.parts().items()],
    )
    yield gauge(
        "memory_held",
        "1 while feeds get no credit because the memory budget is nearly used up, else 0.",
        (),
        [] if budget is None else [((), int(budget.holds))],
    )
    yield counter(
        "memory_failed_queries",
        "Queries that the server failed because the memory budget was used up.",
        (),
        [] if budget is None else [((), budget.failures)],
    )
    yield counter(
        "shed_rows",
        "Rows dropped because memory was short: retained ones for subscribers that start earlier, or rows that waited "
        "for slow subscribers and sinks.",
        ("kind",),
        [] if budget is None else [((kind,), rows) for kind, rows in budget.shed.items()],
    )
    yield gauge(
        "overload_mode",
        "What the server does about too much work: 0 nothing, 1 feeds wait, 2 rows are dropped, 3 queries fail.",
        (),
        [] if overload is None else [((), overload.mode)],
    )
    yield gauge(
        "engine_load",
        "The share of the last ten seconds in which the engine worked.",
        (),
        [] if overload is None else [((), overload.load)],
    )
    yield gauge(
        "loop_delay_seconds",
        "The longest time within the last ten seconds for which sockets had to wait for the event loop.",
        (),
        [] if overload is None else [((), overload.delay)],
    )
