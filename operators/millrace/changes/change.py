"""What a change is: fields, a plan, and a sentence.

The fields are the body of its HTTP route and its record at once. `plan` is a function of
the control state, and either raises Refuse or lists commands and effects; it performs none of them.

Rule: a record refers to objects by id (`ids`), so it is about the same objects after they got other names. It has the
names from then, too: `resolved` replaces those that differ now.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from millrace.changes.effects import Effect
from millrace.changes.state import ControlState
from millrace.engine.engine import Engine
from millrace.engine.events import CommandBody
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import StatementView
from millrace.sql import Catalog as Definitions
from millrace.sql import Planned as Step

Kind = Literal["stream", "query", "sink", "component", "operator"]

# By the first part of a path.
KINDS: Final[Mapping[str, Kind]] = {
    "streams": "stream",
    "queries": "query",
    "sinks": "sink",
    "components": "component",
    "operators": "operator",
}

# Fields that only records have.
INTERNAL: Final = frozenset({"id", "ids", "texts"})


class Verb(NamedTuple):
    """The command that sends a route: its section in the help, its words, and an example.

    done       the sentence that it prints. `{name}` is the object, the other fields are those of the request and of
               the answer; `{skipped:tuple}` counts; `[a|b]` is a if its fields have values, else b
    arguments  the fields that are arguments, after the object's name; the others are options
    metavars   words for values in the help
    one_of     options of which exactly one is given
    needs      by option, the one without which it means nothing
    """

    section: str
    path: str
    example: str
    done: str
    arguments: tuple[str, ...] = ()
    metavars: Mapping[str, str] = {}
    one_of: tuple[str, ...] = ()
    needs: Mapping[str, str] = {}


class Route(NamedTuple):
    """An HTTP route of a change. The path has the name of the object, which is the change's field `target`; `fixed` has
    the fields that this route decides. `after` names the field with the object's name after the change."""

    method: Literal["POST", "PUT", "DELETE"]
    path: str
    summary: str
    verb: Verb
    statuses: tuple[int, ...] = (400, 404, 409, 412)
    fixed: Mapping[str, Any] = {}
    after: str | None = None


class ChangeLabel(NamedTuple):
    """A change in metrics and in the log; `statement` is its text, or its record as JSON."""

    kind: str
    name: str | None = None
    statement: str | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of one change.

    definitions  the control state's definitions after it
    outcome      of the statement, if it is one
    reply        of the route; None: the engine's answer to the first command
    inverse      the changes that undo it, in their order; None if nothing does, and `lost` says why. If there is an
                 inverse, `lost` says what it does not bring back
    lasting      whether the ledger has it: temporary queries come and go without
    """

    change: Change
    definitions: Definitions
    outcome: StatementView | None = None
    commands: Sequence[CommandBody] = ()
    effects: Sequence[Effect] = ()
    inverse: Sequence[Change] | None = ()
    lost: str | None = None
    lasting: bool = True
    reply: object = None
    sentence: str = ""


class Change(BaseModel):
    """A change of a server.

    action    its name in records and in the API: that of its class
    label     its name in metrics and in the log: the action, unless the class has a shorter one
    about     the kind of the object that it changes, as its routes say; `target` is the field with the object's name
    refers    the fields that name objects, or operators of objects
    previews  whether its reply has `dry_run`
    answers   the view of the reply of its routes
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    action: ClassVar[str]
    label: ClassVar[str]
    about: ClassVar[Kind | None]
    target: ClassVar[str] = "name"
    refers: ClassVar[tuple[str, ...]] = ("name",)
    previews: ClassVar[bool] = False
    routes: ClassVar[tuple[Route, ...]] = ()
    answers: ClassVar[type | None] = None

    ids: dict[str, int] = Field(default_factory=dict, description="Of a record: the ids of the objects that it names.")

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls.action = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
        cls.label = vars(cls).get("label", cls.action)
        cls.about = KINDS[cls.routes[0].path.partition("/")[0]] if cls.routes else None

    @classmethod
    def body(cls, route: Route) -> dict[str, FieldInfo]:
        """The fields that a request of this route has beside the name in its path."""
        without = {cls.target, *route.fixed, *INTERNAL}
        return {name: field for name, field in cls.model_fields.items() if name not in without}

    def step(self, state: ControlState) -> Step | None:
        """The part of the plan that needs SQL; it may take long, so it happens outside the event loop."""
        return None

    def facts(self, engine: Engine) -> Any:
        """What the plan needs to know of the engine, as it is before the change; None if there is nothing to know."""
        return None

    def holds(self, engine: Engine) -> bool:
        """Whether it would be refused because it has been made already: an undo leaves it out then."""
        return False

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        """The plan, from its two parts. Raises Refuse."""
        raise NotImplementedError

    def plan(self, state: ControlState, engine: Engine) -> Planned:
        """The plan in a control state, next to the operators of an engine or its shadow."""
        return self.planned(state, self.step(state), self.facts(engine))

    @property
    def labelled(self) -> ChangeLabel:
        return ChangeLabel(self.label, getattr(self, self.target, None), json.dumps(self.record(), ensure_ascii=False))

    # -- references --------------------------------------------------------------------------------

    def bound(self, *known: Definitions) -> Self:
        """The change with the ids of the objects that it names, which are in one of these definitions."""
        ids: dict[str, int] = {}
        for name in self.mentions():
            for kind in (kind for definitions in known for kind in self._named_in(definitions)):
                if name in kind:
                    ids.setdefault(name, kind[name].id)
        return self.model_copy(update={"ids": ids})

    def resolved(self, definitions: Definitions) -> Self:
        """The change under the present names of its objects. Raises Refuse if one of them is gone."""
        if not self.ids:
            return self
        present = {one.id: name for kind in self._named_in(definitions) for name, one in kind.items()}
        for name, number in self.ids.items():
            if number not in present and self.needs(name):
                raise Refuse(
                    f"{name} does not exist any more: undo the change that has dropped it first, which "
                    "`millrace changes` lists",
                    code="not_undoable",
                )
        names = {name: present[number] for name, number in self.ids.items() if present.get(number, name) != name}
        change = self.renamed(names) if names else self
        return change.model_copy(update={"ids": {}})

    def _named_in(self, definitions: Definitions) -> Sequence[Mapping[str, Any]]:
        """The objects that the fields may name: streams and queries share their names, but a sink may have one, too."""
        return (definitions.sinks,) if self.about == "sink" else (definitions.streams, definitions.queries)

    def mentions(self) -> Iterable[str]:
        """The names of objects in the fields; an operator's name starts with that of its object."""
        for field in self.refers:
            value = getattr(self, field)
            for name in [value] if isinstance(value, str) else value or ():
                yield name.partition(".")[0]

    def needs(self, name: str) -> bool:
        """Whether it cannot be made if the object of this name is gone."""
        return True

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The same change, where objects have other names."""

        def other(text: str) -> str:
            name, dot, rest = text.partition(".")
            return f"{names.get(name, name)}{dot}{rest}"

        update: dict[str, Any] = {}
        for field in self.refers:
            value = getattr(self, field)
            update[field] = other(value) if isinstance(value, str) else value and [other(name) for name in value]
        return self.model_copy(update=update)

    def record(self) -> dict[str, Any]:
        """The change as data, from which `table.read` makes it again."""
        return {"change": self.action, **self.model_dump(mode="json", exclude_defaults=True)}
