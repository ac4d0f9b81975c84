"""The catalog's file: it has exactly what was written last, and a change writes the rows that it changes."""

import contextlib
import sqlite3
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.store.catalog import VERSION, CatalogFile
from tests.depth import examples

changes = st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.integers(1, 3)), max_size=12)


@given(st.integers(0, 5), changes, st.booleans())
@settings(max_examples=examples(120), deadline=None)
def test_a_file_has_what_was_written_last(dense, steps, reopened) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalog.sqlite"
        statements = [f"before {number}" for number in range(dense)]
        if dense:
            as_until_now(path, statements)
        store = CatalogFile(path)
        assert store.read().statements == statements
        plans: dict[str, str] = {}
        for number, (inserts, where, count) in enumerate(steps):
            at = round(where * len(statements))
            if inserts:
                new = [f"statement {number}.{one}" for one in range(count)]
                statements[at:at] = new
                plans |= {statement: f"plan of {statement}" for statement in new[:1]}
            else:
                for gone in statements[at : at + count]:
                    plans.pop(gone, None)
                del statements[at : at + count]
            store.write(statements, plans, f"decisions {number // 2}")
            if reopened:
                store.close()
                store = CatalogFile(path)
            found = store.read()
            assert found.statements == statements
            assert found.plans == plans
            assert found.decisions == f"decisions {number // 2}"
        store.close()


def as_until_now(path: Path, statements: list[str]) -> None:
    """A file whose statements have places without room between them."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE statements (place INTEGER PRIMARY KEY, sql TEXT NOT NULL)")
        database.execute("CREATE TABLE decisions (place INTEGER PRIMARY KEY, document TEXT NOT NULL)")
        database.execute("CREATE TABLE plans (statement TEXT PRIMARY KEY, plan TEXT NOT NULL)")
        database.execute(f"PRAGMA user_version = {VERSION}")
        database.executemany("INSERT INTO statements (sql) VALUES (?)", [(sql,) for sql in statements])


def test_one_query_more_before_the_sinks_is_one_row_more(tmp_path: Path) -> None:
    store = CatalogFile(tmp_path / "catalog.sqlite")
    queries = [f"query {number}" for number in range(500)]
    sinks = [f"sink {number}" for number in range(500)]
    store.write(queries + sinks, {}, "")
    before = store.changes
    for number in range(500, 600):
        queries.append(f"query {number}")
        store.write(queries + sinks, {f"query {number}": "plan"}, "")
    # Each adds a statement and a plan, and deletes the plan of the one before it.
    assert store.changes - before == 299
    assert store.read().statements == queries + sinks
    store.close()
