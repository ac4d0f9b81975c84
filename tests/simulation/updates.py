"""Worlds of update streams: queues on edges, operators under update semantics, windows whole or not at all.

A world is a script of SQL, drawn at random, and a log of tuples. It is played plainly and wildly, as in simulator.py;
a rough play also pauses and resumes queries. Appending queries over the same streams say what was on time, and all
else follows from that:

    conservation   whatever an edge was given was processed, superseded, shed, skipped by a pause, or waits
    state          what a consumer holds per key after all work is done is what recomputing everything says
    windows        a row of a window is that of all its tuples; of ordered streams each window is delivered,
                   superseded, or waits
    pages          no slot is used twice, none is lost
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AlterStream,
    Answer,
    Arrived,
    Command,
    CommandBody,
    Deliver,
    DropQuery,
    Effects,
    Event,
    FeedClosed,
    Late,
    Measured,
    PauseQuery,
    Progressed,
    Punctuated,
    QueryFailed,
    QueueTurned,
    Rejected,
    ReplaceQuery,
    ResumeQuery,
    RowsFailed,
    SetBreak,
    SetQueue,
    SetReads,
    SetStrategy,
    SetWeight,
    WakeAt,
    WatchProgress,
)
from millrace.offline.script import plan_script
from millrace.operators.fork.fork import Fork
from millrace.operators.queues import load
from millrace.operators.queues.appending import SheddingQueue
from millrace.operators.queues.auto import AutoQueue
from millrace.operators.queues.inlet import QueueInlet
from millrace.operators.queues.update import UpdateQueue
from millrace.operators.queues.windows import WindowQueue
from millrace.operators.sink.sink import Sink
from millrace.protocol.admin.changes import QueueReply
from millrace.values.batch import Batch
from tests.operators.queues.auditing import audit_tuples, audit_windows
from tests.oracles import updates as oracle
from tests.simulation.auditors import Broken, grammar, quiet
from tests.simulation.odds import MANY, draw
from tests.simulation.simulator import ENDLESS
from tests.simulation.twins import Twin, described

Kind = Literal["latest", "shed", "filter", "groups", "top", "union", "pairs", "over", "windows"]
KEYED_STREAMS = ("s", "u")
KEYED = ", update_key = 'k'"
# The sides whose rows are there without a match too.
JOINS: dict[str, tuple[int, ...]] = {"JOIN": (), "LEFT JOIN": (0,), "RIGHT JOIN": (1,), "FULL JOIN": (0, 1)}
State = dict[tuple[Any, ...], tuple[Any, ...]]
# A tuple: time, key, value, and a number of its own.
Tuple = tuple[int, int | None, int, int]


@dataclass(frozen=True)
class Watched:
    """A query, what it is, and the columns of its key; `window` is size and slide, `of` the query that it reads,
    `outer` the outer sides of a join."""

    name: str
    kind: Kind
    sql: str
    key: tuple[str, ...] = ()
    least: int = 0
    window: tuple[int, int] = (0, 0)
    of: str = ""
    outer: tuple[int, ...] = ()


@dataclass(frozen=True)
class Line:
    """One line of the log: tuples or a punctuation for a stream, a pause or an end of it, or all work is done."""

    kind: Literal["tuples", "punctuation", "pause", "resume", "check", "end"]
    at: int
    stream: str = ""
    tuples: tuple[Tuple, ...] = ()
    value: int = 0


@dataclass
class UpdateWorld:
    seed: int
    disorder: dict[str, int]
    queries: list[Watched]
    log: list[Line] = field(default_factory=list)

    @property
    def sql(self) -> str:
        streams = [
            f"CREATE STREAM {name} (ts TIMESTAMP, k BIGINT, v BIGINT NOT NULL, n BIGINT NOT NULL) WITH "
            f"(time = 'ts', ets = 'none', disorder = '{disorder} us'{KEYED if name in KEYED_STREAMS else ''});"
            f"CREATE QUERY all_{name} AS SELECT ts, k, v, n FROM {name};"
            for name, disorder in self.disorder.items()
        ]
        return "\n".join([*streams, *(f"CREATE QUERY {query.name} AS {query.sql};" for query in self.queries)])


# -- worlds ------------------------------------------------------------------------------------------------------------


def updates_of(seed: int) -> UpdateWorld:
    rng = random.Random(f"updates {seed}")
    disorder = {name: draw(rng, "updates.disorder") for name in ("s", "u", "p")}
    world = UpdateWorld(seed, disorder, _queries(rng))
    world.log = _log(rng, disorder)
    return world


def _queries(rng: random.Random) -> list[Watched]:
    def edge() -> str:
        return draw(rng, "updates.edge")

    made: list[Watched] = []
    for number in range(draw(rng, "updates.queries")):
        name, kind = f"q{number}", draw(rng, "updates.kind")
        least = draw(rng, "updates.least")
        match kind:
            case "latest":
                made.append(Watched(name, "latest", f"SELECT k, v, n FROM s {edge()}", ("k",)))
            case "shed":
                made.append(Watched(name, "shed", f"SELECT n FROM p SHED RANDOM {draw(rng, 'updates.shed')}"))
            case "filter":
                made.append(
                    Watched(name, "filter", f"SELECT k, v, n FROM s {edge()} WHERE v >= {least}", ("k",), least)
                )
            case "groups":
                sql = f"SELECT v % 3 AS g, count(*) AS c, sum(v) AS t FROM s {edge()} GROUP BY v % 3"
                made.append(Watched(name, "groups", sql, ("g",)))
            case "top":
                most = draw(rng, "updates.top")
                sql = (
                    "SELECT k, v, n, g, place FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY g ORDER BY v DESC, n) AS "
                    f"place FROM (SELECT k, v, n, v % 2 AS g FROM s {edge()})) WHERE place <= {most}"
                )
                made.append(Watched(name, "top", sql, ("g", "place") if most > 1 else ("g",), most))
            case "union":
                sql = f"SELECT k, v, n FROM s {edge()} UNION ALL SELECT k, v, n FROM u {edge()}"
                made.append(Watched(name, "union", sql, ("k",)))
            case "pairs":
                join, test = draw(rng, "updates.join"), draw(rng, "updates.pairs are tested")
                outer = JOINS[join]
                columns = ", ".join(f"{'su'[at]}.k AS k{at}" for at in (0, 1))
                sql = (
                    f"SELECT {columns}, s.v, s.n, u.v AS w, u.n AS m FROM s {edge()} {join} u {edge()} ON s.k = u.k"
                    f"{' AND s.v >= u.v' if test else ''}"
                )
                key = tuple(f"k{at}" for at in outer or (0,))
                made.append(Watched(name, "pairs", sql, key, int(test), outer=outer))
            case "over":
                below = next((one for one in made if one.kind in ("filter", "union", "latest")), None)
                if below is not None:
                    sql = f"SELECT k, v, n FROM {below.name} {edge()}"
                    made.append(Watched(name, "over", sql, ("k",), below.least, of=below.name))
            case "windows":
                slide = draw(rng, "updates.slide")
                size = draw(rng, "updates.size")
                sql = (
                    f"SELECT k, count(*) AS c, sum(n) AS t, window_start FROM HOP(s, ts, INTERVAL '{slide} us', "
                    f"INTERVAL '{size} us') LATEST {draw(rng, 'updates.when')} "
                    f"{draw(rng, 'updates.using')} GROUP BY k, window_start"
                )
                made.append(Watched(name, "windows", sql, ("k",), window=(size, slide)))
    return made


def _log(rng: random.Random, disorder: dict[str, int]) -> list[Line]:
    """Times are multiples of ten, those of u five more, so that no window ends between equal times and no two rows of
    a union are of one time."""
    keys = [*range(draw(rng, "updates.keys")), None]
    now = dict.fromkeys(disorder, 1000)
    log: list[Line] = []
    at, number = 1000, 0
    paused = False
    for _ in range(draw(rng, "updates.lines")):
        at += draw(rng, "updates.time passes")
        stream = draw(rng, "updates.stream")
        match draw(rng, "updates.line"):
            case "tuples":
                tuples: list[Tuple] = []
                for _ in range(draw(rng, "updates.rows")):
                    leap = 250 if draw(rng, "updates.may leap") else 0
                    step = draw(rng, "updates.step")
                    now[stream] += leap if step == "leap" else step
                    back = 10 * rng.randint(0, disorder[stream] // 10) if draw(rng, "updates.out of order") else 0
                    if draw(rng, "updates.late"):
                        back = 1000
                    ts = now[stream] - back + (5 if stream == "u" else 0)
                    tuples.append((ts, rng.choice(keys), draw(rng, "updates.value"), number))
                    number += 1
                log.append(Line("tuples", at, stream, tuple(tuples)))
            case "check":
                log.append(Line("check", at))
            case "punctuation":
                log.append(Line("punctuation", at, stream, value=now[stream] - draw(rng, "updates.punctuation back")))
            case "pause":
                log.append(Line("resume" if paused else "pause", at))
                paused = not paused
    log.append(Line("resume", at))
    for stream in disorder:  # a last update of every key, for those who were away
        last = now[stream] + 2000 + (5 if stream == "u" else 0)
        log.append(Line("tuples", at, stream, tuple((last, key, 5, number + place) for place, key in enumerate(keys))))
        number += len(keys)
    log += [Line("check", at), *(Line("end", at, stream) for stream in disorder), Line("check", at)]
    return log


# -- playing -----------------------------------------------------------------------------------------------------------


class Unread:
    """A stopwatch: that there is one is all that the engine may know of it. Its readings are drawn."""

    def start(self) -> None:
        pass

    def stop(self, operator: str, tuples: int) -> None:
        pass


@contextmanager
def short_spans() -> Iterator[None]:
    """While this holds, a queue that chooses judges the load after a microsecond and turns easily: worlds are short."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SPAN_US", 1), ("SERVED", 1), ("OVERLOAD", 0.3), ("ROOM", 3.0), ("CALM", 1)):
            patch.setattr(load, name, value)
        yield


