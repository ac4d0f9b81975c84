"""Joins of update streams: the current rows of one key, put together."""
