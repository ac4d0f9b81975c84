"""Data directories of versions without a journal: they open, get a journal, and stay readable for those versions."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from millrace.store.catalog import CatalogFile
from tests.server.directories import feed, restarted, rows
from tests.server.harness import forget_journal

CATALOGS = sorted((Path(__file__).parent / "catalogs").glob("*.sql"))


@pytest.fixture(params=CATALOGS, ids=[path.stem for path in CATALOGS])
def folder(request, tmp_path):
    """A directory as the earlier version left it: a catalog, an address, and the file of a sink."""
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as catalog:
        catalog.executescript(request.param.read_text(encoding="utf-8"))
    (tmp_path / "addresses.json").write_text("{}")
    (tmp_path / "sinks").mkdir()
    (tmp_path / "sinks" / "out.jsonl").write_text('{"k": 2, "name": "before"}\n')
    return tmp_path


def facts(daemon):
    return daemon.catalog.keeper.export(), [query.state for query in daemon.queries()]


def exported(folder):
    found = []

    async def look(daemon):
        found.append(facts(daemon))

    restarted(folder, look)
    return found[0]


def test_a_directory_opens_and_gets_a_journal(folder):
    made = exported(folder)
    assert (folder / "journal").is_dir()
    (folder / "catalog.sqlite").unlink()
    assert exported(folder) == made, "the journal and its checkpoint have everything"
    forget_journal(folder)
    assert exported(folder) == made, "the catalog was written again for earlier versions"


def test_what_changes_later_is_there_for_earlier_versions(folder):
    found = []

    async def change(daemon):
        await daemon.catalog.execute("CREATE STREAM later (k BIGINT); CREATE QUERY afterwards AS SELECT k FROM later")
        found.append(facts(daemon))

    restarted(folder)
    restarted(folder, change)
    with closing(CatalogFile(folder / "catalog.sqlite")) as catalog:
        statements = catalog.read().statements
    assert statements.count("CREATE STREAM later (k BIGINT)") == 1
    assert len(statements) == len(set(statements))
    forget_journal(folder)
    assert [exported(folder)] == found


def test_rows_of_the_new_version_continue_over_restarts(tmp_path):
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as catalog:
        catalog.executescript((CATALOGS[-1]).read_text(encoding="utf-8"))

    async def first(daemon):
        await daemon.catalog.execute(
            "CREATE STREAM numbers (k BIGINT); CREATE QUERY all_numbers AS SELECT k FROM numbers"
        )
        await feed(daemon, 0, 5, stream="numbers")

    async def second(daemon):
        await feed(daemon, 5, 5, stream="numbers")
        assert [k for (k,) in await rows(daemon, "all_numbers", 10)] == list(range(10))

    restarted(tmp_path, first)
    restarted(tmp_path, second)
