"""Aggregates: over windows of time and of rows, over sessions, over everything so far, over current rows."""
