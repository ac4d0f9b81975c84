"""`python -m bench [NAME...]`: all benchmarks, or those whose name starts with one of the words.

`python -m bench instructions` counts instead of measuring, and `python -m bench race` measures beside other programs;
both have options.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial

from bench import (
    aggregate,
    backfill,
    changing,
    durability,
    engine,
    ets,
    instructions,
    join,
    many,
    memory,
    nexmark,
    punctuation,
    reconfigure,
    sequence,
    sharing,
    startup,
    updates,
    wire,
)
from bench.figure import Figure
from bench.race import __main__ as race
from bench.race import inprocess
from bench.race.workloads import WORKLOADS

BENCHMARKS: Mapping[str, Callable[[], list[Figure]]] = {
    "engine": lambda: engine.throughput(1 << 21),
    "engine-event": lambda: engine.throughput(1 << 21, order="event"),
    "engine-single": lambda: engine.single_tuple(20_000),
    "engine-single-event": lambda: engine.single_tuple(20_000, order="event"),
    "aggregate-65536": lambda: aggregate.tumbling(2_000_000, 65_536),
    "aggregate-260000": lambda: aggregate.tumbling(2_000_000, 260_000),
    "aggregate-text-65536": lambda: aggregate.text_keys(2_000_000, 65_536, 80.0),
    "aggregate-text-1000000": lambda: aggregate.text_keys(4_000_000, 1_000_000, 250.0),
    "aggregate-groups": lambda: aggregate.groups((1_000, 100_000, 1_000_000), 1_000_000),
    "aggregate-scattered": lambda: aggregate.groups((1_000, 100_000, 1_000_000), 1_000_000, scattered=True),
    "aggregate-sliding": lambda: aggregate.sliding(12_000_000),
    "aggregate-panes": lambda: aggregate.many_panes(3600, 30),
    "aggregate-closing": lambda: aggregate.closing(3_000_000, 260_000),
    "memory-keys": lambda: memory.endless_keys(600, 10_000),
    "sequence-recent": lambda: sequence.throughput(1 << 20, "recent") + sequence.single_tuple(20_000, "recent"),
    "sequence-chronicle": lambda: (
        sequence.throughput(1 << 20, "chronicle") + sequence.single_tuple(20_000, "chronicle")
    ),
    "punctuation": lambda: punctuation.thinning(50_000),
    "join-band": lambda: join.band(1 << 18),
    "join-single": lambda: join.single(20_000),
    "join-skew": lambda: join.skew(1 << 16),
    "join-rows": lambda: join.by_rows(1 << 15),
    "join-size": lambda: join.size((4_000, 65_536, 1_000_000)),
    "wire-rows": lambda: wire.throughput("rows", 100, 5_000_000, 1e6),
    "wire-arrow": lambda: wire.throughput("arrow", 10_000, 50_000_000, 1e7),
    "wire-history-rows": lambda: wire.history("rows", 100, 5_000_000, 25),
    "wire-history-arrow": lambda: wire.history("arrow", 10_000, 30_000_000, 25),
    "wire-aggregate": lambda: wire.aggregate(10_000, 20_000_000, 3e6),
    "wire-join": lambda: wire.join(10_000, 10_000_000, 2e6),
    "wire-idle": lambda: wire.idle_connections(1_000),
    "durability-rows": lambda: durability.throughput("rows", 100, 10_000_000, 85),
    "durability-arrow": lambda: durability.throughput("arrow", 10_000, 20_000_000, 70),
    "durability-latency": durability.latency,
    "durability-recovery": lambda: durability.recovery(20_000_000),
    "durability-disk": lambda: durability.disk(5_000_000),
    "durability-groups": lambda: durability.groups(1_000_000),
    "durability-follower": lambda: durability.following(2_000_000, 60),
    "durability-pauses": lambda: durability.pauses(20_000_000, 5),
    "ets-order": lambda: ets.order_on_demand(2_000),
    "ets-feeds": lambda: ets.many_feeds(100, 100),
    "changing": lambda: changing.one_change(1_000),
    "many-queries": lambda: many.queries((10, 100, 1_000, 10_000)),
    "sharing": lambda: sharing.filters(1 << 20),
    "reconfigure": lambda: reconfigure.under_load(60, 1_000, 0),
    "reconfigure-refused": lambda: reconfigure.under_load(30, 250, 250),
    "nexmark": lambda: nexmark.disorder(100_000),
    "startup": startup.start_up,
    "backfill": lambda: backfill.race(10_000_000),
    **updates.BENCHMARKS,
    **{f"race-engine-{name}": partial(inprocess.against_duckdb, name) for name in WORKLOADS},
}


def main(words: list[str]) -> int:
    if words[:1] == ["instructions"]:
        return instructions.main(words[1:])
    if words[:1] == ["race"]:
        return race.main(words[1:])
    chosen = [name for name in BENCHMARKS if not words or any(name.startswith(word) for word in words)]
    if not chosen:
        print(
            f"bench: no name starts with {' or '.join(words)}; names: {', '.join(BENCHMARKS)}, instructions, race",
            file=sys.stderr,
        )
        return 2
    for name in chosen:
        for figure in BENCHMARKS[name]():
            print(figure.line(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
