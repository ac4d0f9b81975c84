"""Plays a world on an engine in some style, with auditors, and compares what comes out with the oracle and between
styles.

    plain    dfs(1), one line of the log at a time, all work done before the next
    wild     everything by chance: cuts of batches, budgets, executions, strategies, break points, weights, saves and
             restores, queries replaced by what gives the same rows, changes of which one command is refused
    rough    wild, and queries are added, dropped, replaced, paused and resumed in the middle of the work

A checkpoint of the log is reached when nothing is left to do. There the rows given so far must be the oracle's; in
the rough style that holds in the end, for the queries to which nothing was done.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from millrace.engine import credit
from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    AlterStream,
    Answer,
    Arrived,
    Change,
    Command,
    CommandBody,
    Deliver,
    DropQuery,
    Effects,
    Event,
    FeedClosed,
    FeedOpened,
    InsertOperator,
    Late,
    Measured,
    PauseQuery,
    Punctuated,
    QueryFailed,
    Rejected,
    RemoveOperator,
    RenameQuery,
    ReplaceQuery,
    ResumeQuery,
    RowsFailed,
    SetBreak,
    SetStrategy,
    SetWeight,
    TooFar,
    UnshareQuery,
    WakeAt,
    WatchProgress,
    WithholdCredit,
)
from millrace.engine.graph.rewire.editing import takes_updates
from millrace.engine.plan import QueryPlan
from millrace.operators.filter import routing
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.fork.fork import Fork
from millrace.operators.sink.sink import Sink
from millrace.protocol import Type
from millrace.values.batch import Batch
from millrace.values.eventtime import MIN_TIME
from millrace.values.expression import Constant
from tests.oracles import graph
from tests.oracles.stream import END, AcceptedTuple, StreamOracle
from tests.simulation import joined
from tests.simulation.auditors import Books, Broken, faithful, foreseen, grammar, made, quiet
from tests.simulation.odds import MANY, draw
from tests.simulation.twins import Twin, described
from tests.simulation.world import BEGIN_US, EXTERNAL, SCHEMA, QueryModel, Said, World, longer, moved, renamed

# Steps after which an engine that still has something to do is said to run in circles.
ENDLESS = 20_000

Rows = Counter[tuple[int | None, int, int | None]]


@dataclass
class Outcome:
    """What a play gave: at each checkpoint the rows per query so far, the late tuples, those too far in
    the future (by id), and a digest of all effects."""

    checkpoints: list[dict[str, Rows]] = field(default_factory=list)
    late: Rows = field(default_factory=Counter)
    far: Counter[int] = field(default_factory=Counter)
    impossible: int = 0
    digest: str = ""
    steps: int = 0


class Play:
    """One engine playing one world. `style` None is plain, a number seeds a wild one, which may be rough."""

    def __init__(
        self, world: World, style: int | None, *, rough: bool = False, strategy: str = "dfs(1)", thin: bool = True
    ) -> None:
        self.world = world
        self.rough = rough
        self.rng = random.Random(f"style {world.seed} {style}")
        self._naming = random.Random(f"names {world.seed} {style}")  # of its own, so that older seeds play as they did
        self.wild = style is not None
        self.strategy = strategy
        self.engine = Engine(trace=True, thin=thin)
        self.released: list[tuple[int, str, list[tuple[int, Any]]]] = []
        self.books = Books()
        self.outcome = Outcome()
        self.ordered: dict[str, bool] = {}
        self.twin = Twin(f"{world.seed} {style} {rough}")
        self._hash = hashlib.sha256()
        self._wake: int | None = None
        self._more = False
        self._commands = 0
        self._now = BEGIN_US

    def run(self) -> Outcome:
        with grammar(), joined.small():
            self._begin()
            for said in _recut(self.world.log, self.rng) if self.wild else self.world.log:
                self._said(said)
        self.outcome.digest = self._hash.hexdigest()
        return self.outcome

    # -- the log -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        for stream in self.world.streams:
            self._command(AddStream(stream))
        for query in self.world.queries:
            if query.name not in self.world.later:
                self._add(query)

    def _said(self, said: Said) -> None:
        if said.at > self._now:
            if not self.wild:
                self._drain()
            self._wake_up(said.at)
            self._now = said.at
        match said.kind:
            case "check" if self.rough and said is not self.world.log[-1]:
                pass
            case "check":
                joined.settle(self)
                if self._wake is not None and self._wake <= self._now:
                    self._step([])
                self._drain()
                quiet(self.engine)
                self.outcome.checkpoints.append(self._rows())
            case "add":
                self._add(self.world.query(said.query))
            case "drop":
                self._command(DropQuery(said.query))
                self.books.ended(said.query)
            case "pause":
                self._command(PauseQuery(said.query))
            case "resume":
                self._command(ResumeQuery(said.query))
            case _:
                self._step(self._events(said))
        if self.wild:
            self._meddle()
        else:
            self._drain()

    def _events(self, said: Said) -> list[Event]:
        match said.kind:
            case "tuples":
                return [Arrived(said.stream, said.feed, self._batch(said))]
            case "punctuation":
                return [Punctuated(said.stream, said.feed, said.value, said.group)]
            case "open":
                return [FeedOpened(said.stream, said.feed)]
            case "close":
                return [FeedClosed(said.stream, said.feed)]
            case "end" if said.stream in self.engine.streams_by_name:
                source = self.engine.streams_by_name[said.stream].source
                return [FeedClosed(said.stream, feed, ended=True) for feed in list(source.feeds.by_name) or ["main"]]
        return []

    def _batch(self, said: Said) -> Batch:
        stream = self.engine.streams_by_name[said.stream].definition
        external = stream.timestamps == "external"
        times = [ts if external and ts is not None else 0 for ts, _, _ in said.tuples]
        return Batch.from_rows(EXTERNAL if external else SCHEMA, said.tuples, times)

    def _add(self, query: QueryModel) -> None:
        self.ordered[query.name] = self._is_ordered(query)
        strategy = draw(self.rng, "play.strategy of a new query") if self.wild else self.strategy
        with _seen_beginning(self.books, self.engine, query.name):
            self._command(AddQuery(query.plan(), strategy), work=0)
        if self.wild and draw(self.rng, "play.watched progress"):
            self._command(WatchProgress(query.name))

    def _is_ordered(self, query: QueryModel) -> bool:
        return query.output.ordered and query.output.name not in self.world.stamped

    def _rows(self) -> dict[str, Rows]:
        """What each query has given so far; latent rows count without the time that they may have got."""
        found = {}
        for query in self.world.queries:
            given = self.books.delivered.get(query.name, [])
            timeless = query.output.name in self.world.stamped
            found[query.name] = Counter(
                (None if timeless or ts == MIN_TIME else ts, row[1], row[2]) for ts, row in given
            )
        return found

    # -- stepping ----------------------------------------------------------------------------------------------------

    def _command(self, body: CommandBody, work: int | None = None) -> None:
        self._commands += 1
        looked_at = work == 0 and not self._commands % 4
        promised = foreseen(self.engine, body) if looked_at else None
        self._step([Command(self._commands, body)], work=work)
        if looked_at and promised != made(self.engine):
            raise Broken(f"{body} makes something else of the engine than of its shadow")

    def command(self, body: CommandBody) -> None:
        self._command(body)

    def step(self, events: Sequence[Event]) -> None:
        self._step(events)

    def _drain(self) -> None:
        for _ in range(ENDLESS):
            if not self._more:
                return
            self._step([])
        raise Broken("the engine runs in circles: it still has something to do, and nothing happens")

    def _wake_up(self, before: int) -> None:
        """Keep the engine's appointments, as a driver must; a wild one may be late."""
        for _ in range(ENDLESS):
            if self._wake is None or self._wake > before or (self.wild and draw(self.rng, "play.missed timer")):
                return
            self._now = max(self._now, self._wake)
            self._step([])
            self._drain()
        raise Broken("the engine asks again and again to be woken")

    def _step(self, events: Sequence[Event], work: int | None = None) -> None:
        budget, executions = MANY, MANY
        if work is not None:
            executions = work
        elif self.wild:
            budget = draw(self.rng, "play.budget")
            executions = draw(self.rng, "play.executions")
        if self.wild:
            self.engine = self.twin.parted(self.engine, events)
        self._about_to_step()
        effects = self.engine.step(self._now, events, budget=budget, executions=executions)
        self.twin.obeyed(events, effects)
        self.twin.check(self.engine, self._now, events, effects, budget=budget, executions=executions)
        self._took(effects)
        self.outcome.steps += 1
        self._hash.update(described(effects))
        self._more = effects.more
        self._wake = None
        for order in effects.orders:
            match order:
                case WakeAt(at_us):
                    self._wake = at_us
                case Deliver(query, _, batch):
                    rows = list(zip(batch.ts.tolist(), batch.rows(), strict=True))
                    self.released.append((self.outcome.steps, query, rows))
                case Late(batch=batch, marks=marks):
                    late = zip(batch.rows(), marks.tolist(), strict=True)
                    self.outcome.late.update((mark, row[1], row[2]) for row, mark in late)
                case TooFar(batch=batch):
                    self.outcome.far.update(row[1] for row in batch.rows())
                case RowsFailed(count=count):
                    self.outcome.impossible += count
                case QueryFailed():
                    self._failed(order)
                case Rejected(refused=refused):
                    raise Broken(f"the engine rejected an event: {refused.text}")
                case Answer(refused=refused) if refused is not None:
                    self._refused(events, refused.text)
        if work != 0:
            self.books.step(self.engine, effects, self.ordered)

    def _about_to_step(self) -> None:
        """For plays that do something to the engine."""

    def _took(self, effects: Effects) -> None:
        """For plays that react to what the engine orders."""

    def _failed(self, order: QueryFailed) -> None:
        raise Broken(f"query {order.query} failed: {order.reason}\n{order.detail}")

    def _refused(self, events: Sequence[Event], text: str) -> None:
        body = events[-1].body if isinstance(events[-1], Command) else None
        if not isinstance(body, SetBreak | SetStrategy):
            raise Broken(f"{body} was refused: {text}")

    # -- chance ------------------------------------------------------------------------------------------------------

    def _meddle(self) -> None:
        """What an admin or an accident may do between two lines of the log."""
        rng = self.rng
        for _ in range(draw(rng, "play.steps between lines")):
            self._step([])
        if draw(rng, "play.set strategy"):
            component = rng.choice(self.engine.graph.components).name
            self._command(SetStrategy(component, draw(rng, "play.strategy")))
        if draw(rng, "play.set an operator's strategy"):
            operator = rng.choice(self._row_operators())
            component = self.engine.graph.component_of(self.engine.graph.operator(operator)).name
            self._command(SetStrategy(component, draw(rng, "play.strategy"), operator))
        if draw(rng, "play.set break"):
            operator = rng.choice(self._row_operators())
            self._command(SetBreak(operator, not self.engine.graph.has_break(operator)))
        if draw(rng, "play.alter stream"):
            stream = rng.choice(self.world.streams).name
            self._command(AlterStream(stream, (("propagation", draw(rng, "play.propagation")),)))
        if draw(rng, "play.set weight"):
            self._command(SetWeight(rng.choice(self.engine.graph.components).name, draw(rng, "play.weight")))
        if draw(rng, "play.measure"):
            self._step([Measured(name, 20, draw(rng, "play.measured us")) for name in self._row_operators()])
        if draw(rng, "play.insert operator"):
            self._put_in()
        if draw(rng, "play.remove operator"):
            self._take_out()
        if draw(rng, "play.replace by the same"):
            self._replace_by_the_same()
        if self.rough and draw(rng, "play.replace by another (rough)"):
            self._replace_by_another()
        if draw(rng, "play.refused change"):
            self._change_and_refuse()
        joined.meddle(self)
        if draw(self._naming, "play.rename and back"):
            self._rename_and_back()
        self._withhold_or_unshare()
        if draw(rng, "play.save"):
            self._save_and_restore()

    def _put_in(self) -> None:
        """An operator that lets everything through changes nothing of what comes out."""
        queries = [query for query in self.engine.queries_by_name.values() if query.paused is None]
        nodes = [node for query in queries if len(query.plan.nodes) < 12 for node in query.plan.nodes]
        if nodes:
            node = self.rng.choice(nodes)
            spec = SelectSpec(Constant(Type.BOOLEAN, False, True))
            at = self.rng.randrange(len(node.inputs))
            (plan,) = (query.plan for query in queries if node in query.plan.nodes)
            if not takes_updates(self.engine, plan, node, at):
                self._edit(InsertOperator(node.name, spec, at))

    def _take_out(self) -> None:
        queries = [query for query in self.engine.queries_by_name.values() if query.paused is None]
        edits = [edit.operator for query in queries for edit in query.plan.edits if edit.change == "insert"]
        there = [name for name in edits if name in self.engine.graph.operators]
        if there:
            self._edit(RemoveOperator(self.rng.choice(there)))

    def _edit(self, body: CommandBody) -> None:
        with self.books.editing(self.engine):
            self._command(body, work=0)

    def _withhold_or_unshare(self) -> None:
        """Less credit, or operators that a query does not share any more, change nothing of what comes out."""
        rng, names = self._naming, list(self.engine.queries_by_name)
        if names and draw(rng, "play.withhold credit"):
            name = rng.choice(names)
            strict = draw(rng, "play.withhold strictly")
            self._command(WithholdCredit(name, name not in credit.slow(self.engine), strict), work=0)
        if names and self.engine.share and draw(rng, "play.unshare"):
            self._command(UnshareQuery(rng.choice(names)), work=0)

    def _rename_and_back(self) -> None:
        """Another name for a moment, perhaps over a restart, changes nothing."""
        name = self._naming.choice([*self.engine.queries_by_name, None])
        if name is None:
            return
        self._command(RenameQuery(name, f"{name}2"), work=0)
        if draw(self._naming, "play.save under the other name"):
            self._save_and_restore()
        self._command(RenameQuery(f"{name}2", name), work=0)

    def _replace_by_the_same(self) -> None:
        """A plan that differs in names, or in a map at its end, changes nothing of what comes out."""
        query = self.rng.choice(list(self.engine.queries_by_name.values()) or [None])
        if query is None or query.failed:
            return
        plan = replace(query.plan, edits=())
        taken = {node.name for node in plan.nodes}
        if draw(self.rng, "play.replace by a longer plan") and len(plan.nodes) < 12:
            plan = longer(plan)
        elif not any(name in taken for node in plan.nodes for name in [f"{node.name}'"]):
            plan = renamed(plan)
        self._replace(plan)

    def _replace_by_another(self) -> None:
        """A query to which something is done anyway gets another's operators."""
        touched = {said.query for said in self.world.log if said.query}
        mine = [name for name in touched if name in self.engine.queries_by_name]
        others = [query for query in self.world.queries if not query.reads_queries]
        if not mine or not others:
            return
        name = self.rng.choice(sorted(mine))
        model = self.rng.choice(others)
        self.books.begins_anew(name)
        self.ordered[name] = False
        self._replace(moved(model.plan(), name))

    def _replace(self, plan: QueryPlan) -> None:
        with self.books.replacing(self.engine, plan.name):
            self._command(ReplaceQuery(plan), work=0)

    def _change_and_refuse(self) -> None:
        """Several commands of which one is refused leave the engine as a step without any does."""
        faithful(self.engine)
        before = self.engine.save()
        component = self.rng.choice(self.engine.graph.components).name
        commands: list[CommandBody] = [SetWeight(component, 7), SetStrategy(component, "bfs(5)"), DropQuery("nobody")]
        self._commands += 1
        effects = self.engine.step(self._now, [Command(self._commands, Change(tuple(commands)))], executions=0)
        if not any(isinstance(order, Answer) and order.refused is not None for order in effects.orders):
            raise Broken("a change with a wrong command was obeyed")
        again = [Command(self._commands, Change(tuple(commands)))]
        self.twin.check(self.engine, self._now, again, effects, budget=MANY, executions=0)
        other = Engine.restore(before)
        other.step(self._now, (), executions=0)
        if self.engine.save() != other.save():
            raise Broken("a refused change has changed something")

    def _row_operators(self) -> list[str]:
        """The operators that have a row in a state table and an output to set a break point at."""
        return [o.name for o in self.engine.graph.operators.values() if not isinstance(o, Sink | Fork)]

    def _save_and_restore(self) -> None:
        self.engine = self.twin.part(self.engine, draw(self.rng, "play.steps of a twin"))


