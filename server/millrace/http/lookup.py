"""Finds the objects that paths name, with their tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import Response

from millrace.changes.names import nearest
from millrace.engine import views
from millrace.engine.scheduler.component import Component
from millrace.http.answers import answer
from millrace.http.etags import Changed, etag, matches
from millrace.protocol import Refuse
from millrace.protocol.admin.data import to_data
from millrace.run.catalog import Check

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon


class Item(Protocol):
    """The view of an object."""

    @property
    def name(self) -> str: ...


class ResourceLookup:
    """Finds the object that a path names, with its tag."""

    def __init__(self, daemon: Daemon) -> None:
        self._kinds: Mapping[str, Callable[[], Sequence[Item]]] = {
            "stream": daemon.streams,
            "query": daemon.queries,
            "sink": daemon.catalog.sinks,
            "component": daemon.components,
            "operator": daemon.operators,
        }
        # One object is found without the views of all, of which there may be hundreds.
        self._ones: Mapping[str, Callable[[str], Item | None]] = {
            "query": daemon.query,
            "component": daemon.component,
            "operator": daemon.operator,
        }
        self._engine = daemon.engine
        self._catalog = daemon.catalog
        self._runner = daemon.runner

    def at(self, kind: str, name: str) -> Item:
        """The thing as it is now, or a refusal with the nearest name."""
        found = self._ones[kind](name) if kind in self._ones else None
        if found is None and kind == "operator":
            self._catalog.refuse_former(name)
        return find(self._kinds[kind](), name, kind) if found is None else found

    async def shown(self, kind: str, name: str) -> Response:
        """The thing as an answer, with its tag."""
        found, tag = await self.now(kind, name)
        return answer(found, etag=tag)

    async def catalog_tag(self) -> str:
        """The catalog's tag, without the catalog."""
        return await self._runner.between_steps(lambda: etag("catalog", self._catalog.keeper.decided()))

    async def tag(self, kind: str, name: str) -> str:
        """The tag of a thing, without what it does not cover: the inputs of a component's operators."""
        await self._runner.at_rest()
        component = self._component(name) if kind == "component" else None
        found = self.at(kind, name) if component is None else views.component(self._engine, component)
        return etag(kind, to_data(found))

    def _component(self, name: str) -> Component | None:
        return next((one for one in self._engine.graph.components if one.name == name), None)

    def _exists(self, kind: str, name: str) -> bool:
        """Whether there is such a thing, if that can be said without its view."""
        match kind:
            case "query":
                return name in self._engine.queries_by_name
            case "component":
                return self._component(name) is not None
            case "operator":
                return self._engine.knows(name)
            case _:
                return False

    async def now(self, kind: str, name: str) -> tuple[dict[str, Any], str]:
        """The thing and its tag. The catalog may be large, so a thread reads it."""
        if kind == "catalog":
            return await self._runner.between_steps(lambda: _with_tag(kind, to_data(self._catalog.keeper.export())))
        await self._runner.at_rest()
        return _with_tag(kind, to_data(self.at(kind, name)))

    def unless_changed(self, kind: str, name: str, if_match: str | None) -> Check:
        """The check that refuses a change of a missing object, or of one whose tag is not in the header `If-Match` when
        the change has its turn."""

        async def check() -> None:
            if if_match is None:
                if kind in self._ones:  # of others the catalog knows better
                    await self._runner.at_rest()
                    if not self._exists(kind, name):
                        self.at(kind, name)
                return
            now, tag = await self.now(kind, name)
            if not matches(if_match, tag):
                raise Changed(kind, name, if_match, tag, now)

        return check


def _with_tag(kind: str, found: dict[str, Any]) -> tuple[dict[str, Any], str]:
    return found, etag(kind, found)


def find(items: Sequence[Item], name: str, kind: str) -> Item:
    """The item of this name, or a refusal with the nearest one."""
    for item in items:
        if item.name == name:
            return item
    known = [item.name for item in items]
    raise Refuse(f"{kind} {name} does not exist{nearest(name, known)}", code=f"unknown_{kind}")
