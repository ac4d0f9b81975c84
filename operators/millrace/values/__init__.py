"""What tuples are made of: time, schemas, batches, expressions, functions, and the states of aggregates."""
