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

# Many small jobs run for a minute or two: thorough compilation costs more than it saves.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def pytest_collection_modifyitems(items):
    for item in items:
        if "/spark/" in item.path.as_posix():
            # Spark starts its processes and sockets, and prints warnings.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(autouse=True)
def swept():
    """Close the sockets that Spark's client leaves open here, and not in a test that is strict about them."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def spark():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", SHORT_LIVED)
        session = open_session("local[2]", SMALL)
    yield session
    session.stop()