class _seen_beginning:  # noqa: N801 - reads as a statement
    """Tells the books of the operators that a query brings."""

    def __init__(self, books: Books, engine: Engine, query: str) -> None:
        self._books, self._engine, self._query = books, engine, query

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        for name, operator in self._engine.graph.operators.items():
            if name.startswith(f"{self._query}."):
                self._books.began(operator)


def _recut(log: Sequence[Said], rng: random.Random) -> Iterator[Said]:
    """The same log, batches cut into pieces."""
    for said in log:
        rest = said.tuples
        while len(rest) > 1 and draw(rng, "play.cut"):
            cut = rng.randint(1, len(rest) - 1)
            yield replace(said, tuples=rest[:cut])
            rest = rest[cut:]
        yield said if rest is said.tuples else replace(said, tuples=rest)


# -- the oracle's answer -----------------------------------------------------------------------------------------------


class Expected:
    """What must have come out at each checkpoint, from the log alone."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.checkpoints: list[dict[str, Rows | None]] = []
        self.streams = {
            stream.name: StreamOracle(
                stream.timestamps,
                stream.disorder_us,
                stream.progress == "tuples",
                stream.ets == "on-demand",
                stream.ahead_us,
            )
            for stream in world.streams
        }
        # The side streams of late tuples, from the first query on that reads them.
        self._asides: dict[str, StreamOracle] = {}
        self._begun: dict[str, dict[str, tuple[int, int | None]]] = {}
        # By query, the newest time that each stream had taken in before it.
        self._before: dict[str, dict[str, int | None]] = {}
        self._away: dict[str, list[tuple[int, int]]] = {}
        self._paused: dict[str, int] = {}
        self._gone: dict[str, Rows | None] = {}
        self._now = BEGIN_US
        for query in world.queries:
            if query.name not in world.later:
                self._begin(query, -1)
        for position, said in enumerate(world.log):
            self._now = max(self._now, said.at)
            self._said(position, said)

    @property
    def late(self) -> Rows:
        vs = {number: v for said in self.world.log for _, number, v in said.tuples}
        return Counter((mark, number, vs[number]) for stream in self.streams.values() for number, mark in stream.late)

    @property
    def far(self) -> Counter[int]:
        return Counter(number for stream in self.streams.values() for number in stream.far)

    def _stream(self, name: str) -> StreamOracle:
        return self.streams.get(name) or self._asides.setdefault(name, StreamOracle("internal"))

    def _begin(self, query: QueryModel, position: int) -> None:
        """A query reads each stream from one microsecond above the newest time taken in so far."""
        self._begun[query.name] = {name: (position, self._stream(name).newest) for name in query.reads_streams}
        self._before[query.name] = {name: stream.newest for name, stream in (self.streams | self._asides).items()}

    def _said(self, position: int, said: Said) -> None:
        stream = self.streams.get(said.stream, self._asides.get(said.stream))
        match said.kind:
            case "check":
                self.checkpoints.append({query.name: self._given(query) for query in self.world.queries})
            case "add":
                self._begin(self.world.query(said.query), position)
            case "pause":
                self._paused[said.query] = position
            case "resume":
                self._away.setdefault(said.query, []).append((self._paused.pop(said.query), position))
            case "drop":
                self._gone[said.query] = self._given(self.world.query(said.query))
            case "tuples" if stream is not None:
                for ts, number, v in said.tuples:
                    before = len(stream.late)
                    stream.arrived(said.feed, position, self._now, ts, number, v)
                    aside = self._asides.get(f"{said.stream}.late")
                    if len(stream.late) > before and aside is not None:
                        aside.arrived("late", position, self._now, None, number, v)
            case "punctuation" if stream is not None:
                stream.punctuated(said.feed, said.value)
            case "open" if stream is not None:
                stream.opened(said.feed)
            case "close" if stream is not None:
                stream.closed(said.feed, ended=False)
            case "end" if stream is not None:
                for feed in list(stream.feeds) or ["main"]:
                    stream.closed(feed, ended=True)

    def _given(self, query: QueryModel) -> Rows | None:
        """The query's rows so far; None if they may depend on when rows were looked at (a pause, a latent stamp)."""
        if query.name in self._gone:
            return self._gone[query.name]
        if query.name not in self._begun:
            return Counter()
        if query.name in self._paused:
            return None
        timeless = query.output.name in self.world.stamped
        vague = timeless or query.output.name in self.world.vague
        if vague and not all(stream.mark == END for stream in self._below(query)):
            return None
        rows = self._compute(query).rows
        return Counter((None if timeless else ts, number, v) for ts, number, v in rows)

    def _below(self, query: QueryModel) -> list[StreamOracle]:
        """Every timed stream that the query's rows come from."""
        read = [self._stream(name) for name in query.reads_streams]
        found = [stream for stream in read if stream.kind != "latent"]
        for name in query.reads_queries:
            found += self._below(self.world.query(name))
        return found

    def _compute(self, query: QueryModel) -> graph.NodeOutput:
        given: dict[str, graph.NodeOutput] = {}

        def of(name: str) -> graph.NodeOutput:
            if name not in given:
                given[name] = self._outside(query, name)
            return given[name]

        for node in query.nodes:
            inputs = [of(name) for name in node.inputs]
            given[node.name] = graph.compute(node, inputs, self._since(query, node.name, query.name))
        return given[query.output.name]

    def _since(self, query: QueryModel, name: str, reader: str) -> int | None:
        """From when on `reader` reads what a node gives: above all that the streams above it had taken in before."""
        if name.endswith(".source"):
            newest = self._before[reader].get(name.removesuffix(".source"))
            return None if newest is None else newest + 1
        node = next((node for node in query.nodes if node.name == name), None)
        if node is None:
            other = next(other for other in self.world.queries if other.output.name == name)
            return self._since(other, name, reader)
        found = [self._since(query, one, reader) for one in node.inputs]
        return max((since for since in found if since is not None), default=None)

    def _outside(self, query: QueryModel, name: str) -> graph.NodeOutput:
        if not name.endswith(".source"):
            return self._compute(next(other for other in self.world.queries if other.output.name == name))
        stream = name.removesuffix(".source")
        oracle = self._stream(stream)
        return graph.source(oracle.accepted, oracle.promised(self._now), self._admits(query.name, stream))

    def _admits(self, query: str, stream: str) -> Callable[[AcceptedTuple], bool]:
        position, newest = self._begun[query][stream]
        away = self._away.get(query, [])

        def admits(taken: AcceptedTuple) -> bool:
            fresh = taken.position > position and (newest is None or taken.ts is None or taken.ts > newest)
            return fresh and not any(first < taken.position < last for first, last in away)

        return admits