class Consumer:
    """What somebody holds who takes a query's rows."""

    def __init__(self, query: Watched | None) -> None:
        self.query = query
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self.state: State = {}
        self.times: dict[tuple[Any, ...], int] = {}
        # An edge on the way to it has kept everything for a while, or may: older rows may come after newer ones.
        self.appends = query is not None and "USING auto" in query.sql
        self.progress = -(2**63)
        self.away = False  # it has been paused: what it was not told in between it cannot know

    def take(self, batch: Batch) -> None:
        names = batch.schema.names
        if int(batch.ts.min()) < self.progress:
            raise Broken(f"a row at {int(batch.ts.min())} after progress {self.progress}")
        for ts, values in zip(batch.ts.tolist(), batch.rows(), strict=True):
            row = dict(zip(names, values, strict=True))
            self.rows.append((ts, row))
            if self.query is not None and self.query.key:
                self._update(self.query, ts, row)

    def progressed(self, value_us: int) -> None:
        if value_us < self.progress:
            raise Broken(f"progress went back from {self.progress} to {value_us}")
        self.progress = value_us

    def _update(self, query: Watched, ts: int, row: dict[str, Any]) -> None:
        key = tuple(row[name] for name in query.key)
        if ts < self.times.get(key, ts):
            if not self.appends:
                raise Broken(f"{query.name}: {key} went back from {self.times[key]} to {ts}")
            return
        self.times[key] = ts
        if row.pop("$gone", False):
            if key not in self.state and not (self.appends or self.away or query.kind == "over"):
                raise Broken(f"{query.name}: {key} is said to have gone, and was not there")
            self.state.pop(key, None)
        else:
            self.state[key] = tuple(value for name, value in row.items() if name not in query.key)


