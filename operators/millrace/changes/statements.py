"""A text of SQL as changes: each statement is planned in the definitions after those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from millrace.changes.change import Change
from millrace.changes.state import ControlState
from millrace.changes.table import change_of
from millrace.engine.plan import QueryPlan
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import StatementView
from millrace.sql import (
    Catalog,
    CreateQuery,
    CreateSink,
    CreateStream,
    Describe,
    Explain,
    ExplainRunning,
    Insert,
    Inspection,
    Planned,
    Show,
    ShowCreate,
    Unchanged,
    parse,
    plan_all,
)
from millrace.sql.temporary import CreateTemporary, without_limit


class Terms(NamedTuple):
    """How statements are applied: with `idempotent` a CREATE that repeats an existing definition changes nothing;
    `temporary` is the name of the query that a SELECT becomes, where one is allowed; with `prune` the text is all that
    the server is to define."""

    idempotent: bool = False
    temporary: str | None = None
    prune: bool = False


STRICT: Final = Terms()


class Drafted(NamedTuple):
    """A statement as SQL planned it, and the change that it is; None if it changes no control state."""

    step: Planned
    change: Change | None


@dataclass(frozen=True, slots=True)
class Draft:
    """The statements of a text, and the definitions after them. `texts` are those of each statement's object before and
    after all of them, if the text is all that the server is to define."""

    statements: Sequence[Drafted]
    after: Catalog
    texts: Sequence[tuple[str | None, str | None]] | None = None

    @property
    def inspects(self) -> bool:
        """Whether the statements only read."""
        steps = [drafted.step for drafted in self.statements]
        return bool(steps) and all(isinstance(step, Explain | Inspection) for step in steps)

    @property
    def changes(self) -> list[Change]:
        return [drafted.change for drafted in self.statements if drafted.change is not None]


def draft(sql: str, state: ControlState, terms: Terms = STRICT) -> Draft:
    """Plan the statements of a text. It may take long, and is a function of its arguments."""
    statements, limit = parse(sql, state.limits), None
    if terms.temporary is not None:
        statements, limit = without_limit(statements)
    steps, after = plan_all(statements, state.definitions, name=terms.temporary or "q", idempotent=terms.idempotent)
    settle = state.defaults.settle
    drafted: list[Drafted] = []
    for statement, planned in zip(statements, steps, strict=True):
        step = state.defaults.settle_step(planned)
        if isinstance(step, QueryPlan):
            if terms.temporary is None:
                raise Refuse(
                    "a SELECT alone has no destination for its rows here: write CREATE QUERY name AS SELECT ..., "
                    "then read it with `millrace tail name`, or print its rows with `millrace sql 'SELECT ...'`",
                    code="sql",
                )
            step = CreateTemporary(step, limit=limit)
        drafted.append(Drafted(step, change_of(step, _text(step, statement.sql))))
    streams = {name: settle(stream) for name, stream in after.streams.items()}
    return Draft(drafted, replace(after, streams=streams))


def _text(step: Planned, sql: str) -> str:
    """The statement as a record has it: what a definition is made of, or the words of an ALTER."""
    match step:
        case CreateStream(stream):
            return stream.sql
        case CreateQuery(query, replaces=False):
            return query.sql
        case CreateSink(sink):
            return sink.sql
        case _:
            return sql


def outcome(step: Planned) -> StatementView:
    """The outcome of a statement that changes no control state."""
    match step:
        case Unchanged(statement, _, name, text, warnings):
            return StatementView(kind=statement, name=name, unchanged=True, reason=text, warnings=list(warnings))
        case Insert(stream, rows):
            return StatementView(kind="insert", name=stream, rows=len(rows))
        case Explain(_, text):
            return StatementView(kind="explain", name="", text=text)
        case Show(of):
            return StatementView(kind="show", name=of)
        case ShowCreate(_, name, sql):
            return StatementView(kind="show_create", name=name, text=f"{sql};")
        case Describe(_, name):
            return StatementView(kind="describe", name=name)
        case ExplainRunning(name):
            return StatementView(kind="explain", name=name)
        case _:
            raise AssertionError(f"a change has its own outcome, got {step!r:.80}")
