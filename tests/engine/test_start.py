"""From when on a query reads streams that have tuples already, and that it counts the tuples that it ignores.

Generated: a disordered stream, a query created in the middle, with every way to read. The oracle looks at each tuple's
time, at the stream's mark and at the newest time when the query was created.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Arrived,
    Command,
    Deliver,
    DropQuery,
    FeedClosed,
    FeedOpened,
    PauseQuery,
    ReplaceQuery,
    ResumeQuery,
)
from millrace.protocol import Schema
from millrace.protocol.admin.queries import QueryView
from millrace.sql import Catalog, CreateQuery, CreateStream, parse, plan_all
from millrace.values.batch import Batch

STREAM = "CREATE STREAM s (at TIMESTAMP, v BIGINT) WITH (time = 'at', disorder = '50 us');"
SCHEMA = Schema.of(at="timestamp", v="bigint")


class Server:
    """An engine with the stream `s`, saved and restored after every step if `restores`."""

    def __init__(self, *, restores: bool = False, share: bool = True) -> None:
        self.engine = Engine(share=share)
        self._restores = restores
        self.now = 0
        self.rows: dict[str, list[tuple[Any, ...]]] = {}
        self.catalog = Catalog()
        self.sql(STREAM)
        self.step(FeedOpened("s", "main"))

    def sql(self, text: str) -> None:
        statements, self.catalog = plan_all(parse(text), self.catalog)
        for statement in statements:
            if isinstance(statement, CreateStream):
                self.step(Command(1, AddStream(statement.stream)))
            else:
                assert isinstance(statement, CreateQuery)
                body = ReplaceQuery(statement.plan) if statement.replaces else AddQuery(statement.plan)
                self.step(Command(1, body))

    def step(self, *events: Any) -> None:
        self.now += 1
        for order in self.engine.step(self.now, events).orders:
            if isinstance(order, Deliver):
                self.rows.setdefault(order.query, []).extend(order.batch.rows())
            assert getattr(order, "refused", None) is None, order
        if self._restores:
            self.engine = Engine.restore(self.engine.save())

    def put(self, *times: int) -> None:
        rows = [(at, at) for at in times]
        self.step(Arrived("s", "main", Batch.from_rows(SCHEMA, rows, list(times))))

    def end(self) -> None:
        self.step(FeedClosed("s", "main", ended=True))

    def shown(self, query: str) -> QueryView:
        (found,) = [one for one in self.engine.queries() if one.name == query]
        return found


def _drawn(draw: random.Random, begin: int, count: int) -> list[int]:
    """Times of which none is later than 50 us after a newer one."""
    newest, times = begin, []
    for _ in range(count):
        at = max(0, newest - draw.randrange(51)) if draw.random() < 0.7 else newest + draw.randrange(20)
        newest = max(newest, at)
        times.append(at)
    return times


READS = {
    "plain": "SELECT v FROM s",
    "filtered": "SELECT v FROM s WHERE v >= 0",
    "counted": "SELECT v, count(*) AS n FROM s GROUP BY v",
    "joined": "SELECT a.v AS v FROM s a JOIN s b ON a.v = b.v AND b.at BETWEEN a.at AND a.at",
}


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("start", ["newest", "watermark"])
@pytest.mark.parametrize("order", ["arrival", "event"])
@pytest.mark.parametrize("kind", ["plain", "filtered", "counted"])
def test_a_new_query_reads_from_its_start_and_counts_the_rest(
    kind: str, order: str, start: str, restores: bool
) -> None:
    for seed in range(6):
        draw = random.Random(seed)
        before, after = _drawn(draw, 100, 30), []
        server = Server(restores=restores)
        server.sql(f"CREATE QUERY older AS {READS[kind]};")
        for at in before:
            server.put(at)
        newest = max(before)
        mark = newest - 50
        server.sql(f"CREATE QUERY q WITH (order = '{order}', start = '{start}', emit = 'every') AS {READS[kind]};")
        after = _drawn(draw, newest, 60)
        for first in range(0, 60, 7):
            server.put(*after[first : first + 7])
        server.end()
        reached, on_time = mark, []
        for at in after:
            if at >= reached:
                on_time.append(at)
            reached = max(reached, at - 50)
        floor = newest + 1 if start == "newest" else mark
        taken = [at for at in on_time if at >= floor]
        if kind == "counted":
            assert len(server.rows["q"]) == len(taken)
        else:
            assert sorted(server.rows["q"]) == sorted((at,) for at in taken)
        left_out = len(on_time) - len(taken)
        assert server.shown("q").ignored == ({"s": left_out} if left_out else {})
        assert server.shown("q").skipped == left_out
        assert server.shown("q").start == start
        assert (f"q ignored {left_out} tuple" in server.engine.why("q").text) == bool(left_out)


@pytest.mark.parametrize("order", ["arrival", "event"])
def test_a_join_with_itself_counts_a_tuple_once(order: str) -> None:
    server = Server()
    server.put(1_000)
    server.sql(f"CREATE QUERY q WITH (order = '{order}') AS {READS['joined']};")
    server.put(960, 1_001)
    server.end()
    assert server.rows["q"] == [(1_001,)]
    assert server.shown("q").ignored == {"s": 1}


def test_windows_of_rows_count_what_they_ignore() -> None:
    server = Server()
    server.put(1_000)
    server.sql("CREATE QUERY q WITH (partial = 'emit') AS SELECT count(*) AS n FROM s [ROWS 2 SLIDE 2];")
    server.put(960, 1_001, 970)
    server.end()
    assert server.shown("q").ignored == {"s": 2}


@pytest.mark.parametrize("partial", ["skip", "emit"])
@pytest.mark.parametrize("start", ["newest", "watermark"])
def test_windows_that_began_before_are_whole_or_asked_for(start: str, partial: str) -> None:
    """A query that starts at the mark receives the remaining tuples of windows that started before, but only with
    partial = 'emit': these windows lack the earlier tuples.
    """
    server = Server()
    server.put(1_005, 1_025)
    sql = "SELECT window_start, count(*) AS n FROM TUMBLE(s, at, INTERVAL '10 us')"
    server.sql(f"CREATE QUERY q WITH (start = '{start}', partial = '{partial}') AS {sql};")
    server.put(1_006, 1_021, 1_031)
    server.end()
    early = {"newest": [], "watermark": [(1_000, 1), (1_020, 1)]}[start]
    assert server.rows["q"] == ([] if partial == "skip" else early) + [(1_030, 1)]


def test_a_query_of_no_tuples_before_it_ignores_none() -> None:
    for start in ("newest", "watermark"):
        server = Server()
        server.sql(f"CREATE QUERY q WITH (start = '{start}') AS SELECT v FROM s;")
        server.put(100, 60)
        assert server.rows["q"] == [(100,), (60,)]
        assert server.shown("q").ignored == {}
        assert "ignored" not in server.engine.why("q").text


def test_a_replacement_and_a_resumed_query_keep_to_their_start() -> None:
    server = Server()
    server.put(1_000)
    server.sql("CREATE QUERY q WITH (start = 'watermark') AS SELECT v FROM s;")
    server.put(970)
    server.sql("CREATE OR REPLACE QUERY q WITH (start = 'watermark') AS SELECT v + 1 AS v FROM s;")
    server.put(980)
    assert server.rows["q"] == [(970,), (981,)]
    server.step(Command(1, PauseQuery("q", "")))
    server.put(990)
    server.step(Command(1, ResumeQuery("q")))
    server.put(985)
    assert server.rows["q"] == [(970,), (981,), (986,)]
    assert server.shown("q").skipped == 1
    server.sql("CREATE OR REPLACE QUERY q AS SELECT v + 2 AS v FROM s;")
    server.put(995, 1_001)
    assert server.rows["q"][3:] == [(1_003,)]
    server.step(Command(1, DropQuery("q")))


def test_the_text_names_the_option() -> None:
    server = Server()
    server.put(1_000)
    server.sql("CREATE QUERY q AS SELECT v FROM s;")
    server.put(960)
    text = server.engine.why("q").text
    assert "q ignored 1 tuple of s earlier than 1970-01-01T00:00:00.001001Z" in text
    assert "start = 'watermark'" in text
