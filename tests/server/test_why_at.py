"""`why --at`: a server says what a query was waiting for in the words that it had then."""

import asyncio
import shutil
from dataclasses import replace

import pytest

from millrace.journal.past import Past
from millrace.protocol import Refuse, format_timestamp
from millrace.protocol.admin.data import to_data
from millrace.run.moments import why_at
from tests.cli.conftest import millrace
from tests.server.directories import feed, killed
from tests.server.harness import running, served, until
from tests.server.test_api import ask

SQL = """
CREATE STREAM s (k BIGINT);
CREATE STREAM left_ (at TIMESTAMP, k BIGINT) WITH (time = 'at');
CREATE STREAM right_ (at TIMESTAMP, k BIGINT) WITH (time = 'at');
CREATE QUERY q AS SELECT k FROM s WHERE k % 2 = 0;
CREATE QUERY totals AS SELECT k % 3 AS r, count(*) AS n FROM s GROUP BY k % 3;
CREATE QUERY ordered WITH (order = 'event') AS SELECT at, k FROM left_ UNION ALL SELECT at, k FROM right_;
"""
QUERIES = ("q", "totals", "ordered")


async def get(daemon, path):
    status, _, answer = await ask(daemon, "GET", f"/api/v1/{path}")
    return status, answer


async def taken(daemon):
    """A moment after everything so far, and the answers at it."""
    before = daemon.runner.now_us()
    await until(lambda: daemon.runner.now_us() > before)
    at_us = daemon.runner.now_us()
    found = {name: daemon.engine.why(name, at_us) for name in QUERIES}
    await until(lambda: daemon.runner.now_us() > at_us)
    return at_us, found


def test_it_says_what_why_said_then(tmp_path):
    moments = []

    async def more(daemon):
        for first in (20, 40):
            moments.append(await taken(daemon))
            await daemon.catalog.execute("INSERT INTO left_ (at, k) VALUES ('2026-01-01 00:00:00', 1)")
            moments.append(await taken(daemon))
            await feed(daemon, first, 3)
            await daemon.durability.make()
        moments.append(await taken(daemon))

    killed(tmp_path / "one", tmp_path / "image", more=more, sql=SQL)
    for at_us, found in moments:
        for name in QUERIES:
            answer = why_at(tmp_path / "image", name, at_us, alive_us=moments[-1][0])
            assert answer == replace(found[name], at_us=at_us)
    texts = {found["ordered"].text for _, found in moments}
    assert any("no client is feeding right_" in text for text in texts)


def test_a_running_server_answers_about_its_past(tmp_path):
    async def play():
        async with running(SQL, server={"data_dir": str(tmp_path)}) as daemon:
            await feed(daemon, 0, 3)
            at_us, found = await taken(daemon)
            await feed(daemon, 10, 3)
            await daemon.catalog.execute("DROP QUERY totals")
            # The query has gone, but was there then. The server answers one question after the other.
            both = await asyncio.gather(*(get(daemon, f"queries/totals/why?at={at_us}") for _ in range(2)))
            (status, answer), (refused, problem) = sorted(both, key=lambda one: one[0])
            assert (status, answer) == (200, to_data(replace(found["totals"], at_us=at_us)))
            assert (refused, problem["code"]) == (503, "busy")
            from_us = Past(tmp_path).span().from_us
            for at, status, code, text in (
                ("soon", 400, "bad_value", "expected a time"),
                ("2999-01-01", 400, "bad_value", "is in the future of the server's clock"),
                (str(from_us - 1), 409, "not_retained", f"from {format_timestamp(from_us)} to "),
            ):
                got, problem = await get(daemon, f"queries/q/why?at={at}")
                assert (got, problem["code"]) == (status, code)
                assert text in problem["detail"]
            with pytest.raises(Refuse, match=f"query q did not exist at {format_timestamp(from_us)}") as raised:
                why_at(tmp_path, "q", from_us)
            assert raised.value.code == "unknown_query"

    asyncio.run(play())


@served(SQL)
async def test_a_server_without_a_data_directory_has_no_past(daemon):
    status, problem = await get(daemon, "queries/q/why?at=0")
    assert (status, problem["code"]) == (409, "not_retained")
    assert "it needs a data directory" in problem["detail"]


# -- the command line --------------------------------------------------------------------------------------------------


def test_the_directory_of_a_server_that_has_ended(tmp_path):
    killed(tmp_path / "one", tmp_path / "image", sql=SQL)
    shutil.rmtree(tmp_path / "one")
    data = str(tmp_path / "image")
    span = Past(tmp_path / "image").span()
    done = millrace("why", "q", "--data-dir", data, "--at", str(span.to_us))
    assert (done.returncode, done.stderr) == (0, "")
    assert "q.filter1 filtered it out; it has passed 10 of 20 tuples." in done.stdout
    done = millrace("why", "q", "--data-dir", data, "--at", str(span.to_us + 1))
    assert (done.returncode, done.stdout) == (1, "")
    assert span.text in done.stderr
    assert millrace("why", "q", "--data-dir", data).returncode == 2
    assert "no past: name the data directory" in millrace("why", "q", "--data-dir", str(tmp_path), "--at", "0").stderr
