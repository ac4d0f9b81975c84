"""Plays worlds of SQL: plainly, wildly and roughly, as in simulator.py, with more that may happen to queries.

plain    the rows in the end are the oracle's
wild     the rows at each checkpoint are those of the plain play; queries are started with a past, and must go on as
         if they had always run
rough    queries are paused, dropped, replaced, and fail, streams are dropped; the others give the oracle's rows
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    AdoptBootstrap,
    AlterStream,
    Answer,
    Answered,
    Archived,
    AskTimestamp,
    DropQuery,
    DropStream,
    Effects,
    Event,
    FeedOpened,
    HoldQuery,
    InsertOperator,
    PauseQuery,
    QueryFailed,
    RemoveOperator,
    RenameQuery,
    ReplaceOperator,
    ReplaceQuery,
    ResumeQuery,
    SetOrder,
    SetQueue,
    UnshareQuery,
    WatchProgress,
)
from millrace.engine.plan import QueryPlan, StreamDefinition
from millrace.engine.seam import Bootstrap, BootstrapState, gated
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.queues.inlet import QueueInlet
from millrace.protocol import Field, Refuse, Type
from millrace.sql import Catalog
from millrace.values.batch import Batch
from millrace.values.expression import Call, Constant
from tests.oracles.stream import END, StreamOracle
from tests.simulation.auditors import Broken
from tests.simulation.odds import draw
from tests.simulation.simulator import LooseBooks, Play
from tests.simulation.sql import COLUMNS, PASSING, Row, SqlQuery, SqlWorld, planned, sql_world_of
from tests.simulation.world import Said, moved

Found = Counter[Any]


@dataclass
class Past:
    """A query that is to go on from a past: its twin, which has always run, and what of the past is known."""

    name: str
    of: str
    held: bool = False
    state: BootstrapState | None = None


class SqlPlay(Play):
    """A play of a world of SQL. `touched` are the queries to which something was done that their rows show."""

    world: SqlWorld  # type: ignore[assignment]

    def __init__(self, world: SqlWorld, style: int | None, *, rough: bool = False) -> None:
        # A rough play is compared in the end alone: its feed answers requests, which moves windows forward.
        self.answers = rough and bool(world.punctuation_key)
        if self.answers:
            world = replace(world, streams=tuple(_asked(stream) for stream in world.streams))
        super().__init__(world, style, rough=rough)  # type: ignore[arg-type]
        self.answering = random.Random(f"answers {world.seed} {style}")
        self.asked: list[AskTimestamp] = []
        self.to_come = {values[-1]: values for said in world.log if said.stream == "a" for values in said.tuples}
        self.books = LooseBooks()
        self.chance = random.Random(f"trouble {world.seed} {style} {rough}")
        self.editing = random.Random(f"editing {world.seed} {style} {rough}")
        self.catalog = Catalog({stream.name: stream for stream in world.streams})
        self.plans: dict[str, QueryPlan] = {}
        for query in world.queries:
            self.plans[query.name] = planned(self.catalog, query.text)
            self.catalog = replace(self.catalog, queries={**self.catalog.queries, query.name: self.plans[query.name]})
        self.touched: set[str] = set()
        self.failing: list[tuple[str, int]] = []  # a query, and the number of its operator that will raise
        self.failed: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.pasts: list[Past] = []
        self.archive: list[tuple[str, Batch]] = []
        self.widened = False
        self.over = False

    # -- the log -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        super()._begin()
        if self.answers:
            self._step([FeedOpened("a", "main", can_answer=True)])

    def _answer(self) -> None:
        """The feed of `a` answers: for the group that was named or for all its tuples, and never above one to come."""
        asked, self.asked = self.asked, []
        key = 1 + COLUMNS.index(self.world.punctuation_key or "k")
        for ask in asked:
            self.done["asked for a group"] += bool(ask.group)
            group = ask.group if draw(self.answering, "sql.answered for the group") else ()
            times = [values[0] for values in self.to_come.values() if not group or values[key] == group[0]]
            value = min([ask.need_us + draw(self.answering, "sql.answered above the need"), *times])
            self._step([Answered("a", "main", ask.request, value, group)])

    def _add(self, query: Any) -> None:
        self._added(self.plans[query.name])

    def _added(self, plan: QueryPlan) -> None:
        self.ordered[plan.name] = plan.options.order == "event"
        strategy = draw(self.rng, "play.strategy of a new query") if self.wild else self.strategy
        self._command(AddQuery(plan, strategy), work=0)
        if self.wild and draw(self.rng, "play.watched progress"):
            self._command(WatchProgress(plan.name))

    def _events(self, said: Said) -> list[Event]:
        if said.stream == "a":
            for values in said.tuples:
                del self.to_come[values[-1]]
        return super()._events(said) if said.stream in self.engine.streams_by_name else []

    def _batch(self, said: Said) -> Batch:
        """The tuples, with nulls in columns that the stream has got since."""
        definition = self.engine.streams_by_name[said.stream].definition
        rows = [values if definition.time else values[1:] for values in said.tuples]
        more = (None,) * (len(definition.schema) - len(rows[0]))
        times = [ts or 0 for ts, *_ in said.tuples]
        return Batch.from_rows(definition.schema, [(*row, *more) for row in rows], times)

    def _rows(self) -> dict[str, Any]:
        """What each query has given: its rows with their times, or of an update stream the row of each key."""
        return {query.name: self._given(query) for query in self.world.queries if query.steady or self.over}

    def _given(self, query: SqlQuery) -> Found:
        given = self.books.delivered.get(query.name, [])
        if query.table.key is None:
            return Counter((ts if query.table.timed else None, *row[: len(COLUMNS)]) for ts, row in given)
        places = [COLUMNS.index(column) for column in query.table.key]
        rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        times: dict[tuple[Any, ...], int] = {}
        for ts, row in given:
            key = tuple(row[at] for at in places)
            if ts < times.get(key, ts) and query.name not in self.touched:
                raise Broken(f"{query.name}: {key} went back from {times[key]} to {ts}")
            times[key] = ts
            rows.pop(key, None)
            if len(row) == len(COLUMNS) or not row[-1]:
                rows[key] = row[: len(COLUMNS)]
        return Counter(rows.values())

    # -- stepping ------------------------------------------------------------------------------------------------------

    def _about_to_step(self) -> None:
        for engine in (self.engine, self.twin.engine):
            if engine is not None:
                self._break_operators(engine)

    def _break_operators(self, engine: Engine) -> None:
        """Let operators raise, in this engine and in one that is compared with it."""
        for name, number in self.failing:
            query = engine.queries_by_name.get(name)
            for node, operator in zip(query.plan.nodes, query.operators, strict=True) if query is not None else ():
                if node.id == number:
                    operator.execute = _raise  # type: ignore[method-assign]

    def _took(self, effects: Effects) -> None:
        for order in effects.orders:
            match order:
                case Archived(stream, _, judged):
                    batch = judged.batch if judged.late is None else judged.batch.take(~judged.late)
                    self.archive.append((stream, batch))
                case Answer(value=value):
                    self.answer = value
                case AskTimestamp():
                    self.asked.append(order)

    def _failed(self, order: QueryFailed) -> None:
        if order.query not in self.touched:
            raise Broken(f"query {order.query} failed: {order.reason}\n{order.detail}")
        self.failed[order.query] += 1
        self.failing = [(name, number) for name, number in self.failing if name != order.query]

    def _refused(self, events: Sequence[Event], text: str) -> None:
        """Queries that wait for their past refuse much, and a stream that has gone is not altered."""
        body = getattr(events[-1], "body", None)
        match body:
            case ReplaceQuery(plan):
                name = plan.name
            case RenameQuery(name) | AlterStream(name) | UnshareQuery(name) | SetOrder(name):
                pass
            case InsertOperator(operator) | RemoveOperator(operator):
                name = operator.partition(".")[0]
            case _:
                name = ""
        excused = name == PASSING or name.removesuffix("2") in {past.name for past in self.pasts}
        if not excused and not isinstance(body, SetOrder | SetQueue):
            super()._refused(events, text)

    # -- chance --------------------------------------------------------------------------------------------------------

    def _said(self, said: Said) -> None:
        self.over = said is self.world.log[-1]
        if self.asked:
            self._answer()
        super()._said(said)

    def _meddle(self) -> None:
        if self.over:
            return
        super()._meddle()
        rng = self.chance
        if draw(rng, "sql.exchange queue"):
            self._exchange()
        if draw(self.editing, "sql.replace operator"):
            self._replace_an_operator()
        if draw(rng, "sql.widen stream"):
            self._widen()
        if draw(rng, "sql.past"):
            self._go_on_with_a_past()
        if self.rough:
            trouble = draw(rng, "sql.trouble")
            if trouble:
                getattr(self, f"_{trouble}")()

    def _exchange(self) -> None:
        """Another update queue for an edge that has one."""
        edges = [
            (operator.name, at)
            for operator in self.engine.graph.operators.values()
            for at, inlet in enumerate(operator.inputs)
            if isinstance(inlet, QueueInlet) and inlet.edge.updates
        ]
        if edges:
            name, at = self.chance.choice(edges)
            self._command(SetQueue(name, draw(self.chance, "updates.replaced queue"), at))
            self.done["queue"] += 1

    def _replace_an_operator(self) -> None:
        """A condition that was put in becomes another one that lets everything through."""
        queries = [one for one in self.engine.queries_by_name.values() if one.paused is None and not one.catching_up]
        edits = [edit.operator for query in queries for edit in query.plan.edits if edit.change == "insert"]
        there = [name for name in edits if name in self.engine.graph.operators]
        if there:
            one = Constant(Type.BIGINT, False, 1)
            always = SelectSpec(Call(Type.BOOLEAN, True, "=(bigint, bigint)", (one, one)))
            self._edit(ReplaceOperator(self.editing.choice(there), always))
            self.done["replace operator"] += 1

    def _widen(self) -> None:
        name = self.chance.choice(self.world.streams).name
        if name in self.engine.streams_by_name and not self.pasts:
            width = len(self.engine.streams_by_name[name].definition.schema)
            fields = (Field(f"more{width}", Type.BIGINT),)
            self._command(AlterStream(name, (), fields=fields), work=0)
            self.widened = True
            self.done["widen"] += 1

    def _replace_by_another(self) -> None:
        return None  # by _replace

    # -- a query that goes on from a past ------------------------------------------------------------------------------

    def _go_on_with_a_past(self) -> None:
        """The next step of one that is on its way, or a new one: added, held, adopted."""
        waiting = next((past for past in self.pasts if past.state is None), None)
        if any(stream.source.mark == END for stream in self.engine.streams_by_name.values()):
            return  # a server's streams do not end, and a past cannot
        if waiting is not None:
            self._adopt(waiting) if waiting.held else self._hold(waiting)
        elif not self.widened and len(self.pasts) < 2:
            query = self.chance.choice(self.world.queries)
            name = f"h{len(self.pasts)}"
            try:
                plan = gated(planned(self.catalog, query.text_as(name)))
            except Refuse:
                return  # its rows depend on more than what its streams take in
            if query.name in self.engine.queries_by_name and PASSING not in plan.reads_streams:
                self._added(plan)
                self.pasts.append(Past(name, query.name))

    def _hold(self, past: Past) -> None:
        self._command(HoldQuery(past.name), work=0)
        past.held = True
        marks = self.answer["marks"]
        plan = planned(self.catalog, self.world.query(past.of).text_as(past.name))
        self.twins_past = Bootstrap([self.catalog.streams[name] for name in plan.reads_streams], plan)
        for stream, batch in self.archive:
            if stream in plan.reads_streams:
                self.twins_past.take(stream, batch, self._now)
        for stream, mark in marks.items():
            self.twins_past.promise(stream, mark)

    def _adopt(self, past: Past) -> None:
        past.state = self.twins_past.finish()
        self._command(AdoptBootstrap(past.name, past.state.state), work=0)
        self.done["past"] += 1

    def compare_pasts(self) -> None:
        """Before the seam history's rows and after it the query's own are those of its twin.

        The time of a window of rows that is not full is that of the promise at the end.
        """
        for past in self.pasts:
            if past.state is None or past.of in self.touched or self.world.query(past.of).table.key is not None:
                continue
            timed = self.world.query(past.of).table.timed
            given = self.books.delivered.get(past.of, [])
            below = [row for row in given if row[0] < past.state.seam_us]
            own = self.books.delivered.get(past.name, [])
            always, found = (
                Counter((ts if timed else None, row) for ts, row in rows) for rows in (given, [*below, *own])
            )
            if len(below) != past.state.given or found != always:
                raise Broken(
                    f"{past.name} went on from {past.state.seam_us} as {past.of}: too much {dict(found - always)}, "
                    f"too little {dict(always - found)}"
                )

    # -- trouble -------------------------------------------------------------------------------------------------------

    def _victim(self) -> str | None:
        """A query to which something may be done; at least one stays as it is."""
        there = [query.name for query in self.world.queries if query.name in self.engine.queries_by_name]
        more = [name for name in there if name not in self.touched]
        free = [name for name in there if name in self.touched or len(more) > 2]
        return self.chance.choice(free) if free else None

    def _touch(self, name: str) -> None:
        """The query's rows show it, and so do those of all that read it."""
        self.touched.add(name)
        self.books.begins_anew(name)
        self.ordered[name] = False
        for other in self.engine.queries_by_name.values():
            if name in other.plan.reads_queries and other.plan.name not in self.touched:
                self._touch(other.plan.name)

    def _pause(self) -> None:
        name = self._victim()
        if name is not None and self.engine.queries_by_name[name].paused is None:
            self._touch(name)
            self._command(PauseQuery(name))
            self.done["pause"] += 1

    def _resume(self) -> None:
        stopped = [name for name, query in self.engine.queries_by_name.items() if query.paused and name in self.touched]
        if stopped:
            name = self.chance.choice(stopped)
            self._touch(name)
            self._command(ResumeQuery(name))
            self.done["resume"] += 1

    def _drop(self) -> None:
        name = self._victim()
        if name is not None and not any(
            name in query.plan.reads_queries for query in self.engine.queries_by_name.values()
        ):
            self._touch(name)
            self._command(DropQuery(name))
            self.books.ended(name)
            self.done["drop"] += 1

    def _add_again(self) -> None:
        gone = [name for name in self.plans if name not in self.engine.queries_by_name]
        there = {*self.engine.streams_by_name, *self.engine.queries_by_name}
        gone = [name for name in gone if {*self.plans[name].reads_streams, *self.plans[name].reads_queries} <= there]
        if gone and not self.widened:
            name = self.chance.choice(gone)
            self.books.forget(name)
            self._added(self.plans[name])
            self._touch(name)
            self.done["add"] += 1

    def _replace_a_plan(self) -> None:
        """A query gets another's plan, which may be out of proportion to what it may remember."""
        name = self._victim()
        if name is None or self.widened:
            return
        readers = [query for query in self.engine.queries_by_name.values() if name in query.plan.reads_queries]
        others = [plan for plan in self.plans.values() if not plan.reads_queries and PASSING not in plan.reads_streams]
        if readers or not others or self.engine.queries_by_name[name].catching_up:
            return
        self._touch(name)
        plan = moved(self.chance.choice(others), name)
        if draw(self.chance, "sql.too little state"):
            plan = replace(plan, options=replace(plan.options, max_state=0))
        with self.books.replacing(self.engine, name):
            self._command(ReplaceQuery(plan), work=0)
        self.done["replace"] += 1

    def _fail(self) -> None:
        """An operator of a query raises when it is executed next."""
        name = self._victim()
        if name is None or self.engine.queries_by_name[name].paused is not None:
            return
        self._touch(name)
        self.failing.append((name, self.chance.choice(self.engine.queries_by_name[name].plan.nodes).id))
        self.done["fail"] += 1

    def _drop_stream(self) -> None:
        """The passing stream goes, with its query, or comes back."""
        if PASSING not in self.engine.streams_by_name:
            self._command(AddStream(next(stream for stream in self.world.streams if stream.name == PASSING)))
            self.done["add stream"] += 1
            return
        if "passing" in self.engine.queries_by_name:
            self._touch("passing")
            self._command(DropQuery("passing"))
            self.books.ended("passing")
        self._command(DropStream(PASSING))
        self.done["drop stream"] += 1


