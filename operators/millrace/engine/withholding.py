"""Backpressure from slow readers: the streams that feed a query get no credit until its slow reader has caught up.

Nothing inside the engine stops: operators work off what has arrived, and every other reader gets its rows. Only feeds
wait, for new credit. What a query emits meanwhile is bounded by the credit that its feeds still have.

A wait may not keep others from freeing memory. So a stream gets credit nevertheless while an operator with several
inputs, of a query without a slow reader, waits for it with tuples of other streams in hand (DESIGN, law 6). The slow
reader's rows grow meanwhile; from a bound on, the driver asks for `strict`, and the exception ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.engine.plan import origin_of
from millrace.operators.source.source import Source

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


def withhold(engine: Engine, name: str, withheld: bool, strict: bool) -> dict[str, Any]:
    """Withhold the credit for a query's reader, or no longer."""
    if (origin := origin_of(name)) is None:
        engine.query(name)
    else:
        engine.source(origin)
    if withheld:
        engine.slow[name] = strict
    else:
        engine.slow.pop(name, None)
    return {"query": name, "withheld": withheld, "strict": strict}


def sources(engine: Engine) -> dict[Source, bool]:
    """The sources that feed queries with slow readers; true: without an exception. A paused query takes nothing."""
    found: dict[Source, bool] = {}
    for name, strict in engine.slow.items():
        for source in _feeding(engine, name):
            found[source] = found.get(source, False) or strict
    return found


def _feeding(engine: Engine, name: str) -> list[Source]:
    """The sources with feeds whose tuples become a query's rows; tuples of a side stream are fed to its origin."""
    if (origin := origin_of(name)) is not None:
        return [engine.source(origin)]
    query = engine.query(name)
    if query.paused is not None:
        return []
    above = engine.sources(*query.operators)
    return [engine.source(origin_of(source.stream) or source.stream) for source in above]


def withholds(engine: Engine, source: Source, slow: dict[Source, bool]) -> bool:
    """Whether a source that feeds a slow reader gets no credit: it is strict, or no other query waits for it."""
    return slow[source] or not _awaited_by_others(engine, source)


def _awaited_by_others(engine: Engine, source: Source) -> bool:
    """Whether an operator of a query without a slow reader holds tuples of other streams until this one goes on."""
    for waiter in engine.graph.component_of(source).waiters:
        if len(waiter.inputs) < 2 or all(query.plan.name in engine.slow for query in engine.owners(waiter)):
            continue
        need = waiter.need()
        if need is not None and waiter.blocked() and source in engine.time.holders(waiter, need):
            return True
    return False


def by_stream(engine: Engine) -> dict[str, list[str]]:
    """By stream that gets no credit, the queries and streams of late tuples whose readers are slow."""
    slow = sources(engine)
    found: dict[str, list[str]] = {}
    for name in engine.slow:
        for source in _feeding(engine, name):
            if withholds(engine, source, slow) and name not in found.setdefault(source.stream, []):
                found[source.stream].append(name)
    return {stream: names for stream, names in found.items() if names}
