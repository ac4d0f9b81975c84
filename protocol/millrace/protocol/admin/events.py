"""The lines of `/api/v1/events`: the whole state, then what differs of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.protocol.admin.data import from_data
from millrace.protocol.admin.operators import ComponentView, OperatorView
from millrace.protocol.admin.queries import QueryView, SinkView
from millrace.protocol.admin.server import ServerView
from millrace.protocol.admin.streams import StreamView

SECTIONS: Final = ("streams", "queries", "sinks", "components", "operators")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView:
    """Whether the server serves feeds and queries, and what it cannot write."""

    ready: bool
    problems: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """Everything that a client may see, as the API's lists show it; `changes` is the number of the newest change."""

    at_us: int
    server: ServerView
    streams: Sequence[StreamView]
    queries: Sequence[QueryView]
    sinks: Sequence[SinkView]
    components: Sequence[ComponentView]
    operators: Sequence[OperatorView]
    health: HealthView
    changes: int


class Mirror:
    """The state that lines describe, as data."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self._by_name: dict[str, dict[str, Any]] = {}

    def take(self, line: Mapping[str, Any]) -> bool:
        """Apply a line; whether the state may be another one now."""
        match line["event"]:
            case "state":
                self.data = {key: value for key, value in line.items() if key != "event"}
                self._by_name = {section: {one["name"]: one for one in line[section]} for section in SECTIONS}
            case "numbers":
                self.data["at_us"] = line["at_us"]
                self.data["server"] = {**self.data["server"], **line["server"]}
                self.data["health"] = line.get("health", self.data["health"])
                for section, objects in self._by_name.items():
                    for changed in line.get(section, ()):
                        objects[changed["name"]] = {**objects.get(changed["name"], {}), **changed}
                    for name in line.get("gone", {}).get(section, ()):
                        objects.pop(name, None)
            case "changed":
                self.data["changes"] = line["number"]
                return False
            case _:
                return False
        return True

    def view(self) -> StateView:
        """The state as views."""
        lists = {section: list(objects.values()) for section, objects in self._by_name.items()}
        return from_data(StateView, {**self.data, **lists})
