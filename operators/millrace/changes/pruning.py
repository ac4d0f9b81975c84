"""The statements that make a server equal to a file of definitions.

The file is planned in an empty catalog, and the result is compared with the server's definitions. The order of the
statements makes each plannable after those before it: sinks go first, then queries that nothing needs; streams come
next, then queries from their inputs to their readers; after them go the objects that replaced queries have read, and
sinks come last. A query that cannot be replaced under its readers is dropped with them, and all are created again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from millrace.changes.state import ControlState
from millrace.changes.statements import Draft, Drafted, draft
from millrace.changes.table import change_of
from millrace.changes.texts import replacing
from millrace.engine.plan import QueryPlan
from millrace.protocol import Refuse
from millrace.sql import (
    AlterStatement,
    Catalog,
    CreateQuery,
    CreateSink,
    CreateStream,
    DropStatement,
    RenameStatement,
    SqlError,
    Unchanged,
    drop,
    parse,
    plan,
)
from millrace.sql import Planned as Step
from millrace.sql.existing import same_definition, same_sink
from millrace.sql.limits import KNOWN
from millrace.sql.planner import reader_properties

Kind = Literal["stream", "query", "sink"]

_DEFINES: Final = (CreateStream, CreateQuery, CreateSink, AlterStatement, DropStatement, RenameStatement, Unchanged)


def prune(sql: str, state: ControlState) -> Draft:
    """The statements that lead from the server's definitions to those of a file."""
    found = draft(sql, ControlState(strategy=state.strategy, defaults=state.defaults, limits=state.limits))
    for number, drafted in enumerate(found.statements, 1):
        if not isinstance(drafted.step, _DEFINES):
            raise Refuse(f"statement {number} defines nothing: a file to prune by has definitions only", code="sql")
    if not found.statements and (state.definitions.streams or state.definitions.queries):
        raise Refuse("expected definitions, got no statement: an empty file would drop everything", code="sql")
    return _Pruning(state, found.after).run()


