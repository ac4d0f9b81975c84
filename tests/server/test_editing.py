"""Operators put into a running server's queries: by API and command line, planned, conditional, exported, restored."""

import asyncio
import shlex

import pytest
from typer.testing import CliRunner

from millrace.cli.main import app
from millrace.http.etags import etag
from millrace.protocol.admin.data import to_data
from tests.server.harness import lines, running, served, until
from tests.server.test_api import ask, get
from tests.server.test_etags import ask as tagged

SQL = """
CREATE STREAM a (ts TIMESTAMP, k BIGINT, v BIGINT) WITH (time = 'ts');
CREATE STREAM b (ts TIMESTAMP, k BIGINT, w BIGINT) WITH (time = 'ts');
CREATE QUERY pairs AS SELECT a.k, v, w FROM a [RANGE '1 s'] JOIN b [RANGE '1 s'] ON a.k = b.k;
CREATE QUERY some WITH (fuse = 'off') AS SELECT k, v FROM (SELECT k, v FROM a WHERE v > 0) WHERE k >= 0;
CREATE QUERY many AS SELECT k, count(*) AS n FROM a GROUP BY k HAVING count(*) > 1
"""


async def cli(daemon, *words):
    done = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--admin", str(daemon.admin)])
    return done.exit_code, done.output


def names(daemon, query):
    (found,) = (one for one in daemon.queries() if one.name == query)
    return found.operators


def shown(daemon, name):
    return next(one for one in daemon.operators() if one.name == name)


async def feed(daemon, *rows):
    async with lines(daemon) as feeder:
        before = sum(one.tuples for one in daemon.streams())
        for stream, ts, k, value in rows:
            column = "v" if stream == "a" else "w"
            feeder.say(f'{{"stream": "{stream}", "tuple": {{"ts": {ts}, "k": {k}, "{column}": {value}}}}}')
        await until(lambda: sum(one.tuples for one in daemon.streams()) >= before + len(rows))
        await until(lambda: not any(one.ready for one in daemon.components()))


@served(SQL)
async def test_a_select_goes_in_front_of_a_join_and_out_again(daemon):
    await feed(daemon, ("a", 1_000, 3, 30))
    code, text = await cli(daemon, "operator", "insert", "pairs.join1", "--input", "1", "--where", "mod(w, 2) = 0")
    assert code == 0, text
    assert text.endswith("inserted pairs.filter1 in front of pairs.join1, input 1, until its query is replaced\n")
    assert shown(daemon, "pairs.filter1").inserted
    assert shown(daemon, "pairs.filter1").where == "mod(w, 2) = 0"
    await feed(daemon, ("b", 1_000, 3, 7), ("b", 1_001, 3, 8))
    assert shown(daemon, "pairs.sink1").input_tuples == 1
    code, text = await cli(daemon, "operator", "replace", "pairs.filter1", "--sample", "0.5", "--seed", "4")
    assert code == 0, text
    assert text.endswith("replaced pairs.filter1 until its query is replaced\n")
    assert shown(daemon, "pairs.filter1").sample == 0.5
    assert "pairs.filter1" in (await cli(daemon, "operator", "list"))[1]
    assert "--sample 0.5 --seed 4" in (await daemon.catalog.explain("pairs")).text
    code, text = await cli(daemon, "operator", "remove", "pairs.filter1")
    assert code == 0, text
    assert text.endswith("removed pairs.filter1 until its query is replaced\n")
    await feed(daemon, ("b", 1_002, 3, 9))
    assert shown(daemon, "pairs.sink1").input_tuples == 2
    metrics = await get(daemon, "/metrics")
    for kind in ("insert", "remove", "replace"):
        assert f'millrace_reconfigurations_total{{kind="{kind}_operator",result="done"}} 1.0' in metrics


@served(SQL)
async def test_a_plan_shows_the_table_before_and_after_and_does_nothing(daemon):
    before = daemon.operators()
    code, text = await cli(daemon, "operator", "insert", "pairs.join1", "--where", "k > 0", "--plan")
    assert code == 0, text
    assert "pairs.filter1" in text
    assert "state before" in text
    assert "state after" in text
    code, text = await cli(daemon, "operator", "remove", "some.filter1", "--plan")
    assert code == 0, text
    assert "some.filter1" in text.partition("state before")[2].partition("state after")[0]
    assert [one.name for one in daemon.operators()] == [one.name for one in before]
    assert daemon.catalog.keeper.decisions().operators == ()


