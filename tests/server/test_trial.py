"""Trials of strategies: measured, then kept or reverted, whichever client leaves meanwhile."""

import asyncio
import contextlib
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.changes.set_strategy import SetStrategy
from millrace.observe import latencies as latencies_module
from millrace.observe.conditions import MEASURES, parse_condition
from millrace.observe.latencies import Latencies
from millrace.observe.trial import Meter
from millrace.protocol import Refuse
from millrace.store.catalog import CatalogFile
from tests.server.harness import SCHEMA_SQL, lines, peer, running, served, until
from tests.server.test_api import ask, get

TRIAL = "/api/v1/components/s/trial"
NOTHING = dict.fromkeys([*MEASURES.values(), "rows"], 0.0)


# -- conditions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "during", "wanted"),
    [
        ("p99 > 200ms", {"p99_us": 200_001}, True),
        ("p99 > 200ms", {"p99_us": 200_000}, False),
        ("P99>=200 ms", {"p99_us": 200_000}, True),
        ("mean > 1.5x", {"mean_us": 15}, False),
        ("mean > 1.5x", {"mean_us": 16}, True),
        ("queue > 1000", {"queue_mean": 1_001}, True),
        ("peak-queue > 2x", {"queue_peak": 21}, True),
        ("idle-wait > 20%", {"idle": 0.21}, True),
        ("idle-wait > 20%", {"idle": 0.20}, False),
        ("steps < 0.5x", {"steps_per_second": 4}, True),
        ("p50 > 1s or p99 > 2 s", {"p50_us": 5, "p99_us": 3_000_000}, True),
        ("p50 > 1s OR p99 > 2 s", {"p50_us": 5, "p99_us": 5}, False),
    ],
)
def test_conditions(text, during, wanted):
    before = dict.fromkeys(NOTHING, 10.0)
    reason = parse_condition(text).reason(before, {**before, **during})
    assert (reason is not None) == wanted
    assert reason is None or reason in text


@pytest.mark.parametrize(
    "text",
    ["", "p99", "p99 > ", "p99 > 200", "p99 = 5ms", "p98 > 5ms", "p99 > -5ms", "queue > 5 ms", "idle-wait > 0.2",
     "p99 > 1ms and p50 > 1ms", "queue > 1e9", "queue > x", "p99 > 1 month", "p99 > 5ms or", "or", "steps > nan"],
)  # fmt: skip
def test_conditions_that_cannot_be_read_say_which_can(text):
    with pytest.raises(Refuse, match="the forms are 'p99 > 200ms'") as refused:
        parse_condition(text)
    assert refused.value.code == "bad_condition"


@given(st.text())
def test_any_text_is_a_condition_or_is_refused(text):
    with contextlib.suppress(Refuse):
        assert parse_condition(text).comparisons


def test_rows_that_stay_away_are_a_reason():
    before, during = {**NOTHING, "rows": 5.0, "p99_us": 5.0}, {**NOTHING, "rows": 0.0, "p99_us": None}
    assert "no rows were emitted during the trial" in str(parse_condition("p99 > 1s").reason(before, during))
    assert parse_condition("queue > 5").reason(before, during) is None
    assert parse_condition("p99 > 1s").reason(during, during) is None


# -- measuring -----------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 10_000_000), min_size=1), max_size=20))
def test_latencies_are_exact(batches):
    latencies = Latencies()
    for batch in batches:
        latencies.add(np.array(batch))
    waited = sorted(us for batch in batches for us in batch)
    assert latencies.rows == len(waited)
    if not waited:
        assert (latencies.mean_us(), latencies.quantiles_us(50, 99)) == (None, [None, None])
        return
    assert latencies.mean_us() == pytest.approx(sum(waited) / len(waited))
    assert latencies.most_us == waited[-1]
    for percent, found in zip((50, 99), latencies.quantiles_us(50, 99), strict=True):
        assert found == next(us for at, us in enumerate(waited, 1) if at * 100 >= percent * len(waited))


