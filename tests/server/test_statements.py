"""Statements at the API: CREATE of existing objects, INSERT, SHOW, DESCRIBE, EXPLAIN of a name, temporary queries."""

import asyncio

import pytest

from tests.server.harness import FakeTimers, lines, running, served, until
from tests.server.test_api import ask, get

STREAM = "CREATE STREAM s (ts TIMESTAMP, k BIGINT, v DOUBLE) WITH (time = 'ts', disorder = '1 second')"
QUERY = "CREATE QUERY q AS SELECT ts, k FROM s WHERE k > 0"


async def post(daemon, text, **fields):
    _, _, said = await ask(daemon, "POST", "/api/v1/sql", {"sql": text, **fields})
    return said


async def outcomes(daemon, text, **fields):
    said = await post(daemon, text, **fields)
    assert "statements" in said, said
    return said["statements"]


# -- what exists already -----------------------------------------------------------------------------------------------


@served(sql=None)
async def test_the_same_text_twice_changes_nothing(daemon):
    text = f"{STREAM}; {QUERY}; CREATE SINK out FROM q WITH (type = 'stdout')"
    assert all("unchanged" not in told for told in await outcomes(daemon, text, idempotent=True))
    before = await get(daemon, "/api/v1/catalog")
    again = await outcomes(daemon, text, idempotent=True)
    assert [(told["kind"], told["unchanged"]) for told in again] == [
        ("create_stream", True),
        ("create_query", True),
        ("create_sink", True),
    ]
    assert await get(daemon, "/api/v1/catalog") == before
    planned = await post(daemon, text, idempotent=True, dry_run=True)
    assert all(told["unchanged"] for told in planned["statements"])
    assert planned["plan"]["queries"] == [] or all(q["change"] == "stays" for q in planned["plan"]["queries"])


@served(sql=None)
async def test_a_stream_and_its_alters_twice_change_nothing(daemon):
    alters = "ALTER STREAM s SET (disorder = '3 s'); ALTER STREAM s ADD COLUMN note TEXT"
    first = await outcomes(daemon, f"{STREAM}; {alters}", idempotent=True)
    assert all("unchanged" not in told for told in first)
    text = f"{STREAM}; {alters}; {QUERY}"
    *again, query = await outcomes(daemon, text, idempotent=True)
    assert [told["kind"] for told in again if told["unchanged"]] == ["create_stream", "alter_stream", "alter_stream"]
    assert query["kind"] == "create_query"
    before = await get(daemon, "/api/v1/catalog")
    assert all(told["unchanged"] for told in await outcomes(daemon, text, idempotent=True))
    assert await get(daemon, "/api/v1/catalog") == before
    # One more ALTER at the end of the file is applied.
    *same, more = await outcomes(daemon, f"{STREAM}; {alters}; ALTER STREAM s ADD COLUMN w BIGINT", idempotent=True)
    assert all(told["unchanged"] for told in same)
    assert more["added"] == ["w"]
    # A file that lacks the newest ALTER differs, and is refused as before.
    said = await post(daemon, f"{STREAM}; {alters}", idempotent=True)
    assert "with another definition" in said["detail"]
    assert "unchanged" not in (await outcomes(daemon, "DROP QUERY q; DROP STREAM s; " + STREAM, idempotent=True))[2]


@served(sql=None)
async def test_a_query_between_a_stream_and_its_alters_twice_changes_nothing(daemon):
    """ADD COLUMN replaces * by the columns of that time; the file is compared with what it came to."""
    more = "ALTER STREAM s ADD COLUMN note TEXT; ALTER STREAM s ADD COLUMN w BIGINT"
    kept = "CREATE QUERY kept WITH (order = 'event') AS SELECT * FROM s"
    between = f"{kept}; CREATE QUERY twins AS SELECT a.*, b.k AS other FROM s a JOIN s b ON a.ts = b.ts"
    text = f"{STREAM}; {between}; {more}; CREATE QUERY wide AS SELECT * FROM s; CREATE QUERY over AS SELECT * FROM kept"
    assert all("unchanged" not in told for told in await outcomes(daemon, text, idempotent=True))
    before = await get(daemon, "/api/v1/catalog")
    assert all(told["unchanged"] for told in await outcomes(daemon, text, idempotent=True))
    replaced = text.replace("CREATE QUERY", "CREATE OR REPLACE QUERY")
    assert all(told["unchanged"] for told in await outcomes(daemon, replaced, idempotent=True))
    assert await get(daemon, "/api/v1/catalog") == before
    # Another text, or other options, are refused as before.
    for change in ((" AS SELECT * FROM s", " AS SELECT *, k + 1 AS n FROM s"), (" WITH (order = 'event')", "")):
        said = await post(daemon, text.replace(*change), idempotent=True)
        assert "already a query called kept, with another definition" in said["detail"]