@served(SQL)
async def test_what_is_wrong_is_refused_and_changes_nothing(daemon):
    before = daemon.operators()
    for method, path, body, expected, word in (
        ("POST", "pairs.join1/insert", {"where": "mod(u, 2) = 0"}, 400, "the column u does not exist"),
        ("POST", "pairs.join1/insert", {"where": "k"}, 400, "expected boolean"),
        ("POST", "pairs.join1/insert", {}, 400, "expected either"),
        ("POST", "pairs.join1/insert", {"where": "true", "sample": 0.5}, 400, "expected either"),
        ("POST", "pairs.join1/insert", {"where": "true", "seed": 1}, 400, "only a sample draws at random"),
        ("POST", "pairs.join1/insert", {"sample": 1.5}, 422, "sample"),
        ("POST", "pairs.join1/insert", {"where": "true", "input": 2}, 409, "from 0 to 1, got 2"),
        ("POST", "pairs.join1/insert", {"where": "true", "name": "some.filter1"}, 409, "already"),
        ("POST", "pairs.sink1/insert", {"where": "true"}, 409, "is a sink"),
        ("POST", "nobody/insert", {"where": "true"}, 404, "nobody"),
        ("DELETE", "pairs.join1", None, 409, "creates rows"),
        ("DELETE", "a.source", None, 409, "is a source"),
        ("PUT", "pairs.join1", {"where": "true"}, 409, "not one that filters rows"),
    ):
        status, _, said = await ask(daemon, method, f"/api/v1/operators/{path}", body)
        assert (status, word in said["detail"] or word in str(said)) == (expected, True), said
    assert [one.name for one in daemon.operators()] == [one.name for one in before]
    code, _ = await cli(daemon, "operator", "insert", "pairs.join1")
    assert code == 2
    assert (await cli(daemon, "operator", "insert", "pairs.join1", "--where", "k >"))[0] == 1


@served(SQL)
async def test_a_condition_has_a_caret_in_its_own_text(daemon):
    status, _, said = await ask(daemon, "POST", "/api/v1/operators/pairs.join1/insert", {"where": "k > 0 AND\n u = 1"})
    assert (status, said["line"], said["column"]) == (400, 2, 2)


@served(SQL)
async def test_who_has_seen_an_older_state_changes_nothing(daemon):
    seen = etag("operator", to_data(shown(daemon, "pairs.join1")))
    path = "operators/pairs.join1/insert"
    assert (await tagged(daemon, "POST", path, {"where": "true"}, '"other"'))[0] == 412
    status, given, said = await tagged(daemon, "POST", path, {"where": "true"}, seen)
    assert status == 200, said
    assert seen != given == etag("operator", to_data(shown(daemon, "pairs.join1")))
    tag = etag("operator", to_data(shown(daemon, said["operator"])))
    path = f"operators/{said['operator']}"
    assert (await tagged(daemon, "PUT", path, {"where": "k > 3"}, tag))[0] == 200
    assert (await tagged(daemon, "DELETE", path, None, tag))[0] == 412
    assert (await tagged(daemon, "DELETE", path))[0] == 200


@served(SQL)
async def test_a_select_that_shows_keys_forgets_which_and_says_so(daemon):
    await feed(daemon, ("a", 1_000, 3, 1), ("a", 1_001, 3, 1), ("a", 1_002, 4, 1))
    name = next(one for one in names(daemon, "many") if "filter" in one)
    status, _, said = await ask(daemon, "PUT", f"/api/v1/operators/{name}", {"where": "n > 0"})
    assert status == 200, said
    assert said["forgotten"] == 2
    status, _, said = await ask(daemon, "POST", f"/api/v1/operators/{name}/insert", {"where": "n > 0"})
    assert (status, said["type"]) == (409, "urn:millrace:update_stream")


EDITS = (
    "operator insert pairs.join1 --input 1 --where 'mod(w, 2) = 0'",
    "operator insert pairs.filter1 --input 0 --sample 0.25 --seed 9",
    'operator insert some.filter2 --where "k <> 7 -- it\'s"',
    "operator remove some.filter1",
    "operator replace some.filter3 --where 'k > 1'",
    "operator replace some.filter2 --where 'k > 2'",
    "break set pairs.filter1",
    "strategy set a bfs --operator pairs.filter2",
)


