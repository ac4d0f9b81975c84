"""Readers with a refresh interval: which queues serve keys for them, through changes of the graph, and saved."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import (
    Arrived,
    Command,
    Deliver,
    DropQuery,
    PauseQuery,
    RenameQuery,
    ReplaceQuery,
    ResumeQuery,
    SetQueue,
    SetReads,
)
from millrace.offline.script import plan_script
from millrace.operators.queues.inlet import QueueInlet
from millrace.protocol import Refuse
from millrace.protocol.admin.queries import ReaderView
from millrace.values.batch import Batch

SECOND = 1_000_000
SQL = """
CREATE STREAM s (k TEXT, v BIGINT) WITH (timestamps = 'internal', update_key = 'k');
CREATE QUERY board AS SELECT v AS value, k AS name FROM s LATEST USING DEADLINE WHERE v > 0;
CREATE QUERY plain AS SELECT k, v FROM s LATEST;
CREATE QUERY parts AS SELECT v % 3 AS part, count(*) AS n FROM s LATEST USING DEADLINE GROUP BY v % 3;
"""


class Play:
    def __init__(self, sql: str = SQL) -> None:
        self.engine, self.now_us, self.commands = Engine(), 0, 0
        for body in plan_script(sql).commands:
            self.do(body)

    def step(self, *events: Any, **limits: Any) -> list[Any]:
        return self.engine.step(self.now_us, events, **limits).orders

    def do(self, body: Any) -> Any:
        self.commands += 1
        (answer,) = [order for order in self.step(Command(self.commands, body), budget=0) if hasattr(order, "refused")]
        if answer.refused is not None:
            raise answer.refused
        return answer.value

    def put(self, *keys: str) -> None:
        schema = self.engine.streams_by_name["s"].definition.schema
        rows = [(key, at + 1) for at, key in enumerate(keys)]
        self.step(Arrived("s", "f", Batch.from_rows(schema, rows, [self.now_us] * len(rows))), budget=0)

    def serve(self, query: str) -> list[str]:
        """The keys of a query's rows, in the order in which they are served."""
        orders = self.step()
        (at,) = self.engine.query(query).plan.update_key or ()
        return [
            row[order.batch.schema.names.index(at)]
            for order in orders
            if isinstance(order, Deliver) and order.query == query
            for row in order.batch.rows()
        ]

    def order(self, query: str = "board") -> list[str]:
        self.now_us += 70_000
        self.put("a", "b", "c")
        return self.serve(query)


def test_the_keys_that_are_read_next_go_first() -> None:
    play = Play()
    assert play.order() == ["a", "b", "c"]
    play.do(SetReads("board", "me", 10 * SECOND))
    assert play.order() == ["a", "b", "c"], "all at once is in place"
    play.do(SetReads("board", "you", SECOND, (("c",),)))
    assert play.order() == ["c", "a", "b"]
    play.do(SetReads("board", "you", SECOND, (("b",),)))
    assert play.order() == ["b", "a", "c"]
    shown = {one.name: one.reads for one in play.engine.queries()}["board"]
    assert shown == [
        ReaderView(reader="me", refresh_us=10 * SECOND, keys=None),
        ReaderView(reader="you", refresh_us=SECOND, keys=1),
    ]
    assert play.do(SetReads("board", "you", None)) == {"query": "board", "readers": 1}
    play.do(SetReads("board", "me", None))
    assert play.order() == ["a", "b", "c"]
    assert not play.engine.reads


def test_what_no_queue_could_use_is_refused_and_changes_nothing() -> None:
    play = Play()
    before = play.engine.save()
    for body, text in (
        (SetReads("plain", "me", SECOND), "has no edge LATEST USING DEADLINE"),
        (SetReads("parts", "me", SECOND, ((1,),)), "its key is not the update key of an edge"),
        (SetReads("nothing", "me", SECOND), "does not exist"),
    ):
        with pytest.raises(Refuse, match=text):
            play.do(body)
    assert play.engine.save() == before
    assert play.do(SetReads("parts", "me", SECOND))["readers"] == 1


