"""A Spark session for backfills: its Java, its Python and little else, because clusters have their own settings."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.backfill.java import find_java
from millrace.backfill.shipping import write_archive
from millrace.protocol import Refuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EMBEDDED: Final = "local[*]"

# Times are instants: no session's zone may move them. Parquet's nanoseconds are read as integers, and checked.
SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Further settings of an embedded session: its web page has no readers.
OWN: Final[Mapping[str, str]] = {"spark.ui.enabled": "false"}


def check_spark() -> None:
    """Refuse if Spark is not installed."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise Refuse(
            "backfills need Spark, which is not installed: pip install 'millrace[backfill]'", code="no_spark"
        ) from None


def check_java() -> None:
    """Refuse if an embedded Spark would have no Java."""
    if not _submitted():
        find_java()


def _submitted() -> bool:
    """Whether spark-submit has started this process, with a Java of its choice."""
    return "spark.master" in os.environ.get("SPARK_SUBMIT_OPTS", "") or "PYSPARK_GATEWAY_PORT" in os.environ


def open_session(master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session at a master; without one, the session of spark-submit, or an embedded one over all cores."""
    check_spark()
    submitted = _submitted()
    if not submitted:
        java = find_java()
        if java.home is not None:
            os.environ["JAVA_HOME"] = java.home
    # Executors on this machine, or on others with the same installation, run the Python that runs here.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    if not submitted:
        # The root's level, before Spark's own defaults: its warnings at the start do not concern users.
        options = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
        settings = {"spark.driver.extraJavaOptions": options, **(settings or {})}
    builder = SparkSession.builder.appName("millrace backfill")
    if master is not None:
        builder = builder.master(master)
    elif not submitted:
        builder = builder.master(EMBEDDED)
    for name, value in {**OWN, **SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def opened_session(master: str | None, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session for a while: the existing one of this process, which continues, or a new one."""
    check_spark()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    session = active or open_session(master, settings)
    try:
        yield session
    finally:
        if active is None:
            with suppress(Py4JError, ConnectionError):  # its Java process may have ended
                session.stop()


def ship(session: SparkSession) -> None:
    """Send Millrace to the executors, unless they are threads of this process's Spark."""
    context = session.sparkContext
    if (context.master or "").startswith("local[") or context.master == "local":
        return
    folder = Path(tempfile.mkdtemp(prefix="millrace-ship-"))
    context.addPyFile(str(write_archive(folder / "millrace.zip")))
