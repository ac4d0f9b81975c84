"""`replay`: the past as it was is what the server delivered, and with a change it is what an oracle computes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from millrace.engine.events import Command, SetStrategy
from millrace.engine.scheduler.table import Strategy
from millrace.journal.past import Past
from millrace.protocol import Refuse, Schema
from millrace.run.measures import RowComparison
from millrace.run.replay import ChangedEngine, replay
from millrace.run.variation import Setting, Variation, parse_setting
from millrace.values.batch import Batch
from tests.depth import examples
from tests.journal.recording import SECOND, Recording, play

STRATEGIES = ("dfs", "bfs", "rr", "chain", "dfs(1)", "bfs(3)")


def replayed(recording: Recording, variation: Variation, from_us: int | None = None, to_us: int | None = None):
    past = Past(recording.folder)
    span = past.span()
    return replay(past, from_us or span.from_us, to_us or span.to_us, variation)


@pytest.mark.parametrize("seed", range(examples(9)))
def test_a_replay_equals_what_was_delivered(tmp_path: Path, seed: int) -> None:
    recording, moments = play(tmp_path / "data", Random(seed))
    recording.close()
    recording.retain()
    found = replayed(recording, Variation())
    assert found.faithful
    assert found == replayed(recording, Variation())
    for name, rows in recording.rows.items():
        query = found.data["queries"][name]
        assert query["recorded"]["rows"] == len(rows)
        assert query["delivered"] == {"same": len(rows), "different": 0, "not_retained": 0, "first": None}
    for name, count in recording.late.items():
        assert found.data["streams"][name]["recorded"]["late"] == count
    # Parts of the span are together the whole.
    (middle, _) = moments[len(moments) // 2]
    parts = replayed(recording, Variation(), to_us=middle), replayed(recording, Variation(), from_us=middle)
    for name, rows in recording.rows.items():
        counted = [part.data["queries"].get(name, {"recorded": {"rows": 0}})["recorded"]["rows"] for part in parts]
        assert sum(counted) == len(rows)


def test_a_row_that_differs_is_noticed(tmp_path: Path) -> None:
    recording, _ = play(tmp_path / "data", Random(1))
    recording.close()
    sequence, batch = recording.batches["large"][1]
    rows = [(row[0], row[1] + 1, row[2]) for row in batch.rows()]
    other = Batch.from_rows(batch.schema, rows, batch.ts.tolist())
    recording.batches["large"][1] = sequence, other
    del recording.batches["pairs"]
    recording.retain()
    found = replayed(recording, Variation())
    assert not found.faithful
    large = found.data["queries"]["large"]["delivered"]
    assert large["different"] == len(batch)
    assert large["first"]["number"] == sequence
    assert large["first"]["delivered"]["k"] == large["first"]["replayed"]["k"] + 1
    assert found.data["queries"]["pairs"]["delivered"]["not_retained"] == len(recording.rows["pairs"])


@pytest.mark.parametrize("seed", range(examples(12)))
def test_another_strategy_emits_the_same_rows(tmp_path: Path, seed: int) -> None:
    random = Random(f"strategies {seed}")
    recording, moments = play(tmp_path / "data", random)
    recording.close()
    strategy = random.choice(STRATEGIES)
    from_us = random.choice([None, *(at for at, _ in moments)])
    found = replayed(recording, Variation(strategy), from_us)
    for name, query in found.data["queries"].items():
        verdict = query["rows"]["verdict"]
        if name == "running":  # how often a key is emitted depends on the steps
            assert verdict in ("same", "same final rows")
        else:
            assert verdict in ("same", "same, in another order"), (name, query["rows"])
            assert query["recorded"]["rows"] == query["changed"]["rows"]
    assert found.data["queries"]["both_"]["rows"]["verdict"] == "same"  # in order of time
    assert found == replayed(recording, Variation(strategy), from_us)


def test_the_strategy_of_the_replay_outlives_recorded_ones(tmp_path: Path) -> None:
    recording, _ = play(tmp_path / "data", Random(1), steps=5)
    (component,) = recording.engine.graph.components
    recording.now_us += SECOND
    recording.step(Command(99, SetStrategy(component.name, "rr")))
    assert component.strategy == Strategy.parse("rr")
    recording.close()
    replay_of = Past(recording.folder).open(SECOND)  # before the streams were created
    changed = ChangedEngine(replay_of.engine, Variation("bfs"), {})
    changed.apply(SECOND)
    for step, effects in Past(recording.folder).open(SECOND).steps(recording.now_us):
        changed.follow(step, effects)
    assert not changed.refusals
    assert {str(one.strategy) for one in changed.engine.graph.components} == {"bfs"}


def lateness(rows: list[int], disorder_us: int) -> int:
    """How many of a feed's tuples are late: those further behind the newest one before them."""
    newest, late = -(10**18), 0
    for at in rows:
        late += at < newest - disorder_us
        newest = max(newest, at)
    return late