def test_readers_stay_through_changes_and_restores() -> None:
    play = Play()
    play.do(SetReads("board", "you", SECOND, (("c",),)))
    board = next(query.plan for query in play.engine.queries_by_name.values() if query.plan.name == "board")

    def restored() -> None:
        play.engine = Engine.restore(play.engine.save())

    def drop_and_go() -> None:
        play.do(DropQuery("parts"))

    def rename() -> None:
        play.do(RenameQuery("board", "shown"))
        assert play.order("shown") == ["c", "a", "b"]
        play.do(RenameQuery("shown", "board"))

    def swap() -> None:
        play.do(SetQueue("board.filter1", "inplace"))
        assert play.order() == ["a", "b", "c"]
        play.do(SetQueue("board.filter1", "append"))
        play.do(SetQueue("board.filter1", "deadline"))

    def pause() -> None:
        play.do(PauseQuery("board"))
        play.do(ResumeQuery("board"))

    for change in (restored, drop_and_go, rename, swap, pause, lambda: play.do(ReplaceQuery(board)), restored):
        assert play.order() == ["c", "a", "b"]
        change()
        assert play.order() == ["c", "a", "b"]
        assert Engine.restore(play.engine.save()).save() == play.engine.save()
    play.do(DropQuery("board"))
    assert not play.engine.reads


def test_a_restored_engine_serves_alike() -> None:
    play, other = Play(), Play()
    for one in (play, other):
        one.do(SetReads("board", "x", 3 * SECOND, (("a",), ("c",))))
        one.do(SetReads("board", "y", 2 * SECOND))
    for at in range(30):
        for one in (play, other):
            one.now_us += 170_000
            one.put(*"abcde"[at % 3 :])
        other.engine = Engine.restore(other.engine.save())
        assert play.serve("board") == other.serve("board")
        assert play.engine.save() == other.engine.save()
    readers = [reader for one in play.engine.graph.operators.values() for reader in one.inputs]
    assert sum(isinstance(reader, QueueInlet) for reader in readers) == 3


# -- queries that read queries -----------------------------------------------------------------------------------------

CHAIN = """
CREATE STREAM s (k TEXT, n BIGINT, v BIGINT) WITH (timestamps = 'internal', update_key = 'k, n');
CREATE QUERY first AS SELECT v, n, k FROM s LATEST USING DEADLINE;
CREATE QUERY middle AS SELECT k AS name, v + 1 AS more, n FROM first;
CREATE QUERY last AS SELECT n AS number, name, more FROM middle LATEST USING DEADLINE WHERE more > 0;
CREATE QUERY names AS SELECT name, max(more) AS most FROM middle GROUP BY name;
CREATE QUERY other AS SELECT k, n, v FROM s LATEST;
CREATE QUERY two AS
  SELECT a.number, a.name, b.v FROM last LATEST a JOIN other LATEST b ON a.name = b.k AND a.number = b.n;
"""
KEYS = (("a", 1), ("b", 1), ("a", 2))


class Chain(Play):
    def __init__(self) -> None:
        super().__init__(CHAIN)

    def rows(self, *keys: tuple[str, int]) -> dict[str, list[tuple[Any, ...]]]:
        """Rows with these keys arrive at once: the keys of each query's rows, in the order in which it emits them."""
        self.now_us += 70_000
        schema = self.engine.streams_by_name["s"].definition.schema
        rows = [(*key, self.now_us) for key in keys]
        self.step(Arrived("s", "f", Batch.from_rows(schema, rows, [self.now_us] * len(rows))), budget=0)
        found: dict[str, list[tuple[Any, ...]]] = {}
        for order in self.step():
            if isinstance(order, Deliver):
                at = [
                    order.batch.schema.names.index(name)
                    for name in self.engine.query(order.query).plan.update_key or ()
                ]
                found.setdefault(order.query, []).extend(tuple(row[one] for one in at) for row in order.batch.rows())
        return found


