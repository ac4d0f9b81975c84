"""Credit: how many tuples feeds may send. A feed gets back what it has used, unless the stream has to wait.

A stream waits while its component holds too much, while its history lags too far, and while a query that it
feeds has a slow reader. Nothing inside the engine stops: operators work off what has arrived, and every other reader
gets its rows. Only feeds wait, for new credit. What a query emits meanwhile is bounded by the credit that they have.

A wait may not keep others from freeing memory. So a stream gets credit nevertheless while an operator with several
inputs, of a query without a slow reader, waits for it with tuples of other streams in hand (DESIGN, law 6). The slow
reader's rows grow meanwhile; from a bound on, the driver asks for `strict`, and the exception ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.engine.events import Effects, FeedOpened, Grant, WithholdCredit
from millrace.engine.faults import ask
from millrace.engine.graph.rewire import failing
from millrace.engine.plan import origin_of
from millrace.engine.scheduler.component import Component
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
    if event.stream in engine.history_held or (engine.slow and source in sources(engine)):
        feed.owed = engine.credit
        feed.hold(engine.time.heard_us)
        engine.owing[event.stream] = None
    effects.orders.append(Grant(event.stream, event.feed, engine.credit - feed.owed))


def grant(engine: Engine, effects: Effects) -> None:
    """Grant credit again for sent tuples, unless the component holds too much already.

    A stream that a blocked operator waits for gets credit nevertheless: its tuples free the others.
    """
    held: dict[str, None] = {}
    withheld = failing.withheld(engine) if engine.remembering else {}
    slow = sources(engine) if engine.slow else {}
    for name in engine.owing:
        stream = engine.streams_by_name.get(name)
        if stream is None:
            continue
        component = engine.graph.component_of(stream.source)
        full = stream.source in withheld or _full(engine, component)
        if (
            name in engine.history_held
            or (full and not _awaited(engine, component, stream.source))
            or (stream.source in slow and withholds(engine, stream.source, slow))
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
    name = command.name
    if (origin := origin_of(name)) is None:
        engine.query(name)
    else:
        engine.source(origin)
    if command.withheld:
        engine.slow[name] = command.strict
    else:
        engine.slow.pop(name, None)
    return {"query": name, "withheld": command.withheld, "strict": command.strict}


def sources(engine: Engine) -> dict[Source, bool]:
    """The sources that feed queries with slow readers; true: without an exception. A paused query takes nothing."""
    sources: dict[Source, bool] = {}
    for name, strict in engine.slow.items():
        for source in _feeding(engine, name):
            sources[source] = sources.get(source, False) or strict
    return sources


def _feeding(engine: Engine, name: str) -> list[Source]:
    """The sources with feeds whose tuples become a query's rows; tuples of a side stream are fed to its origin."""
    if (origin := origin_of(name)) is not None:
        return [engine.source(origin)]
    query = engine.query(name)
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
        if len(waiter.inputs) < 2 or all(query.plan.name in engine.slow for query in engine.owners(waiter)):
            continue
        if ask(waiter, waiter.blocked) and any(
            source in engine.time.holders(waiter, need, holding) for need, holding in ask(waiter, waiter.needs)
        ):
            return True
    return False


def by_stream(engine: Engine) -> dict[str, list[str]]:
    """By stream that gets no credit, the queries and streams of late tuples whose readers are slow."""
    slow = sources(engine)
    reasons: dict[str, list[str]] = {}
    for name in engine.slow:
        for source in _feeding(engine, name):
            if withholds(engine, source, slow) and name not in reasons.setdefault(source.stream, []):
                reasons[source.stream].append(name)
    return {stream: names for stream, names in reasons.items() if names}
