"""The seam: the rows of history before it and of the live query after it are the rows of a query that always ran."""

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    AdoptBootstrap,
    Answer,
    Archived,
    Arrived,
    Change,
    Command,
    Deliver,
    DropQuery,
    HoldQuery,
    InsertOperator,
    Late,
    PauseQuery,
    Progressed,
    Punctuated,
    QueryFailed,
    Rejected,
    ReplaceQuery,
    ResumeQuery,
    SetOrder,
    SetQueue,
    WatchProgress,
)
from millrace.engine.seam import Bootstrap, gated
from millrace.operators.filter.spec import SelectSpec
from millrace.protocol import Refuse, Type
from millrace.sql import Catalog, parse, plan, plan_all
from millrace.values.batch import Batch
from millrace.values.eventtime import MIN_TIME
from millrace.values.expression import Constant
from tests.depth import examples

STREAMS = """
CREATE STREAM a (ts TIMESTAMP, k BIGINT, v BIGINT)
  WITH (time = 'ts', disorder = '5 us', history = 'true', ets = 'none');
CREATE STREAM b (ts TIMESTAMP, k BIGINT, v BIGINT)
  WITH (time = 'ts', disorder = '2 us', history = 'true', ets = 'none');
CREATE STREAM i (k BIGINT, v BIGINT) WITH (history = 'true', ets = 'none');
"""
CATALOG = plan_all(parse(STREAMS), Catalog())[1]

# Of each kind: whether the rows are compared, or the last one of each key.
QUERIES = {
    "select": "SELECT ts, k, v FROM a WHERE v > 1",
    "sorted": "SELECT ts, k, v FROM a",
    "tumble": "SELECT k, count(*) AS n, sum(v) AS s, window_start FROM TUMBLE(a, ts, INTERVAL '7 us') GROUP"
    " BY k, window_start",
    "hop": "SELECT count(*) AS n, max(v) AS m, window_end FROM HOP(a, ts, INTERVAL '3 us', INTERVAL '9"
    " us') GROUP BY window_end",
    "session": "SELECT k, count(*) AS n, window_start FROM SESSION(a, ts, INTERVAL '4 us') GROUP BY k, window_start",
    "session rows": "SELECT k, v, window_start FROM SESSION(a, ts, INTERVAL '4 us' PARTITION BY k)",
    "range": "SELECT count(*) AS n, sum(v) AS s, window_end FROM a [RANGE '8 us' SLIDE '4 us']",
    "rows": "SELECT count(*) AS n, sum(v) AS s FROM a [ROWS 5 SLIDE 2]",
    "union": "SELECT ts, k, v FROM a UNION ALL SELECT ts, k, v FROM b",
    "join": "SELECT x.ts AS t, x.v, y.v AS w FROM a x JOIN b y ON x.k = y.k AND x.ts BETWEEN y.ts -"
    " INTERVAL '4 us' AND y.ts + INTERVAL '3 us'",
    "range join": "SELECT x.v, y.v AS w FROM a [RANGE '4 us'] x JOIN b [RANGE '6 us'] y ON x.k = y.k",
    "left join": "SELECT x.v, y.v AS w FROM a [RANGE '4 us'] x LEFT JOIN b [RANGE '6 us'] y ON x.k = y.k",
    "unlimited join": "SELECT x.v, y.v AS w FROM a x JOIN b y ON x.k = y.k AND x.v = y.v",
    "self join": "SELECT x.v, y.v AS w FROM a x JOIN a y ON x.k = y.k AND x.ts BETWEEN y.ts AND y.ts + INTERVAL '3 us'",
    "recent": "SELECT x.v, y.v AS w FROM a x FOLLOWED BY b y RECENT ON x.k = y.k",
    "chronicle": "SELECT x.v, y.v AS w FROM a x FOLLOWED BY b y CHRONICLE WITHIN '9 us' ON x.k = y.k",
    "absence": "SELECT x.k, x.v FROM a x FOLLOWED BY NO b y WITHIN '5 us' ON x.k = y.k",
    "internal": "SELECT k, count(*) AS n, window_start FROM TUMBLE(i, ts, INTERVAL '7 us') GROUP BY k, window_start",
    "three": "SELECT k, v FROM a UNION ALL SELECT k, v FROM i",
    "nested": "SELECT max(n) AS most, window_end FROM (SELECT k, count(*) AS n, ts FROM"
    " HOP(a, ts, INTERVAL '2 us', INTERVAL '4 us') GROUP BY k, window_end) AS t [RANGE '8 us' SLIDE '8 us']",
    "top": "SELECT k, v FROM (SELECT k, v, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC) AS place"
    " FROM a) AS t WHERE place <= 2",
    "running": "SELECT k, count(*) AS n, sum(v) AS s FROM a GROUP BY k",
    "having": "SELECT k, count(*) AS n FROM a GROUP BY k HAVING count(*) % 3 > 0",
    "distinct": "SELECT k, count(distinct v) AS n, window_start FROM TUMBLE(a, ts, INTERVAL '7 us') GROUP BY k,"
    " window_start",
}
OPTIONS = {"arrival": "emit = 'every'", "event": "emit = 'every', order = 'event'"}


