"""The engine's whole state as bytes, and back.

Definitions are saved as they are, and operators are built from them again; buffers, readers and operators return their
states by `save`.
The form is msgpack with a few extensions, never pickle: reading a file must not be able to run anything. `VERSION`
changes with the form of the whole; what one kind of operator saves has its own version (`Layout`), and the version
before it is read, too.
A state is one piece, or a body and large arrays that are saved apart from it (`save_apart`). Arrays that have not
changed since the checkpoint before have the same bytes then, and need not be written again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import astuple, fields, is_dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack
import numpy as np

from millrace.engine import reads
from millrace.engine.events import Effects
from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.engine.producers import Producers
from millrace.engine.scheduler.component import Component
from millrace.engine.scheduler.table import Link, Strategy
from millrace.operators.frame.operator import Operator
from millrace.operators.kinds import kinds
from millrace.operators.queues.reads import Reads
from millrace.operators.sink.sink import Sink
from millrace.operators.source.source import Source
from millrace.protocol import Field, Refuse, Schema, Type
from millrace.values.definitions import DEFINITIONS
from millrace.values.texts import Texts

if TYPE_CHECKING:
    from millrace.engine.engine import Engine
    from millrace.engine.scheduler.component import Stopwatch

VERSION: Final = 6
# The limits that an engine was created with.
LIMITS: Final = (
    "credit",
    "most_queued",
    "credit_bytes",
    "most_queued_bytes",
    "producers_kept",
    "producers_kept_us",
)

# No operator has been saved before.
NOTHING: Final[Mapping[Operator, list[Any]]] = {}

TUPLE, _OBJECT, _ENUM, ARRAY, _OBJECTS, TEXTS, _APART = range(1, 8)

# An array with so many bytes is saved apart from what contains it, if the saved state may have several pieces.
APART_BYTES: Final = 1 << 14

# Keeps the bytes of a large array, and returns the number by which they are found again.
Put = Callable[[memoryview], int]
Get = Callable[[int], bytes | memoryview]


class SavedState(NamedTuple):
    """A state with its large arrays apart from it."""

    body: bytes
    get: Get


def no_array(number: int) -> bytes:
    """Of a state in one piece."""
    raise Refuse(f"the saved state lacks its array {number}", code="bad_state")


# The classes of plans by name. Another class is refused when it is saved.
kinds()
CLASSES: Final[Mapping[str, type]] = {**DEFINITIONS, **{known.__name__: known for known in (Field, Schema, Type)}}


def pack(value: Any, put: Put | None = None) -> bytes:
    """Plain data, arrays and definitions as bytes; equal values have equal bytes. With `put`, large arrays are not
    among the bytes."""
    default = extend if put is None else partial(extend, put=put)
    packed: bytes = msgpack.packb(value, default=default, strict_types=True)
    return packed


def unpack(data: bytes | memoryview, get: Get | None = None) -> Any:
    hook = restore_extension if get is None else partial(restore_extension, get=get)
    return msgpack.unpackb(data, ext_hook=hook, strict_map_key=False)


def extend(value: Any, put: Put | None = None) -> msgpack.ExtType:
    if isinstance(value, tuple):
        return msgpack.ExtType(TUPLE, pack(list(value), put))
    if isinstance(value, deque):
        return msgpack.ExtType(TUPLE, pack(list(value), put))
    if isinstance(value, Enum):
        return msgpack.ExtType(_ENUM, pack([_known(value), value.value]))
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return msgpack.ExtType(_OBJECTS, pack(value.tolist()))
        if put is not None and value.nbytes >= APART_BYTES:
            return msgpack.ExtType(_APART, pack([value.dtype.str, put(_bytes_of(value))]))
        return msgpack.ExtType(ARRAY, pack([value.dtype.str, value.tobytes()]))
    if isinstance(value, Texts):
        saved = value.save()
        return msgpack.ExtType(TEXTS, pack(saved if put is None else [*map(_as_array, saved)], put))
    if is_dataclass(value):
        return msgpack.ExtType(
            _OBJECT, pack([_known(value), [getattr(value, f.name) for f in fields(value) if f.init]], put)
        )
    raise TypeError(f"cannot save a {type(value).__name__}: {value!r}")


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _as_array(value: Any) -> Any:
    """Many bytes as an array, which may be saved apart."""
    return np.frombuffer(value, np.uint8) if isinstance(value, bytes) and len(value) >= APART_BYTES else value


def _known(value: Any) -> str:
    name = type(value).__name__
    if CLASSES.get(name) is not type(value):
        raise TypeError(f"cannot save a {name}: it is not among the classes of definitions")
    return name


def restore_extension(code: int, data: bytes, get: Get | None = None) -> Any:
    inner = unpack(data, get)
    match code:
        case 1:
            return tuple(inner)
        case 2:
            return CLASSES[inner[0]](*inner[1])
        case 3:
            return CLASSES[inner[0]](inner[1])
        case 4:
            return np.frombuffer(inner[1], np.dtype(inner[0]))
        case 5:
            array = np.empty(len(inner), object)
            array[:] = inner
            return array
        case 6:
            return Texts.restore(inner)
        case 7 if get is not None:
            return np.frombuffer(get(inner[1]), np.dtype(inner[0]))
    raise Refuse(f"the saved state contains an unknown extension ({code})", code="bad_state")


# -- the engine --------------------------------------------------------------------------------------------------------


def save(engine: Engine) -> bytes:
    return pack(collect(engine))


def save_apart(engine: Engine, put: Put) -> bytes:
    """The body of the same. Operators are saved one after the other, so not more than one of them is in memory as
    bytes."""
    return pack(collect(engine, put=put), put)


def collect(engine: Engine, known: Mapping[Operator, list[Any]] = NOTHING, put: Put | None = None) -> dict[str, Any]:
    """The same before it becomes bytes, which takes long where much is retained. No tuple may be taken meanwhile.
    Operators that are `known` have been saved before."""
    from millrace.engine import credit
    from millrace.engine.graph.rewire import sharing

    graph = engine.graph
    operators, faults = _operators(graph.operators, known, put)
    return {
        "version": VERSION,
        "now_us": engine.clock.now_us,
        "limits": {name: getattr(engine, name) for name in LIMITS},
        "modes": [graph.thin, engine.share],
        "turn": engine.turn,
        "time": engine.time.save(),
        "last_id": engine.last_id,
        "owing": list(engine.owing),
        "history_held": list(engine.history_held),
        "memory_held": engine.memory_held,
        "slow": credit.slow(engine),
        "reads": [
            [sink.query, reader, read.interval_us, read.since_us, read.keys]
            for sink, readers in engine.reads.items()
            for reader, read in readers.items()
        ],
        "costs": [[operator.name, tuples, us] for operator, (tuples, us) in engine.costs.items()],
        "gauge": [engine.gauge.peak_tuples, engine.gauge.peak_bytes],
        "definitions": definitions(engine),
        "producers": {
            name: stream.producers.save() for name, stream in engine.streams_by_name.items() if stream.producers
        },
        "lateness": {name: stream.source.save_ledger() for name, stream in engine.streams_by_name.items()},
        "shared": {name: sharing.saved(engine, query) for name, query in engine.queries_by_name.items()},
        "paused": [
            [name, query.paused, query.failed]
            for name, query in engine.queries_by_name.items()
            if query.paused is not None
        ],
        "apart": {name: query.apart for name, query in engine.queries_by_name.items() if query.apart},
        "separate": {name: [*query.separate] for name, query in engine.queries_by_name.items() if query.separate},
        "merge_wait": engine.merge_wait,
        "lost": [[name, query.lost] for name, query in engine.queries_by_name.items() if query.lost],
        "strategies": [[operator.name, str(strategy)] for operator, strategy in graph.strategies.items()],
        "breaks": [operator.name for operator in graph.breaks],
        "links": [[operator.name, *astuple(link.view())] for operator, link in graph.links.items()],
        "chains": engine.chains.save(),
        "forks": [[operator.name, fork.name, fork.turn] for operator, fork in graph.all_forks().items()],
        "operators": operators,
        "faults": faults,
        "components": [component.save() for component in graph.components],
    }


def definitions(engine: Engine) -> list[StreamDefinition | QueryPlan]:
    """Streams and queries in the order of their creation."""
    definitions: list[StreamDefinition | QueryPlan] = []
    for operator in engine.graph.operators.values():
        if isinstance(operator, Source):
            definitions.append(engine.streams_by_name[operator.stream].definition)
        elif isinstance(operator, Sink):
            definitions.append(engine.queries_by_name[operator.query].plan)
    return definitions


def _operators(
    operators: Mapping[str, Operator], known: Mapping[Operator, list[Any]], put: Put | None
) -> tuple[list[list[Any]], list[list[str]]]:
    """What each operator saves, with `put` as bytes, and why some cannot be saved: their queries stop when the state is
    restored."""
    saved, faults = [], []
    for name, operator in operators.items():
        try:
            state = known.get(operator) or save_operator(operator)
        except Exception as error:
            faults.append([name, f"{name} failed: {type(error).__name__}: {error}"])
        else:
            saved.append([name, state if put is None else np.frombuffer(pack(state, put), np.uint8)])
    return saved, faults


def save_operator(operator: Operator) -> list[Any]:
    output = None if isinstance(operator, Sink) else operator.output.save()
    return [operator.counts.save(), [reader.save() for reader in operator.inputs], output, save_state(operator)]


def save_state(operator: Operator) -> list[Any]:
    """The state that an operator has beyond arcs, with its version."""
    return [operator.layout.version, operator.save()]


def restore_state(operator: Operator, saved: list[Any]) -> None:
    operator.restore(operator.layout.read(operator, *saved))


# -- the states alone --------------------------------------------------------------------------------------------------


def save_states(engine: Engine) -> bytes:
    """What the operators of an idle engine keep, and nothing of its plan: for an engine that has the same plan."""
    graph = engine.graph
    graph.settle()
    return pack(
        [
            engine.clock.now_us,
            engine.time.save(),
            [save_operator(operator) for operator in graph.operators.values()],
            [component.save() for component in graph.components],
        ]
    )


def restore_states(engine: Engine, data: bytes) -> None:
    """Continue from the states of an engine that had the same plan; this one has taken nothing yet."""
    graph = engine.graph
    engine.clock.now_us, timers, operators, components = unpack(data)
    engine.time.restore(timers)
    engine.owing.clear()
    for operator, state in zip(graph.operators.values(), operators, strict=True):
        _restore_operator(operator, state)
    _restore_components(engine, components)


def restore(
    data: bytes | SavedState, *, stopwatch: Stopwatch | None, trace: bool, into: Engine | None = None
) -> Engine:
    """The saved engine: a new one, or `into`, which starts over as that."""
    from millrace.engine import credit, streams
    from millrace.engine.engine import Engine
    from millrace.engine.graph.rewire import adding

    body, get = data if isinstance(data, SavedState) else (data, None)
    saved = unpack(body, get)
    if saved["version"] != VERSION:
        raise Refuse(
            f"the saved state has version {saved['version']}, this program reads version {VERSION}", code="bad_state"
        )
    thin, share = saved["modes"]
    engine = Engine.__new__(Engine) if into is None else into
    engine.__init__(stopwatch=stopwatch, trace=trace, thin=thin, share=share, **saved["limits"])  # type: ignore[misc]
    engine.clock.now_us = saved["now_us"]
    for definition in saved["definitions"]:
        if isinstance(definition, StreamDefinition):
            streams.make(engine, definition)
        else:
            adding.make(engine, definition, saved=saved["shared"][definition.name])
    engine.last_id = saved["last_id"]
    engine.fresh.clear()
    _restore_graph(engine, saved, get)
    engine.turn = saved["turn"]
    engine.time.restore(saved["time"])
    engine.owing = dict.fromkeys(saved["owing"])
    engine.history_held = dict.fromkeys(saved["history_held"])
    engine.memory_held = saved.get("memory_held", False)
    engine.slow = {credit.output_of(engine, name): strict for name, strict in saved["slow"].items()}
    engine.gauge.peak_tuples, engine.gauge.peak_bytes = saved["gauge"]
    engine.merge_wait = saved.get("merge_wait", 0)
    for name, producers in saved.get("producers", {}).items():
        engine.stream(name).producers = Producers(producers)
    ledgers = saved.get("lateness", {})
    for name, stream in engine.streams_by_name.items():
        stream.source.restore_ledger(ledgers.get(name), engine.clock.now_us)
    for query, reader, interval_us, since_us, keys in saved.get("reads", ()):
        listed = None if keys is None else tuple(map(tuple, keys))
        engine.reads.setdefault(engine.query(query).sink, {})[reader] = Reads(interval_us, since_us, listed)
    reads.settle(engine)
    return engine


def _restore_graph(engine: Engine, saved: dict[str, Any], get: Get | None) -> None:
    from millrace.engine.graph.rewire import failing, pausing

    graph = engine.graph
    for name, reason, failed in saved["paused"]:
        pausing.leave(engine, engine.query(name), reason)
        if failed:
            engine.query(name).failed = True
            failing.stand_still(engine, engine.query(name))
    for name, apart in saved["apart"].items():
        engine.query(name).apart = apart
    for name, nodes in saved.get("separate", {}).items():
        engine.query(name).separate = dict.fromkeys(nodes)
    for name, lost in saved["lost"]:
        engine.query(name).lost = lost
    by_name = {operator.name: fork for operator, fork in graph.forks.items()}
    for name, fork_name, turn in saved["forks"]:
        if name in by_name:
            by_name[name].name = fork_name
            by_name[name].turn = turn
        else:
            graph.rest(graph.operators[name], fork_name, turn)
    known: dict[str, Operator] = {one.name: one for one in (*graph.operators.values(), *graph.all_forks().values())}
    graph.strategies = {known[name]: Strategy.parse(text) for name, text in saved["strategies"]}
    graph.breaks = dict.fromkeys(known[name] for name in saved["breaks"])
    graph.links = {
        known[name]: Link(slope, selectivity, cost_us, known.get(segment, known[name]), cut)
        for name, slope, selectivity, cost_us, segment, cut in saved["links"]
    }
    engine.chains.restore(saved["chains"], known)
    engine.costs = {known[name]: (tuples, us) for name, tuples, us in saved["costs"]}
    for name, whole in saved["operators"]:
        _restore_operator(graph.operators[name], unpack(whole.data, get) if isinstance(whole, np.ndarray) else whole)
    _restore_components(engine, saved["components"])
    for name, reason in saved.get("faults", ()):
        for query in engine.owners(graph.operators[name]):
            failing.fail(engine, query, reason, Effects())


def _restore_operator(operator: Operator, saved: list[Any]) -> None:
    counts, readers, output, state = saved
    operator.counts.restore(counts)
    if output is not None:
        operator.output.restore(output)
    for reader, reader_state in zip(operator.inputs, readers, strict=True):
        reader.restore(reader_state)
    restore_state(operator, state)


def _restore_components(engine: Engine, saved: list[list[Any]]) -> None:
    """The components of operators that have been restored."""
    graph = engine.graph
    for operator in graph.operators.values():
        operator.output.release()
    for component, state in zip(graph.divided(), saved, strict=True):
        component.strategy = Strategy.parse(state[1])  # rows that lack one have it
    for component, state in zip(graph.components, saved, strict=True):
        _restore_component(component, graph.operator, state)


def _restore_component(component: Component, find: Any, state: list[Any]) -> None:
    (
        component.name,
        strategy,
        component.weight,
        component.deficit,
        component.steps,
        ready,
        current,
        component.cycled,
        component.ready.preferred,
        component.has_work,
        component.worked_us,
        component.decisions,
    ) = state
    component.strategy = Strategy.parse(strategy)
    component.ready.refill(find(name) for name in ready)
    component.current = None if current is None else find(current)
