"""A server made equal to a file of definitions: any two sets of statements, and what stays as it is."""

import asyncio
import random

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocol import Refuse
from millrace.protocol.admin.data import to_data
from tests.depth import examples
from tests.patience import HANG_SECONDS
from tests.server.harness import lines, running, served, settle, until
from tests.server.test_api import ask

A = """CREATE STREAM s (k BIGINT, v BIGINT);
CREATE STREAM old (k BIGINT);
CREATE QUERY stays AS SELECT k FROM s WHERE k > 0;
CREATE QUERY changes AS SELECT k, v FROM s;
CREATE QUERY goes AS SELECT k FROM changes;
CREATE QUERY leaves AS SELECT k FROM old;
CREATE SINK out FROM changes WITH (type = 'stdout');"""
B = """CREATE STREAM s (k BIGINT, v BIGINT);
CREATE STREAM new (k BIGINT);
CREATE QUERY stays AS SELECT k FROM s WHERE k > 0;
CREATE QUERY changes AS SELECT k, v FROM s WHERE v > 1;
CREATE QUERY leaves AS SELECT k FROM new;
CREATE SINK out FROM changes WITH (type = 'stdout', on_slow = 'drop_oldest');"""


async def prune(daemon, sql, **fields):
    status, _, said = await ask(daemon, "POST", "/api/v1/sql", {"sql": sql, "prune": True, **fields})
    assert status == 200, said
    return said["statements"]


def changed(statements):
    return [(told["kind"], told["name"]) for told in statements if not told.get("unchanged")]


def defined(daemon):
    return sorted(daemon.catalog.keeper.statements())


@served(A)
async def test_the_server_becomes_what_the_file_says(daemon):
    before = daemon.engine.save()
    planned = await prune(daemon, B, dry_run=True)
    assert daemon.engine.save() == before
    async with lines(daemon) as feeder:
        feeder.say('{"stream": "s", "tuple": {"k": 1, "v": 1}}')
        await until(lambda: daemon.query("stays").rows == 1)
        done = await prune(daemon, B)
        assert changed(planned) == changed(done) == [
            ("drop_sink", "out"),
            ("drop_query", "goes"),
            ("create_stream", "new"),
            ("create_query", "changes"),
            ("create_query", "leaves"),
            ("drop_stream", "old"),
            ("create_sink", "out"),
        ]  # fmt: skip
        told = {one["name"]: one for one in done}
        assert told["stays"]["unchanged"]
        assert told["goes"]["after"] is None
        assert told["changes"]["replaces"]
        assert told["changes"]["before"].endswith("FROM s")
        assert told["changes"]["after"].endswith("v > 1")
        feeder.say('{"stream": "s", "tuple": {"k": 2, "v": 1}}')
        await until(lambda: daemon.query("stays").rows == 2)
    assert changed(await prune(daemon, B)) == []
    assert len(daemon.catalog.ledger.entries()) == 2
    # One change, so one undo.
    await daemon.catalog.undo(None)
    assert changed(await prune(daemon, A)) == []


@served(A)
async def test_the_export_of_a_server_changes_nothing(daemon):
    await daemon.catalog.execute("ALTER STREAM s ADD COLUMN w TEXT; ALTER QUERY leaves RENAME TO left_over")
    before = daemon.engine.save()
    assert changed(await prune(daemon, daemon.catalog.keeper.export().sql)) == []
    assert daemon.engine.save() == before


@served("CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s")
async def test_what_cannot_be_is_refused_whole(daemon):
    before = daemon.engine.save()
    for text, words in (
        (
            "CREATE STREAM s (k TEXT); CREATE QUERY q AS SELECT k FROM s",
            "stream s cannot become .*column 1 is k",
        ),
        ("CREATE STREAM s (k BIGINT); INSERT INTO s VALUES (1)", "statement 2 defines nothing"),
        ("-- nothing", "an empty file would drop everything"),
        ("CREATE QUERY q AS SELECT k FROM s", "no stream or query is called s"),
    ):
        with pytest.raises(Refuse, match=words):
            await daemon.catalog.execute(text, terms=daemon.catalog.terms(idempotent=True, temporary=False, prune=True))
    assert daemon.engine.save() == before


@served("CREATE STREAM s (k BIGINT); CREATE STREAM t (k BIGINT)")
async def test_a_temporary_query_stays_and_keeps_what_it_reads(daemon):
    await ask(daemon, "POST", "/api/v1/sql", {"sql": "SELECT k FROM s", "temporary": True})
    (name,) = daemon.catalog.temporaries.names
    assert changed(await prune(daemon, "CREATE STREAM s (k BIGINT)")) == [("drop_stream", "t")]
    assert list(daemon.catalog.temporaries.names) == [name]
    terms = daemon.catalog.terms(idempotent=False, temporary=False, prune=True)
    with pytest.raises(Refuse, match=f"s is still read by query {name}"):
        await daemon.catalog.execute("CREATE STREAM u (k BIGINT)", terms=terms)


