"""A change that the engine refuses although its trial succeeded: the server has the state before, and continues."""

import pytest

from millrace.engine.saving import pack, unpack
from tests.engine.test_rolling_back import refusing
from tests.server.harness import served
from tests.server.test_api import ask, get

SQL = """CREATE STREAM s (k BIGINT); CREATE QUERY p AS SELECT k FROM s WHERE k > 1;
    CREATE QUERY q AS SELECT k FROM s WHERE k > 1; CREATE QUERY r AS SELECT k + 1 AS k FROM s"""


@pytest.mark.parametrize("at", [1, 2])
@served(SQL)
async def test_several_statements_are_rolled_back(daemon, at):
    sql = "CREATE QUERY t AS SELECT k FROM s; DROP QUERY r"
    await _rolled_back(daemon, at, 2, "POST", "/api/v1/sql", {"sql": sql})


@served(SQL)
async def test_a_change_of_a_query_that_shares_operators_is_rolled_back(daemon):
    assert daemon.engine.query("q").operators[0] is daemon.engine.query("p").operators[0]
    await _rolled_back(daemon, 1, 1, "PUT", "/api/v1/operators/q.filter1/break")


async def _everything(daemon):
    """The engine's state but for the clock and for turns, the catalog and the ledger."""
    state = unpack(daemon.engine.save())
    kept = {name: value for name, value in state.items() if name not in ("now_us", "turn", "merge_wait", "components")}
    return [pack(kept), *[await get(daemon, f"/api/v1/{path}") for path in ("catalog", "changes")]]


async def _rolled_back(daemon, at, changes, method, path, body=None):
    """Request a change; the engine refuses the command with this number. Then nothing has changed, and it succeeds."""
    await daemon.runner.wait_drained()
    before = await _everything(daemon)
    with refusing(daemon.engine, at):
        status, _, said = await ask(daemon, method, path, body)
    assert (status, said["code"]) == (500, "rolled_back")
    assert "Everything is as it was before the change" in said["detail"]
    await daemon.runner.wait_drained()
    assert before == await _everything(daemon)
    metrics = (await get(daemon, "/metrics")).splitlines()
    counts = [float(line.split()[-1]) for line in metrics if "reconfigurations_total" in line and "rolled_back" in line]
    assert sum(counts) == changes
    status, _, _ = await ask(daemon, method, path, body)
    assert status == 200
