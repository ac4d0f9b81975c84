"""Finds the objects that paths name, with their tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import Response

from millrace.changes.names import nearest
from millrace.http.etags import Changed, etag, matches
from millrace.protocol import Refuse
from millrace.run.catalog import Check

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon


class ResourceLookup:
    """Finds the object that a path names, with its tag."""

    def __init__(self, daemon: Daemon) -> None:
        self._kinds: Mapping[str, Callable[[], list[dict[str, Any]]]] = {
            "stream": daemon.streams,
            "query": daemon.queries,
            "sink": daemon.catalog.sinks,
            "component": daemon.components,
            "operator": daemon.operators,
        }
        # One object is found without the views of all, of which there may be hundreds.
        self._ones: Mapping[str, Callable[[str], dict[str, Any] | None]] = {
            "query": daemon.query,
            "component": daemon.component,
            "operator": daemon.operator,
        }
        self._catalog = daemon.catalog
        self._runner = daemon.runner

    def at(self, kind: str, name: str) -> dict[str, Any]:
        """The thing as it is now, or a refusal with the nearest name."""
        found = self._ones[kind](name) if kind in self._ones else None
        if found is None and kind == "operator":
            self._catalog.refuse_former(name)
        return find(self._kinds[kind](), name, kind) if found is None else found

    async def tagged(self, response: Response, kind: str, name: str) -> dict[str, Any]:
        """The thing, and its tag in the answer."""
        found, tag = await self._now(kind, name)
        response.headers["etag"] = tag
        return found

    async def tag_catalog(self, response: Response) -> None:
        """The catalog's tag in the answer, without the catalog."""
        response.headers["etag"] = await self._runner.between_steps(
            lambda: etag("catalog", self._catalog.keeper.decided())
        )

    async def _now(self, kind: str, name: str) -> tuple[dict[str, Any], str]:
        """The thing and its tag. The catalog may be large, so a thread reads it."""
        if kind == "catalog":
            return await self._runner.between_steps(lambda: _with_tag(kind, self._catalog.keeper.export()))
        await self._runner.at_rest()
        return _with_tag(kind, self.at(kind, name))

    def unless_changed(self, kind: str, name: str, if_match: str | None) -> Check:
        """The check that refuses a change of a missing object, or of one whose tag is not in the header `If-Match` when
        the change has its turn."""

        async def check() -> None:
            if if_match is None:
                if kind in self._ones:  # of others the catalog knows better
                    await self._runner.at_rest()
                    self.at(kind, name)
                return
            now, tag = await self._now(kind, name)
            if not matches(if_match, tag):
                raise Changed(kind, name, if_match, tag, now)

        return check


def _with_tag(kind: str, found: dict[str, Any]) -> tuple[dict[str, Any], str]:
    return found, etag(kind, found)


def find(items: Sequence[dict[str, Any]], name: str, kind: str) -> dict[str, Any]:
    """The item of this name, or a refusal with the nearest one."""
    for item in items:
        if item["name"] == name:
            return item
    known = [item["name"] for item in items]
    raise Refuse(f"{kind} {name} does not exist{nearest(name, known)}", code=f"unknown_{kind}")