@pytest.mark.parametrize("seed", range(examples(6)))
def test_another_disorder_has_other_late_tuples(tmp_path: Path, seed: int) -> None:
    random = Random(f"late {seed}")
    recording = Recording(tmp_path / "data", "CREATE STREAM a (at TIMESTAMP, k BIGINT) WITH (time = 'at', disorder = "
                          "'1 second'); CREATE QUERY q AS SELECT at, k FROM a")  # fmt: skip
    recording.open("a")
    from_us, times = recording.now_us, []
    for step in range(40):
        recording.now_us += 1
        rows = [(step * SECOND + random.randrange(5 * SECOND), at) for at in range(random.randrange(1, 4))]
        times += [row[0] for row in rows]
        recording.feed("a", rows)
    recording.close()
    seconds = random.choice((0, 2, 3))
    found = replayed(recording, Variation(settings=[Setting("a", "disorder", f"{seconds} seconds")]), from_us).data
    late = {side: found["streams"]["a"][side]["late"] for side in ("recorded", "changed")}
    assert late == {"recorded": lateness(times, SECOND), "changed": lateness(times, seconds * SECOND)}
    rows = found["queries"]["q"]
    assert rows["recorded"]["rows"] == len(times) - late["recorded"]
    assert rows["changed"]["rows"] == len(times) - late["changed"]
    both = rows["rows"]
    assert both["only_recorded"] - both["only_changed"] == late["changed"] - late["recorded"]


def test_an_added_query_is_measured(tmp_path: Path) -> None:
    recording, moments = play(tmp_path / "data", Random(7))
    recording.close()
    sql = "CREATE QUERY few AS SELECT k, count(*) AS n, window_end FROM TUMBLE(a, at, INTERVAL '1 second') GROUP BY k"
    found = replayed(recording, Variation(sql=sql), moments[0][0]).data["queries"]
    assert set(found["few"]) == {"changed"}
    assert found["few"]["changed"]["rows"] > 0
    assert found["few"]["changed"]["latency_us"]["max"] is not None
    assert found["few"]["changed"]["peak_state_tuples"] > 0
    assert all(query["rows"]["verdict"] == "same" for name, query in found.items() if name != "few")


def test_a_replaced_query_and_an_option_of_queries(tmp_path: Path) -> None:
    recording, _ = play(tmp_path / "data", Random(8))
    recording.close()
    sql = "CREATE OR REPLACE QUERY large AS SELECT at, k, x FROM a WHERE x > 4"
    from_us = 2 * SECOND
    found = replayed(recording, Variation(sql=sql), from_us).data["queries"]["large"]
    assert found["rows"]["verdict"] == "different"
    assert found["rows"]["only_changed"] == 0
    assert len(found["rows"]["examples"]["recorded"]) == 3
    assert all(3 < row["x"] <= 4 for row in found["rows"]["examples"]["recorded"])
    emitted = replayed(recording, Variation(settings=[Setting("running", "emit", "every")]), from_us).data["queries"]
    assert emitted["running"]["changed"]["rows"] >= emitted["running"]["recorded"]["rows"]


def test_work_that_the_server_did_not_have_is_done_where_its_own_ends(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "data", "CREATE STREAM s (at TIMESTAMP, k BIGINT) WITH (time = 'at')")
    recording.open("s")
    from_us, rows = recording.now_us, [(number, number) for number in range(50)]
    recording.now_us += 1
    assert not recording.feed("s", rows, budget=60).more
    recording.now_us += SECOND
    recording.close()
    sql = ";".join(f"CREATE QUERY q{number} AS SELECT k + {number} AS k FROM s" for number in range(5))
    found = replayed(recording, Variation(sql=sql), from_us).data["queries"]
    for number in range(5):
        assert found[f"q{number}"]["changed"]["rows"] == len(rows)
        assert found[f"q{number}"]["changed"]["latency_us"]["max"] == 0


def test_timers_that_the_server_did_not_have_ring(tmp_path: Path) -> None:
    options = "WITH (time = 'at', max_skew = '50 ms')"
    streams = ";".join(f"CREATE STREAM {name} (at TIMESTAMP, k BIGINT) {options}" for name in "ab")
    recording = Recording(tmp_path / "data", streams)
    recording.open("a", "b")
    from_us = recording.now_us
    recording.now_us += SECOND
    recording.feed("b", [(recording.now_us, 1)])
    recording.feed("a", [(recording.now_us, 1)])
    for number in range(3):
        recording.now_us += SECOND
        assert not recording.feed("a", [(recording.now_us, number)]).more
    recording.now_us += SECOND
    recording.step()
    recording.close()
    sql = "CREATE QUERY q WITH (order = 'event') AS SELECT at, k FROM a UNION ALL SELECT at, k FROM b"
    found = replayed(recording, Variation(sql=sql), from_us).data["queries"]["q"]["changed"]
    assert found["rows"] == 5
    assert 40_000 < found["latency_us"]["max"] < 60_000  # b's clock stands in for it, and no step was recorded then