@cache
def planned(name, order):
    sql = f"CREATE QUERY q WITH ({OPTIONS[order]}) AS {QUERIES[name]}"
    return CATALOG.with_(plan(parse(sql)[0], CATALOG)).queries["q"]


def legal():
    found = []
    for name in QUERIES:
        for order in OPTIONS:
            try:
                planned(name, order)
            except Refuse:
                continue
            found.append((name, order))
    return found


class Live:
    """An engine with the streams, the archived tuples, and the rows of a query."""

    def __init__(self):
        self.engine = Engine()
        self.now = 1_000
        self.archive = []  # (stream, batch on time, mark after it)
        self.rows = []
        self.progress = MIN_TIME
        for stream in CATALOG.streams.values():
            self.obey(AddStream(stream))

    def obey(self, body):
        return self.step([Command(7, body)])

    def step(self, events):
        answer = None
        effects = self.engine.step(self.now, events)
        while True:
            for order in effects.orders:
                match order:
                    case Archived(stream, _, judged, mark):
                        on_time = judged.batch if judged.late is None else judged.batch.take(~judged.late)
                        self.archive.append((stream, on_time, mark))
                    case Deliver(_, sequence, batch):
                        assert sequence == len(self.rows)
                        self.rows += list(zip(batch.ts.tolist(), batch.rows(), strict=True))
                    case Progressed(_, value):
                        self.progress = value
                    case Answer(_, value, refused):
                        if refused is not None:
                            raise refused
                        answer = value
                    case Rejected() | QueryFailed():
                        raise AssertionError(order)
                    case _:
                        assert not isinstance(order, Late) or order.stream != "i"
            if not effects.more:
                return answer
            effects = self.engine.step(self.now)


# Operators start with promises near the start of time.
NO_PROGRESS = -(2**62)
ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=6)
SAID = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("aabbi"), st.sampled_from("fg"), ROWS),
        st.tuples(st.sampled_from("ab"), st.sampled_from("fg"), st.integers(-6, 6)),
    ),
    max_size=24,
)


def say(live, said, number):
    stream, feed, what = said
    live.now += 3
    base = 100 + 4 * number
    if isinstance(what, int):
        live.step([Punctuated(stream, feed, base + what)])
        return
    schema = CATALOG.streams[stream].schema
    rows = [(base + ts, k, v) if stream != "i" else (k, v) for ts, k, v in what]
    live.step([Arrived(stream, feed, Batch.from_rows(schema, rows, [base + ts for ts, _, _ in what]))])


def ended(live):
    """Everything that is open comes out."""
    live.now += 10_000
    for stream in "abi":
        for feed in list(live.engine.source(stream).feeds.by_name):
            live.step([Punctuated(stream, feed, 10**9)])