@served(sql=None)
async def test_without_the_word_a_second_create_is_refused(daemon):
    await outcomes(daemon, STREAM)
    said = await post(daemon, STREAM)
    assert said["code"] == "sql"
    assert "already a stream called s, with this definition; CREATE STREAM IF NOT EXISTS" in said["detail"]
    said = await post(daemon, "CREATE STREAM s (k BIGINT)", idempotent=True)
    assert "with another definition; CREATE OR REPLACE STREAM" in said["detail"]


@served(sql=f"{STREAM}; {QUERY}")
async def test_if_not_exists_and_if_exists(daemon):
    (told,) = await outcomes(daemon, "CREATE STREAM IF NOT EXISTS s (k TEXT)")
    assert told["unchanged"]
    assert told["warnings"] == ["stream s exists with another definition, which is unchanged"]
    (told,) = await outcomes(daemon, "CREATE QUERY IF NOT EXISTS q AS SELECT ts, k FROM s WHERE k>0")
    assert told["unchanged"]
    assert told["warnings"] == []
    first, second, third = await outcomes(
        daemon, "DROP SINK IF EXISTS x; DROP QUERY IF EXISTS q; CREATE QUERY IF NOT EXISTS q AS SELECT k FROM s"
    )
    assert first == {
        "kind": "drop_sink", "name": "x", "unchanged": True, "reason": "the sink x does not exist", "warnings": []
    }  # fmt: skip
    assert "unchanged" not in second
    assert third["kind"] == "create_query"
    assert daemon.catalog.known.queries["q"].sql == "CREATE QUERY q AS SELECT k FROM s"
    assert (await post(daemon, "CREATE STREAM IF NOT EXISTS q (k BIGINT)"))["code"] == "sql"


@served(sql=f"{STREAM}; {QUERY}")
async def test_or_replace_of_a_stream(daemon):
    wider = "(ts TIMESTAMP, k BIGINT, v DOUBLE, note TEXT, w BIGINT) WITH (time = 'ts', disorder = '2 seconds')"
    (told,) = await outcomes(daemon, f"CREATE OR REPLACE STREAM s {wider}")
    assert (told["kind"], told["added"], told["changes"]) == ("alter_stream", ["note", "w"], {"disorder_us": 2_000_000})
    stream = await get(daemon, "/api/v1/streams/s")
    assert [field[0] for field in stream["fields"]] == ["ts", "k", "v", "note", "w"]
    assert daemon.catalog.known.streams["s"].sql == f"CREATE STREAM s {wider}"
    (told,) = await outcomes(daemon, f"CREATE OR REPLACE STREAM s {wider}")
    assert told["unchanged"]
    (told,) = await outcomes(daemon, f"CREATE STREAM s {wider}", idempotent=True)
    assert told["unchanged"]
    # What is left out takes its default.
    columns = wider.partition(" WITH")[0]
    (told,) = await outcomes(daemon, f"CREATE OR REPLACE STREAM s {columns} WITH (time = 'ts')")
    assert told["changes"] == {"disorder_us": 0}
    for other, what in (
        ("(ts TIMESTAMP, k TEXT) WITH (time = 'ts')", "column 2 is k BIGINT in the stream and k TEXT here"),
        ("(ts TIMESTAMP, k BIGINT) WITH (time = 'ts')", "lacks its column v DOUBLE"),
        (f"{columns} WITH (time = 'ts', extra = 'ignore')", "extra is 'refuse' in the stream and 'ignore' here"),
        (f"{columns[:-1]}, z BIGINT NOT NULL) WITH (time = 'ts')", "nullable"),
    ):
        said = await post(daemon, f"CREATE OR REPLACE STREAM s {other}")
        assert said["code"] == "sql"
        assert what in said["detail"]
        assert "^" in said["detail"]


