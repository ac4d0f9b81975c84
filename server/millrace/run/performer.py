"""Performs the effects of changes: the one place where a change reaches sockets, archives, metrics and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from millrace.changes.effects import (
    AddOutlet,
    AlterFeeds,
    CloseSink,
    Effect,
    FollowStream,
    ForgetStream,
    OpenSink,
    RemoveOutlet,
    RenameOutlet,
    ReplaceOutlet,
    RetargetSink,
)
from millrace.engine.engine import Engine
from millrace.history.archive import Archive
from millrace.net.feeds import Feeds
from millrace.net.sink import Count
from millrace.observe.metrics import Metrics
from millrace.run.runner import Runner
from millrace.run.sinks import Sinks
from millrace.run.temporary import Temporaries
from millrace.store.openings import Opened
from millrace.values.eventtime import MIN_TIME

NOTHING: Final[Mapping[str, Any]] = {}


class Performer:
    """Performs effects for one server.

    restarted  by history, the restored queries that lost their state: when they started again, and the consequence
    """

    def __init__(
        self,
        engine: Engine,
        runner: Runner,
        feeds: Feeds,
        metrics: Metrics,
        archive: Archive,
        sinks: Sinks,
        temporaries: Temporaries,
    ) -> None:
        self.restarted: dict[str, tuple[int, str]] = {}
        self.on_query_dropped: Callable[[str], None] = lambda _: None
        self.on_query_renamed: Callable[[str, str], None] = lambda name, to: None
        self._engine = engine
        self._runner = runner
        self._feeds = feeds
        self._metrics = metrics
        self._archive = archive
        self._sinks = sinks
        self._temporaries = temporaries

    def at_once(
        self,
        effects: Iterable[Effect],
        files: Mapping[str, Opened] = NOTHING,
        counts: Mapping[str, Count] = NOTHING,
        positions: Mapping[str, Mapping[str, Any]] = NOTHING,
    ) -> None:
        """The effects that belong to the engine's step, before it emits a row.

        `files` are those of sinks. Queries and streams of late tuples that do not start a new count have theirs in
        `counts`, and sinks that were there before the server have theirs in `positions`.
        """
        for effect in effects:
            match effect:
                case FollowStream(stream):
                    self._feeds.add_stream(stream, counts.get(stream.late.name))
                    self._archive.follow(stream, MIN_TIME)
                case AlterFeeds(stream):
                    self._feeds.alter_stream(stream)
                    self._archive.follow(stream, self._engine.source(stream.name).newest)
                case ForgetStream(name):
                    self._feeds.drop_stream(name)
                    self._metrics.forget_stream(name)
                    self._archive.drop(name)
                case AddOutlet(query, temporary):
                    self._runner.add_outlet(query, temporary=temporary, count=counts.get(query.name))
                    if temporary:
                        self._temporaries.add(query.name)
                case ReplaceOutlet(query):
                    self._runner.replace_outlet(query)
                case RenameOutlet(name, to):
                    self._runner.rename_outlet(name, to)
                    self.on_query_renamed(name, to)
                case RemoveOutlet(name):
                    self._temporaries.forget(name)
                    self._runner.remove_outlet(name)
                    self.on_query_dropped(name)
                case OpenSink(sink, _):
                    if sink.name in files:  # else it is dropped again by a later change of the same text
                        self._sinks.add(sink, files[sink.name], positions.get(sink.name))
                case _:
                    pass

    async def after(self, effects: Iterable[Effect]) -> None:
        """The effects on sinks that exist."""
        for effect in effects:
            match effect:
                case RetargetSink(sink):
                    self._sinks.retarget(sink)
                case CloseSink(name):
                    await self._sinks.end(name)
                case _:
                    pass
