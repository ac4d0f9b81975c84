"""Joins of streams over windows: memory, matching, pacing."""