def worked_through(name, order, archive, rounds):
    """The past of all that was archived; promises come whenever `rounds` says so, as high as they may be."""
    past = Bootstrap(list(CATALOG.streams.values()), planned(name, order))
    for number, (stream, batch, _) in enumerate(archive):
        past.take(stream, batch, 1_000)
        if number in rounds:
            rest = [int(later.ts.min()) for other, later, _ in archive[number + 1 :] if other == stream and len(later)]
            mark = max(mark for other, _, mark in archive[: number + 1] if other == stream)
            past.promise(stream, min([mark, *rest]))
    return past


@pytest.mark.parametrize(("name", "order"), legal())
@given(SAID, st.data())
@settings(max_examples=examples(30), deadline=None)
def test_before_and_after_the_seam_is_all(name, order, log, data):
    held_at = data.draw(st.integers(0, len(log)))
    adopted_at = data.draw(st.integers(held_at, len(log)))
    rounds = data.draw(st.sets(st.integers(0, 24)))
    always, live = Live(), Live()
    always.obey(AddQuery(planned(name, order)))
    always.obey(WatchProgress("q"))
    added_at = data.draw(st.integers(0, held_at))
    watched = data.draw(st.booleans())
    past: Any = None
    marks: dict[str, int] = {}
    progress_then = MIN_TIME

    def adopt():
        assert not live.rows
        assert live.progress < NO_PROGRESS
        for stream, mark in marks.items():
            past.promise(stream, mark)
        found = past.finish()
        if data.draw(st.booleans()):
            live.engine = Engine.restore(live.engine.save())
        live.obey(AdoptBootstrap("q", found.state))
        return found

    for number in range(len(log) + 1):
        if number == added_at:
            live.obey(AddQuery(gated(planned(name, order))))
            if watched:
                live.obey(WatchProgress("q"))
        if number == held_at:
            marks = live.obey(HoldQuery("q"))["marks"]
            past = worked_through(name, order, list(live.archive), rounds)
            progress_then = always.progress
        if number == adopted_at:
            found = adopt()
        if number < len(log):
            say(always, log[number], number)
            say(live, log[number], number)
    for one in (always, live):
        ended(one)
    below = [row for row in always.rows if row[0] < found.seam_us]
    # History must compute the rows emitted before the seam, and the seam is as late as the query knows.
    assert found.given == len(below)
    assert found.seam_us >= progress_then
    assert Counter(below) + Counter(live.rows) == Counter(always.rows)
    assert all(ts >= found.seam_us for ts, _ in live.rows)
    if [ts for ts, _ in always.rows] == sorted(ts for ts, _ in always.rows) and order == "event":
        times = [ts for ts, _ in below + live.rows]
        assert times == sorted(times)
    if watched:
        assert live.progress == always.progress


# -- what history computes by itself -----------------------------------------------------------------------------------

# Those whose rows below a time are decided by the tuples below it: not those that look ahead, nor those that close by
# sequence (ROWS), nor the updates of a running total, which show the order of arrival.
LOOK_BACK = [
    pair
    for pair in legal()
    if pair[0] not in ("left join", "rows") and (planned(*pair).update_key is None or pair[1] == "event")
]


def rows_of(engine):
    """A list of all rows that the engine delivers from now on."""
    rows: list[tuple[int, Any]] = []
    step = engine.step

    def recorded(*given):
        effects = step(*given)
        for order in effects.orders:
            if isinstance(order, Deliver):
                rows.extend(zip(order.batch.ts.tolist(), order.batch.rows(), strict=True))
        return effects

    engine.step = recorded
    return rows


@pytest.mark.parametrize(("name", "order"), LOOK_BACK)
@given(SAID)
@settings(max_examples=examples(10), deadline=None)
def test_history_alone_gives_what_is_below_the_seam(name, order, log):
    """A run over the tuples before the seam, in order of time, has the same rows before it as a run over all tuples."""
    live = Live()
    live.obey(AddQuery(planned(name, order)))
    for number in range(len(log)):
        say(live, log[number], number)
    past = worked_through(name, order, live.archive, set())
    for stream in planned(name, order).reads_streams:
        past.promise(stream, live.engine.source(stream).mark)
    seam = past.finish().seam_us
    spark = Bootstrap(list(CATALOG.streams.values()), planned(name, order))
    everything = rows_of(spark.engine)
    tuples = [
        (ts, stream, batch.slice(at, at + 1)) for stream, batch, _ in live.archive for at, ts in enumerate(batch.ts)
    ]
    for ts, stream, one in sorted(tuples, key=lambda found: found[0]):
        if ts < seam:
            for other in planned(name, order).reads_streams:
                spark.promise(other, int(ts))
            spark.take(stream, one, 1_000)
    for stream in planned(name, order).reads_streams:
        spark.promise(stream, seam)
    assert Counter(row for row in everything if row[0] < seam) == Counter(row for row in live.rows if row[0] < seam)


