"""Overload as a state that lasts: when it begins and ends, and that short requests shorten the loop's turns."""

import asyncio
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from millrace.run.overload import LASTS_SECONDS, Lasting, Mode, Overload
from millrace.run.runner import HURRIED, LEAST_BUDGET
from millrace.run.shortage import Stage
from tests.server.harness import running
from tests.server.test_api import get

LOOKS = st.lists(st.tuples(st.sampled_from([0.25, 1.0, LASTS_SECONDS]), st.booleans()), max_size=40)


@given(LOOKS)
def test_a_condition_counts_once_it_has_lasted_at_every_look(looks):
    lasting, now, past = Lasting(), 0.0, []
    for passed, holds in looks:
        now += passed
        past.append((now, holds))
        before = lasting.on
        on = lasting.look(now, holds)
        same = [at for at, held in past[_start(past, holds) :] if held == holds]
        turned = holds is not before and now - same[0] >= LASTS_SECONDS
        assert on == (holds if turned else before)


def _start(past, holds):
    """Where the last looks that found the same begin."""
    at = len(past)
    while at and past[at - 1][1] == holds:
        at -= 1
    return at


def server(**more) -> Any:
    state = {"busy": 0.0, "owing": {}, "stage": Stage.ENOUGH, "follows": False, **more}
    return SimpleNamespace(
        runner=SimpleNamespace(busy_seconds=state["busy"], now_us=lambda: 5),
        engine=SimpleNamespace(owing=state["owing"]),
        budget=SimpleNamespace(stage=state["stage"], holds=False),
        follows=state["follows"],
    )


def test_the_mode_is_the_worst_of_load_and_memory_and_is_logged_when_it_begins_and_ends():
    daemon = server(owing={"b": None, "a": None})
    overload = Overload(daemon)
    with capture_logs() as logs:
        for second in range(5):
            daemon.runner.busy_seconds = 0.9 * second
            overload.look(float(second), 0.01 * second)
        assert overload.mode is Mode.WAIT
        assert overload.view().streams == ["a", "b"]
        assert overload.view().load == 0.9
        assert overload.view().loop_delay_seconds == 0.04
        daemon.budget.stage = Stage.SHED
        overload.look(5.0, 0.0)
        assert overload.mode is Mode.WAIT, "memory stands still: nothing is dropped"
        daemon.budget.holds = True
        overload.look(5.0, 0.0)
        assert (overload.mode, overload.since_us) == (Mode.SHED, 5)
        daemon.budget.stage, daemon.budget.holds, daemon.engine.owing = Stage.ENOUGH, False, {}
        for second in range(6, 11):
            overload.look(float(second), 0.0)
        assert (overload.mode, overload.since_us) == (Mode.NONE, None)
    assert [line["event"] for line in logs] == ["the server is overloaded", "the server is no longer overloaded"]
    assert logs[0]["streams"] == ["a", "b"]


def test_a_standby_is_not_overloaded_by_its_primarys_feeds():
    overload = Overload(server(owing={"a": None}, follows=True))
    for second in range(9):
        overload.look(float(second), 0.0)
    assert overload.mode is Mode.NONE


def test_steps_are_shorter_only_while_a_request_is_in_progress():
    async def play():
        async with running("CREATE STREAM s (k BIGINT)") as daemon:
            runner, turns = daemon.runner, daemon.context.turns
            whole = runner._step_budget
            seen = []
            describe = daemon.describe

            def look():
                seen.append((runner._step_budget, turns.hurries))
                return describe()

            daemon.describe = look
            await get(daemon, "/api/v1/server")
            assert seen == [(max(whole // HURRIED, LEAST_BUDGET), True)]
            assert (runner.requests, runner._step_budget, turns.hurries) == (0, whole, False)
            reader, writer = await asyncio.open_connection(daemon.admin.host, daemon.admin.port)
            writer.write(b"nonsense\r\n\r\n")
            assert b"400" in await reader.readline()
            await reader.read()
            writer.close()
            assert runner.requests == 0

    asyncio.run(play())
