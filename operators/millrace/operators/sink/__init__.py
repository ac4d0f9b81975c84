"""Sink: where a query's rows leave the graph."""
