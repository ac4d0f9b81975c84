"""Every probability with which the simulator draws, in one table: `python -m tests.simulation --odds` prints it.

A name is `<worlds>.<what>`. To make something more frequent, change its row; to draw something new, add a row. What is
drawn evenly from what a world holds (a stream, a query, an operator, a place to cut) has no row. Older seeds play as
they did only while rows keep their options, their order and their kind of draw.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.operators.queues.edge import QueueKind

MANY: Final = 1 << 62
DAY: Final = 86_400_000_000
# A client's clock is off by so much at the most.
OFFSET: Final = 6

STRATEGIES: Final = (
    *("dfs", "bfs", "rr", "dfs(1)", "bfs(1)", "rr(1)", "dfs(2)", "bfs(3)", "rr(2)", "dfs(7)"),
    *("chain", "chain(1)", "chain(3)"),
)
QUEUES: Final[tuple[QueueKind, ...]] = ("fifo", "inplace", "linecutting")
USING: Final = tuple(f"USING {kind}" for kind in QUEUES)


@dataclass(frozen=True)
class Chance:
    """Yes with this probability."""

    probability: float

    def draw(self, rng: random.Random) -> bool:
        return rng.random() < self.probability

    def shares(self) -> Mapping[Any, float]:
        return {"yes": self.probability}


class Equal:
    """One of the options; an option that stands there twice is twice as likely."""

    def __init__(self, *options: Any) -> None:
        self.options: Sequence[Any] = options

    def draw(self, rng: random.Random, without: Sequence[Any] = ()) -> Any:
        return rng.choice([option for option in self.options if option not in without] if without else self.options)

    def shares(self) -> Mapping[Any, float]:
        return {option: count / len(self.options) for option, count in Counter(self.options).items()}


@dataclass(frozen=True)
class Weighted:
    """One of the options, each with its weight."""

    weights: Mapping[Any, int]

    def draw(self, rng: random.Random) -> Any:
        return rng.choices(list(self.weights), list(self.weights.values()))[0]

    def shares(self) -> Mapping[Any, float]:
        total = sum(self.weights.values())
        return {option: weight / total for option, weight in self.weights.items()}


@dataclass(frozen=True)
class Between:
    """A whole number, both ends included."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)

    def shares(self) -> Mapping[Any, float]:
        return {f"{self.low} to {self.high}": 1.0}


Draw = Chance | Equal | Weighted | Between

PROPAGATION: Final = Equal("arcs", "punctuation")
PROGRESS: Final = Equal("tuples", "tuples", "tuples", "punctuation")
SIZE: Final = Equal(1, 3, 10, 12, 40)
CLAUSES: Final = {
    "filter": 2,
    "project": 2,
    "union": 2,
    "deduplicate": 2,
    "windows": 3,
    "retimed": 3,
    "joint": 3,
    "rows of windows": 2,
    "final top": 2,
    "join": 2,
    "followed by": 3,
    "latest join": 1,
}

