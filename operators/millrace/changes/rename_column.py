"""ALTER STREAM ... RENAME COLUMN."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from millrace.changes.change import Change, Planned, Route, Verb
from millrace.changes.effects import AlterFeeds
from millrace.changes.fields import StreamName
from millrace.changes.state import ControlState
from millrace.protocol import Refuse
from millrace.protocol.admin.changes import ColumnReply, StatementView
from millrace.sql import AlterStatement, rename_column
from millrace.sql import Planned as Step
from millrace.sql.rewriting import objects_of, renamed_query, with_names


class RenameColumn(Change):
    """Rename a column of a stream. Queries keep the names of their columns; open feeds end and can open again."""

    answers: ClassVar[type] = ColumnReply
    routes: ClassVar[tuple[Route, ...]] = (
        Route(
            "POST",
            "streams/{name}/rename-column",
            "Rename a column of a stream; queries keep the names of their columns",
            Verb(
                "Data",
                "stream rename-column",
                "millrace stream rename-column door k visitors",
                "column {previous} of stream {name} is called {column} now",
                arguments=("column", "to"),
                metavars={"to": "NEW_NAME"},
            ),
        ),
    )

    name: StreamName
    column: Annotated[str, Field(description="The column.", max_length=1_000)]
    to: Annotated[str, Field(description="Its new name, which no column of the stream may have.", max_length=1_000)]
    texts: dict[str, str] = Field(default_factory=dict, description="Of an undo: the texts of queries from before.")

    def mentions(self) -> Iterable[str]:
        """The stream, the queries whose texts it has, and all that these read."""
        return [self.name, *self.texts, *(name for sql in self.texts.values() for name in objects_of(sql))]

    def needs(self, name: str) -> bool:
        return name == self.name

    def renamed(self, names: Mapping[str, str]) -> Self:
        texts = {}
        for name, sql in self.texts.items():
            with suppress(Refuse):  # without it, the query gets a new text
                to = names.get(name, name)
                texts[to] = renamed_query(with_names(sql, names), to)
        return self.model_copy(update={"texts": texts})

    def step(self, state: ControlState) -> Step:
        state.must_know("stream", self.name)
        return rename_column(self.name, (self.column, self.to), state.definitions, texts=self.texts)

    def planned(self, state: ControlState, step: Step | None, facts: Any) -> Planned:
        assert isinstance(step, AlterStatement)
        before = {name: state.definitions.queries[name].sql for name in step.queries}
        rewritten = [name for name, plan in step.queries.items() if plan.sql != before[name]]
        after = state.definitions.with_(step)
        return Planned(
            self,
            after,
            StatementView(kind="alter_stream", name=self.name, renamed={self.column: self.to}, rewritten=rewritten),
            (step.command,),
            (AlterFeeds(after.streams[self.name]),),
            (
                RenameColumn(
                    name=self.name,
                    column=self.to,
                    to=self.column,
                    texts={name: before[name] for name in rewritten},
                ),
            ),
            reply=ColumnReply(stream=self.name, column=self.to, previous=self.column, rewritten=rewritten),
            sentence=f"renamed column {self.column} of stream {self.name} to {self.to}",
        )
