"""Changes that are a statement of SQL: what CREATE and ALTER define is written in SQL, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Self

from pydantic import Field, PrivateAttr

from millrace.changes.change import Change, ChangeLabel
from millrace.changes.state import ControlState
from millrace.protocol import Refuse
from millrace.sql import Planned as Step
from millrace.sql import parse, plan
from millrace.sql import syntax as s
from millrace.sql.limits import KNOWN
from millrace.sql.planned import identified
from millrace.sql.rewriting import objects_of, with_names


class TextChange(Change):
    """A statement. Its place in a longer text decides about errors, so a text is planned as a whole (statements.py)."""

    target: ClassVar[str] = "sql"
    refers: ClassVar[tuple[str, ...]] = ()
    steps: ClassVar[tuple[type, ...]]

    sql: Annotated[str, Field(description="The statement.", max_length=1_000_000)]
    id: Annotated[int, Field(ge=0, description="Of an undo: the id that the object had; 0: the next one.")] = 0

    _subject: str | None = PrivateAttr(None)

    def step(self, state: ControlState) -> Step:
        statements = parse(self.sql, state.limits)
        if len(statements) != 1:
            raise Refuse(f"expected one statement, got {len(statements)}", code="sql")
        step = state.defaults.settle_step(plan(statements[0], state.definitions))
        if type(step) not in self.steps:
            raise Refuse(f"this statement is not a change of the kind {self.action}: {self.sql:.80}", code="sql")
        return step if self.id == 0 else identified(step, self.id)

    def mentions(self) -> Iterable[str]:
        return objects_of(self.sql)

    def renamed(self, names: Mapping[str, str]) -> Self:
        return type(self)(sql=with_names(self.sql, names), id=self.id)

    @property
    def labelled(self) -> ChangeLabel:
        if self._subject is None:
            name = getattr(parse(self.sql, KNOWN)[0].body, "name", None)
            self._subject = name.text if isinstance(name, s.Name) else None
        return ChangeLabel(self.label, self._subject, self.sql)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(self.sql)

    def of(self, name: str) -> Self:
        """The change, about the object of this name: its planner knows it."""
        self._subject = name
        return self


def creating(sql: str) -> str:
    """A CREATE STREAM or CREATE QUERY that is refused if its object exists."""
    return _create(sql, "CREATE")


def replacing(sql: str) -> str:
    """A CREATE STREAM or CREATE QUERY that replaces what exists."""
    return _create(sql, "CREATE OR REPLACE")


def _create(sql: str, words: str) -> str:
    body = parse(sql, KNOWN)[0].body
    assert isinstance(body, s.CreateStreamStatement | s.CreateQueryStatement)
    kind = "STREAM" if isinstance(body, s.CreateStreamStatement) else "QUERY"
    return f"{words} {kind} {sql[body.name.span.start :]}"