TABLE: Final[Mapping[str, Draw]] = {
    # -- worlds that are new in each run of the tests
    "seeds.fresh": Between(1_000, 999_999_999),
    # -- streams of graphs, joins and windows
    "streams.count": Between(1, 3),
    "streams.timestamps": Weighted({"external": 6, "internal": 3, "latent": 2}),
    "streams.ets": Equal("on-demand", "on-demand", "none"),
    "streams.propagation": PROPAGATION,
    "streams.disorder": Equal(0, 0, 3, 12),
    "streams.progress": PROGRESS,
    "streams.ahead": Equal(None, None, 6),
    # -- queries of graphs, joins and windows
    "queries.count": Between(1, 4),
    "queries.nodes": Between(1, 5),
    "queries.over queries": Chance(0.5),
    "queries.late rows": Chance(0.25),
    "queries.inputs": Weighted({1: 6, 2: 4, 3: 2, 4: 1}),
    "queries.unread input": Chance(0.6),
    "queries.constant": Between(1, 12),
    "graphs.kind": Weighted(
        {"below": 4, "divisor": 2, "plus": 3, "quotient": 1, "sort": 3, "hop": 5, "session": 3, "total": 5}
    ),
    "graphs.several inputs": Equal("union", "merge", "merge"),
    "graphs.size": SIZE,
    "graphs.in order": Chance(0.3),
    "joins.kind": Weighted({"below": 4, "plus": 3, "divisor": 1, "sort": 1, "hop": 2}),
    "joins.several inputs": Equal("union", "merge", *["join"] * 5, *["recent", "chronicle", "absent"] * 2),
    "joins.size": SIZE,
    "joins.in order": Chance(0.3),
    "windows.kind": Weighted({"below": 2, "plus": 1, "hop": 12}),
    "windows.several inputs": Equal("union"),
    "windows.size": Equal(40, 100, 150),
    "windows.in order": Chance(0.05),
    "aggregates.slide": Equal("size", "size", "third", "half", "gap"),
    "aggregates.shift": Between(-20, 20),
    "aggregates.offset": Equal("none", "none", "shift"),
    "aggregates.grouped": Chance(0.7),
    "aggregates.flush": Equal("none", "none", "slow", "lazy"),
    "aggregates.delay": Equal(0, 5, 30),
    "aggregates.partial": Equal("skip", "skip", "emit"),
    "aggregates.keeps": Equal("groups", "bounded", "buffered", "adaptive"),
    "aggregates.slots": Equal(1, 2, 7),
    "joins.latent or internal stream": Chance(0.4),
    "joins.pairing of one input": Chance(0.4),
    "joins.inputs": Equal(2, 2, "most"),
    "joins.key": Equal("v", "v", "remainder", "remainder", None),
    "joins.rising": Chance(0.25),
    "joins.within": Equal(None, 0, 5, 20),
    "joins.absent within": Equal(0, 2, 5, 20),
    "joins.order": Equal("arrival", "arrival", "arrival", "sync", "filter", "adaptive"),
    "joins.outer": Weighted({(0,): 1, (1,): 1, (0, 1): 1, (): 2}),
    "joins.band low": Between(-6, 2),
    "joins.band width": Between(0, 6),
    "joins.open band": Chance(0.15),
    "joins.open end": Equal("above", "below"),
    # -- the log of graphs, joins and windows
    "log.added later": Chance(0.3),
    "log.dropped": Chance(0.15),
    "log.paused": Chance(0.3),
    "log.lines": Between(10, 50),
    "log.time passes": Equal(0, 0, 1, 1, 2, 5, 30),
    "log.feed": Equal("main", "main", "main", "other", "third"),
    "log.line": Weighted({"tuples": 12, "punctuation": 3, "open": 1, "close": 1, "tick": 1, "check": 1}),
    "log.punctuation back": Between(-4, 15),
    "log.unpromised disorder": Chance(0.2),
    "log.rows back": Between(0, 3),
    "log.rows": Equal(1, 1, 2, 3, 8, 20),
    "log.step": Equal(0, 0, 1, 2),
    "log.value": Between(0, 12),
    "log.null value": Chance(0.1),
    "log.time though internal": Chance(0.5),
    # -- plays: cuts, budgets, commands
    "play.cut": Chance(0.4),
    "play.strategy of a new query": Equal(None, *STRATEGIES),
    "play.watched progress": Chance(0.5),
    "play.missed timer": Chance(0.3),
    "play.budget": Equal(1, 2, 5, 40, MANY),
    "play.executions": Equal(1, 1, 2, 6, MANY),
    "play.steps between lines": Equal(0, 0, 1, 2, 5),
    "play.strategy": Equal(*STRATEGIES),
    "play.propagation": PROPAGATION,
    "play.weight": Between(1, 4),
    "play.measured us": Equal(100.0, 3_000.0, 6_000.0),
    "play.set strategy": Chance(0.15),
    "play.set an operator's strategy": Chance(0.1),
    "play.set break": Chance(0.15),
    "play.alter stream": Chance(0.1),
    "play.set weight": Chance(0.05),
    "play.measure": Chance(0.2),
    "play.insert operator": Chance(0.15),
    "play.remove operator": Chance(0.15),
    "play.replace by the same": Chance(0.1),
    "play.replace by a longer plan": Chance(0.4),
    "play.replace by another (rough)": Chance(0.15),
    "play.refused change": Chance(0.05),
    "play.rename and back": Chance(0.05),
    "play.save under the other name": Chance(0.3),
    "play.save": Chance(0.1),
    "play.steps of a twin": Between(1, 12),
    "play.withhold credit": Chance(0.05),
    "play.withhold strictly": Chance(0.5),
    "play.unshare": Chance(0.05),
    "play.set order": Chance(0.3),
    "play.order": Equal(None, "arrival", "sync", "filter", "adaptive"),
    "play.alpha": Equal(None, 0.0, 0.2, 1.0),
    "play.measure a join": Chance(0.3),
    "play.tuples of a join": Between(1, 9),
    "play.us of a join": Equal(0.1, 5.0, 90.0),
    "sharing.one change": Chance(0.5),
    "sharing.watched progress": Chance(0.3),
    # -- restored engines in parallel with saved ones
    "twins.save after a command": Chance(0.04),
    "twins.steps": Equal(1, 2, 5, 20),
    # -- worlds of clocks
    "clocks.ets": Equal("on-demand", "on-demand", "on-demand", "periodic", "none"),
    "clocks.ets interval": Equal(7, 25, 60),
    "clocks.ets retry": Equal(10, 40),
    "clocks.grace": Equal(0, 0, 30),
    "clocks.propagation": PROPAGATION,
    "clocks.timestamps": Weighted({"external": 6, "internal": 3, "latent": 1}),
    "clocks.disorder": Equal(0, 0, 5),
    "clocks.max skew": Equal(None, "disorder", 20),
    "clocks.progress": PROGRESS,
    "clocks.ahead": Equal(None, 2 * OFFSET, OFFSET // 2),
    "clocks.feeds": Equal("x", "x", "xy", "xyz"),
    "clocks.transit": Equal(0, 8, 20),
    "clocks.can answer": Chance(0.7),
    "clocks.temper": Weighted({"prompt": 5, "slow": 2, "low": 2, "deaf": 1}),
    "clocks.offset": Between(-OFFSET, OFFSET),
    "clocks.opens": Equal(0, 0, 0, 60),
    "clocks.accidents": Between(0, 6),
    "clocks.accident": Equal("hold", "hold", "lag", "lag", "jump", "alter", "alter"),
    "clocks.first rows within": Equal(0, 30),
    "clocks.leaves": Chance(0.3),
    "clocks.leaves after": Between(0, 200),
    "clocks.rows": Equal(1, 1, 1, 2, 5),
    "clocks.value": Between(0, 12),
    "clocks.null value": Chance(0.1),
    "clocks.punctuation": Chance(0.15),
    "clocks.next rows within": Equal(3, 20, 150),
    "clocks.answer survives": Chance(0.3),
    "clocks.reply after": Between(0, 5),
    "clocks.slow reply after": Between(0, 120),
    "clocks.lost": Chance(0.7),
    "clocks.comes back": Chance(0.7),
    "clocks.comes back after": Between(0, 60),
    "clocks.read some after": Between(0, 80),
    "clocks.release after": Between(0, 120),
    "clocks.catch up after": Between(0, 60),
    "clocks.jump": Equal(DAY, 500),
    "clocks.new ets": Equal("on-demand", "on-demand", "periodic", "none"),
    "clocks.new grace": Equal(0, 30),
    "clocks.altered": Equal("ets", "ets_interval_us", "ets_retry_us", "grace_us", "propagation"),
    "clocks.punctuation back": Equal(0, 0, 3),
    "clocks.low answer": Equal(0, 5, 40),
    # -- worlds of update streams
    "updates.disorder": Equal(0, 0, 30, 200),
    "updates.edge": Equal(
        "LATEST", *["LATEST USING auto"] * 4, "LATEST USING deadline", *(f"LATEST {using}" for using in USING)
    ),
    "updates.queries": Between(1, 5),
    "updates.kind": Equal("latest", "shed", "filter", "groups", "top", "union", "pairs", "over", "windows"),
    "updates.join": Equal("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"),
    "updates.pairs are tested": Chance(0.4),
    "updates.least": Between(0, 7),
    "updates.shed": Equal(1, 3, 20),
    "updates.top": Equal(1, 2, 3),
    "updates.slide": Equal(50, 100, 200),
    "updates.size": Equal(50, 100, 400),
    "updates.when": Equal("", "LAZY", "EAGER"),
    "updates.using": Equal("", *USING),
    "updates.keys": Equal(1, 3, 12),
    "updates.lines": Between(5, 40),
    "updates.time passes": Equal(0, 0, 7, 60),
    "updates.stream": Equal(*"sssup"),
    "updates.line": Equal(*["tuples"] * 12, "check", "punctuation", "pause"),
    "updates.rows": Equal(1, 1, 3, 20),
    "updates.may leap": Chance(0.1),
    "updates.step": Equal(0, 10, 10, 30, "leap"),
    "updates.out of order": Chance(0.6),
    "updates.late": Chance(0.02),
    "updates.value": Between(0, 9),
    "updates.punctuation back": Equal(0, 20),
    "updates.stopwatch": Chance(0.6),
    "updates.overloaded (wild)": Chance(0.5),
    "updates.budget under overload": Between(1, 4),
    "updates.watched progress": Chance(0.6),
    "updates.measured us": Equal(0.5, 3.0, 40.0),
    "updates.set strategy": Chance(0.15),
    "updates.set break": Chance(0.15),
    "updates.alter stream": Chance(0.1),
    "updates.set weight": Chance(0.05),
    "updates.set queue": Chance(0.2),
    "updates.queue": Equal("append", "auto", "deadline", *QUEUES),
    "updates.replace by the same": Chance(0.08),
    "updates.restart a query (rough)": Chance(0.06),
    "updates.drop and add": Chance(0.5),
    "updates.state reads": Chance(0.15),
    "updates.refresh": Equal(None, 1, 20, 500),
    "updates.reader": Equal("a", "b"),
    "updates.reads all keys": Chance(0.3),
    "updates.replaced queue": Equal(*QUEUES),
    "updates.save": Chance(0.12),
    # -- worlds of SQL
    "sql.disorder": Equal(0, 0, 4, 12),
    "sql.queries": Between(2, 4),
    "sql.update stream": Chance(0.4),
    "sql.depth": Equal(1, 1, 2, 2, 3),
    "sql.update depth": Equal(0, 1, 1, 2),
    "sql.in order": Chance(0.3),
    "sql.flush": Equal("", "", "", "slow", "lazy"),
    "sql.aggregate": Equal("", "", "groups", "buffered", "bounded", "bounded"),
    "sql.slots": Equal(1, 2, 7),
    "sql.emit": Equal("", "every"),
    "sql.stream": Equal("a", "a", "c", "i"),
    "sql.over a query": Chance(0.2),
    "sql.clause": Weighted(CLAUSES),
    "sql.last clause": Weighted({**CLAUSES, "windows of rows": 3}),
    "sql.straight clause": Equal("filter", "project"),
    "sql.update clause": Equal(*["newest_windows"] * 2, "current_filter", "current_project", "totals", "totals", "top"),
    "sql.mapped": Chance(0.3),
    "sql.key": Equal("b", "k", "x", "t", "y", "w", "interval"),
    "sql.deduplicated by": Between(1, 2),
    "sql.grouped by": Equal(0, 1, 1, 2),
    "sql.partitioned by": Equal(0, 1, 1, 2),
    "sql.window": Equal("tumble", "hop", "session"),
    "sql.window of rows": Equal("hop", "session"),
    "sql.size": Equal(3, 8, 20),
    "sql.slide": Equal(2, 5, 9),
    "sql.shown bound": Equal("", "window_start", "window_end"),
    "sql.top": Equal(1, 2, 3),
    "sql.join": Equal("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"),
    "sql.side": Equal("p", "q"),
    "sql.range": Equal(0, 2, 6),
    "sql.span": Equal(1, 1, 1_000),
    "sql.of a joint group": Equal("min", "max"),
    "sql.followed by": Equal("recent", "chronicle", "absent"),
    "sql.within": Equal(2, 7, 20),
    "sql.outer": Chance(0.5),
    "sql.queue": Equal("", *USING),
    "sql.when": Equal("LAZY", "EAGER"),
    "sql.totals of rows": Chance(0.6),
    "sql.lines": Between(8, 40),
    "sql.time passes": Equal(0, 1, 2, 7),
    "sql.fed stream": Equal("a", "a", "c", "c", "i", "z"),
    "sql.line": Weighted({"tuples": 12, "punctuation": 2, "check": 1}),
    "sql.rows": Equal(1, 1, 2, 5, 12),
    "sql.punctuation back": Between(0, 5),
    "sql.punctuation key": Equal("", "", "k", "t"),
    "sql.way of groups": Equal((), ("union",), ("filter",), ("filter", "union"), ("union", "filter")),
    "sql.groups of a join": Equal("", "windows", "times"),
    "sql.promise about a group": Chance(0.5),
    "sql.promised ahead": Between(-2, 20),
    "sql.answered for the group": Chance(0.7),
    "sql.answered above the need": Between(-2, 9),
    "sql.exchange queue": Chance(0.1),
    "sql.replace operator": Chance(0.15),
    "sql.widen stream": Chance(0.03),
    "sql.past": Chance(0.2),
    "sql.trouble": Equal(
        *("", "", "", "", "pause", "resume", "resume", "drop", "add_again", "replace_a_plan", "fail", "drop_stream")
    ),
    "sql.too little state": Chance(0.4),
    # -- worlds of slow readers
    "slow.share": Chance(0.5),
    "slow.most queued": Equal(60, 10_000),
    "slow.most queued bytes": Equal(300_000, 10_000_000),
    "slow.limit": Equal(10, 50),
    "slow.most bytes": Equal(50_000, 1_000_000),
    "slow.budget": Equal(8, 1_000),
    "slow.retained": Equal(0, 5, 100),
    "slow.readers": Between(0, 2),
    "slow.policy": Equal("wait", "wait", "wait", "drop_oldest", "disconnect", "latest"),
    "slow.from": Equal("now", "retained"),
    "slow.event": Weighted({"feed": 55, "read": 35, "subscribe": 3, "leave": 2, "pause": 2, "rename": 1, "nothing": 2}),
    "slow.time passes": Between(0, 2),
    "slow.rows": Equal(1, 5, "credit"),
    "slow.text": Equal(0, 10, "long"),
    "slow.reads": Chance(0.3),
    "slow.room": Equal(1, 7, "much"),
}


def draw(rng: random.Random, name: str) -> Any:
    return TABLE[name].draw(rng)


def draw_without(rng: random.Random, name: str, options: Sequence[Any]) -> Any:
    """One of the row's options, but none of these."""
    row = TABLE[name]
    assert isinstance(row, Equal)
    return row.draw(rng, options)


def printed() -> str:
    """The table as text: a line per row, options with their share in percent."""
    width = max(map(len, TABLE))
    return "".join(f"{name:{width}}  {_shares(row)}\n" for name, row in TABLE.items())


def _shares(row: Draw) -> str:
    if isinstance(row, Between):
        return f"{row.low} to {row.high}, evenly"
    if isinstance(row, Chance):
        return f"{100 * row.probability:g} %"
    return ", ".join(f"{_named(option)} {100 * share:.3g} %" for option, share in row.shares().items())


def _named(option: Any) -> str:
    return {MANY: "all", DAY: "a day", "": "nothing", None: "none", (): "none"}.get(option, str(option))
