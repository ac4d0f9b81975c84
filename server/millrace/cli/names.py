"""Names of the server's objects: the component of a name, and candidates for a name of another kind.

Rule: a name of the expected kind costs one request. Only if the server does not know it, its other names are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from millrace.cli import show
from millrace.cli.link import ServerError, segment

if TYPE_CHECKING:
    from millrace.cli.link import Link
    from millrace.protocol.admin.operators import ComponentView, OperatorView
    from millrace.protocol.admin.queries import QueryView, SinkView
    from millrace.protocol.admin.streams import StreamView

Kind = Literal["stream", "query", "sink", "operator", "component"]
Method = Literal["GET", "POST", "PUT", "DELETE"]

PLURALS: Final[Mapping[str, str]] = {
    "stream": "streams",
    "query": "queries",
    "sink": "sinks",
    "operator": "operators",
    "component": "components",
}
# The most candidates in a list: a line or two on a terminal.
LISTED: Final = 8


def names_of(link: Link, plural: str) -> list[str]:
    """The names in a list of the API, without the views of the objects: completion must be fast."""
    return [item["name"] for item in link.get(plural)]


class Directory:
    """All objects of a server."""

    def __init__(
        self,
        streams: Sequence[StreamView] = (),
        queries: Sequence[QueryView] = (),
        sinks: Sequence[SinkView] = (),
        operators: Sequence[OperatorView] = (),
        components: Sequence[ComponentView] = (),
    ) -> None:
        self._streams = {stream.name: stream for stream in streams}
        self._queries = {query.name: query for query in queries}
        self._sinks = {sink.name: sink for sink in sinks}
        self._operators = {operator.name: operator for operator in operators}
        self._components = {component.name: component for component in components}
        self._items: Mapping[str, Mapping[str, object]] = {
            "stream": self._streams,
            "query": self._queries,
            "sink": self._sinks,
            "operator": self._operators,
            "component": self._components,
        }

    @classmethod
    def read(cls, link: Link) -> Directory:
        from millrace.protocol.admin.operators import ComponentView, OperatorView
        from millrace.protocol.admin.queries import QueryView, SinkView
        from millrace.protocol.admin.streams import StreamView

        return cls(
            link.views(StreamView, "streams"),
            link.views(QueryView, "queries"),
            link.views(SinkView, "sinks"),
            link.views(OperatorView, "operators"),
            link.views(ComponentView, "components"),
        )

    def has(self, kind: str, name: str) -> bool:
        return name in self._items[kind]

    def components_of(self, name: str) -> Mapping[str, str]:
        """The components that a name may mean, each with the object of that name in it."""
        components: dict[str, str] = {}
        for kind in ("stream", "query", "operator", "sink"):
            if (component := self._component(kind, name)) is not None:
                components.setdefault(component, f"{kind} {name}")
        return components

    def explain(self, kind: str, name: str) -> str | None:
        """Why a name is not of this kind, with the candidates; None if no object has this name."""
        if kind == "component":
            components = self.components_of(name)
            if len(components) < 2:
                return None
            places = ", ".join(f"{thing} is in component {component}" for component, thing in components.items())
            return f"{name} is ambiguous: {places}; name the component"
        for actual in PLURALS:
            if actual != kind and name in self._items[actual]:
                return f"{name} is {_article(actual)}{self._alternatives(actual, name, kind)}"
        return None

    def nearest(self, name: str) -> str | None:
        """The object with the most similar name, of whatever kind."""
        import difflib

        for kind, items in self._items.items():
            similar = difflib.get_close_matches(name, items, 1)
            if similar:
                return f"{kind} {similar[0]}"
        return None

    def _component(self, kind: str, name: str) -> str | None:
        """The component of an object; None if it does not exist, or has none."""
        if kind == "sink":
            return self._component("query", self._sinks[name].query) if name in self._sinks else None
        places: Mapping[str, Mapping[str, StreamView | QueryView | OperatorView]] = {
            "stream": self._streams,
            "query": self._queries,
            "operator": self._operators,
        }
        item = places[kind].get(name)
        return None if item is None else item.component

    def _alternatives(self, actual: str, name: str, kind: str) -> str:
        related = list(dict.fromkeys(self._related(actual, name, kind)))
        if len(related) == 1:
            return f"; did you mean {kind} {related[0]}?"
        if related:
            more = f" and {len(related) - LISTED} more" if len(related) > LISTED else ""
            return f"; did you mean one of the {PLURALS[kind]} {', '.join(related[:LISTED])}{more}?"
        return NOTHING_RELATED.get((actual, kind), f", and a {kind} is expected")

    def _related(self, actual: str, name: str, kind: str) -> Iterable[str]:
        """Names of this kind that belong to an object of another kind."""
        match actual, kind:
            case "stream", "query":
                return [query.name for query in self._queries.values() if name in query.reads_streams]
            case "stream", "operator":
                return [operator for operator in self._operators if operator == f"{name}.source"]
            case "stream" | "query", "sink":
                readers = [name, *self._related(actual, name, "query")] if actual == "stream" else [name]
                return [sink.name for sink in self._sinks.values() if sink.query in readers]
            case "query", "stream":
                return self._queries[name].reads_streams
            case "query", "operator":
                return self._queries[name].operators
            case "sink", "query":
                return [self._sinks[name].query]
            case "operator", "query":
                return self._operators[name].queries
            case "operator", "stream":
                return [stream for stream in self._streams if name == f"{stream}.source"]
            case "component", _:
                return [other for other in self._items[kind] if self._component(kind, other) == name]
        return []


NOTHING_RELATED: Final[Mapping[tuple[str, str], str]] = {
    ("stream", "query"): ", and no query reads it",
    ("query", "sink"): ", and no sink receives its rows",
    ("stream", "sink"): ", and no sink receives rows of a query over it",
}


def request(link: Link, method: Method, kind: Kind, name: str, rest: str = "", body: object = None) -> tuple[Any, str]:
    """One request about a named object: the answer, and the name of the object that was meant."""
    try:
        return link.request(method, f"{PLURALS[kind]}/{segment(name)}{rest}", body), name
    except ServerError as error:
        # A trial of an unknown component is an unknown trial.
        if error.code not in (f"unknown_{kind}", "unknown_trial"):
            raise
        refusal = error
    directory = Directory.read(link)
    if directory.has(kind, name):
        raise refusal
    components = directory.components_of(name) if kind == "component" else {}
    if len(components) == 1:
        ((component, thing),) = components.items()
        show.tell(f"{thing} is in component {component}")
        return link.request(method, f"{PLURALS[kind]}/{segment(component)}{rest}", body), component
    raise explained(directory, kind, name, refusal.text)


def explain_unknown(link: Link, kind: Kind, name: str, text: str) -> ServerError:
    """The server's refusal of a name, with the names that may have been meant."""
    return explained(Directory.read(link), kind, name, text)


def explained(directory: Directory, kind: Kind, name: str, text: str) -> ServerError:
    text = directory.explain(kind, name) or text
    if "did you mean" not in text and name in text and (near := directory.nearest(name)) and ";" in text:
        text = f"{text.partition(';')[0]}; did you mean {near}?"
    return ServerError(text, code=f"unknown_{kind}")


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "operator" else f"a {kind}"