@pytest.mark.parametrize("how", ["restart", "export"])
def test_what_was_put_in_is_there_again(tmp_path, how):
    async def play():
        async with running(SQL, server={"data_dir": str(tmp_path)}) as daemon:
            for line in EDITS:
                code, text = await cli(daemon, *shlex.split(line))
                assert code == 0, text
            before, exported = described(daemon), daemon.catalog.keeper.export()
        async with running(None, server={"data_dir": str(tmp_path)} if how == "restart" else {}) as again:
            if how == "export":
                await again.catalog.execute(exported.sql)
                for command in exported.commands:
                    code, text = await cli(again, *shlex.split(command)[1:])
                    assert code == 0, text
            assert described(again) == before
            assert names(again, "pairs") == ["pairs.filter2", "pairs.filter1", "pairs.join1"]
            assert names(again, "some") == ["some.project1", "some.filter3", "some.filter2"]
            assert again.catalog.keeper.export().commands == exported.commands
            replaced = "CREATE OR REPLACE QUERY some WITH (fuse = 'off') AS SELECT k, v FROM a WHERE v > 0"
            (told,) = await again.catalog.execute(replaced)
            assert "these edits are undone" in told.warnings[-1]
            assert names(again, "some") == ["some.filter1", "some.project1"]
            assert not [edit for edit in again.catalog.keeper.decisions().operators if edit.query == "some"]

    asyncio.run(play())


def described(daemon):
    kept = ("name", "inserted", "where", "sample", "strategy", "break_")
    return [{key: getattr(one, key) for key in kept} for one in daemon.operators()]


@served(SQL)
async def test_what_a_replacement_undoes_is_said_under_whatever_name_the_query_has_by_then(daemon):
    code, text = await cli(daemon, *shlex.split(EDITS[0]))
    assert code == 0, text
    name = daemon.catalog.keeper.export().decisions["operators"][0]["operator"].partition(".")[0]
    sql = daemon.catalog.known.queries[name].sql.partition(" AS ")[2]
    script = f"ALTER QUERY {name} RENAME TO other; CREATE OR REPLACE QUERY other AS {sql}"
    *_, told = await daemon.catalog.execute(script)
    assert "query other has inserted" in str(told.warnings)


ALIKE = """
CREATE STREAM u (k BIGINT, v BIGINT);
CREATE QUERY c AS SELECT k, count(*) AS n FROM u GROUP BY k;
CREATE QUERY d AS SELECT k, sum(v) AS s FROM u GROUP BY k
"""


def test_what_was_put_in_and_is_not_shared_is_there_again_in_that_order(tmp_path, capsys):
    """Equal selects in front of two queries are separate until their states are compared; a restart keeps that."""

    async def play():
        async with running(ALIKE, server={"data_dir": str(tmp_path)}) as daemon:
            for name in ("c", "d"):
                code, text = await cli(daemon, "operator", "insert", f"{name}.aggregate1", "--where", "k > 1")
                assert code == 0, text
            exported = daemon.catalog.keeper.export()
            assert [command.split()[2] for command in exported.commands][:2] == ["insert", "insert"]
            assert [one.query for one in daemon.catalog.keeper.decisions().apart] == ["d"]
            code, text = await cli(daemon, "query", "unshare", "d")
            assert code == 0, text
            exported = daemon.catalog.keeper.export()
            assert [command.split()[2] for command in exported.commands][:3] == ["insert", "insert", "unshare"]
        async with running(None, server={"data_dir": str(tmp_path)}) as again:
            assert again.catalog.keeper.export().commands == exported.commands
        async with running() as other:
            await other.catalog.execute(exported.sql)
            for command in exported.commands:
                code, text = await cli(other, *shlex.split(command)[1:])
                assert code == 0, text

    asyncio.run(play())
    assert "does not fit" not in capsys.readouterr().out


TWINS = "CREATE STREAM u (k BIGINT);" + ";".join(
    f"CREATE QUERY {name} AS SELECT k FROM u WHERE k > 1" for name in ("c", "d")
)


@served(TWINS)
async def test_a_shared_operator_is_found_by_all_of_its_names(daemon):
    assert names(daemon, "d") == names(daemon, "c") == ["c.filter1"]
    code, text = await cli(daemon, "operator", "insert", "d.filter1", "--where", "k < 9")
    assert code == 0, text
    assert (names(daemon, "c"), names(daemon, "d")) == (["c.filter1"], ["d.filter2", "d.filter1"])
