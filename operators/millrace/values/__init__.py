"""The parts of tuples: time, schemas, batches, expressions, functions, and the states of aggregates."""
