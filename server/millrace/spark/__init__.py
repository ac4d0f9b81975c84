"""Queries as a job of Spark Structured Streaming: the same operators, buckets and rows, past one machine."""