# -- one seed ----------------------------------------------------------------------------------------------------------


def simulate(world: World, styles: int = 3) -> int:
    """Play a world plainly and wildly and compare; how many steps it took. Raises Broken, or what the engine raised.

    Two filters on one arc have a predicate index already.
    """
    with patch.object(routing, "LEAST", 2):
        return _simulate(world, styles)


def _simulate(world: World, styles: int) -> int:
    expected = Expected(world)
    steps = 0
    for style in (None, *range(styles)):
        outcome = Play(world, style).run()
        steps += outcome.steps
        compare(expected, expected.checkpoints, outcome, "plain" if style is None else f"wild {style}")
        if style == 0 and Play(world, style).run().digest != outcome.digest:
            raise Broken("the same seed gave other effects")
    for style in range(styles):
        outcome = Play(world, style, rough=True).run()
        steps += outcome.steps
        compare_untouched(expected, outcome, style)
    return steps


def compare_untouched(expected: Expected, outcome: Outcome, style: int) -> None:
    """In the end, what was done to other queries in the middle of the work has changed nothing for the rest."""
    touched = {said.query for said in expected.world.log}
    wanted: dict[str, Rows | None] = {}
    for query in expected.world.queries:  # a query comes after those that it reads
        if query.name in touched or touched.intersection(query.reads_queries):
            touched.add(query.name)
        else:
            wanted[query.name] = expected.checkpoints[-1][query.name]
    compare(expected, [wanted], outcome, f"rough {style}")


