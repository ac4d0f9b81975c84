"""What a replay changes: a strategy, options of streams and queries, and queries, as commands for an engine.

Rule: a variation is planned as statements to the server would be, on the engine as it was, and applied as one change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Change, Command, CommandBody, Event, ReplaceQuery, SetStrategy
from millrace.engine.plan import POLICIES, QueryPlan, StreamDefinition, is_side_stream
from millrace.engine.scheduler.table import Strategy
from millrace.protocol import Refuse
from millrace.sql import AlterStatement, Catalog, CreateQuery, SqlError, parse, plan
from millrace.sql import syntax as s
from millrace.sql.errors import did_you_mean
from millrace.sql.limits import KNOWN
from millrace.sql.options import QUERY_OPTIONS, STREAM_OPTIONS, OptionKind
from millrace.sql.parser import written
from millrace.sql.planner import bare_name

_STREAM: dict[str, OptionKind] = {row.name: row for row in STREAM_OPTIONS}
_QUERY: dict[str, OptionKind] = {row.name: row for row in QUERY_OPTIONS}


@dataclass(frozen=True, slots=True)
class Setting:
    """An option with another value: of one stream or query, or of all that it applies to."""

    name: str | None
    option: str
    value: str

    @property
    def literal(self) -> str | int | float:
        """The value as SQL has it."""
        if len(self.value) > 1 and self.value[0] == self.value[-1] == "'":
            return self.value[1:-1].replace("''", "'")
        for kind in (int, float):
            with suppress(ValueError):
                return kind(self.value)
        return self.value

    @property
    def text(self) -> str:
        return f"{self.option} = {self.value}" if self.name is None else f"{self.name}.{self.option} = {self.value}"


def parse_setting(text: str) -> Setting:
    """`OPTION=VALUE` or `NAME.OPTION=VALUE`."""
    left, equals, value = text.partition("=")
    name, dot, option = left.strip().rpartition(".")
    if not (equals and option and value.strip()) or (dot and not name):
        raise Refuse(f"expected OPTION=VALUE or NAME.OPTION=VALUE, got {text!r:.60}", code="bad_value")
    return Setting(name or None, option.lower(), value.strip())


@dataclass(frozen=True, slots=True)
class Variation:
    """The changes of a replay, in words and as options; `sql` are statements that create or replace queries."""

    strategy: str | None = None
    settings: Sequence[Setting] = ()
    sql: str | None = None

    @property
    def nothing(self) -> bool:
        return self.strategy is None and not self.settings and self.sql is None

    def commands(self, engine: Engine) -> list[CommandBody]:
        """The change of this engine; Refuse if it could not be applied."""
        catalog = catalog_of(engine)
        found: list[CommandBody] = []
        for setting in self.settings:
            steps = list(_set(setting, catalog))
            if not steps:
                raise Refuse(f"--set {setting.text}: nothing that it applies to existed then")
            for planned in steps:
                catalog = catalog.with_(planned)
                found.append(planned.command if isinstance(planned, AlterStatement) else ReplaceQuery(planned.plan))
        if self.sql is not None:
            found += _queries(self.sql, catalog)
        if self.strategy is not None:
            strategy = str(Strategy.parse(self.strategy))
            found += [SetStrategy(component.name, strategy) for component in engine.graph.components]
        if found:
            engine.plan(found)
        return found

    def adapted(self, events: Sequence[Event]) -> list[Event]:
        """Recorded events with the strategy of the replay, if it has one: new streams get it, and no other is set."""
        return [replace(event, body=self._adapted(event.body)) if isinstance(event, Command) else event
                for event in events]  # fmt: skip

    def _adapted(self, body: CommandBody) -> CommandBody:
        if self.strategy is None:
            return body
        match body:
            case SetStrategy():
                return Change(())
            case AddStream(stream):
                return AddStream(stream, self.strategy)
            case Change(commands):
                return Change(tuple(map(self._adapted, commands)))
            case _:
                return body


def catalog_of(engine: Engine) -> Catalog:
    """The definitions that an engine has."""
    streams: dict[str, StreamDefinition] = {
        name: stream.definition for name, stream in engine.streams_by_name.items() if not is_side_stream(name)
    }
    queries: dict[str, QueryPlan] = {name: query.plan for name, query in engine.queries_by_name.items()}
    return Catalog(streams=streams, queries=queries)


# -- options -----------------------------------------------------------------------------------------------------------


def _set(setting: Setting, catalog: Catalog) -> Iterator[AlterStatement | CreateQuery]:
    name, option = setting.name, setting.option
    if name is not None and name not in catalog.streams and name not in catalog.queries:
        known = [*catalog.streams, *catalog.queries]
        raise Refuse(f"--set {setting.text}: no stream or query {name} existed then{did_you_mean(name, known)}")
    of_stream = _STREAM.get(option) if name is None or name in catalog.streams else None
    of_query = _QUERY.get(option) if name is None or name in catalog.queries else None
    if of_stream is not None:
        if of_stream.becomes not in POLICIES:
            raise Refuse(f"--set {setting.text}: {option} of a stream cannot be changed while it runs")
        for stream in catalog.streams.values() if name is None else [catalog.streams[name]]:
            if name is not None or stream.timestamps in of_stream.kinds:
                yield _altered(stream, setting, catalog)
    elif of_query is not None:
        for query in catalog.queries.values() if name is None else [catalog.queries[name]]:
            yield _replaced(query, setting, catalog)
    else:
        what = "a stream or a query" if name is None else "a stream" if name in catalog.streams else "a query"
        options = {**_STREAM, **_QUERY} if name is None else _STREAM if name in catalog.streams else _QUERY
        hint = did_you_mean(option, options) or f"; the options are {', '.join(options)}"
        raise Refuse(f"--set {setting.text}: {what} has no option {option}{hint}")


def _altered(stream: StreamDefinition, setting: Setting, catalog: Catalog) -> AlterStatement:
    """The stream with another policy."""
    value = setting.literal
    shown = str(value) if isinstance(value, int | float) else "'" + value.replace("'", "''") + "'"
    with _about(setting):
        planned = plan(parse(f"ALTER STREAM {written(stream.name)} SET ({setting.option} = {shown})")[0], catalog)
    assert isinstance(planned, AlterStatement)
    return planned


def _replaced(query: QueryPlan, setting: Setting, catalog: Catalog) -> CreateQuery:
    """The query with another option."""
    statement = parse(query.sql, KNOWN)[0]
    body = statement.body
    if not isinstance(body, s.CreateQueryStatement):
        raise Refuse(f"--set {setting.text}: {query.name} is a temporary query, which has no options")
    option = s.Option(body.span, s.Name(body.span, setting.option), setting.literal, body.span)
    others = tuple(other for other in body.options if other.name.text != setting.option)
    body = replace(body, options=(*others, option), replace=True, unless_exists=False)
    with _about(setting):
        planned = plan(replace(statement, body=body), catalog)
    assert isinstance(planned, CreateQuery)
    return planned


@contextmanager
def _about(setting: Setting) -> Iterator[None]:
    """An error names the setting, not a place in a statement that nobody wrote."""
    try:
        yield
    except SqlError as error:
        raise Refuse(f"--set {setting.text}: {error.message}") from None


# -- queries -----------------------------------------------------------------------------------------------------------


def _queries(sql: str, catalog: Catalog) -> Iterator[CommandBody]:
    """The commands of statements that create or replace queries."""
    statements = parse(sql)
    if not statements:
        raise Refuse("--query: expected CREATE QUERY or SELECT statements, got none")
    for statement in statements:
        planned = plan(statement, catalog, bare_name(catalog))
        catalog = catalog.with_(planned)
        match planned:
            case QueryPlan():
                yield AddQuery(planned)
            case CreateQuery(query, replaces=replaces):
                yield ReplaceQuery(query) if replaces else AddQuery(query)
            case _:
                raise SqlError(
                    statement.text,
                    statement.body.span.start,
                    "a replay can only create or replace queries: expected CREATE QUERY or SELECT",
                )
