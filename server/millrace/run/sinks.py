"""The sinks of a server while they write: their writers, their views, and what they promise of the age of rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from millrace.changes.effects import CloseSink, Effect, OpenSink
from millrace.engine.engine import Engine
from millrace.net.freshness import Freshness, Key, in_json
from millrace.net.readers import TAKES_NOTHING, SlowReader, explained, slow_reader
from millrace.net.sink import Slow, WriterSink
from millrace.protocol.admin.queries import SinkView, Why
from millrace.run.runner import Runner
from millrace.run.threads import in_thread
from millrace.sql import SinkDefinition
from millrace.standby.sinkfence import Outdated, SinkFence
from millrace.store.openings import NO_PLACE, NewSink, Opened, Openings, SinkPlace, Taken, abandon
from millrace.store.places import SinkFolders
from millrace.store.sinkfiles import SinkPosition

# How long a checkpoint waits for the disks of sinks.
SYNC_SECONDS: Final = 5.0


@dataclass(slots=True)
class SinkRuntime:
    """A sink that writes."""

    definition: SinkDefinition
    consumer: WriterSink
    place: SinkPlace = NO_PLACE


class Sinks:
    """The sinks of one server."""

    def __init__(self, engine: Engine, runner: Runner, places: SinkFolders, fence: SinkFence) -> None:
        self.openings = Openings(places, fence)
        self._fence = fence
        self._engine = engine
        self._runner = runner
        self._sinks: dict[str, SinkRuntime] = {}
        self._last: dict[str, dict[str, Any]] = {}  # positions of sinks that were closed at the end

    # -- life --------------------------------------------------------------------------------------

    async def open_files(self, effects: Iterable[Effect], *, opens: bool, known: bool) -> dict[str, Opened]:
        """Open the files of new sinks. One that cannot be written refuses the whole change, and no file stays open.

        `known` sinks are those of a catalog that is being loaded: they are opened when they write.
        """
        new: dict[str, NewSink] = {}
        staying = dict.fromkeys(self._sinks)
        for effect in effects:
            match effect:
                case OpenSink(sink, schema):
                    new[sink.name] = NewSink(sink, schema)
                    staying.pop(sink.name, None)
                case CloseSink(name):
                    new.pop(name, None)
                    staying.pop(name, None)
                case _:
                    pass
        sinks = list(new.values())
        if not sinks:
            return {}
        if known:
            return await in_thread(lambda: {sink.definition.name: self.openings.known(sink) for sink in sinks})
        others = [
            Taken(name, path, self._sinks[name].consumer.identity)
            for name in staying
            if (path := self._sinks[name].consumer.path) is not None
        ]
        try:
            return await in_thread(lambda: self.openings.new(sinks, others, opens=opens), abandon)
        except Outdated as outdated:
            self._fence.outdated(outdated.proof)
            raise

    def add(self, definition: SinkDefinition, opened: Opened, position: Mapping[str, Any] | None = None) -> None:
        """Have a sink write. One that wrote before the server started continues after its position, or started there if
        the position has no number."""
        slow = Slow(definition.on_slow, definition.slow_limit, definition.slow_bytes)
        outlet = self._runner.outlets[definition.query]
        bound_us = definition.freshness_us
        freshness = None if bound_us is None else Freshness(bound_us)
        consumer = WriterSink(
            definition.name,
            slow,
            opened.file,
            freshness,
            self._runner.now_us,
            self._runner.silence,
            private=opened.place.private,
            outdated=self._fence.outdated,
        )
        first = None
        start = {"history": outlet.history, "next": outlet.next_sequence, **(position or {})}
        if start["history"] != outlet.history:  # of a query that had this name before
            start = {"history": outlet.history, "next": outlet.next_sequence}
        consumer.prepare(SinkPosition.from_data(start))
        if position is not None and "next" in position:
            first = outlet.resume_at(consumer, start["next"])
        self._sinks[definition.name] = SinkRuntime(definition, consumer, opened.place)
        outlet.add(consumer, first)
        consumer.start()

    def retarget(self, definition: SinkDefinition) -> None:
        """The sink's query has another name."""
        if definition.name in self._sinks:
            self._sinks[definition.name].definition = definition

    async def end(self, name: str, *, resumes: bool = False) -> None:
        sink = self._sinks.pop(name, None)
        if sink is None:
            return
        outlet = self._runner.outlets.get(sink.definition.query)
        if outlet is not None:
            outlet.remove(sink.consumer)
        await sink.consumer.close(resumes=resumes)

    async def close(self, *, resumes: bool = False) -> None:
        """Finish every file; `resumes` if a server that starts again continues them."""
        for name, sink in tuple(self._sinks.items()):
            await self.end(name, resumes=resumes)
            if resumes and sink.consumer.position is not None:
                self._last[name] = sink.consumer.position.to_data()

    # -- positions ---------------------------------------------------------------------------------

    async def sync(self) -> None:
        """Make durable what the sinks have written. A sink that hangs keeps its earlier position."""
        commits = [asyncio.ensure_future(sink.consumer.commit()) for sink in self._sinks.values()]
        if commits:
            await asyncio.wait(commits, timeout=SYNC_SECONDS)

    def positions(self) -> dict[str, dict[str, Any]]:
        """How far each sink was at the last `sync`, or when all were closed: for a checkpoint, and then for `add`."""
        found = {}
        for name, sink in self._sinks.items():
            if sink.consumer.position is not None:
                sink.consumer.need_position()
                found[name] = sink.consumer.position.to_data()
        return {**self._last, **found}

    # -- views -------------------------------------------------------------------------------------

    def kept_places(self) -> list[tuple[str, str]]:
        """The sinks whose path is another one than their statement names today."""
        return [(name, sink.place.kept) for name, sink in sorted(self._sinks.items()) if sink.place.kept is not None]

    def problems(self) -> list[str]:
        sinks = (sink.consumer.problem() for sink in self._sinks.values())
        return [problem for problem in sinks if problem is not None]

    def why(self, query: str) -> Why:
        """Why a query emits no rows, and which of its sinks have rows older than their `freshness`."""
        self.look_for_breaches()
        found = self._engine.why(query, self._runner.now_us())
        reader = self._slow_reader(query)
        if reader is not None and found.reason not in TAKES_NOTHING:
            found = explained(found, reader)
        told = [
            sentence
            for name, sink in self._sinks.items()
            if sink.definition.query == query and sink.consumer.freshness is not None
            for sentence in [sink.consumer.freshness.sentence(name)]
            if sentence is not None
        ]
        return replace(found, text=" ".join([found.text, *told]))

    def _slow_reader(self, query: str) -> SlowReader | None:
        """The slow reader of a query, or of another whose streams it shares."""
        withheld = self._engine.withheld()
        sources = self._engine.graph.sources(*self._engine.query(query).operators)
        others = [name for source in sources for name in withheld.get(source.stream, ())]
        for name in dict.fromkeys((query, *others)):
            outlet = self._runner.outlets.get(name)
            reader = None if outlet is None else slow_reader(outlet, withheld)
            if reader is not None:
                return reader
        return None

    def look_for_breaches(self) -> None:
        """Hold what waits against what sinks promise of its age."""
        now_us = self._runner.now_us()
        for sink in self._sinks.values():
            bound_us = sink.definition.freshness_us
            if bound_us is not None:
                above = self._engine.older(sink.definition.query, now_us, bound_us)
                sink.consumer.look(now_us, [(_as_json(key), age) for key, age in above])

    @property
    def strictest_us(self) -> int | None:
        """The least age that a sink promises."""
        bounds = [sink.definition.freshness_us for sink in self._sinks.values()]
        return min((bound for bound in bounds if bound is not None), default=None)

    def views(self) -> list[SinkView]:
        self.look_for_breaches()
        now_us = self._runner.now_us()
        return [self._view(name, sink, now_us) for name, sink in self._sinks.items()]

    @staticmethod
    def _view(name: str, sink: SinkRuntime, now_us: int) -> SinkView:
        definition, consumer = sink.definition, sink.consumer
        return SinkView(
            name=name,
            query=definition.query,
            history=consumer.history,
            type=definition.type,
            path=None if consumer.path is None else str(consumer.path),
            outside=sink.place.outside,
            format=definition.format,
            state=consumer.state,
            reason=consumer.reason,
            since_us=None if consumer.trouble is None else consumer.trouble.since_us,
            on_slow=definition.on_slow,
            slow_limit=definition.slow_limit,
            slow_bytes=definition.slow_bytes,
            delivered=consumer.delivered,
            held=consumer.held,
            held_bytes=consumer.held_bytes,
            unfinished=consumer.unfinished,
            dropped=consumer.dropped,
            superseded=consumer.superseded,
            freshness=None if consumer.freshness is None else consumer.freshness.view(),
            lag_us=consumer.lag_us(now_us),
            sql=definition.sql,
        )


def _as_json(key: Sequence[tuple[str, Any]]) -> Key:
    return tuple((name, in_json(value)) for name, value in key)
