"""Sort: rows in order of time."""
