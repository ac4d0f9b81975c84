"""Ids of streams, queries and sinks: a change is undone on the objects that it was about, whatever their names are."""

import tarfile
from pathlib import Path

import pytest

from millrace.journal.follower import Follower
from millrace.protocol import Refuse
from tests.server.directories import ids, killed, restarted
from tests.server.harness import forget_journal, served
from tests.server.test_api import ask, get

SQL = """CREATE STREAM s (k BIGINT);
CREATE QUERY q AS SELECT k FROM s WHERE k > 0;
CREATE QUERY r AS SELECT q.k FROM q;
CREATE SINK f FROM q WITH (type = 'stdout');
"""
START = {("streams", "s"): 1, ("queries", "q"): 2, ("queries", "r"): 3, ("sinks", "f"): 4}
# The version that wrote this directory gave no ids. It has a checkpoint, and records of changes after it.
WITHOUT_IDS = Path(__file__).parent / "journals" / "without-ids.tar.xz"


def rename(name, to):
    return f"ALTER QUERY {name} RENAME TO {to}"


async def undo(daemon, number):
    """Undo a change; the sentence of the change that has done that."""
    return (await daemon.catalog.undo(number)).text


@served(SQL)
async def test_what_is_replaced_or_renamed_keeps_its_id_and_nothing_gets_it_again(daemon):
    assert ids(daemon)[0] == START
    catalog = daemon.catalog
    await catalog.execute(rename("q", "z"))
    await catalog.execute("CREATE OR REPLACE QUERY r AS SELECT k FROM z WHERE k > 1")
    await catalog.execute("ALTER STREAM s ADD COLUMN v BIGINT")
    await catalog.execute("CREATE OR REPLACE STREAM s (k BIGINT, v BIGINT) WITH (lull = '1 s')")
    assert ids(daemon)[0] == {("streams", "s"): 1, ("queries", "z"): 2, ("queries", "r"): 3, ("sinks", "f"): 4}
    await catalog.execute("DROP SINK f; DROP QUERY r")
    await catalog.execute("CREATE QUERY r AS SELECT k FROM s; CREATE QUERY q AS SELECT k FROM s")
    assert ids(daemon)[0] == {("streams", "s"): 1, ("queries", "z"): 2, ("queries", "r"): 5, ("queries", "q"): 6}


@served(SQL)
async def test_the_ledger_shows_the_ids_of_what_a_record_names(daemon):
    await daemon.catalog.execute(rename("q", "z"))
    newest = (await get(daemon, "/api/v1/changes"))[-1]
    assert newest["inverse"] == [{"change": "rename_query", "ids": {"z": 2}, "name": "z", "to": "q"}]
    record = newest["inverse"][0]
    status, _, told = await ask(daemon, "POST", "/api/v1/changes", {"changes": [record]})
    assert (status, told["code"]) == (422, "invalid_request"), "a request has names"


@served(SQL)
async def test_a_change_is_undone_after_renames(daemon):
    """Another query has the name by then."""
    catalog = daemon.catalog
    await catalog.execute("CREATE OR REPLACE QUERY q AS SELECT k FROM s WHERE k > 5")
    replaced = catalog.ledger.newest()
    await catalog.execute(f"{rename('q', 'z')}; {rename('r', 'q')}")
    _, _, told = await ask(daemon, "POST", "/api/v1/changes/undo", {"number": replaced, "dry_run": True})
    assert told["changes"] == [
        {"change": "create_query", "sql": "CREATE OR REPLACE QUERY z AS SELECT k FROM s WHERE k > 0"}
    ]
    assert await undo(daemon, replaced) == "replaced query z"
    assert catalog.known.queries["z"].sql == "CREATE OR REPLACE QUERY z AS SELECT k FROM s WHERE k > 0"
    assert ids(daemon)[0]["queries", "z"] == 2


@served(SQL)
async def test_a_dropped_object_comes_back_as_itself(daemon):
    catalog = daemon.catalog
    await catalog.execute("CREATE OR REPLACE QUERY r AS SELECT q.k FROM q WHERE q.k > 7")
    replaced = catalog.ledger.newest()
    await catalog.execute("DROP QUERY r")
    dropped = catalog.ledger.newest()
    await catalog.execute(f"CREATE QUERY r AS SELECT k FROM s; {rename('q', 'z')}")
    before = catalog.keeper.export(), ids(daemon)
    with pytest.raises(Refuse, match=r"^r does not exist any more: undo the change that has dropped it first") as told:
        await undo(daemon, replaced)
    assert told.value.code == "not_undoable"
    assert (catalog.keeper.export(), ids(daemon)) == before
    with pytest.raises(Refuse, match="there is already a query called r"):
        await undo(daemon, dropped)
    await catalog.execute(rename("r", "other"))
    await undo(daemon, dropped)
    assert catalog.known.queries["r"].sql == "CREATE QUERY r AS SELECT q.k FROM z AS q WHERE q.k > 7"
    assert ids(daemon)[0]["queries", "r"] == 3
    await undo(daemon, replaced)
    assert catalog.known.queries["r"].sql == "CREATE OR REPLACE QUERY r AS SELECT q.k FROM z AS q"