def compare(expected: Expected, checkpoints: Sequence[Mapping[str, Rows | None]], outcome: Outcome, how: str) -> None:
    late = expected.late
    if outcome.late != late:
        raise Broken(f"{how}: late {outcome.late - late} more than {late - outcome.late}")
    if outcome.far != expected.far:
        raise Broken(f"{how}: too far {outcome.far}, expected {expected.far}")
    for number, (wanted, got) in enumerate(zip(checkpoints, outcome.checkpoints, strict=True)):
        for query, rows in wanted.items():
            if rows is not None and got[query] != rows:
                raise Broken(
                    f"{how}, checkpoint {number}: {query} gave {dict(got[query] - rows)} too much, "
                    f"withheld {dict(rows - got[query])}"
                )


# -- queries that share ------------------------------------------------------------------------------------------------


class LooseBooks(Books):
    """Operators come and go in the middle of their lives when queries share them and part: rows are looked at, and what
    lies on arcs, but not what each operator has taken."""

    @contextmanager
    def replacing(self, engine: Engine, query: str) -> Iterator[None]:
        yield

    @contextmanager
    def editing(self, engine: Engine) -> Iterator[None]:
        yield

    def _balance(self, operator: Any) -> None:
        return None


class Sharing(Play):
    """A play in which every query is there twice, and the two share what they can. Whatever is done to the first, the
    second gives the rows of one to which nothing is done."""

    def __init__(self, world: World, style: int | None, *, rough: bool = False) -> None:
        super().__init__(world, style, rough=rough)
        self.engine = Engine(trace=True, share=True)
        self.books = LooseBooks()
        self.shared = self.merged = 0

    def _add(self, query: QueryModel) -> None:
        second = moved(query.plan(), f"{query.name}_")
        self.ordered[query.name] = self.ordered[second.name] = self._is_ordered(query)
        both = [AddQuery(query.plan()), AddQuery(second)]
        if draw(self.rng, "sharing.one change"):
            self._command(Change(tuple(both)), work=0)
        else:
            for one in both:
                self._command(one, work=0)
        if draw(self.rng, "sharing.watched progress"):
            names = query.name, second.name
            self._command(WatchProgress(self.rng.choice(names)))

    def _command(self, body: CommandBody, work: int | None = None) -> None:
        if isinstance(body, DropQuery):
            # It may be read by the second of a query whose first is gone already.
            for name, query in list(self.engine.queries_by_name.items()):
                if body.name in query.plan.reads_queries:
                    self._command(DropQuery(name))
        super()._command(body, work)
        owners = [self.engine.owners(one) for one in self.engine.graph.operators.values()]
        self.shared = max(self.shared, sum(len(found) > 1 for found in owners))

    def _step(self, events: Sequence[Event], work: int | None = None) -> None:
        before = len(self.engine.graph.operators)
        super()._step(events, work)
        if not any(isinstance(event, Command) for event in events):
            self.merged += before - len(self.engine.graph.operators)

    def seconds(self) -> dict[str, Rows]:
        """What the second of each query has given, by the name of the first."""
        names = [query.name for query in self.world.queries if f"{query.name}_" in self.engine.queries_by_name]
        found = {}
        for name in names:
            given = self.books.delivered.get(f"{name}_", [])
            timeless = self.world.query(name).output.name in self.world.stamped
            found[name] = Counter((None if timeless or ts == MIN_TIME else ts, row[1], row[2]) for ts, row in given)
        return found


def simulate_sharing(world: World, styles: int = 1) -> tuple[int, int]:
    """Play a world with every query twice; how many operators were shared at the most, and how many were merged."""
    expected = Expected(world)
    left_alone = tuple(said for said in world.log if said.kind not in ("pause", "resume", "drop"))
    undisturbed = Expected(replace(world, log=left_alone, dropped=())).checkpoints[-1]
    touched = {said.query for said in world.log if said.query}
    most = merged = 0
    for style in (None, *range(styles)):
        for rough in (False, True) if style is not None else (False,):
            play = Sharing(world, style, rough=rough)
            outcome = play.run()
            if rough:
                compare_untouched(expected, outcome, style or 0)
            else:
                compare(expected, expected.checkpoints, outcome, f"shared, {style}")
            for name, rows in play.seconds().items():
                wanted = undisturbed[name]
                if wanted is not None and not touched.intersection(world.query(name).reads_queries) and rows != wanted:
                    raise Broken(f"shared, {style}: the second {name} gave {dict(rows - wanted)} too much, "
                                 f"withheld {dict(wanted - rows)}")  # fmt: skip
            most, merged = max(most, play.shared), merged + play.merged
    return most, merged