@pytest.mark.parametrize("size", [1, 7, 1_000, 10_000])
def test_beyond_the_samples_that_are_kept_quantiles_are_of_every_so_manieth_row(monkeypatch, size):
    monkeypatch.setattr(latencies_module, "SAMPLES", 500)
    latencies = Latencies()
    for start in range(0, 10_000, size):
        latencies.add(np.arange(start, min(start + size, 10_000)))
    assert (latencies.rows, latencies.most_us, latencies.mean_us()) == (10_000, 9_999, 4_999.5)
    kept = range(0, 10_000, 32)  # 313 rows: twice as many would be more than the samples
    percents = range(1, 101)
    assert latencies.quantiles_us(*percents) == [kept[-(-percent * len(kept) // 100) - 1] for percent in percents]


# -- trials --------------------------------------------------------------------------------------------------------


def wish(**more):
    return {"strategy": "bfs", "for": "30 ms", **more}


async def begin(daemon, **more):
    status, _, said = await ask(daemon, "POST", TRIAL, wish(**more))
    assert status == 202, said
    return said


async def ended(daemon):
    await until(lambda: daemon.trials.look("s").state == "ended")
    return await get(daemon, TRIAL)


def strategies(daemon):
    component = daemon.components()[0]
    return component.strategy, component.strategies


@served()
async def test_a_trial_is_measured_and_kept(daemon):
    before = strategies(daemon)
    begun = await begin(daemon, **{"before": "200 ms", "for": "300 ms"})
    assert (begun["state"], begun["previous"], begun["before"], begun["outcome"]) == ("before", "dfs", None, None)
    assert strategies(daemon) == before
    async with lines(daemon) as feeder:
        fed = 0
        while daemon.trials.look("s").state != "ended":
            feeder.say(f'{{"stream": "s", "tuple": {{"k": {fed}}}}}')
            fed += 1
            await asyncio.sleep(0.002)
        said = await ended(daemon)
    assert (said["outcome"], said["reason"]) == ("kept", "as requested")
    assert strategies(daemon)[0] == "bfs"
    for span, seconds in (("before", 0.2), ("during", 0.3)):
        measured = said[span]
        assert measured["seconds"] >= seconds
        if measured["rows"]:
            assert 0 < measured["p50_us"] <= measured["p99_us"] <= measured["max_us"]
            assert measured["steps_per_second"] > 0
    rows = said["before"]["rows"] + said["during"]["rows"]
    assert 0 < rows <= fed
    assert said["left_seconds"] == 0


@served("CREATE STREAM s (k BIGINT, name TEXT); CREATE QUERY q AS SELECT name, count(*) AS n FROM s GROUP BY name")
async def test_memory_is_that_of_states_and_queued_tuples(daemon):
    await daemon.catalog.execute("INSERT INTO s VALUES (1, 'one'), (2, 'two')")
    await daemon.runner.wait_drained()
    meter = Meter(daemon.engine, "s", 0, {})
    for _ in range(11):
        meter.look()
    states = sum(one.state_bytes for one in daemon.operators())
    measured = meter.ended(1, {})
    queued = daemon.component("s").queued_bytes
    assert measured.memory_mean_bytes == measured.memory_peak_bytes == states + queued > 0
    await daemon.catalog.execute("INSERT INTO s VALUES (3, 'three')" + ", (4, '" + "x" * 9_000 + "')")
    await daemon.runner.wait_drained()
    for _ in range(10):
        meter.look()
    measured = meter.ended(1, {})
    assert states + queued < measured.memory_mean_bytes < measured.memory_peak_bytes


@pytest.mark.parametrize(
    ("more", "outcome", "reason"),
    [
        ({"revert": True}, "reverted", "as requested"),
        ({"revert_if": "queue >= 0"}, "reverted", "queue >= 0"),
        ({"revert_if": "queue > 1000000 or steps >= 0"}, "reverted", "steps >= 0"),
        ({"revert_if": "queue > 1000000"}, "kept", "no row was emitted, so nothing could be compared"),
        ({"operator": "q.filter1", "revert": True}, "reverted", "as requested"),
        ({"operator": "q.filter1"}, "kept", "as requested"),
    ],
)
@served()
async def test_how_a_trial_ends(daemon, more, outcome, reason):
    await daemon.catalog.change(SetStrategy(name="s", strategy="dfs(5)"))
    await daemon.catalog.change(SetStrategy(name="s", strategy="rr(3)", operator="q.filter1"))
    before = strategies(daemon)
    said = await begin(daemon, **more)
    assert said["previous"] == ("rr(3)" if "operator" in more else "dfs(5)")
    assert daemon.catalog.keeper.decisions().components[0].strategy == "dfs(5)"
    said = await ended(daemon)
    assert (said["outcome"], said["reason"]) == (outcome, reason)
    if outcome == "reverted":
        assert strategies(daemon) == before
    elif "operator" in more:
        assert strategies(daemon) == ("dfs(5)", {**before[1], "q.filter1": "bfs"})
    else:
        assert strategies(daemon) == ("bfs", dict.fromkeys(before[1], "bfs"))


@served()
async def test_one_at_a_time_and_nobody_else_changes_the_strategy_meanwhile(daemon):
    await begin(daemon, **{"for": "20 s", "before": "10 ms"})
    for method, path, body in [
        ("POST", TRIAL, wish()),
        ("PUT", "/api/v1/components/s/strategy", {"strategy": "rr"}),
        ("PUT", "/api/v1/components/s/strategy", {"strategy": "rr", "operator": "q.filter1"}),
    ]:
        status, _, said = await ask(daemon, method, path, body)
        assert (status, said["code"]) == (409, "trial_running")
        assert "strategy trial s --cancel" in said["detail"]
    await until(lambda: strategies(daemon)[0] == "bfs")
    # Until the decision, the catalog has the previous strategy.
    assert "millrace strategy set s dfs" in daemon.catalog.keeper.export().commands
    await daemon.catalog.execute("CREATE STREAM other (k BIGINT)")
    assert (await ask(daemon, "PUT", "/api/v1/components/other/strategy", {"strategy": "rr"}))[0] == 200
    status, _, said = await ask(daemon, "DELETE", TRIAL)
    assert (status, said["outcome"]) == (200, "cancelled")
    assert strategies(daemon)[0] == "dfs"
    assert (await ask(daemon, "DELETE", TRIAL))[2]["code"] == "unknown_trial"
    assert (await ask(daemon, "PUT", "/api/v1/components/s/strategy", {"strategy": "rr"}))[0] == 200


@served()
async def test_operators_that_came_meanwhile_go_back_too(daemon):
    await begin(daemon, **{"for": "20 s", "before": "10 ms"})
    await until(lambda: strategies(daemon)[0] == "bfs")
    await daemon.catalog.execute(
        "CREATE QUERY more WITH (fuse = 'off') AS SELECT k FROM s WHERE k > 7; CREATE STREAM t (k BIGINT)"
    )
    await daemon.catalog.change(SetStrategy(name="t", strategy="rr(9)"))
    await daemon.catalog.execute("CREATE QUERY joined AS SELECT k FROM s UNION ALL SELECT k FROM t")
    assert strategies(daemon)[1]["more.filter1"] == "bfs"
    await ask(daemon, "DELETE", TRIAL)
    component, rows = strategies(daemon)
    assert (component, rows.pop("t.source")) == ("dfs", "rr(9)")
    assert set(rows.values()) == {"dfs"}


@served()
async def test_a_component_that_goes_ends_its_trial(daemon):
    await begin(daemon, **{"for": "20 s"})
    await daemon.catalog.execute("DROP QUERY q; DROP STREAM s")
    await until(lambda: daemon.trials.look("s").state == "ended")
    said = daemon.trials.look("s")
    assert (said.outcome, said.reason) == ("failed", "component s no longer exists")
    await daemon.catalog.execute(SCHEMA_SQL)
    await begin(daemon)
    assert (await ended(daemon))["outcome"] == "kept"


@served()
async def test_wishes_that_make_no_sense_start_nothing(daemon):
    for body, status, code in [
        (wish(strategy="fast"), 400, "unknown_strategy"),
        (wish(revert_if="p99 > 5"), 400, "bad_condition"),
        (wish(operator="x"), 404, "unknown_operator"),
        ({**wish(), "for": "a while"}, 400, "bad_span"),
        ({**wish(), "for": "2 hours"}, 400, "bad_span"),
        (wish(before="-1 s"), 400, "bad_span"),
        ({"strategy": "bfs"}, 422, "invalid_request"),
        (wish(more=1), 422, "invalid_request"),
    ]:
        said = await ask(daemon, "POST", TRIAL, body)
        assert (said[0], said[2]["code"]) == (status, code), body
    assert (await ask(daemon, "POST", "/api/v1/components/x/trial", wish()))[0] == 404
    assert (await ask(daemon, "GET", TRIAL))[2]["code"] == "unknown_trial"
    assert (await ask(daemon, "PUT", "/api/v1/components/s/strategy", {"strategy": "rr"}))[0] == 200


def killed(folder):
    """A copy of a server's folder, as it would find it if it were killed now."""
    return shutil.copytree(folder, folder.with_name("killed"))


def test_what_is_only_tried_does_not_outlive_the_server(tmp_path):
    async def first():
        async with running(SCHEMA_SQL, server={"data_dir": tmp_path}) as daemon:
            await daemon.catalog.change(SetStrategy(name="s", strategy="rr(4)"))
            await begin(daemon, **{"for": "20 s", "before": "10 ms"})
            await until(lambda: strategies(daemon)[0] == "bfs")
            # Something else is written down meanwhile.
            await daemon.catalog.execute("CREATE STREAM other (k BIGINT)")
            with contextlib.closing(CatalogFile(killed(tmp_path) / "catalog.sqlite")) as catalog:
                kept = catalog.read().decisions
        assert daemon.trials.look("s").outcome == "cancelled"
        return kept

    async def second():
        async with running(server={"data_dir": tmp_path}) as daemon:
            return strategies(daemon)[0]

    kept = asyncio.run(first())
    assert '"rr(4)"' in kept
    assert "bfs" not in kept
    assert asyncio.run(second()) == "rr(4)"


@served()
async def test_no_row_is_lost_or_changed_by_a_trial(daemon):
    async with peer(daemon) as feeder, peer(daemon) as reader:
        await feeder.open()
        await reader.subscribe("q")
        reader.credit(100_000)
        await begin(daemon, **{"for": "30 ms", "before": "10 ms", "revert": True})
        for start in range(0, 5_000, 50):
            feeder.data(start, [(k, 0.0, "") for k in range(start, start + 50)])
            await asyncio.sleep(0.001)
        rows: list[int] = []
        while len(rows) < 5_000:
            message = await reader.hear()
            rows += [row[0] for row in getattr(message, "rows", ())]
        assert rows == list(range(5_000))
        assert (await ended(daemon))["outcome"] == "reverted"
