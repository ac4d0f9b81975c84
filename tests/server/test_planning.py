"""SQL is planned outside the loop: others are served meanwhile, changes are noticed, too many requests are refused."""

import asyncio
import json
import sys
import threading

import pytest

from millrace.changes import edits
from millrace.changes import statements as texts
from millrace.changes.pause_query import PauseQuery
from millrace.changes.rename_query import RenameQuery
from millrace.protocol import Refuse
from millrace.run.planning import Planning
from millrace.sql.limits import Limits
from tests.patience import HANG_SECONDS
from tests.server.harness import Held, running, served, settle, until

SCHEMA = "CREATE STREAM s (k BIGINT, v BIGINT); CREATE QUERY q AS SELECT k, v FROM s"


async def ask(daemon, method, path, body=None, headers=(), *, text=False):
    """Status, content and headers of one request."""
    reader, writer = await asyncio.open_connection(daemon.admin.host, daemon.admin.port)
    content = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        f"host: {daemon.admin}",
        "connection: close",
        "content-type: application/json",
    ]
    lines += [f"content-length: {len(content)}", *(f"{name}: {value}" for name, value in dict(headers).items())]
    writer.write("\r\n".join([*lines, "", ""]).encode() + content)
    top, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *more = top.decode().split("\r\n")
    return (
        int(first.split()[1]),
        rest.decode() if text else json.loads(rest),
        {line.partition(": ")[0].lower(): line.partition(": ")[2] for line in more},
    )


class Gate:
    """Holds the planning of texts with a word in them until it is opened."""

    def __init__(self, monkeypatch, word):
        self.entered = threading.Event()
        self.open = threading.Event()
        self.threads: list[int] = []
        self.texts: list[str] = []
        plan_all = vars(texts)["plan_all"]

        def slowly(statements, known, **options):
            self.threads.append(threading.get_ident())
            text = statements[0].text if statements else ""
            self.texts.append(text)
            if word in text:
                self.entered.set()
                assert self.open.wait(HANG_SECONDS)
            return plan_all(statements, known, **options)

        monkeypatch.setattr(texts, "plan_all", slowly)

    async def wait_entered(self):
        await until(self.entered.is_set)


@served(SCHEMA)
async def test_the_loop_serves_others_while_a_statement_is_planned(daemon, monkeypatch):
    gate = Gate(monkeypatch, "heavy")
    heavy = asyncio.create_task(daemon.catalog.execute("CREATE QUERY heavy AS SELECT k FROM s"))
    await gate.wait_entered()
    paused = await daemon.catalog.change(PauseQuery(name="q"))  # another change, which needs no plan, has its turn
    status, _, _ = await ask(daemon, "GET", "/api/v1/queries")
    assert paused.query == "q"
    assert status == 200
    assert not heavy.done()
    gate.open.set()
    (made,) = await heavy
    assert made.name == "heavy"
    assert threading.get_ident() not in gate.threads


@served(SCHEMA, limits={"sql_tokens": 25_000})
async def test_a_long_text_leaves_the_loop_its_turns(daemon):
    """The plan takes far longer than the ticks that are counted while it is made."""
    condition = " OR ".join(f"k = {n}" for n in range(5000))
    task = asyncio.create_task(daemon.catalog.plan(f"CREATE QUERY long AS SELECT k FROM s WHERE {condition}"))
    ticks = 0
    while not task.done():
        await asyncio.sleep(0.001)
        ticks += 1
    assert (await task)[0][0].name == "long"
    assert ticks > 10


@served(SCHEMA)
async def test_what_changed_meanwhile_is_planned_again(daemon, monkeypatch):
    gate = Gate(monkeypatch, "heavy")
    heavy = asyncio.create_task(daemon.catalog.execute("CREATE QUERY heavy AS SELECT * FROM s"))
    await gate.wait_entered()
    adding = asyncio.create_task(daemon.catalog.execute("ALTER STREAM s ADD COLUMN w BIGINT"))
    await settle()
    gate.open.set()
    await asyncio.gather(heavy, adding)
    fields = [field.name for field in daemon.catalog.known.queries["heavy"].schema]
    assert fields in (["k", "v"], ["k", "v", "w"])
    assert daemon.catalog.known.streams["s"].schema.names == ("k", "v", "w")
    assert daemon.catalog.known.queries["heavy"].nodes == daemon.engine.query("heavy").plan.nodes


@served(SCHEMA)
async def test_a_plan_over_what_is_gone_is_refused_when_it_is_its_turn(daemon, monkeypatch):
    """Another change gets its turn between the plan and the change that it is for."""
    catalog, held, gate = daemon.catalog, Held(daemon), Gate(monkeypatch, "late")
    gate.open.set()
    dropped = asyncio.create_task(catalog.execute("DROP QUERY q"))
    await held.wait_entered()
    late = asyncio.create_task(catalog.execute("CREATE QUERY late AS SELECT k FROM q"))
    await gate.wait_entered()
    await settle()
    assert "q" in catalog.known.queries
    assert not late.done()
    held.open.set()
    await dropped
    with pytest.raises(Refuse, match="no stream or query is called q"):
        await late
    assert [text for text in gate.texts if "late" in text] == ["CREATE QUERY late AS SELECT k FROM q"] * 2
    assert "late" not in catalog.known.queries