@pytest.mark.parametrize(
    ("variation", "text"),
    [
        (Variation("best"), "strategy"),
        (Variation(settings=[Setting("nobody", "disorder", "1 s")]), "no stream or query nobody existed then"),
        (Variation(settings=[Setting("a", "timestamps", "internal")]), "timestamps of a stream cannot be changed"),
        (Variation(settings=[Setting(None, "disordr", "1 s")]), "has no option disordr; did you mean disorder"),
        (Variation(settings=[Setting("a", "disorder", "soon")]), "--set a.disorder = soon: .*disorder"),
        (Variation(settings=[Setting("totals", "join", "sync")]), "--set totals.join = sync: .*order = 'event'"),
        (Variation(settings=[Setting("totals", "disorder", "1 s")]), "a query has no option disorder"),
        (Variation(sql="CREATE STREAM s (k BIGINT)"), "can only create or replace queries"),
        (Variation(sql="CREATE QUERY totals AS SELECT k FROM a"), "already a query called totals"),
        (Variation(sql="-- nothing"), "got none"),
        (Variation(sql="SELECT nothing FROM a"), "nothing"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(tmp_path: Path, variation: Variation, text: str) -> None:
    recording, _ = play(tmp_path / "data", Random(1), steps=3)
    recording.close()
    with pytest.raises(Refuse, match=text):
        replayed(recording, variation, 2 * SECOND)


def test_a_change_of_nothing_is_refused(tmp_path: Path) -> None:
    recording, _ = play(tmp_path / "data", Random(1), steps=3)
    recording.close()
    with pytest.raises(Refuse, match="--set disorder = 1 s: nothing that it applies to existed then"):
        replayed(recording, Variation(settings=[Setting(None, "disorder", "1 s")]), SECOND)


def test_settings_are_read() -> None:
    assert parse_setting("disorder=1 second") == Setting(None, "disorder", "1 second")
    assert parse_setting("a.b.Disorder = '1 s'") == Setting("a.b", "disorder", "'1 s'")
    assert parse_setting("q.alpha=0.5").literal == 0.5
    assert parse_setting("q.alpha='0.5'").literal == "0.5"
    for text in ("", "disorder", "=1", "a.=1", ".b=1", "disorder="):
        with pytest.raises(Refuse, match=r"expected OPTION=VALUE or NAME.OPTION=VALUE"):
            parse_setting(text)


def test_rows_are_compared_as_a_list_would_be() -> None:
    random, schema = Random(1), Schema.of(k="bigint", x="double")
    for _ in range(200):
        sides = []
        for _ in range(2):
            rows = [(random.randrange(2), random.randrange(2) / 3) for _ in range(random.randrange(4))]
            sides.append([(at, *row) for at, row in enumerate(rows)])
        if random.random() < 0.5:
            sides[1] = random.sample(sides[0], len(sides[0]))
        found = RowComparison(schema, [0])
        for at, side in sorted((at, side) for at, side in enumerate(sides)):
            for row in side:
                found.add(at, Batch.from_rows(schema, [row[1:]], [row[0]]))
        data = found.to_data()
        counts = [Counter(side) for side in sides]
        assert data["only_recorded"] == (counts[0] - counts[1]).total()
        assert data["only_changed"] == (counts[1] - counts[0]).total()
        last = [{row[1]: row for row in side} for side in sides]
        expected = (
            "same" if sides[0] == sides[1]
            else "same, in another order" if counts[0] == counts[1]
            else "same final rows" if last[0] == last[1]
            else "different"
        )  # fmt: skip
        assert data["verdict"] == expected


def test_doubles_are_equal_up_to_the_order_of_a_sum() -> None:
    schema = Schema.of(x="double")
    found = RowComparison(schema, None)
    found.add(0, Batch.from_rows(schema, [(0.1 + 0.2,), (1e300,), (-0.0,)], [1, 2, 3]))
    found.add(1, Batch.from_rows(schema, [(0.3,), (1e300,), (0.0,)], [1, 2, 3]))
    assert found.to_data()["verdict"] == "same"
    found.add(0, Batch.from_rows(schema, [(1.0,)], [1]))
    found.add(1, Batch.from_rows(schema, [(1.0 + 1e-6,)], [1]))
    assert found.to_data()["verdict"] == "different"
