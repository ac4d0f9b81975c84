"""A live job from start to end, as the command runs it: check, lock, start Spark, and stop it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from millrace.backfill.running import in_plain_words
from millrace.backfill.session import check_java, check_spark, opened_session
from millrace.spark.epochs import Report, check_not_ended
from millrace.spark.job import Runner, check_trigger
from millrace.spark.metrics import Metrics
from millrace.spark.records import CommitRecord
from millrace.spark.request import LiveRequest


def run_job(
    request: LiveRequest,
    report: Report,
    *,
    master: str | None,
    settings: Mapping[str, str],
    trigger: str,
    tasks: int | None,
    until_end: bool,
    metrics: str | None,
) -> None:
    """Run a job until it fails, is interrupted or, if `until_end`, has read everything."""
    check_trigger(trigger)
    check_spark()
    check_java()
    with Metrics(metrics) as gauges, request.open():
        if not until_end:
            check_not_ended(request.checkpoint, request.checkpoint.last())

        def each(commit: CommitRecord) -> None:
            gauges.observe(commit)
            report(commit)

        with in_plain_words(), opened_session(master, settings) as session:
            runner = Runner(session, request, tasks, each)
            if until_end:
                runner.run_to_end()
                return
            query = runner.start(trigger)
            try:
                query.awaitTermination()
            finally:
                with suppress(Exception):  # an interrupt may have cut a call to Java
                    query.stop()
