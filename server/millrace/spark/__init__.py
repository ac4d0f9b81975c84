"""Live queries on Spark."""