@served(SQL)
async def test_an_undo_that_a_rename_has_made_already_is_refused(daemon):
    catalog = daemon.catalog
    await catalog.execute(rename("q", "z"))
    renamed = catalog.ledger.newest()
    await catalog.execute(rename("z", "q"))
    with pytest.raises(Refuse, match="nothing is left to undo: later changes have undone it"):
        await undo(daemon, renamed)


@served("CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k FROM s; CREATE QUERY r AS SELECT k FROM q")
async def test_a_text_gets_no_name_that_a_query_of_with_hides(daemon):
    catalog = daemon.catalog
    joined = "WITH z AS (SELECT k FROM s) SELECT q.k FROM q JOIN z ON q.k = z.k"
    await catalog.execute(f"CREATE OR REPLACE QUERY r AS {joined}")
    await catalog.execute("CREATE OR REPLACE QUERY r AS SELECT k FROM s")
    replaced = catalog.ledger.newest()
    await catalog.execute(rename("q", "z"))
    with pytest.raises(Refuse, match="q is called z now, as a query of WITH is: rename it first"):
        await undo(daemon, replaced)
    await catalog.execute(rename("z", "y"))
    await undo(daemon, replaced)
    assert catalog.known.queries["r"].reads_queries == ("y",)


@served("CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k + 1 AS n FROM s; CREATE QUERY r AS SELECT * FROM q")
async def test_an_undo_of_a_renamed_column_restores_texts_under_other_names(daemon):
    catalog = daemon.catalog
    await catalog.execute("CREATE QUERY gone AS SELECT * FROM s; CREATE QUERY stays AS SELECT * FROM s")
    await catalog.execute("ALTER STREAM s RENAME COLUMN k TO visitors")
    number = catalog.ledger.newest()
    assert catalog.known.queries["stays"].sql != "CREATE QUERY stays AS SELECT * FROM s"
    await catalog.execute(f"DROP QUERY gone; {rename('stays', 'moved')}")
    await undo(daemon, number)
    assert catalog.known.queries["moved"].sql == "CREATE QUERY moved AS SELECT * FROM s"


# -- restarts and earlier versions ---------------------------------------------------------------------------------


def test_ids_are_the_same_after_a_start_from_the_journal_and_from_the_catalog(tmp_path):
    found = []

    async def change(daemon):
        await daemon.durability.make()
        await daemon.catalog.execute(f"{rename('q', 'even')}; CREATE SINK f FROM even WITH (type = 'stdout')")
        await daemon.catalog.execute("CREATE STREAM t (k BIGINT)")
        await daemon.catalog.execute("DROP STREAM t")
        found.append(ids(daemon))

    async def look(daemon):
        found.append(ids(daemon))

    async def on(daemon):
        await daemon.catalog.execute("CREATE STREAM u (k BIGINT)")
        assert ids(daemon)[0]["streams", "u"] == found[0][1] + 1, "the stream that was dropped had the newest id"
        await undo(daemon, 2)
        assert "q" in daemon.catalog.known.queries

    killed(tmp_path / "one", tmp_path / "image", more=change)
    restarted(tmp_path / "image", look)
    forget_journal(tmp_path / "image")
    restarted(tmp_path / "image", look)
    assert found[1:] == [found[0]] * 2
    restarted(tmp_path / "image", on)


def test_a_journal_without_ids_gives_the_same_ones_wherever_it_is_read(tmp_path):
    expected = {
        ("streams", "s"): 1,
        ("queries", "totals"): 3,
        ("queries", "even"): 5,
        ("streams", "t"): 6,
        ("queries", "later"): 7,
        ("sinks", "f"): 8,
    }
    found = []

    async def look(daemon):
        found.append(ids(daemon)[0])
        assert daemon.durability.recovery.difference is None

    for copy in ("one", "other"):
        with tarfile.open(WITHOUT_IDS) as packed:
            packed.extractall(tmp_path / copy, filter="data")
    follower = Follower(tmp_path / "one")
    follower.advance()
    assert follower.difference is None
    follower.close()

    async def undo_by_names(daemon):
        ledger = {entry.text: entry.number for entry in daemon.catalog.ledger.entries()}
        assert await undo(daemon, ledger["paused query later"]) == "resumed query later"
        assert await undo(daemon, ledger["renamed query q to even"]) == "renamed query even to q"

    restarted(tmp_path / "one", look)
    restarted(tmp_path / "one", look)
    restarted(tmp_path / "other", look)
    assert found == [expected] * 3
    restarted(tmp_path / "other", undo_by_names)