class _Pruning:
    """One comparison.

    known     the server's definitions after the statements so far
    apart     queries that stay as they are: temporary ones, and those that still lack their past
    again     queries to drop and create again
    """

    def __init__(self, state: ControlState, target: Catalog) -> None:
        self._state = state
        self._before = self._known = state.definitions
        self._target = target
        self._apart = state.temporary | state.catching_up
        self._statements: list[Drafted] = []
        self._texts: list[tuple[str | None, str | None]] = []
        self._again = self._queries_again()
        self._sinks_again = {name for name in self._before.sinks if self._is_again(name)}

    def run(self) -> Draft:
        before, target = self._before, self._target
        for name, sink in before.sinks.items():
            if sink.query not in self._apart and (name not in target.sinks or name in self._sinks_again):
                self._drop("sink", name)
        self._drop_unread(self._again)
        for name, stream in target.streams.items():
            self._create("stream", name, stream.sql)
        for name in _inputs_first(target.queries):
            query, existing = target.queries[name], self._known.queries.get(name)
            if existing is not None and same_definition(existing, query):
                self._unchanged("query", name)
            elif name not in self._apart:
                self._create("query", name, query.sql)
        self._drop_rest()
        for name, sink in target.sinks.items():
            if sink.query in self._apart:
                continue
            if name in self._known.sinks:
                self._unchanged("sink", name)
            else:
                self._create("sink", name, sink.sql)
        return Draft(self._statements, self._known, self._texts)

    # -- what a replacement cannot do --------------------------------------------------------------

    def _queries_again(self) -> set[str]:
        """Queries whose rows get another form while queries read them that are replaced or dropped later, and all
        readers of those; and the readers of a name that means another kind of object in the file."""
        before, target = self._before, self._target
        again: set[str] = set()
        changed = {*(before.streams.keys() & target.queries), *(before.queries.keys() & target.streams)}
        ordered = [name for name in _inputs_first(before.queries) if name not in self._apart]
        read: set[str] = set()  # by queries that are there while queries are replaced
        for name in reversed(ordered):
            if name in target.queries or name in read:
                read.update(before.queries[name].reads_queries)
        for name in ordered:
            query, wanted = before.queries[name], target.queries.get(name)
            if changed.intersection((*query.reads_queries, *query.reads_streams)) or (
                name in read
                and wanted is not None
                and reader_properties(query, before) != reader_properties(wanted, target)
            ):
                again.add(name)
                changed.add(name)
        return again

    def _is_again(self, name: str) -> bool:
        """Whether a sink differs, or its files cannot continue with the rows of its query."""
        sink, wanted = self._before.sinks[name], self._target.sinks.get(name)
        if wanted is None or sink.query in self._apart:
            return False
        if not same_sink(sink, wanted) or sink.query in self._again:
            return True
        old, new = self._before.queries[sink.query], self._target.queries[sink.query]
        return (old.schema, old.update_key) != (new.schema, new.update_key)

    # -- statements --------------------------------------------------------------------------------

    def _drop_unread(self, again: Collection[str] = ()) -> None:
        """Drop what the file lacks and nothing reads any more, and the queries to create again."""
        for name in reversed(_inputs_first(self._before.queries)):
            if name in self._apart or name not in self._known.queries:
                continue
            if name in again or (name not in self._target.queries and not self._is_read(name)):
                self._drop("query", name)
        for name in self._before.streams:
            if name in self._known.streams and name not in self._target.streams and not self._is_read(name):
                self._drop("stream", name)

    def _drop_rest(self) -> None:
        """Drop the rest of what the file lacks. Refuses if a query that stays reads it."""
        self._drop_unread()
        for name in tuple(self._known.queries):
            if name not in self._target.queries and name not in self._apart:
                self._drop("query", name)
        for name in tuple(self._known.streams):
            if name not in self._target.streams:
                self._drop("stream", name)

    def _is_read(self, name: str) -> bool:
        queries = self._known.queries.values()
        return any(name in query.reads_queries or name in query.reads_streams for query in queries)

    def _drop(self, kind: Kind, name: str) -> None:
        self._add(kind, name, drop(kind, name, self._known), "")

    def _create(self, kind: Kind, name: str, sql: str) -> None:
        """Create an object, or replace it if it differs."""
        text = replacing(sql) if name in _objects(self._known, kind) else sql
        try:
            step = self._state.defaults.settle_step(plan(parse(text, KNOWN)[0], self._known))
        except SqlError as error:
            raise Refuse(f"{kind} {name} cannot become as the file defines it: {error.message}", code="sql") from None
        if isinstance(step, CreateQuery):
            step = replace(step, plan=replace(step.plan, sql=sql))  # the file's words, without OR REPLACE
        self._add(kind, name, step, text)

    def _unchanged(self, kind: Kind, name: str) -> None:
        self._add(kind, name, Unchanged(f"create_{kind}", kind, name, f"{kind} {name} exists with this definition"), "")

    def _add(self, kind: Kind, name: str, step: Step, text: str) -> None:
        self._statements.append(Drafted(step, change_of(step, text)))
        self._known = self._known.with_(step)
        before, after = (_objects(catalog, kind).get(name) for catalog in (self._before, self._target))
        self._texts.append((before and before.sql, after and after.sql))


def _objects(catalog: Catalog, kind: Kind) -> Mapping[str, Any]:
    return {"stream": catalog.streams, "query": catalog.queries, "sink": catalog.sinks}[kind]


def _inputs_first(queries: Mapping[str, QueryPlan]) -> list[str]:
    """The names of queries, each after the queries that it reads."""
    ordered: dict[str, None] = {}
    for name in queries:
        path = [name]
        while path:
            missing = [read for read in queries[path[-1]].reads_queries if read in queries and read not in ordered]
            if missing:
                path.append(missing[0])
            else:
                ordered[path.pop()] = None
    return list(ordered)
