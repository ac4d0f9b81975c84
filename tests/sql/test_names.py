"""Names in statements, and in the lists of error messages."""

from __future__ import annotations

import pytest

from millrace.protocol import Field, Schema, Type
from millrace.sql import Catalog, SqlError, parse, plan_all
from millrace.sql.arcs import condition
from millrace.sql.parser import grammar, written

WORDS = sorted(
    {terminal.name.strip("_").lower() for terminal in grammar().terminals if "\\b" in terminal.pattern.value}
    - {"identifier", "literals"}
)
SIGNS = ["number", "string", "star", "plus", "dot", "comma", "equal", "comparison", "identifier", "quoted", "anon_0"]


@pytest.mark.parametrize("name", [*WORDS, *SIGNS, "A", "a b", 'say "so"', "1st", "é"])
def test_a_written_name_parses_as_the_name(name: str) -> None:
    shown = written(name)
    other = written(name + "!")
    select = f"SELECT {shown}.{shown}, {shown} AS {other} FROM s AS {shown}"
    text = f"CREATE STREAM s ({shown} BIGINT); CREATE QUERY q AS {select}"
    _, catalog = plan_all(parse(text), Catalog())
    assert catalog.queries["q"].schema.names == (name, name + "!")


def test_only_words_of_the_language_are_put_in_quotes() -> None:
    assert all(written(word) == f'"{word}"' for word in WORDS)
    assert [written(sign) for sign in SIGNS] == SIGNS


def test_a_column_called_ts_is_listed_once() -> None:
    schema = Schema((Field("k", Type.BIGINT), Field("v", Type.BIGINT), Field("ts", Type.TIMESTAMP)))
    with pytest.raises(SqlError, match="the column nope does not exist in arc; the columns are k, v, ts\n") as refused:
        condition("nope = 1", schema)
    assert refused.value.column == 1


def test_where_nothing_of_a_kind_is_there_it_is_said_once() -> None:
    with pytest.raises(SqlError) as refused:
        plan_all(parse("DROP QUERY zz"), Catalog())
    assert refused.value.message == "the query zz does not exist; none exist yet"