# -- any two sets of statements --------------------------------------------------------------------------------------


def draw_definitions(dice):
    """Statements of streams, queries over each other and sinks. Streams of one name differ as a replacement may."""
    statements, columns = [], {}
    for name in dice.sample(["s0", "s1", "x"], dice.randint(1, 3)):
        grace = dice.choice(["", ", grace = '1 s'"])
        wide = dice.choice(["", ", w BIGINT"])
        columns[name] = ["k", "v", *(["w"] if wide else [])]
        statements.append(f"CREATE STREAM {name} (ts TIMESTAMP, k BIGINT, v BIGINT{wide}) WITH (time = 'ts'{grace})")
    names = dice.sample(["a", "b", "c", "d", "x"], dice.randint(0, 5))
    queries = []
    for name in names:
        if name in columns:
            continue
        source = dice.choice(list(columns))
        chosen = dice.sample(columns[source], dice.randint(1, len(columns[source])))
        what = dice.choice(["*", ", ".join(chosen)])
        columns[name] = list(columns[source]) if what == "*" else chosen
        where = dice.choice(["", f" WHERE {columns[source][0]} > {dice.randint(0, 1)}"])
        statements.append(f"CREATE QUERY {name} AS SELECT {what} FROM {source}{where}")
        queries.append(name)
    for name in ("out", "more"):
        if queries and dice.random() < 0.5:
            slow = dice.choice(["", ", on_slow = 'drop_oldest'"])
            statements.append(f"CREATE SINK {name} FROM {dice.choice(queries)} WITH (type = 'stdout'{slow})")
    return ";\n".join(statements)


async def make_equal(seed):
    dice = random.Random(seed)
    first, second = draw_definitions(dice), draw_definitions(dice)
    async with asyncio.timeout(HANG_SECONDS), running(first) as daemon, running(second) as fresh:
        terms = daemon.catalog.terms(idempotent=True, temporary=False, prune=True)
        inserts = "; ".join(
            f"INSERT INTO {name} (ts, k, v) VALUES (1, 1, 1), (2, 2, 2)" for name in daemon.catalog.known.streams
        )
        await daemon.catalog.execute(inserts)
        await settle()
        before = {name: (daemon.query(name).history, daemon.query(name).rows) for name in daemon.catalog.known.queries}
        statements = daemon.catalog.keeper.statements()
        kept = {stream.name: stream for stream in fresh.catalog.known.streams.values()}
        shrinks = any(
            len(kept[name].schema.fields) < len(stream.schema.fields)
            for name, stream in daemon.catalog.known.streams.items()
            if name in kept
        )
        if shrinks:
            with pytest.raises(Refuse, match=r"cannot become .* lacks its column"):
                await daemon.catalog.execute(second, terms=terms)
            assert daemon.catalog.keeper.statements() == statements
            return
        done = [to_data(one) for one in await daemon.catalog.execute(second, terms=terms)]
        assert defined(daemon) == defined(fresh), (first, second)
        known, like = daemon.catalog.known, fresh.catalog.known
        assert known.streams == like.streams
        assert {name: query.schema for name, query in known.queries.items()} == {
            name: query.schema for name, query in like.queries.items()
        }
        assert changed([to_data(one) for one in await daemon.catalog.execute(second, terms=terms)]) == []
        touched = {name for _, name in changed(done)}
        for name in before.keys() & known.queries.keys() - touched:
            assert (daemon.query(name).history, daemon.query(name).rows) == before[name]


@served(
    "CREATE STREAM s (k BIGINT, v BIGINT); CREATE QUERY q AS SELECT k, v FROM s; "
    "CREATE QUERY goes AS SELECT k FROM q; CREATE QUERY stays AS SELECT k FROM goes"
)
async def test_a_reader_that_goes_is_between_two_that_stay(daemon):
    text = (
        "CREATE STREAM s (k BIGINT, v BIGINT); CREATE QUERY q AS SELECT k FROM s; CREATE QUERY stays AS SELECT k FROM s"
    )
    await prune(daemon, text)
    assert changed(await prune(daemon, text)) == []


@given(st.integers(0, 2**32))
@settings(max_examples=examples(60), deadline=None)
def test_any_definitions_become_any_others(seed):
    uvloop.run(make_equal(seed))