@pytest.mark.parametrize("query", ["first", "middle", "last", "two"])
def test_a_read_of_a_query_counts_at_the_queues_of_the_queries_that_it_reads(query: str) -> None:
    play = Chain()
    assert play.rows(*KEYS)["first"] == [("a", 1), ("b", 1), ("a", 2)]
    (key,) = set(play.rows(("a", 2))[query])
    play.do(SetReads(query, "me", SECOND, (key,)))
    assert play.rows(*KEYS)["first"] == [("a", 2), ("a", 1), ("b", 1)]
    play.engine = Engine.restore(play.engine.save())
    assert play.rows(*KEYS)["first"] == [("a", 2), ("a", 1), ("b", 1)]
    play.do(SetReads(query, "me", None))
    assert play.rows(*KEYS)["first"] == [("a", 1), ("b", 1), ("a", 2)]


def test_a_read_of_all_keys_counts_upstream_though_its_key_is_another() -> None:
    play = Chain()
    with pytest.raises(Refuse, match="its key is not the update key of an edge"):
        play.do(SetReads("names", "me", SECOND, (("a",),)))
    with pytest.raises(Refuse, match="query other has no edge LATEST USING DEADLINE, so"):
        play.do(SetReads("other", "me", SECOND))
    play.do(SetReads("first", "you", 10 * SECOND, (("a", 2),)))
    assert play.rows(*KEYS)["first"] == [("a", 2), ("a", 1), ("b", 1)]
    play.do(SetReads("names", "me", SECOND))
    assert play.rows(*KEYS)["first"] == [("a", 1), ("b", 1), ("a", 2)], "all are read each second"


def test_a_queue_serves_no_readers_of_the_rows_that_it_reads() -> None:
    play = Chain()
    play.do(SetReads("middle", "me", SECOND, (("a", 2),)))
    play.do(SetQueue("first.project1", "inplace"))
    assert play.rows(*KEYS)["last"] == [("a", 1), ("b", 1), ("a", 2)]
    play.do(SetReads("last", "me", SECOND, (("a", 2),)))
    assert play.rows(*KEYS)["last"] == [("a", 2), ("a", 1), ("b", 1)]
    with pytest.raises(Refuse, match="nor has any query that middle reads"):
        play.do(SetReads("middle", "you", SECOND))


def test_windows_of_keys_that_are_read_next_go_first() -> None:
    play = Play("""
        CREATE STREAM s (at TIMESTAMP, k TEXT, v BIGINT) WITH (time = 'at', update_key = 'k');
        CREATE QUERY board AS SELECT k, sum(v) AS v, window_end FROM TUMBLE(s, at, INTERVAL '1 second')
          LATEST USING DEADLINE GROUP BY k, window_end;
        CREATE QUERY screen AS SELECT k AS name, v FROM board""")
    schema = play.engine.streams_by_name["s"].definition.schema

    def order() -> list[str]:
        """Of the windows that end now."""
        play.now_us += SECOND
        rows = [(play.now_us + at, key, 1) for at, key in enumerate("abc")]
        play.step(Arrived("s", "f", Batch.from_rows(schema, rows, [row[0] for row in rows])), budget=0)
        return play.serve("board")

    assert order() == []
    assert order() == ["a", "b", "c"]
    play.do(SetReads("screen", "me", 7 * SECOND // 10, (("c",),)))
    for _ in range(3):
        found = order()
    assert found == ["c", "a", "b"]
    play.engine = Engine.restore(play.engine.save())
    assert order() == ["c", "a", "b"]
    play.do(SetReads("screen", "me", None))
    order()
    assert order() == ["a", "b", "c"]
