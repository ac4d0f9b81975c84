"""User functions in a daemon: what they raise costs rows, never the daemon."""

import pytest

from millrace.functions import DECLARED, aggregate, function
from millrace.sql.functions import install, uninstall
from tests.server.harness import peer, served, until


@function("bigint", returns="bigint")
def fussy(k):
    if k % 3 == 0:
        raise KeyError(k)
    return k * 10 if k % 3 == 1 else "ten"


@function("bigint", returns="bigint", vectorised=True)
def short(k):
    return k[:-1]


@aggregate("bigint", returns="double")
class spread:  # noqa: N801
    @staticmethod
    def init():
        return []

    @staticmethod
    def iterate(state, k):
        if k == 7:
            raise RuntimeError("seven")
        return sorted([*state, k])

    @staticmethod
    def terminate(state):
        return state[-1] - state[0]


@pytest.fixture(autouse=True)
def installed():
    rows = [row for made in (fussy, short, spread) for row in vars(made)[DECLARED]]
    install(rows)
    yield
    uninstall(rows)


SQL = """CREATE STREAM s (k BIGINT, g TEXT);
         CREATE QUERY q AS SELECT fussy(k) AS f FROM s;
         CREATE QUERY e AS SELECT short(k) AS f FROM s;
         CREATE QUERY t AS SELECT g, spread(k) AS spread FROM s GROUP BY g"""


@served(SQL)
async def test_rows_that_fail_are_counted_and_all_else_goes_on(daemon):
    async with peer(daemon) as one:
        await one.open()
        one.data(0, [[1, "a"], [2, "a"], [3, "b"], [None, "b"], [4, "b"]])
        await until(lambda: daemon.queries()[2].rows >= 2)
        one.data(5, [[7, "a"], [10, "b"]])
        await until(lambda: daemon.queries()[0].rows == 5)
    operators = {operator.name: operator for operator in daemon.engine.operators()}
    assert operators["q.project1"].errors == 2
    assert operators["q.project1"].last_error in ("fussy() failed: KeyError: 3",)
    assert operators["e.project1"].last_error.startswith("short() failed: ValueError: expected an array of")
    assert operators["e.project1"].errors == 6
    assert operators["t.aggregate1"].last_error == "spread() failed: RuntimeError: seven"
    assert daemon.state == "ready"
