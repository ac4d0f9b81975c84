"""Six paths of tuples through the engine, for `bench.instructions`, which runs this module under callgrind.

`python -m bench.paths [NAME...]` prints JSON lines: the interpreter and libraries, then a line per path. Each path runs
in a fork of this process, so no path depends on another. A *mark* is the process id of one more fork, which ends at
once: callgrind logs how many instructions it had counted by then. The first two marks of a path have nothing between
them, which gives the cost of a mark. Garbage is not collected, because a collection would occur in a random path.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import mmap
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, Final, NamedTuple

import numpy as np

from bench import aggregate, engine, join
from millrace.engine.engine import Engine
from millrace.engine.events import Arrived, Deliver, Event
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.values import kernels
from millrace.values.batch import Batch

BEST_AND_CURRENT: Final = """
CREATE STREAM quotes (symbol BIGINT, cents BIGINT) WITH (update_key = 'symbol');
CREATE STREAM sales (symbol BIGINT, pieces BIGINT);
CREATE QUERY best AS
  SELECT symbol, cents, ROW_NUMBER() OVER (ORDER BY cents DESC) AS place FROM quotes LATEST QUALIFY place <= 10;
CREATE QUERY paid AS
  SELECT s.symbol, s.pieces * q.cents AS cents FROM sales s JOIN LATEST quotes q ON q.symbol = s.symbol;
