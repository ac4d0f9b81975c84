"""Queries over history as a Spark job, through the same engine as the server's."""

from millrace.backfill.job import backfill

__all__ = ["backfill"]
