"""What a change is: fields, a plan, and a sentence.

The fields are the body of its HTTP route and its record at once. `plan` is a function of
the control state, and either raises Refuse or lists commands and effects; it performs none of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from millrace.changes.effects import Effect
from millrace.changes.state import ControlState
from millrace.engine.engine import Engine
from millrace.engine.events import CommandBody
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
INTERNAL: Final = frozenset({"id", "texts"})


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
    """A change in metrics and in the log."""

    kind: str
    name: str | None = None


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
    previews  whether its reply has `dry_run`
    answers   the view of the reply of its routes
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    action: ClassVar[str]
    label: ClassVar[str]
    about: ClassVar[Kind | None]
    target: ClassVar[str] = "name"
    previews: ClassVar[bool] = False
    routes: ClassVar[tuple[Route, ...]] = ()
    answers: ClassVar[type | None] = None

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
        return ChangeLabel(self.label, getattr(self, self.target, None))

    def record(self) -> dict[str, Any]:
        """The change as data, from which `table.read` makes it again."""
        return {"change": self.action, **self.model_dump(mode="json", exclude_defaults=True)}