def test_a_replaced_stream_is_restored(tmp_path):
    async def play():
        folder = {"data_dir": tmp_path}
        async with running(f"{STREAM}; {QUERY}", server=folder) as daemon:
            await outcomes(
                daemon,
                "CREATE OR REPLACE STREAM s (ts TIMESTAMP, k BIGINT, v DOUBLE, n TEXT) "
                "WITH (time = 'ts', grace = '1 s')",
            )
            exported = (await get(daemon, "/api/v1/catalog"))["sql"]
        async with running(server=folder) as daemon:
            assert (await get(daemon, "/api/v1/catalog"))["sql"] == exported
            assert daemon.catalog.known.streams["s"].schema.names == ("ts", "k", "v", "n")

    asyncio.run(play())


# -- INSERT ------------------------------------------------------------------------------------------------------------


@served(sql=f"{STREAM}; {QUERY}")
async def test_insert(daemon):
    async with lines(daemon) as client:
        client.say('{"subscribe": "q", "from": 0}')
        (told,) = await outcomes(
            daemon,
            "INSERT INTO s VALUES ('2026-01-01 00:00:00', 1, 2), (TIMESTAMP '2026-01-01 00:00:05', 1 + 1, NULL)",
        )
        assert told == {"kind": "insert", "name": "s", "rows": 2, "late": 0}
        assert [(await client.hear())["row"]["k"] for _ in range(2)] == [1, 2]
        # Below the watermark: 00:00:05 less one second of disorder.
        rows = "(3, '2026-01-01 00:00:01'), (4, '2026-01-01 00:00:04.5')"
        (told,) = await outcomes(daemon, f"INSERT INTO s (k, ts) VALUES {rows}")
        assert (told["rows"], told["late"]) == (2, 1)
        assert (await client.hear())["row"]["k"] == 4
    stream = await get(daemon, "/api/v1/streams/s")
    assert (stream["tuples"], stream["late"], stream["connections"], stream["feeds"]) == (4, 1, 0, [])


@served(sql=f"{STREAM}; {QUERY}")
async def test_insert_holds_no_watermark_back(daemon):
    async with lines(daemon) as client:
        client.say('{"stream": "s", "tuple": {"ts": "2026-01-01T00:10:00Z", "k": 1}}')
        await until(lambda: daemon.engine.source("s").newest > 0)
        (told,) = await outcomes(daemon, "INSERT INTO s VALUES ('2026-01-01 00:20:00', 2, 0)")
        assert told["late"] == 0
        before = daemon.engine.source("s").mark
        client.say('{"stream": "s", "tuple": {"ts": "2026-01-01T00:30:00Z", "k": 1}}')
        await until(lambda: daemon.engine.source("s").mark > before)


@pytest.mark.parametrize(
    ("text", "column", "what"),
    [
        ("INSERT INTO s VALUES ('2026-01-01', 'x', 1)", 37, "column k: expected bigint, got the text 'x'"),
        ("INSERT INTO s VALUES ('2026-01-01', 1)", 22, "expected 3 values, for ts, k, v, got 2"),
        ("INSERT INTO s (k) VALUES (1)", 26, "column ts: expected timestamp, not null, got no value"),
        ("INSERT INTO s VALUES (NULL, 1, 1)", 23, "column ts: expected timestamp, not null, got NULL"),
        ("INSERT INTO s VALUES ('2026-01-01', 1 / 0, 1)", 37, "column k: division by zero"),
        ("INSERT INTO s VALUES ('2026-01-01', v, 1)", 37, "expected a constant, got the column v"),
        ("INSERT INTO s VALUES ('2999-01-01', 1, 1)", 23, "max_ahead"),
        ("INSERT INTO s (k, kk) VALUES (1, 2)", 19, "the column kk does not exist in s; did you mean k?"),
        ("INSERT INTO s (k, k) VALUES (1, 2)", 19, "listed twice"),
        ("INSERT INTO s.late VALUES (1)", 13, "receives only the late tuples of s"),
        ("INSERT INTO q VALUES (1)", 13, "q is a query"),
        ("INSERT INTO t VALUES (1)", 13, "the stream t does not exist"),
    ],
)
def test_refused_inserts(text, column, what):
    @served(sql=f"{STREAM}; {QUERY}", limits={"max_ahead": "1 hour"})
    async def play(daemon):
        valid = "INSERT INTO s VALUES ('2026-01-01', 9, 9); "
        status, _, said = await ask(daemon, "POST", "/api/v1/sql", {"sql": valid + text})
        assert (status, said["code"]) == (400, "sql")
        assert what in said["detail"]
        assert said["column"] == column + len(valid)
        assert daemon.engine.source("s").counts.input_tuples == 0

    play()


