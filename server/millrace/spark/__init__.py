"""Queries as a job of Spark Structured Streaming: the same operators, buckets and rows, past one machine."""

from millrace.spark.inputs.kafka import kafka
from millrace.spark.job import Job

__all__ = ["Job", "kafka"]
