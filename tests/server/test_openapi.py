"""Unusual requests, generated from the API's OpenAPI: no answer is an internal error, and every status is documented.

A few requests per route by default; `make check-api` sends many more.
"""

import asyncio
import os
import threading
from typing import Any

import pytest
import schemathesis
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from millrace.http.api import build
from millrace.run.daemon import Daemon
from tests.patience import HANG_SECONDS
from tests.server import harness

QUESTIONS = int(os.environ.get("MILLRACE_API_QUESTIONS", "30"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
# The objects that exist at each request, whatever the previous requests have dropped.
EXISTING = (
    "CREATE STREAM s (k BIGINT, v DOUBLE)",
    "CREATE STREAM t (ts TIMESTAMP, k BIGINT) WITH (time = 'ts')",
    "CREATE QUERY q WITH (order = 'event', fuse = 'off') AS SELECT k FROM s WHERE k > 0 UNION ALL SELECT k FROM t",
    "CREATE QUERY r AS SELECT k, count(*) AS n FROM s GROUP BY k",
    "CREATE SINK f FROM q WITH (type = 'stdout')",
)
OPERATORS = ("s.source", "q.filter1", "q.union1", "q.sink1", "s.fork1", "r.aggregate1")
# By the kind of thing that a path is about.
NAMES = {
    "streams": ("s", "t", "t.late"),
    "queries": ("q", "r"),
    "sinks": ("f",),
    "components": ("s",),
    "operators": OPERATORS,
    "backfills": ("q", "past"),
}
STATEMENTS = st.lists(
    st.sampled_from(
        [
            *EXISTING,
            "DROP SINK f",
            "DROP QUERY q",
            "DROP QUERY r",
            "DROP STREAM s",
            "DROP STREAM t",
            "DROP QUERY x",
            "CREATE OR REPLACE QUERY r AS SELECT k FROM s",
            "CREATE QUERY x AS SELECT k FROM q WHERE k > 5",
            "ALTER STREAM t SET (disorder = '2 s')",
            "ALTER STREAM s SET (ets = 'none')",
            "EXPLAIN SELECT k FROM s",
            "EXPLAIN ANALYZE q",
            "SELECT k FROM s",
            "CREATE QUERY",
            "DROP STREAM \x00",
            "'",
            "-- nothing",
        ]
    ),
    max_size=3,
).map("; ".join)
# By field of a body: values that get further than random ones, and random ones as well.
VALUES = {
    "sql": STATEMENTS,
    "strategy": st.sampled_from(["dfs", "bfs", "rr", "dfs(3)", "rr(0)", "fast"]),
    "operator": st.sampled_from([None, *OPERATORS]),
    "for": st.sampled_from(["10 ms", "11 ms", "0 s", "-1 s", "2 hours", "soon"]),
    "where": st.sampled_from([None, "k > 5", "true", "k", "nothing = 1"]),
    "before": st.sampled_from([None, "10 ms", "1 us"]),
    "revert_if": st.sampled_from([None, "p99 > 1 ms", "queue > 2x", "p99 > 2", "steps < 1e9"]),
}

OPTIONAL = ("operator", "before", "revert_if", "where")

# Their answers do not end: test_events.py and test_tails.py send strange requests.
ENDLESS = ["/api/v1/events", "/api/v1/tail/{name}", "/api/v1/operators/{name}/tap"]
schema = schemathesis.openapi.from_dict(build(Daemon(harness.settings())).openapi()).exclude(path=ENDLESS)


@schema.hook
def flatmap_path_parameters(context, path_parameters):
    """Most of the names are of things that exist."""
    if not path_parameters or not _fits(path_parameters.get("name")):
        return st.just(path_parameters)
    known = NAMES[context.operation.path.split("/")[3]]
    return st.sampled_from([*known * 3, path_parameters["name"]]).map(lambda name: {**path_parameters, "name": name})


@schema.hook
def flatmap_headers(context, headers):
    """Most changes are not conditional, or are on a condition that holds."""
    if not headers or "if-match" not in headers:
        return st.just(headers)
    plain = {name: value for name, value in headers.items() if name != "if-match"}
    return st.sampled_from([plain, plain, {**plain, "if-match": "*"}, headers])


@schema.hook
def flatmap_body(context, body):
    if not isinstance(body, dict):
        return st.just(body)
    fields = {
        key: st.one_of(VALUES[key], st.just(value))
        for key, value in body.items()
        if key in VALUES and (_fits(value) or (value is None and key in OPTIONAL))
    }
    return st.fixed_dictionaries(fields).map(lambda chosen: {**body, **chosen})


def _fits(value):
    """Whether a value is of the right kind: one that was made to be refused stays as it is."""
    return isinstance(value, str) and len(value) <= 100


class Running:
    """A daemon in a thread, with a separate loop."""

    def __init__(self):
        self.daemon: Any = None
        self._loop: Any = None
        self._ready = threading.Event()
        self._end: Any = None
        self._thread = threading.Thread(target=lambda: uvloop.run(self._live()))

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(HANG_SECONDS)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(HANG_SECONDS)

    async def _live(self):
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with harness.running() as self.daemon:
            self._ready.set()
            await self._end.wait()

    def restore(self):
        """Everything of EXISTING is there."""
        asyncio.run_coroutine_threadsafe(self._restore(), self._loop).result(30)

    async def _restore(self):
        catalog = self.daemon.catalog
        for statement in EXISTING:
            _, kind, name, *_ = statement.split()
            known = {"STREAM": catalog.known.streams, "QUERY": catalog.known.queries, "SINK": catalog.known.sinks}[kind]
            if name not in known:
                await catalog.execute(statement)


@pytest.fixture(scope="module")
def server():
    with Running() as running:
        yield running


@schema.parametrize()
@settings(max_examples=QUESTIONS, deadline=None, suppress_health_check=list(HealthCheck), derandomize=QUESTIONS < 100)
def test_no_answer_is_a_mistake_or_a_surprise(case, server):
    server.restore()
    case.call_and_validate(base_url=f"http://{server.daemon.admin}", checks=CHECKS)
