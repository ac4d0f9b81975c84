"""Statements that try to be expensive before they are refused: long ones that are wrong at their end, those that grow
when they are expanded, and deep ones.

`python -m bench.statements` prints for each the processor time and the memory until its refusal; `make attacks` sends
them to a server.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Final

from millrace.sql import Catalog, SqlError, parse, plan_all
from millrace.sql.limits import MEMBERS, Limits
from millrace.sql.parser import grammar

COLUMNS: Final = 1_000
SCHEMA: Final = f"""
CREATE STREAM s (a BIGINT, b BIGINT, t TEXT);
CREATE STREAM wide ({", ".join(f"c{at:04d} BIGINT" for at in range(COLUMNS))});
CREATE STREAM alike ({", ".join("a" * 120 + f"{at:04d} BIGINT" for at in range(COLUMNS))});
"""
# The limits of a server by default.
LIMITS: Final = Limits(tokens=4_000, statements=25)


def ctes(levels: int, times: int, columns: str = "a", stream: str = "s") -> str:
    """Queries of WITH, each of which reads the one before it several times."""
    parts = [f"c0 AS (SELECT {columns} FROM {stream})"]
    for level in range(1, levels):
        arms = " UNION ALL ".join([f"SELECT {columns} FROM c{level - 1}"] * times)
        parts.append(f"c{level} AS ({arms})")
    return f"CREATE QUERY x AS WITH {', '.join(parts)} SELECT none FROM c{levels - 1}"


def _long(tokens: int) -> Iterator[tuple[str, str]]:
    """As long as a statement may be, and wrong at its end."""

    def times(word: str, each: int) -> Sequence[str]:
        return [word.format(at) for at in range((tokens - 40) // each)]

    yield "OR", f"SELECT a FROM s WHERE {' OR '.join(times('a = {}', 4))} OR none = 1"
    yield "AND", f"SELECT a FROM s WHERE {' AND '.join(times('a + b = {}', 6))} AND none = 1"
    yield "BETWEEN", f"SELECT a FROM s WHERE {' AND '.join(times('a BETWEEN 1 AND {}', 6))} AND none = 1"
    yield "columns", f"SELECT {', '.join(times('a AS c{}', 4))}, none FROM s"
    yield "sums", f"SELECT {', '.join(times('a + {0} AS c{0}', 6))}, none FROM s"
    yield "aggregates", f"SELECT {', '.join(times('sum(a + {0}) AS c{0}', 9))}, none FROM s GROUP BY b"
    yield "groups", f"SELECT count(*) AS n FROM s GROUP BY {', '.join(times('a + {}', 4))}, none"
    yield "CASE", f"SELECT CASE a {' '.join(times('WHEN {0} THEN {0}', 4))} ELSE none END AS x FROM s"
    arms = " UNION ALL ".join(times("SELECT a FROM s WHERE a > 1", 10)[:480])
    yield "UNION", f"{arms} UNION ALL SELECT none FROM s"
    yield "IN", f"SELECT a FROM s WHERE a IN ({', '.join(map(str, range((tokens - 40) * MEMBERS)))}) AND none = 1"
    yield "INs", f"SELECT a FROM s WHERE {' OR '.join(times('a IN (' + '1, ' * 40 + '1)', 15))} OR none"
    rows = ", ".join(times("({}, 2, 'x')", 8))
    yield "INSERT", f"INSERT INTO s (a, b, t) VALUES {rows}, (1, 2, 3)"
    yield "CREATE", f"CREATE STREAM z ({', '.join(times('c{} BIGINT', 3))}, c1 BIGINT)"
    yield "options", f"CREATE QUERY q WITH ({', '.join(times('o{} = 1', 4))}) AS SELECT a FROM s"
    yield "syntax", f"SELECT {', '.join(times('a', 2))} FROM s WHERE WHERE"
    yield "tables", f"SELECT x1.a FROM {', '.join(times('s x{}', 3))}"


def _growing() -> Iterator[tuple[str, str]]:
    for levels, times in ((30, 2), (12, 9), (6, 60), (3, 300), (38, 1)):
        yield f"WITH {levels}x{times}", ctes(levels, times)
    yield "WITH *", ctes(38, 1, "*", "wide")
    yield "WITH wide", ctes(9, 3, "*, 1 AS x", "wide")
    once = ", ".join(f"c{at} AS ({' UNION ALL '.join(['SELECT a FROM c0'] * 12)})" for at in range(1, 40))
    arms = " UNION ALL ".join(["SELECT a FROM s WHERE a > 1"] * 12)
    yield "WITH often", f"CREATE QUERY x AS WITH c0 AS ({arms}), {once} SELECT none FROM s"


def _deep() -> Iterator[tuple[str, str]]:
    yield "parentheses", f"SELECT {'(' * 99}none{')' * 99} FROM s"
    yield "many parentheses", f"SELECT {'(' * 450_000}a FROM s"
    yield "signs", f"SELECT {'- ' * 450_000}a FROM s"
    yield "CASEs", f"SELECT {'CASE WHEN a = 1 THEN ' * 95}none{' END' * 95} AS x FROM s"
    yield "subqueries", f"SELECT none FROM {'(SELECT a FROM ' * 39}s{')' * 39}"
    between = "none"
    for _ in range(40):
        between = f"({between} BETWEEN a AND b)"
    yield "BETWEENs", f"SELECT a FROM s WHERE {between}"


def _odd() -> Iterator[tuple[str, str]]:
    yield "alike", f"SELECT {'a' * 124} FROM alike"
    yield "a long name", f"SELECT {'ab' * 500} FROM alike"
    yield "another column", "SELECT c99999 FROM wide"
    yield "interval", f"SELECT a FROM s WHERE INTERVAL '{'1 ' * 400_000}' > INTERVAL '1 s'"
    yield "timestamp", f"SELECT a FROM s WHERE ts > TIMESTAMP '{'2' * 900_000}'"
    yield "number", f"SELECT {'9' * 900_000} FROM s"
    yield "expression", f"SELECT regexp_like(t, '{'(a|b)*c' * 100_000}(') AS x FROM s"
    yield "repetition", "SELECT regexp_like(t, '((((a{1,1000}){1,1000}){1,1000}){1,1000})') AS x FROM s"
    yield "LIKE", f"SELECT a FROM s WHERE t LIKE '{'%_' * 400_000}' ESCAPE 'xx'"
    yield "semicolons", ";" * 900_000
    yield "NUL", "SELECT a FROM s " + "\x00" * 900_000
    yield "comment", f"/*{'*' * 900_000} SELECT"
    yield "quote", "SELECT '" + "''" * 450_000
    yield "surrogate", "SELECT '\ud800' FROM none"


def attacks(tokens: int = LIMITS.tokens) -> dict[str, str]:
    """By name, statements that are refused, the long ones just below this number of tokens."""
    return {**dict(_long(tokens)), **dict(_growing()), **dict(_deep()), **dict(_odd())}


def catalog() -> Catalog:
    return plan_all(parse(SCHEMA), Catalog())[1]


def refusal(text: str, known: Catalog, limits: Limits = LIMITS) -> str:
    """The message of a refusal; AssertionError if the statement was not refused."""
    try:
        plan_all(parse(text, limits), known)
    except SqlError as error:
        return error.message
    raise AssertionError(f"accepted: {text[:80]}")


def main() -> int:
    grammar()
    known, worst_ms, worst_bytes = catalog(), 0.0, 0
    for name, text in attacks().items():
        began = time.process_time()
        message = refusal(text, known)
        took_ms = (time.process_time() - began) * 1e3
        tracemalloc.start()
        refusal(text, known)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        worst_ms, worst_bytes = max(worst_ms, took_ms), max(worst_bytes, peak)
        print(f"{name:<18} {took_ms:>7.1f} ms {peak / 2**20:>6.1f} MiB   {message:.80}", flush=True)
    print(f"at most {worst_ms:.1f} ms of the processor and {worst_bytes / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
