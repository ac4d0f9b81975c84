"""One small Spark for all tests here: two threads, few partitions, no page. `make check-spark` runs what needs more."""

from __future__ import annotations

import gc

import pytest

from millrace.backfill.session import open_session

SMALL = {
    "spark.driver.memory": "700m",
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
}

# For a minute or two of many small jobs: compiling well costs more than it gives.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def pytest_collection_modifyitems(items):
    for item in items:
        if "/spark/" in item.path.as_posix():
            # Spark starts processes and sockets of its own, and warns as it likes.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(autouse=True)
def swept():
    """Sockets that Spark's client leaves open are closed here, and not in some test that is strict about it."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def spark():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", SHORT_LIVED)
        session = open_session("local[2]", SMALL)
    yield session
    session.stop()
