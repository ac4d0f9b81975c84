"""One small Spark for all tests here: two threads, few partitions, no page. `make check-spark` runs what needs more."""

from __future__ import annotations

import pytest

from millrace.backfill.session import open_session

SMALL = {
    "spark.driver.memory": "700m",
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
}


def pytest_collection_modifyitems(items):
    for item in items:
        if "/spark/" in item.path.as_posix():
            # Spark starts processes and sockets of its own, and warns as it likes; the first test waits for the JVM.
            item.add_marker(pytest.mark.filterwarnings("default"))
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark():
    session = open_session("local[2]", SMALL)
    yield session
    session.stop()
