"""Credit: how many tuples feeds may send. A feed gets back what it has used, unless the stream has to wait.

A stream waits while its component holds too much, while its history lags too far, while a query that it feeds has a
slow reader, and while the server's memory is nearly used up. Nothing inside the engine stops: operators work off what
has arrived, and every other reader gets its rows. Only feeds wait, for new credit. What a query emits meanwhile is
bounded by the credit that they have.

A wait may not keep others from freeing memory. So a stream gets credit nevertheless while an operator with several
inputs, of a query without a slow reader, waits for it with tuples of other streams in hand (DESIGN, law 6). The slow
reader's rows grow meanwhile; from a bound on, the driver asks for `strict`, and the exception ends. There is no
exception while memory is short: the driver bounds that wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.engine.events import Effects, FeedOpened, Grant, WithholdCredit
from millrace.engine.faults import ask
from millrace.engine.graph.rewire import failing
from millrace.engine.plan import LATE, origin_of
from millrace.engine.scheduler.component import Component
from millrace.operators.sink.sink import Sink
from millrace.operators.source.feeds import Feed
from millrace.operators.source.source import Source

if TYPE_CHECKING:
    from millrace.engine.engine import Engine


# -- granting ----------------------------------------------------------------------------------------------------------


def used(engine: Engine, stream: str, feed: Feed) -> None:
    """Note that a feed has sent tuples: once it has used a quarter of its credit, it is owed what it used."""
    if feed.owed * 4 >= engine.credit or feed.owed_bytes * 4 >= engine.credit_bytes:
        engine.owing[stream] = None
        if feed.owed >= engine.credit:
            # The client may say nothing until it gets credit: its silence means nothing.
            feed.hold(engine.time.heard_us)


def first(engine: Engine, event: FeedOpened, source: Source, feed: Feed, effects: Effects) -> None:
    """What a feed may send at first; where its stream waits it gets the credit together with the other feeds."""
    if engine.memory_held or event.stream in engine.history_held or (engine.slow and source in sources(engine)):
        feed.owed = engine.credit
        feed.hold(engine.time.heard_us)
        engine.owing[event.stream] = None
    effects.orders.append(Grant(event.stream, event.feed, engine.credit - feed.owed))


def grant(engine: Engine, effects: Effects) -> None:
    """Grant credit again for sent tuples, unless the component holds too much already.

    A stream that a blocked operator waits for gets credit nevertheless: its tuples free the others.
    """
    if engine.memory_held:
        return
    held: dict[str, None] = {}
    withheld = failing.withheld(engine) if engine.remembering else {}
    awaiting = sources(engine) if engine.slow else {}
    for name in engine.owing:
        stream = engine.streams_by_name.get(name)
        if stream is None:
            continue
        component = engine.graph.component_of(stream.source)
        full = stream.source in withheld or _full(engine, component)
        if (
            name in engine.history_held
            or (full and not _awaited(engine, component, stream.source))
            or (stream.source in awaiting and withholds(engine, stream.source, awaiting))
        ):
            held[name] = None
            continue
        for feed in stream.source.feeds:
            if feed.owed * 4 >= engine.credit or feed.owed_bytes * 4 >= engine.credit_bytes:
                effects.orders.append(Grant(name, feed.name, feed.owed))
                feed.owed = feed.owed_bytes = 0
                component.has_work |= feed.held_since is not None  # its silence means something again
                feed.release(engine.time.heard_us)
    engine.owing = held


def _full(engine: Engine, component: Component) -> bool:
    """Whether a component holds too much already."""
    most = engine.most_queued_bytes
    return component.pressing() >= engine.most_queued or component.queued_bytes(most, pressing=True) >= most


def _awaited(engine: Engine, component: Component, source: Source) -> bool:
    return any(
        source in engine.time.holders(waiter, need, holding)
        for waiter in component.waiters
        for need, holding in ask(waiter, waiter.needs)
    )


# -- slow readers ------------------------------------------------------------------------------------------------------


def withhold(engine: Engine, command: WithholdCredit) -> dict[str, Any]:
    """Withhold the credit for a query's reader, or no longer."""
    output = output_of(engine, command.name)
    if command.withheld:
        engine.slow[output] = command.strict
    else:
        engine.slow.pop(output, None)
    return {"query": command.name, "withheld": command.withheld, "strict": command.strict}


def output_of(engine: Engine, name: str) -> Sink | Source:
    """The operator whose rows a slow reader of this name takes: a query's sink, or the source of a stream whose late
    tuples it reads."""
    origin = origin_of(name)
    return engine.query(name).sink if origin is None else engine.source(origin)


def slow(engine: Engine) -> dict[str, bool]:
    """By query, or stream of late tuples, with a slow reader: whether there is no exception."""
    return {_name(output): strict for output, strict in engine.slow.items()}


def _name(output: Sink | Source) -> str:
    return output.query if isinstance(output, Sink) else f"{output.stream}{LATE}"


def sources(engine: Engine) -> dict[Source, bool]:
    """The sources that feed queries with slow readers; true: without an exception. A paused query takes nothing."""
    sources: dict[Source, bool] = {}
    for output, strict in engine.slow.items():
        for source in _feeding(engine, output):
            sources[source] = sources.get(source, False) or strict
    return sources


def _feeding(engine: Engine, output: Sink | Source) -> list[Source]:
    """The sources with feeds whose tuples become a query's rows; tuples of a side stream are fed to its origin."""
    if isinstance(output, Source):
        return [output]
    query = engine.query(output.query)
    if query.paused is not None:
        return []
    above = engine.graph.sources(*query.operators)
    return [engine.source(origin_of(source.stream) or source.stream) for source in above]


def withholds(engine: Engine, source: Source, slow: dict[Source, bool]) -> bool:
    """Whether a source that feeds a slow reader gets no credit: it is strict, or no other query waits for it."""
    return slow[source] or not _awaited_by_others(engine, source)


def _awaited_by_others(engine: Engine, source: Source) -> bool:
    """Whether an operator of a query without a slow reader holds tuples of other streams until this one proceeds."""
    for waiter in engine.graph.component_of(source).waiters:
        if len(waiter.inputs) < 2 or all(query.sink in engine.slow for query in engine.owners(waiter)):
            continue
        if ask(waiter, waiter.blocked) and any(
            source in engine.time.holders(waiter, need, holding) for need, holding in ask(waiter, waiter.needs)
        ):
            return True
    return False


def by_stream(engine: Engine) -> dict[str, list[str]]:
    """By stream that gets no credit, the queries and streams of late tuples whose readers are slow."""
    withheld = sources(engine)
    reasons: dict[str, list[str]] = {}
    for output in engine.slow:
        for source in _feeding(engine, output):
            names = reasons.setdefault(source.stream, [])
            if withholds(engine, source, withheld) and _name(output) not in names:
                names.append(_name(output))
    return {stream: names for stream, names in reasons.items() if names}