class UpdatePlay:
    """One engine playing one world. `style` None is plain, a number seeds a wild one, which may be rough."""

    def __init__(self, world: UpdateWorld, style: int | None, *, rough: bool = False) -> None:
        self.world, self.rough, self.wild = world, rough, style is not None
        self.rng = random.Random(f"style {world.seed} {style} {rough}")
        # Time passes with every step, and few tuples are served in one.
        self.overloaded = self.wild and draw(self.rng, "updates.overloaded (wild)")
        self.watch = Unread() if draw(self.rng, "updates.stopwatch") else None
        self.engine = Engine(stopwatch=self.watch, trace=True)
        self.script = plan_script(world.sql).commands
        self.consumers = {query.name: Consumer(query) for query in world.queries}
        for query in world.queries:
            if query.of:
                self.consumers[query.name].appends |= self.consumers[query.of].appends
        self.appended = {name: Consumer(None) for name in world.disorder}
        self.late: Counter[str] = Counter()
        self.given: Counter[str] = Counter()
        self.steps = 0
        self.exchanged: Counter[str] = Counter()
        self.turned: Counter[str] = Counter()
        # By operator, what its arcs had been given before it began.
        self._starts: dict[str, int] = {}
        self.superseded = self.shed = 0
        self._effects: list[bytes] = []
        self.twin = Twin(f"{world.seed} {style} {rough}", stopwatch=self.watch)
        self._readings: list[Event] = []
        self._paused: str | None = None
        self.ending = False  # the last update of every key is on its way: who begins now would never get it
        self._more = False
        self._commands = 0
        self._now = 1000

    def run(self) -> list[bytes]:
        with grammar(), short_spans():
            for body in self.script:
                self._command(body)
            for query in self.world.queries:
                if draw(self.rng, "updates.watched progress"):
                    self._command(WatchProgress(query.name))
            for line in self.world.log:
                self._line(line)
            self._losses()
        return self._effects

    def _line(self, line: Line) -> None:
        if line.at > self._now:
            if not self.wild:
                self._drain()
            self._now = line.at
        self.ending |= line.at == self.world.log[-1].at
        match line.kind:
            case "tuples":
                for part in self._cut(line.tuples):
                    self.given[line.stream] += len(part)
                    self._step([Arrived(line.stream, "main", self._batch(line.stream, part))])
                    self._meddle()
            case "punctuation":
                self._step([Punctuated(line.stream, "main", line.value)])
            case "end":
                self._step([FeedClosed(line.stream, "main", ended=True)])
            case "pause" | "resume" if self.rough:
                self._pause(line.kind == "pause")
            case "check":
                self._drain()
                quiet(self.engine)
                self._compare(ended=line is self.world.log[-1])
        if not self.wild:
            self._drain()

    def _cut(self, tuples: Sequence[Tuple]) -> list[Sequence[Tuple]]:
        parts: list[Sequence[Tuple]] = []
        while self.wild and len(tuples) > 1 and draw(self.rng, "play.cut"):
            cut = self.rng.randint(1, len(tuples) - 1)
            parts.append(tuples[:cut])
            tuples = tuples[cut:]
        return [*parts, tuples]

    def _batch(self, stream: str, tuples: Sequence[Tuple]) -> Batch:
        schema = self.engine.streams_by_name[stream].definition.schema
        return Batch.from_rows(schema, tuples, [ts for ts, *_ in tuples])

    def _pause(self, wanted: bool) -> None:
        if wanted and self._paused is None:
            self._paused = self.rng.choice(self.world.queries).name if self.world.queries else None
            if self._paused is not None:
                self._command(PauseQuery(self._paused))
                for query in self.world.queries:
                    if self._paused in (query.name, query.of):
                        self.consumers[query.name].away = True
        elif not wanted and self._paused is not None:
            self._command(ResumeQuery(self._paused))
            self._paused = None

    # -- stepping ----------------------------------------------------------------------------------------------------

    def _command(self, body: CommandBody) -> Any:
        self._commands += 1
        return self._step([Command(self._commands, body)], work=0)

    def _drain(self) -> None:
        for _ in range(ENDLESS):
            if not (self._more or self._readings):
                return
            self._step([])
        raise Broken("the engine runs in circles: it still has something to do, and nothing happens")

    def _step(self, events: Sequence[Event], work: int | None = None) -> Any:
        budget = executions = MANY
        if work is not None:
            executions = work
        elif self.overloaded and events:
            budget = draw(self.rng, "updates.budget under overload")
            self._now += 3
        elif self.wild:
            budget, executions = draw(self.rng, "play.budget"), draw(self.rng, "play.executions")
        told = [*self._readings, *events]
        if self.wild:
            self.engine = self.twin.parted(self.engine, events)
        effects = self.engine.step(self._now, told, budget=budget, executions=executions)
        self.twin.obeyed(events, effects)
        self.twin.check(self.engine, self._now, told, effects, budget=budget, executions=executions)
        self._effects.append(described(effects))
        self._readings = [
            Measured(one.operator, one.took, draw(self.rng, "updates.measured us"))
            for one in effects.executions
            if self.watch is not None and one.took
        ]
        self.steps += 1
        self._more = effects.more
        answer = self._obey(effects)
        if work != 0:
            self._audit()
        return answer

    def _obey(self, effects: Effects) -> Any:
        answer = None
        for order in effects.orders:
            match order:
                case Deliver(query, _, batch):
                    self._consumer(query).take(batch)
                case Progressed(query, value_us):
                    self._consumer(query).progressed(value_us)
                case Late(stream, batch=batch):
                    self.late[stream] += len(batch)
                case Answer(value=value, refused=refused):
                    answer = value if refused is None else refused
                case QueryFailed() | Rejected() | RowsFailed():
                    raise Broken(f"{order}")
                case QueueTurned(numbers=numbers):
                    self.turned[numbers["mode"]] += 1
                case WakeAt():
                    pass
        return answer

    def _consumer(self, query: str) -> Consumer:
        return self.consumers.get(query) or self.appended[query.removeprefix("all_")]

    # -- chance ------------------------------------------------------------------------------------------------------

    def _meddle(self) -> None:
        if not self.wild:
            return
        rng = self.rng
        for _ in range(0 if self.overloaded else draw(rng, "play.steps between lines")):
            self._step([])
        operators = [one.name for one in self.engine.graph.operators.values() if not isinstance(one, Sink | Fork)]
        if draw(rng, "updates.set strategy"):
            self._command(SetStrategy(rng.choice(self.engine.graph.components).name, draw(rng, "play.strategy")))
        if draw(rng, "updates.set break"):
            operator = rng.choice(operators)
            self._command(SetBreak(operator, not self.engine.graph.has_break(operator)))
        if draw(rng, "updates.alter stream"):
            change = (("propagation", draw(rng, "play.propagation")),)
            self._command(AlterStream(rng.choice(list(self.world.disorder)), change))
        if draw(rng, "updates.set weight"):
            self._command(SetWeight(rng.choice(self.engine.graph.components).name, draw(rng, "play.weight")))
        if draw(rng, "updates.set queue"):
            self._exchange()
        if draw(rng, "updates.state reads"):
            self._state_reads()
        if draw(rng, "updates.replace by the same") and self.world.queries:
            name = rng.choice(self.world.queries).name
            if self._paused is None:
                self._command(ReplaceQuery(self.engine.queries_by_name[name].plan))
        if self.rough and not self.ending and draw(rng, "updates.restart a query (rough)"):
            self._begin_anew()
        if draw(rng, "updates.save"):
            self._save_and_restore()

    def _state_reads(self) -> None:
        """A reader says how often it looks, or leaves; what no queue could use is refused."""
        rng = self.rng
        keyed = [query for query in self.world.queries if query.key]
        if not keyed:
            return
        query = rng.choice(keyed)
        listed = None if draw(rng, "updates.reads all keys") else ((1,) * len(query.key), (0,) * len(query.key))
        value = self._command(SetReads(query.name, draw(rng, "updates.reader"), draw(rng, "updates.refresh"), listed))
        self.exchanged["reads"] += isinstance(value, dict) and value["readers"] > 0

    def _exchange(self) -> None:
        """Another queue for an edge; what reads an edge that appends may get older rows after newer ones."""
        queries = [query for query in self.world.queries if query.name != self._paused]
        if not queries:
            return
        query = self.rng.choice(queries)
        operators = self.engine.queries_by_name[query.name].operators
        operator = self.rng.choice(operators)
        kind = draw(self.rng, "updates.queue")
        before = operator.inputs[0]
        value = self._command(SetQueue(operator.name, kind))
        if isinstance(value, QueueReply):
            self.exchanged[kind] += 1
            if kind in ("append", "auto"):
                for other in self.world.queries:
                    if query.name in (other.name, other.of):
                        self.consumers[other.name].appends = True
        elif operator.inputs[0] is not before:
            raise Broken(f"a refused exchange has exchanged: {value}")

    def _begin_anew(self) -> None:
        """A query is dropped and comes again, or gets other queues by a replacement: it begins at this time."""
        queries = [query for query in self.world.queries if query.name != self._paused]
        queries = [query for query in queries if not any(other.of == query.name for other in self.world.queries)]
        if not queries:
            return
        query = self.rng.choice(queries)
        running = self.engine.queries_by_name[query.name]
        before = list(running.operators)
        plan = next(body.plan for body in self.script if isinstance(body, AddQuery) and body.plan.name == query.name)
        if draw(self.rng, "updates.drop and add"):
            self._command(DropQuery(query.name))
            self._command(AddQuery(plan))
            appends = self.consumers[query.name].appends
            before, self.consumers[query.name] = [], Consumer(query)
            self.consumers[query.name].appends = appends
        else:
            kind = draw(self.rng, "updates.replaced queue")
            nodes = [
                node.with_edge(at, replace(node.edge(at), kind=kind))
                if at < len(node.edges) and node.edge(at).updates
                else node
                for node in plan.nodes
                for at in [0]
            ]
            self._command(ReplaceQuery(replace(plan, nodes=tuple(nodes))))
        consumer = self.consumers[query.name]
        consumer.away = True
        consumer.times.clear()  # what begins anew knows nothing of the rows before it
        for operator in self.engine.queries_by_name[query.name].operators:
            if operator not in before:
                self._starts[operator.name] = sum(reader.arc.end - reader.waiting for reader in operator.inputs)
        self._audit()

    def _save_and_restore(self) -> None:
        self.engine = self.twin.part(self.engine, draw(self.rng, "play.steps of a twin"))

    # -- laws --------------------------------------------------------------------------------------------------------

    def _readers(self) -> list[tuple[str, Any, QueueInlet]]:
        operators = self.engine.graph.operators.values()
        return [(o.name, o, reader) for o in operators for reader in o.inputs if isinstance(reader, QueueInlet)]

    def _audit(self) -> None:
        for _, _, reader in self._readers():
            queue = reader.queue
            match queue:
                case UpdateQueue():
                    audit_tuples(queue)
                case WindowQueue():
                    audit_windows(queue)
                case AutoQueue() if isinstance(queue._queue, UpdateQueue):
                    audit_tuples(queue._queue)
                case SheddingQueue():
                    assert queue.waiting == queue.paging.in_use
        for operator in dict.fromkeys(operator for _, operator, _ in self._readers()):
            self._conserves(operator)
        self._gauge()

    def _conserves(self, operator: Any) -> None:
        """Given = processed + superseded + shed + skipped + waiting, over all its inputs."""
        readers = [reader for reader in operator.inputs if isinstance(reader, QueueInlet)]
        if any(isinstance(reader.queue, WindowQueue) or reader.buffer is not reader.arc for reader in readers):
            return  # windows are counted otherwise; in a pause, what passes is counted when it ends
        given = sum(reader.arc.end for reader in operator.inputs) - self._starts.get(operator.name, 0)
        lost = [(reader.superseded, reader.shed, reader.queue.waiting) for reader in readers]
        waiting = sum(reader.waiting for reader in operator.inputs if reader not in readers)
        skipped = sum(reader.skipped for reader in operator.inputs)
        taken = operator.counts.input_tuples
        if given != taken + skipped + waiting + sum(map(sum, lost)):
            raise Broken(
                f"{operator.name}: {given} tuples given, {taken} processed, {skipped} skipped, {waiting} waiting on "
                f"plain edges; superseded, shed and waiting on others: {lost}"
            )

    def _gauge(self) -> None:
        engine = self.engine
        buffers = {id(o.output): o.output for o in engine.graph.operators.values() if not isinstance(o, Sink)}
        queued = sum(len(batch) for buffer in buffers.values() for batch in buffer.segments)
        queued += sum(reader.queue.waiting for _, _, reader in self._readers())
        queued += sum(getattr(o, "held_tuples", lambda: 0)() for o in engine.graph.operators.values())
        if queued != engine.gauge.tuples:
            raise Broken(f"the gauge says {engine.gauge.tuples} queued tuples, counting says {queued}")

    def _losses(self) -> None:
        for _, _, reader in self._readers():
            self.superseded += reader.superseded
            self.shed += reader.shed

    # -- what recomputing says ---------------------------------------------------------------------------------------

    def _taken(self, stream: str) -> list[oracle.Row]:
        rows = [row for _, row in self.appended[stream].rows]
        return [{**row, "place": place, "gone": False} for place, row in enumerate(rows)]

    def _compare(self, *, ended: bool) -> None:
        for stream in self.world.disorder:
            rows = self._taken(stream)
            if len(rows) + self.late[stream] != self.given[stream]:
                raise Broken(f"{stream}: {self.given[stream]} given, {len(rows)} taken, {self.late[stream]} late")
        for query in self.world.queries:
            consumer = self.consumers[query.name]
            if query.kind == "shed":
                self._sample(query, consumer)
            elif query.kind == "windows":
                self._windows(query, consumer, ended=ended)
            elif self._paused not in (query.name, query.of):
                self._states(query, consumer, ended=ended)

    def _states(self, query: Watched, consumer: Consumer, *, ended: bool) -> None:
        if consumer.away and (not ended or query.kind not in ("latest", "union")):
            return  # what happened while it was away, it does not know; a last update of every key it has got
        below = next((one for one in self.world.queries if one.name == query.of), query)
        wanted = self._wanted(below)
        if consumer.state != wanted:
            more = {key: row for key, row in consumer.state.items() if wanted.get(key) != row}
            less = {key: row for key, row in wanted.items() if consumer.state.get(key) != row}
            raise Broken(f"{query.name} ({query.sql}): holds {more}, should hold {less}")

    def _wanted(self, query: Watched) -> State:
        rows, key, columns = self._taken("s"), ["k"], ["v", "n"]
        match query.kind:
            case "latest":
                return oracle.filtered(rows, key, columns, lambda row: True)
            case "filter":
                return oracle.filtered(rows, key, columns, lambda row: bool(row["v"] >= query.least))
            case "union":
                both = [*rows, *self._taken("u")]
                return oracle.filtered(sorted(both, key=lambda row: row["ts"]), key, columns, lambda row: True)
            case "pairs":
                return self._pairs(query, rows)
            case "groups":
                held = [{**row, "g": row["v"] % 3} for row in oracle.current(rows, key)]
                calls: list[Callable[[Sequence[oracle.Row]], Any]] = [len, lambda some: sum(row["v"] for row in some)]
                return {at: compute() for at, compute in oracle.grouped(held, ["g"], calls).items()}
            case "top":
                held = [{**row, "g": row["v"] % 2} for row in oracle.current(rows, key)]
                order = [("v", True, False), ("n", False, False)]
                found = oracle.top(held, ["g"], order, ["k", "v", "n"], query.least)
                return found if query.least > 1 else {at[:1]: (*row, 1) for at, row in found.items()}
        raise AssertionError(query.kind)

    def _pairs(self, query: Watched, rows: Sequence[oracle.Row]) -> State:
        def passes(s: oracle.Row, u: oracle.Row) -> bool:
            return not query.least or s["v"] >= u["v"]

        found = oracle.paired(rows, self._taken("u"), [("k", "k")], query.outer, passes)

        def value(row: oracle.Row | None, names: Sequence[str]) -> tuple[Any, ...]:
            return tuple(None if row is None else row[name] for name in names)

        rest = [side for side in (0, 1) if f"k{side}" not in query.key]
        return {
            key: tuple(one for side, names in [*((side, "k") for side in rest), (0, "vn"), (1, "vn")]
                       for one in value(pair[side], names))
            for key, pair in found.items()
        }  # fmt: skip

    def _sample(self, query: Watched, consumer: Consumer) -> None:
        """A random choice, in order of arrival."""
        numbers = [row["n"] for row in self._taken("p")]
        got = [row["n"] for _, row in consumer.rows]
        places = [numbers.index(number) for number in got]
        if places != sorted(set(places)):
            raise Broken(f"{query.name}: {got} is no choice from {numbers}")

    def _windows(self, query: Watched, consumer: Consumer, *, ended: bool) -> None:
        size, slide = query.window
        full: dict[tuple[int | None, int], list[int]] = {}
        for row in self._taken("s"):
            first = row["ts"] - (row["ts"] % slide)
            for start in range(first, row["ts"] - size, -slide):
                full.setdefault((row["k"], start), []).append(row["n"])
        given: Counter[tuple[int | None, int]] = Counter()
        newest: dict[int | None, int] = {}
        for _, row in consumer.rows:
            at = row["k"], row["window_start"]
            given[at] += 1
            newest[row["k"]] = row["window_start"]
            whole = full.get(at, [])
            if not consumer.away and (row["c"], row["t"]) != (len(whole), sum(whole)):
                raise Broken(f"{query.name} ({query.sql}): {row} is not whole, it has {whole}")
        if given and max(given.values()) > 1:
            raise Broken(f"{query.name}: {given.most_common(1)} was given twice")
        if ended and not consumer.away:
            self._all_windows(query, set(full), set(given), newest)

    def _all_windows(
        self, query: Watched, full: set[tuple[int | None, int]], given: set[Any], newest: dict[int | None, int]
    ) -> None:
        """In the end nothing waits: the last window of each key is there, and the others are there or superseded."""
        last: dict[int | None, int] = {}
        for key, start in full:
            last[key] = max(start, last.get(key, start))
        if newest != last:
            raise Broken(f"{query.name} ({query.sql}): the newest windows are {newest}, expected {last}")
        (reader,) = (reader for name, _, reader in self._readers() if name.startswith(f"{query.name}."))
        exact = "EAGER" not in query.sql or not self.world.disorder["s"]
        if exact and len(full) != len(given) + reader.superseded:
            raise Broken(
                f"{query.name} ({query.sql}): of {len(full)} windows {len(given)} were given and "
                f"{reader.superseded} superseded"
            )


# -- one seed ----------------------------------------------------------------------------------------------------------


def simulate_updates(seed: int, styles: int = 3) -> int:
    """Play a world plainly, wildly and roughly; how many steps it took. Raises Broken, or what the engine raised."""
    world, steps = updates_of(seed), 0
    for style, rough in [(None, False), *((style, rough) for style in range(styles) for rough in (False, True))]:
        played = UpdatePlay(world, style, rough=rough)
        effects = played.run()
        steps += played.steps
        if style == 0 and UpdatePlay(world, style, rough=rough).run() != effects:
            raise Broken("the same seed gave other effects")
    return steps