"""
# Callgrind starts without instrumentation where a program can switch it on: start-up is then three times as fast.
CAN_SWITCH: Final = platform.machine() in ("x86_64", "AMD64")
# valgrind/valgrind.h: a function of the request's address. Outside valgrind the rotations undo each other.
CLIENT_REQUEST: Final = bytes.fromhex(
    "4889f8"  # mov %rdi, %rax
    "31d2"  # xor %edx, %edx
    "48c1c703 48c1c70d 48c1c73d 48c1c733"  # rol $3, $13, $61, $51, %rdi
    "4887db"  # xchg %rbx, %rbx
    "c3"  # ret
)
# valgrind/callgrind.h: VG_USERREQ__START_INSTRUMENTATION.
START_INSTRUMENTATION: Final = (ord("C") << 24 | ord("T") << 16) + 4

Step = Sequence[Event]


class World(NamedTuple):
    """An engine, the steps that fill its state and its caches, and the steps that count."""

    engine: Engine
    before: Sequence[Step]
    counted: Sequence[Step]


# -- the paths ---------------------------------------------------------------------------------------------------------


def five_operators(order: str, sizes: Iterable[int], before: int) -> World:
    """Batches of these sizes; the steps from number `before` on count."""
    world = engine.engine_with(engine.FIVE_OPERATORS.format(order=order))
    schema = world.streams_by_name["s"].definition.schema
    steps = [[Arrived("s", "bench", Batch.from_rows(schema, [(7, 3)] * size, [0] * size))] for size in sizes]
    return World(world, steps[:before], steps[before:])


def windows(size: int, seconds: int) -> World:
    """Count and sum over the last minute, every ten seconds, by 100 keys, in batches of a second. Windows are full."""
    spec = AggregateSpec(aggregate.SLIDING, aggregate.KEY, (("n", aggregate.COUNT), ("s", aggregate.SUM)))
    load = aggregate.Load((70 + seconds) * size, 100, apart_us=1_000_000 // size)
    steps = [[Arrived("s", "bench", batch)] for batch in load.batches(size)]
    return World(aggregate.engine_with(spec, 4096), steps[:70], steps[70:])


def ordered_join(tuples: int) -> World:
    """4-key band join in order of time: both sides in turn, tuple by tuple, once the band is full."""
    full = 2 * join.RATE
    load = join.Load(full + tuples // 2)
    in_batches = _in_turn([load.batches(side, 100) for side in (0, 1)])
    one_by_one = _in_turn([load.batches(side, 1)[full:] for side in (0, 1)])
    return World(join.engine_with(join.spec(order="sync"), 4096), in_batches[: 2 * full // 100], one_by_one)


def _in_turn(sides: Sequence[Sequence[Batch]]) -> list[Step]:
    return [
        [Arrived(stream, "bench", batch)]
        for pair in zip(*sides, strict=True)
        for stream, batch in zip("st", pair, strict=True)
    ]


def updates(size: int, steps: int) -> World:
    """Quotes that supersede each other in an update queue, the ten best of them, and sales at the current quote."""
    world, rng = engine.engine_with(BEST_AND_CURRENT), np.random.default_rng(1)

    def arrived(stream: str) -> Event:
        schema = world.streams_by_name[stream].definition.schema
        symbols, values = rng.integers(0, 50, size), rng.integers(1, 1000, size)
        return Arrived(stream, "bench", Batch(schema, symbols, [symbols, values]))

    rounds = [[arrived("quotes"), arrived("sales")] for _ in range(10 + steps)]
    return World(world, rounds[:10], rounds[10:])


PATHS: Final[Mapping[str, Callable[[], World]]] = {
    "single": lambda: five_operators("arrival", itertools.repeat(1, 250), 50),
    "batches": lambda: five_operators("arrival", [100, 1_000] * 60, 20),
    "windows": lambda: windows(100, 60),
    "join": lambda: ordered_join(200),
    "union": lambda: five_operators("event", itertools.repeat(1, 150), 50),
    "updates": lambda: updates(20, 20),
}


# -- counting ----------------------------------------------------------------------------------------------------------


def count(name: str) -> dict[str, Any]:
    """The marks before and after the counted steps of a path."""
    world, now = PATHS[name](), itertools.count(1)
    run(world.engine, world.before, now)
    gc.collect()
    gc.disable()
    switch_on()
    marks = [fork(), fork()]
    rows = run(world.engine, world.counted, now)
    marks.append(fork())
    tuples = sum(len(event.batch) for step in world.counted for event in step if isinstance(event, Arrived))
    return {"path": name, "tuples": tuples, "rows": rows, "marks": marks}


def run(world: Engine, steps: Iterable[Step], now: Iterator[int]) -> int:
    """The rows that these steps deliver."""
    rows = 0
    for events in steps:
        effects = world.step(next(now), events)
        while True:
            for order in effects.orders:
                if isinstance(order, Deliver):
                    rows += len(order.batch)
            if not effects.more:
                break
            effects = world.step(next(now))
    return rows


def fork(work: Callable[[], object] = int) -> int:
    """Do this in a fork, and wait for it; its process id."""
    process = os.fork()
    if not process:
        work()
        os._exit(0)
    if os.waitpid(process, 0)[1]:
        sys.exit(1)  # the fork has printed why
    return process


def switch_on() -> None:
    """Let callgrind count from here on."""
    if not CAN_SWITCH:
        return
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(CLIENT_REQUEST)
    request = (ctypes.c_uint64 * 6)(START_INSTRUMENTATION)
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(request))


def libraries() -> dict[str, str]:
    """The software and hardware that determine the number of instructions of the same code."""
    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    return {
        "python": sys.version,
        "machine": f"{platform.machine()} {' '.join(simd.get('found', []))}",
        "libc": " ".join(platform.libc_ver()),
        "numpy": np.__version__,
        "kernels": f"compiled by Cython {metadata.version('cython')}" if kernels.compiled() else "not compiled",
    }


def main(names: Sequence[str]) -> None:
    if outdated := kernels.outdated():
        sys.exit(f"bench: compiled before their sources were edited: {', '.join(outdated)}; run `make setup`")
    print(json.dumps(libraries()), flush=True)
    PATHS["single"]()  # the parser's tables, which all forks then share
    for name in names or PATHS:
        fork(lambda name=name: print(json.dumps(count(name)), flush=True))  # type: ignore[misc]


if __name__ == "__main__":
    main(sys.argv[1:])