@served(SCHEMA)
async def test_a_refusal_over_what_has_come_meanwhile_is_taken_back(daemon):
    """Requests that are sent together are changes one after the other, as if each had waited for the one before."""
    texts = [
        "CREATE QUERY a AS SELECT k FROM s",
        "CREATE QUERY b AS SELECT k FROM a",
        "CREATE QUERY c AS SELECT k FROM b",
    ]
    made = await asyncio.gather(*map(daemon.catalog.execute, texts))
    assert [step.name for (step,) in made] == ["a", "b", "c"]


@served(SCHEMA)
async def test_if_match_is_checked_when_it_is_the_changes_turn(daemon, monkeypatch):
    _, _, headers = await ask(daemon, "GET", "/api/v1/catalog")
    gate = Gate(monkeypatch, "heavy")
    body = {"sql": "CREATE QUERY heavy AS SELECT k FROM s"}
    tagged = asyncio.create_task(ask(daemon, "POST", "/api/v1/sql", body, {"if-match": headers["etag"]}))
    await gate.wait_entered()
    await daemon.catalog.change(PauseQuery(name="q"))  # which the catalog's tag covers
    gate.open.set()
    status, problem, _ = await tagged
    assert (status, problem["code"]) == (412, "changed")
    assert "heavy" not in daemon.catalog.known.queries


@served(SCHEMA, limits={"sql_waiting": 3})
async def test_too_many_at_once_are_turned_away(daemon, monkeypatch):
    gate = Gate(monkeypatch, "heavy")
    body = {"sql": "CREATE QUERY heavy AS SELECT k FROM s", "dry_run": True}
    requests = [asyncio.create_task(ask(daemon, "POST", "/api/v1/sql", body)) for _ in range(4)]
    (refused,), waiting = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
    assert (await refused)[0] == 503
    status, problem, headers = await ask(daemon, "POST", "/api/v1/sql", {"sql": "DROP QUERY q"})
    assert (status, problem["code"], headers["retry-after"]) == (503, "busy", "1")
    assert "limits.sql_waiting" in problem["detail"]
    assert 'millrace_reconfigurations_total{kind="statements",result="refused"} 1.0' in daemon.metrics.text().decode()
    gate.open.set()
    assert [status for status, _, _ in await asyncio.gather(*waiting)] == [200, 200, 200]
    assert (await ask(daemon, "POST", "/api/v1/sql", {"sql": "DROP QUERY q"}))[0] == 200


@served(SCHEMA, limits={"sql_tokens": 100, "sql_depth": 10, "sql_characters": 1000})
async def test_limits_are_those_of_the_configuration(daemon):
    for sql, words in [
        ("SELECT k FROM s WHERE " + " OR ".join(["k = 1"] * 40), "at most 100 tokens in a statement"),
        ("SELECT " + "(" * 11, "at most 10 levels of nesting"),
        ("SELECT k FROM s -- " + "x" * 1000, "at most 1,000 characters"),
    ]:
        status, problem, _ = await ask(daemon, "POST", "/api/v1/sql", {"sql": sql})
        assert (status, problem["code"]) == (400, "sql")
        assert words in problem["detail"]
        assert problem["detail"].endswith("^")
        assert problem["line"] == 1


def test_a_catalog_of_other_limits_is_read_again(tmp_path):
    condition = " OR ".join(f"k = {n}" for n in range(100))

    async def run():
        async with running(SCHEMA, server={"data_dir": tmp_path}) as daemon:
            await daemon.catalog.execute(f"CREATE QUERY long AS SELECT k, v FROM s WHERE {condition}")
        async with running(server={"data_dir": tmp_path}, limits={"sql_tokens": 100}) as daemon:
            assert "long" in daemon.catalog.known.queries
            await daemon.catalog.execute("ALTER STREAM s ADD COLUMN w BIGINT")
            await daemon.catalog.change(RenameQuery(name="long", to="longer"))
            assert condition in daemon.catalog.known.queries["longer"].sql

    asyncio.run(run())


@served(SCHEMA)
async def test_a_condition_of_an_admin_is_planned_beside_the_loop(daemon, monkeypatch):
    threads = []
    condition = vars(edits)["condition"]

    def noted(*arguments):
        threads.append(threading.get_ident())
        return condition(*arguments)

    monkeypatch.setattr(edits, "condition", noted)
    await daemon.catalog.execute("CREATE QUERY m AS SELECT k + 1 AS n FROM s")
    status, _, _ = await ask(daemon, "POST", "/api/v1/operators/m.project1/insert", {"where": "k > 1"})
    assert status == 200
    assert threads
    assert threading.get_ident() not in threads


def test_the_interpreter_is_switched_as_before_afterwards():
    before = sys.getswitchinterval()

    async def run():
        planning = Planning(Limits(), 2)
        inside = await asyncio.gather(*(planning.run(sys.getswitchinterval) for _ in range(3)))
        await until(lambda: planning.worker.running == 0)
        planning.close()
        return inside

    assert asyncio.run(run()) == [min(before, 0.0005)] * 3
    assert sys.getswitchinterval() == before


def test_recursion_without_end_is_a_refusal():
    def deep():
        return deep()

    async def run():
        planning = Planning(Limits(), 2)
        try:
            await planning.run(deep)
        finally:
            planning.close()

    with pytest.raises(Refuse, match="nested too deeply"):
        asyncio.run(run())


@pytest.mark.parametrize("words", ["EXPLAIN ANALYZE q", "explain analyze query ;", 'EXPLAIN ANALYZE QUERY "q x"  ;  '])
def test_explain_analyze_is_recognised(words):
    from millrace.observe.analysis import asked_for

    assert asked_for(words) in ("q", "query", "q x")
    assert asked_for(words + " " * 100_000 + "x") is None