@given(SAID, st.data())
@settings(max_examples=examples(40), deadline=None)
def test_the_last_row_of_each_key_is_that_of_a_query_that_has_always_run(log, data):
    sql = "CREATE QUERY q AS SELECT k, count(*) AS n, sum(v) AS s FROM a GROUP BY k HAVING count(*) % 4 > 0"
    made = CATALOG.with_(plan(parse(sql)[0], CATALOG)).queries["q"]
    always, live = Live(), Live()
    always.obey(AddQuery(made))
    live.obey(AddQuery(gated(made)))
    cut = data.draw(st.integers(0, len(log)))
    past = Bootstrap(list(CATALOG.streams.values()), made)
    for number in range(len(log) + 1):
        if number == cut:
            marks = live.obey(HoldQuery("q"))["marks"]
            for stream, batch, _ in live.archive:
                if stream == "a":
                    past.take(stream, batch, 1_000)
            past.promise("a", marks["a"])
            found = past.finish()
            live.obey(AdoptBootstrap("q", found.state))
        if number < len(log):
            say(always, log[number], number)
            say(live, log[number], number)
    below = [row for row in always.rows if row[0] < found.seam_us]
    assert last_rows(below + live.rows) == last_rows(always.rows)


def last_rows(rows):
    return {row[0]: row for _, row in rows}


# -- commands ----------------------------------------------------------------------------------------------------------


def catching_up(name="tumble"):
    live = Live()
    live.obey(AddQuery(gated(planned(name, "arrival"))))
    return live


def shown(live):
    return live.engine.queries()[0].state, live.engine.why("q").reason


def test_a_query_that_catches_up_says_so():
    live = catching_up()
    assert shown(live) == ("catching up", "catching_up")
    assert "is processing the history of its streams" in live.engine.why("q").text
    live.obey(HoldQuery("q"))
    say(live, ("a", "f", [(0, 1, 1)]), 0)
    assert shown(live) == ("catching up", "catching_up")
    assert "1 tuple" in live.engine.why("q").text
    live.obey(AdoptBootstrap("q", None))
    assert shown(live)[0] == "running"


def test_a_wait_taken_over_from_the_past_began_here():
    """The past has a separate clock; no operator in this engine has waited since then."""
    live = Live()
    made = planned("union", "event")
    live.obey(AddQuery(gated(made)))
    live.obey(HoldQuery("q"))
    past = Bootstrap(list(CATALOG.streams.values()), made)
    past.take("a", Batch.from_rows(CATALOG.streams["a"].schema, [(7, 1, 1)], [7]), 20)
    past.take("a", Batch.from_rows(CATALOG.streams["a"].schema, [(9, 1, 1)], [9]), 80)
    live.obey(AdoptBootstrap("q", past.finish().state))
    live.now += 30
    live.step([Arrived("a", "f", Batch.from_rows(CATALOG.streams["a"].schema, [(11, 1, 1)], [11]))])
    why = live.engine.why("q")
    assert (why.since, why.held) == (1_000, 3), why
    union = next(one for one in live.engine.operators() if one.name == why.operator)
    assert [given.idle_wait_us for given in union.inputs] == [30, 30]


@pytest.mark.parametrize("held", [False, True])
def test_what_cannot_be_done_meanwhile(held):
    live = catching_up()
    if held:
        live.obey(HoldQuery("q"))
    else:
        with pytest.raises(Refuse, match="is not waiting for its history, or is not buffering"):
            live.obey(AdoptBootstrap("q", None))
    for command in (PauseQuery("q"), ResumeQuery("q"), ReplaceQuery(planned("tumble", "event"))):
        with pytest.raises(Refuse, match="is catching up with its history"):
            live.obey(command)
    live.obey(Change((DropQuery("q"), AddQuery(gated(planned("tumble", "arrival"))))))
    assert shown(live) == ("catching up", "catching_up")
    live.obey(DropQuery("q"))
    assert not live.engine.queries()


