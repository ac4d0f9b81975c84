"""Functions that are declared nondeterministic: a step's record has their results, and a replay never calls them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Arrived, Command, Effects, Event
from millrace.functions import DECLARED, function
from millrace.journal.past import Past
from millrace.journal.steps import Step, StepReader, encode
from millrace.protocol import Refuse, Schema
from millrace.sql import SqlError, equality, parse, plan_all
from millrace.sql.functions import install, uninstall
from millrace.sql.planned import Catalog, CreateQuery, CreateStream
from millrace.values.batch import Batch
from tests.depth import examples
from tests.journal.recording import Recording
from tests.simulation.twins import described

SCHEMA = Schema.of(k="bigint", t="text")
COUNTER = itertools.count()
# What the functions below do instead of counting, in a replay.
CALLED: list[str] = []
FORBIDDEN = [False]


def turn(called: str) -> int:
    """The next number; every fifth call raises."""
    assert not FORBIDDEN[0], f"the replay called {called}"
    CALLED.append(called)
    number = next(COUNTER)
    if number % 5 == 4:
        raise ValueError(f"{called} has had enough at {number}")
    return number


@function(returns="bigint", deterministic=False)
def ticket() -> int:
    return turn("ticket")


@function("bigint", returns="bigint", deterministic=False)
def drawn(k: int) -> int | None:
    number = turn("drawn")
    return None if number % 7 == 3 else number * 1000 + k


@function("bigint", returns="double", vectorised=True, deterministic=False)
def drawn_arrays(k: Any) -> Any:
    return np.ma.MaskedArray(turn("drawn_arrays") / 8 + k, k % 3 == 0)


@function("text", returns="text", nulls=True, deterministic=False)
def greeted(t: str | None) -> str:
    return f"{turn('greeted')} ä {t}"


@function("text", returns="bytes", vectorised=True, deterministic=False)
def stamped(t: Any) -> list[bytes]:
    return [b"%d" % turn("stamped") for _ in t]


@function("bigint", returns="boolean", deterministic=False)
def lucky(k: int) -> bool:
    return turn("lucky") % 2 == 0


@function("bigint", returns="timestamp", deterministic=False)
def seen(k: int) -> int:
    return turn("seen")


@function("bigint", returns="bigint")
def plain(k: int) -> int:
    return k + 1


ALL: list[Any] = [ticket, drawn, drawn_arrays, greeted, stamped, lucky, seen, plain]


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    FORBIDDEN[0] = False
    rows = [row for target in ALL for row in vars(target)[DECLARED]]
    install(rows)
    yield
    uninstall(rows)


STREAM = "CREATE STREAM s (k BIGINT, t TEXT)"
QUERIES = [
    "SELECT k, ticket() AS n, ticket() AS m FROM s",
    "SELECT drawn(k) AS n, drawn_arrays(k) AS x, greeted(t) AS t, stamped(t) AS b, seen(k) AS at FROM s",
    "SELECT drawn(drawn(k)) AS n, plain(drawn(k)) AS m FROM s WHERE lucky(k)",
    "SELECT n, n + 1 AS m FROM (SELECT drawn(k) AS n FROM s) WHERE n % 2 = 0",
    "SELECT k % 2 AS g, sum(drawn(k)) AS n, count(*) AS c FROM s GROUP BY k % 2",
    "SELECT CASE WHEN lucky(k) THEN ticket() ELSE 0 END AS n FROM s",
    "SELECT ticket() AS n, k FROM s WHERE k > 1",
]


def commands(queries: Sequence[str]) -> list[Event]:
    text = "; ".join([STREAM, *(f"CREATE QUERY q{at} AS {query}" for at, query in enumerate(queries))])
    steps, _ = plan_all(parse(text), Catalog())
    made: list[Any] = []
    for step in steps:
        if isinstance(step, CreateStream):
            made.append(AddStream(step.stream))
        elif isinstance(step, CreateQuery):
            made.append(AddQuery(step.plan))
    return [Command(number, body) for number, body in enumerate(made, 1)]


def arrived(rows: Sequence[tuple[Any, ...]]) -> Arrived:
    return Arrived("s", "f", Batch.from_rows(SCHEMA, rows, [0] * len(rows)))


def take(engine: Engine, now_us: int, events: Sequence[Event], budget: int) -> tuple[Effects, bytes]:
    effects = engine.step(now_us, events, budget=budget)
    return effects, record_of(Step(now_us, budget, events, None, effects.results or {}))


def record_of(step: Step) -> bytes:
    return b"".join(encode(step))


def replay(engine: Engine, record: bytes) -> Effects:
    step = StepReader(engine).read(record)
    assert isinstance(step, Step)
    return engine.step(step.now_us, step.events, budget=step.budget, results=step.results)


rows = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(-4, 4)), st.one_of(st.none(), st.sampled_from(["", "a", "ü"]))),
    max_size=9,
)
steps = st.lists(st.tuples(st.lists(rows, max_size=3), st.sampled_from([1, 3, 1000])), max_size=8)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(QUERIES), min_size=1, max_size=4, unique=True), steps, st.booleans())
def test_a_replay_does_the_same_and_calls_nothing(queries, steps, restored):
    FORBIDDEN[0] = False
    original, other = Engine(), Engine()
    for now_us, (batches, budget) in enumerate([(None, 1000), *steps, *[([], 1000)] * 2]):
        events = commands(queries) if batches is None else [arrived(batch) for batch in batches if batch]
        FORBIDDEN[0] = False
        effects, record = take(original, now_us, events, budget)
        FORBIDDEN[0] = True
        if restored:
            other = Engine.restore(other.save())
        again = replay(other, record)
        assert described(again) == described(effects)
        assert record_of(Step(now_us, budget, events, None, again.results or {})) == record
    assert original.save() == other.save()
    FORBIDDEN[0] = False


def test_a_record_without_results_is_as_short_as_before():
    engine = Engine()
    engine.step(0, commands(["SELECT plain(k) AS k FROM s"]))
    effects, record = take(engine, 1, [arrived([(1, None)])], 9)
    assert effects.results is None
    assert record == record_of(Step(1, 9, [arrived([(1, None)])]))


def test_a_function_is_called_once_for_each_row_and_never_by_the_planner():
    CALLED.clear()
    engine = Engine()
    engine.step(0, commands(["SELECT n, n AS m FROM (SELECT ticket() AS n FROM s) WHERE n >= 0"]))
    assert CALLED == []
    engine.step(1, [arrived([(k, None) for k in range(3)])])
    assert CALLED == ["ticket"] * 3


def recorded() -> tuple[list[Event], bytes]:
    """What creates a query, and the record of a step that calls its function."""
    created = commands(["SELECT drawn(k) AS n FROM s"])
    engine = Engine()
    engine.step(0, created)
    _, record = take(engine, 1, [arrived([(1, None), (2, None)])], 9)
    return created, record


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: {key: [] for key in found}, r"the recorded results of drawn\(bigint\) are not those"),
        (lambda found: {key: list(one) * 2 for key, one in found.items()}, r"recorded results of drawn\(bigint\) that"),
        (lambda found: {**found, "other()": found["drawn(bigint)"]}, r"recorded results of other\(\) that its replay"),
        (
            lambda found: {key: [one._replace(values=one.values[:1]) for one in ones] for key, ones in found.items()},
            r"the recorded results of drawn\(bigint\) are not those of this step",
        ),
    ],
)
def test_results_of_another_step_stop_the_replay_rather_than_the_query(change, words):
    created, record = recorded()
    engine = Engine()
    engine.step(0, created)
    step = StepReader(engine).read(record)
    assert isinstance(step, Step)
    with pytest.raises(Refuse, match=words):
        engine.step(step.now_us, step.events, results=change(step.results))


def test_a_replay_goes_without_a_function_that_has_gone():
    created, record = recorded()
    (row,) = vars(drawn)[DECLARED]
    uninstall([row])
    engine = Engine()
    replay(engine, record_of(Step(0, 9, created)))
    effects = replay(engine, record)
    assert [type(order).__name__ for order in effects.orders][-1] == "Deliver"
    events = [arrived([(1, None)])]
    with pytest.raises(Refuse, match=r"function drawn\(bigint\) does not exist"):
        engine.step(2, events, results={})
    with pytest.raises(Refuse, match=r"function drawn\(bigint\) does not exist"):
        Engine.restore(engine.save())
    install([row])


def test_a_function_that_is_declared_otherwise_now_replays():
    """Results that are recorded are read; where the step has none, it was deterministic, and is called."""
    created, record = recorded()
    (row,) = vars(drawn)[DECLARED]
    uninstall([row])

    @function("bigint", returns="bigint", name="drawn")
    def calm(k: int) -> int:
        raise AssertionError

    install(vars(calm)[DECLARED])
    try:
        engine = Engine()
        engine.step(0, created)
        assert replay(engine, record).orders
    finally:
        uninstall(vars(calm)[DECLARED])
        install([row])
    step = Step(1, 9, [arrived([(1, None)])])
    engine = Engine()
    engine.step(0, created)
    CALLED.clear()
    replay(engine, record_of(step))
    assert CALLED == ["drawn"]


def test_the_past_of_a_server_has_its_results(tmp_path):
    recording = Recording(
        tmp_path,
        "CREATE STREAM s (at TIMESTAMP, k BIGINT) WITH (time = 'at');"
        "CREATE QUERY q AS SELECT k % 3 AS g, sum(drawn(k)) AS n FROM s GROUP BY k % 3",
    )
    moments = []
    for number in range(6):
        recording.now_us += 1
        recording.feed("s", [(number, number), (number, number + 1)])
        moments.append((recording.now_us, recording.engine.save()))
        if number == 3:
            recording.checkpoint()
    recording.close()
    FORBIDDEN[0] = True
    for at_us, saved in moments:
        playback = Past(tmp_path).at(at_us)
        assert playback.engine.save() == saved
        playback.close()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT k FROM s WHERE drawn(k) BETWEEN 1 AND 5", "BETWEEN, IN and CASE is computed for each"),
        ("SELECT k FROM s WHERE plain(ticket()) IN (k, 5)", r"ticket\(\) is not deterministic"),
        ("SELECT CASE drawn(k) WHEN 1 THEN 2 WHEN 2 THEN 3 END AS n FROM s", "computed for each of their tests"),
        (
            "SELECT count(*) AS n FROM (SELECT drawn(k) AS n FROM s) [ROWS 3 SLIDE 1]",
            "create the inner query separately",
        ),
    ],
)
def test_a_call_that_would_be_made_several_times_for_a_row_is_refused(query, words):
    with pytest.raises(SqlError, match=words):
        commands([query])


@pytest.mark.parametrize("where", ["lucky(k) IN (true)", "CASE drawn(k) WHEN 1 THEN true END", "drawn(k) IN (1, 2)"])
def test_a_call_that_is_made_once_for_a_row_is_accepted(where):
    commands([f"SELECT k FROM s WHERE {where}"])


@pytest.mark.parametrize(("query", "kind"), [("SELECT plain(k) AS k FROM s", "rows"), (QUERIES[2], "load")])
def test_explain_says_that_two_runs_differ(query, kind):
    catalog = plan_all(parse(f"{STREAM}; CREATE QUERY q AS {query}"), Catalog())[1]
    assert equality(catalog.queries["q"], catalog) == kind
