"""Deduplicate: the first row of each key per span of time."""