@served(sql=None)
async def test_insert_into_a_stream_of_the_same_text(daemon):
    first, second = await outcomes(daemon, "CREATE STREAM z (k BIGINT, t TEXT); INSERT INTO z (k) VALUES (1), (2)")
    assert first["kind"] == "create_stream"
    assert second == {"kind": "insert", "name": "z", "rows": 2, "late": 0}
    assert "drops that stream" in (await post(daemon, "INSERT INTO z (k) VALUES (1); DROP STREAM z"))["detail"]
    planned = await post(daemon, "INSERT INTO z (k) VALUES (1)", dry_run=True)
    assert planned["statements"] == [{"kind": "insert", "name": "z", "rows": 1}]
    assert daemon.engine.source("z").counts.input_tuples == 2


# -- SHOW, DESCRIBE, EXPLAIN -------------------------------------------------------------------------------------------


@served(sql=f"{STREAM}; {QUERY}; CREATE SINK out FROM q WITH (type = 'stdout', on_slow = 'drop_oldest')")
async def test_show_and_describe(daemon):
    shown = await outcomes(daemon, "SHOW STREAMS; SHOW QUERIES; SHOW SINKS; SHOW COMPONENTS; show operators")
    names = [[item["name"] for item in told["items"]] for told in shown]
    assert names[:4] == [["s", "s.late"], ["q"], ["out"], ["s"]]
    assert "q.sink1" in names[4]
    assert {told["kind"] for told in shown} == {"show"}
    stream, query, sink, late = await outcomes(daemon, "DESCRIBE s; DESC q; DESCRIBE SINK out; DESCRIBE s.late")
    assert stream["columns"] == [
        {"name": "ts", "type": "timestamp", "nullable": False},
        {"name": "k", "type": "bigint", "nullable": True},
        {"name": "v", "type": "double", "nullable": True},
    ]
    assert stream["of"] == "stream"
    assert stream["options"] == {
        "timestamps": "external",
        "time": "ts",
        "disorder": "00:00:01",
        "grace": "00:00:00",
    } | {name: stream["options"][name] for name in stream["options"] if name in ("grace", "max_ahead")}
    assert (query["of"], [column["name"] for column in query["columns"]], query["reads"]) == (
        "query",
        ["ts", "k"],
        ["s"],
    )
    assert (sink["query"], sink["options"]["on_slow"]) == ("q", "drop_oldest")
    assert [column["name"] for column in late["columns"]][-1] == "at"
    (created,) = await outcomes(daemon, "SHOW CREATE STREAM s")
    assert created["text"] == f"{STREAM};"
    said = await post(daemon, "DESCRIBE sx")
    assert "no stream, query or sink is called sx; did you mean s?" in said["detail"]


@served(sql=f"{STREAM}; {QUERY}")
async def test_explain_of_a_name(daemon):
    (told,) = await outcomes(daemon, "EXPLAIN q")
    assert told["text"] == (await get(daemon, "/api/v1/queries/q/explain"))["text"]
    told, other = await outcomes(daemon, "EXPLAIN ANALYZE q; EXPLAIN QUERY q")
    assert "measured over" in told["text"]
    assert "measured over" not in other["text"]
    assert "s is a stream" in (await post(daemon, "EXPLAIN s"))["detail"]
    before = daemon.metrics.text().decode()
    await outcomes(daemon, "SHOW STREAMS; EXPLAIN q")
    counts = [line for line in daemon.metrics.text().decode().splitlines() if "reconfigurations" in line]
    assert counts == [line for line in before.splitlines() if "reconfigurations" in line]


# -- SELECT ------------------------------------------------------------------------------------------------------------