def _asked(stream: StreamDefinition) -> StreamDefinition:
    return replace(stream, ets="on-demand", ets_retry_us=3) if stream.name == "a" else stream


def _raise(limit: int) -> int:
    raise ValueError("it was broken on purpose")


# -- the oracle's answer -----------------------------------------------------------------------------------------------


def expected(world: SqlWorld) -> dict[str, Found]:
    """The rows of each query in the end."""
    taken = taken_by(world)
    return {query.name: _wanted(query, query.table.rows(taken)) for query in world.queries}


def _wanted(query: SqlQuery, rows: Sequence[Row]) -> Found:
    timed = query.table.timed and query.table.key is None
    first = () if query.table.key is not None else (None,)
    return Counter(((row["ts"],) if timed else first) + tuple(row[column] for column in COLUMNS) for row in rows)


def taken_by(world: SqlWorld) -> dict[str, list[Row]]:
    """What each stream has taken in."""
    oracles = {
        stream.name: StreamOracle(stream.timestamps, stream.disorder_us, on_demand=False) for stream in world.streams
    }
    given: dict[int, tuple[Any, ...]] = {}
    for position, said in enumerate(world.log):
        oracle = oracles.get(said.stream)
        if oracle is None:
            continue
        match said.kind:
            case "tuples":
                for ts, *values in said.tuples:
                    given[values[-1]] = tuple(values)  # type: ignore[index]
                    oracle.arrived(said.feed, position, said.at, ts, values[-1], None)  # type: ignore[arg-type]
            case "punctuation" if not said.group:
                oracle.punctuated(said.feed, said.value)
            case "end":
                for feed in list(oracle.feeds) or ["main"]:
                    oracle.closed(feed, ended=True)
    return {
        name: [{"ts": one.ts, **dict(zip(COLUMNS, given[one.id], strict=True))} for one in oracle.accepted]
        for name, oracle in oracles.items()
    }


