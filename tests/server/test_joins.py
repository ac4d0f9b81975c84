"""Joins of a running server: their order is changed, measured and shown, and there again after a restart."""

import asyncio

from typer.testing import CliRunner

from millrace.changes.set_order import SetOrder
from millrace.cli.main import app
from millrace.http.etags import etag
from tests.server.harness import lines, running, served, until
from tests.server.test_api import ask, get

SQL = """
CREATE STREAM a (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts');
CREATE STREAM b (ts TIMESTAMP, k BIGINT, w BIGINT) WITH (time = 'ts');
CREATE QUERY pairs WITH (order = 'event', join = 'adaptive', alpha = 0.5) AS
  SELECT a.k, v, w FROM a [RANGE '1 s'] JOIN b [RANGE '1 s'] ON a.k = b.k
"""


async def feed(daemon, *rows):
    """Lines `(stream, ts, k, value)`, and the rows that come out."""
    async with lines(daemon) as feeder:
        for stream, ts, k, value in rows:
            column = "v" if stream == "a" else "w"
            feeder.say(f'{{"stream": "{stream}", "tuple": {{"ts": {ts}, "k": {k}, "{column}": {value}}}}}')
        await until(lambda: sum(one.input_tuples for one in daemon.operators() if one.kind == "join") >= len(rows))


def mode_of(text):
    """The mode that the metrics show."""
    (line,) = (line for line in text.splitlines() if line.startswith("millrace_join_mode{") and line.endswith(" 1.0"))
    return line.partition('mode="')[2].partition('"')[0]


@served(SQL)
async def test_the_order_of_a_join_is_changed_while_it_runs(daemon):
    assert mode_of(await get(daemon, "/metrics")) == "sync"
    await feed(daemon, ("a", 1_000, 1, 10), ("b", 1_000, 1, 20))
    before = etag("query", await get(daemon, "/api/v1/queries/pairs"))
    status, _, said = await ask(daemon, "PUT", "/api/v1/queries/pairs/order", {"join": "filter", "alpha": 0.25})
    assert etag("query", await get(daemon, "/api/v1/queries/pairs")) != before
    assert status == 200, said
    assert said["orders"] == {"pairs.join1": "filter"}
    assert (await get(daemon, "/api/v1/queries/pairs"))["joins"] == {"pairs.join1": {"order": "filter", "alpha": 0.25}}
    (join,) = (one.join for one in daemon.operators() if one.kind == "join")
    assert (join.order, join.mode, join.alpha, join.switches) == ("filter", "filter", 0.25, 1)
    text = await get(daemon, "/metrics")
    assert mode_of(text) == "filter"
    assert 'millrace_join_mode_switches_total{component="a",operator="pairs.join1"} 1.0' in text
    assert 'millrace_reconfigurations_total{kind="order",result="done"} 1.0' in text


@served(SQL)
async def test_orders_that_cannot_be_are_refused_and_change_nothing(daemon):
    before = daemon.operators()
    for body, expected, word in (
        ({"join": "fastest"}, 422, "filter"),
        ({"join": "arrival"}, 409, "needs its rows in order"),
        ({"alpha": 2}, 422, "alpha"),
    ):
        status, _, said = await ask(daemon, "PUT", "/api/v1/queries/pairs/order", body)
        assert status == expected, said
        assert word in str(said)
    await daemon.catalog.execute("CREATE QUERY plain AS SELECT k FROM a")
    status, _, said = await ask(daemon, "PUT", "/api/v1/queries/plain/order", {"join": "sync"})
    assert status == 409
    assert "plain has no join" in said["detail"]
    assert [one.join for one in before if one.join] == [one.join for one in daemon.operators() if one.join]


@served(SQL)
async def test_explain_order_says_what_was_measured_and_what_follows(daemon):
    rows = [(stream, 100_000 * at, at % 3, at) for at in range(1, 40) for stream in "ab"]
    await feed(daemon, *rows)
    admin = ["--admin", str(daemon.admin)]
    done = await asyncio.to_thread(CliRunner().invoke, app, ["explain", "--order", "pairs", *admin])
    assert done.exit_code == 0, done.output
    assert "pairs.join1: order adaptive, now takes rows by sync" in done.output
    assert "window |w|                   1 s" in done.output
    assert "(alpha 0.5)" in done.output
    assert all(f"(eq. {number})" in done.output for number in (3, 5, 7))
    done = await asyncio.to_thread(CliRunner().invoke, app, ["query", "order", "pairs", "sync", *admin])
    assert done.exit_code == 0, done.output
    assert [one.join.order for one in daemon.operators() if one.join] == ["sync"]
    done = await asyncio.to_thread(CliRunner().invoke, app, ["explain", "pairs", *admin])
    assert "edited while it runs, until it is replaced:\n  millrace query order pairs sync --alpha 0.5" in done.output


def test_a_changed_order_is_there_again_and_exported(tmp_path):
    import uvloop

    async def lives():
        async with running(SQL, server={"data_dir": str(tmp_path)}) as daemon:
            await daemon.catalog.change(SetOrder(name="pairs", join="filter", alpha=0.125))
            exported = daemon.catalog.keeper.export()
        async with running(server={"data_dir": str(tmp_path)}) as daemon:
            joins = [one.join for one in daemon.operators() if one.join]
            assert [(join.order, join.alpha) for join in joins] == [("filter", 0.125)]
            assert daemon.catalog.keeper.export() == exported
        assert "millrace query order pairs filter --alpha 0.125" in exported.commands

    uvloop.run(lives())
