"""Views of many operators: made in pieces and written by threads, they show the same as at once."""

from unittest.mock import patch

from millrace.observe import metrics
from millrace.protocol.admin.data import to_data
from millrace.run import daemon as daemons
from tests.server.harness import served
from tests.server.test_api import get
from tests.server.test_statements import post

STREAM = "CREATE STREAM s (k BIGINT, v DOUBLE);"
MANY = STREAM + "".join(f"CREATE QUERY q{n} AS SELECT k FROM s WHERE v > {n};" for n in range(5))


def of_server(text):
    """Without the lines about the process, which change from look to look."""
    return [line for line in text.decode().splitlines() if "process_" not in line and "_memory_used_" not in line]


@served(sql=MANY)
async def test_metrics_and_operators_in_pieces_are_those_made_at_once(daemon):
    with patch.object(daemons, "PIECE", 2), patch.object(metrics, "PIECE", 2):
        pieces = [piece async for piece in daemon.operators_in_pieces()]
        text = await daemon.metrics.scrape(daemon.operators_in_pieces())
    assert max(map(len, pieces)) == 2
    assert [operator for piece in pieces for operator in piece] == daemon.operators()
    assert of_server(text) == of_server(daemon.metrics.text())
    assert "millrace_operator_executions_total" in text.decode()
    assert await get(daemon, "/api/v1/operators") == [to_data(operator) for operator in daemon.operators()]
    assert await get(daemon, "/api/v1/queries") == [to_data(query) for query in daemon.queries()]


@served(sql=MANY)
async def test_operators_that_leave_between_two_pieces_are_left_out(daemon):
    with patch.object(daemons, "PIECE", 2):
        pieces = daemon.operators_in_pieces()
        found = await anext(pieces)
        await post(daemon, "DROP QUERY q4")
        found += [operator async for piece in pieces for operator in piece]
    names = [operator.name for operator in found]
    assert "q3.filter1" in names
    assert "q4.filter1" not in names