@served(sql=f"{STREAM}; {QUERY}")
async def test_a_temporary_query_ends_with_its_reader(daemon):
    catalog = await get(daemon, "/api/v1/catalog")
    (told,) = await outcomes(daemon, "SELECT k, v FROM s WHERE k > 1 LIMIT 5", temporary=True)
    assert (told["kind"], told["temporary"], told["limit"]) == ("select", True, 5)
    name = told["name"]
    assert [field[0] for field in told["fields"]] == ["k", "v"]
    assert (await get(daemon, f"/api/v1/queries/{name}"))["temporary"]
    assert not (await get(daemon, "/api/v1/queries/q"))["temporary"]
    assert await get(daemon, "/api/v1/catalog") == catalog
    async with lines(daemon) as client:
        client.say(f'{{"subscribe": "{name}", "from": 0}}')
        await outcomes(daemon, "INSERT INTO s VALUES ('2026-01-01', 1, 0), ('2026-01-01', 2, 0)")
        assert (await client.hear())["row"] == {"k": 2, "v": 0.0}
        said = await post(daemon, f"CREATE QUERY r AS SELECT k FROM {name}")
        assert said["code"] == "temporary"
        assert (await post(daemon, f"CREATE SINK r FROM {name} WITH (type = 'stdout')"))["code"] == "temporary"
        assert (await post(daemon, f"ALTER QUERY {name} RENAME TO r"))["code"] == "temporary"
        assert (await post(daemon, "DROP STREAM s"))["code"] == "sql"
    await until(lambda: name not in daemon.catalog.known.queries)
    assert name not in daemon.engine.queries_by_name
    assert await get(daemon, "/api/v1/catalog") == catalog
    (other,) = await outcomes(daemon, "SELECT count(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 second')", temporary=True)
    assert other["name"] != name
    await outcomes(daemon, f"DROP QUERY {other['name']}")
    assert daemon.catalog.temporaries.names == {}


def test_a_temporary_query_that_nobody_reads_ends():
    timers = FakeTimers()

    async def play():
        async with running(f"{STREAM}; {QUERY}", timers=timers) as daemon:
            (told,) = await outcomes(daemon, "SELECT k FROM s", temporary=True)
            timers.advance(9)
            assert told["name"] in daemon.engine.queries_by_name
            timers.advance(2)
            await until(lambda: told["name"] not in daemon.engine.queries_by_name)

    asyncio.run(play())


@served(sql=f"{STREAM}; {QUERY}")
async def test_refused_selects(daemon):
    said = await post(daemon, "SELECT k FROM s")
    assert said["code"] == "sql"
    assert "has no destination for its rows" in said["detail"]
    for text, what in (
        ("SELECT kk FROM s", "the column kk does not exist"),
        ("SELECT k FROM s; SHOW STREAMS", "a SELECT must be the last statement"),
        ("SELECT k FROM s LIMIT 0", "expected a whole number above 0"),
        ("SELECT k FROM s LIMIT 'a'", "expected a whole number above 0"),
        ("SELECT k FROM s LIMIT 1 OFFSET 2", "needs an end"),
        ("SELECT k FROM s ORDER BY k", "ORDER BY"),
        ("CREATE QUERY z AS SELECT k FROM s LIMIT 3", "needs an end"),
    ):
        said = await post(daemon, text, temporary=True)
        assert said["code"] == "sql"
        assert what in said["detail"], said["detail"]
        assert "^" in said["detail"]
    assert list(daemon.catalog.known.queries) == ["q"]
    first, second = await outcomes(daemon, "CREATE QUERY z AS SELECT k FROM s; SELECT k FROM z", temporary=True)
    assert (first["kind"], second["kind"]) == ("create_query", "select")


def test_a_temporary_query_is_not_restored(tmp_path):
    async def play():
        folder = {"data_dir": tmp_path}
        async with running(f"{STREAM}; {QUERY}", server=folder) as daemon:
            (told,) = await outcomes(daemon, "SELECT k FROM s", temporary=True)
            await outcomes(daemon, "CREATE QUERY r AS SELECT k FROM s")
            assert told["name"] in daemon.engine.queries_by_name
        async with running(server=folder) as daemon:
            assert sorted(daemon.engine.queries_by_name) == ["q", "r"]

    asyncio.run(play())