# -- one seed ----------------------------------------------------------------------------------------------------------


def simulate_sql(seed: int, styles: int = 1) -> int:
    """Play a world of SQL plainly, wildly and roughly, and compare; how many steps it took."""
    world = sql_world_of(seed)
    wanted = expected(world)
    plain = SqlPlay(world, None).run()
    _compare(world, [wanted], plain.checkpoints[-1:], "plain")
    steps = plain.steps
    for style in range(styles):
        wild = SqlPlay(world, style)
        outcome = wild.run()
        steps += outcome.steps
        if outcome.late != plain.late:
            raise Broken(f"wild {style}: late {outcome.late}, plainly {plain.late}")
        _compare(world, plain.checkpoints, outcome.checkpoints, f"wild {style}")
        wild.compare_pasts()
        if not style and SqlPlay(world, style).run().digest != outcome.digest:
            raise Broken("the same seed gave other effects")
        rough = SqlPlay(world, style, rough=True)
        outcome = rough.run()
        steps += outcome.steps
        left = {name: rows for name, rows in wanted.items() if name not in rough.touched}
        _compare(world, [left], outcome.checkpoints[-1:], f"rough {style}")
        rough.compare_pasts()
    return steps


def _compare(world: SqlWorld, wanted: Sequence[Any], got: Sequence[Any], how: str) -> None:
    for number, (these, those) in enumerate(zip(wanted, got, strict=True)):
        for name, rows in these.items():
            query = world.query(name)
            if query.table.chosen is not None:
                rows = _wanted(query, query.table.chosen(taken_by(world), those[name]))
            if those[name] != rows:
                raise Broken(
                    f"{how}, checkpoint {number}: {query.text}\ngave too much "
                    f"{dict(those[name] - rows)},\nwithheld {dict(rows - those[name])}"
                )