@pytest.mark.parametrize("held", [False, True])
def test_the_operators_of_a_query_that_catches_up_are_not_changed(held):
    """Its past has the operators with which it was created, and would be refused."""
    live = catching_up("range join")
    if held:
        live.obey(HoldQuery("q"))
    everything = SelectSpec(Constant(Type.BOOLEAN, False, True))
    for command in (InsertOperator("q.join1", everything), SetQueue("q.join1", "append"), SetOrder("q", "arrival")):
        with pytest.raises(Refuse, match="is catching up with its history"):
            live.obey(command)
    if not held:
        live.obey(HoldQuery("q"))
    live.obey(
        AdoptBootstrap("q", Bootstrap(list(CATALOG.streams.values()), planned("range join", "arrival")).finish().state)
    )
    live.obey(InsertOperator("q.join1", everything))


def test_a_past_of_another_query_is_refused():
    live = catching_up()
    live.obey(HoldQuery("q"))
    other = Bootstrap(list(CATALOG.streams.values()), planned("hop", "arrival")).finish().state
    with pytest.raises(Refuse, match="is from another query"):
        live.obey(AdoptBootstrap("q", other))
    with pytest.raises(Refuse, match="is not waiting for its history"):
        live.obey(HoldQuery("q"))
    live.obey(AdoptBootstrap("q", None))
    with pytest.raises(Refuse, match="is not waiting for its history"):
        live.obey(AdoptBootstrap("q", None))


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT k FROM q0", "it reads q0, which has only rows since its own creation"),
        ("SELECT k FROM a.late", "a.late has no separate archive"),
        ("SELECT k FROM u LATEST", "depend on the load of the server"),
    ],
)
def test_queries_without_a_past(sql, said):
    catalog = plan_all(
        parse("CREATE STREAM u (k BIGINT) WITH (update_key = 'k'); CREATE QUERY q0 AS SELECT k FROM a"), CATALOG
    )[1]
    made = catalog.with_(plan(parse(f"CREATE QUERY q AS {sql}")[0], catalog)).queries["q"]
    with pytest.raises(Refuse, match=said):
        gated(made)


def test_a_latent_stream_has_no_past():
    catalog = plan_all(parse("CREATE STREAM l (k BIGINT) WITH (timestamps = 'latent')"), Catalog())[1]
    made = catalog.with_(plan(parse("CREATE QUERY q AS SELECT k FROM l")[0], catalog)).queries["q"]
    with pytest.raises(Refuse, match="get their time only when an operator needs one"):
        Bootstrap(list(catalog.streams.values()), made)


def test_readers_of_the_query_get_its_rows_from_the_seam_on():
    """A query over another one that catches up starts with the rows of that one."""
    live = catching_up()
    catalog = CATALOG.with_(plan(parse("CREATE QUERY q AS " + QUERIES["tumble"])[0], CATALOG))
    reader = catalog.with_(plan(parse("CREATE QUERY r AS SELECT k, n FROM q")[0], catalog)).queries["r"]
    made = planned("tumble", "arrival")
    reader = reader.reading(catalog.queries["q"].output, made.output)
    live.obey(AddQuery(reader))
    live.obey(HoldQuery("q"))
    past = Bootstrap(list(CATALOG.streams.values()), made)
    past.take("a", Batch.from_rows(CATALOG.streams["a"].schema, [(7, 1, 1)], [7]), 0)
    live.obey(AdoptBootstrap("q", past.finish().state))
    effects = live.engine.step(live.now, [Punctuated("a", "f", 1_000)])
    assert [(one.query, one.batch.rows()) for one in effects.orders if isinstance(one, Deliver)] == [
        ("q", [(1, 1, 1, 7)]),
        ("r", [(1, 1)]),
    ]
