"""Gate: the input of a query that waits for its history."""
